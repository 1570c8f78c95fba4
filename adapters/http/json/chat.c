/* chat.c - turns messages into the text of a prompt.  It checks their shape, joins content parts or keeps
 * them as the template reads them, makes tool calls' arguments objects, and renders the template.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/slipring-text.h"
#include "adapters/text/template/template.h"
#include "fields.h"
#include "openai.h"

#define ROLE_BYTES 64

/* The text of one part of a message's content, or NULL and *p. */
static json_t *part_text(json_t *part, size_t message, size_t i, struct problem *p)
{
	const char *type;
	json_t *s;
	char at[64];

	if (json_is_string(part))
		return part;
	snprintf(at, sizeof(at), "messages.%zu.content.%zu", message, i);
	type = json_string_value(json_object_get(part, "type"));
	if (!json_is_object(part) || (!type && !json_object_get(part, "text"))) {
		problem_field(p, at, "messages[%zu].content[%zu] must be an object with a `type`.",
		              message, i);
		return NULL;
	}
	if (!type || !strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text"))
		s = json_object_get(part, "text");
	else if (!strcmp(type, "refusal"))
		s = json_object_get(part, "refusal");
	else {
		problem_bad(p, NULL, "messages[%zu].content[%zu] is of type `%.32s`: this server takes text "
		            "only.", message, i, type);
		return NULL;
	}
	if (json_is_string(s))
		return s;
	problem_field(p, at, "messages[%zu].content[%zu] must have a string `%s`.", message, i,
	              type && !strcmp(type, "refusal") ? "refusal" : "text");
	return NULL;
}

int ask_messages(struct ask *a, json_t *messages, struct problem *p)
{
	json_t *m, *v, *part;
	char at[64];
	size_t i, k;

	if (!json_is_array(messages) && !json_is_string(messages) && !json_is_object(messages))
		return problem_bad(p, NULL, "messages must be a list, not %s.", field_type(messages));
	if (!json_is_array(messages))
		return problem_field(p, "messages", "messages must be a list, not %s.", field_type(messages));
	if (!json_array_size(messages))
		return problem_bad(p, NULL, "Cannot apply chat template to an empty conversation. Provide at "
		                   "least one message.");
	json_array_foreach(messages, i, m) {
		snprintf(at, sizeof(at), "messages.%zu", i);
		if (!json_is_object(m))
			return problem_field(p, at, "messages[%zu] must be an object, not %s.", i,
			                     field_type(m));
		v = json_object_get(m, "role");
		snprintf(at, sizeof(at), "messages.%zu.role", i);
		if (!json_is_string(v))
			return problem_field(p, at, "messages[%zu].role %s.", i, v ? "must be a string" :
			                     "is required");
		if (json_string_length(v) > ROLE_BYTES)
			return problem_field(p, at, "messages[%zu].role is longer than %d bytes.", i,
			                     ROLE_BYTES);
		v = json_object_get(m, "content");
		snprintf(at, sizeof(at), "messages.%zu.content", i);
		if (v && !json_is_null(v) && !json_is_string(v) && !json_is_array(v))
			return problem_field(p, at, "messages[%zu].content must be a string or a list of "
			                     "parts, not %s.", i, field_type(v));
		if (json_is_array(v))
			json_array_foreach(v, k, part)
				if (!part_text(part, i, k, p))
					return -1;
		v = json_object_get(m, "tool_calls");
		snprintf(at, sizeof(at), "messages.%zu.tool_calls", i);
		if (v && !json_is_null(v) && !json_is_array(v))
			return problem_field(p, at, "messages[%zu].tool_calls must be a list.", i);
	}
	a->messages = messages;
	return 0;
}

/* Does a template loop over the parts of a content?  It has "for x in m.content" or "m['content']". */
bool chat_wants_parts(const char *source)
{
	const char *s = source, *t;

	while (s && (s = strstr(s, "for "))) {
		s += 4;
		t = s + strspn(s, " ");
		t += strcspn(t, " %}");
		if (strncmp(t, " in ", 4))
			continue;
		t += 4;
		t += strspn(t, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
		if (!strncmp(t, ".content", 8) || !strncmp(t, "['content']", 11) ||
		    !strncmp(t, "[\"content\"]", 11))
			return true;
	}
	return false;
}

/* Put v into holder.  Jansson frees v if there is no memory for that; then return NULL, to which jansson adds
 * nothing, and set *ok to false.  Else return v. */
static json_t *put(json_t *holder, const char *key, json_t *v, bool *ok)
{
	bool put = json_object_set_new(holder, key, v) == 0;

	*ok &= put;
	return put ? v : NULL;
}

static json_t *add(json_t *list, json_t *v, bool *ok)
{
	bool added = json_array_append_new(list, v) == 0;

	*ok &= added;
	return added ? v : NULL;
}

/* The texts of the parts, joined by line feeds, or a list of {"type": "text", "text": ..}. */
static json_t *content(json_t *v, bool parts, bool tool, bool *ok)
{
	struct problem unused;
	struct out text = { 0 };
	json_t *part, *list, *r, *s;
	size_t i;

	if (!parts || tool) {
		if (json_is_string(v))
			return json_incref(v);
		if (json_is_array(v))
			json_array_foreach(v, i, part) {
				s = part_text(part, 0, i, &unused);
				if (i)
					out_str(&text, "\n");
				out_bytes(&text, json_string_value(s), json_string_length(s));
			}
		r = text.failed ? NULL : json_stringn(text.p ? text.p : "", text.n);
		out_free(&text);
		return r;
	}
	list = json_array();
	if (json_is_string(v))
		add(list, json_pack("{s:s, s:O}", "type", "text", "text", v), ok);
	else if (json_is_array(v))
		json_array_foreach(v, i, part) {
			s = part_text(part, 0, i, &unused);
			add(list, json_pack("{s:s, s:O}", "type", "text", "text", s), ok);
		}
	return list;
}

/* Templates read arguments as an object; clients send back the string that they received. */
static int calls(json_t *copy, json_t *list, size_t message, size_t *left, bool *ok, struct problem *p)
{
	json_t *call, *function, *v, *out = put(copy, "tool_calls", json_array(), ok), *made;
	size_t i;

	json_array_foreach(list, i, call) {
		made = add(out, json_copy(call), ok);
		function = json_object_get(call, "function");
		v = json_object_get(function, "arguments");
		if (!json_is_object(function) || !json_is_string(v))
			continue;
		function = put(made, "function", json_copy(function), ok);
		errno = 0;
		if (!json_string_length(v))
			v = json_object();
		else
			v = ask_json_within(json_string_value(v), json_string_length(v), left);
		if (!v && errno == ENOMEM)
			return problem_memory(p);
		if (!v)
			return problem_bad(p, NULL, "messages[%zu].tool_calls[%zu].function.arguments is not "
			                   "valid JSON.", message, i);
		put(function, "arguments", v, ok);
	}
	return 0;
}

static int conversation(const struct ask *a, const struct ask_limits *l, json_t *to, bool *ok,
                        struct problem *p)
{
	static const char *const kept[] = { "name", "tool_call_id", "reasoning", "tools" };
	json_t *m, *v, *copy;
	const char *role;
	size_t i, k, left = ASK_JSON_VALUES;  /* of all arguments together */

	json_array_foreach(a->messages, i, m) {
		role = json_string_value(json_object_get(m, "role"));
		copy = add(to, json_object(), ok);
		/* developer is OpenAI's newer name for system; most templates know only system. */
		put(copy, "role", !strcmp(role, "developer") && !l->chat_developer ? json_string("system") :
		    json_incref(json_object_get(m, "role")), ok);
		put(copy, "content", content(json_object_get(m, "content"), l->chat_parts, !strcmp(role, "tool"), ok),
		    ok);
		for (k = 0; k < sizeof(kept) / sizeof(kept[0]); k++)
			if (field_given(m, kept[k]))
				put(copy, kept[k], json_incref(json_object_get(m, kept[k])), ok);
		v = json_object_get(m, "reasoning");
		if (!field_given(m, "reasoning"))
			v = json_object_get(m, "reasoning_content");
		if (v && !json_is_null(v)) {
			put(copy, "reasoning", json_incref(v), ok);
			put(copy, "reasoning_content", json_incref(v), ok);
		}
		v = json_object_get(m, "tool_calls");
		if (json_is_array(v) && json_array_size(v) && calls(copy, v, i, &left, ok, p) < 0)
			return -1;
	}
	return 0;
}

/* The answer continues the last message: mark its end, and cut the rendered text there. */
#define MARK "SLIPRING_FINAL_MESSAGE_ENDS_HERE "

static int mark_final(json_t *messages, bool *ok, struct problem *p)
{
	json_t *last = json_array_get(messages, json_array_size(messages) - 1);
	json_t *v = json_object_get(last, "content"), *holder = last;
	const char *key = "content";
	struct out s = { 0 };

	if (json_is_array(v)) {
		if (!json_array_size(v))
			return problem_bad(p, NULL, "continue_final_message is set but the final message "
			                   "has no content to continue.");
		holder = json_array_get(v, json_array_size(v) - 1);
		key = "text";
		v = json_object_get(holder, key);
	}
	out_bytes(&s, json_string_value(v), json_string_length(v));
	out_str(&s, MARK);
	put(holder, key, s.failed ? NULL : json_stringn(s.p, s.n), ok);
	out_free(&s);
	return 0;
}

static int cut_final(char *text, size_t *n, struct problem *p)
{
	size_t mark = strlen(MARK) - 1, i;

	for (i = *n >= mark ? *n - mark + 1 : 0; i > 0; i--)
		if (!memcmp(text + i - 1, MARK, mark))
			break;
	if (!i)
		return problem_bad(p, NULL, "continue_final_message is set but the chat template does "
		                   "not show the final message.");
	*n = i - 1;
	if (text[*n + mark] != ' ')           /* the template trims, so the cut must trim, too */
		while (*n && strchr(" \t\r\n", text[*n - 1]))
			(*n)--;
	text[*n] = 0;
	return 0;
}

int ask_render(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	const struct text_chat how = { .own = l->chat, .tools_optional = a->no_tool_call };
	const char *unread;
	bool ok = true;
	json_t *vars = json_object(), *messages = put(vars, "messages", json_array(), &ok);
	char err[512] = "";
	char *text = NULL;
	int64_t n = -1;
	size_t len;
	int r = -1;

	if (!l->chat && !sr_text_info(l->text)->chat_template) {
		problem_bad(p, NULL, "The model has no chat template: give one with --chat-template, or use "
		            "/v1/completions.");
		goto out;
	}
	if (conversation(a, l, messages, &ok, p) < 0)
		goto out;
	if (ok && a->continue_final && mark_final(messages, &ok, p) < 0)
		goto out;
	put(vars, "add_generation_prompt", json_boolean(a->add_generation_prompt), &ok);
	if (a->tools)
		put(vars, "tools", json_incref(a->tools), &ok);
	if (a->documents)
		put(vars, "documents", json_incref(a->documents), &ok);
	if (a->reasoning_effort) {
		put(vars, "reasoning_effort", json_string(a->reasoning_effort), &ok);
		put(vars, "enable_thinking", json_boolean(strcmp(a->reasoning_effort, "none")), &ok);
	}
	if (a->template_kwargs) {
		json_t *v;
		const char *key;

		json_object_foreach(a->template_kwargs, key, v)
			if (strcmp(key, "messages") && strcmp(key, "tools"))
				put(vars, key, json_incref(v), &ok);
	}
	if (!ok) {
		problem_memory(p);
		goto out;
	}
	n = text_chat(l->text, &how, vars, &unread, &text, err, sizeof(err));
	if (n == -ENOMEM) {
		problem_memory(p);
		goto out;
	}
	if (n < 0 && unread) {
		problem_bad(p, unread, "The chat template does not use `%s`: the model would not see them. Leave "
		            "`%s` out, or serve a model or a --chat-template that uses them.", unread, unread);
		goto out;
	}
	if (n < 0) {
		problem_bad(p, NULL, "The chat template failed: %.500s", err);
		goto out;
	}
	len = (size_t)n;
	if (a->continue_final && cut_final(text, &len, p) < 0)
		goto out;
	a->prompt[0].own = text;
	a->prompt[0].text = text;
	a->prompt[0].n_text = len;
	text = NULL;
	r = 0;
out:
	free(text);
	json_decref(vars);
	return r;
}
