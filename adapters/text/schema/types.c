/* types.c - keywords of one type: what numbers, strings, arrays and objects must be. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "impl.h"

/* ---- type ---- */

static void add_type(struct schema *s, const json_t *schema, const json_t *name, struct form *f,
                     const struct form *any)
{
	const char *t = json_string_value(name);

	if (t && !strcmp(t, "null")) {
		f->null = true;
	} else if (t && !strcmp(t, "boolean")) {
		f->yes = f->no = true;
	} else if (t && !strcmp(t, "string")) {
		f->string = any->string;
	} else if (t && !strcmp(t, "number")) {
		f->number = any->number;
		f->exponent = true;
		f->whole = false;
	} else if (t && !strcmp(t, "integer")) {
		f->whole = f->number.expr == REGEX_NONE;
		if (f->whole)
			f->number.expr = s->integers;
	} else if (t && !strcmp(t, "array")) {
		f->array = any->array;
		f->n_arrays = 1;
	} else if (t && !strcmp(t, "object")) {
		f->object = any->object;
		f->n_objects = 1;
	} else {
		schema_fail(s, -EINVAL, schema,
		            "\"type\" of a JSON schema must be null, boolean, object, array, number, "
		            "integer or string, or a list of these.");
	}
}

static void read_type(struct schema *s, const json_t *schema, struct form *f)
{
	const json_t *type = json_object_get(schema, "type"), *one;
	const struct form *any = form_any(s);
	size_t i;

	if (!type)
		return;
	*f = *form_none(s);
	if (!json_is_array(type))
		add_type(s, schema, type, f, any);
	json_array_foreach(type, i, one)
		add_type(s, schema, one, f, any);
}

/* ---- numbers ---- */

static const json_t *number(struct schema *s, const json_t *schema, const char *keyword)
{
	const json_t *v = json_object_get(schema, keyword);

	if (v && !json_is_number(v))
		schema_fail(s, -EINVAL, schema, "\"%s\" of a JSON schema must be a number.", keyword);
	return v;
}

static void both(struct schema *s, struct words *w, uint32_t expr)
{
	w->expr = schema_expr(s, regex_and(s->r, w->expr, schema_expr(s, expr)));
}

/* A bound that a double may not hold exactly is tightened to the next double. */
static void bound(struct schema *s, struct form *f, const json_t *v, bool least, bool strict)
{
	double d = json_number_value(v);
	json_t *inner =
		json_is_real(v) && fabs(d) >= 0x1p53 ? json_real(nextafter(d, least ? INFINITY : -INFINITY)) : NULL;
	struct word w = word_of(s, inner ? inner : v);

	json_decref(inner);

	both(s, &f->number, least ? number_at_least(s, &w, strict) : number_at_most(s, &w, strict));
	f->exponent = false;
}

static void read_numbers(struct schema *s, const json_t *schema, struct form *f)
{
	static const char *const limit[] = { "maximum", "minimum" }, *const strict[] = { "exclusiveMaximum",
		                                                                             "exclusiveMinimum" };
	const json_t *v, *x;
	struct word w;

	for (int least = 0; least < 2; least++) {
		v = number(s, schema, limit[least]);
		x = json_object_get(schema, strict[least]);
		if (v)
			bound(s, f, v, least, json_is_true(x));      /* draft 4: a boolean beside it */
		if (x && !json_is_boolean(x))
			bound(s, f, number(s, schema, strict[least]), least, true);
	}
	v = number(s, schema, "multipleOf");
	if (!v)
		return;
	if (json_number_value(v) <= 0)
		schema_fail(s, -EINVAL, schema, "\"multipleOf\" of a JSON schema must be greater than 0.");
	w = word_of(s, v);
	both(s, &f->number, number_multiple(s, schema, &w));
	f->exponent = false;
}

/* ---- strings ---- */

static uint64_t read_count(struct schema *s, const json_t *schema, const char *keyword, uint64_t otherwise)
{
	const json_t *v = json_object_get(schema, keyword);
	double d = json_number_value(v);

	if (!v)
		return otherwise;
	if (!json_is_number(v) || d < 0 || d != floor(d))
		schema_fail(s, -EINVAL, schema,
		            "\"%s\" of a JSON schema must be a whole number that is not negative.", keyword);
	return d < 4e9 ? (uint64_t)d : otherwise == MANY ? MANY : 4000000000u;
}

static void read_format(struct schema *s, const json_t *schema, struct form *f)
{
	const json_t *v = json_object_get(schema, "format");
	uint32_t e;

	if (!json_is_string(v))
		return;
	e = string_format(s, json_string_value(v));
	if (e != REGEX_FAILED)
		both(s, &f->string, e);
	else if (!s->note[0])
		snprintf(s->note, sizeof(s->note), "The format \"%.100s\" is unknown and was not enforced.",
		         json_string_value(v));
}

static void read_strings(struct schema *s, const json_t *schema, struct form *f)
{
	uint64_t min = read_count(s, schema, "minLength", 0), max = read_count(s, schema, "maxLength", MANY);
	const json_t *pattern = json_object_get(schema, "pattern");

	if (pattern && !json_is_string(pattern))
		schema_fail(s, -EINVAL, schema, "\"pattern\" of a JSON schema must be a string.");
	if (min > max)
		f->string = (struct words){ REGEX_NONE, 0, NULL };
	else if (min || max != MANY)
		both(s, &f->string, regex_repeat(s->r, json_char(s->r), (uint32_t)min,
		                                 max == MANY ? REGEX_MANY : (uint32_t)max));
	if (pattern)
		both(s, &f->string, string_pattern(s, schema, "pattern", json_string_value(pattern),
		                                   json_string_length(pattern)));
	read_format(s, schema, f);
}

/* ---- arrays ---- */

static void read_contains(struct schema *s, json_t *schema, struct array_form *a)
{
	json_t *v = json_object_get(schema, "contains");
	struct contains *c = schema_take(s, 1, sizeof(*c));

	if (!v)
		return;
	s->blame = (struct blame){ schema, "contains" };
	*c = (struct contains){ .term = read_term(s, schema, "contains", v),
	                        .min = read_count(s, schema, "minContains", 1),
	                        .max = read_count(s, schema, "maxContains", MANY) };
	if (c->max != MANY)
		term_not(s, c->term);   /* blames this keyword */
	a->contains = c;
	a->n_contains = 1;
}

static struct array_form *read_array_shape(struct schema *s, json_t *schema)
{
	struct array_form *a = array_any(s);
	json_t *items = json_object_get(schema, "items"), *list = read_array(s, schema, "prefixItems"),
		   *rest = items, *v;
	uint32_t *prefix;
	const char *keyword = "items";
	size_t i;

	if (json_is_array(items)) {
		list = items;
		rest = json_object_get(schema, keyword = "additionalItems");
	}
	if (!rest && !json_object_get(schema, "contains"))
		rest = json_object_get(schema, keyword = "unevaluatedItems");
	else if (!rest && json_object_get(schema, "unevaluatedItems"))
		schema_ignore(s, schema, "unevaluatedItems");
	if (rest && !strcmp(keyword, "unevaluatedItems")) {
		static const char *const beside[] = { "$ref", "allOf", "anyOf",       "oneOf",
			                                  "not",  "if",    "$dynamicRef", "$recursiveRef" };

		for (i = 0; i < sizeof(beside) / sizeof(*beside) && rest; i++)
			rest = json_object_get(schema, beside[i]) ? NULL : rest;
	}
	prefix = schema_take(s, json_array_size(list) + 1, sizeof(*prefix));
	json_array_foreach(list, i, v)
		prefix[i] = read_term(s, schema, "prefixItems", v);
	a->n = (uint32_t)json_array_size(list);
	a->prefix = prefix;
	a->rest = rest ? read_term(s, schema, keyword, rest) : TERM_ANY;
	a->min = read_count(s, schema, "minItems", 0);
	a->max = read_count(s, schema, "maxItems", MANY);
	a->unique = json_is_true(json_object_get(schema, "uniqueItems"));
	a->unique_of = schema;
	read_contains(s, schema, a);
	return array_tidy(s, a);
}

/* ---- objects ---- */

struct patterns { uint32_t *expr, *term; size_t n; };

static struct patterns read_patterns(struct schema *s, json_t *schema)
{
	json_t *map = read_object(s, schema, "patternProperties"), *v;
	struct patterns p = { schema_take(s, json_object_size(map) + 1, sizeof(uint32_t)),
	                      schema_take(s, json_object_size(map) + 1, sizeof(uint32_t)), 0 };
	const char *key;

	json_object_foreach(map, key, v) {
		p.expr[p.n] = string_pattern(s, schema, "patternProperties", key, strlen(key));
		p.term[p.n++] = read_term(s, schema, "patternProperties", v);
	}
	return p;
}

static uint32_t without(struct schema *s, uint32_t a, uint32_t b)
{
	return schema_expr(s, regex_and(s->r, a, schema_expr(s, regex_not(s->r, b))));
}

/* Split the sets of keys by each pattern; what none matches is of the term `other`. */
static void read_keys(struct schema *s, struct object_form *o, const struct patterns *p, uint32_t other,
                      bool loose)
{
	struct keys *keys = schema_take(s, 1, sizeof(*keys)), *more;
	bool *met = schema_take(s, 1, 1), *more_met;
	uint32_t n = 1, k, e;

	keys[0] = (struct keys){ s->all_strings, TERM_ANY, loose };
	for (size_t i = 0; i < p->n; i++) {
		if (n > 64)
			schema_too_complex(s);
		more = schema_take(s, 2 * (size_t)n, sizeof(*more));
		more_met = schema_take(s, 2 * (size_t)n, 1);
		k = 0;
		for (uint32_t j = 0; j < n; j++) {
			e = schema_expr(s, regex_and(s->r, keys[j].expr, p->expr[i]));
			if (!expr_empty(s, e)) {
				more[k] = (struct keys){ e, term_and(s, keys[j].term, p->term[i]), false };
				more_met[k++] = true;
			}
			e = without(s, keys[j].expr, p->expr[i]);
			if (!expr_empty(s, e)) {
				more[k] = (struct keys){ e, keys[j].term, keys[j].loose };
				more_met[k++] = met[j];
			}
		}
		keys = more;
		met = more_met;
		n = k;
	}
	for (uint32_t j = 0; j < n; j++)
		if (!met[j])
			keys[j].term = other;
	o->keys = keys;
	o->n_keys = n;
}

static void read_properties(struct schema *s, json_t *schema, struct object_form *o, const struct patterns *p)
{
	json_t *map = read_object(s, schema, "properties"), *v, *required = json_object_get(schema, "required");
	size_t n = json_object_size(map) + json_array_size(required), i;
	struct property *list = schema_take(s, n + 1, sizeof(*list)), *q;
	struct word name;
	const char *key;

	o->property = list;
	json_object_foreach(map, key, v) {
		q = &list[o->n++];
		q->name = (struct word){ key, strlen(key), false };
		q->term = read_term(s, schema, "properties", v);
		q->required = json_is_true(json_object_get(v, "required"));     /* as draft 3 wrote it */
		for (i = 0; i < p->n; i++)
			if (word_in(s, &q->name, p->expr[i], false))
				q->term = term_and(s, q->term, p->term[i]);
	}
	if (required && !json_is_array(required) && !json_is_boolean(required))
		schema_fail(s, -EINVAL, schema, "\"required\" of a JSON schema must be an array of names.");
	json_array_foreach(required, i, v) {
		if (!json_is_string(v))
			schema_fail(s, -EINVAL, schema, "\"required\" of a JSON schema must be an array of names.");
		name = word_of(s, v);
		q = (struct property *)(uintptr_t)object_find(s, o, &name);
		if (q) {
			q->required = true;
			continue;
		}
		list[o->n] = (struct property){ name, object_value(s, o, &name), true, true };
		o->n++;
		o->by_name = NULL;
	}
}

static struct object_form *with_names_of(struct schema *s, json_t *schema, struct object_form *o)
{
	json_t *v = json_object_get(schema, "propertyNames");
	struct object_form *names = object_any(s);
	struct keys *keys = schema_take(s, 2, sizeof(*keys));
	const struct form *f;
	uint32_t e;

	if (!v)
		return o;
	f = term_form(s, read_term(s, schema, "propertyNames", v));
	e = f->string.expr;
	for (uint32_t i = 0; i < f->string.n; i++)
		e = schema_expr(s, regex_or(s->r, e, word_string(s, &f->string.word[i])));
	keys[0] = (struct keys){ e, TERM_ANY, true };
	keys[1] = (struct keys){ without(s, s->all_strings, e), TERM_NONE, false };
	names->n_keys = 2;
	names->keys = keys;
	if (expr_empty(s, keys[1].expr))
		names->n_keys = 1;
	else if (expr_empty(s, e))
		names->keys = keys + 1, names->n_keys = 1;
	return object_and(s, o, names);
}

static struct object_form *read_object_shape(struct schema *s, json_t *schema)
{
	struct object_form *o = object_any(s);
	struct patterns p = read_patterns(s, schema);
	const char *keyword = "additionalProperties";
	json_t *other = json_object_get(schema, keyword);
	static const char *const beside[] = {
		"$ref",         "allOf",       "anyOf",        "oneOf", "not", "if", "dependentSchemas",
		"dependencies", "$dynamicRef", "$recursiveRef"
	};

	if (!other) {
		other = json_object_get(schema, keyword = "unevaluatedProperties");
		for (size_t i = 0; i < sizeof(beside) / sizeof(*beside) && other; i++)
			if (json_object_get(schema, beside[i]))
				other = NULL;
	}
	read_keys(s, o, &p, other ? read_term(s, schema, keyword, other) : TERM_ANY, !other);
	read_properties(s, schema, o, &p);
	o->soft = !other && json_object_get(schema, "properties") && !s->o->additional_properties;
	o->min = read_count(s, schema, "minProperties", 0);
	o->max = read_count(s, schema, "maxProperties", MANY);
	if (o->min > o->max)
		return NULL;
	return with_names_of(s, schema, o);
}

/* ---- all of them ---- */

static bool any_of(const json_t *schema, const char *const *keyword)
{
	for (; *keyword; keyword++)
		if (json_object_get(schema, *keyword))
			return true;
	return false;
}

void read_types(struct schema *s, json_t *schema, struct form *f)
{
	static const char *const arrays[] = { "items",    "prefixItems",      "additionalItems",
		                                  "minItems", "maxItems",         "uniqueItems",
		                                  "contains", "unevaluatedItems", NULL };
	static const char *const objects[] = { "properties",
		                                   "required",
		                                   "patternProperties",
		                                   "additionalProperties",
		                                   "propertyNames",
		                                   "minProperties",
		                                   "maxProperties",
		                                   "unevaluatedProperties",
		                                   NULL };

	read_type(s, schema, f);
	if (f->number.expr != REGEX_NONE)
		read_numbers(s, schema, f);
	if (f->string.expr != REGEX_NONE)
		read_strings(s, schema, f);
	if (f->n_arrays && any_of(schema, arrays)) {
		struct array_form **a = schema_take(s, 1, sizeof(*a));

		a[0] = read_array_shape(s, schema);
		f->array = (const struct array_form *const *)a;
		f->n_arrays = a[0] != NULL;
	}
	if (f->n_objects && any_of(schema, objects)) {
		struct object_form **o = schema_take(s, 1, sizeof(*o));

		o[0] = read_object_shape(s, schema);
		f->object = o;
		f->n_objects = o[0] != NULL;
	}
}
