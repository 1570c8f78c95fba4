/* tools.c - tools, tool_choice and parallel_tool_calls: what a chat may call, in vLLM's order and words. */
#include <string.h>

#include "adapters/text/text_json.h"
#include "fields.h"

#define USAGE "Correct usage: `{\"type\": \"function\", \"function\": {\"name\": \"my_function\"}}`"

static int list_of_tools(struct ask *a, json_t *list, struct problem *p)
{
	json_t *tool, *function;
	char at[48];
	size_t i;

	if (!json_is_array(list))
		return problem_field(p, "tools", "tools must be a list, not %s.", text_json_type(list));
	if (!json_array_size(list))
		return problem_value(p, "tools", NULL, "`tools` must not be an empty array. Either "
		                     "provide at least one tool or omit the field entirely.");
	json_array_foreach(list, i, tool) {
		function = json_object_get(tool, "function");
		snprintf(at, sizeof(at), json_is_object(tool) ? "tools.%zu.function" : "tools.%zu", i);
		if (!json_is_object(function))
			return problem_field(p, at, "tools[%zu] must have the form {\"type\": \"function\", "
			                     "\"function\": {\"name\": ..}}.", i);
		snprintf(at, sizeof(at), "tools.%zu.function.name", i);
		if (!json_is_string(json_object_get(function, "name")))
			return problem_field(p, at, "tools[%zu].function.name must be a string.", i);
	}
	a->chat.tools = list;
	return 0;
}

static int no_such_choice(const json_t *choice, struct problem *p)
{
	char text[64] = "";
	const char *s = json_string_value(choice);

	if (!s)
		json_dumpb(choice, text, sizeof(text) - 1, JSON_ENCODE_ANY);
	return problem_value(p, "tool_choice", NULL, "Invalid value for `tool_choice`: %.64s! Only named tools, "
	                     "\"none\", \"auto\" or \"required\" are supported.", s ? s : text);
}

static int named(struct ask *a, const json_t *choice, struct problem *p)
{
	json_t *function = json_object_get(choice, "function"), *name = json_object_get(function, "name"), *tool;
	size_t i;

	if (!json_is_object(function))
		return problem_value(p, "tool_choice.function", NULL, "Invalid value for `function`: `%s` in "
		                     "`tool_choice`! " USAGE, function ? text_json_type(function) : "nothing");
	if (!name)
		return problem_value(p, "tool_choice.function.name", NULL, "Expected field `name` in `function` in "
		                     "`tool_choice`! " USAGE);
	if (!json_string_length(name))
		return problem_value(p, "tool_choice.function.name", NULL, "Invalid `name` in `function`: `%s` in "
		                     "`tool_choice`! " USAGE, json_is_string(name) ? "" : text_json_type(name));
	json_array_foreach(a->chat.tools, i, tool)
		if (json_equal(json_object_get(json_object_get(tool, "function"), "name"), name)) {
			a->tool_choice = ASK_TOOLS_NAMED;
			a->tool_name = json_string_value(name);
			return 0;
		}
	return problem_value(p, "tool_choice", NULL, "The tool specified in `tool_choice` does not match any of "
	                     "the specified `tools`");
}

/* tool_choice, with `tools` given or not. */
static int choice_of(struct ask *a, const json_t *choice, struct problem *p)
{
	const char *s = json_string_value(choice);

	a->tool_choice = a->chat.tools ? ASK_TOOLS_AUTO : ASK_TOOLS_NONE;
	if (!choice || json_is_null(choice))
		return 0;
	if (s && !strcmp(s, "none")) {
		a->tool_choice = ASK_TOOLS_NONE;
		return 0;
	}
	if (!a->chat.tools)
		return problem_value(p, "tool_choice", NULL, "When using `tool_choice`, `tools` must be set.");
	if (json_is_object(choice))
		return named(a, choice, p);
	if (s && !strcmp(s, "required"))
		a->tool_choice = ASK_TOOLS_REQUIRED;
	else if (!s || strcmp(s, "auto"))
		return no_such_choice(choice, p);
	return 0;
}

int ask_tools(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *list = json_object_get(a->root, "tools"), *choice = json_object_get(a->root, "tool_choice");
	json_t *parallel = json_object_get(a->root, "parallel_tool_calls");

	if (list && !json_is_null(list) && list_of_tools(a, list, p) < 0)
		return -1;
	if (choice_of(a, choice, p) < 0)
		return -1;
	a->parallel_calls = true;
	if (parallel && !json_is_null(parallel) && field_bool(parallel, &a->parallel_calls) < 0)
		return problem_field(p, "parallel_tool_calls", "parallel_tool_calls must be a bool.");
	/* The operator who names a parser decides that the template need not show the tools. */
	a->chat.tools_optional = a->tool_choice != ASK_TOOLS_AUTO || l->calls_named;
	if (a->tool_choice == ASK_TOOLS_NONE && l->exclude_tools)
		a->chat.tools = NULL;
	if (a->kind != ASK_CHAT || a->tool_choice == ASK_TOOLS_NONE || (l->calls && calls_tools(l->calls)))
		return 0;
	switch (a->tool_choice) {
	case ASK_TOOLS_AUTO:
		return problem_bad(p, NULL, "\"auto\" tool choice requires --enable-auto-tool-choice and "
		                   "--tool-call-parser to be set");
	case ASK_TOOLS_REQUIRED:
		return problem_bad(p, NULL, "tool_choice=\"required\" requires --tool-call-parser to be set");
	default:
		return problem_bad(p, NULL, "tool_choice=function \"%.64s\" requires --tool-call-parser to be set",
		                   a->tool_name);
	}
}
