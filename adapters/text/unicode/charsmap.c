/* charsmap.c - see charsmap.h.  The table is a file's: each index is compared with its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "charsmap.h"
#include "utf8.h"

#define CLUSTER_MOST 5               /* bytes of a cluster that is looked up whole */
#define GROWTH 16

int charsmap_create(struct charsmap *m, const void *table, size_t n)
{
	uint32_t units;

	*m = (struct charsmap){ .unit = NULL };
	if (n < 4 || n > CHARSMAP_MAX)
		return -EINVAL;
	memcpy(&units, table, 4);
	if (units % 4 || units < 4 || units >= n - 4)
		return -EINVAL;
	m->n = units / 4;
	m->n_text = (uint32_t)(n - 4 - units);
	m->unit = malloc(units);
	m->text = malloc(m->n_text);
	if (!m->unit || !m->text) {
		charsmap_free(m);
		return -ENOMEM;
	}
	memcpy(m->unit, (const char *)table + 4, units);
	memcpy(m->text, (const char *)table + 4 + units, m->n_text);
	if (m->text[m->n_text - 1]) {
		charsmap_free(m);
		return -EINVAL;
	}
	return 0;
}

void charsmap_free(struct charsmap *m)
{
	free(m->unit);
	free(m->text);
	*m = (struct charsmap){ .unit = NULL };
}

/* A unit has the label of its byte in bits 0 to 7 and 31, in bit 8 whether an entry ends there, and the way
 * to its children in bits 10 to 30, times 256 if bit 9 is set. */
static uint32_t way(uint32_t unit)
{
	return unit >> 10 << ((unit & 1u << 9) >> 6);
}

/* The bytes of the longest entry that s begins with, or of the shortest; 0: there is none.  *to: what it
 * becomes. */
static size_t find(const struct charsmap *m, const char *s, size_t n, bool shortest, const char **to)
{
	uint32_t at = way(m->unit[0]), unit, value;
	size_t found = 0;

	for (size_t i = 0; i < n && s[i]; i++) {
		at ^= (uint8_t)s[i];
		if (at >= m->n)
			break;
		unit = m->unit[at];
		if ((unit & (1u << 31 | 0xff)) != (uint8_t)s[i])
			break;
		at ^= way(unit);
		if (!(unit & 1u << 8))
			continue;
		value = at < m->n ? m->unit[at] & ~(1u << 31) : UINT32_MAX;
		if (value >= m->n_text)
			break;
		*to = m->text + value;
		found = i + 1;
		if (shortest)
			break;
	}
	return found;
}

struct growing { char *s; size_t n, cap, most; };

static int grow(struct growing *g, const char *s, size_t n)
{
	char *p;

	if (n > g->most - g->n)
		return -E2BIG;
	if (n > g->cap - g->n) {
		size_t cap = g->cap + g->cap / 2 + n;

		p = realloc(g->s, cap);
		if (!p)
			return -ENOMEM;
		g->s = p;
		g->cap = cap;
	}
	memcpy(g->s + g->n, s, n);
	g->n += n;
	return 0;
}

/* The bytes of the cluster of characters that s begins with. */
static size_t cluster(const char *s, size_t n)
{
	utf8proc_int32_t state = 0;
	uint32_t cp, next;
	size_t at = utf8_next(s, n, &cp), k;

	for (; at < n; at += k, cp = next) {
		k = utf8_next(s + at, n - at, &next);
		if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state))
			break;
	}
	return at;
}

static int put_cluster(const struct charsmap *m, struct growing *g, const char *s, size_t n)
{
	const char *to;
	uint32_t cp;
	int rc = 0;

	if (n <= CLUSTER_MOST && find(m, s, n, true, &to))
		return grow(g, to, strlen(to));
	for (size_t i = 0, k; i < n && !rc; i += k) {
		k = utf8_next(s + i, n - i, &cp);
		if (!find(m, s + i, k, true, &to))
			rc = grow(g, s + i, k);
		else
			rc = grow(g, to, strlen(to));
	}
	return rc;
}

int charsmap_apply(const struct charsmap *m, const char *s, size_t n, char **out, size_t *out_n)
{
	struct growing g = { .cap = n + 16, .most = n > SIZE_MAX / GROWTH ? n : n * GROWTH };
	uint32_t cp;
	int rc = 0;

	g.s = malloc(g.cap);
	if (!g.s)
		return -ENOMEM;
	for (size_t i = 0, k; i < n && !rc; i += k) {
		const char *to;

		if (m->clusters) {
			k = cluster(s + i, n - i);
			rc = put_cluster(m, &g, s + i, k);
		} else if ((k = find(m, s + i, n - i, false, &to)) > 0) {
			rc = grow(&g, to, strlen(to));
		} else {
			k = utf8_next(s + i, n - i, &cp);
			rc = grow(&g, s + i, k);
		}
	}
	if (rc) {
		free(g.s);
		return rc;
	}
	*out = g.s;
	*out_n = g.n;
	return 0;
}
