#!/usr/bin/env python3
"""--kv-save: cached prefixes outlive the daemon, and answers stay the same.  A file that was changed, or is of other
settings, is a log line and a cold start."""
import signal
from harness import *

ARGS = ["--max-num-seqs", 4, "--max-model-len", 512, "--kv-cache-memory-bytes", "32M"]
ASK = {"prompt": list(range(1000, 1200)), "max_tokens": 8, "temperature": 0, "logprobs": 2}
OTHER = {"prompt": list(range(2000, 2100)), "max_tokens": 4, "temperature": 0, "cache_salt": "mine"}


class Kept:
    def __init__(self, p):
        self.p, self.dir = p, os.path.join(p.dir, "kept")
        self.file = os.path.join(self.dir, "default.kv")
        os.mkdir(self.dir, 0o700)

    def start(self, *more):
        log = os.path.join(self.p.dir, "slipringd.log")
        if os.path.exists(log):
            os.unlink(log)
        return self.p.daemon(*ARGS, "--kv-save", self.dir, *more)

    def stop(self):
        d = self.p.procs["slipringd"]
        d.send_signal(signal.SIGTERM)
        check(d.wait(20) == 0, "the daemon ends well")

    def ask(self, body=ASK):
        check(wait_for(lambda: self.p.ask("GET", "/health")[0] == 200, 10), "the adapter has found it")
        r = self.p.post("/v1/completions", body)
        return r["choices"], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def cold(k, what):
    """The daemon starts, says why nothing was taken over, and starts cold."""
    k.start()
    log = k.p.log("slipringd")
    check("no cached prefixes are taken over" in log and "were kept" not in log, f"{what}: {log[-600:]}")
    k.p.procs["slipringd"].kill()                 # so it writes no file
    k.p.procs["slipringd"].wait(10)


def kept(k):
    k.start()
    k.p.adapter("--enable-prompt-tokens-details")
    first, cached = k.ask()
    check(cached == 0, "at first nothing is cached")
    salted, _ = k.ask(OTHER)
    warm = k.ask()
    check(warm == (first, 192), f"then its full blocks are: {warm[1]}")
    k.stop()
    check(os.stat(k.file).st_mode & 0o777 == 0o600, "the file is ours alone")
    k.start()
    check("were kept" in k.p.log("slipringd"), f"they were kept: {k.p.log('slipringd')[-500:]}")
    check(k.ask() == warm, "the next daemon has them, and the answer is the same to the bit")
    check(k.ask(OTHER) == (salted, 96), "salts hold")
    check(k.ask({**OTHER, "cache_salt": "yours"})[1] == 0, "and keep others apart")
    k.stop()


def tampered(k):
    """test_keep.c changes every byte; here once the whole way."""
    with open(k.file, "rb") as f:
        whole = f.read()
    with open(k.file, "wb") as f:
        f.write(whole[:len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1:])
    cold(k, "a changed byte")
    with open(k.file, "wb") as f:
        f.write(whole)


def settings(k):
    k.start("--kv-cache-dtype", "int8")
    check("another model, back end or settings" in k.p.log("slipringd"), "another kind of KV cache is a cold start")
    k.p.procs["slipringd"].kill()
    k.p.procs["slipringd"].wait(10)
    d = k.p.run("slipringd", "--device", "null", "--kv-save", k.dir)
    check(d.wait(20) == 1 and "--kv-save is for the CPU" in k.p.log("slipringd"), "refused by name elsewhere")


def main():
    need_model()
    with Programs() as p:
        k = Kept(p)
        kept(k)
        tampered(k)
        settings(k)
    done()


main()
