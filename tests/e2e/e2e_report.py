#!/usr/bin/env python3
"""How far from the limit, sweeps and reports, against the paced null device: knobs are turned and put back
however it ends, the page asks nothing of anybody, and what is wrong is said before anything is sent."""
import csv, functools, http.server, re, shutil, signal, socketserver, subprocess, threading
from harness import *

PACE = ["--device", "null", "--null-step-us", "1000", "--null-token-us", "5", "--max-num-seqs", "16"]
LOAD = ["--transport", "ring", "--random-input-len", "16", "--random-output-len", "8", "--temperature", "0",
        "--disable-tqdm"]


def command(p, *args, code=0):
    r = subprocess.run([os.path.join(BUILD, "slipring"), *map(str, args)], env=p.env, cwd=p.dir, timeout=120,
                       capture_output=True, text=True)
    codes = code if isinstance(code, tuple) else (code,)
    check(r.returncode in codes, f"slipring {' '.join(map(str, args))}: exit {r.returncode}, not {code}\n{r.stdout}{r.stderr}")
    return r.stdout, r.stderr


def load(p, name):
    with open(os.path.join(p.dir, name)) as f:
        return json.load(f)


def knobs(p):
    return {k: v["now"] for k, v in json.loads(command(p, "set", "--json")[0]).items()}


def how_far(p):
    out, _ = command(p, "bench", "serve", *LOAD, "--num-prompts", 200, "--max-concurrency", 64, "--save-result",
                     "--save-detailed", "--result-filename", "one.json", "--report", "one.html")
    block, more = out.split("=" * 50 + "\n", 1)
    check("How Far From the Limit" in more and "Limit" not in block, "it stands after vLLM's block")
    s = load(p, "one.json")["slipring"]["server"]
    check(s["says"] + ".\n" in out, "in a sentence, printed and in the file")
    check(s["limit"] == "knob" and "The limit was max-num-seqs" in s["says"], f"16 of 64 at a time: {s['says']}")
    check(s["generated_tokens"] == 1600 and not s["others_too"], f"its tokens are counted: {s['generated_tokens']}")
    for axis in ("why_seconds", "bound_seconds"):
        check(abs(sum(s[axis].values()) - s["seconds"]) < 0.02 + 0.02 * s["seconds"], f"{axis} add up to the time")
    check(abs(sum(s["empty_seconds"].values()) - s["why_seconds"]["empty"]) < 0.02 * s["seconds"], "and the parts of empty to it")
    check(s["memory_bytes_per_s"] == 0 == s["ops_per_s"] and s["reached"]["memory"] is None,
          "the null device moves nothing")
    t = s["over_time"]
    check(len(t["at"]) >= 3 and all(len(v) == len(t["at"]) for v in (*t["why"].values(), *t["bound"].values(), *t["empty"].values())),
          "and its course over time")
    out, _ = command(p, "bench", "serve", *LOAD, "--num-prompts", 30, "--request-rate", 40)
    check("The limit was the load" in out, f"a load that leaves it idle: {out[-600:]}")
    check(re.search("\n  of empty:  +((tokenizing|network|silent|served|nobody) [0-9]+ %(, )?)+\n", out),
          f"and what empty was: {out[-600:]}")


def another_server_is_not_judged_by_this_page(p):
    """An HTTP server that is not the daemon's: the page that lies here did not count its tokens."""
    class Other(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            body = (b'data: {"choices":[{"text":"a"}]}\n\n' * 4 +
                    b'data: {"choices":[],"usage":{"prompt_tokens":16,"completion_tokens":4}}\n\ndata: [DONE]\n\n')
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Other) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        out, _ = command(p, "bench", "serve", "--port", s.server_address[1], "--model", MODEL, "--num-prompts", 20,
                         "--random-input-len", 16, "--disable-tqdm", "--save-result", "--result-filename", "other.json")
        s.shutdown()
    check("What limited the server is not known: --port " in out, f"which is said: {out}")
    check("How Far" not in out and "server" not in load(p, "other.json")["slipring"], f"nothing is claimed: {out}")


def sweeps(p):
    before = knobs(p)
    out, _ = command(p, "bench", "sweep", *LOAD, "--num-prompts", 40, "--max-concurrency", "2,16", "--set",
                     "max-num-seqs=2,16", "--num-runs", 2, "-o", "sw")
    check(knobs(p) == before, f"the knobs are as they were: {knobs(p)}")
    check(out.count(" tok/s, ") == 8 and "[  8/8] max-concurrency=16, max-num-seqs=16, run 2: " in out, out)
    d = load(p, "sw/sweep.json")
    check(d["format"] == 1 and not d["interrupted"] and [x["runs"] for x in d["points"]] == [2] * 4, "sweep.json")
    check([(x["load"], x["settings"]) for x in d["points"]] ==
          [(2.0, "max-num-seqs=2"), (16.0, "max-num-seqs=2"), (2.0, "max-num-seqs=16"), (16.0, "max-num-seqs=16")],
          "loads and settings")
    dates, speed = [], []
    for x in d["points"]:
        with open(os.path.join(p.dir, "sw", x["file"])) as f:
            runs = [json.loads(line) for line in f if line.strip()]
        check(len(runs) == 2 and all(r["completed"] == 40 for r in runs), f"a file for each point: {x['file']}")
        check(all(r["slipring"]["server"]["knobs"]["max-num-seqs"] == x["knobs"]["max-num-seqs"] for r in runs),
              "measured at its setting")
        check(all(not r["slipring"]["server"]["prefix_hit_rate"] for r in runs), "no run finds another's prompts")
        speed.append(max(r["output_throughput"] for r in runs))
        dates.append([r["start_times"][0] for r in runs])
    check(max(a for a, _ in dates) < min(b for _, b in dates), "the first run of all comes before the second of any")
    check(speed[3] > 1.5 * speed[1], f"sixteen at a time do more than two: {speed}")
    with open(os.path.join(p.dir, "sw/report.csv")) as f:
        rows = list(csv.DictReader(f))
    check(len(rows) == 8 and {r["limit"] for r in rows} <= {"load", "knob", "host"}, f"a row for each run: {rows[:1]}")
    one = [x["file"] for x in d["points"]]
    # Two runs of each: far apart, or too few to say so, as the machine has it.
    out, _ = command(p, "compare", "sw/" + one[1], "sw/" + one[3], code=(0, 1, 2))
    check("2 runs, 80 requests" in out, "a point's file is one that compare reads")
    with open(os.path.join(p.dir, "sets.json"), "w") as f:
        json.dump([{"max_num_seqs": 4, "max_num_batched_tokens": 64}, {"max_num_seqs": 8}], f)
    out, _ = command(p, "bench", "sweep", *LOAD, "--serve-params", "sets.json", "--request-rate", "50,inf", "--dry-run")
    check("4 points" in out and "4. request-rate=inf, max-num-seqs=8" in out, f"vLLM's files of settings: {out}")


def knobs_come_back(p):
    """However it ends: Ctrl-C, and even kill -9."""
    before = knobs(p)
    for sig in (signal.SIGINT, signal.SIGKILL):
        name = f"cut{int(sig)}"
        r = subprocess.Popen([os.path.join(BUILD, "slipring"), "bench", "sweep", *LOAD, "--num-prompts", "40", "--set",
                              "max-num-seqs=1,3", "--num-runs", "50", "-o", name], env=p.env, cwd=p.dir,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        check(wait_for(lambda: "run 1: " in r.stdout.readline(), 60), "it runs")
        check(knobs(p)["max-num-seqs"] in (1, 3), "with the knob turned")
        r.send_signal(sig)
        r.communicate(timeout=30)
        check(wait_for(lambda: knobs(p) == before, 20), f"signal {int(sig)}: the knobs are back: {knobs(p)}")
        done = load(p, name + "/sweep.json")["points"]
        check(done[0]["runs"] >= 1, "what was measured is kept")
        if sig == signal.SIGINT:
            check(r.returncode == 130 and load(p, name + "/sweep.json")["interrupted"], f"exit {r.returncode}")
            check(os.path.exists(os.path.join(p.dir, name, "report.html")), "and reported")
        else:
            command(p, "report", "-o", "cut.html", name + "/sweep.json")


def refusals(p):
    before = set(os.listdir(p.dir))
    with open(os.path.join(p.dir, "bad.json"), "w") as f:
        f.write('[{"max_num_seqs": 4},\n 5]')
    for words, says in (
            (("sweep", "--set", "max-num-seqs=9999"), "--set max-num-seqs=9999: this daemon's ceiling is "),
            (("sweep", "--set", "max-num-sqs=9"), 'unknown knob "max-num-sqs", did you mean "max-num-seqs"?'),
            (("sweep", "--set", "max-num-seqs=x"), 'max-num-seqs is a number of sequences, at least 1, not "x"'),
            (("sweep", "--set", "max-num-seqs"), "--set max-num-seqs: give KNOB=VALUE,VALUE"),
            (("sweep", "--max-concurrency", "4,,8"), "--max-concurrency 4,,8: give values separated by commas"),
            (("sweep", "--max-concurrency", "4,zero"), "--max-concurrency zero: not a whole number"),
            (("sweep", "--request-rate", "1,-2"), "--request-rate -2: not a number from"),
            (("sweep", "--num-runs", "0"), "--num-runs 0: not a whole number from 1 to 64"),
            (("sweep", "--save-result"), "each point of a sweep has its file in --output-dir"),
            (("sweep", "--serve-params", "bad.json"), "bad.json: entry 1: it must be an object of names and values"),
            (("sweep", "--serve-params", "no.json"), "no.json"),
            (("sweep", "--instance", "nobody", "--set", "max-num-seqs=2"), "of a daemon on this machine"),
            (("serve", "--goodput", "ttft:-5"), "--goodput ttft:-5"),
            (("serve", "--goodput", "speed:5"), "--goodput speed:5")):
        _, err = command(p, "bench", words[0], *LOAD, "--num-prompts", 2, *words[1:], code=2)
        check(says in err.splitlines()[-1], f"{words}: {err}")
    _, err = command(p, "bench", "sweep", *LOAD, "--num-prompts", 2, "-o", "sw", code=2)
    check("sw/sweep.json is there already" in err, err)
    _, err = command(p, "report", "bad.json", code=1)
    check("slipring report: bad.json: line " in err and err.count("\n") == 1, err)
    _, err = command(p, "bench", "sweep", "--transport", "ring", "--socket", "/nowhere.sock", "--num-prompts", 2, "-o",
                     "gone", code=1)
    check("no daemon listens there" in err, err)
    check(set(os.listdir(p.dir)) - before == {"bad.json"}, f"nothing is written: {set(os.listdir(p.dir)) - before}")


def the_page_is_self_contained(p):
    for name in ("one.html", "sw/report.html", "cut.html"):
        with open(os.path.join(p.dir, name)) as f:
            s = f.read()
        check(not re.findall(r"https?:|src=|url\(|@import|<script|<link(?! rel=.icon. href=.data:)", s),
              f"{name} names nothing outside")
        check(s.count("<svg") >= 6 and s.count("<svg") == s.count("</svg>"), f"{name} has its pictures")


def chromium_is_content(p):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        print("SKIP: the page in a browser: there is no chromium")
        return
    asked = []

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, fmt, *args):
            asked.append(args[0] if args else fmt)
    files = functools.partial(Files, directory=p.dir)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), files) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        for name in ("one.html", "sw/report.html"):
            del asked[:]
            r = subprocess.run([browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                                f"--user-data-dir={p.dir}/chromium", "--disable-background-networking",
                                f"--screenshot={p.dir}/page.png",
                                f"http://127.0.0.1:{s.server_address[1]}/{name}"],
                               env=dict(p.env, HOME=p.dir), capture_output=True, text=True, timeout=100)
            check(os.path.getsize(os.path.join(p.dir, "page.png")) > 5000, f"it is drawn: {r.stderr[-2000:]}")
            check("CONSOLE" not in r.stderr, f"{name}: no word on the console: {r.stderr}")
            check(asked == [f"GET /{name} HTTP/1.1"], f"{name}: the page is all that is asked for: {asked}")
        s.shutdown()


def main():
    need_model()                                  # for its vocabulary alone
    with Programs() as p:
        p.env.update(XDG_DATA_HOME=os.path.join(p.dir, "share"), XDG_CACHE_HOME=os.path.join(p.dir, "cache"))
        os.makedirs(os.path.join(p.dir, "cache/slipring"))
        os.symlink(os.path.dirname(MODEL), os.path.join(p.dir, "cache/slipring/models"))
        p.daemon(*PACE)
        for part in (how_far, another_server_is_not_judged_by_this_page, sweeps, knobs_come_back, refusals,
                     the_page_is_self_contained, chromium_is_content):
            part(p)
    done()


main()
