#!/usr/bin/env python3
"""Replay requests that vLLM 0.32 has answered, and hold a running server to its answers.

usage: run.py URL [-v] [CASE ...]

vllm-0.32.0.jsonl holds what vLLM answered for a small model served as `smol` with a context of
4096; serve ours with --served-model-name smol --max-model-len 4096.  The routes for token ids were
recorded with --enable-scale-out.  Held to it are:

    status, content type, allow       equal
    errors                            type, param, code equal; message a sentence
    other JSON                        the same keys in the same order, values of the same kind
    streams                           the same sequence of kinds of events, key by key and in order;
                                      every event one line "data: ..", the last one [DONE]
    /metrics                          every vllm: name is there

Texts, numbers, times and ids differ with the model, so they are not compared, nor is how many
tokens there are.
"""
import http.client
import json
import os
import sys
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))

# Answers of the models differ here: one stops where the other goes on, so either reason is right.
FINISH = {"stop", "length"}


def kind(v):
    """What a value is: a scalar's JSON type, a list's first element, an object's keys in order."""
    if isinstance(v, dict):
        if v and all(isinstance(x, (int, float)) for x in v.values()) and "prompt_tokens" not in v:
            return "numbers by name"
        if v and all(k.lstrip("-").isdigit() for k in v):
            return "entries by id"
        return {k: kind(x) for k, x in v.items()}
    if isinstance(v, list):
        return [kind(v[0] if v[0] is not None or len(v) == 1 else v[1])] if v else []
    if isinstance(v, bool):
        return "bool"
    if isinstance(v, (int, float)):
        return "number"
    return "null" if v is None else "string"


def differ(theirs, ours, at=""):
    """Where two kinds differ, or None."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if list(theirs) != list(ours):
            return f"{at or 'top'}: keys {list(ours)} for {list(theirs)}"
        return next((d for k in theirs if (d := differ(theirs[k], ours[k], f"{at}.{k}"))), None)
    if isinstance(theirs, list) and isinstance(ours, list):
        return differ(theirs[0], ours[0], at + "[]") if theirs and ours else None
    return None if theirs == ours else f"{at or 'top'}: {ours} for {theirs}"


def events(text):
    """The kinds of events of a stream, runs of the same put together."""
    out = []
    if not text.endswith("\n\n"):
        raise ValueError("the stream does not end with an empty line")
    for e in text[:-2].split("\n\n"):
        if not e.startswith("data: ") or "\n" in e:
            raise ValueError(f"no event: {e[:40]!r}")
        if e == "data: [DONE]":
            k = "DONE"
        else:
            d = json.loads(e[6:])
            for c in d.get("choices", []):
                c.pop("index", None)
                if c.get("finish_reason") in FINISH:
                    c["finish_reason"], c["stop_reason"] = "finished", None
                if c.get("logprobs"):           # one token or, with echo, several
                    c["logprobs"] = {x: [] for x in c["logprobs"]}
            k = json.dumps(kind(d))
        if not out or out[-1] != k:
            out.append(k)
    return out


def same_events(theirs, ours):
    """Two answers may interleave differently: what counts is which kinds there are, in which order."""
    a, b = events(theirs), events(ours)
    first = lambda s: list(dict.fromkeys(s))
    missing = [x for x in first(a) if x not in b]
    strange = [x for x in first(b) if x not in a]
    if strange:
        return f"an event that vLLM does not send: {strange[0][:300]}"
    if missing and not (len(missing) == 1 and len(b) < len(a)):
        return f"no event as {missing[0][:300]}"
    return None if b[-1] == "DONE" and first(a)[0] == first(b)[0] else "it begins or ends otherwise"


def ask(url, c):
    data = c["raw"].encode() if "raw" in c else json.dumps(c["body"]).encode() if "body" in c else None
    headers = dict(c.get("headers", {}))
    if data is not None:
        headers.setdefault("Content-Type", "application/json")
    k = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    k.request(c["method"], c["path"], data, headers)
    r = k.getresponse()
    text = r.read().decode()
    k.close()
    return r, text


def compare(c, r, text):
    """What is wrong with our answer, or None."""
    if r.status != c["status"]:
        return f"status {r.status} for {c['status']}: {text[:200]}"
    kind_of = (r.getheader("content-type") or "").lower()
    if kind_of != c.get("type", ""):
        return f"content type {kind_of!r} for {c.get('type')!r}"
    if "allow" in c and r.getheader("allow") != c["allow"]:
        return f"allow: {r.getheader('allow')!r}"
    if c["path"] == "/metrics":
        have = {l.split("{")[0].split(" ")[0] for l in text.split("\n")}
        lost = [n for n in c["answer"].split("\n") if n not in have]
        return f"{len(lost)} metrics missing: {lost[:5]}" if lost else None
    if kind_of.startswith("text/event-stream"):
        return same_events(c["answer"], text)
    if not c["answer"]:
        return f"a body: {text[:60]!r}" if text else None
    theirs, ours = json.loads(c["answer"]), json.loads(text)
    if isinstance(theirs, dict) and isinstance(theirs.get("error"), dict):
        t, o = theirs["error"], ours["error"]
        for f in ("type", "param", "code"):
            if t[f] != o.get(f):
                return f"{f} {o.get(f)!r} for {t[f]!r}"
        leak = "{'" in t["message"]
        if not leak and t["message"] != o["message"]:
            return f"message {o['message']!r} for {t['message']!r}"
        return None if len(o["message"]) > 10 and "{'" not in o["message"] else "no sentence"
    return differ(kind(theirs), kind(ours))


def main():
    args = [a for a in sys.argv[1:] if a != "-v"]
    if not args:
        sys.exit(__doc__)
    url, wanted = urllib.parse.urlparse(args[0]), args[1:]
    good = bad = 0
    for line in open(os.path.join(HERE, "vllm-0.32.0.jsonl"), encoding="utf8"):
        c = json.loads(line)
        if wanted and c["case"] not in wanted:
            continue
        try:
            r, text = ask(url, c)
            wrong = compare(c, r, text)
            if "-v" in sys.argv:
                print(f"{c['case']}: {r.status} {text[:400]}")
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as e:
            wrong = f"{type(e).__name__}: {e}"
        if wrong:
            bad += 1
            print(f"DIFFERS {c['case']}: {wrong}")
        else:
            good += 1
    print(f"conformance: {good} of {good + bad} agree with vLLM 0.32")
    sys.exit(bad != 0 or not good)


main()
