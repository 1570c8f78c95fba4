#!/usr/bin/env python3
"""/v1/messages: whole answers and streams with text, thoughts and calls, counts, errors, what is left out of requests.
The model is scripted as in e2e_tools.py: a grammar of one choice makes the null device say it."""
import json, signal
from harness import *

SYSTEM = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.328.3a8; cc_entrypoint=cli;"},
          {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "Look up", "input_schema": SCHEMA, "strict": True}, {"name": "now", "input_schema": {}},
         {"type": "web_search_20250305", "name": "web_search"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def ask(**more):
    return {"model": "smol", "max_tokens": 200, "temperature": 0, "messages": [{"role": "user", "content": "Weather?"}], **more}


def says(text, **more):
    return ask(structured_outputs={"choice": [text]}, **more)


def stream(p, body):
    """The events of a stream, as an SDK reads them: the message that they add up to."""
    status, headers, text = p.ask("POST", "/v1/messages?beta=true", {**body, "stream": True})
    check(status == 200 and headers["content-type"].startswith("text/event-stream"), text)
    message, stopped, opened = None, False, None
    for e in text.split("\n\n")[:-1]:
        name, data = e.split("\n")
        d = json.loads(data[len("data: "):])
        check(name == "event: " + d["type"] and not stopped, f"events name their type: {e}")
        t = d["type"]
        if message is None:
            check(t == "message_start", f"message_start first: {e}")
            message = d["message"]
            check(message["content"] == [] and message["stop_reason"] is None, e)
        elif t == "content_block_start":
            check(opened is None and d["index"] == len(message["content"]), f"one after another: {e}")
            opened = d["index"]
            message["content"].append(dict(d["content_block"], **({"partial": ""} if d["content_block"]["type"] == "tool_use" else {})))
        elif t == "content_block_delta":
            check(d["index"] == opened, e)
            b, k = message["content"][-1], d["delta"]
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json", "signature_delta": "signature"}[k["type"]]
            b["partial" if key == "partial_json" else key] += k[key]
        elif t == "content_block_stop":
            check(d["index"] == opened, e)
            opened = None
        elif t == "message_delta":
            check(opened is None, "all blocks are closed")
            message.update(d["delta"], usage=d["usage"])
        elif t == "message_stop":
            stopped = True
        else:
            check(t == "ping", e)
    check(stopped, "message_stop last")
    for b in message["content"]:
        if b["type"] == "tool_use":
            b["input"] = json.loads(b.pop("partial"))
    return message


def plain(m):
    """A message without what differs between two answers."""
    check(m["id"].startswith("msg_") and m["type"] == "message" and m["role"] == "assistant", m)
    u = m["usage"]
    return ([{k: v for k, v in b.items() if k != "id"} for b in m["content"]], m["stop_reason"], m["stop_sequence"],
            u["input_tokens"] + u["cache_read_input_tokens"] + u["cache_creation_input_tokens"], u["output_tokens"])


def both(p, body, content, stop):
    m, s = p.post("/v1/messages", body), stream(p, body)
    check(plain(m) == plain(s), f"a stream adds up to the whole: {s} {m}")
    check(plain(m)[:2] == (content, stop), f"{content}: {m}")
    for x in (b for b in m["content"] if b["type"] == "tool_use"):
        check(x["id"].startswith("toolu_"), x)
    return m


def answers(p):
    def text(s): return {"type": "text", "text": s}
    def use(name, **a): return {"type": "tool_use", "name": name, "input": a}
    m = both(p, says("Paris"), [text("Paris")], "end_turn")
    check(m["model"] == "smol" and m["stop_sequence"] is None, m)
    both(p, says("I look. " + CALL, tools=TOOLS), [text("I look. "), use("weather", city="Rome")], "tool_use")
    both(p, says(CALL + "\n" + NOW, tools=TOOLS), [use("weather", city="Rome"), use("now")], "tool_use")
    both(p, says(CALL + "\n" + NOW, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
         [use("weather", city="Rome")], "tool_use")
    both(p, says(CALL, tools=TOOLS, tool_choice={"type": "none"}), [text(CALL)], "end_turn")
    m = both(p, says("one two three", stop_sequences=[" two"]), [text("one")], "stop_sequence")
    check(m["stop_sequence"] == " two", m)
    check(p.post("/v1/messages", says("one two three", max_tokens=2))["stop_reason"] == "max_tokens", "cut")
    for seed in range(4):
        b = ask(tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}, temperature=1.5, seed=seed)
        m = p.post("/v1/messages", b)
        check(plain(m) == plain(stream(p, b)) and (m["stop_reason"] != "tool_use" or
              m["content"][0]["input"]["city"] in ("Paris", "Rome")), f"forced: {m}")
        m = p.post("/v1/messages", ask(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, temperature=1.5, seed=seed))
        check(m["stop_reason"] == "max_tokens" or json.loads(m["content"][0]["text"])["city"] in ("Paris", "Rome"), f"a schema: {m}")


def thoughts(p):
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "\n\nParis"}]
    m = both(p, says("<think>Hm.</think>\n\nParis"), thought, "end_turn")
    both(p, says("<think>Hm.</think>\n" + CALL, tools=TOOLS, thinking={"type": "adaptive", "display": "omitted"},
                 output_config={"effort": "high"}, context_management={"edits": []}),
         [thought[0], {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}}], "tool_use")
    # The answer goes back as it came, with what an agent adds.
    check(p.post("/v1/messages", ask(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2, messages=[
        {"role": "user", "content": "Weather?"}, {"role": "assistant", "content": m["content"] + [
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain"}],
                                      "is_error": True}, {"type": "text", "text": "And now?"}]},
        {"role": "system", "content": "Be quick."}]))["type"] == "message", "a whole turn")


def requests(p):
    count = lambda **k: p.post("/v1/messages/count_tokens", {"model": "smol", "messages": [{"role": "user", "content": "hi"}], **k})["input_tokens"]
    check(count(system="Be brief.") == count(system=SYSTEM), "the billing header is left out")
    check(count(system=SYSTEM[0]["text"] + "\nBe brief.") == count(system="Be brief."), "its line, too")
    for _ in range(2):
        p.post("/v1/messages", ask(system=SYSTEM, max_tokens=1))
    u = p.post("/v1/messages", ask(max_tokens=1, messages=[{"role": "user", "content": "word " * 100}]))["usage"]
    again = p.post("/v1/messages", ask(max_tokens=1, messages=[{"role": "user", "content": "word " * 100}]))["usage"]
    check(u["cache_read_input_tokens"] < again["cache_read_input_tokens"] and
          u["input_tokens"] + u["cache_read_input_tokens"] == again["input_tokens"] + again["cache_read_input_tokens"], f"cached: {u} {again}")
    check(p.post("/v1/messages", ask(model="claude-haiku-4-5", max_tokens=1))["model"] == "claude-haiku-4-5", "an alias, echoed")
    check(p.post("/v1/messages", ask(max_tokens=99999, structured_outputs={"choice": ["a"]}))["stop_reason"] == "end_turn", "clamped")
    b = ask(max_tokens=1, messages=[{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}])
    check(p.post("/v1/messages", b)["usage"]["output_tokens"] == 1, "an answer that the client begins")
    for path in ("/", "/api/hello"):
        check(p.ask("HEAD", path)[0] == 200, path)
    m = json.loads(p.ask("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})[2])
    check(m["data"][0]["id"] == "smol" and m["first_id"] == m["last_id"] == "smol" and not m["has_more"] and
          m["data"][0]["max_input_tokens"] == 2048, m)


def errors(p):
    user = {"role": "user", "content": "hi"}
    for status, kind, body, words in (
            (400, "invalid_request_error", "{", ""), (400, "invalid_request_error", ask(messages=[]), "at least one message"),
            (400, "invalid_request_error", ask(messages=[{"role": "robot", "content": "x"}]), "role"),
            (400, "invalid_request_error", ask(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]), "only text"),
            (400, "invalid_request_error", ask(messages=[{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]), "tool_use_id"),
            (400, "invalid_request_error", ask(tools=TOOLS, tool_choice={"type": "tool"}), "name is required"),
            (400, "invalid_request_error", ask(tools=TOOLS, tool_choice={"type": "tool", "name": "x"}), "does not match"),
            (400, "invalid_request_error", ask(temperature=-1), "temperature"),
            (400, "invalid_request_error", ask(output_config={"format": {"type": "json_schema"}}), "schema"),
            (404, "not_found_error", ask(model="nope"), "nope"),
            (400, "invalid_request_error", ask(messages=[{**user, "content": "word " * 3000}]), "prompt is too long: 2049 tokens > 2048 maximum")):
        for more in ({}, {"stream": True}):
            s, _, text = p.ask("POST", "/v1/messages", {**body, **more} if isinstance(body, dict) else body)
            e = json.loads(text)
            check((s, e["type"], e["error"]["type"]) == (status, "error", kind) and words in e["error"]["message"], f"{words}: {s} {text}")
    s, _, text = p.ask("GET", "/v1/messages")
    check(s == 405 and json.loads(text)["error"]["type"] == "invalid_request_error", text)
    s, _, text = p.ask("POST", "/v1/messages/count_tokens", {"model": "nope", "messages": [user]})
    check(s == 404 and json.loads(text)["error"]["type"] == "not_found_error", text)


def silence(p):
    """While nothing comes, a stream has a ping every ten seconds; it begins before the first token."""
    p.procs["slipringd"].send_signal(signal.SIGSTOP)
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=30)
    try:
        c.request("POST", "/v1/messages", json.dumps(ask(stream=True, max_tokens=1)), {"Content-Type": "application/json"})
        r, got = c.getresponse(), b""
        while b"message_start" not in got:
            got += r.read1()
        began, got = time.monotonic(), b""
        while b"event: ping" not in got:
            got += r.read1()
            if time.monotonic() - began < 5:
                got = b""
        check(8 < time.monotonic() - began < 14, f"a ping after {time.monotonic() - began:.1f} s")
        p.procs["slipringd"].send_signal(signal.SIGCONT)
        check(b"message_stop" in r.read(), "and the answer")
    finally:
        p.procs["slipringd"].send_signal(signal.SIGCONT)
        c.close()


def main():
    need_model()
    with Programs() as p:
        p.daemon("--device", "null", "--max-num-seqs", 16, "--max-model-len", 2048)
        p.adapter("--served-model-name", "smol", "--tool-call-parser", "hermes", "--reasoning-parser", "none")
        answers(p)
        requests(p)
        errors(p)
        silence(p)
        log = p.log("slipring-http")
        check(log.count("web search") == 1 and log.count("billing header") == 1 and log.count("Claude model") == 1, "said once each")
        p.procs["slipring-http"].terminate()
        p.procs["slipring-http"].wait(20)
        p.adapter("--served-model-name", "smol", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--api-key", "k")
        check(json.loads(p.ask("POST", "/v1/messages", ask())[2])["error"]["type"] == "authentication_error", "no key")
        check(p.ask("HEAD", "/")[0] == 200 and p.ask("POST", "/v1/messages", ask(max_tokens=1), {"x-api-key": "k"})[0] == 200, "x-api-key")
        send, p.ask = p.ask, lambda m, path, body=None, headers=None, **k: send(m, path, body, {"x-api-key": "k", **(headers or {})}, **k)
        thoughts(p)
    done()


main()
