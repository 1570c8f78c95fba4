/* literal.c - arguments in a notation of their own, which become JSON as they come: Python's literals, and
 * Gemma's, where keys are bare and strings stand between quotes of more than one character.
 */
#include <stdio.h>
#include <string.h>

#include "impl.h"

enum { VALUE, STRING, QUOTED, WORD, AFTER, KEY, COLON };          /* of a literal */
enum { MORE, DONE, WRONG };

#define PUT(s, text) split_args(s, text, sizeof(text) - 1)

static bool gemma(const struct splitter *s) { return s->c->format->style == CALL_GEMMA; }

static void take_blanks(struct splitter *s) { split_take(s, split_blanks(s)); }

/* ---- words ---- */

static bool digits(const char **p, const char *end)
{
	const char *from = *p;

	while (*p < end && **p >= '0' && **p <= '9')
		(*p)++;
	return *p > from;
}

bool split_number(const char *p, size_t n)
{
	const char *end = p + n, *from;

	p += n && *p == '-';
	from = p;
	if (!digits(&p, end) || (*from == '0' && p > from + 1))
		return false;
	if (p < end && *p == '.' && (p++, !digits(&p, end)))
		return false;
	if (p < end && (*p == 'e' || *p == 'E')) {
		p++;
		p += p < end && (*p == '+' || *p == '-');
		if (!digits(&p, end))
			return false;
	}
	return p == end;
}

static void put_word(struct splitter *s)
{
	static const char *const words[][2] = { { "True", "true" }, { "False", "false" }, { "None", "null" },
		{ "true", "true" }, { "false", "false" }, { "null", "null" } };
	struct bytes *w = &s->lit.word;

	w->n = calls_plain(w->p, w->n);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (w->n == strlen(words[i][0]) && !memcmp(w->p, words[i][0], w->n)) {
			split_args(s, words[i][1], strlen(words[i][1]));
			return;
		}
	if (split_number(w->p, w->n)) {
		split_args(s, w->p, w->n);
		return;
	}
	PUT(s, "\"");
	split_quoted(s, w->p, w->n);
	PUT(s, "\"");
}

/* ---- strings ---- */

static void put_code(struct splitter *s, uint32_t code)
{
	char json[16];

	if (code > 0xffff && code <= 0x10ffff)
		snprintf(json, sizeof(json), "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
		         0xdc00 + (code & 0x3ff));
	else
		snprintf(json, sizeof(json), "\\u%04x", code > 0x10ffff ? 0xfffd : code);
	split_args(s, json, strlen(json));
}

/* The character after a backslash. */
static void escaped(struct splitter *s, char c)
{
	static const char from[] = "ntrbf", to[] = "ntrbf";
	const char *at = strchr(from, c);
	char json[2] = { '\\', 0 };

	s->lit.escaped = false;
	s->lit.code = 0;
	if (c == 'x' || c == 'u' || c == 'U') {
		s->lit.digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
	} else if (c && at) {
		json[1] = to[at - from];
		split_args(s, json, 2);
	} else if (c == '\'' || c == '"' || c == '\\') {
		split_quoted(s, &c, 1);
	} else if (c != '\n') {               /* Python keeps a backslash that escapes nothing */
		split_quoted(s, "\\", 1);
		split_quoted(s, &c, 1);
	}
}

static int hexadecimal(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 :
		c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static int string_ends(struct splitter *s)
{
	struct literal *l = &s->lit;

	PUT(s, "\"");
	if (l->key) {
		l->key = false;
		l->state = COLON;
		return MORE;
	}
	l->state = AFTER;
	return l->depth ? MORE : DONE;
}

/* A piece of a Python string. */
static int string(struct splitter *s, const char *p, size_t n)
{
	struct literal *l = &s->lit;
	size_t k = 0;

	if (l->digits) {
		int v = hexadecimal(*p);

		if (v < 0)
			return WRONG;
		l->code = l->code << 4 | (uint32_t)v;
		if (!--l->digits)
			put_code(s, l->code);
		split_take(s, 1);
		return MORE;
	}
	if (l->escaped) {
		escaped(s, *p);
		split_take(s, 1);
		return MORE;
	}
	while (k < n && p[k] != '\\' && p[k] != l->quote)
		k++;
	split_quoted(s, p, k);
	split_take(s, k);
	if (k == n)
		return MORE;
	split_take(s, 1);
	if (p[k] == '\\') {
		l->escaped = true;
		return MORE;
	}
	return string_ends(s);
}

/* A piece of a string between M_QUOTE.  True: it made progress. */
static bool quoted(struct splitter *s, int *result)
{
	static const int end[] = { M_QUOTE };
	size_t n, k;
	const char *p = split_at(s, &n);
	int which;

	k = split_until(s, end, 1, &which);
	split_quoted(s, p, k);
	split_take(s, k);
	if (which < 0)
		return k > 0;
	split_take(s, s->c->mark[M_QUOTE].n);
	*result = string_ends(s);
	return true;
}

/* ---- brackets ---- */

static bool opens(struct splitter *s, char c)
{
	struct literal *l = &s->lit;

	if (l->depth == DEPTH_MOST)
		return false;
	l->closer[l->depth++] = c == '{' ? '}' : c == '[' ? ']' : ')';
	split_args(s, c == '{' ? "{" : "[", 1);
	l->state = c == '{' ? KEY : VALUE;
	l->comma = false;
	split_take(s, 1);
	return true;
}

static int closes(struct splitter *s)
{
	struct literal *l = &s->lit;

	split_args(s, l->closer[--l->depth] == '}' ? "}" : "]", 1);
	l->state = AFTER;
	l->comma = false;
	split_take(s, 1);
	return l->depth ? MORE : DONE;
}

static void comma_due(struct splitter *s)
{
	if (s->lit.comma)
		PUT(s, ", ");
	s->lit.comma = false;
}

/* A value or key begins.  *part: its first marker is not whole. */
static int begins(struct splitter *s, char c, bool *part)
{
	struct literal *l = &s->lit;
	const bool key = l->state == KEY;

	if (l->depth && c == l->closer[l->depth - 1])
		return key || c != '}' ? closes(s) : WRONG;
	switch (split_find(s, M_QUOTE)) {
	case FOUND_PART:
		*part = true;
		return MORE;
	case FOUND_YES:
		comma_due(s);
		PUT(s, "\"");
		split_take(s, s->c->mark[M_QUOTE].n);
		l->key = key;
		l->state = QUOTED;
		return MORE;
	case FOUND_NO:
		break;
	}
	if (!key && (c == '[' || c == '{' || (c == '(' && !gemma(s)))) {
		comma_due(s);
		return opens(s, c) ? MORE : WRONG;
	}
	if ((c == '"' || c == '\'') && !gemma(s)) {
		comma_due(s);
		PUT(s, "\"");
		l->quote = c;
		l->key = key;
		l->state = STRING;
		split_take(s, 1);
		return MORE;
	}
	if (strchr(",:=)]}", c))
		return WRONG;
	comma_due(s);
	l->key = key;
	l->word.n = 0;
	l->state = WORD;
	return MORE;
}

static int word(struct splitter *s, const char *p, size_t n)
{
	struct literal *l = &s->lit;
	const char *stop = l->key ? ":" : ",]})";
	size_t k = 0;

	n = split_room(&l->word, NAME_MOST, n);
	while (k < n && !strchr(stop, p[k]))
		k++;
	bytes_add(s, &l->word, p, k);
	split_take(s, k);
	if (l->word.n > NAME_MOST)
		return WRONG;
	if (k == n)
		return MORE;
	while (l->word.n && strchr(" \t\r\n", l->word.p[l->word.n - 1]))
		l->word.n--;
	if (!l->word.n)
		return WRONG;
	if (!l->key) {
		put_word(s);
		l->state = AFTER;
		return l->depth ? MORE : DONE;
	}
	PUT(s, "\"");
	l->word.n = calls_plain(l->word.p, l->word.n);
	split_quoted(s, l->word.p, l->word.n);
	return string_ends(s);
}

static int after(struct splitter *s, char c)
{
	struct literal *l = &s->lit;

	if (c == l->closer[l->depth - 1])
		return closes(s);
	if (c != ',')
		return WRONG;
	split_take(s, 1);
	l->comma = true;
	l->state = l->closer[l->depth - 1] == '}' ? KEY : VALUE;
	return MORE;
}

/* Translate up to the end of the value. */
static int translate(struct splitter *s)
{
	struct literal *l = &s->lit;
	int result = MORE;
	bool part = false;
	const char *p;
	size_t n;

	while (result == MORE && !part) {
		if (l->state == VALUE || l->state == AFTER || l->state == KEY || l->state == COLON)
			take_blanks(s);
		p = split_at(s, &n);
		if (!n)
			return MORE;
		switch (l->state) {
		case STRING: result = string(s, p, n); break;
		case QUOTED: part = !quoted(s, &result); break;
		case WORD: result = word(s, p, n); break;
		case AFTER: result = after(s, *p); break;
		case COLON:
			if (*p != ':')
				return WRONG;
			split_take(s, 1);
			PUT(s, ": ");
			l->state = VALUE;
			break;
		default: result = begins(s, *p, &part);
		}
	}
	return result;
}

/* ---- calls ---- */

enum { FIRST, NAME, ARGUMENT, EQUALS, ARGUMENT_VALUE, NEXT };     /* of Python's calls */

static bool in_name(char c)
{
	return c == '_' || c == '.' || c == '-' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
		(c >= 'A' && c <= 'Z');
}

/* A name and the character after it.  False: it needs more, or failed. */
static bool name(struct splitter *s, struct bytes *b, char after_it)
{
	size_t n, k = 0;
	const char *p = split_at(s, &n);

	n = split_room(b, NAME_MOST, n);
	while (k < n && in_name(p[k]))
		k++;
	bytes_add(s, b, p, k);
	split_take(s, k);
	if (b->n > NAME_MOST || (k < n && (!b->n || p[k] != after_it || (b->p[0] >= '0' && b->p[0] <= '9')))) {
		split_fail(s);
		return false;
	}
	if (k == n)
		return false;
	split_take(s, 1);
	return true;
}

/* Between two calls, or at the end of them. */
static void next(struct splitter *s, char c)
{
	if (c == ',' || c == ';') {
		split_take(s, 1);
		s->at = NAME;
	} else if (c == ']' && s->in_list) {
		split_take(s, 1);
		split_close(s);
	} else if (!s->in_list && in_name(c)) {
		s->at = NAME;
	} else {
		split_close(s);
	}
	if (s->at == NAME && s->state == SPLIT_LITERAL)
		s->name.n = 0;
}

static void argument(struct splitter *s, char c)
{
	if (c == ')') {
		split_take(s, 1);
		split_args(s, s->n_keys ? "}" : "{}", s->n_keys ? 1 : 2);
		s->in_call = false;
		s->fresh = true;
		s->at = NEXT;
	} else if (c == ',' && s->n_keys) {
		split_take(s, 1);
	} else {
		s->word.n = 0;
		s->at = EQUALS;
	}
}

static void value_begins(struct splitter *s)
{
	split_key(s);
	s->lit.depth = 0;
	s->lit.state = VALUE;
	s->lit.comma = s->lit.key = s->lit.escaped = false;
	s->lit.digits = 0;
	s->at = ARGUMENT_VALUE;
}

/* After split_fail() the state is another. */
static bool python(struct splitter *s, char c)
{
	switch (s->at) {
	case FIRST:
		if (c == '[') {
			split_take(s, 1);
			s->in_list = true;
		}
		s->at = NAME;
		return true;
	case NAME:
		if (!name(s, &s->name, '('))
			return s->state != SPLIT_LITERAL;
		split_announce(s);
		s->n_keys = 0;
		s->at = ARGUMENT;
		return true;
	case ARGUMENT:
		argument(s, c);
		return true;
	case EQUALS:
		if (!name(s, &s->word, '='))
			return s->state != SPLIT_LITERAL;
		value_begins(s);
		return true;
	case ARGUMENT_VALUE:
		switch (translate(s)) {
		case MORE: return false;
		case WRONG: split_fail(s); return true;
		default: s->at = ARGUMENT; return true;
		}
	default:
		next(s, c);
		return true;
	}
}

bool split_literal(struct splitter *s)
{
	const bool blanks = !gemma(s) && s->at != ARGUMENT_VALUE && !(s->at == NAME && s->name.n) &&
		!(s->at == EQUALS && s->word.n);
	size_t n;
	const char *p;

	if (blanks)
		take_blanks(s);
	p = split_at(s, &n);
	if (!n)
		return false;
	if (!gemma(s))
		return python(s, *p);
	switch (translate(s)) {
	case MORE:
		return false;
	case WRONG:
		split_fail(s);
		return true;
	default:
		split_close(s);
		return true;
	}
}
