/* term.c - terms: boolean combinations of schemas and constants.
 *
 * A term is written once: the same combination is the same number, so a schema that refers to itself yields
 * finitely many.  Negation is pushed down to schemas and constants; a conjunction or disjunction is a
 * sorted list.  Terms are numbered in the order in which schemas are met, which is what keeps the order of
 * properties.
 */
#include <stdlib.h>

#include "impl.h"

enum emptiness { UNKNOWN, MAYBE_NOT, EMPTY };

static uint32_t hash_term(const struct term *t)
{
	uint64_t h = t->kind * 0x9e3779b97f4a7c15ull ^ (uintptr_t)t->json >> 4;

	for (uint32_t i = 0; i < t->n; i++)
		h = (h ^ t->of[i]) * 0xff51afd7ed558ccdull;
	h ^= h >> 29;
	return (uint32_t)((h * 0x9e3779b97f4a7c15ull) >> 32);
}

static bool same_term(const struct term *a, const struct term *b)
{
	return a->kind == b->kind && a->json == b->json && a->n == b->n &&
	       (!a->n || !memcmp(a->of, b->of, a->n * 4));
}

static void grow_table(struct schema *s)
{
	uint32_t cap = s->table_cap ? s->table_cap * 4 : 1024, at;
	uint32_t *table = schema_take(s, cap, sizeof(*table));

	for (uint32_t i = 0; i < s->n_terms; i++) {
		for (at = hash_term(s->term[i]) & (cap - 1); table[at]; at = (at + 1) & (cap - 1))
			;
		table[at] = i + 1;
	}
	s->table = table;
	s->table_cap = cap;
}

static uint32_t intern(struct schema *s, const struct term *t)
{
	uint32_t at, *of;

	if (2 * s->n_terms >= s->table_cap)
		grow_table(s);
	for (at = hash_term(t) & (s->table_cap - 1); s->table[at]; at = (at + 1) & (s->table_cap - 1))
		if (same_term(s->term[s->table[at] - 1], t))
			return s->table[at] - 1;
	if (s->n_terms >= SCHEMA_TERMS)
		schema_too_complex(s);
	if (s->n_terms == s->terms_cap)
		s->term = schema_grow(s, s->term, &s->terms_cap, sizeof(*s->term));
	s->term[s->n_terms] = schema_take(s, 1, sizeof(**s->term));
	*s->term[s->n_terms] = *t;
	s->term[s->n_terms]->symbol = -1;
	if (t->n) {
		of = schema_take(s, t->n, sizeof(*of));
		memcpy(of, t->of, t->n * sizeof(*of));
		s->term[s->n_terms]->of = of;
	}
	s->table[at] = s->n_terms + 1;
	return s->n_terms++;
}

uint32_t term_schema(struct schema *s, json_t *json)
{
	if (!s->n_terms) {
		intern(s, &(struct term){ .kind = KIND_NONE });
		intern(s, &(struct term){ .kind = KIND_ANY });
	}
	if (!json)
		return TERM_NONE;
	if (json_is_true(json) || (json_is_object(json) && !json_object_size(json)))
		return TERM_ANY;
	if (json_is_false(json))
		return TERM_NONE;
	return intern(s, &(struct term){ .kind = KIND_SCHEMA, .json = json });
}

uint32_t term_value(struct schema *s, json_t *json)
{
	return intern(s, &(struct term){ .kind = KIND_VALUE, .json = json });
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* The list of a AND b, or a OR b; `zero` absorbs, `one` is left out. */
static uint32_t combine(struct schema *s, enum term_kind kind, uint32_t a, uint32_t b, uint32_t zero,
                        uint32_t one)
{
	uint32_t parts[2] = { a, b }, *of, n = 0, kept = 0;
	struct term t = { .kind = (uint8_t)kind };

	if (a == zero || b == zero)
		return zero;
	if (a == one || a == b)
		return b;
	if (b == one)
		return a;
	of = schema_take(s, (s->term[a]->kind == kind ? s->term[a]->n : 1) +
	                 (s->term[b]->kind == kind ? s->term[b]->n : 1), sizeof(*of));
	for (int i = 0; i < 2; i++) {
		const struct term *p = s->term[parts[i]];

		if (p->kind == kind) {
			memcpy(of + n, p->of, p->n * sizeof(*of));
			n += p->n;
		} else {
			of[n++] = parts[i];
		}
	}
	qsort(of, n, sizeof(*of), by_number);
	for (uint32_t i = 0; i < n; i++) {
		const struct term *p = s->term[of[i]];

		if (p->kind == KIND_NOT && bsearch(&p->of[0], of, n, sizeof(*of), by_number))
			return zero;
		if (!i || of[i] != of[i - 1])
			of[kept++] = of[i];
	}
	t.n = kept;
	t.of = of;
	return kept == 1 ? of[0] : intern(s, &t);
}

uint32_t term_and(struct schema *s, uint32_t a, uint32_t b)
{
	return combine(s, KIND_AND, a, b, TERM_NONE, TERM_ANY);
}

static uint32_t term_or(struct schema *s, uint32_t a, uint32_t b)
{
	return combine(s, KIND_OR, a, b, TERM_ANY, TERM_NONE);
}

uint32_t term_not(struct schema *s, uint32_t t)
{
	const struct term *p = s->term[t];
	uint32_t all;

	switch (p->kind) {
	case KIND_NONE: return TERM_ANY;
	case KIND_ANY: return TERM_NONE;
	case KIND_NOT: return p->of[0];
	case KIND_AND:
	case KIND_OR:
		all = p->kind == KIND_AND ? TERM_NONE : TERM_ANY;
		for (uint32_t i = 0; i < p->n; i++)
			all = p->kind == KIND_AND ? term_or(s, all, term_not(s, p->of[i])) :
			      term_and(s, all, term_not(s, p->of[i]));
		return all;
	}
	all = intern(s, &(struct term){ .kind = KIND_NOT, .n = 1, .of = &t });
	if (!s->term[all]->blame.schema)
		s->term[all]->blame = s->blame;
	return all;
}

static bool in_list(const struct term *list, uint32_t t)
{
	return bsearch(&t, list->of, list->n, sizeof(t), by_number);
}

bool term_covers(struct schema *s, uint32_t a, uint32_t b)
{
	const struct term *x = s->term[a], *y = s->term[b];

	if (a == b || a == TERM_ANY || b == TERM_NONE)
		return true;
	if (y->kind == KIND_AND && x->kind != KIND_AND)
		return in_list(y, a);
	if (x->kind == KIND_OR && y->kind != KIND_OR)
		return in_list(x, b);
	for (uint32_t i = 0; x->kind == KIND_AND && y->kind == KIND_AND && i < x->n; i++)
		if (!in_list(y, x->of[i]))
			return false;
	return x->kind == KIND_AND && y->kind == KIND_AND;
}

/* ---- forms of terms ---- */

static const struct form *make_form(struct schema *s, const struct term *t)
{
	const struct form *f;
	struct form *any;

	switch (t->kind) {
	case KIND_NONE: return form_none(s);
	case KIND_ANY: return form_any(s);
	case KIND_SCHEMA: return read_schema(s, t->json);
	case KIND_VALUE: return form_value(s, t->json);
	case KIND_NOT:
		f = term_form(s, t->of[0]);
		s->blame = t->blame;
		return form_minus(s, form_any(s), f);
	}
	f = any = form_none(s);
	for (uint32_t i = 0; i < t->n; i++) {
		if (t->kind == KIND_OR)
			form_add(s, any, term_form(s, t->of[i]));
		else
			f = i ? form_and(s, f, term_form(s, t->of[i])) : term_form(s, t->of[i]);
	}
	return f;
}

const struct form *term_form(struct schema *s, uint32_t id)
{
	struct term *t = s->term[id];
	struct blame blame = s->blame;

	if (t->form)
		return t->form;
	if (t->busy && s->trial)
		longjmp(*s->trial, 1);
	if (t->busy)
		schema_fail(s, -EINVAL, t->json, "The JSON schema refers to itself without consuming anything.");
	if (s->n_busy == SCHEMA_DEPTH)
		schema_fail(s, -E2BIG, t->json,
		            "The JSON schema has more than %d schemas within or behind each other "
		            "without a value between them.",
		            SCHEMA_DEPTH);
	t->busy = true;
	s->busy[s->n_busy++] = id;
	t->form = make_form(s, t);
	s->n_busy--;
	t->busy = false;
	s->blame = blame;
	return t->form;
}

bool expr_empty(struct schema *s, uint32_t expr)
{
	return expr == REGEX_NONE || !regex_live(s->r, expr);
}

/* The form, or NULL if it needs one that is being made. */
static const struct form *try_form(struct schema *s, uint32_t t)
{
	jmp_buf here, *outer = s->trial;
	const uint32_t height = s->n_busy;
	const struct blame blame = s->blame;
	const struct form *volatile f = NULL;

	if (s->term[t]->form)
		return s->term[t]->form;
	if (height + 16 > SCHEMA_DEPTH || s->n_trials == 3)
		return NULL;
	s->n_trials++;
	s->trial = &here;
	if (!setjmp(here))
		f = term_form(s, t);
	s->trial = outer;
	s->n_trials--;
	s->blame = blame;
	while (s->n_busy > height)
		s->term[s->busy[--s->n_busy]]->busy = false;
	return f;
}

/* Only a conjunction is looked into: what else is empty is found when the grammar is sealed. */
bool term_empty(struct schema *s, uint32_t id, unsigned depth)
{
	struct term *t = s->term[id];
	const struct form *f;

	if (t->kind == KIND_NONE)
		return true;
	if (!depth || t->kind != KIND_AND || t->busy)
		return false;
	if (t->emptiness == UNKNOWN) {
		f = try_form(s, id);
		if (!f)
			return false;
		t->emptiness = form_empty(s, f, depth - 1) ? EMPTY : MAYBE_NOT;
	}
	return t->emptiness == EMPTY;
}
