#!/usr/bin/env python3
"""slipring record: traffic of HTTP and of the rings as a trace that bench serve replays; who may record, and
how it ends."""
import grp, json, signal, stat, subprocess
from harness import *

PACE = ["--device", "null", "--null-step-us", "500", "--null-token-us", "1"]
GROUP = next((g.gr_name for g in grp.getgrall() if g.gr_gid == 65534), None) if os.geteuid() == 0 else None
SYSTEM = "You are a clerk who answers in the fewest words that are still polite, and who never guesses. " * 3


def begin(p, *args, **kw):
    r = subprocess.Popen([os.path.join(BUILD, "slipring"), "record", *args], env=p.env, cwd=p.dir, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, **kw)
    return r


def recording(p, *args):
    n = p.log("slipringd").count("Traffic is recorded")
    r = begin(p, *args)
    check(wait_for(lambda: p.log("slipringd").count("Traffic is recorded") > n or r.poll() is not None, 20) and r.poll() is None,
          f"it records: {r.poll()}")
    return r


def end(r, sig=signal.SIGINT, code=0):
    if sig:
        r.send_signal(sig)
    out, err = r.communicate(timeout=30)
    check(r.returncode == code, f"exit {r.returncode}, not {code}: {out}{err}")
    return out, err


def trace(p, name):
    with open(os.path.join(p.dir, name)) as f:
        return [json.loads(line) for line in f]


def ask(p, i, n=5):
    return p.post("/v1/completions", {"model": p.model, "prompt": SYSTEM + f"Question {i}", "max_tokens": n, "ignore_eos": True})


def what_was_asked(p):
    r = recording(p, "t.jsonl")
    usage = [ask(p, i, 3 + i)["usage"] for i in range(4)]
    subprocess.run([os.path.join(BUILD, "slipring"), "generate", "-n", "6", "--ignore-eos", SYSTEM], env=p.env, check=True,
                   capture_output=True, timeout=60)
    p.together(6, lambda i: ask(p, 10 + i, 4))
    out, _ = end(r)
    lines = trace(p, "t.jsonl")
    check(len(lines) == 11 and "t.jsonl: 11 requests" in out, f"all of both ways in: {out}")
    check([(e["input_length"], e["output_length"]) for e in lines[:4]] ==
          [(u["prompt_tokens"], u["completion_tokens"]) for u in usage], "their lengths")
    check(lines[4]["output_length"] == 6, "the ring's, too")
    at = [e["timestamp"] for e in lines]
    check(at[0] == 0 and at == sorted(at), f"in the order of arrival: {at}")
    check(all(len(e["hash_ids"]) == (e["input_length"] + 15) // 16 for e in lines), "a number for each 16 tokens")
    same = lines[0]["hash_ids"][:-2]
    check(len(same) >= 2 and all(e["hash_ids"][:len(same)] == same for e in lines), "the same beginning, the same numbers")
    last = [e["hash_ids"][-1] for e in lines[:4]]
    check(len(set(last)) == 4, "another end, another number")
    check(all(set(e) == {"timestamp", "input_length", "output_length", "hash_ids"} for e in lines), "and nothing else")
    check(stat.S_IMODE(os.stat(os.path.join(p.dir, "t.jsonl")).st_mode) == 0o600, "for its owner")


def replay(p):
    r = subprocess.run([os.path.join(BUILD, "slipring"), "bench", "serve", "--transport", "ring", "--dataset-name", "timed_trace",
                        "--dataset-path", "t.jsonl", "--save-result", "--save-detailed", "--result-filename", "r.json",
                        "--disable-tqdm"], env=p.env, cwd=p.dir, capture_output=True, text=True, timeout=60)
    check(r.returncode == 0, f"it is replayed: {r.stdout}{r.stderr}")
    with open(os.path.join(p.dir, "r.json")) as f:
        d = json.load(f)
    lines = trace(p, "t.jsonl")
    check(d["input_lens"] == [e["input_length"] for e in lines] and d["output_lens"] == [e["output_length"] for e in lines],
          "the same lengths")


def texts(p):
    r = recording(p, "--texts", "x.jsonl")
    _, err = end(begin(p, "other.jsonl"), None, 1)
    check("another recording is running" in err, f"one at a time: {err}")
    ask(p, 77)
    end(r, signal.SIGTERM)
    lines = trace(p, "x.jsonl")
    check(len(lines) == 1 and lines[0]["prompt"] == SYSTEM + "Question 77" and lines[0]["output_tokens"] == 5, f"{lines}")


def ends(p):
    """However it ends: a whole file or none."""
    before = set(os.listdir(p.dir))
    _, err = end(recording(p, "none.jsonl"), signal.SIGINT, 1)
    check("nothing was recorded" in err, f"no request: {err}")
    r = recording(p, "kill.jsonl")
    r.kill()
    r.communicate()
    check(wait_for(lambda: p.log("slipringd").count("The recording") == p.log("slipringd").count("Traffic is recorded"), 10),
          "the daemon sees a recorder's death")
    for name in os.listdir(p.dir):
        if name.startswith("kill.jsonl."):
            os.unlink(os.path.join(p.dir, name))
    r = begin(p, "--max-requests", "2", "two.jsonl")
    check(wait_for(lambda: ask(p, 5) and r.poll() is not None, 20), "it ends by itself")
    out, _ = end(r, None)
    check(len(trace(p, "two.jsonl")) == 2 and "it reached --max-requests or --max-size" in out, f"bounded: {out}")
    out, _ = end(begin(p, "--for", "1s", "--force", "two.jsonl"), None, 1)
    check(len(trace(p, "two.jsonl")) == 2, "a recording of nothing replaces nothing")
    os.unlink(os.path.join(p.dir, "two.jsonl"))
    check(set(os.listdir(p.dir)) == before, f"nothing is left: {set(os.listdir(p.dir)) - before}")


def trouble(p):
    for args, code, sentence in (
            ([], 2, "slipring record [--instance"), (["t.jsonl"], 2, "t.jsonl exists; --force"),
            (["--for", "x", "a"], 2, "--for x: not a number"), (["--for", "-1", "a"], 2, "--for -1"),
            (["--max-size", "1Q", "a"], 2, "--max-size 1Q"),
            *((["--max-requests", n, "a"], 2, f"--max-requests {n}: not a number")
              for n in ("64M", "2.5", "1e3", "0x10", "0", "-1", "99999999999999999999")), (["--nosuch", "a"], 2, "unknown flag --nosuch"),
            (["--for", "5s"], 2, "FILE is missing"), (["--force", "."], 2, ". is a directory: name a file in it"), (["/nowhere/a"], 1, "/nowhere/a cannot be written: No such"),
            (["--instance", "nobody", "a"], 1, 'no daemon "nobody" runs')):
        _, err = end(begin(p, *args), None, code)
        check(sentence in err, f"{args}: {err}")


def strangers(p):
    if not GROUP:
        print("SKIP: other users: only root can become one")
        return
    os.chmod(p.dir, 0o777)
    os.chmod(os.path.join(p.dir, "stats"), 0o644)
    stranger, operator = dict(user=65533, group=65533, extra_groups=[]), dict(user=65533, group=65534, extra_groups=[])
    _, err = end(begin(p, "stolen.jsonl", **stranger), None, 1)
    check("uid 65533 may not change settings or record" in err, f"a stranger: {err}")
    _, err = end(begin(p, "--texts", "--socket", p.socket, "stolen.jsonl", **operator), None, 1)
    check("Permission denied" in err or "uid 65533 may not read prompts" in err, f"an operator, who wants prompts: {err}")
    check(not os.path.exists(os.path.join(p.dir, "stolen.jsonl")), "both get nothing")
    n = p.log("slipringd").count("Traffic is recorded")
    r = begin(p, "theirs.jsonl", **operator)
    check(wait_for(lambda: p.log("slipringd").count("Traffic is recorded by uid 65533") > 0, 20), f"an operator may: {n}")
    ask(p, 3)
    end(r)
    check(len(trace(p, "theirs.jsonl")) == 1, "record how long and how alike")


def gone(p):
    r = recording(p, "last.jsonl")
    ask(p, 1)
    p.procs["slipringd"].terminate()
    out, _ = end(r, None)
    check("the daemon is gone" in out and len(trace(p, "last.jsonl")) == 1, f"what was there is kept: {out}")


def main():
    need_model()                                  # for its vocabulary alone
    with Programs() as p:
        p.daemon(*PACE, *(["--operator-group", GROUP] if GROUP else []))
        p.adapter("--disable-access-log")
        p.model = json.loads(p.ask("GET", "/v1/models")[2])["data"][0]["id"]
        for part in (what_was_asked, replay, texts, ends, trouble, strangers, gone):
            part(p)
    done()


main()
