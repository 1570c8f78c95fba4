/* agents.c - see agents.h. */
#include "agents.h"

#include <string.h>

#include "adapters/text/text_json.h"

int agents_set(json_t *o, const char *key, json_t *v, struct problem *p)
{
	return json_object_set_new(o, key, v) < 0 ? problem_memory(p) : 0;
}

int agents_append(json_t *list, json_t *v, struct problem *p)
{
	return json_array_append_new(list, v) < 0 ? problem_memory(p) : 0;
}

static int copy(json_t *to, const json_t *from, const char *const *names, struct problem *p)
{
	for (; *names; names++)
		if (text_json_given(from, *names) &&
		    agents_set(to, *names, json_incref(json_object_get(from, *names)), p) < 0)
			return -1;
	return 0;
}

int agents_copy(json_t *to, const json_t *from, const char *const *names, struct problem *p)
{
	static const char *const both[] = { "temperature", "top_p", "top_k", "stream", "min_p", "seed",
		"repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "ignore_eos",
		"stop_token_ids", "priority", "cache_salt", "structured_outputs", "chat_template_kwargs", NULL };

	return copy(to, from, both, p) < 0 || copy(to, from, names, p) < 0 ? -1 : 0;
}

/* ---- texts ---- */

int agents_text(json_t *parts, json_t *text, struct problem *p)
{
	return agents_append(parts, json_pack("{ss sO}", "type", "text", "text", text), p);
}

int agents_parts(struct ask *a, json_t *content, json_t *parts, const char *at, struct problem *p)
{
	static const char *const media[] = { "image",      "document",    "input_image",
		                                 "input_file", "input_audio", "audio" };
	json_t *part, *text;
	const char *type;
	char where[96];
	size_t i;

	if (json_is_string(content))
		return agents_text(parts, content, p);
	if (!json_is_array(content))
		return problem_field(p, at, "%s must be a string or a list of parts, not %s.", at,
		                     content ? text_json_type(content) : "missing");
	json_array_foreach(content, i, part) {
		snprintf(where, sizeof(where), "%s.%zu", at, i);
		type = json_string_value(json_object_get(part, "type"));
		if (!type)
			return problem_field(p, where, "%s must be an object with a `type`.", where);
		for (size_t k = 0; k < sizeof(media) / sizeof(*media); k++)
			if (!strcmp(type, media[k]))
				return problem_bad(p, at, "%s is of type `%.32s`: only text is supported.", where, type);
		text = json_object_get(part, !strcmp(type, "refusal") ? "refusal" : "text");
		if (strcmp(type, "text") && strcmp(type, "input_text") && strcmp(type, "output_text") &&
		    strcmp(type, "refusal")) {
			a->dropped |= DROPPED_ITEM;
			continue;
		}
		if (!json_is_string(text))
			return problem_field(p, where, "%s must have a string `%s`.", where,
			                     !strcmp(type, "refusal") ? "refusal" : "text");
		if (agents_text(parts, text, p) < 0)
			return -1;
	}
	return 0;
}

/* ---- messages ---- */

json_t *agents_message(json_t *list, const char *role, struct problem *p)
{
	json_t *m = json_pack("{ss s[]}", "role", role, "content");

	return agents_append(list, m, p) < 0 ? NULL : m;
}

/* ---- tools ---- */

json_t *agents_tool(const char *name, json_t *description, json_t *parameters, json_t *strict)
{
	json_t *f = json_pack("{ss}", "name", name);
	bool ok = f;

	if (json_is_string(description))
		ok = ok && !json_object_set(f, "description", description);
	if (json_is_object(parameters))
		ok = ok && !json_object_set(f, "parameters", parameters);
	if (json_is_boolean(strict))
		ok = ok && !json_object_set(f, "strict", strict);
	if (!ok) {
		json_decref(f);
		return NULL;
	}
	return json_pack("{ss so}", "type", "function", "function", f);
}

/* Arguments as the text of a JSON value.  Those of an earlier turn may be broken: then they become a JSON
 * string. */
static json_t *json_text(json_t *arguments)
{
	size_t left = TEXT_JSON_VALUES;
	json_error_t e;
	json_t *v, *out;
	struct out o = { 0 };
	size_t n;

	if (json_is_string(arguments)) {
		if (!json_string_length(arguments))
			return json_string("{}");
		if (!text_json_read(&v, json_string_value(arguments), json_string_length(arguments), &left, &e)) {
			json_decref(v);
			return json_incref(arguments);
		}
		out_json(&o, json_string_value(arguments), json_string_length(arguments));
	} else {
		n = json_dumpb(arguments, NULL, 0, JSON_ENCODE_ANY);
		if (out_room(&o, n))
			o.n += json_dumpb(arguments, o.p, n, JSON_ENCODE_ANY);
	}
	out = o.failed ? NULL : json_stringn(o.n ? o.p : "{}", o.n ? o.n : 2);
	out_free(&o);
	return out;
}

int agents_call(json_t *message, json_t *id, const char *name, json_t *arguments, struct problem *p)
{
	json_t *list = json_object_get(message, "tool_calls"), *call;

	if (!list) {
		list = json_array();
		if (agents_set(message, "tool_calls", list, p) < 0)
			return -1;
	}
	call = json_pack("{sO ss s{ss so}}", "id", id, "type", "function", "function", "name", name, "arguments",
	                 json_text(arguments));
	return agents_append(list, call, p);
}

/* ---- fields ---- */

int agents_schema(struct ask *a, json_t *schema, struct problem *p)
{
	if (!json_is_object(schema))
		return problem_field(p, "format.schema",
		                     "The schema of the answer's format must be an object, not %s.",
		                     schema ? text_json_type(schema) : "missing");
	return agents_set(a->root, "response_format",
	                  json_pack("{ss s{ss sO sb}}", "type", "json_schema", "json_schema", "name", "answer",
	                            "schema", schema, "strict", 1),
	                  p);
}

int agents_effort(struct ask *a, const json_t *effort, struct problem *p)
{
	static const char *const known[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };
	const char *s = json_string_value(effort);

	for (size_t i = 0; s && i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(s, known[i]))
			return agents_set(a->root, "reasoning_effort", json_string(s), p);
	return 0;
}

int agents_stream(struct ask *a, struct problem *p)
{
	if (!text_json_true(json_object_get(a->root, "stream")))
		return 0;
	return agents_set(a->root, "stream_options", json_pack("{sb}", "include_usage", 1), p);
}
