#!/usr/bin/env python3
"""PyTorch's kernels on the same GPU, minutes after ours: tests/cuda/peers.py --rows OURS --out FILE, by
tools/gpu-check.sh; with --device cpu a tiny shape, to see that it runs.

Each is the median of seven runs of many calls; weights are another layer's each time, so that they come from
memory.  Ours are the benchmark's cells of the same shape (OURS), from another process: not interleaved.  What
others have published is a column of its own, measured elsewhere on other hardware, with its source."""
import argparse, json, statistics, sys, time

import torch
import torch.nn.functional as F

p = argparse.ArgumentParser()
p.add_argument("--rows", default="/dev/null")
p.add_argument("--out", default="/dev/null")
p.add_argument("--device", default="cuda")
args = p.parse_args()
cuda = args.device == "cuda"
L, D, H, G, E, FF, V = (32, 4096, 32, 8, 128, 14336, 128256) if cuda else (2, 64, 4, 2, 16, 96, 200)
FEW, MANY, CONTEXTS, BATCHES, CONTEXT = (
    ((1, 4, 16, 64), (2048, 8192), (512, 2048, 8192), (1, 32), 512) if cuda else
    ((1, 4), (65,), (16,), (1, 2), 16))
KINDS = 4 if cuda else 2                       # layers' weights that take turns: 1 GB of gate+up
RUNS, CALLS, CELL_S = 7, 32 if cuda else 2, 1.5

ours = {}
with open(args.rows) as f:
    for line in f:
        line = line.strip().rstrip(",")
        if line.startswith("{"):
            r = json.loads(line)
            if "us" in r and "eager" not in r["at"]:
                ours.setdefault((r["kind"], r["at"], r["row"]), r["us"])
out = open(args.out, "w")


def mine(kind, at, row=""):
    """Ours in us, of the cell whose line has these words; None: not measured."""
    return next((us for (k, a, r), us in ours.items() if k == kind and a == at and row in r), None)


def sync():
    if cuda:
        torch.cuda.synchronize()


def median_us(call):
    """Microseconds of call(i), i counting up."""
    call(0)
    sync()
    t = time.perf_counter()
    call(1)
    sync()
    n = max(1, min(CALLS, int(CELL_S / RUNS / max(time.perf_counter() - t, 1e-9))))
    runs = []
    for _ in range(RUNS):
        t = time.perf_counter()
        for i in range(n):
            call(i)
        sync()
        runs.append((time.perf_counter() - t) / n)
    return statistics.median(runs) * 1e6


def say(what, peer, us, published="-"):
    ratio = f"{peer / us:.2f}" if us else "-"
    print(f"{what:44s} {us and f'{us:.0f}' or '-':>9s} {peer:9.0f} {ratio:>6s}  {published}")
    out.write("\t" + json.dumps({"row": "peer: " + what, "at": "-", "work": "", "kind": "peer", "us": peer,
                                 "ours_us": us, "published": published}) + "\n")


def left_out(what, why):
    print(f"{what:44s} {'-':>9s} {'-':>9s} {'-':>6s}  skipped: {str(why).splitlines()[0][:60]}")


def rand(*shape):
    return (torch.rand(shape, device=args.device, dtype=torch.float32) * 0.04 - 0.02).to(torch.bfloat16)


def linears():
    w = [rand(2 * FF, D) for _ in range(KINDS)]
    for T in FEW + MANY:
        x = rand(T, D)
        say(f"F.linear bf16, gate+up, {T} rows", median_us(lambda i: F.linear(x, w[i % KINDS])),
            mine("bf16", f"gate+up, {T} rows", "gate+up, "),
            "cuBLASLt 8192^3, H200: 769-798 Top/s" if T == 8192 else
            "vLLM's, 8B at batch 1, H100: 0.70 of the read" if T == 1 else "-")


def scaled():
    f8 = torch.float8_e4m3fn
    w = [rand(2 * FF, D).to(f8) for _ in range(KINDS)]
    ws = torch.ones(1, 2 * FF, device=args.device)
    for T in MANY:
        what = f"torch._scaled_mm e4m3 by row, gate+up, {T} rows"
        x, xs = rand(T, D).to(f8), torch.ones(T, 1, device=args.device)
        try:
            us = median_us(lambda i: torch._scaled_mm(x, w[i % KINDS].t(), scale_a=xs, scale_b=ws,
                                                      out_dtype=torch.bfloat16))
        except RuntimeError as e:
            left_out(what, e)
            continue
        say(what, us, mine("FP8", f"gate+up, {T} rows", "gate+up, "),
            "DeepGEMM, H800: 1550 Top/s" if T == 8192 else "-")


def sdpa():
    published = {512: "0.47", 2048: "0.73", 8192: "0.88"}
    n = 64 if cuda else 4
    for context in CONTEXTS:
        q = rand(n, H, 1, E)
        k, v = rand(n, G, context, E), rand(n, G, context, E)
        us = median_us(lambda i: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
        say(f"SDPA, {n} single tokens at {context}", us, mine("bf16", f"{n} at {context}", "attend"),
            f"FlashInfer, H100, GQA 8: {published[context]} of the read" if context in published else "-")
        del q, k, v


class Loop:
    """A Llama's decode step over a static cache, as a CUDA graph where there is CUDA."""

    def __init__(self, n):
        self.qkv, self.o = [[rand(*s) for _ in range(L)] for s in (((H + 2 * G) * E, D), (D, H * E))]
        self.gu, self.down = [[rand(*s) for _ in range(L)] for s in ((2 * FF, D), (D, FF))]
        self.head, self.table = rand(V, D), rand(V, D)
        self.norm = torch.ones(D, device=args.device, dtype=torch.bfloat16)
        self.set(n)

    def set(self, n):
        self.n = n
        self.cache = torch.zeros(L, 2, n, G, CONTEXT, E, device=args.device, dtype=torch.bfloat16)
        self.ids = torch.zeros(n, device=args.device, dtype=torch.long)
        self.at = torch.tensor([CONTEXT - 1], device=args.device)
        self.cos, self.sin = rand(E), rand(E)

    def rope(self, x):
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat((-b, a), -1) * self.sin

    def step(self):
        x = self.table[self.ids]
        for i in range(L):
            y = F.linear(F.rms_norm(x, (D,), self.norm), self.qkv[i]).view(self.n, H + 2 * G, 1, E)
            q, k, v = y.split((H, G, G), 1)
            self.cache[i, 0].index_copy_(2, self.at, self.rope(k))
            self.cache[i, 1].index_copy_(2, self.at, v)
            a = F.scaled_dot_product_attention(self.rope(q), self.cache[i, 0], self.cache[i, 1],
                                               enable_gqa=True)
            x = x + F.linear(a.reshape(self.n, H * E), self.o[i])
            g, u = F.linear(F.rms_norm(x, (D,), self.norm), self.gu[i]).chunk(2, -1)
            x = x + F.linear(F.silu(g) * u, self.down[i])
        self.ids.copy_(F.linear(F.rms_norm(x, (D,), self.norm), self.head).argmax(-1))

    def time(self):
        if not cuda:
            return median_us(lambda i: self.step())
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return median_us(lambda i: graph.replay())


def loop():
    model = Loop(BATCHES[0])
    for n in BATCHES:
        model.set(n)
        say(f"decode loop, static cache, graph, {n} at {CONTEXT}", model.time(),
            mine("bf16", f"{n} at {CONTEXT}", "decode"))


print(f"{'peer (PyTorch ' + torch.__version__ + ')':44s} {'ours us':>9s} {'peer us':>9s} {'x':>6s}  "
      "published elsewhere")
with torch.inference_mode():
    for what in (linears, sdpa, scaled, loop):
        try:
            what()
        except (RuntimeError, AttributeError, TypeError) as e:  # no memory, or a PyTorch that lacks it
            left_out(what.__name__, e)
        if cuda:
            torch.cuda.empty_cache()
out.close()
sys.exit(0)
