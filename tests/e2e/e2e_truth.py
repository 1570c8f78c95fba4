#!/usr/bin/env python3
"""What a server says about each request: timings that add up, Server-Timing, the prompt's text and length
before it is sent."""
import json, os, re, subprocess, time
from harness import *

CHAT = {"messages": [{"role": "user", "content": "Count to twenty in words."}], "temperature": 0, "seed": 1}
NAMES = ["cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
         "predicted_ms", "predicted_per_token_ms", "predicted_per_second", "queue_ms", "total_ms"]


def add_up(t, usage, n_prompts=1, wall_ms=None):
    check(list(t) == NAMES, f"the names: {list(t)}")
    check(abs(t["queue_ms"] + t["prompt_ms"] + t["predicted_ms"] - t["total_ms"]) < 2e-6, f"the parts add up: {t}")
    check(t["cache_n"] + t["prompt_n"] == usage["prompt_tokens"] * n_prompts, f"all of the prompt: {t} {usage}")
    check(t["predicted_n"] == usage["completion_tokens"], f"tokens of the answer: {t} {usage}")
    check(t["prompt_ms"] > 0 and t["queue_ms"] >= 0, f"a prompt takes time: {t}")
    if t["predicted_n"] > 1:
        check(t["predicted_ms"] > 0 and abs(t["predicted_per_second"] * t["predicted_ms"] / 1e3 - t["predicted_n"]) < .01,
              f"its rate: {t}")
    check(wall_ms is None or t["total_ms"] <= wall_ms, f"{t['total_ms']} ms of {wall_ms}")
    return t


def header(h, t=None):
    m = re.fullmatch(r'queue;dur=([\d.]+), prompt;dur=([\d.]+), cached;desc="(\d+)/(\d+)", decode;dur=([\d.]+), '
                     r'total;dur=([\d.]+)', h.get("server-timing") or "")
    check(m, f"Server-Timing: {h.get('server-timing')}")
    queue, prompt, cached, of, decode, total = map(float, m.groups())
    check(abs(queue + prompt + decode - total) < .0021, f"the header adds up: {m.groups()}")
    if t:
        check((cached, of) == (t["cache_n"], t["cache_n"] + t["prompt_n"]) and abs(total - t["total_ms"]) < .0011,
              f"the header has the answer's times: {m.groups()} {t}")


def timings(p):
    for path, ask in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "One, two, three", "temperature": 0})):
        begin = time.monotonic()
        status, h, text = p.ask("POST", path, {**ask, "max_tokens": 12, "timings": True})
        wall = (time.monotonic() - begin) * 1e3
        a = json.loads(text)
        check(status == 200, text[:200])
        t = add_up(a["timings"], a["usage"], wall_ms=wall)
        header(h, t)
        status, h, text = p.ask("POST", path, {**ask, "max_tokens": 12})
        check("timings" not in json.loads(text), "only if asked for")
        header(h)
        for more in ({}, {"stream_options": {"include_usage": True}}):
            events = p.stream(path, {**ask, "max_tokens": 12, "timings": True, **more})[1]
            have = [e for e in events if e and "timings" in e]
            check(len(have) == 1 and events[-2] is have[0] and events[-1] is None, "the last event has them")
            add_up(have[0]["timings"], {"prompt_tokens": a["usage"]["prompt_tokens"], "completion_tokens": 12})
        check(not any("timings" in e for e in p.stream(path, {**ask, "max_tokens": 4})[1] if e), "streams: only if asked for")
        a = p.post(path, {**ask, "max_tokens": 6, "n": 3, "temperature": 1, "timings": True})
        add_up(a["timings"], a["usage"], 3)
        a = p.post(path, {**ask, "max_tokens": 1, "timings": True})
        add_up(a["timings"], a["usage"])
        check(p.ask("POST", path, {**ask, "timings": 3})[0] == 400, "timings is a bool")
    a = p.post("/v1/completions", {"prompt": "One, two, three, four,", "max_tokens": 40, "temperature": 0, "stop": ",",
                                   "timings": True})
    check(a["choices"][0]["finish_reason"] == "stop", f"a stop string: {a}")
    add_up(a["timings"], a["usage"])
    status, h, text = p.ask("POST", "/v1/completions", {"prompt": "One, two, three, four,", "max_tokens": 40,
                                                        "temperature": 0, "stop": ","})
    header(h)
    status, h, _ = p.ask("POST", "/v1/messages", {**CHAT, "max_tokens": 4})
    check(status == 200, "messages")
    header(h)
    check(p.ask("POST", "/v1/completions", {"prompt": 3})[1].get("server-timing") is None, "no times of a refusal")


def prompts(p):
    text = p.post("/apply-template", CHAT)
    check(list(text) == ["prompt"] and "Count to twenty in words." in text["prompt"], f"/apply-template: {text}")
    ids = p.post("/tokenize", {"prompt": text["prompt"], "add_special_tokens": False})["tokens"]
    a = p.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "return_token_ids": True})
    check(ids == a["prompt_token_ids"], "the model reads the text that /apply-template shows")
    n = p.post("/v1/chat/completions/input_tokens", CHAT)
    check(n == {"object": "response.input_tokens", "input_tokens": len(ids)}, f"input_tokens: {n}, {len(ids)}")
    bare = p.post("/apply-template", {**CHAT, "add_generation_prompt": False})["prompt"]
    check(text["prompt"].startswith(bare) and bare != text["prompt"], "add_generation_prompt")
    for path in ("/apply-template", "/v1/chat/completions/input_tokens"):
        check(p.ask("POST", path, {"messages": []})[0] == 400 and p.ask("POST", path, "{")[0] == 400, "errors as a chat's")
        check(p.ask("GET", path)[0] == 405, "POST alone")


def progress(p):
    """A long prompt is told part by part; each event of a stream has the times until then."""
    words = " ".join(f"word{i}" for i in range(420))
    for path, ask in (("/v1/chat/completions", {"messages": [{"role": "user", "content": words}]}),
                      ("/v1/completions", {"prompt": words})):
        more = {**ask, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_progress": True,
                "cache_salt": path.replace("/", "-"), "stream_options": {"include_usage": True}}
        status, events = p.stream(path, {**more, "timings_per_token": True})
        check(status == 200, events)
        total = events[-2]["usage"]["prompt_tokens"]
        parts = [e["prompt_progress"] for e in events if e and "prompt_progress" in e]
        done = [x["processed"] for x in parts]
        check(len(parts) >= total // 512 and done == sorted(set(done)) and done[-1] == total, f"rising to {total}: {done}")
        check(all(x["total"] == total and x["cache"] == 0 for x in parts), f"{parts}")
        ms = [x["time_ms"] for x in parts]
        check(ms == sorted(ms) and ms[-1] > 0, f"times rise: {ms}")
        t = events[-2]["timings"]
        check(abs(t["prompt_ms"] - ms[-1]) < 1.01, f"the last is the whole prompt's: {ms} {t}")
        so_far = [e["timings"] for e in events[:-2] if e and "timings" in e]
        check([x["predicted_n"] for x in so_far] == list(range(1, len(so_far) + 1)) and len(so_far) >= 7, f"{so_far}")
        check(all(x["prompt_ms"] == t["prompt_ms"] and x["queue_ms"] == t["queue_ms"] for x in so_far), f"{so_far} {t}")
        check(all(e["choices"][0]["finish_reason"] is None for e in events[:-3]), "an event of progress ends nothing")
        again = [e["prompt_progress"] for e in p.stream(path, more)[1] if e and "prompt_progress" in e]
        check(len(again) == 1 and again[0]["cache"] >= total - 17 and again[0]["processed"] == total, f"cached: {again}")
        check(p.ask("POST", path, {**ask, "return_progress": True})[0] == 400, "streams only")
        plain = p.stream(path, {**ask, "max_tokens": 2})[1]
        check(not any("prompt_progress" in e for e in plain if e), "only if asked for")


def why(p, *args):
    r = subprocess.run([os.path.join(BUILD, "slipring"), "why", *args], capture_output=True, text=True, env=p.env)
    return r.returncode, r.stdout, r.stderr


def explained(p):
    """slipring why ID says what the answer's own timings say."""
    ask = {**CHAT, "max_tokens": 16, "timings": True, "ignore_eos": True}
    a = p.post("/v1/chat/completions", ask)
    rc, out, err = why(p, a["id"], "--json")
    check(rc == 0, err)
    e, t = json.loads(out), a["timings"]
    check(len(e) == 1, f"one end: {e}")
    e = e[0]
    for k in ("cache_n", "prompt_n", "predicted_n", "queue_ms", "prompt_ms", "predicted_ms", "total_ms"):
        check(abs(e[k] - t[k]) < 1e-6, f"{k}: {e[k]}, {t[k]}")
    check(e["finish"] == "length" and e["max_tokens"] == 16 and e["preempted"] == 0, f"its end: {e}")
    check(e["client"].startswith("slipring-http"), f"whose it was: {e['client']}")
    after = e["after_it"]
    check(14 <= after["steps"] <= 17 and .9 <= after["rows"] <= 1.2, f"alone: {after}")
    check(sum(after["bound_ms"].values()) <= 1.2 * t["predicted_ms"] + 5, f"what bound it: {after} {t}")
    trace = "0af7651916cd43dd8448eb211c80319c"
    status, h, text = p.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3, "n": 2}, headers={
        "traceparent": f"00-{trace}-b7ad6b7169203331-01", "X-Request-Id": "mine-7"})
    for name in (trace, "mine-7", "cmpl-mine-7"):
        e = json.loads(why(p, name, "--json")[1])
        check(len(e) == 2 and all(x["trace"] == trace for x in e), f"{name}: {e}")
    rc, out, err = why(p, "chatcmpl-never")
    check(rc == 1 and "chatcmpl-never is among the 4096 ends" in err and not out, f"{rc} {out} {err}")
    rc, out, _ = why(p, "--last")
    check(rc == 0 and "of slipring-http 0 (uid " in out and ": length" in out and "first token" in out, out)
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"],
              "additionalProperties": False}
    a = p.post("/v1/chat/completions", {**CHAT, "max_tokens": 30, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}}})
    e = json.loads(why(p, a["id"], "--json")[1])[0]
    check(e["guided"] and e["masks"] >= 1 and 0 < e["mask_ms_most"] <= e["mask_ms"] < 5000, f"its grammar: {e}")
    check(re.search(r"grammar +\d+ masks in [\d.]+ ms, the slowest", why(p, a["id"])[1]), why(p, a["id"])[1])
    several = p.together(8, lambda i: p.post("/v1/chat/completions", {**ask, "max_tokens": 48}))
    rows = [json.loads(why(p, x["id"], "--json")[1])[0]["after_it"]["rows"] for x in several]
    check(all(1 < r <= 16 for r in rows) and max(rows) > 2, f"beside others: {rows}")


def main():
    need_model()
    with Programs() as p:
        p.daemon("--model", MODEL, "--max-model-len", "2048", "--max-num-seqs", "16",
                 "--max-num-batched-tokens", "512")
        p.adapter("--model", MODEL)
        timings(p)
        prompts(p)
        progress(p)
        explained(p)
    done()


main()
