#!/usr/bin/env python3
"""Run the commands that the documents show, as they stand and in order, and check what the text promises.

    tests/docs_run.py                  all of them: a fresh clone, a fresh HOME, port 8000 of this machine
    tests/docs_run.py --part BUILD     what fits into two minutes, with the programs in BUILD
    tests/docs_run.py --check          is every block of commands covered by a marker?
    tests/docs_run.py .. docs/page.md  these documents alone

A marker is an HTML comment before a block of commands:

    <!-- run: exit 1, prints /no such file/, within 20 -->

With one line it holds for every command of the block; with several, each line is for one command, in order:

    exit N           the exit code; 0 if nothing is said
    prints /RE/      what stdout and stderr together have; may be given more than once
    within S         seconds until it must have ended (60)
    with WORD=TEXT   TEXT in place of WORD; `default` is the path of the default model
    serve            it stays until the next `serve`, or the end of the document; ready when it says so
    slow             not in --part
    skip REASON      not run, and counted: a GPU, a hub, root, systemd, another program
    output           the block is what the last command printed;  output /RE/: that command and the block have it
    file NAME        the block is put into that file
    python           the block is a program, with adapters/python on its path
    fragment         nothing to run: a part of a program, of settings, of a log

    <!-- given: COMMAND -->

says what is there before: the command is run, and a `slipring serve` stays.

A command is a line, or several until quotes and backslashes are closed.  Lines that begin with "$ " are
commands, if a block has such lines; its other lines are then output.
"""
import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCS = ["README.md", "docs/start.md", "docs/page.md", "docs/grammar.md", "docs/agents.md", "docs/operate.md",
        "docs/checklist.md"]
RUNNABLE = ("", "sh", "console", "python", "c")     # languages of fences that need a marker
MODEL = "slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf"
READY = re.compile(r"serving .*on http|Ready after .*socket")
WORDS = re.compile(r"\s*(\w+)(?:\s+(/(?:[^/\\]|\\.)*/|[^,]+))?\s*(?:,|$)")
WITHOUT_TEXT = {"serve", "slow", "python", "fragment", "output"}
WITH_TEXT = {"exit", "prints", "within", "with", "skip", "output", "file"}


class Wrong(Exception):
    """A marker or a block that nobody can follow."""


class Block:
    """Lines of a document in which commands may be."""

    def __init__(self, doc, line, lines, marker):
        self.doc, self.line, self.lines, self.marker = doc, line, lines, marker

    def where(self):
        return f"{self.doc}:{self.line}"


def blocks(doc, text):
    """Indented blocks and fences of commands, with the marker that stands before each, or None."""
    lines = text.split("\n")
    i, marker, found = 0, None, []
    while i < len(lines):
        line = lines[i]
        if line.startswith("<!-- run"):
            begin = i
            while "-->" not in lines[i]:
                i += 1
                if i == len(lines):
                    raise Wrong(f"{doc}:{begin + 1}: a marker without an end")
            marker = "\n".join(lines[begin:i + 1])[len("<!-- run"):].split("-->")[0].lstrip(":").strip("\n ")
        elif line.startswith("<!-- given: "):
            found.append(Block(doc, i + 1, [line[len("<!-- given: "):].split(" -->")[0]],
                               "serve" if "slipring serve" in line else ""))
        elif line.startswith("```"):
            begin = i = i + 1
            while not lines[i].startswith("```"):
                i += 1
            if line[3:].strip() in RUNNABLE or marker is not None:
                found.append(Block(doc, begin + 1, lines[begin:i], marker))
            marker = None
        elif line.startswith("    ") and (i == 0 or not lines[i - 1].strip() or "-->" in lines[i - 1]):
            begin = i
            while i + 1 < len(lines) and (lines[i + 1].startswith("    ") or
                                          (not lines[i + 1].strip() and i + 2 < len(lines) and lines[i + 2].startswith("    "))):
                i += 1
            found.append(Block(doc, begin + 1, [x[4:] for x in lines[begin:i + 1]], marker))
            marker = None
        elif line.strip():
            if marker is not None:
                raise Wrong(f"{doc}:{i + 1}: the marker above is not followed by a block")
        i += 1
    return found


def directives(block):
    """The marker's lines, each as a list of (word, text)."""
    rows = []
    for line in block.marker.split("\n") if block.marker.strip() else [""]:
        at, row = 0, []
        line = line.strip()
        while at < len(line):
            m = WORDS.match(line, at)
            word, text = (m.group(1), (m.group(2) or "").strip()) if m else (None, None)
            if not m or word not in (WITH_TEXT if text else WITHOUT_TEXT):
                raise Wrong(f"{block.where()}: its marker says '{line[at:]}', which is no directive")
            row.append((word, text))
            at = m.end()
        rows.append(row)
    return rows


def whole(command):
    return not command.endswith("\\") and subprocess.run(["bash", "-n", "-c", command], stderr=subprocess.DEVNULL).returncode == 0


def commands(block):
    """The commands of a block: (line, text)."""
    prompt = any(x.startswith("$ ") for x in block.lines)
    found, open_at = [], None
    for i, line in enumerate(block.lines):
        if open_at is None:
            if not line.strip() or line.lstrip().startswith("#") or (prompt and not line.startswith("$ ")):
                continue
            open_at, text = block.line + i, line[2:] if prompt else line
        else:
            text += "\n" + line
        if whole(text):
            found.append((open_at, text))
            open_at = None
    if open_at is not None:
        raise Wrong(f"{block.doc}:{open_at}: a command without an end")
    return found


def plan(block):
    """What a block asks for: (line, kind, text, its directives), one for each step."""
    rows = directives(block)
    first = rows[0][0][0] if rows[0] else ""
    if first in ("output", "file", "python", "fragment"):
        return [(block.line, first, "\n".join(block.lines), rows[0])]
    steps = commands(block)
    if not steps:
        raise Wrong(f"{block.where()}: the marker is for commands, and there is none")
    if len(rows) not in (1, len(steps)):
        raise Wrong(f"{block.where()}: {len(steps)} commands, and {len(rows)} lines in their marker")
    return [(line, "command", text, rows[i if len(rows) > 1 else 0]) for i, (line, text) in enumerate(steps)]


def texts(row, word):
    return [text for w, text in row if w == word]


def pattern(text):
    return re.compile(text[1:-1], re.S)


class Machine:
    """Where commands run: a HOME, a folder that looks like a clone, a network of its own if that can be had."""

    def __init__(self, build):
        self.dir = tempfile.mkdtemp(prefix="slipring-docs-")
        self.home = os.path.join(self.dir, "home")
        self.clone = os.path.join(self.dir, "slipring")
        os.makedirs(os.path.join(self.home, ".cache/slipring/models"))
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self.model = os.path.join(self.home, ".cache", MODEL)
        if build:
            os.mkdir(self.clone)
            for name in os.listdir(ROOT):
                if name not in ("build", ".git"):
                    os.symlink(os.path.join(ROOT, name), os.path.join(self.clone, name))
            os.symlink(os.path.abspath(build), os.path.join(self.clone, "build"))
            if os.path.exists(os.path.join(cache, MODEL)):
                os.symlink(os.path.join(cache, MODEL), self.model)
        else:
            subprocess.run(["git", "clone", "-q", ROOT, self.clone], check=True)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "SLIPRING_", "LISTEN_", "MAKE", "MFLAGS"))}
        self.env = keep | {"HOME": self.home, "PATH": os.path.join(self.clone, "build") + ":" + os.environ["PATH"],
                           "XDG_RUNTIME_DIR": os.path.join(self.dir, "run"), "NO_COLOR": "1"}
        os.mkdir(self.env["XDG_RUNTIME_DIR"], 0o700)
        if os.geteuid() == 0 and not build:
            self.env.pop("XDG_RUNTIME_DIR")

    def remove(self):
        shutil.rmtree(self.dir, ignore_errors=True)


def alone():
    """A network and, for root, a /run of our own, so that port 8000 is free.  False if the kernel does not let us."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_user, new_net, new_ns = 0x10000000, 0x40000000, 0x20000
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(new_net | new_ns | (0 if uid == 0 else new_user)):
        return False
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    else:
        libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)              # MS_REC | MS_PRIVATE
        if libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None):
            return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:                # ip link set lo up
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
    return True


class Run:
    def __init__(self, machine, part):
        self.m, self.part = machine, part
        self.server = self.log = None
        self.last = ""
        self.checks, self.skipped, self.failed = 0, [], []

    def fail(self, where, what, output=""):
        self.failed.append(where)
        print(f"[  FAILED  ] {where}: {what}")
        for line in output.split("\n")[-20:]:
            print(f"    {line}")
        sys.stdout.flush()

    def stop(self):
        if not self.server:
            return
        if self.server.poll() is None:
            self.server.terminate()
        try:
            self.server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.server.pid, signal.SIGKILL)
            self.server.wait()
            self.fail("the server", "did not stop within 60 s of SIGTERM")
        self.server = None

    def serve(self, where, text, seconds):
        self.stop()
        self.server = subprocess.Popen(["bash", "-c", "exec " + text], cwd=self.m.clone, env=self.m.env, text=True, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        said, ready = [], threading.Event()

        def read(out):
            for line in out:
                said.append(line)
                if len(said) > 1000:
                    del said[:500]
                if READY.search(line) and line.find("http") >= 0:
                    ready.set()
            ready.set()

        threading.Thread(target=read, args=(self.server.stdout,), daemon=True).start()
        ready.wait(seconds)
        self.last = "".join(said)
        if not ready.is_set() or self.server.poll() is not None:
            self.fail(where, f"{text}: not ready within {seconds} s", self.last)
        else:
            self.checks += 1

    def command(self, where, text, row):
        for t in texts(row, "with"):
            word, _, value = t.partition("=")
            text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", self.m.model if value == "default" else value, text)
        seconds = float((texts(row, "within") or ["60"])[0])
        if any(w == "serve" for w, _ in row):
            self.serve(where, text, seconds)
            return
        begun = time.monotonic()
        p = subprocess.Popen(["bash", "-c", text], cwd=self.m.clone, env=self.m.env, text=True, errors="replace", stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self.last, _ = p.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            self.last, _ = p.communicate()
            self.fail(where, f"{text}: not done within {seconds:.0f} s", self.last)
            return
        if time.monotonic() - begun > 5:
            print(f"{where}: {time.monotonic() - begun:.1f} s: {text.splitlines()[0][:80]}")
        wanted = int((texts(row, "exit") or ["0"])[0])
        if p.returncode != wanted:
            self.fail(where, f"{text}: exit code {p.returncode}, not {wanted}", self.last)
            return
        self.checks += 1
        self.prints(where, row, "prints")

    def prints(self, where, row, word):
        for t in texts(row, word):
            if t and not pattern(t).search(self.last):
                self.fail(where, f"{t} was not printed", self.last)
            elif t:
                self.checks += 1

    def step(self, block, line, kind, text, row):
        where = f"{block.doc}:{line}"
        skip = texts(row, "skip")
        if skip or (self.part and any(w == "slow" for w, _ in row)):
            self.skipped.append((where, skip[0] if skip else "slow: make docs-run has it", text))
        elif kind == "file":
            with open(os.path.join(self.m.clone, texts(row, "file")[0]), "w") as f:
                f.write(text + "\n")
        elif kind == "python":
            path = os.path.join(self.m.dir, "program.py")
            with open(path, "w") as f:
                f.write(text + "\n")
            self.command(where, f"PYTHONPATH=adapters/python python3 {path}", row)
        elif kind == "output":
            for t in texts(row, "output"):
                if t and not pattern(t).search(text):
                    raise Wrong(f"{where}: {t} is not in the block itself")
            self.prints(where, row, "output")
        elif kind == "command":
            self.command(where, text, row)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))      # a time limit: the server is stopped, too
    args = sys.argv[1:]
    build = args[args.index("--part") + 1] if "--part" in args else None
    docs = [a for a in args if a.endswith(".md")] or DOCS
    per_doc = []
    for doc in docs:
        with open(os.path.join(ROOT, doc)) as f:
            found = blocks(doc, f.read())
        for b in found:
            if b.marker is None:
                raise Wrong(f"{b.where()}: a block without a marker; tests/docs_run.py says what markers there are")
        per_doc.append([(b, plan(b)) for b in found])
    if "--check" in args:
        print(f"{sum(len(p) for d in per_doc for _, p in d)} steps in {len(docs)} documents are covered")
        return 0

    machine = Machine(build)
    try:
        if build and not os.path.exists(machine.model):
            print("SKIP: the default model is not there; tools/fetch-model.sh fetches it")
            return 0
        if build and not alone():
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    s.bind(("127.0.0.1", 8000))
                except OSError:
                    print("SKIP: the commands of the documents need port 8000, and a program has it")
                    return 0
        run = Run(machine, build)
        for steps in per_doc:
            for block, its in steps:
                for line, kind, text, row in its:
                    run.step(block, line, kind, text, row)
            run.stop()
    finally:
        if "run" in locals():
            run.stop()
        machine.remove()
    if not build:
        for where, why, text in run.skipped:
            print(f"{where}: not run ({why}): {text.splitlines()[0][:80]}")
    reasons = {}
    for _, why, _ in run.skipped:
        reasons[why] = reasons.get(why, 0) + 1
    for why, n in sorted(reasons.items()):
        print(f"SKIP: {n} of the documents' commands: {why}")
    if run.failed:
        print(f"[  FAILED  ] {len(run.failed)} test(s), listed below:")
        return 1
    print(f"ok: {run.checks} checks")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Wrong as e:
        print(f"docs_run: {e}")
        sys.exit(1)
