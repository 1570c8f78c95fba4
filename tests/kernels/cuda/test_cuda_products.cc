/* LINK: @cuda tests/rig/drive.c tests/rig/tiny.c kernels/cuda/[!b]*.cu */
/* test_cuda_products.cc - products of bf16 weights, few rows and many, against sums in double: shapes that do and
 * do not fill tiles, slices and stripes; a row's sum does not depend on the others. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/rig/drive.h"
#include "tests/rig/tiny.h"
}
#include <vector>

#include "kernels/cuda/backend.cu"
#include "tests/cuda/errors.h"
#include "tests/cuda/real.h"

#define ROOM ((size_t)32 << 20)

struct bench {
	struct tiny *t;
	struct drive gpu;
	struct dev *d;
	unsigned char *room;                   /* x, w, bias, y */
	uint32_t seed;
};

static void set_up(struct bench *b)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();

	shape.n_vocab = 1600;                        /* the most outputs of any product here */
	b->seed = 9;
	b->t = tiny_create(&shape, SR_BF16, 0, 3);
	lim.worked = 0;
	if (drive_open(&b->gpu, sr_backend_get(SR_BACKEND_VERSION), &b->t->m, &b->t->src, &lim))
		fail_msg("%s", b->gpu.err);
	b->d = &b->gpu.b->d;
	assert_int_equal(cudaMalloc((void **)&b->room, ROOM), cudaSuccess);
}

static void tear_down(struct bench *b)
{
	emu_reversed = false;
	assert_int_equal(cudaFree(b->room), cudaSuccess);
	drive_close(&b->gpu);
	tiny_destroy(b->t);
	assert_int_equal(emu_allocations, 0);
}

static float unit(struct bench *b)             /* [-1, 1) */
{
	b->seed = b->seed * 1664525u + 1013904223u;
	return (float)(b->seed >> 8) / (1 << 23) - 1;
}

static std::vector<bf16> numbers(struct bench *b, size_t n)
{
	std::vector<bf16> v(n);

	for (size_t i = 0; i < n; i++)
		v[i] = bf16_of(unit(b) * (i % 37 == 5 ? 8.0f : 1.0f));
	return v;
}

static unsigned char *send(struct bench *b, size_t *used, const void *from, size_t bytes)
{
	unsigned char *at = b->room + *used;

	*used += (bytes + 255) / 256 * 256;
	assert_true(*used <= ROOM);
	if (from)
		assert_int_equal(cudaMemcpyAsync(at, from, bytes, cudaMemcpyHostToDevice, b->d->stream), cudaSuccess);
	else
		assert_int_equal(cudaMemsetAsync(at, 0xff, bytes, b->d->stream), cudaSuccess);
	return at;
}

struct shape { int T, N, K, rows; };   /* as `rows` rows are computed; 0: many */

/* y as f32, or as bf16 made f32 here; what was beyond the rows has to be what it was. */
static std::vector<float> multiply(struct bench *b, const struct shape *s, bool f32, const std::vector<bf16> &x,
	const std::vector<bf16> &w, const float *bias)
{
	size_t used = 0, n = (size_t)(s->T + 1) * (size_t)s->N, size = f32 ? 4 : 2;
	struct weight weight = {};
	std::vector<unsigned char> raw(n * size);
	std::vector<float> y(n);

	weight.n = s->N;
	weight.k = s->K;
	weight.mat = (bf16 *)send(b, &used, w.data(), w.size() * 2);
	weight.bias = bias ? (float *)send(b, &used, bias, (size_t)s->N * 4) : NULL;
	const bf16 *from = (const bf16 *)send(b, &used, x.data(), x.size() * 2);
	unsigned char *to = send(b, &used, NULL, n * size);

	if (s->rows)
		dense_few_rows(b->d, to, f32, from, &weight, s->T, s->rows);
	else
		dense_many_rows(b->d, to, f32, from, &weight, s->T);
	cudaMemcpyAsync(raw.data(), to, raw.size(), cudaMemcpyDeviceToHost, b->d->stream);
	if (cudaStreamSynchronize(b->d->stream) != cudaSuccess || b->d->fault.lost)
		fail_msg("%d x %d x %d: %s; %s", s->T, s->N, s->K, b->d->fault.why, emu_fault() ? emu_fault() : "");
	for (size_t i = 0; i < n; i++)
		y[i] = f32 ? ((const float *)raw.data())[i] : f32_of(((const bf16 *)raw.data())[i]);
	for (size_t i = n * size / (size_t)(s->T + 1) * (size_t)s->T; i < raw.size(); i++)
		assert_int_equal(raw[i], 0xff);
	return y;
}

static void compare(struct bench *b, const struct shape *s, bool f32, bool with_bias)
{
	size_t T = (size_t)s->T, N = (size_t)s->N, K = (size_t)s->K;
	std::vector<bf16> x = numbers(b, T * K), w = numbers(b, N * K);
	std::vector<float> bias(N), y;

	for (size_t i = 0; i < N; i++)
		bias[i] = unit(b);
	y = multiply(b, s, f32, x, w, with_bias ? bias.data() : NULL);
	for (size_t t = 0; t < T; t++) {
		double diff = 0, size = 0;

		for (size_t n = 0; n < N; n++) {
			double sum = with_bias ? (double)bias[n] : 0;

			for (size_t k = 0; k < K; k++)
				sum += (double)f32_of(x[t * K + k]) * (double)f32_of(w[n * K + k]);
			diff += (sum - (double)y[t * N + n]) * (sum - (double)y[t * N + n]);
			size += sum * sum;
		}
		within(s->rows == 16 ? "dense_few_rows 16" : s->rows == 32 ? "dense_few_rows 32" : s->rows ?
			"dense_few_rows 64" : "dense_many_rows", sqrt(diff / size), f32 ? 1e-6 : 3e-3,
			"row %zu of %zu x %zu x %zu%s%s", t, T, N, K, f32 ? ", f32" : "", emu_reversed ? ", reversed" : "");
	}
}

/* 4 processors, so at most 8 blocks: stripes with a part of one tile, of two, with whole tiles, with one unit. */
static void test_products(void **)
{
	static const struct shape shapes[] = {
		{ 1, 8, 8, 16 }, { 1, 1, 64, 16 }, { 7, 130, 72, 16 }, { 16, 128, 1024, 16 }, { 3, 1500, 200, 16 },
		{ 16, 384, 448, 16 }, { 17, 200, 576, 32 }, { 32, 129, 64, 32 }, { 29, 1100, 136, 32 },
		{ 33, 257, 320, 64 }, { 64, 640, 128, 64 }, { 50, 96, 2048, 64 }, { 5, 300, 264, 64 },
		{ 65, 130, 72, 0 }, { 200, 40, 1000, 0 }, { 130, 257, 96, 0 }, { 1, 8, 8, 0 },
	};
	struct bench b;
	int turn = 0;

	set_up(&b);
	for (const struct shape &s : shapes) {
		for (bool reversed : { false, true }) {
			emu_reversed = reversed;
			compare(&b, &s, turn % 3, turn % 2);
			turn++;
		}
	}
	tear_down(&b);
}

/* The same rows among others, and among rows of NaN. */
static void test_rows_alone(void **)
{
	struct bench b;

	set_up(&b);
	for (int rows : { 16, 32, 64 }) {
		struct shape all = { rows, 200, 520, rows }, one = { 1, 200, 520, rows };
		std::vector<bf16> x = numbers(&b, (size_t)rows * 520), w = numbers(&b, 200 * 520);

		for (size_t i = 520; i < x.size(); i++)
			x[i] = i % 3 ? x[i] : 0x7fc0;
		std::vector<float> y = multiply(&b, &all, true, x, w, NULL);

		emu_reversed = !emu_reversed;
		x.resize(520);
		std::vector<float> z = multiply(&b, &one, true, x, w, NULL);

		assert_memory_equal(y.data(), z.data(), 200 * sizeof(float));
		assert_true(z[0] == z[0]);
	}
	tear_down(&b);
}

/* As many blocks as units, and counts of tiles that are zero again: each product many times over. */
static void test_again(void **)
{
	struct shape s = { 4, 250, 192, 16 };
	struct bench b;
	std::vector<float> first;

	set_up(&b);
	std::vector<bf16> x = numbers(&b, 4 * 192), w = numbers(&b, 250 * 192);

	for (int i = 0; i < 4; i++) {
		std::vector<float> y;

		emu_reversed = i % 2;
		y = multiply(&b, &s, true, x, w, NULL);
		if (!i)
			first = y;
		assert_memory_equal(first.data(), y.data(), 4 * 250 * sizeof(float));
	}
	tear_down(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_rows_alone),
		cmocka_unit_test(test_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
