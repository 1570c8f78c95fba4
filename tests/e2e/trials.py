#!/usr/bin/env python3
"""Does `slipring compare` say "same" of the same, and find 5 per cent?  By hand, on a quiet machine:

    tests/e2e/trials.py BUILD [--trials 20] [--prompts 150]

Three daemons with the paced null device, one of them 5 % slower; in each trial one detailed run on each,
in turns; then the two that are the same are compared, and one of them with the slower.  The exit code
is 1 unless at least 19 of 20 verdicts of each kind are right."""
import argparse, json, os, subprocess, sys

ap = argparse.ArgumentParser(usage=__doc__)
ap.add_argument("build")
ap.add_argument("--trials", type=int, default=20)
ap.add_argument("--prompts", type=int, default=150)
ap.add_argument("--step-us", type=int, default=4000)
args = ap.parse_args()
sys.argv[1:] = [args.build]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import BUILD, Programs, check, need_model      # noqa: E402  (reads BUILD from sys.argv)

LOAD = ["--transport", "ring", "--num-prompts", str(args.prompts), "--random-input-len", "16", "--random-output-len",
        "32", "--random-range-ratio", "0.5", "--max-concurrency", "16", "--temperature", "0", "--save-result",
        "--save-detailed", "--disable-tqdm"]


def slipring(p, *words):
    return subprocess.run([os.path.join(BUILD, "slipring"), *words], env=p.env, cwd=p.dir, capture_output=True, text=True)


need_model()                                      # for its vocabulary alone
with Programs() as a, Programs() as same, Programs() as slow:
    for p, step in ((a, args.step_us), (same, args.step_us), (slow, args.step_us * 1.05)):
        p.daemon("--device", "null", "--null-step-us", step, "--null-token-us", 0)
    tally = {"same": [], "slower": []}
    for trial in range(args.trials):
        for p in (a, same, slow):
            r = slipring(p, "bench", "serve", *LOAD, "--result-filename", "run.json")
            check(r.returncode == 0, r.stderr)
        for kind, other in (("same", same), ("slower", slow)):
            r = slipring(a, "compare", "--json", "run.json", os.path.join(other.dir, "run.json"))
            d = json.loads(r.stdout)
            tally[kind].append(d["verdict"])
            if d["verdict"] != ("same" if kind == "same" else "worse"):
                print(f"trial {trial}, {kind}: {d['says']}", flush=True)
    for kind, verdicts in tally.items():
        words = ", ".join(f"{w} {verdicts.count(w)}" for w in sorted(set(verdicts)))
        print(f"{kind:7} of {len(verdicts)}: {words}")
    ok = (tally["same"].count("same") * 20 >= 19 * args.trials and
          tally["slower"].count("worse") * 20 >= 19 * args.trials)
raise SystemExit(0 if ok else 1)
