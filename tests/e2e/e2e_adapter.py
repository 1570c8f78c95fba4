#!/usr/bin/env python3
"""slipring-http as a process: hostile bytes on the real thing, life without a daemon, draining,
several processes, TLS, a Unix socket.  The daemon's device is null, so nothing waits for numbers."""
import json, os, signal, socket, ssl, subprocess, sys, threading, time

from harness import BUILD, Programs, check, done, need_model, wait_for

NULL = ["--device", "null", "--null-step-us", "2000", "--max-model-len", "4096"]
ASK = {"prompt": "x", "max_tokens": 2, "ignore_eos": True}

# What is sent, the status of the answer (of the last one), and whether the connection is closed.
BODY = b'{"prompt":[1],"max_tokens":1}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HOSTILE = [
    (b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, False),
    (b"GET /version HTTP/1.0\r\n\r\n", 200, True),
    (b"GET http://localhost/version HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, False),
    (POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, 200, False),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY), 200, False),
    (POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n",
     200, False),
    (POST + b"Content-Length: 9999999999\r\n\r\n", 413, True),
    (POST + b"Expect: 100-continue\r\nContent-Length: 9999999999\r\n\r\n", 413, True),
    (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400, True),
    (POST + b"Content-Length: +2\r\n\r\n{}", 400, True),
    (POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400, True),
    (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 501, True),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", 400, True),
    (b"GET /version HTTP/1.1\nHost: a\n\n", 400, True),
    (b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", 400, True),
    (b"GET /version HTTP/1.1\r\nHost : a\r\n\r\n", 400, True),
    (b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n", 400, True),
    (b"GET /version HTTP/1.1\r\n\r\n", 400, True),
    (b"GET /version\r\n", 400, True),
    (b"GET /" + b"a" * 20000, 414, True),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 100, 431, True),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, True),
    (b"CONNECT a:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 501, True),
    (b"FOO /version HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, False),
    (b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, False),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, True),
    (b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\rb\r\n\r\n", 400, True),
]


def exchange(port, data):
    """(last status, closed) of what comes back."""
    s = socket.create_connection(("127.0.0.1", port), 5)
    s.sendall(data)
    got, closed = b"", False
    s.settimeout(5)
    try:
        while True:
            b = s.recv(65536)
            closed |= not b
            got += b
            if not b:
                break
            head, sep, rest = got.partition(b"\r\n\r\n")
            lengths = [int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length:")]
            if sep and lengths and len(rest) >= lengths[0]:
                s.settimeout(0.05)         # whole: is the connection closed behind it?
    except (socket.timeout, ConnectionResetError) as e:
        check(not isinstance(e, ConnectionResetError), f"no reset after {data[:60]}")
    s.close()
    return (int(got[9:12]) if got.startswith(b"HTTP/1.1 ") else None), closed


def hostile(p):
    for data, status, closed in HOSTILE:
        got = exchange(p.port, data)
        check(got == (status, closed), f"{data[:90]}: {got}, not {(status, closed)}")
    check(p.post("/v1/completions", ASK)["usage"]["completion_tokens"] == 2, "and it serves")


def routes(p):
    name = json.loads(p.ask("GET", "/v1/models")[2])["data"][0]["id"]
    for path in ("/health", "/ping", "/live", "/v1/health", "/version", "/metrics", "/v1/models", "/v1/models/" + name):
        get, head = p.ask("GET", path), p.ask("HEAD", path)
        check((get[0], head[0], head[2]) == (200, 200, ""), f"GET and HEAD {path}: {get[0]} {head[0]} {head[2][:99]}")
        if path != "/metrics":
            check(get[1]["Content-Length"] == head[1]["Content-Length"] == str(len(get[2])), f"length of {path}")
    status, headers, _ = p.ask("HEAD", "/v1/completions")
    check((status, headers["Allow"]) == (405, "POST"), "HEAD is no POST")
    for path, status in (("vendor/a%20model", 200), ("vendor%2Fa%20model", 200), ("vendor", 404), ("", 404)):
        got = p.ask("GET", "/v1/models/" + path)
        check(got[0] == status and (status == 404 or json.loads(got[2])["id"] == "vendor/a model"), f"{path}: {got}")
    check("error" in json.loads(p.ask("GET", "/v1/models/nobody")[2]), "an unknown model is an error object")
    for method, path in (("POST", "/v1/responses/compact"), ("GET", "/v1/responses/resp_1"), ("POST", "/v1/messages/batches"),
                         ("POST", "/v1/embeddings"), ("POST", "/v1/rerank"), ("POST", "/v1/audio/transcriptions"),
                         ("POST", "/api/chat"), ("GET", "/api/tags"), ("GET", "/props"), ("GET", "/slots"),
                         ("POST", "/infill"), ("GET", "/tokenizer_info")):
        status, _, text = p.ask(method, path)
        e = json.loads(text).get("error", {})
        check(status == 404 and set(e) == {"message", "type", "param", "code"} and "/" in e["message"], f"{path}: {text}")
    check(p.ask("GET", "/nothing")[2] == '{"detail":"Not Found"}', "a path that nobody has is refused as vLLM does")
    got = p.ask("POST", "/v1/completions", ASK, headers={"Content-Encoding": "gzip"})
    check(got[0] == 415 and "compressed" in got[2], f"a compressed body: {got}")
    check(p.ask("POST", "/v1/completions", ASK, headers={"Content-Encoding": "identity"})[0] == 200, "identity")

    def tokens(role):
        return p.post("/tokenize", {"messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "a"}]})
    check(tokens("developer") == tokens("system") != tokens("tool"), "a developer is the system to an older template")
    for path in ("/health", "/v1/models", "/nothing"):
        a, b = (p.ask("GET", path)[1]["X-Request-Id"] for _ in range(2))
        check(a and b and a != b and len(a) == 32, f"each answer of {path} has an id of its own: {a} {b}")
    got = p.ask("POST", "/v1/completions", ASK, headers={"X-Request-Id": "mine"})
    check(got[1]["X-Request-Id"] == "mine" and '"cmpl-mine' in got[2], f"the client's own id: {got}")
    s = socket.create_connection(("127.0.0.1", p.port), 5)
    s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n"
              b"Connection: close\r\n\r\n")
    pages = b"".join(iter(lambda: s.recv(65536), b"")).split(b"HTTP/1.1 200 OK\r\n")[1:]
    s.close()
    pages = [x.partition(b"\r\n\r\n")[2] for x in pages]
    check(len(pages) == 2 and pages[0] == pages[1], "two scrapes in a moment get one page")


def without_daemon(p):
    check(p.ask("GET", "/live")[0] == 200, "alive without a daemon")
    check(p.ask("GET", "/health")[0] == 503, "not healthy without a daemon")
    status, headers, _ = p.ask("POST", "/v1/completions", ASK)
    check(status == 503 and headers["Retry-After"], "503 with Retry-After without a daemon")
    p.daemon(*NULL)
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 10), "healthy once the daemon is there")


def drain(p, a):
    """One SIGTERM: what runs may finish, what is new is refused.  A second: an error event."""
    slow = []
    t = threading.Thread(target=lambda: slow.extend(p.stream("/v1/completions", {**ASK, "max_tokens": 4000})),
                         daemon=True)
    t.start()
    check(wait_for(lambda: "vllm:num_requests_running" in p.ask("GET", "/metrics")[2], 5), "working")
    time.sleep(0.2)
    a.send_signal(signal.SIGTERM)
    check(wait_for(lambda: p.ask("GET", "/health")[0] == 503, 5), "draining is not healthy")
    check(p.ask("POST", "/v1/completions", ASK)[0] == 503, "nothing new while draining")
    time.sleep(0.6)                        # two signals within half a second count as one
    a.send_signal(signal.SIGTERM)
    check(a.wait(15) == 0, f"ends with 0, not {a.returncode}")
    t.join(30)
    status, events = slow
    check(status == 200 and events[-1] is None and "error" in events[-2] and "choices" in events[-3],
          f"a stream that is cut ends with an error event and [DONE]: {events[-2:]}")
    check(not os.path.exists(os.path.join(p.dir, "url")), "the ready file is gone")


def top_keys(url, *args):
    return subprocess.run([os.path.join(BUILD, "slipring"), "top", "--keys", "--once", "-i", "0.1", "--url", url, *args],
                          capture_output=True, text=True, timeout=30)


def several(p):
    cert, key = os.path.join(p.dir, "cert.pem"), os.path.join(p.dir, "key.pem")
    r = subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True, timeout=20)
    if r.returncode:
        print("SKIP several processes with TLS: no openssl command")
        return
    a = p.adapter("--api-server-count", 2, "--ssl-certfile", cert, "--ssl-keyfile", key)
    check(p.url.startswith("https://"), p.url)
    trust = ssl.create_default_context(cafile=cert)

    def health():
        with trust.wrap_socket(socket.create_connection(("127.0.0.1", p.port), 5), server_hostname="127.0.0.1") as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return s.recv(100)[9:12] == b"200"

    def children():
        with open(f"/proc/{a.pid}/task/{a.pid}/children") as f:
            return [int(c) for c in f.read().split()]
    check(len(children()) == 2 and all(health() for _ in range(8)), "two processes answer")
    r = top_keys(p.url)
    check(r.returncode == 1 and "; trust your own CA with --cacert FILE\n" in r.stderr, f"{r}")
    r = top_keys(p.url, "--cacert", cert)
    check(r.stderr == f"slipring top: {p.url} has no API keys\n", f"{r}")
    s = socket.create_connection(("127.0.0.1", p.port), 5)
    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    s.settimeout(5)
    check(not s.recv(100).startswith(b"HTTP"), "no plain HTTP on a TLS port, and it ends")
    s.close()
    dead = children()[0]
    os.kill(dead, signal.SIGKILL)
    check(wait_for(lambda: len(children()) == 2 and dead not in children(), 10), "a dead process is replaced")
    check(all(health() for _ in range(8)), "and the port answers")
    a.send_signal(signal.SIGHUP)
    check(wait_for(lambda: p.log("slipring-http").count("were read again") >= 2, 5), "SIGHUP reaches all")
    a.send_signal(signal.SIGTERM)
    check(a.wait(15) == 0, f"ends with 0, not {a.returncode}")


def unix(p):
    path = os.path.join(p.dir, "http.sock")

    def version():
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(path)
            s.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return s.recv(100)[9:12] == b"200"
        except OSError:
            return False
        finally:
            s.close()
    a = p.run("slipring-http", "--uds", path)
    check(wait_for(version, 10), "a Unix socket answers")
    second = subprocess.run([os.path.join(BUILD, "slipring-http"), "--uds", path], env=p.env, timeout=10,
                            capture_output=True, text=True)
    check(second.returncode == 1 and "another server" in second.stderr, second.stderr)
    a.kill()
    a.wait()
    a = p.run("slipring-http", "--uds", path)
    check(wait_for(version, 10), "a stale socket is replaced")
    a.terminate()
    check(a.wait(15) == 0 and not os.path.exists(path), "and removed at the end")


def metrics_port(p):
    """A port of its own, a key of its own: nothing else is on it, and it is nowhere else."""
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    for count in (1, 2):
        a = p.adapter("--metrics-port", port, "--metrics-key", "mk", "--api-key", "k", "--api-server-count", count)
        main, mk = p.port, {"Authorization": "Bearer mk"}
        status, _, text = p.ask("GET", "/metrics", headers=mk)
        check(status == 404 and "--metrics-port" in text, f"/metrics on the main port: {status} {text}")
        check(p.ask("POST", "/v1/completions", ASK, headers=mk)[0] == 401, "the key of metrics opens nothing else")
        p.port = port
        for headers, status in (({}, 401), ({"Authorization": "Bearer k"}, 401), (mk, 200), ({"x-api-key": "mk"}, 200)):
            check(p.ask("GET", "/metrics", headers=headers)[0] == status, f"/metrics with {headers}: not {status}")
        check([p.ask("GET", x)[0] for x in ("/health", "/live")] == [200, 200], "probes")
        check(p.ask("POST", "/v1/completions", ASK, headers={"Authorization": "Bearer k"})[0] == 404, "no completions")
        p.port = main
        a.send_signal(signal.SIGTERM)
        check(a.wait(15) == 0, f"ends with 0, not {a.returncode}")


def wrong(p):
    busy = socket.create_server(("127.0.0.1", 0))
    taken = str(busy.getsockname()[1])
    for args, code, word in ((["--port", taken], 1, "taken"),
                             (["--port", taken, "--api-server-count", "2"], 1, "taken"),
                             (["--host", "256.1.1.1", "--port", "0"], 1, "--host"),
                             (["--api-server-count", "1000"], 2, "api-server-count"),
                             (["--ssl-certfile", "/etc/hostname", "--ssl-keyfile", "/etc/hostname", "--port", "0"],
                              1, "--ssl-certfile"),
                             (["--ssl-certfile", "/etc/hostname", "--ssl-keyfile", "/etc/hostname", "--port", "0",
                               "--api-server-count", "2"], 1, "--ssl-certfile"),
                             (["--uds", p.dir], 1, "not a socket")):
        r = subprocess.run([os.path.join(BUILD, "slipring-http"), *args], env=p.env, timeout=20,
                           capture_output=True, text=True)
        check(r.returncode == code and word in r.stderr, f"{args}: {r.returncode}, {r.stderr}")
    busy.close()


def main():
    need_model()
    with Programs() as p:
        a = p.adapter("--enable-request-id-headers", "--served-model-name", "SmolLM2", "vendor/a model")
        without_daemon(p)
        hostile(p)
        routes(p)
        drain(p, a)
        metrics_port(p)
        several(p)
        unix(p)
        wrong(p)
    done()


if __name__ == "__main__":
    sys.exit(main())
