/* LINK: tools/tune/tune_search.c */
/* test_tune.c - the search of `slipring tune` on known hills, and the number of trials it may take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/tune/tune_search.h"

/* ---- ladders ----------------------------------------------------------------------------------- */

static void test_ladder(void **state)
{
	static const struct { int64_t least, most, now; int n, at; int64_t v[12]; } cases[] = {
		{ 1, 16, 2, 5, 1, { 1, 2, 4, 8, 16 } },
		{ 1, 16, 3, 6, 2, { 1, 2, 3, 4, 8, 16 } },
		{ 1, 20, 16, 6, 4, { 1, 2, 4, 8, 16, 20 } },
		{ 1, 20, 20, 6, 5, { 1, 2, 4, 8, 16, 20 } },
		{ 1, 1, 1, 1, 0, { 1 } },
		{ 32, 100, 64, 3, 1, { 32, 64, 100 } },
		{ 32, 100, 2, 4, 0, { 2, 32, 64, 100 } },
		{ 0, 8, 0, 5, 0, { 0, 1, 2, 4, 8 } },
		{ 1, 20, 18, 7, 5, { 1, 2, 4, 8, 16, 18, 20 } },
	};
	struct search_axis a;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int at = search_ladder(&a, cases[i].least, cases[i].most, cases[i].now);

		if (a.n != cases[i].n || at != cases[i].at ||
		    memcmp(a.value, cases[i].v, (size_t)a.n * sizeof(*a.value)))
			fail_msg("case %zu: %d rungs, at %d, last %lld", i, a.n, at, (long long)a.value[a.n - 1]);
	}
	assert_true(search_ladder(&a, 1, INT64_MAX / 4, 1) == 0 && a.n <= SEARCH_RUNGS);
}

/* ---- hills ------------------------------------------------------------------------------------- */

struct hill {
	double (*height)(double seqs, double tokens);
	struct search s;
	double best;
	int asked;
};

static double height_at(const struct hill *h, const int *at)
{
	return h->height((double)h->s.axis[0].value[at[0]], (double)h->s.axis[1].value[at[1]]);
}

static int better(void *ctx, const int *at)
{
	struct hill *h = ctx;
	double v = height_at(h, at);

	h->asked++;
	assert_true(h->s.axis[1].value[at[1]] >= h->s.axis[0].value[at[0]]);
	if (v < h->best * 1.02)
		return 0;
	h->best = v;
	return 1;
}

/* A step of rows and prompt tokens costs a + b * tokens; 2,000 prompts of 600 tokens, 60 to answer. */
static double work(double seqs, double tokens, double a, double b)
{
	double step = fmin(seqs, 2000), prefill = 600.0 / fmax(1, tokens - step);

	return step / ((a + b * step) * 60 + (a + b * tokens) * prefill * step);
}
static double steep(double s, double t) { return work(s, t, 10, 0.01); }
static double dear(double s, double t) { return work(s, t, 1, 1); }
static double mixed(double s, double t) { return work(s, t, 20, 0.2); }
static double middle(double s, double t) { return 100 - pow(log2(s) - 4, 2) - pow(log2(t) - 9, 2); }
static double flat(double s, double t) { return 1 + 0 * s * t; }
static double down(double s, double t) { return 1 / s + 1 / t; }
static double ridge(double s, double t) { return fmin(s, t / 8); } /* both must move */

static void test_hills(void **state)
{
	static double (*const hills[])(double, double) = { steep, dear, mixed, middle, flat, down, ridge };

	(void)state;
	for (size_t i = 0; i < sizeof(hills) / sizeof(hills[0]); i++)
		for (int start = 0; start < 3; start++) {
			struct hill h = { .height = hills[i], .s = { .n = 2 } };
			double top = 0;
			int cells = 0;

			h.s.at[0] = search_ladder(&h.s.axis[0], 1, 256, start == 0 ? 2 : start == 1 ? 48 : 256);
			h.s.at[1] = search_ladder(&h.s.axis[1], 32, 8192, start == 0 ? 64 : start == 1 ? 2048 : 8192);
			h.s.axis[1].above = 0;
			h.best = height_at(&h, h.s.at);
			assert_int_equal(search_climb(&h.s, better, &h), 0);
			for (int a = 0; a < h.s.axis[0].n; a++)
				for (int b = 0; b < h.s.axis[1].n; b++) {
					const int at[2] = { a, b };

					if (h.s.axis[1].value[b] < h.s.axis[0].value[a])
						continue;
					cells++;
					top = fmax(top, height_at(&h, at));
				}
			assert_true(fabs(height_at(&h, h.s.at) - h.best) < 1e-9);
			if (h.best < 0.95 * top)
				fail_msg("hill %zu from %d: %g of %g at %d %d", i, start, h.best, top, h.s.at[0], h.s.at[1]);
			if (h.asked * 3 > cells)
				fail_msg("hill %zu from %d: %d of %d cells", i, start, h.asked, cells);
		}
}

static int stops(void *ctx, const int *at)
{
	(void)at;
	return ++*(int *)ctx == 3 ? -4 : 1;
}

static void test_stop(void **state)
{
	struct search s = { .n = 1 };
	int n = 0;

	(void)state;
	s.at[0] = search_ladder(&s.axis[0], 1, 1 << 20, 1);
	assert_int_equal(search_climb(&s, stops, &n), -4);
	assert_int_equal(n, 3);
}

/* ---- devices ----------------------------------------------------------------------------------- */

static void test_shapes(void **state)
{
	static const struct { int devices, replicas, ranks; const char *want; } cases[] = {
		{ 1, 1, 1, "" }, { 2, 1, 1, "2x1 1x2 " }, { 2, 1, 2, "2x1 " }, { 2, 2, 1, "1x2 " },
		{ 3, 1, 1, "3x1 1x2 1x3 " }, { 4, 1, 1, "4x1 2x2 1x4 " }, { 4, 2, 2, "4x1 1x4 " },
		{ 6, 1, 3, "6x1 3x2 2x3 1x4 1x6 " }, { 8, 1, 1, "8x1 4x2 2x4 1x8 " }, { 64, 1, 1, "16x1 16x2 16x4 8x8 4x16 " },
	};
	struct tune_shape out[TUNE_SHAPES];
	char words[200];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int n = tune_shapes(out, cases[i].devices, cases[i].replicas, cases[i].ranks), at = 0;

		*words = 0;
		for (int k = 0; k < n; k++)
			at += snprintf(words + at, sizeof(words) - (size_t)at, "%dx%d ", out[k].replicas, out[k].ranks);
		assert_string_equal(words, cases[i].want);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ladder), cmocka_unit_test(test_hills), cmocka_unit_test(test_stop),
		cmocka_unit_test(test_shapes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
