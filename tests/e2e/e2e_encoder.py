#!/usr/bin/env python3
"""Encoders over HTTP: tokens and vectors of tiny ones of each family are those of tokenizers and transformers, recorded by
tests/models/encoder.py, from a directory and from a GGUF."""
import harness
from harness import *

sys.path.insert(0, os.path.join(HERE, "models"))
import encoder


def post(p, path, body):
    status, _, text = p.ask("POST", path, body)
    check(status == 200, f"{path} {str(body)[:80]}: {status} {text[:300]}")
    return json.loads(text)


def vectors(p, texts, **body):
    return [d["embedding"] for d in post(p, "/v1/embeddings", {"input": texts, **body})["data"]]


def agrees(p, recorded, kind):
    got = vectors(p, [r["text"] for r in recorded])
    worst = max(abs(a - b) for v, r in zip(got, recorded) for a, b in zip(v, r[kind]))
    check(all(len(v) == encoder.D for v in got) and worst < 1e-5, f"{kind}: {worst:.2g} from transformers' vectors")
    return got


def same_bits(p, recorded, alone):
    """In whatever company: a batch of many prompts, of which some do not fit the slice that others fill."""
    texts = [r["text"] for r in recorded] * 12
    check(vectors(p, texts) == alone * 12, "the same bits in a batch")
    many = p.together(6, lambda i: vectors(p, texts[i:i + 20]))
    check(all(v == (alone * 12)[i:i + 20] for i, v in enumerate(many)), "the same bits in company")


def python_agrees(p, path, recorded, kind):
    """The Python module, over the rings, gives the vectors of HTTP, as told or as the files say; vLLM's class, too."""
    texts = [r["text"] for r in recorded] * 20
    program = ("import json, sys, slipring\n"
               "with slipring.open(sys.argv[1], model=sys.argv[2]) as s:\n"
               "    texts = json.loads(sys.argv[3])\n"
               "    print(json.dumps(s.embed(texts, pooling=sys.argv[4])))\n"
               "    print(json.dumps(s.embed(texts)))\n"
               "from slipring_vllm import LLM, PoolingParams\n"
               "with LLM(socket=sys.argv[1], tokenizer=sys.argv[2]) as llm:\n"
               "    outs = llm.embed(texts, use_tqdm=False)\n"
               "    print(json.dumps([o.outputs.embedding for o in outs]))\n"
               "    cut = llm.embed([outs[0].prompt_token_ids], pooling_params=PoolingParams(dimensions=8))[0].outputs\n"
               "    print(json.dumps([cut.hidden_size, sum(x * x for x in cut.embedding)]))\n")
    where = os.path.join(os.path.dirname(HERE), "adapters", "python")
    r = subprocess.run([sys.executable, "-c", program, p.socket, path, json.dumps(texts), {"mean": "mean", "cls": "first"}[kind]],
                       capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=where, SLIPRING_LIB=BUILD), timeout=60)
    check(r.returncode == 0, f"slipring.py: {r.stderr[-500:]}")
    told, by_files, vllm, cut = map(json.loads, r.stdout.splitlines())
    check(told == vectors(p, texts), "Session.embed(): the same vectors")
    check(by_files == told, "Session.embed(): pooled as the files say")
    check(vllm == told, "LLM.embed(): the same vectors")
    check(cut[0] == 8 and abs(cut[1] - 1) < 1e-5, f"LLM.embed(): eight elements, of length 1: {cut}")


def in_a_gguf(path, recorded, kind, directory):
    """The same model as a GGUF: the same tokens, and the same vectors to the bit."""
    with Programs() as p:
        p.serve("--model", os.path.join(path, "model.gguf"))
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")
        for r in recorded:
            ids = post(p, "/tokenize", {"prompt": r["text"]})["tokens"]
            check(ids == r["ids"], f"GGUF: tokens of {r['text']!r}: {ids}, not {r['ids']}")
        check(agrees(p, recorded, kind) == directory, "GGUF and directory: the same bits")


def one(folder, name, kind):
    with open(encoder.recorded(name)) as f:
        recorded = json.load(f)
    path = os.path.join(folder, name + kind)
    encoder.write(name, path, kind)
    with Programs() as p:
        p.serve("--model", path)
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")
        for r in recorded:
            ids = post(p, "/tokenize", {"prompt": r["text"]})["tokens"]
            check(ids == r["ids"], f"{name}: tokens of {r['text']!r}: {ids}, not {r['ids']}")
        alone = agrees(p, recorded, kind)
        same_bits(p, recorded, alone)
        text = post(p, "/detokenize", {"tokens": recorded[0]["ids"][1:-1]})["prompt"]
        check(text == "the cat sat on the mat.", f"back to text: {text}")
        if name == "bert":
            python_agrees(p, path, recorded, kind)
        status, _, text = p.ask("POST", "/v1/embeddings", {"input": "the " * 60})
        check(status == 400 and "maximum context length" in text, f"too long: {status} {text}")
        status, _, text = p.ask("POST", "/v1/completions", {"prompt": "a"})
        check(status == 404 and "--runner pooling" in text, f"it makes no tokens: {status} {text}")
    in_a_gguf(path, recorded, kind, alone)
    return path


def long_prompt(folder, name):
    """A prompt that is longer than a slice, alone and beside others."""
    with open(encoder.recorded(name + "-long")) as f:
        recorded, = json.load(f)
    path = os.path.join(folder, name + "long")
    encoder.lengthen(name)
    encoder.write(name, path, "mean")
    with Programs() as p:
        p.serve("--model", path)
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")
        n = len(post(p, "/tokenize", {"prompt": encoder.LONG})["tokens"])
        check(n == recorded["ids"] and n > 1024, f"{name}: {n} tokens, not {recorded['ids']}")
        recorded["text"] = encoder.LONG
        alone = agrees(p, [recorded], "mean")
        short = vectors(p, encoder.TEXTS[:3])
        check(vectors(p, [encoder.TEXTS[0], encoder.LONG, *encoder.TEXTS[1:3]]) == [short[0], *alone, *short[1:]],
              f"{name}: the same bits beside short ones")


def refused(folder, setting, value, say):
    """A setting that would change what is computed, of ModernBERT."""
    path = tempfile.mkdtemp(dir=folder)
    os.rmdir(path)
    encoder.write("modernbert", path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump({**encoder.CONFIGS["modernbert"], setting: value}, f)
    with Programs() as p:
        d = p.run("slipringd", "--model", path)
        check(d.wait(20) != 0 and say in p.log("slipringd"), f"{setting}: {p.log('slipringd')[-300:]}")


def pooler_config(path, name):
    """It replaces what the files say; what it cannot say is refused by name."""
    with open(encoder.recorded(name)) as f:
        recorded = json.load(f)
    with Programs() as p:
        p.serve("--model", path, "--pooler-config", '{"pooling_type": "MEAN"}')
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")
        agrees(p, recorded, "mean")
    with Programs() as p:
        p.serve("--model", path, "--pooler-config", '{"use_activation": false, "task": "embed", "dimensions": null}')
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")
        v = vectors(p, [recorded[0]["text"]])[0]
        check(abs(sum(x * x for x in v) - 1) > 1e-3, "use_activation false: not of length 1")
    for text, say in (('{"pooling_type": "ALL"}', "pooling_type must be MEAN, CLS or LAST"), ('{"dimensions": 8}', "dimensions is not supported"),
                      ('{"normalize": 1}', "normalize must be true or false"), ("[]", "must be a JSON object")):
        with Programs() as p:
            d = p.run("slipring-http", "--model", path, "--port", 0, "--pooler-config", text)
            check(d.wait(20) != 0 and say in p.log("slipring-http"), f"{text}: {p.log('slipring-http')[-300:]}")


def on_cuda(folder):
    """The daemon with the CUDA back end, whose kernels the CPU runs (tests/emu): activations in bf16, so close to
    transformers' vectors; alone and in company the same bits."""
    emulated = os.path.join(BUILD, "emu/slipring-cuda.so")
    if not os.path.exists(emulated):
        print("SKIP encoders on the emulated CUDA back end: it is not built (make tests)")
        return
    there = os.path.join(folder, "bin")
    os.mkdir(there)
    for f in [os.path.join(BUILD, n) for n in ("slipringd", "slipring-http", "slipring")] + [emulated]:
        shutil.copy(f, there)
    os.environ["EMU_AT_ONCE"] = "1"
    harness.BUILD = there
    for name in encoder.KINDS:
        path = os.path.join(folder, name + "cuda")
        encoder.write(name, path, "mean")
        with open(encoder.recorded(name)) as f:
            recorded = json.load(f)
        with Programs() as p:
            p.serve("--model", path, "--device", "cuda", "--enforce-deterministic", "--max-num-seqs", 8,
                    "--kv-cache-memory-bytes", 4 << 20, "--no-self-check")
            check("on cuda" in p.log("slipring"), "it runs on CUDA: " + p.log("slipring"))
            alone = [vectors(p, [r["text"]])[0] for r in recorded]
            off = max(abs(a - b) / max(map(abs, r["mean"])) for v, r in zip(alone, recorded) for a, b in zip(v, r["mean"]))
            check(off < 0.02, f"{name} on CUDA: {off:.2g} of the largest element from transformers' vectors")
            check(vectors(p, [r["text"] for r in recorded] * 3) == alone * 3, f"{name} on CUDA: the same bits in a batch")


def main():
    folder = tempfile.mkdtemp(prefix="slipring-test-")
    try:
        for name, kind in (("bert", "mean"), ("bert", "cls"), ("xlm-roberta", "mean"), ("nomic", "mean"),
                           ("modernbert", "cls")):
            path = one(folder, name, kind)
        os.unlink(os.path.join(path, "modules.json"))
        with Programs() as p:                   # no file says how: the first token's
            p.serve("--model", path)
            check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter finds the daemon")
            with open(encoder.recorded(name)) as f:
                agrees(p, json.load(f), "cls")
        pooler_config(path, name)
        for long in ("modernbert", "nomic"):
            long_prompt(folder, long)
        refused(folder, "norm_bias", True, "norm_bias is true")
        refused(folder, "layer_types", ["full_attention"] * 2, "layer_types names 2 layers, of 3")
        refused(folder, "hidden_activation", "relu", "hidden_activation relu is not supported")
        refused(folder, "attention_scaling", 2, "attention_scaling is 2")
        with Programs() as p:
            d = p.run("slipringd", "--model", path, "--runner", "generate")
            check(d.wait(20) != 0 and "is an encoder" in p.log("slipringd"), "--runner generate is refused")
        on_cuda(folder)
    finally:
        shutil.rmtree(folder)
    done()


main()
