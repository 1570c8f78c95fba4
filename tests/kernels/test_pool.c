/* LINK: @cpu kernels/backend.c @null tests/rig/drive.c tests/rig/tiny.c */
/* test_pool.c - pooled rows on the CPU: a vector is what its kind says, by the model's own head, and has the same
 * bits beside any others, in any chunks, on any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define LONG 700                   /* more than a slice */

static struct tiny *made;
#define tiny (*made)
static int32_t text[LONG];

static struct drive opened(int threads)
{
	struct sr_limits lim = drive_limits();
	struct drive d;

	lim.threads = threads;
	lim.vectors = 8;
	lim.width = tiny.m.d_model;
	if (drive_open(&d, sr_cpu_ops(), &tiny.m, &tiny.src, &lim))
		fail_msg("%s", d.err);
	return d;
}

static void begin(struct drive *d, int slot, const struct sr_pooling *how, int first_block, int n_blocks)
{
	drive_begin(d, slot, NULL);
	drive_pool(d, slot, how);
	drive_range(d, slot, first_block, n_blocks);
}

/* The vector of n ids in slot 0, in chunks of `chunk`, alone or beside a decoding sequence. */
static void vector_of(struct drive *d, struct sr_pooling how, const int32_t *ids, int n, int chunk, bool company,
                      float *out)
{
	int len = how.width ? (int)how.width : tiny.m.d_model;

	begin(d, 0, &how, 0, (n + 15) / 16);
	if (company) {
		drive_begin(d, 1, NULL);
		drive_range(d, 1, 50, 4);
		drive_row(d, 1, 0, text + 7, 20, 0, 1);
		begin(d, 2, &(struct sr_pooling){ SR_POOL_MEAN, 0, 0 }, 54, 4);
		drive_pool_row(d, 2, SR_POOL_MEAN, 0, text + 3, 40, 7);
	}
	for (int at = 0; at < n; at += chunk) {
		int here = n - at < chunk ? n - at : chunk;

		drive_pool_row(d, 0, (enum sr_pool)how.kind, at, ids + at, here, at + here == n ? 3 : -1);
		if (company && at)
			drive_row(d, 1, 20 + at / chunk - 1, NULL, 1, 0, 1);
		drive_step(d);
	}
	memcpy(out, d->batch->vector + 3 * (size_t)d->lim.width, (size_t)len * sizeof(*out));
}

/* Whatever is beside it, however it is cut, on one thread or three. */
static void same_bits(void **state)
{
	static const int lengths[] = { 1, 5, 16, 33, LONG };
	static const int chunks[] = { 1024, 512, 48, 16 };
	float want[256], got[256];

	(void)state;
	for (uint32_t kind = SR_POOL_LAST; kind <= SR_POOL_FIRST; kind++)
		for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
			struct sr_pooling how = { kind, 0, i & 1 };
			struct drive one = opened(1), three = opened(3);

			vector_of(&one, how, text, lengths[i], 1024, false, want);
			for (size_t k = 0; k < sizeof(chunks) / sizeof(*chunks); k++)
				for (int company = 0; company < 2; company++) {
					vector_of(&one, how, text, lengths[i], chunks[k], company, got);
					assert_memory_equal(got, want, (size_t)tiny.m.d_model * sizeof(*got));
					vector_of(&three, how, text, lengths[i], chunks[k], company, got);
					assert_memory_equal(got, want, (size_t)tiny.m.d_model * sizeof(*got));
				}
			drive_close(&one);
			drive_close(&three);
		}
}

/* The head, times the vector, gives the logits: of the last token, and of each token of a mean. */
static void vectors_and_logits(void **state)
{
	enum { N = 40 };
	static const int32_t allow[] = { 3, 0, 11, 3 };
	struct drive d = opened(2);
	float *head = tiny_dense(&tiny, tiny.m.head.type ? &tiny.m.head : &tiny.m.embed), v[256], sum[256] = { 0 };
	int D = tiny.m.d_model;
	double by_head;

	(void)state;
	for (int n = 1; n <= N; n++) {
		vector_of(&d, (struct sr_pooling){ SR_POOL_LAST, 0, 0 }, text, n, 1024, false, v);
		for (int i = 0; i < D; i++)
			sum[i] += v[i];
		if (n == 1) {
			float first[256];

			vector_of(&d, (struct sr_pooling){ SR_POOL_FIRST, 0, 0 }, text, N, 16, false, first);
			for (int i = 0; i < D; i++)
				assert_true(fabsf(first[i] - v[i]) < 1e-5f);
		}
	}
	begin(&d, 4, &(struct sr_pooling){ SR_POOL_LOGITS, 0, 0 }, 0, 3);
	drive_list(&d, 4, SR_LIST_ALLOW, allow, 4);
	drive_pool_row(&d, 4, SR_POOL_LOGITS, 0, text, N, 5);
	drive_step(&d);
	for (int k = 0; k < 4; k++) {
		by_head = 0;
		for (int i = 0; i < D; i++)
			by_head += (double)head[allow[k] * D + i] * v[i];
		assert_true(fabs(by_head - d.batch->vector[5 * d.lim.width + k]) < 0.02 * (1 + fabs(by_head)));
	}
	assert_true(d.batch->vector[5 * d.lim.width] == d.batch->vector[5 * d.lim.width + 3]);
	vector_of(&d, (struct sr_pooling){ SR_POOL_MEAN, 0, 0 }, text, N, 16, false, v);
	for (int i = 0; i < D; i++)
		assert_true(fabsf(v[i] - sum[i] / N) < 2e-3f * (1 + fabsf(v[i]))); /* keys are read back from bf16 */
	free(head);
	drive_close(&d);
}

/* Cut first, then to length 1. */
static void cut_and_unit(void **state)
{
	struct drive d = opened(1);
	float all[256], cut[256];
	double sum = 0;

	(void)state;
	vector_of(&d, (struct sr_pooling){ SR_POOL_LAST, 0, 0 }, text, 30, 1024, false, all);
	vector_of(&d, (struct sr_pooling){ SR_POOL_LAST, 5, 0 }, text, 30, 1024, false, cut);
	assert_memory_equal(all, cut, 5 * sizeof(*all));
	vector_of(&d, (struct sr_pooling){ SR_POOL_LAST, 5, 1 }, text, 30, 1024, false, cut);
	for (int i = 0; i < 5; i++)
		sum += (double)all[i] * all[i];
	for (int i = 0; i < 5; i++)
		assert_true(fabs(cut[i] - all[i] / sqrt(sum)) < 1e-6);
	drive_close(&d);
}

static int make(void **state)
{
	const struct sr_model shape = tiny_shape();

	(void)state;
	made = tiny_create(&shape, SR_F32, TINY_UNTIED, 5);
	for (int i = 0; i < LONG; i++)
		text[i] = i * 37 % tiny.m.n_vocab;
	return 0;
}

static int unmake(void **state)
{
	(void)state;
	tiny_destroy(made);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_bits), cmocka_unit_test(vectors_and_logits), cmocka_unit_test(cut_and_unit),
	};

	return cmocka_run_group_tests(tests, make, unmake);
}
