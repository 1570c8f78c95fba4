/* gather.cu - several GPUs that hold a model together.  Each is a process (kernels/ranks) and has computed its columns
 * of a place; after a gather all have all of them.  Nothing is added up, so the result does not depend on how many
 * there are.
 *
 *	place, before        rooms, in memory that all map        place, after
 *	[T][own columns] -->  turn % 2: rank 0 | rank 1 | ..  -->  [T][all columns]
 *
 *	publish   copies this rank's columns into its room
 *	collect   raises this rank's word to the number of the gather, waits for the words of the others, and copies all
 *	          rooms into the place
 *
 * A room is written again two gathers later.  Whoever does so has seen every word of the gather between, and a rank
 * raises that word after its collect of this one is complete: the stream keeps their order.
 *
 * What does not fit into a room goes in slices, the last rows first: rows of a place become longer when they are
 * gathered, so the end has to move before the beginning.
 *
 * Larger gathers go through NCCL (nccl.cu) where every rank has it: to `received`, from where they are spread into the
 * place.  Their number is counted, too: it is the rank's progress.
 *
 * A wait has an end: a rank that dies is killed with the others by kernels/ranks long before it.  Everything that
 * depends on the batch is in memory, so gathers are captured into graphs like other kernels.  All ranks launch the
 * same gathers in the same order, because they have the same batches and graphs.
 */
#include <errno.h>
#include <stdio.h>

#include "kernels/cuda/device.cuh"
#include "kernels/refuse.h"

#define THREADS 256
#define BLOCKS 32
#define ROOM ((size_t)4 << 20)               /* bytes; more if a row has more */
#define PATIENCE_NS 120000000000u            /* of a wait; longer than any deadline of kernels/ranks */

#define SLICE ((size_t)8 << 20)              /* bytes of a rank that NCCL gathers at once; more if a row has more */

size_t ranks_far = 32 << 10;

struct hall {
	struct {
		alignas(64) uint32_t turn;
		uint32_t nccl;               /* 1 it has the library, 2 it has not */
		uint64_t waited_ns;          /* for others, in all gathers through rooms */
		struct gpu gpu;
		uint32_t without;            /* as struct dev's */
	} rank[SR_RANKS_MAX];
	struct nccl_id id;                   /* rank 0's */
	uint32_t failed;                     /* it could not make one */
};

struct gather_args {
	struct hall *hall;
	unsigned char *rooms;
	size_t room;
	uint32_t *turn, *arrived;
	int32_t rank, world, rows;
	int32_t from[SR_RANKS_MAX + 1];              /* rank r has columns from[r] .. from[r + 1] - 1 */
};

static __device__ unsigned char *room_of(const gather_args &a, uint32_t turn, int32_t rank)
{
	return a.rooms + ((size_t)(turn & 1) * (size_t)a.world + (size_t)rank) * a.room;
}

static __host__ __device__ int32_t columns(const gather_args &a, int32_t rank)
{
	return a.from[rank + 1] - a.from[rank];
}

template <class V> static __global__ void __launch_bounds__(THREADS) publish_kernel(struct gather_args a, const V *own)
{
	let_next_start();
	wait_for_previous();
	V *to = (V *)room_of(a, *a.turn + 1, a.rank);
	size_t n = (size_t)a.rows * (size_t)columns(a, a.rank);

	for (size_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
		to[i] = own[i];
}

/* Returns the number of this gather, with all rooms of it written. */
static __device__ uint32_t meet(const gather_args &a)
{
	uint32_t turn = *a.turn + 1;

	if (threadIdx.x == 0) {
		uint64_t began = device_ns();

		__threadfence_system();      /* what the kernel before published is visible before the word */
		store_far(&a.hall->rank[a.rank].turn, turn); /* every block writes the same */
		for (int32_t r = 0; r < a.world; r++)
			for (uint32_t look = 1; (int32_t)(load_far(&a.hall->rank[r].turn) - turn) < 0; look++) {
				spin_pause();
				if (look % 1024 == 0 && device_ns() - began > PATIENCE_NS)
					give_up("a rank waits for another that does not come");
			}
		if (blockIdx.x == 0)
			*(volatile uint64_t *)&a.hall->rank[a.rank].waited_ns += device_ns() - began;
		__threadfence_system();
	}
	__syncthreads();
	return turn;
}

/* Ends a gather; `word` is in shared memory. */
static __device__ void done(const gather_args &a, uint32_t turn, uint32_t *word)
{
	if (arrive(a.arrived, gridDim.x, word) && threadIdx.x == 0)
		*a.turn = turn;
}

template <class V> static __global__ void __launch_bounds__(THREADS) collect_kernel(struct gather_args a, V *to)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	uint32_t turn = meet(a);

	for (int32_t r = 0; r < a.world; r++) {
		const V *room = (const V *)room_of(a, turn, r);
		uint32_t own = (uint32_t)columns(a, r), n = (uint32_t)a.rows * own;

		for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
			to[(size_t)(i / own) * (size_t)a.from[a.world] + (size_t)(a.from[r] + (int32_t)(i % own))] =
				load_far(room + i);
	}
	done(a, turn, (uint32_t *)shared);
}

/* What NCCL gathered: rank r's columns of all rows are at r * each bytes. */
template <class V> static __global__ void __launch_bounds__(THREADS) spread_kernel(struct gather_args a,
	const unsigned char *received, size_t each, V *to)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	uint32_t turn = *a.turn + 1;

	if (threadIdx.x == 0)
		store_far(&a.hall->rank[a.rank].turn, turn);
	for (int32_t r = 0; r < a.world; r++) {
		const V *from = (const V *)(received + (size_t)r * each);
		uint32_t own = (uint32_t)columns(a, r), n = (uint32_t)a.rows * own;

		for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS)
			to[(size_t)(i / own) * (size_t)a.from[a.world] + (size_t)(a.from[r] + (int32_t)(i % own))] = from[i];
	}
	done(a, turn, (uint32_t *)shared);
}

/* Each row from the rank that has its token; every room has all rows, of `width` floats.  from: in rows of the
 * vocabulary. */
static __global__ void __launch_bounds__(THREADS) collect_rows_kernel(struct gather_args a,
	const struct batch_token *token, const struct slot *slot, int32_t width, float *to)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	uint32_t turn = meet(a);

	for (int32_t t = (int32_t)blockIdx.x; t < a.rows; t += (int32_t)gridDim.x) {
		int32_t id = token[t].id == SR_LAST ? slot[token[t].slot].last : token[t].id, r = 0;
		const uint32_t *row;

		while (r + 1 < a.world && id >= a.from[r + 1])
			r++;
		row = (const uint32_t *)room_of(a, turn, r) + (size_t)t * (size_t)width;
		for (int32_t i = (int32_t)threadIdx.x; i < width; i += THREADS)
			to[(size_t)t * (size_t)width + (size_t)i] = __uint_as_float(load_far(row + i));
	}
	done(a, turn, (uint32_t *)shared);
}

/* The tags of the masks that guided results need; ~0 for others. */
static __global__ void __launch_bounds__(THREADS) tags_kernel(struct sr_masks m, const struct batch_pick *pick, int32_t R,
	uint64_t *tag)
{
	let_next_start();
	wait_for_previous();
	for (int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x); i < R; i += (int32_t)(gridDim.x * THREADS)) {
		const struct batch_pick p = pick[i];

		tag[i] = p.result >= 0 && p.mask ? load_far(&m.tag[2 * (p.mask - 1) + (p.position & 1)]) : ~(uint64_t)0;
	}
}

/* ---- memory --------------------------------------------------------------------------- */

static size_t row_or(const struct dev *d, size_t least)
{
	size_t row = 0;

	for (enum place p : { P_X, P_A, P_ACT, P_LOGITS }) {
		size_t bytes = (size_t)d->shape.width[p] * (is_f32(p) ? sizeof(float) : sizeof(bf16));

		row = bytes > row ? bytes : row;
	}
	return row > least ? (row + 4095) / 4096 * 4096 : least;
}

size_t ranks_shared(const struct dev *d)
{
	return d->ranks.world > 1 ? 4096 + 2 * (size_t)d->ranks.world * row_or(d, ROOM) : 0;
}

void ranks_lay(struct dev *d, struct cutter *c, size_t rows)
{
	struct ranks *r = &d->ranks;

	if (r->world < 2)
		return;
	r->turn = (uint32_t *)cut(c, 1, sizeof(*r->turn));
	r->arrived = (uint32_t *)cut(c, 1, sizeof(*r->arrived));
	r->tag = (uint64_t *)cut(c, rows, sizeof(*r->tag));
	r->received = nccl_there() ? (unsigned char *)cut(c, (size_t)r->world, row_or(d, SLICE)) : NULL;
}

bool ranks_open(struct dev *d)
{
	struct ranks *r = &d->ranks;
	size_t bytes = shared_head() + ranks_shared(d);
	struct hall *hall = (struct hall *)shared_data(r->shared);

	static_assert(sizeof(struct hall) <= SHARED_CLEAR, "what is cleared when ranks start");
	r->room = row_or(d, ROOM);
	if (!cuda_ok(d, cudaHostRegister(r->shared, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped),
			"memory that ranks share"))
		return false;
	r->hall = hall;
	r->rooms = (unsigned char *)hall + 4096;
	return cuda_ok(d, cudaMemsetAsync(r->turn, 0, sizeof(*r->turn), d->stream), "clear the count of gathers") &&
	       cuda_ok(d, cudaMemsetAsync(r->arrived, 0, sizeof(*r->arrived), d->stream), "clear the count of blocks");
}

/* The host waits here, for as long as the others load: a kernel would give up. */
bool ranks_meet(struct dev *d)
{
	struct ranks *r = &d->ranks;
	bool all = true;

	if (r->world < 2)
		return true;
	r->hall->rank[r->rank].nccl = r->received ? 1 : 2;
	if (r->rank == 0 && r->received)
		r->hall->failed = !nccl_id(d, &r->hall->id);
	shared_meet(r->shared, r->rank);
	for (int32_t i = 0; i < r->world; i++)
		all &= r->hall->rank[i].nccl == 1;
	if (!all || r->hall->failed)
		return !d->fault.lost;       /* rank 0 says why it failed, and ends */
	return nccl_open(d, &r->hall->id);
}

/* Graphics memory that is set aside (ECC, displays) differs between GPUs of one type, but not by 1/16. */
int ranks_alike(const struct dev *d, char *err, size_t errlen)
{
	const struct ranks *r = &d->ranks;
	const struct gpu *g = &d->gpu, *first;
	uint64_t most, least;

	if (r->world < 2)
		return 0;
	r->hall->rank[r->rank].gpu = *g;
	shared_meet(r->shared, r->rank);
	first = &r->hall->rank[0].gpu;
	most = first->memory > g->memory ? first->memory : g->memory;
	least = first->memory < g->memory ? first->memory : g->memory;
	if (first->capability == g->capability && first->processors == g->processors && most - least <= most / 16)
		return 0;
	return refuse(-ENOTSUP, err, errlen, "GPU %d has compute capability %d.%d, %d multiprocessors and %.1f GiB, but GPU "
		"%d has %d.%d, %d and %.1f GiB: the ranks of a model need GPUs of one type; choose them with "
		"CUDA_VISIBLE_DEVICES", g->number, g->capability / 10, g->capability % 10, g->processors,
		(double)g->memory / (1 << 30), first->number, first->capability / 10, first->capability % 10,
		first->processors, (double)first->memory / (1 << 30));
}

bool ranks_without(struct dev *d)
{
	struct ranks *r = &d->ranks;
	uint32_t all = d->without, more;
	bool news = false;
	char names[256];

	if (r->world < 2)
		return false;
	r->hall->rank[r->rank].without = d->without;
	shared_meet(r->shared, r->rank);
	for (int32_t i = 0; i < r->world; i++)
		all |= r->hall->rank[i].without;
	for (int32_t i = 0; i < r->world; i++)
		news |= r->hall->rank[i].without != all;
	shared_meet(r->shared, r->rank);     /* all have read */
	more = all & ~d->without;
	special_list(more, names, sizeof(names));
	if (more)
		fprintf(stderr, "slipring-cuda: rank %d: %s is switched off, because it is on another rank\n", r->rank, names);
	d->without = all;
	if (!has(d, SPECIAL_EARLY_START))
		start_early = false;
	return news;
}

void ranks_close(struct dev *d)
{
	nccl_close(d);
	if (d->ranks.hall)
		cuda_ok(d, cudaHostUnregister(d->ranks.shared), "close");
	d->ranks.hall = NULL;
}

uint64_t ranks_progress(const struct dev *d)
{
	const struct ranks *r = &d->ranks;

	return r->hall ? __atomic_load_n(&r->hall->rank[r->rank].turn, __ATOMIC_RELAXED) : 0;
}

uint32_t ranks_waited(struct dev *d)
{
	struct ranks *r = &d->ranks;
	uint64_t now = r->hall ? __atomic_load_n(&r->hall->rank[r->rank].waited_ns, __ATOMIC_RELAXED) : 0, ns = now - r->waited_ns;

	r->waited_ns = now;
	return ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

/* ---- gathers -------------------------------------------------------------------------- */

static struct gather_args args_of(const struct dev *d, int rows)
{
	const struct ranks *r = &d->ranks;
	struct gather_args a = {};

	a.hall = r->hall;
	a.rooms = r->rooms;
	a.room = r->room;
	a.turn = r->turn;
	a.arrived = r->arrived;
	a.rank = r->rank;
	a.world = r->world;
	a.rows = rows;
	return a;
}

/* The columns of each rank in a row of this place. */
static void divide(const struct dev *d, enum place p, struct gather_args *a)
{
	const struct sr_attn *kind = &d->ranks.kind;

	for (int32_t r = 0; r < a->world; r++) {
		struct rank_part part, kv;

		switch (p) {
		case P_A:
			shape_heads(kind, r, a->world, &part, &kv);
			part.n *= kind->head_dim;
			break;
		case P_ACT:
			part = shape_columns(d->ranks.d_ff, r, a->world);
			break;
		case P_LOGITS:
			part = shape_deal(d->m->n_vocab, SHAPE_ROWS, r, a->world);
			break;
		default:
			part = shape_columns(d->m->d_model, r, a->world);
		}
		a->from[r + 1] = a->from[r] + part.n;
	}
}

static unsigned blocks_for(size_t elements)
{
	size_t n = (elements + THREADS - 1) / THREADS;

	return (unsigned)(n < BLOCKS ? n ? n : 1 : BLOCKS);
}

/* A slice through the host's memory. */
template <class V> static void by_rooms(struct dev *d, const struct gather_args &a, const V *from, V *to, unsigned blocks)
{
	if (cuda_ok(d, start(publish_kernel<V>, blocks_for((size_t)a.rows * (size_t)columns(a, a.rank)), THREADS, 0,
			d->stream, a, from), "publish for other ranks"))
		cuda_ok(d, start(collect_kernel<V>, blocks, THREADS, sizeof(uint32_t), d->stream, a, to),
			"gather from other ranks");
}

/* By NCCL: every rank sends as much as the one with most. */
template <class V> static void by_nccl(struct dev *d, const struct gather_args &a, const V *from, V *to, size_t most,
	unsigned blocks)
{
	size_t each = (size_t)a.rows * most;

	if (nccl_gather(d, from, d->ranks.received, each))
		cuda_ok(d, start(spread_kernel<V>, blocks, THREADS, sizeof(uint32_t), d->stream, a,
			(const unsigned char *)d->ranks.received, each, to), "spread what was gathered");
}

/* Slices of as many rows as fit, the last first.  most: bytes of a row of the rank that has most. */
template <class V> static void exchange(struct dev *d, struct gather_args a, V *place, size_t most)
{
	bool far = d->ranks.comm && (size_t)a.rows * most >= ranks_far;
	int32_t each = (int32_t)((far ? row_or(d, SLICE) : a.room) / most);
	size_t own = (size_t)columns(a, a.rank), whole = (size_t)a.from[a.world];
	int32_t rows = a.rows;

	for (int32_t t = (rows - 1) / each * each; t >= 0 && !d->fault.lost; t -= each) {
		const V *from = place + (size_t)t * own;
		V *to = place + (size_t)t * whole;

		unsigned blocks;

		a.rows = rows - t < each ? rows - t : each;
		blocks = blocks_for((size_t)a.rows * whole);
		if (far)
			by_nccl(d, a, from, to, most, blocks);
		else
			by_rooms(d, a, from, to, blocks);
	}
}

/* Rows of a.from[world] elements of `size` bytes; by 16 bytes where all parts allow it. */
static void exchange_rows(struct dev *d, struct gather_args a, void *place, size_t size)
{
	size_t most = 0;
	bool wide = true;

	for (int32_t r = 0; r < a.world; r++) {
		size_t bytes = (size_t)columns(a, r) * size;

		most = bytes > most ? bytes : most;
		wide &= bytes % sizeof(uint4) == 0;
	}
	for (int32_t r = 0; wide && r <= a.world; r++)
		a.from[r] = (int32_t)((size_t)a.from[r] * size / sizeof(uint4));
	if (wide)
		exchange(d, a, (uint4 *)place, most);
	else if (size == sizeof(uint16_t))
		exchange(d, a, (uint16_t *)place, most);
	else if (size == sizeof(uint32_t))
		exchange(d, a, (uint32_t *)place, most);
	else
		exchange(d, a, (uint64_t *)place, most);
}

void gather(struct dev *d, enum place p, int T)
{
	struct gather_args a = args_of(d, T);

	if (d->fault.lost)
		return;
	divide(d, p, &a);
	exchange_rows(d, a, d->act.place[p], is_f32(p) ? sizeof(float) : sizeof(bf16));
}

void ranks_embed(struct dev *d, int T)
{
	struct gather_args a = args_of(d, T);
	int32_t D = d->m->d_model, each = (int32_t)(a.room / ((size_t)D * sizeof(float)));

	for (int32_t r = 0; r < a.world; r++)
		a.from[r + 1] = a.from[r] + shape_deal(d->m->n_vocab, SHAPE_ROWS, r, a.world).n;
	for (int32_t t = 0; t < T && !d->fault.lost; t += each) {
		struct gather_args all = a;
		float *x = (float *)d->act.place[P_X] + (size_t)t * (size_t)D;

		a.rows = all.rows = T - t < each ? T - t : each;
		for (int32_t r = 0; r < a.world; r++) /* a room has whole rows */
			all.from[r + 1] = all.from[r] + D;
		if (cuda_ok(d, start(publish_kernel<uint32_t>, blocks_for((size_t)a.rows * (size_t)D), THREADS, 0, d->stream,
				all, (const uint32_t *)x), "publish embeddings"))
			cuda_ok(d, start(collect_rows_kernel, (unsigned)(a.rows < BLOCKS ? a.rows : BLOCKS), THREADS,
				sizeof(uint32_t), d->stream, a, d->batch.list.token + t, d->slots.slot, D, x),
				"gather embeddings");
	}
}

void ranks_tags(struct dev *d, int i0, int R)
{
	struct gather_args a = args_of(d, R);

	for (int32_t r = 1; r <= a.world; r++)
		a.from[r] = 1;               /* rank 0's */
	if (!d->fault.lost && cuda_ok(d, start(tags_kernel, blocks_for((size_t)R), THREADS, 0, d->stream, d->draw.masks,
			d->batch.list.pick + i0, R, d->ranks.tag), "tags of masks"))
		exchange_rows(d, a, d->ranks.tag, sizeof(uint64_t));
}
