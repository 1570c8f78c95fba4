/* added.c - see added.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "added.h"
#include "adapters/text/unicode/utf8.h"

int added_put(struct added *a, const struct added_token *t)
{
	uint32_t cap = a->cap ? a->cap * 2 : 64;
	struct added_token *p;

	if (a->n == a->cap) {
		p = realloc(a->token, cap * sizeof(*p));
		if (!p)
			return -ENOMEM;
		a->token = p;
		a->cap = cap;
	}
	a->token[a->n++] = *t;
	a->first[(uint8_t)t->s[0]] = true;
	return 0;
}

static int by_bytes(const void *x, const void *y)
{
	const struct added_token *a = x, *b = y;
	int d = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);

	return d ? d : (a->n > b->n) - (a->n < b->n);
}

void added_seal(struct added *a)
{
	if (a->n)
		qsort(a->token, a->n, sizeof(*a->token), by_bytes);
}

void added_free(struct added *a)
{
	free(a->token);
}

/* The longest token that s begins with: narrow the sorted range byte by byte. */
static const struct added_token *longest(const struct added *a, const char *s, size_t n, bool special)
{
	const struct added_token *best = NULL;
	uint32_t lo = 0, hi = a->n;

	for (size_t k = 0; lo < hi; k++) {
		uint8_t c;
		uint32_t l, h;

		/* tokens of exactly k bytes sort first and match */
		for (; lo < hi && a->token[lo].n == k; lo++)
			if (k && (special || !a->token[lo].special))
				best = &a->token[lo];
		if (k == n)
			break;
		c = (uint8_t)s[k];
		for (l = lo, h = hi; l < h;) {
			uint32_t m = l + (h - l) / 2;

			if ((uint8_t)a->token[m].s[k] < c)
				l = m + 1;
			else
				h = m;
		}
		lo = l;
		for (h = hi; l < h;) {
			uint32_t m = l + (h - l) / 2;

			if ((uint8_t)a->token[m].s[k] <= c)
				l = m + 1;
			else
				h = m;
		}
		hi = l;
	}
	return best;
}

static size_t spaces_before(const char *s, size_t from, size_t at)
{
	uint32_t cp;

	while (at > from) {
		size_t k = at - 1;

		while (k > from && ((uint8_t)s[k] & 0xc0) == 0x80)
			k--;
		utf8_next(s + k, at - k, &cp);
		if (!utf8_space(cp))
			break;
		at = k;
	}
	return at;
}

static size_t spaces_after(const char *s, size_t n, size_t at)
{
	uint32_t cp;

	while (at < n) {
		unsigned len = utf8_next(s + at, n - at, &cp);

		if (!utf8_space(cp))
			break;
		at += len;
	}
	return at;
}

const struct added_token *added_find(const struct added *a, const char *s, size_t n, size_t at,
                                     bool special, size_t *from, size_t *to)
{
	const struct added_token *t;

	if (!a->n)
		return NULL;
	for (size_t i = at; i < n; i++) {
		if (!a->first[(uint8_t)s[i]])
			continue;
		t = longest(a, s + i, n - i, special);
		if (!t)
			continue;
		*from = t->lstrip ? spaces_before(s, at, i) : i;
		*to = t->rstrip ? spaces_after(s, n, i + t->n) : i + t->n;
		return t;
	}
	return NULL;
}
