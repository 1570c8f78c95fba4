/* quantize_plan.c - which tensors slipring quantize writes in 4 bits, which as they are, and under which
 * names.  See quantize_impl.h.
 *
 * A directory's tensors keep their names, so what reads the family's own
 * checkpoints reads these: a matrix of a layer becomes qweight, qzeros and scales; everything else
 * (embeddings, norms, routers, towers) is copied. Of experts that are in one tensor each gets tensors of
 * its own, as Qwen's 16-bit checkpoints have them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "quantize_impl.h"
#include "kernels/cpu/types.h"

#define AT(field) offsetof(struct sr_layer, field)
/* Matrices of a layer, and what they multiply. gguf: their names in a directory, of what is read from a
 * GGUF. */
static const struct role { size_t at; int in; const char *gguf; } roles[] = {
	{ AT(q), IN_MIXER, "self_attn.q_proj" },   { AT(k), IN_MIXER, "self_attn.k_proj" },
	{ AT(v), IN_MIXER, "self_attn.v_proj" },   { AT(o_gate), IN_MIXER, NULL },
	{ AT(q_a), IN_MIXER, NULL },               { AT(kv_a), IN_MIXER, NULL },
	{ AT(o), IN_O, "self_attn.o_proj" },
	{ AT(gate), IN_FFN, "mlp.gate_proj" },     { AT(up), IN_FFN, "mlp.up_proj" },
	{ AT(down), IN_DOWN, "mlp.down_proj" },
	{ AT(shared_gate), IN_FFN, NULL },         { AT(shared_up), IN_FFN, NULL },
	{ AT(shared_down), IN_DOWN, NULL },
};
static const struct role expert_roles[3] = {
	{ AT(expert_gate), IN_FFN, "gate_proj" }, { AT(expert_up), IN_FFN, "up_proj" },
	{ AT(expert_down), IN_DOWN, "down_proj" },
};
static const struct { size_t at; const char *gguf; } vectors[] = {   /* of a GGUF */
	{ AT(norm1),  "input_layernorm.weight" },  { AT(norm2),  "post_attention_layernorm.weight" },
	{ AT(q_bias), "self_attn.q_proj.bias" },   { AT(k_bias), "self_attn.k_proj.bias" },
	{ AT(v_bias), "self_attn.v_proj.bias" },   { AT(o_bias), "self_attn.o_proj.bias" },
	{ AT(q_norm), "self_attn.q_norm.weight" }, { AT(k_norm), "self_attn.k_norm.weight" },
};
static const size_t changes[N_CHANGES] = {
	[C_NORM1] = AT(norm1), [C_NORM1_BIAS] = AT(norm1_bias), [C_NORM2] = AT(norm2),
	[C_NORM2_BIAS] = AT(norm2_bias),
	[C_V_BIAS] = AT(v_bias), [C_UP_BIAS] = AT(up_bias), [C_ROUTER] = AT(router), [C_MIX] = AT(shared_mix),
	[C_Q_BIAS] = AT(q_bias), [C_K_BIAS] = AT(k_bias),
};
#undef AT
#define COUNT(list) (sizeof(list) / sizeof(*(list)))

static const struct sr_tensor *tensor_at(const struct sr_layer *y, size_t at)
{
	return (const struct sr_tensor *)(const void *)((const char *)y + at);
}

/* ---- what can be written ------------------------------------------------------------------------ */

#define NEAREST "a GGUF of 4 bits (Q4_K_M) of this model runs here"

static int check_tensor(struct quantize *z, const struct sr_tensor *t)
{
	if (t->type && !types_bytes(t->type, t->k))
		return quantize_fail(z, -ENOTSUP, "tensor %s is of type %s, which quantize does not read", t->name,
		                     model_type_name(t->type));
	return 0;
}

static int check_experts(struct quantize *z, const struct sr_layer *y)
{
	for (size_t i = 0; i < COUNT(expert_roles); i++) {
		const struct sr_tensor *t = tensor_at(y, expert_roles[i].at);

		if (t->type && !strstr(t->name, ".experts.0.") &&
		    (t->transposed || !strstr(t->name, ".mlp.experts.")))
			return quantize_fail(z, -ENOTSUP, "%s: the experts of %s are in one tensor (%s), for which "
			                     "AWQ has no names; "
			                     NEAREST, z->where.path, z->m->arch, t->name);
	}
	return 0;
}

/* A GGUF brings no config.json: it is made up for the families whose settings are few. */
static int check_gguf(struct quantize *z)
{
	const struct sr_model *m = z->m;

	if (sr_beyond(m) || m->embed_scale != 1 || m->logit_cap != 0 || m->layer[0].post1.type ||
	    m->kind[0].rope.dims != m->kind[0].head_dim || m->norm.add != 0)
		return quantize_fail(z, -ENOTSUP, "%s: of GGUF files quantize takes llama, qwen2 and qwen3, but "
		                     "not what %s adds; give it the Hugging Face directory of 16 bits that "
		                     "this file was made from",
		                     z->where.path, m->arch);
	return 0;
}

int quantize_check(struct quantize *z)
{
	const struct sr_model *m = z->m;
	unsigned has = sr_beyond(m);
	int rc;

	if (has & (SR_HAS_NORM_AFTER | SR_HAS_BIDIRECTIONAL | SR_HAS_POSITIONS))
		return quantize_fail(z, -ENOTSUP, "%s: %s is an encoder, which is small and loses more with 4 "
		                     "bits than it "
		                     "saves; a GGUF of 8 bits (Q8_0) of it runs here", z->where.path, m->arch);
	if (has & SR_HAS_LABELS)
		return quantize_fail(z, -ENOTSUP, "%s: %s has a classifier, which quantize does not write",
		                     z->where.path, m->arch);
	if (has & (SR_HAS_INPUTS | SR_HAS_SHARED_KV))
		return quantize_fail(z, -ENOTSUP, "%s: layers of %s read inputs or keys of other layers, but "
		                     "quantize computes "
		                     "one layer at a time; " NEAREST, z->where.path, m->arch);
	if (z->where.gguf && (rc = check_gguf(z)) != 0)
		return rc;
	rc = check_tensor(z, &m->embed);
	rc = rc ? rc : check_tensor(z, &m->head);
	for (int32_t l = 0; l < m->n_layers && !rc; l++) {
		for (size_t i = 0; i < COUNT(roles) && !rc; i++)
			rc = check_tensor(z, tensor_at(&m->layer[l], roles[i].at));
		rc = rc ? rc : check_experts(z, &m->layer[l]);
	}
	return rc;
}

bool quantize_scales_mixer(const struct quantize *z, int32_t l)
{
	const struct sr_layer *y = &z->m->layer[l];

	/* in_proj_a and in_proj_b keep their bits */
	return z->search && y->norm1.type && y->mixer != SR_DELTA && !y->q.run;
}

bool quantize_scales_o(const struct quantize *z, int32_t l)
{
	const struct sr_layer *y = &z->m->layer[l];
	const struct sr_attn *kind = kind_of(z->m, l);

	return z->search && y->mixer == SR_ATTEND && y->v.type && !y->q.run && !kind->v_norm && !kind->k_is_v;
}

bool quantize_scales_ffn(const struct quantize *z, int32_t l)
{
	return z->search && z->m->layer[l].norm2.type;
}

bool quantize_scales_down(const struct quantize *z)
{
	return z->search && z->m->layer[0].ffn != SR_PLAIN && z->m->act != SR_OAI;
}

/* ---- units -------------------------------------------------------------------------------------- */

static int kind_named(struct quantize *z, const char *name)
{
	int k = 0;

	while (k < z->n_kinds && strcmp(z->kind[k].name, name) != 0)
		k++;
	if (k == z->n_kinds && k < KINDS_MAX) {
		z->n_kinds++;
		snprintf(z->kind[k].name, sizeof(z->kind[k].name), "%s", name);
	}
	return k < KINDS_MAX ? k : KINDS_MAX - 1;
}

/* "q_proj"; of experts "experts.w1". */
static int kind_of_unit(struct quantize *z, const struct unit *u)
{
	const char *last = strrchr(u->name, '.');
	char name[32];

	snprintf(name, sizeof(name), "%s%.20s", u->expert < 0 ? "" : "experts.", last ? last + 1 : u->name);
	return kind_named(z, name);
}

static struct unit *add_unit(struct quantize *z, const char *name, const struct sr_tensor *from, int in,
                             int32_t expert)
{
	struct unit *more = z->unit, *u;
	size_t n = strlen(name);

	if (z->n_units % 1024 == 0)
		more = realloc(z->unit, ((size_t)z->n_units + 1024) * sizeof(*more));
	if (!more)
		return NULL;
	z->unit = more;
	u = &more[z->n_units];
	*u = (struct unit){ .from = *from, .in = in, .expert = expert, .m = { from->n, from->k, NULL } };
	u->name = strndup(name, n > 7 && strcmp(name + n - 7, ".weight") == 0 ? n - 7 : n);
	if (!u->name)
		return NULL;
	u->kind = kind_of_unit(z, u);
	z->n_units++;
	return u;
}

/* The stored matrix that this one is all or a part of, as a tensor of its own. */
static struct sr_tensor stored(const struct sr_tensor *t, const struct safetensors_at *at)
{
	return (struct sr_tensor){ .name = at->t->name, .type = t->type, .n = (int32_t)at->t->dim[0],
		.k = (int32_t)at->t->dim[1], .count = 1, .data = { at->t->offset, at->t->bytes, at->file } };
}

/* The rows of `t` in a unit of layer p, which is made for the first that it holds. */
static int plan_matrix(struct quantize *z, int32_t l, const struct role *r, bool *taken, struct rows *rows)
{
	struct planned *p = &z->layer[l];
	const struct sr_tensor *t = tensor_at(&z->m->layer[l], r->at);
	const struct safetensors_at *at = z->st && t->type ? safetensors_lookup(z->st, t->name) : NULL;
	int in = r->in == IN_MIXER && z->m->layer[l].q_a.type && t == &z->m->layer[l].q ? IN_Q : r->in;
	struct sr_tensor from = *t;
	char name[200];

	*rows = (struct rows){ -1, 0, t };
	/* q in runs of rows (with a gate, or states) keeps its bits, and so does what others join with it */
	if (!t->type || (r->in == IN_MIXER && z->m->layer[l].q.run))
		return 0;
	if (z->st ? !at : !r->gguf)
		return quantize_fail(z, -ENOTSUP, "tensor %s has no name in the written directory", t->name);
	if (z->st) {
		snprintf(name, sizeof(name), "%.*s", (int)(strlen(t->name) > 7 ? strlen(t->name) - 7 : 0), t->name);
		from = stored(t, at);
		taken[at - z->st->all] = true;
		rows->first = (int32_t)((t->data.offset - at->t->offset) / types_bytes(t->type, t->k));
	} else {
		snprintf(name, sizeof(name), "model.layers.%d.%s", l, r->gguf);
	}
	for (int i = p->first; i < z->n_units && rows->unit < 0; i++)
		if (strcmp(z->unit[i].name, name) == 0)
			rows->unit = i;
	if (rows->unit >= 0)
		return 0;
	rows->unit = z->n_units;
	return add_unit(z, name, &from, in, -1) ? 0 : quantize_no_memory(z);
}

/* Gate, up or down of expert e: its own tensor, or its part of one. */
static int plan_expert(struct quantize *z, int32_t l, const struct role *r, int32_t e, bool *taken)
{
	const struct sr_tensor *t = tensor_at(&z->m->layer[l], r->at);
	const char *zero = strstr(t->name, ".experts.0."), *all = strstr(t->name, ".mlp.experts.");
	struct sr_tensor from = { .name = t->name, .type = t->type, .n = t->n, .k = t->k, .count = 1,
	                          .data = sr_stored_of(t, e).data };
	const struct safetensors_at *at;
	char name[200];

	if (zero)
		snprintf(name, sizeof(name), "%.*s.experts.%d.%s", (int)(zero - t->name), t->name, e, zero + 11);
	else
		snprintf(name, sizeof(name), "%.*s.mlp.experts.%d.%s.weight", (int)(all - t->name), t->name, e,
		         r->gguf);
	at = safetensors_lookup(z->st, zero ? name : t->name);
	if (!at)
		return quantize_fail(z, -EINVAL, "tensor %s is missing", name);
	taken[at - z->st->all] = true;
	return add_unit(z, name, &from, r->in, e) ? 0 : quantize_no_memory(z);
}

static int plan_units(struct quantize *z, int32_t l, bool *taken)
{
	struct planned *p = &z->layer[l];
	const struct sr_layer *y = &z->m->layer[l];
	int rc = 0;

	p->first = z->n_units;
	p->q.unit = p->k.unit = p->v.unit = p->o.unit = p->up.unit = p->down.unit = -1;
	for (size_t i = 0; i < COUNT(roles) && !rc; i++) {
		const struct sr_tensor *t = tensor_at(y, roles[i].at);
		struct rows rows;

		rc = plan_matrix(z, l, &roles[i], taken, &rows);
		if (t == &y->q)
			p->q = rows;
		if (t == &y->k)
			p->k = rows;
		if (t == &y->v)
			p->v = rows;
		if (t == &y->o)
			p->o = rows;
		if (t->type && (t == &y->up || t == &y->shared_up))
			p->up = rows;
		if (t->type && (t == &y->down || t == &y->shared_down))
			p->down = rows;
	}
	p->n_dense = z->n_units - p->first;
	for (int32_t e = 0; y->ffn == SR_EXPERTS && e < z->m->experts.n; e++)
		for (size_t i = 0; i < COUNT(expert_roles) && !rc; i++)
			rc = plan_expert(z, l, &expert_roles[i], e, taken);
	p->n = z->n_units - p->first;
	return rc;
}

/* ---- plain tensors ------------------------------------------------------------------------------ */

static struct plain *add_plain(struct quantize *z, const char *name)
{
	struct plain *more = z->plain;

	if (z->n_plain % 1024 == 0)
		more = realloc(z->plain, ((size_t)z->n_plain + 1024) * sizeof(*more));
	if (!more)
		return NULL;
	z->plain = more;
	more[z->n_plain] = (struct plain){ .name = strdup(name) };
	return more[z->n_plain].name ? &more[z->n_plain++] : NULL;
}

static int plan_gguf(struct quantize *z, const char *name, const struct sr_tensor *t)
{
	struct plain *p = t->type ? add_plain(z, name) : NULL;

	if (!t->type)
		return 0;
	if (!p)
		return quantize_no_memory(z);
	p->from = *t;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct plain *)a)->name, ((const struct plain *)b)->name);
}

/* By name, as the table of a directory is. */
static int plan_plain(struct quantize *z, const bool *taken)
{
	int rc = 0;

	for (uint64_t i = 0; z->st && i < z->st->n_tensors; i++) {
		struct plain *p = taken[i] ? NULL : add_plain(z, z->st->all[i].t->name);

		if (!taken[i] && !p)
			return quantize_no_memory(z);
		if (p) {
			p->st = z->st->all[i].t;
			p->file = z->st->all[i].file;
		}
	}
	if (z->st)
		return 0;
	rc = plan_gguf(z, "model.embed_tokens.weight", &z->m->embed);
	rc = rc ? rc : plan_gguf(z, "model.norm.weight", &z->m->norm);
	rc = rc ? rc : plan_gguf(z, "lm_head.weight", &z->m->head);
	for (int32_t l = 0; l < z->m->n_layers; l++)
		for (size_t i = 0; i < COUNT(vectors) && !rc; i++) {
			char name[160];

			snprintf(name, sizeof(name), "model.layers.%d.%s", l, vectors[i].gguf);
			rc = plan_gguf(z, name, tensor_at(&z->m->layer[l], vectors[i].at));
		}
	if (z->n_plain)
		qsort(z->plain, (size_t)z->n_plain, sizeof(*z->plain), by_name);
	return rc;
}

static bool does_change(const struct quantize *z, int32_t l, int i)
{
	const struct sr_layer *y = &z->m->layer[l];
	const bool ffn = quantize_scales_ffn(z, l);

	switch (i) {
	case C_NORM1: case C_NORM1_BIAS:
		return quantize_scales_mixer(z, l);
	case C_NORM2: case C_NORM2_BIAS:
		return ffn;
	case C_V_BIAS:
		return quantize_scales_o(z, l);
	case C_UP_BIAS:
		return quantize_scales_down(z);
	case C_ROUTER: case C_MIX:
		return ffn && y->ffn == SR_EXPERTS;
	default:
		return z->paired;
	}
}

/* Find the plain tensor of a change. */
static int plain_of(const struct quantize *z, const struct sr_tensor *t)
{
	for (int i = 0; i < z->n_plain; i++) {
		const struct plain *p = &z->plain[i];
		uint64_t at = p->st ? p->st->offset : p->from.data.offset;

		if (at == t->data.offset && (p->st ? p->file : p->from.data.file) == t->data.file)
			return i;
	}
	return -1;
}

static int plan_changes(struct quantize *z, int32_t l)
{
	for (int i = 0; i < N_CHANGES; i++) {
		const struct sr_tensor *t = tensor_at(&z->m->layer[l], changes[i]);
		int at = t->type && does_change(z, l, i) ? plain_of(z, t) : -1;

		z->layer[l].change[i] = at;
		if (at < 0)
			continue;
		z->plain[at].changes = true;
		z->plain[at].from = *t;
	}
	return 0;
}

/* ---- the file ------------------------------------------------------------------------------------ */

static int write_unit(struct quantize *z, struct unit *u)
{
	int group = z->group ? z->group : u->from.k;
	char name[240];

	if (u->from.k % group || u->from.k % 32 || u->from.n % 8)
		return quantize_fail(z, -EINVAL, "%s is %d x %d: its outputs must be a multiple of 8, and its inputs "
		                     "of --group-size %d", u->name, u->from.n, u->from.k, group);
#define NAME(end) (snprintf(name, sizeof(name), "%s.%s", u->name, end), name)
	u->qweight = tensors_out_add(z->out, NAME("qweight"), "I32", 4, u->from.k, u->from.n / 8);
	u->qzeros = tensors_out_add(z->out, NAME("qzeros"), "I32", 4, u->from.k / group, u->from.n / 8);
	u->scales = tensors_out_add(z->out, NAME("scales"), "F16", 2, u->from.k / group, u->from.n);
#undef NAME
	return u->qweight < 0 || u->qzeros < 0 || u->scales < 0 ? quantize_no_memory(z) : 0;
}

/* The type in which a tensor of a GGUF is written: its own, if a directory can have it. */
static int32_t plain_type(const struct sr_tensor *t)
{
	return t->type == SR_F32 || t->type == SR_BF16 ? t->type : SR_F16;
}

static int write_plain(struct quantize *z, struct plain *p)
{
	const struct sr_tensor *t = &p->from;
	int32_t type = p->changes ? SR_F16 : p->st ? 0 : plain_type(t);

	if (p->st && !p->changes)
		p->out = tensors_out_add_as(z->out, p->name, p->st->dtype, p->st->bytes, p->st->n_dims, p->st->dim);
	else
		p->out = tensors_out_add(z->out, p->name, model_type_name(type), type == SR_F32 ? 4 : 2,
		                         t->n == 1 && !(p->st && p->st->n_dims == 2) ? t->k : t->n,
		                         t->n == 1 && !(p->st && p->st->n_dims == 2) ? 0 : t->k);
	return p->out < 0 ? quantize_no_memory(z) : 0;
}

int quantize_plan(struct quantize *z)
{
	bool *taken = calloc(z->st ? z->st->n_tensors + 1 : 1, sizeof(*taken));
	int rc = 0;

	z->layer = calloc((size_t)z->m->n_layers, sizeof(*z->layer));
	if (!z->layer || !taken)
		rc = quantize_no_memory(z);
	for (int32_t l = 0; l < z->m->n_layers && !rc; l++)
		rc = plan_units(z, l, taken);
	rc = rc ? rc : plan_plain(z, taken);
	free(taken);
	for (int32_t l = 0; l < z->m->n_layers && !rc; l++)
		rc = plan_changes(z, l);
	for (int i = 0; i < z->n_plain && !rc; i++)
		rc = write_plain(z, &z->plain[i]);
	for (int i = 0; i < z->n_units && !rc; i++)
		rc = write_unit(z, &z->unit[i]);
	if (!rc && (rc = tensors_out_begin(z->out)) != 0)
		rc = quantize_fail(z, rc, "%s/model.safetensors: %s", z->dir, strerror(-rc));
	return rc;
}

void quantize_plan_free(struct quantize *z)
{
	for (int i = 0; i < z->n_units; i++)
		free(z->unit[i].name);
	for (int i = 0; i < z->n_plain; i++)
		free(z->plain[i].name);
	free(z->unit);
	free(z->plain);
	free(z->layer);
}

/* ---- what is left -------------------------------------------------------------------------------- */

/* A matrix in a layer of the text model by its own name, all of a tower by the tower's. */
static void name_left(const struct quantize *z, const char *name, char *out, size_t n)
{
	const char *begin = strstr(name, "layers.");
	const char *first = z->n_units ? strstr(z->unit[0].name, "layers.") : NULL;
	size_t own = first ? (size_t)(first - z->unit[0].name) : 0, len = strlen(name);

	*out = 0;
	if (strstr(name, "embed_tokens.") || strstr(name, "lm_head."))
		return;
	if (begin && (size_t)(begin - name) == own && strncmp(name, z->unit[0].name, own) == 0) {
		if (len > 7 && strcmp(name + len - 7, ".weight") == 0)
			snprintf(out, n, "%.*s", (int)len - 7, name);
		return;
	}
	len = strncmp(name, "model.", 6) == 0 ? 6 : 0;
	snprintf(out, n, "%.*s", (int)(len + strcspn(name + len, ".")), name);
}

struct json_t *quantize_left(const struct quantize *z)
{
	json_t *all = json_array(), *seen = json_object();
	char name[200];

	for (int i = 0; i < z->n_plain && all && seen; i++) {
		const struct plain *p = &z->plain[i];

		if (!p->st || p->st->n_dims < 2)
			continue;
		name_left(z, p->name, name, sizeof(name));
		if (!*name || json_object_get(seen, name))
			continue;
		json_object_set_new(seen, name, json_true());
		json_array_append_new(all, json_string(name));
	}
	json_decref(seen);
	return all;
}
