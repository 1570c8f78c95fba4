#!/usr/bin/env python3
"""The machine code of the hot loops, from compiled objects, by NVIDIA's cuobjdump: how many instructions a warp issues
in a turn, registers, shared memory, blocks on a multiprocessor, and what part of the roof that leaves room for.

    machine_code.py --check OBJECT ..     fails if a loop is more than 5 % longer than nvcc 13.0 makes it
    machine_code.py OBJECT ..             the tables of docs/cuda.md

No GPU runs.  Parts of the roof are estimates by a model of three rates: a scheduler issues one instruction in a cycle,
tensor cores take so many cycles for an mma, and memory brings so many bytes; what takes longest sets the time."""
import collections, glob, os, re, shutil, subprocess, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import expect, hot

SLACK = 1.05


def tool():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build/cuda-tools/nvidia/*/bin")
    beside = [os.path.dirname(os.environ.get("NVCC", "")), "/usr/local/cuda/bin"] + glob.glob(here)
    return shutil.which(os.environ.get("CUOBJDUMP", "cuobjdump"), path=os.pathsep.join(
        [os.environ.get("PATH", "")] + [b for b in beside if b]))


def run(words, data=None):
    # cuobjdump looks for nvdisasm in PATH
    env = {**os.environ, "PATH": os.path.dirname(words[0]) + os.pathsep + os.environ.get("PATH", "")}
    return subprocess.run(words, input=data, capture_output=True, text=True, env=env).stdout


def plain(names):
    return dict(zip(names, run([shutil.which("c++filt") or "c++filt"], "\n".join(names)).splitlines()))


def functions(cuobjdump, path, target):
    """By plain name: [(address, instruction)], and (registers, bytes of stack)."""
    code, use, name = collections.defaultdict(list), {}, None
    for line in run([cuobjdump, "-arch", target, "-sass", path]).splitlines():
        if m := re.match(r"\s*Function : (.+?)\s*$", line):
            name = m[1]
        elif m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            code[name].append((int(m[1], 16), m[2]))
    for line in run([cuobjdump, "-arch", target, "-res-usage", path]).splitlines():
        if m := re.match(r"\s*Function (.+):\s*$", line):
            name = m[1]
        elif m := re.match(r"\s*REG:(\d+) STACK:(\d+)", line):
            use[name] = int(m[1]), int(m[2])
    names = plain(sorted(set(code) | set(use)))
    return {names[n]: c for n, c in code.items()}, {names[n]: u for n, u in use.items()}


def hot_loop(code):
    """The shortest loop that has the most mma: (instructions, mma, those that touch local memory)."""
    index = {at: i for i, (at, _) in enumerate(code)}
    mma = [bool(re.search(r"\b[HQIO]G?MMA\b", text)) for _, text in code]
    local = [bool(re.search(r"\b(LDL|STL)\b", text)) for _, text in code]
    loops = []
    for i, (_, text) in enumerate(code):
        m = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        start = index.get(int(m[1], 16)) if m else None
        if start is not None and start < i:
            loops.append((i + 1 - start, sum(mma[start:i + 1]), sum(local[start:i + 1])))
    most = max((l[1] for l in loops), default=0)
    inner = [l for l in loops if l[1] >= most * 3 / 4 and l[1]]
    return min(inner, default=(0, 0, 0))


def measure(cuobjdump, paths):
    """Loop -> (instructions, mma, spills in it, registers, stack), of those in these objects."""
    found = {}
    for path in paths:
        file = os.path.splitext(os.path.basename(path))[0]
        for target in hot.GPUS:
            of = [l for l in hot.LOOPS + hot.LENGTHS if l.file == file and l.target == target]
            if not of:
                continue
            code, use = functions(cuobjdump, path, target)
            for loop in of:
                name = next((n for n in code if loop.kernel in n), None)
                if name:
                    found[loop] = hot_loop(code[name]) + use.get(name, (255, 0))
    return found


def check(found):
    bad, loops = 0, hot.LOOPS + hot.LENGTHS
    for loop in loops:
        n, _, local, _, _ = found.get(loop, (0,) * 5)
        most = int(loop.made * SLACK)
        if not n or n > most:
            print(f"FAILED {loop.kernel} on {loop.target}: " +
                  (f"{n} instructions in its loop, {most} may be" if n else "there is no such loop"))
            bad += 1
        if local > hot.LOCAL.get((loop.kernel, loop.target), 0):
            print(f"FAILED {loop.kernel} on {loop.target}: {local} instructions of its loop touch spilled registers")
            bad += 1
    if not bad:
        print(f"ok: {len(loops)} loops are no longer than they may be")
    return bad > 0


def table(found):
    print("| kernel | target | instructions of the hot loop: before, now | mma | registers | stack, bytes; in the loop | shared, KiB "
          "| blocks | part of the roof: before, now | bound by |\n|" + "---|" * 10)
    for loop in hot.LOOPS:
        if loop not in found:
            print(f"| `{loop.kernel}` | {loop.target} | not in these objects |")
            continue
        n, mma, local, registers, stack = found[loop]
        length, executed = hot.before(loop)
        now, by = hot.roof(loop, n * loop.part, mma)
        was, _ = hot.roof(loop, executed, mma)
        print(f"| `{loop.kernel}` | {loop.target} | {length}, {n} | {mma} | {registers} | {stack}, {local} | "
              f"{loop.shared / 1024:.0f} | {hot.blocks(loop, registers)} | {was:.2f}, {now:.2f} | {by} |")


def main():
    paths = [a for a in sys.argv[1:] if not a.startswith("--")]
    cuobjdump = tool()
    if not cuobjdump:
        print("SKIP machine code: no cuobjdump; tools/setup.sh cuda installs it, CUOBJDUMP= names another")
        return 0
    found = measure(cuobjdump, paths)
    if "--check" in sys.argv:
        return check(found)
    table(found)
    print()
    expect.table(found)
    print()
    expect.verb_table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
