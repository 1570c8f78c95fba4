#!/bin/sh
# Run every fuzzer for a while: tests/fuzz.sh BUILD SECONDS.  New inputs stay in BUILD/corpus; a
# crash is kept in BUILD and fails.
set -u
build=$1 seconds=$2 failed=0 passed=0
for f in "$build"/tests/fuzz_*; do
	case $f in *.o|*.d|*'*') continue ;; esac
	name=$(basename "$f")
	mkdir -p "$build/corpus/$name"
	seeds=$(dirname "$0")/data/$name
	[ -d "$seeds" ] || seeds=
	[ "$name" != fuzz_model ] || python3 "$(dirname "$0")/models/fuzz_seeds.py" "$build/corpus/$name" || failed=$((failed + 1))
	echo "$name: $seconds s"
	if timeout -k 10 $((seconds + 60)) "$f" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
	   -print_final_stats=1 -artifact_prefix="$build/$name-" "$build/corpus/$name" $seeds \
	   >"$build/$name.log" 2>&1; then
		sed -n 's/^stat::number_of_executed_units: */  executions: /p' "$build/$name.log"
		passed=$((passed + 1))
	else
		tail -n 30 "$build/$name.log"
		failed=$((failed + 1))
	fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
