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
depends on it is compiled, and tests are linked and run until one fails, crashes or hangs:

    1   those that the list names (test_X or test_cuda_X as X)
    2   the same with SLIPRING_ALL=1, where that adds cases
    3   all others that have the file, fast ones first; then those that take minutes, and with SLIPRING_ALL=1

What was found is kept in BUILD/mistakes until kernels/ or tests/ change: a run that ended early goes on where it was.
--again tries all; --left those that no run has found, also before such a change.  Exit 1 if fewer than 95 of 100 are
found."""
import argparse, concurrent.futures, hashlib, os, pathlib, re, shlex, shutil, subprocess, sys, threading, time

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import seeded

FLOOR = 0.95
AT_LEAST_S, SLOWER = 30, 8              # a test hangs if it says nothing for so long, and so many times its longest silence
ALL = {"SLIPRING_ALL": "1"}
LAST = ["test_models_cuda", "test_cuda_ranks"]      # minutes
CAUGHT, NAMED_ONLY = ("fails", "hangs"), "SURVIVES the tests that the list names"


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

    def __init__(self, build, prefix, quick):
        self.build, self.prefix, self.quick, self.plans = build, prefix, quick, {}
        self.lock = threading.Lock()
        self.dir = build / "mistakes"
        self.dir.mkdir(parents=True, exist_ok=True)
        source = {p.stem: p for p in pathlib.Path("tests").rglob("test_*.c*")}
        self.tests = sorted(t for t, p in source.items() if p.suffix == ".cc") + ["test_ranks", "test_cpu_ranks", "test_share"]
        self.tests = [t for t in self.tests if t not in ("test_gpu_runner", "test_emu", "test_emu_hopper", "test_cuda_bench")]
        self.has_more = {t for t in self.tests if re.search("SLIPRING_ALL|held_kinds", source[t].read_text())}
        self.env = dict(os.environ, MAKEFLAGS="")
        self.times, self.time_locks = self.dir / "seconds.tsv", {t: threading.Lock() for t in self.tests}

    def sh(self, cmd, **more):
        return subprocess.run(self.prefix + cmd, capture_output=True, text=True, env=self.env, **more)

    def all(self):
        r = self.sh(["make", f"BUILD={self.build}", f"-j{os.cpu_count()}"] + [f"{self.build}/tests/{t}" for t in self.tests])
        if r.returncode:
            sys.exit("the unchanged tree does not build:\n" + r.stderr[-2000:])

    def plan(self, name):
        """For each test that has this file: commands that make objects, and the one that links."""
        with self.lock:
            if name not in self.plans:
                r = self.sh(["make", f"BUILD={self.build}", "V=1", "-n", "-W", name, *[f"{self.build}/tests/{t}" for t in self.tests]])
                self.plans[name] = seeded.by_program(seeded.commands(r.stdout))
            return self.plans[name]

    def known_times(self):
        """{test and whether with all cases: (how old the program was, seconds, longest silence)}."""
        known = seeded.remembered(self.times)
        return {k: tuple(map(float, v.split())) for k, v in known.items()}

    def base(self, test, more):
        """Seconds of the unchanged test, and its longest silence; it must pass."""
        program, key = self.build / "tests" / test, test + (" all" if more else "")
        with self.time_locks[test]:
            with self.lock:
                known = self.known_times()
            made = program.stat().st_mtime
            if key in known and known[key][0] == made:
                return known[key][1:]
            w = self.run(str(program), 1200, 600, more, self.dir / f"output of {test}")
            if w.how:
                raise RuntimeError(f"{test} {w.how} with the unchanged tree:\n" +
                                   (self.dir / f"output of {test}").read_text(errors="replace")[-1500:])
            with self.lock:
                known = self.known_times() | {key: (made, w.seconds, w.silence)}
                self.times.write_text("".join(f"{k}\t{m} {s:.2f} {q:.2f}\n" for k, (m, s, q) in sorted(known.items())))
            return w.seconds, w.silence

    def run(self, program, most, silent, more, output):
        return seeded.Watched(self.prefix + [program], output, most, silent, env=self.env | (ALL if more else {}))

    def try_one(self, m, sources):
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
            return self.run_all(m, name, room)
        finally:
            shutil.rmtree(room, ignore_errors=True)

    def order(self, m, plan):
        """Which tests are run, each with whether SLIPRING_ALL=1 is said."""
        first = [f"test_{t}" if f"test_{t}" in plan else f"test_cuda_{t}" for t in m.tests]
        out = [(t, False) for t in first] + [(t, True) for t in first if t in self.has_more and not self.quick]
        if not self.quick:
            with self.lock:
                known = self.known_times()
            rest = sorted((t for t in plan if t not in first),
                          key=lambda t: (t in LAST and 1 + LAST.index(t), known.get(t, (0, 5, 0))[1]))
            out += [(t, False) for t in rest if t not in LAST] + [(t, t in self.has_more) for t in rest
                                                                  if t in self.has_more or t in LAST]
        return out

    def compile(self, cmd, to, room):
        """A command of make's, for the copy of kernels/ in a room.  What went wrong, or None."""
        cmd = ["-O1" if c == "-O2" else c for c in cmd if c not in ("-MMD", "-MP", "-g")]
        cmd[cmd.index("-o") + 1] = to
        if cmd[-1].startswith("kernels/"):
            cmd[-1] = str(room / cmd[-1])
        cmd.insert(next(i for i, c in enumerate(cmd) if c.startswith("-")), f"-I{room}")
        r = self.sh(cmd)
        return None if not r.returncode else (r.stderr.splitlines() or [""])[-1] + r.stderr[:600]

    def run_all(self, m, name, room):
        plan, made = self.plan(name), {}
        order = self.order(m, plan)
        wrong = [t for t, _ in order if t not in plan]
        if wrong:
            return f"does not fit: {', '.join(wrong)} does not depend on {name}"
        for test, more in order:
            objects, (link, _) = plan[test]
            seconds, silence = self.base(test, more)
            for cmd, o in objects:
                if o not in made:
                    made[o] = str(room / o.replace("/", "_"))
                    bad = self.compile(cmd, made[o], room)
                    if bad:
                        return "does not compile: " + bad
            target = str(room / test)
            if not os.path.exists(target):
                link = [made.get(c, c) for c in link]
                link[link.index("-o") + 1] = target
                r = self.sh(link + ["-s"])
                if r.returncode:
                    return "does not link: " + r.stderr[-300:]
            how = self.run(target, max(10 * AT_LEAST_S, SLOWER * seconds), max(AT_LEAST_S, SLOWER * silence), more,
                           room / "output").how
            if how:
                return f"{how} {test}" + " with SLIPRING_ALL=1" * more
        return None


def state():
    """A hash of all that results depend on."""
    h = hashlib.sha256()
    for top in ("kernels", "core", "shmring", "tests"):
        for p in sorted(pathlib.Path(top).rglob("*")):
            if p.suffix in (".cu", ".cuh", ".cc", ".c", ".h") and p.is_file():
                h.update(str(p).encode() + b"\0" + p.read_bytes())
    return h.hexdigest()[:12]


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
    p.add_argument("--again", action="store_true", help="also what was tried since the last change")
    p.add_argument("--seconds", type=float, default=1e9, help="after so many, no other is begun")
    p.add_argument("--quick", action="store_true", help="only the tests that the list names")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--with", dest="prefix", default="" if os.nice(0) else "nice")
    a = p.parse_args()
    os.chdir(HERE.parent.parent)
    lists = [pathlib.Path(w) for w in a.words[0 if a.check else 1:]] or sorted(HERE.glob("mistakes*.txt"))
    if a.check:
        sys.exit(check(lists))
    b = Build(pathlib.Path(a.words[0]), shlex.split(a.prefix), a.quick)
    began, now = time.monotonic(), state()
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    print(f"sources {now}, commit {commit}", flush=True)
    b.all()
    sources, memory = lines_of(pathlib.Path("kernels")), b.dir / "found.tsv"
    known = {w: tuple(v.split(" ", 1)) for w, v in seeded.remembered(memory).items()}     # what: (state and lines, how)
    all_of = [m for path in lists for m in parse(path)]
    keys = {m.what: hashlib.sha256((now + repr(m.pieces)).encode()).hexdigest()[:12] for m in all_of}
    if len(keys) < len(all_of):
        sys.exit("two mistakes have the same sentence")

    def caught(m, also_before=True):
        at, how = known.get(m.what, ("", ""))
        return how.startswith(CAUGHT) and (also_before or at == keys[m.what])

    def tried(m):
        at, how = known.get(m.what, ("", ""))
        return at == keys[m.what] and (a.quick or how != NAMED_ONLY)

    todo = [m for m in all_of if (not a.only or re.search(a.only, m.what + " " + m.where)) and
            not (a.left and caught(m)) and (a.again or a.left or not tried(m))]
    todo.sort(key=lambda m: hashlib.sha256(m.what.encode()).digest())  # any part of a run is a sample
    last, lock, done = time.monotonic() + a.seconds, threading.Lock(), 0

    def one(m):
        nonlocal done
        if time.monotonic() > last:
            return
        at = time.monotonic()
        how = b.try_one(m, sources) or (NAMED_ONLY if a.quick else "SURVIVES")
        with lock:
            done += 1
            known[m.what] = keys[m.what], " ".join(how.split())
            memory.write_text("".join(f"{w}\t{' '.join(v)}\n" for w, v in sorted(known.items())))
            print(f"{done} of {len(todo)}: {m.where}: {how}: {m.what} ({time.monotonic() - at:.0f} s)", flush=True)

    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        tries = [pool.submit(one, m) for m in todo]
        for t in concurrent.futures.as_completed(tries):
            if t.exception():
                pool.shutdown(wait=False, cancel_futures=True)
                sys.exit(str(t.exception()))
    found, earlier = sum(map(caught, all_of)), sum(caught(m) and not caught(m, False) for m in all_of)
    for m in all_of:
        if not caught(m):
            print(f"not found: {m.where}: {m.what}: {known.get(m.what, ('', 'not tried'))[1]}")
    print(f"{found} of {len(all_of)} mistakes are found" + f", {earlier} of them before kernels or tests changed" * bool(earlier) +
          f" ({time.monotonic() - began:.0f} s)")
    sys.exit(found < FLOOR * len(all_of))


if __name__ == "__main__":
    main()
