#!/usr/bin/env python3
"""slipring pull against a hub of our own on loopback: what it chooses, cut off at any byte, resumed, checked; two
at once; a wrong hash, a full disk, hubs that lie."""
import hashlib, http.server, json, os, random, shutil, socketserver, subprocess, tempfile, threading, time
from harness import BUILD, check, done

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.repos, self.list, self.asked, self.cut, self.status, self.ranges, self.slow = {}, {}, [], [], {}, True, 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *a):
        pass                              # a client that was killed

    def put(self, repo, files, small=()):
        self.repos[repo] = dict(files)
        self.list[repo] = self.listing(repo, small)

    def listing(self, repo, small):
        out = []
        for name, data in self.repos[repo].items():
            if name in small:
                git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
                out.append({"rfilename": name, "size": len(data), "blobId": git})
            else:
                out.append({"rfilename": name, "size": len(data), "blobId": "0" * 40,
                            "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}})
        return {"id": repo, "sha": COMMIT, "siblings": out}


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def give(self, status, body, head=()):
        self.send_response(status)
        for k, v in head:
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        h = self.server
        h.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        path = self.path.split("?")[0]
        if path in h.status:
            return self.give(h.status[path], b"no\n")
        if path.startswith("/api/models/"):
            repo = path[len("/api/models/"):].rsplit("/revision/", 1)[0]
            if repo not in h.list:
                return self.give(404, b"{}")
            j = h.list[repo]
            return self.give(200, j if isinstance(j, bytes) else json.dumps(j).encode())
        repo, _, rest = path[1:].partition("/resolve/")
        if path.startswith("/cdn/"):
            repo, _, rest = path[5:].partition("/resolve/")
        elif h.status.get("redirect"):
            return self.give(302, b"", [("Location", f"{h.status['redirect']}/cdn{path}")])
        data = h.repos[repo][rest.split("/", 1)[1]]
        begin, r = 0, self.headers.get("Range")
        if r and h.ranges:
            begin = int(r[len("bytes="):-1])
        body = data[begin:]
        self.send_response(206 if r and h.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if h.cut:
            body = body[:h.cut.pop(0)]
            self.close_connection = True
        if h.slow:
            for i in range(0, len(body), 4096):
                self.wfile.write(body[i:i + 4096])
                time.sleep(h.slow)
        else:
            self.wfile.write(body)


hub = Hub()
home = tempfile.mkdtemp(prefix="slipring-test-")
rnd = random.Random(7)


def env(**more):
    e = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return {**e, "HOME": home, "XDG_CACHE_HOME": home + "/cache", "HF_ENDPOINT": hub.url, **more}


def pull(*args, **more):
    return subprocess.run([BUILD + "/slipring", "pull", *args], capture_output=True, text=True, timeout=120,
                          stdin=subprocess.DEVNULL, env=env(**more))


def where(repo):
    return f"{home}/cache/huggingface/hub/models--{repo.replace('/', '--')}"


def is_whole(repo, names):
    s = f"{where(repo)}/snapshots/{COMMIT}"
    found = sorted(os.path.relpath(os.path.join(d, f), s) for d, _, fs in os.walk(s) for f in fs)
    check(found == sorted(names), f"{repo}: {found}")
    for n in names:
        with open(f"{s}/{n}", "rb") as f:
            check(f.read() == hub.repos[repo][n], f"{repo}: {n} has its bytes")
        check(os.path.islink(f"{s}/{n}") and not os.readlink(f"{s}/{n}").startswith("/"), f"{n} is a link within")
    check(not [f for f in os.listdir(where(repo) + "/blobs") if f.endswith("incomplete")], "nothing is left over")


def fails(r, what, code=1):
    check(r.returncode == code and what in r.stderr, f"{r.returncode} {r.stderr!r}, wanted {what!r}")
    check(r.stderr.count("\n") == 1, f"one sentence: {r.stderr!r}")


def noise(n):
    return rnd.randbytes(n)


# ---- a directory, and what of it is taken
small = ("config.json", "tokenizer.json", "README.md")
hub.put("a/hf", {"config.json": b"{}", "tokenizer.json": b"[]" * 100, "model-1.safetensors": noise(300000),
                 "model-2.safetensors": noise(10), "README.md": b"x", "pytorch_model.bin": noise(50),
                 "consolidated.safetensors": noise(60), "onnx/model.onnx": noise(5), "empty.json": b""}, small)
taken = ["config.json", "tokenizer.json", "model-1.safetensors", "model-2.safetensors", "empty.json"]
r = pull("a/hf", HF_TOKEN="secret")
check(r.returncode == 0 and "To serve it: slipring serve a/hf" in r.stdout, r.stdout + r.stderr)
is_whole("a/hf", taken)
check(open(where("a/hf") + "/refs/main").read() == COMMIT, "refs/main")
check(all(a == "Bearer secret" for _, _, a in hub.asked), "the token is sent")
hub.asked.clear()
r = pull("a/hf", "--json")
j = json.loads(r.stdout)
check(j["downloaded"] == 0 and j["commit"] == COMMIT and [f["path"] for f in j["files"]] == sorted(taken), r.stdout)
check(len(hub.asked) == 1 and hub.asked[0][2] is None, "nothing is downloaded twice")
r = subprocess.run([BUILD + "/slipring", "show", "a/hf"], capture_output=True, text=True, env=env())
check("a--hf" in r.stderr, "show finds it: " + r.stderr)

# ---- quantizations
hub.put("a/q", {"m-Q4_K_M.gguf": noise(1000), "m-IQ4_K_M.gguf": noise(900), "mmproj-Q4_K_M.gguf": noise(5),
                "Q8_0/m-Q8_0-00001-of-00002.gguf": noise(2000), "Q8_0/m-Q8_0-00002-of-00002.gguf": noise(1500)})
fails(pull("a/q"), "a/q has 3 GGUF models: choose one as in a/q:IQ4_K_M (--list shows them)")
r = pull("a/q", "--list")
check(r.returncode == 0 and [l.split()[0] for l in r.stdout.splitlines() if l.startswith("  ")] ==
      ["IQ4_K_M", "Q4_K_M", "Q8_0"] and "2 files" in r.stdout, r.stdout)
check(pull("a/q:q4_k_m").returncode == 0, "a quantization in small letters")
is_whole("a/q", ["m-Q4_K_M.gguf"])
check(pull("a/q:Q8_0").returncode == 0, "a model of two parts")
is_whole("a/q", ["m-Q4_K_M.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"])
fails(pull("a/q:Q2_K"), "no GGUF file of a/q ends in Q2_K (--list shows what there is)")
fails(pull("a/q:K_M"), "write more of the name than K_M")

# ---- cut off at any byte, and resumed
data = noise(200000)
hub.put("a/cut", {"m.gguf": data})
for at in (0, 1, 65536, 199999):
    hub.cut[:] = [at]
    hub.asked.clear()
    r = pull("a/cut")
    check(r.returncode == 0, f"cut at {at}: {r.stderr}")
    check([x for _, x, _ in hub.asked[1:]] == [None, f"bytes={at}-" if at else None], f"{hub.asked}")
    is_whole("a/cut", ["m.gguf"])
    shutil.rmtree(where("a/cut"))
# killed, and begun again by another process; by a hub that knows no ranges; behind what is too long or wrong
blob = f"{where('a/cut')}/blobs/{hashlib.sha256(data).hexdigest()}.incomplete"
hub.slow = 0.02
p = subprocess.Popen([BUILD + "/slipring", "pull", "a/cut"], env=env(), stdout=subprocess.DEVNULL)
for _ in range(500):
    if os.path.exists(blob) and os.path.getsize(blob) > 20000:
        break
    time.sleep(0.01)
p.kill()
p.wait()
hub.slow = 0
have = os.path.getsize(blob)
check(20000 < have < 200000 and not os.path.exists(where("a/cut") + "/refs/main"), "half a model is no model")
hub.asked.clear()
r = pull("a/cut", "--json")
check(json.loads(r.stdout)["downloaded"] == 200000 - have and hub.asked[1][1] == f"bytes={have}-", r.stdout)
is_whole("a/cut", ["m.gguf"])
for left, ranges in ((data[:777], False), (data + b"more", True), (data, True), (b"wrong" * 100, False)):
    shutil.rmtree(where("a/cut"))
    os.makedirs(os.path.dirname(blob))
    with open(blob, "wb") as f:
        f.write(left)
    hub.ranges = ranges
    r = pull("a/cut")
    check(r.returncode == 0, r.stderr)
    is_whole("a/cut", ["m.gguf"])
hub.ranges = True

# ---- a wrong hash: what came is deleted, and the next time is right
shutil.rmtree(where("a/cut"))
hub.repos["a/cut"]["m.gguf"] = data[:-1] + bytes([data[-1] ^ 1])
fails(pull("a/cut"), "do not have the hash that the hub names")
check(not os.listdir(where("a/cut") + "/blobs") and not os.path.exists(where("a/cut") + "/refs/main"), "deleted")
hub.repos["a/cut"]["m.gguf"] = data + b"x"
fails(pull("a/cut"), "sent more than the 200000 bytes that m.gguf has")
hub.repos["a/cut"]["m.gguf"] = data
check(pull("a/cut").returncode == 0, "right the next time")

# ---- two at once: one downloads, both succeed
shutil.rmtree(where("a/cut"))
hub.slow, before = 0.005, len(hub.asked)
two = [subprocess.Popen([BUILD + "/slipring", "pull", "a/cut"], env=env(), stdout=subprocess.DEVNULL) for _ in range(2)]
check([p.wait(60) for p in two] == [0, 0], "two at once")
hub.slow = 0
check(len([a for a in hub.asked[before:] if "/resolve/" in a[0]]) == 1, "one of them downloads")
is_whole("a/cut", ["m.gguf"])

# ---- a redirect to another host: it gets no token
other = Hub()
other.repos, other.list = hub.repos, hub.list
hub.status["redirect"] = other.url.replace("127.0.0.1", "localhost")
shutil.rmtree(where("a/cut"))
check(pull("a/cut", HF_TOKEN="secret").returncode == 0, "redirected")
check(len(other.asked) == 1 and other.asked[0][2] is None, f"no token for the other host: {other.asked}")
del hub.status["redirect"]

# ---- a full disk: a limit of the file's size stands in for it, or the sentence before it
r = subprocess.run(["bash", "-c", f"trap '' XFSZ; ulimit -f 50; exec {BUILD}/slipring pull a/cut"], capture_output=True,
                   text=True, env=env(HF_HUB_CACHE=home + "/full"))
fails(r, "cannot be written: File too large")
check(os.path.getsize(f"{home}/full/models--a--cut/blobs/{os.path.basename(blob)}") > 40000, "what came is kept")
hub.put("a/huge", {"m.gguf": b""})
hub.list["a/huge"]["siblings"][0].update(size=1 << 41, lfs={"sha256": "a" * 64, "size": 1 << 41})
fails(pull("a/huge"), "2.0 TiB more are to come, and the disk of")

# ---- hubs that lie
def lie(change, what):
    hub.put("a/lie", {"m.gguf": b"abc"})
    j = hub.list["a/lie"]
    hub.list["a/lie"] = change(j) or j
    r = pull("a/lie")
    fails(r, what)
    check(not os.path.exists(where("a/lie") + "/refs"), "a lie leaves no model")


def rename(to):
    return lambda j: j["siblings"][0].update(rfilename=to)


for bad in ("../x.gguf", "/etc/x.gguf", "a//b.gguf", "a/../../x.gguf", "./x.gguf", "x\n.gguf", "", "a/" * 20 + "x.gguf",
            "n" * 250 + ".gguf"):
    lie(rename(bad), "which is no path below a folder")
lie(lambda j: j.update(sha="main"), "has no commit")
lie(lambda j: j.update(siblings={}), "has no commit, or no list")
lie(lambda j: j["siblings"].append(dict(j["siblings"][0])), "lists m.gguf twice")
for change in ({"size": -1}, {"size": "3"}, {"sha256": "../../x"}, {"sha256": "A" * 64}, {"sha256": "a" * 63}):
    lie(lambda j: j["siblings"][0]["lfs"].update(change), "no size or no hash of m.gguf")
lie(lambda j: b"<html>", "what is no JSON")
lie(lambda j: b"[" * 100000, "what is no JSON")
lie(lambda j: j.clear(), "has no commit")

# ---- what the hub refuses, and wrong words
fails(pull("a/none"), "has no such model, revision or file: a/none (HTTP 404)")
hub.status["/api/models/a/q/revision/main"] = 401
fails(pull("a/q:Q4_K_M"), "make a token there and set HF_TOKEN")
j = json.loads(pull("a/q:Q4_K_M", "--json").stdout)
check(j["id"] == "a/q" and "HF_TOKEN" in j["error"], f"{j}")
check(pull("a/q:Q4_K_M", "--revision", "v2").returncode == 0, "another revision")
check(open(where("a/q") + "/refs/v2").read() == COMMIT, "refs/v2")
fails(pull("a/q", HF_ENDPOINT="ftp://x"), "it must begin with https:// or http://")
for words in ((), ("a/q", "b"), ("../x",), ("a/q:",), ("--what",), ("a/q", "--revision", "../x")):
    r = pull(*words)
    check(r.returncode == 2 and r.stderr.startswith("slipring pull: "), f"{words}: {r.returncode} {r.stderr}")
check("HF_ENDPOINT" in pull("--help").stdout, "help")
shutil.rmtree(home)
done()
