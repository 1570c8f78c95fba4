/* LINK: @cpu kernels/backend.c @null tests/rig/drive.c tests/rig/tiny.c */
/* test_touch.c - the KV pool is faulted in beside requests, but not beside a batch that is computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"

#define STEP 512                   /* pages that are faulted in at a time: 2 MiB */

/* Pages of the KV pool that are in memory. */
static size_t resident(const struct sr_backend *b)
{
	size_t pages = b->kv_size / 4096, n = 0;
	unsigned char *in = malloc(pages);

	assert_int_equal(mincore(b->kv, pages * 4096, in), 0);
	for (size_t i = 0; i < pages; i++)
		n += in[i] & 1;
	free(in);
	return n;
}

/* What had begun is finished, and no more until the batch is done. */
static void test_rests(void **state)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_Q8_0, 0, 1);
	struct sr_limits lim = drive_limits();
	const int32_t ids[] = { 1, 2, 3, 4 };
	struct drive d;
	size_t before;

	(void)state;
	lim.n_blocks = 40000;
	if (drive_open(&d, sr_cpu_ops(), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
	assert_true(d.b->kv_size > (size_t)100 << 20);
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 4);
	drive_row(&d, 0, 0, ids, 4, 0, 1);
	assert_int_equal(d.ops->launch(d.b, 0), 0);
	before = resident(d.b);
	usleep(50000);
	assert_in_range(resident(d.b), before, before + STEP);
	while (!d.ops->poll(d.b, 0))
		d.ops->work(d.b, NULL, NULL);
	before = resident(d.b);
	for (int i = 0; i < 20000 && resident(d.b) <= before + STEP; i++)
		usleep(1000);
	assert_true(resident(d.b) > before + STEP);
	drive_close(&d);
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
