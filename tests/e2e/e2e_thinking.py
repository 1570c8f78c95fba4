#!/usr/bin/env python3
"""Thoughts before answers that keep to a grammar, and thinking_token_budget.  logit_bias makes a model with random
weights think, or not."""
from harness import *

END, THINK, THINK_END = 256, 257, 258
TEMPLATE = ("{% for m in messages %}{{ m.content }}{% endfor %}{% if opened %}<think>{% endif %}"
            "{% if no_thought %}<think></think>{% endif %}")
CHOICE = {"structured_outputs": {"choice": ["yes"]}}
YES = list(b"yes") + [END]
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
    "type": "object", "properties": {"x": {"const": 1}}, "required": ["x"], "additionalProperties": False}}}]}


def ids(p, bias, **more):
    """The ids of an answer in which tokens are wanted so much."""
    c = p.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "temperature": 0,
                                        "logit_bias": {str(i): b for i, b in bias.items()}, "return_token_ids": True,
                                        **more})["choices"][0]
    return c["token_ids"], c


def opened(**more):
    return {"chat_template_kwargs": {"opened": True}, **more}


def grammars(p):
    thinks, a = {THINK: 90, THINK_END: 100}, [65]
    got, c = ids(p, {THINK: -100}, **CHOICE)
    check(got == YES and c["message"]["content"] == "yes" and c["message"]["reasoning"] is None, f"no thought: {c}")
    got, c = ids(p, thinks, **CHOICE)
    check(got == [THINK, THINK_END] + YES and c["message"]["content"] == "yes", f"a thought, then the value: {c}")
    got, c = ids(p, {THINK: 100, 65: 90}, **CHOICE)
    check(got == 40 * [THINK] and c["finish_reason"] == "length", f"a thought of any length: {c}")
    got, c = ids(p, {65: 100}, **opened(**CHOICE, max_tokens=9))
    check(got == 9 * a and c["message"]["reasoning"] == 9 * "A", f"the prompt has opened the thought: {c}")
    got, c = ids(p, thinks, **opened(**CHOICE))
    check(got == [THINK_END] + YES, f"and it ends: {c}")
    got, c = ids(p, thinks, chat_template_kwargs={"no_thought": True}, **CHOICE)
    check(got == YES, f"the prompt has closed the thought: {c}")
    for choice in "required", "auto":
        got, c = ids(p, {THINK: 100, 65: 90}, thinking_token_budget=2, tool_choice=choice, **TOOLS, max_tokens=200)
        check(got[:4] == 3 * [THINK] + [THINK_END], f"calls come after the thought: {c}")
        if choice == "required":
            check([x["function"] for x in c["message"]["tool_calls"]][0]["name"] == "f", f"a call: {c}")


def budgets(p):
    for n in 0, 1, 5, 20:
        got, c = ids(p, {THINK: 100}, thinking_token_budget=n, **CHOICE)
        check(got == (n + 1) * [THINK] + [THINK_END] + YES, f"a thought of {n} tokens: {c}")
        got, c = ids(p, {65: 100}, **opened(thinking_token_budget=n, **CHOICE))
        check(got == n * [65] + [THINK_END] + YES and c["message"]["reasoning"] == (n * "A" or None) and
              c["message"]["content"] == "yes", f"opened, {n} tokens: {c}")
        got, c = ids(p, {65: 100}, **opened(thinking_token_budget=n), max_tokens=30)
        check(got == n * [65] + [THINK_END] + (29 - n) * [65], f"then a free answer: {c}")
    got, c = ids(p, {THINK: 90, THINK_END: 100}, thinking_token_budget=9, **CHOICE)
    check(got == [THINK, THINK_END] + YES, f"the thought ends by itself: {c}")
    got, c = ids(p, {65: 100}, thinking_token_budget=1, max_tokens=6)
    check(got == 6 * [65], f"no thought, nothing is counted: {c}")
    got, c = ids(p, {END: 100, 65: 90}, thinking_token_budget=1, min_tokens=3)
    check(got == 3 * [65] + [END] and c["finish_reason"] == "stop", f"min_tokens holds: {c}")
    got, c = ids(p, {END: 100, 65: 90}, **opened(thinking_token_budget=1, min_tokens=3))
    check(got == [65, THINK_END, 65, END], f"and with a thought: {c}")
    free, _ = ids(p, {65: 3})
    check(ids(p, {65: 3}, thinking_token_budget=-1)[0] == free, "-1: any number")
    got, c = ids(p, {65: 100}, **opened(thinking_token_budget=2, n=3, temperature=1), max_tokens=5)
    check(got[:3] == [65, 65, THINK_END], f"each of n answers: {c}")


def refused(p):
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    for path, more, why in (("chat/completions", {"thinking_token_budget": -2}, "-1"),
                            ("chat/completions", {"thinking_token_budget": 3, "ignore_eos": True}, "ignore_eos"),
                            ("completions", {"thinking_token_budget": 3, "prompt": "x"}, "/v1/completions")):
        status, _, text = p.ask("POST", "/v1/" + path, {**body, **more})
        e = json.loads(text)
        check(status == 400 and e["error"]["param"] == "thinking_token_budget" and why in e["error"]["message"], text)


def main():
    with Programs() as p:
        model = os.path.join(p.dir, "model")
        make_model(model, "<think>", "</think>", template=TEMPLATE)
        flags = (model, "--load-format", "dummy", "--device", "cpu", "--max-model-len", 256, "--max-num-seqs", 8,
                 "--tool-call-parser", "hermes")
        p.serve(*flags)
        grammars(p)
        budgets(p)
        refused(p)
    with Programs() as p:
        model = os.path.join(p.dir, "model")
        make_model(model, "<think>", "</think>", template=TEMPLATE)
        p.serve(*flags[1:], "--model", model, "--structured-outputs-config.enable_in_reasoning", "true")
        got, c = ids(p, {THINK: 100}, **CHOICE)
        check(got == YES, f"enable_in_reasoning: the value at once: {c}")
        status, _, text = p.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "x"}], "thinking_token_budget": 3, **CHOICE})
        check(status == 400 and "enable_in_reasoning" in text, text)
    done()


main()
