/* json.c - calls whose arguments are JSON, which is passed on as it comes: objects with name and arguments
 * (OBJECT), and the JSON after a name (NAMED).
 */
#include <string.h>

#include "impl.h"

/* Read as much of p[0..n) as belongs to the value.  A number or word ends before what cannot be in it. */
size_t json_run(struct json_run *r, const char *p, size_t n)
{
	size_t i;

	for (i = 0; i < n && !r->done; i++) {
		char c = p[i];

		if (r->string) {
			if (r->escape)
				r->escape = false;
			else if (c == '\\')
				r->escape = true;
			else if (c == '"')
				r->string = false;
			r->done = !r->string && !r->depth;
			continue;
		}
		if (r->word && !r->depth && (strchr(",]} \t\r\n<", c) || (unsigned char)c > 0x7e)) {
			r->done = true;
			return i;
		}
		r->begun = true;
		if (c == '"')
			r->string = true;
		else if (c == '{' || c == '[')
			r->depth++;
		else if ((c == '}' || c == ']') && r->depth)
			r->done = !--r->depth;
		else if (!r->depth)
			r->word = true;
	}
	return i;
}

/* A JSON string becomes its value. */
static bool decode(struct splitter *s, struct bytes *b)
{
	json_t *v = json_loadb(b->p, b->n, JSON_DECODE_ANY, NULL);
	bool ok = json_is_string(v) && json_string_length(v) <= NAME_MOST;

	b->n = 0;
	if (ok)
		ok = bytes_add(s, b, json_string_value(v), json_string_length(v));
	json_decref(v);
	return ok;
}

enum { OPEN, KEY, COLON, VALUE, NAME, ID, ARGS, OTHER, COMMA };   /* in an object */

static void collect(struct splitter *s, struct bytes *b)
{
	size_t n, k;
	const char *p = split_at(s, &n);

	k = json_run(&s->run, p, split_room(b, 6 * NAME_MOST + 2, n));
	bytes_add(s, b, p, k);
	split_take(s, k);
}

static bool is(const struct bytes *b, const char *name)
{
	return name && b->n == strlen(name) && !memcmp(b->p, name, b->n);
}

/* What a member is, from its key. */
static void member(struct splitter *s)
{
	const struct call_format *f = s->c->format;
	size_t n;
	const char *p = split_at(s, &n);

	s->run = (struct json_run){ 0 };
	if (!*f->name_field) {                /* the key is the name */
		if (!bytes_add(s, &s->name, s->word.p, s->word.n))
			return;
		split_announce(s);
		s->at = ARGS;
	} else if (is(&s->word, f->name_field)) {
		s->name.n = 0;
		s->at = NAME;
	} else if (is(&s->word, f->args_field) || is(&s->word, "arguments") || is(&s->word, "parameters")) {
		s->at = ARGS;
	} else if (is(&s->word, "id") || is(&s->word, "tool_call_id")) {
		s->id.n = 0;
		s->at = ID;
	} else if (is(&s->word, "function") && *p == '{') {
		s->nested++;
		split_take(s, 1);
		s->at = KEY;
	} else if (f->bare && !s->in_call && !s->name.n && !is(&s->word, "type")) {
		split_fail(s);                /* some other JSON */
	} else {
		s->at = OTHER;
	}
}

static void named(struct splitter *s)
{
	if (!decode(s, &s->name) || !s->name.n) {
		split_fail(s);
		return;
	}
	split_announce(s);
	split_put(s, CALLS_ARGUMENTS, s->args.p, s->args.n);
	s->n_keys |= s->args.n != 0;
	s->at = COMMA;
}

static void object_ends(struct splitter *s)
{
	split_take(s, 1);
	if (s->nested) {
		s->nested--;
		s->at = COMMA;
		return;
	}
	if (!s->in_call) {
		split_fail(s);
		return;
	}
	if (!s->n_keys)                       /* a call without arguments */
		split_args(s, "{}", 2);
	s->in_call = false;
	s->fresh = true;
	if (s->in_list) {
		split_open(s, SPLIT_OBJECT);
		s->at = COMMA;
	} else {
		split_close(s);
	}
}

/* One character that is not inside a value. */
static void punctuation(struct splitter *s, char c)
{
	const bool between = s->in_list && !s->in_call && !s->word.n; /* objects of a list */

	if (s->at == OPEN && c == '[' && s->c->format->list && !s->in_list) {
		s->in_list = true;
		split_take(s, 1);
	} else if (s->at == OPEN && c == '{') {
		split_take(s, 1);
		s->at = KEY;
	} else if (between && (s->at == COMMA || s->at == OPEN) && c == ']') {
		split_take(s, 1);
		if (s->keep_head)             /* no call was in it */
			split_fail(s);
		else
			split_close(s);
	} else if (between && s->at == COMMA && c == ',') {
		split_take(s, 1);
		s->at = OPEN;
	} else if ((s->at == KEY || s->at == COMMA) && c == '}') {
		object_ends(s);
	} else if (s->at == COMMA && c == ',') {
		split_take(s, 1);
		s->at = KEY;
	} else if (s->at == KEY && c == '"') {
		s->word.n = 0;
		s->run = (struct json_run){ 0 };
		s->at = COLON;
	} else {
		split_fail(s);
	}
}

/* The key and the colon after it. */
static bool key(struct splitter *s)
{
	size_t n;
	const char *p;

	if (!s->run.done) {
		collect(s, &s->word);
		if (s->word.n > 6 * NAME_MOST + 2 || (s->run.done && !decode(s, &s->word))) {
			split_fail(s);
			return true;
		}
		return s->run.done;
	}
	p = split_at(s, &n);
	if (*p == ':') {
		split_take(s, 1);
		s->at = VALUE;
	} else {
		split_fail(s);
	}
	return true;
}

static bool value(struct splitter *s)
{
	size_t n, k;
	const char *p = split_at(s, &n);
	const bool text = s->run.begun || (*p != '{' && *p != '[');

	if (s->keep_head)
		n = split_room(&s->head, HEAD_MOST, n);
	if (s->at == NAME || s->at == ID)
		n = split_room(s->at == NAME ? &s->name : &s->id, 6 * NAME_MOST + 2, n);
	k = json_run(&s->run, p, n);
	if (s->at == ARGS) {
		split_args(s, p, k);
		if (s->in_call)
			s->n_keys = 1;
	} else if (s->at == NAME || s->at == ID) {
		bytes_add(s, s->at == NAME ? &s->name : &s->id, p, k);
		if (s->name.n > 6 * NAME_MOST + 2 || s->id.n > 6 * NAME_MOST + 2 || !text) {
			split_fail(s);
			return true;
		}
	}
	split_take(s, k);
	if (!s->run.done)
		return false;
	if (s->at == ID)
		decode(s, &s->id);
	if (s->at == NAME)
		named(s);
	else
		s->at = COMMA;
	return true;
}

bool split_object(struct splitter *s)
{
	size_t n;
	const char *p;

	if (!(s->at == COLON && !s->run.done) && !(s->at >= NAME && s->at <= OTHER && s->run.begun))
		split_take(s, split_blanks(s));
	p = split_at(s, &n);
	if (!n)
		return false;
	switch (s->at) {
	case COLON:
		return key(s);
	case VALUE:
		member(s);
		return true;
	case NAME: case ID: case ARGS: case OTHER:
		return value(s);
	default:
		punctuation(s, *p);
		return true;
	}
}

/* The arguments after a name. */
bool split_json(struct splitter *s)
{
	size_t n, k;
	const char *p;

	if (!s->run.begun)
		split_take(s, split_blanks(s));
	p = split_at(s, &n);
	if (!n)
		return false;
	if (!s->run.begun && *p != '{' && *p != '[' && *p != '"') {
		split_fail(s);
		return true;
	}
	k = json_run(&s->run, p, n);
	split_args(s, p, k);
	split_take(s, k);
	if (!s->run.done)
		return false;
	split_close(s);
	return true;
}
