/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_gpus.cc - what is refused before a batch is: a GPU that is too old, a model or setting that the back end
 * does not have; what a plan counts; and each CUDA call failing in its turn. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <fcntl.h>
#include <unistd.h>

#include "tests/cuda/one_step.h"

static struct tiny *model(void)
{
	struct sr_model shape = tiny_shape();

	return tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
}

static void test_too_old(void **)
{
	static const char say[] = "GPU 0 has compute capability 7.5; 8.0 (Ampere) or later is needed; --device cpu goes on "
		"without it";
	struct sr_limits lim = drive_limits();
	struct tiny *t = model();
	struct sr_need need;
	struct drive d = {};
	char err[300] = "";

	emu_capability = 75;
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_string_equal(err, say);
	assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), -ENOTSUP);
	assert_string_equal(d.err, say);
	emu_capability = 80;
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	tiny_destroy(t);
}

static void test_plan(void **)
{
	static const struct { const char *say; int H, G, E, D, block, kv, world; } refused[] = {
		{ "multiples of 8", 4, 2, 16, 60, 16, SR_KV_BF16, 1 },
		{ "a multiple of the second", 4, 3, 16, 64, 16, SR_KV_BF16, 1 },
		{ "multiples of 16", 4, 2, 40, 64, 16, SR_KV_BF16, 1 },
		{ "values of up to 512", 4, 2, 528, 64, 16, SR_KV_BF16, 1 },
		{ "bfloat16 (auto) only", 4, 2, 48, 64, 16, SR_KV_F8, 1 },
		{ "--block-size 32", 4, 2, 16, 64, 32, SR_KV_BF16, 1 },
		{ "--kv-cache-dtype", 4, 2, 16, 64, 16, SR_KV_I8, 1 },
		{ "3 ranks are too many", 4, 2, 16, 64, 16, SR_KV_BF16, 3 },
	};
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
	struct sr_limits lim = limits();
	struct sr_need need;
	struct drive d;
	char err[512] = "";

	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	assert_int_equal(need.per_block, 2 * 2 * 2 * 16 * 16 * 2);
	assert_true(need.avail < need.total);
	lim.kv_type = SR_KV_F8;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	assert_int_equal(need.per_block, 2 * 2 * 2 * 16 * 16);
	lim.kv_type = SR_KV_BF16;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	emu_taken = 0;
	assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), 0);
	/* open took only planned bytes */
	assert_true((int64_t)emu_taken <= need.weights + need.scratch + need.slots + need.pinned +
		need.per_block * (lim.n_blocks + 1 + lim.n_host_blocks));
	drive_close(&d);

	emu_devices = 0;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), -ENODEV);
	assert_non_null(strstr(err, "--device cpu"));
	emu_devices = 1;
	emu_fail(1, cudaErrorInsufficientDriver);
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), -ENODEV);
	for (const auto &r : refused) {
		struct sr_model m = t->m;

		m.kind[0].n_heads = r.H;
		m.kind[0].n_kv_heads = r.G;
		m.kind[0].head_dim = r.E;
		m.d_model = r.D;
		lim.block_tokens = r.block;
		lim.kv_type = r.kv;
		lim.world = r.world;
		assert_int_equal(plan(&m, &lim, &need, err, sizeof(err)), -ENOTSUP);
		if (!strstr(err, r.say))
			fail_msg("\"%s\" does not say \"%s\"", err, r.say);
	}
	lim = limits();
	lim.world = 2;
	lim.rank = 1;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), -ENODEV);
	assert_non_null(strstr(err, "rank 1 needs a GPU of its own, and there are 1"));
	lim.drafts = 4;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "--speculative-config"));
	lim.drafts = 0;
	lim.vectors = 1;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "--runner pooling"));
	lim = limits();
	shape = t->m;
	shape.n_kinds = 2;
	shape.kind[1] = shape.kind[0];
	shape.kind[1].n_heads = 5;
	assert_int_equal(plan(&shape, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "5 query heads, 2 KV heads"));
	t->m.layer[1].o.type = SR_Q2_K;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "tensor o"));
	t->m.layer[1].o.type = SR_BF16;
	t->m.layer[1].o.data.bytes--;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), -EINVAL);
	assert_null(sr_backend_get(SR_BACKEND_VERSION + 1));
	tiny_destroy(t);
}

/* Open, a prompt, two steps, close.  0, or the error; a failure has a sentence and a clean end. */
static int try_all(struct tiny *t, const struct sr_limits *lim, char *why, size_t size)
{
	struct drive d;
	int32_t ids[20] = { 1, 2, 3 };
	int e = drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, lim);

	snprintf(why, size, "%s", d.err);
	t->n_done = 0;
	if (e)
		return e;
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 4);
	drive_row(&d, 0, 0, ids, 20, 0, 1);
	d.batch->copy[d.batch->n_copies++] = (struct sr_copy){ 9, 0, 1 };
	for (int i = 0; i < 2 && e >= 0; i++) {
		e = launch(d.b, 0);
		if (!e)
			e = wait_for(d.b, 0);
		fill_step(d.batch, 0, 20 + i, SR_LAST);
	}
	snprintf(why, size, "%s", d.b->d.fault.why);
	if (e < 0) {
		assert_int_equal(launch(d.b, 1), -EIO); /* and so is everything after it */
		assert_int_equal(poll_batch(d.b, 1), -EIO);
	}
	drive_close(&d);
	return e < 0 ? e : 0;
}

/* Without the line that each says on the error stream. */
static int quietly(struct tiny *t, const struct sr_limits *lim, char *why, size_t size)
{
	int keep = dup(2), null = open("/dev/null", O_WRONLY), e;

	dup2(null, 2);
	e = try_all(t, lim, why, size);
	dup2(keep, 2);
	close(keep);
	close(null);
	return e;
}

/* Each CUDA call in its turn fails, with an error that passes and with one that stays. */
static void test_errors(void **)
{
	static const cudaError_t errors[] = { cudaErrorMemoryAllocation, cudaErrorIllegalAddress };
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits();
	struct tiny *t;
	uint64_t calls, before = emu_calls;
	char why[512];
	int failed = 0;

	shape.n_layers = 1;
	shape.n_vocab = 40;
	lim.worked = 0;
	lim.tokens = lim.scores = 40;
	t = tiny_create(&shape, SR_BF16, TINY_BIAS, 3);
	assert_int_equal(try_all(t, &lim, why, sizeof(why)), 0);
	calls = emu_calls - before;
	assert_true(calls > 100);
	for (uint64_t n = 1; n <= calls; n++) {
		for (cudaError_t error : errors) {
			int e;

			if (n > 60 && n % (error == cudaErrorIllegalAddress ? 2 : 7))
				continue; /* much the same */
			emu_fail(n, error);
			e = quietly(t, &lim, why, sizeof(why));
			emu_recover();
			if (e && !why[0])
				fail_msg("call %d fails without a word", (int)n);
			assert_true(e == 0 || e == -EIO || e == -ENOMEM || e == -ENODEV);
			assert_int_equal(emu_allocations, 0);
			failed += e < 0;
		}
	}
	assert_true(failed > (int)calls / 2); /* failures of close() are ignored */
	t->fail_after = 7;
	lim.worked = 0;
	assert_int_equal(try_all(t, &lim, why, sizeof(why)), -EIO);
	emu_process_ends();                /* read buffers stay: a read may still write to them */
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_too_old),
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
