#!/bin/sh
# Check the Spin models of this folder: tests/spin/run.sh WORK
# Each model must hold in every reachable state, and each broken variant of it must be found out:
# a model that cannot fail proves nothing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=${1:-build/spin}
checked=0 failed=0

if ! command -v spin >/dev/null; then
	echo "SKIP spin: not installed (Debian: apt-get install spin)"
	exit 0
fi
mkdir -p "$work" && cd "$work" || exit 1

# check MODEL holds|breaks "VARIANT" "compile flags" "run flags"
check() {
	flags=${3:+-D$3}
	# shellcheck disable=SC2086
	spin -a $flags "$here/$1.pml" >spin.log 2>&1 && ${CC:-cc} -O2 -w -DMEMLIM=2048 $4 -o pan pan.c &&
		timeout 300 ./pan -m2000000 $5 >pan.log 2>&1
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
	errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log)
	what=breaks
	if [ "$errors" = 0 ]; then       # found none: had it looked everywhere?
		what=holds
		grep -q 'max search depth too small\|out of memory\|not completed' pan.log && what=unknown
	fi
	checked=$((checked + 1))
	if [ "$what" != "$2" ] || [ -z "$errors" ]; then
		failed=$((failed + 1))
		echo "FAILED $1 ${3:-as it is}${5:+ ($5)}: $what, expected: $2"
		tail -n 30 pan.log
	else
		echo "ok $1 ${3:-as it is}${5:+ ($5)}: $what, ${states:-?} states$(sed -n 's/^pan:[0-9]*: \(.*\) (at depth.*/, \1/p' pan.log | head -n 1)"
	fi
	rm -f pan pan.* ./*.trail
}

check ring holds "" -DSAFETY ""
for broken in NO_F1 NO_F2 NO_R1 NO_R2 EXACT DRAIN; do
	check ring breaks $broken -DSAFETY ""
done
check lie holds "" -DSAFETY ""
check lie holds "" -DNP "-l -f"
check lie breaks GREEDY -DNP "-l -f"
for broken in TRUST_SEQ TRUST_HEAD NO_PROMISE TWICE; do
	check lie breaks $broken -DSAFETY ""
done
check restart holds "" -DSAFETY ""
for broken in ONE_LOOK NO_EPOCH DEAF; do
	check restart breaks $broken -DSAFETY ""
done
echo "$checked models checked, $failed failed"
[ "$failed" -eq 0 ]
