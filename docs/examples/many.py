#!/usr/bin/env python3
"""Many answers at once in one event loop.  PYTHONPATH=adapters/python python3 docs/examples/many.py"""
import asyncio

import slipring


async def main():
    with slipring.open() as s:
        async def ask(n):
            answer = s.generate(f"{n} plus {n} is", max_tokens=8)
            return "".join([piece async for piece in answer])

        for n, text in enumerate(await asyncio.gather(*(ask(n) for n in range(8)))):
            print(f"{n}: {text!r}")


asyncio.run(main())
