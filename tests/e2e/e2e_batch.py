#!/usr/bin/env python3
"""slipring batch: every line gets its one answer, as over HTTP; wrong lines get errors of their own; a run
that is killed goes on where it was, whatever it had written."""
import json, os, random, signal, subprocess, time
from harness import *

NULL = ["--device", "null", "--null-step-us", "3000", "--max-model-len", "1024", "--max-num-seqs", "32"]


def line(i, url="/v1/completions", **body):
    return json.dumps({"custom_id": f"q{i}", "method": "POST", "url": url,
                       "body": {"prompt": f"Line {i}", "max_tokens": 4 + i % 9, "ignore_eos": True, "temperature": 1,
                                "seed": i, **body}})


def batch(p, *args, **more):
    return subprocess.run([os.path.join(BUILD, "slipring"), "batch", *map(str, args)], capture_output=True, text=True,
                          env=p.env, timeout=120, **more)


def read(path):
    with open(path) as f:
        return [json.loads(l) for l in f]


def write(p, name, lines):
    path = os.path.join(p.dir, name)
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")
    return path


def text_of(a):
    return a["response"]["body"]["choices"][0]["text"]


def whole(p):
    """Good and wrong lines; the answers are those of the server."""
    chat = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": "Hello \u2028 \"you\"\n"}], "max_tokens": 3, "timings": True}}
    bad = ["{", "[1]", '{"custom_id": "", "method": "POST", "url": "/v1/completions", "body": {}}',
           '{"custom_id": "m", "method": "GET", "url": "/v1/models", "body": {}}',
           '{"custom_id": "u", "method": "POST", "url": "http://elsewhere/v1", "body": {}}',
           '{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": []}', line(100, stream=True), line(3)]
    refused = [line(101, temperature=-3), line(102, url="/v1/nothing")]
    src = write(p, "in.jsonl", [line(i) for i in range(40)] + bad + ["", json.dumps(chat)] + refused)
    out = os.path.join(p.dir, "out.jsonl")
    r = batch(p, src, out, "--json", "--concurrency", 8)
    check(r.returncode == 1, f"some lines failed: {r.returncode} {r.stdout} {r.stderr}")
    total = json.loads(r.stdout)
    check((total["answered"], total["failed"], total["wrong_lines"], total["complete"]) == (41, 10, 8, True), f"{total}")
    a = read(out)
    check(len(a) == 51 and len({x["id"] for x in a}) == 51, f"{len(a)} lines")
    by = {x["custom_id"]: x for x in a if x["custom_id"]}
    check(total["completion_tokens"] == sum(4 + i % 9 for i in range(40)) + 3, f"tokens: {total}")
    for i in range(40):
        x = by[f"q{i}"]
        check(x["error"] is None and x["response"]["status_code"] == 200 and
              x["response"]["body"]["usage"]["completion_tokens"] == 4 + i % 9, f"{x}")
    check(by["c"]["response"]["body"]["timings"]["predicted_n"] == 3, "a chat, with all that a request may say")
    for i in ("m", "u", "b", "q100"):
        check(by[i]["response"] is None and by[i]["error"]["code"] == "invalid_line", f"{by[i]}")
    nameless = [x["error"] for x in a if x["custom_id"] is None]
    check(sorted(e["line"] for e in nameless) == [41, 42, 43, 48], f"{nameless}")
    check("also that of line 4" in next(e for e in nameless if e["line"] == 48)["message"], f"{nameless}")
    check(by["q101"]["response"]["status_code"] == 400 and by["q101"]["error"] is None and
          "temperature" in by["q101"]["response"]["body"]["error"]["message"], f"{by['q101']}")
    check(by["q102"]["response"]["status_code"] == 404, f"{by['q102']}")
    why = subprocess.run([os.path.join(BUILD, "slipring"), "why", by["q7"]["response"]["request_id"], "--json"],
                         capture_output=True, text=True, env=p.env)
    check(why.returncode == 0 and json.loads(why.stdout)[0]["predicted_n"] == 11, f"its request_id: {why}")
    same = p.post("/v1/completions", json.loads(line(7))["body"])
    check(text_of(by["q7"]) == same["choices"][0]["text"], "as the server answers it")
    again = batch(p, src, out, "--json")
    check(json.loads(again.stdout)["answered"] == 0 and len(read(out)) == 51, "nothing is asked twice")
    check("has 51 answers already" in again.stderr, again.stderr)
    return by


def killed(p):
    """kill -9 again and again: each line is answered once, with the answer of an undisturbed run."""
    n = 400
    src = write(p, "many.jsonl", [line(i) for i in range(n)])
    calm, out = os.path.join(p.dir, "calm.jsonl"), os.path.join(p.dir, "torn.jsonl")
    check(batch(p, src, calm, "--quiet", "--concurrency", 64).returncode == 0, "a run of its own")
    kills = 0
    for _ in range(60):
        r = subprocess.Popen([os.path.join(BUILD, "slipring"), "batch", src, out, "--quiet", "--concurrency", "16"],
                             env=p.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = os.path.getsize(out) if os.path.exists(out) else 0
        if kills < 4:
            wait_for(lambda: r.poll() is not None or os.path.exists(out) and os.path.getsize(out) > before + 8000, 20, .005)
        else:
            r.wait(60)
        if r.poll() is None:
            kills += 1
            r.send_signal(signal.SIGKILL)
        r.wait()
        if r.returncode == 0:
            break
        if os.path.getsize(out):             # as if it had been cut in the middle of a write
            os.truncate(out, os.path.getsize(out) - random.randrange(0, 40))
    check(kills == 4 and r.returncode == 0, f"{kills} kills, exit {r.returncode}")
    want, got = ({x["custom_id"]: text_of(x) for x in read(f)} for f in (calm, out))
    check(len(read(out)) == n == len(got), f"{len(read(out))} lines for {n}")
    check(got == want, "the answers of an undisturbed run")


def refusals(p):
    src = write(p, "one.jsonl", [line(0)])
    other = write(p, "other.jsonl", ['{"a": 1}'])
    r = batch(p, src, other)
    check(r.returncode == 1 and "line 1 is not one of a batch" in r.stderr, r.stderr)
    check(open(other).read() == '{"a": 1}\n', "a file of another kind is left alone")
    check(batch(p, src, other, "--overwrite", "--quiet").returncode == 0 and len(read(other)) == 1, "unless told to")
    check("nowhere.jsonl" in batch(p, "nowhere.jsonl", other).stderr, "no such file")
    check(batch(p, src).returncode == 2 and batch(p, src, other, "--concurrency", 0).returncode == 2, "usage")
    r = batch(p, src, os.path.join(p.dir, "x.jsonl"), "--instance", "nobody")
    check(r.returncode == 1 and "nobody" in r.stderr, r.stderr)
    r = batch(p, src, os.path.join(p.dir, "y.jsonl"), "--", "--no-such-flag")
    check(r.returncode == 1 and "did not start" in r.stderr, r.stderr)
    by_url = os.path.join(p.dir, "z.jsonl")
    r = batch(p, src, by_url, "--url", p.url, "--quiet")
    check(r.returncode == 0 and read(by_url)[0]["response"]["status_code"] == 200, f"a server by its address: {r.stderr}")


def documented():
    """The lines and the command of docs/vllm.md."""
    with open(os.path.join(os.path.dirname(HERE), "docs/vllm.md")) as f:
        doc = [l.strip() for l in f]
    lines = [l for l in doc if l.startswith('{"custom_id"')]
    check(len(lines) == 2 and "build/slipring batch in.jsonl out.jsonl" in doc, "the example of docs/vllm.md")
    return lines


def set_ups():
    """The daemon as people start it: by default, by a path, with names of its own; the batch from another folder."""
    ask = documented()
    relative = os.path.relpath(MODEL)
    for words, options, names in (
            ((), (), ["SmolLM2-135M-Instruct.Q4_1"]),
            (("--served-model-name", "small"), (), ["small"]),
            (("--served-model-name", "small", "tiny one"), ("--model", MODEL), ["small", "tiny one"]),
            ((relative,), (), [relative])):
        with Programs() as p:
            p.serve(*words, *NULL)
            src = write(p, "in.jsonl", [line(0)] + [line(i, model=n) for i, n in enumerate(names, 1)] +
                        [line(8, model="another")] + (ask if "small" in names else []))
            r = batch(p, "in.jsonl", "out.jsonl", "--json", *options, cwd=p.dir)
            good = 1 + len(names) + (len(ask) if "small" in names else 0)
            check(r.returncode == 1 and r.stdout and json.loads(r.stdout)["answered"] == good, f"{words}: {r} {src}")
            bad = [x["response"] for x in read(os.path.join(p.dir, "out.jsonl")) if x["response"]["status_code"] != 200]
            check([x["status_code"] for x in bad] == [404] and "another" in bad[0]["body"]["error"]["message"], f"{bad}")


def main():
    need_model()
    set_ups()
    with Programs() as p:
        p.daemon("--model", MODEL, *NULL)
        p.adapter("--model", MODEL)
        whole(p)
        killed(p)
        refusals(p)
    done()


main()
