/* bpe.c - see bpe.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bpe.h"

#define SHORT_MAX 64             /* pieces so long are merged on the stack, by scanning */
#define NO_RANK   INT32_MAX

enum whole { WHOLE_UNKNOWN, WHOLE_YES, WHOLE_NO };

int bpe_create(struct bpe *b, const struct vocab *v, uint32_t n)
{
	uint32_t size = 16;

	memset(b, 0, sizeof(*b));
	b->v = v;
	while (size < n + n / 2)
		size *= 2;
	b->mask = size - 1;
	b->slot = malloc(size * sizeof(*b->slot));
	b->whole = calloc((size_t)v->n + 1, 1);
	if (!b->slot || !b->whole)
		return -ENOMEM;
	memset(b->slot, -1, size * sizeof(*b->slot));
	return 0;
}

void bpe_free(struct bpe *b)
{
	free(b->slot);
	free(b->whole);
}

/* The slot of a pair, or the empty one where it belongs. */
static struct bpe_pair *find(const struct bpe *b, int32_t left, int32_t right)
{
	uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
	uint32_t i = (uint32_t)(h >> 32 ^ h >> 51) & b->mask;
	struct bpe_pair *p;

	for (;; i = (i + 1) & b->mask) {
		p = &b->slot[i];
		if (p->rank < 0 || (p->left == left && p->right == right))
			return p;
	}
}

static int32_t rank_of(const struct bpe *b, int32_t left, int32_t right)
{
	const struct bpe_pair *p = find(b, left, right);

	return p->rank < 0 ? NO_RANK : p->rank;
}

int bpe_add(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right)
{
	char joined[4096];
	struct bpe_pair *p;
	int32_t l, r, id;

	if (n_left + n_right > sizeof(joined))
		return -EINVAL;
	memcpy(joined, left, n_left);
	memcpy(joined + n_left, right, n_right);
	l = vocab_by_spelling(b->v, left, n_left);
	r = vocab_by_spelling(b->v, right, n_right);
	id = vocab_by_spelling(b->v, joined, n_left + n_right);
	if (l < 0 || r < 0 || id < 0)
		return -EINVAL;
	p = find(b, l, r);
	if (p->rank < 0)              /* said twice: the first counts */
		*p = (struct bpe_pair){ l, r, (int32_t)b->n, id };
	b->n++;
	return 0;
}

/* Few symbols: look at all ranks for the lowest, join, close the gap. */
static size_t merge_short(const struct bpe *b, int32_t *id, size_t n)
{
	int32_t rank[SHORT_MAX];
	size_t i, best;

	for (i = 0; i + 1 < n; i++)
		rank[i] = rank_of(b, id[i], id[i + 1]);
	while (n > 1) {
		for (best = 0, i = 1; i + 1 < n; i++)
			if (rank[i] < rank[best])
				best = i;
		if (rank[best] == NO_RANK)
			break;
		id[best] = find(b, id[best], id[best + 1])->id;
		n--;
		memmove(&id[best + 1], &id[best + 2], (n - best - 1) * sizeof(*id));
		memmove(&rank[best], &rank[best + 1], (n - best - 1) * sizeof(*rank));
		if (best + 1 < n)
			rank[best] = rank_of(b, id[best], id[best + 1]);
		if (best > 0)
			rank[best - 1] = rank_of(b, id[best - 1], id[best]);
	}
	return n;
}

/* Many symbols: a list of those alive, and a heap of pairs, rank above place.  A pair that a
 * merge has changed since is known by its rank, which is looked up again. */
struct heap { uint64_t *v; size_t n; };

static void heap_push(struct heap *h, int32_t rank, uint32_t at)
{
	uint64_t key = (uint64_t)(uint32_t)rank << 32 | at;
	size_t i = h->n++;

	for (; i && h->v[(i - 1) / 2] > key; i = (i - 1) / 2)
		h->v[i] = h->v[(i - 1) / 2];
	h->v[i] = key;
}

static uint64_t heap_pop(struct heap *h)
{
	uint64_t top = h->v[0], last = h->v[--h->n];
	size_t i = 0, c;

	while ((c = 2 * i + 1) < h->n) {
		if (c + 1 < h->n && h->v[c + 1] < h->v[c])
			c++;
		if (last <= h->v[c])
			break;
		h->v[i] = h->v[c];
		i = c;
	}
	h->v[i] = last;
	return top;
}

struct link { int32_t id; uint32_t prev, next; };   /* next == n: the last one; id < 0: joined away */

static void offer(const struct bpe *b, struct heap *h, const struct link *l, uint32_t at, uint32_t n)
{
	int32_t rank;

	if (l[at].next >= n)
		return;
	rank = rank_of(b, l[at].id, l[l[at].next].id);
	if (rank != NO_RANK)
		heap_push(h, rank, at);
}

static size_t merge_long(const struct bpe *b, int32_t *id, size_t n_ids, struct link *l, struct heap *h)
{
	uint32_t n = (uint32_t)n_ids, i, next;
	const struct bpe_pair *p;
	uint64_t top;
	size_t k = 0;

	for (i = 0; i < n; i++)
		l[i] = (struct link){ id[i], i - 1, i + 1 };
	for (i = 0; i < n; i++)
		offer(b, h, l, i, n);
	while (h->n) {
		top = heap_pop(h);
		i = (uint32_t)top;
		if (l[i].id < 0 || l[i].next >= n)
			continue;
		next = l[i].next;
		p = find(b, l[i].id, l[next].id);
		if (p->rank != (int32_t)(top >> 32))
			continue;
		l[i].id = p->id;
		l[i].next = l[next].next;
		l[next].id = -1;
		if (l[i].next < n)
			l[l[i].next].prev = i;
		offer(b, h, l, i, n);
		if (i)
			offer(b, h, l, l[i].prev, n);
	}
	for (i = 0; i < n; i = l[i].next)
		id[k++] = l[i].id;
	return k;
}

static size_t to_bytes(const struct bpe *b, const char *s, size_t n, int32_t *id)
{
	size_t i, k = 0;

	for (i = 0; i < n; i++)
		if (b->v->byte[(uint8_t)s[i]] >= 0)
			id[k++] = b->v->byte[(uint8_t)s[i]];
	return k;
}

static int encode_long(const struct bpe *b, const char *s, size_t n, struct bpe_out *o)
{
	int32_t *id = NULL;
	struct link *l = NULL;
	struct heap h = { NULL, 0 };
	size_t i;
	int rc = -ENOMEM;

	if (n >= INT32_MAX / 3)
		return -E2BIG;
	id = malloc(n * sizeof(*id));
	l = malloc(n * sizeof(*l));
	h.v = malloc(3 * n * sizeof(*h.v));   /* one pair per neighbours, two more per merge */
	if (id && l && h.v) {
		n = merge_long(b, id, to_bytes(b, s, n, id), l, &h);
		for (i = 0; i < n; i++)
			bpe_put(o, id[i]);
		rc = 0;
	}
	free(id);
	free(l);
	free(h.v);
	return rc;
}

/* Do the merges make this token of its own bytes?  Nearly always; then no merging is needed. */
static bool is_whole(const struct bpe *b, int32_t token, const char *s, size_t n)
{
	int32_t id[SHORT_MAX];
	uint8_t w = __atomic_load_n(&b->whole[token], __ATOMIC_RELAXED);

	if (w == WHOLE_UNKNOWN) {
		if (n > SHORT_MAX)
			return false;
		w = merge_short(b, id, to_bytes(b, s, n, id)) == 1 && id[0] == token ? WHOLE_YES : WHOLE_NO;
		__atomic_store_n(&b->whole[token], w, __ATOMIC_RELAXED);
	}
	return w == WHOLE_YES;
}

int bpe_encode(const struct bpe *b, const char *s, size_t n, struct bpe_out *o)
{
	int32_t id[SHORT_MAX], token = vocab_by_piece(b->v, s, n);
	size_t i;

	if (token >= 0 && (b->whole_first || is_whole(b, token, s, n))) {
		bpe_put(o, token);
		return 0;
	}
	if (n > SHORT_MAX)
		return encode_long(b, s, n, o);
	n = merge_short(b, id, to_bytes(b, s, n, id));
	for (i = 0; i < n; i++)
		bpe_put(o, id[i]);
	return 0;
}
