/* LINK: core/clients/empty.c core/instance/stats.c core/instance/refuse.c */
/* test_empty.c - how the time of `empty` is split by what clients report: under a virtual clock,
 * with clients that are honest, that overlap, and that lie.  Each ns is assigned once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/clients/empty.h"
#include "shmring/wire.h"

#define MS     1000000ull
#define SECOND (1000 * MS)
#define MOST   8

static struct {
	uint64_t now, given;              /* given: ns of `empty` so far */
	struct empty e;
	uint64_t out[N_EMPTY];
	int n;
	struct { uint64_t word[2]; struct empty_client seen; uint64_t believed[2]; } c[MOST];
} w;

static void world(int n_clients)
{
	memset(&w, 0, sizeof(w));
	w.now = 1234567891011;                /* odd */
	w.n = n_clients;
	empty_split(&w.e, w.now, w.out);
}

static void flip(int client, int clock) { w.c[client].word[clock] = sr_doing_flip(w.c[client].word[clock], w.now); }

/* End a window as the daemon does, and check the sums. */
static void look(void)
{
	uint64_t said[2], ns[2], all = 0;

	empty_listen(&w.e);
	for (int i = 0; i < w.n; i++) {
		for (int k = 0; k < 2; k++)
			said[k] = sr_doing_ns(w.c[i].word[k], w.now);
		empty_hear(&w.e, &w.c[i].seen, w.now, said, ns);
		assert_true(ns[0] + ns[1] <= w.now - w.e.since);
		for (int k = 0; k < 2; k++)
			w.c[i].believed[k] += ns[k];
	}
	empty_split(&w.e, w.now, w.out);
	assert_false(empty_pending(&w.e));
	for (int i = 0; i < N_EMPTY; i++)
		all += w.out[i];
	assert_int_equal(all, w.given);
}

static void pass(enum stats_empty seen, uint64_t ns)
{
	w.now += ns;
	w.given += ns;
	empty_add(&w.e, seen, ns);
}

static double share(enum stats_empty what) { return (double)w.out[what] / (double)w.given; }

static void assert_share(enum stats_empty what, double want)
{
	if (share(what) < want - 1e-6 || share(what) > want + 1e-6)
		fail_msg("%s: %.6f, not %.6f", stats_empty_name(what), share(what), want);
}

/* ---- the truth --------------------------------------------------------------------------- */

/* Each kind of load gets its own time, whether the daemon sleeps long or looks every 10 ms. */
static void test_kinds(void **state)
{
	static const struct { int clock; enum stats_empty seen, is; } kinds[] = {
		{ SR_PREPARING, EMPTY_SILENT, EMPTY_TOKENIZING },
		{ SR_PREPARING, EMPTY_SERVED, EMPTY_TOKENIZING },
		{ SR_ARRIVING, EMPTY_SILENT, EMPTY_NETWORK },
		{ SR_ARRIVING, EMPTY_SERVED, EMPTY_NETWORK },
		{ -1, EMPTY_SILENT, EMPTY_SILENT },
		{ -1, EMPTY_SERVED, EMPTY_SERVED },
		{ -1, EMPTY_NOBODY, EMPTY_NOBODY },
	};

	(void)state;
	_Static_assert(SR_PREPARING == (int)EMPTY_PREPARING && SR_ARRIVING == (int)EMPTY_ARRIVING, "one order");
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
		for (int window_ms = 10; window_ms <= 60000; window_ms *= 60) {
			world(3);
			for (uint64_t ms = 0; ms < 60000; ms += (uint64_t)window_ms) {
				pass(kinds[k].seen, (uint64_t)window_ms * MS / 50);
				if (kinds[k].clock >= 0)  /* 49 fiftieths */
					flip(1, kinds[k].clock);
				pass(kinds[k].seen, (uint64_t)window_ms * MS / 50 * 49);
				if (kinds[k].clock >= 0)
					flip(1, kinds[k].clock);
				look();
			}
			assert_share(kinds[k].is, kinds[k].clock >= 0 ? 0.98 : 1);
		}
}

/* Shares of one window of 10 s, in tenths: what each client did from when to when. */
static void test_overlap(void **state)
{
	static const struct {
		struct { int clock, from, to; } span[4];    /* by client; from == to: silent */
		double tokenizing, network;
	} cases[] = {
		{ { { SR_PREPARING, 0, 10 }, { SR_ARRIVING, 0, 10 } }, 1, 0 },
		{ { { SR_ARRIVING, 0, 10 }, { SR_ARRIVING, 0, 10 } }, 0, 1 },
		{ { { SR_PREPARING, 2, 5 } }, 0.3, 0 },
		{ { { SR_ARRIVING, 2, 5 } }, 0, 0.3 },
		{ { { SR_PREPARING, 0, 5 }, { SR_PREPARING, 0, 5 } }, 0.75, 0 },    /* by chance: 0.5 .. 1 */
		{ { { SR_PREPARING, 0, 5 }, { SR_ARRIVING, 0, 10 } }, 0.5, 0.5 },
		{ { { SR_PREPARING, 0, 5 }, { SR_ARRIVING, 0, 5 } }, 0.5, 0.25 },
		{ { { SR_PREPARING, 0, 2 }, { SR_ARRIVING, 0, 0 }, { SR_ARRIVING, 5, 9 } }, 0.2, 0.32 },
	};

	(void)state;
	for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
		world(4);
		for (int t = 0; t <= 10; t++) {
			for (int i = 0; i < 4; i++)
				if (cases[k].span[i].from != cases[k].span[i].to &&
				    (t == cases[k].span[i].from || t == cases[k].span[i].to))
					flip(i, cases[k].span[i].clock);
			if (t < 10)
				pass(EMPTY_SILENT, SECOND);
		}
		look();
		assert_share(EMPTY_TOKENIZING, cases[k].tokenizing);
		assert_share(EMPTY_NETWORK, cases[k].network);
		assert_share(EMPTY_SILENT, 1 - cases[k].tokenizing - cases[k].network);
	}
}

/* Only a part of a window was empty: that part is split as the window was. */
static void test_part(void **state)
{
	(void)state;
	world(1);
	flip(0, SR_PREPARING);
	pass(EMPTY_SERVED, 2 * MS);
	w.now += 6 * MS;                          /* another limit held */
	flip(0, SR_PREPARING);
	pass(EMPTY_SILENT, 2 * MS);
	look();
	assert_share(EMPTY_TOKENIZING, 0.8);
	assert_share(EMPTY_SERVED, 0.1);
	assert_share(EMPTY_SILENT, 0.1);
	assert_int_equal(w.c[0].believed[SR_PREPARING], 8 * MS);
}

/* The clocks: any number of starts and stops, read at any moment, lose at most the odd ns. */
static void test_clock(void **state)
{
	uint64_t word = 0, now = 999999999999, ran = 0;

	(void)state;
	srand(1);
	for (int i = 0; i < 100000; i++) {
		uint64_t ns = (uint64_t)rand() % 100000;

		if (word & 1)
			ran += ns;
		now += ns;
		assert_in_range(sr_doing_ns(word, now) + 100001 - ran, 1, 200002);
		word = sr_doing_flip(word, now);
		assert_int_equal(word & 1, !(i & 1));
	}
}

/* ---- lies -------------------------------------------------------------------------------- */

static uint64_t random64(void)
{
	return (uint64_t)rand() << 62 ^ (uint64_t)rand() << 31 ^ (uint64_t)rand();
}

/* Beside a client with true clocks: half of the time tokenizing, a quarter arriving. */
static void an_honest_second(int i)
{
	flip(i, SR_PREPARING);
	pass(EMPTY_SILENT, SECOND / 2);
	flip(i, SR_PREPARING);
	flip(i, SR_ARRIVING);
	pass(EMPTY_SILENT, SECOND / 4);
	flip(i, SR_ARRIVING);
	pass(EMPTY_SILENT, SECOND / 4);
}

static void test_liars(void **state)
{
	enum { RANDOM, BACKWARDS, TOO_FAST, ZERO_AGAIN, N_LIES };

	(void)state;
	srand(2);
	for (int lie = 0; lie < N_LIES; lie++) {
		world(2);
		for (int s = 0; s < 1000; s++) {
			for (int k = 0; k < 2; k++)
				w.c[0].word[k] = lie == RANDOM ? random64() :
					lie == BACKWARDS ? (w.c[0].word[k] - 2 - random64() % SECOND) & ~1ull :
					lie == TOO_FAST ? w.c[0].word[k] + 2 * SECOND + random64() % SECOND :
					s % 2 ? 0 : random64();
			an_honest_second(1);
			look();
		}
		/* All of it was ignored, and the other client counts as if it were alone. */
		assert_int_equal(w.c[0].believed[0] + w.c[0].believed[1], 0);
		assert_share(EMPTY_TOKENIZING, 0.5);
		assert_share(EMPTY_NETWORK, 0.25);
		assert_share(EMPTY_SILENT, 0.25);
	}
}

/* A plausible lie is believed: it turns silent time, and network time if it claims tokenizing, for as
 * long as the client is there. */
static void test_plausible_lie(void **state)
{
	(void)state;
	world(2);
	flip(0, SR_PREPARING);
	flip(0, SR_ARRIVING);                     /* both at once: our client library never does that */
	an_honest_second(1);
	look();
	assert_share(EMPTY_TOKENIZING, 1);
	assert_int_equal(w.c[1].believed[SR_PREPARING], SECOND / 2);
	assert_int_equal(w.c[1].believed[SR_ARRIVING], SECOND / 4);
	w.c[0].word[0] = w.c[0].word[1] = 0;      /* it is gone, and another connects */
	memset(&w.c[0].seen, 0, sizeof(w.c[0].seen));
	memset(w.out, 0, sizeof(w.out));
	w.given = 0;
	an_honest_second(1);
	look();
	assert_share(EMPTY_TOKENIZING, 0.5);
	assert_share(EMPTY_NETWORK, 0.25);
}

/* ---- when -------------------------------------------------------------------------------- */

static void test_due(void **state)
{
	(void)state;
	world(0);
	assert_false(empty_due(&w.e, w.now, 0));
	assert_false(empty_due(&w.e, w.now - 1, 0));          /* the turn's clock is older */
	assert_false(empty_due(&w.e, w.now + 10 * MS - 1, 0));
	assert_true(empty_due(&w.e, w.now + 10 * MS, 0));
	assert_false(empty_due(&w.e, w.now + 10 * MS, 1000)); /* more clients are read less often */
	assert_true(empty_due(&w.e, w.now + 110 * MS, 1000));
	assert_false(empty_pending(&w.e));
	pass(EMPTY_SERVED, 1);
	assert_true(empty_pending(&w.e));
	look();
	look();                                   /* a window of no length */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds), cmocka_unit_test(test_overlap), cmocka_unit_test(test_part),
		cmocka_unit_test(test_clock), cmocka_unit_test(test_liars),
		cmocka_unit_test(test_plausible_lie), cmocka_unit_test(test_due),
	};

	return cmocka_run_group_tests_name("empty", tests, NULL, NULL);
}
