#!/usr/bin/env python3
"""The page in a browser: it talks, it shows the daemon's figures, what a model says stays text, and nobody else is asked
anything.  On the null device, whose answers are forced by schemas.  SLIPRING_PAGE=long adds eight hours of events."""
import re, subprocess
import browser
from browser import Browser
from harness import *

NULL = ["--device", "null", "--null-step-us", "2000", "--max-model-len", "2048", "--max-num-seqs", "8"]
EVIL = '<img src=x onerror="document.title=1"><script>document.title=2</script></textarea><b>bold</b>'
LOUD = "javascript:alert(1) [a](javascript:alert(1)) &lt; &amp; \\u0000"
IDLE = "document.querySelector('.say button').textContent === 'Send'"
ANSWER = "document.querySelector('.turn.assistant:last-of-type > .text')?.textContent"


def say(t, text):
    t.click("#say")
    t.type(text)
    t.press("Enter")


def answered(t, seconds=30):
    check(t.until(IDLE, seconds), "an answer ends")
    return t.js(ANSWER)


def put(t, name, value):
    """Give a setting a value, as its user would."""
    t.js(f"(() => {{ const e = document.getElementById('set-{name}'); for (let d = e.closest('details'); d; d = d.parentElement.closest('details')) "
         f"d.open = true; e.focus(); {'e.select();' if value else 'e.value = String();'} }})()")
    if value:
        t.type(value)


def of_chat(t):
    return [b for u, b in t.posts if u.endswith("/v1/chat/completions")]


def opens(p, t):
    t.go(p.url.rstrip("/") + "/")
    check(t.until("document.querySelector('#state').textContent.includes('running')"), f"figures come: {t.js('document.body.textContent')[:300]}")
    check("on" not in t.js("document.querySelector('#state').className"), "and no error")


def talks(t):
    put(t, "max_tokens", "12")
    say(t, "Hello")
    first = answered(t)
    b = of_chat(t)[-1]
    check(b["messages"] == [{"role": "user", "content": "Hello"}] and b["max_tokens"] == 12 and b["stream"] and
          not {"temperature", "top_p", "seed", "stop", "tools", "response_format"} & set(b), f"only what differs is sent: {b}")
    check(t.js("document.querySelectorAll('.token').length") == 12, "a piece for each token")
    put(t, "seed", "7")
    put(t, "temperature", "0.5")
    say(t, "More")
    one = answered(t)
    check([m["role"] for m in of_chat(t)[-1]["messages"]] == ["user", "assistant", "user"] and
          of_chat(t)[-1]["messages"][1]["content"] == first and of_chat(t)[-1]["seed"] == 7 and of_chat(t)[-1]["temperature"] == 0.5, "the history")
    t.js("[...document.querySelectorAll('.bar button')].find(b => b.textContent === 'Again').click()")
    check(answered(t) == one and len(of_chat(t)) == 3, "again with a seed: the same")
    rows = t.until("(() => { const s = document.querySelector('.truth').textContent; return s.includes('ran beside') && s; })()", 5)
    check(rows and all(w in rows for w in ("waited", "prompt", "first token", "a token", "12 tokens, ended by length", "limited by")), f"{rows}")


def pop_up(t):
    """What a user reads who points at a token, by line."""
    x, y = t.js("(() => { const r = document.querySelectorAll('.turn.assistant:last-of-type .token')[2].getClientRects()[0]; "
                "return [r.left + r.width / 2, r.top + r.height / 2]; })()")
    t.mouse(x, y)
    check(t.until("!document.querySelector('.pop').hidden && document.querySelectorAll('.other').length > 1"), "pointing opens the pop-up")
    lines = t.js("[...document.querySelector('.pop').childNodes].map(n => n.textContent)")
    check(lines[0] == "Click to continue with another" and len(lines) >= 6 and all(re.fullmatch(r".+?[\d.]+ %", s, re.S) for s in lines[1:]),
          f"a line, then tokens with their shares: {lines}")
    t.press("Escape")
    check(t.until("document.querySelector('.pop').hidden"), "Escape closes it")


def probabilities_and_branches(p, t):
    t.js("document.querySelectorAll('.turn.assistant:last-of-type .token')[4].click()")
    check(t.until("!document.querySelector('.pop').hidden && document.querySelectorAll('.other').length > 1"), "others")
    shares = t.js("[...document.querySelectorAll('.other .n')].map(e => parseFloat(e.textContent))")
    check(len(shares) >= 5 and shares == sorted(shares, reverse=True) and sum(shares) <= 101, f"probabilities: {shares}")
    ids = t.js("[...document.querySelectorAll('.turn.assistant:last-of-type .token')].length")
    before, n = t.js(ANSWER), len(t.posts)
    kept = t.js("[...document.querySelectorAll('.turn.assistant:last-of-type .token')].slice(0, 4).map(e => e.textContent).join('')")
    t.js("document.querySelector('.other:not(.taken)').click()")
    after = answered(t)
    sent = [b for u, b in t.posts[n:] if u.endswith("/v1/completions")]
    check(len(sent) == 1 and all(isinstance(i, int) for i in sent[0]["prompt"]), "a completion of ids")
    n_prompt = p.post("/tokenize", {"messages": of_chat(t)[-1]["messages"]})["count"]
    check(len(sent[0]["prompt"]) == n_prompt + 5 and sent[0]["seed"] == 7, f"the prompt, four tokens and the other: {sent}")
    check(after.startswith(kept) and after != before and ids == 12, f"the first four tokens stay: {before!r} {after!r}")
    check(t.js("document.querySelectorAll('.turn.assistant:last-of-type .token').length") == 4 + 1 + 12, "then the other one, and what follows")


def stays_text(p, t):
    for text in (EVIL, LOUD):
        t.js("[...document.querySelectorAll('.bar button')].find(b => b.textContent === 'Clear').click()")
        put(t, "max_tokens", "400")
        put(t, "schema", json.dumps({"enum": [text]}))
        say(t, text)
        check(answered(t) == json.dumps(text, ensure_ascii=False).replace("\\u0000", "\\u0000"), f"it stays text: {t.js(ANSWER)!r}")
        check(t.js("document.querySelectorAll('.log img, .log script, .log b, .log a').length") == 0, "nothing became an element")
        for d in ("what the model saw", "as curl", "as Python", "raw events"):
            t.js(f"[...document.querySelectorAll('aside summary')].find(s => s.textContent.startsWith('{d}')).click()")
        check(t.until("document.querySelectorAll('.ids span').length > 10"), "what the model saw")
        check(t.js("document.title") == "Slipring", "and runs nothing")
    curl = t.js("[...document.querySelectorAll('aside details')].find(d => d.textContent.startsWith('as curl')).querySelector('pre').textContent")
    r = subprocess.run(["sh", "-c", curl.replace("curl ", "curl -s ", 1)], capture_output=True, text=True, timeout=30) if shutil.which("curl") else None
    check(r is None or json.loads(r.stdout)["choices"][0]["message"]["content"] == t.js(ANSWER), f"the command does the same: {r}")
    put(t, "schema", "")


def cancelled(p):
    return json.loads(subprocess.run([os.path.join(BUILD, "slipring"), "top", "--json", "-i", "0.1"], env=p.env, capture_output=True,
                                     text=True).stdout)["cancelled"]


def stops(p, t):
    before = cancelled(p)
    put(t, "max_tokens", "1500")
    say(t, "Go on")
    check(t.until("document.querySelectorAll('.turn.assistant:last-of-type .token').length > 20"), "it streams")
    t.js("document.querySelector('.say button').click()")
    check(answered(t, 3) and wait_for(lambda: cancelled(p) == before + 1, 3), "the daemon stops, too")
    check(len(t.js(ANSWER)) > 5, "what came stays")
    say(t, "Once more")
    check(t.until("document.querySelectorAll('.turn.assistant:last-of-type .token').length > 20"), "it streams")
    t.press("Escape")
    check(answered(t, 3) and wait_for(lambda: cancelled(p) == before + 2, 3), "Escape stops it, as the button does")


def shows(p, t):
    t.js("location.hash = '#live'")
    busy = threading.Thread(target=lambda: [p.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True})
                                            for _ in range(8)], daemon=True)
    busy.start()
    tiles = t.until("(() => { const t = [...document.querySelectorAll('.tile')].map(e => e.textContent); return /[1-9]/.test(t[2]) && "
                    "/ms/.test(t[5]) && t; })()", 15)
    check(tiles and "of 8" in tiles[0], f"tiles: {tiles}")
    says = t.until("/In this time .* % *, and .* \\d/.test(document.querySelector('.verdict .shares')?.textContent) && document.querySelector('.verdict').textContent", 15)
    check(says and re.search(r"^(Nothing limits it|The limit is .*?|Others hold its cores)its last (\d+ )?busy seconds?In this time ", says), f"the first lines: {says}")
    shares = t.js("[...document.querySelectorAll('.wide figcaption')].map(f => [...f.querySelectorAll('b')].reduce((s, b) => s + parseFloat(b.textContent), 0))")
    check(len(shares) == 2 and all(98 <= s <= 102 for s in shares), f"the bands add up: {shares}")
    x, y, w, hgt = t.js("(() => { const r = document.querySelector('.wide canvas').getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()")
    t.mouse(x + w - 3, y + hgt / 2)
    check(t.until("/\\d\\d:\\d\\d:\\d\\d · /.test(document.querySelector('.pointed').textContent)"), "the sentence of a band")
    t.js("document.querySelectorAll('.wide canvas')[1].focus()")
    t.press("ArrowLeft")
    t.press("ArrowUp")
    check(t.js("document.querySelector('.pointed').textContent").count(".") >= 1, "by keys")
    t.js("document.querySelector('.chart button').click()")
    check(t.until("document.querySelectorAll('.table:not([hidden]) tbody tr').length"), "a table of each chart")
    pixel = t.js("(() => { const c = document.querySelector('.wide canvas'), d = c.getContext('2d').getImageData(c.width - 8, c.height / 2, 1, 1).data; return d[3]; })()")
    check(pixel == 255, "the last second is drawn")
    busy.join(30)


def turns(p, t):
    t.js("(() => { const e = document.getElementById('knob-max-num-seqs'); e.focus(); e.select(); })()")
    t.type("5")
    t.press("Enter")
    check(t.until("document.querySelector('.knobs [role=status]').textContent === 'max-num-seqs: 8 → 5'"), t.js("document.querySelector('.knobs').textContent"))
    check(wait_for(lambda: json.loads(p.ask("GET", "/ui/history")[2])["past"]["turns"], 5), "it is marked")


SMALL = """(() => {
    const name = e => e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent.trim() || e.title;
    const all = [...document.querySelectorAll('button, a, input, select, textarea, canvas, summary')].filter(e => e.checkVisibility());
    return all.filter(e => !name(e)).map(e => e.outerHTML.slice(0, 120));
})()"""
CONTRAST = """(() => {
    const luma = c => { const f = c.map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
    const read = s => (s.match(/[\\d.]+/g) || []).map(Number);
    const under = e => { for (; e; e = e.parentElement) { const c = read(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
    const bad = [];
    for (const e of document.querySelectorAll('body *')) {
        if (!e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || e.disabled || e.closest(':disabled')) continue;
        const a = luma(read(getComputedStyle(e).color).slice(0, 3)), b = luma(under(e)), c = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (c < 4.5) bad.push([c.toFixed(2), e.tagName, e.className, e.textContent.slice(0, 30)]);
    }
    return bad;
})()"""


def is_usable(p, b, key=None):
    for dark in (False, True):
        t = b.tab(width=360, height=740, dark=dark)
        opens(p, t)
        for view in ("talk", "live"):
            t.js(f"location.hash = '#{view}'")
            check(t.until("document.querySelectorAll('main:not([hidden])').length === 1"), view)
            t.idle(1.2 if view == "live" else 0)
            check(t.js("document.documentElement.scrollWidth") <= 360, f"{view} fits 360 px: {t.js('document.documentElement.scrollWidth')}")
            check(not t.js(SMALL), f"everything has a name: {t.js(SMALL)}")
            check(not t.js(CONTRAST), f"contrast, dark {dark}: {t.js(CONTRAST)}")
        check(not t.problems, f"{t.problems}")


def comes_back(p, t):
    d = p.procs.pop("slipringd")
    d.kill()
    d.wait()
    check(t.until("document.querySelector('#state').textContent.includes('daemon away for')"), "the daemon is away, the page stays")
    os.rename(os.path.join(p.dir, "slipringd.log"), os.path.join(p.dir, "old.log"))
    p.daemon(*NULL)
    check(t.until("document.querySelector('#state').textContent.includes('running')"), "and it is back")


def says_why(p, t):
    t.js("window.said = []; new MutationObserver(() => said.push(document.querySelector('#state').textContent))"
         ".observe(document.querySelector('#state'), { childList: true, characterData: true, subtree: true })")
    # what a draining server answers, for as long as the page asks
    t.js("window.fetch = async () => new Response(JSON.stringify({ error: { message: 'The server is shutting down.' } }), { status: 503 })")
    p.procs.pop("slipring-http").terminate()
    check(t.until("window.said.some(s => s === 'The server is shutting down, asking again')"), f"{t.js('window.said.slice(-3)')}")


def asks_for_a_key(p, b):
    t = b.tab()
    t.go(p.url.rstrip("/") + "/")
    check(t.until("!document.getElementById('ask-key').hidden && document.activeElement.id === 'key-text'"), "it asks for the key")
    t.type("wrong")
    t.press("Enter")
    check(t.until("document.getElementById('key-says').textContent.includes('Unauthorized')"), "a wrong one is said")
    t.type("right")
    t.press("Enter")
    check(t.until("document.querySelector('#state').textContent.includes('running')") and t.js("sessionStorage.getItem('key')") == "right", "then all works")
    check(t.js("document.cookie") == "", "no cookie")
    t.js("location.hash = '#live'")
    check(t.until("document.querySelector('.clients').textContent.includes('operator')"), "clients are for operators")
    check(t.js("document.getElementById('knob-max-num-seqs').disabled"), "and so are knobs")


HOURS = """(async () => {
    const event = JSON.stringify(%s), text = i => 'data: ' + event.replace('"at":1,', '"at":' + (4e9 + i) + ',') + '\\n\\n';
    let i = 0;
    const own = fetch;
    window.fetch = (u, o) => !String(u).includes('ui/live') ? own(u, o) : Promise.resolve(new Response(new ReadableStream({ async pull(c) {
        if (i < %d) { c.enqueue(new TextEncoder().encode(text(i++))); if (i %% 50 === 0) await new Promise(r => setTimeout(r)); }
        else { window.over = true; await new Promise(() => {}); } } })));
    live.watch();
})()"""


def eight_hours(p, b):
    v = http.client.HTTPConnection("127.0.0.1", p.port, timeout=20)
    v.request("GET", "/ui/live")
    r, event = v.getresponse(), {}
    while "pid" not in event:
        line = r.readline()
        event = json.loads(line[6:]) if line.startswith(b"data: {") else {}
    v.close()
    t = b.tab()
    sizes = []
    for n in (1200, 28800):
        opens(p, t)
        t.js("location.hash = '#live'")
        t.js(HOURS % (json.dumps({**event, "at": 1}, separators=(",", ":")), n))
        check(t.until("window.over", 500), "all events were read")
        t.call("HeapProfiler.collectGarbage")
        sizes.append(t.call("Runtime.getHeapUsage")["usedSize"])
    print(f"heap after 20 minutes {sizes[0]} bytes, after 8 hours {sizes[1]}")
    check(sizes[1] < sizes[0] + 400_000, f"the heap stays: {sizes}")


def main():
    if not browser.program():
        print("SKIP: no chromium; the page is not tested in a browser (tools/setup.sh test installs it)")
        print("[  SKIPPED ] 1 test(s), listed below:")
        return
    with Programs() as p, Browser() as b:
        p.daemon(*NULL)
        p.adapter("--ui-knobs")
        t = b.tab()
        opens(p, t)
        talks(t)
        pop_up(t)
        probabilities_and_branches(p, t)
        stays_text(p, t)
        stops(p, t)
        shows(p, t)
        turns(p, t)
        is_usable(p, b)
        if os.environ.get("SLIPRING_PAGE") == "long":
            eight_hours(p, b)
        origins = {u.split("/")[2] for _, u in t.requests if not u.startswith("data:")}
        check(origins == {f"127.0.0.1:{p.port}"}, f"nobody else is asked: {origins}")
        check(not t.problems, f"no error, no violation of the policy: {t.problems}")
        comes_back(p, t)
        says_why(p, t)
        p.adapter("--api-key", "right")
        asks_for_a_key(p, b)
    done()


main()
