/* guessed_rows.h - a sequence with guesses (sr_row.n_draft) draws what it draws alone.  For tests of a back end.
 *
 * A test that includes it says before: ANSWER, its tokens; MOST, guesses of a row; BESIDE, tokens of a prompt that
 * comes in between.
 */
#ifndef GUESSED_ROWS_H
#define GUESSED_ROWS_H

#include <string.h>

#include "tests/rig/drive.h"

#define PROMPT  37
#define TOP     3

struct token { struct sr_result r; struct sr_top top[TOP]; };

static int32_t text[600];
static uint64_t rng = 1;

static inline uint32_t below(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(rng >> 33) % n;
}

static const struct sr_sampling asked[] = {
	/* seed, temperature, top_p, min_p, top_k, presence, frequency, repetition, min_position */
	{ 0, 0, 1, 0, 0, 0, 0, 1, 0 },
	{ 5, 1, 0.9f, 0, 0, 0.2f, 0.5f, 1.3f, 0 },
	{ 77, 1.5f, 1, 0, 20, 0, 0, 1, PROMPT + ANSWER / 2 },
};

static inline void start(struct drive *d, int slot, const struct sr_sampling *s, int from_block)
{
	static const uint32_t bad[] = { 1, 7, 2, 9, 11 }, stop[] = { 3, 5, 8 };

	drive_begin(d, slot, s);
	drive_list(d, slot, SR_LIST_BAD, bad, 5);
	drive_list(d, slot, SR_LIST_STOP, stop, 3);
	drive_history(d, slot, text, PROMPT, PROMPT);
	drive_range(d, slot, from_block, (PROMPT + ANSWER + MOST) / 16 + 1);
}

static inline void last_row_tops(struct drive *d)
{
	d->batch->row[d->batch->n_rows - 1].n_top = TOP;
}

static inline void read_results(const struct drive *d, int at, int n, struct token *out)
{
	for (int i = 0; i < n; i++) {
		out[i].r = d->batch->result[at + i];
		memcpy(out[i].top, d->batch->top + (size_t)(at + i) * SR_TOP_MAX, sizeof(out[i].top));
	}
}

static inline void answer_alone(struct drive *d, const struct sr_sampling *s, struct token *out)
{
	int at;

	start(d, 0, s, 0);
	at = drive_row(d, 0, 0, text, PROMPT, 0, 1);
	last_row_tops(d);
	drive_step(d);
	read_results(d, at, 1, out);
	for (int i = 1; i < ANSWER; i++) {
		at = drive_row(d, 0, PROMPT + i - 1, NULL, 1, 0, 1);
		last_row_tops(d);
		drive_step(d);
		read_results(d, at, 1, out + i);
	}
}

/* A row of slot 1 that has answered `n` tokens: some guesses, one of them wrong if wrong < n_draft. */
static inline int guessed_row(struct drive *d, const struct token *want, int n, int n_draft, int wrong)
{
	int32_t ids[MOST + 1] = { want[n - 1].r.id };
	struct sr_row *r;
	int at;

	for (int i = 0; i < n_draft; i++)
		ids[1 + i] = i < wrong ? want[n + i].r.id : i == wrong ? (want[n + i].r.id + 1) % 50 : (int32_t)below(50);
	at = drive_row(d, 1, PROMPT + n - 1, ids, 1 + n_draft, 0, 1);
	r = &d->batch->row[d->batch->n_rows - 1];
	r->n_draft = (uint8_t)n_draft;
	r->n_top = TOP;
	d->batch->n_results += n_draft;
	return at;
}

/* The same answer with guesses, beside another sequence in slot 2 and a long prompt in slot 3. */
static inline void answer_guessed(struct drive *d, const struct sr_sampling *s, const struct token *want, bool beside)
{
	struct token got[MOST + 1];
	int n = 1, at;

	start(d, 1, s, 10);
	at = drive_row(d, 1, 0, text, PROMPT, 0, 1);
	last_row_tops(d);
	drive_step(d);
	read_results(d, at, 1, got);
	assert_memory_equal(got, want, sizeof(*got));
	if (beside)
		start(d, 2, s, 20);
	for (int step = 0; n < ANSWER; step++) {
		int most = ANSWER - n - 1 < MOST ? ANSWER - n - 1 : MOST, n_draft = most > 0 ? (int)below((uint32_t)most + 1) : 0;
		int wrong = (int)below(3) ? n_draft : (int)below((uint32_t)n_draft + 1), right = wrong < n_draft ? wrong : n_draft;

		if (beside && step == 2) {           /* and a prompt, which draws */
			drive_begin(d, 3, NULL);
			drive_range(d, 3, 30, (BESIDE + 15) / 16);
			drive_row(d, 3, 0, text, BESIDE, 0, 1);
		}
		if (beside)
			drive_row(d, 2, step, text + step, 1, 0, 0);
		if (n_draft)
			at = guessed_row(d, want, n, n_draft, wrong);
		else
			at = drive_row(d, 1, PROMPT + n - 1, NULL, 1, 0, 1), last_row_tops(d);
		drive_step(d);
		read_results(d, at, n_draft + 1, got);
		assert_memory_equal(got, want + n, (size_t)(right + 1) * sizeof(*got));
		for (int i = right + 1; i <= n_draft; i++)
			assert_int_equal(got[i].r.id, SR_UNDRAWN);
		n += right + 1;
	}
}

#endif
