/* tags.c - the formats of a structural tag; free text is in free.c, arguments in XML in xml.c.
 *
 * A format is compiled with the markers that follow it directly, because free text goes on until one of them.
 * The symbol of a format includes its marker.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/ebnf/ebnf.h"
#include "adapters/text/ebnf/special.h"
#include "adapters/text/grammar/pattern.h"
#include "adapters/text/schema/schema.h"
#include "adapters/text/text_json.h"
#include "impl.h"

#define BRANCHES 1024 /* elements of one format */

/* ---- formats ------------------------------------------------------------------------------ */

/* What any of the markers is, as a symbol; -1: there is none. */
int32_t tags_end(struct tags *t, const struct tags_markers *end)
{
	int32_t symbol[TAGS_MARKERS];

	if (!tags_marked(end))
		return -1;
	for (uint32_t i = 0; i < end->n; i++)
		symbol[i] = end->m[i].symbol;
	return tags_any(t, symbol, end->n);
}

/* symbol, and a marker behind it. */
int32_t tags_ended(struct tags *t, int32_t symbol, const struct tags_markers *end)
{
	int32_t both[2] = { symbol, tags_end(t, end) };

	return tags_all(t, both, tags_marked(end) ? 2 : 1);
}

static int32_t nothing(struct tags *t)
{
	return grammar_lexeme(t->g, REGEX_EMPTY);
}

static int32_t compile_const(struct tags *t, json_t *f, const struct tags_place *at)
{
	json_t *v = tags_field(t, f, "value", JSON_STRING, at);

	return v ? tags_string(t, json_string_value(v), json_string_length(v), at) : -1;
}

static int32_t compile_schema(struct tags *t, json_t *f, const struct tags_place *at)
{
	struct tags_place here = { at, "json_schema", 0 };
	json_t *schema = json_object_get(f, "json_schema"), *style = json_object_get(f, "style");
	struct grammar_error e = { 0 };
	char place[200];
	int32_t symbol;

	if (!json_is_object(schema) && !json_is_boolean(schema))
		return tags_fail(t, -EINVAL, at, "'json_schema' must be a JSON schema.");
	if (text_json_given(f, "max_whitespace_cnt"))
		return tags_fail(t, -ENOTSUP, at, "'max_whitespace_cnt' is not supported; whitespace_pattern is.");
	if (style && !json_is_string(style))
		return tags_fail(t, -EINVAL, at, "'style' must be a string.");
	if (style && strcmp(json_string_value(style), "json"))
		return tags_xml(t, schema, json_string_value(style), tags_flag(t, f, "any_order", at), &here);
	if (tags_flag(t, f, "any_order", at))
		return tags_fail(t, -ENOTSUP, at, "'any_order' is supported only with the XML styles.");
	tags_place_text(place, sizeof(place), &here);
	symbol = schema_compile(t->g, schema, place, &e);
	if (symbol < 0)
		return tags_pass_on(t, at, &e);
	if (*e.message)
		*t->e = e;                       /* lenient: what is not enforced */
	return symbol;
}

static int32_t compile_grammar(struct tags *t, json_t *f, const struct tags_place *at)
{
	json_t *v = tags_field(t, f, "grammar", JSON_STRING, at);
	struct grammar_error e = { 0 };
	int32_t symbol;

	if (!v)
		return -1;
	symbol = ebnf_compile(t->g, json_string_value(v), json_string_length(v), &e);
	return symbol >= 0 ? symbol : tags_pass_on(t, at, &e);
}

static int32_t compile_regex(struct tags *t, json_t *f, const struct tags_place *at)
{
	json_t *v = tags_field(t, f, "pattern", JSON_STRING, at);
	struct grammar_error e = { 0 };
	uint32_t expr;
	int live;

	if (!v)
		return -1;
	expr = pattern_parse(t->x, json_string_value(v), json_string_length(v), 0, &e);
	if (expr == REGEX_FAILED)
		return tags_pass_on(t, at, &e);
	live = regex_live(t->x, expr);
	if (live == -E2BIG && !regexes_error(t->x))
		return tags_fail(t, live, at, "It takes too long to find out if any text matches the pattern.");
	if (!live)
		return tags_fail(t, -EINVAL, at, "No text matches the pattern.");
	return grammar_lexeme(t->g, expr);
}

static int32_t compile_text(struct tags *t, json_t *f, const struct tags_markers *end,
                            const struct tags_place *at)
{
	static const struct tags_markers none;
	uint32_t excludes = tags_excludes(t, f, at), chars = tags_count(t, f, "max_chars", REGEX_MANY, at);

	if (text_json_given(f, "max_tokens"))
		return tags_fail(t, -ENOTSUP, at, "'max_tokens' is not supported; 'max_chars' is.");
	return t->e->code ? -1 : tags_free(t, end ? end : &none, excludes, chars, tags_after(end));
}

static int32_t compile_tokens(struct tags *t, json_t *f, const struct tags_markers *end,
                              const struct tags_place *at)
{
	int32_t ids[TAGS_LIST], other;
	uint32_t n = tags_tokens(t, f, "exclude_tokens", ids, at);

	if (text_json_given(f, "max_tokens"))
		return tags_fail(t, -ENOTSUP, at, "'max_tokens' is not supported.");
	if (end && end->n == 1 && end->m[0].token >= 0 && end->m[0].rest < 0 &&
	    (!n || (n == 1 && *ids == end->m[0].token)))
		return t->e->code ? -1 : grammar_until(t->g, &end->m[0].token, 1);
	other = t->e->code ? -1 : grammar_repeat(t->g, special_except(t->g, ids, n), 0, GRAMMAR_MANY, -1);
	return tags_ended(t, other, end);
}

static int32_t compile_token(struct tags *t, json_t *f, bool except, const struct tags_place *at)
{
	int32_t ids[TAGS_LIST];
	uint32_t n = except ? tags_tokens(t, f, "exclude_tokens", ids, at) : 1;

	if (!except)
		*ids = tags_token(t, json_object_get(f, "token"), at);
	if (t->e->code)
		return -1;
	return except ? special_except(t->g, ids, n) : grammar_token(t->g, ids, 1);
}

static json_t *elements_of(struct tags *t, json_t *f, const struct tags_place *at)
{
	json_t *list = tags_field(t, f, "elements", JSON_ARRAY, at);

	if (!list || (json_array_size(list) && json_array_size(list) <= BRANCHES))
		return list;
	tags_fail(t, -EINVAL, at, "'elements' must have 1 to %d formats.", BRANCHES);
	return NULL;
}

/* A sequence: what follows it follows its last element.  Or: it follows each. */
static int32_t compile_elements(struct tags *t, json_t *f, bool sequence, const struct tags_markers *end,
                                const struct tags_place *at)
{
	struct tags_place up = { at, "elements", 0 }, here = { &up, NULL, 0 };
	json_t *list = elements_of(t, f, at);
	size_t n = json_array_size(list);
	int32_t *symbol = list ? malloc(n * sizeof(*symbol)) : NULL, out;

	for (here.index = 0; symbol && here.index < n; here.index++)
		symbol[here.index] = tags_format(t, json_array_get(list, here.index),
		                                 sequence && here.index + 1 < n ? NULL : end, &here);
	if (!symbol)
		return list ? tags_fail(t, -ENOMEM, at, "There is not enough memory.") : -1;
	out = sequence ? tags_all(t, symbol, (uint32_t)n) : tags_any(t, symbol, (uint32_t)n);
	free(symbol);
	return out;
}

static int32_t compile_repeat(struct tags *t, json_t *f, uint32_t min, uint32_t max,
                              const struct tags_markers *end, const struct tags_place *at)
{
	struct tags_place here = { at, "content", 0 };
	json_t *content = tags_field(t, f, "content", JSON_OBJECT, at);
	int32_t symbol[2];

	if (!content)
		return -1;
	if (!min && max == 1) {
		symbol[0] = tags_format(t, content, end, &here);
		symbol[1] = tags_marked(end) ? tags_end(t, end) : nothing(t);
		return tags_any(t, symbol, 2);
	}
	*symbol = grammar_repeat(t->g, tags_format(t, content, NULL, &here), min, max, -1);
	return tags_ended(t, *symbol, end);
}

static int32_t compile_counted(struct tags *t, json_t *f, const struct tags_markers *end,
                               const struct tags_place *at)
{
	json_t *max = json_object_get(f, "max");
	uint32_t least = tags_count(t, f, "min", 0, at), most;

	if (!json_is_integer(json_object_get(f, "min")) || !json_is_integer(max))
		return tags_fail(t, -EINVAL, at, "'min' and 'max' must be integers.");
	most = json_integer_value(max) == -1 ? GRAMMAR_MANY : tags_count(t, f, "max", GRAMMAR_MANY, at);
	if (most < least)
		return tags_fail(t, -EINVAL, at, "'max' must be at least 'min', or -1 for no limit.");
	return compile_repeat(t, f, least, most, end, at);
}

/* ---- tags --------------------------------------------------------------------------------- */

json_t *tags_token_field(const json_t *v)
{
	const char *type = json_string_value(json_object_get(v, "type"));

	return type && !strcmp(type, "token") ? json_object_get(v, "token") : NULL;
}

static int32_t begin_of(struct tags *t, json_t *tag, const struct tags_place *at)
{
	json_t *v = json_object_get(tag, "begin"), *token = tags_token_field(v);
	int32_t id;

	if (json_is_string(v))
		return tags_string(t, json_string_value(v), json_string_length(v), at);
	if (!token)
		return tags_fail(t, -EINVAL, at, "'begin' must be a string or a token.");
	id = tags_token(t, token, at);
	return id < 0 ? -1 : grammar_token(t->g, &id, 1);
}

/* The markers that end a tag. */
static void ends_of(struct tags *t, json_t *tag, struct tags_markers *k, const struct tags_place *at)
{
	json_t *v = json_object_get(tag, "end"), *token = tags_token_field(v), *one;
	int32_t id;
	size_t i;

	k->n = 0;
	if (token) {
		id = tags_token(t, token, at);
		tags_mark_token(t, k, id, at);
	} else if (json_is_string(v)) {
		tags_mark(t, k, json_string_value(v), json_string_length(v), at);
	} else if (json_is_array(v) && json_array_size(v)) {
		json_array_foreach(v, i, one) if (!json_is_string(one))
			tags_fail(t, -EINVAL, at, "'end' must be strings.");
		else if (!t->e->code) tags_mark(t, k, json_string_value(one), json_string_length(one), at);
	} else {
		tags_fail(t, -EINVAL, at, "'end' must be a string, strings or a token.");
	}
}

/* A tag from `begin` on. */
int32_t tags_tag(struct tags *t, json_t *tag, int32_t begin, const struct tags_place *at)
{
	struct tags_place here = { at, "content", 0 };
	struct tags_markers *ends;
	json_t *content;
	int32_t both[2];

	if (!json_is_object(tag) || !tags_only(t, tag, "type begin content end", at))
		return tags_fail(t, -EINVAL, at, "A tag must be an object.");
	content = tags_field(t, tag, "content", JSON_OBJECT, at);
	ends = malloc(sizeof(*ends));
	if (!ends || !content) {
		free(ends);
		return content ? tags_fail(t, -ENOMEM, at, "There is not enough memory.") : -1;
	}
	ends_of(t, tag, ends, at);
	both[0] = begin;
	both[1] = t->e->code ? -1 : tags_format(t, content, ends, &here);
	free(ends);
	return tags_all(t, both, 2);
}

json_t *tags_list(struct tags *t, json_t *f, const struct tags_place *at)
{
	json_t *list = tags_field(t, f, "tags", JSON_ARRAY, at);

	if (!list || (json_array_size(list) && json_array_size(list) <= BRANCHES))
		return list;
	tags_fail(t, -EINVAL, at, "'tags' must have 1 to %d tags.", BRANCHES);
	return NULL;
}

/* Any of the tags, each from its begin on. */
int32_t tags_any_tag(struct tags *t, json_t *list, const struct tags_place *at)
{
	struct tags_place up = { at, "tags", 0 }, here = { &up, NULL, 0 };
	int32_t rule = grammar_rule(t->g), symbol;
	json_t *tag;

	json_array_foreach(list, here.index, tag) {
		symbol = tags_tag(t, tag, begin_of(t, tag, &here), &here);
		grammar_produce(t->g, rule, &symbol, 1);
	}
	return t->e->code ? -1 : rule;
}

static int32_t compile_separated(struct tags *t, json_t *f, const struct tags_markers *end,
                                 const struct tags_place *at)
{
	json_t *list = tags_list(t, f, at), *v = tags_field(t, f, "separator", JSON_STRING, at);
	bool least = tags_flag(t, f, "at_least_one", at), once = tags_flag(t, f, "stop_after_first", at);
	int32_t any, separator = -1;

	if (!list || !v || t->e->code)
		return -1;
	any = tags_any_tag(t, list, at);
	if (json_string_length(v))
		separator = tags_string(t, json_string_value(v), json_string_length(v), at);
	if (t->e->code)
		return -1;
	return tags_ended(t, grammar_repeat(t->g, any, least, once ? 1 : GRAMMAR_MANY, separator), end);
}

/* ---- the tree ----------------------------------------------------------------------------- */

enum kind {
	CONST,
	SCHEMA,
	QWEN,
	GRAMMAR,
	REGEX,
	TEXT,
	TOKEN,
	EXCEPT,
	TOKENS,
	SEQUENCE,
	OR,
	OPTIONAL,
	PLUS,
	STAR,
	REPEAT,
	TAG,
	TRIGGERED,
	TOKEN_TRIGGERED,
	SEPARATED,
	DISPATCH,
	TOKEN_DISPATCH,
	KINDS
};

static const struct {
	const char *name, *fields;
} kinds[KINDS] = {
	[CONST] = { "const_string", "type value" },
	[SCHEMA] = { "json_schema", "type json_schema style any_order max_whitespace_cnt" },
	[QWEN] = { "qwen_xml_parameter", "type json_schema" },
	[GRAMMAR] = { "grammar", "type grammar" },
	[REGEX] = { "regex", "type pattern" },
	[TEXT] = { "any_text", "type excludes max_tokens max_chars" },
	[TOKEN] = { "token", "type token" },
	[EXCEPT] = { "exclude_token", "type exclude_tokens" },
	[TOKENS] = { "any_tokens", "type exclude_tokens max_tokens" },
	[SEQUENCE] = { "sequence", "type elements" },
	[OR] = { "or", "type elements" },
	[OPTIONAL] = { "optional", "type content" },
	[PLUS] = { "plus", "type content" },
	[STAR] = { "star", "type content" },
	[REPEAT] = { "repeat", "type content min max" },
	[TAG] = { "tag", "type begin content end" },
	[TRIGGERED] = { "triggered_tags", "type triggers tags at_least_one stop_after_first excludes" },
	[TOKEN_TRIGGERED] = { "token_triggered_tags",
	                      "type trigger_tokens tags exclude_tokens at_least_one stop_after_first" },
	[SEPARATED] = { "tags_with_separator", "type tags separator at_least_one stop_after_first" },
	[DISPATCH] = { "dispatch", "type rules loop excludes" },
	[TOKEN_DISPATCH] = { "token_dispatch", "type rules loop exclude_tokens" },
};

static enum kind kind_of(const json_t *f)
{
	const char *type = json_string_value(json_object_get(f, "type"));
	int k = 0;

	while (k < KINDS && (!type || strcmp(type, kinds[k].name)))
		k++;
	return k;
}

/* Formats that have no free text at their end. */
static int32_t compile_closed(struct tags *t, enum kind kind, json_t *f, const struct tags_place *at)
{
	struct tags_place here = { at, "json_schema", 0 };

	switch (kind) {
	case CONST:
		return compile_const(t, f, at);
	case SCHEMA:
		return compile_schema(t, f, at);
	case QWEN:
		return tags_xml(t, json_object_get(f, "json_schema"), "qwen_xml", false, &here);
	case GRAMMAR:
		return compile_grammar(t, f, at);
	case REGEX:
		return compile_regex(t, f, at);
	case TOKEN:
		return compile_token(t, f, false, at);
	case EXCEPT:
		return compile_token(t, f, true, at);
	default:
		return tags_tag(t, f, begin_of(t, f, at), at);
	}
}

int32_t tags_format(struct tags *t, json_t *f, const struct tags_markers *end, const struct tags_place *at)
{
	enum kind kind = kind_of(f);

	if (t->e->code)
		return -1;
	if (kind == KINDS)
		return tags_fail(
			t, -ENOTSUP, at, "The format '%.60s' is not known.",
			json_is_string(json_object_get(f, "type")) ? json_string_value(json_object_get(f, "type")) : "");
	if (!tags_only(t, f, kinds[kind].fields, at))
		return -1;
	switch (kind) {
	case TEXT:
		return compile_text(t, f, end, at);
	case TOKENS:
		return compile_tokens(t, f, end, at);
	case SEQUENCE:
		return compile_elements(t, f, true, end, at);
	case OR:
		return compile_elements(t, f, false, end, at);
	case OPTIONAL:
		return compile_repeat(t, f, 0, 1, end, at);
	case PLUS:
		return compile_repeat(t, f, 1, GRAMMAR_MANY, end, at);
	case STAR:
		return compile_repeat(t, f, 0, GRAMMAR_MANY, end, at);
	case REPEAT:
		return compile_counted(t, f, end, at);
	case TRIGGERED:
		return tags_triggered(t, f, false, end, at);
	case TOKEN_TRIGGERED:
		return tags_triggered(t, f, true, end, at);
	case SEPARATED:
		return compile_separated(t, f, end, at);
	case DISPATCH:
		return tags_rules(t, f, false, end, at);
	case TOKEN_DISPATCH:
		return tags_rules(t, f, true, end, at);
	default:
		return tags_ended(t, compile_closed(t, kind, f, at), end);
	}
}

/* A schema, or the text of one: a new reference.  NULL after an error. */
static json_t *schema_of(struct tags *t, json_t *v, const struct tags_place *at)
{
	size_t left = TEXT_JSON_VALUES;
	json_t *out = NULL;
	json_error_t e;

	if (json_is_object(v) || json_is_boolean(v))
		return json_incref(v);
	if (!json_is_string(v))
		tags_fail(t, -EINVAL, at, "'schema' must be a JSON schema.");
	else if (text_json_read(&out, json_string_value(v), json_string_length(v), &left, &e))
		tags_fail(t, -EINVAL, at, "'schema' is not valid JSON: %s.", e.text);
	return out;
}

/* {"structures": [{begin, schema, end}], "triggers": [..]} as triggered_tags.  A new reference, or NULL. */
static json_t *from_older(struct tags *t, json_t *tag, const struct tags_place *at)
{
	struct tags_place up = { at, "structures", 0 }, here = { &up, NULL, 0 };
	json_t *list = tags_field(t, tag, "structures", JSON_ARRAY, at);
	json_t *names = tags_field(t, tag, "triggers", JSON_ARRAY, at);
	json_t *out = json_array(), *one, *schema;

	json_array_foreach(list, here.index, one) {
		schema = schema_of(t, json_object_get(one, "schema"), &here);
		if (schema && tags_only(t, one, "begin schema end", &here) &&
		    (!json_object_get(one, "begin") || !json_object_get(one, "end")))
			tags_fail(t, -EINVAL, &here, "A structure needs 'begin' and 'end'.");
		if (t->e->code) {
			json_decref(schema);
			break;
		}
		json_array_append_new(out, json_pack("{ss sO s{ss so} sO}", "type", "tag", "begin",
		                                     json_object_get(one, "begin"), "content", "type", "json_schema",
		                                     "json_schema", schema, "end", json_object_get(one, "end")));
	}
	if (t->e->code || !list || !names) {
		json_decref(out);
		return NULL;
	}
	return json_pack("{ss sO so}", "type", "triggered_tags", "triggers", names, "tags", out);
}

/* ---- special tokens ----------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
	const struct tags_special *p = a, *q = b;

	if (*p->s != *q->s)
		return (uint8_t)*p->s < (uint8_t)*q->s ? -1 : 1;
	return q->n - p->n;
}

/* All special tokens by their first byte.  0 or -ENOMEM. */
static int list_special(struct tags *t)
{
	const struct sr_text *text = grammar_text(t->g);
	int32_t vocab = sr_text_info(text)->vocab;
	uint32_t i = 0;
	const char *s;
	bool special;
	int n;

	t->special = malloc(((size_t)vocab + 1) * sizeof(*t->special));
	for (int32_t id = 0; t->special && id < vocab; id++) {
		n = sr_text_piece(text, id, &s, &special);
		if (n > 0 && special)
			t->special[t->n_special++] = (struct tags_special){ s, n, id };
	}
	if (!t->special)
		return -ENOMEM;
	qsort(t->special, t->n_special, sizeof(*t->special), by_text);
	for (int b = 0; b <= 256; b++) {
		while (b && i < t->n_special && (uint8_t)*t->special[i].s < b)
			i++;
		t->first[b] = i;
	}
	return 0;
}

int32_t tags_compile(struct grammar *g, json_t *tag, struct grammar_error *e)
{
	struct tags t = { .g = g, .x = grammar_regexes(g), .e = e };
	static const struct regex_range all = { 0, 0x10ffff };
	static const struct tags_markers last = { .n = 0 };
	static const uint64_t bytes[4] = { ~0ull, ~0ull, ~0ull, ~0ull };
	struct tags_place top = { 0 }, here = { &top, "format", 0 };
	json_t *older = NULL;
	int32_t symbol = -1;

	if (list_special(&t))
		return tags_fail(&t, -ENOMEM, &top, "There is not enough memory.");
	t.any = regex_points(t.x, &all, 1);
	t.text = regex_repeat(t.x, t.any, 0, REGEX_MANY);
	t.more = regex_repeat(t.x, regex_set(t.x, bytes), 1, REGEX_MANY);
	if (!json_is_object(tag))
		tags_fail(&t, -EINVAL, &top, "A structural tag is an object.");
	else if (json_object_get(tag, "structures") && tags_only(&t, tag, "type structures triggers", &top))
		older = from_older(&t, tag, &top);
	else if (tags_only(&t, tag, "type format", &top))
		symbol = tags_format(&t, json_object_get(tag, "format"), &last, &here);
	if (older)
		symbol = tags_format(&t, older, &last, &top);
	json_decref(older);
	free(t.special);
	if (symbol < 0 && !e->code)
		grammar_refuse(e, regexes_error(t.x) ? regexes_error(t.x) : -E2BIG, NULL,
		               "The structural tag is too complex.");
	return e->code ? -1 : symbol;
}
