#!/usr/bin/env python3
"""tests/cuda/machine_code.py with a stand-in for cuobjdump: loops as long as they may be pass; a longer one, and one that
is not there, are named; the tables of docs/cuda.md have their rows, and the document has the same."""
import subprocess
from harness import *

sys.path.insert(0, os.path.join(HERE, "cuda"))
import hot

ALL = hot.LOOPS + hot.LENGTHS
STAND_IN = '#!/bin/sh\ncase $3 in -sass) cat "$4.$2.sass" ;; *) cat "$4.$2.use" ;; esac\n'


def write(at, longer=None, without=None, spills=None):
    """What cuobjdump would print of each object and target."""
    for file, target in {(l.file, l.target) for l in ALL}:
        sass = use = ""
        for loop in (l for l in ALL if (l.file, l.target) == (file, target) and l != without):
            n = loop.made + (loop.made // 16 if loop == longer else 0)
            lines = ["MOV R1, c[0x0][0x28]"] + ["HMMA.16816.F32.BF16 R1, R2, R3, R1"] * 16 + \
                ["LDL R1, [R2]" if loop == spills else "NOP"] + ["IADD3 R1, R2, R3, R4"] * (n - 18) + ["@P0 BRA 0x10", "EXIT"]
            sass += f"\tFunction : {loop.kernel}(args)\n"
            sass += "".join(f"        /*{16 * i:04x}*/   {t} ;\n" for i, t in enumerate(lines))
            use += f" Function {loop.kernel}(args):\n  REG:128 STACK:24 SHARED:0\n"
        for what, text in (("sass", sass), ("use", use)):
            with open(os.path.join(at, f"{file}.o.{target}.{what}"), "w") as f:
                f.write(text)


def run(at, *options):
    objects = sorted({os.path.join(at, l.file + ".o") for l in ALL})
    r = subprocess.run([sys.executable, os.path.join(HERE, "cuda/machine_code.py"), *options, *objects],
                       capture_output=True, text=True, env={**os.environ, "CUOBJDUMP": os.path.join(at, "cuobjdump")})
    return r.returncode, r.stdout + r.stderr


def rows(text):
    """The first cells of each row of the tables, without figures."""
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [c[:3] if c[0].startswith(("H100", "RTX")) else c[:2] for c in cells
            if c[0].startswith(("H100", "RTX")) or (len(c) > 8 and c[1].startswith("sm_"))]


def main():
    with tempfile.TemporaryDirectory() as at:
        with open(os.path.join(at, "cuobjdump"), "w") as f:
            f.write(STAND_IN)
        os.chmod(os.path.join(at, "cuobjdump"), 0o755)
        write(at)
        code, text = run(at, "--check")
        check(code == 0 and f"ok: {len(ALL)} loops" in text, f"as long as they may be: {code} {text}")
        code, text = run(at)
        check(code == 0 and len(rows(text)) == len(hot.LOOPS) + 2 * 5 * 3, f"a row for each loop and each work: {text}")
        check("| 128 | 24, 0 |" in text and "not in these objects" not in text, f"registers and stack: {text}")
        with open(os.path.join(os.path.dirname(HERE), "docs/cuda.md")) as f:
            check(rows(text) == rows(f.read()), "docs/cuda.md has the rows that make cuda-report prints")
        longer, without, spills = hot.LOOPS[0], hot.LOOPS[-1], hot.LENGTHS[-1]
        write(at, longer, without, spills)
        code, text = run(at, "--check")
        for loop, why in ((longer, f"{longer.made * 17 // 16} instructions in its loop, "), (without, "there is no such loop"),
                          (spills, "1 instructions of its loop touch spilled registers")):
            check(code == 1 and f"FAILED {loop.kernel} on {loop.target}: {why}" in text, f"what has grown is named: {text}")
        check(text.count("FAILED") == 3, f"and nothing else: {text}")
        code, text = run(os.path.join(at, "nowhere"), "--check")
        check(code == 0 and "SKIP machine code: no cuobjdump" in text, f"without cuobjdump: {code} {text}")
    done()


main()
