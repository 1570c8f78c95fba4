#!/usr/bin/env python3
"""tools/gpu-check.sh with stand-ins for nvidia-smi, the programs of a kit and a GPU: what it says, and its exit
code, when all is well, when a floor is missed, when a step fails or hangs, when there is no time, no GPU; what is
there when it is cut off; what may be wrong with a machine at first."""
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
VERBS = ("begin", "angles", "embed", "norm", "q, k, v", "rope and store", "attention", "o", "gate and up", "activation", "down",
         "last norm", "head", "sample, greedy")
VERB = '\t{"verb": "%s", "at": "%d tokens", "kind": "%s", "tokens": %d, "verb_us": 12.5, "rate": 2010, "unit": "GB/s", ' \
    '"best": 3000, "of_best": 0.67},\n'
PARTS = "[\n" + '\t{"row": "ceilings", "read_gb_s": 3000, "mma_bf16_top_s": 600, "product_bf16_top_s": 700},\n' + "".join(
    VERB % (v, t, k, t) for k in ("bf16", "W4A16", "FP8") for t in (1, 16, 64, 256, 2048) for v in VERBS
    if t < 2048 or v not in VERBS[-3:])
PROBE = "echo 'GPU 0: compute capability 9.0, 132 processors, 139.0 of 140.0 GiB are free'"
BENCH = "case $1 in tiny) exit 0 ;; probe) %s; exit ;; esac; echo the table; " \
    "[ \"${4:-}\" = verbs ] && cat $(dirname $0)/parts >$2 || printf '%%s' '%s' >$2"
SMI = """case "$*" in
*name,driver*) echo 'A GPU, 580.1, 81920 MiB, 700.00 W, 9.0' ;;
*mig.mode*) echo "%s" ;; *ecc.errors*) echo "%s" ;; *memory.used*) echo "%s" ;; *compute-apps*) echo "77, other" ;;
esac"""


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)


def run(p, seconds=475, parts=PARTS, start=subprocess.run, **programs):
    """A kit of stand-ins; what it prints, its exit code, its JSON."""
    kit, here = os.path.join(p.dir, "kit"), os.path.dirname(HERE)
    shutil.rmtree(kit, ignore_errors=True)
    usual = {"nvidia-smi": SMI % ("Disabled", "0", "1"), "slipringd": "echo 'Ready after 0 s'; exec sleep 100", "watch": "echo 1000 MHz",
             "test_emu": OK, "test_emu_hopper": OK, "test_cuda_encoder": OK, "test_cuda": OK, "test_cuda_groups": OK, "test_cuda_kinds": OK, "test_cuda_experts": OK,
             "test_cuda_packed": OK, "test_cuda_hopper": OK, "test_cuda_graph": OK, "test_cuda_masks": OK, "test_cuda_guesses": OK, "test_cuda_pool": OK,
             "test_cuda_products": OK, "test_cuda_lt": OK, "test_cuda_special": OK, "bench": BENCH % (PROBE, GOOD),
             "rings": "echo rings: $*; printf '%%s' '%s' >$2" % RINGS}
    at = {"nvidia-smi": "bin/", "slipringd": "", **{name: "gpu/tests/" for name in usual if name.startswith("test_")}}
    for name, text in {**usual, **programs}.items():
        put(os.path.join(kit, at.get(name, "gpu/tests/cuda/") + name), text.replace("%%", "%"))
    with open(os.path.join(kit, "gpu/tests/cuda/parts"), "w") as f:
        f.write(parts)
    with open(os.path.join(kit, "gpu/code.txt"), "w") as f:
        f.write("commit abc1234\nkernels 0f0f\n")
    for f in ("tools/gpu-check.sh", "tests/cuda/goals.awk", "tests/cuda/verbs.awk", "docs/cuda.md"):
        os.makedirs(os.path.dirname(os.path.join(kit, f)), exist_ok=True)
        shutil.copy(os.path.join(here, f), os.path.join(kit, f))
    out = os.path.join(p.dir, "out")
    shutil.rmtree(out, ignore_errors=True)
    command = [os.path.join(kit, "tools/gpu-check.sh"), "--built", kit, out]
    settings = {"text": True, "cwd": p.dir,
                "env": {**p.env, "PATH": os.path.join(kit, "bin") + ":/usr/bin:/bin", "XDG_CACHE_HOME": p.dir,
                        "GPU_CHECK_SECONDS": str(seconds), "GPU_CHECK_ROOT": os.path.join(p.dir, "root")}}
    if start is subprocess.Popen:
        return start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **settings), out
    r = subprocess.run(command, capture_output=True, timeout=120, **settings)
    try:
        with open(os.path.join(out, "result.json")) as f:
            return r.returncode, r.stdout + r.stderr, json.load(f)
    except FileNotFoundError:
        return r.returncode, r.stdout + r.stderr, None


def row(text, words):
    return next((line for line in text.splitlines() if words in line), "")


def first_minutes(p):
    """What may be wrong with a machine: a sentence each, and on it goes where it can."""
    code, text, j = run(p, **{"nvidia-smi": SMI % ("Enabled", "3", "71680")})
    check(code == 0 and "NOTE: MIG is on" in text and "3 uncorrected memory errors" in text and
          "other programs have 70 GiB of this GPU (77, other)" in text and "MIG is on" in j["notes"], f"{code} {text}")
    check(len(text[text.rindex("A GPU, 580.1"):].splitlines()) <= 30, "the result is 30 lines at most, with notes")
    old = "CUDA cannot use GPU 0: the driver is for CUDA 12.4 and this build for 13.0"
    code, text, j = run(p, bench=BENCH % (f"echo '{old}'; false", GOOD))
    check(code == 1 and "gpu-check: " + old in text and text.rstrip().endswith("gpu-check: FAILED") and
          "parity" not in j["checks"] and j["checks"]["probe"] == "FAILED, exit 1", f"one sentence, and nothing else: {code} {text}")
    root = os.path.join(p.dir, "root")
    os.makedirs(os.path.join(root, "proc/driver/nvidia/gpus/0000:01:00.0"))
    with open(os.path.join(root, "proc/driver/nvidia/version"), "w") as f:
        f.write("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n")
    with open(os.path.join(root, "proc/driver/nvidia/gpus/0000:01:00.0/information"), "w") as f:
        f.write("Model: \t\t NVIDIA H200\nIRQ: 5\n")
    code, text, j = run(p, **{"nvidia-smi": "echo Failed to initialize NVML; exit 255"})
    check(code == 0 and "NOTE: Failed to initialize NVML: going on without it" in text and
          j["gpu"] == "NVIDIA H200, driver 580.65.06" and "parity: ok" in text, f"without nvidia-smi: {code} {text}")
    shutil.rmtree(root)


def parts_of_a_step(p, text, j):
    """verbs.txt: what was measured, beside the best and what docs/cuda.md expects; a line that is not there is named."""
    line = row(text, "gate and up     product                          16  W4A16 ")
    check("12.5 us" in line and "2010 of 3000 GB/s" in line and "0.67" in line, f"a line for a verb: {line}")
    with open(os.path.join(os.path.dirname(HERE), "docs/cuda.md")) as f:
        expected = next(l for l in f if l.startswith("| sm_90a | W4 | gate and up |")).split("|")[5].strip()
    check(line.split()[-1] == expected, f"and its estimate, {expected}: {line}")
    check(text.count("of 3000 GB/s") == 3 * (5 * len(VERBS) - 3), "a line for each verb")
    check("lines are missing" not in text and j["code"] == "commit abc1234 kernels 0f0f", f"{j['code']}")
    gone = VERB % ("o", 64, "FP8", 64)
    check(gone in PARTS, "the line is there")
    left_out = VERB.split('"tokens"')[0] % ("down", 16, "bf16") + '"skipped": "no time left"},\n'
    code, text, j = run(p, parts=PARTS.replace(gone, "").replace(VERB % ("down", 16, "bf16", 16), left_out))
    check("2 lines are missing:" in text and " 1 not there" in text and " 1 no time left" in text,
          f"a line that is taken away is missed: {text}")


def cut_off(p):
    """A run that is killed has left what it had done; one that is interrupted says where."""
    for number, said in ((signal.SIGKILL, False), (signal.SIGTERM, True)):
        r, out = run(p, start=subprocess.Popen, test_cuda_packed="exec sleep 100")
        check(wait_for(lambda: os.path.exists(os.path.join(out, "packed.log")), 20), "it comes to the third test")
        os.kill(r.pid, number)
        r.wait(20)
        names = subprocess.run(["tar", "-xzOf", os.path.join(out, "bundle.tar.gz"), "./result.json"], capture_output=True,
                               text=True).stdout
        checks = json.loads(names)["checks"]
        check(checks["parity"] == "ok" and checks.get("packed") == ("INTERRUPTED" if said else None), f"{checks}")
        try:
            os.killpg(r.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        r.stdout.close()


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
        check("128 5.0 2048 8.0" in text, f"limits of the benchmark go to the rings: {text}")
        check(j["gpu"].startswith("A GPU") and j["checks"]["parity"] == "ok" and len(j["rows"]) == 8, f"{j}")
        parts_of_a_step(p, text, j)
        check("memcheck: SKIP" in text and "answers: SKIP" in text and "peers: SKIP" in text, "what was skipped, by name")

        code, text, j = run(p, bench=BENCH % (PROBE, GOOD.replace('"part": 0.66', '"part": 0.6')))
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
            "code.txt", "verbs.txt", "notes.txt", "result.json", "table.txt", "clocks.txt", "goals.txt", "nvidia-smi.txt", "parity.log", "graph.log",
            "programs.sha256")), f"one file to send back: {names}")
        code, text, j = run(p, test_cuda_hopper="echo 0 passed, 0 failed, 2 skipped")
        check(code == 0 and "hopper: SKIP, nothing of it is for this GPU" in text, f"{code} {text}")
        code, text, j = run(p, bench=BENCH % (PROBE, "") + "; [ \"${4:-}\" = verbs ] || exit 7")
        check(code == 1 and "speed: FAILED" in text and any(r.get("work") == "first token" for r in j["rows"]), f"{code} {text}")
        code, text, j = run(p, slipringd="echo 'cannot plan the memory: No available memory'; exit 1")
        check(code == 0 and "rings: SKIP: the daemon says: No available memory" in text, f"{code} {text}")
        code, text, j = run(p, slipringd="echo bad; exit 1")
        check(code == 1 and "rings: bad" in text and "rings: FAILED" in text, f"{code} {text}")
        code, text, j = run(p, seconds=195, test_cuda="sleep 100")
        check(code == 1 and "parity: FAILED, not done in" in text and "speed: ok" in text, f"what hangs is ended: {code} {text}")
        code, text, j = run(p, seconds=4)
        check(code == 2 and "probe: SKIP, no time left" in text and "as far as it was run" in text, f"{code} {text}")
        code, text, j = run(p, **{"nvidia-smi": "echo No devices were found; exit 6"})
        check(code == 0 and "SKIP gpu-check: no NVIDIA GPU answers here" in text, f"no GPU: {code} {text}")
        first_minutes(p)
        cut_off(p)
    done()


main()
