#!/usr/bin/env python3
"""The first answer of README.md is right: with each instruction set of this CPU, by the command that is shown, as a user
gets it; and the default model's tokens and log-probabilities are the same with all of them.  How tokens are drawn where
a request does not say is the same over HTTP, in the terminal and in Python."""
import json, os, re, shlex, subprocess
from harness import *

ROOT = os.path.dirname(HERE)
SEEDS = 16
MARGIN = 1.5      # nats between the token that is drawn and the next one, up to the word that counts; 2.5 was measured


def shown(document, heading):
    """The first curl of a section, as a user pastes it, and what it sends."""
    with open(os.path.join(ROOT, document)) as f:
        section = f.read().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    command = re.search(r"^    (curl (?:.*\\\n)*.*)$", section, re.M).group(1)
    words = shlex.split(command.replace("\\\n", " "))
    return command, json.loads(words[words.index("-d") + 1])


def tables():
    """The instruction sets that this machine has kernels for."""
    for name in "plain", "avx2", "avx512vnni", "avx512":
        with Programs(env={"SLIPRING_CPU": name}) as p:
            r = p.run("slipringd")
            wait_for(lambda: "Ready after" in p.log("slipringd") or r.poll() is not None, 60)
            if r.poll() is None:
                yield name
            else:
                check("no such kernels" in p.log("slipringd"), p.log("slipringd"))
                print(f"not here: {name}")


def first_answer(table, command, asked):
    """What the README shows, at the defaults; then with seeds, and how sure the model is."""
    with Programs(env={"SLIPRING_CPU": table}) as p:
        p.serve()
        here = command.replace("http://127.0.0.1:8000", p.url)
        check(here != command, "the command names the address that serve prints")
        r = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60)
        answer = json.loads(r.stdout)["choices"][0]
        check("Tokyo" in answer["message"]["content"], f"{table}: {answer}")
        for seed in range(SEEDS):
            text = p.post("/v1/chat/completions", {**asked, "seed": seed})["choices"][0]["message"]["content"]
            check("Tokyo" in text, f"{table}, seed {seed}: {text}")
        answer = p.post("/v1/chat/completions", {**asked, "temperature": 0, "logprobs": True, "top_logprobs": 2})["choices"][0]
        check(answer["message"]["content"] == "The capital of Japan is Tokyo.", f"{table}, greedy: {answer}")
        for t in answer["logprobs"]["content"]:
            first, second = (x["logprob"] for x in t["top_logprobs"])
            check(first - second > MARGIN, f"{table}: {t}")
            if "Tokyo" in t["token"]:
                break
        # Short and long prompts, some of them in several chunks; each token and its log-probability.
        bits = []
        for prompt, n in (("The capital of Japan is", 32), ("Once upon a time there was " * 12, 24), ("def f(x):", 24)):
            scores = p.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 3,
                                                "ignore_eos": True})["choices"][0]["logprobs"]
            bits.append((scores["tokens"], scores["token_logprobs"]))
    return bits


def in_the_terminal(p, verb, *args):
    r = subprocess.run([os.path.join(BUILD, "slipring"), verb, *map(str, args)], capture_output=True, text=True, env=p.env,
                       timeout=60)
    check(r.returncode == 0, r.stderr)
    return r.stdout


def the_same(wanted, *flags):
    """What holds where nothing is said: everywhere the same, and it is what is done."""
    names = [k for k in wanted if k != "from"]
    question, prompt = "Tell me about the sea.", "Once upon a time"
    shows = json.loads(subprocess.run([os.path.join(BUILD, "slipring"), "show", "--json", *flags], capture_output=True,
                                      text=True, timeout=60).stdout)["sampling"]
    check(shows == wanted, f"show: {shows}")
    with Programs() as p:
        p.serve(*flags)
        card = json.loads(p.ask("GET", "/v1/models")[2])["data"][0]
        if flags == ("--generation-config", "vllm"):
            check("sampling" not in card, f"a card of vLLM's: {card}")
        else:
            check(card["sampling"] == wanted, f"/v1/models: {card}")
        said = {k: wanted[k] for k in names if wanted[k] is not None}
        ask = {"messages": [{"role": "user", "content": question}], "max_tokens": 32, "seed": 3}
        chat = [p.post("/v1/chat/completions", {**ask, **more})["choices"][0]["message"]["content"] for more in ({}, said)]
        check(chat[0] == chat[1], f"chat completions: {chat}")
        text = in_the_terminal(p, "chat", "-n", 32, "--seed", 3, "--once", question)
        check(text == chat[0] + "\n", f"slipring chat: {text!r}, HTTP: {chat[0]!r}")
        ask = {"prompt": prompt, "max_tokens": 32, "seed": 3}
        whole = [p.post("/v1/completions", {**ask, **more})["choices"][0]["text"] for more in ({}, said)]
        check(whole[0] == whole[1], f"completions: {whole}")
        text = in_the_terminal(p, "generate", "-n", 32, "--seed", 3, prompt)
        check(text == whole[0] + "\n", f"slipring generate: {text!r}, HTTP: {whole[0]!r}")
        r = subprocess.run([sys.executable, "-c", "import slipring\nwith slipring.open() as s:\n"
                            f"    print(s.sampling['temperature'], s.generate({prompt!r}, max_tokens=32, seed=3).text())"],
                           capture_output=True, text=True, timeout=60,
                           env=dict(p.env, PYTHONPATH=os.path.join(ROOT, "adapters/python"), SLIPRING_SOCKET=p.socket,
                                    SLIPRING_MODEL=MODEL, SLIPRING_LIB=BUILD))
        check(r.stdout == f"{float(wanted['temperature'])} {whole[0]}\n", f"Python: {r.stdout!r} {r.stderr}, HTTP: {whole[0]!r}")
        told = p.post("/v1/responses", {"input": "Hi", "max_output_tokens": 16})
        check((told["temperature"], told["top_p"]) == (wanted["temperature"], wanted["top_p"]), f"responses: {told}")
    return chat[0]


def main():
    need_model()
    command, asked = shown("README.md", "The first answer")
    check(asked["max_tokens"] <= 64 and "temperature" not in asked, f"a bound, and the defaults: {asked}")
    _, streamed = shown("docs/start.md", "Serving a model")
    check(streamed["max_tokens"] <= 200 and streamed["stream"], f"a bound: {streamed}")
    here = list(tables())
    check("plain" in here, "plain C runs on any CPU")
    bits = {table: first_answer(table, command, asked) for table in here}
    for table in here:
        check(bits[table] == bits["plain"], f"{table} computes other tokens or log-probabilities than plain C: {bits}")
    llama = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1, "max_tokens": None,
             "from": "llama.cpp's defaults"}
    vllm = {**llama, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "from": "vLLM's defaults"}
    given = {**llama, "temperature": 0.3, "from": "--override-generation-config"}
    texts = {the_same(llama), the_same(vllm, "--generation-config", "vllm"),
             the_same(given, "--override-generation-config", '{"temperature": 0.3}')}
    check(len(texts) == 3, f"they differ: {texts}")
    done()


main()
