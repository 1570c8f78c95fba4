/* models/from_gguf.c - reads settings and tensors of a GGUF file, for models/open.c. */
#include "impl.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int model_find_gguf(struct opening *o, const char *name, struct found_tensor *f)
{
	const struct gguf_tensor *t = gguf_tensor(o->g, name);

	if (!t)
		return 1;
	o->taken[t - o->g->tensor] = true;
	f->type_name = gguf_type_name(t->type);
	for (int i = 0; i < MODEL_TYPES; i++)
		if ((int64_t)t->type == model_types[i].gguf)
			f->type = model_types[i].type;
	f->n_dims = t->n_dims;
	for (uint32_t d = 0; d < t->n_dims; d++)
		f->dim[d] = t->dim[t->n_dims - 1 - d];
	f->data = (struct sr_extent){ t->offset, t->bytes, t->part };
	return f->type == SR_NVFP4 ? model_find_nvfp4_gguf(o, name, f) : 0;
}

/* Read a tensor of factors, one for each pair that rope turns.  1 it is missing. */
static int read_divisors(struct opening *o, const char *name, const struct sr_rope *r, float **out)
{
	const struct gguf_tensor *t = gguf_tensor(o->g, name);
	int n = r->dims / 2;

	if (!t)
		return 1;
	if (t->type != 0 || t->n_dims != 1 || t->dim[0] != (uint64_t)n)
		return model_fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " is not F32 [%d]", name, t->offset, n);
	*out = calloc((size_t)n + 1, sizeof(**out));
	if (!*out)
		return model_no_memory(o);
	if (pread(o->parts.file[t->part].fd, *out, (size_t)n * 4, (off_t)t->offset) != n * 4)
		return model_fail(o, -EIO, "tensor %s at offset %" PRIu64 " cannot be read", name, t->offset);
	for (int i = 0; i < n; i++)
		if (!((*out)[i] >= 1e-3f && (*out)[i] <= 1e30f))
			return model_fail(o, -EINVAL, "%s[%d] is %g; 0.001 to 1e30 are allowed", name, i,
			                  (double)(*out)[i]);
	return 0;
}

/* Factors by which frequencies are divided: Llama 3's scaling; Phi-3's two lists, of which model_serve() takes
 * one. */
static int rope_factors(struct opening *o, struct sr_rope *r)
{
	float **divisor = o->md->divisor;
	int rc = read_divisors(o, "rope_freqs.weight", r, &divisor[0]);
	bool all_one = true;

	for (int i = 0; i < r->dims / 2 && !rc; i++)
		all_one &= divisor[0][i] == 1;
	if (rc == 1 && (rc = read_divisors(o, "rope_factors_short.weight", r, &divisor[0])) == 0) {
		rc = read_divisors(o, "rope_factors_long.weight", r, &divisor[1]);
		all_one = false;
		if (rc == 1)
			return model_fail(o, -EINVAL, "tensor rope_factors_long.weight is missing");
	}
	if (rc || all_one)
		return rc < 0 ? rc : 0;
	if (r->kind != SR_ROPE_PLAIN)
		return model_fail(o, -ENOTSUP, "tensor %s and rope.scaling.type both scale, which is not supported",
		                  divisor[1] ? "rope_factors_long.weight" : "rope_freqs.weight");
	r->kind = SR_ROPE_FACTORS;
	r->divisor = divisor[0];
	return 0;
}

static int get_float(struct opening *o, const char *key, double min, double max, float *out)
{
	int rc = model_float(o, (struct setting){ key, "" }, min, max, out);

	return rc < 0 ? rc : 0;
}

/* As llama.cpp computes it: magnitude = (1 + ln(factor) / 10) * attn_factor.  llama.cpp ignores
 * yarn_attn_factor, where its converter puts Hugging Face's attention_factor, the magnitude itself.  So
 * a yarn_attn_factor must have the same value. */
static int gguf_yarn(struct opening *o, struct sr_rope *r)
{
	float ext = 1, times = 1, whole = 0;
	int rc;

	r->kind = SR_ROPE_YARN;
	r->low = 1;
	r->high = 32;
	if ((rc = get_float(o, "rope.scaling.yarn_beta_slow", 1e-3, 1e3, &r->low)) != 0 ||
	    (rc = get_float(o, "rope.scaling.yarn_beta_fast", 1e-3, 1e3, &r->high)) != 0 ||
	    (rc = get_float(o, "rope.scaling.yarn_ext_factor", -1e3, 1e3, &ext)) != 0 ||
	    (rc = get_float(o, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, &whole)) != 0 ||
	    (rc = get_float(o, "rope.scaling.attn_factor", 1e-3, 1e3, &times)) != 0)
		return rc;
	if (r->high < r->low)
		return model_fail(o, -EINVAL, "%s.rope.scaling.yarn_beta_fast must not be below yarn_beta_slow",
		                  o->m->arch);
	if (ext >= 0 && ext != 1)          /* below 0: not set */
		return model_fail(o, -ENOTSUP, "%s.rope.scaling.yarn_ext_factor is %g, which is not supported; 1 is",
		                  o->m->arch, (double)ext);
	r->magnitude = (1 + 0.1f * logf(r->factor)) * times;
	if (whole > 0 && fabsf(whole - r->magnitude) > 1e-3f * r->magnitude)
		return model_fail(o, -ENOTSUP, "%s.rope.scaling.yarn_attn_factor is %g, but a factor of %g with "
		                  "attn_factor %g makes %g; one of them must go", o->m->arch, (double)whole,
		                  (double)r->factor, (double)times, (double)r->magnitude);
	return 0;
}

/* Refuse settings of yarn that would have an effect without it. */
static int gguf_no_yarn(struct opening *o)
{
	static const struct { const char *key; float none; } without[] = {
		{ "rope.scaling.attn_factor", 1 }, { "rope.scaling.yarn_attn_factor", 1 },
		{ "rope.scaling.yarn_ext_factor", 0 },
	};

	for (int i = 0; i < 3; i++) {
		float v = without[i].none;
		int rc = get_float(o, without[i].key, -1e3, 1e3, &v);

		if (rc)
			return rc;
		if (v != without[i].none && !(i == 2 && v < 0))
			return model_fail(o, -ENOTSUP, "%s.%s is %g without rope.scaling.type yarn, which is not "
			                  "supported; %g is", o->m->arch, without[i].key, (double)v,
			                  (double)without[i].none);
	}
	return 0;
}

/* The type is linear if it is missing, as in llama.cpp. */
static int gguf_rope_kind(struct opening *o, struct sr_rope *r)
{
	struct gguf_string type = { "linear", 6 };
	char name[96];

	snprintf(name, sizeof(name), "%s.rope.scaling.type", o->m->arch);
	if (gguf_str(o->g, name, &type) == -EINVAL)
		return model_fail(o, -EINVAL, "%s is no string", name);
	if (type.n == 4 && memcmp(type.s, "yarn", 4) == 0)
		return gguf_yarn(o, r);
	if (type.n == 6 && memcmp(type.s, "linear", 6) == 0)
		r->kind = r->factor == 1 ? SR_ROPE_PLAIN : SR_ROPE_LINEAR;
	else if (type.n != 4 || memcmp(type.s, "none", 4) != 0)
		return model_fail(o, -ENOTSUP, "%s is %.*s; supported are none, linear, yarn", name,
		                  (int)(type.n < 40 ? type.n : 40), type.s);
	return gguf_no_yarn(o);
}

static int gguf_rope(struct opening *o)
{
	const struct setting scaled = { "rope.scaling.factor", "" }, old_scaled = { "rope.scale_linear", "" };
	struct sr_rope *r = &o->m->kind[0].rope;
	int32_t head_dim = o->m->kind[0].head_dim - o->m->kind[0].latent;
	bool by_length = gguf_tensor(o->g, "rope_factors_short.weight") != NULL;
	int rc;

	*r = (struct sr_rope){ .dims = head_dim, .context = o->m->context,
	                       .pairs = o->family->pairs,
	                       .theta = 10000, .factor = 1, .magnitude = 1 };
	if ((rc = model_int(o, (struct setting){ "rope.dimension_count", "" }, 2, head_dim, &r->dims)) < 0 ||
	    (rc = get_float(o, "rope.freq_base", 2, 1e12, &r->theta)) < 0 ||
	    (rc = model_float(o, scaled, 1, 4096, &r->factor)) < 0 ||
	    (rc == 1 && (rc = model_float(o, old_scaled, 1, 4096, &r->factor)) < 0) ||
	    (rc = model_int(o, (struct setting){ "rope.scaling.original_context_length", "" }, 1, 1 << 28,
	                    &r->context)) < 0)
		return rc;
	if (r->dims % 2)
		return model_fail(o, -EINVAL, "%s.rope.dimension_count is %d; it must be even", o->m->arch,
		                  r->dims);
	/* A GGUF's context_length is the context after scaling. */
	rc = by_length ? get_float(o, "rope.scaling.attn_factor", 1e-3, 1e3, &r->magnitude) : gguf_rope_kind(o, r);
	return rc ? rc : rope_factors(o, r);
}

/* A scale of scores that the family does not read must have the value that is computed here. */
static int gguf_scale(struct opening *o)
{
	const struct sr_attn *kind = &o->m->kind[0];
	float scale = 0;
	int rc = get_float(o, "attention.scale", 0, 1e3, &scale);

	if (!rc && scale != 0 && fabsf(scale - kind->scale) > 1e-4f * kind->scale)
		return model_fail(o, -ENOTSUP, "%s.attention.scale is %g, which is not supported; %g, for heads %d wide, "
		                  "is", o->m->arch, (double)scale, (double)kind->scale, kind->head_dim);
	return rc;
}

/* Which parts the model has, beyond what its family always has. */
static void gguf_has(struct opening *o)
{
	static const struct { const char *tensor; unsigned has; } parts[] = {
		{ "output.weight", UNTIED }, { "blk.0.attn_q.bias", QKV_BIAS }, { "blk.0.attn_output.bias", O_BIAS },
		{ "blk.0.ffn_up.bias", FFN_BIAS },
	};

	o->has = o->family->has & ~(unsigned)UNTIED;
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		if (gguf_tensor(o->g, parts[i].tensor))
			o->has |= parts[i].has;
}

static int gguf_settings(struct opening *o)
{
	const struct gguf_tensor *embed = gguf_tensor(o->g, "token_embd.weight");
	struct gguf_string s;
	int rc;

	if (gguf_str(o->g, "general.architecture", &s) != 0)
		return model_fail(o, -EINVAL, "general.architecture is missing or no string");
	model_set_name(o->m->arch, sizeof(o->m->arch), s.s, s.n);
	o->family = model_family_find(o->m->arch, true);
	if (!o->family)
		return model_unknown_family(o, "architecture", o->m->arch);
	if (gguf_str(o->g, "general.name", &s) == 0)
		model_set_name(o->m->name, sizeof(o->m->name), s.s, s.n);
	if ((rc = model_sizes(o)) != 0)
		return rc;
	if (!embed || embed->n_dims != 2 || embed->dim[1] > 1 << 24)
		return model_fail(o, -EINVAL, "tensor token_embd.weight is missing or no matrix of at most "
		                  "%d rows", 1 << 24);
	o->m->n_vocab = (int32_t)embed->dim[1];
	o->m->act = o->family->act;
	gguf_has(o);
	if ((rc = gguf_rope(o)) != 0 || (rc = model_family_settings(o)) != 0)
		return rc;
	return gguf_scale(o);
}

static int gguf_eos(struct opening *o)
{
	static const char *const keys[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
	                                    "tokenizer.ggml.eom_token_id" };
	const struct gguf_value *tokens = gguf_find(o->g, "tokenizer.ggml.tokens");
	uint64_t id;

	for (int i = 0; i < 3; i++) {
		int rc = gguf_u64(o->g, keys[i], &id);

		if (rc == -ENOENT)
			continue;
		if (rc == -EINVAL)
			return model_fail(o, -EINVAL, "%s is no integer from 0 up", keys[i]);
		if ((rc = model_add_eos(o, keys[i], id > INT32_MAX ? -1 : (int64_t)id)) != 0)
			return rc;
	}
	if (tokens && tokens->n > (uint64_t)o->m->n_vocab)
		return model_fail(o, -EINVAL, "tokenizer.ggml.tokens has %" PRIu64 " tokens, but "
		                  "token_embd.weight "
		                  "only %d rows", tokens->n, o->m->n_vocab);
	return 0;
}

int model_open_gguf(struct opening *o)
{
	int rc = gguf_read_parts(&o->parts, o->path, o->err, o->errlen);

	if (rc)
		return rc;
	o->g = o->parts.g;
	snprintf(o->md->format, sizeof(o->md->format), "GGUF");
	snprintf(o->md->quantization, sizeof(o->md->quantization), "gguf");
	o->md->file = calloc((size_t)o->parts.n, sizeof(char *));
	if (!o->md->file)
		return model_no_memory(o);
	for (; o->md->n_files < o->parts.n; o->md->n_files++)
		if (!(o->md->file[o->md->n_files] = strdup(o->parts.path[o->md->n_files])))
			return model_no_memory(o);
	if (model_encoder(o))
		return (rc = model_encoder_settings(o)) != 0 ? rc : model_encoder_tensors(o);
	if ((rc = gguf_settings(o)) != 0 || (rc = gguf_eos(o)) != 0)
		return rc;
	return model_take_tensors(o);
}
