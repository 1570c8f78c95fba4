/* compile.c - open and close a grammar: the one place that knows all kinds. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/ebnf/ebnf.h"
#include "adapters/text/guide/guide.h"
#include "adapters/text/schema/schema.h"
#include "adapters/text/tags/tags.h"
#include "adapters/text/text.h"
#include "adapters/text/text_json.h"
#include "pattern.h"

/* ---- the kinds: source to symbol; -1: e says why, or the grammar does when it is sealed ---- */

static int32_t bad_json(struct grammar_error *e, const json_error_t *where)
{
	char place[32];

	snprintf(place, sizeof(place), "%d:%d", where->line, where->column);
	grammar_refuse(e, -EINVAL, place, "It is not JSON: %.200s.", where->text);
	return SYMBOL_NONE;
}

static int32_t choice(struct grammar *g, const char *s, size_t n, struct grammar_error *e)
{
	struct regexes *r = grammar_regexes(g);
	json_error_t where;
	json_t *list = json_loadb(s, n, 0, &where), *one;
	uint32_t *expr = NULL;
	int32_t symbol = SYMBOL_NONE;
	size_t i, count = json_array_size(list);

	if (!list)
		return bad_json(e, &where);
	if (!json_is_array(list) || !count)
		grammar_refuse(e, -EINVAL, NULL, "A choice is a JSON array of at least one string.");
	else if (!(expr = malloc(count * sizeof(*expr))))
		grammar_refuse(e, -ENOMEM, NULL, "There is no memory for the choice.");
	json_array_foreach(list, i, one) {
		if (!json_is_string(one)) {
			char place[32];
			snprintf(place, sizeof(place), "/%zu", i);
			grammar_refuse(e, -EINVAL, place, "A choice is a JSON array of strings; this is none.");
		}
		if (e->code)
			break;
		expr[i] = regex_bytes(r, json_string_value(one), json_string_length(one));
	}
	if (!e->code)
		symbol = grammar_lexeme(g, regex_or_all(r, expr, count));
	free(expr);
	json_decref(list);
	return symbol;
}

static int32_t regex(struct grammar *g, const char *s, size_t n, struct grammar_error *e)
{
	uint32_t expr = pattern_parse(grammar_regexes(g), s, n, 0, e);

	return e->code ? SYMBOL_NONE : grammar_lexeme(g, expr);
}

/* A JSON schema or a structural tag. */
static int32_t json_kind(struct grammar *g, bool tag, const char *s, size_t n, struct grammar_error *e)
{
	const char *what = tag ? "structural tag" : "JSON schema";
	size_t left = TEXT_JSON_VALUES;
	json_error_t where;
	int32_t symbol;
	json_t *v;
	int rc;

	if (n > SCHEMA_BYTES) {
		grammar_refuse(e, -E2BIG, NULL, "A %s has at most %u bytes; this one has %zu.", what, SCHEMA_BYTES,
		               n);
		return SYMBOL_NONE;
	}
	rc = text_json_read(&v, s, n, &left, &where);
	if (rc == -EINVAL)
		return bad_json(e, &where);
	if (rc) {
		grammar_refuse(e, rc, NULL, "The %s %s.", what,
		               rc == -E2BIG ? where.text : "needs more memory than there is");
		return SYMBOL_NONE;
	}
	symbol = tag ? tags_compile(g, v, e) : schema_compile(g, v, "#", e);
	json_decref(v);
	return symbol;
}

static int32_t symbol_of(struct grammar *g, enum sr_grammar_kind kind, const char *s, size_t n,
                         struct grammar_error *e)
{
	switch (kind) {
	case SR_GRAMMAR_JSON:
		return json_kind(g, false, s, n, e);
	case SR_GRAMMAR_CHOICE:
		return choice(g, s, n, e);
	case SR_GRAMMAR_REGEX:
		return regex(g, s, n, e);
	case SR_GRAMMAR_EBNF:
		return ebnf_compile(g, s, n, e);
	case SR_GRAMMAR_TAGS:
		return json_kind(g, true, s, n, e);
	default:
		grammar_refuse(e, -ENOTSUP, NULL, "There is no grammar of kind %d.", (int)kind);
		return SYMBOL_NONE;
	}
}

/* ---- a grammar ---- */

static void add_stop(struct sr_grammar *g, int32_t id)
{
	if (id >= 0 && g->n_stop < GUIDE_STOPS)
		g->stop[g->n_stop++] = id;
}

static void find_stops(struct sr_grammar *g, const struct sr_grammar_options *o)
{
	const struct sr_text_info *in = &g->t->info;

	g->eos = in->n_stop ? in->stop[0] : -1;
	for (int32_t i = 0; i < in->n_stop; i++) {
		add_stop(g, in->stop[i]);
		if (in->stop[i] == in->eos)
			g->eos = in->eos;
	}
	for (uint32_t i = 0; o && i < o->n_stop; i++)
		add_stop(g, o->stop[i]);
}

static int build(struct sr_grammar *g, enum sr_grammar_kind kind, const char *s, size_t n,
                 const struct sr_grammar_options *o, struct grammar_error *e)
{
	int32_t symbol[2];
	int rc;

	g->g = grammar_create(g->t, o);
	g->tokens = text_tokens(g->t);
	if (!g->g || !g->tokens)
		return grammar_refuse(e, -ENOMEM, NULL, "There is no memory for the grammar.");
	symbol[1] = symbol_of(g->g, kind, s, n, e);
	if (e->code)
		return e->code;
	if (o && o->n_begin) {
		int32_t whole = grammar_rule(g->g);
		symbol[0] = grammar_until(g->g, o->begin, o->n_begin);
		grammar_produce(g->g, whole, symbol, 2);
		symbol[1] = symbol[1] < 0 ? symbol[1] : whole;
	}
	rc = grammar_seal(g->g, symbol[1], e);
	if (!rc) {
		rc = caches_create(&g->now, g);
		if (rc)
			grammar_refuse(e, rc, NULL, rc == -E2BIG ? "The grammar begins in more than %u ways." :
			               "There is no memory for the grammar (%u items).", ROW_ITEMS);
	}
	return rc;
}

int sr_grammar_open(struct sr_grammar **out, const struct sr_text *t, enum sr_grammar_kind kind,
                    const char *src, size_t n, const struct sr_grammar_options *o, char *err, size_t errlen)
{
	struct grammar_error e = { .code = 0 };
	struct sr_grammar *g = calloc(1, sizeof(*g));
	int rc;

	if (errlen)
		*err = 0;
	if (!g) {
		snprintf(err, errlen, "There is no memory for the grammar.");
		return -ENOMEM;
	}
	atomic_init(&g->users, 1);
	g->most_bytes = CACHE_BYTES;
	pthread_mutex_init(&g->lock, NULL);
	g->t = t;
	find_stops(g, o);
	rc = build(g, kind, src, n, o, &e);
	if (rc || e.message[0])                         /* 0 with a message: lenient */
		snprintf(err, errlen, "%s%s%s", e.message, e.place[0] ? " At " : "", e.place);
	if (rc) {
		sr_grammar_close(g);
		return rc;
	}
	*out = g;
	return 0;
}

void sr_grammar_close(struct sr_grammar *g)
{
	if (!g || atomic_fetch_sub_explicit(&g->users, 1, memory_order_acq_rel) > 1)
		return;
	caches_free(g->now);
	grammar_free(g->g);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

size_t sr_grammar_bytes(struct sr_grammar *g)
{
	size_t bytes;

	pthread_mutex_lock(&g->lock);
	bytes = sizeof(*g) + caches_bytes(g->now) + regexes_count(g->g->r) * (size_t)64;
	pthread_mutex_unlock(&g->lock);
	return bytes;
}
