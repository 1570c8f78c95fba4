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


def repeated(p, g, i):
    """A long answer, greedy or drawn, with alternatives; every second one with penalties."""
    c = p.post("/v1/completions", {"prompt": g["ids"], "max_tokens": 48, "temperature": 0.7 if i >= 4 else 0, "seed": i,
                                   "frequency_penalty": 0.1 if i % 2 else 0, "logprobs": 3, "return_token_ids": True,
                                   "ignore_eos": True})["choices"][0]
    return c["token_ids"], c["logprobs"]["token_logprobs"], c["logprobs"]["top_logprobs"]


def stopped(p, g, i):
    """Ends by a text that lies across tokens of an answer which repeats itself: the last letters of one word and the
    first of the next; with min_tokens at its second place or later."""
    free = completion(p, g["ids"], max_tokens=40, temperature=0)
    words = free["text"].split(" ")
    stop = words[len(words) // 2][-2:] + " " + words[len(words) // 2 + 1][:2]
    c = completion(p, g["ids"], max_tokens=40, stop=[stop], min_tokens=20 if i % 2 else 0, logprobs=1,
                   include_stop_str_in_output=i % 4 > 1)
    check(c["finish_reason"] == ("stop" if stop in free["text"] and i % 2 == 0 else c["finish_reason"]),
          f"{stop!r} ends {free['text']!r}")
    return c["text"], c["token_ids"], c["logprobs"]["token_logprobs"], c["finish_reason"], c["stop_reason"]


def metrics(p):
    body = p.ask("GET", "/metrics")[-1]
    return body.decode() if isinstance(body, bytes) else body


def count(p, name, label=""):
    """A counter, from /metrics."""
    for line in metrics(p).splitlines():
        if line.startswith(name + "{") and label in line:
            return int(float(line.split()[-1]))
    check(False, f"/metrics has {name} {label}")


def how_it_ends(p):
    """A stop id that is ordinary text: the token counts, its text is not in the answer unless asked for."""
    g = GREEDY[0]
    free = completion(p, g["ids"], max_tokens=12)
    at = next(i for i in range(2, 12) if free["token_ids"][i] not in free["token_ids"][:i])
    stop, before = free["token_ids"][at], free["token_ids"][:at]

    def ends(max_tokens=12, **more):
        """The answer whole; the same in events, put together."""
        body = {"max_tokens": max_tokens, **more}
        c = completion(p, g["ids"], **body)
        status, events = p.stream("/v1/completions", {"prompt": g["ids"], "temperature": 0, "return_token_ids": True,
                                                      "ignore_eos": True, **body})
        parts = [e["choices"][0] for e in events if e and e["choices"]]
        check([x["finish_reason"] for x in parts[:-1]] == [None] * (len(parts) - 1), "only the last event has a reason")
        got = ("".join(x["text"] for x in parts), sum((x["token_ids"] or [] for x in parts), []),
               parts[-1]["finish_reason"], parts[-1]["stop_reason"])
        want = (c["text"], c["token_ids"], c["finish_reason"], c["stop_reason"])
        check(status == 200 and got == want, f"in events {got}, whole {want}")
        return want

    short = completion(p, g["ids"], max_tokens=at)["text"]
    longer = completion(p, g["ids"], max_tokens=at + 1)["text"]
    check(short != longer and longer.startswith(short), f"an id with text: {short!r}, {longer!r}")
    check(ends(stop_token_ids=[stop]) == (short, before + [stop], "stop", stop), "the stop id adds no text")
    check(ends(stop_token_ids=[stop], include_stop_str_in_output=True) == (longer, before + [stop], "stop", stop),
          "unless it is to be included")
    check(ends(at + 1) == (longer, before + [stop], "length", None), "the last of max_tokens adds its text")
    check(ends(at + 1, stop_token_ids=[stop]) == (short, before + [stop], "stop", stop), "a stop id there stops")
    held = ends(stop_token_ids=[stop], min_tokens=at + 1)
    check(held[1][:at] == before and held[1][at] != stop, f"before min_tokens it is not drawn: {held}")


def main():
    need_model()
    want = []
    with Programs() as p:
        p.serve("--max-model-len", 4096)
        reference(p, 0.15, 0.01)
        how_it_ends(p)
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
    with Programs() as p:
        p.serve("--max-model-len", 4096, "--speculative-config",
                '{"method":"ngram","num_speculative_tokens":6,"prompt_lookup_min":1,"prompt_lookup_max":8}')
        how_it_ends(p)
        check([sampled(p, i, cache_salt=f"guessed {i}") for i in range(8)] == want, "with guesses: bit-equal")
        # an answer that repeats its prompt: guesses are right, also beside others, where they may be too dear
        again = [{"ids": GREEDY[i]["ids"] * 3} for i in range(4)]
        alone = [repeated(p, again[i % 4], i) for i in range(8)]
        guessed = p.together(8, lambda i: repeated(p, again[i % 4], i))
        check(alone == guessed, "with guesses alone and beside others: bit-equal")
        stops = [stopped(p, again[i % 4], i) for i in range(8)]
        def rights():
            return count(p, "vllm:spec_decode_num_accepted_tokens_total")
        # whether guesses are worth while is measured, and a busy machine may say no for a while
        wait_for(lambda: rights() > 10 or not repeated(p, again[0], 0), 20)
        right = rights()
        check(right > 0, f"{right} guesses were right")
        places = [count(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", f'position="{i}"') for i in range(6)]
        check(sum(places) == right and places == sorted(places, reverse=True), f"by their place {places}, in all {right}")
        check(0 < count(p, "vllm:spec_decode_num_drafts_total") <= count(p, "vllm:spec_decode_num_draft_tokens_total"),
              "each row with guesses has one")
    with Programs() as p:
        p.serve("--max-model-len", 4096)
        check([repeated(p, again[i % 4], i) for i in range(8)] == guessed, "and without: bit-equal")
        check([stopped(p, again[i % 4], i) for i in range(8)] == stops, "stop strings and min_tokens, too")
        check("spec_decode" not in metrics(p), "without guesses vLLM has no metrics of them")
    done()


main()
