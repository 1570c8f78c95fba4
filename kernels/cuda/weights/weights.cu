/* weights.cu - loads weights from files to the device.
 *
 * loader.cu reads, pack.cu converts on the device.
 *
 *	vectors                                          f32
 *	Q4_0, Q4_1, Q4_K, AWQ, GPTQ, compressed-tensors  4 bits, with a scale and a shift per group
 *	NVFP4                                            4 bits, with two scales for 32 inputs
 *	F8                                               8 bits, with a scale per group
 *	MXFP4 of experts                                 4 bits, with a scale per group
 *	routers                                          f32
 *	all others, and tensors fused with them          bf16
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/refuse.h"

static bool is_nvfp4(const struct sr_tensor *t)
{
	return t->type == SR_NVFP4 || t->type == SR_NVFP4_CT;
}

static bool scales_apart(const struct sr_tensor *t)
{
	return is_nvfp4(t) || is_apart(t->type) || t->type == SR_F8 || (t->type == SR_MXFP4 && t->scale.bytes);
}

/* Inputs per scale. */
static int32_t group_of(const struct sr_tensor *t)
{
	return t->type == SR_MXFP4 || is_nvfp4(t) ? SLAB : t->group ? t->group : t->k;
}

/* Are all outputs of an input stored together?  Then a rank reads those of others, too. */
static bool by_inputs(int32_t type)
{
	return type == SR_AWQ4 || type == SR_GPTQ4 || type == SR_GPTQ4_V2;
}

static struct file_piece piece_of_tensor(const struct sr_tensor *t)
{
	struct file_piece p = {};

	p.type = t->type;
	p.scale_type = t->scale_type;
	p.n = t->n;
	p.k = t->k;
	p.group = group_of(t);
	p.group_n = t->type != SR_F8 ? 1 : t->group_n ? t->group_n : t->outputs ? t->outputs : t->n;
	p.add = t->add;
	p.mul = t->mul != 0 ? t->mul : 1;
	p.neg_exp = t->neg_exp;
	p.step = 1;
	p.transposed = t->transposed;
	p.apart = scales_apart(t);
	p.in_blocks = is_nvfp4(t) && !t->scale.bytes;
	if (t->outputs && (t->n == 1 || t->transposed)) {
		p.outputs = t->outputs;
		p.at = t->first;
		p.step = t->step;
	}
	if (t->outputs && p.apart && by_inputs(t->type))
		p.at = t->first;
	return p;
}

/* A tensor without the others of its kind: that of expert e. */
static struct sr_tensor one_of(const struct sr_tensor *t, int32_t e)
{
	struct sr_tensor one = *t;

	if (t->count > 1 || t->each) {
		struct sr_stored s = sr_stored_of(t, e);

		one.data = s.data;
		one.scale = s.scale;
		one.zero = s.zero;
		one.index = s.index;
		one.count = 1;
		one.each = NULL;
	}
	return one;
}

/* Of a tensor whose outputs lie in runs, run r: as a tensor of its own. */
static struct sr_tensor run_of(const struct sr_tensor *t, int32_t r)
{
	struct sr_tensor one = *t;
	uint64_t row = t->data.bytes / (uint64_t)t->outputs;

	one.n = t->run;
	one.outputs = one.first = one.step = one.run = 0;
	one.data.offset += (uint64_t)sr_output_of(t, (int64_t)r * t->run) * row;
	one.data.bytes = row * (uint64_t)t->run;
	return one;
}

/* Of an extent with a row for each output that is stored, the part with this tensor's: rows of `step` stored
 * ones, in which this tensor's begins at p->skip. */
static struct sr_extent own_rows(const struct sr_tensor *t, const struct sr_extent *of, struct file_piece *p)
{
	struct sr_extent e = *of;
	uint64_t row = of->bytes / (uint64_t)(t->outputs ? t->outputs : 1);

	p->skip = 0;
	if (!t->outputs || t->n == 1 || t->transposed || by_inputs(t->type))
		return e;
	p->skip = (size_t)(t->first % t->step) * row;
	e.offset += (uint64_t)(t->first / t->step * t->step) * row;
	e.bytes = (uint64_t)t->n * (uint64_t)t->step * row;
	return e;
}

/* Reads a tensor to [n][k] at `to`. */
static int read_dense(struct dev *d, const struct sr_tensor *t, void *to, bool f32, char *err, size_t errlen)
{
	struct file_piece p = piece_of_tensor(t);
	struct sr_extent of = own_rows(t, &t->data, &p);

	p.dense = to;
	p.f32 = f32;
	return read_rows(d, t, &of, t->transposed ? t->k : t->n, 1, p, err, errlen);
}

/* The number of rows in the data of a tensor of this type; *step: rows that stay together. */
static int32_t data_rows(const struct sr_tensor *t, int32_t *step)
{
	bool gptq = t->type == SR_GPTQ4 || t->type == SR_GPTQ4_V2;

	*step = gptq ? SLAB / 8 : t->type == SR_AWQ4 ? SLAB : 1;
	return gptq ? t->k / 8 : t->type == SR_AWQ4 ? t->k : t->n;
}

/* ---- act-order ------------------------------------------------------------------------ */

/* where[k]: inputs sorted by group, stable within a group.  False: groups differ in size. */
static bool sort_inputs(const int32_t *index, int32_t k, int32_t group, int32_t *where)
{
	int32_t *next = (int32_t *)calloc((size_t)(k / group), sizeof(*next));
	bool good = next;

	for (int32_t i = 0; i < k && good; i++) {
		int32_t g = index[i];

		good = g >= 0 && g < k / group && next[g] < group;
		if (good)
			where[i] = g * group + next[g]++;
	}
	free(next);
	return good;
}

/* The order of a weight's inputs, which all its parts must share.  where, order: [k], on the host. */
static int find_order(struct dev *d, const struct sr_tensor *const *part, int n, int32_t *where,
	int32_t *order, char *err, size_t errlen)
{
	int32_t k = part[0]->k;

	for (int i = 0; i < n; i++) {
		const int32_t *index = (const int32_t *)read_small(d, &part[i]->index);
		int32_t *to = i ? order : where;

		if (!index)
			return refuse(-EIO, err, errlen, "tensor %s: the groups of its inputs cannot be read",
				part[i]->name);
		if (!sort_inputs(index, k, part[i]->group ? part[i]->group : k, to))
			return refuse(-EINVAL, err, errlen, "tensor %s: the groups of its inputs (act-order) must all be "
				"of one size", part[i]->name);
		if (i && memcmp(where, order, (size_t)k * sizeof(*where)))
			return refuse(-ENOTSUP, err, errlen, "tensor %s has its inputs in another order (act-order) than "
				"%s, with which it is computed together; the CUDA back end needs them alike",
				part[i]->name, part[0]->name);
	}
	for (int32_t i = 0; i < k; i++)
		order[where[i]] = i;
	return 0;
}

static int load_order(struct dev *d, struct weight *w, const struct sr_tensor *const *part, int n, char *err,
	size_t errlen)
{
	size_t bytes = (size_t)w->k * sizeof(int32_t);
	int32_t *where = (int32_t *)malloc(2 * bytes), *order = where + w->k;
	int e;

	if (!where)
		return refuse(-ENOMEM, err, errlen, "no memory for the order of %d inputs", w->k);
	d->store.loader->order = where;
	e = find_order(d, part, n, where, order, err, errlen);
	if (!e && !(cuda_ok(d, cudaMemcpyAsync(w->where, where, bytes, cudaMemcpyHostToDevice, d->stream),
			"copy an order") &&
		    cuda_ok(d, cudaMemcpyAsync(w->order, order, bytes, cudaMemcpyHostToDevice, d->stream),
			"copy an order") &&
		    cuda_ok(d, cudaStreamSynchronize(d->stream), "copy an order")))
		e = refuse(-EIO, err, errlen, "tensor %s: %s", part[0]->name, d->fault.why);
	if (!e) {
		free(where);
		d->store.loader->order = NULL;
	}
	return e;
}

/* ---- packed --------------------------------------------------------------------------- */

/* Of an extent with a row for `each` outputs that are stored, the rows of this tensor's; *rows of them, and in the
 * first this tensor's outputs begin at p->at. */
static struct sr_extent own_groups(const struct sr_tensor *t, const struct sr_extent *of, int32_t each,
	struct file_piece *p, int32_t *rows)
{
	int32_t stored = t->outputs ? t->outputs : t->n, first = t->outputs ? t->first : 0;
	int32_t from = first / each, to = (first + t->n + each - 1) / each;
	uint64_t row = of->bytes / (uint64_t)((stored + each - 1) / each);
	struct sr_extent e = *of;

	p->skip = 0;
	p->at = first % each;
	*rows = to - from;
	e.offset += (uint64_t)from * row;
	e.bytes = (uint64_t)*rows * row;
	return e;
}

/* Reads a tensor to outputs col .. of a packed matrix. */
static int read_packed(struct dev *d, const struct sr_tensor *t, const struct weight *w, int32_t col,
	char *err, size_t errlen)
{
	struct file_piece p = piece_of_tensor(t);
	bool outputs = t->type == SR_CT4 || t->type == SR_F8 || t->type == SR_MXFP4;
	struct sr_extent scale = own_rows(t, &t->scale, &p), zero = t->zero, data;
	int32_t groups = t->k / p.group, step, rows = data_rows(t, &step), scales = outputs ? t->n : groups;
	int e = 0;

	p.held = w->held;
	p.to = w->packed;
	p.col = col;
	p.where = w->where;
	p.of = OF_SCALES;
	if (t->type == SR_F8)
		scale = own_groups(t, &t->scale, p.group_n, &p, &scales);
	if (t->scale.bytes)
		e = read_rows(d, t, &scale, scales, 1, p, err, errlen);
	p.of = OF_QUANTS;
	data = own_rows(t, &t->data, &p);
	if (!e)
		e = read_rows(d, t, &data, rows, step, p, err, errlen);
	/* zeros need the scales, and reads end in any order */
	while (t->zero.bytes && d->store.loader->n_scales && !e)
		if ((e = forward_one(d)))
			refuse(e, err, errlen, "tensor %s cannot be read: %s", t->name,
			d->fault.lost ? d->fault.why : strerror(-e));
	p.of = OF_ZEROS;
	if (t->zero.bytes && outputs)
		zero = own_groups(t, &t->zero, 8, &p, &groups);
	if (t->zero.bytes && !e)
		e = read_rows(d, t, &zero, groups, 1, p, err, errlen);
	return e;
}

/* NVFP4.  One factor for the matrix: its power of two goes to the scales, where it changes no digit; the rest is kept
 * for each output, because matrices that are computed together have factors of their own. */
static int read_nvfp4(struct dev *d, const struct sr_tensor *t, const struct weight *w, int32_t col, char *err,
	size_t errlen)
{
	struct file_piece p = piece_of_tensor(t);
	const void *at = t->zero.bytes ? read_small(d, &t->zero) : NULL;
	float all = 1;
	int e, power;

	if (t->zero.bytes && !at)
		return refuse(-EIO, err, errlen, "tensor %s: its factor cannot be read", t->name);
	if (at)
		memcpy(&all, at, sizeof(all));
	all = t->type == SR_NVFP4_CT ? 1 / all : all;
	p.mul = 2 * frexpf(all, &power);
	p.add = ldexpf(1, power - 1);
	p.held = w->held;
	p.to = w->packed;
	p.col = col;
	p.of = OF_SCALES;
	e = read_rows(d, t, t->scale.bytes ? &t->scale : &t->data, t->n, 1, p, err, errlen);
	p.of = OF_QUANTS;
	return e ? e : read_rows(d, t, &t->data, t->n, 1, p, err, errlen);
}

/* ---- weights -------------------------------------------------------------------------- */

static enum held held_as(const struct sr_tensor *t)
{
	switch (t->type) {
	case SR_Q4_0: case SR_Q4_1: case SR_Q4_K:
	case SR_AWQ4: case SR_GPTQ4: case SR_GPTQ4_V2: case SR_CT4:
		return t->n == 1 ? HELD_VECTOR : HELD_W4;
	case SR_F8:
		return HELD_W8;
	case SR_NVFP4: case SR_NVFP4_CT:
		return HELD_N4;
	case SR_MXFP4:
		return t->n == 1 ? HELD_VECTOR : t->count > 1 ? HELD_F4 : HELD_BF16;
	}
	return t->n == 1 ? HELD_VECTOR : HELD_BF16;
}

/* Returns NULL, or what is wrong with a tensor whose scales are apart from its weights. */
static const char *check_apart(const struct sr_tensor *t)
{
	uint64_t n = (uint64_t)(t->outputs ? t->outputs : t->n), k = (uint64_t)t->k, group = t->group ? (uint64_t)t->group : k;
	uint64_t group_n = t->type != SR_F8 ? 1 : t->group_n ? (uint64_t)t->group_n : n;
	uint64_t groups = k / (group ? group : 1);
	int32_t step, rows;

	if (t->n == 1)
		return "vectors of its type are not supported";
	if (t->transposed || (t->outputs && (t->step != 1 || t->first < 0 || t->first % 8 || t->first + t->n > t->outputs)))
		return "its outputs alternate or are transposed";
	if (t->index.bytes && (t->type == SR_AWQ4 || t->type == SR_F8))
		return "inputs grouped out of order (act-order) are not supported for its type";
	if (t->group < 0 || t->group_n < 0 || group < SLAB || group % SLAB || k % group)
		return "its groups must be multiples of 32 inputs that divide them all";
	if ((n % 8 || t->n % 8) && t->type != SR_CT4 && t->type != SR_F8)
		return "its outputs must be a multiple of 8";
	if (t->scale_type != SR_F16 && t->scale_type != SR_BF16 && t->scale_type != SR_F32)
		return "its scales must be F16, BF16 or F32";
	if (t->data.bytes != (t->type == SR_F8 ? n * k : n * k / 2) ||
	    (t->index.bytes && t->index.bytes != k * sizeof(int32_t)) ||
	    t->scale.bytes != groups * ((n + group_n - 1) / group_n) * scale_bytes(t->scale_type) ||
	    (t->zero.bytes ? t->zero.bytes != groups * ((n + 7) / 8) * 4 : t->type != SR_CT4 && t->type != SR_F8))
		return "its parts are not as long as its shape says";
	rows = data_rows(t, &step);
	rows = t->outputs && !by_inputs(t->type) ? t->outputs : rows;
	if (t->data.bytes / (uint64_t)rows * (uint64_t)step > BUFFER || groups * 4 > BUFFER ||
	    t->index.bytes > BUFFER)
		return "its rows are too long";
	return NULL;
}

/* Returns NULL, or what is wrong with how a tensor is stored: which outputs, and MXFP4 as safetensors have it. */
static const char *check_stored(const struct sr_tensor *t, int32_t count)
{
	int64_t n = t->n == 1 ? t->k : t->n, step = t->step, blocks = t->k / SLAB;
	bool apart = t->type == SR_MXFP4 && t->scale.bytes;

	if (t->outputs && (t->first < 0 || step < 1 || t->first + (n - 1) * step >= t->outputs ||
	                   (t->n > 1 && !t->transposed && t->first / step * step + n * step > t->outputs)))
		return "its outputs are not among those that are stored";
	if (t->transposed && (t->n == 1 || (t->type != SR_F32 && t->type != SR_F16 && t->type != SR_BF16)))
		return "only matrices of floats can be stored transposed";
	if (apart && count == 1)
		return "only experts of its type may have their scales apart";
	if (apart && (t->k % SLAB || t->data.bytes != (uint64_t)((t->outputs ? t->outputs : t->n) * blocks * 16) ||
	              t->scale.bytes != (uint64_t)((t->outputs ? t->outputs : t->n) * blocks) ||
	              (uint64_t)blocks * 16 * (uint64_t)(t->outputs ? step : 1) > BUFFER))
		return "its parts are not as long as its shape says";
	return NULL;
}

/* Returns NULL, or what is wrong with a tensor of NVFP4. */
static const char *check_nvfp4(const struct sr_tensor *t, int32_t count)
{
	uint64_t n = (uint64_t)t->n, k = (uint64_t)t->k, block = t->scale.bytes ? SLAB : 64;
	uint64_t bytes = t->scale.bytes ? n * k / 2 : n * (k / 64) * 36;

	if (t->n == 1 || count > 1)
		return "only matrices of its type are supported, not vectors, and not experts";
	if (t->outputs || t->transposed || t->index.bytes)
		return "all outputs that are stored must be its own";
	if (k % block || t->data.bytes != bytes || (t->scale.bytes && t->scale.bytes != n * k / 16) ||
	    (t->zero.bytes && t->zero.bytes != sizeof(float)) || bytes / n > BUFFER)
		return "its inputs must be a multiple of 32 (in GGUF 64), and its parts as long as its shape says";
	return NULL;
}

/* count: of the tensor that t is one of. */
static int64_t check(const struct sr_tensor *t, int32_t count, char *err, size_t errlen)
{
	bool f4_apart = t->type == SR_MXFP4 && t->scale.bytes, apart = scales_apart(t) && !f4_apart;
	uint64_t stored = (uint64_t)(t->outputs ? t->outputs : t->n == 1 ? t->k : t->n);
	uint64_t across = (uint64_t)(t->n == 1 ? 1 : t->k), row;
	int32_t weights, bytes;
	const char *why;

	if (!is_apart(t->type) && !is_nvfp4(t) && !pack_layout(t->type, &weights, &bytes))
		return refuse(-ENOTSUP, err, errlen,
			"tensor %s: its type is not supported by the CUDA back end; F32, F16, BF16, F8, Q8_0, "
			"Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4, NVFP4, AWQ, GPTQ and compressed-tensors of 4 "
			"bits are", t->name);
	why = t->n < 1 || t->k < 1 ? "its shape is empty" : is_nvfp4(t) ? check_nvfp4(t, count) :
		apart ? check_apart(t) : check_stored(t, count);
	if (why)
		return refuse(-ENOTSUP, err, errlen, "tensor %s of %d x %d: %s", t->name, t->n, t->k, why);
	if (apart || f4_apart)
		return 0;
	row = t->transposed ? stored * (uint64_t)bytes : across * (uint64_t)bytes / (uint64_t)weights *
		(uint64_t)(t->n == 1 ? stored : t->outputs ? t->step : 1);
	if (t->k % weights || (t->n > 1 && t->k % 8) || (t->n == 1 && t->outputs && weights > 1) ||
	    t->data.bytes != stored * across * (uint64_t)bytes / (uint64_t)weights || row > BUFFER)
		return refuse(-EINVAL, err, errlen,
			"tensor %s of %d x %d has %llu bytes: the inner size must be a multiple of "
			"8 and of its type's block", t->name, t->n, t->k, (unsigned long long)t->data.bytes);
	return 0;
}

static void *take(struct dev *d, size_t bytes)
{
	void *at = d->store.at;

	d->store.at += (bytes + 255) / 256 * 256;
	assert(d->store.at <= d->store.end);
	return at;
}

static int64_t padded(size_t bytes)
{
	return (int64_t)((bytes + 255) / 256 * 256);
}

/* The greatest common divisor; of a and 0 it is a. */
static int32_t divides_both(int32_t a, int32_t b)
{
	while (b) {
		int32_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static int64_t check_runs(const struct sr_tensor *t, char *err, size_t errlen)
{
	if (scales_apart(t) || t->n == 1 || t->transposed || t->count > 1)
		return refuse(-ENOTSUP, err, errlen, "tensor %s: several matrices in one are not supported for its type by the "
			"CUDA back end", t->name);
	if (t->n % t->run || t->first < 0 || sr_output_of(t, t->n - 1) >= t->outputs ||
	    t->data.bytes % (uint64_t)t->outputs)
		return refuse(-EINVAL, err, errlen, "tensor %s: its outputs are not among those that are stored", t->name);
	return 0;
}

/* A tensor of each expert; of one, if there are none. */
static int64_t check_all(const struct sr_tensor *t, int32_t count, char *err, size_t errlen)
{
	int64_t e = 0;

	if (t->count > 1 ? t->count != count : count != 1)
		return refuse(-EINVAL, err, errlen, "tensor %s holds %d matrices, but %d are computed together", t->name,
			t->count, count);
	for (int32_t i = 0; i < count && !e; i++) {
		struct sr_tensor one = one_of(t, i);

		if (one.run > 1 && (e = check_runs(&one, err, errlen)) == 0)
			one = run_of(&one, 0);
		if (!e)
			e = check(&one, count, err, errlen);
		if (!e && count > 1 && one.index.bytes)
			e = refuse(-ENOTSUP, err, errlen, "tensor %s: experts whose inputs are grouped out of order "
				"(act-order) are not supported by the CUDA back end", t->name);
	}
	return e;
}

bool weight_packed(const struct sr_tensor *t)
{
	enum held h = held_as(t);

	return t->n > 0 && (h == HELD_W4 || h == HELD_W8 || h == HELD_N4);
}

bool weight_whole_zeros(const struct sr_tensor *t)
{
	return t->n > 1 && (is_apart(t->type) || t->type == SR_Q4_0);
}

/* Finds one stored form for all parts together. */
static int64_t check_parts(struct weight *w, const struct sr_tensor *const *part, int n, char *err,
	size_t errlen)
{
	int32_t group = 0;

	w->held = held_as(part[0]);
	w->whole_zeros = true;
	w->count = part[0]->count > 1 ? part[0]->count : 1;
	for (int i = 0; i < n; i++) {
		int64_t e = check_all(part[i], w->count, err, errlen);
		int32_t each = scales_apart(part[i]) ? group_of(part[i]) : SLAB;

		if (e)
			return e;
		if (part[i]->k != part[0]->k)
			return refuse(-EINVAL, err, errlen, "tensor %s has %d inputs, but those before it %d",
				part[i]->name, part[i]->k, part[0]->k);
		if (part[i]->run > 1 && w->held == HELD_W4 && part[i]->run % STRIP)
			w->held = HELD_BF16;         /* a run begins inside a strip */
		if (held_as(part[i]) != w->held) {
			const struct sr_tensor *one = scales_apart(part[i]) ? part[i] : part[0];

			if (scales_apart(one))
				return refuse(-ENOTSUP, err, errlen, "tensor %s is quantized in another way than "
					"what is computed together with it; the CUDA back end needs them alike",
					one->name);
			w->held = HELD_BF16;
		}
		if (!part[i]->index.bytes != !part[0]->index.bytes)
			return refuse(-ENOTSUP, err, errlen, "tensor %s has its inputs in another order (act-order) than "
				"%s, with which it is computed together; the CUDA back end needs them alike",
				part[i]->name, part[0]->name);
		w->whole_zeros &= weight_whole_zeros(part[i]);
		w->n += part[i]->n;
		w->whole += part[i]->whole ? part[i]->whole : part[i]->n;
		group = divides_both(each, group);
	}
	w->k = part[0]->k;
	w->packed.N = w->n;
	w->packed.K = w->k;
	w->packed.width = (w->n + STRIP - 1) / STRIP * STRIP * w->count;
	w->packed.group = group / SLAB;
	return 0;
}

static size_t words_bytes(const struct weight *w)
{
	return (size_t)(w->packed.width / STRIP) * (size_t)(w->k / SLAB) * TILE_WORDS *
		(w->held == HELD_W8 ? 2 : 1) * sizeof(uint32_t);
}

static size_t scales_bytes(const struct weight *w)
{
	return (size_t)(w->k / SLAB / w->packed.group) * (size_t)w->packed.width * sizeof(uint32_t);
}

int64_t weight_bytes(const struct weight *w)
{
	switch (w->held) {
	case HELD_VECTOR:
		return padded((size_t)w->k * sizeof(float));
	case HELD_BF16:
		return padded((size_t)w->count * (size_t)w->n * (size_t)w->k * sizeof(bf16));
	case HELD_F32:
		return padded((size_t)w->n * (size_t)w->k * sizeof(float));
	default:
		return padded(words_bytes(w)) + padded(scales_bytes(w)) +
			(w->held == HELD_N4 ? padded((size_t)w->packed.width * sizeof(float)) : 0);
	}
}

/* For cuBLASLt, which multiplies neither by expert nor for a router. */
static bool wants_bias16(const struct dev *d, const struct weight *w)
{
	return d->product.use_lt && w->count == 1 && w->held != HELD_F32;
}

/* Cleared, because a bias may have parts without values, and a last strip has outputs that do not exist. */
static void *take_clear(struct dev *d, size_t bytes)
{
	void *at = take(d, bytes);

	return cuda_ok(d, cudaMemsetAsync(at, 0, bytes, d->stream), "clear a weight") ? at : NULL;
}

static int load_vector(struct dev *d, struct weight *w, const struct sr_tensor *t, const struct sr_tensor *bias,
	char *err, size_t errlen)
{
	int e;

	w->vec = (float *)take(d, (size_t)w->k * sizeof(float));
	e = read_dense(d, t, w->vec, true, err, errlen);
	if (bias && !e) {
		w->bias = (float *)take(d, (size_t)w->k * sizeof(float));
		e = read_dense(d, bias, w->bias, true, err, errlen);
	}
	return e;
}

/* Outputs row .., run by run; such weights have no bias. */
static int load_runs(struct dev *d, struct weight *w, const struct sr_tensor *t, int32_t row, char *err, size_t errlen)
{
	int e = 0;

	for (int32_t r = 0; r < t->n / t->run && !e; r++, row += t->run) {
		struct sr_tensor one = run_of(t, r);

		e = w->held == HELD_BF16 ? read_dense(d, &one, w->mat + (size_t)row * (size_t)w->k, false, err, errlen)
		                         : read_packed(d, &one, w, row, err, errlen);
	}
	return e;
}

/* Outputs row .. of expert x (0: there are none). */
static int load_part(struct dev *d, struct weight *w, const struct sr_tensor *t, const struct sr_tensor *bias,
	int32_t x, int32_t row, char *err, size_t errlen)
{
	struct sr_tensor one = one_of(t, x);
	size_t at = (size_t)x * (size_t)w->n + (size_t)row;
	int e;

	if (one.run > 1)
		return load_runs(d, w, &one, row, err, errlen);
	if (w->held == HELD_F32)
		e = read_dense(d, &one, w->vec + at * (size_t)w->k, true, err, errlen);
	else if (w->held == HELD_BF16)
		e = read_dense(d, &one, w->mat + at * (size_t)w->k, false, err, errlen);
	else if (w->held == HELD_N4)
		e = read_nvfp4(d, &one, w, row, err, errlen);
	else
		e = read_packed(d, &one, w, x * (w->packed.width / w->count) + row, err, errlen);
	if (bias)
		one = one_of(bias, x);
	if (!e && bias)
		e = read_dense(d, &one, w->bias + at, true, err, errlen);
	if (!e && bias && w->bias16)
		e = read_dense(d, &one, w->bias16 + at, false, err, errlen);
	return e;
}

static int load(struct dev *d, struct weight *w, const struct sr_tensor *const *part,
                const struct sr_tensor *const *bias, int n, bool has_bias, char *err, size_t errlen)
{
	size_t outputs = (size_t)w->count * (size_t)w->n;
	int e = 0;

	if (w->held == HELD_VECTOR)
		return load_vector(d, w, part[0], has_bias ? bias[0] : NULL, err, errlen);
	if (w->held == HELD_BF16) {
		w->mat = (bf16 *)take(d, outputs * (size_t)w->k * sizeof(bf16));
	} else if (w->held == HELD_F32) {
		w->vec = (float *)take(d, outputs * (size_t)w->k * sizeof(float));
	} else {
		w->packed.words = (uint32_t *)take_clear(d, words_bytes(w));
		w->packed.scale = (uint32_t *)take_clear(d, scales_bytes(w));
		if (w->held == HELD_N4)
			w->packed.by = (float *)take_clear(d, (size_t)w->packed.width * sizeof(float));
	}
	if (part[0]->index.bytes) {
		w->where = (int32_t *)take(d, (size_t)w->k * sizeof(int32_t));
		w->order = (int32_t *)take(d, (size_t)w->k * sizeof(int32_t));
	}
	if (has_bias)
		w->bias = (float *)take_clear(d, outputs * sizeof(float));
	if (has_bias && wants_bias16(d, w))
		w->bias16 = (bf16 *)take_clear(d, outputs * sizeof(bf16));
	if (d->fault.lost)
		return refuse(-EIO, err, errlen, "%s", d->fault.why);
	if (w->order)
		e = load_order(d, w, part, n, err, errlen);
	for (int32_t x = 0; x < w->count; x++)
		for (int32_t i = 0, row = 0; i < n && !e; row += part[i++]->n)
			e = load_part(d, w, part[i], has_bias ? bias[i] : NULL, x, row, err, errlen);
	return e;
}

/* The product that makes the scores of experts is computed from floats: a score that is rounded may choose
 * another expert. */
static bool is_router(const struct dev *d, const struct sr_tensor *t)
{
	for (int32_t l = 0; l < d->m->n_layers; l++)
		if (t == &d->m->layer[l].router)
			return true;
	return false;
}

/* What a bias takes; -errno if one does not fit. */
static int64_t check_bias(const struct dev *d, const struct weight *w, const struct sr_tensor *t,
	const struct sr_tensor *bias, char *err, size_t errlen)
{
	int64_t e = check_all(bias, w->count, err, errlen);

	if (!e && (bias->k != (t->n == 1 ? t->k : t->n) || held_as(bias) != HELD_VECTOR))
		e = refuse(-EINVAL, err, errlen, "tensor %s does not fit as a bias of %s", bias->name, t->name);
	if (e)
		return e;
	if (w->held == HELD_VECTOR)
		return padded((size_t)w->k * sizeof(float));
	return padded((size_t)w->count * (size_t)w->n * sizeof(float)) +
		(wants_bias16(d, w) ? padded((size_t)w->n * sizeof(bf16)) : 0);
}

int64_t weight_add(struct dev *d, struct weight **out, const struct sr_tensor *const *part,
                   const struct sr_tensor *const *bias, int n, char *err, size_t errlen)
{
	struct weight *w, shape = {};
	int64_t bytes = check_parts(&shape, part, n, err, errlen), more = 0;

	if (!bytes && is_router(d, part[0])) {
		if (scales_apart(part[0]))
			return refuse(-ENOTSUP, err, errlen, "tensor %s: a router must be of floats or of GGUF's types",
				part[0]->name);
		shape.held = HELD_F32;
	}
	for (int i = 0; i < n && !bytes; i++) {
		int64_t e = bias && bias[i] ? check_bias(d, &shape, part[i], bias[i], err, errlen) : 0;

		bytes = e < 0 ? e : 0;
		more = e > 0 ? e : more;
	}
	if (bytes)
		return bytes;
	bytes = weight_bytes(&shape) + more +
		(part[0]->index.bytes ? 2 * padded((size_t)shape.k * sizeof(int32_t)) : 0);
	if (!out)
		return bytes;
	w = (struct weight *)malloc(sizeof(*w));
	if (!w)
		return refuse(-ENOMEM, err, errlen, "no memory for a weight");
	*w = shape;
	w->next = d->store.list;
	d->store.list = w;
	*out = w;
	int e = load(d, w, part, bias, n, more > 0, err, errlen);

	return e ? e : bytes;
}

/* Frees the descriptions of weights, and the loader. */
void weights_free(struct dev *d)
{
	loader_wait(d);
	while (d->store.list) {
		struct weight *w = d->store.list;

		d->store.list = w->next;
		free(w);
	}
	loader_free(d);
}
