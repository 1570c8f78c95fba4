/* emit.c - forms to productions.
 *
 * Each term that is reached gets one rule.  Its scalars are one or two lexemes; arrays and objects are
 * productions, one or more for each shape.  Alternatives may overlap: the engine follows all of them.
 *
 * What a schema lists (enum, const, names of properties) is generated in one spelling, apart from escapes
 * of what is not ASCII; integers are generated without a fraction.
 */
#include <stdlib.h>

#include "emit.h"

/* ---- small productions ---- */

uint32_t emit_join(struct schema *s, uint32_t a, uint32_t b)
{
	return schema_expr(s, regex_concat(s->r, a, b));
}

static uint32_t emit_text(struct schema *s, const char *p)
{
	return schema_expr(s, regex_bytes(s->r, p, strlen(p)));
}

int32_t emit_check(struct schema *s, int32_t symbol)
{
	if (symbol < 0)
		schema_too_complex(s);
	return symbol;
}

/* All that the engine follows must be known to come to an end: what is not found out here, it would not find
 * out in the middle of an answer either. */
int32_t emit_lexeme(struct schema *s, uint32_t expr)
{
	if (regex_live(s->r, expr) == -E2BIG && !regexes_error(s->r))
		schema_fail(s, -E2BIG, s->emitted, "It takes too long to find out if any string, number or name of a "
		            "property satisfies the JSON schema.");
	return emit_check(s, grammar_lexeme(s->g, expr));
}

void emit_rule(struct schema *s, int32_t rule, uint32_t n, const int32_t *symbol)
{
	schema_step(s);
	grammar_produce(s->g, rule, symbol, n);
}

/* What stands between values and marks. */
struct layout {
	const char *pattern;         /* of whitespace; NULL = up to 8 */
	bool none;                   /* no whitespace */
	const char *comma, *colon;   /* instead of the bare mark; NULL = the mark */
};

/* A comma or a colon, as `x-guidance` has it, or NULL. */
static const char *separator_of(struct schema *s, const json_t *guidance, const char *name, char mark)
{
	const json_t *v = json_object_get(guidance, name);
	const char *text = json_string_value(v);
	size_t before;

	if (!v || json_is_null(v))
		return NULL;
	before = text ? strspn(text, " \t\n\r") : 0;
	if (!text || text[before] != mark || text[before + 1 + strspn(text + before + 1, " \t\n\r")])
		schema_fail(s, -EINVAL, NULL, "x-guidance: %s must be '%c' with nothing but whitespace around it.",
		            name, mark);
	return text;
}

/* llguidance's settings in a schema's root: whether there is whitespace, which, and separators. */
static void read_guidance(struct schema *s, const json_t *root, struct layout *y)
{
	const json_t *guidance = json_object_get(root, "x-guidance"), *v;

	*y = (struct layout){ .pattern = s->o->whitespace_pattern, .none = s->o->disable_any_whitespace };
	if (!json_is_object(guidance))
		return;
	v = json_object_get(guidance, "whitespace_pattern");
	if (json_is_string(v))
		y->pattern = json_string_value(v);
	v = json_object_get(guidance, "whitespace_flexible");
	if (!json_is_false(v))
		return;
	y->none = true;
	y->comma = separator_of(s, guidance, "item_separator", ',');
	y->colon = separator_of(s, guidance, "key_separator", ':');
}

static uint32_t space_of(struct schema *s, const struct layout *y)
{
	const uint64_t blank[4] = { 1ull << ' ' | 1ull << '\t' | 1ull << '\n' | 1ull << '\r' };
	struct grammar_error e = { 0 };
	const char *p = y->pattern;
	uint32_t space;

	if (y->none)
		return REGEX_EMPTY;
	if (!p)
		return schema_expr(s, regex_repeat(s->r, schema_expr(s, regex_set(s->r, blank)), 0, 8));
	space = pattern_parse(s->r, p, strlen(p), 0, &e);
	if (space == REGEX_FAILED && e.code)
		schema_fail(s, e.code, NULL, "whitespace_pattern: %.300s", e.message);
	schema_expr(s, space);
	/* Nothing but whitespace may come in. */
	if (!expr_empty(s, schema_expr(s, regex_and(s->r, space, schema_expr(s, regex_not(s->r, schema_expr(s,
	                regex_repeat(s->r, schema_expr(s, regex_set(s->r, blank)), 0, REGEX_MANY))))))))
		schema_fail(s, -EINVAL, NULL, "whitespace_pattern must match nothing but blanks, tabs and newlines.");
	return space;
}

static uint32_t quoted(struct schema *s, uint32_t body)
{
	return emit_join(s, s->quote, emit_join(s, body, s->quote));
}

static uint32_t spaced(struct schema *s, const char *mark)
{
	return emit_join(s, s->space, emit_join(s, emit_text(s, mark), s->space));
}

void emit_begin(struct schema *s, const json_t *root)
{
	uint32_t space, digit, sign, exponent;
	struct layout y;

	read_guidance(s, root, &y);
	space = s->space = space_of(s, &y);
	s->quote = emit_text(s, "\"");
	s->key_end = emit_join(s, s->quote, y.colon ? emit_text(s, y.colon) : spaced(s, ":"));
	s->open_object = emit_lexeme(s, emit_join(s, emit_text(s, "{"), space));
	s->open_array = emit_lexeme(s, emit_join(s, emit_text(s, "["), space));
	s->close = emit_lexeme(s, emit_join(s, space, emit_text(s, "}")));
	s->close_array = emit_lexeme(s, emit_join(s, space, emit_text(s, "]")));
	s->comma = emit_lexeme(s, y.comma ? emit_text(s, y.comma) : spaced(s, ","));
	s->empty_object = emit_lexeme(s, emit_join(s, emit_text(s, "{"), emit_join(s, space, emit_text(s, "}"))));
	s->empty_array = emit_lexeme(s, emit_join(s, emit_text(s, "["), emit_join(s, space, emit_text(s, "]"))));
	digit = schema_expr(
		s, regex_repeat(s->r, schema_expr(s, regex_set(s->r, (const uint64_t[4]){ 0x3ffull << '0' })), 1,
	                    REGEX_MANY));
	sign = schema_expr(
		s, regex_or(s->r, REGEX_EMPTY, schema_expr(s, regex_or(s->r, emit_text(s, "+"), emit_text(s, "-")))));
	exponent = schema_expr(s, regex_or(s->r, emit_text(s, "e"), emit_text(s, "E")));
	exponent = emit_join(s, exponent, emit_join(s, sign, digit));
	s->any_number = emit_join(s, s->all_numbers, schema_expr(s, regex_or(s->r, REGEX_EMPTY, exponent)));
	s->any_string = quoted(s, s->all_strings);
}

uint32_t emit_key(struct schema *s, uint32_t body)
{
	return emit_join(s, s->quote, emit_join(s, body, s->key_end));
}

/* ---- scalars ---- */

static uint32_t number_expr(struct schema *s, const struct form *f)
{
	uint32_t e = f->number.expr, n = 0, *list = schema_take(s, 2 * (size_t)f->number.n + 2, sizeof(*list));

	if (f->exponent)
		return s->any_number;
	if (f->whole)
		e = schema_expr(s, regex_and(s->r, e, s->plain));
	list[n++] = e;
	for (uint32_t i = 0; i < f->number.n; i++) {
		const struct word *w = &f->number.word[i];

		list[n] = schema_expr(s, regex_bytes(s->r, w->s, w->n));
		if (w->real) {
			list[n + 1] = emit_join(s, list[n], emit_text(s, ".0"));
			n++;
		}
		n++;
	}
	return schema_expr(s, regex_or_all(s->r, list, n));
}

static uint32_t string_expr(struct schema *s, const struct form *f)
{
	uint32_t n = 0, *list = schema_take(s, (size_t)f->string.n + 1, sizeof(*list));

	list[n++] = f->string.expr;
	if (f->string.expr == s->all_strings)
		return s->any_string;
	for (uint32_t i = 0; i < f->string.n; i++)
		list[n++] = word_written(s, &f->string.word[i]);
	return quoted(s, schema_expr(s, regex_or_all(s->r, list, n)));
}

uint32_t emit_scalars(struct schema *s, const struct form *f)
{
	uint32_t list[4] = { number_expr(s, f) }, n = 1;

	if (f->null)
		list[n++] = emit_text(s, "null");
	if (f->yes)
		list[n++] = emit_text(s, "true");
	if (f->no)
		list[n++] = emit_text(s, "false");
	return schema_expr(s, regex_or_all(s->r, list, n));
}

/* The lexemes of all scalars, to symbol[2]; returns how many. */
static uint32_t scalars(struct schema *s, const struct form *f, int32_t symbol[2])
{
	uint32_t other = emit_scalars(s, f), string = string_expr(s, f), n = 0;

	if (string != s->any_string) {
		other = schema_expr(s, regex_or(s->r, other, string));
		string = REGEX_NONE;
	}
	if (other != REGEX_NONE && !expr_empty(s, other))
		symbol[n++] = emit_lexeme(s, other);
	if (string != REGEX_NONE)
		symbol[n++] = emit_lexeme(s, string);
	return n;
}

/* ---- terms ---- */

/* The schema that it is made of, or the first one. */
static const json_t *schema_of(const struct schema *s, uint32_t id)
{
	while (s->term[id]->n)
		id = s->term[id]->of[0];
	return s->term[id]->json;
}

int32_t emit_term(struct schema *s, uint32_t id)
{
	struct term *t = s->term[id];
	const json_t *outer = s->emitted;
	const struct form *f;
	int32_t symbol[2];
	uint32_t n;

	if (t->symbol >= 0)
		return t->symbol;
	f = term_form(s, id);
	s->emitted = schema_of(s, id);
	n = scalars(s, f, symbol);
	s->emitted = outer;
	if (n == 1 && !f->n_arrays && !f->n_objects)
		return t->symbol = symbol[0];
	t->symbol = emit_check(s, grammar_rule(s->g));
	for (uint32_t i = 0; i < n; i++)
		emit_rule(s, t->symbol, 1, &symbol[i]);
	if (s->n_queue == s->queue_cap)
		s->queue = schema_grow(s, s->queue, &s->queue_cap, sizeof(*s->queue));
	s->queue[s->n_queue++] = id;
	return t->symbol;
}

void emit_all(struct schema *s)
{
	for (uint32_t i = 0; i < s->n_queue; i++) {
		const struct term *t = s->term[s->queue[i]];

		s->emitted = schema_of(s, s->queue[i]);
		for (uint32_t k = 0; k < t->form->n_arrays; k++)
			emit_array(s, t->symbol, t->form->array[k]);
		for (uint32_t k = 0; k < t->form->n_objects; k++)
			emit_object(s, t->symbol, t->form->object[k]);
	}
}
