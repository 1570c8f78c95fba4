#!/usr/bin/env python3
"""No answer is lost or changed: streams over two replicas of the default model, first undisturbed, then while one
is killed with -9 and both are restarted one after the other.  usage: replicas.py BUILD [STREAMS]"""
import concurrent.futures, random
from harness import *

STREAMS = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
AT_ONCE = 24


def asked(i):
    r = random.Random(i)
    ask = {"prompt": [r.randrange(1000, 40000) for _ in range(r.randrange(8, 24))], "max_tokens": r.randrange(8, 24),
           "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return dict(ask, temperature=0) if i % 2 else dict(ask, temperature=0.9, top_p=0.95, seed=i)


def stream(p, i):
    """The text of an answer, and how many tokens it had; or what went wrong."""
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=120)
    text, usage, whole = "", None, False
    try:
        c.request("POST", "/v1/completions", json.dumps(asked(i)), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            return f"status {r.status}"
        for line in r:
            line = line.decode().strip()
            if line == "data: [DONE]":
                whole = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return f"error {event}"
                text += "".join(x["text"] for x in event["choices"])
                usage = event.get("usage") or usage
    except OSError as e:
        return f"broken {e}"
    finally:
        c.close()
    return (text, usage["completion_tokens"]) if whole and usage else "cut"


def run(p, disturb):
    done = [0]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        def one(i):
            r = stream(p, i)
            done[0] += 1
            return r
        each = [pool.submit(one, i) for i in range(STREAMS)]
        disturb(done)
        return [f.result() for f in each]


def healthy(p):
    import re
    text = p.ask("GET", "/metrics")[2]
    return re.findall(r'^slipring_engine_up{.*?} (\S+)$', text, re.M) == ["1.0", "1.0"]


def again(p, rank, sig):
    pid = daemons(p)[rank]
    os.kill(pid, sig)
    check(wait_for(lambda: daemons(p).get(rank, pid) != pid, 60), f"daemon {rank} is started again")
    time.sleep(0.3)
    check(wait_for(lambda: healthy(p), 60, 0.1), "and serves")


def troubles(p, done):
    wait_for(lambda: done[0] >= STREAMS // 5, 300)
    again(p, 0, signal.SIGKILL)
    wait_for(lambda: done[0] >= STREAMS * 2 // 5, 300)
    again(p, 0, signal.SIGTERM)
    again(p, 1, signal.SIGTERM)
    print(f"killed and restarted by stream {done[0]} of {STREAMS}")


need_model()
with Programs() as p:
    p.serve("-dp", 2, "--max-model-len", 256, "--max-num-seqs", 16, "--disable-uvicorn-access-log", MODEL)
    plain = run(p, lambda done: None)
    check(all(isinstance(r, tuple) for r in plain), f"undisturbed all are answered: {[r for r in plain if isinstance(r, str)][:3]}")
    disturbed = run(p, lambda done: troubles(p, done))
    lost = [r for r in disturbed if isinstance(r, str)]
    changed = sum(a != b for a, b in zip(plain, disturbed) if not isinstance(b, str))
    text = p.ask("GET", "/metrics")[2]
    moved = next(float(l.split()[-1]) for l in text.splitlines() if l.startswith("slipring_moved_requests_total{"))
    print(f"{STREAMS} streams, kill -9 of one replica, then both restarted: {len(lost)} lost, {changed} changed, "
          f"{moved:.0f} moved")
    check(moved > 0, "some were moved")
    check(not lost, f"none is lost: {lost[:3]}")
    check(changed == 0, "none is changed")
done()
