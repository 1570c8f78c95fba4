/* LINK: core/figures/figures.c core/instance/stats.c core/instance/knobs.c core/instance/refuse.c -ljansson -lm */
/* test_judge.c - the judgement of slipring why and of the page, on hand-made pages of a device whose steps take
 * 2 ms + 0.1 ms per row + 0.01 ms per prompt token: the limit it names, and the gain it predicts for a knob. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "core/figures/judge.c"

static struct stats_page page;

/* n steps: rows and tokens of prompts of step i by two shapes. */
static void steps(int n, int rows, int rows_spread, int prompt, int prompt_spread)
{
	for (int i = 0; i < n; i++) {
		struct stats_step *s = &page.step[page.n_step++ % STATS_STEPS];
		uint32_t r = (uint32_t)(rows + i * 7 % (rows_spread + 1)), p;

		p = prompt ? (uint32_t)(prompt + i * 11 % (prompt_spread + 1)) : 0;
		*s = (struct stats_step){ .begin_ns = 1000 + (uint64_t)i, .rows = r, .tokens = r + p,
		                          .device_ns = 2000000 + 100000 * r + 10000 * p };
	}
}

/* A minute in which `why` was the limit for nine tenths of the time, with these numbers running and waiting. */
static struct figures minute(int why, double running, double waiting, double rows)
{
	struct figures f = { .seconds = 60, .why_all = 60, .bound_all = 60, .running = running, .waiting = waiting,
	                     .rows = rows };

	f.why_s[why] = 54;
	f.why_s[WHY_EMPTY] += 6;
	f.bound_s[BOUND_MEMORY] = 60;
	f.empty_s[EMPTY_SERVED] = f.why_s[WHY_EMPTY];
	return f;
}

static struct verdict judged(const struct figures *f)
{
	struct verdict v;

	judge_interval(&v, &page, f, 0);
	return v;
}

static void assert_near(double is, double want)
{
	if (!(fabs(is - want) < 0.01))
		fail_msg("%g is not %g", is, want);
}

/* Rows 16 to 24, mean 20: a step takes 4 ms; with 10 more 5 ms. */
static void test_rows(void **state)
{
	static const struct { int why; double running, waiting, rows, worth; } cases[] = { /* -1: none */
		{ WHY_SEQS, 20, 9, 20, 30 / 5.0 / (20 / 4.0) - 1 },
		{ WHY_KV, 20, 90, 20, 40 / 6.0 / (20 / 4.0) - 1 },     /* at most twice as many */
		{ WHY_ORDER, 20, 0, 20, -1 },
		{ WHY_RING_OUT, 30, 0, 20, 30 / 5.0 / (20 / 4.0) - 1 },
		{ WHY_PCIE, 30, 0, 20, 30 / 5.0 / (20 / 4.0) - 1 },
		{ WHY_PCIE, 20, 0, 20, -1 },
		{ WHY_GUIDE, 30, 0, 20, 30 / 5.0 / (20 / 4.0) - 1 },
		{ WHY_EMPTY, 20, 0, 20, 40 / 6.0 / (20 / 4.0) - 1 },
	};

	(void)state;
	memset(&page, 0, sizeof(page));
	steps(900, 16, 8, 0, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct figures f = minute(cases[i].why, cases[i].running, cases[i].waiting, cases[i].rows);
		struct verdict v = judged(&f);

		assert_int_equal(v.largest, cases[i].why);
		assert_true(isnan(v.step_then));
		if (cases[i].worth < 0)
			assert_true(isnan(v.worth) && *v.no_worth);
		else
			assert_near(v.worth, cases[i].worth);
	}
}

/* Rows 16 to 24 and 100 to 300 tokens of prompts: 6 ms; with 400, 8. */
static void test_tokens(void **state)
{
	(void)state;
	memset(&page, 0, sizeof(page));
	steps(900, 16, 8, 100, 200);
	for (int k = 0; k < 2; k++) {
		struct figures f = minute(k ? WHY_TOKENS : WHY_STEP_TIME, 20, 5, 20);
		struct verdict v = judged(&f);

		assert_near(v.step_now, 6);
		assert_near(v.step_then, 8);
		assert_near(v.worth, 2 * 6 / 8.0 - 1);
	}
}

/* Without data there is no prediction. */
static void test_silence(void **state)
{
	struct figures f = minute(WHY_SEQS, 20, 9, 20);
	struct verdict v;

	(void)state;
	memset(&page, 0, sizeof(page));
	steps(900, 20, 0, 0, 0);                 /* all alike */
	v = judged(&f);
	assert_true(isnan(v.worth) && strstr(v.no_worth, "the same number of rows"));
	f = minute(WHY_TOKENS, 20, 9, 20);       /* no prompts among them */
	v = judged(&f);
	assert_true(isnan(v.worth) && strstr(v.no_worth, "do not show"));
	memset(&page, 0, sizeof(page));
	steps(FIT_LEAST - 1, 16, 8, 100, 200);   /* few */
	v = judged(&f);
	assert_true(isnan(v.worth) && strstr(v.no_worth, "do not show"));
	f = minute(WHY_EMPTY, 0, 0, NAN);        /* no clients */
	f.empty_s[EMPTY_NOBODY] = 60;
	f.empty_s[EMPTY_SERVED] = 0;
	v = judged(&f);
	assert_true(v.largest == WHY_EMPTY && isnan(v.worth) && !*v.no_worth);
	f.why_s[WHY_PCIE] = 2;                   /* too little to name */
	v = judged(&f);
	assert_int_equal(v.largest, WHY_EMPTY);
}

/* What is said of a minute whose time was bound like this: nothing that one could buy, if others had the cores. */
static void test_cores(void **state)
{
	static const struct {
		double idle, compute, cores;                 /* of 60 s */
		int by, bound;
		bool limits;
		const char *says, *not;
	} cases[] = {
		{ 0, 60, 0, CORES_OTHERS, BOUND_COMPUTE, false, "more devices", "held the cores" },
		{ 0, 49, 11, CORES_OTHERS, BOUND_COMPUTE, false, "more devices", "held the cores" },
		{ 0, 47, 13, CORES_OTHERS, BOUND_CORES, true, "other programs held the cores", "more devices" },
		{ 0, 10, 50, CORES_OTHERS, BOUND_CORES, true, "a faster device would not help", "more devices" },
		{ 0, 10, 50, CORES_QUOTA, BOUND_CORES, true, "CPU quota was used up: raise it", "other programs" },
		{ 0, 10, 50, CORES_MACHINE, BOUND_CORES, true, "the hypervisor", "other programs" },
		{ 50, 5, 5, CORES_OTHERS, BOUND_IDLE, true, "nothing to compute", "more devices" },
		{ 56, 2, 2, CORES_OTHERS, BOUND_IDLE, false, "nothing to compute", "more devices" },
	};

	(void)state;
	memset(&page, 0, sizeof(page));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct figures f = minute(WHY_EMPTY, 4, 0, 4);
		struct verdict v;
		json_t *j;

		f.bound_s[BOUND_MEMORY] = 0;
		f.bound_s[BOUND_IDLE] = cases[i].idle;
		f.bound_s[BOUND_COMPUTE] = cases[i].compute;
		f.bound_s[BOUND_CORES] = f.cores_s[cases[i].by] = cases[i].cores;
		v = judged(&f);
		assert_near(v.cores_share, cases[i].cores / (60 - cases[i].idle));
		assert_int_equal(judge_lacks_cores(&v), cases[i].limits);
		assert_int_equal(judge_bound(&v), cases[i].bound);
		assert_non_null(strstr(judge_bound_advice(&v), cases[i].says));
		assert_null(strstr(judge_bound_advice(&v), cases[i].not));
		j = judge_json(&v);
		assert_non_null(j);
		assert_string_equal(json_string_value(json_object_get(j, "bound_what")), judge_bound_advice(&v));
		json_decref(j);
	}
}

/* Time spent before the ring, if that was most of the time. */
static void test_before_the_ring(void **state)
{
	static const struct {
		double limit, tokenizing, network, silent, served; /* of 100 s: seqs, and the parts of empty */
		int largest, empty;
		double share, worth;                               /* -1: none */
	} cases[] = {
		{ 0, 80, 10, 10, 0, WHY_EMPTY, EMPTY_TOKENIZING, 0.8, 1 / 0.6 - 1 },
		{ 0, 10, 80, 10, 0, WHY_EMPTY, EMPTY_NETWORK, 0.8, 1 / 0.6 - 1 },
		{ 30, 60, 10, 0, 0, WHY_EMPTY, EMPTY_TOKENIZING, 0.6, 1 / 0.7 - 1 },
		{ 60, 30, 10, 0, 0, WHY_SEQS, EMPTY_TOKENIZING, 0.6, 30 / 5.0 / (20 / 4.0) - 1 },
		{ 0, 10, 10, 80, 0, WHY_EMPTY, EMPTY_SILENT, 1, -1 },
		{ 4, 2, 0, 4, 90, WHY_EMPTY, EMPTY_SERVED, 0.96, 40 / 6.0 / (20 / 4.0) - 1 },
		{ 8, 4, 0, 84, 4, WHY_SEQS, EMPTY_SILENT, 0.08, 40 / 6.0 / (20 / 4.0) - 1 },
	};

	(void)state;
	memset(&page, 0, sizeof(page));
	steps(900, 16, 8, 0, 0);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct figures f = { .seconds = 100, .why_all = 100, .bound_all = 100, .running = 20, .rows = 20,
		                     .waiting = cases[i].limit > 10 ? 6 : 90 };
		struct verdict v;

		f.why_s[WHY_SEQS] = cases[i].limit;
		f.why_s[WHY_EMPTY] = 100 - cases[i].limit;
		f.empty_s[EMPTY_TOKENIZING] = cases[i].tokenizing;
		f.empty_s[EMPTY_NETWORK] = cases[i].network;
		f.empty_s[EMPTY_SILENT] = cases[i].silent;
		f.empty_s[EMPTY_SERVED] = cases[i].served;
		v = judged(&f);
		assert_int_equal(v.largest, cases[i].largest);
		assert_int_equal(v.empty, cases[i].empty);
		assert_near(v.share, cases[i].share);
		if (cases[i].worth < 0)
			assert_true(isnan(v.worth) && !*v.no_worth);
		else
			assert_near(v.worth, cases[i].worth);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_cores), cmocka_unit_test(test_rows), cmocka_unit_test(test_tokens), cmocka_unit_test(test_before_the_ring),
	                                    cmocka_unit_test(test_silence) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
