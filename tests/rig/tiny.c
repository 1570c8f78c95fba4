/* tiny.c - see tiny.h.  Formats are written from their specifications, not from the kernels, so a weight's
 * value here checks the value that the kernels read. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/rig/tiny.h"

static uint64_t next(uint64_t *s) /* xorshift64* */
{
	*s ^= *s >> 12;
	*s ^= *s << 25;
	*s ^= *s >> 27;
	return *s * 0x2545f4914f6cdd1du;
}

static float uniform(uint64_t *s) /* [-1, 1) */
{
	return (float)((double)(int64_t)next(s) * 0x1p-63);
}

/* Normal f16 only, truncated: precision does not matter here. */
static uint16_t half(float f)
{
	uint32_t u;

	if (fabsf(f) < 0x1p-14f)
		return 0;
	memcpy(&u, &f, sizeof(u));
	return (uint16_t)((u >> 16 & 0x8000) | ((u & 0x7fffffff) - 0x38000000) >> 13);
}

static float unhalf(uint16_t h)
{
	float f = ldexpf((float)(h & 0x3ff) / 1024 + 1, (h >> 10 & 31) - 15);

	return !(h & 0x7fff) ? 0 : h & 0x8000 ? -f : f;
}

static uint16_t brain(float f) /* truncated: precision does not matter here */
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return (uint16_t)(u >> 16);
}

static float unbrain(uint16_t b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static size_t row_bytes(int32_t type, int32_t k)
{
	size_t n = (size_t)k;

	switch (type) {
	case SR_F32:  return 4 * n;
	case SR_F16:
	case SR_BF16: return 2 * n;
	case SR_Q8_0: return n / 32 * 34;
	case SR_Q4_0: return n / 32 * 18;
	case SR_Q4_1: return n / 32 * 20;
	case SR_MXFP4: return n / 32 * 17;
	}
	assert(!"a type that tiny models have");
	return 0;
}

/* k random weights of about `size`. */
static void fill_row(int32_t type, int32_t k, float size, uint64_t *s, uint8_t *to)
{
	if (type == SR_F32 || type == SR_F16 || type == SR_BF16) {
		for (int32_t i = 0; i < k; i++) {
			float f = uniform(s) * size;
			uint16_t u = type == SR_F16 ? half(f) : brain(f);

			memcpy(to + (size_t)i * (type == SR_F32 ? 4 : 2), type == SR_F32 ? (void *)&f : (void *)&u,
				type == SR_F32 ? 4 : 2);
		}
		return;
	}
	for (int32_t g = 0; g < k / 32; g++) {
		float top = type == SR_Q8_0 ? 127.0f : 8.0f;
		uint16_t d, m;
		int n = type == SR_Q8_0 ? 32 : 16;

		if (type == SR_MXFP4) { /* 6 is the largest weight */
			*to++ = (uint8_t)(127 + (int)floorf(log2f(size / 6)) + (int)(next(s) >> 63));
			for (int i = 0; i < 16; i++)
				*to++ = (uint8_t)(next(s) >> 56);
			continue;
		}
		d = half(size * (0.5f + 0.5f * fabsf(uniform(s))) / top);
		m = half(-unhalf(d) * (7.5f + uniform(s)));

		memcpy(to, &d, 2);
		to += 2;
		if (type == SR_Q4_1) {
			memcpy(to, &m, 2);
			to += 2;
		}
		for (int i = 0; i < n; i++)
			*to++ = (uint8_t)(next(s) >> 56);
	}
}

/* A sign, two bits of exponent, one of mantissa. */
static float e2m1(int v)
{
	int e = v >> 1 & 3;
	float f = e ? ldexpf(1 + (float)(v & 1) / 2, e - 1) : (float)(v & 1) / 2;

	return v & 8 ? -f : f;
}

static void dense_row(int32_t type, int32_t k, const uint8_t *from, float *to)
{
	for (int32_t i = 0; i < k; i++) {
		const uint8_t *g = from + row_bytes(type, 32) * (size_t)(i / 32);
		int j = i % 32, low = j < 16;
		uint16_t u[2];

		memcpy(u, type == SR_F16 || type == SR_BF16 ? from + 2 * (size_t)i : g, 4 - 2 * (type == SR_F16 || type == SR_BF16));
		switch (type) {
		case SR_F32:  memcpy(&to[i], from + 4 * (size_t)i, 4); break;
		case SR_F16:  to[i] = unhalf(u[0]); break;
		case SR_BF16: to[i] = unbrain(u[0]); break;
		case SR_Q8_0: to[i] = unhalf(u[0]) * (float)(int8_t)g[2 + j]; break;
		case SR_Q4_0: to[i] = unhalf(u[0]) * (float)((low ? g[2 + j] & 15 : g[2 + j - 16] >> 4) - 8); break;
		case SR_MXFP4: to[i] = e2m1(low ? g[1 + j] & 15 : g[1 + j - 16] >> 4) * ldexpf(1, g[0] - 127); break;
		case SR_Q4_1: to[i] = unhalf(u[0]) * (float)(low ? g[4 + j] & 15 : g[4 + j - 16] >> 4) + unhalf(u[1]); break;
		}
	}
}

/* ---- matrices whose scales (of 4 bits: and zero points) lie apart ------------------------------- */

static bool is_apart(int32_t type)
{
	return type == SR_AWQ4 || type == SR_GPTQ4 || type == SR_GPTQ4_V2 || type == SR_CT4 || type == SR_F8;
}

static struct sr_extent more(struct tiny *t, size_t bytes)
{
	struct sr_extent e = { .offset = t->size, .bytes = bytes };

	t->bytes = realloc(t->bytes, t->size + bytes);
	assert(t->bytes);
	t->size += bytes;
	return e;
}

/* Random nibbles of at least `low`, so that zero points lie in the middle. */
static struct sr_extent more_nibbles(struct tiny *t, size_t n, uint8_t low, uint8_t range, uint64_t *s)
{
	struct sr_extent e = more(t, n / 2);

	for (size_t i = 0; i < n; i++) {
		uint8_t v = (uint8_t)(low + (next(s) >> 40) % range), *at = t->bytes + e.offset + i / 2;

		*at = i % 2 ? (uint8_t)(*at | v << 4) : v;
	}
	return e;
}

/* Any e4m3 but NaN.  "q" has one scale, "gate" and "up" one per block of 32 x 32, others one per output. */
static void add_f8(struct tiny *t, struct sr_tensor *w, const char *name, int32_t n, int32_t k, float size,
                   uint64_t *s)
{
	bool blocks = !strcmp(name, "gate") || !strcmp(name, "up");
	int32_t rows;

	*w = (struct sr_tensor){ .name = name, .type = SR_F8, .n = n, .k = k, .count = 1, .group = blocks ? 32 : 0,
		.group_n = blocks ? 32 : strcmp(name, "q") ? 1 : 0, .scale_type = SR_F32 };
	rows = w->group_n ? (n + w->group_n - 1) / w->group_n : 1;
	w->data = more(t, (size_t)n * (size_t)k);
	for (size_t i = 0; i < (size_t)n * (size_t)k; i++) {
		uint8_t v = (uint8_t)(next(s) >> 56);

		t->bytes[w->data.offset + i] = (v & 0x7f) == 0x7f ? 0 : v;
	}
	w->scale = more(t, (size_t)rows * (size_t)(blocks ? k / 32 : 1) * sizeof(float));
	for (size_t i = 0; i < w->scale.bytes / sizeof(float); i++) {
		float f = size * (0.5f + 0.5f * fabsf(uniform(s))) / 150;

		memcpy(t->bytes + w->scale.offset + i * sizeof(f), &f, sizeof(f));
	}
}

/* Groups of 32, but "down" is one group.  In compressed-tensors, "k" has no zero points. */
static void add_apart(struct tiny *t, struct sr_tensor *w, const char *name, int32_t type, int32_t n, int32_t k,
                      float size, uint64_t *s)
{
	int32_t group = strcmp(name, "down") ? 32 : 0;
	size_t groups = group ? (size_t)(k / group) : 1;
	bool ct = type == SR_CT4;

	if (type == SR_F8) {
		add_f8(t, w, name, n, k, size, s);
		return;
	}
	*w = (struct sr_tensor){ .name = name, .type = type, .n = n, .k = k, .count = 1, .group = group,
		.scale_type = ct ? SR_BF16 : SR_F16 };
	w->data = more_nibbles(t, (size_t)n * (size_t)k, 0, 16, s);
	if (!ct || strcmp(name, "k"))
		w->zero = more_nibbles(t, ((size_t)n + 7) / 8 * 8 * groups, 5, 6, s);
	w->scale = more(t, (size_t)n * groups * 2);
	for (size_t i = 0; i < (size_t)n * groups; i++) {
		float f = size * (0.5f + 0.5f * fabsf(uniform(s))) / 12;
		uint16_t u = ct ? brain(f) : half(f);

		memcpy(t->bytes + w->scale.offset + 2 * i, &u, 2);
	}
}

static int nibble_at(const struct tiny *t, const struct sr_extent *e, size_t word, int i)
{
	uint8_t b = t->bytes[e->offset + 4 * word + (size_t)i / 2];

	return i % 2 ? b >> 4 : b & 15;
}

/* Scale i of a tensor. */
static float scale_at(const struct tiny *t, const struct sr_tensor *w, size_t i)
{
	bool wide = w->scale_type == SR_F32;
	uint16_t u;
	float f;

	memcpy(wide ? (void *)&f : (void *)&u, t->bytes + w->scale.offset + i * (wide ? 4 : 2), wide ? 4 : 2);
	return wide ? f : w->scale_type == SR_BF16 ? unbrain(u) : unhalf(u);
}

static float f8_weight(const struct tiny *t, const struct sr_tensor *w, size_t o, size_t i)
{
	int v = t->bytes[w->data.offset + o * (size_t)w->k + i], e = v >> 3 & 15;
	float f = ldexpf((float)(v & 7) + (e ? 8 : 0), (e ? e : 1) - 10);
	size_t at = (w->group_n ? o / (size_t)w->group_n : 0) * (size_t)(w->group ? w->k / w->group : 1) +
		(w->group ? i / (size_t)w->group : 0);

	return (v & 0x80 ? -f : f) * scale_at(t, w, at);
}

/* The weight of output o and input i, by each format's specification. */
static float apart_weight(const struct tiny *t, const struct sr_tensor *w, size_t o, size_t i)
{
	static const int awq[8] = { 0, 4, 1, 5, 2, 6, 3, 7 }; /* position of each output's nibble */
	size_t n = (size_t)w->n, k = (size_t)w->k, group = w->group ? (size_t)w->group : k;
	size_t g = i / group, groups = k / group, at;
	int q, z = 8;

	if (w->type == SR_F8)
		return f8_weight(t, w, o, i);
	switch (w->type) {
	case SR_AWQ4:
		q = nibble_at(t, &w->data, i * (n / 8) + o / 8, awq[o % 8]);
		z = nibble_at(t, &w->zero, g * (n / 8) + o / 8, awq[o % 8]);
		at = g * n + o;
		break;
	case SR_CT4:
		q = nibble_at(t, &w->data, o * (k / 8) + i / 8, (int)(i % 8));
		if (w->zero.bytes)
			z = nibble_at(t, &w->zero, o / 8 * groups + g, (int)(o % 8));
		at = o * groups + g;
		break;
	default:
		q = nibble_at(t, &w->data, i / 8 * n + o, (int)(i % 8));
		z = nibble_at(t, &w->zero, g * (n / 8) + o / 8, (int)(o % 8));
		z += w->type == SR_GPTQ4;
		at = g * n + o;
	}
	return (float)(q - z) * scale_at(t, w, at);
}

/* ---- tensors ------------------------------------------------------------------------------------ */

void tiny_add(struct tiny *t, struct sr_tensor *w, const char *name, int32_t type, int32_t n, int32_t k,
              float around, float size, uint64_t *s)
{
	size_t row;

	if (is_apart(type)) {
		add_apart(t, w, name, type, n, k, size, s);
		return;
	}
	row = row_bytes(type, k);
	*w = (struct sr_tensor){ .name = name, .type = type, .n = n, .k = k, .count = 1,
		.data = { .offset = t->size, .bytes = row * (size_t)n } };
	t->bytes = realloc(t->bytes, t->size + w->data.bytes);
	assert(t->bytes);
	for (int32_t i = 0; i < n; i++, t->size += row)
		fill_row(type, k, size, s, t->bytes + t->size);
	if (around != 0) {
		assert(type == SR_F32);
		w->add = around;
	}
}

/* One for each expert: one after another, or apart. */
static void add_many(struct tiny *t, struct sr_tensor *w, const char *name, int32_t type, int32_t n, int32_t k,
                     float size, unsigned flags, uint64_t *s)
{
	int32_t count = t->m.experts.n;
	struct sr_stored *each = calloc((size_t)count, sizeof(*each));
	struct sr_tensor one;

	assert(each && t->n_each < (int)(sizeof(t->each) / sizeof(*t->each)));
	t->each[t->n_each++] = each;
	for (int32_t i = 0; i < count; i++) {
		int32_t e = flags & TINY_EACH ? count - 1 - i : i;

		tiny_add(t, &one, name, type, n, k, 0, size, s);
		each[e] = (struct sr_stored){ one.data, one.scale, one.zero, one.index };
		if (i == 0)
			*w = one;
	}
	w->count = count;
	if (flags & TINY_EACH || is_apart(type))
		w->each = each;
	else
		w->data.bytes *= (uint64_t)count;
}

static void add_experts(struct tiny *t, struct sr_layer *y, int32_t type, unsigned flags, uint64_t *s)
{
	const struct sr_experts *x = &t->m.experts;
	int32_t D = t->m.d_model, F = x->d_ff, S = x->d_shared;
	float in = 2 / sqrtf((float)D);

	y->ffn = SR_EXPERTS;
	y->d_ff = F > S ? F : S;
	tiny_add(t, &y->router, "router", SR_F32, x->n, D, 0, in, s);
	add_many(t, &y->expert_gate, "expert_gate", type, F, D, in, flags, s);
	add_many(t, &y->expert_up, "expert_up", type, F, D, in, flags, s);
	add_many(t, &y->expert_down, "expert_down", type, D, F, in, flags, s);
	if (flags & TINY_EXPERT_BIAS) {
		tiny_add(t, &y->router_bias, "router_bias", SR_F32, 1, x->n, 0, 0.5f, s);
		add_many(t, &y->expert_gate_bias, "expert_gate_bias", SR_F32, 1, F, 0.5f, flags, s);
		add_many(t, &y->expert_up_bias, "expert_up_bias", SR_F32, 1, F, 0.5f, flags, s);
		add_many(t, &y->expert_down_bias, "expert_down_bias", SR_F32, 1, D, 0.5f, flags, s);
	}
	if (flags & TINY_CHOICE_BIAS)
		tiny_add(t, &y->choice_bias, "choice_bias", SR_F32, 1, x->n, 0, 0.5f, s);
	if (!S)
		return;
	tiny_add(t, &y->shared_gate, "shared_gate", type, S, D, 0, in, s);
	tiny_add(t, &y->shared_up, "shared_up", type, S, D, 0, in, s);
	tiny_add(t, &y->shared_down, "shared_down", type, D, S, 0, in, s);
	if (flags & TINY_SHARED_MIX)
		tiny_add(t, &y->shared_mix, "shared_mix", SR_F32, 1, D, 0, in, s);
}

static int tiny_read(void *ctx, const struct sr_extent *e, uint64_t from, size_t n, void *buf, uint64_t tag)
{
	struct tiny *t = ctx;

	if (t->n_done == 5) /* at most 5 at a time, and in reverse: a back end must cope */
		return -EAGAIN;
	assert(from + n <= e->bytes && e->offset + e->bytes <= t->size);
	t->reads++;
	memmove((uint8_t *)buf + t->src.slack, t->bytes + e->offset + from, n);
	t->done[t->n_done].tag = tag;
	t->done[t->n_done++].at = (uint8_t *)buf + t->src.slack;
	return 0;
}

static int tiny_wait(void *ctx, uint64_t *tag, void **at)
{
	struct tiny *t = ctx;

	assert(t->n_done > 0);
	t->n_done--;
	*tag = t->done[t->n_done].tag;
	*at = t->done[t->n_done].at;
	return t->fail_after && t->reads > (uint64_t)t->fail_after ? -EIO : 0;
}

struct sr_model tiny_shape(void)
{
	return (struct sr_model){
		.name = "tiny", .arch = "llama",
		.n_layers = 2, .d_model = 64, .d_ff = 96, .n_vocab = 200, .context = 512,
		.act = SR_SILU, .eps = 1e-5f, .embed_scale = 1, .n_kinds = 1,
		.kind = { {
			.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .scale = 0.25f,
			.rope = { .kind = SR_ROPE_PLAIN, .dims = 16, .pairs = 1, .theta = 10000, .magnitude = 1 },
		} },
	};
}

void tiny_window(struct sr_model *shape, struct sr_layer *layers, int32_t window)
{
	shape->kind[1] = shape->kind[0];
	shape->kind[0].window = window;
	shape->n_kinds = 2;
	shape->layer = layers;
	layers[0] = (struct sr_layer){ .kind = 0 };
	layers[1] = (struct sr_layer){ .kind = 1 };
}

struct tiny *tiny_create(const struct sr_model *shape, int32_t type, unsigned flags, uint64_t seed)
{
	static const int32_t types[] = { SR_Q4_1, SR_Q8_0, SR_F16, SR_Q4_0, SR_BF16, SR_F32 };
	struct tiny *t = calloc(1, sizeof(*t));
	struct sr_model *m = &t->m;
	uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
	int32_t E = shape->kind[0].head_dim, Q = shape->kind[0].n_heads * E, KV = shape->kind[0].n_kv_heads * E;
	float in;
	int turn = 0;

	assert(t);
	*m = *shape;
	t->src = (struct sr_source){ .ctx = t, .slack = 12, .read = tiny_read, .wait = tiny_wait };
	m->layer = calloc((size_t)m->n_layers, sizeof(*m->layer));
	assert(m->layer);
#define TYPE (flags & TINY_MIXED ? types[turn++ % 6] : type)
	in = 2 / sqrtf((float)m->d_model);
	tiny_add(t, &m->embed, "embed", is_apart(type) ? SR_F16 : type, m->n_vocab, m->d_model, 0, 1, &s);
	for (int32_t l = 0; l < m->n_layers; l++) {
		struct sr_layer *y = &m->layer[l];

		y->kind = shape->layer ? shape->layer[l].kind : 0;
		y->d_ff = shape->layer && shape->layer[l].d_ff ? shape->layer[l].d_ff : shape->d_ff;
		tiny_add(t, &y->norm1, "norm1", SR_F32, 1, m->d_model, 1, 0.2f, &s);
		tiny_add(t, &y->q, "q", TYPE, Q, m->d_model, 0, 1.5f * in, &s);
		tiny_add(t, &y->k, "k", TYPE, KV, m->d_model, 0, 1.5f * in, &s);
		tiny_add(t, &y->v, "v", TYPE, KV, m->d_model, 0, in, &s);
		tiny_add(t, &y->o, "o", TYPE, m->d_model, Q, 0, in, &s);
		tiny_add(t, &y->norm2, "norm2", SR_F32, 1, m->d_model, 1, 0.2f, &s);
		if (m->experts.n) {
			add_experts(t, y, type, flags, &s);
		} else {
			tiny_add(t, &y->gate, "gate", TYPE, y->d_ff, m->d_model, 0, in, &s);
			tiny_add(t, &y->up, "up", TYPE, y->d_ff, m->d_model, 0, in, &s);
			tiny_add(t, &y->down, "down", TYPE, m->d_model, y->d_ff, 0, in, &s);
		}
		if (flags & TINY_BIAS) {
			tiny_add(t, &y->q_bias, "q_bias", SR_F32, 1, Q, 0, 0.5f, &s);
			tiny_add(t, &y->k_bias, "k_bias", SR_F32, 1, KV, 0, 0.5f, &s);
			tiny_add(t, &y->v_bias, "v_bias", SR_F32, 1, KV, 0, 0.5f, &s);
		}
		if (flags & TINY_QK_NORM) {
			tiny_add(t, &y->q_norm, "q_norm", SR_F32, 1, E, 1, 0.2f, &s);
			tiny_add(t, &y->k_norm, "k_norm", SR_F32, 1, E, 1, 0.2f, &s);
		}
		if (flags & TINY_POST_NORM) {
			tiny_add(t, &y->post1, "post1", SR_F32, 1, m->d_model, 1, 0.2f, &s);
			tiny_add(t, &y->post2, "post2", SR_F32, 1, m->d_model, 1, 0.2f, &s);
		}
	}
	tiny_add(t, &m->norm, "norm", SR_F32, 1, m->d_model, 1, 0.2f, &s);
	if (flags & TINY_UNTIED)
		tiny_add(t, &m->head, "head", TYPE, m->n_vocab, m->d_model, 0, 2 * in, &s);
#undef TYPE
	return t;
}

void tiny_destroy(struct tiny *t)
{
	for (int i = 0; i < t->n_each; i++)
		free(t->each[i]);
	free(t->m.layer);
	free(t->bytes);
	free(t);
}

struct sr_tensor tiny_part(const struct sr_tensor *w, int32_t e)
{
	struct sr_stored s = sr_stored_of(w, e);
	struct sr_tensor one = *w;

	one.count = 1;
	one.each = NULL;
	one.data = s.data;
	one.scale = s.scale;
	one.zero = s.zero;
	one.index = s.index;
	return one;
}

float *tiny_dense(const struct tiny *t, const struct sr_tensor *w)
{
	float *f = calloc((size_t)w->n * (size_t)w->k, sizeof(*f));
	size_t k = (size_t)w->k;

	assert(f);
	for (size_t i = 0; i < (size_t)w->n; i++) {
		if (!is_apart(w->type))
			dense_row(w->type, w->k, t->bytes + w->data.offset + i * row_bytes(w->type, w->k), f + i * k);
		for (size_t j = 0; is_apart(w->type) && j < k; j++)
			f[i * k + j] = apart_weight(t, w, i, j);
	}
	for (size_t i = 0; i < (size_t)w->n * (size_t)w->k; i++)
		f[i] += w->add;
	return f;
}
