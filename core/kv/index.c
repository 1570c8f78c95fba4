/* kv/index.c - from the name of a full block to the block: a hash table over both tiers.
 *
 * A name is a keyed 128-bit hash of its parent's name, the salt and the block's ids.  Belongs to the
 * scheduler's thread.
 */
#include "core/kv/impl.h"

#include <assert.h>
#include <string.h>

/* Copy a block's ids; the constant length lets the compiler inline the copy. */
static inline void copy_ids(const struct kv *kv, int32_t *to, const int32_t *from)
{
	if (kv->cfg.block_tokens == USUAL_TOKENS)
		memcpy(to, from, USUAL_TOKENS * sizeof(*to));
	else
		memcpy(to, from, (size_t)kv->cfg.block_tokens * sizeof(*to));
}

struct kv_key index_key(const struct kv *kv, const struct kv_table *t, const int32_t *id)
{
	const struct prefix_name n = prefix_name(kv->cfg.key, t->key, t->salt, id, kv->cfg.block_tokens);

	return (struct kv_key){ { n.w[0], n.w[1] } };
}

/* A name changes: a reader of the events does not take what is half written. */
static inline void change_begin(const struct kv *kv, struct kv_name *n)
{
	if (kv->cfg.events)
		events_begin((struct events_name *)n);
}

/* by: to the stamp's next phase. */
static inline void change_end(const struct kv *kv, struct kv_name *n, uint32_t by, int32_t i)
{
	if (kv->cfg.events)
		events_end(kv->cfg.events, (struct events_name *)n, by, (uint32_t)i);
}

void index_add(struct kv *kv, int32_t i, const struct kv_table *t, int32_t group, const int32_t *id,
               const struct kv_key *key)
{
	struct kv_name *n = name_of(kv, i);
	int32_t *head = bucket_of(kv, key);

	assert(!kv->block[i].indexed);
	kv->block[i].indexed = true;
	change_begin(kv, n);
	n->key = *key;
	n->parent = (struct kv_key){ { t->key[0], t->key[1] } };
	n->salt = t->salt;
	n->group = group;
	n->unit = n->unit_before = NONE;
	copy_ids(kv, n->id, id);
	change_end(kv, n, EVENTS_LIVE - EVENTS_BUSY, i);
	n->next_in_bucket = *head;
	n->twin = NONE;
	*head = i;
	if (kv->cfg.shown)
		prefix_put(kv->cfg.shown, key->w[0]);
}

void index_remove(struct kv *kv, int32_t i)
{
	struct kv_name *n = name_of(kv, i);
	int32_t *at = bucket_of(kv, &n->key);

	while (*at != i)
		at = &name_of(kv, *at)->next_in_bucket;
	*at = n->next_in_bucket;
	kv->block[i].indexed = false;
	change_end(kv, n, 4 - EVENTS_LIVE, i);
	if (kv->cfg.shown)
		prefix_take(kv->cfg.shown, n->key.w[0]);
	if (kv->windows)
		unit_leave(kv, i);
	if (kv->cfg.n_states)
		state_evict(kv, &n->key);
	if (n->twin != NONE)
		name_of(kv, n->twin)->twin = NONE;
}

void index_find(const struct kv *kv, const struct kv_table *t, int32_t group, const int32_t *id,
                const struct kv_key *key, int32_t found[2])
{
	const struct kv_key *parent = (const struct kv_key *)t->key;

	found[DEVICE] = found[HOST] = NONE;
	for (int32_t i = *bucket_of(kv, key); i != NONE; i = name_of(kv, i)->next_in_bucket) {
		const struct kv_name *n = name_of(kv, i);

		if (same_key(&n->key, key) && n->salt == t->salt && n->group == group && same_key(&n->parent, parent) &&
		    !memcmp(n->id, id, (size_t)kv->cfg.block_tokens * sizeof(*id)))
			found[tier_of(kv, i)] = i;
	}
}

void index_twins(struct kv *kv, int32_t a, int32_t b)
{
	name_of(kv, a)->twin = b;
	name_of(kv, b)->twin = a;
}

void index_copy(struct kv *kv, int32_t to, int32_t from)
{
	const struct kv_name *f = name_of(kv, from);
	const struct kv_table parent = { .key = { f->parent.w[0], f->parent.w[1] }, .salt = f->salt };

	index_add(kv, to, &parent, f->group, f->id, &f->key);
	index_twins(kv, to, from);
}
