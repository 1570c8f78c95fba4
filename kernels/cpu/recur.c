/* recur.c - the verb of layers with a state (SR_DELTA) over one slice, on every thread of the team at once.
 * share.h and the head of ops.c say how threads divide verbs.
 *
 * A slice has a run of tokens for each of its sequences.  First the convolution, by (head, run): it replaces q, k
 * and v by what the rule needs, and a and b by decay and write.  Then, after a barrier because value heads share
 * key heads, the rule by (value head, run).
 *
 * Tokens of a run are taken one after the other.  So a state depends on its sequence's tokens alone, and not on how
 * they were cut into chunks.  The state of one head, 64 KiB for 128 x 128, stays in the cache meanwhile; the rule is
 * 4 k_dim v_dim operations for a head and token, which is below a tenth of what the layer's products are.
 *
 * A state in memory: for each layer with one, [conv - 1][channels] inputs of the convolution, the oldest first; then
 * [v_heads][v_dim / 16][k_dim][16].
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "share.h"

/* ---- where things lie ----------------------------------------------------------------------------------- */

size_t recur_layer_floats(const struct sr_delta *a)
{
	size_t past = (size_t)(a->conv - 1) * (size_t)sr_delta_channels(a);

	return (past + 15) / 16 * 16 + (size_t)a->v_heads * (size_t)a->v_dim * (size_t)a->k_dim;
}

/* The part of layer l of a state; NULL for the state of a new sequence, which is all zeros. */
static float *state_of(struct sr_backend *b, int32_t state, int l)
{
	if (state < 0)
		return NULL;
	return b->states + ((size_t)state * (size_t)b->n_state_layers + (size_t)b->kv_place[l].at) *
	       recur_layer_floats(&b->m.delta);
}

static float *matrix_of(const struct sr_delta *a, float *state, int32_t head)
{
	size_t each = (size_t)a->v_dim * (size_t)a->k_dim;

	return state + recur_layer_floats(a) - (size_t)(a->v_heads - head) * each;
}

/* A row of QKV: q, k, v, z, b, a. */
struct columns { int32_t q, k, v, z, write, decay; };

static struct columns columns_of(const struct sr_delta *a)
{
	struct columns c = { .k = a->k_heads * a->k_dim };

	c.v = 2 * c.k;
	c.z = c.v + a->v_heads * a->v_dim;
	c.write = c.z + a->v_heads * a->v_dim;
	c.decay = c.write + a->v_heads;
	return c;
}

/* ---- the convolution ------------------------------------------------------------------------------------ */

/* One token of `n` channels: x is replaced, and joins the last inputs. */
static void conv_token(const struct sr_delta *a, const float *taps, float past[][HEAD_MAX], float *x, int32_t n)
{
	const int32_t K = a->conv;
	float y[HEAD_MAX];

	for (int32_t c = 0; c < n; c++) {
		float sum = 0;

		for (int32_t j = 0; j < K - 1; j++)
			sum += taps[c * K + j] * past[j][c];
		y[c] = sum + taps[c * K + K - 1] * x[c];
	}
	for (int32_t j = 0; j + 1 < K - 1; j++)
		memcpy(past[j], past[j + 1], (size_t)n * sizeof(float));
	memcpy(past[K - 2], x, (size_t)n * sizeof(float));
	memcpy(x, y, (size_t)n * sizeof(float));
}

/* x / sqrt(x . x + 1e-6) * by */
static void unit(float *x, int32_t n, float by)
{
	by /= sqrtf(dot_of_sixteens(x, x, n) + 1e-6f);
	for (int32_t i = 0; i < n; i++)
		x[i] *= by;
}

static void put_past(const struct sr_delta *a, float *to, float past[][HEAD_MAX], int32_t n)
{
	for (int32_t j = 0; j < a->conv - 1; j++)
		memcpy(to + j * sr_delta_channels(a), past[j], (size_t)n * sizeof(float));
}

static float softplus(float x)
{
	return x > 20 ? x : log1pf(expf(x));
}

/* Head number i of q, k and v together, for one run. */
static void conv_head(struct dev *d, int l, const struct sr_delta *a, const struct recur_weights *w,
                      const struct state_run *r, int32_t i)
{
	const struct columns col = columns_of(a);
	const int32_t channels = sr_delta_channels(a), h = i - 2 * a->k_heads;     /* h: of the value heads */
	const int32_t n = h < 0 ? a->k_dim : a->v_dim, c0 = h < 0 ? i * a->k_dim : col.v + h * a->v_dim;
	const float *taps = w->conv->vec + (size_t)c0 * (size_t)a->conv, *from = state_of(d->b, r->from, l);
	float past[CONV_MAX - 1][HEAD_MAX] = { 0 }, ones[HEAD_MAX], *to = state_of(d->b, r->to, l);
	float *kept = state_of(d->b, r->keep, l);

	for (int32_t c = 0; c < n; c++)
		ones[c] = 1;
	for (int32_t j = 0; from && j < a->conv - 1; j++)
		memcpy(past[j], from + j * channels + c0, (size_t)n * sizeof(float));
	for (int32_t t = r->t; t < r->t + r->n; t++) {
		float *row = row_of(d, P_QKV, t, SOLO + 1), *x = row + c0;

		if (kept && t == r->t + r->n_keep)
			put_past(a, kept + c0, past, n);
		conv_token(a, taps, past, x, n);
		d->b->k->act_mul(SR_SILU, x, ones, n, x);
		if (h < 0) {
			unit(x, n, i < a->k_heads ? 1 / sqrtf((float)a->k_dim) : 1);
			continue;
		}
		row[col.write + h] = 1 / (1 + expf(-row[col.write + h]));
		row[col.decay + h] = expf(w->rate->vec[h] * softplus(row[col.decay + h] + w->dt->vec[h]));
	}
	put_past(a, to + c0, past, n);
	if (kept && r->n_keep == r->n)
		put_past(a, kept + c0, past, n);
}

/* ---- the rule ------------------------------------------------------------------------------------------- */

/* The first tokens leave their state in `kept`, the others go on from there. */
static void keep_inside(struct dev *d, struct kern_delta *of, float *kept, int32_t n)
{
	struct kern_delta first = *of;
	const size_t skip = (size_t)n * of->ld;

	first.n = n;
	first.to = kept;
	d->b->k->delta(&first);
	of->n -= n;
	of->from = kept;
	of->q += skip;
	of->k += skip;
	of->v += skip;
	of->decay += skip;
	of->write += skip;
	of->out += (size_t)n * of->ld_out;
	if (of->n > 0)
		d->b->k->delta(of);
	else
		memcpy(of->to, kept, (size_t)of->k_dim * (size_t)of->v_dim * sizeof(float));
}

static void delta_head(struct dev *d, int l, const struct sr_delta *a, const struct weight *norm, float eps,
                       const struct state_run *r, int32_t h)
{
	const struct columns col = columns_of(a);
	const int32_t g = a->tiled ? h % a->k_heads : h / (a->v_heads / a->k_heads), n = a->v_dim;
	const float *row = row_of(d, P_QKV, r->t, SOLO + 1);
	float *from = state_of(d->b, r->from, l), *to = matrix_of(a, state_of(d->b, r->to, l), h);
	struct kern_delta of = {
		.n = r->n, .k_dim = a->k_dim, .v_dim = n, .ld = (size_t)d->b->shape.width[P_QKV],
		.ld_out = (size_t)d->b->shape.width[P_A],
		.q = row + g * a->k_dim, .k = row + col.k + g * a->k_dim, .v = row + col.v + h * n,
		.decay = row + col.decay + h, .write = row + col.write + h,
		.out = row_of(d, P_A, r->t, SOLO + 1) + h * n, .from = from ? matrix_of(a, from, h) : to, .to = to,
	};
	float *const out0 = of.out;

	if (!from)
		memset(to, 0, (size_t)n * (size_t)a->k_dim * sizeof(float));
	if (r->keep >= 0)
		keep_inside(d, &of, matrix_of(a, state_of(d->b, r->keep, l), h), r->n_keep);
	else
		d->b->k->delta(&of);
	for (int32_t t = 0; t < r->n; t++) {
		float *out = out0 + (size_t)t * of.ld_out, y[HEAD_MAX];

		d->b->k->norm(out, norm->vec, eps, n, y);
		d->b->k->act_mul(SR_SILU, row + (size_t)t * of.ld + col.z + h * n, y, n, out);
	}
}

void recur(struct dev *d, int l, const struct sr_delta *a, const struct recur_weights *w, float eps, int T)
{
	const struct slice *s = d->b->slice;
	struct range r = deal((2 * a->k_heads + a->v_heads) * s->n_runs, d);

	(void)T;
	enter(d, bit(P_QKV), 0);
	for (int32_t i = r.from; i < r.to; i++) {       /* heads outermost: threads have parts of all runs */
		conv_head(d, l, a, w, &s->run[i % s->n_runs], i / s->n_runs);
		ops_breathe(d);
	}
	d->writes |= bit(P_QKV);
	enter(d, bit(P_QKV), bit(P_A));
	r = deal(a->v_heads * s->n_runs, d);
	for (int32_t i = r.from; i < r.to; i++) {
		delta_head(d, l, a, w->norm, eps, &s->run[i % s->n_runs], i / s->n_runs);
		ops_breathe(d);
	}
}

/* ---- attention's gate ----------------------------------------------------------------------------------- */

void attend_gate(struct dev *d, const struct sr_attn *kind, int T)
{
	const int32_t n = kind->n_heads * kind->head_dim, at = n + 2 * kind->n_kv_heads * kind->head_dim;
	struct range r = deal(n / KERN_COLS, d);

	enter(d, bit(P_QKV) | bit(P_A), bit(P_A));
	for (int32_t t = 0; t < T; t++) {
		const float *gate = row_of(d, P_QKV, t, SOLO + 1) + at;
		float *out = row_of(d, P_A, t, SOLO + 1);

		for (int32_t i = r.from * KERN_COLS; i < r.to * KERN_COLS; i++)
			out[i] *= 1 / (1 + expf(-gate[i]));
	}
}
