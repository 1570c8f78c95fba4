#!/usr/bin/env python3
"""The Python module against a live daemon: SLIPRING_SOCKET, SLIPRING_MODEL, SLIPRING_LIB."""
import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "adapters", "python"))
import slipring

checks = 0


def check(what, ok):
    global checks
    checks += 1
    if not ok:
        sys.exit(f"FAILED: {what}")


def refused(what, call, error):
    try:
        call()
    except error:
        return check(what, True)
    check(what, False)


def layouts():
    """Each field lies where the C compiler puts it."""
    if not shutil.which("cc"):
        print("SKIP: no cc to hold the structures to")
        return
    pairs = {"sr_options": slipring.Options, "sr_model_info": slipring.ModelInfo, "sr_pair": slipring.Pair,
             "sr_sampling": slipring.Sampling, "sr_request": slipring.Request, "sr_end": slipring.EndInfo, "sr_token": slipring.Token,
             "sr_text_info": slipring.TextInfo, "sr_detok": slipring.Detok}
    places = [(c, name) for c, s in pairs.items() for name, _ in s._fields_]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "a.c"), "w") as f:
            f.write('#include <stddef.h>\n#include <stdio.h>\n#include "shmring/slipring.h"\n'
                    '#include "adapters/text/slipring-text.h"\nint main(void)\n{\n')
            f.writelines(f'printf("%zu\\n", offsetof(struct {c}, {name}));\n' for c, name in places)
            f.writelines(f'printf("%zu\\n", sizeof(struct {c}));\n' for c in pairs)
            f.write("return 0;\n}\n")
        subprocess.run(["cc", "-I", root, "-o", os.path.join(d, "a"), os.path.join(d, "a.c")], check=True)
        right = list(map(int, subprocess.run([os.path.join(d, "a")], capture_output=True, check=True).stdout.split()))
    for (c, name), at in zip(places, right):
        check(f"{c}.{name} at {at}", getattr(pairs[c], name).offset == at)
    for (c, s), size in zip(pairs.items(), right[len(places):]):
        # a request may be shorter: it says how long it is
        check(f"{c} of {size} bytes", ctypes.sizeof(s) <= size if c == "sr_request" else ctypes.sizeof(s) == size)


layouts()
HELLO = [{"role": "user", "content": "Say hello."}]

with slipring.open() as s:
    check("a model and its context", s.model and s.context > 256)
    for text in ("", "Hello, world", "Grüße, 世界 👋\n\n  x", "a" * 5000):
        check("decode(encode(text)) is text", s.decode(s.encode(text)) == text)
    check("control tokens are not made from text", len(s.encode("<|im_end|>")) > 1)
    check("unless asked for", len(s.encode("<|im_end|>", special=True)) == 1)
    check("the template is rendered", "Say hello." in s.render(HELLO))
    refused("a message without a role is an Error", lambda: s.render([{"content": "x"}]), slipring.Error)

    a = s.generate("The capital of France is", max_tokens=8, temperature=0)
    pieces = list(a)
    check("text comes in pieces", len(pieces) > 1)
    check("it is that of the ids", "".join(pieces) == s.decode(a.ids))
    check("the count is right", a.n_tokens == len(a.ids) <= 8 and a.prompt_tokens == 5)
    check("it ended for a reason", a.finish in ("stop", "length"))
    check("greedy is the same again", s.generate("The capital of France is", max_tokens=8, temperature=0).text() == "".join(pieces))
    check("ids are taken as they are", s.generate(s.encode("The capital of France is"), max_tokens=8, temperature=0).text() == "".join(pieces))

    seeded = [s.generate("Once upon a time", max_tokens=12, temperature=1.0, seed=7).text() for _ in range(2)]
    check("a seed repeats", seeded[0] == seeded[1])
    check("what holds where nothing is said: llama.cpp's, of a GGUF file", s.sampling ==
          {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition": 1})
    unsaid = s.generate("Once upon a time", max_tokens=24, seed=7)
    given = s.generate("Once upon a time", max_tokens=24, seed=7, **s.sampling)
    check("and it is what is done", unsaid.text() == given.text())
    drawn = {s.generate("Once upon a time", max_tokens=24).text() for _ in range(4)}
    check("which is not greedy", len(drawn) > 1)
    check("a conversation is answered", s.chat(HELLO, max_tokens=16).text())

    long = s.generate("Count: 1 2 3", max_tokens=500, ignore_eos=True)
    next(long)
    long.cancel()
    long.text()
    check("a cancelled answer ends early", long.finish not in ("stop", "length") and long.n_tokens < 500)

    class Full:
        """The ring of cancels, full for so many calls: what sr_cancel says then is no end of the matter."""
        def __init__(self, calls):
            self.calls, self.real = calls, slipring._ring.sr_cancel

        def __call__(self, *args):
            self.calls -= 1
            return -slipring.EAGAIN if self.calls >= 0 else self.real(*args)

        def __enter__(self):
            slipring._ring.sr_cancel = self
            return self

        def __exit__(self, *_):
            slipring._ring.sr_cancel = self.real

    with Full(3) as full:
        long = s.generate("Count: 1 2 3", max_tokens=500, ignore_eos=True)
        long.cancel()
        long.text()
        check("a cancel that finds its ring full is kept", long.finish not in ("stop", "length") and long.n_tokens < 500)
        check("until it is taken, and no longer", full.calls == -1 and not s._cancels)

    async def cancelled():
        long = s.generate("Count: 1 2 3", max_tokens=500, ignore_eos=True)
        long.cancel()
        async for _ in long:
            pass
        return long

    with Full(3) as full:
        long = asyncio.run(asyncio.wait_for(cancelled(), 60))
        check("nor is it lost in an event loop", long.finish not in ("stop", "length") and long.n_tokens < 500)
        check("there, too, until it is taken", full.calls == -1 and not s._cancels)

    both = [s.generate(p, max_tokens=16, ignore_eos=True, temperature=0) for p in ("One", "Two", "Three")]
    texts = [b.text() for b in both]
    check("answers at once are those alone", texts == [s.generate(p, max_tokens=16, ignore_eos=True, temperature=0).text() for p in ("One", "Two", "Three")])

    refused("an unknown option", lambda: s.generate("x", nonsense=1), TypeError)
    refused("an empty prompt", lambda: s.generate([]), slipring.Error)
    refused("too long a prompt", lambda: s.generate([1] * (s.context + 1)), slipring.Error)
    refused("an id beyond 32 bits is not another one", lambda: s.generate([(1 << 32) + 5]), OverflowError)
    refused("nor in decode", lambda: s.decode([(1 << 32) + 5]), OverflowError)

    ids = s.encode("One two")
    check("ids are what can be iterated over",
          s.decode(iter(ids)) == s.decode(tuple(ids)) == s.decode(memoryview(slipring.array.array("q", ids))) == s.decode(ids))
    check("a range is ids", s.decode(range(300, 308)) == s.decode(list(range(300, 308))))
    check("bytes in decode are ids, each of them", s.decode(bytes([5, 200, 0, 7])) == s.decode([5, 200, 0, 7]))
    check("bytes as a prompt are text", s.generate(b"One", max_tokens=1).prompt_tokens == len(s.encode("One")))
    check("a range as a prompt is ids", s.generate(range(300, 308), max_tokens=1).prompt_tokens == 8)

    rang = []
    signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    text = s.generate("One", max_tokens=64, ignore_eos=True, temperature=0).text()
    signal.setitimer(signal.ITIMER_REAL, 0)
    check("signals in between are nothing", text.startswith(texts[0]) and rang)

    async def one(prompt):
        return "".join([piece async for piece in s.generate(prompt, max_tokens=16, ignore_eos=True, temperature=0)])

    async def three():
        return await asyncio.gather(*(one(p) for p in ("One", "Two", "Three")))

    check("asyncio gives the same", asyncio.run(asyncio.wait_for(three(), 60)) == texts)
    check("and again in another loop", asyncio.run(asyncio.wait_for(one("One"), 60)) == texts[0])

    left = s.generate("Count: 1 2 3", max_tokens=500, ignore_eos=True)

for what, call in (("its answers", lambda: next(left)), ("its model", lambda: s.model), ("its text", lambda: s.encode("x")),
                   ("chats", lambda: s.chat(HELLO)), ("cancels", left.cancel)):
    refused(f"a closed session: {what}", call, slipring.Error)


async def closed():
    with slipring.open() as s:
        answer = s.generate("One", max_tokens=500, ignore_eos=True)
        asyncio.get_running_loop().call_later(0.05, s.close)
        async for _ in answer:
            pass

refused("closed while an event loop waits", lambda: asyncio.run(asyncio.wait_for(closed(), 20)), slipring.Error)

where = os.environ.pop("SLIPRING_SOCKET")
if os.path.join(os.environ.get("RUNTIME_DIRECTORY", ""), "slipring.sock") == where:
    with slipring.open() as s:
        check("the daemon is found where slipring serve puts it", s.generate("One", max_tokens=4).text())
else:
    print("SKIP: RUNTIME_DIRECTORY is not where SLIPRING_SOCKET is, that the daemon is found there is not asked")
with tempfile.TemporaryDirectory() as d:
    for what, make, ok in (("none", lambda p: None, True), ("ours", lambda p: os.mkdir(p, 0o700), True),
                           ("a writable one", lambda p: (os.mkdir(p), os.chmod(p, 0o777)), False),
                           ("a link", lambda p: os.symlink(d, p), False), ("a file", lambda p: open(p, "w").close(), False)):
        path = os.path.join(d, what)
        make(path)
        if ok:
            slipring._make_ours(path)
            check(f"{what}: there, and only ours", os.stat(path).st_mode & 0o777 == 0o700)
        else:
            refused(f"{what} is not ours", lambda: slipring._make_ours(path), slipring.Error)
    if os.geteuid() == 0:
        os.mkdir(path := os.path.join(d, "a stranger's"), 0o700)
        os.chown(path, 65534, 65534)
        refused("a stranger's is not ours", lambda: slipring._make_ours(path), slipring.Error)
    else:
        print("SKIP: a stranger's runtime directory: only root can make one")
for name in ("../x", "", ".", "a/b", "x\n", "x" * 49):
    refused(f"instance {name!r}", lambda: slipring.open(instance=name), slipring.Error)
check("an instance's socket", slipring._socket_of("b-1").endswith("/b-1/slipring.sock"))
refused("no daemon there", lambda: slipring.open("/nonexistent.sock"), slipring.Error)
print(f"ok: {checks} checks")
