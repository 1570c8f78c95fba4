/* pattern_read.c - see pattern_tree.h.  ECMA-262's patterns, matched by code points: groups, quantifiers and
 * assertions.  Letters that ECMA-262 gives no meaning behind a backslash are refused, because other dialects
 * do.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "pattern_class.h"

#define COUNT_MOST 1000000000u       /* product of the counts of nested quantifiers */

int pattern_refuse(struct pattern *p, int code, size_t at, const char *fmt, ...)
{
	char sentence[400], place[32];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sentence, sizeof(sentence), fmt, ap);
	va_end(ap);
	snprintf(place, sizeof(place), "1:%zu", at + 1);
	return grammar_refuse(p->error, code, place, "%s", sentence);
}

void pattern_free(struct pattern *p)
{
	for (uint32_t i = 0; i < p->n_sets; i++)
		free(p->set[i].range);
	free(p->set);
	free(p->set_slot);
	free(p->tree);
}

/* A node, or -errno. */
static int64_t node(struct pattern *p, struct tree t)
{
	if (p->n_trees == p->trees_cap) {
		uint32_t cap = p->trees_cap ? p->trees_cap * 2 : 64;
		struct tree *q = realloc(p->tree, cap * sizeof(*q));

		if (!q)
			return pattern_refuse(p, -ENOMEM, p->at, "There is no memory for the pattern.");
		p->tree = q;
		p->trees_cap = cap;
	}
	p->tree[p->n_trees] = t;
	return p->n_trees++;
}

static bool next_is(const struct pattern *p, const char *s)
{
	size_t n = strlen(s);

	return p->n - p->at >= n && !memcmp(p->s + p->at, s, n);
}

static bool take(struct pattern *p, const char *s)
{
	bool is = next_is(p, s);

	if (is)
		p->at += strlen(s);
	return is;
}

/* ---- quantifiers ---- */

/* A decimal number, at most REGEX_MANY - 1; false: there is none. */
static bool number(const struct pattern *p, size_t *at, uint64_t *v)
{
	size_t from = *at;

	for (*v = 0; *at < p->n && p->s[*at] >= '0' && p->s[*at] <= '9'; (*at)++)
		if (*v < REGEX_MANY - 1)
			*v = *v * 10 + (uint64_t)(p->s[*at] - '0');
	if (*v >= REGEX_MANY)
		*v = REGEX_MANY - 1;
	return *at > from;
}

/* {m}, {m,} or {m,n} at p->at: 1 and behind it; 0: a brace that is none, which stands for itself. */
static int braces(struct pattern *p, uint64_t *min, uint64_t *max)
{
	size_t at = p->at + 1;

	if (!number(p, &at, min))
		return 0;
	*max = *min;
	if (at < p->n && p->s[at] == ',') {
		at++;
		if (!number(p, &at, max))
			*max = REGEX_MANY;
	}
	if (at >= p->n || p->s[at] != '}')
		return 0;
	if (*min > *max)
		return pattern_refuse(p, -EINVAL, p->at, "The numbers of a quantifier are out of order.");
	p->at = at + 1;
	return 1;
}

/* The quantifier at p->at, if there is one. */
static int quantifier(struct pattern *p, uint64_t *min, uint64_t *max)
{
	int rc = 1;

	*min = next_is(p, "+");
	*max = next_is(p, "?") ? 1 : REGEX_MANY;
	if (next_is(p, "{"))
		rc = braces(p, min, max);
	else if (!take(p, "*") && !take(p, "+") && !take(p, "?"))
		rc = 0;
	if (rc == 1)
		take(p, "?");                /* lazy: the same language */
	return rc;
}

/* e with the quantifier behind it, if there is one. */
static int64_t repeated(struct pattern *p, int64_t e, size_t column)
{
	uint64_t min, max, product;
	size_t at = p->at;
	struct tree t;
	int rc = quantifier(p, &min, &max);

	if (rc <= 0)
		return rc ? rc : e;
	t = p->tree[e];
	if (t.kind == TREE_START || t.kind == TREE_END || t.kind >= TREE_EDGE)
		return pattern_refuse(p, -EINVAL, at, "There is nothing to repeat before this quantifier.");
	if (t.looks && max > 1)
		return pattern_refuse(p, -ENOTSUP, column, "An assertion inside a repetition cannot be enforced.");
	product = (uint64_t)t.counts * (max != REGEX_MANY ? (max ? max : 1) : min ? min : 1);
	if (product > COUNT_MOST)
		return pattern_refuse(p, -E2BIG, at, "Counts of nested quantifiers multiply to more than %u.",
		                      COUNT_MOST);
	if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?"))
		return pattern_refuse(p, -EINVAL, p->at, "There is nothing to repeat before this quantifier.");
	return node(p, (struct tree){ .kind = TREE_REPEAT,
	                              .a = (uint32_t)e,
	                              .min = (uint32_t)min,
	                              .max = (uint32_t)max,
	                              .looks = t.looks,
	                              .looks_back = t.looks_back,
	                              .nullable = t.nullable || !min,
	                              .ends = t.ends,
	                              .counts = (uint32_t)product,
	                              .column = (uint32_t)column });
}

/* ---- groups ---- */

static int64_t read_or(struct pattern *p);

/* A chain of members that becomes one node. */
struct chain { struct tree sum; uint32_t last, n; };

static void append(struct pattern *p, struct chain *c, uint32_t e, bool one_of)
{
	struct tree *t = &p->tree[e], *s = &c->sum;

	t->next = 0;
	if (c->n++)
		p->tree[c->last].next = e;
	else
		s->a = e;
	c->last = e;
	s->looks |= t->looks;
	s->looks_back |= t->looks_back;
	s->ends = (uint8_t)(one_of || t->nullable ? s->ends | t->ends : t->ends);
	s->nullable = one_of ? s->nullable || t->nullable : s->nullable && t->nullable;
	s->counts = t->counts > s->counts ? t->counts : s->counts;
}

static int64_t finish(struct pattern *p, const struct chain *c)
{
	return c->n == 1 ? c->sum.a : c->n ? node(p, c->sum) : TREE_EMPTY;
}

/* Flags "i", "s", with a minus before those that are switched off; up to ')' or ':'. */
static int flags(struct pattern *p)
{
	size_t from = p->at;
	bool on = true;

	for (; p->at < p->n && p->s[p->at] != ')' && p->s[p->at] != ':'; p->at++) {
		if (p->s[p->at] == 'i')
			p->any_case = on;
		else if (p->s[p->at] == 's')
			p->dot_all = on;
		else if (p->s[p->at] == '-' && on)
			on = false;
		else
			return pattern_refuse(p, -ENOTSUP, p->at, "The flag is none of i and s, which Slipring knows.");
	}
	if (p->at == p->n || p->at == from)
		return pattern_refuse(p, -EINVAL, from, "After (? stands a group's kind or flags.");
	return 0;
}

static int name(struct pattern *p)
{
	size_t from = p->at;

	while (p->at < p->n && p->s[p->at] != '>')
		p->at++;
	if (p->at == p->n || p->at == from)
		return pattern_refuse(p, -EINVAL, from, "The name of a group ends with '>'.");
	p->at++;
	return 0;
}

/* Behind "(?": what kind of group it is; TREE_EMPTY: an ordinary one, or flags alone if *done. */
static int64_t kind_of_group(struct pattern *p, bool *done)
{
	int rc = 0;

	if (next_is(p, "<=") || next_is(p, "<!"))
		return pattern_refuse(p, -ENOTSUP, p->at, "A look-behind cannot be enforced.");
	if (take(p, "="))
		return TREE_AHEAD;
	if (take(p, "!"))
		return TREE_NOT_AHEAD;
	if (take(p, "<") || take(p, "P<"))
		rc = name(p);
	else if (!take(p, ":") && !(rc = flags(p)))
		*done = p->s[p->at++] == ')';
	return rc ? rc : TREE_EMPTY;
}

static int64_t group(struct pattern *p)
{
	bool any_case = p->any_case, dot_all = p->dot_all, done = false;
	size_t from = p->at++;
	int64_t kind = TREE_EMPTY, e;

	if (take(p, "?") && (kind = kind_of_group(p, &done)) < 0)
		return kind;
	if (done)                            /* to the end of the group that it stands in */
		return TREE_EMPTY;
	if (++p->depth > PATTERN_DEPTH)
		return pattern_refuse(p, -E2BIG, from, "Groups are nested deeper than %d.", PATTERN_DEPTH);
	e = read_or(p);
	if (e < 0)
		return e;
	if (!take(p, ")"))
		return pattern_refuse(p, -EINVAL, from, "The group is not closed.");
	p->depth--;
	p->any_case = any_case;
	p->dot_all = dot_all;
	if (kind == TREE_EMPTY)
		return e;
	return node(p, (struct tree){ .kind = (uint8_t)kind,
	                              .a = (uint32_t)e,
	                              .looks = true,
	                              .nullable = true,
	                              .counts = 1,
	                              .looks_back = p->tree[e].looks_back,
	                              .column = (uint32_t)from });
}

static int64_t assertion(struct pattern *p, enum tree_kind kind, size_t bytes)
{
	p->at += bytes;
	return node(p, (struct tree){ .kind = (uint8_t)kind,
	                              .looks = true,
	                              .looks_back = kind != TREE_END,
	                              .nullable = true,
	                              .counts = 1,
	                              .column = (uint32_t)(p->at - bytes) });
}

/* What may have a quantifier; one character or what begins at p->at. */
static int64_t term(struct pattern *p)
{
	uint64_t min, max;
	size_t at = p->at;
	int rc;

	switch (p->s[at]) {
	case '(':
		return group(p);
	case '^':
		return assertion(p, TREE_START, 1);
	case '$':
		return assertion(p, TREE_END, 1);
	case '*': case '+': case '?':
		return pattern_refuse(p, -EINVAL, at, "There is nothing to repeat before this quantifier.");
	case '{':
		rc = braces(p, &min, &max);
		if (rc > 0)
			return pattern_refuse(p, -EINVAL, at, "There is nothing to repeat before this quantifier.");
		if (rc < 0)
			return rc;
		break;
	case '\\':
		if (next_is(p, "\\b"))
			return assertion(p, TREE_EDGE, 2);
		if (next_is(p, "\\B"))
			return assertion(p, TREE_NO_EDGE, 2);
		break;
	default:
		break;
	}
	rc = pattern_class(p);
	if (rc < 0)
		return rc;
	return node(p, (struct tree){ .kind = TREE_SET,
	                              .a = (uint32_t)rc,
	                              .ends = pattern_ends(p, (uint32_t)rc),
	                              .counts = 1,
	                              .column = (uint32_t)at });
}

static int64_t read_concat(struct pattern *p)
{
	struct chain c = { .sum = {
						   .kind = TREE_CONCAT, .nullable = true, .counts = 1, .column = (uint32_t)p->at } };
	int64_t e;

	while (p->at < p->n && p->s[p->at] != '|' && p->s[p->at] != ')') {
		size_t at = p->at;

		e = term(p);
		if (e >= 0)
			e = repeated(p, e, at);
		if (e < 0)
			return e;
		if (e != TREE_EMPTY)
			append(p, &c, (uint32_t)e, false);
	}
	return finish(p, &c);
}

static int64_t read_or(struct pattern *p)
{
	struct chain c = { .sum = { .kind = TREE_OR, .counts = 1, .column = (uint32_t)p->at } };
	int64_t e;

	do {
		e = read_concat(p);
		/* The empty one may be a member more than once, so it is not the shared node 0. */
		if (e == TREE_EMPTY)
			e = node(p, (struct tree){ .kind = TREE_EMPTY, .nullable = true, .counts = 1 });
		if (e < 0)
			return e;
		append(p, &c, (uint32_t)e, true);
	} while (take(p, "|"));
	return finish(p, &c);
}

int64_t pattern_read(struct pattern *p)
{
	int64_t e = node(p, (struct tree){ .kind = TREE_EMPTY, .nullable = true, .counts = 1 });

	if (e >= 0 && (e = pattern_first_sets(p)) == 0)
		e = read_or(p);
	if (e >= 0 && p->at < p->n)
		return pattern_refuse(p, -EINVAL, p->at, "A parenthesis is closed that was not opened.");
	return e;
}
