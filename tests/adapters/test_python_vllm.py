#!/usr/bin/env python3
"""vLLM's offline classes over the rings give what the same server gives over HTTP: text, ids, reasons,
log-probabilities.  Argument: the server's URL; the environment is that of test_python.py."""
import asyncio
import json
import os
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "adapters", "python"))
import slipring
from slipring_vllm import LLM, AsyncLLM, RequestOutputKind, SamplingParams, StructuredOutputsParams

checks = 0


def check(ok, what):
    global checks
    checks += 1
    if not ok:
        sys.exit(f"FAILED: {what}")


def refused(call, kind, word):
    try:
        call()
    except kind as e:
        return check(word in str(e), f"{word}: {e}")
    check(False, f"not refused: {word}")


def http(path, body):
    r = urllib.request.Request(sys.argv[1] + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=60))


def over_http(prompt, **body):
    return http("/v1/completions", {"prompt": prompt, "return_token_ids": True, **body})["choices"]


PROMPTS = ["The capital of France is", "One, two, three, four,", "Once upon a time there was", "def main():\n"]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 5, "max_tokens": 24,
           "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1}


def same(out, choices, what):
    for o, c in zip(out.outputs, choices, strict=True):
        check((o.index, o.text, o.token_ids, o.finish_reason, o.stop_reason) ==
              (c["index"], c["text"], c["token_ids"], c["finish_reason"], c["stop_reason"]), f"{what}: {o} {c}")


def shapes(llm):
    outs = llm.generate(PROMPTS * 8, SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)
    check(len(outs) == 32 and [o.prompt for o in outs] == PROMPTS * 8, "many at once, in their order")
    check(all(len(o.outputs[0].token_ids) <= 3 and o.finished and o.outputs[0].finished() for o in outs), "each whole")
    check(all(a.outputs[0].text == b.outputs[0].text for a, b in zip(outs, outs[4:])), "the same in any company")
    o = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=8))[0]
    m = o.metrics
    check(m["queued"] <= m["scheduled"] <= m["first"] <= m["last"] and o.num_cached_tokens is not None, f"metrics: {m}")
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    for form in (PROMPTS[0], [PROMPTS[0]], ids, [ids], {"prompt": PROMPTS[0]}, {"prompt_token_ids": ids}):
        x = llm.generate(form, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
        check(len(x) == 1 and x[0].prompt_token_ids == ids and x[0].outputs[0].text == o.outputs[0].text, f"{form}")
    check(llm.generate([], SamplingParams()) == [], "no prompts")
    own = llm.get_default_sampling_params()
    check((own.temperature, own.top_k, own.top_p, own.min_p, own.repetition_penalty) == (0.8, 40, 0.95, 0.05, 1),
          f"what the daemon's model is sampled with: {own}")


def as_http(llm):
    for k, p in ((0, PROMPTS[0]), (9, PROMPTS[1])):
        for more in ({"temperature": 0, "max_tokens": 20}, SAMPLED, {**SAMPLED, "n": 3, "max_tokens": 9},
                     {"temperature": 0, "max_tokens": 30, "stop": [" the", ", "]},
                     {"temperature": 0, "max_tokens": 30, "stop": [","], "min_tokens": 9, "include_stop_str_in_output": True},
                     {"temperature": 0, "max_tokens": 30, "ignore_eos": True, "skip_special_tokens": False},
                     {"temperature": 0, "max_tokens": 12, "stop_token_ids": [28, 30]},
                     {"temperature": 0, "max_tokens": 12, "bad_words": ["Paris", "five"], "logit_bias": {"28": -50}},
                     {"temperature": 0, "max_tokens": 6, "allowed_token_ids": [28, 30, 100, 260]},
                     {"temperature": 0, "max_tokens": 4, "truncate_prompt_tokens": 3})[k:]:
            out = llm.generate(p, SamplingParams(**more), use_tqdm=False)[0]
            same(out, over_http(p, **more), f"{p!r} with {more}")


def scores(llm):
    out = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2))[0]
    c = over_http(PROMPTS[0], temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2)[0]
    o = out.outputs[0]
    got = [x[i].logprob for x, i in zip(o.logprobs, o.token_ids)]
    check(got == c["logprobs"]["token_logprobs"] and abs(o.cumulative_logprob - sum(got)) < 1e-6, f"{got} {c['logprobs']}")
    check([len(x) for x in o.logprobs] == [3] * 5 and all(x[i].rank == 1 for x, i in zip(o.logprobs, o.token_ids)), "greedy")
    check("".join(x[i].decoded_token for x, i in zip(o.logprobs, o.token_ids)) == o.text, "tokens by their text")
    check(out.prompt_logprobs[0] is None and len(out.prompt_logprobs) == len(out.prompt_token_ids), "the prompt's")
    for a, b in zip(out.prompt_logprobs[1:], c["prompt_logprobs"][1:]):
        check({str(i): (x.logprob, x.rank, x.decoded_token) for i, x in a.items()} ==
              {i: (x["logprob"], x["rank"], x["decoded_token"]) for i, x in b.items()}, f"{a} {b}")


def chats(llm):
    hello = [{"role": "user", "content": "Say hello."}]
    outs = llm.chat([hello, [*hello, {"role": "assistant", "content": "Hello"}]], SamplingParams(temperature=0, max_tokens=9),
                    use_tqdm=False)
    check(len(outs) == 2, "two conversations")
    a = http("/v1/chat/completions", {"messages": hello, "temperature": 0, "max_tokens": 9, "return_token_ids": True})
    check(outs[0].prompt_token_ids == a["prompt_token_ids"] and
          outs[0].outputs[0].text == a["choices"][0]["message"]["content"], f"{outs[0]} {a}")
    guided = [StructuredOutputsParams(choice=["red", "blue"]), StructuredOutputsParams(regex="[0-9]{3}"),
              StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                                            "additionalProperties": False}), StructuredOutputsParams(json_object=True)]
    outs = llm.chat([hello] * 12, [SamplingParams(temperature=0, max_tokens=60, structured_outputs=guided[i % 3])
                                   for i in range(12)], use_tqdm=False)
    for i, o in enumerate(outs):
        text = o.outputs[0].text
        check((text in ("red", "blue"), len(text) == 3 and text.isdigit(), "a" in json.loads(text) if i % 3 == 2 else 0)[i % 3],
              f"guided: {text}")


def refusals(llm):
    for more, word in (({"n": 0}, "n must"), ({"temperature": -1}, "temperature"), ({"max_tokens": 0}, "max_tokens"),
                       ({"n": 2, "temperature": 0}, "greedy"), ({"logprobs": 21}, "logprobs"), ({"stop": [""]}, "empty"),
                       ({"min_tokens": 9, "max_tokens": 3}, "min_tokens")):
        refused(lambda: SamplingParams(**more), ValueError, word)
    refused(lambda: SamplingParams(best_of=3), TypeError, "best_of")
    refused(lambda: llm.generate({"prompt": "x", "multi_modal_data": {}}), ValueError, "multi_modal_data")
    refused(lambda: llm.generate([1] * 5000), ValueError, "longer than the maximum")
    refused(lambda: llm.generate([[]]), ValueError, "cannot be empty")
    refused(lambda: llm.generate(["a", "b"], [SamplingParams()]), ValueError, "same")
    refused(lambda: llm.generate("a", SamplingParams(allowed_token_ids=[1 << 30])), slipring.Error, "request")
    refused(lambda: LLM(max_model_len=5), TypeError, "max_model_len")
    check(llm.generate("a", SamplingParams(max_tokens=2))[0].finished, "and it goes on")


async def streams():
    with AsyncLLM() as llm:
        async def one(prompt, **more):
            return [o async for o in llm.generate(prompt, SamplingParams(temperature=0, max_tokens=16, **more), prompt)]
        whole = llm.chat  # the other verbs are there, too
        check(callable(whole), "chat")
        every = await asyncio.gather(*(one(p) for p in PROMPTS), one(PROMPTS[1], stop=["four, five", "six"]),
                                     one(PROMPTS[0], output_kind=RequestOutputKind.DELTA),
                                     one(PROMPTS[0], output_kind=RequestOutputKind.FINAL_ONLY))
        for p, got in zip(PROMPTS, every):
            texts = [o.outputs[0].text for o in got]
            check(all(b.startswith(a) for a, b in zip(texts, texts[1:])) and got[-1].finished, f"cumulative: {texts}")
            check(got[0].request_id == p and len(got) > 2, "as tokens come")
            same(got[-1], over_http(p, temperature=0, max_tokens=16), p)
        texts = [o.outputs[0].text for o in every[4]]
        check(all(texts[-1].startswith(t) for t in texts), f"nothing is taken back: {texts}")
        check("".join(o.outputs[0].text for o in every[5]) == every[0][-1].outputs[0].text, "deltas add up")
        check(sum((o.outputs[0].token_ids for o in every[5]), []) == every[0][-1].outputs[0].token_ids, "ids, too")
        check(len(every[6]) == 1 and every[6][0].finished, "the last one alone")
        left = llm.generate(PROMPTS[2], SamplingParams(max_tokens=60, ignore_eos=True), "left")
        await anext(left)
        await left.aclose()
        check(not llm.changed, "nothing is kept of what is over")


def own_daemon():
    """A model that is named gets a daemon of its own, with vLLM's settings."""
    refused(lambda: LLM(os.environ["SLIPRING_MODEL"], no_such_setting=3), slipring.Error, "no-such-setting")
    with LLM(os.environ["SLIPRING_MODEL"], max_model_len=512, max_num_seqs=8, enable_prefix_caching=False) as llm:
        check(llm.session.context == 512, "its setting")
        check(llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=4))[0].outputs[0].text, "it answers")
        pid, folder = llm._daemon.process.pid, llm._daemon.dir
    check(not os.path.exists(f"/proc/{pid}") and not os.path.exists(folder), "it ends with the LLM")


with LLM() as running:
    for test in (shapes, as_http, scores, chats, refusals):
        test(running)
asyncio.run(streams())
own_daemon()
print(f"ok: {checks} checks")
