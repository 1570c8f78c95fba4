#!/usr/bin/env python3
"""sentences.py BUILD DIR - models through sentence-transformers itself and through the server: vectors and similarities
of the embedding model in DIR (all-MiniLM-L6-v2, say), and scores and ranks of tiny cross-encoders, are equal within
1e-4.  `make sentences` runs it with RECORD_PY, a Python with torch and sentence-transformers."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "e2e")]
from harness import *
import cross

TEXTS = ["The capital of France is Paris.", "Paris is where the French government sits.", "Ein Vogel sitzt im Baum",
         "na\u00efve caf\u00e9 \u6771\u4eac tower " * 12, "a", "def f(x): return x**2", "A bird sits in the tree."]


def post(p, path, body):
    status, _, text = p.ask("POST", path, body)
    check(status == 200, f"{path}: {status} {text[:300]}")
    return json.loads(text)


def serve(p, path):
    p.serve("--model", path)
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 60), "the server is there")


def embedding(path):
    import sentence_transformers
    import torch
    model = sentence_transformers.SentenceTransformer(path, device="cpu")
    want = model.encode(TEXTS, convert_to_tensor=True).cpu()
    with Programs() as p:
        serve(p, path)
        got = torch.tensor([d["embedding"] for d in post(p, "/v1/embeddings", {"input": TEXTS})["data"]])
        scores = post(p, "/score", {"text_1": TEXTS[0], "text_2": TEXTS})["data"]
    vectors = float((got - want).abs().max())
    similar = float((model.similarity(got, got) - model.similarity(want, want)).abs().max())
    scored = float((torch.tensor([s["score"] for s in scores]) - model.similarity(want[:1], want)[0]).abs().max())
    print(f"{os.path.basename(path.rstrip('/'))}: vectors differ by {vectors:.1e}, similarities by {similar:.1e}, /score by {scored:.1e}")
    check(max(vectors, similar, scored) <= 1e-4, "the vectors and similarities of sentence-transformers")


def cross_encoder(folder, name):
    import sentence_transformers
    path = os.path.join(folder, name)
    cross.write(name, path)
    bert = cross.KINDS[name][0] != "xlm-roberta"       # what a tokenizer.json alone does not say
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]" if bert else "<pad>", "model_max_length": 48,
                   "model_input_names": ["input_ids", "token_type_ids", "attention_mask"] if name.startswith("bert") else
                   ["input_ids", "attention_mask"]}, f)
    model = sentence_transformers.CrossEncoder(path, device="cpu")
    pairs = [p for p in cross.PAIRS if all(p)]
    want = [float(x) for x in model.predict(pairs)]
    ranks = [r["corpus_id"] for r in model.rank("where is the cat?", [b for _, b in pairs])]
    with Programs() as p:
        serve(p, path)
        got = [d["score"] for d in post(p, "/score", {"text_1": [a for a, _ in pairs], "text_2": [b for _, b in pairs]})["data"]]
        order = [r["index"] for r in post(p, "/rerank", {"query": "where is the cat?", "documents": [b for _, b in pairs]})["results"]]
    worst = max(abs(a - b) for a, b in zip(got, want))
    print(f"{name}: CrossEncoder.predict() and /score differ by {worst:.1e}; ranks {order}")
    check(worst <= 1e-4 and order == ranks, f"{name}: scores and ranks of sentence-transformers: {got} {want} {ranks}")


def main():
    folder = tempfile.mkdtemp(prefix="slipring-test-")
    try:
        for name in ("bert-rank", "xlm-roberta-rank", "modernbert-rank"):
            cross_encoder(folder, name)
        for path in sys.argv[2:]:
            embedding(path)
    finally:
        shutil.rmtree(folder)
    done()


main()
