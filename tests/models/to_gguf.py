"""to_gguf.py - writes the GGUF of a recorded model: its keys as recorded from llama.cpp's own converter, its tensors
by recipes that say which tensors of the Hugging Face directory each is made of, and how (record_gguf.py found
them, and compared every byte of both files).

A recipe is [name, shape, source, steps, numbers].  A * in the source stands for all experts, one after the other.
Steps, in order, on a tensor of rows:
    add X            to each weight: norms that are stored less one
    negexp           -exp(x)
    permute H        rows of H heads: i of the first half and of the second in turn, as rope pairs them
    T                experts [n][k], each, to [k][n]
    first, last      half of the rows of each expert; even, odd: every second one
    rows LIST        these rows, in this order
    evencols, oddcols    every second weight of a row
    vheads K V       the rows in V value heads, from grouped by K key heads to in turns
    vheadcols K V    the same for the columns
    k_b, v_b H n     of latent attention: the first n rows of each of H heads, transposed; the rows after them
"""
import array
import math
import struct

import tiny

TYPES = {"u8": (0, "<B"), "u32": (4, "<I"), "i32": (5, "<i"), "u16": (2, "<H"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q")}


def chunks(data, n):
    return [data[i:i + n] for i in range(0, len(data), n)]


def joined(parts):
    out = array.array("f")
    for p in parts:
        out.extend(p)
    return out


def transposed(data, rows, cols):
    return joined(data[c::cols] for c in range(cols))


def in_turns(parts, groups):
    """[groups][m] parts to [m][groups]."""
    m = len(parts) // groups
    return [parts[g * m + i] for i in range(m) for g in range(groups)]


def step(op, args, data, shape):
    """One step; returns the data and its shape."""
    cols = shape[-1]
    if op == "add":
        return array.array("f", [x + args[0] for x in data]), shape
    if op == "negexp":
        return array.array("f", [-math.exp(x) for x in data]), shape
    if op == "permute":
        rows = chunks(data, cols if len(shape) > 1 else 1)
        return joined(r for head in chunks(rows, len(rows) // args[0]) for r in in_turns(head, 2)), shape
    if op == "T":
        n = shape[-2] * cols
        return joined(transposed(e, shape[-2], cols) for e in chunks(data, n)), shape[:-2] + [cols, shape[-2]]
    if op in ("first", "last", "even", "odd"):
        rows, half = chunks(data, cols), shape[-2] // 2
        cut = {"first": slice(0, half), "last": slice(half, None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}
        return joined(r for e in chunks(rows, shape[-2]) for r in e[cut[op]]), shape[:-2] + [half, cols]
    if op == "rows":
        rows = chunks(data, cols)
        picked = tiny.spans(args[0])
        return joined(rows[i] for i in picked), [len(picked), cols]
    if op in ("evencols", "oddcols"):
        return data[op == "oddcols"::2], shape[:-1] + [cols // 2]
    if op == "vheads":
        return joined(in_turns(chunks(data, len(data) // args[1]), args[0])), shape
    if op == "vheadcols":
        rows = chunks(data, cols)
        return joined(joined(in_turns(chunks(r, cols // args[1]), args[0])) for r in rows), shape
    if op in ("k_b", "v_b"):
        heads = [chunks(h, cols) for h in chunks(data, len(data) // args[0])]
        if op == "v_b":
            return joined(r for h in heads for r in h[args[1]:]), [args[0], len(heads[0]) - args[1], cols]
        return joined(transposed(joined(h[:args[1]]), args[1], cols) for h in heads), [args[0], cols, args[1]]
    raise ValueError(op)


def made(recipe, w, numbers):
    _, shape, source, steps = recipe
    if source is None:
        return array.array("f", steps)
    for n in numbers:
        source = source.replace("#", str(n), 1)
    if "*" in source:
        head, tail = source.split("*")
        parts = [w[f"{head}{i}{tail}"] for i in range(shape[0])]
        data, now = joined(p[1] for p in parts), [len(parts)] + parts[0][0]
    else:
        now, data = w[source]
    for s in steps:
        data, now = step(s[0], s[1:], data, now)
    assert len(data) == math.prod(shape), (recipe, len(data))
    return data


def tensors(rec, w):
    """(name, shape, data) of each."""
    for name, shape, source, steps, numbers in rec["to_gguf"]:
        for n in tiny.spans(numbers) if numbers else [None]:
            number = [] if n is None else [n]
            yield (name if n is None else name.replace("#", str(n), 1), shape,
                   made((name, shape, source, steps), w, number))


# ---- the file -----------------------------------------------------------------------------------------

def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(kind, v):
    if kind == "str":
        return struct.pack("<I", 8) + text(v)
    if kind == "str[]":
        return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(text(x) for x in v)
    if kind.endswith("[]"):
        number, form = TYPES[kind[:-2]]
        return struct.pack("<IIQ", 9, number, len(v)) + b"".join(struct.pack(form, x) for x in v)
    number, form = TYPES[kind]
    return struct.pack("<I", number) + struct.pack(form, v)


def padded(b, to=32):
    return b + bytes(-len(b) % to)


def mxfp4(data):
    """An exponent and 16 bytes for 32 weights, the first half of them in the low bits."""
    return b"".join(bytes([e] + [c[i] | c[i + 16] << 4 for i in range(16)]) for e, c in tiny.fp4_blocks(data))


def q8_0(data):
    """An f16 scale and 32 bytes."""
    out = b""
    for block in chunks(data, 32):
        d = struct.unpack("<e", struct.pack("<e", max(abs(x) for x in block) / 127))[0]
        out += struct.pack("<e32b", d, *(round(x / d) if d else 0 for x in block))
    return out


def write_file(path, keys, some, fp4=False):
    head, at, body = b"", 0, []
    for name, shape, data in some:
        dims = list(reversed(shape))
        packed = fp4 and name.endswith("_exps.weight")
        q8 = name.endswith("attn_kv_b.weight")
        head += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", 39 if packed else 8 if q8 else 0, at)
        body.append(padded(mxfp4(data) if packed else q8_0(data) if q8 else data.tobytes()))
        at += len(body[-1])
    values = b"".join(text(k) + value(kind, v) for k, kind, v in keys)
    with open(path, "wb") as f:
        f.write(padded(b"GGUF" + struct.pack("<IQQ", 3, len(body), len(keys)) + values + head))
        for b in body:
            f.write(b)


def write(rec, path, w, packed=True):
    write_file(path, rec["gguf_keys"], tensors(rec, w), fp4=packed and rec.get("mxfp4"))


def write_old(rec, path, w):
    """As files of latent attention were once: keys and values in one tensor, here in Q8_0."""
    recipes = [r if not r[0].endswith("attn_k_b.weight") else
               [r[0].replace("attn_k_b", "attn_kv_b"), w[r[2].replace("#", "0")][0], r[2], [], r[4]]
               for r in rec["to_gguf"] if not r[0].endswith("attn_v_b.weight")]
    write_file(path, rec["gguf_keys"], tensors({**rec, "to_gguf": recipes}, w))


def write_parts(rec, stem, w, n):
    """As gguf-split does: the keys in the first part, tensors in all."""
    all_tensors = list(tensors(rec, w))
    for i in range(n):
        keys = (rec["gguf_keys"] if i == 0 else []) + [["split.no", "u16", i], ["split.count", "u16", n],
                                                       ["split.tensors.count", "i32", len(all_tensors)]]
        write_file(f"{stem}-{i + 1:05}-of-{n:05}.gguf", keys, all_tensors[i::n])
