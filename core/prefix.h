/* prefix.h - names of cached prefixes, and the page where a daemon shows which of them it has.  A leaf.
 *
 * A full block of tokens has a name: a keyed 128-bit hash of the name before it, a salt and its ids (kv.h).
 * A daemon that is one of several puts the low 64 bits of each published block's name into a hash table in
 * memory, with plain stores, and takes them out when the block is evicted.  An adapter that knows the
 * secret computes a prompt's names and looks how far each daemon has them.  An answer is a hint: reader
 * and writer do not wait for each other, and the daemon compares ids as ever.
 *
 *	slipring serve -> PREFIX_SECRET_FD -> each daemon     the same secret for all replicas, so that
 *	or LoadCredential=slipring-prefix:FILE                a prompt's names are computed once
 *	adapter --CONTROL_PREFIX--> core/control.c            on the control socket; only the gateway's uid,
 *	        <-- a descriptor --'                          the daemon's own and root get it
 *
 * The memory is sealed: only the daemon writes it, and nobody can cut it.  It holds the secret, so who cannot
 * read the secret cannot read the names either.  Belongs to the scheduler's thread.
 */
#ifndef PREFIX_H
#define PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTROL_PREFIX 0x200u        /* as control_ask.knob: send me the page */

#define PREFIX_MAGIC   0x46505253u   /* "SRPF" */
#define PREFIX_VERSION 1u
#define PREFIX_SECRET_FD "SLIPRING_SECRET_FD" /* environment: a sealed memory of struct prefix_secret */
#define PREFIX_CREDENTIAL "slipring-prefix"   /* in CREDENTIALS_DIRECTORY: a file with the secret's 32 bytes */
#define PREFIX_BLOCK_MAX 64          /* most tokens of a block */
#define PREFIX_GROUPS  16            /* most groups of layers (KV_GROUPS) */
#define PREFIX_PLACES  8             /* names in a bucket: one cache line */

struct prefix_secret {
	uint64_t name[2];            /* key of names */
	uint64_t salt[2];            /* key of salts and tenants */
};

struct prefix_name { uint64_t w[2]; };

enum prefix_scope { PREFIX_BY_UID, PREFIX_BY_TENANT, PREFIX_GLOBAL };

struct prefix_page {
	uint32_t magic, version;
	uint64_t bytes;              /* of the whole page */
	uint32_t n_buckets;          /* a power of 2 */
	uint32_t block_tokens;
	uint32_t scope;              /* enum prefix_scope */
	uint32_t n_groups;
	int32_t  reach[PREFIX_GROUPS]; /* full blocks that the next token reads of a group's; 0 = all */
	struct prefix_secret secret;
	_Alignas(64) uint64_t bucket[][PREFIX_PLACES]; /* 0 = a free place */
};

/* A secret.  1: that of all replicas, from `slipring serve` or the service manager; 0: random; or -errno. */
int  prefix_secret(struct prefix_secret *out);
int  prefix_secret_fd(void);         /* for `slipring serve`: a descriptor for PREFIX_SECRET_FD, or -errno */

/* The name of the block of group 0 that continues `parent` (zeros: nothing) with n_ids ids. */
struct prefix_name prefix_name(const uint64_t key[2], const uint64_t parent[2], uint64_t salt,
                               const int32_t *id, int32_t n_ids);
/* The low half of the same block's name in another group. */
static inline uint64_t prefix_of_group(uint64_t low, int32_t group)
{
	return low + (uint64_t)(uint32_t)group * 0x9e3779b97f4a7c15u;
}

/* SipHash-2-4 of n words. */
uint64_t prefix_hash(const uint64_t key[2], const uint64_t *word, int n);
/* The tenant of a request: a uid, or what a gateway of this uid named, which never equals a uid. */
uint64_t prefix_tenant(const struct prefix_secret *s, uint32_t uid, bool gateway, uint64_t named);
/* Who shares a cached prefix; without the secret it cannot be forged. */
uint64_t prefix_salt(const struct prefix_secret *s, enum prefix_scope scope, uint32_t uid, uint64_t tenant,
                     uint64_t salt);

/* Writer.  Room for n_blocks names.  *fd: of the memory, to be sent; the caller closes it. */
int  prefix_create(struct prefix_page **out, int *fd, int64_t n_blocks, const struct prefix_secret *s);
void prefix_destroy(struct prefix_page *p);

/* The two buckets of a name, from its two halves. */
static inline uint64_t *prefix_bucket(struct prefix_page *p, uint64_t low, int second)
{
	return p->bucket[(second ? low >> 32 : low) & (p->n_buckets - 1)];
}

/* The places of a bucket that hold this word, a bit each; without branches, which could not be predicted. */
static inline unsigned prefix_places(const uint64_t *b, uint64_t word)
{
	unsigned m = 0;

	for (int i = 0; i < PREFIX_PLACES; i++)
		m |= (unsigned)(__atomic_load_n(&b[i], __ATOMIC_RELAXED) == word) << i;
	return m;
}

/* In the first of its buckets that has `old`, put `word` instead.  Most names lie at the place that their own
 * bits say: then no other place is looked at. */
static inline void prefix_swap(struct prefix_page *p, uint64_t low, uint64_t old, uint64_t word)
{
	uint64_t *b = prefix_bucket(p, low, 0), *own = &b[low >> 29 & (PREFIX_PLACES - 1)];
	unsigned m;

	if (__builtin_expect(*own == old, 1)) {
		__atomic_store_n(own, word, __ATOMIC_RELAXED);
		return;
	}
	m = prefix_places(b, old);
	if (__builtin_expect(!m, 0)) {
		b = prefix_bucket(p, low, 1);
		m = prefix_places(b, old);
	}
	if (m)
		__atomic_store_n(&b[__builtin_ctz(m)], word, __ATOMIC_RELAXED);
}

/* Put a name where there is room; without room it is not shown.  There are four places for each name, so that
 * this happens to fewer than one in a million. */
static inline void prefix_put(struct prefix_page *p, uint64_t low) { prefix_swap(p, low, 0, low); }

/* Take one occurrence out; a block on two tiers has two. */
static inline void prefix_take(struct prefix_page *p, uint64_t low) { prefix_swap(p, low, low, 0); }

static inline bool prefix_has(const struct prefix_page *p, uint64_t low)
{
	struct prefix_page *q = (struct prefix_page *)(uintptr_t)p;

	return prefix_places(prefix_bucket(q, low, 0), low) || prefix_places(prefix_bucket(q, low, 1), low);
}

/* Reader: map what a daemon sent, and check it.  0, -EPROTO, -errno; fd stays the caller's. */
int  prefix_open(const struct prefix_page **out, int fd);
void prefix_close(const struct prefix_page *p);

/* How many of the n blocks with these names (of group 0) a request finds, if groups have windows: a match
 * as kv.h describes it.  Without windows what is cached is a prefix of the prompt, since chains are evicted
 * tail first, and the caller may bisect. */
bool prefix_windows(const struct prefix_page *p);
int32_t prefix_match(const struct prefix_page *p, const uint64_t *low, int32_t n);

#endif
