#!/usr/bin/env python3
"""The operator's commands over a daemon at work (on the null device: a step takes 2 ms, and half a one for each row): what top and
why see is what was made to happen, set does what it says while requests run, doctor tells a dead daemon
from a live one, and a bundle holds no key."""
import ctypes, fcntl, pty, re, select, signal, struct, termios, subprocess, tarfile, threading, time
from harness import *

KEYS = ("sk-in-the-file", "sk-in-a-comment", "sk-on-the-command-line")


def slipring(p, *args, env=None):
    """(exit code, stdout, stderr) of a command."""
    r = subprocess.run([os.path.join(BUILD, "slipring"), *map(str, args)], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=60, env={**p.env, **(env or {})})
    return r.returncode, r.stdout, r.stderr


def parsed(p, *args):
    code, out, err = slipring(p, *args, "--json")
    check(code == 0, f"slipring {' '.join(map(str, args))} --json: {code} {err}")
    return json.loads(out)


class Load:
    """So many requests under way at any time, until it is left."""

    def __init__(self, p, at_once, max_tokens=50):
        self.p, self.n, self.tokens, self.stop, self.done = p, at_once, max_tokens, False, 0

    def one(self, i):
        while not self.stop:
            self.p.post("/v1/completions", {"prompt": [1 + i, 2, 3, 4], "max_tokens": self.tokens,
                                            "ignore_eos": True, "temperature": 0}, headers={
                                            "Authorization": "Bearer " + KEYS[2]})
            self.done += 1

    def __enter__(self):
        self.threads = [threading.Thread(target=self.one, args=(i,), daemon=True) for i in range(self.n)]
        for t in self.threads:
            t.start()
        check(wait_for(lambda: self.done, 20), "requests are answered")
        return self

    def __exit__(self, *_):
        self.stop = True
        for t in self.threads:
            t.join(30)


def without_a_daemon(p):
    for args in (["top", "--once"], ["why"], ["set"], ["set", "max-num-seqs", "4"]):
        code, out, err = slipring(p, *args)
        check(code == 1 and not out and "slipring serve" in err, f"{args}: no daemon, and how to start one: {err}")
    for c in ("top", "why", "set", "doctor"):
        code, out, err = slipring(p, c, "--help")
        check(code == 0 and "--instance" in out and "--json" in out, f"{c} --help teaches")
        code, out, err = slipring(p, c, "--nonsense")
        check(code == 2 and not out and "--nonsense: " in err and f"slipring {c} --help" in err, f"{c}: wrong usage: {err}")
    for args in (["top", "-i", "0"], ["why", "--since", "yesterday"], ["ping", "-n", "none"], ["ping", "--every"],
                 ["doctor", "bogus"], ["setup", "--huge-pages", "x"], ["report", "-x"], ["compare", "-x"]):
        code, out, err = slipring(p, *args)
        check(code == 2 and not out and " ".join(args[1:]) in err and err.count("\n") == 1, f"{args}: which word it is: {err}")
    for args in (["serve", "--bogus"], ["serve", "--help", "bogus"], ["show", "--bogus"]):
        code, out, err = slipring(p, *args)
        check(code == 2 and not out and "bogus is unknown" in err, f"{args}: {err}")
    code, _, err = slipring(p, "bench", "bogus")
    check(code == 2 and 'there is no "bogus"' in err, f"bench: {err}")
    code, _, err = slipring(p, "tune", "--max-concurency", "2")
    check(code == 2 and "did you mean --max-concurrency?" in err and "slipring tune --help" in err, f"tune: {err}")
    code, _, err = slipring(p, "generate", "--max-tokens", "x", "hi")
    check(code == 2 and "from 1 to 1073741824\n" in err, f"limits are written out: {err}")
    for c in ("serve", "top", "bench", "tune"):
        check(slipring(p, "help", c) == slipring(p, c, "--help"), f"slipring help {c} is {c} --help")
    check("daemon" in slipring(p, "doctor")[1], "doctor looks at the machine without a daemon, too")


def names_the_others(p):
    code, _, err = slipring(p, "top", "--instance", "other")
    check(code == 1 and "default" in err and "--instance" in err, f"which instances there are: {err}")


def limited_by_seqs(p):
    with Load(p, 12):
        top = parsed(p, "top", "-i", "2")
        text = slipring(p, "top", "--once")[1]
        set_while_running(p)
        why = parsed(p, "why", "--since", "start")
    # Some of the twelve may be between an answer and the next request at that moment.
    check(top["max_num_seqs"] == 4 and 3 <= top["running"] <= 4 and 3 <= top["waiting"] <= 8, f"4 run, 8 wait: {top}")
    whole = sum(top["why_s"].values())
    check(top["why_s"]["seqs"] >= 0.9 * whole, f"seqs holds it back: {top['why_s']}")
    check(abs(whole - top["seconds"]) <= 0.05 * top["seconds"], "the axis is about as long as the two looks are apart")
    check(500 <= top["generated_tokens_per_s"] <= 1100, f"4 tokens in 4 ms and some: {top['generated_tokens_per_s']}")
    check(0.0025 <= top["itl_s"]["p50"] <= 0.01, f"a token each step: {top['itl_s']}")
    check(top["ttft_s"]["p50"] > 0.05, f"who waits for two others to end waits long: {top['ttft_s']}")
    [c] = [c for c in top["client"] if c["name"].startswith("slipring-http")]
    check(c["pid"] == p.procs["slipring-http"].pid and c["live"] >= 6 and c["tokens_per_s"] > 500, f"its client: {c}")
    check("\x1b" not in text and "why no more rows" in text, "plain lines where there is no terminal")
    check(why["limit"] == "seqs" and why["knob"] == "max-num-seqs", f"why: {why}")
    # A step of n rows takes 2 + n/2 ms; about 3.5 ran, twice as many would be (7 / 5.5) / (3.5 / 3.75).
    check(why["worth"] and 0.2 <= why["worth"] <= 0.5, f"what twice the rows would be worth: {why}")
    for axis in ("why_s", "bound_s"):
        check(abs(sum(why[axis].values()) - why["seconds"]) <= 0.001 * why["seconds"], f"{axis} adds up to the time")
    code, out, _ = slipring(p, "why")
    check(code == 0 and "slipring set max-num-seqs" in out or "at its ceiling" in out, f"the knob to turn: {out}")


def set_while_running(p):
    def running():
        return parsed(p, "top", "-i", "0.1")["running"]
    code, out, _ = slipring(p, "set", "max-num-seqs", 2)
    check(code == 0 and "4 -> 2" in out, f"set: {out}")
    check(wait_for(lambda: running() <= 2, 5), "no more than 2 run now")
    check("max-num-seqs: 4 -> 2, set by uid" in p.log("slipringd"), "and the log says who did it")
    check(slipring(p, "set", "max-num-seqs", 6)[0] == 0, "above what it was started with")
    check(wait_for(lambda: running() >= 5, 5), "more than 4 run now")
    code, _, err = slipring(p, "set", "max-num-seqs", 7)
    check(code == 1 and "up to 6" in err and "--knob-ceiling" in err, f"beyond the ceiling: {err}")
    code, _, err = slipring(p, "set", "max-num-sqes", 3)
    check(code == 2 and '"max-num-seqs"' in err, f"did you mean: {err}")
    check(slipring(p, "set", "max-num-seqs", "many")[0] == 2, "no number")
    for knob, value in (("scheduling-policy", "priority"), ("enable-prefix-caching", "false"),
                        ("step-target-ms", "7.5"), ("long-prefill-token-threshold", "16"),
                        ("max-num-batched-tokens", "32")):
        check(slipring(p, "set", knob, value)[0] == 0, f"set {knob}")
        check(str(parsed(p, "set")[knob]["now"]).startswith(value), f"{knob} is {value}")
    check(slipring(p, "set", "max-num-seqs", "4", "--save")[0] == 0, "and back, and saved")
    with open(os.path.join(p.dir, "s.yaml")) as f:
        text = f.read()
    check("max-num-seqs: 4   # few" in text and "# api-key" in text, f"only the value is another: {text}")
    check(wait_for(lambda: running() == 4, 5), "4 run again")


def one_at_a_time(p):
    with Load(p, 1, max_tokens=4):
        rows = parsed(p, "top", "-i", "1")["client"]
    check(any(c["remark"] == "one request at a time" for c in rows), f"a client that waits for each answer: {rows}")
    before = parsed(p, "why", "--since", "start")
    time.sleep(1)
    after = parsed(p, "why", "--since", "start")
    check(abs(sum(after["empty_s"].values()) - after["why_s"]["empty"]) < 0.001 * after["seconds"], "empty is split")
    check(after["empty_s"]["silent"] - before["empty_s"]["silent"] > 0.9, f"a client is there and silent: {after}")
    idle = after["bound_s"]["idle"] - before["bound_s"]["idle"]
    check(0.9 <= idle <= 1.5, f"a sleeping daemon's time is counted as idle: {idle}")


class Options(ctypes.Structure):                  # struct sr_options
    _fields_ = [(k, ctypes.c_uint32) for k in ("size", "spin_us", "live", "tokens", "arena")] + [
        ("name", ctypes.c_char * 32)]


def a_crowd(p):
    """More connections than anybody wants to read of: the busiest are shown, the others added up; programs
    get each."""
    lib = ctypes.CDLL(os.path.join(BUILD, "libslipring.so"))
    lib.sr_close.argtypes, lib.sr_close.restype = [ctypes.c_void_p], None
    conns = []
    for i in range(300):
        c, o = ctypes.c_void_p(), Options(ctypes.sizeof(Options), 0, 4, 64, 4096, b"crowd")
        check(lib.sr_open(ctypes.byref(c), p.socket.encode(), ctypes.byref(o)) == 0, f"connection {i} is let in")
        conns.append(c)
    with Load(p, 2):
        top = parsed(p, "top", "-i", "0.5")
        text = slipring(p, "top", "--once")[1].splitlines()
        p.crowd_on_a_terminal = on_a_terminal(p, 24, 80)
    check(top["clients"] == 301 == len(top["client"]) == len({c["pid"] for c in top["client"]}) + 299,
          f"a row for each: {top['clients']}, {len(top['client'])}")
    check(top["client"][0]["name"].startswith("slipring-http"), f"the busiest first: {top['client'][0]}")
    head = next(i for i, line in enumerate(text) if line.startswith("client "))
    shown, last = len(text) - head - 2, re.match(r"and (\d+) more, together +(\d+) +(\d+) +([\d.]+) +([\d.]+)$", text[-1])
    check(last and shown >= 10 and int(last[1]) + shown == 301 and last[2] == "0", f"the others added up: {text[-3:]}")
    check(b"more, together" in p.crowd_on_a_terminal, "and so on a terminal")
    code, out, _ = slipring(p, "why")
    check(code == 0 and "crowd" not in out, "why names nobody who asked for nothing")
    check(re.search(r"^slipring_clients(\{.*\})? 301(\.0)?$", p.ask("GET", "/metrics")[2], re.M), "/metrics counts all")
    for c in conns:
        lib.sr_close(c)
    check(wait_for(lambda: len(parsed(p, "top", "-i", "0.1")["client"]) == 1, 10), "and they go again")


def on_a_terminal(p, rows, columns):
    """What top writes on one of that size, until it is drawn and q is pressed; None: there is none to try on."""
    try:
        pid, fd = pty.fork()
    except OSError as e:
        print(f"SKIP: no terminal to try slipring top on: {e}")
        return None
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {k: v for k, v in p.env.items() if k not in ("LINES", "COLUMNS")}
        os.execve(os.path.join(BUILD, "slipring"), ["slipring", "top", "-i", "0.2"], {**env, "TERM": "xterm"})
    seen, end, asked = b"", time.monotonic() + 10, False
    while time.monotonic() < end:
        if not select.select([fd], [], [], 0.2)[0]:
            continue
        try:
            seen += os.read(fd, 65536)
        except OSError:                           # it has ended
            break
        if (b"more" in seen or b"pid" in seen) and not asked:
            asked = os.write(fd, b"q") == 1
    if not asked:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    check(asked and os.waitstatus_to_exitcode(status) == 0, f"top draws, and q ends it: {seen[-500:]}")
    check(b"\x1b[?1049l" in seen, "the terminal is given back as it was")
    return seen


def on_terminals(p):
    """What does not fit is said, and what is too long for a line goes on in the next."""
    for rows, columns, has, hasnt in ((50, 160, "prefix hits", "more below"), (24, 80, "tokens/s", "more below"),
                                      (10, 40, "more below", "pid"), (3, 20, "more below", "pid"), (1, 12, "more", "top")):
        seen = on_a_terminal(p, rows, columns)
        if seen is None:
            return
        check(has.encode() in seen and hasnt.encode() not in seen, f"{rows} x {columns}: {seen}")


def bundle(p):
    tar, log = os.path.join(p.dir, "b.tar"), os.path.join(p.dir, "slipringd.log")
    os.mkdir(os.path.join(p.dir, "bin"))
    with open(os.path.join(p.dir, "bin", "journalctl"), "w") as f:
        f.write('#!/bin/sh\necho "journal by $*"\n')
    os.chmod(f.name, 0o755)
    code, out, err = slipring(p, "doctor", "--bundle", tar, "--log", log,
                              env={"PATH": os.path.join(p.dir, "bin") + ":" + os.environ["PATH"]})
    check(code == 0 and "look through it" in out, f"doctor --bundle: {code} {err}")
    check(os.stat(tar).st_mode & 0o077 == 0, "for nobody else to read")
    with tarfile.open(tar) as t:
        names = {os.path.basename(m.name) for m in t.getmembers()}
        check({"versions.txt", "doctor.txt", "stats.bin", "stats.txt", "config.yaml", "cmdline.txt", "log-1.txt",
               "journal.txt"} <= names, f"what is in it: {names}")
        config = t.extractfile("slipring-bundle/config.yaml").read().decode()
        size = t.getmember("slipring-bundle/stats.bin").size
        journal = t.extractfile("slipring-bundle/journal.txt").read().decode()
    check("-u slipring -u slipring-http" in journal, f"what the journal has of both programs: {journal}")
    check("max-num-seqs: 4" in config and "(removed)" in config, f"settings without keys: {config}")
    check(size == os.path.getsize(os.path.join(p.dir, "stats")), "the whole page")
    with open(tar, "rb") as f:
        data = f.read()
    for key in KEYS:
        check(key.encode() not in data, f"{key} is not in it")
    code, _, err = slipring(p, "doctor", "--bundle", tar)
    check(code == 1 and "exists and is not overwritten: name another file" in err, f"nothing is written over: {err}")
    half = os.path.join(p.dir, "half.tar")
    r = subprocess.run(["sh", "-c", f'ulimit -f 100; trap "" XFSZ; exec "$0" doctor --bundle {half}',
                        os.path.join(BUILD, "slipring")], capture_output=True, text=True, env=p.env, timeout=60)
    check(r.returncode == 1 and half in r.stderr and not os.path.exists(half), f"nor is half of one left: {r.stderr}")


def drained(p):
    """Who comes while it ends is told so."""
    with Programs() as q:
        d = q.daemon("--device", "null", "--null-step-us", 50000)
        g = subprocess.Popen([os.path.join(BUILD, "slipring"), "generate", "--max-tokens", "100", "hello"],
                             env=q.env, stdout=subprocess.PIPE, text=True)
        check(wait_for(lambda: parsed(q, "top", "-i", "0.1")["running"], 10), "it is asked")
        d.terminate()
        check(wait_for(lambda: parsed(q, "top", "-i", "0.1")["state"] == "draining", 10), "it drains")
        code, _, err = slipring(q, "ping")
        check(code == 1 and "is draining" in err, f"ping: {err}")
        check(g.communicate(timeout=30)[0] and g.returncode == 0 and d.wait(10) == 0, "what runs is answered to its end")
        code, _, err = slipring(q, "ping")
        check(code == 1 and "slipring serve starts one" in err, f"and then there is none: {err}")


def taken(p):
    """A port that is taken is said before a model is loaded."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        code, out, err = slipring(p, "serve", "--instance", "other", "--port", port, "--device", "null")
    check(code == 1 and f"another server uses 127.0.0.1 port {port}; " in err and err.count("\n") == 1, f"at once: {err}")


def ping_takes_its_time(p):
    """What takes long is announced, and -n has a smaller default then."""
    code, out, err = slipring(p, "ping", "--every", 25)
    check(code == 0 and out.startswith("50 round trips") and "50 pauses of 25 ms, twice: 2 s" in err, f"ping: {out}{err}")
    code, out, err = slipring(p, "ping", "--every", 1, "-n", 10)
    check(code == 0 and out.startswith("10 round trips") and not err, f"what is short is not: {out}{err}")


def measured(p):
    """It takes seconds, and says so; without a model to read it says that."""
    env = {"XDG_CACHE_HOME": os.path.join(p.dir, "empty")}
    code, out, err = slipring(p, "doctor", "--measure", env=env)
    check(code == 0 and "some seconds" in err and re.search("^ok +ceilings ", out, re.M), f"measured: {out}{err}")
    check(re.search("^hint +disk .*\n +-> ", out, re.M), f"and nothing to read: {out}")


def killed(p, d):
    check(slipring(p, "doctor")[0] == 0, "nothing is wrong")
    d.send_signal(signal.SIGKILL)
    d.wait(10)
    code, out, _ = slipring(p, "doctor")
    check(code == 1 and "is gone" in out, f"doctor sees a dead daemon: {out[-300:]}")
    check("GONE" in slipring(p, "top", "--once")[1], "so does top")
    code, _, err = slipring(p, "set", "max-num-seqs", 2)
    check(code == 1 and "gone" in err, f"and set: {err}")


def main():
    need_model()                                  # for its vocabulary alone
    with Programs() as p:
        without_a_daemon(p)
        config = os.path.join(p.dir, "s.yaml")
        with open(config, "w") as f:
            f.write(f"# api-key: {KEYS[1]}\nmax-num-seqs: 4   # few\napi-key:\n- {KEYS[0]}\n")
        d = p.daemon("--device", "null", "--null-step-us", 2000, "--null-token-us", 500,
                     "--config", config, "--api-key", KEYS[2],
                     "--knob-ceiling", "max-num-seqs=6", "--max-clients", 400)
        names_the_others(p)
        p.adapter("--disable-access-log", "--api-key", KEYS[2])
        limited_by_seqs(p)
        one_at_a_time(p)
        on_terminals(p)
        a_crowd(p)
        bundle(p)
        drained(p)
        taken(p)
        ping_takes_its_time(p)
        measured(p)
        killed(p, d)
    done()


main()
