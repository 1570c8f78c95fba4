#!/bin/sh
# make demo: start daemon and adapter with the default model, ask a question over HTTP, stream the
# answer with its speed, then the same over the rings, and stop.  Leaves nothing behind.
set -eu
build=${1:-build}
dir=$(mktemp -d)
trap 'kill "$pid" 2>/dev/null || :; wait "$pid" 2>/dev/null || :; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

export RUNTIME_DIRECTORY="$dir"
echo "demo: starting slipring serve (log: $dir/log)"
"$build/slipring" serve --port 0 --ready-file "$dir/url" 2>"$dir/log" &
pid=$!
i=0
while [ ! -s "$dir/url" ]; do
	kill -0 "$pid" 2>/dev/null || { cat "$dir/log" >&2; echo "demo: the server did not start" >&2; exit 1; }
	i=$((i + 1))
	[ $i -lt 1800 ] || { cat "$dir/log" >&2; echo "demo: not ready within three minutes" >&2; exit 1; }
	sleep 0.1
done
url=$(cat "$dir/url")

question="What is photosynthesis? Answer in two sentences."
echo "demo: the server is at $url; over HTTP (vLLM's API):"
echo
echo "  curl $url/v1/chat/completions -H 'Content-Type: application/json' -d '{\"messages\":[..],\"stream\":true}'"
echo
python3 - "$url" "$question" <<'PY'
import json, sys, time, urllib.request
url, question = sys.argv[1:]
body = {"messages": [{"role": "user", "content": question}], "max_tokens": 100, "stream": True,
        "stream_options": {"include_usage": True}}
r = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                           {"Content-Type": "application/json"})
start = time.perf_counter(); first = None; usage = None
with urllib.request.urlopen(r, timeout=180) as f:
    for line in f:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for c in event.get("choices", []):
            text = c["delta"].get("content")
            if text:
                first = first or time.perf_counter()
                print(text, end="", flush=True)
end = time.perf_counter()
n = usage["completion_tokens"]
print(f"\n\n  {n} tokens, first after {1e3 * (first - start):.1f} ms, then {(n - 1) / (end - first):.0f} tokens/s over HTTP\n")
PY
echo "demo: the same over the rings (slipring chat):"
echo
"$build/slipring" chat --max-tokens 100 --once "$question"
