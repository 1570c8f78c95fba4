/* quantize_layer.c - plans what slipring quantize writes, and does one layer: reads it as floats, searches
 * its scales by a text, rounds it and writes it.  See quantize_impl.h.
 */
#include "quantize_impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/types.h"

#define AT(field) offsetof(struct sr_layer, field)
static const struct { size_t at; const char *name; } vector_of[N_VECTORS] = {
	[V_NORM1]  = { AT(norm1),  "input_layernorm.weight" },
	[V_NORM2]  = { AT(norm2),  "post_attention_layernorm.weight" },
	[V_Q_BIAS] = { AT(q_bias), "self_attn.q_proj.bias" },
	[V_K_BIAS] = { AT(k_bias), "self_attn.k_proj.bias" },
	[V_V_BIAS] = { AT(v_bias), "self_attn.v_proj.bias" },
	[V_O_BIAS] = { AT(o_bias), "self_attn.o_proj.bias" },
	[V_Q_NORM] = { AT(q_norm), "self_attn.q_norm.weight" },
	[V_K_NORM] = { AT(k_norm), "self_attn.k_norm.weight" },
};
static const struct { size_t at; const char *name; int in; } matrix_of[N_MATRICES] = {
	[M_Q]    = { AT(q),    "q_proj",    IN_QKV }, [M_K]  = { AT(k),  "k_proj",  IN_QKV },
	[M_V]    = { AT(v),    "v_proj",    IN_QKV }, [M_O]  = { AT(o),  "o_proj",  IN_O },
	[M_GATE] = { AT(gate), "gate_proj", IN_MLP }, [M_UP] = { AT(up), "up_proj", IN_MLP },
	[M_DOWN] = { AT(down), "down_proj", IN_DOWN },
};
#undef AT

static const struct sr_tensor *layer_tensor(const struct sr_layer *y, size_t at)
{
	return (const struct sr_tensor *)(const void *)((const char *)y + at);
}

const char *quantize_matrix(int i) { return matrix_of[i].name; }

int quantize_no_memory(struct quantize *z)
{
	return quantize_fail(z, -ENOMEM, "no memory");
}

/* ---- reading -------------------------------------------------------------------------------- */

static int read_at(struct quantize *z, const struct sr_tensor *t, uint64_t from, void *to, size_t n)
{
	ssize_t r = pread(z->file[t->data.file], to, n, (off_t)(t->data.offset + from));

	if (r == (ssize_t)n)
		return 0;
	return quantize_fail(z, -EIO, "%s: offset %llu: %s", z->md->file[t->data.file],
	                     (unsigned long long)(t->data.offset + from),
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
		rc = read_at(z, t, ((uint64_t)row + i) * bytes, buffer, count * bytes);
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

/* Copy a tensor unchanged, or as f16 if a directory cannot have its type. */
int quantize_copy(struct quantize *z, const struct sr_tensor *t, int to)
{
	bool same = t->type == SR_F32 || t->type == SR_BF16 || t->type == SR_F16;
	size_t bytes = same ? types_bytes(t->type, t->k) : 2 * (size_t)t->k;
	float *row = malloc((size_t)t->k * sizeof(*row));
	uint16_t *half = malloc(bytes);
	int rc = row && half ? 0 : quantize_no_memory(z);

	for (int32_t i = 0; i < t->n && !rc; i++) {
		rc = same ? read_at(z, t, i * (uint64_t)bytes, half, bytes) : quantize_rows(z, t, i, 1, row);
		for (int32_t j = 0; j < t->k && !same; j++)
			half[j] = f16_of_f32(row[j]);
		rc = rc ? rc : write_part(z, to, i * (uint64_t)bytes, half, bytes);
	}
	free(row);
	free(half);
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

static int check_tensor(struct quantize *z, const struct sr_tensor *t)
{
	if (t->type && !types_bytes(t->type, t->k))
		return quantize_fail(z, -ENOTSUP, "tensor %s is of type %s, which quantize does not read", t->name,
		                     model_type_name(t->type));
	if (t->add != 0)
		return quantize_fail(z, -ENOTSUP, "tensor %s: norms of this architecture are not written", t->name);
	return 0;
}

int quantize_check(struct quantize *z)
{
	const struct sr_model *m = z->m;
	int rc = check_tensor(z, &m->embed);

	if (sr_beyond(m) || m->embed_scale != 1 || m->logit_cap != 0 || m->layer[0].post1.type ||
	    m->kind[0].rope.dims != m->kind[0].head_dim)
		return quantize_fail(z, -ENOTSUP, "%s: quantize supports Llama, Qwen2 and Qwen3, but not what %s "
		                     "adds", z->where.path, m->arch);
	rc = rc ? rc : check_tensor(z, &m->norm);
	rc = rc ? rc : check_tensor(z, &m->head);
	for (int32_t l = 0; l < m->n_layers && !rc; l++) {
		for (int i = 0; i < N_VECTORS && !rc; i++)
			rc = check_tensor(z, layer_tensor(&m->layer[l], vector_of[i].at));
		for (int i = 0; i < N_MATRICES && !rc; i++)
			rc = check_tensor(z, layer_tensor(&m->layer[l], matrix_of[i].at));
	}
	return rc;
}

/* ---- the plan ------------------------------------------------------------------------------- */

/* The type in which a tensor is written that is not quantized: its own, if a directory can have it. */
static int32_t plain_type(const struct sr_tensor *t)
{
	return t->type == SR_F32 || t->type == SR_BF16 ? t->type : SR_F16;
}

static int add_plain(struct quantize *z, const char *name, const struct sr_tensor *t, int32_t type)
{
	return tensors_out_add(z->out, name, model_type_name(type), type == SR_F32 ? 4 : 2,
	                       t->n == 1 ? t->k : t->n, t->n == 1 ? 0 : t->k);
}

static int add_matrix(struct quantize *z, const struct sr_tensor *t, int32_t l, int i)
{
	struct planned *to = &z->layer[l];
	int group = z->group ? z->group : t->k;
	char name[160];

	if (t->k % group || t->k % 32 || t->n % 8)
		return quantize_fail(z, -EINVAL, "%s is %d x %d: its outputs must be a multiple of 8, and its inputs "
		                     "of --group-size %d", t->name, t->n, t->k, group);
#define NAME(end) (snprintf(name, sizeof(name), "model.layers.%d.%s.%s.%s", l, \
	i <= M_O ? "self_attn" : "mlp", matrix_of[i].name, end), name)
	to->qweight[i] = tensors_out_add(z->out, NAME("qweight"), "I32", 4, t->k, t->n / 8);
	to->qzeros[i] = tensors_out_add(z->out, NAME("qzeros"), "I32", 4, t->k / group, t->n / 8);
	to->scales[i] = tensors_out_add(z->out, NAME("scales"), "F16", 2, t->k / group, t->n);
#undef NAME
	return to->qweight[i] < 0 || to->qzeros[i] < 0 || to->scales[i] < 0 ? quantize_no_memory(z) : 0;
}

/* Is this vector written from z->now, in f16, instead of copied? */
static bool changes(const struct quantize *z, int vector)
{
	return (z->search && (vector == V_NORM1 || vector == V_NORM2 || vector == V_V_BIAS)) ||
	       (z->paired && (vector == V_Q_BIAS || vector == V_K_BIAS));
}

int quantize_plan(struct quantize *z)
{
	const struct sr_model *m = z->m;
	int rc = 0;

	z->layer = calloc((size_t)m->n_layers, sizeof(*z->layer));
	if (!z->layer)
		return quantize_no_memory(z);
	z->embed = add_plain(z, "model.embed_tokens.weight", &m->embed, plain_type(&m->embed));
	z->norm = add_plain(z, "model.norm.weight", &m->norm, plain_type(&m->norm));
	z->head = m->head.type ? add_plain(z, "lm_head.weight", &m->head, plain_type(&m->head)) : 0;
	if (z->embed < 0 || z->norm < 0 || z->head < 0)
		return quantize_no_memory(z);
	for (int32_t l = 0; l < m->n_layers && !rc; l++) {
		for (int i = 0; i < N_VECTORS && !rc; i++) {
			const struct sr_tensor *t = layer_tensor(&m->layer[l], vector_of[i].at);
			char name[160];

			snprintf(name, sizeof(name), "model.layers.%d.%s", l, vector_of[i].name);
			z->layer[l].vector[i] = t->type ? add_plain(z, name, t, changes(z, i) ? SR_F16
			                                                                      : plain_type(t)) : 0;
			rc = z->layer[l].vector[i] < 0 ? quantize_no_memory(z) : 0;
		}
		for (int i = 0; i < N_MATRICES && !rc; i++)
			rc = add_matrix(z, layer_tensor(&m->layer[l], matrix_of[i].at), l, i);
	}
	if (!rc && (rc = tensors_out_begin(z->out)) != 0)
		rc = quantize_fail(z, rc, "%s/model.safetensors: %s", z->dir, strerror(-rc));
	return rc;
}

/* ---- one layer ------------------------------------------------------------------------------ */

static float **floats_of(struct layer *y, int i)
{
	float **of[N_VECTORS] = {
		&y->norm1, &y->norm2, &y->q_bias, &y->k_bias, &y->v_bias, &y->o_bias, &y->q_norm, &y->k_norm,
	};

	return of[i];
}

/* Allocate memory for any layer, because all have the same shape. */
int quantize_room(struct quantize *z)
{
	const struct sr_layer *y = &z->m->layer[0];
	const int32_t width[N_INPUTS] = { y->q.k, y->o.k, y->up.k, y->down.k };

	for (int i = 0; i < N_VECTORS; i++) {
		const struct sr_tensor *t = layer_tensor(y, vector_of[i].at);

		if (t->type && !(*floats_of(&z->now, i) = malloc((size_t)t->k * sizeof(float))))
			return quantize_no_memory(z);
	}
	for (int i = 0; i < N_MATRICES; i++) {
		const struct sr_tensor *t = layer_tensor(y, matrix_of[i].at);

		z->now.m[i] = (struct matrix){ t->n, t->k, NULL };
		z->now.m[i].w = malloc((size_t)t->n * (size_t)t->k * sizeof(float));
		if (!z->now.m[i].w)
			return quantize_no_memory(z);
	}
	for (int i = 0; i < N_INPUTS; i++) {
		size_t bytes = (size_t)width[i] * sizeof(double);

		z->in[i] = (struct moments){ width[i], 0, malloc(bytes), malloc(bytes) };
		if (!z->in[i].size || !z->in[i].square)
			return quantize_no_memory(z);
	}
	return 0;
}

void quantize_room_free(struct quantize *z)
{
	for (int i = 0; i < N_VECTORS; i++)
		free(*floats_of(&z->now, i));
	for (int i = 0; i < N_MATRICES; i++)
		free(z->now.m[i].w);
	for (int i = 0; i < N_INPUTS; i++) {
		free(z->in[i].size);
		free(z->in[i].square);
	}
}

static int read_layer(struct quantize *z, int32_t l)
{
	const struct sr_layer *y = &z->m->layer[l];
	const struct sr_attn *kind = kind_of(z->m, l);
	int rc = 0;

	for (int i = 0; i < N_VECTORS && !rc; i++)
		if (*floats_of(&z->now, i))
			rc = quantize_rows(z, layer_tensor(y, vector_of[i].at), 0, 1, *floats_of(&z->now, i));
	for (int i = 0; i < N_MATRICES && !rc; i++)
		rc = quantize_rows(z, layer_tensor(y, matrix_of[i].at), 0, z->now.m[i].n, z->now.m[i].w);
	if (!rc && z->paired) {
		rc = unpair(z, z->now.m[M_Q].w, kind->n_heads, (size_t)z->m->d_model);
		rc = rc ? rc : unpair(z, z->now.m[M_K].w, kind->n_kv_heads, (size_t)z->m->d_model);
		rc = !rc && z->now.q_bias ? unpair(z, z->now.q_bias, kind->n_heads, 1) : rc;
		rc = !rc && z->now.k_bias ? unpair(z, z->now.k_bias, kind->n_kv_heads, 1) : rc;
	}
	return rc;
}

/* Divide a norm by s and round it to f16, as it is written.  s becomes the divisor after rounding. */
static void divide_norm(float *norm, float *s, int32_t n)
{
	for (int32_t j = 0; j < n; j++) {
		float was = norm[j];

		norm[j] = f32_of_f16(f16_of_f32(was / s[j]));
		if (norm[j] == 0 || !isfinite(norm[j]))
			norm[j] = f32_of_f16(f16_of_f32(was));
		s[j] = norm[j] != 0 ? was / norm[j] : 1;
	}
}

/* Search scales for the inputs `in` of the matrices p[n].  Afterwards `in` has the moments of the scaled
 * inputs. */
static void search(struct quantize *z, struct matrix *const *p, int n, struct moments *in, float *norm,
                   struct matrix *before, float *s)
{
	const struct matrix *of[3] = { p[0], n > 1 ? p[1] : NULL, n > 2 ? p[2] : NULL };

	awq_search(of, n, z->group ? z->group : p[0]->k, in, s);
	if (norm)
		divide_norm(norm, s, in->k);
	if (before)
		awq_scale_outputs(before, s);
	for (int i = 0; i < n; i++)
		awq_scale_inputs(p[i], s);
	for (int32_t j = 0; j < in->k; j++)
		in->square[j] /= (double)s[j] * (double)s[j];
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

static void search_o(struct quantize *z, float *s)
{
	struct layer *y = &z->now;
	struct matrix *o = &y->m[M_O];
	const struct sr_attn *kind = &z->m->kind[0];   /* its sizes are those of all layers */
	int32_t heads = kind->n_heads / kind->n_kv_heads, E = kind->head_dim, KV = kind->n_kv_heads * E;

	share_heads(kind, &z->in[IN_O]);
	search(z, &o, 1, &z->in[IN_O], NULL, NULL, s);
	for (int32_t i = 0; i < KV; i++)
		s[i] = s[i / E * heads * E + i % E];
	awq_scale_outputs(&y->m[M_V], s);
	for (int32_t i = 0; y->v_bias && i < KV; i++)
		y->v_bias[i] /= s[i];
}

static int search_layer(struct quantize *z)
{
	struct layer *y = &z->now;
	struct matrix *qkv[] = { &y->m[M_Q], &y->m[M_K], &y->m[M_V] }, *gu[] = { &y->m[M_GATE], &y->m[M_UP] };
	struct matrix *down = &y->m[M_DOWN];
	int32_t Q = z->m->kind[0].n_heads * z->m->kind[0].head_dim;
	int32_t widest = z->m->d_model > z->m->d_ff ? z->m->d_model : z->m->d_ff;
	float *s = malloc((size_t)(widest > Q ? widest : Q) * sizeof(*s));

	if (!s)
		return quantize_no_memory(z);
	search_o(z, s);
	search(z, qkv, 3, &z->in[IN_QKV], y->norm1, NULL, s);
	search(z, &down, 1, &z->in[IN_DOWN], NULL, &y->m[M_UP], s);
	search(z, gu, 2, &z->in[IN_MLP], y->norm2, NULL, s);
	free(s);
	return 0;
}

static int write_matrix(struct quantize *z, const struct planned *to, int i, const struct awq *a)
{
	uint32_t *qweight = malloc(tensors_out_bytes(z->out, to->qweight[i]));
	uint32_t *qzeros = malloc(tensors_out_bytes(z->out, to->qzeros[i]));
	uint16_t *scales = malloc(tensors_out_bytes(z->out, to->scales[i]));
	const struct { int tensor; const void *p; } all[] = {
		{ to->qweight[i], qweight }, { to->qzeros[i], qzeros }, { to->scales[i], scales },
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

static int round_matrix(struct quantize *z, int32_t l, int i)
{
	struct matrix *m = &z->now.m[i];
	struct awq a;
	double error;
	int rc;

	if (awq_create(&a, m->n, m->k, z->group ? z->group : m->k) != 0)
		return quantize_no_memory(z);
	error = awq_round(&a, m, z->search ? z->in[matrix_of[i].in].square : NULL);
	rc = write_matrix(z, &z->layer[l], i, &a);
	awq_destroy(&a);
	z->error[i] += error / z->m->n_layers;
	if (error >= z->worst[i]) {
		z->worst[i] = error;
		z->worst_at[i] = l;
	}
	if (z->all)
		printf("layer %3d %-9s  %5.2f %%\n", l, matrix_of[i].name, 100 * error);
	return rc;
}

static int write_vectors(struct quantize *z, int32_t l)
{
	int rc = 0;

	for (int i = 0; i < N_VECTORS && !rc; i++) {
		const struct sr_tensor *t = layer_tensor(&z->m->layer[l], vector_of[i].at);
		const float *v = *floats_of(&z->now, i);
		int to = z->layer[l].vector[i];

		if (v && !changes(z, i)) {
			rc = quantize_copy(z, t, to);
			continue;
		}
		for (int32_t j = 0; v && j < t->k && !rc; j++) {
			uint16_t half = f16_of_f32(v[j]);

			rc = write_part(z, to, 2 * (uint64_t)j, &half, 2);
		}
	}
	return rc;
}

int quantize_layer(struct quantize *z, int32_t l)
{
	int rc = read_layer(z, l);

	for (int i = 0; i < N_INPUTS && !rc; i++) {
		memset(z->in[i].size, 0, (size_t)z->in[i].k * sizeof(double));
		memset(z->in[i].square, 0, (size_t)z->in[i].k * sizeof(double));
		z->in[i].rows = 0;
	}
	if (!rc && z->text) {
		calibrate_layer(z->c, l, &z->now, z->x, z->in);
		rc = z->search ? search_layer(z) : 0;
	}
	for (int i = 0; i < N_MATRICES && !rc; i++)
		rc = round_matrix(z, l, i);
	if (!rc)
		rc = write_vectors(z, l);
	if (!rc && z->text)
		calibrate_layer(z->c, l, &z->now, z->y, NULL);
	return rc;
}
