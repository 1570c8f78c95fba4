/* guided.c - the guides of one answer, one after another: sr_guided_ in slipring-text.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/slipring-text.h"

#define AHEAD 64                       /* forced tokens that have not come yet */

enum phase { MAYBE_THOUGHT, THOUGHT, ANSWER };     /* MAYBE: token 0 decides */

struct sr_guided {
	struct sr_grammar *grammar;    /* NULL: the answer is free */
	struct sr_guide *guide;        /* of the answer without its thought */
	const struct sr_text_info *info;
	struct sr_thought thought;
	enum phase phase;
	int64_t n_thought;             /* tokens of the thought so far */
	uint32_t min_tokens, next;     /* next: index of the first token without a guide */
	int32_t ahead[AHEAD];          /* [n_ahead] from `first`, round: the guide is past these */
	uint32_t first, n_ahead;
	int32_t until[SR_GUIDE_IDS];   /* [n_until] all is free up to one of these */
	uint32_t n_until;
	bool waits;                    /* a token will be drawn that has its guide */
	bool over;                     /* the end has been forced */
	uint32_t n_stop;
	int32_t stop[];                /* [n_stop] of the request */
};

static enum phase first_phase(const struct sr_guided *d)
{
	return !d->thought.n_end ? ANSWER : d->thought.opened ? THOUGHT : MAYBE_THOUGHT;
}

int sr_guided_open(struct sr_guided **out, struct sr_grammar *g, const struct sr_text *t, uint32_t min_tokens,
                   const int32_t *stop, uint32_t n_stop, const struct sr_thought *thought)
{
	struct sr_guided *d = calloc(1, sizeof(*d) + n_stop * sizeof(*stop));

	*out = d;
	if (!d)
		return -ENOMEM;
	d->grammar = g;
	d->info = sr_text_info(t);
	d->min_tokens = min_tokens;
	d->n_stop = n_stop;
	if (n_stop)
		memcpy(d->stop, stop, n_stop * sizeof(*stop));
	if (thought)
		d->thought = *thought;
	d->phase = first_phase(d);
	if (!g || sr_guide_open(&d->guide, g) == 0)
		return 0;
	free(d);
	*out = NULL;
	return -ENOMEM;
}

void sr_guided_close(struct sr_guided *d)
{
	if (!d)
		return;
	sr_guide_close(d->guide);
	free(d);
}

static bool ends(const struct sr_guided *d, int32_t id)
{
	for (int32_t i = 0; i < d->info->n_stop; i++)
		if (id == d->info->stop[i])
			return true;
	for (uint32_t i = 0; i < d->n_stop; i++)
		if (id == d->stop[i])
			return true;
	return false;
}

static void set(uint32_t *bits, int32_t id) { bits[id / 32] |= 1u << id % 32; }
static void clear(uint32_t *bits, int32_t id) { bits[id / 32] &= ~(1u << id % 32); }
static size_t n_words(const struct sr_guided *d) { return ((size_t)d->info->vocab + 31) / 32; }

/* Any token, by its bits. */
static void all_bits(const struct sr_guided *d, struct sr_next *x, uint32_t *bits)
{
	const int32_t vocab = d->info->vocab;

	memset(bits, 0xff, n_words(d) * sizeof(*bits));
	if (vocab % 32)
		bits[vocab / 32] = (1u << vocab % 32) - 1;
	x->kind = SR_GUIDE_BITS;
	x->n = 0;
}

/* Take stop ids out of what may come, because the answer is still too short. */
static void without_stops(const struct sr_guided *d, struct sr_next *x, uint32_t *bits)
{
	uint32_t n = 0;

	if (x->kind == SR_GUIDE_FREE)
		all_bits(d, x, bits);
	if (x->kind == SR_GUIDE_BITS) {
		for (int32_t i = 0; i < d->info->n_stop; i++)
			clear(bits, d->info->stop[i]);
		for (uint32_t i = 0; i < d->n_stop; i++)
			clear(bits, d->stop[i]);
	} else if (x->kind == SR_GUIDE_ONLY) {
		for (uint32_t i = 0; i < x->n; i++)
			if (!ends(d, x->id[i]))
				x->id[n++] = x->id[i];
		x->n = n ? n : x->n;
	}
}

/* Forced tokens: in records of SR_GUIDE_IDS. */
static int force(struct sr_guided *d, const struct sr_next *x, sr_guided_put *put, void *ctx)
{
	uint32_t n = x->n < AHEAD - d->n_ahead ? x->n : AHEAD - d->n_ahead, here;
	int r = 0;

	for (uint32_t at = 0; at < n && !r; at += here) {
		here = n - at < SR_GUIDE_IDS ? n - at : SR_GUIDE_IDS;
		r = put(ctx, d->next, SR_GUIDE_IS, x->id + at, here, NULL);
		d->next += here;
	}
	for (uint32_t i = 0; i < n && !r; i++) {
		d->ahead[(d->first + d->n_ahead++) % AHEAD] = x->id[i];
		if (!x->done && d->phase == ANSWER)
			r = sr_guide_take(d->guide, x->id[i]);
	}
	d->phase = ANSWER;                     /* the end of a thought may have been forced */
	d->over = x->done;
	return r;
}

/* Token 0 may also be the one that opens a thought. */
static void or_thought(const struct sr_guided *d, struct sr_next *x, uint32_t *bits)
{
	const uint32_t n = x->kind == SR_GUIDE_IS ? 1 : x->n;

	if (x->kind == SR_GUIDE_FREE) {        /* one token, for it decides about the next */
		x->n = 0;
	} else if (x->kind == SR_GUIDE_BITS) {
		set(bits, d->thought.begin);
	} else if (n < SR_GUIDE_IDS) {
		x->kind = SR_GUIDE_ONLY;
		x->id[n] = d->thought.begin;
		x->n = n + 1;
	} else {
		memset(bits, 0, n_words(d) * sizeof(*bits));
		for (uint32_t i = 0; i < n; i++)
			set(bits, x->id[i]);
		set(bits, d->thought.begin);
		x->kind = SR_GUIDE_BITS;
		x->n = 0;
	}
}

/* The next token of a thought.  A counted one is guided token by token, because what is free up to an id
 * cannot be broken off. */
static void in_thought(const struct sr_guided *d, struct sr_next *x)
{
	const struct sr_thought *t = &d->thought;
	const bool over = t->most >= 0 && d->n_thought >= t->most;

	*x = (struct sr_next){ .kind = over ? SR_GUIDE_IS : SR_GUIDE_FREE,
		.n = over ? 1 : t->most < 0 ? t->n_end : 0 };
	memcpy(x->id, t->end, x->n * sizeof(*x->id));
}

/* What may come next. */
static int next(struct sr_guided *d, struct sr_next *x, uint32_t *bits)
{
	int r = 0;

	if (d->phase == THOUGHT)
		in_thought(d, x);
	else if (d->guide)
		r = sr_guide_next(d->guide, x, bits);
	else                                   /* the other stop ids end the answer, too */
		*x = (struct sr_next){ .kind = SR_GUIDE_FREE, .n = d->info->n_stop > 0, .id = { d->info->stop[0] } };
	if (r)
		return r;
	if (x->done && x->kind == SR_GUIDE_ONLY) { /* any of them ends it: no need to compute which */
		x->kind = SR_GUIDE_IS;
		x->n = 1;
	}
	if (d->phase == MAYBE_THOUGHT)
		or_thought(d, x, bits);
	if (d->next < d->min_tokens && !x->done)
		without_stops(d, x, bits);
	return 0;
}

/* Give all guides that can be given now. */
static int give(struct sr_guided *d, uint32_t *bits, sr_guided_put *put, void *ctx)
{
	struct sr_next x;
	int r = 0;

	while (!r && !d->waits && !d->n_until && !d->over && d->n_ahead < AHEAD) {
		r = next(d, &x, bits);
		if (r)
			break;
		if (x.kind == SR_GUIDE_IS) {
			r = force(d, &x, put, ctx);
			continue;
		}
		r = put(ctx, d->next++, x.kind, x.id, x.kind == SR_GUIDE_BITS ? 0 : x.n, bits);
		d->waits = true;
		if (x.kind == SR_GUIDE_FREE && x.n) {
			d->n_until = x.n;
			memcpy(d->until, x.id, x.n * sizeof(*x.id));
		}
	}
	return r;
}

int sr_guided_begin(struct sr_guided *d, uint32_t *bits, sr_guided_put *put, void *ctx)
{
	uint32_t index = d->next - d->waits - d->n_ahead, here;
	int32_t id[SR_GUIDE_IDS];
	int r = 0;

	/* Given before: those guides went with the request, but their tokens have not come. */
	for (uint32_t at = 0; at < d->n_ahead && !r; at += here) {
		here = d->n_ahead - at < SR_GUIDE_IDS ? d->n_ahead - at : SR_GUIDE_IDS;
		for (uint32_t i = 0; i < here; i++)
			id[i] = d->ahead[(d->first + at + i) % AHEAD];
		r = put(ctx, index + at, SR_GUIDE_IS, id, here, NULL);
	}
	if (r)
		return r;
	if (d->n_until)
		return put(ctx, d->next - 1, SR_GUIDE_FREE, d->until, d->n_until, NULL);
	d->next -= d->waits;                   /* the same state has the same guide */
	d->waits = false;
	return give(d, bits, put, ctx);
}

static bool ends_thought(const struct sr_thought *t, int32_t id)
{
	for (uint32_t i = 0; i < t->n_end; i++)
		if (t->end[i] == id)
			return true;
	return false;
}

/* A token that was drawn: of the thought, or of the answer. */
static int step(struct sr_guided *d, int32_t id)
{
	if (d->phase == MAYBE_THOUGHT) {
		d->phase = id == d->thought.begin ? THOUGHT : ANSWER;
		if (d->phase == THOUGHT)
			return 0;
	}
	if (d->phase == ANSWER)
		return d->guide ? sr_guide_take(d->guide, id) : 0;
	d->n_thought++;
	if (ends_thought(&d->thought, id))
		d->phase = ANSWER;
	return 0;
}

int sr_guided_take(struct sr_guided *d, int32_t id, uint32_t *bits, sr_guided_put *put, void *ctx)
{
	bool found = false;
	int r;

	if (d->n_ahead) {
		if (id != d->ahead[d->first])
			return -EINVAL;
		d->first = (d->first + 1) % AHEAD;
		d->n_ahead--;
		return give(d, bits, put, ctx);
	}
	r = step(d, id);
	if (r)
		return r;
	for (uint32_t i = 0; i < d->n_until; i++)
		found |= id == d->until[i];
	if (d->n_until && !found) {            /* still free */
		d->next++;
		return 0;
	}
	d->n_until = 0;
	d->waits = false;
	return give(d, bits, put, ctx);
}
