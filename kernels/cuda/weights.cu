/* weights.cu - weights from files to the device.
 *
 * Reads go into pinned buffers, many at a time; a finished one is copied to the device and unpacked
 * there, to bf16 matrices and f32 vectors, while the next are being read.  Quantized types are
 * unpacked too: they take two bytes a weight here.
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.cuh"

#define BUFFERS 8
#define BUFFER  ((size_t)2 << 20)    /* bytes read at once, at most */
#define UNPACK_THREADS 256

struct piece {                       /* rows of a tensor */
	int32_t type, k, rows;
	size_t row_bytes;
	void *to;                    /* bf16 or f32 [rows][k] on the device */
	bool f32;
	float add;
};

struct buffer {
	struct piece piece;
	unsigned char *host, *device;
	cudaEvent_t copied;
	bool reading, copying;
};

struct loader {
	const struct sr_source *src;
	unsigned char *pinned;
	struct buffer buffer[BUFFERS];
	int turn, n_reading;
};

static int fail(int code, char *err, size_t errlen, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
static int fail(int code, char *err, size_t errlen, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err, errlen, fmt, ap);
	va_end(ap);
	return code;
}

/* ---- stored types: docs of ggml's block formats --------------------------------------- */

/* Weights to a block, and its bytes; 0: not a type that is read here. */
static void layout(int32_t type, int32_t *weights, int32_t *bytes)
{
	static const struct { int32_t type, weights, bytes; } known[] = {
		{ SR_F32, 1, 4 }, { SR_F16, 1, 2 }, { SR_BF16, 1, 2 }, { SR_Q8_0, 32, 34 },
		{ SR_Q4_0, 32, 18 },
		{ SR_Q4_1, 32, 20 }, { SR_Q5_0, 32, 22 }, { SR_Q5_1, 32, 24 }, { SR_Q4_K, 256, 144 },
		{ SR_Q5_K, 256, 176 }, { SR_Q6_K, 256, 210 },
	};

	*weights = *bytes = 0;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
		if (known[i].type == type) {
			*weights = known[i].weights;
			*bytes = known[i].bytes;
		}
	}
}

static __device__ uint32_t u16_at(const uint8_t *p)
{
	return (uint32_t)(p[0] | p[1] << 8);
}

static __device__ float f16_at(const uint8_t *p)
{
	uint32_t h = u16_at(p), sign = (h & 0x8000) << 16, mag = h & 0x7fff;

	if (mag >= 0x7c00)
		return __uint_as_float(sign | 0x7f800000 | (mag & 0x3ff) << 13);
	if (mag >= 0x400)
		return __uint_as_float(sign | ((mag << 13) + (112u << 23)));
	return __uint_as_float(sign | __float_as_uint((float)mag * 5.9604644775390625e-8f)); /* 2^-24 */
}

static __device__ int nibble(const uint8_t *q, int i) /* of 32: the low ones first */
{
	return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

static __device__ int fifth(const uint8_t *high, int i)
{
	return (high[i / 8] >> (i % 8) & 1) << 4;
}

/* Weight i of a super-block of 256. */
static __device__ float k_weight(int32_t type, const uint8_t *b, int i)
{
	int j = i / 32, scale, min, q;
	const uint8_t *s = b + 4;

	i %= 32;
	if (type == SR_Q6_K) {
		q = b[64 * (j / 4) + 32 * (j % 2) + i] >> (4 * (j % 4 / 2)) & 15;
		q |= (b[128 + 32 * (j / 4) + i] >> (2 * (j % 4)) & 3) << 4;
		return f16_at(b + 208) * (float)(int8_t)b[192 + 2 * j + i / 16] * (float)(q - 32);
	}
	if (j < 4) {
		scale = s[j] & 63;
		min = s[j + 4] & 63;
	} else {
		scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
		min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
	}
	q = b[(type == SR_Q5_K ? 48 : 16) + 32 * (j / 2) + i] >> (4 * (j % 2)) & 15;
	if (type == SR_Q5_K)
		q |= (b[16 + i] >> j & 1) << 4;
	return f16_at(b) * (float)scale * (float)q - f16_at(b + 2) * (float)min;
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
	case SR_Q5_1:
		return f16_at(b) * (float)(nibble(b + 8, i) | fifth(b + 4, i)) + f16_at(b + 2);
	}
	return k_weight(type, b, i);
}

/* grid: columns, rows */
static __global__ void unpack_kernel(struct piece p, const uint8_t *data, int32_t weights, int32_t bytes)
{
	size_t row = (size_t)blockIdx.y, at;

	for (int32_t i = (int32_t)(blockIdx.x * UNPACK_THREADS + threadIdx.x); i < p.k;
	     i += (int32_t)(gridDim.x * UNPACK_THREADS)) {
		float w = weight_at(p.type, data + row * p.row_bytes, i, weights, bytes) + p.add;

		at = row * (size_t)p.k + (size_t)i;
		if (p.f32)
			((float *)p.to)[at] = w;
		else
			((bf16 *)p.to)[at] = bf16_of(w);
	}
}

/* ---- reading -------------------------------------------------------------------------- */

size_t loader_pinned(uint32_t slack)
{
	return BUFFERS * ((BUFFER + slack + 4095) / 4096 * 4096);
}

size_t loader_staging(void)
{
	return BUFFERS * BUFFER;
}

bool loader_create(struct dev *d, const struct sr_source *src, unsigned char *staging, char *err,
	size_t errlen)
{
	size_t each = loader_pinned(src->slack) / BUFFERS;
	struct loader *ld = (struct loader *)calloc(1, sizeof(*ld));

	d->loader = ld;
	if (!ld) {
		fail(-ENOMEM, err, errlen, "no memory to load weights with");
		return false;
	}
	ld->src = src;
	if (!cuda_ok(d, cudaHostAlloc((void **)&ld->pinned, each * BUFFERS, cudaHostAllocDefault),
		"read buffers"))
		return false;
	for (int i = 0; i < BUFFERS; i++) {
		ld->buffer[i].host = ld->pinned + (size_t)i * each;
		ld->buffer[i].device = staging + (size_t)i * BUFFER;
		if (!cuda_ok(d, cudaEventCreateWithFlags(&ld->buffer[i].copied, cudaEventDisableTiming),
			"an event"))
			return false;
	}
	if (src->arena && src->arena(src->ctx, ld->pinned, each * BUFFERS)) {
		fail(-EIO, err, errlen, "read buffers cannot be registered");
		return false;
	}
	return true;
}

/* One read is done: on to the device with it.  0 or -errno. */
static int forward_one(struct dev *d)
{
	struct loader *ld = d->loader;
	struct buffer *f;
	int32_t weights, bytes;
	uint64_t tag;
	void *at;
	int e = ld->src->wait(ld->src->ctx, &tag, &at);

	if (e)
		return e;
	f = &ld->buffer[tag];
	f->reading = false;
	ld->n_reading--;
	layout(f->piece.type, &weights, &bytes);
	f->copying = cuda_ok(d, cudaMemcpyAsync(f->device, at, f->piece.row_bytes * (size_t)f->piece.rows,
			cudaMemcpyHostToDevice, d->stream), "copy weights") &&
		cuda_ok(d, start(unpack_kernel, dim3((unsigned)(f->piece.k + 2047) / 2048,
			(unsigned)f->piece.rows), UNPACK_THREADS, 0, d->stream, f->piece,
			(const uint8_t *)f->device, weights, bytes),
				"unpack weights") &&
		cuda_ok(d, cudaEventRecord(f->copied, d->stream), "an event");
	return f->copying ? 0 : -EIO;
}

static int read_piece(struct dev *d, const struct sr_tensor *t, uint64_t from, const struct piece *p)
{
	struct loader *ld = d->loader;
	struct buffer *f = &ld->buffer[ld->turn];
	int e = 0;

	while (f->reading && !e)
		e = forward_one(d);
	if (!e && f->copying && !cuda_ok(d, cudaEventSynchronize(f->copied), "copy weights"))
		e = -EIO;
	if (e)
		return e;
	f->copying = false;
	f->piece = *p;
	for (;;) {
		e = ld->src->read(ld->src->ctx, &t->data, from, p->row_bytes * (size_t)p->rows, f->host,
			(uint64_t)ld->turn);
		if (e != -EAGAIN || !ld->n_reading)
			break;
		e = forward_one(d);
		if (e)
			return e;
	}
	if (e)
		return e;
	f->reading = true;
	ld->n_reading++;
	ld->turn = (ld->turn + 1) % BUFFERS;
	return 0;
}

/* A whole tensor to [n][k] at `to`. */
static int read_tensor(struct dev *d, const struct sr_tensor *t, void *to, bool f32, char *err, size_t errlen)
{
	size_t row_bytes = t->data.bytes / (size_t)t->n;
	size_t each = (size_t)t->k * (f32 ? sizeof(float) : sizeof(bf16));
	size_t most = BUFFER / row_bytes < 65535 ? BUFFER / row_bytes : 65535; /* of a grid's rows, too */

	for (int32_t r = 0, rows; r < t->n; r += rows) {
		struct piece p = { t->type, t->k, 0, row_bytes, (unsigned char *)to + (size_t)r * each, f32,
			t->add };
		int e;

		rows = p.rows = t->n - r < (int32_t)most ? t->n - r : (int32_t)most;
		e = read_piece(d, t, (uint64_t)r * row_bytes, &p);
		if (e)
			return fail(e, err, errlen, "tensor %s cannot be read: %s", t->name,
				d->lost ? d->why : strerror(-e));
	}
	return 0;
}

int loader_finish(struct dev *d, char *err, size_t errlen)
{
	struct loader *ld = d->loader;
	int e = 0;

	while (ld->n_reading && !e)
		e = forward_one(d);
	if (e)
		fail(e, err, errlen, "the weights cannot be read: %s", d->lost ? d->why : strerror(-e));
	if (!e && !cuda_ok(d, cudaStreamSynchronize(d->stream), "load weights"))
		e = fail(-EIO, err, errlen, "the weights cannot be loaded: %s", d->why);
	return e;
}

/* ---- weights -------------------------------------------------------------------------- */

static int64_t check(const struct sr_tensor *t, char *err, size_t errlen)
{
	int32_t weights, bytes;

	layout(t->type, &weights, &bytes);
	if (!weights)
		return fail(-ENOTSUP, err, errlen,
			"tensor %s: its type is not supported by the CUDA back end; F32, F16, "
			"BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are", t->name);
	if (t->n < 1 || t->k < 1 || t->k % weights || (t->n > 1 && t->k % 8) ||
	    t->data.bytes != (uint64_t)(t->k / weights) * (uint64_t)bytes * (uint64_t)t->n ||
		t->data.bytes / (uint64_t)t->n > BUFFER)
		return fail(-EINVAL, err, errlen,
			"tensor %s of %d x %d has %llu bytes: the inner size must be a multiple of "
			"8 and of its type's block", t->name, t->n, t->k, (unsigned long long)t->data.bytes);
	return 0;
}

static void *take(struct dev *d, size_t bytes)
{
	void *at = d->arena_at;

	d->arena_at += (bytes + 255) / 256 * 256;
	assert(d->arena_at <= d->arena_end);
	return at;
}

static int64_t padded(size_t bytes)
{
	return (int64_t)((bytes + 255) / 256 * 256);
}

static int load(struct dev *d, struct weight *w, const struct sr_tensor *const *part,
                const struct sr_tensor *const *bias, int n, bool has_bias, char *err, size_t errlen)
{
	size_t row = 0;
	int e = 0;

	if (part[0]->n == 1) {
		w->vec = (float *)take(d, (size_t)w->k * sizeof(float));
		return read_tensor(d, part[0], w->vec, true, err, errlen);
	}
	w->mat = (bf16 *)take(d, (size_t)w->n * (size_t)w->k * sizeof(bf16));
	if (has_bias) {
		w->bias = (float *)take(d, (size_t)w->n * sizeof(float));
		if (!cuda_ok(d, cudaMemsetAsync(w->bias, 0, (size_t)w->n * sizeof(float), d->stream),
			"clear a bias"))
			return fail(-EIO, err, errlen, "%s", d->why);
	}
	for (int i = 0; i < n && !e; i++) {
		e = read_tensor(d, part[i], w->mat + row * (size_t)w->k, false, err, errlen);
		if (!e && has_bias && bias[i])
			e = read_tensor(d, bias[i], w->bias + row, true, err, errlen);
		row += (size_t)part[i]->n;
	}
	return e;
}

int64_t weight_add(struct dev *d, struct weight **out, const struct sr_tensor *const *part,
                   const struct sr_tensor *const *bias, int n, enum share how,
                   const struct sr_source *src, char *err, size_t errlen)
{
	struct weight *w;
	int64_t bytes, rows = 0;
	bool has_bias = false;

	(void)how; /* always alone */
	(void)src; /* the loader has it */
	for (int i = 0; i < n; i++) {
		int64_t e = check(part[i], err, errlen);

		if (!e && part[i]->k != part[0]->k)
			e = fail(-EINVAL, err, errlen, "tensor %s has %d inputs, but those before it %d",
				part[i]->name,
				part[i]->k, part[0]->k);
		if (!e && bias && bias[i]) {
			e = check(bias[i], err, errlen);
			if (!e && (bias[i]->k != part[i]->n || bias[i]->n != 1))
				e = fail(-EINVAL, err, errlen, "tensor %s does not fit as a bias of %s",
					bias[i]->name, part[i]->name);
			has_bias = true;
		}
		if (e)
			return e;
		rows += part[i]->n;
	}
	bytes = padded((size_t)rows * (size_t)part[0]->k * (rows == 1 ? sizeof(float) : sizeof(bf16)));
	if (has_bias)
		bytes += padded((size_t)rows * sizeof(float));
	if (!out)
		return bytes;
	w = (struct weight *)calloc(1, sizeof(*w));
	if (!w)
		return fail(-ENOMEM, err, errlen, "no memory for a weight");
	w->next = d->weights;
	d->weights = w;
	w->n = (int32_t)rows;
	w->k = part[0]->k;
	*out = w;
	int e = load(d, w, part, bias, n, has_bias, err, errlen);

	return e ? e : bytes;
}

/* Of the loader, and the descriptions of weights. */
void weights_free(struct dev *d)
{
	struct loader *ld = d->loader;
	uint64_t tag;
	void *at;

	while (ld && ld->n_reading && !ld->src->wait(ld->src->ctx, &tag, &at))
		ld->n_reading--; /* of a load that failed: nobody may write to the buffers any more */
	while (d->weights) {
		struct weight *w = d->weights;

		d->weights = w->next;
		free(w);
	}
	for (int i = 0; ld && i < BUFFERS; i++)
		if (ld->buffer[i].copied)
			cuda_ok(d, cudaEventDestroy(ld->buffer[i].copied), "free an event");
	if (ld && ld->pinned && !ld->n_reading)
		cuda_ok(d, cudaFreeHost(ld->pinned), "free read buffers");
	free(ld);
	d->loader = NULL;
}
