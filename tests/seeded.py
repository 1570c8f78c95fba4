"""What tests/mutants.py and tests/cuda/mistakes.py share: a source with an error in it is compiled by the commands that
make would use, and tests run until one fails, crashes or hangs."""
import os, re, resource, shlex, signal, subprocess, time


def commands(said):
    """[(command, its output)] of what `make -n V=1` said."""
    return [(shlex.split(line), re.search(r" -o (\S+)", line).group(1)) for line in said.splitlines() if " -o " in line]


def by_program(cmds):
    """Of the same: {program: (commands that make its objects, the one that links it)}."""
    objects = [c for c in cmds if c[1].endswith(".o")]
    return {os.path.basename(o): ([c for c in objects if c[1] in link], (link, o))
            for link, o in cmds if not o.endswith(".o")}


def limited(*more):
    """For preexec_fn: a session of its own, no core files, and other limits."""
    def limit():
        os.setsid()
        for what, most in ((resource.RLIMIT_CORE, 0), *more):
            resource.setrlimit(what, (most, most))
    return limit


class Watched:
    """A test program: what it did (None: it passed; "fails", "hangs"), its seconds, and those of its longest silence."""

    def __init__(self, cmd, output, most, silent=float("inf"), limit=limited(), **more):
        began = heard_at = time.monotonic()
        self.silence = 0
        with open(output, "wb") as to, open(output, "rb") as heard:
            p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=to, stderr=subprocess.STDOUT, preexec_fn=limit, **more)
            said = b""
            while True:
                ended = p.poll() is not None
                new, now = heard.read(), time.monotonic()
                if new:
                    heard_at = now
                self.silence = max(self.silence, now - heard_at)
                said = said[-12:] + new
                late = now - began > most or now - heard_at > silent
                if ended or late or b"[  FAILED  ]" in said:
                    break
                time.sleep(0.01)
        rc = p.poll()
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
        self.seconds = time.monotonic() - began
        self.how = None if rc == 0 else "hangs" if rc is None and late else "fails"


def remembered(path):
    """The lines of a table of two columns."""
    return dict(line.split("\t") for line in path.read_text().splitlines()) if path.exists() else {}
