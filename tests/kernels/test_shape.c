/* LINK: kernels/shape.c */
/* test_shape.c - what each rank holds of a model: the parts are in order, together they are the whole, and
 * no head, group of scales or unit is cut; how wide places are. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/shape.h"

#define MOST 20                  /* layers */

static const struct of { const char *name; int32_t H, G, E, D, F, V, group; } models[] = {
	{ "SmolLM2 135M", 9, 3, 64, 576, 1536, 49152, 0 },
	{ "Llama 2 7B", 32, 32, 128, 4096, 11008, 32000, 0 },
	{ "Llama 3 8B", 32, 8, 128, 4096, 14336, 128256, 128 },
	{ "Llama 3 70B", 64, 8, 128, 8192, 28672, 128256, 128 },
	{ "Qwen 2.5 7B", 28, 4, 128, 3584, 18944, 152064, 128 },
	{ "Gemma 3 270M", 4, 1, 256, 640, 2048, 262144, 32 },
	{ "odd", 7, 7, 16, 32, 96, 1000, 48 },
};
static struct sr_layer layers[MOST];
static char err[300];

static struct sr_model model_of(const struct of *of)
{
	struct sr_model m = { .n_layers = 2, .d_model = of->D, .d_ff = of->F, .n_vocab = of->V, .n_kinds = 1,
	                      .kind = { { .n_heads = of->H, .n_kv_heads = of->G, .head_dim = of->E } },
	                      .layer = layers };

	for (int l = 0; l < MOST; l++)
		layers[l] = (struct sr_layer){ .d_ff = of->F, .down.group = of->group };
	return m;
}

/* One rank: the widths of the whole model. */
static void test_alone(void **state)
{
	struct sr_model m = model_of(&models[0]);
	struct rank_shape s;

	(void)state;
	assert_int_equal(shape_of(&s, &m, 0, 1, err, sizeof(err)), 0);
	assert_int_equal(s.kind[0].heads.n, 9);
	assert_int_equal(s.kind[0].kv_heads.n, 3);
	assert_int_equal(s.vocab.n, 49152);
	assert_int_equal(s.width[P_X], 576);
	assert_int_equal(s.width[P_Y], 576);
	assert_int_equal(s.width[P_Z], 576);
	assert_int_equal(s.width[P_QKV], 15 * 64);
	assert_int_equal(s.width[P_A], 9 * 64);
	assert_int_equal(s.width[P_GU], 3072);
	assert_int_equal(s.width[P_ACT], 1536);
	assert_int_equal(s.width[P_LOGITS], 49152);
	assert_int_equal(s.inputs, 1536);
	assert_int_equal(s.outputs, 49152);
	layers[0].d_ff = 4096;                        /* places are as wide as the widest layer */
	assert_int_equal(shape_of(&s, &m, 0, 1, err, sizeof(err)), 0);
	assert_int_equal(s.width[P_GU], 8192);
	assert_int_equal(s.inputs, 4096);
	m.n_kinds = 2;
	m.kind[1] = m.kind[0];
	assert_int_equal(shape_of(&s, &m, 0, 1, err, sizeof(err)), 0);
	m.kind[1].head_dim = 128;
	assert_int_equal(shape_of(&s, &m, 0, 1, err, sizeof(err)), 0);
	assert_int_equal(s.width[P_A], 9 * 128);
	assert_int_equal(shape_of(&s, &m, 0, 2, err, sizeof(err)), -ENOTSUP);
	assert_string_equal(err, "9 query heads, 3 KV heads of width 64 in some layers, 9, 3 and 128 in others: "
	                    "they must be the same in all");
}

/* Each query head reads a KV head that its rank holds; a rank holds no KV head that none of its heads reads. */
static void check_heads(const struct of *of, const struct rank_shape *s)
{
	int32_t each = of->H / of->G, first = s->kind[0].heads.from, last = first + s->kind[0].heads.n - 1;

	assert_int_equal(first / each, s->kind[0].kv_heads.from);
	assert_int_equal(last / each, s->kind[0].kv_heads.from + s->kind[0].kv_heads.n - 1);
}

static void next_is(const char *what, const struct of *of, struct rank_part p, int32_t *at, int rank, int world)
{
	if (p.from != *at || p.n < 1)
		fail_msg("%s, %s: rank %d of %d has %d from %d, not from %d", of->name, what, rank, world, p.n,
		         p.from, *at);
	*at += p.n;
}

static void test_worlds(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(models) / sizeof(*models); i++)
		for (int world = 1; world <= 16; world++) {
			const struct of *of = &models[i];
			struct sr_model m = model_of(of);
			const int32_t unit = 32;
			int32_t heads = 0, kv = 0, ff = 0, vocab = 0, most = 0, least = INT32_MAX;
			bool fits = world <= of->H && world <= (of->F + unit - 1) / unit;

			for (int rank = 0; rank < world; rank++) {
				struct rank_shape s;
				int rc = shape_of(&s, &m, rank, world, err, sizeof(err));
				struct rank_part f = shape_columns(of->F, rank, world);

				if (!fits && rc == -ENOTSUP)
					break;
				assert_int_equal(rc, 0);
				check_heads(of, &s);
				next_is("heads", of, s.kind[0].heads, &heads, rank, world);
				next_is("feed-forward", of, f, &ff, rank, world);
				next_is("vocabulary", of, s.vocab, &vocab, rank, world);
				if (world <= of->G)
					next_is("KV heads", of, s.kind[0].kv_heads, &kv, rank, world);
				else
					assert_int_equal(s.kind[0].kv_heads.n, 1);
				assert_int_equal(f.from % unit, 0);
				assert_int_equal(s.vocab.from % 64, 0);
				assert_int_equal(s.width[P_X], of->D);
				assert_int_equal(s.width[P_A], s.kind[0].heads.n * of->E);
				assert_int_equal(s.width[P_QKV],
				                 (s.kind[0].heads.n + 2 * s.kind[0].kv_heads.n) * of->E);
				assert_int_equal(s.width[P_GU], 2 * f.n);
				assert_int_equal(s.width[P_LOGITS], of->V);
				most = f.n > most ? f.n : most;
				least = f.n < least ? f.n : least;
				if (rank < world - 1)
					continue;
				assert_true(fits);             /* else some rank was refused */
				assert_int_equal(heads, of->H);
				assert_int_equal(kv, world <= of->G ? of->G : 0);
				assert_int_equal(ff, of->F);
				assert_int_equal(vocab, of->V);
				assert_true(most - least < 2 * unit);
			}
		}
}

/* Shares that differ, written out. */
static void test_uneven(void **state)
{
	static const struct { int model, world; struct { int32_t q, n, g, kv; } is[8]; } cases[] = {
		{ 0, 2, { { 0, 3, 0, 1 }, { 3, 6, 1, 2 } } },
		{ 0, 3, { { 0, 3, 0, 1 }, { 3, 3, 1, 1 }, { 6, 3, 2, 1 } } },
		{ 0, 4, { { 0, 3, 0, 1 }, { 3, 3, 1, 1 }, { 6, 1, 2, 1 }, { 7, 2, 2, 1 } } },
		{ 5, 3, { { 0, 1, 0, 1 }, { 1, 1, 0, 1 }, { 2, 2, 0, 1 } } },
		{ 4, 8, { { 0, 3, 0, 1 }, { 3, 4, 0, 1 }, { 7, 3, 1, 1 }, { 10, 4, 1, 1 }, { 14, 3, 2, 1 },
		          { 17, 4, 2, 1 }, { 21, 3, 3, 1 }, { 24, 4, 3, 1 } } },
	};
	struct sr_model m;
	struct rank_shape s;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		m = model_of(&models[cases[i].model]);
		for (int r = 0; r < cases[i].world; r++) {
			assert_int_equal(shape_of(&s, &m, r, cases[i].world, err, sizeof(err)), 0);
			assert_int_equal(s.kind[0].heads.from, cases[i].is[r].q);
			assert_int_equal(s.kind[0].heads.n, cases[i].is[r].n);
			assert_int_equal(s.kind[0].kv_heads.from, cases[i].is[r].g);
			assert_int_equal(s.kind[0].kv_heads.n, cases[i].is[r].kv);
		}
	}
	m = model_of(&models[5]);                     /* four query heads */
	assert_int_equal(shape_of(&s, &m, 0, 5, err, sizeof(err)), -ENOTSUP);
	assert_string_equal(err, "5 ranks are too many: rank 0 would hold no query head, no part of the "
	                    "feed-forward or no part of the vocabulary");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alone), cmocka_unit_test(test_worlds), cmocka_unit_test(test_uneven),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
