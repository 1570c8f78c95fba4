#!/usr/bin/env python3
"""Who is let in, as whom, and from which page: each route and method with no key, wrong keys and right ones, in
each way to set keys; whose cached prefixes a key shares; how low a priority it may ask for; which Host is
served without a key.  On the null device; an adapter of another user needs root."""
import http.client, pwd, re, stat, subprocess
from harness import *

METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE")
TEXT = {"prompt": "a b c", "max_tokens": 1}
ROUTES = {  # path: methods, needs a key, body of a POST, status with a right key
    "/v1/chat/completions": ("POST", True, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, 200),
    "/v1/completions": ("POST", True, TEXT, 200),
    "/v1/chat/completions/input_tokens": ("POST", True, {"messages": [{"role": "user", "content": "a"}]}, 200),
    "/apply-template": ("POST", True, {"messages": [{"role": "user", "content": "a"}]}, 200),
    "/v1/messages": ("POST", True, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, 200),
    "/v1/messages/count_tokens": ("POST", True, {"messages": [{"role": "user", "content": "a"}]}, 200),
    "/v1/responses": ("POST", True, {"input": "a", "max_output_tokens": 1}, 200),
    "/v1/responses/input_tokens": ("POST", True, {"input": "a"}, 200),
    "/": ("GET", False, None, 200),
    "/ui": ("GET", False, None, 200),
    "/ui/live": ("GET", True, None, 404),                 # asked for a daemon that is not there
    "/ui/history": ("GET", True, None, 200),
    "/ui/knob": ("POST", True, {"knob": "max-num-seqs", "value": "8"}, 403),
    "/api/hello": ("GET", False, None, 200),
    "/v1/models": ("GET", True, None, 200),
    "/v1/models/{model}": ("GET", True, None, 404),       # asked for a model that is not there
    "/tokenize": ("POST", True, {"prompt": "a"}, 200),
    "/detokenize": ("POST", True, {"tokens": [1]}, 200),
    "/health": ("GET", False, None, 200),
    "/v1/health": ("GET", False, None, 200),
    "/live": ("GET", False, None, 200),
    "/ping": ("GET POST", False, None, 200),
    "/load": ("GET", True, None, 200),
    "/version": ("GET", False, None, 200),
    "/metrics": ("GET", False, None, 200),
    "/inference/v1/generate": ("POST", True, {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}}, 200),
    "/v1/completions/render": ("POST", True, TEXT, 200),
    "/v1/chat/completions/render": ("POST", True, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, 200),
    "/v1/messages/render": ("POST", True, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, 200),
    "/v1/responses/render": ("POST", True, {"input": "a", "max_output_tokens": 1}, 200),
}
VECTORS = ("/v1/embeddings", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/classify", "/pooling")
KEY_FILE = "# keys\nka alice\nkb bob\n\nkc alice\nurgent carol min-priority=-10\n"
NOBODY = 65534


def bearer(key):
    return {"Authorization": "Bearer " + key}


def of_x(key):
    return {"x-api-key": key}


GIVEN = [  # what a request carries, and whether ka being a key lets it in
    ({}, False), (bearer("wrong"), False), (of_x("wrong"), False), (bearer(""), False), (bearer("ka"), True),
    (of_x("ka"), True), ({**bearer("ka"), **of_x("ka")}, True), ({**bearer("ka"), **of_x("kb")}, False),
    ({**bearer("wrong"), **of_x("ka")}, False), ({"Authorization": "ka"}, False), ({"Authorization": "Basic ka"}, False),
]


def ways(p):
    """Each way to set the keys ka and kb: flags, environment.  Two variables: as config has them, both count."""
    named, nameless = os.path.join(p.dir, "named"), os.path.join(p.dir, "nameless")
    with open(named, "w") as f:
        f.write(KEY_FILE)
    with open(nameless, "w") as f:
        f.write("ka\nkb\n")
    return {
        "--api-key": (["--api-key", "ka", "kb"], {}),
        "key file with names": (["--api-key-file", named], {}),
        "key file without names": (["--api-key-file", nameless], {}),
        "environment": ([], {"VLLM_API_KEY": "ka", "SLIPRING_API_KEY": "kb"}),
    }


class Adapter:
    """The adapter for a while, with flags and environment of its own."""

    def __init__(self, p, *args, env=None):
        self.p, self.args, self.env = p, args, env or {}

    def __enter__(self):
        before = self.p.env
        self.p.env = {**before, **self.env}
        try:
            self.p.adapter("--enable-prompt-tokens-details", *self.args)
        finally:
            self.p.env = before
        return self.p

    def __exit__(self, *_):
        stop(self.p.procs.pop("slipring-http"))


def stop(process):
    process.terminate()
    process.wait(20)


# ---- who is let in ----------------------------------------------------------------------------------

def the_list_is_whole():
    """Every route of the adapter is in ROUTES, and whether it needs a key."""
    def read(name):
        with open(os.path.join(HERE, "../adapters/http", name)) as f:
            return f.read()
    def read_dialect(name):
        agents = os.path.join("agents", name)
        return read(agents if os.path.exists(os.path.join(HERE, "../adapters/http", agents)) else name)
    rows = re.findall(r'^\t\{ (NULL|"/[^"]*"), ([A-Z |]+), (true|false), .* (NULL|&dialect_\w+) \},$', read("routes.c"), re.M)
    there = {}
    for path, methods, is_open, dialect in rows:
        if path == "NULL":                    # a dialect has its path
            path = re.search(r'\.path = ("[^"]*")', read_dialect(dialect[len("&dialect_"):] + ".c")).group(1)
        there[path.strip('"')] = (methods.replace(" | ", " "), is_open == "false")
    vectors = {path: there.pop(path) for path in VECTORS}     # another kind of server has them: e2e_vectors.py
    check(set(vectors.values()) == {("POST", True)}, f"routes of vectors need a key: {vectors}")
    check(there == {path: r[:2] for path, r in ROUTES.items()}, f"the routes are those of routes.c: {there}")


def expected(path, method, let_in):
    methods, keyed, _, status = ROUTES.get(path, ("", True, None, 404))
    if keyed and not let_in:
        return 401
    if path not in ROUTES:
        return 404
    return status if method.replace("HEAD", "GET") in methods.split() else 405


def one_request(p, path, method, headers, let_in, what):
    body = ROUTES[path][2] if path in ROUTES and method == "POST" else None
    status, got, text = p.ask(method, path.replace("{model}", "nobody").replace("/ui/live", "/ui/live?replica=99"), body, headers)
    want = expected(path, method, let_in)
    check(status == want, f"{what}: {method} {path} with {headers}: {status}, not {want}: {text[:200]}")
    if status == 401:
        check(got["www-authenticate"] == "Bearer", f"{what}: {method} {path}: a 401 says how")
        e = json.loads(text)["error"] if method != "HEAD" else {"code": 401}
        check(401 == e.get("code") or "invalid_api_key" == e.get("code") or e["type"] == "authentication_error",
              f"{what}: {method} {path}: {text[:200]}")


def every_route_and_method(p):
    """The matrix.  A path that is not there is not told from one that is without a key."""
    paths = [*ROUTES, "/nothing"]
    for what, (args, env) in ways(p).items():
        with Adapter(p, *args, env=env):
            for path in paths:
                for method in METHODS:
                    for headers, let_in in GIVEN:
                        one_request(p, path, method, headers, let_in, what)
                one_request(p, path, "GET", bearer("kb"), True, what)
                one_request(p, path, "GET", of_x("kb"), True, what)
    with Adapter(p):
        for path in paths:
            for method in METHODS:
                for headers, _ in GIVEN:
                    one_request(p, path, method, headers, True, "no key set")


def environment_or_flag(p):
    with Adapter(p, "--api-key", "ka", env={"VLLM_API_KEY": "kb", "SLIPRING_API_KEY": "kd"}):
        for key, status in (("ka", 200), ("kb", 401), ("kd", 401)):
            check(p.ask("GET", "/v1/models", headers=bearer(key))[0] == status, f"--api-key wins over the environment: {key}")
    with Adapter(p, "--api-key-file", os.path.join(p.dir, "named"), env={"VLLM_API_KEY": "kd"}):
        for key, status in (("ka", 200), ("kd", 200), ("ke", 401)):
            check(p.ask("GET", "/v1/models", headers=bearer(key))[0] == status, f"a file adds to the environment: {key}")


# ---- as whom ----------------------------------------------------------------------------------------

prompts = 0


def new_prompt():
    """Some 700 tokens that nobody asked before."""
    global prompts
    prompts += 1
    return [1000 + prompts] + [100 + (i * 7 + prompts) % 900 for i in range(700)]


def cached(ask, prompt, headers, **more):
    """How many of its tokens came from the cache."""
    status, _, text = ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1, **more}, headers)
    check(status == 200, f"{headers}: {status} {text[:200]}")
    return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def keys_are_apart(ask, what):
    q = new_prompt()
    check(cached(ask, q, bearer("ka")) == 0, f"{what}: nobody asked this before")
    mine = cached(ask, q, bearer("ka"))
    check(mine > 600, f"{what}: a key finds its own prefix: {mine}")
    other = cached(ask, q, bearer("kb"))
    check(other == 0, f"{what}: another key finds none: {other}")
    check(cached(ask, q, of_x("kb")) > 600, f"{what}: x-api-key is the same key")
    return q


def salts_are_apart(ask, what, headers):
    q = new_prompt()
    for salt in ("one", "two", None):
        more = {"cache_salt": salt} if salt else {}
        first, again = cached(ask, q, headers, **more), cached(ask, q, headers, **more)
        check(first == 0 and again > 600, f"{what}: cache_salt {salt}: {first}, then {again}")


def heard(ask):
    return int(re.search(r"^slipring_http_tenants_heard\S* (\d)", ask("GET", "/metrics")[2], re.M).group(1))


def whose_prefixes(p):
    for what, (args, env) in ways(p).items():
        with Adapter(p, *args, env=env):
            check(heard(p.ask) == 1, f"{what}: the daemon hears its own user's tenants")
            check("takes no tenants" not in p.log("slipring-http"), f"{what}: and the log has no warning")
            q = keys_are_apart(p.ask, what)
            if "with names" in what:
                check(cached(p.ask, q, bearer("kc")) > 600, "keys of one name share")
            salts_are_apart(p.ask, what, bearer("ka"))
    with Adapter(p):
        q = new_prompt()
        check(cached(p.ask, q, {}) == 0 and cached(p.ask, q, bearer("any")) > 600, "without keys all share")
        salts_are_apart(p.ask, "without keys", {})


def scope_as_given(p, scope):
    """With --prefix-cache-scope uid or global, keys share."""
    for what, (args, env) in ways(p).items():
        with Adapter(p, *args, env=env):
            q = new_prompt()
            first, other = cached(p.ask, q, bearer("ka")), cached(p.ask, q, bearer("kb"))
            check(first == 0 and other > 600, f"{what}, scope {scope}: keys share: {first}, {other}")
            salts_are_apart(p.ask, f"{what}, scope {scope}", bearer("ka"))


# ---- an adapter of another user ---------------------------------------------------------------------

class Foreign:
    """The adapter as nobody, in the group that may connect: as the shipped units have it."""

    def __init__(self, p, model):
        self.p, self.model, self.dir = p, model, os.path.join(p.dir, "nobody")

    def __enter__(self):
        os.makedirs(self.dir, exist_ok=True)
        os.chown(self.dir, NOBODY, -1)
        ready, args = os.path.join(self.dir, "url"), ["--api-key-file", os.path.join(self.p.dir, "named")]
        self.log = os.path.join(self.dir, "log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [os.path.join(BUILD, "slipring-http"), self.model, "--port", "0", "--ready-file", ready, *args,
                 "--enable-prompt-tokens-details"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.p.env, user=NOBODY, group=0, extra_groups=[])
        check(wait_for(lambda: os.path.exists(ready), 30), "an adapter of another user starts")
        with open(ready) as f:
            self.p.port = int(f.read().strip().rsplit(":", 1)[1])
        check(wait_for(lambda: self.p.ask("GET", "/health")[0] == 200, 20), "and finds the daemon")
        return self

    def said(self):
        with open(self.log) as f:
            return f.read()

    def __exit__(self, *_):
        stop(self.process)


def why_no_foreigner(model):
    if os.geteuid() != 0:
        return "another user's adapter needs root"
    try:
        r = subprocess.run([os.path.join(BUILD, "slipring-http"), "--version"], user=NOBODY, group=0, extra_groups=[],
                           capture_output=True)
        return None if r.returncode == 0 else "nobody cannot run the programs here"
    except PermissionError:
        return "nobody cannot enter the folder of the programs"


def of_another_user():
    """Keys are apart whether or not the daemon hears who asks; if it does not, log and metrics say so."""
    why = why_no_foreigner(MODEL)
    if why:
        print(f"SKIP of_another_user: {why}")
        return
    name = pwd.getpwuid(NOBODY).pw_name
    for args, hears, apart in (([], 0, True), (["--gateway-user", name], 1, True),
                               (["--prefix-cache-scope", "uid"], 0, False), (["--prefix-cache-scope", "tenant"], 0, True)):
        with Programs() as p:
            model = os.path.join(p.dir, os.path.basename(MODEL))
            shutil.copyfile(MODEL, model)
            os.chmod(p.dir, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP)
            ways(p)
            p.daemon(model, "--device", "null", *args)
            with Foreign(p, model) as f:
                check(heard(p.ask) == hears, f"{args}: tenants are heard: {hears}")
                warned = f"start it with --gateway-user and the name of this user (uid {NOBODY})" in f.said()
                check(warned == (not hears), f"{args}: the log warns if not:\n{f.said()}")
                if apart:
                    keys_are_apart(p.ask, f"another user's adapter, daemon {args}")
                else:
                    q = new_prompt()
                    check(cached(p.ask, q, bearer("ka")) == 0 and cached(p.ask, q, bearer("kb")) > 600, f"{args}: shared")
                salts_are_apart(p.ask, f"another user's adapter, daemon {args}", bearer("ka"))


# ---- how urgent -------------------------------------------------------------------------------------

def priorities():
    with Programs() as p:
        named = ways(p)["key file with names"][0]
        p.daemon("--device", "null", "--scheduling-policy", "priority")
        with Adapter(p, "--scheduling-policy", "priority", *named):
            for key, priority, floor in (("ka", 0, None), ("ka", 1000, None), ("ka", -1, 0), ("ka", -1000, 0),
                                         ("urgent", -10, None), ("urgent", 3, None), ("urgent", -11, -10)):
                status, _, text = p.ask("POST", "/v1/completions", {**TEXT, "priority": priority}, bearer(key))
                if floor is None:
                    check(status == 200, f"{key}: priority {priority}: {status} {text[:200]}")
                else:
                    check(status == 400 and f"at least {floor}, got {priority}" in text, f"{key}: {priority}: {text[:200]}")
            with open(named[1], "a") as f:
                f.write("kd dora max-priority=3\n")
            p.procs["slipring-http"].send_signal(signal.SIGHUP)
            check(wait_for(lambda: "line 7" in p.log("slipring-http"), 10), "an unknown word is an error with its line")
            check(p.ask("GET", "/v1/models", headers=bearer("ka"))[0] == 200, "and the old keys stay")
        with Adapter(p, "--scheduling-policy", "priority"):
            check(p.ask("POST", "/v1/completions", {**TEXT, "priority": -1})[0] == 400, "nor without any key")
            check(p.ask("POST", "/v1/completions", {**TEXT, "priority": 1})[0] == 200, "later than others: anybody")


# ---- from which page --------------------------------------------------------------------------------

def raw(sock, text):
    """The status line and body of what is answered to these bytes."""
    with sock:
        sock.settimeout(20)
        sock.sendall(text)
        got = b""
        while True:
            b = sock.recv(65536)
            if not b:
                return int(got.split(b" ", 2)[1]), got.decode()
            got += b


def by_host(p, host, target="/version", uds=None):
    if uds:
        s = socket.socket(socket.AF_UNIX)
        s.connect(uds)
    else:
        s = socket.create_connection(("127.0.0.1", p.port))
    line = f"Host: {host}\r\n" if host is not None else ""
    return raw(s, f"GET {target} HTTP/1.{1 if host is not None else 0}\r\n{line}Connection: close\r\n\r\n".encode())


def hosts(p):
    ours = ["localhost", "LOCALHOST:1", "a.localhost.", "127.0.0.1:8000", "[::1]:8000", "", None, socket.gethostname()]
    foreign = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "a.example"]
    with Adapter(p):
        for host in ours:
            check(by_host(p, host)[0] == 200, f"Host {host} is ours")
        for host in foreign:
            for path in ROUTES:
                status, text = by_host(p, host, path.replace("{model}", "nobody"))
                check(status == 421 and "--allowed-hosts" in text, f"Host {host}: {path}: {status} {text[-300:]}")
        check(by_host(p, "localhost", "http://evil.example/version")[0] == 421, "nor as the host of a URL")
        check(by_host(p, None, "http://evil.example/version")[0] == 421, "of HTTP/1.0 too")
        check(by_host(p, "localhost", "http://localhost/version")[0] == 200, "a URL of ours")
        check(p.ask("POST", "/v1/completions", TEXT, {"Host": "evil.example", "Origin": "http://evil.example"})[0] == 421,
              "a page that points its name here gets nothing")
    with Adapter(p, "--allowed-hosts", "a.example", "b.example"):
        for host, status in (("A.example:80", 200), ("b.example.", 200), ("c.example", 421), ("localhost", 200)):
            check(by_host(p, host)[0] == status, f"--allowed-hosts: {host}")
    for args in (["--allowed-hosts", "*"], ["--api-key", "ka"]):
        with Adapter(p, *args):
            check(by_host(p, "evil.example")[0] == 200, f"{args}: any Host")
    p.run("slipring-http", "--uds", os.path.join(p.dir, "http.sock"))
    path = os.path.join(p.dir, "http.sock")
    def listens():                           # the path is there a moment before
        with socket.socket(socket.AF_UNIX) as s:
            return s.connect_ex(path) == 0
    check(wait_for(listens, 20), "--uds")
    check(by_host(p, "evil.example", uds=path)[0] == 200, "a Unix socket serves any Host: no browser reaches it")
    stop(p.procs.pop("slipring-http"))
    r = subprocess.run([os.path.join(BUILD, "slipring-http"), "--port", "0", "--allowed-hosts", "http://a.example"],
                       env=p.env, capture_output=True, text=True, timeout=60)
    check(r.returncode and "without scheme" in r.stderr, f"a URL is no host: {r.stderr}")


def origins(p):
    with Adapter(p):
        before = p.log("slipring-http").count("a web page of")
        for i in range(3):
            p.ask("GET", "/version", headers={"Origin": "https://page.example"})
            p.ask("GET", "/version", headers={"Origin": f"http://127.0.0.1:{p.port}"})
        said = p.log("slipring-http")
        check(said.count("a web page of") == before + 1, "one line for an origin, none for our own")
        check("""--allowed-origins '["https://page.example"]'""" in said, "it names the flag")


def allowed_origins(p):
    page, other = {"Origin": "https://page.example"}, {"Origin": "https://other.example"}
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
    with Adapter(p, "--allowed-origins", '["https://page.example"]', "--api-key", "ka"):
        status, headers, text = p.ask("OPTIONS", "/v1/completions", headers={**page, **asking})
        check((status, text) == (200, "OK") and headers["access-control-allow-origin"] == "https://page.example",
              f"a preflight needs no key: {status} {text}")
        status, headers, text = p.ask("OPTIONS", "/v1/completions", headers={**other, **asking})
        check((status, text) == (400, "Disallowed CORS origin"), f"a preflight of another: {status} {text}")
        check("access-control-allow-origin" not in headers, "no line for it")
        for key, status in (({}, 401), (of_x("ka"), 200)):
            r = p.ask("POST", "/v1/completions", TEXT, {**page, **key})
            check(r[0] == status and r[1]["access-control-allow-origin"] == "https://page.example", f"the page reads a {r[0]}")
            r = p.ask("POST", "/v1/completions", TEXT, {**other, **key})
            check(r[0] == status and "access-control-allow-origin" not in r[1], f"another page does not read a {r[0]}")


def below_a_root(p):
    with Adapter(p, "--root-path", "/a/b//", "--enable-request-id-headers"):
        for path, status in (("/version", 200), ("/a/b/version", 200), ("/a/version", 404), ("/a/bversion", 404),
                             ("/a/b", 404), ("/a/b/", 200), ("/a/b//version", 404)):
            check(p.ask("GET", path)[0] == status, f"--root-path: {path}")
        for n, status in ((1, 200), (256, 200), (257, 400)):
            r = p.ask("POST", "/a/b/v1/completions", TEXT, {"X-Request-Id": "i" * n})
            check(r[0] == status and (status != 200 or r[1]["x-request-id"] == "i" * n), f"an id of {n}: {r[0]}")
        for bad in ("a b", "a\x7f", "a\xe9"):
            check(p.ask("POST", "/v1/completions", TEXT, {"X-Request-Id": bad})[0] == 400, f"the id {bad!r}")
        p.ask("GET", "/health")
        check('"GET /health" 200' not in p.log("slipring-http"), "a probe that succeeds is not logged")
        p.ask("POST", "/health", TEXT)
        check(wait_for(lambda: '"POST /health" 405' in p.log("slipring-http"), 5), "one that fails is")


def main():
    need_model()
    the_list_is_whole()
    with Programs() as p:
        p.daemon("--device", "null")
        every_route_and_method(p)
        environment_or_flag(p)
        whose_prefixes(p)
        hosts(p)
        origins(p)
        allowed_origins(p)
        below_a_root(p)
    for scope in ("uid", "global"):
        with Programs() as p:
            p.daemon("--device", "null", "--prefix-cache-scope", scope)
            scope_as_given(p, scope)
    of_another_user()
    priorities()
    done()


main()
