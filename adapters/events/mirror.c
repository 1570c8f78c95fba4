/* mirror.c - see mirror.h. */
#include "mirror.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/prefix.h"

#define NONE   UINT32_MAX
#define MARGIN 1024u          /* changes that the daemon may be writing over while they are read */

/* What is known of a block.  Names that were told count; `fresh` ones were not told yet. */
struct slot {
	uint64_t name, parent;       /* name 0: not published */
	int32_t  group;
	uint32_t next;               /* in its bucket */
	bool     fresh, listed;      /* listed: in `untold` */
	bool     again;              /* its parent may come with changes that were not followed yet */
};

struct mirror {
	const struct events_page *page;
	uint32_t n, n_device, tokens; /* blocks of both tiers, of the device; tokens of a block */
	uint64_t salt, at;           /* at: changes that were followed */
	bool     begun;
	uint64_t overruns;
	struct slot *slot;           /* [n] */
	int32_t *ids;                /* [n][tokens] */
	uint32_t *bucket, mask;      /* by name: the first block */
	uint32_t *untold, n_untold;  /* [n]: blocks to be told */
	uint32_t *chain;             /* [n]: a block and its parents that were not told */
};

static uint32_t *bucket_of(struct mirror *m, uint64_t name)
{
	return &m->bucket[name & m->mask];
}

static bool on_host(const struct mirror *m, uint32_t i)
{
	return i >= m->n_device;
}

/* Was the name of block i told for another block of the same tier? */
static bool told_elsewhere(struct mirror *m, uint32_t i)
{
	for (uint32_t j = *bucket_of(m, m->slot[i].name); j != NONE; j = m->slot[j].next)
		if (j != i && m->slot[j].name == m->slot[i].name && !m->slot[j].fresh &&
		    on_host(m, j) == on_host(m, i))
			return true;
	return false;
}

static void forget(struct mirror *m, const struct mirror_sink *to, uint32_t i)
{
	struct slot *s = &m->slot[i];
	uint32_t *at = bucket_of(m, s->name);

	if (!s->name)
		return;
	while (*at != i)
		at = &m->slot[*at].next;
	*at = s->next;
	if (!s->fresh && !told_elsewhere(m, i))
		to->removed(to->ctx, s->name, s->group, on_host(m, i));
	s->name = 0;
	s->fresh = s->again = false;
}

/* Compare block i with what is known.  One that is being written, or changes all the time, comes again: its
 * change is not in the ring yet. */
static void look(struct mirror *m, const struct mirror_sink *to, uint32_t i)
{
	struct slot *s = &m->slot[i];
	struct events_name n;
	int32_t ids[PREFIX_BLOCK_MAX];
	int r = events_read(m->page, i, &n, ids);
	bool first = r == 1 && !n.parent[0] && !n.parent[1], listed = s->listed;

	if (r < 0)
		return;
	if (r == 0 || n.salt != m->salt || !n.key[0]) {
		forget(m, to, i);
		return;
	}
	if (s->name == n.key[0])
		return;
	forget(m, to, i);
	*s = (struct slot){ .name = n.key[0], .parent = first ? 0 : prefix_of_group(n.parent[0], n.group),
	                    .group = n.group, .next = *bucket_of(m, n.key[0]), .fresh = true, .listed = true };
	if (!listed)
		m->untold[m->n_untold++] = i;
	*bucket_of(m, n.key[0]) = i;
	memcpy(m->ids + (size_t)i * m->tokens, ids, m->tokens * sizeof(*ids));
}

static void tell(struct mirror *m, const struct mirror_sink *to, uint32_t i)
{
	struct slot *s = &m->slot[i];

	if (!s->fresh)
		return;
	if (!told_elsewhere(m, i))
		to->stored(to->ctx, &(struct mirror_block){ s->name, s->parent, s->group, on_host(m, i),
		                                            m->ids + (size_t)i * m->tokens });
	s->fresh = false;
}

/* A block with this name that was not told yet, or NONE. */
static uint32_t fresh_block(struct mirror *m, uint64_t name)
{
	uint32_t j = name ? *bucket_of(m, name) : NONE;

	while (j != NONE && !(m->slot[j].name == name && m->slot[j].fresh))
		j = m->slot[j].next;
	return j;
}

static bool known(struct mirror *m, uint64_t name)
{
	uint32_t j = name ? *bucket_of(m, name) : NONE;

	while (j != NONE && m->slot[j].name != name)
		j = m->slot[j].next;
	return !name || j != NONE;
}

/* Tell block i behind its parents; false: it waits for one.  A block is read as it is now, which may be ahead
 * of the changes that were followed: then its parent comes with the next ones, or is gone.  Names are hashes,
 * so chains have no rounds; the bound is for a daemon that lies. */
static bool tell_chain(struct mirror *m, const struct mirror_sink *to, uint32_t i, bool ahead, bool caught_up)
{
	uint32_t k = 0, top = i;

	for (uint32_t j = i; j != NONE && k < m->n && m->slot[j].fresh; j = fresh_block(m, m->slot[j].parent))
		m->chain[k++] = top = j;
	if (k && !known(m, m->slot[top].parent) && (m->slot[i].again ? !caught_up : ahead)) {
		m->slot[i].again = true;
		return false;
	}
	while (k > 0)
		tell(m, to, m->chain[--k]);
	return true;
}

static void tell_untold(struct mirror *m, const struct mirror_sink *to, uint64_t n)
{
	bool ahead = __atomic_load_n(&m->page->n, __ATOMIC_ACQUIRE) != m->at;
	uint32_t left = 0;

	for (uint32_t k = 0; k < m->n_untold; k++) {
		uint32_t i = m->untold[k];

		if (!tell_chain(m, to, i, ahead, m->at == n))
			m->untold[left++] = i;
		else
			m->slot[i].listed = false;
	}
	m->n_untold = left;
}

static uint64_t look_at_all(struct mirror *m, const struct mirror_sink *to)
{
	m->at = __atomic_load_n(&m->page->n, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < m->n; i++)
		look(m, to, i);
	tell_untold(m, to, m->at);
	m->begun = true;
	return m->n;
}

uint64_t mirror_turn(struct mirror *m, const struct mirror_sink *to, uint64_t most)
{
	uint64_t n = __atomic_load_n(&m->page->n, __ATOMIC_ACQUIRE), done = 0;

	if (!m->begun)
		return look_at_all(m, to);
	for (; m->at < n && done < most; done++) {
		uint32_t i = __atomic_load_n(&m->page->ring[m->at % EVENTS_RING], __ATOMIC_RELAXED);

		atomic_thread_fence(memory_order_acquire);
		if (__atomic_load_n(&m->page->n, __ATOMIC_RELAXED) - m->at > EVENTS_RING - MARGIN) {
			m->overruns++;
			return done + look_at_all(m, to);
		}
		m->at++;
		if (i < m->n)
			look(m, to, i);
	}
	tell_untold(m, to, n);
	return done;
}

void mirror_tell_all(struct mirror *m, const struct mirror_sink *to)
{
	to->cleared(to->ctx);
	for (uint32_t i = 0; i < m->n; i++)
		m->slot[i].fresh = m->slot[i].name != 0;
	for (uint32_t i = 0; i < m->n; i++)
		tell_chain(m, to, i, false, true);
}

uint64_t mirror_overruns(const struct mirror *m)
{
	return m->overruns;
}

int mirror_create(struct mirror **out, const struct events_page *page)
{
	struct mirror *m = calloc(1, sizeof(*m));
	size_t buckets = 16;

	if (!m)
		return -ENOMEM;
	m->page = page;
	m->n_device = page->n_blocks;
	m->n = page->n_blocks + page->n_host;
	m->tokens = page->block_tokens;
	m->salt = page->salt;
	while (buckets < (size_t)m->n * 2)
		buckets *= 2;
	m->mask = (uint32_t)(buckets - 1);
	m->slot = calloc(m->n, sizeof(*m->slot));
	m->ids = calloc((size_t)m->n * m->tokens, sizeof(*m->ids));
	m->bucket = malloc(buckets * sizeof(*m->bucket));
	m->chain = malloc(m->n * sizeof(*m->chain));
	m->untold = malloc(m->n * sizeof(*m->untold));
	if (!m->slot || !m->ids || !m->bucket || !m->chain || !m->untold) {
		mirror_destroy(m);
		return -ENOMEM;
	}
	memset(m->bucket, 0xff, buckets * sizeof(*m->bucket));
	*out = m;
	return 0;
}

void mirror_destroy(struct mirror *m)
{
	if (!m)
		return;
	free(m->slot);
	free(m->ids);
	free(m->bucket);
	free(m->chain);
	free(m->untold);
	free(m);
}
