#!/usr/bin/env python3
"""Requests that cost the sender little and are meant to cost the server much, one after the other
against a real adapter: each gets its answer soon, everybody else is served meanwhile, and the memory
that they took comes back."""
import time
from harness import *

CHAT, TEXT, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
USER = {"role": "user", "content": "x"}


def text(**kw):
    return {"prompt": "x", "max_tokens": 2, **kw}


def raw(tail):
    return '{"prompt":"x","max_tokens":2,' + tail + "}"


def call(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


CASES = [  # name, path, body, statuses that are right
    ("one long word", TEXT, text(prompt="a" * 20_000_000), {400}),
    ("one long run of spaces", TEXT, text(prompt=" " * 500_000), {200, 400}),
    ("special tokens alone", TEXT, text(prompt="<|im_start|>" * 500_000), {400}),
    ("text without end", TOKENIZE, {"prompt": "a b " * 1_500_000}, {400}),
    ("text in lone accents", TOKENIZE, {"prompt": "\u0301" * 300_000}, {200}),
    ("more tokens than the context", TEXT, text(prompt=[1] * 100_000), {400}),
    ("bias of every token", TEXT, text(logit_bias={str(i): 1 for i in range(49152)}), {400}),
    ("long bad words", TEXT, text(bad_words=[f"w{i} " + "a" * 20_000 for i in range(128)]), {400}),
    ("many bad words", TEXT, text(bad_words=["w"] * 60_000), {400}),
    ("stop strings that nearly match", TEXT, text(max_tokens=4000, ignore_eos=True, stop=["a" * 16_000 + "b"] * 4), {200}),
    ("stop strings too long", TEXT, text(stop=["a" * 100_000]), {400}),
    ("as many answers as may be", TEXT, text(prompt=["x"] * 512, n=2), {200}),
    ("more answers than may be", TEXT, text(prompt=["x"] * 513, n=2), {400}),
    ("prompts without end", TEXT, text(prompt=["x"] * 20_000), {400}),
    ("a number without end", TEXT, raw('"temperature":' + "1" * 100_000), {400}),
    ("deep lists", TEXT, raw('"y":' + "[" * 500_000 + "]" * 500_000), {400}),
    ("values without end", TEXT, raw('"y":[' + "1," * 3_000_000 + "1]"), {400}),
    ("as many values as may be", TEXT, raw('"y":[' + "1," * 2_000_000 + "1]"), {200}),
    ("keys to hash", TEXT, raw('"y":{' + ",".join(f'"{i:x}":0' for i in range(300_000)) + "}"), {200}),
    ("numbers past 64 bits", TEXT, raw('"y":[' + "99999999999999999999," * 300_000 + "1]"), {200}),
    ("a long name", TEXT, text(user="u" * 20_000_000), {200}),
    ("messages without end", CHAT, {"messages": [USER] * 50_000, "max_tokens": 2}, {400}),
    ("deep arguments", CHAT, {"messages": [call("[" * 10_000)], "max_tokens": 2}, {400}),
    ("arguments without end", CHAT, {"messages": [call("[" + "0," * 1_500_000 + "0]")] * 2, "max_tokens": 2}, {400}),
    ("no JSON at all", CHAT, "\0" * 1_000_000, {400}),
]


def main():
    need_model()                                  # for its tokenizer alone
    with Programs() as p:
        p.daemon("--device", "null")
        p.adapter("--disable-access-log")
        a = p.procs["slipring-http"]
        p.post(TEXT, text())
        before, worst, stop = rss(a.pid)[1], [0.0], threading.Event()

        def others():
            while not stop.wait(0.01):
                t = time.monotonic()
                check(p.ask("POST", TEXT, text())[0] == 200, "others are served meanwhile")
                worst[0] = max(worst[0], time.monotonic() - t)
        watcher = threading.Thread(target=others)
        watcher.start()
        try:
            for name, path, body, right in CASES:
                t = time.monotonic()
                status, _, answer = p.ask("POST", path, body)
                took = time.monotonic() - t
                check(status in right, f"{name}: {status} {answer[:200]}")
                check(took < 20, f"{name}: {took:.1f} s")
        finally:
            stop.set()
            watcher.join()
        after = rss(a.pid)[1]
        print(f"others waited {worst[0] * 1000:.0f} ms at most; memory {before >> 20} -> {after >> 20} MiB")
        check(worst[0] < 5, f"others waited {worst[0]:.1f} s")
        check(after - before < 256 << 20, f"memory comes back: {before >> 20} -> {after >> 20} MiB")

        # large requests that run for long: what they hold is what they need
        streams = []
        for _ in range(8):
            c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=60)
            c.request("POST", TEXT, json.dumps(text(user="u" * 12_000_000, max_tokens=8000, ignore_eos=True,
                                                    stream=True)), {"Content-Type": "application/json"})
            streams.append((c, c.getresponse()))
        for _, r in streams:
            check(r.status == 200 and r.read(20), "a large request begins to stream")
        during = rss(a.pid)[1]
        check(during - after < 64 << 20, f"eight streams of 12 MB requests hold {(during - after) >> 20} MiB")
        for c, _ in streams:
            c.close()
    done()


main()
