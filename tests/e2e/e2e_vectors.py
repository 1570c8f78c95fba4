#!/usr/bin/env python3
"""Vectors and scores over HTTP: /v1/embeddings, /score, /rerank, on a made-up model of two layers on the CPU."""
import base64, math, struct
from harness import *

LONG = "a long text that takes several steps, "


def post(p, path, body):
    status, _, text = p.ask("POST", path, body)
    return status, json.loads(text)


def serve(p, path, *args):
    p.serve("--model", path, *args)
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")


def vectors(p, **body):
    status, answer = post(p, "/v1/embeddings", body)
    check(status == 200, f"embeddings of {str(body)[:80]}: {status} {answer}")
    return answer


def one(p, text, **body):
    return vectors(p, input=text, **body)["data"][0]["embedding"]


def refused(p, path, body, status, word):
    got, answer = post(p, path, body)
    check(got == status and word in answer["error"]["message"], f"{path} {str(body)[:80]}: {got} {answer}")


def length(v):
    return math.sqrt(sum(x * x for x in v))


def close(a, b, by=1e-6):
    return len(a) == len(b) and all(abs(x - y) < by for x, y in zip(a, b))


def embeddings(p):
    a = vectors(p, input=["one", "two", LONG * 5], user="me")
    check(a["object"] == "list" and a["id"].startswith("embd-"), "the head of an answer")
    check([d["index"] for d in a["data"]] == [0, 1, 2], "in the order of the inputs")
    check(all(d["object"] == "embedding" and len(d["embedding"]) == 64 for d in a["data"]), "each is a vector")
    check(a["usage"] == {"prompt_tokens": 6 + 5 * len(LONG), "total_tokens": 6 + 5 * len(LONG), "completion_tokens": 0,
                         "prompt_tokens_details": None}, "usage")
    check(all(abs(length(d["embedding"]) - 1) < 1e-5 for d in a["data"]), "each has length 1")
    check(one(p, "one") == a["data"][0]["embedding"], "alone: the same bits as in a batch")
    ids = post(p, "/tokenize", {"prompt": "two"})[1]["tokens"]
    check(one(p, ids) == a["data"][1]["embedding"], "a text's ids give its vector")
    check([d["embedding"] for d in vectors(p, input=[ids, ids])["data"]] == [a["data"][1]["embedding"]] * 2, "lists of ids")
    raw = base64.b64decode(one(p, "one", encoding_format="base64"))
    check(list(struct.unpack("<64f", raw)) == a["data"][0]["embedding"], "base64 holds the same floats")
    cut, whole = one(p, "one", dimensions=8), a["data"][0]["embedding"]
    check(close(cut, [x / length(whole[:8]) for x in whole[:8]]), "dimensions: cut, then of length 1")
    check(abs(length(one(p, "one", use_activation=False)) - 1) > 1e-3, "use_activation false: not of length 1")
    many = p.together(8, lambda i: one(p, LONG * 5))
    check(all(v == a["data"][2]["embedding"] for v in many), "the same bits in company")


def mistakes(p):
    for body, word in (({}, "input"), ({"input": []}, "input"), ({"input": 5}, "Input"), ({"input": [[-1]]}, "vocabulary"),
                       ({"input": [[300]]}, "vocabulary"), ({"input": "a", "dimensions": 0}, "greater than 0"),
                       ({"input": "a", "dimensions": 65}, "at most 64"), ({"input": "a" * 300}, "maximum context length"),
                       ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
                       ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
                       ({"input": "a", "priority": 1}, "priority"), ({"messages": []}, "messages"),
                       ({"input": ""}, "empty"), ({"input": ["a", 5]}, "Input")):
        refused(p, "/v1/embeddings", body, 400, word)
    refused(p, "/v1/embeddings", {"input": "a", "model": "other"}, 404, "does not exist")
    refused(p, "/v1/chat/completions", {"messages": []}, 404, "--runner pooling")
    refused(p, "/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400, "1:1, 1:N or N:N")
    refused(p, "/rerank", {"query": ["a"], "documents": ["b"]}, 400, "string")
    check(vectors(p, input="a" * 300, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 256, "cut to the context")


def scores(p):
    texts = ["one", "two", LONG]
    v = {t: one(p, t) for t in texts + ["query"]}
    cosine = [sum(x * y for x, y in zip(v["query"], v[t])) for t in texts]
    status, a = post(p, "/score", {"text_1": "query", "text_2": texts})
    check(status == 200 and a["id"].startswith("score-") and [d["index"] for d in a["data"]] == [0, 1, 2], f"score: {a}")
    check(close([d["score"] for d in a["data"]], cosine, 1e-5), "a score is the cosine of two vectors")
    status, a = post(p, "/v1/score", {"queries": ["query", "one"], "documents": ["two", "one"]})
    check(status == 200 and close([d["score"] for d in a["data"]], [cosine[1], 1], 1e-5), f"pairs: {a}")
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        status, a = post(p, path, {"query": "query", "documents": texts, "top_n": 2})
        best = sorted(range(3), key=lambda i: -cosine[i])[:2]
        check(status == 200 and [r["index"] for r in a["results"]] == best, f"the best first: {a} {cosine}")
        check([r["document"]["text"] for r in a["results"]] == [texts[i] for i in best], "with their documents")
        check(a["id"].startswith("rerank-") and a["usage"]["total_tokens"] > 0, "head and usage")


def name_pooling(path):
    """As sentence-transformers does: the mean of all tokens, not of length 1."""
    os.mkdir(os.path.join(path, "1_Pooling"))
    with open(os.path.join(path, "modules.json"), "w") as f:
        json.dump([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                   {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}], f)
    with open(os.path.join(path, "1_Pooling", "config.json"), "w") as f:
        json.dump({"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, f)


def means(p):
    """No flag is needed.  A long prompt takes several steps, and the last token's vector is another one."""
    v = one(p, LONG * 5)
    check(abs(length(v) - 1) > 1e-3, "no Normalize among the modules: not of length 1")
    check(all(a == v for a in p.together(8, lambda i: one(p, LONG * 5))), "a mean has the same bits in company")
    check("slipring_pooled_requests_total" in p.ask("GET", "/metrics")[2], "metrics count them")


def reranker(p):
    """Scores are those of yes and no behind Qwen3-Reranker's prompt: between 0 and 1, whatever their company."""
    docs = ["one", "two", "three"]
    status, a = post(p, "/rerank", {"query": "q", "documents": docs})
    check(status == 200 and all(0 < r["relevance_score"] < 1 for r in a["results"]), f"ranks: {a}")
    status, b = post(p, "/score", {"text_1": "q", "text_2": docs})
    by = {r["index"]: r["relevance_score"] for r in a["results"]}
    check(status == 200 and [d["score"] for d in b["data"]] == [by[i] for i in range(3)], f"scores: {b}")
    check(len(set(by.values())) == 3, "each document has its own score")
    refused(p, "/v1/embeddings", {"input": "a"}, 400, "does not support Embeddings API")


def main():
    folder = tempfile.mkdtemp(prefix="slipring-test-")
    path, rerank = os.path.join(folder, "model"), os.path.join(folder, "tiny-Reranker")
    common = ("--load-format", "dummy", "--max-num-batched-tokens", "64", "--max-num-seqs", "8")
    try:
        make_model(path)
        with Programs() as p:
            serve(p, path, "--runner", "pooling", *common)
            embeddings(p)
            mistakes(p)
            scores(p)
        with Programs() as p:
            serve(p, path, *common)
            refused(p, "/v1/embeddings", {"input": "a"}, 404, "generates text")
        name_pooling(path)
        with Programs() as p:
            serve(p, path, *common)
            means(p)
        make_model(rerank, "yes", "no", context=1024)
        with Programs() as p:
            serve(p, rerank, "--runner", "pooling", *common)
            reranker(p)
    finally:
        shutil.rmtree(folder)
    done()


main()
