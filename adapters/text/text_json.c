/* text_json.c - see text_json.h.  Depth and number of values are checked before anything is allocated:
 * without these bounds a body of 64 MB could become a tree of gigabytes.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text_json.h"

#define FLAGS (JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL)

/* Count the values in one pass, by the brackets and commas outside of strings. */
static int bounds(const char *s, size_t n, size_t most, size_t *count, json_error_t *e)
{
	size_t i, values = 1;
	int depth = 0;

	for (i = 0; i < n; i++) {
		switch (s[i]) {
		case '"':
			for (i++; i < n && s[i] != '"'; i++)
				i += s[i] == '\\';
			break;
		case '[': case '{':
			values++;
			if (++depth > TEXT_JSON_DEPTH) {
				snprintf(e->text, sizeof(e->text), "is nested deeper than %d levels (at byte %zu)",
				         TEXT_JSON_DEPTH, i);
				return -E2BIG;
			}
			break;
		case ']': case '}':
			depth--;
			break;
		case ',':
			values++;
			break;
		}
		if (values > most) {
			snprintf(e->text, sizeof(e->text), "has more than %u values", TEXT_JSON_VALUES);
			return -E2BIG;
		}
	}
	*count = values;
	return 0;
}

/* ---- without memory ----
 *
 * jansson (2.14) does not look whether its buffer for a word could grow: it goes on, finds no end of the
 * word, and writes a client's bytes past a block.  So memory that is not to be had ends the reading at once,
 * from within, and what the reading had taken is given back.  Each block of jansson's has its place in a
 * list of its thread's before it, good only until the reading ends. */

struct json_block { struct json_block *prev, *next; };
_Static_assert(sizeof(struct json_block) % _Alignof(max_align_t) == 0, "what follows it is aligned, too");

static _Thread_local struct { bool on; jmp_buf out; struct json_block all; } reading;

void *text_json_take(size_t n)
{
	struct json_block *b, *last = reading.all.prev;
	size_t size;

	b = __builtin_add_overflow(n, sizeof(*b), &size) ? NULL : malloc(size);
	if (!b && reading.on)
		longjmp(reading.out, 1);
	if (!b)
		return NULL;
	if (reading.on) {
		*b = (struct json_block){ last, &reading.all };
		last->next = reading.all.prev = b;
	}
	return b + 1;
}

void text_json_give(void *p)
{
	struct json_block *b = p ? (struct json_block *)p - 1 : NULL;

	if (b && reading.on) {
		b->prev->next = b->next;
		b->next->prev = b->prev;
	}
	free(b);
}

static json_t *read_json(const char *s, size_t n, json_error_t *e)
{
	json_t *v;

	reading.all = (struct json_block){ &reading.all, &reading.all };
	if (setjmp(reading.out)) {
		for (struct json_block *b = reading.all.next, *next; b != &reading.all; b = next) {
			next = b->next;
			free(b);
		}
		reading.on = false;
		*e = (json_error_t){ .line = -1, .text = "no memory" };
		errno = ENOMEM;
		return NULL;
	}
	reading.on = true;
	v = json_loadb(s, n, FLAGS, e);
	reading.on = false;
	return v;
}

/* JSON's integers are unbounded, jansson's have 64 bits.  Parse a copy in which larger ones are written
 * as reals, for example the maximum of a uint64 in a tool's schema.  No field here allows such values. */
static json_t *load_wide(const char *s, size_t n, json_error_t *e)
{
	char *copy = malloc(n + n / 8 + 4), *to = copy, *end;  /* a number of 19 digits and a comma gets 2 more */
	bool quoted = false;
	json_t *v;

	if (!copy)
		return NULL;
	for (size_t i = 0, from; i < n;) {
		from = i;
		if (quoted || !strchr("-0123456789", s[i]) || !s[i]) {
			if (quoted && s[i] == '\\' && i + 1 < n)
				*to++ = s[i++];
			else if (s[i] == '"')
				quoted = !quoted;
			*to++ = s[i++];
			continue;
		}
		while (i < n && s[i] && strchr("+-.eE0123456789", s[i]))
			*to++ = s[i++];
		errno = 0;
		*to = 0;                      /* so that strtoll stops at the end of the number */
		if (i - from >= 19 && (strtoll(to - (i - from), &end, 10), errno == ERANGE) && end == to) {
			*to++ = 'e';
			*to++ = '0';
		}
	}
	v = read_json(copy, (size_t)(to - copy), e);
	free(copy);
	return v;
}

static json_t *load_any(const char *s, size_t n, json_error_t *e)
{
	json_t *v = read_json(s, n, e);

	return v || json_error_code(e) != json_error_numeric_overflow ? v : load_wide(s, n, e);
}

int text_json_read(json_t **out, const char *s, size_t n, size_t *left, json_error_t *e)
{
	size_t values;

	*out = NULL;
	*e = (json_error_t){ .line = -1 };
	if (bounds(s, n, *left, &values, e) < 0)
		return -E2BIG;
	*left -= values;
	errno = 0;
	*out = load_any(s, n, e);
	return *out ? 0 : errno == ENOMEM ? -ENOMEM : -EINVAL; /* jansson does not always report it otherwise */
}

/* ---- values ---- */

bool text_json_given(const json_t *object, const char *name)
{
	const json_t *v = json_object_get(object, name);

	return v && !json_is_null(v);
}

bool text_json_true(const json_t *v)
{
	switch (v ? json_typeof(v) : JSON_NULL) {
	case JSON_OBJECT: return json_object_size(v) > 0;
	case JSON_ARRAY: return json_array_size(v) > 0;
	case JSON_STRING: return json_string_length(v) > 0;
	case JSON_INTEGER: return json_integer_value(v) != 0;
	case JSON_REAL: return json_real_value(v) != 0;
	case JSON_TRUE: return true;
	default: return false;
	}
}

const char *text_json_type(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "a list";
	case JSON_STRING: return "a string";
	case JSON_INTEGER: case JSON_REAL: return "a number";
	case JSON_NULL: return "null";
	default: return "a bool";
	}
}
