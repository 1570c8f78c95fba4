#!/usr/bin/env python3
"""slipring setup, below a folder that stands for /: what is missing is found, done, written down, found
done, and taken back; what somebody else has changed meanwhile is left alone."""
import subprocess, tempfile
from harness import *

TREE = tempfile.mkdtemp(prefix="slipring-test-tree-")         # with a program and units, as one is cloned and built
SYSCTL = "etc/sysctl.d/60-slipring-hugepages.conf"


def machine(root, pages="0", thp="always madvise [never]", uring="2"):
    """What of a machine is looked at."""
    files = {"proc/sys/vm/nr_hugepages": pages, "sys/kernel/mm/transparent_hugepage/enabled": thp,
             "proc/sys/kernel/io_uring_disabled": uring, "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
             "etc/group": "root:x:0:\n", "etc/shadow": "root:*:1::::::\n", "etc/gshadow": "root:*::\n",
             "etc/login.defs": "SYS_UID_MIN 100\nSYS_UID_MAX 999\nSYS_GID_MIN 100\nSYS_GID_MAX 999\n"}
    for name, text in files.items():
        os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
        with open(os.path.join(root, name), "w") as f:
            f.write(text + ("" if text.endswith("\n") else "\n"))


def setup(root, *args, env=None):
    r = subprocess.run([os.path.join(TREE, "build/slipring"), "setup", *(["--root", root] if root else []), *args],
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=env)
    return r.returncode, r.stdout, r.stderr


def text(root, name):
    with open(os.path.join(root, name)) as f:
        return f.read().strip()


def everything(root):
    """All files and what is in them, but for what useradd keeps for itself."""
    out = {}
    for d, _, names in os.walk(root):
        for n in names:
            path = os.path.join(d, n)
            name = os.path.relpath(path, root)
            if not name.startswith("etc/") or name.startswith(("etc/sysctl.d", "etc/systemd", "etc/slipring", "etc/tmpfiles.d",
                                                               "etc/security")):
                with open(path) as f:
                    out[name] = f.read()
                if name.startswith(("proc/", "sys/")):       # the kernel says them in its own way
                    out[name] = out[name].split("[")[-1].split("]")[0].strip()
    return out


def by_node():
    """With two nodes each has its part of the huge pages, now and after a boot, and gives it back."""
    with tempfile.TemporaryDirectory(prefix="slipring-test-") as root:
        pool = [f"sys/devices/system/node/node{i}/hugepages/hugepages-2048kB/nr_hugepages" for i in range(2)]
        machine(root)
        for name in pool:
            os.makedirs(os.path.dirname(os.path.join(root, name)))
            with open(os.path.join(root, name), "w") as f:
                f.write("0\n")
        before = everything(root)
        _, out, _ = setup(root, "--apply", "--huge-pages", "9")
        check(out.count("changed pages by node") == 4 and [text(root, p) for p in pool] == ["4", "4"], f"by node: {out}")
        check(text(root, "etc/tmpfiles.d/slipring-hugepages-node1.conf").endswith(f"w /{pool[1]} - - - - 4"), "and kept")
        _, out, _ = setup(root, "--apply", "--huge-pages", "9")
        check("pages by node" not in out, f"a second time changes nothing: {out}")
        code, out, err = setup(root, "--undo")
        check(code == 0 and everything(root) == before, f"taken back: {out} {err}")


def there_and_back(users):
    with tempfile.TemporaryDirectory(prefix="slipring-test-") as root:
        machine(root)
        before = everything(root)
        code, out, _ = setup(root, "--check")
        check(code == 1 and "todo  huge pages" in out and "todo  io_uring" in out and "todo  THP" in out, out)
        code, out, err = setup(root, "--apply", "--huge-pages", "8", "--dry-run")
        check(code == 0 and "would   huge pages" in out and everything(root) == before, f"a dry run changes nothing: {out} {err}")
        code, out, err = setup(root, "--apply", "--huge-pages", "8")
        check(code == 0 or not users, f"apply: {code} {out} {err}")
        check("changed huge pages" in out and "0 -> 8" in out and "never -> madvise" in out and "2 -> 0" in out, out)
        check(text(root, "proc/sys/vm/nr_hugepages") == "8", "huge pages are set")
        check(text(root, SYSCTL).endswith("vm.nr_hugepages = 8"), "and kept")
        check(text(root, "sys/kernel/mm/transparent_hugepage/enabled") == "madvise", "so is THP")
        check("memlock unlimited" in text(root, "etc/security/limits.d/60-slipring.conf"), "locked memory")
        unit = text(root, "etc/systemd/system/slipring.service")
        check(f"ExecStart={TREE}/build/slipringd " in unit and "/usr/bin/" not in unit, "units start what lies beside us")
        check(os.path.isdir(os.path.join(root, "var/lib/slipring/models")), "a folder for models")
        record = json.loads(text(root, "var/lib/slipring-setup/setup.json"))
        check({"kind": "value", "path": "/proc/sys/vm/nr_hugepages", "before": "0", "after": "8"} in record, f"{record}")
        done = everything(root)
        code, out, _ = setup(root, "--apply", "--huge-pages", "8")
        check("changed" not in out and everything(root) == done, f"a second time changes nothing: {out}")
        if users:
            check("nothing to be done" in out and code == 0, out)
            check("\nslipring:" in text(root, "etc/passwd") and "\nslipring-http:" in text(root, "etc/passwd"), "users")
            check("slipring-http" in [l for l in text(root, "etc/group").splitlines() if l.startswith("slipring:")][0],
                  "the adapter's is in the group")
            check(setup(root, "--check", "--huge-pages", "8")[0] == 0, "check agrees")
        code, out, _ = setup(root, "--undo", "--dry-run")
        check(code == 0 and "would take back /proc/sys/vm/nr_hugepages" in out and everything(root) == done, out)
        code, out, err = setup(root, "--undo")
        check(code == 0, f"undo: {out} {err}")
        now = everything(root)
        check(now == before, f"all is as before: {set(now.items()) ^ set(before.items())}")
        check("slipring" not in text(root, "etc/passwd"), "the users are gone")
        code, out, _ = setup(root, "--undo")
        check(code == 0 and "nothing to take back" in out, "once")


def what_others_changed():
    with tempfile.TemporaryDirectory(prefix="slipring-test-") as root:
        machine(root, pages="4096", thp="[always] madvise never", uring="0")
        code, out, _ = setup(root, "--apply", "--huge-pages", "8")
        check("huge pages" not in out and "THP" not in out and "io_uring" not in out, f"what is good is left: {out}")
        check(not os.path.exists(os.path.join(root, SYSCTL)), "and not kept smaller at the next boot")
        setup(root, "--undo")
    with tempfile.TemporaryDirectory(prefix="slipring-test-") as root:
        machine(root)
        setup(root, "--apply", "--huge-pages", "8")
        with open(os.path.join(root, "proc/sys/vm/nr_hugepages"), "w") as f:
            f.write("99\n")
        with open(os.path.join(root, SYSCTL), "a") as f:
            f.write("vm.overcommit_memory = 1\n")
        code, out, _ = setup(root, "--undo")
        check(code == 0 and out.count("it was changed since") == 2, f"two things are another's now: {out}")
        check(text(root, "proc/sys/vm/nr_hugepages") == "99" and "overcommit" in text(root, SYSCTL), "and stay")
        check(text(root, "sys/kernel/mm/transparent_hugepage/enabled") == "never", "the rest is taken back")
    with tempfile.TemporaryDirectory(prefix="slipring-test-") as root:
        machine(root)
        os.unlink(os.path.join(root, "proc/sys/kernel/io_uring_disabled"))
        code, out, _ = setup(root, "--check")
        check("-     io_uring" in out and "not in this kernel" in out, f"a kernel without that switch: {out}")


def wrong():
    for args in ([], ["--apply", "--undo"], ["--check", "--huge-pages", "0"], ["--apply", "--huge-pages"], ["--nonsense"],
                 ["--root", "relative", "--check"]):
        check(setup("", *args)[0] == 2, f"wrong usage: {args}")
    code, out, _ = setup("", "--help")
    check(code == 0 and "--undo" in out, "help teaches")
    with tempfile.TemporaryDirectory(prefix="slipring-test-") as root:
        machine(root)
        os.makedirs(os.path.join(root, "var/lib/slipring-setup"))
        with open(os.path.join(root, "var/lib/slipring-setup/setup.json"), "w") as f:
            f.write("[{\n")
        code, _, err = setup(root, "--undo")
        check(code == 1 and "setup.json: line" in err, f"a broken record: {err}")
        code, _, err = setup(root, "--apply")
        check(code == 1 and text(root, "proc/sys/vm/nr_hugepages") == "0", "and nothing is done that could not be undone")
    if os.geteuid() == 0 and shutil.which("setpriv"):
        r = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", os.path.join(TREE, "build/slipring"), "setup", "--apply"],
                           capture_output=True, text=True, timeout=20)
        check(r.returncode == 1 and "sudo slipring setup --apply" in r.stderr, f"without root: {r.stderr}")


EVIL = "evil::0:0::/root:/bin/sh\n"
OTHER = 65534                                                 # as the daemon's user: one that is not root


def by_another(what):
    """Do it as another user, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            what()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def write(path, what):
    with open(path, "w") as f:
        f.write(what if isinstance(what, str) else json.dumps(what))


class Owned:
    """A machine whose /var/lib/slipring belongs to another user, as systemd makes it; /etc/victim is root's."""

    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="slipring-test-")
        self.root = self.tmp.name
        os.chmod(self.root, 0o755)
        machine(self.root)
        write(self.path("etc/victim"), "untouched\n")
        os.makedirs(self.path("var/lib/slipring"))
        if os.geteuid() == 0:
            os.chown(self.path("var/lib/slipring"), OTHER, OTHER)
        return self

    def __exit__(self, *_):
        self.tmp.cleanup()

    def path(self, name):
        return os.path.join(self.root, name)

    def untouched(self, why):
        check(text(self.root, "etc/victim") == "untouched", f"{why}: /etc/victim")
        check(text(self.root, "etc/passwd").startswith("root:x:"), f"{why}: /etc/passwd")


def a_file_written():
    """The daemon's user writes a record in its own folder: the file named there would get its text."""
    with Owned() as m:
        entry = {"kind": "file", "path": "/etc/passwd", "before": EVIL, "after": text(m.root, "etc/passwd") + "\n"}
        check(by_another(lambda: write(m.path("var/lib/slipring/setup.json"), [entry])), "it can write there")
        code, out, err = setup(m.root, "--undo")
        m.untouched(f"{code} {out} {err}")
        check(code == 1 and "is ignored" in err and "slipring-setup" in err, f"a sentence says so: {code} {err}")


def a_file_removed():
    with Owned() as m:
        entry = {"kind": "file", "path": "/etc/victim", "before": None, "after": "untouched\n"}
        check(by_another(lambda: write(m.path("var/lib/slipring/setup.json"), [entry])), "it can write there")
        code, out, err = setup(m.root, "--undo")
        check(os.path.exists(m.path("etc/victim")), f"{code} {out} {err}")
        m.untouched("undo")


def a_link_followed():
    """It puts links where the record, and what stands beside it, are made."""
    for names in (["setup.json.new"], ["setup.json.new", "setup.json", "models"]):
        with Owned() as m:
            for name in names:
                check(by_another(lambda: os.symlink(m.path("etc/victim"), m.path("var/lib/slipring/" + name))), "it can link there")
            for name in ("etc/sysctl.d", "var/lib/slipring-setup"):   # here it cannot
                check(not by_another(lambda: os.makedirs(m.path(name))), f"not in {name}")
            code, out, err = setup(m.root, "--apply", "--huge-pages", "8")
            m.untouched(f"{code} {out} {err}")
            check(os.stat(m.path("var/lib/slipring-setup")).st_mode & 0o777 == 0o700, "its folder is root's alone")
            check(os.stat(m.path("var/lib/slipring-setup/setup.json")).st_mode & 0o777 == 0o600, "and it")
            code, out, err = setup(m.root, "--undo")
            m.untouched(f"{code} {out} {err}")


def a_record_of_anothers():
    """In the right place, but not root's alone: not believed, whoever it was, and nothing is changed."""
    def chown(m):
        os.chown(m.path("var/lib/slipring-setup/setup.json"), OTHER, OTHER)

    def writable(m):
        os.chmod(m.path("var/lib/slipring-setup/setup.json"), 0o666)

    def folder(m):
        os.chown(m.path("var/lib/slipring-setup"), OTHER, OTHER)

    def folder_writable(m):
        os.chmod(m.path("var/lib/slipring-setup"), 0o777)

    def folder_alone(m):
        os.unlink(m.path("var/lib/slipring-setup/setup.json"))
        os.chmod(m.path("var/lib/slipring-setup"), 0o777)

    def link(m):
        os.rename(m.path("var/lib/slipring-setup/setup.json"), m.path("var/lib/slipring/mine"))
        os.symlink(m.path("var/lib/slipring/mine"), m.path("var/lib/slipring-setup/setup.json"))

    for spoil in (chown, writable, folder, folder_writable, folder_alone, link):
        with Owned() as m:
            setup(m.root, "--apply", "--huge-pages", "8")
            write(m.path("proc/sys/vm/nr_hugepages"), "7\n")     # something to do for --apply
            spoil(m)
            before = everything(m.root)
            for args in (["--undo"], ["--apply", "--huge-pages", "8"]):
                code, out, err = setup(m.root, *args)
                check(code == 1 and not out and ("not trusted" in err or "link" in err), f"{spoil.__name__}: {code} {out} {err}")
                check(everything(m.root) == before, f"{spoil.__name__}: nothing is changed")


def a_record_that_lies():
    """Root's own file, with what setup cannot have made: refused by number, and nothing before it is undone."""
    good = {"kind": "value", "path": "/proc/sys/vm/nr_hugepages", "before": "3", "after": "0"}
    f = {"kind": "file", "path": SYSCTL.join(["/", ""]), "before": None, "after": "x"}
    lies = ({**f, "path": "/etc/victim", "after": "untouched\n"}, {**f, "path": "/etc/sysctl.d/../victim"}, {**f, "path": SYSCTL},
            {**f, "path": "/etc/systemd/system/other.service"}, {**f, "path": "/etc/systemd/system/"}, {**f, "kind": "files"},
            {**f, "before": 5}, {**f, "after": None}, {**f, "after": "x" * 20000}, {**f, "more": 1}, {"kind": "file", "path": f["path"]},
            {**good, "path": "/proc/sys/kernel/core_pattern"}, {**good, "before": "|/tmp/x"}, {**good, "before": ""},
            {**good, "before": "9" * 30}, {**good, "after": "3\n4"}, {**good, "before": None}, {**good, "kind": "file"},
            {"kind": "user", "path": "root"}, {"kind": "user", "path": "--help"}, {"kind": "user", "path": "slipring", "before": "-r"},
            {"kind": "dir", "path": "/etc"}, {"kind": "dir", "path": "/var/lib/slipring"}, {"kind": "dir", "path": 1}, {}, [], "x", None)
    for lie in lies:
        with Owned() as m:
            os.mkdir(m.path("var/lib/slipring-setup"), 0o700)
            write(m.path("var/lib/slipring-setup/setup.json"), [good, lie, good])
            before = everything(m.root)
            for args in (["--undo"], ["--undo", "--dry-run"], ["--apply"]):
                code, out, err = setup(m.root, *args)
                check(code == 1 and "entry 2 is not something that slipring setup makes" in err and not out, f"{lie}: {code} {out} {err}")
                check(everything(m.root) == before, f"{lie}: nothing is changed")
            m.untouched(f"{lie}")


def main():
    users = os.geteuid() == 0 and shutil.which("useradd") and shutil.which("userdel")
    if not users:
        print("SKIP users: only root with useradd can make any, even below a folder")
        print("[  SKIPPED ] 1 test(s), listed below:")
    os.chmod(TREE, 0o755)
    os.mkdir(os.path.join(TREE, "build"))
    shutil.copy(os.path.join(BUILD, "slipring"), os.path.join(TREE, "build/slipring"))
    shutil.copytree(os.path.join(HERE, "../systemd"), os.path.join(TREE, "systemd"))
    there_and_back(users)
    by_node()
    what_others_changed()
    wrong()
    if os.geteuid() == 0:
        a_file_written()
        a_file_removed()
        a_link_followed()
        a_record_of_anothers()
    else:
        print("SKIP records of another user: only root can make some")
        print("[  SKIPPED ] 4 test(s), listed below:")
    a_record_that_lies()
    done()


try:
    main()
finally:
    shutil.rmtree(TREE)
