/* json.c - parses a body into a JSON tree.  Depth and number of values are checked before anything is
 * allocated: without these bounds a body of 64 MB could become a tree of gigabytes.
 * It also refuses duplicate keys, lone surrogates, invalid UTF-8, and NUL in a key.
 * NUL is allowed in a text; where a field expects a word, fields.c refuses it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "openai.h"

#define FLAGS (JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL)

/* Count the values in one pass, by the brackets and commas outside of strings. */
static int bounds(const char *s, size_t n, size_t most, size_t *count, struct problem *p)
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
			if (++depth > ASK_JSON_DEPTH)
				return problem_field(p, "", "The JSON body is nested deeper than %d levels "
				                     "(at byte %zu).", ASK_JSON_DEPTH, i);
			break;
		case ']': case '}':
			depth--;
			break;
		case ',':
			values++;
			break;
		}
		if (values > most)
			return problem_field(p, "", "The JSON body has more than %u values.",
			                     ASK_JSON_VALUES);
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

struct block { struct block *prev, *next; };
_Static_assert(sizeof(struct block) % _Alignof(max_align_t) == 0, "what follows it is aligned, too");

static _Thread_local struct { bool on; jmp_buf out; struct block all; } reading;

void *ask_json_take(size_t n)
{
	struct block *b, *last = reading.all.prev;
	size_t size;

	b = __builtin_add_overflow(n, sizeof(*b), &size) ? NULL : malloc(size);
	if (!b && reading.on)
		longjmp(reading.out, 1);
	if (!b)
		return NULL;
	if (reading.on) {
		*b = (struct block){ last, &reading.all };
		last->next = reading.all.prev = b;
	}
	return b + 1;
}

void ask_json_give(void *p)
{
	struct block *b = p ? (struct block *)p - 1 : NULL;

	if (b && reading.on) {
		b->prev->next = b->next;
		b->next->prev = b->prev;
	}
	free(b);
}

static json_t *read_json(const char *s, size_t n, json_error_t *e)
{
	json_t *v;

	reading.all = (struct block){ &reading.all, &reading.all };
	if (setjmp(reading.out)) {
		for (struct block *b = reading.all.next, *next; b != &reading.all; b = next) {
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

static json_t *load(const char *s, size_t n, json_error_t *e)
{
	json_t *v = read_json(s, n, e);

	return v || json_error_code(e) != json_error_numeric_overflow ? v : load_wide(s, n, e);
}

json_t *ask_json_within(const char *s, size_t n, size_t *left)
{
	struct problem unused;
	json_error_t e;
	size_t values;

	if (bounds(s, n, *left, &values, &unused) < 0)
		return NULL;
	*left -= values;
	return load(s, n, &e);
}

int ask_json(json_t **out, const char *body, size_t n, struct problem *p)
{
	json_error_t e;
	size_t values;
	char at[32];

	*out = NULL;
	if (!n)
		return problem_field(p, "", "The request has no body: a JSON object is required.");
	if (bounds(body, n, ASK_JSON_VALUES, &values, p) < 0)
		return -1;
	errno = 0;
	*out = load(body, n, &e);
	if (!*out && errno == ENOMEM)         /* jansson does not always report it */
		return problem_memory(p);
	if (!*out) {
		snprintf(at, sizeof(at), "%d", e.position > 0 ? e.position : 0);
		return problem_field(p, at, "The body is not valid JSON: %s (line %d, column %d).",
		                     e.text, e.line, e.column);
	}
	if (!json_is_object(*out))
		return problem_field(p, "", "The body must be a JSON object, not %s.",
		                     json_is_array(*out) ? "a list" : "a single value");
	return 0;
}
