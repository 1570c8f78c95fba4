/* models/latent.c - latent keys and values (DeepSeek's, arXiv 2405.04434): their sizes, and where the matrices of
 * each head lie.
 *
 * A Hugging Face directory has both matrices of a head in kv_b_proj, [heads][q_dim + v_dim][latent]; so have old GGUF
 * files.  Newer ones have them apart, and the one for keys transposed, as it is multiplied.
 */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH_MAX 4096

/* ---- settings ----------------------------------------------------------------------------------- */

static int need(struct opening *o, const char *gguf, const char *hf, int32_t *out)
{
	const struct setting k = { gguf, hf };

	return model_need(o, k, model_int(o, k, 2, WIDTH_MAX, out));
}

/* A GGUF has the width of a whole query and of a value, once with _mla, once without if it is an old one. */
static int gguf_sizes(struct opening *o, struct sr_attn *kind, int32_t *rope)
{
	int32_t key = 0, unused;
	int rc;

	if ((rc = need(o, "rope.dimension_count", "", rope)) != 0 ||
	    (rc = model_int(o, (struct setting){ "attention.key_length", "" }, 2, 2 * WIDTH_MAX, &key)) < 0 ||
	    (rc = model_int(o, (struct setting){ "attention.value_length", "" }, 2, WIDTH_MAX, &kind->v_dim)) < 0 ||
	    (rc = model_int(o, (struct setting){ "attention.key_length_mla", "" }, 2, 2 * WIDTH_MAX, &key)) < 0 ||
	    (rc = model_int(o, (struct setting){ "attention.value_length_mla", "" }, 2, WIDTH_MAX, &kind->v_dim)) < 0 ||
	    (rc = model_int(o, (struct setting){ "attention.head_count_kv", "" }, 1, 1 << 12, &unused)) < 0)
		return rc;
	kind->q_dim = key - *rope;
	if (kind->q_dim < 2 || kind->q_dim > WIDTH_MAX || kind->v_dim < 2)
		return model_fail(o, -EINVAL, "%s.attention.key_length_mla is %d and value_length_mla %d; more than "
		                  "rope.dimension_count, %d, and at least 2 would be right", o->m->arch, key, kind->v_dim,
		                  *rope);
	return 0;
}

int model_latent_sizes(struct opening *o, struct sr_attn *kind)
{
	int32_t rope = 0;
	int rc;

	if ((rc = need(o, "attention.kv_lora_rank", "kv_lora_rank", &kind->latent)) != 0 ||
	    (rc = model_int(o, (struct setting){ "attention.q_lora_rank", "q_lora_rank" }, 2, 1 << 16, &kind->q_rank)) < 0)
		return rc;
	if (o->g)
		rc = gguf_sizes(o, kind, &rope);
	else if ((rc = need(o, "", "qk_nope_head_dim", &kind->q_dim)) == 0 &&
	         (rc = need(o, "", "qk_rope_head_dim", &rope)) == 0)
		rc = need(o, "", "v_head_dim", &kind->v_dim);
	if (rc)
		return rc;
	if (kind->latent % 2 || rope % 2)
		return model_wrong(o, (struct setting){ "attention.kv_lora_rank", "kv_lora_rank" }, -EINVAL, "latent keys of %d "
		                   "elements and %d that rope turns: both must be even", kind->latent, rope);
	kind->head_dim = kind->latent + rope;
	kind->n_kv_heads = 1;
	kind->scale = 1 / sqrtf((float)(kind->q_dim + rope));
	return 0;
}

static int rope_float(struct opening *o, const char *key, float *out)
{
	const json_t *j = o->rope[0].obj ? model_ask(o, o->rope[0].obj, key) : NULL;

	if (j && (!json_is_number(j) || !(json_number_value(j) >= 0 && json_number_value(j) <= 100)))
		return model_fail(o, -EINVAL, "%s.%s is no number from 0 to 100", o->rope[0].of, key);
	if (j)
		*out = (float)json_number_value(j);
	return 0;
}

/* With yarn the scale of scores is multiplied by m(mscale_all_dim)^2; a GGUF has a tenth of mscale_all_dim, and the
 * magnitude of its rope is 1.  Mistral's queries grow warmer with the position. */
int model_latent_settings(struct opening *o)
{
	struct sr_attn *kind = &o->m->kind[0];
	struct sr_rope *r = &kind->rope;
	float all = 0, by, part = 1, turned = (float)r->dims / (float)(r->dims + kind->q_dim);
	int rc;

	o->has |= kind->q_rank ? Q_RANK : 0;
	if (o->g) {
		if ((rc = model_float(o, (struct setting){ "rope.scaling.yarn_log_multiplier", "" }, 0, 100, &all)) < 0 ||
		    (rc = model_float(o, (struct setting){ "attention.temperature_scale", "" }, 0, 100, &kind->heat)) < 0)
			return rc;
		kind->heat_from = r->context;
		if ((rc = model_int(o, (struct setting){ "attention.temperature_length", "" }, 0, 1 << 28,
		                    &kind->heat_from)) < 0)
			return rc;
		all *= 10;
		r->magnitude = all > 0 ? 1 : r->magnitude;
	} else {
		if ((rc = rope_float(o, "mscale_all_dim", &all)) != 0 ||
		    (rc = rope_float(o, "llama_4_scaling_beta", &kind->heat)) != 0 ||
		    (rc = rope_float(o, "partial_rotary_factor", &part)) != 0)
			return rc;
		if (fabsf(part - 1) > 1e-3f && fabsf(part - turned) > 1e-3f)
			return model_fail(o, -ENOTSUP, "%s.partial_rotary_factor is %g, which is not supported; 1 and %g are",
			                  o->rope[0].of, (double)part, (double)turned);
		kind->heat_from = r->context;
	}
	if (kind->heat != 0 && kind->heat_from < 1)
		return model_fail(o, -EINVAL, "%s.attention.temperature_length is missing", o->m->arch);
	by = r->kind == SR_ROPE_YARN && all > 0 ? model_mscale(r->factor, all) : 1;
	kind->scale *= by * by;
	return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------ */

/* Begin one of the two: its name and shape. */
static int begin(struct opening *o, struct sr_tensor *t, const char *name, int32_t n, int32_t k)
{
	*t = (struct sr_tensor){ .name = strdup(name), .n = n, .k = k, .count = o->m->kind[0].n_heads };
	return t->name ? 0 : model_no_memory(o);
}

static int make_up(struct opening *o, struct sr_tensor *t)
{
	uint64_t bytes = (uint64_t)t->count * (uint64_t)t->n * (uint64_t)t->k * 2;

	t->type = SR_BF16;
	t->data = (struct sr_extent){ o->made, bytes, MODEL_RANDOM };
	o->made += bytes;
	o->md->weight_bytes += bytes;
	return 0;
}

static int check_shape(struct opening *o, const char *name, const struct found_tensor *f, uint32_t n_dims,
                       const int32_t *dim)
{
	bool same = f->n_dims == n_dims;

	for (uint32_t i = 0; same && i < n_dims; i++)
		same = f->dim[i] == (uint64_t)dim[i];
	if (same && f->type != SR_NONE)
		return 0;
	if (f->type == SR_NONE)
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s, which is not supported", name, f->type_name);
	return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu32 " dimensions, [%" PRIu64 "][%" PRIu64
	                  "]..; the settings of this model make it [%d][%d]..", name, f->data.offset, f->n_dims, f->dim[0],
	                  f->dim[1], dim[0], dim[1]);
}

/* Where the scales of rows from .. from + n - 1 of an FP8 matrix of `rows` lie. */
static struct sr_extent scales_of(const struct found_tensor *f, uint64_t rows, uint64_t from, uint64_t n)
{
	uint64_t each = (uint64_t)f->group_n, line;

	if (!each || !f->scale.bytes)
		return f->scale;
	line = f->scale.bytes / ((rows + each - 1) / each);
	return (struct sr_extent){ f->scale.offset + from / each * line, (n + each - 1) / each * line, f->scale.file };
}

/* What may be stored so: keys are transposed, and the scales of each head's must be its own. */
static int check_both(struct opening *o, const char *name, const struct found_tensor *f)
{
	const struct sr_attn *kind = &o->m->kind[0];
	const int32_t dim[2] = { kind->n_heads * (kind->q_dim + kind->v_dim), kind->latent };
	int rc = check_shape(o, name, f, 2, dim);

	if (rc)
		return rc;
	if (f->type == SR_F8 && f->group_n > 1 && (kind->q_dim % f->group_n || kind->v_dim % f->group_n))
		return model_fail(o, -ENOTSUP, "tensor %s has one scale for %d outputs, which the %d of keys and %d of values of a "
		                  "head are no multiples of", name, f->group_n, kind->q_dim, kind->v_dim);
	if (f->type > SR_F8 && (!o->g || f->type == SR_NVFP4))
		return model_fail(o, -ENOTSUP, "tensor %s is of type %s: keys and values of heads in one tensor are supported in "
		                  "F32, F16, BF16, FP8 and GGUF's types but NVFP4", name, f->type_name);
	return 0;
}

/* Both of a head in one tensor: keys stand first, as [q_dim][latent], which is transposed. */
static int take_both(struct opening *o, struct sr_layer *y, const char *name, const struct found_tensor *f)
{
	const struct sr_attn *kind = &o->m->kind[0];
	const uint64_t both = (uint64_t)(kind->q_dim + kind->v_dim), rows = (uint64_t)kind->n_heads * both;
	const uint64_t row = f->data.bytes / rows;
	struct sr_stored *each;
	int rc = check_both(o, name, f);

	for (int v = 0; v < 2 && !rc; v++) {
		struct sr_tensor *t = v ? &y->v_b : &y->k_b;
		uint64_t n = (uint64_t)(v ? kind->v_dim : kind->q_dim);

		rc = begin(o, t, name, v ? kind->v_dim : kind->latent, v ? kind->latent : kind->q_dim);
		if (rc)
			return rc;
		t->type = f->type;
		t->transposed = !v;
		t->group = f->group;
		t->group_n = f->group_n;
		t->scale_type = f->scale_type;
		t->each = each = calloc((size_t)kind->n_heads, sizeof(*each));
		if (!each)
			return model_no_memory(o);
		for (int32_t h = 0; h < kind->n_heads; h++) {
			uint64_t from = (uint64_t)h * both + (uint64_t)(v ? kind->q_dim : 0);

			each[h].data = (struct sr_extent){ f->data.offset + row * from, row * n, f->data.file };
			each[h].scale = scales_of(f, rows, from, n);
		}
	}
	o->md->weight_bytes += rc ? 0 : f->data.bytes + f->scale.bytes;
	return rc;
}

static int take_apart(struct opening *o, struct sr_tensor *t, const char *name, int32_t n, int32_t k)
{
	const int32_t dim[3] = { o->m->kind[0].n_heads, n, k };
	struct found_tensor f = { .type = SR_NONE };
	int rc = model_find_gguf(o, name, &f);

	if (rc)
		return model_fail(o, -EINVAL, "tensor %s is missing", name);
	if ((rc = check_shape(o, name, &f, 3, dim)) != 0 || (rc = begin(o, t, name, n, k)) != 0)
		return rc;
	t->type = f.type;
	t->data = f.data;
	o->md->weight_bytes += f.data.bytes;
	return 0;
}

int model_take_latent(struct opening *o, int32_t l)
{
	const struct sr_attn *kind = &o->m->kind[0];
	struct sr_layer *y = &o->m->layer[l];
	struct found_tensor f = { .type = SR_NONE };
	char name[128], second[128];
	int rc;

	snprintf(name, sizeof(name), o->config ? "%slayers.%d.self_attn.kv_b_proj.weight" : "%sblk.%d.attn_kv_b.weight",
	         o->config ? o->prefix : "", l);
	if (o->dummy) {
		if ((rc = begin(o, &y->k_b, name, kind->latent, kind->q_dim)) != 0 ||
		    (rc = begin(o, &y->v_b, name, kind->v_dim, kind->latent)) != 0)
			return rc;
		make_up(o, &y->k_b);
		return make_up(o, &y->v_b);
	}
	rc = o->g ? model_find_gguf(o, name, &f) : model_find_hf(o, name, &f);
	if (rc <= 0)
		return rc ? rc : take_both(o, y, name, &f);
	if (o->config)
		return model_fail(o, -EINVAL, "tensor %s is missing", name);
	snprintf(name, sizeof(name), "blk.%d.attn_k_b.weight", l);
	snprintf(second, sizeof(second), "blk.%d.attn_v_b.weight", l);
	rc = take_apart(o, &y->k_b, name, kind->latent, kind->q_dim);
	return rc ? rc : take_apart(o, &y->v_b, second, kind->v_dim, kind->latent);
}

struct sr_tensor *model_latent_tensor(struct sr_layer *y, int i)
{
	return i == 0 ? &y->k_b : i == 1 ? &y->v_b : NULL;
}
