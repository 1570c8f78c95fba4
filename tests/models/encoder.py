"""encoder.py - a tiny BERT with its tokenizer, made from a name, and the vectors that transformers gives for it.

    tests/models/encoder.py DIR              writes the model to DIR
    python3 tests/models/encoder.py --record  with torch and transformers: writes recorded/bert.vectors
"""
import json
import os
import sys

import tiny

HERE = os.path.dirname(os.path.abspath(__file__))
RECORDED = os.path.join(HERE, "recorded", "bert.vectors")
D, LAYERS, F, POSITIONS = 64, 2, 96, 48
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *("##" + c for c in LETTERS), *"0123456789.,!?'-",
         "the", "cat", "sat", "on", "mat", "embed", "##ding", "##s", "caf", "##e", "re", "##sume", "\u6771", "\u4eac"]
VOCAB = list(dict.fromkeys(VOCAB))
TEXTS = ["the cat sat on the mat.", "Embeddings!", "a", "Caf\u00e9 R\u00e9sum\u00e9, \u6771\u4eac \U0001f642?",
         "THE CAT'S  mat\n\t- 42", "un\u200bseen\u00a0words " + "x" * 101, "the cat sat on the mat " * 6]
CONFIG = {"architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": D,
          "intermediate_size": F, "layer_norm_eps": 1e-12, "max_position_embeddings": POSITIONS,
          "num_attention_heads": 4, "num_hidden_layers": LAYERS, "pad_token_id": 0, "position_embedding_type": "absolute",
          "type_vocab_size": 2, "vocab_size": len(VOCAB)}


def tensors():
    """{name: (shape, base)}: norms are drawn around 1, other vectors around 0."""
    out = {"embeddings.word_embeddings.weight": ([len(VOCAB), D], 0),
           "embeddings.position_embeddings.weight": ([POSITIONS, D], 0),
           "embeddings.token_type_embeddings.weight": ([2, D], 0)}
    norms = ["embeddings.LayerNorm"]
    for at in (f"encoder.layer.{i}." for i in range(LAYERS)):
        for name, n, k in (("attention.self.query", D, D), ("attention.self.key", D, D), ("attention.self.value", D, D),
                           ("attention.output.dense", D, D), ("intermediate.dense", F, D), ("output.dense", D, F)):
            out[at + name + ".weight"] = ([n, k], 0)
            out[at + name + ".bias"] = ([n], 0)
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
    for name in norms:
        out[name + ".weight"] = ([D], 1)
        out[name + ".bias"] = ([D], 0)
    return out


def tokenizer():
    special = [{"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False} for i, t in enumerate(VOCAB[:5])]
    ends = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing", "single": ends, "pair": ends, "special_tokens": {
                t: {"id": t, "ids": [VOCAB.index(t)], "tokens": [t]} for t in ("[CLS]", "[SEP]")}},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": {t: i for i, t in enumerate(VOCAB)}}}


def write(where, mode="mean_tokens"):
    """The directory as sentence-transformers saves it."""
    os.makedirs(os.path.join(where, "1_Pooling"))
    module = "sentence_transformers.models."
    for name, data in (("config.json", CONFIG), ("tokenizer.json", tokenizer()),
                       ("modules.json", [{"idx": 0, "name": "0", "path": "", "type": module + "Transformer"},
                                         {"idx": 1, "name": "1", "path": "1_Pooling", "type": module + "Pooling"},
                                         {"idx": 2, "name": "2", "path": "2_Normalize", "type": module + "Normalize"}]),
                       ("1_Pooling/config.json", {"word_embedding_dimension": D, "pooling_mode_" + mode: True})):
        with open(os.path.join(where, name), "w") as f:
            json.dump(data, f)
    rec = {"name": "bert"}
    tiny.write_safetensors(os.path.join(where, "model.safetensors"), {
        name: (shape, tiny.draw(rec, name, shape, base)) for name, (shape, base) in tensors().items()})


def record():
    """For each text: its ids, and the first 16 elements of the mean and of the first token's vector, of length 1."""
    import tempfile

    import tokenizers
    import torch
    import transformers
    where = os.path.join(tempfile.mkdtemp(), "bert")
    write(where)
    ids_of = tokenizers.Tokenizer.from_file(os.path.join(where, "tokenizer.json"))
    model = transformers.AutoModel.from_pretrained(where, attn_implementation="eager").float().eval()
    out = []
    for text in TEXTS:
        ids = ids_of.encode(text).ids
        with torch.no_grad():
            h = model(torch.tensor([ids])).last_hidden_state[0]
        unit = [(v / v.norm()).tolist()[:16] for v in (h.mean(0), h[0])]
        out.append({"text": text, "ids": ids, "mean": unit[0], "cls": unit[1]})
    with open(RECORDED, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(o) for o in out) + "\n]\n")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record()
    else:
        write(sys.argv[1])
