"""Debian's Chromium without a window, driven over its DevTools protocol; standard library only.  It is not slowed by
frames that nobody sees, and reaches nothing but loopback."""
import base64, http.client, json, os, select, shutil, socket, struct, subprocess, tempfile, time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def program():
    return next((p for p in map(shutil.which, NAMES) if p), None)


class Socket:
    """One WebSocket connection, as a client (RFC 6455): text messages alone."""

    def __init__(self, url):
        host, path = url[len("ws://"):].split("/", 1)
        name, port = host.rsplit(":", 1)
        self.s = socket.create_connection((name, int(port)), 20)
        self.s.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
                       f"{base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.s.recv(1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise OSError(f"no WebSocket: {head[:200]}")
        self.rest = b""

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        n = len(data)
        head = bytes([0x81]) + (bytes([0x80 | n]) if n < 126 else bytes([0xfe]) + struct.pack("!H", n) if n < 65536 else
                                bytes([0xff]) + struct.pack("!Q", n))
        whole = int.from_bytes((mask * (n // 4 + 1))[:n], "big") ^ int.from_bytes(data, "big")
        self.s.sendall(head + mask + whole.to_bytes(n, "big"))

    def read(self, n, until):
        while len(self.rest) < n:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.s], [], [], left)[0]:
                raise TimeoutError
            more = self.s.recv(1 << 16)
            if not more:
                raise OSError("the browser is gone")
            self.rest += more
        out, self.rest = self.rest[:n], self.rest[n:]
        return out

    def message(self, until):
        whole = b""
        while True:
            if not self.rest and not select.select([self.s], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError
            a, b = self.read(2, time.monotonic() + 20)
            n = b & 0x7f
            n = struct.unpack("!H", self.read(2, time.monotonic() + 20))[0] if n == 126 else \
                struct.unpack("!Q", self.read(8, time.monotonic() + 20))[0] if n == 127 else n
            data = self.read(n, time.monotonic() + 20)
            if a & 0x0f in (0, 1):
                whole += data
                if a & 0x80:
                    return whole.decode()


class Browser:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="slipring-browser-")
        self.p = subprocess.Popen([program(), "--headless=new", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={self.dir}",
                                   "--no-first-run", "--disable-gpu", "--disable-extensions", "--disable-background-networking",
                                   "--disable-component-update", "--disable-sync", "--no-default-browser-check", "--mute-audio",
                                   "--renderer-process-limit=1", "--disable-dev-shm-usage", "--hide-scrollbars",
                                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost", "about:blank"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        path, end = os.path.join(self.dir, "DevToolsActivePort"), time.monotonic() + 60
        while not (os.path.exists(path) and open(path).read().count("\n")):
            if time.monotonic() > end or self.p.poll() is not None:
                raise OSError("Chromium does not start")
            time.sleep(0.05)
        self.port = int(open(path).read().split()[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        try:
            self.p.wait(10)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def tab(self, **kw):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        c.request("PUT", "/json/new?about:blank")
        return Tab(json.loads(c.getresponse().read())["webSocketDebuggerUrl"], **kw)


class Tab:
    """A page.  requests: the addresses that it asked for; posts: what it sent; problems: what it logged, threw, or the policy forbade."""

    def __init__(self, url, width=1280, height=900, dark=False, scale=1):
        self.ws, self.n, self.requests, self.problems, self.posts = Socket(url), 0, [], [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        self.scheme(dark)

    def scheme(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def _event(self, m):
        p = m.get("params", {})
        if m["method"] == "Network.requestWillBeSent":
            self.requests.append((p["request"]["method"], p["request"]["url"]))
            if "postData" in p["request"]:
                self.posts.append((p["request"]["url"], json.loads(p["request"]["postData"])))
        elif m["method"] == "Runtime.exceptionThrown":
            self.problems.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        elif m["method"] == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
        elif m["method"] == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))

    def call(self, method, timeout=30, **params):
        self.n += 1
        self.ws.send(json.dumps({"id": self.n, "method": method, "params": params}))
        until = time.monotonic() + timeout
        while True:
            m = json.loads(self.ws.message(until))
            if m.get("id") == self.n:
                if "error" in m:
                    raise OSError(f"{method}: {m['error']}")
                return m["result"]
            if "method" in m:
                self._event(m)

    def idle(self, seconds=0.05):
        """Take what the browser says for a while."""
        until = time.monotonic() + seconds
        try:
            while True:
                self._event(json.loads(self.ws.message(until)))
        except TimeoutError:
            pass

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def js(self, code):
        r = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise OSError(f"{code}: {r['exceptionDetails']}")
        return r["result"].get("value")

    def until(self, code, seconds=20):
        """The value of code once it is true, or None."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            v = self.js(code)
            if v:
                return v
            self.idle(0.05)
        return None

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, **kw):
        codes = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key],
                      **({"text": text} if text and kind == "keyDown" else {}), **kw)

    def mouse(self, x, y, click=False):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, selector):
        x, y = self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}}); "
                       "const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; })()")
        self.mouse(x, y, True)

    def picture(self, path, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
