#!/usr/bin/env python3
"""A restart that nobody notices: the daemon is killed, and stopped, under streams of every kind.  No client sees
an error, and every answer is the one that it gets undisturbed.  RESTART_STREAMS=200 is `make restart-test`."""
import os, random, signal, threading, time
from harness import *

N = int(os.environ.get("RESTART_STREAMS", 12))
SMALL = N <= 16
TOKENS = 20 if SMALL else 40
ARGS = ["--max-num-seqs", 16 if SMALL else 64, "--max-model-len", 1024]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}, "people": {"type": "integer"},
          "names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 3, "maxItems": 5}},
          "required": ["city", "people", "names"], "additionalProperties": False}
TOOL = {"name": "weather", "description": "Weather of a city", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}}, "required": ["city", "days"]}}
TOPICS = ["the sea", "a clock", "iron", "rain", "old maps", "bread", "the moon", "a bridge"]


def chat(i, **more):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": f"Write about {TOPICS[i % 8]}, number {i}."}],
                                    "max_tokens": TOKENS, **more}


def completion(i, **more):
    return "/v1/completions", {"prompt": f"{i}: once upon a time {TOPICS[i % 8]}", "max_tokens": TOKENS, **more}


KINDS = [
    lambda i: chat(i, temperature=0, stream=True),
    lambda i: chat(i, temperature=.9, top_p=.95, seed=i, stream=True),
    lambda i: completion(i, temperature=.9, top_p=.95, seed=i, presence_penalty=.5, frequency_penalty=.3, stream=True),
    lambda i: completion(i, temperature=0, logprobs=3, min_tokens=20, stream=True, stop=["xyzzy", " the e"]),
    lambda i: chat(i, temperature=.9, seed=i, stream=True, max_tokens=2 * TOKENS, response_format={
        "type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}),
    lambda i: chat(i, temperature=.9, seed=i, stream=True, max_tokens=2 * TOKENS, tool_choice="required",
                   tools=[{"type": "function", "function": TOOL}]),
    lambda i: completion(i, temperature=.9, seed=i, n=2),
    lambda i: completion(i, temperature=0, echo=True, logprobs=2, ignore_eos=True),
    lambda i: chat(i, temperature=.9, seed=i, logprobs=True, top_logprobs=8, stream=True),
    lambda i: ("/v1/messages", {"model": "m", "max_tokens": TOKENS, "temperature": 0, "stream": True,
                                "messages": [{"role": "user", "content": f"Say something about {TOPICS[i % 8]} {i}."}]}),
    lambda i: ("/v1/responses", {"model": "m", "max_output_tokens": TOKENS, "temperature": 0, "stream": True,
                                 "input": f"Tell me of {TOPICS[i % 8]}, {i} words."}),
    lambda i: ("/v1/completions", {"prompt": [f"{i} {TOPICS[i % 8]} is", "and then"], "max_tokens": TOKENS,
                                   "temperature": .9, "seed": i, "min_p": .05, "bad_words": [" the"]}),
]


def plain(value):
    """An answer without what differs from one run to the next: names, times, and how it was cut into events."""
    drop = {"id", "created", "created_at", "completed_at", "item_id", "obfuscation", "timings", "system_fingerprint"}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in drop}
    return [plain(v) for v in value] if isinstance(value, list) else value


def answer(p, i, seen=None):
    """What a client makes of answer i: its texts, calls, log-probabilities and ends.  seen(): at each event."""
    path, body = KINDS[i % len(KINDS)](i)
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=170 if SMALL else 900)
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            return r.status, r.read().decode()
        if not body.get("stream"):
            return 200, plain(json.loads(r.read()))
        out, text = {}, ""
        for line in r:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            e = json.loads(line[6:])
            if "error" in e and e["error"]:
                return 200, e
            if seen:
                seen()
            for choice in e.get("choices", []):
                d = choice.get("delta", choice)
                mine = out.setdefault(choice["index"], {"text": "", "args": "", "names": [], "probs": []})
                mine["text"] += d.get("content") or d.get("text") or ""
                for call in d.get("tool_calls") or []:
                    mine["args"] += call["function"].get("arguments") or ""
                    mine["names"] += [call["function"]["name"]] if call["function"].get("name") else []
                mine["probs"] += [plain(choice["logprobs"])] if choice.get("logprobs") else []
                if choice.get("finish_reason"):
                    mine["finish"] = choice["finish_reason"]
            if "delta" in e:                      # Messages and Responses
                text += e["delta"] if isinstance(e["delta"], str) else e["delta"].get("text", "")
                out["stop"] = e["delta"].get("stop_reason") if isinstance(e["delta"], dict) else out.get("stop")
        out["agents"] = text
        return 200, out
    finally:
        c.close()


def disturbed(p, want, how):
    """All streams at once; when half of them are a quarter through, the daemon goes and comes back."""
    begun, lock, go = {}, threading.Lock(), threading.Event()

    def one(i):
        def seen():
            with lock:
                begun[i] = begun.get(i, 0) + 1
                if sum(n >= TOKENS // 4 for n in begun.values()) >= N // 2:
                    go.set()
        return answer(p, i, seen)
    got = []
    t = threading.Thread(target=lambda: got.extend(p.together(N, one)))
    before = moved(p)
    t.start()
    check(go.wait(120 if SMALL else 600), "the streams begin")
    how(p)
    t.join(180 if SMALL else 900)
    check(len(got) == N, "every stream ends")
    for i, g in enumerate(got):
        check(g == want[i], f"answer {i} ({KINDS[i % len(KINDS)](i)[0]}) as undisturbed:\n{str(g)[:700]}\nfor\n{str(want[i])[:700]}")
    time.sleep(.15)
    after = moved(p)
    check(after[0] > before[0] and after[1] > before[1], f"moved requests and tokens are counted: {before} {after}")
    print(f"{N} streams: {after[0] - before[0]:.0f} moved, with {after[1] - before[1]:.0f} tokens", flush=True)


def moved(p):
    text = p.ask("GET", "/metrics")[2]
    return [sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines() if l.startswith(f"slipring_moved_{what}_total"))
            for what in ("requests", "tokens")]


def restart(sig):
    def how(p):
        d = p.procs["slipringd"]
        d.send_signal(sig)
        check(d.wait(20) is not None, "the daemon ends")
        p.daemon(*ARGS)
    return how


def among_replicas(p):
    """Two daemons behind one address: one is killed under streams, then both are told to stop, one after the other."""
    n = 8 if SMALL else 100
    ask = lambda i: p.stream("/v1/completions", {"prompt": [i + 5, 9, 11], "max_tokens": 60, "temperature": .9, "seed": i,
                                                 "ignore_eos": True}, timeout=170 if SMALL else 900)
    text = lambda i: "".join(e["choices"][0]["text"] for e in ask(i)[1] if e and e.get("choices"))
    want = p.together(n, text)
    for signals in ((signal.SIGKILL, ), (signal.SIGTERM, signal.SIGTERM)):
        got, pids, before = [], daemons(p), moved(p)
        check(set(pids) == {0, 1}, f"both daemons run: {pids}")
        t = threading.Thread(target=lambda: got.extend(p.together(n, text)))
        t.start()
        check(wait_for(lambda: sum_of(p, "vllm:num_requests_running") >= n // 2, 60), "the streams begin")
        for rank, sig in enumerate(signals):
            os.kill(pids[rank], sig)
            check(wait_for(lambda: daemons(p).get(rank, pids[rank]) != pids[rank], 30), f"daemon {rank} is started again")
            check(wait_for(lambda: p.ask("GET", "/metrics")[2].count("\nslipring_engine_up{") == 2 and
                           sum_of(p, "slipring_engine_up") == 2, 30, .15), "and is used")
        t.join(180 if SMALL else 900)
        check(got == want, f"no answer is lost or changed: {[i for i in range(n) if got[i] != want[i]]} of {n}")
        time.sleep(.15)
        check(moved(p)[0] > before[0], "and some were moved")


def sum_of(p, name):
    return sum(float(l.rsplit(" ", 1)[1]) for l in p.ask("GET", "/metrics")[2].splitlines() if l.startswith(name + "{"))


def only_one_ran(p):
    """The daemon dies three times while it computes one request: that one may be the cause, those that wait are not."""
    got, pid = [], None
    t = threading.Thread(target=lambda: got.extend(p.together(6, lambda i: p.ask("POST", "/v1/completions", {
        "prompt": [i + 5, 9], "max_tokens": 1, "temperature": 0}))))
    t.start()
    for n in range(3):
        check(wait_for(lambda: set(children(p.procs["slipring"].pid, "slipringd")) - {pid} and
                       p.ask("GET", "/health")[0] == 200 and sum_of(p, "vllm:num_requests_running") == 1, 30),
              f"one request is computed after {n} deaths")
        pid = next(iter(children(p.procs["slipring"].pid, "slipringd")))
        os.kill(pid, signal.SIGKILL)
    t.join(60)
    status = sorted(g[0] for g in got)
    check(status == [200] * 5 + [500], f"one ends, the others are answered: {got}")
    check(any("stopped again and again" in g[2] for g in got), "and is told why")


def nobody_comes(p):
    """After --daemon-wait what is held ends with 503, and what comes later gets it at once."""
    got = []
    t = threading.Thread(target=lambda: got.append(p.ask("POST", "/v1/completions", completion(1, max_tokens=900,
                                                   ignore_eos=True)[1])))
    t.start()
    time.sleep(.05)
    p.procs["slipringd"].kill()
    p.procs["slipringd"].wait(10)
    begin = time.monotonic()
    t.join(30)
    status, headers, text = got[0]
    check(status == 503 and headers["Retry-After"] and "stopped" in text, f"held in vain: {status} {text}")
    check(1.5 < time.monotonic() - begin < 8, f"for --daemon-wait, not {time.monotonic() - begin:.1f} s")
    begin = time.monotonic()
    status = p.ask("POST", "/v1/completions", completion(1)[1])[0]
    check(status == 503 and time.monotonic() - begin < 1, "and then 503 comes at once")


def main():
    need_model()
    with Programs() as p:
        p.daemon(*ARGS)
        p.adapter("--daemon-wait", 60, "--served-model-name", "m")
        want = p.together(N, lambda i: answer(p, i))
        for i, w in enumerate(want):
            check(w[0] == 200 and "error" not in w[1], f"undisturbed: {i} {w}")
        disturbed(p, want, restart(signal.SIGKILL))
        if not SMALL:
            disturbed(p, want, restart(signal.SIGTERM))
    with Programs() as p:
        p.daemon("--device", "null", "--max-model-len", 1024, "--null-step-us", 5000)
        p.adapter("--daemon-wait", 2)
        nobody_comes(p)
    with Programs() as p:
        p.serve(*(["--device", "null", "--null-step-us", 10000] if SMALL else ARGS), "-dp", 2, MODEL)
        among_replicas(p)
    with Programs() as p:
        p.serve("--device", "null", "--null-step-us", 1500000, "--max-num-seqs", 1, MODEL)
        only_one_ran(p)
    done()


main()
