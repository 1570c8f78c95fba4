#!/usr/bin/env python3
"""Limits of API keys: requests and tokens a minute, requests at once, priority; what a refusal says; one limit for
several adapter processes; what each key used, in /metrics and in slipring top --keys.  On the null device."""
import json, os, re, signal, subprocess, time
from harness import *

NULL = ["--device", "null", "--null-step-us", "2000", "--max-model-len", "2048", "--max-num-seqs", "64"]
KEYS = """# comments
ka alice rpm=20
ka2 alice
kt terse tpm=600
ku open tpm=500
kp pool max-parallel=2
kf free
urgent first priority=-5
"""


def ask(p, key, n=1, tokens=1, path="/v1/completions", **more):
    body = {"prompt": [5] * n, "max_tokens": tokens, "ignore_eos": True, **more}
    return p.ask("POST", path, body, headers={"Authorization": "Bearer " + key})


def refused(r, word, dialect=None):
    status, h, text = r
    check(status == 429 and word in text, f"429 with {word}: {status} {text}")
    e = json.loads(text)["error"]
    check(e.get("code", 429) == 429 or dialect, f"{e}")
    return h


def requests(p):
    """20 a minute, shared by both keys of a name and by both processes; then one every three seconds."""
    taken, begin = [], time.monotonic()
    for i in range(26):
        taken.append(ask(p, ("ka", "ka2")[i % 2]))
    seconds = time.monotonic() - begin
    ok = [s for s, _, _ in taken if s == 200]
    check(20 <= len(ok) <= 20 + seconds / 3 + 1, f"{len(ok)} of 26 in {seconds:.1f} s")
    h = refused(taken[-1], "20 requests a minute (rpm)")
    check(h["retry-after"] and 1 <= int(h["retry-after"]) <= 4, f"retry-after {h['retry-after']}")
    check(h["x-ratelimit-limit-requests"] == "20" and h["x-ratelimit-remaining-requests"] == "0" and
          re.fullmatch(r"\d+\.\d{3}s", h["x-ratelimit-reset-requests"]), f"{dict(h)}")
    check(taken[0][1]["x-ratelimit-remaining-requests"] == "19", f"{dict(taken[0][1])}")
    check(ask(p, "kf")[0] == 200 and ask(p, "kf")[1]["x-ratelimit-limit-requests"] is None, "others go on")
    for path, body in (("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
                       ("/v1/responses", {"input": "a", "max_output_tokens": 1})):
        s, _, text = p.ask("POST", path, body, headers={"Authorization": "Bearer ka"})
        e = json.loads(text)["error"]
        check(s == 429 and (e.get("type"), e.get("code")) in (("rate_limit_error", None), ("invalid_request_error",
              "rate_limit_exceeded")), f"{path}: {text}")
    check(p.ask("POST", "/tokenize", {"prompt": "a"}, headers={"Authorization": "Bearer ka"})[0] == 200, "no computing")


def tokens(p):
    """600 a minute, prompts and what answers may have: taken when they come; what they did not use comes back."""
    s, h, _ = ask(p, "kt", 400, 10)
    check(s == 200 and h["x-ratelimit-limit-tokens"] == "600" and 190 <= int(h["x-ratelimit-remaining-tokens"]) <= 205,
          f"{dict(h)}")
    h = refused(ask(p, "kt", 100, 300), "600 tokens a minute (tpm); this request may take 400")
    check(int(h["retry-after"]) >= 10, f"retry-after {h['retry-after']}")
    check(ask(p, "kt", 100, 50)[0] == 200, "a shorter answer has room")
    s, h, text = p.ask("POST", "/v1/completions", {"prompt": [5] * 10, "max_tokens": 100, "n": 20}, headers={"Authorization": "Bearer kt"})
    check(s == 429 and "may take 2010 tokens" in text and h["retry-after"] is None, f"20 answers: {text}")
    s, h, text = ask(p, "kt", 700)
    check(s == 429 and "may use 600 a minute" in text and h["retry-after"] is None, f"never: {text}")


    body = {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True, "n": 2}
    s, _, text = p.ask("POST", "/v1/chat/completions", body, headers={"Authorization": "Bearer ku"})
    use = json.loads(text).get("usage", {"prompt_tokens": 0, "completion_tokens": 0})
    check(s == 200 and use["completion_tokens"] == (500 - use["prompt_tokens"]) // 2 * 2,
          f"without max_tokens, a minute's worth in all: {use}")
    check(value(p, 'slipring_key_generation_tokens_total{key="open"}') == use["completion_tokens"], "both answers are charged")


def parallel(p):
    """Two answers at once, over both processes; a client that leaves gives its place back."""
    refused(p.ask("POST", "/v1/completions", {"prompt": [5], "max_tokens": 1, "n": 3},
            headers={"Authorization": "Bearer kp"}), "asks for 3 answers")
    check(p.ask("POST", "/v1/completions", {"prompt": [5], "max_tokens": 1, "n": 2},
                headers={"Authorization": "Bearer kp"})[0] == 200, "two answers of one request")
    got = p.together(8, lambda i: ask(p, "kp", 1, 150)[0])
    check(got.count(200) >= 2 and got.count(429) >= 4 and set(got) == {200, 429}, f"{got}")
    refused_text = [ask(p, "kp", 1, 1)[0] for _ in range(3)]
    check(refused_text == [200] * 3, f"one after the other: {refused_text}")
    used = value(p, 'slipring_key_generation_tokens_total{key="pool"}')
    for _ in range(4):
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=10)
        c.request("POST", "/v1/completions", json.dumps({"prompt": [1], "max_tokens": 1500, "ignore_eos": True, "stream": True}),
                  {"Content-Type": "application/json", "Authorization": "Bearer kp"})
        r = c.getresponse()
        check(r.status == 200 and [r.readline()[:5] for _ in range(3)] == [b"data:", b"\n", b"data:"], "a stream")
        r.close()
        c.close()
        check(wait_for(lambda: value(p, 'slipring_key_running{key="pool"}') == 0, 5), "its place is free again")
    check(value(p, 'slipring_key_generation_tokens_total{key="pool"}') >= used + 8, "who leaves is charged for what was made")


def value(p, series):
    time.sleep(.12)                                        # a page of metrics is kept for 0.1 s
    m = re.search("^" + re.escape(series) + r" (\S+)$", p.ask("GET", "/metrics")[2], re.M)
    return float(m.group(1)) if m else None


def used(p):
    check(value(p, 'slipring_key_requests_total{key="terse"}') == 5, "requests")
    check(value(p, 'slipring_key_prompt_tokens_total{key="terse"}') == 500, "prompts that were computed")
    check(value(p, 'slipring_key_generation_tokens_total{key="terse"}') == 60, "answers")
    check(value(p, 'slipring_key_refused_total{key="terse",limit="tpm"}') == 3, "refused")
    check(value(p, 'slipring_key_refused_total{key="alice",limit="rpm"}') >= 5, "refused")
    check(value(p, 'slipring_key_refused_total{key="pool",limit="max-parallel"}') >= 4, "refused")
    r = subprocess.run([os.path.join(BUILD, "slipring"), "top", "--keys", "--url", p.url, "--json"], capture_output=True,
                       text=True, env=p.env, timeout=30)
    check(r.returncode == 0, r.stderr)
    keys = {k["key"]: k for k in json.loads(r.stdout)["keys"]}
    check(keys["terse"]["prompt_tokens"] == 500 and keys["terse"]["generation_tokens"] == 60 and
          keys["terse"]["refused"]["tpm"] == 3, f"{keys}")
    r = subprocess.run([os.path.join(BUILD, "slipring"), "top", "--keys", "--url", p.url, "--once"], capture_output=True,
                       text=True, env=p.env, timeout=30)
    check(r.returncode == 0 and re.search(r"^terse +5 +500 ", r.stdout, re.M), r.stdout + r.stderr)


def reloaded(p, path):
    """New limits on SIGHUP; a file that contradicts itself changes nothing."""
    with open(path, "w") as f:
        f.write(KEYS.replace("kf free", "kf free rpm=1"))
    os.kill(p.procs["slipring-http"].pid, signal.SIGHUP)
    got = wait_for(lambda: 429 in {ask(p, "kf")[0] for _ in range(6)}, 10)
    check(got, "a limit that was added")
    with open(path, "w") as f:
        f.write(KEYS + "other alice rpm=21\n")
    os.kill(p.procs["slipring-http"].pid, signal.SIGHUP)
    check(wait_for(lambda: "different limits" in p.log("slipring-http"), 5), "the log says why")
    check(ask(p, "other")[0] == 401, "the old keys stay")


def main():
    need_model()
    with Programs() as p:
        path = os.path.join(p.dir, "keys")
        with open(path, "w") as f:
            f.write(KEYS)
        p.daemon("--model", MODEL, *NULL, "--scheduling-policy", "priority")
        p.adapter("--model", MODEL, "--api-key-file", path, "--api-server-count", "2", "--scheduling-policy", "priority")
        requests(p)
        tokens(p)
        parallel(p)
        check(ask(p, "urgent")[0] == 200 and ask(p, "urgent", priority=3)[0] == 200, "a priority of its own")
        used(p)
        reloaded(p, path)
    done()


main()
