/* responses.c - a request of /v1/responses as a chat, and what its answer repeats of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text_json.h"
#include "agents.h"
#include "out.h"

#define BETWEEN "__"  /* of a namespace and its tool, in the name that the model sees */

/* ---- tools ---- */

/* Keep what a tool is in the request, if it is no plain function. */
static int remember(struct ask *a, const char *name, json_t *what, struct problem *p)
{
	if (!a->names && !(a->names = json_object())) {
		json_decref(what);
		return problem_memory(p);
	}
	return agents_set(a->names, name, what, p);
}

/* A tool that takes a text: a function with one string. */
static json_t *custom_tool(struct ask *a, const char *name, json_t *tool, struct problem *p)
{
	json_t *format = json_object_get(tool, "format"), *d = json_object_get(tool, "description"), *text,
		   *schema, *v;
	json_t *grammar = json_object_get(format, "definition");
	struct out o = { 0 };

	if (remember(a, name, json_pack("{ss}", "type", "custom"), p) < 0)
		return NULL;
	out_bytes(&o, json_string_value(d), json_string_length(d));
	if (json_is_string(grammar)) {
		out_str(&o, "\nThe input keeps to this grammar:\n");
		out_bytes(&o, json_string_value(grammar), json_string_length(grammar));
	}
	text = json_stringn(o.n ? o.p : "", o.n);
	schema = json_pack("{ss s{s{ss}} s[s] sb}", "type", "object", "properties", "input", "type", "string",
	                   "required", "input", "additionalProperties", 0);
	v = o.failed || !text || !schema ? NULL : agents_tool(name, text, schema, NULL);
	out_free(&o);
	json_decref(text);
	json_decref(schema);
	if (!v)
		problem_memory(p);
	return v;
}

static int add_tool(struct ask *a, json_t *list, json_t *tool, const json_t *space, const char *at,
                    struct problem *p);

static int add_tools(struct ask *a, json_t *list, json_t *given, const json_t *space, const char *at,
                     struct problem *p)
{
	json_t *tool;
	char where[64];
	size_t i;

	if (!json_is_array(given))
		return problem_field(p, at, "%s must be a list, not %s.", at,
		                     given ? text_json_type(given) : "missing");
	json_array_foreach(given, i, tool) {
		snprintf(where, sizeof(where), "%.40s.%zu", at, i);
		if (add_tool(a, list, tool, space, where, p) < 0)
			return -1;
	}
	return 0;
}

static int add_tool(struct ask *a, json_t *list, json_t *tool, const json_t *space, const char *at,
                    struct problem *p)
{
	const char *type = json_string_value(json_object_get(tool, "type")), *s;
	json_t *name = json_object_get(tool, "name"), *v;
	char full[256];

	if (!type)
		return problem_field(p, at, "%s must be an object with a `type`.", at);
	if (strcmp(type, "function") && strcmp(type, "custom") && (space || strcmp(type, "namespace"))) {
		a->dropped |= DROPPED_TOOL;
		return 0;
	}
	if (!json_is_string(name) || !json_string_length(name) || json_string_length(name) > 128)
		return problem_field(p, at, "%s.name must be a string of 1 to 128 bytes.", at);
	s = json_string_value(name);
	if (!strcmp(type, "namespace"))
		return add_tools(a, list, json_object_get(tool, "tools"), name, at, p);
	if (!strcmp(type, "custom")) {
		v = custom_tool(a, s, tool, p);
		return v ? agents_append(list, v, p) : -1;
	}
	if (space) {
		snprintf(full, sizeof(full), "%.120s" BETWEEN "%.120s", json_string_value(space), s);
		if (remember(a, full, json_pack("{sO sO}", "namespace", space, "name", name), p) < 0)
			return -1;
		s = full;
	}
	return agents_append(list,
	                     agents_tool(s, json_object_get(tool, "description"),
	                                 json_object_get(tool, "parameters"), json_object_get(tool, "strict")),
	                     p);
}

/* Leave only the tools that the list names. */
static int allow(struct ask *a, const json_t *allowed, struct problem *p)
{
	json_t *tools = json_object_get(a->root, "tools"), *list = json_array(), *names = json_object();
	json_t *tool, *one;
	const char *name;
	size_t i;
	int r = list && names ? 0 : problem_memory(p);

	json_array_foreach((json_t *)(uintptr_t)allowed, i, one)
		if (!r && (name = json_string_value(json_object_get(one, "name"))))
			r = agents_set(names, name, json_true(), p);
	json_array_foreach(tools, i, tool) {
		name = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
		if (!r && name && json_object_get(names, name))
			r = agents_append(list, json_incref(tool), p);
	}
	json_decref(names);
	if (!r && !json_array_size(list))
		r = problem_value(p, "tool_choice", NULL,
		                  "None of the tools that `tool_choice` allows is among `tools`.");
	if (!r)
		r = agents_set(a->root, "tools", json_incref(list), p);
	json_decref(list);
	return r;
}

static int tool_choice(struct ask *a, json_t *given, struct problem *p)
{
	const char *s = json_string_value(given), *type = json_string_value(json_object_get(given, "type"));
	json_t *name = json_object_get(given, "name"), *mode = json_object_get(given, "mode");
	bool none = !json_object_get(a->root, "tools");

	if (type && !strcmp(type, "allowed_tools")) {
		if (none)
			return 0;
		if (!json_is_string(mode) || allow(a, json_object_get(given, "tools"), p) < 0)
			return json_is_string(mode) ? -1 :
				problem_field(p, "tool_choice.mode", "tool_choice.mode must be auto or required.");
		return agents_set(a->root, "tool_choice", json_incref(mode), p);
	}
	if (type && (!strcmp(type, "function") || !strcmp(type, "custom")) && json_is_string(name))
		return agents_set(a->root, "tool_choice",
		                  json_pack("{ss s{sO}}", "type", "function", "function", "name", name), p);
	if (!s || (strcmp(s, "auto") && strcmp(s, "none") && strcmp(s, "required")))
		return problem_field(p, "tool_choice",
		                     "tool_choice must be none, auto, required, a function or allowed_tools.");
	return none && strcmp(s, "required") ? 0 : agents_set(a->root, "tool_choice", json_incref(given), p);
}

/* ---- items ---- */

/* A message of the assistant to which `bare`: nothing, else no text was added; or a new one. */
static json_t *assistant(json_t *list, bool bare, struct problem *p)
{
	json_t *last = json_array_get(list, json_array_size(list) - 1), *role = json_object_get(last, "role");

	if (json_is_string(role) && !strcmp(json_string_value(role), "assistant") && (!bare ||
	    (!json_array_size(json_object_get(last, "content")) && !json_object_get(last, "tool_calls"))))
		return last;
	return agents_message(list, "assistant", p);
}

static int call(struct ask *a, json_t *list, json_t *item, bool custom, const char *at, struct problem *p)
{
	json_t *name = json_object_get(item, "name"), *id = json_object_get(item, "call_id"), *m, *args, *space,
		   *text;
	char full[256];
	int r;

	if (!json_is_string(name) || !json_is_string(id))
		return problem_field(p, at, "%s must have a string `call_id` and a string `name`.", at);
	space = json_object_get(item, "namespace");
	snprintf(full, sizeof(full), "%.120s%s%.120s", json_is_string(space) ? json_string_value(space) : "",
	         json_is_string(space) ? BETWEEN : "", json_string_value(name));
	m = assistant(list, false, p);
	if (!m)
		return -1;
	(void)a;
	text = json_object_get(item, "input");
	args = custom ? json_pack("{ss%}", "input", json_is_string(text) ? json_string_value(text) : "",
	                          json_string_length(text))
	       : json_object_get(item, "arguments") ? json_incref(json_object_get(item, "arguments"))
	                                            : json_object();
	r = args ? agents_call(m, id, full, args, p) : problem_memory(p);
	json_decref(args);
	return r;
}

static int output(struct ask *a, json_t *list, json_t *item, const char *at, struct problem *p)
{
	json_t *id = json_object_get(item, "call_id"), *text = json_object_get(item, "output"), *m;

	if (!json_is_string(id))
		return problem_field(p, at, "%s.call_id must be a string.", at);
	m = agents_message(list, "tool", p);
	if (!m || agents_set(m, "tool_call_id", json_incref(id), p) < 0)
		return -1;
	return agents_parts(a, text, json_object_get(m, "content"), at, p);
}

/* A thought of an earlier turn; one without its text is dropped. */
static int reasoning(json_t *list, json_t *item, struct problem *p)
{
	json_t *content = json_object_get(item, "content"), *part, *text, *m;
	struct out o = { 0 };
	size_t i;
	int r = 0;

	json_array_foreach(content, i, part) {
		text = json_object_get(part, "text");
		out_bytes(&o, json_string_value(text), json_string_length(text));
	}
	if (o.n) {
		m = assistant(list, true, p);
		r = m ? agents_set(m, "reasoning", json_stringn(o.p, o.n), p) : -1;
	}
	out_free(&o);
	return r;
}

static int message(struct ask *a, json_t *list, json_t *item, const char *at, struct problem *p)
{
	json_t *role = json_object_get(item, "role"), *m;
	const char *s = json_string_value(role);

	if (!s || (strcmp(s, "user") && strcmp(s, "assistant") && strcmp(s, "system") && strcmp(s, "developer")))
		return problem_field(p, at, "%s.role must be user, assistant, system or developer.", at);
	m = strcmp(s, "assistant") ? agents_message(list, s, p) : assistant(list, true, p);
	return m ? agents_parts(a, json_object_get(item, "content"), json_object_get(m, "content"), at, p) : -1;
}

static int one_item(struct ask *a, json_t *list, json_t *tools, json_t *item, const char *at,
                    struct problem *p)
{
	const char *type = json_string_value(json_object_get(item, "type"));

	if (!json_is_object(item))
		return problem_field(p, at, "%s must be an object, not %s.", at, text_json_type(item));
	if (!type && !json_object_get(item, "role"))
		return problem_field(p, at, "%s must have a `type` or a `role`.", at);
	if (!type || !strcmp(type, "message"))
		return message(a, list, item, at, p);
	if (!strcmp(type, "function_call") || !strcmp(type, "custom_tool_call"))
		return call(a, list, item, *type == 'c', at, p);
	if (!strcmp(type, "function_call_output") || !strcmp(type, "custom_tool_call_output"))
		return output(a, list, item, at, p);
	if (!strcmp(type, "reasoning"))
		return reasoning(list, item, p);
	if (!strcmp(type, "additional_tools"))
		return add_tools(a, tools, json_object_get(item, "tools"), NULL, at, p);
	a->dropped |= DROPPED_ITEM;
	return 0;
}

static int input(struct ask *a, json_t *given, json_t *list, json_t *tools, struct problem *p)
{
	json_t *item, *m;
	char at[40];
	size_t i;

	if (json_is_string(given)) {
		m = agents_message(list, "user", p);
		return m ? agents_text(json_object_get(m, "content"), given, p) : -1;
	}
	if (!json_is_array(given))
		return problem_field(p, "input", given ? "input must be a string or a list of items." :
		                     "input is required: a string or a list of items.");
	json_array_foreach(given, i, item) {
		snprintf(at, sizeof(at), "input.%zu", i);
		if (one_item(a, list, tools, item, at, p) < 0)
			return -1;
	}
	return json_array_size(list) ? 0 : problem_field(p, "input", "input has no message.");
}

/* ---- the rest ---- */

static int refusals(const json_t *given, struct problem *p)
{
	static const char *const stored[] = { "previous_response_id", "conversation", "prompt" };

	for (size_t i = 0; i < sizeof(stored) / sizeof(*stored); i++)
		if (text_json_given(given, stored[i]))
			return problem_bad(p, stored[i],
			                   "%s is not supported: nothing is stored here. Send the whole history "
			                   "as `input`.",
			                   stored[i]);
	if (json_is_true(json_object_get(given, "background")))
		return problem_bad(p, "background",
		                   "background is not supported: nothing is stored here. Stream the answer.");
	return 0;
}

static int format(struct ask *a, const json_t *given, struct problem *p)
{
	json_t *f = json_object_get(json_object_get(given, "text"), "format");
	const char *type = json_string_value(json_object_get(f, "type"));

	if (!f || json_is_null(f) || (type && !strcmp(type, "text")))
		return 0;
	if (type && !strcmp(type, "json_schema"))
		return agents_schema(a, json_object_get(f, "schema"), p);
	if (!type || strcmp(type, "json_object"))
		return problem_field(p, "text.format.ResponseFormatText.type",
		                     "text.format.type must be text, json_object or json_schema.");
	return agents_set(a->root, "response_format", json_pack("{ss}", "type", "json_object"), p);
}

static int logprobs(struct ask *a, const json_t *given, struct problem *p)
{
	json_t *include = json_object_get(given, "include"), *top = json_object_get(given, "top_logprobs"), *v;
	size_t i;

	json_array_foreach(include, i, v)
		a->score_text |= json_is_string(v) && !strcmp(json_string_value(v), "message.output_text.logprobs");
	if (!a->score_text)
		return 0;
	if (agents_set(a->root, "logprobs", json_true(), p) < 0)
		return -1;
	return json_is_integer(top) ? agents_set(a->root, "top_logprobs", json_incref(top), p) : 0;
}

/* What the answer repeats of the request, as members of a JSON object, with a comma at the end. */
static int repeat(struct ask *a, const json_t *given, const struct ask_limits *l, struct problem *p)
{
	static const struct { const char *name, *none;
	} fields[] = {
		{ "instructions", "null" },
		{ "metadata", "{}" },
		{ "parallel_tool_calls", "true" },
		{ "temperature", NULL },
		{ "top_p", NULL },
		{ "tool_choice", "\"auto\"" },
		{ "tools", "[]" },
		{ "max_output_tokens", "null" },
		{ "max_tool_calls", "null" },
		{ "reasoning", "{\"effort\":null,\"summary\":null}" },
		{ "service_tier", "\"auto\"" },
		{ "text", "{\"format\":{\"type\":\"text\"}}" },
		{ "top_logprobs", "null" },
		{ "truncation", "\"disabled\"" },
		{ "user", "null" },
		{ "presence_penalty", "0.0" },
		{ "frequency_penalty", "0.0" },
	};
	struct out o = { 0 };
	json_t *v;
	size_t n;

	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		const double preset = *fields[i].name == 't' && !strcmp(fields[i].name, "top_p") ? l->defaults.top_p :
		                      l->defaults.temperature;

		out_fmt(&o, "\"%s\":", fields[i].name);
		v = text_json_given(given, fields[i].name) ? json_object_get(given, fields[i].name) : NULL;
		if (!v && !strcmp(fields[i].name, "tool_choice") &&
		    !json_array_size(json_object_get(given, "tools"))) {
			out_str(&o, "\"none\"");
		} else if (!v && fields[i].none) {
			out_str(&o, fields[i].none);
		} else if (!v) {
			out_double(&o, preset);
		} else {
			n = json_dumpb(v, NULL, 0, JSON_ENCODE_ANY | JSON_COMPACT);
			if (out_room(&o, n))
				o.n += json_dumpb(v, o.p + o.n, n, JSON_ENCODE_ANY | JSON_COMPACT);
		}
		out_str(&o, ",");
	}
	out_str(&o, "\"background\":false,\"previous_response_id\":null,\"prompt\":null,\"store\":false");
	out_bytes(&o, "", 1);
	a->reply = o.failed ? NULL : strdup(o.p);
	out_free(&o);
	return a->reply ? 0 : problem_memory(p);
}

int ask_responses_api(struct ask *a, json_t *given, const struct ask_limits *l, struct problem *p)
{
	static const char *const same[] = { "model", "stop", "parallel_tool_calls",
		"thinking_token_budget", NULL };
	json_t *list = json_array(), *tools = json_array(), *m;
	int r = list && tools ? agents_set(a->root, "messages", json_incref(list), p) : problem_memory(p);

	a->call_prefix = "call_";
	if (!r)
		r = refusals(given, p);
	if (!r)
		r = agents_copy(a->root, given, same, p);
	if (!r)
		r = agents_stream(a, p);
	if (!r && text_json_given(given, "max_output_tokens"))
		r = agents_set(a->root, "max_tokens", json_incref(json_object_get(given, "max_output_tokens")), p);
	if (!r && text_json_given(given, "instructions")) {
		m = agents_message(list, "system", p);
		r = m ? agents_parts(a, json_object_get(given, "instructions"), json_object_get(m, "content"),
		                     "instructions", p)
		      : -1;
	}
	if (!r && text_json_given(given, "tools"))
		r = add_tools(a, tools, json_object_get(given, "tools"), NULL, "tools", p);
	if (!r)
		r = input(a, json_object_get(given, "input"), list, tools, p);
	if (!r && json_array_size(tools))
		r = agents_set(a->root, "tools", json_incref(tools), p);
	if (!r && text_json_given(given, "tool_choice"))
		r = tool_choice(a, json_object_get(given, "tool_choice"), p);
	if (!r)
		r = agents_effort(a, json_object_get(json_object_get(given, "reasoning"), "effort"), p);
	if (!r)
		r = format(a, given, p);
	if (!r)
		r = logprobs(a, given, p);
	if (!r)
		r = repeat(a, given, l, p);
	json_decref(list);
	json_decref(tools);
	return r;
}
