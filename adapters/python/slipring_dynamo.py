"""A Slipring daemon as a worker of NVIDIA Dynamo: token ids in, token ids out, over the rings.

    slipringd --model DIR --instance a
    python3 slipring_dynamo.py --model DIR --instance a --discovery-backend file
    python3 -m dynamo.frontend --discovery-backend file --migration-limit 3

A worker has one daemon, and tells Dynamo's frontends of it.  An answer whose worker dies goes on in another
one: the frontend asks it with the prompt and the tokens so far.  An answer whose daemon alone dies is continued
here if the daemon is back within --daemon-wait, else it moves, too.  What Slipring cannot do is refused by name.

Made for ai-dynamo 1.6; docs/examples/dynamo has how it installs, and a unit for each role.  Everything here
runs on one thread, Dynamo's event loop.
"""
import argparse
import asyncio
import collections
import ctypes as C
import json
import os
import random
import signal
import subprocess
import sys
import time
import types
from errno import E2BIG, ECONNREFUSED, ECONNRESET, EINVAL, ENOENT, ENOSPC, ETIMEDOUT

from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import ZmqSource
from dynamo.common.backend.run import run
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument

import slipring
from slipring_vllm import GUIDES, LIVE, START_S, TOP_MAX, CompletionOutput, SamplingParams, StructuredOutputsParams, _program, _Task

BLOCK = 16                         # tokens of a KV block, see core/kv/kv.h
REFUSED = (EINVAL, E2BIG, ENOSPC)  # ends of a request that no daemon can serve
LOADING = (ENOENT, ECONNREFUSED, ECONNRESET, ETIMEDOUT)  # what opening the ring says of a daemon that starts
RETRY_S = 0.05                     # between two tries to reach a daemon that is away

# Sampling options that mean the same here, by Dynamo's names.
SAME = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed")
# Those that are refused unless they have one of these values.
ONLY = {"n": (1,), "best_of": (1,), "use_beam_search": (False,), "length_penalty": (0.0, 1.0)}
NOT_SAMPLING = ("guided_decoding", "include_stop_str_in_output")     # the frontend cuts the text itself
STOPS = ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden")


def _given(options, *known):
    """Options that are set; one that nobody here reads is an error with its name."""
    given = {k: v for k, v in (options or {}).items() if v is not None}
    for name in given:
        if name not in known:
            raise InvalidArgument(f"{name} is not supported by Slipring's worker")
    return given


def params_of(request):
    """vLLM's SamplingParams of a request as Dynamo's frontend makes it."""
    sampling = _given(request.get("sampling_options"), *SAME, *ONLY, *NOT_SAMPLING)
    stop = _given(request.get("stop_conditions"), "max_tokens", "min_tokens", "ignore_eos", "stop", *STOPS)
    output = _given(request.get("output_options"), "logprobs", "prompt_logprobs", "skip_special_tokens",
                    "return_tokens_as_token_ids", "no_stop_trim")
    for name, values in ONLY.items():
        if sampling.get(name, values[0]) not in values:
            raise InvalidArgument(f"{name} {sampling[name]} is not supported by Slipring's worker")
    guided = _given(sampling.get("guided_decoding"), "json", "regex", "choice", "grammar", "structural_tag", "backend")
    guided.pop("backend", None)
    ids = sorted({i for name in STOPS for i in stop.get(name, [])})
    try:
        return SamplingParams(
            **{name: sampling[name] for name in SAME if name in sampling},
            max_tokens=stop.get("max_tokens"), min_tokens=stop.get("min_tokens", 0),
            ignore_eos=bool(stop.get("ignore_eos")), stop_token_ids=ids, detokenize=False,
            logprobs=output.get("logprobs"), prompt_logprobs=output.get("prompt_logprobs"),
            structured_outputs=StructuredOutputsParams(**guided) if guided else None)
    except (TypeError, ValueError) as e:
        raise InvalidArgument(str(e)) from None


class _Stream(_Task):
    """An answer under way: what has come and was not yet handed on."""

    def __init__(self, worker, ids, params, answered=()):
        self.news, self.last = asyncio.Event(), 0
        super().__init__(worker, ids, params, CompletionOutput(0), params.structured_outputs and
                         params.structured_outputs.guide())
        self.sent = len(answered)
        if answered:                                   # a daemon that came back goes on with it
            q, room = self._request, worker.session.context - len(ids)
            self.out.token_ids = list(answered)
            self._whole = slipring._ids(list(ids) + list(answered))
            q.prompt, q.n_prompt, q.n_answer = self._whole, len(ids) + len(answered), len(answered)
            q.max_tokens = min(room, params.max_tokens if params.max_tokens is not None else room)
        if params.logprobs is not None:
            self.out.logprobs = [None] * self.sent

    def _token(self, token):
        self.last = token.last                         # why it ends with this one; 0: it does not
        super()._token(token)

    def ended(self):
        """The daemon went after the last token, but before it said so."""
        if self.last and not self.end:
            self.end, self.lost = slipring.EndInfo(), True
            self.out.finish_reason = "stop" if self.last == slipring.STOP else "length"
        return self.end

    def chunk(self):
        """What is new, as Dynamo's frontend takes it."""
        o, p = self.out, self.params
        out = {"index": 0, "token_ids": o.token_ids[self.sent:]}
        if p.logprobs is not None:
            new = list(zip(out["token_ids"], o.logprobs[self.sent:]))
            out["log_probs"] = [scores[i].logprob for i, scores in new]
            if p.logprobs:
                out["top_logprobs"] = [self._top(scores) for _, scores in new]
        self.sent = len(o.token_ids)
        if self.end:
            n = len(self.ids)
            out["finish_reason"] = o.finish_reason
            out["completion_usage"] = {
                "prompt_tokens": n, "completion_tokens": self.sent, "total_tokens": n + self.sent,
                "prompt_tokens_details": {"cached_tokens": self.end.cached}}
            if self.scores:
                out["engine_data"] = {"prompt_logprobs": [s and {str(i): self._entry(e) for i, e in s.items()}
                                                          for s in self.scores]}
        return out

    @staticmethod
    def _entry(e):
        return {"logprob": e.logprob, "rank": e.rank, "decoded_token": e.decoded_token}

    @staticmethod
    def _top(scores):
        return [{"rank": e.rank, "token_id": i, "token": e.decoded_token, "logprob": e.logprob,
                 "bytes": None if "\ufffd" in e.decoded_token else list(e.decoded_token.encode())} for i, e in sorted(scores.items(), key=lambda x: x[1].rank)]


class SlipringEngine(LLMEngine):
    def __init__(self, args):
        self.args, self.session, self.changed = args, None, set()
        self._back, self._streams, self._reach, self._answers = asyncio.Event(), set(), None, 0
        self._of = collections.defaultdict(set)          # streams by the id of their request

    @classmethod
    async def from_args(cls, argv=None):
        p = argparse.ArgumentParser(prog="slipring_dynamo.py", description="A Slipring daemon as a worker of Dynamo.")
        p.add_argument("--model", required=True, help="the directory or file that the daemon serves")
        p.add_argument("--served-model-name", help="its name for clients (default: MODEL as it is written)")
        p.add_argument("--instance", default="default", help="which daemon")
        p.add_argument("--socket", help="its socket, instead of the instance's")
        p.add_argument("--daemon-wait", type=float, default=2, metavar="S",
                       help="so long answers wait for a daemon that restarts; then they move to another worker")
        p.add_argument("--kv-events-endpoint", metavar="ZMQ",
                       help="where slipring-events publishes, such as tcp://127.0.0.1:5557, for --router-mode kv")
        p.add_argument("--kv-events-topic", default="")
        p.add_argument("--namespace", default="dynamo")
        p.add_argument("--component", default="backend")
        p.add_argument("--endpoint", default="generate")
        p.add_argument("--endpoint-types", default="chat,completions")
        p.add_argument("--discovery-backend", default=os.environ.get("DYN_DISCOVERY_BACKEND", "file"))
        p.add_argument("--request-plane", default=os.environ.get("DYN_REQUEST_PLANE", "tcp"))
        p.add_argument("--event-plane", default=os.environ.get("DYN_EVENT_PLANE", "zmq"))
        p.add_argument("--tool-call-parser")
        p.add_argument("--reasoning-parser")
        a = p.parse_args(argv)
        return cls(a), WorkerConfig(
            namespace=a.namespace, component=a.component, endpoint=a.endpoint, model_name=a.model,
            served_model_name=a.served_model_name or a.model, endpoint_types=a.endpoint_types,
            discovery_backend=a.discovery_backend, request_plane=a.request_plane, event_plane=a.event_plane,
            tool_call_parser=a.tool_call_parser, reasoning_parser=a.reasoning_parser,
            enable_kv_routing=bool(a.kv_events_endpoint))

    # ---- the daemon -------------------------------------------------------------------------

    def _connect(self):
        self.session = slipring.Session(self.args.socket, self.args.model, self.args.instance, guides=GUIDES, live=LIVE)
        asyncio.get_running_loop().add_reader(slipring._ring.sr_fd(self.session._conn), self._readable)
        self._readable()
        self._back.set()

    def _alike(self):
        """A number that is the same in daemons that answer alike; 0 is not known."""
        return slipring._ring.sr_model(self.session._open()).contents.answers

    def _readable(self):
        """Hand on what has come, and ask for a signal when more comes."""
        try:
            self.session._take()
            while slipring._check(slipring._ring.sr_arm(self.session._conn, slipring.WAIT_TOKENS), "arm"):
                self.session._take()
        except slipring.Error:
            self._lost()
        for stream in self.changed:
            stream.news.set()
        self.changed.clear()

    def _lost(self):
        """The daemon is gone: every stream learns it, and looks for it again."""
        self._back.clear()
        asyncio.get_running_loop().remove_reader(slipring._ring.sr_fd(self.session._conn))
        self.session.close()
        for stream in self._streams:
            stream.lost = True
            stream.news.set()
        self._reach = asyncio.ensure_future(self._return())

    async def _return(self):
        """Connect to the daemon when it is back.  If it stays away, or answers otherwise, this worker ends."""
        until = time.monotonic() + self.args.daemon_wait
        while True:
            try:
                self._connect()
            except slipring.Error as e:
                if time.monotonic() < until:
                    await asyncio.sleep(RETRY_S)
                    continue
                self._end(f"the daemon is away for {self.args.daemon_wait:g} s: {e}")
            else:
                if self._alike() != self._answers:
                    self._end("the daemon that came back serves something else")
                else:
                    self._say(f"the daemon is back; {len(self._streams)} answers go on")
            return

    @staticmethod
    def _say(what):
        print("slipring_dynamo: " + what, file=sys.stderr, flush=True)

    def _end(self, why):
        self._say(f"{why}: this worker ends, its answers move to others")
        os.kill(os.getpid(), signal.SIGTERM)

    async def _daemon(self):
        """Wait until there is one, or tell the frontend to ask another worker."""
        try:
            await asyncio.wait_for(self._back.wait(), self.args.daemon_wait)
        except asyncio.TimeoutError:
            raise EngineShutdown("the daemon is away") from None

    def _limits(self):
        """What the daemon's page says of its size."""
        words = [_program("slipring"), "top", "--json", "-i", "0.1", "--instance", self.args.instance]
        try:
            page = json.loads(subprocess.run(words, capture_output=True, timeout=10, check=True).stdout)
            return page["kv_blocks"], page["max_num_seqs"], int(page["knobs"]["max-num-batched-tokens"]["now"])
        except (OSError, ValueError, KeyError, subprocess.SubprocessError, slipring.Error):
            return None, None, None

    async def start(self, worker_id):
        until = time.monotonic() + START_S
        while not self.session:
            try:
                self._connect()
            except slipring.Error as e:
                if e.errno not in LOADING or time.monotonic() > until:
                    raise
                await asyncio.sleep(RETRY_S)
        self._answers = self._alike()
        blocks, seqs, tokens = self._limits()
        return EngineConfig(model=self.args.model, served_model_name=self.args.served_model_name or self.args.model,
                            llm=LlmRegistration(context_length=self.session.context, kv_cache_block_size=BLOCK,
                                                total_kv_blocks=blocks, max_num_seqs=seqs, max_num_batched_tokens=tokens))

    async def kv_event_sources(self):
        if not self.args.kv_events_endpoint:
            return []
        return [ZmqSource(self.args.kv_events_endpoint, self.args.kv_events_topic)]

    async def health_check_payload(self):
        return {"token_ids": [max(0, self.session._info.bos)], "sampling_options": {"temperature": 0.0},
                "stop_conditions": {"max_tokens": 1, "ignore_eos": True}}

    # ---- answers ----------------------------------------------------------------------------

    def _check(self, ids, params):
        room = self.session.context - len(ids)
        if not ids or room < 1:
            raise InvalidArgument(f"a prompt of {len(ids)} tokens: 1 to {self.session.context - 1} fit the model's context")
        if params.prompt_logprobs is not None and params.prompt_logprobs > TOP_MAX:
            raise InvalidArgument(f"prompt_logprobs must be 0 to {TOP_MAX}")
        if params.seed is None:                        # so that a continuation draws the same
            params.seed = random.getrandbits(63)

    async def _submitted(self, ids, params, answered, name):
        """A stream that the daemon has; waits for room."""
        while True:
            await self._daemon()
            try:
                stream = _Stream(self, ids, params, answered)
                stream.lost, stream.request = False, types.SimpleNamespace(request_id=name)
                while not stream.submit():
                    await asyncio.sleep(slipring.RETRY_MS / 1000)
                return stream
            except slipring.Error as e:
                if e.errno != ECONNRESET and self._back.is_set():
                    raise InvalidArgument(str(e)) from None
                await asyncio.sleep(0)                 # the daemon went; _readable() finds it out

    async def generate(self, request, context):
        ids, params, name = list(request["token_ids"]), params_of(request), context.id()
        await self._daemon()
        self._check(ids, params)
        stream = await self._submitted(ids, params, (), name)
        try:
            while True:
                self._streams.add(stream)
                self._of[name].add(stream)
                await stream.news.wait()
                stream.news.clear()
                if stream.error and stream.error.errno != ECONNRESET:
                    raise InvalidArgument(str(stream.error)) if stream.error.errno in REFUSED else stream.error
                if stream.aborted and not stream.end:
                    yield {"index": 0, "token_ids": [], "finish_reason": "cancelled"}
                    return
                if (stream.error or stream.lost) and not stream.ended():   # with what the ring had
                    if len(stream.out.token_ids) > stream.sent:
                        yield {**stream.chunk()}
                    old, stream = stream, await self._continued(stream, name)
                    self._drop(old, name)
                    continue
                if len(stream.out.token_ids) > stream.sent or stream.end:
                    over, chunk = stream.end, stream.chunk()
                    yield chunk                        # meanwhile more may come
                    if over:
                        return
        finally:
            if not stream.end and not stream.lost:
                stream.aborted = True
                stream.cancel()
            self._drop(stream, name)

    async def _continued(self, old, name):
        """The stream in the daemon that came back."""
        if old.guide or old.scores:                    # its state is not kept: the frontend tells its client
            raise EngineShutdown("the daemon went, and answers with a grammar or prompt_logprobs do not go on")
        return await self._submitted(old.ids, old.params, tuple(old.out.token_ids), name)

    def _drop(self, stream, name):
        self._streams.discard(stream)
        self._of[name].discard(stream)
        if not self._of[name]:
            del self._of[name]

    async def abort(self, context):
        for stream in self._of.get(context.id(), ()):
            if not stream.lost and not stream.end:
                stream.aborted = True                  # its end is not told any more
                stream.cancel()
            stream.news.set()

    async def cleanup(self):
        if self._reach:
            self._reach.cancel()
        if self.session and self._back.is_set():
            self._back.clear()
            asyncio.get_running_loop().remove_reader(slipring._ring.sr_fd(self.session._conn))
            self.session.close()


if __name__ == "__main__":
    run(SlipringEngine)
