#!/bin/sh
# Install what is missing, where that is possible (root, apt); else print the one line to run.
#   tools/setup.sh build    what building and running needs
#   tools/setup.sh test     the same and what the tests need
#   tools/setup.sh fuzz     the same and what the fuzzers need: clang with libFuzzer
# Does nothing, quickly, when everything is there.
set -eu

build="gcc make pkg-config libc6-dev liburing-dev libhugetlbfs-dev libjansson-dev libssl-dev
libpcre2-dev libutf8proc-dev libyaml-dev libxxhash-dev libzmq3-dev libcurl4-openssl-dev libncurses-dev
ca-certificates python3 python3-pip"
tests="libcmocka-dev openssl g++ chromium"
fuzz="clang libclang-rt-dev"

case "${1:-build}" in
build) want=$build ;;
test)  want="$build $tests" ;;
fuzz)  want="$build $fuzz" ;;
*)     echo "usage: tools/setup.sh build|test|fuzz" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
	echo "setup: not a Debian-like system; needed are the equivalents of:" $want >&2
	exit 0
fi
missing=
for p in $want; do
	# python3, pip and a browser may come from elsewhere than Debian's packages
	case $p in
	chromium)    command -v chromium-browser >/dev/null 2>&1 && continue # the page of slipring report is drawn by it
		     command -v google-chrome >/dev/null 2>&1 && continue ;;
	python3)     command -v python3 >/dev/null 2>&1 && continue ;;
	python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
	libclang-rt-dev) ls "$(clang -print-runtime-dir 2>/dev/null)"/libclang_rt.fuzzer* >/dev/null 2>&1 && continue ;;
	esac
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "setup: installing$missing"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
	echo "setup: these packages are missing; run this, then again what you ran:" >&2
	echo "  sudo apt-get install --no-install-recommends$missing" >&2
	exit 1
fi
