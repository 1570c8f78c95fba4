#!/usr/bin/env python3
"""Answers that keep to a grammar, over HTTP: every kind of constraint, streamed and whole, with n, seeds,
log-probabilities, stop strings and short limits; random schemas judged by jsonschema; hostile schemas; a client
that leaves and a daemon that restarts."""
import json, math, random, re, signal, socket, sys, time
from harness import *

try:
    import jsonschema
except ImportError:
    jsonschema = None
    print("SKIP: random schemas are not judged: python3-jsonschema is not installed")

CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]},
                                         "big": {"type": "boolean"}},
        "required": ["city", "big"], "additionalProperties": False}
EBNF = 'root ::= city " is " ("big" | "small")\ncity ::= "Paris" | "Rome"\n'
LARK = 'start: CITY " is " size\nCITY: "Paris" | "Rome"\nsize: "big" | "small"\n'
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<answer>", "end": "</answer>",
                                            "content": {"type": "json_schema", "json_schema": CITY}}}


def is_city(t):
    v = json.loads(t)
    return list(v) == ["city", "big"] and v["city"] in ("Paris", "Rome") and isinstance(v["big"], bool)


def matches(pattern):
    return lambda t: re.fullmatch(pattern, t, re.S) is not None


SENTENCE = matches("(Paris|Rome) is (big|small)")
KINDS = [  # name, fields of the request, what the whole text must be
    ("json", {"structured_outputs": {"json": CITY}}, is_city),
    ("json as text", {"structured_outputs": {"json": json.dumps(CITY)}}, is_city),
    ("json_schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}}, is_city),
    ("regex", {"structured_outputs": {"regex": "[A-Z][a-z]{2,5}!"}}, matches("[A-Z][a-z]{2,5}!")),
    ("choice", {"structured_outputs": {"choice": ["Rome", "Paris", "Paris, France"]}},
     lambda t: t in ("Rome", "Paris", "Paris, France")),
    ("ebnf", {"structured_outputs": {"grammar": EBNF}}, SENTENCE),
    ("lark", {"structured_outputs": {"grammar": LARK}}, SENTENCE),
    ("tag", {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
     lambda t: t.startswith("<answer>") and t.endswith("</answer>") and is_city(t[8:-9])),
    ("guided_json", {"guided_json": CITY}, is_city),
    ("guided_choice", {"guided_choice": ["Rome", "Oslo"]}, lambda t: t in ("Rome", "Oslo")),
]


def chat(**more):
    return {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 64,
            "temperature": 0, **more}


def prompt(**more):
    return {"prompt": "The capital of France is", "max_tokens": 64, "temperature": 0, **more}


def streamed(p, path, body):
    """(text, finish_reason) of a streamed answer's first choice."""
    status, events = p.stream(path, body)
    check(status == 200 and events[-1] is None, f"{path} streams: {status} {str(events)[:300]}")
    cs = [c for e in events if e for c in e["choices"]]
    text = "".join(c.get("text") or (c.get("delta") or {}).get("content") or "" for c in cs)
    return text, cs[-1]["finish_reason"]


def kinds(p):
    for name, more, right in KINDS:
        c = p.post("/v1/chat/completions", chat(**more))["choices"][0]
        check(c["finish_reason"] == "stop" and right(c["message"]["content"]), f"chat {name}: {c['message']['content']!r}")
        check(streamed(p, "/v1/chat/completions", chat(**more)) == (c["message"]["content"], "stop"), f"{name}, streamed")
        c = p.post("/v1/completions", prompt(**more))["choices"][0]
        check(c["finish_reason"] == "stop" and right(c["text"]), f"completion {name}: {c['text']!r}")
    c = p.post("/v1/chat/completions", chat(response_format={"type": "json_object"}, max_tokens=20))["choices"][0]
    check(c["message"]["content"].startswith("{"), "json_object begins with {")
    c = p.post("/v1/chat/completions", chat(response_format={"type": "text"}, max_tokens=4))["choices"][0]
    check(c["finish_reason"] == "length", "text is free")


def interplay(p):
    def one(path="/v1/completions", **more):
        return p.post(path, prompt(**more) if path == "/v1/completions" else chat(**more))

    two = {"choice": [" Rome", " Paris"]}
    a = one(structured_outputs=two)
    check(a["usage"]["completion_tokens"] == 2, f"the end-of-sequence token counts: {a['usage']}")
    c = one("/v1/chat/completions", structured_outputs={"choice": ["Rome", "Paris"]}, logprobs=True, top_logprobs=20)
    lp = c["choices"][0]["logprobs"]["content"]
    ids = {t["token"]: t["logprob"] for t in lp[0]["top_logprobs"]}
    check(abs(sum(math.exp(v) for v in ids.values()) - 1) < 1e-3, f"after the mask the choices are all there is: {ids}")
    check(lp[-1]["logprob"] == 0, "what was forced has log-probability 0")
    c = one(structured_outputs={"regex": " alpha, beta, gamma"}, stop=["beta"])["choices"][0]
    check((c["text"], c["finish_reason"], c["stop_reason"]) == (" alpha, ", "stop", "beta"), f"stop string: {c}")
    c = one(structured_outputs={"regex": "[a-z]{40}"}, max_tokens=3)["choices"][0]
    check(c["finish_reason"] == "length" and re.fullmatch("[a-z]{1,40}", c["text"]), "max_tokens cuts")
    c = one(structured_outputs={"choice": [" Rome"]}, ignore_eos=True, max_tokens=9)["choices"][0]
    check((c["text"], c["finish_reason"]) == (" Rome", "stop"), f"a complete grammar ends the answer: {c}")
    c = one(structured_outputs={"choice": [" Rome"]}, min_tokens=6, max_tokens=9)["choices"][0]
    check((c["text"], c["finish_reason"]) == (" Rome", "stop"), f"also before min_tokens: {c}")
    c = one(structured_outputs={"regex": "a+"}, min_tokens=6, max_tokens=9)["choices"][0]
    check(len(c["text"]) >= 6, f"where it may go on, min_tokens holds: {c}")
    c = one(structured_outputs={"choice": [" Rome"]}, echo=True)["choices"][0]
    check(c["text"] == "The capital of France is Rome", f"echo: {c}")
    many = dict(n=3, temperature=1, seed=5, structured_outputs={"json": CITY})
    cs = one(**many)["choices"]
    check(len(cs) == 3 and all(is_city(c["text"]) for c in cs), f"n: {cs}")
    check([c["text"] for c in one(**many)["choices"]] == [c["text"] for c in cs], "seeds give the same answers again")
    cs = one(prompt=["Rome is", "Is Paris big?", "x"], structured_outputs={"grammar": EBNF})["choices"]
    check(len(cs) == 3 and all(SENTENCE(c["text"]) for c in cs), f"several prompts: {cs}")
    status, _, text = p.ask("POST", "/v1/completions", prompt(structured_outputs={"regex": "[b-y]"}, allowed_token_ids=[66]))
    check(status == 400 and "No token satisfies the grammar" in text, f"nothing is left: {status} {text}")
    c = one(structured_outputs={"json": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
                                "disable_any_whitespace": True})["choices"][0]
    check(c["text"] == '{"a":1}', f"without whitespace: {c}")


# ---- random schemas -----------------------------------------------------------------------------------

def random_schema(r, depth=3):
    """A schema whose values are short."""
    kind = r.choice(["string", "enum", "integer", "boolean", "null", "pattern", "number"] +
                    ["object", "object", "array", "anyOf"] * (depth > 0))
    if kind == "string":
        lo = r.randrange(3)
        return {"type": "string", "minLength": lo, "maxLength": lo + r.randrange(8)}
    if kind == "enum":
        return {"enum": r.sample(["a", "\u00e9\n\"", 1, -2.5, True, None, [1], {"k": "v"}], r.randint(1, 4))}
    if kind == "integer":
        lo = r.randrange(-50, 50)
        return {"type": "integer", "minimum": lo, "maximum": lo + r.randrange(200)}
    if kind == "number":
        return {"type": "number", "minimum": -1, "maximum": r.randint(0, 9)}
    if kind == "pattern":
        return {"type": "string", "pattern": r.choice(["^[a-z]{1,4}$", "^\\d{3}-\\d{2}$", "^(yes|no)$"])}
    if kind == "array":
        lo = r.randrange(2)
        return {"type": "array", "items": random_schema(r, depth - 1), "minItems": lo, "maxItems": lo + r.randrange(3)}
    if kind == "anyOf":
        return {"anyOf": [random_schema(r, depth - 1) for _ in range(r.randint(1, 3))]}
    if kind == "object":
        names = r.sample(["a", "b c", "d\"", "e\u00fc", "f"], r.randint(1, 4))
        return {"type": "object", "properties": {n: random_schema(r, depth - 1) for n in names},
                "required": [n for n in names if r.random() < .6], "additionalProperties": False}
    return {"type": kind}


def random_schemas(p, n, seed):
    """(answers that ended by themselves, all)"""
    r = random.Random(seed)
    schemas = [{"type": "object", "properties": {"v": random_schema(r)}, "required": ["v"], "additionalProperties": False}
               for _ in range(n)]

    def one(i):
        c = p.post("/v1/completions", prompt(structured_outputs={"json": schemas[i]}, temperature=1.5, seed=i,
                                             max_tokens=400))["choices"][0]
        if c["finish_reason"] == "stop":
            v = json.loads(c["text"])
            if jsonschema:
                jsonschema.Draft202012Validator(schemas[i]).validate(v)
        return c["finish_reason"]

    out = p.together(n, one)
    for i, x in enumerate(out):
        check(x in ("stop", "length"), f"schema {json.dumps(schemas[i])}: {x!r}")
    return out.count("stop"), n


# ---- hostile ------------------------------------------------------------------------------------------

def bombs():
    deep = {}
    for _ in range(100):
        deep = {"items": deep}
    tree = {"const": 1}
    for i in range(6):
        tree = {"anyOf": [tree, {"type": "object", "properties": {"p%d" % i: tree}, "required": ["p%d" % i]}]}
    yield "deep", {"json": deep}
    yield "refers to itself", {"json": {"$ref": "#"}}
    yield "a ring of references", {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}}
    yield "allOf of anyOf", {"json": {"allOf": [{"anyOf": [{"required": ["%d%d" % (i, k)]} for k in range(3)]} for i in range(8)]}}
    yield "many items", {"json": {"type": "array", "minItems": 10 ** 9}}
    yield "long string", {"json": {"type": "string", "maxLength": 10 ** 9}}
    yield "many properties", {"json": {"type": "object", "properties": {"p%d" % i: {"type": "string"} for i in range(2000)}}}
    yield "a tree of anyOf", {"json": tree}
    yield "star of star", {"regex": "(a*)*b"}
    yield "plus of plus", {"regex": "(x+x+)+y"}
    yield "nested counts", {"regex": "((a{1,1000}){1,1000}){1,1000}"}
    yield "a large count", {"regex": "a{1000000000}"}
    yield "18 back", {"regex": "[ab]*a[ab]{18}"}
    yield "left recursion", {"grammar": 'root ::= root "a" | root'}
    yield "nothing", {"grammar": 'root ::= root'}
    yield "empty alternative", {"grammar": 'root ::= "a" | '}
    yield "deep groups", {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}
    yield "an unknown rule", {"grammar": "root ::= nothing"}
    yield "many choices", {"choice": ["c%d" % i for i in range(20000)]}


def hostile(p):
    slowest = ("", 0)
    for name, s in bombs():
        at = time.monotonic()
        status, _, text = p.ask("POST", "/v1/completions", prompt(structured_outputs=s, max_tokens=2), timeout=30)
        took = time.monotonic() - at
        slowest = max(slowest, (name, took), key=lambda x: x[1])
        over = status == 500 and "too many steps" in text
        check(status in (200, 400) or over, f"bomb {name!r}: {status} {text[:300]}")
        if over:
            print(f"over a budget while running: {name}")
        check(took < 5, f"bomb {name!r} took {took:.2f} s")
        if os.environ.get("GUIDED_VERBOSE"):
            print(f"{name}: {status}, {took * 1000:.0f} ms: {text[:160]}")
    print(f"slowest bomb: {slowest[0]}, {slowest[1] * 1000:.0f} ms for two tokens")


def refusals(p):
    for s, word in (({"json": {"type": "strange"}}, "type"), ({"json": {"$ref": "#/$defs/none"}}, "none"),
                    ({"regex": "[a-"}, ""), ({"regex": "(?<=a)b"}, ""), ({"grammar": "root ::= nothing\n"}, "nothing"),
                    ({"grammar": 'start: "a" ('}, ""), ({"json": {"$ref": "http://x/y"}}, "http://x/y")):
        for stream in (False, True):
            status, _, text = p.ask("POST", "/v1/completions", prompt(structured_outputs=s, stream=stream))
            check(status == 400 and word in json.loads(text)["error"]["message"], f"{s}: {status} {text}")


def leaves(p):
    """A client that leaves amid a guided answer, many times; then all is free again."""
    body = json.dumps(prompt(structured_outputs={"regex": "[a-z ]{2000}"}, max_tokens=500, stream=True))
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", p.port), timeout=20) as s:
            s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            got = b""
            while b"data: " not in got:
                got += s.recv(4096)
    check(wait_for(lambda: metric(p, "slipring_http_load") == 0, 10), "clients that leave take their answers with them")


def metric(p, name):
    for line in p.ask("GET", "/metrics")[2].splitlines():
        if line.startswith(name + "{"):
            return float(line.rsplit(" ", 1)[1])
    return None


def restart(p, args):
    """The daemon goes away amid a guided answer, and comes back: the answer goes on, to the last token as undisturbed."""
    want = p.post("/v1/completions", prompt(structured_outputs={"regex": "[a-z ]{900}"}, max_tokens=250))
    answers = []
    t = threading.Thread(target=lambda: answers.append(p.ask("POST", "/v1/completions", prompt(
        structured_outputs={"regex": "[a-z ]{900}"}, max_tokens=250))))
    t.start()
    check(wait_for(lambda: metric(p, "vllm:num_requests_running") == 1, 10), "it runs")
    p.procs["slipringd"].send_signal(signal.SIGKILL)
    p.procs["slipringd"].wait(10)
    p.daemon(*args)
    t.join(30)
    check(answers and answers[0][0] == 200, f"it goes on: {answers}")
    check(json.loads(answers[0][2])["choices"] == want["choices"], f"as undisturbed: {answers[0][2]} for {want}")
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the daemon is back")
    c = p.post("/v1/completions", prompt(structured_outputs={"json": CITY}))["choices"][0]
    check(is_city(c["text"]), "and guides answers again")


def company(p):
    """Neighbours with and without grammar give the answers that they give alone."""
    free = prompt(max_tokens=24, temperature=.9, seed=3, ignore_eos=True)
    bound = prompt(max_tokens=64, temperature=.9, seed=4, structured_outputs={"json": CITY})
    alone = [p.post("/v1/completions", b)["choices"][0]["text"] for b in (free, bound)]
    for i, text in enumerate(p.together(12, lambda i: p.post("/v1/completions", bound if i % 2 else free)["choices"][0]["text"])):
        check(text == alone[i % 2], f"answer {i} in company: {text!r} for {alone[i % 2]!r}")


def main():
    need_model()
    args = ["--max-num-seqs", 32]
    with Programs() as p:
        p.daemon(*args)
        p.adapter("--served-model-name", "smol")
        kinds(p)
        interplay(p)
        refusals(p)
        company(p)
        ended, n = random_schemas(p, int(os.environ.get("GUIDED_SCHEMAS", 16)), 1)
        check(ended * 2 > n, f"{ended} of {n} random schemas ended by themselves")
        print(f"{ended} of {n} random schemas ended by themselves")
        hostile(p)
        leaves(p)
        hits = metric(p, "slipring_http_grammar_cache_hits_total")
        check(hits > 5 and metric(p, "slipring_http_guided_total") > hits, "guided requests and hits are counted")
        restart(p, args)
    done()


main()
