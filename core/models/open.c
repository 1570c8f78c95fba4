/* models/open.c - opens a model: reads its settings, GGUF key values or config.json, which give the sizes, the
 * rope and the features of struct opening; then tensors.c finds its tensors.
 *
 * Weights are not read here.  Files are read by pread into our own memory, so a file that
 * shrinks is an error, never a signal.
 */
#include "impl.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/instance/refuse.h"

int model_fail(struct opening *o, int rc, const char *fmt, ...)
{
	char what[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return refuse(rc, o->err, o->errlen, "%s: %s", o->path, what);
}

int model_no_memory(struct opening *o)
{
	return model_fail(o, -ENOMEM, "no memory to open it");
}

/* ---- settings, from either kind of file ----------------------------------------------------- */

static const char *key_name(struct opening *o, struct setting k, char *buf, size_t n)
{
	model_note_asked(o, false, o->config ? k.hf : k.gguf);
	if (o->config)
		return k.hf;
	snprintf(buf, n, "%s.%s", o->m->arch, k.gguf);
	return buf;
}

int model_int(struct opening *o, struct setting k, int64_t min, int64_t max, int32_t *out)
{
	char buf[96];
	const char *name = key_name(o, k, buf, sizeof(buf));
	int64_t v = 0;

	if (o->config) {
		const json_t *j = json_object_get(o->config, name);

		if (!j || json_is_null(j))
			return 1;
		if (!json_is_integer(j))
			return model_fail(o, -EINVAL, "%s is no integer", name);
		v = json_integer_value(j);
	} else {
		uint64_t u = 0;
		int rc = gguf_u64(o->g, name, &u);

		if (rc == -ENOENT)
			return 1;
		if (rc)
			return model_fail(o, -EINVAL, "%s is no integer from 0 up", name);
		v = u > INT64_MAX ? INT64_MAX : (int64_t)u;
	}
	if (v < min || v > max)
		return model_fail(o, -EINVAL, "%s is %" PRId64 "; %" PRId64 " to %" PRId64 " are allowed",
		                  name, v, min, max);
	*out = (int32_t)v;
	return 0;
}

int model_float(struct opening *o, struct setting k, double min, double max, float *out)
{
	char buf[96];
	const char *name = key_name(o, k, buf, sizeof(buf));
	double v = 0;

	if (o->config) {
		const json_t *j = json_object_get(o->config, name);

		if (!j || json_is_null(j))
			return 1;
		if (!json_is_number(j))
			return model_fail(o, -EINVAL, "%s is no number", name);
		v = json_number_value(j);
	} else {
		int rc = gguf_f64(o->g, name, &v);

		if (rc == -ENOENT)
			return 1;
		if (rc)
			return model_fail(o, -EINVAL, "%s is no finite float", name);
	}
	if (!(v >= min && v <= max))
		return model_fail(o, -EINVAL, "%s is %g; %g to %g are allowed", name, v, min, max);
	*out = (float)v;
	return 0;
}

int model_bool(struct opening *o, struct setting k, bool *out)
{
	char buf[96];
	const char *name = key_name(o, k, buf, sizeof(buf));
	const json_t *j = json_object_get(o->config, name);
	int rc = o->g ? gguf_bool(o->g, name, out) : 0;

	if (rc == -EINVAL)
		return model_fail(o, -EINVAL, "%s is neither true nor false", name);
	if (o->g)
		return rc ? 1 : 0;
	if (!j || json_is_null(j))
		return 1;
	if (!json_is_boolean(j))
		return model_fail(o, -EINVAL, "%s is neither true nor false", name);
	*out = json_is_true(j);
	return 0;
}

int model_need(struct opening *o, struct setting k, int rc)
{
	char buf[96];

	return rc == 1 ? model_fail(o, -EINVAL, "%s is missing", key_name(o, k, buf, sizeof(buf))) : rc;
}

int model_wrong(struct opening *o, struct setting k, int rc, const char *fmt, ...)
{
	char buf[96], what[300];
	const char *name = key_name(o, k, buf, sizeof(buf));
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return model_fail(o, rc, "%s%s%s", name, *name ? ": " : "", what);
}

/* Of KV heads, and the width of heads. */
static int head_sizes(struct opening *o, struct sr_attn *kind)
{
	const struct setting heads = { "attention.head_count", "num_attention_heads" };
	const struct setting heads_kv = { "attention.head_count_kv", "num_key_value_heads" };
	const struct setting width = { "attention.key_length", "head_dim" };
	const struct setting width_v = { "attention.value_length", "v_head_dim" };
	const struct sr_model *m = o->m;
	int32_t ev;
	int rc;

	kind->n_kv_heads = kind->n_heads;
	if ((rc = model_int(o, heads_kv, 1, 1 << 12, &kind->n_kv_heads)) < 0)
		return rc;
	if (kind->n_heads % kind->n_kv_heads)
		return model_wrong(o, heads_kv, -EINVAL, "%d attention heads are no multiple of %d key-value heads",
		                   kind->n_heads, kind->n_kv_heads);
	if ((rc = model_int(o, width, 1, 1 << 12, &kind->head_dim)) < 0)
		return rc;
	if (rc == 1) {
		if (m->d_model % kind->n_heads)
			return model_wrong(o, heads, -EINVAL, "a width of %d is no multiple of %d attention heads, and no "
			                   "head width is given", m->d_model, kind->n_heads);
		kind->head_dim = m->d_model / kind->n_heads;
	}
	ev = kind->head_dim;
	if ((rc = model_int(o, width_v, 1, 1 << 12, &ev)) < 0)
		return rc;
	if (ev != kind->head_dim)
		return model_wrong(o, width_v, -ENOTSUP, "heads of values are %d wide and heads of keys (%s) %d: different "
		                   "widths are not supported", ev, o->g ? width.gguf : width.hf, kind->head_dim);
	if (kind->head_dim % 2 || kind->head_dim > 1024)
		return model_fail(o, -EINVAL, "heads are %d wide; even widths up to 1024 are possible",
		                  kind->head_dim);
	kind->scale = 1 / sqrtf((float)kind->head_dim);
	return 0;
}

/* Make the layers: of what they consist, and how wide each is. */
static int make_layers(struct opening *o)
{
	struct sr_model *m = o->m;

	m->layer = calloc((size_t)m->n_layers, sizeof(*m->layer));
	if (!m->layer)
		return model_no_memory(o);
	for (int32_t l = 0; l < m->n_layers; l++)
		m->layer[l] = (struct sr_layer){ .mixer = o->family->has & LATENT ? SR_LATENT : SR_ATTEND, .d_ff = m->d_ff,
			.ffn = o->family->has & NO_GATE ? SR_PLAIN : SR_GATED,
			.parallel = !!(o->family->has & ONE_NORM) };
	return 0;
}

/* Read the sizes: required ones first, then those with a default. */
int model_sizes(struct opening *o)
{
#define AT(size) offsetof(struct sr_model, size)
	static const struct { struct setting key; size_t at; int64_t max; } field[] = {
		{ { "block_count", "num_hidden_layers" },            AT(n_layers), LAYERS_MAX },
		{ { "embedding_length", "hidden_size" },             AT(d_model), 1 << 17 },
		{ { "attention.head_count", "num_attention_heads" }, AT(kind[0].n_heads), 1 << 12 },
		{ { "feed_forward_length", "intermediate_size" },    AT(d_ff), 1 << 19 },
		{ { "context_length", "max_position_embeddings" },   AT(context), 1 << 28 },
	};
#undef AT
	const bool layer_norm = o->family->has & LAYER_NORM;
	const struct setting eps = { layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
	                             !layer_norm ? "rms_norm_eps" : json_object_get(o->config, "norm_eps")
	                             ? "norm_eps" : "layer_norm_eps" };
	const struct setting drafts = { "nextn_predict_layers", "num_nextn_predict_layers" };
	struct sr_model *m = o->m;
	struct sr_attn *kind = &m->kind[0];
	int rc;

	for (unsigned i = 0; i < sizeof(field) / sizeof(*field); i++) {
		if (o->g && o->family->has & GEMMA4 && field[i].at == offsetof(struct sr_model, d_ff))
			continue;              /* it may be a list: models/gemma4.c */
		rc = model_int(o, field[i].key, 1, field[i].max, (int32_t *)((char *)m + field[i].at));
		if (rc == 1 && field[i].at == offsetof(struct sr_model, d_ff) && o->family->experts && o->family->experts->has & X_ALL)
			rc = 0;                /* it will be the experts' */
		if ((rc = model_need(o, field[i].key, rc)) != 0)
			return rc;
	}
	if (o->family->has & MAY_DRAFT && (rc = model_int(o, drafts, 0, m->n_layers - 1, &o->n_drafts)) < 0)
		return rc;
	if (o->g) /* there they are counted as layers */
		m->n_layers -= o->n_drafts;
	rc = o->family->has & LATENT ? model_latent_sizes(o, kind)
	   : o->family->has & GEMMA4 ? model_gemma4_sizes(o, kind) : head_sizes(o, kind);
	if (rc)
		return rc;
	if ((rc = model_need(o, eps, model_float(o, eps, 1e-12, 0.1, &m->eps))) != 0)
		return rc;
	m->n_kinds = 1;
	m->embed_scale = 1;
	m->norm_kind = layer_norm ? SR_LAYER : SR_RMS;
	return make_layers(o);
}

void model_set_name(char *out, size_t n, const char *s, size_t len)
{
	size_t at = 0;

	for (size_t i = 0; i < len && at + 1 < n; i++)
		out[at++] = isprint((unsigned char)s[i]) ? s[i] : '?';
	out[at] = 0;
}

/* Add an id that ends an answer, unless it is there already. */
int model_add_eos(struct opening *o, const char *where, int64_t id)
{
	struct model *md = o->md;

	if (id < 0 || id >= md->m.n_vocab)
		return model_fail(o, -EINVAL, "%s is %" PRId64 "; token ids are 0 to %d", where, id,
		                  md->m.n_vocab - 1);
	for (int i = 0; i < md->n_eos; i++)
		if (md->eos[i] == id)
			return 0;
	if (md->n_eos == MODEL_EOS_MAX)
		return model_fail(o, -EINVAL, "%s has more than %d ids", where, MODEL_EOS_MAX);
	md->eos[md->n_eos++] = (int32_t)id;
	return 0;
}

/* Set the context that scaling reaches, by vLLM's rule. */
int model_scale_context(struct opening *o, const struct sr_rope *r)
{
	double c = (double)(r->kind == SR_ROPE_YARN ? r->context : o->m->context) * (double)r->factor;

	if (r->kind != SR_ROPE_LINEAR && r->kind != SR_ROPE_YARN)
		return 0;
	if (!(c >= 1 && c <= 1 << 28))
		return model_fail(o, -EINVAL, "rope scaling by %g makes a context of %.0f; up to %d are "
		                  "possible", (double)r->factor, c, 1 << 28);
	o->m->context = (int32_t)c;
	return 0;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void end_opening(struct opening *o, int rc, struct model **out)
{
	gguf_close_parts(&o->parts);
	json_decref(o->config);
	json_decref(o->outer);
	safetensors_close(o->st);
	free(o->taken);
	if (rc)
		model_close(o->md);
	else
		*out = o->md;
}

/* Name a model without a name inside by the last part of its path, without .gguf and the number of a part. */
static void name_by_path(struct model *md, const char *path)
{
	size_t n = strlen(path);
	const char *from;
	int32_t no, of;

	while (n > 1 && path[n - 1] == '/')
		n--;
	for (from = path + n; from > path && from[-1] != '/'; from--)
		;
	n -= (size_t)(from - path);
	if (gguf_part_name(path, &no, &of))
		n -= strlen("-00001-of-00001.gguf");
	else if (n > 5 && memcmp(from + n - 5, ".gguf", 5) == 0)
		n -= 5;
	model_set_name(md->m.name, sizeof(md->m.name), from, n);
}

static int open_any(struct model **out, const char *path, bool dummy, char *err, size_t errlen)
{
	struct model *md = calloc(1, sizeof(*md));
	struct opening o = { .md = md, .m = md ? &md->m : NULL, .path = path, .dummy = dummy,
	                     .prefix = "model.", .head_prefix = "",
	                     .err = err, .errlen = errlen };
	struct stat st;
	int rc;

	*out = NULL;
	if (!md)
		rc = model_no_memory(&o);
	else if (stat(path, &st) < 0)
		rc = model_fail(&o, -errno, "%s", strerror(errno));
	else
		rc = S_ISDIR(st.st_mode) ? model_open_hf(&o, path) : model_open_gguf(&o);
	if (rc == 0 && !md->m.name[0])
		name_by_path(md, path);
	if (rc == 0)
		rc = pooling_read(&md->pooling, path, !S_ISDIR(st.st_mode), err, errlen);
	if (rc == 0 && dummy)
		snprintf(md->format, sizeof(md->format), "dummy");
	end_opening(&o, rc, out);
	return rc;
}

int model_open(struct model **out, const char *path, char *err, size_t errlen)
{
	return open_any(out, path, false, err, errlen);
}

int model_open_dummy(struct model **out, const char *path, char *err, size_t errlen)
{
	return open_any(out, path, true, err, errlen);
}

void model_serve(struct model *md, int32_t context)
{
	for (int32_t i = 0; i < md->m.n_kinds && md->divisor[1]; i++) {
		struct sr_rope *r = &md->m.kind[i].rope;

		if (r->kind == SR_ROPE_FACTORS)
			r->divisor = md->divisor[context > r->context];
	}
}

void model_close(struct model *md)
{
	if (!md)
		return;
	model_free_tensors(md);
	free(md->m.layer);
	free(md->divisor[0]);
	free(md->divisor[1]);
	for (int32_t i = 0; i < md->n_files; i++)
		free(md->file[i]);
	free(md->file);
	free(md);
}
