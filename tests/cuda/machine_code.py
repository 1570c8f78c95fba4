#!/usr/bin/env python3
"""The machine code of the hot loops, from compiled objects, by NVIDIA's cuobjdump: how many instructions a warp issues
in a turn, registers, blocks on a multiprocessor, and what part of the roof that leaves room for.

    machine_code.py --check OBJECT ..     fails if a loop is longer than it may be
    machine_code.py OBJECT ..             the table of docs/cuda.md

No GPU runs.  The last column is an estimate by a model of three rates: a scheduler issues one instruction in a cycle,
tensor cores take so many cycles for an mma, and memory brings so many bytes; what takes longest sets the time."""
import collections, os, re, shutil, subprocess, sys

# Of one multiprocessor: bytes of memory in a cycle at 0.9 of the data sheet, cycles of an mma.m16n8k16 on one of its
# four tensor cores, shared memory, threads.
GPUS = {
    "sm_90a": (3.35e12 * 0.9 / 132 / 1.75e9, 6.2, 228 << 10, 2048),          # H100
    "sm_120": (1.79e12 * 0.9 / 188 / 2.4e9, 18.5, 100 << 10, 1536),          # RTX PRO 6000
}

# Kernel; target; threads; dynamic shared memory; bytes of memory in a turn; part of the loop that a turn executes (the
# rest is a group's or a tile's end); instructions of the loop before it was rewritten, 0: it was not; the most that it
# may have, 5 % more than nvcc 13.0 makes.
ROWS = [
    ("packed_few_kernel<few<16, 1>", "sm_90a", 256, 58 << 10, 1088, 0.70, 580, 349),
    ("packed_few_kernel<few<32, 1>", "sm_90a", 256, 76 << 10, 1280, 1, 589, 405),
    ("packed_few_kernel<few<64, 1>", "sm_90a", 256, 78 << 10, 1280, 1, 797, 566),
    ("packed_few_kernel<few<16, 2>", "sm_90a", 256, 91 << 10, 2112, 0.9, 468, 352),
    ("packed_few_kernel<few<16, 1>", "sm_120", 256, 58 << 10, 1088, 0.70, 538, 365),
    ("packed_few_kernel<few<32, 1>", "sm_120", 256, 76 << 10, 1280, 1, 594, 435),
    ("packed_few_kernel<few<64, 1>", "sm_120", 256, 78 << 10, 1280, 1, 777, 613),
    ("packed_few_kernel<few<16, 2>", "sm_120", 256, 91 << 10, 2112, 0.9, 397, 362),
    ("packed_many_kernel<many<(form)0>", "sm_120", 256, 38 << 10, 0, 1, 341, 369),
    ("rows_kernel<most_rows<16>", "sm_90a", 256, 92 << 10, 2048, 0.37, 952, 843),
    ("rows_kernel<most_rows<16>", "sm_120", 256, 92 << 10, 2048, 0.37, 970, 946),
    ("attend_one<128, false, false>", "sm_90a", 128, 70 << 10, 8192, 1, 884, 503),
    ("attend_one<128, false, false>", "sm_120", 128, 70 << 10, 8192, 1, 957, 553),
    ("attend_run<128, false, false>", "sm_120", 128, 70 << 10, 0, 1, 2772, 1169),
    ("hopper_attend_kernel<128, false>", "sm_90a", 384, 198 << 10, 0, 1, 4163, 869),
]


def tool():
    beside = [os.path.dirname(os.environ.get("NVCC", "")), "/usr/local/cuda/bin"]
    return shutil.which(os.environ.get("CUOBJDUMP", "cuobjdump"), path=os.pathsep.join(
        [os.environ.get("PATH", "")] + [b for b in beside if b]))


def run(words, data=None):
    return subprocess.run(words, input=data, capture_output=True, text=True).stdout


def functions(cuobjdump, path):
    """(target, function) -> [(address, instruction)]; and (function, registers), of any target."""
    code, use, target, name = collections.defaultdict(list), [], None, None
    for line in run([cuobjdump, "-sass", path]).splitlines():
        if m := re.match(r"\s*code for (\S+)", line):
            target = m[1]
        elif m := re.match(r"\s*Function : (\S+)", line):
            name = m[1]
        elif m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            code[target, name].append((int(m[1], 16), m[2]))
    for line in run([cuobjdump, "-res-usage", path]).splitlines():
        if m := re.match(r"\s*Function (\S+):", line):
            name = m[1]
        elif m := re.match(r"\s*REG:(\d+)", line):
            use.append((name, int(m[1])))
    return code, use


def hot_loop(code):
    """The shortest loop that has the most mma: (instructions, mma)."""
    index = {at: i for i, (at, _) in enumerate(code)}
    mma = [bool(re.search(r"\b[HQI]G?MMA\b", text)) for _, text in code]
    loops = []
    for i, (_, text) in enumerate(code):
        m = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        start = index.get(int(m[1], 16)) if m else None
        if start is not None and start < i:
            loops.append((i + 1 - start, sum(mma[start:i + 1])))
    most = max((n for _, n in loops), default=0)
    inner = [l for l in loops if l[1] >= most * 3 / 4 and l[1]]
    return min(inner, default=(0, 0))


def blocks(registers, threads, shared, gpu):
    _, _, room, most = GPUS[gpu]
    by_registers = 65536 // (-(-registers // 8) * 8 * threads)
    return min(by_registers, room // (shared + 1024), most // threads)


def roof(gpu, instructions, mma, size):
    bytes_cycle, mma_cycles, _, _ = GPUS[gpu]
    tensor = mma * mma_cycles / 4
    memory, issue = size / bytes_cycle if size else 0, instructions / 4
    return max(memory, tensor) / max(memory, tensor, issue), \
        "memory" if memory >= max(tensor, issue) else "tensor cores" if tensor >= issue else "issue"


def main():
    check = "--check" in sys.argv
    paths = [a for a in sys.argv[1:] if not a.startswith("--")]
    cuobjdump = tool()
    if not cuobjdump:
        print("SKIP machine code: no cuobjdump (of the CUDA toolkit; CUOBJDUMP= names it)")
        return 0
    found, used = {}, {}
    for path in paths:
        code, use = functions(cuobjdump, path)
        names = sorted({n for _, n in code} | {n for n, _ in use})
        plain = dict(zip(names, run(["c++filt"], "\n".join(names)).splitlines()))
        for (target, name), lines in code.items():
            found[plain[name], target] = hot_loop(lines)
        for name, registers in use:
            used.setdefault(plain[name], []).append(registers)
    bad = 0
    if not check:
        print("| kernel | target | instructions of the hot loop: before, now | mma | registers | blocks | part of the "
              "roof: before, now | bound by |\n|---|---|---|---|---|---|---|---|")
    for kernel, target, threads, shared, size, part, before, limit in ROWS:
        hit = [(k, v) for k, v in found.items() if k[1] == target and kernel in k[0]]
        if not hit:
            if not check:
                print(f"| `{kernel}` | {target} | not in these objects |")
            continue
        (name, _), (n, mma) = hit[0]
        registers = max(used.get(name, [255]))
        if check:
            if limit and n > limit:
                print(f"FAILED {kernel} on {target}: {n} instructions in its loop, {limit} may be")
                bad += 1
            continue
        wgmma = "hopper" in kernel
        now, by = roof(target, n * part, 0 if wgmma else mma, size)
        was, _ = roof(target, before * part, 0 if wgmma else mma, size)
        if wgmma:                          # 128 positions: 1,024 cycles of a tensor core; two warps a scheduler
            now, was, by = min(1, 2048 / (2 * n)), min(1, 2048 / (before)), "tensor cores" if n < 1024 else "issue"
        print(f"| `{kernel}` | {target} | {before or '-'}, {n} | {mma} | {registers} | "
              f"{blocks(registers, threads, shared, target)} | {f'{was:.2f}' if before else '-'}, {now:.2f} | {by} |")
    if check and not bad:
        print(f"ok: {len(ROWS)} checks of machine code")
    return bad > 0


sys.exit(main())
