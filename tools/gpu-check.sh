#!/bin/sh
# Is the CUDA back end right on this GPU, and how fast?  tools/gpu-check.sh BUILD, by `make gpu-check`.
# Some minutes.  The last lines are the result; numbers are in BUILD/gpu-check.json, too.
#
#	instructions   what the emulation of tests/emu computes, against this GPU
#	parity         every verb, sampling and whole batches of small models, against plain C
#	packed         products of 4- and 8-bit weights, against sums in double
#	memcheck       the same under compute-sanitizer, if it is installed
#	bench          against this GPU's own ceilings, the shape of Llama-3.1-8B, made-up weights
set -u
build=${1:-build}
tests=$build/gpu/tests
bad=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT INT TERM

if ! nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit --format=csv,noheader; then
	echo "SKIP gpu-check: no NVIDIA GPU answers here"
	exit 0
fi

step() { # name seconds command...
	name=$1 limit=$2
	shift 2
	if timeout -k 5 "$limit" "$@" >"$out" 2>&1; then
		summary="$summary$name: $(tail -n 1 "$out")
"
	else
		summary="$summary$name: FAILED (exit $?)
$(tail -n 8 "$out")
"
		bad=1
	fi
}

summary=
step instructions 60 "$tests/test_emu"
step parity 120 "$tests/test_cuda"
step packed 60 "$tests/test_cuda_packed"
if command -v compute-sanitizer >/dev/null; then
	step memcheck 200 compute-sanitizer --error-exitcode 9 "$tests/test_cuda"
else
	summary="${summary}memcheck: SKIP, compute-sanitizer is not installed
"
fi
if timeout -k 5 240 "$tests/cuda/bench" 8b "$build/gpu-check.json" >"$out" 2>&1; then
	cat "$out"
else
	cat "$out"
	summary="${summary}bench: FAILED
"
	bad=1
fi
printf '%s' "$summary"
[ "$bad" -eq 0 ] && echo "gpu-check: ok" || echo "gpu-check: FAILED"
exit "$bad"
