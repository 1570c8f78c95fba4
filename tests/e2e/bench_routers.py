#!/usr/bin/env python3
"""What each router loses: two Slipring servers on the null device behind the real programs, with the settings of
docs/examples, as `make bench-routers` runs them.  Prints a line and a row of docs/scale.md's table for each.

steady  sessions; how much of the prompts is cached, times to the first token, requests of each server
kill    streams of 200 tokens, 24 at once; one server is killed with -9, with its daemon
back    from the killed server's /health saying 200 to its first request
drain   the same streams; a server gets SIGTERM and is started again
usage: bench_routers.py BUILD [NAMES, ..]; SLIPRING_ROUTERS: the folder where make bench-routers installs"""
import asyncio, concurrent.futures, random, re
from harness import *
from sessions import Client, free_port, up, words

ROUTERS = os.environ.get("SLIPRING_ROUTERS", os.path.join(BUILD, "route"))
EXAMPLES = os.path.join(HERE, "../docs/examples")
STREAMS, AT_ONCE, SECONDS = int(os.environ.get("STREAMS", 200)), 24, float(os.environ.get("SECONDS", 12))
NULL = ["--device", "null", "--null-step-us", 2000, "--null-token-us", 40, "--max-num-seqs", 16,
        "--num-gpu-blocks-override", 1200, "--enable-prompt-tokens-details", "--disable-uvicorn-access-log",
        "--max-model-len", 4096, "--served-model-name", "m"]


class Server(Programs):
    """`slipring serve` on a port that it keeps."""

    def __init__(self):
        super().__init__()
        self.port = free_port()

    def start(self):
        self.run("slipring", "serve", "--port", self.port, *NULL, "--", MODEL)

    def healthy(self):
        try:
            return self.ask("GET", "/health", timeout=2)[0] == 200
        except OSError:
            return False

    def kill(self):
        """-9 for all of it at once: serve, daemon, adapter."""
        top = self.procs.pop("slipring")
        pids = [top.pid, *children(top.pid, "slipringd"), *children(top.pid, "slipring-http")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        top.wait()

    def served(self):
        try:
            text = self.ask("GET", "/metrics", timeout=5)[2]
        except OSError:
            return 0
        return sum(float(v) for v in re.findall(r'^http_requests_total\{handler="/v1/completions".*\} (\S+)$', text, re.M))


def example(p, name, front, ports):
    """An example's file with the ports of this run."""
    with open(os.path.join(EXAMPLES, name)) as f:
        text = f.read()
    for old, new in ((8000, front), (8001, ports[0]), (8002, ports[1])):
        for form in ("127.0.0.1:{}", "--port {}", "port_value: {}"):
            text = text.replace(form.format(old), form.format(new))
    path = os.path.join(p.dir, os.path.basename(name))
    with open(path, "w") as f:
        f.write(text)
    return path, text


def of_file(program, name, *words):
    """A program that is started with its example's file."""
    def start(p, front, ports):
        path = example(p, name, front, ports)[0]
        return [program(), *(w.format(path=path, dir=p.dir) for w in words)]
    return program, start


def of_unit(program, name):
    """A program that is started as its example's unit starts it."""
    def start(p, front, ports):
        text = example(p, name, front, ports)[1]
        words = re.search(r"^ExecStart=((?:\\\n|[^\n\\])*)", text, re.M)[1].replace("\\\n", " ").split()
        words[words.index("--prometheus-port") + 1] = str(free_port())
        return [program(), *words[1:]]
    return program, start


def installed(name, folder=""):
    """Where a program is: on the system, or where make bench-routers put it."""
    def find():
        path = os.path.join(ROUTERS, folder, "bin", name)
        return path if os.path.exists(path) else shutil.which(name)
    return find


ALL = {
    "HAProxy": of_file(installed("haproxy"), "haproxy.cfg", "-db", "-f", "{path}"),
    "nginx": of_file(installed("nginx"), "routers/nginx.conf", "-p", "{dir}", "-c", "{path}", "-g", "daemon off;"),
    "Envoy": of_file(installed("envoy", "venv"), "routers/envoy.yaml", "-c", "{path}", "--concurrency", "1", "-l", "warn"),
    "vllm-router": of_unit(installed("vllm-router", "venv"), "routers/vllm-router.service"),
    "smg": of_unit(installed("smg", "venv"), "routers/smg.service"),
}


def stream(port, i):
    """What went wrong with an answer of 200 tokens; "" if it came whole."""
    ask = {"model": "m", "prompt": f"Request {i}: " + "tell me more. " * (i % 7 + 1), "max_tokens": 200, "ignore_eos": True,
           "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("POST", "/v1/completions", json.dumps(ask), {"Content-Type": "application/json", "X-Session-ID": f"s{i}"})
        r = c.getresponse()
        text = r.read().decode("utf-8", "replace")
        whole = r.status == 200 and text.rstrip().endswith("[DONE]") and '"completion_tokens":200' in text
        return "" if whole else f"status {r.status} {text[-200:]!r}"
    except (OSError, http.client.HTTPException) as e:
        return f"{type(e).__name__} {e}"
    finally:
        c.close()


def lost(port, disturb):
    """How many of the streams are lost while something happens."""
    done = [0]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        def one(i):
            r = stream(port, i)
            done[0] += 1
            return r
        each = [pool.submit(one, i) for i in range(STREAMS)]
        wait_for(lambda: done[0] >= STREAMS // 4, 120)
        disturb()
        wrong = [f.result() for f in each if f.result()]
        if wrong and os.environ.get("VERBOSE"):
            print("  " + "\n  ".join(sorted(set(wrong))[:8]))
        return len(wrong)


def back(port, server):
    """Seconds until a server that was killed gets a request again.  Four requests at once: of servers without any,
    vllm-router's cache_aware always asks the same one, whether the other was ever away or not."""
    server.start()
    check(wait_for(server.healthy, 30), "the killed server is back")
    began, i, rnd = time.monotonic(), 0, random.Random(2)

    def one(i, text):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            c.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": text, "max_tokens": 1}),
                      {"Content-Type": "application/json", "X-Session-ID": f"b{i}"})
            c.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            c.close()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        while time.monotonic() - began < 90:
            i += 4
            list(pool.map(one, range(i, i + 4), [words(rnd, 300) for _ in range(4)]))
            if server.served():
                return time.monotonic() - began
            time.sleep(0.02)
    return None


def measured(name, a, b, port):
    before = a.served(), b.served()
    c = Client(port, 1, SECONDS, 4, 6)
    asyncio.run(c.run())
    check(c.ttft, f"{name} passes requests on")
    split = [int(s.served() - was) for s, was in zip((a, b), before)]
    c.ttft.sort()
    p50, p99 = c.ttft[len(c.ttft) // 2], c.ttft[len(c.ttft) * 99 // 100]
    share = 100 * c.cached / max(1, c.prompt)
    killed = lost(port, a.kill)
    again = back(port, a)

    def drain():
        a.procs["slipring"].terminate()
        a.procs.pop("slipring").wait(60)
        a.start()
        wait_for(a.healthy, 30)
    drained = lost(port, drain)
    wait_for(a.healthy, 30)
    came = f"{again:.1f} s" if again is not None else "not within 90 s"
    print(f"{name}: cached {share:.0f} %, TTFT p50 {p50:.0f} p99 {p99:.0f} ms, requests {split[0]} : {split[1]}; "
          f"kill -9: {killed} of {STREAMS} lost; back after {came}; drain: {drained} of {STREAMS} lost", flush=True)
    return f"| {name} | {share:.0f} % | {p50:.0f} / {p99:.0f} ms | {split[0]} : {split[1]} | {killed} of {STREAMS} | " \
           f"{drained} of {STREAMS} | {came} |"


def one(name):
    """A row of the table, from two fresh servers."""
    program, start = ALL[name]
    if not program():
        print(f"SKIP: {name} is not installed")
        return None
    with Server() as a, Server() as b:
        for s in (a, b):
            s.start()
        check(wait_for(lambda: a.healthy() and b.healthy(), 60), "two servers start")
        port = free_port()
        log = open(os.path.join(a.dir, "router.log"), "w+")
        router = subprocess.Popen(start(a, port, (a.port, b.port)), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env=a.env)
        try:
            if not up(port, 60):
                log.seek(0)
                print(f"SKIP: {name} does not serve here: {log.read()[-600:]}")
                return None
            row = measured(name, a, b, port)
            log.seek(0)
            if os.environ.get("VERBOSE"):
                print(log.read()[-3000:])
            return row
        finally:
            router.terminate()
            try:
                router.wait(20)
            except subprocess.TimeoutExpired:
                router.kill()
                router.wait()


def ours():
    """The same for Slipring's own replicas; the daemon alone is killed, and `serve` starts it again."""
    with Programs() as p:
        p.serve(*NULL, "-dp", 2, "--", MODEL)
        check(wait_for(lambda: len(daemons(p)) == 2, 30), "two daemons start")
        c = Client(p.port, 1, SECONDS, 4, 6)
        asyncio.run(c.run())
        c.ttft.sort()
        killed = lost(p.port, lambda: os.kill(daemons(p)[0], signal.SIGKILL))
        drained = lost(p.port, lambda: os.kill(daemons(p)[0], signal.SIGTERM))
        row = f"| Slipring `-dp 2` | {100 * c.cached / c.prompt:.0f} % | {c.ttft[len(c.ttft) // 2]:.0f} / " \
              f"{c.ttft[len(c.ttft) * 99 // 100]:.0f} ms | | {killed} of {STREAMS} | {drained} of {STREAMS} | |"
        print(row, flush=True)
        return row


need_model()
names = sys.argv[2:] or ["-dp", *ALL]
rows = [ours() if n == "-dp" else one(n) for n in names]
print("\n| router | cached | TTFT p50 / p99 | requests each | kill -9 lost | drain lost | back |\n|---|---|---|---|---|---|---|")
print("\n".join(r for r in rows if r))
done()
