#!/usr/bin/env python3
"""One API key with 8,192 requests in flight beside eight others, over HTTP: each of the eight gets 90 % of a
ninth of what is served, and waits less than twice as long as without the one.  With one adapter process
and with four.  On the paced null device, so that its steps are the limit and not the machine.

    tests/e2e/e2e_tenants.py [BUILD]
"""
import select
from harness import *

STEP_US, SEQS, TOKENS = 5000, 8, 8            # a request is 9 steps or so: 170 a second
EACH = 3                                      # that each of the eight has in flight
GREEDY = 8                                    # requests of n = 1,024
KEYS = [f"key-{i}" for i in range(8)]
BODY = {"prompt": [5, 6, 7], "max_tokens": TOKENS, "ignore_eos": True}


def head(key):
    return {"Content-Type": "application/json", "Authorization": "Bearer " + key}


class Key:
    """A key that asks one thing after the other on each of its connections."""

    def __init__(self, port, key):
        self.port, self.key, self.took, self.bad, self.stop = port, key, [], [], False
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(EACH)]

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        try:
            while not self.stop:
                begin = time.monotonic()
                c.request("POST", "/v1/completions", json.dumps(BODY), head(self.key))
                r = c.getresponse()
                r.read()
                if r.status == 200:
                    self.took.append((time.monotonic(), time.monotonic() - begin))
                else:
                    self.bad.append(r.status)
                    time.sleep(0.05)
        except OSError as e:
            self.bad.append(type(e).__name__)
        finally:
            c.close()


def greedy(port):
    """A request of 1,024 answers, sent and not waited for."""
    body = json.dumps({**BODY, "n": 1024}).encode()
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer greedy\r\nContent-Type: "
              b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return s


def tokens(p):
    text = p.ask("GET", "/metrics", headers=head("key-0"))[2]
    return sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines()
               if l.startswith("vllm:generation_tokens_total{"))


def phase(p, seconds):
    """How often each key was served in the middle of it, all that was served then, and the p99 of the keys'."""
    keys = [Key(p.port, k) for k in KEYS]
    for k in keys:
        for t in k.threads:
            t.start()
    time.sleep(1)
    begin, before = time.monotonic(), tokens(p)
    time.sleep(seconds)
    end, after = time.monotonic(), tokens(p)
    for k in keys:
        k.stop = True
    for k in keys:
        for t in k.threads:
            t.join(20)
        check(not k.bad, f"{k.key} is never refused: {k.bad[:5]}")
    served = [sum(begin <= at < end for at, _ in k.took) for k in keys]
    took = sorted(t for k in keys for at, t in k.took if begin <= at < end)
    check(len(took) > 100, f"the keys are served: {served}")
    return served, (after - before) / TOKENS, took[len(took) * 99 // 100]


def share(processes):
    limits = ("--max-num-queued-reqs", 16384)
    with Programs() as p:
        path = os.path.join(p.dir, "keys")
        with open(path, "w") as f:
            f.write("greedy greedy\n" + "".join(f"{k} {k}\n" for k in KEYS))
        p.daemon("--device", "null", "--null-step-us", STEP_US, "--max-num-seqs", SEQS, *limits)
        p.adapter("--disable-access-log", "--api-key-file", path, "--api-server-count", processes, *limits)
        _, _, alone = phase(p, 3)
        flood = [greedy(p.port) for _ in range(GREEDY)]
        time.sleep(1)
        for s in flood:
            s.setblocking(False)
            try:
                check(False, f"all of it is taken: {s.recv(300)}")
            except BlockingIOError:
                pass
        if processes == 1:                     # one may have 9,102 here: what is more is refused
            flood += [greedy(p.port) for _ in range(3)]
            ready = select.select(flood, [], [], 10)[0]
            text = ready[0].recv(4096).lower() if ready else b"nothing"
            check(text.startswith(b"http/1.1 503") and b"retry-after:" in text, f"who has most is refused: {text}")
        served, total, beside = phase(p, 5)
        for s in flood:
            s.close()
        print(f"  {processes} process(es): of {total:.0f} served the least of eight got {min(served)}, "
              f"{900 * min(served) / total:.0f} % of a ninth; p99 {1000 * beside:.0f} ms, without it {1000 * alone:.0f}")
        check(total > 300, f"the device is busy: {total}")
        check(min(served) * 9 >= 0.9 * total, f"each gets 90 % of its share: {served} of {total}")
        check(beside < 2 * alone, f"p99 {beside:.3f} s beside it, {alone:.3f} without")


def burst():
    """200 clients of one key where 64 may wait.  Another key's requests are all served: only who has most is refused."""
    with Programs() as p:
        path = os.path.join(p.dir, "keys")
        with open(path, "w") as f:
            f.write("greedy greedy\nmodest modest\n")
        p.daemon("--device", "null", "--null-step-us", 20000, "--max-model-len", 1024, "--max-num-seqs", 64,
                 "--max-num-batched-tokens", 512, "--knob-ceiling", "max-num-seqs=64,max-num-batched-tokens=512")
        p.adapter("--disable-access-log", "--api-key-file", path, "--max-num-queued-reqs", 64)
        over, refused = threading.Event(), []

        def ask(key, prompt, tokens):
            return p.ask("POST", "/v1/completions", {"prompt": [5] * prompt, "max_tokens": tokens, "ignore_eos": True},
                         headers={"Authorization": "Bearer " + key})[0]

        def flood():
            while not over.is_set():
                refused.append(ask("greedy", 500, 8) == 503)
        threads = [threading.Thread(target=flood) for _ in range(200)]
        for t in threads:
            t.start()
        check(wait_for(lambda: any(refused), 20), "there are more requests than may wait")
        got = [ask("modest", 20, 1) for _ in range(20)]
        over.set()
        for t in threads:
            t.join(60)
        check(got == [200] * 20, f"of the other key's 20 requests {got.count(503)} were refused")


def main():
    need_model()                              # for its vocabulary alone
    burst()
    for processes in 1, 4:
        share(processes)
    done()


main()
