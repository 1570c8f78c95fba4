/* guided_rows.h - a guided row beside another, on any back end: its mask comes before the batch, while it is
 * computed, or not at all.  For tests; C and C++. */
#ifndef GUIDED_ROWS_H
#define GUIDED_ROWS_H

#include <string.h>

#include "kernels/batch.h"
#include "tests/rig/drive.h"

#define GUIDED_TOKENS 24
#define GUIDED_PROMPT 20

enum guided_when { GUIDED_BEFORE, GUIDED_MEANWHILE, GUIDED_MISSED };

struct guided_run {
	int32_t id[GUIDED_TOKENS], other[GUIDED_TOKENS]; /* of the guided row, and of the one beside it */
	float logprob[GUIDED_TOKENS];
	int misses;
	/* while it runs */
	struct drive *d;
	struct sr_masks m;
	int32_t vocab, position; /* position: of the mask to be given in the next yield; -1: none */
};

/* What the mask for a position says: mostly bits, now and then one id, or any. */
static uint32_t guided_what(int32_t position, int32_t vocab)
{
	return position % 5 == 3 ? (uint32_t)(position * 37 % vocab) + 1 : position % 5 == 4 ? SR_MASK_ANY : SR_MASK_BITS;
}

/* One id of four, or of 16. */
static bool guided_allows(int32_t position, int32_t id)
{
	uint32_t h = (uint32_t)(position * 7919 + id * 104729 + 1) * 2654435761u >> 20;

	return h % (position % 2 ? 4 : 16) == 0;
}

static void guided_put(const struct guided_run *r, int32_t mask, int32_t position)
{
	int32_t place = 2 * (mask - 1) + position % 2;
	uint32_t *w = r->m.word + (size_t)place * (size_t)r->m.words;

	for (int32_t k = 0; k < r->m.words; k++)
		w[k] = 0;
	for (int32_t i = 0; i < r->vocab; i++)
		w[i / 32] |= (uint32_t)guided_allows(position, i) << i % 32;
	__atomic_store_n(&r->m.tag[place], (uint64_t)position << 32 | guided_what(position, r->vocab), __ATOMIC_RELEASE);
}

static void guided_yield(void *ctx)
{
	struct guided_run *r = (struct guided_run *)ctx;

	if (r->position >= 0)
		guided_put(r, 2, r->position);
	r->position = -1;
}

static void guided_begin(struct drive *d, int slot, int first_block, const int32_t *text)
{
	struct sr_sampling s;

	memset(&s, 0, sizeof(s));
	s.seed = 9;
	s.temperature = slot % 2 ? 0.9f : 1.2f;
	s.top_p = 1;
	s.repetition = 1.2f;
	s.presence = 0.5f;
	drive_begin(d, slot, &s);
	drive_range(d, slot, first_block, 4);
	drive_history(d, slot, text, GUIDED_PROMPT, GUIDED_PROMPT);
}

/* Slot 3 is guided by pair 2; slot 5 is not.  With GUIDED_MISSED every third row finds no mask at first, and is
 * computed again. */
static void guided_play(struct drive *d, int32_t vocab, const int32_t *text, enum guided_when when,
                        struct guided_run *r)
{
	struct sr_batch *b = d->batch;

	memset(r, 0, sizeof(*r));
	r->d = d;
	r->vocab = vocab;
	d->ops->masks(d->b, &r->m);
	guided_begin(d, 3, 4, text);
	guided_begin(d, 5, 8, text);
	for (int n = 0; n < GUIDED_TOKENS; n++) {
		int32_t position = GUIDED_PROMPT + n;
		bool misses = when == GUIDED_MISSED && n && n % 3 == 0;

		for (int again = 0; again <= misses; again++) {
			drive_row(d, 3, n ? position - 1 : 0, n ? NULL : text, n ? 1 : GUIDED_PROMPT, 0, 1);
			b->row[0].mask = 2;
			if (!again)
				drive_row(d, 5, n ? position - 1 : 0, n ? NULL : text, n ? 1 : GUIDED_PROMPT, 0, 1);
			r->position = -1;
			if (when == GUIDED_MEANWHILE && n)
				r->position = position;
			else if (!misses || again)
				guided_put(r, 2, position);
			drive_step_with(d, guided_yield, r);
			if (!again)
				r->other[n] = b->result[1].id;
			r->misses += b->result[0].id == SR_MISS;
		}
		r->id[n] = b->result[0].id;
		r->logprob[n] = b->result[0].logprob;
	}
}

#endif
