#!/usr/bin/env python3
"""slipring connect: what it prints, writes, takes out again and runs, and what it warns of.  The programs are
scripts that say how they were started; their settings lie in a HOME of our own."""
import http.server, json, os, subprocess, tempfile, threading, tomllib
from harness import BUILD, Programs, check, done, make_model

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


class Other(http.server.HTTPServer):
    """A server of chats alone, without tools."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a):
        pass

    def give(self, status, j):
        body = json.dumps(j).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.give(200, {"data": [{"id": "m", "max_model_len": 100000}]})

    def do_POST(self):
        tools = json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("tools")
        chat = self.path == "/v1/chat/completions"
        self.give(400 if chat and tools else 404, {"error": {"message": "\"auto\" needs a parser"}})


def tree(home):
    """Every folder and file below: {name: bytes}."""
    found = {}
    for at, folders, files in os.walk(home):
        found.update({os.path.join(at, n): None for n in folders})
        for n in files:
            with open(os.path.join(at, n), "rb") as f:
                found[os.path.join(at, n)] = f.read()
    return found


def main():
    home = tempfile.mkdtemp(prefix="slipring-test-")
    model = os.path.join(home, "model")
    make_model(model, template=TEMPLATE)
    bin_ = os.path.join(home, "bin")
    os.mkdir(bin_)
    for name in ("claude", "codex", "aider"):
        with open(f"{bin_}/{name}", "w") as f:
            f.write("#!/bin/sh\nenv | grep -E 'ANTHROPIC|CLAUDE|OPENAI|SLIPRING_API' | sort\nfor w; do echo \"word $w\"; done\n")
        os.chmod(f"{bin_}/{name}", 0o755)
    with Programs() as s:
        s.serve(model, "--load-format", "dummy", "--device", "null", "--served-model-name", "it's")
        env = dict(os.environ, HOME=home, PATH=bin_ + ":" + os.environ["PATH"])
        for k in ("SLIPRING_API_KEY", "VLLM_API_KEY"):
            env.pop(k, None)

        def connect(*words, url=s.url, code=0):
            r = subprocess.run([BUILD + "/slipring", "connect", *words, *(["--url", url] if url else [])], env=env,
                               capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
            check(r.returncode == code, f"{words}: {r.returncode} {r.stdout} {r.stderr}")
            return r

        # what is printed is what a shell takes, with a quote in the model's name
        r = connect("claude")
        took = subprocess.run(["sh", "-c", r.stdout + "\nenv"], capture_output=True, text=True, env=env).stdout
        for want in (f"ANTHROPIC_BASE_URL={s.url.rstrip('/')}", "ANTHROPIC_AUTH_TOKEN=none", "ANTHROPIC_MODEL=it's",
                     "CLAUDE_CODE_MAX_CONTEXT_TOKENS=256", "CLAUDE_CODE_ATTRIBUTION_HEADER=0"):
            check(want in took.split("\n"), f"{want}: {took}")
        check("the context has 256 tokens" in r.stderr and "Warning: the model gets" not in r.stderr, r.stderr)
        other = Other()
        r = connect("codex", url=other.url)
        check("Codex CLI speaks /v1/responses, which this server does not have." in r.stderr, r.stderr)
        check("the model gets no tools: \"auto\" needs a parser" in r.stderr and "context" not in r.stderr, r.stderr)
        check("Warning" not in connect("env", url=other.url).stderr, "libraries are not warned")
        for program in ("cline", "continue", "openwebui", "opencode", "aider", "codex"):
            check(s.url.rstrip("/") in connect(program).stdout, program)
        check("apiBase" in connect("continue").stdout, "continue")

        # started with it, and with words of one's own
        r = connect("claude", "--run", url=s.url + "/v1/")
        check(f"ANTHROPIC_BASE_URL={s.url.rstrip('/')}\n" in r.stdout, r.stdout)
        # the settings file's env would win over the environment, --settings wins over both
        words = r.stdout.split("\n")
        given = json.loads(words[words.index("word --settings") + 1][len("word "):])
        check(given["env"]["ANTHROPIC_BASE_URL"] == s.url.rstrip("/") and given["env"]["ANTHROPIC_MODEL"] == "it's", f"{given}")
        r = subprocess.run([BUILD + "/slipring", "connect", "aider", "--url", s.url, "--run", "--", "-x", "--write"],
                           env=env, capture_output=True, text=True)
        check(r.stdout.endswith("word --model\nword openai/it's\nword -x\nword --write\n"), r.stdout)
        r = connect("codex", "--run", "--api-key", "k")
        check("SLIPRING_API_KEY=k\n" in r.stdout and f"word model_providers.slipring.base_url={s.url.rstrip('/')}/v1\n"
              in r.stdout and "word model_context_window=256\n" in r.stdout, r.stdout)
        os.unlink(f"{bin_}/aider")
        env["PATH"] = bin_ + ":/usr/bin:/bin"
        check("aider cannot be started" in connect("aider", "--run", code=1).stderr, "no such program")

        # JSON: merged, the old values come back, changes made meanwhile stay
        path = f"{home}/.claude/settings.json"
        connect("claude", "--write")
        check(json.load(open(path))["env"]["ANTHROPIC_MODEL"] == "it's" and os.stat(path).st_mode & 0o77 == 0, "new file")
        connect("claude", "--undo", url=None)
        check(not os.path.exists(path), "a file that was not there goes")
        os.mkdir(os.path.dirname(path))
        with open(path, "w") as f:
            json.dump({"theme": "dark", "env": {"ANTHROPIC_MODEL": "old", "X": "1"}}, f)
        before = open(path).read()
        connect("claude", "--write")
        connect("claude", "--write", "--api-key", "second")
        check(open(path + ".before-slipring").read() == before, "the first file is kept")
        j = json.load(open(path))
        check(j["theme"] == "dark" and j["env"]["X"] == "1" and j["env"]["ANTHROPIC_AUTH_TOKEN"] == "second", f"{j}")
        j["theme"] = "light"
        json.dump(j, open(path, "w"))
        connect("claude", "--undo", url=None)
        check(json.load(open(path)) == {"theme": "light", "env": {"ANTHROPIC_MODEL": "old", "X": "1"}}, open(path).read())
        check(not os.path.exists(path + ".before-slipring"), "nothing is left")
        with open(path, "w") as f:
            f.write("// mine\n{}")
        check("is no plain JSON object (line 1)" in connect("claude", "--write", code=1).stderr, "comments")
        check(open(path).read() == "// mine\n{}", "left as it was")
        path = f"{home}/.config/opencode/opencode.json"
        connect("opencode", "--write")
        j = json.load(open(path))
        # opencode 1.18 refuses its file without both (its config schema: provider.*.models.*.limit)
        check(j["provider"]["slipring"]["models"]["it's"]["limit"] == {"context": 256, "output": 64}, f"{j}")
        # opencode writes this member itself where it is not; undo would then leave the file
        check(j["$schema"] == "https://opencode.ai/config.json", f"{j}")
        connect("opencode", "--write", url=other.url)
        check(list(json.load(open(path))["provider"]["slipring"]["models"]) == ["m"], open(path).read())
        connect("opencode", "--undo", url=None)
        check(not os.path.exists(path), "opencode's file goes")

        # lines between marks
        path = f"{home}/.aider.conf.yml"
        with open(path, "w") as f:
            f.write("dark-mode: true")
        connect("aider", "--write")
        with open(path, "a") as f:
            f.write("pretty: false\n")
        connect("aider", "--undo", url=None)
        check(open(path).read() == "dark-mode: true\npretty: false\n", "what was added meanwhile stays")
        os.unlink(path)
        path = f"{home}/.codex/slipring.config.toml"
        # Codex 0.169: --profile NAME reads NAME.config.toml, and refuses [profiles.NAME] in config.toml
        check("SLIPRING_API_KEY=none codex --profile slipring\n" in connect("codex", "--write").stdout, "the command")
        connect("codex", "--write")
        t = tomllib.load(open(path, "rb"))
        check(t["model_providers"]["slipring"]["base_url"] == s.url.rstrip("/") + "/v1", f"{t}")
        del t["model_providers"]
        check(t == {"model_provider": "slipring", "model": "it's", "model_context_window": 256,
                    "web_search": "disabled"}, f"{t}")
        connect("codex", "--undo", url=None)

        # every file is as it was, byte by byte, after one call and after two
        for program, file, text in (("claude", ".claude/settings.json", '{ "theme":"dark" , "env":{"X":"1"}}'),
                                    ("codex", ".codex/slipring.config.toml", 'model = "o"\n[x]\ny = 1'),
                                    ("opencode", ".config/opencode/opencode.json", '{"theme": "x",\n\n"provider":{}}\n'),
                                    ("aider", ".aider.conf.yml", "dark-mode: true")):
            for old in (None, text):
                for urls in ((s.url,), (s.url, other.url)):
                    env["HOME"] = tempfile.mkdtemp(dir=home)
                    if old:
                        os.makedirs(os.path.dirname(f"{env['HOME']}/{file}"), exist_ok=True)
                        with open(f"{env['HOME']}/{file}", "w") as f:
                            f.write(old)
                    before = tree(env["HOME"])
                    for url in urls:
                        connect(program, "--write", url=url)
                    check(tree(env["HOME"]) != before, f"{program} is written")
                    connect(program, "--undo", url=None)
                    check(tree(env["HOME"]) == before, f"{program}, {old}, {len(urls)}: {tree(env['HOME'])}")
        env["HOME"] = home

        # what cannot be
        check("start a server with slipring serve" in connect("env", url="http://127.0.0.1:9", code=1).stderr, "no server")
        r = connect("cursor", url=None, code=2)
        check("cursor is no program that is known here" in r.stderr and all(
            f" {n}" in r.stderr for n in ("claude", "codex", "opencode", "aider", "openwebui", "env")), r.stderr)
        check("has no model m" in connect("env", "--model", "m", code=1).stderr, "no model")
        check("nothing to take out" in connect("aider", "--undo", url=None, code=1).stderr, "nothing to undo")
        for words in (("what",), (), ("cline", "--write"), ("cline", "--run"), ("claude", "--run", "--write"),
                      ("claude", "--url"), ("env", "more")):
            check(connect(*words, url=None, code=2), f"{words}")
        check("usage" in connect("--help", url=None).stdout, "help")
    subprocess.run(["rm", "-rf", home])
    done()


main()
