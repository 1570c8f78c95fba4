#!/usr/bin/env python3
"""Three times more than it can do, for minutes: what is served must be as much as at its best, each refusal
must say why and when to come back, and nothing may be lost.  On the paced null device, so that its steps
are the limit and not the machine; over HTTP and over rings.

    tests/e2e/overload.py BUILD [SECONDS [http|ring]]      30 each; make overload OVERLOAD_S=300

Peak: a closed loop that keeps the batch full, before and after.  Overload: arrivals at random (exponential
gaps) at three times the peak's rate, whatever becomes of them.  Good: the whole answer within 3 s of when it
was to be asked.  Exit code 1 if goodput fell below 95 % of the peak's.
"""
import asyncio, collections, ctypes as C, errno, random
from harness import *

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
WAYS = sys.argv[3:] or ["http", "ring"]
STEP_US, SEQS, TOKENS, QUEUE = 20000, 8, 20, 20   # 8 answers at a time take 20 steps: 20 requests a second
SLO, TIMES, FLOOR = 3.0, 3.0, 0.95
os.environ["SLIPRING_LIB"] = BUILD
sys.path.insert(0, os.path.join(HERE, "..", "adapters", "python"))


class Tally:
    """What became of each request."""

    def __init__(self):
        self.sent = self.late = self.slow = 0
        self.good, self.refused, self.lost = [], collections.Counter(), collections.Counter()
        self.begin = self.end = time.monotonic()

    def answered(self, due, n, why=None):
        now = time.monotonic()
        if n != TOKENS:
            self.lost[why or f"an answer of {n} tokens"] += 1
        elif now - due > SLO:
            self.slow += 1
        else:
            self.good.append(now)

    def rate(self, skip):
        """Good ones a second while it was sending, but for the beginning."""
        return sum(self.begin + skip < t <= self.end for t in self.good) / (self.end - self.begin - skip)

    def show(self, what, skip):
        n = len(self.good) + self.slow + sum(self.refused.values()) + sum(self.lost.values())
        print(f"  {what:8} {self.end - self.begin:5.0f} s  {self.sent:6} asked  {len(self.good):6} good"
              f"  {self.slow} slow  {sum(self.refused.values())} refused  {self.sent - n + sum(self.lost.values())} lost"
              f"  goodput {self.rate(skip):.2f}/s = {self.rate(skip) * TOKENS:.0f} tokens/s")
        for why, k in self.refused.items():
            print(f"           {k} refused: {why}")
        check(not self.lost and self.sent == n, f"nothing is lost: {self.sent} asked, {n} answered, {dict(self.lost)}")


class Gaps:
    """When the next one is due."""

    def __init__(self, rate):
        self.rate, self.at, self.random = rate, time.monotonic(), random.Random(7)

    def next(self):
        self.at += self.random.expovariate(self.rate)
        return self.at


# ---- HTTP ----------------------------------------------------------------------------------------

async def http_one(port, tally, due):
    try:
        r, w = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"prompt": [random.randrange(3, 9000) for _ in range(8)], "max_tokens": TOKENS,
                           "ignore_eos": True, "temperature": 0}).encode()
        w.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head, _, text = (await asyncio.wait_for(r.read(), 60)).partition(b"\r\n\r\n")
        w.close()
    except (OSError, asyncio.TimeoutError) as e:
        tally.lost[type(e).__name__] += 1
        return
    status, answer = int(head[9:12]), json.loads(text)
    if status == 200:
        tally.answered(due, answer["usage"]["completion_tokens"])
    elif status == 503 and b"retry-after:" in head.lower() and answer["error"]["message"]:
        tally.refused[answer["error"]["message"]] += 1
    else:
        tally.lost[f"status {status} {text[:100]}"] += 1


async def http_closed(port, seconds):
    tally = Tally()
    stop = time.monotonic() + seconds

    async def worker():
        while time.monotonic() < stop:
            tally.sent += 1
            await http_one(port, tally, time.monotonic())
    await asyncio.gather(*(worker() for _ in range(SEQS + SEQS // 2)))
    tally.end = stop
    return tally


async def http_open(port, seconds, rate):
    tally, gaps, tasks = Tally(), Gaps(rate), set()
    stop = time.monotonic() + seconds
    while (due := gaps.next()) < stop:
        await asyncio.sleep(max(0, due - time.monotonic()))
        tally.sent += 1
        tally.late = max(tally.late, time.monotonic() - due)
        t = asyncio.create_task(http_one(port, tally, due))
        tasks.add(t)
        t.add_done_callback(tasks.discard)
    tally.end = time.monotonic()
    await asyncio.gather(*tasks)
    return tally


# ---- rings ---------------------------------------------------------------------------------------

class Ring:
    """One connection that may have 32 under way; the daemon takes no more, which is a refusal, too."""

    def __init__(self, path):
        import slipring
        self.m, self.lib = slipring, slipring._ring
        self.c, o = C.c_void_p(), self.m.Options(size=C.sizeof(self.m.Options), name=b"overload", live=32)
        check(self.lib.sr_open(C.byref(self.c), os.fsencode(path), C.byref(o)) == 0, "a ring client connects")
        self.token, self.due, self.key = self.m.Token(), {}, 0

    def ask(self, tally, due):
        ids = (C.c_int32 * 8)(*(random.randrange(3, 9000) for _ in range(8)))
        self.key += 1
        q = self.m.Request(size=C.sizeof(self.m.Request), user_data=self.key, prompt=ids, n_prompt=8, max_tokens=TOKENS,
                           flags=self.m.IGNORE_EOS, deadline=int((due + SLO) * 1e9))
        tally.sent += 1
        rc = self.lib.sr_submit(self.c, C.byref(q), None)
        if rc in (-errno.EBUSY, -errno.EAGAIN):
            tally.refused[f"sr_submit: {os.strerror(-rc)} (as many are under way as the connection may have)"] += 1
        else:
            check(rc == 0, f"sr_submit: {rc}")
            self.due[self.key] = due

    def take(self, tally, until):
        """What comes until then."""
        while True:
            while self.lib.sr_next(self.c, C.byref(self.token)) == 1:
                if self.token.kind != self.m.END:
                    continue
                end, due = self.token.end, self.due.pop(self.token.user_data)
                if end.finish == -errno.ETIME:
                    tally.refused["its deadline had come (ETIME)"] += 1
                else:
                    tally.answered(due, end.n_tokens, f"ended with {end.finish}")
            left = until - time.monotonic()
            if left <= 0:
                return
            check(self.lib.sr_wait(self.c, self.m.WAIT_TOKENS, max(1, int(left * 1000))) >= 0, "the daemon is there")

    def closed(self, seconds):
        tally = Tally()
        stop = time.monotonic() + seconds
        while time.monotonic() < stop:
            while len(self.due) < SEQS + SEQS // 2:
                self.ask(tally, time.monotonic())
            self.take(tally, min(stop, time.monotonic() + 0.005))
        tally.end = stop
        return self.rest(tally)

    def open(self, seconds, rate):
        tally, gaps = Tally(), Gaps(rate)
        stop = time.monotonic() + seconds
        while (due := gaps.next()) < stop:
            self.take(tally, due)
            tally.late = max(tally.late, time.monotonic() - due)
            self.ask(tally, due)
        tally.end = time.monotonic()
        return self.rest(tally)

    def rest(self, tally):
        end = time.monotonic() + 60
        while self.due and time.monotonic() < end:
            self.take(tally, time.monotonic() + 0.1)
        return tally


# ---- both ----------------------------------------------------------------------------------------

def metric(p, name):
    return sum(float(l.rsplit(" ", 1)[1]) for l in p.ask("GET", "/metrics")[2].splitlines() if l.startswith(name + "{"))


def one_way(way):
    with Programs() as p:
        p.daemon("--device", "null", "--null-step-us", STEP_US, "--max-num-seqs", SEQS, "--max-num-queued-reqs", QUEUE)
        p.adapter("--disable-access-log", "--max-num-queued-reqs", QUEUE)
        ring = Ring(p.socket) if way == "ring" else None
        short, skip = max(8.0, SECONDS / 10), 2.0

        def closed():
            return ring.closed(short) if ring else asyncio.run(http_closed(p.port, short))
        print(f"{way}:")
        before = closed()
        before.show("peak", skip)
        rate = TIMES * before.rate(skip)
        over = ring.open(SECONDS, rate) if ring else asyncio.run(http_open(p.port, SECONDS, rate))
        over.show("overload", skip)
        print(f"           {rate:.1f} requests/s asked; the client was at most {1000 * over.late:.0f} ms late")
        after = closed()
        after.show("peak", skip)
        peak = max(before.rate(skip), after.rate(skip))
        check(sum(over.refused.values()) > 0.3 * over.sent, "it was too much")
        check(wait_for(lambda: metric(p, "vllm:num_requests_running") + metric(p, "vllm:num_requests_waiting") == 0, 10),
              "nothing is left under way")
        check(metric(p, "vllm:kv_cache_usage_perc") == 0, "no block is held")
        share = over.rate(skip) / peak
        print(f"  goodput under {TIMES:g} times the load: {100 * share:.1f} % of the peak's")
        check(share >= FLOOR, f"at least {100 * FLOOR:.0f} %")


def main():
    need_model()                                  # for its vocabulary alone
    for way in WAYS:
        one_way(way)
    done()


main()
