"""cross.py - tiny models with a classifier (cross-encoders, and decoders that score), made from a name, and the logits
that transformers gives for texts and pairs of texts.

    tests/models/cross.py KIND DIR            writes the model to DIR, and of an encoder a GGUF to DIR/model.gguf
    python3 tests/models/cross.py --record    with torch and transformers: writes recorded/KIND.logits
"""
import json
import os
import sys

import encoder
import tiny
import to_gguf
from encoder import D

HERE = os.path.dirname(os.path.abspath(__file__))
# KIND: the encoder or decoder, how many labels, what config.json has besides
KINDS = {
    "bert-rank": ("bert", 1, {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0"}}),
    "bert-topics": ("bert", 3, {"id2label": {"0": "news", "1": "sport", "2": "cats \u2603"}}),
    "xlm-roberta-rank": ("xlm-roberta", 1, {"id2label": {"0": "LABEL_0"}}),
    "modernbert-rank": ("modernbert", 1, {"classifier_pooling": "mean", "classifier_bias": False}),
    "modernbert-topics": ("modernbert", 4, {"classifier_pooling": "cls", "classifier_bias": True,
                                            "problem_type": "multi_label_classification"}),
    "qwen3-rank": ("qwen3", 1, {}),
    "llama-topics": ("llama", 5, {"problem_type": "single_label_classification"}),
}
CLASSES = {"bert": ("Bert", "bert."), "xlm-roberta": ("XLMRoberta", "roberta."), "modernbert": ("ModernBert", "model."),
           "qwen3": ("Qwen3", "model."), "llama": ("Llama", "model.")}
PAIRS = [("the cat sat", "on the mat."), ("Embeddings!", "a cat"), ("a", "the cat sat on the mat."), ("the cat", ""),
         ("where is the cat?", "the cat sat on the mat, and 42 cats sat on it.")]
CUT = 21                               # tokens of a pair that is cut
LAYERS, F, HEADS, KV = 2, 96, 4, 2     # of a decoder


def is_decoder(name):
    return KINDS[name][0] in ("qwen3", "llama")


def config_of(name):
    base, labels, more = KINDS[name]
    names = {"id2label": {str(i): f"LABEL_{i}" for i in range(labels)}}
    kind = {"architectures": [CLASSES[base][0] + "ForSequenceClassification"]}
    if not is_decoder(name):
        return {**encoder.CONFIGS[base], **names, **kind, **more}
    return {"model_type": base, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": LAYERS, "head_dim": D // HEADS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV, "vocab_size": 260, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 257,
            "bos_token_id": 256, "pad_token_id": None, "attention_bias": False, **names, **kind, **more}


def head_of(name):
    """{name: (shape, base, name in a GGUF)} of the classifier."""
    base, n, more = KINDS[name]
    dense = {"bert": "bert.pooler.dense", "xlm-roberta": "classifier.dense", "modernbert": "head.dense"}.get(base)
    last = {"xlm-roberta": "classifier.out_proj"}.get(base, "classifier")
    if not dense:
        return {"score.weight": ([n, D], 0, "cls.output.weight")}
    out = {dense + ".weight": ([D, D], 0, "cls.weight")}
    if base != "modernbert" or more["classifier_bias"]:
        out[dense + ".bias"] = ([D], 0, "cls.bias")
    if base == "modernbert":
        out["head.norm.weight"] = ([D], 1, "cls.norm.weight")
    return {**out, last + ".weight": ([n, D], 0, "cls.output.weight"), last + ".bias": ([n], 0, "cls.output.bias")}


def tensors(name):
    base = KINDS[name][0]
    if not is_decoder(name):
        return {**{CLASSES[base][1] + k: v for k, v in encoder.tensors(base).items()}, **head_of(name)}
    kv = KV * D // HEADS
    out = {"embed_tokens.weight": ([260, D], 0), "norm.weight": ([D], 1)}
    for i in range(LAYERS):
        at = f"layers.{i}."
        out |= {at + k + ".weight": v for k, v in (
            ("input_layernorm", ([D], 1)), ("self_attn.q_proj", ([D, D], 0)), ("self_attn.k_proj", ([kv, D], 0)),
            ("self_attn.v_proj", ([kv, D], 0)), ("self_attn.o_proj", ([D, D], 0)), ("post_attention_layernorm", ([D], 1)),
            ("mlp.gate_proj", ([F, D], 0)), ("mlp.up_proj", ([F, D], 0)), ("mlp.down_proj", ([D, F], 0)))}
        if base == "qwen3":
            out |= {at + f"self_attn.{k}_norm.weight": ([D // HEADS], 1) for k in "qk"}
    return {**{"model." + k: (*v, None) for k, v in out.items()}, **head_of(name)}


def byte_tokens(base):
    """GPT-2's names of bytes; Llama begins each text of a pair with <bos>."""
    own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    name = {b: chr(b) for b in own}
    for b in range(256):
        name.setdefault(b, chr(256 + len(name) - len(own)))
    bos = [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    post = {"type": "TemplateProcessing", "single": bos, "special_tokens": {"<bos>": {"id": "<bos>", "ids": [256], "tokens": ["<bos>"]}},
            "pair": bos + [{"SpecialToken": {"id": "<bos>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": encoder.special((256 + i, t) for i, t in enumerate(("<bos>", "<end>", "<x>", "<y>"))),
            "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": post if base == "llama" else None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "vocab": {name[b]: b for b in range(256)}, "merges": []}}


def write_gguf(name, where, w):
    """As llama.cpp's converter names it; the positions of padding are left out."""
    base, labels, more = KINDS[name]
    keys = [k if not k[0].endswith(".pooling_type") else (k[0], "u32", 4) for k in encoder.gguf_keys(base, "cls")]
    arch = keys[0][2]
    if "id2label" in more and labels > 1:
        keys.append((arch + ".classifier.output_labels", "str[]", list(more["id2label"].values())))
    some = []
    for tensor, (shape, _, gguf) in tensors(name).items():
        data = w[tensor][1]
        if gguf == "position_embd.weight":
            skip = 2 if base == "xlm-roberta" else 0
            shape, data = [shape[0] - skip, D], data[skip * D:]
        some.append((gguf, shape, data))
    to_gguf.write_file(os.path.join(where, "model.gguf"), keys, some)


def write(name, where, **settings):
    base = KINDS[name][0]
    os.makedirs(where)
    words = byte_tokens(base) if is_decoder(name) else encoder.unigrams() if base == "xlm-roberta" else encoder.words()
    for file, data in (("config.json", {**config_of(name), **settings}), ("tokenizer.json", words)):
        with open(os.path.join(where, file), "w") as f:
            json.dump(data, f)
    rec = {"name": name}
    w = {k: (shape, tiny.draw(rec, k, shape, begin)) for k, (shape, begin, _) in tensors(name).items()}
    tiny.write_safetensors(os.path.join(where, "model.safetensors"), w)
    if not is_decoder(name):
        write_gguf(name, where, w)


def recorded(name):
    return os.path.join(HERE, "recorded", name + ".logits")


def load(name):
    with open(recorded(name)) as f:
        return json.load(f)


def round_cache():
    """Keys and values as a cache in bfloat16 holds them: decoders have one."""
    from transformers.cache_utils import Cache
    update = Cache.update
    Cache.update = lambda self, k, v, *a, **kw: update(self, k.bfloat16().float(), v.bfloat16().float(), *a, **kw)


def record(name):
    """For each text and pair: its ids, and the logits of all labels in float32."""
    import tempfile

    import tokenizers
    import torch
    import transformers
    where = os.path.join(tempfile.mkdtemp(), name)
    write(name, where)
    words = tokenizers.Tokenizer.from_file(os.path.join(where, "tokenizer.json"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(where, attn_implementation="eager").float().eval()
    typed = KINDS[name][0] == "bert"
    out = []
    for what in [[t] for t in encoder.TEXTS[:4]] + [list(p) for p in PAIRS] + [["cut", *PAIRS[-1]]]:
        cut = what[0] == "cut"
        if cut:
            words.enable_truncation(CUT)
        e = words.encode(*what[cut:])
        words.no_truncation()
        with torch.no_grad():
            more = {"token_type_ids": torch.tensor([e.type_ids])} if typed else {}
            logits = model(input_ids=torch.tensor([e.ids]), attention_mask=torch.ones(1, len(e.ids), dtype=torch.long), **more).logits[0]
        out.append({"texts": what[cut:], "most": CUT if cut else 0, "ids": e.ids, "second": e.type_ids.index(1) if typed and 1 in e.type_ids else 0,
                    "logits": logits.tolist()})
    with open(recorded(name), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(o) for o in out) + "\n]\n")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        round_cache()
        for name in sys.argv[2:] or KINDS:
            record(name)
    else:
        write(*sys.argv[1:3])
