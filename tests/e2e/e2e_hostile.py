#!/usr/bin/env python3
"""Requests that cost the sender little and are meant to cost the server much, one after the other
against a real adapter: each gets its answer soon, everybody else is served meanwhile within 20 ms, and the
memory that they took comes back.  Some are answered with hundreds of megabytes, made as they are read."""
import re, time
from harness import *

CHAT, TEXT, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
USER = {"role": "user", "content": "x"}


def text(**kw):
    return {"prompt": "x", "max_tokens": 2, **kw}


def raw(tail):
    return '{"prompt":"x","max_tokens":2,' + tail + "}"


def call(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


CASES = [  # name, path, body, statuses that are right
    ("one long word", TEXT, text(prompt="a" * 20_000_000), {400}),
    ("one long run of spaces", TEXT, text(prompt=" " * 500_000), {200, 400}),
    ("special tokens alone", TEXT, text(prompt="<|im_start|>" * 500_000), {400}),
    ("text without end", TOKENIZE, {"prompt": "a b " * 1_500_000}, {400}),
    ("text in lone accents", TOKENIZE, {"prompt": "\u0301" * 300_000}, {200}),
    ("more tokens than the context", TEXT, text(prompt=[1] * 100_000), {400}),
    ("bias of every token", TEXT, text(logit_bias={str(i): 1 for i in range(49152)}), {400}),
    ("long bad words", TEXT, text(bad_words=[f"w{i} " + "a" * 20_000 for i in range(128)]), {400}),
    ("many bad words", TEXT, text(bad_words=["w"] * 60_000), {400}),
    ("stop strings that nearly match", TEXT, text(max_tokens=4000, ignore_eos=True, stop=["a" * 16_000 + "b"] * 4), {200}),
    ("stop strings too long", TEXT, text(stop=["a" * 100_000]), {400}),
    ("as many answers as may be", TEXT, text(prompt=["x"] * 512, n=2), {200}),
    ("more answers than may be", TEXT, text(prompt=["x"] * 513, n=2), {400}),
    ("prompts without end", TEXT, text(prompt=["x"] * 20_000), {400}),
    ("a number without end", TEXT, raw('"temperature":' + "1" * 100_000), {400}),
    ("deep lists", TEXT, raw('"y":' + "[" * 500_000 + "]" * 500_000), {400}),
    ("values without end", TEXT, raw('"y":[' + "1," * 3_000_000 + "1]"), {400}),
    ("as many values as may be", TEXT, raw('"y":[' + "1," * 2_000_000 + "1]"), {200}),
    ("keys to hash", TEXT, raw('"y":{' + ",".join(f'"{i:x}":0' for i in range(300_000)) + "}"), {200}),
    ("numbers past 64 bits", TEXT, raw('"y":[' + "99999999999999999999," * 300_000 + "1]"), {200}),
    ("a long name", TEXT, text(user="u" * 20_000_000), {200}),
    ("messages without end", CHAT, {"messages": [USER] * 50_000, "max_tokens": 2}, {400}),
    ("deep arguments", CHAT, {"messages": [call("[" * 10_000)], "max_tokens": 2}, {400}),
    ("arguments without end", CHAT, {"messages": [call("[" + "0," * 1_500_000 + "0]")] * 2, "max_tokens": 2}, {400}),
    ("no JSON at all", CHAT, "\0" * 1_000_000, {400}),
]


SLOW = {"keys to hash": 100}                      # ms that others wait; beside all others 20

LONG = "the cat sat on the mat and looked at the moon " * 363            # 4,000 tokens
SCORED = {"max_tokens": 1, "prompt_logprobs": 20}
ECHOED = {"max_tokens": 1, "echo": True, "logprobs": 1}
LARGE = [  # name, body, status, bytes of the answer, and ms that others wait: small requests, large answers
    ("a long prompt, scored", {**SCORED, "prompt": LONG}, 200, 4 << 20, 20),
    ("32 of them", {**SCORED, "prompt": [LONG] * 32}, 200, 150 << 20, 20),
    ("64 answers to one", {**SCORED, "prompt": LONG, "n": 64}, 200, 300 << 20, 20),
    ("128 answers to one", {**SCORED, "prompt": LONG, "n": 128}, 200, 600 << 20, 20),
    ("1024 answers to one", {**SCORED, "prompt": LONG, "n": 1024}, 400, 1, 20),
    ("64 prompts echoed and scored", {**ECHOED, "prompt": [LONG] * 64}, 200, 30 << 20, 100),
    ("the same as a stream", {**ECHOED, "prompt": [LONG] * 64, "stream": True}, 200, 15 << 20, 100),
    ("1024 answers that echo", {"prompt": LONG, "n": 1024, "echo": True, "max_tokens": 1}, 200, 10 << 20, 100),
]

# One request after the other while "go" has been said and "stop" has not; then the waits, in seconds.  Whoever
# is refused has not waited: statuses come with them.
ASKER = """
import http.client, json, select, sys, time
c = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=100)
while sys.stdin.readline():
    waits, others = [], []
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        t = time.monotonic()
        c.request("POST", "/v1/completions", '{"prompt":"x","max_tokens":2}', {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        waits.append(time.monotonic() - t)
        if r.status != 200:
            others.append(r.status)
        if len(waits) == 1:
            print("begun", flush=True)
    sys.stdin.readline()
    print(json.dumps([sorted(waits), others]), flush=True)
"""


class Asker:
    def __init__(self, port):
        self.p = subprocess.Popen([sys.executable, "-c", ASKER, str(port)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)

    def say(self, word):
        self.p.stdin.write(word + "\n")
        self.p.stdin.flush()

    def go(self):
        self.say("go")
        self.p.stdout.readline()

    def stop(self):
        """(99 of 100 waited less, in ms; statuses that are not 200)"""
        self.say("stop")
        waits, others = json.loads(self.p.stdout.readline())
        return waits[min(len(waits) - 1, len(waits) * 99 // 100)] * 1000, others

    def close(self):
        self.p.stdin.close()
        self.p.wait(10)


class Beside:
    """Somebody who asks for two tokens again and again, and somebody like that of an adapter that nobody
    attacks: how long each waits while something happens, and what the adapter grows by."""
    TRIES = 6

    def __init__(self, p, quiet):
        self.pid = p.procs["slipring-http"].pid
        self.asker, self.control = Asker(p.port), Asker(quiet.port)

    def once(self, what):
        before, peak, stop = rss(self.pid)[1], [0], threading.Event()

        def look():
            while not stop.wait(0.01):
                peak[0] = max(peak[0], rss(self.pid)[1])
        watcher = threading.Thread(target=look)
        self.control.go()
        self.asker.go()
        watcher.start()
        try:
            what()
        finally:
            stop.set()
            watcher.join()
            waited, others = self.asker.stop()
            control = self.control.stop()[0]
        return waited, control, peak[0] - before, others

    def check(self, name, bound, what, grows=None, refused=()):
        """The best of some tries counts, for other processes use this machine.  What keeps the control waiting as
        long is not the adapter's."""
        seen = []
        for _ in range(self.TRIES):
            waited, control, grew, others = self.once(what)
            check(set(others) <= set(refused), f"{name}: others are served meanwhile, not {set(others)}")
            seen.append((waited, control, grew))
            if waited < max(bound, 2 * control) and (grows is None or grew < grows):
                break
        text = ", ".join(f"{w:.0f} ({c:.0f}) ms {g / 2**20:.0f} MiB" for w, c, g in seen)
        print(f"{name}: others (control) waited, the adapter grew: {text}")
        waited, control, grew = seen[-1]
        check(waited < max(bound, 2 * control), f"{name}: others waited {text}")
        check(grows is None or grew < grows, f"{name}: the adapter grew: {text}")

    def close(self):
        self.asker.close()
        self.control.close()


def fetch(p, path, body, right, least=0, most_seconds=20):
    """One request, its answer read piece by piece and not kept."""
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=100)
    t = time.monotonic()
    try:
        data = body if isinstance(body, str) else json.dumps(body)
        c.request("POST", path, data, {"Content-Type": "application/json"})
        r = c.getresponse()
        head = r.read(200)
        n = len(head)
        while True:
            piece = r.read(1 << 20)
            if not piece:
                break
            n += len(piece)
        took = time.monotonic() - t
        check(r.status in right, f"{r.status} {head}")
        check(n >= least, f"{n} bytes")
        check(took < most_seconds, f"{took:.1f} s")
    finally:
        c.close()


def large_answers(p, beside):
    for name, body, status, least, bound in LARGE:
        # 1,024 requests fill the queue of the daemon: whoever comes meanwhile is told to wait.  Where the bound
        # is 100 ms, tokens of others wait in the ring behind 256,000 of this request, or are computed after them.
        beside.check(name, bound, lambda: fetch(p, TEXT, body, {status}, least, 60), 16 << 20,
                     {503} if body.get("n") == 1024 else ())


def large_answer_by_other_ways(p):
    """The connection lives on after chunks; HTTP/1.0 gets the same bytes without; who leaves leaves nothing."""
    body = json.dumps({**SCORED, "prompt": LONG, "seed": 1})
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=60)
    same = []
    for _ in range(2):
        c.request("POST", TEXT, body, {"Content-Type": "application/json", "X-Request-Id": "same"})
        r = c.getresponse()
        check(r.status == 200 and r.getheader("Transfer-Encoding") == "chunked", "a large answer comes in chunks")
        same.append(json.loads(r.read()))
        same[-1].pop("created")
    check(same[0] == same[1] and len(same[0]["choices"][0]["prompt_logprobs"]) > 3500, "both are whole and the same")
    c.close()
    s = socket.create_connection(("127.0.0.1", p.port), 60)
    s.sendall((f"POST {TEXT} HTTP/1.0\r\nHost: localhost\r\nX-Request-Id: same\r\nContent-Type: application/json\r\n"
               f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    head, _, rest = b"".join(iter(lambda: s.recv(1 << 20), b"")).partition(b"\r\n\r\n")
    check(b" 200 " in head and b"chunked" not in head.lower(), "HTTP/1.0 gets no chunks")
    old = json.loads(rest)
    old.pop("created")
    check(old == same[0], "and the same answer")
    s.close()
    before = rss(p.procs["slipring-http"].pid)[1]
    for _ in range(20):
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=60)
        c.request("POST", TEXT, json.dumps({**SCORED, "prompt": [LONG] * 8}), {"Content-Type": "application/json"})
        check(len(c.getresponse().read(1 << 20)) == 1 << 20, "a large answer begins")
        c.close()
    check(wait_for(lambda: rss(p.procs["slipring-http"].pid)[1] - before < 24 << 20, 10),
          "20 that were left in the middle hold nothing")


def unread_answers(p):
    """Answers that nobody reads hold what is known of their prompts: more of them than there is room for, and
    somebody else is served all the same."""
    held = []
    body = json.dumps({**SCORED, "prompt": [LONG] * 32})
    for _ in range(20):                           # 16 MiB each, of 256
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=100)
        c.request("POST", TEXT, body, {"Content-Type": "application/json"})
        held.append((c, c.getresponse()))
    refused = sum(r.status == 503 for _, r in held)
    check(all(r.status in (200, 503) for _, r in held), "each is begun or refused")
    time.sleep(1.2)                               # so long they might yet read
    status, _, answer = p.ask("POST", TEXT, {**SCORED, "prompt": [LONG] * 32})
    check(status == 200 and len(answer) > 150 << 20, f"who reads is served: {status} {answer[:200]}")
    grown = rss(p.procs["slipring-http"].pid)[1] >> 20
    print(f"20 answers that nobody reads: {refused} refused, the adapter has {grown} MiB")
    check(grown < 600, f"what is held is bounded: {grown} MiB")
    for c, _ in held:
        c.close()


def prompts_given_back():
    """Prompts that answers give back count until they are read.  A tenant that reads none keeps 8/9 of the bound,
    and another is served."""
    body = json.dumps(text(prompt=[" international" * 4000] * 280, max_tokens=0, echo=True))  # 19 MiB, with the ids

    def ask(key):
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=100)
        c.request("POST", TEXT, body, {"Content-Type": "application/json", "Authorization": "Bearer " + key})
        return c, c.getresponse()

    with Programs() as p:
        p.daemon("--device", "null", "--max-model-len", 8192)
        a = p.adapter("--disable-access-log", "--api-key", "one", "two")
        held = [ask("one") for _ in range(14)]    # 11 of them within 8/9 of 256 MiB, 13 within all of it
        seen = [r.status for _, r in held]
        check(seen == [200] * 11 + [503] * 3, f"one tenant keeps 8/9 of the bound: {seen}")
        check("prompts" in json.loads(held[-1][1].read())["error"]["message"], "and is told why")
        c, r = ask("two")
        check(r.status == 200 and len(r.read()) > 280 * 56000, f"another tenant is served: {r.status}")
        print(f"11 answers with prompts that nobody reads: the adapter has {rss(a.pid)[1] >> 20} MiB")
        for each, _ in held + [(c, r)]:
            each.close()


def large_requests(p):
    """Large requests that run for long: what they hold is what they need."""
    a, streams = p.procs["slipring-http"], []
    before = rss(a.pid)[1]
    for _ in range(8):
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=60)
        c.request("POST", TEXT, json.dumps(text(user="u" * 12_000_000, max_tokens=8000, ignore_eos=True,
                                                stream=True)), {"Content-Type": "application/json"})
        streams.append((c, c.getresponse()))
    for _, r in streams:
        check(r.status == 200 and r.read(20), "a large request begins to stream")
    during = rss(a.pid)[1]
    check(during - before < 64 << 20, f"eight streams of 12 MB requests hold {(during - before) >> 20} MiB")
    for c, _ in streams:
        c.close()


def main():
    need_model()                                  # for its tokenizer alone
    with Programs() as p, Programs() as quiet:
        for each in p, quiet:
            each.daemon("--device", "null", "--max-model-len", 8192)
            each.adapter("--disable-access-log")
            each.post(TEXT, text())
        before = rss(p.procs["slipring-http"].pid)[1]
        beside = Beside(p, quiet)
        try:
            large_answers(p, beside)
            for name, path, body, right in CASES:
                beside.check(name, SLOW.get(name, 20), lambda: fetch(p, path, body, right))
        finally:
            beside.close()
        after = rss(p.procs["slipring-http"].pid)[1]
        print(f"memory {before >> 20} -> {after >> 20} MiB")
        check(after - before < 256 << 20, f"memory comes back: {before >> 20} -> {after >> 20} MiB")
        large_answer_by_other_ways(p)
        large_requests(p)
        unread_answers(p)
        turn = re.search(r"^slipring_http_turn_max_seconds(?:{[^}]*})? (\S+)", p.ask("GET", "/metrics")[2], re.M)
        check(turn and 0 < float(turn[1]) < 5, "/metrics has the longest turn")
        print(f"the longest turn of the adapter's loop: {float(turn[1]) * 1000:.1f} ms")
    prompts_given_back()
    done()


main()
