/* LINK: adapters/http/page/past.c adapters/http/json/out.c adapters/http/json/number.c @figures core/instance/stats.c core/instance/knobs.c core/instance/refuse.c -ljansson -lm */
/* test_past.c - what the page knows of the last ten minutes and the last day, from hand-made stats pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include <jansson.h>

#include "adapters/http/page/past.h"

#define SECOND 1000000000ull

static struct stats_page page;
static struct past past;
static uint64_t begin;

static int fresh(void **state)
{
	(void)state;
	memset(&page, 0, sizeof(page));
	memset(&past, 0, sizeof(past));
	begin = SECOND;
	page.epoch = 11;
	page.ready_ns = page.accounted_ns = begin;
	page.busy_since_ns = 1;
	page.n_blocks = 100;
	page.knob[KNOB_MAX_NUM_SEQS] = 4;
	return 0;
}

/* A second in which seqs limited it for `ms`, and nothing for the rest. */
static void second(uint64_t ms, uint64_t tokens)
{
	page.accounted_ns += SECOND;
	page.count.why_ns[WHY_SEQS] += ms * 1000000;
	page.count.why_ns[WHY_EMPTY] += SECOND - ms * 1000000;
	page.count.bound_ns[BOUND_COMPUTE] += SECOND;
	page.count.empty_ns[EMPTY_SERVED] += SECOND - ms * 1000000;
	page.count.generation_tokens += tokens;
	stats_observe_many(&page, HIST_ITL, 0.004, tokens);
}

static json_t *told(const struct stats_page *p)
{
	struct out o = { 0 };
	json_t *j;

	past_json(&o, &past, p);
	j = o.failed ? NULL : json_loadb(o.p, o.n, 0, NULL);
	assert_non_null(j);
	out_free(&o);
	return j;
}

static json_int_t cell(json_t *j, const char *span, const char *axis, const char *name, size_t i)
{
	json_t *rows = json_object_get(j, span);

	return json_integer_value(json_array_get(json_object_get(axis ? json_object_get(rows, axis) : rows, name), i));
}

static void test_seconds(void **state)
{
	json_t *j;

	(void)state;
	past_look(&past, &page, true);
	assert_int_equal(past.n_rows, 0);     /* the first look has nothing to compare with */
	for (int i = 0; i < 3; i++) {
		second((uint64_t)i * 100, i == 2 ? 50 : 0);
		page.blocks_used = 25;
		past_look(&past, &page, true);
	}
	past_look(&past, &page, true);        /* no time went by */
	assert_int_equal(past.n_rows, 3);
	j = told(NULL);
	for (size_t i = 0; i < 3; i++) {
		json_int_t seqs = cell(j, "seconds", "why", "seqs", i), empty = cell(j, "seconds", "why", "empty", i);

		assert_int_equal(seqs, (json_int_t)i * 100);
		assert_int_equal(seqs + empty, 1000);
		assert_int_equal(cell(j, "seconds", "bound", "compute", i), 1000);
		assert_int_equal(cell(j, "seconds", NULL, "kv_permille", i), 250);
	}
	assert_int_equal(cell(j, "seconds", NULL, "generated_tokens_per_s", 2), 50);
	assert_true(json_is_null(json_array_get(json_object_get(json_object_get(j, "seconds"), "itl_us_p50"), 0)));
	assert_in_range(cell(j, "seconds", NULL, "itl_us_p50", 2), 2500, 5000);
	assert_null(json_object_get(json_object_get(json_object_get(j, "seconds"), "why"), "pcie")); /* zeros */
	assert_int_equal(json_array_size(json_object_get(json_object_get(j, "minutes"), "at")), 0);
	json_decref(j);
}

/* Only the last ten minutes are kept, in order. */
static void test_wraps(void **state)
{
	json_t *j, *ats;

	(void)state;
	past_look(&past, &page, true);
	for (int i = 0; i < PAST_SECONDS + 50; i++) {
		second(0, (uint64_t)i);
		past_look(&past, &page, true);
	}
	j = told(NULL);
	ats = json_object_get(json_object_get(j, "seconds"), "at");
	assert_int_equal(json_array_size(ats), PAST_SECONDS);
	assert_int_equal(cell(j, "seconds", NULL, "generated_tokens_per_s", 0), 50);
	assert_int_equal(cell(j, "seconds", NULL, "generated_tokens_per_s", PAST_SECONDS - 1), PAST_SECONDS + 49);
	for (size_t i = 1; i < PAST_SECONDS; i++)
		assert_true(json_integer_value(json_array_get(ats, i)) >= json_integer_value(json_array_get(ats, i - 1)));
	json_decref(j);
}

/* A day of minutes, of which each adds up. */
static void test_minutes(void **state)
{
	json_t *j;

	(void)state;
	stats_minute(&page);
	for (int m = 0; m < STATS_MINUTES + 20; m++) {
		for (int i = 0; i < 60; i++)
			second(m == STATS_MINUTES + 19 ? 500 : 0, 10);
		stats_minute(&page);
	}
	page.minute[(page.n_minute - 3) % STATS_MINUTES].at_ns = 0;  /* being replaced */
	past_look(&past, &page, true);
	j = told(&page);
	assert_int_equal(json_array_size(json_object_get(json_object_get(j, "minutes"), "at")), STATS_MINUTES - 2);
	for (size_t i = 0; i < STATS_MINUTES - 2; i++) {
		json_int_t all = cell(j, "minutes", "why", "seqs", i) + cell(j, "minutes", "why", "empty", i);

		assert_true(all == 60000 || all == 120000);
		assert_int_equal(cell(j, "minutes", "bound", "compute", i), all);
		assert_int_equal(cell(j, "minutes", NULL, "generated_tokens_per_s", i), 10);
	}
	assert_int_equal(cell(j, "minutes", "why", "seqs", STATS_MINUTES - 3), 30000);
	json_decref(j);
}

/* The latencies of a day's minutes.  Ours begin at full minutes, the daemon's within half a minute of them. */
static void test_latencies(void **state)
{
	json_t *j, *itl;

	(void)state;
	past_look(&past, &page, true);
	stats_minute(&page);
	for (int m = 0; m < 12; m++) {
		for (int i = 0; i < 60; i++) {
			second(0, m / 4 == 1 ? 0 : 10);
			past_look(&past, &page, true);
		}
		stats_minute(&page);
	}
	j = told(&page);
	itl = json_object_get(json_object_get(j, "minutes"), "itl_us_p50");
	assert_int_equal(json_array_size(itl), 12);
	for (size_t i = 1; i < 11; i++) {
		if (i == 5 || i == 6)
			assert_true(json_is_null(json_array_get(itl, i)));
		else if (i < 3 || i > 8)
			assert_in_range(json_integer_value(json_array_get(itl, i)), 2500, 5000);
	}
	json_decref(j);
}

static void test_turns(void **state)
{
	json_t *j, *t;

	(void)state;
	past_look(&past, &page, true);
	second(0, 0);
	past_look(&past, &page, true);
	assert_int_equal(past.n_turns, 0);
	for (int i = 0; i < PAST_TURNS + 3; i++) {
		page.knob[KNOB_MAX_NUM_SEQS] = 5 + i;
		past_look(&past, &page, true);
	}
	j = told(NULL);
	t = json_object_get(j, "turns");
	assert_int_equal(json_array_size(t), PAST_TURNS);
	t = json_array_get(t, PAST_TURNS - 1);
	assert_string_equal(json_string_value(json_object_get(t, "knob")), "max-num-seqs");
	assert_string_equal(json_string_value(json_object_get(t, "was")), "70");
	assert_string_equal(json_string_value(json_object_get(t, "now")), "71");
	assert_true(json_integer_value(json_object_get(t, "at")) >= time(NULL) - 5);
	json_decref(j);
	page.epoch = 12;                      /* another daemon, with other knobs: nobody turned them */
	page.knob[KNOB_MAX_NUM_SEQS] = 999;
	past_look(&past, &page, true);
	assert_int_equal(past.n_turns, PAST_TURNS + 3);
}

/* The last ten seconds with work, whatever idle ones are between; none that is older than five minutes. */
static void test_lately(void **state)
{
	struct stats_mark sum;
	uint32_t until;

	(void)state;
	past_look(&past, &page, true);
	assert_int_equal(past_lately(&past, &sum, &until), 0);
	assert_int_equal(sum.at_ns, 0);
	for (int i = 0; i < 14; i++) {            /* the first four are not among them */
		second(i < 4 ? 1000 : 900, 10);
		past_look(&past, &page, true);
		page.accounted_ns += SECOND;      /* idle */
		page.count.why_ns[WHY_EMPTY] += SECOND;
		page.count.bound_ns[BOUND_IDLE] += SECOND;
		past_look(&past, &page, true);
	}
	assert_int_equal(past_lately(&past, &sum, &until), begin + 8 * SECOND);
	assert_int_equal(sum.at_ns, 10 * SECOND);
	assert_int_equal(sum.count.why_ns[WHY_SEQS], 9 * SECOND);
	assert_int_equal(sum.count.why_ns[WHY_EMPTY], SECOND);
	assert_int_equal(sum.count.bound_ns[BOUND_COMPUTE], 10 * SECOND);
	assert_int_equal(sum.count.generation_tokens, 100);
	page.accounted_ns += 295 * SECOND;
	past_look(&past, &page, true);
	past_lately(&past, &sum, &until);
	assert_int_equal(sum.at_ns, 3 * SECOND);
	page.epoch++;                             /* another daemon */
	past_look(&past, &page, true);
	assert_int_equal(past_lately(&past, &sum, &until), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test_setup(test_seconds, fresh), cmocka_unit_test_setup(test_wraps, fresh),
	                                    cmocka_unit_test_setup(test_minutes, fresh),
	                                    cmocka_unit_test_setup(test_latencies, fresh), cmocka_unit_test_setup(test_turns, fresh),
	                                    cmocka_unit_test_setup(test_lately, fresh) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
