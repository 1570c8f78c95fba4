# verbs.awk - a line for each part of a step: what it takes, how near that is to the best of this GPU, and what
# docs/cuda.md expected.  By gpu-check.sh:
#
#	awk -v capability=90 -f verbs.awk docs/cuda.md ROWS
#
# ROWS are JSON objects, one a line, as tests/cuda/verbs.h writes them.  A line that should be there and is not is named;
# then the exit code is 1.

function field(name,    at, rest) {
	at = index($0, "\"" name "\": ")
	if (!at)
		return ""
	rest = substr($0, at + length(name) + 4)
	if (substr(rest, 1, 1) == "\"")
		return substr(rest, 2, index(substr(rest, 2), "\"") - 1)
	sub(/[,}].*/, "", rest)
	return rest
}

function trim(s) {
	gsub(/^ +| +$/, "", s)
	return s
}

BEGIN {
	n_verbs = split("begin|angles|embed|norm|q, k, v|rope and store|attention|o|gate and up|activation|down|last norm|head|sample, greedy", verb, "|")
	says["begin"] = "reads what the host sent"
	says["angles"] = "cos and sin of each position"
	says["embed"] = "looks tokens up"
	says["norm"] = "adds and scales a layer's input"
	says["q, k, v"] = "product"
	says["rope and store"] = "rotates, fills the KV cache"
	says["attention"] = "reads the KV cache"
	says["o"] = "product"
	says["gate and up"] = "product"
	says["activation"] = "SiLU and multiply"
	says["down"] = "product"
	says["last norm"] = "before the head"
	says["head"] = "product with the vocabulary"
	says["sample, greedy"] = "finds the likeliest token"
	n_kinds = split("bf16 W4A16 FP8", kind, " ")
	n_tokens = split("1 16 64 256 2048", tokens, " ")
	target = capability == 90 ? "sm_90a" : capability >= 120 ? "sm_120" : ""
}

# docs/cuda.md: | sm_90a | W4 | gate and up | 0.95 | .. |, parts of the roof for each number of tokens
/^\| sm_[0-9a]+ \| / {
	n = split($0, cell, "|")
	if (trim(cell[2]) == target && n >= 4 + n_tokens)
		for (i = 1; i <= n_tokens; i++)
			estimate[trim(cell[3]), trim(cell[4]), tokens[i]] = trim(cell[4 + i])
	next
}

/"read_gb_s": / { best = sprintf("%.0f GB/s, %.0f TFLOP/s in bf16", field("read_gb_s"), field("product_bf16_top_s") > field("mma_bf16_top_s") ? field("product_bf16_top_s") : field("mma_bf16_top_s")) }

/"verb": / {
	id = field("verb") SUBSEP field("tokens") SUBSEP field("kind")
	if (field("skipped") != "") {
		split(field("at"), word, " ")
		why[field("verb"), word[1], field("kind")] = field("skipped")
		next
	}
	us[id] = field("verb_us")
	rate[id] = field("rate")
	unit[id] = field("unit")
	part[id] = field("of_best")
	most[id] = field("best")
	any = 1
}

function say_line(v, t, k,    e, short, did, of) {
	short = k == "W4A16" ? "W4" : k
	e = estimate[short, v, t]
	if (e == "")
		e = estimate["all", v, t]
	if (e == "")
		e = "-"
	did = of = "-"
	if (part[v, t, k] > 0) {
		did = sprintf("%8.5g of %.5g %s", rate[v, t, k], most[v, t, k], unit[v, t, k])
		of = sprintf("%.2f", part[v, t, k])
	}
	printf "%-15s %-29s %5d  %-6s %9.1f us  %-27s %6s  %6s\n", v, says[v], t, k, us[v, t, k], did, of, e
}

END {
	if (!any) {
		print "parts of a step: NOT MEASURED"
		exit 1
	}
	print "Each part of a step alone, one layer, Llama-3.1-8B's shape.  \"Best\" is what this GPU reached in this run when it"
	print "only read memory (GB/s) or only multiplied (TFLOP/s): " best "."
	print "part = reached / best: 1 is perfect; short parts are far below, because a start takes 1 to 3 us.  expected: what"
	print "docs/cuda.md estimates for this kind of GPU from the machine code (no GPU had run it); \"-\": no estimate."
	print "Up to 256 tokens each is of another sequence, 512 positions long; 2048 are one prompt."
	printf "%-15s %-29s %5s  %-6s %12s  %-27s %6s  %6s\n", "part of a step", "what it does", "tokens", "weights", "time", "reached", "part",
		"expected"
	for (k = 1; k <= n_kinds; k++)
		for (t = 1; t <= n_tokens; t++)
			for (v = 1; v <= n_verbs; v++) {
				if (t == n_tokens && v > n_verbs - 3)
					continue  # of a prompt one row alone has a result
				id = verb[v] SUBSEP tokens[t] SUBSEP kind[k]
				if (id in us)
					say_line(verb[v], tokens[t], kind[k])
				else {
					missing++
					reason[(id in why) ? why[id] : "not there"]++
				}
			}
	if (missing) {
		printf "%d lines are missing:", missing
		for (r in reason)
			printf " %d %s", reason[r], r
		print ""
	}
	exit missing > 0
}
