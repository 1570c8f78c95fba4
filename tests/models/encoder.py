"""encoder.py - tiny encoders with their tokenizers, made from a name, and the vectors that transformers gives for them.

    tests/models/encoder.py KIND DIR         writes the model to DIR, and the same as a GGUF to DIR/model.gguf
    python3 tests/models/encoder.py --record  with torch and transformers: writes recorded/KIND.vectors
"""
import base64
import json
import os
import struct
import sys

import tiny
import to_gguf

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = ["bert", "xlm-roberta", "nomic", "modernbert"]
D, LAYERS, F, POSITIONS = 64, 3, 96, 48
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *("##" + c for c in LETTERS), *"0123456789.,!?'-",
         "the", "cat", "sat", "on", "mat", "embed", "##ding", "##s", "caf", "##e", "re", "##sume", "\u6771", "\u4eac"]
VOCAB = list(dict.fromkeys(VOCAB))
TEXTS = ["the cat sat on the mat.", "Embeddings!", "a", "Caf\u00e9 R\u00e9sum\u00e9, \u6771\u4eac \U0001f642?",
         "THE CAT'S  mat\n\t- 42", "un\u200bseen\u00a0words " + "x" * 101, "the cat sat on the mat " * 6]
LONG = " ".join(f"the cat {i} sat on the mat {i * 7919 % 1000}," for i in range(150))   # more than a slice of the CPU has
SHAPE = {"hidden_size": D, "intermediate_size": F, "max_position_embeddings": POSITIONS, "num_attention_heads": 4,
         "num_hidden_layers": LAYERS, "vocab_size": len(VOCAB)}
CONFIGS, ARCHITECTURES = {}, {}        # nomic's in the words of nomic's own code; of a GGUF
for kind_ in KINDS:
    with open(os.path.join(HERE, "encoders", kind_ + ".json")) as f_:
        CONFIGS[kind_], ARCHITECTURES[kind_] = map(json.load(f_).get, ("config", "gguf"))
assert all(c["vocab_size"] - len(VOCAB) in (0, 8) for c in CONFIGS.values())


def layers_of(kind):
    """[name in a directory, name in a GGUF, shape, has a bias] of a layer's tensors; norms have no shape."""
    if kind == "nomic":
        return [("attn.Wqkv", "attn_qkv", [3 * D, D], False), ("attn.out_proj", "attn_output", [D, D], False),
                ("norm1", "attn_output_norm", None, True), ("mlp.fc11", "ffn_up", [F, D], False),
                ("mlp.fc12", "ffn_gate", [F, D], False), ("mlp.fc2", "ffn_down", [D, F], False),
                ("norm2", "layer_output_norm", None, True)]
    if kind == "modernbert":
        return [("attn.Wqkv", "attn_qkv", [3 * D, D], False), ("attn.Wo", "attn_output", [D, D], False),
                ("attn_norm", "attn_norm", None, False), ("mlp_norm", "ffn_norm", None, False),
                ("mlp.Wi", "ffn_up", [2 * F, D], False), ("mlp.Wo", "ffn_down", [D, F], False)]
    return [("attention.self.query", "attn_q", [D, D], True), ("attention.self.key", "attn_k", [D, D], True),
            ("attention.self.value", "attn_v", [D, D], True), ("attention.output.dense", "attn_output", [D, D], True),
            ("intermediate.dense", "ffn_up", [F, D], True), ("output.dense", "ffn_down", [D, F], True),
            ("attention.output.LayerNorm", "attn_output_norm", None, True),
            ("output.LayerNorm", "layer_output_norm", None, True)]


def tensors(kind):
    """{name: (shape, base, name in a GGUF)}: norms are drawn around 1, other vectors around 0."""
    types = CONFIGS[kind].get("type_vocab_size", 2)
    words = "embeddings.tok_embeddings" if kind == "modernbert" else "embeddings.word_embeddings"
    norm = {"nomic": "emb_ln", "modernbert": "embeddings.norm"}.get(kind, "embeddings.LayerNorm")
    out = {words + ".weight": ([CONFIGS[kind]["vocab_size"], D], 0, "token_embd.weight")}
    if kind in ("bert", "xlm-roberta"):
        out["embeddings.position_embeddings.weight"] = ([CONFIGS[kind]["max_position_embeddings"], D], 0, "position_embd.weight")
    if kind != "modernbert":
        out["embeddings.token_type_embeddings.weight"] = ([types, D], 0, "token_types.weight")
    each = {"nomic": "encoder.layers.", "modernbert": "layers."}.get(kind, "encoder.layer.")
    for i in range(LAYERS):
        for name, gguf, shape, bias in layers_of(kind):
            if kind == "modernbert" and name == "attn_norm" and i == 0:
                continue
            out[f"{each}{i}.{name}.weight"] = (shape or [D], 0 if shape else 1, f"blk.{i}.{gguf}.weight")
            if bias:
                out[f"{each}{i}.{name}.bias"] = ([shape[0] if shape else D], 0, f"blk.{i}.{gguf}.bias")
    out[norm + ".weight"] = ([D], 1, "token_embd_norm.weight")
    if kind == "modernbert":
        out["final_norm.weight"] = ([D], 1, "output_norm.weight")
    else:
        out[norm + ".bias"] = ([D], 0, "token_embd_norm.bias")
    return out


def ends(first, last, ids, twice=False):
    """What a post-processor puts around a text and around a pair: BERT's second text has another type, XLM-R parts texts
    by two marks."""
    single = [{"SpecialToken": {"id": first, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": last, "type_id": 0}}]
    pair = [*single, *single[2:] * twice, {"Sequence": {"id": "B", "type_id": int(not twice)}},
            {"SpecialToken": {"id": last, "type_id": int(not twice)}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {
        t: {"id": t, "ids": [i], "tokens": [t]} for t, i in zip((first, last), ids)}}


def special(names):
    return [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False} for i, t in names]


def words():
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special(enumerate(VOCAB[:5])),
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": ends("[CLS]", "[SEP]", (2, 3)),
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": {t: i for i, t in enumerate(VOCAB)}}}


def pieces():
    """XLM-R's first tokens, then words that begin with U+2581, and the others, as unigrams."""
    rest = ["\u2581" + t for t in VOCAB[5:] if not t.startswith("##")] + [t[2:] for t in VOCAB if t.startswith("##")]
    rest = ["\u2581", *rest, "Emb", ".", ",", "!", "'", "-"]
    rest += ["[unused%d]" % i for i in range(len(VOCAB) + 4 - len(rest))]
    return [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]] + [[t, -2.0 - i / 16 - len(t) / 4] for i, t in enumerate(rest)]


def charsmap(entries):
    """SentencePiece's table of normal forms: a double array over the bytes of each entry and a 0, then the texts."""
    texts, units, taken = b"", {0: 0}, {0}
    nodes = [(0, b"")]
    for at, prefix in nodes:
        keys = {(k.encode() + b"\0")[len(prefix)] for k in entries if (k.encode() + b"\0").startswith(prefix)}
        base = next(b for b in range(1, 1 << 20) if b not in taken and all(b ^ c not in units for c in keys))
        taken.add(base)
        units[at] |= (at ^ base) << 10
        for c in keys:
            if c == 0:
                units[at] |= 1 << 8
                units[base] = 1 << 31 | len(texts)
                texts += entries[prefix.decode()].encode() + b"\0"
            else:
                units[base ^ c] = c
                nodes.append((base ^ c, prefix + bytes([c])))
    n = (max(units) | 255) + 1         # any byte may be tried
    return struct.pack("<I", 4 * n) + struct.pack(f"<{n}I", *(units.get(i, 0) for i in range(n))) + texts


NORMAL = charsmap({"\t": " ", "\n": " ", "\u00a0": " ", "\u200b": " ", "\u00e9": "e", "E": "e"})


def unigrams():
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": special(enumerate(["<s>", "<pad>", "</s>", "<unk>"])),
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(NORMAL).decode()},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, meta]},
            "post_processor": ends("<s>", "</s>", (0, 2), True), "decoder": meta,
            "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": False, "vocab": pieces()}}


def gguf_keys(kind, mode):
    """As llama.cpp's converter writes them."""
    arch = ARCHITECTURES[kind]
    keys = [("general.architecture", "str", arch)]
    keys += [(f"{arch}.{k}", "u32", v) for k, v in (
        ("context_length", POSITIONS), ("embedding_length", D), ("feed_forward_length", F), ("block_count", LAYERS),
        ("attention.head_count", 4), ("pooling_type", 2 if mode == "cls" else 1))]
    keys += [(f"{arch}.attention.layer_norm_epsilon", "f32", CONFIGS[kind].get("norm_eps", CONFIGS[kind].get("layer_norm_eps", 1e-12))),
             (f"{arch}.attention.causal", "bool", False), ("tokenizer.ggml.token_type_count", "u32", 2)]
    if kind == "nomic":
        keys.append((f"{arch}.rope.freq_base", "f32", 1000.0))
    if kind == "modernbert":
        keys += [(f"{arch}.rope.freq_base", "f32", 160000.0), (f"{arch}.rope.freq_base_swa", "f32", 10000.0),
                 (f"{arch}.attention.sliding_window", "u32", 8), (f"{arch}.attention.sliding_window_pattern", "u32", 3),
                 (f"{arch}.rope.scaling.type", "str", "none"), (f"{arch}.hidden_activation", "str", "gelu"),
                 (f"{arch}.vocab_size", "u32", len(VOCAB))]
    if kind == "xlm-roberta":
        return keys + [("tokenizer.ggml.model", "str", "t5"), ("tokenizer.ggml.tokens", "str[]", [t for t, _ in pieces()]),
                       ("tokenizer.ggml.scores", "f32[]", [s for _, s in pieces()]),
                       ("tokenizer.ggml.token_type", "i32[]", [3, 3, 3, 2] + [1] * (len(VOCAB) + 4)),
                       ("tokenizer.ggml.add_space_prefix", "bool", True),
                       ("tokenizer.ggml.precompiled_charsmap", "u8[]", NORMAL),
                       ("tokenizer.ggml.remove_extra_whitespaces", "bool", True),
                       ("tokenizer.ggml.bos_token_id", "u32", 0), ("tokenizer.ggml.eos_token_id", "u32", 2),
                       ("tokenizer.ggml.unknown_token_id", "u32", 3), ("tokenizer.ggml.add_bos_token", "bool", True),
                       ("tokenizer.ggml.add_eos_token", "bool", True)]
    phantom = VOCAB[:5] + [t[2:] if t.startswith("##") else "\u2581" + t for t in VOCAB[5:]]
    return keys + [("tokenizer.ggml.model", "str", "bert"), ("tokenizer.ggml.tokens", "str[]", phantom),
                   ("tokenizer.ggml.token_type", "i32[]", [3] * 5 + [1] * (len(VOCAB) - 5)),
                   ("tokenizer.ggml.unknown_token_id", "u32", 1), ("tokenizer.ggml.cls_token_id", "u32", 2),
                   ("tokenizer.ggml.seperator_token_id", "u32", 3)]


def write_gguf(kind, where, mode, w):
    """The positions of padding are left out, as the converter does."""
    skip = 2 if kind == "xlm-roberta" else 0
    some = []
    for name, (shape, _, gguf) in tensors(kind).items():
        data = w[name][1]
        if gguf == "position_embd.weight":
            shape, data = [shape[0] - skip, D], data[skip * D:]
        some.append((gguf, shape, data))
    to_gguf.write_file(os.path.join(where, "model.gguf"), gguf_keys(kind, mode), some)


def lengthen(kind):
    """From here on the model takes prompts of this many tokens."""
    CONFIGS[kind] |= {k: 4096 for k in ("max_position_embeddings", "n_positions", "max_trained_positions") if k in CONFIGS[kind]}


def write(kind, where, mode="mean"):
    """The directory as sentence-transformers saves it."""
    os.makedirs(os.path.join(where, "1_Pooling"))
    module = "sentence_transformers.models."
    pooling = {"word_embedding_dimension": D, {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[mode]: True}
    for name, data in (("config.json", CONFIGS[kind]), ("tokenizer.json", unigrams() if kind == "xlm-roberta" else words()),
                       ("modules.json", [{"idx": 0, "name": "0", "path": "", "type": module + "Transformer"},
                                         {"idx": 1, "name": "1", "path": "1_Pooling", "type": module + "Pooling"},
                                         {"idx": 2, "name": "2", "path": "2_Normalize", "type": module + "Normalize"}]),
                       ("1_Pooling/config.json", pooling)):
        with open(os.path.join(where, name), "w") as f:
            json.dump(data, f)
    rec = {"name": kind}
    w = {name: (shape, tiny.draw(rec, name, shape, base)) for name, (shape, base, _) in tensors(kind).items()}
    tiny.write_safetensors(os.path.join(where, "model.safetensors"), w)
    write_gguf(kind, where, mode, w)


def recorded(kind):
    return os.path.join(HERE, "recorded", kind + ".vectors")


def record(kind, long=False):
    """For each text: its ids, and the first 16 elements of the mean and of the first token's vector, of length 1."""
    import tempfile

    import tokenizers
    import torch
    import transformers
    where = os.path.join(tempfile.mkdtemp(), kind)
    if long:
        lengthen(kind)
    write(kind, where)
    if kind == "nomic":                    # transformers reads its own names alone; Slipring reads both
        native = {**SHAPE, "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "hidden_act": "silu",
                  "layer_norm_eps": 1e-12, "max_position_embeddings": 4096 if long else POSITIONS, "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}
        with open(os.path.join(where, "config.json"), "w") as f:
            json.dump(native, f)
    ids_of = tokenizers.Tokenizer.from_file(os.path.join(where, "tokenizer.json"))
    model = transformers.AutoModel.from_pretrained(where, attn_implementation="eager").float().eval()
    out = []
    for text in [LONG] if long else TEXTS:
        ids = ids_of.encode(text).ids
        if len(ids) > POSITIONS and not long:
            continue
        with torch.no_grad():
            h = model(torch.tensor([ids])).last_hidden_state[0]
        unit = [(v / v.norm()).tolist()[:16] for v in (h.mean(0), h[0])]
        out.append({"text": "LONG" if long else text, "ids": len(ids) if long else ids, "mean": unit[0], "cls": unit[1]})
    with open(recorded(kind + "-long" * long), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(o) for o in out) + "\n]\n")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        for name in KINDS:
            record(name)
        record("modernbert", long=True)
        record("nomic", long=True)
    else:
        write(*sys.argv[1:3])
