#!/usr/bin/env python3
"""A machine with two nodes, emulated by QEMU (make numa-vm; not part of make test): where the kernel really puts the
threads, weights and keys of a daemon on the CPU, and that its answers are those without any of that.

    numa_vm.py BUILD [KERNEL]     a kernel's image; else that of Debian's linux-image-cloud-amd64 is fetched

Needs qemu-system-x86_64, busybox (static) and cpio.  The emulation takes some minutes (TCG), and says nothing of
speed.
"""
import glob, json, os, re, shutil, subprocess, sys, tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import BUILD, check, done, make_model

ANSWER = "The quick brown fox"
INIT = f"""#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/shm /tmp /run
mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
run() {{
	echo "== $1"
	slipringd --model /m --load-format dummy --device cpu --threads 4 --max-num-seqs 4 \\
		--kv-cache-memory-bytes 16777216 > /tmp/log 2>&1 &
	P=$!
	for i in $(seq 300); do grep -q Ready /tmp/log && break; sleep 0.2; done
	slipring generate --max-tokens 24 --temperature 0 "{ANSWER}" > /tmp/answer 2>/tmp/err || cat /tmp/err
	for t in /proc/$P/task/*; do echo "thread $(cat $t/comm) $(grep Cpus_allowed_list $t/status)"; done
	grep -E " (prefer|bind|interleave)" /proc/$P/numa_maps | sed "s/^/maps /"
	echo "answer $(md5sum < /tmp/answer) $(wc -c < /tmp/answer)"
	[ "$1" = nodes ] && slipring doctor | grep -E "NUMA|by node|daemon's|interrupts" | sed "s/^/doctor /"
	kill $P; wait $P
	grep -E "ERROR|WARN" /tmp/log
}}
export PATH=/bin LD_LIBRARY_PATH=/lib
run nodes
VLLM_CPU_OMP_THREADS_BIND=nobind run nobind
echo "== end"
poweroff -f
"""


def kernel(folder):
    """Debian's, as its package has it."""
    out = subprocess.run(["apt-cache", "depends", "linux-image-cloud-amd64"], capture_output=True, text=True).stdout
    name = re.search(r"Depends: (linux-image-\S+)", out)
    if not name or subprocess.run(["apt-get", "download", name[1]], cwd=folder, capture_output=True).returncode:
        print("SKIP: no kernel: name one, or let apt-get download linux-image-cloud-amd64")
        sys.exit(0)
    subprocess.run(["dpkg", "-x", glob.glob(os.path.join(folder, "*.deb"))[0], folder], check=True)
    return glob.glob(os.path.join(folder, "boot/vmlinuz*"))[0]


def image(folder):
    """The first files of the machine: programs, what they are linked with, a model of random weights."""
    root = os.path.join(folder, "root")
    for d in ("bin", "lib", "lib64", "proc", "sys", "dev"):
        os.makedirs(os.path.join(root, d))
    make_model(os.path.join(root, "m"))
    config = os.path.join(root, "m/config.json")
    with open(config) as f:
        shape = json.load(f)
    shape.update(hidden_size=512, intermediate_size=1536, num_hidden_layers=2, num_attention_heads=8, head_dim=64)
    with open(config, "w") as f:
        json.dump(shape, f)
    shutil.copy(shutil.which("busybox"), os.path.join(root, "bin/busybox"))
    os.symlink("busybox", os.path.join(root, "bin/sh"))
    for program in ("slipringd", "slipring"):
        path = os.path.join(BUILD, program)
        shutil.copy(path, os.path.join(root, "bin"))
        for lib in re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", path], capture_output=True, text=True).stdout):
            shutil.copy(lib, os.path.join(root, "lib64" if "ld-linux" in lib else "lib"))
    with open(os.path.join(root, "init"), "w") as f:
        f.write(INIT)
    os.chmod(os.path.join(root, "init"), 0o755)
    out = os.path.join(folder, "initrd")
    with open(out, "wb") as f:
        files = subprocess.run(["find", "."], cwd=root, capture_output=True).stdout
        f.write(subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=files, capture_output=True).stdout)
    return out


def run(folder, vmlinuz):
    command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "4,sockets=2", "-m", "2G",
               "-object", "memory-backend-ram,id=m0,size=1G", "-object", "memory-backend-ram,id=m1,size=1G",
               "-numa", "node,nodeid=0,memdev=m0,cpus=0-1", "-numa", "node,nodeid=1,memdev=m1,cpus=2-3",
               "-kernel", vmlinuz, "-initrd", image(folder), "-append", "console=ttyS0 panic=-1 quiet",
               "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot", "-net", "none"]
    try:
        out = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=540)
        text = out.stdout.decode(errors="replace").replace("\r", "")
    except subprocess.TimeoutExpired as e:
        text = (e.stdout or b"").decode(errors="replace")
    check("== end" in text, f"the machine came to its end:\n{text[-3000:]}")
    return dict(zip(*[iter(re.split(r"^== (\w+)\n", text, flags=re.M)[1:])] * 2))


def pages(part):
    """Pages of areas by their policy, and on which node they lie: {"prefer:1": [0, 52], ..}."""
    out = {}
    for line in re.findall(r"^maps \w+ (.*)", part, re.M):
        policy = re.sub(r"\s*\(many\)", "", line).split()[0]
        n = out.setdefault(policy, [0, 0])
        for node, count in re.findall(r" N(\d)=(\d+)", line):
            n[int(node)] += int(count)
    return out


def threads(part):
    """Where each may run, but for the kernel's own workers of io_uring."""
    return sorted(re.findall(r"^thread (?!iou-)\S+ Cpus_allowed_list:\s*(\S+)", part, re.M))


def placed(part):
    check(set(threads(part)) >= {"0-1", "2-3"}, f"threads run on both nodes: {threads(part)}")
    by = pages(part)
    for node in range(2):
        lie = by.get(f"prefer:{node}", [0, 0])
        check(lie[node] >= 256 and lie[1 - node] == 0, f"what is for node {node} lies there: {by}")
    lie = [sum(n) for n in zip(*[v for k, v in by.items() if k.startswith("interleave")])]
    check(lie and min(lie) > 0 and max(lie) <= 1.5 * min(lie) + 16, f"activations lie on both: {by}")


def main(vmlinuz):
    for program in ("qemu-system-x86_64", "busybox", "cpio"):
        if not shutil.which(program):
            print(f"SKIP: {program} is not there")
            sys.exit(0)
    with tempfile.TemporaryDirectory(prefix="slipring-numa-") as folder:
        part = run(folder, vmlinuz or kernel(folder))
    for name in ("nodes", "nobind"):
        print(f"{name}: threads on {', '.join(threads(part[name]))}; pages by policy {pages(part[name])}")
    placed(part["nodes"])
    check(not pages(part["nobind"]) and set(threads(part["nobind"])) == {"0-3"}, "nobind binds nothing")
    answers = {re.search(r"^answer (\w+) +- *(\d+)", p, re.M).groups() for n, p in part.items() if n != "end"}
    check(len(answers) == 1 and int(answers.copy().pop()[1]) > 10, f"one answer, wherever it is computed: {answers}")
    check("2 nodes, CPUs 0-1 | 2-3" in part["nodes"] and "doctor hint" not in part["nodes"], f"doctor: {part['nodes']}")
    print("\n".join(re.findall(r"^doctor (.*)", part["nodes"], re.M)))


main(sys.argv[2] if len(sys.argv) > 2 else None)
done()
