#!/usr/bin/env python3
"""--stop-when-idle: a daemon that has nothing to do stops, and a request starts it again, held meanwhile."""
import re
from harness import *

ASK = {"prompt": "a b", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def daemons(p):
    n = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f, open(f"/proc/{pid}/stat") as g:
                n += f.read().startswith("slipringd\0") and int(g.read().rsplit(")", 1)[1].split()[1]) == p.procs["slipring"].pid
        except OSError:
            pass
    return n


def wakes(p):
    time.sleep(0.15)                                  # /metrics is written ten times a second
    return sum(float(v) for v in re.findall(r"^slipring_wakes_total{.*} (\S+)$", p.ask("GET", "/metrics")[2], re.M))


with Programs() as p:
    make_model(os.path.join(p.dir, "m"), context=256)
    args = ["--device", "null", "--load-format", "dummy", "--stop-when-idle", "1s", "--daemon-wait", 60, "--served-model-name", "m", os.path.join(p.dir, "m")]
    p.serve(*args)
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 60), "it serves")
    first = p.post("/v1/completions", ASK)
    check(daemons(p) == 1, "the daemon runs")
    long = dict(ASK, max_tokens=200)                  # what runs is never cut
    for n in (1, 2):
        check(wait_for(lambda: daemons(p) == 0, 30), "it stops when idle")
        time.sleep(0.5)
        check(daemons(p) == 0 and p.procs["slipring"].poll() is None, "and rests")
        check(p.ask("GET", "/health")[0] == 200, "/health is 200: a request would be answered")
        check(json.loads(p.ask("GET", "/v1/models")[2])["data"][0]["id"] == "m", "its name is listed")
        began = time.monotonic()
        again = p.post("/v1/completions", ASK)
        took = time.monotonic() - began
        check(again["choices"] == first["choices"], "a request starts it, and gets the same answer")
        check(daemons(p) == 1, f"after {took:.2f} s")
        check(wakes(p) == n, f"which is counted: {wakes(p)}")
    print(f"a request that started the daemon was answered after {took * 1000:.0f} ms")
    check(wait_for(lambda: daemons(p) == 0, 30), "it stops again")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(p.ask("POST", "/v1/completions", long)[0])) for _ in range(20)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check(answers == [200] * 20 and wakes(p) == 3, f"many at once start it once: {answers}")
    check(wait_for(lambda: daemons(p) == 0, 30), "it stops again")
    p.procs["slipring"].terminate()
    check(p.procs["slipring"].wait(10) == 0, "and serve ends while it rests")
    check(not os.path.exists(p.socket), "its socket is removed")

# Replicas: all rest; one request starts one of them, and more than one can take start the other.
with Programs() as p:
    make_model(os.path.join(p.dir, "m"), context=256)
    p.serve("--device", "null", "--load-format", "dummy", "--stop-when-idle", "2s", "--daemon-wait", 60, "--served-model-name", "m", "-dp", 2,
            "--max-num-seqs", 1, "--null-step-us", 20000, os.path.join(p.dir, "m"))
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 60), "it serves")
    first = p.post("/v1/completions", ASK)
    for _ in range(2):
        check(wait_for(lambda: daemons(p) == 0, 20), "both stop when idle")
        check(p.ask("GET", "/health")[0] == 200, "/health is 200: a request would be answered")
        before = wakes(p)
        check(p.post("/v1/completions", ASK)["choices"] == first["choices"], "a request is answered")
        check(wakes(p) == before + 1, f"by one that it started: {wakes(p)} {before}")
        threads = [threading.Thread(target=p.ask, args=("POST", "/v1/completions", dict(ASK, max_tokens=60))) for _ in range(6)]
        [t.start() for t in threads]
        check(wait_for(lambda: daemons(p) == 2, 20), "more than it can take start the other")
        [t.join() for t in threads]
        check(wakes(p) == before + 2, f"once: {wakes(p)} {before}")
    p.procs["slipring"].terminate()
    check(p.procs["slipring"].wait(20) == 0, "and serve ends")

for text, says in (("--stop-when-idle 5x", "is not a time such as"), ("--stop-when-idle -1", "is not a time")):
    r = subprocess.run([os.path.join(BUILD, "slipring"), "serve", *text.split()], capture_output=True, text=True, timeout=20)
    check(r.returncode == 2 and says in r.stderr, f"{text}: {r.stderr}")
done()
