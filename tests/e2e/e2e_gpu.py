#!/usr/bin/env python3
"""What doctor and top make of GPUs, with a library of ours in the place of NVIDIA's (tests/cuda/nvml_fake.c):
what is judged and how; then each of its calls failing, and lacking, in its turn: a sentence or a blank."""
import re, subprocess
from harness import *

SOURCE = os.path.join(HERE, "cuda/nvml_fake.c")


def slipring(p, *args, env=None):
    r = subprocess.run([os.path.join(BUILD, "slipring"), *map(str, args)], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=60, env={**p.env, "LD_LIBRARY_PATH": p.dir, **(env or {})})
    return r.returncode, r.stdout, r.stderr


def link(p, cc, without=None):
    """The library, but for one of its calls."""
    script = os.path.join(p.dir, "script")
    with open(script, "w") as f:
        f.write("{ global: nvml*; local: %s; };" % (without or "nothing"))
    if not os.path.exists(os.path.join(p.dir, "fake.o")):
        subprocess.run([cc, "-O1", "-fPIC", "-c", SOURCE, "-o", os.path.join(p.dir, "fake.o")], check=True, timeout=60)
    subprocess.run([cc, "-shared", "-Wl,--version-script=" + script, os.path.join(p.dir, "fake.o"),
                    "-o", os.path.join(p.dir, "libnvidia-ml.so.1")], check=True, timeout=60)


def doctor(p, **fake):
    code, out, err = slipring(p, "doctor", "--json", env={"FAKE_" + k: str(v) for k, v in fake.items()})
    check(code in (0, 1) and not err, f"doctor with {fake}: {code} {err}")
    return {r["what"]: r for r in json.loads(out)}


def top(p, **fake):
    code, out, err = slipring(p, "top", "-i", "0.1", "--json", env={"FAKE_" + k: str(v) for k, v in fake.items()})
    check(code == 0 and not err, f"top with {fake}: {code} {err}")
    return json.loads(out)["gpus"]


# what GPU 1 answers, the row that judges it, its level, and a word of what it says
JUDGED = [
    ({}, "GPU", "hint", "2 x G, driver 580"),         # no slipring-cuda.so is built here
    ({}, "GPU persistence", "ok", "on"),
    ({"persistence": 0}, "GPU persistence", "hint", "off on 1 of 2"),
    ({}, "GPU clocks", "ok", "345 of 1980 MHz, 41 C"),
    ({"reasons": 0x40}, "GPU clocks", "hint", "GPU 1 runs at 345 of 1980 MHz, 41 C, held back by heat"),
    ({"reasons": 0x80}, "GPU clocks", "hint", "too little power"),
    ({"reasons": 0x8}, "GPU clocks", "hint", "the hardware"),
    ({"reasons": 0x4}, "GPU clocks", "ok", "345 of 1980"),
    ({}, "GPU memory", "ok", "none uncorrected, 0 corrected"),
    ({"ecc": 0}, "GPU memory", "ok", "none uncorrected"),
    ({"uncorrected": 3}, "GPU memory", "WRONG", "GPU 1: 3 uncorrected"),
    ({"failed": 1}, "GPU memory", "WRONG", "cannot be replaced"),
    ({"pending": 1}, "GPU memory", "hint", "waits to be replaced"),
    ({}, "GPU link", "ok", "16 lanes, generation 5"),
    ({"lanes": 8}, "GPU link", "hint", "GPU 1: generation 5 of 5, 8 of 16 lanes"),
    ({"pcie": 3}, "GPU link", "hint", "GPU 1: generation 3 of 5"),
    ({"pcie": 1, "level": 8, "busy": 0}, "GPU link", "ok", "16 lanes"),     # idle: it sleeps
    ({}, "GPU NVLink", "ok", "4 NVLinks up on each"),
    ({"links": 2}, "GPU NVLink", "ok", "2 NVLinks"),
    ({"links": 0}, "GPU NVLink", "hint", "no NVLink on at least one of 2 GPUs"),
    ({}, "GPU MIG", "ok", "off"),
    ({"mig": 1}, "GPU MIG", "hint", "on for 1 of 2"),
    ({}, "GPU programs", "ok", "none"),
    ({"programs": 2}, "GPU programs", "hint", "GPU 1: process 4000000 has 3.0 GiB; 2 in all"),
    ({"programs": 1000}, "GPU programs", "ok", "none"),                      # more than we asked for: not told
]


def judged(p):
    rows = {}
    for fake, what, level, words in JUDGED:
        key = tuple(sorted(fake.items()))
        rows[key] = rows.get(key) or doctor(p, **fake)
        r = rows[key][what]
        if what == "GPU" and level == "hint" and r["level"] == "ok":
            level = "ok"                              # it is built here
        check(r["level"] == level and words in r["have"], f"{fake}: {r}")
        check((r["level"] == "ok") == (not r["how"]), f"what is not well says what to do: {r}")


def shown(p):
    g = top(p, reasons=0x44)
    check([x["name"] for x in g] == ["G", "G"] and g[0]["bus"] == "00000000:00:00.0" and g[1]["bus"].startswith("00000000:01"),
          f"{g}")
    check(g[0]["busy_percent"] == 55 and g[0]["memory_used"] == 8 << 30 and g[0]["memory_total"] == 80 << 30 and
          g[0]["watts"] == 90 and g[0]["watts_limit"] == 700 and g[0]["celsius"] == 41 and g[0]["sm_mhz"] == 345, f"{g[0]}")
    check(g[0]["held_back_by"] == "" and g[1]["held_back_by"] == "heat, the power limit", f"{g[1]}")
    code, out, err = slipring(p, "top", "-i", "0.1", "--once", env={"FAKE_uncorrected": "2"})
    check(code == 0 and "GPU 0 G: busy 55 %, memory 8.0 of 80.0 GiB, 90 W of 700, 41 C, 345 MHz\n" in out and
          "MEMORY ERRORS 2" in out, f"{out} {err}")


def none_of_it(p):
    g = top(p, FAIL="all")
    check(len(g) == 2 and all(v is None or v == "" for x in g for v in x.values()), f"nothing is known: {g}")
    out = slipring(p, "top", "-i", "0.1", "--once", env={"FAKE_FAIL": "all"})[1]
    check("GPU 0 : says nothing" in out, f"a blank: {out}")
    rows = doctor(p, FAIL="all")
    check(all(rows[w]["level"] == "ok" and "unknown" in rows[w]["have"] for w in
              ("GPU persistence", "GPU clocks", "GPU memory", "GPU link", "GPU NVLink", "GPU programs")), f"{rows}")


def each_call(p, cc):
    """Failing, then lacking: the three that lead to a device leave no GPU, the others a blank."""
    with open(SOURCE) as f:
        calls = sorted(set(re.findall(r"\b(nvml(?:Device|System|Init)\w+)[(,]", f.read())) -
                       {"nvmlDeviceRegisterEvents", "nvmlDeviceGetHandleByPciBusId_v2"})
    check(len(calls) >= 24, f"all calls: {calls}")
    for call in calls:
        leads = call in ("nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
        link(p, cc)
        failing = top(p, FAIL=call)
        rows = doctor(p, FAIL=call)
        link(p, cc, call)
        lacking = top(p)
        check(len(failing) == len(lacking) == (0 if leads else 2), f"{call}: {failing} {lacking}")
        check("GPU" in rows and rows["GPU"]["have"] and doctor(p)["GPU"]["have"], f"{call}: {rows['GPU']}")
        if call == "nvmlInit_v2":
            check(rows["GPU"]["level"] == "hint" and "does not answer" in rows["GPU"]["have"], f"{rows['GPU']}")


def main():
    cc = shutil.which("cc")
    if not cc:
        print("SKIP: no cc to make a stand-in for NVIDIA's library")
        print("[  SKIPPED ] 1 test(s), listed below:")
        return
    need_model()                                      # for its vocabulary alone
    with Programs() as p:
        link(p, cc)
        p.daemon("--device", "null")
        judged(p)
        shown(p)
        none_of_it(p)
        each_call(p, cc)
    done()


main()
