/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_packed.cc - CUDA products of weights of 4 and 8 bits, as files have them, against the same sums
 * in double over the weights that the formats' descriptions make of them; and what is refused. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "kernels/cpu/types.h"
}

#include "kernels/cuda/hopper.cuh"
#include "tests/cuda/packed.h"

static const struct kind kinds[] = {
	{ "awq 32", SR_AWQ4, SR_F16, 32, 0, true }, { "awq 128", SR_AWQ4, SR_F16, 128, 0, true },
	{ "gptq 64", SR_GPTQ4, SR_F16, 64, 0, true }, { "gptq whole", SR_GPTQ4, SR_F16, 0, 0, true },
	{ "gptq v2 32", SR_GPTQ4_V2, SR_BF16, 32, 0, true }, { "ct 32", SR_CT4, SR_BF16, 32, 0, true },
	{ "ct symmetric", SR_CT4, SR_F32, 128, 0, false }, { "q4_0", SR_Q4_0, SR_NONE, 0, 0, false },
	{ "q4_1", SR_Q4_1, SR_NONE, 0, 0, false }, { "q4_k", SR_Q4_K, SR_NONE, 0, 0, false },
	{ "f8 tensor", SR_F8, SR_F32, 0, 0, false }, { "f8 channel", SR_F8, SR_BF16, 0, 1, false },
	{ "f8 blocks", SR_F8, SR_F32, 128, 128, false }, { "f8 small blocks", SR_F8, SR_F32, 32, 1, false },
};

/* Shapes: strips and slabs that do and do not fill the tiles; blocks with a part of one tile, of two, with
 * whole tiles; warps with several groups. */
static void products(struct bench *b, bool small)
{
	static const struct { int n, k; } shapes[] = {
		{ 200, 256 }, { 72, 768 }, { 264, 1056 }, { 1100, 64 }, { 264, 2048 },
	};
	int turn = 0;

	for (const struct kind &kind : kinds) {
		bool w8 = kind.type == SR_F8;

		for (const auto &s : shapes) {
			static const int few_rows[] = { 1, 7, 16, 29, 50 }, many_rows[] = { 65, 150 };
			int32_t group = kind.group ? kind.group : kind.type == SR_Q4_K ? 256 : 32;
			size_t used;

			if (s.k % group || (small && s.n != 200) || (small && !w8 && !b->d->product.w4a8 && b->d->gpu.capability < 90) ||
			    (w8 && b->d->product.w4a8) ||
			    (s.k == 2048 && (group < 64 || w8)) ||
			    (s.n % 8 && kind.type != SR_Q4_1 && !w8))
				continue;
			struct sr_tensor t = make(b, &kind, s.n, s.k);
			const struct sr_tensor *part[] = { &t };
			struct weight *w = load_weight(b, part, NULL, 1, &used);
			auto truth = dense(b, &t);

			emu_reversed = ++turn % 2;
			for (int T : { few_rows[turn % 5], few_rows[(turn + 2) % 5] }) {
				struct run_case r = { T, T, false, w8 ? 2e-6 : 3e-4 };

				if (!small)
					compare(b, kind.what, w, truth.get(), NULL, b->room + used, &r);
			}
			struct run_case r = { many_rows[turn % 2], 0, true, uses_x8(b->d, w) ?
				e4m3_bound(b->d->gpu.capability) : 0.003 };

			compare(b, kind.what, w, truth.get(), NULL, b->room + used, &r);
		}
	}
	emu_reversed = false;
}

static void test_products(void **)
{
	struct bench b;

	set_up(&b, 80);
#ifdef CUDA_EMULATED
	assert_null(b.d->product.x8);
#endif
	products(&b, false);
	tear_down(&b);
}

/* Activations in 8 bits, too. */
static void test_products_f8(void **)
{
	struct bench b;

	set_up(&b, 89);
#ifndef CUDA_EMULATED
	if (b.d->gpu.capability < 89) {
		tear_down(&b);
		skip();
	}
#endif
	assert_non_null(b.d->product.x8);
	products(&b, true);
	tear_down(&b);
}

/* The same beside weights of 4 bits, if their zero points are whole numbers: q - z in e4m3 is exact.  On Hopper groups
 * of less than 128 inputs stay with bf16. */
static void test_products_w4a8(void **)
{
	for (int capability : { 89, 90 }) {
		struct bench b;

		set_up(&b, capability);
		b.d->product.w4a8 = b.d->product.x8;
		if (b.d->product.x8)
			products(&b, true);
		tear_down(&b);
	}
}

#ifdef CUDA_EMULATED /* there a kernel's function can be called */
/* Every q beside every z, as a file's scale and shift say them. */
static void test_e4m3_of_w4(void **)
{
	for (int z = 0; z < 17; z++) {
		float2 scale = { 0.0123f, f32_of_f16(f16_of_f32(0.0123f * (float)(8 - z))) };
		uint32_t low, high;

		e4m3_of_w4(0x76543210, w4a8_offset(scale), low, high);
		for (int i = 0; i < 4; i++) {      /* nibbles 0, 1, 4, 5, then 2, 3, 6, 7 */
			int q = i / 2 * 4 + i % 2;

			assert_true(e4m3_value(low >> 8 * i & 0xff) * W4A8_SCALE == (float)(q - z));
			assert_true(e4m3_value(high >> 8 * i & 0xff) * W4A8_SCALE == (float)(q + 2 - z));
		}
		e4m3_of_w4(0xfedcba98, w4a8_offset(scale), low, high);
		for (int i = 0; i < 4; i++)
			assert_true(e4m3_value(low >> 8 * i & 0xff) * W4A8_SCALE == (float)(i / 2 * 4 + i % 2 + 8 - z));
	}
}
#endif

/* Hopper's kernels for many rows (test_cuda_hopper.cc has more of them). */
static void test_products_hopper(void **)
{
	struct bench b;

	set_up(&b, 90);
#ifndef CUDA_EMULATED
	if (!can_hopper(b.d->gpu.capability)) {
		tear_down(&b);
		skip();
	}
#endif
	assert_non_null(b.d->product.hopper_work);
	products(&b, true);
	tear_down(&b);
}

/* ---- NVFP4 ---------------------------------------------------------------------------- */

enum nvfp4_of { MODELOPT, LLM_COMPRESSOR, GGUF };

/* Random quants and scales; in truth, what they are. */
static struct sr_tensor make_nvfp4(struct bench *b, enum nvfp4_of of, int32_t n, int32_t k, std::vector<float> &truth)
{
	static const float e2m1[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	struct sr_tensor w = {};
	size_t N = (size_t)n, K = (size_t)k;
	float factor = of == LLM_COMPRESSOR ? 3300.0f : 0.00021f, by = of == LLM_COMPRESSOR ? 1 / factor : factor;

	w.name = "nvfp4";
	w.type = of == LLM_COMPRESSOR ? SR_NVFP4_CT : SR_NVFP4;
	w.n = n;
	w.k = k;
	w.group = 16;
	w.group_n = 1;
	w.scale_type = SR_F8;
	w.data = more(b, of == GGUF ? N * (K / 64) * 36 : N * K / 2, true);
	if (of != GGUF)
		w.scale = more(b, N * K / 16, true);
	w.zero = more(b, 4, false);
	memcpy(b->t->bytes + w.zero.offset, &factor, 4);
	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j < K; j++) {
			size_t g = j / 16, at = j % 16;
			uint8_t *block = b->t->bytes + w.data.offset + (i * K + j) / 64 * 36;
			uint8_t *scale = of == GGUF ? block + g % 4 : b->t->bytes + w.scale.offset + i * (K / 16) + g;
			uint8_t two = of == GGUF ? block[4 + g % 4 * 8 + at % 8] : b->t->bytes[w.data.offset + (i * K + j) / 2];
			uint8_t q = two >> 4 * (of == GGUF ? at / 8 : at % 2) & 15;

			*scale = *scale & 0x7f;    /* a sign, and NaN */
			*scale = *scale == 0x7f ? 0x30 : *scale;
			truth.push_back((q & 8 ? -1 : 1) * e2m1[q & 7] * e4m3_value(*scale) * by);
		}
	return w;
}

/* Two matrices with factors of their own, as files have them; few rows and many; scales are not rounded. */
static void test_nvfp4(void **)
{
	static const struct { int n, k; } shapes[] = { { 200, 256 }, { 72, 768 }, { 264, 1024 } };
	static const int rows[] = { 1, 7, 16, 29, 50, 64, 150 };
	struct bench b;
	int turn = 0;

	set_up(&b, 80);
	for (const auto &s : shapes)
		for (enum nvfp4_of of : { MODELOPT, LLM_COMPRESSOR, GGUF }) {
			std::vector<float> truth;
			struct sr_tensor t = make_nvfp4(&b, of, s.n, s.k, truth);
			struct sr_tensor u = make_nvfp4(&b, MODELOPT, 40, s.k, truth);
			const struct sr_tensor *part[] = { &t, &u };
			float half = 0.5f;
			size_t used;

			memcpy(b.t->bytes + u.zero.offset, &half, 4);
			for (size_t i = (size_t)s.n * (size_t)s.k; i < truth.size(); i++)
				truth[i] *= half / 0.00021f;
			struct weight *w = load_weight(&b, part, NULL, of == MODELOPT ? 2 : 1, &used);

			assert_int_equal(w->held, HELD_N4);
			emu_reversed = ++turn % 2;
			for (int i = 0; i < 3; i++) {
				int T = i == 2 ? 150 : rows[(turn * 2 + i) % 6];
				struct run_case r = { T, T, i == 2, 2e-6 };

				compare(&b, "nvfp4", w, truth.data(), NULL, b.room + used, &r);
			}
		}
	emu_reversed = false;
	tear_down(&b);
}

#ifdef CUDA_EMULATED
/* Tiles that are fewer than the blocks that fit are shared, in parts; the same bits in either order of blocks. */
static void test_divided(void **)
{
	const kind awq = { "awq 128", SR_AWQ4, SR_F16, 128, 0, true };
	const size_t T = 150, N = 264, K = 2048;
	std::vector<float> y[3];
	struct bench b;
	size_t used;

	set_up(&b, 80);
	assert_true(b.d->product.divided);
	struct sr_tensor t = make(&b, &awq, N, K);
	const struct sr_tensor *part[] = { &t };
	struct weight *w = load_weight(&b, part, NULL, 1, &used);
	bf16 *x = (bf16 *)(b.room + used);
	float *out = (float *)(b.room + used + T * K * 2);
	float *place = b.d->product.part + 128 * 128; /* of the first block, which begins a tile */
	std::vector<bf16> half(T * K);

	for (bf16 &v : half)
		v = bf16_of(unit(&b.seed));
	cudaMemcpyAsync(x, half.data(), T * K * 2, cudaMemcpyHostToDevice, b.d->stream);
	for (int turn = 0; turn < 3; turn++) {
		uint32_t first = 0;

		emu_reversed = turn == 1;
		b.d->product.divided = turn < 2;
		cudaMemsetAsync(place, 0xff, 4, b.d->stream);
		packed_many_rows(b.d, out, true, x, w, T, false);
		y[turn].resize(T * N);
		cudaMemcpyAsync(y[turn].data(), out, T * N * 4, cudaMemcpyDeviceToHost, b.d->stream);
		cudaMemcpyAsync(&first, place, 4, cudaMemcpyDeviceToHost, b.d->stream);
		assert_int_equal(cudaStreamSynchronize(b.d->stream), cudaSuccess);
		assert_int_equal(first == 0xffffffff, turn == 2); /* a part was stored */
	}
	assert_memory_equal(y[0].data(), y[1].data(), T * N * 4);
	for (size_t i = 0; i < T * N; i++)
		assert_true(fabsf(y[0][i] - y[2][i]) < 1e-4f);
	emu_reversed = false;
	tear_down(&b);
}
#endif

/* Norms and activations that leave their rows in 8 bits give the products that a kernel of its own for it gives. */
static void test_producers(void **)
{
	const int MANY = 260;                  /* more than the kernels of few rows multiply */
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();
	struct drive gpu;
	struct tiny *t = tiny_create(&shape, SR_F8, TINY_UNTIED | TINY_POST_NORM, 3);
	std::vector<float> x, out[2];

#ifdef CUDA_EMULATED
	emu_capability = 89;
#endif
	assert_int_equal(drive_open(&gpu, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), 0);
	struct dev *d = &gpu.b->d;
	struct net_layer *y = &gpu.b->net.layer[1];

	if (!d->product.x8) {
		drive_close(&gpu);
		tiny_destroy(t);
		skip();
	}
	assert_true(y->norm1->feeds == y->qkv && y->norm2->feeds == y->gu && y->gu->feeds == y->down);
	for (int i = 0; i < MANY * 2 * t->m.d_ff; i++)
		x.push_back(f32_of(bf16_of(sinf((float)i * 0.37f) * (i % 41 == 7 ? 9 : 1))));
	for (int at = 0; at < 6; at++) {       /* which product; with its producer first, then apart */
		bool apart = at % 2;
		const struct weight *w = at / 2 == 0 ? y->qkv : at / 2 == 1 ? y->gu : y->down;
		enum place to = at / 2 == 0 ? P_QKV : at / 2 == 1 ? P_GU : P_Z;
#ifdef CUDA_EMULATED
		uint64_t launches;
#endif

		emu_reversed = at % 3 == 1;
		y->norm1->feeds = y->norm2->feeds = apart ? NULL : w;
		d->product.reader = apart ? NULL : w;
		put(d, P_X, x.data(), MANY);
		put(d, P_Z, x.data() + 7, MANY);
		put(d, P_GU, x.data(), MANY);
#ifdef CUDA_EMULATED
		launches = emu_launches;
#endif
		if (at / 2 == 2)
			act_mul(d, SR_GATED, SR_SILU, 0, t->m.d_ff, MANY);
		else
			add_norm(d, at / 2 == 0, at / 2 ? y->post1 : NULL, at / 2 ? y->norm2 : y->norm1, SR_RMS, 1e-5f, 1, MANY);
		matmul(d, to, at / 2 == 2 ? P_ACT : P_Y, w, MANY);
		out[at % 2].assign(MANY * (size_t)w->n, NAN);
		get(d, to, out[at % 2].data(), MANY);
#ifdef CUDA_EMULATED
		assert_int_equal(emu_launches - launches, apart ? 3 : 2);
#endif
		if (apart)
			for (size_t i = 0; i < out[0].size(); i++)
				assert_true(out[0][i] == out[1][i]);
	}
	emu_reversed = false;
	drive_close(&gpu);
	tiny_destroy(t);
#ifdef CUDA_EMULATED
	emu_capability = 80;
#endif
	assert_int_equal(emu_allocations, 0);
}

/* Three parts with groups of their own, a bias for two of them. */
static void test_parts(void **)
{
	static const struct kind parts[2][3] = {
		{ { "q", SR_GPTQ4, SR_F16, 96, 0, true }, { "k", SR_AWQ4, SR_F16, 64, 0, true },
		  { "v", SR_CT4, SR_BF16, 0, 0, false } },
		{ { "q", SR_F8, SR_F32, 0, 0, false }, { "k", SR_F8, SR_F32, 0, 1, false },
		  { "v", SR_F8, SR_F32, 64, 32, false } },
	};
	struct bench b;

	set_up(&b, 80);
	for (const auto &kind : parts) {
		static const int32_t n[] = { 104, 40, 56 };
		struct sr_tensor t[3], c[2] = {};
		const struct sr_tensor *part[3], *bias[3] = { &c[0], NULL, &c[1] };
		std::vector<float> truth, add(200, 0);
		size_t used;

		for (int i = 0; i < 3; i++) {
			t[i] = make(&b, &kind[i], n[i], 192);
			part[i] = &t[i];
			auto f = dense(&b, &t[i]);
			truth.insert(truth.end(), f.get(), f.get() + n[i] * 192);
		}
		for (int i = 0; i < 2; i++) {
			c[i].name = "bias";
			c[i].type = SR_F32;
			c[i].n = 1;
			c[i].k = n[2 * i];
			c[i].data = more(&b, (size_t)n[2 * i] * 4, false);
			for (int j = 0; j < n[2 * i]; j++) {
				float *to = &add[(size_t)(i ? 144 + j : j)];

				*to = unit(&b.seed);
				memcpy(b.t->bytes + c[i].data.offset + 4 * (size_t)j, to, 4);
			}
		}
		struct weight *w = load_weight(&b, part, bias, 3, &used);
		struct run_case few_case = { 9, 9, false, 3e-4 }, many_case = { 70, 0, true, 0.003 };

		compare(&b, "parts", w, truth.data(), add.data(), b.room + used, &few_case);
		compare(&b, "parts", w, truth.data(), add.data(), b.room + used, &many_case);
	}
	tear_down(&b);
}

/* ---- act-order ------------------------------------------------------------------------ */

/* Groups of a tensor's inputs, in any order; and what its weights are then. */
static void shuffle(struct bench *b, struct sr_tensor *t, std::vector<int32_t> &index)
{
	int32_t group = t->group ? t->group : t->k;

	for (int32_t k = 0; k < t->k; k++)
		index.push_back(k / group);
	for (size_t k = index.size() - 1; k; k--)
		std::swap(index[k], index[dice(&b->seed) % (k + 1)]);
	t->index = more(b, index.size() * 4, false);
	memcpy(b->t->bytes + t->index.offset, index.data(), index.size() * 4);
}

static std::vector<float> dense_of_index(const struct bench *b, const struct sr_tensor *t, const std::vector<int32_t> &index)
{
	size_t N = (size_t)t->n, K = (size_t)t->k, group = t->group ? (size_t)t->group : K, groups = K / group;
	std::vector<float> w(N * K);
	bool ct = t->type == SR_CT4;

	for (size_t n = 0; n < N; n++) {
		for (size_t k = 0; k < K; k++) {
			size_t g = (size_t)index[k], at = ct ? n * groups + g : g * N + n;
			const uint8_t *scale = b->t->bytes + t->scale.offset + 2 * at;
			uint16_t half = (uint16_t)(scale[0] | scale[1] << 8);
			size_t nibble = ct ? n * K + k : (k / 8 * N + n) * 8 + k % 8; /* of all, from the lowest */
			size_t zero = ct ? (n / 8 * groups + g) * 8 + n % 8 : g * N + n;
			int q = b->t->bytes[t->data.offset + nibble / 2] >> 4 * (nibble % 2) & 15, z = 8;

			if (t->zero.bytes)
				z = b->t->bytes[t->zero.offset + zero / 2] >> 4 * (zero % 2) & 15;
			z += t->type == SR_GPTQ4;
			w[n * K + k] = (t->scale_type == SR_F16 ? f32_of_f16(half) : f32_of(half)) * (float)(q - z);
		}
	}
	return w;
}

static void test_act_order(void **)
{
	static const struct kind kinds[] = {
		{ "gptq act-order 32", SR_GPTQ4, SR_F16, 32, 0, true },
		{ "gptq v2 act-order 96", SR_GPTQ4_V2, SR_F16, 96, 0, true },
		{ "ct act-order 64", SR_CT4, SR_BF16, 64, 0, true },
	};
	struct bench b;

	set_up(&b, 80);
	for (const struct kind &kind : kinds) {
		struct sr_tensor t = make(&b, &kind, 200, 576), two = make(&b, &kind, 40, 576);
		const struct sr_tensor *part[] = { &t, &two };
		std::vector<int32_t> index;
		std::vector<float> truth, rest;
		size_t used;

		shuffle(&b, &t, index);
		two.index = t.index;
		truth = dense_of_index(&b, &t, index);
		rest = dense_of_index(&b, &two, index);
		truth.insert(truth.end(), rest.begin(), rest.end());
		struct weight *w = load_weight(&b, part, NULL, 2, &used);

		assert_non_null(w->order);
		for (bool reversed : { false, true }) {
			struct run_case few_case = { 9, 9, false, 3e-4 }, many_case = { 70, 0, true, 0.003 };

			emu_reversed = reversed;
			compare(&b, kind.what, w, truth.data(), NULL, b.room + used, &few_case);
			compare(&b, kind.what, w, truth.data(), NULL, b.room + used, &many_case);
		}
	}
	tear_down(&b);
}

/* Refused while it is loaded: the order is in the file. */
static void order_refused(struct bench *b, const char *say, const struct sr_tensor *const *part, int n)
{
	struct weight *w;
	int64_t bytes = weight_add(b->d, NULL, part, NULL, n, b->gpu.err, sizeof(b->gpu.err)), e;

	assert_true(bytes > 0);
	b->d->store.at = b->d->store.base = b->room;
	b->d->store.end = b->room + bytes;
	e = weight_add(b->d, &w, part, NULL, n, b->gpu.err, sizeof(b->gpu.err));
	if (e >= 0 || !strstr(b->gpu.err, say))
		fail_msg("%d, \"%s\" does not say \"%s\"", (int)e, b->gpu.err, say);
}

static void test_orders_refused(void **)
{
	static const struct kind kind = { "gptq", SR_GPTQ4, SR_F16, 32, 0, true };
	for (int what = 0; what < 4; what++) {
		struct bench b;

		set_up(&b, 80);
		struct sr_tensor t = make(&b, &kind, 40, 96), two = make(&b, &kind, 40, 96);
		const struct sr_tensor *part[] = { &t, &two };
		std::vector<int32_t> index, other;

		t.name = "first";
		two.name = "second";
		shuffle(&b, &t, index);
		shuffle(&b, &two, other);
		if (what) {                    /* a group too many, one that is negative, groups of other sizes */
			int32_t bad = what == 1 ? 3 : what == 2 ? -1 : (index[50] + 1) % 3;

			memcpy(b.t->bytes + t.index.offset + 200, &bad, 4);
		}
		order_refused(&b, what ? "tensor first: the groups of its inputs (act-order) must all be of one size" :
			"tensor second has its inputs in another order (act-order) than first", part, 2);
		tear_down(&b);
	}
}

/* Norms and act_mul make rows in the order of the product after them: its bits are those after a kernel for it. */
static void test_ordered_producers(void **)
{
	static const struct kind kind = { "gptq", SR_GPTQ4, SR_F16, 32, 0, true };
	struct bench b;
	size_t used;

	set_up(&b, 80);
	struct dev *d = b.d;
	struct net_layer *y = &b.gpu.b->net.layer[1];

	for (bool act : { false, true }) {
		int32_t k = act ? b.t->m.d_ff : b.t->m.d_model;
		struct sr_tensor t = make(&b, &kind, 64, k);
		const struct sr_tensor *part[] = { &t };
		std::vector<int32_t> index;
		std::vector<float> x, out[2];

		shuffle(&b, &t, index);
		struct weight *w = load_weight(&b, part, NULL, 1, &used);

		d->product.ordered = (bf16 *)(b.room + used);
		for (int32_t i = 0; i < 20 * 2 * b.t->m.d_ff; i++)
			x.push_back(f32_of(bf16_of(unit(&b.seed))));
		for (bool apart : { false, true }) {
			y->norm1->feeds = d->product.reader = apart ? NULL : w;
			emu_reversed = apart;
			put(d, P_X, x.data(), 20);
			put(d, P_GU, x.data(), 20);
			if (act)
				act_mul(d, SR_GATED, SR_SILU, 0, b.t->m.d_ff, 20);
			else
				add_norm(d, 1, NULL, y->norm1, SR_RMS, 1e-5f, 1, 20);
			assert_true(!d->product.made_for == apart);
			matmul(d, P_Z, act ? P_ACT : P_Y, w, 20);
			d->shape.width[P_Z] = 64;
			out[apart].assign(20 * 64, NAN);
			get(d, P_Z, out[apart].data(), 20);
			d->shape.width[P_Z] = b.t->m.d_model;
		}
		for (size_t i = 0; i < out[0].size(); i++)
			assert_true(out[0][i] == out[1][i] && out[0][i] != 0);
	}
	emu_reversed = false;
	tear_down(&b);
}

/* A row's sum does not depend on the other rows, for a fixed number of rows. */
static void test_rows_alone(void **)
{
	static const struct kind kind = { "gptq 64", SR_GPTQ4, SR_F16, 64, 0, true };
	struct bench b;
	size_t used;

	set_up(&b, 80);
	struct sr_tensor t = make(&b, &kind, 200, 1024);
	const struct sr_tensor *part[] = { &t };
	struct weight *w = load_weight(&b, part, NULL, 1, &used);
	bf16 *x = (bf16 *)(b.room + used);
	float *y = (float *)(b.room + used + 64 * 1024 * 2);
	std::vector<bf16> all(64 * 1024);
	std::vector<float> one(64 * 200), other(64 * 200);

	for (size_t i = 0; i < all.size(); i++)
		all[i] = bf16_of(unit(&b.seed));
	for (int turn = 0; turn < 2; turn++) {
		emu_reversed = turn;
		cudaMemcpyAsync(x, all.data(), all.size() * 2, cudaMemcpyHostToDevice, b.d->stream);
		packed_few_rows(b.d, y, true, x, w, turn ? 1 : 40, 64);
		cudaMemcpyAsync((turn ? other : one).data(), y, one.size() * 4, cudaMemcpyDeviceToHost, b.d->stream);
		assert_int_equal(cudaStreamSynchronize(b.d->stream), cudaSuccess);
	}
	emu_reversed = false;
	for (size_t i = 0; i < 200; i++)
		assert_true(one[i] == other[i]);
	tear_down(&b);
}

/* ---- what is refused ------------------------------------------------------------------ */

static void refused(struct bench *b, const char *say, const struct sr_tensor *one, const struct sr_tensor *two)
{
	const struct sr_tensor *part[] = { one, two };
	char err[512] = "";
	int64_t e = weight_add(b->d, NULL, part, NULL, two ? 2 : 1, err, sizeof(err));

	if (e >= 0 || !strstr(err, say))
		fail_msg("%d, \"%s\" does not say \"%s\"", (int)e, err, say);
}

static void test_refused(void **)
{
	static const struct kind awq = { "awq", SR_AWQ4, SR_F16, 32, 0, true }, q4 = { "q4", SR_Q4_0, SR_NONE, 0, 0, false };
	static const struct kind f8 = { "f8", SR_F8, SR_F32, 0, 1, false }, q41 = { "q4_1", SR_Q4_1, SR_NONE, 0, 0, false };
	struct bench b;

	set_up(&b, 80);
	struct sr_tensor good = make(&b, &awq, 64, 96), other = make(&b, &q4, 64, 96), eight = make(&b, &f8, 64, 96);
	struct sr_tensor one = make(&b, &q41, 64, 96), t = good;

	t.group = 64;
	refused(&b, "divide them all", &t, NULL);
	t.group = 48;
	refused(&b, "multiples of 32", &t, NULL);
	t.group = -32;
	refused(&b, "multiples of 32", &t, NULL);
	t = good;
	t.index.bytes = 96 * 4;
	refused(&b, "act-order", &t, NULL);
	t = good;
	t.type = SR_GPTQ4;
	t.index.bytes = 95 * 4;
	refused(&b, "as long as its shape", &t, NULL);
	t.index.bytes = 96 * 4;
	refused(&b, "in another order", &t, &good);
	t = good;
	t.n = 60;
	refused(&b, "multiple of 8", &t, NULL);
	t = good;
	t.scale_type = SR_Q8_0;
	refused(&b, "scales must be", &t, NULL);
	for (struct sr_extent *e : { &t.data, &t.scale, &t.zero }) {
		t = good;
		e->bytes -= 4;
		refused(&b, "as long as its shape", &t, NULL);
	}
	t = good;
	t.zero.bytes = 0;
	refused(&b, "as long as its shape", &t, NULL);
	t = eight;
	t.scale.bytes = 4;
	refused(&b, "as long as its shape", &t, NULL);
	t = eight;
	t.n = 1;
	refused(&b, "vectors", &t, NULL);
	t.n = 0;
	refused(&b, "empty", &t, NULL);
	t = other;
	t.data.bytes -= 18;
	refused(&b, "inner size", &t, NULL);
	t = good;
	t.k = 128;
	refused(&b, "as long as its shape", &t, NULL);
	refused(&b, "alike", &good, &eight);
	t.type = SR_BF16;
	t.k = 96;
	t.data.bytes = 64 * 96 * 2;
	refused(&b, "alike", &t, &good);
	t = other;
	t.k = 64;
	t.data.bytes = 64 * 36;
	refused(&b, "inputs, but those before", &one, &t);
	tear_down(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_products_f8),
		cmocka_unit_test(test_products_hopper),
		cmocka_unit_test(test_products_w4a8),
		cmocka_unit_test(test_nvfp4),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_e4m3_of_w4),
		cmocka_unit_test(test_divided),
#endif
		cmocka_unit_test(test_producers),
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_act_order),
		cmocka_unit_test(test_orders_refused),
		cmocka_unit_test(test_ordered_producers),
		cmocka_unit_test(test_rows_alone),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
