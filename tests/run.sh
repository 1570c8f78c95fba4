#!/bin/sh
# Run the test suite: tests/run.sh BUILD [all|unit|NAME..]
# Unit tests are build/tests/test_*, each a cmocka program; then the layout test and, with "all",
# the tests against real processes (tests/e2e/e2e_*).  Every program has a time limit.  As many run at a
# time as there are cores (JOBS=1: one), but those in `alone` have the machine to themselves, last.
# What is skipped says why on a line that begins with SKIP, and is counted: a program's skips are what
# cmocka counts or those lines, whichever is more (a case may do both).  The last line is
# "N passed, N failed, N skipped".
# A program that fails beside others runs once more when nothing else does: that run counts.  Tests wait for
# events, but some hold the product to its own time limits, which a busy machine can break.  Both runs are
# printed, and the programs that needed two are named at the end (TWICE=0: the first run counts).
set -u
here=$(dirname "$0")

# They hold times to bounds that a second test beside them breaks.
alone="test_hostile e2e_hostile.py e2e_load.py e2e_bench.py e2e_tune.py"

# One program: run.sh --one BUILD FILE.  Its lines go out in one piece, its counts to $tally.
if [ "${1:-}" = --one ]; then
	build=$2 file=$3 name=$(basename "$3")
	out=$(mktemp) begun=$(date +%s)
	trap 'rm -f "$out"' EXIT INT TERM
	case $name in
	tidy.sh) timeout -k 5 120 "$file" ;;
	e2e_*) timeout -k 5 600 "$file" "$build" ;;
	*) timeout -k 5 300 "$file" ;; # with sanitizers some take 50 on a quiet machine
	esac >"$out" 2>&1 </dev/null
	code=$?
	took=$(($(date +%s) - begun))
	[ "$took" -ge 5 ] && took=", $took s" || took=

	# A program may run several groups of tests, each with its counts.
	sum() { sed -n "$1" "$out" | awk '{n += $1} END {print n + 0}'; }
	p=$(sum 's/^\[ *PASSED *\] \([0-9]*\) test(s)\..*/\1/p')
	f=$(sum 's/^\[ *FAILED *\] \([0-9]*\) test(s), listed below.*/\1/p')
	s=$(sum 's/^\[ *SKIPPED *\] \([0-9]*\) test(s), listed below.*/\1/p')
	l=$(grep '^SKIP' "$out" | sort -u | wc -l)
	[ "$l" -le "$s" ] || s=$l
	p=$((p + $(sum 's/^ok: \([0-9]*\) checks.*/\1/p')))
	# A crash or time-out is one failure more.
	[ "$code" -eq 0 ] || [ "$f" -ne 0 ] || f=1
	if [ "$f" -ne 0 ] && [ -n "$again" ]; then
		echo "$file" >>"$again"
	else
		echo "$p $f $s" >>"$tally"
	fi
	lines=$(
		grep -h 'SKIP' "$out" | grep -v '^\[' | sort -u | head -n 20 | sed "s|^|$name: |"
		if [ "$f" -ne 0 ]; then
			echo "$([ -n "$again" ] && echo failed once: || echo FAILED) $name (exit $code):"
			{ head -n -60 "$out" | grep 'FAILED' | head -n 5; tail -n 60 "$out"; } | sed 's/^/    /'
		elif [ "$s" -ne 0 ]; then
			echo "ok $name: $p passed, $s skipped$took"
		else
			echo "ok $name: $p passed$took"
		fi
	)
	printf '%s\n' "$lines"
	exit 0
fi

build=${1:-build}
what=${2:-all}
[ $# -eq 0 ] || shift
jobs=${JOBS:-$(nproc)}
tally=$(mktemp)
again=
[ "${TWICE:-1}" = 0 ] || again=$(mktemp)
export tally again
trap 'rm -f "$tally" "$again"' EXIT INT TERM

# The files to run, a line each.
files() {
	case $what in
	all|unit)
		for t in "$build"/tests/test_*; do
			case $t in *.o|*.d|*'*') continue ;; esac
			echo "$t"
		done
		echo "$here/tidy.sh"
		[ "$what" = unit ] || ls "$here"/e2e/e2e_* ;;
	*)
		for t in "$@"; do
			case $t in e2e_*) echo "$here/e2e/$t" ;; *) echo "$build/tests/$t" ;; esac
		done ;;
	esac
}
is_alone() {
	case " $alone " in *" $(basename "$1") "*) return 0 ;; esac
	return 1
}
files "$@" | while read -r t; do is_alone "$t" || echo "$t"; done | xargs -P "$jobs" -n 1 "$0" --one "$build"
files "$@" | while read -r t; do is_alone "$t" && echo "$t"; done | xargs -r -n 1 "$0" --one "$build"
if [ -n "$again" ] && [ -s "$again" ]; then
	twice=$(cat "$again")
	echo "once more, alone: $(basename -a $twice | xargs)"
	again= xargs -n 1 "$0" --one "$build" <"$again"
fi

# Who left no counts has failed, too.
awk -v n="$(files "$@" | wc -l)" '{p += $1; f += $2; s += $3} END {
	if (NR < n) f += n - NR
	printf "%d passed, %d failed, %d skipped\n", p, f, s
	exit f > 0 || NR == 0
}' "$tally"
