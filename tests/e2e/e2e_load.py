#!/usr/bin/env python3
"""Many at once, on the null device (so that nothing but Slipring is measured or broken): a thousand
streams, two adapters behind one port, memory that stays flat."""
import asyncio, json, os, resource, time
from harness import *

STREAMS = int(os.environ.get("SLIPRING_STREAMS", "1000"))
REQUESTS = int(os.environ.get("SLIPRING_REQUESTS", "4000"))


async def one(port, body, gate):
    """A streamed answer read to its end: the number of events with a token, or -1."""
    async with gate:
        r, w = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        data = json.dumps(body).encode()
        w.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n" % len(data) + data)
        text = (await r.read()).decode()
        w.close()
        if not text.startswith("HTTP/1.1 200") or "data: [DONE]" not in text:
            return -1
        return text.count('"text_completion"')


async def crowd(port, n, at_once, tokens):
    gate = asyncio.Semaphore(at_once)
    return await asyncio.gather(*(one(port, {"prompt": [1 + i % 1000, 2, 3], "max_tokens": tokens, "stream": True,
                                             "temperature": 0, "ignore_eos": True}, gate) for i in range(n)))


def main():
    need_model()                                  # for its vocabulary alone
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    streams = min(STREAMS, hard - 100)
    with Programs() as p:
        d = p.daemon("--device", "null")
        p.adapter("--disable-access-log")
        got = asyncio.run(crowd(p.port, streams, streams, 16))
        bad = sum(g != 16 for g in got)
        check(bad == 0, f"{streams} streams at once: {bad} failed")
        a = p.procs["slipring-http"]
        asyncio.run(crowd(p.port, 500, 64, 4))
        before = rss(d.pid)[0], rss(a.pid)[0], descriptors(d.pid)
        asyncio.run(crowd(p.port, REQUESTS, 64, 4))
        after = rss(d.pid)[0], rss(a.pid)[0], descriptors(d.pid)
        print(f"resident after {REQUESTS} more requests: daemon {before[0] >> 10} -> {after[0] >> 10} KiB, "
              f"adapter {before[1] >> 10} -> {after[1] >> 10} KiB")
        check(after[0] - before[0] <= 2 << 20, "the daemon's memory is flat")
        check(after[1] - before[1] <= 4 << 20, "the adapter's memory is flat")
        check(after[2] == before[2], "no descriptor is left open")
    with Programs() as p:
        p.daemon("--device", "null")
        p.adapter("--disable-access-log", "--api-server-count", 2)
        got = asyncio.run(crowd(p.port, 200, 50, 8))
        check(all(g == 8 for g in got), "two adapters behind one port")

        def finished():                           # any of them sees the daemon's own counters
            text = p.ask("GET", "/metrics")[2]
            return sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines()
                       if l.startswith("vllm:request_success_total{") and 'finished_reason="length"' in l)
        for _ in range(4):
            check(finished() == 200, f"both report all 200 requests: {finished()}")
    done()


main()
