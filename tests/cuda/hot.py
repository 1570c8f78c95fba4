"""The hot loops of kernels/cuda: what a turn of a warp does, and how long the loop is.  machine_code.py holds compiled
objects to it; expect.py makes of it what steps may take."""
import collections

# Of a GPU: processors, clock, memory in bytes a second at 0.9 of the data sheet, cycles of an mma.m16n8k16 on one of a
# processor's four tensor cores (a wgmma of n tokens: n / 2), FLOP/s of bf16, shared memory and threads of a processor.
Gpu = collections.namedtuple("Gpu", "name processors clock memory mma flops shared threads")
GPUS = {
    "sm_90a": Gpu("H100", 132, 1.75e9, 3.35e12 * 0.9, 6.2, 989e12, 228 << 10, 2048),
    "sm_120": Gpu("RTX PRO 6000", 188, 2.4e9, 1.79e12 * 0.9, 18.5, 400e12, 100 << 10, 1536),
}

# file, kernel, target; threads and dynamic shared memory of a block; bytes of weights, or keys and values, that a turn
# reads once from memory (0: tiles that stay in L2); the elements of w that a warp multiplies in a turn; rows at once;
# the part of the loop that a turn executes (the rest is the end of a group or tile); instructions of the loop in the
# first version, and as many of them as a turn executed if it was another part; instructions that nvcc 13.0 makes now.
Loop = collections.namedtuple("Loop", "file kernel target threads shared bytes weights rows part before made")


def both(file, kernel, threads, shared, size, weights, rows, part, h100, blackwell):
    return [Loop(file, kernel, target, threads, shared, size, weights, rows, part, *counts)
            for target, counts in (("sm_90a", h100), ("sm_120", blackwell)) if counts]


LOOPS = sum([
    both("packed_few_rows", "packed_few_kernel<few<16, 1>", 256, 58384, 1088, 2048, 16, 0.7, (580, 334), (538, 324)),
    both("packed_few_rows", "packed_few_kernel<few<32, 1>", 256, 75792, 1280, 2048, 32, 1, (589, 388), (594, 368)),
    both("packed_few_rows", "packed_few_kernel<few<64, 1>", 256, 77840, 1280, 2048, 64, 1, (797, 541), (777, 585)),
    both("packed_few_rows", "packed_few_kernel<few<16, 2>", 256, 91152, 2112, 2048, 16, 0.9, (468, 337), (397, 327)),
    both("packed_few_rows", "packed_few_kernel<few<32, 2>", 256, 81424, 2112, 2048, 32, 1, (474, 367), (474, 336)),
    both("packed_few_rows", "packed_few_kernel<few<64, 2>", 256, 82960, 2112, 2048, 64, 1, (538, 484), (529, 503)),
    both("packed_many_rows", "packed_many_kernel<many<(form)0>", 256, 38416, 0, 512, 128, 0.65, None, (341, 351)),
    both("packed_many_rows", "packed_many_kernel<many<(form)2>", 256, 43024, 0, 512, 128, 1, None, (317, 317)),
    both("dense_few_rows", "rows_kernel<most_rows<16>", 256, 92176, 2048, 1024, 16, 0.37, (952, 836), (970, 928)),
    both("dense_few_rows", "rows_kernel<most_rows<32>", 256, 81936, 2048, 1024, 32, 0.25, (1305, 1367), (1267, 1464)),
    both("dense_few_rows", "rows_kernel<most_rows<64>", 256, 98320, 2048, 1024, 64, 0.17, (2130, 2205), (2396, 2629)),
    both("hopper_many_rows", "hopper_many_kernel<tile_shape<(form)0, 256>", 384, 197792, 0, 3072, 256, 0.33, (743, 743), None),
    both("hopper_many_rows", "hopper_many_kernel<tile_shape<(form)1, 128>", 384, 173216, 0, 1024, 128, 1, (229, 229), None),
    both("hopper_many_rows", "hopper_many_kernel<tile_shape<(form)1, 256>", 384, 228496, 0, 1024, 256, 1, (231, 231), None),
    both("hopper_many_rows", "hopper_many_kernel<tile_shape<(form)2, 128>", 384, 200816, 0, 2048, 128, 1, (163, 163), None),
    both("attend", "attend_one<128, false, false>", 128, 69648, 8192, 0, 16, 1, ((864, 550), 464), ((884, 550), 503)),
    both("attend", "attend_run<128, false, false>", 128, 69632, 0, 0, 16, 1, None, ((2762, 1200), 1090)),
    both("hopper_attend", "hopper_attend_kernel<128, false>", 384, 198 << 10, 0, 0, 16, 1, ((4162, 1800), 828), None),
], [])


# What only the length is known of: file, kernel, target, instructions that nvcc 13.0 makes.
Length = collections.namedtuple("Length", "file kernel target made")
LENGTHS = [Length(file, kernel, target, made) for file, kernel, counts in (
    ("matmul", "matmul_kernel", (470, 206)),
    ("grouped", "by_expert<16, (held)1>", (725, 153)),
    ("grouped", "by_expert<64, (held)1>", (732, 225)),
    ("grouped", "by_expert<16, (held)2>", (1332, 311)),
    ("grouped", "by_expert<64, (held)2>", (1482, 570)),
    ("grouped", "by_expert<16, (held)4>", (1342, 319)),
    ("grouped", "by_expert<64, (held)4>", (1505, 588)),
) for target, made in zip(GPUS, counts)]

# Instructions in a loop that touch spilled registers; no other loop has any.
LOCAL = {("packed_few_kernel<few<32, 1>", "sm_90a"): 1, ("by_expert<16, (held)2>", "sm_90a"): 1}


def before(loop):
    """Instructions of the first version's loop, and of them what a turn executed."""
    return loop.before if isinstance(loop.before, tuple) else (loop.before, loop.before * loop.part)


def turn(loop, executed, mma):
    """Cycles of a processor for a warp's turn: issue, tensor cores, memory."""
    gpu = GPUS[loop.target]
    mma_cycles = loop.rows / 2 if "tile_shape" in loop.kernel else 64 if "hopper" in loop.kernel else gpu.mma
    size = loop.bytes / (gpu.memory / gpu.processors / gpu.clock)
    return executed / 4, mma * mma_cycles / 4, size


def roof(loop, executed, mma):
    """The part of the roof, and what it is bound by."""
    issue, tensor, memory = turn(loop, executed, mma)
    best = max(memory, tensor)
    return best / max(best, issue), "issue" if issue > best else "memory" if memory >= tensor else "tensor cores"


def blocks(loop, registers):
    gpu = GPUS[loop.target]
    by_registers = 65536 // (-(-registers // 8) * 8 * loop.threads)
    return min(by_registers, gpu.shared // (loop.shared + 1024), gpu.threads // loop.threads)
