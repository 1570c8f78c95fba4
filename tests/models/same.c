/* same.c - the same bits for a sequence alone and in company, in one piece and in several, with and without a shared
 * prefix: family_same_bits() in family.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#include "tests/models/family.h"

#define OTHERS 31
#define BLOCK  16

static void take(struct drive *d, struct family_answer *a, int at, int from, int n)
{
	memcpy(a->result + from, d->batch->result + at, (size_t)n * sizeof(*a->result));
}

/* Alone, in pieces of `step` tokens, into blocks from `block` on. */
static void in_pieces(struct drive *d, const struct family *f, int n, int step, int block, struct family_answer *a)
{
	drive_begin(d, 0, NULL);
	drive_range(d, 0, block, 8);
	for (int from = 0; from < n; from += step) {
		int some = n - from < step ? n - from : step;
		int at = drive_row(d, 0, from, f->prompt[1].ids + from, some, some, 0);

		drive_step(d);
		take(d, a, at, from, some);
	}
}

void family_answer(struct drive *d, const struct family *f, int n, struct family_answer *a)
{
	memset(a, 0, sizeof(*a));
	in_pieces(d, f, n, FAMILY_TOKENS, 0, a);
}

/* Beside others that each compute another part of both prompts. */
static void in_company(struct drive *d, const struct family *f, int n, struct family_answer *a)
{
	int at = 0;

	for (int s = 0; s <= OTHERS; s++) {
		bool own = s == OTHERS / 2;
		int some = own ? n : 1 + s % (n < 40 ? 2 : 15);

		drive_begin(d, s, NULL);
		drive_range(d, s, own ? 32 : s, own ? 8 : 1);
		if (own)
			at = drive_row(d, s, 0, f->prompt[1].ids, n, n, 0);
		else
			drive_row(d, s, 0, f->prompt[s % 2].ids + s % 7, some, 0, 1);
	}
	drive_step(d);
	take(d, a, at, 0, n);
}

/* Another sequence's first blocks are shared, as by the prefix cache; only what follows is computed. */
static void with_prefix(struct drive *d, const struct family *f, int n, struct family_answer *a)
{
	int blocks = (n - 1) / BLOCK, shared = blocks * BLOCK, at;

	drive_begin(d, 0, NULL);
	drive_range(d, 0, 8, 8);
	drive_row(d, 0, 0, f->prompt[1].ids, shared, 0, 1);
	drive_step(d);
	drive_begin(d, 1, NULL);
	drive_range(d, 1, 8, blocks);
	drive_blocks(d, 1, blocks, (int32_t[]){ 40, 41, 42, 43 }, 4);
	if (d->lim.n_states)
		drive_state(d, 1, 0, 1);
	at = drive_row(d, 1, shared, f->prompt[1].ids + shared, n - shared, n - shared, 0);
	drive_step(d);
	take(d, a, at, shared, n - shared);
}

/* The same, but the first sequence goes on past the shared blocks, and leaves its state there on the way. */
static void with_kept_state(struct drive *d, const struct family *f, int n, struct family_answer *a)
{
	int blocks = (n - 1) / BLOCK > 1 ? (n - 1) / BLOCK - 1 : 1, shared = blocks * BLOCK, at;

	drive_begin(d, 0, NULL);
	drive_range(d, 0, 8, 8);
	drive_keep(d, 0, 20, shared);
	drive_row(d, 0, 0, f->prompt[1].ids, n - 1, 0, 1);
	drive_step(d);
	drive_begin(d, 1, NULL);
	drive_range(d, 1, 8, blocks);
	drive_blocks(d, 1, blocks, (int32_t[]){ 40, 41, 42, 43 }, 4);
	drive_state(d, 1, 20, 1);
	drive_keep(d, 1, 21, n - 1);
	at = drive_row(d, 1, shared, f->prompt[1].ids + shared, n - shared, n - shared, 0);
	drive_step(d);
	take(d, a, at, shared, n - shared);
	drive_state(d, 1, 21, 22);               /* the last token again */
	at = drive_row(d, 1, n - 1, f->prompt[1].ids + n - 1, 1, 1, 0);
	drive_step(d);
	take(d, a, at, n - 1, 1);
}

void family_same_bits(struct drive *d, const struct family *f, int n)
{
	struct family_answer one, other;

	family_answer(d, f, n, &one);
	other = one;
#define SAME(call) do { call; \
		if (memcmp(&one, &other, sizeof(one))) \
			fail_msg("%s: other bits after " #call, f->name); } while (0)
	SAME(in_pieces(d, f, n, 7, 20, &other));
	SAME(in_company(d, f, n, &other));
	SAME(with_prefix(d, f, n, &other));
	if (d->lim.n_states)
		SAME(with_kept_state(d, f, n, &other));
#undef SAME
}
