/* LINK: @cuda tests/rig/drive.c tests/rig/tiny.c kernels/cuda/[a-z]*.cu */
/* test_cuda_gpus.cc - a GPU that is too old is refused in a sentence. */
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
#include <cuda_runtime.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_too_old),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
