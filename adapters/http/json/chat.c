/* chat.c - the chat in a request: adapters/text/chat.h checks and renders it; here its errors get the words,
 * type and param of vLLM's.
 */
#include <errno.h>

#include "adapt.h"
#include "adapters/text/slipring-text.h"
#include "openai.h"

static int chat_problem(const struct chat_error *e, struct problem *p)
{
	switch (e->fault) {
	case CHAT_MEMORY:
		return problem_memory(p);
	case CHAT_SHAPE:
		return problem_field(p, e->field, "%s", e->message);
	case CHAT_WRONG:
		return problem_bad(p, NULL, "%s", e->message);
	case CHAT_NO_TEMPLATE:
		return problem_bad(p, NULL, "The model has no chat template: give one with --chat-template, or use "
		                   "/v1/completions.");
	case CHAT_UNREAD:
		return problem_bad(p, e->field, "The chat template does not use `%s`: the model would not see them. "
		                   "Leave `%s` out, or serve a model or a --chat-template that uses them.", e->field,
		                   e->field);
	case CHAT_TEMPLATE:
		break;
	}
	return problem_bad(p, NULL, "The chat template failed: %.500s", e->message);
}

/* The server's variables of the template, and over them the request's. */
static int template_kwargs(struct ask *a, json_t *defaults, struct problem *p)
{
	json_t *given = json_object_get(a->root, "chat_template_kwargs"), *all;

	if (!json_object_size(defaults) || (given && !json_is_null(given) && !json_is_object(given)))
		return 0;
	all = json_copy(defaults);
	if (json_is_object(given) && json_object_update(all, given) < 0) {
		json_decref(all);
		return problem_memory(p);
	}
	return json_object_set_new(a->root, "chat_template_kwargs", all) < 0 ? problem_memory(p) : 0;
}

int ask_chat_inputs(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	struct chat_error e;

	if (template_kwargs(a, l->template_kwargs, p) < 0)
		return -1;
	if (chat_read_inputs(&a->chat, a->root, &e) < 0)
		return chat_problem(&e, p);
	return 0;
}

int ask_messages(struct ask *a, struct problem *p)
{
	struct chat_error e;

	if (chat_read_messages(&a->chat, json_object_get(a->root, "messages"), &e) < 0)
		return chat_problem(&e, p);
	return 0;
}

static bool any_strict(const json_t *tools)
{
	const json_t *tool;
	size_t i;

	json_array_foreach(tools, i, tool)
		if (json_is_true(json_object_get(json_object_get(tool, "function"), "strict")))
			return true;
	return false;
}

/* The grammar of calls: of those that must come, and, unless the answer has a format of its own, of strict
 * functions that may be called. */
static int call_guide(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	const struct calls_wish w = {
		.tools = a->chat.tools, .name = a->tool_name, .forced = a->tool_choice > ASK_TOOLS_AUTO,
		.many = a->parallel_calls && a->tool_choice != ASK_TOOLS_NAMED, .begin = a->begin,
		.after_thought = a->guide.thought.n_end > 0,
	};
	const char *why;
	json_t *tag;
	int r;

	if (!w.forced && (a->guide.src || a->tool_choice == ASK_TOOLS_NONE || !any_strict(a->chat.tools)))
		return 0;
	tag = calls_tag(l->calls, &w, &why);
	if (!tag && why && w.forced)
		return problem_bad(p, "tool_choice", "tool_choice %s is not supported: the format `%s` of tool "
		                   "calls %s. Use \"auto\", or another --tool-call-parser.",
		                   a->tool_name ? "of a named function" : "\"required\"",
		                   calls_tools(l->calls), why);
	if (!tag)
		return why ? 0 : problem_memory(p);
	r = ask_guide_set(a, SR_GRAMMAR_TAGS, tag, p);
	json_decref(tag);
	return r;
}

static int thinking_budget(struct ask *a, const struct ask_limits *l, bool known, struct problem *p)
{
	static const char field[] = "thinking_token_budget";

	if (!known)
		return problem_bad(p, field, "%s is not supported for this model: %s.", field,
		                   !l->calls || !calls_reasoning(l->calls) ? "no --reasoning-parser fits it" :
		                   "the marks of its thoughts are more than one token");
	if (a->guide.rules.enable_in_reasoning && a->guide.src)
		return problem_bad(p, field, "%s is not supported with enable_in_reasoning: the thought is part of "
		                   "the structured output.", field);
	if (!a->guide.src && a->ignore_eos && a->guide.thought.n_end)
		return problem_bad(p, field, "%s is not supported with ignore_eos.", field);
	a->guide.thought.most = a->thinking_budget;
	return 0;
}

/* What the answer must keep to, and the thought before that.  A free answer needs guides only to count. */
static int guides(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	const bool known = l->calls && calls_thought(l->calls, a->begin, &a->guide.thought);

	if (a->guide.rules.enable_in_reasoning)
		a->guide.thought.n_end = 0;
	if (l->calls && call_guide(a, l, p) < 0)
		return -1;
	if (a->thinking_budget >= 0 && (known || !a->agent))
		return thinking_budget(a, l, known, p);
	if (!a->guide.src)
		a->guide.thought.n_end = 0;
	return 0;
}

/* Must the tools be described to the model?  Its template does not show them, and no format is named. */
static bool describes(const struct ask *a, const struct ask_limits *l)
{
	return a->tool_choice != ASK_TOOLS_NONE && a->chat.tools && l->calls && calls_described(l->calls) &&
		!chat_shows_tools(l->text, &a->chat);
}

/* The prompt's text.  A template that fails gets the messages in other ways; if it takes none of them, *e is
 * about the first. */
static int64_t render(struct ask *a, const struct ask_limits *l, char **text, struct chat_error *e)
{
	json_t *given = json_incref(a->chat.messages), *tools = describes(a, l) ? a->chat.tools : NULL, *made;
	struct chat_error again = { 0 };
	int64_t n = -EINVAL;
	int r = 0;

	a->chat.tools_optional |= tools != NULL;
	for (enum adapt how = ADAPT_NOTHING; how <= (tools || a->agent ? ADAPT_ALL : ADAPT_LATER); how++) {
		if (how || tools) {
			made = adapt_messages(given, how, tools);
			if (made && how && json_equal(made, a->chat.messages)) {
				json_decref(made);
				continue;
			}
			again.fault = CHAT_MEMORY;
			r = made && !json_object_set_new(a->root, "messages", made) ?
				chat_read_messages(&a->chat, made, &again) : -ENOMEM;
		}
		n = r ? r : chat_prompt(l->text, &a->chat, text, &again);
		if (!how || n >= 0)
			*e = again;
		if (n >= 0 || again.fault != CHAT_TEMPLATE)
			break;
	}
	json_decref(given);
	return n;
}

int ask_render(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	struct chat_error e = { 0 };
	char *text;
	int64_t n;

	a->chat.own = l->chat;
	a->chat.content = l->chat_content;
	n = render(a, l, &text, &e);
	if (n < 0)
		return chat_problem(&e, p);
	a->prompt[0].own = text;
	a->prompt[0].text = text;
	a->prompt[0].n_text = (size_t)n;
	if (l->calls) {
		a->begin = calls_begin(l->calls, text, (size_t)n);
		a->splits = a->tool_choice != ASK_TOOLS_NONE || calls_reasoning(l->calls);
		a->tools = a->tool_choice != ASK_TOOLS_NONE ? json_incref(a->chat.tools) : NULL;
	}
	return a->kind == ASK_CHAT ? guides(a, l, p) : 0;
}
