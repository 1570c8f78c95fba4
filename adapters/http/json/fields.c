/* fields.c - see fields.h. */
#include "fields.h"
#include "adapters/text/text_json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int field_int(json_t *v, int64_t *out)
{
	const char *s;
	char *end;
	double d;

	if (json_is_integer(v)) {
		*out = json_integer_value(v);
		return 0;
	}
	if (json_is_boolean(v)) {
		*out = json_is_true(v);
		return 0;
	}
	if (json_is_real(v)) {
		d = json_real_value(v);
		if (d != floor(d) || fabs(d) > 9e18)
			return -EINVAL;
		*out = (int64_t)d;
		return 0;
	}
	if (!json_is_string(v))
		return -EINVAL;
	s = json_string_value(v);
	errno = 0;
	*out = strtoll(s, &end, 10);
	return errno || end == s || *end ? -EINVAL : 0;
}

int field_double(json_t *v, double *out)
{
	const char *s;
	char *end;

	if (json_is_number(v)) {
		*out = json_number_value(v);
		return 0;
	}
	if (json_is_boolean(v)) {
		*out = json_is_true(v);
		return 0;
	}
	if (!json_is_string(v))
		return -EINVAL;
	s = json_string_value(v);
	*out = strtod(s, &end);
	return end == s || *end || !isfinite(*out) ? -EINVAL : 0;
}

int field_bool(json_t *v, bool *out)
{
	static const char *const yes[] = { "1", "true", "t", "yes", "y", "on" };
	static const char *const no[] = { "0", "false", "f", "no", "n", "off" };
	const char *s;

	if (json_is_boolean(v)) {
		*out = json_is_true(v);
		return 0;
	}
	if (json_is_number(v) && (json_number_value(v) == 0 || json_number_value(v) == 1)) {
		*out = json_number_value(v) != 0;
		return 0;
	}
	s = json_string_value(v);
	for (size_t i = 0; s && i < sizeof(yes) / sizeof(yes[0]); i++)
		if (!strcasecmp(s, yes[i]) || !strcasecmp(s, no[i])) {
			*out = !strcasecmp(s, yes[i]);
			return 0;
		}
	return -EINVAL;
}

int fields_read(const struct field *f, size_t n, uint8_t in, json_t *object, void *to,
                struct problem *p)
{
	static const char *const wanted[] = { "a bool", "an integer", "a number", "a string" };

	for (size_t i = 0; i < n; i++) {
		json_t *v = f[i].in & in ? json_object_get(object, f[i].name) : NULL;
		void *at = (char *)to + f[i].at;
		int e = 0;

		if (!v || (f[i].nullable && json_is_null(v)))
			continue;
		switch (f[i].kind) {
		case FIELD_BOOL: e = field_bool(v, at); break;
		case FIELD_INT: e = field_int(v, at); break;
		case FIELD_DOUBLE: e = field_double(v, at); break;
		case FIELD_STRING:
			if (!json_is_string(v)) {
				e = -EINVAL;
			} else if (strlen(json_string_value(v)) != json_string_length(v)) {
				return problem_field(p, f[i].name, "%s must not contain NUL.", f[i].name);
			} else {
				*(const char **)at = json_string_value(v);
			}
			break;
		}
		if (e)
			return problem_field(p, f[i].name, "%s must be %s, not %s%s.", f[i].name,
			                     wanted[f[i].kind], text_json_type(v),
			                     json_is_string(v) || json_is_real(v) ?
			                     " that cannot be read as one" : "");
	}
	return 0;
}

int field_ids(json_t *v, const char *name, int64_t below, struct ask_ids *out, struct problem *p)
{
	size_t n;
	int64_t id;

	if (!json_is_array(v))
		return problem_field(p, name, "%s must be a list of integers, not %s.", name, text_json_type(v));
	n = json_array_size(v);
	out->id = malloc((n + !n) * sizeof(*out->id));
	if (!out->id)
		return problem_memory(p);
	for (size_t i = 0; i < n; i++) {
		char at[96];

		if (field_int(json_array_get(v, i), &id) < 0) {
			snprintf(at, sizeof(at), "%s.%zu", name, i);
			return problem_field(p, at, "%s[%zu] must be an integer, not %s.", name, i,
			                     text_json_type(json_array_get(v, i)));
		}
		if (below && (id < 0 || id >= below)) {
			char value[32];

			snprintf(value, sizeof(value), "[%lld]", (long long)id);
			return problem_value(p, name, value,
			                     "token_id(s) [%lld] in %s contain out-of-vocab token ids. "
			                     "Vocabulary size: %lld", (long long)id, name, (long long)below);
		}
		/* An id out of range is no token: the checks of ids refuse -1. */
		out->id[i] = id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
	}
	out->n = (uint32_t)n;
	return 0;
}
