/* items.c - see items.h. */
#include "items.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "adapters/http/choice.h"

static const char *prefix_of(enum said_kind kind)
{
	return kind == SAID_REASONING ? "rs_" : kind == SAID_CALL ? "fc_" : "msg_";
}

struct item *items_last(struct items *l) { return l->n ? &l->item[l->n - 1] : NULL; }

static struct item *new_item(struct items *l, enum said_kind kind)
{
	struct item *i, *more;
	uint64_t random[2] = { 0 };

	if (l->n == l->cap) {
		more = realloc(l->item, (size_t)(2 * l->cap + 4) * sizeof(*more));
		if (!more) {
			l->failed = true;
			return NULL;
		}
		l->item = more;
		l->cap = 2 * l->cap + 4;
	}
	i = &l->item[l->n++];
	*i = (struct item){ .kind = kind, .open = true };
	if (getrandom(random, sizeof(random), 0) < 0)
		random[0] = (uintptr_t)i + (uint64_t)l->n;
	snprintf(i->id, sizeof(i->id), "%s%016llx%016llx", prefix_of(kind), (unsigned long long)random[0],
	         (unsigned long long)random[1]);
	return i;
}

struct item *items_add(struct items *l, const struct said_part *p, const char *s, bool *fresh)
{
	const enum said_kind kind = p->kind == SAID_ARGUMENTS ? SAID_CALL : p->kind;
	struct item *i = items_last(l);

	*fresh = !i || !i->open || p->kind == SAID_CALL || i->kind != kind;
	if (*fresh)
		i = new_item(l, kind);
	if (!i)
		return NULL;
	if (p->kind == SAID_CALL) {
		out_bytes(&i->call_id, s, p->n_id);
		out_bytes(&i->name, s + p->n_id, p->n - p->n_id);
	} else {
		out_bytes(&i->text, s, p->n);
	}
	l->failed |= i->call_id.failed || i->name.failed || i->text.failed;
	return i;
}

static void add_whole(struct items *l, enum said_kind kind, const char *s, size_t n)
{
	struct said_part p = { .kind = kind, .n = n };
	bool fresh;

	if (n)
		items_add(l, &p, s, &fresh);
}

static void add_call(struct items *l, json_t *call)
{
	json_t *id = json_object_get(call, "id"), *function = json_object_get(call, "function");
	json_t *name = json_object_get(function, "name"), *args = json_object_get(function, "arguments");
	struct item *i = new_item(l, SAID_CALL);

	if (!i)
		return;
	out_bytes(&i->call_id, json_string_value(id), json_string_length(id));
	out_bytes(&i->name, json_string_value(name), json_string_length(name));
	out_bytes(&i->text, json_string_value(args), json_string_length(args));
	l->failed |= i->call_id.failed || i->name.failed || i->text.failed;
}

static void add_calls(struct items *l, const struct out *calls)
{
	struct out list = { 0 };
	json_t *v, *call;
	size_t i;

	out_str(&list, "[");
	out_bytes(&list, calls->p, calls->n);
	out_str(&list, "]");
	v = list.failed ? NULL : json_loadb(list.p, list.n, JSON_ALLOW_NUL, NULL);
	l->failed |= !v;
	json_array_foreach(v, i, call)
		add_call(l, call);
	json_decref(v);
	out_free(&list);
}

void items_whole(struct items *l, const struct choice *c)
{
	if (!c->said) {
		add_whole(l, SAID_TEXT, c->text.p, c->ready);
		return;
	}
	add_whole(l, SAID_REASONING, said_reasoning(c->said)->p, said_reasoning(c->said)->n);
	add_whole(l, SAID_TEXT, said_content(c->said)->p, said_content(c->said)->n);
	if (said_n_calls(c->said))
		add_calls(l, said_calls(c->said));
	l->failed |= said_lost(c->said);
}

bool items_call(const struct items *l)
{
	for (int i = 0; i < l->n; i++)
		if (l->item[i].kind == SAID_CALL)
			return true;
	return false;
}

void items_free(struct items *l)
{
	for (int i = 0; i < l->n; i++) {
		struct item *it = &l->item[i];

		out_free(&it->call_id);
		out_free(&it->name);
		out_free(&it->text);
		out_free(&it->scores);
	}
	free(l->item);
}
