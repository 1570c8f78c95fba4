/* calibrate.c - see calibrate.h. */
#include "calibrate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/kern.h"

#define QUERIES 16                 /* the most queries of one call of attend */

struct calibrate {
	const struct kern *k;
	const struct sr_model *m;
	int32_t n_tokens;
	size_t  half, qkv_width;       /* bytes of K of a block and head; floats of a row of qkv */
	float  *qkv, *a, *y, *z, *gu, *act, *angle, *scratch, *head;
	uint8_t *kv, *tiles, *block;
	int32_t *table;
};

static void *room(size_t bytes)
{
	return aligned_alloc(64, (bytes + 63) & ~(size_t)63);
}

static size_t most(size_t a, size_t b)
{
	return a > b ? a : b;
}

int calibrate_create(struct calibrate **out, const struct sr_model *m, int32_t T)
{
	struct calibrate *c = calloc(1, sizeof(*c));
	const struct sr_attn *kind = &m->kind[0];   /* its sizes are those of all layers */
	size_t t = (size_t)T, D = (size_t)m->d_model, F = (size_t)m->d_ff, E = (size_t)kind->head_dim;
	size_t A = (size_t)kind->n_heads * E;
	size_t widest = most(most(D, F), A), blocks = (t + KERN_BLOCK - 1) / KERN_BLOCK;

	*out = c;
	if (!c)
		return -ENOMEM;
	c->k = kern_pick(NULL);
	c->m = m;
	c->n_tokens = T;
	c->half = c->k->kv_bytes(SR_KV_BF16, kind->head_dim);
	c->qkv_width = (size_t)(kind->n_heads + 2 * kind->n_kv_heads) * E;
	c->qkv = room(t * c->qkv_width * 4);
	c->a = room(t * A * 4);
	c->y = room(t * D * 4);
	c->z = room(t * D * 4);
	c->gu = room(t * 2 * F * 4);
	c->act = room(t * F * 4);
	c->angle = room(t * E * 4);
	c->head = room(E * 4);
	c->scratch = room(c->k->attend_scratch(QUERIES, kind->n_heads / kind->n_kv_heads, kind->head_dim) * 4);
	c->kv = room(blocks * (size_t)kind->n_kv_heads * 2 * c->half);
	c->tiles = room((t + KERN_TILE - 1) / KERN_TILE * c->k->tile_bytes(FORM_F32, (int32_t)widest));
	c->block = room(c->k->block_bytes(SR_F32, (int32_t)widest));
	c->table = room(blocks * sizeof(*c->table));
	if (!c->qkv || !c->a || !c->y || !c->z || !c->gu || !c->act || !c->angle || !c->head || !c->scratch ||
	    !c->kv || !c->tiles || !c->block || !c->table) {
		calibrate_destroy(c);
		*out = NULL;
		return -ENOMEM;
	}
	for (size_t i = 0; i < blocks; i++)
		c->table[i] = (int32_t)i;
	return 0;
}

void calibrate_destroy(struct calibrate *c)
{
	if (!c)
		return;
	free(c->qkv);
	free(c->a);
	free(c->y);
	free(c->z);
	free(c->gu);
	free(c->act);
	free(c->angle);
	free(c->head);
	free(c->scratch);
	free(c->kv);
	free(c->tiles);
	free(c->block);
	free(c->table);
	free(c);
}

/* y[rows][n] = x[rows][k] w^T + bias, rows of x and y `ld` apart. */
static void multiply_matrix(struct calibrate *c, const struct matrix *w, const float *bias, const float *x,
                            int32_t rows, float *y, size_t ld)
{
	struct kern_rows in = { .form = FORM_F32, .k = w->k, .rows = rows, .data = c->tiles,
	                        .tile_bytes = c->k->tile_bytes(FORM_F32, w->k) };

	c->k->make_rows(&in, x, (size_t)w->k, 0, (rows + KERN_TILE - 1) / KERN_TILE);
	for (int32_t i = 0; i < w->n; i += KERN_COLS) {
		int32_t n = w->n - i < KERN_COLS ? w->n - i : KERN_COLS;
		const uint8_t *src[KERN_COLS] = { NULL };

		for (int32_t j = 0; j < n; j++)
			src[j] = (const uint8_t *)(w->w + (size_t)(i + j) * (size_t)w->k);
		c->k->pack(SR_F32, w->k, src, c->block);
		c->k->matmul(SR_F32, w->k, c->block, 1, n, &in, bias ? bias + i : NULL, y + i, ld, NULL);
	}
}

static void see(struct moments *in, const float *x, int32_t T)
{
	for (int32_t t = 0; t < T; t++)
		for (int32_t j = 0; j < in->k; j++) {
			double v = (double)x[(size_t)t * (size_t)in->k + (size_t)j];

			in->size[j] += fabs(v);
			in->square[j] += v * v;
		}
	in->rows += T;
}

void calibrate_norm(struct calibrate *c, const float *w, const float *x, float *y)
{
	size_t D = (size_t)c->m->d_model;

	for (size_t t = 0; t < (size_t)c->n_tokens; t++)
		c->k->norm(x + t * D, w, c->m->eps, c->m->d_model, y + t * D);
}

/* ---- attention ------------------------------------------------------------------------------ */

static void make_angles(struct calibrate *c, const struct sr_rope *r)
{
	float freq[512], size = r->kind == SR_ROPE_YARN ? r->magnitude : 1;

	sr_rope_freq(r, freq);
	for (int32_t t = 0; t < c->n_tokens; t++)
		for (int32_t i = 0; i < r->dims / 2; i++) {
			float *cs = c->angle + (size_t)t * (size_t)r->dims + 2 * i;

			cs[0] = size * (float)cos(t * (double)freq[i]);
			cs[1] = size * (float)sin(t * (double)freq[i]);
		}
}

static void rotate(struct calibrate *c, const struct sr_attn *kind, const float *norm, int32_t t, float *head)
{
	const struct sr_rope *r = &kind->rope;

	if (norm) {
		c->k->norm(head, norm, c->m->eps, kind->head_dim, c->head);
		memcpy(head, c->head, (size_t)kind->head_dim * sizeof(float));
	}
	c->k->rope(head, c->angle + (size_t)t * (size_t)r->dims, r->dims, r->pairs);
}

static void attention(struct calibrate *c, int32_t l, const struct layer *w)
{
	const struct sr_attn *kind = kind_of(c->m, l);
	int32_t H = kind->n_heads, G = kind->n_kv_heads, heads = H / G;
	size_t E = (size_t)kind->head_dim, stride = (size_t)G * 2 * c->half;

	make_angles(c, &kind->rope);
	memset(c->kv, 0, (size_t)(c->n_tokens + KERN_BLOCK - 1) / KERN_BLOCK * stride);
	for (int32_t t = 0; t < c->n_tokens; t++) {
		float *q = c->qkv + (size_t)t * c->qkv_width;

		for (int32_t h = 0; h < H + G; h++)
			rotate(c, kind, h < H ? w->q_norm : w->k_norm, t, q + (size_t)h * E);
		for (int32_t g = 0; g < G; g++) {
			float *k = q + (size_t)(H + g) * E;
			uint8_t *to = c->kv + (size_t)(t / KERN_BLOCK) * stride + (size_t)g * 2 * c->half;

			c->k->kv_store(SR_KV_BF16, kind->head_dim, t % KERN_BLOCK, k, k + (size_t)G * E, to,
			               to + c->half);
		}
	}
	for (int32_t t = 0; t < c->n_tokens; t += QUERIES)
		for (int32_t g = 0; g < G; g++) {
			size_t head = (size_t)(g * heads) * E;
			struct kern_attend a = {
				.q = c->qkv + (size_t)t * c->qkv_width + head, .ld_q = c->qkv_width,
				.out = c->a + (size_t)t * (size_t)H * E + head, .ld_out = (size_t)H * E,
				.n = c->n_tokens - t < QUERIES ? c->n_tokens - t : QUERIES, .heads = heads,
				.head_dim = kind->head_dim, .first = t, .window = kind->window, .scale = kind->scale,
				.cap = kind->cap, .table = c->table, .kv = c->kv, .block_stride = stride,
				.k_off = (size_t)g * 2 * c->half, .v_off = (size_t)(2 * g + 1) * c->half,
				.scratch = c->scratch,
			};

			c->k->attend(SR_KV_BF16, &a);
		}
}

/* ---- a layer -------------------------------------------------------------------------------- */

void calibrate_layer(struct calibrate *c, int32_t l, const struct layer *w, float *x, struct moments *in)
{
	const struct sr_model *m = c->m;
	const struct matrix *p = w->m;
	size_t D = (size_t)m->d_model, F = (size_t)m->d_ff;

	calibrate_norm(c, w->norm1, x, c->y);
	multiply_matrix(c, &p[M_Q], w->q_bias, c->y, c->n_tokens, c->qkv, c->qkv_width);
	multiply_matrix(c, &p[M_K], w->k_bias, c->y, c->n_tokens, c->qkv + p[M_Q].n, c->qkv_width);
	multiply_matrix(c, &p[M_V], w->v_bias, c->y, c->n_tokens, c->qkv + p[M_Q].n + p[M_K].n, c->qkv_width);
	if (in)
		see(&in[IN_QKV], c->y, c->n_tokens / 2);
	attention(c, l, w);
	if (in)
		see(&in[IN_O], c->a, c->n_tokens / 2);
	multiply_matrix(c, &p[M_O], w->o_bias, c->a, c->n_tokens, c->z, D);
	c->k->add(x, c->z, (int32_t)((size_t)c->n_tokens * D));
	calibrate_norm(c, w->norm2, x, c->y);
	if (in)
		see(&in[IN_MLP], c->y, c->n_tokens / 2);
	multiply_matrix(c, &p[M_GATE], NULL, c->y, c->n_tokens, c->gu, 2 * F);
	multiply_matrix(c, &p[M_UP], NULL, c->y, c->n_tokens, c->gu + F, 2 * F);
	for (size_t t = 0; t < (size_t)c->n_tokens; t++)
		c->k->act_mul(m->act, c->gu + 2 * t * F, c->gu + (2 * t + 1) * F, m->d_ff, c->act + t * F);
	if (in)
		see(&in[IN_DOWN], c->act, c->n_tokens / 2);
	multiply_matrix(c, &p[M_DOWN], NULL, c->act, c->n_tokens, c->z, D);
	c->k->add(x, c->z, (int32_t)((size_t)c->n_tokens * D));
}

void calibrate_head(struct calibrate *c, const struct matrix *head, int32_t first, const float *x,
                    int32_t from, const int32_t *id, double *sum, double *hit)
{
	size_t D = (size_t)c->m->d_model, n = (size_t)head->n, wide = 2 * (size_t)c->m->d_ff;
	int32_t step = (int32_t)(n > wide * (size_t)c->n_tokens ? 1 : wide * (size_t)c->n_tokens / n);

	for (int32_t t0 = from; t0 < c->n_tokens - 1; t0 += step) {     /* logits use the memory of gate and up */
		int32_t rows = c->n_tokens - 1 - t0 < step ? c->n_tokens - 1 - t0 : step;

		multiply_matrix(c, head, NULL, x + (size_t)t0 * D, rows, c->gu, n);
		for (int32_t t = t0; t < t0 + rows; t++) {
			float *logit = c->gu + (size_t)(t - t0) * n, top;
			int32_t arg, target = id[t + 1] - first;
			double part, low, high;

			c->k->logits(logit, head->n, &top, &arg, &part);
			low = fmin(part, sum[t]);
			high = fmax(part, sum[t]);
			sum[t] = high + log1p(exp(low - high));
			if (target >= 0 && target < head->n)
				hit[t] = (double)logit[target];
		}
	}
}
