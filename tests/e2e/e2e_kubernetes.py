#!/usr/bin/env python3
"""What Kubernetes' serving layers ask of a vLLM worker, played against `vllm serve`, which is slipring by another name:
KServe's command, probes and end; the metrics, names and tokens that llm-d's picker reads; the manifests' own commands."""
import re
from harness import *

EXAMPLES = os.path.join(os.path.dirname(HERE), "docs/examples/kubernetes")


def version(vllm):
    """KServe: the last word of the last line decides which flags are given."""
    out = subprocess.run([vllm, "--version"], capture_output=True, text=True, timeout=20).stdout
    word = out.strip().splitlines()[-1].split()[-1]
    check(re.fullmatch(r"\d+\.\d+\.\d+", word), f"a version: {out!r}")
    check(tuple(map(int, word.split("."))) >= (0, 22, 0), "new enough for each flag that KServe gives")


def probe(p, timeout=1):
    try:
        return p.ask("GET", "/health", timeout=timeout)[0]
    except OSError:
        return None


def kserve(p, vllm, model):
    """config-llm-decode-template: startup each 10 s for 60 times, readiness each second (2 failures), preStop, TERM."""
    args = ["serve", model, "--served-model-name", "tiny", "publishers/ns/models/tiny", "--port", "0", "--ready-file",
            p._ready_file(), "--disable-access-log-for-endpoints", "/health", "--shutdown-timeout", "20",
            "--load-format", "dummy"]            # the model of the test has no weights
    log = open(os.path.join(p.dir, "vllm.log"), "ab")
    serve = subprocess.Popen([vllm, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=p.env)
    log.close()
    p.procs["vllm"] = serve
    p._listen("vllm", serve)
    check(wait_for(lambda: probe(p) == 200, 60, 0.2), "the startup probe succeeds")
    names = [m["id"] for m in json.loads(p.ask("GET", "/v1/models")[2])["data"]]
    check(names == ["tiny", "publishers/ns/models/tiny"], f"both names are served: {names}")
    for name in names:
        check(p.post("/v1/completions", {"model": name, "prompt": "ab", "max_tokens": 2})["model"] == "tiny", name)
    failures = []
    stop = threading.Event()

    def readiness():
        while not stop.wait(0.2):
            if probe(p) != 200:
                failures.append(time.monotonic())
    watch = threading.Thread(target=readiness)
    watch.start()
    out = p.together(8, lambda i: p.post("/v1/completions", {"prompt": "a" * 40, "max_tokens": 100, "ignore_eos": True}))
    stop.set()
    watch.join()
    check(not failures and all(isinstance(o, dict) for o in out), f"under load it stays ready: {len(failures)} failures")
    check('"GET /health"' not in p.log("vllm"), "probes are not logged")
    llmd(p)
    # The end: a request under way is answered, and probes hear 503 or nothing.
    last = []
    asked = threading.Thread(target=lambda: last.append(p.post("/v1/completions", {"prompt": "b" * 40, "max_tokens": 200,
                                                                                   "ignore_eos": True})))
    before = running(p)
    asked.start()
    wait_for(lambda: running(p) > before or last, 20)
    serve.terminate()
    asked.join(60)
    check(len(last) == 1 and last[0]["usage"]["completion_tokens"] == 200, "what was under way is answered")
    check(serve.wait(60) == 0 and probe(p) is None, "then it ends")


def metrics(p):
    return p.ask("GET", "/metrics")[2]


def running(p):
    m = re.search(r'^vllm:num_requests_running\{[^}]*\} ([0-9.e+-]+)', metrics(p), re.M)
    return float(m.group(1))


def llmd(p):
    """What the picker of the Gateway API Inference Extension and llm-d reads, by vLLM's names."""
    text = metrics(p)
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        check(re.search(rf'^vllm:{name}\{{[^}}]*model_name="tiny"[^}}]*\}} [0-9.e+-]+$', text, re.M), name)
    info = re.search(r'^vllm:cache_config_info\{([^}]*)\} 1', text, re.M).group(1)
    check(re.search(r'block_size="16"', info) and re.search(r'num_gpu_blocks="\d+"', info), info)
    one = p.post("/v1/completions/render", {"model": "tiny", "prompt": "the same text"})[0]["token_ids"]
    check(one == p.post("/tokenize", {"model": "tiny", "prompt": "the same text"})["tokens"], "/render gives a prompt's ids")
    models = json.loads(p.ask("GET", "/v1/models")[2])["data"]
    check(all(m["owned_by"] == "vllm" and m["parent"] is None for m in models), "smg detects vLLM by owned_by")
    status, _, load = p.ask("GET", "/load")
    check(status == 200 and "server_load" in json.loads(load), "vllm-router's power_of_two asks /load")


def flags_parse(vllm):
    """The words of the containers in docs/examples/kubernetes are flags that exist."""
    files = sorted(f for f in os.listdir(EXAMPLES) if f.endswith(".yaml"))
    check(files, "there are examples")
    seen = 0
    for f in files:
        text = open(os.path.join(EXAMPLES, f)).read()
        check("\t" not in text and all(re.search(rf"^{k}:", text, re.M) for k in ("apiVersion", "kind", "metadata")), f)
        for flag in sorted(set(re.findall(r"(--[a-z][a-z-]+)", re.sub(r"#.*", "", text)))):
            r = subprocess.run([vllm, "serve", "--help=" + flag[2:]], capture_output=True, text=True, timeout=20)
            check(r.returncode == 0 and flag in r.stdout, f"{f}: {flag}: {r.stdout[:200]} {r.stderr[:200]}")
            seen += 1
        for path, seconds in re.findall(r"path: (/\S+)[^\n]*\n(?:[^\n]*\n){0,2}?\s+periodSeconds: (\d+)", text):
            check(path in ("/health", "/live") and int(seconds) >= 1, f"{f}: probes ask /health: {path}")
    check(seen >= 5, f"{seen} flags")


with Programs(env={"POD_IP": "10.0.0.7"}) as p:
    vllm = os.path.join(p.dir, "vllm")
    os.symlink(os.path.join(BUILD, "slipring"), vllm)
    make_model(os.path.join(p.dir, "model"))
    version(vllm)
    flags_parse(vllm)
    kserve(p, vllm, os.path.join(p.dir, "model"))
done()
