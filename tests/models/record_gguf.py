"""record_gguf.py - records how llama.cpp's converter makes the GGUF of each tiny model.

    LLAMA_CPP=folder tests/models/record_gguf.py [NAME ..]       after record.py

Runs the converter (convert_hf_to_gguf.py's classes, f32) on the directory that tiny.py writes, keeps the keys that it
writes, and looks for the steps of to_gguf.py that make each tensor out of those of the directory.  Then to_gguf.py
writes the file by these recipes, and every tensor must be the converter's to the bit.
"""
import contextlib
import io
import json
import logging
import os
import pathlib
import re
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(1, os.environ["LLAMA_CPP"])
sys.path.insert(1, os.path.join(os.environ["LLAMA_CPP"], "gguf-py"))
import numpy as np
import torch

import conversion
import gguf
import models
import record
import tiny
import to_gguf

KINDS = {gguf.GGUFValueType.UINT32: "u32", gguf.GGUFValueType.INT32: "i32", gguf.GGUFValueType.FLOAT32: "f32",
         gguf.GGUFValueType.BOOL: "bool", gguf.GGUFValueType.UINT64: "u64", gguf.GGUFValueType.STRING: "str"}


def without_vocab(cls):
    cls.set_vocab = lambda self: None
    for sub in cls.__subclasses__():
        without_vocab(sub)


def converted(rec, d):
    """The converter's file, open."""
    path = pathlib.Path(d)
    with contextlib.redirect_stderr(io.StringIO()), torch.inference_mode():
        cls = conversion.get_model_class(rec["config"]["architectures"][0])
        without_vocab(conversion.TextModel)
        with open(path / "tokenizer.json", "w") as f:      # Gemma's counts its tokens
            json.dump({"model": {"vocab": {str(i): i for i in range(rec["vocab"])}}, "added_tokens": []}, f)
        cls.no_mtp = not rec.get("drafts")
        m = cls(path, gguf.LlamaFileType.ALL_F32, path / "out.gguf", model_name="tiny")
        m.write()
    return gguf.GGUFReader(path / "out.gguf")


def keys_of(reader):
    out = []
    for f in reader.fields.values():
        if f.name.startswith(("GGUF.", "general.")) and f.name not in ("general.architecture", "general.type"):
            continue
        v = f.contents()
        if f.types[0] == gguf.GGUFValueType.ARRAY:
            kind = KINDS[f.types[-1]] + "[]"
        else:
            kind = KINDS[f.types[0]]
        if kind == "f32":
            v = float(np.float32(v))
        out.append([f.name, kind, v])
    out.append(["tokenizer.ggml.eos_token_id", "u32", 2])
    return out


def candidates(rec):
    """Chains of steps that converters take."""
    c = rec["config"].get("text_config", rec["config"])
    heads = {c["num_attention_heads"], c["num_key_value_heads"]}
    yield []
    yield [["add", 1.0]]
    for h in sorted(heads):
        yield [["permute", h]]
    yield [["T"]]
    for half in ("first", "last", "even", "odd"):
        yield [[half]]
        yield [["T"], [half]]
    yield [["evencols"]]
    yield [["oddcols"]]
    yield [["negexp"]]
    if "linear_num_value_heads" in c:
        k, v = c["linear_num_key_heads"], c["linear_num_value_heads"]
        yield [["vheads", k, v]]
        yield [["negexp"], ["vheads", k, v]]
        yield [["vheadcols", k, v]]
    if "kv_lora_rank" in c:
        for op in ("k_b", "v_b"):
            yield [[op, c["num_attention_heads"], c["qk_nope_head_dim"]]]


def sources(w, layer):
    """(pattern, numbers, tensor), experts joined."""
    joined = {}
    for name in w:
        m = re.search(r"\.layers\.(\d+)\.", name)
        if (m and int(m[1])) != layer and not (m is None and layer is None):
            continue
        pattern = re.sub(r"(\.layers\.)\d+\.", r"\1#.", name)
        pattern = re.sub(r"(experts\.)\d+\.", r"\1*.", pattern)
        joined.setdefault(pattern, []).append(name)
    return joined


def rows_of(w, layer, want):
    """A source that has all rows of it, and which they are."""
    for pattern, names in sources(w, layer).items():
        shape, data = w[names[0]]
        if len(names) == 1 and shape[-1] == want.shape[-1]:
            have = {r.tobytes(): i for i, r in enumerate(np.frombuffer(data, np.float32).reshape(-1, shape[-1]))}
            if all(r.tobytes() in have for r in want):
                return pattern, record.text_of([have[r.tobytes()] for r in want])
    return None


def recipe(rec, w, name, want, shape):
    m = re.match(r"blk\.(\d+)\.", name)
    layer = int(m[1]) if m else None
    flat = want.reshape(-1)
    for pattern in sources(w, layer):
        for steps in candidates(rec):
            try:
                got = to_gguf.made((name, shape, pattern, steps), w, [layer])
            except Exception:          # these steps do not fit these tensors
                continue
            if np.array_equal(np.frombuffer(got, np.float32), flat):
                return [re.sub(r"^blk\.\d+\.", "blk.#.", name), shape, pattern, steps, layer]
    if want.ndim == 2 and (rows := rows_of(w, layer, want)):
        return [re.sub(r"^blk\.\d+\.", "blk.#.", name), shape, rows[0], [["rows", rows[1]]], layer]
    if want.size <= 64:
        return [name, shape, None, [float(x) for x in flat], None]
    sys.exit(f"{rec['name']}: no steps make {name} {shape}")


def recipes(rec, w, reader):
    found = {}
    for t in reader.tensors:
        shape = [int(n) for n in reversed(t.shape)]
        r = recipe(rec, w, t.name, t.data, shape)
        found.setdefault(str(r[:4]), (r[:4], []))[1].append(r[4])
    return [r + ["" if layers == [None] else record.text_of(layers)] for r, layers in found.values()]


def record_one(name):
    rec = tiny.load(name)
    w = tiny.weights(rec)
    with tempfile.TemporaryDirectory() as d:
        tiny.write_hf(rec, d, w, packed=False)
        reader = converted(rec, d)
        rec["gguf"] = reader.fields["general.architecture"].contents()
        rec["gguf_keys"] = keys_of(reader)
        rec["to_gguf"] = recipes(rec, w, reader)
        to_gguf.write(rec, d + "/own.gguf", w, packed=False)
        own = {t.name: t for t in gguf.GGUFReader(d + "/own.gguf").tensors}
        assert list(own) and set(own) == {t.name for t in reader.tensors}
        for t in reader.tensors:
            assert list(own[t.name].shape) == list(t.shape) and np.array_equal(own[t.name].data, t.data), t.name
    record.write(rec)
    print(f"{name:18} {rec['gguf']:14} {len(own)} tensors, {len(rec['gguf_keys'])} keys", flush=True)


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    bad = 0
    for name in sys.argv[1:] or [n for n, m in models.MODELS.items() if m["gguf"]]:
        try:
            record_one(name)
        except (Exception, SystemExit) as why:
            bad += 1
            print(f"{name}: {type(why).__name__}: {str(why)[:300]}", flush=True)
    sys.exit(f"{bad} models have no recipe" if bad else 0)


if __name__ == "__main__":
    main()
