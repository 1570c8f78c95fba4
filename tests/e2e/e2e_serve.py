#!/usr/bin/env python3
"""Each process of `slipring serve` dies or hangs alone: the adapter is started again with its sockets and refuses
nobody; a daemon that hangs is killed, and its answers go on elsewhere.  The null device computes."""
import re
from harness import *

ASK = {"prompt": [504, 3575, 282], "max_tokens": 200, "temperature": 0, "ignore_eos": True}
SLOW = ["--device", "null", "--null-step-us", 10000, "--max-model-len", 512, "--hang-timeout", 2]


def adapter(p):
    found = children(p.procs["slipring"].pid, "slipring-http")
    return next(iter(found), None)


def adapter_dies(count):
    with Programs() as p:
        p.serve(*SLOW, "-dp", 2, "--api-server-count", count, "--metrics-port", 0, MODEL)
        daemon, first, port = daemons(p), adapter(p), p.port
        for signal_ in (signal.SIGKILL, signal.SIGSTOP):
            pid = adapter(p)
            begin = time.monotonic()
            os.kill(pid, signal_)
            got = p.together(8, lambda i: p.ask("POST", "/v1/completions", {**ASK, "max_tokens": 3}, timeout=60))
            lost = [g for g in got if isinstance(g, BaseException) or g[0] != 200]
            if signal_ == signal.SIGKILL:
                print(f"{count} processes: answers again after {time.monotonic() - begin:.2f} s")
                check(all(not isinstance(g, ConnectionRefusedError) for g in got), f"nobody is refused: {lost}")
            check(wait_for(lambda: adapter(p) not in (None, pid), 20), "the adapter is started again")
            check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "and serves")
            check(p.ask("POST", "/v1/completions", {**ASK, "max_tokens": 3})[0] == 200, "at the same port")
        check(daemons(p) == daemon and adapter(p) != first and p.port == port, "the daemons notice nothing")
        check("is started again; its connections are lost" in p.log("slipring"), "the log says so")
        check("slipring-http (pid" in p.log("slipring") and "has made no turn for" in p.log("slipring"), "and why")
        p.procs["slipring"].terminate()
        check(p.procs["slipring"].wait(20) == 0, "it ends as it should")


def daemon_hangs():
    with Programs() as p:
        p.serve(*SLOW, "-dp", 2, MODEL)
        ask = lambda i: p.ask("POST", "/v1/completions", {**ASK, "prompt": [i + 5, 9], "max_tokens": 300}, timeout=120)
        text = lambda a: (a[0], json.loads(a[2])["choices"][0]["text"] if a[0] == 200 else a[2])
        want = [text(a) for a in p.together(8, ask)]
        got, pids = [], daemons(p)
        t = threading.Thread(target=lambda: got.extend(p.together(8, ask)))
        t.start()
        check(wait_for(lambda: p.ask("GET", "/metrics")[2].count("num_requests_running"), 20), "they run")
        time.sleep(.5)
        os.kill(pids[0], signal.SIGSTOP)
        begin = time.monotonic()
        t.join(120)
        check([text(a) for a in got] == want, f"no answer is lost or changed: {got}"[:2000])
        print(f"a daemon hung: all answers after {time.monotonic() - begin:.1f} s")
        check(wait_for(lambda: daemons(p).get(0, pids[0]) != pids[0], 20), "it is replaced")
        check(daemons(p)[1] == pids[1], "alone")
        check("slipringd 0 (pid" in p.log("slipring") and "has made no turn for" in p.log("slipring"), "the log says so")


def daemon_is_named():
    """Before --hang-timeout kills it, the log, /health and doctor name a daemon that hangs; it may wake up again."""
    with Programs() as p:
        p.serve("--device", "null", "--null-step-us", 10000, "--hang-timeout", 60, MODEL)
        got, pid = [], next(iter(children(p.procs["slipring"].pid, "slipringd")))
        doctor = lambda: subprocess.run([os.path.join(BUILD, "slipring"), "doctor", "--json"], env=p.env, capture_output=True,
                                        text=True, stdin=subprocess.DEVNULL, timeout=60).stdout
        t = threading.Thread(target=lambda: got.append(p.ask("POST", "/v1/completions", {**ASK, "max_tokens": 500}, timeout=120)))
        t.start()
        check(wait_for(lambda: re.search(r"num_requests_running{.*} 1", p.ask("GET", "/metrics")[2]), 20), "it works")
        check("no turn for" not in doctor() and p.ask("GET", "/health")[0] == 200, "and nothing is wrong")
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        try:
            check(wait_for(lambda: p.ask("GET", "/health")[0] == 503, 20), "/health says that it hangs")
            check(wait_for(lambda: "has made no turn for 2 s" in p.log("slipring"), 20), "the log too")
            print(f"a daemon that hangs is named after {time.monotonic() - begin:.1f} s")
            check(wait_for(lambda: "no turn for" in doctor(), 20, .2), "and doctor")
        finally:
            os.kill(pid, signal.SIGCONT)
        t.join(120)
        check(got and got[0][0] == 200, f"its answer goes on: {got}")
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "and all is well")


def one_is_never_ready(how, others="exec"):
    """`how` is what a daemon of rank 1 does instead; True: the others serve."""
    with Programs() as p, tempfile.TemporaryDirectory() as bin_:
        shutil.copy(os.path.join(BUILD, "slipring"), bin_)
        os.symlink(os.path.join(BUILD, "slipring-http"), os.path.join(bin_, "slipring-http"))
        with open(os.path.join(bin_, "slipringd"), "w") as f:
            f.write(f'#!/bin/sh\ncase "$*" in *"--data-parallel-rank 1"*) {how};; esac\n'
                    f'{others} {os.path.join(BUILD, "slipringd")} "$@"\n')
        os.chmod(f.name, 0o755)
        begin = time.monotonic()
        log = open(os.path.join(p.dir, "slipring.log"), "ab")
        s = subprocess.Popen([os.path.join(bin_, "slipring"), "serve", "--port", "0", "--ready-file", p._ready_file(),
                              *map(str, SLOW), "-dp", "2", MODEL], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=p.env)
        log.close()
        p.procs["slipring"] = s
        if others != "exec":
            check(s.wait(30) == 3, f"no daemon is ever ready: it ends with their code: {s.returncode}")
            return
        p._listen("slipring", s)
        print(f"one daemon does '{how}': it serves after {time.monotonic() - begin:.1f} s")
        for _ in range(4):
            check(p.ask("POST", "/v1/completions", {**ASK, "max_tokens": 3})[0] == 200, "the other one answers")
        check("slipringd 1 is not ready: the other daemons of its model serve without it" in p.log("slipring"), "the log says so")
        check(s.poll() is None, "nothing ends")
        with open(f.name, "w") as f:
            f.write(f'#!/bin/sh\nexec {os.path.join(BUILD, "slipringd")} "$@"\n')
        for pid in set(children(s.pid, "sleep")):
            os.kill(pid, signal.SIGKILL)
        check(wait_for(lambda: p.ask("GET", "/metrics")[2].count("slipring_engine_up{") == 2 and all(
            l.endswith("1.0") for l in p.ask("GET", "/metrics")[2].splitlines() if l.startswith("slipring_engine_up{")), 60, .1),
            "it joins when it is ready")


need_model()
daemon_is_named()
one_is_never_ready("exec sleep 600")
one_is_never_ready("exit 3")
one_is_never_ready("exit 3", "exit 3 #")
adapter_dies(1)
adapter_dies(2)
daemon_hangs()
done()
