#!/usr/bin/env python3
"""Whole tool turns of agents as people install them: Claude Code over Messages, Codex CLI over Responses.  The model is
scripted: a proxy adds to each request a grammar of one choice, first a thought, text and a call, then the end.  `make
clients-agents` installs them; one that is not there is skipped with a line."""
import http.server, json
from clients import *

TEMPLATE = ("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% for t in m.tool_calls or [] %}{{ t.function | tojson }}"
            "{% endfor %}\n{% endfor %}[assistant] ")
SAID = "All done: it said so."


class Script(http.server.BaseHTTPRequestHandler):
    """Passes requests on; those with tools say what the model is to say."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self):
        n = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(n) if n else None
        path = self.path.split("?")[0]
        if path not in ("/v1/messages", "/v1/responses"):
            return body
        d = json.loads(body)
        if d.get("tools"):
            done = any(x in body for x in (b"tool_result", b"function_call_output"))
            call = json.dumps(dict(zip(("name", "arguments"), self.server.call)))
            said = f"<think>Hm.</think>\nI look. <tool_call>\n{call}\n</tool_call>"
            d["structured_outputs"] = {"choice": [SAID if done else said]}
            self.server.turns.append(done)
        return json.dumps(d)

    def pass_on(self):
        c = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        keep = {k: v for k, v in self.headers.items() if k.lower() not in ("content-length", "host", "accept-encoding", "connection")}
        c.request(self.command, self.path, self.body(), {**keep, "Host": "localhost"})
        r = c.getresponse()
        data = r.read()
        if r.status != 200:
            self.server.errors.append((self.command, self.path, r.status, data[:300]))
        self.send_response(r.status)
        self.send_header("content-type", r.headers.get("content-type", "application/json"))
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else data)
        c.close()

    do_GET = do_POST = do_HEAD = pass_on


def turn(p, name, call, settings, *args):
    """One question to a program that is to call a tool; what it printed."""
    program = os.path.join(NODE, "node_modules/.bin", name)
    if not os.path.exists(program):
        print(f"SKIP: {name} is not installed for Node")
        return
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Script)
    s.port, s.call, s.turns, s.errors = p.port, call, [], []
    threading.Thread(target=s.serve_forever, daemon=True).start()
    home = os.path.join(p.dir, name)
    os.makedirs(os.path.join(home, ".codex"))
    env = {"PATH": os.environ["PATH"], "HOME": home, **settings(f"http://127.0.0.1:{s.server_address[1]}", home)}
    r = subprocess.run([program, *args], cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    s.shutdown()
    version = subprocess.run([program, "--version"], env=env, capture_output=True, text=True, timeout=60).stdout.strip()
    check(r.returncode == 0 and SAID in r.stdout and s.turns == [False, True], f"{version}: {r.stdout[-800:]} {r.stderr[-800:]} {s.errors}")
    check(os.path.exists(os.path.join(home, "called")), f"{version}: the tool ran")
    print(f"{version}: good; errors: {s.errors}")


def claude(url, home):
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "smol", "DISABLE_TELEMETRY": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def codex(url, home):
    with open(os.path.join(home, ".codex/config.toml"), "w") as f:
        f.write('model = "smol"\nmodel_provider = "here"\nmodel_context_window = 100000\n[model_providers.here]\nname = "here"\n'
                f'base_url = "{url}/v1"\nwire_api = "responses"\n')
    return {}


def main():
    with Programs() as p:
        model = os.path.join(p.dir, "model")
        make_model(model, template=TEMPLATE)
        config = os.path.join(model, "config.json")
        with open(config) as f:
            c = json.load(f)
        with open(config, "w") as f:
            json.dump({**c, "max_position_embeddings": 131072}, f)
        p.daemon(model, "--load-format", "dummy", "--device", "null", "--max-num-seqs", 8)
        p.adapter(model, "--served-model-name", "smol", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
        turn(p, "claude", ("Bash", {"command": "touch called", "description": "touch"}), claude,
             "-p", "What does the tool say?", "--allowedTools", "Bash")
        turn(p, "codex", ("exec_command", {"cmd": "touch called"}), codex,
             "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "What does the tool say?")
    done()


main()
