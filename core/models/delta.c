/* models/delta.c - layers with a state, the gated delta rule: their settings, which layers they are, where their
 * matrices lie.  The gate of attention, which these families have in their other layers, is found here, too.
 *
 * Hugging Face's Qwen 3-Next has q, k, v and z of a key head side by side in one matrix, and b and a in another;
 * Qwen 3.5 has q, k and v one after the other, and the rest apart; GGUF files likewise, but that of Qwen 3-Next has b
 * and a as the directory.
 */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HEADS_MAX 1024
#define WIDTH_MAX 1024

/* ---- settings ------------------------------------------------------------------------------------------- */

static int read_sizes(struct opening *o)
{
	struct sr_delta *a = &o->m->delta;
	int32_t inner = 0;
	const struct { struct setting key; int32_t *out; int64_t max; } all[] = {
		{ { "ssm.conv_kernel", "linear_conv_kernel_dim" }, &a->conv, 64 },
		{ { "ssm.group_count", "linear_num_key_heads" }, &a->k_heads, HEADS_MAX },
		{ { "ssm.time_step_rank", "linear_num_value_heads" }, &a->v_heads, HEADS_MAX },
		{ { "ssm.state_size", "linear_key_head_dim" }, &a->k_dim, WIDTH_MAX },
		{ { "ssm.inner_size", "linear_value_head_dim" }, o->g ? &inner : &a->v_dim,
		  o->g ? HEADS_MAX * WIDTH_MAX : WIDTH_MAX },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		int rc = model_need(o, all[i].key, model_int(o, all[i].key, 1, all[i].max, all[i].out));

		if (rc)
			return rc;
	}
	if (a->v_heads % a->k_heads || a->conv < 2)
		return model_wrong(o, (struct setting){ "ssm.conv_kernel", "" }, -EINVAL, "%d value heads of %d key heads, and a "
		                   "convolution of %d: the first must be a multiple of the second, the last at least 2",
		                   a->v_heads, a->k_heads, a->conv);
	if (o->g) {
		a->v_dim = inner / a->v_heads;
		if (inner % a->v_heads || a->v_dim > WIDTH_MAX)
			return model_fail(o, -EINVAL, "%s.ssm.inner_size is %d, which is no width of %d value heads",
			                  o->m->arch, inner, a->v_heads);
	}
	return 0;
}

/* config.json: layer_types; else all layers but every n-th. */
static int hf_layers(struct opening *o, int32_t each)
{
	const json_t *types = json_object_get(o->config, "layer_types");

	for (int32_t l = 0; l < o->m->n_layers; l++) {
		const char *type = json_string_value(json_array_get(types, (size_t)l)); /* kinds.c has checked them */

		if (type ? strcmp(type, "linear_attention") == 0 : (l + 1) % each != 0)
			o->m->layer[l].mixer = SR_DELTA;
	}
	return 0;
}

/* attention.recurrent_layers has a boolean for each layer; older files have only the interval. */
static int gguf_layers(struct opening *o, int32_t each)
{
	const struct gguf_value *v;
	char name[96];

	snprintf(name, sizeof(name), "%s.attention.recurrent_layers", o->m->arch);
	v = gguf_find(o->g, name);
	model_note_asked(o, false, "attention.recurrent_layers");
	if (v && (v->type != GGUF_ARRAY || v->item != GGUF_BOOL || v->n < (uint64_t)o->m->n_layers))
		return model_fail(o, -EINVAL, "%s is no list of %d booleans, one a layer", name, o->m->n_layers);
	for (int32_t l = 0; l < o->m->n_layers; l++)
		if (v ? v->data[l] != 0 : (l + 1) % each != 0)
			o->m->layer[l].mixer = SR_DELTA;
	return 0;
}

int model_delta(struct opening *o)
{
	const struct setting interval = { "full_attention_interval", "full_attention_interval" };
	int32_t each = 4, attend = 0;
	int rc = read_sizes(o);

	if (rc || (rc = model_int(o, interval, 1, LAYERS_MAX, &each)) < 0 ||
	    (rc = o->g ? gguf_layers(o, each) : hf_layers(o, each)) != 0)
		return rc;
	for (int32_t l = 0; l < o->m->n_layers; l++)
		attend += o->m->layer[l].mixer == SR_ATTEND;
	if (!attend)
		return model_wrong(o, interval, -ENOTSUP, "no layer has attention: a model of layers with a state alone is not "
		                   "supported");
	return 0;
}

/* ---- tensors -------------------------------------------------------------------------------------------- */

/* A matrix [n][k] or, with n == 1, a vector of k.  whole > 0: it is cut out of a matrix of so many outputs, from
 * number `first` on; run > 0: in runs of `run`, which begin `step` apart. */
struct line {
	struct sr_tensor *t;
	const char *name;
	int32_t n, k, whole, first, run, step;
};

static int check_shape(struct opening *o, const struct line *s, const char *name, const struct found_tensor *f)
{
	uint64_t n = s->n == 1 ? 1 : (uint64_t)(s->whole ? s->whole : s->n), all = 1;

	for (uint32_t i = 0; i < f->n_dims && i < 4; i++)
		all = f->dim[i] && all > UINT64_MAX / f->dim[i] ? 0 : all * f->dim[i];
	if (f->type == SR_NONE || (s->n == 1 && f->type > SR_BF16))
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s, which is not supported here", name, f->type_name);
	if (f->n_dims > 4 || (s->n == 1 ? all != (uint64_t)s->k
	                                : f->n_dims != 2 || f->dim[0] != n || f->dim[1] != (uint64_t)s->k))
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu64 " elements in %" PRIu32
		                  " dimensions; the settings of this model make it [%" PRIu64 "][%d]", name, f->data.offset,
		                  all, f->n_dims, n, s->k);
	return 0;
}

static void make_up(struct opening *o, const struct line *s, const char *name, struct found_tensor *f)
{
	uint64_t bytes = (uint64_t)s->n * (uint64_t)s->k * 2;

	*f = (struct found_tensor){ .type = SR_BF16, .data = { o->made, bytes,
		strstr(name, "norm") ? MODEL_ONES : MODEL_RANDOM } };
	o->made += bytes;
}

static int take(struct opening *o, int32_t l, const struct line *s)
{
	struct found_tensor f = { .type = SR_NONE };
	bool runs = s->run && !o->dummy;
	char name[128];
	int rc = 0;

	snprintf(name, sizeof(name), o->config ? "%slayers.%d.%s" : "%sblk.%d.%s", o->config ? o->prefix : "", l, s->name);
	if (o->dummy)
		make_up(o, s, name, &f);
	else
		rc = o->g ? model_find_gguf(o, name, &f) : model_find_hf(o, name, &f);
	if (rc == 1)
		return model_fail(o, -EINVAL, "tensor %s is missing", name);
	if (!rc && !o->dummy && (rc = check_shape(o, s, name, &f)) == 0 && s->whole && !runs)
		rc = model_cut_rows(o, name, &f, (uint64_t)s->whole, (uint64_t)s->first, (uint64_t)s->n);
	if (rc)
		return rc;
	*s->t = (struct sr_tensor){ .name = strdup(name), .n = s->n, .k = s->k, .count = 1, .type = f.type,
		.data = f.data, .scale = f.scale, .zero = f.zero, .index = f.index, .group = f.group,
		.group_n = f.group_n, .scale_type = f.scale_type, .outputs = f.outputs, .first = f.first,
		.step = f.outputs ? 1 : 0 };
	if (runs) {
		s->t->outputs = s->whole;
		s->t->first = s->first;
		s->t->run = s->run;
		s->t->step = s->step;
	}
	if (!runs || !s->first)           /* of several in one, the first is counted */
		o->md->weight_bytes += f.data.bytes + f.scale.bytes + f.zero.bytes;
	return s->t->name ? 0 : model_no_memory(o);
}

/* q, k, v, z, b and a as Qwen 3-Next's directory has them: a group of rows for each key head. */
static int take_groups(struct opening *o, int32_t l)
{
	const struct sr_delta *a = &o->m->delta;
	const int32_t m = a->v_heads / a->k_heads, D = o->m->d_model, dk = a->k_dim, dv = m * a->v_dim;
	const int32_t step = 2 * dk + 2 * dv, whole = a->k_heads * step, keys = a->k_heads * dk;
	const int32_t values = a->v_heads * a->v_dim;
	struct sr_layer *y = &o->m->layer[l];
	const char *all = "linear_attn.in_proj_qkvz.weight", *ba = o->g ? "ssm_ba.weight" : "linear_attn.in_proj_ba.weight";
	const struct line of_all[] = {
		{ &y->q, all, keys, D, whole, 0, dk, step }, { &y->k, all, keys, D, whole, dk, dk, step },
		{ &y->v, all, values, D, whole, 2 * dk, dv, step },
		{ &y->o_gate, all, values, D, whole, 2 * dk + dv, dv, step },
	};
	const struct line of_ba[] = {
		{ &y->beta, ba, a->v_heads, D, 2 * a->v_heads, 0, m, 2 * m },
		{ &y->alpha, ba, a->v_heads, D, 2 * a->v_heads, m, m, 2 * m },
	};
	int rc = 0;

	for (int i = 0; i < 4 && !o->g && !rc; i++)
		rc = take(o, l, &of_all[i]);
	for (int i = 0; i < 2 && !rc; i++)
		rc = take(o, l, &of_ba[i]);
	return rc;
}

/* The same one after the other, b and a unless they are in groups. */
static int take_rows(struct opening *o, int32_t l, bool with_ba)
{
	const struct sr_delta *a = &o->m->delta;
	const int32_t D = o->m->d_model, keys = a->k_heads * a->k_dim, values = a->v_heads * a->v_dim;
	const char *qkv = o->g ? "attn_qkv.weight" : "linear_attn.in_proj_qkv.weight";
	struct sr_layer *y = &o->m->layer[l];
	const struct line lines[] = {
		{ &y->q, qkv, keys, D, 2 * keys + values, 0, 0, 0 },
		{ &y->k, qkv, keys, D, 2 * keys + values, keys, 0, 0 },
		{ &y->v, qkv, values, D, 2 * keys + values, 2 * keys, 0, 0 },
		{ &y->o_gate, o->g ? "attn_gate.weight" : "linear_attn.in_proj_z.weight", values, D, 0, 0, 0, 0 },
		{ &y->beta, o->g ? "ssm_beta.weight" : "linear_attn.in_proj_b.weight", a->v_heads, D, 0, 0, 0, 0 },
		{ &y->alpha, o->g ? "ssm_alpha.weight" : "linear_attn.in_proj_a.weight", a->v_heads, D, 0, 0, 0, 0 },
	};
	int rc = 0;

	for (int i = 0; i < (with_ba ? 6 : 4) && !rc; i++)
		rc = take(o, l, &lines[i]);
	return rc;
}

static int take_mixer(struct opening *o, int32_t l)
{
	const struct sr_delta *a = &o->m->delta;
	struct sr_layer *y = &o->m->layer[l];
	const bool next = strcmp(o->family->type, "qwen3_next") == 0;
	const struct line lines[] = {
		{ &y->conv, o->g ? "ssm_conv1d.weight" : "linear_attn.conv1d.weight", 1, sr_delta_channels(a) * a->conv,
		  0, 0, 0, 0 },
		{ &y->rate, o->g ? "ssm_a" : "linear_attn.A_log", 1, a->v_heads, 0, 0, 0, 0 },
		{ &y->dt, o->g ? "ssm_dt.bias" : "linear_attn.dt_bias", 1, a->v_heads, 0, 0, 0, 0 },
		{ &y->o_norm, o->g ? "ssm_norm.weight" : "linear_attn.norm.weight", 1, a->v_dim, 0, 0, 0, 0 },
		{ &y->o, o->g ? "ssm_out.weight" : "linear_attn.out_proj.weight", o->m->d_model, a->v_heads * a->v_dim,
		  0, 0, 0, 0 },
	};
	int rc = next && !o->g ? 0 : take_rows(o, l, !next);

	if (!rc && next)
		rc = take_groups(o, l);
	for (size_t i = 0; i < sizeof(lines) / sizeof(*lines) && !rc; i++)
		rc = take(o, l, &lines[i]);
	y->rate.neg_exp = !o->g;          /* a GGUF has done it */
	return rc;
}

/* Query and gate of a head are neighbours in one matrix. */
static int take_gated(struct opening *o, int32_t l)
{
	const struct sr_attn *kind = kind_of(o->m, l);
	const int32_t E = kind->head_dim, n = kind->n_heads * E;
	const char *name = o->g ? "attn_q.weight" : "self_attn.q_proj.weight";
	struct sr_layer *y = &o->m->layer[l];
	int rc = take(o, l, &(struct line){ &y->q, name, n, o->m->d_model, 2 * n, 0, E, 2 * E });

	return rc ? rc : take(o, l, &(struct line){ &y->o_gate, name, n, o->m->d_model, 2 * n, E, E, 2 * E });
}

int model_take_delta(struct opening *o, int32_t l)
{
	if (o->m->layer[l].mixer == SR_DELTA)
		return take_mixer(o, l);
	return o->has & O_GATE ? take_gated(o, l) : 0;
}

struct sr_tensor *model_delta_tensor(struct sr_layer *y, int i)
{
	struct sr_tensor *const all[] = { &y->o_gate, &y->beta, &y->alpha, &y->conv, &y->rate, &y->dt, &y->o_norm };

	return i < (int)(sizeof(all) / sizeof(*all)) ? all[i] : NULL;
}
