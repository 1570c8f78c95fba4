/* sched/draft.c - guesses: rows that decode are given ids that may come next, so that one pass over the weights can
 * yield several tokens (sr_row.n_draft).  Answers do not depend on it, only the time that they take.
 *
 * What   a sequence's own words (core/ngram.h).  A guided sequence has none: its forced ids are known tokens.
 * When   all rows of the batch decode, and no result of the sequence is in flight.  Where batches are in flight one
 *        behind the other, a sequence whose guesses are good waits for its results.
 * How    many: a guess goes into the batch if the chance that it is right is greater than the tokens that the time
 * many   it takes would bring otherwise.  So guesses end where a batch computes more than it reads.
 *
 * The chance is learned of each sequence, by how long a match was.  The token that comes is compared with the first
 * guess also where it was not in the batch, so what is learned costs nothing.  The time of a batch is taken as
 * fixed + each * tokens, a line through the latest batches.
 */
#include <assert.h>
#include <string.h>

#include "core/ngram.h"
#include "core/sched/impl.h"

#define LOOK      32768      /* ids before the end that are searched */
#define LOOK_STEP (1 << 18)  /* the same, of all sequences in a step */
#define LEARN     0.15f      /* weight of a guess that was right or wrong */
#define HOPE      0.6f       /* the chance of a guess of which nothing is known */
#define FADE      0.98       /* weight of what was measured before, in the next measurement */
#define FIRM      1.0        /* weight of what the device says of itself, beside what is measured */
#define LONGEST   3.0        /* a batch that took this many times what it should counts as this long */
#define LOOK_EACH 16         /* a sequence whose guesses are not good waits for its results once in so many tokens */
#define LEAST     0.02       /* a chance below this is not worth its row */

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
	for (int k = 0; k < DRAFT_KINDS; k++)
		s->draft.chance[k] = HOPE;
}

/* Time of a batch that decodes: n tokens, of rows and guesses. */
void draft_measure(struct sched *s, const struct sr_batch *b, int32_t n)
{
	struct draft_line *l = &s->draft.line;
	double ns = b->end_ns > b->begin_ns ? (double)(b->end_ns - b->begin_ns) : 0, most, var, cov, least;

	if (ns <= 0)
		return;
	most = LONGEST * (l->fixed + l->each * n);
	if (l->weight > 1 && ns > most)
		ns = most;
	l->weight = FADE * l->weight + 1;
	l->n += (n - l->n) / l->weight;
	l->ns += (ns - l->ns) / l->weight;
	l->nn += ((double)n * n - l->nn) / l->weight;
	l->n_ns += (n * ns - l->n_ns) / l->weight;
	var = l->nn - l->n * l->n;
	cov = l->n_ns - l->n * l->ns;
	/* what the device says: the share of its operations, of all that it must do */
	least = (double)b->compute_ns + b->memory_ns;
	least = least > 0 ? ns * b->compute_ns / least / n : 0;
	l->each = (cov + FIRM * least) / (var + FIRM);
	l->each = l->each < least / 4 ? least / 4 : l->each > l->ns / l->n ? l->ns / l->n : l->each;
	l->fixed = l->ns - l->each * l->n;
}

/* Of a batch of `tokens`, from which `expected` tokens come: is one more guess worth its time, that is right with this
 * chance? */
static bool worth(const struct sched *s, double chance, int32_t tokens, double expected)
{
	const struct draft_line *l = &s->draft.line;

	return chance >= LEAST && chance * (l->fixed + l->each * tokens) >= l->each * expected;
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

/* How many guesses are worth their time, behind a match of this length. */
static int32_t how_many(const struct sched *s, const struct fill *x, const struct seq *q, int32_t length, int32_t most,
                        double *expected)
{
	double chance = 1;
	int32_t k = 0;

	for (; k < most; k++) {
		chance *= (double)draft_of(s, q)->chance[class_of(s, length + k)];
		if (!worth(s, chance, x->b->n_tokens + k, *expected))
			break;
		*expected += chance;
	}
	return k;
}

/* The most guesses that limits allow, without a look at memory. */
static int32_t allowed(const struct sched *s, const struct fill *x, const struct seq *q)
{
	int32_t n = s->cfg.drafts.most, left = q->end - q->known;

	n = n < left ? n : left;
	left = s->cfg.limits.drafts - x->f->n_guesses;
	n = n < left ? n : left;
	left = s->knobs.batch_tokens - x->b->n_tokens;
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

/* The batch is filled, and each of its rows decodes. */
void draft_fill(struct sched *s, struct fill *x)
{
	double expected = x->b->n_rows;

	s->draft.looked = 0;
	for (int32_t j = 0; j < x->n_decode && s->draft.looked < LOOK_STEP; j++) {
		const struct seq *q = &s->seq[x->f->row[j].seq];

		if (!worth(s, 1, x->b->n_tokens, expected))
			break;          /* not even if it were surely right */
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
