"""tiny.py - tiny models of every family, made from a name: the same weights on every machine, without torch or numpy.

A recorded model is one file, recorded/NAME.json: its config.json, the names and shapes of its tensors, prompts,
and the logits that transformers computed from just these weights (record.py).  Here the weights are drawn and written.

    tests/models/tiny.py NAME DIR [PARTS]     writes DIR/hf/ and, by to_gguf.py, DIR/model.gguf, or also
                                              DIR/part-00001-of-PARTS.gguf and so on

A weight is (2 b - 255) 2^-s for a byte b of SHAKE-128 over the model's and the tensor's name: exact in bf16 and
in f16.  The scale keeps the variance of what flows through: 1 / inputs for a matrix.  Vectors are drawn around
the value with which transformers begins (1 or 0), so that none is 1 or 0: a forgotten norm or bias shows.
"""
import array
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


def draw(rec, name, shape, base):
    """All weights of a tensor, as an array of float32 in the order of its file."""
    step = step_of(name, shape, rec.get("many"))
    by = next((v for k, v in rec.get("scaled", {}).items() if k in name), 1)
    table = [(base + (2 * b - 255) * step) * by for b in range(256)]
    bits = hashlib.shake_128((rec["name"] + "/" + name).encode()).digest(math.prod(shape))
    return array.array("f", map(table.__getitem__, bits))


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

def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (shape, data) in tensors.items():
        size = len(data) * data.itemsize
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            f.write(data.tobytes())


def write_hf(rec, where, w):
    os.makedirs(where, exist_ok=True)
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump(rec["config"], f, indent=1)
    write_safetensors(os.path.join(where, "model.safetensors"), w)


def main():
    name, where = sys.argv[1:3]
    rec = load(name)
    w = weights(rec)
    write_hf(rec, os.path.join(where, "hf"), w)
    if "to_gguf" in rec:
        import to_gguf
        to_gguf.write(rec, os.path.join(where, "model.gguf"), w)
        if len(sys.argv) > 3:
            to_gguf.write_parts(rec, os.path.join(where, "part"), w, int(sys.argv[3]))


if __name__ == "__main__":
    main()
