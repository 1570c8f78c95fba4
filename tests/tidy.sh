#!/bin/sh
# The layout: who may include whom (docs/architecture.md), one home for each library, no strays.
# Prints every breach and ends with "ok: N checks", or fails.
cd "$(dirname "$0")/.." || exit 1
bad=0 n=0

breach() { echo "tidy: $*"; bad=$((bad + 1)); }

# allowed FILES "regex of our own headers they may include", by path from the root or by name
# within the room.
leaf='core/(config|io|gguf|safetensors|stats|notify|log|locate|knobs|record|fresh|sched_limits)\.h'
check() { # pattern allowed-regex
	for f in $(git ls-files ":(glob)$1" 2>/dev/null | grep -E '\.(c|h|cu|cuh)$'); do
		room=$(dirname "$f")
		for inc in $(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$f"); do
			n=$((n + 1))
			path=$inc
			[ -f "$room/$inc" ] && path=$room/$inc
			[ -f "$path" ] || { breach "$f includes $inc, which is not in the tree"; continue; }
			echo "$path" | grep -Eq "^($2)$" || breach "$f may not include $path"
		done
	done
}

text='adapters/text/.*\.h'
check 'shmring/*'            'shmring/.*\.h'
check 'kernels/forward.*'    'kernels/(forward|ops|model)\.h'
check 'kernels/*.h'          'kernels/[^/]*\.h'
check 'kernels/backend.c'    'kernels/.*\.h'
check 'kernels/rope.c'       'kernels/[^/]*\.h'
check 'kernels/cpu/*'        'kernels/([^/]*|cpu/.*)\.h'
check 'kernels/cuda/*'       'kernels/([^/]*|cuda/.*)\.(h|cuh)'
check 'kernels/null/*'       'kernels/([^/]*|null/.*)\.h'
check 'core/kv*'             'core/kv(_impl)?\.h'
check 'core/sched*'          'core/(kv|sched.*)\.h|kernels/backend\.h'
check 'core/clients*'        "core/(clients|sched|io|empty).*\.h|shmring/(server|slipring)\.h|$leaf"
check 'core/model*'          'core/(model.*|gguf|safetensors)\.h|kernels/model\.h'
check 'core/control.*'        "core/(control|sched)\.h|$leaf"
check 'core/reload.*'        "core/(reload|control)\.h|$leaf"
check 'core/load.*'          'core/(load|io)\.h|kernels/model\.h'
check 'core/plan.*'          'core/(plan|config|model|knobs)\.h|kernels/(backend|model)\.h'
check 'core/empty.*'         'core/(empty|stats)\.h'
check 'core/idle.*'          'core/(idle|config)\.h'
check 'core/main.c'          'core/.*\.h|kernels/backend\.h|kernels/null/null\.h'
check 'core/loop.*'          'core/(loop|clients|health|idle|meters|reload|sched)\.h|kernels/backend\.h|'"$leaf"
check 'core/health.*'        'core/(health|sched)\.h|kernels/backend\.h|'"$leaf"
check 'core/meters.*'        'core/(meters|clients|empty|kv|sched)\.h|'"$leaf"
check 'core/listen.*'        'core/(listen|notify)\.h'
check 'core/locate.*'        'core/(locate|gguf)\.h'
for l in config options io gguf safetensors stats notify log knobs record fresh; do
	check "core/$l.*"        "core/($l|options|config)\.h"
done
check 'core/config_*'        'core/(config|options)\.h'
check 'adapters/text/*'      "$text|$leaf"
check 'adapters/http/*'      "adapters/http/.*\.h|$text|shmring/slipring\.h|$leaf"
check 'tools/*'              "tools/.*\.h|$text|shmring/slipring\.h|$leaf|core/(model|plan)\.h|kernels/.*\.h"

# One home for each: the kernel's ring, the wire.
one_home() { # what pattern files-allowed-regex
	n=$((n + 1))
	git grep -lE "$2" -- '*.c' '*.h' | grep -vE "^($3)$" | while read -r f; do echo "$f"; done |
	while read -r f; do echo "tidy: $1 belongs to $3, not to $f"; done
}
strays=$(one_home '<liburing.h>' '#include <liburing' 'core/io\.c'
         one_home 'the wire' '#include "(shmring/)?wire\.h"' 'shmring/(client|server)\.[ch]|tests/.*'
         one_home 'TLS' '#include <openssl/ssl\.h>' 'adapters/http/tls\.[ch]|tests/.*')
[ -z "$strays" ] || { echo "$strays"; bad=$((bad + 1)); }

# The top level, and no room without a job.
for f in $(git ls-tree --name-only HEAD 2>/dev/null); do
	n=$((n + 1))
	case $f in
	core|kernels|shmring|adapters|tools|tests|Makefile|systemd|LICENSE|README.md|docs|.*) ;;
	*) breach "$f does not belong on the top level" ;;
	esac
done
for f in $(git ls-files | grep -E '(^|/)(util|utils|common|base|misc|helpers)/'); do breach "$f: no such room"; done
n=$((n + 1))

# Lines of 110 columns at most, a tab as four (in rooms whose lines are all so short).
for f in $(git ls-files adapters shmring tools | grep -E '\.(c|h)$'); do
	[ -f "$f" ] || continue
	n=$((n + 1))
	long=$(expand -t 4 "$f" | LC_ALL=C.UTF-8 grep -nE '^.{111,}' | cut -d: -f1 | head -n 1)
	[ -z "$long" ] || breach "$f:$long is longer than 110 columns"
done

# The README names every file (as `name.c`, `name.[ch]` or a pattern), in some room.
names=$(sed -n '/^## How it all fits together/,/^## Documents/p' README.md | grep -o '`[^` ]*`' | tr -d '`')
named() {
	for pat in $names; do
		case $1 in $pat|*/$pat) return 0 ;; esac
	done
	return 1
}
set -f
for f in $(git ls-files core kernels shmring adapters tools | grep -E '\.(c|h|cu|cuh|py|sh)$'); do
	n=$((n + 1))
	named "$f" || breach "README.md (How it all fits together) does not name $f"
done
set +f

# Nothing big.
for f in $(git ls-files); do
	[ -f "$f" ] || continue
	[ "$(wc -c <"$f")" -le 1000000 ] || breach "$f is over 1 MB"
done
n=$((n + 1))

[ "$bad" -eq 0 ] || { echo "tidy: $bad breaches"; exit 1; }
echo "ok: $n checks"
