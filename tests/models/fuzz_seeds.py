"""fuzz_seeds.py - what fuzz_model begins with: config.json, the head of the GGUF, and the heads of two parts of each
tiny model.  tests/models/fuzz_seeds.py DIR"""
import json
import os
import struct
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import encoder
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
        return at + {0: 1, 2: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8}[kind]
    item, n = struct.unpack_from("<IQ", b, at)
    if item == 8:
        at += 12
        for _ in range(n):
            at = skip_text(b, at)
        return at
    return at + 12 + n * {0: 1, 2: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8}[item]


# quantization_config, and for a matrix [n][k] its tensors: name, type, shape
GROUP = '"config_groups": {"group_0": {"targets": ["Linear"], "weights": {%s}}}'
QUANTIZED = {
    "awq": ('"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": true', lambda n, k: (
        ("qweight", "I32", (k, n // 8)), ("qzeros", "I32", (k // 32, n // 8)), ("scales", "F16", (k // 32, n)))),
    "gptq": ('"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true', lambda n, k: (
        ("qweight", "I32", (k // 8, n)), ("qzeros", "I32", (k // 32, n // 8)), ("scales", "F16", (k // 32, n)))),
    "ct4": ('"quant_method": "compressed-tensors", "format": "pack-quantized", ' + GROUP % (
        '"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32'), lambda n, k: (
        ("weight_packed", "I32", (n, k // 8)), ("weight_scale", "BF16", (n, k // 32)), ("weight_shape", "I64", (2,)))),
    "i8": ('"quant_method": "compressed-tensors", "format": "int-quantized", ' + GROUP % (
        '"num_bits": 8, "type": "int", "strategy": "channel"'), lambda n, k: (
        ("weight", "I8", (n, k)), ("weight_scale", "BF16", (n, 1)))),
    "f8": ('"quant_method": "fp8", "weight_block_size": [32, 32]', lambda n, k: (
        ("weight", "F8_E4M3", (n, k)), ("weight_scale_inv", "F32", ((n + 31) // 32, k // 32)))),
    "nvfp4": ('"quant_method": "modelopt", "quant_algo": "NVFP4"', lambda n, k: (
        ("weight", "U8", (n, k // 2)), ("weight_scale", "F8_E4M3", (n, k // 16)), ("weight_scale_2", "F32", ()))),
    "nvfp4-ct": ('"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", ' + GROUP % (
        '"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16'), lambda n, k: (
        ("weight_packed", "U8", (n, k // 2)), ("weight_scale", "F8_E4M3", (n, k // 16)),
        ("weight_global_scale", "F32", (1,)))),
}
WIDTH = {"I32": 4, "F16": 2, "BF16": 2, "F32": 4, "I64": 8, "I8": 1, "U8": 1, "F8_E4M3": 1}


def directory(rec, kind):
    """config.json and the head of the weights, with every projection quantized."""
    settings, parts = QUANTIZED[kind]
    config = json.dumps({**rec["config"], "quantization_config": json.loads("{" + settings + "}")}).encode()
    table, at = {}, 0
    for name, (shape, _) in tiny.weights(rec).items():
        some = [(name, "F32", shape)]
        if name.endswith("_proj.weight"):
            some = [(name[:-len("weight")] + part, dtype, dims) for part, dtype, dims in parts(*shape)]
        for full, dtype, dims in some:
            size = WIDTH[dtype]
            for d in dims:
                size *= d
            table[full] = {"dtype": dtype, "shape": list(dims), "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(table).encode()
    return struct.pack("<HI", len(config), at)[:5] + b"\0" + config + struct.pack("<Q", len(text)) + text


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    for name in ("llama", "deepseek-v3", "qwen3-moe"):
        for kind in QUANTIZED:
            with open(os.path.join(out, f"{name}-{kind}"), "wb") as f:
                f.write(b"\3" + directory(tiny.load(name), kind))
    for kind in encoder.KINDS:
        with tempfile.TemporaryDirectory() as d, open(os.path.join(out, kind + "-encoder"), "wb") as f:
            encoder.write(kind, d + "/m")
            f.write(b"\1" + head(d + "/m/model.gguf"))
        with open(os.path.join(out, kind + "-config"), "wb") as f:
            f.write(b"3" + json.dumps(encoder.CONFIGS[kind]).encode())
    for file in sorted(f for f in os.listdir(os.path.join(tiny.HERE, "recorded")) if f.endswith(".json")):
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
