/* read.c - keywords to forms: enum, const, references, and those that combine schemas.
 *
 * Each keyword is applied to what the ones before it allow, which proves more alternatives empty.
 */
#include <stdio.h>
#include <stdlib.h>

#include "impl.h"

json_t *read_object(struct schema *s, const json_t *schema, const char *keyword)
{
	json_t *v = json_object_get(schema, keyword);

	if (v && !json_is_object(v))
		schema_fail(s, -EINVAL, schema, "\"%s\" of a JSON schema must be an object.", keyword);
	return v;
}

json_t *read_array(struct schema *s, const json_t *schema, const char *keyword)
{
	json_t *v = json_object_get(schema, keyword);

	if (v && !json_is_array(v))
		schema_fail(s, -EINVAL, schema, "\"%s\" of a JSON schema must be an array.", keyword);
	return v;
}

uint32_t read_term(struct schema *s, const json_t *schema, const char *keyword, json_t *v)
{
	if (!json_is_object(v) && !json_is_boolean(v))
		schema_fail(s, -EINVAL, schema, "\"%s\" of a JSON schema must hold a schema: an object or a boolean.",
		            keyword);
	return term_schema(s, v);
}

static const struct form *sub_form(struct schema *s, const json_t *schema, const char *keyword, json_t *v)
{
	return term_form(s, read_term(s, schema, keyword, v));
}

/* ---- values ---- */

static const struct form *read_enum(struct schema *s, const json_t *schema)
{
	json_t *list = read_array(s, schema, "enum"), *v;
	struct form *f = form_none(s);
	struct word *number = schema_take(s, json_array_size(list) + 1, sizeof(*number));
	struct word *string = schema_take(s, json_array_size(list) + 1, sizeof(*string));
	size_t i;

	f->number.word = number;
	f->string.word = string;
	json_array_foreach(list, i, v) {
		f->null |= json_is_null(v);
		f->yes |= json_is_true(v);
		f->no |= json_is_false(v);
		if (json_is_string(v))
			string[f->string.n++] = word_of(s, v);
		else if (json_is_number(v))
			number[f->number.n++] = word_of(s, v);
	}
	json_array_foreach(list, i, v)
		if (json_is_object(v) || json_is_array(v))
			form_add(s, f, form_value(s, v));
	return f;
}

/* ---- combinations ---- */

/* Exactly one of the list, within f. */
static const struct form *read_one_of(struct schema *s, const json_t *schema, json_t *list,
                                      const struct form *f)
{
	size_t n = json_array_size(list);
	const struct form **sub = schema_take(s, n + 1, sizeof(*sub)), *one;
	struct form *all = form_none(s);

	for (size_t i = 0; i < n; i++)
		sub[i] = form_and(s, f, sub_form(s, schema, "oneOf", json_array_get(list, i)));
	for (size_t i = 0; i < n; i++) {
		one = sub[i];
		s->blame = (struct blame){ schema, "oneOf" };
		for (size_t k = 0; k < n; k++)
			if (k != i)
				one = form_minus(s, one, term_form(s, term_schema(s, json_array_get(list, k))));
		form_add(s, all, one);
	}
	return all;
}

static const struct form *read_list(struct schema *s, const json_t *schema, const char *keyword,
                                    const struct form *f)
{
	json_t *list = read_array(s, schema, keyword), *v;
	struct form *any = form_none(s);
	size_t i;

	if (!json_array_size(list))
		schema_fail(s, -EINVAL, schema, "\"%s\" of a JSON schema must not be empty.", keyword);
	if (!strcmp(keyword, "oneOf"))
		return read_one_of(s, schema, list, f);
	json_array_foreach(list, i, v) {
		if (!strcmp(keyword, "allOf"))
			f = form_and(s, f, sub_form(s, schema, keyword, v));
		else
			form_add(s, any, form_and(s, f, sub_form(s, schema, keyword, v)));
	}
	return !strcmp(keyword, "allOf") ? f : any;
}

/* f without what the keyword's schema allows. */
static const struct form *read_not(struct schema *s, const json_t *schema, const char *keyword,
                                   const struct form *f)
{
	const struct form *not = sub_form(s, schema, keyword, json_object_get(schema, keyword));

	s->blame = (struct blame){ schema, keyword };
	return form_minus(s, f, not);
}

static const struct form *read_if(struct schema *s, const json_t *schema, const struct form *f)
{
	json_t *then = json_object_get(schema, "then"), *otherwise = json_object_get(schema, "else");
	const struct form *yes, *no;
	struct form *all = form_none(s);

	if (!then && !otherwise)
		return f;
	yes = form_and(s, f, sub_form(s, schema, "if", json_object_get(schema, "if")));
	no = read_not(s, schema, "if", f);
	if (then)
		yes = form_and(s, yes, sub_form(s, schema, "then", then));
	if (otherwise)
		no = form_and(s, no, sub_form(s, schema, "else", otherwise));
	form_add(s, all, yes);
	form_add(s, all, no);
	return all;
}

/* ---- dependencies ---- */

/* Objects with the property `first` and with `names`; or, if not there, without `first`.  others: and every
 * value that is no object. */
static const struct form *with_names(struct schema *s, const char *first, json_t *names, bool there,
                                     bool others)
{
	size_t n = json_array_size(names), i;
	struct object_form **list = schema_take(s, 1, sizeof(*list)), *o = object_any(s);
	struct property *p = schema_take(s, n + 1, sizeof(*p));
	json_t *v;

	p[o->n++] =
		(struct property){ { first, strlen(first), false }, there ? TERM_ANY : TERM_NONE, there, true };
	json_array_foreach(names, i, v)
		if (strcmp(json_string_value(v), first))
			p[o->n++] = (struct property){ word_of(s, v), TERM_ANY, true, true };
	o->property = p;
	list[0] = o;
	return form_objects(s, list, 1, others);
}

static const struct form *read_dependencies(struct schema *s, const json_t *schema, const char *keyword,
                                            const struct form *f)
{
	json_t *map = read_object(s, schema, keyword), *v, *name;
	const struct form *there;
	struct form *all;
	const char *key;
	size_t i;

	json_object_foreach(map, key, v) {
		if (!json_is_array(v) && read_term(s, schema, keyword, v) == TERM_ANY)
			continue;
		if (json_is_array(v)) {
			json_array_foreach(v, i, name)
				if (!json_is_string(name))
					schema_fail(s, -EINVAL, schema, "\"%s\" of a JSON schema must name properties.", keyword);
			there = with_names(s, key, v, true, false);
		} else {
			there = form_and(s, with_names(s, key, NULL, true, false), sub_form(s, schema, keyword, v));
		}
		all = form_none(s);
		form_add(s, all, form_and(s, f, with_names(s, key, NULL, false, true)));
		form_add(s, all, form_and(s, f, there));
		f = all;
	}
	return f;
}

/* ---- references ---- */

static const struct form *ignore(struct schema *s, const json_t *schema, const char *keyword)
{
	schema_ignore(s, schema, keyword);
	return form_any(s);
}

static const struct form *read_ref(struct schema *s, const json_t *schema, const char *keyword)
{
	const char *ref = json_string_value(json_object_get(schema, keyword)), *anchor;
	json_t *to;
	uint32_t same = 0;

	if (!ref)
		schema_fail(s, -EINVAL, schema, "\"%s\" of a JSON schema must be a string.", keyword);
	to = schema_resolve(s, schema, ref);
	if (!strcmp(keyword, "$recursiveRef") && json_is_true(json_object_get(to, "$recursiveAnchor")) &&
	    s->n_resources > 1)
		return ignore(s, schema, keyword);
	anchor = json_string_value(json_object_get(to, "$dynamicAnchor"));
	if (!strcmp(keyword, "$dynamicRef") && anchor) {
		for (uint32_t i = 0; i < s->n_anchors; i++)
			same += !strcmp(s->anchor[i].name, anchor);
		if (same > 1)          /* which one is meant depends on the way here */
			return ignore(s, schema, keyword);
	}
	return term_form(s, read_term(s, schema, keyword, to));
}

/* ---- unevaluatedProperties, unevaluatedItems ---- */

static bool applies(const json_t *schema)
{
	static const char *const in_place[] = { "$ref",        "$dynamicRef", "$recursiveRef",
		                                    "allOf",       "anyOf",       "oneOf",
		                                    "not",         "if",          "dependentSchemas",
		                                    "dependencies" };

	for (size_t i = 0; i < sizeof(in_place) / sizeof(*in_place); i++)
		if (json_object_get(schema, in_place[i]))
			return true;
	return false;
}

/* What a schema and those that always hold with it evaluate. */
struct evaluated {
	bool all;
	uint32_t names;                 /* expression */
	uint64_t items;
};

static void find_evaluated(struct schema *s, const json_t *schema, json_t *sub, struct evaluated *e,
                           unsigned depth)
{
	json_t *v, *map;
	const char *key;
	size_t i;

	if (!json_is_object(sub))
		return;
	if (depth > 32 || (depth && (json_object_get(sub, "unevaluatedProperties") ||
	                             json_object_get(sub, "unevaluatedItems"))))
		e->all = true;
	json_object_foreach(sub, key, v) {
		if (!strcmp(key, "additionalProperties") || (!strcmp(key, "items") && !json_is_array(v)) ||
		    !strcmp(key, "additionalItems") || !strcmp(key, "contains"))
			e->all = true;
		if (!strcmp(key, "anyOf") || !strcmp(key, "oneOf") || !strcmp(key, "if") ||
		    !strcmp(key, "dependentSchemas") || !strcmp(key, "dependencies") || !strcmp(key, "$dynamicRef") ||
		    !strcmp(key, "$recursiveRef"))
			e->all = true;
	}
	if (e->all)
		return;
	map = read_object(s, sub, "properties");
	json_object_foreach(map, key, v) e->names =
		schema_expr(s, regex_or(s->r, e->names, word_string(s, &(struct word){ key, strlen(key), false })));
	map = read_object(s, sub, "patternProperties");
	json_object_foreach(map, key, v) e->names = schema_expr(
		s, regex_or(s->r, e->names, string_pattern(s, sub, "patternProperties", key, strlen(key))));
	v = json_object_get(sub, json_is_array(json_object_get(sub, "items")) ? "items" : "prefixItems");
	if (json_array_size(v) > e->items)
		e->items = json_array_size(v);
	if (json_is_string(json_object_get(sub, "$ref")))
		find_evaluated(s, schema, schema_resolve(s, sub, json_string_value(json_object_get(sub, "$ref"))), e,
		               depth + 1);
	json_array_foreach(json_object_get(sub, "allOf"), i, v)
		find_evaluated(s, schema, v, e, depth + 1);
}

/* With schemas beside it: exact if they always hold ($ref, allOf) and evaluate properties by name. */
static const struct form *read_unevaluated(struct schema *s, json_t *schema, const char *keyword)
{
	uint32_t term = read_term(s, schema, keyword, json_object_get(schema, keyword)), *prefix, other;
	struct evaluated e = { .names = REGEX_NONE };
	struct object_form **objects, *o;
	struct array_form **arrays, *a;
	struct keys *keys;

	if (term == TERM_ANY || !applies(schema))
		return NULL;            /* without schemas beside it, it stands for additionalProperties or items */
	find_evaluated(s, schema, schema, &e, 0);
	if (e.all) {
		schema_ignore(s, schema, keyword);
		return NULL;
	}
	if (!strcmp(keyword, "unevaluatedItems")) {
		arrays = schema_take(s, 1, sizeof(*arrays));
		a = arrays[0] = array_any(s);
		prefix = schema_take(s, e.items + 1, sizeof(*prefix));
		for (uint64_t i = 0; i < e.items; i++)
			prefix[i] = TERM_ANY;
		a->prefix = prefix;
		a->n = (uint32_t)e.items;
		a->rest = term;
		return form_arrays(s, arrays, 1, true);
	}
	objects = schema_take(s, 1, sizeof(*objects));
	o = objects[0] = object_any(s);
	keys = schema_take(s, 2, sizeof(*keys));
	other = schema_expr(s, regex_and(s->r, s->all_strings, schema_expr(s, regex_not(s->r, e.names))));
	keys[0] = (struct keys){ other, term, false };
	keys[1] = (struct keys){ e.names, TERM_ANY, true };
	o->keys = keys;
	o->n_keys = e.names == REGEX_NONE ? 1 : 2;
	return form_objects(s, objects, 1, true);
}

/* ---- one schema ---- */

/* What of f the keyword allows. */
static const struct form *read_keyword(struct schema *s, json_t *schema, const char *key, json_t *v,
                                       const struct form *f)
{
	static const char *const refs[] = { "$ref", "$dynamicRef", "$recursiveRef" };
	const int draft = schema_draft(s, schema);
	const struct form *part;

	for (size_t i = 0; i < 3; i++)
		if (!strcmp(key, refs[i]) && (i == 0 || draft >= 2019))
			return form_and(s, f, read_ref(s, schema, key));
	if (!strcmp(key, "enum"))
		return form_and(s, f, read_enum(s, schema));
	if (!strcmp(key, "const"))
		return form_and(s, f, form_value(s, v));
	if (!strcmp(key, "allOf") || !strcmp(key, "anyOf") || !strcmp(key, "oneOf"))
		return read_list(s, schema, key, f);
	if (!strcmp(key, "not"))
		return read_not(s, schema, key, f);
	if (!strcmp(key, "if"))
		return read_if(s, schema, f);
	if (!strcmp(key, "dependencies") || !strcmp(key, "dependentRequired") || !strcmp(key, "dependentSchemas"))
		return read_dependencies(s, schema, key, f);
	if (!strcmp(key, "unevaluatedProperties") || !strcmp(key, "unevaluatedItems")) {
		part = read_unevaluated(s, schema, key);
		return part ? form_and(s, f, part) : f;
	}
	return f;
}

static bool always(const char *keyword)
{
	return !strcmp(keyword, "enum") || !strcmp(keyword, "const") || !strcmp(keyword, "$ref") ||
	       !strcmp(keyword, "allOf");
}

const struct form *read_schema(struct schema *s, json_t *schema)
{
	struct form *own = form_copy(s, form_any(s));
	const struct form *f = form_any(s);
	const char *key;
	json_t *v;

	if (!json_is_object(schema))
		schema_fail(s, -EINVAL, NULL, "A JSON schema must be an object or a boolean.");
	if (schema_draft(s, schema) <= 7 && json_object_get(schema, "$ref"))
		return read_ref(s, schema, "$ref");      /* these drafts leave out what stands beside it */
	read_types(s, schema, own);
	if (!json_object_get(schema, "properties"))
		f = own;
	/* What always holds, in the order in which it names properties; then what makes alternatives. */
	json_object_foreach(schema, key, v) {
		if (!strcmp(key, "properties"))
			f = form_and(s, f, own);
		else if (always(key))
			f = read_keyword(s, schema, key, v, f);
	}
	json_object_foreach(schema, key, v)
		if (!always(key))
			f = read_keyword(s, schema, key, v, f);
	return f;
}
