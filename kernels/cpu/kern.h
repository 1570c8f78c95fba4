/* kern.h - the inner loops of the CPU back end: pure functions over raw memory.  No threads, no
 * state, no slots: backend.c and ops.c divide the work and call these, a share per thread.
 *
 * There is one table per instruction set: plain C is the truth, then AVX2+FMA, AVX-512 with VNNI, the
 * same with BF16.  kern_pick() takes the best that the machine has, at start; SLIPRING_CPU=plain|avx2|
 * avx512vnni|avx512 in the environment overrides it, for tests.  Only the table that packed data can
 * read it.
 *
 * Sums    within one table each function has one order of summation, whatever T, the tile, the
 *         share or the chunk: outputs are lanes, K runs in one order.  So a row computed alone is
 *         bit-equal to the same row among 511 others.  Products of weights with 32 to a scale are
 *         bit-equal in every table; those of K-quants and IQ4_XS are rounded to f16 in some.
 *         Vector verbs and attention are bit-equal in every table, too.
 * NaN     an activation that is not finite makes all outputs of its row not finite, and of no other.
 * Widths  k is a multiple of 32 (of 256 for K-quants and IQ4_XS), head_dim of 16.  Loops over
 *         the elements of a head call it E.
 * Shapes  [slowest][..][fastest].
 */
#ifndef KERN_H
#define KERN_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/model.h"

#define KERN_COLS  16             /* outputs of a column block: matrices are packed [n/16].. */
#define KERN_TILE  8              /* rows of an activation tile */
#define KERN_BLOCK 16             /* tokens of a KV block */
#define KERN_SPAN  512            /* positions that attention sums before it adds them to older spans */

/* The form of activations that a weight type multiplies with. */
enum kern_form { FORM_F32, FORM_BF16, FORM_I8, N_FORMS };

/* Activations of `rows` rows of k, in one form; tiles of KERN_TILE rows, the last one shorter.
 * Each table has its own layout within a tile.  Tiles are independent, so threads can make
 * different ones at a time. */
struct kern_rows {
	enum kern_form form;
	int32_t k, rows;
	uint8_t *data;                /* [tiles][tile_bytes], 64-byte aligned */
	size_t   tile_bytes;          /* as kern.tile_bytes(form, k) */
	const uint16_t *index;        /* [k] of HELD_U4_ORDER (types.h): whose scale an input's weights have; else NULL */
};

/* Queries of one sequence against its paged KV cache, one KV head of one layer. */
struct kern_attend {
	const float *q;               /* [n][ld_q], rotated: head h of this group at q + t*ld_q + h*head_dim */
	float       *out;             /* [n][ld_out], heads likewise, each kern_values() wide */
	size_t   ld_q, ld_out;        /* in floats */
	int32_t  n;                   /* queries, positions first .. first+n-1 */
	int32_t  heads;               /* query heads per KV head */
	int32_t  head_dim;            /* a multiple of 16 */
	int32_t  latent;              /* 0, or: values are the first so many elements of keys, a multiple of 16 */
	uint8_t *turned;              /* latent: room for the values of a unit, kvblock_turned(latent) bytes; or NULL */
	int32_t  first;               /* position of query 0; its K,V are already stored */
	int32_t  window, chunk;       /* where a query begins to read: kern_from() */
	const float *sink;            /* NULL, or [heads]: see kern_share() */
	float    scale, cap;          /* on q.k; cap*tanh(x/cap), 0 = none */
	const int32_t *table;         /* block ids of the sequence */
	const uint8_t *kv;            /* the pool: block b begins at kv + b * block_stride */
	size_t   block_stride;        /* bytes */
	size_t   k_off, v_off;        /* bytes from a block's start to K and V of this layer and head; latent: alike */
	float   *scratch;             /* kern.attend_scratch(n, heads, head_dim) floats, 64-byte aligned */
	/* NULL, or: read only span `span`, the KERN_SPAN positions from span * KERN_SPAN on, and do
	 * not write out.  Head h of query t is row t * heads + h; its sums go to part + row * ld_part,
	 * kern_part(kern_values()) floats each, for kern_join(). */
	float   *part;
	size_t   ld_part;
	int32_t  span;
};

/* Tokens of one sequence through the gated delta rule, one value head: struct sr_delta in kernels/model.h.  With S
 * the state, for each token: d = write * (v - decay * S^T k); S = decay * S + k d^T; out = S^T q. */
struct kern_delta {
	int32_t n;                    /* tokens */
	int32_t k_dim, v_dim;         /* multiples of 16 */
	const float *q, *k, *v;       /* token t at t * ld; q and k are normalized */
	const float *decay, *write;   /* likewise */
	float       *out;             /* [v_dim], token t at t * ld_out */
	size_t   ld, ld_out;          /* in floats */
	const float *from;            /* the state before: [v_dim / 16][k_dim][16] */
	float       *to;              /* and after; may be `from` */
};

/* Eight columns of the state are one vector, [k_dim] of them 4 KiB: they stay in the nearest cache for all tokens.
 * Elements are multiplied, then added, each sum in four parts of one order. */
typedef float kern_lanes __attribute__((vector_size(8 * sizeof(float)), aligned(4), may_alias));

/* One token for columns col .. col + 7; the state is read from `from` and written to `to`. */
static inline void kern_delta_token(const struct kern_delta *a, int32_t t, int32_t col, const float *from, float *to)
{
	const float *q = a->q + (size_t)t * a->ld, *k = a->k + (size_t)t * a->ld;
	const float decay = a->decay[(size_t)t * a->ld], by = a->write[(size_t)t * a->ld];
	const kern_lanes v = *(const kern_lanes *)(a->v + (size_t)t * a->ld + col);
	kern_lanes sum[4] = { { 0 } }, d;

	for (int32_t i = 0; i < a->k_dim; i += 4)
		for (int32_t j = 0; j < 4; j++)
			sum[j] += *(const kern_lanes *)(from + (i + j) * KERN_COLS) * k[i + j];
	d = (v - ((sum[0] + sum[1]) + (sum[2] + sum[3])) * decay) * by;
	for (int32_t j = 0; j < 4; j++)
		sum[j] = (kern_lanes){ 0 };
	for (int32_t i = 0; i < a->k_dim; i += 4)
		for (int32_t j = 0; j < 4; j++) {
			kern_lanes s = *(const kern_lanes *)(from + (i + j) * KERN_COLS) * decay + d * k[i + j];

			*(kern_lanes *)(to + (i + j) * KERN_COLS) = s;
			sum[j] += s * q[i + j];
		}
	*(kern_lanes *)(a->out + (size_t)t * a->ld_out + col) = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static inline void kern_delta_rule(const struct kern_delta *a)
{
	for (int32_t col = 0; col < a->v_dim; col += 8) {
		size_t at = (size_t)(col / KERN_COLS * KERN_COLS) * (size_t)a->k_dim + (size_t)(col % KERN_COLS);

		for (int32_t t = 0; t < a->n; t++)
			kern_delta_token(a, t, col, (t ? a->to : a->from) + at, a->to + at);
	}
}

/* Elements of a value, and of a head's sum. */
static inline int32_t kern_values(const struct kern_attend *a)
{
	return a->latent ? a->latent : a->head_dim;
}

/* A row's sum over some spans: the largest score, the sum of weights relative to it, 14 floats unused,
 * and head_dim sums of weight * v. */
static inline size_t kern_part(int32_t head_dim)
{
	return 16 + (size_t)head_dim;
}

/* The first position that the query at position p reads. */
static inline int32_t kern_from(int32_t window, int32_t chunk, int32_t p)
{
	int32_t from = window > 0 && p >= window ? p - window + 1 : 0;

	return chunk > 0 && p / chunk * chunk > from ? p / chunk * chunk : from;
}

/* What a row's sums are multiplied with at the end, given its largest score and its total; a sink is one more
 * score, whose value is 0. */
static inline float kern_share(float max, float total, const float *sink)
{
	float most, by;

	if (!sink)
		return 1 / total;
	most = fmaxf(max, *sink);
	by = expf(max - most);
	return by / (total * by + expf(*sink - most));
}

/* older += part, where part is of the spans that follow.  All tables add spans by this function, from
 * the first to the last: so it does not matter which thread computed them. */
void kern_join(float *older, const float *part, int32_t head_dim);

/* What few families need, the same for all tables (plain.c).
 * layer_norm: y = (x - mean) / sqrt(variance + eps) * w + bias (or NULL).  bare_norm: x /= sqrt(mean(x^2) + eps).
 * act: out = act(gate) * up; up NULL: act(gate); limit: of SR_OAI. */
void kern_layer_norm(const float *x, const float *w, const float *bias, float eps, int32_t n, float *y);
void kern_bare_norm(float *x, float eps, int32_t n);
void kern_act(int32_t act, float limit, const float *gate, const float *up, int32_t n, float *out);

struct kern {
	const char *name;             /* "plain", "avx2", "avx512vnni", "avx512" */

	/* ---- matrices: y = x w^T ---------------------------------------------------------- */
	/* The form a type multiplies with, stored or held (types.h); -1: this type is not supported. */
	int  (*form)(int32_t type);
	/* Bytes of one column block (16 outputs, all of k), as packed. A multiple of 64. */
	size_t (*block_bytes)(int32_t type, int32_t k);
	/* Pack 16 outputs: row i of the block is src[i] (stored bytes of k weights of `type`), or NULL
	 * for a row past the end (zeros).  dst is 64-byte aligned. */
	void (*pack)(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst);
	/* Output c (0 .. 15) of a packed block as f32, the inverse of pack up to its rounding: the
	 * embedding is looked up in the same memory that a tied head multiplies with. */
	void (*unpack)(int32_t type, int32_t k, const uint8_t *block, int32_t c, float *dst);
	/* Bytes of an activation tile (KERN_TILE rows). */
	size_t (*tile_bytes)(enum kern_form form, int32_t k);
	/* Make tiles [tile0, tile1) of dst from f32 rows (row t at x + t * ld). */
	void (*make_rows)(struct kern_rows *dst, const float *x, size_t ld, int32_t tile0, int32_t tile1);
	/* y[t][c] for all rows of x and the outputs of n_blocks packed blocks, of which n_cols are
	 * real (the last block may be short).  y points at the first output, row t at y + t * ld.
	 * bias: n_cols floats, or NULL.  next: what this thread reads afterwards, to prefetch, or NULL. */
	void (*matmul)(int32_t type, int32_t k, const uint8_t *blocks, int32_t n_blocks, int32_t n_cols,
	               const struct kern_rows *x, const float *bias, float *y, size_t ld,
	               const uint8_t *next);
	/* One stored row of k weights to f32 (embedding lookup, vectors). */
	void (*dequant)(int32_t type, int32_t k, const uint8_t *src, float *dst);

	/* ---- KV and attention -------------------------------------------------------------- */
	/* Bytes of K (or of V) of one block, layer and head: KERN_BLOCK tokens of head_dim.  A multiple of
	 * 64.
	 * kv_type: enum sr_kv_type; 0 = not supported. */
	size_t (*kv_bytes)(int32_t kv_type, int32_t head_dim);
	/* Store one token's k[head_dim], v[head_dim] at place `at` (0 .. 15) of a block's K and V areas,
	 * values that are not finite as finite ones.  The pool must begin zeroed: then a masked token adds
	 * exactly 0, whatever is stored there.  v NULL: keys alone, which are values, too. */
	void (*kv_store)(int32_t kv_type, int32_t head_dim, int32_t at, const float *k, const float *v,
	                 uint8_t *k_area, uint8_t *v_area);
	size_t (*attend_scratch)(int32_t n, int32_t heads, int32_t head_dim);
	void (*attend)(int32_t kv_type, const struct kern_attend *a);

	/* ---- vectors ------------------------------------------------------------------------ */
	/* y = x / sqrt(mean(x^2) + eps) * w, n wide */
	void (*norm)(const float *x, const float *w, float eps, int32_t n, float *y);
	void (*add)(float *x, const float *z, int32_t n);                        /* x += z */
	/* rotate one head in place: cs = cos, sin interleaved for dims/2 pairs; pairs: see sr_rope */
	void (*rope)(float *head, const float *cs, int32_t dims, int32_t pairs);
	/* out = act(gate) * up; SR_SILU, SR_GELU_TANH; out may be gate */
	void (*act_mul)(int32_t act, const float *gate, const float *up, int32_t n, float *out);
	void (*delta)(const struct kern_delta *a); /* kern_delta_rule() */
	/* Over n logits: the largest, where it is first, and log(sum(exp(x - max))) + max. */
	void (*logits)(const float *x, int32_t n, float *max, int32_t *arg, double *logsum);
};

extern const struct kern kern_plain;              /* plain.c: the truth */
const struct kern *kern_avx2(void);               /* NULL: not compiled in, or the CPU lacks it */
const struct kern *kern_avx512vnni(void);         /* needs avx512f,bw,vl,dq,vnni */
const struct kern *kern_avx512(void);             /* and bf16 */
const struct kern *kern_pick(const char *name);   /* NULL = the best; NULL if there is no such */

#endif
