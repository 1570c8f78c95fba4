#!/usr/bin/env python3
"""Things that go wrong around a serving daemon: it is killed and restarted under the adapter, clients
vanish, it is told to stop while it works, its configuration is wrong."""
import json, os, signal, socket, subprocess, time
from harness import *

ASK = {"prompt": [504, 3575, 282, 4649, 314], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def restart_under_adapter():
    with Programs() as p:
        p.adapter("--daemon-wait", 0)             # before there is any daemon
        status, headers, text = p.ask("POST", "/v1/completions", ASK)
        check(status == 503 and int(headers["Retry-After"]) >= 1, f"no daemon yet: 503, not {status} {text[:200]}")
        check("error" in json.loads(text), "and a JSON error")
        check(p.ask("GET", "/health")[0] == 503, "health says so")
        d = p.daemon()
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 10), "healthy once the daemon is there")
        first = p.post("/v1/completions", ASK)["choices"][0]["text"]
        fds = descriptors(p.procs["slipring-http"].pid)
        for sig in (signal.SIGKILL, signal.SIGTERM):
            d.send_signal(sig)
            d.wait(40)
            status, headers, _ = p.ask("POST", "/v1/completions", ASK)
            check(status == 503 and "Retry-After" in headers, f"daemon gone by {sig.name}: 503, not {status}")
            d = p.daemon()
            check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 10), "healthy again, same adapter")
            check(p.post("/v1/completions", ASK)["choices"][0]["text"] == first, "and the same answer")
        check(p.procs["slipring-http"].poll() is None, "the adapter never ended")
        check(wait_for(lambda: descriptors(p.procs["slipring-http"].pid) <= fds + 2, 5), "no descriptor is left open")


def killed_while_streaming():
    with Programs() as p:
        d = p.daemon()
        p.adapter("--daemon-wait", 0)
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=30)
        c.request("POST", "/v1/completions", json.dumps({**ASK, "max_tokens": 3000, "stream": True}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        check(r.status == 200 and r.readline().startswith(b"data: "), "a stream begins")
        d.kill()
        d.wait()
        rest = r.read().decode()
        check(rest.endswith("data: [DONE]\n\n") and '"error"' in rest[-600:],
              f"it ends with an error event and [DONE]: {rest[-300:]!r}")


def readers_that_leave():
    with Programs() as p:
        d = p.daemon()
        p.adapter()
        body = json.dumps({**ASK, "max_tokens": 3000, "stream": True}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        for i in range(20):
            s = socket.create_connection(("127.0.0.1", p.port))
            s.sendall(head + body)
            if i % 3:
                s.recv(100)
            s.close()

        def running():
            text = p.ask("GET", "/metrics")[2]
            return sum(float(l.rsplit(" ", 1)[1]) for l in text.splitlines()
                       if l.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{")))
        check(wait_for(lambda: running() == 0, 15), "requests whose readers left are cancelled")
        check(len(p.post("/v1/completions", ASK)["choices"][0]["text"]) > 0, "and the server serves")
        usage = [l for l in p.ask("GET", "/metrics")[2].splitlines() if l.startswith("vllm:kv_cache_usage_perc{")]
        check(usage and float(usage[0].rsplit(" ", 1)[1]) == 0, "no block is held")


def stop_while_working():
    with Programs() as p:
        s = p.serve("--shutdown-timeout", 20)
        got = []
        t = threading.Thread(target=lambda: got.append(p.stream("/v1/completions", {**ASK, "max_tokens": 100})))
        t.start()
        check(wait_for(lambda: "vllm:num_requests_running" in p.ask("GET", "/metrics")[2], 5), "working")
        time.sleep(0.1)
        s.send_signal(signal.SIGTERM)
        t.join(40)
        check(got and got[0][0] == 200 and got[0][1][-1] is None and
              got[0][1][-2]["choices"][0]["finish_reason"] == "length", "a running answer is finished")
        check(s.wait(30) == 0, f"and then the service ends with 0, not {s.returncode}")


def wrong_settings():
    cases = [
        (["--max-num-seqz", "3"], "max-num-seqs"),                  # did you mean
        (["--max-model-len", "1000000"], "8192"),                     # names what the model has
        (["--gpu-memory-utilization", "1.5"], "gpu-memory-utilization"),
        (["--quantization", "awq"], "awq"),
        (["--model", "/nonexistent/model.gguf"], "/nonexistent/model.gguf"),
        (["--model", "nobody/nothing"], "nobody/nothing"),
        (["--kv-cache-memory-bytes", "1"], "kv-cache-memory-bytes"),
        (["--pipeline-parallel-size", "2"], "pipeline-parallel-size"),
        (["--port", "99999"], "port"),
        (["--device", "cuda"], "cuda"),
    ]
    with Programs() as p:
        for args, word in cases:
            r = subprocess.run([os.path.join(BUILD, "slipring"), "serve", "--port", "0", *args], env=p.env, timeout=60,
                               stdin=subprocess.DEVNULL, capture_output=True, text=True)
            check(r.returncode not in (0, -6, -11) and word in r.stderr,
                  f"serve {' '.join(args)}: exit {r.returncode}, must name {word}: {r.stderr[-500:]}")


def checklist_commands():
    production = ["--gpu-memory-utilization", "0.95", "--max-model-len", "4096", "--max-num-seqs", "256",
                  "--enable-prefix-caching", "--dtype", "half"]
    batching = ["--max-num-seqs", "256", "--max-num-batched-tokens", "32768"]
    # A share of the whole memory would be touched by nobody here, but must be there: ask for less.
    for args in (["--model", MODEL, *production[2:]], ["--gpu-memory-utilization", "0.3", "--max-model-len", "4096"], batching):
        with Programs() as p:
            p.serve(*args)
            check(p.post("/v1/completions", ASK)["usage"]["completion_tokens"] == 8, f"serves with {args}")


def main():
    need_model()
    restart_under_adapter()
    killed_while_streaming()
    readers_that_leave()
    stop_while_working()
    wrong_settings()
    checklist_commands()
    done()


main()
