#!/usr/bin/env python3
"""By hand: slipring tune against an exhaustive grid.  usage: tests/e2e/tune_grid.py [build] [--model] [--grid FILE [tune]]

A daemon on the paced null device (--model: the default model on the CPU) starts with max-num-seqs 2,
max-num-batched-tokens 64 and no prefix cache, and gets traffic with shared prefixes.  Every cell of the
grid is a daemon of its own, started with the cell's flags, that gets the same traffic once; its start is
not counted.  Then tune searches, and what it found and the grid's best are measured in turns.
--grid FILE: measure the grid, keep it in FILE and end; with "tune", go on from it."""
import itertools, json, statistics, subprocess, time
from harness import *

REAL = "--model" in sys.argv
KEPT = sys.argv[sys.argv.index("--grid") + 1] if "--grid" in sys.argv else None
PACE = [MODEL] if REAL else ["--device", "null", "--null-step-us", "2000", "--null-token-us", "20"]
SEQS, TOKENS, CACHE = ([2, 4, 8, 16, 32] if REAL else [2, 4, 8, 16, 32, 64]), \
    ([64, 256, 1024] if REAL else [64, 128, 256, 512, 1024, 2048, 4096, 8192]), [0, 1]
N = 24 if REAL else 64
TRAFFIC = ["--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "4",
           "--prefix-repetition-prefix-len", "128" if REAL else "256", "--prefix-repetition-suffix-len", "32" if REAL else "64",
           "--prefix-repetition-output-len", "32", "--ignore-eos", "--num-prompts", str(N)]


def slipring(p, *args, codes=(0,)):
    r = subprocess.run([os.path.join(BUILD, "slipring"), *map(str, args)], env=p.env, cwd=p.dir, capture_output=True, text=True)
    check(r.returncode in codes, f"{args}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r.stdout


def cell(seqs, tokens, cache):
    """(tokens/s, seconds) of the whole traffic on a daemon of this cell's own."""
    with Programs() as p:
        p.daemon(*PACE, "--max-num-seqs", seqs, "--max-num-batched-tokens", tokens,
                 "--enable-prefix-caching" if cache else "--no-enable-prefix-caching")
        slipring(p, "bench", "serve", "--transport", "ring", "--disable-tqdm", "--save-result", "--result-filename", "r.json",
                 *TRAFFIC)
        with open(os.path.join(p.dir, "r.json")) as f:
            d = json.load(f)
        return d["output_throughput"], d["duration"]


def measure_grid():
    grid, spent = {}, 0
    for seqs, tokens, cache in itertools.product(SEQS, TOKENS, CACHE):
        if tokens >= seqs:
            grid[seqs, tokens, cache], took = cell(seqs, tokens, cache)
            spent += took
    return grid, spent


def main():
    need_model()
    if KEPT and os.path.exists(KEPT):
        with open(KEPT) as f:
            cells, spent = json.load(f)
        grid = {tuple(k): v for k, v in cells}
    else:
        grid, spent = measure_grid()
        if KEPT:
            with open(KEPT, "w") as f:
                json.dump([list(grid.items()), spent], f)
    top = max(grid, key=grid.get)
    print(f"grid: {len(grid)} cells, {spent:.1f} s of traffic; best {top}: {grid[top]:.1f} tok/s; "
          f"worst {min(grid, key=grid.get)}: {min(grid.values()):.1f}", flush=True)
    if KEPT and "tune" not in sys.argv:
        return
    with Programs() as p:
        p.env["XDG_STATE_HOME"] = os.path.join(p.dir, "state")
        p.daemon(*PACE, "--max-num-seqs", 2, "--max-num-batched-tokens", 64, "--no-enable-prefix-caching",
                 "--knob-ceiling", f"max-num-seqs={SEQS[-1]},max-num-batched-tokens={TOKENS[-1]}")
        t0 = time.monotonic()
        print(slipring(p, "tune", *TRAFFIC))
        took = time.monotonic() - t0
        restarts = p.log("slipringd").count("Ready after") - 1
        print(slipring(p, "tune", "--prove", "slipring-tune"))
        with open(os.path.join(p.dir, "slipring-tune/tune.json")) as f:
            d = json.load(f)
    s = d["trials"][d["best"]]["setting"]
    found = s["max-num-seqs"], s["max-num-batched-tokens"], s["enable-prefix-caching"]
    pairs = [(cell(*top)[0], cell(*found)[0]) for _ in range(5)]
    share = statistics.mean(b for _, b in pairs) / statistics.mean(a for a, _ in pairs)
    print(f"tune: {found}, {share:.1%} of the grid's best (5 pairs in turns), {took:.1f} s = {took / spent:.1%} of the grid's "
          f"time, {restarts} restarts")
    with Programs() as p:
        p.env["XDG_STATE_HOME"] = os.path.join(p.dir, "state")
        p.daemon(*PACE, "--max-num-seqs", top[0], "--max-num-batched-tokens", top[1],
                 "--enable-prefix-caching" if top[2] else "--no-enable-prefix-caching")
        out = slipring(p, "tune", *TRAFFIC)
        print(out)
        alone = "nothing is changed" in out
    check(d["verdict"] == "better", "it is better")
    check(share >= 0.95, "at least 95 % of the best")
    check(took < spent / 4, "in under a quarter of the time")
    check(restarts == 0, "without a restart")
    check(alone, "the best is left alone")
    done()


main()
