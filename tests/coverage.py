#!/usr/bin/env python3
"""Which branches of core/ and shmring/ the tests take: tests/coverage.py BUILD TEST...

BUILD was compiled with --coverage; each TEST in it is run, then gcovr counts.  Assertions are left out:
nothing can take their other branch.  Exit 1 below a floor, or if a test fails.  SKIP without gcovr."""
import fnmatch, json, os, pathlib, shutil, subprocess, sys

# Floors in per cent: of a file by the first pattern that fits, of a group of files by its sum.
FLOORS = [("shmring/*", 95), ("core/clients/*.c", 95), ("core/kv/*.c", 95), ("core/sched/*.c", 90),
          ("core/models/*.c", 90), ("core/models/gguf.c", 90), ("core/models/safetensors.c", 90), ("core/instance/config*.c", 90)]
GROUPS = [("rings and trust boundary", ["shmring/*", "core/clients/*.c", "core/kv/*.c"], 95), ("core", ["core/*"], 90)]


def fits(path, patterns):
    return any(fnmatch.fnmatch(path, p) for p in patterns)


def run(build, tests):
    for old in pathlib.Path(build).rglob("*.gcda"):
        old.unlink()
    bad = 0
    for t in tests:
        try:
            r = subprocess.run([f"{build}/tests/{t}"], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
            rc, said = r.returncode, r.stdout + r.stderr
        except subprocess.TimeoutExpired as e:
            rc, said = "timed out", e.output or b""
        if rc:
            bad += 1
            print(f"FAILED {t} ({rc}):\n" + said.decode(errors="replace")[-2000:])
    return bad


def main():
    gcovr, build = os.environ.get("GCOVR") or shutil.which("gcovr"), sys.argv[1]
    if not gcovr:
        print("SKIP coverage: gcovr is not installed (apt install gcovr)")
        return 0
    bad = run(build, sys.argv[2:])
    r = subprocess.run([gcovr, "-r", ".", "--json-summary", "-", "--exclude-throw-branches",
                        "--exclude-branches-by-pattern", ".*(assert|MUST).*", "-f", "core/", "-f", "shmring/", build],
                       capture_output=True, text=True, check=True)
    files = {f["filename"]: f for f in json.loads(r.stdout)["files"] if f["branch_total"]}

    def line(name, total, taken, floor):
        share = 100 * taken / total
        print(f"{name:28} {taken:6} of {total:6} {share:6.1f} %  {f'{floor} %' if floor else '':>6}"
              f"{'  BELOW' if floor and share < floor else ''}")
        return bool(floor and share < floor)

    print(f"{'':28} {'branches taken':>16} {'':>8}  {'floor':>6}")
    for name, f in sorted(files.items()):
        floor = next((p for pat, p in FLOORS if fnmatch.fnmatch(name, pat)), None)
        bad += line(name, f["branch_total"], f["branch_covered"], floor)
    for name, patterns, floor in GROUPS:
        mine = [f for n, f in files.items() if fits(n, patterns)]
        bad += line(name, sum(f["branch_total"] for f in mine), sum(f["branch_covered"] for f in mine), floor)
    return 1 if bad else 0


sys.exit(main())
