"""fuzz_seeds.py - what fuzz_model begins with: config.json, the head of the GGUF, and the heads of two parts of each
tiny model.  tests/models/fuzz_seeds.py DIR"""
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny
import to_gguf


def head(path):
    """The bytes before the data: padding behind the last tensor's entry ends it."""
    with open(path, "rb") as f:
        b = f.read()
    return b[:os.path.getsize(path) - sum(sizes)] if (sizes := data_sizes(b)) else b


def data_sizes(b):
    """Bytes of each tensor's data; to_gguf.py writes F32 alone, padded to 32."""
    n, keys = struct.unpack_from("<QQ", b, 8)
    at = 24
    for _ in range(keys):
        at = skip_value(b, skip_text(b, at))
    out = []
    for _ in range(n):
        at = skip_text(b, at)
        dims, = struct.unpack_from("<I", b, at)
        shape = struct.unpack_from(f"<{dims}Q", b, at + 4)
        kind, _ = struct.unpack_from("<IQ", b, at + 4 + 8 * dims)
        at += 16 + 8 * dims
        size = 1
        for d in shape:
            size *= d
        size = size * 4 if kind == 0 else size // 32 * 17
        out.append(size + -size % 32)
    return out


def skip_text(b, at):
    n, = struct.unpack_from("<Q", b, at)
    return at + 8 + n


def skip_value(b, at):
    kind, = struct.unpack_from("<I", b, at)
    at += 4
    if kind == 8:
        return skip_text(b, at)
    if kind != 9:
        return at + {2: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8}[kind]
    item, n = struct.unpack_from("<IQ", b, at)
    return at + 12 + n * {2: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8}[item]


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for file in sorted(os.listdir(os.path.join(tiny.HERE, "recorded"))):
        rec = tiny.load(file[:-5])
        for form in ("config", "config5"):
            with open(os.path.join(out, f"{rec['name']}-{form}"), "wb") as f:
                f.write(b"1" + json.dumps(rec[form]).encode())
        if "to_gguf" not in rec:
            continue
        with tempfile.TemporaryDirectory() as d:
            w = tiny.weights(rec)
            to_gguf.write(rec, d + "/m.gguf", w)
            to_gguf.write_parts(rec, d + "/m", w, 2)
            first = head(d + "/m-00001-of-00002.gguf")
            with open(os.path.join(out, rec["name"] + "-gguf"), "wb") as f:
                f.write(b"\1" + head(d + "/m.gguf"))
            with open(os.path.join(out, rec["name"] + "-parts"), "wb") as f:
                f.write(b"\2" + struct.pack("<H", len(first)) + first + head(d + "/m-00002-of-00002.gguf"))


main()
