#!/usr/bin/env python3
"""Responses and Messages as OpenAI's and Anthropic's own libraries ask for them, with their strict stream helpers.
`make clients-agents` installs them; one that is not there is skipped with a line."""
import asyncio
from typing import Literal
from clients import *

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THOUGHT = "<think>Hm.</think>\nI look. " + CALL


def says(text):
    return {"structured_outputs": {"choice": [text]}}


def openai_python(p):
    import openai
    from pydantic import BaseModel

    class City(BaseModel):
        city: Literal["Paris", "Rome"]
    client = openai.OpenAI(base_url=f"{p.url}/v1", api_key="none", max_retries=0)
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    r = client.responses.create(model="smol", input="Say Paris", max_output_tokens=20, extra_body=says("Paris"))
    check(r.output_text == "Paris" and r.status == "completed" and r.usage.total_tokens > 0, r)
    with client.responses.stream(model="smol", input="Weather?", tools=[tool], max_output_tokens=200, extra_body=says(THOUGHT)) as s:
        kinds = [e.type for e in s]
        final = s.get_final_response()
    check([o.type for o in final.output] == ["reasoning", "message", "function_call"] and final.output_text == "\nI look. ", final)
    check(final.output[2].parsed_arguments["city"] == "Rome" and kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds)
    again = client.responses.create(model="smol", tools=[tool], max_output_tokens=2, input=[
        {"role": "user", "content": "Weather?"}, *[o.model_dump(exclude={"parsed_arguments"}) for o in final.output],
        {"type": "function_call_output", "call_id": final.output[2].call_id, "output": "18 degrees"}])
    check(again.status in ("completed", "incomplete"), again)
    r = client.responses.parse(model="smol", input="City?", text_format=City, max_output_tokens=200, extra_body={"seed": 1})
    check(r.output_parsed.city in ("Paris", "Rome"), r)
    check(client.responses.input_tokens.count(model="smol", input="Weather?").input_tokens > 0, "input_tokens")
    try:
        client.responses.create(model="smol", input="word " * 3000)
        check(False, "too long")
    except openai.BadRequestError as e:
        check(e.code == "context_length_exceeded", e)


def agents_python(p):
    import agents, openai
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def weather(city: str) -> str:
        return "18 degrees"
    model = agents.OpenAIResponsesModel(model="smol", openai_client=openai.AsyncOpenAI(base_url=f"{p.url}/v1", api_key="none", max_retries=0))
    first = agents.Agent(name="a", model=model, tools=[weather], tool_use_behavior="stop_on_first_tool",
                         model_settings=agents.ModelSettings(max_tokens=200, extra_body=says(THOUGHT)))

    async def run():
        r = await agents.Runner.run(first, "Weather?")
        check(r.final_output == "18 degrees", r)
        s = agents.Runner.run_streamed(first, "Weather?")
        kinds = [e.type async for e in s.stream_events()]
        check(s.final_output == "18 degrees" and "raw_response_event" in kinds, kinds)
    asyncio.run(run())


def anthropic_python(p):
    import anthropic
    client = anthropic.Anthropic(base_url=p.url, api_key="none", max_retries=0)
    ask = {"model": "smol", "max_tokens": 200, "messages": [{"role": "user", "content": "Weather?"}]}
    tool = {"name": "weather", "input_schema": SCHEMA}
    m = client.messages.create(**ask, extra_body=says("Paris"))
    check(m.content[0].text == "Paris" and m.stop_reason == "end_turn", m)
    with client.messages.stream(**ask, tools=[tool], extra_body=says(THOUGHT)) as s:
        text = "".join(s.text_stream)
        m = s.get_final_message()
    check([b.type for b in m.content] == ["thinking", "text", "tool_use"] and m.content[2].input == {"city": "Rome"} and
          m.stop_reason == "tool_use" and text == "\nI look. " and m.usage.output_tokens > 0, m)
    r = client.messages.create(model="smol", max_tokens=2, tools=[tool], messages=ask["messages"] + [
        {"role": "assistant", "content": [b.model_dump(include={"type", "text", "thinking", "signature", "id", "name", "input"}) for b in m.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": m.content[2].id, "content": "18 degrees"}]}])
    check(r.role == "assistant", r)
    m = client.messages.create(**ask, tools=[tool], tool_choice={"type": "tool", "name": "weather"}, extra_body={"seed": 1})
    check(m.stop_reason == "max_tokens" or m.content[0].input["city"] in ("Paris", "Rome"), m)
    check(client.messages.count_tokens(model="smol", messages=ask["messages"]).input_tokens > 0, "count_tokens")
    check([x.id for x in client.models.list()] == ["smol"], "models")
    try:
        client.messages.create(**{**ask, "messages": [{"role": "user", "content": "word " * 3000}]})
        check(False, "too long")
    except anthropic.BadRequestError as e:
        check("prompt is too long: 2049 tokens > 2048 maximum" in str(e), e)


NODE_SCRIPT = r"""
import { streamText, tool, jsonSchema, stepCountIs } from 'ai';
const schema = {type: 'object', properties: {city: {type: 'string', enum: ['Paris', 'Rome']}}, required: ['city']};
const body = text => ({structured_outputs: {choice: [text]}});
const text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>';
const scripted = async (url, o) => fetch(url, {...o, body: JSON.stringify({...JSON.parse(o.body), ...body(text)})});
let model;
if (process.argv[2] == 'ai_openai') {
  const { createOpenAI } = await import('@ai-sdk/openai');
  model = createOpenAI({baseURL: process.env.URL + '/v1', apiKey: 'none', fetch: scripted}).responses('smol');
} else {
  const { createAnthropic } = await import('@ai-sdk/anthropic');
  model = createAnthropic({baseURL: process.env.URL + '/v1', apiKey: 'none', fetch: scripted})('smol');
}
const r = streamText({model, prompt: 'Weather?', maxOutputTokens: 200, stopWhen: stepCountIs(2),
  onError: e => { console.log(e.error); process.exit(1); },
  tools: {weather: tool({inputSchema: jsonSchema(schema), execute: async ({city}) => city + ': 18 degrees'})}});
const steps = await r.steps;
if (steps.length != 2 || steps[0].toolResults[0].output != 'Rome: 18 degrees' || steps[0].finishReason != 'tool-calls')
  throw new Error(JSON.stringify(steps));
console.log('ok');
"""


def main():
    need_model()
    with Programs() as p:
        p.daemon("--device", "null", "--max-num-seqs", 16, "--max-model-len", 2048)
        p.adapter("--served-model-name", "smol", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
        for module, what in (("openai", openai_python), ("agents", agents_python), ("anthropic", anthropic_python)):
            if need(module):
                what(p)
                print(f"{what.__name__}: good")
        node(p, NODE_SCRIPT, "ai_openai", "@ai-sdk/openai")
        node(p, NODE_SCRIPT, "ai_anthropic", "@ai-sdk/anthropic")
    done()


main()
