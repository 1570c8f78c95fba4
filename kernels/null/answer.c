/* answer.c - f: the token that follows ids, computed from the ids alone.  See null.h. */
#include "answer.h"

#include <math.h>
#include <string.h>

static uint64_t fold(uint64_t h, const void *from, size_t n_words)
{
	const char *p = from;

	for (size_t i = 0; i < n_words; i++) {
		uint32_t w;

		memcpy(&w, p + i * sizeof(w), sizeof(w));
		h = mix(h ^ w ^ (uint64_t)i << 40);
	}
	return h;
}

/* As on a real device, a greedy answer does not depend on the seed. */
static uint64_t fold_sampling(const struct sr_sampling *s)
{
	struct sr_sampling f = *s;

	if (f.temperature <= 0)
		f.seed = 0;
	return fold(1, &f, sizeof(f) / sizeof(uint32_t));
}

static uint64_t fold_lists(const uint32_t *const list[4], const int32_t n_list[4])
{
	uint64_t h = 2;

	for (int kind = 0; kind < 4; kind++)
		if (n_list[kind])
			h = fold(mix(h + (uint64_t)kind), list[kind], (size_t)n_list[kind]);
	return h;
}

uint64_t null_asked(const struct sr_sampling *s, const uint32_t *const list[4], const int32_t n_list[4])
{
	return fold_sampling(s) ^ fold_lists(list, n_list) * 7;
}

static bool listed(const uint32_t *list, int32_t n, int32_t id)
{
	for (int32_t i = 0; i < n; i++)
		if ((int32_t)list[i] == id)
			return true;
	return false;
}

/* Would id complete one of the bad sequences? */
static bool completes(const struct draw_at *p, int32_t id)
{
	const uint32_t *w = p->list[SR_LIST_BAD];
	int32_t n = p->n_list[SR_LIST_BAD];

	for (int32_t i = 0; i < n; i += 1 + (int32_t)w[i]) {
		int32_t len = (int32_t)w[i], before = len - 1;

		if ((int32_t)w[i + len] != id)
			continue;
		if (before == 0 || (p->ids && before <= p->position &&
		    !memcmp(p->ids + p->position - before, w + i + 1, (size_t)before * 4)))
			return true;
	}
	return false;
}

static bool may_draw(const struct draw_at *p, int32_t id, bool early)
{
	if (p->mask && !(p->mask[id / 32] >> id % 32 & 1))
		return false;
	if (!early && p->position < p->sampling->min_position &&
	    listed(p->list[SR_LIST_STOP], p->n_list[SR_LIST_STOP], id))
		return false;
	return !completes(p, id);
}

/* How many places behind i are surely forbidden: the rest of a word of the mask, if it is empty.  A mask
 * with few ids would otherwise cost a look at each id of the vocabulary. */
static int32_t forbidden_after(const struct draw_at *p, int32_t i, int32_t n)
{
	int32_t rest = 31 - i % 32;

	if (!p->mask || n != p->vocab || i % 32 || p->mask[i / 32])
		return 0;
	return rest < n - 1 - i ? rest : n - 1 - i;
}

int32_t null_draw(const struct draw_at *p)
{
	uint64_t h = p->cell ^ p->asked;
	const uint32_t *allow = p->list[SR_LIST_ALLOW];
	int32_t n = allow && p->n_list[SR_LIST_ALLOW] ? p->n_list[SR_LIST_ALLOW] : p->vocab;
	int32_t first;

	if (p->ids)
		h ^= p->seen * 11 + 1;
	first = (int32_t)((mix(h + (uint64_t)(uint32_t)p->position) >> 32) * (uint64_t)n >> 32);
	for (int early = 0; early <= (p->mask != NULL); early++) /* a mask of stop ids alone wins over min_position */
		for (int32_t k = 0; k < n; k++) {
			int32_t i = k < n - first ? first + k : first + k - n, id = n == p->vocab ? i : (int32_t)allow[i];

			if (may_draw(p, id, early))
				return id;
			k += forbidden_after(p, i, n);
		}
	if (p->mask)
		return SR_NO_ID;
	return n == p->vocab ? first : (int32_t)allow[first]; /* all are forbidden: take any */
}

struct sr_top null_alternative(uint64_t c, int32_t id, int32_t k, int32_t vocab)
{
	if (k == 0)
		return (struct sr_top){ id, null_logprob(c, id) };
	return (struct sr_top){ (int32_t)(((int64_t)id + k) % vocab),
				logf(ldexpf(1 - expf(null_logprob(c, id)), -k)) };
}

void sr_null_read(struct sr_null_text *t, int32_t n_prompt, const int32_t *ids, int32_t n)
{
	for (; t->n < n; t->n++) {
		t->cell = cell(t->cell, ids[t->n], t->n);
		t->seen += seen(ids[t->n], t->n >= n_prompt);
	}
}

int32_t sr_null_draw(const struct sr_null_request *q, const int32_t *ids, const struct sr_null_text *t)
{
	const struct draw_at p = { t->cell, null_asked(&q->sampling, q->list, q->n_list), t->n, &q->sampling,
				 q->list, q->n_list, q->history ? ids : NULL, t->seen, q->vocab, q->mask };

	return null_draw(&p);
}

int32_t sr_null_next(const struct sr_null_request *q, const int32_t *ids, int32_t n)
{
	struct sr_null_text t = { 0 };

	sr_null_read(&t, q->n_prompt, ids, n);
	return sr_null_draw(q, ids, &t);
}

float null_element(uint64_t h, int32_t i)
{
	return (float)(mix(h + 9 * (uint64_t)(uint32_t)i) >> 40) / (1 << 24) - 0.5f;
}

void sr_null_vector(enum sr_pool kind, const int32_t *ids, int32_t n, const uint32_t *allow, int32_t n_allow,
                    int32_t width, float *out)
{
	uint64_t c = 0, h = 0;

	for (int32_t i = 0; i < n; i++) {
		c = cell(c, ids[i], i);
		if (kind == SR_POOL_MEAN || (kind == SR_POOL_FIRST && i == 0))
			h += c;
	}
	if (kind == SR_POOL_LAST || kind == SR_POOL_LOGITS)
		h = c;
	for (int32_t i = 0; i < (kind == SR_POOL_LOGITS ? n_allow : width); i++)
		out[i] = null_element(h, kind == SR_POOL_LOGITS ? (int32_t)allow[i] : i);
}

float sr_null_logprob(const struct sr_null_text *t, int32_t id)
{
	return null_logprob(t->cell, id);
}

struct sr_top sr_null_top(const struct sr_null_text *t, int32_t id, int32_t k, int32_t vocab)
{
	return null_alternative(t->cell, id, k, vocab);
}
