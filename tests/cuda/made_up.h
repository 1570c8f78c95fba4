/* made_up.h - the models that the benchmark runs: shapes, and weights that are in no file.
 * Part of bench.cc. */
#ifndef CUDA_BENCH_MODELS_H
#define CUDA_BENCH_MODELS_H

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/weights/made_up.h"

struct scale {                       /* what is measured */
	int32_t L, D, H, G, E, F, V;
	int32_t steps, repeats, runs; /* each figure is the median of this many runs */
	int32_t decode_n[4], decode_context[2];
	int32_t few[4], many[3];     /* rows of products */
	int32_t attend_n, attend_context[3], long_context, short_context, mixed_n;
	int32_t prompt[3];
	int32_t verb_rows[5];        /* of sequences with a token each; the last: tokens of one prompt */
	int32_t slots, tokens, blocks, seq_blocks, words;
	int64_t spare;               /* bytes of the card that stay free */
};

static const struct scale llama_8b = {
	32, 4096, 32, 8, 128, 14336, 128256,
	40, 32, 7,
	{ 1, 32, 128, 256 }, { 512, 2048 },
	{ 1, 4, 16, 64 }, { 512, 2048, 8192 },
	64, { 512, 2048, 8192 }, 131072, 4096, 32,
	{ 128, 2048, 8192 },
	{ 1, 16, 64, 256, 2048 },
	256, 8192, 36000, 8256, 16384, (int64_t)1 << 30,
};

static const struct scale tiny = {
	2, 64, 4, 2, 16, 96, 200,
	3, 1, 1,
	{ 1, 2, 3, 4 }, { 16, 48 },
	{ 1, 4, 16, 64 }, { 65, 80, 130 },
	4, { 16, 40, 70 }, 200, 20, 4,
	{ 16, 66, 130 },
	{ 1, 2, 3, 4, 66 },
	4, 256, 64, 64, 4096, 0,
};

static const struct kind { const char *name; int32_t type; } kinds[] = {
	{ "bf16", SR_BF16 }, { "W4A16", SR_AWQ4 }, { "FP8", SR_F8 },
};

static const struct scale *sc;
static const struct kind *kind;

/* ---- made-up weights ------------------------------------------------------------------ */

static unsigned char pattern[MADE][(size_t)2 << 20]; /* the longest read */
static struct { uint64_t tag; void *at; } reads[64];
static unsigned n_reads;

static void make_patterns()
{
	uint32_t seed = 1;

	for (size_t i = 0; i < sizeof(pattern[0]); i++) {
		seed = seed * 1664525u + 1013904223u;
		for (int of = 0; of < MADE; of++)
			pattern[of][i] = made_byte(of, i, (unsigned char)(seed >> 24));
	}
}

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
	m.embed = m.head = made_tensor(SR_BF16, m.n_vocab, D);
	m.norm = made_tensor(SR_F32, 1, D);
	for (int32_t l = 0; m.layer && l < m.n_layers; l++) {
		struct sr_layer *y = &m.layer[l];

		y->d_ff = F;
		y->norm1 = y->norm2 = m.norm;
		y->q = made_tensor(type, Q, D);
		y->k = y->v = made_tensor(type, KV, D);
		y->o = made_tensor(type, D, Q);
		y->gate = y->up = made_tensor(type, F, D);
		y->down = made_tensor(type, D, F);
	}
	return m;
}

#endif
