#!/usr/bin/env python3
"""vLLM's recorded answers (tests/conformance) and the Python module, against a live server; and
what a chat template does not read is refused."""
import json, subprocess
from harness import *


def tools_are_seen(p):
    """The default model's template reads no tools: they are described to it.  Documents are refused, not left out."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
    body = {"messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 1}
    status, _, text = p.ask("POST", "/v1/chat/completions", {**body, "documents": [{"text": "x"}]})
    check(status == 400 and json.loads(text)["error"]["param"] == "documents" and "does not use" in text, text)
    plain = p.post("/tokenize", body)["tokens"]
    shown = p.post("/tokenize", {**body, "tools": tools})["count"]
    check(shown > len(plain) + 40, "the tools are described")
    check(p.post("/v1/chat/completions", {**body, "tools": tools})["usage"]["prompt_tokens"] == shown, "as in a chat")
    check(p.post("/tokenize", {**body, "tools": tools, "tool_choice": "none"})["tokens"] == plain, "no call is wanted")
    check(p.post("/tokenize", {**body, "chat_template_kwargs": {"nobody_reads": 1}})["tokens"] == plain, "as vLLM")


def main():
    need_model()
    with Programs() as p:
        p.serve("--served-model-name", "smol", "--max-model-len", 4096, "--generation-config", "vllm")
        r = subprocess.run([sys.executable, os.path.join(HERE, "conformance/run.py"), p.url],
                           capture_output=True, text=True, timeout=300)
        print(r.stdout[-3000:], r.stderr[-2000:])
        tools_are_seen(p)
        check(r.returncode == 0, "recorded answers of vLLM agree")
    with Programs() as p:
        p.serve("--served-model-name", "smol", "--max-model-len", 4096)
        lib = os.path.abspath(BUILD)
        r = subprocess.run([sys.executable, os.path.join(HERE, "adapters/test_python.py")], capture_output=True, text=True,
                           timeout=120, env=dict(p.env, SLIPRING_SOCKET=p.socket, SLIPRING_MODEL=MODEL, SLIPRING_LIB=lib))
        print(r.stdout[-3000:], r.stderr[-2000:])
        check(r.returncode == 0 and "ok:" in r.stdout, "the Python module")
        r = subprocess.run([sys.executable, os.path.join(HERE, "adapters/test_python_vllm.py"), p.url], capture_output=True,
                           text=True, timeout=120, env=dict(p.env, SLIPRING_SOCKET=p.socket, SLIPRING_MODEL=MODEL,
                                                            SLIPRING_LIB=lib))
        print(r.stdout[-3000:], r.stderr[-2000:])
        check(r.returncode == 0 and "ok:" in r.stdout, "vLLM's offline classes")
    done()


main()
