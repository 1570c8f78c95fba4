#!/usr/bin/env python3
"""A model divided among ranks: --tensor-parallel-size on the CPU.  Answers are those of one daemon alone, to the last
digit of their log-probabilities, also when a rank is killed or stopped while they are written.

    e2e_ranks.py BUILD            a tiny model of random weights
    e2e_ranks.py BUILD default    the default model, 100 streams (make ranks)
    e2e_ranks.py BUILD cuda       the tiny model, 8 streams; each rank has a GPU of the emulation (make ranks)
"""
import re
import shutil
import harness
from harness import *

HOW = sys.argv[2] if len(sys.argv) > 2 else "tiny"
STREAMS, TOKENS, RANKS = {"default": (100, 40, 3), "tiny": (24, 180, 2), "cuda": (8, 10, 2)}[HOW]
ARGS = ("--device", "cuda", "--enforce-deterministic", "--enforce-eager", "--max-num-seqs", 8,
        "--kv-cache-memory-bytes", 8 << 20) if HOW == "cuda" else ("--device", "cpu")


def request(i):
    """Greedy ones, and seeded ones with penalties; every third has a prefix of another."""
    prompt = [(i // 3 * 31 + k * 7 + 11) % 250 for k in range(20 + i % 40)]
    r = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "logprobs": 2, "temperature": 0}
    if i % 2:
        r.update(temperature=0.9, top_p=0.95, seed=i, frequency_penalty=0.3)
    return r


def ask_all(p, meanwhile=None):
    """All requests, twelve at a time; what each answered."""
    answers, todo, lock = {}, list(range(STREAMS)), threading.Lock()

    def worker():
        while True:
            with lock:
                if not todo:
                    return
                i = todo.pop(0)
            status, _, text = p.ask("POST", "/v1/completions", request(i))
            choice = json.loads(text)["choices"][0] if status == 200 else {"text": status, "logprobs": text}
            with lock:
                answers[i] = (choice["text"], json.dumps(choice["logprobs"]))

    threads = [threading.Thread(target=worker) for _ in range(12)]
    for t in threads:
        t.start()
    if meanwhile:
        meanwhile(answers)
    for t in threads:
        t.join()
    return answers


def ranks(p):
    """The pids of the daemon's ranks, by number."""
    return {int(w[1]): pid for pid, w in children(p.procs["slipringd"].pid, "slipring-rank").items()}


def started(model, *args):
    p = Programs()
    p.daemon("--model", *model, *ARGS, *args)
    p.adapter("--model", *model)
    return p


def same(answers, want, what):
    check(len(answers) == STREAMS, f"{what}: every request is answered")
    for i in range(STREAMS):
        check(answers[i] == want[i], f"{what}: answer {i} is {answers[i]}, not {want[i]}")


def harmed(p, want):
    def kill(answers, rank, sig, words):
        pids = ranks(p)
        wait_for(lambda: answers, 60)                # in the middle of the load
        os.kill(pids[rank], sig)
        check(wait_for(lambda: f"rank {rank} (pid {pids[rank]}) {words}" in p.log("slipringd"), 20),
              f"a rank that gets signal {sig} is named")
        check(wait_for(lambda: len(ranks(p)) == RANKS and not set(ranks(p).values()) & set(pids.values()), 20),
              "all ranks are started again")

    same(ask_all(p, lambda a: kill(a, RANKS - 1, signal.SIGKILL, "is gone: signal 9, Killed")), want, "a rank dies")
    same(ask_all(p, lambda a: kill(a, 0, signal.SIGSTOP, "hangs: ")), want, "a rank hangs")
    check(p.log("slipringd").count("ranks are back after") == 2, "twice they are back")
    check(p.ask("GET", "/health")[0] == 200, "/health is 200")
    shown(p)


def tool(p, *args):
    return subprocess.run([os.path.join(harness.BUILD, "slipring"), *args], capture_output=True, env=p.env, text=True,
                          timeout=20).stdout


def shown(p):
    """What operators see of it."""
    time.sleep(0.15)                                 # /metrics is written ten times a second
    metrics = p.ask("GET", "/metrics")[2]
    check(re.search(r"^slipring_device_restarts_total{.*} 2(\.0)?$", metrics, re.M), "two restarts are counted")
    for r in range(RANKS):
        check(re.search(rf'^slipring_rank_late_seconds_total{{.*rank="{r}".*}} [0-9.e-]+$', metrics, re.M),
              f"rank {r} is in the metrics")
    bound = float(re.search(r'^slipring_bound_seconds_total{.*bound="ranks".*} (\S+)$', metrics, re.M)[1])
    check(bound > 0, f"ranks waited for each other: {bound}")
    top = json.loads(tool(p, "top", "--json", "--once"))
    check({r["pid"] for r in top["ranks"]} == set(ranks(p).values()), f"top shows them: {top['ranks']}")
    check(all(r["batches"] > 0 for r in top["ranks"]) and top["device_restarts"] == 2, "and what they did")
    for r, pid in ranks(p).items():
        check(re.search(rf'^slipring_rank_batches_total{{.*rank="{r}".*}} [1-9]', metrics, re.M),
              f"batches of rank {r}: {metrics[metrics.index('slipring_rank'):][:900]}")
        check(re.search(rf"^rank {r} +pid {pid} +batches [1-9]", tool(p, "top", "--once"), re.M), f"top has rank {r}")
    late = max(top["ranks"], key=lambda r: r["late_s"])
    why = json.loads(tool(p, "why", "--since", "start", "--json"))
    check(top["ranks"][why["late_rank"]] == late, f"why names the one that is late: {why['late_rank']} {top['ranks']}")
    row = {r["what"]: r for r in json.loads(tool(p, "doctor", "--json"))}["its ranks"]
    check(row["level"] == "hint" and f"{RANKS}, lost and started again 2 times" in row["have"], f"doctor: {row}")


def given_up(p):
    """Two losses were before: the third in ten minutes is final, and every request gets its end."""
    got = []
    t = threading.Thread(target=lambda: got.append(p.ask("POST", "/v1/completions", dict(request(0), max_tokens=150))))
    t.start()
    wait_for(lambda: False, 0.1)
    os.kill(ranks(p)[1], signal.SIGKILL)
    t.join()
    check(p.procs["slipringd"].wait(10) == 70, "the daemon ends with 70")
    check("ranks were lost 3 times in 10 minutes" in p.log("slipringd"), "and says why")
    check(wait_for(lambda: not ranks(p), 5), "no rank is left")


def refused(model):
    with Programs() as p:
        for args, words in ((("--tensor-parallel-size", "17"), "tensor-parallel-size is 17; 1 to 16 are allowed"),
                            (("--tensor-parallel-size", "9"), "9 ranks are too many")):
            d = p.run("slipringd", "--model", *model, "--device", "cpu", *args)
            check(d.wait(20) == 1 and words in p.log("slipringd"), f"{args}: {p.log('slipringd')}")


def emulated(folder):
    """Programs beside the emulated back end, and a GPU for each rank."""
    so = os.path.join(BUILD, "emu/slipring-cuda.so")
    if not os.path.exists(so):
        print("SKIP: no emulated back end is built (make tests)")
        sys.exit(0)
    for f in [os.path.join(BUILD, n) for n in ("slipringd", "slipring-http", "slipring")] + [so]:
        shutil.copy(f, folder)
    os.environ.update(EMU_DEVICES=str(RANKS), EMU_AT_ONCE="1")
    harness.BUILD = folder


if HOW == "default":
    need_model()
with tempfile.TemporaryDirectory(prefix="slipring-ranks-") as folder:
    if HOW == "default":
        model = (MODEL,)
    else:
        make_model(os.path.join(folder, "m"), "<a>")
        model = (os.path.join(folder, "m"), "--load-format", "dummy")
    if HOW == "cuda":
        emulated(folder)
    with started(model) as p:
        want = ask_all(p)
    check(all(isinstance(text, str) for text, _ in want.values()), f"one daemon alone answers: {want}")
    with started(model, "--tensor-parallel-size", RANKS) as p:
        same(ask_all(p), want, f"{RANKS} ranks")
        harmed(p, want)
        given_up(p)
    with started(model, "--tensor-parallel-size", RANKS, "--speculative-config", '{"method":"ngram",'
                 '"num_speculative_tokens":4,"prompt_lookup_min":1,"prompt_lookup_max":4}') as p:
        p.ask("POST", "/v1/completions", request(0))
        check(re.search(r"spec_decode_num_drafts_total\S* [1-9]", p.ask("GET", "/metrics")[-1]), "ranks compute guesses")
        same(ask_all(p), want, f"{RANKS} ranks with guesses")
    with started(model, "--rank-process") as p:
        pid = ranks(p)
        check(set(pid) == {0}, "one rank is a process, too")
        os.kill(pid[0], signal.SIGKILL)
        same(ask_all(p), want, "a rank of its own that was killed")
    if HOW == "tiny":
        refused(model)
done()
