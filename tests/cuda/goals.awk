# goals.awk - cells of the benchmark (one JSON object a line, as tests/cuda/table.h and rings.c write them)
# against floors and goals: a line for each work, its worst cell of each kind of weights.  By gpu-check.sh.
# Exit code 1 if a cell is below its floor; what was left out is named.

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

function work(id, words, how) {
	order[++works] = id
	title[id] = words
	style[id] = how
}

# As the work is spoken of: a part, times the limit, or what is lost in percent.
function say(id, part) {
	if (!part)
		return "-"
	if (style[id] == "times")
		return sprintf("%.2fx", 1 / part)
	if (style[id] == "percent")
		return sprintf("%.2g%%", (1 - part) * 100)
	return sprintf("%.2f", part)
}

BEGIN {
	work("decode one", "decode of 1: part of the read stream", "part")
	work("decode many", "decode of 32, 128, 256: part of the limit", "part")
	work("few rows", "products of 1 to 64 rows: part of the limit", "part")
	work("4 bits over bf16", "the same, W4A16: times bf16's speed", "part")
	work("attention", "paged attention, 64 at 0.5k 2k 8k: part of read", "part")
	work("one long among short", "one of 128k among 31 of 4k: of the even time", "times")
	work("device idle", "device idle between steps, 32 sequences", "percent")
	work("device idle, daemon", "the same, of slipringd by its own records", "percent")
	work("sampling", "share of sampling, 256 rows of 128k", "percent")
	work("first token", "first token over rings, 128 and 2k: of the limit", "times")
	work("first token, in process", "the same at the back end's door", "times")
	work("prefill", "prompts of 2k and 8k: of cuBLASLt's rate", "part")
}

/"skipped": / {
	id = field("work")
	if (id in title) {
		left_out[id]++
		if (index(why[id], field("skipped")) == 0)
			why[id] = why[id] (why[id] ? "; " : "") field("skipped")
	} else if (field("at") == "all")
		whole = whole (whole ? ", " : "") field("kind") ": " field("skipped")
	next
}

/"part": / {
	id = field("work")
	if (!(id in title))
		next
	part = field("part") + 0
	floor = field("floor") + 0
	goal = field("goal") + 0
	# attention's and the first tokens' cells have bounds of their own: one column each
	kind = id == "attention" || id ~ /^first token/ ? field("at") : field("kind")
	cells[id]++
	if (floor && part < floor) {
		below[id] = below[id] (below[id] ? ", " : "") field("kind") " " field("at") " " say(id, part)
		bad = 1
	}
	if (part >= goal)
		reached[id]++
	margin = part / (floor ? floor : goal ? goal : 1)
	if (!((id, kind) in worst)) {
		kinds[id]++
		name[id, kinds[id]] = kind
	}
	if (!((id, kind) in worst) || margin < least[id, kind]) {
		least[id, kind] = margin
		worst[id, kind] = part
		floor_of[id, kind] = floor
		goal_of[id, kind] = goal
	}
}

# The same bound of all kinds is said once.
function bounds(id, of,    i, text, all, v) {
	all = 1
	for (i = 1; i <= kinds[id]; i++) {
		v = of[id, name[id, i]]
		if (v != of[id, name[id, 1]])
			all = 0
		text = text (i > 1 ? " " : "") say(id, v)
	}
	return all ? say(id, of[id, name[id, 1]]) : text
}

END {
	printf "%-49s %-18s %-18s %-18s %s\n", "work: worst cell (of bf16, W4A16, FP8)", "measured", "floor",
		"goal", "verdict"
	for (w = 1; w <= works; w++) {
		id = order[w]
		text = ""
		for (i = 1; i <= kinds[id]; i++)
			text = text (i > 1 ? " " : "") say(id, worst[id, name[id, i]])
		if (!cells[id])
			verdict = left_out[id] ? "SKIPPED: " why[id] : "NOT MEASURED"
		else if (below[id])
			verdict = "BELOW: " below[id]
		else
			verdict = reached[id] == cells[id] ? "goal reached" : "floor held"
		if (cells[id] && left_out[id])
			verdict = verdict "; " left_out[id] " cells left out: " why[id]
		printf "%-49s %-18s %-18s %-18s %s\n", title[id], text ? text : "-",
			kinds[id] ? bounds(id, floor_of) : "-", kinds[id] ? bounds(id, goal_of) : "-", verdict
	}
	if (whole)
		print "left out whole: " whole
	exit bad
}
