#!/usr/bin/env python3
"""make bench: the CPU back end and the servers around it, beside a peer and beside the machine's limits.

    bench.py BUILD [--pairs N] [--only "WORD|WORD"] [--even-if-noisy]

    PEER_LLAMA_BIN    folder of llama.cpp's programs: llama-bench, -batched-bench, -quantize, -server
    PEER_LLAMA_LIB    its libraries, if they lie elsewhere
    PEER_VLLM         vLLM's command, with PEER_VLLM_MODEL, a directory of the same model
    BENCH_AWQ         a directory of the same model, 4 bits in groups of 64

Ours and the peer take turns, pair after pair; a ratio is of one pair, and the table has the middle one
with the smallest and the largest.  Without a peer a row says so and its floor is not judged.  Prompts are
random and new each time.  Files of other types are made from the default model by the peer's
llama-quantize, so that both read the same.  Limits: what the products and the bytes of the work would take
at the rates measured first (bench_cpu.c).

Exit: 0; 1 a floor is missed; 3 the machine was too noisy to say anything: others took more than 7 % of a
core, or ours beside ours differed by more than 5 %.  Each row is also a line of BUILD/bench/cpu.jsonl."""
import argparse, json, os, platform, random, re, signal, socket, statistics, subprocess, sys, tempfile
import time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                     "slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf")
LLAMA = os.environ.get("PEER_LLAMA_BIN")
VLLM, VLLM_MODEL = os.environ.get("PEER_VLLM"), os.environ.get("PEER_VLLM_MODEL")
CORES = len(os.sched_getaffinity(0))
THREADS = min(CORES, 2) if CORES < 4 else CORES
TICK = os.sysconf("SC_CLK_TCK")
alive = []                       # processes of ours, to be ended whatever happens


# ---- processes ---------------------------------------------------------------------------------------

def start(args, **kw):
    p = subprocess.Popen(args, **kw)
    alive.append(p)
    return p


def stop(p):
    if p.poll() is None:
        p.send_signal(signal.SIGCONT)
        p.terminate()
        try:
            p.wait(10)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
    if p in alive:
        alive.remove(p)


def peer_env():
    return dict(os.environ, LD_LIBRARY_PATH=os.environ.get("PEER_LLAMA_LIB") or LLAMA or "")


def run_peer(*args):
    """What one of llama.cpp's programs prints."""
    p = start([os.path.join(LLAMA, args[0]), *args[1:]], env=peer_env(), stdout=subprocess.PIPE,
              stderr=subprocess.DEVNULL, text=True)
    out = p.communicate()[0]
    alive.remove(p)
    if p.returncode:
        raise SystemExit(f"bench: {args[0]} ended with {p.returncode}")
    return out


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ours:
    """bench_cpu with a model: one question, one answer."""
    def __init__(self, model):
        self.p = start([os.path.join(BUILD, "tests/bench_cpu"), model, str(THREADS)], text=True, bufsize=1,
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.peaks = self.ask("peaks")   # answered once the model is open and nothing else is measured

    def ask(self, what):
        self.p.stdin.write(what + "\n")
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit(f"bench: bench_cpu did not answer {what!r}")
        return [float(x) for x in line.split()]


# ---- noise -------------------------------------------------------------------------------------------

class Load:
    """What others computed while we measured, in cores."""
    def __init__(self):
        self.at, self.busy, self.own = time.monotonic(), self.all_busy(), self.own_busy()

    @staticmethod
    def all_busy():
        with open("/proc/stat") as f:
            n = [int(x) for x in f.readline().split()[1:]]
        return (sum(n[:3]) + sum(n[5:7])) / TICK   # user, nice, system, irq, softirq

    @staticmethod
    def own_busy():
        t = os.times()
        s = t.user + t.system + t.children_user + t.children_system
        for p in alive:
            try:
                with open(f"/proc/{p.pid}/stat") as f:
                    s += sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:15]) / TICK
            except OSError:
                pass
        return s

    def foreign(self):
        busy, own = self.all_busy() - self.busy, self.own_busy() - self.own
        return max(0.0, (busy - own) / (time.monotonic() - self.at))


# ---- rows --------------------------------------------------------------------------------------------

class Row:
    """One line of the table.  bigger: whether more is better; floor and goal are ratios to the peer, or
    with absolute=True of the value itself."""
    def __init__(self, ident, unit, floor=None, goal=None, bigger=True, absolute=False):
        self.id, self.unit, self.floor, self.goal = ident, unit, floor, goal
        self.bigger, self.absolute = bigger, absolute
        self.ours, self.peer, self.limit = [], [], []

    def add(self, ours, peer=None, limit=0):
        self.ours.append(ours)
        if peer:
            self.peer.append(peer)
        if limit:
            self.limit.append(limit)

    def ratios(self):
        return sorted(a / b for a, b in zip(self.ours, self.peer))

    def judged(self):
        """None: there is nothing to be judged by."""
        value = statistics.median(self.ours) if self.absolute else None
        if not self.absolute and self.peer:
            value = statistics.median(self.ratios())
        if self.floor is None or value is None:
            return None
        return value >= self.floor if self.bigger else value <= self.floor

    def json(self, env):
        r, limit = self.ratios(), statistics.median(self.limit) if self.limit else None
        med = statistics.median(self.ours)
        return {"id": self.id, "unit": self.unit, "min": min(self.ours), "med": med, "max": max(self.ours),
                "floor": self.floor, "goal": self.goal,
                "peer_med": statistics.median(self.peer) if self.peer else None,
                "ratio_min": r[0] if r else None, "ratio_med": statistics.median(r) if r else None,
                "ratio_max": r[-1] if r else None, "limit": limit, "frac": med / limit if limit else None,
                "env": env}

    def line(self):
        j = self.json(None)
        peer = f"{j['peer_med']:9.4g}" if self.peer else f"{'' if self.absolute else 'no peer':>9}"
        ratio = f"{j['ratio_med']:5.2f} ({j['ratio_min']:.2f} .. {j['ratio_max']:.2f})" if self.peer else ""
        limit = f"{j['limit']:8.4g} {j['frac']:5.2f}" if self.limit else f"{'':8} {'':5}"
        verdict = {None: "", True: "ok", False: "BELOW"}[self.judged()]
        floor = f"{self.floor:g} / {self.goal}" if self.floor else ""
        return f"{self.id:38} {j['med']:9.4g} {self.unit:5} {peer} {ratio:22} {limit}  {floor:12} {verdict}"


def llama_bench(model, prompt, generate):
    out = run_peer("llama-bench", "-m", model, "-p", str(prompt), "-n", str(generate), "-t", str(THREADS),
                   "-r", "1", "-o", "json")
    return json.loads(out)[0]["avg_ts"]


def llama_batched(model, seqs):
    out = run_peer("llama-batched-bench", "-m", model, "-t", str(THREADS), "-c", "4096", "-npp", "64",
                   "-ntg", "32", "-npl", str(seqs), "--output-format", "jsonl")
    return next(json.loads(x)["speed_tg"] for x in out.splitlines() if '"speed_tg"' in x)


WORK = {   # ours; the peer's
    "prefill 512": ("prefill 512", lambda m: llama_bench(m, 512, 0)),
    "decode, 1 sequence": ("decode 1 1 64", lambda m: llama_bench(m, 0, 64)),
    "decode, 16 sequences": ("decode 16 64 32", lambda m: llama_batched(m, 16)),
}
FLOORS = {
    ("prefill 512", "Q4_1"): (4.0, 6.0), ("prefill 512", "Q8_0"): (1.8, 2.8),
    ("prefill 512", "Q4_0"): (1.6, 2.5), ("prefill 512", "BF16"): (1.05, 1.35),
    ("decode, 1 sequence", "Q4_1"): (1.6, 2.2), ("decode, 1 sequence", "Q8_0"): (1.2, 1.4),
    ("decode, 1 sequence", "BF16"): (1.0, 1.1),
    ("decode, 16 sequences", "Q4_1"): (4.0, 6.0), ("decode, 16 sequences", "Q8_0"): (2.2, 3.5),
}


def model_of(kind):
    """The default model in another type, or None."""
    path = os.path.join(BUILD, "bench", f"model.{kind}.gguf")
    if kind == "Q4_1":
        return MODEL
    if not os.path.exists(path) and LLAMA:
        run_peer("llama-quantize", "--allow-requantize", "--pure", MODEL, path + ".part", kind)
        os.rename(path + ".part", path)
    return path if os.path.exists(path) else None


def bench_kernels(pairs):
    """The back end alone against llama.cpp's, by type of weights; each type's rows take turns."""
    for kind in ("Q4_1", "Q8_0", "Q4_0", "BF16"):
        rows = [(w, Row(f"{w}, {kind}", "tok/s", *FLOORS[w, kind])) for w in WORK if (w, kind) in FLOORS]
        rows = [(w, r) for w, r in rows if wanted(r.id)]
        model = model_of(kind) if rows else None
        if not model:
            missing.extend(r.id for _, r in rows)
            continue
        ours = Ours(model)
        if kind == "Q4_1":
            print("{} threads: int8 {:.0f}, bf16 {:.0f}, f32 {:.0f} Gop/s; memory {:.1f} GB/s".format(
                THREADS, *ours.peaks))
        for _ in range(pairs):
            for work, row in rows:
                ask, peer = WORK[work]
                value, limit = ours.ask(ask)
                row.add(value, peer(model) if LLAMA else None, limit)
        stop(ours.p)
        yield from (r for _, r in rows)


def bench_self(pairs):
    """Ours beside ours: what ratios mean on this machine now."""
    ours = Ours(MODEL)
    for work in ("prefill 512", "decode, 1 sequence"):
        row = Row(f"A against A: {work}", "tok/s")
        for _ in range(pairs):
            row.add(ours.ask(WORK[work][0])[0], ours.ask(WORK[work][0])[0])
        yield row
    stop(ours.p)


def bench_awq(pairs):
    awq, bf16 = os.environ.get("BENCH_AWQ"), model_of("BF16")
    floors = {"prefill 512": (1.2, 1.7), "decode, 1 sequence": (1.8, 2.6), "decode, 16 sequences": (1.3, 2.0)}
    rows = [(w, Row(f"{w}, AWQ to our BF16", "tok/s", *f)) for w, f in floors.items()]
    rows = [(w, r) for w, r in rows if wanted(r.id)]
    if not rows or not awq or not bf16:
        missing.extend(r.id for _, r in rows)
        return
    ours, other = Ours(awq), Ours(bf16)
    for _ in range(pairs):
        for work, row in rows:
            value, limit = ours.ask(WORK[work][0])
            row.add(value, other.ask(WORK[work][0])[0], limit)
    stop(ours.p)
    stop(other.p)
    yield from (r for _, r in rows)


def bench_foreign(pairs):
    """Decode alone, and with a process that computes all the time; the ratio is how much slower."""
    row = Row("decode beside a busy process, slower by", "x", 3.0, 2.2, bigger=False, absolute=True)
    if not wanted(row.id):
        return
    ours, busy = Ours(MODEL), start([sys.executable, "-c", "while True: pass"])
    for _ in range(pairs):
        busy.send_signal(signal.SIGSTOP)
        quiet = ours.ask("decode 1 60 200")[0]
        busy.send_signal(signal.SIGCONT)
        row.add(quiet / ours.ask("decode 1 60 200")[0])
    stop(busy)
    stop(ours.p)
    yield row


# ---- servers -----------------------------------------------------------------------------------------

def answers(url):
    try:
        with urllib.request.urlopen(url + "/health", timeout=2) as r:
            return r.status == 200
    except OSError:
        return False


def wait_for(url, p, seconds):
    end = time.monotonic() + seconds
    while not answers(url):
        if p.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"bench: the server at {url} did not start")
        time.sleep(0.005)


def llama_server(port):
    return [os.path.join(LLAMA, "llama-server"), "-m", MODEL, "-t", str(THREADS), "-np", "16", "-c", "16384",
            "--no-webui", "--port", str(port)]


class Servers:
    """Ours and the peers, each ready, on ports of their own."""
    def __init__(self, folder):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.url, sock, port = {}, os.path.join(folder, "s.sock"), free_port()
        d = start([os.path.join(BUILD, "slipringd"), MODEL, "--socket", sock, "--instance", "bench",
                   "--served-model-name", "m"], env=dict(os.environ, SLIPRING_RUN_DIR=folder), **quiet)
        h = start([os.path.join(BUILD, "slipring-http"), "--socket", sock, "--instance", "bench", "--port",
                   str(port), "--served-model-name", "m"],
                  env=dict(os.environ, SLIPRING_RUN_DIR=folder), **quiet)
        self.all = [h, d]
        self.add("ours", f"http://127.0.0.1:{port}", h, 30)
        if LLAMA:
            port = free_port()
            p = start(llama_server(port), env=peer_env(), **quiet)
            self.all.append(p)
            self.add("llama", f"http://127.0.0.1:{port}", p, 60)
        if VLLM and VLLM_MODEL:
            port = free_port()
            p = start([VLLM, "serve", VLLM_MODEL, "--served-model-name", "m", "--dtype", "bfloat16",
                       "--max-model-len", "4096", "--port", str(port)], env=dict(os.environ,
                       VLLM_CPU_KVCACHE_SPACE="2", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1"), **quiet)
            self.all.append(p)
            self.add("vllm", f"http://127.0.0.1:{port}", p, 600)

    def add(self, name, url, p, seconds):
        wait_for(url, p, seconds)
        self.url[name] = url

    def stop(self):
        for p in self.all:
            stop(p)

    def prefix_hits(self):
        with urllib.request.urlopen(self.url["ours"] + "/metrics", timeout=5) as r:
            text = r.read().decode()
        return sum(float(x) for x in re.findall(r"^vllm:prefix_cache_hits_total\{[^}]*\} (\S+)", text, re.M))

    def run(self, name, clients, folder):
        """Output tok/s and median time to the first token, ms: 128 random tokens in, 64 out."""
        out = os.path.join(folder, "r.json")
        p = start([os.path.join(BUILD, "slipring"), "bench", "serve", "--base-url", self.url[name],
                   "--model", "m", "--tokenizer", MODEL, "--dataset-name", "random", "--random-input-len",
                   "128", "--random-output-len", "64", "--num-prompts", str(max(4, clients)),
                   "--max-concurrency", str(clients), "--temperature", "0", "--seed",
                   str(random.randrange(1 << 30)), "--save-result", "--result-dir", folder,
                   "--result-filename", "r.json"],
                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = p.communicate(timeout=300)[0]
        alive.remove(p)
        if p.returncode or not os.path.exists(out):
            raise SystemExit(f"bench: slipring bench serve against {name}: {said[-400:]}")
        with open(out) as f:
            j = json.load(f)
        os.unlink(out)
        if j.get("failed"):
            raise SystemExit(f"bench: {j['failed']} requests to {name} failed")
        return j["output_throughput"], j["median_ttft_ms"]


def bench_http(pairs):
    rows = []
    for clients, floor, goal in ((1, 2, 3), (4, 2.5, 4), (16, 2, 3)):
        rate = Row(f"HTTP, {clients} clients, output", "tok/s", floor, goal)
        first = Row(f"HTTP, {clients} clients, first token", "ms", 0.6, 0.35, bigger=False)
        if wanted(rate.id) or wanted(first.id):
            rows.append((clients, rate, first))
    if not rows:
        return
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(folder)
        for name in servers.url:
            servers.run(name, 1, folder)
        for _ in range(pairs):
            for clients, rate, first in rows:
                got = {name: servers.run(name, clients, folder) for name in servers.url}
                peers = [got[n] for n in got if n != "ours"]
                rate.add(got["ours"][0], max((p[0] for p in peers), default=None))
                first.add(got["ours"][1], min((p[1] for p in peers), default=None))
        print(f"prefix hits of our server: {servers.prefix_hits():g}")
        servers.stop()
    for _, rate, first in rows:
        yield rate
        yield first


def ready(args, env, url=None, word=None):
    """Seconds from exec until the program says `word`, or answers at the url."""
    begin = time.monotonic()
    p = start(args, env=env, stdout=subprocess.DEVNULL if url else subprocess.PIPE, stderr=subprocess.STDOUT)
    if url:
        wait_for(url, p, 60)
    else:
        while word not in p.stdout.readline():
            if p.poll() is not None:
                raise SystemExit("bench: the daemon did not start")
    took = time.monotonic() - begin
    stop(p)
    return took


def bench_start(pairs):
    """The file in the page cache, the default KV."""
    row = Row("start to ready, file cached", "s", 0.5, "0.3 s", bigger=False)
    if not wanted(row.id):
        return
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(pairs):
            ours = ready([os.path.join(BUILD, "slipringd"), MODEL, "--instance", "bench", "--socket",
                          os.path.join(folder, "s.sock")], dict(os.environ, SLIPRING_RUN_DIR=folder),
                         word=b"Ready")
            port = free_port()
            row.add(ours, LLAMA and ready(llama_server(port), peer_env(), f"http://127.0.0.1:{port}"))
    yield row


# ---- all of it ---------------------------------------------------------------------------------------

def wanted(ident):
    return not ARGS.only or any(w in ident for w in ARGS.only.split("|"))


def environment():
    with open("/proc/cpuinfo") as f:
        name = re.search(r"model name\s*:\s*(.*)", f.read())
    return {"cpu": name.group(1) if name else platform.machine(), "cores": CORES, "threads": THREADS,
            "kernel": platform.release(), "table": os.environ.get("SLIPRING_CPU", "best"),
            "pairs": ARGS.pairs}


def report(rows, foreign, differ):
    noisy = foreign > 0.07 or differ > 0.05
    print(f"others took {100 * foreign:.0f} % of a core; ours beside ours differed by {100 * differ:.1f} %")
    if noisy and not ARGS.even_if_noisy:
        print("noisy: no figures from this machine now (--even-if-noisy shows them)")
        return 3
    print(f"\n{'':38} {'ours':>9} {'':5} {'peer':>9} {'ratio (min .. max)':22} {'limit':>8} {'of it':>5}  "
          "floor / goal")
    for r in rows:
        print(r.line())
    for m in missing:
        print(f"{m:38} not measured: no file of this type (see bench.py)")
    unjudged = sum(r.floor is not None and r.judged() is None for r in rows) + len(missing)
    if unjudged:
        print(f"{unjudged} floors were not judged: no peer, or no file")
    if noisy:
        print("noisy: the figures above count for nothing")
        return 3
    env = environment()
    with open(os.path.join(BUILD, "bench", "cpu.jsonl"), "w") as f:
        for r in rows:
            f.write(json.dumps(r.json(env)) + "\n")
    return 1 if any(r.judged() is False for r in rows) else 0


def main():
    if not os.path.exists(MODEL):
        raise SystemExit("bench: the default model is not there; tools/fetch-model.sh fetches it")
    os.makedirs(os.path.join(BUILD, "bench"), exist_ok=True)
    load, rows = Load(), []
    for part in (bench_self, bench_kernels, bench_awq, bench_foreign, bench_http, bench_start):
        for row in part(ARGS.pairs):
            rows.append(row)
            if ARGS.even_if_noisy:
                print(row.line(), flush=True)
    foreign = load.foreign()
    differ = max(abs(statistics.median(r.ratios()) - 1) for r in rows if r.id.startswith("A against A"))
    return report(rows, foreign, differ)


parser = argparse.ArgumentParser(description="see the head of this file")
parser.add_argument("build")
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--only", default="", help="rows whose names contain one of these, divided by |")
parser.add_argument("--even-if-noisy", action="store_true")
ARGS = parser.parse_args()
BUILD, missing = os.path.abspath(ARGS.build), []
try:
    CODE = main()
finally:
    for process in list(alive):
        stop(process)
sys.exit(CODE)
