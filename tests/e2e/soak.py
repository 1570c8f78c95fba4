#!/usr/bin/env python3
"""Daemon and adapter over the null device, at a rate that leaves the machine to others: clients come and
go over rings and HTTP, prompts are short and long, answers are read, cancelled and left.  Memory and
descriptors of both must stay where they were once all has happened a few times.

    tests/e2e/soak.py BUILD [SECONDS]        60, of which the first fifth is warming up; make soak SOAK_MINUTES=30
"""
import ctypes as C, os, random, sys
from harness import *

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
RATE = 8.0                                    # things done a second
GROWTH = {"slipringd": 1 << 20, "slipring-http": 4 << 20} # bytes: the later half above the earlier
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
os.environ["SLIPRING_LIB"] = BUILD
sys.path.insert(0, os.path.join(HERE, "..", "adapters", "python"))


class Rings:
    """Requests of ids over rings, through libslipring alone: no tokenizer."""

    def __init__(self, path):
        import slipring
        self.m, self.lib, self.path = slipring, slipring._ring, path
        self.steady = self.open()

    def open(self):
        c, o = C.c_void_p(), self.m.Options(size=C.sizeof(self.m.Options), name=b"soak")
        check(self.lib.sr_open(C.byref(c), os.fsencode(self.path), C.byref(o)) == 0, "a ring client connects")
        return c

    def ask(self, c, n_prompt, n, cancel_at=None, leave_at=None):
        """One answer of n tokens; cancelled, or left in the middle, after so many."""
        ids = (C.c_int32 * n_prompt)(*(random.randrange(3, 9000) for _ in range(n_prompt)))
        q = self.m.Request(size=C.sizeof(self.m.Request), prompt=ids, n_prompt=n_prompt, max_tokens=n,
                           flags=self.m.IGNORE_EOS, n_top=random.choice((0, 0, 5)))
        ticket, t, got = C.c_uint32(), self.m.Token(), 0
        check(self.lib.sr_submit(c, C.byref(q), C.byref(ticket)) == 0, "a request is taken")
        while True:
            k = self.lib.sr_next(c, C.byref(t))
            if k == 0:
                check(self.lib.sr_wait(c, self.m.WAIT_TOKENS, 20000) == self.m.WAIT_TOKENS, "a token comes")
                continue
            check(k == 1, f"tokens can be read: {k}")
            if t.kind == self.m.END:
                check(t.end.finish == (self.m.LENGTH if t.end.n_tokens == n else -125), f"it ended {t.end.finish}")
                return
            got += 1
            if got == cancel_at:
                self.lib.sr_cancel(c, ticket)
            if got == leave_at:
                return


def long_prompt():
    return random.randrange(500, 3500)


def deeds(p, r):
    """What may happen, one of it at a time."""
    def passing(*args, **kw):
        c = r.open()
        r.ask(c, *args, **kw)
        r.lib.sr_close(c)

    def left(path, body):
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=20)
        c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        check(c.getresponse().read(30), "a stream begins")
        c.close()

    def text(n_prompt, n):
        return {"prompt": [random.randrange(3, 9000) for _ in range(n_prompt)], "max_tokens": n, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 12}
    return [
        lambda: r.ask(r.steady, 20, 30),
        lambda: r.ask(r.steady, long_prompt(), 10),
        lambda: r.ask(r.steady, 50, 400, cancel_at=15),
        lambda: passing(10, 20),
        lambda: passing(long_prompt(), 5),
        lambda: passing(100, 300, leave_at=10),
        lambda: p.post(TEXT, text(20, 20)),
        lambda: p.post(TEXT, text(long_prompt(), 5)),
        lambda: p.post(CHAT, chat),
        lambda: p.post(TEXT, {"prompt": "a story " * random.randrange(1, 800), "max_tokens": 4, "logprobs": 3}),
        lambda: check(p.stream(CHAT, chat)[0] == 200, "a chat is streamed"),
        lambda: left(TEXT, text(30, 300)),
        lambda: left(TEXT, text(long_prompt(), 300)),
        lambda: check(p.ask("POST", TEXT, '{"prompt": ')[0] == 400, "half a request is refused"),
        lambda: check(p.ask("GET", "/metrics")[0] == 200, "metrics are read"),
    ]


def cpu(pid):
    """Seconds of CPU that a process has taken."""
    f = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


def main():
    need_model()                                  # for its tokenizer alone
    random.seed(1)
    with Programs() as p:
        p.daemon("--device", "null", "--null-step-us", 1000, "--num-gpu-blocks-override", 2048)
        p.adapter("--disable-access-log")
        r, procs = Rings(p.socket), p.procs
        todo, begin = deeds(p, r), time.monotonic()
        used = {n: cpu(x.pid) for n, x in procs.items()}
        seen, n_done, look_at = [], 0, 0.0
        print(f"{'second':>7} {'deeds':>7}" + "".join(f" {x + ' KiB':>18} {'fds':>4}" for x in procs), flush=True)
        while (t := time.monotonic() - begin) < SECONDS:
            todo[n_done % len(todo) if n_done < 2 * len(todo) else random.randrange(len(todo))]()
            n_done += 1
            for name, x in procs.items():
                check(x.poll() is None, f"{name} lives")
            if t >= look_at:
                seen.append((t, {k: (rss(x.pid)[0], descriptors(x.pid)) for k, x in procs.items()}))
                print(f"{t:7.0f} {n_done:7}" + "".join(f" {b >> 10:18} {f:4}" for b, f in seen[-1][1].values()), flush=True)
                look_at += min(60.0, SECONDS / 12)
            time.sleep(max(0.0, begin + n_done / RATE - time.monotonic()))
        r.lib.sr_close(r.steady)
        warm = [s for t, s in seen if t >= SECONDS / 5]
        half = len(warm) // 2
        for name, x in procs.items():
            core = (cpu(x.pid) - used[name]) / SECONDS
            first, last = (max(s[name][0] for s in part) for part in (warm[:half], warm[half:]))
            fds = max(s[name][1] for s in warm[:half]), max(s[name][1] for s in warm[half:])
            print(f"{name}: {first >> 10} KiB at most before, {last >> 10} after; {100 * core:.1f} % of a core")
            check(last - first <= GROWTH[name], f"{name} grew by {(last - first) >> 10} KiB")
            check(fds[1] <= fds[0] + 2, f"{name} holds {fds[1]} descriptors, {fds[0]} before")
    done()


main()
