/* chat.c - renders a chat, given as JSON, to the text format that the model was trained on. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "text.h"
#include "adapters/text/unicode/utf8.h"

/* False for null, false and empty values: a template treats them as absent. */
static bool given(const json_t *v)
{
	if (json_is_array(v) || json_is_object(v))
		return json_array_size(v) || json_object_size(v);
	return v && !json_is_null(v) && !json_is_false(v);
}

/* A special token as text; "" if there is none or it is not valid text. */
static json_t *token(const struct sr_text *t, int32_t id)
{
	const char *s = "";
	int n = id < 0 ? 0 : sr_text_piece(t, id, &s, NULL);

	return n > 0 && utf8_valid(s, (size_t)n) ? json_stringn(s, (size_t)n) : json_string("");
}

static bool set_default(json_t *vars, const char *name, json_t *v)
{
	if (!json_object_get(vars, name))
		return !json_object_set_new(vars, name, v);
	json_decref(v);
	return true;
}

static const struct template *pick(const struct sr_text *t, const json_t *vars, char *err, size_t errlen)
{
	const struct chat_template *c = &t->chat;

	if (t->with_tools.source && given(json_object_get(vars, "tools")))
		c = &t->with_tools;
	if (!c->compiled)
		snprintf(err, errlen, "%s", c->source ? c->error : "the model has no chat template");
	return c->compiled;
}

int64_t text_chat(const struct sr_text *t, const struct text_chat *how, json_t *vars, const char **unread,
                  char **out, char *err, size_t errlen)
{
	const struct template *template = how->own ? how->own : pick(t, vars, err, errlen);
	const char *name;

	*unread = NULL;
	if (!template)
		return -EINVAL;
	for (size_t i = 0; (name = template_inputs[i]); i++) {
		if (!given(json_object_get(vars, name)) || template_reads(template, name) ||
		    (how->tools_optional && !strcmp(name, "tools")))
			continue;
		*unread = name;
		snprintf(err, errlen, "the chat template does not use `%s`: the model would not see them", name);
		return -EINVAL;
	}
	if (!set_default(vars, "bos_token", token(t, t->info.bos)) ||
	    !set_default(vars, "eos_token", token(t, t->info.eos)) ||
	    !set_default(vars, "tools", json_null()) || !set_default(vars, "documents", json_null())) {
		snprintf(err, errlen, "no memory");
		return -ENOMEM;
	}
	return template_render(template, vars, NULL, out, err, errlen);
}

int64_t sr_text_chat(const struct sr_text *t, const char *tmpl, const char *context,
                     char **out, char *err, size_t errlen)
{
	struct template *own = NULL;
	const char *unread;
	json_error_t e;
	json_t *vars;
	int64_t rc = 0;

	vars = json_loads(context, 0, &e);
	if (!json_is_object(vars)) {
		snprintf(err, errlen, "the context of a chat is not a JSON object: %.100s", vars ? "" : e.text);
		json_decref(vars);
		return -EINVAL;
	}
	if (tmpl)
		rc = template_compile(&own, tmpl, strlen(tmpl), err, errlen);
	if (!rc)
		rc = text_chat(t, &(struct text_chat){ .own = own }, vars, &unread, out, err, errlen);
	template_free(own);
	json_decref(vars);
	return rc;
}
