/* knobs.c - the table of knobs, and their values as text. */
#include "knobs.h"
#include "refuse.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct knob_info knobs[N_KNOBS] = {
	[KNOB_MAX_NUM_SEQS] = { "max-num-seqs", "sequences", { NULL }, 1, 1,
		"most sequences in one batch" },
	[KNOB_MAX_NUM_BATCHED_TOKENS] = { "max-num-batched-tokens", "tokens", { NULL }, 1, 1,
		"most tokens in one step; at least max-num-seqs" },
	[KNOB_LONG_PREFILL] = { "long-prefill-token-threshold", "tokens", { NULL }, 0, 1,
		"most tokens of one prompt in one step; 0: no limit" },
	[KNOB_POLICY] = { "scheduling-policy", "", { "fcfs", "priority" }, 0, 1,
		"whether new requests are ordered by priority" },
	[KNOB_PREFIX_CACHING] = { "enable-prefix-caching", "", { "false", "true" }, 0, 1,
		"whether prompts with the same beginning share KV blocks" },
	[KNOB_STEP_TARGET] = { "step-target-ms", "ms", { NULL }, 0, 1000,
		"how long a step may take because of prompts; 0: by device" },
};

const struct knob_info *knob_info(enum knob k) { return &knobs[k]; }

int knob_find(const char *name)
{
	name += strncmp(name, "--", 2) ? 0 : 2;
	for (int k = 0; k < N_KNOBS; k++) {
		const char *a = knobs[k].name, *b = name;

		while (*a && (*a == *b || (*a == '-' && *b == '_')))
			a++, b++;
		if (!*a && !*b)
			return k;
	}
	return -1;
}

int knob_parse(enum knob k, const char *text, int64_t *value, char *err, size_t errlen)
{
	const struct knob_info *i = &knobs[k];
	double v, unit = 1;
	char *end;

	for (int w = 0; i->words[0] && i->words[w]; w++)
		if (!strcmp(text, i->words[w])) {
			*value = w;
			return 0;
		}
	if (i->words[0])
		return refuse(-EINVAL, err, errlen, "%s is %s or %s, not \"%.40s\"", i->name, i->words[0],
		              i->words[1], text);
	errno = 0;
	v = strtod(text, &end);
	if (end != text && i->scale == 1 && (*end == 'k' || *end == 'K'))
		unit = *end++ == 'k' ? 1000 : 1024;
	v *= unit * (double)i->scale;
	if (end == text || *end || errno || !(v >= (double)i->least && v <= 1e12) || v != floor(v))
		return refuse(-EINVAL, err, errlen, "%s is a number of %s, at least %lld, not \"%.40s\"", i->name,
		              i->unit, (long long)(i->least / i->scale), text);
	*value = (int64_t)v;
	return 0;
}

void knob_format(enum knob k, int64_t value, char *out, size_t n)
{
	const struct knob_info *i = &knobs[k];

	if (i->words[0])
		snprintf(out, n, "%s", value == 0 || value == 1 ? i->words[value] : "?");
	else
		snprintf(out, n, "%.10g", (double)value / (double)i->scale);
}
