#!/usr/bin/env python3
"""Four loads over four null daemons: behind Slipring's own adapter (-dp 4), and as four servers behind HAProxy,
vllm-router and smg, where these are installed.  Cached share of prompt tokens, and times to the first token; at the
end, whether ours is within 0.95 of the best share, and within 1.1 of the best p99 or below 100 ms, in each load.
usage: bench_route.py BUILD [SECONDS] [LOADS, such as AD]
SLIPRING_ROUTERS: a folder with vllm-router and smg; ONLY=smg|hash: routers whose names match; RESULTS=FILE: add
each load's figures to this file, and judge all that are in it"""
import asyncio, contextlib, re
from harness import *
from sessions import Client, free_port, up

SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 20
WANTED = sys.argv[3] if len(sys.argv) > 3 else "ABCD"
ROUTERS = os.environ.get("SLIPRING_ROUTERS", os.path.join(BUILD, "route/venv/bin"))
# name: (KV blocks of a daemon, sessions per second, system prompts).  docs/scale.md's simulation in small: time runs
# 3 times as fast, prompts have a quarter of the tokens, and caches hold as much of the sessions that are under way.
LOADS = {"A": (1050, 6, 30), "B": (525, 6, 30), "C": (1050, 9, 30), "D": (1050, 8, 1)}
NULL = ["--device", "null", "--null-step-us", 8000, "--null-token-us", 67, "--max-num-seqs", 16,
        "--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--max-model-len", 4096]


def haproxy(p, ports, balance):
    """HAProxy as docs/examples/haproxy.cfg has it, with four servers, and perhaps another rule of balance."""
    port, lines = free_port(), []
    with open(os.path.join(HERE, "../docs/examples/haproxy.cfg")) as f:
        for line in f:
            if line.startswith("\tserver a"):
                lines += [f"\tserver s{i} 127.0.0.1:{q}\n" for i, q in enumerate(ports)]
            elif line.startswith("\tbind"):
                lines.append(f"\tbind 127.0.0.1:{port}\n")
            elif line.startswith(("\tbalance", "\thash-type")) and balance:
                lines.append(balance if line.startswith("\tbalance") else "")
            elif not line.startswith("\tserver"):
                lines.append(line)
    with open(os.path.join(p.dir, "haproxy.cfg"), "w") as f:
        f.write("".join(lines))
    return port, [shutil.which("haproxy"), "-f", f.name, "-db"]


def router(name, ports, *args):
    port = free_port()
    return port, [os.path.join(ROUTERS, name), *args, "--host", "127.0.0.1", "--port", str(port), "--prometheus-port",
                  str(free_port()), "--worker-urls", *[f"http://127.0.0.1:{q}" for q in ports]]


def kv_aware(p, ports, events):
    port, words = router("vllm-router", ports, "--policy", "kv_aware", "--kv-event-model", "m", "--kv-event-block-size", "16")
    for q, e in zip(ports, events):
        words += ["--kv-event-source", f"http://127.0.0.1:{q}=tcp://127.0.0.1:{e}"]
    return port, words


def in_folder(name):
    return lambda: os.path.exists(os.path.join(ROUTERS, name))


ONLY = os.environ.get("ONLY", "")                        # a pattern of names
OTHERS = {                                               # is it there; its command; whether it listens to KV events
    "HAProxy leastconn": (lambda: shutil.which("haproxy"), lambda p, ports, _: haproxy(p, ports, "\tbalance leastconn\n")),
    "HAProxy session hash": (lambda: shutil.which("haproxy"), lambda p, ports, _: haproxy(p, ports, "")),
    "vllm-router cache_aware": (in_folder("vllm-router"),
                                lambda p, ports, _: router("vllm-router", ports, "--policy", "cache_aware")),
    "vllm-router kv_aware": (in_folder("vllm-router"), kv_aware),
    "smg cache_aware": (in_folder("smg"), lambda p, ports, _: router("smg", ports, "launch", "--policy", "cache_aware")),
}


def measure(name, load, port):
    c = Client(port, 1, SECONDS, *LOADS[load][1:])
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
            if not re.search(ONLY, name):
                continue
            if not there():
                print(f"SKIP: {name} is not installed")
                continue
            events = [free_port() for _ in ps]
            for p, e in zip(ps, events):                     # with empty caches
                old = p.procs.pop("slipring", None)
                if old:
                    old.terminate()
                    old.wait(20)
                told = json.dumps({"enable_kv_cache_events": True, "endpoint": f"tcp://*:{e}", "topic": ""})
                p.serve(*NULL, "--num-gpu-blocks-override", LOADS[load][0], "--served-model-name", "m",
                        *(["--kv-events-config", told] if start is kv_aware else []), "--", MODEL)
            port, words = start(ps[0], [p.port for p in ps], events)
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
                if os.environ.get("VERBOSE"):
                    with open(log.name) as f:
                        print(f.read()[-200000:])
    return found


def judge(runs):
    """Of each load, and of the sums."""
    loads = sorted({r[0] for r in runs})
    of = {(r[0], r[1]): r[2:] for r in runs}
    names = sorted({n for _, n in of if all((l, n) in of for l in loads)} - {OURS})
    if not names:
        return
    print("\n| load | " + " | ".join([OURS, *names]) + " |\n|---|" + "---|" * (len(names) + 1))
    for l in loads:
        print(f"| {l} | " + " | ".join("%.0f %%, %.0f ms" % tuple(of[l, n][:2]) for n in [OURS, *names]) + " |")
    for l in loads:
        best, least = max(of[l, n][0] for n in names), min(of[l, n][1] for n in names)
        share, p99 = of[l, OURS][:2]
        print(f"{l}: cached {share / max(best, 1):.2f} of the best other; p99 {p99:.0f} ms, {p99 / max(least, 1):.2f} of "
              f"the best other: {'as wanted' if share >= 0.95 * best and (p99 < 100 or p99 <= 1.1 * least) else 'TOO BAD'}")
    mine = sum(of[l, OURS][1] for l in loads)
    for n in names:
        print(f"p99, sum over {''.join(loads)}: {mine:.0f} ms, {mine / max(1, sum(of[l, n][1] for l in loads)):.2f} of {n}")


need_model()
OURS, runs, results = "Slipring -dp 4", [], os.environ.get("RESULTS")
for load in WANTED:
    runs.append([load, OURS, *ours(load)])
    runs += [[load, n, *r] for n, r in others(load).items()]
if results:
    with open(results, "a+") as f:
        f.write("".join(json.dumps(r) + "\n" for r in runs))
        f.seek(0)
        runs = [json.loads(line) for line in f]
judge(runs)
