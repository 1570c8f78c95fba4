/* tagged.c - the name of a call (NAMED, TAGGED, GEMMA), and arguments between markers, which become JSON as
 * they come (TAGGED).  The tool's schema says which of them are strings.
 */
#include <stdio.h>
#include <string.h>

#include "impl.h"

/* ---- names ---- */

/* functions.NAME:0 is the id and has the name. */
static void name_of_id(struct splitter *s)
{
	const char *prefix = s->c->format->prefix, *colon;
	size_t n = strlen(prefix);

	s->id.n = 0;
	bytes_add(s, &s->id, s->name.p, s->name.n);
	colon = memrchr(s->name.p, ':', s->name.n);
	if (colon)
		s->name.n = (size_t)(colon - s->name.p);
	if (s->name.n > n && !memcmp(s->name.p, prefix, n)) {
		s->name.n -= n;
		memmove(s->name.p, s->name.p + n, s->name.n);
	}
}

static void name_is_whole(struct splitter *s)
{
	while (s->name.n && strchr(" \t\r\n", s->name.p[s->name.n - 1]))
		s->name.n--;
	if (s->name.n && s->c->format->prefix)
		name_of_id(s);
	if (!s->name.n) {
		split_fail(s);
		return;
	}
	split_announce(s);
	s->at = 0;
	s->run = (struct json_run){ 0 };
	s->lit.depth = 0;
	s->lit.state = 0;
	s->lit.comma = s->lit.key = s->lit.escaped = false;
	s->lit.digits = 0;
	s->state = s->c->format->style == CALL_NAMED ? SPLIT_JSON :
		s->c->format->style == CALL_TAGGED ? SPLIT_TAGS : SPLIT_LITERAL;
}

/* Bytes before the first of the characters in `stop`. */
static size_t before(const char *p, size_t n, const char *stop)
{
	size_t i = 0;

	while (i < n && !strchr(stop, p[i]))
		i++;
	return i;
}

bool split_name(struct splitter *s)
{
	static const int ends[] = { M_NAME_END, M_ID, M_KEY, M_CALL_END }, of_id[] = { M_NAME_END };
	const struct call_format *f = s->c->format;
	struct bytes *b = s->at ? &s->id : &s->name;
	const bool named = f->style == CALL_NAMED, open = !s->c->mark[M_NAME_END].n;
	size_t n, k, stop, taken;
	const char *p;
	int which;

	if (!b->n)
		split_take(s, split_blanks(s));
	p = split_at(s, &n);
	if (!n)
		return false;
	if (!s->at && !b->n && f->list && (*p == '[' || *p == '{') && split_find(s, M_NAME_END) == FOUND_NO &&
	    split_find(s, M_ID) == FOUND_NO) {
		split_open(s, SPLIT_OBJECT);
		return true;
	}
	k = s->at ? split_until(s, of_id, 1, &which) : split_until(s, ends, named ? 2 : open ? 4 : 1, &which);
	stop = before(p, k, named ? "{" : !open ? "" : f->style == CALL_GEMMA ? "{" : "\n");
	taken = split_room(b, NAME_MOST, stop);
	bytes_add(s, b, p, taken);
	split_take(s, taken);
	if (b->n > NAME_MOST) {
		split_fail(s);
	} else if (stop < k) {                /* a character ends it */
		name_is_whole(s);
	} else if (which < 0) {
		return false;
	} else if (!s->at && ends[which] == M_ID) {
		split_take(s, s->c->mark[M_ID].n);
		s->at = 1;
	} else {
		if (which == 0)
			split_take(s, s->c->mark[M_NAME_END].n);
		name_is_whole(s);
	}
	return true;
}

/* ---- types of values ---- */

enum { IS_STRING = 1, IS_NUMBER = 2, IS_BOOLEAN = 4, IS_NULL = 8, IS_OBJECT = 16, IS_ARRAY = 32 };

static int type_named(const char *s)
{
	static const struct { const char *name; int type; } types[] = {
		{ "string", IS_STRING }, { "number", IS_NUMBER }, { "integer", IS_NUMBER },
		{ "boolean", IS_BOOLEAN }, { "null", IS_NULL }, { "object", IS_OBJECT }, { "array", IS_ARRAY },
	};

	for (size_t i = 0; s && i < sizeof(types) / sizeof(types[0]); i++)
		if (!strcmp(s, types[i].name))
			return types[i].type;
	return 0;
}

static int type_of_value(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_STRING: return IS_STRING;
	case JSON_INTEGER: case JSON_REAL: return IS_NUMBER;
	case JSON_TRUE: case JSON_FALSE: return IS_BOOLEAN;
	case JSON_NULL: return IS_NULL;
	case JSON_OBJECT: return IS_OBJECT;
	case JSON_ARRAY: return IS_ARRAY;
	}
	return 0;
}

/* "#/$defs/X" in the tool's schema. */
static json_t *referred(json_t *root, const char *ref)
{
	char key[NAME_MOST + 1];
	size_t n;

	if (!ref || *ref++ != '#')
		return NULL;
	while (root && *ref == '/') {
		n = strcspn(++ref, "/");
		snprintf(key, sizeof(key), "%.*s", (int)(n < NAME_MOST ? n : NAME_MOST), ref);
		root = json_object_get(root, key);
		ref += n;
	}
	return root;
}

/* The types that a schema allows; 0: it does not say. */
static int types(json_t *root, json_t *schema, int depth)
{
	static const char *const any[] = { "anyOf", "oneOf", "enum" };
	json_t *v = json_object_get(schema, "type"), *x;
	int all = type_named(json_string_value(v));
	size_t i, k;

	if (depth > 8)
		return 0;
	json_array_foreach(v, i, x)
		all |= type_named(json_string_value(x));
	if (all)
		return all;
	if ((v = json_object_get(schema, "const")))
		return type_of_value(v);
	for (k = 0; k < 3; k++) {
		v = json_object_get(schema, any[k]);
		json_array_foreach(v, i, x)
			all |= k < 2 ? types(root, x, depth + 1) : type_of_value(x);
	}
	if (all)
		return all;
	v = json_object_get(schema, "$ref");
	if (v)
		return types(root, referred(root, json_string_value(v)), depth + 1);
	return json_object_get(schema, "properties") ? IS_OBJECT : json_object_get(schema,
	  "items") ? IS_ARRAY : 0;
}

/* ---- arguments ---- */

void split_quoted(struct splitter *s, const char *p, size_t n)
{
	char code[8];
	size_t i, from = 0;

	if (!n)
		return;
	for (i = 0; i < n; i++) {
		if ((unsigned char)p[i] >= 32 && p[i] != '"' && p[i] != '\\')
			continue;
		split_args(s, p + from, i - from);
		from = i + 1;
		if (p[i] == '"' || p[i] == '\\')
			snprintf(code, sizeof(code), "\\%c", p[i]);
		else if (p[i] == '\n' || p[i] == '\t' || p[i] == '\r')
			snprintf(code, sizeof(code), "\\%c", p[i] == '\n' ? 'n' : p[i] == '\t' ? 't' : 'r');
		else
			snprintf(code, sizeof(code), "\\u%04x", (unsigned char)p[i]);
		split_args(s, code, strlen(code));
	}
	split_args(s, p + from, n - from);
}

enum { KEYS, KEY, OPEN, FIRST, VALUE };       /* of a call; FIRST: of a value */
enum { STRING, PASSED, HELD };                /* how a value is given: quoted, as it is, decided at its end */

void split_key(struct splitter *s)
{
	s->word.n = calls_plain(s->word.p, s->word.n);
	split_args(s, s->n_keys ? ", \"" : "{\"", s->n_keys ? 3 : 2);
	split_quoted(s, s->word.p, s->word.n);
	split_args(s, "\": ", 3);
	s->n_keys++;
}

/* The key is whole.  With a flag it is K" string="true. */
static void key_is_whole(struct splitter *s)
{
	static const char flag[] = "\" string=\"";
	json_t *property;
	char *at;
	int all = 0;

	if (s->c->format->flagged && (at = memmem(s->word.p, s->word.n, flag, sizeof(flag) - 1))) {
		all = s->word.n - (size_t)(at - s->word.p) >= sizeof(flag) + 3 && !memcmp(at + sizeof(flag) - 1,
		  "true", 4) ?
			IS_STRING : IS_NUMBER | IS_BOOLEAN | IS_NULL | IS_OBJECT | IS_ARRAY;
		s->word.n = (size_t)(at - s->word.p);
	}
	split_key(s);
	if (!all && bytes_add(s, &s->word, "", 1)) {
		property = json_object_get(json_object_get(s->parameters, "properties"), s->word.p);
		all = types(s->parameters, property, 0);
	}
	s->value = all ? all : IS_STRING;
	s->word.n = 0;
	s->newline = false;
	s->at = s->c->mark[M_VALUE].n ? OPEN : FIRST;
}

/* What a value that was held is. */
static void put_held(struct splitter *s, int all)
{
	static const struct { const char *python, *json; int type; } words[] = {
		{ "True", "true", IS_BOOLEAN }, { "False", "false", IS_BOOLEAN }, { "None", "null", IS_NULL } };
	size_t n, from = 0;
	const char *p;
	json_t *v;
	bool as_is;

	s->word.n = n = calls_plain(s->word.p, s->word.n);
	if (!n) {
		split_args(s, "\"\"", 2);
		return;
	}
	p = s->word.p;
	while (from < n && strchr(" \t\r\n", p[from]))
		from++;
	while (n > from && strchr(" \t\r\n", p[n - 1]))
		n--;
	v = json_loadb(p + from, n - from, JSON_DECODE_ANY, NULL);
	as_is = v ? !(all & IS_STRING) || (type_of_value(v) & all & ~IS_STRING) :
		(all & IS_NUMBER) && split_number(p + from, n - from); /* too large for jansson */
	json_decref(v);
	if (as_is) {
		split_args(s, p + from, n - from);
		return;
	}
	for (size_t i = 0; i < 3; i++)
		if (all & words[i].type && n - from == strlen(words[i].python) &&
		    !memcmp(p + from, words[i].python, n - from)) {
			split_args(s, words[i].json, strlen(words[i].json));
			return;
		}
	split_args(s, "\"", 1);
	split_quoted(s, p, s->word.n);
	split_args(s, "\"", 1);
}

/* A string's text.  Where line feeds at its ends are markup, the last one is held back. */
static void put_text(struct splitter *s, const char *p, size_t n)
{
	bool last = s->c->format->lines && n && p[n - 1] == '\n';

	if (!n)
		return;
	if (s->newline)
		split_args(s, "\\n", 2);
	split_quoted(s, p, n - last);
	s->newline = last;
}

static bool first(struct splitter *s)
{
	static const int end[] = { M_VALUE_END };
	size_t n;
	const char *p = split_at(s, &n);
	int which;

	if (s->c->format->lines && !s->newline && *p == '\n') {
		split_take(s, 1);
		s->newline = true;            /* one is taken */
		return true;
	}
	if (!split_until(s, end, 1, &which) && which < 0)
		return false;                 /* perhaps it is empty */
	s->newline = false;
	s->word.n = 0;
	if (s->value == IS_STRING) {
		split_args(s, "\"", 1);
		s->value = STRING | s->value << 8;
	} else {
		s->value = (!(s->value & IS_STRING) && (*p == '{' || *p == '[') ? PASSED : HELD) | s->value << 8;
	}
	s->at = VALUE;
	return true;
}

static bool value(struct splitter *s)
{
	static const int end[] = { M_VALUE_END };
	const int how = s->value & 255;
	size_t n, k;
	const char *p = split_at(s, &n);
	int which;

	k = split_until(s, end, 1, &which);
	if (how == STRING)
		put_text(s, p, k);
	else if (how == PASSED)
		split_args(s, p, k);
	else
		bytes_add(s, &s->word, p, k);
	split_take(s, k);
	if (which < 0)
		return false;
	split_take(s, s->c->mark[M_VALUE_END].n);
	if (how == STRING) {
		split_args(s, "\"", 1);
	} else if (how == HELD) {
		if (s->c->format->lines && s->word.n && s->word.p[s->word.n - 1] == '\n')
			s->word.n--;
		put_held(s, s->value >> 8);
	}
	s->newline = false;
	s->at = KEYS;
	return true;
}

/* Between two arguments. */
static bool keys(struct splitter *s)
{
	static const int m[] = { M_KEY, M_CALL_END, M_SECTION_END };

	for (int i = 0; i < 3; i++)
		switch (split_find(s, m[i])) {
		case FOUND_PART:
			return false;
		case FOUND_YES:
			if (m[i] == M_SECTION_END && !s->in_section)
				break;
			if (m[i] != M_SECTION_END)
				split_take(s, s->c->mark[m[i]].n);
			if (m[i] == M_KEY) {
				s->word.n = 0;
				s->at = KEY;
				return true;
			}
			split_args(s, s->n_keys ? "}" : "{}", s->n_keys ? 1 : 2);
			split_close(s);
			s->state = s->in_section ? SPLIT_SECTION : SPLIT_TEXT;
			return true;
		case FOUND_NO:
			break;
		}
	split_fail(s);
	return true;
}

bool split_tags(struct splitter *s)
{
	static const int key_end[] = { M_KEY_END };
	size_t n, k;
	const char *p;
	int which;

	if (s->at == KEYS || s->at == OPEN)
		split_take(s, split_blanks(s));
	p = split_at(s, &n);
	if (!n)
		return false;
	switch (s->at) {
	case KEYS:
		return keys(s);
	case KEY:
		k = split_room(&s->word, 2 * NAME_MOST, split_until(s, key_end, 1, &which));
		bytes_add(s, &s->word, p, k);
		split_take(s, k);
		if (s->word.n > 2 * NAME_MOST)
			split_fail(s);
		else if (which < 0)
			return false;
		else
			split_take(s, s->c->mark[M_KEY_END].n);
		if (s->in_call)
			key_is_whole(s);
		return true;
	case OPEN:
		switch (split_find(s, M_VALUE)) {
		case FOUND_PART: return false;
		case FOUND_NO: split_fail(s); return true;
		case FOUND_YES: break;
		}
		split_take(s, s->c->mark[M_VALUE].n);
		s->at = FIRST;
		return true;
	case FIRST:
		return first(s);
	default:
		return value(s);
	}
}
