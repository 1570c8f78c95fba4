#!/usr/bin/env python3
"""A stats page whose owner lies: cut short, or full of random bytes, under every program that reads it.
The daemon's user can write anything there; that may cost a reader an error, never its life."""
import pty, random, subprocess, tarfile
from harness import *

random.seed(int(os.environ.get("SEED", "20")))
HEAD = 16                    # magic, version, bytes; of another version it would be refused at once
READERS = (["top", "--once", "-i", "0.1"], ["top", "--once", "--json", "-i", "0.1"], ["why"], ["why", "--json", "--since", "1d"],
           ["set"], ["set", "--json"], ["set", "max-num-seqs", "4", "--save"], ["doctor"], ["doctor", "--json"],
           ["ping", "-n", "1"], ["generate", "--max-tokens", "1", "x"], ["tune", "--dry-run"],
           ["bench", "serve", "--num-prompts", "1", "--transport", "ring"])


def slipring(p, *args):
    return subprocess.run([os.path.join(BUILD, "slipring"), *args], stdin=subprocess.DEVNULL, capture_output=True,
                          env=p.env, timeout=60)


def lives(adapter, p, what):
    """The adapter answers, whatever the page is."""
    for path in ("/health", "/metrics", "/v1/models", "/load"):
        status, _, text = p.ask("GET", path)
        check(status in (200, 503), f"{what}: {path} is answered: {status} {text[:200]}")
    check(adapter.poll() is None, f"{what}: the adapter lives: {adapter.poll()}")


def cut():
    """Shorter and shorter, under an adapter and its watch, which looks once a second."""
    with Programs() as p:
        p.daemon("--device", "null")
        a = p.adapter("--device", "null")
        page = os.path.join(p.dir, "stats")
        p.procs["slipringd"].send_signal(signal.SIGSTOP)      # its own mapping would fault
        for size in (1000000, 5000, 4096, 100, 0):
            os.truncate(page, size)
            lives(a, p, f"{size} bytes")
            time.sleep(1.1)
            lives(a, p, f"{size} bytes, a second later")
        check(p.ask("GET", "/health")[0] == 503, "and says that the daemon is not well")
        for args in READERS:
            r = slipring(p, *args)
            check(r.returncode >= 0, f"{args} does not end by a signal: {r.returncode}")
        p.procs["slipringd"].kill()
        p.procs["slipringd"].wait()
        p.daemon("--device", "null")
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the next daemon is found")


def garbage(real, pid, round):
    """A page as the daemon left it, and what its owner makes of it: everything, or some fields."""
    b = bytearray(real)
    if round % 3 == 0:
        b[HEAD:] = random.randbytes(len(b) - HEAD)
    for _ in range(4 ** (round % 6)):
        at = random.randrange(HEAD, len(b) - 8) if round % 2 else random.randrange(HEAD, 8000)
        b[at:at + 8] = random.choice((b"\xff" * 8, b"\x7f" * 8, b"\x1b[2J\x9b\xc2\x9b\n", random.randbytes(8),
                                      b"\x00\x00\x00\x00\x00\x00\xf8\x7f"))
    if round % 3 != 1:
        b[HEAD - 4:HEAD] = pid.to_bytes(4, "little")          # as one that is alive
    return bytes(b)


def random_bytes(rounds):
    with Programs() as p:
        p.daemon("--device", "null")
        a = p.adapter("--device", "null")
        page = os.path.join(p.dir, "stats")
        p.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4})
        p.procs["slipringd"].kill()                           # its page stays, and nobody repairs it
        p.procs["slipringd"].wait()
        with open(page, "rb") as f:
            real = f.read()
        for round in range(rounds):
            with open(page, "r+b") as f:
                f.write(garbage(real, os.getpid(), round))
            lives(a, p, f"round {round}")
            for args in random.sample(READERS, 4) + [["doctor", "--bundle", os.path.join(p.dir, f"{round}.tar")]]:
                r = slipring(p, *args)
                check(r.returncode >= 0, f"round {round}: {args} does not end by a signal: {r.returncode}")
                check(args[-1] == "--json" or not set(range(32)) - {9, 10} & set(r.stdout + r.stderr),
                      f"round {round}: {args} prints no control character: {r.stdout[:300]} {r.stderr[:300]}")


def linked():
    """A link where a file is made that is renamed later, put there by somebody who may write in the folder."""
    with Programs() as p:
        p.daemon("--device", "null")
        victim, ready = os.path.join(p.dir, "victim"), os.path.join(p.dir, "ready")
        with open(victim, "w") as f:
            f.write("untouched")
        a = subprocess.Popen(["sh", "-c", f'ln -s {victim} {ready}.$$; exec "$0" --port 0 --device null --ready-file {ready}',
                              os.path.join(BUILD, "slipring-http")], env=p.env, stderr=subprocess.DEVNULL)
        p.procs["sh"] = a
        check(wait_for(lambda: os.path.exists(ready), 30), "it is ready")
        with open(victim) as f, open(ready) as g:
            check(f.read() == "untouched" and g.read().startswith("http://127.0.0.1:"), "its own file, no other")
        a.terminate()
        a.wait(10)
        del p.procs["sh"]


def paths_of_anothers_page():
    """A page of a user who is neither root nor the caller names files and a process: they are left alone."""
    with Programs() as p:
        config, page = os.path.join(p.dir, "settings.yaml"), os.path.join(p.dir, "stats")
        with open(config, "w") as f:
            f.write("max-num-seqs: 8\n")
        model, ask, answers = (os.path.join(p.dir, n) for n in ("model", "ask.jsonl", "answers.jsonl"))
        make_model(model)
        with open(ask, "w") as f:
            f.write('{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}\n')
        p.daemon(model, "--load-format", "dummy", "--device", "null", "--config", config)
        for owner, believed in ((65534, False), (0, True)):
            os.chown(page, owner, owner)
            r = slipring(p, "set", "max-num-seqs", "4" if believed else "6", "--save")
            with open(config) as f:
                saved = f.read()
            check((r.returncode == 0) == believed and saved == f"max-num-seqs: {4 if believed else 8}\n", f"{r} {saved}")
            check(believed or b"uid 65534" in r.stderr and b"--save=FILE" in r.stderr, f"a sentence says why: {r.stderr}")
            r = slipring(p, "batch", ask, answers, "--quiet")
            check((r.returncode == 0) == believed, f"the model of the page is opened: {r}")
            check(believed or b"uid 65534" in r.stderr and b"name the model with --model" in r.stderr, f"{r.stderr}")
            tar = os.path.join(p.dir, f"{owner}.tar")
            check(slipring(p, "doctor", "--bundle", tar).returncode == 0, "a bundle")
            with tarfile.open(tar) as t:
                names = {os.path.basename(m.name) for m in t.getmembers()}
            mine = {"config.yaml", "cmdline.txt", "status.txt", "limits.txt", "cgroup.txt"}
            check(names & (mine | {"no-config.txt"}) == (mine if believed else {"no-config.txt"}), f"{owner}: {names}")


def on_a_terminal(p, *args):
    """What a program writes to a terminal."""
    master, slave = pty.openpty()
    r = subprocess.Popen([os.path.join(BUILD, "slipring"), *args], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env=p.env)
    os.close(slave)
    seen = b""
    try:
        while True:
            seen += os.read(master, 65536)
    except OSError:                                           # the other end is closed
        pass
    os.close(master)
    check(r.wait(60) >= 0, f"{args}: {r.returncode}")
    return seen


def answers_on_terminals():
    """The null device says any token there is; some are control characters.  A terminal does not get them."""
    with Programs() as p:
        p.daemon("--device", "null")
        args = ["--max-tokens", "8000", "--ignore-eos", "--temperature", "0"]
        for command in (["generate", *args, "hello"], ["chat", *args, "--once", "hello"]):
            plain = slipring(p, *command)
            check(plain.returncode == 0, f"{command}: {plain.stderr}")
            wild = {b for b in plain.stdout if b < 32 or b == 127} - {9, 10}
            check(len(wild) > 3, f"{command}: in a pipe it is as it was: {wild}")
            seen = on_a_terminal(p, *command)
            left = seen.replace(b"\r\n", b"\n").replace(b"\t", b"")
            check(not {b for b in left if b < 32 or b == 127} - {10}, f"{command}: {set(left)}")
            check(b"\xc2\x9b" not in left and b"^" in left and len(left) > 20000, f"{command}: {len(left)}")
        # what the user's own words, a server or a file say is shown the same way
        seen = on_a_terminal(p, "generate", "--no-such\x1b]0;title\x07\x9b")
        check(b"^[]0;title^G" in seen and b"\x1b" not in seen and b"\x07" not in seen, f"{seen}")


need_model()
answers_on_terminals()
if os.geteuid() == 0:
    paths_of_anothers_page()
else:
    print("SKIP pages of another user: only root can make some")
    print("[  SKIPPED ] 1 test(s), listed below:")
linked()
cut()
random_bytes(int(os.environ.get("ROUNDS", "24")))
done()
