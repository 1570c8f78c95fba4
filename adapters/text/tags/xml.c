/* xml.c - arguments of a call between markers, one by one: <parameter=K>V</parameter> and the like.  Python's
 * and Gemma's notations are in literal.c.
 *
 * A string is its plain text, any other value is JSON.  Members come in the order of the schema's properties;
 * any_order allows every order, and still each member once and all that are required.  White space may stand
 * between members.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/grammar/pattern.h"
#include "adapters/text/schema/schema.h"
#include "xml.h"

#define BLANKS 8  /* most in a row */
#define DEPTH  16 /* references to references, choices within choices */

static const struct xml_style styles[] = {
	{ "qwen_xml", "<parameter=", ">", "", "</parameter>", XML_MARKERS, false, true },
	{ "minimax_xml", "<parameter name=\"", "\">", "", "</parameter>", XML_MARKERS, false, false },
	{ "deepseek_xml", "<｜DSML｜parameter name=\"", "\" string=\"%s\">", "", "</｜DSML｜parameter>",
	  XML_MARKERS, true, false },
	{ "glm_xml", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", XML_MARKERS, false, false },
	{ "step_xml", "<steptml:parameter name=\"", "\">", "", "</steptml:parameter>", XML_MARKERS, false,
	  false },
	{ "python", "", "=", "\"", "\"", XML_PYTHON, false, false },
	{ "gemma4", "", ":", "<|\"|>", "<|\"|>", XML_GEMMA, false, false },
	{ "functiongemma", "", ":", "<escape>", "<escape>", XML_GEMMA, false, false },
};

/* ---- schemas ------------------------------------------------------------------------------ */

/* The schema that a reference within the document names, or NULL. */
static json_t *follow(const struct xml *x, const char *ref)
{
	json_t *v = x->root;
	char key[256];
	size_t n;

	if (*ref++ != '#')
		return NULL;
	while (v && *ref == '/') {
		n = strcspn(++ref, "/");
		if (n >= sizeof(key) || memchr(ref, '~', n) || memchr(ref, '%', n))
			return NULL;
		memcpy(key, ref, n);
		key[n] = 0;
		v = json_object_get(v, key);
		ref += n;
	}
	return *ref ? NULL : v;
}

/* s, or what it refers to; NULL after an error. */
json_t *xml_resolved(const struct xml *x, json_t *s)
{
	json_t *ref;

	for (int i = 0; i < DEPTH; i++) {
		ref = json_object_get(s, "$ref");
		if (!ref)
			return s;
		s = json_is_string(ref) ? follow(x, json_string_value(ref)) : NULL;
		if (!s)
			break;
	}
	tags_fail(x->t, -ENOTSUP, x->at,
	          "A '$ref' here must name a place in the same schema, as in '#/$defs/X'.");
	return NULL;
}

/* Refuse keywords that are not in the list. */
bool xml_only(const struct xml *x, json_t *s, const char *const *known)
{
	static const char *const notes[] = {
		"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly",
		"$defs", "definitions", "$schema", "$id", "contentEncoding", "contentMediaType", NULL
	};
	const char *key;
	json_t *v;
	int i, k;

	json_object_foreach(s, key, v) {
		for (i = 0; known[i] && strcmp(known[i], key); i++)
			;
		for (k = 0; notes[k] && strcmp(notes[k], key); k++)
			;
		if (!known[i] && !notes[k])
			tags_fail(x->t, -ENOTSUP, x->at, "'%.60s' is not supported here in style %s.", key,
			          x->style->name);
	}
	return !x->t->e->code;
}

/* ---- values ------------------------------------------------------------------------------- */

/* Text that is in `e`, up to and with the end of the value. */
int32_t xml_plain(const struct xml *x, uint32_t e)
{
	struct tags *t = x->t;
	const char *end = x->style->value_end;
	struct tags_markers *k = calloc(1, sizeof(*k));
	uint32_t mark, late, line = regex_bytes(t->x, "\n", 1), not ;
	int32_t symbol[2];

	if (!k)
		return tags_fail(t, -ENOMEM, x->at, "There is not enough memory.");
	if (x->style->lines && e != t->text) {
		not = regex_or(t->x, regex_concat(t->x, line, REGEX_ANY), regex_concat(t->x, REGEX_ANY, line));
		e = regex_or(t->x, regex_concat(t->x, line, regex_concat(t->x, e, line)),
		             regex_and(t->x, e, regex_not(t->x, not )));
	}
	tags_mark(t, k, end, strlen(end), x->at);
	if (k->m[0].plain) {
		mark = k->m[0].expr;
		late = regex_concat(t->x, REGEX_ANY, regex_concat(t->x, mark, t->more));
		symbol[0] = grammar_lexeme(t->g, regex_and(t->x, regex_concat(t->x, e, mark), regex_not(t->x, late)));
	} else {
		symbol[0] = grammar_lexeme(t->g, e);
		symbol[1] = k->m[0].symbol;
		symbol[0] = tags_all(t, symbol, 2);
	}
	free(k);
	return symbol[0];
}

/* A length of a string; `none` if it is absent. */
static uint32_t length_of(const struct xml *x, json_t *s, const char *key, uint32_t none)
{
	json_t *v = json_object_get(s, key);

	if (v && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX))
		tags_fail(x->t, -EINVAL, x->at, "'%s' must be an integer from 0 to 2147483647.", key);
	return v ? (uint32_t)json_integer_value(v) : none;
}

/* out, and a pattern besides. */
static uint32_t and_pattern(const struct xml *x, uint32_t out, const char *pattern, size_t n, unsigned flags)
{
	struct grammar_error e = { 0 };
	uint32_t expr = pattern_parse(x->t->x, pattern, n, flags, &e);

	if (expr == REGEX_FAILED)
		tags_fail(x->t, e.code ? e.code : -E2BIG, x->at, "%s", e.message);
	return expr == REGEX_FAILED ? out : regex_and(x->t->x, out, expr);
}

/* out, and the strings of `enum` and `const` besides. */
static uint32_t and_values(const struct xml *x, uint32_t out, json_t *s)
{
	struct regexes *r = x->t->x;
	json_t *list = json_object_get(s, "enum"), *v = json_object_get(s, "const");
	uint32_t any = REGEX_NONE;
	size_t i;

	if (v)
		out = regex_and(r, out, regex_bytes(r, json_string_value(v), json_string_length(v)));
	json_array_foreach(list, i, v)
		if (json_is_string(v))
			any = regex_or(r, any, regex_bytes(r, json_string_value(v), json_string_length(v)));
	return list ? regex_and(r, out, any) : out;
}

/* A schema of strings as an expression over their text. */
uint32_t xml_text(const struct xml *x, json_t *s)
{
	static const char *const known[] = { "type",      "enum",    "const",  "minLength",
		                                 "maxLength", "pattern", "format", NULL };
	uint32_t least = length_of(x, s, "minLength", 0), most = length_of(x, s, "maxLength", REGEX_MANY);
	json_t *pattern = json_object_get(s, "pattern"), *format = json_object_get(s, "format");
	const char *const *of = json_is_string(format) ? schema_format(json_string_value(format)) : NULL;
	const unsigned json = x->style->notation == XML_PYTHON ? PATTERN_JSON : 0;
	uint32_t one = json ? json_char(x->t->x) : x->t->any, out, any = REGEX_NONE;
	int live;

	out = json ? regex_repeat(x->t->x, one, 0, REGEX_MANY) : x->t->text;
	if (!xml_only(x, s, known))
		return REGEX_NONE;
	if (most < least || (pattern && !json_is_string(pattern)) || (format && !json_is_string(format)))
		tags_fail(x->t, -EINVAL, x->at, "'maxLength', 'pattern' or 'format' is wrong.");
	else if (least || most != REGEX_MANY)
		out = regex_repeat(x->t->x, one, least, most);
	out = and_values(x, out, s);
	if (json_is_string(pattern))
		out = and_pattern(x, out, json_string_value(pattern), json_string_length(pattern),
		                  PATTERN_SEARCH | json);
	for (; of && *of; of++)
		any = regex_or(x->t->x, any, and_pattern(x, out, *of, strlen(*of), json));
	if (any != REGEX_NONE)
		out = any;
	live = x->t->e->code ? 1 : regex_live(x->t->x, out);
	if (live == -E2BIG && !regexes_error(x->t->x))
		tags_fail(x->t, live, x->at,
		          "It takes too long to find out if any text satisfies the schema of a string.");
	if (!live)
		tags_fail(x->t, -EINVAL, x->at, "No text satisfies the schema of a string.");
	return out;
}

/* JSON of the schema, and the end of the value. */
static int32_t json_of(const struct xml *x, json_t *s)
{
	static const char *const defs[] = { "$defs", "definitions" };
	struct grammar_error e = { 0 };
	json_t *whole = json_is_object(s) ? json_copy(s) : json_incref(s), *v;
	const char *end = x->style->value_end;
	int32_t symbol[4];

	for (int i = 0; i < 2; i++) {
		v = json_object_get(x->root, defs[i]);
		if (v && json_is_object(whole) && !json_object_get(whole, defs[i]))
			json_object_set(whole, defs[i], v);
	}
	symbol[0] = symbol[2] = grammar_lexeme(x->t->g, x->blanks);
	symbol[1] = schema_compile(x->t->g, whole, "#", &e);
	symbol[3] = tags_string(x->t, end, strlen(end), x->at);
	json_decref(whole);
	if (symbol[1] < 0)
		return tags_fail(x->t, e.code ? e.code : -E2BIG, x->at, "%s",
		                 e.code ? e.message : "The schema is too complex.");
	return tags_all(x->t, symbol, 4);
}

enum { TEXT = 1, OTHER = 2 };

static int kind_of_type(const json_t *type)
{
	return !strcmp(json_string_value(type) ? json_string_value(type) : "", "string") ? TEXT : OTHER;
}

/* Which kinds of values s allows: text, others, or both. */
static int kinds_of(const struct xml *x, json_t *s)
{
	json_t *type = json_object_get(s, "type"), *list = json_object_get(s, "enum");
	json_t *v = json_object_get(s, "const");
	int by_type = 0, by_value = v ? json_is_string(v) ? TEXT : OTHER : 0;
	size_t i;

	json_array_foreach(list, i, v)
		by_value |= json_is_string(v) ? TEXT : OTHER;
	if (json_is_string(type))
		by_type = kind_of_type(type);
	json_array_foreach(type, i, v)
		by_type |= kind_of_type(v);
	if (!type)
		by_type = json_object_get(s, "properties") || json_object_get(s, "items") ? OTHER : TEXT | OTHER;
	by_type &= by_value ? by_value : TEXT | OTHER;
	if (json_is_false(s) || !by_type)
		tags_fail(x->t, -EINVAL, x->at, "No value satisfies a schema here.");
	return by_type;
}

/* Where the key ends, for a value that is text or not; then the value. */
static int32_t keyed(const struct xml *x, bool text, int32_t value)
{
	char end[64];
	int32_t symbol[2] = { 0, value };

	if (!x->style->flagged)
		return value;
	snprintf(end, sizeof(end), x->style->key_end, text ? "true" : "false");
	symbol[0] = tags_string(x->t, end, strlen(end), x->at);
	return tags_all(x->t, symbol, 2);
}

/* s with only the values of its enum that are not strings, and only its types besides string. */
static json_t *without_text(json_t *s)
{
	static const char *const names[] = { "null", "boolean", "integer", "number", "array", "object" };
	json_t *out = json_is_object(s) ? json_copy(s) : json_object(), *list = json_array(), *v, *type;
	size_t i;

	type = json_object_get(s, "type");
	if (json_is_array(type)) {
		json_array_foreach(type, i, v) if (kind_of_type(v) == OTHER) json_array_append(list, v);
	} else if (!type) {
		for (i = 0; i < 6; i++)
			if (i != 2)
				json_array_append_new(list, json_string(names[i]));
	}
	if (json_array_size(list))
		json_object_set(out, "type", list);
	json_decref(list);
	return out;
}

static int32_t value_of(const struct xml *x, json_t *s, int depth);

/* Any of several schemas. */
static int32_t any_of(const struct xml *x, json_t *list, int depth)
{
	int32_t rule = grammar_rule(x->t->g), symbol;
	json_t *v;
	size_t i;

	json_array_foreach(list, i, v) {
		symbol = value_of(x, v, depth + 1);
		grammar_produce(x->t->g, rule, &symbol, 1);
	}
	return rule;
}

/* Exactly one of several schemas: at most one of strings, and the others as one schema of JSON. */
static int32_t one_of(const struct xml *x, json_t *list)
{
	json_t *rest = json_pack("{s[]}", "oneOf"), *v, *text = NULL;
	int32_t rule = grammar_rule(x->t->g), symbol;
	bool clear = true;
	size_t i;

	json_array_foreach(list, i, v) {
		json_t *to = xml_resolved(x, v);
		int kinds = to ? kinds_of(x, to) : OTHER;

		clear = clear && kinds != (TEXT | OTHER) && !(kinds == TEXT && text);
		if (kinds == TEXT)
			text = to;
		else
			json_array_append(json_object_get(rest, "oneOf"), v);
	}
	if (!clear)
		tags_fail(x->t, -ENOTSUP, x->at,
		          "'oneOf' may have one schema of strings here, besides others with a type.");
	if (text && !x->t->e->code) {
		symbol = keyed(x, true, xml_plain(x, xml_text(x, text)));
		grammar_produce(x->t->g, rule, &symbol, 1);
	}
	if (json_array_size(json_object_get(rest, "oneOf")) && !x->t->e->code) {
		symbol = keyed(x, false, json_of(x, rest));
		grammar_produce(x->t->g, rule, &symbol, 1);
	}
	json_decref(rest);
	return x->t->e->code ? -1 : rule;
}

/* The keyword that joins schemas, if s has one: it stands alone. */
static json_t *joined(const struct xml *x, json_t *s, const char *key)
{
	const char *const known[] = { key, NULL };
	json_t *list = json_object_get(s, key);

	return list && xml_only(x, s, known) ? list : NULL;
}

/* Text, or JSON of what is not text. */
static int32_t either(const struct xml *x, json_t *s)
{
	int32_t rule = grammar_rule(x->t->g), symbol;
	json_t *other = without_text(s);

	symbol = keyed(x, true, xml_plain(x, json_is_object(s) ? xml_text(x, s) : x->t->text));
	grammar_produce(x->t->g, rule, &symbol, 1);
	symbol = keyed(x, false, json_of(x, other));
	grammar_produce(x->t->g, rule, &symbol, 1);
	json_decref(other);
	return rule;
}

static int32_t value_of(const struct xml *x, json_t *s, int depth)
{
	json_t *list;
	int kinds;

	s = xml_resolved(x, s);
	if (!s || x->t->e->code)
		return -1;
	if (depth > DEPTH)
		return tags_fail(x->t, -E2BIG, x->at, "Choices within choices may nest at most %d levels.", DEPTH);
	list = json_object_get(s, "allOf");
	if (json_array_size(list) == 1 && joined(x, s, "allOf"))
		return value_of(x, json_array_get(list, 0), depth + 1);
	if ((list = json_object_get(s, "anyOf")))
		return joined(x, s, "anyOf") ? any_of(x, list, depth) : -1;
	if ((list = json_object_get(s, "oneOf")))
		return joined(x, s, "oneOf") ? one_of(x, list) : -1;
	kinds = kinds_of(x, s);
	if (x->t->e->code)
		return -1;
	if (kinds == OTHER)
		return keyed(x, false, json_of(x, s));
	return kinds == TEXT ? keyed(x, true, xml_plain(x, xml_text(x, s))) : either(x, s);
}

/* ---- members ------------------------------------------------------------------------------ */

/* The value's beginning, the value with its end, and white space. */
static int32_t rest_of_member(const struct xml *x, int32_t key, json_t *s)
{
	int32_t symbol[4];
	uint32_t n = 0;

	symbol[n++] = key;
	if (*x->style->value) {
		symbol[n++] = grammar_lexeme(x->t->g, x->blanks);
		symbol[n++] = tags_string(x->t, x->style->value, strlen(x->style->value), x->at);
	}
	symbol[n++] = value_of(x, s, 0);
	key = tags_all(x->t, symbol, n);
	symbol[0] = key;
	symbol[1] = grammar_lexeme(x->t->g, x->blanks);
	return tags_all(x->t, symbol, 2);
}

static int32_t member(const struct xml *x, const char *key, json_t *s)
{
	char text[512];
	int32_t symbol;

	if (strlen(key) > 256 || strpbrk(key, "<>\"\n"))
		return tags_fail(x->t, -ENOTSUP, x->at, "The name '%.40s' cannot be written in style %s.", key,
		                 x->style->name);
	snprintf(text, sizeof(text), "%s%s%s", x->style->key, key, x->style->flagged ? "" : x->style->key_end);
	symbol = tags_string(x->t, text, strlen(text), x->at);
	return rest_of_member(x, symbol, s);
}

/* A member whose name is not among the properties; -1: none is allowed. */
static int32_t other_member(const struct xml *x, json_t *s, json_t *properties)
{
	static const char names[] = "[a-zA-Z_][a-zA-Z0-9_.-]{0,255}";
	struct tags *t = x->t;
	json_t *more = json_object_get(s, "additionalProperties"), *v;
	const struct sr_grammar_options *o = grammar_options(t->g);
	bool open =
		more ? !json_is_false(more) : !json_object_size(properties) || (o && o->additional_properties);
	uint32_t name, taken = REGEX_NONE;
	struct grammar_error e = { 0 };
	const char *key, *end = x->style->flagged ? "" : x->style->key_end;
	int32_t symbol[3];
	json_t *any = json_true();

	if (!open)
		return -1;
	json_object_foreach(properties, key, v) taken =
		regex_or(t->x, taken, regex_bytes(t->x, key, strlen(key)));
	name = pattern_parse(t->x, names, sizeof(names) - 1, 0, &e);
	name = regex_and(t->x, name, regex_not(t->x, taken));
	symbol[0] = tags_string(t, x->style->key, strlen(x->style->key), x->at);
	symbol[1] = grammar_lexeme(t->g, name);
	symbol[2] = tags_string(t, end, strlen(end), x->at);
	return rest_of_member(x, tags_all(t, symbol, 3), more ? more : any);
}

bool xml_required(const json_t *s, const char *key)
{
	const json_t *list = json_object_get(s, "required"), *v;
	size_t i;

	json_array_foreach(list, i, v) if (json_is_string(v) && !strcmp(json_string_value(v), key)) return true;
	return false;
}

/* Members in the order of the properties: a chain of rules from the last to the first. */
static int32_t in_order(const struct xml *x, json_t *s, json_t *properties, int32_t other)
{
	struct grammar *g = x->t->g;
	size_t n = json_object_size(properties), i = 0;
	int32_t *symbol = malloc((n + 1) * sizeof(*symbol)), rule, both[2], rest;
	const char **name = malloc((n + 1) * sizeof(*name)), *key;
	json_t *v;

	rest = other >= 0 ? grammar_repeat(g, other, 0, GRAMMAR_MANY, -1) : grammar_lexeme(g, REGEX_EMPTY);
	if (symbol && name)
		json_object_foreach(properties, key, v) {
			name[i] = key;
			symbol[i++] = member(x, key, v);
		}
	else
		tags_fail(x->t, -ENOMEM, x->at, "There is not enough memory.");
	while (i-- > 0 && !x->t->e->code) {
		rule = grammar_rule(g);
		both[0] = symbol[i];
		both[1] = rest;
		grammar_produce(g, rule, both, 2);
		if (!xml_required(s, name[i]))
			grammar_produce(g, rule, &rest, 1);
		rest = rule;
	}
	free(symbol);
	free(name);
	return x->t->e->code ? -1 : rest;
}

static int32_t in_any_order(const struct xml *x, json_t *s, json_t *properties, int32_t other)
{
	struct grammar_members *m = calloc(1, sizeof(*m));
	const char *key;
	int32_t symbol;
	json_t *v;

	if (!m || json_object_size(properties) > GRAMMAR_MEMBERS) {
		free(m);
		return tags_fail(x->t, -E2BIG, x->at, "'any_order' is for at most %d properties.", GRAMMAR_MEMBERS);
	}
	json_object_foreach(properties, key, v) {
		if (xml_required(s, key))
			m->required |= 1ull << m->n;
		m->symbol[m->n++] = member(x, key, v);
	}
	m->rest = other;
	m->max = GRAMMAR_MANY;
	m->separator = -1;
	symbol = x->t->e->code ? -1 : grammar_members(x->t->g, m);
	free(m);
	return symbol;
}

int32_t tags_xml(struct tags *t, json_t *schema, const char *style, bool any_order,
                 const struct tags_place *at)
{
	static const char *const known[] = { "type", "properties", "required", "additionalProperties", NULL };
	static const struct regex_range blank[] = { { '\t', '\n' }, { '\r', '\r' }, { ' ', ' ' } };
	struct xml x = { .t = t, .root = schema, .at = at };
	json_t *s, *properties, *list, *v;
	int32_t symbol[2], other;
	size_t i;

	for (i = 0; i < sizeof(styles) / sizeof(*styles); i++)
		if (!strcmp(styles[i].name, style))
			x.style = &styles[i];
	if (!x.style)
		return tags_fail(t, -ENOTSUP, at, "The style '%.40s' is not supported.", style);
	x.blanks = regex_repeat(t->x, regex_points(t->x, blank, 3), 0, BLANKS);
	s = json_is_true(schema) ? schema : xml_resolved(&x, schema);
	if (!s || !xml_only(&x, s, known))
		return -1;
	properties = json_object_get(s, "properties");
	list = json_object_get(s, "required");
	v = json_object_get(s, "type");
	if ((v && (!json_is_string(v) || strcmp(json_string_value(v), "object"))) ||
	    (properties && !json_is_object(properties)) || (list && !json_is_array(list)))
		return tags_fail(t, -EINVAL, at, "The schema must be of an object in style %s.", style);
	json_array_foreach(
		list, i,
		v) if (!json_is_string(v) ||
	           !json_object_get(
				   properties,
				   json_string_value(
					   v))) return tags_fail(t, -ENOTSUP, at,
	                                         "Each name in 'required' must be one of the properties.");
	if (x.style->notation != XML_MARKERS)
		return any_order ? tags_fail(t, -ENOTSUP, at, "'any_order' is not supported in style %s.", style) :
		                   xml_literals(&x, s);
	other = other_member(&x, s, properties);
	symbol[0] = grammar_lexeme(t->g, x.blanks);
	symbol[1] = any_order ? in_any_order(&x, s, properties, other) : in_order(&x, s, properties, other);
	return t->e->code ? -1 : tags_all(t, symbol, 2);
}
