#!/usr/bin/env python3
"""Would the tests notice?  One small error at a time, and the tests must find it.

    tests/mutants.py BUILD FILE [--first 1] [--count 60] [--seconds 0] [--san]
    tests/mutants.py BUILD ROOM [--count 60] ..   the first COUNT of each file of a folder; fails below FLOOR
    tests/mutants.py --check        a test of this program

Every place in FILE's functions where one of OPERATORS fits is a mutant.  They are sorted by a hash of the
changed line, so that numbers FIRST .. FIRST+COUNT-1 are a sample, and mostly the same one after the file
changed elsewhere.  Each is compiled in a copy of the tree (BUILD/mutants/ROOM), by the commands that make would
use, and run against the file's tests, fast ones first, until one fails, crashes or hangs.  Its tests are those
that TESTS names, else the unit tests that link or include it, and what E2E adds.  A test whose objects came out
the same is not run; a mutant for whom all came out the same is no mutant.  Survivors are printed.  Those that
tests/mutants.same lists, as printed and with a reason, have the same effect as the original: they do not count.

What was found is remembered in the copy until FILE changes, and who survived until the tests do; with --san
survivors are tried again under AddressSanitizer and UBSan.  So a run that was ended, or that --seconds ended,
goes on where it was.  Exit 0; 1 if a room's tests find less than FLOOR of the others; 2 if the unchanged tree fails."""
import argparse, functools, fcntl, glob, hashlib, os, pathlib, re, resource, shutil, subprocess, sys, time
import seeded

SCHED = ["kv", "sched", "sched_ends", "guided", "limits", "company", "sim", "sched_share"]
CLIENTS = ["clients", "clients_conn", "clients_ask", "shmring", "hostile", "hostile_ends"]
RINGS = ["ring", "host", "shmring", "client", "clients", "clients_conn", "clients_ask", "hostile", "hostile_ends"]
TESTS = {
    "core/kv/kv.c": SCHED, "core/kv/index.c": SCHED, "core/kv/cache.c": SCHED,
    "core/clients/serve.c": CLIENTS, "core/clients/accept.c": CLIENTS,
    "core/clients/translate.c": CLIENTS, "core/control.c": ["control"], "core/reload.c": ["reload"],
    "core/instance/stats.c": ["stats", "judge", "queue", "metrics"], "shmring/host.c": RINGS[1:],
    "shmring/object.c": RINGS[1:], "shmring/client.c": RINGS[2:], "shmring/ring.h": RINGS,
}
TESTS |= {f"core/sched/{f}.c": SCHED[1:] + ["clients"] for f in "create admit queue fill reap step ids".split()}
TESTS["core/sched/guide.c"] = ["guided", "limits", "sim"]
# What only tests against real processes look at.
E2E = {f"adapters/http/{f}.c": ["e2e_conformance.py", "e2e_adapter.py"]
       for f in ["api", "defaults", "listen", "main", "process", "request", "routes", "tokenize"]}
E2E |= {f"tools/{f}.c": tests for fs, tests in (
    ("bench bench_http bench_ring bench_run bench_server sweep ceilings peak", ["e2e_report.py", "e2e_bench.py"]),
    ("bundle doctor machine set show top screen turn slipring", ["e2e_operator.py"]),
    ("instance", ["e2e_lies.py", "e2e_operator.py"]), ("chat generate session", ["e2e_lies.py"]),
    ("machine_gpu nvml", ["e2e_gpu.py"]), ("record", ["e2e_record.py"]), ("serve", ["e2e_service.py"]),
    ("setup setup_steps setup_place", ["e2e_setup.py"]),
    ("tune tune_devices tune_judge tune_options tune_server tune_state tune_steps tune_trial tune_write", ["e2e_tune.py"]),
) for f in fs.split()}
for f in ["api", "routes"]:
    E2E[f"adapters/http/{f}.c"].append("e2e_keys.py")
# Links all of the text library, but looks at it only in passing, and is slow.
NOT_OF = {"adapters/text": {"quantize"}}
PROGRAM = {"adapters/http": "slipring-http", "adapters/text": "slipring-http", "tools": "slipring"}
ENV = {"SLIPRING_SEEDS": "50"}
FLOOR = 0.9
SLOWER, SLOWER_E2E, AT_LEAST_S = 10, 4, 10  # a test hangs if it takes so many times as long, and so many seconds

# What is changed, each a pattern with what comes instead.  " x " is a binary operator: docs/style.md.
SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
         (" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" += ", " -= "), (" -= ", " += "),
         (" * ", " / "), (" / ", " * "), (" % ", " / "), (" & ", " | "), (" | ", " & "),
         (" << ", " >> "), (" >> ", " << "), ("++", "--"), ("--", "++"),
         ("0", "1"), ("1", "0"), ("true", "false"), ("false", "true")]
OPERATORS = [(re.compile((r"(?<![\w.])%s(?![\w.])" if a.isalnum() else "%s") % re.escape(a)), b) for a, b in SWAPS]
OPERATORS += [(re.compile(r"!(?!=)"), ""),
              (re.compile(r"\breturn (?!0;|NULL;|false;|NONE;)[^;]+;"), "return 0;"),
              (re.compile(r"(?<=\bif )\("), "(0 && "), (re.compile(r"(?<=\bif )\("), "(1 || "),
              (re.compile(r"(?<=\bwhile )\("), "(0 && ")]
# A statement that is no declaration: it begins a line, or comes after a condition or a label.
STATEMENT = re.compile(r"(?:(?<=[;{}\n:])|(?<=\belse)|(?<=\)))\s+(?!\w+ \w|(?:struct |const )?\w+ \*|return\b|if\b|for\b|"
                       r"while\b|switch\b|else\b|do\b|case\b|default\b)(\w[^;{}]*;|goto \w+;|(?:\+\+|--|\*)[^;{}]*;)")
COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
SPARED = re.compile(r"\b(?:assert|_Static_assert|static_assert|log_\w+|__builtin_prefetch|__attribute__)\s*\(")
FUNCTION = re.compile(r"^\{$.*?^\}", re.M | re.S)


def closing(text, at):
    """Where the parenthesis at text[at] is closed."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def code_of(source):
    """The source with all that must not change made blank: every place stays where it is."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group())
    text = DIRECTIVE.sub(blank, COMMENT_OR_STRING.sub(blank, source))
    for m in SPARED.finditer(text):
        end = closing(text, m.end() - 1) + 1
        text = text[:m.start()] + re.sub(r"[^\n]", " ", text[m.start():end]) + text[end:]
    inside = [m.span() for m in FUNCTION.finditer(text)]
    out = re.sub(r"[^\n]", " ", text)
    for a, b in inside:
        out = out[:a] + text[a:b] + out[b:]
    return out


def places(source):
    """All mutants of a file, in order: (start, end, instead)."""
    code, found = code_of(source), set()
    for pattern, instead in OPERATORS:
        for m in pattern.finditer(code):
            if instead.startswith("("):  # a condition, as a whole
                end = closing(code, m.start())
                found.add((m.start(), end, instead + "(" + source[m.start() + 1:end] + ")"))
            else:
                found.add((m.start(), m.end(), instead))
    for m in re.finditer(r"\bfor \(", code):  # its semicolons end no statement
        end = closing(code, m.end() - 1)
        code = code[:m.end()] + re.sub(r"[^\n]", " ", code[m.end():end]) + code[end:]
    for m in STATEMENT.finditer(code):
        found.add((m.start(1), m.end(1), ";"))
    return sorted(found)


def mutate(source, place):
    start, end, instead = place
    if "\n" not in instead:  # lines keep their numbers: assertions know them
        instead += "\n" * (source.count("\n", start, end) - instead.count("\n"))
    return source[:start] + instead + source[end:]


def changed_line(source, place):
    start, end, _ = place
    first, last = source.rfind("\n", 0, start) + 1, source.find("\n", end)
    after = mutate(source, place)
    squeeze = lambda s: re.sub(r"\s+", " ", s).strip()
    return (source.count("\n", 0, start) + 1, squeeze(source[first:last]),
            squeeze(after[first:last + len(after) - len(source)]))


def tests_of(file, tree):
    """The tests that look at a file of a tree: test_X as X, or the name of a test against real processes."""
    if file in TESTS:
        return TESTS[file]
    out = [t for t, files in sorted(linked(tree).items())
           if file in files or f'#include "{file}"' in source_of(t, tree).read_text()]
    room = room_of(file)
    return [t for t in out if t not in NOT_OF.get(room, ())] + E2E.get(f"{room}/{os.path.basename(file)}", [])


def room_of(file):
    """tools, adapters/http, core/kv: what E2E, PROGRAM and NOT_OF speak of."""
    parts = os.path.dirname(file).split("/")
    return "/".join(parts[:1 if parts[0] == "tools" else 2])


@functools.cache
def linked(tree):
    """What each test is linked with, as the makefile has it."""
    lines = subprocess.run(["make", "-s", "linked"], cwd=tree, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0][len("test_"):]: line.split()[1:] for line in lines}


def source_of(test, tree):
    return next((tree / "tests").rglob(f"test_{test}.c"))


def copy_tree(to):
    """What git knows of the working tree.  What did not change stays, and so do its objects."""
    rooms = ["Makefile", "core", "kernels", "shmring", "tests", "tools", "adapters", "systemd"]
    known = subprocess.run(["git", "ls-files", "-z"] + rooms, capture_output=True, text=True, check=True).stdout
    for f in known.split("\0"):
        there = to / f
        if os.path.isfile(f):
            if not there.exists() or there.read_bytes() != pathlib.Path(f).read_bytes():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(f, there)


class Tree:
    """The copy of a room, and the commands that build it again after one of its files changed."""

    def __init__(self, build, room, san):
        self.room, self.path, self.seconds = room, build / "mutants" / room.replace("/", "_"), {}
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.path / "lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"{self.path} is in use by another run")
        copy_tree(self.path)
        self.build = "build/san" if san else "build"
        self.make = ["make", "BUILD=" + self.build, "CFLAGS=-O2 -w"] + ["SAN=address,undefined"] * san
        (self.path / "tmp").mkdir(exist_ok=True)
        self.env = dict(os.environ, TMPDIR=str((self.path / "tmp").resolve()), MAKEFLAGS="", **ENV)
        # In a namespace of its own a mutant finds nobody else to kill, and leaves nobody behind.
        self.alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if not shutil.which("unshare") or self.sh(*self.alone, "true").returncode:
            self.alone = []
        data = [] if san else [(resource.RLIMIT_DATA, 8 << 30)]  # a sanitizer maps more than there is
        self.limit = seeded.limited((resource.RLIMIT_FSIZE, 1 << 30), *data)

    def sh(self, *cmd):
        return subprocess.run(cmd, cwd=self.path, env=self.env, capture_output=True, text=True)

    def target(self, test):
        return f"{self.build}/" + (PROGRAM[room_of(self.room + "/")] if test.startswith("e2e_") else f"tests/test_{test}")

    def start(self, name, tests):
        """Build and run all once.  None, or what is wrong with the unchanged tree."""
        self.file = self.path / name
        self.source = self.file.read_text()
        r = self.sh(*self.make, f"-j{os.cpu_count()}", *[self.target(t) for t in tests],
                    *["all"] * any(t.startswith("e2e_") for t in tests))
        if r.returncode:
            return "does not build:\n" + r.stderr[-2000:]
        self.plan, self.object = {}, {}
        for t in tests:
            said = self.sh(*self.make, "V=1", "-n", "-W", name, self.target(t)).stdout
            self.plan[t] = [c for c in seeded.commands(said) if c[1].endswith(".o")], \
                [c for c in seeded.commands(said) if not c[1].endswith(".o")]
            for _, o in self.plan[t][0]:
                self.object[o] = (self.path / o).read_bytes()
            if t not in self.seconds:
                began = time.monotonic()
                failed = self.run(t, 300)
                self.seconds[t] = time.monotonic() - began
                if failed:
                    return f"{t}: {failed}\n" + (self.path / "output").read_text(errors="replace")[-2000:]
        return None

    def run(self, test, limit):
        """None if it passed, else what it did."""
        cmd = [f"tests/e2e/{test}", self.build] if test.startswith("e2e_") else [self.target(test)]
        return seeded.Watched(self.alone + cmd, self.path / "output", limit, limit=self.limit, cwd=self.path, env=self.env).how

    def verdict(self, place, tests):
        """By which test it is found; "survives", "same" (code) or "invalid"."""
        self.file.write_text(mutate(self.source, place))
        done, ran = {}, False
        for t in sorted(tests, key=self.seconds.get):
            objects, links = self.plan[t]
            for cmd, o in objects:
                if o not in done:
                    if self.sh(*cmd).returncode:
                        return "invalid"
                    done[o] = (self.path / o).read_bytes() == self.object[o]
            if all(done[o] for _, o in objects):
                continue
            for cmd, _ in links:
                if self.sh(*cmd).returncode:
                    return "invalid"
            ran = True
            slower = SLOWER_E2E if t.startswith("e2e_") else SLOWER
            if self.run(t, max(AT_LEAST_S, slower * self.seconds[t])):
                return "by " + t
        return "survives" if ran else "same"

    def end(self):
        self.file.write_text(self.source)


def judged(path):
    """The mutants, as (file, before, after), of which a reader found that they change nothing that matters."""
    text = path.read_text() if path.exists() else ""
    return set(re.findall(r"^(\S+): .*\n\t- (.*)\n\t\+ (.*)$", text, re.M))


def ordered(source):
    """The mutants of a file, with their lines, in the order in which they are tried."""
    out, seen = [], {}
    for p in places(source):
        line, before, after = changed_line(source, p)
        n = seen[before, after] = seen.get((before, after), 0) + 1
        out.append((hashlib.sha256(f"{before}\n{after}\n{n}".encode()).hexdigest(), p, line, before, after))
    return sorted(out)


def check():
    source = '''/* a < b; c(); */
#define X(a) \\
	(a < 0)
static int one[1] = { 1 };
int f(int a, int b)
{
	const char *s = "a < b && c();", c = '+'; // a + b;
	assert(a < b && a != 0);
	log_info("%d", a + 1);
	if (a < b)
		return a;
	g(a, b);
	for (a = 2; a < 9; a++)
		b = 7;
	return b;
}
'''
    got = {(n, source[p[0]:p[1]], p[2]) for p in places(source) for n in [source.count("\n", 0, p[0]) + 1]}
    want = {(10, " < ", " <= "), (10, "(a < b", "(0 && (a < b)"), (10, "(a < b", "(1 || (a < b)"),
            (11, "return a;", "return 0;"), (12, "g(a, b);", ";"), (13, " < ", " <= "), (13, "++", "--"),
            (14, "b = 7;", ";"), (15, "return b;", "return 0;")}
    assert got == want, (got - want, want - got)
    assert all(mutate(source, p).count("\n") == source.count("\n") for p in places(source))
    before, after = ordered(source), ordered(source.replace("int f", "int e(void)\n{\n\treturn 0;\n}\nint f"))
    assert [m[3:] for m in after if m in before or m[3] != "return 0;"] == [m[3:] for m in before]
    print("ok: places, what they become, and in which order")


def try_file(tree, name, a, same, end):
    """Tries mutants of one file and prints who survives: how many were (found, left), or None."""
    began, tests = time.monotonic(), tests_of(name, tree.path)
    wrong = tree.start(name, tests)
    if wrong:
        print(f"{name}: the unchanged tree: {wrong}")
        return None
    mutants, count = ordered(tree.source), {}
    memory = tree.path / (name.replace("/", "_") + "-" + hashlib.sha256(tree.source.encode()).hexdigest()[:16] + ".tsv")
    known = seeded.remembered(memory)
    texts = "".join((tree.path / "tests/e2e" / t if t.startswith("e2e_") else source_of(t, tree.path)).read_text() for t in tests)
    survives = "survives " + hashlib.sha256((texts + str(a.san)).encode()).hexdigest()[:16]
    try:
        for number in range(a.first, min(a.first + a.count - 1, len(mutants)) + 1):
            if time.monotonic() > end:
                print(f"{name}: ended by --seconds: number {number} is next")
                break
            key, place, line, before, after = mutants[number - 1]
            verdict = known.get(key, "survives")
            if (name, before, after) in same:
                verdict = "judged"
            elif verdict.startswith("survives") and verdict != survives:
                verdict = tree.verdict(place, tests)
                if a.san and verdict.startswith("by "):
                    verdict += " with sanitizers"
                with open(memory, "a") as f:
                    f.write(f"{key}\t{survives if verdict == 'survives' else verdict}\n")
            verdict = verdict.replace(survives, "survives")
            count[verdict] = count.get(verdict, 0) + 1
            if verdict == "survives":
                print(f"{name}:{line}: number {number} survives\n\t- {before}\n\t+ {after}", flush=True)
    finally:
        tree.end()
    found, left = sum(n for v, n in count.items() if v.startswith("by ")), count.get("survives", 0)
    by = ", ".join(f"{v} {n}" for v, n in sorted(count.items(), key=lambda x: -x[1]) if v.startswith("by "))
    print(f"{name}: {len(mutants)} places, {sum(count.values())} tried: {count.get('invalid', 0)} do not compile, "
          f"{count.get('same', 0)} are the same code, {found + left + count.get('judged', 0)} mutants: {found} found, "
          f"{count.get('judged', 0)} the same in effect, {left} left; {by}; {time.monotonic() - began:.0f} s", flush=True)
    return found, left


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("build", nargs="?"), p.add_argument("file", nargs="?")
    p.add_argument("--first", type=int, default=1), p.add_argument("--count", type=int, default=60)
    p.add_argument("--seconds", type=float, default=0), p.add_argument("--san", action="store_true")
    p.add_argument("--check", action="store_true")
    a = p.parse_args()
    if a.check:
        return check()
    name = (a.file or "").rstrip("/")
    room = os.path.isdir(name)
    files = sorted(glob.glob(name + "/**/*.c", recursive=True), key=os.path.getsize) if room else [name]
    if not files or not all(os.path.isfile(f) for f in files):
        p.error("FILE is a source file, or a folder of such files")
    tree = Tree(pathlib.Path(a.build), name if room else os.path.dirname(name), a.san)
    tested = [f for f in files if tests_of(f, tree.path)]
    if len(tested) < len(files):
        print("no test links " + ", ".join(sorted(set(files) - set(tested))))
    same, end = judged(pathlib.Path("tests/mutants.same")), time.monotonic() + (a.seconds or 1e9)
    results = [try_file(tree, f, a, same, end) for f in tested]
    if None in results:
        return 2
    found, left = map(sum, zip(*results, (0, 0)))
    if room:
        print(f"{name}: {len(tested)} files: {found} found of {found + left}, at least {FLOOR:.0%} are wanted")
    return 1 if room and found < FLOOR * (found + left) else 0


if __name__ == "__main__":
    sys.exit(main())
