/* walk_rig.h - for fuzzers: a source that compiles must never leave an answer without a next token. */
#ifndef WALK_RIG_H
#define WALK_RIG_H

#include "tests/rig/grammar_rig.h"

#define WALK_STEPS 48

/* One answer, drawn among what is allowed by the bytes of the source. */
static inline void walk_grammar(struct sr_grammar *g, const struct sr_text *t, const uint8_t *draw, size_t n)
{
	uint32_t bits[(RIG_END + 32) / 32];
	struct sr_guide *u;
	struct sr_next next;
	uint32_t x = 2463534242u;
	int32_t id;

	if (sr_guide_open(&u, g))
		return;
	for (size_t i = 0; i < WALK_STEPS; i++) {
		if (sr_guide_next(u, &next, bits))
			break;                               /* over a budget */
		rig_widen(&next, t, bits);
		x = x * 1664525u + 1013904223u + (n ? draw[i % n] : 0);
		id = (int32_t)(x >> 8) % (RIG_END + 1);
		for (int k = 0; !rig_allows(bits, id); id = (id + 1) % (RIG_END + 1))
			if (k++ > RIG_END)
				abort();                         /* a dead end */
		if (id == RIG_END)
			break;
		if (sr_guide_take(u, id) == -EINVAL)
			abort();                             /* the mask allowed it */
	}
	sr_guide_close(u);
}

static inline void walk_source(enum sr_grammar_kind kind, const uint8_t *data, size_t n)
{
	static struct sr_text *t;
	struct sr_grammar *g;
	char err[900] = "";
	int rc;

	if (!t)
		t = rig_bytes_text();
	rc = sr_grammar_open(&g, t, kind, (const char *)data, n, NULL, err, sizeof(err));
	if (rc && (!*err || strlen(err) >= sizeof(err) - 1))
		abort();                                     /* no sentence */
	if (rc)
		return;
	walk_grammar(g, t, data, n);
	sr_grammar_close(g);
}

#endif
