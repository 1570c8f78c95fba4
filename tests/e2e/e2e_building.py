#!/usr/bin/env python3
"""What building says where something is missing: tools/setup.sh on a system without dpkg, with its package manager and
without one; make of one test without cmocka.  No package is installed."""
import subprocess, tempfile
from harness import *

ROOT = os.path.dirname(HERE)
FOUND = "sh gcc make python3 echo"                 # what this machine has, under its own name


def setup(what, has, manager=None):
    """tools/setup.sh where only these libraries are known to pkg-config, and nothing of Debian's is there."""
    with tempfile.TemporaryDirectory(prefix="slipring-test-path-") as d:
        for name in FOUND.split():
            os.symlink(shutil.which(name), os.path.join(d, name))
        for name, text in ("pkg-config", f'case " {has} " in *" $2 "*) exit 0 ;; esac; exit 1'), (manager, "exit 1"):
            if name:
                with open(os.path.join(d, name), "w") as f:
                    f.write(f"#!/bin/sh\n{text}\n")
                os.chmod(f.name, 0o755)
        return subprocess.run(["/bin/sh", os.path.join(ROOT, "tools/setup.sh"), what], env={"PATH": d}, cwd=ROOT,
                              capture_output=True, text=True, timeout=60)


def elsewhere():
    """Nothing is said where all is there; what is missing is an error, in the terms of the system's package manager."""
    libs = "liburing jansson libssl libpcre2-8 libutf8proc yaml-0.1 libxxhash libzmq libcurl ncursesw libedit"
    r = setup("build", libs)
    check((r.returncode, r.stderr) == (0, ""), f"all is there: {r}")
    r = setup("test", libs, "dnf")
    check(r.returncode == 1 and "missing are: cmocka\n" in r.stderr, f"the tests need more: {r}")
    for manager, package in ("dnf", "libedit-devel"), ("zypper", "libjansson-devel"), ("pacman", "libedit"), ("apk", "jansson-dev"):
        r = setup("build", libs.replace("jansson", ""), manager)
        check(r.returncode == 1 and "missing are: jansson\n" in r.stderr, f"{manager}: {r}")
        line = r.stderr.splitlines()[-1]
        check(f"sudo {manager} " in line and f" {package} " in line, f"{manager}: {line}")
    r = setup("build", "")
    check(r.returncode == 1 and "the equivalents of: gcc make" in r.stderr, f"no package manager: {r}")


def without_cmocka():
    with tempfile.TemporaryDirectory(prefix="slipring-test-make-") as d:
        cc = os.path.join(d, "cc")
        with open(cc, "w") as f:
            f.write("#!/bin/sh\necho 'fatal error: cmocka.h: No such file or directory' >&2\nexit 1\n")
        os.chmod(cc, 0o755)
        r = subprocess.run(["make", f"BUILD={d}/build", f"CC={cc}", f"{d}/build/tests/test_plan"], cwd=ROOT, capture_output=True,
                           text=True, timeout=120, env={k: v for k, v in os.environ.items() if not k.startswith("MAKE")})
        check(r.returncode == 2 and 'run "tools/setup.sh test"' in r.stderr, f"what to do is said: {r}")


elsewhere()
without_cmocka()
done()
