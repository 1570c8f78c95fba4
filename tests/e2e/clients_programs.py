#!/usr/bin/env python3
"""Whole tool turns of agents as people install them, with the settings that `slipring connect` writes: Claude Code
over Messages, Codex CLI over Responses, opencode over chat completions.  The HOME is a fresh one, and is compared with
itself after --undo.  The model is scripted: a proxy adds to each request a grammar of one choice, first a thought, text
and a call, then the end.  `make clients-agents` installs them; one that is not there is skipped with a line."""
import http.server, re, shlex
from clients import *

TEMPLATE = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for t in m.tool_calls or [] %}{{ t.function | tojson }}"
            "{% endfor %}\n{% endfor %}[assistant] ")
SAID = "All done: it said so."
QUESTION = "What does the tool say?"
BIN = os.path.join(NODE, "node_modules/.bin")
CONNECT = (os.path.join(BUILD, "slipring"), "connect")
LONGEST = 120                                                 # seconds of one program
RESULTS = ('"tool_result"', '"function_call_output"', '"role": "tool"')
# No program asks its maker's servers for a newer release, or tells them of its use.
QUIET = {"DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
         "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
         "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_SHARE": "1"}
# Where it asks, the call that the model makes, the program's words, and settings of its user that name another server.
PROGRAMS = {
    "claude": ("/v1/messages", ("Bash", {"command": "touch called", "description": "touch"}), ["-p", QUESTION, "--allowedTools", "Bash"],
               (".claude/settings.json", '{ "env":{"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "ANTHROPIC_MODEL":"x"}}')),
    "codex": ("/v1/responses", ("exec_command", {"cmd": "touch called"}),
              ["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", QUESTION],
              (".codex/config.toml", 'model = "x"\nmodel_provider = "other"\n[model_providers.other]\nname = "other"\n'
               'base_url = "http://127.0.0.1:9/v1"\nwire_api = "responses"')),
    "opencode": ("/v1/chat/completions", ("bash", {"command": "touch called", "description": "touch"}), ["run", QUESTION],
                 (".config/opencode/opencode.json", '{"model": "other/x",\n\n"share":"disabled"}\n')),
}
RUN = ("claude", "codex")                                     # what connect --run starts


class Script(http.server.BaseHTTPRequestHandler):
    """Passes requests on; those with tools say what the model is to say."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self):
        n = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(n) if n else None
        path = self.path.split("?")[0]
        if path != self.server.route:
            return body
        d = json.loads(body)
        if d.get("tools"):
            done = any(x in json.dumps(d["input" if "input" in d else "messages"]) for x in RESULTS)
            call = json.dumps(dict(zip(("name", "arguments"), self.server.call)))
            said = f"<think>Hm.</think>\nI look. <tool_call>\n{call}\n</tool_call>"
            d["structured_outputs"] = {"choice": [SAID if done else said]}
            self.server.turns.append(done)
        elif not any(k in d for k in ("response_format", "output_config", "text")):
            d["structured_outputs"] = {"choice": ["A title"]}
        return json.dumps(d)

    def pass_on(self):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        keep = {k: v for k, v in self.headers.items() if k.lower() not in ("content-length", "host", "accept-encoding", "connection")}
        c.request(self.command, self.path, self.body(), {**keep, "Host": "localhost"})
        r = c.getresponse()
        data = r.read()
        if r.status != 200 and self.headers.get("content-length") != "2":     # {}: connect asks whether there is such a path
            self.server.errors.append((self.command, self.path, r.status, data[:300]))
        self.send_response(r.status)
        self.send_header("content-type", r.headers.get("content-type", "application/json"))
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data)
        c.close()

    do_GET = do_POST = do_HEAD = pass_on


def bounded(words, **how):
    """(exit code, stdout, stderr) of a program that has LONGEST seconds; what it started ends with it."""
    p = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         start_new_session=True, **how)
    late = threading.Timer(LONGEST, os.killpg, (p.pid, signal.SIGKILL))
    late.start()
    try:
        out, err = p.communicate()
    finally:
        late.cancel()
        try:
            os.killpg(p.pid, signal.SIGKILL)                  # what it left behind
        except ProcessLookupError:
            pass
    return p.returncode, out, err


def tree(home):
    """Every folder and file below: {name: bytes, or None}."""
    found = {}
    for at, folders, files in os.walk(home):
        found.update({os.path.relpath(os.path.join(at, n), home): None for n in folders})
        for n in files:
            path = os.path.join(at, n)
            with open(path, "rb") if not os.path.islink(path) else open(os.devnull, "rb") as f:
                found[os.path.relpath(path, home)] = f.read()
    return found


class Agent:
    """One program, in a HOME and a folder of its own, before a server that speaks by the script."""

    def __init__(self, p, name, own):
        self.name, (route, call, self.words, (path, text)) = name, PROGRAMS[name]
        self.home, self.work = tempfile.mkdtemp(dir=p.dir), tempfile.mkdtemp(dir=p.dir)
        if own:
            os.makedirs(os.path.dirname(os.path.join(self.home, path)))
            with open(os.path.join(self.home, path), "w") as f:
                f.write(text)
        self.env = {"PATH": BIN + ":" + os.environ["PATH"], "HOME": self.home, "TERM": "dumb", **QUIET}
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
        self.server.port, self.server.route, self.server.call = p.port, None, call
        self.server.turns, self.server.errors, self.route = [], [], route
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def connect(self, *words):
        code, out, err = bounded([*CONNECT, self.name, *words], env=self.env, cwd=self.work)
        check(code == 0, f"connect {self.name} {words}: {out} {err}")
        return out

    def turn(self, words, env):
        """The question, a call of the program's own tool, its result, the answer."""
        self.server.turns, self.server.errors, self.server.route = [], [], self.route
        code, out, err = bounded(words, env={**self.env, **env}, cwd=self.work)
        self.server.route = None                              # what connect asks is not scripted
        called = os.path.join(self.work, "called")
        check(code == 0 and SAID in out and self.server.turns == [False, True] and os.path.exists(called),
              f"{words}: {code} {self.server.turns} {self.server.errors}\n{out[-2000:]}\n{err[-2000:]}")
        os.unlink(called)
        return f"good; {self.route}" + (f"; refused: {self.server.errors}" if self.server.errors else "")


def written(p, name, own):
    """A turn from what --write wrote, then --undo: the HOME is as it was, but for what the program made itself."""
    a = Agent(p, name, own)
    before = tree(a.home)
    said = a.connect("--write", "--url", a.url)
    wrote = tree(a.home)
    check(wrote != before, "--write writes")
    # the command that connect names, or the program's own name
    named = re.search(r"uses it with:\n  (.*)", said)
    words, env = shlex.split(named[1]) if named else [name], {}
    while "=" in words[0]:
        env.update([words.pop(0).split("=", 1)])
    outcome = a.turn([*words, *a.words], env)
    after = tree(a.home)
    a.connect("--undo")
    now = tree(a.home)
    ours = {k for k in wrote if k not in before}
    left = {k for k in ours if k in now and (now[k] is not None or not any(f.startswith(k + "/") for f in now))}
    check(not left, f"--undo leaves {left}")
    changed = {k for k in before if before[k] != now.get(k, 0)}
    changed |= {k for k in {*after, *now} - ours - {*before} if after.get(k, 0) != now.get(k, 0)}
    check(not changed, f"--undo changed {[(k, before.get(k), now.get(k)) for k in changed]}")
    a.server.shutdown()
    return f"--write {'beside' if own else 'without'} settings of one's own: {outcome}"


def started(p, name):
    """A turn with --run in a HOME whose settings name another server; no file of them changes."""
    a = Agent(p, name, True)
    before = tree(a.home)
    outcome = a.turn([*CONNECT, name, "--url", a.url, "--run", "--", *a.words], {})
    now = tree(a.home)
    check(all(now.get(k, 0) == v for k, v in before.items()), "--run changes no settings")
    a.server.shutdown()
    return f"--run: {outcome}"


def main():
    with Programs() as p:
        model = os.path.join(p.dir, "model")
        make_model(model, template=TEMPLATE, context=131072)
        p.serve(model, "--load-format", "dummy", "--device", "null", "--max-num-seqs", 8, "--served-model-name", "smol",
                "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
        for name in sys.argv[2:] or PROGRAMS:
            if not os.path.exists(os.path.join(BIN, name)):
                print(f"SKIP: {name} is not installed for Node")
                continue
            version = bounded([os.path.join(BIN, name), "--version"], env={**os.environ, **QUIET, "HOME": p.dir})[1].strip()
            print(f"{name}, {version}")
            print("  " + written(p, name, False), flush=True)
            print("  " + written(p, name, True), flush=True)
            if name in RUN:
                print("  " + started(p, name), flush=True)
    done()


main()
