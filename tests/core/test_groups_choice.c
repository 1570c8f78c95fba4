/* LINK: core/groups.c core/kv/most.c kernels/shape.c */
/* test_groups_choice.c - which layers share blocks: the groups of known models, and where each layer lies. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/groups.h"
#include "kernels/shape.h"

#define LAYERS 80

/* A model whose layers look back `window` tokens, but every `every`th, which looks back at everything. */
static void make(struct sr_model *m, int32_t n_layers, int32_t window, int32_t every)
{
	static struct sr_layer layers[LAYERS];

	*m = (struct sr_model){ .n_layers = n_layers, .n_kinds = 2, .layer = layers };
	m->kind[0].window = window;
	for (int32_t l = 0; l < n_layers; l++)
		layers[l] = (struct sr_layer){ .kind = every && l % every == every - 1 };
}

static const struct known {
	const char *name;
	int32_t n_layers, window, every, context, n_groups, layers, full, padding;
} known[] = {
	{ "Gemma 3 270M", 18, 512, 6, 32768, 6, 3, 1, 0 },
	{ "Gemma 3 27B", 62, 1024, 6, 131072, 7, 10, 1, 8 },
	{ "Gemma 3 1B", 26, 512, 6, 32768, 7, 4, 1, 2 },
	{ "gpt-oss-20b", 24, 128, 2, 131072, 2, 12, 1, 0 },
	{ "Mistral 7B v0.1", 32, 4096, 0, 32768, 1, 32, 0, 0 },
	{ "Llama", 32, 0, 0, 32768, 1, 0, 1, 0 },
	{ "Gemma 3 270M, short", 18, 512, 6, 512, 1, 0, 1, 0 },
	{ "one full layer of 80", 80, 64, 80, 4096, 15, 6, 1, 10 },
};

static void test_known(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		const struct known *k = &known[i];
		struct sr_limits l = { .block_tokens = 16, .n_groups = 1 };
		struct sr_model m;
		int32_t full = 0;

		make(&m, k->n_layers, k->window, k->every);
		groups_choose(&l, &m, k->context);
		for (int32_t g = 0; g < l.n_groups; g++)
			full += l.group[g].window == 0;
		if (l.n_groups != k->n_groups || l.group[0].layers != k->layers || full != k->full ||
		    groups_padding(&l, &m) != k->padding)
			fail_msg("%s: %d groups of %d layers, %d full, padding %d", k->name, l.n_groups, l.group[0].layers, full,
			         groups_padding(&l, &m));
		assert_int_equal(shape_groups(NULL, &m, &l), k->layers ? k->layers : k->n_layers);
	}
}

/* Gemma 4 31B: layers with a window have 16 KV heads 256 wide, the others 4 of 512, half as much. */
static void test_widths(void **state)
{
	struct sr_limits l = { .block_tokens = 16, .n_groups = 1 };
	struct sr_model m;

	(void)state;
	make(&m, 60, 1024, 6);
	m.kind[0].n_kv_heads = 16, m.kind[0].head_dim = 256;
	m.kind[1].n_kv_heads = 4, m.kind[1].head_dim = 512;
	groups_choose(&l, &m, 262144);
	assert_true(l.n_groups == 11 && l.group[0].window == 0 && l.group[0].layers == 10 && l.group[1].layers == 5);
	assert_int_equal(shape_kv_most(&m, &l), 5 * 2 * 16 * 256);
	assert_int_equal(groups_padding(&l, &m), 0);
	l = (struct sr_limits){ .block_tokens = 16, .n_groups = 1 };
	assert_int_equal(shape_kv_most(&m, &l), 50 * 2 * 16 * 256 + 10 * 2 * 4 * 512);
}

/* Each layer has a place of its own, in a group that looks back as far. */
static void test_places(void **state)
{
	struct sr_limits l = { .block_tokens = 16, .n_groups = 1 };
	bool taken[SR_GROUPS_MAX][LAYERS] = { { false } };
	struct kv_place at[LAYERS];
	struct sr_model m;

	(void)state;
	make(&m, 62, 1024, 6);
	groups_choose(&l, &m, 32768);
	assert_int_equal(shape_groups(at, &m, &l), 10);
	for (int32_t i = 0; i < 62; i++) {
		assert_int_equal(l.group[at[i].group].window, kind_of(&m, i)->window);
		assert_true(at[i].at >= 0 && at[i].at < 10 && !taken[at[i].group][at[i].at]);
		taken[at[i].group][at[i].at] = true;
	}
	m.layer[9].kv_back = 2;                              /* reads layer 7's */
	shape_groups(at, &m, &l);
	assert_memory_equal(&at[9], &at[7], sizeof(at[9]));
	assert_int_equal(groups_padding(&l, &m), 9);
	l.n_groups = 1;                                      /* all layers in one: a window of some is not of all */
	l.group[0] = (struct sr_group){ 0 };
	assert_int_equal(shape_groups(at, &m, &l), 61);
	l.group[0].window = 1024;
	assert_int_equal(shape_groups(at, &m, &l), -EINVAL);
	l.n_groups = 2;
	l.group[1] = (struct sr_group){ .window = 512 };
	assert_int_equal(shape_groups(at, &m, &l), -EINVAL);
	l.group[1] = (struct sr_group){ .window = 0 };
	assert_int_equal(shape_groups(at, &m, &l), 51);
	l.n_groups = 3;
	l.group[2] = (struct sr_group){ .window = 0 };       /* a group without a layer */
	assert_int_equal(shape_groups(at, &m, &l), -EINVAL);
}

/* Chunks and windows: the nearer counts; who sees later tokens keeps everything. */
static void test_look_back(void **state)
{
	static const struct { int32_t window, chunk, bidirectional, want; } cases[] = {
		{ 0, 0, 0, 0 }, { 512, 0, 0, 512 }, { 0, 8192, 0, 8192 }, { 512, 8192, 0, 512 }, { 9000, 8192, 0, 8192 },
		{ 512, 0, 1, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct sr_attn kind = { .window = cases[i].window, .chunk = cases[i].chunk,
			.bidirectional = cases[i].bidirectional };

		assert_int_equal(shape_window(&kind), cases[i].want);
	}
}

static void test_most(void **state)
{
	struct sr_limits l = { .block_tokens = 16, .n_groups = 2, .group = { { 0 }, { .window = 512 } } };

	(void)state;
	assert_int_equal(groups_most(&l, 32768, 1), 2048 + 32 + 2 + 1);
	assert_int_equal(groups_most(&l, 32768, 2048), 2048 + 32 + 2 + 128);
	assert_int_equal(groups_most(&l, 100, 2048), 7 + 7);
	assert_int_equal(groups_unit(&l), 33);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_known), cmocka_unit_test(test_widths),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_look_back),
		cmocka_unit_test(test_most),
	};

	return cmocka_run_group_tests_name("groups_choice", tests, NULL, NULL);
}
