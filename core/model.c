/* model.c - open a model: read its settings, then find and check every tensor by one table
 * that knows its two names (GGUF's and Hugging Face's) and its shape.
 *
 *	settings   GGUF key values, or config.json        -> sizes, rope, features of struct opening
 *	tensors    each line of `whole` and `layer`        -> lookup, check type and shape, extent
 *	leftovers  a tensor that no line took is refused: ignoring it would compute something else
 *
 * Weights are not read here.  Files are read by pread into memory of our own: a file that
 * shrinks is an error, never a signal.
 */
#include "model.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "gguf.h"
#include "safetensors.h"

#define LAYERS_MAX 4096
#define JSON_MAX   (16u << 20)     /* bytes of config.json and generation_config.json */

/* What a model of a known architecture may have besides the usual; `needs` in the table. */
enum { UNTIED = 1, QKV_BIAS = 2, O_BIAS = 4, QK_NORM = 8 };

struct opening {
	struct model *md;
	struct sr_model *m;            /* = &md->m */
	const char *path;              /* the file that messages name */
	unsigned has;                  /* UNTIED | .. */
	bool dummy;                    /* no weight files: MODEL_RANDOM, MODEL_ONES */
	uint64_t made;                 /* dummy: bytes handed out */
	struct gguf_file file;         /* GGUF */
	const struct gguf *g;          /* = file.g */
	json_t *config;                /* Hugging Face */
	struct safetensors_set *st;
	const char **taken;            /* names of tensors that the table took, [n_taken] */
	int32_t n_taken;
	char *err;
	size_t errlen;
};

__attribute__((format(printf, 3, 4)))
static int fail(struct opening *o, int rc, const char *fmt, ...)
{
	char what[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	snprintf(o->err, o->errlen, "%s: %s", o->path, what);
	return rc;
}

static int no_memory(struct opening *o)
{
	return fail(o, -ENOMEM, "no memory to open it");
}

/* ---- types ---------------------------------------------------------------------------------- */

static const struct {
	int32_t type;                  /* enum sr_type */
	const char *name;
	int32_t gguf;                  /* ggml's number */
	const char *hf;                /* dtype in safetensors; NULL = not there */
} types[] = {
	{ SR_F32,  "F32",   0, "F32" }, { SR_F16,  "F16",   1, "F16" }, { SR_BF16, "BF16", 30, "BF16" },
	{ SR_Q8_0, "Q8_0",  8, NULL },  { SR_Q4_0, "Q4_0",  2, NULL },  { SR_Q4_1, "Q4_1",  3, NULL },
	{ SR_Q5_0, "Q5_0",  6, NULL },  { SR_Q5_1, "Q5_1",  7, NULL },  { SR_Q2_K, "Q2_K", 10, NULL },
	{ SR_Q3_K, "Q3_K", 11, NULL },  { SR_Q4_K, "Q4_K", 12, NULL },  { SR_Q5_K, "Q5_K", 13, NULL },
	{ SR_Q6_K, "Q6_K", 14, NULL },
};
#define N_TYPES ((int)(sizeof(types) / sizeof(*types)))

const char *model_type_name(int32_t type)
{
	for (int i = 0; i < N_TYPES; i++)
		if (types[i].type == type)
			return types[i].name;
	return type == SR_NONE ? "none" : "quantized";
}

/* ---- the tensors of a model and their shapes ------------------------------------------------ */

enum size { ONE, sD, sQ, sKV, sE, sF, sV };   /* Q = H E, KV = G E */

struct spec { const char *gguf, *hf; size_t at; uint8_t n, k; unsigned needs; };

#define AT(field) offsetof(struct sr_model, field)
static const struct spec whole[] = {
	{ "token_embd.weight",  "model.embed_tokens.weight", AT(embed), sV,  sD, 0 },
	{ "output_norm.weight", "model.norm.weight",         AT(norm),  ONE, sD, 0 },
	{ "output.weight",      "lm_head.weight",            AT(head),  sV,  sD, UNTIED },
};
#undef AT

#define AT(field) offsetof(struct sr_layer, field)
static const struct spec layer[] = {          /* names after "blk.N." and "model.layers.N." */
	{ "attn_norm.weight",   "input_layernorm.weight",          AT(norm1), ONE, sD,  0 },
	{ "attn_q.weight",      "self_attn.q_proj.weight",         AT(q),      sQ, sD,  0 },
	{ "attn_k.weight",      "self_attn.k_proj.weight",         AT(k),     sKV, sD,  0 },
	{ "attn_v.weight",      "self_attn.v_proj.weight",         AT(v),     sKV, sD,  0 },
	{ "attn_output.weight", "self_attn.o_proj.weight",         AT(o),      sD, sQ,  0 },
	{ "ffn_norm.weight",    "post_attention_layernorm.weight", AT(norm2), ONE, sD,  0 },
	{ "ffn_gate.weight",    "mlp.gate_proj.weight",            AT(gate),   sF, sD,  0 },
	{ "ffn_up.weight",      "mlp.up_proj.weight",              AT(up),     sF, sD,  0 },
	{ "ffn_down.weight",    "mlp.down_proj.weight",            AT(down),   sD, sF,  0 },
	{ "attn_q.bias",        "self_attn.q_proj.bias",           AT(q_bias), ONE, sQ,  QKV_BIAS },
	{ "attn_k.bias",        "self_attn.k_proj.bias",           AT(k_bias), ONE, sKV, QKV_BIAS },
	{ "attn_v.bias",        "self_attn.v_proj.bias",           AT(v_bias), ONE, sKV, QKV_BIAS },
	{ "attn_output.bias",   "self_attn.o_proj.bias",           AT(o_bias), ONE, sD,  O_BIAS },
	{ "attn_q_norm.weight", "self_attn.q_norm.weight",         AT(q_norm), ONE, sE,  QK_NORM },
	{ "attn_k_norm.weight", "self_attn.k_norm.weight",         AT(k_norm), ONE, sE,  QK_NORM },
};
#undef AT
#define N_WHOLE ((int)(sizeof(whole) / sizeof(*whole)))
#define N_LAYER ((int)(sizeof(layer) / sizeof(*layer)))

static struct sr_tensor *tensor_at(void *base, const struct spec *s)
{
	return (struct sr_tensor *)((char *)base + s->at);
}

static int32_t size_of(const struct sr_model *m, uint8_t size)
{
	const int32_t of[] = { 1, m->D, m->H * m->E, m->G * m->E, m->E, m->F, m->V };

	return of[size];
}

/* A tensor as its file has it. */
struct found {
	int32_t type;                  /* enum sr_type; SR_NONE: none that we know */
	const char *type_name;
	uint32_t n_dims;
	uint64_t dim[4];               /* slowest first */
	struct sr_extent data;
};

static bool find_gguf(struct opening *o, const char *name, struct found *f)
{
	const struct gguf_tensor *t = gguf_tensor(o->g, name);

	if (!t)
		return false;
	f->type_name = gguf_type_name(t->type);
	for (int i = 0; i < N_TYPES; i++)
		if (types[i].gguf == (int32_t)t->type)
			f->type = types[i].type;
	f->n_dims = t->n_dims;
	for (uint32_t d = 0; d < t->n_dims; d++)
		f->dim[d] = t->dim[t->n_dims - 1 - d];
	f->data = (struct sr_extent){ t->offset, t->bytes, 0 };
	return true;
}

static bool find_hf(struct opening *o, const char *name, struct found *f)
{
	for (int32_t i = 0; i < o->st->n; i++) {
		const struct safetensor *t = safetensors_find(o->st->file[i].table, name);

		if (!t)
			continue;
		f->type_name = t->dtype;
		for (int k = 0; k < N_TYPES; k++)
			if (types[k].hf && strcmp(types[k].hf, t->dtype) == 0)
				f->type = types[k].type;
		f->n_dims = t->n_dims < 5 ? t->n_dims : 5;
		for (uint32_t d = 0; d < t->n_dims && d < 4; d++)
			f->dim[d] = t->dim[d];
		f->data = (struct sr_extent){ t->offset, t->bytes, i };
		return true;
	}
	return false;
}

/* bf16 from nowhere: norms are ones, everything else small random numbers. */
static bool find_dummy(struct opening *o, const struct spec *s, struct found *f)
{
	uint64_t n = (uint64_t)size_of(o->m, s->n), k = (uint64_t)size_of(o->m, s->k);
	bool norm = strstr(s->gguf, "norm") != NULL;

	*f = (struct found){ .type = SR_BF16, .type_name = "BF16", .n_dims = s->n == ONE ? 1 : 2,
	                     .dim = { s->n == ONE ? k : n, k } };
	f->data = (struct sr_extent){ o->made, n * k * 2, norm ? MODEL_ONES : MODEL_RANDOM };
	o->made += n * k * 2;
	return true;
}

static int check(struct opening *o, const struct spec *s, const char *name, const struct found *f)
{
	int32_t n = size_of(o->m, s->n), k = size_of(o->m, s->k);

	if (f->type == SR_NONE)
		return fail(o, -ENOTSUP, "tensor %s is of type %s; supported are F32, F16, BF16%s", name,
		            f->type_name,
		            o->g ? ", Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K" : "");
	if (s->n == ONE && f->type > SR_BF16)
		return fail(o, -ENOTSUP, "tensor %s is of type %s; a vector must be F32, F16 or BF16", name,
		            f->type_name);
	if (s->n == ONE ? f->n_dims == 1 && f->dim[0] == (uint64_t)k
	                : f->n_dims == 2 && f->dim[0] == (uint64_t)n && f->dim[1] == (uint64_t)k)
		return 0;
	if (s->n == ONE)
		return fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu32 " dimensions, the "
		            "first of %" PRIu64
		            "; the settings of this model make it [%d]", name, f->data.offset, f->n_dims,
		            f->dim[0], k);
	return fail(o, -EINVAL, "tensor %s at offset %" PRIu64 " has %" PRIu32 " dimensions, "
	            "[%" PRIu64 "][%" PRIu64
	            "]; the settings of this model make it [%d][%d]", name, f->data.offset, f->n_dims,
	            f->dim[0],
	            f->dim[1], n, k);
}

/* Layer l, or -1: the tensor of line s goes to *t. */
static int take(struct opening *o, const struct spec *s, int l, struct sr_tensor *t)
{
	const char *own = o->config ? s->hf : s->gguf;
	struct found f = { .type = SR_NONE };
	char name[128];
	int rc;

	if (s->needs && !(o->has & s->needs))
		return 0;
	if (l < 0)
		snprintf(name, sizeof(name), "%s", own);
	else
		snprintf(name, sizeof(name), o->config ? "model.layers.%d.%s" : "blk.%d.%s", l, own);
	if (!(o->dummy ? find_dummy(o, s, &f) : o->g ? find_gguf(o, name, &f) : find_hf(o, name, &f)))
		return fail(o, -EINVAL, "tensor %s is missing", name);
	rc = check(o, s, name, &f);
	if (rc)
		return rc;
	t->name = strdup(name);
	if (!t->name)
		return no_memory(o);
	t->type = f.type;
	t->n = size_of(o->m, s->n);
	t->k = size_of(o->m, s->k);
	t->data = f.data;
	o->taken[o->n_taken++] = t->name;
	o->md->weight_bytes += f.data.bytes;
	return 0;
}

/* Tensors that carry nothing, or nothing that the settings do not say. */
static bool harmless(struct opening *o, const char *name, size_t n)
{
	static const char *const ends[] = { "rope_freqs.weight", "rotary_emb.inv_freq", "lm_head.weight" };

	for (int i = 0; i < 3; i++) {
		size_t len = strlen(ends[i]);

		if (n >= len && memcmp(name + n - len, ends[i], len) == 0)
			return i < 2 || !(o->has & UNTIED);
	}
	return false;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_leftover(struct opening *o, const char *name)
{
	if (bsearch(&name, o->taken, (size_t)o->n_taken, sizeof(*o->taken), by_name) ||
	    harmless(o, name, strlen(name)))
		return 0;
	return fail(o, -ENOTSUP, "tensor %.100s is no part of the %s architecture as Slipring knows it", name,
	            o->m->arch);
}

static int check_leftovers(struct opening *o)
{
	int rc = 0;

	qsort(o->taken, (size_t)o->n_taken, sizeof(*o->taken), by_name);
	for (uint64_t t = 0; o->g && t < o->g->n_tensors && !rc; t++) {
		const struct gguf_string *n = &o->g->tensor[t].name;
		char name[65];

		snprintf(name, sizeof(name), "%.*s", (int)n->n, n->s);
		rc = check_leftover(o, name);
	}
	for (int32_t i = 0; o->st && i < o->st->n; i++)
		for (uint64_t t = 0; t < o->st->file[i].table->n && !rc; t++)
			rc = check_leftover(o, o->st->file[i].table->tensor[t].name);
	return rc;
}

static int cmp_count(const void *a, const void *b) { return ((const int *)b)[1] - ((const int *)a)[1]; }

/* "Q4_1 (210), F32 (61), Q8_0 (1)" */
static void describe(struct opening *o)
{
	int count[N_TYPES][2], at = 0, n = 0;
	size_t len = 0;

	for (int i = 0; i < N_TYPES; i++)
		count[i][0] = i, count[i][1] = 0;
	for (int32_t l = -1; l < o->m->L; l++)
		for (int i = 0; i < (l < 0 ? N_WHOLE : N_LAYER); i++) {
			const struct sr_tensor *t = l < 0 ? tensor_at(o->m, &whole[i])
			                                  : tensor_at(&o->m->layer[l], &layer[i]);

			for (at = 0; at < N_TYPES; at++)
				if (t->type != SR_NONE && types[at].type == t->type)
					count[at][1]++;
		}
	qsort(count, N_TYPES, sizeof(count[0]), cmp_count);
	for (n = 0; n < N_TYPES && count[n][1] && len < sizeof(o->md->stored); n++)
		len += (size_t)snprintf(o->md->stored + len, sizeof(o->md->stored) - len, "%s%s (%d)", n
		                        ? ", " : "",
		                        types[count[n][0]].name, count[n][1]);
}

static int take_tensors(struct opening *o)
{
	int rc = 0;

	o->m->layer = calloc((size_t)o->m->L, sizeof(*o->m->layer));
	o->taken = calloc((size_t)(N_WHOLE + o->m->L * N_LAYER), sizeof(*o->taken));
	if (!o->m->layer || !o->taken)
		return no_memory(o);
	for (int i = 0; i < N_WHOLE && !rc; i++)
		rc = take(o, &whole[i], -1, tensor_at(o->m, &whole[i]));
	for (int32_t l = 0; l < o->m->L; l++)
		for (int i = 0; i < N_LAYER && !rc; i++)
			rc = take(o, &layer[i], l, tensor_at(&o->m->layer[l], &layer[i]));
	if (!rc && !o->dummy)
		rc = check_leftovers(o);
	describe(o);
	return rc;
}

/* ---- settings, from either kind of file ----------------------------------------------------- */

/* config.json's name for it, or after "llama." in a GGUF. */
struct key { const char *gguf, *hf; };

static const char *key_name(struct opening *o, struct key k, char *buf, size_t n)
{
	if (o->config)
		return k.hf;
	snprintf(buf, n, "%s.%s", o->m->arch, k.gguf);
	return buf;
}

/* 0; 1 it is not there and *out is as before; -EINVAL. */
static int get_int(struct opening *o, struct key k, int64_t min, int64_t max, int32_t *out)
{
	char buf[96];
	const char *name = key_name(o, k, buf, sizeof(buf));
	int64_t v = 0;

	if (o->config) {
		const json_t *j = json_object_get(o->config, name);

		if (!j || json_is_null(j))
			return 1;
		if (!json_is_integer(j))
			return fail(o, -EINVAL, "%s is no integer", name);
		v = json_integer_value(j);
	} else {
		uint64_t u = 0;
		int rc = gguf_u64(o->g, name, &u);

		if (rc == -ENOENT)
			return 1;
		if (rc)
			return fail(o, -EINVAL, "%s is no integer from 0 up", name);
		v = u > INT64_MAX ? INT64_MAX : (int64_t)u;
	}
	if (v < min || v > max)
		return fail(o, -EINVAL, "%s is %" PRId64 "; %" PRId64 " to %" PRId64 " are allowed", name, v,
		            min, max);
	*out = (int32_t)v;
	return 0;
}

static int get_float(struct opening *o, struct key k, double min, double max, float *out)
{
	char buf[96];
	const char *name = key_name(o, k, buf, sizeof(buf));
	double v = 0;

	if (o->config) {
		const json_t *j = json_object_get(o->config, name);

		if (!j || json_is_null(j))
			return 1;
		if (!json_is_number(j))
			return fail(o, -EINVAL, "%s is no number", name);
		v = json_number_value(j);
	} else {
		int rc = gguf_f64(o->g, name, &v);

		if (rc == -ENOENT)
			return 1;
		if (rc)
			return fail(o, -EINVAL, "%s is no finite float", name);
	}
	if (!(v >= min && v <= max))
		return fail(o, -EINVAL, "%s is %g; %g to %g are allowed", name, v, min, max);
	*out = (float)v;
	return 0;
}

static int need(struct opening *o, struct key k, int rc)
{
	char buf[96];

	return rc == 1 ? fail(o, -EINVAL, "%s is missing", key_name(o, k, buf, sizeof(buf))) : rc;
}

/* Sizes: required ones first, then those with a default. */
static int get_sizes(struct opening *o)
{
#define AT(size) offsetof(struct sr_model, size)
	static const struct { struct key key; size_t at; int64_t max; } field[] = {
		{ { "block_count", "num_hidden_layers" },            AT(L), LAYERS_MAX },
		{ { "embedding_length", "hidden_size" },             AT(D), 1 << 17 },
		{ { "attention.head_count", "num_attention_heads" }, AT(H), 1 << 12 },
		{ { "feed_forward_length", "intermediate_size" },    AT(F), 1 << 19 },
		{ { "context_length", "max_position_embeddings" },   AT(context), 1 << 28 },
	};
#undef AT
	const struct key heads_kv = { "attention.head_count_kv", "num_key_value_heads" };
	const struct key width = { "attention.key_length", "head_dim" };
	const struct key width_v = { "attention.value_length", "v_head_dim" };
	const struct key eps = { "attention.layer_norm_rms_epsilon", "rms_norm_eps" };
	struct sr_model *m = o->m;
	int32_t ev;
	int rc;

	for (unsigned i = 0; i < sizeof(field) / sizeof(*field); i++) {
		rc = get_int(o, field[i].key, 1, field[i].max, (int32_t *)((char *)m + field[i].at));
		if ((rc = need(o, field[i].key, rc)) != 0)
			return rc;
	}
	m->G = m->H;
	if ((rc = get_int(o, heads_kv, 1, 1 << 12, &m->G)) < 0)
		return rc;
	if (m->H % m->G)
		return fail(o, -EINVAL, "%d attention heads are no multiple of %d key-value heads", m->H,
		            m->G);
	if ((rc = get_int(o, width, 1, 1 << 12, &m->E)) < 0)
		return rc;
	if (rc == 1) {
		if (m->D % m->H)
			return fail(o, -EINVAL, "a width of %d is no multiple of %d attention heads, and no "
			            "head width is given",
			            m->D, m->H);
		m->E = m->D / m->H;
	}
	ev = m->E;
	if ((rc = get_int(o, width_v, 1, 1 << 12, &ev)) < 0)
		return rc;
	if (ev != m->E)
		return fail(o, -ENOTSUP, "heads of values are %d wide and heads of keys %d: different widths "
		            "are not supported",
		            ev, m->E);
	if (m->E % 2 || m->E > 1024)
		return fail(o, -EINVAL, "heads are %d wide; even widths up to 1024 are possible", m->E);
	if ((rc = need(o, eps, get_float(o, eps, 1e-12, 0.1, &m->eps))) != 0)
		return rc;
	m->attn_scale = 1 / sqrtf((float)m->E);
	m->embed_scale = 1;
	m->act = SR_SILU;
	return 0;
}

static void set_name(char *out, size_t n, const char *s, size_t len)
{
	size_t at = 0;

	for (size_t i = 0; i < len && at + 1 < n; i++)
		out[at++] = isprint((unsigned char)s[i]) ? s[i] : '?';
	out[at] = 0;
}

/* An id that ends an answer; once each. */
static int add_eos(struct opening *o, const char *where, int64_t id)
{
	struct model *md = o->md;

	if (id < 0 || id >= md->m.V)
		return fail(o, -EINVAL, "%s is %" PRId64 "; token ids are 0 to %d", where, id, md->m.V - 1);
	for (int i = 0; i < md->n_eos; i++)
		if (md->eos[i] == id)
			return 0;
	if (md->n_eos == MODEL_EOS_MAX)
		return fail(o, -EINVAL, "%s has more than %d ids", where, MODEL_EOS_MAX);
	md->eos[md->n_eos++] = (int32_t)id;
	return 0;
}

/* The context that scaling reaches, as vLLM derives it. */
static int scale_context(struct opening *o, const struct sr_rope *r)
{
	double c = (double)(r->kind == SR_ROPE_YARN ? r->context : o->m->context) * (double)r->factor;

	if (r->kind != SR_ROPE_LINEAR && r->kind != SR_ROPE_YARN)
		return 0;
	if (!(c >= 1 && c <= 1 << 28))
		return fail(o, -EINVAL, "rope scaling by %g makes a context of %.0f; up to %d are possible",
		            (double)r->factor, c, 1 << 28);
	o->m->context = (int32_t)c;
	return 0;
}

/* ---- GGUF ----------------------------------------------------------------------------------- */

/* Llama 3's scaling comes as factors per frequency: find the formula's parameters that made
 * them, so that there is one kind of rope.  Source: convert_hf_to_gguf.py, Llama 3.1. */
static int rope_from_factors(struct opening *o, const struct gguf_tensor *t, struct sr_rope *r)
{
	float got[512], plain[512], made[512], most = 1;
	int n = r->dims / 2;

	if (t->type != 0 || t->n_dims != 1 || t->dim[0] != (uint64_t)n || n > 512)
		return fail(o, -EINVAL, "tensor rope_freqs.weight at offset %" PRIu64 " is not F32 [%d]",
		            t->offset, n);
	if (pread(o->file.fd, got, (size_t)n * 4, (off_t)t->offset) != n * 4)
		return fail(o, -EIO, "tensor rope_freqs.weight at offset %" PRIu64 " cannot be read",
		            t->offset);
	for (int i = 0; i < n; i++)
		if (!(got[i] >= 1 && got[i] <= 1024))
			return fail(o, -EINVAL, "rope_freqs.weight[%d] is %g; 1 to 1024 are allowed", i,
			            (double)got[i]);
		else if (got[i] > most)
			most = got[i];
	if (most == 1)
		return 0;
	r->kind = SR_ROPE_PLAIN;
	sr_rope_freq(r, plain);
	r->kind = SR_ROPE_LLAMA3;
	r->factor = most;
	r->low = 1;
	r->high = 4;
	r->context = 8192;
	sr_rope_freq(r, made);
	for (int i = 0; i < n; i++)
		if (fabsf(plain[i] / got[i] - made[i]) > 1e-3f * made[i])
			return fail(o, -ENOTSUP, "rope_freqs.weight[%d] is %g, which Llama 3's scaling by %g "
			            "does not give", i,
			            (double)got[i], (double)most);
	return 0;
}

static int gguf_rope(struct opening *o)
{
	const struct gguf_tensor *factors = gguf_tensor(o->g, "rope_freqs.weight");
	struct sr_rope *r = &o->m->rope[0];
	struct gguf_string type = { "none", 4 };
	char name[96];
	int rc;

	*r = (struct sr_rope){ .dims = o->m->E, .context = o->m->context,
	                       .pairs = strcmp(o->m->arch, "llama") == 0,
	                       .theta = 10000, .factor = 1, .magnitude = 1 };
	if ((rc = get_int(o, (struct key){ "rope.dimension_count", "" }, 2, o->m->E, &r->dims)) < 0 ||
	    (rc = get_float(o, (struct key){ "rope.freq_base", "" }, 2, 1e12, &r->theta)) < 0 ||
	    (rc = get_float(o, (struct key){ "rope.scaling.factor", "" }, 1, 4096, &r->factor)) < 0 ||
	    (rc = get_int(o, (struct key){ "rope.scaling.original_context_length", "" }, 1, 1 << 28,
	                  &r->context)) < 0)
		return rc;
	if (r->dims % 2)
		return fail(o, -EINVAL, "%s.rope.dimension_count is %d; it must be even", o->m->arch,
		            r->dims);
	snprintf(name, sizeof(name), "%s.rope.scaling.type", o->m->arch);
	if (gguf_str(o->g, name, &type) == -EINVAL)
		return fail(o, -EINVAL, "%s is no string", name);
	if (type.n == 6 && memcmp(type.s, "linear", 6) == 0) {
		r->kind = SR_ROPE_LINEAR;
	} else if (type.n == 4 && memcmp(type.s, "yarn", 4) == 0) {
		r->kind = SR_ROPE_YARN;
		r->low = 1;
		r->high = 32;
		r->magnitude = 1 + 0.1f * logf(r->factor);
	} else if (type.n != 4 || memcmp(type.s, "none", 4) != 0) {
		return fail(o, -ENOTSUP, "%s is %.*s; supported are none, linear, yarn", name,
		            (int)(type.n < 40 ? type.n : 40), type.s);
	}
	/* A GGUF's context_length is what scaling already reaches. */
	return factors && r->kind == SR_ROPE_PLAIN ? rope_from_factors(o, factors, r) : 0;
}

static int gguf_settings(struct opening *o)
{
	static const char *const known[] = { "llama", "qwen2", "qwen3" };
	const struct gguf_tensor *embed = gguf_tensor(o->g, "token_embd.weight");
	struct gguf_string s;
	int32_t experts = 0;
	int rc, i;

	if (gguf_str(o->g, "general.architecture", &s) != 0)
		return fail(o, -EINVAL, "general.architecture is missing or no string");
	set_name(o->m->arch, sizeof(o->m->arch), s.s, s.n);
	for (i = 0; i < 3 && strcmp(known[i], o->m->arch) != 0; i++)
		;
	if (i == 3)
		return fail(o, -ENOTSUP, "architecture %s is not supported; supported are llama, qwen2, "
		            "qwen3", o->m->arch);
	if (gguf_str(o->g, "general.name", &s) == 0)
		set_name(o->m->name, sizeof(o->m->name), s.s, s.n);
	if ((rc = get_sizes(o)) != 0)
		return rc;
	if ((rc = get_int(o, (struct key){ "expert_count", "" }, 0, INT32_MAX, &experts)) < 0)
		return rc;
	if (experts)
		return fail(o, -ENOTSUP, "%s.expert_count is %d: mixtures of experts are not supported",
		            o->m->arch, experts);
	if (!embed || embed->n_dims != 2 || embed->dim[1] > 1 << 24)
		return fail(o, -EINVAL, "tensor token_embd.weight is missing or no matrix of at most %d rows",
		            1 << 24);
	o->m->V = (int32_t)embed->dim[1];
	if (gguf_tensor(o->g, "output.weight"))
		o->has |= UNTIED;
	if (i == 1 || gguf_tensor(o->g, "blk.0.attn_q.bias"))
		o->has |= QKV_BIAS;
	if (gguf_tensor(o->g, "blk.0.attn_output.bias"))
		o->has |= O_BIAS;
	if (i == 2)
		o->has |= QK_NORM;
	return 0;
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
			return fail(o, -EINVAL, "%s is no integer from 0 up", keys[i]);
		if ((rc = add_eos(o, keys[i], id > INT32_MAX ? -1 : (int64_t)id)) != 0)
			return rc;
	}
	if (tokens && tokens->n > (uint64_t)o->m->V)
		return fail(o, -EINVAL, "tokenizer.ggml.tokens has %" PRIu64 " tokens, but token_embd.weight "
		            "only %d rows",
		            tokens->n, o->m->V);
	return 0;
}

static int open_gguf(struct opening *o)
{
	int rc = gguf_read(&o->file, o->path, o->err, o->errlen);

	if (rc)
		return rc;
	o->g = o->file.g;
	snprintf(o->md->format, sizeof(o->md->format), "GGUF");
	o->md->file = calloc(1, sizeof(char *));
	if (!o->md->file || !(o->md->file[0] = strdup(o->path)))
		return no_memory(o);
	o->md->n_files = 1;
	if ((rc = gguf_settings(o)) != 0 || (rc = gguf_rope(o)) != 0 || (rc = gguf_eos(o)) != 0)
		return rc;
	return take_tensors(o);
}

/* ---- Hugging Face --------------------------------------------------------------------------- */

static const char *text_of(const json_t *j, const char *key)
{
	return json_string_value(json_object_get(j, key));
}

/* dir/name as an object; NULL and *rc = -ENOENT, .. and a sentence. */
static json_t *load_json(struct opening *o, const char *dir, const char *name, int *rc)
{
	static _Thread_local char path[4096 + 64];     /* stays: it is what messages name */
	json_error_t why;
	json_t *j;
	char *text;
	size_t n;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	o->path = path;
	*rc = safetensors_text(&text, &n, path, JSON_MAX, o->err, o->errlen);
	if (*rc)
		return NULL;
	j = json_loadb(text, n, 0, &why);
	free(text);
	if (!j)
		*rc = fail(o, -EINVAL, "line %d, column %d: %s", why.line, why.column, why.text);
	else if (!json_is_object(j))
		*rc = fail(o, -EINVAL, "is no JSON object");
	if (*rc) {
		json_decref(j);
		j = NULL;
	}
	return j;
}

/* A number of an object that is not the whole of config.json; what is not there stays. */
static int sub_float(struct opening *o, const json_t *obj, const char *of, const char *key, double min,
                     double max,
                     float *out)
{
	const json_t *j = json_object_get(obj, key);
	double v = json_number_value(j);

	if (!j || json_is_null(j))
		return 0;
	if (!json_is_number(j) || !(v >= min && v <= max))
		return fail(o, -EINVAL, "%s.%s is no number from %g to %g", of, key, min, max);
	*out = (float)v;
	return 0;
}

static int sub_int(struct opening *o, const json_t *obj, const char *of, const char *key, int32_t max,
                   int32_t *out)
{
	const json_t *j = json_object_get(obj, key);

	if (!j || json_is_null(j))
		return 0;
	if (!json_is_integer(j) || json_integer_value(j) < 1 || json_integer_value(j) > max)
		return fail(o, -EINVAL, "%s.%s is no integer from 1 to %d", of, key, max);
	*out = (int32_t)json_integer_value(j);
	return 0;
}

/* rope_scaling {type or rope_type, ..}; since transformers 5 rope_parameters, theta in it. */
static int hf_rope(struct opening *o)
{
	struct sr_rope *r = &o->m->rope[0];
	const char *of = "rope_parameters", *type;
	const json_t *j = json_object_get(o->config, of);
	float part = 1, magnitude = 0;
	int rc;

	*r = (struct sr_rope){ .dims = o->m->E, .context = o->m->context, .theta = 10000, .factor = 1,
	                       .magnitude = 1 };
	if (!json_is_object(j)) {
		of = "rope_scaling";
		j = json_object_get(o->config, of);
	}
	if (j && !json_is_null(j) && !json_is_object(j))
		return fail(o, -EINVAL, "%s is no object", of);
	if ((rc = get_float(o, (struct key){ "", "rope_theta" }, 2, 1e12, &r->theta)) < 0 ||
	    (rc = get_float(o, (struct key){ "", "partial_rotary_factor" }, 0.01, 1, &part)) < 0 ||
	    (rc = sub_float(o, j, of, "rope_theta", 2, 1e12, &r->theta)) != 0 ||
	    (rc = sub_float(o, j, of, "factor", 1, 4096, &r->factor)) != 0 ||
	    (rc = sub_int(o, j, of, "original_max_position_embeddings", 1 << 28, &r->context)) != 0)
		return rc;
	r->dims = (int32_t)((float)o->m->E * part) & ~1;
	if (r->dims < 2)
		return fail(o, -EINVAL, "partial_rotary_factor leaves no dimension of %d to rotate", o->m->E);
	type = text_of(j, "rope_type") ? text_of(j, "rope_type") : text_of(j, "type");
	if (!type || strcmp(type, "default") == 0)
		return 0;
	if (strcmp(type, "linear") == 0) {
		r->kind = SR_ROPE_LINEAR;
	} else if (strcmp(type, "llama3") == 0) {
		r->kind = SR_ROPE_LLAMA3;
		r->low = 1;
		r->high = 4;
		if ((rc = sub_float(o, j, of, "low_freq_factor", 1e-3, 1e3, &r->low)) != 0 ||
		    (rc = sub_float(o, j, of, "high_freq_factor", 1e-3, 1e3, &r->high)) != 0)
			return rc;
		if (r->high <= r->low)
			return fail(o, -EINVAL, "%s.high_freq_factor must be above low_freq_factor", of);
	} else if (strcmp(type, "yarn") == 0) {
		r->kind = SR_ROPE_YARN;
		r->low = 1;
		r->high = 32;
		if ((rc = sub_float(o, j, of, "beta_slow", 1e-3, 1e3, &r->low)) != 0 ||
		    (rc = sub_float(o, j, of, "beta_fast", 1e-3, 1e3, &r->high)) != 0 ||
		    (rc = sub_float(o, j, of, "attention_factor", 1e-3, 1e3, &magnitude)) != 0)
			return rc;
		r->magnitude = magnitude > 0 ? magnitude : 1 + 0.1f * logf(r->factor);
	} else {
		return fail(o, -ENOTSUP, "%s.rope_type %.40s is not supported; supported are default, "
		            "linear, llama3, yarn", of,
		            type);
	}
	return scale_context(o, r);
}

/* Settings that would compute something else than what we do. */
static int hf_refuse(struct opening *o)
{
	const json_t *quant = json_object_get(o->config, "quantization_config");
	const char *act = text_of(o->config, "hidden_act");

	if (json_is_object(quant))
		return fail(o, -ENOTSUP, "quantization_config.quant_method %.40s is not supported; supported "
		            "are weights as they are (F32, F16, BF16), and quantized ones as GGUF",
		            text_of(quant, "quant_method") ? text_of(quant, "quant_method") : "(none)");
	if (act && strcmp(act, "silu") != 0)
		return fail(o, -ENOTSUP, "hidden_act %.40s is not supported; supported is silu", act);
	if (json_is_true(json_object_get(o->config, "mlp_bias")))
		return fail(o, -ENOTSUP, "mlp_bias true is not supported");
	return 0;
}

static int hf_settings(struct opening *o)
{
	static const struct { const char *name; unsigned has; } known[] = {
		{ "LlamaForCausalLM", UNTIED }, { "MistralForCausalLM", UNTIED },
		{ "Qwen2ForCausalLM", UNTIED | QKV_BIAS }, { "Qwen3ForCausalLM", UNTIED | QK_NORM },
	};
	const json_t *list = json_object_get(o->config, "architectures"), *tied;
	const char *arch = json_string_value(json_array_get(list, 0));
	const struct key vocab = { "", "vocab_size" };
	int rc, i;

	for (i = 0; i < 4 && (!arch || strcmp(known[i].name, arch) != 0); i++)
		;
	if (i == 4)
		return fail(o, -ENOTSUP, "architectures[0] %.60s is not supported; supported are "
		            "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
		            arch ? arch : "(none)");
	set_name(o->m->arch, sizeof(o->m->arch), arch, strlen(arch));
	if ((rc = get_sizes(o)) != 0 || (rc = need(o, vocab, get_int(o, vocab, 1, 1 << 24, &o->m->V))) != 0 ||
	    (rc = hf_refuse(o)) != 0)
		return rc;
	o->has = known[i].has;
	tied = json_object_get(o->config, "tie_word_embeddings");
	if (json_is_true(tied))
		o->has &= ~(unsigned)UNTIED;
	if (json_is_true(json_object_get(o->config, "attention_bias")))
		o->has |= QKV_BIAS | O_BIAS;
	return hf_rope(o);
}

/* Mistral attends to a window; Qwen only where use_sliding_window says so, from a layer up. */
static int hf_window(struct opening *o)
{
	bool qwen = strncmp(o->m->arch, "Qwen", 4) == 0;
	int32_t window = 0, first = 0;
	int rc = get_int(o, (struct key){ "", "sliding_window" }, 0, 1 << 28, &window);

	if (rc < 0 || (qwen && !json_is_true(json_object_get(o->config, "use_sliding_window"))) ||
	    strncmp(o->m->arch, "Llama", 5) == 0)
		return rc < 0 ? rc : 0;
	if (qwen && (rc = get_int(o, (struct key){ "", "max_window_layers" }, 0, LAYERS_MAX, &first)) < 0)
		return rc;
	for (int32_t l = first; l < o->m->L; l++)
		o->m->layer[l].window = window;
	return 0;
}

/* eos_token_id: an id or a list of ids; 1: not there. */
static int hf_eos(struct opening *o, const json_t *from)
{
	const json_t *j = json_object_get(from, "eos_token_id");
	size_t n = json_is_array(j) ? json_array_size(j) : 1;
	int rc = 0;

	if (!j || json_is_null(j))
		return 1;
	for (size_t i = 0; i < n && !rc; i++) {
		const json_t *id = json_is_array(j) ? json_array_get(j, i) : j;

		rc = json_is_integer(id) ? add_eos(o, "eos_token_id", json_integer_value(id))
		                         : fail(o, -EINVAL, "eos_token_id is no integer or list of integers");
	}
	return rc;
}

static int open_weights(struct opening *o, const char *dir)
{
	struct model *md = o->md;
	int rc = safetensors_open(&o->st, dir, o->err, o->errlen);

	if (rc)
		return rc;
	md->file = calloc((size_t)o->st->n + 1, sizeof(char *));
	if (!md->file)
		return no_memory(o);
	for (; md->n_files < o->st->n; md->n_files++)
		if (!(md->file[md->n_files] = strdup(o->st->file[md->n_files].path)))
			return no_memory(o);
	snprintf(md->format, sizeof(md->format), "safetensors");
	return 0;
}

static int open_hf(struct opening *o, const char *dir)
{
	json_t *generation;
	int rc;

	o->config = load_json(o, dir, "config.json", &rc);
	if (!o->config || (rc = hf_settings(o)) != 0)
		return rc;
	generation = load_json(o, dir, "generation_config.json", &rc);
	if (!generation && rc != -ENOENT)
		return rc;
	rc = generation ? hf_eos(o, generation) : 1;
	json_decref(generation);
	if (rc == 1)
		rc = hf_eos(o, o->config);
	if (rc < 0)
		return rc;
	o->path = dir;
	if (!o->dummy && (rc = open_weights(o, dir)) != 0)
		return rc;
	rc = take_tensors(o);
	return rc ? rc : hf_window(o);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void finish(struct opening *o, int rc, struct model **out)
{
	gguf_close(&o->file);
	json_decref(o->config);
	safetensors_close(o->st);
	free(o->taken);
	if (rc)
		model_close(o->md);
	else
		*out = o->md;
}

/* The last part of the path, without .gguf: the name of a model that has none inside. */
static void name_by_path(struct model *md, const char *path)
{
	size_t n = strlen(path);
	const char *from;

	while (n > 1 && path[n - 1] == '/')
		n--;
	for (from = path + n; from > path && from[-1] != '/'; from--)
		;
	n -= (size_t)(from - path);
	if (n > 5 && memcmp(from + n - 5, ".gguf", 5) == 0)
		n -= 5;
	set_name(md->m.name, sizeof(md->m.name), from, n);
}

static int open_any(struct model **out, const char *path, bool dummy, char *err, size_t errlen)
{
	struct model *md = calloc(1, sizeof(*md));
	struct opening o = { .md = md, .m = md ? &md->m : NULL, .path = path, .dummy = dummy, .file.fd = -1,
	                     .err = err, .errlen = errlen };
	struct stat st;
	int rc;

	*out = NULL;
	if (!md)
		rc = no_memory(&o);
	else if (stat(path, &st) < 0)
		rc = fail(&o, -errno, "%s", strerror(errno));
	else
		rc = S_ISDIR(st.st_mode) ? open_hf(&o, path) : open_gguf(&o);
	if (rc == 0 && !md->m.name[0])
		name_by_path(md, path);
	if (rc == 0 && dummy)
		snprintf(md->format, sizeof(md->format), "dummy");
	finish(&o, rc, out);
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

int model_dummy(struct model **out, const struct sr_model *shape, char *err, size_t errlen)
{
	struct model *md = calloc(1, sizeof(*md));
	struct opening o = { .md = md, .m = md ? &md->m : NULL, .path = "dummy", .dummy = true, .file.fd = -1,
	                     .err = err, .errlen = errlen };
	const struct sr_layer *l = shape->layer;
	int rc;

	*out = NULL;
	if (!md)
		return no_memory(&o);
	if (shape->L < 1 || shape->L > LAYERS_MAX || shape->D < 1 || shape->H < 1 || shape->G < 1 ||
	    shape->H % shape->G || shape->E < 2 || shape->F < 1 || shape->V < 1) {
		rc = fail(&o, -EINVAL, "a size is zero, or %d heads are no multiple of %d", shape->H,
		          shape->G);
	} else {
		md->m = *shape;
		memset(&md->m.embed, 0, sizeof(md->m.embed));
		memset(&md->m.norm, 0, sizeof(md->m.norm));
		memset(&md->m.head, 0, sizeof(md->m.head));
		md->m.layer = NULL;
		o.has = (shape->head.type ? UNTIED : 0u) | (l && l->q_bias.type ? QKV_BIAS : 0u) |
		        (l && l->o_bias.type ? O_BIAS : 0u) | (l && l->q_norm.type ? QK_NORM : 0u);
		snprintf(md->format, sizeof(md->format), "dummy");
		rc = take_tensors(&o);
	}
	finish(&o, rc, out);
	return rc;
}

void model_close(struct model *md)
{
	if (!md)
		return;
	for (int32_t l = -1; l < md->m.L; l++)
		for (int i = 0; i < (l < 0 ? N_WHOLE : md->m.layer ? N_LAYER : 0); i++)
			free((void *)(uintptr_t)(l < 0 ? tensor_at(&md->m, &whole[i])
			                               : tensor_at(&md->m.layer[l], &layer[i]))->name);
	free(md->m.layer);
	for (int32_t i = 0; i < md->n_files; i++)
		free(md->file[i]);
	free(md->file);
	free(md);
}
