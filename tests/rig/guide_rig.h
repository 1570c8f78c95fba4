/* guide_rig.h - a small vocabulary made in memory, grammars over it, and what a guide says bit by bit. */
#ifndef GUIDE_RIG_H
#define GUIDE_RIG_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/grammar/guide.h"
#include "adapters/text/text.h"

/* words become ids 0 .. n-1, as they are; "<...>" is special; the last one ends an answer. */
static inline struct sr_text *rig_text(const char *const *words, int n)
{
	struct sr_text *t = calloc(1, sizeof(*t));

	assert(t);
	vocab_init(&t->vocab);
	for (int i = 0; i < n; i++) {
		size_t len = strlen(words[i]);
		bool special = len > 2 && words[i][0] == '<' && words[i][len - 1] == '>';
		int rc = vocab_set(&t->vocab, i, words[i], len, VOCAB_RAW | (special ? VOCAB_ADDED | VOCAB_SPECIAL : 0));
		assert(!rc);
	}
	if (vocab_seal(&t->vocab))
		abort();
	t->info.vocab = n;
	t->info.bos = -1;
	t->info.eos = n - 1;
	text_add_stop(t, n - 1);
	return t;
}

/* What is allowed, whatever words sr_guide_next() chose: one bit per id. */
static inline void rig_widen(const struct sr_next *next, const struct sr_text *t, uint32_t *bits)
{
	uint32_t words = ((uint32_t)t->info.vocab + 31) / 32;

	if (next->kind == SR_GUIDE_BITS)
		return;
	memset(bits, next->kind == SR_GUIDE_FREE ? 0xff : 0, words * sizeof(*bits));
	for (uint32_t i = 0; i < next->n && next->kind != SR_GUIDE_FREE; i++)
		if (next->kind == SR_GUIDE_ONLY || !i)
			bits[next->id[i] / 32] |= 1u << next->id[i] % 32;
}

static inline struct sr_next rig_bits(struct sr_guide *u, const struct sr_text *t, uint32_t *bits)
{
	struct sr_next next;
	int rc = sr_guide_next(u, &next, bits);

	assert(!rc);
	rig_widen(&next, t, bits);
	return next;
}

static inline bool rig_allows(const uint32_t *bits, int32_t id)
{
	return bits[id / 32] >> id % 32 & 1;
}

#endif
