#!/usr/bin/env python3
"""make bench-guesses: what --speculative-config brings one stream.

    make bench-guesses [BENCH_ARGS="--models default,1b,random --rounds 7 --tasks editing,json --tokens 200"]

    --models    default: the default model, which answers as it likes; what of it repeats its prompt is printed
                1b: the shape of Llama 3.2 1B in Q4_K, whose next token is that of a table (shapes.py), so that it
                answers what guess_texts.py says; its layers compute as much as others
                random: the same shape with random weights, temperature 1
    --config    the object of --speculative-config
    --schema    instead: answers by a JSON schema, whose forced tokens need no step, beside free ones as long

Two servers, one with guesses, take turns; a ratio is of one round: the time from the first token to the last
without guesses, by that with them.  Every request has a cache salt of its own, so no prompt is cached.  Before,
token ids and log-probabilities of both are compared.  Exit: 0; 1 a floor is missed."""
import argparse, http.client, json, os, statistics as st, sys, time

ARGS = argparse.ArgumentParser(description=__doc__.split("\n")[0])
ARGS.add_argument("build")
ARGS.add_argument("--rounds", type=int, default=7)
ARGS.add_argument("--models", default="default,1b,random")
ARGS.add_argument("--tasks", default="editing,summary,json,random")
ARGS.add_argument("--tokens", type=int, default=160)
ARGS.add_argument("--type", default="Q4_K")
ARGS.add_argument("--schema", action="store_true")
ARGS.add_argument("--config", default='{"method":"ngram","num_speculative_tokens":16,"prompt_lookup_min":2,'
                                      '"prompt_lookup_max":16}')
ARGS = ARGS.parse_args()
sys.argv[1:] = [ARGS.build]
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "e2e"), HERE]
from harness import BUILD, MODEL, Programs
import guess_texts, shapes

FLOORS = {"editing": 1.8, "summary": 1.1, "json": 1.3, "random": 0.98, "schema": 1.3}
salt = missed = 0


def request_of(model, task, dictated):
    """Path and body."""
    if model == "default":
        ask = dict(guess_texts.ASKED[task])
        body = {"max_tokens": ARGS.tokens, "temperature": ask.pop("temperature", 0), "ignore_eos": True}
        if "chat" in ask:
            return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": ask.pop("chat")}]}
        return "/v1/completions", {**body, **ask}
    if model == "random":
        return "/v1/completions", {"prompt": list(range(1000, 1100)), "max_tokens": ARGS.tokens, "temperature": 1,
                                   "seed": 7, "ignore_eos": True}
    prompt, answer, _ = dictated[task]
    return "/v1/completions", {"prompt": prompt, "max_tokens": min(len(answer), ARGS.tokens), "temperature": 0,
                               "ignore_eos": True}


def salted(body):
    global salt
    salt += 1
    return {**body, "cache_salt": f"run {salt}"}


def answer_of(server, path, body):
    """(ids, log-probabilities, text)"""
    chat = "messages" in body
    c = server.post(path, salted({**body, "return_token_ids": True, "logprobs": True if chat else 1}))["choices"][0]
    if chat:
        return c["token_ids"], [x["logprob"] for x in c["logprobs"]["content"]], c["message"]["content"]
    return c["token_ids"], c["logprobs"]["token_logprobs"], c["text"]


def seconds(server, path, body):
    """From the first token to the last, and the number of those behind the first event."""
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    c.request("POST", path, json.dumps(salted({**body, "stream": True, "stream_options": {
        "include_usage": True}})), {"Content-Type": "application/json"})
    r, first, n = c.getresponse(), None, 0
    while line := r.readline():
        if line.startswith(b"data: {"):
            last = time.monotonic()
            first = first or last
            if b'"usage":{' in line:
                n = json.loads(line[6:])["usage"]["completion_tokens"]
    c.close()
    if r.status != 200 or n < 2:
        raise SystemExit(f"{path}: {r.status}, {n} tokens")
    return last - first


def counted(server):
    out = {}
    for line in server.ask("GET", "/metrics")[-1].splitlines():
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            if line.startswith(f"vllm:spec_decode_num_{name}_total"):
                out[name] = float(line.split()[-1])
    return out


def copied(task, body, ids, server):
    """The part of the answer's ids that stand in the prompt in runs of four or more."""
    text = body.get("prompt") or body["messages"][0]["content"]
    prompt = text if isinstance(text, list) else server.post("/tokenize", {"prompt": text})["tokens"]
    runs, marked = {tuple(prompt[i:i + 4]) for i in range(len(prompt) - 3)}, set()
    for i in range(len(ids) - 3):
        if tuple(ids[i:i + 4]) in runs:
            marked.update(range(i, i + 4))
    return len(marked) / len(ids)


def judge(what, ratios, floor, more=""):
    global missed
    m = st.median(ratios)
    missed += m < floor
    print(f"{what:18} {m:5.2f} ({min(ratios):.2f} .. {max(ratios):.2f})  floor {floor:g}{'' if m >= floor else '  BELOW'}"
          f"{more}", flush=True)


def measure(model, task, off, on, dictated):
    path, body = request_of(model, task, dictated)
    ids, probs, text = answer_of(off, path, body)
    again = answer_of(on, path, body)
    if (ids, probs) != again[:2]:
        raise SystemExit(f"{model}, {task}: answers differ with guesses")
    if model == "1b" and ids != dictated[task][1][:len(ids)]:
        raise SystemExit(f"{model}, {task}: the model does not say what its table dictates")
    before, ratios, took = counted(on), [], [[], []]
    for i in range(ARGS.rounds):
        pair = [0, 0]
        for j in ((0, 1), (1, 0))[i % 2]:
            pair[j] = seconds((off, on)[j], path, body)
            took[j].append(pair[j])
        ratios.append(pair[0] / pair[1])
    n = {k: (v - before.get(k, 0)) / ARGS.rounds for k, v in counted(on).items()}
    judge(f"{model} {task}", ratios, FLOORS[task],
          f"  {(len(ids) - 1) / st.median(took[0]):.1f} -> {(len(ids) - 1) / st.median(took[1]):.1f} tok/s, "
          f"{copied(task, body, ids, off):.0%} copied; {n['drafts']:.0f} rows with {n['draft_tokens']:.0f} guesses, "
          f"{n['accepted_tokens']:.0f} right, of {len(ids)} tokens")


SCHEMA = {"type": "object", "additionalProperties": False, "required": [
    "invoice_number", "customer_name", "delivery_country", "payment_method", "items_ordered", "is_paid"], "properties": {
        "invoice_number": {"type": "integer", "maximum": 99999, "minimum": 10000}, "customer_name": {"type": "string",
        "maxLength": 20}, "delivery_country": {"enum": ["Norway", "Germany", "France"]}, "payment_method": {"enum": [
            "bank transfer", "credit card"]}, "items_ordered": {"type": "integer", "minimum": 1, "maximum": 99},
        "is_paid": {"type": "boolean"}}}


def by_schema(model, server):
    """An answer by the schema, beside a free one of as many tokens.  A temperature of 1, because the random model's
    greedy answers repeat one token."""
    body = {"prompt": "An invoice: ", "temperature": 1, "seed": 3}
    guided = {**body, "max_tokens": 300, "structured_outputs": {"json": SCHEMA}}
    r = server.post("/v1/completions", guided)
    n = r["usage"]["completion_tokens"]
    json.loads(r["choices"][0]["text"])
    free = {**body, "max_tokens": n, "ignore_eos": True}
    ratios = [seconds(server, "/v1/completions", free) / seconds(server, "/v1/completions", guided)
              for _ in range(ARGS.rounds)]
    judge(f"{model} schema", ratios, FLOORS["schema"], f"  {n} tokens")


def path_of(model, follows):
    if model == "default":
        return MODEL
    path = os.path.join(BUILD, "bench", f"{'guesses' if model == '1b' else 'model'}.1B-{ARGS.type}.gguf")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shapes.write("1b", ARGS.type, path, follows=follows if model == "1b" else None)
    return path


dictated, follows = guess_texts.dictations()
for model in ARGS.models.split(","):
    serve = ("--max-model-len", 2048, "--max-num-seqs", 4, "--model", path_of(model, follows))
    with Programs() as off, Programs() as on:
        off.serve(*serve)
        if ARGS.schema:
            by_schema(model, off)
            continue
        on.serve(*serve, "--speculative-config", ARGS.config)
        for task in ARGS.tasks.split(","):
            if task in (guess_texts.ASKED if model == "default" else dictated if model == "1b" else ("random",)):
                measure(model, task, off, on, dictated)
sys.exit(missed > 0)
