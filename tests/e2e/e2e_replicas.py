#!/usr/bin/env python3
"""Several daemons behind one address: slipring serve --data-parallel-size.  The null device computes."""
import re
from harness import *

ASK = {"prompt": [504, 3575, 282, 4649, 314], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def samples(p, name):
    """The values of a metric, by engine."""
    status, _, text = p.ask("GET", "/metrics")
    check(status == 200, "/metrics answers")
    return {int(e): float(v) for e, v in re.findall(rf'^{name}{{.*?engine="(\d+)".*?}} (\S+)$', text, re.M)}


def served(p):
    return samples(p, "vllm:generation_tokens_total")


def up(p):
    return samples(p, "slipring_engine_up")


def both_serve(p):
    for _ in range(8):
        check(p.ask("POST", "/v1/completions", ASK)[0] == 200, "a request is answered")
    wait_for(lambda: all(v > 0 for v in served(p).values()), 5, 0.15)
    check(set(served(p)) == {0, 1} and all(v > 0 for v in served(p).values()), f"both serve: {served(p)}")
    check(sum(served(p).values()) == 32, "and metrics count each token once")
    for rank in (0, 1):
        before = served(p)
        for _ in range(4):
            check(p.ask("POST", "/v1/completions", ASK, headers={"X-data-parallel-rank": str(rank)})[0] == 200,
                  "a request for one rank is answered")
        wait_for(lambda: sum(served(p).values()) == sum(before.values()) + 16, 5, 0.15)
        check(served(p)[rank] == before[rank] + 16, f"by this rank: {before}, {served(p)}")
    for wrong in ("2", "-1", "x", "1x", ""):
        status, _, text = p.ask("POST", "/v1/completions", ASK, headers={"X-data-parallel-rank": wrong})
        check(status == 400 and f"data_parallel_rank {wrong} is out of range [0, 2)." in text, f"{wrong}: {status} {text}")


def started_again(p, rank, pid):
    check(wait_for(lambda: daemons(p).get(rank, pid) != pid, 20), f"daemon {rank} is started again")
    time.sleep(0.15)                                  # /metrics is written ten times a second
    check(wait_for(lambda: up(p) == {0: 1, 1: 1}, 20, 0.15), f"and is used: {up(p)}")


def top_lists(p):
    def top(*args):
        r = subprocess.run([os.path.join(BUILD, "slipring"), "top", "--once", "-i", "0.1", *args], env=p.env,
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        check(r.returncode == 0, f"top {args}: {r.stderr}")
        return r.stdout
    text = top("--instance", "default-1")
    check(all(f"engine {i}  ready" in text for i in (0, 1)), f"slipring top lists both: {text}")
    engines = json.loads(top("--instance", "default-0", "--json"))["engines"]
    check([e["engine"] for e in engines] == [0, 1] and sum(e["generated_tokens"] for e in engines) == sum(served(p).values()),
          f"and for programs: {engines}")


def one_dies(p):
    pid = daemons(p)
    check(set(pid) == {0, 1}, f"there are two daemons: {pid}")
    os.kill(pid[0], signal.SIGKILL)
    for _ in range(20):
        check(p.ask("POST", "/v1/completions", ASK)[0] == 200, "the other daemon answers meanwhile")
    check(p.ask("GET", "/health")[0] == 200, "and /health is 200")
    started_again(p, 0, pid[0])
    check(daemons(p)[1] == pid[1], "alone")
    os.kill(pid[1], signal.SIGTERM)
    started_again(p, 1, pid[1])


def deaths_in_a_row(p):
    """One that keeps dying is started again, later each time; the other one serves."""
    killed = 0
    for n in range(1, 6):                           # it was killed once before
        pid = wait_for(lambda: (daemons(p).get(0) or killed) != killed and daemons(p).get(0), 20)
        check(pid, f"the daemon is there after {n} deaths")
        os.kill(pid, signal.SIGKILL)
        killed = pid
    check(wait_for(lambda: "slipringd 0 is started again in 4 s" in p.log("slipring"), 10), "it is started after a longer time")
    check(p.procs["slipring"].poll() is None, "nothing else stops")
    for _ in range(8):
        check(p.ask("POST", "/v1/completions", ASK)[0] == 200, "the other daemon answers")


need_model()
with Programs() as p:
    p.serve("--device", "null", "-dp", 2, "--", MODEL)
    both_serve(p)
    top_lists(p)
    one_dies(p)
    time.sleep(0.1)
    deaths_in_a_row(p)
done()
