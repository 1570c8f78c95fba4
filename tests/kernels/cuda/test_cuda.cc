/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda.cc - the CUDA back end without a GPU: its kernels and its functions, unmodified, on the
 * CPU (tests/emu), against the CPU back end in plain C.  Verb by verb, then whole batches, with warps
 * and blocks forward and reversed.  `make gpu-check` compiles the same for a real GPU. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <memory>

#include "tests/cuda/one_step.h"
#include "tests/cuda/pair.h"

/* ---- verb by verb --------------------------------------------------------------------- */

static void rows(struct pair *p, int T)
{
	const struct net *a = truth_net(&p->cpu), *b = &p->gpu.b->net;
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);

	cpu_ops.embed(da, a->embed, 3, T);
	embed(db, b->embed, 3, T);
	compare(p, "embed", P_X, T, 1e-6);
	put_both(p, P_X, T, 1);
	put_both(p, P_Z, T, 2);
	cpu_ops.add_norm(da, 0, NULL, a->layer[1].norm1, SR_RMS, 1e-5f, 1, T);
	add_norm(db, 0, NULL, b->layer[1].norm1, SR_RMS, 1e-5f, 1, T);
	compare(p, "add_norm", P_X, T, 1e-6);
	compare(p, "add_norm", P_Y, T, HALF);
	cpu_ops.add_norm(da, 0, a->layer[1].post2, NULL, SR_RMS, 1e-5f, 1, T);
	add_norm(db, 0, b->layer[1].post2, NULL, SR_RMS, 1e-5f, 1, T);
	compare(p, "add_norm with post", P_X, T, 1e-6);
	cpu_ops.add_norm(da, 1, NULL, a->layer[1].norm2, SR_RMS, 1e-5f, 1, T);
	add_norm(db, 1, NULL, b->layer[1].norm2, SR_RMS, 1e-5f, 1, T);
	compare(p, "the first add_norm", P_Y, T, HALF);
	if (T > 40)
		return;
	cpu_ops.pick_norm(da, a->norm, SR_RMS, 1e-5f, 0, T);
	pick_norm(db, b->norm, SR_RMS, 1e-5f, 0, T);
	compare(p, "pick_norm", P_Y, T, HALF);
}

static void columns(struct pair *p, int T)
{
	const struct net *a = truth_net(&p->cpu), *b = &p->gpu.b->net;
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);
	int d_ff = a->m->layer[0].d_ff;

	put_both(p, P_Y, T, 3);
	cpu_ops.matmul(da, P_QKV, P_Y, a->layer[0].qkv, T);
	matmul(db, P_QKV, P_Y, b->layer[0].qkv, T);
	compare(p, "matmul qkv", P_QKV, T, HALF);
	put_both(p, P_A, T, 4);
	cpu_ops.matmul(da, P_Z, P_A, a->layer[0].o, T);
	matmul(db, P_Z, P_A, b->layer[0].o, T);
	compare(p, "matmul o", P_Z, T, 1e-5);
	put_both(p, P_GU, T, 6);
	cpu_ops.act_mul(da, SR_GATED, SR_SILU, 0, d_ff, T);
	act_mul(db, SR_GATED, SR_SILU, 0, d_ff, T);
	compare(p, "silu", P_ACT, T, HALF);
	cpu_ops.act_mul(da, SR_GATED, SR_GELU_TANH, 0, d_ff, T);
	act_mul(db, SR_GATED, SR_GELU_TANH, 0, d_ff, T);
	compare(p, "gelu", P_ACT, T, HALF);
	put_both(p, P_ACT, T, 7);
	cpu_ops.matmul(da, P_Z, P_ACT, a->layer[1].down, T);
	matmul(db, P_Z, P_ACT, b->layer[1].down, T);
	compare(p, "matmul down", P_Z, T, 1e-5);
}

static void positions(struct pair *p, int first, int T)
{
	const struct net *a = truth_net(&p->cpu), *b = &p->gpu.b->net;
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);
	struct sr_attn all = p->gpu.b->m.kind[0], some = all;

	all.scale = some.scale = 0.25f;
	some.cap = 2;
	some.window = 7;
	put_both(p, P_QKV, T, 7 + (uint32_t)first);
	cpu_ops.rope_store(da, 0, &a->m->kind[0], a->layer[0].qn, a->layer[0].kn, 1e-5f, T);
	rope_store(db, 0, &b->m->kind[0], b->layer[0].qn, b->layer[0].kn, 1e-5f, T);
	compare(p, "rope_store", P_QKV, T, HALF);
	cpu_ops.attend(da, 0, &all, NULL, T);
	attend(db, 0, &all, NULL, T);
	compare(p, "attend", P_A, T, 0.012);
	cpu_ops.attend(da, 0, &some, NULL, T);
	attend(db, 0, &some, NULL, T);
	compare(p, "attend, window and cap", P_A, T, 0.012);
}

static void results(struct pair *p, int T)
{
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);

	cpu_ops.pick_norm(da, truth_net(&p->cpu)->norm, SR_RMS, 1e-5f, 0, T);
	put_both(p, P_LOGITS, T, 8);
	cpu_ops.sample(da, 9, 0, T);
	sample(db, 9, 0, T);
	assert_int_equal(cudaStreamSynchronize(db->stream), cudaSuccess);
	for (int i = 0; i < T; i++) {
		const struct sr_result *a = &p->cpu.batch->result[i], *b = &p->gpu.batch->result[i];

		assert_int_equal(a->id, b->id);
		assert_int_equal(a->rank, b->rank);
		assert_float_equal(a->logprob, b->logprob, 1e-4);
	}
}

static void test_verbs(void **)
{
	static const struct { int H, G, E, D, F; int pairs; } shapes[] = {
		{ 4, 2, 16, 64, 96, 0 }, { 9, 3, 64, 96, 160, 1 }, { 8, 1, 128, 32, 32, 0 }, { 2, 2, 32, 64,
			64, 1 },
		{ 4, 1, 96, 32, 64, 0 }, { 2, 1, 256, 32, 32, 0 },
	};
	static const int sizes[] = { 1, 5, 16, 17, 33, 65, 130 };

	for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
		struct sr_model shape = tiny_shape();
		struct pair p;

		shape.kind[0].n_heads = shapes[s].H;
		shape.kind[0].n_kv_heads = shapes[s].G;
		shape.kind[0].head_dim = shapes[s].E;
		shape.d_model = shapes[s].D;
		shape.d_ff = shapes[s].F;
		shape.kind[0].rope.pairs = shapes[s].pairs;
		shape.kind[0].rope.dims = shape.kind[0].head_dim;
		emu_reversed = s % 2;
#ifdef CUDA_EMULATED
		emu_capability = s == 1 || s == 2 ? 90 : 80; /* Hopper has many products and runs of its own */
#endif
		open_pair(&p, &shape, SR_BF16, TINY_BIAS | TINY_QK_NORM | TINY_POST_NORM | TINY_UNTIED,
			5 + s);
		for (int T : sizes) {
			if (s > 1 && T != 5 && T != 65)
				continue;
			emu_reversed = !emu_reversed;
			slice_of(&p, 0, T, false);
			rows(&p, T);
			columns(&p, T);
			positions(&p, 0, T);
			if (T <= 33)
				results(&p, T);
			slice_of(&p, T, 3, false); /* continues what is stored */
			positions(&p, T, 3);
			slice_of(&p, T + 3, 7, true);
			positions(&p, T + 3, 7);
		}
		close_pair(&p);
	}
#ifdef CUDA_EMULATED
	emu_capability = 80;
#endif
	emu_reversed = false;
}

/* Keys and values that e4m3 can hold once they are divided by their layer's scales, and no rope: an FP8 cache
 * keeps them as bf16 does.  The scales are powers of two. */
static void put_f8(struct pair *p, int T, uint32_t seed)
{
	const struct sr_model *m = &p->gpu.b->m;
	const struct sr_attn *kind = &m->kind[0];
	float k_scale = m->layer[0].k_scale ? m->layer[0].k_scale : 1;
	float v_scale = m->layer[0].v_scale ? m->layer[0].v_scale : 1;
	int n = truth_width(&p->cpu, P_QKV);
	std::unique_ptr<float[]> x(new float[T * n]);

	fill(x.get(), T * n, seed);
	for (int i = 0; i < T * n; i++) {
		uint32_t u;

		memcpy(&u, &x[i], 4);
		u &= 0xfff00000;               /* three bits of fraction */
		memcpy(&x[i], &u, 4);
		x[i] = fabsf(x[i]) < 0.015625f ? 0 : x[i];
		if (i % n >= kind->n_heads * kind->head_dim)
			x[i] *= i % n < (kind->n_heads + kind->n_kv_heads) * kind->head_dim ? k_scale : v_scale;
	}
	cpu_ops.put(truth_dev(&p->cpu), P_QKV, x.get(), T);
	put(gpu_dev(p), P_QKV, x.get(), T);
}

static void positions_f8(struct pair *p, int first, int T)
{
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);
	float k_scale = p->gpu.b->m.layer[0].k_scale;
	struct sr_attn all = p->gpu.b->m.kind[0], some = all;

	all.scale = some.scale = 0.25f / (k_scale ? k_scale : 1);
	some.cap = 2;
	some.window = 7;
	put_f8(p, T, 7 + (uint32_t)first);
	cpu_ops.rope_store(da, 0, &truth_net(&p->cpu)->m->kind[0], NULL, NULL, 1e-5f, T);
	rope_store(db, 0, &p->gpu.b->net.m->kind[0], NULL, NULL, 1e-5f, T);
	compare(p, "rope_store, fp8", P_QKV, T, 1e-6);
	cpu_ops.attend(da, 0, &all, NULL, T);
	attend(db, 0, &all, NULL, T);
	compare(p, "attend, fp8", P_A, T, 0.012);
	cpu_ops.attend(da, 0, &some, NULL, T);
	attend(db, 0, &some, NULL, T);
	compare(p, "attend, fp8, window and cap", P_A, T, 0.012);
}

static void test_kv_f8(void **)
{
	static const struct { int H, G, E; } shapes[] = {
		{ 4, 2, 16 }, { 6, 2, 64 }, { 8, 1, 128 }, { 2, 2, 32 }, { 4, 1, 96 }, { 2, 1, 256 },
	};
	static const int sizes[] = { 1, 5, 16, 33, 70 };

	gpu_kv = SR_KV_F8;
	for (size_t s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
		struct sr_model shape = tiny_shape();
		struct pair p;

		shape.kind[0].n_heads = shapes[s].H;
		shape.kind[0].n_kv_heads = shapes[s].G;
		shape.kind[0].head_dim = shapes[s].E;
		shape.kind[0].rope.dims = 0;
		open_pair(&p, &shape, SR_BF16, 0, 5 + s);
		for (int T : sizes) {
			if (s > 1 && T != 70)
				continue;
			/* without them keys would be too small for e4m3, values too large */
			p.gpu.b->m.layer[0].k_scale = T % 2 ? 0 : 0x1p-12f;
			p.gpu.b->m.layer[0].v_scale = T % 2 ? 0 : 0x1p12f;
			emu_reversed = !emu_reversed;
			slice_of(&p, 0, T, false);
			positions_f8(&p, 0, T);
			slice_of(&p, T, 3, false); /* continues what is stored */
			positions_f8(&p, T, 3);
			slice_of(&p, T + 3, 7, true);
			positions_f8(&p, T + 3, 7);
		}
		close_pair(&p);
	}
	gpu_kv = SR_KV_BF16;
	emu_reversed = false;
}

/* ---- sampling ------------------------------------------------------------------------- */

#define DRAWS 24

struct sampling_case {
	const char *what;
	struct sr_sampling s;
	int kind, n;                 /* a list */
	uint32_t word[8];
	bool history;
	int n_top;
};

/* DRAWS slots with one setting, seeds of their own, at positions of their own. */
static void begin_draws(struct drive *d, const struct sampling_case *c)
{
	int32_t said[] = { 7, 3, 3, 9, 11, 3, 40, 41 };

	for (int t = 0; t < DRAWS; t++) {
		struct sr_sampling s = c->s;
		int32_t id = 5;

		s.seed = (uint64_t)t * 77 + 1;
		drive_begin(d, t, &s);
		if (c->n)
			drive_list(d, t, (enum sr_list)c->kind, c->word, c->n);
		if (c->history)
			drive_history(d, t, said, 8, 3);
		drive_row(d, t, 10 + t, &id, 1, 0, 1);
		d->batch->row[t].n_top = (uint8_t)c->n_top;
	}
}

/* The same rows again: their histories have grown by a token. */
static void draw_again(struct drive *d)
{
	for (int t = 0; t < DRAWS; t++)
		drive_row(d, t, 11 + t, NULL, 1, 0, 1);
}

static void same_draws(struct pair *p, const struct sampling_case *c, float cap, uint32_t seed)
{
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);

	truth_slice(&p->cpu);
	gpu_slice(p);
	put_both(p, P_LOGITS, DRAWS, seed);
	cpu_ops.sample(da, cap, 0, DRAWS);
	sample(db, cap, 0, DRAWS);
	if (cudaStreamSynchronize(db->stream) != cudaSuccess)
		fail_msg("%s: %s", c->what, emu_fault());
	for (int i = 0; i < DRAWS; i++) {
		const struct sr_result *a = &p->cpu.batch->result[i], *b = &p->gpu.batch->result[i];

		if (a->id != b->id || a->rank != b->rank || !(fabsf(a->logprob - b->logprob) < 1e-4f))
			fail_msg("%s, draw %d: %d %f rank %d, but %d %f rank %d", c->what, i, a->id,
				(double)a->logprob, a->rank,
				b->id, (double)b->logprob, b->rank);
		for (int j = 0; j < p->cpu.batch->row[i].n_top; j++) {
			assert_int_equal(p->cpu.batch->top[i * SR_TOP_MAX + j].id,
				p->gpu.batch->top[i * SR_TOP_MAX + j].id);
			assert_float_equal(p->cpu.batch->top[i * SR_TOP_MAX + j].logprob,
				p->gpu.batch->top[i * SR_TOP_MAX + j].logprob, 1e-4);
		}
	}
	static uint32_t count[DRAWS * 200];

	cudaMemcpyAsync(count, db->draw.count, sizeof(count), cudaMemcpyDeviceToHost, db->stream);
	assert_int_equal(cudaStreamSynchronize(db->stream), cudaSuccess);
	for (uint32_t n : count)
		assert_int_equal(n, 0);
	clear(p->cpu.batch);
	clear(p->gpu.batch);
}

static void test_sampling(void **)
{
	static const uint32_t up = 0x40a00000, down = 0xc1200000; /* 5, -10 */
	static const struct sampling_case cases[] = {
		{ "greedy", { 0, 0, 1, 0, 0, 0, 0, 1, 0 }, 0, 0, {}, false, 20 },
		{ "plain", { 0, 1, 1, 0, 0, 0, 0, 1, 0 }, 0, 0, {}, false, 3 },
		{ "hot", { 0, 5, 1, 0, 0, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "min_p", { 0, 1.5f, 1, 0.1f, 0, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "top_k 1", { 0, 1, 1, 0, 1, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "top_k 50", { 0, 4, 1, 0, 50, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "top_k of nearly all", { 0, 4, 1, 0, 199, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "top_p", { 0, 2, 0.7f, 0, 0, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "top_p of nothing", { 0, 2, 1e-6f, 0, 0, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "all cuts", { 0, 3, 0.9f, 0.01f, 40, 0, 0, 1, 0 }, 0, 0, {}, false, 0 },
		{ "penalties", { 0, 0, 1, 0, 0, 0.5f, 0.7f, 1.3f, 0 }, 0, 0, {}, true, 2 },
		{ "penalties, random", { 0, 1.2f, 0.95f, 0, 0, 1, 0.7f, 1.3f, 0 }, 0, 0, {}, true, 0 },
		{ "bias", { 0, 1, 1, 0, 0, 0, 0, 1, 0 }, SR_LIST_BIAS, 6, { 8, up, 42, down, 5000, up },
			false, 0 },
		{ "allowed", { 0, 3, 1, 0, 0, 0, 0, 1, 0 }, SR_LIST_ALLOW, 4, { 8, 150, 9999, 3 }, false, 0 },
		{ "nothing allowed", { 0, 3, 1, 0, 0, 0, 0, 1, 0 }, SR_LIST_ALLOW, 1, { 9999 }, false, 0 },
		{ "a bad word", { 0, 0, 1, 0, 0, 0, 0, 1, 0 }, SR_LIST_BAD, 6, { 3, 40, 41, 5, 1, 42 },
			true, 0 },
		{ "a length that lies", { 0, 0, 1, 0, 0, 0, 0, 1, 0 }, SR_LIST_BAD, 4, { 9, 40, 41, 5 },
			true, 0 },
		{ "stop ids too early", { 0, 0, 1, 0, 0, 0, 0, 1, 20 }, SR_LIST_STOP, 3, { 5, 42, 79 },
			false, 0 },
	};
	struct sr_model shape = tiny_shape();
	struct pair p;

	open_pair(&p, &shape, SR_BF16, 0, 3);
	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
		emu_reversed = c % 2;
		begin_draws(&p.cpu, &cases[c]);
		begin_draws(&p.gpu, &cases[c]);
		same_draws(&p, &cases[c], c % 3 == 0 ? 6 : 0, 11 + (uint32_t)c);
		draw_again(&p.cpu);
		draw_again(&p.gpu);
		same_draws(&p, &cases[c], 0, 99 + (uint32_t)c);
	}
	emu_reversed = false;
	close_pair(&p);
}

/* A stop id may be drawn from its least length on, and not before. */
static void test_least_length(void **)
{
	static const struct sampling_case c = { "the least length", { 0, 0, 1, 0, 0, 0, 0, 1, 20 }, SR_LIST_STOP, 1, { 5 },
		false, 0 };
	static const struct { uint32_t id; float add; } best = { 5, 100 };
	struct sr_model shape = tiny_shape();
	struct pair p;

	open_pair(&p, &shape, SR_BF16, 0, 3);
	for (struct drive *d : { &p.cpu, &p.gpu }) {
		begin_draws(d, &c);
		for (int t = 0; t < DRAWS; t++)
			drive_list(d, t, SR_LIST_BIAS, &best, 2);
	}
	same_draws(&p, &c, 0, 11);
	for (int t = 0; t < DRAWS; t++)      /* it draws for position 11 + t */
		assert_true((p.gpu.batch->result[t].id == 5) == (11 + t >= 20));
	close_pair(&p);
}

/* Biases and penalties that leave the floats, and biases whose sum depends on their order: the CPU's
 * draws, and of what is allowed. */
static void test_out_of_range(void **)
{
	static const struct { uint32_t id; float add; } biases[] = {
		{ 8, 3e38f }, { 7, 1e8f }, { 8, 3e38f }, { 7, -1e8f }, { 8, -3e38f }, { 7, 2 }, { 40, 3e38f },
		{ 40, 3e38f }, { 41, 3e38f },
	};
	struct sr_model shape = tiny_shape();
	struct pair p;

	open_pair(&p, &shape, SR_BF16, 0, 3);
	for (int setting = 0; setting < 20; setting++) {
		struct sampling_case c = { "out of range", { 0, 0.7f, 1, 0, 0, 0, 0, 1e-38f, 0 }, SR_LIST_ALLOW, 4,
			{ 7, 8, 40, 41 }, setting % 2 != 0, 0 };
		int n_biases = setting / 2 % 2 ? 6 : 9;

		if (setting / 4 == 1)
			c.s.top_k = 2;
		else if (setting / 4 == 2)
			c.s.top_p = 0.5f;
		else if (setting / 4 == 3)
			c.s.min_p = 0.5f;
		else if (setting / 4 == 4)
			c.s.temperature = 0;
		emu_reversed = setting / 4 % 2;
		for (struct drive *d : { &p.cpu, &p.gpu }) {
			begin_draws(d, &c);
			for (int t = 0; t < DRAWS; t++)
				drive_list(d, t, SR_LIST_BIAS, biases, 2 * n_biases);
		}
		same_draws(&p, &c, 0, 11 + (uint32_t)setting);
		for (int t = 0; t < DRAWS; t++) {
			int32_t id = p.gpu.batch->result[t].id;

			assert_true(id == 7 || id == 8 || id == 40 || id == 41);
		}
	}
	emu_reversed = false;
	close_pair(&p);
}

/* Logits as a broken model makes them: never an id beyond the vocabulary, never a NaN. */
static void test_broken_logits(void **)
{
	static const float fills[] = { NAN, INFINITY, -INFINITY, 0 };
	struct sr_model shape = tiny_shape();
	struct sampling_case c = { "broken", { 0, 1, 0.9f, 0, 20, 0, 0, 1, 0 }, 0, 0, {}, false, 4 };
	std::unique_ptr<float[]> x(new float[DRAWS * 200]);
	struct pair p;

	open_pair(&p, &shape, SR_BF16, 0, 3);
	for (float f : fills) {
		begin_draws(&p.gpu, &c);
		gpu_slice(&p);
		for (int i = 0; i < DRAWS * 200; i++)
			x[i] = i % 7 == 3 && i / 200 % 2 ? (float)(i % 11) : f;
		put(gpu_dev(&p), P_LOGITS, x.get(), DRAWS);
		sample(gpu_dev(&p), 0, 0, DRAWS);
		assert_int_equal(cudaStreamSynchronize(gpu_dev(&p)->stream), cudaSuccess);
		for (int i = 0; i < DRAWS; i++) {
			const struct sr_result *r = &p.gpu.batch->result[i];

			assert_in_range(r->id, 0, 199);
			assert_true(std::isfinite(r->logprob));
			for (int j = 0; j < 4; j++) {
				assert_in_range(p.gpu.batch->top[i * SR_TOP_MAX + j].id, 0, 199);
				assert_true(std::isfinite(p.gpu.batch->top[i * SR_TOP_MAX + j].logprob));
			}
		}
		clear(p.gpu.batch);
	}
	close_pair(&p);
}

/* ---- whole batches -------------------------------------------------------------------- */

static void test_batches(void **)
{
	int same = 0;
	static const struct { const char *what; int32_t type; unsigned flags; int window, act,
		rope; float cap; double bound; int32_t kv = SR_KV_BF16; } cases[] = {
		{ "bf16", SR_BF16, TINY_UNTIED, 0, SR_SILU, SR_ROPE_PLAIN, 0, 0.03 },
		{ "bf16, qwen3", SR_BF16, TINY_QK_NORM, 0, SR_SILU, SR_ROPE_LLAMA3, 0, 0.06 },
		{ "f16, qwen2", SR_F16, TINY_BIAS, 0, SR_SILU, SR_ROPE_YARN, 0, 0.06 },
		{ "f32, gemma", SR_F32, TINY_QK_NORM | TINY_POST_NORM, 20, SR_GELU_TANH, SR_ROPE_LINEAR, 5,
			0.06 },
		{ "awq", SR_AWQ4, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0, 0.06 },
		{ "gptq, qwen2", SR_GPTQ4, TINY_BIAS | TINY_UNTIED, 0, SR_SILU, SR_ROPE_PLAIN, 0, 0.06 },
		{ "q4_1, tied", SR_Q4_1, 0, 0, SR_SILU, SR_ROPE_PLAIN, 0, 0.1 }, /* the CPU: x in 8 bits */
		{ "fp8 cache", SR_BF16, TINY_UNTIED, 0, SR_SILU, SR_ROPE_PLAIN, 0, 0.25, SR_KV_F8 },
		{ "one of each", SR_Q8_0, TINY_MIXED | TINY_UNTIED, 0, SR_SILU, SR_ROPE_PLAIN, 0, 0.06 },
	};

	for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
		struct sr_model shape = tiny_shape();
		struct sr_layer layers[2] = {};
		static struct answer a, b;
		double diff = 0;
		struct pair p;

		shape.act = cases[c].act;
		shape.kind[0].cap = shape.logit_cap = cases[c].cap;
		shape.kind[0].rope.kind = cases[c].rope;
		shape.kind[0].rope.pairs = (int32_t)(c % 2);
		shape.kind[0].rope.context = 32;
		shape.kind[0].rope.factor = 4;
		shape.kind[0].rope.low = 1;
		shape.kind[0].rope.high = cases[c].rope == SR_ROPE_YARN ? 32 : 4;
		tiny_window(&shape, layers, cases[c].window);
		if (cases[c].window)
			shape.kind[1].rope.theta = 700, layers[0].d_ff = 64; /* as well as another window */
		gpu_kv = cases[c].kv;
		open_pair(&p, &shape, cases[c].type, cases[c].flags, 7 + c);
		gpu_kv = SR_KV_BF16;
		emu_reversed = c % 2;
		converse(&p.cpu, &a);
		converse(&p.gpu, &b);
		emu_reversed = false;
		for (int i = 0; i < 70; i++) {
			assert_int_equal(a.result[i].id, b.result[i].id);
			diff += fabs((double)a.result[i].logprob - b.result[i].logprob) / 70;
		}
		if (!(diff <= cases[c].bound))
			fail_msg("%s: mean difference %g of log-probabilities", cases[c].what, diff);
		if (cases[c].kv == SR_KV_F8) { /* other numbers, other tokens */
			close_pair(&p);
			continue;
		}
		for (int row = 0; row < 2; row++)
			same += same_tokens(&a, &b, 71 + row, cases[c].what);
		assert_int_equal(a.top[72][0].id, b.top[72][0].id);
		assert_float_equal(a.top[72][4].logprob, b.top[72][4].logprob, 0.1);
		close_pair(&p);
	}
	assert_true(same > 8 * 26 * 2 / 3);
}

/* Log-probabilities of one sequence whose prompt comes in chunks of `chunk`, whose tokens are then given one
 * by one, beside `others` more sequences. */
static void recite(struct drive *d, int chunk, int others, float out[60])
{
	int32_t text[61], ids[24];
	int at;

	for (int i = 0; i < 61; i++)
		text[i] = (i * i * 7 + i * 3) % 200;
	for (int i = 0; i < 24; i++)
		ids[i] = i * 5;
	for (int s = 0; s <= others; s++) {
		drive_begin(d, s, NULL);
		drive_range(d, s, 4 * s, 4);
	}
	for (int i = 0; i < 60;) {
		int n = i >= 50 ? 1 : i + chunk > 50 ? 50 - i : chunk;
		bool mine_first = n == 1;

		if (!mine_first)
			for (int s = 1; s <= others; s++)
				drive_row(d, s, i % 20, ids + s, 1, 0, 1);
		at = drive_row(d, 0, i, text + i, n, n, 0);
		if (mine_first)
			for (int s = 1; s <= others; s++)
				drive_row(d, s, i % 20, ids, 2, 0, 1);
		drive_step(d);
		for (int j = 0; j < n; j++)
			out[i++] = d->batch->result[at + j].logprob;
	}
}

/* The same bits, alone or not, however the prompt is cut. */
static void test_deterministic(void **)
{
	static const int32_t types[] = { SR_BF16, SR_GPTQ4, SR_F8 };

	for (int32_t type : types) {
		struct sr_model shape = tiny_shape();
		struct tiny *t = tiny_create(&shape, type, TINY_UNTIED, 3);
		struct sr_limits lim = drive_limits();
		struct drive d;
		float alone[60], other[60];

#ifdef CUDA_EMULATED
		emu_capability = 89;
#endif
		lim.worked = 0;
		lim.deterministic = 1;
		assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), 0);
		recite(&d, 50, 0, alone);
		recite(&d, 7, 9, other);
		assert_memory_equal(alone, other, sizeof(alone));
		emu_reversed = true;
		recite(&d, 33, 12, other);
		emu_reversed = false;
		assert_memory_equal(alone, other, sizeof(alone));
		drive_close(&d);
		tiny_destroy(t);
	}
#ifdef CUDA_EMULATED
	emu_capability = 80;
#endif
}

/* ---- the door ------------------------------------------------------------------------- */

/* Two batches in flight: the second begins from the token that the first has not yet drawn. */
static void test_in_flight(void **)
{
	struct sr_model shape = tiny_shape();
	int32_t alone[20];
	struct pair p;
	struct sr_backend *b;

	open_pair(&p, &shape, SR_BF16, TINY_UNTIED, 3);
	b = p.gpu.b;
	for (int turn = 0; turn < 2; turn++) {
		drive_begin(&p.gpu, 0, NULL);
		drive_range(&p.gpu, 0, 10 * turn, 4);
		drive_step(&p.gpu); /* a batch without rows */
		if (turn == 0) {
			for (int i = 0; i < 20; i++) {
				fill_step(batch(b, 0), 0, i, i ? SR_LAST : 33);
				assert_int_equal(launch(b, 0), 0);
				assert_int_equal(wait_for(b, 0), 1);
				alone[i] = batch(b, 0)->result[0].id;
			}
			continue;
		}
		fill_step(batch(b, 0), 0, 0, 33);
		assert_int_equal(launch(b, 0), 0);
		for (int i = 1; i < 20; i++) {
			fill_step(batch(b, i % 2), 0, i, SR_LAST);
			assert_int_equal(launch(b, i % 2), 0);
			assert_int_equal(wait_for(b, (i - 1) % 2), 1);
			assert_int_equal(batch(b, (i - 1) % 2)->result[0].id, alone[i - 1]);
			assert_true(batch(b, (i - 1) % 2)->end_ns >= batch(b, (i - 1) % 2)->begin_ns);
		}
		assert_int_equal(wait_for(b, 1), 1);
		assert_int_equal(batch(b, 1)->result[0].id, alone[19]);
	}
	clear(p.gpu.batch);
	close_pair(&p);
}

static void copy(struct drive *d, int32_t device, int32_t host, int32_t out)
{
	d->batch->copy[d->batch->n_copies++] = (struct sr_copy){ device, host, out };
}

/* A block goes to the host tier, another sequence takes its place, and it comes back elsewhere.  Then it goes out and
 * another comes into its place in the same batch, in whatever order core lists them. */
static void test_tiers(void **)
{
	struct sr_model shape = tiny_shape();
	int32_t text[16], moved[] = { 7, 4 }, again[] = { 9, 4 };
	struct sr_result first, second;
	struct pair p;
	int at;

	for (int i = 0; i < 16; i++)
		text[i] = 5 * i;
	open_pair(&p, &shape, SR_BF16, 0, 3);
	drive_begin(&p.gpu, 0, NULL);
	drive_range(&p.gpu, 0, 3, 2);
	drive_row(&p.gpu, 0, 0, text, 16, 0, 1);
	drive_step(&p.gpu);
	at = drive_row(&p.gpu, 0, 16, text, 1, 0, 1);
	drive_step(&p.gpu);
	first = p.gpu.batch->result[at];

	copy(&p.gpu, 3, 2, 1);
	drive_begin(&p.gpu, 1, NULL);
	drive_range(&p.gpu, 1, 3, 1);
	drive_row(&p.gpu, 1, 0, text + 2, 9, 0, 1);
	drive_step(&p.gpu);
	copy(&p.gpu, 3, 1, 1);
	copy(&p.gpu, 7, 2, 0);
	drive_begin(&p.gpu, 2, NULL);
	drive_blocks(&p.gpu, 2, 0, moved, 2);
	at = drive_row(&p.gpu, 2, 16, text, 1, 0, 1);
	drive_step(&p.gpu);
	second = p.gpu.batch->result[at];
	assert_memory_equal(&first, &second, sizeof(first));

	copy(&p.gpu, 7, 1, 0);
	copy(&p.gpu, 7, 0, 1);
	drive_step(&p.gpu);
	copy(&p.gpu, 9, 0, 0);
	drive_begin(&p.gpu, 3, NULL);
	drive_blocks(&p.gpu, 3, 0, again, 2);
	at = drive_row(&p.gpu, 3, 16, text, 1, 0, 1);
	drive_step(&p.gpu);
	second = p.gpu.batch->result[at];
	assert_memory_equal(&first, &second, sizeof(first));
	close_pair(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_verbs),
		cmocka_unit_test(test_kv_f8),
		cmocka_unit_test(test_sampling),
		cmocka_unit_test(test_least_length),
		cmocka_unit_test(test_out_of_range),
		cmocka_unit_test(test_broken_logits),
		cmocka_unit_test(test_batches),
		cmocka_unit_test(test_deterministic),
		cmocka_unit_test(test_in_flight),
		cmocka_unit_test(test_tiers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
