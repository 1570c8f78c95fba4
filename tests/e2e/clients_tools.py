#!/usr/bin/env python3
"""Tool calls as clients' own libraries ask for them: openai's stream helper and loop of tools, langchain's
bind_tools.  `make clients-guided` installs them; one that is not there is skipped with a line."""
import importlib.util, json
from harness import *

WEATHER = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
    "additionalProperties": False}}}
SAYS = {"structured_outputs": {"choice": ['<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>']}}
ASKED = [{"role": "user", "content": "What is the weather in Rome?"}]


def need(module):
    there = importlib.util.find_spec(module) is not None
    if not there:
        print(f"SKIP: {module} is not installed")
    return there


def openai_python(p):
    import openai
    client = openai.OpenAI(base_url=f"{p.url}/v1", api_key="none", max_retries=0)
    with client.chat.completions.stream(model="smol", messages=ASKED, tools=[WEATHER], tool_choice="required",
                                        max_tokens=200, parallel_tool_calls=False) as s:
        kinds = [e.type for e in s]
        call = s.get_final_completion().choices[0].message.tool_calls[0].function
    check(call.name == "weather" and call.parsed_arguments["city"] in ("Paris", "Rome"), f"openai stream: {call}")
    check("tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds, kinds)
    m = client.chat.completions.create(model="smol", messages=ASKED, tools=[WEATHER], extra_body=SAYS).choices[0].message
    check(json.loads(m.tool_calls[0].function.arguments) == {"city": "Rome"}, f"openai auto: {m}")
    again = ASKED + [m, {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "18 degrees"}]
    r = client.chat.completions.create(model="smol", messages=again, tools=[WEATHER], max_tokens=8)
    check(r.choices[0].message.role == "assistant", f"openai: the answer to a result: {r}")


def langchain_python(p):
    from langchain_openai import ChatOpenAI
    llm = ChatOpenAI(model="smol", base_url=f"{p.url}/v1", api_key="none", max_tokens=200, temperature=1, seed=1)
    for choice in "required", "weather":
        m = llm.bind_tools([WEATHER], tool_choice=choice, parallel_tool_calls=False).invoke("Weather?")
        check(m.tool_calls[0]["name"] == "weather" and m.tool_calls[0]["args"]["city"] in ("Paris", "Rome"), f"langchain: {m}")
    whole = None
    for c in llm.bind_tools([WEATHER], tool_choice="required", parallel_tool_calls=False).stream("Weather?"):
        whole = c if whole is None else whole + c
    check(whole.tool_calls[0]["args"]["city"] in ("Paris", "Rome"), f"langchain stream: {whole}")


def main():
    need_model()
    with Programs() as p:
        p.serve("--served-model-name", "smol", "--tool-call-parser", "hermes", "--max-model-len", 2048)
        if need("openai"):
            openai_python(p)
        if need("langchain_openai"):
            langchain_python(p)
    done()


main()
