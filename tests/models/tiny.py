"""tiny.py - tiny models of every family, made from a name: the same weights on every machine, without torch or numpy.

A recorded model is one file, recorded/NAME.json: its config.json, the names and shapes of its tensors, prompts,
and the logits that transformers computed from just these weights (record.py).  Here the weights are drawn and written.

    tests/models/tiny.py NAME DIR [PARTS]     writes DIR/hf/, DIR/hf5/ and DIR/model.gguf, or also
                                              DIR/part-00001-of-PARTS.gguf and so on

A weight is (2 b - 255) 2^-s for a byte b of SHAKE-128 over the model's and the tensor's name: exact in bf16 and
in f16.  The scale keeps the variance of what flows through: 1 / inputs for a matrix.  Vectors are drawn around
the value with which transformers begins (1 or 0), so that none is 1 or 0: a forgotten norm or bias shows.
"""
import array
import contextlib
import hashlib
import json
import math
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    with open(os.path.join(HERE, "recorded", name + ".json")) as f:
        return json.load(f)


FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]   # e2m1, by code

# ---- weights ------------------------------------------------------------------------------------

def step_of(name, shape, many):
    """2^-s, so that 255 * 2^-s is about sqrt(3 / inputs): a uniform draw has the variance 1 / inputs."""
    last = name.rsplit(".", 1)[-1]
    vector = len([n for n in shape if n > 1]) <= 1
    if "correction" in name:
        return 2.0 ** -12              # beside scores of a sigmoid
    if last == "sinks":
        return 2.0 ** -7
    if vector:
        return 2.0 ** -10              # 1/4 up and down
    if "embed_tokens" in name:
        return 2.0 ** -9
    inputs = shape[-2] if many == "transposed" and len(shape) == 3 else shape[-1]
    return 2.0 ** -round(math.log2(255 / math.sqrt(3 / inputs)))


def draw_fp4(rec, name, shape):
    """Weights of MXFP4: codes times 2^-5 or 2^-6 for 32 inputs of an output; [experts][inputs][outputs]."""
    experts, inputs, outputs = shape
    table = [v * s for s in (2.0 ** -6, 2.0 ** -5) for v in FP4]
    bits = hashlib.shake_128((rec["name"] + "/" + name).encode()).digest(math.prod(shape))
    steps = hashlib.shake_128((rec["name"] + "/" + name + "/step").encode()).digest(math.prod(shape) // 32)
    low, one = int.from_bytes(b"\x0f" * outputs, "little"), int.from_bytes(b"\x10" * outputs, "little")
    out = bytearray()
    for row in range(experts * inputs):
        b = int.from_bytes(bits[row * outputs:(row + 1) * outputs], "little")
        s = int.from_bytes(steps[row // 32 * outputs:(row // 32 + 1) * outputs], "little")
        out += (b & low | s & one).to_bytes(outputs, "little")
    return looked_up(table, bytes(out))


def looked_up(table, bits):
    """table[b] of each byte; a quarter of each float at a time, which is 20 times as fast as one by one."""
    of_four = array.array("f", table).tobytes().ljust(1024, b"\0")
    data = bytearray(4 * len(bits))
    for i in range(4):
        data[i::4] = bits.translate(of_four[i::4])
    out = array.array("f")
    out.frombytes(data)
    return out


def is_fp4(rec, name):
    return rec.get("mxfp4") and name.endswith((".experts.gate_up_proj", ".experts.down_proj"))


def draw(rec, name, shape, base):
    """All weights of a tensor, as an array of float32 in the order of its file."""
    if is_fp4(rec, name):
        return draw_fp4(rec, name, shape)
    step = step_of(name, shape, rec.get("many"))
    by = next((v for k, v in rec.get("scaled", {}).items() if k in name), 1)
    table = [(base + (2 * b - 255) * step) * by for b in range(256)]
    bits = hashlib.shake_128((rec["name"] + "/" + name).encode()).digest(math.prod(shape))
    return looked_up(table, bits)


def spans(text):
    """"0-2,5": 0, 1, 2, 5."""
    out = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def names_of(pattern, numbers):
    """Put all combinations of numbers where the pattern has #."""
    if "#" not in pattern:
        return [pattern]
    first, _, rest = numbers.partition(" ")
    out = []
    for i in spans(first):
        out += names_of(pattern.replace("#", str(i), 1), rest)
    return out


def shapes(rec):
    """{name: (shape, base)} in order."""
    out = {}
    for pattern, shape, base, numbers in rec["tensors"]:
        for name in names_of(pattern, numbers):
            out[name] = (shape, base)
    return out


def weights(rec):
    """{name: (shape, array of float32)}."""
    return {name: (shape, draw(rec, name, shape, base))
            for name, (shape, base) in shapes(rec).items()}


def prompt(rec, which, n):
    bits = hashlib.shake_128(f"{rec['name']}/prompt {which}".encode()).digest(n)
    return [b % rec["vocab"] for b in bits]


# ---- a Hugging Face directory ----------------------------------------------------------------------

def fp4_blocks(data):
    """MXFP4 of rows of 32 each: an exponent, and 32 codes."""
    code = [{FP4[c] * s: c for c in range(16)} for s in (2.0 ** -6, 2.0 ** -5)]
    for at in range(0, len(data), 32):
        block = data[at:at + 32]
        for e in (0, 1):
            codes = [code[e].get(x) for x in block]
            if None not in codes:
                break
        yield 127 - 6 + e, codes


def hf_fp4(tensors):
    """As gpt-oss has them: two codes in a byte, neighbours; the exponents apart."""
    import to_gguf
    for name, (shape, data) in tensors.items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            yield name, (shape, data)
            continue
        rows, (experts, outputs, inputs) = to_gguf.step("T", [], data, shape)
        blocks = list(fp4_blocks(rows))
        packed = b"".join(bytes(c[i] | c[i + 1] << 4 for i in range(0, 32, 2)) for _, c in blocks)
        yield name + "_blocks", ([experts, outputs, inputs // 32, 16], packed)
        yield name + "_scales", ([experts, outputs, inputs // 32], bytes(e for e, _ in blocks))


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (shape, data) in tensors.items():
        size = len(data) if isinstance(data, bytes) else len(data) * data.itemsize
        kind = "U8" if isinstance(data, bytes) else "F32"
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            f.write(data if isinstance(data, bytes) else data.tobytes())


def write_hf(rec, where, w, packed=True):
    os.makedirs(where, exist_ok=True)
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump(rec["config"] if packed else {k: v for k, v in rec["config"].items() if k != "quantization_config"},
                  f, indent=1)
    if packed and rec.get("mxfp4"):
        w = dict(hf_fp4(w))
    path = os.path.join(where, "model.safetensors")
    write_safetensors(path, w)
    if packed and "quantization_config" not in rec["config"]:
        os.makedirs(where + "5", exist_ok=True)            # the same, as transformers 5 saves its settings
        with open(os.path.join(where + "5", "config.json"), "w") as f:
            json.dump(rec["config5"], f, indent=1)
        with contextlib.suppress(FileExistsError):
            os.link(path, os.path.join(where + "5", "model.safetensors"))


def main():
    name, where = sys.argv[1:3]
    rec = load(name)
    w = weights(rec)
    write_hf(rec, os.path.join(where, "hf"), w)
    if "to_gguf" in rec:
        import to_gguf
        to_gguf.write(rec, os.path.join(where, "model.gguf"), w)
        if sys.argv[3:] == ["old"]:
            to_gguf.write_old(rec, os.path.join(where, "old.gguf"), w)
        elif len(sys.argv) > 3:
            to_gguf.write_parts(rec, os.path.join(where, "part"), w, int(sys.argv[3]))


if __name__ == "__main__":
    main()
