/* LINK: @cuda tests/rig/drive.c tests/rig/tiny.c kernels/cuda/[a-z]*.cu */
/* test_cuda_groups.cc - a model with windows in CUDA, its layers in one group and in several: the same bits.  A
 * window's blocks are used again as they leave it, so its older entries are stale. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"
}
#include <cstdio>
#include <cstring>

#define LAYERS 4
#define WINDOW 20
#define TOKENS 90
#define REUSED 4                   /* blocks that hold a window and a chunk */

struct answer { struct sr_result result[TOKENS]; };

/* Blocks n of the slot's tables: the full group keeps all, a window's come round again. */
static void give_block(struct drive *d, int32_t n)
{
	for (int32_t g = 0; g < d->lim.n_groups; g++) {
		int32_t block = d->lim.group[g].window ? 16 * g + n % REUSED : 2 * n + 16 * d->lim.n_groups;

		drive_blocks(d, 0, n, &block, 1);
		d->batch->cmd[d->batch->n_cmds - 1].group = g;
	}
}

static void run(struct tiny *t, const struct sr_limits *lim, struct answer *a)
{
	struct drive d = {};
	int32_t ids[TOKENS + 1];

	for (int i = 0; i <= TOKENS; i++)
		ids[i] = i * i % t->m.n_vocab;
	if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, lim))
		fail_msg("%s", d.err);
	drive_begin(&d, 0, NULL);
	for (int32_t from = 0, n; from < TOKENS; from += n) {   /* chunks of a block, then single tokens */
		int at;

		n = from < 64 ? 16 : 1;
		if (from % 16 == 0)
			give_block(&d, from / 16);
		at = drive_row(&d, 0, from, ids + from, n, n, 0);
		drive_step(&d);
		memcpy(a->result + from, d.batch->result + at, (size_t)n * sizeof(*a->result));
	}
	drive_close(&d);
}

static void test_groups(void **)
{
	static const struct sr_group groups[] = { { 0, 1, 0 }, { WINDOW, 2, 0 }, { WINDOW, 2, 0 } };
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();
	struct sr_layer layers[LAYERS] = {};
	static struct answer one, many;
	struct sr_need need[2];
	char err[200];
	struct tiny *t;

	tiny_window(&shape, layers, WINDOW);
	shape.n_layers = LAYERS;
	for (int l = 0; l < LAYERS; l++)
		layers[l].kind = l == 2;
	t = tiny_create(&shape, SR_BF16, 0, 3);
	lim.threads = lim.worked = 0;
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &need[0], err, sizeof(err)), 0);
	run(t, &lim, &one);
	lim.n_groups = 3;
	memcpy(lim.group, groups, sizeof(groups));
	assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &need[1], err, sizeof(err)), 0);
	assert_true(need[0].per_block == 2 * need[1].per_block && need[1].kinds_in_groups);
	run(t, &lim, &many);
	assert_memory_equal(&one, &many, sizeof(one));
	lim.group[2].window = WINDOW + 1;      /* no layer looks back so far */
	assert_true(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, &need[1], err, sizeof(err)) < 0);
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_groups) };

	return cmocka_run_group_tests_name("cuda_groups", tests, NULL, NULL);
}
