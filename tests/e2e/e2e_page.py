#!/usr/bin/env python3
"""The page at /: its bytes and headers, who is served it, and what pages of other origins get.  tests/e2e/page.py has
what a browser makes of it."""
import base64, gzip, hashlib, re, socket
from harness import *

RAW_MOST, GZIP_MOST = 60 * 1024, 20 * 1024
NULL = ["--device", "null", "--max-model-len", "512"]


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
        p.run("slipring-http", "--uds", os.path.join(p.dir, "http"))
        unix = wait_for(lambda: os.path.exists(os.path.join(p.dir, "http")), 20)
        s = socket.socket(socket.AF_UNIX)
        s.connect(os.path.join(p.dir, "http"))
        s.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        check(unix and s.makefile("rb").read().startswith(b"HTTP/1.1 200 OK\r\n"), "on a Unix socket")
    done()


main()
