/* guide.h - a grammar that is ready: what compile.c makes, and guide.c follows. */
#ifndef GUIDE_H
#define GUIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "mask.h"

#define GUIDE_STOPS 72               /* ids that may end an answer: the model's and the caller's */

/* Read-only once open, but for what `lock` guards: the engine's rows, states and masks, and with them the
 * derivatives of the grammar's expressions; and users of caches. */
struct sr_grammar {
	atomic_uint users;           /* its opener and its guides */
	const struct sr_text *t;
	const struct tokens *tokens;
	struct grammar *g;
	int32_t stop[GUIDE_STOPS];
	uint32_t n_stop;
	int32_t eos;                 /* the one that is forced at the end; -1 = none */
	pthread_mutex_t lock;
	struct caches *now;          /* those in use; older ones live as long as a guide is in them */
	size_t most_bytes;           /* of caches: then new ones are begun */
};

/* Rows, states and masks made so far.  They only grow, so guides move to new ones when they are too large. */
struct caches {
	uint32_t users;              /* guides whose state is in them */
	struct earley y;
	struct masks m;
};

#define CACHE_BYTES ((size_t)32 << 20)

/* Empty caches of a sealed grammar.  0, -ENOMEM, -E2BIG: it begins in too many ways. */
int  caches_create(struct caches **out, struct sr_grammar *g);
void caches_free(struct caches *c);
size_t caches_bytes(const struct caches *c);

#define RECENT 4u

/* The answer's last tokens of text, behind any special one. */
struct recent { uint32_t n; int32_t id[RECENT]; };

struct sr_guide {
	struct sr_grammar *g;
	struct caches *in;
	uint32_t state;              /* of in->y */
	struct recent recent;
	bool ended;                  /* a stop id came */
	bool broken;                 /* over a budget */
};

#endif
