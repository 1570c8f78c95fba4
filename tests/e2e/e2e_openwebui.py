#!/usr/bin/env python3
"""Open WebUI's calls, as version 0.12.4 makes them: a connection is verified, models are listed, a chat streams with a
tool's turn, titles and tags are asked for beside it, and an error is shown.  Chat, then the switch to Responses.
The model is scripted: Open WebUI adds a model's own parameters to the body, and a grammar of one choice is one."""
from harness import *

KEY = "sk-test"
WHO = {"Authorization": f"Bearer {KEY}", "X-OpenWebUI-User-Name": "A%20B", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Role": "user",
       "X-OpenWebUI-User-Email": "a@b.example", "X-OpenWebUI-Chat-Id": "7"}
TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
SAYS = '<think>\nHm.\n</think>\n\nI look. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TASK = "### Task:\nGenerate a concise title. JSON format: { \"title\": \"..\" }\n<chat_history>\nUSER: Weather?\n</chat_history>"


def says(text):
    return {"structured_outputs": {"choice": [text]}}


def lines_of(text):
    """What the middleware reads of a stream: lines that begin with data:, but for the last."""
    for line in text.splitlines():
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            yield json.loads(line[5:])


def streamed(p, model, messages, **more):
    status, head, text = p.ask("POST", "/v1/chat/completions", {
        "stream": True, "model": model, "messages": messages, "stream_options": {"include_usage": True}, **more}, WHO)
    check(status == 200 and head["content-type"].startswith("text/event-stream"), f"{status} {text[:300]}")
    content, thought, calls, usage = "", "", {}, {}
    for e in lines_of(text):
        usage = {**usage, **(e.get("usage") or {}), **(e.get("timings") or {})}
        for c in e.get("choices", []):
            d = c.get("delta", {}) or {}
            content += d.get("content") or ""
            thought += d.get("reasoning_content") or d.get("reasoning") or ""
            for t in d.get("tool_calls") or []:
                mine = calls.setdefault(t["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
                mine["id"] = t.get("id") or mine["id"]
                mine["function"]["name"] += t["function"].get("name") or ""
                mine["function"]["arguments"] += t["function"].get("arguments") or ""
    check(usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0 and usage["total_tokens"] > 0, usage)
    return content, thought, list(calls.values())


def chat(p, model):
    history = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Weather?"}]
    content, thought, calls = streamed(p, model, history, tools=[TOOL], **says(SAYS))
    check(thought.strip() == "Hm." and content.strip() == "I look.", (thought, content))
    check(len(calls) == 1 and json.loads(calls[0]["function"]["arguments"]) == {"city": "Rome"}, calls)
    history += [{"role": "assistant", "content": content, "tool_calls": calls},
                {"role": "tool", "tool_call_id": calls[0]["id"], "content": "18 degrees"}]
    content, thought, calls = streamed(p, model, history, tools=[TOOL], **says("It is 18 degrees."))
    check(content == "It is 18 degrees." and not calls, (content, calls))
    for text in ('{"title": "Weather"}', '{ "tags": ["Weather"] }'):  # max_completion_tokens arrives as max_tokens
        status, _, answer = p.ask("POST", "/v1/chat/completions", {"model": model, "stream": False, "max_tokens": 1000,
                                  "messages": [{"role": "user", "content": TASK}], **says(text)}, WHO)
        message = json.loads(answer)["choices"][0]["message"]
        check(status == 200 and (message.get("content") or message.get("reasoning_content")) == text, answer)


def responses(p, model):
    """The same turn by convert_to_responses_payload: instructions, items, tools without "function"."""
    body = {"stream": True, "model": model, "instructions": "You help.", "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}],
        "tools": [{"type": "function", **TOOL["function"]}], **says(SAYS)}
    status, _, text = p.ask("POST", "/v1/responses", body, WHO)
    done_ = [e for e in lines_of(text) if e["type"] == "response.completed"]
    check(status == 200 and len(done_) == 1, text[:300])
    call = [i for i in done_[0]["response"]["output"] if i["type"] == "function_call"]
    check(len(call) == 1 and json.loads(call[0]["arguments"]) == {"city": "Rome"}, call)
    body["input"] += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                      {"type": "function_call", "call_id": call[0]["call_id"], "name": "weather", "arguments": call[0]["arguments"]},
                      {"type": "function_call_output", "call_id": call[0]["call_id"], "output": "18 degrees"}]
    status, _, text = p.ask("POST", "/v1/responses", {**body, **says("It is 18 degrees.")}, WHO)
    said = "".join(e["delta"] for e in lines_of(text) if e["type"] == "response.output_text.delta")
    check(status == 200 and said == "It is 18 degrees.", text[:300])


def main():
    need_model()                                   # for its vocabulary alone
    with Programs() as p:
        p.daemon("--device", "null", "--model", MODEL)
        p.adapter("--api-key", KEY, "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
        for _ in range(2):                         # verify, then list
            status, head, text = p.ask("GET", "/v1/models", None, WHO)
            models = json.loads(text)["data"]
            check(status == 200 and "application/json" in head["content-type"] and models[0]["id"], text)
        status, _, text = p.ask("GET", "/v1/models", None, {**WHO, "Authorization": "Bearer wrong"})
        check(status == 401 and json.loads(text)["error"]["message"], text)
        chat(p, models[0]["id"])
        responses(p, models[0]["id"])
        status, head, text = p.ask("POST", "/v1/chat/completions", {"model": models[0]["id"], "stream": True, "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is it?"},
                                         {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]}, WHO)
        check(status == 400 and "application/json" in head["content-type"], "an error of a stream is no stream")
        check("image" in json.loads(text)["error"]["message"], text)
    done()


main()
