#!/usr/bin/env python3
"""make bench: the CPU back end and the servers around it, beside peers and beside the machine's limits.

    make bench [ROWS=decode16,http] [PAIRS=7] [BENCH_ARGS=--even-if-noisy]

    ROWS              words, parted by commas: rows whose name has one of them in it, letters and digits
                      (1b, prefill, decode1q41, decode16, awq, http, http16, foreign, start); default: all but
                      those of types, every type of GGUF in 4 layers of the shape of 1b
    PEER_LLAMA_BIN    folder of llama.cpp's programs: llama-bench, -batched-bench, -quantize, -server
    PEER_LLAMA_LIB    its libraries, if they lie elsewhere
    PEER_VLLM         vLLM's command, with PEER_VLLM_MODEL, a directory of the same model
    BENCH_AWQ         a directory of the same model, 4 bits in groups of 64; else slipring quantize makes it
    BENCH_CLIENT      vllm: load by `vllm bench serve` instead of `slipring bench serve` (slow to start)

The machine's peaks come first, then answers are compared: no row is timed with a peer that answers
otherwise.  Then ours and the peer take turns, pair after pair; a ratio is of one pair, and the table has
the smallest, the middle one and the largest.  Without a peer a row says so, and its floor is not judged.
Prompts are random and new each time; what our prefix cache nevertheless hit is printed.  Files of other
types are made from the default model by the peer's llama-quantize, so that both read the same.  A limit is
what the products and the bytes of the work would take at the peaks (bench_cpu.c); of a cold start, what dd
takes to read the file.

--markdown prints the table of the last whole run again, as the README has it.

Exit: 0; 1 a floor is missed or a row could not be measured; 3 the machine was too noisy to say anything:
others took more than 7 % of a core, or ours beside ours differed by more than 5 %.  Each row is also a
line of BUILD/bench/cpu.jsonl, with ROWS of cpu-ROWS.jsonl."""
import argparse, json, os, platform, re, signal, statistics, subprocess, sys, tempfile, time

import shapes
from bench_peers import (CORES, HERE, LLAMA, MODEL, THREADS, VLLM, VLLM_MODEL, Failed, Load, Ours,
                         Servers, alive, copy_of_model, dd, forget, free_port, llama_batched, llama_bench,
                         llama_server, model_of,
                         peer_env, remember, request, seconds_to, start, stop, tell,
                         wait_for)

ARGS = BUILD = None              # of the command line
FOREIGN, DIFFER = 0.07, 0.05     # above these: noisy
FIRST, LOGPROB = 0.75, 0.15      # of the first tokens, so many agree; those by so much, in the mean


# ---- rows --------------------------------------------------------------------------------------------

def bounds_of(j):
    mark = {"ratio": "", "value": " " + j["unit"], "frac": " of limit"}
    return " / ".join(f"{j[b]:g}{mark[j[b + '_of']]}" for b in ("floor", "goal") if j[b] is not None)


class Row:
    """One line of the table.  more: whether more is better.  floor and goal are of the ratio to the peer,
    or of what floor_of, goal_of say: "value", or "frac", the fraction of the limit."""
    def __init__(self, ident, unit, floor=None, goal=None, more=True, floor_of="ratio", goal_of=None):
        self.id, self.unit, self.more = ident, unit, more
        self.floor, self.floor_of, self.goal, self.goal_of = floor, floor_of, goal, goal_of or floor_of
        self.ours, self.peer, self.limit = [], [], []

    def add(self, ours, peer=None, limit=0):
        self.ours.append(ours)
        if peer:
            self.peer.append(peer)
        if limit:
            self.limit.append(limit)

    def ratios(self):
        return sorted(a / b for a, b in zip(self.ours, self.peer))

    def of(self, what):
        """Value, ratio or fraction in the middle, or None."""
        if what == "value":
            return statistics.median(self.ours)
        if what == "ratio":
            return statistics.median(self.ratios()) if self.peer else None
        if not self.limit:
            return None
        limit, value = statistics.median(self.limit), statistics.median(self.ours)
        return value / limit if self.more else limit / value

    def meets(self, bound, what):
        value = self.of(what)
        if bound is None or value is None:
            return None
        return value >= bound if self.more or what == "frac" else value <= bound

    def judged(self):
        """None: there is nothing to be judged by."""
        return self.meets(self.floor, self.floor_of)

    def json(self, env):
        r = self.ratios()
        return {"id": self.id, "unit": self.unit, "min": min(self.ours), "med": statistics.median(self.ours),
                "max": max(self.ours), "floor": self.floor, "goal": self.goal,
                "floor_of": self.floor_of, "goal_of": self.goal_of,
                "peer_med": statistics.median(self.peer) if self.peer else None,
                "ratio_min": r[0] if r else None, "ratio_med": statistics.median(r) if r else None,
                "ratio_max": r[-1] if r else None,
                "limit": statistics.median(self.limit) if self.limit else None, "frac": self.of("frac"),
                "env": env}

    def line(self):
        j = self.json(None)
        peer = f"{j['peer_med']:9.4g}" if self.peer else f"{'no peer':>9}"
        ratio = f"{'':17}"
        if self.peer:
            ratio = f"{j['ratio_min']:5.2f} {j['ratio_med']:5.2f} {j['ratio_max']:5.2f}"
        limit = f"{j['limit']:8.4g} {j['frac']:5.2f}" if self.limit else f"{'':14}"
        verdict = {None: "", True: "ok", False: "BELOW"}[self.judged()]
        if self.judged() is not False and self.meets(self.goal, self.goal_of):
            verdict = "goal"
        bounds = "" if self.floor is None else bounds_of(j)
        return f"{self.id:35} {j['med']:9.4g} {self.unit:5} {peer}  {ratio}  {limit}  {bounds:16} {verdict}"


HEAD = (f"{'':35} {'ours':>9} {'':5} {'peer':>9}  {'ratio min':>9}  med   max {'limit':>9} of it  "
        "floor / goal")


def wanted(row):
    def plain(s):
        return re.sub(r"[^a-z0-9]", "", s.lower())
    return not ARGS.rows or any(plain(w) in plain(row.id) for w in ARGS.rows.split(",") if w)


# ---- the same answers --------------------------------------------------------------------------------

def prompts():
    with open(os.path.join(HERE, "data", "smollm2.json")) as f:
        return [x["ids"] for x in json.load(f)["greedy"]]


def compare(what, ours, peer):
    """Lists of (token, log-probability), one of each prompt."""
    same = [abs(a[1] - b[1]) for a, b in zip(ours, peer) if a[0] == b[0]]
    off = statistics.mean(same) if same else 9
    text = f"{what}: {len(same)} of {len(ours)} first tokens agree, log-probabilities of those to {off:.3f}"
    print("answers, " + text, flush=True)
    if len(same) < FIRST * len(ours) or off > LOGPROB:
        raise Failed(f"not timed, since answers differ: {text}")


def own_answers(ours):
    return [tuple(ours.ask("answer 1 " + " ".join(map(str, ids)))) for ids in prompts()]


def llama_answers(model):
    """By ids, as ours are."""
    port, got = free_port(), []
    p = start(llama_server(port, model), env=peer_env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(f"http://127.0.0.1:{port}", p, 60)
    for ids in prompts():
        j = json.loads(request(f"http://127.0.0.1:{port}/completion", {
            "prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": 1, "cache_prompt": False}))
        first = j["completion_probabilities"][0]
        got.append((float(first["id"]), first["logprob"]))
    stop(p)
    return got


# ---- the back end alone ------------------------------------------------------------------------------

WORK = {   # ours; the peer's
    "prefill-512": ("prefill 512", lambda m: llama_bench(m, 512, 0)),
    "decode-1": ("decode 1 1 128", lambda m: llama_bench(m, 0, 128)),
    "decode-16": ("decode 16 64 32", lambda m: llama_batched(m, 16)),
}
BOUNDS = {
    "q4_1": {"prefill-512": (4.0, 6.0), "decode-1": (1.6, 2.2), "decode-16": (4.0, 6.0)},
    "q8_0": {"prefill-512": (1.8, 2.8), "decode-1": (1.2, 1.4), "decode-16": (2.2, 3.5)},
    "q4_0": {"prefill-512": (1.6, 2.5)},
    "bf16": {"prefill-512": (1.05, 1.35), "decode-1": (1.0, 1.1)},
}
SHAPED = {   # random weights in the shape of Llama 3.2 and of Qwen 3 MoE (shapes.py)
    "1b-q4_0": {"decode-1": (1.15, 1.4), "prefill-512": (2.2, 3.0), "decode-16": (3.0, 4.0)},
    "1b-q4_k": {"decode-1": (1.15, 1.4), "prefill-512": (2.2, 3.0), "decode-16": (3.0, 4.0)},
    "1b-q8_0": {"decode-1": (1.15, 1.4), "prefill-512": (2.2, 3.0)},
    "1b-bf16": {"decode-1": (1.15, 1.4), "prefill-512": (None, None)},
    "3b-q4_k": {"decode-1": (1.15, 1.4)},
    "e32-mxfp4": {"decode-1": (1.15, 1.4), "prefill-512": (1.8, 2.5), "decode-16": (2.0, 3.0)},   # experts: 4 of 32
    "e64-q4_k": {"decode-1": (1.15, 1.4), "prefill-512": (1.8, 2.5), "decode-16": (2.0, 3.0)},    # 8 of 64
}
EVERY_TYPE = {f"types-1b4-{t.lower()}": {"decode-1": (1.15, 1.4), "prefill-512": (1.3, 1.8), "decode-16": (1.3, 2.0)}
              for t in shapes.TYPES if t not in ("MXFP4", "NVFP4")}   # those are of experts; of directories
FOREIGN_ROWS = {   # beside one busy process, at most so many times as slow
    "q4_1": {"decode-1": (3.0, 2.2)},
    "1b-q4_k": {"decode-1": (1.5, None), "prefill-512": (2.2, None)},
}
FOREIGN_WORK = {("q4_1", "decode-1"): "decode 1 60 400"}   # longer than WORK says
AWQ = {"prefill-512": (1.2, 1.7), "decode-1": (1.8, 2.6), "decode-16": (1.3, 2.0)}


def warm(ours, rows):
    """Once each: memory is touched, clocks are up."""
    for work, _ in rows:
        ours.ask(WORK[work][0])


def bench_self(rows):
    """Ours beside ours, in turns that alternate: what ratios mean on this machine now."""
    ours = Ours(BUILD, MODEL)
    warm(ours, rows)
    for work, row in rows:
        for i in range(3 * ARGS.pairs):            # quick, and all else hangs on it
            pair = [ours.ask(WORK[work][0])[0] for _ in range(2)]
            row.add(*(pair if i % 2 else pair[::-1]))
    stop(ours.p)


def bench_type(kind, rows):
    """The back end alone against llama.cpp's, one type of weights; its rows take turns.  Answers of random
    weights are not compared: all tokens are about equally likely."""
    if not rows:
        return
    model = model_of(BUILD, kind.upper())
    ours = Ours(BUILD, model)
    if LLAMA and kind in BOUNDS:
        compare(f"{kind} with llama.cpp", own_answers(ours), llama_answers(model))
    warm(ours, rows)
    for _ in range(ARGS.pairs):
        for work, row in rows:
            ask, peer = WORK[work]
            value, limit, *read = ours.ask(ask)
            if work == "decode-1":
                print(f"  {row.id}: {read[0]:.0f} MB a token, {read[1]:.1f} GB/s of {ours.peaks[3]:.1f}", flush=True)
            row.add(value, peer(model) if LLAMA else None, limit)
    stop(ours.p)


def bench_awq(rows):
    """4 bits in an AWQ directory beside bf16, both ours."""
    ours, other = Ours(BUILD, model_of(BUILD, "AWQ")), Ours(BUILD, model_of(BUILD, "BF16"))
    warm(ours, rows)
    warm(other, rows)
    for _ in range(ARGS.pairs):
        for work, row in rows:
            value, limit = ours.ask(WORK[work][0])[:2]
            row.add(value, other.ask(WORK[work][0])[0], limit)
    stop(ours.p)
    stop(other.p)


def bench_foreign(kind, rows):
    """Work alone, and with a process that computes all the time: how much slower.  With n cores, of which
    the other takes half of one, there would be n / (n - 1/2)."""
    if not rows:
        return
    model = model_of(BUILD, kind.upper())
    ours, busy = Ours(BUILD, model), start([sys.executable, "-c", "while True: pass"])
    tell(busy, signal.SIGSTOP)
    warm(ours, rows)
    for _ in range(ARGS.pairs):
        def slower(measure):
            quiet = measure()
            tell(busy, signal.SIGCONT)
            beside = measure()
            tell(busy, signal.SIGSTOP)
            return quiet / beside
        for work, row in rows:
            row.add(slower(lambda w=work: ours.ask(FOREIGN_WORK.get((kind, w), WORK[w][0]))[0]),
                    slower(lambda w=work: WORK[w][1](model)) if LLAMA else None, THREADS / (THREADS - 0.5))
    stop(busy)
    stop(ours.p)


# ---- servers -----------------------------------------------------------------------------------------

HTTP = {   # of a file: clients, prompts, floor and goal of the output
    "q4_1": ((1, 4, 2, 3), (4, 8, 2.5, 4), (16, 32, 2, 3)),
    "1b-q4_k": ((1, 2, 1.1, 1.4), (4, 8, 2.0, 3.0), (16, 16, 2.5, 3.5)),
}


def http_rows(kind):
    name = "http" if kind == "q4_1" else f"http-{kind}"
    for clients, n, floor, goal in HTTP[kind]:
        pair = (Row(f"{name}-{clients}-output", "tok/s", floor, goal),
                Row(f"{name}-{clients}-first-token", "ms", 0.6, 0.35, more=False))
        if any(map(wanted, pair)):
            yield clients, n, pair


def http_limits(model, clients):
    """All prompts, then all answers, at the limits of prefill and decode; when all clients ask at once, half
    of the prompts come before the one in the middle."""
    ours = Ours(BUILD, model)
    prompt = 128 / ours.ask("prefill 128")[1]
    step = clients / ours.ask(f"decode {clients} 160 4")[1]
    stop(ours.p)
    return 64 * clients / (clients * prompt + 64 * step), 1e3 * prompt * (clients + 1) / 2


def bench_http(kind, todo):
    model = model_of(BUILD, kind.upper())
    limits = {clients: http_limits(model, clients) for clients, _, _ in todo}
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(BUILD, folder, model)
        try:
            ours = servers.first_tokens("ours", prompts())
            for name in servers.url:
                if name != "ours" and model == MODEL:  # answers of random weights say nothing
                    compare(f"HTTP with {name}", ours, servers.first_tokens(name, prompts()))
            hits = servers.prefix_hits()           # of the prompts just compared, alike at their beginnings
            for name in servers.url:
                servers.load(name, 4, 4)
            for _ in range(ARGS.pairs):
                for clients, n, (rate, first) in todo:
                    got = {name: servers.load(name, clients, n) for name in servers.url}
                    peers = [got[n] for n in got if n != "ours"]
                    rate.add(got["ours"][0], max((p[0] for p in peers), default=None), limits[clients][0])
                    first.add(got["ours"][1], min((p[1] for p in peers), default=None), limits[clients][1])
                    print(f"  {clients} clients: " + ", ".join(f"{name} {r:.0f} tok/s, {t:.0f} ms"
                                                               for name, (r, t) in got.items()), flush=True)
            print(f"prefix hits of our server: {servers.prefix_hits() - hits:g}")
        finally:
            servers.stop()


def bench_start(rows):
    """From exec to READY with the default KV, the file in the page cache or not."""
    model, wants = copy_of_model(BUILD), {r.id for r in rows}
    with tempfile.TemporaryDirectory() as folder:
        ourselves = [os.path.join(BUILD, "slipringd"), model, "--instance", "bench", "--socket",
                     os.path.join(folder, "s.sock")]
        for _ in range(ARGS.pairs):
            for row in rows:
                before = remember if row.id == "start-cached" else forget
                limit = dd(model) if row.id == "start-cold" else 0
                before(model)
                ours = seconds_to(ourselves, dict(os.environ, SLIPRING_RUN_DIR=folder), word=b"Ready")
                before(model)
                port = free_port()
                peer = LLAMA and seconds_to(llama_server(port, model), peer_env(), f"http://127.0.0.1:{port}")
                row.add(ours, peer, limit)


# ---- all of it ---------------------------------------------------------------------------------------

def parts():
    """(what to call, its rows)"""
    def some(rows):
        return [(w, r) for w, r in rows if wanted(r)]
    for kind, bounds in {**(EVERY_TYPE if "types" in ARGS.rows else {}), **SHAPED, **BOUNDS}.items():
        rows = some([(w, Row(f"{w}-{kind}", "tok/s", *b)) for w, b in bounds.items()])
        yield lambda k=kind, r=rows: bench_type(k, r), [r for _, r in rows]
    awq = some([(w, Row(f"awq-{w}", "tok/s", *b)) for w, b in AWQ.items()])
    yield lambda: bench_awq(awq), [r for _, r in awq]
    for kind, bounds in FOREIGN_ROWS.items():
        rows = some([(w, Row(f"foreign-{w}-{'' if kind == 'q4_1' else kind + '-'}slower", "x", *b, False, "value"))
                     for w, b in bounds.items()])
        yield lambda k=kind, r=rows: bench_foreign(k, r), [r for _, r in rows]
    begin = [r for r in (Row("start-cached", "s", 0.5, 0.3, more=False, goal_of="value"),
                         Row("start-cold", "s", 0.5, 0.9, more=False, goal_of="frac")) if wanted(r)]
    yield lambda: bench_start(begin), begin
    for kind in HTTP:
        http = list(http_rows(kind))
        yield lambda k=kind, h=http: bench_http(k, h), [r for _, _, pair in http for r in pair]


def environment():
    with open("/proc/cpuinfo") as f:
        name = re.search(r"model name\s*:\s*(.*)", f.read())
    git = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return {"cpu": name.group(1) if name else platform.machine(), "cores": CORES, "threads": THREADS,
            "kernel": platform.release(), "table": os.environ.get("SLIPRING_CPU", "best"),
            "pairs": ARGS.pairs, "commit": git.stdout.strip(), "llama": bool(LLAMA),
            "vllm": bool(VLLM and VLLM_MODEL)}


def report(rows, missing, foreign, differ):
    noisy = foreign > FOREIGN or differ > DIFFER
    print(f"others took {100 * foreign:.1f} % of a core; ours beside ours differed by {100 * differ:.1f} %")
    if noisy and not ARGS.even_if_noisy:
        print("noisy: no figures from this machine now (BENCH_ARGS=--even-if-noisy shows them)")
        return 3
    print("\n" + HEAD)
    for r in rows:
        print(r.line())
    for ident, why in missing:
        print(f"{ident:35} not measured: {why}")
    unjudged = sum(r.floor is not None and r.judged() is None for r in rows)
    if unjudged:
        print(f"{unjudged} floors were not judged: no peer")
    if noisy:
        print("noisy: the figures above count for nothing")
        return 3
    env, name = environment(), "cpu" + ("-" + re.sub(r"[^A-Za-z0-9]+", "-", ARGS.rows) if ARGS.rows else "")
    with open(os.path.join(BUILD, "bench", name + ".jsonl"), "w") as f:
        for r in rows:
            f.write(json.dumps(r.json(env)) + "\n")
    return 1 if missing or any(r.judged() is False for r in rows) else 0


def markdown():
    def short(v, unit=""):
        return "" if v is None else f"{v:,.0f}{unit}" if v >= 100 else f"{v:.3g}{unit}"
    if not os.path.exists(os.path.join(BUILD, "bench", "cpu.jsonl")):
        raise SystemExit(f"bench: {BUILD}/bench/cpu.jsonl is not there: make bench writes it")
    print("| work | ours | peer | ratio (least .. most) | of the limit | floor / goal |")
    print("|---|---|---|---|---|---|")
    with open(os.path.join(BUILD, "bench", "cpu.jsonl")) as f:
        for r in map(json.loads, f):
            ratio = ""
            if r["peer_med"]:
                ratio = f"{r['ratio_med']:.2f} ({r['ratio_min']:.2f} .. {r['ratio_max']:.2f})"
            bounds = "" if r["floor"] is None else bounds_of(r)
            print(f"| {r['id']} | {short(r['med'], ' ' + r['unit'])} | {short(r['peer_med']) or 'no peer'} | "
                  f"{ratio} | {short(r['frac'])} | {bounds} |")
    print("\n" + ", ".join(f"{k} {v}" for k, v in r["env"].items()))
    return 0


def peaks():
    ours = Ours(BUILD, MODEL)
    print("peaks, {} threads: int8 {:.0f}, bf16 {:.0f}, f32 {:.0f} Gop/s; memory {:.1f} GB/s".format(
        THREADS, *ours.peaks), flush=True)
    stop(ours.p)


def main():
    if not os.path.exists(MODEL):
        raise SystemExit("bench: the default model is not there; tools/fetch-model.sh fetches it")
    os.makedirs(os.path.join(BUILD, "bench"), exist_ok=True)
    todo = [(what, rows) for what, rows in parts() if rows]
    if not todo:
        raise SystemExit(f"bench: no row has one of {ARGS.rows} in its name")
    peaks()
    both = [(w, Row(f"self-{w}", "tok/s")) for w in ("prefill-512", "decode-1")]
    rows, missing, load = [], [], Load()
    for what, own in [(lambda: bench_self(both), [r for _, r in both]), *todo]:
        here = Load()
        try:
            what()
            rows += own
            if ARGS.even_if_noisy:
                print("\n".join(r.line() for r in own))
        except Failed as why:
            missing += [(r.id, why) for r in own]
            print(f"{own[0].id}: {why}")
        print(f"{own[0].id} and so on: {time.monotonic() - here.at:.0f} s, of which others took "
              f"{100 * here.foreign():.1f} % of a core", flush=True)
        for p in list(alive):
            stop(p)
    foreign = load.foreign()
    differ = max(abs(r.of("ratio") - 1) for _, r in both)
    return report(rows, missing, foreign, differ)


def ended(sig, _frame):
    raise SystemExit(128 + sig)


def arguments(words=None):
    global ARGS, BUILD
    parser = argparse.ArgumentParser(description="see the head of this file")
    parser.add_argument("build")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--rows", default="", help="words, parted by commas: rows with one of them in the name")
    parser.add_argument("--even-if-noisy", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    ARGS = parser.parse_args(words)
    BUILD = os.path.abspath(ARGS.build)


if __name__ == "__main__":
    arguments()
    signal.signal(signal.SIGTERM, ended)
    try:
        CODE = markdown() if ARGS.markdown else main()
    finally:
        for process in list(alive):
            stop(process)
    sys.exit(CODE)
