#!/bin/sh
# Install what is missing, where that is possible (root, apt); else print the one line to run.
#   tools/setup.sh build    what building and running needs
#   tools/setup.sh test     the same and what the tests need
#   tools/setup.sh fuzz     the same and what the fuzzers need: clang with libFuzzer
#   tools/setup.sh cuda     what make cuda looks at machine code with: NVIDIA's disassembler, in build/cuda-tools
#   tools/setup.sh aarch64  a compiler and libraries for aarch64, these in build/aarch64/root, and qemu to try it
# Does nothing, quickly, when everything is there.
set -eu

build="gcc make pkg-config libc6-dev liburing-dev libhugetlbfs-dev libjansson-dev libssl-dev
libpcre2-dev libutf8proc-dev libyaml-dev libxxhash-dev libzmq3-dev libcurl4-openssl-dev libncurses-dev libedit-dev
ca-certificates python3 python3-pip"
tests="libcmocka-dev openssl g++ chromium"
fuzz="clang libclang-rt-dev"
cross="gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user"

# Debian's own packages for arm64, unpacked, so that this system's stay as they are.
aarch64_root() {
	root=$(pwd)/build/aarch64/root
	[ ! -e "$root/usr/include/cmocka.h" ] || return 0
	echo "setup: unpacking libraries for aarch64 in $root"
	mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial"
	: >"$root/apt/status"
	arm64="apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
		-o Dir::State=$root/apt -o Dir::State::lists=$root/apt/lists -o Dir::State::status=$root/apt/status
		-o Dir::Cache=$root/apt -o Dir::Cache::archives=$root/apt/archives -o Debug::NoLocking=1"
	$arm64 update
	$arm64 install -y --no-install-recommends --download-only libstdc++-12-dev libcmocka-dev \
		$(for p in $build; do case $p in *-dev) echo "$p" ;; esac; done) >/dev/null
	for deb in "$root"/apt/archives/*.deb; do
		dpkg-deb -x "$deb" "$root"
	done
	# NVIDIA's runtime, of nvcc's version
	nvcc=$("${NVCC:-nvcc}" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
	[ -z "$nvcc" ] || python3 -m pip install -q --no-deps --target "$root/cuda" --only-binary=:all: \
		--platform manylinux2014_aarch64 "nvidia-cuda-runtime==$nvcc.*" || echo "setup: no CUDA runtime for aarch64"
	rm -rf "$root/apt"
}

if [ "${1:-}" = cuda ]; then
	at=$(pwd)/build/cuda-tools
	command -v cuobjdump "$(dirname "${NVCC:-nvcc}")/cuobjdump" >/dev/null ||
		ls "$at"/nvidia/*/bin/cuobjdump >/dev/null 2>&1 ||
		python3 -m pip install -q --no-deps --target "$at" nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
	exit
fi

case "${1:-build}" in
build) want=$build ;;
test)  want="$build $tests" ;;
fuzz)  want="$build $fuzz" ;;
aarch64) want="$build $cross" ;;
*)     echo "usage: tools/setup.sh build|test|fuzz|cuda|aarch64" >&2; exit 2 ;;
esac

# Another system than Debian's: what is missing is found by pkg-config and by name, and printed in its terms.
elsewhere() {
	libs="liburing jansson libssl libpcre2-8 libutf8proc yaml-0.1 libxxhash libzmq libcurl ncursesw libedit"
	case " $want " in *" libcmocka-dev "*) libs="$libs cmocka" ;; esac
	lacks=
	for p in gcc make pkg-config python3; do
		command -v $p >/dev/null 2>&1 || lacks="$lacks $p"
	done
	for p in $libs; do
		pkg-config --exists $p 2>/dev/null || lacks="$lacks $p"
	done
	# it has no .pc file
	echo '#include <hugetlbfs.h>' | gcc -E - >/dev/null 2>&1 || lacks="$lacks libhugetlbfs"
	[ -n "$lacks" ] || return 0
	echo "setup: missing are:$lacks" >&2
	say="sudo"
	if command -v dnf >/dev/null 2>&1; then
		say="$say dnf install gcc gcc-c++ make pkgconf-pkg-config liburing-devel libhugetlbfs-devel jansson-devel \
openssl-devel pcre2-devel utf8proc-devel libyaml-devel xxhash-devel zeromq-devel libcurl-devel ncurses-devel \
libedit-devel python3 python3-pip libcmocka-devel openssl"
	elif command -v zypper >/dev/null 2>&1; then
		say="$say zypper install gcc gcc-c++ make pkgconf-pkg-config liburing-devel libhugetlbfs-devel \
libjansson-devel libopenssl-devel pcre2-devel utf8proc-devel libyaml-devel xxhash-devel zeromq-devel \
libcurl-devel ncurses-devel libedit-devel python3 python3-pip libcmocka-devel openssl"
	elif command -v pacman >/dev/null 2>&1; then
		say="$say pacman -S --needed base-devel liburing jansson openssl pcre2 libutf8proc libyaml xxhash zeromq \
curl ncurses libedit python python-pip cmocka; libhugetlbfs is in the AUR"
	elif command -v apk >/dev/null 2>&1; then
		say="$say apk add build-base pkgconf linux-headers liburing-dev jansson-dev openssl-dev pcre2-dev \
utf8proc-dev yaml-dev xxhash-dev zeromq-dev curl-dev ncurses-dev libedit-dev python3 py3-pip cmocka-dev openssl; libhugetlbfs is built from source"
	else
		say="the equivalents of: $(echo $want)" # no package manager that we know
	fi
	echo "setup: install them, then run again what you ran:" >&2
	echo "  $say" >&2
	return 1
}

if ! command -v dpkg-query >/dev/null 2>&1; then
	elsewhere
	exit
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
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
	echo "setup: installing$missing"
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
elif [ -n "$missing" ]; then
	echo "setup: these packages are missing; run this, then again what you ran:" >&2
	echo "  sudo apt-get install --no-install-recommends$missing" >&2
	exit 1
fi
[ "${1:-build}" != aarch64 ] || aarch64_root
