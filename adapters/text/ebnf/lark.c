/* lark.c - the common part of Lark: rules `name: ..`, terminals `NAME: ..`, and %import, %ignore, %json.
 *
 * A definition ends with its line, unless parentheses are open or the next line begins with |.  What %ignore
 * names may follow each terminal of a rule; it stands before the first one only with allow_initial_skip, as
 * in llguidance.  What only shapes a parse tree (?rule, !rule, -> alias, priorities) has no effect.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text_json.h"
#include "cursor.h"
#include "ebnf.h"
#include "adapters/text/grammar/pattern.h"
#include "adapters/text/schema/schema.h"

struct lark {
	struct cursor c;
	bool terminal;                   /* the definition is of a terminal */
	uint32_t ignore;                 /* the rule of what %ignore names, repeated */
	uint32_t ignored[64], n_ignored; /* rules */
	bool skip_first;                 /* allow_initial_skip */
};

static uint32_t parse_or(struct lark *l);

/* Lark's own library; a name with * is long free text. */
static const struct {
	const char *name, *pattern;
} common[] = {
	{ "DIGIT", "[0-9]" },
	{ "HEXDIGIT", "[0-9a-fA-F]" },
	{ "INT", "[0-9]+" },
	{ "SIGNED_INT", "[+-]?[0-9]+" },
	{ "DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+" },
	{ "_EXP", "[eE][+-]?[0-9]+" },
	{ "FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
	{ "SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
	{ "NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?" },
	{ "SIGNED_NUMBER", "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)" },
	{ "ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\"" },
	{ "LCASE_LETTER", "[a-z]" },
	{ "UCASE_LETTER", "[A-Z]" },
	{ "LETTER", "[a-zA-Z]" },
	{ "WORD", "[a-zA-Z]+" },
	{ "CNAME", "[a-zA-Z_][a-zA-Z0-9_]*" },
	{ "WS_INLINE", "[ \\t]+" },
	{ "WS", "[ \\t\\f\\r\\n]+" },
	{ "CR", "\\r" },
	{ "LF", "\\n" },
	{ "NEWLINE", "(\\r?\\n)+" },
	{ "SH_COMMENT", "#[^\\n]*" },
	{ "CPP_COMMENT", "//[^\\n]*" },
	{ "C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/" },
	{ "SQL_COMMENT", "--[^\\n]*" },
};

static bool fail(struct lark *l, int code, size_t at, const char *what)
{
	rules_fail(l->c.r, code, at, "%s", what);
	return false;
}

/* ---- words -------------------------------------------------------------------------------- */

static bool is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static struct rules_span read_name(struct cursor *c)
{
	struct rules_span name = { (uint32_t)c->at, 0 };
	char d;

	for (d = cursor_peek(c, 0); is_name(d) || (name.n && ((d >= '0' && d <= '9') || d == '-'));
	     d = cursor_peek(c, 0)) {
		if (d == '-' && cursor_peek(c, 1) == '>')
			break;
		c->at++;
		name.n++;
	}
	return name;
}

static bool is_terminal(const struct cursor *c, struct rules_span name)
{
	uint32_t i = 0;

	while (i < name.n && c->s[name.at + i] == '_')
		i++;
	return i < name.n && c->s[name.at + i] >= 'A' && c->s[name.at + i] <= 'Z';
}

static void skip_comment(struct cursor *c)
{
	if (cursor_peek(c, 0) == '#' || (cursor_peek(c, 0) == '/' && cursor_peek(c, 1) == '/'))
		while (c->at < c->n && c->s[c->at] != '\n')
			c->at++;
}

static void skip_lines(struct cursor *c)
{
	for (;; c->at++) {
		skip_comment(c);
		if (!cursor_peek(c, 0) || !strchr(" \t\r\n", cursor_peek(c, 0)))
			return;
	}
}

/* Blanks; lines too within parentheses, and where the next line goes on with |. */
static void skip(struct lark *l)
{
	struct cursor k;

	if (l->c.depth) {
		skip_lines(&l->c);
		return;
	}
	while (cursor_peek(&l->c, 0) && strchr(" \t\r", cursor_peek(&l->c, 0)))
		l->c.at++;
	skip_comment(&l->c);
	if (cursor_peek(&l->c, 0) != '\n')
		return;
	k = l->c;
	skip_lines(&k);
	if (cursor_peek(&k, 0) == '|')
		l->c = k;
}

/* ---- parts -------------------------------------------------------------------------------- */

static uint32_t expr_of(struct lark *l, const char *pattern, size_t n, size_t at)
{
	struct grammar_error e = { 0 };
	uint32_t expr = pattern_parse(grammar_regexes(l->c.r->g), pattern, n, 0, &e);

	if (expr == REGEX_FAILED)
		rules_fail(l->c.r, e.code ? e.code : -E2BIG, at, "Invalid regex: %s", e.message);
	return expr;
}

/* Is a repetition of nearly any character in it?  A guess, which changes the speed only. */
static uint32_t weight_of(const char *s, size_t n)
{
	bool wide =
		memmem(s, n, "[^", 2) || memchr(s, '.', n) || memmem(s, n, "\\S", 2) || memmem(s, n, "\\W", 2);

	return wide && (memchr(s, '*', n) || memchr(s, '+', n) || memchr(s, '{', n));
}

/* /pattern/flags with the cursor at the first slash. */
static uint32_t parse_regex(struct lark *l)
{
	struct cursor *c = &l->c;
	size_t at = c->at, end = at + 1;
	char flags[4] = "", *with;
	uint32_t expr;
	size_t k = 0, n;

	for (; end < c->n && c->s[end] != '/' && c->s[end] != '\n'; end++)
		end += c->s[end] == '\\';
	if (end >= c->n || c->s[end] != '/')
		return (uint32_t)fail(l, -EINVAL, at, "The regex that begins here has no '/' at its end");
	for (c->at = end + 1; cursor_peek(c, 0) && strchr("imsluxU", cursor_peek(c, 0)); c->at++) {
		if (!strchr("isu", cursor_peek(c, 0)))
			return (uint32_t)fail(l, -ENOTSUP, c->at, "Of a regex's flags i, s and u are supported");
		if (cursor_peek(c, 0) != 'u' && !strchr(flags, cursor_peek(c, 0)))
			flags[k++] = cursor_peek(c, 0);
	}
	n = end - at - 1;
	with = malloc(n + 16);
	if (!with)
		return (uint32_t)fail(l, -ENOMEM, at, "There is not enough memory for the grammar");
	n = (size_t)sprintf(with, k ? "(?%s:" : "%s", flags);
	memcpy(with + n, c->s + at + 1, end - at - 1);
	n += end - at - 1;
	if (k)
		with[n++] = ')';
	expr = expr_of(l, with, n, at);
	k = weight_of(with, n);
	free(with);
	return rules_expr(l->c.r, l->c.r->failed ? 0 : expr, (uint32_t)k);
}

/* "text", "text"i or "a".."z". */
static uint32_t parse_string(struct lark *l)
{
	struct cursor *c = &l->c;
	struct cursor k = *c;
	uint32_t one, last, expr;
	size_t at = c->at;

	for (k.at++; cursor_peek(&k, 0) && cursor_peek(&k, 0) != '"' && cursor_peek(&k, 0) != '\n'; k.at++)
		k.at += cursor_peek(&k, 0) == '\\';
	expr = cursor_string(c, cursor_peek(&k, 1) == 'i', &one);
	c->at += cursor_peek(&k, 1) == 'i';
	if (c->r->failed || cursor_peek(c, 0) != '.' || cursor_peek(c, 1) != '.')
		return rules_expr(c->r, expr, 0);
	c->at += 2;
	if (cursor_peek(c, 0) != '"')
		return (uint32_t)fail(l, -EINVAL, c->at,
		                      "Expected the last character of the range, as in \"a\"..\"z\"");
	cursor_string(c, false, &last);
	if (!c->r->failed && (one == UINT32_MAX || last == UINT32_MAX || last < one))
		return (uint32_t)fail(l, -EINVAL, at,
		                      "A range is of two characters in their order, as in \"a\"..\"z\"");
	return c->r->failed ? 0 : cursor_range(c, one, last);
}

/* The JSON object at the cursor, which moves behind it.  NULL after an error. */
static json_t *read_json(struct lark *l)
{
	struct cursor *c = &l->c;
	size_t at = c->at, end = at, depth = 0, left = TEXT_JSON_VALUES;
	bool quoted = false;
	json_t *out = NULL;
	json_error_t e;

	for (; end < c->n; end++) {
		if (c->s[end] == '\\' && quoted)
			end++;
		else if (c->s[end] == '"')
			quoted = !quoted;
		else if (!quoted && (c->s[end] == '{' || c->s[end] == '['))
			depth++;
		else if (!quoted && (c->s[end] == '}' || c->s[end] == ']') && !--depth)
			break;
	}
	if (c->n - at < 2 || c->s[at] != '{' || end >= c->n)
		fail(l, -EINVAL, at, "Expected a JSON object");
	else if (text_json_read(&out, c->s + at, end + 1 - at, &left, &e))
		rules_fail(c->r, -EINVAL, at, "Not valid JSON: %s", e.text);
	c->at = end < c->n ? end + 1 : c->n;
	return out;
}

static uint32_t parse_json(struct lark *l)
{
	struct grammar_error e = { 0 };
	size_t at = l->c.at;
	int32_t symbol = -1;
	json_t *schema;

	cursor_blanks(&l->c);
	schema = read_json(l);
	if (schema)
		symbol = schema_compile(l->c.r->g, schema, "#", &e);
	json_decref(schema);
	if (symbol >= 0 && *e.message)
		*l->c.r->error = e;              /* lenient: what is not enforced */
	if (!l->c.r->failed && symbol < 0)
		rules_fail(l->c.r, e.code ? e.code : -E2BIG, at, "%s", e.message);
	return l->c.r->failed ? 0 : rules_symbol(l->c.r, symbol);
}

/* A part of a rule that is text is followed by what is ignored. */
static uint32_t with_ignored(struct lark *l, uint32_t node)
{
	uint32_t since = l->c.r->n_waiting;

	if (l->terminal || l->c.r->failed)
		return node;
	rules_put(l->c.r, node);
	rules_put(l->c.r, rules_call(l->c.r, l->ignore));
	return rules_collect(l->c.r, RULES_CONCAT, since, l->c.at);
}

static uint32_t parse_group(struct lark *l, const char *close)
{
	uint32_t node;

	if (++l->c.depth > RULES_DEPTH)
		fail(l, -E2BIG, l->c.at, "Parentheses nest too deeply");
	node = parse_or(l);
	if (!l->c.r->failed && !cursor_take(&l->c, close))
		rules_fail(l->c.r, -EINVAL, l->c.at, "Expected '%s'", close);
	l->c.depth--;
	return *close == ']' ? rules_repeat(l->c.r, node, 0, 1) : node;
}

static uint32_t parse_primary(struct lark *l)
{
	struct cursor *c = &l->c;
	struct rules_span name = read_name(c);
	size_t at = c->at;

	if (name.n && cursor_peek(c, 0) == '{')
		for (size_t k = 1; k < 3; k++)
			if (is_name(cursor_peek(c, k)) || cursor_peek(c, k) == '"')
				return (uint32_t)fail(l, -ENOTSUP, name.at, "Templates are not supported");
	if (name.n)
		return is_terminal(c, name) ? with_ignored(l, rules_name(c->r, name)) : rules_name(c->r, name);
	if (cursor_peek(c, 0) == '"')
		return with_ignored(l, parse_string(l));
	if (cursor_peek(c, 0) == '/')
		return with_ignored(l, parse_regex(l));
	if (cursor_take(c, "("))
		return parse_group(l, ")");
	if (cursor_take(c, "["))
		return parse_group(l, "]");
	if (cursor_take(c, "%json"))
		return with_ignored(l, parse_json(l));
	if (cursor_peek(c, 0) == '<')
		return with_ignored(l, cursor_token(c, false));
	if (cursor_peek(c, 0) == '%' || cursor_peek(c, 0) == '@')
		return (uint32_t)fail(l, -ENOTSUP, at, "Of the directives within a rule only %json is supported");
	return (uint32_t)fail(l, -EINVAL, at,
	                      at < c->n ? "Expected a name, a string, a /regex/ or '('" : "Unexpected end");
}

/* ~3 or ~2..5, with the cursor behind the tilde. */
static bool read_times(struct lark *l, uint32_t *min, uint32_t *max)
{
	size_t at = l->c.at;

	cursor_blanks(&l->c);
	if (!cursor_number(&l->c, min))
		return false;
	*max = *min;
	cursor_blanks(&l->c);
	if (cursor_take(&l->c, "..") && !cursor_number(&l->c, max))
		return false;
	return *min <= *max || fail(l, -EINVAL, at, "The count ends before it begins");
}

static bool is_count(const struct cursor *c)
{
	size_t k = 1;

	while (cursor_peek(c, k) == ' ')
		k++;
	return cursor_peek(c, k) >= '0' && cursor_peek(c, k) <= '9';
}

static uint32_t parse_item(struct lark *l)
{
	struct cursor *c = &l->c;
	size_t at = c->at;
	bool negated = cursor_peek(c, 0) == '~';
	uint32_t node, min, max;

	if (negated) {
		c->at++;
		cursor_blanks(c);
	}
	node = parse_primary(l);
	while (!c->r->failed) {
		cursor_blanks(c);
		if (cursor_take(c, "*"))
			node = rules_repeat(c->r, node, 0, RULES_MANY);
		else if (cursor_take(c, "+"))
			node = rules_repeat(c->r, node, 1, RULES_MANY);
		else if (cursor_take(c, "?"))
			node = rules_repeat(c->r, node, 0, 1);
		else if (cursor_peek(c, 0) == '{' && (c->at++, cursor_bounds(c, &min, &max)))
			node = rules_repeat(c->r, node, min, max);
		else if (cursor_peek(c, 0) == '~' && is_count(c) && (c->at++, read_times(l, &min, &max)))
			node = rules_repeat(c->r, node, min, max);
		else
			break;
	}
	if (!negated || c->r->failed)
		return node;
	if (!l->terminal)
		return (uint32_t)fail(l, -ENOTSUP, at,
		                      "'~' and '&' combine terminals: use them in a terminal's definition");
	return rules_not(c->r, node, at);
}

static uint32_t parse_concat(struct lark *l)
{
	uint32_t since = l->c.r->n_waiting;
	size_t at = l->c.at;

	for (skip(l); !l->c.r->failed && l->c.at < l->c.n; skip(l)) {
		if (strchr("|)]&\n", cursor_peek(&l->c, 0)) ||
		    (cursor_peek(&l->c, 0) == '-' && cursor_peek(&l->c, 1) == '>'))
			break;
		rules_put(l->c.r, parse_item(l));
	}
	return rules_collect(l->c.r, RULES_CONCAT, since, at);
}

static uint32_t parse_and(struct lark *l)
{
	uint32_t since = l->c.r->n_waiting;
	size_t at;

	skip(l);
	at = l->c.at;
	rules_put(l->c.r, parse_concat(l));
	while (!l->c.r->failed && cursor_take(&l->c, "&")) {
		if (!l->terminal)
			fail(l, -ENOTSUP, l->c.at - 1,
			     "'~' and '&' combine terminals: use them in a terminal's definition");
		else
			rules_put(l->c.r, parse_concat(l));
	}
	return rules_collect(l->c.r, RULES_AND, since, at);
}

static uint32_t parse_or(struct lark *l)
{
	uint32_t since = l->c.r->n_waiting;
	size_t at = l->c.at;

	do {
		rules_put(l->c.r, parse_and(l));
		if (cursor_take(&l->c, "->")) {
			cursor_blanks(&l->c);
			if (!read_name(&l->c).n)
				fail(l, -EINVAL, l->c.at, "Expected a name after '->'");
			skip(l);
		}
	} while (!l->c.r->failed && cursor_take(&l->c, "|"));
	return rules_collect(l->c.r, RULES_OR, since, at);
}

/* ---- statements --------------------------------------------------------------------------- */

static void end_line(struct lark *l)
{
	struct cursor *c = &l->c;

	while (cursor_peek(c, 0) && strchr(" \t\r", cursor_peek(c, 0)))
		c->at++;
	skip_comment(c);
	if (!c->r->failed && c->at < c->n && cursor_peek(c, 0) != '\n')
		rules_fail(c->r, -EINVAL, c->at, "Expected the end of the line, found '%c'", cursor_peek(c, 0));
}

/* llguidance's options of a rule, `name[capture]: ..`.  A capture names a part for the program that reads the
 * answer; the others would change the answer. */
static void skip_options(struct lark *l)
{
	struct cursor *c = &l->c;

	if (!cursor_take(c, "["))
		return;
	do {
		struct rules_span name;
		uint32_t one;
		size_t at;

		cursor_blanks(c);
		at = c->at;
		name = read_name(c);
		if (!c->r->failed && (name.n != 7 || memcmp(c->s + name.at, "capture", 7)))
			rules_fail(c->r, -ENOTSUP, at, "Of the options of a rule only 'capture' is supported");
		cursor_blanks(c);
		if (!c->r->failed && cursor_take(c, "=")) {
			cursor_blanks(c);
			if (cursor_peek(c, 0) != '"')
				fail(l, -EINVAL, c->at, "Expected the name of the capture in quotes");
			else
				cursor_string(c, false, &one);
			cursor_blanks(c);
		}
	} while (!c->r->failed && cursor_take(c, ","));
	if (!c->r->failed && !cursor_take(c, "]"))
		fail(l, -EINVAL, c->at, "Expected ',' or ']' after an option of the rule");
	cursor_blanks(c);
}

static void parse_definition(struct lark *l)
{
	struct cursor *c = &l->c;
	struct rules_span name;
	uint32_t rule, ignored;

	while (cursor_peek(c, 0) == '?' || cursor_peek(c, 0) == '!')
		c->at++;
	name = read_name(c);
	if (!name.n) {
		fail(l, -EINVAL, c->at, "Expected a rule, a terminal or a directive");
		return;
	}
	if (cursor_take(c, "."))
		cursor_number(c, &ignored);
	cursor_blanks(c);
	if (cursor_peek(c, 0) == '{') {
		fail(l, -ENOTSUP, c->at, "Templates are not supported");
		return;
	}
	skip_options(l);
	if (!c->r->failed && !cursor_take(c, ":"))
		fail(l, -EINVAL, c->at, "Expected ':' after the name");
	l->terminal = is_terminal(c, name);
	rule = rules_reserve(c->r, name, l->terminal);
	rules_begin(c->r);
	rules_define(c->r, rule, parse_or(l));
	end_line(l);
}

static void define_common(struct lark *l, struct rules_span from, struct rules_span as)
{
	struct rules *r = l->c.r;
	const char *pattern = NULL;
	uint32_t rule, expr;

	for (size_t i = 0; i < sizeof(common) / sizeof(*common); i++)
		if (strlen(common[i].name) == from.n && !memcmp(common[i].name, l->c.s + from.at, from.n))
			pattern = common[i].pattern;
	if (!pattern) {
		rules_fail(r, -EINVAL, from.at, "The library 'common' has no '%.*s'", (int)from.n, l->c.s + from.at);
		return;
	}
	expr = expr_of(l, pattern, strlen(pattern), from.at);
	rule = rules_reserve(r, as, true);
	rules_begin(r);
	rules_define(r, rule, r->failed ? 0 : rules_expr(r, expr, weight_of(pattern, strlen(pattern))));
}

/* %import common.INT, common.INT -> N, or common (INT, WS). */
static void parse_import(struct lark *l)
{
	struct cursor *c = &l->c;
	struct rules_span name, as;
	bool list = false;

	cursor_blanks(c);
	if (!cursor_take(c, "common")) {
		fail(l, -ENOTSUP, c->at, "Only the library 'common' can be imported");
		return;
	}
	cursor_blanks(c);
	if (!cursor_take(c, ".") && !(list = cursor_take(c, "("))) {
		fail(l, -EINVAL, c->at, "Expected '.' or '(' after 'common'");
		return;
	}
	do {
		cursor_blanks(c);
		name = as = read_name(c);
		cursor_blanks(c);
		if (cursor_take(c, "->")) {
			cursor_blanks(c);
			as = read_name(c);
		}
		define_common(l, name, as);
		cursor_blanks(c);
	} while (!c->r->failed && list && cursor_take(c, ","));
	if (list && !c->r->failed && !cursor_take(c, ")"))
		fail(l, -EINVAL, c->at, "Expected ')'");
	end_line(l);
}

static void parse_ignore(struct lark *l)
{
	struct rules_span none = { 0, 0 };
	uint32_t rule = rules_reserve(l->c.r, none, true);

	if (l->n_ignored == sizeof(l->ignored) / sizeof(*l->ignored)) {
		fail(l, -E2BIG, l->c.at, "There are at most 64 %ignore directives");
		return;
	}
	l->terminal = true;
	rules_begin(l->c.r);
	rules_define(l->c.r, rule, parse_or(l));
	l->ignored[l->n_ignored++] = rule;
	end_line(l);
}

static void parse_options(struct lark *l)
{
	size_t at = l->c.at;
	const char *key;
	json_t *o, *v;

	cursor_blanks(&l->c);
	o = read_json(l);
	json_object_foreach(o, key, v) {
		if (!strcmp(key, "allow_initial_skip") && json_is_boolean(v))
			l->skip_first = json_is_true(v);
		else
			rules_fail(l->c.r, -ENOTSUP, at, "The option '%.80s' is not supported", key);
	}
	json_decref(o);
	end_line(l);
}

static void parse_statement(struct lark *l)
{
	if (cursor_take(&l->c, "%import"))
		parse_import(l);
	else if (cursor_take(&l->c, "%ignore"))
		parse_ignore(l);
	else if (cursor_take(&l->c, "%llguidance") || cursor_take(&l->c, "%grammar_options"))
		parse_options(l);
	else if (cursor_peek(&l->c, 0) == '%')
		fail(l, -ENOTSUP, l->c.at, "Of the directives %import, %ignore and %grammar_options are supported");
	else
		parse_definition(l);
}

/* What is ignored, any number of times. */
static void define_ignored(struct lark *l)
{
	struct rules *r = l->c.r;
	uint32_t since = r->n_waiting;

	rules_begin(r);
	for (uint32_t i = 0; i < l->n_ignored; i++)
		rules_put(r, rules_call(r, l->ignored[i]));
	rules_define(r, l->ignore, rules_repeat(r, rules_collect(r, RULES_OR, since, 0), 0, RULES_MANY));
}

static void skip_before_start(struct lark *l)
{
	struct rules *r = l->c.r;
	struct rules_span none = { 0, 0 };
	uint32_t since = r->n_waiting, rule = rules_reserve(r, none, false);

	rules_begin(r);
	rules_put(r, rules_call(r, l->ignore));
	rules_put(r, rules_call(r, r->start));
	rules_define(r, rule, rules_collect(r, RULES_CONCAT, since, 0));
	r->start = rule;
}

int lark_parse(struct rules *r)
{
	struct lark l = { .c = { .r = r, .s = r->text, .n = r->n_text } };
	struct rules_span none = { 0, 0 };

	l.ignore = rules_reserve(r, none, true);
	for (skip_lines(&l.c); !r->failed && l.c.at < l.c.n; skip_lines(&l.c))
		parse_statement(&l);
	define_ignored(&l);
	rules_begin_with(r, "start");
	if (l.skip_first && !r->failed)
		skip_before_start(&l);
	return r->failed ? -1 : 0;
}
