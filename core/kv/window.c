/* window.c - blocks that leave the windows of their groups, and units: what of a window is kept.  See kv.h.
 * Belongs to the scheduler's thread.
 */
#include "core/kv/impl.h"

#include <assert.h>

/* ---- units ---------------------------------------------------------------------------------- */

void unit_leave(struct kv *kv, int32_t i)
{
	struct kv_name *n = name_of(kv, i);

	if (n->unit == NONE)
		return;
	name_of(kv, n->unit)->unit_before = n->unit_before;
	name_of(kv, n->unit_before)->unit = n->unit;
	n->unit = n->unit_before = NONE;
}

/* Block i joins the unit of block `other`; NONE: it begins one. */
static void unit_join(struct kv *kv, int32_t i, int32_t other)
{
	struct kv_name *n = name_of(kv, i), *before;

	n->unit = n->unit_before = i;
	if (other == NONE)
		return;
	before = name_of(kv, other);
	n->unit = before->unit;
	n->unit_before = other;
	name_of(kv, before->unit)->unit_before = i;
	before->unit = i;
}

void window_keep(struct kv *kv, const struct kv_table *t)
{
	int32_t last = NONE;

	for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
		int32_t from = t->published - kv->reach[g] - 1;

		if (!has_window(kv, g))
			continue;
		if (from < first_held(kv, t, g))
			from = first_held(kv, t, g);
		for (int32_t j = from; j < t->published; j++) {
			int32_t i = blocks_of(t, g)[j];

			if (!kv->block[i].indexed) /* another table's block has this name */
				continue;
			unit_leave(kv, i);
			unit_join(kv, i, last);
			last = i;
		}
	}
}

void unit_evict(struct kv *kv, int32_t i)
{
	for (int32_t j = name_of(kv, i)->unit, next; j != i; j = next) {
		next = name_of(kv, j)->unit;
		unit_leave(kv, j);
		if (kv->block[j].pinned) {
			unit_join(kv, j, NONE);
		} else if (kv->block[j].cached) {
			cache_take(kv, j);
			index_remove(kv, j);
			block_free(kv, j);
			kv->stats.evictions += tier_of(kv, j) == DEVICE;
		} else {
			index_remove(kv, j);
		}
	}
}

/* Copies that the unit of block i needs, or -1: it cannot be copied now. */
static int32_t unit_copies(const struct kv *kv, int32_t i)
{
	int32_t n = 0, j = i;

	do {
		if (!kv->block[j].cached || kv->block[j].pinned)
			return -1;
		n += twin_of(kv, j) == NONE;
		j = name_of(kv, j)->unit;
	} while (j != i);
	return n <= kv->left && n <= kv->left_out && n <= kv->n_free[HOST] + kv->n_cached[HOST] ? n : -1;
}

int32_t unit_copy_out(struct kv *kv, int32_t i)
{
	int32_t before = kv->n_copies, last = NONE, j = i;

	if (unit_copies(kv, i) <= 0)
		return 0;
	do {            /* what is evicted for one copy may be the twin of another: then there is a copy more */
		int32_t host, owner = owner_of(kv, j);

		if (twin_of(kv, j) == NONE) {
			host = kv->left > 0 && kv->left_out > 0 ? host_take(kv, owner) : NONE;
			if (host == NONE)
				break;
			index_copy(kv, host, j);
			unit_join(kv, host, NONE);
			cache_put(kv, host, owner);
			copy_put(kv, j, host, true);
		}
		j = name_of(kv, j)->unit;
	} while (j != i);
	j = i;
	do {            /* all that is there now is one unit */
		if (twin_of(kv, j) != NONE) {
			unit_leave(kv, twin_of(kv, j));
			unit_join(kv, twin_of(kv, j), last);
			last = twin_of(kv, j);
		}
		j = name_of(kv, j)->unit;
	} while (j != i);
	return kv->n_copies - before;
}

/* ---- windows -------------------------------------------------------------------------------- */

/* *t drops block j of a group. */
static void window_drop(struct kv *kv, struct kv_table *t, int32_t group, int32_t j)
{
	int32_t i = blocks_of(t, group)[j];
	struct kv_block *b = &kv->block[i];

	assert(b->refs > 0);
	if (--b->refs > 0)
		return;
	kv->stats.held[group]--;
	if (b->indexed && in_unit(kv, i)) {
		cache_put(kv, i, t->owner);
		return;
	}
	if (b->indexed)
		index_remove(kv, i);
	block_free(kv, i);
	kv->stats.slid++;
}

void kv_slide(struct kv *kv, struct kv_table *t, int32_t from)
{
	for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
		int32_t *first = first_of(kv, t, g), keep = (from >> kv->shift) - kv->reach[g] - 1;

		if (has_window(kv, g))
			for (; *first < keep && *first < t->n; ++*first)
				window_drop(kv, t, g, *first);
	}
}

void window_release(struct kv *kv, struct kv_table *t)
{
	window_keep(kv, t);
	for (int32_t g = 0; g < kv->cfg.n_groups; g++) {
		if (!has_window(kv, g))
			continue;
		for (int32_t j = t->n - 1; j >= first_held(kv, t, g); j--)
			window_drop(kv, t, g, j);
		*first_of(kv, t, g) = 0;
	}
}

bool kv_windows(const struct kv *kv)
{
	return kv->windows;
}

int32_t kv_first(const struct kv *kv, const struct kv_table *t, int32_t group)
{
	return first_held(kv, t, group);
}
