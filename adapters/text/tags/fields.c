/* fields.c - members of a format, read and checked; and messages that name the place. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "adapters/text/ebnf/special.h"
#include "impl.h"

/* ---- messages ----------------------------------------------------------------------------- */

size_t tags_place_text(char *out, size_t cap, const struct tags_place *at)
{
	size_t n = at->up ? tags_place_text(out, cap, at->up) : 0;

	if (!at->up)
		n = (size_t)snprintf(out, cap, "#");
	else if (at->key)
		n += (size_t)snprintf(out + n, cap - n, "/%.40s", at->key);
	else
		n += (size_t)snprintf(out + n, cap - n, "/%zu", at->index);
	return n < cap ? n : cap - 1;
}

int32_t tags_fail(struct tags *t, int code, const struct tags_place *at, const char *format, ...)
{
	char what[400], place[200];
	va_list args;

	if (t->e->code)
		return -1;
	tags_place_text(place, sizeof(place), at);
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	grammar_refuse(t->e, code, place, "%s", what);
	return -1;
}

/* What another compiler said of a part. */
int32_t tags_pass_on(struct tags *t, const struct tags_place *at, const struct grammar_error *e)
{
	if (!e->code)
		return tags_fail(t, -E2BIG, at, "This part is too complex.");
	if (*e->place)
		return tags_fail(t, e->code, at, "%s (%s there)", e->message, e->place);
	return tags_fail(t, e->code, at, "%s", e->message);
}

/* ---- fields ------------------------------------------------------------------------------- */

/* Refuse a field that is not among `known`, which are separated by blanks. */
bool tags_only(struct tags *t, json_t *f, const char *known, const struct tags_place *at)
{
	const char *key, *p;
	json_t *v;
	size_t n;

	json_object_foreach(f, key, v) {
		n = strlen(key);
		p = known;
		while (p && (strncmp(p, key, n) || (p[n] && p[n] != ' '))) {
			p = strchr(p, ' ');
			p = p ? p + 1 : NULL;
		}
		if (!p || !n)
			tags_fail(t, -ENOTSUP, at, "The field '%.60s' is not known; known are: %s.", key, known);
	}
	return !t->e->code;
}

json_t *tags_field(struct tags *t, json_t *f, const char *key, json_type type, const struct tags_place *at)
{
	static const char *const names[] = { "an object", "an array", "a string", "an integer" };
	json_t *v = json_object_get(f, key);

	if (v && json_typeof(v) == type)
		return v;
	tags_fail(t, -EINVAL, at, "'%s' must be %s.", key, names[type]);
	return NULL;
}

/* An optional field that is true, false or null. */
bool tags_flag(struct tags *t, json_t *f, const char *key, const struct tags_place *at)
{
	json_t *v = json_object_get(f, key);

	if (v && !json_is_boolean(v) && !json_is_null(v))
		tags_fail(t, -EINVAL, at, "'%s' must be true or false.", key);
	return json_is_true(v);
}

/* An optional count; `none` if it is absent or null. */
uint32_t tags_count(struct tags *t, json_t *f, const char *key, uint32_t none, const struct tags_place *at)
{
	json_t *v = json_object_get(f, key);
	json_int_t n = json_integer_value(v);

	if (!v || json_is_null(v))
		return none;
	if (!json_is_integer(v) || n < 0 || n > INT32_MAX)
		tags_fail(t, -EINVAL, at, "'%s' must be an integer from 0 to 2147483647.", key);
	return (uint32_t)n;
}

/* A token as a number or a spelling; -1 after an error. */
int32_t tags_token(struct tags *t, const json_t *v, const struct tags_place *at)
{
	int32_t vocab = sr_text_info(grammar_text(t->g))->vocab, id;

	if (json_is_integer(v)) {
		if (json_integer_value(v) >= 0 && json_integer_value(v) < vocab)
			return (int32_t)json_integer_value(v);
		return tags_fail(t, -EINVAL, at, "The model's token ids are 0 to %d.", vocab - 1);
	}
	if (!json_is_string(v))
		return tags_fail(t, -EINVAL, at, "A token is its id or its spelling.");
	id = special_id(t->g, json_string_value(v), json_string_length(v));
	return id >= 0 ? id : tags_fail(t, -EINVAL, at, "The model has no token '%.80s'.", json_string_value(v));
}

/* The ids of an optional list; returns their number. */
uint32_t tags_tokens(struct tags *t, json_t *f, const char *key, int32_t ids[TAGS_LIST],
                     const struct tags_place *at)
{
	json_t *list = json_object_get(f, key);

	if (list && !json_is_array(list))
		tags_fail(t, -EINVAL, at, "'%s' must be an array.", key);
	if (json_array_size(list) > TAGS_LIST)
		tags_fail(t, -E2BIG, at, "'%s' has at most %d tokens.", key, TAGS_LIST);
	for (size_t i = 0; i < json_array_size(list) && !t->e->code; i++)
		ids[i] = tags_token(t, json_array_get(list, i), at);
	return t->e->code ? 0 : (uint32_t)json_array_size(list);
}

bool tags_is_text(struct tags *t, const json_t *v, const char *what, const struct tags_place *at)
{
	if (json_is_string(v) && json_string_length(v) && json_string_length(v) <= TAGS_STRING)
		return true;
	tags_fail(t, -EINVAL, at, "%s must be strings of 1 to %d bytes.", what, TAGS_STRING);
	return false;
}

/* The strings of an optional list as one expression. */
uint32_t tags_excludes(struct tags *t, json_t *f, const struct tags_place *at)
{
	json_t *list = json_object_get(f, "excludes"), *v;
	uint32_t e = REGEX_NONE;
	size_t i;

	if (list && !json_is_array(list))
		tags_fail(t, -EINVAL, at, "'excludes' must be an array of strings.");
	if (json_array_size(list) > TAGS_LIST)
		tags_fail(t, -E2BIG, at, "'excludes' has at most %d strings.", TAGS_LIST);
	json_array_foreach(list, i, v) if (!t->e->code && tags_is_text(t, v, "'excludes'", at)) e =
		regex_or(t->x, e, regex_bytes(t->x, json_string_value(v), json_string_length(v)));
	return e;
}
