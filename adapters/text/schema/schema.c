/* schema.c - see schema.h.  One compilation from beginning to end: its memory, its failures. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "impl.h"

struct chunk { struct chunk *next; size_t used, size; _Alignas(16) char bytes[]; };

_Noreturn static void leave(struct schema *s, int code)
{
	if (!s->e->code)
		s->e->code = code;
	longjmp(s->out, 1);
}

void schema_fail(struct schema *s, int code, const json_t *schema, const char *fmt, ...)
{
	char place[sizeof(s->e->place)] = "", text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (schema)
		schema_pointer(s, schema, place, sizeof(place));
	else
		snprintf(place, sizeof(place), "%s", s->at);
	grammar_refuse(s->e, code, place, "%s", text);
	leave(s, code);
}

void schema_cannot(struct schema *s, const json_t *schema, const char *keyword)
{
	char place[sizeof(s->e->place)];

	schema_pointer(s, schema, place, sizeof(place));
	grammar_refuse(s->e, -ENOTSUP, NULL,
	               "The JSON schema uses \"%s\" at %s, which Slipring cannot enforce here.", keyword, place);
	leave(s, -ENOTSUP);
}

void schema_ignore(struct schema *s, const json_t *schema, const char *keyword)
{
	char place[sizeof(s->e->place)];

	if (!s->o->lenient)
		schema_cannot(s, schema, keyword);
	schema_pointer(s, schema, place, sizeof(place));
	if (!s->note[0])
		snprintf(s->note, sizeof(s->note), "Ignored \"%s\" at %.200s.", keyword, place);
}

void schema_too_complex(struct schema *s)
{
	schema_fail(s, -E2BIG, NULL, "The JSON schema is too complex (over 1000000 expressions).");
}

void schema_step(struct schema *s)
{
	if (++s->steps > SCHEMA_STEPS + 20 * s->n_where)
		schema_fail(s, -E2BIG, NULL, "The JSON schema is too complex (over %u combinations of alternatives).",
		            SCHEMA_STEPS + 20 * s->n_where);
}

uint32_t schema_expr(struct schema *s, uint32_t expr)
{
	if (expr != REGEX_FAILED)
		return expr;
	if (regexes_error(s->r) == -ENOMEM)
		leave(s, -ENOMEM);
	schema_too_complex(s);
}

/* ---- memory: one arena, freed at the end ---- */

void *schema_take(struct schema *s, size_t n, size_t size)
{
	struct chunk *c = s->chunk;
	size_t need, room;
	void *p;

	if (__builtin_mul_overflow(n, size, &need) || need > SCHEMA_ARENA)
		schema_too_complex(s);
	need = (need + 15) & ~(size_t)15;
	if (!c || c->size - c->used < need) {
		room = need > 1 << 16 ? need : 1 << 16;
		if (s->arena + room > SCHEMA_ARENA)
			schema_too_complex(s);
		c = malloc(sizeof(*c) + room);
		if (!c)
			leave(s, -ENOMEM);
		*c = (struct chunk){ s->chunk, 0, room };
		s->chunk = c;
		s->arena += room;
	}
	p = c->bytes + c->used;
	c->used += need;
	return memset(p, 0, need);
}

void *schema_grow(struct schema *s, void *old, uint32_t *cap, size_t size)
{
	uint32_t more = *cap ? *cap * 2 : 16;
	void *p = schema_take(s, more, size);

	if (*cap)
		memcpy(p, old, *cap * size);
	*cap = more;
	return p;
}

/* ---- the whole ---- */

static int32_t compile(struct schema *s, json_t *schema)
{
	uint32_t t;
	int32_t symbol;
	int live;

	if (setjmp(s->out))
		return -1;
	s->busy = schema_take(s, SCHEMA_DEPTH, sizeof(*s->busy));
	numbers_begin(s);
	schema_index(s, schema);
	term_schema(s, NULL);
	t = term_schema(s, schema);
	emit_begin(s, schema);
	symbol = emit_term(s, t);
	emit_all(s);
	live = grammar_productive(s->g, symbol);
	if (live == -ENOMEM)
		leave(s, live);
	if (live < 0)
		schema_too_complex(s);
	if (!live)
		schema_fail(s, -EINVAL, NULL, "No value satisfies the JSON schema.");
	if (s->note[0])
		snprintf(s->e->message, sizeof(s->e->message), "%s", s->note);
	return symbol;
}

int32_t schema_compile(struct grammar *g, json_t *schema, const char *at, struct grammar_error *e)
{
	static const struct sr_grammar_options none;
	struct schema *s = calloc(1, sizeof(*s));
	int32_t symbol;

	*e = (struct grammar_error){ 0 };
	if (!s) {
		e->code = -ENOMEM;
		return -1;
	}
	s->g = g;
	s->r = grammar_regexes(g);
	s->o = grammar_options(g) ? grammar_options(g) : &none;
	s->e = e;
	s->at = at && *at ? at : "#";
	symbol = compile(s, schema);
	for (struct chunk *c = s->chunk, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	free(s);
	return symbol;
}
