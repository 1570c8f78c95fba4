"""What steps of Llama-3.1-8B may take, by the lengths of hot loops (hot.py) and this model.  Estimates: no GPU ran.

A product takes the longest of three times: its bytes at the memory's rate, its instructions at one a cycle and
scheduler, its mma at the tensor cores' rate.  The latter two are divided by FILL, the part of the rate that so few warps
reach.  Tiles that no processor has are waited for.  Parts of tiles are added up in so many us.  Small kernels take a
time of their own, or that of their bytes at three times the memory's rate, as these lie in L2.  All are added up.
The roof of a step is the sum, over its kernels, of the longer of bytes and operations at the best rates."""
import math

import hot

LAYERS, D, FF, QKV, VOCAB, HEADS, KV_HEADS, HEAD = 32, 4096, 14336, 6144, 128256, 32, 8, 128
PRODUCTS = [(QKV, D), (D, D), (2 * FF, D), (D, FF)]
CONTEXT = 512                                # positions behind each token of a decode step
WORKS = [("decode 1", 1), ("decode 16", 16), ("decode 64", 64), ("decode 256", 256), ("prefill 2k", 2048)]
KINDS = {"bf16": 2.0, "FP8": 1.0, "W4": 0.53125}      # bytes of a weight with its scales
LT = 0.8                                     # of the roof: products of bf16 by cuBLASLt, whose code is not ours
FILL = {"wgmma": 0.9, 1: 0.6, 2: 0.8}        # of tensor cores and issue: one or two blocks of eight warps with mma
PARTS = 2.5                                  # us, to add up parts of tiles
LATENCY = 0.25                               # us, of L2
SAMPLE = 50.0                                # us, greedy, a block a row
SMALL = {                                    # us at least, of a kernel of few rows
    "before": {"rope": 5.5, "norm": 2.75, "act": 1.5, "attend": 7},
    "now": {"rope": 1.5, "norm": 1.2, "act": 1.5, "attend": 4},
}


def least(gpu, size, flops, fp8):
    return max(size / gpu.memory, flops / (gpu.flops * (2 if fp8 else 1))) * 1e6


def loop_of(found, target, part):
    return next((l for l in found if l.target == target and part in l.kernel), None)


def by_loop(found, loop, when, N, K, T, size):
    """us of a product that this loop computes."""
    gpu, (n, mma, _, registers, _) = hot.GPUS[loop.target], found[loop]
    issue, tensor, _ = hot.turn(loop, hot.before(loop)[1] if when == "before" else n * loop.part, mma)
    columns = math.ceil(T / loop.rows)
    turns = N * K * columns / loop.weights
    wgmma = "tile_shape" in loop.kernel
    fill = FILL["wgmma" if wgmma else min(2, hot.blocks(loop, registers))]
    waves = 1
    if "packed_many" in loop.kernel:         # whole tiles alone; the others divide what is left
        tiles = math.ceil(N / 128) * columns
        waves = math.ceil(tiles / gpu.processors) * gpu.processors / tiles
    cycles = turns * max(issue, tensor) / fill * waves / gpu.processors
    return max(cycles / gpu.clock * 1e6, size * (columns if loop.bytes else 1) / gpu.memory * 1e6)


def product(found, target, kind, when, N, K, T):
    """(us, us at the roof); None: a loop is not there."""
    gpu, size = hot.GPUS[target], N * K * KINDS[kind] + 2 * T * (N + K)
    best = least(gpu, size, 2 * N * K * T, kind == "FP8" and T > 64)
    few = 64 if target == "sm_90a" or when == "before" or kind == "bf16" else 128 if kind == "FP8" else 256
    rows = 16 if T <= 16 else 32 if T <= 32 else 64
    if T > 64 and kind == "bf16":
        return best / LT, best
    if T <= few:
        name = f"most_rows<{rows}>" if kind == "bf16" else f"few<{rows}, {1 if kind == 'W4' else 2}>"
        turns = rows * (256 if rows == 64 else 128) / 256    # of 3 to 4 latencies each, in the first version
        parts = turns * 3.5 * LATENCY if kind != "bf16" and when == "before" else PARTS
    elif target == "sm_90a":
        name, parts = "tile_shape<(form)1, 256>" if kind == "W4" else "tile_shape<(form)2, 128>", PARTS
    else:
        name, parts = f"many<(form){0 if kind == 'W4' else 2}>", 0
    loop = loop_of(found, target, name)
    times = math.ceil(T / 64) if T <= few else 1
    return loop and (by_loop(found, loop, when, N, K, T, size) + parts * times, best)


def attention(found, target, when, T):
    gpu = hot.GPUS[target]
    if T <= 256:
        loop, turns = loop_of(found, target, "attend_one<128"), T * KV_HEADS * CONTEXT / 16
        size, flops = T * CONTEXT * KV_HEADS * HEAD * 4, 0
    else:
        loop = loop_of(found, target, "hopper_attend" if target == "sm_90a" else "attend_run<128")
        turns = T * HEADS * T / 2 / (16 * (128 if target == "sm_90a" else 64))
        size, flops = 4 * T * KV_HEADS * HEAD, 2 * T * T * HEADS * HEAD
    if not loop:
        return None
    n, mma, _, registers, _ = found[loop]
    fill = FILL["wgmma" if "hopper" in loop.kernel else min(2, hot.blocks(loop, registers))]
    executed = hot.before(loop)[1] if when == "before" else n * loop.part
    cycles = turns * max(hot.turn(loop, executed, mma)[:2]) / fill / gpu.processors
    return max(cycles / gpu.clock * 1e6, size / gpu.memory * 1e6, SMALL[when]["attend"] if T <= 256 else 0), \
        least(gpu, size, flops, False)


def step(found, target, kind, when, T):
    """(us, us at the roof) of a step of T rows, or None."""
    gpu, small = hot.GPUS[target], SMALL[when]
    each = [product(found, target, kind, when, N, K, T) for N, K in PRODUCTS] + [attention(found, target, when, T)]
    head = product(found, target, "bf16", when, VOCAB, D, T if T <= 256 else 1)
    if None in each or not head:
        return None
    l2 = lambda us, size: max(us, size / (3 * gpu.memory) * 1e6)
    rest = l2(small["rope"], 4 * T * QKV) + 2 * l2(small["norm"], 10 * T * D) + l2(small["act"], 6 * T * FF)
    return LAYERS * (sum(us for us, _ in each) + rest) + head[0] + SAMPLE, LAYERS * sum(b for _, b in each) + head[1]


def small_verb(gpu, kind, T):
    least_us, size = {"norm": (SMALL["now"]["norm"], 10 * T * D), "rope and store": (SMALL["now"]["rope"], 4 * T * QKV),
                      "activation": (SMALL["now"]["act"], 6 * T * FF)}[kind]
    return max(least_us, size / (3 * gpu.memory) * 1e6), size / gpu.memory * 1e6


def verb_table(found):
    """Parts of the roof of each verb, as tests/cuda/verbs.awk reads them."""
    rows = []
    for target, gpu in hot.GPUS.items():
        for kind in KINDS:
            for name, (N, K) in zip(("q, k, v", "o", "gate and up", "down"), PRODUCTS):
                rows.append((target, kind, name, [product(found, target, kind, "now", N, K, T) for _, T in WORKS]))
        for name in ("norm", "rope and store", "activation"):
            rows.append((target, "all", name, [small_verb(gpu, name, T) for _, T in WORKS]))
        rows.append((target, "all", "attention", [attention(found, target, "now", T) for _, T in WORKS]))
        decode = [T for _, T in WORKS[:-1]]
        rows.append((target, "all", "head", [product(found, target, "bf16", "now", VOCAB, D, T) for T in decode] + [None]))
        rows.append((target, "all", "sample, greedy", [(SAMPLE, 4 * T * VOCAB / gpu.memory * 1e6) for T in decode] + [None]))
    print("| target | weights | part of a step | 1 | 16 | 64 | 256 | a prompt of 2k |\n|" + "---|" * 8)
    for target, kind, name, each in rows:
        print(f"| {target} | {kind} | {name} | " + " | ".join(f"{min(1, e[1] / e[0]):.2f}" if e else "-" for e in each) + " |")


def table(found):
    print(f"| GPU | work, {CONTEXT} positions behind a token | weights | a step, ms: before, now "
          "| part of the roof: before, now |\n|" + "---|" * 5)
    for target, gpu in hot.GPUS.items():
        for work, T in WORKS:
            for kind in KINDS:
                was, now = (step(found, target, kind, when, T) for when in ("before", "now"))
                if was and now:
                    print(f"| {gpu.name} ({target}) | {work} | {kind} | {was[0] / 1e3:.2f}, {now[0] / 1e3:.2f} | "
                          f"{was[1] / was[0]:.2f}, {now[1] / now[0]:.2f} |")
