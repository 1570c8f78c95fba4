#!/usr/bin/env python3
"""Two daemons behind NVIDIA Dynamo, one worker each, with file discovery: `make dynamo-test`.

Streams, greedy and drawn, first undisturbed.  Then under them: both daemons are killed with -9 and started again;
a daemon is killed and stays away; a worker is stopped with SIGTERM, as for a new version; a worker is killed with
-9 together with its daemon.  No answer is lost, and none is changed.  usage: dynamo.py BUILD [STREAMS]; DYNAMO_PY: a Python with ai-dynamo"""
import array, concurrent.futures, random, re
from harness import *

STREAMS = int(sys.argv[2]) if len(sys.argv) > 2 else 200
AT_ONCE = 16
PY = os.environ.get("DYNAMO_PY", os.path.join(BUILD, "dynamo/venv/bin/python"))
WORKER = os.path.join(HERE, "../adapters/python/slipring_dynamo.py")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def ascii_model(path):
    """A model that answers printable ASCII alone: Dynamo ends an answer with bytes that are no UTF-8.  Element 0
    of its hidden state is always large, and decides against every other row of the head."""
    make_model(path, "<a>", template=TEMPLATE, context=1024)
    name = os.path.join(path, "tokenizer.json")
    with open(name) as f:
        t = json.load(f)
    for token in t["added_tokens"]:                    # Dynamo's reader wants every field
        token.update(single_word=False, lstrip=False, rstrip=False, normalized=False)
    for part in (t["pre_tokenizer"], t["decoder"]):
        part.update(add_prefix_space=False, trim_offsets=True, use_regex=True)
    with open(name, "w") as f:
        json.dump(t, f)
    r, vocab = random.Random(1), 258

    def drawn(rows, columns, scale, first=None):
        a = array.array("f", (r.uniform(-scale, scale) for _ in range(rows * columns)))
        for i in range(rows if first else 0):
            a[i * columns] = first(i)
        return [rows, columns], a
    tensors = {"model.embed_tokens.weight": drawn(vocab, 64, 1, lambda i: 3),
               "lm_head.weight": drawn(vocab, 64, 0.5, lambda i: 4 if 32 <= i < 127 else -4),
               "model.norm.weight": ([64], array.array("f", [1] * 64))}
    for i in range(2):
        layer = f"model.layers.{i}."
        for name, rows, columns in (("self_attn.q_proj", 64, 64), ("self_attn.k_proj", 32, 64), ("self_attn.v_proj", 32, 64),
                                    ("self_attn.o_proj", 64, 64), ("mlp.gate_proj", 96, 64), ("mlp.up_proj", 96, 64),
                                    ("mlp.down_proj", 64, 96)):
            into = name.endswith(("o_proj", "down_proj"))
            tensors[layer + name + ".weight"] = drawn(rows, columns, 0.5, (lambda i: 0) if into else None)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[layer + name + ".weight"] = [64], array.array("f", [1] * 64)
    sys.path.insert(0, os.path.join(HERE, "models"))
    import tiny
    tiny.write_safetensors(os.path.join(path, "model.safetensors"), tensors)


class Fleet(Programs):
    def __init__(self):
        super().__init__({"DYN_LOG": "warn", "PYTHONUNBUFFERED": "1"})
        self.env["DYN_FILE_KV"] = os.path.join(self.dir, "discovery")
        self.model = os.path.join(self.dir, "m")
        self.env["HOME"] = self.dir                    # Dynamo keeps copies of models' files there
        ascii_model(self.model)

    def start(self, name, *words):
        with open(os.path.join(self.dir, name + ".log"), "ab") as log:
            self.procs[name] = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                env=self.env)

    def daemon_of(self, i):
        self.start("daemon-" + i, os.path.join(BUILD, "slipringd"), "--instance", i, "--device", "cpu", "--model", self.model,
                   "--max-num-seqs", 16, "--num-gpu-blocks-override", 4096)
        path = os.path.join(self.dir, i, "slipring.sock")
        check(wait_for(lambda: os.path.exists(path) or self.procs["daemon-" + i].poll() is not None, 60) and
              self.procs["daemon-" + i].poll() is None, "the daemon starts:\n" + self.log("daemon-" + i))

    def worker_of(self, i):
        self.start("worker-" + i, PY, WORKER, "--model", self.model, "--served-model-name", "m", "--instance", i)

    def frontend(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.start("frontend", PY, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", self.port,
                   "--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq",
                   "--migration-limit", 3)

    def workers(self):
        """How many workers there are, by the files in which they say so."""
        return sum("generate" in f for _, _, files in os.walk(self.env["DYN_FILE_KV"] + "/v1/instances") for f in files)

    def served(self):
        try:
            return '"m"' in self.ask("GET", "/v1/models")[2]
        except OSError:
            return False


def asked(i):
    r = random.Random(i)
    ask = {"model": "m", "prompt": "".join(r.choice("abcdefgh ijkl") for _ in range(r.randrange(8, 60))),
           "max_tokens": r.randrange(100, 900), "ignore_eos": True, "stream": True,
           "stream_options": {"include_usage": True}, "logprobs": 1}
    return dict(ask, temperature=0) if i % 2 else dict(ask, temperature=0.9, top_p=0.95, seed=i)


def stream(p, i):
    """The tokens of an answer with their log-probabilities; or what went wrong."""
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=120)
    out, usage, whole = [], None, False
    try:
        c.request("POST", "/v1/completions", json.dumps(asked(i)), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            return f"status {r.status}: {r.read()[:200]}"
        for line in r:
            line = line.decode().strip()
            if line == "data: [DONE]":
                whole = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event or event.get("message"):
                    return f"error {event}"
                for x in event.get("choices", []):
                    out.append(x["text"])
                    out += (x.get("logprobs") or {}).get("token_logprobs", [])
                usage = event.get("usage") or usage
            elif line.startswith("event: error"):
                return "error event"
    except OSError as e:
        return f"broken {e}"
    finally:
        c.close()
    numbers = [x for x in out if isinstance(x, float)]
    return ("".join(x for x in out if isinstance(x, str)), numbers) if whole and usage else "cut"


def run(p, disturb):
    done = [0]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        def one(i):
            r = stream(p, i)
            done[0] += 1
            return r
        each = [pool.submit(one, i) for i in range(STREAMS)]
        disturb(done)
        return [f.result() for f in each]


def judged(p, name, plain, disturb):
    began = time.monotonic()
    answers = run(p, disturb)
    lost = [r for r in answers if isinstance(r, str)]
    changed = [i for i, (a, b) in enumerate(zip(plain, answers)) if not isinstance(b, str) and a != b]
    print(f"{name}: of {STREAMS} streams {len(lost)} lost, {len(changed)} changed; {time.monotonic() - began:.1f} s", flush=True)
    for i in changed[:2]:
        print(f"  {i}: {str(plain[i])[:150]} | {str(answers[i])[:150]}")
    check(not lost, f"{name}: none is lost: {lost[:3]}")
    check(not changed, f"{name}: none is changed: {changed[:10]}")


def moved(p):
    """How many answers went on in another worker, as the frontend counts them."""
    text = p.ask("GET", "/metrics")[2]
    return sum(float(v) for v in re.findall(r'^dynamo_frontend_model_migration_total{.*ongoing_request.*} (\S+)$', text, re.M))


def killed(p, done):
    wait_for(lambda: done[0] >= STREAMS // 4, 300)
    for name in ("worker-a", "daemon-a"):
        p.procs[name].kill()
    for name in ("worker-a", "daemon-a"):
        p.procs.pop(name).wait()
    wait_for(lambda: done[0] >= STREAMS // 2, 300)


def restarted(p, done):
    for n, i in enumerate("ab"):
        wait_for(lambda: done[0] >= STREAMS * (n + 1) // 4, 300)
        p.procs["daemon-" + i].kill()
        p.procs["daemon-" + i].wait()
        p.daemon_of(i)


def alone(p, done):
    """A daemon that does not come back: its worker gives its answers away, and ends."""
    wait_for(lambda: done[0] >= STREAMS // 4, 300)
    p.procs["daemon-a"].kill()
    p.procs.pop("daemon-a").wait()
    check(p.procs.pop("worker-a").wait(60) == 0, "its worker ends with 0")


def drained(p, done):
    wait_for(lambda: done[0] >= STREAMS // 4, 300)
    p.procs["worker-b"].terminate()
    check(p.procs.pop("worker-b").wait(60) == 0, "the worker that drains ends with 0")


if not os.path.exists(PY) or subprocess.run([PY, "-c", "import dynamo.llm"], capture_output=True).returncode:
    print(f"SKIP: {PY} has no ai-dynamo; make dynamo-test installs it")
    raise SystemExit(0)
with Fleet() as p:
    began = time.monotonic()
    for i in "ab":
        p.daemon_of(i)
        p.worker_of(i)
    p.frontend()
    check(wait_for(lambda: p.workers() == 2 and p.served(), 60), "Dynamo's frontend finds both workers")
    print(f"ready after {time.monotonic() - began:.1f} s")
    plain = run(p, lambda done: None)
    bad = [r for r in plain if isinstance(r, str)]
    check(not bad, f"undisturbed all are answered: {bad[:3]}")
    check(len({a for a, _ in plain}) > STREAMS // 2, "answers differ")
    judged(p, "both daemons killed with -9 and started again", plain, lambda done: restarted(p, done))
    went_on = sum(int(n) for i in "ab" for n in re.findall(r"is back; (\d+) answers go on", p.log("worker-" + i)))
    print(f"  {went_on} answers went on in the daemon that came back")
    check(went_on > 0, "answers were cut")
    before = moved(p)
    judged(p, "a daemon killed with -9, not started again", plain, lambda done: alone(p, done))
    print(f"  {moved(p) - before:.0f} answers went on in the other worker")
    check(moved(p) > before, "answers were moved")
    p.daemon_of("a")
    p.worker_of("a")
    check(wait_for(lambda: p.workers() == 2, 60), "both are there again")
    before = moved(p)
    judged(p, "a worker drains", plain, lambda done: drained(p, done))
    p.worker_of("b")
    check(wait_for(lambda: p.workers() == 2, 60), "it is there again")
    judged(p, "a worker killed with -9 together with its daemon", plain, lambda done: killed(p, done))
    print(f"  {moved(p) - before:.0f} answers went on in the other worker")
    check(moved(p) > before, "answers were moved")
done()
