/* unigram.c - see unigram.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "unigram.h"
#include "adapters/text/unicode/utf8.h"

#define UNKNOWN_PENALTY 10.0         /* below the lowest score; the same in sentencepiece */
#define PAIRS 65536
#define SHORT 256                    /* bytes of a text that needs no memory but the stack */

static const uint8_t *bytes_of(const struct vocab *v, int32_t id)
{
	return (const uint8_t *)v->chars + v->piece[id].at;
}

static int by_bytes(const void *a, const void *b, void *vocab)
{
	const struct vocab *v = vocab;
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
	size_t nx = v->piece[x].n, ny = v->piece[y].n;
	int c = memcmp(bytes_of(v, x), bytes_of(v, y), nx < ny ? nx : ny);

	return c ? c : nx != ny ? (nx < ny ? -1 : 1) : (x > y) - (x < y);
}

static bool can_be_made(const struct vocab *v, int32_t id)
{
	const struct vocab_span *s = &v->spelling[id];

	/* a space itself is never looked for: only U+2581 is a space here */
	return v->kind[id] & VOCAB_THERE && v->piece[id].n && !memchr(v->chars + s->at, ' ', s->n) &&
	       !(v->kind[id] & (VOCAB_ADDED | VOCAB_SPECIAL | VOCAB_BYTE));
}

/* The tokens of two bytes and more, sorted; of those with the same bytes the last. */
static int sort_tokens(struct unigram *u, const struct vocab *v)
{
	uint32_t n = 0, kept = 0, pair = 0;

	for (int32_t id = 0; id < v->n; id++) {
		const uint8_t *s = bytes_of(v, id);

		if (!can_be_made(v, id))
			continue;
		if (v->piece[id].n > UNIGRAM_LONGEST || !isfinite(u->score[id]))
			return -EINVAL;
		u->glued |= memchr(s + 1, ' ', v->piece[id].n - 1) != NULL;
		if (v->piece[id].n == 1)
			u->one[*s] = id;
		else
			u->sorted[n++] = id;
	}
	qsort_r(u->sorted, n, sizeof(*u->sorted), by_bytes, (void *)(uintptr_t)v);
	for (uint32_t i = 0; i < n; i++) {
		const struct vocab_span *a = &v->piece[u->sorted[i]];
		const struct vocab_span *b = i + 1 < n ? &v->piece[u->sorted[i + 1]] : a;

		if (a == b || a->n != b->n || memcmp(v->chars + a->at, v->chars + b->at, a->n))
			u->sorted[kept++] = u->sorted[i];
	}
	for (uint32_t i = 0; i < kept; i++) {
		const uint8_t *s = bytes_of(v, u->sorted[i]);

		while (pair <= ((uint32_t)s[0] << 8 | s[1]))
			u->from[pair++] = i;
	}
	while (pair <= PAIRS)
		u->from[pair++] = kept;
	return 0;
}

int unigram_create(struct unigram *u, const struct vocab *v, double *score, double least, int32_t unknown)
{
	int rc;

	*u = (struct unigram){ .on = true, .score = score, .unknown = unknown,
	                       .penalty = least - UNKNOWN_PENALTY };
	if (!isfinite(least) || unknown < 0 || unknown >= v->n)
		return -EINVAL;
	memset(u->one, -1, sizeof(u->one));
	u->sorted = malloc(((size_t)v->n + 1) * sizeof(*u->sorted));
	u->from = malloc((PAIRS + 1) * sizeof(*u->from));
	if (!u->sorted || !u->from)
		return -ENOMEM;
	rc = sort_tokens(u, v);
	u->glued |= u->one[' '] < 0;     /* a space may be part of what is unknown */
	return rc;
}

void unigram_free(struct unigram *u)
{
	free(u->score);
	free(u->sorted);
	free(u->from);
	*u = (struct unigram){ .on = false };
}

/* The best way to a place: its last token, where that begins, and the sum of scores. */
struct step { double score; int32_t id; uint32_t from; };

static void offer(struct step *to, double score, int32_t id, uint32_t from)
{
	if (to->id < 0 || score > to->score)
		*to = (struct step){ score, id, from };
}

/* The first of sorted[lo .. hi) whose byte `at` is c or more. */
static uint32_t first_with(const struct unigram *u, const struct vocab *v, uint32_t lo, uint32_t hi,
                           uint32_t at, unsigned c)
{
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (bytes_of(v, u->sorted[mid])[at] < c)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* All tokens that begin at `at`.  True: one is the character of k bytes there. */
static bool offer_tokens(const struct unigram *u, const struct vocab *v, const uint8_t *s, uint32_t n,
                         uint32_t at, uint32_t k, struct step *step)
{
	uint32_t left = n - at, lo, hi, depth = 2;
	double till = step[at].score;
	bool whole = false;

	if (u->one[s[at]] >= 0) {
		offer(&step[at + 1], till + u->score[u->one[s[at]]], u->one[s[at]], at);
		whole = k == 1;
	}
	if (left < 2)
		return whole;
	lo = u->from[(uint32_t)s[at] << 8 | s[at + 1]];
	hi = u->from[((uint32_t)s[at] << 8 | s[at + 1]) + 1];
	while (lo < hi) {
		int32_t id = u->sorted[lo];

		if (v->piece[id].n == depth) {
			offer(&step[at + depth], till + u->score[id], id, at);
			whole |= k == depth;
			lo++;
		}
		if (depth == left)
			break;
		lo = first_with(u, v, lo, hi, depth, s[at + depth]);
		hi = first_with(u, v, lo, hi, depth, s[at + depth] + 1u);
		depth++;
	}
	return whole;
}

/* Turn the way to the end round, so that it can be put in order; what is unknown becomes one token. */
static void put_way(const struct unigram *u, struct step *step, uint32_t n, struct bpe_out *out)
{
	uint32_t at = n, next = 0;
	int32_t last = -1;

	while (at) {                     /* .from of a place becomes the next place on the way */
		uint32_t from = step[at].from;

		step[at].from = next;
		next = at;
		at = from;
	}
	for (at = next; at; at = step[at].from) {
		if (step[at].id != u->unknown || last != u->unknown)
			bpe_put(out, step[at].id);
		last = step[at].id;
	}
}

int unigram_encode(const struct unigram *u, const struct vocab *v, const char *text, size_t bytes,
                   struct bpe_out *out)
{
	struct step few[SHORT + 1], *step = few;
	uint32_t n = (uint32_t)bytes, cp;

	if (bytes >= UINT32_MAX / sizeof(*step))
		return -E2BIG;
	if (n > SHORT)
		step = malloc((bytes + 1) * sizeof(*step));
	if (!step)
		return -ENOMEM;
	for (uint32_t i = 1; i <= n; i++)
		step[i].id = -1;
	step[0] = (struct step){ .id = 0 };
	for (uint32_t at = 0, k; at < n; at += k) {
		k = utf8_next(text + at, n - at, &cp);
		if (!offer_tokens(u, v, (const uint8_t *)text, n, at, k, step))
			offer(&step[at + k], step[at].score + u->penalty, u->unknown, at);
	}
	if (n)
		put_way(u, step, n, out);
	if (step != few)
		free(step);
	return 0;
}
