#!/usr/bin/env python3
"""Classifiers over HTTP and in vLLM's offline class: cross-encoders and decoders that score, tiny ones, whose tokens and
logits are those of tokenizers and transformers, recorded by tests/models/cross.py; from directories and GGUF files."""
import base64, math, struct
from harness import *

sys.path.insert(0, os.path.join(HERE, "models"))
import cross
import encoder


def post(p, path, body):
    status, _, text = p.ask("POST", path, body)
    check(status == 200, f"{path} {str(body)[:80]}: {status} {text[:300]}")
    return json.loads(text)


def refused(p, path, body, status, word):
    got, _, text = p.ask("POST", path, body)
    check(got == status and word in text, f"{path} {str(body)[:80]}: {got} {text[:300]}")


def serve(p, path, *args):
    p.serve("--model", path, *args)
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")


def activated(name, logits):
    """As vLLM: what the files say, else a sigmoid of one label and the softmax of several."""
    more = cross.KINDS[name][2]
    if "Identity" in str(more.get("sentence_transformers")):
        return logits
    if len(logits) == 1 or more.get("problem_type") == "multi_label_classification":
        return [1 / (1 + math.exp(-x)) for x in logits]
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def close(a, b, by=2e-5):
    return len(a) == len(b) and all(abs(x - y) <= by for x, y in zip(a, b))


def single_texts(p, name, recorded, gguf):
    """/classify and /pooling of texts; the tokens are those of tokenizers."""
    texts = [r for r in recorded if len(r["texts"]) == 1]
    for r in texts:
        ids = post(p, "/tokenize", {"prompt": r["texts"][0]})["tokens"]
        check(ids == r["ids"], f"{name}: tokens of {r['texts']}: {ids}, not {r['ids']}")
    a = post(p, "/classify", {"input": [r["texts"][0] for r in texts]})
    check(a["id"].startswith("classify-") and a["object"] == "list" and a["usage"]["total_tokens"] == sum(len(r["ids"]) for r in texts),
          f"{name}: the head of an answer: {str(a)[:200]}")
    raw = post(p, "/classify", {"input": [r["ids"] for r in texts], "use_activation": False})["data"]
    for r, d, e in zip(texts, a["data"], raw):
        check(close(e["probs"], r["logits"]), f"{name}: logits of {r['texts']}: {e['probs']}, not {r['logits']}")
        check(close(d["probs"], activated(name, r["logits"]) if not gguf else d["probs"]), f"{name}: {d} of {r['logits']}")
        best = max(range(len(r["logits"])), key=lambda i: r["logits"][i])
        names = cross.config_of(name)["id2label"]
        check(d["num_classes"] == len(names) and (gguf and d["label"] is None or d["label"] == names[str(best)]), f"{name}: the label: {d}")
    plain = post(p, "/pooling", {"input": texts[0]["texts"][0], "task": "classify"})
    check(plain["data"][0] == {"index": 0, "object": "pooling", "data": a["data"][0]["probs"]} and plain["id"].startswith("pooling-"),
          f"{name}: /pooling: {plain}")
    coded = post(p, "/pooling", {"input": texts[0]["texts"][0], "encoding_format": "base64"})["data"][0]["data"]
    check(list(struct.unpack(f"<{len(names)}f", base64.b64decode(coded))) == a["data"][0]["probs"], f"{name}: base64")
    return raw


def pairs(p, name, recorded, gguf):
    """/score and /rerank of pairs."""
    some = [r for r in recorded if len(r["texts"]) == 2 and not r["most"] and all(r["texts"])]
    a = post(p, "/score", {"text_1": [r["texts"][0] for r in some], "text_2": [r["texts"][1] for r in some]})
    check(a["usage"]["prompt_tokens"] == sum(len(r["ids"]) for r in some), f"{name}: tokens of pairs: {a['usage']}")
    raw = post(p, "/score", {"queries": [r["texts"][0] for r in some], "documents": [r["texts"][1] for r in some], "use_activation": False})
    for r, d, e in zip(some, a["data"], raw["data"]):
        check(close([e["score"]], r["logits"]), f"{name}: logit of {r['texts']}: {e['score']}, not {r['logits']}")
        want = activated(name, r["logits"]) if not gguf else [1 / (1 + math.exp(-r["logits"][0]))]
        check(close([d["score"]], want), f"{name}: score of {r['texts']}: {d['score']}, not {want}")
    cut = recorded[-1]
    one = {"text_1": cut["texts"][0], "text_2": cut["texts"][1], "use_activation": False}
    b = post(p, "/score", {**one, "truncate_prompt_tokens": cut["most"]})
    check(b["usage"]["prompt_tokens"] == cut["most"] and close([b["data"][0]["score"]], cut["logits"]), f"{name}: cut to {cut['most']}: {b}")
    docs = [r["texts"][1] for r in some]
    scores = [d["score"] for d in post(p, "/score", {"text_1": "where", "text_2": docs})["data"]]
    ranks = post(p, "/v1/rerank", {"query": "where", "documents": docs, "top_n": 2})["results"]
    best = sorted(range(len(docs)), key=lambda i: -scores[i])[:2]
    check([(r["index"], r["relevance_score"], r["document"]["text"]) for r in ranks] == [(i, scores[i], docs[i]) for i in best], f"{name}: {ranks}")
    many = p.together(6, lambda i: [d["score"] for d in post(p, "/score", {"text_1": "where", "text_2": docs * (1 + i)})["data"]])
    check(all(m == scores * (1 + i) for i, m in enumerate(many)), f"{name}: the same bits in company")
    return raw["data"]


def mistakes(p, name):
    refused(p, "/v1/embeddings", {"input": "a"}, 400, "does not support Embeddings API")
    refused(p, "/v1/completions", {"prompt": "a"}, 404, "--runner pooling")
    refused(p, "/pooling", {"input": "a", "task": "token_classify"}, 400, "task must be classify")
    refused(p, "/pooling", {"input": "a", "dimensions": 1}, 400, "dimensions")
    if cross.KINDS[name][1] > 1:
        refused(p, "/score", {"text_1": "a", "text_2": "b"}, 400, "num_labels == 1")
        return
    refused(p, "/score", {"text_1": [[1, 2]], "text_2": ["b"]}, 400, "scores texts")
    refused(p, "/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 5, "truncation_side": "left"}, 400, "truncation_side")
    if not cross.is_decoder(name):
        refused(p, "/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 2}, 400, "no room")
        refused(p, "/score", {"text_1": "the " * 30, "text_2": "cat " * 30}, 400, "maximum context length")


def offline(p, path, name):
    """vLLM's class gives what the server answers, to the bit."""
    program = ("import json, sys\n"
               "from slipring_vllm import LLM, PoolingParams\n"
               "with LLM(socket=sys.argv[1], tokenizer=sys.argv[2]) as llm:\n"
               "    one = llm.classify(['the cat', 'a'], use_tqdm=False)\n"
               "    print(json.dumps([o.outputs.probs for o in one]), one[0].outputs.num_classes)\n"
               "    print(json.dumps([o.outputs.data for o in llm.encode(['the cat', 'a'], PoolingParams(use_activation=False), pooling_task='classify')]))\n"
               "    for what in (lambda: llm.embed('a'), lambda: llm.encode('a'), lambda: llm.score('a', 'b')):\n"
               "        try:\n"
               "            print(json.dumps([o.outputs.score for o in what()]))\n"
               "        except ValueError as e:\n"
               "            print(e)\n")
    where = os.path.join(os.path.dirname(HERE), "adapters", "python")
    r = subprocess.run([sys.executable, "-c", program, p.socket, path], capture_output=True, text=True,
                       env=dict(os.environ, PYTHONPATH=where, SLIPRING_LIB=BUILD), timeout=60)
    check(r.returncode == 0, f"{name}: offline: {r.stderr[-500:]}")
    probs, raw, embed, encode, score = r.stdout.splitlines()
    labels = cross.KINDS[name][1]
    want = post(p, "/classify", {"input": ["the cat", "a"]})["data"]
    check(probs == json.dumps([d["probs"] for d in want]) + f" {labels}", f"{name}: LLM.classify(): {probs}, not {want}")
    want = post(p, "/classify", {"input": ["the cat", "a"], "use_activation": False})["data"]
    check(json.loads(raw) == [d["probs"] for d in want], f"{name}: LLM.encode(): {raw}")
    check("Embedding API is not supported" in embed and "pooling_task required" in encode, f"{name}: {embed} {encode}")
    if labels == 1:
        want = post(p, "/score", {"text_1": "a", "text_2": "b"})["data"][0]["score"]
        check(json.loads(score) == [want], f"{name}: LLM.score(): {score}, not {want}")
    else:
        check("num_labels == 1" in score, f"{name}: LLM.score(): {score}")


def tables():
    """The tables of inner loops below the best one that this machine has."""
    flags = open("/proc/cpuinfo").read().split()
    needs = [("plain", []), ("avx2", ["avx2", "fma"]), ("avx512vnni", ["avx2", "fma", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"]),
             ("avx512", ["avx512_vnni", "avx512_bf16"])]
    return [name for name, of in needs if all(f in flags for f in of)][:-1]


def one(folder, name):
    recorded = cross.load(name)
    path = os.path.join(folder, name)
    cross.write(name, path)
    answers = []
    for gguf in (False, True)[:2 - cross.is_decoder(name)]:
        with Programs() as p:
            serve(p, os.path.join(path, "model.gguf") if gguf else path)
            if gguf and "modernbert-topics" == name:       # a GGUF's is pooled by the mean, as llama.cpp does
                mistakes(p, name)
                continue
            no_names = gguf and not (cross.KINDS[name][1] > 1 and "id2label" in cross.KINDS[name][2])
            answers.append(single_texts(p, name, recorded, no_names))
            if cross.KINDS[name][1] == 1:
                answers[-1] = [*answers[-1], *pairs(p, name, recorded, gguf)]
            mistakes(p, name)
            if not gguf:
                offline(p, path, name)
    for table in tables() if cross.is_decoder(name) else []:   # an encoder's cache is f32, which plain C reads
        with Programs(env={"SLIPRING_CPU": table}) as p:
            serve(p, path)
            single_texts(p, name, recorded, False)
    if len(answers) == 2:
        strip = [[{k: v for k, v in d.items() if k != "label"} for d in a] for a in answers]
        check(strip[0] == strip[1], f"{name}: GGUF and directory: the same bits")
    return path


def lies(folder, name, say, edit=None, **settings):
    """What files say wrong is refused in a sentence."""
    path = tempfile.mkdtemp(dir=folder)
    os.rmdir(path)
    cross.write(name, path, **settings)
    if edit:
        path = edit(path)
    with Programs() as p:
        d = p.run("slipringd", "--model", path)
        check(d.wait(20) != 0 and say in p.log("slipringd"), f"{name} {settings}: {p.log('slipringd')[-300:]}")


def without_pooler(path):
    """As llama.cpp's converter leaves it out of BERT's classifiers."""
    w = encoder.to_gguf.write_file
    encoder.to_gguf.write_file = lambda at, keys, some: w(at, keys, [t for t in some if not t[0].startswith("cls.w")])
    cross.write("bert-rank", path + "2")
    encoder.to_gguf.write_file = w
    return os.path.join(path + "2", "model.gguf")


def refusals(folder):
    lies(folder, "bert-rank", "num_labels is 3, but id2label has 1 names", num_labels=3)
    lies(folder, "bert-rank", "num_labels is 1000000000; 1 to 65536", id2label=None, num_labels=1000000000)
    lies(folder, "bert-topics", "classifier.weight has not the shape [5][64]", id2label=None, num_labels=5)
    lies(folder, "bert-rank", "Softplus is not supported", sentence_transformers={"activation_fn": "torch.nn.modules.activation.Softplus"})
    lies(folder, "modernbert-rank", "classifier_pooling max", classifier_pooling="max")
    lies(folder, "modernbert-rank", "classifier_activation is", classifier_activation="relu")
    lies(folder, "qwen3-rank", "score.weight", id2label={str(i): str(i) for i in range(7)})
    lies(folder, "bert-rank", "left the pooler out", without_pooler)
    path = os.path.join(folder, "llama-topics")
    with Programs() as p:
        d = p.run("slipringd", "--model", path, "--runner", "generate")
        check(d.wait(20) != 0 and "has a classifier" in p.log("slipringd"), "--runner generate is refused")
    with Programs() as p:
        serve(p, path, "--pooler-config", '{"use_activation": false}')
        r = next(r for r in cross.load("llama-topics") if len(r["texts"]) == 1)
        got = post(p, "/classify", {"input": r["texts"][0]})["data"][0]["probs"]
        check(close(got, r["logits"]), f"use_activation false: logits: {got}")


def main():
    folder = tempfile.mkdtemp(prefix="slipring-test-")
    try:
        for name in cross.KINDS:
            one(folder, name)
        refusals(folder)
    finally:
        shutil.rmtree(folder)
    done()


main()
