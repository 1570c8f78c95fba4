/* packed.h - for tests of weights of 4 and 8 bits: a device, random tensors as files have them, what their weights are by
 * the formats' descriptions, and a product beside sums in double. */
#ifndef CUDA_TEST_PACKED_H
#define CUDA_TEST_PACKED_H

#include <memory>
#include <vector>

#include "kernels/cuda/backend.cu"
#include "kernels/cuda/packed.cuh"
#include "tests/cuda/errors.h"
#include "tests/cuda/real.h"
#include "tests/cuda/truth.h"

static inline uint32_t dice(uint32_t *s)
{
	*s = *s * 1664525u + 1013904223u;
	return *s >> 8;
}

static inline float unit(uint32_t *s)                 /* [-1, 1) */
{
	return (float)dice(s) / (1 << 23) - 1;
}

/* ---- a device, and tensors at the end of its model's bytes ---------------------------- */

struct bench {
	struct tiny *t;
	struct drive gpu;
	struct dev *d;
	unsigned char *room;                   /* for weights, x and y */
	uint32_t seed;
};

#define ROOM ((size_t)24 << 20)

static inline void set_up(struct bench *b, int capability)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();

#ifdef CUDA_EMULATED
	emu_capability = capability;
#else
	(void)capability;
#endif
	b->seed = 5;
	shape.d_ff = 2048;                        /* the most inputs of any product here */
	b->t = tiny_create(&shape, SR_F8, 0, 3);
	if (drive_open(&b->gpu, sr_backend_get(SR_BACKEND_VERSION), &b->t->m, &b->t->src, &lim))
		fail_msg("%s", b->gpu.err);
	b->d = &b->gpu.b->d;
	assert_int_equal(cudaMalloc((void **)&b->room, ROOM), cudaSuccess);
}

static inline void tear_down(struct bench *b)
{
	assert_int_equal(cudaFree(b->room), cudaSuccess);
	drive_close(&b->gpu);
	tiny_destroy(b->t);
#ifdef CUDA_EMULATED
	emu_capability = 80;
#endif
	assert_int_equal(emu_allocations, 0);
}

static inline struct sr_extent more(struct bench *b, size_t bytes, bool random)
{
	struct sr_extent e = {};

	e.offset = b->t->size;
	e.bytes = bytes;
	b->t->bytes = (uint8_t *)realloc(b->t->bytes, b->t->size + bytes);
	b->t->size += bytes;
	for (size_t i = 0; i < bytes; i++)
		b->t->bytes[e.offset + i] = random ? (uint8_t)(dice(&b->seed) >> 8) : 0;
	return e;
}

/* ---- random tensors ------------------------------------------------------------------- */

struct kind { const char *what; int32_t type, scale_type; int group, group_n; bool zeros; };

static inline bool apart(int32_t type)
{
	return type == SR_AWQ4 || type == SR_GPTQ4 || type == SR_GPTQ4_V2 || type == SR_CT4 || type == SR_F8;
}

static inline void put_scale(uint8_t *at, int32_t type, float f)
{
	uint16_t u = type == SR_F16 ? f16_of_f32(f) : bf16_of_f32(f);

	if (type == SR_F32)
		memcpy(at, &f, 4);
	else
		memcpy(at, &u, 2);
}

/* A tensor of GGUF: random quants under sensible scales. */
static inline void fill_blocks(struct bench *b, const struct sr_tensor *w)
{
	int bytes = w->type == SR_Q4_0 ? 18 : w->type == SR_Q4_1 ? 20 : 144;

	for (size_t i = 0; i < w->data.bytes; i += (size_t)bytes) {
		uint8_t *at = b->t->bytes + w->data.offset + i;
		float d = 0.01f * (1.5f + unit(&b->seed)) / (w->type == SR_Q4_K ? 40 : 1);
		uint16_t u = f16_of_f32(d), m = f16_of_f32(w->type == SR_Q4_K ? 7.5f * d : -7.5f * d);

		memcpy(at, &u, 2);
		if (w->type != SR_Q4_0)
			memcpy(at + 2, &m, 2);
	}
}

static inline struct sr_tensor make(struct bench *b, const struct kind *kind, int32_t n, int32_t k)
{
	struct sr_tensor w = {};
	size_t N = (size_t)n, K = (size_t)k, group = kind->group ? (size_t)kind->group : K, groups = K / group;
	size_t rows = kind->type != SR_F8 ? N : kind->group_n ?
		(N + (size_t)kind->group_n - 1) / (size_t)kind->group_n : 1;
	size_t each = kind->scale_type == SR_F32 ? 4 : 2;

	w.name = kind->what;
	w.type = kind->type;
	w.n = n;
	w.k = k;
	if (!apart(w.type)) {
		w.data = more(b, N * (w.type == SR_Q4_K ? K / 256 * 144 : K / 32 * (w.type == SR_Q4_0 ? 18 : 20)), true);
		fill_blocks(b, &w);
		return w;
	}
	w.group = kind->group;
	w.group_n = kind->group_n;
	w.scale_type = kind->scale_type;
	w.data = more(b, w.type == SR_F8 ? N * K : N * K / 2, true);
	for (size_t i = 0; i < w.data.bytes && w.type == SR_F8; i++)
		if ((b->t->bytes[w.data.offset + i] & 0x7f) == 0x7f) /* a NaN */
			b->t->bytes[w.data.offset + i] = 0x81;
	w.scale = more(b, rows * groups * each, false);
	for (size_t i = 0; i < rows * groups; i++)
		put_scale(b->t->bytes + w.scale.offset + i * each, w.scale_type, 0.01f * (1.5f + unit(&b->seed)));
	if (kind->zeros)
		w.zero = more(b, groups * ((N + 7) / 8) * 4, true);
	for (size_t i = 0; i < w.zero.bytes && w.type == SR_GPTQ4; i++)
		b->t->bytes[w.zero.offset + i] &= 0x77; /* readers differ on 15 plus one */
	return w;
}

/* [n][k], as the formats' descriptions have it. */
static inline std::unique_ptr<float[]> dense(const struct bench *b, const struct sr_tensor *w)
{
	size_t n = (size_t)w->n, k = (size_t)w->k;
	std::unique_ptr<float[]> f(new float[n * k]);

	if (apart(w->type)) {
		float *all = tiny_dense(b->t, w);

		memcpy(f.get(), all, n * k * sizeof(float));
		free(all);
		return f;
	}
	for (size_t i = 0; i < n; i++)
		types_dequant(w->type, w->k, b->t->bytes + w->data.offset + i * (w->data.bytes / n), f.get() + i * k);
	return f;
}

/* ---- products ------------------------------------------------------------------------- */

static inline struct weight *load_weight(struct bench *b, const struct sr_tensor *const *part,
	const struct sr_tensor *const *bias, int n, size_t *used)
{
	struct weight *w = NULL;
	int64_t bytes = weight_add(b->d, NULL, part, bias, n, b->gpu.err, sizeof(b->gpu.err));

	if (bytes <= 0)
		fail_msg("%s: %s", part[0]->name, b->gpu.err);
	b->d->store.at = b->d->store.base = b->room;
	b->d->store.end = b->room + bytes;
	if (weight_add(b->d, &w, part, bias, n, b->gpu.err, sizeof(b->gpu.err)) != bytes ||
	    loader_finish(b->d, b->gpu.err, sizeof(b->gpu.err)))
		fail_msg("%s: %s%s", part[0]->name, b->gpu.err, emu_fault() ? emu_fault() : "");
	assert_true(b->d->store.at == b->d->store.end); /* it takes what it announced */
	*used = (size_t)bytes;
	return w;
}

static inline float e4m3_value(uint32_t v)
{
	int e = (int)(v >> 3 & 15);
	float f = ldexpf((float)(v & 7) + (e ? 8 : 0), (e ? e : 1) - 10);

	return v & 0x80 ? -f : f;
}

/* As the device does it to bf16 rows. */
static inline void quantize(float *x, int T, int K)
{
	for (int t = 0; t < T; t++) {
		float most = 0, by;

		for (int k = 0; k < K; k++)
			most = fmaxf(most, fabsf(x[t * K + k]));
		by = 448 / most;
		for (int k = 0; k < K; k++)
			x[t * K + k] = e4m3_value(e4m3_of(x[t * K + k] * by)) * (most / 448);
	}
}

struct run_case { int T, rows; bool many; double bound; };

static inline const char *kernel_of(const struct bench *b, const struct weight *w, const struct run_case *r)
{
	bool w4 = w->held == HELD_W4;

	if (w->held == HELD_N4)
		return r->many ? "packed_many_rows N4" : "packed_few_rows, N4";
	if (r->many)
		return w4 ? uses_x8(b->d, w) ? "packed_many_rows W4A8" : "packed_many_rows W4" :
			b->d->product.x8 ? "packed_many_rows W8A8" : "packed_many_rows W8";
	if (r->rows <= 16)
		return w4 ? "packed_few_rows 16, W4" : "packed_few_rows 16, W8";
	if (r->rows <= 32)
		return w4 ? "packed_few_rows 32, W4" : "packed_few_rows 32, W8";
	return w4 ? "packed_few_rows 64, W4" : "packed_few_rows 64, W8";
}

/* One product of `many` rows or few, in f32, against sums in double; each row's difference relative. */
static inline void compare(struct bench *b, const char *what, const struct weight *w, const float *truth, const float *bias,
	unsigned char *room, const struct run_case *r)
{
	size_t T = (size_t)r->T, N = (size_t)w->n, K = (size_t)w->k;
	std::vector<float> x(T * K), y(T * N);
	std::vector<bf16> half(T * K);
	bool f8 = r->many && uses_x8(b->d, w);

	for (size_t i = 0; i < T * K; i++) {
		half[i] = bf16_of(unit(&b->seed) * (i % 37 == 5 ? 8.0f : 1.5f));
		x[i] = f32_of(half[i]);
	}
	if (f8)
		quantize(x.data(), r->T, w->k);
	assert_int_equal(cudaMemcpyAsync(room, half.data(), T * K * 2, cudaMemcpyHostToDevice, b->d->stream),
		cudaSuccess);
	float *out = (float *)(room + (T * K * 2 + 255) / 256 * 256);

	const bf16 *from = (const bf16 *)room;

	assert_int_equal(cudaMemsetAsync(out, 0xff, T * N * 4, b->d->stream), cudaSuccess);
	if (w->order) {
		b->d->product.ordered = (bf16 *)(out + T * N);
		from = in_order(b->d, from, w, r->T);
	}
	if (r->many)
		packed_many_rows(b->d, out, true, from, w, r->T, false);
	else
		packed_few_rows(b->d, out, true, from, w, r->T, r->rows);
	cudaMemcpyAsync(y.data(), out, T * N * 4, cudaMemcpyDeviceToHost, b->d->stream);
	if (cudaStreamSynchronize(b->d->stream) != cudaSuccess || b->d->fault.lost)
		fail_msg("%s: %s; %s", what, b->d->fault.why, emu_fault() ? emu_fault() : "");
	for (size_t t = 0; t < T; t++) {
		double diff = 0, size = 0;

		for (size_t n = 0; n < N; n++) {
			double sum = bias ? (double)bias[n] : 0;

			for (size_t k = 0; k < K; k++)
				sum += (double)x[t * K + k] * (double)truth[n * K + k];
			diff += (sum - (double)y[t * N + n]) * (sum - (double)y[t * N + n]);
			size += sum * sum;
		}
		within(kernel_of(b, w, r), sqrt(diff / size), r->bound, "%s %zu x %zu, row %zu of %zu%s", what, N, K, t,
			T, emu_reversed ? ", reversed" : "");
	}
}

#endif
