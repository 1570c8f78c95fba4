/* choice.c - see choice.h. */
#include "choice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int stops_init(struct stops *s, const struct ask *a)
{
	size_t total = 0;
	uint32_t *m, k, j;

	*s = (struct stops){ .n = a->n_stop, .include = a->include_stop };
	if (!s->n)
		return 0;
	for (int i = 0; i < s->n; i++)
		total += a->stop_len[i] + 1;
	m = s->memory = malloc(total * sizeof(*m));
	if (!m)
		return -ENOMEM;
	for (int i = 0; i < s->n; i++) {
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

/* ---- log-probabilities ----
 *
 *	rank  id  [logprob  n_top  id value  id step  id step ..]     [..] only if rank > 0
 *
 * Alternatives are ordered by value, so the next value is near.  A step is the distance to it in units of the
 * last place.  So every float is restored exactly; the worst step takes five bytes.
 */

static uint8_t *put_uint(uint8_t *p, uint32_t v)      /* 7 bits per byte, lowest bits first */
{
	for (; v > 127; v >>= 7)
		*p++ = (uint8_t)(v | 128);
	*p++ = (uint8_t)v;
	return p;
}

static const uint8_t *get_uint(const uint8_t *p, uint32_t *v)
{
	int shift = 0;

	*v = 0;
	do
		*v |= (uint32_t)(*p & 127) << shift;
	while (shift += 7, *p++ & 128);
	return p;
}

/* Takes 2 bytes for ids below 49,152, 3 bytes up to 4,128,767, else 5 bytes. */
static uint8_t *put_id(uint8_t *p, int32_t id)
{
	uint32_t v = (uint32_t)id;

	if (v < 0xc000) {
		*p++ = (uint8_t)(v >> 8);
	} else if (v < 0x3f0000) {
		*p++ = (uint8_t)(0xc0 | v >> 16);
		*p++ = (uint8_t)(v >> 8);
	} else {
		*p++ = 0xff;
		*p++ = (uint8_t)(v >> 24);
		*p++ = (uint8_t)(v >> 16);
		*p++ = (uint8_t)(v >> 8);
	}
	*p++ = (uint8_t)v;
	return p;
}

static const uint8_t *get_id(const uint8_t *p, int32_t *id)
{
	uint32_t v = *p++;
	int more = v < 0xc0 ? 1 : v < 0xff ? 2 : 4;

	v = v < 0xc0 ? v : v & 0x3f;
	while (more--)
		v = v << 8 | *p++;
	*id = (int32_t)v;
	return p;
}

/* Map floats to integers that have the same order. */
static uint32_t order(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u >> 31 ? ~u : u | 1u << 31;
}

static float of_order(uint32_t u)
{
	float f;

	u = u >> 31 ? u & ~(1u << 31) : ~u;
	memcpy(&f, &u, sizeof(f));
	return f;
}

#define SCORE_LONGEST (5 + 5 + 4 + 1 + 10 * SR_TOP_MAX)

size_t scores_bytes(uint32_t n_top) { return 8 + 6 * n_top; }

void scores_add(struct scores *l, const struct sr_token *t)
{
	uint8_t *p, *from;
	uint32_t before = 0;

	if (!out_room(&l->bytes, SCORE_LONGEST))
		return;
	from = (uint8_t *)l->bytes.p + l->bytes.n;
	p = put_id(put_uint(from, t->rank), t->id);
	if (t->rank) {
		memcpy(p, &t->logprob, 4);
		p[4] = (uint8_t)t->n_here;
		p += 5;
		for (uint32_t i = 0; i < t->n_here; i++) {
			p = put_uint(put_id(p, t->top[i].id), before - order(t->top[i].value));
			before = order(t->top[i].value);
		}
	}
	l->bytes.n += (size_t)(p - from);
}

void scores_add_plain(struct scores *l, int32_t id) { scores_add(l, &(struct sr_token){ .id = id }); }

bool scores_next(const struct scores *l, size_t end, size_t *at, struct score *p)
{
	const uint8_t *from = (const uint8_t *)l->bytes.p + *at, *b;
	uint32_t value = 0, step;

	if (*at >= end)
		return false;
	p->n_top = 0;
	p->logprob = 0;
	b = get_id(get_uint(from, &p->rank), &p->id);
	if (p->rank) {
		memcpy(&p->logprob, b, 4);
		p->n_top = b[4];
		b += 5;
		for (uint32_t i = 0; i < p->n_top; i++) {
			b = get_uint(get_id(b, &p->top[i].id), &step);
			value -= step;
			p->top[i].value = of_order(value);
		}
	}
	*at += (size_t)(b - from);
	return true;
}

void choice_init(struct choice *c, bool skip_special)
{
	*c = (struct choice){ .stop_id = -1 };
	sr_detok_init(&c->detok, skip_special);
	c->detok.started = true;                       /* an answer goes on with its prompt */
}

bool choice_splits(struct choice *c, const struct ask *a, const struct calls *calls)
{
	c->calls = calls;
	c->said = said_open(a, calls);
	return c->said;
}

void choice_free(struct choice *c)
{
	said_close(c->said);
	c->said = NULL;
	out_free(&c->text);
	out_free(&c->scores.bytes);
	out_free(&c->ids);
}

bool choice_lost(const struct choice *c)
{
	return c->text.failed || c->scores.bytes.failed || c->ids.failed || (c->said && said_lost(c->said));
}

struct part choice_part(const struct choice *c)
{
	if (c->said)
		return (struct part){ said_first(c->said), c->index };
	return (struct part){ { .kind = SAID_TEXT, .n = c->ready }, c->index };
}

const char *choice_bytes(const struct choice *c) { return c->said ? said_bytes(c->said) : c->text.p; }
bool choice_waits(const struct choice *c) { return c->said && !said_parts(c->said); }

/* The end of an answer is an event of its own after a call. */
bool choice_more(const struct choice *c)
{
	size_t n = c->said ? said_parts(c->said) : 0;

	return n > 1 || (n && c->state == CHOICE_ENDED && said_first(c->said).kind > SAID_REASONING);
}

/* Bytes that came since, or are held back, move to the front. */
static void drop_front(struct out *o, size_t n)
{
	if (n && n < o->n)
		memmove(o->p, o->p + n, o->n - n);
	o->n -= n;
}

void choice_written(struct choice *c, const struct part *p, size_t n_scores, size_t n_ids)
{
	if (c->said) {
		said_written(c->said, &p->said);
	} else {
		drop_front(&c->text, p->said.n);
		c->ready -= p->said.n;
	}
	drop_front(&c->scores.bytes, n_scores);
	drop_front(&c->ids, n_ids);
}

/* Where the n bytes of text before `at` begin.  Marks of special tokens are no text. */
static size_t before(const struct choice *c, size_t at, size_t n)
{
	while (n)
		n -= c->text.p[--at] != CALLS_MARK;
	return at;
}

/* Advance all stop strings over text[from..].  True: one is complete, and the text is cut there. */
static bool scan(struct choice *c, const struct stops *s, size_t from, bool heed)
{
	size_t at;
	int i, hit;

	for (at = from; at < c->text.n; at++) {
		if (c->text.p[at] == CALLS_MARK)
			continue;
		for (i = 0, hit = -1; i < s->n; i++) {
			uint32_t k = c->matched[i];

			if (k == s->len[i])
				k = s->fail[i][k];
			while (k && c->text.p[at] != s->s[i][k])
				k = s->fail[i][k];
			k += c->text.p[at] == s->s[i][k];
			c->matched[i] = k;
			if (k == s->len[i] && hit < 0)
				hit = i;
		}
		if (hit >= 0 && heed) {
			c->text.n = s->include ? at + 1 : before(c, at + 1, s->len[hit]);
			c->stop_string = s->s[hit];
			c->stop_string_len = s->len[hit];
			c->finish = FINISH_STOP;
			return true;
		}
	}
	return false;
}

/* A special token that is a marker: its text after CALLS_MARK. */
static void marker(struct choice *c, const struct sr_text *t, int32_t id)
{
	static const char mark = CALLS_MARK;
	const char *s;
	int n;

	n = sr_detok_flush(&c->detok, c->text.p + c->text.n, 16);
	c->text.n += n > 0 ? (size_t)n : 0;
	n = sr_text_piece(t, id, &s, NULL);
	out_bytes(&c->text, &mark, 1);
	out_bytes(&c->text, s, n > 0 ? (size_t)n : 0);
}

bool choice_text(struct choice *c, const struct stops *s, const struct sr_text *t, int32_t id,
                 uint32_t min_tokens)
{
	size_t from = c->text.n, cap = sr_text_longest(t) + 16;
	uint32_t held = 0;
	int n;

	if (!out_room(&c->text, cap))
		return false;
	if (c->calls && calls_token(c->calls, id)) {
		marker(c, t, id);
	} else {
		n = sr_detok_push(&c->detok, t, id, c->text.p + c->text.n, cap);
		if (n > 0)
			c->text.n += (size_t)n;
	}
	if (s->n && scan(c, s, from, c->n_tokens > min_tokens)) {
		c->ready = c->text.n;
		return true;
	}
	for (int i = 0; i < s->n && !s->include; i++) {
		uint32_t k = c->matched[i] == s->len[i] ? s->fail[i][c->matched[i]] : c->matched[i];

		held = k > held ? k : held;
	}
	c->ready = before(c, c->text.n, held);
	return false;
}

void choice_split(struct choice *c)
{
	if (!c->said || !c->ready)
		return;
	said_text(c->said, c->text.p, c->ready);
	drop_front(&c->text, c->ready);
	c->ready = 0;
}

void choice_said(struct choice *c, const struct ask *a)
{
	if (!c->said)
		return;
	if (a->stream) {
		choice_split(c);
		said_text_ends(c->said);
	} else {
		said_whole(c->said, c->text.p ? c->text.p : "", c->ready);
		out_free(&c->text);
		c->ready = 0;
	}
	/* As OpenAI's: "stop" for the function that the request names. */
	if (c->finish == FINISH_STOP && said_n_calls(c->said) && a->tool_choice != ASK_TOOLS_NAMED)
		c->finish = FINISH_TOOLS;
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
