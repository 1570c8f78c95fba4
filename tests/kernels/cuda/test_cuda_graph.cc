/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_graph.cc - steps of single tokens as graphs, in the emulation: the same bits and the same KV cache
 * as without graphs, for every kind of model, any number of rows and any lengths; two in flight; waking a
 * sleeper; the clocks; each CUDA call failing in turn, captures and replays included. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "kernels/cuda/backend.cu"
#include "tests/cuda/real.h"
#include "tests/cuda/truth.h"

#define ROWS 19                      /* graphs of 1, 2, 4, 8, 16 and 19 rows */
#define STEPS 6
#define CONTEXT 224                  /* tokens of a sequence: its attention is divided */

static struct sr_limits limits(bool eager)
{
	struct sr_limits l = drive_limits();

	l.worked = 0;
	l.rows = l.slots = ROWS;
	l.tokens = l.scores = CONTEXT + ROWS;
	l.n_blocks = ROWS * 2 + CONTEXT / BLOCK + 2;
	l.seq_blocks = CONTEXT / BLOCK + 2;
	l.logit_rows = 8;
	l.eager = eager;
	return l;
}

static void open_one(struct drive *d, struct tiny *t, const struct sr_limits *l)
{
	t->n_done = 0;
	if (drive_open(d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, l))
		fail_msg("%s", d->err);
}

#ifdef CUDA_EMULATED
static uint64_t graph_launches() { return emu_graph_launches; }
#else
static uint64_t graph_launches() { return 0; }
#endif

/* ---- the same bits -------------------------------------------------------------------- */

#define RESULTS 400

struct answers { struct sr_result result[RESULTS]; struct sr_top top[RESULTS][SR_TOP_MAX]; int n; };

static void step(struct drive *d, struct answers *a)
{
	int n = d->batch->n_results;

	assert_true(a->n + n <= RESULTS);
	drive_step(d);
	memcpy(a->result + a->n, d->batch->result, (size_t)n * sizeof(*a->result));
	memcpy(a->top + a->n, d->batch->top, (size_t)n * sizeof(a->top[0]));
	a->n += n;
}

/* Slot 0 has a long prompt, the others a token; some draw at random, one with everything that can be set. */
static void begin_all(struct drive *d, struct answers *a)
{
	static const struct sr_sampling warm = { 7, 1.5f, 0.9f, 0, 40, 0, 0, 1, 0 };
	static const struct sr_sampling all = { 9, 1, 0.95f, 0.01f, 60, 0.5f, 0.25f, 1.25f, 400 };
	static const uint32_t stop[] = { 3, 4 }, bias[] = { 9, 0x40000000 };
	int32_t text[CONTEXT];

	for (int i = 0; i < CONTEXT; i++)
		text[i] = (i * i * 7 + i * 3) % 200;
	for (int s = 0; s < ROWS; s++) {
		drive_begin(d, s, s == 5 ? &all : s % 3 ? NULL : &warm);
		drive_range(d, s, s ? CONTEXT / BLOCK + 2 * s : 0, s ? 2 : CONTEXT / BLOCK + 2);
	}
	drive_list(d, 5, SR_LIST_STOP, stop, 2);
	drive_list(d, 5, SR_LIST_BIAS, bias, 2);
	drive_history(d, 5, text, 3, 3);
	for (int s = 1; s < ROWS; s++)
		drive_row(d, s, 0, text + s, 1, 0, 1);
	drive_row(d, 0, 0, text, CONTEXT - 30, 0, 1);
	step(d, a);
}

/* Steps of 1 to ROWS rows; in some a token is given, some ask for alternatives, or nothing is drawn. */
static void converse(struct drive *d, struct answers *a)
{
	static const int rows[STEPS] = { 1, 3, 8, 9, 17, 19 };
	int32_t at[ROWS], give = 77;

	a->n = 0;
	begin_all(d, a);
	for (int s = 0; s < ROWS; s++)
		at[s] = s ? 1 : CONTEXT - 30;
	for (int n : rows) {
		for (int i = 0; i < n; i++) {
			int s = (i + n / 2) % ROWS;
			bool given = (i + n) % 7 == 3;

			drive_row(d, s, at[s]++, given ? &give : NULL, 1, 0, (i + n) % 11 != 10);
			d->batch->row[i].n_top = (uint8_t)(s == 4 ? 3 : 0);
		}
		if (n == 8) { /* a table grows beside a step */
			int32_t block = CONTEXT / BLOCK + 1;

			drive_blocks(d, 0, block, &block, 1);
		}
		step(d, a);
	}
	drive_row(d, 0, at[0]++, NULL, 1, 0, 0); /* draws nothing: no graph has so few picks */
	step(d, a);
	for (int s = 6; s < 9; s++) { /* commands of more slots than a graph of one row has blocks for */
		drive_begin(d, s, NULL);
		drive_range(d, s, CONTEXT / BLOCK + 2 * (14 - s), 2);
	}
	drive_row(d, 0, at[0], NULL, 1, 0, 1);
	step(d, a);
	for (int s = 6; s < 9; s++)
		drive_row(d, s, 0, &give, 1, 0, 1);
	step(d, a);
}

/* Of all blocks that core may use. */
static void same_kv(struct drive *a, struct drive *b)
{
	size_t n = (size_t)a->lim.n_blocks * a->b->kv_block;
	unsigned char *x = (unsigned char *)malloc(n), *y = (unsigned char *)malloc(n);

	assert_int_equal(cudaMemcpyAsync(x, a->b->kv, n, cudaMemcpyDeviceToHost, a->b->d.stream), cudaSuccess);
	assert_int_equal(cudaMemcpyAsync(y, b->b->kv, n, cudaMemcpyDeviceToHost, b->b->d.stream), cudaSuccess);
	assert_int_equal(cudaStreamSynchronize(a->b->d.stream), cudaSuccess);
	assert_int_equal(cudaStreamSynchronize(b->b->d.stream), cudaSuccess);
	for (size_t i = 0; i < n; i++)
		if (x[i] != y[i])
			fail_msg("byte %zu of block %zu", i % a->b->kv_block, i / a->b->kv_block);
	free(x);
	free(y);
}

static struct sr_experts some_experts()
{
	struct sr_experts x = {};

	x.n = 8;
	x.top = 3;
	x.d_ff = 96;
	x.d_shared = 32;
	x.scale = 1;
	return x;
}

/* Padding goes to no expert, whose weights nobody else might need. */
static void test_padding_goes_nowhere(void **)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits(false);
	int32_t id[4 * 3];
	struct drive d;
	struct tiny *t;

	shape.experts = some_experts();
	t = tiny_create(&shape, SR_BF16, 0, 11);
	open_one(&d, t, &lim);
	for (int s = 0; s < 3; s++) {
		drive_begin(&d, s, NULL);
		drive_range(&d, s, 2 * s, 2);
		drive_row(&d, s, 0, &s, 1, 0, 1);
	}
	drive_step(&d); /* 3 rows in a graph of 4 */
	assert_int_equal(cudaMemcpyAsync(id, d.b->d.routing.id, sizeof(id), cudaMemcpyDeviceToHost, d.b->d.stream),
		cudaSuccess);
	assert_int_equal(cudaStreamSynchronize(d.b->d.stream), cudaSuccess);
	for (int i = 0; i < 4 * 3; i++)
		assert_true(i < 9 ? id[i] >= 0 && id[i] < 8 : id[i] == -1);
	drive_close(&d);
	tiny_destroy(t);
}

static void test_same_bits(void **)
{
	static const struct { const char *what; int32_t type; unsigned flags; int window; float cap;
		int32_t kv, deterministic, capability; } cases[] = {
		{ "bf16", SR_BF16, TINY_UNTIED, 0, 0, SR_KV_BF16, 0, 80 },
		{ "qwen3", SR_BF16, TINY_QK_NORM | TINY_BIAS, 0, 0, SR_KV_BF16, 0, 90 },
		{ "gemma", SR_F32, TINY_QK_NORM | TINY_POST_NORM, 20, 5, SR_KV_BF16, 0, 80 },
		{ "awq", SR_AWQ4, 0, 0, 0, SR_KV_BF16, 0, 80 },
		{ "gptq", SR_GPTQ4, TINY_BIAS, 0, 0, SR_KV_BF16, 0, 90 },
		{ "q4_1", SR_Q4_1, 0, 0, 0, SR_KV_BF16, 0, 80 },
		{ "fp8", SR_F8, TINY_UNTIED, 0, 0, SR_KV_BF16, 0, 89 },
		{ "fp8 cache", SR_BF16, 0, 0, 0, SR_KV_F8, 0, 80 },
		{ "one of each", SR_Q8_0, TINY_MIXED | TINY_UNTIED, 0, 0, SR_KV_BF16, 0, 80 },
		{ "deterministic", SR_GPTQ4, 0, 0, 0, SR_KV_BF16, 1, 80 },
		{ "experts", SR_BF16, TINY_CHOICE_BIAS | TINY_SHARED_MIX, 20, 0, SR_KV_BF16, 0, 80 },
		{ "mxfp4 experts", SR_MXFP4, TINY_EXPERT_BIAS, 0, 0, SR_KV_BF16, 0, 80 }, /* with SLIPRING_ALL=1 */
	};
	static struct answers a, b;

	for (const auto &c : cases) {
		struct sr_model shape = tiny_shape();
		struct sr_layer layers[2] = {};
		struct sr_limits lim = limits(true);
		struct drive eager, graphs;
		struct tiny *t;
		uint64_t before;

		shape.kind[0].cap = shape.logit_cap = c.cap;
		tiny_window(&shape, layers, c.window);
		if (c.type == SR_MXFP4 && !getenv("SLIPRING_ALL"))
			continue;
		if (c.type == SR_MXFP4 || c.flags & TINY_SHARED_MIX)
			shape.experts = some_experts();
		lim.kv_type = c.kv;
		lim.deterministic = c.deterministic;
#ifdef CUDA_EMULATED
		emu_capability = c.capability;
#endif
		t = tiny_create(&shape, c.type, c.flags, 11);
		open_one(&eager, t, &lim);
		lim.eager = 0;
		open_one(&graphs, t, &lim);
		before = graph_launches();
		converse(&eager, &a);
		assert_int_equal(graph_launches(), before);
		emu_reversed = (&c - cases) % 2;
		converse(&graphs, &b);
		emu_reversed = false;
#ifdef CUDA_EMULATED
		assert_int_equal(graph_launches() - before, STEPS + 2);
#endif
		assert_int_equal(a.n, b.n);
		for (int i = 0; i < a.n; i++)
			if (memcmp(&a.result[i], &b.result[i], sizeof(a.result[i])) ||
			    memcmp(a.top[i], b.top[i], sizeof(a.top[i])))
				fail_msg("%s, result %d: %d at %.9g, but %d at %.9g in a graph", c.what, i,
					a.result[i].id, (double)a.result[i].logprob, b.result[i].id,
					(double)b.result[i].logprob);
		same_kv(&eager, &graphs);
		drive_close(&eager);
		drive_close(&graphs);
		tiny_destroy(t);
		assert_int_equal(emu_allocations, 0);
	}
#ifdef CUDA_EMULATED
	emu_capability = 80;
#endif
}

/* ---- in flight ------------------------------------------------------------------------ */

static int wait_for(struct sr_backend *b, int i)
{
	int e;

	for (int looks = 0; !(e = poll_batch(b, i)); looks++)
		assert_true(looks < 1000000);
	return e;
}

static void clear(struct sr_batch *b)
{
	b->n_copies = b->n_cmds = b->n_words = b->n_rows = b->n_results = b->n_ids = b->n_tokens = 0;
}

/* One token of each of n slots; `token`, or what each drew last. */
static void fill_step(struct sr_batch *b, int n, int first, int32_t token)
{
	clear(b);
	for (int s = 0; s < n; s++) {
		b->row[b->n_rows++] = (struct sr_row){ s, first, 1, token == SR_LAST ? SR_LAST : s, 0, s, 1, 0, 0, 0, 0 };
		b->token[b->n_ids++] = token + s;
		b->result[s].id = -7;                    /* to be overwritten */
	}
	b->n_tokens = b->n_results = n;
}

static void begin_slots(struct drive *d, int n)
{
	for (int s = 0; s < n; s++) {
		drive_begin(d, s, NULL);
		drive_range(d, s, 2 * s, 2);
	}
	drive_step(d);
}

/* ---- rows ------------------------------------------------------------------------------ */

/* A short prompt is a row of one token, and core puts it where its turn is: before, between or behind longer
 * ones.  Each sequence draws the same token wherever its row stands. */
static void test_order(void **)
{
	static const int32_t length[] = { 1, 20, 1, 40 };
	static const int order[][4] = { { 0, 2, 1, 3 }, { 1, 0, 3, 2 }, { 3, 1, 2, 0 }, { 0, 1, 2, 3 } };
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
	struct sr_limits lim = limits(true);
	struct sr_result first[4];
	struct drive d;
	int32_t ids[40];

	for (int i = 0; i < 40; i++)
		ids[i] = (i * 37 + 11) % 200;
	open_one(&d, t, &lim);
	for (const auto &o : order) {
		for (int s : o) {
			drive_begin(&d, s, NULL);
			drive_range(&d, s, 4 * s, 4);
			drive_row(&d, s, 0, ids + (s == 2), length[s], 0, 1);
			d.batch->row[d.batch->n_rows - 1].n_top = 1;
		}
		drive_step(&d);
		for (int i = 0; i < 4; i++) {
			if (&o == &order[0])
				first[o[i]] = d.batch->result[i];
			assert_memory_equal(&d.batch->result[i], &first[o[i]], sizeof(first[0]));
		}
	}
	assert_true(first[0].id != first[2].id); /* so a row in another's place is noticed */
	drive_close(&d);
	tiny_destroy(t);
}

/* Steps of other sizes than those before, the next launched before the last has ended; the device's clock. */
static void test_in_flight(void **)
{
	static const int rows[] = { 3, 3, 2, 1, 3, 2, 2, 3, 1, 3 }, N = sizeof(rows) / sizeof(*rows);
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
	struct sr_limits lim = limits(false);
	struct sr_result alone[N][3];

	for (int turn = 0; turn < 2; turn++) {
		struct drive d;
		struct sr_backend *b;
		uint64_t ended = 0;

		lim.eager = turn == 0;
		open_one(&d, t, &lim);
		b = d.b;
		begin_slots(&d, 3);
		for (int i = 0; i <= N; i++) {
			const struct flight *f = &b->flight[(i + 1) % 2];

			if (i < N) {
				fill_step(batch(b, i % 2), rows[i], i, i ? SR_LAST : 33);
				assert_int_equal(launch(b, i % 2), 0);
			}
			if (i == 0)
				continue;
			assert_int_equal(wait_for(b, (i - 1) % 2), 1);
			for (int s = 0; s < rows[i - 1]; s++)
				assert_in_range(f->batch.result[s].id, 0, 199);
			if (turn == 0)
				memcpy(alone[i - 1], f->batch.result, sizeof(alone[0]));
			else
				assert_memory_equal(alone[i - 1], f->batch.result,
					(size_t)rows[i - 1] * sizeof(struct sr_result));
			assert_true(f->signal->begin_ns >= ended && f->signal->end_ns >= f->signal->begin_ns);
			ended = f->signal->end_ns;
			assert_true(f->batch.end_ns >= f->batch.begin_ns);
		}
		clear(d.batch);
		drive_close(&d);
	}
	tiny_destroy(t);
}

/* ---- waking --------------------------------------------------------------------------- */

static uint64_t heard(int fd)
{
	uint64_t n = 0;

	return read(fd, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

/* A batch that is armed writes once; not before it is done, and not only when the one after it is. */
static void test_arm(void **)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
	struct sr_limits lim = limits(false);
	int fd = eventfd(0, EFD_NONBLOCK);
	struct sr_backend *b;
	struct drive d;

	open_one(&d, t, &lim);
	b = d.b;
	begin_slots(&d, 2);
	for (int i = 0; i < 4; i++) {
		fill_step(batch(b, i % 2), 2, i, 33);
		assert_int_equal(launch(b, i % 2), 0);
		if (i % 2 == 0)
			continue;
		assert_int_equal(arm(b, 0, fd), 0);
		assert_int_equal(arm(b, 0, fd), 0);      /* its completion is announced already */
#ifdef CUDA_EMULATED
		assert_int_equal(heard(fd), 0);
#endif
		assert_int_equal(cudaStreamSynchronize(b->waiting), cudaSuccess);
		assert_int_equal(heard(fd), 1);
		assert_int_equal(poll_batch(b, 0), 1);
#ifdef CUDA_EMULATED
		assert_int_equal(poll_batch(b, 1), 0);   /* not armed yet */
#endif
		assert_int_equal(wait_for(b, 1), 1);
		assert_int_equal(arm(b, 1, fd), 0);      /* after its end: at once */
		assert_int_equal(cudaStreamSynchronize(b->waiting), cudaSuccess);
		assert_int_equal(heard(fd), 1);
	}
#ifdef CUDA_EMULATED
	/* a lost device wakes its sleeper, too */
	fill_step(batch(b, 0), 2, 9, 33);
	assert_int_equal(launch(b, 0), 0);
	assert_int_equal(arm(b, 0, fd), 0);
	emu_fail(1, cudaErrorIllegalAddress);
	assert_int_equal(wait_for(b, 0), -EIO);
	assert_int_equal(heard(fd), 1);
	assert_int_equal(arm(b, 0, fd), -EIO);
#endif
	clear(d.batch);
	drive_close(&d);
#ifdef CUDA_EMULATED
	emu_recover();
#endif
	close(fd);
	tiny_destroy(t);
}

#ifdef CUDA_EMULATED

/* ---- what bounds a batch -------------------------------------------------------------- */

static double padded(double bytes)
{
	return ceil(bytes / 256) * 256;
}

/* Counts by simple loops over layers, rows and positions; times at made-up rates. */
static void test_counts(void **)
{
	struct sr_model shape = tiny_shape();
	struct sr_layer layers[2] = {};
	struct sr_limits lim = limits(false);
	const struct sr_attn *kind = &shape.kind[0];
	const double H = kind->n_heads, G = kind->n_kv_heads, E = kind->head_dim, F = shape.d_ff;
	double D, in_layer, macs = 0, bytes = 0;
	int32_t text[41] = {};
	const struct roof *r;
	struct sr_batch *a;
	struct tiny *t;
	struct drive d;

	tiny_window(&shape, layers, 20);
	lim.kv_type = SR_KV_F8;
	t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 3);
	emu_elapsed_ms = 0.5f;
	open_one(&d, t, &lim);
	emu_elapsed_ms = 0;
	r = &d.b->d.roof;
	a = d.batch;
	D = shape.d_model;
	in_layer = D * ((H + 2 * G) * E + H * E + 3.0 * F);
	begin_slots(&d, 2);
	drive_range(&d, 0, 0, 4);
	drive_row(&d, 1, 3, text, 1, 0, 1);
	drive_row(&d, 0, 20, text, 30, 5, 1);
	a->copy[a->n_copies++] = (struct sr_copy){ 9, 0, 1 };
	for (int l = 0; l < shape.n_layers; l++) {
		for (int row = 0; row < 2; row++) {
			int first = a->row[row].first, end = first + a->row[row].n, low = end;

			for (int p = first; p < end; p++) {
				int window = l ? 0 : 20, from = window && p >= window ? p - window + 1 : 0;

				macs += 2.0 * (p - from + 1) * H * E;
				low = from < low ? from : low;
			}
			bytes += 2.0 * (end - low) * G * E;
		}
		macs += 31 * in_layer;
		bytes += padded(2 * D * (H + 2 * G) * E) + padded(2 * D * H * E) +
			padded(4 * D * F) + padded(2 * D * F) + 2 * padded(4 * D);
	}
	macs += 7 * D * shape.n_vocab;
	bytes += padded(2 * D * shape.n_vocab);
	drive_step(&d);
	assert_true(a->float_ops == (uint64_t)(2 * macs) && a->int8_ops == 0);
	assert_true(a->bytes == (uint64_t)bytes);
	assert_true(a->copied == d.b->kv_block);
	assert_int_equal(a->compute_ns, (uint32_t)(macs / r->macs_per_ns));
	assert_true(fabs(a->memory_ns - (double)a->bytes / r->bytes_per_ns) <= 1);
	assert_int_equal(a->copy_ns, (uint32_t)((double)d.b->kv_block / r->copied_per_ns));
	assert_true(fabs(r->bytes_per_ns * 500001 - (double)(d.b->d.store.end - d.b->d.store.base)) < 1);
	assert_true(fabs(r->copied_per_ns * 500001 - 4.0 * (double)d.b->kv_block) < 1);
	drive_close(&d);
	tiny_destroy(t);
}

/* ---- the emulation's graphs ----------------------------------------------------------- */

static __global__ void add_kernel(int *to, const int *from, int more)
{
	wait_for_previous();
	if (threadIdx.x == 0)
		*to += *from + more;
}

static __global__ void hasty_kernel(int *to)
{
	if (threadIdx.x != 5)
		wait_for_previous();
	if (threadIdx.x == 0)
		*to = 1;
}

static __global__ void early_kernel(int *to, const int *from, int how)
{
	int v = how ? from[threadIdx.x] : 0;

	wait_for_previous();
	to[threadIdx.x] = v;
}

/* Before it has waited, a kernel may touch only weights.  The check finds a kernel that does not, and none of ours. */
static void test_early(void **)
{
	static const struct { int32_t type, capability; unsigned flags; } cases[] = {
		{ SR_BF16, 80, TINY_BIAS | TINY_UNTIED }, { SR_AWQ4, 90, 0 }, { SR_F8, 89, 0 }, { SR_BF16, 90, TINY_POST_NORM },
	};
	struct sr_model shape = tiny_shape();
	int32_t text[70] = {};
	cudaStream_t s;
	int *p, *q;

	assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
	assert_int_equal(cudaMalloc((void **)&p, 32 * sizeof(*p)), cudaSuccess);
	assert_int_equal(cudaMalloc((void **)&q, 32 * sizeof(*p)), cudaSuccess);
	for (int how = 0; how < 3; how++) {
		emu_guard(how == 2 ? p : q);
		assert_int_equal(start(early_kernel, 2, 32, 0, s, p, q, how), cudaSuccess);
		assert_int_equal(cudaStreamSynchronize(s), how == 2 ? cudaErrorLaunchFailure : cudaSuccess);
		emu_guard(NULL);
	}
	assert_string_equal(emu_fault(), "thread 0 of block 0 0 0 touches memory that may still be written: it has "
		"not waited for the kernel before");
	emu_recover();
	cudaFree(p);
	cudaFree(q);
	cudaStreamDestroy(s);
	for (const auto &c : cases) {
		struct sr_limits lim = limits(true);
		struct tiny *t = tiny_create(&shape, c.type, c.flags, 3);
		struct drive d;

		emu_capability = c.capability;
		open_one(&d, t, &lim);
		emu_guard(d.b->d.store.base);
		for (int turn = 0; turn < 2; turn++) {
			emu_reversed = turn;
			drive_begin(&d, turn, NULL);
			drive_range(&d, turn, 5 * turn, 5);
			drive_row(&d, turn, 0, text, 70, 0, 1);
			drive_step(&d);
			drive_row(&d, turn, 70, NULL, 1, 0, 1);
			drive_step(&d);
		}
		emu_guard(NULL);
		emu_reversed = false;
		drive_close(&d);
		tiny_destroy(t);
	}
	emu_capability = 80;
}

/* A replay has the arguments of its capture; new values come only through memory. */
static void test_replay(void **)
{
	cudaStream_t s;
	cudaGraph_t g;
	cudaGraphExec_t x;
	int *p, more = 100;
	void *q;

	assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
	assert_int_equal(cudaMalloc((void **)&p, 2 * sizeof(*p)), cudaSuccess);
	p[0] = 0;
	p[1] = 7;
	assert_int_equal(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), cudaSuccess);
	assert_int_equal(start(add_kernel, 1, 32, 0, s, p, p + 1, more), cudaSuccess);
	more = 500;
	assert_int_equal(cudaStreamQuery(s), cudaErrorStreamCaptureUnsupported);
	assert_int_equal(cudaMalloc(&q, 1), cudaErrorStreamCaptureUnsupported);
	assert_int_equal(cudaStreamEndCapture(s, &g), cudaSuccess);
	assert_int_equal(cudaGraphInstantiate(&x, g, 0), cudaSuccess);
	assert_int_equal(cudaGraphDestroy(g), cudaSuccess);
	assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
	assert_int_equal(p[0], 0);           /* captured, not executed */
	for (int i = 0; i < 2; i++) {
		p[1] = i ? 20 : 10;
		assert_int_equal(cudaGraphLaunch(x, s), cudaSuccess);
		assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
	}
	assert_int_equal(p[0], 100 + 10 + 100 + 20);

	assert_int_equal(start(hasty_kernel, 2, 32, 0, s, p), cudaSuccess);
	assert_int_equal(cudaStreamSynchronize(s), cudaErrorLaunchFailure);
	assert_string_equal(emu_fault(), "thread 5 of block 0 0 0 has not waited for the kernel before");
	emu_recover();
	cudaGraphExecDestroy(x);
	cudaFree(p);
	cudaStreamDestroy(s);
	assert_int_equal(emu_allocations, 0);
}

/* ---- what can go wrong ---------------------------------------------------------------- */

static void test_sizes(void **)
{
	static const struct { int32_t rows, n, last[3]; } cases[] = {
		{ 1, 1, { 1 } }, { 2, 2, { 1, 2 } }, { 3, 3, { 1, 2, 3 } }, { 19, 6, { 8, 16, 19 } },
		{ 256, 35, { 240, 248, 256 } }, { 300, 37, { 256, 288, 300 } }, { 4096, 43, { 448, 480, 512 } },
	};
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, 0, 3);
	struct sr_limits lim = limits(false);
	int32_t size[64], n;
	struct sr_need need;
	char err[256];
	int64_t with;

	for (const auto &c : cases) {
		lim.rows = c.rows;
		n = graph_sizes(&lim, size);
		assert_int_equal(n, c.n);
		for (int i = 0; i < 3 && i < n; i++)
			assert_int_equal(size[n < 3 ? i : n - 3 + i], c.last[i]);
	}
	lim.rows = ROWS;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	with = need.graphs;
	lim.eager = 1;
	assert_int_equal(plan(&t->m, &lim, &need, err, sizeof(err)), 0);
	assert_true(with - need.graphs >= 6 * (2 * 9 + 5) * 4096);
	tiny_destroy(t);
}

/* Open, a prompt, steps by a graph, one of them slept for, close. */
static int try_all(struct tiny *t, const struct sr_limits *lim, int fd, char *why, size_t size)
{
	int32_t ids[3] = { 1, 2, 3 };
	struct drive d;
	int e;

	t->n_done = 0;
	e = drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, lim);
	snprintf(why, size, "%s", d.err);
	if (e)
		return e;
	drive_begin(&d, 0, NULL);
	drive_range(&d, 0, 0, 1);
	drive_row(&d, 0, 0, ids, 3, 0, 1);
	for (int i = 0; i < 3 && e >= 0; i++) {
		e = launch(d.b, 0);
		if (!e && i)
			e = arm(d.b, 0, fd);
		if (!e)
			e = wait_for(d.b, 0);
		fill_step(d.batch, 1, 3 + i, SR_LAST);
	}
	snprintf(why, size, "%s", d.b->d.fault.why);
	if (e < 0) {
		assert_int_equal(launch(d.b, 1), -EIO);
		assert_int_equal(arm(d.b, 1, fd), -EIO);
		assert_int_equal(poll_batch(d.b, 1), -EIO);
	}
	drive_close(&d);
	return e < 0 ? e : 0;
}

static int quietly(struct tiny *t, const struct sr_limits *lim, int fd, char *why, size_t size)
{
	int keep = dup(2), null = open("/dev/null", O_WRONLY), e;

	dup2(null, 2);
	e = try_all(t, lim, fd, why, size);
	dup2(keep, 2);
	close(keep);
	close(null);
	return e;
}

static void test_errors(void **)
{
	static const cudaError_t errors[] = { cudaErrorMemoryAllocation, cudaErrorIllegalAddress };
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = limits(false);
	int fd = eventfd(0, EFD_NONBLOCK), failed[2] = { 0, 0 };
	uint64_t calls, before = emu_calls, launches = emu_graph_launches;
	struct tiny *t;
	char why[512];

	shape.n_layers = 1;
	shape.n_vocab = 40;
	lim.rows = lim.slots = 2;
	lim.tokens = lim.scores = 8;
	t = tiny_create(&shape, SR_BF16, 0, 3);
	assert_int_equal(try_all(t, &lim, fd, why, sizeof(why)), 0);
	calls = emu_calls - before;
	assert_int_equal(emu_graph_launches - launches, 2);
	for (uint64_t n = 1; n <= calls; n++) {
		for (int i = 0; i < 2; i++) {
			int e;

			if (n > 60 && n % 6 != (uint64_t)i)
				continue;
			emu_fail(n, errors[i]);
			e = quietly(t, &lim, fd, why, sizeof(why));
			emu_recover();
			heard(fd);
			if (e && !why[0])
				fail_msg("call %d fails without a word", (int)n);
			assert_true(e == 0 || e == -EIO || e == -ENOMEM || e == -ENODEV);
			if (emu_allocations)
				fail_msg("call %d fails, and %d things are left (%s)", (int)n, emu_allocations, why);
			failed[i] += e < 0;
		}
	}
	assert_true(failed[0] + failed[1] > (int)calls / 2);
	close(fd);
	tiny_destroy(t);
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bits),
		cmocka_unit_test(test_padding_goes_nowhere),
		cmocka_unit_test(test_in_flight),
		cmocka_unit_test(test_arm),
		cmocka_unit_test(test_order),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_early),
		cmocka_unit_test(test_counts),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_errors),
#endif
	};

	cmocka_set_test_filter(getenv("ONE"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
