#!/usr/bin/env python3
"""Joins the sources of the page to one file of HTML, and writes it as C: join.py PAGE.html PAGE.css SCRIPT.js .. OUT.c

The style replaces <!-- style --> and the scripts, as one, replace <!-- script -->.  Lines lose their indentation, and
lines that are only a // or /* */ comment are left out, so a template text in a script must not begin its lines with
one.  The page's Content-Security-Policy names the SHA-256 sums of both, so a browser runs nothing else."""
import base64, gzip, hashlib, re, sys


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"^[ \t]*/\*.*?\*/[ \t]*\n", "", f.read(), flags=re.M | re.S)
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def sum_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def array(name, data):
    rows = ("\t" + ",".join(map(str, data[i:i + 32])) + "," for i in range(0, len(data), 32))
    return f"const unsigned char {name}[] = {{\n" + "\n".join(rows) + f"\n}};\nconst size_t {name}_n = sizeof({name});\n"


def main(page, css, *rest):
    style = re.sub(r":\s+", ":", re.sub(r"\s*([{};,])\s*", r"\1", lines_of(css)))
    script = "\n".join(map(lines_of, rest[:-1]))
    html = lines_of(page)
    for mark, text in (("<!-- style -->", style), ("<!-- script -->", script)):
        if html.count(mark) != 1 or "</s" in text:
            sys.exit(f"join.py: {page} must have {mark} once, and what replaces it must not contain </s")
        html = html.replace(mark, text)
    raw = html.encode()
    policy = (f"default-src 'none'; script-src {sum_of(script)}; style-src {sum_of(style)}; connect-src 'self'; "
              "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
              "require-trusted-types-for 'script'; trusted-types 'none'")
    with open(rest[-1], "w", encoding="utf-8") as f:
        f.write("/* Made by adapters/http/page/join.py. */\n#include \"adapters/http/page/bytes.h\"\n\n")
        f.write(array("page_html", raw) + array("page_gzip", gzip.compress(raw, 9, mtime=0)))
        f.write(f'const char page_policy[] = "{policy}";\n')
        f.write(f'const char page_tag[] = "{hashlib.sha256(raw).hexdigest()[:24]}";\n')


main(*sys.argv[1:])
