/* loader.cu - reads files for weights.cu: up to BUFFERS reads into pinned buffers are in flight.  A finished one is
 * copied to the device and converted to its stored form there (pack.cu), while the next are read.  A GPU that shares the
 * host's memory converts it where it was read to. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loader.cuh"
#include "kernels/refuse.h"

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

	d->store.loader = ld;
	if (!ld) {
		refuse(-ENOMEM, err, errlen, "no memory to load weights with");
		return false;
	}
	ld->src = src;
	if (!cuda_ok(d, cudaDeviceGetAttribute(&ld->integrated, cudaDevAttrIntegrated, d->gpu.number), "ask a GPU") ||
	    !cuda_ok(d, cudaHostAlloc((void **)&ld->pinned, each * BUFFERS, cudaHostAllocDefault),
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
		refuse(-EIO, err, errlen, "read buffers cannot be registered");
		return false;
	}
	return true;
}

int forward_one(struct dev *d)
{
	struct loader *ld = d->store.loader;
	struct read_buffer *f;
	uint64_t tag;
	void *at;
	int e = ld->src->wait(ld->src->ctx, &tag, &at);

	if (e)
		return e;
	f = &ld->buffer[tag];
	f->reading = false;
	ld->n_reading--;
	ld->n_scales -= f->piece.of == OF_SCALES;
	f->copying = (ld->integrated || cuda_ok(d, cudaMemcpyAsync(f->device, at, f->piece.row_bytes * (size_t)f->piece.rows,
			cudaMemcpyHostToDevice, d->stream), "copy weights")) &&
		pack_rows(d, &f->piece, ld->integrated ? (const unsigned char *)at : f->device) &&
		cuda_ok(d, cudaEventRecord(f->copied, d->stream), "an event");
	return f->copying ? 0 : -EIO;
}

static int read_piece(struct dev *d, const struct sr_extent *of, const struct file_piece *p)
{
	struct loader *ld = d->store.loader;
	struct read_buffer *f = &ld->buffer[ld->turn];
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
		e = ld->src->read(ld->src->ctx, of, (uint64_t)p->first * p->row_bytes,
			p->row_bytes * (size_t)p->rows, f->host, (uint64_t)ld->turn);
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
	ld->n_scales += p->of == OF_SCALES;
	ld->turn = (ld->turn + 1) % BUFFERS;
	return 0;
}

int read_rows(struct dev *d, const struct sr_tensor *t, const struct sr_extent *of, int32_t all,
	int32_t step, struct file_piece p, char *err, size_t errlen)
{
	unsigned char *dense = (unsigned char *)p.dense;
	size_t each = (size_t)t->k * (p.f32 ? sizeof(float) : sizeof(bf16)), most;

	p.row_bytes = of->bytes / (size_t)all;
	most = BUFFER / p.row_bytes < 65535 ? BUFFER / p.row_bytes : 65535; /* a limit of grids, too */
	most = most / (size_t)step * (size_t)step;
	for (p.first = 0; p.first < all; p.first += p.rows) {
		int e;

		p.rows = all - p.first < (int32_t)most ? all - p.first : (int32_t)most;
		p.dense = dense + (p.transposed ? 0 : (size_t)p.first * each);
		e = read_piece(d, of, &p);
		if (e)
			return refuse(e, err, errlen, "tensor %s cannot be read: %s", t->name,
				d->fault.lost ? d->fault.why : strerror(-e));
	}
	return 0;
}

const void *read_small(struct dev *d, const struct sr_extent *of)
{
	struct loader *ld = d->store.loader;
	uint64_t tag;
	void *at;

	while (ld->n_reading)
		if (forward_one(d))
			return NULL;
	if (!cuda_ok(d, cudaStreamSynchronize(d->stream), "copy weights") ||
	    ld->src->read(ld->src->ctx, of, 0, of->bytes, ld->buffer[ld->turn].host, 0) ||
	    ld->src->wait(ld->src->ctx, &tag, &at))
		return NULL;
	return at;
}

int loader_finish(struct dev *d, char *err, size_t errlen)
{
	struct loader *ld = d->store.loader;
	int e = 0;

	while (ld->n_reading && !e)
		e = forward_one(d);
	if (e)
		refuse(e, err, errlen, "the weights cannot be read: %s", d->fault.lost ? d->fault.why : strerror(-e));
	if (!e && !cuda_ok(d, cudaStreamSynchronize(d->stream), "load weights"))
		e = refuse(-EIO, err, errlen, "the weights cannot be loaded: %s", d->fault.why);
	return e;
}

void loader_wait(struct dev *d)
{
	struct loader *ld = d->store.loader;
	uint64_t tag;
	void *at;

	while (ld && ld->n_reading && !ld->src->wait(ld->src->ctx, &tag, &at))
		ld->n_reading--; /* after a failed load: no read may write to the buffers any more */
}

void loader_free(struct dev *d)
{
	struct loader *ld = d->store.loader;

	for (int i = 0; ld && i < BUFFERS; i++)
		if (ld->buffer[i].copied)
			cuda_ok(d, cudaEventDestroy(ld->buffer[i].copied), "free an event");
	if (ld && ld->pinned && !ld->n_reading)
		cuda_ok(d, cudaFreeHost(ld->pinned), "free read buffers");
	if (ld)
		free(ld->order);
	free(ld);
	d->store.loader = NULL;
}
