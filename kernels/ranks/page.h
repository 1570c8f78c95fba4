/* page.h - the memory that core and the ranks of a model share: words, then batches and masks, then what the ranks
 * gather.  For ranks.c and serve.c. */
#ifndef RANKS_PAGE_H
#define RANKS_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/shared.h"

#define RANKS_DEPTH 8                /* most batches in flight */

enum rank_state { RANK_STARTING, RANK_OPEN, RANK_REFUSED };

/* The counts of a batch, both ways; its arrays lie behind. */
struct rank_batch {
	_Alignas(64) int32_t n_copies, n_cmds, n_words, n_rows, n_results, n_ids, n_tokens;
	_Atomic uint32_t finished;   /* ranks that are done with it */
	uint64_t begin_ns, end_ns, int8_ops, float_ops, bytes, copied; /* rank 0's */
	uint32_t compute_ns, memory_ns, copy_ns, ranks_ns, cores_ns;
};

/* What a device measured of a batch: from rank 0's struct sr_batch into the page, and out of it into core's. */
#define RANK_NUMBERS(to, from) do { \
	(to)->begin_ns = (from)->begin_ns; \
	(to)->end_ns = (from)->end_ns; \
	(to)->compute_ns = (from)->compute_ns; \
	(to)->memory_ns = (from)->memory_ns; \
	(to)->copy_ns = (from)->copy_ns; \
	(to)->ranks_ns = (from)->ranks_ns; \
	(to)->cores_ns = (from)->cores_ns; \
	(to)->int8_ops = (from)->int8_ops; \
	(to)->float_ops = (from)->float_ops; \
	(to)->bytes = (from)->bytes; \
	(to)->copied = (from)->copied; \
} while (0)

struct rank_word {
	_Alignas(64) _Atomic uint32_t done; /* batches, since the start */
	_Atomic uint32_t state;      /* enum rank_state */
	_Atomic uint64_t progress;   /* of its device */
	_Atomic uint64_t loaded;     /* bytes read */
	uint64_t check[RANKS_DEPTH]; /* of the batch in that place */
	uint64_t done_ns[RANKS_DEPTH];
	char err[512];               /* REFUSED: why */
	char without[256];           /* as the device's without() says, once it is OPEN */
};

struct ranks_page {
	struct sr_limits lim;        /* as core has them: rank 0 */
	int32_t depth, n_vocab;
	uint64_t batches_at, shared_at, bytes;
	_Alignas(64) _Atomic uint32_t launched; /* batches, since the start; a futex */
	_Atomic uint32_t sleepers;
	_Atomic uint32_t quit;
	_Alignas(64) _Atomic uint32_t armed; /* core sleeps: ring the bell when a batch is done */
	struct rank_batch batch[RANKS_DEPTH];
	struct rank_word rank[SR_RANKS_MAX];
};

/* The limits of one rank: its share of the threads; blocks of a size that it alone knows. */
static inline struct sr_limits rank_limits(const struct sr_limits *all, int32_t rank, const struct sr_backend_ops *ops)
{
	struct sr_limits l = *all;
	int32_t n = all->threads * (rank + 1) / all->world - all->threads * rank / all->world;

	l.rank = rank;
	l.threads = all->threads ? (n > 0 ? n : 1) : 0;
	l.worked = ops->work && ops->depth == 1;
	l.batches = NULL;
	l.shared = NULL;
	for (int g = 0; g < SR_GROUPS_MAX; g++)
		l.group[g].per_block = 0;
	return l;
}

#endif
