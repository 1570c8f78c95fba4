/* LINK: core/idle.c */
/* test_idle.c - which run mode is chosen where, its reason, and that every spin ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "core/idle.h"

#define CPU(cores_, threads_) { "cpu", cores_, threads_, true }
#define GPU(cores_)           { "cuda", cores_, 0, false }

static void test_choose(void **state)
{
	static const struct {
		enum config_run_mode asked;
		struct idle_place place;
		int mode;                     /* -1: it cannot be */
		const char *says;
	} cases[] = {
		{ RUN_AUTO,      CPU(2, 2), RUN_INLINE,    "inline: this thread is one of 2 that compute on 2 cores" },
		{ RUN_AUTO,      CPU(1, 1), RUN_INLINE,    "inline: this thread is one of 1 that compute on 1 cores" },
		{ RUN_AUTO,      CPU(8, 4), RUN_INLINE,    "one of 4 that compute on 8 cores" },
		{ RUN_AUTO,      GPU(2),    RUN_DEDICATED, "dedicated: this thread polls one of 2 cores" },
		{ RUN_AUTO,      GPU(64),   RUN_DEDICATED, "one of 64 cores" },
		{ RUN_AUTO,      GPU(1),    RUN_WAITING,   "no core of its own" },
		{ RUN_DEDICATED, CPU(2, 2), RUN_DEDICATED, "no core is left" },
		{ RUN_DEDICATED, CPU(4, 3), RUN_DEDICATED, "polls one of 4 cores" },
		{ RUN_DEDICATED, GPU(1),    RUN_DEDICATED, "no core is left" },
		{ RUN_WAITING,   CPU(2, 2), RUN_WAITING,   "sleeps while the device computes" },
		{ RUN_WAITING,   GPU(8),    RUN_WAITING,   "sleeps while the device computes" },
		{ RUN_INLINE,    GPU(8),    -1,            "\"cuda\" computes by itself" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char say[300] = "";
		struct idle idle;
		int r = idle_choose(&idle, cases[i].asked, &cases[i].place, say, sizeof(say));

		assert_int_equal(r, cases[i].mode < 0 ? -EINVAL : 0);
		if (r == 0)
			assert_int_equal(idle.mode, cases[i].mode);
		if (!strstr(say, cases[i].says))
			fail_msg("case %zu says: %s", i, say);
	}
}

/* Polls until it may sleep, from time 1 on, one each 100 ns. */
static uint64_t spins(struct idle *idle, bool flying)
{
	uint64_t now = 1;

	for (idle->since = 0; !idle_enough(idle, now, flying); now += 100)
		assert_true(now < 1000000000);
	return now - 1;
}

static void test_bounded(void **state)
{
	static const struct {
		enum config_run_mode mode;
		struct idle_place place;
		uint64_t nothing, flying;     /* ns */
	} cases[] = {
		{ RUN_INLINE,    CPU(2, 2), 50000, 0 },
		{ RUN_DEDICATED, GPU(2),    500000, 10000000 },
		{ RUN_WAITING,   GPU(1),    0, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct idle idle;
		char say[300];

		assert_int_equal(idle_choose(&idle, cases[i].mode, &cases[i].place, say, sizeof(say)), 0);
		assert_int_equal(spins(&idle, false), cases[i].nothing);
		assert_int_equal(spins(&idle, true), cases[i].flying);
		assert_true(idle.nap_ns > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_choose), cmocka_unit_test(test_bounded) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
