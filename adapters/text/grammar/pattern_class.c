/* pattern_class.c - see pattern_class.h.  Sets are kept once, so that a pattern of many equal ones costs one.
 * */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "pattern_class.h"
#include "property.h"

#define LAST        0x10ffffu
#define RANGES_MOST 65536            /* work for the sets of a pattern, in ranges */
#define FOLD_WORK   64               /* that of finding the other cases of a large set */

/* ---- sets ---- */

struct ranges { struct regex_range *at; uint32_t n, cap; };

static const struct regex_range digits[] = { { '0', '9' } };
/* The first 4; in any case also the long s and the sign of kelvin. */
static const struct regex_range words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' },
	{ 0x17f, 0x17f }, { 0x212a, 0x212a } };
static const struct regex_range spaces[] = { { 9, 13 }, { ' ', ' ' }, { 0xa0, 0xa0 }, { 0x1680, 0x1680 },
	{ 0x2000, 0x200a }, { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f }, { 0x3000, 0x3000 },
	{ 0xfeff, 0xfeff } };
static const struct regex_range line_ends[] = { { '\n', '\n' }, { '\r', '\r' }, { 0x2028, 0x2029 } };

static int no_memory(struct pattern *p)
{
	return pattern_refuse(p, -ENOMEM, p->at, "There is no memory for the pattern.");
}

static int add(struct pattern *p, struct ranges *r, uint32_t first, uint32_t last)
{
	if (r->n == r->cap) {
		uint32_t cap = r->cap ? r->cap * 2 : 8;
		struct regex_range *q = realloc(r->at, cap * sizeof(*q));

		if (!q)
			return no_memory(p);
		r->at = q;
		r->cap = cap;
	}
	r->at[r->n++] = (struct regex_range){ first, last };
	return 0;
}

static int by_first(const void *x, const void *y)
{
	const struct regex_range *a = x, *b = y;

	return (a->first > b->first) - (a->first < b->first);
}

static void sort(struct ranges *r)
{
	uint32_t k = 0;

	if (r->n)
		qsort(r->at, r->n, sizeof(*r->at), by_first);
	for (uint32_t i = 0; i < r->n; i++)
		if (k && r->at[i].first <= r->at[k - 1].last + 1)
			r->at[k - 1].last = r->at[i].last > r->at[k - 1].last ? r->at[i].last : r->at[k - 1].last;
		else
			r->at[k++] = r->at[i];
	r->n = k;
}

/* Add sorted ranges, or what is not in them. */
static int add_all(struct pattern *p, struct ranges *r, const struct regex_range *from, uint32_t n, bool not)
{
	uint32_t next = 0;
	int rc = 0;

	for (uint32_t i = 0; i < n && !rc; i++) {
		if (!not)
			rc = add(p, r, from[i].first, from[i].last);
		else if (from[i].first > next)
			rc = add(p, r, next, from[i].first - 1);
		next = from[i].last + 1;
	}
	if (not && next <= LAST && !rc)
		rc = add(p, r, next, LAST);
	p->ranges += n;
	if (!rc && p->ranges > RANGES_MOST)
		rc = pattern_refuse(p, -E2BIG, p->at, "The pattern's sets of characters have over %d ranges.",
		                    RANGES_MOST);
	return rc;
}

static bool within(const struct regex_range *range, uint32_t n, uint32_t cp)
{
	uint32_t lo = 0, hi = n;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;

		if (range[mid].last < cp)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < n && range[lo].first <= cp;
}

static int add_cases_of(struct pattern *p, struct ranges *r, uint32_t cp)
{
	uint32_t other[4];
	int rc = 0;

	for (unsigned k = property_cases(cp, other); k > 0 && !rc;)
		if (!within(r->at, r->n, other[--k]))
			rc = add(p, r, other[k], other[k]);
	return rc;
}

/* Add the other cases of all that is in r, which is sorted before and after. */
static int add_cases(struct pattern *p, struct ranges *r)
{
	uint32_t size = 0, n = r->n;
	const uint32_t *cased;
	size_t n_cased;
	int rc = 0;

	for (uint32_t i = 0; i < n; i++)
		size += r->at[i].last - r->at[i].first + 1;
	cased = property_cased(&n_cased);
	if (!cased)
		return no_memory(p);
	/* add() may add what is added already; the search within the first n is enough for order. */
	p->ranges += size < FOLD_WORK ? size : FOLD_WORK;
	if (size <= FOLD_WORK) {
		for (uint32_t i = 0; i < n && !rc; i++)
			for (uint32_t cp = r->at[i].first; cp <= r->at[i].last && !rc; cp++)
				rc = add_cases_of(p, r, cp);
	} else {
		struct ranges more = { NULL, 0, 0 };

		for (size_t i = 0; i < n_cased && !rc; i++)
			if (within(r->at, n, cased[i]))
				rc = add_cases_of(p, &more, cased[i]);
		for (uint32_t i = 0; i < more.n && !rc; i++)
			rc = add(p, r, more.at[i].first, more.at[i].last);
		free(more.at);
	}
	sort(r);
	return rc;
}

static uint32_t hash_of(const struct regex_range *range, uint32_t n)
{
	uint32_t h = n;

	for (uint32_t i = 0; i < n; i++) {
		h = (h ^ range[i].first) * 0x9e3779b1u;
		h = (h ^ h >> 15 ^ range[i].last) * 0x85ebca6bu;
		h ^= h >> 13;
	}
	return h;
}

static int rehash(struct pattern *p)
{
	uint32_t slots = p->set_slots ? p->set_slots * 2 : 64, *slot = calloc(slots, sizeof(*slot));

	if (!slot)
		return no_memory(p);
	for (uint32_t k = 0; k < p->n_sets; k++) {
		uint32_t i = hash_of(p->set[k].range, p->set[k].n) & (slots - 1);

		while (slot[i])
			i = (i + 1) & (slots - 1);
		slot[i] = k + 1;
	}
	free(p->set_slot);
	p->set_slot = slot;
	p->set_slots = slots;
	return 0;
}

/* The number of this set; takes r's memory. */
static int kept(struct pattern *p, struct ranges *r)
{
	struct char_set *q;
	uint32_t i, cap;

	if (p->n_sets * 2 >= p->set_slots && rehash(p))
		goto failed;
	for (i = hash_of(r->at, r->n) & (p->set_slots - 1); p->set_slot[i]; i = (i + 1) & (p->set_slots - 1)) {
		q = &p->set[p->set_slot[i] - 1];
		if (q->n == r->n && (!r->n || !memcmp(q->range, r->at, r->n * sizeof(*r->at)))) {
			free(r->at);
			return (int)p->set_slot[i] - 1;
		}
	}
	if (p->n_sets == p->sets_cap) {
		cap = p->sets_cap ? p->sets_cap * 2 : 16;
		q = realloc(p->set, cap * sizeof(*q));
		if (!q) {
			no_memory(p);
			goto failed;
		}
		p->set = q;
		p->sets_cap = cap;
	}
	p->set[p->n_sets] = (struct char_set){ .range = r->at, .n = r->n, .expr = REGEX_FAILED, .any_case = -1 };
	p->set_slot[i] = ++p->n_sets;
	return (int)p->n_sets - 1;
failed:
	free(r->at);
	return -ENOMEM;
}

int pattern_first_sets(struct pattern *p)
{
	struct ranges word = { NULL, 0, 0 }, other = { NULL, 0, 0 }, all = { NULL, 0, 0 };
	int rc = add_all(p, &word, words, 4, false);

	if (!rc)
		rc = add_all(p, &other, words, 4, true);
	if (!rc)
		rc = add(p, &all, 0, LAST);
	if (rc) {
		free(word.at);
		free(other.at);
		free(all.at);
		return rc;
	}
	/* kept() frees what it does not keep */
	if (kept(p, &word) < 0)
		rc = -ENOMEM;
	if (kept(p, &other) < 0)
		rc = -ENOMEM;
	if (kept(p, &all) < 0)
		rc = -ENOMEM;
	return rc;
}

uint8_t pattern_ends(const struct pattern *p, uint32_t set)
{
	const struct char_set *s = &p->set[set], *word = &p->set[SET_WORD];
	uint32_t left = 0;
	uint8_t ends = 0;

	for (uint32_t i = 0; i < s->n; i++)
		left += s->range[i].last - s->range[i].first + 1;
	for (uint32_t i = 0; i < word->n; i++)
		for (uint32_t cp = word->range[i].first; cp <= word->range[i].last; cp++)
			if (within(s->range, s->n, cp)) {
				ends |= 1;
				left--;
			}
	return left ? ends | 2 : ends;
}

/* ---- escapes ---- */

static int hex(const struct pattern *p, size_t at)
{
	char c = at < p->n ? p->s[at] : '\0';

	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* n hexadecimal digits at p->at, or false. */
static bool hex_digits(struct pattern *p, int n, uint32_t *cp)
{
	*cp = 0;
	for (int i = 0; i < n; i++) {
		int d = hex(p, p->at + (size_t)i);

		if (d < 0)
			return false;
		*cp = *cp << 4 | (uint32_t)d;
	}
	p->at += (size_t)n;
	return true;
}

/* Behind \u: 4 digits, two halves of a pair, or {..}. */
static bool unicode(struct pattern *p, uint32_t *cp)
{
	uint32_t low;
	size_t at;
	int d;

	if (p->at < p->n && p->s[p->at] == '{') {
		*cp = 0;
		for (at = p->at + 1; (d = hex(p, at)) >= 0 && *cp <= LAST; at++)
			*cp = *cp << 4 | (uint32_t)d;
		if (at == p->at + 1 || at >= p->n || p->s[at] != '}' || *cp > LAST)
			return false;
		p->at = at + 1;
		return true;
	}
	if (!hex_digits(p, 4, cp))
		return false;
	at = p->at;
	if (*cp >= 0xd800 && *cp <= 0xdbff && p->n - at >= 6 && !memcmp(p->s + at, "\\u", 2)) {
		p->at += 2;
		if (hex_digits(p, 4, &low) && low >= 0xdc00 && low <= 0xdfff)
			*cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
		else
			p->at = at;
	}
	return true;
}

/* Behind \p or \P. */
static int property(struct pattern *p, struct ranges *r, bool not)
{
	const struct regex_range *range;
	size_t from = p->at + 1, end;
	int n;

	if (p->at == p->n || p->s[p->at] != '{')
		return pattern_refuse(p, -EINVAL, p->at, "A property is \\p{NAME}.");
	for (end = from; end < p->n && p->s[end] != '}'; end++)
		;
	n = end < p->n ? property_ranges(p->s + from, end - from, &range) : -EINVAL;
	if (n == -ENOMEM)
		return no_memory(p);
	if (n < 0)
		return pattern_refuse(p, -EINVAL, from, "There is no Unicode property %.*s.",
		                      end - from < 64 ? (int)(end - from) : 64, p->s + from);
	p->at = end + 1;
	return add_all(p, r, range, (uint32_t)n, not);
}

/* Behind a backslash: 1 and a character; 0 and ranges added; or -errno. */
static int escape(struct pattern *p, struct ranges *r, uint32_t *cp, bool in_class)
{
	static const char letters[] = "tnvfr", values[] = "\t\n\v\f\r";
	size_t at = p->at;
	const char *l;
	char c;

	if (at == p->n)
		return pattern_refuse(p, -EINVAL, at - 1, "Nothing follows the backslash.");
	c = p->s[p->at++];
	switch (c) {
	case 'd': case 'D':
		return add_all(p, r, digits, 1, c == 'D');
	case 'w': case 'W':
		return add_all(p, r, words, p->any_case ? 6 : 4, c == 'W');
	case 's': case 'S':
		return add_all(p, r, spaces, sizeof(spaces) / sizeof(spaces[0]), c == 'S');
	case 'p': case 'P':
		return property(p, r, c == 'P');
	case 'x': case 'u':
		if (c == 'x' ? hex_digits(p, 2, cp) : unicode(p, cp))
			return 1;
		return pattern_refuse(p, -EINVAL, at,
		                      c == 'x' ? "\\x has two hexadecimal digits."
		                               : "\\u has four hexadecimal digits, or up to 10FFFF in braces.");
	case 'c':
		*cp = p->at < p->n ? (uint32_t)p->s[p->at] & 31 : 0;
		if (p->at == p->n || !((p->s[p->at] | 32) >= 'a' && (p->s[p->at] | 32) <= 'z'))
			return pattern_refuse(p, -EINVAL, at, "\\c has a letter.");
		p->at++;
		return 1;
	case '0':
		*cp = 0;
		if (p->at < p->n && p->s[p->at] >= '0' && p->s[p->at] <= '9')
			return pattern_refuse(p, -EINVAL, at, "An octal escape is not ECMA-262's: write \\xHH.");
		return 1;
	case 'b':
		*cp = 8;                     /* only in a class: elsewhere term() has taken it */
		return 1;
	default:
		break;
	}
	l = c ? strchr(letters, c) : NULL;
	if (l) {
		*cp = (uint8_t)values[l - letters];
		return 1;
	}
	if ((c >= '1' && c <= '9') || (c == 'k' && !in_class))
		return pattern_refuse(p, -ENOTSUP, at - 1, "A back reference cannot be enforced.");
	if ((c | 32) >= 'a' && (c | 32) <= 'z')
		return pattern_refuse(p, -EINVAL, at - 1, "\\%c has no meaning in ECMA-262.", c);
	p->at = at;
	p->at += utf8_next(p->s + at, p->n - at, cp);
	return 1;
}

/* A character or an escape: 1 and a character; 0 and ranges added; or -errno. */
static int item(struct pattern *p, struct ranges *r, uint32_t *cp, bool in_class)
{
	int rc = 1;

	if (p->s[p->at] == '\\') {
		p->at++;
		rc = escape(p, r, cp, in_class);
	} else {
		p->at += utf8_next(p->s + p->at, p->n - p->at, cp);
	}
	return rc;
}

/* ---- classes ---- */

static bool at_is(const struct pattern *p, char c, size_t ahead)
{
	return p->n - p->at > ahead && p->s[p->at + ahead] == c;
}

/* One character, a range of them or an escape, in a class. */
static int member(struct pattern *p, struct ranges *r)
{
	uint32_t first, last;
	size_t at = p->at;
	int rc;

	if (at_is(p, '[', 0) && (at_is(p, ':', 1) || at_is(p, '.', 1) || at_is(p, '=', 1)) &&
	    memchr(p->s + at + 2, ']', p->n - at - 2) &&
	    ((const char *)memchr(p->s + at + 2, ']', p->n - at - 2))[-1] == p->s[at + 1])
		return pattern_refuse(p, -ENOTSUP, at, "ECMA-262 has no classes of POSIX.");
	rc = item(p, r, &first, true);
	if (rc < 1)
		return rc;
	if (!at_is(p, '-', 0) || at_is(p, ']', 1) || p->n - p->at < 2)
		return add(p, r, first, first);
	p->at++;
	rc = item(p, r, &last, true);
	if (rc < 0)
		return rc;
	if (rc == 0) {                       /* a-\d: three members */
		rc = add(p, r, first, first);
		return rc ? rc : add(p, r, '-', '-');
	}
	if (first > last)
		return pattern_refuse(p, -EINVAL, at, "The range of characters is out of order.");
	return add(p, r, first, last);
}

/* Behind '[': up to and with ']'. */
static int class_members(struct pattern *p, struct ranges *r, bool *not)
{
	size_t from = p->at - 1;
	int rc = 0;

	*not = at_is(p, '^', 0);
	p->at += *not;
	while (p->at < p->n && p->s[p->at] != ']' && !rc)
		rc = member(p, r);
	if (rc)
		return rc;
	if (p->at == p->n)
		return pattern_refuse(p, -EINVAL, from, "The class is not closed.");
	p->at++;
	return 0;
}

/* The set with the other cases of all that is in it. */
static int with_cases(struct pattern *p, int set)
{
	struct ranges r = { NULL, 0, 0 };
	int rc = p->set[set].any_case;

	if (rc >= 0)
		return rc;
	rc = add_all(p, &r, p->set[set].range, p->set[set].n, false);
	if (!rc)
		rc = add_cases(p, &r);
	if (rc) {
		free(r.at);
		return rc;
	}
	rc = kept(p, &r);
	if (rc >= 0)
		p->set[set].any_case = rc;
	return rc;
}

static int inverse(struct pattern *p, int set)
{
	struct ranges r = { NULL, 0, 0 };
	int rc = add_all(p, &r, p->set[set].range, p->set[set].n, true);

	if (!rc)
		return kept(p, &r);
	free(r.at);
	return rc;
}

int pattern_class(struct pattern *p)
{
	struct ranges r = { NULL, 0, 0 };
	bool not = false;
	uint32_t cp;
	int rc;

	if (at_is(p, '.', 0) && p->dot_all) {
		p->at++;
		return SET_ALL;
	}
	if (at_is(p, '.', 0)) {
		p->at++;
		rc = add_all(p, &r, line_ends, 3, true);
	} else if (at_is(p, '[', 0)) {
		p->at++;
		rc = class_members(p, &r, &not);
	} else {
		rc = item(p, &r, &cp, false);
		if (rc == 1)
			rc = add(p, &r, cp, cp);
	}
	if (rc) {
		free(r.at);
		return rc;
	}
	sort(&r);
	rc = kept(p, &r);
	if (rc >= 0 && p->any_case)
		rc = with_cases(p, rc);
	return rc >= 0 && not ? inverse(p, rc) : rc;
}
