#!/usr/bin/env python3
"""A second server starts with a port of its own and nothing else, and the tools find each by its port (null
device)."""
import re, socket
from harness import *

NULL = ["--device", "null", "--load-format", "dummy"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def slipring(p, *args):
    r = subprocess.run([os.path.join(BUILD, "slipring"), *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=60, env=p.env)
    return r.returncode, r.stdout, r.stderr


def bench(p):
    code, out, err = slipring(p, "bench", "serve", "--port", p.port, "--model", os.path.join(p.env["RUNTIME_DIRECTORY"], "m"),
                              "--num-prompts", 20, "--random-input-len", 16, "--random-output-len", 8, "--disable-tqdm")
    check(code == 0, f"bench: {err}{out}")
    return out


class Second(Programs):
    """Beside the first: in the same run directory, with its logs in a folder of its own."""

    def __init__(self, first):
        super().__init__()
        self.env["RUNTIME_DIRECTORY"] = first.dir

    def serve_on(self, port, *args):
        return self._listen("slipring", self.run("slipring", "serve", "--port", port, "--ready-file", self._ready_file(), *args))


def second_starts(p, *more):
    """With --data-parallel-size, too."""
    with Second(p) as q:
        port, model = free_port(), os.path.join(p.dir, "m")
        q.serve_on(port, model, *NULL, *more)
        lines = re.findall(r".*another daemon is the default instance.*", q.log("slipring"))
        check(len(lines) == 1 and f"--instance port-{port}" in lines[0], f"one line says its name: {lines}")
        check(all(s.ask("POST", "/v1/completions", {"prompt": [1], "max_tokens": 2})[0] == 200 for s in (p, q)),
              "both answer")
        yield q, port
        q.procs["slipring"].terminate()
        check(q.procs["slipring"].wait(20) == 0, "it ends")


with Programs() as p:
    model = os.path.join(p.dir, "m")
    make_model(model)
    p.serve(model, *NULL)
    for q, port in second_starts(p):
        code, out, err = slipring(p, "top", "--instance", f"port-{port}", "--once", "--json")
        check(code == 0, f"tools know the name: {err}")
        for server in p, q:
            pid = json.loads(slipring(p, "top", "--port", server.port, "--once", "--json")[1])["pid"]
            with open(f"/proc/{pid}/stat") as f:
                mother = int(f.read().rsplit(")", 1)[1].split()[1])
            check(mother == server.procs["slipring"].pid, "top --port finds the daemon of that port")
            for words in ("why",), ("set",), ("ping", "-n", 10), ("doctor",), ("generate", "--max-tokens", 2, "a"):
                code, out, err = slipring(p, words[0], "--port", server.port, *words[1:])
                check(code == 0 or words[0] in ("doctor", "generate") and "no \"slipring" not in err, f"{words}: {code} {err}")
            out = bench(server)
            check("How Far From the Limit" in out and "is not known" not in out, f"bench finds it: {out[-900:]}")
        other = free_port()
        for words in ("top", "--once"), ("why",), ("set",), ("ping",), ("doctor",), ("generate", "a"), ("chat", "--once", "a"):
            code, out, err = slipring(p, words[0], "--port", other, *words[1:])
            check(code and f"--port {other}: no \"slipring serve\" of this user has that port" in err and err.count("\n") == 1,
                  f"{words}: {code} {err}")
        code, out, err = slipring(p, "serve", "--instance", "default", "--port", free_port(), model, *NULL)
        check(code == 1 and "another slipringd runs here" in err, f"a name that is given is kept: {err}")
    for q, port in second_starts(p):
        pass                                          # again, after the first of that name ended
    p.procs["slipring"].terminate()
    check(p.procs["slipring"].wait(20) == 0, "the first ends")
    check(not os.path.exists(os.path.join(p.dir, ".serve")), "and leaves no file")

# Replicas, and a first that rests: its instance is taken all the same.
with Programs() as p:
    model = os.path.join(p.dir, "m")
    make_model(model)
    p.serve(model, *NULL, "-dp", 2, "--stop-when-idle", "1s", "--daemon-wait", 60)
    check(wait_for(lambda: p.log("slipring").count("rests until a client connects") == 2, 30), "it rests")
    for q, port in second_starts(p, "-dp", 2):
        line = f"What limited the server is not known: --port {port}: its instances are port-{port}-"
        check(line in bench(q) and "name one by --instance" in bench(q), "what is missing is said")
done()
