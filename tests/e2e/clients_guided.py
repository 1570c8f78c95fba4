#!/usr/bin/env python3
"""Structured output as clients' own libraries ask for it: openai (Python and Node), instructor, outlines, guidance,
langchain, Vercel's ai.  `make clients-guided` installs them under build/clients; one that is not there is
skipped with a line."""
import re
from enum import Enum
from typing import Literal
from clients import *

QUESTION = [{"role": "user", "content": "Describe the city of Paris as JSON."}]


def models():
    from pydantic import BaseModel, Field

    class Size(str, Enum):
        small, big = "small", "big"

    class City(BaseModel):
        name: str = Field(max_length=12)
        size: Size
        people: int = Field(ge=0, le=99999999)
        tags: list[Literal["old", "large", "wet"]] = Field(max_length=2)
        river: str | None = Field(max_length=10)
    return City


def openai_client(p):
    import openai
    return openai.OpenAI(base_url=f"{p.url}/v1", api_key="none", max_retries=0)


def openai_python(p):
    City = models()
    c = openai_client(p).chat.completions.parse(model="smol", messages=QUESTION, response_format=City, max_tokens=300,
                                                temperature=1, seed=3)
    m = c.choices[0].message
    check(c.choices[0].finish_reason == "stop" and isinstance(m.parsed, City), f"openai parse: {m}")
    with openai_client(p).chat.completions.stream(model="smol", messages=QUESTION, response_format=City,
                                                  max_tokens=300) as s:
        for _ in s:
            pass
        check(isinstance(s.get_final_completion().choices[0].message.parsed, City), "openai stream")
    c = openai_client(p).completions.create(model="smol", prompt="Is Paris big?", extra_body={
        "structured_outputs": {"choice": ["yes", "no"]}})
    check(c.choices[0].text in ("yes", "no"), "openai extra_body")


def instructor_python(p):
    import instructor
    City = models()
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
        c = instructor.from_openai(openai_client(p), mode=mode)
        if mode == instructor.Mode.JSON:           # any object: its fields are up to the model
            continue
        check(isinstance(c.chat.completions.create(model="smol", messages=list(QUESTION), response_model=City,
                                                   max_tokens=300, max_retries=0), City), f"instructor {mode}")


def outlines_python(p):
    import outlines
    City = models()
    m = outlines.from_vllm(openai_client(p), "smol")
    City.model_validate_json(m("Describe Paris.", City, max_tokens=300))
    check(True, "outlines, a pydantic model")
    check(m("Is it?", outlines.regex("(yes|no)!{2}"), max_tokens=10) in ("yes!!", "no!!"), "outlines, a regex")


def guidance_python(p):
    import guidance
    from guidance.models.experimental import VLLMModel
    m = VLLMModel("smol", base_url=f"{p.url}/v1", api_key="none", echo=False)
    City = models()

    def ask(what, said="Describe Paris."):
        with guidance.user():
            lm = m + said
        with guidance.assistant():
            return (lm + what)["it"]
    check(re.fullmatch("[A-Z][a-z]{2,8}", ask(guidance.gen("it", regex="[A-Z][a-z]{2,8}"))), "guidance, a regex")
    check(ask(guidance.select(["red", "green"], name="it")) in ("red", "green"), "guidance, a choice")
    City.model_validate_json(ask(guidance.json(name="it", schema=City)))
    check(True, "guidance, a pydantic model")


def langchain_python(p):
    from langchain_openai import ChatOpenAI
    City = models()
    m = ChatOpenAI(model="smol", base_url=f"{p.url}/v1", api_key="none", max_tokens=300, max_retries=0)
    check(isinstance(m.with_structured_output(City, method="json_schema").invoke("Describe Paris."), City),
          "langchain with_structured_output")


SCRIPT = """
import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
const City = z.object({ name: z.string().max(12), big: z.boolean(), kind: z.enum(['a', 'b']), n: z.array(z.number().int().min(0).max(99)).max(2) });
const url = process.env.URL + '/v1', messages = [{ role: 'user', content: 'Describe Paris.' }];
if (process.argv[2] === 'openai') {
  const c = new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 0 });
  const r = await c.chat.completions.parse({ model: 'smol', messages, max_tokens: 300, response_format: zodResponseFormat(City, 'city') });
  City.parse(r.choices[0].message.parsed);
} else {
  const { generateObject } = await import('ai');
  const { createOpenAICompatible } = await import('@ai-sdk/openai-compatible');
  const model = createOpenAICompatible({ name: 'slipring', baseURL: url, supportsStructuredOutputs: true })('smol');
  const r = await generateObject({ model, schema: City, prompt: 'Describe Paris.', maxOutputTokens: 300, maxRetries: 0 });
  City.parse(r.object);
}
console.log('ok');
"""


def main():
    need_model()
    with Programs() as p:
        p.daemon()
        p.adapter("--served-model-name", "smol")
        for module, what in (("openai", openai_python), ("instructor", instructor_python), ("outlines", outlines_python),
                             ("guidance", guidance_python), ("langchain_openai", langchain_python)):
            if need(module):
                what(p)
                print(f"{module}: good")
        node(p, SCRIPT, "openai", "openai")
        node(p, SCRIPT, "ai", "ai")
    done()


main()
