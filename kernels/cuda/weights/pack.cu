/* pack.cu - converts pieces of files, on the device, into the stored form of weights: bf16 matrices, f32
 * vectors, and 4- and 8-bit matrices (packed.cuh).  It runs only at load, so it is simple rather than fast.
 */
#include "pack.cuh"
#include "kernels/cuda/packed.cuh"

#define PACK_THREADS 256

/* ---- stored types: see ggml's documentation of its block formats ---------------------- */

/* Weights per block, and bytes per block. */
bool pack_layout(int32_t type, int32_t *weights, int32_t *bytes)
{
	static const struct { int32_t type, weights, bytes; } known[] = {
		{ SR_F32, 1, 4 }, { SR_F16, 1, 2 }, { SR_BF16, 1, 2 }, { SR_F8, 1, 1 }, { SR_Q8_0, 32, 34 },
		{ SR_Q4_0, 32, 18 }, { SR_Q4_1, 32, 20 }, { SR_Q5_0, 32, 22 }, { SR_Q5_1, 32, 24 },
		{ SR_Q4_K, 256, 144 }, { SR_Q5_K, 256, 176 }, { SR_Q6_K, 256, 210 }, { SR_MXFP4, 32, 17 },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		if (known[i].type == type) {
			*weights = known[i].weights;
			*bytes = known[i].bytes;
			return true;
		}
	}
	return false;
}

static __device__ uint32_t u16_at(const uint8_t *p)
{
	return (uint32_t)(p[0] | p[1] << 8);
}

static __device__ float f16_at(const uint8_t *p)
{
	return f32_of_f16(u16_at(p));
}

static __device__ int nibble(const uint8_t *q, int i) /* of 32: the first 16 are the low nibbles */
{
	return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

static __device__ int fifth(const uint8_t *high, int i)
{
	return (high[i / 8] >> (i % 8) & 1) << 4;
}

/* Scale and minimum of 32 weights of Q4_K and Q5_K: w = d q - m. */
static __device__ void k_scale(const uint8_t *b, int j, float *d, float *m)
{
	const uint8_t *s = b + 4;
	int scale, min;

	if (j < 4) {
		scale = s[j] & 63;
		min = s[j + 4] & 63;
	} else {
		scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
		min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
	}
	*d = f16_at(b) * (float)scale;
	*m = f16_at(b + 2) * (float)min;
}

static __device__ int k_nibble(const uint8_t *q, int j, int i)
{
	return q[32 * (j / 2) + i] >> (4 * (j % 2)) & 15;
}

/* Weight i of a super-block of 256. */
static __device__ float k_weight(int32_t type, const uint8_t *b, int i)
{
	int j = i / 32, q;
	float d, m;

	i %= 32;
	if (type == SR_Q6_K) {
		q = b[64 * (j / 4) + 32 * (j % 2) + i] >> (4 * (j % 4 / 2)) & 15;
		q |= (b[128 + 32 * (j / 4) + i] >> (2 * (j % 4)) & 3) << 4;
		return f16_at(b + 208) * (float)(int8_t)b[192 + 2 * j + i / 16] * (float)(q - 32);
	}
	q = k_nibble(b + (type == SR_Q5_K ? 48 : 16), j, i);
	if (type == SR_Q5_K)
		q |= (b[16 + i] >> j & 1) << 4;
	k_scale(b, j, &d, &m);
	return d * (float)q - m;
}

/* 2^(e - 127) */
static __device__ float f32_of_e8m0(uint32_t e)
{
	return __uint_as_float(e ? e << 23 : 0x00400000);
}

static __device__ float f32_of_e2m1(int q)
{
	float size = q & 4 ? (float)(2 + (q & 1)) * (float)(q & 2 ? 2 : 1) : (float)(q & 3) / 2;

	return q & 8 ? -size : size;
}

static __device__ float weight_at(int32_t type, const uint8_t *row, int32_t i, int32_t weights, int32_t bytes)
{
	const uint8_t *b = row + (size_t)(i / weights) * (size_t)bytes;

	i %= weights;
	switch (type) {
	case SR_F32:
		return __uint_as_float(u16_at(b) | u16_at(b + 2) << 16);
	case SR_F16:
		return f16_at(b);
	case SR_BF16:
		return __uint_as_float(u16_at(b) << 16);
	case SR_Q8_0:
		return f16_at(b) * (float)(int8_t)b[2 + i];
	case SR_Q4_0:
		return f16_at(b) * (float)(nibble(b + 2, i) - 8);
	case SR_Q4_1:
		return f16_at(b) * (float)nibble(b + 4, i) + f16_at(b + 2);
	case SR_Q5_0:
		return f16_at(b) * (float)((nibble(b + 6, i) | fifth(b + 2, i)) - 16);
	case SR_MXFP4:
		return f32_of_e8m0(b[0]) * f32_of_e2m1(nibble(b + 1, i));
	case SR_Q5_1:
		return f16_at(b) * (float)(nibble(b + 8, i) | fifth(b + 4, i)) + f16_at(b + 2);
	}
	return k_weight(type, b, i);
}

/* grid: columns, rows */
static __global__ void unpack_kernel(struct file_piece p, const uint8_t *data, int32_t weights, int32_t bytes)
{
	let_next_start();
	wait_for_previous();
	size_t row = (size_t)blockIdx.y, at;

	for (int32_t i = (int32_t)(blockIdx.x * PACK_THREADS + threadIdx.x); i < p.k;
	     i += (int32_t)(gridDim.x * PACK_THREADS)) {
		float w = (weight_at(p.type, data + row * p.row_bytes + p.skip, p.at + i * p.step, weights, bytes) +
			p.add) * p.mul;

		if (p.neg_exp)
			w = (float)-exp((double)w);
		at = row * (size_t)p.k + (size_t)i;
		if (p.f32)
			((float *)p.dense)[at] = w;
		else
			((bf16 *)p.dense)[at] = bf16_of(w);
	}
}

/* The same of a matrix that is stored as [inputs][outputs]; rows are inputs.  grid: outputs, rows */
static __global__ void transpose_kernel(struct file_piece p, const uint8_t *data, int32_t bytes)
{
	let_next_start();
	wait_for_previous();
	int32_t n = (int32_t)(blockIdx.x * PACK_THREADS + threadIdx.x), row = (int32_t)blockIdx.y;

	if (n < p.n)
		((bf16 *)p.dense)[(size_t)n * (size_t)p.k + (size_t)(p.first + row)] =
			bf16_of(weight_at(p.type, data + (size_t)row * p.row_bytes, p.at + n * p.step, 1, bytes));
}

/* ---- 4 bits --------------------------------------------------------------------------- */

static __device__ uint32_t f16_of(float f)
{
	uint32_t u = __float_as_uint(f), sign = u >> 16 & 0x8000;
	float size = fabsf(f);

	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return sign | 0x7e00;
	if (size >= 65520)
		return sign | 0x7c00;
	if (size < 6.103515625e-5f)      /* subnormal: multiples of 2^-24 */
		return sign | (uint32_t)rintf(size * 16777216);
	return sign | (((u + 0xfff + (u >> 13 & 1)) >> 13) - (112u << 10));
}

static __device__ uint32_t word_at(const uint8_t *p)
{
	return u16_at(p) | u16_at(p + 2) << 16;
}

/* The position of output n among the eight of its word. */
static __device__ int eighth(int32_t type, int32_t n)
{
	return type == SR_AWQ4 ? n % 8 / 2 + n % 2 * 4 : n % 8;
}

/* The quant of output n and input k, both numbered as in the tensor. */
static __device__ uint32_t quant_at(const struct file_piece &p, const uint8_t *data, int32_t n, int32_t k)
{
	const uint8_t *row = data + (size_t)(n - p.first) * p.row_bytes + p.skip;

	switch (p.type) {
	case SR_AWQ4:
		return word_at(data + (size_t)(k - p.first) * p.row_bytes + (p.at + n) / 8 * 4) >> 4 * eighth(p.type, n) & 15;
	case SR_GPTQ4: case SR_GPTQ4_V2:
		return word_at(data + (size_t)(k / 8 - p.first) * p.row_bytes + (size_t)(p.at + n) * 4) >> 4 * (k % 8) & 15;
	case SR_CT4:
		return row[k / 2] >> 4 * (k % 2) & 15;
	case SR_NVFP4: case SR_NVFP4_CT: /* GGUF: 64 in 36 bytes, four scales first */
		return !p.in_blocks ? row[k / 2] >> 4 * (k % 2) & 15 :
			row[k / 64 * 36 + 4 + k % 64 / 16 * 8 + k % 8] >> 4 * (k % 16 / 8) & 15;
	case SR_MXFP4:
		return p.apart ? row[k / 2] >> 4 * (k % 2) & 15 :
			(uint32_t)nibble(row + (size_t)(k / 32) * 17 + 1, k % 32);
	case SR_Q4_0:
		return (uint32_t)nibble(row + (size_t)(k / 32) * 18 + 2, k % 32);
	case SR_Q4_1:
		return (uint32_t)nibble(row + (size_t)(k / 32) * 20 + 4, k % 32);
	}
	return (uint32_t)k_nibble(row + (size_t)(k / 256) * 144 + 16, k % 256 / 32, k % 32);
}

/* The word of scales of 32 weights in a row of a GGUF tensor.  W4: s and b, w = s (q - 8) + b. */
static __device__ uint32_t scale_of_row(int32_t type, const uint8_t *row, int32_t slab)
{
	const uint8_t *b = row + (size_t)slab * (type == SR_Q4_0 ? 18 : 20);
	float s, m;

	if (type == SR_MXFP4)
		return __float_as_uint(f32_of_e8m0(row[(size_t)slab * 17]));
	if (type == SR_Q4_0)
		return u16_at(b);
	if (type == SR_Q4_1) {
		s = f16_at(b);
		m = -f16_at(b + 2);
	} else {
		k_scale(row + (size_t)(slab / 8) * 144, slab % 8, &s, &m);
	}
	return f16_of(s) | f16_of(8 * s - m) << 16;
}

/* The outputs and inputs of a piece of quants. */
struct area { int32_t n0, n, k0, k; };

static __host__ __device__ struct area area_of(const struct file_piece &p)
{
	int32_t each = p.type == SR_GPTQ4 || p.type == SR_GPTQ4_V2 ? 8 : 1;

	if (p.type == SR_AWQ4 || each == 8)
		return { 0, p.n, p.first * each, p.rows * each };
	return { p.first, p.rows, 0, p.k };
}

/* One thread per word: output, slab, lane's quarter. */
static __global__ void pack4_kernel(struct file_piece p, const uint8_t *data)
{
	let_next_start();
	wait_for_previous();
	struct area a = area_of(p);
	int64_t i = (int64_t)blockIdx.x * PACK_THREADS + threadIdx.x;
	int32_t t = (int32_t)(i % 4), n = a.n0 + (int32_t)(i / 4 % a.n), k = a.k0 + (int32_t)(i / 4 / a.n) * SLAB;
	uint32_t word = 0;

	if (k >= a.k0 + a.k)
		return;
	for (int j = 0; j < 8; j++) {
		int32_t at = k + j / 2 * 8 + 2 * t + j % 2;

		word |= quant_at(p, data, n, at) << 4 * nibble_of(at);
	}
	p.to.words[packed_at<1>(p.col + n, k + 2 * t, p.to.K)] = word;
	if (!p.apart && t == 0 && k / SLAB % p.to.group == 0)
		p.to.scale[(size_t)(k / SLAB / p.to.group) * (size_t)p.to.width + (size_t)(p.col + n)] =
			scale_of_row(p.type, data + (size_t)(n - p.first) * p.row_bytes + p.skip, k / SLAB);
}

/* The same if groups are out of order.  One thread per word of the file; its 8 inputs go to the places of
 * their groups, in words that were cleared. */
static __global__ void scatter4_kernel(struct file_piece p, const uint8_t *data)
{
	let_next_start();
	wait_for_previous();
	int64_t i = (int64_t)blockIdx.x * PACK_THREADS + threadIdx.x;
	int32_t in_row = (int32_t)(p.row_bytes / 4), row = (int32_t)(i / in_row), word = (int32_t)(i % in_row);
	int32_t n = p.type == SR_CT4 ? p.first + row : word - p.at, k = 8 * (p.type == SR_CT4 ? word : p.first + row);
	uint32_t quants;

	if (row >= p.rows || n < 0 || n >= p.n)
		return;
	quants = word_at(data + (size_t)i * 4);
	for (int j = 0; j < 8; j++) {
		int32_t at = p.where[k + j];

		atomicOr(&p.to.words[packed_at<1>(p.col + n, at, p.to.K)],
			(quants >> 4 * j & 15) << 4 * nibble_of(at));
	}
}

/* ---- 8 bits --------------------------------------------------------------------------- */

static __global__ void pack8_kernel(struct file_piece p, const uint8_t *data)
{
	let_next_start();
	wait_for_previous();
	int64_t i = (int64_t)blockIdx.x * PACK_THREADS + threadIdx.x;
	int32_t t = (int32_t)(i % 4), k = (int32_t)(i / 4 % (p.k / 16)) * 16, n = (int32_t)(i / 4 / (p.k / 16));
	uint32_t word = 0;

	if (n >= p.rows)
		return;
	for (int j = 0; j < 4; j++) {
		int32_t at = k + j / 2 * 8 + 2 * t + j % 2;

		word |= (uint32_t)data[(size_t)n * p.row_bytes + (size_t)at] << 8 * byte_of(at);
	}
	p.to.words[packed_at<2>(p.col + p.first + n, k + 2 * t, p.to.K)] = word;
}

/* ---- scales and zero points in extents of their own ----------------------------------- */

static __device__ float scale_at(int32_t type, const uint8_t *data, size_t i)
{
	return type == SR_F32 ? __uint_as_float(word_at(data + 4 * i)) : type == SR_F16 ? f16_at(data + 2 * i) :
		__uint_as_float(u16_at(data + 2 * i) << 16);
}

/* Calls f for the word of scales of `to` for output n, and each of its groups in group g of the tensor. */
template <class F> static __device__ void each_group(const struct file_piece &p, int32_t n, int32_t g,
	F change)
{
	int32_t slabs = p.group / SLAB / p.to.group;

	for (int32_t i = 0; i < slabs; i++)
		change(&p.to.scale[(size_t)(g * slabs + i) * (size_t)p.to.width + (size_t)(p.col + n)]);
}

/* grid: rows of the piece; threads: elements of a row.  Rows are outputs or groups of inputs. */
static __global__ void scales_kernel(struct file_piece p, const uint8_t *data)
{
	let_next_start();
	wait_for_previous();
	bool outputs = p.type == SR_CT4 || p.type == SR_F8 || p.type == SR_MXFP4;
	int32_t row = (int32_t)blockIdx.x, in_row = outputs ? p.k / p.group : p.n;

	for (int32_t i = (int32_t)threadIdx.x; i < in_row; i += PACK_THREADS) {
		const uint8_t *at = data + (size_t)row * p.row_bytes + p.skip;
		float s = p.type == SR_MXFP4 ? f32_of_e8m0(at[i]) :
			scale_at(p.scale_type, at, (size_t)(outputs ? i : p.at + i));
		uint32_t word = p.held == HELD_W4 ? f16_of(s) : __float_as_uint(s);
		int32_t n = outputs ? (p.first + row) * p.group_n - p.at : i, end = outputs ? n + p.group_n : i + 1;
		int32_t g = outputs ? i : p.first + row;

		for (n = n < 0 ? 0 : n; n < end && n < p.n; n++)
			each_group(p, n, g, [word](uint32_t *to) { *to = word; });
	}
}

/* N4: an output's scales of two times 16 inputs, times a power of two, and the rest of its factor.  grid: outputs */
static __global__ void scales16_kernel(struct file_piece p, const uint8_t *data)
{
	let_next_start();
	wait_for_previous();
	const uint8_t *row = data + (size_t)blockIdx.x * p.row_bytes;
	int32_t n = p.col + p.first + (int32_t)blockIdx.x;

	for (int32_t i = (int32_t)threadIdx.x; i < p.k / SLAB; i += PACK_THREADS) {
		const uint8_t *at = p.in_blocks ? row + i / 2 * 36 + i % 2 * 2 : row + 2 * i;
		uint32_t even, odd;

		bf16_of_e4m3(at[0] | (uint32_t)at[1] << 8, even, odd);
		p.to.scale[(size_t)i * (size_t)p.to.width + (size_t)n] =
			bf16_pair(f32_of((bf16)even) * p.add, f32_of((bf16)odd) * p.add);
	}
	if (threadIdx.x == 0)
		p.to.by[n] = p.mul;
}

/* b = s (8 - z), stored beside the s that is already there.  Rows: for AWQ and GPTQ, groups of [n / 8]; for
 * CT, eight outputs of [groups]. */
static __global__ void zeros_kernel(struct file_piece p, const uint8_t *data)
{
	let_next_start();
	wait_for_previous();
	bool outputs = p.type == SR_CT4;
	int32_t row = (int32_t)blockIdx.x, in_row = outputs ? p.k / p.group : p.n / 8;

	for (int32_t i = (int32_t)threadIdx.x; i < in_row; i += PACK_THREADS) {
		uint32_t word = word_at(data + (size_t)row * p.row_bytes + (size_t)(outputs ? i : p.at / 8 + i) * 4);
		int32_t n = 8 * (outputs ? p.first + row : i), g = outputs ? i : p.first + row;

		for (int32_t j = 0; j < 8 && n + j < p.n; j++) {
			uint32_t z = word >> 4 * eighth(p.type, j) & 15;

			z = p.type == SR_GPTQ4 ? (z + 1) & 15 : z;
			each_group(p, n + j, g, [z](uint32_t *to) {
				float s = f32_of_f16(*to & 0xffff);

				*to = (*to & 0xffff) | f16_of(s * (8 - (float)z)) << 16;
			});
		}
	}
}

/* ---- choice of kernel ----------------------------------------------------------------- */

static bool pack_quants(struct dev *d, const struct file_piece *p, const uint8_t *data)
{
	struct area a = area_of(*p);
	int64_t words = p->held != HELD_W8 ? (int64_t)a.n * (a.k / SLAB) * 4 : (int64_t)p->rows * (p->k / 16) * 4;
	unsigned blocks = (unsigned)((words + PACK_THREADS - 1) / PACK_THREADS);

	if (p->where) {
		words = (int64_t)p->rows * (int64_t)(p->row_bytes / 4);
		return cuda_ok(d, start(scatter4_kernel, (unsigned)((words + PACK_THREADS - 1) / PACK_THREADS),
			PACK_THREADS, 0, d->stream, *p, data), "pack weights in their order");
	}
	return cuda_ok(d, start(p->held != HELD_W8 ? pack4_kernel : pack8_kernel, blocks, PACK_THREADS, 0,
		d->stream, *p, data), "pack weights");
}

/* Queues the conversion.  False: the device is lost. */
bool pack_rows(struct dev *d, const struct file_piece *p, const unsigned char *data)
{
	int32_t weights = 1, bytes = 1;

	switch (p->of) {
	case OF_QUANTS:
		return pack_quants(d, p, data);
	case OF_SCALES:
		if (p->held == HELD_N4)
			return cuda_ok(d, start(scales16_kernel, (unsigned)p->rows, PACK_THREADS, 0, d->stream, *p,
				(const uint8_t *)data), "pack scales");
		return cuda_ok(d, start(scales_kernel, (unsigned)p->rows, PACK_THREADS, 0, d->stream, *p,
			(const uint8_t *)data), "pack scales");
	case OF_ZEROS:
		return cuda_ok(d, start(zeros_kernel, (unsigned)p->rows, PACK_THREADS, 0, d->stream, *p,
			(const uint8_t *)data), "pack zero points");
	case OF_DENSE:
		break;
	}
	pack_layout(p->type, &weights, &bytes);
	if (p->transposed)
		return cuda_ok(d, start(transpose_kernel, dim3((unsigned)(p->n + PACK_THREADS - 1) / PACK_THREADS,
			(unsigned)p->rows), PACK_THREADS, 0, d->stream, *p, (const uint8_t *)data, bytes), "unpack weights");
	return cuda_ok(d, start(unpack_kernel, dim3((unsigned)(p->k + 2047) / 2048, (unsigned)p->rows),
		PACK_THREADS, 0, d->stream, *p, (const uint8_t *)data, weights, bytes), "unpack weights");
}
