"""Slipring from Python: text in, text out, over the shared-memory rings.

    import slipring

    with slipring.open() as s:                       # the default daemon and its model
        for text in s.generate("The capital of Switzerland is", max_tokens=16):
            print(text, end="", flush=True)
        print(s.chat([{"role": "user", "content": "Hi!"}], max_tokens=64).text())

    async for text in s.generate(...): ...           # the same, in an event loop

    s.chat(messages, guide=Person).value()           # a dataclass or pydantic model: an instance of it
    s.generate(text, guide=slipring.regex("[0-9]+")) # also a JSON schema, a list of choices, grammar(), tag()

One module over libslipring.so and libslipring-text.so by ctypes; they are looked for in the
directory SLIPRING_LIB, beside this file, in a build/ or lib/ above it, and on the system.  A
session carries any number of answers at once, and belongs to one thread.
"""
import array
import asyncio
import collections
import contextlib
import ctypes as C
import dataclasses
import enum
import json
import logging
import math
import os
import pathlib
import re
import stat
import time
import types
import typing
from errno import EAGAIN, EBADF, EBUSY, ECONNREFUSED, ECONNRESET, EINTR, EINVAL, ENOENT, ENOTSUP, EPERM, ETIMEDOUT

__all__ = ["open", "Session", "Answer", "Error", "Guide", "regex", "grammar", "tag", "schema_of"]

TOKEN, TOP, PROMPT, END = 1, 2, 3, 4
STOP, LENGTH = 1, 2
SEEDED, IGNORE_EOS, GUIDED, POOLED = 1, 2, 16, 32
POOLS = {"last": 1, "mean": 2, "first": 3, "cls": 3, "logits": 4}
BITS, ONLY, IS, FREE = range(4)                           # kinds of guides
WAIT_TOKENS, WAIT_ROOM = 1, 2
VECTORS = 64                                              # most pooled requests of a session at once
RETRY_MS = 10                                             # a cancel that found its ring full
WAIT_S = 10                                               # a daemon that does not answer is asked again so long
RETRIED = (-ETIMEDOUT, -ECONNRESET)
PREPARING = 0
SPECIAL_ADD, SPECIAL_PARSE = 1, 2
JSON, REGEX, CHOICE, EBNF, TAGS = range(5)                # kinds of grammars
GRAMMARS = 64                                             # compiled ones that a session keeps


class Error(OSError):
    """What the daemon, the libraries or the model's files refused; errno says why."""


# ---- the two libraries ------------------------------------------------------------------------


class Options(C.Structure):
    _fields_ = [("size", C.c_uint32), ("spin_us", C.c_uint32), ("live", C.c_uint32),
                ("tokens", C.c_uint32), ("arena", C.c_uint32), ("name", C.c_char * 32), ("guides", C.c_uint32),
                ("vectors", C.c_uint32), ("timeout_ms", C.c_uint32)]


class Sampling(C.Structure):
    _fields_ = [("seed", C.c_uint64), ("temperature", C.c_float), ("top_p", C.c_float), ("min_p", C.c_float),
                ("top_k", C.c_int32), ("presence", C.c_float), ("frequency", C.c_float), ("repetition", C.c_float),
                ("min_position", C.c_int32)]


class ModelInfo(C.Structure):
    _fields_ = [("name", C.c_char * 64), ("vocab_hash", C.c_uint8 * 32), ("epoch", C.c_uint64),
                ("vocab", C.c_uint32), ("context", C.c_uint32), ("live", C.c_uint32),
                ("tokens", C.c_uint32), ("arena", C.c_uint32), ("flags", C.c_uint32), ("guides", C.c_uint32),
                ("vectors", C.c_uint32), ("width", C.c_uint32), ("answers", C.c_uint32),
                ("sampling", Sampling), ("max_tokens", C.c_uint32), ("padding", C.c_uint32)]


class Pair(C.Structure):
    _fields_ = [("id", C.c_int32), ("value", C.c_float)]


_SAMPLING = [name for name, _ in Sampling._fields_ if name != "min_position"]


class Pooling(C.Structure):
    _fields_ = [("kind", C.c_uint32), ("width", C.c_uint32), ("unit", C.c_uint32)]


class Request(C.Structure):
    _fields_ = [("size", C.c_uint32), ("flags", C.c_uint32), ("user_data", C.c_uint64),
                ("prompt", C.POINTER(C.c_int32)), ("n_prompt", C.c_uint32), ("max_tokens", C.c_uint32),
                ("min_tokens", C.c_uint32), ("priority", C.c_int32), ("deadline", C.c_uint64),
                ("sampling", Sampling), ("n_top", C.c_uint32), ("n_prompt_top", C.c_uint32),
                ("stop", C.POINTER(C.c_int32)), ("allow", C.POINTER(C.c_int32)), ("bias", C.POINTER(Pair)),
                ("bad", C.POINTER(C.c_int32)), ("n_stop", C.c_uint32), ("n_allow", C.c_uint32),
                ("n_bias", C.c_uint32), ("n_bad", C.c_uint32), ("cache_salt", C.c_uint64), ("tenant", C.c_uint64),
                ("trace_id", C.c_uint8 * 16), ("span_id", C.c_uint8 * 8),
                ("pooling", Pooling), ("padding", C.c_uint32), ("n_answer", C.c_uint32), ("name", C.c_uint64),
                ("second", C.c_uint32), ("padding2", C.c_uint32)]


class EndInfo(C.Structure):
    _fields_ = [("finish", C.c_int32), ("n_tokens", C.c_uint32), ("computed", C.c_uint32), ("cached", C.c_uint32),
                ("queued", C.c_uint64), ("scheduled", C.c_uint64), ("first", C.c_uint64), ("last", C.c_uint64)]


class Token(C.Structure):
    _fields_ = [("user_data", C.c_uint64), ("kind", C.c_uint32), ("id", C.c_int32), ("index", C.c_uint32),
                ("rank", C.c_uint32), ("logprob", C.c_float), ("n_top", C.c_uint32), ("n_here", C.c_uint32),
                ("last", C.c_uint32), ("top", Pair * 20), ("end", EndInfo), ("place", C.c_uint32)]


class TextInfo(C.Structure):
    _fields_ = [("vocab", C.c_int32), ("bos", C.c_int32), ("eos", C.c_int32), ("stop", C.c_int32 * 8),
                ("n_stop", C.c_int32), ("add_bos", C.c_bool), ("vocab_hash", C.c_uint8 * 32),
                ("chat_template", C.c_char_p), ("pre", C.c_char_p), ("pooling", C.c_int32), ("unit", C.c_bool),
                ("n_labels", C.c_int32), ("activation", C.c_int32)]


class Detok(C.Structure):
    _fields_ = [("held", C.c_uint8 * 8), ("n_held", C.c_uint32), ("skip_special", C.c_bool), ("started", C.c_bool)]


def _load(name, major):
    here = pathlib.Path(__file__).resolve().parent   # adapters/python, or PREFIX/share/slipring/python
    places = [os.environ.get("SLIPRING_LIB"), here, here.parent.parent / "build", here.parent.parent.parent / "lib"]
    for place in filter(None, places):
        path = pathlib.Path(place) / name
        if path.exists():
            return C.CDLL(str(path))
    try:
        return C.CDLL(f"{name}.{major}")
    except OSError:
        raise Error(ENOENT, f"{name} was not found: set SLIPRING_LIB to its directory") from None


def _declare(lib, table):
    for name, result, arguments in table:
        f = getattr(lib, name)
        f.restype, f.argtypes = result, arguments
    return lib


_P, _int, _i64, _size = C.c_void_p, C.c_int, C.c_int64, C.c_size_t
_put = C.CFUNCTYPE(_int, _P, C.c_uint32, C.c_uint32, C.POINTER(C.c_int32), C.c_uint32, C.POINTER(C.c_uint32))
_ring = _declare(_load("libslipring.so", 1), [
    ("sr_open", _int, [C.POINTER(_P), C.c_char_p, C.POINTER(Options)]), ("sr_close", None, [_P]),
    ("sr_model", C.POINTER(ModelInfo), [_P]),
    ("sr_submit", _int, [_P, C.POINTER(Request), C.POINTER(C.c_uint32)]), ("sr_cancel", _int, [_P, C.c_uint32]),
    ("sr_guide", _int, [_P, C.c_uint32, C.c_uint32, C.c_uint32, C.POINTER(C.c_int32), C.c_uint32,
                        C.POINTER(C.c_uint32)]),
    ("sr_next", _int, [_P, C.POINTER(Token)]), ("sr_wait", _int, [_P, _int, _int]),
    ("sr_vector", _int, [_P, C.c_uint32, C.POINTER(C.c_float), C.c_uint32]),
    ("sr_arm", _int, [_P, _int]), ("sr_fd", _int, [_P]), ("sr_doing", None, [_P, _int, _int]),
])
_text = _declare(_load("libslipring-text.so", 0), [
    ("sr_text_open", _int, [C.POINTER(_P), C.c_char_p, C.c_char_p, _size]), ("sr_text_close", None, [_P]),
    ("sr_text_info", C.POINTER(TextInfo), [_P]),
    ("sr_text_encode", _i64, [_P, C.c_char_p, _size, _int, C.POINTER(C.c_int32), _size, _size]),
    ("sr_text_encode_pair", _i64, [_P, C.c_char_p, _size, C.c_char_p, _size, _int, _size, C.POINTER(C.c_int32), _size,
                                   C.POINTER(C.c_uint32)]),
    ("sr_text_decode", _i64, [_P, C.POINTER(C.c_int32), _size, C.c_bool, C.c_char_p, _size]),
    ("sr_text_chat", _i64, [_P, C.c_char_p, C.c_char_p, C.POINTER(_P), C.c_char_p, _size]),
    ("sr_detok_init", None, [C.POINTER(Detok), C.c_bool]),
    ("sr_detok_push", _int, [C.POINTER(Detok), _P, C.c_int32, C.c_char_p, _size]),
    ("sr_detok_flush", _int, [C.POINTER(Detok), C.c_char_p, _size]), ("sr_text_longest", _size, [_P]),
    ("sr_grammar_open", _int, [C.POINTER(_P), _P, _int, C.c_char_p, _size, _P, C.c_char_p, _size]),
    ("sr_grammar_close", None, [_P]),
    ("sr_guided_open", _int, [C.POINTER(_P), _P, _P, C.c_uint32, C.POINTER(C.c_int32), C.c_uint32, _P]),
    ("sr_guided_close", None, [_P]), ("sr_guided_begin", _int, [_P, C.POINTER(C.c_uint32), _put, _P]),
    ("sr_guided_take", _int, [_P, C.c_int32, C.POINTER(C.c_uint32), _put, _P]),
])
_libc = _declare(C.CDLL(None), [("free", None, [_P])])


def _check(rc, what):
    if rc < 0:
        raise Error(-rc, f"{what}: {os.strerror(-rc)}")
    return rc


def _ids(ids):
    """Ids for C; one that does not fit 32 bits is an OverflowError, not another id."""
    a = array.array("i", list(ids))                  # of bytes, array would take the memory
    return (C.c_int32 * len(a)).from_buffer(a) if a else (C.c_int32 * 1)()


def _activated(logits, kind):
    """Scores of labels, as floats of 32 bits: sr_text_info.activation."""
    most = max(logits)
    total = sum(math.exp(x - most) for x in logits)
    score = {0: lambda x: math.exp(x - most) / total, 1: lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
             2: math.tanh, 3: lambda x: x}[kind]
    return [C.c_float(score(x)).value for x in logits]


# ---- a session --------------------------------------------------------------------------------


class _Vector:
    """A pooled request; Session.embed() waits for its result."""

    def __init__(self, session, request):
        self._session, self._request, self.result = session, request, None

    def submit(self):
        """False: there is no room or no free place now."""
        s = self._session
        self._request.user_data = s._next
        rc = _ring.sr_submit(s._open(), C.byref(self._request), None)
        if rc in (-EAGAIN, -EBUSY):
            return False
        _check(rc, "submit")
        s._live[s._next] = self
        s._next += 1
        return True

    def _put(self, token):
        n = token.end.n_tokens
        out = (C.c_float * n)()
        _check(_ring.sr_vector(self._session._conn, token.place, out, n), "vector")
        del self._session._live[token.user_data]
        finish = token.end.finish
        self.result = list(out) if finish > 0 else Error(-finish, f"embed: {os.strerror(-finish)}")

    def _release(self):
        self.result = self.result or Error(EBADF, "the session is closed")


class Session:
    """A connection to the daemon and the text side of the model that it serves."""

    def __init__(self, socket=None, model=None, instance="default", guides=8, live=0):
        self._conn, self._text = _P(), _P()
        self._grammars = collections.OrderedDict()        # (kind, source) to a compiled grammar
        self._live, self._next = {}, 1
        self._cancels = set()                             # answers whose cancel found its ring full
        self._loop, self._wakers = None, []
        path = socket or os.environ.get("SLIPRING_SOCKET") or _socket_of(instance)
        options = Options(size=C.sizeof(Options), name=b"python", guides=(guides + 7) // 8 * 8,
                          vectors=VECTORS, live=live)
        rc = self._connect(path, options)
        _check(rc, f"{path} (no daemon? slipring serve starts one)" if rc in (-ENOENT, -ECONNREFUSED) else path)
        try:
            self._open_text(model or os.environ.get("SLIPRING_MODEL"))
        except BaseException:
            self.close()
            raise

    def _connect(self, path, options):
        """sr_open() that bears a busy machine: a daemon that does not answer is asked again for WAIT_S."""
        until, said = time.monotonic() + WAIT_S, False
        options.timeout_ms = 1000
        while (rc := _ring.sr_open(C.byref(self._conn), os.fsencode(path), C.byref(options))) in RETRIED:
            if not said:
                logging.getLogger("slipring").warning("%s: the daemon does not answer yet; trying again for %d s",
                                                      path, WAIT_S)
            said = True
            time.sleep(.1)
            left = until - time.monotonic()
            if left <= 0:
                break
            options.timeout_ms = int(left * 1000) + 1
        return rc

    def _open(self):
        """The connection, or an Error: the libraries do not look what they are given."""
        if not self._conn:
            raise Error(EBADF, "the session is closed")
        return self._conn

    def _open_text(self, model):
        """The tokenizer: of the model that is named, else the default one."""
        model, err = model or _default_model(), C.create_string_buffer(600)
        rc = _text.sr_text_open(C.byref(self._text), os.fsencode(model), err, len(err))
        if rc < 0:
            raise Error(-rc, err.value.decode())
        self._info = _text.sr_text_info(self._text).contents
        if bytes(self._info.vocab_hash) != bytes(_ring.sr_model(self._conn).contents.vocab_hash):
            raise Error(EINVAL, f"the daemon serves {self.model}, whose vocabulary is not that of {model}: "
                            "name its file or directory as model=, or in SLIPRING_MODEL")
        self._piece = C.create_string_buffer(_text.sr_text_longest(self._text) + 16)
        self._bits = (C.c_uint32 * ((self._info.vocab + 31) // 32))()

    @property
    def model(self):
        return _ring.sr_model(self._open()).contents.name.decode()

    @property
    def context(self):
        return _ring.sr_model(self._open()).contents.context

    @property
    def sampling(self):
        """How tokens are drawn for a request that does not say, as generate() and chat() take it."""
        served = _ring.sr_model(self._open()).contents.sampling
        return {name: float(f"{getattr(served, name):.7g}") if kind is C.c_float else getattr(served, name)
                for name, kind in Sampling._fields_ if name in ("temperature", "top_p", "min_p", "top_k", "repetition")}

    def close(self):
        if self._loop:
            self._loop.remove_reader(_ring.sr_fd(self._conn))
            self._loop = None
        if self._conn:
            _ring.sr_close(self._conn)
        for answer in self._live.values():
            answer._release()
        while self._grammars:
            _text.sr_grammar_close(self._grammars.popitem()[1])
        if self._text:
            _text.sr_text_close(self._text)
        self._conn, self._text = _P(), _P()
        self._wake()                                  # who waits for an answer finds it closed

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # -- text

    def encode(self, text, special=False):
        """Text to ids; with special, spellings of control tokens become those tokens."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text)
        flags = SPECIAL_PARSE if special else SPECIAL_ADD
        self._open()
        ids = (C.c_int32 * (len(raw) + 8))()
        n = _check(_text.sr_text_encode(self._text, raw, len(raw), flags, ids, len(ids), 0), "encode")
        return list(ids[:n])

    def encode_pair(self, a, b, most=0):
        """Two texts to the ids of one prompt, as the model's tokenizer pairs them, and the position from which they are
        of the second type (0: none).  most: so many ids at most; the longer text is cut first."""
        a, b = (t.encode("utf-8", "replace") if isinstance(t, str) else bytes(t) for t in (a, b))
        self._open()
        ids, second = (C.c_int32 * (len(a) + len(b) + 16))(), C.c_uint32()
        n = _check(_text.sr_text_encode_pair(self._text, a, len(a), b, len(b), SPECIAL_PARSE, most, ids, len(ids),
                                             C.byref(second)), "a pair of texts")
        return list(ids[:n]), second.value if second.value < n else 0

    def decode(self, ids, skip_special=True):
        self._open()
        ids = list(ids)
        a = _ids(ids)
        n = _check(_text.sr_text_decode(self._text, a, len(ids), skip_special, None, 0), "decode")
        out = C.create_string_buffer(n + 1)
        _text.sr_text_decode(self._text, a, len(ids), skip_special, out, n)
        return out.raw[:n].decode()

    def render(self, messages, **context):
        """The prompt that the model's chat template makes of messages, as slipring-http makes it.

        context: tools, documents, reasoning_effort, add_generation_prompt (True), continue_final_message,
        chat_template_kwargs, as in OpenAI's API with vLLM's extensions; any other name is a variable.
        """
        context = {"messages": messages, **context}
        self._open()
        err, out = C.create_string_buffer(1200), _P()
        n = _text.sr_text_chat(self._text, None, json.dumps(context).encode(), C.byref(out), err, len(err))
        if n < 0:
            raise Error(-n, err.value.decode())
        text = C.string_at(out, n).decode()
        _libc.free(out)
        return text

    # -- asking

    def generate(self, prompt, **sampling):
        """Continue prompt (text or ids): an Answer, to be iterated over with for or async for.

        sampling: max_tokens (128), temperature, top_p, top_k, min_p, seed, presence, frequency, repetition (what is
        not given of these: .sampling), min_tokens, priority, ignore_eos, n_top; and guide, what the answer keeps to: a JSON
        schema (dict), a dataclass or pydantic model, a list of strings to choose from, or a Guide.
        """
        with self._preparing():
            ids = self.encode(prompt) if isinstance(prompt, (str, bytes, bytearray, memoryview)) else list(prompt)
            return Answer(self, ids, sampling)

    def chat(self, messages, template=None, **sampling):
        """Answer a conversation; template: what else render() takes."""
        with self._preparing():
            return Answer(self, self.encode(self.render(messages, **(template or {})), special=True), sampling)

    @contextlib.contextmanager
    def _preparing(self):
        """Let `slipring why` know what the daemon waits for."""
        _ring.sr_doing(self._open(), PREPARING, 1)
        try:
            yield
        finally:
            if self._conn:
                _ring.sr_doing(self._conn, PREPARING, -1)

    def _grammar(self, guide):
        """The compiled grammar of a Guide."""
        if not _ring.sr_model(self._open()).contents.guides:
            raise Error(ENOTSUP, "no guides were granted: open the session with guides=")
        key = guide.kind, guide.source
        if key not in self._grammars:
            g, err = _P(), C.create_string_buffer(900)
            rc = _text.sr_grammar_open(C.byref(g), self._text, guide.kind, guide.source, len(guide.source), None, err,
                                       len(err))
            if rc < 0:
                raise Error(-rc, err.value.decode(errors="replace"))
            self._grammars[key] = g
            if len(self._grammars) > GRAMMARS:            # answers under way hold theirs
                _text.sr_grammar_close(self._grammars.popitem(last=False)[1])
        self._grammars.move_to_end(key)
        return self._grammars[key]

    def _submit(self, answer, ids, sampling):
        q = Request(size=C.sizeof(Request), user_data=self._next, n_prompt=len(ids),
                    prompt=_ids(ids))
        sampling = dict(sampling)
        q.max_tokens = sampling.pop("max_tokens", 128)
        guide = Guide.of(sampling.pop("guide", None))
        ignore_eos = sampling.pop("ignore_eos", False)
        if guide:                                         # a complete grammar ends the answer
            q.flags |= GUIDED
        if ignore_eos and not guide:
            q.flags |= IGNORE_EOS
        else:
            q.n_stop = self._info.n_stop
            q.stop = self._info.stop
        if sampling.get("seed") is not None:
            q.flags |= SEEDED
        q.sampling = _ring.sr_model(self._open()).contents.sampling
        for struct, names in (q.sampling, _SAMPLING), (q, ("min_tokens", "priority", "n_top")):
            for name in names:
                value = sampling.pop(name, None)
                if value is not None:
                    setattr(struct, name, value)
        if sampling:
            raise TypeError(f"unknown option {next(iter(sampling))!r}")
        if q.sampling.temperature == 0:                   # greedy: these cut nothing
            q.sampling.top_p = q.sampling.min_p = q.sampling.top_k = 0
        if guide:
            answer._guide(guide, self._grammar(guide), q.min_tokens)
            q.min_tokens = 0                              # the guide sees to it
        ticket = C.c_uint32()
        while (rc := _ring.sr_submit(self._open(), C.byref(q), C.byref(ticket))) == -EAGAIN:
            self._sleep(WAIT_ROOM, -1)
        _check(rc, "submit")
        answer._key, answer._ticket = self._next, ticket.value
        self._live[self._next] = answer
        self._next += 1
        answer._guided_step(_text.sr_guided_begin)

    def embed(self, inputs, pooling=None, dimensions=0, unit=None, priority=0):
        """Vectors of texts or lists of ids, a list of floats each, in their order; of one text, one.

        The daemon must make vectors (--runner pooling).  pooling: last, mean, first; unit: of length 1.  Without
        them it is as the model's files say, else the last token's vector, of length 1.  dimensions: the first
        elements.
        """
        if isinstance(inputs, (str, bytes)):
            return self.embed([inputs], pooling, dimensions, unit, priority)[0]
        if not _ring.sr_model(self._open()).contents.vectors:
            raise Error(ENOTSUP, "the daemon makes no vectors: start it with --runner pooling")
        if self._info.n_labels:
            raise Error(ENOTSUP, "the model classifies: it makes no vectors, see classify()")
        kind = POOLS.get(pooling) if pooling else self._info.pooling or POOLS["last"]
        if kind in (None, POOLS["logits"]):
            raise TypeError(f"pooling must be last, mean or first, not {pooling!r}" if pooling else
                            "the model ranks: it makes no vectors")
        if unit is None:
            unit = self._info.unit if self._info.pooling else True
        prompts = [(self.encode(t) if isinstance(t, (str, bytes)) else list(t), 0) for t in inputs]
        return self._vectors(prompts, Pooling(kind, dimensions, bool(unit)), priority)

    def classify(self, inputs, activation=True, priority=0):
        """Scores of the model's labels, a list of floats each, for texts, pairs of texts (tuples) or lists of ids, in
        their order; of one text or pair, one.  activation False: the logits."""
        if isinstance(inputs, (str, bytes, tuple)):
            return self.classify([inputs], activation, priority)[0]
        if not self._info.n_labels:
            raise Error(ENOTSUP, "the model has no classifier")
        prompts = [self.encode_pair(*t) if isinstance(t, tuple) else
                   (self.encode(t) if isinstance(t, (str, bytes)) else list(t), 0) for t in inputs]
        logits = self._vectors(prompts, Pooling(self._info.pooling, 0, 0), priority)
        return [_activated(v, self._info.activation) for v in logits] if activation else logits

    def _vectors(self, prompts, pooling, priority):
        """A vector for each (ids, where the second text begins)."""
        jobs, waiting = [], []
        for ids, second in prompts:
            q = Request(size=C.sizeof(Request), flags=POOLED, n_prompt=len(ids), prompt=_ids(ids), priority=priority,
                        second=second)
            q.pooling = pooling
            jobs.append(_Vector(self, q))
            waiting.append(jobs[-1])
        while waiting or any(j.result is None for j in jobs):
            while waiting and waiting[0].submit():
                waiting.pop(0)
            self._wait()
        for j in jobs:
            if isinstance(j.result, Exception):
                raise j.result
        return [j.result for j in jobs]

    def _take(self):
        """Hand what is in the ring to the answers; how many tokens that were."""
        n = 0
        token = Token()
        for answer in list(self._cancels):
            answer.cancel()
        while _check(_ring.sr_next(self._open(), C.byref(token)), "the daemon"):
            n += 1
            answer = self._live.get(token.user_data)
            if answer:
                answer._put(token)
        return n

    def _sleep(self, what, timeout_ms):
        """A signal ends it, too: its handler has run by then, and whoever asked looks again."""
        rc = _ring.sr_wait(self._open(), what, timeout_ms)
        if rc != -EINTR:
            _check(rc, "wait")

    def _wait(self):
        if not self._take():
            self._sleep(WAIT_TOKENS, RETRY_MS if self._cancels else 1000)
            self._take()

    async def _wait_async(self):
        if self._take():
            self._wake()
            return
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop:
                self._loop.remove_reader(_ring.sr_fd(self._conn))
            loop.add_reader(_ring.sr_fd(self._conn), self._readable)
            self._loop = loop
        waker = loop.create_future()
        self._wakers.append(waker)
        if self._cancels:
            loop.call_later(RETRY_MS / 1000, self._readable)
        if _check(_ring.sr_arm(self._conn, WAIT_TOKENS), "arm"):
            self._readable()
        await waker

    def _readable(self):
        try:
            self._take()
            # the library reads the wake-up byte; without this the loop would find it again and again
            while _check(_ring.sr_arm(self._conn, WAIT_TOKENS), "arm"):
                self._take()
        except Error:
            pass                                      # whoever wakes up meets it again
        self._wake()

    def _wake(self):
        wakers, self._wakers = self._wakers, []
        for w in wakers:
            if not w.done():
                w.set_result(None)


# ---- what an answer keeps to --------------------------------------------------------------------


class Guide:
    """A grammar by its kind and source; made by regex(), grammar(), tag(), or from what guide= takes."""

    def __init__(self, kind, source, make=None):
        self.kind, self.make = kind, make or (json.loads if kind == JSON else str)
        self.source = source if isinstance(source, bytes) else source.encode()

    @classmethod
    def of(cls, what):
        if what is None or isinstance(what, Guide):
            return what
        if isinstance(what, (dict, bool)):
            return cls(JSON, json.dumps(what))
        if isinstance(what, (list, tuple)):
            return cls(CHOICE, json.dumps(list(what)))
        if hasattr(what, "model_validate_json"):          # pydantic
            return cls(JSON, json.dumps(what.model_json_schema()), what.model_validate_json)
        if isinstance(what, type) and dataclasses.is_dataclass(what):
            return cls(JSON, json.dumps(schema_of(what)), lambda text: _made(what, json.loads(text)))
        raise TypeError(f"guide: a schema, a dataclass, a pydantic model, a list or a Guide, not {what!r}")


def regex(pattern):
    """The answer matches the pattern (ECMA-262) as a whole."""
    return Guide(REGEX, pattern)


def grammar(text):
    """The answer keeps to a grammar: GBNF, or Lark if it has no ::= in it."""
    return Guide(EBNF, text)


def tag(structural_tag):
    """The answer keeps to a structural tag, a dict as vLLM and xgrammar take it."""
    return Guide(TAGS, json.dumps(structural_tag))


_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def schema_of(t):
    """The JSON schema of a dataclass, or of a type of its fields."""
    origin, args = typing.get_origin(t), typing.get_args(t)
    if t in _SIMPLE:
        return {"type": _SIMPLE[t]}
    if origin is typing.Literal:
        return {"enum": list(args)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(a) for a in args]}
    if origin is list and args:
        return {"type": "array", "items": schema_of(args[0])}
    if origin is dict and args and args[0] is str:
        return {"type": "object", "additionalProperties": schema_of(args[1])}
    if isinstance(t, type) and issubclass(t, enum.Enum):
        return {"enum": [e.value for e in t]}
    if isinstance(t, type) and dataclasses.is_dataclass(t):
        hints, fields = typing.get_type_hints(t), [f for f in dataclasses.fields(t) if f.init]
        return {"type": "object", "properties": {f.name: schema_of(hints[f.name]) for f in fields},
                "required": [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING],
                "additionalProperties": False}
    raise TypeError(f"{t!r} has no JSON schema here; give guide= the schema itself")


def _fits(t, v):
    """Is the JSON value v one of type t?  Enough to tell the members of a union apart."""
    origin, args = typing.get_origin(t), typing.get_args(t)
    if origin is typing.Literal:
        return v in args
    if isinstance(t, type) and issubclass(t, enum.Enum):
        return v in [e.value for e in t]
    if isinstance(t, type) and dataclasses.is_dataclass(t):
        s = schema_of(t)
        return isinstance(v, dict) and set(s["required"]) <= set(v) <= set(s["properties"])
    if t is float:
        return isinstance(v, (int, float)) and not isinstance(v, bool)
    return isinstance(v, origin or t) and not (t is int and isinstance(v, bool))


def _made(t, v):
    """An instance of t from a JSON value that keeps to its schema."""
    origin, args = typing.get_origin(t), typing.get_args(t)
    if origin in (typing.Union, types.UnionType):
        return _made(next(a for a in args if _fits(a, v)), v)
    if origin is list:
        return [_made(args[0], x) for x in v]
    if origin is dict:
        return {k: _made(args[1], x) for k, x in v.items()}
    if isinstance(t, type) and dataclasses.is_dataclass(t):
        hints = typing.get_type_hints(t)
        return t(**{k: _made(hints[k], x) for k, x in v.items()})
    if isinstance(t, type) and issubclass(t, enum.Enum) or t in (int, float):
        return t(v)
    return v


# ---- an answer ----------------------------------------------------------------------------------


class Answer:
    """One answer under way: iterate for its pieces of text, or take text() whole.

    When it is over: finish ("stop", "length", or the name of an error), ids, n_tokens, cached.
    """

    def __init__(self, session, prompt, sampling):
        self.ids, self.finish, self.end, self.logprobs = [], None, None, []
        self.prompt_tokens = len(prompt)
        self._session, self._pieces, self._detok = session, collections.deque(), Detok()
        self._guided, self._make, self._error = _P(), None, 0
        self._whole = []                                  # guided: all pieces, for value()
        _text.sr_detok_init(C.byref(self._detok), True)
        self._detok.started = True      # an answer goes on with its prompt
        try:
            session._submit(self, prompt, sampling)
        except BaseException:
            self._release()
            raise

    def _guide(self, guide, compiled, min_tokens):
        """Before it is submitted."""
        self._make = guide.make
        _check(_text.sr_guided_open(C.byref(self._guided), compiled, self._session._text, min_tokens, None, 0, None),
               "guide")
        self._send = _put(lambda _, *record: _ring.sr_guide(self._session._conn, self._ticket, *record))

    def _guided_step(self, step, *token):
        """Tell the daemon what may come next."""
        if self._guided and not self._error:
            self._error = step(self._guided, *token, self._session._bits, self._send, None)
            if self._error:
                self.cancel()

    def _release(self):
        if self._guided:
            _text.sr_guided_close(self._guided)
            self._guided, self._send = _P(), None

    def _put(self, token):
        s = self._session
        if token.kind == TOKEN:
            self.ids.append(token.id)
            self.logprobs.append(token.logprob)
            n = _check(_text.sr_detok_push(C.byref(self._detok), s._text, token.id, s._piece, len(s._piece)), "token")
            if not token.last:
                self._guided_step(_text.sr_guided_take, token.id)
        elif token.kind == END:
            n = _text.sr_detok_flush(C.byref(self._detok), s._piece, len(s._piece))
            finish = self._error or token.end.finish
            self._release()
            self.finish = {STOP: "stop", LENGTH: "length"}.get(finish) or os.strerror(-finish)
            self.end = EndInfo.from_buffer_copy(token.end)
            del s._live[self._key]
            s._cancels.discard(self)
        else:
            return
        if n > 0:
            piece = s._piece.raw[:n].decode()
            self._pieces.append(piece)
            if self._make:
                self._whole.append(piece)

    @property
    def n_tokens(self):
        return self.end.n_tokens if self.end else len(self.ids)

    @property
    def cached(self):
        return self.end.cached if self.end else 0

    def cancel(self):
        """End it early.  If the ring of cancels is full, it is tried again as tokens are taken."""
        s = self._session
        if self.finish is None and _ring.sr_cancel(s._open(), self._ticket) == -EAGAIN:
            s._cancels.add(self)
        else:
            s._cancels.discard(self)

    def text(self):
        return "".join(self)

    def value(self):
        """What the text is by its guide: an instance of the class, the value of the JSON, or the text.

        Without a guide, or if the answer was cut: a ValueError."""
        if not self._make:
            raise ValueError("the answer has no guide")
        for _ in self:
            pass
        if self.finish != "stop":
            raise ValueError(f"the answer is not complete: {self.finish}")
        return self._make("".join(self._whole))

    def __iter__(self):
        return self

    def __next__(self):
        while not self._pieces:
            if self.finish is not None:
                raise StopIteration
            self._session._wait()
        return self._pieces.popleft()

    def __aiter__(self):
        return self

    async def __anext__(self):
        while not self._pieces:
            if self.finish is not None:
                raise StopAsyncIteration
            await self._session._wait_async()
        return self._pieces.popleft()


def _default_model():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf")


def _socket_of(instance):
    """Where the instance of this user listens, as core/instance/config_run.c has it."""
    if instance != "default" and not re.fullmatch(r"(?!\.)[A-Za-z0-9_.-]{1,48}", instance):
        raise Error(EINVAL, f"instance {instance!r}: not a usable name (letters, digits, - _ .)")
    runtime, xdg = os.environ.get("RUNTIME_DIRECTORY"), os.environ.get("XDG_RUNTIME_DIR")
    uid = os.geteuid()
    if runtime:
        base = runtime.split(":")[0]
    elif uid == 0 or xdg:
        base = os.path.join(xdg, "slipring") if uid else "/run/slipring"
    else:
        base = f"/tmp/slipring-{uid}"
        _make_ours(base)
    return os.path.join(base, "" if instance == "default" else instance, "slipring.sock")


def _make_ours(path):
    """In /tmp anybody may be first, and would be told the prompts: what is there must be ours.  It is
    made if it is not there, so that nobody can put another in its place later."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    st = os.lstat(path)
    if not stat.S_ISDIR(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o022:
        raise Error(EPERM, f"{path} is not a directory of ours in which nobody else may write: name the "
                           "daemon's in SLIPRING_SOCKET or RUNTIME_DIRECTORY")


def open(socket=None, model=None, instance="default", guides=8):
    """Connect.  socket: SLIPRING_SOCKET, or that of this user's instance (root's is the
    system's); model: a GGUF file or a Hugging Face directory, for its tokenizer: SLIPRING_MODEL or the
    default model; guides: the most guided answers at once."""
    return Session(socket, model, instance, guides)
