#!/usr/bin/env python3
"""tools/gpu-check.sh with stand-ins for nvidia-smi, the programs of a kit and a GPU: what it says, and its exit
code, when all is well, when a floor is missed, when a step fails or hangs, when there is no time, no GPU."""
import subprocess
from harness import *

CELL = '\t{"row": "%s x", "at": "%s", "work": "%s", "kind": "%s", "us": 10, "part": %s, "of": "y", "floor": %s, "goal": %s},\n'
GOOD = "[\n" + "".join(CELL % c for c in (
    ("bf16", "1 at 512", "decode one", "bf16", 0.9, 0.75, 0.88), ("FP8", "1 at 512", "decode one", "FP8", 0.7, 0.65, 0.82),
    ("bf16", "32 at 512", "decode many", "bf16", 0.66, 0.65, 0.8),
    ("bf16", "128 tokens", "first token, in process", "bf16", 0.5, 0.43, 0.77),
    ("bf16", "2048 tokens", "first token, in process", "bf16", 0.8, 0.67, 0.83),
    ("bf16", "32 at 512", "device idle", "bf16", 0.996, 0.97, 0.995))) + \
    '\t{"row": "a", "at": "b", "work": "prefill", "kind": "bf16", "skipped": "no cuBLASLt here"}\n]\n'
RINGS = CELL % ("bf16", "128 tokens", "first token", "bf16", 0.6, 0.43478, 0.76923)

OK = "echo fine"
BENCH = "if [ $1 = tiny ]; then exit 0; fi; echo the table; printf '%%s' '%s' >$2"
SMI = "echo 'A GPU, 580.1, 81920 MiB, 700.00 W, 9.0'"


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)


def run(p, seconds=475, **programs):
    """A kit of stand-ins; what it prints, its exit code, its JSON."""
    kit, here = os.path.join(p.dir, "kit"), os.path.dirname(HERE)
    shutil.rmtree(kit, ignore_errors=True)
    usual = {"nvidia-smi": SMI, "slipringd": "echo 'Ready after 0 s'; exec sleep 100", "watch": "echo 1000 MHz",
             "test_emu": OK, "test_emu_hopper": OK, "test_cuda": OK, "test_cuda_groups": OK, "test_cuda_kinds": OK, "test_cuda_experts": OK,
             "test_cuda_packed": OK, "test_cuda_hopper": OK, "test_cuda_graph": OK, "test_cuda_masks": OK, "test_cuda_guesses": OK, "test_cuda_pool": OK,
             "test_cuda_encoder": OK,
             "test_cuda_products": OK, "test_cuda_lt": OK, "test_cuda_special": OK, "bench": BENCH % GOOD,
             "rings": "echo rings: $*; printf '%%s' '%s' >$2" % RINGS}
    at = {"nvidia-smi": "bin/", "slipringd": "", **{name: "gpu/tests/" for name in usual if name.startswith("test_")}}
    for name, text in {**usual, **programs}.items():
        put(os.path.join(kit, at.get(name, "gpu/tests/cuda/") + name), text.replace("%%", "%"))
    for f in ("tools/gpu-check.sh", "tests/cuda/goals.awk"):
        os.makedirs(os.path.dirname(os.path.join(kit, f)), exist_ok=True)
        shutil.copy(os.path.join(here, f), os.path.join(kit, f))
    out = os.path.join(p.dir, "out")
    shutil.rmtree(out, ignore_errors=True)
    r = subprocess.run([os.path.join(kit, "tools/gpu-check.sh"), "--built", kit, out], capture_output=True, text=True,
                       timeout=120, cwd=p.dir,
                       env={**p.env, "PATH": os.path.join(kit, "bin") + ":/usr/bin:/bin", "XDG_CACHE_HOME": p.dir,
                            "GPU_CHECK_SECONDS": str(seconds)})
    try:
        with open(os.path.join(out, "result.json")) as f:
            return r.returncode, r.stdout + r.stderr, json.load(f)
    except FileNotFoundError:
        return r.returncode, r.stdout + r.stderr, None


def row(text, words):
    return next((line for line in text.splitlines() if words in line), "")


def main():
    with Programs() as p:
        code, text, j = run(p)
        check(code == 0 and text.rstrip().endswith("gpu-check: ok"), f"all is well: {code} {text}")
        check(len(text[text.index("A GPU, 580.1"):].splitlines()) <= 30, "the result is 30 lines at most")
        check("0.90 0.70" in row(text, "decode of 1:") and "floor held" in row(text, "decode of 1:"), row(text, "decode of 1:"))
        check("0.4%" in row(text, "device idle") and "goal reached" in row(text, "device idle"), row(text, "device idle"))
        check("SKIPPED: no cuBLASLt here" in row(text, "cuBLASLt's rate"), row(text, "cuBLASLt"))
        check("NOT MEASURED" in row(text, "paged attention"), "what nobody measured is said")
        check("1.67x" in row(text, "first token over rings"), row(text, "first token over rings"))
        check("rings.rows" not in text and "128 5.0 2048 8.0" in text, f"limits of the benchmark go to the rings: {text}")
        check(j["gpu"].startswith("A GPU") and j["checks"]["parity"] == "ok" and len(j["rows"]) == 8, f"{j}")
        check("memcheck: SKIP" in text and "answers: SKIP" in text and "peers: SKIP" in text, "what was skipped, by name")

        code, text, j = run(p, bench=BENCH % GOOD.replace('"part": 0.66', '"part": 0.6'))
        check(code == 2 and "BELOW: bf16 32 at 512 0.60" in row(text, "decode of 32") and "below a floor" in text, f"{code} {text}")
        code, text, j = run(p, rings="printf '%s' >$2" % RINGS.replace("0.6,", "0.3,"))
        check(code == 2 and "BELOW: bf16 128 tokens 3.33x" in text, f"{code} {text}")
        code, text, j = run(p, test_cuda="echo a wrong sum; exit 3")
        check(code == 1 and "parity: a wrong sum" in text and "parity: FAILED, exit 3" in text and "FAILED" in
              j["checks"]["parity"] and "decode of 1" in text, f"what is wrong is said, and the rest measured: {code} {text}")
        code, text, j = run(p, test_cuda_graph='echo a graph; [ "$SLIPRING_CUDA_WITHOUT" = early_start ]')
        check(code == 1 and j["checks"]["graph is mended by"].startswith("early_start (") and
              "graph: wrong without graphs, too" in text, f"a failure is narrowed down: {code} {text}")
        bundle = os.path.join(p.dir, "out", "bundle.tar.gz")
        names = subprocess.run(["tar", "-tzf", bundle], capture_output=True, text=True).stdout
        check("send back: " + bundle in text and all("./" + n in names for n in (
            "result.json", "table.txt", "clocks.txt", "goals.txt", "nvidia-smi.txt", "parity.log", "graph.log",
            "programs.sha256")), f"one file to send back: {names}")
        code, text, j = run(p, test_cuda_hopper="echo 0 passed, 0 failed, 2 skipped")
        check(code == 0 and "hopper: SKIP, nothing of it is for this GPU" in text, f"{code} {text}")
        code, text, j = run(p, bench="exit 7")
        check(code == 1 and "speed: FAILED" in text and j["rows"][0]["work"] == "first token", f"{code} {text}")
        code, text, j = run(p, slipringd="echo 'cannot plan the memory: No available memory'; exit 1")
        check(code == 0 and "rings: SKIP: the daemon says: No available memory" in text, f"{code} {text}")
        code, text, j = run(p, slipringd="echo bad; exit 1")
        check(code == 1 and "rings: bad" in text and "rings: FAILED" in text, f"{code} {text}")
        code, text, j = run(p, seconds=186, test_cuda="sleep 100")
        check(code == 1 and "parity: FAILED, not done in" in text and "speed: ok" in text, f"what hangs is ended: {code} {text}")
        code, text, j = run(p, seconds=4)
        check(code == 2 and "parity: SKIP, no time left" in text and "as far as it was run" in text, f"{code} {text}")
        code, text, j = run(p, **{"nvidia-smi": "echo No devices were found; exit 6"})
        check(code == 0 and "SKIP gpu-check: no NVIDIA GPU answers here" in text, f"no GPU: {code} {text}")
    done()


main()
