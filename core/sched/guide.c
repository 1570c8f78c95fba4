/* sched/guide.c - guided sequences: each token of their answer needs a guide from the client.
 *
 * Positions of a guided sequence, in order:
 *
 *	.. have-1         ids held
 *	have ..           forced: guides said which ids come (SR_GUIDE_IS)
 *	choice            the one guide that leaves something to draw, or NONE.  With SR_GUIDE_FREE and ids it
 *	                  stands for all positions from there on, until one of the ids is drawn
 *	                  forced ids, again
 *	told ..           without a guide (INT32_MAX: none needs one)
 *
 * Only the token at `have` has its tag on the device.  So a row in flight for a later position misses, and
 * after a miss no row behind it can change the slot.  Its bits are kept in the place of `choice`: the place
 * was used last for a token that is drawn.
 *
 * Forced ids become known tokens, as those of a prompt, when nothing of the sequence is in flight.  If a row
 * for the first of them is in flight, that row's tag says the id.  Both ways the events are the same.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/sched/impl.h"

static bool is_forced(const struct guide *g, int32_t position)
{
	return g->n_until ? position < g->choice : position < g->told && position != g->choice;
}

/* The end of the forced ids at the next positions. */
static int32_t forced_end(const struct guide *g)
{
	return g->choice != NONE ? g->choice : g->told;
}

/* How many ids are forced. */
static int32_t n_forced(const struct guide *g, int32_t have)
{
	return g->n_until ? g->choice - have : g->told - have - (g->choice != NONE);
}

/* Does this position need no guide, because of an SR_GUIDE_FREE with ids? */
static bool is_free(const struct guide *g, int32_t position)
{
	return g->n_until && position >= g->choice;
}

static int32_t forced_id(const struct guide *g, int32_t position)
{
	return g->forced[(uint32_t)position % GUIDE_FORCED];
}

/* ---- mask places ------------------------------------------------------------------------------- */

static int32_t place_of(const struct seq *q, int32_t position)
{
	return 2 * q->guide + (position & 1);
}

static uint32_t *words_of(const struct sched *s, int32_t place)
{
	return s->masks.word + (size_t)place * (size_t)s->masks.words;
}

/* Let a row that samples q's next token find its guide. */
static void bind(struct sched *s, const struct seq *q)
{
	const struct guide *g = &s->guide[q->guide];
	uint32_t what = SR_MASK_BITS;

	if (q->have >= g->told)
		return;
	if (is_forced(g, q->have))
		what = (uint32_t)forced_id(g, q->have) + 1;
	else if (g->any)
		what = SR_MASK_ANY;
	__atomic_store_n(&s->masks.tag[place_of(q, q->have)], (uint64_t)q->have << 32 | what, __ATOMIC_RELEASE);
}

static void put_bits(const struct sched *s, int32_t place, const struct sched_guide *g)
{
	uint32_t *to = words_of(s, place);

	if (g->kind == SR_GUIDE_BITS) {
		memcpy(to, g->bits, (size_t)s->masks.words * sizeof(*to));
		if (s->cfg.vocab % 32)
			to[s->masks.words - 1] &= (1u << s->cfg.vocab % 32) - 1;
		return;
	}
	memset(to, 0, (size_t)s->masks.words * sizeof(*to));
	for (int32_t i = 0; i < g->n; i++)
		to[g->id[i] / 32] |= 1u << g->id[i] % 32;
}

/* ---- pairs of places ----------------------------------------------------------------------------- */

/* A pair that is given back is taken again only when the rows that might still read it have ended. */
/* The greatest m for which m <= 8 * (all - (m - 1)). */
uint32_t sched_guides_alone(uint32_t all) { return all ? (uint32_t)(8 * ((uint64_t)all + 1) / 9) : 0; }

enum sched_room sched_guides_full(const struct sched *s, uint64_t tenant)
{
	int32_t left = s->n_free_guide, t = queue_tenant(s, tenant), mine = t == NONE ? 0 : s->tenant[t].guides;

	if (!left || s->guide[s->free_guide[s->free_guide_at]].free_at > s->reaped)
		return SCHED_FULL;
	return mine > 0 && mine + 1 > 8 * left ? SCHED_OVER : SCHED_ROOM;
}

void guide_join(struct sched *s, struct seq *q)
{
	struct guide *g;

	q->guide = s->free_guide[s->free_guide_at];
	s->free_guide_at = (s->free_guide_at + 1) % s->n_guide;
	s->n_free_guide--;
	s->tenant[q->tenant].guides++;
	g = &s->guide[q->guide];
	*g = (struct guide){ .told = q->have, .choice = NONE, .in_time = GUIDE_TRUST, .doubt = 1 };
	s->masks.tag[place_of(q, 0)] = s->masks.tag[place_of(q, 1)] = SR_MASK_NO_TAG;
}

void guide_leave(struct sched *s, const struct seq *q)
{
	s->guide[q->guide].free_at = s->launched;
	s->free_guide[(s->free_guide_at + s->n_free_guide++) % s->n_guide] = q->guide;
	s->tenant[q->tenant].guides--;
}

/* ---- guides come --------------------------------------------------------------------------------- */

static bool guide_ok(const struct sched *s, const struct sched_guide *g)
{
	bool listed = g->kind != SR_GUIDE_BITS;

	if (g->kind < SR_GUIDE_BITS || g->kind > SR_GUIDE_FREE || g->n < 0 || g->n > SCHED_FORCED ||
	    (g->kind != SR_GUIDE_IS && g->n > SR_GUIDE_IDS) ||
	    (g->n == 0 && (g->kind == SR_GUIDE_ONLY || g->kind == SR_GUIDE_IS)))
		return false;
	for (int32_t i = 0; listed && i < g->n; i++)
		if (g->id[i] < 0 || g->id[i] >= s->cfg.vocab)
			return false;
	return true;
}

/* A guide for the token at g->told. */
static void take_guide(struct sched *s, struct seq *q, struct guide *g, const struct sched_guide *from)
{
	if (from->kind == SR_GUIDE_IS) {
		for (int32_t i = 0; i < from->n; i++)
			g->forced[(uint32_t)g->told++ % GUIDE_FORCED] = from->id[i];
		return;
	}
	g->choice = g->told++;
	g->any = from->kind == SR_GUIDE_FREE;
	if (!g->any) {
		put_bits(s, place_of(q, g->choice), from);
	} else if (from->n) {
		g->n_until = from->n;
		memcpy(g->until, from->id, (size_t)from->n * sizeof(*g->until));
		g->told = INT32_MAX;
	}
}

int sched_guide(struct sched *s, void *client, uint64_t user_data, const struct sched_guide *from)
{
	int32_t i = queue_find(s, client, user_data);
	struct guide *g;
	struct seq *q;

	if (i == NONE || !s->seq[i].guided)
		return -ENOENT;
	q = &s->seq[i];
	g = &s->guide[q->guide];
	if (!guide_ok(s, from) || g->n_until || from->index != g->told - q->n_prompt ||
	    (from->kind == SR_GUIDE_IS ? n_forced(g, q->have) + from->n > SCHED_FORCED : g->choice != NONE))
		return -EPROTO;
	take_guide(s, q, g, from);
	bind(s, q);
	g->since = 0;
	if (q->aside) {         /* it has its turn again */
		queue_take(s, i);
		q->aside = false;
		queue_put(s, i);
	}
	return 0;
}

/* ---- planning ------------------------------------------------------------------------------------ */

/* May a row that draws q's next token be planned?  If its guide is there, or likely to come in time. */
bool guide_ready(const struct sched *s, const struct seq *q)
{
	const struct guide *g = &s->guide[q->guide];

	if (s->states && (q->known > q->have || q->known >= g->told))
		return false;           /* a row cannot be computed again: the state is past it */
	if (q->known < g->told)
		return !is_forced(g, q->known);
	return q->drawn && g->in_time >= g->doubt;
}

/* A row of q is held back.  Returns the limit, or FORCED: forced ids wait only for its rows in flight. */
int guide_hold(struct sched *s, const struct seq *q, uint64_t now)
{
	struct guide *g = &s->guide[q->guide];

	if (q->known < g->told)
		return FORCED;
	if (!g->since && q->known == q->have) /* its client has all tokens, so it could know the guide */
		g->since = now;
	return WHY_GUIDE;
}

/* The pair of places for a row that draws q's next token: sr_row.mask. */
int32_t guide_mask(struct sched *s, const struct seq *q)
{
	struct guide *g = &s->guide[q->guide];

	if (!is_free(g, q->known))
		return q->guide + 1;
	g->bare = q->known;
	return 0;
}

/* How many of n ids may q hold beyond those it has? */
static int32_t may_hold(struct sched *s, struct seq *q, int32_t n)
{
	int32_t room;

	if (ids_may_grow(s, q, q->have + n))
		return n;
	room = q->quota * KV_CHUNK - 1 - q->have;
	return room < n ? room : n;
}

/* Forced ids become known tokens, with events: as many as there are records for. */
static void append_forced(struct sched *s, struct fill *x, struct seq *q)
{
	struct guide *g = &s->guide[q->guide];
	int32_t n = forced_end(g) < q->end ? forced_end(g) - q->have : q->end - q->have;
	uint32_t got, gen = q->gen;

	n = may_hold(s, q, n);
	if (n <= 0)
		return;
	got = s->port.reserve(s->port.ctx, q->client, q->cost, (uint32_t)n * q->cost);
	n = (int32_t)(got / q->cost);
	if (got % q->cost)
		s->port.release(s->port.ctx, q->client, got % q->cost);
	if (!n)
		return;
	x->moved++;
	if (!q->scheduled)
		q->scheduled = x->now;
	q->reserved += n * q->cost;
	q->drawn = false;       /* the device has not drawn the last of them, so it is told the id */
	g->again |= q->history;
	for (; n > 0 && q->gen == gen; n--) {
		q->known++;
		s->cfg.counters->forced_tokens++;
		reap_known(s, q, forced_id(g, q->have), false);
	}
	if (q->gen == gen)
		bind(s, q);
}

/* A running sequence that waits for its guide keeps slot and blocks for a while.  Then it gives way to
 * others and waits aside. */
static bool gives_way(const struct sched *s, const struct seq *q, uint64_t waited)
{
	bool wanted = s->why == WHY_SEQS || s->why == WHY_KV || s->why == WHY_ORDER;

	return wanted && q->known == q->have && waited >= GUIDE_PATIENCE * (uint64_t)s->cfg.blocked_ns;
}

/* Before a batch is filled. */
void guides_fill(struct sched *s, struct fill *x)
{
	for (int32_t j = s->n_run - 1; j >= 0; j--) {
		int32_t i = s->run[j];
		struct seq *q = &s->seq[i];
		const struct guide *g = &s->guide[q->guide];
		uint64_t waited;

		if (!q->guided)
			continue;
		waited = g->since ? x->now - g->since : 0;
		if (waited >= s->cfg.silent_ns) {
			seq_finish(s, i, -ETIMEDOUT);
			x->moved++;
		} else if (gives_way(s, q, waited)) {
			q->aside = true;
			seq_preempt(s, i);
			x->moved++;
		} else if (q->known == q->have && is_forced(g, q->have) && (!q->score || q->scored == q->n_prompt - 1)) {
			append_forced(s, x, q);
		}
	}
	for (int32_t i = s->aside.first, next; i != NONE; i = next) {
		next = s->seq[i].next;
		if (x->now - s->guide[s->seq[i].guide].since >= s->cfg.silent_ns) {
			seq_finish(s, i, -ETIMEDOUT);
			x->moved++;
		}
	}
}

/* ---- results ------------------------------------------------------------------------------------- */

/* Drop q's rows in flight.  If one of them is without a mask, the device draws from it, and the slot's last
 * token and history are wrong. */
static void drop_rows(struct sched *s, struct seq *q)
{
	struct guide *g = &s->guide[q->guide];

	if (q->reserved)
		s->port.release(s->port.ctx, q->client, (uint32_t)q->reserved);
	q->reserved = 0;
	q->gen++;
	q->known = q->have;
	q->planned = q->have - 1;
	if (g->bare >= q->have) {
		q->drawn = false;
		g->again |= q->history;
	}
	g->bare = 0;
}

/* A row of q found no mask.  It is computed again.  One miss now and then costs little; but who misses on
 * purpose wastes hardly more than one row of nine. */
void guide_missed(struct sched *s, struct seq *q)
{
	struct guide *g = &s->guide[q->guide];

	if (g->in_time == GUIDE_TRUST)
		g->doubt = 1;
	else
		g->doubt = g->doubt < GUIDE_DOUBT / 2 ? 2 * g->doubt : GUIDE_DOUBT;
	g->in_time = 0;
	s->cfg.counters->guide_misses++;
	drop_rows(s, q);
}

/* What q's next token must be; -1: anything. */
int32_t guide_forced(const struct sched *s, const struct seq *q)
{
	const struct guide *g = &s->guide[q->guide];

	return q->have < g->told && is_forced(g, q->have) ? forced_id(g, q->have) : -1;
}

/* The token before q->have, `id`, was drawn. */
void guide_drawn(struct sched *s, struct seq *q, int32_t id)
{
	struct guide *g = &s->guide[q->guide];
	bool ends = false;

	g->in_time += g->in_time < GUIDE_TRUST;
	if (g->choice != NONE && q->have > g->choice) {
		for (int32_t i = 0; i < g->n_until; i++)
			ends |= g->until[i] == id;
		if (ends) {
			g->told = q->have;
			if (q->known > q->have && g->bare >= q->have)
				drop_rows(s, q);
		}
		if (ends || !g->n_until) {
			g->n_until = 0;
			g->choice = NONE;
		}
	}
	bind(s, q);
}

/* ---- invariants ---------------------------------------------------------------------------------- */

void guide_check(const struct sched *s, const struct seq *q)
{
	const struct guide *g = &s->guide[q->guide];
	uint64_t tag = s->masks.tag[place_of(q, q->have)];

	assert(q->guide >= 0 && q->guide < s->n_guide && g->in_time >= 0 && g->in_time <= GUIDE_TRUST);
	assert(g->doubt >= 1 && g->doubt <= GUIDE_DOUBT);
	assert(g->told >= q->have && (g->told == INT32_MAX) == (g->n_until > 0));
	assert(g->choice == NONE || g->n_until || (g->choice >= q->have && g->choice < g->told));
	assert(n_forced(g, q->have) <= SCHED_FORCED);
	assert((tag >> 32 == (uint64_t)q->have) == (q->have < g->told));
	assert(!q->aside || (q->state == SEQ_WAITING && q->started && g->since));
}
