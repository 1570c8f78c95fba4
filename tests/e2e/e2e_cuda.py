#!/usr/bin/env python3
"""The daemon with the CUDA back end in the emulation (tests/emu) where it looks for slipring-cuda.so: a made-up
model answers as on the CPU; a kernel that is wrong is found at open, named and switched off (SLIPRING_ALL=1: more
of them, and more ways; half a minute); a device that is lost ends every request and the daemon, with code 70 and the Xid;
what cannot be used is refused with a sentence before READY."""
import re, subprocess, threading
import harness
from harness import *

EMULATED = os.path.join(BUILD, "emu/slipring-cuda.so")
FLAGS = ("--load-format", "dummy", "--max-model-len", 256, "--kv-cache-memory-bytes", 4 << 20, "--max-num-seqs", 8)
UNTRIED = (*FLAGS, "--no-self-check")
PROMPTS = [[7, 9, 33], list(range(40, 75)), [1] * 17, [255 - i for i in range(64)]]


def answers(p):
    """Greedy ids of each prompt, with the three likeliest at each place."""
    def one(i):
        c = p.post("/v1/completions", {"prompt": PROMPTS[i], "max_tokens": 8, "temperature": 0, "logprobs": 3,
                                       "return_token_ids": True, "ignore_eos": True})["choices"][0]
        return c["token_ids"], c["logprobs"]["token_logprobs"], [sorted(t.values())[::-1] for t in c["logprobs"]["top_logprobs"]]
    return p.together(len(PROMPTS), one)


def agree(gpu, cpu):
    """Token by token, until two parted where the best two were nearly even."""
    same = 0
    for g, c in zip(gpu, cpu):
        check(not isinstance(g, BaseException) and not isinstance(c, BaseException), f"answers: {g} {c}")
        for i in range(8):
            if g[0][i] != c[0][i]:
                gap = c[2][i][0] - c[2][i][1]
                check(gap < 0.05, f"another token than the CPU's, where its best two are {gap} apart: {g[0]} {c[0]}")
                break
            check(abs(g[1][i] - c[1][i]) < 0.05, f"log-probabilities: {g[1]} {c[1]}")
            same += 1
    check(same >= 16, f"most tokens are the CPU's: {same} of 32")


def same_as_cpu(model):
    said = {}
    for device in ("cuda", "cpu"):
        with Programs() as p:
            p.serve(model, "--device", device, *FLAGS)
            check(f"on {device}" in p.log("slipring"), f"it runs on {device}")
            said[device] = answers(p)
    agree(said["cuda"], said["cpu"])
    with Programs(env={"SLIPRING_CUDA_WITHOUT": "dense_few,early_start"}) as p:
        p.serve(model, "--device", "cuda", *FLAGS, "--enforce-eager", "--kv-cache-dtype", "fp8", "--dtype", "half",
                "--enforce-deterministic")
        log = re.sub("slipring-cuda: .* graphs are captured", "", p.log("slipring"))   # by the canary, where that takes long
        check("a token in fp8" in log and "graphs" not in log, log)
        off = re.findall(r'^slipring_cuda_kernel_disabled{.*kernel="(\w+)".*} 1', p.ask("GET", "/metrics")[2], re.M)
        check(off == ["early_start", "dense_few"], f"metrics name what is switched off: {off}")
        first = [a[0][0] for a in answers(p)]
        check(sum(f == c[0][0] for f, c in zip(first, said["cpu"])) >= 2, f"an FP8 cache answers about so: {first}")


# A kernel that is made wrong (EMU_SPOIL), on which GPU, its name, and words of the log.
WRONG = [("wrong rows_args", 80, "dense_few", "is off by")]
MORE = [("parts sample_args", 90, "sample_blocks", "a draw of 1 rows"),
        ("wrong hopper_args", 90, "hopper_many", "is off by"), ("wrong run_args", 90, "hopper_attend", "attention of runs"),
        ("parts attend_args", 80, "pieces", "attention in three pieces"), ("early add_norm_args", 90, "early_start", "a step"),
        ("traps rows_args", 80, "dense_few", "fails on this GPU"), ("graphs add_norm_args", 80, "graphs", "fails on this GPU"),
        ("hangs rows_args", 80, "dense_few", "hangs on this GPU")]


def found_wrong(model):
    """The check at open finds a kernel that is wrong: log, metric and doctor name it, and the answers are right."""
    with Programs() as p:
        p.serve(model, "--device", "cpu", *FLAGS)
        right = answers(p)
    for spoil, capability, name, words in WRONG + (MORE if os.environ.get("SLIPRING_ALL") else []):
        with Programs(env={"EMU_SPOIL": spoil, "EMU_CAPABILITY": str(capability)}) as p:
            p.serve(model, "--device", "cuda", *FLAGS)
            log = p.log("slipring")
            check(re.search(f"^.*{words}.*$", log, re.M) and f"{name}" in log and "is switched off" in log, f"{spoil}: {log}")
            off = re.findall(r'^slipring_cuda_kernel_disabled{.*kernel="(\w+)".*} 1', p.ask("GET", "/metrics")[2], re.M)
            check(name in off and len(off) <= 2, f"{spoil}: the metric names {off}")
            r = subprocess.run([os.path.join(harness.BUILD, "slipring"), "doctor", "--json"], env=p.env, capture_output=True, text=True)
            rows = {row["what"]: row for row in json.loads(r.stdout)}
            check(name in rows.get("its GPU's kernels", {}).get("have", ""), f"{spoil}: doctor says {rows}")
            agree(answers(p), right)
            if os.environ.get("SLIPRING_ALL"):
                said = rows["its GPU's kernels"]["have"]
                print(f"{spoil}, {capability / 10}", *re.findall("slipring-cuda: .*is switched off", log), f"metric {off}", f"doctor: {said}",
                      sep="; ")


def lost(model, nvml):
    lose = os.path.join(harness.BUILD, "lose")
    env = {"EMU_LOSE": lose, "LD_LIBRARY_PATH": nvml or "", "FAKE_xid": "79"}
    with Programs(env=env) as p:
        d = p.daemon(model, "--device", "cuda", *UNTRIED)
        p.adapter("--model", model)
        check(p.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 2})["choices"], "it answers")
        got = []

        def endless(i):
            status = 200
            while status == 200:
                status = p.ask("POST", "/v1/completions", {"prompt": [3 + i], "max_tokens": 200, "ignore_eos": True})[0]
            got.append(status)
        threads = [threading.Thread(target=endless, args=(i,), daemon=True) for i in range(6)]
        for t in threads:
            t.start()
        check(wait_for(lambda: re.search(r"^vllm:num_requests_running{.*} [1-9]", p.ask("GET", "/metrics")[2], re.M), 20),
              "they run")
        open(lose, "w").close()
        check(wait_for(lambda: d.poll() is not None, 20), "the daemon ends")
        check(d.returncode == 70, f"with 70: {d.returncode}")
        for t in threads:
            t.join(20)
        check(len(got) == 6 and all(s >= 500 for s in got), f"every request ends with an error: {got}")
        log = p.log("slipringd")
        check("is lost: " in log and "cudaErrorIllegalAddress" in log, log)
        check("Every request was ended" in log, "and says so")
        if nvml:
            check("Xid 79" in log, f"with the Xid: {log[-600:]}")
    os.unlink(lose)


def refused(env, words, *args, shell=None):
    """slipringd must end before READY, with code 1 and these words."""
    with Programs(env=env) as p:
        argv = [os.path.join(harness.BUILD, "slipringd"), *map(str, args)]
        if shell:
            argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", shell + ' && exec "$@"', "sh", *argv]
        r = subprocess.run(argv, env=p.env, capture_output=True, text=True, timeout=60)
        check(r.returncode == 1 and words in r.stdout + r.stderr and "Ready after" not in r.stderr,
              f"{args}: {r.returncode}, not {words!r}: {(r.stdout + r.stderr)[-600:]}")


def refusals(model):
    cuda = (model, "--device", "cuda", "--load-format", "dummy", "--max-model-len", 256)
    refused({}, "Free memory on device cuda (0.94/1.00 GiB) on startup is less than desired GPU memory utilization "
            "(0.97, 0.97 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
            *cuda, "--gpu-memory-utilization", 0.97)
    refused({}, "No available memory for the cache blocks", *cuda, "--gpu-memory-utilization", 0.02)
    refused({"EMU_DEVICES": "0"}, "no GPU can be used", *cuda)
    refused({}, "this type is not supported by the CUDA back end", *cuda, "--kv-cache-dtype", "int8")
    refused({}, "--quantization awq, but this model's weights are", *cuda, "--quantization", "awq")


def auto(model):
    """Where there is a driver, --device auto takes the GPU or says why it cannot."""
    driver = "mount -t tmpfs none /proc/driver && mkdir /proc/driver/nvidia"
    works = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", driver], capture_output=True)
    if works.returncode:
        print("SKIP --device auto with a driver: no mount namespace to pretend one in")
        return
    args = (model, "--load-format", "dummy", "--max-model-len", 256)
    refused({"EMU_DEVICES": "0"}, "no GPU can be used", *args, shell=driver)
    so = os.path.join(harness.BUILD, "slipring-cuda.so")
    os.rename(so, so + ".away")
    refused({}, "this machine has an NVIDIA GPU that cannot be used: the CUDA back end is not installed", *args, shell=driver)
    with open(so, "w") as f:
        f.write("not a library")
    refused({}, "this machine has an NVIDIA GPU that cannot be used: the CUDA back end cannot be loaded", *args, shell=driver)
    os.rename(so + ".away", so)


def main():
    if not os.path.exists(EMULATED):
        print("SKIP: no emulated back end is built (make tests)")
        print("[  SKIPPED ] 1 test(s), listed below:")
        return
    os.environ["EMU_AT_ONCE"] = "1"
    with Programs() as here:
        bin_dir, model, nvml = (os.path.join(here.dir, n) for n in ("bin", "model", "nvml"))
        os.mkdir(bin_dir)
        os.mkdir(nvml)
        for f in [os.path.join(BUILD, n) for n in ("slipringd", "slipring-http", "slipring")] + [EMULATED]:
            shutil.copy(f, bin_dir)
        harness.BUILD = bin_dir
        cc = shutil.which("cc")
        if cc:
            subprocess.run([cc, "-shared", "-fPIC", os.path.join(HERE, "cuda/nvml_fake.c"), "-o",
                            os.path.join(nvml, "libnvidia-ml.so.1")], check=True, timeout=60)
        make_model(model)
        wide = os.path.join(here.dir, "wide")
        make_model(wide)
        with open(os.path.join(wide, "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(wide, "config.json"), "w") as f:
            json.dump(config | {"head_dim": 64}, f)      # which Hopper's attention has
        same_as_cpu(model)
        found_wrong(wide)
        lost(model, nvml if cc else None)
        refusals(model)
        auto(model)
    done()


main()
