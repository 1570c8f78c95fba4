#!/usr/bin/env python3
"""make bench-guided: what a grammar costs an answer, and what its forced tokens save.

    make bench-guided [BENCH_ARGS="--rounds 7 --parts throughput,paced,neighbours,forced"]

throughput   tokens a second with every request guided, of those without, at 1, 4 and 16 clients; default model
paced        the same at 256 clients of the null device, whose step takes 50 ms whatever is asked
neighbours   the 99th percentile of inter-token times of one unguided client beside seven guided ones, of
             those beside seven unguided ones
forced       the time of a forced tool call, of that of an unguided answer of as many tokens

Each round runs all variants in turns, and a ratio is of one round.  Answers reach their length in all of
them: `schema` is a long array of objects, `regex` a long text.  Exit: 0; 1 a goal is missed."""
import argparse, json, os, statistics as st, subprocess, sys, threading, time

ARGS = argparse.ArgumentParser(description=__doc__.split("\n")[0])
ARGS.add_argument("build")
ARGS.add_argument("--rounds", type=int, default=7)
ARGS.add_argument("--parts", default="throughput,paced,neighbours,forced")
ARGS = ARGS.parse_args()
sys.argv[1:] = [ARGS.build]
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import BUILD, MODEL, Programs

ITEM = {"type": "object", "required": ["name", "kind", "n"], "properties": {
    "name": {"type": "string", "maxLength": 40}, "kind": {"enum": ["red", "green", "blue"]}, "n": {"type": "integer"}}}
GUIDES = {"free": None,
          "schema": {"structured_outputs": {"json": {"type": "array", "minItems": 1000, "items": ITEM}}},
          "regex": {"structured_outputs": {"regex": "[ -~]{100000}"}}}
TOOL = {"type": "function", "function": {"name": "get_current_weather_forecast", "strict": True, "parameters": {
    "type": "object", "additionalProperties": False,
    "properties": {"location_of_interest": {"enum": ["Paris", "Rome", "Berlin"]},
                   "temperature_unit": {"enum": ["celsius", "fahrenheit"]},
                   "number_of_days": {"type": "integer", "minimum": 1, "maximum": 9},
                   "include_precipitation": {"type": "boolean"}},
    "required": ["location_of_interest", "temperature_unit", "number_of_days", "include_precipitation"]}}}
missed = 0


def load(s, guide, clients, prompts, out=64):
    """One run of `slipring bench serve`; its JSON."""
    name = f"{threading.get_ident()}.json"
    argv = [os.path.join(BUILD, "slipring"), "bench", "serve", "--base-url", s.url, "--disable-tqdm", "--save-result",
            "--result-dir", s.dir, "--result-filename", name, "--temperature", "1", "--metric-percentiles", "50,99",
            "--random-input-len", "32", "--random-output-len", str(out), "--num-prompts", str(prompts),
            "--max-concurrency", str(clients)]
    if guide:
        argv += ["--extra-body", json.dumps(guide)]
    r = subprocess.run(argv, capture_output=True, text=True, env=s.env)
    try:
        with open(os.path.join(s.dir, name)) as f:
            j = json.load(f)
        os.unlink(os.path.join(s.dir, name))
    except OSError:
        raise SystemExit(f"slipring bench serve said:\n{r.stdout}{r.stderr}")
    if j["completed"] != prompts:
        raise SystemExit(f"{j['completed']} of {prompts} requests were answered")
    return j


def judge(what, ratios, goal, more=True):
    global missed
    m = st.median(ratios)
    ok = m >= goal if more else m <= goal
    missed += not ok
    print(f"{what}: {m:.3f} ({min(ratios):.3f} .. {max(ratios):.3f}), goal {'>=' if more else '<='} {goal}"
          f"{'' if ok else '  MISSED'}", flush=True)


def throughput(s, clients, prompts):
    v = {name: [] for name in GUIDES}
    for _ in range(ARGS.rounds):
        for name, guide in GUIDES.items():
            v[name].append(load(s, guide, clients, prompts)["output_throughput"])
    print(f"{clients} clients: " + ", ".join(f"{n} {st.median(x):.0f} tok/s" for n, x in v.items()))
    for name in ("schema", "regex"):
        judge(f"  {name} of free", [a / b for a, b in zip(v[name], v["free"])], 0.97)


def neighbours(s):
    ratio = []
    for _ in range(ARGS.rounds):
        p99 = []
        for guide in (None, GUIDES["regex"]):
            others = threading.Thread(target=load, args=(s, guide, 7, 28))
            others.start()
            time.sleep(0.3)      # they have begun
            p99.append(load(s, None, 1, 3)["p99_itl_ms"])
            others.join()
        ratio.append(p99[1] / p99[0])
    judge("p99 inter-token time beside guided answers, of that beside others", ratio, 1.02, more=False)


def forced(s):
    said = [{"role": "user", "content": "What is the weather in Paris?"}]
    name = TOOL["function"]["name"]
    ratio = []
    for _ in range(ARGS.rounds + 2):
        t = [time.monotonic()]
        r = s.post("/v1/chat/completions", {
            "messages": said, "tools": [TOOL], "temperature": 0, "max_tokens": 300,
            "tool_choice": {"type": "function", "function": {"name": name}}})
        t.append(time.monotonic())
        json.loads(r["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
        n = r["usage"]["completion_tokens"]
        free = s.post("/v1/chat/completions", {"messages": said, "max_tokens": n, "min_tokens": n, "temperature": 0})
        t.append(time.monotonic())
        if free["usage"]["completion_tokens"] != n:
            raise SystemExit("the unguided answer has another length")
        ratio.append((t[1] - t[0]) / (t[2] - t[1]))
    judge(f"a forced call of {n} tokens, of an unguided answer's time", ratio, 1.0, more=False)


parts = ARGS.parts.split(",")
if not os.path.exists(MODEL):
    raise SystemExit("the default model is not there; tools/fetch-model.sh fetches it")
if {"throughput", "neighbours", "forced"} & set(parts):
    with Programs() as s:
        s.serve("--max-num-seqs", 32, "--max-model-len", 2048)
        load(s, None, 4, 8)      # pages and caches
        if "throughput" in parts:
            for clients in (1, 4, 16):
                throughput(s, clients, max(6, 3 * clients))
        if "neighbours" in parts:
            neighbours(s)
        if "forced" in parts:
            forced(s)
if "paced" in parts:
    with Programs() as s:
        # By default prompts are cut to keep a step near 50 ms, which is all that a step of this device takes.
        s.serve("--device", "null", "--null-step-us", 50000, "--max-num-seqs", 256, "--max-model-len", 2048,
                "--step-target-ms", 1000)
        throughput(s, 256, 256)
sys.exit(missed > 0)
