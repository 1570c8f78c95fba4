"""What the tests against real processes share: start and stop servers in a folder of their own, ask
them things, count checks.  Standard library only; loopback only; every wait is bounded."""
import http.client, json, os, shutil, signal, socket, subprocess, sys, tempfile, threading, time

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))       # tests/
MODEL = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                     "slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf")
checks = 0


def check(ok, what):
    """One assertion: counted, and the end of the test if it fails."""
    global checks
    checks += 1
    if not ok:
        print(f"[  FAILED  ] {what}")
        raise SystemExit(1)


def done():
    print(f"ok: {checks} checks")


def need_model():
    if not os.path.exists(MODEL):
        print("SKIP: the default model is not there; tools/fetch-model.sh fetches it")
        print("[  SKIPPED ] 1 test(s), listed below:")
        raise SystemExit(0)


def wait_for(what, seconds, every=0.02):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        r = what()
        if r:
            return r
        time.sleep(every)
    return None


def make_model(path, *tokens, template=None, context=256):
    """A Llama of two layers, and a vocabulary of bytes, <end> and more special tokens: 257 and on."""
    os.mkdir(path)
    # GPT-2's names of bytes
    own = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    name = {b: chr(b) for b in own}
    for b in range(256):
        name.setdefault(b, chr(256 + len(name) - len(own)))
    added = [{"id": 256 + i, "content": t, "special": True} for i, t in enumerate(("<end>", *tokens))]
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
                   "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "head_dim": 16, "vocab_size": 256 + len(added), "max_position_embeddings": context, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "eos_token_id": 256,
                   "torch_dtype": "bfloat16"}, f)
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": added,
                   "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
                   "post_processor": None, "decoder": {"type": "ByteLevel"},
                   "model": {"type": "BPE", "vocab": {name[b]: b for b in range(256)}, "merges": []}}, f)
    if template:
        with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
            json.dump({"chat_template": template}, f)


class Programs:
    """Daemon and adapter of one instance, in a folder of their own; or `slipring serve`."""

    def __init__(self, env=None):
        self.dir = tempfile.mkdtemp(prefix="slipring-test-")
        self.env = dict(os.environ, RUNTIME_DIRECTORY=self.dir, **(env or {}))
        for k in ("NOTIFY_SOCKET", "LISTEN_FDS", "VLLM_API_KEY", "SLIPRING_API_KEY"):
            self.env.pop(k, None)
        self.socket = os.path.join(self.dir, "slipring.sock")
        self.procs, self.port, self.url = {}, None, None

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        for p in self.procs.values():
            if p.poll() is None:
                p.terminate()
        for p in self.procs.values():
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        if kind is not None and kind is not SystemExit or kind is SystemExit and rest[0].code:
            for name in self.procs:
                print(f"--- log of {name}:")
                print(self.log(name)[-4000:])
        shutil.rmtree(self.dir, ignore_errors=True)

    def run(self, name, *args):
        log = open(os.path.join(self.dir, name + ".log"), "ab")
        p = subprocess.Popen([os.path.join(BUILD, name), *map(str, args)], stdin=subprocess.DEVNULL,
                             stdout=log, stderr=log, env=self.env)
        log.close()
        self.procs[name] = p
        return p

    def log(self, name):
        with open(os.path.join(self.dir, name + ".log"), errors="replace") as f:
            return f.read()

    def daemon(self, *args):
        p = self.run("slipringd", *args)
        ready = wait_for(lambda: "Ready after" in self.log("slipringd") or p.poll() is not None, 60)
        check(ready and p.poll() is None, "the daemon starts:\n" + self.log("slipringd"))
        return p

    def adapter(self, *args):
        p = self._listen("slipring-http", self.run("slipring-http", "--port", 0, "--ready-file",
                                                   self._ready_file(), *args))
        daemon = self.procs.get("slipringd")
        if daemon and daemon.poll() is None and self.url.startswith("http://"):
            # It serves after two seconds in any case; on a busy machine it has not found the daemon by then.
            wait_for(lambda: self.ask("GET", "/health")[0] == 200, 20)
        return p

    def serve(self, *args):
        return self._listen("slipring", self.run("slipring", "serve", "--port", 0, "--ready-file",
                                                 self._ready_file(), *args))

    def _ready_file(self):
        path = os.path.join(self.dir, "url")
        if os.path.exists(path):
            os.unlink(path)
        return path

    def _listen(self, name, p):
        path = os.path.join(self.dir, "url")
        ready = wait_for(lambda: os.path.exists(path) and os.path.getsize(path) or p.poll() is not None, 90)
        check(ready and p.poll() is None, f"{name} starts:\n" + self.log(name))
        with open(path) as f:
            self.url = f.read().strip()
        self.port = int(self.url.rsplit(":", 1)[1].rstrip("/"))
        return p

    # ---- asking -----------------------------------------------------------------------------

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers, text) of one request."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            return r.status, r.headers, r.read().decode("utf-8", "replace")
        finally:
            c.close()

    def post(self, path, body, **kw):
        """The JSON of a request that must succeed."""
        status, _, text = self.ask("POST", path, body, **kw)
        check(status == 200, f"POST {path}: {status} {text[:300]}")
        return json.loads(text)

    def stream(self, path, body, timeout=120):
        """The events of a streamed answer, parsed; [DONE] as None."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read().decode()
            if r.status != 200:
                return r.status, text
            out = []
            for e in text.split("\n\n"):
                if e:
                    out.append(None if e == "data: [DONE]" else json.loads(e[len("data: "):]))
            return 200, out
        finally:
            c.close()

    def together(self, n, what):
        """what(i) for i < n in n threads; the results, or the exception of each."""
        out = [None] * n

        def one(i):
            try:
                out[i] = what(i)
            except BaseException as e:
                out[i] = e
        threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(180)
        return out


class Released(Programs):
    """Programs in a folder of their own, so that one of them can be replaced."""

    def __init__(self):
        super().__init__()
        self.bin = os.path.join(self.dir, "bin")
        os.mkdir(self.bin)
        for name in ("slipring", "slipringd", "slipring-http"):
            shutil.copy2(os.path.join(BUILD, name), self.bin)

    def run(self, name, *args):
        with open(os.path.join(self.dir, name + ".log"), "ab") as log:
            self.procs[name] = subprocess.Popen([os.path.join(self.bin, name), *map(str, args)], stdin=subprocess.DEVNULL,
                                                stdout=log, stderr=log, env=self.env)
        return self.procs[name]


def children(parent, name):
    """The processes called so that `parent` has started: {pid: their words}."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                words = f.read().split("\0")
            with open(f"/proc/{pid}/stat") as f:
                of = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if of == parent and words[0] == name:
            found[int(pid)] = words
    return found


def daemons(p):
    """The daemons of `slipring serve -dp N`: {rank: pid}."""
    return {int(w[w.index("--data-parallel-rank") + 1]): pid
            for pid, w in children(p.procs["slipring"].pid, "slipringd").items()}


def rss(pid):
    """(total, anonymous, file, shared) resident bytes of a process."""
    v = {}
    for line in open(f"/proc/{pid}/status"):
        k, _, rest = line.partition(":")
        if k in ("VmRSS", "RssAnon", "RssFile", "RssShmem"):
            v[k] = int(rest.split()[0]) * 1024
    return v["VmRSS"], v["RssAnon"], v["RssFile"], v["RssShmem"]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
