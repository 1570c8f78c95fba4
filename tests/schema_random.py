#!/usr/bin/env python3
"""Random schemas, random answers: tests/schema_random.py BUILD [COUNT [SEED]]

Makes COUNT schemas (1,000) that combine all keywords.  For each the walker makes random answers through the guide,
drawing from the mask; jsonschema judges them, and fails the test for an invalid one.  Random values, judged too, are
given to the guide: an invalid one that is taken fails the test; a valid one that is refused is counted.
"""
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


def repeats(v):
    """Does an object name a property twice?  Its count of properties is then not what was generated."""
    return len(v) != len(dict(v))


def main():
    build = sys.argv[1]
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    walk = subprocess.Popen([os.path.join(build, "tests", "grammar_walk")], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, encoding="utf-8")
    n = dict.fromkeys(["schemas", "refused", "answers", "unended", "twice", "long", "values", "valid", "valid_refused"], 0)
    wrong, reasons = [], {}
    for i in range(count):
        r = random.Random(seed * 1000003 + i)
        s = schema(r, 3)
        values = [value(r) for _ in range(30)]
        walk.stdin.write(json.dumps({"schema": s, "additional_properties": True, "walks": 6, "seed": seed + i,
                                     "compact": True,
                                     "texts": [json.dumps(v, separators=(",", ":")) for v in values]}) + "\n")
        walk.stdin.flush()
        line = walk.stdout.readline()
        if not line:
            sys.exit(f"FAILED schema-random: the walker died at {json.dumps(s)}")
        out = json.loads(line)
        n["schemas"] += 1
        if "error" in out:
            n["refused"] += 1
            reason = re.sub(r" at #.*(?=, which)|At #.*|refers to .*", "", out["error"])
            reasons[reason] = reasons.get(reason, 0) + 1
            if "No value satisfies" not in out["error"]:
                continue
            out = {"took": [False] * len(values), "walked": []}
        judge = jsonschema.Draft202012Validator(s, format_checker=jsonschema.FormatChecker())
        for answer in out["walked"]:
            if answer is None:
                n["unended"] += 1
                continue
            n["answers"] += 1
            twice = []
            v = json.loads(answer, object_pairs_hook=lambda p: (twice.append(repeats(p)), dict(p))[1])
            if any(twice):
                n["twice"] += 1
            elif re.search(r"[0-9.]{15}|\d[eE][+-]?\d{3}", answer):  # the judge computes with doubles
                n["long"] += 1
            elif not judge.is_valid(v):
                wrong.append(f"{json.dumps(s)} gave {answer}")
        for v, took in zip(values, out["took"]):
            valid = judge.is_valid(v)
            n["values"] += 1
            n["valid"] += valid
            n["valid_refused"] += valid and not took
            if took and not valid:
                wrong.append(f"{json.dumps(s)} takes {json.dumps(v)}")
            if "-v" in sys.argv and valid and not took:
                print("refused", json.dumps(s), json.dumps(v))
    print(", ".join(f"{v} {k}" for k, v in n.items()))
    for reason, times in sorted(reasons.items(), key=lambda x: -x[1])[:20]:
        print(f"{times:6} {reason}")
    for line in wrong[:20]:
        print("WRONG", line)
    walk.stdin.close()
    if walk.wait() or wrong:
        print(f"FAILED schema-random: {len(wrong)} invalid")
        sys.exit(1)
    print("ok schema-random")


if __name__ == "__main__":
    main()
