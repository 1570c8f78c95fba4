/* choice.c - see choice.h. */
#include "choice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int stops_init(struct stops *s, const struct ask *a)
{
	size_t total = 0;
	uint32_t *m, k, j;
	int i;

	*s = (struct stops){ .n = a->n_stop, .include = a->include_stop };
	if (!s->n)
		return 0;
	for (i = 0; i < s->n; i++)
		total += a->stop_len[i] + 1;
	m = s->memory = malloc(total * sizeof(*m));
	if (!m)
		return -ENOMEM;
	for (i = 0; i < s->n; i++) {
		s->s[i] = a->stop[i];
		s->len[i] = (uint32_t)a->stop_len[i];
		s->fail[i] = m;
		m += s->len[i] + 1;
		s->fail[i][0] = s->fail[i][1] = 0;
		for (j = 1, k = 0; j < s->len[i]; j++) {
			while (k && s->s[i][j] != s->s[i][k])
				k = s->fail[i][k];
			k += s->s[i][j] == s->s[i][k];
			s->fail[i][j + 1] = k;
		}
	}
	return 0;
}

void stops_free(struct stops *s) { free(s->memory); }

void lps_add(struct lps *l, const struct sr_token *t)
{
	struct lp head = { .id = t->id, .logprob = t->logprob, .rank = t->rank, .n_top = t->n_here };

	out_bytes(&l->bytes, &head, sizeof(head));
	out_bytes(&l->bytes, t->top, head.n_top * sizeof(*t->top));
	l->n++;
}

void lps_add_plain(struct lps *l, int32_t id)
{
	struct lp head = { .id = id };

	out_bytes(&l->bytes, &head, sizeof(head));
	l->n++;
}

const struct lp *lps_next(const struct lps *l, size_t *at)
{
	const struct lp *p;

	if (*at + sizeof(*p) > l->bytes.n)
		return NULL;
	p = (const struct lp *)(const void *)(l->bytes.p + *at);
	*at += sizeof(*p) + p->n_top * sizeof(*p->top);
	return p;
}

void lps_reset(struct lps *l)
{
	out_reset(&l->bytes);
	l->n = 0;
}

void choice_init(struct choice *c, bool skip_special)
{
	*c = (struct choice){ .stop_id = -1 };
	sr_detok_init(&c->detok, skip_special);
}

void choice_free(struct choice *c)
{
	out_free(&c->text);
	out_free(&c->lps.bytes);
	out_free(&c->prompt_lps.bytes);
	out_free(&c->ids);
}

bool choice_lost(const struct choice *c)
{
	return c->text.failed || c->lps.bytes.failed || c->prompt_lps.bytes.failed || c->ids.failed;
}

/* Advance all stop strings over text[from..]; true when one is complete: text is cut. */
static bool scan(struct choice *c, const struct stops *s, size_t from, bool heed)
{
	size_t at;
	int i, hit;

	for (at = from; at < c->text.n; at++) {
		for (i = 0, hit = -1; i < s->n; i++) {
			uint32_t k = c->state[i];

			if (k == s->len[i])
				k = s->fail[i][k];
			while (k && c->text.p[at] != s->s[i][k])
				k = s->fail[i][k];
			k += c->text.p[at] == s->s[i][k];
			c->state[i] = k;
			if (k == s->len[i] && hit < 0)
				hit = i;
		}
		if (hit >= 0 && heed) {
			c->text.n = s->include ? at + 1 : at + 1 - s->len[hit];
			c->stop_string = s->s[hit];
			c->stop_string_len = s->len[hit];
			c->finish = STOPPED;
			return true;
		}
	}
	return false;
}

bool choice_text(struct choice *c, const struct stops *s, const struct sr_text *t, int32_t id,
                 uint32_t min_tokens)
{
	size_t from = c->text.n, cap = sr_text_longest(t) + 16;
	uint32_t held = 0;
	int i, n;

	if (!out_room(&c->text, cap))
		return false;
	n = sr_detok_push(&c->detok, t, id, c->text.p + c->text.n, cap);
	if (n > 0)
		c->text.n += (size_t)n;
	if (s->n && scan(c, s, from, c->n_tokens > min_tokens)) {
		c->ready = c->text.n;
		return true;
	}
	for (i = 0; i < s->n && !s->include; i++) {
		uint32_t k = c->state[i] == s->len[i] ? s->fail[i][c->state[i]] : c->state[i];

		held = k > held ? k : held;
	}
	c->ready = c->text.n - held;
	return false;
}

void choice_flush(struct choice *c)
{
	int n;

	if (!c->stop_string && out_room(&c->text, 32)) {
		n = sr_detok_flush(&c->detok, c->text.p + c->text.n, 32);
		if (n > 0)
			c->text.n += (size_t)n;
	}
	c->ready = c->text.n;
}
