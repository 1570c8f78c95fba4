/* dispatch.c - free text in which triggers begin formats: triggered_tags and dispatch, also by tokens. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"

struct dispatch {
	struct tags_markers *k;
	uint32_t n; /* markers that are triggers; those of the end follow */
	const struct tags_markers *end;
	bool loop;
	bool tokens; /* the free part is tokens */
	uint32_t excludes;
	const int32_t *ids; /* excluded tokens */
	uint32_t n_ids;
};

/* The triggers are in d->k, with the symbols that follow them. */
static int32_t compile_dispatch(struct tags *t, struct dispatch *d, const struct tags_place *at)
{
	int32_t both[2];

	for (uint32_t i = 0; i < d->n; i++) {
		d->k->m[i].again = d->loop;
		if (!d->loop && tags_marked(d->end)) {
			both[0] = d->k->m[i].then;
			both[1] = tags_end(t, d->end);
			d->k->m[i].then = tags_all(t, both, 2);
		}
	}
	if (d->end && d->n + d->end->n > TAGS_MARKERS)
		return tags_fail(t, -E2BIG, at, "At most %d strings can end free text.", TAGS_MARKERS);
	for (uint32_t i = 0; d->end && i < d->end->n; i++)
		d->k->m[d->k->n++] = d->end->m[i];
	if (t->e->code)
		return -1;
	if (d->tokens)
		return tags_free_tokens(t, d->k, d->ids, d->n_ids, tags_after(d->end));
	return tags_free(t, d->k, d->excludes, REGEX_MANY, tags_after(d->end));
}

/* Does this trigger begin the tag?  *rest: what is left of its begin. */
static bool triggers(const json_t *trigger, const json_t *tag, const char **rest, size_t *n)
{
	const json_t *begin = json_object_get(tag, "begin");
	size_t k = json_string_length(trigger);

	*n = json_string_length(begin);
	if (!json_is_string(begin) || *n < k || memcmp(json_string_value(begin), json_string_value(trigger), k))
		return false;
	*rest = json_string_value(begin) + k;
	*n -= k;
	return true;
}

/* What may follow a trigger: the rest of the tags that it begins.  Their number is added to *used. */
static int32_t after_trigger(struct tags *t, json_t *trigger, json_t *list, size_t *used,
                             const struct tags_place *at)
{
	struct tags_place up = { at, "tags", 0 }, here = { &up, NULL, 0 };
	int32_t rule = grammar_rule(t->g), symbol;
	const char *rest;
	json_t *tag;
	size_t n;

	json_array_foreach(list, here.index, tag) {
		if (!triggers(trigger, tag, &rest, &n))
			continue;
		symbol = tags_tag(t, tag, tags_string(t, rest, n, &here), &here);
		grammar_produce(t->g, rule, &symbol, 1);
		++*used;
	}
	return rule;
}

static int32_t after_token(struct tags *t, int32_t id, json_t *list, size_t *used,
                           const struct tags_place *at)
{
	struct tags_place up = { at, "tags", 0 }, here = { &up, NULL, 0 };
	int32_t rule = grammar_rule(t->g), symbol;
	json_t *tag, *token;

	json_array_foreach(list, here.index, tag) {
		token = tags_token_field(json_object_get(tag, "begin"));
		if (!token || tags_token(t, token, &here) != id)
			continue;
		symbol = tags_tag(t, tag, grammar_lexeme(t->g, REGEX_EMPTY), &here);
		grammar_produce(t->g, rule, &symbol, 1);
		++*used;
	}
	return rule;
}

/* The triggers of a list as markers, with the tags that each begins. */
static void read_triggers(struct tags *t, struct dispatch *d, json_t *names, json_t *list,
                          const struct tags_place *at)
{
	size_t used = 0, before, i;
	int32_t id, then;
	json_t *v;

	json_array_foreach(names, i, v) {
		if (t->e->code)
			return;
		before = used;
		if (d->tokens) {
			id = tags_token(t, v, at);
			then = id < 0 ? -1 : after_token(t, id, list, &used, at);
			tags_mark_token(t, d->k, id, at);
		} else {
			if (!tags_is_text(t, v, "'triggers'", at))
				return;
			then = after_trigger(t, v, list, &used, at);
			tags_mark(t, d->k, json_string_value(v), json_string_length(v), at);
		}
		if (!t->e->code && used == before)
			tags_fail(t, -EINVAL, at, "The trigger at index %zu begins no tag.", i);
		if (!t->e->code)
			d->k->m[d->k->n - 1].then = then;
	}
	if (!t->e->code && used != json_array_size(list))
		tags_fail(t, -EINVAL, at, "Each tag must begin with exactly one trigger.");
	d->n = d->k->n;
}

int32_t tags_triggered(struct tags *t, json_t *f, bool tokens, const struct tags_markers *end,
                       const struct tags_place *at)
{
	json_t *list = tags_list(t, f, at);
	json_t *names = tags_field(t, f, tokens ? "trigger_tokens" : "triggers", JSON_ARRAY, at);
	bool least = tags_flag(t, f, "at_least_one", at), once = tags_flag(t, f, "stop_after_first", at);
	int32_t ids[TAGS_LIST], symbol[2] = { -1, -1 };
	struct dispatch d = {
		.k = calloc(1, sizeof(*d.k)), .end = end, .loop = !once, .tokens = tokens, .ids = ids
	};

	if (!d.k)
		return tags_fail(t, -ENOMEM, at, "There is not enough memory.");
	if (tokens)
		d.n_ids = tags_tokens(t, f, "exclude_tokens", ids, at);
	else
		d.excludes = tags_excludes(t, f, at);
	if (list && names && !t->e->code)
		read_triggers(t, &d, names, list, at);
	if (least && !t->e->code)
		symbol[0] = tags_any_tag(t, list, at);
	if (least && once)
		symbol[1] = t->e->code ? -1 : tags_ended(t, symbol[0], end);
	else
		symbol[1] = t->e->code ? -1 : compile_dispatch(t, &d, at);
	free(d.k);
	return least && !once ? tags_all(t, symbol, 2) : symbol[1];
}

/* rules: [[pattern, format], ..]. */
int32_t tags_rules(struct tags *t, json_t *f, bool tokens, const struct tags_markers *end,
                   const struct tags_place *at)
{
	struct tags_place up = { at, "rules", 0 }, here = { &up, NULL, 0 };
	json_t *list = tags_field(t, f, "rules", JSON_ARRAY, at), *rule, *v;
	int32_t ids[TAGS_LIST], then, symbol;
	struct dispatch d = { .k = calloc(1, sizeof(*d.k)), .end = end, .tokens = tokens, .ids = ids };

	if (!d.k)
		return tags_fail(t, -ENOMEM, at, "There is not enough memory.");
	d.loop = !json_object_get(f, "loop") || tags_flag(t, f, "loop", at);
	if (tokens)
		d.n_ids = tags_tokens(t, f, "exclude_tokens", ids, at);
	else
		d.excludes = tags_excludes(t, f, at);
	json_array_foreach(list, here.index, rule) {
		v = json_array_get(rule, 0);
		if (json_array_size(rule) != 2)
			tags_fail(t, -EINVAL, &here, "A rule is a pattern and a format.");
		if (t->e->code)
			break;
		then = tags_format(t, json_array_get(rule, 1), NULL, &here);
		if (tokens)
			tags_mark_token(t, d.k, tags_token(t, v, &here), &here);
		else if (tags_is_text(t, v, "Patterns", &here))
			tags_mark(t, d.k, json_string_value(v), json_string_length(v), &here);
		if (!t->e->code)
			d.k->m[d.k->n - 1].then = then;
	}
	d.n = d.k->n;
	symbol = t->e->code ? -1 : compile_dispatch(t, &d, at);
	free(d.k);
	return symbol;
}
