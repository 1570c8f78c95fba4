#!/usr/bin/env python3
"""The examples that operators copy: the dashboard asks for metrics that there are, settings of routers are what
their programs take, and an unmodified HAProxy in front of two replicas keeps sessions together and loses nothing
while one of them drains."""
import json, os, re, shutil, socket, subprocess, tempfile, threading
from harness import HERE, MODEL, Programs, check, done, need_model, wait_for

EXAMPLES = os.path.join(HERE, "../docs/examples")
need_model()


def dashboard(p):
    with open(os.path.join(EXAMPLES, "grafana.json")) as f:
        board = json.load(f)
    exprs = [(panel["title"], t["expr"]) for panel in board["panels"] for t in panel.get("targets", [])]
    exprs += [(v["name"], re.sub(r"label_values\((.*), \w+\)", r"\1", v["query"]))
              for v in board["templating"]["list"] if v["type"] == "query"]
    check(len(exprs) > 30, f"the dashboard asks for much, not for {len(exprs)} things")
    check(all(panel.get("targets") or panel["type"] == "row" for panel in board["panels"]), "no empty panel")
    ids = [panel["id"] for panel in board["panels"]]
    check(len(set(ids)) == len(ids), "each panel has a number of its own")
    p.post("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 8})
    text = p.ask("GET", "/metrics")[2]
    parts = re.findall(r'^slipring_empty_seconds_total\{.*doing="([a-z]+)"', text, re.M)
    asked = [m[1] for _, e in exprs if (m := re.search(r'slipring_empty_seconds.*doing="([a-z]+)"', e))]
    check(parts == asked and len(parts) == 5, f"the parts of empty in their order: {parts}, {asked}")
    served = {m[1]: set(re.findall(r'([a-z_]+)="', m[2] or ""))
              for m in re.finditer(r"^([a-zA-Z0-9_:]+)(\{.*\})? ", text, re.M)}
    for title, e in exprs:
        names = re.findall(r"\b(?:vllm:|slipring_|http_)[a-z0-9_]+", e)
        check(names, f"panel {title!r} asks for a metric of ours: {e}")
        for n in names:
            check(n in served, f"panel {title!r}: there is no metric {n}")
        for by in re.findall(r"by \(([a-z_]+)\)", e):
            check(by in served[names[0]], f"panel {title!r}: {names[0]} has no label {by}")
    if not shutil.which("promtool"):
        print("SKIP: no promtool to parse the dashboard's expressions")
        return
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:      # JSON is YAML
        plain = [e.replace("$__rate_interval", "1m") for _, e in exprs]
        json.dump({"groups": [{"name": "g", "rules": [{"record": f"r{i}", "expr": e}
                                                      for i, e in enumerate(plain)]}]}, f)
        f.flush()
        r = subprocess.run(["promtool", "check", "rules", f.name], capture_output=True, text=True)
    check(r.returncode == 0, f"Prometheus can parse every expression: {r.stderr[:1000]}")


def replica(p):
    p.daemon("--device", "null", "--null-step-us", 2000, "--null-token-us", 20, "--model", MODEL)
    p.adapter("--model", MODEL, "--served-model-name", "m")


def served(p):
    """Completions that this replica itself was asked for."""
    text = p.ask("GET", "/metrics")[2]
    m = re.search(r'^http_requests_total\{handler="/v1/completions".*\} ([0-9.]+)', text, re.M)
    return int(float(m[1])) if m else 0


def balanced(a, b):
    if not shutil.which("haproxy"):
        print("SKIP: no haproxy to put in front of two replicas")
        return
    with open(os.path.join(EXAMPLES, "haproxy.cfg")) as f:
        cfg = f.read()
    front = Programs()
    front.port = free_port()
    for old, new in ((8001, a.port), (8002, b.port), (8000, front.port)):
        check(cfg.count(f"127.0.0.1:{old}") == 1, f"the example says 127.0.0.1:{old} once")
        cfg = cfg.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    path = os.path.join(front.dir, "haproxy.cfg")
    with open(path, "w") as f:
        f.write(cfg)
    with front:
        front.procs["haproxy"] = subprocess.Popen(["haproxy", "-db", "-f", path], stdin=subprocess.DEVNULL,
                                                  stdout=open(os.path.join(front.dir, "haproxy.log"), "ab"),
                                                  stderr=subprocess.STDOUT)
        ask = {"model": "m", "prompt": "hi", "max_tokens": 100}
        check(wait_for(lambda: answers(front, ask), 10), "HAProxy finds a replica")

        # One session, one replica; many sessions, both.
        before = served(a), served(b)
        for _ in range(8):
            front.post("/v1/completions", ask, headers={"X-Session-ID": "one"})
        gained = served(a) - before[0], served(b) - before[1]
        check(sorted(gained) == [0, 8], f"a session stays with its replica: {gained}")
        for i in range(32):
            front.post("/v1/completions", ask, headers={"X-Session-ID": f"s{i}"})
        check(served(a) - before[0] >= 4 and served(b) - before[1] >= 4, "sessions are spread over both")

        # Streams and requests go on while one replica drains and ends.
        results, stop = [], threading.Event()

        def client(n):
            i = 0
            while not stop.is_set() and i < 200:
                i += 1
                status, _, text = front.ask("POST", "/v1/completions", {**ask, "stream": True},
                                            headers={"X-Session-ID": f"c{n}-{i}"})
                good = status == 200 and text.rstrip().endswith("[DONE]") and 'data: {"error":' not in text
                results.append(None if good else f"{status}: {text[-200:]}")
        threads = [threading.Thread(target=client, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        wait_for(lambda: len(results) >= 6, 30)
        a.procs["slipring-http"].terminate()
        check(a.procs["slipring-http"].wait(60) == 0, "the replica that drains ends with 0")
        seen = len(results)
        check(wait_for(lambda: len(results) >= seen + 12, 60), "the other replica goes on")
        stop.set()
        for t in threads:
            t.join(120)
        lost = [r for r in results if r]
        check(not lost, f"of {len(results)} streams none is lost, not {len(lost)}: {lost[:3]}")


def routers():
    """The settings of other routers name the same addresses, and their programs take them, where they are installed.
    make bench-routers runs them."""
    folder = os.path.join(EXAMPLES, "routers")
    for name in ("nginx.conf", "envoy.yaml", "vllm-router.service", "smg.service"):
        with open(os.path.join(folder, name)) as f:
            text = f.read()
        for port in (8000, 8001, 8002):
            check(len(re.findall(rf"(?:127\.0\.0\.1:|--port |port_value: ){port}\b", text)) == 1, f"{name} says port {port} once")
        for word in re.findall(r"--[a-z-]*(?:interval|timeout|threshold|duration)[a-z-]* \d+", text):
            check(int(word.split()[-1]) <= 2, f"{name}: a server that is back waits {word} for requests")
    # A server that drains and one that is back: checks come at least twice a second where there are some.
    with open(os.path.join(folder, "envoy.yaml")) as f:
        text = f.read()
    check(float(re.search(r"\n +interval: ([0-9.]+)s", text)[1]) <= 0.5 and "hash_balance_factor: 125" in text, "envoy.yaml")
    programs = {"nginx.conf": ["nginx", "-t", "-q", "-p", "{dir}", "-c"], "envoy.yaml": ["envoy", "--mode", "validate", "-c"]}
    with tempfile.TemporaryDirectory() as d:
        for name, words in programs.items():
            if not shutil.which(words[0]):
                print(f"SKIP: no {words[0]} to read {name}")
                continue
            r = subprocess.run([w.format(dir=d) for w in words] + [os.path.join(folder, name)], capture_output=True, text=True)
            check(r.returncode == 0, f"{words[0]} takes {name}: {r.stderr[-500:]}")
    for name in ("vllm-router.service", "smg.service", "../dynamo/slipring-dynamo-frontend.service",
                 "../dynamo/slipring-dynamo-worker@.service"):
        if not shutil.which("systemd-analyze"):
            print("SKIP: no systemd-analyze to read units")
            break
        r = subprocess.run(["systemd-analyze", "verify", os.path.join(folder, name)], capture_output=True, text=True)
        rest = [l for l in r.stderr.splitlines() if "is not executable" not in l and os.path.basename(name).split("@")[0] in l]
        check(not rest, f"systemd takes {name}: {rest}")


def answers(p, ask):
    try:
        return p.ask("POST", "/v1/completions", ask)[0] == 200
    except OSError:
        return False


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


routers()
with Programs() as a, Programs() as b:
    replica(a)
    dashboard(a)
    replica(b)
    balanced(a, b)
done()
