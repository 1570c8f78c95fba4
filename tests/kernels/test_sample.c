/* LINK: kernels/cpu/plain.c kernels/cpu/types.c kernels/cpu/types_iq.c kernels/cpu/kvblock.c */
/* test_sample.c - from logits to tokens: each setting against results by hand, their order, the edges of
 * the cuts, and draws against their distribution. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "kernels/cpu/sample.c"

#define BIG 5003

static float work[BIG + 3], group[BIG / SAMPLE_GROUP + 1];
static int32_t ids[BIG];
static uint32_t count[BIG];
static double chunk[BIG / SAMPLE_CHUNK + 1];
static struct sample_scratch scratch = { work, ids, count, chunk, group };
static uint32_t words[256];
static int32_t history[64];
static struct slot slot;
static struct sample_query q;
static struct sr_result result;
static struct sr_top top[SR_TOP_MAX];

/* A query over n logits with everything off. */
static void fresh(const float *logits, int32_t n)
{
	slot = (struct slot){ .s = { .top_p = 1, .repetition = 1 }, .word = words, .history = history };
	q = (struct sample_query){ .k = &kern_plain, .logits = logits, .vocab = n, .slot = &slot, .scored = -1 };
}

static void list(enum sr_list kind, int n, const void *from)
{
	slot.word[slot.n_words++] = (uint32_t)kind;
	slot.word[slot.n_words++] = (uint32_t)n;
	memcpy(slot.word + slot.n_words, from, (size_t)n * 4);
	slot.n_words += n;
}

static void said(int n, int n_prompt, const int32_t *what)
{
	memcpy(history, what, (size_t)n * 4);
	slot.n_history = n;
	slot.n_prompt = n_prompt;
	slot.counted = true;
}

static int32_t one(void)
{
	sample(&q, &scratch, &result, top);
	for (int i = 0; i < q.vocab; i++)
		assert_int_equal(count[i], 0);
	return result.id;
}

/* log(1..8): probabilities are i/36. */
static const float logs[8] = { 0, 0.693147181f, 1.098612289f, 1.386294361f, 1.609437912f, 1.791759469f,
                               1.945910149f, 2.079441542f };

static void test_logprobs(void **state)
{
	const float ties[6] = { 1, 3, 2, 3, 2, -INFINITY };

	(void)state;
	fresh(logs, 8);
	q.n_top = 3;
	q.rank = true;
	assert_int_equal(one(), 7);
	assert_float_equal(result.logprob, log(8 / 36.0), 1e-6);
	assert_int_equal(result.rank, 1);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(top[i].id, 7 - i);
		assert_float_equal(top[i].logprob, log((8 - i) / 36.0), 1e-6);
	}
	q.scored = 2; /* of a prompt */
	assert_int_equal(one(), 2);
	assert_float_equal(result.logprob, log(3 / 36.0), 1e-6);
	assert_int_equal(result.rank, 6);

	fresh(ties, 6);
	q.n_top = 6;
	q.rank = true;
	assert_int_equal(one(), 1);
	for (int i = 0; i < 6; i++) /* among equals the lower id */
		assert_int_equal(top[i].id, ((int[]){ 1, 3, 2, 4, 0, 5 })[i]);
	assert_float_equal(top[5].logprob, LOWEST, 0);
	q.scored = 4;
	one();
	assert_int_equal(result.rank, 4);
}

/* Reported log-probabilities never depend on the settings for drawing. */
static void test_raw(void **state)
{
	const struct { int32_t id; float bias; } bias = { 0, 50 };

	(void)state;
	fresh(logs, 8);
	slot.s.temperature = 0.1f;
	slot.s.top_k = 1;
	list(SR_LIST_BIAS, 2, &bias);
	assert_int_equal(one(), 0);
	assert_float_equal(result.logprob, log(1 / 36.0), 1e-6);
}

/* Greedy choices among log(1..8) with lists of every kind. */
static void test_lists(void **state)
{
	static const struct {
		const char *what;
		int32_t kind, n;
		uint32_t word[8];
		int32_t answer[4], n_answer, want;
	} cases[] = {
		{ "allowed", SR_LIST_ALLOW, 3, { 1, 4, 2 }, { 0 }, 0, 4 },
		{ "allowed, beyond the vocabulary", SR_LIST_ALLOW, 2, { 99, 3 }, { 0 }, 0, 3 },
		{ "one id banned", SR_LIST_BAD, 4, { 1, 7, 1, 6 }, { 0 }, 0, 5 },
		{ "a sequence, completed", SR_LIST_BAD, 4, { 3, 1, 2, 7 }, { 5, 1, 2 }, 3, 6 },
		{ "a sequence, not now", SR_LIST_BAD, 4, { 3, 1, 2, 7 }, { 1, 2, 5 }, 3, 7 },
		{ "a sequence longer than the answer", SR_LIST_BAD, 4, { 3, 1, 2, 7 }, { 2 }, 1, 7 },
		{ "a length that lies", SR_LIST_BAD, 4, { 9, 1, 2, 7 }, { 1, 2 }, 2, 7 },
		{ "bias up", SR_LIST_BIAS, 2, { 0, 0x40400000 /* 3 */ }, { 0 }, 0, 0 },
		{ "bias down", SR_LIST_BIAS, 2, { 7, 0xc0400000 /* -3 */ }, { 0 }, 0, 6 },
		{ "stop ids too early", SR_LIST_STOP, 2, { 7, 6 }, { 0 }, 0, 5 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		fresh(logs, 8);
		q.position = 9;
		slot.s.min_position = 10;
		said(cases[i].n_answer, 0, cases[i].answer);
		list((enum sr_list)cases[i].kind, cases[i].n, cases[i].word);
		if (one() != cases[i].want)
			fail_msg("%s: %d", cases[i].what, result.id);
	}
	/* the last case at the position where stop ids are allowed again */
	q.position = 10;
	assert_int_equal(one(), 7);
	/* a prompt does not count for bad words; a second list adds to the first */
	fresh(logs, 8);
	said(2, 2, (int32_t[]){ 1, 2 });
	list(SR_LIST_BAD, 4, (uint32_t[]){ 3, 1, 2, 7 });
	assert_int_equal(one(), 7);
	list(SR_LIST_BAD, 2, (uint32_t[]){ 1, 7 });
	assert_int_equal(one(), 6);
	/* nothing left: the most likely of all, and no crash */
	fresh(logs, 8);
	list(SR_LIST_ALLOW, 1, (uint32_t[]){ 3 });
	list(SR_LIST_BAD, 2, (uint32_t[]){ 1, 3 });
	assert_int_equal(one(), 7);
	slot.s.temperature = 1;
	assert_int_equal(one(), 7);
}

/* Two tokens, 0 with logit a and 1 with 1.0: after penalties token 0 is at `want`.  Found by
 * bisection over a bias on token 1 of where the greedy choice turns. */
static float penalized_logit(void)
{
	float lo = -50, hi = 50;
	int n_words = slot.n_words;

	for (int i = 0; i < 60; i++) {
		struct { int32_t id; float bias; } b = { 1, (lo + hi) / 2 };

		slot.n_words = n_words;
		list(SR_LIST_BIAS, 2, &b);
		if (one() == 1)
			hi = b.bias;
		else
			lo = b.bias;
	}
	slot.n_words = n_words;
	return hi;
}

static void test_penalties(void **state)
{
	static const struct {
		float logit, repetition, frequency, presence, bias;
		int n, n_prompt;
		int32_t ids[4];
		float want;
	} cases[] = {
		{ 3, 1, 0, 0, 0, 2, 1, { 0, 0 }, 3 },
		{ 3, 2, 0, 0, 0, 1, 1, { 0 }, 1.5f },              /* repetition counts the prompt */
		{ -3, 2, 0, 0, 0, 1, 1, { 0 }, -6 },               /* and multiplies what is negative */
		{ 3, 2, 0, 0, 0, 4, 2, { 0, 0, 0, 0 }, 1.5f },     /* once, however often */
		{ 3, 1, 0.5f, 0, 0, 4, 1, { 0, 0, 0, 0 }, 1.5f },  /* frequency: 3 times in the answer */
		{ 3, 1, 0, 0.5f, 0, 4, 1, { 0, 0, 0, 0 }, 2.5f },  /* presence: it is there */
		{ 3, 1, 0.5f, 0.5f, 0, 1, 1, { 0 }, 3 },           /* neither minds the prompt */
		{ 3, 2, 0.5f, 0.25f, 0, 3, 1, { 0, 0, 0 }, 0.25f },/* all: 3/2 - 2 * 0.5 - 0.25 */
		{ -1, 2, 0, 0, 3, 1, 1, { 0 }, 1 },                /* bias first: (-1 + 3) / 2, not -2 + 3 */
		{ 3, 1, -0.5f, 0, 0, 1, 0, { 0 }, 3.5f },          /* negative ones reward */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const float logits[3] = { cases[i].logit, 0, -40 };
		struct { int32_t id; float bias; } b = { 0, cases[i].bias };
		float got;

		fresh(logits, 3);
		slot.s.repetition = cases[i].repetition;
		slot.s.frequency = cases[i].frequency;
		slot.s.presence = cases[i].presence;
		said(cases[i].n, cases[i].n_prompt, cases[i].ids);
		list(SR_LIST_BIAS, 2, &b);
		got = penalized_logit();
		if (fabsf(got - cases[i].want) > 1e-4f)
			fail_msg("case %zu: %g, not %g", i, (double)got, (double)cases[i].want);
	}
}

/* Chi-square of n draws at positions 0.. against weights; the seeds are fixed, so is the answer. */
static void check_draws(const double *weight, int32_t n_ids, double limit)
{
	enum { DRAWS = 20000 };
	double total = 0, chi = 0;
	int seen[8] = { 0 };

	for (int i = 0; i < n_ids; i++)
		total += weight[i];
	for (q.position = 0; q.position < DRAWS; q.position++)
		seen[one()]++;
	for (int i = 0; i < n_ids; i++) {
		double want = DRAWS * weight[i] / total;

		if (want > 0)
			chi += (seen[i] - want) * (seen[i] - want) / want;
		else
			assert_int_equal(seen[i], 0);
	}
	assert_true(chi < limit);
}

static void test_draws(void **state)
{
	static const struct {
		const char *what;
		float temperature, top_p, min_p;
		int32_t top_k;
		double weight[8];
	} cases[] = { /* weights before: 1..8 of 36 */
		{ "all", 1, 1, 0, 0, { 1, 2, 3, 4, 5, 6, 7, 8 } },
		{ "hot", 2, 1, 0, 0, { 1, 1.41421, 1.73205, 2, 2.23607, 2.44949, 2.64575, 2.82843 } },
		{ "cold", 0.5f, 1, 0, 0, { 1, 4, 9, 16, 25, 36, 49, 64 } },
		{ "top_k 3", 1, 1, 0, 3, { 0, 0, 0, 0, 0, 6, 7, 8 } },
		{ "top_k 1", 1, 1, 0, 1, { 0, 0, 0, 0, 0, 0, 0, 1 } },
		{ "top_k 100", 1, 1, 0, 100, { 1, 2, 3, 4, 5, 6, 7, 8 } },
		{ "top_p to 15/36", 1, 14.9f / 36, 0, 0, { 0, 0, 0, 0, 0, 0, 7, 8 } },
		{ "top_p past 15/36", 1, 15.1f / 36, 0, 0, { 0, 0, 0, 0, 0, 6, 7, 8 } },
		{ "top_p tiny", 1, 1e-6f, 0, 0, { 0, 0, 0, 0, 0, 0, 0, 1 } },
		{ "min_p 0.6", 1, 1, 0.6f, 0, { 0, 0, 0, 0, 5, 6, 7, 8 } },
		{ "min_p 1", 1, 1, 1, 0, { 0, 0, 0, 0, 0, 0, 0, 1 } },
		/* min_p sees the temperature: (5/8)^2 < 0.6 < (7/8)^2, (6/8)^2 = 0.5625 */
		{ "min_p after temperature", 0.5f, 1, 0.6f, 0, { 0, 0, 0, 0, 0, 0, 49, 64 } },
		/* top_p is of what top_k left: 8/15 > 0.5, though 8/36 is not */
		{ "top_k, then top_p", 1, 0.5f, 0, 2, { 0, 0, 0, 0, 0, 0, 0, 1 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		fresh(logs, 8);
		slot.s.seed = 1000 + i;
		slot.s.temperature = cases[i].temperature;
		slot.s.top_p = cases[i].top_p;
		slot.s.min_p = cases[i].min_p;
		slot.s.top_k = cases[i].top_k;
		check_draws(cases[i].weight, 8, 24.3); /* 7 degrees of freedom: 0.1 % */
	}
}

static void test_seeds(void **state)
{
	int same = 0;

	(void)state;
	fresh(logs, 8);
	slot.s.temperature = 1;
	for (int i = 0; i < 1000; i++) {
		int32_t first;

		slot.s.seed = 7;
		q.position = i;
		first = one();
		assert_int_equal(one(), first);
		slot.s.seed = 8;
		same += one() == first;
	}
	assert_in_range(same, 80, 250); /* 204/1296 of a thousand, if independent */
}

static int by_p(const void *a, const void *b)
{
	const float *x = a, *y = b;

	return x[0] > y[0] ? -1 : x[0] < y[0] ? 1 : x[1] > y[1] ? 1 : -1; /* equal: the lower id */
}

/* The cuts against a plain sort, over logits with and without many equals. */
static void test_cuts(void **state)
{
	static const struct { int32_t k; double p; } cuts[] = {
		{ 1, 1 }, { 2, 1 }, { 50, 1 }, { 77, 1 }, { 200, 1 }, { 5000, 1 },
		{ 0, 0.01 }, { 0, 0.5 }, { 0, 0.9 }, { 0, 0.999 }, { 50, 0.8 }, { 1000, 0.95 },
	};
	static float logits[BIG], sorted[BIG][2];

	(void)state;
	for (int shape = 0; shape < 4; shape++) {
		for (size_t c = 0; c < sizeof(cuts) / sizeof(*cuts); c++) {
			struct left left = { .p = work, .n = BIG };
			int32_t n = BIG, kept;
			double total = 0, above = 0;

			for (int32_t i = 0; i < BIG; i++) {
				double u = sample_uniform(42 + (uint64_t)shape, i);

				logits[i] = (float)(shape == 0 ? 12 * u : shape == 1 ? floor(8 * u)
				                  : shape == 2 ? 0 : 30 * u * u * u);
				work[i] = sorted[i][0] = expf(logits[i] - (shape == 0 ? 12 : shape == 1 ? 7 : shape == 2 ? 0 : 30));
				sorted[i][1] = (float)i;
			}
			qsort(sorted, BIG, sizeof(*sorted), by_p);
			if (cuts[c].k) {
				n = cuts[c].k;
				keep_top_k(&left, &scratch, cuts[c].k);
			}
			for (int32_t i = 0; i < n; i++)
				total += sorted[i][0];
			kept = n;
			if (cuts[c].p < 1) {
				for (kept = 0; kept < n && above < cuts[c].p * total; kept++)
					above += sorted[kept][0];
				keep_top_p(&left, &scratch, sum_chunks(&left, chunk), (float)cuts[c].p);
			}
			/* one more or less if the sum ends within rounding of the target */
			assert_in_range(left.n, kept - (cuts[c].p < 1), kept + (cuts[c].p < 1));
			for (int32_t i = 0; i < left.n; i++) {
				int32_t at = left.id ? left.id[i] : i;

				if (i)
					assert_true(at > (left.id ? left.id[i - 1] : i - 1));
				assert_true(expf(logits[at] - logits[(int)sorted[0][1]]) >= sorted[left.n - 1][0]);
			}
		}
	}
}

static void test_exp(void **state)
{
	(void)state;
	for (float x = 0; x > -86.9f; x -= 0.0137f) {
		f4 got = exp_down(f4_all(x));
		double want = exp((double)x);

		for (int i = 0; i < 4; i++)
			assert_true(fabs(got[i] - want) <= 4e-7 * want);
	}
	assert_float_equal(exp_down(f4_all(-INFINITY))[0], 0, 0);
	assert_float_equal(exp_down(f4_all(-1e30f))[2], 0, 0);
	assert_float_equal(exp_down(f4_all(0))[1], 1, 0);
}

/* A penalty or a bias that leaves the floats lets nothing be drawn that is not allowed. */
static void test_out_of_range(void **state)
{
	static const float x[8] = { 3, 1, 2, 4, 5, 10, 2, 9 };
	static const int32_t allowed[] = { 5, 7 }, answer[] = { 5 };
	static const struct { int32_t id; float add; } biases[] = { { 7, 3e38f }, { 7, 3e38f } };

	(void)state;
	for (int setting = 0; setting < 8; setting++) {
		fresh(x, 8);
		list(SR_LIST_ALLOW, 2, allowed);
		if (setting % 2)
			list(SR_LIST_BIAS, 4, biases);
		said(1, 0, answer);
		slot.s.repetition = 1e-38f;
		slot.s.temperature = 0.7f;
		slot.s.top_k = setting / 2 == 1 ? 3 : 0;
		slot.s.top_p = setting / 2 == 2 ? 0.5f : 1;
		slot.s.min_p = setting / 2 == 3 ? 0.5f : 0;
		one();
		assert_true(result.id == 5 || result.id == 7);
	}
}

/* Models that make NaN and infinities are broken; we are not. */
static void test_not_finite(void **state)
{
	static const float bad[][8] = {
		{ NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN },
		{ NAN, 1, 2, NAN, 3, -INFINITY, 0, 1 },
		{ 1, INFINITY, 2, INFINITY, 3, NAN, 0, 1 },
		{ -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY },
		{ 3e38f, -3e38f, 3e38f, 0, 0, 0, 0, 0 },
	};
	static const int32_t greedy[] = { 0, 4, 1, 0, 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		for (int setting = 0; setting < 6; setting++) {
			fresh(bad[i], 8);
			q.n_top = 8;
			q.rank = true;
			slot.s.temperature = setting ? (setting == 5 ? 1e-4f : 0.7f) : 0;
			slot.s.top_k = setting == 2 ? 3 : 0;
			slot.s.top_p = setting == 3 ? 0.5f : 1;
			slot.s.min_p = setting == 4 ? 0.5f : 0;
			assert_in_range(one(), 0, 7);
			if (!setting)
				assert_int_equal(result.id, greedy[i]);
			assert_true(isfinite(result.logprob) && result.logprob <= 0);
			assert_in_range(result.rank, 1, 8);
			for (int j = 0; j < 8; j++) {
				assert_in_range(top[j].id, 0, 7);
				assert_true(isfinite(top[j].logprob) && top[j].logprob <= 0);
			}
		}
	}
}

/* ---- guided rows ------------------------------------------------------------------------------- */

static float noise[BIG], masked[BIG], alone[BIG];
static uint32_t mask[BIG / 32 + 1];
static int32_t allowed[BIG];

static int32_t one_masked(const float *logits, int32_t n)
{
	memcpy(masked, logits, (size_t)n * sizeof(float));
	q.logits = masked;
	q.vocab = n;
	sample_masked(&q, masked, mask, &scratch, &result, top);
	for (int i = 0; i < n; i++)
		assert_int_equal(count[i], 0);
	return result.id;
}

/* Allow about 1 id in `every`; returns how many. */
static int32_t allow_some(int32_t n, uint32_t every, uint32_t seed)
{
	int32_t m = 0;

	memset(mask, 0, sizeof(mask));
	for (int32_t i = 0; i < n; i++)
		if ((uint32_t)(mix(seed + (uint64_t)i) >> 40) % every == 0) {
			mask[i / 32] |= 1u << i % 32;
			alone[m] = noise[i];
			allowed[m++] = i;
		}
	return m;
}

/* A guided row draws what a row would draw whose vocabulary is only the ids that its mask leaves, with the
 * same log-probability; of few ids and of many. */
static void test_masks(void **state)
{
	static const struct { const char *what; struct sr_sampling s; int n_top; } cases[] = {
		{ "greedy", { .top_p = 1, .repetition = 1 }, 0 },
		{ "greedy, alternatives", { .top_p = 1, .repetition = 1 }, 5 },
		{ "random", { .temperature = 1.5f, .top_p = 1, .repetition = 1, .seed = 3 }, 0 },
		{ "random, alternatives", { .temperature = 1.5f, .top_p = 1, .repetition = 1, .seed = 3 }, 20 },
		{ "top_k", { .temperature = 1, .top_p = 1, .top_k = 7, .repetition = 1, .seed = 4 }, 0 },
		{ "top_p", { .temperature = 1, .top_p = 0.7f, .repetition = 1, .seed = 5 }, 0 },
		{ "min_p", { .temperature = 2, .top_p = 1, .min_p = 0.1f, .repetition = 1, .seed = 6 }, 0 },
	};
	int few = 0, many = 0;

	(void)state;
	for (int32_t i = 0; i < BIG; i++)
		noise[i] = (float)(sample_uniform(99, i) * 8 - 4);
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++)
		for (uint32_t round = 0; round < 60; round++) {
			int32_t n = round % 3 ? BIG : 999, want, excluded = 0;
			int32_t m = allow_some(n, round < 3 ? 1 : 1 + round * 3, round);
			struct sr_result r;

			fresh(alone, m);
			slot.s = cases[c].s;
			q.position = (int32_t)round;
			q.n_top = cases[c].n_top < m ? cases[c].n_top : m;
			q.rank = q.n_top > 0;
			want = allowed[one()];
			r = result;
			q.n_top = cases[c].n_top;
			if (one_masked(noise, n) != want)
				fail_msg("%s, %d of %d ids: %d instead of %d", cases[c].what, m, n, result.id, want);
			assert_float_equal(result.logprob, r.logprob, 1e-5);
			assert_int_equal(result.rank, r.rank);
			for (int k = m; k < q.n_top; k++) { /* excluded ids, the lowest first */
				while (mask[excluded / 32] >> excluded % 32 & 1)
					excluded++;
				assert_int_equal(top[k].id, excluded++);
				assert_float_equal(top[k].logprob, LOWEST, 0);
			}
			few += m <= FEW;
			many += m > FEW;
		}
	assert_true(few > 50 && many > 30);
}

/* Lists count as ever; where mask and lists leave nothing, nothing is drawn.  But a mask of stop ids alone
 * wins over min_position. */
static void test_masks_and_lists(void **state)
{
	static const struct {
		const char *what;
		uint32_t mask;
		int32_t kind, n;
		uint32_t word[4];
		int32_t want;
	} cases[] = {
		{ "mask alone", 0x2c, SR_LIST_BAD, 0, { 0 }, 5 },
		{ "nothing", 0, SR_LIST_BAD, 0, { 0 }, SR_NO_ID },
		{ "banned", 0x2c, SR_LIST_BAD, 2, { 1, 5 }, 3 },
		{ "all banned", 0x28, SR_LIST_BAD, 4, { 1, 5, 1, 3 }, SR_NO_ID },
		{ "allowed", 0x2c, SR_LIST_ALLOW, 2, { 2, 7 }, 2 },
		{ "others are allowed", 0x2c, SR_LIST_ALLOW, 2, { 1, 7 }, SR_NO_ID },
		{ "bias", 0x2c, SR_LIST_BIAS, 2, { 2, 0x40400000 /* 3 */ }, 2 },
		{ "bias of an excluded id", 0x2c, SR_LIST_BIAS, 2, { 7, 0x40400000 }, 5 },
		{ "a stop id, early", 0x2c, SR_LIST_STOP, 1, { 5 }, 3 },
		{ "only stop ids, early", 0x2c, SR_LIST_STOP, 3, { 5, 3, 2 }, 5 },
		{ "of them a banned one", 0x08, SR_LIST_STOP, 2, { 5, 3 }, 3 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (int hot = 0; hot < 2; hot++)
			for (int32_t n = 8; n <= 8 + FEW; n += FEW) { /* with few, and by a pass over all */
				fresh(logs, 8);
				memcpy(noise, logs, sizeof(logs));
				for (int32_t k = 8; k < n; k++)
					noise[k] = 9;
				slot.s.temperature = hot ? 0.01f : 0;
				slot.s.min_position = 10;
				q.position = 9;
				if (cases[i].n)
					list((enum sr_list)cases[i].kind, cases[i].n, cases[i].word);
				memset(mask, 0, sizeof(mask));
				mask[0] = cases[i].mask;
				if (one_masked(noise, n) != cases[i].want)
					fail_msg("%s, of %d: %d", cases[i].what, n, result.id);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_logprobs),
		cmocka_unit_test(test_raw),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_penalties),
		cmocka_unit_test(test_draws),
		cmocka_unit_test(test_seeds),
		cmocka_unit_test(test_cuts),
		cmocka_unit_test(test_exp),
		cmocka_unit_test(test_out_of_range),
		cmocka_unit_test(test_not_finite),
		cmocka_unit_test(test_masks),
		cmocka_unit_test(test_masks_and_lists),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
