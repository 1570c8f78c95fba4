#!/usr/bin/env python3
"""Others hold the cores: the commands name them, with their share, and no faster device.  The real model on the
processor, beside busy loops of two for each core."""
import re, signal, subprocess
from harness import *

LOOP = "while :; do :; done"
CORES = len(os.sched_getaffinity(0))


def slipring(p, *args):
    r = subprocess.run([os.path.join(BUILD, "slipring"), *args], env=p.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       timeout=60)
    check(r.returncode in (0, 1) if args[0] == "doctor" else r.returncode == 0, f"slipring {' '.join(args)}: {r.returncode} {r.stderr}")
    return r.stdout


def cores_s(p):
    return json.loads(slipring(p, "why", "--since", "start", "--json"))["bound_s"]


def main():
    with Programs() as p:
        p.daemon("--max-num-seqs", "4")
        p.adapter()
        stop = []

        def ask():
            while not stop:
                p.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 64, "ignore_eos": True, "temperature": 0})

        first = json.loads(slipring(p, "why", "--json"))
        if not first["cores_known"]:
            p.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 8})
            check("is not known: this kernel does not count it" in slipring(p, "why"), "why says that it is not known")
            done()
            return
        loops = [subprocess.Popen(["timeout", "60", "sh", "-c", LOOP]) for _ in range(2 * CORES)]
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        try:                                      # until three seconds were counted as lost
            lost = wait_for(lambda: cores_s(p)["cores"] > 3, 50, 0.3)
        finally:
            stop.append(True)
            for loop in loops:
                loop.send_signal(signal.SIGTERM)
                loop.wait()
        asking.join(30)
        check(lost, f"the time without a core is counted: {cores_s(p)}")
        why, words = json.loads(slipring(p, "why", "--since", "start", "--json")), slipring(p, "why", "--since", "start")
        lack = why["lack_of_cores"]
        check(lack["limits"] and 0.2 <= lack["share"] <= 1, f"its share: {why}")
        check(abs(sum(why["cores_s"].values()) - why["bound_s"]["cores"]) < 0.01, f"by who had them: {why['cores_s']}")
        check("the time under way: " + lack["what"] in words and "more devices" not in words, f"why says so: {words}")
        if lack["by"] == "others":                # not the hypervisor below us
            check("other programs held the cores" in words, f"and who: {words}")
        top = json.loads(slipring(p, "top", "--json", "-i", "0.2"))
        check(top["cores_known"] and set(top["cores_s"]) == {"others", "quota", "hypervisor"}, f"top: {top}")
        row = [f for f in json.loads(slipring(p, "doctor", "--json")) if f["what"] == "its cores"]
        check(len(row) == 1 and row[0]["level"] == "hint" and row[0]["how"] == lack["what"], f"doctor: {row}")
        metrics = p.ask("GET", "/metrics")[2]
        check(re.search(r'^slipring_bound_seconds_total{.*bound="cores".*} (\S+)$', metrics, re.M) and
              float(re.search(r'^slipring_bound_seconds_total{.*bound="cores".*} (\S+)$', metrics, re.M)[1]) > 3, "/metrics has it")
        check(re.search(r'^slipring_cores_seconds_total{.*by="others".*} ', metrics, re.M), "and by whom")
    done()


main()
