/* match.c - the published blocks that continue a table.  Belongs to the scheduler's thread. */
#include "core/kv/impl.h"

#include <assert.h>

/* Make a host block the newest of its tier, because it was used. */
static void host_touch(struct kv *kv, int32_t host)
{
	int32_t owner = owner_of(kv, host);

	cache_take(kv, host);
	cache_put(kv, host, owner);
}

/* Copy host block `host` in.  NONE: not in this batch; *later reports whether a later one may do it. */
static int32_t copy_in(struct kv *kv, int32_t host, int32_t owner, bool must, bool *later)
{
	int32_t i;

	*later = kv->budget > 0;
	if (kv->block[host].pinned || kv->left <= 0)
		return NONE;
	kv->block[host].pinned = true;      /* its own eviction must not take this block's room */
	i = block_take(kv, owner, must);
	kv->block[host].pinned = false;
	if (i == NONE) {
		*later = false;             /* no device block: kv_grow deals with that */
		return NONE;
	}
	if (kv->left <= 0) {                /* the eviction took the last copy */
		block_free(kv, i);
		return NONE;
	}
	index_copy(kv, i, host);
	kv->block[i].refs = 1;
	kv->stats.held[name_of(kv, i)->group]++;
	copy_put(kv, i, host, false);
	host_touch(kv, host);
	kv->stats.host_hits++;
	return i;
}

static void hold_cached(struct kv *kv, int32_t i)
{
	int32_t twin = twin_of(kv, i);

	if (kv->block[i].refs++ == 0) {
		kv->stats.held[name_of(kv, i)->group]++;
		cache_take(kv, i);
	}
	if (twin != NONE && !kv->block[twin].pinned)
		host_touch(kv, twin);
}

/* With full groups alone: block by block, until one is missing. */
static void match_full(struct kv *kv, struct kv_table *t, int32_t n)
{
	while (t->n < t->cap && (t->n + 1) * kv->cfg.block_tokens < n) {
		const int32_t *id = ids_at(kv, t, t->n);
		struct kv_key key = index_key(kv, t, id);
		int32_t found[2], i;

		index_find(kv, t, 0, id, &key, found);
		i = found[DEVICE];
		if (i != NONE) {
			hold_cached(kv, i);
		} else {
			if (found[HOST] == NONE)
				break;
			i = copy_in(kv, found[HOST], t->owner, false, &t->more);
			if (i == NONE)
				break;
			t->more = false;
		}
		t->block[t->n++] = i;
		table_advance(kv, t, &key);
		kv->stats.hit_blocks++;
	}
}

/* ---- several groups ------------------------------------------------------------------------- */

#define TRIES 200         /* batches in which one table may wait for copies */

/* Where a match may end.  Full groups have all blocks up to there, and each window those that the next token
 * reads; on the device, or on any tier.  *full: how far the full groups go. */
static int32_t match_end(const struct kv *kv, const struct kv_table *t, int32_t n, bool any, int32_t *full)
{
	struct kv_table look = *t;         /* its names go on, its blocks are not touched */
	int32_t run[KV_GROUPS] = { 0 };    /* blocks of each group found in a row */
	int32_t end = t->n;

	for (; look.n < t->cap && (look.n + 1) * kv->cfg.block_tokens < n; look.n++) {
		const int32_t *id = ids_at(kv, &look, look.n);
		struct kv_key key = index_key(kv, &look, id);
		int32_t fresh = look.n + 1 - t->n; /* blocks behind those that *t holds */
		bool fits = true;

		for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
			struct kv_key of_group = key_of_group(&key, g);
			int32_t found[2], need = kv->reach[g] < fresh ? kv->reach[g] : fresh;

			index_find(kv, &look, g, id, &of_group, found);
			run[g] = found[DEVICE] != NONE || (any && found[HOST] != NONE) ? run[g] + 1 : 0;
			if (!has_window(kv, g) && !run[g])
				return end;
			fits &= run[g] >= need;
		}
		table_advance(kv, &look, &key);
		*full = look.published;
		if (kv->cfg.n_states)
			fits &= state_find(kv, &key) != NONE;
		if (fits)
			end = look.published;
	}
	return end;
}

/* Does a match that ends at `end` take block j of a group?  A window's first is one more than needed. */
static bool wanted(const struct kv *kv, int32_t group, int32_t j, int32_t end)
{
	return !has_window(kv, group) || j >= end - kv->reach[group] - 1;
}

static bool needed(const struct kv *kv, int32_t group, int32_t j, int32_t end)
{
	return !has_window(kv, group) || j >= end - kv->reach[group];
}

/* What a match takes from the host tier. */
struct copies {
	int32_t n, of_windows;
	bool    pinned;           /* one of them is being copied out */
};

/* Count them.  promote: copy some of the full groups' blocks into the device's cache, and make what is there
 * already the newest of it. */
static struct copies look_up(struct kv *kv, const struct kv_table *t, int32_t end, bool promote)
{
	struct kv_table look = *t;
	struct copies c = { 0 };
	bool later;

	for (; look.n < end; look.n++) {
		const int32_t *id = ids_at(kv, &look, look.n);
		struct kv_key key = index_key(kv, &look, id);

		for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
			struct kv_key of_group = key_of_group(&key, g);
			int32_t found[2], i;

			if (!needed(kv, g, look.n, end))
				continue;
			index_find(kv, &look, g, id, &of_group, found);
			i = found[DEVICE];
			if (i != NONE && promote && kv->block[i].cached) {
				int32_t owner = owner_of(kv, i);

				cache_take(kv, i);
				cache_put(kv, i, owner);
			}
			if (i != NONE || found[HOST] == NONE)
				continue;
			c.n++;
			c.of_windows += has_window(kv, g);
			c.pinned |= kv->block[found[HOST]].pinned;
			if (!promote || has_window(kv, g) || (i = copy_in(kv, found[HOST], t->owner, false, &later)) == NONE)
				continue;
			kv->block[i].refs = 0;
			kv->stats.held[g]--;
			cache_put(kv, i, t->owner);
		}
		table_advance(kv, &look, &key);
	}
	return c;
}

/* Blocks that a match would hold. */
static int64_t match_blocks(const struct kv *kv, const struct kv_table *t, int32_t end)
{
	int64_t n = 0;

	for (int32_t g = 0; g < kv->cfg.n_groups; g++)
		n += has_window(kv, g) && kv->reach[g] + 1 < end - t->n ? kv->reach[g] + 1 : end - t->n;
	return n;
}

/* Hold one block if it is on the device, or, for the second time, copy it in if it is not. */
static void take_block(struct kv *kv, struct kv_table *t, const struct kv_table *look, int32_t group,
                       const struct kv_key *key, int32_t end, bool host)
{
	const int32_t *id = ids_at(kv, look, look->n);
	struct kv_key of_group = key_of_group(key, group);
	int32_t found[2], *at = &blocks_of(t, group)[look->n];
	bool later;

	if (!host)
		*at = NONE;
	if (*at != NONE || !wanted(kv, group, look->n, end) || (host && !needed(kv, group, look->n, end)))
		return;
	index_find(kv, look, group, id, &of_group, found);
	if (host) {
		*at = copy_in(kv, found[HOST], t->owner, true, &later); /* floors may have moved with what is held now */
		assert(*at != NONE);
	} else if (found[DEVICE] != NONE) {
		*at = found[DEVICE];
		hold_cached(kv, *at);
	}
}

/* The same for all blocks up to `end`.  Returns *t as it will be. */
static struct kv_table take(struct kv *kv, struct kv_table *t, int32_t end, bool host)
{
	struct kv_table look = *t;

	for (; look.n < end; look.n++) {
		struct kv_key key = index_key(kv, &look, ids_at(kv, &look, look.n));

		for (int32_t g = 0; g < kv->cfg.n_groups; g++)
			take_block(kv, t, &look, g, &key, end, host);
		table_advance(kv, &look, &key);
	}
	return look;
}

/* Where each window begins now that *t has the blocks from..end. */
static void set_first(struct kv *kv, struct kv_table *t, int32_t from, int32_t end)
{
	for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
		int32_t j = end;

		if (!has_window(kv, g))
			continue;
		while (j > from && blocks_of(t, g)[j - 1] != NONE)
			j--;
		if (j > from)
			*first_of(kv, t, g) = j;
	}
}

/* Take all blocks up to `end`; copies, of which there are enough, are not used to copy out what is evicted. */
static void take_all(struct kv *kv, struct kv_table *t, int32_t end, bool copies)
{
	int32_t from = t->n, left_out = kv->left_out;
	struct kv_table after;

	kv_slide(kv, t, end * kv->cfg.block_tokens);
	after = take(kv, t, end, false);
	if (copies) {
		kv->left_out = 0;
		take(kv, t, end, true);
		kv->left_out = left_out;
	}
	*t = after;
	t->tries = 0;
	kv->stats.hit_blocks += (uint64_t)(end - from);
	set_first(kv, t, from, end);
}

static void match_groups(struct kv *kv, struct kv_table *t, int32_t n)
{
	bool host = kv->cfg.n_host > 0;
	int32_t from = t->n, full = from, end = match_end(kv, t, n, host, &full);
	struct copies c = host ? look_up(kv, t, end, false) : (struct copies){ 0 };

	if (c.n > 0 && match_blocks(kv, t, end) > kv_available(kv) - kv_kept(kv, t->owner))
		c.n = INT32_MAX;
	else if (c.n > kv->left || c.pinned) {
		if (kv->budget > 0 && c.of_windows <= kv->budget && t->tries < TRIES) {
			t->tries++;
			t->more = true;
			look_up(kv, t, end, true);
			return;
		}
		c.n = INT32_MAX;
	}
	if (c.n == INT32_MAX)
		end = match_end(kv, t, n, false, &full);
	if (full > end && !has_window(kv, 0)) {
		t->fork = full;
		kv->stats.missed += (uint64_t)(full - end);
	}
	take_all(kv, t, end, c.n > 0 && c.n < INT32_MAX);
	if (kv->cfg.n_states && end > from)
		state_match(kv, t);
}

int32_t kv_match(struct kv *kv, struct kv_table *t, int32_t n)
{
	assert(t->n == t->published);
	t->more = false;
	kv->stats.lookups++;
	if (kv->cfg.n_groups > 1 || kv->windows || kv->cfg.n_states)
		match_groups(kv, t, n);
	else
		match_full(kv, t, n);
	return t->n * kv->cfg.block_tokens;
}
