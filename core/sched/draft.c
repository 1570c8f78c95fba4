/* sched/draft.c - guesses: rows that decode are given ids that may come next, so that one pass over the weights can
 * yield several tokens (sr_row.n_draft).  Answers do not depend on it, only the time that they take.
 *
 * What   a sequence's own words (core/ngram.h).  A guided sequence has none: its forced ids are known tokens.
 * When   all rows of the batch decode, and no result of the sequence is in flight.  Where batches are in flight one
 *        behind the other, a sequence whose guesses are good waits for its results.
 * How    as bring the most tokens in the time that their batch takes (draft_time.c).  So guesses end where a batch
 * many   computes more than it reads.
 *
 * The chance is learned of each sequence, by how long a match was.  The token that comes is compared with the first
 * guess also where it was not in the batch, so what is learned costs nothing.
 */
#include <assert.h>
#include <string.h>

#include "core/ngram.h"
#include "core/sched/impl.h"

#define LOOK      32768      /* ids before the end that are searched */
#define LOOK_STEP (1 << 18)  /* the same, of all sequences in a step */
#define LEARN     0.15f      /* weight of a guess that was right or wrong */
#define HOPE      0.6f       /* the chance of a guess of which nothing is known */
#define LOOK_EACH 16         /* a sequence whose guesses are not good waits for its results once in so many tokens */

/* ---- what a guess is worth ----------------------------------------------------------------------- */

/* Matches by length: of the least length, up to twice, up to 4 times, longer. */
static int class_of(const struct sched *s, int32_t length)
{
	int32_t least = s->cfg.drafts.least;

	return length <= least ? 0 : length <= 2 * least ? 1 : length <= 4 * least ? 2 : 3;
}

static void learn(struct sched *s, struct draft *d, int kind, bool right)
{
	s->draft.chance[kind] += LEARN / 4 * ((float)right - s->draft.chance[kind]);
	d->chance[kind] += LEARN * ((float)right - d->chance[kind]);
}

static struct draft *draft_of(const struct sched *s, const struct seq *q)
{
	return &s->draft.of[q - s->seq];
}

void draft_join(struct sched *s, struct seq *q)
{
	q->drafts = s->draft.of && !q->guided && !q->pool && q->end > q->n_prompt + 1;
	q->other = q->guided || q->drafts;
	if (!q->drafts)
		return;
	*draft_of(s, q) = (struct draft){ .shadow = NONE };
	memcpy(draft_of(s, q)->chance, s->draft.chance, sizeof(s->draft.chance));
}

void draft_create(struct sched *s)
{
	draft_time_create(&s->draft.time);
	for (int k = 0; k < DRAFT_KINDS; k++)
		s->draft.chance[k] = HOPE;
}

/* ---- rows ------------------------------------------------------------------------------------------ */

/* Results of q are in flight.  Shall it wait for them, to guess? */
bool draft_waits(const struct sched *s, const struct seq *q)
{
	return q->known > q->have && (q->guessing || draft_of(s, q)->lucky || (q->have - q->n_prompt) % LOOK_EACH == 0);
}

/* Where q's ids go on: the place in s->draft.ids, of *n; or -1. */
static int32_t look(struct sched *s, struct seq *q, int32_t *n, int32_t *length)
{
	int32_t from = q->have > LOOK ? q->have - LOOK : 0;

	*n = q->have - from;
	s->draft.looked += *n;
	ids_read(q, from, *n, s->draft.ids);
	return ngram_find(s->draft.ids, *n, s->cfg.drafts.least, s->cfg.drafts.longest, length);
}

/* How many guesses bring most tokens in their time, behind a match of this length; 0: none is worth it. */
static int32_t how_many(const struct sched *s, const struct fill *x, const struct seq *q, int32_t length, int32_t most,
                        double *expected)
{
	double chance = 1, hoped[SCHED_DRAFT_MOST + 1] = { 0 };
	int32_t k;

	for (k = 1; k <= most; k++) {
		chance *= (double)draft_of(s, q)->chance[class_of(s, length + k - 1)];
		hoped[k] = hoped[k - 1] + chance;
	}
	k = draft_best(s->draft.times + x->f->n_guesses, most, hoped, *expected);
	*expected += hoped[k];
	return k;
}

/* The most guesses that limits allow, without a look at memory. */
static int32_t allowed(const struct sched *s, const struct fill *x, const struct seq *q)
{
	int32_t n = s->cfg.drafts.most, left = q->end - q->known;

	n = n < left ? n : left;
	left = s->draft.most - x->f->n_guesses;
	return n < left ? n : left;
}

/* Of k guesses, as many as there are blocks and ids for.  No sequence gives way for a guess. */
static int32_t room(struct sched *s, struct fill *x, struct seq *q, int32_t k)
{
	const struct sr_limits *lim = &s->cfg.limits;
	struct kv_table *t = &s->table[q->slot];
	int32_t held = t->n * lim->block_tokens - q->planned, more;

	if (k > held) {
		more = (q->planned + k + lim->block_tokens - 1) / lim->block_tokens - t->n;
		if ((int64_t)more * lim->n_groups > kv_available(s->kv) - kv_kept(s->kv, q->tenant) - s->knobs.headroom ||
		    q->planned + k > t->cap * lim->block_tokens ||
		    x->b->n_cmds + lim->n_groups + s->n_ended > lim->cmds ||
		    x->b->n_words + (int64_t)more * lim->n_groups > lim->words)
			k = held;
	}
	return k > 0 && ids_may_grow(s, q, q->planned + k) ? k : 0;
}

/* Put k guesses into q's row j, which had one token. */
static void extend(struct sched *s, struct fill *x, struct seq *q, int32_t j, int32_t k, const int32_t *guess)
{
	struct sr_batch *b = x->b;
	struct sr_row *r = &b->row[j];
	int r0 = kv_grow(s->kv, &s->table[q->slot], q->planned + k);

	assert(r0 == 0 && r->n == 1 && q->planned == q->have && q->known == q->have + 1);
	fill_blocks(s, x, q);
	r->token = b->n_ids;
	r->result = b->n_results;
	r->n = 1 + k;
	r->n_draft = (uint8_t)k;
	ids_read(q, q->have - 1, 1, b->token + b->n_ids);
	for (int32_t i = 0; i < k; i++)
		b->token[b->n_ids + 1 + i] = guess[i];
	b->n_ids += 1 + k;
	b->n_results += 1 + k;
	b->n_tokens += k;
	x->f->n_guesses += k;
	q->planned += k;
	q->known += k;
	q->guessing = true;
	if (s->n_queued)
		queue_charge(s, q, k);
	s->cfg.counters->drafts++;
	s->cfg.counters->draft_tokens += (uint64_t)k;
}

/* Records for k guesses: of as many as there are. */
static int32_t records(struct sched *s, struct seq *q, int32_t k)
{
	uint32_t got = k > 0 ? s->port.reserve(s->port.ctx, q->client, q->cost, (uint32_t)(k * q->cost)) : 0;

	if (got % q->cost)
		s->port.release(s->port.ctx, q->client, got % q->cost);
	k = (int32_t)(got / q->cost);
	q->reserved += k * q->cost;
	return k;
}

static void guess(struct sched *s, struct fill *x, int32_t j, double *expected)
{
	struct seq *q = &s->seq[x->f->row[j].seq];
	struct draft *d = draft_of(s, q);
	int32_t most = allowed(s, x, q), at, n, k, length, next[SCHED_DRAFT_MOST];
	double hoped = *expected;

	at = look(s, q, &n, &length);
	d->lucky = false;
	if (at < 0)
		return;
	d->match = length;
	k = how_many(s, x, q, length, most, &hoped);
	k = k > 0 ? records(s, q, room(s, x, q, k)) : 0;
	ngram_copy(s->draft.ids, n, at, k > 0 ? k : 1, next);
	d->shadow = next[0];
	if (k <= 0)
		return;
	d->lucky = true;
	*expected = hoped;
	extend(s, x, q, j, k, next);
}

/* Would guesses gain anything, if all were right? */
static bool may_gain(const struct sched *s, const struct fill *x, double expected)
{
	static const double all[SCHED_DRAFT_MOST + 1] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
	int32_t left = s->draft.most - x->f->n_guesses, most = s->cfg.drafts.most;

	return draft_best(s->draft.times + x->f->n_guesses, left < most ? left : most, all, expected) > 0;
}

/* The batch is filled, and each of its rows decodes. */
void draft_fill(struct sched *s, struct fill *x)
{
	double expected = x->b->n_rows;
	int32_t room = s->knobs.batch_tokens - x->b->n_tokens;

	s->draft.looked = 0;
	s->draft.most = room < s->cfg.limits.drafts ? room : s->cfg.limits.drafts;
	if (!x->n_decode || s->draft.most <= 0)
		return;
	draft_times(&s->draft.time, x->b->n_tokens, s->draft.most, s->draft.times);
	for (int32_t j = 0; j < x->n_decode && s->draft.looked < LOOK_STEP; j++) {
		const struct seq *q = &s->seq[x->f->row[j].seq];

		if (!may_gain(s, x, expected))
			break;
		if (q->drafts && q->known == q->have + 1)
			guess(s, x, j, &expected);
	}
}

/* ---- results --------------------------------------------------------------------------------------- */

/* The token after q's ids is `id`, from a row without guesses: was the first guess right? */
void draft_heard(struct sched *s, struct seq *q, int32_t id)
{
	struct draft *d = draft_of(s, q);

	if (d->shadow == NONE)
		return;
	learn(s, d, class_of(s, d->match), d->shadow == id);
	d->lucky |= d->shadow == id;
	d->shadow = NONE;
}

/* What a row with guesses has drawn: one token, and one more for each guess that was right. */
void draft_reap(struct sched *s, struct seq *q, const struct sr_row *r, const struct sr_batch *b)
{
	struct draft *d = draft_of(s, q);
	uint32_t gen = q->gen;
	int32_t right = 0;

	assert(r->first + r->n - r->n_draft == q->have && q->guessing);
	q->guessing = false;
	d->shadow = NONE;
	while (right < r->n_draft && b->result[r->result + right + 1].id != SR_UNDRAWN)
		right++;
	for (int32_t k = 0; k <= right && k < r->n_draft; k++)
		learn(s, d, class_of(s, d->match + k), k < right);
	s->cfg.counters->draft_accepted += (uint64_t)right;
	for (int32_t k = 0; k < right; k++)
		s->cfg.counters->draft_right[k]++;
	for (int32_t k = 0; k <= right && q->gen == gen; k++)
		reap_drawn(s, q, b, r->result + k);
	if (q->gen != gen)
		return;
	if (q->reserved)
		s->port.release(s->port.ctx, q->client, (uint32_t)q->reserved);
	q->reserved = 0;
	q->known = q->have;
	q->planned = q->have - 1;
}

/* A batch with guesses, of which `right` were right: how long it took, and how long its tokens would have taken
 * without. */
void draft_gained(struct sched *s, const struct in_flight *f, const struct sr_batch *b, uint64_t right)
{
	double ns = b->end_ns > b->begin_ns ? (double)(b->end_ns - b->begin_ns) : 0;

	s->cfg.counters->draft_ns += (uint64_t)ns;
	s->cfg.counters->draft_without_ns += (uint64_t)(draft_time(&s->draft.time, f->n) * (1 + (double)right / f->n));
}
