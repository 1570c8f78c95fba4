#!/usr/bin/env python3
"""What Kubernetes' serving layers ask of a vLLM worker, played against `vllm serve`, which is slipring by another name:
KServe's command, probes and end; the metrics, names and tokens that llm-d's picker reads; the manifests' own commands."""
import re, ssl
from harness import *
from sessions import free_port

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


# What KServe's template has a shell do: flags by the version's last word, then the command, read once more by eval.
KSERVE = r"""
V=$(vllm --version 2>/dev/null | tail -1 | awk '{print $NF}')
newer() { [ "$(printf '%s\n%s\n' "$1" "$V" | sort -V | head -1)" = "$1" ]; }
newer 0.16.0 && LOGS="--disable-access-log-for-endpoints /health,/metrics,/ping"
newer 0.18.0 && END="--shutdown-timeout 15"
eval "exec vllm serve $MODEL --served-model-name "tiny" "publishers/ns/models/tiny" --port $PORT \
  $LOGS $END --enable-ssl-refresh --ssl-certfile $TLS/tls.crt --ssl-keyfile $TLS/tls.key $VLLM_ADDITIONAL_ARGS $@"
"""


class Kubelet:
    """Probes as KServe's template has them.  Pods are asked by their address: here 127.0.0.2, another than a server that
    listens on the loopback device alone would have."""

    def __init__(self, port, scheme="https"):
        self.port, self.scheme, self.stop, self.failures, self.asked = port, scheme, threading.Event(), 0, 0
        self.tls = ssl.create_default_context()
        self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE    # as kubelet does

    def probe(self, path="/health", timeout=1, headers=None):
        try:
            c = http.client.HTTPSConnection("127.0.0.2", self.port, timeout=timeout, context=self.tls) \
                if self.scheme == "https" else http.client.HTTPConnection("127.0.0.2", self.port, timeout=timeout)
            c.request("GET", path, headers=headers or {})
            return c.getresponse().status
        except (OSError, http.client.HTTPException):
            return None

    def readiness(self, period=1):
        while not self.stop.wait(period):
            self.asked += 1
            self.failures += self.probe() != 200


def post(kubelet, path, body, timeout=60):
    c = http.client.HTTPSConnection("127.0.0.2", kubelet.port, timeout=timeout, context=kubelet.tls)
    c.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Host": "my-gateway.example.org"})
    return json.loads(c.getresponse().read())


def make_certificate(folder):
    """Key and certificate as a volume of a Secret has them: behind a link that is replaced."""
    made = tempfile.mkdtemp(dir=folder)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    "2", "-subj", "/CN=pod", "-keyout", f"{made}/tls.key", "-out", f"{made}/tls.crt"],
                   check=True, capture_output=True)
    os.symlink(made, f"{made}.link")
    os.rename(f"{made}.link", f"{folder}/tls")
    with open(f"{made}/tls.crt") as f:
        return f.read()


def kserve_unchanged(p, folder, model):
    """The template's shell, TLS and environment, with `vllm` in PATH: no flag of ours is given."""
    make_certificate(folder)
    port = free_port()
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": folder, "RUNTIME_DIRECTORY": p.dir, "MODEL": model,
           "PORT": str(port), "TLS": f"{folder}/tls", "VLLM_LOGGING_LEVEL": "INFO", "HF_HUB_CACHE": folder,
           "VLLM_ADDITIONAL_ARGS": "--load-format dummy --kv-events-config '" + json.dumps(
               {"enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events"}) + "'"}
    with open(os.path.join(p.dir, "kserve.log"), "ab") as log:
        serve = subprocess.Popen(["/bin/bash", "-c", KSERVE, "--"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    p.procs["kserve"] = serve
    k = Kubelet(port)
    check(wait_for(lambda: k.probe() == 200 or serve.poll() is not None, 60, 0.2) and serve.poll() is None,
          "the startup probe succeeds over TLS, at the Pod's address")
    check(k.probe("/health", headers={"Host": "my-gateway.example.org"}) == 200, "any Host is served, as by vLLM")
    watch = threading.Thread(target=k.readiness)
    watch.start()
    ask = {"model": "publishers/ns/models/tiny", "prompt": "a" * 40, "max_tokens": 100, "ignore_eos": True}
    out = p.together(8, lambda i: [post(k, "/v1/completions", ask) for _ in range(4)])
    check(wait_for(lambda: k.asked >= 3, 20), "readiness is asked each second")
    check(all(o["usage"]["completion_tokens"] == 100 for each in out for o in each), "8 clients are answered over TLS")
    # llm-d's picker reads the metrics of each Pod every 50 ms.
    codes = []
    for _ in range(20):
        codes.append(k.probe("/metrics"))
        time.sleep(0.05)
    k.stop.set()
    watch.join()
    check(k.failures == 0 and set(codes) == {200}, f"{k.failures} probes and {codes.count(None)} reads of metrics failed")
    fresh = make_certificate(folder)             # --enable-ssl-refresh
    check(wait_for(lambda: ssl.get_server_certificate(("127.0.0.2", port)) == fresh, 20, 0.1), "a new certificate is served")
    serve.terminate()                            # behind preStop, which sleeps 15 s meanwhile
    check(serve.wait(60) == 0 and k.probe() is None, "bash has become the server: SIGTERM reaches it, and it ends with 0")


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
        text = open(os.path.join(EXAMPLES, f)).read().replace("#tls ", "")
        check("\t" not in text and all(re.search(rf"^{k}:", text, re.M) for k in ("apiVersion", "kind", "metadata")), f)
        for flag in sorted(set(re.findall(r"(--[a-z][a-z-]+)", re.sub(r"#.*", "", text)))):
            r = subprocess.run([vllm, "serve", "--help=" + flag[2:]], capture_output=True, text=True, timeout=20)
            named = flag in r.stdout or flag.replace("--", "--[no-]") in r.stdout
            check(r.returncode == 0 and named, f"{f}: {flag}: {r.stdout[:200]} {r.stderr[:200]}")
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
    kserve_unchanged(p, p.dir, os.path.join(p.dir, "model"))
    kserve(p, vllm, os.path.join(p.dir, "model"))
done()
