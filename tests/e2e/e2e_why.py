#!/usr/bin/env python3
"""What the daemon waited for while it had nothing to compute, over HTTP: long prompts that take time to
tokenize, a sender that dribbles, a client that says nothing.  Each is at least nine tenths of `empty` while
it goes on; the five parts add up to it; and why, top and /metrics say so."""
import re, socket, subprocess, threading, time
from harness import *


def parsed(p, *args):
    r = subprocess.run([os.path.join(BUILD, "slipring"), *map(str, args), "--json"], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=60, env=p.env)
    check(r.returncode == 0, f"slipring {args}: {r.stderr}")
    return json.loads(r.stdout)


def short(p):
    p.post("/v1/completions", {"prompt": [1, 2, 3, 4], "max_tokens": 1})


def why(p):
    """Since start; a request first, so that the daemon has counted its sleep."""
    short(p)
    j = parsed(p, "why", "--since", "start")
    check(abs(sum(j["empty_s"].values()) - j["why_s"]["empty"]) < 1e-6, f"the parts of empty add up: {j}")
    check(abs(sum(j["why_s"].values()) - j["seconds"]) < 0.001 * j["seconds"], f"and all to the time: {j}")
    return j


def metrics(p):
    got = {}
    for line in p.ask("GET", "/metrics")[2].splitlines():
        for name in ("slipring_empty_seconds_total", "slipring_limit_seconds_total"):
            if line.startswith(name):
                got[name, re.search('(limit|doing)="([^"]*)"', line)[2]] = float(line.split()[-1])
    return got


class Silent:
    remark = "silent"

    def one(self, i):
        pass


class Dribble:
    """A request that arrives byte by byte."""
    remark = "waits for requests to arrive"

    def one(self, i):
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        with socket.create_connection(("127.0.0.1", self.p.port), timeout=30) as s:
            for byte in head + body:
                s.send(bytes([byte]))
                self.begun.set()
                self.stop.wait(0.1)
            check(s.recv(4096).startswith(b"HTTP/1.1 200"), "what came slowly is answered")


class Long:
    """Prompts that take long to tokenize, several requests at a time."""
    remark = "tokenizes, while nothing else waits"

    def __init__(self):
        text = " ".join(f"{i * 7919 % 10007:x} word" for i in range(600))
        self.body = json.dumps({"prompt": [f"{i} {text}" for i in range(60)], "max_tokens": 1}).encode()

    def one(self, i):
        while not self.stop.is_set():
            check(self.p.ask("POST", "/v1/completions", self.body)[0] == 200, "long prompts are answered")
            self.begun.set()


def remarked(p, remark):
    return any(c["remark"] == remark for c in parsed(p, "top", "-i", "0.5")["client"])


def shares(p, load, at_once):
    """The parts of empty while it goes on, as shares of it."""
    load.p, load.begun, load.stop, results = p, threading.Event(), threading.Event(), []
    thread = threading.Thread(target=lambda: results.append(p.together(at_once, load.one)), daemon=True)
    thread.start()
    check(isinstance(load, Silent) or load.begun.wait(30), "the load has begun")
    why(p)
    m = metrics(p)
    time.sleep(2)
    check(wait_for(lambda: remarked(p, load.remark), 5), f"top says of the client: {load.remark}")
    why(p)
    n = metrics(p)
    load.stop.set()
    thread.join(60)
    check(results == [[None] * at_once], f"and all went well: {results}")
    empty = n["slipring_limit_seconds_total", "empty"] - m["slipring_limit_seconds_total", "empty"]
    check(empty > 0.5, f"much of the time nothing could be added: {empty}")
    for (name, part), v in n.items():
        check(v >= m[name, part], f"a counter never goes back: {name} {part}")
    parts = sum(v for (name, _), v in n.items() if name == "slipring_empty_seconds_total")
    check(abs(parts - n["slipring_limit_seconds_total", "empty"]) < 1e-6, f"/metrics adds up, too: {n}")
    return {part: (v - m[name, part]) / empty for (name, part), v in n.items() if name == "slipring_empty_seconds_total"}


def who_does_not_read(p):
    """A client of the rings that asks for more than its ring holds and takes none of it."""
    os.environ["SLIPRING_LIB"] = BUILD
    sys.path.insert(0, os.path.join(HERE, "..", "adapters", "python"))
    import slipring
    before = parsed(p, "why", "--since", "start")["why_s"]["ring_out"]
    with slipring.open(p.socket, MODEL) as s:
        s.generate([1, 2, 3], max_tokens=4000, ignore_eos=True)

        def named():
            rows = [c for c in parsed(p, "top", "-i", "0.2")["client"] if c["name"] == "python"]
            return len(rows) == 1 and rows[0]["remark"].startswith("does not read: its ring has been full for") and rows[0]
        row = wait_for(named, 9)
        check(row and row["pid"] == os.getpid() and row["live"] == 1, f"top names who does not read: {row}")
        short(p)                                      # nobody else waits for it
    check(parsed(p, "why", "--since", "start")["why_s"]["ring_out"] > before, "and why has the time")


def bench_says_so(p):
    """A benchmark whose limit is the tokenizing says that, and what to turn."""
    r = subprocess.run([os.path.join(BUILD, "slipring"), "bench", "serve", "--port", str(p.port), "--num-prompts", "100",
                        "--random-input-len", "2000", "--random-output-len", "1", "--disable-tqdm"], env=p.env,
                       capture_output=True, text=True, timeout=100)
    check(r.returncode == 0 and re.search(r"\n  of empty: +tokenizing \d+ %", r.stdout), f"bench: {r.stdout[-900:]}{r.stderr}")
    check(re.search(r"The limit was the load: .*\(of empty: tokenizing \d+ %.*; for tokenizing a larger --api-server-count",
                    r.stdout), f"in its sentence, too: {r.stdout[-400:]}")


def main():
    need_model()
    with Programs() as p:
        p.daemon("--device", "null", "--null-step-us", 0)
        p.adapter("--disable-access-log")
        for load, at_once, part in ((Silent(), 1, "silent"), (Dribble(), 1, "network"), (Long(), 3, "tokenizing")):
            s = shares(p, load, at_once)
            check(s[part] >= 0.9, f"{part} is what it waited for: {s}")
            print(f"{part}: {s[part] * 100:.1f} % of empty")
        bench_says_so(p)
        who_does_not_read(p)
    done()


main()
