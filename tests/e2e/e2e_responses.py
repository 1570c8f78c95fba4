#!/usr/bin/env python3
"""/v1/responses: whole answers and streams with text, thoughts, calls, custom tools and namespaces; counts, errors.  The
model is scripted as in e2e_tools.py: a grammar of one choice makes the null device say it."""
import json, signal, time
from harness import *

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "name": "weather", "description": "Look up", "parameters": SCHEMA, "strict": True},
         {"type": "function", "name": "now"}, {"type": "web_search"}, {"type": "custom", "name": "patch", "format": {"type": "text"}},
         {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "ask", "parameters": {"type": "object"}}]}]


def call(name, arguments):
    return '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (name, json.dumps(arguments))


CALL = call("weather", {"city": "Rome"})


def ask(**more):
    return {"model": "smol", "max_output_tokens": 200, "temperature": 0, "input": "Weather?", **more}


def says(text, **more):
    return ask(structured_outputs={"choice": [text]}, **more)


def stream(p, body):
    """The events of a stream, as strict readers take them: the response that they add up to."""
    status, headers, text = p.ask("POST", "/v1/responses", {**body, "stream": True})
    check(status == 200 and headers["content-type"].startswith("text/event-stream"), text)
    output, final, n = [], None, 0
    for e in text.split("\n\n")[:-1]:
        name, data = e.split("\n")
        d = json.loads(data[len("data: "):])
        t = d["type"]
        check(name == "event: " + t and d["sequence_number"] == n and final is None, f"named and numbered: {e}")
        if n == 0:
            check(t == "response.created" and d["response"]["output"] == [] and d["response"]["status"] == "in_progress", e)
            first = d["response"]["id"]
        n += 1
        if "item_id" in d:
            check(d["output_index"] == len(output) - 1 and d["item_id"] == output[-1]["id"], f"ids stay: {e}")
        if t in ("response.created", "response.in_progress"):
            check(d["response"]["id"] == first, e)
        elif t == "response.output_item.added":
            check(d["output_index"] == len(output) and (not output or output[-1].get("done")), f"one after another: {e}")
            output.append(d["item"])
        elif t == "response.content_part.added":
            output[-1]["content"].append(d["part"])
        elif t in ("response.output_text.delta", "response.reasoning_text.delta"):
            output[-1]["content"][d["content_index"]]["text"] += d["delta"]
            check(t != "response.output_text.delta" or isinstance(d["logprobs"], list), e)
        elif t in ("response.output_text.done", "response.reasoning_text.done"):
            check(output[-1]["content"][0]["text"] == d["text"], e)
        elif t == "response.content_part.done":
            check(output[-1]["content"][0]["text"] == d["part"]["text"], e)
        elif t in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
            output[-1]["input" if "custom" in t else "arguments"] += d["delta"]
        elif t in ("response.function_call_arguments.done", "response.custom_tool_call_input.done"):
            key = "input" if "custom" in t else "arguments"
            check(output[-1][key] == d[key], e)
        elif t == "response.output_item.done":
            mine = {k: v for k, v in output[-1].items() if k not in ("status", "content")}
            check(mine == {k: v for k, v in d["item"].items() if k not in ("status", "content")}, f"{mine} {e}")
            output[-1] = dict(d["item"], done=True)
        else:
            check(t in ("response.completed", "response.incomplete"), e)
            final = d["response"]
            check(final["id"] == first and final["status"] == t[9:], e)
    for x in output:
        check(x.pop("done"), "each item is done")
    check(final and final["output"] == output, f"the last event has the same items: {final} {output}")
    return final


def plain(r):
    """A response without what differs between two answers."""
    check(r["id"].startswith("resp_") and r["object"] == "response" and r["error"] is None, r)
    items = [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in r["output"]]
    u = r["usage"]
    check(u["total_tokens"] == u["input_tokens"] + u["output_tokens"], u)
    return items, r["status"], u["input_tokens"], u["output_tokens"], u["output_tokens_details"]["reasoning_tokens"]


def both(p, body, want, status="completed"):
    r, s = p.post("/v1/responses", body), stream(p, body)
    check(plain(r) == plain(s), f"a stream adds up to the whole: {s} {r}")
    got = [("text", i["content"][0]["text"]) if i["type"] == "message" else ("thought", i["content"][0]["text"])
           if i["type"] == "reasoning" else (i["name"], i.get("input") if i["type"] == "custom_tool_call" else json.loads(i["arguments"]))
           for i in r["output"]]
    check(got == want and r["status"] == status, f"{want}: {r}")
    return r


def answers(p):
    r = both(p, says("Paris"), [("text", "Paris")])
    check(r["output"][0]["id"].startswith("msg_") and r["tools"] == [] and r["store"] is False, r)
    both(p, says("I look. " + CALL, tools=TOOLS), [("text", "I look. "), ("weather", {"city": "Rome"})])
    r = both(p, says(CALL + "\n" + call("now", {}), tools=TOOLS), [("weather", {"city": "Rome"}), ("now", {})])
    check(all(i["id"].startswith("fc_") and i["call_id"].startswith("call_") for i in r["output"]) and len(r["tools"]) == 5, r)
    both(p, says(CALL + "\n" + call("now", {}), tools=TOOLS, parallel_tool_calls=False), [("weather", {"city": "Rome"})])
    r = both(p, says(call("patch", {"input": 'a\n"b"'}), tools=TOOLS), [("patch", 'a\n"b"')])
    check(r["output"][0]["type"] == "custom_tool_call", r)
    r = both(p, says(call("team__ask", {"q": 1}), tools=TOOLS), [("ask", {"q": 1})])
    check(r["output"][0]["namespace"] == "team", r)
    r = both(p, says("one two three four", max_output_tokens=2), [("text", "one two")], "incomplete")
    check(r["incomplete_details"] == {"reason": "max_output_tokens"} and r["output"][0]["status"] == "incomplete", r)
    r = both(p, says("Paris", include=["message.output_text.logprobs"], top_logprobs=2), [("text", "Paris")])
    scores = r["output"][0]["content"][0]["logprobs"]
    check("".join(s["token"] for s in scores) == "Paris" and len(scores[0]["top_logprobs"]) == 2, scores)
    check(p.post("/v1/responses", says("one two", stop=" two"))["output"][0]["content"][0]["text"] == "one", "stop")
    for tools, choice in ((None, "none"), ([{"type": "web_search"}], "auto"), (TOOLS, "auto")):
        r = p.post("/v1/responses", says("Paris", **({"tools": tools} if tools else {})))
        check(r["tool_choice"] == choice and r["tools"] == (tools or []), f"what was asked: {r['tool_choice']} {r['tools']}")
    for seed in range(4):
        b = ask(tools=TOOLS, tool_choice={"type": "function", "name": "weather"}, temperature=1.5, seed=seed)
        r = p.post("/v1/responses", b)
        check(plain(r) == plain(stream(p, b)) and (r["status"] != "completed" or
              json.loads(r["output"][0]["arguments"])["city"] in ("Paris", "Rome")), f"forced: {r}")
        b = ask(tools=TOOLS, tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]},
                temperature=1.5, seed=seed)
        check(all(i["name"] == "now" for i in p.post("/v1/responses", b)["output"] if i["type"] == "function_call"), "allowed tools")
        r = p.post("/v1/responses", ask(text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, temperature=1.5, seed=seed))
        check(r["status"] == "incomplete" or json.loads(r["output"][0]["content"][0]["text"])["city"] in ("Paris", "Rome"), f"a schema: {r}")


def thoughts(p):
    r = both(p, says("<think>Hm.</think>\n\nParis"), [("thought", "Hm."), ("text", "\n\nParis")])
    check(r["usage"]["output_tokens_details"]["reasoning_tokens"] > 0 and r["output"][0]["id"].startswith("rs_"), r)
    first = both(p, says("<think>Hm.</think>\n" + CALL, tools=TOOLS), [("thought", "Hm."), ("weather", {"city": "Rome"})])
    # The answer goes back as it came, with what an agent adds.
    r = p.post("/v1/responses", ask(max_output_tokens=1, tools=TOOLS, store=False, include=["reasoning.encrypted_content"],
                                    prompt_cache_key="k", client_metadata={}, reasoning={"effort": "low", "summary": "auto"}, input=[
        {"type": "message", "role": "developer", "id": "msg_0", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}, *first["output"],
        {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "Rain"},
        {"role": "assistant", "content": []}, {"type": "ghost_snapshot"}, {"type": "item_reference", "id": "x"},
        {"type": "function_call", "call_id": "b", "name": "now", "arguments": "{broken"},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "12:00"}]},
        {"type": "reasoning", "summary": []}, {"role": "developer", "content": "Be quick."}]))
    check(r["status"] == "incomplete", "a whole turn, with broken arguments")


def errors(p):
    for status, code, param, body in (
            (400, "invalid_value", "body.1", "{"), (400, "invalid_value", "body.input", {"model": "smol"}),
            (400, "invalid_value", "body.input", ask(input=[])), (400, "invalid_value", "body.input.0", ask(input=[{}])),
            (400, "invalid_value", "input.0", ask(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])),
            (400, "invalid_value", "previous_response_id", ask(previous_response_id="resp_1")),
            (400, "invalid_value", "background", ask(background=True)),
            (400, "invalid_value", "body.tool_choice", ask(tools=TOOLS, tool_choice="any")),
            (400, "invalid_value", "tool_choice", ask(tools=TOOLS, tool_choice={"type": "function", "name": "x"})),
            (400, "invalid_value", "body.tools.0", ask(tools=[{"type": "namespace", "name": "x"}])),
            (400, "invalid_value", "temperature", ask(temperature=-1)),
            (404, "model_not_found", "model", ask(model="nope")),
            (400, "context_length_exceeded", "input_tokens", ask(input="word " * 3000))):
        for more in ({}, {"stream": True}):
            s, _, text = p.ask("POST", "/v1/responses", {**body, **more} if isinstance(body, dict) else body)
            e = json.loads(text)["error"]
            check((s, e["type"], e["code"], e["param"]) == (status, "invalid_request_error", code, param), f"{body}: {s} {text}")
    s, _, text = p.ask("GET", "/v1/responses/resp_1")
    check(s == 404 and json.loads(text)["error"]["param"] == "response_id", text)
    check(p.post("/v1/responses", ask(max_output_tokens=99999, structured_outputs={"choice": ["a"]}))["status"] == "completed", "clamped")
    check(p.post("/v1/responses/input_tokens", {"input": "Weather?"}) ==
          {"object": "response.input_tokens", "input_tokens": p.post("/v1/responses", ask())["usage"]["input_tokens"]}, "counted")


def longest_wait(p, body):
    """Ask for a large body's answer; how long /live took at most meanwhile, and the answer's status and text."""
    got, worst = [], 0.0
    t = threading.Thread(target=lambda: got.append(p.ask("POST", "/v1/responses", body, timeout=120)))
    t.start()
    while t.is_alive():
        begun = time.monotonic()
        check(p.ask("GET", "/live")[0] == 200, "alive")
        worst = max(worst, time.monotonic() - begun)
        time.sleep(0.002)
    t.join()
    return worst, got[0][0], got[0][2]


def large(p):
    """Neither a large tree that is freed nor a long list of allowed tools holds the loop, or a thread for long."""
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}] * 160000
    worst, status, text = longest_wait(p, ask(input=items + [{"role": "nobody", "content": "a"}]))
    check(status == 400 and "160000.role" in text, text[:300])
    check(worst < 1, f"the loop was held for {worst:.2f} s while a refused request was freed")
    n = 60000
    tools = [{"type": "function", "name": f"tool_{i}", "parameters": {"type": "object"}} for i in range(n)]
    allowed = [{"type": "function", "name": f"no_tool_{i}"} for i in range(n)] + [{"type": "function", "name": "tool_7"}]
    begun = time.monotonic()
    worst, status, text = longest_wait(p, ask(tools=tools, max_output_tokens=1, tool_choice={
        "type": "allowed_tools", "mode": "auto", "tools": allowed}))
    check(status == 200, text[:300])
    check(worst < 1 and time.monotonic() - begun < 20, f"{n} allowed tools: {time.monotonic() - begun:.1f} s, loop {worst:.2f} s")


def a_lost_daemon(p):
    """While nothing comes, a stream says that it is alive every ten seconds.  An error in it is its last event."""
    p.procs["slipringd"].send_signal(signal.SIGSTOP)
    c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=30)
    try:
        c.request("POST", "/v1/responses", json.dumps(ask(stream=True)), {"Content-Type": "application/json"})
        r, got = c.getresponse(), b""
        while b"event: response.in_progress" not in got:
            got += r.read1()
        began = time.monotonic()
        while got.count(b"event: response.in_progress") < 2:
            got += r.read1()
        check(8 < time.monotonic() - began < 14, f"alive after {time.monotonic() - began:.1f} s")
        p.procs["slipringd"].kill()
        got += r.read()
    finally:
        c.close()
    last = json.loads(got.decode().rstrip("\n").split("\n\n")[-1].split("\ndata: ")[1])
    check(last["type"] == "response.failed" and last["response"]["error"]["code"] == "server_is_overloaded" and
          last["response"]["status"] == "failed" and last["sequence_number"] == 3, last)


def main():
    need_model()
    with Programs() as p:
        p.daemon("--device", "null", "--max-num-seqs", 16, "--max-model-len", 2048)
        p.adapter("--served-model-name", "smol", "--tool-call-parser", "hermes", "--reasoning-parser", "none")
        answers(p)
        errors(p)
        large(p)
        p.procs["slipring-http"].terminate()
        p.procs["slipring-http"].wait(20)
        p.adapter("--served-model-name", "smol", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3", "--daemon-wait", 0)
        thoughts(p)
        a_lost_daemon(p)
    done()


main()
