#!/bin/sh
# make install into a folder: what is there, that a program builds against it by pkg-config, and that
# systemd finds nothing wrong with the units.  Prints "ok: N checks".
set -u
build=$1
cd "$(dirname "$0")/../.." || exit 1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT INT TERM
n=0
check() { # what command...
	what=$1
	shift
	n=$((n + 1))
	"$@" >"$dir/out" 2>&1 || { echo "[  FAILED  ] $what"; cat "$dir/out"; exit 1; }
}

check "make install" make --no-print-directory BUILD="$build" DESTDIR="$dir" PREFIX=/usr install
for f in bin/slipring bin/slipringd bin/slipring-http bin/slipring-events include/slipring.h include/slipring-sampling.h include/slipring-guide.h \
         include/slipring-text.h \
         lib/libslipring.a lib/libslipring.so.1 lib/libslipring-text.so.0 share/man/man1/slipring.1 \
         lib/slipring/vllm share/slipring/python/slipring.py share/slipring/python/slipring_vllm.py share/slipring/python/slipring_dynamo.py lib/sysusers.d/slipring.conf lib/tmpfiles.d/slipring.conf; do
	check "$f is installed" test -s "$dir/usr/$f"
done
check "settings are installed" test -s "$dir/etc/slipring/slipring.yaml"
# Zeros in .rodata once made it 5.8 MB.  (With a sanitizer it is larger.)
if ! nm "$dir/usr/bin/slipring-http" | grep -q '__[at]san_init\|__ubsan_handle'; then
	strip -o "$dir/stripped" "$dir/usr/bin/slipring-http"
	size=$(wc -c <"$dir/stripped")
	check "slipring-http has less than 1.5 MB: $size bytes" test "$size" -lt 1500000
fi
cat >"$dir/x.c" <<'C'
#include <slipring.h>
#include <slipring-text.h>
int main(void)
{
	struct sr_conn *c;
	struct sr_text *t;
	char err[200];

	return sr_open(&c, "/nonexistent", 0) == -2 && sr_text_open(&t, "/nonexistent", err, sizeof(err)) < 0 ? 0 : 1;
}
C
flags=$(PKG_CONFIG_SYSROOT_DIR=$dir PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1 \
	PKG_CONFIG_PATH=$dir/usr/lib/pkgconfig pkg-config --cflags --libs slipring slipring-text)
check "a program builds against it" ${CC:-cc} "$dir/x.c" -o "$dir/x" $flags
check "and runs" env LD_LIBRARY_PATH="$dir/usr/lib" "$dir/x"

# The CUDA back end is looked for where it is installed, or would be.
if [ -e "${XDG_CACHE_HOME:-$HOME/.cache}/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf" ]; then
	mkdir -p "$dir/usr/lib/slipring"
	echo "no object" >"$dir/usr/lib/slipring/slipring-cuda.so"
	RUNTIME_DIRECTORY=$dir/run "$dir/usr/bin/slipringd" --device cuda >"$dir/cuda" 2>&1
	check "a CUDA back end in lib/slipring is tried: $(cat "$dir/cuda")" \
		grep -q "cannot be loaded: $dir/usr/lib/slipring/slipring-cuda.so" "$dir/cuda"
else
	echo "SKIP: no default model, where the CUDA back end is looked for is not asked"
fi

# Units: paths as they would be, but for the folder; man pages are not looked up.
if command -v systemd-analyze >/dev/null 2>&1; then
	mkdir "$dir/units"
	for u in "$dir"/usr/lib/systemd/system/*; do
		sed -e "s,/usr/bin/,$dir/usr/bin/," -e '/^Documentation=/d' -e '/^ExecReload=/d' "$u" >"$dir/units/$(basename "$u")"
	done
	mv "$dir/units/slipring@.service" "$dir/units/slipring@one.service"
	check "systemd-analyze verify" systemd-analyze verify "$dir"/units/*
	cp "$dir/out" "$dir/said"
	check "it says nothing: $(cat "$dir/said")" test ! -s "$dir/said"
	if command -v systemd-sysusers >/dev/null 2>&1; then
		check "sysusers" systemd-sysusers --dry-run "$dir/usr/lib/sysusers.d/slipring.conf"
	fi
else
	echo "SKIP: no systemd-analyze here, the units are not verified"
fi
echo "ok: $n checks"
