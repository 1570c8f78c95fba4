#!/usr/bin/env python3
"""Four loads over four null daemons: behind Slipring's own adapter (-dp 4), and as four servers behind HAProxy,
vllm-router and smg, where these are installed.  Cached share of prompt tokens, and times to the first token.
usage: bench_route.py BUILD [SECONDS] [LOADS, such as AD]; SLIPRING_ROUTERS: a folder with vllm-router and smg"""
import asyncio, contextlib, random, re
from harness import *

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20
WANTED = sys.argv[3] if len(sys.argv) > 3 else "ABCD"
ROUTERS = os.environ.get("SLIPRING_ROUTERS", os.path.join(BUILD, "route/venv/bin"))
# name: (KV blocks of a daemon, sessions per second, system prompts).  Time runs some 3 times as fast as in
# docs/scale.md's simulation, and prompts are shorter, because two cores compute everything.
LOADS = {"A": (1500, 6, 30), "B": (750, 6, 30), "C": (1500, 9, 30), "D": (1500, 8, 1)}
NULL = ["--device", "null", "--null-step-us", 2000, "--null-token-us", 40, "--max-num-seqs", 16,
        "--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--max-model-len", 4096]


def words(rnd, n):
    """About two tokens each.  smg takes texts alone."""
    return "".join(" " + "".join(rnd.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(3)) for _ in range(n))


class Client:
    """Sessions: a shared system prompt, then turns that grow."""

    def __init__(self, port, load, seed):
        self.port, self.load, self.rnd = port, load, random.Random(seed)
        self.systems = [words(self.rnd, self.rnd.randrange(80, 500)) for _ in range(LOADS[load][2])]
        self.ttft, self.cached, self.prompt, self.failed = [], 0, 0, 0

    async def ask(self, text, out, name):
        body = json.dumps({"model": "m", "prompt": text, "max_tokens": out, "temperature": 0, "ignore_eos": True,
                           "stream": True, "stream_options": {"include_usage": True}}).encode()
        began, first, usage = time.monotonic(), None, None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Connection: close\r\nX-Session-ID: %s\r\nContent-Length: %d\r\n\r\n%s"
                         % (name.encode(), len(body), body))
            async for line in reader:
                if not line.startswith(b"data: {"):
                    continue
                first = first or time.monotonic() - began
                if b'"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
        finally:
            writer.close()
        if not usage:
            raise OSError("no usage")
        return first, usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    async def session(self, number, counts):
        rnd = random.Random(number * 7919 + 1)
        n = len(self.systems)
        pick = rnd.choices(range(n), [1 / (i + 1) for i in range(n)])[0]
        text = self.systems[pick]
        while len(text) < 9000:
            text += words(rnd, rnd.randrange(10, 75))
            try:
                first, prompt, cached = await self.ask(text, rnd.randrange(10, 60), str(number))
                if counts():
                    self.ttft.append(first * 1e3)
                    self.prompt += prompt
                    self.cached += cached
            except (OSError, ValueError):
                self.failed += 1
            if rnd.random() > 0.8:
                break
            await asyncio.sleep(rnd.expovariate(1 / 2.5))

    async def run(self):
        began = time.monotonic()
        tasks, number = [], 0
        counts = lambda: SECONDS * 0.2 < time.monotonic() - began < SECONDS
        while time.monotonic() - began < SECONDS:
            tasks.append(asyncio.create_task(self.session(number, counts)))
            number += 1
            await asyncio.sleep(self.rnd.expovariate(LOADS[self.load][1]))
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def up(port, seconds=60):
    def ask():
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            c.request("GET", "/v1/models")
            return b'"m"' in c.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
    return wait_for(ask, seconds, 0.1)


def haproxy(p, ports, balance):
    with open(os.path.join(p.dir, "haproxy.cfg"), "w") as f:
        port = free_port()
        servers = "\n".join(f"\tserver s{i} 127.0.0.1:{q}" for i, q in enumerate(ports))
        f.write(f"global\n\ttune.bufsize 131072\ndefaults\n\tmode http\n\ttimeout connect 2s\n\ttimeout client 60s\n"
                f"\ttimeout server 60s\n\toption http-no-delay\nfrontend f\n\tbind 127.0.0.1:{port}\n\tdefault_backend b\n"
                f"backend b\n{balance}\tdefault-server weight 100\n{servers}\n")
    return port, [shutil.which("haproxy"), "-f", f.name, "-db"]


def router(name, ports, *args):
    port = free_port()
    return port, [os.path.join(ROUTERS, name), *args, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port",
                  str(free_port()), "--worker-urls", *[f"http://127.0.0.1:{q}" for q in ports]]


HASHED = "\tbalance hdr(X-Session-ID)\n\thash-type consistent\n\thash-balance-factor 125\n"
OTHERS = {
    "HAProxy leastconn": (lambda: shutil.which("haproxy"), lambda p, ports: haproxy(p, ports, "\tbalance leastconn\n")),
    "HAProxy session hash": (lambda: shutil.which("haproxy"), lambda p, ports: haproxy(p, ports, HASHED)),
    "vllm-router cache_aware": (lambda: os.path.exists(os.path.join(ROUTERS, "vllm-router")),
                                lambda p, ports: router("vllm-router", ports, "--policy", "cache_aware")),
    "smg cache_aware": (lambda: os.path.exists(os.path.join(ROUTERS, "smg")),
                        lambda p, ports: router("smg", ports, "launch", "--policy", "cache_aware")),
}


def measure(name, load, port):
    c = Client(port, load, 1)
    asyncio.run(c.run())
    c.ttft.sort()
    n = len(c.ttft)
    share = 100 * c.cached / max(c.prompt, 1)
    p50, p99 = (c.ttft[n // 2], c.ttft[n * 99 // 100]) if n else (0, 0)
    print(f"{load} {name:24} {share:3.0f} % cached   TTFT p50 {p50:5.0f} ms, p99 {p99:5.0f} ms   "
          f"{n} counted, {c.failed} failed", flush=True)
    return share, p99, n


def ours(load):
    blocks = LOADS[load][0]
    with Programs() as p:
        p.serve(*NULL, "-dp", 4, "--num-gpu-blocks-override", blocks, "--served-model-name", "m", "--", MODEL)
        time.sleep(0.3)
        r = measure("Slipring -dp 4", load, p.port)
        text = p.ask("GET", "/metrics")[2]
        n, s = (float(re.search(rf"^slipring_route_seconds_{w}{{.*}} (\S+)$", text, re.M)[1]) for w in ("count", "sum"))
        seemed, had = (sum(float(v) for v in re.findall(rf"^{m}{{.*}} (\S+)$", text, re.M))
                       for m in ("slipring_route_cached_tokens_total", "vllm:prefix_cache_hits_total"))
        print(f"  {n:.0f} choices of {s / max(n, 1) * 1e6:.1f} us on average; {seemed:.0f} tokens seemed cached, {had:.0f} were")
        return r


def others(load):
    found = {}
    with contextlib.ExitStack() as stack:
        ps = [stack.enter_context(Programs()) for _ in range(4)]
        for name, (there, start) in OTHERS.items():
            if not there():
                print(f"SKIP: {name} is not installed")
                continue
            for p in ps:                                     # with empty caches
                old = p.procs.pop("slipring", None)
                if old:
                    old.terminate()
                    old.wait(20)
                p.serve(*NULL, "--num-gpu-blocks-override", LOADS[load][0], "--served-model-name", "m", "--", MODEL)
            port, words = start(ps[0], [p.port for p in ps])
            with open(os.path.join(ps[0].dir, "router.log"), "w") as log:
                r = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ps[0].env)
            try:
                if up(port):
                    one = measure(name, load, port)
                    if one[2]:
                        found[name] = one
                else:
                    print(f"SKIP: {name} does not serve here")
            finally:
                r.terminate()
                r.wait(20)
    return found


need_model()
for load in WANTED:
    mine, rest = ours(load), others(load)
    if rest:
        best, least = max(r[0] for r in rest.values()), min(r[1] for r in rest.values())
        print(f"  cached {mine[0] / max(best, 1):.2f} of the best other; p99 {mine[1] / max(least, 1):.2f} of the best other")
