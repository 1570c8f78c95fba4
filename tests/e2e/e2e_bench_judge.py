#!/usr/bin/env python3
"""How `make bench` judges: what it refuses, what fails it, and what its lines say; with made-up figures and
stand-ins for what measures, since speeds are nothing that a test can ask for."""
import contextlib, io, json, os, sys, tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../bench"))
import bench
import bench_peers
from harness import check, done, wait_for

FIELDS = {"id", "unit", "min", "med", "max", "floor", "goal", "peer_med", "ratio_min", "ratio_med", "ratio_max",
          "limit", "frac", "env"}


def row(ours, peer, floor=2, goal=3, **kw):
    r = bench.Row("made-up-1", "tok/s", floor, goal, **kw)
    for a in ours:
        r.add(a, peer, 1000)
    return r


def reported(rows, foreign=0.0, differ=0.0, missing=()):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = bench.report(rows, missing, foreign, differ)
    return code, out.getvalue()


def main():
    with tempfile.TemporaryDirectory() as build:
        os.mkdir(os.path.join(build, "bench"))
        lines = os.path.join(build, "bench", "cpu.jsonl")
        bench.arguments([build])
        for what, code, ours, peer, kw in (
                ("above the floor", 0, (210, 250, 900), 100, {}),
                ("under the floor", 1, (900, 190, 180), 100, {}),
                ("no peer: nothing to judge by", 0, (1, 1, 1), None, {}),
                ("less is better, and is less", 0, (50, 59, 70), 100, {"floor": 0.6, "goal": 0.35, "more": False}),
                ("less is better, and is more", 1, (61, 62, 10), 100, {"floor": 0.6, "goal": 0.35, "more": False}),
                ("by the value itself", 1, (4, 4, 4), 100, {"floor": 3, "more": False, "floor_of": "value"}),
                ("by the fraction of the limit", 0, (900,), None, {"floor": 0.9, "floor_of": "frac"})):
            got, text = reported([row(ours, peer, **kw)])
            check(got == code, f"{what}: exit {got}\n{text}")
            check(("no peer" in text) == (peer is None), f"{what}: says whether there was a peer")
            with open(lines) as f:
                j = json.loads(f.readline())
            check(FIELDS <= set(j), f"{what}: fields {sorted(j)}")
            check(j["min"] == min(ours) and j["max"] == max(ours) and j["frac"] > 0, f"{what}: {j}")
        os.unlink(lines)
        for what, foreign, differ in (("others", 0.071, 0), ("ours beside ours", 0, 0.051)):
            code, text = reported([row((999,), 100)], foreign, differ)
            check(code == 3 and "noisy" in text and "999" not in text, f"{what}: refuses\n{text}")
            check(not os.path.exists(lines), f"{what}: writes nothing")
        check(reported([row((999,), 100)], 0.069, 0.049)[0] == 0, "just under both")
        code, text = reported([row((999,), 100)], missing=[("made-up-2", "why not")])
        check(code == 1 and "made-up-2" in text and "why not" in text, "a row that could not be measured fails")

        bench.arguments([build, "--rows", "decode1,q80"])
        names = [r.id for _, rows in bench.parts() for r in rows]
        check("decode-1-q4_1" in names and "decode-16-q4_1" in names and "prefill-512-q8_0" in names and
              "prefill-512-q4_1" not in names and "start-cold" not in names, f"rows by their names: {names}")
        try:
            bench.compare("made up", [(1, -0.5)] * 12, [(1, -0.5)] * 8 + [(2, -0.5)] * 4)
            check(False, "other answers are refused")
        except bench_peers.Failed as why:
            check("8 of 12" in str(why), str(why))
        try:
            bench.compare("made up", [(1, -0.5)] * 12, [(1, -0.9)] * 12)
            check(False, "other probabilities are refused")
        except bench_peers.Failed as why:
            check("0.400" in str(why), str(why))

        load = bench_peers.Load()
        own = bench_peers.start([sys.executable, "-c", "while True: pass"])
        wait_for(lambda: load.own_busy() - load.own > 0.2, 30)
        grew = load.own_busy() - load.own
        bench_peers.stop(own)
        check(grew > 0.2, f"what we started counts as ours: {grew:.2f} s")
        ticks = 0.05                               # /proc rounds user and system time, ours and a child's
        check(load.own_busy() - load.own >= grew - ticks, "also after it has ended")
        check(not bench_peers.alive, "and nothing is left")
    done()


main()
