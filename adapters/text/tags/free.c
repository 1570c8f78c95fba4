/* free.c - free text between the formats of a structural tag, and the markers that end it.
 *
 * Text up to the first of some markers M is one terminal: what ends with M and has no M that ends earlier,
 * (.*M) & ~(.*M.+).  Special tokens are no text, so a marker that begins with one ends the text by itself; if
 * that token is the only marker, no mask is needed until it comes (grammar_until).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/ebnf/special.h"
#include "impl.h"

int32_t tags_all(struct tags *t, const int32_t *symbol, uint32_t n)
{
	int32_t rule;

	if (n == 1)
		return symbol[0];
	rule = grammar_rule(t->g);
	grammar_produce(t->g, rule, symbol, n);
	return rule;
}

int32_t tags_any(struct tags *t, const int32_t *symbol, uint32_t n)
{
	int32_t rule;

	if (n == 1)
		return symbol[0];
	rule = grammar_rule(t->g);
	for (uint32_t i = 0; i < n; i++)
		grammar_produce(t->g, rule, &symbol[i], 1);
	return rule;
}

/* The special token at the beginning of s, or NULL. */
static const struct tags_special *special_at(const struct tags *t, const char *s, size_t n)
{
	uint8_t b = n ? (uint8_t)*s : 0;

	for (uint32_t i = t->first[b]; n && i < t->first[b + 1]; i++)
		if ((size_t)t->special[i].n <= n && !memcmp(t->special[i].s, s, (size_t)t->special[i].n))
			return &t->special[i];
	return NULL;
}

int32_t tags_string(struct tags *t, const char *s, size_t n, const struct tags_place *at)
{
	const struct tags_special *p;
	int32_t symbol[64];
	uint32_t k = 0;
	size_t from = 0;

	if (n > TAGS_STRING)
		return tags_fail(t, -E2BIG, at, "A string has at most %d bytes here.", TAGS_STRING);
	for (size_t i = 0; i < n; i++) {
		p = special_at(t, s + i, n - i);
		if (!p)
			continue;
		if (k + 3 > sizeof(symbol) / sizeof(*symbol))
			return tags_fail(t, -E2BIG, at, "A string has at most 31 special tokens.");
		if (i > from)
			symbol[k++] = grammar_lexeme(t->g, regex_bytes(t->x, s + from, i - from));
		symbol[k++] = grammar_token(t->g, &p->id, 1);
		i += (size_t)p->n - 1;
		from = i + 1;
	}
	if (from < n || !n)
		symbol[k++] = grammar_lexeme(t->g, regex_bytes(t->x, s + from, n - from));
	return tags_all(t, symbol, k);
}

static struct tags_marker *new_marker(struct tags *t, struct tags_markers *k, const struct tags_place *at)
{
	if (k->n == TAGS_MARKERS) {
		tags_fail(t, -E2BIG, at, "At most %d strings can end free text.", TAGS_MARKERS);
		return NULL;
	}
	k->m[k->n] = (struct tags_marker){ .token = -1, .symbol = -1, .rest = -1, .then = -1 };
	return &k->m[k->n++];
}

void tags_mark(struct tags *t, struct tags_markers *k, const char *s, size_t n, const struct tags_place *at)
{
	const struct tags_special *p = special_at(t, s, n);
	struct tags_marker *m = new_marker(t, k, at);

	if (!m)
		return;
	m->plain = true;
	for (size_t i = 0; i < n; i++)
		m->plain = m->plain && !special_at(t, s + i, n - i);
	m->expr = m->plain ? regex_bytes(t->x, s, n) : REGEX_NONE;
	m->symbol = tags_string(t, s, n, at);
	m->token = p ? p->id : -1;
	if (p && n > (size_t)p->n)
		m->rest = tags_string(t, s + p->n, n - (size_t)p->n, at);
}

void tags_mark_token(struct tags *t, struct tags_markers *k, int32_t id, const struct tags_place *at)
{
	struct tags_marker *m = new_marker(t, k, at);

	if (m) {
		m->token = id;
		m->symbol = grammar_token(t->g, &id, 1);
	}
}

/* free, first, what follows it; then free text again if the marker says so. */
static void produce(struct tags *t, int32_t rule, int32_t free, int32_t first, const struct tags_marker *m)
{
	int32_t symbol[4];
	uint32_t n = 0;

	symbol[n++] = free;
	if (first >= 0)
		symbol[n++] = first;
	if (m->then >= 0)
		symbol[n++] = m->then;
	if (m->again)
		symbol[n++] = rule;
	grammar_produce(t->g, rule, symbol, n);
}

/* All plain markers as one expression. */
static uint32_t plain_markers(struct tags *t, const struct tags_markers *k)
{
	uint32_t list[TAGS_MARKERS], n = 0;

	for (uint32_t i = 0; i < k->n; i++)
		if (k->m[i].plain)
			list[n++] = k->m[i].expr;
	return regex_or_all(t->x, list, n);
}

/* e, with no string of `what` anywhere in it; REGEX_NONE: it may have all. */
static uint32_t without(struct tags *t, uint32_t e, uint32_t what)
{
	uint32_t has = regex_concat(t->x, REGEX_ANY, regex_concat(t->x, what, REGEX_ANY));

	return what == REGEX_NONE ? e : regex_and(t->x, e, regex_not(t->x, has));
}

/* The one token that ends the text, if nothing else does but the answer's end; or -1. */
static int32_t only_token(const struct tags_markers *k, enum tags_after after)
{
	return after != TAGS_ANY && k->n == 1 && k->m[0].token >= 0 ? k->m[0].token : -1;
}

int32_t tags_free(struct tags *t, const struct tags_markers *k, uint32_t excludes, uint32_t max_chars,
                  enum tags_after after)
{
	uint32_t text = max_chars == REGEX_MANY ? t->text : regex_repeat(t->x, t->any, 0, max_chars);
	uint32_t plain = plain_markers(t, k), late, e;
	bool limited = excludes != REGEX_NONE || max_chars != REGEX_MANY;
	int32_t rule = grammar_rule(t->g), token = limited ? -1 : only_token(k, after), rest, tail;

	late = regex_concat(t->x, REGEX_ANY, regex_concat(t->x, plain, t->more));
	for (uint32_t i = 0; i < k->n; i++) {
		const struct tags_marker *m = &k->m[i];

		if (m->plain) {
			e = regex_and(t->x, without(t, regex_concat(t->x, text, m->expr), excludes),
			              regex_not(t->x, late));
			produce(t, rule, grammar_lexeme(t->g, e), -1, m);
		} else if (token >= 0) {
			produce(t, rule, grammar_until(t->g, &token, 1), m->rest, m);
		} else {
			rest = grammar_lexeme(t->g, without(t, without(t, text, plain), excludes));
			produce(t, rule, rest, m->symbol, m);
		}
	}
	if (after == TAGS_LAST && token >= 0) {
		grammar_produce(t->g, rule, NULL, 0);    /* while all is free the answer may end */
	} else if (after != TAGS_MARKER) {
		tail = grammar_lexeme(t->g, without(t, without(t, text, plain), excludes));
		grammar_produce(t->g, rule, &tail, 1);
	}
	return rule;
}

int32_t tags_free_tokens(struct tags *t, const struct tags_markers *k, const int32_t *ids, uint32_t n,
                         enum tags_after after)
{
	int32_t rule = grammar_rule(t->g), token = n ? -1 : only_token(k, after), other, *not ;
	uint32_t n_not = n;

	not = malloc((n + k->n + 1) * sizeof(*not ));
	if (!not )
		return -1;
	if (n)
		memcpy(not, ids, n * sizeof(*not ));
	for (uint32_t i = 0; i < k->n; i++)
		if (k->m[i].token >= 0)
			not [n_not++] = k->m[i].token;
	other = token >= 0 ? -1 : grammar_repeat(t->g, special_except(t->g, not, n_not), 0, GRAMMAR_MANY, -1);
	for (uint32_t i = 0; i < k->n; i++) {
		const struct tags_marker *m = &k->m[i];

		if (token >= 0)
			produce(t, rule, grammar_until(t->g, &token, 1), m->rest, m);
		else
			produce(t, rule, other, m->symbol, m);
	}
	if (after == TAGS_LAST && token >= 0)
		grammar_produce(t->g, rule, NULL, 0);
	else if (after != TAGS_MARKER)
		grammar_produce(t->g, rule, &other, 1);
	free(not );
	return rule;
}
