/* plain.c - every inner loop in plain C: the truth to which tests hold the other tables, most of them to the bit.
 *
 * Where vectors add lanes, so does plain C: a sum over a vector is kept in sixteen lanes, element i in lane i % 16, and
 * lanes are added as a tree.  fmaf() stands where vectors have fma, and nowhere else.
 *
 * Matrices are kept as stored, row by row, and are read through types.h.  Quantized weights
 * multiply with activations quantized to int8 in groups of 32, as in the fast tables.  Their
 * integer sums are exact, and the float steps are the same in the same order.  Only the scales of
 * K-quants and IQ4_XS are not rounded to f16 here.  The other types multiply with f32.
 *
 * Activations of one tile: FORM_F32 [8][k] floats; FORM_I8 [8] of int8 q[k], float scale[k/32],
 * float scale * sum[k/32].
 */
#include <assert.h>
#include <math.h>

#include "kern.h"
#include "kvblock.h"
#include "types.h"

static size_t align64(size_t n)
{
	return (n + 63) & ~(size_t)63;
}

/* ---- what vectors compute, one element at a time -------------------------------------------- */

#define LANES 16

/* Lanes i and i + 8, then i and i + 4, 2, 1. */
static float sum_of_lanes(float *lane)
{
	for (int half = LANES / 2; half; half /= 2)
		for (int i = 0; i < half; i++)
			lane[i] += lane[i + half];
	return lane[0];
}

/* exp(x) to 2 ulp: see exp256() in isa/avx2.h. */
static float plain_exp(float x)
{
	float n, r, p;

	if (x != x)
		return x;
	x = x < -87.3f ? -87.3f : x > 88 ? 88 : x;
	n = rintf(x * 1.44269504f);
	r = fmaf(-n, 0.693359375f, x);
	r = fmaf(-n, -2.12194440e-4f, r);
	p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
	p = fmaf(p, r, 8.3334519073e-3f);
	p = fmaf(p, r, 4.1665795894e-2f);
	p = fmaf(p, r, 1.6666665459e-1f);
	p = fmaf(p, r, 5.0000001201e-1f);
	p = fmaf(r * r, p, r + 1);
	return p * f32_of_bits((uint32_t)((int32_t)n + 127) << 23);
}

static float plain_tanh(float x)
{
	return 1 - 2 / (plain_exp(x + x) + 1);
}

/* ---- matrices ------------------------------------------------------------------------------- */

static int form(int32_t type)
{
	if (types_quantized(type))
		return FORM_I8;
	return types_bytes(type, types_piece(type) ? types_piece(type) : GROUP) ? FORM_F32 : -1;
}

static size_t block_bytes(int32_t type, int32_t k)
{
	return align64(KERN_COLS * types_bytes(type, k));
}

static void pack(int32_t type, int32_t k, const uint8_t *const src[KERN_COLS], uint8_t *dst)
{
	size_t bytes = types_bytes(type, k);

	for (int c = 0; c < KERN_COLS; c++) {
		if (src[c])
			memcpy(dst + (size_t)c * bytes, src[c], bytes);
		else
			memset(dst + (size_t)c * bytes, 0, bytes);
	}
}

static void unpack(int32_t type, int32_t k, const uint8_t *block, int32_t c, float *dst)
{
	types_dequant(type, k, block + (size_t)c * types_bytes(type, k), dst);
}

static size_t row_bytes(enum kern_form f, int32_t k)
{
	return f == FORM_F32 ? (size_t)k * 4 : (size_t)k + (size_t)(k / GROUP) * 8;
}

static size_t tile_bytes(enum kern_form f, int32_t k)
{
	return align64(KERN_TILE * row_bytes(f, k));
}

/* One row as int8: the largest magnitude of a group becomes 127. */
static void quantize(int32_t k, const float *x, uint8_t *row)
{
	int8_t *q = (int8_t *)row;
	float *scale = (float *)(void *)(row + k), *scaled_sum = scale + k / GROUP;

	for (int32_t g = 0; g < k / GROUP; g++, x += GROUP, q += GROUP) {
		uint32_t most = 0;
		int32_t sum = 0;
		float by;

		for (int i = 0; i < GROUP; i++)
			most = bits_of_f32(fabsf(x[i])) > most ? bits_of_f32(fabsf(x[i])) : most;
		by = types_scale(most, &scale[g]);
		for (int i = 0; i < GROUP; i++) {
			q[i] = by > 0 ? (int8_t)rintf(x[i] * by) : 0;
			sum += q[i];
		}
		scaled_sum[g] = scale[g] * (float)sum;
	}
}

static void make_rows(struct kern_rows *dst, const float *x, size_t ld, int32_t tile0, int32_t tile1)
{
	size_t bytes = row_bytes(dst->form, dst->k);

	for (int32_t t = tile0 * KERN_TILE; t < tile1 * KERN_TILE && t < dst->rows; t++) {
		uint8_t *row = dst->data + (size_t)(t / KERN_TILE) * dst->tile_bytes +
		               (size_t)(t % KERN_TILE) * bytes;

		if (dst->form == FORM_F32)
			memcpy(row, x + (size_t)t * ld, bytes);
		else
			quantize(dst->k, x + (size_t)t * ld, row);
	}
}

/* acc plus the products of one group of weights. */
static float add_i8(float acc, const struct group *w, bool halves, int32_t g, int32_t k, const uint8_t *row)
{
	const int8_t *q = (const int8_t *)row + g * GROUP;
	const float *scale = (const float *)(const void *)(row + k), *scaled_sum = scale + k / GROUP;
	int part = halves ? GROUP / 2 : GROUP;

	for (int h = 0; h < GROUP / part; h++) {
		int32_t sum = 0, all = 0;

		for (int i = h * part; i < (h + 1) * part; i++) {
			sum += w->q[i] * q[i];
			all += q[i];
		}
		acc = fmaf((float)sum, w->d[h] * scale[g], acc);
		if (halves && w->m[h] != 0)
			acc = fmaf(w->m[h], scale[g] * (float)all, acc);
	}
	return !halves && w->m[0] != 0 ? fmaf(w->m[0], scaled_sum[g], acc) : acc;
}

static float add_f32(float acc, const float *w, int32_t g, const uint8_t *row)
{
	const float *x = (const float *)(const void *)row + (size_t)g * GROUP;

	for (int i = 0; i < GROUP; i++)
		acc = fmaf(w[i], x[i], acc);
	return acc;
}

/* One output, all rows; y holds the running sums. */
static void column(int32_t type, int32_t k, const uint8_t *w, const struct kern_rows *x, float *y, size_t ld)
{
	size_t bytes = row_bytes(x->form, k);

	for (int32_t t = 0; t < x->rows; t++)
		y[(size_t)t * ld] = 0;
	for (int32_t g = 0; g < k / GROUP; g++) {
		struct group quant;
		float plain[GROUP];

		if (x->form == FORM_I8)
			types_group(type, w, g, &quant);
		else
			types_dequant_group(type, w, g * GROUP, x->index, plain);
		for (int32_t t = 0; t < x->rows; t++) {
			const uint8_t *row = x->data + (size_t)(t / KERN_TILE) * x->tile_bytes +
			                     (size_t)(t % KERN_TILE) * bytes;
			float *acc = y + (size_t)t * ld;

			*acc = x->form == FORM_I8 ? add_i8(*acc, &quant, types_halves(type), g, k, row)
			                          : add_f32(*acc, plain, g, row);
		}
	}
}

static void matmul(int32_t type, int32_t k, const uint8_t *blocks, int32_t n_blocks, int32_t n_cols,
                   const struct kern_rows *x, const float *bias, float *y, size_t ld, const uint8_t *next)
{
	size_t bytes = types_bytes(type, k), block = block_bytes(type, k);

	(void)next;
	assert(n_cols <= n_blocks * KERN_COLS);
	for (int32_t c = 0; c < n_cols; c++) {
		column(type, k, blocks + (size_t)(c / KERN_COLS) * block + (size_t)(c % KERN_COLS) * bytes,
		       x, y + c, ld);
		for (int32_t t = 0; bias && t < x->rows; t++)
			y[(size_t)t * ld + (size_t)c] += bias[c];
	}
}

/* ---- attention ------------------------------------------------------------------------------ */

static size_t attend_scratch(int32_t n, int32_t heads, int32_t E)
{
	(void)n;
	(void)heads;
	return 2 * kern_part(E);
}

static const uint8_t *block_of(const struct kern_attend *a, int32_t position, size_t offset)
{
	return a->kv + (size_t)a->table[position / KERN_BLOCK] * a->block_stride + offset;
}

/* A query of one head: as it is, and for int8 keys as 16-bit integers. */
struct query { const float *q; int16_t whole[512]; float scale; };

/* A query that is not finite gets a scale of NaN, and so a result of NaN. */
static struct query query_of(int32_t kv_type, const float *q, int32_t E)
{
	struct query x = { .q = q };
	uint32_t most = 0;
	float largest, by;

	if (kv_type != SR_KV_I8)
		return x;
	for (int32_t e = 0; e < E; e++)
		most = bits_of_f32(fabsf(q[e])) > most ? bits_of_f32(fabsf(q[e])) : most;
	largest = f32_of_bits(most);
	x.scale = largest < 3.4e38f ? largest / KV_MOST : NAN;
	by = largest > 1e-30f && largest < 3.4e38f ? KV_MOST / largest : 0;
	for (int32_t e = 0; e < E && by > 0; e++)
		x.whole[e] = (int16_t)fminf(rintf(q[e] * by), KV_MOST);
	return x;
}

static float score(int32_t kv_type, const struct kern_attend *a, const struct query *x, int32_t position)
{
	const uint8_t *k = block_of(a, position, a->k_off);
	const int8_t *whole = (const int8_t *)k + KV_SCALES;
	int32_t token = position % KERN_BLOCK, sum = 0;
	float s = 0;

	if (kv_type == SR_KV_I8) {
		for (int32_t e = 0; e < a->head_dim; e++)
			sum += x->whole[e] * whole[kv_k_at(e, token)];
		s = (float)sum * (x->scale * kv_scale(k, token));
	}
	for (int32_t e = 0; kv_type != SR_KV_I8 && e < a->head_dim; e++)
		s = fmaf(x->q[e], kv_value(kv_type, k, kv_k_at(e, token), token), s);
	s *= a->scale;
	return a->cap > 0 ? a->cap * plain_tanh(s / a->cap) : s;
}

/* sum = sum * shrink + the weighed values of positions [first, last] of a unit. */
static void values(int32_t kv_type, const struct kern_attend *a, const float *weight, int32_t first, int32_t last,
                   float shrink, float *sum)
{
	const int32_t Ev = kern_values(a);

	for (int32_t e = 0; e < Ev; e++)
		sum[e] *= shrink;
	for (int32_t p = first; p <= last; p++) {
		const uint8_t *v = block_of(a, p, a->v_off);
		int32_t token = p % KERN_BLOCK;

		for (int32_t e = 0; e < Ev; e++)
			sum[e] = fmaf(weight[p - first], kv_value(kv_type, v, a->latent ? kv_k_at(e, token)
			              : kv_v_at(Ev, e, token), token), sum[e]);
	}
}

/* The same of int8 ones: weights times the scales of V become 16-bit integers, relative to the largest. */
static void values_i8(const struct kern_attend *a, const float *weight, int32_t first, int32_t last, float shrink,
                      float *sum)
{
	const int32_t Ev = kern_values(a);
	float scaled[UNIT], most = 0, scale, by;
	int32_t whole[UNIT];

	for (int32_t p = first; p <= last; p++) {
		scaled[p - first] = weight[p - first] * kv_scale(block_of(a, p, a->v_off), p % KERN_BLOCK);
		most = scaled[p - first] > most ? scaled[p - first] : most;
	}
	scale = most / KV_MOST;
	by = scale > 1e-34f ? 1 / scale : 0;
	for (int32_t p = first; p <= last; p++)
		whole[p - first] = by > 0 ? (int32_t)fminf(rintf(scaled[p - first] * by), KV_MOST) : 0;
	for (int32_t e = 0; e < Ev; e++) {
		int32_t all = 0;

		for (int32_t p = first; p <= last; p++)
			all += whole[p - first] * ((const int8_t *)block_of(a, p, a->v_off) + KV_SCALES)
				[kv_v_at(Ev, e, p % KERN_BLOCK)];
		sum[e] = fmaf(scale, (float)all, sum[e] * shrink);
	}
}

/* One query head over positions [from, to] of one span: a running softmax, a unit of tokens at a time. */
static void attend_span(int32_t kv_type, const struct kern_attend *a, const float *q, int32_t from, int32_t to,
                        float *part)
{
	const struct query x = query_of(kv_type, q, a->head_dim);
	float max = -1e30f, total[LANES] = { 0 }, *sum = part + 16; /* finite: less itself it is 0 */

	for (int32_t e = 0; e < kern_values(a); e++)
		sum[e] = 0;
	for (int32_t base = from / UNIT * UNIT; base <= to; base += UNIT) {
		int32_t first = base > from ? base : from, last = base + UNIT - 1 < to ? base + UNIT - 1 : to;
		float weight[UNIT], before = max, shrink;

		for (int32_t p = first; p <= last; p++) {
			weight[p - first] = score(kv_type, a, &x, p);
			max = weight[p - first] > max ? weight[p - first] : max;
		}
		shrink = plain_exp(before - max);
		for (int i = 0; i < LANES; i++)
			total[i] *= shrink;
		for (int32_t p = first; p <= last; p++) {
			weight[p - first] = plain_exp(weight[p - first] - max);
			total[p % LANES] += weight[p - first];
		}
		if (kv_type == SR_KV_I8)
			values_i8(a, weight, first, last, shrink, sum);
		else
			values(kv_type, a, weight, first, last, shrink, sum);
	}
	part[0] = max;
	part[1] = sum_of_lanes(total);
}

/* One query head over positions [from, to], span by span. */
static void attend_one(int32_t kv_type, const struct kern_attend *a, const float *q, int32_t from, int32_t to,
                       const float *sink, float *out)
{
	const int32_t Ev = kern_values(a);
	float *sum = a->scratch, *part = a->scratch + kern_part(Ev);

	for (int32_t base = from / KERN_SPAN * KERN_SPAN; base <= to; base += KERN_SPAN) {
		int32_t last = to - base < KERN_SPAN ? to : base + KERN_SPAN - 1;

		attend_span(kv_type, a, q, base > from ? base : from, last, base > from ? part : sum);
		if (base > from)
			kern_join(sum, part, Ev);
	}
	for (int32_t e = 0; e < Ev; e++)
		out[e] = sum[16 + e] * kern_share(sum[0], sum[1], sink);
}

static void attend(int32_t kv_type, const struct kern_attend *a)
{
	assert(kvblock_bytes(kv_type, a->head_dim));
	for (int32_t t = 0; t < a->n; t++) {
		int32_t to = a->first + t, from = kern_from(a->window, a->chunk, to);
		int32_t begin = a->span * KERN_SPAN, end = begin + KERN_SPAN - 1;

		for (int32_t h = 0; h < a->heads; h++) {
			const float *q = a->q + (size_t)t * a->ld_q + (size_t)h * (size_t)a->head_dim;

			if (a->part)
				attend_span(kv_type, a, q, from > begin ? from : begin, to < end ? to : end,
				            a->part + (size_t)(t * a->heads + h) * a->ld_part);
			else
				attend_one(kv_type, a, q, from, to, a->sink ? a->sink + h : NULL,
				           a->out + (size_t)t * a->ld_out + (size_t)h * (size_t)kern_values(a));
		}
	}
}

/* ---- vectors -------------------------------------------------------------------------------- */

static void norm(const float *x, const float *w, float eps, int32_t n, float *y)
{
	float squares[LANES] = { 0 }, scale;

	for (int32_t i = 0; i < n; i++)
		squares[i % LANES] = fmaf(x[i], x[i], squares[i % LANES]);
	scale = 1 / sqrtf(sum_of_lanes(squares) / (float)n + eps);
	for (int32_t i = 0; i < n; i++)
		y[i] = x[i] * scale * w[i];
}

void kern_layer_norm(const float *x, const float *w, const float *bias, float eps, int32_t n, float *y)
{
	double sum = 0, squares = 0, mean;
	float scale;

	for (int32_t i = 0; i < n; i++)
		sum += (double)x[i];
	mean = sum / n;
	for (int32_t i = 0; i < n; i++)
		squares += ((double)x[i] - mean) * ((double)x[i] - mean);
	scale = (float)(1 / sqrt(squares / n + (double)eps));
	for (int32_t i = 0; i < n; i++)
		y[i] = (float)((double)x[i] - mean) * scale * w[i] + (bias ? bias[i] : 0);
}

void kern_bare_norm(float *x, float eps, int32_t n)
{
	double squares = 0;
	float scale;

	for (int32_t i = 0; i < n; i++)
		squares += (double)x[i] * (double)x[i];
	scale = (float)(1 / sqrt(squares / n + (double)eps));
	for (int32_t i = 0; i < n; i++)
		x[i] *= scale;
}

static float act_of(int32_t act, float x)
{
	switch ((enum sr_act)act) {
	case SR_SILU:
		return x / (1 + expf(-x));
	case SR_GELU_TANH:
		return x / (1 + expf(-1.59576912f * (x + 0.044715f * x * x * x)));
	case SR_GELU_ERF:
		return x / 2 * (1 + erff(x * 0.70710678f));
	case SR_RELU2:
		return x > 0 ? x * x : 0;
	case SR_OAI:
		break;
	}
	return x / (1 + expf(-1.702f * x));
}

void kern_act(int32_t act, float limit, const float *gate, const float *up, int32_t n, float *out)
{
	for (int32_t i = 0; i < n; i++) {
		float g = gate[i], u = up ? up[i] : 1;

		if (act == SR_OAI && limit > 0) {
			g = g > limit ? limit : g;
			u = u > limit ? limit : u < -limit ? -limit : u;
		}
		out[i] = act_of(act, g) * (act == SR_OAI ? u + 1 : u);
	}
}

static void add(float *x, const float *z, int32_t n)
{
	for (int32_t i = 0; i < n; i++)
		x[i] += z[i];
}

static void rope(float *head, const float *cs, int32_t dims, int32_t pairs)
{
	for (int32_t i = 0; i < dims / 2; i++) {
		float *a = head + (pairs ? 2 * i : i), *b = head + (pairs ? 2 * i + 1 : i + dims / 2);
		float x = *a, y = *b, c = cs[2 * i], s = cs[2 * i + 1];

		*a = fmaf(x, c, -(y * s));
		*b = fmaf(y, c, x * s);
	}
}

static void act_mul(int32_t act, const float *gate, const float *up, int32_t n, float *out)
{
	for (int32_t i = 0; i < n; i++) {
		float x = gate[i];

		/* gelu's tanh form is x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) */
		if (act == SR_SILU)
			x = x / (1 + plain_exp(0 - x));
		else
			x = x / (1 + plain_exp(0 - 1.59576912f * (x + x * x * (x * 0.044715f))));
		out[i] = x * up[i];
	}
}

static void logits(const float *x, int32_t n, float *max, int32_t *arg, double *logsum)
{
	double sum[LANES] = { 0 };

	*arg = 0;
	*max = -INFINITY;
	for (int32_t i = 0; i < n; i++)
		if (x[i] > *max)
			*max = x[*arg = i];
	for (int32_t i = 0; i < n; i++)
		sum[i % LANES] += (double)plain_exp(x[i] - *max);
	for (int half = LANES / 2; half; half /= 2)
		for (int i = 0; i < half; i++)
			sum[i] += sum[i + half];
	*logsum = log(sum[0]) + (double)*max;
}

static void delta(const struct kern_delta *a)
{
	kern_delta_rule(a);
}

const struct kern kern_plain = {
	.name = "plain",
	.form = form,
	.block_bytes = block_bytes,
	.pack = pack,
	.unpack = unpack,
	.tile_bytes = tile_bytes,
	.make_rows = make_rows,
	.matmul = matmul,
	.dequant = types_dequant,
	.kv_bytes = kvblock_bytes,
	.kv_store = kvblock_store,
	.attend_scratch = attend_scratch,
	.attend = attend,
	.norm = norm,
	.add = add,
	.rope = rope,
	.act_mul = act_mul,
	.delta = delta,
	.logits = logits,
};
