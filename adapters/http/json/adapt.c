/* adapt.c - see adapt.h. */
#include "adapt.h"

#include <string.h>

#include "out.h"

static const char *role_of(const json_t *m)
{
	const char *role = json_string_value(json_object_get(m, "role"));

	return role && strcmp(role, "developer") ? role : "system";
}

static bool is(const json_t *m, const char *role) { return !strcmp(role_of(m), role); }

/* Add the texts of a content, with line feeds between them. */
static void add_text(struct out *o, json_t *content)
{
	json_t *part, *s;
	size_t i;

	if (json_is_string(content))
		out_bytes(o, json_string_value(content), json_string_length(content));
	json_array_foreach(content, i, part) {
		s = json_is_string(part) ? part : json_object_get(part, "text");
		if (!s)
			s = json_object_get(part, "refusal");
		out_str(o, i ? "\n" : "");
		out_bytes(o, json_string_value(s), json_string_length(s));
	}
}

static void add_json(struct out *o, const json_t *v)
{
	size_t n = json_dumpb(v, NULL, 0, JSON_ENCODE_ANY);

	if (out_room(o, n))
		o->n += json_dumpb(v, o->p + o->n, n, JSON_ENCODE_ANY);
}

/* ---- tools ---- */

static void describe(struct out *o, const json_t *tools)
{
	json_t *tool;
	size_t i;

	out_str(o, "You can call functions. To call any, answer with nothing but a JSON list of calls:\n"
	           "[{\"name\": \"NAME\", \"parameters\": {\"PARAMETER\": VALUE}}]\n"
	           "Otherwise answer in plain text. The functions are:\n");
	json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
		add_json(o, json_object_get(tool, "function"));
		out_str(o, "\n");
	}
}

/* The calls of an answer as it would write them. */
static void add_calls(struct out *o, json_t *list)
{
	json_t *call, *function, *arguments;
	size_t i;

	out_str(o, o->n ? "\n[" : "[");
	json_array_foreach(list, i, call) {
		function = json_object_get(call, "function");
		arguments = json_object_get(function, "arguments");
		out_str(o, i ? ", {\"name\": " : "{\"name\": ");
		out_json_str(o, json_string_value(json_object_get(function, "name")));
		out_str(o, ", \"parameters\": ");
		if (json_is_string(arguments) && json_string_length(arguments))
			out_bytes(o, json_string_value(arguments), json_string_length(arguments));
		else if (json_is_object(arguments))
			add_json(o, arguments);
		else
			out_str(o, "{}");
		out_str(o, "}");
	}
	out_str(o, "]");
}

/* ---- messages ---- */

/* Add a message of this role whose content is in o, which is emptied; to the last one if it has the role and
 * `join`. */
static bool add(json_t *list, const char *role, struct out *o, bool join)
{
	json_t *last = json_array_get(list, json_array_size(list) - 1), *made;
	struct out both = { 0 };
	bool ok;

	if (join && json_array_size(list) && is(last, role)) {
		add_text(&both, json_object_get(last, "content"));
		out_str(&both, "\n\n");
		out_bytes(&both, o->p, o->n);
		made = json_copy(last);
		ok = !both.failed && made &&
			!json_object_set_new(made, "content", json_stringn(both.p ? both.p : "", both.n)) &&
			!json_array_set(list, json_array_size(list) - 1, made);
		json_decref(made);
		out_free(&both);
	} else {
		ok = !json_array_append_new(list, json_pack("{ss ss%}", "role", role, "content",
		                                            o->p ? o->p : "", o->n));
	}
	ok = ok && !o->failed;
	out_reset(o);
	return ok;
}

/* A message that is not of the system. */
static bool put(json_t *list, json_t *m, bool described, bool join, struct out *o)
{
	json_t *calls = json_object_get(m, "tool_calls");

	if (described && is(m, "tool")) {
		out_str(o, "The function's result: ");
		add_text(o, json_object_get(m, "content"));
		return add(list, "user", o, true);
	}
	if (described && json_array_size(calls)) {
		add_text(o, json_object_get(m, "content"));
		add_calls(o, calls);
		return add(list, role_of(m), o, false);
	}
	if (join && is(m, "user") && json_array_size(list)) {
		add_text(o, json_object_get(m, "content"));
		return add(list, "user", o, true);
	}
	return !json_array_append(list, m);
}

json_t *adapt_messages(const json_t *messages, enum adapt how, const json_t *tools)
{
	json_t *list = json_array(), *m;
	struct out o = { 0 }, first = { 0 };  /* first: what begins the first message of a user */
	bool ok = list;
	size_t i;

	if (tools && !is(json_array_get(messages, 0), "system"))
		describe(&o, tools);
	if (o.n && how == ADAPT_ALL)
		out_bytes(&first, o.p, o.n);
	else if (o.n)
		ok = ok && add(list, "system", &o, false);
	out_reset(&o);
	json_array_foreach((json_t *)(uintptr_t)messages, i, m) {
		bool system = is(m, "system"), later = i && how >= ADAPT_LATER;

		if (system && (!i || later)) {
			add_text(&o, json_object_get(m, "content"));
			if (tools && !i) {
				out_str(&o, "\n\n");
				describe(&o, tools);
			}
			if (!i && how == ADAPT_ALL)
				out_bytes(&first, o.p, o.n);
			else
				ok = ok && add(list, i ? "user" : "system", &o, i);
			out_reset(&o);
		} else {
			if (first.n && is(m, "user")) {
				ok = ok && add(list, "user", &first, true);
				out_reset(&first);
			}
			ok = ok && put(list, m, tools, how >= ADAPT_LATER, &o);
		}
	}
	if (first.n)                          /* no user says anything */
		ok = ok && add(list, "user", &first, true);
	ok = ok && !o.failed && !first.failed;
	out_free(&o);
	out_free(&first);
	if (!ok)
		json_decref(list);
	return ok ? list : NULL;
}
