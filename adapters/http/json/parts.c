/* parts.c - a JSON object given on the command line, whole or member by member. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "openai.h"

/* a.b=V: V is JSON, or else a string. */
static int add_member(json_t *to, const char *part)
{
	const char *eq = strchr(part, '='), *at = part, *dot;
	json_t *v, *o;

	while (eq && (dot = memchr(at, '.', (size_t)(eq - at)))) {
		o = json_object_getn(to, at, (size_t)(dot - at));
		if (!json_is_object(o)) {
			o = json_object();
			if (json_object_setn_new(to, at, (size_t)(dot - at), o) < 0)
				return -ENOMEM;
		}
		to = o;
		at = dot + 1;
	}
	if (!eq || eq == at)
		return -EINVAL;
	v = json_loads(eq + 1, JSON_DECODE_ANY, NULL);
	if (!v)
		v = json_string(eq + 1);
	return json_object_setn_new(to, at, (size_t)(eq - at), v) < 0 ? -EINVAL : 0;
}

int ask_parts(json_t **out, const char *flag, const char *const *part, int n, char *err, size_t errlen)
{
	json_t *o;
	int r = 0;

	*out = json_object();
	for (int i = 0; i < n && !r; i++) {
		if (part[i][strspn(part[i], " \t\n")] != '{') {
			r = add_member(*out, part[i]);
		} else {
			o = json_loads(part[i], 0, NULL);
			r = o && !json_object_update(*out, o) ? 0 : -EINVAL;
			json_decref(o);
		}
		if (r)
			snprintf(err, errlen, "--%s: %.200s is neither a JSON object nor a member such as "
			         "name=value", flag, part[i]);
	}
	if (r) {
		json_decref(*out);
		*out = NULL;
	}
	return r;
}
