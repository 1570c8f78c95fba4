#!/usr/bin/env python3
"""A daemon without a core: it is stopped for three seconds, and nothing fails.  Tools, the Python module and the
adapter wait and say so; the adapter says "serving" only once a daemon has answered."""
import json, os, signal, subprocess, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import BUILD, HERE, Programs, check, done, make_model, wait_for

STOP_S = 3
WAITS = "the daemon does not answer yet; trying again for 10 s"


def stopped_for(daemon, seconds, what):
    """what() while the daemon is stopped; it goes on after so many seconds."""
    os.kill(daemon.pid, signal.SIGSTOP)
    timer = threading.Timer(seconds, os.kill, (daemon.pid, signal.SIGCONT))
    timer.start()
    try:
        return what()
    finally:
        timer.cancel()
        timer.join()
        os.kill(daemon.pid, signal.SIGCONT)


def run(p, *words):
    r = subprocess.run(words, env=p.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    return r.returncode, r.stdout, r.stderr


def tools(p, daemon, model):
    slipring = os.path.join(BUILD, "slipring")
    python = ("import sys; sys.path.insert(0, %r)\nimport slipring\n"
              "with slipring.open(model=%r) as s: print(s.model)\n" %
              (os.path.join(HERE, "..", "adapters", "python"), model))
    calls = ((slipring, "generate", "--model", model, "--max-tokens", "3", "abc"),
             (slipring, "chat", "--model", model, "--max-tokens", "3", "--once", "abc"),
             (slipring, "ping", "-n", "3"), (sys.executable, "-c", python),
             (slipring, "set", "max-num-seqs", "64"))
    for slow in (True, False):
        def all_of_them():
            return p.together(len(calls), lambda i: run(p, *calls[i]))
        for words, (code, out, err) in zip(calls, stopped_for(daemon, STOP_S, all_of_them) if slow else all_of_them()):
            name = os.path.basename(words[0]) + " " + words[1]
            check(code == 0, f"{name} bears a stopped daemon: {code} {out}{err}")
            check((WAITS in err) == (slow and words[1] != "set"), f"{name} says that it waits, and only then: {err}")


def never(p, daemon):
    """It stays stopped: the tool ends and says what is wrong."""
    code, out, err = stopped_for(daemon, 60, lambda: run(p, os.path.join(BUILD, "slipring"), "ping", "-n", "3"))
    check(code == 1 and "stopped or hangs, or has no core" in err, f"a daemon that never answers: {code} {err}")


def adapter(p, daemon, model):
    def start():
        h = p.run("slipring-http", "--port", 0, "--served-model-name", "m", "--ready-file", p._ready_file(), model)
        check(wait_for(lambda: "does not answer yet" in p.log("slipring-http"), 60), "the adapter says that it waits")
        check("serving" not in p.log("slipring-http"), "it does not serve yet: " + p.log("slipring-http"))
        return h

    h = stopped_for(daemon, STOP_S, start)
    p._listen("slipring-http", h)
    check(" serving " in p.log("slipring-http"), "it serves when the daemon has answered: " + p.log("slipring-http"))
    ask = {"model": "m", "prompt": "ab", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    first = p.post("/v1/completions", ask)["choices"][0]["text"]
    again = stopped_for(daemon, STOP_S, lambda: p.post("/v1/completions", ask))
    check(again["choices"][0]["text"] == first, "a request while the daemon is stopped is answered when it goes on")


def without(p, model):
    """No daemon at all: the port opens to answer 503, and that is no service."""
    h = p.run("slipring-http", "--port", 0, "--served-model-name", "m", "--ready-file", p._ready_file(), model)
    p._listen("slipring-http", h)
    log = p.log("slipring-http")
    check(f"no daemon serves {model} yet; requests get 503" in log and " serving " not in log, "no daemon, no service: " + log)
    p.daemon("--load-format", "dummy", "--device", "cpu", model)
    check(wait_for(lambda: f" serving {model} on " in p.log("slipring-http"), 60), "it serves once there is one")


with Programs() as p:
    model = os.path.join(p.dir, "m")
    make_model(model, "<|im_start|>", template="{% for m in messages %}{{ m.content }}{% endfor %}")
    d = p.daemon("--load-format", "dummy", "--device", "cpu", model)
    tools(p, d, model)
    never(p, d)
    adapter(p, d, model)
with Programs() as p:
    model = os.path.join(p.dir, "m")
    make_model(model)
    without(p, model)
done()
