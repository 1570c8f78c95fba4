/* ebnf.c - GBNF: rules `name ::= alternatives`, "strings", [classes], ( ) | * + ? {m,n}, # comments, tokens.
 *
 * A rule ends where the next `name ::=` stands, so a body may have several lines.  An alternative may be
 * empty.  A look-ahead (= ..) at the end of a rule has no effect: xgrammar prints it as a hint, and
 * its matcher does not hold answers to it.
 */
#include <errno.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "cursor.h"
#include "ebnf.h"

#define OPTIONS_MAX 256 /* bytes between the brackets of a rule's options */

static uint32_t parse_or(struct cursor *c);

static bool is_name(char c, bool first)
{
	if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_')
		return true;
	return !first && ((c >= '0' && c <= '9') || c == '-' || c == '.');
}

static size_t name_length(const struct cursor *c)
{
	size_t n = 0;

	while (is_name(cursor_peek(c, n), !n))
		n++;
	return n;
}

/* Spaces, lines and comments. */
static void skip(struct cursor *c)
{
	for (;; c->at++) {
		if (cursor_peek(c, 0) == '#')
			while (c->at < c->n && c->s[c->at] != '\n')
				c->at++;
		if (!cursor_peek(c, 0) || !strchr(" \t\r\n", cursor_peek(c, 0)))
			return;
	}
}

/* Does `name ::=` or `name[options] ::=` come next? */
static bool at_definition(const struct cursor *c)
{
	struct cursor k = *c;
	size_t n = name_length(c);

	if (!n)
		return false;
	k.at += n;
	cursor_blanks(&k);
	if (cursor_peek(&k, 0) == '[') {
		for (n = 0; n < OPTIONS_MAX && cursor_peek(&k, 0) && !strchr("]\n", cursor_peek(&k, 0)); n++)
			k.at++;
		if (!cursor_take(&k, "]"))
			return false;
		cursor_blanks(&k);
	}
	return cursor_take(&k, "::=");
}

/* Token(1, 2) or ExcludeToken(1, 2), xgrammar's words for tokens; the cursor is at the parenthesis. */
static uint32_t parse_macro(struct cursor *c, struct rules_span name)
{
	const char *s = c->s + name.at;

	if (name.n == 5 && !memcmp(s, "Token", 5))
		return cursor_ids(c, false);
	if (name.n == 12 && !memcmp(s, "ExcludeToken", 12))
		return cursor_ids(c, true);
	rules_fail(c->r, -ENOTSUP, name.at, "The macro '%.*s' is not supported", (int)name.n, s);
	return 0;
}

static uint32_t parse_primary(struct cursor *c)
{
	struct rules_span name = { (uint32_t)c->at, (uint32_t)name_length(c) };
	uint32_t node, one;
	char d = cursor_peek(c, 0);

	if (name.n) {
		c->at += name.n;
		return cursor_peek(c, 0) == '(' ? parse_macro(c, name) : rules_name(c->r, name);
	}
	if (d == '"') {
		node = cursor_string(c, false, &one);
		return rules_expr(c->r, node, 0);
	}
	if (d == '[')
		return cursor_class(c);
	if (d == '<' || (d == '!' && cursor_peek(c, 1) == '<')) {
		c->at += d == '!';
		return cursor_token(c, d == '!');
	}
	if (cursor_take(c, "."))
		return cursor_range(c, 0, 0x10ffff);
	if (!cursor_take(c, "(")) {
		rules_fail(c->r, -EINVAL, c->at,
		           d ? "Expected a string, a class, a rule's name or '('" : "Unexpected end");
		return 0;
	}
	if (++c->depth > RULES_DEPTH)
		rules_fail(c->r, -E2BIG, c->at, "Parentheses may nest at most %d levels", RULES_DEPTH);
	node = parse_or(c);
	c->depth--;
	if (!c->r->failed && !cursor_take(c, ")"))
		rules_fail(c->r, -EINVAL, c->at, "Expected ')'");
	return node;
}

static uint32_t parse_item(struct cursor *c)
{
	uint32_t node = parse_primary(c), min, max;

	while (!c->r->failed) {
		cursor_blanks(c);
		if (cursor_take(c, "*"))
			node = rules_repeat(c->r, node, 0, RULES_MANY);
		else if (cursor_take(c, "+"))
			node = rules_repeat(c->r, node, 1, RULES_MANY);
		else if (cursor_take(c, "?"))
			node = rules_repeat(c->r, node, 0, 1);
		else if (cursor_take(c, "{") && cursor_bounds(c, &min, &max))
			node = rules_repeat(c->r, node, min, max);
		else
			break;
	}
	return node;
}

/* Read a look-ahead for its syntax, and drop it. */
static void parse_hint(struct cursor *c)
{
	skip(c);
	parse_or(c);
	if (!c->r->failed && !cursor_take(c, ")"))
		rules_fail(c->r, -EINVAL, c->at, "Expected ')'");
	skip(c);
	if (!c->r->failed && c->at < c->n && !at_definition(c))
		rules_fail(c->r, -ENOTSUP, c->at, "A look-ahead '(=' may stand only at the end of a rule");
}

static uint32_t parse_concat(struct cursor *c)
{
	uint32_t since = c->r->n_waiting;
	size_t at = c->at;

	for (skip(c); !c->r->failed && c->at < c->n; skip(c)) {
		if (strchr("|)", cursor_peek(c, 0)) || at_definition(c))
			break;
		if (!c->depth && cursor_take(c, "(="))
			parse_hint(c);
		else
			rules_put(c->r, parse_item(c));
	}
	return rules_collect(c->r, RULES_CONCAT, since, at);
}

static uint32_t parse_or(struct cursor *c)
{
	uint32_t since = c->r->n_waiting;
	size_t at = c->at;

	do
		rules_put(c->r, parse_concat(c));
	while (!c->r->failed && cursor_take(c, "|"));
	return rules_collect(c->r, RULES_OR, since, at);
}

static void parse_rule(struct cursor *c)
{
	struct rules_span name = { (uint32_t)c->at, (uint32_t)name_length(c) };
	uint32_t rule;

	if (!at_definition(c)) {
		rules_fail(c->r, -EINVAL, c->at, "Expected a rule: name ::= ..");
		return;
	}
	c->at += name.n;
	cursor_blanks(c);
	if (cursor_peek(c, 0) == '[') {
		rules_fail(c->r, -ENOTSUP, c->at, "Options of a rule, as in '%.*s[..]', are not supported",
		           (int)name.n, c->s + name.at);
		return;
	}
	cursor_take(c, "::=");
	rule = rules_reserve(c->r, name, false);
	rules_begin(c->r);
	rules_define(c->r, rule, parse_or(c));
	if (!c->r->failed && cursor_peek(c, 0) == ')')
		rules_fail(c->r, -EINVAL, c->at, "This ')' closes nothing");
}

static void parse_rules(struct rules *r)
{
	struct cursor c = { .r = r, .s = r->text, .n = r->n_text };

	for (skip(&c); !r->failed && c.at < c.n; skip(&c))
		parse_rule(&c);
	rules_begin_with(r, "root");
}

int32_t ebnf_compile(struct grammar *g, const char *s, size_t n, struct grammar_error *e)
{
	bool lark = !memmem(s, n, "::=", 3);
	struct rules r;
	int32_t symbol = -1;

	rules_init(&r, g, s, n, e);
	r.before = lark ? "Grammar error: " : "Invalid grammar specification: ";
	if (!r.failed && (!utf8_valid(s, n) || memchr(s, 0, n)))
		rules_fail(&r, -EINVAL, 0, "A grammar is UTF-8 without NUL");
	if (!r.failed && lark)
		lark_parse(&r);
	else if (!r.failed)
		parse_rules(&r);
	if (!r.failed)
		symbol = rules_emit(&r);
	rules_free(&r);
	return symbol;
}
