/* chat.c - messages to the text of a prompt.  It checks their shape, joins content parts or keeps them as the
 * template reads them, makes tool calls' arguments objects, and renders the template.
 */
#include "chat.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "text_json.h"
#include "adapters/text/unicode/utf8.h"

#define ROLE_BYTES 64
#define MARK "SLIPRING_FINAL_MESSAGE_ENDS_HERE "  /* where an answer continues the last message */

/* field NULL: none.  All but those of memory and templates are -EINVAL. */
static int reject(struct chat_error *e, enum chat_fault fault, const char *field, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static int reject(struct chat_error *e, enum chat_fault fault, const char *field, const char *fmt, ...)
{
	va_list ap;

	e->fault = fault;
	snprintf(e->field, sizeof(e->field), "%s", field ? field : "");
	va_start(ap, fmt);
	vsnprintf(e->message, sizeof(e->message), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

static int no_memory(struct chat_error *e)
{
	reject(e, CHAT_MEMORY, NULL, "no memory");
	return -ENOMEM;
}

/* ---- templates ------------------------------------------------------------------------------- */

/* Does a template loop over the parts of a content?  It has "for x in m.content" or "m['content']". */
static bool reads_parts(const char *source)
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

int text_compile_chat(struct chat_template *c, const char *source, char *err, size_t errlen)
{
	c->parts = reads_parts(source);
	c->developer = strstr(source, "developer");
	return template_compile(&c->compiled, source, strlen(source), err, errlen);
}

int chat_template_open(struct chat_template **out, const char *source, char *err, size_t errlen)
{
	struct chat_template *c = calloc(1, sizeof(*c));
	int rc;

	*out = NULL;
	if (!c) {
		snprintf(err, errlen, "there is no memory for the chat template");
		return -ENOMEM;
	}
	rc = text_compile_chat(c, source, err, errlen);
	if (rc) {
		free(c);
		return rc;
	}
	*out = c;
	return 0;
}

void chat_template_close(struct chat_template *c)
{
	if (c)
		template_free(c->compiled);
	free(c);
}

/* The one that renders this chat.  It may have no source, or not be compiled. */
static const struct chat_template *pick(const struct sr_text *t, const struct chat_input *c)
{
	if (c->own)
		return c->own;
	return t->with_tools.source && text_json_true(c->tools) ? &t->with_tools : &t->chat;
}

const char *chat_source(const struct sr_text *t)
{
	return t->with_tools.source ? t->with_tools.source : t->chat.source;
}

bool chat_shows_tools(const struct sr_text *t, const struct chat_input *c)
{
	const struct chat_template *template = pick(t, c);

	return template->compiled && template_reads(template->compiled, "tools");
}

/* ---- the shape ------------------------------------------------------------------------------- */

int chat_read_inputs(struct chat_input *c, json_t *object, struct chat_error *e)
{
	static const char *const efforts[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };
	char at[40];
	json_t *v;
	size_t i;

	if (text_json_true(json_object_get(object, "continue_final_message")) &&
	    text_json_true(json_object_get(object, "add_generation_prompt")))
		return reject(e, CHAT_WRONG, NULL, "Cannot set both `continue_final_message` and "
		              "`add_generation_prompt` to True.");
	if (c->continue_final)                /* vLLM's default of add_generation_prompt is true */
		c->add_generation_prompt = false;
	for (i = 0; c->reasoning_effort && strcmp(c->reasoning_effort, efforts[i]);)
		if (++i == sizeof(efforts) / sizeof(efforts[0]))
			return reject(e, CHAT_SHAPE, "reasoning_effort", "reasoning_effort must be none, minimal, low, "
			              "medium, high, xhigh or max.");
	c->documents = text_json_given(object, "documents") ? json_object_get(object, "documents") : NULL;
	if (c->documents && !json_is_array(c->documents))
		return reject(e, CHAT_SHAPE, "documents", "documents must be a list of objects.");
	json_array_foreach(c->documents, i, v)
		if (!json_is_object(v)) {
			snprintf(at, sizeof(at), "documents.%zu", i);
			return reject(e, CHAT_SHAPE, at, "documents[%zu] must be an object, not %s.", i,
			              text_json_type(v));
		}
	c->variables = text_json_given(object, "chat_template_kwargs") ?
		json_object_get(object, "chat_template_kwargs") : NULL;
	if (c->variables && !json_is_object(c->variables))
		return reject(e, CHAT_SHAPE, "chat_template_kwargs", "chat_template_kwargs must be an object.");
	return 0;
}

/* The text of one part of a message's content, or NULL and *e. */
static json_t *part_text(json_t *part, size_t message, size_t i, struct chat_error *e)
{
	const char *type;
	json_t *s;
	char at[64];

	if (json_is_string(part))
		return part;
	snprintf(at, sizeof(at), "messages.%zu.content.%zu", message, i);
	type = json_string_value(json_object_get(part, "type"));
	if (!json_is_object(part) || (!type && !json_object_get(part, "text"))) {
		reject(e, CHAT_SHAPE, at, "messages[%zu].content[%zu] must be an object with a `type`.", message, i);
		return NULL;
	}
	if (!type || !strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text")) {
		s = json_object_get(part, "text");
	} else if (!strcmp(type, "refusal")) {
		s = json_object_get(part, "refusal");
	} else {
		reject(e, CHAT_WRONG, NULL, "messages[%zu].content[%zu] is of type `%.32s`: only text is "
		       "supported.", message, i, type);
		return NULL;
	}
	if (json_is_string(s))
		return s;
	reject(e, CHAT_SHAPE, at, "messages[%zu].content[%zu] must have a string `%s`.", message, i,
	       type && !strcmp(type, "refusal") ? "refusal" : "text");
	return NULL;
}

/* Fill m from message i; m->text has room for its parts. */
static int read_message(struct chat_message *m, size_t i, struct chat_error *e)
{
	json_t *v, *part;
	char at[64];
	size_t k;

	snprintf(at, sizeof(at), "messages.%zu", i);
	if (!json_is_object(m->given))
		return reject(e, CHAT_SHAPE, at, "messages[%zu] must be an object, not %s.", i,
		              text_json_type(m->given));
	v = json_object_get(m->given, "role");
	snprintf(at, sizeof(at), "messages.%zu.role", i);
	if (!json_is_string(v))
		return reject(e, CHAT_SHAPE, at, "messages[%zu].role %s.", i, v ? "must be a string" : "is required");
	if (json_string_length(v) > ROLE_BYTES)
		return reject(e, CHAT_SHAPE, at, "messages[%zu].role is longer than %d bytes.", i, ROLE_BYTES);
	v = json_object_get(m->given, "content");
	snprintf(at, sizeof(at), "messages.%zu.content", i);
	if (v && !json_is_null(v) && !json_is_string(v) && !json_is_array(v))
		return reject(e, CHAT_SHAPE, at, "messages[%zu].content must be a string or a list of parts, not %s.",
		              i, text_json_type(v));
	if (json_is_string(v))
		m->text[m->n_text++] = v;
	else
		json_array_foreach(v, k, part)
			if (!(m->text[m->n_text++] = part_text(part, i, k, e)))
				return -EINVAL;
	v = json_object_get(m->given, "tool_calls");
	snprintf(at, sizeof(at), "messages.%zu.tool_calls", i);
	if (v && !json_is_null(v) && !json_is_array(v))
		return reject(e, CHAT_SHAPE, at, "messages[%zu].tool_calls must be a list.", i);
	return 0;
}

static size_t count_texts(json_t *message)
{
	json_t *v = json_object_get(message, "content");

	return json_is_string(v) ? 1 : json_array_size(v);
}

int chat_read_messages(struct chat_input *c, json_t *messages, struct chat_error *e)
{
	size_t i, n_text = 0;
	json_t **text, *m;
	int rc;

	if (!messages)
		return reject(e, CHAT_SHAPE, "messages", "messages is required: a list of messages.");
	if (!json_is_array(messages))
		return reject(e, json_is_string(messages) || json_is_object(messages) ? CHAT_SHAPE : CHAT_WRONG,
		              "messages", "messages must be a list, not %s.", text_json_type(messages));
	if (!json_array_size(messages))
		return reject(e, CHAT_WRONG, NULL, "Cannot apply chat template to an empty conversation. Provide at "
		              "least one message.");
	json_array_foreach(messages, i, m)
		n_text += count_texts(m);
	free(c->message);
	c->n_messages = json_array_size(messages);
	c->message = calloc(1, c->n_messages * sizeof(*c->message) + n_text * sizeof(*text));
	if (!c->message)
		return no_memory(e);
	text = (json_t **)(c->message + c->n_messages);
	json_array_foreach(messages, i, m) {
		c->message[i] = (struct chat_message){ .given = m, .text = text };
		rc = read_message(&c->message[i], i, e);
		if (rc)
			return rc;
		text += c->message[i].n_text;
	}
	c->messages = messages;
	return 0;
}

void chat_free(struct chat_input *c)
{
	free(c->message);
	*c = (struct chat_input){ 0 };
}

/* ---- as the template reads it ---------------------------------------------------------------- */

/* Put v into holder.  Jansson frees v if there is no memory for that; then return NULL, to which jansson adds
 * nothing, and set *ok to false.  Else return v. */
static json_t *put_member(json_t *holder, const char *key, json_t *v, bool *ok)
{
	bool put = json_object_set_new(holder, key, v) == 0;

	*ok &= put;
	return put ? v : NULL;
}

static json_t *append_json(json_t *list, json_t *v, bool *ok)
{
	bool added = json_array_append_new(list, v) == 0;

	*ok &= added;
	return added ? v : NULL;
}

/* The texts, joined by line feeds, and `end`. */
static json_t *joined(json_t *const *text, size_t n, const char *end)
{
	size_t total = strlen(end) + 1, at = 0, len, i;
	json_t *v;
	char *s;

	if (n == 1 && !*end)
		return json_incref(text[0]);
	for (i = 0; i < n; i++)
		total += json_string_length(text[i]) + 1;
	s = malloc(total);
	if (!s)
		return NULL;
	for (i = 0; i < n; i++) {
		if (i)
			s[at++] = '\n';
		len = json_string_length(text[i]);
		memcpy(s + at, json_string_value(text[i]), len);
		at += len;
	}
	strcpy(s + at, end);
	v = json_stringn(s, at + strlen(end));
	free(s);
	return v;
}

/* The content of a message and `end`: one text, or a list of {"type": "text", "text": ..}. */
static json_t *content(const struct chat_message *m, bool parts, const char *end, bool *ok)
{
	json_t *list, *s;
	size_t i;

	if (!parts)
		return joined(m->text, m->n_text, end);
	list = json_array();
	for (i = 0; i < m->n_text; i++) {
		s = joined(m->text + i, 1, i + 1 == m->n_text ? end : "");
		append_json(list, json_pack("{s:s, s:o}", "type", "text", "text", s), ok);
	}
	return list;
}

/* Templates read arguments as an object; clients send back the string that they received. */
static int calls(json_t *copy, json_t *list, size_t message, size_t *left, bool *ok, struct chat_error *e)
{
	json_t *call, *function, *v, *out = put_member(copy, "tool_calls", json_array(), ok), *made;
	json_error_t unused;
	size_t i;
	int rc;

	json_array_foreach(list, i, call) {
		made = append_json(out, json_copy(call), ok);
		function = json_object_get(call, "function");
		v = json_object_get(function, "arguments");
		if (!json_is_object(function) || !json_is_string(v))
			continue;
		function = put_member(made, "function", json_copy(function), ok);
		if (json_string_length(v)) {
			rc = text_json_read(&v, json_string_value(v), json_string_length(v), left, &unused);
			if (rc == -ENOMEM)
				return no_memory(e);
			if (rc)
				return reject(e, CHAT_WRONG, NULL, "messages[%zu].tool_calls[%zu].function.arguments is "
				              "not valid JSON.", message, i);
		} else {
			v = json_object();
		}
		put_member(function, "arguments", v, ok);
	}
	return 0;
}

/* The messages as the template reads them. */
static int conversation(const struct chat_input *c, const struct chat_template *t, json_t *to, bool *ok,
                        struct chat_error *e)
{
	static const char *const kept[] = { "name", "tool_call_id", "reasoning", "tools" };
	bool parts = c->content == CHAT_CONTENT_AUTO ? t->parts : c->content == CHAT_CONTENT_PARTS;
	size_t i, k, left = TEXT_JSON_VALUES;  /* of all arguments together */
	const struct chat_message *m;
	json_t *v, *copy;
	const char *role;
	bool tool, last;

	for (i = 0; i < c->n_messages; i++) {
		m = &c->message[i];
		role = json_string_value(json_object_get(m->given, "role"));
		tool = !strcmp(role, "tool");
		last = c->continue_final && i + 1 == c->n_messages;
		copy = append_json(to, json_object(), ok);
		/* developer is OpenAI's newer name for system; most templates know only system. */
		put_member(copy, "role", !strcmp(role, "developer") && !t->developer ? json_string("system") :
		           json_incref(json_object_get(m->given, "role")), ok);
		put_member(copy, "content", content(m, parts && !tool, last ? MARK : "", ok), ok);
		for (k = 0; k < sizeof(kept) / sizeof(kept[0]); k++)
			if (text_json_given(m->given, kept[k]))
				put_member(copy, kept[k], json_incref(json_object_get(m->given, kept[k])), ok);
		v = json_object_get(m->given, "reasoning");
		if (!text_json_given(m->given, "reasoning"))
			v = json_object_get(m->given, "reasoning_content");
		if (v && !json_is_null(v)) {
			put_member(copy, "reasoning", json_incref(v), ok);
			put_member(copy, "reasoning_content", json_incref(v), ok);
		}
		v = json_object_get(m->given, "tool_calls");
		if (json_array_size(v) && calls(copy, v, i, &left, ok, e) < 0)
			return e->fault == CHAT_MEMORY ? -ENOMEM : -EINVAL;
		if (*ok && last && parts && !tool && !m->n_text)
			return reject(e, CHAT_WRONG, NULL, "continue_final_message is set but the final message has no "
			              "content to continue.");
	}
	return 0;
}

/* A special token as text; "" if there is none or it is not valid text. */
static json_t *special_token(const struct sr_text *t, int32_t id)
{
	const char *s = "";
	int n = id < 0 ? 0 : sr_text_piece(t, id, &s, NULL);

	return n > 0 && utf8_valid(s, (size_t)n) ? json_stringn(s, (size_t)n) : json_string("");
}

static void put_default(json_t *vars, const char *name, json_t *v, bool *ok)
{
	if (json_object_get(vars, name))
		json_decref(v);
	else
		put_member(vars, name, v, ok);
}

/* All that the template reads, beside its messages. */
static void variables(const struct sr_text *t, const struct chat_input *c, json_t *vars, bool *ok)
{
	const char *key;
	json_t *v;

	put_member(vars, "add_generation_prompt", json_boolean(c->add_generation_prompt), ok);
	if (c->tools)
		put_member(vars, "tools", json_incref(c->tools), ok);
	if (c->documents)
		put_member(vars, "documents", json_incref(c->documents), ok);
	if (c->reasoning_effort) {
		put_member(vars, "reasoning_effort", json_string(c->reasoning_effort), ok);
		put_member(vars, "enable_thinking", json_boolean(strcmp(c->reasoning_effort, "none")), ok);
	}
	json_object_foreach(c->variables, key, v)
		if (strcmp(key, "messages") && strcmp(key, "tools"))
			put_member(vars, key, json_incref(v), ok);
	put_default(vars, "bos_token", special_token(t, sr_text_info(t)->bos), ok);
	put_default(vars, "eos_token", special_token(t, sr_text_info(t)->eos), ok);
	put_default(vars, "tools", json_null(), ok);
	put_default(vars, "documents", json_null(), ok);
}

/* -EINVAL: the caller gives what the template does not read. */
static int all_read(const struct chat_input *c, const struct template *t, const json_t *vars,
                    struct chat_error *e)
{
	const char *name;

	for (size_t i = 0; (name = template_inputs[i]); i++)
		if (text_json_true(json_object_get(vars, name)) && !template_reads(t, name) &&
		    !(c->tools_optional && !strcmp(name, "tools")))
			return reject(e, CHAT_UNREAD, name,
			              "the chat template does not use `%s`: the model would not see them", name);
	return 0;
}

/* Cut text of *n bytes where the last message ends. */
static int cut_final(char *text, int64_t *n, struct chat_error *e)
{
	int64_t mark = (int64_t)strlen(MARK) - 1, i;

	for (i = *n - mark; i >= 0; i--)
		if (!memcmp(text + i, MARK, (size_t)mark))
			break;
	if (i < 0)
		return reject(e, CHAT_WRONG, NULL, "continue_final_message is set but the chat template does not "
		              "show the final message.");
	*n = i;
	if (text[i + mark] != ' ')            /* the template trims, so the cut must trim, too */
		while (*n && strchr(" \t\r\n", text[*n - 1]))
			(*n)--;
	text[*n] = 0;
	return 0;
}

static int64_t render_chat(const struct sr_text *t, const struct chat_input *c, json_t *vars, char **out,
                           struct chat_error *e)
{
	const struct chat_template *template = pick(t, c);
	bool ok = true;
	json_t *messages = put_member(vars, "messages", json_array(), &ok);
	int64_t n;

	if (!template->compiled && !template->source)
		return reject(e, CHAT_NO_TEMPLATE, NULL, "the model has no chat template");
	n = conversation(c, template, messages, &ok, e);
	if (n < 0)
		return n;
	variables(t, c, vars, &ok);
	if (!ok)
		return no_memory(e);
	if (!template->compiled)
		return reject(e, CHAT_TEMPLATE, NULL, "%s", template->error);
	n = all_read(c, template->compiled, vars, e);
	if (n < 0)
		return n;
	n = template_render(template->compiled, vars, NULL, out, e->message, sizeof(e->message));
	if (n < 0)
		e->fault = n == -ENOMEM ? CHAT_MEMORY : CHAT_TEMPLATE;
	return n;
}

int64_t chat_prompt(const struct sr_text *t, const struct chat_input *c, char **out, struct chat_error *e)
{
	json_t *vars = json_object();
	int64_t n;

	*out = NULL;
	n = render_chat(t, c, vars, out, e);
	json_decref(vars);
	if (n >= 0 && c->continue_final && cut_final(*out, &n, e) < 0) {
		free(*out);
		*out = NULL;
		return -EINVAL;
	}
	return n;
}

/* ---- sr_text_chat ---------------------------------------------------------------------------- */

/* Members that are not fields of a chat are variables of the template; those of chat_template_kwargs win.
 * NULL: no memory. */
static json_t *other_members(json_t *context, const json_t *kwargs)
{
	static const char *const fields[] = { "messages", "tools", "documents", "reasoning_effort",
		"add_generation_prompt", "continue_final_message", "chat_template_kwargs" };
	json_t *others = json_copy(context);

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		json_object_del(others, fields[i]);
	if (kwargs && json_object_update(others, (json_t *)(uintptr_t)kwargs) < 0) {
		json_decref(others);
		return NULL;
	}
	return others;
}

static int64_t chat_of(const struct sr_text *t, const struct chat_template *own, json_t *context, char **out,
                       struct chat_error *e)
{
	json_t *effort = json_object_get(context, "reasoning_effort"), *others = NULL;
	struct chat_input c = {
		.own = own,
		.tools = text_json_given(context, "tools") ? json_object_get(context, "tools") : NULL,
		.reasoning_effort = json_string_value(effort),
		.add_generation_prompt = !json_object_get(context, "add_generation_prompt") ||
		                         text_json_true(json_object_get(context, "add_generation_prompt")),
		.continue_final = text_json_true(json_object_get(context, "continue_final_message")),
	};
	int64_t rc;

	if (effort && !json_is_null(effort) && !json_is_string(effort))
		return reject(e, CHAT_SHAPE, "reasoning_effort", "reasoning_effort must be a string, not %s.",
		              text_json_type(effort));
	rc = chat_read_inputs(&c, context, e);
	if (!rc)
		rc = chat_read_messages(&c, json_object_get(context, "messages"), e);
	if (!rc && !(c.variables = others = other_members(context, c.variables)))
		rc = no_memory(e);
	if (!rc)
		rc = chat_prompt(t, &c, out, e);
	chat_free(&c);
	json_decref(others);
	return rc;
}

int64_t sr_text_chat(const struct sr_text *t, const char *tmpl, const char *context,
                     char **out, char *err, size_t errlen)
{
	size_t left = TEXT_JSON_VALUES;
	struct chat_template *own = NULL;
	struct chat_error e = { 0 };
	json_error_t wrong;
	json_t *object;
	int64_t rc;

	rc = text_json_read(&object, context, strlen(context), &left, &wrong);
	if (!rc && !json_is_object(object)) {
		snprintf(wrong.text, sizeof(wrong.text), "it is %s", text_json_type(object));
		rc = -EINVAL;
	}
	if (rc)
		snprintf(err, errlen, rc == -ENOMEM ? "no memory" : rc == -E2BIG ? "the context of a chat %s" :
		         "the context of a chat is not a JSON object: %s", wrong.text);
	if (!rc && tmpl)
		rc = chat_template_open(&own, tmpl, err, errlen);
	if (!rc) {
		rc = chat_of(t, own, object, out, &e);
		if (rc < 0)
			snprintf(err, errlen, "%s", e.message);
	}
	chat_template_close(own);
	json_decref(object);
	return rc;
}
