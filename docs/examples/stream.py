#!/usr/bin/env python3
"""Stream one answer.  PYTHONPATH=adapters/python python3 docs/examples/stream.py"""
import slipring

with slipring.open() as s:
    answer = s.chat([{"role": "user", "content": "Name three rivers of Europe."}], max_tokens=64)
    for text in answer:
        print(text, end="", flush=True)
    print(f"\n[{answer.n_tokens} tokens, {answer.finish}]")
