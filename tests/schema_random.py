#!/usr/bin/env python3
"""Random schemas, random answers: tests/schema_random.py BUILD [COUNT [SEED]] [--hypothesis] [-v]

Makes COUNT schemas (1,000) that combine all keywords.  For each the walker makes random answers through the guide,
drawing from the mask; jsonschema judges them, and fails the test for an invalid one.  Random values, judged too, are
given to the guide: an invalid one that is taken fails the test; a valid one that is refused is counted.

With --hypothesis, Hypothesis makes the schemas, with patterns, texts, bounds and references of its own, and
hypothesis-jsonschema makes values that are meant to satisfy them.  -v prints the valid values that are refused.
"""
import copy
import json
import os
import random
import re
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("SKIP schema-random: the Python package jsonschema is not installed")
    sys.exit(0)

NAMES = ["a", "b", "c", "ab", "x1"]
WORDS = ["", "a", "ab", "abc", "x", "\u00e4", "1"]
PATTERNS = ["a", "^a", "b$", "^[a-c]{1,2}$", "x|\u00e4", "^.{2}$"]
# Where Python's expressions mean something else than ECMA-262's, what the judge gets instead.
PYTHON = {"b$": r"b\Z", "^[a-c]{1,2}$": r"^[a-c]{1,2}\Z", "^.{2}$": r"^[^\n\r\u2028\u2029]{2}\Z"}
FORMATS = ["date", "ipv4", "uuid", "email"]
SIMPLE = [None, True, False, 0, 1, 2, 3, 4, 6, -1, 0.5, 1.5, 2.25, 10, 100] + WORDS


def value(r, depth=2):
    if not depth or r.random() < 0.6:
        return r.choice(SIMPLE)
    if r.random() < 0.5:
        return [value(r, depth - 1) for _ in range(r.randrange(4))]
    return {k: value(r, depth - 1) for k in sorted(r.sample(NAMES, r.randrange(4)), key=NAMES.index)}


def schema(r, depth):
    if not depth or r.random() < 0.1:
        return r.choice([True, {}, {"type": r.choice(["string", "integer", "null", "object"])},
                         {"enum": r.sample(SIMPLE[:15], 2)}, {"const": r.choice(SIMPLE)}, False])

    def sub():
        return schema(r, depth - 1)

    s = {}
    if r.random() < 0.5:
        kind = ["object", "array", "string", "integer", "number", "null", "boolean"]
        s["type"] = r.choice(kind) if r.random() < 0.8 else r.sample(kind, 2)
    makers = {
        "minimum": lambda: r.choice([0, 1, -3, 1.5]), "maximum": lambda: r.choice([3, 10, 2.25]),
        "exclusiveMinimum": lambda: r.choice([0, 0.5]), "exclusiveMaximum": lambda: r.choice([4, 100]),
        "multipleOf": lambda: r.choice([2, 3, 0.5, 0.25]), "minLength": lambda: r.randrange(3),
        "maxLength": lambda: r.randrange(4), "pattern": lambda: r.choice(PATTERNS), "format": lambda: r.choice(FORMATS),
        "properties": lambda: {n: sub() for n in sorted(r.sample(NAMES, r.randrange(1, 4)), key=NAMES.index)},
        "required": lambda: r.sample(NAMES, r.randrange(1, 3)), "additionalProperties": sub,
        "patternProperties": lambda: {p: sub() for p in r.sample(PATTERNS[:4], r.randrange(1, 3))},
        "propertyNames": lambda: {"maxLength": 2}, "minProperties": lambda: r.randrange(3),
        "maxProperties": lambda: r.randrange(4), "items": sub, "prefixItems": lambda: [sub(), sub()][:r.randrange(1, 3)],
        "minItems": lambda: r.randrange(3), "maxItems": lambda: r.randrange(4), "uniqueItems": lambda: True,
        "contains": sub, "allOf": lambda: [sub(), sub()], "anyOf": lambda: [sub(), sub()],
        "oneOf": lambda: [sub(), sub()], "not": sub, "if": sub, "then": sub, "else": sub,
        "dependentRequired": lambda: {r.choice(NAMES): r.sample(NAMES, 1)},
        "dependentSchemas": lambda: {r.choice(NAMES): sub()}, "enum": lambda: [value(r) for _ in range(3)],
        "unevaluatedProperties": sub, "unevaluatedItems": sub,
    }
    for key in r.sample(sorted(makers), r.randrange(1, 5)):
        s[key] = makers[key]()
    if "additionalProperties" in s:     # evaluates every property, which the judge does not know
        s.pop("unevaluatedProperties", None)
    return s


def for_python(s):
    """The schema with its expressions in Python's dialect."""
    if isinstance(s, list):
        return [for_python(x) for x in s]
    if not isinstance(s, dict):
        return s
    s = {k: for_python(v) for k, v in s.items()}
    if isinstance(s.get("pattern"), str):
        s["pattern"] = PYTHON.get(s["pattern"], s["pattern"])
    if isinstance(s.get("patternProperties"), dict):
        s["patternProperties"] = {PYTHON.get(k, k): v for k, v in s["patternProperties"].items()}
    return s


def repeats(v):
    """Does an object name a property twice?  Its count of properties is then not what was generated."""
    return len(v) != len(dict(v))


class Trial:
    def __init__(self, build):
        self.walk = subprocess.Popen([os.path.join(build, "tests", "grammar_walk")], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True, encoding="utf-8")
        self.n = dict.fromkeys(["schemas", "refused", "answers", "unended", "twice", "long", "values", "valid",
                                "valid_refused"], 0)
        self.wrong, self.reasons = [], {}

    def ask(self, s, values, walks, seed):
        """What the walker says; None: the schema is refused, for another reason than that nothing satisfies it."""
        self.walk.stdin.write(json.dumps({"schema": s, "additional_properties": True, "walks": walks, "seed": seed,
                                          "compact": True,
                                          "texts": [json.dumps(v, separators=(",", ":")) for v in values]}) + "\n")
        self.walk.stdin.flush()
        line = self.walk.stdout.readline()
        if not line:
            print(f"FAILED schema-random: the walker died at {json.dumps(s)}", flush=True)
            os._exit(1)
        out = json.loads(line)
        if "error" not in out:
            return out
        reason = re.sub(r" at #.*(?=, which)|At #.*|refers to .*", "", out["error"])
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if "No value satisfies" not in out["error"]:
            return None
        return {"took": [False] * len(values), "walked": [], "refused": True}

    def schema(self, s, values, walks, seed):
        """Try one; returns whether it was compiled or proven empty."""
        self.n["schemas"] += walks > 0
        out = self.ask(s, values, walks, seed)
        self.n["refused"] += walks > 0 and (out is None or "refused" in out)
        if out is None:
            return False
        judge = jsonschema.Draft202012Validator(for_python(s), format_checker=jsonschema.FormatChecker())
        for answer in out["walked"]:
            self.answer(judge, s, answer)
        for v, took in zip(values, out["took"]):
            valid = judge.is_valid(v)
            self.n["values"] += 1
            self.n["valid"] += valid
            self.n["valid_refused"] += valid and not took
            if took and not valid:
                self.wrong.append(f"{json.dumps(s)} takes {json.dumps(v)}")
            if "-v" in sys.argv and valid and not took:
                print("refused", json.dumps(s), json.dumps(v))
        return True

    def answer(self, judge, s, answer):
        if answer is None:
            self.n["unended"] += 1
            return
        self.n["answers"] += 1
        twice = []
        v = json.loads(answer, object_pairs_hook=lambda p: (twice.append(repeats(p)), dict(p))[1])
        if any(twice):
            self.n["twice"] += 1
        elif re.search(r"[0-9.]{15}|\d[eE][+-]?\d{3}", answer):  # the judge computes with doubles
            self.n["long"] += 1
        elif not judge.is_valid(v):
            self.wrong.append(f"{json.dumps(s)} gave {answer}")

    def end(self):
        print(", ".join(f"{v} {k}" for k, v in self.n.items()))
        for reason, times in sorted(self.reasons.items(), key=lambda x: -x[1])[:20]:
            print(f"{times:6} {reason}")
        for line in self.wrong[:20]:
            print("WRONG", line)
        self.walk.stdin.close()
        if self.walk.wait() or self.wrong:
            print(f"FAILED schema-random: {len(self.wrong)} invalid")
            sys.exit(1)
        print("ok schema-random")


# ---- schemas of Hypothesis ----

def strategies():
    """Strategies of schemas and of any values."""
    from hypothesis import strategies as st

    names = st.sampled_from(NAMES + ["", "a b", '"', "a/b", "\\", "\u00e4", "\U0001f600"])
    texts = st.text("ab1-.\"\\\n/\u00e4\u2028\U0001f600", max_size=5)
    numbers = st.one_of(st.integers(-1000, 1000), st.integers(-4000, 4000).map(lambda n: n / 8))
    counts = st.integers(0, 4)
    scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
    values = st.recursive(scalars, lambda v: st.one_of(st.lists(v, max_size=3),
                                                       st.dictionaries(names, v, max_size=3)), max_leaves=5)
    # ECMA-262, and the same for Python
    atoms = st.sampled_from([(x, x) for x in ["a", "b", "1", "-", r"\.", "/", "[a-c]", "[^a]", "[^a-z0-9]", "\u00e4",
                                              "(?:ab|c)", "(a|bb)", "(?:a|b*)", "\U0001f600", "[\u00e0-\u00ff]"]] +
                            [(".", "[^\n\r\u2028\u2029]"), (r"\d", "[0-9]"), (r"\D", "[^0-9]"), (r"\w", "[A-Za-z0-9_]"),
                             (r"\W", "[^A-Za-z0-9_]"), (r"\u0041", "A"), (r"[\w-]", "[A-Za-z0-9_-]"),
                             ("[^]", r"(?s:.)")])
    quantifiers = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "+?"])

    @st.composite
    def pattern(draw):
        sides = []
        for _ in range(draw(st.integers(1, 2))):
            pieces = [(a[0] + q, a[1] + q) for a, q in draw(st.lists(st.tuples(atoms, quantifiers), max_size=3))]
            begin, end = draw(st.booleans()), draw(st.booleans())
            sides.append(("^" * begin + "".join(p[0] for p in pieces) + "$" * end,
                          "^" * begin + "".join(p[1] for p in pieces) + r"\Z" * end))
        js, python = ("|".join(s[i] for s in sides) for i in range(2))
        PYTHON[js] = python
        return js

    kinds = st.sampled_from(["object", "array", "string", "integer", "number", "null", "boolean"])
    types = st.one_of(kinds, kinds, kinds, st.lists(kinds, min_size=1, max_size=3, unique=True))
    own = {"minimum": numbers, "maximum": numbers, "exclusiveMinimum": numbers, "exclusiveMaximum": numbers,
           "multipleOf": st.sampled_from([1, 2, 3, 7, 10, 0.5, 0.25, 1.5, 0.125]), "minLength": counts,
           "maxLength": st.integers(0, 8), "pattern": pattern(), "format": st.sampled_from(["date", "ipv4", "uuid"]),
           "enum": st.lists(values, min_size=1, max_size=4), "const": values, "$ref": st.sampled_from(
               ["#/$defs/x", "#/$defs/y"]), "minProperties": counts, "maxProperties": counts, "minItems": counts,
           "maxItems": counts, "uniqueItems": st.just(True), "required": st.lists(names, max_size=3, unique=True),
           "dependentRequired": st.dictionaries(names, st.lists(names, max_size=2, unique=True), max_size=2)}

    def schemas(depth):
        if not depth:
            sub = st.booleans()
            keywords = dict(own)
        else:
            sub = schemas(depth - 1)
            some = st.lists(sub, min_size=1, max_size=3)
            props = st.dictionaries(names, sub, min_size=1, max_size=4)
            keywords = dict(own, properties=props, additionalProperties=sub, propertyNames=sub, items=sub,
                            prefixItems=some, contains=sub, minContains=counts, maxContains=counts, allOf=some,
                            anyOf=some, oneOf=some, unevaluatedProperties=sub, unevaluatedItems=sub,
                            dependentSchemas=st.dictionaries(names, sub, max_size=2),
                            patternProperties=st.dictionaries(pattern(), sub, min_size=1, max_size=2))
            keywords.update({"not": sub, "if": sub, "then": sub, "else": sub})

        @st.composite
        def one(draw):
            s = {"type": draw(types)} if draw(st.booleans()) else {}
            for key in draw(st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)):
                s[key] = draw(keywords[key])
            if "additionalProperties" in s:     # evaluates every property, which the judge does not know
                s.pop("unevaluatedProperties", None)
            return s

        return st.one_of(one(), one(), one(), st.booleans()) if depth < 3 else one()

    return st.builds(lambda s, x, y: dict(s, **{"$defs": {"x": x, "y": y}}) if "#/$defs/" in json.dumps(s) else s,
                     schemas(3), schemas(1), schemas(1)), values


def with_hypothesis(trial, build, count, seed):
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(build, "hypothesis")
    try:
        import hypothesis
        from hypothesis import strategies as st
        from hypothesis_jsonschema import from_schema
    except ImportError:
        print("SKIP schema-random: the Python package hypothesis-jsonschema is not installed")
        sys.exit(0)
    schemas, values = strategies()

    def meant(data, s):
        """Values that should satisfy s; it knows drafts up to 7, so that some do not."""
        try:
            return [data.draw(from_schema(for_python(copy.deepcopy(s)))) for _ in range(4)]
        except hypothesis.errors.UnsatisfiedAssumption:
            raise
        except Exception:
            return []

    for batch in range(0, count, 250):
        @hypothesis.seed(seed * 1000003 + batch)
        @hypothesis.settings(max_examples=min(250, count - batch), database=None, deadline=None,
                             phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(st.data())
        def run(data):
            s = data.draw(schemas)
            if trial.schema(s, data.draw(st.lists(values, min_size=5, max_size=5)), 24, seed + trial.n["schemas"]):
                trial.schema(s, meant(data, s), 0, 0)
        run()


def main():
    build, *numbers = [a for a in sys.argv[1:] if not a.startswith("-")]
    count = int(numbers[0]) if numbers else 1000
    seed = int(numbers[1]) if len(numbers) > 1 else 1
    trial = Trial(build)
    if "--hypothesis" in sys.argv:
        with_hypothesis(trial, build, count, seed)
    for i in range(count if "--hypothesis" not in sys.argv else 0):
        r = random.Random(seed * 1000003 + i)
        s = schema(r, 3)
        trial.schema(s, [value(r) for _ in range(30)], 6, seed + i)
    trial.end()


if __name__ == "__main__":
    main()
