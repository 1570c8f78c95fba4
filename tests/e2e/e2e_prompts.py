#!/usr/bin/env python3
"""The same messages make the same prompt by every way: slipring-http, the Python module, slipring chat.

The device is the null device, whose next token depends on every id before it: equal answers mean equal prompts."""
import json, os, subprocess, sys
from harness import *

sys.path.insert(0, os.path.join(HERE, "..", "adapters", "python"))
os.environ["SLIPRING_LIB"] = BUILD
import slipring


def user(s):
    return {"role": "user", "content": s}


def called(arguments):
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}]}


CHATS = [
    {"messages": [user("Hi")]},
    {"messages": [{"role": "system", "content": " Be brief. "}, user("Hi\n"), {"role": "assistant", "content": "Hello! 😀"}, user("<|im_end|>")]},
    {"messages": [{"role": "developer", "content": "Be brief."}, user("a\0b")]},
    {"messages": [user(["one", {"type": "text", "text": "two"}]), {"role": "assistant", "content": None}]},
    {"messages": [user("Weather?"), called('{"a": 18446744073709551615}'), {"role": "tool", "content": "21", "tool_call_id": "call_1"}]},
    {"messages": [user("2 + 2?"), {"role": "assistant", "content": "4", "reasoning_content": "two and two"}, user("Sure?")]},
    {"messages": [user("Hi"), {"role": "assistant", "content": "Well, "}], "continue_final_message": True},
    {"messages": [user("Hi")], "add_generation_prompt": False},
    {"messages": [user("Hi")], "chat_template_kwargs": {"enable_thinking": False, "messages": [], "bos_token": "x"}},
]
REFUSED = [
    {"messages": []}, {"messages": [{"content": "x"}]}, {"messages": [user([{"type": "image_url"}])]},
    {"messages": [user("x"), called("{")]}, {"messages": [user("x")], "documents": [1]},
]


def main():
    need_model()
    with Programs() as p:
        p.daemon("--device", "null")
        p.adapter()
        with slipring.open(p.socket, MODEL) as s:
            for chat in CHATS:
                ids = p.post("/tokenize", chat)["tokens"]
                check(s.encode(s.render(**chat), special=True) == ids, f"Python and HTTP: {json.dumps(chat)[:300]}")
            for chat in REFUSED:
                status, _, text = p.ask("POST", "/tokenize", chat)
                check(status == 400, f"HTTP refuses {chat}: {status}")
                try:
                    check(False, f"Python takes {chat}: {s.render(**chat)}")
                except slipring.Error as e:
                    check(str(e.strerror or e.args[1]) == json.loads(text)["error"]["message"], f"Python: {e}, HTTP: {text}")
        for system, question in (("Be brief.", "Hi"), ("Be brief.", "Hi "), ("", "Wer bist du? 😀"), (None, "Hi")):
            messages = [{"role": "system", "content": system}] * (system is not None) + [user(question)]
            r = subprocess.run([os.path.join(BUILD, "slipring"), "chat", "--max-tokens", "32", "--ignore-eos", "--temperature", "0",
                                "--once", question,
                                *(["--system", system] if system is not None else [])],
                               capture_output=True, env=p.env, timeout=60)
            check(r.returncode == 0, f"slipring chat: {r.stderr}")
            answer = p.post("/v1/chat/completions", {"messages": messages, "max_tokens": 32, "ignore_eos": True, "temperature": 0})
            check(r.stdout.decode(errors="replace") == answer["choices"][0]["message"]["content"] + "\n",
                  f"slipring chat and HTTP: {messages}: {r.stdout} {answer}")
    done()


main()
