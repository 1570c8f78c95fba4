/* made_up.h - the models that the benchmark runs: shapes, and weights that are in no file.
 * Part of bench.cc. */
#ifndef CUDA_MADE_UP_H
#define CUDA_MADE_UP_H

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/model.h"

struct scale {                       /* what is measured */
	int32_t L, D, H, G, E, F, V, group;
	int32_t steps, repeats, runs; /* each figure is the median of this many runs */
	int32_t decode_n[4], decode_context[2];
	int32_t few[4], many[3];     /* rows of products */
	int32_t attend_n, attend_context[3], long_context, short_context, mixed_n;
	int32_t prompt[3];
	int32_t slots, tokens, blocks, seq_blocks, words;
	int64_t spare;               /* bytes of the card that stay free */
};

static const struct scale llama_8b = {
	32, 4096, 32, 8, 128, 14336, 128256, 128,
	40, 32, 7,
	{ 1, 32, 128, 256 }, { 512, 2048 },
	{ 1, 4, 16, 64 }, { 512, 2048, 8192 },
	64, { 512, 2048, 8192 }, 131072, 4096, 32,
	{ 128, 2048, 8192 },
	256, 8192, 36000, 8256, 16384, (int64_t)1 << 30,
};

static const struct scale tiny = {
	2, 64, 4, 2, 16, 96, 200, 32,
	3, 1, 1,
	{ 1, 2, 3, 4 }, { 16, 48 },
	{ 1, 4, 16, 64 }, { 65, 80, 130 },
	4, { 16, 40, 70 }, 200, 20, 4,
	{ 16, 66, 130 },
	4, 256, 64, 64, 4096, 0,
};

static const struct kind { const char *name; int32_t type; } kinds[] = {
	{ "bf16", SR_BF16 }, { "W4A16", SR_AWQ4 }, { "FP8", SR_F8 },
};

static const struct scale *sc;
static const struct kind *kind;

/* ---- made-up weights ------------------------------------------------------------------ */

enum made_of { BITS, BF16_SMALL, F16_SCALES, F32_ONES, E4M3_SMALL, F32_SCALES, MADE };

static unsigned char pattern[MADE][(size_t)2 << 20]; /* the longest read */
static struct { uint64_t tag; void *at; } reads[64];
static unsigned n_reads;

static void make_patterns()
{
	static const float one = 1, scale = 0.01f;
	uint32_t seed = 1;

	for (size_t i = 0; i < sizeof(pattern[0]); i += 2) {
		unsigned char low, high;

		seed = seed * 1664525u + 1013904223u;
		low = (unsigned char)(seed >> 24);
		high = (unsigned char)(seed >> 16);
		pattern[BITS][i] = low, pattern[BITS][i + 1] = high;
		pattern[BF16_SMALL][i] = low, pattern[BF16_SMALL][i + 1] = 0x3c | (high & 0x80); /* +-0.01 */
		pattern[F16_SCALES][i] = low, pattern[F16_SCALES][i + 1] = 0x18;              /* 0.002 */
		pattern[E4M3_SMALL][i] = low & 0xbf, pattern[E4M3_SMALL][i + 1] = high & 0xbf; /* below 2 */
		memcpy(pattern[F32_ONES] + i, (const char *)&one + i % 4, 2);
		memcpy(pattern[F32_SCALES] + i, (const char *)&scale + i % 4, 2);
	}
}

/* An extent's file says what it is made of. */
static int read_made_up(void *, const struct sr_extent *e, uint64_t, size_t n, void *buf, uint64_t tag)
{
	assert(n <= sizeof(pattern[0]));
	if (n_reads == 64)
		return -EAGAIN;
	memcpy(buf, pattern[e->file], n);
	reads[n_reads].tag = tag;
	reads[n_reads++].at = buf;
	return 0;
}

static int wait_made_up(void *, uint64_t *tag, void **at)
{
	*tag = reads[--n_reads].tag;
	*at = reads[n_reads].at;
	return 0;
}

static struct sr_extent made(enum made_of of, int64_t bytes)
{
	struct sr_extent e = { 0, (uint64_t)bytes, of };

	return e;
}

static struct sr_tensor tensor(int32_t type, int64_t n, int64_t k)
{
	struct sr_tensor t = {};

	t.name = "made up";
	t.type = type;
	t.n = (int32_t)n;
	t.k = (int32_t)k;
	switch (type) {
	case SR_F32:
		t.data = made(F32_ONES, n * k * 4);
		break;
	case SR_BF16:
		t.data = made(BF16_SMALL, n * k * 2);
		break;
	case SR_AWQ4:
		t.group = sc->group;
		t.scale_type = SR_F16;
		t.data = made(BITS, n * k / 2);
		t.zero = made(BITS, k / t.group * n / 2);
		t.scale = made(F16_SCALES, k / t.group * n * 2);
		break;
	case SR_F8:
		t.group_n = 1;
		t.scale_type = SR_F32;
		t.data = made(E4M3_SMALL, n * k);
		t.scale = made(F32_SCALES, n * 4);
		break;
	}
	t.count = 1;
	return t;
}

/* Llama's, with embeddings in bf16 as quantized checkpoints have them.  The caller frees layer. */
static struct sr_model model()
{
	int32_t D = sc->D, Q = sc->H * sc->E, KV = sc->G * sc->E, F = sc->F, type = kind->type;
	struct sr_model m = {};

	m.n_layers = sc->L, m.d_model = D, m.d_ff = F, m.n_vocab = sc->V, m.n_kinds = 1;
	m.kind[0].n_heads = sc->H, m.kind[0].n_kv_heads = sc->G, m.kind[0].head_dim = sc->E;
	m.eps = 1e-5f;
	m.embed_scale = 1;
	m.kind[0].scale = 1 / sqrtf((float)m.kind[0].head_dim);
	m.kind[0].rope.dims = m.kind[0].head_dim;
	m.kind[0].rope.theta = 500000;
	m.kind[0].rope.magnitude = 1;
	m.layer = (struct sr_layer *)calloc((size_t)m.n_layers, sizeof(*m.layer));
	m.embed = m.head = tensor(SR_BF16, m.n_vocab, D);
	m.norm = tensor(SR_F32, 1, D);
	for (int32_t l = 0; m.layer && l < m.n_layers; l++) {
		struct sr_layer *y = &m.layer[l];

		y->d_ff = F;
		y->norm1 = y->norm2 = m.norm;
		y->q = tensor(type, Q, D);
		y->k = y->v = tensor(type, KV, D);
		y->o = tensor(type, D, Q);
		y->gate = y->up = tensor(type, F, D);
		y->down = tensor(type, D, F);
	}
	return m;
}

#endif
