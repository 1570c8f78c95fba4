/* defaults.c - reads generation_config.json of a Hugging Face directory: the sampling parameters for
 * requests that give none, as with vLLM's --generation-config.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fields.h"
#include "openai.h"

static int read_number(json_t *o, const char *path, const char *name, double least, double most, double *to,
                       char *err, size_t errlen)
{
	json_t *v = json_object_get(o, name);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_number(v) || json_number_value(v) < least || json_number_value(v) > most) {
		snprintf(err, errlen, "%s: %s must be a number from %g to %g", path, name, least, most);
		return -EINVAL;
	}
	*to = json_number_value(v);
	return 0;
}

int ask_defaults_read(struct ask_defaults *d, const char *dir, bool cap, char *err, size_t errlen)
{
	double top_k = -1, max_tokens = -1;
	char path[4200];
	json_error_t e;
	json_t *o;
	int r;

	*d = (struct ask_defaults){ NAN, NAN, NAN, NAN, -1, -1, -1 };
	if (!dir)
		return 0;
	snprintf(path, sizeof(path), "%s/generation_config.json", dir);
	if (access(path, F_OK) < 0)
		return 0;
	o = json_load_file(path, 0, &e);
	if (!o) {
		snprintf(err, errlen, "%s, line %d: %s", path, e.line, e.text);
		return -EINVAL;
	}
	r = read_number(o, path, "temperature", 0, 2, &d->temperature, err, errlen);
	if (!r)
		r = read_number(o, path, "top_p", 1e-6, 1, &d->top_p, err, errlen);
	if (!r)
		r = read_number(o, path, "min_p", 0, 1, &d->min_p, err, errlen);
	if (!r)
		r = read_number(o, path, "repetition_penalty", 1e-6, 1e6, &d->repetition_penalty, err, errlen);
	if (!r)
		r = read_number(o, path, "top_k", -1, INT32_MAX, &top_k, err, errlen);
	if (!r)
		r = read_number(o, path, "max_new_tokens", 1, INT32_MAX, &max_tokens, err, errlen);
	d->top_k = (int64_t)top_k;
	d->max_tokens = (int64_t)max_tokens;
	d->max_tokens_cap = cap ? d->max_tokens : -1;
	json_decref(o);
	return r;
}
