/* messages.c - a request of /v1/messages as a chat. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text_json.h"
#include "agents.h"

#define BILLING "x-anthropic-billing-header"

/* ---- the system prompt ---- */

static bool is_billing(const json_t *text)
{
	return json_is_string(text) && !strncmp(json_string_value(text), BILLING, strlen(BILLING));
}

/* A header that changes with each conversation would hide what their prompts have in common from the prefix
 * cache: leave it out. */
static int system_prompt(struct ask *a, json_t *list, json_t *given, struct problem *p)
{
	json_t *parts = json_array(), *part, *m;
	int r = parts ? agents_parts(a, given, parts, "system", p) : problem_memory(p);
	const char *s, *rest;

	part = json_object_get(json_array_get(parts, 0), "text");
	if (!r && is_billing(part)) {
		s = json_string_value(part);
		rest = json_is_string(given) ? strchr(s, '\n') : NULL;
		a->dropped |= DROPPED_BILLING;
		if (rest)
			r = agents_set(json_array_get(parts, 0), "text", json_string(rest + 1), p);
		else
			json_array_remove(parts, 0);
	}
	if (!r && json_array_size(parts)) {
		m = agents_message(list, "system", p);
		r = m ? agents_set(m, "content", json_incref(parts), p) : -1;
	}
	json_decref(parts);
	return r;
}

/* ---- blocks ---- */

static int tool_result(struct ask *a, json_t *list, json_t *block, const char *at, struct problem *p)
{
	json_t *content = json_object_get(block, "content"), *id = json_object_get(block, "tool_use_id"), *parts,
		   *m, *error;
	int r = 0;

	if (!json_is_string(id))
		return problem_field(p, at, "%s.tool_use_id must be a string.", at);
	m = agents_message(list, "tool", p);
	if (!m || agents_set(m, "tool_call_id", json_incref(id), p) < 0)
		return -1;
	parts = json_object_get(m, "content");
	if (json_is_true(json_object_get(block, "is_error"))) {
		error = json_string("Error:");
		r = agents_text(parts, error, p);
		json_decref(error);
	}
	return r || !content || json_is_null(content) ? r : agents_parts(a, content, parts, at, p);
}

static int assistant_block(struct ask *a, json_t *m, json_t *block, const char *type, const char *at,
                           struct problem *p)
{
	json_t *name = json_object_get(block, "name"), *id = json_object_get(block, "id");
	json_t *thinking = json_object_get(block, "thinking"), *input = json_object_get(block, "input"), *before,
		   *empty;
	struct out both = { 0 };
	int r;

	if (!strcmp(type, "thinking")) {
		if (!json_is_string(thinking))
			return problem_field(p, at, "%s must have a string `thinking`.", at);
		before = json_object_get(m, "reasoning");
		out_bytes(&both, json_string_value(before), json_string_length(before));
		out_bytes(&both, json_string_value(thinking), json_string_length(thinking));
		r = both.n ? agents_set(m, "reasoning", json_stringn(both.p, both.n), p) : 0;
		out_free(&both);
		return r;
	}
	if (strcmp(type, "tool_use")) {
		a->dropped |= DROPPED_ITEM;
		return 0;
	}
	if (!json_is_string(name) || !json_is_string(id))
		return problem_field(p, at, "%s must have a string `id` and a string `name`.", at);
	empty = json_object();
	r = agents_call(m, id, json_string_value(name), json_is_object(input) ? input : empty, p);
	json_decref(empty);
	return r;
}

/* The blocks of a message.  Results of tools are messages of their own. */
static int blocks(struct ask *a, json_t *list, const char *role, json_t *content, const char *at,
                  struct problem *p)
{
	const bool assistant = !strcmp(role, "assistant");
	json_t *block, *m = assistant ? agents_message(list, role, p) : NULL, *one;
	const char *type;
	char where[96];
	size_t i;
	int r = assistant && !m ? -1 : 0;

	json_array_foreach(content, i, block) {
		snprintf(where, sizeof(where), "%s.%zu", at, i);
		type = json_string_value(json_object_get(block, "type"));
		if (r)
			return r;
		if (!type)
			return problem_field(p, where, "%s must be an object with a `type`.", where);
		if (!strcmp(type, "tool_result") && !assistant) {
			r = tool_result(a, list, block, where, p);
			m = NULL;
			continue;
		}
		if (assistant && strcmp(type, "text") && strcmp(type, "image") && strcmp(type, "document")) {
			r = assistant_block(a, m, block, type, where, p);
			continue;
		}
		one = json_pack("[O]", block);
		if (!m && !strcmp(type, "text"))
			m = agents_message(list, role, p);
		r = !one || (!m && !strcmp(type, "text")) ? problem_memory(p) :
			agents_parts(a, one, m ? json_object_get(m, "content") : list, at, p);
		json_decref(one);
	}
	return r;
}

static int messages(struct ask *a, json_t *given, json_t *list, struct problem *p)
{
	json_t *content, *role, *message, *m;
	char at[40];
	size_t i;
	int r;

	if (!json_is_array(given))
		return problem_field(p, "messages",
		                     given ? "messages must be a list."
		                           : "messages is required: a list of "
		                             "messages.");
	if (!json_array_size(given))
		return problem_bad(p, "messages", "Cannot apply chat template to an empty conversation. Provide at "
		                   "least one message.");
	json_array_foreach(given, i, message) {
		role = json_object_get(message, "role");
		content = json_object_get(message, "content");
		snprintf(at, sizeof(at), "messages.%zu.role", i);
		if (!json_is_string(role) || (strcmp(json_string_value(role), "user") &&
		    strcmp(json_string_value(role), "assistant") && strcmp(json_string_value(role), "system")))
			return problem_field(p, at, "messages[%zu].role must be user, assistant or system.", i);
		snprintf(at, sizeof(at), "messages.%zu.content", i);
		if (!json_is_array(content)) {
			m = agents_message(list, json_string_value(role), p);
			r = m ? agents_parts(a, content, json_object_get(m, "content"), at, p) : -1;
		} else {
			r = blocks(a, list, json_string_value(role), content, at, p);
		}
		if (r)
			return r;
	}
	/* The answer continues a text that the client begins. */
	m = json_array_get(list, json_array_size(list) - 1);
	role = json_object_get(m, "role");
	if (json_is_string(role) && !strcmp(json_string_value(role), "assistant") &&
	    json_array_size(json_object_get(m, "content")) && !json_object_get(m, "tool_calls"))
		return agents_set(a->root, "continue_final_message", json_true(), p) ||
			agents_set(a->root, "add_generation_prompt", json_false(), p) ? -1 : 0;
	return 0;
}

/* ---- tools ---- */

static int tools(struct ask *a, json_t *given, struct problem *p)
{
	json_t *list = json_array(), *tool, *name;
	const char *type;
	size_t i;
	char at[32];
	int r = list ? 0 : problem_memory(p);

	if (!r && !json_is_array(given))
		r = problem_field(p, "tools", "tools must be a list, not %s.", text_json_type(given));
	json_array_foreach(given, i, tool) {
		type = json_string_value(json_object_get(tool, "type"));
		name = json_object_get(tool, "name");
		snprintf(at, sizeof(at), "tools.%zu.name", i);
		if (r)
			break;
		if (type && strcmp(type, "custom"))
			a->dropped |= DROPPED_TOOL;
		else if (!json_is_string(name))
			r = problem_field(p, at, "tools[%zu].name must be a string.", i);
		else
			r = agents_append(list, agents_tool(json_string_value(name), json_object_get(tool, "description"),
			                  json_object_get(tool, "input_schema"), json_object_get(tool, "strict")), p);
	}
	if (!r && json_array_size(list))
		r = agents_set(a->root, "tools", json_incref(list), p);
	json_decref(list);
	return r;
}

static int tool_choice(struct ask *a, json_t *given, struct problem *p)
{
	const char *type = json_string_value(json_object_get(given, "type"));
	json_t *name = json_object_get(given, "name"), *v = NULL;

	if (!type ||
	    (strcmp(type, "auto") && strcmp(type, "any") && strcmp(type, "tool") && strcmp(type, "none")))
		return problem_field(p, "tool_choice", "tool_choice.type must be auto, any, tool or none.");
	if (!strcmp(type, "tool") && !json_is_string(name))
		return problem_field(p, "tool_choice", "tool_choice.name is required when type is 'tool'.");
	if (json_is_true(json_object_get(given, "disable_parallel_tool_use")) &&
	    agents_set(a->root, "parallel_tool_calls", json_false(), p) < 0)
		return -1;
	if (!json_object_get(a->root, "tools") && (!strcmp(type, "auto") || !strcmp(type, "none")))
		return 0;
	if (!strcmp(type, "tool"))
		v = json_pack("{ss s{sO}}", "type", "function", "function", "name", name);
	else
		v = json_string(!strcmp(type, "any") ? "required" : type);
	return agents_set(a->root, "tool_choice", v, p);
}

/* ---- the rest ---- */

static int thinking(struct ask *a, json_t *given, struct problem *p)
{
	const char *type = json_string_value(json_object_get(given, "type"));
	json_t *budget = json_object_get(given, "budget_tokens"),
		   *kwargs = json_object_get(a->root, "chat_template_kwargs");

	if (!type)
		return 0;
	if (!json_is_object(kwargs)) {
		kwargs = json_object();
		if (agents_set(a->root, "chat_template_kwargs", kwargs, p) < 0)
			return -1;
	} else {
		kwargs = json_copy(kwargs);
		if (agents_set(a->root, "chat_template_kwargs", kwargs, p) < 0)
			return -1;
	}
	if (agents_set(kwargs, "enable_thinking", json_boolean(strcmp(type, "disabled")), p) < 0)
		return -1;
	if (strcmp(type, "enabled") || !json_is_integer(budget) || json_integer_value(budget) < 1)
		return 0;
	return agents_set(a->root, "thinking_token_budget", json_incref(budget), p);
}

static int model(struct ask *a, json_t *given, const struct ask_limits *l, struct problem *p)
{
	const char *name = json_string_value(json_object_get(given, "model"));

	for (int i = 0; name && i < l->n_names; i++)
		if (!strcmp(name, l->names[i]))
			return 0;
	if (name && !strncmp(name, "claude-", 7)) {
		a->dropped |= DROPPED_MODEL;
		a->reply = strdup(name);
		return a->reply ? 0 : problem_memory(p);
	}
	return text_json_given(given, "model")
	           ? agents_set(a->root, "model", json_incref(json_object_get(given, "model")), p)
	           : 0;
}

int ask_messages_api(struct ask *a, json_t *given, const struct ask_limits *l, struct problem *p)
{
	static const char *const same[] = { "max_tokens", NULL };
	json_t *list = json_array(), *v, *config = json_object_get(given, "output_config");
	int r = list ? agents_set(a->root, "messages", list, p) : problem_memory(p);

	a->call_prefix = "toolu_";
	if (!r)
		r = model(a, given, l, p);
	if (!r)
		r = agents_copy(a->root, given, same, p);
	if (!r)
		r = agents_stream(a, p);
	if (!r && text_json_given(given, "stop_sequences"))
		r = agents_set(a->root, "stop", json_incref(json_object_get(given, "stop_sequences")), p);
	if (!r && text_json_given(given, "system"))
		r = system_prompt(a, list, json_object_get(given, "system"), p);
	if (!r)
		r = messages(a, json_object_get(given, "messages"), list, p);
	if (!r && json_array_size(json_object_get(given, "tools")))
		r = tools(a, json_object_get(given, "tools"), p);
	if (!r && text_json_given(given, "tool_choice"))
		r = tool_choice(a, json_object_get(given, "tool_choice"), p);
	if (!r)
		r = thinking(a, json_object_get(given, "thinking"), p);
	if (!r)
		r = agents_effort(a, json_object_get(config, "effort"), p);
	v = json_object_get(config, "format");
	if (!json_is_object(v))
		v = json_object_get(given, "output_format");
	if (r || !json_is_object(v))
		return r;
	if (!json_is_string(json_object_get(v, "type")) || strcmp(json_string_value(json_object_get(v, "type")),
	                                                           "json_schema"))
		return problem_bad(p, "output_config.format", "output_config.format.type must be json_schema.");
	return agents_schema(a, json_object_get(v, "schema"), p);
}
