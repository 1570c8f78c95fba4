/* bpe.c - see bpe.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "bpe.h"

#define SHORT_MAX 64             /* bytes: pieces up to here are merged on the stack, by scanning */
#define WINDOW    1024           /* symbols of a longer piece that are merged at a time */
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
	b->side = calloc((size_t)v->n + 1, 1);
	if (!b->slot || !b->whole || !b->side)
		return -ENOMEM;
	memset(b->slot, -1, size * sizeof(*b->slot));
	return 0;
}

void bpe_free(struct bpe *b)
{
	free(b->slot);
	free(b->whole);
	free(b->side);
}

/* The slot of a pair, or the empty slot where it belongs. */
static struct bpe_pair *find_pair(const struct bpe *b, int32_t left, int32_t right)
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
	const struct bpe_pair *p = find_pair(b, left, right);

	return p->rank < 0 ? NO_RANK : p->rank;
}

static void set_pair(struct bpe *b, struct bpe_pair *slot, struct bpe_pair p)
{
	const char *s = b->v->chars + b->v->piece[p.id].at;
	size_t n = b->v->piece[p.id].n, word = 0;

	*slot = p;
	b->side[p.left] = b->side[p.right] = 1;
	b->unordered |= b->side[p.id];
	while (word < n && s[word] == ' ')
		word++;
	b->glued |= word < n && memchr(s + word, ' ', n - word);
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
	p = find_pair(b, l, r);
	if (p->rank < 0)              /* of a repeated merge the first counts */
		set_pair(b, p, (struct bpe_pair){ l, r, (int32_t)b->n, id });
	b->n++;
	return 0;
}

/* ---- merges by score ---- */

struct scored { float score; int32_t id; };

static int by_score(const void *x, const void *y)
{
	const struct scored *a = x, *b = y;

	return a->score < b->score ? 1 : a->score > b->score ? -1 : (a->id > b->id) - (a->id < b->id);
}

/* Call with b NULL to count the pairs that make this token, else add them with this rank. */
static uint32_t scored_pairs(struct bpe *b, const struct vocab *v, int32_t id, int32_t rank)
{
	const char *s = v->chars + v->piece[id].at;
	size_t n = v->piece[id].n;
	uint32_t pairs = 0;

	for (size_t k = 1; k < n; k++) {
		int32_t l, r;

		if (((uint8_t)s[k] & 0xc0) == 0x80)
			continue;
		l = vocab_by_piece(v, s, k);
		r = l < 0 ? -1 : vocab_by_piece(v, s + k, n - k);
		if (r < 0)
			continue;
		pairs++;
		if (b)
			set_pair(b, find_pair(b, l, r), (struct bpe_pair){ l, r, rank, id });
	}
	return pairs;
}

/* The tokens that merges may make, best score first; returns their number, or -errno. */
static int64_t scored_tokens(const struct vocab *v, const float *score, struct scored *out)
{
	int64_t n = 0;

	for (int32_t id = 0; id < v->n; id++) {
		const struct vocab_span *p = &v->piece[id];

		/* of tokens with the same piece only one is ever made; special ones and bytes never are */
		if (!(v->kind[id] & VOCAB_THERE) || vocab_by_piece(v, v->chars + p->at, p->n) != id)
			continue;
		if (p->n > BPE_SCORED_MAX || !(score[id] == score[id]))
			return -EINVAL;
		out[n++] = (struct scored){ score[id], id };
	}
	qsort(out, (size_t)n, sizeof(*out), by_score);
	return n;
}

int bpe_create_scored(struct bpe *b, const struct vocab *v, const float *score)
{
	struct scored *t = malloc(((size_t)v->n + 1) * sizeof(*t));
	int64_t n = t ? scored_tokens(v, score, t) : -ENOMEM;
	uint64_t pairs = 0;
	int rc = n < 0 ? (int)n : 0;

	for (int64_t i = 0; i < n; i++)
		pairs += scored_pairs(NULL, v, t[i].id, 0);
	if (!rc)
		rc = pairs > INT32_MAX / 4 ? -EINVAL : bpe_create(b, v, (uint32_t)pairs);
	for (int64_t i = 0, rank = 0; !rc && i < n; i++) {
		bool tie = i && t[i].score == t[i - 1].score;

		rank += !tie;            /* of equal scores the leftmost pair goes first, whichever it is */
		b->unordered |= tie;
		scored_pairs(b, v, t[i].id, (int32_t)rank);
	}
	free(t);
	return rc;
}

/* Few symbols: scan for the lowest rank, join the pair, close the gap. */
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
		id[best] = find_pair(b, id[best], id[best + 1])->id;
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

/* Many symbols: a linked list of them, and a heap of pairs by rank, then by place.  A merge leaves
 * stale pairs in the heap; they are recognized because the rank looked up again differs. */
struct heap { uint64_t *v; size_t n; };
struct link { int32_t id; uint32_t prev, next; };   /* next == n: the last one; id < 0: merged into another */

struct merge_work {              /* for a window of `window` symbols, in one allocation */
	size_t window;
	struct heap heap;        /* [3 * window]: a pair for each two neighbours, two more per merge */
	struct link *link;       /* [window] */
	int32_t *symbol;         /* [window] not merged yet */
	int32_t *id;             /* [window] the tokens they are merged to */
	uint32_t *at;            /* [window + 1] the symbol at which each token begins */
	int32_t *seam;           /* [2 * window] the symbols on both sides of a cut */
	size_t n_seam;
};

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

static void offer(const struct bpe *b, struct heap *h, const struct link *l, uint32_t at, uint32_t n)
{
	int32_t rank;

	if (l[at].next >= n)
		return;
	rank = rank_of(b, l[at].id, l[l[at].next].id);
	if (rank != NO_RANK)
		heap_push(h, rank, at);
}

/* Merge n symbols (at most a window) to tokens in id[], which may be symbol[]; returns their number.
 * at: NULL, or it gets the symbol at which each token begins, and n after the last. */
static size_t merge_long(const struct bpe *b, struct merge_work *w, const int32_t *symbol, size_t n_symbols,
                         int32_t *id, uint32_t *at)
{
	uint32_t n = (uint32_t)n_symbols, i, next;
	const struct bpe_pair *p;
	struct link *l = w->link;
	uint64_t top;
	size_t k = 0;

	w->heap.n = 0;
	for (i = 0; i < n; i++)
		l[i] = (struct link){ symbol[i], i - 1, i + 1 };
	for (i = 0; i < n; i++)
		offer(b, &w->heap, l, i, n);
	while (w->heap.n) {
		top = heap_pop(&w->heap);
		i = (uint32_t)top;
		if (l[i].id < 0 || l[i].next >= n)
			continue;
		next = l[i].next;
		p = find_pair(b, l[i].id, l[next].id);
		if (p->rank != (int32_t)(top >> 32))
			continue;
		l[i].id = p->id;
		l[i].next = l[next].next;
		l[next].id = -1;
		if (l[i].next < n)
			l[l[i].next].prev = i;
		offer(b, &w->heap, l, i, n);
		if (i)
			offer(b, &w->heap, l, l[i].prev, n);
	}
	for (i = 0; i < n; i = l[i].next) {
		if (at)
			at[k] = i;
		id[k++] = l[i].id;
	}
	if (at)
		at[k] = n;
	return k;
}

/* A character is its token, or its bytes' tokens.  The caller cuts s only between characters. */
static size_t characters_of(const struct vocab *v, const char *s, size_t n, int32_t *id)
{
	size_t k = 0;
	unsigned len;
	uint32_t cp;

	for (size_t i = 0; i < n; i += len) {
		int32_t token;

		len = utf8_next(s + i, n - i, &cp);
		token = vocab_by_piece(v, s + i, len);
		if (token >= 0) {
			id[k++] = token;
			continue;
		}
		for (unsigned b = 0; b < len; b++)
			if (v->byte[(uint8_t)s[i + b]] >= 0)
				id[k++] = v->byte[(uint8_t)s[i + b]];
	}
	return k;
}

static size_t symbols_of(const struct bpe *b, const char *s, size_t n, int32_t *id)
{
	size_t i, k = 0;

	if (b->v->characters)
		return characters_of(b->v, s, n, id);
	for (i = 0; i < n; i++)
		if (b->v->byte[(uint8_t)s[i]] >= 0)
			id[k++] = b->v->byte[(uint8_t)s[i]];
	return k;
}

static struct merge_work *merge_work_create(size_t window)
{
	struct merge_work *w =
		malloc(sizeof(*w) + window * (3 * sizeof(*w->heap.v) + sizeof(*w->link) + 5 * 4) + 4);

	if (!w)
		return NULL;
	w->window = window;
	w->n_seam = 0;
	w->heap.v = (void *)(w + 1);
	w->link = (void *)(w->heap.v + 3 * window);
	w->symbol = (void *)(w->link + window);
	w->id = w->symbol + window;
	w->seam = w->id + window;
	w->at = (void *)(w->seam + 2 * window);
	return w;
}

/* Merge the symbols of the last token before the cut and of the first one after it together: is the
 * result the same two tokens? */
static bool seam_holds(const struct bpe *b, struct merge_work *w, int32_t before)
{
	size_t n = w->n_seam + w->at[1];

	if (n > w->window)
		return false;
	memcpy(w->seam + w->n_seam, w->symbol, w->at[1] * sizeof(*w->seam));
	return merge_long(b, w, w->seam, n, w->seam, NULL) == 2 && w->seam[0] == before && w->seam[1] == w->id[0];
}

/* Encode the piece, a window at a time.  1: the window must be larger, and what was put may be wrong.  When
 * the ids pass the limit, one more window is merged to check its seam: a larger window may give fewer ids. */
static int encode_windows(const struct bpe *b, const char *s, size_t n, struct bpe_out *o,
                          struct merge_work *w)
{
	int32_t before = -1;
	size_t have = 0, i, k, m;
	bool over = false;

	for (;;) {
		while (n && have < w->window) {
			size_t take = w->window - have < n ? w->window - have : n;

			while (take < n && ((uint8_t)s[take] & 0xc0) == 0x80)   /* only between characters */
				take--;
			if (!take)
				break;
			have += symbols_of(b, s, take, w->symbol + have);
			s += take;
			n -= take;
		}
		m = merge_long(b, w, w->symbol, have, w->id, w->at);
		if (before >= 0 && m && !seam_holds(b, w, before))
			return 1;
		if (over)
			return 0;
		if (n && m < 2)
			return 1;
		for (k = m; n && k > 1 && w->at[k] > w->window - w->window / 4;)
			k--;
		for (i = 0; i < k; i++)
			bpe_put(o, w->id[i]);
		if (!n)
			return 0;
		over = bpe_over(o);
		before = w->id[k - 1];
		w->n_seam = w->at[k] - w->at[k - 1];
		memcpy(w->seam, w->symbol + w->at[k - 1], w->n_seam * sizeof(*w->seam));
		have -= w->at[k];
		memmove(w->symbol, w->symbol + w->at[k], have * sizeof(*w->symbol));
	}
}

/* A piece may have megabytes, so it is merged by windows.  The last quarter of a window is merged again
 * with the next one, because what follows may change it.  Each seam between windows is then checked.
 *
 * If each merge comes after those that make its sides, merging is one pass over the text per rank.  Then
 * text between two token boundaries gives the same tokens when it is encoded alone.  And two neighbouring
 * texts give the same tokens together as apart, unless the two tokens that meet there do not.  (Proof:
 * all that the first merge across the cut needs happens within those two.)  If a seam does not hold, the
 * window was too small; a window of the whole piece is always right. */
static int encode_long(const struct bpe *b, const char *s, size_t n, struct bpe_out *o)
{
	size_t window = n < WINDOW || b->unordered ? n : WINDOW;
	int64_t begin = o->n;
	int rc = 1;

	if (n >= INT32_MAX / 3)
		return -E2BIG;
	for (; rc > 0; window = n / 4 > window ? window * 4 : n) {
		struct merge_work *w = merge_work_create(window);

		if (!w)
			return -ENOMEM;
		o->n = begin;
		rc = encode_windows(b, s, n, o, w);
		free(w);
	}
	return rc;
}

/* Do the merges make this token from its own bytes?  Nearly always yes; then no merging is needed. */
static bool is_whole(const struct bpe *b, int32_t token, const char *s, size_t n)
{
	int32_t id[SHORT_MAX];
	uint8_t w = __atomic_load_n(&b->whole[token], __ATOMIC_RELAXED);

	if (w == WHOLE_UNKNOWN) {
		if (n > SHORT_MAX)
			return false;
		w = merge_short(b, id, symbols_of(b, s, n, id)) == 1 && id[0] == token ? WHOLE_YES : WHOLE_NO;
		__atomic_store_n(&b->whole[token], w, __ATOMIC_RELAXED);
	}
	return w == WHOLE_YES;
}

int bpe_encode(const struct bpe *b, const char *s, size_t n, struct bpe_out *o)
{
	int32_t id[SHORT_MAX], token = n <= b->v->longest ? vocab_by_piece(b->v, s, n) : -1;
	size_t i;

	if (token >= 0 && (b->whole_first || is_whole(b, token, s, n))) {
		bpe_put(o, token);
		return 0;
	}
	if (n > SHORT_MAX)
		return encode_long(b, s, n, o);
	n = merge_short(b, id, symbols_of(b, s, n, id));
	for (i = 0; i < n; i++)
		bpe_put(o, id[i]);
	return 0;
}
