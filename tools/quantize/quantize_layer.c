/* quantize_layer.c - one layer of a model that is being quantized: reads it as floats, searches its scales
 * by a text, rounds it and writes it.  See quantize_impl.h.
 *
 * Scales  what makes the inputs of some matrices is divided by s, and their columns are multiplied by it:
 *
 *	norm1     of q, k, v, a gate, latent queries and keys; with parallel parts of gate and up, too
 *	v         of o: heads that read the same values share s
 *	norm2     of gate and up of all experts; and of the router and shared_mix, which keep their 16 bits
 *	up        of down, of each expert by itself
 *
 * A layer without the norm (OLMo 2), or whose inputs come from elsewhere, is rounded without them.
 * Experts are read, rounded and written one at a time.
 */
#include "quantize_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/types.h"

#define SAMPLED     16             /* experts whose rows stand for all in a search of norm2's scales .. */
#define SAMPLE_ROWS 16             /* .. and rows of each of their gate and up */
#define READERS     8              /* most matrices with the same inputs, without experts */

int quantize_no_memory(struct quantize *z)
{
	return quantize_fail(z, -ENOMEM, "no memory");
}

/* ---- reading -------------------------------------------------------------------------------- */

static int read_at(struct quantize *z, int32_t file, uint64_t from, void *to, size_t n)
{
	ssize_t r = pread(z->file[file], to, n, (off_t)from);

	if (r == (ssize_t)n)
		return 0;
	return quantize_fail(z, -EIO, "%s: offset %llu: %s", z->md->file[file], (unsigned long long)from,
	                     r < 0 ? strerror(errno) : "the file ends here");
}

/* Read rows of a tensor as floats. */
int quantize_rows(struct quantize *z, const struct sr_tensor *t, int32_t row, int32_t n, float *to)
{
	size_t bytes = types_bytes(t->type, t->k), step = (1u << 20) / bytes + 1;
	uint8_t *buffer = malloc(step * bytes);
	int rc = buffer ? 0 : quantize_no_memory(z);

	for (size_t i = 0, count; i < (size_t)n && !rc; i += count) {
		count = (size_t)n - i < step ? (size_t)n - i : step;
		rc = read_at(z, t->data.file, t->data.offset + ((uint64_t)row + i) * bytes, buffer, count * bytes);
		for (size_t j = 0; j < count && !rc; j++)
			types_dequant(t->type, t->k, buffer + j * bytes, to + (i + j) * (size_t)t->k);
	}
	free(buffer);
	return rc;
}

static int write_part(struct quantize *z, int to, uint64_t at, const void *p, size_t n)
{
	int rc = tensors_out_write(z->out, to, at, p, n);

	return rc ? quantize_fail(z, rc, "%s/model.safetensors: %s", z->dir, strerror(-rc)) : 0;
}

static int copy_bytes(struct quantize *z, int32_t file, uint64_t from, uint64_t bytes, int to)
{
	size_t step = bytes < 1u << 20 ? (size_t)bytes + 1 : 1u << 20;
	void *buffer = malloc(step);
	int rc = buffer ? 0 : quantize_no_memory(z);

	for (uint64_t at = 0; at < bytes && !rc; at += step) {
		size_t n = bytes - at < step ? (size_t)(bytes - at) : step;

		rc = read_at(z, file, from + at, buffer, n);
		rc = rc ? rc : write_part(z, to, at, buffer, n);
	}
	free(buffer);
	return rc;
}

static int write_halves(struct quantize *z, int to, uint64_t row, const float *v, int32_t n)
{
	uint16_t *half = malloc((size_t)n * sizeof(*half));
	int rc = half ? 0 : quantize_no_memory(z);

	for (int32_t j = 0; j < n && half; j++)
		half[j] = f16_of_f32(v[j]);
	rc = rc ? rc : write_part(z, to, row * (uint64_t)n * 2, half, (size_t)n * 2);
	free(half);
	return rc;
}

/* Copy a tensor unchanged, or as f16 if a directory cannot have its type. */
int quantize_plain(struct quantize *z, const struct plain *p)
{
	const struct sr_tensor *t = &p->from;
	float *row;
	int rc = 0;

	if (p->st)
		return copy_bytes(z, p->file, p->st->offset, p->st->bytes, p->out);
	if (t->type == SR_F32 || t->type == SR_BF16 || t->type == SR_F16)
		return copy_bytes(z, t->data.file, t->data.offset, (uint64_t)t->n * types_bytes(t->type, t->k),
		                  p->out);
	row = malloc((size_t)t->k * sizeof(*row));
	if (!row)
		return quantize_no_memory(z);
	for (int32_t i = 0; i < t->n && !rc; i++) {
		rc = quantize_rows(z, t, i, 1, row);
		rc = rc ? rc : write_halves(z, p->out, (uint64_t)i, row, t->k);
	}
	free(row);
	return rc;
}

/* Undo the row order of q and k in a GGUF of the llama architecture.  There the two rows that rope rotates
 * together, i and i + E/2 of a head, are adjacent. */
static int unpair(struct quantize *z, float *rows, int32_t heads, size_t width)
{
	size_t E = (size_t)z->m->kind[0].head_dim, half = E / 2;
	float *was = malloc(E * width * sizeof(*was));

	if (!was)
		return quantize_no_memory(z);
	for (int32_t h = 0; h < heads; h++, rows += E * width) {
		memcpy(was, rows, E * width * sizeof(*was));
		for (size_t i = 0; i < E; i++)
			memcpy(rows + (i % 2 * half + i / 2) * width, was + i * width, width * sizeof(*was));
	}
	free(was);
	return 0;
}

static int read_unit(struct quantize *z, struct unit *u)
{
	u->m.w = malloc((size_t)u->m.n * (size_t)u->m.k * sizeof(float));
	return u->m.w ? quantize_rows(z, &u->from, 0, u->m.n, u->m.w) : quantize_no_memory(z);
}

static int read_changes(struct quantize *z, const struct planned *p)
{
	int rc = 0;

	for (int i = 0; i < N_CHANGES && !rc; i++) {
		const struct sr_tensor *t = p->change[i] < 0 ? NULL : &z->plain[p->change[i]].from;

		if (!t)
			continue;
		z->change[i] = malloc((size_t)t->n * (size_t)t->k * sizeof(float));
		rc = z->change[i] ? quantize_rows(z, t, 0, t->n, z->change[i]) : quantize_no_memory(z);
	}
	return rc;
}

static int read_layer(struct quantize *z, int32_t l)
{
	const struct planned *p = &z->layer[l];
	const struct sr_attn *kind = kind_of(z->m, l);
	int rc = read_changes(z, p);

	for (int i = 0; i < p->n_dense && !rc; i++)
		rc = read_unit(z, &z->unit[p->first + i]);
	if (rc || !z->paired)
		return rc;
	rc = unpair(z, z->unit[p->q.unit].m.w, kind->n_heads, (size_t)z->m->d_model);
	rc = rc ? rc : unpair(z, z->unit[p->k.unit].m.w, kind->n_kv_heads, (size_t)z->m->d_model);
	rc = !rc && z->change[C_Q_BIAS] ? unpair(z, z->change[C_Q_BIAS], kind->n_heads, 1) : rc;
	return !rc && z->change[C_K_BIAS] ? unpair(z, z->change[C_K_BIAS], kind->n_kv_heads, 1) : rc;
}

static void drop_layer(struct quantize *z, int32_t l)
{
	const struct planned *p = &z->layer[l];

	for (int i = p->first; i < p->first + p->n; i++) {
		free(z->unit[i].m.w);
		z->unit[i].m.w = NULL;
	}
	for (int i = 0; i < N_CHANGES; i++) {
		free(z->change[i]);
		z->change[i] = NULL;
	}
}

/* ---- scales --------------------------------------------------------------------------------- */

/* Divide a norm by s and round it to f16, as it is written: stored less `add`.  s becomes the divisor after
 * rounding. */
static void divide_norm(float *norm, float add, float *bias, float *s, int32_t n)
{
	for (int32_t j = 0; j < n; j++) {
		float was = norm[j] + add, now = f32_of_f16(f16_of_f32(was / s[j] - add)) + add;

		if (now == 0 || !isfinite(now))
			now = f32_of_f16(f16_of_f32(norm[j])) + add;
		norm[j] = now - add;
		s[j] = now != 0 ? was / now : 1;
		if (bias)
			bias[j] /= s[j];
	}
}

static void shrink(struct moments *in, const float *s)
{
	for (int32_t j = 0; j < in->k; j++)
		in->square[j] /= (double)s[j] * (double)s[j];
}

/* Divide the outputs of a matrix that lies in these rows. */
static void divide_rows(struct quantize *z, const struct rows *r, const float *s)
{
	struct matrix *m = &z->unit[r->unit].m;

	for (int32_t i = 0; i < r->t->n; i++) {
		float *w = m->w + (size_t)(r->first + sr_output_of(r->t, i)) * (size_t)m->k;

		for (int32_t j = 0; j < m->k; j++)
			w[j] /= s[i];
	}
}

/* The query heads of a group read the same values.  Replace the moments of o's inputs by the group's mean, so
 * that the heads share one scale, and v's outputs can be divided by it. */
static void share_heads(const struct sr_attn *kind, struct moments *in)
{
	int32_t heads = kind->n_heads / kind->n_kv_heads, E = kind->head_dim;

	for (int32_t g = 0; g < kind->n_kv_heads; g++)
		for (int32_t e = 0; e < E; e++) {
			double *first = in->size + (size_t)(g * heads * E + e), mean = 0;

			for (int32_t h = 0; h < heads; h++)
				mean += first[h * E] / heads;
			for (int32_t h = 0; h < heads; h++)
				first[h * E] = mean;
		}
}

static int32_t group_of(const struct quantize *z, int32_t k)
{
	return z->group ? z->group : k;
}

static void search_o(struct quantize *z, int32_t l, float *s)
{
	const struct planned *p = &z->layer[l];
	struct matrix *o = &z->unit[p->o.unit].m;
	const struct matrix *of = o;
	const struct sr_attn *kind = kind_of(z->m, l);
	int32_t heads = kind->n_heads / kind->n_kv_heads, E = kind->head_dim, KV = kind->n_kv_heads * E;

	share_heads(kind, &z->in.of[IN_O]);
	awq_search(&of, 1, group_of(z, o->k), &z->in.of[IN_O], s);
	awq_scale_inputs(o, s);
	shrink(&z->in.of[IN_O], s);
	for (int32_t i = 0; i < KV; i++)
		s[i] = s[i / E * heads * E + i % E];
	divide_rows(z, &p->v, s);
	for (int32_t i = 0; z->change[C_V_BIAS] && i < KV; i++)
		z->change[C_V_BIAS][i] /= s[i];
}

/* The units without experts that multiply `in`, also those that multiply `other`. */
static int readers(struct quantize *z, const struct planned *p, int in, int other, struct matrix **m)
{
	int n = 0;

	for (int i = p->first; i < p->first + p->n_dense && n < READERS; i++)
		if (z->unit[i].in == in || z->unit[i].in == other)
			m[n++] = &z->unit[i].m;
	return n;
}

static void search_mixer(struct quantize *z, int32_t l, float *s)
{
	const struct sr_layer *y = &z->m->layer[l];
	struct matrix *m[READERS];
	const struct matrix *of[READERS];
	int n = readers(z, &z->layer[l], IN_MIXER, y->parallel ? IN_FFN : IN_MIXER, m);

	for (int i = 0; i < n; i++)
		of[i] = m[i];
	awq_search(of, n, group_of(z, z->m->d_model), &z->in.of[IN_MIXER], s);
	divide_norm(z->change[C_NORM1], y->norm1.add, z->change[C_NORM1_BIAS], s, z->m->d_model);
	for (int i = 0; i < n; i++)
		awq_scale_inputs(m[i], s);
	shrink(&z->in.of[IN_MIXER], s);
	if (y->parallel)
		shrink(&z->in.of[IN_FFN], s);
}

/* Rows of gate and up of some experts, which stand for all. */
static int sample_experts(struct quantize *z, const struct planned *p, struct matrix *out)
{
	int32_t experts = (p->n - p->n_dense) / 3, D = z->m->d_model, every = (experts + SAMPLED - 1) / SAMPLED;
	int rc = 0;

	*out = (struct matrix){ 0, D, malloc((size_t)2 * SAMPLED * SAMPLE_ROWS * (size_t)D * sizeof(float)) };
	if (!out->w)
		return quantize_no_memory(z);
	for (int32_t e = 0; e < experts && !rc; e += every)
		for (int i = 0; i < 2 && !rc; i++) {
			const struct sr_tensor *t = &z->unit[p->first + p->n_dense + 3 * e + i].from;
			int32_t n = t->n < SAMPLE_ROWS ? t->n : SAMPLE_ROWS;

			for (int32_t r = 0; r < n && !rc; r++, out->n++)
				rc = quantize_rows(z, t, (int32_t)((int64_t)r * t->n / n), 1,
				                   out->w + (size_t)out->n * (size_t)D);
		}
	return rc;
}

static void multiply_columns(float *w, int32_t n, int32_t k, const float *s)
{
	struct matrix m = { n, k, w };

	if (w)
		awq_scale_inputs(&m, s);
}

/* s is then what the columns of experts are to be multiplied with. */
static int search_ffn(struct quantize *z, int32_t l, float *s)
{
	const struct planned *p = &z->layer[l];
	struct matrix *m[READERS], sample = { 0 };
	const struct matrix *of[READERS + 1];
	int n = readers(z, p, IN_FFN, IN_FFN, m), all = n;
	int rc = p->n > p->n_dense ? sample_experts(z, p, &sample) : 0;

	for (int i = 0; i < n; i++)
		of[i] = m[i];
	if (sample.w)
		of[all++] = &sample;
	if (!rc) {
		awq_search(of, all, group_of(z, z->m->d_model), &z->in.of[IN_FFN], s);
		divide_norm(z->change[C_NORM2], z->m->layer[l].norm2.add, z->change[C_NORM2_BIAS], s, z->m->d_model);
		for (int i = 0; i < n; i++)
			awq_scale_inputs(m[i], s);
		multiply_columns(z->change[C_ROUTER], z->m->experts.n, z->m->d_model, s);
		multiply_columns(z->change[C_MIX], 1, z->m->d_model, s);
		shrink(&z->in.of[IN_FFN], s);
		for (int32_t e = 0; e < z->in.n_experts; e++)
			shrink(&z->in.expert[e], s);
	}
	free(sample.w);
	return rc;
}

static void search_down(struct quantize *z, const struct rows *up, struct matrix *down, float *bias,
                        struct moments *in,
                        float *s)
{
	const struct matrix *of = down;

	awq_search(&of, 1, group_of(z, down->k), in, s);
	awq_scale_inputs(down, s);
	shrink(in, s);
	divide_rows(z, up, s);
	for (int32_t i = 0; bias && i < down->k; i++)
		bias[i] /= s[i];
}

/* All but what is of each expert alone.  s: as search_ffn() leaves it; ones where it does not run. */
static int search_layer(struct quantize *z, int32_t l, float *s)
{
	const struct planned *p = &z->layer[l];
	int rc = 0;

	if (quantize_scales_o(z, l))
		search_o(z, l, s);
	if (quantize_scales_mixer(z, l))
		search_mixer(z, l, s);
	if (quantize_scales_down(z) && p->down.unit >= 0)
		search_down(z, &p->up, &z->unit[p->down.unit].m, z->change[C_UP_BIAS], &z->in.of[IN_DOWN], s);
	if (quantize_scales_ffn(z, l))
		rc = search_ffn(z, l, s);
	for (int32_t j = 0; !quantize_scales_ffn(z, l) && j < z->m->d_model; j++)
		s[j] = 1;
	return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

static int write_matrix(struct quantize *z, const struct unit *u, const struct awq *a)
{
	uint32_t *qweight = malloc(tensors_out_bytes(z->out, u->qweight));
	uint32_t *qzeros = malloc(tensors_out_bytes(z->out, u->qzeros));
	uint16_t *scales = malloc(tensors_out_bytes(z->out, u->scales));
	const struct { int tensor; const void *p; } all[] = {
		{ u->qweight, qweight }, { u->qzeros, qzeros }, { u->scales, scales },
	};
	int rc = qweight && qzeros && scales ? 0 : quantize_no_memory(z);

	if (!rc)
		awq_pack(a, qweight, qzeros, scales);
	for (int k = 0; k < 3 && !rc; k++)
		rc = write_part(z, all[k].tensor, 0, all[k].p, tensors_out_bytes(z->out, all[k].tensor));
	free(qweight);
	free(qzeros);
	free(scales);
	return rc;
}

/* worth: of an error at each input, or NULL. */
static int round_unit(struct quantize *z, int32_t l, struct unit *u, const double *worth)
{
	struct kind *kind = &z->kind[u->kind];
	struct awq a;
	double error;
	int rc;

	if (awq_create(&a, u->m.n, u->m.k, group_of(z, u->m.k)) != 0)
		return quantize_no_memory(z);
	error = awq_round(&a, &u->m, worth);
	rc = write_matrix(z, u, &a);
	awq_destroy(&a);
	kind->n++;
	kind->error += error;
	if (error >= kind->worst) {
		kind->worst = error;
		kind->worst_at = l;
	}
	if (z->all)
		printf("%-48s  %5.2f %%\n", u->name, 100 * error);
	free(u->m.w);
	u->m.w = NULL;
	return rc;
}

/* Gate, up and down of an expert.  s: what norm2 was divided by. */
static int quantize_expert(struct quantize *z, int32_t l, int32_t e, const float *s, float *own)
{
	const struct planned *p = &z->layer[l];
	struct unit *u = &z->unit[p->first + p->n_dense + 3 * e];
	const bool enough = z->search && z->in.expert[e].rows >= EXPERT_ROWS;
	const struct rows up = { (int)(u - z->unit) + 1, 0, &u[1].from };
	const double *worth = !z->search ? NULL : enough ? z->in.expert[e].square : z->in.of[IN_FFN].square;
	int rc = 0;

	for (int i = 0; i < 3 && !rc; i++)
		rc = read_unit(z, &u[i]);
	if (rc)
		return rc;
	z->experts++;
	z->seldom += z->search && !enough;
	for (int i = 0; i < 2 && z->search; i++)
		awq_scale_inputs(&u[i].m, s);
	if (enough && quantize_scales_down(z))
		search_down(z, &up, &u[2].m, NULL, &z->in.expert_down[e], own);
	for (int i = 0; i < 3 && !rc; i++)
		rc = round_unit(z, l, &u[i], i < 2 ? worth : enough ? z->in.expert_down[e].square : NULL);
	return rc;
}

static int write_changes(struct quantize *z, const struct planned *p)
{
	int rc = 0;

	for (int i = 0; i < N_CHANGES; i++) {
		const struct plain *to = p->change[i] < 0 ? NULL : &z->plain[p->change[i]];

		for (int32_t r = 0; to && r < to->from.n && !rc; r++)
			rc = write_halves(z, to->out, (uint64_t)r, z->change[i] + (size_t)r * (size_t)to->from.k,
			                  to->from.k);
	}
	return rc;
}

/* Read, scale, round and write; what its matrices read is measured. */
static int write_layer(struct quantize *z, int32_t l, float *s, float *own)
{
	const struct planned *p = &z->layer[l];
	int rc = read_layer(z, l);

	if (!rc && z->search)
		rc = search_layer(z, l, s);
	for (int i = p->first; i < p->first + p->n_dense && !rc; i++)
		rc = round_unit(z, l, &z->unit[i], z->search ? z->in.of[z->unit[i].in].square : NULL);
	for (int32_t e = 0; e < (p->n - p->n_dense) / 3 && !rc; e++)
		rc = quantize_expert(z, l, e, s, own);
	return rc ? rc : write_changes(z, p);
}

/* The widest input of a matrix of layer l. */
static size_t widest(const struct quantize *z, int32_t l)
{
	int32_t k = z->m->d_model;

	for (int i = z->layer[l].first; i < z->layer[l].first + z->layer[l].n; i++)
		k = z->unit[i].from.k > k ? z->unit[i].from.k : k;
	return (size_t)k;
}

int quantize_layer(struct quantize *z, int32_t l)
{
	float *s = malloc(2 * widest(z, l) * sizeof(*s));
	int rc = s && inputs_create(&z->in, z->m, l) == 0 ? 0 : quantize_no_memory(z);

	if (!rc && z->text)
		rc = calibrate_layer(&z->c, z->m, z->file, l, z->x, z->search ? &z->in : NULL, z->err,
		                     sizeof(z->err));
	if (!rc)
		rc = write_layer(z, l, s, s + widest(z, l));
	drop_layer(z, l);
	inputs_destroy(&z->in);
	free(s);
	return rc;
}
