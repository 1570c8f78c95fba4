/* guide_rig.h - a small vocabulary made in memory, grammars over it, and what a guide says bit by bit. */
#ifndef GUIDE_RIG_H
#define GUIDE_RIG_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/guide/guide.h"
#include "adapters/text/text.h"

/* words become ids 0 .. n-1.  The tokenizer makes only those of small letters; "<...>" is special; the last one
 * ends an answer. */
static inline struct sr_text *rig_text(const char *const *words, int n)
{
	struct sr_text *t = calloc(1, sizeof(*t));
	char err[200];
	int rc;

	assert(t);
	vocab_init(&t->vocab);
	for (int i = 0; i < n; i++) {
		size_t len = strlen(words[i]);
		bool special = len > 2 && words[i][0] == '<' && words[i][len - 1] == '>';
		bool letters = strspn(words[i], "abcdefghijklmnopqrstuvwxyz") == len;
		rc = vocab_set(&t->vocab, i, words[i], len, special ? VOCAB_ADDED | VOCAB_SPECIAL | VOCAB_RAW :
		               letters ? 0 : VOCAB_RAW);
		assert(!rc);
	}
	rc = vocab_seal(&t->vocab);
	assert(!rc);
	rc = pre_named(&t->pre, "gpt-2", 5, err, sizeof(err));
	assert(!rc);
	rc = bpe_create(&t->bpe, &t->vocab, (uint32_t)n * 2);
	assert(!rc);
	for (int i = 0; i < n; i++)                     /* cut before its last letter, else behind its first one */
		for (size_t cut = strlen(words[i]) - 1, len = cut + 1; cut; cut = cut == 1 ? 0 : 1)
			if (len < 20 && !bpe_add(&t->bpe, words[i], cut, words[i] + cut, len - cut))
				break;
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

/* What is allowed: one bit per id.  It is checked that sr_guide_next() says the same, or a forced part of
 * it. */
static inline struct sr_next rig_bits(struct sr_guide *u, const struct sr_text *t, uint32_t *bits)
{
	uint32_t words = ((uint32_t)t->info.vocab + 31) / 32, said[8192];
	const struct mask *k;
	struct sr_next next;
	int rc = sr_guide_next(u, &next, said);

	assert(!rc && words <= 8192);
	rc = mask_of(&u->in->m, u->state, &k);
	assert(!rc);
	mask_bits(&u->in->m, k, bits, words);
	if (k->any)
		memset(bits, 0xff, words * sizeof(*bits));
	for (uint32_t i = 0; u->in->y.state[u->state].accept && i < u->g->n_stop; i++)
		bits[u->g->stop[i] / 32] |= 1u << u->g->stop[i] % 32;
	if (next.kind == SR_GUIDE_BITS)
		assert(!memcmp(bits, said, words * sizeof(*bits)));
	if (next.kind == SR_GUIDE_FREE)
		assert(k->any);
	memset(said, 0, words * sizeof(*bits));
	for (uint32_t i = 0; i < next.n && (next.kind == SR_GUIDE_ONLY || next.kind == SR_GUIDE_IS); i++)
		if (next.kind == SR_GUIDE_ONLY || !i)
			said[next.id[i] / 32] |= 1u << next.id[i] % 32;
	if (next.kind == SR_GUIDE_ONLY)
		assert(!memcmp(bits, said, words * sizeof(*bits)));
	for (uint32_t i = 0; next.kind == SR_GUIDE_IS && i < words; i++)
		assert(!(said[i] & ~bits[i]));
	return next;
}

static inline bool rig_allows(const uint32_t *bits, int32_t id)
{
	return bits[id / 32] >> id % 32 & 1;
}

/* A grammar that is built by hand: rig_grammar(), productions over g->g, rig_seal(). */
static inline struct sr_grammar *rig_grammar(const struct sr_text *t)
{
	struct sr_grammar *g = calloc(1, sizeof(*g));

	assert(g);
	atomic_init(&g->users, 1);
	g->most_bytes = CACHE_BYTES;
	pthread_mutex_init(&g->lock, NULL);
	g->t = t;
	g->tokens = text_tokens(t);
	g->eos = g->stop[g->n_stop++] = t->info.stop[0];
	g->g = grammar_create(t, NULL);
	assert(g->g && g->tokens);
	return g;
}

/* 0; or what grammar_seal() gives, and the grammar is closed. */
static inline int rig_seal(struct sr_grammar *g, int32_t start)
{
	struct grammar_error e = { .code = 0 };
	int rc = grammar_seal(g->g, start, &e);

	if (!rc)
		rc = caches_create(&g->now, g);
	if (rc)
		sr_grammar_close(g);
	return rc;
}

static inline int32_t rig_word(struct sr_grammar *g, const char *s)
{
	return grammar_lexeme(g->g, regex_bytes(grammar_regexes(g->g), s, strlen(s)));
}

#endif
