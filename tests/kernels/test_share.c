/* LINK: kernels/shape.c kernels/share.c kernels/beyond.c */
/* test_share.c - a model cut for 1 to 16 ranks: what the ranks hold of each tensor is the whole tensor, in order,
 * nothing twice but KV heads that are copied, cut between units alone; and it lies where the whole's bytes lie. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/share.h"

enum { LAYERS = 2 };

/* Sizes as published: n, top, fe, fs are of experts; group: weights to a scale of 4-bit files, 0 = none. */
static const struct of { const char *name; int32_t H, G, E, D, F, V, group, n, top, fe, fs; } shapes[] = {
	{ "SmolLM2 135M", 9, 3, 64, 576, 1536, 49152, 0, 0, 0, 0, 0 },
	{ "SmolLM2 360M", 15, 5, 64, 960, 2560, 49152, 0, 0, 0, 0, 0 },
	{ "SmolLM3 3B", 16, 4, 128, 2048, 11008, 128256, 0, 0, 0, 0, 0 },
	{ "TinyLlama 1.1B", 32, 4, 64, 2048, 5632, 32000, 0, 0, 0, 0, 0 },
	{ "Llama 2 7B", 32, 32, 128, 4096, 11008, 32000, 0, 0, 0, 0, 0 },
	{ "Llama 2 13B AWQ", 40, 40, 128, 5120, 13824, 32000, 128, 0, 0, 0, 0 },
	{ "Llama 3.2 1B", 32, 8, 64, 2048, 8192, 128256, 0, 0, 0, 0, 0 },
	{ "Llama 3.2 3B", 24, 8, 128, 3072, 8192, 128256, 0, 0, 0, 0, 0 },
	{ "Llama 3 8B AWQ", 32, 8, 128, 4096, 14336, 128256, 128, 0, 0, 0, 0 },
	{ "Llama 3 70B", 64, 8, 128, 8192, 28672, 128256, 0, 0, 0, 0, 0 },
	{ "Llama 3.1 405B", 128, 8, 128, 16384, 53248, 128256, 0, 0, 0, 0, 0 },
	{ "Mistral 7B", 32, 8, 128, 4096, 14336, 32768, 0, 0, 0, 0, 0 },
	{ "Mistral Small 24B", 32, 8, 128, 5120, 32768, 131072, 0, 0, 0, 0, 0 },
	{ "Mistral Large 123B", 96, 8, 128, 12288, 28672, 32768, 0, 0, 0, 0, 0 },
	{ "Qwen 2.5 0.5B", 14, 2, 64, 896, 4864, 151936, 0, 0, 0, 0, 0 },
	{ "Qwen 2.5 1.5B", 12, 2, 128, 1536, 8960, 151936, 0, 0, 0, 0, 0 },
	{ "Qwen 2.5 7B AWQ", 28, 4, 128, 3584, 18944, 152064, 128, 0, 0, 0, 0 },
	{ "Qwen 2.5 32B AWQ", 40, 8, 128, 5120, 27648, 152064, 128, 0, 0, 0, 0 },
	{ "Qwen 2.5 72B", 64, 8, 128, 8192, 29568, 152064, 0, 0, 0, 0, 0 },
	{ "Qwen 3 0.6B", 16, 8, 128, 1024, 3072, 151936, 0, 0, 0, 0, 0 },
	{ "Qwen 3 8B", 32, 8, 128, 4096, 12288, 151936, 0, 0, 0, 0, 0 },
	{ "Qwen 3 32B", 64, 8, 128, 5120, 25600, 151936, 0, 0, 0, 0, 0 },
	{ "Gemma 2 2B", 8, 4, 256, 2304, 9216, 256000, 0, 0, 0, 0, 0 },
	{ "Gemma 2 27B", 32, 16, 128, 4608, 36864, 256000, 0, 0, 0, 0, 0 },
	{ "Gemma 3 270M", 4, 1, 256, 640, 2048, 262144, 32, 0, 0, 0, 0 },
	{ "Gemma 3 1B", 4, 1, 256, 1152, 6912, 262144, 0, 0, 0, 0, 0 },
	{ "Gemma 3 27B", 32, 16, 128, 5376, 21504, 262208, 0, 0, 0, 0, 0 },
	{ "Phi 3 mini", 32, 32, 96, 3072, 8192, 32064, 0, 0, 0, 0, 0 },
	{ "Phi 4", 40, 10, 128, 5120, 17920, 100352, 0, 0, 0, 0, 0 },
	{ "Granite 3 8B", 32, 8, 128, 4096, 12800, 49155, 0, 0, 0, 0, 0 },
	{ "Command R 35B", 64, 64, 128, 8192, 22528, 256000, 0, 0, 0, 0, 0 },
	{ "Cohere 2 7B", 32, 8, 128, 4096, 14336, 256000, 0, 0, 0, 0, 0 },
	{ "StarCoder 2 3B", 24, 2, 128, 3072, 12288, 49152, 0, 0, 0, 0, 0 },
	{ "Mixtral 8x7B", 32, 8, 128, 4096, 14336, 32000, 0, 8, 2, 14336, 0 },
	{ "Qwen 3 30B-A3B", 32, 4, 128, 2048, 768, 151936, 0, 128, 8, 768, 0 },
	{ "Qwen 2 57B-A14B", 28, 4, 128, 3584, 20480, 151936, 0, 64, 8, 2560, 20480 },
	{ "gpt-oss 20B", 64, 8, 64, 2880, 2880, 201088, 32, 32, 4, 2880, 0 },
	{ "gpt-oss 120B", 64, 8, 64, 2880, 2880, 201088, 32, 128, 4, 2880, 0 },
	{ "GLM 4.5 Air", 96, 8, 128, 4096, 1408, 151552, 0, 128, 8, 1408, 1408 },
	{ "OLMoE 1B-7B", 16, 16, 128, 2048, 1024, 50304, 0, 64, 8, 1024, 0 },
	{ "odd", 7, 7, 16, 32, 96, 1000, 48, 0, 0, 0, 0 },
};

static struct sr_layer layers[LAYERS];
static uint64_t at;              /* of the next tensor in the made-up file */
static char err[300];

static struct sr_tensor made(const char *name, int32_t n, int32_t k, int32_t count, int32_t group)
{
	struct sr_tensor t = { .name = name, .type = group ? SR_AWQ4 : SR_BF16, .n = n, .k = k, .count = count,
	                       .group = group };
	uint64_t elements = (uint64_t)n * (uint64_t)k * (uint64_t)count;

	t.data = (struct sr_extent){ at, group ? elements / 2 : 2 * elements, 0 };
	at += t.data.bytes;
	if (group) {
		t.scale = (struct sr_extent){ at, elements / (uint64_t)group * 2, 0 };
		at += t.scale.bytes;
	}
	return t;
}

static struct sr_model model_of(const struct of *f)
{
	struct sr_model m = { .arch = "test", .n_layers = LAYERS, .d_model = f->D, .d_ff = f->F, .n_vocab = f->V,
		.n_kinds = 1, .kind = { { .n_heads = f->H, .n_kv_heads = f->G, .head_dim = f->E } }, .layer = layers,
		.experts = { .n = f->n, .top = f->top, .d_ff = f->fe, .d_shared = f->fs } };

	at = 0;
	m.embed = made("embed", f->V, f->D, 1, 0);
	m.head = made("head", f->V, f->D, 1, 0);
	for (int l = 0; l < LAYERS; l++) {
		struct sr_layer *y = &layers[l];

		*y = (struct sr_layer){ .d_ff = f->F, .ffn = f->n ? SR_EXPERTS : SR_GATED };
		y->norm1 = made("norm1", 1, f->D, 1, 0);
		y->norm2 = made("norm2", 1, f->D, 1, 0);
		y->q = made("q", f->H * f->E, f->D, 1, f->group);
		y->k = made("k", f->G * f->E, f->D, 1, f->group);
		y->v = made("v", f->G * f->E, f->D, 1, f->group);
		y->q_bias = made("q_bias", 1, f->H * f->E, 1, 0);
		y->k_bias = made("k_bias", 1, f->G * f->E, 1, 0);
		y->sinks = made("sinks", 1, f->H, 1, 0);
		y->o = made("o", f->D, f->H * f->E, 1, f->group);
		y->o_bias = made("o_bias", 1, f->D, 1, 0);
		if (!f->n) {
			y->gate = made("gate", f->F, f->D, 1, f->group);
			y->up = made("up", f->F, f->D, 1, f->group);
			y->down = made("down", f->D, f->F, 1, f->group);
			continue;
		}
		y->router = made("router", f->n, f->D, 1, 0);
		y->expert_gate = made("expert_gate", f->fe, f->D, f->n, f->group);
		y->expert_up = made("expert_up", f->fe, f->D, f->n, f->group);
		y->expert_up_bias = made("expert_up_bias", 1, f->fe, f->n, 0);
		y->expert_down = made("expert_down", f->D, f->fe, f->n, f->group);
		if (!f->fs)
			continue;
		y->shared_gate = made("shared_gate", f->fs, f->D, 1, 0);
		y->shared_up = made("shared_up", f->fs, f->D, 1, 0);
		y->shared_down = made("shared_down", f->D, f->fs, 1, 0);
	}
	return m;
}

/* Outputs [from, from + n) of the whole tensor, as a rank holds them. */
struct run { int32_t from, n; };

/* Where the outputs lie of which *t is a part: by number, or by bytes, which must be the same of every expert. */
static struct run run_of(const struct sr_tensor *whole, const struct sr_tensor *t)
{
	int32_t n = whole->n == 1 ? t->k : t->n, from = -1;

	if (t->outputs) {
		assert_int_equal(t->outputs, whole->n == 1 ? whole->k : whole->n);
		assert_int_equal(t->step, 1);
		assert_int_equal(t->data.offset, whole->data.offset);
		assert_int_equal(t->data.bytes, whole->data.bytes);
		return (struct run){ t->first, n };
	}
	for (int32_t e = 0; e < t->count; e++) {
		struct sr_stored a = sr_stored_of(whole, e), b = sr_stored_of(t, e);
		uint64_t row = a.data.bytes / (uint64_t)whole->n;
		int32_t first = (int32_t)((b.data.offset - a.data.offset) / row);

		assert_int_equal(b.data.bytes, row * (uint64_t)n);
		assert_int_equal(b.data.offset, a.data.offset + row * (uint64_t)first);
		assert_true(e == 0 || first == from);
		from = first;
	}
	return (struct run){ from, n };
}

struct want { const char *what; size_t at; int32_t unit; bool copied; };
#define AT(field) #field, offsetof(struct sr_layer, field)

static const struct sr_tensor *in(const struct sr_layer *y, size_t offset)
{
	return (const struct sr_tensor *)((const char *)y + offset);
}

/* Rank after rank of one tensor: in order from 0 to the end; a copied KV head may be there again. */
static void check_cover(const struct of *f, const char *what, int world, const struct sr_tensor *whole,
                        const struct sr_tensor *const *part, int32_t unit, bool copied)
{
	int32_t next = 0, all = whole->n == 1 ? whole->k : whole->n;

	for (int r = 0; r < world; r++) {
		struct run x = run_of(whole, part[r]);
		bool again = copied && world > f->G && x.n == unit && x.from == next - unit;

		if (x.n < 1 || (x.from != next && !again) || x.from % unit)
			fail_msg("%s, %s: rank %d of %d has %d from %d, not from %d in units of %d", f->name, what, r, world,
			         x.n, x.from, next, unit);
		assert_int_equal(part[r]->k, whole->n == 1 ? x.n : whole->k);
		next = x.from + x.n;
	}
	assert_int_equal(next, all);
}

static void check_ranks(const struct of *f, const struct sr_model *m, struct sr_model *rank, int world)
{
	const struct want want[] = {
		{ AT(q), f->E, false }, { AT(q_bias), f->E, false }, { AT(k), f->E, true }, { AT(v), f->E, true },
		{ AT(k_bias), f->E, true }, { AT(sinks), 1, false }, { AT(o), 32, false }, { AT(o_bias), 32, false },
		{ AT(gate), 32, false }, { AT(up), 32, false }, { AT(down), 32, false },
		{ AT(expert_gate), 32, false }, { AT(expert_up), 32, false }, { AT(expert_up_bias), 32, false },
		{ AT(expert_down), 32, false }, { AT(shared_gate), 32, false }, { AT(shared_up), 32, false },
		{ AT(shared_down), 32, false },
	};
	const struct sr_tensor *part[16];

	for (int l = 0; l < LAYERS; l++)
		for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++) {
			const struct sr_tensor *whole = in(&m->layer[l], want[i].at);

			for (int r = 0; r < world; r++)
				part[r] = in(&rank[r].layer[l], want[i].at);
			if (whole->type != SR_NONE)
				check_cover(f, want[i].what, world, whole, part, want[i].unit, want[i].copied);
		}
	for (int r = 0; r < world; r++)
		part[r] = &rank[r].embed;
	check_cover(f, "embed", world, &m->embed, part, 64, false);
	for (int r = 0; r < world; r++)
		part[r] = &rank[r].head;
	check_cover(f, "head", world, &m->head, part, 64, false);
}

/* A rank's query heads read KV heads that it holds, all of them, in whole groups. */
static void check_heads(const struct of *f, const struct sr_model *m, const struct sr_model *rank)
{
	const struct sr_attn *kind = &rank->kind[0];
	struct run q = run_of(&m->layer[0].q, &rank->layer[0].q), k = run_of(&m->layer[0].k, &rank->layer[0].k);
	int32_t each = f->H / f->G;

	assert_int_equal(kind->n_heads * f->E, q.n);
	assert_int_equal(kind->n_kv_heads * f->E, k.n);
	assert_int_equal(kind->n_heads % kind->n_kv_heads, 0);
	assert_int_equal(q.from / f->E / each, k.from / f->E);
	assert_int_equal((q.from + q.n) / f->E - 1, ((k.from + k.n) / f->E - 1) * each +
	                 ((q.from + q.n) / f->E - 1) % each);
	assert_memory_equal(&rank->layer[0].norm1, &m->layer[0].norm1, sizeof(struct sr_tensor));
	assert_memory_equal(&rank->layer[0].router, &m->layer[0].router, sizeof(struct sr_tensor));
}

static bool fits(const struct of *f, int world)
{
	return world <= f->H && world <= (f->F + 31) / 32 && world <= (f->D + 31) / 32 &&
	       world <= (f->V + 63) / 64 && (!f->n || world <= (f->fe + 31) / 32);
}

static void test_all(void **state)
{
	int divided = 0, refused = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
		for (int world = 1; world <= 16; world++) {
			struct sr_model m = model_of(&shapes[i]), rank[16];
			int rc = 0, r;

			for (r = 0; r < world && !rc; r++)
				rc = share_model(&rank[r], &m, r, world, err, sizeof(err));
			if (rc) {
				assert_int_equal(rc, -ENOTSUP);
				assert_false(fits(&shapes[i], world));
				refused++;
				r--;
			} else {
				assert_true(fits(&shapes[i], world));
				for (int j = 0; j < world; j++)
					check_heads(&shapes[i], &m, &rank[j]);
				check_ranks(&shapes[i], &m, rank, world);
				divided++;
			}
			while (r-- > 0)
				free(rank[r].layer);
		}
	assert_true(divided > 550);                   /* of 656 */
	assert_true(refused > 10);
}

/* Written out: 9 query heads and 3 KV heads. */
static void test_uneven(void **state)
{
	static const struct { int world, rank; int32_t q, nq, k, nk, d, nd; } is[] = {
		{ 2, 0, 0, 3, 0, 1, 0, 288 }, { 2, 1, 3, 6, 1, 2, 288, 288 },
		{ 4, 3, 7, 2, 2, 1, 416, 160 }, { 4, 2, 6, 1, 2, 1, 288, 128 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(is) / sizeof(*is); i++) {
		struct sr_model m = model_of(&shapes[0]), out;
		struct run q, k, o;

		assert_int_equal(share_model(&out, &m, is[i].rank, is[i].world, err, sizeof(err)), 0);
		q = run_of(&layers[0].q, &out.layer[0].q);
		k = run_of(&layers[0].k, &out.layer[0].k);
		o = run_of(&layers[0].o, &out.layer[0].o);
		assert_int_equal(q.from, is[i].q * 64);
		assert_int_equal(q.n, is[i].nq * 64);
		assert_int_equal(k.from, is[i].k * 64);
		assert_int_equal(k.n, is[i].nk * 64);
		assert_int_equal(o.from, is[i].d);
		assert_int_equal(o.n, is[i].nd);
		free(out.layer);
	}
}

/* What cannot be divided is named. */
static void test_refused(void **state)
{
	struct sr_model m = model_of(&shapes[0]), out;
	int held = 0;

	(void)state;
	m.kind[0].qk_norm = SR_QK_ROW;
	assert_int_equal(share_model(&out, &m, 0, 2, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "norms over whole rows of q and k"));
	m.kind[0].qk_norm = 0;
	m.kind[0].bidirectional = 1;
	assert_int_equal(share_model(&out, &m, 0, 2, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "attention to later positions"));
	m.kind[0].bidirectional = 0;
	for (int r = 0; r < 10; r++)                  /* nine query heads: one of ten ranks gets none */
		if (share_model(&out, &m, r, 10, err, sizeof(err)) == 0) {
			free(out.layer);
			held++;
		}
	assert_int_equal(held, 9);
	assert_non_null(strstr(err, "10 ranks are too many"));
	layers[0].q.data.bytes--;
	assert_int_equal(share_model(&out, &m, 0, 2, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "tensor q has 576 outputs in 663551 bytes"));
}

/* gate and up in one tensor, in turn: a rank takes every other of its run. */
static void test_alternating(void **state)
{
	struct sr_model m = model_of(&shapes[36]), out;

	(void)state;
	layers[0].expert_up.outputs = 2 * 2880;
	layers[0].expert_up.first = 1;
	layers[0].expert_up.step = 2;
	assert_int_equal(share_model(&out, &m, 1, 2, err, sizeof(err)), 0);
	assert_int_equal(out.layer[0].expert_up.n, 1440);
	assert_int_equal(out.layer[0].expert_up.first, 1 + 2 * 1440);
	assert_int_equal(out.layer[0].expert_up.outputs, 2 * 2880);
	assert_int_equal(out.layer[0].expert_up.step, 2);
	free(out.layer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all), cmocka_unit_test(test_uneven), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_alternating),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
