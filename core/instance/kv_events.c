/* kv_events.c - see kv_events.h. */
#include "kv_events.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

struct reader {
	char *err;
	size_t errlen;
};

static int wrong(const struct reader *r, const char *key, const char *want)
{
	snprintf(r->err, r->errlen, "--kv-events-config: \"%.64s\" %s", key, want);
	return -EINVAL;
}

static int take_text(const struct reader *r, const char *key, const json_t *v, char *to, size_t room)
{
	if (json_is_null(v)) {
		*to = 0;
		return 0;
	}
	if (!json_is_string(v) || json_string_length(v) >= room || strlen(json_string_value(v)) != json_string_length(v))
		return wrong(r, key, "must be a short text");
	memcpy(to, json_string_value(v), json_string_length(v) + 1);
	return 0;
}

static int take_number(const struct reader *r, const char *key, const json_t *v, int64_t *to)
{
	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 100000000)
		return wrong(r, key, "must be a number from 1 to 100000000");
	*to = json_integer_value(v);
	return 0;
}

static int take_bool(const struct reader *r, const char *key, const json_t *v, bool *to)
{
	if (!json_is_boolean(v))
		return wrong(r, key, "must be true or false");
	*to = json_is_true(v);
	return 0;
}

/* One of two words; *second: it is the second. */
static int take_word(const struct reader *r, const char *key, const json_t *v, const char *const word[2], bool *second)
{
	const char *s = json_is_string(v) ? json_string_value(v) : "";
	char want[64];

	*second = !strcmp(s, word[1]);
	if (*second || !strcmp(s, word[0]))
		return 0;
	snprintf(want, sizeof(want), "must be \"%s\" or \"%s\"", word[0], word[1]);
	return wrong(r, key, want);
}

static bool endpoint_works(const char *s)
{
	return !*s || !strncmp(s, "tcp://", 6) || !strncmp(s, "ipc://", 6);
}

static int take_member(const struct reader *r, struct kv_events *e, bool *null, const char *key, const json_t *v)
{
	static const char *const encodings[2] = { "map", "array" }, *const publishers[2] = { "zmq", "null" };
	int64_t queue;

	if (!strcmp(key, "enable_kv_cache_events"))
		return take_bool(r, key, v, &e->on);
	if (!strcmp(key, "publisher"))
		return json_is_null(v) ? 0 : take_word(r, key, v, publishers, null);
	if (!strcmp(key, "encoding"))
		return take_word(r, key, v, encodings, &e->arrays);
	if (!strcmp(key, "endpoint"))
		return take_text(r, key, v, e->endpoint, sizeof(e->endpoint));
	if (!strcmp(key, "replay_endpoint"))
		return take_text(r, key, v, e->replay, sizeof(e->replay));
	if (!strcmp(key, "topic")) {
		e->topic_given = true;
		return take_text(r, key, v, e->topic, sizeof(e->topic));
	}
	if (!strcmp(key, "user"))
		return take_text(r, key, v, e->user, sizeof(e->user));
	if (!strcmp(key, "buffer_steps"))
		return take_number(r, key, v, &e->steps);
	if (!strcmp(key, "hwm"))
		return take_number(r, key, v, &e->hwm);
	if (!strcmp(key, "max_queue_size"))
		return take_number(r, key, v, &queue); /* there is no queue: a late reader looks at the blocks */
	return wrong(r, key, "is no member; there are enable_kv_cache_events, publisher, endpoint, replay_endpoint, "
	             "buffer_steps, hwm, max_queue_size, topic, and ours: encoding, user");
}

static int take_all(const struct reader *r, struct kv_events *e, json_t *object)
{
	const char *key;
	json_t *v;
	bool null = false;
	int rc = 0;

	json_object_foreach(object, key, v)
		if ((rc = take_member(r, e, &null, key, v)) < 0)
			return rc;
	if (!endpoint_works(e->endpoint) || !*e->endpoint)
		return wrong(r, "endpoint", "must begin with tcp:// or ipc://");
	if (!endpoint_works(e->replay))
		return wrong(r, "replay_endpoint", "must begin with tcp:// or ipc://");
	e->on = e->on && !null;
	return 0;
}

int kv_events_parse(struct kv_events *out, const char *text, char *err, size_t errlen)
{
	const struct reader r = { err, errlen };
	json_error_t e;
	json_t *object;
	int rc;

	*out = (struct kv_events){ .endpoint = KV_EVENTS_HERE, .steps = 10000, .hwm = 100000 };
	if (!text)
		return 0;
	object = json_loads(text, JSON_REJECT_DUPLICATES, &e);
	if (json_is_object(object)) {
		rc = take_all(&r, out, object);
	} else {
		snprintf(err, errlen, "--kv-events-config must be a JSON object such as {\"enable_kv_cache_events\":true}%s%s",
		         object ? "" : ": ", object ? "" : e.text);
		rc = -EINVAL;
	}
	json_decref(object);
	return rc;
}
