/* literal.c - arguments of a call as literals: Python's f(a="x", b=[1, True]), and Gemma's
 * f{a:QxQ,b:[1,true]} where Q is a quote of its own.
 *
 * Values are written as the templates of these models write them.  A schema that refers to itself is a rule
 * that does.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/grammar/pattern.h"
#include "adapters/text/schema/schema.h"
#include "xml.h"

#define SCHEMAS 512            /* of one tool */
#define NAME "[A-Za-z_][A-Za-z0-9_.-]{0,127}"

struct literals {
	const struct xml *x;
	struct grammar *g;
	bool python;
	int32_t any;                   /* the rule of any value, or -1 */
	struct { const json_t *schema; int32_t rule; } made[SCHEMAS];
	uint32_t n_made;
};

static int32_t value(struct literals *l, json_t *s);

static int32_t constant(const struct literals *l, const char *s)
{
	return grammar_lexeme(l->g, regex_bytes(l->x->t->x, s, strlen(s)));
}

/* In Python a space may follow. */
static int32_t spaced(const struct literals *l, const char *s)
{
	struct regexes *r = l->x->t->x;

	if (!l->python)
		return constant(l, s);
	return grammar_lexeme(l->g, regex_concat(r, regex_bytes(r, s, strlen(s)),
	                                         regex_repeat(r, regex_bytes(r, " ", 1), 0, 1)));
}

static int32_t quote(const struct literals *l) { return tags_string(l->x->t, l->x->style->value,
	                                                             strlen(l->x->style->value), l->x->at); }

static void put(struct literals *l, int32_t rule, int32_t symbol) { grammar_produce(l->g, rule, &symbol, 1); }

/* ---- values that are listed ---- */

static void write_number(FILE *f, const json_t *v)
{
	char s[32];

	if (json_is_integer(v)) {
		fprintf(f, "%lld", (long long)json_integer_value(v));
		return;
	}
	snprintf(s, sizeof(s), "%.15g", json_real_value(v));
	if (strtod(s, NULL) != json_real_value(v))
		snprintf(s, sizeof(s), "%.17g", json_real_value(v));
	fputs(s, f);
}

static void write_string(const struct literals *l, FILE *f, const json_t *v)
{
	const char *q = l->x->style->value, *s = json_string_value(v);
	size_t n = json_string_length(v);

	if (l->python) {
		json_dumpf(v, f, JSON_ENCODE_ANY);
		return;
	}
	if (memmem(s, n, q, strlen(q)))
		tags_fail(l->x->t, -ENOTSUP, l->x->at, "A string with %s in it cannot be written in style %s.", q,
		          l->x->style->name);
	fprintf(f, "%s", q);
	fwrite(s, 1, n, f);
	fprintf(f, "%s", q);
}

static bool name_fits(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");

	return n && n <= 128 && !s[n] && !strchr("0123456789.-", *s);
}

static void write_key(const struct literals *l, FILE *f, const char *key)
{
	json_t *v;

	if (!l->python) {
		if (!name_fits(key))
			tags_fail(l->x->t, -ENOTSUP, l->x->at, "The name '%.40s' cannot be written in style %s.", key,
			          l->x->style->name);
		fprintf(f, "%s:", key);
		return;
	}
	v = json_string(key);
	json_dumpf(v, f, JSON_ENCODE_ANY);
	json_decref(v);
	fputs(": ", f);
}

static void write_value(const struct literals *l, FILE *f, const json_t *v)
{
	const char *comma = l->python ? ", " : ",", *key;
	size_t i, n = 0;
	json_t *item;

	switch (json_typeof(v)) {
	case JSON_NULL: fputs(l->python ? "None" : "null", f); break;
	case JSON_TRUE: fputs(l->python ? "True" : "true", f); break;
	case JSON_FALSE: fputs(l->python ? "False" : "false", f); break;
	case JSON_INTEGER: case JSON_REAL: write_number(f, v); break;
	case JSON_STRING: write_string(l, f, v); break;
	case JSON_ARRAY:
		fputc('[', f);
		json_array_foreach((json_t *)(uintptr_t)v, i, item) {
			fputs(i ? comma : "", f);
			write_value(l, f, item);
		}
		fputc(']', f);
		break;
	case JSON_OBJECT:
		fputc('{', f);
		json_object_foreach((json_t *)(uintptr_t)v, key, item) {
			fputs(n++ ? comma : "", f);
			write_key(l, f, key);
			write_value(l, f, item);
		}
		fputc('}', f);
	}
}

static void put_value(struct literals *l, int32_t rule, const json_t *v)
{
	char *s = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&s, &n);

	if (!f) {
		tags_fail(l->x->t, -ENOMEM, l->x->at, "There is not enough memory.");
		return;
	}
	write_value(l, f, v);
	if (fclose(f))
		tags_fail(l->x->t, -ENOMEM, l->x->at, "There is not enough memory.");
	else if (!l->x->t->e->code)
		put(l, rule, l->python ? grammar_lexeme(l->g, regex_bytes(l->x->t->x, s, n)) :
		                         tags_string(l->x->t, s, n, l->x->at));
	free(s);
}

/* ---- types ---- */

static bool has_type(const json_t *s, const char *name)
{
	json_t *type = json_object_get(s, "type"), *v;
	size_t i;

	if (json_is_string(type))
		return !strcmp(json_string_value(type), name);
	json_array_foreach(type, i, v)
		if (json_is_string(v) && !strcmp(json_string_value(v), name))
			return true;
	return false;
}

static void put_enum(struct literals *l, int32_t rule, json_t *s)
{
	static const char *const known[] = { "type", "enum", "const", NULL };
	static const char *const names[] = { [JSON_OBJECT] = "object", [JSON_ARRAY] = "array",
		[JSON_STRING] = "string",
		[JSON_INTEGER] = "integer", [JSON_REAL] = "number", [JSON_TRUE] = "boolean", [JSON_FALSE] = "boolean",
		[JSON_NULL] = "null" };
	json_t *list = json_object_get(s, "enum"), *only = json_object_get(s, "const"), *v;
	bool some = false;
	size_t i;

	if (!xml_only(l->x, s, known))
		return;
	list = list ? json_incref(list) : json_pack("[O]", only);
	json_array_foreach(list, i, v)
		if ((!only || json_equal(v, only)) &&
		    (!json_object_get(s, "type") || has_type(s, names[json_typeof(v)]) ||
		     (json_is_integer(v) && has_type(s, "number")))) {
			some = true;
			put_value(l, rule, v);
		}
	json_decref(list);
	if (!some)
		tags_fail(l->x->t, -EINVAL, l->x->at, "No value satisfies a schema here.");
}

static void put_string(struct literals *l, int32_t rule, json_t *s)
{
	struct regexes *r = l->x->t->x;
	uint32_t text = s ? xml_text(l->x, s) : l->python ? regex_repeat(r, json_char(r), 0, REGEX_MANY) :
		l->x->t->text;
	uint64_t all[4] = { ~0ull, ~0ull, ~0ull, ~0ull }, plain[4], other[4];
	uint32_t pair;
	int32_t symbol[2];

	if (!l->python) {
		symbol[0] = quote(l);
		symbol[1] = xml_plain(l->x, text);
		grammar_produce(l->g, rule, symbol, 2);
		return;
	}
	/* In Python a backslash before / is a backslash. */
	memcpy(plain, all, sizeof(all));
	memcpy(other, all, sizeof(all));
	plain['\\' / 64] &= ~(1ull << '\\' % 64);
	other['/' / 64] &= ~(1ull << '/' % 64);
	pair = regex_concat(r, regex_bytes(r, "\\", 1), regex_set(r, other));
	text = regex_and(r, text, regex_repeat(r, regex_or(r, regex_set(r, plain), pair), 0, REGEX_MANY));
	put(l, rule, grammar_lexeme(l->g, regex_concat(r, regex_bytes(r, "\"", 1),
	                                               regex_concat(r, text, regex_bytes(r, "\"", 1)))));
}

static void put_number(struct literals *l, int32_t rule, json_t *s, const char *type)
{
	static const char *const keys[] = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
		"multipleOf" };
	json_t *one = json_pack("{ss}", "type", type);
	struct grammar_error e = { 0 };
	int32_t symbol;

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (json_object_get(s, keys[i]))
			json_object_set(one, keys[i], json_object_get(s, keys[i]));
	symbol = one ? schema_compile(l->g, one, "#", &e) : -1;
	json_decref(one);
	if (symbol < 0)
		tags_fail(l->x->t, e.code ? e.code : -ENOMEM, l->x->at, "%s",
		          e.code ? e.message : "There is not enough memory.");
	else
		put(l, rule, symbol);
}

static uint32_t count_of(struct literals *l, json_t *s, const char *key, uint32_t none)
{
	json_t *v = json_object_get(s, key);

	if (v && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX))
		tags_fail(l->x->t, -EINVAL, l->x->at, "'%s' must be an integer from 0 to 2147483647.", key);
	return v ? (uint32_t)json_integer_value(v) : none;
}

static void put_array(struct literals *l, int32_t rule, json_t *s)
{
	uint32_t least = count_of(l, s, "minItems", 0), most = count_of(l, s, "maxItems", GRAMMAR_MANY);
	json_t *items = json_object_get(s, "items"), *any = json_true();
	int32_t symbol[3];

	if (most < least) {
		tags_fail(l->x->t, -EINVAL, l->x->at, "'maxItems' is below 'minItems'.");
		return;
	}
	symbol[0] = constant(l, "[");
	symbol[1] = most ? grammar_repeat(l->g, value(l, items ? items : any), least, most, spaced(l, ",")) :
	                   grammar_lexeme(l->g, REGEX_EMPTY);
	symbol[2] = constant(l, "]");
	grammar_produce(l->g, rule, symbol, 3);
}

/* ---- members ---- */

/* A name with what stands between it and the value.  outer: it is an argument of the call. */
static int32_t key_of(struct literals *l, uint32_t name, bool outer)
{
	struct regexes *r = l->x->t->x;
	int32_t symbol[2];

	if (l->python && !outer)
		name = regex_concat(r, regex_bytes(r, "\"", 1), regex_concat(r, name, regex_bytes(r, "\"", 1)));
	symbol[0] = grammar_lexeme(l->g, name);
	symbol[1] = l->python && outer ? constant(l, "=") : spaced(l, ":");
	return tags_all(l->x->t, symbol, 2);
}

static int32_t member(struct literals *l, const char *key, json_t *s, bool outer)
{
	int32_t symbol[2];

	if (!name_fits(key) && (outer || !l->python || strpbrk(key, "\"\\\n")))
		return tags_fail(l->x->t, -ENOTSUP, l->x->at, "The name '%.40s' cannot be written in style %s.", key,
		                 l->x->style->name);
	symbol[0] = key_of(l, regex_bytes(l->x->t->x, key, strlen(key)), outer);
	symbol[1] = value(l, s);
	return tags_all(l->x->t, symbol, 2);
}

/* A member whose name is not among the properties; -1: none is allowed. */
static int32_t other_member(struct literals *l, json_t *s, json_t *properties, bool outer)
{
	const struct sr_grammar_options *o = grammar_options(l->g);
	json_t *more = json_object_get(s, "additionalProperties"), *v, *any = json_true();
	bool open = more ? !json_is_false(more) :
		!json_object_size(properties) || (o && o->additional_properties);
	struct regexes *r = l->x->t->x;
	struct grammar_error e = { 0 };
	uint32_t name, taken = REGEX_NONE;
	int32_t symbol[2];
	const char *key;

	if (!open)
		return -1;
	json_object_foreach(properties, key, v)
		taken = regex_or(r, taken, regex_bytes(r, key, strlen(key)));
	name = pattern_parse(r, NAME, strlen(NAME), 0, &e);
	symbol[0] = key_of(l, regex_and(r, name, regex_not(r, taken)), outer);
	symbol[1] = value(l, more ? more : any);
	return tags_all(l->x->t, symbol, 2);
}

static bool object_fits(struct literals *l, json_t *s)
{
	json_t *properties = json_object_get(s, "properties"), *list = json_object_get(s, "required"), *v;
	size_t i;

	if ((properties && !json_is_object(properties)) || (list && !json_is_array(list)))
		tags_fail(l->x->t, -EINVAL, l->x->at, "'properties' must be an object, and 'required' a list.");
	json_array_foreach(list, i, v)
		if (!json_is_string(v) || !json_object_get(properties, json_string_value(v)))
			tags_fail(l->x->t, -ENOTSUP, l->x->at, "Each name in 'required' must be one of the properties.");
	if (json_object_size(properties) > GRAMMAR_MEMBERS)
		tags_fail(l->x->t, -E2BIG, l->x->at, "An object may have %d properties in style %s.", GRAMMAR_MEMBERS,
		          l->x->style->name);
	return !l->x->t->e->code;
}

/* The members in the order of the properties, with commas. */
static int32_t members(struct literals *l, json_t *s, bool outer)
{
	json_t *properties = json_object_get(s, "properties"), *v;
	struct grammar_members *m;
	const char *key;
	int32_t symbol;

	if (!object_fits(l, s))
		return -1;
	m = calloc(1, sizeof(*m));
	if (!m)
		return tags_fail(l->x->t, -ENOMEM, l->x->at, "There is not enough memory.");
	json_object_foreach(properties, key, v) {
		if (xml_required(s, key))
			m->required |= 1ull << m->n;
		m->symbol[m->n++] = member(l, key, v, outer);
	}
	m->ordered = true;
	m->rest = other_member(l, s, properties, outer);
	m->max = GRAMMAR_MANY;
	m->separator = spaced(l, ",");
	if (l->x->t->e->code)
		symbol = -1;
	else if (!m->n)
		symbol = m->rest < 0 ? grammar_lexeme(l->g, REGEX_EMPTY) :
		                       grammar_repeat(l->g, m->rest, 0, GRAMMAR_MANY, m->separator);
	else
		symbol = grammar_members(l->g, m);
	free(m);
	return symbol;
}

static void put_object(struct literals *l, int32_t rule, json_t *s)
{
	int32_t symbol[3] = { constant(l, "{"), members(l, s, false), constant(l, "}") };

	grammar_produce(l->g, rule, symbol, 3);
}

/* ---- schemas ---- */

/* Any JSON value. */
static void put_any(struct literals *l, int32_t rule)
{
	json_t *open = json_object();

	put_string(l, rule, NULL);
	put_number(l, rule, NULL, "number");
	put_value(l, rule, json_null());
	put_value(l, rule, json_true());
	put_value(l, rule, json_false());
	put_array(l, rule, open);
	put_object(l, rule, open);
	json_decref(open);
}

/* Does each schema of a list have one type, and no two the same? */
static bool apart(const struct xml *x, json_t *list)
{
	const char *seen[8];
	size_t n = 0, i;
	json_t *v;

	json_array_foreach(list, i, v) {
		const json_t *to = xml_resolved(x, v);
		const char *type = json_string_value(json_object_get(to, "type"));

		if (!type || n == 8)
			return false;
		if (!strcmp(type, "integer"))
			type = "number";
		for (size_t k = 0; k < n; k++)
			if (!strcmp(seen[k], type))
				return false;
		seen[n++] = type;
	}
	return true;
}

/* The schemas of a keyword that joins some and stands alone; NULL: it has none, or that is refused. */
static json_t *joined(const struct xml *x, json_t *s)
{
	static const char *const any[] = { "anyOf", NULL }, *const one[] = { "oneOf", NULL };
	static const char *const all[] = { "allOf", NULL };
	json_t *list;

	if ((list = json_object_get(s, "anyOf")))
		return xml_only(x, s, any) ? list : NULL;
	if ((list = json_object_get(s, "oneOf"))) {
		if (xml_only(x, s, one) && !apart(x, list))
			tags_fail(x->t, -ENOTSUP, x->at, "The schemas of 'oneOf' must have different types in style %s.",
			          x->style->name);
		return x->t->e->code ? NULL : list;
	}
	list = json_object_get(s, "allOf");
	return json_array_size(list) == 1 && xml_only(x, s, all) ? list : NULL;
}

/* The keywords that the schema's types know; others are refused. */
static bool keywords(struct literals *l, json_t *s)
{
	static const struct { const char *type, *known[6]; } of[] = {
		{ "string", { "minLength", "maxLength", "pattern", "format" } },
		{ "number", { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf" } },
		{ "integer", { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf" } },
		{ "array", { "items", "minItems", "maxItems" } },
		{ "object", { "properties", "required", "additionalProperties" } },
	};
	const char *known[32] = { "type" };
	size_t n = 1;

	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++)
		for (size_t k = 0; has_type(s, of[i].type) && of[i].known[k]; k++)
			known[n++] = of[i].known[k];
	return xml_only(l->x, s, known);
}

static void put_string_only(struct literals *l, int32_t rule, json_t *s)
{
	static const char *const keys[] = { "minLength", "maxLength", "pattern", "format" };
	json_t *one = json_pack("{ss}", "type", "string");

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
		if (json_object_get(s, keys[i]))
			json_object_set(one, keys[i], json_object_get(s, keys[i]));
	put_string(l, rule, one);
	json_decref(one);
}

static void by_type(struct literals *l, int32_t rule, json_t *s)
{
	if (!keywords(l, s))
		return;
	if (has_type(s, "string"))
		put_string_only(l, rule, s);
	if (has_type(s, "number"))
		put_number(l, rule, s, "number");
	else if (has_type(s, "integer"))
		put_number(l, rule, s, "integer");
	if (has_type(s, "boolean")) {
		put_value(l, rule, json_true());
		put_value(l, rule, json_false());
	}
	if (has_type(s, "null"))
		put_value(l, rule, json_null());
	if (has_type(s, "array"))
		put_array(l, rule, s);
	if (has_type(s, "object"))
		put_object(l, rule, s);
}

static void fill(struct literals *l, int32_t rule, json_t *s)
{
	static const char *const object[] = { "properties", "required", "additionalProperties", NULL };
	static const char *const none[] = { NULL }, *const array[] = { "items", "minItems", "maxItems", NULL };
	json_t *list, *v;
	size_t i;

	list = joined(l->x, s);
	if (l->x->t->e->code)
		return;
	json_array_foreach(list, i, v)
		put(l, rule, value(l, v));
	if (list)
		return;
	if (json_object_get(s, "enum") || json_object_get(s, "const"))
		put_enum(l, rule, s);
	else if (json_object_get(s, "type"))
		by_type(l, rule, s);
	else if (json_object_get(s, "properties"))
		xml_only(l->x, s, object) ? put_object(l, rule, s) : (void)0;
	else if (json_object_get(s, "items"))
		xml_only(l->x, s, array) ? put_array(l, rule, s) : (void)0;
	else if (xml_only(l->x, s, none))
		put_any(l, rule);
}

static int32_t value(struct literals *l, json_t *s)
{
	int32_t rule;

	if (l->x->t->e->code)
		return -1;
	if (json_is_true(s)) {
		if (l->any < 0) {
			l->any = grammar_rule(l->g);
			put_any(l, l->any);
		}
		return l->any;
	}
	s = xml_resolved(l->x, s);
	if (!s)
		return -1;
	if (!json_is_object(s))
		return tags_fail(l->x->t, -EINVAL, l->x->at, "No value satisfies a schema here.");
	for (uint32_t i = 0; i < l->n_made; i++)
		if (l->made[i].schema == s)
			return l->made[i].rule;
	if (l->n_made == SCHEMAS)
		return tags_fail(l->x->t, -E2BIG, l->x->at, "A tool may have at most %d schemas in style %s.",
		                 SCHEMAS, l->x->style->name);
	rule = grammar_rule(l->g);
	l->made[l->n_made].schema = s;
	l->made[l->n_made++].rule = rule;
	fill(l, rule, s);
	return l->x->t->e->code ? -1 : rule;
}

int32_t xml_literals(const struct xml *x, json_t *s)
{
	struct literals *l = calloc(1, sizeof(*l));
	int32_t symbol;

	if (!l)
		return tags_fail(x->t, -ENOMEM, x->at, "There is not enough memory.");
	*l = (struct literals){ .x = x, .g = x->t->g, .python = x->style->notation == XML_PYTHON, .any = -1 };
	symbol = members(l, json_is_object(s) ? s : NULL, true);
	free(l);
	return symbol;
}
