/* cursor.c - see cursor.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "cursor.h"
#include "special.h"

#define POINT_MAX  0x10ffffu
#define CLASS_MAX  4096  /* ranges of one class */
#define STRING_MAX 65536 /* bytes of one literal */
#define TOKENS_MAX 1024  /* ids of one token set */

bool cursor_take(struct cursor *c, const char *word)
{
	size_t n = strlen(word);

	if (c->n - c->at < n || memcmp(c->s + c->at, word, n))
		return false;
	c->at += n;
	return true;
}

void cursor_blanks(struct cursor *c)
{
	while (cursor_peek(c, 0) == ' ' || cursor_peek(c, 0) == '\t')
		c->at++;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

bool cursor_number(struct cursor *c, uint32_t *out)
{
	size_t at = c->at;
	uint64_t x = 0;

	for (; is_digit(cursor_peek(c, 0)); c->at++)
		x = x > RULES_BOUND ? x : x * 10 + (uint64_t)(cursor_peek(c, 0) - '0');
	if (c->at == at)
		return !rules_fail(c->r, -EINVAL, at, "Expected a number");
	if (x > RULES_BOUND)
		return !rules_fail(c->r, -E2BIG, at, "A number is at most %u here", RULES_BOUND);
	*out = (uint32_t)x;
	return true;
}

/* ---- characters --------------------------------------------------------------------------- */

static bool hex(struct cursor *c, int digits, uint32_t *out)
{
	size_t at = c->at;
	uint32_t x = 0;
	char d;

	for (int i = 0; i < digits; i++, c->at++) {
		d = cursor_peek(c, 0);
		if (is_digit(d))
			x = x * 16 + (uint32_t)(d - '0');
		else if ((d | 32) >= 'a' && (d | 32) <= 'f')
			x = x * 16 + (uint32_t)((d | 32) - 'a' + 10);
		else
			return !rules_fail(c->r, -EINVAL, at, "Expected %d hexadecimal digits", digits);
	}
	if (x > POINT_MAX || (x >= 0xd800 && x <= 0xdfff))
		return !rules_fail(c->r, -EINVAL, at, "U+%X is not a character", x);
	*out = x;
	return true;
}

/* One character inside quotes or a class, escapes resolved; false after an error.  extra: characters that may
 * be escaped too. */
static bool read_point(struct cursor *c, const char *extra, uint32_t *out)
{
	static const char from[] = "nrtbfave0\"\\/'?", to[] = "\n\r\t\b\f\a\v\x1b\0\"\\/'?";
	const char *known;
	size_t at = c->at;
	char d;

	if (cursor_peek(c, 0) != '\\') {
		c->at += utf8_next(c->s + c->at, c->n - c->at, out);
		return true;
	}
	d = cursor_peek(c, 1);
	c->at += d ? 2 : 1;
	if (d == 'x' || d == 'u' || d == 'U')
		return hex(c, d == 'x' ? 2 : d == 'u' ? 4 : 8, out);
	known = d ? strchr(from, d) : NULL;
	if (known || (d && strchr(extra, d))) {
		*out = (uint8_t)(known ? to[known - from] : d);
		return true;
	}
	c->at = at;
	return !rules_fail(c->r, -EINVAL, at, "Unknown escape '\\%.*s'", d ? 1 : 0, c->s + at + 1);
}

uint32_t cursor_range(struct cursor *c, uint32_t first, uint32_t last)
{
	struct regex_range range = { first, last };

	return rules_expr(c->r, regex_points(grammar_regexes(c->r->g), &range, 1), 0);
}

/* One character, in both cases if it is an ASCII letter. */
static uint32_t either(struct regexes *x, uint32_t point)
{
	struct regex_range two[2] = { { point & ~32u, point & ~32u }, { point | 32, point | 32 } };

	return regex_points(x, two, 2);
}

uint32_t cursor_string(struct cursor *c, bool either_case, uint32_t *one)
{
	struct regexes *x = grammar_regexes(c->r->g);
	char *text = malloc(STRING_MAX + 4);
	size_t at = c->at++, n = 0;
	uint32_t point = 0, points = 0, expr = REGEX_EMPTY;

	for (; text && cursor_peek(c, 0) != '"'; points++) {
		if (!cursor_peek(c, 0) || cursor_peek(c, 0) == '\n')
			rules_fail(c->r, -EINVAL, at, "The string that begins here has no end on its line");
		else if (n >= STRING_MAX)
			rules_fail(c->r, -E2BIG, at, "A string has at most %d bytes", STRING_MAX);
		if (c->r->failed || !read_point(c, "", &point))
			break;
		if (either_case && (point | 32) >= 'a' && (point | 32) <= 'z') {
			expr = regex_concat(x, regex_concat(x, expr, regex_bytes(x, text, n)), either(x, point));
			n = 0;
		} else if (either_case && point > 127) {
			rules_fail(c->r, -ENOTSUP, at, "Only ASCII is matched in either case");
		} else {
			n += utf8_put(point, text + n);
		}
	}
	if (!text)
		rules_fail(c->r, -ENOMEM, at, "There is not enough memory for the grammar");
	c->at += !c->r->failed;
	expr = c->r->failed ? REGEX_EMPTY : regex_concat(x, expr, regex_bytes(x, text, n));
	free(text);
	*one = points == 1 ? point : UINT32_MAX;
	return expr;
}

/* ---- classes ------------------------------------------------------------------------------ */

static int by_first(const void *a, const void *b)
{
	const struct regex_range *p = a, *q = b;

	return p->first < q->first ? -1 : p->first > q->first;
}

/* Sort and merge; returns their number. */
static size_t tidy(struct regex_range *range, size_t n)
{
	size_t k = 0;

	qsort(range, n, sizeof(*range), by_first);
	for (size_t i = 0; i < n; i++) {
		if (k && range[i].first <= range[k - 1].last + 1) {
			if (range[i].last > range[k - 1].last)
				range[k - 1].last = range[i].last;
		} else {
			range[k++] = range[i];
		}
	}
	return k;
}

/* What is in none of n tidy ranges; out has room for n + 1. */
static size_t complement(const struct regex_range *range, size_t n, struct regex_range *out)
{
	uint32_t from = 0;
	size_t k = 0;

	for (size_t i = 0; i < n; i++) {
		if (range[i].first > from)
			out[k++] = (struct regex_range){ from, range[i].first - 1 };
		from = range[i].last + 1;
	}
	if (from <= POINT_MAX)
		out[k++] = (struct regex_range){ from, POINT_MAX };
	return k;
}

static size_t read_class(struct cursor *c, struct regex_range *range, size_t at)
{
	size_t n = 0;

	while (cursor_peek(c, 0) != ']') {
		if (!cursor_peek(c, 0) || cursor_peek(c, 0) == '\n')
			rules_fail(c->r, -EINVAL, at, "The class that begins here has no ']' on its line");
		else if (n == CLASS_MAX)
			rules_fail(c->r, -E2BIG, at, "A class has at most %d ranges", CLASS_MAX);
		if (c->r->failed || !read_point(c, "^$.*+()[]{}|-", &range[n].first))
			return 0;
		range[n].last = range[n].first;
		if (cursor_peek(c, 0) == '-' && cursor_peek(c, 1) && cursor_peek(c, 1) != ']') {
			c->at++;
			if (!read_point(c, "^$.*+()[]{}|-", &range[n].last))
				return 0;
			if (range[n].last < range[n].first)
				rules_fail(c->r, -EINVAL, at, "A range in this class ends before it begins");
		}
		n++;
	}
	c->at++;
	return n;
}

uint32_t cursor_class(struct cursor *c)
{
	struct regex_range *range = malloc((2 * CLASS_MAX + 2) * sizeof(*range)), *set = range;
	size_t at = c->at++, n;
	bool negated = cursor_take(c, "^");
	uint32_t node = 0;

	if (!range) {
		rules_fail(c->r, -ENOMEM, at, "There is not enough memory for the grammar");
		return 0;
	}
	n = tidy(range, read_class(c, range, at));
	if (negated) {
		set = range + CLASS_MAX;
		n = complement(range, n, set);
	}
	if (!n)
		rules_fail(c->r, -EINVAL, at, "No character is in this class");
	if (!c->r->failed)
		node = rules_expr(c->r, regex_points(grammar_regexes(c->r->g), set, n), 0);
	free(range);
	return node;
}

/* ---- counts ------------------------------------------------------------------------------- */

bool cursor_bounds(struct cursor *c, uint32_t *min, uint32_t *max)
{
	size_t at = c->at;

	cursor_blanks(c);
	*min = 0;
	if (cursor_peek(c, 0) != ',' && !cursor_number(c, min))
		return false;
	*max = *min;
	cursor_blanks(c);
	if (cursor_take(c, ",")) {
		*max = RULES_MANY;
		cursor_blanks(c);
		if (is_digit(cursor_peek(c, 0)) && !cursor_number(c, max))
			return false;
		cursor_blanks(c);
	}
	if (!cursor_take(c, "}"))
		return !rules_fail(c->r, -EINVAL, c->at, "Expected '}' after the count");
	if (*max < *min)
		return !rules_fail(c->r, -EINVAL, at, "The count {%u,%u} ends before it begins", *min, *max);
	return true;
}

/* ---- tokens ------------------------------------------------------------------------------- */

/* 1,3-8,10 and `end`.  Returns their number. */
static uint32_t read_ids(struct cursor *c, int32_t *ids, const char *end)
{
	int32_t vocab = sr_text_info(grammar_text(c->r->g))->vocab;
	uint32_t first, last, n = 0;
	size_t at;

	do {
		cursor_blanks(c);
		at = c->at;
		if (!cursor_number(c, &first))
			return 0;
		last = first;
		if (cursor_take(c, "-") && !cursor_number(c, &last))
			return 0;
		if (last < first || last >= (uint32_t)vocab)
			rules_fail(c->r, -EINVAL, at, "The model's token ids are 0 to %d", vocab - 1);
		else if (last - first >= TOKENS_MAX - n)
			rules_fail(c->r, -E2BIG, at, "A set has at most %d tokens", TOKENS_MAX - 1);
		for (; !c->r->failed && first <= last; first++)
			ids[n++] = (int32_t)first;
		cursor_blanks(c);
	} while (!c->r->failed && cursor_take(c, ","));
	if (!cursor_take(c, end))
		rules_fail(c->r, -EINVAL, c->at, "Expected '%s' after the token ids", end);
	return n;
}

/* <name>: its id, with the cursor behind the name. */
static int32_t read_token_name(struct cursor *c)
{
	size_t at = c->at - 1, end = c->at;
	int32_t id;

	while (end < c->n && c->s[end] != '>' && c->s[end] != '\n')
		end++;
	id = special_id(c->r->g, c->s + at, end < c->n ? end + 1 - at : 0);
	if (id < 0)
		rules_fail(c->r, -EINVAL, at, "The model has no token '%.*s>'", (int)(end - at < 80 ? end - at : 80),
		           c->s + at);
	c->at = end;
	return id;
}

static uint32_t token_node(struct cursor *c, const int32_t *ids, uint32_t n, bool except)
{
	if (c->r->failed)
		return 0;
	return rules_symbol(c->r, except ? special_except(c->r->g, ids, n) : grammar_token(c->r->g, ids, n));
}

uint32_t cursor_token(struct cursor *c, bool except)
{
	int32_t ids[TOKENS_MAX];
	uint32_t n = 0;

	c->at++;
	if (cursor_take(c, "[*]")) {
		except = true;
	} else if (cursor_take(c, "[")) {
		except = except != cursor_take(c, "^");
		n = read_ids(c, ids, "]");
	} else {
		ids[n++] = read_token_name(c);
	}
	if (!c->r->failed && !cursor_take(c, ">"))
		rules_fail(c->r, -EINVAL, c->at, "Expected '>' after the token");
	return token_node(c, ids, n, except);
}

uint32_t cursor_ids(struct cursor *c, bool except)
{
	int32_t ids[TOKENS_MAX];
	uint32_t n;

	c->at++;
	n = read_ids(c, ids, ")");
	return token_node(c, ids, n, except);
}
