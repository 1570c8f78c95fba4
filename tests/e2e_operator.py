#!/usr/bin/env python3
"""The operator's commands over a daemon at work (on the null device: a step takes 2 ms, and half a one for each row): what top and
why see is what was made to happen, set does what it says while requests run, doctor tells a dead daemon
from a live one, and a bundle holds no key."""
import pty, select, signal, subprocess, tarfile, threading, time
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
        check(slipring(p, c, "--nonsense")[0] == 2, f"{c}: wrong usage")
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


def on_a_terminal(p):
    try:
        pid, fd = pty.fork()
    except OSError as e:
        print(f"SKIP: no terminal to try slipring top on: {e}")
        return
    if pid == 0:
        os.execve(os.path.join(BUILD, "slipring"), ["slipring", "top", "-i", "0.2"], {**p.env, "TERM": "xterm"})
    seen, end, asked = b"", time.monotonic() + 10, False
    while time.monotonic() < end:
        if not select.select([fd], [], [], 0.2)[0]:
            continue
        try:
            seen += os.read(fd, 65536)
        except OSError:                           # it has ended
            break
        if b"what bound the time" in seen and not asked:
            asked = os.write(fd, b"q") == 1
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    check(asked and os.waitstatus_to_exitcode(status) == 0, f"top draws, and q ends it: {seen[-500:]}")
    check(b"\x1b[?1049l" in seen, "the terminal is given back as it was")


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
    check(code == 1 and "exists" in err, "nothing is written over")


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
                     "--knob-ceiling", "max-num-seqs=6")
        names_the_others(p)
        p.adapter("--disable-access-log", "--api-key", KEYS[2])
        limited_by_seqs(p)
        one_at_a_time(p)
        on_a_terminal(p)
        bundle(p)
        killed(p, d)
    done()


main()
