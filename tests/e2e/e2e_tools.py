#!/usr/bin/env python3
"""Tool calls and thoughts over HTTP.  The model is scripted: a grammar of one choice makes the null device say
what a model of that format would.  Then forced calls, whose arguments must keep to their schemas."""
import json, re, sys
from harness import *

CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]},
                                         "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}},
         {"type": "function", "function": {"name": "now"}}]
HERMES = ('<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>\n'
          '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
XML = ('<tool_call>\n<function=weather>\n<parameter=city>\nNew "York"\n</parameter>\n<parameter=days>\n2\n</parameter>\n'
       '</function>\n</tool_call>')
HARMONY = ('<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather '
           '<|constrain|>json<|message|>{"city": "Rome"}<|call|>')
BOTH = [("weather", {"city": "Rome", "days": 2}), ("now", {})]
SCRIPTS = [  # parsers, what the model says, content, thought, calls, finish_reason
    ("hermes", "none", "Paris <b> is <tool", "Paris <b> is <tool", None, [], "stop"),
    ("hermes", "none", "I look. " + HERMES, "I look. ", None, BOTH, "tool_calls"),
    ("hermes", "none", "\n" + HERMES, None, None, BOTH, "tool_calls"),
    ("hermes", "none", "<tool_call>\nnot json\n</tool_call>", "<tool_call>\nnot json\n</tool_call>", None, [], "stop"),
    ("hermes", "qwen3", "<think>\nHm.\n</think>\n\n" + HERMES, None, "\nHm.\n", BOTH, "tool_calls"),
    ("hermes", "qwen3", "<think>a</think>\n\nParis", "\n\nParis", "a", [], "stop"),
    ("hermes", "deepseek_r1", "a</think>Paris", "Paris", "a", [], "stop"),
    ("qwen3_coder", "none", XML, None, None, [("weather", {"city": 'New "York"', "days": 2})], "tool_calls"),
    ("openai", "openai_gptoss", HARMONY, None, "Hm.", [("weather", {"city": "Rome"})], "tool_calls"),
    ("mistral", "none", '[TOOL_CALLS]now[ARGS]{}', None, None, [("now", {})], "tool_calls"),
    ("pythonic", "none", "[weather(city='Rome', days=2), now()]", None, None, BOTH, "tool_calls"),
]


def chat(**more):
    return {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 300, "temperature": 0, "tools": TOOLS,
            **more}


def says(text, **more):
    return chat(structured_outputs={"choice": [text]}, **more)


def gather(events):
    """What a stream says: content, thought, calls, finish_reason; its form is checked."""
    content, thought, calls, finish = "", "", [], None
    check(events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, f"the role first: {events[0]}")
    check(events[-1] is None, "[DONE] last")
    for e in events[1:-1]:
        c = e["choices"][0]
        check(finish is None, "nothing follows a finish_reason")
        finish, d = c["finish_reason"], c["delta"]
        content += d.get("content") or ""
        thought += d.get("reasoning") or ""
        for t in d.get("tool_calls", []):
            if "id" in t:
                check(list(t) == ["id", "type", "index", "function"] and list(t["function"]) == ["name"] and
                      t["index"] == len(calls), f"a call begins with {t}")
                calls.append([t["function"]["name"], ""])
            else:
                check(list(t) == ["index", "function"] and t["index"] == len(calls) - 1, f"arguments: {t}")
                calls[-1][1] += t["function"]["arguments"]
    return content, thought, [(n, json.loads(a)) for n, a in calls], finish


def scripts(p, tools, reasoning):
    for t, r, text, content, thought, calls, finish in SCRIPTS:
        if (t, r) != (tools, reasoning):
            continue
        c = p.post("/v1/chat/completions", says(text))["choices"][0]
        m = c["message"]
        made = [(x["function"]["name"], json.loads(x["function"]["arguments"])) for x in m.get("tool_calls", [])]
        check((m["content"], m["reasoning"], made, c["finish_reason"]) == (content, thought, calls, finish),
              f"{tools} {text!r}: {c}")
        check(("tool_calls" in m) == bool(calls), "no empty list of calls")
        for x in m.get("tool_calls", []):
            check(re.fullmatch("[0-9A-Za-z]{9}" if tools == "mistral" else "chatcmpl-tool-[0-9a-f]{16}", x["id"]), x["id"])
        status, events = p.stream("/v1/chat/completions", says(text))
        check(status == 200, f"{tools} streamed: {events}")
        check(gather(events) == (content or "", thought or "", calls, finish), f"{tools} {text!r} streamed: {events}")


def interplay(p):
    one = p.post("/v1/chat/completions", says(HERMES, parallel_tool_calls=False))["choices"][0]
    check(len(one["message"]["tool_calls"]) == 1, "parallel_tool_calls false: one call")
    c = p.post("/v1/chat/completions", says(HERMES, tool_choice="none"))["choices"][0]
    check(c["message"]["content"] == HERMES and "tool_calls" not in c["message"], "tool_choice none: nothing is parsed")
    c = p.post("/v1/chat/completions", says(HERMES, max_tokens=20))["choices"][0]
    check(HERMES.startswith(c["message"]["content"]) and c["finish_reason"] == "length", f"a call that is cut is text: {c}")
    cut = HERMES.replace("now", "weather").replace("{}", '{"city": "' + 99 * "x " + '"}')
    c = p.post("/v1/chat/completions", says(cut, max_tokens=70))["choices"][0]
    check(c["finish_reason"] == "length" and len(c["message"]["tool_calls"]) == 1 and c["message"]["content"] is None,
          f"the calls before one that is cut: {c}")
    c = p.post("/v1/chat/completions", says("I look. " + HERMES, stop=["</tool_call>"]))["choices"][0]
    check(c["finish_reason"] in ("stop", "tool_calls") and c["stop_reason"] == "</tool_call>", f"stop strings: {c}")
    c = p.post("/v1/chat/completions", says(HERMES, logprobs=True, n=2, temperature=1))["choices"]
    check(all(len(x["message"]["tool_calls"]) == 2 and x["logprobs"]["content"] for x in c), "n and logprobs")


def forced(p):
    for seed in range(8):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            b = chat(tool_choice=choice, temperature=1.5, seed=seed, parallel_tool_calls=seed % 2 == 0)
            c = p.post("/v1/chat/completions", b)["choices"][0]
            status, events = p.stream("/v1/chat/completions", b)
            if c["finish_reason"] == "length":
                continue
            made = [(x["function"]["name"], json.loads(x["function"]["arguments"])) for x in c["message"]["tool_calls"]]
            check(c["finish_reason"] == ("tool_calls" if choice == "required" else "stop") and c["message"]["content"] == "",
                  f"forced: {c}")
            check(gather(events)[2] == made, "a stream gives the same calls")
            check(seed % 2 == 0 and choice == "required" or len(made) == 1, f"one call: {made}")
            for name, a in made:
                check(name == "now" and isinstance(a, dict) or name == "weather" and set(a) == {"city", "days"} and
                      a["city"] in ("Paris", "Rome") and 1 <= a["days"] <= 9, f"arguments keep to the schema: {name} {a}")
    status, _, text = p.ask("POST", "/v1/chat/completions", chat(tool_choice="required", max_tokens=3))
    c = json.loads(text)["choices"][0]
    check(c["finish_reason"] == "length" and "tool_calls" not in c["message"], f"a forced call that is cut: {c}")


def strict(p):
    """With auto a format without a marker binds strict functions, too: what begins a call is one."""
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    for seed in range(12):
        c = p.post("/v1/chat/completions", chat(tools=tools, temperature=2, seed=seed, max_tokens=80))["choices"][0]
        for x in c["message"].get("tool_calls", []):
            a = json.loads(x["function"]["arguments"])
            check(x["function"]["name"] == "weather" and set(a) == {"city", "days"} and 1 <= a["days"] <= 9, f"strict: {a}")
        check(c["finish_reason"] != "stop" or not (c["message"]["content"] or "").startswith("["), f"no broken call: {c}")


def described(p):
    """A template that knows no tools: they are described to the model, and calls come in JSON."""
    c = p.post("/v1/chat/completions", chat(tools=TOOLS, return_prompt_text=True, max_tokens=1))
    check("You can call functions." in c["prompt_text"] and '"name": "weather"' in c["prompt_text"], c["prompt_text"])
    c = p.post("/v1/chat/completions", chat(tool_choice="none", return_prompt_text=True, max_tokens=1))
    check("You can call functions." not in c["prompt_text"], "not with tool_choice none")
    forced(p)
    call = {"id": "x", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    c = p.post("/v1/chat/completions", chat(max_tokens=1, return_prompt_text=True, messages=[
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "12:00"}]))["prompt_text"]
    check("Be brief.\n\nYou can call functions." in c and '[{"name": "now", "parameters": {}}]' in c and
          "The function's result: 12:00" in c, c)


def counted(p):
    m = dict(re.findall(r'^vllm:tool_call_parser_invocations_total\{[^}]*(mode="[a-z_]*",outcome="[a-z_]*"),request_type="chat_completions"[^}]*\} ([0-9.]+)',
                        p.ask("GET", "/metrics")[2], re.M))
    for mode in "streaming", "non_streaming":
        for outcome in "tool_call", "no_tool_call":
            check(float(m[f'mode="{mode}",outcome="{outcome}"']) > 0, f"{mode} {outcome} is counted: {m}")


def adapter(p, *args):
    old = p.procs.get("slipring-http")
    if old:
        old.terminate()
        old.wait(20)
    p.adapter("--served-model-name", "smol", *args)


def main():
    need_model()
    with Programs() as p:
        p.daemon("--device", "null", "--max-num-seqs", 16, "--max-model-len", 2048)
        for pair in dict.fromkeys((t, r) for t, r, *_ in SCRIPTS):
            adapter(p, "--tool-call-parser", pair[0], "--reasoning-parser", pair[1])
            scripts(p, *pair)
            if pair == ("hermes", "none"):
                interplay(p)
                forced(p)
                counted(p)
            if pair == ("qwen3_coder", "none"):
                forced(p)
                for other in "pythonic", "olmo3", "gemma4", "functiongemma", "step3":
                    adapter(p, "--tool-call-parser", other, "--reasoning-parser", "none")
                    forced(p)
            if pair[0] in ("openai", "pythonic"):
                strict(p)
        adapter(p)
        described(p)
        adapter(p, "--tool-call-parser", "none", "--reasoning-parser", "qwen3", "--reasoning-field", "both")
        status, _, text = p.ask("POST", "/v1/chat/completions", chat(tool_choice="required"))
        check(status == 400 and "requires --tool-call-parser to be set" in text, text)
        m = p.post("/v1/chat/completions", says("<think>a</think>b", tool_choice="none"))["choices"][0]["message"]
        check(m["reasoning"] == m["reasoning_content"] == "a" and m["content"] == "b", f"both names: {m}")
        _, events = p.stream("/v1/chat/completions", says("<think>a</think>b", tool_choice="none"))
        check(gather(events)[:2] == ("b", "a") and any("reasoning_content" in (e or {"choices": [{"delta": {}}]})
              ["choices"][0]["delta"] for e in events), "both names in a stream")
    done()


main()
