#!/bin/sh
# Is the CUDA back end right on this GPU, and how fast?  tools/gpu-check.sh BUILD, by `make gpu-check`.
# Builds for this GPU alone in BUILD/gpu-check, and ends after 8 minutes, whatever is left.  Its last
# 30 lines are the result; BUILD/gpu-check/result.json has the same.  What failed is told before them.
#
#	instructions   what the emulation of tests/emu computes, against this GPU
#	parity         every verb, sampling and whole batches of small models, against plain C
#	packed         products of 4- and 8-bit weights, against sums in double
#	small          the benchmark with a small shape
#	speed          against this GPU's own ceilings, the shape of Llama-3.1-8B, made-up weights
#	answers        the default model's greedy answers, if it and the daemon are there
#	memcheck       packed and small under compute-sanitizer, if it is installed
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-build}
tests=$build/gpu-check/gpu/tests
result=$build/gpu-check/result.json
ends=$(($(date +%s) + 475))
bad=0 verdicts='' checks=''
out=$(mktemp)
trap 'rm -f "$out" "$out.table" "$out.rows"' EXIT INT TERM

if ! gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,compute_cap --format=csv,noheader); then
	echo "SKIP gpu-check: no NVIDIA GPU answers here"
	exit 0
fi
gpu=$(echo "$gpu" | head -n 1)       # the back end uses the first
sm=$(echo "${gpu##*, }" | tr -d .)
[ "$sm" = 90 ] && sm=90a             # its own instructions

verdict() { # name verdict
	verdicts="${verdicts:+$verdicts; }$1: $2"
	checks="${checks:+$checks, }\"$1\": \"$2\""
}

room() { # seconds: so many, or what is left
	left=$((ends - $(date +%s)))
	[ "$1" -lt "$left" ] && echo "$1" || echo "$left"
}

step() { # name seconds command...
	name=$1 limit=$(room "$2")
	shift 2
	if [ "$limit" -lt 5 ]; then
		verdict "$name" "SKIP, no time left"
		return 0
	fi
	echo "gpu-check: $name, at most $limit s"
	timeout -k 5 "$limit" "$@" >"$out" 2>&1 </dev/null
	code=$?
	if [ "$code" -eq 0 ]; then
		why=$(grep -m 1 -o 'SKIP: .*' "$out" | tr -d '"\\')
		verdict "$name" "${why:-ok}"
		return 0
	fi
	tail -n 30 "$out" | sed "s/^/$name: /"
	[ "$code" -eq 124 ] && code="not done in $limit s" || code="exit $code"
	verdict "$name" "FAILED, $code"
	bad=1
	return 1
}

# What called us may be make: the builds here are their own.
compile() { # target...
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$here" -j "$(nproc)" BUILD="$(realpath -m "$build")/gpu-check" \
		SM="-gencode=arch=compute_$sm,code=sm_$sm" "$@"
}

memcheck() {
	"$sanitizer" --error-exitcode 9 "$tests/test_cuda_packed" &&
		"$sanitizer" --error-exitcode 9 "$tests/cuda/bench" tiny
}

# timeout(1) runs programs, not functions of this shell.
case ${2:-} in
compile|memcheck) what=$2; shift 2; "$what" "$@"; exit ;;
esac
again=$here/tools/gpu-check.sh

mkdir -p "$build/gpu-check"
: >"$out.table"
if step build 240 "$again" "$build" compile gpu-tests; then
	step instructions 60 "$tests/test_emu"
	step parity 100 "$tests/test_cuda"
	step packed 60 "$tests/test_cuda_packed"
	step small 30 "$tests/cuda/bench" tiny
	step speed 150 "$tests/cuda/bench" 8b "$out.rows" && cp "$out" "$out.table"
	model=${XDG_CACHE_HOME:-$HOME/.cache}/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf
	if [ ! -e "$model" ]; then
		verdict answers "SKIP, the default model is not there"
	elif [ "$(room 10)" -lt 10 ]; then
		verdict answers "SKIP, no time left"
	elif ! timeout "$(room 120)" "$again" "$build" compile cuda all >"$out" 2>&1; then
		verdict answers "SKIP, the daemon cannot be built here"
	else
		step answers 60 python3 "$here/tests/cuda/answers.py" "$build/gpu-check"
	fi
	sanitizer=$(command -v compute-sanitizer || ls "$(dirname "${NVCC:-nvcc}")/compute-sanitizer" 2>/dev/null)
	export sanitizer
	if [ -n "$sanitizer" ]; then
		step memcheck 120 "$again" "$build" memcheck
	else
		verdict memcheck "SKIP, compute-sanitizer is not installed"
	fi
fi
[ -s "$out.rows" ] && tail -n 1 "$out.rows" | grep -q ']' || echo '[]' >"$out.rows"
printf '{"gpu": "%s", "checks": {%s}, "rows": %s}\n' "$gpu" "$checks" "$(cat "$out.rows")" >"$result"
echo "$gpu"
tail -n 26 "$out.table"
echo "$verdicts"
[ "$bad" -eq 0 ] && echo "gpu-check: ok" || echo "gpu-check: FAILED"
exit "$bad"
