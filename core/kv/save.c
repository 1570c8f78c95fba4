/* kv/save.c - cached blocks that outlive the daemon: which they are, and how they come back.  Belongs to the
 * scheduler's thread.
 */
#include "core/kv/impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The device block of group 0 with this name, or NONE. */
static int32_t find(const struct kv *kv, const struct kv_key *key)
{
	int32_t i = *bucket_of(kv, key);

	while (i != NONE && !(same_key(&name_of(kv, i)->key, key) && tier_of(kv, i) == DEVICE))
		i = name_of(kv, i)->next_in_bucket;
	return i;
}

struct at { uint64_t released; int32_t block; };

static int newer(const void *a, const void *b)
{
	const struct at *x = a, *y = b;

	return x->released < y->released ? 1 : x->released > y->released ? -1 : 0;
}

/* The cached blocks of the device, the one released last first. */
static int32_t by_time(const struct kv *kv, struct at *out)
{
	int32_t n = 0;

	for (int32_t i = 0; i < kv->cfg.n_blocks; i++)
		if (kv->block[i].cached)
			out[n++] = (struct at){ kv->run[kv->block[i].run].released + kv->block[i].place, i };
	qsort(out, (size_t)n, sizeof(*out), newer);
	return n;
}

int32_t kv_saved(const struct kv *kv, struct kv_saved *out, int32_t most)
{
	struct at *at = calloc((size_t)kv->cfg.n_blocks + 1, sizeof(*at));
	int32_t *place = malloc((size_t)kv->cfg.n_blocks * sizeof(*place)), n = 0, cached;

	assert(kv->cfg.n_groups == 1 && !kv->windows && !kv->cfg.n_states);
	cached = at && place ? by_time(kv, at) : 0;
	if (place)
		memset(place, 0xff, (size_t)kv->cfg.n_blocks * sizeof(*place));
	for (int32_t k = 0; k < cached && n < most; k++) {
		const struct kv_name *name = name_of(kv, at[k].block);
		bool first = !name->parent.w[0] && !name->parent.w[1];
		int32_t parent = first ? NONE : find(kv, &name->parent);

		if (!first && (parent == NONE || place[parent] == NONE))
			continue;           /* without what comes before it nothing would find it */
		place[at[k].block] = n;
		out[n++] = (struct kv_saved){ .block = at[k].block, .parent = first ? NONE : place[parent],
		                              .salt = name->salt, .id = name->id };
	}
	free(at);
	free(place);
	return n;
}

int32_t kv_restore(struct kv *kv, struct kv_saved *in, int32_t n)
{
	struct kv_table t = { 0 };
	int32_t done = 0;

	assert(kv->n_free[DEVICE] == kv->cfg.n_blocks && kv->cfg.n_groups == 1 && !kv->windows && !kv->cfg.n_states);
	for (; done < n && kv->n_free[DEVICE] > 0; done++) {
		struct kv_saved *s = &in[done];
		struct kv_key key = { { 0, 0 } };

		assert(s->parent < done);
		if (s->parent >= 0)
			key = name_of(kv, in[s->parent].block)->key;
		t.key[0] = key.w[0];
		t.key[1] = key.w[1];
		t.salt = s->salt;
		key = index_key(kv, &t, s->id);
		s->block = block_take(kv, 0, false);
		index_add(kv, s->block, &t, 0, s->id, &key);
	}
	for (int32_t i = done; i-- > 0;)      /* as they were released: the last of them is the newest */
		cache_put(kv, in[i].block, 0);
	return done;
}
