/* guide.c - where one answer stands in a grammar: the next token's mask, and the step by a token. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text.h"
#include "forced.h"

#define STEPS_TAKE  200000u          /* items and threads of one token; of one mask */
#define STEPS_NEXT  1000000u

/* ---- a guide and its caches; under the grammar's lock ---- */

static void leave(struct sr_guide *u)
{
	if (!--u->in->users && u->in != u->g->now)
		caches_free(u->in);
}

static void enter(struct sr_guide *u, struct caches *c, uint32_t state)
{
	c->users++;
	u->in = c;
	u->state = state;
}

/* Too large caches are replaced, and the guide moves to the new ones.  Without memory all stays as it is. */
static void renew(struct sr_guide *u)
{
	struct sr_grammar *g = u->g;
	struct caches *fresh;
	uint32_t state;

	if (u->in == g->now && caches_bytes(g->now) > g->most_bytes && !caches_create(&fresh, g)) {
		if (!g->now->users)
			caches_free(g->now);
		g->now = fresh;
	}
	if (u->in == g->now)
		return;
	g->now->y.limit = UINT64_MAX;
	state = earley_copy(&g->now->y, &u->in->y, u->state);
	if (state == STATE_OVER)
		return;
	leave(u);
	enter(u, g->now, state);
}

int sr_guide_open(struct sr_guide **out, struct sr_grammar *g)
{
	struct sr_guide *u = calloc(1, sizeof(*u));

	if (!u)
		return -ENOMEM;
	u->g = g;
	atomic_fetch_add_explicit(&g->users, 1, memory_order_relaxed);
	pthread_mutex_lock(&g->lock);
	enter(u, g->now, g->now->y.begin);
	pthread_mutex_unlock(&g->lock);
	*out = u;
	return 0;
}

int sr_guide_fork(struct sr_guide **out, const struct sr_guide *from)
{
	struct sr_guide *u = malloc(sizeof(*u));

	if (!u)
		return -ENOMEM;
	*u = *from;
	atomic_fetch_add_explicit(&u->g->users, 1, memory_order_relaxed);
	pthread_mutex_lock(&u->g->lock);
	u->in->users++;
	pthread_mutex_unlock(&u->g->lock);
	*out = u;
	return 0;
}

void sr_guide_close(struct sr_guide *u)
{
	if (!u)
		return;
	pthread_mutex_lock(&u->g->lock);
	leave(u);
	pthread_mutex_unlock(&u->g->lock);
	sr_grammar_close(u->g);
	free(u);
}

static bool is_stop(const struct sr_grammar *g, int32_t id)
{
	for (uint32_t i = 0; i < g->n_stop; i++)
		if (g->stop[i] == id)
			return true;
	return false;
}

/* ---- a token ---- */

static int take(struct sr_guide *u, int32_t id)
{
	struct sr_grammar *g = u->g;
	const uint8_t *s = NULL;
	const struct mask *k;
	uint32_t n, after;
	int rc;

	if (is_stop(g, id)) {
		bool may = u->in->y.state[u->state].accept;
		if (!may && u->in->y.state[u->state].tokens) {      /* in the midst of what is free */
			rc = mask_of(&u->in->m, u->state, &k);
			if (rc)
				return rc;
			may = k->any;
		}
		if (may) {
			u->ended = true;
			return 0;
		}
	}
	n = trie_bytes(&g->t->vocab, id, &s);
	after = earley_token(&u->in->y, u->state, id, s, n);
	if (after < STATE_FIRST)
		return after == STATE_DEAD ? -EINVAL : -E2BIG;
	u->state = after;
	if (!n || u->recent.n == RECENT) {
		u->recent.n = n ? RECENT - 1 : 0;
		memmove(u->recent.id, u->recent.id + 1, u->recent.n * sizeof(*u->recent.id));
	}
	if (n)
		u->recent.id[u->recent.n++] = id;
	return 0;
}

int sr_guide_take(struct sr_guide *u, int32_t id)
{
	struct sr_grammar *g = u->g;
	int rc;

	if (u->broken)
		return -E2BIG;
	if (u->ended || id < 0 || id >= g->t->info.vocab)
		return -EINVAL;
	pthread_mutex_lock(&g->lock);
	renew(u);
	u->in->y.limit = u->in->y.steps + STEPS_TAKE;
	rc = take(u, id);
	pthread_mutex_unlock(&g->lock);
	u->broken = rc && rc != -EINVAL;
	return rc;
}

/* ---- a mask ---- */

static void put_id(struct sr_next *out, int32_t id)
{
	for (uint32_t i = 0; i < out->n; i++)
		if (out->id[i] == id)
			return;
	out->id[out->n++] = id;
}

/* So few ids that they are named. */
static void few(const struct sr_guide *u, const struct mask *k, bool accept, struct sr_next *out)
{
	const struct sr_grammar *g = u->g;

	out->kind = SR_GUIDE_ONLY;
	for (uint32_t i = 0; i < k->n; i++)
		put_id(out, u->in->m.ids[k->at + i]);
	if (out->done && g->eos >= 0)
		put_id(out, g->eos);
	else
		for (uint32_t i = 0; accept && i < g->n_stop; i++)
			put_id(out, g->stop[i]);
	if (out->n == 1)
		out->kind = SR_GUIDE_IS;
}

static void any(const struct sr_grammar *g, const struct mask *k, struct sr_next *out)
{
	const struct symbol *s = k->until >= 0 ? &g->g->symbol[k->until] : NULL;

	out->kind = SR_GUIDE_FREE;
	if (s && s->n <= SR_GUIDE_IDS) {
		out->n = s->n;
		memcpy(out->id, g->g->ids + s->at, s->n * sizeof(*out->id));
	}
}

static int next(struct sr_guide *u, struct sr_next *out, uint32_t *bits)
{
	struct sr_grammar *g = u->g;
	bool accept = u->in->y.state[u->state].accept;
	uint32_t words = ((uint32_t)g->t->info.vocab + 31) / 32;
	const struct mask *k;
	int rc = mask_of(&u->in->m, u->state, &k);

	if (rc)
		return rc;
	if (k->any) {
		any(g, k, out);
		return 0;
	}
	out->done = accept && !k->total;
	if (!accept && !u->in->y.state[u->state].tokens && u->in->y.state[u->state].forced != 1) {
		out->n = forced_run(u, out->id, sizeof(out->id) / sizeof(*out->id));
		if (out->n) {
			out->kind = SR_GUIDE_IS;
			return 0;
		}
	}
	if (!k->inside && !k->bits && (k->n || accept) && k->n + (accept ? g->n_stop : 0) <= SR_GUIDE_IDS) {
		few(u, k, accept, out);
		return 0;
	}
	out->kind = SR_GUIDE_BITS;
	mask_bits(&u->in->m, k, bits, words);
	for (uint32_t i = 0; accept && i < g->n_stop; i++)
		if (g->stop[i] < g->t->info.vocab)
			bits[g->stop[i] / 32] |= 1u << g->stop[i] % 32;
	return 0;
}

int sr_guide_next(struct sr_guide *u, struct sr_next *out, uint32_t *bits)
{
	struct sr_grammar *g = u->g;
	int rc;

	out->kind = SR_GUIDE_ONLY;
	out->n = 0;
	out->done = u->ended;
	if (u->broken)
		return -E2BIG;
	if (u->ended)
		return 0;
	pthread_mutex_lock(&g->lock);
	renew(u);
	u->in->y.limit = u->in->y.steps + STEPS_NEXT;
	rc = next(u, out, bits);
	pthread_mutex_unlock(&g->lock);
	u->broken = rc != 0;
	return rc;
}
