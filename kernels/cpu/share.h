/* share.h - what a thread has of a verb: its rows and columns, and when it must meet the others.  For ops.c,
 * whose head describes it, and experts.c.
 */
#ifndef SHARE_H
#define SHARE_H

#include "cpu.h"
#include "kernels/shared.h"
#include "shmring/clock.h"

static inline unsigned bit(int place)
{
	return 1u << place;
}

static inline void meet(struct dev *d)
{
	team_barrier(d->b->team);
	d->reads = d->writes = 0;
}

/* Declare the places that this verb reads from and writes for other threads' shares: see the head. */
static inline void enter(struct dev *d, unsigned reads, unsigned writes)
{
	if ((reads & d->writes) || (writes & (d->reads | d->writes)))
		meet(d);
	d->reads |= reads;
	d->writes |= writes;
}

/* All threads of all ranks meet. */
static inline void meet_ranks(struct dev *d)
{
	meet(d);
	if (d->i == 0) {
		uint64_t began = sr_now();

		shared_meet(d->b->lim.shared, d->b->lim.rank);
		d->b->ranks_ns += sr_now() - began;
	}
	meet(d);
	d->far = 0;
}

/* This rank's columns of a place that ranks share are about to be written: other ranks must have read them. */
static inline void write_far(struct dev *d, enum place p)
{
	if (d->b->net.ranks && (d->far & bit(p)))
		meet_ranks(d);
}

struct range { int32_t from, to; };

static inline struct range deal(int32_t n, const struct dev *d)
{
	return (struct range){ block_from(n, d->i, d->b->n_active), block_from(n, d->i + 1, d->b->n_active) };
}

/* This thread's rows of T; all of them if solo. */
static inline struct range own_rows(const struct dev *d, int32_t T)
{
	struct range r = deal((T + KERN_TILE - 1) / KERN_TILE, d);

	if (T <= SOLO)
		return (struct range){ 0, T };
	r.from *= KERN_TILE;
	r.to = r.to * KERN_TILE < T ? r.to * KERN_TILE : T;
	return r;
}

/* Row t of a place, for this thread; T is the number of rows of the verb. */
static inline float *row_of(struct dev *d, enum place p, int32_t t, int32_t T)
{
	float *base = d->b->place[p];

	if (T <= SOLO && p == P_X)
		base = d->x;
	if (T <= SOLO && p == P_Y)
		base = d->y;
	return base + (size_t)t * (size_t)d->b->shape.width[p];
}

/* Rows that multiply with one expert: `n` of a place, from row `from` on.  Their activations begin at a
 * tile.  Without experts all rows are of expert 0. */
struct row_run { int32_t expert, from, n, tile; };

/* The rows of a run in the form that a weight multiplies with.  Solo: in this thread's own tiles. */
static inline struct kern_rows tiles_of(struct dev *d, enum kern_form f, int32_t k, struct row_run r, bool solo)
{
	size_t bytes = d->b->k->tile_bytes(f, k);

	return (struct kern_rows){ .form = f, .k = k, .rows = r.n, .tile_bytes = bytes,
		.data = (solo ? d->tiles[f] : d->b->tiles[f]) + (size_t)r.tile * bytes };
}

/* Floats from one row to the next.  GU and ACT are as wide as the weight that writes or reads them. */
static inline size_t stride_of(const struct dev *d, enum place p, int32_t n)
{
	return (size_t)(p == P_GU || p == P_ACT ? n : p == P_OUT ? d->b->m.d_model : d->b->shape.width[p]);
}

/* y = x w^T + bias for these blocks of part p, whoever's arena they are in. */
void ops_multiply_part(struct dev *d, const struct weight *w, int p, int32_t expert, struct range blocks, float *y,
                       size_t ld, const struct kern_rows *x, const float *bias);

/* y = x w^T for this thread's columns of one run. */
void ops_multiply(struct dev *d, const struct weight *w, enum place y, struct row_run r, bool solo);

#endif
