/* LINK: adapters/http/timings.c adapters/http/json/out.c adapters/http/json/number.c */
/* test_timings.c - the times of answers: they add up, to the last digit, for one answer and for several. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "adapters/http/json/out.h"
#include "adapters/http/timings.h"
#include "shmring/slipring.h"

static void is(const struct timings *t, const char *json, const char *line)
{
	char got[TIMINGS_LINE];
	struct out o = { 0 };

	timings_json(&o, t);
	out_bytes(&o, "", 1);
	assert_string_equal(o.p, json);
	out_free(&o);
	assert_string_equal(timings_line(got, t), line);
}

static void one(void **state)
{
	const struct sr_end e = { .queued = 1000, .scheduled = 2000001, .first = 12000003, .last = 42000007,
	                          .cached = 32, .computed = 8 };
	struct timings t = { 0 };

	(void)state;
	timings_add(&t, &e, 4, 99000000);
	is(&t, "{\"cache_n\":32,\"prompt_n\":8,\"prompt_ms\":10.000002,\"prompt_per_token_ms\":1.250000,"
	   "\"prompt_per_second\":800.000,\"predicted_n\":4,\"predicted_ms\":30.000004,"
	   "\"predicted_per_token_ms\":7.500001,\"predicted_per_second\":133.333,\"queue_ms\":1.999001,"
	   "\"total_ms\":41.999007}",
	   "server-timing: queue;dur=1.999, prompt;dur=10.000, cached;desc=\"32/40\", decode;dur=30.000, "
	   "total;dur=41.999\r\n");
}

/* From the first answer's begin to the last one's end; tokens of all. */
static void several(void **state)
{
	struct timings t = { 0 };

	(void)state;
	timings_add(&t, &(struct sr_end){ .queued = 5000000, .scheduled = 6000000, .first = 8000000,
	                                  .last = 9000000, .computed = 3 }, 2, 0);
	timings_add(&t, &(struct sr_end){ .queued = 4000000, .scheduled = 7000000, .first = 7000000,
	                                  .last = 8500000, .cached = 3 }, 1, 0);
	assert_int_equal(t.queued, 4000000);
	assert_int_equal(t.scheduled, 6000000);
	assert_int_equal(t.first, 7000000);
	assert_int_equal(t.last, 9000000);
	assert_int_equal(t.tokens, 3);
	assert_int_equal(t.cached + t.computed, 6);
}

/* A prompt that was only scored has no token, and one that was cancelled in time was never planned. */
static void no_token(void **state)
{
	struct timings t = { 0 }, none = { 0 };
	char got[TIMINGS_LINE];

	(void)state;
	timings_add(&t, &(struct sr_end){ .queued = 1000000, .scheduled = 2000000, .computed = 2 }, 0, 5000000);
	is(&t, "{\"cache_n\":0,\"prompt_n\":2,\"prompt_ms\":3.000000,\"prompt_per_token_ms\":1.500000,"
	   "\"prompt_per_second\":666.667,\"predicted_n\":0,\"predicted_ms\":0.000000,"
	   "\"predicted_per_token_ms\":null,\"predicted_per_second\":null,\"queue_ms\":1.000000,"
	   "\"total_ms\":4.000000}",
	   "server-timing: queue;dur=1.000, prompt;dur=3.000, cached;desc=\"0/2\", decode;dur=0.000, "
	   "total;dur=4.000\r\n");
	assert_string_equal(timings_line(got, &none), "");
	timings_add(&none, &(struct sr_end){ .queued = 1000000 }, 0, 3000000);
	assert_int_equal(none.last - none.queued, 2000000);
	assert_int_equal(none.scheduled, none.last);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(one), cmocka_unit_test(several), cmocka_unit_test(no_token) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
