#!/usr/bin/env python3
"""The page at /: its bytes and headers, who is served it, and what pages of other origins get.  tests/e2e/page.py has
what a browser makes of it."""
import base64, gzip, hashlib, re, socket, subprocess
from harness import *

RAW_MOST, GZIP_MOST = 60 * 1024, 20 * 1024
NULL = ["--device", "null", "--null-step-us", "3000", "--max-model-len", "512"]


def get(p, path="/", method="GET", **headers):
    """(status, headers, bytes), as they come."""
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=30)
    try:
        c.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        r = c.getresponse()
        return r.status, r.headers, r.read()
    finally:
        c.close()


def policy(headers):
    return dict((d.split(" ", 1) + [""])[:2] for d in headers["Content-Security-Policy"].split("; "))


def bytes_and_headers(p):
    status, headers, raw = get(p)
    check(status == 200 and headers["Content-Type"] == "text/html; charset=utf-8", f"/: {status} {headers}")
    check(len(raw) <= RAW_MOST, f"the page has {len(raw)} bytes")
    status, zipped, small = get(p, Accept_Encoding="br, gzip")
    check(zipped["Content-Encoding"] == "gzip" and gzip.decompress(small) == raw and len(small) <= GZIP_MOST,
          f"compressed: {len(small)} bytes")
    check(zipped["ETag"] != headers["ETag"] and zipped["Vary"] == headers["Vary"] == "Accept-Encoding", "each form has its tag")
    check("Content-Encoding" not in get(p, Accept_Encoding="gzip;q=0, br")[1], "gzip refused")
    check(get(p, "/ui")[2] == raw, "/ui is the same")
    for h, form in ((headers, {}), (zipped, {"Accept_Encoding": "gzip"})):
        status, again, body = get(p, If_None_Match=h["ETag"], **form)
        check(status == 304 and not body and again["ETag"] == h["ETag"], f"the second load: {status}")
        check(get(p, If_None_Match='"other"', **form)[0] == 200, "another tag")
    status, head, body = get(p, method="HEAD")
    check(status == 200 and not body and int(head["Content-Length"]) == len(raw), "HEAD")
    for name, value in (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-cache"),
                        ("Cross-Origin-Opener-Policy", "same-origin"), ("Access-Control-Allow-Origin", None)):
        check(headers[name] == value, f"{name}: {headers[name]}")


def the_policy_names_what_the_page_has(p):
    _, headers, raw = get(p)
    page, rules = raw.decode(), policy(headers)
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        sums = ["'sha256-" + base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() + "'" for t in parts]
        check(sums and rules[rule].split() == sums, f"{rule}: {rules[rule]} {sums}")
    check(rules["default-src"] == "'none'" and rules["connect-src"] == "'self'" and rules["frame-ancestors"] == "'none'" and
          rules["base-uri"] == rules["form-action"] == "'none'" and rules["trusted-types"] == "'none'" and
          rules["require-trusted-types-for"] == "'script'", f"{rules}")
    check(not re.search(r"<[^>]* (on\w+|style)=", page.split("<script>")[0]), "no attribute that the policy forbids")
    check(not re.findall(r"""https?://(?!www\.w3\.org)[^\s"'`]*""", page), "no address of anybody else")
    check(not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", page), "text stays text")


def address_here():
    """An address of this machine that is not loopback, or None."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        s.connect(("192.0.2.1", 9))               # sends nothing
        return s.getsockname()[0]
    except OSError:
        return None
    finally:
        s.close()


def who_is_served(p, stop):
    for args, here, there in ((["--ui", "off"], b"", b""), (["--ui", "local"], b"<!doctype", b""), (["--ui", "on"], b"<!doctype", b"<!doctype")):
        stop()
        p.adapter("--host", "0.0.0.0", *args)
        check("takes requests of other machines, and no API key is set" in p.log("slipring-http"), f"the log warns: {args}")
        status, headers, body = get(p)
        check(status == 200 and body[:9] == here and ("Content-Security-Policy" in headers) == bool(here), f"{args}: {status} {body[:60]}")
        check(get(p, "/ui")[0] == (200 if here else 404), f"{args}: /ui")
        far = address_here()
        if far and not far.startswith("127."):
            s = http.client.HTTPConnection(far, p.port, timeout=10)
            s.request("GET", "/")
            r = s.getresponse()
            check(r.status == 200 and r.read()[:9] == there, f"{args}: from another machine: {r.status}")
            s.close()


class Viewer:
    """A stream of /ui/live: what a page reads."""

    def __init__(self, p, path="/ui/live", host="127.0.0.1", **headers):
        self.c = http.client.HTTPConnection(host, p.port, timeout=20)
        self.c.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        self.r = self.c.getresponse()

    def event(self):
        line = self.r.readline()
        while line.strip() == b"":
            line = self.r.readline()
        return json.loads(line[len("data: "):])

    def close(self):
        self.c.close()


MODEL_NAME = os.path.basename(MODEL).removesuffix(".gguf")


def top(p):
    r = subprocess.run([os.path.join(BUILD, "slipring"), "top", "--json", "-i", "1"], env=p.env, capture_output=True, text=True,
                       timeout=30)
    check(r.returncode == 0, f"slipring top: {r.stderr}")
    return json.loads(r.stdout)


def figures(p):
    """What the page shows is what slipring top shows."""
    v = Viewer(p)
    hello = v.event()
    check(v.r.status == 200 and hello == {"hello": True, "sees_clients": True, "turns_knobs": False, "daemons": [MODEL_NAME]}, f"{hello}")
    p.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 40, "ignore_eos": True})
    e = v.event()
    while not e["generated_tokens_per_s"]:
        e = v.event()
    t = top(p)
    only = {"why", "replica", "replicas", "viewers", "at"}
    check(set(e) - only == set(t) - {"gpus", "engines"}, f"the same names: {set(e) ^ set(t)}")
    check({k: e[k] for k in ("model", "device", "pid", "kv_blocks", "memory", "knobs")} ==
          {k: t[k] for k in ("model", "device", "pid", "kv_blocks", "memory", "knobs")}, "the same values")
    check(abs(e["generated_tokens_per_s"] * e["seconds"] - round(e["generated_tokens_per_s"] * e["seconds"])) < 1e-3, "whole tokens")
    for axis in ("why_s", "bound_s"):
        check(abs(sum(e[axis].values()) - e["seconds"]) < 0.05 * e["seconds"], f"{axis} adds up to the time: {e}")
    check(e["client"][0]["name"].startswith("slipring-http") and e["why"]["what"], f"{e['client']} {e['why']}")
    v.close()


def past(p):
    h = json.loads(p.ask("GET", "/ui/history")[2])
    s = h["past"]["seconds"]
    check(len(s["at"]) >= 2 and s["at"] == sorted(s["at"]), f"seconds: {s['at']}")
    check(sum(x or 0 for x in s["generated_tokens_per_s"]) > 0 and any(s["itl_us_p50"]), "what was generated is in it")
    for i in range(1, len(s["at"])):
        why, bound = (sum(c[i] for c in s[axis].values()) for axis in ("why", "bound"))
        check(why > 0 and abs(why - bound) <= 0.02 * why + 15, f"second {i}: {why} ms and {bound} ms")
    check(h["advice"]["why"]["seqs"]["turn"] == "raise max-num-seqs" and h["advice"]["bound"]["host"]["what"], "sentences")
    check(subprocess.run([os.path.join(BUILD, "slipring"), "set", "max-num-seqs", "7"], env=p.env, capture_output=True).returncode == 0, "set")
    turns = wait_for(lambda: json.loads(p.ask("GET", "/ui/history")[2])["past"]["turns"], 10)
    check(turns and turns[-1]["knob"] == "max-num-seqs" and turns[-1]["now"] == "7" and abs(turns[-1]["at"] - time.time()) < 5, f"{turns}")


def judged(p):
    """The sentence of a burst after idle seconds is of the burst, and of the numbers that the band shows."""
    v = Viewer(p)
    v.event()
    busy = [threading.Thread(target=lambda: p.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 400, "ignore_eos": True}),
                             daemon=True) for _ in range(36)]
    for t in busy:
        t.start()
    e = wait_for(lambda: (lambda e: e if e["why"]["seconds"] > 2.5 and e["waiting"] and e["why"]["limit"] == "seqs" and
                          e["why"]["share"] > 0.5 else None)(v.event()), 30, 0)
    check(e, "requests wait for a place, and that is said")
    s = json.loads(p.ask("GET", "/ui/history")[2])["past"]["seconds"]
    some = [i for i, at in enumerate(s["at"]) if at <= e["why"]["until"] and sum(c[i] for k, c in s["bound"].items() if k != "idle")][-10:]
    for axis, name, share in (("why", "seqs", e["why"]["share"]), ("bound", e["why"]["bound"], e["why"]["bound_share"])):
        band = sum(s[axis][name][i] for i in some) / sum(c[i] for c in s[axis].values() for i in some)
        check(abs(band - share) < 0.15, f"{axis}: the band shows {band}, the sentence says {share}")
    for t in busy:
        t.join(60)
    v.close()


def other_origins_get_nothing(p):
    own = f"http://127.0.0.1:{p.port}"
    for path in ("/ui/live?replica=7", "/ui/history"):
        right = 404 if "live" in path else 200
        for headers, status in (({"Origin": own}, right), ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403),
                                ({"Sec_Fetch_Site": "cross-site"}, 403), ({"Sec_Fetch_Site": "same-site"}, 403),
                                ({"Sec_Fetch_Site": "same-origin"}, right)):
            got, sent, text = get(p, path, **headers)
            check(got == status and "Access-Control-Allow-Origin" not in sent, f"{path} {headers}: {got} {text}")
        s = http.client.HTTPConnection("127.0.0.1", p.port, timeout=10)
        s.request("GET", path, headers={"Host": "evil.example"})
        check(s.getresponse().status == 421, "a name that a page pointed here")
        s.close()
    got, sent, _ = get(p, "/ui/history", "OPTIONS", Origin="https://evil.example", Access_Control_Request_Method="GET")
    check(got == 400 and "Access-Control-Allow-Origin" not in sent, f"preflight: {got}")


def knobs(p, stop):
    def turn(knob, value, status, **headers):
        got, _, text = p.ask("POST", "/ui/knob", {"knob": knob, "value": value}, headers={"Content-Type": "application/json", **headers})
        check(got == status, f"{knob} {value}: {got} {text}")
        return json.loads(text)
    check("--ui-knobs" in turn("max-num-seqs", "9", 403)["error"]["message"], "not unless it is allowed")
    stop()
    p.adapter("--ui-knobs")
    check(turn("max-num-seqs", "9", 200) == {"knob": "max-num-seqs", "was": "7", "now": "9"}, "turned")
    r = subprocess.run([os.path.join(BUILD, "slipring"), "set", "--json"], env=p.env, capture_output=True, text=True)
    check(json.loads(r.stdout)["max-num-seqs"]["now"] == 9, f"as slipring set sees it: {r.stdout}")
    check("--knob-ceiling" in turn("max-num-seqs", "100000", 400)["error"]["message"], "the daemon's own words")
    turn("no-such", "1", 400)
    turn("max-num-seqs", "many", 400)
    turn("max-num-seqs", "8", 403, Origin="https://evil.example")
    for body in ("", "[]", '{"knob": 1}', '{"knob": "max-num-seqs", "value": 9}', '{"knob": "max-num-seqs", "value": "9", "replica": 3}', "{" * 4000):
        check(p.ask("POST", "/ui/knob", body)[0] == 400, f"{body[:60]}")
    check(p.ask("POST", "/ui/knob", "knob=1", headers={"Content-Type": "application/x-www-form-urlencoded"})[0] == 400, "a form")


def operators(p, stop):
    """With keys, who the clients are and knobs are for those that are marked."""
    stop()
    keys = os.path.join(p.dir, "keys")
    with open(keys, "w") as f:
        f.write("plain alice\nmarked bob operator\n")
    p.adapter("--api-key-file", keys, "--ui-knobs")
    check(p.ask("GET", "/ui/history")[0] == p.ask("GET", "/ui/live")[0] == 401, "figures need a key")
    for key, may in (("plain", False), ("marked", True)):
        v = Viewer(p, Authorization="Bearer " + key)
        check(v.event() == {"hello": True, "sees_clients": may, "turns_knobs": may, "daemons": [MODEL_NAME]}, f"{key}")
        check(bool(v.event()["client"]) == may, f"{key} sees clients")
        v.close()
        status = p.ask("POST", "/ui/knob", {"knob": "max-num-seqs", "value": "8"}, headers={"Authorization": "Bearer " + key})[0]
        check(status == (200 if may else 403), f"{key} turns a knob: {status}")
    stop()
    p.adapter()


def names_of_keys(p, stop):
    """Who uses how much is for this machine and for operators; the rest of /metrics is for all."""
    stop()
    warned = p.log("slipring-http").count("of other machines")
    p.adapter("--host", "0.0.0.0", "--api-key-file", os.path.join(p.dir, "keys"))
    far = address_here()
    check(p.log("slipring-http").count("of other machines") == warned, "with keys nothing is warned of")
    check(p.ask("POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 2}, headers={"Authorization": "Bearer plain"})[0] == 200, "alice")
    hosts = [("127.0.0.1", {None: True, "plain": True, "marked": True})]
    if far and not far.startswith("127."):
        hosts.append((far, {None: False, "plain": False, "wrong": False, "marked": True}))
    for host, keys in hosts:
        for key, sees in keys.items():
            c = http.client.HTTPConnection(host, p.port, timeout=10)
            c.request("GET", "/metrics", headers={"Authorization": "Bearer " + key} if key else {})
            r = c.getresponse()
            text = r.read().decode()
            check(r.status == 200 and "vllm:generation_tokens_total" in text, f"{host} {key}: {r.status}")
            check(('slipring_key_requests_total{key="alice"}' in text) == sees and ("alice" in text) == sees, f"{host}, key {key}: names")
            c.close()
    stop()
    p.adapter()


def viewers(p):
    all_of_them = [Viewer(p) for _ in range(16)]
    check(all(v.event()["hello"] for v in all_of_them), "16 look")
    status, _, text = p.ask("GET", "/ui/live")
    check(status == 503 and "looking already" in text, f"the 17th: {status} {text}")
    seen = [v.event() for v in all_of_them]
    check(all(e == seen[0] for e in seen), "one event for all")
    all_of_them[0].close()
    check(wait_for(lambda: Viewer(p).r.status == 200, 10), "a place comes free")
    for v in all_of_them:
        v.close()


def refused(p, text, words, **to):
    v = Viewer(p, **to)
    check(v.r.status == 503, f"{text}: {v.r.status}")
    said = v.r.read().decode()
    v.close()
    check(words in said, f"{text}: {said}")


def shares_of_places(p, stop):
    """One key, or all plain viewers together, leave places to operators."""
    stop()
    keys = os.path.join(p.dir, "keys")
    with open(keys, "w") as f:
        f.write("".join(f"plain{i} alice{i}\n" for i in range(5)) + "marked bob operator\n")
    p.adapter("--api-key-file", keys)
    plain = [f"Bearer plain{i}" for i in range(5)]
    looking = []

    def look(key, text):
        v = Viewer(p, Authorization=key)
        check(v.r.status == 200 and v.event()["hello"], f"{text}: {v.r.status}")
        looking.append(v)
    for _ in range(4):
        look(plain[0], "4 with a key")
    refused(p, "the 5th with a key", "4 pages are looking already with this key", Authorization=plain[0])
    for key in plain[1:3]:
        for _ in range(4):
            look(key, "12 with three keys")
    refused(p, "a 13th, with a key of its own", "12 pages are looking already", Authorization=plain[3])
    for _ in range(4):
        look("Bearer marked", "an operator finds a place")
    refused(p, "the operator's 5th", "with this key", Authorization="Bearer marked")
    looking.pop(0).close()
    check(wait_for(lambda: (lambda v: looking.append(v) or True if v.r.status == 200 else v.close())(
        Viewer(p, Authorization=plain[4])), 10), "a plain place comes free, and another key may have it")
    for v in looking:
        v.close()
    stop()
    far = address_here()
    p.adapter("--host", "0.0.0.0", "--ui", "on")
    if far and not far.startswith("127."):
        looking = [Viewer(p, host=far) for _ in range(12)]
        check(all(v.r.status == 200 for v in looking), "12 from other machines look")
        refused(p, "the 13th from there", "12 pages are looking already", host=far)
        looking += [Viewer(p) for _ in range(4)]
        check(all(v.r.status == 200 for v in looking), "4 from this machine find places")
        for v in looking:
            v.close()
    stop()
    p.adapter()


def the_daemon_dies_and_comes_back(p):
    v = Viewer(p)
    v.event()
    old = v.event()["pid"]
    d = p.procs.pop("slipringd")
    d.kill()
    d.wait()
    away = wait_for(lambda: (lambda e: e if e.get("away") else None)(v.event()), 10, 0)
    check(away and away["away_s"] >= 0, f"it says that the daemon is away: {away}")
    os.rename(os.path.join(p.dir, "slipringd.log"), os.path.join(p.dir, "old.log"))
    p.daemon(*NULL)
    back = wait_for(lambda: (lambda e: e if "pid" in e else None)(v.event()), 20, 0)
    check(back and back["pid"] != old and back["alive"], f"and that it is back: {back}")
    v.close()


def main():
    with Programs() as p:
        def stop():
            a = p.procs.pop("slipring-http")
            a.terminate()
            check(a.wait(20) == 0, "the adapter ends")
        p.daemon(*NULL)
        p.adapter("--api-key", "k")
        bytes_and_headers(p)
        the_policy_names_what_the_page_has(p)
        who_is_served(p, stop)
        stop()
        p.adapter("--allowed-origins", '["*"]')
        other_origins_get_nothing(p)
        stop()
        p.adapter()
        figures(p)
        past(p)
        judged(p)
        knobs(p, stop)
        operators(p, stop)
        names_of_keys(p, stop)
        viewers(p)
        shares_of_places(p, stop)
        the_daemon_dies_and_comes_back(p)
        v = Viewer(p)
        stop()                                    # with somebody looking
        v.close()
        p.run("slipring-http", "--uds", os.path.join(p.dir, "http"))
        s = socket.socket(socket.AF_UNIX)
        check(wait_for(lambda: s.connect_ex(os.path.join(p.dir, "http")) == 0, 20), "it listens on a Unix socket")
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        check(s.makefile("rb").read().startswith(b"HTTP/1.1 200 OK\r\n"), "on a Unix socket")
    done()


main()
