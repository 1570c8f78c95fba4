/* chat.c - a chat, as JSON, to the text that the model was trained on. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

const struct template *text_template(const struct sr_text *t)
{
	return t->template;
}

/* bos_token and eos_token, unless the caller has set them. */
static int set_token(json_t *vars, const char *name, const struct sr_text *t, int32_t id)
{
	const char *s = "";
	int n = id < 0 ? 0 : sr_text_spelling(t, id, &s);

	if (json_object_get(vars, name))
		return 0;
	return json_object_set_new(vars, name, json_stringn(s, (size_t)(n < 0 ? 0 : n)));
}

int64_t sr_text_chat(const struct sr_text *t, const char *tmpl, const char *context,
                     char **out, char *err, size_t errlen)
{
	struct template *own = NULL;
	json_error_t e;
	json_t *vars;
	int64_t rc = 0;

	if (!tmpl && !t->template) {
		snprintf(err, errlen, "%s", t->chat_template ? t->template_error : "the model has no chat template");
		return -EINVAL;
	}
	vars = json_loads(context, 0, &e);
	if (!json_is_object(vars)) {
		snprintf(err, errlen, "the context of a chat is not a JSON object: %.100s", vars ? "" : e.text);
		json_decref(vars);
		return -EINVAL;
	}
	if (tmpl)
		rc = template_compile(&own, tmpl, strlen(tmpl), err, errlen);
	if (!rc && (set_token(vars, "bos_token", t, t->info.bos) ||
	            set_token(vars, "eos_token", t, t->info.eos))) {
		snprintf(err, errlen, "no memory");
		rc = -ENOMEM;
	}
	if (!rc)
		rc = template_render(own ? own : t->template, vars, NULL, out, err, errlen);
	template_free(own);
	json_decref(vars);
	return rc;
}
