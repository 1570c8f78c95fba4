#!/bin/sh
# Run the test suite: tests/run.sh BUILD [all|unit|NAME..]
# Unit tests are build/tests/test_*, each a cmocka program; then the layout test and, with "all",
# the tests against real processes (tests/e2e/e2e_*).  Every program has a time limit.  What is skipped
# says why on a line that begins with SKIP, and is counted: a program's skips are what cmocka counts
# or those lines, whichever is more (a case may do both).  The last line is "N passed, N failed, N
# skipped".
set -u
build=${1:-build}
what=${2:-all}
[ $# -eq 0 ] || shift
here=$(dirname "$0")
out=$(mktemp)
trap 'rm -f "$out"' EXIT INT TERM
passed=0 failed=0 skipped=0

# A program may run several groups of tests, each with its counts.
sum() { sed -n "$1" "$out" | awk '{n += $1} END {print n + 0}'; }

# Add the counts of one program's output; a crash or time-out is one failure more.
count() { # name exit-code
	p=$(sum 's/^\[ *PASSED *\] \([0-9]*\) test(s)\..*/\1/p')
	f=$(sum 's/^\[ *FAILED *\] \([0-9]*\) test(s), listed below.*/\1/p')
	s=$(sum 's/^\[ *SKIPPED *\] \([0-9]*\) test(s), listed below.*/\1/p')
	l=$(grep '^SKIP' "$out" | sort -u | wc -l)
	[ "$l" -le "$s" ] || s=$l
	k=$(sum 's/^ok: \([0-9]*\) checks.*/\1/p')
	passed=$((passed + p + k)) failed=$((failed + f)) skipped=$((skipped + s))
	grep -h 'SKIP' "$out" | grep -v '^\[' | sort -u | head -n 20 | sed "s|^|$1: |"
	if [ "$2" -ne 0 ] && [ "$f" -eq 0 ]; then
		failed=$((failed + 1))
		f=1
	fi
	if [ "$f" -ne 0 ]; then
		echo "FAILED $1 (exit $2):"
		tail -n 60 "$out" | sed 's/^/    /'
	else
		[ "$s" -eq 0 ] && s= || s=", $s skipped"
		echo "ok $1: $((p + k)) passed$s"
	fi
}

run() { # name seconds command...
	name=$1 limit=$2
	shift 2
	timeout -k 5 "$limit" "$@" >"$out" 2>&1 </dev/null
	count "$name" $?
}

unit() { run "$(basename "$1")" 300 "$1"; } # with sanitizers some take 50 on a quiet machine
e2e() { run "$(basename "$1")" 600 "$1" "$build"; }

case $what in
all|unit)
	for t in "$build"/tests/test_*; do
		case $t in *.o|*.d|*'*') continue ;; esac
		unit "$t"
	done
	run tidy.sh 60 "$here/tidy.sh"
	for t in "$here"/e2e/e2e_*; do
		[ "$what" = unit ] || e2e "$t"
	done ;;
*)
	for t in "$@"; do
		case $t in e2e_*) e2e "$here/e2e/$t" ;; *) unit "$build/tests/$t" ;; esac
	done ;;
esac
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
