#!/usr/bin/env python3
"""What keeping an answer to a JSON Schema costs, beside xgrammar and llguidance: one thread, the same vocabulary,
twelve schemas, an answer of each.

    bench_grammar.py BUILD [--model MODEL.gguf] [--runs 21] [--compiles 7] [--only ours,llguidance]

At each token of the answer the mask is asked for, checked to allow the token, and the token is taken.  Per place
the least of RUNS runs is kept (steady), and the least of COMPILES runs on a grammar that was just compiled (first),
because other programs disturb single runs; over all places of all schemas these are the medians and 99th percentiles.
The engines take turns.  Times include the call from Python, whose cost is printed; ours goes through ctypes.
"""
import argparse
import ctypes as C
import json
import os
import sys
import time
import types

now = time.perf_counter_ns

# ---- schemas, and an answer of each -----------------------------------------------------------


def objects(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
            **more}


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
WORDS = "the quick brown fox jumps over the lazy dog while seven wizards mix a strong potion for queen Victoria "

CASES = {
    "person": (objects({"name": STRING, "age": {"type": "integer", "minimum": 0, "maximum": 130},
                        "email": {"type": "string", "format": "email"}}),
               {"name": "Ada Lovelace", "age": 36, "email": "ada.lovelace@analytical.example"}),
    "tool call": (objects({"name": {"const": "get_weather"},
                           "arguments": objects({"city": STRING, "unit": {"enum": ["celsius", "fahrenheit"]}})}),
                  {"name": "get_weather", "arguments": {"city": "San Francisco", "unit": "celsius"}}),
    "nested order": (objects({"id": INTEGER, "customer": objects({"name": STRING, "vip": {"type": "boolean"}}),
                              "items": {"type": "array", "minItems": 1, "items": objects(
                                  {"sku": STRING, "quantity": {"type": "integer", "minimum": 1}, "price": NUMBER})}}),
                     {"id": 90210, "customer": {"name": "Grace Hopper", "vip": True},
                      "items": [{"sku": "KB-77", "quantity": 2, "price": 49.95},
                                {"sku": "MOUSE-12b", "quantity": 1, "price": 19.5}]}),
    "recursive tree": ({"$ref": "#/$defs/node", "$defs": {"node": objects(
                            {"value": STRING, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}})}},
                       {"value": "root", "children": [{"value": "left branch", "children": []}, {
                           "value": "right", "children": [{"value": "leaf", "children": []}]}]}),
    "enum of 500": (objects({"code": {"enum": [f"{a}{b}-{i:03d}" for i, (a, b) in enumerate(
                        (x, y) for x in ("alpha", "beta", "gamma", "delta", "sigma")
                        for y in ("North", "South", "East", "West") for _ in range(25))]}}),
                    {"code": "gammaSouth-238"}),
    "anyOf of 5": ({"anyOf": [objects({"type": {"const": k}, k: v}) for k, v in (
                       ("text", STRING), ("number", NUMBER), ("flag", {"type": "boolean"}),
                       ("list", {"type": "array", "items": INTEGER}), ("pair", objects({"a": STRING, "b": STRING})))]},
                   {"type": "pair", "pair": {"a": "first of two", "b": "second"}}),
    "bounded strings": (objects({"title": {"type": "string", "minLength": 5, "maxLength": 60},
                                 "body": {"type": "string", "minLength": 5, "maxLength": 2000}}),
                        {"title": "A short report on foxes", "body": WORDS * 6}),
    "any object": ({"type": "object"}, {"a": [1, 2.5, {"deep": None}], "text": "some words here", "ok": False}),
    "60 properties": (objects({f"field_{i:02d}": (STRING, INTEGER, {"type": "boolean"})[i % 3] for i in range(60)}),
                      {f"field_{i:02d}": ("value", i * 37, True)[i % 3] for i in range(60)}),
    "typed additional": ({"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}},
                         {"primes": [2, 3, 5, 7, 11], "fibonacci numbers": [1, 1, 2, 3, 5, 8]}),
    "five formats": (objects({"day": {"type": "string", "format": "date"}, "at": {"type": "string", "format": "date-time"},
                              "id": {"type": "string", "format": "uuid"}, "host": {"type": "string", "format": "ipv4"},
                              "mail": {"type": "string", "format": "email"}}),
                     {"day": "2026-03-14", "at": "2026-03-14T15:09:26Z", "host": "192.168.10.254",
                      "id": "123e4567-e89b-12d3-a456-426614174000", "mail": "root@slipring.example"}),
    "array of numbers": ({"type": "array", "items": NUMBER}, [3.14159, -2, 1e10, 0.5, 12345678, -0.001, 42]),
}
CASES["five formats"] = (CASES["five formats"][0],
                         {k: CASES["five formats"][1][k] for k in CASES["five formats"][0]["properties"]})

# ---- ours ---------------------------------------------------------------------------------------


class Info(C.Structure):
    _fields_ = [("vocab", C.c_int32), ("bos", C.c_int32), ("eos", C.c_int32), ("stop", C.c_int32 * 8),
                ("n_stop", C.c_int32)]


class Next(C.Structure):
    _fields_ = [("kind", C.c_uint32), ("n", C.c_uint32), ("id", C.c_int32 * 64), ("done", C.c_bool)]


BITS, ONLY, IS, FREE = range(4)


class Ours:
    name = "slipring"

    def __init__(self, build, model):
        self.lib = lib = C.CDLL(os.path.join(build, "libslipring-text.so"))
        p = C.c_void_p
        lib.sr_text_info.restype = C.POINTER(Info)
        lib.sr_text_encode.restype = C.c_int64
        lib.sr_text_encode.argtypes = [p, C.c_char_p, C.c_size_t, C.c_int, p, C.c_size_t, C.c_size_t]
        lib.sr_text_piece.argtypes = [p, C.c_int32, C.POINTER(p), C.POINTER(C.c_bool)]
        lib.sr_text_longest.argtypes = [p]
        lib.sr_grammar_open.argtypes = [C.POINTER(p), p, C.c_int, C.c_char_p, C.c_size_t, p, C.c_char_p, C.c_size_t]
        lib.sr_grammar_close.argtypes = lib.sr_guide_close.argtypes = [p]
        lib.sr_guide_open.argtypes = [C.POINTER(p), p]
        lib.sr_guide_take.argtypes = [p, C.c_int32]
        lib.sr_guide_next.argtypes = [p, p, p]
        self.text, self.err = p(), C.create_string_buffer(1024)
        if lib.sr_text_open(C.byref(self.text), model.encode(), self.err, 1024):
            sys.exit(self.err.value.decode())
        self.info = lib.sr_text_info(self.text).contents
        self.bits = (C.c_uint32 * ((self.info.vocab + 31) // 32))()
        self.next, self.kinds = Next(), [0] * 4
        self.next_at, self.bits_at = C.addressof(self.next), C.addressof(self.bits)
        self.grammar = self.guide = None

    def vocabulary(self):
        out, special = [], []
        piece, is_special = C.c_void_p(), C.c_bool()
        for i in range(self.info.vocab):
            n = self.lib.sr_text_piece(self.text, i, C.byref(piece), C.byref(is_special))
            out.append(C.string_at(piece, n) if n > 0 else b"")
            if is_special.value:
                special.append(i)
        return out, special

    def encode(self, s):
        raw = s if isinstance(s, bytes) else s.encode()
        ids = (C.c_int32 * (len(raw) + 16))()
        return list(ids[:self.lib.sr_text_encode(self.text, raw, len(raw), 0, ids, len(ids), 0)])

    def compile(self, schema):
        out, raw = C.c_void_p(), schema.encode()
        if self.lib.sr_grammar_open(C.byref(out), self.text, 0, raw, len(raw), None, self.err, 1024):
            raise ValueError(self.err.value.decode())
        return out.value

    def forget(self, grammar):
        self.lib.sr_grammar_close(grammar)

    def begin(self, grammar):
        out = C.c_void_p()
        self.lib.sr_guide_open(C.byref(out), grammar)
        guide, take, ask = out.value, self.lib.sr_guide_take, self.lib.sr_guide_next
        at, bits = self.next_at, self.bits_at
        return guide, lambda: ask(guide, at, bits), lambda i: take(guide, i) == 0

    def end(self, guide):
        self.lib.sr_guide_close(guide)

    def allows(self, i):
        n = self.next
        self.kinds[n.kind] += 1
        if n.kind == BITS:
            return self.bits[i >> 5] >> (i & 31) & 1
        return n.kind == FREE or i in n.id[:n.n if n.kind == ONLY else 1]

    def nothing(self):
        return self.lib.sr_text_longest(self.text)


# ---- peers --------------------------------------------------------------------------------------


class Xgrammar:
    name = "xgrammar"

    def __init__(self, ours, vocabulary, special):
        import numpy
        stand_ins()
        import xgrammar
        spelled = [b"" if i in set(special) else v for i, v in enumerate(vocabulary)]
        stops = [ours.info.stop[i] for i in range(ours.info.n_stop)]
        self.lib = xgrammar
        self.compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(
            spelled, xgrammar.VocabType.RAW, vocab_size=len(spelled), stop_token_ids=stops), max_threads=1,
            cache_enabled=False)
        self.mask = numpy.full((1, (len(spelled) + 31) // 32), -1, dtype=numpy.int32)

    def compile(self, schema):
        return self.compiler.compile_json_schema(schema)

    def begin(self, grammar):
        m = self.lib.GrammarMatcher(grammar)
        mask, fill, take = self.mask, m.fill_next_token_bitmask, m.accept_token
        return m, lambda: fill(mask), take

    def allows(self, i):
        return self.mask[0, i >> 5] >> (i & 31) & 1

    def forget(self, grammar):
        pass

    end = forget


def stand_ins():
    """xgrammar imports torch and transformers, for parts that are not used here."""
    import tvm_ffi  # noqa: F401  (looks for torch itself, before there is a stand-in)

    class Any(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda self, *a, **k: None})
    for name in ("torch", "transformers"):
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = Any(name)


class Llguidance:
    name = "llguidance"

    def __init__(self, ours, vocabulary, special):
        import llguidance
        import numpy

        class Tokenizer:
            eos_token_id, bos_token_id, tokens, special_token_ids = ours.info.eos, None, vocabulary, special

            def __call__(self, s):
                return ours.encode(s)
        self.lib = llguidance
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer()))
        self.mask = numpy.zeros((len(vocabulary) + 31) // 32, dtype=numpy.int32)

    def compile(self, schema):
        m = self.lib.LLMatcher(self.tokenizer, self.lib.LLMatcher.grammar_from_json_schema(schema))
        if m.is_error():
            raise ValueError(m.get_error())
        return m

    def begin(self, grammar):
        m = grammar.deep_copy()
        at, n, fill = self.mask.ctypes.data, self.mask.nbytes, m.unsafe_compute_mask_ptr
        return m, lambda: fill(at, n), m.consume_token

    def allows(self, i):
        return self.mask[i >> 5] >> (i & 31) & 1

    def forget(self, grammar):
        pass

    end = forget


# ---- measuring ----------------------------------------------------------------------------------


def walk(engine, grammar, ids, check):
    """Times of the masks and of taking, in ns."""
    handle, ask, take = engine.begin(grammar)
    masks, takes = [], []
    for i in ids:
        a = now()
        ask()
        b = now()
        if check and not engine.allows(i):
            raise ValueError(f"does not allow token {i} at place {len(masks)}")
        c = now()
        taken = take(i)
        d = now()
        if not taken:
            raise ValueError(f"does not take token {i} at place {len(masks)}")
        masks.append(b - a)
        takes.append(d - c)
    engine.end(handle)
    return masks, takes


def least(kept, new):
    return new if kept is None else [min(x, y) for x, y in zip(kept, new)]


class Figures:
    def __init__(self):
        self.compile = self.ready = self.first = self.steady = self.take = None
        self.failed = ""


def measure(engine, schema, ids, f, args):
    """One turn: COMPILES fresh grammars would disturb the peers' turns, so one each turn."""
    a = now()
    grammar = engine.compile(schema)
    b = now()
    masks, _ = walk(engine, grammar, ids, True)
    f.compile = least(f.compile, [b - a])
    f.ready = least(f.ready, [b - a + masks[0]])
    f.first = least(f.first, masks)
    for _ in range(args.runs // args.compiles):
        masks, takes = walk(engine, grammar, ids, False)
        f.steady, f.take = least(f.steady, masks), least(f.take, takes)
    engine.forget(grammar)


def quantile(v, q):
    v = sorted(v)
    return v[min(len(v) - 1, int(q * len(v)))]


def report(engines, figures, show):
    for e in engines:
        good = {k: f for k, f in figures[e.name].items() if not f.failed}
        for k, f in figures[e.name].items():
            if f.failed:
                print(f"{e.name}: {k}: {f.failed}")
        if not good:
            continue
        ready = [f.ready[0] for f in good.values()]
        print(f"{e.name}: {len(good)} schemas; schema to first mask, median {quantile(ready, .5) / 1e6:.2f} ms, "
              f"worst {max(ready) / 1e6:.2f} ms")
        for what in ("steady", "first", "take"):
            v = [x for f in good.values() for x in getattr(f, what)]
            print(f"  {what:6s} {len(v)} places: p50 {quantile(v, .5) / 1e3:.2f}  p90 {quantile(v, .9) / 1e3:.2f}  "
                  f"p99 {quantile(v, .99) / 1e3:.1f}  max {max(v) / 1e3:.1f} us")
        for k, f in good.items() if show else ():
            print(f"    {k:17s} compile {f.compile[0] / 1e6:8.2f} ms  steady p50 {quantile(f.steady, .5) / 1e3:6.2f} "
                  f"max {max(f.steady) / 1e3:7.1f}  first p50 {quantile(f.first, .5) / 1e3:6.2f} "
                  f"max {max(f.first) / 1e3:8.1f} us")


def main():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--model", default=f"{home}/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    p.add_argument("--runs", type=int, default=21)
    p.add_argument("--compiles", type=int, default=7)
    p.add_argument("--only", default="slipring,xgrammar,llguidance")
    p.add_argument("--show", action="store_true", help="each schema")
    args = p.parse_args()
    if not os.path.exists(args.model):
        print(f"SKIP bench_grammar: there is no model at {args.model}")
        return
    ours = Ours(args.build, args.model)
    vocabulary, special = ours.vocabulary()
    engines = [ours] if "slipring" in args.only else []
    for kind in (Xgrammar, Llguidance):
        if kind.name in args.only:
            try:
                engines.append(kind(ours, vocabulary, special))
            except ImportError as e:
                print(f"SKIP {kind.name}: {e}")
    figures = {e.name: {k: Figures() for k in CASES} for e in engines}
    spans = []
    for _ in range(1000):
        a = now()
        ours.nothing()
        spans.append(now() - a)
    print(f"{len(vocabulary)} ids; an empty call through ctypes {quantile(spans, .5) / 1e3:.2f} us")
    for turn in range(args.compiles):
        for k, (schema, answer) in CASES.items():
            text, ids = json.dumps(schema), ours.encode(json.dumps(answer))
            for e in engines:
                f = figures[e.name][k]
                if f.failed or (turn and f.compile[0] > 2e9):
                    continue
                try:
                    measure(e, text, ids, f, args)
                except Exception as x:  # noqa: BLE001  (each peer has its own)
                    f.failed = f"{type(x).__name__}: {x}"
    report(engines, figures, args.show)


main()
