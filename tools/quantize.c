/* quantize.c - slipring quantize: any model in that is not of 4 bits with scales apart already, a Hugging
 * Face directory in AWQ's layout out.
 *
 *	plan       names and shapes of all that will be written; what cannot be is refused here
 *	layers     one at a time: read, scales by what a text shows, round, write
 *	the rest   embeddings, last norm and head, not quantized; what lies beside (quantize_dir.c)
 *
 * With a text its tokens go through the model twice, as it was and as it is written, layer by layer:
 * that gives the scales and, at the end, what was lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/text/slipring-text.h"
#include "awq.h"
#include "calibrate.h"
#include "commands.h"
#include "core/locate.h"
#include "core/model.h"
#include "kernels/cpu/types.h"
#include "quantize_dir.h"
#include "tensors_out.h"

#define TOKENS   4096              /* of the text: scales by the first half, what is lost by the second */
#define TEXT_MAX (1u << 20)

enum { V_NORM1, V_NORM2, V_Q_BIAS, V_K_BIAS, V_V_BIAS, V_O_BIAS, V_Q_NORM, V_K_NORM, N_VECTORS };

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

/* Where the parts of a layer are written. */
struct planned { int vector[N_VECTORS], qweight[N_MATRICES], qzeros[N_MATRICES], scales[N_MATRICES]; };

struct quantize {
	const char *model, *dir, *text;    /* text NULL: no search, and the loss is not known */
	bool    search;                    /* else only the loss is measured by the text */
	bool    paired;                    /* rows of q and k lie as unpair() says */
	int32_t group;
	bool    all;                       /* --tensors: the error of each */
	struct located where;
	struct model *md;
	const struct sr_model *m;
	int    *file;                      /* [md->n_files] */
	struct tensors_out *out;
	int     embed, norm, head;
	struct planned *layer;             /* [L] */

	struct layer now;                  /* the layer at work, as floats */
	struct moments in[N_INPUTS];
	struct calibrate *c;
	int32_t *id, T;
	float  *x, *y;                     /* [T][D]: of the model as it was; as it is written */

	double  error[N_MATRICES], worst[N_MATRICES];
	int32_t worst_at[N_MATRICES];
	double  loss, loss_after;          /* mean negative log likelihood */
	char    err[5000];
};

__attribute__((format(printf, 3, 4)))
static int fail(struct quantize *z, int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(z->err, sizeof(z->err), fmt, ap);
	va_end(ap);
	return rc;
}

static int no_memory(struct quantize *z)
{
	return fail(z, -ENOMEM, "no memory");
}

static const struct sr_tensor *part(const struct sr_layer *y, size_t at)
{
	return (const struct sr_tensor *)(const void *)((const char *)y + at);
}

/* ---- reading -------------------------------------------------------------------------------- */

static int read_at(struct quantize *z, const struct sr_tensor *t, uint64_t from, void *to, size_t n)
{
	ssize_t r = pread(z->file[t->data.file], to, n, (off_t)(t->data.offset + from));

	if (r == (ssize_t)n)
		return 0;
	return fail(z, -EIO, "%s: offset %llu: %s", z->md->file[t->data.file],
	            (unsigned long long)(t->data.offset + from),
	            r < 0 ? strerror(errno) : "the file ends here");
}

/* Rows of a tensor as floats. */
static int read_rows(struct quantize *z, const struct sr_tensor *t, int32_t row, int32_t n, float *to)
{
	size_t bytes = types_bytes(t->type, t->k), step = (1u << 20) / bytes + 1;
	uint8_t *buffer = malloc(step * bytes);
	int rc = buffer ? 0 : no_memory(z);

	for (size_t i = 0, count; i < (size_t)n && !rc; i += count) {
		count = (size_t)n - i < step ? (size_t)n - i : step;
		rc = read_at(z, t, ((uint64_t)row + i) * bytes, buffer, count * bytes);
		for (size_t j = 0; j < count && !rc; j++)
			types_dequant(t->type, t->k, buffer + j * bytes, to + (i + j) * (size_t)t->k);
	}
	free(buffer);
	return rc;
}

static int put(struct quantize *z, int to, uint64_t at, const void *p, size_t n)
{
	int rc = tensors_out_write(z->out, to, at, p, n);

	return rc ? fail(z, rc, "%s/model.safetensors: %s", z->dir, strerror(-rc)) : 0;
}

/* A tensor as it is, or in f16 if a directory cannot have its type. */
static int copy_tensor(struct quantize *z, const struct sr_tensor *t, int to)
{
	bool same = t->type == SR_F32 || t->type == SR_BF16 || t->type == SR_F16;
	size_t bytes = same ? types_bytes(t->type, t->k) : 2 * (size_t)t->k;
	float *row = malloc((size_t)t->k * sizeof(*row));
	uint16_t *half = malloc(bytes);
	int rc = row && half ? 0 : no_memory(z);

	for (int32_t i = 0; i < t->n && !rc; i++) {
		rc = same ? read_at(z, t, i * (uint64_t)bytes, half, bytes) : read_rows(z, t, i, 1, row);
		for (int32_t j = 0; j < t->k && !same; j++)
			half[j] = f16_of_f32(row[j]);
		rc = rc ? rc : put(z, to, i * (uint64_t)bytes, half, bytes);
	}
	free(row);
	free(half);
	return rc;
}

/* A GGUF of the llama architecture has the rows of q and k in another order: those that rope turns
 * together, i and i + E/2 of a head, one after the other. */
static int unpair(struct quantize *z, float *rows, int32_t heads, size_t width)
{
	size_t E = (size_t)z->m->E, half = E / 2;
	float *was = malloc(E * width * sizeof(*was));

	if (!was)
		return no_memory(z);
	for (int32_t h = 0; h < heads; h++, rows += E * width) {
		memcpy(was, rows, E * width * sizeof(*was));
		for (size_t i = 0; i < E; i++)
			memcpy(rows + (i % 2 * half + i / 2) * width, was + i * width, width * sizeof(*was));
	}
	free(was);
	return 0;
}

/* ---- the plan ------------------------------------------------------------------------------- */

/* What a tensor that is not quantized is written as: as it is, if a directory can have it. */
static int32_t plain_type(const struct sr_tensor *t)
{
	return t->type == SR_F32 || t->type == SR_BF16 ? t->type : SR_F16;
}

static int add_plain(struct quantize *z, const char *name, const struct sr_tensor *t, int32_t type)
{
	return tensors_out_add(z->out, name, model_type_name(type), type == SR_F32 ? 4 : 2,
	                       t->n == 1 ? t->k : t->n,
	                       t->n == 1 ? 0 : t->k);
}

static int add_matrix(struct quantize *z, const struct sr_tensor *t, int32_t l, int i)
{
	struct planned *to = &z->layer[l];
	int group = z->group ? z->group : t->k;
	char name[160];

	if (t->k % group || t->k % 32 || t->n % 8)
		return fail(z, -EINVAL, "%s is %d x %d: its outputs must be a multiple of 8, and its inputs "
		            "of --group-size %d", t->name, t->n, t->k, group);
#define NAME(end) (snprintf(name, sizeof(name), "model.layers.%d.%s.%s.%s", l, \
	i <= M_O ? "self_attn" : "mlp", matrix_of[i].name, end), name)
	to->qweight[i] = tensors_out_add(z->out, NAME("qweight"), "I32", 4, t->k, t->n / 8);
	to->qzeros[i] = tensors_out_add(z->out, NAME("qzeros"), "I32", 4, t->k / group, t->n / 8);
	to->scales[i] = tensors_out_add(z->out, NAME("scales"), "F16", 2, t->k / group, t->n);
#undef NAME
	return to->qweight[i] < 0 || to->qzeros[i] < 0 || to->scales[i] < 0 ? no_memory(z) : 0;
}

/* Is this vector written from z->now, in f16, and not as it was? */
static bool changes(const struct quantize *z, int vector)
{
	return (z->search && (vector == V_NORM1 || vector == V_NORM2 || vector == V_V_BIAS)) ||
	       (z->paired && (vector == V_Q_BIAS || vector == V_K_BIAS));
}

static int plan(struct quantize *z)
{
	const struct sr_model *m = z->m;
	int rc = 0;

	z->layer = calloc((size_t)m->L, sizeof(*z->layer));
	if (!z->layer)
		return no_memory(z);
	z->embed = add_plain(z, "model.embed_tokens.weight", &m->embed, plain_type(&m->embed));
	z->norm = add_plain(z, "model.norm.weight", &m->norm, plain_type(&m->norm));
	z->head = m->head.type ? add_plain(z, "lm_head.weight", &m->head, plain_type(&m->head)) : 0;
	if (z->embed < 0 || z->norm < 0 || z->head < 0)
		return no_memory(z);
	for (int32_t l = 0; l < m->L && !rc; l++) {
		for (int i = 0; i < N_VECTORS && !rc; i++) {
			const struct sr_tensor *t = part(&m->layer[l], vector_of[i].at);
			char name[160];

			snprintf(name, sizeof(name), "model.layers.%d.%s", l, vector_of[i].name);
			z->layer[l].vector[i] = t->type ? add_plain(z, name, t, changes(z, i) ? SR_F16
			                                                                      : plain_type(t)) : 0;
			rc = z->layer[l].vector[i] < 0 ? no_memory(z) : 0;
		}
		for (int i = 0; i < N_MATRICES && !rc; i++)
			rc = add_matrix(z, part(&m->layer[l], matrix_of[i].at), l, i);
	}
	if (!rc && (rc = tensors_out_begin(z->out)) != 0)
		rc = fail(z, rc, "%s/model.safetensors: %s", z->dir, strerror(-rc));
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

/* Room for any layer: they are all of one shape. */
static int take_room(struct quantize *z)
{
	const struct sr_layer *y = &z->m->layer[0];
	const int32_t width[N_INPUTS] = { y->q.k, y->o.k, y->up.k, y->down.k };

	for (int i = 0; i < N_VECTORS; i++) {
		const struct sr_tensor *t = part(y, vector_of[i].at);

		if (t->type && !(*floats_of(&z->now, i) = malloc((size_t)t->k * sizeof(float))))
			return no_memory(z);
	}
	for (int i = 0; i < N_MATRICES; i++) {
		const struct sr_tensor *t = part(y, matrix_of[i].at);

		z->now.m[i] = (struct matrix){ t->n, t->k, NULL };
		z->now.m[i].w = malloc((size_t)t->n * (size_t)t->k * sizeof(float));
		if (!z->now.m[i].w)
			return no_memory(z);
	}
	for (int i = 0; i < N_INPUTS; i++) {
		size_t bytes = (size_t)width[i] * sizeof(double);

		z->in[i] = (struct moments){ width[i], 0, malloc(bytes), malloc(bytes) };
		if (!z->in[i].size || !z->in[i].square)
			return no_memory(z);
	}
	return 0;
}

static int read_layer(struct quantize *z, int32_t l)
{
	const struct sr_layer *y = &z->m->layer[l];
	int rc = 0;

	for (int i = 0; i < N_VECTORS && !rc; i++)
		if (*floats_of(&z->now, i))
			rc = read_rows(z, part(y, vector_of[i].at), 0, 1, *floats_of(&z->now, i));
	for (int i = 0; i < N_MATRICES && !rc; i++)
		rc = read_rows(z, part(y, matrix_of[i].at), 0, z->now.m[i].n, z->now.m[i].w);
	if (!rc && z->paired) {
		rc = unpair(z, z->now.m[M_Q].w, z->m->H, (size_t)z->m->D);
		rc = rc ? rc : unpair(z, z->now.m[M_K].w, z->m->G, (size_t)z->m->D);
		rc = !rc && z->now.q_bias ? unpair(z, z->now.q_bias, z->m->H, 1) : rc;
		rc = !rc && z->now.k_bias ? unpair(z, z->now.k_bias, z->m->G, 1) : rc;
	}
	return rc;
}

/* A norm divides by s, in f16 as it will be written; s becomes what it then really does. */
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

/* Scales for the inputs of matrices p[n] that read in; what was seen is then of the scaled inputs. */
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

/* The query heads of a group read the same values: what is seen of o's inputs is their mean, so that
 * their scales are one, and v's outputs can be divided by it. */
static void share_heads(const struct sr_model *m, struct moments *in)
{
	int32_t heads = m->H / m->G;

	for (int32_t g = 0; g < m->G; g++)
		for (int32_t e = 0; e < m->E; e++) {
			double *first = in->size + (size_t)(g * heads * m->E + e), mean = 0;

			for (int32_t h = 0; h < heads; h++)
				mean += first[h * m->E] / heads;
			for (int32_t h = 0; h < heads; h++)
				first[h * m->E] = mean;
		}
}

static void search_o(struct quantize *z, float *s)
{
	struct layer *y = &z->now;
	struct matrix *o = &y->m[M_O];
	int32_t heads = z->m->H / z->m->G, E = z->m->E;

	share_heads(z->m, &z->in[IN_O]);
	search(z, &o, 1, &z->in[IN_O], NULL, NULL, s);
	for (int32_t i = 0; i < z->m->G * E; i++)
		s[i] = s[i / E * heads * E + i % E];
	awq_scale_outputs(&y->m[M_V], s);
	for (int32_t i = 0; y->v_bias && i < z->m->G * E; i++)
		y->v_bias[i] /= s[i];
}

static int search_layer(struct quantize *z)
{
	struct layer *y = &z->now;
	struct matrix *qkv[] = { &y->m[M_Q], &y->m[M_K], &y->m[M_V] }, *gu[] = { &y->m[M_GATE], &y->m[M_UP] };
	struct matrix *down = &y->m[M_DOWN];
	int32_t Q = z->m->H * z->m->E, widest = z->m->D > z->m->F ? z->m->D : z->m->F;
	float *s = malloc((size_t)(widest > Q ? widest : Q) * sizeof(*s));

	if (!s)
		return no_memory(z);
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
	int rc = qweight && qzeros && scales ? 0 : no_memory(z);

	if (!rc)
		awq_pack(a, qweight, qzeros, scales);
	for (int k = 0; k < 3 && !rc; k++)
		rc = put(z, all[k].tensor, 0, all[k].p, tensors_out_bytes(z->out, all[k].tensor));
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
		return no_memory(z);
	error = awq_round(&a, m, z->search ? z->in[matrix_of[i].in].square : NULL);
	rc = write_matrix(z, &z->layer[l], i, &a);
	awq_destroy(&a);
	z->error[i] += error / z->m->L;
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
		const struct sr_tensor *t = part(&z->m->layer[l], vector_of[i].at);
		const float *v = *floats_of(&z->now, i);
		int to = z->layer[l].vector[i];

		if (v && !changes(z, i)) {
			rc = copy_tensor(z, t, to);
			continue;
		}
		for (int32_t j = 0; v && j < t->k && !rc; j++) {
			uint16_t half = f16_of_f32(v[j]);

			rc = put(z, to, 2 * (uint64_t)j, &half, 2);
		}
	}
	return rc;
}

static int do_layer(struct quantize *z, int32_t l)
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

/* ---- the text ------------------------------------------------------------------------------- */

static int read_text(struct quantize *z)
{
	struct sr_text *t = NULL;
	char *s = malloc(TEXT_MAX);
	FILE *f = fopen(z->text, "re");
	size_t n = s && f ? fread(s, 1, TEXT_MAX, f) : 0;
	int64_t ids = 0;
	int rc = 0;

	z->id = malloc(TOKENS * sizeof(*z->id));
	if (!s || !z->id)
		rc = no_memory(z);
	else if (!f || ferror(f))
		rc = fail(z, -EIO, "%s: %s", z->text, strerror(errno));
	else
		rc = sr_text_open(&t, z->where.path, z->err, sizeof(z->err));
	if (!rc) {
		ids = sr_text_encode(t, s, n, SR_TEXT_SPECIAL_ADD, z->id, TOKENS, TOKENS);
		z->T = ids < TOKENS ? (int32_t)ids : TOKENS;
		z->T = z->T < z->m->context ? z->T : z->m->context;
		if (z->T < 64)
			rc = fail(z, -EINVAL, "%s: has %d tokens; scales need at least 64, and take up to %d",
			          z->text,
			          z->T, TOKENS);
	}
	for (int32_t i = 0; i < z->T && !rc; i++)
		if (z->id[i] < 0 || z->id[i] >= z->m->V)
			rc = fail(z, -EINVAL, "%s: its tokenizer gives id %d, but the model has %d",
			          z->where.path,
			          z->id[i], z->m->V);
	sr_text_close(t);
	free(s);
	if (f)
		fclose(f);
	return rc;
}

static int begin_text(struct quantize *z)
{
	size_t D = (size_t)z->m->D;
	int rc = read_text(z);

	if (rc)
		return rc;
	if (z->m->E % 16 || z->m->D % 32 || z->m->F % 32 || z->m->H * z->m->E % 32)
		return fail(z, -ENOTSUP, "%s: --scale-search computes with heads of a multiple of 16 and "
		            "widths of a multiple of 32", z->where.path);
	z->x = aligned_alloc(64, (size_t)z->T * D * 4 + 64 - (size_t)z->T * D * 4 % 64);
	z->y = aligned_alloc(64, (size_t)z->T * D * 4 + 64 - (size_t)z->T * D * 4 % 64);
	if (!z->x || !z->y || calibrate_create(&z->c, z->m, z->T) != 0)
		return no_memory(z);
	for (int32_t t = 0; t < z->T && !rc; t++)
		rc = read_rows(z, &z->m->embed, z->id[t], 1, z->x + (size_t)t * D);
	memcpy(z->y, z->x, (size_t)z->T * D * 4);
	return rc;
}

/* Mean of -log p over the second half of the text, before and after. */
static int end_text(struct quantize *z)
{
	const struct sr_tensor *head = z->m->head.type ? &z->m->head : &z->m->embed;
	int32_t T = z->T, from = T / 2, step = 2 * z->m->F < 2048 ? 2 * z->m->F : 2048;
	size_t D = (size_t)z->m->D;
	double *sum = malloc(4 * (size_t)T * sizeof(*sum)), *hit = sum + 2 * T;
	float *w = malloc((size_t)step * D * 4), *norm = malloc(D * 4);
	int rc = sum && w && norm ? read_rows(z, &z->m->norm, 0, 1, norm) : no_memory(z);

	if (!rc) {
		calibrate_norm(z->c, norm, z->x, z->x);
		calibrate_norm(z->c, norm, z->y, z->y);
		for (int32_t t = 0; t < 2 * T; t++)
			sum[t] = -INFINITY;
	}
	for (int32_t v = 0; v < z->m->V && !rc; v += step) {
		struct matrix part_of = { z->m->V - v < step ? z->m->V - v : step, z->m->D, w };

		rc = read_rows(z, head, v, part_of.n, w);
		if (!rc) {
			calibrate_head(z->c, &part_of, v, z->x, from, z->id, sum, hit);
			calibrate_head(z->c, &part_of, v, z->y, from, z->id, sum + T, hit + T);
		}
	}
	for (int32_t t = from; t < T - 1 && !rc; t++) {
		z->loss += (sum[t] - hit[t]) / (T - 1 - from);
		z->loss_after += (sum[T + t] - hit[T + t]) / (T - 1 - from);
	}
	free(sum);
	free(w);
	free(norm);
	return rc;
}

static int write_rest(struct quantize *z)
{
	int rc = copy_tensor(z, &z->m->embed, z->embed);

	if (!rc)
		rc = copy_tensor(z, &z->m->norm, z->norm);
	if (!rc && z->m->head.type)
		rc = copy_tensor(z, &z->m->head, z->head);
	if (!rc && (rc = tensors_out_finish(z->out)) != 0)
		rc = fail(z, rc, "%s/model.safetensors: %s", z->dir, strerror(-rc));
	return rc ? rc : quantize_dir_write(&z->where, z->md, z->dir, z->group, z->err, sizeof(z->err));
}

/* ---- the whole ------------------------------------------------------------------------------ */

static int check_tensor(struct quantize *z, const struct sr_tensor *t)
{
	if (t->type && !types_bytes(t->type, t->k))
		return fail(z, -ENOTSUP, "tensor %s is of type %s, which quantize does not read", t->name,
		            model_type_name(t->type));
	if (t->add != 0)
		return fail(z, -ENOTSUP, "tensor %s: norms of this architecture are not written", t->name);
	return 0;
}

static int check_tensors(struct quantize *z)
{
	const struct sr_model *m = z->m;
	int rc = check_tensor(z, &m->embed);

	if (m->embed_scale != 1 || m->logit_cap != 0 || m->layer[0].post1.type || m->rope[0].dims != m->E)
		return fail(z, -ENOTSUP, "%s: quantize computes what Llama, Qwen2 and Qwen3 do, not what %s adds "
		            "to it", z->where.path, m->arch);
	rc = rc ? rc : check_tensor(z, &m->norm);
	rc = rc ? rc : check_tensor(z, &m->head);
	for (int32_t l = 0; l < m->L && !rc; l++) {
		for (int i = 0; i < N_VECTORS && !rc; i++)
			rc = check_tensor(z, part(&m->layer[l], vector_of[i].at));
		for (int i = 0; i < N_MATRICES && !rc; i++)
			rc = check_tensor(z, part(&m->layer[l], matrix_of[i].at));
	}
	return rc;
}

static int open_model(struct quantize *z)
{
	int rc = locate_model(&z->where, z->model, z->err, sizeof(z->err));

	if (rc)
		return rc;
	if ((rc = model_open(&z->md, z->where.path, z->err, sizeof(z->err))) != 0)
		return rc;
	z->m = &z->md->m;
	if (*z->md->quantization && !z->where.gguf)
		return fail(z, -ENOTSUP, "%s is quantized already (%s): take the model that it was made from",
		            z->where.path, z->md->quantization);
	if ((rc = quantize_dir_check(&z->where, z->md, z->err, sizeof(z->err))) != 0 ||
	    (rc = check_tensors(z)) != 0)
		return rc;
	z->paired = z->m->rope[0].pairs;
	z->md->m.rope[0].pairs = z->md->m.rope[1].pairs = 0;
	z->file = malloc((size_t)z->md->n_files * sizeof(*z->file));
	if (!z->file)
		return no_memory(z);
	for (int32_t i = 0; i < z->md->n_files; i++)
		z->file[i] = -1;
	for (int32_t i = 0; i < z->md->n_files; i++)
		if ((z->file[i] = open(z->md->file[i], O_RDONLY | O_CLOEXEC)) < 0)
			return fail(z, -errno, "%s: %s", z->md->file[i], strerror(errno));
	return 0;
}

static int open_out(struct quantize *z)
{
	char path[4200];

	snprintf(path, sizeof(path), "%s/config.json", z->dir);
	if (mkdir(z->dir, 0777) < 0 && errno != EEXIST)
		return fail(z, -errno, "%s: %s", z->dir, strerror(errno));
	if (access(path, F_OK) == 0)
		return fail(z, -EEXIST, "%s holds a model already: give --out another directory", z->dir);
	snprintf(path, sizeof(path), "%s/model.safetensors", z->dir);
	z->out = tensors_out_create(path);
	return z->out ? plan(z) : no_memory(z);
}

static void progress(int32_t done, int32_t of)
{
	int part = of ? 40 * done / of : 40;

	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r[%.*s%*s] layer %d of %d%s", part,
		        "########################################", 40 - part,
		        "", done, of, done == of ? "\n" : "");
}

static int run(struct quantize *z)
{
	int rc = open_model(z);

	if (!rc && z->text)
		rc = begin_text(z);
	if (!rc)
		rc = open_out(z);
	if (!rc)
		rc = take_room(z);
	for (int32_t l = 0; !rc && l < z->m->L; l++) {
		progress(l, z->m->L);
		rc = do_layer(z, l);
	}
	if (!rc) {
		progress(z->m->L, z->m->L);
		rc = z->text ? end_text(z) : 0;
	}
	return rc ? rc : write_rest(z);
}

static void report(const struct quantize *z)
{
	double before = (double)z->md->weight_bytes / 1048576, after = 0;
	char path[4200];
	struct stat st;

	snprintf(path, sizeof(path), "%s/model.safetensors", z->dir);
	if (stat(path, &st) == 0)
		after = (double)st.st_size / 1048576;
	printf("%s: %.1f MiB of %.60s became %.1f MiB of AWQ, 4 bits, ", z->dir, before, z->md->stored, after);
	printf(z->group ? "groups of %d\n" : "a group a row\n", z->group);
	printf("error of a matrix, as a part of it (root mean square):\n");
	for (int i = 0; i < N_MATRICES; i++)
		printf("  %-9s  %5.2f %%, at most %5.2f %% in layer %d\n", matrix_of[i].name,
		       100 * z->error[i],
		       100 * z->worst[i], z->worst_at[i]);
	if (z->text)
		printf("negative log likelihood of tokens %d to %d of %s: %.4f before, %.4f after (%+.2f "
		       "%%)\n", z->T / 2 + 1,
		       z->T - 1, z->text, z->loss, z->loss_after, 100 * (z->loss_after / z->loss - 1));
}

static void release(struct quantize *z)
{
	for (int i = 0; i < N_VECTORS; i++)
		free(*floats_of(&z->now, i));
	for (int i = 0; i < N_MATRICES; i++)
		free(z->now.m[i].w);
	for (int i = 0; i < N_INPUTS; i++) {
		free(z->in[i].size);
		free(z->in[i].square);
	}
	calibrate_destroy(z->c);
	tensors_out_destroy(z->out);
	for (int32_t i = 0; z->file && i < z->md->n_files; i++)
		if (z->file[i] >= 0)
			close(z->file[i]);
	model_close(z->md);
	free(z->file);
	free(z->layer);
	free(z->id);
	free(z->x);
	free(z->y);
}

static int usage(FILE *to)
{
	fprintf(to, "slipring quantize MODEL --out DIR [OPTIONS]\n\n"
	            "Writes MODEL (a GGUF file, a Hugging Face directory, or an id in the download cache) as\n"
	            "a directory with matrices of 4 bits in AWQ's layout.  Embeddings, norms and head keep\n"
	            "their 16 or 32 bits; what a GGUF file has in fewer becomes f16.\n\n"
	            "  --out DIR                  where to; made if it is not there\n"
	            "  --format awq               the only one so far\n"
	            "  --group-size N             inputs to a scale: 32, 64, 128, .. or -1, the whole row\n"
	            "                             (default 64)\n"
	            "  --scale-search FILE|none   a text like those that it will see: the inputs that\n"
	            "                             matter there are rounded finer (arXiv 2306.00978), and\n"
	            "                             what is lost is measured (default none: plain rounding)\n"
	            "  --loss FILE                with plain rounding: a text by which to measure what is lost\n"
	            "  --tensors                  the error of each matrix\n\n"
	            "For example:  slipring quantize ./SmolLM2-135M --out ./smol --scale-search book.txt\n");
	return to == stdout ? 0 : 2;
}

/* --name VALUE or --name=VALUE at argv[*i]; NULL: it is another. */
static const char *value(const char *name, int argc, char **argv, int *i)
{
	size_t n = strlen(name);

	if (strncmp(argv[*i], name, n) != 0)
		return NULL;
	if (argv[*i][n] == '=')
		return argv[*i] + n + 1;
	return !argv[*i][n] && *i + 1 < argc ? argv[++*i] : NULL;
}

static int parse(struct quantize *z, int argc, char **argv)
{
	const char *format = "awq", *size = "64", *v;
	char *end;

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--tensors") == 0)
			z->all = true;
		else if ((v = value("--out", argc, argv, &i)) != NULL)
			z->dir = v;
		else if ((v = value("--format", argc, argv, &i)) != NULL)
			format = v;
		else if ((v = value("--group-size", argc, argv, &i)) != NULL)
			size = v;
		else if ((v = value("--scale-search", argc, argv, &i)) != NULL)
			z->search = strcmp(v, "none") != 0, z->text = z->search ? v : z->text;
		else if ((v = value("--loss", argc, argv, &i)) != NULL)
			z->text = v;
		else if (argv[i][0] == '-')
			return fail(z, -EINVAL, "%s is unknown or lacks its value; see slipring quantize "
			            "--help", argv[i]);
		else if (z->model)
			return fail(z, -EINVAL, "%s: there is a MODEL already, %s", argv[i], z->model);
		else
			z->model = argv[i];
	}
	if (!z->model || !z->dir)
		return fail(z, -EINVAL, "%s; see slipring quantize --help", z->model ? "--out DIR is "
		            "missing" : "MODEL is missing");
	if (strcmp(format, "awq") != 0)
		return fail(z, -EINVAL, "--format is %s; awq is what there is", format);
	z->group = (int32_t)strtol(size, &end, 10);
	if (*end || (z->group != -1 && (z->group < 32 || z->group % 32 || z->group > 65536)))
		return fail(z, -EINVAL, "--group-size is %s; -1 and multiples of 32 are allowed", size);
	z->group = z->group == -1 ? 0 : z->group;
	return 0;
}

int cmd_quantize(int argc, char **argv)
{
	struct quantize z = { 0 };
	int rc;

	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
			return usage(stdout);
	if (argc < 2)
		return usage(stderr);
	rc = parse(&z, argc, argv);
	if (rc) {
		fprintf(stderr, "slipring quantize: %s\n", z.err);
		return 2;
	}
	rc = run(&z);
	if (rc)
		fprintf(stderr, "%sslipring quantize: %s\n", isatty(STDERR_FILENO) && z.m ? "\n" : "", z.err);
	else
		report(&z);
	release(&z);
	return rc ? 1 : 0;
}
