#!/usr/bin/env python3
"""What a service manager sees: READY, a reload, the watchdog, a stop that drains; a full queue; and what
waiting costs in each run mode.  The null device is paced where time matters, so nothing here depends on
how fast the machine computes."""
import signal, socket, struct, subprocess, tempfile, threading, time
from harness import *

ASK = {"prompt": [504, 3575, 282, 4649, 314], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
SLOW = ["--device", "null", "--null-step-us", 20000]


class Manager:
    """systemd's end of NOTIFY_SOCKET."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="slipring-test-")
        self.path = os.path.join(self.dir, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(self.path)
        self.socket.setblocking(False)
        self.said, self.by = [], []               # texts, and the pids that sent them

    def hear(self):
        while True:
            try:
                text, control, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(12))
                self.said.append(text.decode())
                self.by.append(struct.unpack("iII", control[0][2])[0])
            except BlockingIOError:
                return self.said

    def forget(self):
        self.hear()
        self.said.clear()
        self.by.clear()

    def fed(self, pid):
        self.hear()
        return sum("WATCHDOG=1" in s and b == pid for s, b in zip(self.said, self.by))

    def wait(self, word, seconds=10):
        return wait_for(lambda: any(word in s for s in self.hear()), seconds)

    def close(self):
        self.socket.close()
        shutil.rmtree(self.dir)


def cpu_ns(pid):
    """Time that all threads of a process have computed."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total


def idle_cost(pids, seconds=2, tries=4):
    """The least share of a core that they used in some seconds."""
    least = 1.0
    for _ in range(tries):
        before, begin = sum(map(cpu_ns, pids)), time.monotonic()
        time.sleep(seconds)
        least = min(least, (sum(map(cpu_ns, pids)) - before) / 1e9 / (time.monotonic() - begin))
        if least < 0.001:
            break
    return least


def above_floor(p, tries=5):
    """What the first record after rest takes above the wake-up of any process: the least of some, in us."""
    least = 1e9
    for _ in range(tries):
        r = subprocess.run([os.path.join(BUILD, "slipring"), "ping", "--every", "20", "-n", "25", "--json"], env=p.env,
                           timeout=60, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        check(r.returncode == 0, f"ping: {r.stderr}")
        took = json.loads(r.stdout)
        least = min(least, took["min_us"] - took["bare_wake_min_us"])
        if least < 100:
            break
    return least


def run_modes():
    """The same answers however it waits, and nothing burns while nobody asks."""
    most = 100 if os.environ.get("SLIPRING_QUIET") else 2000  # us; the machine may be busy
    texts = {}
    for mode, device, sentence in (("auto", "cpu", "Run mode inline: this thread is one of"),
                                   ("dedicated", "cpu", "Run mode dedicated: this thread polls"),
                                   ("waiting", "cpu", "Run mode waiting: this thread sleeps"),
                                   ("dedicated", "null", "Run mode dedicated"), ("waiting", "null", "Run mode waiting")):
        with Programs() as p:
            d = p.daemon("--run-mode", mode, "--device", device, "--max-model-len", 512, "--kv-cache-memory-bytes", "32M")
            check(sentence in p.log("slipringd"), f"{mode} says so, and why")
            a = p.adapter("--disable-access-log")
            texts[device, mode] = [p.post("/v1/completions", {**ASK, "prompt": [i + 1, 2, 3]})["choices"][0]["text"]
                                   for i in range(3)]
            cost = idle_cost([d.pid])
            check(cost < 0.001, f"{mode} on {device}: an idle daemon takes {100 * cost:.3f} % of a core")
            if device == "null":
                cost = idle_cost([a.pid])
                check(cost < 0.001, f"an idle adapter takes {100 * cost:.3f} % of a core")
                over = above_floor(p)
                check(over < most, f"{mode}: the first record after rest takes {over:.0f} us above a bare wake-up")
    check(texts["cpu", "auto"] == texts["cpu", "dedicated"] == texts["cpu", "waiting"], "the same answers: CPU")
    check(texts["null", "dedicated"] == texts["null", "waiting"], "the same answers: null")
    with Programs() as p:
        r = subprocess.run([os.path.join(BUILD, "slipringd"), "--run-mode", "fast"], env=p.env, timeout=20,
                           capture_output=True, text=True)
        check(r.returncode == 1 and "inline waiting" in r.stderr, f"no such mode: {r.stderr}")


def settings(p):
    r = subprocess.run([os.path.join(BUILD, "slipring"), "set", "--json"], env=p.env, timeout=20,
                       stdin=subprocess.DEVNULL, capture_output=True, text=True)
    check(r.returncode == 0, r.stderr)
    return {k: v["now"] for k, v in json.loads(r.stdout).items()}


def reload():
    m = Manager()
    with Programs() as p:
        p.env["NOTIFY_SOCKET"] = m.path
        config = os.path.join(p.dir, "s.yaml")

        def write(text):
            with open(config + ".new", "w") as f:
                f.write(text)
            os.rename(config + ".new", config)

        def again(word):
            """SIGHUP; until the log has one more line with word in it."""
            n = p.log("slipringd").count(word)
            m.forget()
            d.send_signal(signal.SIGHUP)
            check(wait_for(lambda: p.log("slipringd").count(word) > n, 10), f"the log says {word!r}")
            check(m.wait("READY=1"), "ready again")
            [r] = [s for s in m.said if "RELOADING=1" in s]
            at = int(r.split("MONOTONIC_USEC=")[1])
            check(0 <= time.monotonic() * 1e6 - at < 60e6, f"by the manager's clock: {r}")
        write("max-num-seqs: 4\nmax-num-batched-tokens: 64\nmax-model-len: 512\n")
        d = p.daemon("--device", "null", "--config", config)
        check(m.wait("READY=1"), "READY once it serves")
        again("nothing changed that can change")
        write("max-num-seqs: 2\nmax-num-batched-tokens: 32\nmax-model-len: 512\nscheduling-policy: priority\n"
              "shutdown-timeout: 5\nuvicorn-log-level: debug\n")
        again("changed: max-num-seqs, max-num-batched-tokens, scheduling-policy, shutdown-timeout, uvicorn-log-level")
        now = settings(p)
        check(now["max-num-seqs"] == 2 and now["scheduling-policy"] == "priority", f"they are in force: {now}")
        write("max-num-seqs: 3\nmax-num-batched-tokens: 32\nmax-model-len: 1024\nscheduling-policy: priority\n")
        again("need a restart: max-model-len")
        check(settings(p)["max-num-seqs"] == 3, "what can change has changed all the same")
        for text, why in (("max-num-seqs: [\n", "line 2"), ("max-num-seqz: 3\n", "did you mean max-num-seqs"),
                          ("max-num-seqs: 1\nmax-num-batched-tokens: 100000000\n", "max-num-batched-tokens"),
                          ("max-num-seqs: 8000\nmax-num-batched-tokens: 8000\n", "max-num-seqs goes up to"),
                          ("max-num-seqs: 40\nmax-num-batched-tokens: 20\n", "greater than or equal")):
            write(text)
            again("the old settings remain: ")
            line = [l for l in p.log("slipringd").splitlines() if "the old settings remain" in l][-1]
            check(why in line, f"{text!r}: {line}")
            now = settings(p)
            check(now["max-num-seqs"] == 3 and now["max-num-batched-tokens"] == 32, f"unchanged: {now}")
        os.unlink(config)
        again("the old settings remain: ")
        write("max-num-seqs: 3\nmax-num-batched-tokens: 32\nmax-model-len: 512\nscheduling-policy: priority\n")
        again("nothing changed that can change")
        d.send_signal(signal.SIGTERM)
        check(d.wait(20) == 0 and m.wait("STOPPING=1"), "and it stops")
    m.close()


def same_answers():
    """Every knob turned, and the file read again, over and over while requests run: no token is another."""
    with Programs() as p:
        config = os.path.join(p.dir, "s.yaml")

        def write(seqs):
            with open(config + ".new", "w") as f:
                f.write(f"max-num-seqs: {seqs}\nmax-num-batched-tokens: 64\nmax-model-len: 512\n")
            os.rename(config + ".new", config)
        write(4)
        d = p.daemon("--device", "null", "--null-step-us", 1000, "--config", config)
        p.adapter("--disable-access-log")
        ask = [{**ASK, "prompt": list(range(3, 40 + 9 * (i // 2))), "max_tokens": 20 + 10 * i, "temperature": i % 2,
                "seed": i, "return_token_ids": True} for i in range(10)]
        want = [p.post("/v1/completions", a)["choices"][0] for a in ask]
        check(len({str(w["token_ids"]) for w in want}) == 10, "each is another")
        turned, n = threading.Event(), [0] * 10

        def one(i):
            while not turned.is_set():
                got = p.post("/v1/completions", ask[i])["choices"][0]
                check(got == want[i], f"request {i}: {got} is not {want[i]}")
                n[i] += 1
        results = []
        thread = threading.Thread(target=lambda: results.append(p.together(10, one)), daemon=True)
        thread.start()
        for turn in range(5):
            for knob, value in (("max-num-seqs", 1 + turn), ("enable-prefix-caching", "false"), ("max-num-batched-tokens", 16),
                                ("scheduling-policy", "priority"), ("long-prefill-token-threshold", 5 + turn),
                                ("step-target-ms", 1.5), ("max-num-seqs", 8), ("enable-prefix-caching", "true")):
                r = subprocess.run([os.path.join(BUILD, "slipring"), "set", knob, str(value)], env=p.env, timeout=20,
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True)
                check(r.returncode == 0, f"set {knob} {value}: {r.stderr}")
            write(5 + turn)
            before = p.log("slipringd").count("Settings were read again")
            d.send_signal(signal.SIGHUP)
            check(wait_for(lambda: p.log("slipringd").count("Settings were read again") > before, 10), "read again")
        check(wait_for(lambda: min(n) >= 3 or results, 60), f"requests ran all the while: {n}")
        turned.set()
        thread.join(60)
        check(results == [[None] * 10], f"the same answers: {results}")


def reload_of_both():
    """`slipring serve`: a reload is not the end, and READY follows each RELOADING that is passed on."""
    m = Manager()
    with Programs() as p:
        p.env["NOTIFY_SOCKET"] = m.path
        s = p.serve("--device", "null")
        check(m.wait("READY=1"), "READY")
        m.forget()
        s.send_signal(signal.SIGHUP)
        check(wait_for(lambda: "API keys and certificates were read again" in p.log("slipring") and
                       "Settings were read again" in p.log("slipring"), 10), "both have reloaded")
        check(m.wait("READY=1"), "READY after it")
        flow = [w for s in m.said for w in ("RELOADING=1", "READY=1") if w in s]
        check(flow == ["RELOADING=1", "READY=1"], f"one of each, in order: {m.said}")
        check(p.post("/v1/completions", ASK)["usage"]["completion_tokens"] == 8, "and it serves")
        s.send_signal(signal.SIGTERM)
        check(s.wait(20) == 0, "and stops")
    m.close()


def watchdog():
    """Fed while its loop turns, or layers are computed; not when it hangs (stopped, here)."""
    m = Manager()
    with Programs() as p:
        p.env.update(NOTIFY_SOCKET=m.path, WATCHDOG_USEC="200000")
        d = p.daemon(*SLOW)
        check(wait_for(lambda: m.fed(d.pid) >= 5, 20), "an idle daemon is fed")
        p.adapter("--disable-access-log")
        t = threading.Thread(target=lambda: p.post("/v1/completions", {**ASK, "max_tokens": 100}), daemon=True)
        m.forget()
        t.start()
        check(wait_for(lambda: m.fed(d.pid) >= 5, 20), "and one at work")
        t.join(30)
        d.send_signal(signal.SIGSTOP)
        adapter = p.procs["slipring-http"].pid
        check(wait_for(lambda: open(f"/proc/{d.pid}/stat").read().split()[2] == "T", 5), "it is stopped")
        m.forget()
        check(wait_for(lambda: m.fed(adapter) >= 5, 20), "the adapter is fed, for its loop turns")
        check(m.fed(d.pid) == 0, "the daemon is not")
        check(p.ask("GET", "/health")[0] == 200, "as far as one can tell it is idle")
        t = threading.Thread(target=lambda: p.post("/v1/completions", ASK), daemon=True)
        t.start()
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 503, 20), "and it is not, once something is asked of it")
        d.send_signal(signal.SIGCONT)
        check(wait_for(lambda: m.fed(d.pid) >= 1, 10), "and again, once it goes on")
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 10), "healthy, too")
        t.join(30)
        check(not t.is_alive(), "what was asked meanwhile is answered")
    m.close()


def watchdog_of_both():
    """`slipring serve` under a manager that watches it alone: fed while both of its children are."""
    m = Manager()
    with Programs() as p:
        p.env.update(NOTIFY_SOCKET=m.path, WATCHDOG_USEC="200000")
        watched = os.path.join(p.dir, "watched")
        with open(watched, "w") as f:
            f.write(f'#!/bin/sh\nWATCHDOG_PID=$$ exec {os.path.join(BUILD, "slipring")} "$@"\n')
        os.chmod(watched, 0o755)
        s = p._listen(watched, p.run(watched, "serve", "--port", 0, "--ready-file", p._ready_file(), *SLOW))
        check(m.wait("READY=1"), "READY")
        children = {}
        for pid in open(f"/proc/{s.pid}/task/{s.pid}/children").read().split():
            children[open(f"/proc/{pid}/comm").read().strip()] = int(pid)
        check(set(children) == {"slipringd", "slipring-http"}, f"two children: {children}")
        check(wait_for(lambda: m.fed(s.pid) >= 5, 20), "fed")
        for name, pid in children.items():
            os.kill(pid, signal.SIGSTOP)
            check(wait_for(lambda: open(f"/proc/{pid}/stat").read().split()[2] == "T", 5), "it is stopped")
            time.sleep(0.1)                        # what it had said is on its way
            m.forget()
            time.sleep(1)
            check(m.fed(s.pid) <= 1, f"not fed while {name} hangs: {m.said}")
            os.kill(pid, signal.SIGCONT)
            check(wait_for(lambda: m.fed(s.pid) >= 3, 20), "and again, once it goes on")
        check(all(b == s.pid for b in m.by), "all of it is said by the one that is watched")
        check(p.post("/v1/completions", ASK)["usage"]["completion_tokens"] == 8, "and it serves")
        m.forget()
        s.send_signal(signal.SIGTERM)
        check(m.wait("STOPPING=1") and s.wait(30) == 0, "STOPPING, and it stops")
    m.close()


def drain():
    """SIGTERM to both: health says so at once, what runs is finished, what is new is refused."""
    with Programs() as p:
        s = p.serve(*SLOW, "--max-num-seqs", 4, "--shutdown-timeout", 30)
        got = [[] for _ in range(6)]                # 4 run, 2 wait; 50 tokens in 1 s and some

        def one(i):
            got[i].append(p.stream("/v1/completions", {**ASK, "prompt": [i + 1, 2, 3], "max_tokens": 50}))
        threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(6)]
        for t in threads:
            t.start()

        def working():
            text = p.ask("GET", "/metrics")[2]
            n = sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines()
                    if l.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{")))
            return n >= 6
        check(wait_for(working, 20), "six are under way")
        s.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 503, 5, every=0.005), "health says so")
        print(f"/health says draining after {1000 * (time.monotonic() - begin):.0f} ms")
        check(any(t.is_alive() for t in threads), "while requests run")
        status, headers, text = p.ask("POST", "/v1/completions", ASK)
        check(status == 503 and int(headers["Retry-After"]) >= 1 and "error" in json.loads(text), f"new: {status} {text}")
        for t in threads:
            t.join(60)
        for [(status, events)] in got:
            check(status == 200 and events[-1] is None and
                  events[-2]["choices"][0]["finish_reason"] == "length", f"each was finished: {events[-2:]}")
        check(s.wait(30) == 0, f"and then it ends with 0, not {s.returncode}")


def drain_to_the_limit():
    """Those that take longer than --shutdown-timeout end with an error, well-formed."""
    with Programs() as p:
        s = p.serve(*SLOW, "--shutdown-timeout", 1)
        got = {}

        def stream():
            got["stream"] = p.stream("/v1/completions", {**ASK, "max_tokens": 4000})

        def whole():
            got["whole"] = p.ask("POST", "/v1/completions", {**ASK, "max_tokens": 4000})
        threads = [threading.Thread(target=f, daemon=True) for f in (stream, whole)]
        for t in threads:
            t.start()
        check(wait_for(lambda: "vllm:num_requests_running{" in p.ask("GET", "/metrics")[2] and any(
            l.startswith("vllm:num_requests_running{") and float(l.rsplit(" ", 1)[1]) == 2
            for l in p.ask("GET", "/metrics")[2].splitlines()), 20), "two are under way")
        s.send_signal(signal.SIGTERM)
        for t in threads:
            t.join(40)
        status, events = got["stream"]
        check(status == 200 and events[-1] is None and "error" in events[-2] and "choices" in events[-3],
              f"a stream: tokens, an error event, [DONE]: {events[-2:]}")
        status, _, text = got["whole"]
        check(status in (500, 503) and "error" in json.loads(text), f"a whole answer: {status} {text}")
        check(s.wait(30) == 0, f"ends with 0, not {s.returncode}")


def traces():
    """One request through both logs: by the client's trace id, or one made for it; no prompt in either."""
    with Programs() as p:
        p.daemon("--device", "null", "--max-num-seqs", 1, "--uvicorn-log-level", "debug")
        p.adapter()

        def lines(program, word):
            return [l for l in p.log(program).splitlines() if word in l]
        secret = "xyzzyplugh"
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        status, _, text = p.ask("POST", "/v1/completions", {**ASK, "prompt": secret},
                                headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "X-Request-Id": "order-66"})
        check(status == 200 and json.loads(text)["id"] == "cmpl-order-66", text)
        [a], [d] = wait_for(lambda: lines("slipring-http", trace), 5), wait_for(lambda: lines("slipringd", trace), 5)
        check('"POST /v1/completions" 200' in a and "cmpl-order-66" in a, f"the access log has both: {a}")
        check("length" in d and "8 of 8 tokens" in d and "slipring-http" in d, f"and the daemon what became of it: {d}")
        for given in (None, "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "00-nonsense"):
            status, _, text = p.ask("POST", "/v1/completions", {**ASK, "prompt": secret},
                                    headers={"traceparent": given} if given else {})
            [a] = wait_for(lambda: lines("slipring-http", json.loads(text)["id"]), 5)
            made = a.rsplit(" ", 1)[1]
            check(len(made) == 32 and made != "0" * 32 and wait_for(lambda: lines("slipringd", made), 5), f"one of our own: {a}")
        check(secret not in p.log("slipringd") + p.log("slipring-http"), "no prompt in the logs")


def full(flags, at_once, prompt, ok, word):
    """Beyond the queue: 503 with Retry-After and the flag's name; all others are answered."""
    with Programs() as p:
        p.daemon(*SLOW, "--max-num-seqs", 1, "--max-num-batched-tokens", 64, *flags)
        p.adapter("--disable-access-log", *flags)

        def one(i):
            return p.ask("POST", "/v1/completions", {**ASK, "prompt": [i + 1] + prompt, "max_tokens": 20})
        results = p.together(at_once, one)
        status = [r[0] for r in results]
        check(set(status) == {200, 503}, f"answered or refused: {sorted(set(status))}")
        check(ok[0] <= status.count(200) <= ok[1], f"{flags}: {status.count(200)} of {at_once} were served")
        for s, headers, text in results:
            if s == 503:
                check(1 <= int(headers["Retry-After"]) <= 60, "when to come back")
                check(word in json.loads(text)["error"]["message"], f"and why: {text}")
            else:
                check(json.loads(text)["usage"]["completion_tokens"] == 20, "whole answers")
        check(p.ask("POST", "/v1/completions", ASK)[0] == 200, "once there is room, there is room")


def main():
    need_model()
    run_modes()
    reload()
    same_answers()
    reload_of_both()
    watchdog()
    watchdog_of_both()
    drain()
    drain_to_the_limit()
    traces()
    # One runs, four wait: five, and one more for each that ended while they came.
    full(["--max-num-queued-reqs", 4], 40, [2, 3, 4], (5, 20), "max-num-queued-reqs")
    full(["--max-num-queued-tokens", 100], 30, [5] * 29, (3, 20), "max-num-queued-tokens")
    done()


main()
