/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_special.cc - whole batches with each special kernel switched off: the answers are those of plain C. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <string>

#include "tests/cuda/pair.h"

static void capability(int number)
{
#ifdef CUDA_EMULATED
	emu_capability = number;
#else
	(void)number;
#endif
}

/* ---- names ---------------------------------------------------------------------------- */

static void test_names(void **)
{
	uint32_t without = 9;
	char err[400];

	assert_int_equal(special_parse(&without, NULL, err, sizeof(err)), 0);
	assert_int_equal(without, 0);
	assert_int_equal(special_parse(&without, "graphs,w8a8", err, sizeof(err)), 0);
	assert_int_equal(without, 1 << SPECIAL_GRAPHS | 1 << SPECIAL_W8A8);
	for (const char *wrong : { "graph", "graphs,,lt", "lt, graphs", "hopper" }) {
		assert_int_equal(special_parse(&without, wrong, err, sizeof(err)), -EINVAL);
		assert_true(strstr(err, "is none of early_start,graphs,lt,") && strstr(err, "attend_one"));
	}
	for (int i = 0; i < N_SPECIAL; i++) {
		assert_int_equal(special_parse(&without, special_name(i), err, sizeof(err)), 0);
		assert_int_equal(without, 1u << i);
	}
}

/* ---- answers -------------------------------------------------------------------------- */

#define ALL "dense_few,packed_few,pieces,run_pieces,attend_one,hopper_many,hopper_attend,w8a8,w4a8,sample_blocks,lt,graphs,early_start"

static struct sr_model wide_heads(void)
{
	struct sr_model shape = tiny_shape();

	shape.kind[0].head_dim = 64;           /* Hopper's attention has this width */
	return shape;
}

/* A scored prompt of 66 tokens beside a sequence of one; then a step of both. */
static void talk(struct drive *d, struct answer *a)
{
	int32_t text[67], own[] = { 40, 41, 42, 43, 44 };

	a->n = 0;
	for (int i = 0; i < 67; i++)
		text[i] = (i * i * 7 + i * 3) % 200;
	drive_begin(d, 0, NULL);
	drive_range(d, 0, 5, 9);
	drive_begin(d, 1, NULL);
	drive_blocks(d, 1, 0, own, 5);
	drive_row(d, 1, 0, text + 3, 1, 0, 1);
	drive_row(d, 0, 0, text, 66, 66, 0);
	drive_step(d);
	keep(a, d, 67);
	drive_row(d, 0, 66, text + 66, 1, 0, 1);
	drive_row(d, 1, 1, text + 4, 1, 0, 1);
	drive_step(d);
	keep(a, d, 2);
}

static void answer_of(struct tiny *t, const char *without, int gpu, struct answer *a)
{
	struct sr_limits lim = limits();
	struct drive d;

	capability(gpu);
	if (*without)
		setenv("SLIPRING_CUDA_WITHOUT", without, 1);
	lim.worked = 0;
	lim.logit_rows = 40;
	t->n_done = 0;
	if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
	unsetenv("SLIPRING_CUDA_WITHOUT");
	talk(&d, a);
	drive_close(&d);
	capability(80);
}

static void near(const char *without, int32_t type, const struct answer *a, const struct answer *b)
{
	double diff = 0;

	for (int i = 1; i < a->n; i++)
		diff += fabs((double)a->result[i].logprob - b->result[i].logprob) / (a->n - 1);
	within(*without ? without : "nothing off", diff, 0.06, "log-probabilities of %d tokens, type %d", a->n - 1,
		(int)type);
}

/* With all of it off, as plain C; with each off, as with all. */
static void test_answers(void **)
{
	for (int32_t type : { (int32_t)SR_BF16, (int32_t)SR_Q4_1, (int32_t)SR_F8 }) {
		struct sr_model shape = wide_heads();
		struct answer truth, plain, a;
		struct pair p;
		struct tiny *t;

		if (type != SR_F8) {           /* which plain C does not have */
			setenv("SLIPRING_CUDA_WITHOUT", ALL, 1);
			open_pair(&p, &shape, type, TINY_UNTIED, 11);
			unsetenv("SLIPRING_CUDA_WITHOUT");
			talk(&p.cpu, &truth);
			talk(&p.gpu, &plain);
			near(ALL, type, &truth, &plain);
			close_pair(&p);
		}
		t = tiny_create(&shape, type, TINY_UNTIED, 11);
		answer_of(t, ALL, 90, &plain);
		for (int i = type == SR_BF16 ? -1 : 0; i < N_SPECIAL; i++) {
#ifdef CUDA_EMULATED
			if (i >= 0 && i <= SPECIAL_LT)
				continue;        /* they change nothing here */
#endif
			if (type == SR_BF16 || (type == SR_Q4_1 && (i == SPECIAL_HOPPER_MANY || i == SPECIAL_PACKED_FEW))) {
				answer_of(t, i < 0 ? "" : special_name(i), 90, &a);
				near(i < 0 ? "" : special_name(i), type, &plain, &a);
			}
		}
		if (type == SR_F8) {           /* in bf16 beside FP8: activations in 8 bits differ more */
			for (int i : { SPECIAL_W8A8, SPECIAL_HOPPER_MANY, SPECIAL_PACKED_FEW }) {
				answer_of(t, special_name(i), i == SPECIAL_PACKED_FEW ? 80 : 90, &a);
				near(special_name(i), type, &plain, &a);
			}
		}
		tiny_destroy(t);
	}
}

/* ---- a row's draw by several blocks ---------------------------------------------------- */

static void draw_rows(struct drive *d, int rows, int setting, struct sr_result *r, struct sr_top *top)
{
	static const struct sr_sampling asked[] = {
		/* seed, temperature, top_p, min_p, top_k, presence, frequency, repetition, min_position */
		{ 0, 0, 1, 0, 0, 0, 0, 1, 0 }, { 5, 1, 1, 0, 0, 0, 0, 1, 0 }, { 6, 2, 0.9f, 0, 0, 0, 0, 1, 0 },
		{ 7, 3, 1, 0, 700, 0, 0, 1, 0 }, { 8, 2, 0.7f, 0.0001f, 2000, 0.4f, 0.3f, 1.2f, 40 }, { 9, 1, 0.999f, 0, 0, 0, 0, 1, 0 },
	};
	static const uint32_t stop[] = { 3, 4800 }, bias[] = { 4990, 0x40a00000, 77, 0xc1200000 };
	uint32_t allow[1500];
	struct sr_masks m;

	d->ops->masks(d->b, &m);
	for (int t = 0; t < rows; t++) {
		struct sr_sampling s = asked[setting % 6];
		int32_t id = 5 + t, said[] = { 7, 3, 4999, 9, 11, 3, 40, 4700 };

		s.seed += (uint64_t)t;
		drive_begin(d, t, &s);
		drive_range(d, t, 2 * t, 2);
		if (setting % 6 == 4) {
			drive_history(d, t, said, 8, 3);
			drive_list(d, t, SR_LIST_STOP, stop, 2);
			drive_list(d, t, SR_LIST_BIAS, bias, 4);
		}
		for (uint32_t i = 0; i < 1500; i++)
			allow[i] = i * 3;
		if (setting == 8)
			drive_list(d, t, SR_LIST_ALLOW, allow, 1500);
		drive_row(d, t, 0, &id, 1, 0, 1);
		d->batch->row[t].n_top = setting % 2 ? 5 : 0;
		if (setting > 8) {                 /* of a grammar: every fifth id */
			for (int32_t w = 0; w < m.words; w++)
				m.word[(size_t)(2 * t + 1) * (size_t)m.words + (size_t)w] = 0x08421084u << w % 5 % 2;
			m.tag[2 * t + 1] = (uint64_t)1 << 32 | SR_MASK_BITS;
			d->batch->row[t].mask = t + 1;
		}
	}
	drive_step(d);
	memcpy(r, d->batch->result, (size_t)rows * sizeof(*r));
	memcpy(top, d->batch->top, (size_t)rows * SR_TOP_MAX * sizeof(*top));
}

/* Any number of blocks gives the same bits. */
static void test_sample_blocks(void **)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits();
	struct tiny *t;
	struct drive d;

	shape.n_vocab = 5003;
	capability(90);
	lim.worked = 0;
	lim.eager = 1;
	lim.masks = 8;
	t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 11);
	if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
#ifndef CUDA_EMULATED
	if (d.b->d.gpu.capability >= 90)
#endif
	assert_true(sample_blocks(&d.b->d, 1) == 4 && sample_blocks(&d.b->d, 1000) == 1);
	for (int rows = 1; rows < 3; rows++)
		for (int setting = 0; setting < 12; setting++) {
			static struct sr_result r[2][2];
			static struct sr_top top[2][2 * SR_TOP_MAX];

			emu_reversed = setting % 2;
			memset(top, 0, sizeof(top));
			draw_rows(&d, rows, setting, r[0], top[0]);
			d.b->d.without = 1 << SPECIAL_SAMPLE_BLOCKS;
			draw_rows(&d, rows, setting, r[1], top[1]);
			d.b->d.without = 0;
			assert_true(r[0][0].id >= 0 && r[0][0].id < 5003);
			assert_memory_equal(r[0], r[1], (size_t)rows * sizeof(r[0][0]));
			assert_memory_equal(top[0], top[1], sizeof(top[0]));
		}
	emu_reversed = false;
	drive_close(&d);
	tiny_destroy(t);
	capability(80);
}

#ifdef CUDA_EMULATED
/* What is off is not used. */
static void test_off(void **)
{
	struct sr_model shape = wide_heads();
	struct sr_limits lim = limits();
	struct drive d;
	struct tiny *t;

	capability(90);
	t = tiny_create(&shape, SR_F8, TINY_UNTIED, 3);
	lim.worked = 0;
	for (int on = 0; on < 2; on++) {
		if (!on)
			setenv("SLIPRING_CUDA_WITHOUT", "hopper_attend,w8a8,attend_one,graphs,early_start", 1);
		t->n_done = 0;
		lim.eager = 0;
		assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), 0);
		unsetenv("SLIPRING_CUDA_WITHOUT");
		struct dev *v = &d.b->d;

		assert_int_equal(hopper_attends(v), on);
		assert_int_equal(wants_x8(v, d.b->net.layer[0].qkv, 70), on);
		assert_int_equal(runs_only(v), !on);
		assert_int_equal(v->batch.graphs != NULL, on);
		assert_int_equal(start_early, on);
		drive_close(&d);
	}
	setenv("SLIPRING_CUDA_WITHOUT", "turbo", 1);
	t->n_done = 0;
	assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), -EINVAL);
	assert_true(strstr(d.err, "\"turbo\" is none of"));
	unsetenv("SLIPRING_CUDA_WITHOUT");
	tiny_destroy(t);
	capability(80);
}

/* Activations in e4m3 beside 4 bits: only on request, where the GPU can and the weights have whole zero points. */
static void test_w4_activations(void **)
{
	static const struct { int gpu; int32_t type; int deterministic, result; const char *say; } cases[] = {
		{ 80, SR_Q4_0, 0, -ENOTSUP, "begin with 8.9" }, { 89, SR_Q4_0, 1, -ENOTSUP, "stay bf16" },
		{ 89, SR_Q4_1, 0, -ENOTSUP, "whole zero points" }, { 89, SR_BF16, 0, -ENOTSUP, "whole zero points" },
		{ 89, SR_Q4_0, 0, 0, NULL },
	};

	for (const auto &c : cases) {
		struct sr_model shape = wide_heads();
		struct sr_limits lim = limits();
		struct tiny *t = tiny_create(&shape, c.type, TINY_UNTIED, 3);
		struct drive d;

		capability(c.gpu);
		lim.worked = 0;
		lim.deterministic = c.deterministic;
		lim.w4a8 = 1;
		assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), c.result);
		if (c.result) {
			assert_true(strstr(d.err, "--w4-activations fp8") && strstr(d.err, c.say));
		} else {
			assert_true(wants_x8(&d.b->d, d.b->net.layer[0].gu, 130));
			assert_false(wants_x8(&d.b->d, d.b->net.layer[0].gu, 128));
			d.b->d.without = 1 << SPECIAL_W4A8;
			assert_false(wants_x8(&d.b->d, d.b->net.layer[0].gu, 130));
			drive_close(&d);
		}
		tiny_destroy(t);
	}
	capability(80);
}

/* Up to 256 rows beside packed weights go 64 at a time, or 128 in e4m3, where there is no wgmma. */
static void test_few_most(void **)
{
	static const struct { int type, gpu, T; unsigned launches; } cases[] = {
		{ SR_Q4_1, 80, 64, 1 }, { SR_Q4_1, 80, 65, 2 }, { SR_Q4_1, 80, 256, 4 }, { SR_Q4_1, 80, 257, 1 },
		{ SR_Q4_1, 90, 64, 1 }, { SR_Q4_1, 90, 65, 1 }, { SR_F8, 89, 128, 2 }, { SR_F8, 89, 129, 2 },
	};

	for (const auto &c : cases) {
		struct sr_model shape = wide_heads();
		struct sr_limits lim = limits();
		struct tiny *t = tiny_create(&shape, c.type, TINY_UNTIED, 3);
		struct drive d;
		uint64_t before;

		capability(c.gpu);
		lim.worked = 0;
		assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), 0);
		before = emu_launches;
		matmul(&d.b->d, P_GU, P_Y, d.b->net.layer[0].gu, c.T);
		assert_int_equal(cudaStreamSynchronize(d.b->d.stream), cudaSuccess);
		assert_int_equal(emu_launches - before, c.launches);
		drive_close(&d);
		tiny_destroy(t);
	}
	capability(80);
}

/* ---- runs that are divided ------------------------------------------------------------- */

/* Queries, keys and values that e4m3 can hold, too. */
static void put_short(struct pair *p, int T, uint32_t seed)
{
	size_t n = (size_t)T * (size_t)truth_width(&p->cpu, P_QKV);
	std::unique_ptr<float[]> x(new float[n]);

	fill(x.get(), (int)n, seed);
	for (size_t i = 0; i < n; i++) {
		uint32_t u;

		memcpy(&u, &x[i], 4);
		u &= 0xfff00000;               /* three bits of fraction */
		memcpy(&x[i], &u, 4);
		x[i] = fabsf(x[i]) < 0.015625f ? 0 : x[i];
	}
	cpu_ops.put(truth_dev(&p->cpu), P_QKV, x.get(), T);
	put(gpu_dev(p), P_QKV, x.get(), T);
}

/* T tokens behind 250 stored ones, with a window and a cap and without: their attention is that of plain C. */
static void attend_behind(struct pair *p, int T, bool divided)
{
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);
	struct sr_attn kind = p->gpu.b->m.kind[0];

	for (int part = 0; part < 3; part++) {
		int first = part * 125, n = part < 2 ? 125 : T;

		slice_of(p, first, n, false);
		put_short(p, n, 7 + (uint32_t)part);
		cpu_ops.rope_store(da, 0, &truth_net(&p->cpu)->m->kind[0], NULL, NULL, 1e-5f, n);
		rope_store(db, 0, &p->gpu.b->net.m->kind[0], NULL, NULL, 1e-5f, n);
	}
	assert_int_equal(db->batch.step.full_runs > 0, divided);
	kind.scale = 0.25f;
	for (int window : { 0, 100, 3 }) {
		kind.window = window;
		kind.cap = window ? 2 : 0;
		cpu_ops.attend(da, 0, &kind, NULL, T);
		attend(db, 0, &kind, NULL, T);
		compare(p, divided ? "attend, divided" : "attend, behind a prefix", P_A, T, 0.012);
	}
}

static void test_run_pieces(void **)
{
	static const struct { int H, G, E, T, gpu; int32_t kv; const char *without; bool divided; } cases[] = {
		{ 4, 1, 16, 9, 80, SR_KV_BF16, "", true },
		{ 8, 2, 32, 5, 80, SR_KV_F8, "", true },
		{ 8, 1, 64, 12, 80, SR_KV_BF16, "", true },        /* two runs */
		{ 4, 1, 64, 20, 90, SR_KV_BF16, "", true },
		{ 16, 2, 128, 7, 90, SR_KV_BF16, "", true },
		{ 4, 1, 16, 9, 80, SR_KV_BF16, "run_pieces", false },
		{ 4, 1, 16, 60, 80, SR_KV_BF16, "", false },       /* four runs are a processor's each */
	};

	for (const auto &c : cases) {
		struct sr_model shape = tiny_shape();
		struct pair p;

		shape.kind[0].n_heads = c.H;
		shape.kind[0].n_kv_heads = c.G;
		shape.kind[0].head_dim = c.E;
		shape.kind[0].rope.dims = 0;
		capability(c.gpu);
		gpu_kv = c.kv;
		setenv("SLIPRING_CUDA_WITHOUT", c.without, 1);
		open_pair(&p, &shape, SR_BF16, 0, 5);
		unsetenv("SLIPRING_CUDA_WITHOUT");
		gpu_kv = SR_KV_BF16;
		emu_reversed = (&c - cases) % 2;
		attend_behind(&p, c.T, c.divided);
		emu_reversed = false;
		close_pair(&p);
		capability(80);
	}
}

/* Three tokens of each of two sequences behind 130: each is divided in two pieces for each of five KV heads. */
static void two_long(struct drive *d, struct answer *a)
{
	int32_t text[130];

	a->n = 0;
	for (int i = 0; i < 130; i++)
		text[i] = (i * i * 7 + i * 3) % 200;
	for (int s = 0; s < 2; s++) {
		drive_begin(d, s, NULL);
		drive_range(d, s, 10 * s, 9);
		drive_row(d, s, 0, text, 130, 0, 1);
		drive_step(d);
	}
	for (int i = 0; i < 3; i++) {
		for (int s = 0; s < 2; s++)
			drive_row(d, s, 130 + i, text + 2 * i + s, 1, 0, 1);
		drive_step(d);
		keep(a, d, 2);
	}
}

/* More KV heads than a token has pieces: heads do not count theirs in the same place. */
static void test_pieces_of_heads(void **)
{
	struct sr_model shape = tiny_shape();
	struct answer truth, a;
	struct pair p;

	shape.kind[0].n_heads = shape.kind[0].n_kv_heads = 5;
	shape.kind[0].head_dim = 32;
	open_pair(&p, &shape, SR_BF16, TINY_UNTIED, 11);
	two_long(&p.cpu, &truth);
	for (bool reversed : { false, true }) {
		emu_reversed = reversed;
		two_long(&p.gpu, &a);
		near("", SR_BF16, &truth, &a);
	}
	emu_reversed = false;
	close_pair(&p);
}

/* ---- the check at open ---------------------------------------------------------------- */

/* A kernel that computes wrongly is found at open and named; the answers are right without it. */
static void test_self_check(void **)
{
	static const struct {
		const char *arguments;         /* of the kernel that is wrong */
		size_t shared;
		enum emu_how how;
		int32_t type;
		int gpu;
		uint32_t off;                  /* bits of what is switched off */
		int heads;                     /* 0: the shape's; 1: runs are divided in the check, on four processors, too */
		int32_t w4a8;
	} cases[] = {
		{ NULL, 0, EMU_WRONG, SR_BF16, 80, 0, 0, 0 },
		{ NULL, 0, EMU_WRONG, SR_Q4_1, 90, 0, 0, 0 },
		{ NULL, 0, EMU_WRONG, SR_F8, 90, 0, 0, 0 },
		{ "rows_args", 0, EMU_WRONG, SR_BF16, 80, 1 << SPECIAL_DENSE_FEW, 0, 0 },
		{ "packed_few_args", 0, EMU_WRONG, SR_Q4_1, 80, 1 << SPECIAL_PACKED_FEW, 0, 0 },
		{ "hopper_args", 0, EMU_WRONG, SR_Q4_1, 90, 1 << SPECIAL_HOPPER_MANY, 0, 0 },
		{ "run_args", 0, EMU_WRONG, SR_BF16, 90, 1 << SPECIAL_HOPPER_ATTEND, 0, 0 },
		{ "attend_args", 73728, EMU_WRONG, SR_BF16, 80, 1 << SPECIAL_ATTEND_ONE, 0, 0 },
		{ "packed_many_args", 43024, EMU_WRONG, SR_F8, 89, 1 << SPECIAL_W8A8, 0, 0 },
		{ "attend_args", 73728, EMU_WRONG_PARTS, SR_BF16, 80, 1 << SPECIAL_PIECES, 0, 0 },
		{ "attend_args", 0, EMU_WRONG_PARTS, SR_BF16, 80, 1 << SPECIAL_PIECES | 1 << SPECIAL_RUN_PIECES, 1, 0 },
		{ "add_norm_args", 0, EMU_WRONG_EARLY, SR_BF16, 90, 1 << SPECIAL_EARLY_START, 0, 0 },
		{ "sample_args", 0, EMU_WRONG_PARTS, SR_BF16, 90, 1 << SPECIAL_SAMPLE_BLOCKS, 0, 0 },
		{ NULL, 0, EMU_WRONG, SR_Q4_0, 89, 0, 0, 1 },
		{ "packed_many_args", 34832, EMU_WRONG, SR_Q4_0, 89, 1 << SPECIAL_W4A8, 0, 1 },
	};

	for (const auto &c : cases) {
		struct sr_model shape = wide_heads();
		struct sr_limits lim = limits();
		struct answer right, a;
		struct drive d;
		struct tiny *t;

		if (c.heads)
			shape.kind[0].n_heads = shape.kind[0].n_kv_heads = c.heads;
		if (c.off == 1 << SPECIAL_SAMPLE_BLOCKS)
			shape.n_vocab = 2304;  /* enough for several blocks to sample */
		t = tiny_create(&shape, c.type, TINY_UNTIED, 3);
		if (c.off)
			answer_of(t, ALL, c.gpu, &right);
		capability(c.gpu);
		emu_spoiled = c.arguments;
		emu_spoiled_shared = c.shared;
		emu_spoiled_how = c.how;
		lim.worked = 0;
		lim.logit_rows = 40;
		lim.self_check = 1;
		lim.w4a8 = c.w4a8;
		lim.tokens = c.w4a8 ? 200 : lim.tokens; /* more than the kernels of few rows take */
		t->n_done = 0;
		if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
			fail_msg("%s: %s", c.arguments, d.err);
		assert_int_equal(d.b->d.without, c.off);
		if (c.off) {
			talk(&d, &a);
			near(c.arguments, c.type, &right, &a);
		}
		drive_close(&d);
		emu_spoiled = NULL;
		emu_spoiled_shared = 0;
		emu_spoiled_how = EMU_WRONG;
		tiny_destroy(t);
		capability(80);
	}
}

/* Without a kernel that is right there is no device. */
static void test_nothing_left(void **)
{
	static const char *const arguments[] = { "attend_args", "packed_many_args" };

	for (const char *wrong : arguments) {
		struct sr_model shape = wide_heads();
		struct sr_limits lim = limits();
		struct tiny *t = tiny_create(&shape, SR_Q4_1, TINY_UNTIED, 3);
		struct drive d;

		emu_spoiled = wrong;
		lim.worked = 0;
		lim.self_check = 1;
		assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), -EIO);
		assert_true(strstr(d.err, "computes wrongly"));
		emu_spoiled = NULL;
		tiny_destroy(t);
		assert_int_equal(emu_allocations, 0);
	}
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_sample_blocks),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_off),
		cmocka_unit_test(test_w4_activations),
		cmocka_unit_test(test_few_most),
		cmocka_unit_test(test_run_pieces),
		cmocka_unit_test(test_pieces_of_heads),
		cmocka_unit_test(test_self_check),
		cmocka_unit_test(test_nothing_left),
#endif
	};

	return cmocka_run_group_tests_name("cuda_special", tests, NULL, NULL);
}
