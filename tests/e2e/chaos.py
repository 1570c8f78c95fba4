#!/usr/bin/env python3
"""Streams over HTTP from `slipring serve -dp 2` while its processes are killed, stopped, told to drain, upgraded, at
random moments.  Every answer of a connection that lives is the undisturbed one; memory and descriptors come back.
usage: chaos.py BUILD [MINUTES [SEED]]"""
import random
from harness import *

MINUTES = float(sys.argv[2]) if len(sys.argv) > 2 else 1
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
STREAMS, TOKENS = 24, 60
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
          "additionalProperties": False}


class Releases(Released):
    """Programs of which the daemon gets other releases."""

    def other_release(self):
        """A daemon whose version alone differs; it takes the place of the last one."""
        path = os.path.join(self.bin, "slipringd")
        with open(path, "rb") as f:
            program = f.read()
        old = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.split()[-1].encode()
        new = old[:-1] + (b"1" if old[-1:] != b"1" else b"2")
        with open(path + ".new", "wb") as f:
            f.write(program.replace(old, new))
        os.chmod(path + ".new", 0o755)
        os.rename(path + ".new", path)


def asked(i):
    chat = {"messages": [{"role": "user", "content": f"Write about iron, number {i}."}], "max_tokens": TOKENS, "stream": True}
    text = {"prompt": f"{i}: once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    return [("/v1/chat/completions", {**chat, "temperature": .9, "seed": i}),
            ("/v1/completions", {**text, "temperature": 0}),
            ("/v1/completions", {**text, "temperature": .9, "seed": i}),
            ("/v1/chat/completions", {**chat, "temperature": .9, "seed": i, "response_format": {
                "type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}})][i % 4]


def answer(p, i, gaps=None):
    """The text; None: the connection was lost; or what went wrong."""
    path, body = asked(i)
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=120)
    out, whole, last = "", False, None
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            return f"status {r.status} {r.read()[:300]}"
        for line in r:
            if not line.startswith(b"data: "):
                continue
            if gaps is not None and last is not None:
                gaps.append(time.monotonic() - last)
            last = time.monotonic()
            if line.startswith(b"data: [DONE]"):
                whole = True
                continue
            e = json.loads(line[6:])
            if e.get("error"):
                return f"error {e}"
            for choice in e.get("choices", []):
                out += choice.get("text") or choice.get("delta", {}).get("content") or ""
                whole = whole or bool(choice.get("finish_reason"))
        return out if whole else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        c.close()


def adapter(p):
    return next(iter(children(p.procs["slipring"].pid, "slipring-http")), None)


def engines_up(p):
    try:
        text = p.ask("GET", "/metrics", timeout=10)[2]
    except OSError:
        return False
    return sum(l.startswith("slipring_engine_up{") and l.endswith("1.0") for l in text.splitlines()) == 2


def weigh(p):
    """Descriptors and MiB of all processes."""
    pids = [adapter(p), *daemons(p).values()]
    rss = lambda pid: next(int(l.split()[1]) for l in open(f"/proc/{pid}/status") if l.startswith("VmRSS")) / 1024
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids), sum(map(rss, pids))


def disturb(p, what, rank):
    """True: connections to the adapter are lost by it."""
    pid = daemons(p)[rank]
    if what == "killed":
        os.kill(pid, signal.SIGKILL)
    elif what == "stopped":
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        return
    elif what == "adapter killed":
        pid = adapter(p)
        os.kill(pid, signal.SIGKILL)
        check(wait_for(lambda: adapter(p) not in (None, pid), 60), "the adapter is started again")
        return
    else:
        if what == "upgraded":
            p.other_release()
        os.kill(pid, signal.SIGTERM)
    check(wait_for(lambda: daemons(p).get(rank, pid) != pid, 90), f"daemon {rank} is started again")


def main():
    need_model()
    r, rounds, gaps, gone = random.Random(SEED), {}, {}, {}
    with Releases() as p:
        p.serve("--device", "null", "--null-step-us", 20000, "--max-model-len", 1024, "-dp", 2, MODEL)
        want = p.together(STREAMS, lambda i: answer(p, i))
        check(all(isinstance(w, str) and not w.startswith(("status", "error")) for w in want), f"undisturbed: {want}"[:2000])
        before, end = weigh(p), time.monotonic() + 60 * MINUTES
        order = ["killed", "stopped", "drained", "upgraded", "adapter killed"]
        while time.monotonic() < end:
            what = order[sum(rounds.values()) % len(order)]
            rounds[what], mine, got = rounds.get(what, 0) + 1, gaps.setdefault(what, []), []
            t = threading.Thread(target=lambda: got.extend(p.together(STREAMS, lambda i: answer(p, i, mine))))
            t.start()
            time.sleep(r.uniform(.1, 1))
            disturb(p, what, r.randrange(2))
            t.join(180)
            lost = sum(g is None for g in got)
            gone[what] = gone.get(what, 0) + lost
            check(len(got) == STREAMS and (not lost or what == "adapter killed"), f"{what}: {lost} connections are lost")
            for i, g in enumerate(got):
                check(g is None or g == want[i], f"{what}: answer {i} is {g!r} for {want[i]!r}")
            check(wait_for(lambda: engines_up(p), 90, .1), f"{what}: both daemons serve again")
            time.sleep(r.uniform(0, 1))
        p.together(STREAMS, lambda i: answer(p, i))
        check(wait_for(lambda: weigh(p)[0] <= before[0] + 8, 20, .2), f"descriptors: {weigh(p)[0]} for {before[0]}")
        check(weigh(p)[1] < before[1] * 1.25 + 32, f"memory: {weigh(p)[1]:.0f} for {before[1]:.0f} MiB")
        for what, mine in gaps.items():
            mine.sort()
            print(f"{what}: {rounds[what]} times, {gone.get(what, 0)} connections lost, gap p50 {mine[len(mine) // 2] * 1e3:.0f} ms, "
                  f"p99 {mine[len(mine) * 99 // 100] * 1e3:.0f} ms, longest {mine[-1]:.2f} s")
        print(f"descriptors {before[0]} -> {weigh(p)[0]}, memory {before[1]:.0f} -> {weigh(p)[1]:.0f} MiB")
    done()


main()
