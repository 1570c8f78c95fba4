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
static int32_t copy_in(struct kv *kv, int32_t host, int32_t owner, bool *later)
{
	int32_t i;

	*later = kv->budget > 0;
	if (kv->block[host].pinned || kv->left <= 0)
		return NONE;
	kv->block[host].pinned = true;      /* its own eviction must not take this block's room */
	i = block_take(kv, owner, false);
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
	copy_put(kv, i, host, false);
	host_touch(kv, host);
	kv->stats.host_hits++;
	return i;
}

static void hold_cached(struct kv *kv, int32_t i)
{
	int32_t twin = twin_of(kv, i);

	if (kv->block[i].refs++ == 0)
		cache_take(kv, i);
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
			i = copy_in(kv, found[HOST], t->owner, &t->more);
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

/* Where a match may end.  Full groups have all blocks up to there, and each window those that the next token
 * reads.  *full: how far the full groups go. */
static int32_t match_end(const struct kv *kv, const struct kv_table *t, int32_t n, int32_t *full)
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
			run[g] = found[DEVICE] != NONE ? run[g] + 1 : 0;
			if (!has_window(kv, g) && !run[g])
				return end;
			fits &= run[g] >= need;
		}
		table_advance(kv, &look, &key);
		*full = look.published;
		if (fits)
			end = look.published;
	}
	return end;
}

/* Hold the next block of a group, if there is one. */
static bool match_of(struct kv *kv, struct kv_table *t, int32_t group, const int32_t *id,
                     const struct kv_key *key)
{
	struct kv_key of_group = key_of_group(key, group);
	int32_t found[2];

	index_find(kv, t, group, id, &of_group, found);
	if (found[DEVICE] == NONE)
		return false;
	hold_cached(kv, found[DEVICE]);
	blocks_of(t, group)[t->n] = found[DEVICE];
	return true;
}

static void match_groups(struct kv *kv, struct kv_table *t, int32_t n)
{
	int32_t full = t->n, end = match_end(kv, t, n, &full);

	if (full > end && !has_window(kv, 0)) {
		t->fork = full;
		kv->stats.missed += (uint64_t)(full - end);
	}
	kv_slide(kv, t, end * kv->cfg.block_tokens);
	for (; t->n < end; t->n++) {
		const int32_t *id = ids_at(kv, t, t->n);
		struct kv_key key = index_key(kv, t, id);

		for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
			bool wanted = !has_window(kv, g) || t->n >= end - kv->reach[g] - 1;

			if ((!wanted || !match_of(kv, t, g, id, &key)) && has_window(kv, g))
				*first_of(kv, t, g) = t->n + 1;
		}
		table_advance(kv, t, &key);
		kv->stats.hit_blocks++;
	}
}

int32_t kv_match(struct kv *kv, struct kv_table *t, int32_t n)
{
	assert(t->n == t->published);
	t->more = false;
	kv->stats.lookups++;
	if (kv->cfg.n_groups > 1 || kv->windows)
		match_groups(kv, t, n);
	else
		match_full(kv, t, n);
	return t->n * kv->cfg.block_tokens;
}
