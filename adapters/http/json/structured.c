/* structured.c - response_format, structured_outputs and the older guided_*: what an answer must keep to.
 *
 * One of six kinds is taken, and becomes the source of a grammar.  Whether it is a grammar is found where it
 * is compiled (guided/grammars.h): no grammar is read here.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text_json.h"
#include "fields.h"

#define SCHEMA_BYTES (4u << 20)

static const char *const kinds[] = { "json", "regex", "choice", "grammar", "json_object", "structural_tag" };
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* The fields of older clients, as members of structured_outputs.  vLLM ignores these fields today. */
static const struct { const char *old, *name; } renamed[] = {
	{ "guided_json", "json" }, { "guided_regex", "regex" }, { "guided_choice", "choice" },
	{ "guided_grammar", "grammar" }, { "guided_json_object", "json_object" },
	{ "guided_whitespace_pattern", "whitespace_pattern" },
};

static int rename_fields(json_t *root, struct problem *p)
{
	json_t *o = json_object_get(root, "structured_outputs"), *v;

	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++) {
		v = json_object_get(root, renamed[i].old);
		if (!v || json_is_null(v) || json_is_false(v))
			continue;
		if (!json_is_object(o)) {
			o = json_object();
			if (json_object_set_new(root, "structured_outputs", o) < 0)
				return problem_memory(p);
		}
		if (!text_json_given(o, renamed[i].name) && json_object_set(o, renamed[i].name, v) < 0)
			return problem_memory(p);
	}
	return 0;
}

/* What vLLM checks before the types of fields. */
int ask_structured_shape(const struct ask *a, json_t *root, struct problem *p)
{
	json_t *format = json_object_get(root, "response_format"), *o, *choice;
	const char *type = json_string_value(json_object_get(format, "type")), *s;
	int n = 0;

	if (type && !strcmp(type, "json_schema") && !text_json_given(format, "json_schema"))
		return problem_value(p, "response_format", NULL, "When response_format type is 'json_schema', the "
		                     "'json_schema' field must be provided.");
	o = json_object_get(root, "structured_outputs");
	if (o && !json_is_null(o) && !json_is_object(o))
		return problem_field(p, "structured_outputs", "structured_outputs must be an object, not %s.",
		                     text_json_type(o));
	if (rename_fields(root, p) < 0)
		return -1;
	o = json_object_get(root, "structured_outputs");
	for (int i = 0; i < 3; i++)
		n += text_json_given(o, kinds[i]);
	if (n > 1) {
		static const char two[] = "You can only use one kind of constraints for structured outputs ('json', "
		                          "'regex' or 'choice').";

		return a->kind == ASK_CHAT ? problem_bad(p, NULL, "%s", two) :
		                             problem_value(p, "structured_outputs", NULL, "%s", two);
	}
	choice = json_object_get(root, "tool_choice");
	s = json_string_value(choice);
	if (n && a->kind == ASK_CHAT && choice && !json_is_null(choice) &&
	    !(s && (!strcmp(s, "none") || !strcmp(s, "auto") || !strcmp(s, "required"))))
		return problem_bad(p, NULL, "You can only either use constraints for structured outputs or tools, "
		                   "not both.");
	return 0;
}

/* ---- sources ---- */

int ask_guide_set(struct ask *a, enum sr_grammar_kind kind, const json_t *source, struct problem *p)
{
	bool text = json_is_string(source) && (kind == SR_GRAMMAR_REGEX || kind == SR_GRAMMAR_EBNF);
	size_t n = text ? json_string_length(source) :
	                  json_dumpb(source, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
	char *s = malloc(n + 1);              /* not json_dumps(): jansson's memory is not malloc's here */

	free(a->guide.src);
	a->guide.src = s;
	if (!s)
		return problem_memory(p);
	if (text)
		memcpy(s, json_string_value(source), n);
	else
		json_dumpb(source, s, n, JSON_COMPACT | JSON_ENCODE_ANY);
	s[n] = 0;
	a->guide.kind = kind;
	a->guide.n = n;
	return 0;
}

/* A JSON text inside a string. */
static json_t *inner(const json_t *text)
{
	size_t left = TEXT_JSON_VALUES;
	json_error_t e;
	json_t *v = NULL;

	text_json_read(&v, json_string_value(text), json_string_length(text), &left, &e);
	return v;
}

static int bad_tag(struct problem *p, const char *param)
{
	return problem_value(p, param, NULL, "Invalid %s structural_tag specification.", param);
}

/* structured_outputs.json and .structural_tag: an object, or its text. */
static int set_json(struct ask *a, bool tag, json_t *v, struct problem *p)
{
	json_t *read = NULL;
	int r;

	if (!json_is_string(v))
		return ask_guide_set(a, tag ? SR_GRAMMAR_TAGS : SR_GRAMMAR_JSON, v, p);
	if (!tag && !json_string_length(v))
		return problem_bad(p, NULL, "structured_outputs.json cannot be an empty string");
	read = inner(v);
	if (!read)
		return tag ? bad_tag(p, a->guide.param) : problem_bad(p, NULL, "Invalid JSON grammar specification.");
	r = ask_guide_set(a, tag ? SR_GRAMMAR_TAGS : SR_GRAMMAR_JSON, read, p);
	json_decref(read);
	return r;
}

static int set_choice(struct ask *a, const json_t *v, struct problem *p)
{
	if (!json_array_size(v))
		return problem_bad(p, NULL, "Choice '[]' cannot be an empty list");
	return ask_guide_set(a, SR_GRAMMAR_CHOICE, v, p);
}

static int set_source(struct ask *a, const char *kind, json_t *v, struct problem *p)
{
	json_t *any;
	int r;

	if (!strcmp(kind, "json") || !strcmp(kind, "structural_tag"))
		return set_json(a, *kind == 's', v, p);
	if (!strcmp(kind, "choice"))
		return set_choice(a, v, p);
	if (!strcmp(kind, "regex")) {
		if (memchr(json_string_value(v), 0, json_string_length(v)))
			return problem_bad(p, NULL, "structured_outputs.regex must not contain a NUL character "
			                   "('\\x00')");
		return ask_guide_set(a, SR_GRAMMAR_REGEX, v, p);
	}
	if (!strcmp(kind, "grammar")) {
		if (!json_string_length(v))
			return problem_bad(p, NULL, "structured_outputs.grammar cannot be an empty string");
		return ask_guide_set(a, SR_GRAMMAR_EBNF, v, p);
	}
	if (!json_is_true(v))
		return problem_bad(p, NULL, "structured_outputs.json_object must be True if set; omit "
		                   "structured_outputs to disable structured outputs");
	any = json_pack("{s:s}", "type", "object");
	r = any ? ask_guide_set(a, SR_GRAMMAR_JSON, any, p) : problem_memory(p);
	json_decref(any);
	return r;
}

/* ---- fields ---- */

/* The types of structured_outputs' members; o may be NULL. */
static int member_types(json_t *o, struct problem *p)
{
	static const struct { const char *name, *types; } member[] = {
		{ "json", "os" }, { "regex", "s" }, { "choice", "l" }, { "grammar", "s" }, { "json_object", "b" },
		{ "structural_tag", "so" }, { "whitespace_pattern", "s" }, { "disable_any_whitespace", "b" },
		{ "disable_additional_properties", "b" }, { "additional_properties", "b" }, { "lenient", "b" },
	};
	char at[64];
	json_t *v;

	for (size_t i = 0; i < sizeof(member) / sizeof(member[0]); i++) {
		const char *t = member[i].types, kind = !(v = json_object_get(o, member[i].name)) ? 0 :
			json_is_object(v) ? 'o' : json_is_string(v) ? 's' : json_is_array(v) ? 'l' :
			json_is_boolean(v) ? 'b' : '?';

		if (!kind || json_is_null(v) || strchr(t, kind))
			continue;
		snprintf(at, sizeof(at), "structured_outputs.%s", member[i].name);
		return problem_field(p, at, "%s must be %s, not %s.", at, !strcmp(t, "s") ? "a string" :
		                     !strcmp(t, "b") ? "a bool" : !strcmp(t, "l") ? "a list of strings" :
		                     "an object or its text", text_json_type(v));
	}
	v = json_object_get(o, "choice");
	for (size_t i = 0; i < json_array_size(v); i++)
		if (!json_is_string(json_array_get(v, i))) {
			snprintf(at, sizeof(at), "structured_outputs.choice.%zu", i);
			return problem_field(p, at, "%s must be a string, not %s.", at,
			                     text_json_type(json_array_get(v, i)));
		}
	return 0;
}

/* response_format as a kind and its value; *kind NULL: it is absent, or "text". */
static int format_of(const json_t *format, const char **kind, json_t **value, struct problem *p)
{
	json_t *type = json_object_get(format, "type"), *o;
	const char *s = json_string_value(type);

	*kind = NULL;
	*value = NULL;
	if (!format || json_is_null(format))
		return 0;
	if (!json_is_object(format) || !s)
		return problem_field(p, json_is_object(format) ? "response_format.type" : "response_format",
		                     "response_format must be an object with a `type`.");
	if (!strcmp(s, "text"))
		return 0;
	if (!strcmp(s, "structural_tag")) {
		if (!text_json_given(format, "format") && !text_json_given(format, "structures"))
			return bad_tag(p, "response_format");
		*kind = "structural_tag";
		*value = json_incref((json_t *)format);
		return 0;
	}
	if (!strcmp(s, "json_schema")) {
		o = json_object_get(format, "json_schema");
		if (!json_is_object(o) || !json_is_string(json_object_get(o, "name")))
			return problem_field(p, json_is_object(o) ? "response_format.json_schema.name" :
			                     "response_format.json_schema", "response_format.json_schema must be an "
			                     "object with a `name` and a `schema`.");
		if (text_json_given(o, "schema") && !json_is_object(json_object_get(o, "schema")))
			return problem_field(p, "response_format.json_schema.schema", "schema must be an object, not %s.",
			                     text_json_type(json_object_get(o, "schema")));
	} else if (strcmp(s, "json_object")) {
		return problem_field(p, "response_format.type", "response_format.type must be 'text', 'json_object', "
		                     "'json_schema' or 'structural_tag', not '%.32s'.", s);
	}
	/* json_object with a schema beside it is another spelling of json_schema. */
	o = json_object_get(strcmp(s, "json_schema") ? format : json_object_get(format, "json_schema"), "schema");
	*kind = json_is_object(o) ? "json" : "json_object";
	*value = json_is_object(o) ? json_incref(o) : json_true();
	return 0;
}

/* Exactly one kind: of structured_outputs o, and of response_format (kind, value), which wins. */
static int one_kind(struct ask *a, const json_t *o, const char *kind, json_t *value, struct problem *p)
{
	const char *only = kind;
	char list[80] = "";
	json_t *v = value;
	int n = 0;

	for (size_t i = 0; i < N_KINDS; i++) {
		bool given = text_json_given(o, kinds[i]), formatted = kind && !strcmp(kind, kinds[i]);

		if (!given && !formatted)
			continue;
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s", n++ ? ", " : "", kinds[i]);
		only = kinds[i];
		v = formatted ? value : json_object_get(o, kinds[i]);
	}
	if (n > 1)
		return problem_bad(p, NULL, "You can only use one kind of structured outputs constraint but "
		                   "multiple are specified: %s", list);
	if (!n)
		return problem_bad(p, NULL, "You must use one kind of structured outputs constraint but none are "
		                   "specified: one of json, regex, choice, grammar, json_object and structural_tag "
		                   "is needed");
	a->guide.param = strcmp(only, "structural_tag") ? NULL : kind ? "response_format" : "structured_outputs";
	return set_source(a, only, v, p);
}

/* The server's rules, and the request's own where it has them. */
static int guide_rules(struct ask *a, json_t *o, const struct ask_guide_rules *rules, struct problem *p)
{
	const json_t *pattern = json_object_get(o, "whitespace_pattern");
	const char *s = json_is_string(pattern) ? json_string_value(pattern) : rules->whitespace_pattern;
	struct ask_guide *g = &a->guide;
	json_t *v;

	g->rules = *rules;
	g->rules.whitespace_pattern = NULL;
	if (json_is_boolean(v = json_object_get(o, "disable_any_whitespace")))
		g->rules.disable_any_whitespace = json_is_true(v);
	if (json_is_boolean(v = json_object_get(o, "disable_additional_properties")))
		g->rules.additional_properties = rules->additional_properties && !json_is_true(v);
	if (json_is_boolean(v = json_object_get(o, "additional_properties")))
		g->rules.additional_properties = json_is_true(v);
	if (json_is_boolean(v = json_object_get(o, "lenient")))
		g->rules.lenient = json_is_true(v);
	if (!s || g->rules.disable_any_whitespace)
		return 0;
	g->whitespace = strdup(s);
	g->rules.whitespace_pattern = g->whitespace;
	return g->whitespace ? 0 : problem_memory(p);
}

int ask_structured(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *o = json_object_get(a->root, "structured_outputs"), *value;
	const char *kind;
	int r;

	if (json_is_null(o))
		o = NULL;
	if (format_of(json_object_get(a->root, "response_format"), &kind, &value, p) < 0)
		return -1;
	r = member_types(o, p);
	if (!r && (o || kind))
		r = guide_rules(a, o, &l->guide_rules, p);
	if (!r && (o || kind))
		r = one_kind(a, o, kind, value, p);
	json_decref(value);
	if (!r && a->guide.src && a->guide.n > SCHEMA_BYTES)
		r = problem_bad(p, NULL, "The grammar has %zu bytes; at most %u are allowed.", a->guide.n,
		                SCHEMA_BYTES);
	return r;
}

/* ---- --structured-outputs-config ---- */

int ask_guide_rules_read(struct ask_guide_rules *rules, const json_t *o, char *err, size_t errlen)
{
	const struct { const char *name; bool *at; } flag[] = {
		{ "disable_any_whitespace", &rules->disable_any_whitespace },
		{ "additional_properties", &rules->additional_properties },
		{ "lenient", &rules->lenient },
		{ "enable_in_reasoning", &rules->enable_in_reasoning },
		{ "disable_additional_properties", NULL }, { "disable_fallback", NULL },
	};
	static const char *const backend[] = { "auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer" };
	const char *key, *s;
	json_t *v;
	bool b, known;

	*rules = (struct ask_guide_rules){ 0 };
	json_object_foreach((json_t *)o, key, v) {
		s = json_string_value(v);
		known = !strncmp(key, "reasoning_parser", 16);
		if (!strcmp(key, "whitespace_pattern") && s) {
			rules->whitespace_pattern = s;
			known = true;
		}
		for (size_t i = 0; i < sizeof(backend) / sizeof(*backend); i++)
			known |= !strcmp(key, "backend") && s && !strcmp(s, backend[i]);
		for (size_t i = 0; !known && i < sizeof(flag) / sizeof(flag[0]); i++)
			if (!strcmp(key, flag[i].name) && !field_bool(v, &b)) {
				known = true;
				if (flag[i].at)
					*flag[i].at = b;
			}
		if (!known) {
			snprintf(err, errlen, "--structured-outputs-config: %.60s has no such value, or there is no such "
			         "member: --help structured-outputs-config lists them", key);
			return -EINVAL;
		}
	}
	return 0;
}
