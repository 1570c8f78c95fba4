/* points.c - see regex.h and pattern.h.  Sets of characters as tries of bytes: in UTF-8, and as a JSON string
 * may spell them.
 *
 * A spelling writes a number as digits: each level of a trie is a digit, whose values are bytes.  UTF-8's are
 * the bits of the leading byte and six bits for each byte behind it (Unicode, table 3-7).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "nodes.h"
#include "pattern.h"

#define LAST 0x10ffffu

enum digit { LEAD1, LEAD2, LEAD3, LEAD4, TAIL, HEX, HIGH_HEX, LOW_HEX, HEX_D };

struct level {
	enum digit digit;
	uint32_t values;
	uint32_t size;               /* how many numbers share a value of this digit and those before */
	const char *before;          /* bytes before the digit, or NULL */
};

static const struct spelling {
	uint32_t first, last;        /* characters spelled so */
	uint32_t less;               /* the number written is the code point less this */
	struct level level[8];
	int levels;
} utf8[] = {
	{ 0, 0x7f, 0, { { LEAD1, 0x80, 1, NULL } }, 1 },
	{ 0x80, 0x7ff, 0, { { LEAD2, 0x20, 1 << 6, NULL }, { TAIL, 64, 1, NULL } }, 2 },
	{ 0x800, 0xffff, 0,
	  { { LEAD3, 0x10, 1 << 12, NULL }, { TAIL, 64, 1 << 6, NULL }, { TAIL, 64, 1, NULL } }, 3 },
	{ 0x10000, LAST, 0,
	  { { LEAD4, 5, 1 << 18, NULL }, { TAIL, 64, 1 << 12, NULL }, { TAIL, 64, 1 << 6, NULL },
	    { TAIL, 64, 1, NULL } }, 4 },
}, escape_u[] = {
	{ 0, 0xffff, 0, { { HEX, 16, 1 << 12, "u" }, { HEX, 16, 1 << 8, NULL }, { HEX, 16, 1 << 4, NULL },
	                  { HEX, 16, 1, NULL } }, 4 },
	/* two halves of 10 bits, behind d8 and dc */
	{ 0x10000, LAST, 0x10000, { { HEX_D, 1, 1 << 20, "u" }, { HIGH_HEX, 4, 1 << 18, NULL },
	                  { HEX, 16, 1 << 14, NULL }, { HEX, 16, 1 << 10, NULL }, { HEX_D, 1, 1 << 10, "\\u" },
	                  { LOW_HEX, 4, 1 << 8, NULL }, { HEX, 16, 1 << 4, NULL }, { HEX, 16, 1, NULL } }, 8 },
};

/* Ranges, looked at in ascending order. */
struct cursor { const struct regex_range *range; size_t n, i; };

static bool surrogate(uint32_t cp)
{
	return cp >= 0xd800 && cp <= 0xdfff;
}

/* How much of first .. last is in the set: 0 nothing, 1 a part, 2 all.  Never looks back before first. */
static int covered(struct cursor *c, uint32_t first, uint32_t last)
{
	while (c->i < c->n && c->range[c->i].last < first)
		c->i++;
	if (c->i == c->n || c->range[c->i].first > last || (surrogate(first) && surrogate(last)))
		return 0;
	if (first <= 0xdfff && last >= 0xd800)
		return 1;
	return c->range[c->i].first <= first && last <= c->range[c->i].last ? 2 : 1;
}

static void put_digit(enum digit d, uint32_t v, uint8_t of[256], uint8_t class)
{
	static const uint8_t base[] = {
		[LEAD1] = 0, [LEAD2] = 0xc0, [LEAD3] = 0xe0, [LEAD4] = 0xf0, [TAIL] = 0x80
	};

	if (d == HIGH_HEX)
		v += 8;
	else if (d == LOW_HEX)
		v += 12;
	else if (d == HEX_D)
		v = 13;
	else if (d != HEX)
		of[base[d] + v] = class;
	if (d < HEX)
		return;
	of[v < 10 ? '0' + v : 'a' + v - 10] = class;
	of[v < 10 ? '0' + v : 'A' + v - 10] = class;
}

struct trie {
	struct regexes *r;
	const struct spelling *s;
	struct cursor c;
	uint32_t full[8];            /* all numbers from this level on; 0 = not made yet */
};

/* The digits from `level` on of those of the numbers from .. that are in the set; whole: all are. */
static uint32_t digits(struct trie *t, int level, uint32_t from, bool whole)
{
	const struct spelling *s = t->s;
	const struct level *l = &s->level[level];
	uint32_t target[65] = { REGEX_NONE }, n = 1, e;
	uint8_t of[256] = { 0 };

	if (level == s->levels)
		return REGEX_EMPTY;
	if (whole && t->full[level])
		return t->full[level];
	for (uint32_t v = 0; v < l->values; v++) {
		uint32_t first = from + v * l->size + s->less, last = first + l->size - 1;
		bool clipped = first < s->first || last > s->last;
		int part = 2;

		if (last < s->first || first > s->last)
			continue;
		if (!whole)
			part = covered(&t->c, first < s->first ? s->first : first, last > s->last ? s->last : last);
		if (!part)
			continue;
		e = digits(t, level + 1, from + v * l->size, part == 2 && !clipped);
		if (e == REGEX_NONE)
			continue;
		if (e != target[n - 1])
			target[n++] = e;
		put_digit(l->digit, v, of, (uint8_t)(n - 1));
	}
	e = node_branch(t->r, of, target);
	if (l->before)
		e = regex_concat(t->r, regex_bytes(t->r, l->before, strlen(l->before)), e);
	if (whole)
		t->full[level] = e;
	return e;
}

static uint32_t spelled(struct regexes *r, const struct spelling *s, size_t n_spellings,
                        const struct regex_range *range, size_t n)
{
	uint32_t list[4];

	for (size_t i = 0; i < n_spellings; i++) {
		struct trie t = { .r = r, .s = &s[i], .c = { range, n, 0 } };

		list[i] = digits(&t, 0, 0, false);
	}
	return regex_or_all(r, list, n_spellings);
}

uint32_t regex_points(struct regexes *r, const struct regex_range *range, size_t n)
{
	return spelled(r, utf8, 4, range, n);
}

/* ---- JSON strings ---- */

/* The characters that stand for themselves.  3 places more than n; how many are used. */
static size_t plain(const struct regex_range *range, size_t n, struct regex_range *out)
{
	static const struct regex_range may[] = { { 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, LAST } };
	size_t k = 0;

	for (size_t i = 0; i < n; i++)
		for (int j = 0; j < 3; j++) {
			uint32_t first = range[i].first > may[j].first ? range[i].first : may[j].first;
			uint32_t last = range[i].last < may[j].last ? range[i].last : may[j].last;

			if (first <= last)
				out[k++] = (struct regex_range){ first, last };
		}
	return k;
}

/* What may come behind a backslash. */
static uint32_t escapes(struct regexes *r, const struct regex_range *range, size_t n)
{
	static const char from[] = "\"\\/\b\f\n\r\t", to[] = "\"\\/bfnrt";
	uint64_t set[4] = { 0 };

	for (size_t i = 0; i < n; i++)
		for (int j = 0; from[j]; j++)
			if (range[i].first <= (uint8_t)from[j] && (uint8_t)from[j] <= range[i].last)
				set[to[j] / 64] |= 1ull << to[j] % 64;
	return regex_or(r, regex_set(r, set), spelled(r, escape_u, 2, range, n));
}

uint32_t json_points(struct regexes *r, const struct regex_range *range, size_t n)
{
	struct regex_range *raw = malloc((n + 3) * sizeof(*raw));
	uint32_t target[2] = { REGEX_NONE }, e;
	uint8_t of[256] = { 0 };

	if (!raw) {
		regexes_fail(r, -ENOMEM);
		return REGEX_FAILED;
	}
	target[1] = escapes(r, range, n);
	of['\\'] = 1;
	e = regex_or(r, regex_points(r, raw, plain(range, n, raw)), node_branch(r, of, target));
	free(raw);
	regex_written(r, e, REGEX_JSON);
	return e;
}

uint32_t json_char(struct regexes *r)
{
	static const struct regex_range all = { 0, LAST };

	if (r->letter[REGEX_JSON] == REGEX_FAILED)
		regex_alphabet(r, REGEX_JSON, json_points(r, &all, 1));
	return r->letter[REGEX_JSON];
}

uint32_t json_text(struct regexes *r, const char *s, size_t n)
{
	uint32_t e = REGEX_EMPTY, cp;
	size_t i = n;

	while (i > 0) {
		size_t at = i - 1;

		while (at > 0 && ((uint8_t)s[at] & 0xc0) == 0x80)
			at--;
		utf8_next(s + at, i - at, &cp);
		e = regex_concat(r, json_points(r, &(struct regex_range){ cp, cp }, 1), e);
		i = at;
	}
	return e;
}
