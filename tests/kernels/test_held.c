/* LINK: @cpu kernels/backend.c @null tests/rig/drive.c tests/rig/tiny.c */
/* test_held.c - the CPU back end's plan: matrices are held in at most 1.03 times the bytes in which they are stored.
 * The model is only planned, so nothing of it exists but its shape.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/types.h"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define D 2048
#define F 8192
#define V 4096

/* With scales apart: inputs and outputs to a scale (0: all), bytes of a scale, bits of a weight. */
struct kind { int32_t type; const char *name; int32_t group, group_n, scale, bits; int zeros, order; };

static const struct kind kinds[] = {
	{ SR_AWQ4, "awq 128", 128, 1, SR_F16, 4, 1, 0 },       { SR_AWQ4, "awq 32", 32, 1, SR_F16, 4, 1, 0 },
	{ SR_AWQ4, "awq bf16 64", 64, 1, SR_BF16, 4, 1, 0 },   { SR_AWQ4, "awq whole rows", 0, 1, SR_F16, 4, 1, 0 },
	{ SR_GPTQ4, "gptq 128", 128, 1, SR_F16, 4, 1, 0 },     { SR_GPTQ4, "gptq act-order 128", 128, 1, SR_F16, 4, 1, 1 },
	{ SR_GPTQ4_V2, "gptq act-order 32", 32, 1, SR_F16, 4, 1, 1 },
	{ SR_CT4, "packed 128", 128, 1, SR_BF16, 4, 0, 0 },    { SR_CT4, "packed 32", 32, 1, SR_F16, 4, 0, 0 },
	{ SR_CT4, "packed zeros 64", 64, 1, SR_BF16, 4, 1, 0 },
	{ SR_I8, "int8 outputs", 0, 1, SR_BF16, 8, 0, 0 },     { SR_I8, "int8 tensor", 0, 0, SR_F32, 8, 0, 0 },
	{ SR_F8, "fp8 tensor", 0, 0, SR_F32, 8, 0, 0 },        { SR_F8, "fp8 outputs", 0, 1, SR_F32, 8, 0, 0 },
	{ SR_F8, "fp8 128 x 128", 128, 128, SR_F32, 8, 0, 0 }, { SR_F8, "fp8 1 x 128", 128, 1, SR_BF16, 8, 0, 0 },
	{ SR_NVFP4, "nvfp4", 16, 1, SR_NONE, 4, 1, 0 },        { SR_NVFP4_CT, "nvfp4 ct", 16, 1, SR_NONE, 4, 1, 0 },
	{ SR_MXFP4, "mxfp4", 32, 1, SR_NONE, 4, 0, 0 },
};

/* Give a tensor the bytes of its kind, of `count` experts one after the other. */
static uint64_t store(struct sr_tensor *t, const struct kind *kind, int32_t n, int32_t k, int32_t count)
{
	uint64_t c = (uint64_t)count, all = (uint64_t)n * (uint64_t)k * c, groups = kind->group ? (uint64_t)(k / kind->group) : 1;
	uint64_t scales = groups * (kind->group_n ? (uint64_t)((n + kind->group_n - 1) / kind->group_n) : 1) * c;

	*t = (struct sr_tensor){ .name = kind->name, .type = kind->type, .n = n, .k = k, .count = count, .group = kind->group,
	                         .group_n = kind->group_n, .scale_type = kind->scale };
	t->data.bytes = all * (uint64_t)kind->bits / 8;
	t->scale.bytes = scales * (kind->scale == SR_F32 ? 4 : kind->scale == SR_NONE ? 1 : 2);
	if (kind->zeros)
		t->zero.bytes = kind->scale == SR_NONE ? 4 * c : groups * (uint64_t)n / 2 * c;
	if (kind->order)
		t->index.bytes = (uint64_t)k * 4 * c;
	return t->data.bytes + t->scale.bytes + t->zero.bytes + t->index.bytes;
}

static uint64_t file_type(struct sr_tensor *t, int32_t type, int32_t n, int32_t k, int32_t count)
{
	*t = (struct sr_tensor){ .name = "a matrix", .type = type, .n = n, .k = k, .count = count };
	t->data.bytes = (uint64_t)n * types_bytes(type, k) * (uint64_t)count;
	return t->data.bytes;
}

/* A model of one layer whose matrices are all of a kind, or of a type of files: what is held for what is stored. */
static double ratio(const struct kind *kind, int32_t type, int32_t experts)
{
	struct sr_model m = tiny_shape();
	struct sr_layer layer = { .d_ff = F, .ffn = experts ? SR_EXPERTS : SR_GATED };
	struct sr_limits lim = drive_limits();
	const struct { struct sr_tensor *t; int32_t n, k, count; } all[] = {
		{ &layer.q, D, D, 1 }, { &layer.k, D / 2, D, 1 }, { &layer.v, D / 2, D, 1 }, { &layer.o, D, D, 1 },
		{ experts ? &layer.expert_gate : &layer.gate, F, D, experts ? experts : 1 },
		{ experts ? &layer.expert_up : &layer.up, F, D, experts ? experts : 1 },
		{ experts ? &layer.expert_down : &layer.down, D, F, experts ? experts : 1 },
	};
	struct sr_need need;
	uint64_t stored = 0;
	char err[256] = "";

	m.n_layers = 1;
	m.d_model = D;
	m.d_ff = F;
	m.n_vocab = V;
	m.layer = &layer;
	m.kind[0].head_dim = D / m.kind[0].n_heads;
	m.kind[0].rope.dims = m.kind[0].head_dim;
	if (experts)
		m.experts = (struct sr_experts){ .n = experts, .top = 2, .d_ff = F, .scale = 1 };
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		stored += kind ? store(all[i].t, kind, all[i].n, all[i].k, all[i].count)
		               : file_type(all[i].t, type, all[i].n, all[i].k, all[i].count);
	stored += file_type(&m.embed, SR_BF16, V, D, 1);
	stored += file_type(&layer.norm1, SR_F32, 1, D, 1) + file_type(&layer.norm2, SR_F32, 1, D, 1);
	stored += file_type(&m.norm, SR_F32, 1, D, 1);
	if (experts)
		stored += file_type(&layer.router, SR_BF16, experts, D, 1);
	if (sr_cpu_ops()->plan(&m, &lim, &need, err, sizeof(err)))
		fail_msg("%s: %s", kind ? kind->name : "a file's type", err);
	return ((double)need.weights - (double)m.embed.data.bytes) / ((double)stored - (double)m.embed.data.bytes);
}

static void test_held(void **state)
{
	(void)state;
	for (int32_t experts = 0; experts <= 4; experts += 4) {
		for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
			double is = ratio(&kinds[i], 0, experts);

			if (!(is > 0.95 && is <= 1.03))
				fail_msg("%s, %d experts: %.4f of what is stored", kinds[i].name, experts, is);
		}
		for (int32_t type = SR_F32; type <= SR_IQ3_S; type++)
			if (types_bytes(type, F) && !(ratio(NULL, type, experts) <= 1.03))
				fail_msg("type %d, %d experts: %.4f of what is stored", type, experts, ratio(NULL, type, experts));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_held) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
