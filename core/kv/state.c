/* kv/state.c - states of sequences: who has which, and the snapshots under the prefix cache.  See kv.h.  Belongs to
 * the scheduler's thread.
 *
 * A state is free; held by tables (`refs`); or cached: a snapshot that no table holds, in a list by time of release.
 * A snapshot is named by the key of the block that it follows, and is never written again.
 */
#include "core/kv/impl.h"

#include <assert.h>

/* ---- lists, and the index of snapshots ------------------------------------------------------------------- */

static struct kv_state *state_at(const struct kv *kv, int32_t i)
{
	return &kv->states.state[i];
}

static int32_t *state_bucket(const struct kv *kv, const struct kv_key *key)
{
	return &kv->states.bucket[key->w[0] & kv->states.mask];
}

static void put_free(struct kv *kv, int32_t i)
{
	struct kv_states *s = &kv->states;

	s->state[i].next = s->free;
	s->free = i;
	s->n_free++;
}

static void put_cached(struct kv *kv, int32_t i)
{
	struct kv_states *s = &kv->states;

	s->state[i].cached = true;
	s->state[i].prev = s->newest;
	s->state[i].next = NONE;
	*(s->newest != NONE ? &s->state[s->newest].next : &s->oldest) = i;
	s->newest = i;
	s->n_cached++;
}

static void take_cached(struct kv *kv, int32_t i)
{
	struct kv_states *s = &kv->states;
	struct kv_state *x = &s->state[i];

	*(x->prev != NONE ? &s->state[x->prev].next : &s->oldest) = x->next;
	*(x->next != NONE ? &s->state[x->next].prev : &s->newest) = x->prev;
	x->cached = false;
	s->n_cached--;
}

static void unname(struct kv *kv, int32_t i)
{
	int32_t *at = state_bucket(kv, &state_at(kv, i)->key);

	while (*at != i)
		at = &state_at(kv, *at)->next_in_bucket;
	*at = state_at(kv, i)->next_in_bucket;
	state_at(kv, i)->named = false;
}

int32_t state_find(const struct kv *kv, const struct kv_key *key)
{
	int32_t i = *state_bucket(kv, key);

	while (i != NONE && !same_key(&state_at(kv, i)->key, key))
		i = state_at(kv, i)->next_in_bucket;
	return i;
}

/* State i is what *t has after its published blocks.  False: there is such a snapshot already. */
static bool name(struct kv *kv, int32_t i, const struct kv_table *t)
{
	struct kv_state *x = state_at(kv, i);
	const struct kv_key key = { { t->key[0], t->key[1] } };

	if (x->named || state_find(kv, &key) != NONE)
		return x->named;
	x->key = key;
	x->named = true;
	x->stamp++;
	x->next_in_bucket = *state_bucket(kv, &key);
	*state_bucket(kv, &key) = i;
	kv->stats.states_kept++;
	return true;
}

/* ---- references ------------------------------------------------------------------------------------------- */

static struct kv_hold *hold_of(const struct kv *kv, const struct kv_table *t)
{
	return (struct kv_hold *)(t->block + (size_t)kv->cfg.n_groups * ((size_t)t->cap + 1));
}

/* Does a row of the batch that is being filled use state i?  Then no other row of it may write it. */
static bool in_use(const struct kv *kv, int32_t i)
{
	return state_at(kv, i)->used == kv->states.batch;
}

static void use(struct kv *kv, int32_t i)
{
	if (i != NONE)
		state_at(kv, i)->used = kv->states.batch;
}

/* A state for one table alone: a free one, else the snapshot that was released longest ago; NONE. */
static int32_t take(struct kv *kv)
{
	struct kv_states *s = &kv->states;
	int32_t i = s->free;

	if (i != NONE) {
		s->free = s->state[i].next;
		s->n_free--;
	} else {
		for (i = s->oldest; i != NONE && in_use(kv, i); )
			i = s->state[i].next;
		if (i == NONE)
			return NONE;
		take_cached(kv, i);
		unname(kv, i);
		kv->stats.states_evicted++;
	}
	s->state[i].refs = 1;
	return i;
}

static void drop(struct kv *kv, int32_t i)
{
	struct kv_state *x = i == NONE ? NULL : state_at(kv, i);

	if (!x || --x->refs > 0)
		return;
	assert(x->refs == 0);
	if (x->named)
		put_cached(kv, i);
	else
		put_free(kv, i);
}

void state_match(struct kv *kv, struct kv_table *t)
{
	const struct kv_key key = { { t->key[0], t->key[1] } };
	int32_t i = state_find(kv, &key);
	struct kv_hold *h = hold_of(kv, t);

	assert(i != NONE);
	if (state_at(kv, i)->refs++ == 0)
		take_cached(kv, i);
	if (h->from != h->own)
		drop(kv, h->from);
	h->from = i;
	kv->stats.states_hit++;
}

void state_named(struct kv *kv, struct kv_table *t)
{
	struct kv_hold *h = hold_of(kv, t);

	if (h->kept == NONE || h->kept_at != t->published)
		return;
	if (name(kv, h->kept, t) && h->passing) {
		h->last = h->kept;
		h->last_stamp = state_at(kv, h->kept)->stamp;
	}
	drop(kv, h->kept);
	h->kept = NONE;
}

void state_evict(struct kv *kv, const struct kv_key *key)
{
	int32_t i = state_find(kv, key);

	if (i == NONE || in_use(kv, i))
		return;
	unname(kv, i);
	if (state_at(kv, i)->cached) {
		take_cached(kv, i);
		put_free(kv, i);
		kv->stats.states_evicted++;
	}
}

void state_release(struct kv *kv, struct kv_table *t)
{
	struct kv_hold *h = hold_of(kv, t);

	if (h->from != h->own)
		drop(kv, h->from);
	drop(kv, h->kept);
	drop(kv, h->own);
	*h = (struct kv_hold){ .own = NONE, .from = NONE, .kept = NONE, .last = NONE };
}

/* ---- for the scheduler -------------------------------------------------------------------------------------- */

bool kv_states(const struct kv *kv)
{
	return kv->cfg.n_states > 0;
}

int32_t kv_states_left(const struct kv *kv)
{
	return kv->states.n_free + kv->states.n_cached;
}

void kv_state_begin(struct kv *kv, struct kv_table *t)
{
	*hold_of(kv, t) = (struct kv_hold){ .own = NONE, .from = NONE, .kept = NONE, .last = NONE };
}

bool kv_state_take(struct kv *kv, struct kv_table *t)
{
	struct kv_hold *h = hold_of(kv, t);

	assert(h->own == NONE);
	h->own = take(kv);
	if (h->own != NONE || h->from == NONE || state_at(kv, h->from)->refs > 1 || in_use(kv, h->from))
		return h->own != NONE;
	h->own = h->from;          /* all others are held: the snapshot that it continues becomes its own */
	unname(kv, h->own);
	return true;
}

/* The snapshot that *t kept while it passed an earlier block is of no use beside a later one. */
static void drop_last(struct kv *kv, struct kv_hold *h)
{
	struct kv_state *x = h->last == NONE ? NULL : state_at(kv, h->last);

	if (x && x->cached && x->stamp == h->last_stamp && !in_use(kv, h->last)) {
		unname(kv, h->last);
		take_cached(kv, h->last);
		put_free(kv, h->last);
	}
	h->last = NONE;
}

/* Leave what *t has at its block `at` in state i. */
static void keep(struct kv *kv, struct kv_table *t, int32_t i, int32_t at, bool passing)
{
	struct kv_hold *h = hold_of(kv, t);

	if (passing)
		drop_last(kv, h);
	h->kept = i;
	h->kept_at = at;
	h->passing = passing;
	state_named(kv, t);
}

/* Is there a snapshot already of what *t has after its block `at`?  Only if the name is known. */
static bool is_kept(const struct kv *kv, const struct kv_table *t, int32_t at)
{
	const struct kv_key key = { { t->key[0], t->key[1] } };

	return at == t->published && state_find(kv, &key) != NONE;
}

struct kv_state_row kv_state_row(struct kv *kv, struct kv_table *t, int32_t first, int32_t keep_at, bool passing)
{
	struct kv_hold *h = hold_of(kv, t);
	struct kv_state_row r = { .from = NONE, .to = NONE, .keep = NONE };
	bool fits = keep_at != NONE && h->kept == NONE && !is_kept(kv, t, keep_at >> kv->shift);

	assert(h->own != NONE);
	if (first == 0 || h->from != NONE) {
		r.from = h->from;
		r.to = h->own;
		use(kv, r.from);
		if (h->from != h->own)
			drop(kv, h->from);
		h->from = NONE;
		fits &= keep_at > first;       /* what it continues is a snapshot already */
	}
	if (!fits)
		return r;
	if (keep_at > first) {
		r.keep = take(kv);
		use(kv, r.keep);
		if (r.keep != NONE)
			keep(kv, t, r.keep, keep_at >> kv->shift, passing);
		return r;
	}
	if (passing)
		drop_last(kv, h);
	r.to = take(kv);
	if (r.to != NONE) {
		r.from = h->own;
		use(kv, r.from);
		h->own = r.to;
		keep(kv, t, r.from, first >> kv->shift, passing);
	}
	return r;
}

void kv_state_leave(struct kv *kv, struct kv_table *t, int32_t n)
{
	struct kv_hold *h = hold_of(kv, t);

	if (n > 0 && h->own != NONE && h->from == NONE && n == t->published << kv->shift)
		name(kv, h->own, t);
}

/* ---- memory, and invariants ---------------------------------------------------------------------------------- */

size_t states_lay(struct kv_states *s, int32_t n, char *base)
{
	uint32_t buckets = 16;

	if (n == 0)
		return 0;
	while (buckets < 2 * (uint32_t)n)
		buckets *= 2;
	if (base) {
		s->state = (struct kv_state *)(void *)base;
		s->bucket = (int32_t *)(void *)(base + (size_t)n * sizeof(*s->state));
		s->mask = buckets - 1;
	}
	return (size_t)n * sizeof(*s->state) + buckets * sizeof(*s->bucket);
}

void states_begin(struct kv *kv)
{
	struct kv_states *s = &kv->states;

	s->free = s->oldest = s->newest = NONE;
	for (uint32_t k = 0; kv->cfg.n_states && k <= s->mask; k++)
		s->bucket[k] = NONE;
	for (int32_t i = kv->cfg.n_states - 1; i >= 0; i--)
		put_free(kv, i);
}

void states_forget(struct kv *kv)
{
	for (int32_t i; (i = kv->states.oldest) != NONE; ) {
		take_cached(kv, i);
		unname(kv, i);
		put_free(kv, i);
	}
}

void states_check(const struct kv *kv)
{
	const struct kv_states *s = &kv->states;
	int32_t n_free = 0, n_cached = 0, n_named = 0, n_chained = 0, held = 0, before = NONE;

	for (int32_t i = s->free; i != NONE; i = s->state[i].next, n_free++)
		assert(s->state[i].refs == 0 && !s->state[i].named && !s->state[i].cached);
	for (int32_t i = s->oldest; i != NONE; before = i, i = s->state[i].next, n_cached++)
		assert(s->state[i].refs == 0 && s->state[i].named && s->state[i].cached && s->state[i].prev == before);
	assert(before == s->newest && n_free == s->n_free && n_cached == s->n_cached);
	for (int32_t i = 0; i < kv->cfg.n_states; i++) {
		assert(s->state[i].refs >= 0);
		held += s->state[i].refs > 0;
		n_named += s->state[i].named;
	}
	assert(n_free + n_cached + held == kv->cfg.n_states);
	for (uint32_t k = 0; kv->cfg.n_states && k <= s->mask; k++)
		for (int32_t i = s->bucket[k]; i != NONE; i = s->state[i].next_in_bucket, n_chained++)
			assert(s->state[i].named && state_bucket(kv, &s->state[i].key) == &s->bucket[k] &&
			       state_find(kv, &s->state[i].key) == i);
	assert(n_named == n_chained);
}
