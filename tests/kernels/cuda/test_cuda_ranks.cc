/* LINK: @cuda @ranks tests/cuda/processes.c tests/rig/drive.c tests/rig/tiny.c kernels/cuda/[a-z]*.cu */
/* test_cuda_ranks.cc - a model divided among GPUs, each a process with a device of its own: in deterministic mode 2, 3
 * and 4 ranks give the results of one to the bit, for each form of weights and for experts.
 *
 *	SLIPRING_ALL=1    all cases (make ranks); else those that are quick */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/cuda/processes.h"
#include "tests/rig/drive.h"
#include "tests/rig/guided_rows.h"
#include "tests/rig/rank_rig.h"
#include "tests/rig/tiny.h"
}
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

#include "tests/emu/nccl.h"

static void open_as(struct drive *d, struct tiny *t, const struct sr_limits *limits, int world)
{
	const struct sr_backend_ops *gpu = sr_backend_get(SR_BACKEND_VERSION);
	struct sr_limits lim = *limits;

	lim.threads = lim.worked = 0;
	lim.world = world ? world : 1;
	t->n_done = 0;
	if (drive_open(d, world ? processes_over(gpu, &t->m, &t->src) : gpu, &t->m, &t->src, &lim))
		fail_msg("%d ranks: %s", world, d->err);
}

/* A prompt with scores and alternatives, another beside it, draws with penalties, and blocks that go to the host tier
 * and come back elsewhere. */
static void play(struct drive *d, int32_t V, struct record *r)
{
	const struct sr_sampling warm = warm_setting();
	int32_t text[80], back[2] = { 60, 61 };
	int at;

	memset((void *)r, 0, sizeof(*r));
	for (int i = 0; i < 80; i++)
		text[i] = i < 4 ? 64 * (i + 1) % V : (i * 37 + i / 5) % V;   /* where ranks' rows begin, too */
	drive_begin(d, 0, NULL);
	drive_range(d, 0, 0, 2);
	at = drive_row(d, 0, 0, text, 30, 5, 1);
	d->batch->row[0].n_top = 4;
	drive_step(d);
	keep(r, d, at, 6);
	drive_begin(d, 1, &warm);
	drive_history(d, 1, text, 70, 70);
	drive_range(d, 1, 8, 6);
	drive_row(d, 1, 0, text, 70, 0, 1);
	drive_row(d, 0, 30, NULL, 1, 0, 1);
	drive_step(d);
	keep(r, d, 0, 2);
	for (int i = 0; i < 2; i++)
		d->batch->copy[d->batch->n_copies++] = (struct sr_copy){ i, i, 1 };
	drive_step(d);
	for (int i = 0; i < 2; i++)
		d->batch->copy[d->batch->n_copies++] = (struct sr_copy){ back[i], i, 0 };
	drive_blocks(d, 0, 0, back, 2);
	for (int i = 0; i < 3; i++) {
		drive_row(d, 0, 31 + i, NULL, 1, 0, 1);
		drive_row(d, 1, 70 + i, NULL, 1, 0, 1);
		drive_step(d);
		keep(r, d, 0, 2);
	}
}

static const struct {
	const char *what;
	int32_t type;
	unsigned flags;
	int32_t n, top, d_ff, d_shared, score;   /* of experts */
	int32_t window, graphs, least, most;     /* ranks */
	bool always;
} cases[] = {
	{ "bf16, a head of its own", SR_BF16, TINY_UNTIED | TINY_POST_NORM, 0, 0, 0, 0, 0, 0, 1, 1, 4, false },
	{ "q4_1", SR_Q4_1, TINY_BIAS | TINY_QK_NORM, 0, 0, 0, 0, 0, 0, 0, 2, 3, true },
	{ "mixed types, a window", SR_Q8_0, TINY_MIXED, 0, 0, 0, 0, 0, 20, 0, 3, 3, false },
	{ "fp8 in blocks", SR_F8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, false },
	{ "awq", SR_AWQ4, TINY_BIAS, 0, 0, 0, 0, 0, 0, 0, 2, 4, false },
	{ "gptq", SR_GPTQ4, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, false },
	{ "compressed-tensors", SR_CT4, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, false },
	{ "experts, a shared one", SR_BF16, TINY_SHARED_MIX, 12, 4, 128, 96, SR_SCORE_SOFTMAX, 0, 0, 3, 3, false },
	{ "gpt-oss", SR_MXFP4, TINY_EXPERT_BIAS, 8, 3, 96, 0, SR_SCORE_CHOSEN, 0, 0, 2, 3, false },
	{ "awq experts", SR_AWQ4, 0, 8, 2, 128, 128, SR_SCORE_SIGMOID, 0, 0, 4, 4, false },
};

static struct tiny *create(size_t c, struct sr_layer *layers)
{
	struct sr_experts x = {};
	struct sr_model shape;

	x.n = cases[c].n;
	x.top = cases[c].top;
	x.d_ff = cases[c].d_ff;
	x.d_shared = cases[c].d_shared;
	x.score = cases[c].score;
	x.scale = 1;
	shape = rank_shape(cases[c].always ? 301 : 300, &x, cases[c].window, layers); /* 301: a part is no multiple of 16 bytes */
	return tiny_create(&shape, cases[c].type, cases[c].flags, 5 + c);
}

static struct sr_limits small_limits(bool graphs)
{
	struct sr_limits lim = drive_limits();

	lim.tokens = lim.scores = 80;
	lim.rows = lim.slots = 6;
	lim.masks = 8;
	lim.deterministic = 1;
	lim.eager = !graphs;
	return lim;
}

/* Emulated kernels take six times as long with shadow memory: a part is enough for memory errors. */
static void skip_if_slow(void)
{
#ifdef __SANITIZE_ADDRESS__
	if (!getenv("SLIPRING_ALL"))
		skip();
#endif
}

/* A guided row: what rank 0 sees of its mask counts for all, whether it has come or not. */
static void test_guided(void **)
{
	skip_if_slow();
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, 0, 12);
	struct sr_limits lim = small_limits(false);
	struct guided_run want, got;
	int32_t text[GUIDED_PROMPT];
	struct drive d;

	for (int i = 0; i < GUIDED_PROMPT; i++)
		text[i] = (i * 31 + 5) % t->m.n_vocab;
	open_as(&d, t, &lim, 0);
	guided_play(&d, t->m.n_vocab, text, GUIDED_BEFORE, &want);
	drive_close(&d);
	for (int when = getenv("SLIPRING_ALL") ? GUIDED_BEFORE : GUIDED_MISSED; when <= GUIDED_MISSED;
	     when += GUIDED_MISSED - GUIDED_BEFORE) {
		open_as(&d, t, &lim, 2);
		guided_play(&d, t->m.n_vocab, text, (enum guided_when)when, &got);
		drive_close(&d);
		assert_memory_equal(got.id, want.id, sizeof(want.id));
		assert_memory_equal(got.other, want.other, sizeof(want.other));
		assert_memory_equal(got.logprob, want.logprob, sizeof(want.logprob));
	}
	tiny_destroy(t);
}

static void test_types(void **)
{
	static struct record alone, is;
	bool all = getenv("SLIPRING_ALL");

	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
		if (!all && !cases[c].always)
			continue;
		struct sr_layer layers[2] = {};
		struct tiny *t = create(c, layers);
		struct sr_limits lim = small_limits(cases[c].graphs);
		struct drive d;

		open_as(&d, t, &lim, 0);
		play(&d, t->m.n_vocab, &alone);
		drive_close(&d);
		assert_true(alone.n > 10);
		for (int world = cases[c].least; world <= (all ? cases[c].most : cases[c].least); world++) {
			open_as(&d, t, &lim, world);
			play(&d, t->m.n_vocab, &is);
			drive_close(&d);
			assert_string_equal(processes_said(), "");
			check(cases[c].what, world, &is, &alone);
		}
		tiny_destroy(t);
		assert_int_equal(emu_allocations, 0);
	}
}

/* ---- GPUs that differ ------------------------------------------------------------------- */

static void older(int32_t rank)
{
	emu_capability = rank ? 80 : 90;
}

static void smaller(int32_t rank)
{
	emu_memory = (size_t)1 << (rank ? 29 : 30);
}

static void a_little_smaller(int32_t rank)
{
	emu_memory = ((size_t)1 << 30) - (size_t)rank * (32 << 20);
}

/* A model is divided among GPUs of one type, or a sentence names two. */
static void test_types_of_gpus(void **)
{
	static const struct { void (*begin)(int32_t); const char *words[2]; } cases[] = {
		{ older, { "GPU 1 has compute capability 8.0, 4 multiprocessors and 1.0 GiB, but GPU 0 has 9.0, 4 and 1.0 GiB",
			"ranks of a model need GPUs of one type" } },
		{ smaller, { "GPU 1 has compute capability 8.0, 4 multiprocessors and 0.5 GiB, but GPU 0 has 8.0, 4 and 1.0 GiB",
			"CUDA_VISIBLE_DEVICES" } },
		{ a_little_smaller, { NULL, NULL } },
	};
	const struct sr_backend_ops *gpu = sr_backend_get(SR_BACKEND_VERSION), *ops;
	struct sr_limits lim = small_limits(false);
	struct tiny *t = create(0, NULL);

	lim.world = 2;
	lim.threads = lim.worked = 0;
	for (const auto &c : cases) {
		struct sr_backend *b = NULL;
		char err[512] = "";
		int e;

		processes_begin = c.begin;
		ops = processes_over(gpu, &t->m, &t->src);
		e = ops->open(&b, &t->m, &t->src, &lim, err, sizeof(err));
		assert_int_equal(e, c.words[0] ? -EIO : 0);
		for (const char *words : c.words)
			if (words && !strstr(err, words))
				fail_msg("\"%s\", not \"%s\"", err, words);
		if (e == 0)
			ops->close(b);
	}
	processes_begin = NULL;
	tiny_destroy(t);
}

static int wrong_rank;
static const char *wrong_arguments;

static void wrong_in_one(int32_t rank)
{
	emu_spoiled = rank == wrong_rank ? wrong_arguments : NULL;
}

static void off_in_one(int32_t rank)
{
	if (rank == wrong_rank)
		setenv("SLIPRING_CUDA_WITHOUT", "early_start,graphs", 1);
}

/* What one rank's check finds wrong, all do without, and say so; the answers are those of one GPU without it. */
static void test_one_is_wrong(void **)
{
	skip_if_slow();
	static const struct { void (*begin)(int32_t); const char *arguments, *without; int rank; } cases[] = {
		{ wrong_in_one, "rows_args", "dense_few", 1 },
		{ wrong_in_one, "rows_args", "dense_few", 0 },
		{ off_in_one, NULL, "early_start,graphs", 1 },
	};
	static struct record alone, is;
	struct sr_limits lim = small_limits(true);
	struct tiny *t = create(0, NULL);
	struct drive d;

	lim.self_check = 1;
	for (const auto &c : cases) {
		if (!getenv("SLIPRING_ALL") && &c != cases)
			break;
		setenv("SLIPRING_CUDA_WITHOUT", c.without, 1);
		open_as(&d, t, &lim, 0);
		unsetenv("SLIPRING_CUDA_WITHOUT");
		play(&d, t->m.n_vocab, &alone);
		drive_close(&d);
		wrong_rank = c.rank;
		wrong_arguments = c.arguments;
		processes_begin = c.begin;
		open_as(&d, t, &lim, 2);
		assert_string_equal(d.ops->without(d.b), c.without);
		play(&d, t->m.n_vocab, &is);
		drive_close(&d);
		assert_string_equal(processes_said(), "");
		check(c.without, 2, &is, &alone);
	}
	processes_begin = NULL;
	tiny_destroy(t);
}

/* ---- NCCL ------------------------------------------------------------------------------- */

extern size_t ranks_far;
extern void nccl_forget(void);

static int failing_rank;
static uint64_t failing_call;

static void fail_call(int32_t rank)
{
	nccl_forget();                       /* what the parent found */
	if (rank == failing_rank)
		emu_nccl_fail(failing_call, 2);
}

static void absent(int32_t rank)
{
	emu_nccl_absent = rank == failing_rank;
}

static void old_in_one(int32_t rank)
{
	nccl_forget();
	if (rank == failing_rank)
		emu_nccl_version = 21210;
}

/* Everything through NCCL, then with a rank whose library is too old: the same bits. */
static void test_nccl(void **)
{
	skip_if_slow();
	static struct record alone, is;
	struct sr_limits lim = small_limits(false);
	struct tiny *t = create(0, NULL);
	struct drive d;

	open_as(&d, t, &lim, 0);
	play(&d, t->m.n_vocab, &alone);
	drive_close(&d);
	emu_nccl_library = "libnccl.so.2";
	nccl_forget();
	ranks_far = 1;
	failing_rank = 1;
	for (int old = 0; old <= (getenv("SLIPRING_ALL") != NULL); old++) {
		processes_begin = old ? old_in_one : NULL;
		open_as(&d, t, &lim, 2);
		play(&d, t->m.n_vocab, &is);
		drive_close(&d);
		assert_string_equal(processes_said(), "");
		check(old ? "NCCL in one rank" : "NCCL", 2, &is, &alone);
	}
	processes_begin = NULL;
	emu_nccl_library = NULL;
	nccl_forget();
	tiny_destroy(t);
}

/* Each call of a rank fails in its turn: at open a sentence that names the call, later a lost device; then none. */
static void test_nccl_fails(void **)
{
	const struct sr_backend_ops *gpu = sr_backend_get(SR_BACKEND_VERSION), *ops;
	struct sr_limits lim = small_limits(false);
	struct tiny *t = create(0, NULL);
	bool all = getenv("SLIPRING_ALL");
	int opened = 0, refused = 0;

	lim.world = 2;
	lim.threads = lim.worked = 0;
	emu_nccl_library = "libnccl.so.2";
	nccl_forget();
	ranks_far = 1;
	processes_begin = fail_call;
	for (failing_rank = 0; failing_rank < (all ? 2 : 1); failing_rank++)
		for (failing_call = all ? 1 : 3; failing_call <= (all ? 10 : 3); failing_call++) {
			struct sr_backend *b = NULL;
			char err[512] = "";
			int e;

			ops = processes_over(gpu, &t->m, &t->src);
			e = ops->open(&b, &t->m, &t->src, &lim, err, sizeof(err));
			if (failing_call == 1) {     /* its version: it goes on without */
				assert_int_equal(e, 0);
				ops->close(b);
			} else if (e) {
				char rank[16];

				snprintf(rank, sizeof(rank), "rank %d: ", failing_rank);
				if (!strstr(err, rank) || !strstr(err, "NCCL's ") ||
				    !strstr(err, "unhandled system error; SLIPRING_NCCL=off does without it"))
					fail_msg("call %d of rank %d: \"%s\", %s", (int)failing_call, failing_rank, err,
						processes_said());
				refused++;
			} else {
				struct drive d = {};
				int32_t text[20] = {};

				d.ops = ops;
				d.b = b;
				d.lim = lim;
				d.batch = ops->batch(b, 0);
				drive_begin(&d, 0, NULL);
				drive_range(&d, 0, 0, 2);
				drive_row(&d, 0, 0, text, 20, 0, 1);
				assert_int_equal(ops->launch(b, 0), 0);
				while ((e = ops->poll(b, 0)) == 0)
					;
				assert_int_equal(e, -EIO);
				ops->close(b);               /* now the line is said */
				if (!strstr(processes_said(), "is gone: it ended with code 1"))
					fail_msg("call %d of rank %d: %s", (int)failing_call, failing_rank, processes_said());
				opened++;
			}
		}
	assert_true(refused >= 1);
	if (all)
		assert_true(opened >= 2);
	processes_begin = NULL;
	emu_nccl_library = NULL;
	nccl_forget();
	tiny_destroy(t);
}

/* A rank that never comes to the communicator or to a collective: an end within a bounded time. */
static void test_nccl_absent(void **)
{
	const struct sr_backend_ops *gpu = sr_backend_get(SR_BACKEND_VERSION), *ops;
	struct sr_limits lim = small_limits(false);
	struct tiny *t;
	struct sr_backend *b = NULL;
	char err[512] = "";
	struct drive d = {};
	int32_t text[20] = {};
	int e;

	if (!getenv("SLIPRING_ALL"))
		skip();
	t = create(0, NULL);
	lim.world = 2;
	lim.threads = lim.worked = 0;
	emu_nccl_library = "libnccl.so.2";
	nccl_forget();
	ranks_far = 1;
	failing_rank = 1;
	processes_begin = absent;
	processes_hang_ms = 1000;
	ops = processes_over(gpu, &t->m, &t->src);
	assert_int_equal(ops->open(&b, &t->m, &t->src, &lim, err, sizeof(err)), 0);
	d.ops = ops;
	d.b = b;
	d.lim = lim;
	d.batch = ops->batch(b, 0);
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 2);
	drive_row(&d, 0, 0, text, 20, 0, 1);
	assert_int_equal(ops->launch(b, 0), 0);
	while ((e = ops->poll(b, 0)) == 0)
		;
	assert_int_equal(e, -EIO);
	ops->close(b);
	assert_non_null(strstr(processes_said(), "hangs: ")); /* either: in the emulation the host waits with its GPU */
	processes_begin = NULL;
	processes_hang_ms = 60000;
	emu_nccl_library = NULL;
	nccl_forget();
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_types), cmocka_unit_test(test_guided),
		cmocka_unit_test(test_types_of_gpus), cmocka_unit_test(test_one_is_wrong), cmocka_unit_test(test_nccl),
		cmocka_unit_test(test_nccl_fails), cmocka_unit_test(test_nccl_absent) };

	emu_devices = 4;
	emu_at_once = true;                      /* ranks look at their stream rarely */
	return cmocka_run_group_tests_name("cuda_ranks", tests, NULL, NULL);
}
