#!/usr/bin/env python3
"""slipring bench serve and slipring compare against the paced null device: over HTTP and over the rings,
the same requests, the same counts, nothing failed; what is wrong is said in a sentence."""
import http.server, json, signal, socketserver, subprocess, threading, time
from harness import *

PACE = ["--device", "null", "--null-step-us", "2000", "--null-token-us", "5"]
LOAD = ["--random-input-len", "64", "--random-output-len", "24", "--random-range-ratio", "0.5", "--num-prompts", "60",
        "--temperature", "0"]


class Garbage(http.server.BaseHTTPRequestHandler):
    """A server that answers everything with a stream that is none."""
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b"data: <html>\n\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def command(p, *args, code=0, timeout=120):
    r = subprocess.run([os.path.join(BUILD, "slipring"), *map(str, args)], env=p.env, cwd=p.dir, timeout=timeout,
                       capture_output=True, text=True)
    check(r.returncode == code, f"slipring {' '.join(map(str, args))}: exit {r.returncode}, not {code}\n{r.stdout}{r.stderr}")
    return r.stdout, r.stderr


def bench(p, *args, http=True, code=0):
    return command(p, "bench", "serve", *(["--port", p.port] if http else ["--transport", "ring"]), *LOAD, *args, code=code)


def result(p, name):
    with open(os.path.join(p.dir, name)) as f:
        return json.load(f)


def the_two_wires_agree(p):
    save = ["--save-result", "--save-detailed", "--max-concurrency", 8]
    out, _ = bench(p, *save, "--result-filename", "http.json")
    check("============ Serving Benchmark Result ============\nSuccessful requests:                     60        \n"
          in out, "the block is printed")
    bench(p, *save, "--result-filename", "ring.json", http=False)
    h, r = result(p, "http.json"), result(p, "ring.json")
    for k in ("completed", "total_input_tokens", "total_output_tokens", "input_lens", "output_lens"):
        check(h[k] == r[k], f"{k} is the same over HTTP and the rings")
    check(h["completed"] == 60 and h["failed"] == r["failed"] == 0, "none failed")
    check(set(h["errors"]) == {""}, "and none has an error")
    check(all(len(g) + 1 == n for g, n in zip(r["itls"], r["output_lens"])), "a record per token over the rings")
    check(all(len(g) + 1 <= n for g, n in zip(h["itls"], h["output_lens"])), "no more events than tokens over HTTP")
    for d in (h, r):
        check(d["max_concurrent_requests"] >= 8 and d["slipring"]["format"] == 1, "concurrency")
        check(1.5 < d["median_itl_ms"] < 50, f"the device's pace is seen: {d['median_itl_ms']} ms")
    tokens = sum(h["output_lens"])
    check(abs(h["output_throughput"] * h["duration"] - tokens) < 1, "throughput is tokens by time")


def open_loop(p):
    bench(p, "--request-rate", 60, "--save-result", "--result-filename", "open.json", "--goodput", "e2el:60000",
          "--num-warmups", 2, "--ready-check-timeout-sec", 5, "--backend", "openai-chat")
    d = result(p, "open.json")
    check(d["completed"] == 60 and d["failed"] == 0, "all answered")
    check(d["duration"] > 0.99, f"60 requests at 60 a second take a second: {d['duration']}")
    check(abs(d["request_goodput"] - d["request_throughput"]) < 1e-9, "all of them good")
    check(d["slipring"]["mean_ttft_from_intended_ms"] >= d["mean_ttft_ms"] - 1e-6, "from the intended time is not less")
    check("ttfts" not in d, "details only where asked for")


def datasets(p):
    with open(os.path.join(p.dir, "custom.jsonl"), "w") as f:
        for i in range(7):
            f.write(json.dumps({"prompt": f"Tell me about the number {i}.", "output_tokens": 3 + i}) + "\n")
    bench(p, "--dataset-name", "custom", "--dataset-path", "custom.jsonl", "--custom-output-len", -1, "--num-prompts", 7,
          "--ignore-eos", "--save-result", "--save-detailed", "--result-filename", "custom.json")
    check(sorted(result(p, "custom.json")["output_lens"]) == list(range(3, 10)), "lengths of the dataset")
    with open(os.path.join(p.dir, "trace.jsonl"), "w") as f:
        for i in range(10):
            f.write(json.dumps({"timestamp": 40 * i, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, i]}) + "\n")
    for http_ in (True, False):
        bench(p, "--dataset-name", "timed_trace", "--dataset-path", "trace.jsonl", "--timed-trace-sec-multiplier", 0.001,
              "--save-result", "--save-detailed", "--result-filename", "trace.json", http=http_)
        d = result(p, "trace.json")
        check(d["output_lens"] == [5] * 10 and d["input_lens"] == [40] * 10, "lengths of the trace")
        check(0.3 < d["start_times"][9] - d["start_times"][0] < 2, "by the trace's clock")
    bench(p, "--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", 3, "--ignore-eos")


def structured(p):
    with open(os.path.join(p.dir, "schema.json"), "w") as f:
        json.dump({"enum": ["yes", "no"]}, f)
    share = ["--structured-output-schema", "schema.json", "--structured-output-ratio", 0.25]
    for backend in ("openai", "openai-chat"):
        bench(p, *share, "--backend", backend, "--num-warmups", 1, "--save-result", "--save-detailed",
              "--result-filename", "structured.json")
        d = result(p, "structured.json")
        check(d["completed"] == 60 and d["slipring"]["structured_output_ratio"] == 0.25, f"all answered: {d['errors']}")
        kept = [i for i, t in enumerate(d["generated_texts"]) if t.strip() in ('"yes"', '"no"')]
        check(kept == list(range(0, 60, 4)), f"every fourth answer of {backend} keeps to the schema: {kept}")
    _, err = bench(p, *share, http=False, code=2)
    check("is for HTTP requests" in err, f"not over the rings: {err}")


def baselines(p):
    for name in ("before", "after"):
        bench(p, "--max-concurrency", 8, "--save-baseline", name, http=False)
    kept = sorted(os.listdir(os.path.join(p.env["XDG_DATA_HOME"], "slipring/baselines")))
    check(kept == ["after.json", "before.json"], f"baselines are kept: {kept}")
    r = subprocess.run([os.path.join(BUILD, "slipring"), "compare", "--json", "before", "after"], env=p.env,
                       capture_output=True, text=True, timeout=60)
    d = json.loads(r.stdout)
    check(r.returncode == {"same": 0, "better": 0, "worse": 1, "cannot tell": 2}[d["verdict"]], "exit status is the verdict")
    check(d["not_the_same"] == [], "the same work")
    for i in range(2):
        bench(p, "--append-result", "--result-filename", "runs.json", "--max-concurrency", 8, http=False)
    out, _ = command(p, "compare", "runs.json", "runs.json")
    check("2 runs, 120 requests" in out and "B is the same as A" in out, f"runs are appended: {out}")


def trouble(p):
    before = set(os.listdir(p.dir))
    _, err = command(p, "bench", "serve", "--port", 1, "--model", MODEL, code=1)
    check("every request failed" in err, f"nobody there: {err}")
    _, err = command(p, "bench", "serve", "--port", 1, code=1)
    check("/v1/models: " in err and err.count("\n") == 1, f"nobody there to name a model: {err}")
    _, err = command(p, "bench", "serve", "--transport", "ring", "--socket", "/nowhere.sock", code=1)
    check("no daemon listens there" in err, f"no daemon: {err}")
    out, _ = bench(p, "--model", "wrong", "--tokenizer", MODEL, "--num-prompts", 2, "--save-result", code=1)
    check("Error 0: HTTP 404: The model `wrong` does not exist." in out, f"the server's own words: {out}")
    with open(os.path.join(p.dir, "bad.jsonl"), "w") as f:
        f.write('{"prompt": "x"}\n{"prompt": 5}\n')
    _, err = bench(p, "--dataset-name", "custom", "--dataset-path", "bad.jsonl", "--disable-shuffle", code=1)
    check('bad.jsonl: line 2: not a text: "prompt"' in err, f"the line is named: {err}")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Garbage) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        out, err = command(p, "bench", "serve", "--port", s.server_address[1], "--model", MODEL, "--num-prompts", 3,
                           "--save-result", code=1)
        check("Error 2: a line of the stream is not an event" in out, f"rubbish is called so: {out}")
        s.shutdown()
    check(set(os.listdir(p.dir)) - before == {"bad.jsonl"}, "no result is written where nothing was measured")


def interrupted(p):
    r = subprocess.Popen([os.path.join(BUILD, "slipring"), "bench", "serve", "--transport", "ring", "--request-rate", "20",
                          "--random-input-len", "16", "--random-output-len", "8", "--save-result", "--result-filename",
                          "cut.json"], env=p.env, cwd=p.dir, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(wait_for(lambda: r.stdout.readline().startswith("Maximum request"), 60), "it runs")
    time.sleep(1.5)
    r.send_signal(signal.SIGINT)
    out, _ = r.communicate(timeout=20)
    d = result(p, "cut.json")
    check(r.returncode == 130 and "Interrupted: " in out, f"exit {r.returncode}: {out}")
    check(5 <= d["completed"] < 1000 and d["failed"] == 0 and d["slipring"]["interrupted"], "what was measured so far")
    check(f"Successful requests:                     {d['completed']}" in out, "is printed")


def main():
    need_model()                                  # for its vocabulary alone
    with Programs() as p:
        p.env["XDG_DATA_HOME"] = os.path.join(p.dir, "share")
        p.daemon(*PACE)
        p.adapter("--disable-access-log")
        for part in (the_two_wires_agree, open_loop, datasets, structured, baselines, trouble, interrupted):
            part(p)
    done()


main()
