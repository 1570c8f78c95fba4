#!/usr/bin/env python3
"""Several models behind one address: slipring serve --models.  The null device computes."""
import re
from harness import *

ASK = {"prompt": "a b", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def tokens(p):
    status, _, text = p.ask("GET", "/metrics")
    check(status == 200, "/metrics answers")
    sums = {}
    for model, value in re.findall(r'^vllm:generation_tokens_total{engine="\d+",model_name="(.*?)"} (\S+)$', text, re.M):
        sums[model] = sums.get(model, 0) + float(value)
    return sums


def get(p, path):
    status, _, text = p.ask("GET", path)
    check(status == 200, f"{path}: {status} {text}")
    return json.loads(text)


def served(p):
    names = [m["id"] for m in get(p, "/v1/models")["data"]]
    check(names == ["one", "two", "deux"], f"/v1/models lists all: {names}")
    for name, long in (("one", 256), ("two", 512), ("deux", 512)):
        m = get(p, "/v1/models/" + name)
        check(m["id"] == name and m["max_model_len"] == long, f"each with its own context: {m}")
    listed = json.loads(p.ask("GET", "/v1/models", headers={"anthropic-version": "1"})[2])
    check([m["id"] for m in listed["data"]] == names and listed["last_id"] == "deux", f"for Anthropic's clients, too: {listed}")
    check(p.ask("GET", "/health")[0] == 200, "/health")


def chosen(p):
    for name, answers in (("one", "one"), ("two", "two"), ("deux", "two"), (None, "one")):
        ask = dict(ASK, model=name) if name else ASK
        r = p.post("/v1/completions", ask)
        check(r["model"] == answers, f"{name} is answered by {answers}: {r}")
    wait_for(lambda: tokens(p) == {"one": 8, "two": 8}, 5, 0.15)
    check(tokens(p) == {"one": 8, "two": 8}, f"metrics by model: {tokens(p)}")
    long = {"prompt": [65] * 300, "max_tokens": 4}
    status, _, text = p.ask("POST", "/v1/completions", dict(long, model="one"))
    check(status == 400 and "256" in text, f"limits are the model's: {status} {text}")
    check(p.ask("POST", "/v1/completions", dict(long, model="two"))[0] == 200, "and the other has its own")
    late = dict({"prompt": "x" * 20000, "max_tokens": 1}, model="nobody")
    for path, ask in (("/v1/completions", dict(ASK, model="nobody")), ("/v1/completions", late),
                      ("/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "x"}]}),
                      ("/tokenize", {"model": "nobody", "prompt": "x"})):
        status, _, text = p.ask("POST", path, ask)
        check(status == 404 and "The model `nobody` does not exist. Valid aliases: one, two, deux." in text, f"{path}: {status} {text}")
    check(p.ask("GET", "/v1/models/nobody")[0] == 404, "and no such model is shown")
    check(p.post("/tokenize", {"model": "two", "prompt": "ab"})["max_model_len"] == 512, "/tokenize knows models")


def shown(p):
    """The page has all daemons of all models; a turn of a knob goes to the one that it names."""
    for number, model in enumerate(("one", "two", "two")):
        c = http.client.HTTPConnection("127.0.0.1", p.port, timeout=20)
        c.request("GET", f"/ui/live?replica={number}")
        r = c.getresponse()
        lines = (line[6:] for line in iter(r.readline, b"") if line.startswith(b"data: "))
        hello, e = json.loads(next(lines)), json.loads(next(lines))
        check(hello["daemons"] == ["one", "two, daemon 0", "two, daemon 1"], hello)
        check(e["replica"] == number and e["model"].startswith(model), e)
        c.close()
    check(p.ask("GET", "/ui/live?replica=3")[0] == 404, "and no more")


def refused(p, text, says, *args):
    path = os.path.join(p.dir, "wrong")
    with open(path, "w") as f:
        f.write(text)
    r = subprocess.run([os.path.join(BUILD, "slipring"), "serve", "--device", "null", "--port", "0", "--models", path, *args],
                       env=p.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    check(r.returncode in (1, 2) and says in r.stderr, f"{text!r}: {r.returncode} {r.stderr}")


with Programs() as p:
    make_model(os.path.join(p.dir, "m1"), context=256)
    make_model(os.path.join(p.dir, "m2"), context=512)
    models = os.path.join(p.dir, "models")
    with open(models, "w") as f:
        f.write(f"# two models\none  {p.dir}/m1\n\ntwo '{p.dir}/m2' --served-model-name two deux -dp 2  # replicas\n")
    p.serve("--device", "null", "--load-format", "dummy", "--models", models)
    served(p)
    chosen(p)
    shown(p)
    refused(p, "", "there is no model in it")
    refused(p, f"a/b {p.dir}/m1\n", "line 1: a line begins with the model's instance")
    refused(p, f"a {p.dir}/m1\n\na {p.dir}/m2\n", "line 3: a is there twice")
    refused(p, f"a '{p.dir}/m1\n", "line 1: a quote is not closed")
    refused(p, f"a {p.dir}/m1 --max-num-seq 5\n", "a: --max-num-seq is unknown; did you mean --max-num-seqs?")
    refused(p, f"a {p.dir}/m1\n", "a MODEL was already given", "b")
    refused(p, f"a {p.dir}/m1 --load-format dummy --kv-cache-memory-bytes 9T\n", "a: ")
    refused(p, f"a {p.dir}/m1\nb {p.dir}/m2 --served-model-name a\n", "Two models are served as a", "--load-format", "dummy")
done()
