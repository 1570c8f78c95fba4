/* LINK: @cuda tests/rig/drive.c tests/rig/tiny.c kernels/cuda/[a-z]*.cu */
/* test_cuda_integrated.cc - a GPU that shares the host's memory: it reads weights where they came from the file, and its
 * plan counts memory once. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"
}
#include <cerrno>
#include <cuda_runtime_api.h>

static struct tiny *model(void)
{
	struct sr_model shape = tiny_shape();

	return tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
}

/* The log-probabilities of a scored text, and the bytes that opening copied to the device. */
static uint64_t score(struct tiny *t, float *logprob)
{
	struct sr_limits lim = drive_limits();
	struct drive d = {};
	int32_t ids[21];
	uint64_t bytes;
	int at;

	lim.worked = 0;
	for (int i = 0; i < 21; i++)
		ids[i] = i * i % t->m.n_vocab;
	emu_to_device = 0;
	if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
	bytes = emu_to_device;
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 1, 2);
	at = drive_row(&d, 0, 0, ids, 20, 20, 0);
	drive_step(&d);
	for (int i = 0; i < 20; i++)
		logprob[i] = d.batch->result[at + i].logprob;
	drive_close(&d);
	return bytes;
}

static void test_shared_memory(void **)
{
	struct sr_limits lim = drive_limits();
	struct tiny *t = model();
	struct sr_need own, shared, tier;
	float a[20], b[20];
	uint64_t copied, in_place;
	char err[300] = "";

	lim.n_host_blocks = 0;
	copied = score(t, a);
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &own, err, sizeof(err)), 0);
	emu_integrated = true;
	in_place = score(t, b);
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &shared, err, sizeof(err)), 0);
	emu_integrated = false;
	assert_memory_equal(a, b, sizeof(a));
	assert_true(copied > 100000);
	assert_true(in_place < 1000); /* not of weights */
	assert_true(shared.avail >= own.avail && shared.avail <= shared.total && shared.total == own.total);
	lim.n_host_blocks = 100;     /* a tier: out of the same memory, and out of the host's alone */
	lim.copies = 1;
	emu_integrated = true;
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &tier, err, sizeof(err)), 0);
	emu_integrated = false;
	assert_int_equal(tier.total, own.total - 100 * own.per_block);
	assert_true(tier.avail <= tier.total);
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &tier, err, sizeof(err)), 0);
	assert_int_equal(tier.total, own.total);
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shared_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
