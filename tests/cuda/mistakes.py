#!/usr/bin/env python3
"""Mistakes that a developer could make in the CUDA kernels, one at a time: the emulation's tests must find them.

    tests/cuda/mistakes.py BUILD [LIST ..] [--only WORDS] [--left] [--jobs 2] [--with "nice"]
    tests/cuda/mistakes.py --check [LIST ..]    does each still fit its source?  Nothing is built

LIST is a file such as tests/cuda/mistakes.txt:

    in FOLDER
    test, test: what the mistake is
    	@ a line that comes before (if the lines below are in the source twice)
    	- lines of the source, one after the other
    	+ what stands there instead; none: they are left out

It may have several such pieces, all in one file of FOLDER.  The mistake is put into a copy of kernels/, what
depends on it is compiled, and tests are linked and run until one fails, crashes or hangs: first those that the list
names (test_X or test_cuda_X as X), then all others that have the file, fast ones first.  --left: only those that the last run
did not find.  Results are kept in BUILD/mistakes.  Exit 1 if fewer than 95 of 100 are found."""
import argparse, concurrent.futures, hashlib, os, pathlib, re, resource, shlex, shutil, signal, subprocess, sys, threading, time

HERE = pathlib.Path(__file__).parent
FLOOR = 0.95
AT_LEAST_S, SLOWER = 30, 8              # a test hangs if it takes as long and so many times as long
ENV = {"SLIPRING_ALL": "1"}             # test_cuda_ranks: all cases; not in a quick run
# Where a test of all is too slow to be tried last.
LAST = ["test_models_cuda", "test_cuda_ranks"]


class Mistake:
    def __init__(self, where, folder, tests, what):
        self.where, self.folder, self.tests, self.what, self.pieces = where, pathlib.Path(folder), tests, what, []

    def begin(self, after=None):
        self.pieces.append((after, [], []))


def parse(path):
    out, folder = [], "kernels"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("in "):
            folder = line[3:]
            continue
        if not line.startswith("\t"):
            tests, what = line.split(": ", 1)
            out.append(Mistake(f"{path.name}:{number}", folder, [t.strip() for t in tests.split(",")], what))
            continue
        kind, text = line[1], line[3:].strip()
        m = out[-1]
        if kind == "@":
            m.begin(text)
        elif kind == "-":
            if not m.pieces or m.pieces[-1][2]:
                m.begin()
            m.pieces[-1][1].append(text)
        elif kind == "+":
            m.pieces[-1][2].append(text)
    return out


def lines_of(tree):
    return {p: p.read_text().splitlines() for p in sorted(tree.rglob("*"))
            if p.suffix in (".cu", ".cuh", ".c", ".h") and p.is_file()}


def find(lines, after, old):
    """Where the old lines are in a file: all places behind the first line that is `after`."""
    stripped, begin = [line.strip() for line in lines], 0
    if after is not None:
        if after not in stripped:
            return []
        begin = stripped.index(after) + 1
    at = [i for i in range(begin, len(lines) - len(old) + 1) if stripped[i:i + len(old)] == old]
    return at[:1] if after is not None else at


def fit(m, sources):
    """(file, its text with the mistake), or a word on why it does not fit."""
    found = []
    for path, lines in sources.items():
        if m.folder not in path.parents:
            continue
        places = [find(lines, after, old) for after, old, _ in m.pieces]
        if all(places):
            found.append((path, places))
    if not found:
        return f"its lines are in no file of {m.folder}"
    if len(found) > 1 or any(len(p) > 1 for p in found[0][1]):
        return "its lines are there more than once"
    path, places = found[0]
    lines = list(sources[path])
    for at, (_, old, new) in sorted(((p[0], piece) for p, piece in zip(places, m.pieces)), reverse=True, key=lambda x: x[0]):
        lines[at:at + len(old)] = new + [""] * (len(old) - len(new))
    return path, "\n".join(lines) + "\n"


class Build:
    """How make builds the tests that depend on a file."""

    def __init__(self, build, prefix):
        self.build, self.prefix, self.plans, self.quick = build, prefix, {}, False
        self.lock = threading.Lock()
        self.dir = build / "mistakes"
        self.dir.mkdir(parents=True, exist_ok=True)
        self.tests = sorted(p.stem for p in pathlib.Path("tests").rglob("test_*.cc")) + ["test_ranks", "test_cpu_ranks",
            "test_share"]
        self.tests = [t for t in self.tests if t not in ("test_gpu_runner", "test_emu", "test_cuda_bench")]
        self.env = dict(os.environ, MAKEFLAGS="")

    def sh(self, cmd, **more):
        return subprocess.run(self.prefix + cmd, capture_output=True, text=True, env=self.env, **more)

    def make(self, *args):
        return subprocess.run(["make", f"BUILD={self.build}", "V=1", *args], capture_output=True, text=True, env=self.env)

    def all(self):
        r = self.sh(["make", f"BUILD={self.build}", f"-j{os.cpu_count()}"] + [f"{self.build}/tests/{t}" for t in self.tests])
        if r.returncode:
            sys.exit("the unchanged tree does not build:\n" + r.stderr[-2000:])

    def plan(self, name):
        """For each test that has this file: commands that make objects, and the one that links."""
        with self.lock:
            if name in self.plans:
                return self.plans[name]
            said = self.make("-n", "-W", name, *[f"{self.build}/tests/{t}" for t in self.tests]).stdout.splitlines()
            cmds = [(shlex.split(c), re.search(r" -o (\S+)", c).group(1)) for c in said if " -o " in c]
            objects, out = [c for c in cmds if c[1].endswith(".o")], {}
            for link, program in cmds:
                if not program.endswith(".o"):
                    out[os.path.basename(program)] = [c for c in objects if c[1] in link], (link, program)
            self.plans[name] = out
            return out

    def try_one(self, m, sources, base):
        """By which test it is found; None: by none.  A word if it cannot be tried."""
        fits = fit(m, sources)
        if isinstance(fits, str):
            return "does not fit: " + fits
        path, text = fits
        name = str(path)
        key = hashlib.sha256((name + text).encode()).hexdigest()[:12]
        room = self.dir / key
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        subprocess.run(["cp", "-rs", os.path.abspath("kernels"), str(room)], check=True)
        (room / name).unlink()
        (room / name).write_text(text)
        try:
            return self.run_all(m, name, room, base)
        finally:
            shutil.rmtree(room, ignore_errors=True)

    def run_all(self, m, name, room, base):
        plan, made = self.plan(name), {}
        first = [f"test_{t}" if f"test_{t}" in plan else f"test_cuda_{t}" for t in m.tests]
        wrong = [t for t in first if t not in plan]
        if wrong:
            return f"does not fit: {', '.join(wrong)} does not depend on {name}"
        rest = sorted((t for t in plan if t not in first), key=lambda t: (LAST.index(t) + 1 if t in LAST else 0, base.get(t, 5)))
        for test in first + ([] if self.quick else rest):
            objects, (link, _) = plan[test]
            for cmd, o in objects:
                if o in made:
                    continue
                made[o] = str(room / o.replace("/", "_"))
                cmd = ["-O1" if c == "-O2" else c for c in cmd if c not in ("-MMD", "-MP", "-g")]
                cmd[cmd.index("-o") + 1] = made[o]
                source = cmd[-1]
                if source.startswith("kernels/"):
                    cmd[-1] = str(room / source)
                cmd.insert(next(i for i, c in enumerate(cmd) if c.startswith("-")), f"-I{room}")
                r = self.sh(cmd)
                if r.returncode:
                    return "does not compile: " + (r.stderr.splitlines() or [""])[-1] + (r.stderr[:600])
            target = str(room / test)
            link = [made.get(c, c) for c in link]
            link[link.index("-o") + 1] = target
            r = self.sh(link)
            if r.returncode:
                return "does not link: " + r.stderr[-300:]
            how = self.run(target, max(AT_LEAST_S, SLOWER * base.get(test, 5)), room)
            os.unlink(target)
            if how:
                return f"{how} {test}"
        return None

    def run(self, program, limit, room):
        """None if it passed, else what it did."""
        out = room / "output"
        with open(out, "wb") as to, open(out, "rb") as heard:
            p = subprocess.Popen(self.prefix + [program], env=self.env, stdin=subprocess.DEVNULL, stdout=to,
                                 stderr=subprocess.STDOUT, start_new_session=True,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
            end, said = time.monotonic() + limit, b""
            while p.poll() is None and b"[  FAILED  ]" not in said and time.monotonic() < end:
                time.sleep(0.01)
                said = said[-12:] + heard.read()
        rc = p.poll()
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
        return None if rc == 0 else "fails" if rc or time.monotonic() < end else "hangs"


def measure(b):
    """Seconds of each test of the unchanged tree; each must pass."""
    path, known = b.dir / "seconds.tsv", {}
    if path.exists():
        known = {t: float(s) for t, s in (line.split("\t") for line in path.read_text().splitlines())}
    for t in b.tests:
        program = b.build / "tests" / t
        if t in known and path.stat().st_mtime > program.stat().st_mtime:
            continue
        began = time.monotonic()
        how = b.run(str(program), 600, b.dir)
        if how:
            sys.exit(f"{t} {how} with the unchanged tree:\n" + (b.dir / "output").read_text(errors="replace")[-1500:])
        known[t] = time.monotonic() - began
        path.write_text("".join(f"{t}\t{s:.2f}\n" for t, s in sorted(known.items())))
    return known


def check(lists):
    sources, bad, n = lines_of(pathlib.Path("kernels")), 0, 0
    for path in lists:
        for m in parse(path):
            n += 1
            f = fit(m, sources)
            if isinstance(f, str):
                bad += 1
                print(f"{m.where}: {m.what}: {f}")
    print(f"{n - bad} of {n} mistakes fit the source")
    return n - bad < FLOOR * n


def main():
    p = argparse.ArgumentParser()
    p.add_argument("words", nargs="*")
    p.add_argument("--check", action="store_true")
    p.add_argument("--only")
    p.add_argument("--left", action="store_true")
    p.add_argument("--new", action="store_true", help="only those that were not tried before")
    p.add_argument("--seconds", type=float, default=1e9, help="after so many, no other is begun")
    p.add_argument("--quick", action="store_true", help="only the tests that the list names")
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--with", dest="prefix", default="nice")
    a = p.parse_args()
    os.chdir(HERE.parent.parent)
    lists = [pathlib.Path(w) for w in a.words[0 if a.check else 1:]] or sorted(HERE.glob("mistakes*.txt"))
    if a.check:
        sys.exit(check(lists))
    b = Build(pathlib.Path(a.words[0]), shlex.split(a.prefix))
    b.quick = a.quick
    b.env.update({} if a.quick else ENV)
    b.all()
    base, sources = measure(b), lines_of(pathlib.Path("kernels"))
    memory = b.dir / "found.tsv"
    known = dict(line.split("\t") for line in memory.read_text().splitlines()) if memory.exists() else {}
    all_of = [m for path in lists for m in parse(path)]
    todo = [m for m in all_of if (not a.only or re.search(a.only, m.what + " " + m.where)) and
            not (a.left and known.get(m.what, "").startswith(("fails", "hangs"))) and not (a.new and m.what in known)]
    last = time.monotonic() + a.seconds
    todo.sort(key=lambda m: hashlib.sha256(m.what.encode()).digest())  # any part of a run is a sample

    def one(m):
        began = time.monotonic()
        if began > last:
            return
        how = b.try_one(m, sources, base) or "SURVIVES"
        known[m.what] = how
        memory.write_text("".join(f"{w}\t{' '.join(h.split())}\n" for w, h in sorted(known.items())))
        print(f"{m.where}: {how}: {m.what} ({time.monotonic() - began:.0f} s)", flush=True)

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        list(pool.map(one, todo))
    found = sum(known.get(m.what, "").startswith(("fails", "hangs")) for m in all_of)
    for m in all_of:
        if not known.get(m.what, "").startswith(("fails", "hangs")):
            print(f"not found: {m.where}: {m.what}: {known.get(m.what, 'not tried')}")
    print(f"{found} of {len(all_of)} mistakes are found")
    sys.exit(found < FLOOR * len(all_of))


if __name__ == "__main__":
    main()
