/* keep.h - cached prefixes in a file, from one run of the daemon to the next (--kv-save).
 *
 * Written when the daemon stops, read before it is ready.  The file is a cache: what is wrong with it, or does not
 * fit this model, this back end and these settings, costs a log line and a cold start.  It holds prompts and
 * answers as ids and as K,V, and the secret of salts, so it belongs to the daemon's user alone (0600, in a
 * folder that no other user may write).
 *
 *	struct keep_head      hashed
 *	n entries             struct keep_entry, ids [block_tokens], K,V [block_bytes], hash (16 bytes) of these
 *
 * Parents come before their children.  Names of blocks are made anew; salts stay, because the secret does.
 */
#ifndef KEEP_H
#define KEEP_H

#include <stdint.h>

#include "core/kv/kv.h"
#include "core/prefix.h"
#include "kernels/backend.h"

#define KEEP_MAGIC   0x0a564b5052494c53ull /* "SLIPKV\n" */
#define KEEP_VERSION 1u

struct keep_head {
	uint64_t magic;
	uint32_t version, n;         /* n: entries */
	uint32_t block_tokens, zero;
	uint64_t block_bytes;
	uint64_t identity[2];        /* of model, back end and settings: keep_identity */
	struct prefix_secret secret;
	uint64_t hash[2];            /* of all before it */
};
struct keep_entry {
	uint64_t salt;
	int32_t  parent;             /* as in struct kv_saved */
	uint32_t number;             /* of the entry, from 0 on */
};

struct keep {                        /* what both sides need; the caller's */
	const char *dir, *name;      /* --kv-save, and the file's name in it */
	int64_t  most;               /* bytes of the file, --kv-save-size */
	const struct sr_backend_ops *ops;
	struct sr_backend *b;
	int32_t  block_tokens, n_blocks;
	int64_t  block_bytes;
	uint64_t identity[2];
};

/* Add n bytes to an identity, which begins with zeros. */
void keep_identity(uint64_t identity[2], const void *from, size_t n);

/* 0: *secret is the file's, which is that of its salts; -ENOENT there is no file; -errno and one sentence.  The
 * model need not be open yet. */
int  keep_secret(const struct keep *k, struct prefix_secret *secret, char *err, size_t errlen);

/* Read what was kept into the empty cache kv.  Blocks restored; -errno and one sentence, and kv is empty. */
int  keep_read(const struct keep *k, const struct prefix_secret *secret, struct kv *kv, char *err, size_t errlen);

/* Write what is cached.  No table holds a block, no batch is in flight.  Blocks written, or -errno and one sentence;
 * the old file is unchanged then. */
int  keep_write(const struct keep *k, const struct prefix_secret *secret, const struct kv *kv, char *err, size_t errlen);

#endif
