#!/usr/bin/env python3
"""Token ids in and out: the render routes, /inference/v1/generate, --tokens-only; what a request renders to gives the
same answer as the request."""
from harness import *

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}], "max_tokens": 12,
        "temperature": 0}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "big": {"type": "boolean"}},
          "required": ["city", "big"], "additionalProperties": False}


def render(p):
    r = p.post("/v1/chat/completions/render", CHAT)
    check(r["request_id"].startswith("chatcmpl-") and r["features"] is None and r["output_mode"] == "tokens", f"{r}")
    check(r["sampling_params"]["max_tokens"] == 12 and r["sampling_params"]["temperature"] == 0, f"{r}")
    same = p.post("/tokenize", {"messages": CHAT["messages"], "add_generation_prompt": True})
    check(r["token_ids"] == same["tokens"], "the ids are those of /tokenize")
    two = p.post("/v1/completions/render", {"prompt": [[504], [504, 6376]], "max_tokens": 8, "temperature": 0})
    check([x["token_ids"] for x in two] == [[504], [504, 6376]] and two[0]["request_id"].endswith("-0"), f"{two}")
    check(p.post("/v1/completions/render", {"prompt": "x"})[0]["sampling_params"]["max_tokens"] == 16, "a list of one")
    for path, body in (("/v1/messages/render", {"model": r["model"], "max_tokens": 12, "system": "Be brief.",
                                                "messages": CHAT["messages"][1:]}),
                       ("/v1/responses/render", {"input": "hi", "instructions": "Be brief."})):
        check(p.post(path, body)["token_ids"] == r["token_ids"], f"{path} gives the same ids")
    for path, body, status, say in (
            ("/v1/completions/render", {"prompt": "x", "model": "nope"}, 404, "does not exist"),
            ("/v1/completions/render", {"prompt": "x", "echo": True}, 400, "cannot be rendered"),
            ("/v1/completions/render", {"prompt": [1] * 600}, 400, "context length"),
            ("/v1/chat/completions/render", {"messages": 5}, 400, "messages")):
        s, _, text = p.ask("POST", path, body)
        check(s == status and say in text, f"{path} {str(body)[:60]}: {s} {text}")


def roundtrip(p):
    """The answer to what a request renders to is the answer to the request."""
    for more in ({}, {"temperature": 0.9, "seed": 7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "presence_penalty": 0.5},
                 {"stop": ["e"], "include_stop_str_in_output": True}, {"stop_token_ids": [28], "min_tokens": 3},
                 {"logit_bias": {"504": 50}}, {"bad_words": ["the"], "ignore_eos": True},
                 {"allowed_token_ids": [504, 3575, 282]}, {"structured_outputs": {"regex": "[ab]{3,5}"}},
                 {"structured_outputs": {"choice": [" yes", " no"]}}, {"structured_outputs": {"json": SCHEMA}},
                 {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
                 {"n": 2, "seed": 3, "temperature": 1}):
        body = {"prompt": "The capital of France is", "max_tokens": 10, "temperature": 0, "return_token_ids": True, **more}
        direct = [c["token_ids"] for c in p.post("/v1/completions", body)["choices"]]
        rendered = p.post("/v1/completions/render", body)[0]
        tokens = p.post("/inference/v1/generate", rendered)
        check([c["token_ids"] for c in tokens["choices"]] == direct, f"{more}: {tokens['choices']} for {direct}")
        check(tokens["prompt_token_ids"] == rendered["token_ids"], "and the prompt, since it asked for ids")
    chat = p.post("/v1/chat/completions", {**CHAT, "return_token_ids": True})
    again = p.post("/inference/v1/generate", p.post("/v1/chat/completions/render", CHAT))
    check(again["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"], "a chat, too")


def generate(p):
    ask = {"token_ids": [504, 3575], "sampling_params": {"max_tokens": 4, "temperature": 0, "logprobs": 2}}
    r = p.post("/inference/v1/generate", ask)
    c = r["choices"][0]
    check(r["request_id"].startswith("generate-tokens-") and r["output_mode"] == "tokens", f"{r}")
    check(r["usage"]["prompt_tokens"] == 2 and r["usage"]["completion_tokens"] == 4, f"{r['usage']}")
    check(r["prompt_token_ids"] is None and c["finish_reason"] == "length", f"{r}")
    scores = c["logprobs"]["content"]
    check([s["token_id"] for s in scores] == c["token_ids"], "log-probabilities have ids")
    check(all(s["rank"] == 1 and s["top_logprobs"][0]["token_id"] == s["token_id"] and len(s["top_logprobs"]) == 2 and
              s["top_logprobs"][1]["rank"] == 2 for s in scores), f"{scores}")
    check(c["weight_versions"] == [{"version": "default", "start": 0, "end": 4}], f"{c}")
    status, events = p.stream("/inference/v1/generate", {**ask, "return_token_ids": True,
                                                         "stream_options": {"include_usage": True}})
    check(status == 200 and events[-1] is None and events[-2]["usage"]["completion_tokens"] == 4, f"{events}")
    check(sum((e["choices"][0]["token_ids"] for e in events[:-2]), []) == c["token_ids"], "a stream has the same ids")
    check(events[0]["prompt_token_ids"] == [504, 3575] and all("prompt_token_ids" not in e for e in events[1:-1]),
          "the prompt comes once")
    check(sum((e["choices"][0]["logprobs"]["content"] for e in events[:-2]), []) == scores, "and the same scores")
    check(len(p.post("/inference/v1/generate", {"token_ids": [504], "sampling_params": {"n": 2, "max_tokens": 2}})
              ["choices"]) == 2, "two answers")
    long = p.post("/inference/v1/generate", {"token_ids": [504], "sampling_params": {"ignore_eos": True, "temperature": 0}})
    check(long["usage"]["completion_tokens"] == 127, "without max_tokens it goes on to the context's end")
    for body, say in (({"sampling_params": {}}, "token_ids"), ({"token_ids": [], "sampling_params": {}}, "at least one"),
                      ({"token_ids": [-1], "sampling_params": {}}, "negative"), ({"token_ids": [1]}, "sampling_params"),
                      ({"token_ids": [10 ** 6], "sampling_params": {}}, "out of vocabulary"),
                      ({"token_ids": [1], "sampling_params": {"best": 1}}, "sampling_params.best is not supported"),
                      ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
                      ({"token_ids": [1], "sampling_params": {"skip_reading_prefix_cache": True}}, "cache_salt"),
                      ({"token_ids": [1], "sampling_params": {}, "features": {"a": 1}}, "features is not supported"),
                      ({"token_ids": [1], "sampling_params": {}, "output_mode": "text"}, "output_mode"),
                      ({"token_ids": [1], "sampling_params": {}, "kv_transfer_params": {"a": 1}}, "kv_transfer_params")):
        s, _, text = p.ask("POST", "/inference/v1/generate", body)
        check(s == 400 and say in text, f"{body}: {s} {text}")


def alone(p):
    """--tokens-only: no text goes in or out."""
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/completions/render", "/v1/messages"):
        check(p.ask("POST", path, {"prompt": "x"})[0] == 404, f"{path} is not there")
    r = p.post("/inference/v1/generate", {"token_ids": [504, 3575], "sampling_params": {"max_tokens": 2}})
    check(len(r["choices"][0]["token_ids"]) == 2, "ids are answered")
    check(p.ask("GET", "/health")[0] == 200 and p.ask("GET", "/v1/models")[0] == 200, "and probes")


need_model()
with Programs() as p:
    p.daemon("--max-model-len", 128, "--max-num-seqs", 4)
    p.adapter()
    render(p)
    roundtrip(p)
    generate(p)
    http = p.procs["slipring-http"]
    http.terminate()
    http.wait(10)
    p.adapter("--tokens-only")
    alone(p)
done()
