#!/usr/bin/env python3
"""What slipring show says of a model: of the tiny models that run, each against its config.json and its files; of one
with its config.json alone; and of those that are refused, one sentence."""
import json, os, subprocess, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../models"))
import tiny
from harness import check, done

NAMES = ["llama3", "mistral-window", "qwen2", "qwen3", "gemma3", "qwen3-moe", "gpt-oss", "glm4-moe",
         "qwen3.5", "qwen3-next", "deepseek-v3", "glm4-moe-lite", "gemma4", "llama4", "granite-moe", "phi3", "olmo3"]


def show(build, *args):
    p = subprocess.run([os.path.join(build, "slipring"), "show", *args], capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout, p.stderr


def layers(text):
    return tiny.spans(text.replace(" ", ""))


def experts_match(name, config, said):
    n = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if not n:
        return check(said is None, f"{name}: no experts")
    check(said["experts"] == n and said["chosen"] == config["num_experts_per_tok"], f"{name}: {said}")
    of_them = config["num_hidden_layers"] // config.get("interleave_moe_layer_step", 1)
    check(said["layers"] == of_them - config.get("first_k_dense_replace", 0), f"{name}: {said}")


def model_matches(build, name, rec, j, d):
    c = rec["config"]
    check(j["layers"] == c["num_hidden_layers"] and j["width"] == c["hidden_size"], f"{name}: sizes")
    kinds = j["attention"]
    state = layers(j["state"]["layers"]) if j["state"] else []
    check(sorted([l for k in kinds for l in layers(k["layers"])] + state) == list(range(j["layers"])), f"{name}: {kinds}")
    if state:
        each = c["linear_num_value_heads"] * 32 * 32 + 3 * (2 * c["linear_num_key_heads"] + c["linear_num_value_heads"]) * 32
        check(j["state"]["bytes"] == 4 * len(state) * each, f"{name}: {j['state']}")
    windows = {k["window"] for k in kinds}
    check((8 in windows) == (c.get("sliding_window") == 8 and c.get("use_sliding_window") is not False),
          f"{name}: windows {windows}")
    experts_match(name, c, j["experts"])
    if rank := c.get("kv_lora_rank"):
        check([(k["latent"], k["kv_heads"], k["head_width"]) for k in kinds] == [(rank, 1, rank + c["qk_rope_head_dim"])],
              f"{name}: {kinds}")
    if chunk := c.get("attention_chunk_size"):
        check({k["chunk"] for k in kinds} == {0, chunk}, f"{name}: {kinds}")
    need = {n["type"]: n for n in j["would_need"]}
    check(need["BF16"]["weight_bytes"] > need["Q8_0"]["weight_bytes"] > need["Q4_K"]["weight_bytes"], f"{name}: {need}")
    check(all(0 < n["token_bytes"] <= n["weight_bytes"] for n in need.values()), f"{name}: a token reads a part: {need}")
    kept = sum(k["n_layers"] * 2 * min(k["window"] or k["chunk"] or j["context"], j["context"])
               * (k["head_width"] if k["latent"] else 2 * k["kv_heads"] * k["head_width"]) for k in kinds)
    kept += j["state"]["bytes"] if j["state"] else 0
    check({n["sequence_bytes"] for n in need.values()} == {kept}, f"{name}: a sequence keeps {kept}: {need}")
    stored = os.path.getsize(os.path.join(d, "hf/model.safetensors"))
    check(0 < j["token_weight_bytes"] <= j["weight_bytes"] <= stored, f"{name}: bytes")
    if j["experts"]:
        check(j["token_weight_bytes"] < 0.65 * j["weight_bytes"], f"{name}: a token reads what its experts hold")
    elif c["tie_word_embeddings"]:
        check(j["token_weight_bytes"] == j["weight_bytes"], f"{name}: a token reads everything")
    else:                            # of the embedding one row
        check(j["weight_bytes"] - j["token_weight_bytes"] == 4 * c["hidden_size"] * (c["vocab_size"] - 1),
              f"{name}: {j['weight_bytes']} and {j['token_weight_bytes']}")


def devices_match(build, d):
    """The fewest devices that hold a model: each number is what the plan of so many ranks says, fewer is refused."""
    def of(size, *more):
        code, out, err = show(build, os.path.join(d, "hf"), "--device-memory", size, "--max-num-seqs", "8", "--json", *more)
        check(code == 0, f"{size}: {err}")
        return json.loads(out)
    j = of("1G")["devices"]
    check(j["fewest"] == 1 and j["memory_bytes"] == 1 << 30, f"a GiB holds it: {j}")
    check(all(a["weights_bytes"] > b["weights_bytes"] for a, b in zip(j["plans"], j["plans"][1:])), f"each has less: {j}")
    check(all(a["kv_tokens"] < b["kv_tokens"] for a, b in zip(j["plans"], j["plans"][1:])), f"and room for more: {j}")
    two = of("1G", "--tensor-parallel-size", "2", "--device", "cpu")["plan"]
    check(two["weights_bytes"] >= j["plans"][1]["weights_bytes"] > two["weights_bytes"] // 2 - 4096, f"two ranks: {two} {j}")
    none, small = 1, 1024                              # MiB
    while small - none > 1:
        mid = (none + small) // 2
        none, small = (none, mid) if of(f"{mid}M")["devices"]["fewest"] else (mid, small)
    j, less = of(f"{small}M")["devices"], of(f"{small - 1}M")["devices"]
    check(j["plans"][0]["devices"] == j["fewest"] and less["fewest"] is None, f"{small} MiB do, one less does not: {j} {less}")
    check(show(build, os.path.join(d, "hf"), "--device-memory", "x")[0] == 2, "a wrong size is refused")
    code, out, _ = show(build, os.path.join(d, "hf"), "--device-memory", "1G")
    check(code == 0 and "devices of 1.0 GiB" in out and "the fewest that hold it" in out, f"in words: {out}")
    code, out, _ = show(build, os.path.join(d, "hf"), "--device-memory", "1M")
    check(code == 0 and "16 do not hold it: " in out, f"too little: {out}")


def text_matches(build, name, d, runs):
    code, out, err = show(build, os.path.join(d, "hf"))
    check(code == 0 and out.count("  attention ") == len(runs["attention"]), f"{name}: a line for each kind\n{out}")
    check(("  experts " in out) == (runs["experts"] is not None), f"{name}: experts\n{out}")
    check("as Q8_0" in out and "as AWQ" in out and "a token reads" in out, f"{name}: what it would need\n{out}")


def main(build):
    ran = 0
    for name in NAMES:
        rec = tiny.load(name)
        with tempfile.TemporaryDirectory() as d:
            tiny.write_hf(rec, os.path.join(d, "hf"), tiny.weights(rec))
            code, out, err = show(build, os.path.join(d, "hf"), "--json")
            if code:
                check(err.count("\n") == 1 and rec["config"]["architectures"][0] in err, f"{name}: {err}")
                continue
            ran += 1
            j = json.loads(out)
            model_matches(build, name, rec, j, d)
            text_matches(build, name, d, j)
            if name == "llama3":
                devices_match(build, d)
            os.unlink(os.path.join(d, "hf/model.safetensors"))
            code, out, err = show(build, os.path.join(d, "hf"), "--json")
            check(code == 0, f"{name}: config.json alone: {err}")
            if code == 0:
                alone = json.loads(out)
                check(alone["attention"] == j["attention"] and alone["weights"] == j["weights"], f"{name}: the same")
    check(ran >= 4, f"{ran} models run")


main(sys.argv[1])
done()
