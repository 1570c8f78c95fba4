#!/usr/bin/env python3
"""An upgrade under load: the daemons of `slipring serve -dp 2` are replaced by another release, one after the other,
while requests of several kinds are under way.  No answer is lost or changed.  Cached prefixes are read by another
release, and of a copy of the model.  Where the next release computes something else, answers that have begun end where
they are, and new requests go to the new one."""
import shutil
from harness import *

N, TOKENS = 12, 40
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
          "required": ["city", "people"], "additionalProperties": False}


def kinds(i):
    topic = ["the sea", "a clock", "iron", "rain", "old maps", "bread"][i % 6]
    chat = {"messages": [{"role": "user", "content": f"Write about {topic}, number {i}."}], "max_tokens": TOKENS}
    text = {"prompt": f"{i}: once upon a time {topic}", "max_tokens": TOKENS, "ignore_eos": True}
    return [("/v1/chat/completions", {**chat, "temperature": 0}),
            ("/v1/completions", {**text, "temperature": .9, "seed": i}),
            ("/v1/completions", {**text, "temperature": 0, "logprobs": 3}),
            ("/v1/completions", {**text, "temperature": .9, "seed": i, "presence_penalty": .5, "n": 2}),
            ("/v1/chat/completions", {**chat, "temperature": .9, "seed": i, "response_format": {
                "type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}}),
            ("/v1/completions", {**text, "temperature": 0, "stop": [" the e"], "echo": True})][i % 6]


def answer(p, i):
    path, body = kinds(i)
    status, _, text = p.ask("POST", path, body, timeout=170)
    if status != 200:
        return status, text
    return status, [{k: c.get(k) for k in ("index", "text", "message", "logprobs", "finish_reason")}
                    for c in json.loads(text)["choices"]]


def other_release(p, old, new):
    """The next release beside the one that runs: its file takes the place of the old one."""
    path = os.path.join(p.bin, "slipringd")
    with open(path, "rb") as f:
        program = f.read()
    check(program.count(old) >= 1 and len(old) == len(new), f"the program says {old!r}")
    with open(path + ".new", "wb") as f:
        f.write(program.replace(old, new))
    os.chmod(path + ".new", 0o755)
    os.rename(path + ".new", path)


def version(p):
    r = subprocess.run([os.path.join(p.bin, "slipringd"), "--version"], capture_output=True, text=True, timeout=20)
    return r.stdout.strip()


def sum_of(p, name):
    return sum(float(l.rsplit(" ", 1)[1]) for l in p.ask("GET", "/metrics")[2].splitlines() if l.startswith(name + "{"))


def replaced(p, rank, pid):
    check(wait_for(lambda: daemons(p).get(rank, pid) != pid, 90), f"daemon {rank} is replaced")
    check(wait_for(lambda: p.ask("GET", "/metrics")[2].count("\nslipring_engine_up{") == 2 and
                   sum_of(p, "slipring_engine_up") == 2, 60, .15), "and is used")


def upgrade():
    with Released() as p:
        p.serve("-dp", 2, "--max-num-seqs", 8, "--max-model-len", 512, MODEL)
        want = p.together(N, lambda i: answer(p, i))
        check(all(w[0] == 200 for w in want), f"undisturbed: {want}")
        was = version(p)
        other_release(p, was.encode(), was[:-1].encode() + bytes([was.encode()[-1] + 1]))
        check(version(p) != was, f"another release: {was} -> {version(p)}")
        pids, rest, wrong, count = daemons(p), threading.Event(), [], [0] * N

        def load(i):
            while not rest.is_set():
                g = answer(p, i)
                count[i] += 1
                if g != want[i]:
                    wrong.append((i, g, want[i]))
        t = threading.Thread(target=lambda: p.together(N, load))
        t.start()
        for rank in (0, 1):
            check(wait_for(lambda: sum_of(p, "vllm:num_requests_running") >= 2, 60, .15), "requests run")
            os.kill(pids[rank], signal.SIGTERM)
            replaced(p, rank, pids[rank])
        rest.set()
        t.join(300)
        check(min(count) > 0 and not wrong, f"no answer is lost or changed: {count} {wrong}"[:2000])
        moved = sum_of(p, "slipring_moved_requests_total")
        print(f"upgrade: {sum(count)} answers, {moved:.0f} moved")


def kept():
    """What one release wrote with --kv-save another one reads, also for a copy of the model."""
    ask = {"prompt": list(range(1000, 1200)), "max_tokens": 8, "temperature": 0}
    with Released() as p:
        where = os.path.join(p.dir, "kept")
        os.mkdir(where, 0o700)
        args = ["--max-num-seqs", 2, "--max-model-len", 512, "--kv-cache-memory-bytes", "32M", "--kv-save", where]
        p.daemon(*args, "--model", MODEL)
        p.adapter("--model", MODEL, "--enable-prompt-tokens-details")
        first = p.post("/v1/completions", ask)
        p.procs["slipringd"].send_signal(signal.SIGTERM)
        check(p.procs["slipringd"].wait(20) == 0, "it ends well")
        was = version(p)
        other_release(p, was.encode(), was[:-1].encode() + bytes([was.encode()[-1] + 1]))
        copy = os.path.join(p.dir, os.path.basename(MODEL))
        shutil.copyfile(MODEL, copy)
        os.unlink(os.path.join(p.dir, "slipringd.log"))
        p.daemon(*args, "--model", copy)
        check(wait_for(lambda: p.ask("GET", "/health")[0] == 200, 20), "the adapter has found it")
        then = p.post("/v1/completions", ask)
        check(then["usage"]["prompt_tokens_details"]["cached_tokens"] == 192 and then["choices"] == first["choices"],
              f"cached tokens are still cached: {then['usage']}")
        p.procs["slipringd"].send_signal(signal.SIGTERM)
        p.procs["slipringd"].wait(20)
        with open(copy, "r+b") as f:                  # some weights are others
            f.seek(os.path.getsize(copy) // 2)
            some = f.read(64 << 10)
            f.seek(os.path.getsize(copy) // 2)
            f.write(bytes(b ^ 1 for b in some))
        os.unlink(os.path.join(p.dir, "slipringd.log"))
        p.daemon(*args, "--model", copy)
        check("no cached prefixes are taken over" in p.log("slipringd"), "another model's are not")


def other_bits():
    """The next release computes something else (here: with another --max-model-len)."""
    with Released() as p:
        config = os.path.join(p.dir, "s.yaml")

        def write(context):
            with open(config, "w") as f:
                f.write(f"device: 'null'\nnull-step-us: 20000\nmax-model-len: {context}\nshutdown-timeout: 60\n"
                        f"data-parallel-size: 2\nmodel: {MODEL}\n")
        write(1024)
        p.serve("--config", config)
        ask = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}
        want = p.together(8, lambda i: p.ask("POST", "/v1/completions", {**ask, "prompt": [i + 5, 9, 11]}))
        got, pids = [], daemons(p)
        t = threading.Thread(target=lambda: got.extend(p.together(
            8, lambda i: p.ask("POST", "/v1/completions", {**ask, "prompt": [i + 5, 9, 11]}))))
        write(2048)
        t.start()
        check(wait_for(lambda: sum_of(p, "vllm:num_requests_running") >= 8, 60), "requests run")
        os.kill(pids[0], signal.SIGTERM)              # its answers go on at the other one, which is as it was
        replaced(p, 0, pids[0])
        os.kill(pids[1], signal.SIGTERM)              # nobody is, so they end there; new ones go to the new daemon
        begin = time.monotonic()
        status, _, text = p.ask("POST", "/v1/completions", {**ask, "prompt": [1, 2], "max_tokens": 4})
        check(status == 200 and time.monotonic() - begin < 10, f"a new request is answered meanwhile: {status} {text}")
        replaced(p, 1, pids[1])
        t.join(120)
        texts = [[(s, json.loads(x)["choices"][0]["text"] if s == 200 else x) for s, _, x in list] for list in (want, got)]
        check(texts[0] == texts[1], f"no answer is lost or changed: {texts}"[:3000])
        check("that have begun end there" in p.log("slipring"), "and the log says what happened")


need_model()
upgrade()
kept()
other_bits()
done()
