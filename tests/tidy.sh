#!/bin/sh
# The layout: who may include whom (the table in docs/architecture.md), one home for each library, no strays.
# Prints every breach and ends with "ok: N checks", or fails.
cd "$(dirname "$0")/.." || exit 1
bad=0 n=0

breach() { echo "tidy: $*"; bad=$((bad + 1)); }

# Who may include whom: rows of "| `files`, .. | `headers`, .. |" in docs/architecture.md.  The last row
# that names a file counts.  * is one name, ** any path, {a,b} a choice; the row ** holds for every file.  A file
# may always include headers of its own folder; a header named impl.h only those.
table=$(mktemp)
edges=$(mktemp)
trap 'rm -f "$table" "$edges"' EXIT
sed -n '/^### Who may include whom/,/^##/p' docs/architecture.md | grep '^| `' |
awk -F' *[|] *' '
	function regexes(cell,    s, out) {
		out = ""
		while (match(cell, /`[^`]*`/)) {
			s = substr(cell, RSTART + 1, RLENGTH - 2)
			cell = substr(cell, RSTART + RLENGTH)
			gsub(/\./, "\\.", s)
			gsub(/\*\*/, "\001", s)
			gsub(/\*/, "[^/]*", s)
			gsub(/\001/, ".*", s)
			gsub(/{/, "(", s); gsub(/}/, ")", s); gsub(/,/, "|", s)
			out = out (out == "" ? "" : "|") s
		}
		return "^(" out ")$"
	}
	{ print regexes($2) "\t" regexes($3) }' >"$table"
git ls-files core kernels shmring adapters tools tests | grep -E '\.(c|h|cu|cuh|cc)$' | while read -r f; do
	[ -f "$f" ] || continue
	sed -n "s,^[[:space:]]*#[[:space:]]*include[[:space:]]*\"\([^\"]*\)\".*,$f \1,p" "$f"
done | while read -r f inc; do
	room=${f%/*}
	[ -f "$room/$inc" ] && inc=$room/$inc
	[ -f "$inc" ] || case $f in tests/*) continue ;; esac  # tests/cuda and tests/emu are on the path
	echo "$f $inc"
done >"$edges"
n=$((n + $(wc -l <"$edges")))
missing=$(awk -F'\t' '
	function folder(p) { sub(/\/[^\/]*$/, "", p); return p }
	NR == FNR && $1 == "^(.*)$" { all = $2; next }
	NR == FNR { files[++rows] = $1; may[rows] = $2; next }
	{
		split($0, e, " ")
		if (e[1] ~ /^tests\// || folder(e[1]) == folder(e[2]) || (all != "" && e[2] ~ all))
			next
		if (e[2] ~ /\/impl\.h$/) { print e[1] " includes " e[2] ", which never leaves its folder"; next }
		found = 0
		for (i = rows; i > 0 && !found; i--)
			if (e[1] ~ files[i]) {
				found = 1
				if (e[2] !~ may[i])
					print e[1] " may not include " e[2]
			}
		if (!found)
			print e[1] " is in no row of the table in docs/architecture.md"
	}' "$table" "$edges")
[ -z "$missing" ] || { echo "$missing" | sed 's/^/tidy: /'; bad=$((bad + 1)); }
[ "$(wc -l <"$table")" -ge 10 ] || breach "docs/architecture.md has no table of who may include whom"

# Each command that a document shows is run by tests/docs_run.py, or says why not.
covered=$(tests/docs_run.py --check 2>&1) || { breach "$covered"; covered=0; }
n=$((n + ${covered%% *}))

# One home for each: the kernel's ring, the wire, the clock.
one_home() { # what pattern files-allowed-regex
	n=$((n + 1))
	git grep -lE "$2" -- '*.c' '*.h' '*.cu' '*.cuh' | grep -vE "^($3)$" | while read -r f; do echo "$f"; done |
	while read -r f; do echo "tidy: $1 belongs to $3, not to $f"; done
}
strays=$(one_home '<liburing.h>' '#include <liburing' 'core/instance/io\.c'
         one_home 'the wire' '#include "(shmring/)?wire\.h"' 'shmring/(client|host|object)\.[ch]|tests/.*'
         one_home 'the clock' 'clock_gettime\(CLOCK_MONOTONIC' 'shmring/clock\.h|tests/.*'
         one_home 'TLS' '#include <openssl/ssl\.h>' 'adapters/http/net/tls\.[ch]|tests/.*')
[ -z "$strays" ] || { echo "$strays"; bad=$((bad + 1)); }

# A function that a header declares has a user besides the file that defines it: else it is static.
declared=$(mktemp)
trap 'rm -f "$table" "$edges" "$declared"' EXIT
git ls-files core shmring adapters tools | grep '\.h$' | xargs awk '
	/^[a-z]/ && !/^(static|typedef|extern|enum|union)/ && !/{/ && match($0, /[a-z_0-9]+\(/) {
		print substr($0, RSTART, RLENGTH - 1), FILENAME }' >"$declared"
n=$((n + $(wc -l <"$declared")))
alone=$(git ls-files core shmring kernels adapters tools tests | grep -E '\.(c|h|cu|cuh|cc)$' | xargs awk '
	NR == FNR { header[$1] = $2; next }
	{
		while (match($0, /[A-Za-z_][A-Za-z_0-9]*/)) {
			w = substr($0, RSTART, RLENGTH)
			$0 = substr($0, RSTART + RLENGTH)
			if (!(w in header))
				continue
			if (FILENAME == header[w])
				inside[w]++                     # more than its declaration: an inline function calls it
			else if (last[w] != FILENAME)
				users[w]++
			last[w] = FILENAME
		}
	}
	END {
		for (w in header)
			if (users[w] < 2 && inside[w] < 2)
				print "tidy: " header[w] " declares " w ", which one file alone uses: make it static"
	}' "$declared")
[ -z "$alone" ] || { echo "$alone"; bad=$((bad + 1)); }

# The top level, and no room without a job.
for f in $(git ls-tree --name-only HEAD 2>/dev/null); do
	n=$((n + 1))
	case $f in
	core|kernels|shmring|adapters|tools|tests|Makefile|systemd|LICENSE|README.md|docs|.*) ;;
	*) breach "$f does not belong on the top level" ;;
	esac
done
for f in tests/e2e/e2e_*; do [ -x "$f" ] || breach "$f cannot be run: chmod +x"; n=$((n + 1)); done
for f in $(git ls-files | grep -E '(^|/)(util|utils|common|base|misc|helpers)/'); do breach "$f: no such room"; done
n=$((n + 1))

# Lines of 110 columns at most, a tab as four (in rooms whose lines are all so short).
for f in $(git ls-files adapters shmring tools | grep -E '\.(c|h)$'); do
	[ -f "$f" ] || continue
	n=$((n + 1))
	long=$(expand -t 4 "$f" | LC_ALL=C.UTF-8 grep -nE '^.{111,}' | cut -d: -f1 | head -n 1)
	[ -z "$long" ] || breach "$f:$long is longer than 110 columns"
done

# docs/architecture.md says of every folder what is in it; a folder of more than 35 files is a pile.
for d in $(git ls-files core kernels shmring adapters tools | sed -n 's,/[^/]*$,,p' | sort -u); do
	n=$((n + 1))
	grep -q "^| \`$d\` |" docs/architecture.md || grep -q "\`${d##*/}/\`" docs/architecture.md ||
		breach "docs/architecture.md does not say what is in $d"
	files=$(git ls-files "$d" | grep -c "^$d/[^/]*$")
	[ "$files" -le 35 ] || breach "$d has $files files: more than 35"
done

# Its table of "Where is ...?" names files that there are, and functions that stand in one of them.
where=$(sed -n '/^### Where is/,/^The loop/p' docs/architecture.md | grep '^| where\|^| what')
[ -n "$where" ] || breach "docs/architecture.md has no table of where things are"
while IFS='|' read -r _ _ files functions _; do
	files=$(echo "$files" | grep -oE '[a-z_0-9]+/[a-z_0-9/]+\.[ch]')
	for f in $files; do
		n=$((n + 1))
		[ -f "$f" ] || breach "docs/architecture.md: there is no $f"
	done
	for f in $(echo "$functions" | grep -oE '[a-z_0-9]+'); do
		n=$((n + 1))
		# shellcheck disable=SC2086
		grep -qE "^[a-z].*[ *]$f\(" $files /dev/null || breach "docs/architecture.md: $f is in none of" $files
	done
done <<END
$where
END

# Nothing big.
for f in $(git ls-files); do
	[ -f "$f" ] || continue
	[ "$(wc -c <"$f")" -le 1000000 ] || breach "$f is over 1 MB"
done
n=$((n + 1))

[ "$bad" -eq 0 ] || { echo "tidy: $bad breaches"; exit 1; }
echo "ok: $n checks"
