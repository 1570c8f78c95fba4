#!/usr/bin/env python3
"""Tool calls as clients' own libraries ask for them: openai's stream helper and loop of tools (Python, Node),
langchain's bind_tools, instructor, litellm, and the loop of Vercel's ai.  `make clients-guided` installs them;
one that is not there is skipped with a line."""
import json
from typing import Literal
from clients import *

WEATHER = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}}, "required": ["city"],
    "additionalProperties": False}}}
SAYS = {"structured_outputs": {"choice": ['<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>']}}
ASKED = [{"role": "user", "content": "What is the weather in Rome?"}]


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


def instructor_python(p):
    import instructor, openai
    from pydantic import BaseModel, Field

    class City(BaseModel):
        name: Literal["Paris", "Rome"]
        people: int = Field(ge=0, le=99999999)
    c = openai.OpenAI(base_url=f"{p.url}/v1", api_key="none", max_retries=0)
    c = instructor.from_openai(c, mode=instructor.Mode.TOOLS)
    asked = {"model": "smol", "messages": ASKED, "max_tokens": 200, "max_retries": 0, "temperature": 1, "seed": 1}
    check(isinstance(c.chat.completions.create(response_model=City, **asked), City), "instructor")
    *_, last = c.chat.completions.create_partial(response_model=City, **asked)
    check(City.model_validate(last.model_dump()).name in ("Paris", "Rome"), f"instructor, a stream: {last}")


def litellm_python(p):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"         # otherwise it asks a server for prices
    import litellm
    asked = {"model": "hosted_vllm/smol", "api_base": f"{p.url}/v1", "messages": ASKED, "tools": [WEATHER],
             "max_tokens": 200, "parallel_tool_calls": False, "temperature": 1, "seed": 1}
    for choice, finish in ("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop"):
        r = litellm.completion(tool_choice=choice, **asked).choices[0]
        check(r.finish_reason in (finish, "tool_calls"), f"litellm: {r}")
        f = r.message.tool_calls[0].function
        check(f.name == "weather" and json.loads(f.arguments)["city"] in ("Paris", "Rome"), f"litellm: {r}")
        parts = list(litellm.completion(tool_choice=choice, stream=True, **asked))
        whole = litellm.stream_chunk_builder(parts).choices[0].message.tool_calls
        check([(w.function.name, w.function.arguments) for w in whole] == [(f.name, f.arguments)],
              f"litellm stream: {whole}")
    result = {"role": "tool", "tool_call_id": r.message.tool_calls[0].id, "content": "18 degrees"}
    again = ASKED + [r.message.model_dump(), result]
    r = litellm.completion(**dict(asked, messages=again, max_tokens=8)).choices[0]
    check(r.message.role == "assistant", f"litellm: the answer to a result: {r}")


# The loops ask again with the result; the second time the model may say what it likes.
SCRIPT = """
import assert from 'node:assert';
const url = process.env.URL + '/v1', cities = ['Paris', 'Rome'], question = 'What is the weather in Rome?', seen = [];
const weather = async ({ city }) => { assert(cities.includes(city)); seen.push(city); return '18 degrees'; };
if (process.argv[2] === 'tools-openai') {
  const { default: OpenAI } = await import('openai');
  const c = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 });
  const parameters = { type: 'object', properties: { city: { type: 'string', enum: cities } },
                       required: ['city'], additionalProperties: false };
  const tools = [{ type: 'function', function: { name: 'weather', parameters, parse: JSON.parse, function: weather } }];
  const ask = { model: 'smol', messages: [{ role: 'user', content: question }], max_tokens: 200, temperature: 1,
                seed: 1, parallel_tool_calls: false, tools };
  for (const stream of [false, true]) {
    let n = seen.length;
    const named = { type: 'function', function: { name: 'weather' } };
    const one = c.chat.completions.runTools({ ...ask, stream, tool_choice: named });
    await one.done();
    assert.equal(seen.length, n + 1);
    assert.equal((await one.finalFunctionToolCall()).name, 'weather');
    assert.equal(await one.finalFunctionToolCallResult(), '18 degrees');
    n = seen.length;
    const two = c.chat.completions.runTools({ ...ask, stream, tool_choice: 'required' }, { maxChatCompletions: 2 });
    await two.done();
    assert.equal(seen.length, n + 2);
    assert.deepEqual(two.messages.map((m) => m.role), ['user', 'assistant', 'tool', 'assistant', 'tool']);
  }
} else {
  const ai = await import('ai'), { z } = await import('zod');
  const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible');
  const model = createOpenAICompatible({ name: 'slipring', baseURL: url })('smol');
  const inputSchema = z.object({ city: z.enum(cities) });
  const tools = { weather: ai.tool({ description: 'Weather', inputSchema, execute: weather }) };
  const ask = { model, tools, prompt: question, maxOutputTokens: 200, maxRetries: 0, temperature: 1, seed: 1,
                providerOptions: { slipring: { parallel_tool_calls: false } },
                stopWhen: (ai.isStepCount ?? ai.stepCountIs)(2),
                prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? 'none' : 'required' }) };
  const judge = async (steps) => {
    assert.equal(steps.length, 2);
    assert(steps[0].toolCalls.every((c) => c.toolName === 'weather' && cities.includes(c.input.city)));
    assert.equal(steps[0].toolResults[0].output, '18 degrees');
    assert.equal(steps[0].finishReason, 'tool-calls');
    assert.equal(steps[1].toolCalls.length, 0);
  };
  await judge((await ai.generateText(ask)).steps);
  const s = ai.streamText(ask);
  for await (const part of s.fullStream) assert(!part.type.endsWith('error'), JSON.stringify(part));
  await judge(await s.steps);
  const toolChoice = { type: 'tool', toolName: 'weather' };
  const named = await ai.generateText({ model, tools, toolChoice, prompt: question, maxOutputTokens: 200, maxRetries: 0 });
  assert.equal(named.toolCalls[0].toolName, 'weather');
}
console.log('ok');
"""


def main():
    need_model()
    with Programs() as p:
        p.serve("--served-model-name", "smol", "--tool-call-parser", "hermes", "--max-model-len", 2048)
        for module, what in (("openai", openai_python), ("langchain_openai", langchain_python),
                             ("instructor", instructor_python), ("litellm", litellm_python)):
            if need(module) and (module != "litellm" or need("mcp")):   # litellm reads tools with it
                what(p)
                print(f"{module}: good")
        node(p, SCRIPT, "tools-openai", "openai")
        node(p, SCRIPT, "tools-ai", "ai")
    done()


main()
