"""vLLM's offline classes over Slipring's rings: change one import.

    from slipring_vllm import LLM, SamplingParams

    with LLM() as llm:                               # the daemon that runs; LLM(model=..) starts one of its own
        for out in llm.generate(prompts, SamplingParams(temperature=0.8, max_tokens=64)):
            print(out.prompt, out.outputs[0].text)
        llm.chat([{"role": "user", "content": "Hi!"}])

    async for out in AsyncLLM().generate(prompt, SamplingParams(), "id"): ...   # cumulative, as tokens come

Names, defaults and shapes are vLLM's.  What Slipring cannot do is refused by name: nothing is ignored that
would change an answer.  An LLM belongs to one thread.
"""
import asyncio
import atexit
import ctypes as C
import dataclasses
import enum
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import typing
from errno import EAGAIN, EBUSY, ECONNREFUSED, EINTR, ENOENT

import slipring
from slipring import _check, _ids, _ring, _text

__all__ = ["LLM", "AsyncLLM", "SamplingParams", "StructuredOutputsParams", "RequestOutput", "CompletionOutput", "Logprob",
           "RequestOutputKind", "PoolingParams", "EmbeddingRequestOutput", "EmbeddingOutput", "ClassificationRequestOutput",
           "ClassificationOutput", "ScoringRequestOutput", "ScoringOutput", "PoolingRequestOutput", "PoolingOutput"]

TOP_MAX = 20                       # alternatives with a token
LIVE = 1024                        # requests at once, if the daemon grants them
GUIDES = 64                        # guided ones of them
START_S = 600                      # a daemon of our own may read a large model
PROMPT_LOGPROBS, NO_CACHE = 4, 8


# ---- what is asked -----------------------------------------------------------------------------


class RequestOutputKind(enum.Enum):
    CUMULATIVE, DELTA, FINAL_ONLY = 0, 1, 2


@dataclasses.dataclass
class StructuredOutputsParams:
    json: typing.Any = None
    regex: typing.Optional[str] = None
    choice: typing.Optional[list] = None
    grammar: typing.Optional[str] = None
    json_object: typing.Optional[bool] = None
    structural_tag: typing.Any = None

    def guide(self):
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"structured_outputs: give exactly one of its kinds, not {given}")
        what = getattr(self, given[0])
        if given[0] == "json":
            return slipring.Guide.of(json.loads(what) if isinstance(what, str) else what)
        if given[0] == "structural_tag":
            return slipring.tag(json.loads(what) if isinstance(what, str) else what)
        return {"regex": slipring.regex, "grammar": slipring.grammar, "choice": slipring.Guide.of,
                "json_object": lambda _: slipring.Guide.of({"type": "object"})}[given[0]](what)


@dataclasses.dataclass
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: typing.Optional[int] = None
    stop: typing.Union[None, str, list] = None
    stop_token_ids: typing.Optional[list] = None
    ignore_eos: bool = False
    max_tokens: typing.Optional[int] = 16
    min_tokens: int = 0
    logprobs: typing.Optional[int] = None
    prompt_logprobs: typing.Optional[int] = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    truncate_prompt_tokens: typing.Optional[int] = None
    structured_outputs: typing.Optional[StructuredOutputsParams] = None
    logit_bias: typing.Optional[dict] = None
    allowed_token_ids: typing.Optional[list] = None
    bad_words: typing.Optional[list] = None
    priority: int = 0

    def __post_init__(self):
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        for name, least, most in (("n", 1, 1024), ("temperature", 0, 1e6), ("top_p", 1e-9, 1), ("min_p", 0, 1),
                                  ("presence_penalty", -2, 2), ("frequency_penalty", -2, 2), ("min_tokens", 0, 1 << 31),
                                  ("repetition_penalty", 1e-9, 1e6)):
            v = getattr(self, name)
            if not isinstance(v, (int, float)) or not least <= v <= most:
                raise ValueError(f"{name} must be between {least:g} and {most:g}, got {v!r}")
        if self.top_k < -1:
            raise ValueError(f"top_k must be 0 (disable), or at least 1, got {self.top_k}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}")
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n must be 1 when using greedy sampling, got {self.n}.")
        for name in ("logprobs", "prompt_logprobs"):
            v = getattr(self, name)
            if v is not None and not 0 <= v <= TOP_MAX:
                raise ValueError(f"{name} must be 0 to {TOP_MAX}, got {v}")
        if any(not s for s in self.stop):
            raise ValueError("stop cannot contain an empty string")
        if not self.detokenize and self.stop:
            raise ValueError("stop strings need detokenize=True")

    def clone(self):
        return dataclasses.replace(self)


# ---- what is answered --------------------------------------------------------------------------


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: typing.Optional[int] = None
    decoded_token: typing.Optional[str] = None


@dataclasses.dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list = dataclasses.field(default_factory=list)
    cumulative_logprob: typing.Optional[float] = None
    logprobs: typing.Optional[list] = None
    finish_reason: typing.Optional[str] = None
    stop_reason: typing.Union[int, str, None] = None
    lora_request: None = None

    def finished(self):
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    request_id: str
    prompt: typing.Optional[str]
    prompt_token_ids: list
    prompt_logprobs: typing.Optional[list]
    outputs: list
    finished: bool
    num_cached_tokens: typing.Optional[int] = None
    metrics: typing.Optional[dict] = None      # queued, scheduled, first, last: s of CLOCK_MONOTONIC
    lora_request: None = None


@dataclasses.dataclass
class PoolingParams:
    dimensions: typing.Optional[int] = None
    use_activation: typing.Optional[bool] = None       # of length 1, or scores; None: as the model's files say, else yes
    truncate_prompt_tokens: typing.Optional[int] = None


@dataclasses.dataclass
class EmbeddingOutput:
    embedding: list

    @property
    def hidden_size(self):
        return len(self.embedding)


@dataclasses.dataclass
class EmbeddingRequestOutput:
    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list
    finished: bool = True


@dataclasses.dataclass
class ClassificationOutput:
    probs: list

    @property
    def num_classes(self):
        return len(self.probs)


@dataclasses.dataclass
class ScoringOutput:
    score: float


@dataclasses.dataclass
class PoolingOutput:
    data: list                                         # vLLM's is a tensor


@dataclasses.dataclass
class PoolingRequestOutput:
    request_id: str
    outputs: typing.Any
    prompt_token_ids: list
    finished: bool = True


class ClassificationRequestOutput(PoolingRequestOutput):
    pass


class ScoringRequestOutput(PoolingRequestOutput):
    pass


class _Task:
    """One answer: it submits itself when there is room, takes its tokens, and stops at its stop strings."""

    def __init__(self, llm, ids, params, output, guide):
        self.llm, self.ids, self.params, self.out, self.guide = llm, ids, params, output, guide
        self.scores = [None] if params.prompt_logprobs is not None and not output.index else None
        self.end, self.error, self.ticket, self._cut = None, None, C.c_uint32(), False
        self._guided, self._send, self._guide_error = slipring._P(), None, 0
        self._detok = slipring.Detok()
        _text.sr_detok_init(C.byref(self._detok), params.skip_special_tokens)
        self._detok.started = True
        if params.logprobs is not None:
            output.logprobs, output.cumulative_logprob = [], 0.0
        self._request = self._make()

    def _make(self):
        p, s, info = self.params, self.llm.session, self.llm.session._info
        room = s.context - len(self.ids)
        self.most = min(room, p.max_tokens if p.max_tokens is not None else room)
        stops = [] if p.ignore_eos and not self.guide else list(info.stop[:info.n_stop])
        stops += [i for i in p.stop_token_ids or [] if i not in stops]
        bias = [slipring.Pair(int(i), max(-100.0, min(100.0, v))) for i, v in (p.logit_bias or {}).items()]
        bad = self._bad_words()
        lists = {"stop": _ids(stops), "allow": _ids(p.allowed_token_ids or []), "bad": _ids(bad),
                 "bias": (slipring.Pair * max(1, len(bias)))(*bias)}
        q = slipring.Request(size=C.sizeof(slipring.Request), n_prompt=len(self.ids), prompt=_ids(self.ids),
                             max_tokens=self.most, priority=p.priority, n_stop=len(stops),
                             n_allow=len(p.allowed_token_ids or []), n_bias=len(bias), n_bad=len(bad), **lists)
        q.min_tokens = 0 if self.guide else min(p.min_tokens, self.most)
        q.flags = (slipring.IGNORE_EOS if p.ignore_eos and not self.guide else 0) | (slipring.GUIDED if self.guide else 0)
        if p.seed is not None:
            q.flags |= slipring.SEEDED
            q.sampling.seed = (p.seed + self.out.index) % (1 << 64)
        q.sampling.temperature, q.sampling.top_p, q.sampling.min_p = p.temperature, p.top_p, p.min_p
        q.sampling.top_k = p.top_k if 0 < p.top_k < info.vocab else 0
        q.sampling.presence, q.sampling.frequency = p.presence_penalty, p.frequency_penalty
        q.sampling.repetition = p.repetition_penalty
        if p.logprobs is not None:                 # without alternatives no token's own is computed
            q.n_top = max(1, p.logprobs)
        if self.scores:
            q.flags |= PROMPT_LOGPROBS
            q.n_prompt_top = p.prompt_logprobs
        return q

    def _bad_words(self):
        """Each word, and with a space before it if that is as long and begins otherwise."""
        out, encode = [], lambda t: self.llm.session.encode(t, special=True)
        for word in self.params.bad_words or []:
            plain, spaced = encode(word.lstrip()), encode(" " + word.lstrip())
            for ids in [plain] + ([spaced] if len(spaced) == len(plain) and spaced[0] != plain[0] else []):
                out += [len(ids), *ids]
        return out

    def submit(self):
        """False: there is no room now."""
        s = self.llm.session
        if self.guide and not self._guided:
            _check(_text.sr_guided_open(C.byref(self._guided), s._grammar(self.guide), s._text, self.params.min_tokens,
                                        None, 0, None), "guide")
            self._send = slipring._put(lambda _, *r: _ring.sr_guide(s._conn, self.ticket, *r))
        self._request.user_data = s._next
        rc = _ring.sr_submit(s._open(), C.byref(self._request), C.byref(self.ticket))
        if rc in (-EAGAIN, -EBUSY):
            return False
        _check(rc, "submit")
        s._live[s._next] = self
        self._key = s._next
        s._next += 1
        self._guided_step(_text.sr_guided_begin)
        return True

    def _guided_step(self, step, *token):
        if self._guided and not self._guide_error:
            self._guide_error = step(self._guided, *token, self.llm.session._bits, self._send, None)
            if self._guide_error:
                self.cancel()

    def cancel(self):
        s = self.llm.session
        if self.end is None and _ring.sr_cancel(s._open(), self.ticket) == -EAGAIN:
            s._cancels.add(self)                       # the session tries again
        else:
            s._cancels.discard(self)

    def _score(self, token, most):
        """vLLM's entry: the token itself and the most likely ones, by id."""
        out = {token.id: Logprob(token.logprob, token.rank)}
        for i in range(min(token.n_here, most)):
            out.setdefault(token.top[i].id, Logprob(token.top[i].value, i + 1))
        for i, entry in out.items():
            entry.decoded_token = self.llm.session.decode([i], skip_special=False)
        return out

    def _add_text(self, n):
        s, o, p = self.llm.session, self.out, self.params
        if n <= 0:
            return
        old = len(o.text)
        o.text += s._piece.raw[:n].decode()
        if not p.stop or len(o.token_ids) <= p.min_tokens:
            return
        found = [(o.text.find(x, max(0, old - len(x) + 1)), x) for x in p.stop]
        found = min(((at + len(x), at, x) for at, x in found if at >= 0), default=None)
        if found:                                      # the one that is complete first
            o.text = o.text[:found[0] if p.include_stop_str_in_output else found[1]]
            o.finish_reason, o.stop_reason, self._cut = "stop", found[2], True
            self.cancel()

    def visible(self):
        """The text without an end that may still become a stop string."""
        text, p = self.out.text, self.params
        if self.out.finish_reason or p.include_stop_str_in_output:
            return text
        held = max((k for x in p.stop for k in range(1, min(len(x), len(text) + 1)) if text.endswith(x[:k])), default=0)
        return text[:len(text) - held]

    def _token(self, t):
        s, o, p = self.llm.session, self.out, self.params
        o.token_ids.append(t.id)
        if o.logprobs is not None:
            o.logprobs.append(self._score(t, p.logprobs))
            o.cumulative_logprob += t.logprob
        stops = t.last == slipring.STOP
        if stops and (p.ignore_eos or t.id != s._info.eos):
            o.stop_reason = t.id
        if p.detokenize and (not stops or p.include_stop_str_in_output):
            self._add_text(_check(_text.sr_detok_push(C.byref(self._detok), s._text, t.id, s._piece, len(s._piece)),
                                  "token"))
        if not t.last:
            self._guided_step(_text.sr_guided_take, t.id)

    def _put(self, t):
        s, o = self.llm.session, self.out
        if not self.aborted:
            self.llm.changed.add(self)
        if t.kind == slipring.PROMPT:
            self.scores.append(self._score(t, self.params.prompt_logprobs))
        elif t.kind == slipring.TOKEN and not self._cut:
            self._token(t)
        elif t.kind == slipring.END:
            if not self._cut and self.params.detokenize:
                self._add_text(_text.sr_detok_flush(C.byref(self._detok), s._piece, len(s._piece)))
            finish = self._guide_error or t.end.finish
            if not self._cut:
                o.finish_reason = {slipring.STOP: "stop", slipring.LENGTH: "length"}.get(finish, "abort")
                self.error = slipring.Error(-finish, f"request {self.request.request_id}: {os.strerror(-finish)}") \
                    if finish < 0 and not self.aborted else None
            self.end = slipring.EndInfo.from_buffer_copy(t.end)
            del s._live[self._key]
            s._cancels.discard(self)
            self._release()

    aborted = False

    def _release(self):
        if self._guided:
            _text.sr_guided_close(self._guided)
            self._guided, self._send = slipring._P(), None


# ---- a daemon of our own -----------------------------------------------------------------------


def _program(name):
    here = pathlib.Path(__file__).resolve().parent
    for place in filter(None, (os.environ.get("SLIPRING_LIB"), here.parent.parent / "build",
                               here.parent.parent.parent / "sbin", here.parent.parent.parent / "bin")):
        if (pathlib.Path(place) / name).exists():
            return str(pathlib.Path(place) / name)
    path = shutil.which(name)
    if not path:
        raise slipring.Error(ENOENT, f"{name} was not found: put it into PATH, or its directory into SLIPRING_LIB")
    return path


def _flags(flags):
    """Python's names and values as a command line: max_model_len=4096 is --max-model-len 4096."""
    for name, value in flags.items():
        word = name.replace("_", "-")
        if value is True or value is False:
            yield "--" + ("" if value else "no-") + word
        elif value is not None:
            yield from (f"--{word}", json.dumps(value) if isinstance(value, dict) else str(value))


class _Daemon:
    """slipringd in a folder of its own.  It ends with the LLM, and with Python."""

    def __init__(self, model, flags):
        self.dir = tempfile.mkdtemp(prefix="slipring-llm-")
        self.log = os.path.join(self.dir, "log")
        env = dict(os.environ, RUNTIME_DIRECTORY=self.dir)
        env.pop("NOTIFY_SOCKET", None)
        env.pop("LISTEN_FDS", None)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([_program("slipringd"), "--model", model, *_flags(flags)], env=env, stdout=log,
                                            stderr=log, stdin=subprocess.DEVNULL)
        self.socket = os.path.join(self.dir, "slipring.sock")
        atexit.register(self.close)

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()[-2000:].strip()

    def wait(self, connect):
        end = time.monotonic() + START_S
        while True:
            try:
                return connect()
            except slipring.Error as e:
                if self.process.poll() is not None:
                    said = self.said()
                    self.close()
                    raise slipring.Error(e.errno, f"slipringd did not start:\n{said}") from None
                if e.errno not in (ENOENT, ECONNREFUSED, EINTR) or time.monotonic() > end:
                    raise
            time.sleep(0.02)

    def close(self):
        atexit.unregister(self.close)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


# ---- the classes -------------------------------------------------------------------------------


class LLM:
    """model=None: the daemon of `instance` (or at `socket`), which runs.  Else a daemon of its own for that model,
    with vLLM's settings as slipringd has them: max_model_len=4096, max_num_seqs=64, ..; one that it does not
    know is an error with its name."""

    def __init__(self, model=None, *, tokenizer=None, instance="default", socket=None, **flags):
        self._daemon, self.session, self.changed, self._number = None, None, set(), 0
        if model is None:
            if flags:
                raise TypeError(f"{next(iter(flags))} is a setting of the daemon, which runs already; name a model= to start one")
            self.session = slipring.Session(socket, tokenizer, instance, guides=GUIDES, live=LIVE)
        else:
            self._daemon = _Daemon(str(model), flags)
            try:
                self.session = self._daemon.wait(lambda: slipring.Session(self._daemon.socket, tokenizer or str(model),
                                                                          guides=GUIDES, live=LIVE))
            except BaseException:
                self._daemon.close()
                raise

    def close(self):
        if self.session:
            self.session.close()
        if self._daemon:
            self._daemon.close()
        self.session = self._daemon = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def get_default_sampling_params(self):
        """As the daemon has them: of the model's files, and its --generation-config."""
        served = self.session.sampling
        served["repetition_penalty"] = served.pop("repetition")
        longest = slipring._ring.sr_model(self.session._open()).contents.max_tokens
        return SamplingParams(**served, **({"max_tokens": longest} if longest else {}))

    def get_tokenizer(self):
        """The session: encode(), decode() and render()."""
        return self.session

    # -- prompts

    @staticmethod
    def _listed(prompts):
        """One prompt of any form, or several, as a list."""
        one = isinstance(prompts, (str, dict)) or (isinstance(prompts, (list, tuple)) and prompts and
                                                   isinstance(prompts[0], int))
        return [prompts] if one else list(prompts)

    def _prompt(self, what, params, answer=1):
        """(text or None, ids) of one of vLLM's forms of a prompt; answer: tokens that must fit behind it."""
        text = ids = None
        if isinstance(what, str):
            text = what
        elif isinstance(what, dict):
            extra = set(what) - {"prompt", "prompt_token_ids"}
            if extra:
                raise ValueError(f"a prompt with {sorted(extra)[0]}: Slipring reads text and token ids")
            text, ids = what.get("prompt"), what.get("prompt_token_ids")
        else:
            ids = what
        if ids is None:
            ids = self.session.encode(text, special=False) if text is not None else []
        return text, self._fit(list(ids), params, answer)

    def _fit(self, ids, params, answer=1):
        if params.truncate_prompt_tokens is not None:
            k = params.truncate_prompt_tokens
            if k < -1 or k == 0:
                raise ValueError(f"truncate_prompt_tokens must be -1 or at least 1, got {k}")
            k = self.session.context - answer if k == -1 else k
            ids = ids[:k]                              # as the server without truncation_side
        if not ids:
            raise ValueError("The decoder prompt cannot be empty")
        if len(ids) + answer > self.session.context:
            raise ValueError(f"The decoder prompt (length {len(ids)}) is longer than the maximum model length of "
                             f"{self.session.context} leaves room for" +
                             (": at least 1 token of an answer must fit." if answer else "."))
        return ids

    def _tasks(self, text, ids, params, number):
        outputs = [CompletionOutput(i) for i in range(params.n)]
        request = RequestOutput(str(number), text, ids, None, outputs, False)
        guide = params.structured_outputs and params.structured_outputs.guide()
        tasks = [_Task(self, ids, params, o, guide) for o in outputs]
        for t in tasks:
            t.request = request
        return request, tasks

    def _settle(self, request, tasks):
        """Fill in what is known of a request now."""
        first = tasks[0].end
        request.prompt_logprobs = tasks[0].scores
        request.finished = all(t.end for t in tasks)
        if first:
            request.num_cached_tokens = first.cached
            ends = [t.end for t in tasks if t.end]
            request.metrics = {k: f(getattr(e, k) for e in ends) / 1e9
                               for k, f in (("queued", min), ("scheduled", min), ("first", min), ("last", max))}

    def _run(self, requests, use_tqdm):
        waiting = [t for _, tasks in requests for t in tasks][::-1]
        left, bar = set(waiting), None
        if use_tqdm and len(requests) > 1:
            try:
                import tqdm
                bar = (use_tqdm if callable(use_tqdm) else tqdm.tqdm)(total=len(left), desc="Processed prompts")
            except ImportError:
                pass
        try:
            while left:
                while waiting and waiting[-1].submit():
                    waiting.pop()
                self.session._wait()
                over = {t for t in self.changed if t.end}
                self.changed.clear()
                left -= over
                if bar:
                    bar.update(len(over))
                for t in over:
                    if t.error:
                        raise t.error
        except BaseException:
            for t in left:
                if t not in waiting:
                    t.aborted = True
                    t.cancel()
                else:
                    t._release()
            raise
        finally:
            if bar:
                bar.close()
        for request, tasks in requests:
            self._settle(request, tasks)
        return [r for r, _ in requests]

    def _each(self, params, n):
        if params is None:
            params = self.get_default_sampling_params()
        params = list(params) if isinstance(params, (list, tuple)) else [params] * n
        if len(params) != n:
            raise ValueError(f"The lengths of prompts ({n}) and sampling_params ({len(params)}) must be the same.")
        return params

    def _number_next(self):
        self._number += 1
        return self._number - 1

    # -- vLLM's verbs

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True, priority=None):
        """A RequestOutput for each prompt, in their order."""
        prompts = self._listed(prompts)
        params = self._each(sampling_params, len(prompts))
        if priority is not None:
            params = [dataclasses.replace(p, priority=i) for p, i in zip(params, priority, strict=True)]
        with self.session._preparing():
            requests = [self._tasks(*self._prompt(what, p), p, self._number_next()) for what, p in zip(prompts, params)]
        return self._run(requests, use_tqdm)

    def chat(self, messages, sampling_params=None, use_tqdm=True, *, chat_template=None, add_generation_prompt=True,
             continue_final_message=False, tools=None, chat_template_kwargs=None):
        """Answers of one conversation, or of a list of them."""
        if chat_template is not None:
            raise ValueError("chat_template: the model's own is used; render the prompt and call generate()")
        if messages and isinstance(messages[0], dict):
            messages = [messages]
        params = self._each(sampling_params, len(messages))
        context = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        context |= {k: v for k, v in (("tools", tools), ("chat_template_kwargs", chat_template_kwargs)) if v is not None}
        requests = []
        with self.session._preparing():
            for m, p in zip(messages, params):
                text = self.session.render(m, **context)
                ids = self._fit(self.session.encode(text, special=True), p)
                requests.append(self._tasks(text, ids, p, self._number_next()))
        return self._run(requests, use_tqdm)


    def embed(self, prompts, *, use_tqdm=True, pooling_params=None):
        """An EmbeddingRequestOutput for each prompt, in their order; the daemon must have --runner pooling."""
        return [EmbeddingRequestOutput(o.request_id, EmbeddingOutput(o.outputs.data), o.prompt_token_ids)
                for o in self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="embed")]

    def classify(self, prompts, *, pooling_params=None, use_tqdm=True):
        """A ClassificationRequestOutput for each prompt: scores of the model's labels."""
        return [ClassificationRequestOutput(o.request_id, ClassificationOutput(o.outputs.data), o.prompt_token_ids)
                for o in self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="classify")]

    def encode(self, prompts, pooling_params=None, *, use_tqdm=True, pooling_task=None):
        """A PoolingRequestOutput for each prompt; pooling_task: embed or classify."""
        p, labels = pooling_params or PoolingParams(), self.session._info.n_labels
        if pooling_task not in ("embed", "classify"):
            raise ValueError("pooling_task required for `LLM.encode`: embed or classify" if pooling_task is None else
                             f"Unsupported task: {pooling_task!r} Supported tasks: ({'classify' if labels else 'embed'!r},)")
        if pooling_task == "embed" and labels:
            raise ValueError("Embedding API is not supported by this model.")
        if pooling_task == "classify" and not labels:
            raise ValueError("Classification API is not supported by this model.")
        if labels and p.dimensions:
            raise ValueError("dimensions: a classifier answers all of its labels")
        with self.session._preparing():
            ids = [self._prompt(what, p, answer=0)[1] for what in self._listed(prompts)]
        vectors = (self.session.classify(ids, activation=p.use_activation is not False) if labels else
                   self.session.embed(ids, dimensions=p.dimensions or 0, unit=p.use_activation))
        return [PoolingRequestOutput(str(self._number_next()), PoolingOutput(v), i) for v, i in zip(vectors, ids)]

    def score(self, data_1, data_2, /, *, use_tqdm=True, pooling_params=None):
        """A ScoringRequestOutput for each pair of texts, 1:1, 1:N or N:N: a cross-encoder's, or the cosine of both
        vectors."""
        p, info = pooling_params or PoolingParams(), self.session._info
        one, two = ([d] if isinstance(d, str) else list(d) for d in (data_1, data_2))
        if not one or not two:
            raise ValueError("At least one text element must be given")
        if len(one) not in (1, len(two)):
            raise ValueError("Input lengths must be either 1:1, 1:N or N:N")
        if info.n_labels > 1:
            raise ValueError("Scoring API is only enabled for num_labels == 1.")
        if not info.n_labels:
            return self._cosines(one, two, p)
        most = p.truncate_prompt_tokens or 0
        most = self.session.context if most == -1 else most
        with self.session._preparing():
            prompts = [self.session.encode_pair(a, b, most) for a, b in zip(one * len(two) if len(one) == 1 else one, two)]
        for ids, _ in prompts:
            self._fit(ids, PoolingParams(), answer=0)
        logits = self.session._vectors(prompts, slipring.Pooling(info.pooling, 0, 0), 0)
        scores = logits if p.use_activation is False else [slipring._activated(v, info.activation) for v in logits]
        return [ScoringRequestOutput(str(self._number_next()), ScoringOutput(v[0]), ids) for v, (ids, _) in zip(scores, prompts)]

    def _cosines(self, one, two, params):
        outs = self.encode(one + two, dataclasses.replace(params, use_activation=True), pooling_task="embed")
        firsts, seconds = outs[:len(one)], outs[len(one):]
        firsts = firsts * len(seconds) if len(one) == 1 else firsts
        return [ScoringRequestOutput(f"{a.request_id}_{b.request_id}",
                                     ScoringOutput(sum(x * y for x, y in zip(a.outputs.data, b.outputs.data))),
                                     a.prompt_token_ids + b.prompt_token_ids) for a, b in zip(firsts, seconds)]


class AsyncLLM(LLM):
    """The same in an event loop: any number of generate() at once, each yielding as its tokens come."""

    async def generate(self, prompt, sampling_params=None, request_id=None):
        """RequestOutputs, cumulative by default; the last one has finished."""
        params = self._each(sampling_params, 1)[0]
        text, ids = self._prompt(prompt, params)
        request, tasks = self._tasks(text, ids, params, self._number_next() if request_id is None else request_id)
        waiting, seen, delta = tasks[::-1], [(0, 0, False)] * len(tasks), params.output_kind == RequestOutputKind.DELTA
        shown = [(0, 0)] * len(tasks)
        try:
            while not request.finished:
                while waiting and waiting[-1].submit():
                    waiting.pop()
                if waiting:                            # for room, of which no token tells
                    await asyncio.sleep(slipring.RETRY_MS / 1000)
                    self.session._take()
                else:
                    await self.session._wait_async()
                for t in tasks:
                    if t.error:
                        raise t.error
                self._settle(request, tasks)
                now = [(len(t.visible()), len(t.out.token_ids), t.end is not None) for t in tasks]
                if now == seen or (params.output_kind == RequestOutputKind.FINAL_ONLY and not request.finished):
                    continue
                seen = now
                outputs = [dataclasses.replace(t.out, text=t.visible(), token_ids=list(t.out.token_ids)) for t in tasks]
                if delta:
                    for o, (a, b) in zip(outputs, shown):
                        o.text, o.token_ids = o.text[a:], o.token_ids[b:]
                    shown = [(a, b) for a, b, _ in now]
                yield dataclasses.replace(request, outputs=outputs)
        finally:
            self.changed.difference_update(tasks)
            for t in tasks:
                if t in waiting:
                    t._release()
                elif not t.end and self.session:
                    t.aborted = True
                    t.cancel()
