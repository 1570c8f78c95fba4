#!/usr/bin/env python3
"""A GGUF file of random weights in the shape of a model that people run, to measure speed with.

    shapes.py SHAPE TYPE FILE [SEED]

    SHAPE   1b or 3b: of Llama 3.2; 1b4: 4 of the 16 layers of 1b; e32 or e64: of Qwen 3 MoE, 6.6 billion weights of
            which 1.1 compute a token, with 4 of 32 or 8 of 64 experts
    TYPE    of the matrices, one of TYPES below; the embedding, which is also the head, is Q8_0 beside Q4_0, MXFP4 and
            NVFP4, Q6_K beside Q4_K, else of the same type.  MXFP4 is of the feed-forward alone, others are Q8_0

The vocabulary is the default model's.  Weights have a standard deviation of about 0.02 and a mean near 0, so
that numbers stay as large as in a trained model.  A file of the same seed has the same bytes."""
import math, os, random, struct, sys

from bench_peers import MODEL

SHAPES = {   # layers, d_model, heads, KV heads, head_dim, d_ff (of an expert)
    "1b": (16, 2048, 32, 8, 64, 8192),
    "1b4": (4, 2048, 32, 8, 64, 8192),
    "3b": (28, 3072, 24, 8, 128, 8192),
    "e32": (16, 2048, 32, 4, 64, 2048),
    "e64": (16, 2048, 32, 4, 64, 1024),
}
EXPERTS = {"e32": (32, 4), "e64": (64, 8)}   # of a layer; of a token
ALIGN = 32
CHUNK = 1 << 14                  # blocks written at once
# GGUF's number; weights and bytes of a block; the high bytes of its f16 scales, by their place.  A high byte says the
# exponent and two bits, so a scale is up to 1.25 times what stands here.  Minima take away the mean of the quants.
F32, TYPES = 0, {
    "F16": (1, 1, 2, {}),
    "Q4_0": (2, 32, 18, {1: 0x1c}),              # d = 2^-8
    "Q4_1": (3, 32, 20, {1: 0x1c, 3: 0xa8}),     # d = 2^-8, m = -2^-5
    "Q5_0": (6, 32, 22, {1: 0x18}),              # d = 2^-9
    "Q5_1": (7, 32, 24, {1: 0x18, 3: 0xa8}),     # d = 2^-9, m = -2^-5
    "Q8_0": (8, 32, 34, {1: 0x0c}),              # d = 2^-12
    "Q2_K": (10, 256, 84, {81: 0x18, 83: 0x1a}), # d = 2^-9, and 1.5 times as much for minima
    "Q3_K": (11, 256, 110, {109: 0x10}),         # d = 2^-11
    "Q4_K": (12, 256, 144, {1: 0x08, 3: 0x13}),  # d = 2^-13, and 7.5 times as much for minima
    "Q5_K": (13, 256, 176, {1: 0x04, 3: 0x14}),  # d = 2^-14, and 16 times as much for minima
    "Q6_K": (14, 256, 210, {209: 0x00}),         # d < 2^-16
    "IQ2_XXS": (16, 256, 66, {1: 0x0d}),         # d = 1.25 * 2^-12; entries of the list are 8, 25, 43
    "IQ2_XS": (17, 256, 74, {1: 0x0d}),
    "IQ3_XXS": (18, 256, 98, {1: 0x09}),         # d = 1.25 * 2^-13; entries are 4 .. 62
    "IQ4_NL": (20, 32, 18, {1: 0x0c}),           # d = 2^-12
    "IQ3_S": (21, 256, 110, {1: 0x08}),          # d = 2^-13; entries are 1 .. 15
    "IQ2_S": (22, 256, 82, {1: 0x0d}),
    "IQ4_XS": (23, 256, 136, {1: 0x01}),         # d = 2^-16
    "BF16": (30, 1, 2, {}),
    "MXFP4": (39, 32, 17, {0: 120}),             # 2^-7 times 0 .. 6
    "NVFP4": (40, 64, 36, dict.fromkeys(range(4), 3)),   # e4m3: 3 * 2^-9, times 0 .. 6
}
HEAD = {"Q4_0": "Q8_0", "Q4_K": "Q6_K", "MXFP4": "Q8_0", "NVFP4": "Q8_0"}
SIGNED = {   # the high bytes of +- 2^-7 .. 2^-5
    "BF16": bytes(b & 0x80 | 0x3c for b in range(256)),
    "F16": bytes(b & 0x87 | 0x20 for b in range(256)),
}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def vocabulary(path):
    """The tokenizer's settings of a GGUF file as they stand there, and how many tokens it has."""
    with open(path, "rb") as f:
        data = f.read(8 << 20)
    at, kept, n_vocab = 24, [], 0
    plain = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def skip(kind, at):
        if kind == 8:
            return at + 8 + struct.unpack_from("<Q", data, at)[0]
        if kind != 9:
            return at + plain[kind]
        of, n = struct.unpack_from("<IQ", data, at)
        if of in plain:
            return at + 12 + n * plain[of]
        at += 12
        for _ in range(n):
            at = skip(of, at)
        return at

    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        begin, n = at, struct.unpack_from("<Q", data, at)[0]
        key = data[at + 8:at + 8 + n].decode()
        kind = struct.unpack_from("<I", data, at + 8 + n)[0]
        at = skip(kind, at + 12 + n)
        if key.startswith("tokenizer."):
            kept.append(data[begin:at])
        if key == "tokenizer.ggml.tokens":
            n_vocab = struct.unpack_from("<Q", data, begin + 16 + n)[0]
    return kept, n_vocab


def settings(shape, name):
    layers, d, heads, kv, head_dim, ff = SHAPES[shape]
    arch = "qwen3moe" if shape in EXPERTS else "llama"
    out = [text("general.architecture") + struct.pack("<I", 8) + text(arch),
           text("general.name") + struct.pack("<I", 8) + text(name)]
    experts = zip(("expert_count", "expert_used_count", "expert_feed_forward_length"), (*EXPERTS.get(shape, ()), ff))
    for key, value in (("block_count", layers), ("context_length", 131072), ("embedding_length", d),
                       ("feed_forward_length", ff), ("attention.head_count", heads),
                       ("attention.head_count_kv", kv), *(experts if shape in EXPERTS else ()),
                       *((k, head_dim) for k in (("attention.key_length", "attention.value_length")
                                                 if shape in EXPERTS else ("rope.dimension_count",)))):
        out.append(text(f"{arch}.{key}") + struct.pack("<II", 4, value))
    for key, value in (("rope.freq_base", 500000), ("attention.layer_norm_rms_epsilon", 1e-5)):
        out.append(text(f"{arch}.{key}") + struct.pack("<If", 6, value))
    return out


def tensors(shape, kind, n_vocab, own_head=False):
    """(name, inputs, outputs or None, type), and of experts their number"""
    layers, d, heads, kv, head_dim, ff = SHAPES[shape]
    yield "token_embd.weight", d, n_vocab, HEAD.get(kind, kind)
    if own_head:
        yield "output.weight", d, n_vocab, HEAD.get(kind, kind)
    yield "output_norm.weight", d, None, "F32"
    dense = "Q8_0" if kind == "MXFP4" else kind
    for i in range(layers):
        for name, k, n in (("attn_norm", d, None), ("attn_q", d, heads * head_dim), ("attn_k", d, kv * head_dim),
                           ("attn_v", d, kv * head_dim), ("attn_output", heads * head_dim, d), ("ffn_norm", d, None)):
            yield f"blk.{i}.{name}.weight", k, n, dense if n else "F32"
        if shape not in EXPERTS:
            for name, k, n in (("ffn_gate", d, ff), ("ffn_up", d, ff), ("ffn_down", ff, d)):
                yield f"blk.{i}.{name}.weight", k, n, kind
            continue
        for name in ("attn_q_norm", "attn_k_norm"):
            yield f"blk.{i}.{name}.weight", head_dim, None, "F32"
        yield f"blk.{i}.ffn_gate_inp.weight", d, EXPERTS[shape][0], "BF16"
        for name, k, n in (("ffn_gate_exps", d, ff), ("ffn_up_exps", d, ff), ("ffn_down_exps", ff, d)):
            yield f"blk.{i}.{name}.weight", k, n, kind, EXPERTS[shape][0]


def weights(rng, kind, k, n):
    """The bytes of a tensor, a piece at a time."""
    if kind == "F32":
        yield struct.pack("<f", 1) * k
        return
    _, per, size, high = TYPES[kind]
    left = k * n // per
    while left:
        blocks = min(left, CHUNK)
        piece = bytearray(rng.randbytes(blocks * size))
        for at, byte in high.items():
            piece[at::size] = bytes([byte]) * blocks
        if kind in SIGNED:
            piece[1::2] = piece[1::2].translate(SIGNED[kind])
        yield piece
        left -= blocks


def unscaled(kind):
    """A function that makes the scales of a piece of weights zero."""
    _, _, size, high = TYPES[kind]

    def zero(piece):
        for at in {at & ~1 for at in high} | {at | 1 for at in high}:
            piece[at::size] = bytes(len(piece) // size)
        return piece
    return zero


def bytes_of(kind, k, n):
    return 4 * k if kind == "F32" else k * n // TYPES[kind][1] * TYPES[kind][2]


def dictated(follows, pieces, row, n_vocab):
    """The head of a model whose next token is that of a table: the row of the token that follows is the embedding of
    the token before it; other rows are zeros."""
    embedding, out = b"".join(pieces), bytearray(n_vocab * row)
    for before, after in follows.items():
        out[after * row:(after + 1) * row] = embedding[before * row:(before + 1) * row]
    return embedding, bytes(out)


def write(shape, kind, path, seed=1, follows=None):
    """follows: {id: the id after it}.  The model then says these, whatever its other weights are: what its layers add
    is multiplied by scales of zero, but multiplied."""
    kept, n_vocab = vocabulary(MODEL)
    keys, rng = settings(shape, f"random {shape} {kind}") + kept, random.Random(seed)
    table, at, todo = [], 0, list(tensors(shape, kind, n_vocab, follows is not None))
    for name, k, n, t, *count in todo:
        dims = (k,) if n is None else (k, n, *count)
        table.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims,
                                              F32 if t == "F32" else TYPES[t][0], at))
        at += (bytes_of(t, k, n) * math.prod(count) + ALIGN - 1) // ALIGN * ALIGN
    with open(path + ".part", "wb") as f:
        f.write(struct.pack("<4sIQQ", b"GGUF", 3, len(table), len(keys)) + b"".join(keys) + b"".join(table))
        f.write(bytes(-f.tell() % ALIGN))
        head = None
        for name, k, n, t, *count in todo:
            pieces = weights(rng, t, k, n and n * math.prod(count))
            if follows is not None and name == "token_embd.weight":
                pieces, head = ([b] for b in dictated(follows, pieces, bytes_of(t, k, 1), n_vocab))
            elif name == "output.weight":
                pieces = head
            elif follows is not None and name.endswith(("attn_output.weight", "ffn_down.weight")):
                pieces = map(unscaled(t), pieces)
            for piece in pieces:
                f.write(piece)
            f.write(bytes(-f.tell() % ALIGN))
    os.rename(path + ".part", path)


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in SHAPES or sys.argv[2] not in TYPES:
        raise SystemExit(__doc__)
    write(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:5]))
