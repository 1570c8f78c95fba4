/* LINK: @cpu @ranks @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c tests/rig/tiny.c -ljansson -luring */
/* test_cpu_ranks.c - a model divided among processes that compute on the CPU: 2, 3 and 4 ranks give the results of
 * one to the bit, for each type of weights, for experts, windows and sinks, and for the default model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/models/load.h"
#include "core/models/model.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ranks/ranks.h"
#include "kernels/share.h"
#include "tests/rig/drive.h"
#include "tests/rig/guided_rows.h"
#include "tests/rig/rank_rig.h"
#include "tests/rig/tiny.h"

#define LONG    560              /* tokens of a prompt: more than a slice */
#define SHORT   70
#ifdef __SANITIZE_ADDRESS__
#define EACH 4                   /* a play takes ten times as long: every fourth case is enough for memory errors */
#else
#define EACH 1
#endif

static const struct sr_model *model;             /* what ranks open */
static const struct sr_source *source;           /* NULL: of the files of `files` */
static const struct model *files;

static int open_cpu(void *ctx, const struct sr_limits *lim, _Atomic uint64_t *loaded, struct sr_backend **out,
                    char *err, size_t errlen)
{
	struct load *l;
	struct io *io;

	(void)ctx, (void)loaded;
	if (source)
		return sr_cpu_ops()->open(out, model, source, lim, err, errlen);
	if (io_create(&io, 0) ||
	    load_create(&l, io, files->file, files->n_files, NULL, NULL, err, errlen))
		return -EIO;
	return sr_cpu_ops()->open(out, model, load_source(l), lim, err, errlen);
}

static int spawn(void *ctx, int32_t rank, int memory, int bell)
{
	const struct ranks_door door = { .ops = sr_cpu_ops(), .open = open_cpu };
	int pid;

	(void)ctx;
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(ranks_serve(&door, rank, memory, bell));
	return pid;
}

static void hear(void *ctx, bool bad, const char *line)
{
	(void)ctx;
	if (bad)
		printf("%s\n", line);
}

static void open_as(struct drive *d, const struct sr_limits *limits, int world, int threads)
{
	const struct ranks_setting how = { .ops = sr_cpu_ops(), .spawn = spawn, .say = hear, .hang_ms = 20000 };
	struct sr_limits lim = *limits;

	lim.threads = threads;
	lim.masks = 6;
	lim.world = world ? world : 1;
	lim.worked = !world;
	if (drive_open(d, world ? ranks_over(&how) : sr_cpu_ops(), model, source, &lim))
		fail_msg("%d ranks: %s", world, d->err);
}

/* Prompts of a slice and more, scores with alternatives, decoding by several, draws with penalties, and blocks that
 * go to the host tier and come back to other places. */
static void play(struct drive *d, int prompt, struct record *r)
{
	const struct sr_sampling warm = warm_setting();
	int32_t text[600], back[3] = { 60, 61, 62 };
	int at;

	memset(r, 0, sizeof(*r));
	for (int i = 0; i < 600; i++)
		text[i] = (i * 37 + i / 5) % model->n_vocab;
	drive_begin(d, 0, NULL);
	drive_range(d, 0, 0, 4);
	at = drive_row(d, 0, 0, text, 40, 8, 1);
	d->batch->row[0].n_top = 5;
	drive_step(d);
	keep(r, d, at, 9);
	drive_begin(d, 1, &warm);
	drive_history(d, 1, text, prompt, prompt);
	drive_range(d, 1, 8, 36);
	drive_begin(d, 2, &warm);
	drive_history(d, 2, text, 9, 9);
	drive_range(d, 2, 50, 2);
	drive_row(d, 1, 0, text, prompt, 0, 1);
	drive_row(d, 0, 40, NULL, 1, 0, 1);
	drive_row(d, 2, 0, text, 9, 0, 1);
	drive_step(d);
	keep(r, d, 0, 3);
	for (int i = 0; i < 3; i++)              /* out, and in again elsewhere */
		d->batch->copy[d->batch->n_copies++] = (struct sr_copy){ .device = i, .host = i, .out = 1 };
	drive_step(d);
	for (int i = 0; i < 3; i++)
		d->batch->copy[d->batch->n_copies++] = (struct sr_copy){ .device = back[i], .host = i, .out = 0 };
	drive_blocks(d, 0, 0, back, 3);
	for (int i = 0; i < 6; i++) {
		drive_row(d, 0, 41 + i, NULL, 1, 0, 1);
		drive_row(d, 1, prompt + i, NULL, 1, 0, 1);
		drive_row(d, 2, 9 + i, NULL, 1, 0, 1);
		drive_step(d);
		keep(r, d, 0, 3);
	}
}

static void play_all(const char *what, const struct sr_limits *lim, int most)
{
	static struct record alone, is;
	struct drive d;

	open_as(&d, lim, 0, 1);
	play(&d, LONG, &alone);
	drive_close(&d);
	assert_true(alone.n > 20);
	for (int world = most == 4 ? 1 : 2; world <= most; world++) {
		open_as(&d, lim, world, world == 2 ? 4 : world);
		play(&d, LONG, &is);
		drive_close(&d);
		check(what, world, &is, &alone);
	}
}

static const struct {
	const char *what;
	int32_t type;
	unsigned flags;
	struct sr_experts x;
	int32_t window, sinks;
} cases[] = {
	{ "q4_1", SR_Q4_1, TINY_BIAS | TINY_QK_NORM, { 0 }, 0, 0 },
	{ "bf16, a head of its own", SR_BF16, TINY_UNTIED | TINY_POST_NORM, { 0 }, 0, 0 },
	{ "mixed types", SR_Q8_0, TINY_MIXED, { 0 }, 0, 0 },
	{ "f32, a window", SR_F32, 0, { 0 }, 20, 0 },
	{ "awq", SR_AWQ4, TINY_BIAS, { 0 }, 0, 0 },
	{ "gptq", SR_GPTQ4, 0, { 0 }, 0, 0 },
	{ "compressed-tensors", SR_CT4, 0, { 0 }, 0, 0 },
	{ "experts apart", SR_Q8_0, TINY_EACH, { 8, 2, 96, 0, SR_SCORE_SOFTMAX, .renorm = 1, .scale = 1 }, 0, 0 },
	{ "experts, a shared one", SR_BF16, TINY_SHARED_MIX, { 12, 4, 128, 96, SR_SCORE_SOFTMAX, .scale = 1 }, 0, 0 },
	{ "gpt-oss", SR_MXFP4, TINY_EXPERT_BIAS, { 8, 3, 96, 0, SR_SCORE_CHOSEN, .scale = 1 }, 0, 0 },
	{ "awq experts", SR_AWQ4, 0, { 8, 2, 128, 128, SR_SCORE_SIGMOID, .renorm = 1, .scale = 1 }, 0, 0 },
};

static struct sr_model shape_of_case(size_t c, struct sr_layer *layers)
{
	return rank_shape(300, &cases[c].x, cases[c].window, layers);
}

static void test_types(void **state)
{
	struct sr_limits lim = drive_limits();

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c += EACH) {
		struct sr_layer layers[2];
		struct sr_model shape = shape_of_case(c, layers);
		struct tiny *t = tiny_create(&shape, cases[c].type, cases[c].flags, 5 + c);

		model = &t->m;
		source = &t->src;
		play_all(cases[c].what, &lim, cases[c].x.d_ff == 96 || cases[c].x.d_shared == 96 ? 3 : 4);
		tiny_destroy(t);
	}
}

/* A guided row is drawn by one rank alone, whether its mask is there or not. */
static void test_guided(void **state)
{
	struct sr_model shape = shape_of_case(0, NULL);
	struct tiny *t = tiny_create(&shape, SR_F16, 0, 12);
	struct sr_limits lim = drive_limits();
	struct guided_run want, got;
	int32_t text[GUIDED_PROMPT];
	struct drive d;

	(void)state;
	model = &t->m;
	source = &t->src;
	for (int i = 0; i < GUIDED_PROMPT; i++)
		text[i] = (i * 31 + 5) % t->m.n_vocab;
	open_as(&d, &lim, 0, 1);
	guided_play(&d, t->m.n_vocab, text, GUIDED_BEFORE, &want);
	drive_close(&d);
	for (int world = 2; world <= 3; world++)
		for (int when = GUIDED_BEFORE; when <= GUIDED_MISSED; when += GUIDED_MISSED - GUIDED_BEFORE) {
			open_as(&d, &lim, world, 1);
			guided_play(&d, t->m.n_vocab, text, (enum guided_when)when, &got);
			assert_memory_equal(got.id, want.id, sizeof(want.id));
			assert_memory_equal(got.other, want.other, sizeof(want.other));
			assert_memory_equal(got.logprob, want.logprob, sizeof(want.logprob));
			drive_close(&d);
		}
	tiny_destroy(t);
}

/* The plan: ranks share the weights, and hold KV heads twice only where they are copied. */
static void test_plan(void **state)
{
	struct sr_model shape = shape_of_case(0, NULL);
	struct tiny *t = tiny_create(&shape, SR_Q4_1, 0, 1);
	const struct ranks_setting how = { .ops = sr_cpu_ops(), .spawn = spawn };
	struct sr_limits lim = drive_limits();
	struct sr_need one, n;
	char err[300];

	(void)state;
	assert_int_equal(sr_cpu_ops()->plan(&t->m, &lim, &one, err, sizeof(err)), 0);
	for (int world = 2; world <= 4; world++) {
		lim.world = world;
		assert_int_equal(ranks_over(&how)->plan(&t->m, &lim, &n, err, sizeof(err)), 0);
		assert_true(n.weights >= one.weights && n.weights < one.weights + one.weights / 4);
		assert_int_equal(n.per_block, world == 4 ? one.per_block / 3 * 4 : one.per_block);
		assert_true(n.shared > 0);
	}
	lim.world = 5;
	assert_int_equal(ranks_over(&how)->plan(&t->m, &lim, &n, err, sizeof(err)), -ENOTSUP);
	assert_non_null(strstr(err, "5 ranks are too many"));
	tiny_destroy(t);
}

static const char *model_path(void)
{
	static char path[4096];
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	if (getenv("MODEL"))
		return getenv("MODEL");
	snprintf(path, sizeof(path), "%s%s/slipring/models/SmolLM2-135M-Instruct.Q4_1.gguf",
	         cache && *cache ? cache : home ? home : "/root", cache && *cache ? "" : "/.cache");
	return path;
}

static void test_default_model(void **state)
{
	struct sr_limits lim = drive_limits();
	struct model *md;
	char err[512];

	(void)state;
	if (access(model_path(), R_OK)) {
		printf("SKIP: no model at %s\n", model_path());
		skip();
	}
	if (model_open(&md, model_path(), err, sizeof(err)))
		fail_msg("%s", err);
	files = md;
	model = &md->m;
	source = NULL;
	{
		static struct record alone, is;
		struct drive d;
		struct load *l;
		struct io *io;

		assert_int_equal(io_create(&io, 0), 0);
		assert_int_equal(load_create(&l, io, md->file, md->n_files, NULL, NULL, err, sizeof(err)), 0);
		source = load_source(l);
		open_as(&d, &lim, 0, 2);
		source = NULL;
		play(&d, SHORT, &alone);
		drive_close(&d);
		load_destroy(l);
		io_destroy(io);
		for (int world = 2; world <= 4; world += EACH) {
			open_as(&d, &lim, world, world);
			play(&d, SHORT, &is);
			drive_close(&d);
			check("default model", world, &is, &alone);
		}
	}
	model_close(md);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_types), cmocka_unit_test(test_guided), cmocka_unit_test(test_plan),
		cmocka_unit_test(test_default_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
