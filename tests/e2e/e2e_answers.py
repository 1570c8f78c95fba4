#!/usr/bin/env python3
"""Real answers of the default model, over HTTP: held to reference answers, and the same whatever the
company, the chunking, the prefix cache and the number of threads.

tests/data/reference_greedy.jsonl and reference_nll.json were made with transformers in float32 from the
dequantized weights of the default model (ids, the ten most likely next tokens, the greedy continuation)."""
import json, os
from harness import *

GREEDY = [json.loads(l) for l in open(os.path.join(HERE, "data/reference_greedy.jsonl"))]
NLL = json.load(open(os.path.join(HERE, "data/reference_nll.json")))


def completion(p, ids, **more):
    body = {"prompt": ids, "temperature": 0, "return_token_ids": True, "ignore_eos": True, **more}
    return p.post("/v1/completions", body)["choices"][0]


def reference(p, mean_bound, nll_bound):
    first, delta = 0, []
    for g in GREEDY:
        c = completion(p, g["ids"], max_tokens=8, logprobs=10)
        first += c["token_ids"][0] == g["greedy"][0]
        want = dict(zip(g["top_ids"], g["top_logprobs"])).get(c["token_ids"][0])
        if want is not None:
            delta.append(abs(c["logprobs"]["token_logprobs"][0] - want))
    check(first >= .9 * len(GREEDY), f"the first token agrees: {first} of {len(GREEDY)}")
    mean = sum(delta) / len(delta)
    check(mean <= mean_bound, f"mean |difference of log-probability| {mean:.4f} <= {mean_bound}")
    lp = p.post("/v1/completions", {"prompt": NLL["ids"], "max_tokens": 0, "temperature": 0, "echo": True,
                                    "logprobs": 1})["choices"][0]["logprobs"]["token_logprobs"]
    check(lp[0] is None and len(lp) == len(NLL["ids"]), "echo scores every token but the first")
    nll = -sum(lp[1:]) / (len(lp) - 1)
    check(abs(nll / NLL["nll"] - 1) <= nll_bound, f"nll {nll:.4f}, reference {NLL['nll']:.4f}")
    print(f"first {first}/{len(GREEDY)}, mean |dlogp| {mean:.4f}, nll {nll:.4f} for {NLL['nll']:.4f}")


def sampled(p, i, **more):
    """A request that depends on everything: a seed, cuts, penalties, log-probabilities."""
    g = GREEDY[i % len(GREEDY)]
    c = p.post("/v1/completions", {"prompt": g["ids"], "max_tokens": 16, "temperature": 0.9, "top_p": 0.95,
                                   "top_k": 50, "seed": 1000 + i, "frequency_penalty": 0.2, "logprobs": 2,
                                   "return_token_ids": True, "ignore_eos": True, **more})["choices"][0]
    return c["token_ids"], c["logprobs"]["token_logprobs"]


def main():
    need_model()
    want = []
    with Programs() as p:
        p.serve("--max-model-len", 4096)
        reference(p, 0.15, 0.01)
        want = [sampled(p, i, cache_salt=f"alone {i}") for i in range(8)]
        many = p.together(32, lambda i: sampled(p, i % 8, cache_salt=f"among others {i}"))
        for i, got in enumerate(many):
            check(got == want[i % 8], f"request {i % 8} among 31 others: bit-equal to alone")
        cached = [sampled(p, i) for i in range(8)] and [sampled(p, i) for i in range(8)]
        check(cached == want, "with its prefix cached: bit-equal")
    with Programs() as p:
        p.serve("--max-model-len", 4096, "--max-num-batched-tokens", 64, "--max-num-seqs", 4, "--threads", 1,
                "--no-enable-prefix-caching")
        check([sampled(p, i) for i in range(8)] == want, "chunks of 64, one thread, no cache: bit-equal")
    done()


main()
