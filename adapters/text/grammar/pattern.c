/* pattern.c - see pattern.h.  A pattern's tree to an expression.
 *
 * What asserts nothing is a regular expression as it stands.  An assertion looks at the text before or behind
 * it, so a tree with assertions is built from its end: "what follows" is the expression of all the rest of
 * the text. A look-ahead is an intersection with it, $ asks whether it may be empty, and \b what it begins
 * with.  What stands before is one of three: nothing, a word's character, another one; there is an expression
 * of the rest for each.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "pattern_tree.h"

#define WORK_MOST 20000              /* steps (regexes_work()) that assertions may cost */

enum before { AT_START, AFTER_WORD, AFTER_OTHER, BEFORES };

struct build {
	struct pattern p;
	struct regexes *r;
	bool json;
	uint32_t *expr;              /* of trees without assertions; REGEX_FAILED = not made yet */
	uint32_t all;                /* any text */
	uint64_t work;               /* that was done before */
};

/* ---- without assertions ---- */

static uint32_t set_expr(struct build *b, uint32_t set)
{
	struct char_set *s = &b->p.set[set];

	if (s->expr == REGEX_FAILED) {
		s->expr = b->json ? json_points(b->r, s->range, s->n) : regex_points(b->r, s->range, s->n);
		if (!b->json)
			regex_written(b->r, s->expr, REGEX_TEXT);
	}
	return s->expr;
}

/* The one character of a tree, if it is one; else UINT32_MAX. */
static uint32_t one_char(const struct build *b, uint32_t t)
{
	const struct tree *n = &b->p.tree[t];
	const struct char_set *s = &b->p.set[n->a];

	if (n->kind != TREE_SET || s->n != 1 || s->range[0].first != s->range[0].last)
		return UINT32_MAX;
	return s->range[0].first >= 0xd800 && s->range[0].first <= 0xdfff ? UINT32_MAX : s->range[0].first;
}

/* The members of a chain, malloc'ed. */
static uint32_t *members(struct build *b, uint32_t t, uint32_t *n)
{
	uint32_t *list, k = 0;

	*n = 0;
	for (uint32_t i = b->p.tree[t].a; i; i = b->p.tree[i].next)
		++*n;
	list = malloc((*n + 1) * sizeof(*list));
	if (!list) {
		regexes_fail(b->r, -ENOMEM);
		return NULL;
	}
	for (uint32_t i = b->p.tree[t].a; i; i = b->p.tree[i].next)
		list[k++] = i;
	return list;
}

static uint32_t plain(struct build *b, uint32_t t);

/* Runs of characters are one literal, except in JSON strings, where each has several spellings. */
static uint32_t plain_concat(struct build *b, const uint32_t *list, uint32_t n)
{
	uint32_t e = REGEX_EMPTY, from, cp;
	size_t len = 0;
	char *run = malloc((size_t)n * 4 + 1);

	if (!run) {
		regexes_fail(b->r, -ENOMEM);
		return REGEX_FAILED;
	}
	for (; n > 0; n = from) {
		for (from = n; !b->json && from > 0 && one_char(b, list[from - 1]) != UINT32_MAX; from--)
			;
		if (n - from < 2) {
			from = n - 1;
			e = regex_concat(b->r, plain(b, list[from]), e);
			continue;
		}
		for (uint32_t i = from; i < n; i++) {
			cp = one_char(b, list[i]);
			len += utf8_put(cp, run + len);
		}
		cp = regex_bytes(b->r, run, len);
		regex_written(b->r, cp, REGEX_TEXT);
		e = regex_concat(b->r, cp, e);
		len = 0;
	}
	free(run);
	return e;
}

static uint32_t make_plain(struct build *b, uint32_t t)
{
	const struct tree n = b->p.tree[t];
	uint32_t *list, count, e;

	switch (n.kind) {
	case TREE_EMPTY:
		return REGEX_EMPTY;
	case TREE_SET:
		return set_expr(b, n.a);
	case TREE_REPEAT:
		return regex_repeat(b->r, plain(b, n.a), n.min, n.max);
	default:
		break;
	}
	list = members(b, t, &count);
	if (!list)
		return REGEX_FAILED;
	if (n.kind == TREE_CONCAT) {
		e = plain_concat(b, list, count);
	} else {
		for (uint32_t i = 0; i < count; i++)
			list[i] = plain(b, list[i]);
		e = regex_or_all(b->r, list, count);
	}
	free(list);
	return e;
}

static uint32_t plain(struct build *b, uint32_t t)
{
	if (b->expr[t] == REGEX_FAILED)
		b->expr[t] = make_plain(b, t);
	return b->expr[t];
}

/* ---- with assertions ---- */

/* Texts of t that end in a word's character (or in another one), followed by rest. */
static uint32_t ending(struct build *b, uint32_t t, bool word, uint32_t rest)
{
	uint32_t e = plain(b, t), other = word ? 2 : 1;

	if (!(b->p.tree[t].ends & (word ? 1 : 2)))
		return REGEX_NONE;
	if (b->p.tree[t].ends & other)
		e = regex_and(b->r, e, regex_concat(b->r, b->all, set_expr(b, word ? SET_WORD : SET_OTHER)));
	else if (b->p.tree[t].nullable)
		e = regex_and(b->r, e, regex_not(b->r, REGEX_EMPTY));
	return regex_concat(b->r, e, rest);
}

static void after_plain(struct build *b, uint32_t t, uint32_t rest[BEFORES])
{
	uint32_t word, other, e;

	if (rest[AT_START] == rest[AFTER_WORD] && rest[AFTER_WORD] == rest[AFTER_OTHER]) {
		e = regex_concat(b->r, plain(b, t), rest[AT_START]);
		for (int l = 0; l < BEFORES; l++)
			rest[l] = e;
		return;
	}
	word = ending(b, t, true, rest[AFTER_WORD]);
	other = ending(b, t, false, rest[AFTER_OTHER]);
	e = regex_or(b->r, word, other);
	for (int l = 0; l < BEFORES; l++)
		rest[l] = b->p.tree[t].nullable ? regex_or(b->r, e, rest[l]) : e;
}

static void build(struct build *b, uint32_t t, uint32_t rest[BEFORES]);

/* A look-ahead: what follows is also a text that begins with a match. */
static void look_ahead(struct build *b, uint32_t t, uint32_t rest[BEFORES])
{
	uint32_t ahead[BEFORES] = { b->all, b->all, b->all };

	build(b, b->p.tree[t].a, ahead);
	for (int l = 0; l < BEFORES; l++)
		rest[l] =
			regex_and(b->r, rest[l], b->p.tree[t].kind == TREE_AHEAD ? ahead[l] : regex_not(b->r, ahead[l]));
}

/* \b or \B: is there a change between word and other here? */
static void edge(struct build *b, bool is, uint32_t rest[BEFORES])
{
	uint32_t word = regex_concat(b->r, set_expr(b, SET_WORD), b->all), not_word = regex_not(b->r, word);

	for (int l = 0; l < BEFORES; l++)
		rest[l] = regex_and(b->r, rest[l], (l == AFTER_WORD) == is ? not_word : word);
}

static void build_or(struct build *b, uint32_t t, uint32_t rest[BEFORES])
{
	uint32_t count, *list = members(b, t, &count), *all;

	all = list ? malloc((size_t)(count + 1) * BEFORES * sizeof(*all)) : NULL;
	if (!all) {
		regexes_fail(b->r, -ENOMEM);
		free(list);
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		uint32_t one[BEFORES] = { rest[0], rest[1], rest[2] };

		build(b, list[i], one);
		for (uint32_t l = 0; l < BEFORES; l++)
			all[l * count + i] = one[l];
	}
	for (uint32_t l = 0; l < BEFORES; l++)
		rest[l] = regex_or_all(b->r, all + l * count, count);
	free(list);
	free(all);
}

static void build_concat(struct build *b, uint32_t t, uint32_t rest[BEFORES])
{
	uint32_t count, *list = members(b, t, &count);

	while (list && count > 0)
		build(b, list[--count], rest);
	free(list);
}

/* rest: of the text behind t, by what stands before it; on return, from t on, by what stands before t. */
static void build(struct build *b, uint32_t t, uint32_t rest[BEFORES])
{
	uint32_t none[BEFORES] = { rest[0], rest[1], rest[2] };

	if (regexes_work(b->r) - b->work > WORK_MOST)
		regexes_fail(b->r, -E2BIG);
	if (!b->p.tree[t].looks) {
		after_plain(b, t, rest);
		return;
	}
	switch (b->p.tree[t].kind) {
	case TREE_START:
		rest[AFTER_WORD] = rest[AFTER_OTHER] = REGEX_NONE;
		break;
	case TREE_END:
		for (int l = 0; l < BEFORES; l++)
			rest[l] = regex_nullable(b->r, rest[l]) ? REGEX_EMPTY : REGEX_NONE;
		break;
	case TREE_EDGE: case TREE_NO_EDGE:
		edge(b, b->p.tree[t].kind == TREE_EDGE, rest);
		break;
	case TREE_AHEAD: case TREE_NOT_AHEAD:
		look_ahead(b, t, rest);
		break;
	case TREE_REPEAT:                    /* once, or not at all: pattern_read() has refused the rest */
		if (b->p.tree[t].max)
			build(b, b->p.tree[t].a, rest);
		for (int l = 0; l < BEFORES && !b->p.tree[t].min; l++)
			rest[l] = regex_or(b->r, rest[l], none[l]);
		break;
	case TREE_OR:
		build_or(b, t, rest);
		break;
	default:
		build_concat(b, t, rest);
		break;
	}
}

/* ---- the whole ---- */

static uint32_t any_text(struct build *b)
{
	static const struct regex_range all = { 0, 0x10ffff };

	if (b->json)
		return regex_repeat(b->r, json_char(b->r), 0, REGEX_MANY);
	regex_alphabet(b->r, REGEX_TEXT, regex_points(b->r, &all, 1));
	return regex_repeat(b->r, regex_points(b->r, &all, 1), 0, REGEX_MANY);
}

static uint32_t whole(struct build *b, uint32_t root, bool search)
{
	uint32_t rest[BEFORES], list[BEFORES];

	b->all = any_text(b);
	b->work = regexes_work(b->r);
	for (int l = 0; l < BEFORES; l++)
		rest[l] = search ? b->all : REGEX_EMPTY;
	build(b, root, rest);
	if (!search)
		return rest[AT_START];
	if (rest[AT_START] == rest[AFTER_WORD] && rest[AFTER_WORD] == rest[AFTER_OTHER])
		return regex_concat(b->r, b->all, rest[AT_START]);
	list[0] = rest[AT_START];
	list[1] = regex_concat(b->r, b->all, regex_concat(b->r, set_expr(b, SET_WORD), rest[AFTER_WORD]));
	list[2] = regex_concat(b->r, b->all, regex_concat(b->r, set_expr(b, SET_OTHER), rest[AFTER_OTHER]));
	return regex_or_all(b->r, list, BEFORES);
}

static uint32_t parse(struct build *b, unsigned flags)
{
	struct grammar_error *e = b->p.error;
	uint32_t out = REGEX_FAILED;
	int64_t root = pattern_read(&b->p);
	int rc;

	if (root < 0)
		return REGEX_FAILED;
	b->expr = malloc(b->p.n_trees * sizeof(*b->expr));
	if (b->expr) {
		memset(b->expr, 0xff, b->p.n_trees * sizeof(*b->expr));
		out = whole(b, (uint32_t)root, flags & PATTERN_SEARCH);
		free(b->expr);
	}
	rc = b->expr ? regexes_error(b->r) : -ENOMEM;
	if (rc == -E2BIG)
		grammar_refuse(e, rc, NULL, "The pattern is too complex (%u expressions).", regexes_count(b->r));
	else if (rc)
		grammar_refuse(e, rc, NULL, "There is no memory for the pattern.");
	return rc ? REGEX_FAILED : out;
}

uint32_t pattern_parse(struct regexes *r, const char *s, size_t n, unsigned flags, struct grammar_error *e)
{
	struct build b = { .p = { .s = s, .n = n, .error = e }, .r = r, .json = flags & PATTERN_JSON };
	uint32_t out;

	if (n > PATTERN_MOST) {
		grammar_refuse(e, -E2BIG, NULL, "The pattern is longer than %d bytes.", PATTERN_MOST);
		return REGEX_FAILED;
	}
	if (!utf8_valid(s, n)) {
		grammar_refuse(e, -EINVAL, NULL, "The pattern is not valid UTF-8.");
		return REGEX_FAILED;
	}
	out = parse(&b, flags);
	pattern_free(&b.p);
	return out;
}
