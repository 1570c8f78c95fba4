/* guess.c - rows with guesses (sr_row.n_draft): the slot's history while one is computed, and what was drawn. */
#include <assert.h>
#include <string.h>

#include "cpu.h"

/* The guesses of a row: behind the slot's history while the row is computed, since penalties and bad words of each
 * draw look at those before it. */
void guess_put(struct sr_backend *b, const struct sr_row *r)
{
	struct slot *s = &b->slot[r->slot];

	assert(!s->counted || s->n_history + r->n_draft <= b->history_cap);
	if (s->counted)
		memcpy(s->history + s->n_history, b->batch.token + r->token + r->n - r->n_draft,
		       r->n_draft * sizeof(*s->history));
}

/* What was drawn in a row with guesses: up to the first draw that is not what was guessed. */
static void settle_row(struct sr_backend *b, const struct sr_row *r)
{
	const int32_t *guess = b->batch.token + r->token + r->n - r->n_draft;
	struct sr_result *drawn = b->batch.result + r->result;
	struct slot *s = &b->slot[r->slot];
	int32_t n = 1;

	while (n <= r->n_draft && drawn[n - 1].id == guess[n - 1])
		n++;
	for (int32_t k = n; k <= r->n_draft; k++)
		drawn[k] = (struct sr_result){ .id = SR_UNDRAWN };
	s->last = drawn[n - 1].id;
	for (int32_t k = 0; s->counted && k < n && s->n_history < b->history_cap; k++)
		s->history[s->n_history++] = drawn[k].id;
}

void guess_settle(struct sr_backend *b)
{
	for (int32_t i = 0; b->lim.drafts && i < b->batch.n_rows; i++)
		if (b->batch.row[i].n_draft)
			settle_row(b, &b->batch.row[i]);
}
