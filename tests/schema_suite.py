#!/usr/bin/env python3
"""JSON-Schema-Test-Suite through the guide: tests/schema_suite.py BUILD [SUITE]

SUITE is the folder with draft4 .. draft2020-12; without it, the suite is taken from the source archive of PyPI's
jsonschema, which is kept in BUILD.  Each instance goes through the guide byte by byte.  An instance is

    right     accepted and valid, or refused and invalid
    refused   its schema does not compile; the message names the keyword
    order     valid, and accepted only with its properties in the schema's order
    spelling  valid, and accepted only with whole numbers written without a fraction or exponent
    format    valid only because formats are annotations for the suite; here they are enforced
    narrow    valid and refused, for another reason
    WRONG     invalid and accepted: the test fails
"""
import itertools
import json
import os
import subprocess
import sys
import tarfile

VERSION = "4.23.0"
DRAFTS = ["draft2020-12", "draft2019-09", "draft7", "draft6", "draft4"]
DIALECT = {"draft4": "http://json-schema.org/draft-04/schema#", "draft6": "http://json-schema.org/draft-06/schema#",
           "draft7": "http://json-schema.org/draft-07/schema#",
           "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
           "draft2020-12": "https://json-schema.org/draft/2020-12/schema"}


def suite(build):
    name = f"jsonschema-{VERSION}"
    archive = os.path.join(build, name + ".tar.gz")
    if not os.path.exists(archive):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                        "-d", build, f"jsonschema=={VERSION}"], check=False)
    if not os.path.exists(archive):
        print("SKIP schema-suite: the source archive of jsonschema cannot be fetched")
        sys.exit(0)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if member.name.startswith(f"{name}/json/tests/") and member.isfile():
                tar.extract(member, build, filter="data")
    return os.path.join(build, name, "json", "tests")


def text(v):
    return json.dumps(v, ensure_ascii=False)


def orders(v, budget=200):
    """The instance with the properties of its objects in other orders."""
    if isinstance(v, dict):
        parts = [[(k, x) for x in orders(v[k], 8)] for k in v]
        all_ = (dict(p) for one in itertools.product(*parts) for p in itertools.permutations(one))
    elif isinstance(v, list):
        all_ = (list(p) for p in itertools.product(*[orders(x, 8) for x in v]))
    else:
        all_ = iter([v])
    return list(itertools.islice(all_, budget))


def whole(v):
    """The instance with whole numbers as integers."""
    if isinstance(v, dict):
        return {k: whole(x) for k, x in v.items()}
    if isinstance(v, list):
        return [whole(x) for x in v]
    return int(v) if isinstance(v, float) and v == int(v) else v


def ask(walk, schema, instances):
    walk.stdin.write(json.dumps({"schema": schema, "additional_properties": True,
                                 "texts": [text(i) for i in instances]}) + "\n")
    walk.stdin.flush()
    line = walk.stdout.readline()
    if not line:
        sys.exit(f"FAILED schema-suite: the walker died at {text(schema)}")
    return json.loads(line)


def judge(walk, schema, case, took, formats):
    if took == case["valid"]:
        return "right"
    if took:
        return "WRONG"
    if any(ask(walk, schema, orders(case["data"]))["took"]):
        return "order"
    if any(ask(walk, schema, [whole(case["data"])])["took"]):
        return "spelling"
    return "format" if formats and isinstance(case["data"], str) else "narrow"


def main():
    build = sys.argv[1]
    root = sys.argv[2] if len(sys.argv) > 2 else suite(build)
    walk = subprocess.Popen([os.path.join(build, "tests", "grammar_walk")], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, encoding="utf-8")
    wrong, slowest, reasons = [], 0, {}
    for draft in DRAFTS:
        count = dict.fromkeys(["right", "refused", "order", "spelling", "format", "narrow", "WRONG"], 0)
        files = [(f, False) for f in sorted(os.listdir(os.path.join(root, draft))) if f.endswith(".json")]
        folder = os.path.join(root, draft, "optional", "format")
        files += [(os.path.join("optional", "format", f), True) for f in sorted(os.listdir(folder))]
        for name, optional in files:
            with open(os.path.join(root, draft, name), encoding="utf-8") as f:
                groups = json.load(f)
            for group in groups:
                schema = group["schema"]
                if isinstance(schema, dict) and "$schema" not in schema:
                    schema = {"$schema": DIALECT[draft], **schema}
                out = ask(walk, schema, [c["data"] for c in group["tests"]])
                slowest = max(slowest, out["us"])
                for i, case in enumerate(group["tests"]):
                    what = "refused" if "error" in out else judge(walk, schema, case, out["took"][i],
                                                                  "format" in json.dumps(schema))
                    if what == "refused" and not out["error"]:
                        what = "WRONG"          # refused without a word
                    count[what] += 1
                    line = f"{draft}/{name}: {group['description']}: {case['description']}: {text(case['data'])}"
                    if what == "WRONG":
                        wrong.append(line)
                    if "-v" in sys.argv and what in ("narrow", "spelling", "order", "refused"):
                        print(what, line, out.get("error", ""))
                if "error" in out:
                    reasons[out["error"]] = reasons.get(out["error"], 0) + len(group["tests"])
        print(f"{draft}: " + ", ".join(f"{v} {k}" for k, v in count.items()))
    for line in wrong:
        print("WRONG", line)
    print(f"slowest schema: {slowest / 1000:.1f} ms")
    walk.stdin.close()
    if walk.wait() or wrong:
        print(f"FAILED schema-suite: {len(wrong)} invalid instances accepted")
        sys.exit(1)
    print("ok schema-suite")


if __name__ == "__main__":
    main()
