/* models/hf_rope.c - reads how a Hugging Face model turns positions: rope_theta and rope_scaling, or, since
 * transformers 5, rope_parameters; that may have one object for each kind of attention. */
#include "impl.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An object of config.json, and its name for messages. */
struct part { const json_t *obj; const char *of; };

/* Read a number of an object inside config.json; if it is missing, *out is unchanged. */
static int sub_float(struct opening *o, const struct part *p, const char *key, double min, double max, float *out)
{
	const json_t *j = model_ask(o, p->obj, key);
	double v = json_number_value(j);

	if (!j)
		return 0;
	if (!json_is_number(j) || !(v >= min && v <= max))
		return model_fail(o, -EINVAL, "%s.%s is no number from %g to %g", p->of, key, min, max);
	*out = (float)v;
	return 0;
}

static int sub_int(struct opening *o, const struct part *p, const char *key, int32_t max, int32_t *out)
{
	const json_t *j = model_ask(o, p->obj, key);

	if (!j)
		return 0;
	if (!json_is_integer(j) || json_integer_value(j) < 1 || json_integer_value(j) > max)
		return model_fail(o, -EINVAL, "%s.%s is no integer from 1 to %d", p->of, key, max);
	*out = (int32_t)json_integer_value(j);
	return 0;
}

/* The kind of scaling.  NULL: none. */
static int rope_type(struct opening *o, const struct part *p, const char **out)
{
	const char *key = json_object_get(p->obj, "rope_type") ? "rope_type" : "type";
	const json_t *type = json_object_get(p->obj, key);

	*out = json_string_value(type);
	if (type && !json_is_null(type) && !*out)
		return model_fail(o, -EINVAL, "%s.%s is no string", p->of, key);
	if (*out && strcmp(*out, "default") == 0)
		*out = NULL;
	return 0;
}

/* Find rope_scaling {type or rope_type, ..}; since transformers 5 rope_parameters, with theta in it. */
static int rope_object(struct opening *o, struct part *p)
{
	static const char *const names[] = { "rope_scaling", "rope_parameters" };
	const json_t *given[2];

	for (int i = 0; i < 2; i++) {
		given[i] = json_object_get(o->config, names[i]);
		if (given[i] && !json_is_null(given[i]) && !json_is_object(given[i]))
			return model_fail(o, -EINVAL, "%s is no object", names[i]);
		if (!json_object_size(given[i]))
			given[i] = NULL;
	}
	if (given[0] && given[1] && !json_equal(given[0], given[1]))
		return model_fail(o, -EINVAL, "rope_scaling and rope_parameters say different things; one of them, or "
		                  "both alike, would be right");
	*p = (struct part){ given[!given[0]], names[!given[0]] };
	return 0;
}

static int hf_llama3(struct opening *o, const struct part *p, struct sr_rope *r)
{
	int rc;

	r->kind = SR_ROPE_LLAMA3;
	r->low = 1;
	r->high = 4;
	if ((rc = sub_float(o, p, "low_freq_factor", 1e-3, 1e3, &r->low)) != 0 ||
	    (rc = sub_float(o, p, "high_freq_factor", 1e-3, 1e3, &r->high)) != 0)
		return rc;
	if (r->high < r->low)
		return model_fail(o, -EINVAL, "%s.high_freq_factor must not be below low_freq_factor", p->of);
	return 0;
}

float model_mscale(float factor, float by)
{
	return factor > 1 ? 1 + 0.1f * by * logf(factor) : 1;
}

/* As transformers reads it (_compute_yarn_parameters).  attn_factor, of YaRN's own code and of vLLM, is
 * multiplied; attention_factor replaces the magnitude. */
static int hf_yarn(struct opening *o, const struct part *p, struct sr_rope *r)
{
	const json_t *truncate = json_object_get(p->obj, "truncate"), *factor = json_object_get(p->obj, "factor");
	float whole = 0, times = 1, mscale = 0, all = 0;
	int rc;

	r->kind = SR_ROPE_YARN;
	r->low = 1;
	r->high = 32;
	if ((rc = sub_float(o, p, "beta_slow", 1e-3, 1e3, &r->low)) != 0 ||
	    (rc = sub_float(o, p, "beta_fast", 1e-3, 1e3, &r->high)) != 0 ||
	    (rc = sub_float(o, p, "attention_factor", 1e-3, 1e3, &whole)) != 0 ||
	    (rc = sub_float(o, p, "attn_factor", 1e-3, 1e3, &times)) != 0 ||
	    (rc = sub_float(o, p, "mscale", 0, 1e3, &mscale)) != 0 ||
	    (rc = sub_float(o, p, "mscale_all_dim", 0, 1e3, &all)) != 0)
		return rc;
	if (r->high < r->low)
		return model_fail(o, -EINVAL, "%s.beta_fast must not be below beta_slow", p->of);
	if (truncate && !json_is_null(truncate) && !json_is_boolean(truncate))
		return model_fail(o, -EINVAL, "%s.truncate is neither true nor false", p->of);
	r->exact = json_is_false(truncate);
	if (!factor || json_is_null(factor)) {     /* then it is the ratio of the contexts */
		r->factor = (float)o->m->context / (float)r->context;
		if (!(r->factor > 1 && r->factor <= 4096))
			return model_fail(o, -EINVAL, "%s.factor is missing, and max_position_embeddings over "
			                  "original_max_position_embeddings is %g; above 1 to 4096 would be one", p->of,
			                  (double)r->factor);
	}
	r->magnitude = mscale > 0 && all > 0 ? model_mscale(r->factor, mscale) / model_mscale(r->factor, all)
	                                     : model_mscale(r->factor, 1);
	r->magnitude = whole > 0 ? whole : r->magnitude * times;
	return 0;
}

/* A list of numbers, one for each frequency. */
static int factor_list(struct opening *o, const struct part *p, const char *key, int32_t n, float **out)
{
	const json_t *list = model_ask(o, p->obj, key);

	if (json_array_size(list) != (size_t)n)
		return model_fail(o, -EINVAL, "%s.%s is no list of %d numbers, one for each pair that rope turns", p->of,
		                  key, n);
	free(*out);
	*out = calloc((size_t)n + 1, sizeof(**out));
	if (!*out)
		return model_no_memory(o);
	for (int32_t i = 0; i < n; i++) {
		double v = json_number_value(json_array_get(list, (size_t)i));

		if (!(v >= 1e-3 && v <= 1e6))
			return model_fail(o, -EINVAL, "%s.%s[%d] is no number from 0.001 to 1e6", p->of, key, i);
		(*out)[i] = (float)v;
	}
	return 0;
}

/* Phi-3's: one list of factors up to the context before scaling, another beyond; model_serve() chooses once. */
static int hf_longrope(struct opening *o, const struct part *p, struct sr_rope *r)
{
	float whole = 0;
	int rc;

	r->kind = SR_ROPE_FACTORS;
	if ((rc = factor_list(o, p, "short_factor", r->dims / 2, &o->md->divisor[0])) != 0 ||
	    (rc = factor_list(o, p, "long_factor", r->dims / 2, &o->md->divisor[1])) != 0 ||
	    (rc = sub_float(o, p, "attention_factor", 1e-3, 1e3, &whole)) != 0)
		return rc;
	r->divisor = o->md->divisor[0];
	r->factor = (float)o->m->context / (float)r->context;
	r->magnitude = whole > 0 ? whole
	             : r->factor > 1 ? sqrtf(1 + logf(r->factor) / logf((float)r->context)) : 1;
	return 0;
}

/* Hunyuan's: theta times alpha^(E / (E - 2)).  The form that changes with the length is not computed. */
static int hf_dynamic(struct opening *o, const struct part *p, struct sr_rope *r)
{
	static const char *const without_effect[] = { "beta_fast", "beta_slow", "mscale", "mscale_all_dim" };
	float alpha = 0;
	int rc = sub_float(o, p, "alpha", 0, 1e9, &alpha);

	if (rc)
		return rc;
	if (!(alpha > 0))
		return model_fail(o, -ENOTSUP, "%s.rope_type dynamic is not supported without alpha: its angles change "
		                  "with the length of a sequence", p->of);
	for (int i = 0; i < 4; i++)
		model_note_asked(o, true, without_effect[i]);
	r->theta = (float)((double)r->theta * pow((double)alpha, (double)r->dims / (r->dims - 2)));
	r->factor = 1;
	return 0;
}

/* The part of a head that is rotated. */
static int rope_dims(struct opening *o, const struct part *p, int32_t *dims)
{
	float part = o->family->partial;
	int32_t E = o->m->kind[0].head_dim - o->m->kind[0].latent;
	int rc;

	*dims = E;
	if (part == 0)
		return 0;
	if ((rc = model_float(o, (struct setting){ "", "partial_rotary_factor" }, 0.01, 1, &part)) < 0 ||
	    (rc = sub_float(o, p, "partial_rotary_factor", 0.01, 1, &part)) != 0)
		return rc;
	*dims = (int32_t)((float)E * part);
	return *dims >= 2 && *dims % 2 == 0 ? 0 : model_fail(o, -EINVAL, "partial_rotary_factor %g of heads %d wide "
		"is %d; an even number from 2 up would be right", (double)part, E, *dims);
}

/* Read what all kinds share: the rotated width, theta, the factor, the context before scaling. */
static int rope_common(struct opening *o, const struct part *p, struct sr_rope *r)
{
	int rc;

	*r = (struct sr_rope){ .dims = 0, .context = o->m->context, .theta = 10000, .factor = 1, .magnitude = 1,
	                       .pairs = o->family->hf_pairs };
	if ((rc = rope_dims(o, p, &r->dims)) != 0 ||
	    (rc = model_float(o, (struct setting){ "", "rope_theta" }, 2, 1e12, &r->theta)) < 0 ||
	    (rc = sub_float(o, p, "rope_theta", 2, 1e12, &r->theta)) != 0 ||
	    (rc = sub_float(o, p, "factor", 1, 4096, &r->factor)) != 0 ||
	    (rc = sub_int(o, p, "original_max_position_embeddings", 1 << 28, &r->context)) != 0)
		return rc;
	/* If both are there, transformers prefers the outer one. */
	rc = model_int(o, (struct setting){ "", "original_max_position_embeddings" }, 1, 1 << 28, &r->context);
	return rc < 0 ? rc : 0;
}

static int one_rope(struct opening *o, const struct part *p, struct sr_rope *r)
{
	const char *type = NULL;
	int rc;

	if ((rc = rope_common(o, p, r)) != 0 || (rc = rope_type(o, p, &type)) != 0 || !type)
		return rc;
	if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0)
		return hf_longrope(o, p, r);
	if (strcmp(type, "dynamic") == 0)
		return hf_dynamic(o, p, r);
	if (strcmp(type, "proportional") == 0 && o->family->has & GEMMA4)
		return 0;                          /* models/gemma4.c reads the rest */
	if (strcmp(type, "linear") == 0) {
		r->kind = SR_ROPE_LINEAR;
	} else if (strcmp(type, "llama3") == 0) {
		rc = hf_llama3(o, p, r);
	} else if (strcmp(type, "yarn") == 0) {
		rc = hf_yarn(o, p, r);
	} else {
		return model_fail(o, -ENOTSUP, "%s.rope_type %.40s is not supported; supported are default, "
		                  "linear, llama3, yarn, longrope, dynamic with alpha", p->of, type);
	}
	if (!rc && r->kind != SR_ROPE_YARN && !json_is_number(json_object_get(p->obj, "factor")))
		rc = model_fail(o, -EINVAL, "%s.factor is missing", p->of);
	return rc;
}

int model_hf_ropes(struct opening *o)
{
	static const char *const kinds[] = { "full_attention", "sliding_attention" };
	static const char *const names[] = { "rope_parameters.full_attention", "rope_parameters.sliding_attention" };
	struct part p = { NULL, "" };
	int rc = rope_object(o, &p);

	if (rc)
		return rc;
	o->rope[0].of = p.of;
	o->rope[0].obj = p.obj;
	for (int i = 0; i < 2 && o->family->windows == WINDOW_SOME && json_is_object(json_object_get(p.obj, kinds[i])); i++) {
		struct part inner = { json_object_get(p.obj, kinds[i]), names[i] };

		o->rope[i].of = inner.of;
		o->rope[i].obj = inner.obj;
		if ((rc = one_rope(o, &inner, &o->m->kind[i].rope)) != 0)
			return rc;
	}
	if (o->rope[0].obj == p.obj)
		rc = one_rope(o, &p, &o->m->kind[0].rope);
	return rc ? rc : model_scale_context(o, &o->m->kind[0].rope);
}
