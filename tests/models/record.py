"""record.py - records the logits of tiny models of every family, computed by transformers.

    make models-record                 all; needs an environment with torch and transformers 5.19
    tests/models/record.py [NAME ..]   some

Writes recorded/NAME.json (see tiny.py).  config.json is as the family's models on the hub have it, names and shapes
of tensors are what transformers itself saves, and the weights that tiny.py draws are loaded from the directory
that it writes: so names, shapes and files are checked, too.  Recorded is what it computes in float64 (norms and some
other steps are float32 even then).  A model that computes something else in float32 (two experts have almost the same
score) is no oracle: more than 1.2e-5 of the largest logit is an error, and so is another answer in two pieces.
"""
import base64
import contextlib
import gc
import json
import os
import re
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors import safe_open

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models
import tiny

PROMPTS = [(24, [0, 8, 23]), (70, [15, 16, 40, 69])]


def pattern_rows(found):
    """Join names that differ in numbers alone; [pattern, shape, base, numbers]."""
    groups = {}
    for name, (shape, base) in found.items():
        parts = name.split(".")
        numbers = tuple(int(p) for p in parts if p.isdigit())
        groups.setdefault((".".join("#" if p.isdigit() else p for p in parts), tuple(shape), base), []).append(numbers)
    rows = []
    for (pattern, shape, base), numbers in groups.items():
        columns = [sorted(set(c)) for c in zip(*numbers)]
        if len(numbers) != len(set(numbers)) or torch.tensor([len(c) for c in columns]).prod() != len(numbers):
            sys.exit(f"{pattern}: its numbers are no product of columns")
        rows.append([pattern, list(shape), base, " ".join(text_of(c) for c in columns)])
    return rows


def text_of(numbers):
    out, i = [], 0
    while i < len(numbers):
        j = i
        while j + 1 < len(numbers) and numbers[j + 1] == numbers[j] + 1:
            j += 1
        out.append(str(numbers[i]) if i == j else f"{numbers[i]}-{numbers[j]}")
        i = j + 1
    return ",".join(out)


def class_of(config):
    return getattr(transformers, config["architectures"][0])


def saved_tensors(rec):
    """What transformers saves of such a model: {name: (shape, base)}."""
    with tempfile.TemporaryDirectory() as d:
        with open(d + "/config.json", "w") as f:
            json.dump({k: v for k, v in rec["config"].items() if k != "quantization_config"}, f)
        config = transformers.AutoConfig.from_pretrained(d)
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        model = class_of(rec["config"])._from_config(config)
        model.save_pretrained(d + "/out")
        found = {}
        with safe_open(d + "/out/model.safetensors", "pt") as f:
            for name in sorted(f.keys()):
                t = f.get_tensor(name)
                base = 1 if "norm" in name and torch.all(t == 1) or name.endswith(("_scalar", ".scale", "_scale")) else 0
                found[name] = (list(t.shape), base)
        with open(d + "/out/config.json") as f:
            rec["config5"] = {k: v for k, v in json.load(f).items() if k != "transformers_version"}
    return found


def draft_layer(found, n):
    """The layer after the last one, which drafts tokens: transformers leaves it out."""
    out = {k.replace(f"layers.{n - 1}.", f"layers.{n}."): v for k, v in found.items() if f"layers.{n - 1}." in k}
    d, head = found["model.norm.weight"][0][0], f"model.layers.{n}."
    out |= {head + k: ([d], 1) for k in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
    out |= {head + k: (found["lm_head.weight"][0], 0) for k in ("embed_tokens.weight", "shared_head.head.weight")}
    return out | {head + "eh_proj.weight": ([d, 2 * d], 0)}


def load(rec, d, dtype):
    model, info = class_of(rec["config"]).from_pretrained(d, dtype=dtype, attn_implementation="eager",
                                                          experts_implementation="eager",
                                                          output_loading_info=True)
    if rec.get("drafts"):
        info["unexpected_keys"] = [k for k in info["unexpected_keys"] if ".layers.4." not in k]
    for k in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(k):
            sys.exit(f"{rec['name']}: {k}: {info[k]}")
    return model.eval()


def largest(a, b):
    return float((a.double() - b.double()).abs().max() / a.double().abs().max())


class Chosen:
    """Which experts a model chooses: {layer: [tokens][top]}, each token's in ascending order."""

    def __init__(self, model):
        self.of = {}
        for name, module in model.named_modules():
            layer = re.search(r"\.layers\.(\d+)\.", name + ".")
            if type(module).__name__ == "Llama4Router":        # its scores of others are 0
                module.register_forward_hook(lambda m, args, out, l=layer[1]: self.add(l, out[0].topk(m.top_k).indices))
            elif type(module).__name__.endswith("Experts") and not type(module).__name__.startswith("Llama4"):
                module.register_forward_pre_hook(self.before(layer[1]), with_kwargs=True)

    def before(self, layer):
        def hook(module, args, kwargs):
            every = [*args, *kwargs.values()]
            self.add(layer, next(a for a in every if torch.is_tensor(a) and not a.is_floating_point()))
        return hook

    def add(self, layer, ids):
        self.of[layer] = ids.reshape(-1, ids.shape[-1]).sort(-1).values.to(torch.uint8)

    def take(self):
        out, self.of = self.of, {}
        return out


def same_in_pieces(model, ids, whole):
    """A prompt cut in two, with the cache between: catches a family whose cache is not what its mask says."""
    cut = ids.shape[1] // 2 + 3
    first = model(ids[:, :cut], use_cache=True)
    rest = model(ids[:, cut:], past_key_values=first.past_key_values, use_cache=True)
    return largest(whole, torch.cat([first.logits, rest.logits], 1)[0])


@torch.no_grad()
def record(name, spec):
    rec = {"name": name, "config": spec["config"]}
    rec |= {k: v for k, v in spec.items() if k != "config"}
    rec["vocab"] = spec["config"].get("vocab_size") or spec["config"]["text_config"]["vocab_size"]
    found = saved_tensors(rec)
    if spec.get("drafts"):
        found |= draft_layer(found, spec["config"]["num_hidden_layers"])
    rec["tensors"] = pattern_rows(found)
    rec["prompts"] = [{"ids": tiny.prompt(rec, i, n), "logits": {}} for i, (n, _) in enumerate(PROMPTS)]
    noise = pieces = 0
    with tempfile.TemporaryDirectory() as d:
        tiny.write_hf(rec, d, tiny.weights(rec), packed=False)
        single, double = load(rec, d, torch.float32), load(rec, d, torch.float64)
        chosen = [Chosen(m) for m in (single, double)]
        for i, (_, positions) in enumerate(PROMPTS):
            ids = torch.tensor([rec["prompts"][i]["ids"]])
            whole, exact = single(ids, use_cache=False).logits[0], double(ids, use_cache=False).logits[0]
            noise = max(noise, largest(exact, whole))
            experts, other = (c.take() for c in reversed(chosen))
            if any(not torch.equal(experts[k], other[k]) for k in experts):
                sys.exit(f"{name}: other experts in float32 than in float64")
            if bool(experts) != any("experts" in k or "_moe." in k for k in found):
                sys.exit(f"{name}: it is not seen which experts are chosen")
            rec["prompts"][i] |= {"chosen": {k: base64.b64encode(v.numpy().tobytes()).decode() for k, v in experts.items()}}
            pieces = max(pieces, same_in_pieces(single, ids, whole))
            for p in positions:
                raw = exact[p].float().numpy().tobytes()
                rec["prompts"][i]["logits"][str(p)] = base64.b64encode(raw).decode()
        top = whole.abs().max()
    rec["noise"] = float(f"{noise:.2g}")
    print(f"{name:18} noise {noise:.1e}  in pieces {pieces:.1e}  largest {float(top):.2f}  "
          f"std {float(whole.std()):.2f}  {len(found)} tensors", flush=True)
    if noise > 1.2e-5 or (pieces > 1e-5 and not spec.get("by_length")):
        print(f"  {name}: float64 differs by {noise:.1e}, in pieces by {pieces:.1e}")
        return False
    with contextlib.suppress(FileNotFoundError):        # record_gguf.py's, until it runs again
        rec |= {k: v for k, v in tiny.load(name).items() if k in ("gguf", "gguf_keys", "to_gguf")}
    write(rec)
    return True


def write(rec):
    """A line a tensor and a line a row of logits: so that a change shows as such."""
    def line(key, value):
        return f' {json.dumps(key)}: {json.dumps(value)}'
    out = [line(k, v) for k, v in rec.items() if k not in ("tensors", "prompts", "to_gguf", "gguf_keys")]
    for k in ("gguf_keys", "to_gguf", "tensors"):
        if k in rec:
            out.append(f' "{k}": [\n  ' + ",\n  ".join(json.dumps(r) for r in rec[k]) + "\n ]")
    prompts = []
    for p in rec["prompts"]:
        rows = ",\n   ".join(f'"{k}": "{v}"' for k, v in p["logits"].items())
        chosen = f'"chosen": {json.dumps(p["chosen"])},\n   ' if p.get("chosen") else ""
        prompts.append(f'  {{"ids": {json.dumps(p["ids"])}, {chosen}"logits": {{\n   {rows}}}}}')
    out.append(' "prompts": [\n' + ",\n".join(prompts) + "\n ]")
    os.makedirs(os.path.join(tiny.HERE, "recorded"), exist_ok=True)
    with open(os.path.join(tiny.HERE, "recorded", rec["name"] + ".json"), "w") as f:
        f.write("{\n" + ",\n".join(out) + "\n}\n")


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    bad = 0
    for name in sys.argv[1:] or models.MODELS:
        try:
            bad += not record(name, models.MODELS[name])
        except Exception as why:                        # go on: the others are worth having
            bad += 1
            print(f"{name}: {type(why).__name__}: {str(why)[:400]}")
        gc.collect()
    sys.exit(f"{bad} models could not be recorded" if bad else 0)


if __name__ == "__main__":
    main()
