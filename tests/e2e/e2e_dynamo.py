#!/usr/bin/env python3
"""The worker for NVIDIA Dynamo over a real daemon, with a stand-in for Dynamo's classes; make dynamo-test has the
real one.  What a request becomes, what is refused, and what happens when the daemon dies under answers."""
import asyncio, contextlib, faulthandler, types
from harness import *

sys.path.insert(0, os.path.join(HERE, "../adapters/python"))
os.environ["SLIPRING_LIB"] = BUILD


def stand_in():
    """The names that slipring_dynamo.py imports of Dynamo."""
    class Bag:
        def __init__(self, **kw):
            self.__dict__.update(kw)

    def module(name, **names):
        sys.modules[name] = m = types.ModuleType(name)
        m.__dict__.update(names)
    errors = {n: type(n, (Exception,), {}) for n in ("EngineShutdown", "InvalidArgument")}
    for name in ("dynamo", "dynamo.common", "dynamo.llm"):
        module(name)
    module("dynamo.llm.exceptions", **errors)
    module("dynamo.common.backend", LLMEngine=object, **{n: type(n, (Bag,), {}) for n in
                                                         ("EngineConfig", "LlmRegistration", "WorkerConfig")})
    module("dynamo.common.backend.publisher", ZmqSource=lambda endpoint, topic: (endpoint, topic))
    module("dynamo.common.backend.run", run=None)


class Context:
    def __init__(self, name):
        self.name = name

    def id(self):
        return self.name


def request(prompt, n, sampling=None, stop=None, output=None):
    """As Dynamo's frontend writes it: what is not given is None."""
    empty = dict.fromkeys(("n", "best_of", "top_k", "min_p", "length_penalty", "guided_decoding", "use_beam_search"))
    return {"token_ids": prompt, "sampling_options": {**empty, "temperature": 0.0, **(sampling or {})},
            "stop_conditions": {"max_tokens": n, "ignore_eos": True, "stop": None, **(stop or {})},
            "output_options": output or {}}


async def whole(engine, asked, name="r", after=None):
    """The ids of an answer, its last chunk and all its log-probabilities."""
    ids, scores, last = [], [], None
    async for chunk in engine.generate(asked, Context(name)):
        check(chunk["index"] == 0 and (last is None or "finish_reason" not in last), "a chunk, and none after the last")
        ids += chunk["token_ids"]
        scores += chunk.get("log_probs", [])
        last = chunk
        if after and len(ids) >= after[0]:
            await after[1]()
            after = None
    return ids, last, scores


async def refused(error, engine, asked, words):
    try:
        await whole(engine, asked)
    except error as e:
        return check(words in str(e), f"{words!r} is named: {e}")
    check(False, f"refused: {words}")


async def answers(engine):
    prompt = list(range(60, 100))
    own = engine.session.generate(prompt, max_tokens=24, ignore_eos=True, temperature=0)
    own.text()
    engine._readable()                                # that took the signal, too
    ids, last, scores = await whole(engine, request(prompt, 24, output={"logprobs": 2, "prompt_logprobs": 1}))
    check(ids == own.ids, f"the ids that the ring has: {ids} {own.ids}")
    check(last["finish_reason"] == "length" and len(scores) == 24 and max(scores) <= 0, f"its end: {last}")
    use = last["completion_usage"]
    check((use["prompt_tokens"], use["completion_tokens"], use["total_tokens"]) == (40, 24, 64), f"usage: {use}")
    check(len(last["engine_data"]["prompt_logprobs"]) == 40, "and scores of the prompt")
    top = last["top_logprobs"][-1]
    check([e["rank"] for e in top] == [1, 2] and top[0]["token_id"] == ids[-1], f"alternatives: {top}")
    stopped = await whole(engine, request(prompt, 24, stop={"ignore_eos": None, "stop_token_ids_hidden": [ids[5]]}))
    at = ids.index(ids[5])
    check(stopped[0] == ids[:at + 1] and stopped[1]["finish_reason"] == "stop", f"a stop id ends it: {stopped[:2]}")
    fixed = await whole(engine, request(prompt, 24, {"guided_decoding": {"regex": "[ab]{7}"}}, {"ignore_eos": None}))
    check({chr(i) for i in fixed[0][:7]} <= set("ab") and fixed[1]["finish_reason"] == "stop", f"a grammar holds: {fixed[0]}")
    many = await asyncio.gather(*(whole(engine, request(prompt, 24), str(i)) for i in range(12)))
    check(all(m[0] == ids for m in many), "twelve at once")


async def refusals(engine, error):
    for sampling, words in (({"n": 2}, "n 2"), ({"use_beam_search": True}, "use_beam_search"), ({"mirostat": 1}, "mirostat"),
                            ({"top_p": 7}, "top_p"), ({"guided_decoding": {"whitespace_pattern": " "}}, "whitespace_pattern")):
        await refused(error, engine, request([70, 71], 4, sampling), words)
    await refused(error, engine, request([70] * 1024, 4), "1024 tokens")
    await refused(error, engine, request([70, 99999], 4), "nvalid")
    await refused(error, engine, request([70], 4, stop={"max_thinking_tokens": 3}), "max_thinking_tokens")


def live(d):
    r = subprocess.run([os.path.join(BUILD, "slipring"), "top", "--json", "-i", "0.1"], env=d.env, capture_output=True, text=True)
    return json.loads(r.stdout)["running"]


async def given_up(engine, d):
    """A client that leaves, and a request that the frontend aborts."""
    async with contextlib.aclosing(engine.generate(request([70, 71], 900), Context("left"))) as answer:
        async for _ in answer:
            break
    aborted = asyncio.ensure_future(whole(engine, request([70, 72], 900), "aborted",
                                          (1, lambda: engine.abort(Context("aborted")))))
    check((await aborted)[1]["finish_reason"] == "cancelled", "an aborted answer ends")
    for _ in range(200):
        if not live(d):
            break
        await asyncio.sleep(0.1)
    check(not live(d), "the daemon computes neither of them")


async def daemon_dies(engine, d, shutdown):
    """Answers, also drawn with penalties, go on unchanged in the daemon that comes back; the rest moves."""
    def asked(i):
        return request([70 + i, 71], 900, {"temperature": 0.9, "seed": i, "presence_penalty": 1.5} if i % 2 else
                       {"frequency_penalty": 0.5}, {"min_tokens": 600}, {"logprobs": 0})
    plain = [await whole(engine, asked(i)) for i in range(4)]
    said = []
    engine._say = said.append

    async def again():
        d.procs["slipringd"].kill()
        d.procs["slipringd"].wait()
        await asyncio.to_thread(d.start)
    for _ in range(20):                               # until some were cut: they may all have been in the ring
        cut = await asyncio.gather(*(whole(engine, asked(i), f"c{i}", (30, again) if i == 0 else None) for i in range(4)))
        check([c[0] for c in cut] == [p[0] for p in plain], "unchanged, also with penalties")
        check([c[2] for c in cut] == [p[2] for p in plain], "to the bit")
        check([c[1]["completion_usage"]["completion_tokens"] for c in cut] == [900] * 4, "and counted once")
        if any("; 0 answers" not in line for line in said):
            break
    check(any("; 0 answers" not in line for line in said), f"answers were cut: {said}")

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    d.procs["slipringd"].send_signal(signal.SIGSTOP)  # so that the answer cannot be whole before the daemon dies
    engine.args.daemon_wait = 0.5
    asyncio.get_running_loop().call_later(0.2, d.procs["slipringd"].kill)
    try:
        await whole(engine, asked(0), "gone")
        check(False, "the answer moves")
    except shutdown as e:
        check("away" in str(e), f"the frontend is told to ask another worker: {e}")
    d.procs["slipringd"].wait()
    await asyncio.wait_for(ended.wait(), 20)
    await engine.cleanup()
    await engine.cleanup()


class Daemon(Programs):
    def __enter__(self):
        self.model = os.path.join(self.dir, "m")
        make_model(self.model, context=1024)
        os.environ["RUNTIME_DIRECTORY"] = self.dir
        return self

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.dir, "slipringd.log"))
        self.daemon("--device", "cpu", "--model", self.model, "--load-format", "dummy", "--max-num-seqs", 8,
                    "--num-gpu-blocks-override", 1024)


async def main(d):
    from dynamo.llm.exceptions import EngineShutdown, InvalidArgument
    from slipring_dynamo import SlipringEngine
    engine, worker = await SlipringEngine.from_args(["--model", d.model, "--served-model-name", "m", "--kv-events-endpoint",
                                                     "tcp://127.0.0.1:5557", "--daemon-wait", "5"])
    check(worker.served_model_name == "m" and worker.discovery_backend == "file" and worker.enable_kv_routing, "its registration")
    config = await engine.start(1)
    check((config.llm.context_length, config.llm.kv_cache_block_size, config.llm.total_kv_blocks, config.llm.max_num_seqs) ==
          (1024, 16, 1024, 8), f"its size: {vars(config.llm)}")
    check(await engine.kv_event_sources() == [("tcp://127.0.0.1:5557", "")], "where KV events come from")
    probe = await engine.health_check_payload()
    check(len((await whole(engine, probe))[0]) == 1, "Dynamo's probe is answered")
    await answers(engine)
    await refusals(engine, InvalidArgument)
    await given_up(engine, d)
    engine.args.daemon_wait = 20                      # a busy machine may take its time
    await daemon_dies(engine, d, EngineShutdown)


faulthandler.dump_traceback_later(500)               # shows where it hangs
stand_in()
with Daemon() as d:
    d.start()

    asyncio.run(main(d))
done()
