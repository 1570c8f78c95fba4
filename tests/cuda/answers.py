#!/usr/bin/env python3
"""The default model's greedy answers on a GPU: tests/cuda/answers.py BUILD [DEVICE], by tools/gpu-check.sh.
Held to the same reference as the CPU's (tests/e2e/e2e_answers.py): how often the first token agrees, and its
log-probability; bf16 sums may part two answers later, at a near tie."""
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e"))
from harness import HERE, Programs, check, done, need_model      # noqa: E402

need_model()
with open(os.path.join(HERE, "data/reference_greedy.jsonl")) as f:
    greedy = [json.loads(line) for line in f]
first, same, delta = 0, 0, []
with Programs() as p:
    p.serve("--device", sys.argv[2] if len(sys.argv) > 2 else "cuda", "--max-model-len", 4096)
    for g in greedy:
        c = p.post("/v1/completions", {"prompt": g["ids"], "max_tokens": 32, "temperature": 0, "logprobs": 10,
                                       "return_token_ids": True, "ignore_eos": True})["choices"][0]
        first += c["token_ids"][0] == g["greedy"][0]
        same += c["token_ids"] == g["greedy"]
        want = dict(zip(g["top_ids"], g["top_logprobs"])).get(c["token_ids"][0])
        if want is not None:
            delta.append(abs(c["logprobs"]["token_logprobs"][0] - want))
check(first >= .9 * len(greedy), f"the first token agrees: {first} of {len(greedy)}")
mean = sum(delta) / len(delta)
check(mean <= 0.15, f"mean |difference of log-probability| {mean:.4f} <= 0.15")
print(f"first tokens {first}/{len(greedy)}, all 32 {same}/{len(greedy)}, mean |dlogp| {mean:.4f}")
done()
