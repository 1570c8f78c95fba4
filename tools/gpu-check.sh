#!/bin/sh
# Is the CUDA back end right on this GPU, and how fast?  By `make gpu-check`:
#
#	gpu-check.sh BUILD               builds for this GPU alone, in BUILD/gpu-check
#	gpu-check.sh --built KIT [OUT]   runs what `make gpu-kit` has built elsewhere; results go to OUT
#
# It ends after 8 minutes, whatever is left.  Its last 30 lines are the result; result.json has the same,
# table.txt each cell, verbs.txt each part of a step.  What failed is told before them.  After each step the results so
# far are in bundle.tar.gz, so that a run that is cut off is worth what it has done.  The steps, each within its own
# limit, what is most worth knowing first:
#
#	probe          what GPU this is, or in one sentence why CUDA cannot use it: then nothing else is tried
#	instructions   what the emulation of tests/emu computes, against this GPU
#	parity         every verb, sampling and whole batches of small models, against plain C
#	packed, hopper products of 4- and 8-bit weights; what only a Hopper GPU can execute: against sums in double
#	verbs          decoding, and each part of a step beside this GPU's best: the shape of Llama-3.1-8B, made-up weights
#	graph, special steps as graphs; each special kernel switched off
#	products, lt   products of bf16, and by cuBLASLt: against sums in double
#	groups         a model's layers in several groups of KV blocks, against one group
#	kinds, experts what families other than Llama have; mixtures of experts
#	masks, guesses, pool, encoder  guided rows, guesses, vectors, layers that look both ways
#	NAME is mended by     of tests of whole batches that failed: without which special kernel they pass
#	speed          decoding, prompts, attention and sampling against this GPU's own ceilings
#	rings          slipringd with that shape: first tokens over rings, pauses between steps
#	peers          PyTorch's own kernels in the same run, if it is installed
#	answers        the default model's greedy answers, if it and all programs are there
#	memcheck       packed and small under compute-sanitizer, if it is installed
#	small          the benchmark with a small shape, only if speed failed
#
# Exit code 0: right, and no floor missed; 1: something is wrong; 2: right, but a floor is missed, or there
# was no time for a step.
set -u

# ---- steps that are more than one program: gpu-check.sh --step NAME .., with our variables --------------

# What called us may be make: the builds here are their own.
compile() { # target...
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -C "$here" -j "$(nproc)" BUILD="$bin" \
		SM="-gencode=arch=compute_$sm,code=sm_$sm" "$@"
}

# Small shapes, and kernel by kernel, since each tool is slow.  racecheck is not for Hopper's kernels: it takes
# copies of the async proxy, which other warps read after their mbarrier, for hazards.
memcheck() {
	worst=0
	check() { # tool "kernel or empty" program..
		tool=$1 kernel=$2
		shift 2
		CHECK_SECONDS=300 "$sanitizer" --tool "$tool" --error-exitcode 9 --target-processes all \
			${kernel:+--kernel-name "kernel_substring=$kernel"} "$@" && how=ok || how="FAILED, exit $?"
		[ "$how" = ok ] || worst=1
		echo "sanitizer: $tool ${kernel:-all} of ${1##*/}: $how"
	}
	ONE=test_products check memcheck '' "$tests/test_cuda_products"
	for kernel in rows_kernel packed_few attend_one attend_run; do
		check racecheck "$kernel" "$tests/cuda/bench" tiny
	done
	for kernel in hopper_many hopper_attend; do
		check synccheck "$kernel" "$tests/test_cuda_hopper"
	done
	check memcheck '' "$tests/cuda/bench" tiny
	check initcheck '' "$tests/test_cuda_groups"
	return $worst
}

# Which switch mends a test that fails?  What is switched off then computes wrongly, or what it hides behind.
bisect() { # program
	[ -x "$1" ] || return
	for name in early_start graphs lt hopper_many hopper_attend w8a8 dense_few packed_few pieces run_pieces attend_one w4a8 sample_blocks; do
		if SLIPRING_CUDA_WITHOUT=$name timeout -k 5 60 "$1" >/dev/null 2>&1; then
			echo "right without $name"
		else
			echo "wrong without $name, too"
		fi
	done
}

# A daemon with the benchmark's shape and weights that it makes up, and its client.
rings() { # FILE TOKENS LIMIT_US ..: as rings.c takes them
	run=$(mktemp -d)
	mkdir "$run/model"
	cat >"$run/model/config.json" <<-'EOF'
	{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
	 "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
	 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072,
	 "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": false,
	 "torch_dtype": "bfloat16"}
	EOF
	: >"$run/log"
	RUNTIME_DIRECTORY=$run "$daemon" "$run/model" --device "${GPU_CHECK_DEVICE:-cuda}" --load-format dummy \
		--max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 8192 >"$run/log" 2>&1 &
	pid=$!
	trap '{ kill $pid; wait $pid; rm -rf "$run"; } 2>/dev/null' EXIT
	trap 'exit 1' INT TERM
	until grep -q 'Ready after' "$run/log"; do
		if ! kill -0 $pid 2>/dev/null; then
			tail -n 5 "$run/log"
			grep -q 'cannot plan the memory: .*[Mm]emory' "$run/log" || exit 1
			why=$(sed -n 's/.*cannot plan the memory: //p' "$run/log" | cut -c 1-120)
			echo "SKIP: the daemon says: $why"
			exit 0
		fi
		sleep 1
	done
	"$tests/cuda/rings" "$run" "$@" && exit 0
	tail -n 5 "$run/log"
	exit 1
}

if [ "${1:-}" = --step ]; then
	shift
	"$@"
	exit
fi

# ---- the run ---------------------------------------------------------------------------------------------

here=$(cd "$(dirname "$0")/.." && pwd)
again=$here/tools/gpu-check.sh
ends=$(($(date +%s) + ${GPU_CHECK_SECONDS:-475}))
root=${GPU_CHECK_ROOT:-}             # in tests: where /proc and /dev are
bad=0 slow=0 late=0 verdicts='' checks='' child='' watcher='' kit='' name='' failed=''
trap 'kill $child $watcher 2>/dev/null' EXIT
trap 'exit 1' INT TERM

if [ "${1:-}" = --built ]; then
	kit=yes
	bin=$(cd "${2:?the folder that make gpu-kit has made}" && pwd) || exit 1
	results=$(realpath -m "${3:-gpu-check}")
else
	bin=$(realpath -m "${1:-build}")/gpu-check
	results=$bin
fi
tests=$bin/gpu/tests
daemon=$bin/slipringd

# Without nvidia-smi, as in some containers, CUDA itself says what GPU this is; the driver's files have its name.
what=name,driver_version,memory.total,power.limit,compute_cap
if command -v nvidia-smi >/dev/null; then
	gpu=$(timeout -k 5 30 nvidia-smi --query-gpu=$what --format=csv,noheader 2>&1)
	code=$?
	[ "$code" -ne 124 ] && [ "$code" -ne 137 ] || gpu="nvidia-smi did not answer in 30 s"
else
	gpu="nvidia-smi is not installed" code=127
fi
if [ "$code" -eq 0 ]; then
	gpu=$(echo "$gpu" | head -n 1)       # the back end uses the first
	capability=$(echo "${gpu##*, }" | tr -cd 0-9)
elif [ -e "$root/proc/driver/nvidia/version" ] || [ -e "$root/dev/nvidiactl" ]; then
	echo "NOTE: $(echo "$gpu" | head -n 1): going on without it"
	gpu=$(cat "$root"/proc/driver/nvidia/gpus/*/information 2>/dev/null | sed -n 's/^Model:[[:space:]]*//p' | head -n 1)
	gpu="${gpu:-unknown GPU}, driver $(grep -o -m 1 '[0-9]*\.[0-9.]*  ' "$root/proc/driver/nvidia/version" 2>/dev/null | tr -d ' ')"
	capability=$("$(dirname "$(command -v "${NVCC:-nvcc}")")/__nvcc_device_query" 2>/dev/null | tr -cd '0-9\n' | head -n 1)
	[ -n "$kit$capability" ] || { echo "gpu-check: FAILED: which GPU to build for is not known without nvidia-smi"; exit 1; }
else
	echo "SKIP gpu-check: no NVIDIA GPU answers here"
	exit 0
fi
sm=$capability
[ "$sm" = 90 ] && sm=90a             # its own instructions
sanitizer=$(command -v compute-sanitizer || ls "$(dirname "${NVCC:-nvcc}")/compute-sanitizer" 2>/dev/null)
export here bin tests daemon sm sanitizer

mkdir -p "$results" || exit 1
rm -f "$results"/*.log "$results"/*.rows "$results"/*.txt "$results"/*.json "$results"/*.sha256 "$results"/bundle.tar.gz*
: >"$results/table.txt"
: >"$results/clocks.txt"
: >"$results/notes.txt"

verdict() { # name verdict
	verdicts="${verdicts:+$verdicts; }$1: $2"
	checks="${checks:+$checks, }\"$1\": \"$2\""
}

room() { # seconds reserve: so many, or what is left without the reserve
	left=$((ends - $(date +%s) - $2))
	[ "$1" -lt "$left" ] && echo "$1" || echo "$left"
}

# ---- what is kept ----------------------------------------------------------------------------------------

# What holds before anything runs.
note() {
	echo "NOTE: $1" | tee -a "$results/notes.txt"
}

smi() { # field
	timeout -k 5 10 nvidia-smi -i 0 --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -n 1
}

facts() {
	timeout -k 5 20 nvidia-smi -q >"$results/nvidia-smi.txt" 2>&1
	cat "$bin/gpu/code.txt" >"$results/code.txt" 2>/dev/null || echo "commit unknown" >"$results/code.txt"
	[ "$(smi mig.mode.current)" != Enabled ] ||
		note "MIG is on: this is one part of the GPU, and figures are of that part; \"nvidia-smi -mig 0\" turns it off"
	errors=$(smi ecc.errors.uncorrected.volatile.total)
	case $errors in
	''|*[!0-9]*|0) ;;
	*) note "this GPU has had $errors uncorrected memory errors: results can be wrong; reset it or restart the machine" ;;
	esac
	used=$(smi memory.used)
	case $used in
	''|*[!0-9]*) ;;
	*) [ "$used" -lt 2048 ] || note "other programs have $((used / 1024)) GiB of this GPU ($(timeout -k 5 10 nvidia-smi -i 0 \
		--query-compute-apps=pid,name --format=csv,noheader 2>/dev/null | head -n 3 | tr '\n' ';' | tr -d '"\\' |
		sed 's/;$//')): speeds are lower, and what does not fit is left out" ;;
	esac
	[ "$(smi compute_mode)" != Prohibited ] || note "compute mode is Prohibited: \"nvidia-smi -c 0\" allows programs"
}

# The results so far, and everything for whoever was not there in one file.
save() {
	rows=$results/speed.rows
	grep -qs '"part"' "$rows" || rows=$results/verbs.rows
	cat "$rows" "$results/rings.rows" "$results/peers.rows" 2>/dev/null | grep '^	{.*}' | grep -v '"verb": ' |
		sed 's/,$//' >"$results/rows.part"
	awk -f "$here/tests/cuda/goals.awk" "$results/rows.part" >"$results/goals.txt" || slow=1
	[ ! -e "$results/verbs.rows" ] || [ -e "$results/verbs.txt" ] || awk -v capability="$capability" -f "$here/tests/cuda/verbs.awk" "$here/docs/cuda.md" \
		"$results/verbs.rows" >"$results/verbs.txt"
	printf '{"gpu": "%s", "code": "%s", "notes": "%s", "checks": {%s}, "rows": [\n%s\n]}\n' "$gpu" \
		"$(tr '\n' ' ' <"$results/code.txt" | sed 's/ $//')" "$(tr -d '"\\' <"$results/notes.txt" | tr '\n' ' ')" "$checks" \
		"$(sed '$!s/$/,/' "$results/rows.part")" >"$results/result.json"
	rm -f "$results/rows.part"
	(cd "$results" && tar -czf bundle.tar.gz.part ./*.txt ./*.json ./*.log ./*.rows ./*.sha256 2>/dev/null
		mv bundle.tar.gz.part bundle.tar.gz)
}

trap 'verdict "${name:-start}" "INTERRUPTED"; save; exit 1' INT TERM

# The reserve is for steps that come later and are worth more.  Without one a step has what is left; if that
# was less than its seconds, it has not failed by not being done.
step() { # name seconds reserve command...
	name=$1 limit=$(room "$2" "$3") cut=''
	[ "$3" -eq 0 ] && [ "$limit" -lt "$2" ] && cut=yes
	shift 3
	if [ "$limit" -lt 5 ]; then
		verdict "$name" "SKIP, no time left"
		late=1
		return 1
	fi
	echo "gpu-check: $name, at most $limit s"
	out=$results/$name.log
	timeout -k 5 "$limit" "$@" >"$out" 2>&1 </dev/null & # a shell that waits can be interrupted
	child=$!
	wait $child
	code=$? child=''
	judge
	code=$?
	save
	return $code
}

judge() { # of `name` by `code`, `limit`, `cut` and what is in `out`
	if [ "$code" -eq 0 ]; then
		why=$(grep -m 1 -o 'SKIP: .*' "$out" | tr -d '"\\')
		tail -n 1 "$out" | grep -q '^0 passed, 0 failed' && why="SKIP, nothing of it is for this GPU"
		verdict "$name" "${why:-ok}"
		return 0
	fi
	tail -n 30 "$out" | sed "s/^/$name: /"
	if [ "$code" -eq 124 ] && [ -n "$cut" ]; then
		verdict "$name" "SKIP, not done in the $limit s that were left"
		late=1
		return 1
	fi
	[ "$code" -eq 124 ] && code="not done in $limit s" || code="exit $code"
	verdict "$name" "FAILED, $code"
	bad=1
	return 1
}

# ---- the steps -------------------------------------------------------------------------------------------

# Whole batches: a failure is narrowed down later.
whole() { # name seconds program
	step "$1" "$2" 180 "$3" || failed="$failed $1=$3"
}

narrow() {
	for f in $failed; do
		[ -x "${f#*=}" ] || continue
		limit=$(room 60 200)
		[ "$limit" -ge 10 ] || return
		name="${f%%=*} is mended by"
		timeout -k 5 "$limit" "$again" --step bisect "${f#*=}" >"$results/${f%%=*}.mended.log" 2>&1
		sed "s/^/${f%%=*}: /" "$results/${f%%=*}.mended.log"
		mends=$(sed -n 's/^right without //p' "$results/${f%%=*}.mended.log" | tr '\n' ' ' | sed 's/ $//')
		verdict "$name" "${mends:-none of the switches} (SLIPRING_CUDA_WITHOUT)"
		save
	done
}

# A driver that hangs hangs whoever asks it.
clocks() { # words
	echo "$1: $(timeout -k 5 10 "$tests/cuda/watch")" >>"$results/clocks.txt"
}

# What the benchmark has said counts, even if it did not come to its end.
measured() { # name seconds reserve rest..: of bench 8b
	watched=$1
	clocks "before $1"
	timeout -k 5 480 "$tests/cuda/watch" load >"$results/load" 2>&1 &
	watcher=$!
	shift
	if step "$watched" "$@"; then ok=0; else ok=1; fi
	cat "$results/$watched.log" >>"$results/table.txt" 2>/dev/null
	{ kill $watcher; wait $watcher; } 2>/dev/null
	watcher=
	sed 's/^\([^W]\)/under load: \1/' "$results/load" >>"$results/clocks.txt"
	rm -f "$results/load"
	return $ok
}

verbs() {
	limit=$(room 60 120)
	measured verbs "$((limit + 15))" 100 "$tests/cuda/bench" 8b "$results/verbs.rows" "$limit" verbs
}

speed() {
	limit=$(room 150 60)             # it leaves out by itself what there is no time for
	measured speed "$((limit + 15))" 0 "$tests/cuda/bench" 8b "$results/speed.rows" "$limit" ||
		step small 30 0 "$tests/cuda/bench" tiny
	clocks after
}

# What the benchmark found to be the least time of a prompt of so many tokens, in us; 0: it did not.
least() {
	[ -e "$results/speed.rows" ] || { echo 0; return; }
	cell="\"at\": \"$1 tokens\", \"work\": \"first token, in process\", \"kind\": \"bf16\""
	sed -n "s/.*$cell, \"us\": \([0-9.e+]*\), \"part\": \([0-9.e+-]*\),.*/\1 \2/p" "$results/speed.rows" |
		awk '{ printf "%.1f", $1 * $2 } END { if (!NR) print 0 }'
}

with_daemon() {
	if [ ! -x "$daemon" ] && [ -z "$kit" ]; then
		limit=$(room 120 30)
		if [ "$limit" -lt 5 ]; then
			verdict rings "SKIP, no time left"
			late=1
			return
		fi
		if ! timeout -k 5 "$limit" "$again" --step compile cuda all >"$results/daemon.log" 2>&1; then
			tail -n 3 "$results/daemon.log"
			verdict rings "SKIP, the daemon cannot be built here"
			return
		fi
	fi
	step rings 75 0 "$again" --step rings "$results/rings.rows" 128 "$(least 128)" 2048 "$(least 2048)" &&
		cat "$results/rings.log" >>"$results/table.txt"
}

peers() {
	has_torch='import torch, sys; sys.exit(not torch.cuda.is_available())'
	if ! timeout -k 5 60 python3 -c "$has_torch" 2>/dev/null; then
		verdict peers "SKIP, no PyTorch with CUDA here"
	elif step peers 60 0 python3 "$here/tests/cuda/peers.py" --rows "$results/speed.rows" --out "$results/peers.rows"; then
		cat "$results/peers.log" >>"$results/table.txt"
	fi
}

answers() {
	model=${XDG_CACHE_HOME:-$HOME/.cache}/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf
	if [ ! -e "$model" ]; then
		verdict answers "SKIP, the default model is not there"
	elif [ ! -x "$bin/slipring-http" ] || [ ! -x "$bin/slipring" ]; then
		verdict answers "SKIP, slipring-http is not built here"
	else
		step answers 60 0 python3 "$here/tests/cuda/answers.py" "$bin"
	fi
}

everything() {
	if ! step probe 60 60 "$tests/cuda/bench" probe; then
		failed=probe
		return
	fi
	sed 's/^/gpu-check: /' "$results/probe.log"
	capability=${capability:-$(sed -n 's/.*compute capability \([0-9]*\)\.\([0-9]*\),.*/\1\2/p' "$results/probe.log")}
	(cd "$bin" && find . -name '*.so' -o -path './gpu/tests/*' -type f ! -name '*.o' ! -name '*.d' | sort |
		xargs sha256sum) >"$results/programs.sha256" 2>/dev/null
	step instructions 60 180 "$tests/test_emu"
	step hopper_instructions 30 180 "$tests/test_emu_hopper"
	whole parity 100 "$tests/test_cuda"
	step packed 60 180 "$tests/test_cuda_packed"
	step hopper 30 180 "$tests/test_cuda_hopper"
	verbs
	whole graph 40 "$tests/test_cuda_graph"
	step special 40 180 "$tests/test_cuda_special"
	step products 30 180 "$tests/test_cuda_products"
	step lt 30 180 "$tests/test_cuda_lt"
	whole groups 30 "$tests/test_cuda_groups"
	whole kinds 60 "$tests/test_cuda_kinds"
	whole experts 60 "$tests/test_cuda_experts"
	whole masks 30 "$tests/test_cuda_masks"
	whole guesses 30 "$tests/test_cuda_guesses"
	whole pool 30 "$tests/test_cuda_pool"
	whole encoder 30 "$tests/test_cuda_encoder"
	narrow
	speed
	with_daemon
	peers
	answers
	if [ -n "$sanitizer" ]; then
		step memcheck 480 0 "$again" --step memcheck # all that is left: it is slow, not wrong
	else
		verdict memcheck "SKIP, compute-sanitizer is not installed"
	fi
}

facts
save
if [ -n "$kit" ] || step build 240 180 "$again" --step compile gpu-tests; then
	cat "$bin/gpu/code.txt" >"$results/code.txt" 2>/dev/null
	everything
fi
slow=0
dmesg 2>/dev/null | grep -i 'NVRM\|Xid' | tail -n 50 >"$results/driver.txt"
save
echo "send back: $results/bundle.tar.gz"
cat "$results/table.txt"
[ ! -e "$results/verbs.txt" ] || cat "$results/verbs.txt"
echo
echo "$gpu"
cat "$results/notes.txt" "$results/clocks.txt" "$results/goals.txt"
echo "$verdicts"
if [ "$bad" -ne 0 ]; then
	[ "$failed" != probe ] || sed 's/^/gpu-check: /' "$results/probe.log"
	echo "gpu-check: FAILED"
	exit 1
elif [ "$slow" -ne 0 ]; then
	echo "gpu-check: right, but below a floor"
	exit 2
elif [ "$late" -ne 0 ]; then
	echo "gpu-check: right as far as it was run"
	exit 2
fi
echo "gpu-check: ok"
