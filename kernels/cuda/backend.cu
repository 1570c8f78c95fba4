/* backend.cu - the back end's interface: device memory, batches, launch and poll.
 *
 *	launch   queues copies between the tiers, then the batch: the first kernel, which reads rows and
 *	         commands (step.cu), the forward pass, and the last kernel, which writes a word to pinned
 *	         memory.  A step of single tokens is launched as one graph (graph.cu).
 *	poll     reads that word, and queries the driver every LOOKS polls.  A device error makes its
 *	         context unusable for good, so the first one fails everything with -EIO.
 *	arm      wakes a thread that sleeps: a separate stream waits for the end of the batch
 *
 * Tokens leave through the batch itself: results and alternatives are written to pinned memory.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "backend.cuh"
#include "guard/missing.h"
#include "guard/xid.h"
#include "kernels/refuse.h"
#include "kernels/share.h"
#include "shmring/clock.h"

#define LOOKS 64                     /* polls between two queries to the driver */
#define HASHED 512                   /* results of a batch that ranks compare */

bool cuda_ok(struct dev *d, cudaError_t e, const char *what)
{
	if (e != cudaSuccess && !d->fault.lost) {
		d->fault.lost = true;
		d->fault.code = e;
		snprintf(d->fault.why, sizeof(d->fault.why), "%s: %s (%s)", what, cudaGetErrorString(e),
			cudaGetErrorName(e));
	}
	return !d->fault.lost;
}

/* ---- plan ----------------------------------------------------------------------------- */

static bool gpu_ok(struct dev *d, cudaError_t e, const char *verb)
{
	char what[32];

	snprintf(what, sizeof(what), "%s GPU %d", verb, d->gpu.number);
	return cuda_ok(d, e, what);
}

static int unusable(const struct dev *d, char *err, size_t errlen)
{
	return refuse(-ENODEV, err, errlen, "GPU %d cannot be used: %s", d->gpu.number, d->fault.why);
}

static int no_device(cudaError_t e, char *err, size_t errlen)
{
	int driver = 0, runtime = 0;
	char why[256];

	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	gpu_missing(why, sizeof(why), "", driver, runtime);
	return refuse(-ENODEV, err, errlen, "no GPU can be used: %s; %s; --device cpu goes on without one",
		e == cudaSuccess ? "there is none" : cudaGetErrorString(e), why);
}

static int find_device(struct dev *d, char *err, size_t errlen)
{
	int n = 0, major = 0, minor = 0, processors = 0, shared_bytes = 0;
	struct gpu *gpu = &d->gpu;
	size_t avail, total = 0;
	cudaError_t e = cudaGetDeviceCount(&n);

	if (e != cudaSuccess || n < 1)
		return no_device(e, err, errlen);
	if (gpu->number >= n)
		return refuse(-ENODEV, err, errlen, "rank %d needs a GPU of its own, and there are %d: with "
			"--tensor-parallel-size %d as many must be in CUDA_VISIBLE_DEVICES", gpu->number, n, d->ranks.world);
	if (!gpu_ok(d, cudaSetDevice(gpu->number), "use") ||
	    !gpu_ok(d, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, gpu->number), "ask") ||
	    !gpu_ok(d, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, gpu->number), "ask") ||
	    !gpu_ok(d, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, gpu->number), "ask") ||
	    !gpu_ok(d, cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
		gpu->number), "ask") ||
	    !gpu_ok(d, cudaDeviceGetPCIBusId(gpu->bus, sizeof(gpu->bus), gpu->number), "ask") ||
	    !gpu_ok(d, cudaMemGetInfo(&avail, &total), "ask"))
		return unusable(d, err, errlen);
	if (major < 8)
		return refuse(-ENOTSUP, err, errlen,
			"GPU %d has compute capability %d.%d; 8.0 (Ampere) or later is needed; --device cpu goes on "
			"without it", gpu->number, major, minor);
	gpu->processors = processors;
	gpu->capability = 10 * major + minor;
	gpu->shared_bytes = shared_bytes;
	gpu->memory = total;
	start_early = gpu->capability >= 90 && has(d, SPECIAL_EARLY_START);
	return 0;
}

/* What has no effect is refused. */
static int check_w4a8(const struct sr_model *m, const struct sr_limits *lim, char *err, size_t errlen)
{
	if (!lim->w4a8)
		return 0;
	if (lim->whole)
		return refuse(-ENOTSUP, err, errlen, "--w4-activations fp8: the activations of an encoder stay bf16");
	if (lim->deterministic)
		return refuse(-ENOTSUP, err, errlen, "--w4-activations fp8: with --enforce-deterministic activations stay bf16");
	if (lim->world > 1)
		return refuse(-ENOTSUP, err, errlen, "--w4-activations fp8: it is for one GPU; leave it out with "
			"--tensor-parallel-size %d", lim->world);
	if (!any_weight(m, weight_whole_zeros))
		return refuse(-ENOTSUP, err, errlen, "--w4-activations fp8: no matrix of this model has 4 bits and whole zero "
			"points, as AWQ, GPTQ, compressed-tensors and Q4_0 have");
	return 0;
}

static int check_shape(const struct sr_model *m, const struct sr_limits *lim, char *err, size_t errlen)
{
	if (check_w4a8(m, lim, err, errlen))
		return -ENOTSUP;
	if (lim->vectors && lim->world > 1)
		return refuse(-ENOTSUP, err, errlen, "--runner pooling: the CUDA back end makes vectors on one GPU alone");
	if (lim->drafts && m->delta.v_heads)
		return refuse(-ENOTSUP, err, errlen, "--speculative-config: layers of %s have a state, which a wrong guess "
			"would have changed", m->arch);
	if (lim->whole && lim->seq_blocks * lim->block_tokens > SR_WHOLE_MAX)
		return refuse(-ENOTSUP, err, errlen, "an encoder's prompts have up to %d tokens: --max-model-len %d", SR_WHOLE_MAX,
			SR_WHOLE_MAX);
	if (sr_beyond_refuse(m, lim->whole ? ~0u : ~(unsigned)SR_HAS_BIDIRECTIONAL, "the CUDA back end", err, errlen) ||
	    wide_check(m, lim, err, errlen))
		return -ENOTSUP;
	if (experts_check(m, err, errlen) || recur_check(m, err, errlen))
		return -ENOTSUP;
	if (m->embed.index.bytes)
		return refuse(-ENOTSUP, err, errlen, "tensor %s: embeddings with groups out of order (act-order) are "
			"not supported by the CUDA back end", m->embed.name);
	for (int32_t l = 0; l < m->n_layers; l++)
		if (m->d_model % 8 || m->layer[l].d_ff % 8)
			return refuse(-ENOTSUP, err, errlen,
				"width %d, feed-forward %d: both must be multiples of 8", m->d_model,
				m->layer[l].d_ff);
	if (lim->block_tokens != BLOCK)
		return refuse(-ENOTSUP, err, errlen,
			"--block-size %d: the CUDA back end has blocks of %d tokens",
			lim->block_tokens, BLOCK);
	if (lim->kv_type != SR_KV_BF16 && lim->kv_type != SR_KV_F8)
		return refuse(-ENOTSUP, err, errlen,
			"--kv-cache-dtype: this type is not supported by the CUDA back end; "
			"auto, bfloat16 and fp8 are");
	return 0;
}

static void put(struct dev *, enum place, const float *, int);
static void get(struct dev *, enum place, float *, int);

static const struct ops cuda_ops = {
	weight_add, embed, add_norm, matmul, route, combine, gather, rope_store, norm, sum, scale, inputs, input_mul, weigh, heads, attend,
	attend_gate, recur, act_mul, pick_norm,
	sample, pool, label,
	put, get,
};

/* What this rank has: b->m becomes its part of the model, with layers of its own (also of one rank), and places that
 * are gathered are as wide as the whole model's. */
static int take_share(struct sr_backend *b, const struct sr_model *m, const struct sr_limits *lim, char *err, size_t errlen)
{
	const size_t layers = (size_t)m->n_layers * sizeof(*m->layer);
	struct dev *d = &b->d;
	struct rank_shape whole;
	int e = shape_of(&d->shape, m, lim->rank, lim->world > 1 ? lim->world : 1, err, errlen);

	if (!e && lim->world <= 1) {
		b->m.layer = (struct sr_layer *)malloc(layers);
		if (!b->m.layer)
			return refuse(-ENOMEM, err, errlen, "no memory for a table of %d layers", m->n_layers);
		memcpy((void *)b->m.layer, m->layer, layers);
		return 0;
	}
	if (!e && lim->vectors)
		e = refuse(-ENOTSUP, err, errlen, "--runner pooling: several GPUs make no vectors of one model yet; one does");
	if (!e && lim->drafts)
		e = refuse(-ENOTSUP, err, errlen, "--speculative-config: several GPUs check no guesses of one model yet; one does");
	if (!e)
		e = shape_of(&whole, m, 0, 1, err, errlen);
	if (!e)
		e = share_model(&b->m, m, lim->rank, lim->world, err, errlen);
	if (e)
		return e;
	d->shape.width[P_A] = whole.width[P_A];
	d->shape.width[P_ACT] = whole.width[P_ACT];
	d->shape.inputs = whole.inputs;
	d->ranks.rank = lim->rank;
	d->ranks.world = lim->world;
	d->ranks.shared = lim->shared;
	d->ranks.kind = m->kind[0];
	d->gpu.number = lim->rank;           /* in the order of CUDA_VISIBLE_DEVICES */
	return 0;
}

/* Everything known before memory is allocated: returns the bytes of weights, or -errno.  b->m.layer is to be freed. */
static int64_t prepare(struct sr_backend *b, const struct sr_model *m, const struct sr_limits *lim,
                       char *err, size_t errlen)
{
	int e;

	memset((void *)b, 0, sizeof(*b));
	b->m = *m;
	b->m.layer = NULL;
	b->lim = *lim;
	b->d.b = b;
	b->d.m = &b->m;
	e = special_parse(&b->d.without, getenv("SLIPRING_CUDA_WITHOUT"), err, errlen);
	if (!e)
		e = take_share(b, m, lim, err, errlen);
	if (!e)
		e = check_shape(&b->m, lim, err, errlen);
	if (lim->world <= 1)
		b->d.gpu.number = canary_gpu();
	if (!e && lim->self_check > 1 && (lim->world <= 1 || lim->shared)) /* each rank of its GPU, not core for all */
		e = canary_check(&b->m, lim, &b->d.without, err, errlen);
	/* grids of a state are of the batch's rows, and no graph has pooled rows */
	b->lim.eager |= !has(&b->d, SPECIAL_GRAPHS) || m->delta.v_heads || lim->whole;
	if (!e)
		e = find_device(&b->d, err, errlen);
	if (e)
		return e;
	b->d.kv.f8 = lim->kv_type == SR_KV_F8;
	b->d.product.w4a8 = lim->w4a8;
	if (lim->w4a8 && b->d.gpu.capability < 89)
		return refuse(-ENOTSUP, err, errlen, "--w4-activations fp8: GPU %d is of compute capability %d.%d, and FP8 "
			"instructions begin with 8.9", b->d.gpu.number, b->d.gpu.capability / 10, b->d.gpu.capability % 10);
	b->d.deterministic = lim->deterministic;
	b->d.whole = lim->whole;
	for (int32_t i = 0; i < m->n_kinds; i++)
		b->d.uneven |= attend_wide(&m->kind[i]) || !sr_same_heads(&m->kind[i], &m->kind[0]);
	b->d.batch.null_slot = lim->slots;
	b->null_block = lim->n_blocks;
	for (struct flight &f : b->flight)
		f.armed_fd = -1;
	b->d.product.use_lt = has(&b->d, SPECIAL_LT) && !lim->deterministic && lim->tokens > 64 && lt_there();
	b->d.kv.places = shape_groups(NULL, m, lim);
	if (b->d.kv.places < 0)
		return refuse(b->d.kv.places, err, errlen, "the groups of layers are not those of this model");
	b->d.kv.stride = (size_t)shape_kv_most(&b->m, lim) * BLOCK;
	b->kv_block = b->d.kv.stride * (b->d.kv.f8 ? 1 : sizeof(bf16));
	b->d.kv.block = b->kv_block;
	b->d.draw.guided = lim->masks > 0;
	b->d.draw.width = lim->width;
	return net_load(&cuda_ops, &b->d, NULL, &b->m, err, errlen);
}

/* On a GPU that shares the host's memory, the host tier is taken out of it before anything else.  And the driver does not
 * count what files occupy in the page cache, though the kernel gives it back: after a model was fetched or read, nearly
 * nothing would be left. */
static void one_memory(size_t tier, size_t *avail, size_t *total)
{
	FILE *f = fopen("/proc/meminfo", "re");
	unsigned long long kib;
	char line[128];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1 && kib * 1024 > *avail)
			*avail = kib * 1024 < *total ? kib * 1024 : *total;
	if (f)
		fclose(f);
	*avail -= tier < *avail ? tier : *avail;
	*total -= tier < *total ? tier : *total;
}

static int plan(const struct sr_model *m, const struct sr_limits *lim, struct sr_need *out, char *err,
	size_t errlen)
{
	struct sr_backend *b = (struct sr_backend *)malloc(sizeof(*b));
	size_t avail, total;
	int64_t weights;
	int integrated = 0;

	if (!b)
		return refuse(-ENOMEM, err, errlen, "no memory for a back end");
	weights = prepare(b, m, lim, err, errlen);
	if (weights >= 0 && (!cuda_ok(&b->d, cudaMemGetInfo(&avail, &total), "ask for memory") ||
			!cuda_ok(&b->d, cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, b->d.gpu.number), "ask")))
		weights = unusable(&b->d, err, errlen);
	if (weights >= 0) {
		memset(out, 0, sizeof(*out));
		out->weights = weights;
		out->scratch = (int64_t)lay_scratch(b, NULL);
		out->graphs = graph_bytes(&b->d, &b->lim) + (b->d.product.use_lt ? LT_OWN : 0);
		out->slots = (int64_t)lay_slots(b, NULL);
		out->per_block = (int64_t)b->kv_block;
		out->kinds_in_groups = 1;
		out->per_state = (int64_t)state_bytes(m);
		out->pinned = (int64_t)(lay_pinned(b, NULL) + loader_pinned(8192));
		out->shared = (int64_t)ranks_shared(&b->d);
		if (integrated)
			one_memory((size_t)lim->n_host_blocks * b->kv_block, &avail, &total);
		out->avail = (int64_t)avail;
		out->total = (int64_t)total;
	}
	if (lim->world > 1 && !b->d.fault.lost) /* core's process computes nothing: it keeps no memory of the GPUs */
		cuda_ok(&b->d, cudaDeviceReset(), "leave a GPU");
	free((void *)b->m.layer);
	free(b);
	return weights < 0 ? (int)weights : 0;
}

/* ---- open and close ------------------------------------------------------------------- */

static bool device_memory(struct dev *d, unsigned char **p, size_t bytes, const char *what)
{
	return !bytes || cuda_ok(d, cudaMalloc((void **)p, bytes), what);
}

/* The null slot's tables have the null block. */
static bool null_table(struct sr_backend *b)
{
	struct dev *d = &b->d;
	int32_t *table = table_of(&d->slots, d->batch.null_slot);

	for (int32_t g = 0; g < b->lim.n_groups; g++)
		if (!cuda_ok(d, cudaMemcpyAsync(table + g * d->slots.group_cap, &b->null_block, sizeof(b->null_block),
				cudaMemcpyHostToDevice, d->stream), "the table of the null slot"))
			return false;
	return true;
}

/* The GPU reads what core gives under its address here. */
static bool map_given(struct sr_backend *b)
{
	struct dev *d = &b->d;
	int same = 0;

	if (!b->lim.batches)
		return true;
	if (!cuda_ok(d, cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, d->gpu.number),
			"ask for mapped memory") ||
	    !cuda_ok(d, same ? cudaSuccess : cudaErrorNotSupported, "map the host's memory under its own address"))
		return false;
	b->registered = cuda_ok(d, cudaHostRegister(b->lim.batches, b->given, cudaHostRegisterPortable |
		cudaHostRegisterMapped), "batches that ranks share");
	return b->registered && (d->ranks.world < 2 || ranks_open(d));
}

static bool take_memory(struct sr_backend *b, size_t weights)
{
	struct dev *d = &b->d;
	size_t scratch = lay_scratch(b, NULL), slots = lay_slots(b, NULL), pinned = lay_pinned(b, NULL);
	size_t host = (size_t)b->lim.n_host_blocks * b->kv_block;

	assert(batch_groups_ok(&b->lim, (int64_t)b->kv_block));
	if (!cuda_ok(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "a stream") ||
	    !cuda_ok(d, cudaStreamCreateWithFlags(&b->waiting, cudaStreamNonBlocking), "a stream") ||
	    !device_memory(d, &b->weights, weights, "memory for weights") ||
	    !device_memory(d, &b->scratch, scratch, "memory for activations") ||
	    !device_memory(d, &b->slots, slots, "memory for slots") ||
	    !device_memory(d, (unsigned char **)&d->states, (size_t)b->lim.n_states * state_bytes(&b->m),
		"memory for states") ||
	    !device_memory(d, &b->kv, ((size_t)b->lim.n_blocks + 1) * b->kv_block,
		"memory for the KV cache") ||
	    !cuda_ok(d, cudaHostAlloc((void **)&b->pinned, pinned, cudaHostAllocDefault),
		"pinned memory for batches") ||
	    (host && !cuda_ok(d, cudaHostAlloc((void **)&b->host_kv, host, cudaHostAllocDefault),
		"pinned memory for the host tier")))
		return false;
	for (struct flight &f : b->flight)
		if (!cuda_ok(d, cudaEventCreateWithFlags(&f.ended, cudaEventDisableTiming), "an event"))
			return false;
	memset(b->pinned, 0, pinned);
	lay_scratch(b, b->scratch);
	lay_slots(b, b->slots);
	lay_pinned(b, b->pinned);
	if (!map_given(b))
		return false;
	if (!b->lim.batches)                 /* else core does */
		masks_clear(&d->draw.masks, &b->lim);
	d->store.at = d->store.base = b->weights;
	d->store.end = d->store.base + weights;
	d->kv.base = b->kv;
	d->kv.rows = ((int64_t)b->lim.n_blocks + 1) * d->kv.places * b->m.kind[0].n_kv_heads * 2 * BLOCK;
	return cuda_ok(d, cudaMemsetAsync(b->slots, 0, slots, d->stream), "clear the slots") &&
	       null_table(b) &&
	       cuda_ok(d, cudaMemsetAsync(d->batch.current, 0, sizeof(*d->batch.current), d->stream),
			"clear the count of batches") &&
	       cuda_ok(d, cudaMemsetAsync(d->attend.joined, 0, (size_t)most_pieces(d, b->lim.rows) *
			(size_t)b->m.kind[0].n_kv_heads * sizeof(uint32_t), d->stream), "clear counts of pieces") &&
	       cuda_ok(d, cudaMemsetAsync(d->draw.count, 0, logit_rows(b) * (size_t)b->m.n_vocab *
			sizeof(uint32_t), d->stream), "clear counts") &&
	       cuda_ok(d, cudaMemsetAsync(d->product.arrived, 0, d->product.n_arrived * sizeof(uint32_t),
			d->stream), "clear counts of tiles") &&
	       matmul_prepare(d) && attend_prepare(d) && recur_prepare(d);
}

/* Copies from memory that stays allocated: after an error it is unknown whether the copy is done. */
static bool send_frequencies(struct sr_backend *b)
{
	for (int32_t i = 0; i < b->m.n_kinds; i++) {
		size_t n = (size_t)b->m.kind[i].rope.dims / 2;

		if (!n || sr_rope_like(&b->m, i) < i)
			continue;
		assert(n <= sizeof(b->freq[i]) / sizeof(b->freq[i][0]));
		sr_rope_freq(&b->m.kind[i].rope, b->freq[i]);
		if (!cuda_ok(&b->d, cudaMemcpyAsync(b->d.act.freq[i], b->freq[i], n * sizeof(b->freq[i][0]),
				cudaMemcpyHostToDevice, b->d.stream), "rope frequencies"))
			return false;
	}
	return cuda_ok(&b->d, cudaStreamSynchronize(b->d.stream), "rope frequencies");
}

/* Records the product that reads an operation's output.  The operation then writes it in 8 bits or in the
 * order of that product, if the product reads it so. */
static void who_feeds(struct sr_backend *b)
{
	for (int32_t l = 0; l < b->m.n_layers; l++) {
		struct net_layer *y = &b->net.layer[l];

		if (y->norm1 && !b->m.layer[l].parallel) /* else the feed-forward part reads it, too */
			y->norm1->feeds = y->qkv;
		if (y->norm2 && !y->router)  /* else the router and experts do */
			y->norm2->feeds = y->gu;
		if (y->gu)
			y->gu->feeds = y->down;
	}
}

static int load_weights(struct sr_backend *b, const struct sr_source *src, char *err, size_t errlen)
{
	int64_t n;

	err[0] = 0;
	if (!loader_create(&b->d, src, b->staging, err, errlen))
		return err[0] ? -EIO : refuse(-ENOMEM, err, errlen, "weights cannot be loaded: %s", b->d.fault.why);
	n = net_load(&cuda_ops, &b->d, &b->net, &b->m, err, errlen);
	b->net.ranks = b->d.ranks.world > 1;
	b->d.positions = b->net.positions;
	b->d.types = b->net.types;
	b->d.second_type = b->net.second_type;
	if (n >= 0)
		who_feeds(b);
	return n < 0 ? (int)n : loader_finish(&b->d, err, errlen);
}

static void close_backend(struct sr_backend *b)
{
	struct dev *d;

	if (!b)
		return;
	d = &b->d;
	for (cudaStream_t stream : { d->stream, b->waiting })
		if (stream)
			cuda_ok(d, cudaStreamSynchronize(stream), "close");
	graph_free(d);
	lt_close(d);
	weights_free(d);
	net_free(&b->net);
	ranks_close(d);
	if (b->registered)
		cuda_ok(d, cudaHostUnregister(b->lim.batches), "close");
	if (b->host_kv)
		cuda_ok(d, cudaFreeHost(b->host_kv), "close");
	if (b->pinned)
		cuda_ok(d, cudaFreeHost(b->pinned), "close");
	for (unsigned char *p : { b->weights, b->scratch, b->slots, b->kv, (unsigned char *)d->states })
		if (p)
			cuda_ok(d, cudaFree(p), "close");
	for (const struct flight &f : b->flight)
		if (f.ended)
			cuda_ok(d, cudaEventDestroy(f.ended), "close");
	for (cudaStream_t stream : { d->stream, b->waiting })
		if (stream)
			cuda_ok(d, cudaStreamDestroy(stream), "close");
	xid_close(b->xid);
	free(d->batch.last_cmd);
	free((void *)b->m.layer);
	free((void *)b->d.kv.place);
	free((void *)b->d.kv.layer);
	free(b);
}

static int device_error(const struct sr_backend *b, char *err, size_t errlen)
{
	return refuse(b->d.fault.code == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, err, errlen, "GPU %d: %s",
		b->d.gpu.number, b->d.fault.why);
}

/* Layers of a group lie one after another in its blocks. */
static void lay_layers(size_t *layer, const struct kv_place *place, const struct sr_model *m)
{
	size_t upto[SR_GROUPS_MAX] = {};

	for (int32_t l = 0; l < m->n_layers; l++) {
		const struct sr_attn *kind = kind_of(m, l);

		layer[l] = m->layer[l].kv_back ? layer[kv_of(m, l)] : 0;
		if (place[l].group < 0 || m->layer[l].kv_back)
			continue;
		layer[l] = upto[place[l].group];
		upto[place[l].group] += (size_t)kind->n_kv_heads * (size_t)shape_kv(kind) * BLOCK;
	}
}

/* Products, attention and a step, each on all ranks at the same time: a step gathers.  What one switches off all do, and
 * check what takes its place. */
static int check_kernels(struct sr_backend *b, const struct sr_limits *lim, char *err, size_t errlen)
{
	int e;

	do {
		e = lim->self_check ? self_check(&b->d, &b->net, lim, err, errlen) : 0;
		if (b->d.fault.lost)
			e = device_error(b, err, errlen);
	} while (!e && ranks_without(&b->d));
	return e;
}

static int open_backend(struct sr_backend **out, const struct sr_model *m, const struct sr_source *src,
                        const struct sr_limits *lim, char *err, size_t errlen)
{
	struct sr_backend *b = (struct sr_backend *)malloc(sizeof(*b));
	struct kv_place *place;
	size_t *layer;
	int64_t weights;
	int e = 0;

	if (!b)
		return refuse(-ENOMEM, err, errlen, "no memory for a back end");
	weights = prepare(b, m, lim, err, errlen);
	if (weights >= 0 && lim->world > 1 && (!lim->shared || !lim->batches))
		weights = refuse(-EINVAL, err, errlen, "rank %d of %d shares no memory with the others", lim->rank, lim->world);
	if (weights < 0) {
		free((void *)b->m.layer);
		free(b);
		return (int)weights;
	}
	b->d.batch.last_cmd = (struct last_cmd *)calloc((size_t)lim->slots + 1, sizeof(*b->d.batch.last_cmd));
	place = (struct kv_place *)malloc((size_t)m->n_layers * sizeof(*place));
	b->d.kv.place = place;
	layer = (size_t *)malloc((size_t)m->n_layers * sizeof(*layer));
	b->d.kv.layer = layer;
	if (!b->d.batch.last_cmd || !place || !layer)
		e = refuse(-ENOMEM, err, errlen, "no memory for a table of %d layers and %d slots", m->n_layers,
			lim->slots);
	if (!e) {
		shape_groups(place, m, lim);
		lay_layers(layer, place, &b->m);
		if (!take_memory(b, (size_t)weights) || !send_frequencies(b))
			e = device_error(b, err, errlen);
	}
	if (!e)
		e = ranks_alike(&b->d, err, errlen);
	if (!e)
		ranks_without(&b->d);
	if (!e)
		e = load_weights(b, src, err, errlen);
	if (!e && !lt_open(&b->d, &b->net, lim->tokens, (int32_t)logit_rows(b)))
		e = device_error(b, err, errlen);
	if (!e && !ranks_meet(&b->d))
		e = device_error(b, err, errlen);
	if (!e)
		e = check_kernels(b, lim, err, errlen);
	if (!e && !roof_measure(&b->d, &b->net, lim, b->host_kv))
		e = device_error(b, err, errlen);
	if (!e && !b->lim.eager && has(&b->d, SPECIAL_GRAPHS)) {
		about_to(&b->d, SPECIAL_GRAPHS);
		if (!graph_capture(&b->d, &b->lim))
			e = device_error(b, err, errlen);
	}
	if (e) {
		close_backend(b);
		return e;
	}
	b->xid = xid_watch(b->d.gpu.bus);
	canary_forget();
	*out = b;
	return 0;
}

/* ---- a batch -------------------------------------------------------------------------- */

/* All copies out, then all copies in. */
static void copy_blocks(struct sr_backend *b, const struct sr_batch *a)
{
	for (int out = 1; out >= 0; out--) {
		for (int32_t i = 0; i < a->n_copies && !b->d.fault.lost; i++) {
			const struct sr_copy *c = &a->copy[i];
			unsigned char *dev = b->kv + (size_t)c->device * b->kv_block;
			unsigned char *host = b->host_kv + (size_t)c->host * b->kv_block;

			assert(batch_copy_ok(&b->lim, c));
			if (c->out == out)
				cuda_ok(&b->d, cudaMemcpyAsync(out ? host : dev, out ? dev : host,
					b->kv_block, out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, b->d.stream),
					"copy a block");
		}
	}
}

static struct sr_batch *batch(struct sr_backend *b, int32_t i)
{
	assert(i >= 0 && i < FLIGHTS);
	return &b->flight[i].batch;
}

static int lost(struct sr_backend *b)
{
	if (!b->said) {
		int xid = xid_last(b->xid);
		char number[64] = "";

		if (xid)
			snprintf(number, sizeof(number), "; Xid %d (NVIDIA lists what each means)", xid);
		fprintf(stderr, "slipring-cuda: GPU %d (%s) is lost: %s%s\n", b->d.gpu.number, b->d.gpu.bus,
			b->d.fault.why, number);
		b->said = true;
	}
	return -EIO;
}

void batch_empty(struct sr_backend *b)
{
	struct flight *f = &b->flight[0];

	step_fill(&b->d, &f->batch, &b->lim, f->first_cmd, f->next_cmd, f->signal);
}

void batch_compute(struct sr_backend *b)
{
	struct dev *d = &b->d;

	step_begin(d);
	if (d->batch.step.n_tokens && !d->fault.lost) {
		angles(d, d->batch.step.n_tokens);
		forward(&cuda_ops, d, &b->net, d->batch.step.n_tokens, d->batch.step.n_picks,
			d->batch.step.n_pooled ? d->batch.step.n_rows : 0, (int)logit_rows(b),
			NULL, NULL);
		sample_settle(d);
	}
	step_end(d);
}

static int launch(struct sr_backend *b, int32_t i)
{
	struct flight *f = &b->flight[i];
	struct dev *d = &b->d;

	assert(i >= 0 && i < FLIGHTS && f->state != LAUNCHED);
	f->launched_ns = sr_now();
	__atomic_store_n(&f->armed_fd, -1, __ATOMIC_RELAXED);
	step_fill(d, &f->batch, &b->lim, f->first_cmd, f->next_cmd, f->signal);
	f->turn = d->batch.turn;
	roof_count(d, &f->batch);
	copy_blocks(b, &f->batch);
	if (!graph_launch(d, &f->batch))
		batch_compute(b);
	if (!d->fault.lost)
		cuda_ok(d, cudaEventRecord(f->ended, d->stream), "the end of a batch");
	f->state = LAUNCHED;
	return d->fault.lost ? lost(b) : 0;
}

/* Results are written before the word. */
static bool has_ended(const struct flight *f)
{
	return __atomic_load_n(&f->signal->done, __ATOMIC_ACQUIRE) == f->turn;
}

/* Of the results, which all ranks compute: FNV-1a by words. */
static uint64_t hash_of(const struct sr_batch *b)
{
	const uint32_t *word = (const uint32_t *)b->result;
	size_t n = (size_t)(b->n_results < HASHED ? b->n_results : HASHED) * sizeof(*b->result) / sizeof(*word);
	uint64_t h = 14695981039346656037u;

	for (size_t i = 0; i < n; i++)
		h = (h ^ word[i]) * 1099511628211u;
	return h;
}

static int poll_batch(struct sr_backend *b, int32_t i)
{
	struct flight *f = &b->flight[i];
	cudaError_t e;

	assert(i >= 0 && i < FLIGHTS);
	if (f->state != LAUNCHED)
		return f->state == DONE;
	if (has_ended(f)) {
		f->state = DONE;
		f->batch.begin_ns = f->launched_ns > b->ended_ns ? f->launched_ns : b->ended_ns;
		f->batch.end_ns = b->ended_ns = sr_now();
		f->batch.ranks_ns = ranks_waited(&b->d);
		f->batch.check = b->d.ranks.world > 1 ? hash_of(&f->batch) : 0;
		return 1;
	}
	if (!b->d.fault.lost && ++b->looks % LOOKS == 0) {
		e = cudaStreamQuery(b->d.stream);
		if (e != cudaErrorNotReady)
			cuda_ok(&b->d, e, "compute");
		nccl_look(&b->d);
	}
	return b->d.fault.lost ? lost(b) : 0;
}

/* Runs in a driver thread.  It is called for a lost device too, unlike a function of cudaLaunchHostFunc. */
static void CUDART_CB wake(cudaStream_t, cudaError_t, void *flight)
{
	const struct flight *f = (const struct flight *)flight;
	uint64_t one = 1;

	if (write(__atomic_load_n(&f->armed_fd, __ATOMIC_RELAXED), &one, sizeof(one)) < 0)
		return;                      /* full, or -1 after another launch: its reader is awake */
}

/* Uses a separate stream, so that it does not wait for a batch launched after this one. */
static int arm(struct sr_backend *b, int32_t i, int fd)
{
	struct flight *f = &b->flight[i];
	struct dev *d = &b->d;

	assert(i >= 0 && i < FLIGHTS);
	if (d->fault.lost)
		return -EIO;
	if (f->armed_fd == fd)
		return 0;
	__atomic_store_n(&f->armed_fd, fd, __ATOMIC_RELAXED);
	if (!cuda_ok(d, cudaStreamWaitEvent(b->waiting, f->ended, 0), "wait for a batch") ||
	    !cuda_ok(d, cudaStreamAddCallback(b->waiting, wake, f, 0), "ask for a signal"))
		return lost(b);
	return 0;
}

/* ---- tests: copy from and to the host ------------------------------------------------- */

static void put(struct dev *d, enum place p, const float *from, int T)
{
	size_t n = (size_t)T * (size_t)d->shape.width[p];
	bf16 *half = (bf16 *)malloc(n * sizeof(*half));

	for (size_t i = 0; i < n; i++)
		half[i] = bf16_of(from[i]);
	cuda_ok(d, cudaMemcpyAsync(d->act.place[p], is_f32(p) ? (const void *)from : half,
		n * (is_f32(p) ? 4 : 2),
		cudaMemcpyHostToDevice, d->stream), "put");
	cuda_ok(d, cudaStreamSynchronize(d->stream), "put");
	free(half);
}

static void get(struct dev *d, enum place p, float *to, int T)
{
	size_t n = (size_t)T * (size_t)d->shape.width[p];
	bf16 *half = (bf16 *)malloc(n * sizeof(*half));

	cuda_ok(d, cudaMemcpyAsync(is_f32(p) ? (void *)to : half, d->act.place[p], n * (is_f32(p) ? 4 : 2),
		cudaMemcpyDeviceToHost, d->stream), "get");
	cuda_ok(d, cudaStreamSynchronize(d->stream), "get");
	for (size_t i = 0; i < n && !is_f32(p); i++)
		to[i] = f32_of(half[i]);
	free(half);
}

static void masks(struct sr_backend *b, struct sr_masks *out)
{
	*out = b->d.draw.masks;
}

static const char *without(const struct sr_backend *b)
{
	static char names[256];

	special_list(b->d.without, names, sizeof(names));
	return names;
}

/* Of one rank nothing is counted: a batch ends in well under a second. */
static uint64_t progress(const struct sr_backend *b)
{
	return ranks_progress(&b->d);
}

/* ---- the table of operations ---------------------------------------------------------- */

static const struct sr_backend_ops ops = {
	SR_BACKEND_VERSION, FLIGHTS, "cuda", plan, open_backend, close_backend, masks, batch, launch, poll_batch,
	NULL, /* the device works without calls */
	arm,
	progress,
	NULL, /* blocks do not outlive it */
	NULL, /* a lost context stays lost */
	without,
};

extern "C" __attribute__((visibility("default")))
const struct sr_backend_ops *sr_backend_get(uint32_t version)
{
	return version == SR_BACKEND_VERSION ? &ops : NULL;
}
