#!/usr/bin/env python3
"""Answers that keep to a grammar without HTTP: slipring generate and chat, and the Python module."""
import dataclasses
import enum
import json
import os
import re
import subprocess
import sys
import typing

from harness import HERE, Programs, check, done, need_model

need_model()
build = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../adapters/python"))

GRAMMAR = 'root ::= city " is " ("big" | "small") "."\ncity ::= "Paris" | "Rome"\n'
LARK = 'start: item ("," item){2}\nitem: /[a-z]+/ "=" /[0-9]{1,3}/\n'
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer",
          "minimum": 1, "maximum": 99}}, "required": ["name", "age"]}


class Size(enum.Enum):
    BIG, SMALL = "big", "small"


@dataclasses.dataclass
class City:
    name: typing.Literal["Paris", "Rome"]
    size: Size
    tags: list[typing.Literal["old", "new"]]
    weight: float | None = None


def command(p, *args):
    r = subprocess.run([f"{build}/slipring", *args], env=p.env, capture_output=True, text=True, timeout=120)
    return r.returncode, r.stdout, r.stderr


def tools(p):
    files = {}
    for name, text in ("g", GRAMMAR), ("l", LARK), ("s", json.dumps(SCHEMA)), ("bad", "root ::= nothing\n"):
        files[name] = os.path.join(p.dir, name)
        with open(files[name], "w") as f:
            f.write(text)
    rc, out, err = command(p, "generate", "--grammar", files["g"], "--ignore-eos", "The capital of France")
    check(rc == 0 and out.strip() in [f"{c} is {s}." for c in ("Paris", "Rome") for s in ("big", "small")],
          f"generate --grammar, GBNF: {out!r} {err!r}")
    rc, out, err = command(p, "generate", "--grammar", files["l"], "--temperature", "1.5", "a=")
    check(rc == 0 and re.fullmatch(r"([a-z]+=\d{1,3},){2}[a-z]+=\d{1,3}\n", out) or "128 tokens" in err,
          f"generate --grammar, Lark: {out!r} {err!r}")
    rc, out, err = command(p, "generate", "--regex", "(yes|no)!{3}", "Is it?")
    check(rc == 0 and out in ("yes!!!\n", "no!!!\n"), f"generate --regex: {out!r} {err!r}")
    rc, out, err = command(p, "chat", "--json-schema", files["s"], "--once", "Who are you?")
    person = json.loads(out or "null")
    check(rc == 0 and set(person) == {"name", "age"} and 1 <= person["age"] <= 99 and len(person["name"]) <= 10,
          f"chat --json-schema: {out!r} {err!r}")
    rc, out, err = command(p, "chat", "--tools", files["g"], "--once", "hi")
    check(rc == 1 and "--tools" in err, f"tools that are no JSON are refused: {err!r}")
    with open(files["l"], "w") as f:
        json.dump([{"type": "function", "function": {"name": "f", "parameters": {}}}], f)
    rc, out, err = command(p, "chat", "--tools", files["l"], "--once", "hi")
    check(rc == 1 and "tools" in err, f"a template that reads no tools refuses them: {err!r}")
    rc, out, err = command(p, "generate", "--grammar", files["bad"], "x")
    check(rc == 1 and err == f"slipring generate: {files['bad']}: Invalid grammar specification: Rule 'nothing' not "
          "found. At 1:10\n", f"a wrong grammar is refused with its place: {err!r}")
    rc, out, err = command(p, "generate", "--grammar", files["g"], "--regex", "a", "x")
    check(rc == 1 and "exclude each other" in err, f"two kinds are refused: {err!r}")


def pydantic_model(s):
    try:
        import pydantic
    except ImportError:
        print("SKIP: no pydantic")
        return

    class Pair(pydantic.BaseModel):
        left: typing.Literal["a", "b"]
        right: int = pydantic.Field(ge=10, le=19)

    pair = s.generate("x", guide=Pair).value()
    check(isinstance(pair, Pair) and 10 <= pair.right <= 19, f"python: a pydantic model: {pair}")


def python(p):
    os.environ.update(p.env, SLIPRING_LIB=build)
    import slipring
    with slipring.open() as s:
        check(s.generate("It is", guide=["red", "green"]).value() in ("red", "green"), "python: a choice")
        check(re.fullmatch("[0-9]{4}", s.generate("The year", guide=slipring.regex("[0-9]{4}")).value()), "python: a regex")
        check(s.generate("x", guide=slipring.grammar(GRAMMAR)).value().startswith(("Paris is", "Rome is")),
              "python: a grammar")
        answers = [s.chat([{"role": "user", "content": "A city?"}], guide=City, temperature=1.5, seed=i, max_tokens=400)
                   for i in range(4)]
        cities = [a.value() for a in answers if (a.text() or True) and a.finish == "stop"]
        check(cities and all(isinstance(c, City) and isinstance(c.size, Size) and isinstance(c.tags, list)
                             for c in cities), f"python: a dataclass, four answers at once: {cities}")
        pydantic_model(s)
        value = s.generate("x", guide=SCHEMA).value()
        check(isinstance(value["age"], int), "python: a schema")
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "end": "</a>",
               "content": {"type": "regex", "pattern": "[a-c]{3}"}}}
        check(re.fullmatch("<a>[a-c]{3}</a>", s.generate("x", guide=slipring.tag(tag)).value()),
              "python: a structural tag")
        try:
            s.generate("x", guide=slipring.regex("["))
            check(False, "python: a wrong pattern is an Error")
        except slipring.Error as e:
            check("closed" in str(e), f"python: a wrong pattern is an Error: {e}")
        cut = s.generate("x", guide=slipring.regex("a{50}"), max_tokens=2)
        try:
            cut.value()
            check(False, "python: an answer that was cut has no value")
        except ValueError:
            check(cut.finish == "length", "python: an answer that was cut has no value")
        documented(s, slipring)
        check(s.generate("The capital of France is", max_tokens=4).text() != "", "python: unguided as before")


def documented(s, slipring):
    """The examples of docs/grammar.md let through what they say, and nothing of what they say not."""
    with open(os.path.join(HERE, "../docs/grammar.md")) as f:
        text = f.read()
    kinds = {"choice": slipring.CHOICE, "regex": slipring.REGEX, "schema": slipring.JSON, "gbnf": slipring.EBNF,
             "lark": slipring.EBNF, "tag": slipring.TAGS}
    tried = 0
    for kind, source, yes, no in re.findall(r"```(choice|regex|schema|gbnf|lark|tag)\n(.*?)\n```\n\nYes: (.*?)\. No: (.*?)\.\n",
                                            text, re.S):
        g = s._grammar(slipring.Guide(kinds[kind], source))
        for wanted, texts in (True, yes), (False, no):
            for t in re.findall(r"`([^`]*)`", texts):
                check(keeps(s, slipring, g, t.replace("⏎", "\n")) == wanted, f"docs/grammar.md: {source}\n {wanted}: {t}")
                tried += 1
    check(text.count("\n### ") == 10 and tried > 40, f"ten examples with their texts, not {tried} texts")


def keeps(s, slipring, grammar, text):
    """Is the text, as the tokenizer cuts it, an answer of this grammar?"""
    lib, guide = slipring._text, slipring._P()
    lib.sr_guide_take.argtypes = [slipring._P, slipring.C.c_int32]
    lib.sr_guide_close.argtypes = [slipring._P]
    check(lib.sr_guide_open(slipring.C.byref(guide), grammar) == 0, "a guide")
    ok = all(lib.sr_guide_take(guide, i) == 0 for i in s.encode(text)) and \
        lib.sr_guide_take(guide, s._info.stop[0]) == 0
    lib.sr_guide_close(guide)
    return ok


with Programs() as p:
    p.daemon()
    tools(p)
    python(p)
done()
