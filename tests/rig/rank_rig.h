/* rank_rig.h - for tests that a model divided among ranks gives the bits of one: a model that divides unevenly, what was
 * drawn from it, and whether that is the same. */
#ifndef RANK_RIG_H
#define RANK_RIG_H

#include <string.h>

#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define RESULTS 256

/* What a play gave: results and their alternatives. */
struct record { int n; struct sr_result result[RESULTS]; struct sr_top top[RESULTS][SR_TOP_MAX]; };

static inline void keep(struct record *r, const struct drive *d, int from, int n)
{
	for (int i = from; i < from + n; i++) {
		assert_true(r->n < RESULTS);
		r->result[r->n] = d->batch->result[i];
		if (d->batch->row[0].n_top)
			memcpy(r->top[r->n], d->batch->top + (size_t)i * SR_TOP_MAX, sizeof(r->top[0]));
		r->n++;
	}
}

static inline void check(const char *what, int world, const struct record *is, const struct record *want)
{
	assert_int_equal(is->n, want->n);
	for (int i = 0; i < is->n; i++)
		if (memcmp(&is->result[i], &want->result[i], sizeof(is->result[0])))
			fail_msg("%s: %d ranks, result %d: id %d (%.9g), not %d (%.9g)", what, world, i, is->result[i].id,
			         (double)is->result[i].logprob, want->result[i].id, (double)want->result[i].logprob);
	assert_memory_equal(is->top, want->top, sizeof(is->top));
}

/* Draws that look at all of a sequence. */
static inline struct sr_sampling warm_setting(void)
{
	struct sr_sampling s;

	memset(&s, 0, sizeof(s));
	s.temperature = 0.9f;
	s.top_p = 0.95f;
	s.seed = 7;
	s.repetition = 1.1f;
	s.frequency = 0.2f;
	return s;
}

/* layers: for a window of so many positions; 0: none. */
static inline struct sr_model rank_shape(int32_t vocab, const struct sr_experts *x, int32_t window, struct sr_layer *layers)
{
	struct sr_model shape = tiny_shape();

	shape.d_model = 128;                     /* 4 runs of columns; 8, and 3 of experts */
	shape.d_ff = 256;
	shape.n_vocab = vocab;
	shape.kind[0].n_heads = 6;               /* on 2 ranks 2 and 4; on 4 two ranks have a copy of a KV head */
	shape.kind[0].n_kv_heads = 3;
	shape.experts = *x;
	if (window)
		tiny_window(&shape, layers, window);
	return shape;
}

#endif
