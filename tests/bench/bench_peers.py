"""Processes of `make bench`: ours and the peers', started, asked, stopped; what others compute meanwhile;
files as the work needs them.  See bench.py."""
import ctypes, glob, json, os, random, re, signal, socket, subprocess, sys, tempfile, time, urllib.request

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))       # tests/
MODEL = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                     "slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf")
LLAMA = os.environ.get("PEER_LLAMA_BIN")
VLLM, VLLM_MODEL = os.environ.get("PEER_VLLM"), os.environ.get("PEER_VLLM_MODEL")
CORES = len(os.sched_getaffinity(0))
THREADS = min(CORES, 2) if CORES < 4 else CORES
TICK = os.sysconf("SC_CLK_TCK")
BLOCK = 1 << 20
alive = []                       # processes of ours, to be ended whatever happens
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)       # PR_SET_CHILD_SUBREAPER: what peers leave behind is ours to wait for


class Failed(Exception):
    """A sentence; the rows of this part are not measured."""


# ---- processes ---------------------------------------------------------------------------------------

def die_with_us():
    libc.prctl(1, signal.SIGKILL)          # PR_SET_PDEATHSIG


def start(args, **kw):
    """In a group of its own, which stop() ends whole."""
    p = subprocess.Popen(args, process_group=0, preexec_fn=die_with_us, **kw)
    alive.append(p)
    return p


def tell(p, sig):
    try:
        os.killpg(p.pid, sig)
    except ProcessLookupError:
        pass


def stop(p):
    if p.poll() is None:
        tell(p, signal.SIGCONT)
        p.terminate()
        try:
            p.wait(5)
        except subprocess.TimeoutExpired:
            pass
    tell(p, signal.SIGKILL)
    p.wait()
    try:
        while True:
            os.waitpid(-p.pid, 0)          # its group: their time is then counted as ours
    except ChildProcessError:
        pass
    if p in alive:
        alive.remove(p)


def tail(path, n=300):
    with open(path, errors="replace") as f:
        return " ".join(f.read()[-n:].split())


def peer_env():
    return dict(os.environ, LD_LIBRARY_PATH=os.environ.get("PEER_LLAMA_LIB") or LLAMA or "")


def run(args, **kw):
    """What a program prints."""
    with tempfile.TemporaryFile("w+") as err:
        p = start(args, stdout=subprocess.PIPE, stderr=err, text=True, **kw)
        out = p.communicate()[0]
        alive.remove(p)
        err.seek(0)
        if p.returncode:
            raise Failed(f"{os.path.basename(args[0])} ended with {p.returncode}: "
                         + " ".join(err.read()[-300:].split()))
    return out


def run_llama(*args):
    return run([os.path.join(LLAMA, args[0]), *args[1:]], env=peer_env())


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# ---- what others compute -----------------------------------------------------------------------------

def stat_of(pid):
    """Parent, and seconds that it and its waited-for children computed."""
    with open(f"/proc/{pid}/stat") as f:
        n = f.read().rsplit(")", 1)[1].split()
    return int(n[1]), sum(int(x) for x in n[11:15]) / TICK


class Load:
    """What others computed since, in cores: all that was busy or stolen, without us and what we started."""
    def __init__(self):
        self.at, self.busy, self.own = time.monotonic(), self.all_busy(), self.own_busy()

    @staticmethod
    def all_busy():
        with open("/proc/stat") as f:
            n = [int(x) for x in f.readline().split()[1:]]
        return (sum(n[:3]) + sum(n[5:8])) / TICK   # user, nice, system; irq, softirq, steal

    @staticmethod
    def own_busy():
        parent, spent = {}, {}
        for path in glob.glob("/proc/[0-9]*"):
            pid = int(path[6:])
            try:
                parent[pid], spent[pid] = stat_of(pid)
            except OSError:
                pass                               # ended meanwhile
        def ours(pid):
            while pid in parent and pid != os.getpid():
                pid = parent[pid]
            return pid == os.getpid()
        return sum(s for pid, s in spent.items() if ours(pid))

    def foreign(self):
        busy, own = self.all_busy() - self.busy, self.own_busy() - self.own
        return max(0.0, (busy - own) / max(time.monotonic() - self.at, 0.1))


# ---- ours, and llama.cpp's, without a server ---------------------------------------------------------

class Ours:
    """bench_cpu with a model: one question, one answer."""
    def __init__(self, build, model):
        self.p = start([os.path.join(build, "tests/bench_cpu"), model, str(THREADS)], text=True, bufsize=1,
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.peaks = self.ask("peaks")   # answered once the model is open and nothing else is measured

    def ask(self, what):
        try:
            self.p.stdin.write(what + "\n")
        except BrokenPipeError:
            pass
        line = self.p.stdout.readline()
        if not line:
            raise Failed(f"bench_cpu did not answer {what[:40]!r}")
        return [float(x) for x in line.split()]


def llama_bench(model, prompt, generate):
    out = run_llama("llama-bench", "-m", model, "-p", str(prompt), "-n", str(generate), "-t", str(THREADS),
                    "-r", "1", "-o", "json")
    return json.loads(out)[0]["avg_ts"]


def llama_batched(model, seqs):
    out = run_llama("llama-batched-bench", "-m", model, "-t", str(THREADS), "-c", "4096", "-npp", "64",
                    "-ntg", "32", "-npl", str(seqs), "--output-format", "jsonl")
    return next(json.loads(x)["speed_tg"] for x in out.splitlines() if '"speed_tg"' in x)


# ---- files -------------------------------------------------------------------------------------------

def model_of(build, kind):
    """The default model in another type, made once: for GGUF's by the peer, for AWQ by us.  "1B-Q4_K" is a
    file of shapes.py."""
    kind = kind.removeprefix("TYPES-")
    path = os.path.join(build, "bench", "model.AWQ" if kind == "AWQ" else f"model.{kind}.gguf")
    if kind == "Q4_1":
        return MODEL
    shape = kind.split("-")[0].lower()
    if shape in ("1b", "1b4", "3b", "e32", "e64"):
        import shapes                      # which needs MODEL
        if not os.path.exists(path):
            shapes.write(shape, kind[len(shape) + 1:], path)
        return path
    if kind == "AWQ" and os.environ.get("BENCH_AWQ"):
        return os.environ["BENCH_AWQ"]
    if kind == "AWQ" and not os.path.exists(os.path.join(path, "config.json")):
        run([os.path.join(build, "slipring"), "quantize", VLLM_MODEL or MODEL, "--group-size", "64",
             "--out", path])
    elif not os.path.exists(path):
        if not LLAMA:
            raise Failed(f"no {kind} file: PEER_LLAMA_BIN's llama-quantize makes it")
        run_llama("llama-quantize", "--allow-requantize", "--pure", MODEL, path + ".part", kind)
        os.rename(path + ".part", path)
    return path


def copy_of_model(build):
    """A file that nobody else maps, so that the cache can forget it."""
    path = os.path.join(build, "bench", "cold.gguf")
    if not os.path.exists(path) or os.path.getsize(path) != os.path.getsize(MODEL):
        with open(MODEL, "rb") as a, open(path + ".part", "wb") as b:
            while data := a.read(BLOCK):
                b.write(data)
            b.flush()
            os.fsync(b.fileno())
        os.rename(path + ".part", path)
    return path


def forget(path):
    """Out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        for i in range(16):
            try:
                if os.preadv(fd, [bytearray(1)], os.fstat(fd).st_size // 16 * i, os.RWF_NOWAIT) == 1:
                    raise Failed(f"{path} stays in the page cache")
            except BlockingIOError:
                pass
    finally:
        os.close(fd)


def remember(path):
    with open(path, "rb") as f:
        while f.read(BLOCK):
            pass


def dd(path):
    """Seconds that dd needs for the file, not cached: past the cache or through it, the faster."""
    best = 1e9
    for flags in ([], ["iflag=direct"]):
        forget(path)
        p = subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=4M", *flags],
                           env=dict(os.environ, LC_ALL="C"), stderr=subprocess.PIPE, text=True)
        if took := re.search(r"copied, ([0-9.e-]+) s", p.stderr):
            best = min(best, float(took.group(1)))
    return best


# ---- servers -----------------------------------------------------------------------------------------

def request(url, body=None, seconds=120):
    data = json.dumps(body).encode() if body else None
    what = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(what, timeout=seconds) as r:
        return r.read().decode()


def wait_for(url, p, seconds):
    def well():
        try:
            return request(url + "/health", seconds=2) is not None
        except OSError:
            return False
    end = time.monotonic() + seconds
    while not well():
        if p.poll() is not None or time.monotonic() > end:
            raise Failed(f"{p.args[0]} did not answer at {url}")
        time.sleep(0.005)


def llama_server(port, model=MODEL):
    return [os.path.join(LLAMA, "llama-server"), "-m", model, "-t", str(THREADS), "-np", "16", "-c", "16384",
            "--no-webui", "--port", str(port)]


def seconds_to(args, env, url=None, word=None):
    """From exec until the program says `word`, or answers at the url."""
    begin = time.monotonic()
    p = start(args, env=env, stdout=subprocess.DEVNULL if url else subprocess.PIPE, stderr=subprocess.STDOUT)
    if url:
        wait_for(url, p, 60)
    else:
        while word not in (line := p.stdout.readline()):
            if not line:
                raise Failed(f"{args[0]} did not start")
    took = time.monotonic() - begin
    stop(p)
    return took


class Servers:
    """Ours and the peers', each ready; who is not asked stands still (SIGSTOP).  vLLM has one model only."""
    def __init__(self, build, folder, model=MODEL):
        self.build, self.folder, self.url, self.group = build, folder, {}, {}
        sock, port = os.path.join(folder, "s.sock"), free_port()
        env = dict(os.environ, SLIPRING_RUN_DIR=folder)
        same = ["--socket", sock, "--instance", "bench", "--served-model-name", "m"]
        short = [] if model == MODEL else ["--max-model-len", "4096"]   # 128 Ki need more KV memory than the default
        self.add("ours", [[os.path.join(build, "slipringd"), model, *same, *short],
                          [os.path.join(build, "slipring-http"), "--port", str(port), *same]], env, port, 60)
        if LLAMA:
            port = free_port()
            self.add("llama", [llama_server(port, model) + ["--alias", "m"]], peer_env(), port, 60)
        if VLLM and VLLM_MODEL and model == MODEL:
            port = free_port()
            self.add("vllm", [[VLLM, "serve", VLLM_MODEL, "--served-model-name", "m", "--dtype", "bfloat16",
                               "--max-model-len", "4096", "--port", str(port)]],
                     dict(os.environ, VLLM_CPU_KVCACHE_SPACE="2", HF_HUB_OFFLINE="1",
                          VLLM_NO_USAGE_STATS="1"), port, 600)

    def add(self, name, commands, env, port, seconds):
        with open(os.path.join(self.folder, name + ".log"), "w") as log:
            self.group[name] = [start(c, env=env, stdout=log, stderr=subprocess.STDOUT) for c in commands]
        self.url[name] = f"http://127.0.0.1:{port}"
        try:
            wait_for(self.url[name], self.group[name][-1], seconds)
        except Failed as why:
            raise Failed(f"{why}: {tail(log.name)}") from None
        self.rest(name)

    def rest(self, name):
        for p in self.group[name]:
            tell(p, signal.SIGSTOP)

    def wake(self, name):
        for p in self.group[name]:
            tell(p, signal.SIGCONT)

    def stop(self):
        for group in self.group.values():
            for p in group:
                stop(p)

    def ask(self, name, path, body=None):
        self.wake(name)
        text = request(self.url[name] + path, body)
        self.rest(name)
        return text

    def first_tokens(self, name, prompts):
        """Of each prompt: the text of the likeliest next token, and its log-probability."""
        got = []
        for ids in prompts:
            j = json.loads(self.ask(name, "/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 1,
                                                              "temperature": 0, "logprobs": 1}))
            p = j["choices"][0]["logprobs"]
            if "content" in p:                     # llama-server answers in the chat's form
                got.append((p["content"][0]["token"], p["content"][0]["logprob"]))
            else:
                got.append((p["tokens"][0], p["token_logprobs"][0]))
        return got

    def prefix_hits(self):
        text = self.ask("ours", "/metrics")
        return sum(float(x) for x in re.findall(r"^vllm:prefix_cache_hits_total\{[^}]*\} (\S+)", text, re.M))

    def load(self, name, clients, prompts):
        """Output tok/s and median time to the first token, ms: 128 random tokens in, 64 out.  By our load
        generator, which takes vLLM's flags and agrees with vLLM's; that one with BENCH_CLIENT=vllm."""
        out = os.path.join(self.folder, "r.json")
        vllm = os.environ.get("BENCH_CLIENT") == "vllm"
        self.wake(name)
        said = run([VLLM if vllm else os.path.join(self.build, "slipring"), "bench", "serve",
                    "--base-url", self.url[name], "--backend", "openai", "--model", "m",
                    "--tokenizer", VLLM_MODEL if vllm else MODEL, "--dataset-name", "random",
                    "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos",
                    "--num-prompts", str(prompts), "--max-concurrency", str(clients), "--temperature", "0",
                    "--seed", str(random.randrange(1 << 30)), "--save-result", "--result-dir", self.folder,
                    "--result-filename", "r.json"],
                   env=dict(os.environ, HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1"))
        self.rest(name)
        if not os.path.exists(out):
            raise Failed(f"no result of the load on {name}: {said[-300:]}")
        with open(out) as f:
            j = json.load(f)
        os.unlink(out)
        if j.get("failed"):
            raise Failed(f"{j['failed']} requests to {name} failed")
        return j["output_throughput"], j["median_ttft_ms"]
