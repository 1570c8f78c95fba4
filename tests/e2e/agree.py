#!/usr/bin/env python3
"""Does `slipring bench serve` measure what `vllm bench serve` measures?  By hand, for it needs vLLM:

    PEER_VLLM=/path/to/vllm PEER_TOKENIZER=DIR tests/e2e/agree.py BUILD [--rounds 6] [--prompts 100] [--rate 10]

Both take turns, round after round, with the same lengths and arrivals, against one adapter before the paced null
device, at a load that leaves the machine mostly idle.  PEER_TOKENIZER is a Hugging Face directory of the default
model, which names the adapter's vocabulary.  The table has the medians of the rounds; the exit code is 1 if
throughput, TTFT or ITL differ by more than 3 %, and 2 without vLLM.

Who goes first must not matter.  So the prefix cache is off, an uncounted run comes first (a scheduler that has
measured no prompts yet cuts them short: four times the slowest TTFT), and the rounds are even in number.  What is
left is each client's own time: its mean TTFT less what the server counted for the same requests, a row of its own.
The device is paced to a first token of some 70 ms, as a small GPU's would be, so that this is small beside it."""
import argparse, json, os, re, statistics, subprocess, sys, tempfile

ap = argparse.ArgumentParser(usage=__doc__)
ap.add_argument("build")
ap.add_argument("--rounds", type=int, default=6)
ap.add_argument("--prompts", type=int, default=100)
ap.add_argument("--rate", type=float, default=10)
ap.add_argument("--step-us", type=int, default=40000)
args = ap.parse_args()
VLLM, TOKENIZER = os.environ.get("PEER_VLLM"), os.environ.get("PEER_TOKENIZER")
if not VLLM or not TOKENIZER:
    print("no peer: PEER_VLLM and PEER_TOKENIZER are not set")
    raise SystemExit(2)
if args.rounds < 2 or args.rounds % 2:
    ap.error("--rounds: an even number, so that each goes first as often as the other")
sys.argv[1:] = [args.build]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import BUILD, MODEL, Programs, check, need_model      # noqa: E402  (reads BUILD from sys.argv)

ROWS = [("request_throughput", "Request throughput (req/s)", True),
        ("output_throughput", "Output throughput (tok/s)", True),
        ("total_input_tokens", "Total input tokens", True),
        ("total_output_tokens", "Total generated tokens", True),
        ("mean_ttft_ms", "Mean TTFT (ms)", False),
        ("own_ttft_ms", "of it the client's own", False),
        ("median_ttft_ms", "Median TTFT (ms)", True),
        ("mean_tpot_ms", "Mean TPOT (ms)", True),
        ("mean_itl_ms", "Mean ITL (ms)", True),
        ("median_itl_ms", "Median ITL (ms)", True),
        ("p99_ttft_ms", "P99 TTFT (ms)", False),
        ("p99_itl_ms", "P99 ITL (ms)", False)]


def counted(p):
    """What the server counted so far of times to a first token: their sum in ms, and how many."""
    text = p.ask("GET", "/metrics")[2]
    total, n = (float(re.search(rf"^vllm:time_to_first_token_seconds_{k}\{{.*\}} (\S+)", text, re.M)[1])
                for k in ("sum", "count"))
    return 1000 * total, n


def measure(tool, p, folder, tokenizer, round_):
    """One run of one tool: its result file, and the lines of its block."""
    name = os.path.join(folder, "result.json")
    if os.path.exists(name):
        os.unlink(name)
    sum0, n0 = counted(p)
    out = subprocess.run(
        [*tool, "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{p.port}", "--model", "m",
         "--tokenizer", tokenizer, "--dataset-name", "random", "--random-input-len", "128", "--random-output-len",
         "64", "--random-range-ratio", "0.3", "--num-prompts", str(args.prompts), "--request-rate", str(args.rate),
         "--seed", str(round_), "--temperature", "0", "--save-result", "--result-dir", folder, "--result-filename",
         "result.json"], capture_output=True, text=True, timeout=300,
        env=dict(os.environ, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1"))
    check(out.returncode == 0, f"{tool[-1]} bench serve ends with 0: {out.stdout[-500:]}{out.stderr[-500:]}")
    with open(name) as f:
        r = json.load(f)
    check(r["completed"] == args.prompts, f"all {args.prompts} requests succeed, not {r['completed']}")
    sum1, n1 = counted(p)
    r["own_ttft_ms"] = r["mean_ttft_ms"] - (sum1 - sum0) / (n1 - n0)
    return r, [line.split(":")[0] for line in out.stdout.splitlines() if ":" in line or "===" in line or "---" in line]


def block(lines):
    """The printed block: from its title to its last rule."""
    first = next(i for i, line in enumerate(lines) if "Serving Benchmark Result" in line)
    last = next(i for i in range(first + 1, len(lines)) if lines[i].startswith("====="))
    return lines[first:last + 1]


need_model()
with Programs() as p, tempfile.TemporaryDirectory() as folder:
    p.daemon("--device", "null", "--null-step-us", args.step_us, "--null-token-us", 20, "--model", MODEL,
             "--no-enable-prefix-caching")
    p.adapter("--model", MODEL, "--served-model-name", "m")
    tools = {"vllm": ([VLLM], TOKENIZER), "slipring": ([os.path.join(BUILD, "slipring")], MODEL)}
    got = {t: [] for t in tools}
    measure(tools["slipring"][0], p, folder, MODEL, args.rounds)
    for i in range(args.rounds):
        blocks = {}
        for t in list(tools) if i % 2 == 0 else list(tools)[::-1]:
            r, lines = measure(tools[t][0], p, folder, tools[t][1], i)
            got[t].append(r)
            blocks[t] = block(lines)
            print(f"round {i + 1} of {args.rounds}: {t}: TTFT {r['mean_ttft_ms']:.2f} ms, "
                  f"ITL {r['mean_itl_ms']:.2f} ms, {r['output_throughput']:.2f} tok/s", flush=True)
        check(blocks["vllm"] == blocks["slipring"], f"the same lines are printed:\n{blocks}")

worst = 0
print(f"\n| | `vllm bench serve` | `slipring bench serve` | difference |\n|---|---|---|---|")
for key, label, held in ROWS:
    a, b = (statistics.median(r[key] for r in got[t]) for t in ("vllm", "slipring"))
    d = 100 * (b / a - 1)
    worst = max(worst, abs(d)) if held else worst
    print(f"| {label} | {a:.2f} | {b:.2f} | {d:+.1f} %{'' if held else ' (not held)'} |")
print(f"\nlargest difference {worst:.1f} % (3 % allowed)")
raise SystemExit(worst > 3)
