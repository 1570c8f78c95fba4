/* bench.cc - how near the CUDA kernels come to the device's limits: `make gpu-check`.
 *
 *	bench [8b|tiny] [FILE] [SECONDS] [verbs]
 *	bench probe
 *
 * Ceilings are measured first, in the same run: a read of all weights, and mma without memory.  The
 * models have the shape of Llama-3.1-8B and made-up weights in bf16, in 4 bits (AWQ, groups of 128) and
 * in FP8, which go through the loader as those of a file do.  What does not fit the card, or the time, is
 * named and left out.  With "tiny" a small shape is run instead, to see that the program works: on the CPU,
 * too (tests/kernels/cuda/test_cuda_bench.cc).
 *
 * A line of the table has up to four cells, each the time in microseconds and its limit as a part of
 * it: the least time that the bytes and operations of each kernel take at the ceilings, added up.
 * With "verbs" it measures decoding and each part of a step alone (verbs.h), in some seconds.
 * The same cells go to FILE, one JSON object each; tests/cuda/goals.awk holds them to the goals.
 */
#include <algorithm>
#include <inttypes.h>

#include "kernels/cuda/backend.cu"
#include "kernels/cuda/ptx.cuh"
#include "tests/cuda/made_up.h"
#include "tests/cuda/table.h"

#define RUNS   7                     /* most of sc->runs */
#define CELL_S 1.5                   /* seconds that one cell may take */

static struct sr_backend *b;
static double ends;                  /* when our time is over */
static bool verbs_only;
static double read_ceiling, mma_ceiling, mma8_ceiling; /* bytes, operations a second */
static double library_s[3];          /* of all layers' products by cuBLASLt in bf16, of sc->prompt; 0: none */

/* ---- time ----------------------------------------------------------------------------- */

static double now(void)
{
	return (double)sr_now() * 1e-9;
}

/* A cell without time left is left out, and the table says so. */
static const char *no_time(void)
{
	return now() > ends ? "no time left" : NULL;
}

static void stop_if_lost()
{
	if (!b->d.fault.lost)
		return;
	fprintf(stderr, "the device is lost: %s\n", b->d.fault.why);
	exit(1);
}

static double median(double *t, int n)
{
	std::sort(t, t + n);
	return t[n / 2];
}

/* Seconds of n calls, all queued at once. */
template <class F> static double run_of(F call, int n)
{
	double t;

	cudaStreamSynchronize(b->d.stream);
	t = now();
	for (int i = 0; i < n; i++)
		call();
	cuda_ok(&b->d, cudaStreamSynchronize(b->d.stream), "measure");
	stop_if_lost();
	return now() - t;
}

/* Seconds of one call: the median of some runs of many calls, as many as CELL_S leaves room for. */
template <class F> static double timed(F call)
{
	double t[RUNS], one;
	int n = sc->repeats;

	run_of(call, 1);
	one = run_of(call, 1);
	if (one * n * sc->runs > CELL_S)
		n = one * sc->runs < CELL_S ? (int)(CELL_S / sc->runs / one) : 1;
	for (int i = 0; i < sc->runs; i++)
		t[i] = run_of(call, n) / n;
	return median(t, sc->runs);
}

/* ---- ceilings ------------------------------------------------------------------------- */

static __global__ void read_kernel(const uint4 *from, size_t n, unsigned *sum)
{
	let_next_start();
	wait_for_previous();
	size_t threads = (size_t)gridDim.x * blockDim.x, i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
	unsigned s = 0;

	for (; i + 3 * threads < n; i += 4 * threads) {
		uint4 v[4];

#pragma unroll
		for (int j = 0; j < 4; j++)
			v[j] = from[i + (size_t)j * threads];
#pragma unroll
		for (int j = 0; j < 4; j++)
			s ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
	}
	for (; i < n; i += threads)
		s ^= from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
	if (s == 0x12345678) /* never, but the compiler cannot know */
		*sum = s;
}

template <bool F8> static __global__ void mma_kernel(float *out, int rounds)
{
	let_next_start();
	wait_for_previous();
	uint32_t a[4] = { threadIdx.x, threadIdx.x * 3, 5, 7 };
	float c[8][4] = {}, s = 0;

	for (int i = 0; i < rounds; i++) {
#pragma unroll
		for (int j = 0; j < 8; j++) {
			if (F8)
				mma_e4m3(c[j], a, (uint32_t)i, (uint32_t)j);
			else
				mma_bf16(c[j], a, (uint32_t)i, (uint32_t)j);
		}
	}
	for (int j = 0; j < 8; j++)
		s += c[j][0] + c[j][1] + c[j][2] + c[j][3];
	if (s == 1.2345f)
		*out = s;
}

template <bool F8> static double mma_rate()
{
	int rounds = sc->repeats < 2 ? 2 : 4096;
	unsigned blocks = (unsigned)b->d.gpu.processors * (sc->repeats < 2 ? 1 : 8);
	double t = timed([&] {
		cuda_ok(&b->d, start(mma_kernel<F8>, blocks, 128, 0, b->d.stream, b->d.draw.candidates, rounds), "mma");
	});

	return (double)blocks * 4 * rounds * 8 * 2 * 16 * 8 * (F8 ? 32 : 16) / t;
}

/* Operations a second of the longest product of bf16 weights, ours or the library's; 0: it has none. */
static double product_rate(bool library)
{
	const struct weight *w = b->net.layer[0].gu;
	int T = sc->many[2];

	if (library && !lt_can(w, T))
		return 0;
	return 2.0 * w->n * w->k * T / timed([&] {
		if (library)
			lt_matmul(&b->d, b->d.act.place[P_GU], b->d.act.place[P_Y], w, T);
		else
			matmul(&b->d, P_GU, P_Y, w, T);
	});
}

static void ceilings()
{
	unsigned blocks = (unsigned)b->d.gpu.processors * 4, threads = sc->repeats < 2 ? 32 : 512;
	size_t bytes = (size_t)(b->d.store.end - b->d.store.base);
	double t, own, library;

	t = timed([&] {
		cuda_ok(&b->d, start(read_kernel, blocks, threads, 0, b->d.stream, (const uint4 *)b->d.store.base,
			bytes / 16, (unsigned *)b->d.draw.candidates), "read");
	});
	read_ceiling = (double)bytes / t;
	mma_ceiling = mma_rate<false>();
	mma8_ceiling = b->d.gpu.capability >= 89 ? mma_rate<true>() : mma_ceiling;
	own = product_rate(false);
	library = product_rate(true);
	printf("ceilings: reading %.2f GB %.0f GB/s; %d processors, sm_%d; bf16 Top/s: mma.sync without memory "
		"%.1f, products of %d rows %.1f, by cuBLASLt %.1f; e4m3: mma.sync %.1f\n", (double)bytes * 1e-9,
		read_ceiling * 1e-9, b->d.gpu.processors, b->d.gpu.capability, mma_ceiling * 1e-12, sc->many[2], own * 1e-12,
		library * 1e-12, mma8_ceiling * 1e-12);
	fprintf(json, "\n\t{\"row\": \"ceilings\", \"read_gb_s\": %.9g, \"mma_bf16_top_s\": %.9g, "
		"\"mma_e4m3_top_s\": %.9g, \"product_bf16_top_s\": %.9g, \"cublaslt_bf16_top_s\": %.9g, "
		"\"processors\": %d, \"capability\": %d}", read_ceiling * 1e-9, mma_ceiling * 1e-12,
		mma8_ceiling * 1e-12, own * 1e-12, library * 1e-12, b->d.gpu.processors, b->d.gpu.capability);
	/* mma.sync is not a Hopper's best, so a limit that is beaten is not a limit */
	mma_ceiling = std::max({ mma_ceiling, own, library });
	mma8_ceiling = std::max(mma8_ceiling, mma_ceiling);
	printf("%-38s cells: us, the limit's part of it (+ goal reached, - below the floor)\n", "");
}

/* ---- products ------------------------------------------------------------------------- */

static double weight_size(const struct weight *w)      /* bytes read */
{
	double nk = (double)w->n * w->k;

	if (w->held == HELD_BF16)
		return 2 * nk;
	return nk / (w->held == HELD_W4 ? 2 : 1) + 4.0 * w->packed.width * w->k / (32.0 * w->packed.group);
}

/* Least seconds of a product with T rows. */
static double product_limit(const struct weight *w, int T)
{
	double ops = 2.0 * w->n * w->k * T;
	double compute = ops / (w->held == HELD_W8 && T > 64 && b->d.product.x8 ? mma8_ceiling : mma_ceiling);
	double memory = weight_size(w) / read_ceiling;

	return memory > compute ? memory : compute;
}

/* Of all layers. */
static double layers_limit(int T)
{
	const struct net_layer *y = &b->net.layer[0];

	return b->m.n_layers * (product_limit(y->qkv, T) + product_limit(y->o, T) + product_limit(y->gu, T) +
		product_limit(y->down, T));
}

static double product(bool down, int T)
{
	int l = 0;

	return timed([&] { /* another layer each time: weights come from memory */
		const struct net_layer *y = &b->net.layer[l++ % b->m.n_layers];

		matmul(&b->d, down ? P_Z : P_GU, down ? P_ACT : P_Y, down ? y->down : y->gu, T);
	});
}

static double dense[4];              /* seconds of gate+up in bf16, of each of sc->few; 0: not measured */

static void few_rows(bool down)
{
	const struct weight *w = down ? b->net.layer[0].down : b->net.layer[0].gu;
	bool f8 = kind->type == SR_F8, w4 = kind->type == SR_AWQ4;
	double t[4] = {};
	char at[32];

	line_begin(kind->name, f8 ? "" : "few rows", down ? "down, 1/4/16/64 rows" : "gate+up, 1/4/16/64 rows",
		"its limit");
	for (int i = 0; i < 4; i++) {
		snprintf(at, sizeof(at), "%s, %d rows", down ? "down" : "gate+up", sc->few[i]);
		if (no_time()) {
			cell_left_out(at, no_time());
			continue;
		}
		t[i] = product(down, sc->few[i]);
		cell(at, t[i], product_limit(w, sc->few[i]) / t[i], f8 ? 0 : 0.75, f8 ? 0 : 0.9);
	}
	line_end();
	if (kind->type == SR_BF16 && !down)
		memcpy(dense, t, sizeof(dense));
	if (kind->type == SR_BF16 || down)
		return;
	line_begin(kind->name, w4 ? "4 bits over bf16" : "", "gate+up, times bf16's speed", "bf16's time");
	for (int i = 0; i < 4; i++) {
		snprintf(at, sizeof(at), "gate+up, %d rows", sc->few[i]);
		if (t[i] && dense[i])
			cell(at, t[i], dense[i] / t[i], w4 && i < 3 ? 2.5 : 0, w4 ? i < 3 ? 3.4 : 2.5 : 0);
		else
			cell_left_out(at, "one of the two was not measured");
	}
	line_end();
}

static void many_rows()
{
	char at[32];

	line_begin(kind->name, "", "gate+up, 512/2k/8k rows", "mma.sync without memory");
	for (int T : sc->many) {
		snprintf(at, sizeof(at), "gate+up, %d rows", T);
		if (no_time()) {
			cell_left_out(at, no_time());
		} else {
			double s = product(false, T);

			cell(at, s, product_limit(b->net.layer[0].gu, T) / s, 0, 0);
		}
	}
	line_end();
}

/* ---- steps ---------------------------------------------------------------------------- */

static void begin(struct sr_batch *a)
{
	a->n_copies = a->n_cmds = a->n_words = a->n_rows = a->n_results = a->n_ids = a->n_tokens = 0;
}

static void launch_and_wait(int i)
{
	int done = launch(b, i);

	while (!done)
		done = poll_batch(b, i);
	if (done < 0)
		stop_if_lost();
}

static int32_t blocks_for(int32_t context)
{
	return (context + sc->steps) / BLOCK + 1;
}

/* Slots with tables of their own, and settings.  False: there are too few blocks. */
static bool begin_slots(const int32_t *context, int n, bool random)
{
	int64_t all = 0;
	uint32_t at = 0;

	for (int s = 0; s < n; s++)
		all += blocks_for(context[s]);
	if (all > b->lim.n_blocks)
		return false;
	for (int s = 0; s < n; s++) {
		int32_t blocks = blocks_for(context[s]);
		struct sr_batch *a = batch(b, 0);
		struct sr_sampling q = {};

		begin(a);
		q.top_p = random ? 0.9f : 1;
		q.top_k = random ? 50 : 0;
		q.temperature = random;
		q.repetition = 1;
		q.seed = (uint64_t)s;
		a->cmd[0] = (struct sr_cmd){ SR_CMD_BEGIN, s, 0, 0, 0, 0 };
		memcpy(a->word, &q, sizeof(q));
		a->n_words = sizeof(q) / 4;
		a->cmd[1] = (struct sr_cmd){ SR_CMD_BLOCKS, s, 0, blocks, (uint32_t)a->n_words, 0 };
		assert(blocks <= b->lim.seq_blocks && a->n_words + blocks <= b->lim.words);
		for (int32_t i = 0; i < blocks; i++)
			a->word[a->n_words++] = at++;
		a->n_cmds = 2;
		launch_and_wait(0);
	}
	return true;
}

static void add_row(struct sr_batch *a, int slot, int32_t first, int32_t n, int32_t token)
{
	a->row[a->n_rows++] = (struct sr_row){ slot, first, n, token < 0 ? SR_LAST : a->n_ids, 0,
		a->n_results++, 1, 0, 0, 0, 0 };
	for (int32_t i = 0; i < n && token >= 0; i++)
		a->token[a->n_ids++] = token + i % 100;
	a->n_tokens += n;
}

struct pace {                        /* of steps, two batches in flight */
	double step, host;           /* seconds: of one, and of the host's part of it */
	double idle;                 /* share of the time that the device had nothing to do between them */
};

static cudaEvent_t before[64], after[64];

/* Share of the time from the second step's begin to the last one's end that lay between two. */
static double idle_share(int steps)
{
	double between = 0;
	float ms, all;

	cuda_ok(&b->d, cudaEventSynchronize(after[steps]), "an event");
	for (int i = 2; i <= steps; i++) {
		cuda_ok(&b->d, cudaEventElapsedTime(&ms, after[i - 1], before[i]), "an event");
		between += ms;
	}
	cuda_ok(&b->d, cudaEventElapsedTime(&all, before[1], after[steps]), "an event");
	stop_if_lost();
	return between / all;
}

/* n sequences at `context`; watched: with events around each step.  NULL, or why not. */
static const char *decode(int n, int32_t context, bool random, bool watched, struct pace *p)
{
	int32_t contexts[256], steps = sc->steps;
	double t = 0;

	for (int s = 0; s < n; s++)
		contexts[s] = context;
	if (no_time())
		return no_time();
	if (!begin_slots(contexts, n, random))
		return "its KV does not fit this card";
	*p = (struct pace){};
	for (int i = 0; i <= steps; i++) {
		struct sr_batch *a = batch(b, i % 2);
		double begun;

		begin(a);
		for (int s = 0; s < n; s++)
			add_row(a, s, context - 1 + i, 1, i ? SR_LAST : 5);
		begun = now();
		if (watched)
			cuda_ok(&b->d, cudaEventRecord(before[i], b->d.stream), "an event");
		if (launch(b, i % 2))
			stop_if_lost();
		if (watched)
			cuda_ok(&b->d, cudaEventRecord(after[i], b->d.stream), "an event");
		p->host += (now() - begun) / (steps + 1);
		while (i && !poll_batch(b, (i - 1) % 2))
			;
		stop_if_lost();
		if (i == 1)
			t = now(); /* the first has filled the pipe */
	}
	t = now() - t;
	while (!poll_batch(b, steps % 2))
		;
	stop_if_lost();
	p->step = t / (steps - 1);
	if (watched)
		p->idle = idle_share(steps);
	return NULL;
}

static double kv_bytes(int64_t positions)              /* of one layer */
{
	return (double)positions * (double)b->kv_block / BLOCK / b->m.n_layers;
}

static void decodes()
{
	double floor = kind->type == SR_BF16 ? 0.75 : kind->type == SR_F8 ? 0.65 : 0.55;
	double goal = kind->type == SR_BF16 ? 0.88 : kind->type == SR_F8 ? 0.82 : 0.72;
	const struct weight *head = b->net.head ? b->net.head : b->net.embed;
	char text[64];

	for (int32_t context : sc->decode_context) {
		snprintf(text, sizeof(text), "decode 1/32/128/256, at %d", context);
		line_begin(kind->name, "decode one", text, "its limit");
		for (int i = 0; i < 4; i++) {
			int32_t n = sc->decode_n[i];
			double least = layers_limit(n) + product_limit(head, n) +
				b->m.n_layers * kv_bytes((int64_t)n * context) / read_ceiling;
			const char *why;
			struct pace p;

			line.work = i ? "decode many" : "decode one";
			snprintf(text, sizeof(text), "%d at %d", n, context);
			why = decode(n, context, false, false, &p);
			if (why)
				cell_left_out(text, why);
			else
				cell(text, p.step, least / p.step, i ? 0.65 : floor, i ? 0.8 : goal);
		}
		line_end();
	}
}

/* The gain by graphs: short steps with graphs, and with each kernel launched alone. */
static void graphs_off()
{
	struct graphs *const graphs = b->d.batch.graphs;
	char at[64];

	line_begin(kind->name, "", "1, 32 at 512 by graphs; without", "the time without");
	for (int i = 0; i < 2; i++) {
		int32_t n = sc->decode_n[i];
		struct pace with, without;
		const char *why = graphs ? decode(n, sc->decode_context[0], false, false, &with) : "no graphs here";

		b->d.batch.graphs = NULL;
		if (!why)
			why = decode(n, sc->decode_context[0], false, false, &without);
		b->d.batch.graphs = graphs;
		snprintf(at, sizeof(at), "%d at %d, graphs", n, sc->decode_context[0]);
		if (why) {
			cell_left_out(at, why);
			continue;
		}
		cell(at, with.step, with.step / without.step, 0, 0);
		snprintf(at, sizeof(at), "%d at %d, eager", n, sc->decode_context[0]);
		cell(at, without.step, 1, 0, 0);
	}
	line_end();
}

static void idles()
{
	int32_t n = sc->decode_n[1];
	const char *why;
	struct pace p;
	char at[64];

	line_begin(kind->name, "device idle", "busy of 32 at 512; host's part", "the time of steps");
	snprintf(at, sizeof(at), "%d at %d", n, sc->decode_context[0]);
	why = decode(n, sc->decode_context[0], false, true, &p);
	if (why) {
		cell_left_out(at, why);
	} else {
		cell(at, p.step, 1 - p.idle, 0.97, 0.995);
		line.work = "";
		cell("the host's part of a step", p.host, p.host / p.step, 0, 0);
	}
	line_end();
}

/* A step that samples beside a greedy one. */
static void samplings()
{
	struct pace greedy, random;
	const char *why;
	char at[64];

	line_begin(kind->name, "sampling", "top-k 50, top-p .9, 256 rows", "a greedy step");
	snprintf(at, sizeof(at), "%d at %d", sc->decode_n[3], sc->decode_context[0]);
	why = decode(sc->decode_n[3], sc->decode_context[0], false, false, &greedy);
	if (!why)
		why = decode(sc->decode_n[3], sc->decode_context[0], true, false, &random);
	if (why)
		cell_left_out(at, why);
	else
		cell(at, random.step, greedy.step / random.step, 0.97, 0.99);
	line_end();
}

/* ---- attention ------------------------------------------------------------------------ */

/* Seconds of one layer's attention of single tokens at these contexts; or why not. */
static const char *attention(const int32_t *context, int n, double *t)
{
	struct sr_batch *a = batch(b, 0);
	int l = 0;

	if (no_time())
		return no_time();
	if (!begin_slots(context, n, false))
		return "its KV does not fit this card";
	begin(a);
	for (int s = 0; s < n; s++)
		add_row(a, s, context[s] - 1, 1, 5);
	launch_and_wait(0); /* its lists stay on the device */
	*t = timed([&] { attend(&b->d, l++ % b->m.n_layers, &b->m.kind[0], NULL, n); });
	return NULL;
}

static void attentions()
{
	static const double floors[] = { 0.45, 0.7, 0.85 }, goals[] = { 0.65, 0.85, 0.9 };
	int32_t context[256], n = sc->mixed_n;
	double t, even;
	const char *why;
	char at[64];

	line_begin(kind->name, "attention", "KV, attend 64 at 512/2k/8k", "the read stream");
	for (int i = 0; i < 3; i++) {
		for (int s = 0; s < sc->attend_n; s++)
			context[s] = sc->attend_context[i];
		snprintf(at, sizeof(at), "%d at %d", sc->attend_n, context[0]);
		why = attention(context, sc->attend_n, &t);
		if (why)
			cell_left_out(at, why);
		else
			cell(at, t, kv_bytes((int64_t)sc->attend_n * context[0]) / read_ceiling / t, floors[i], goals[i]);
	}
	line_end();
	line_begin(kind->name, "one long among short", "KV, 128k among 31 of 4k; even", "even, equal bytes");
	snprintf(at, sizeof(at), "%d among %d of %d", sc->long_context, n - 1, sc->short_context);
	for (int s = 0; s < n; s++)
		context[s] = (sc->long_context + (n - 1) * sc->short_context) / n;
	why = attention(context, n, &even);
	for (int s = 0; s < n; s++)
		context[s] = s == n / 2 ? sc->long_context : sc->short_context;
	if (!why)
		why = attention(context, n, &t);
	if (why) {
		cell_left_out(at, why);
	} else {
		cell(at, t, even / t, 0, 1 / 1.2);
		line.work = "";
		cell("even", even, 1, 0, 0);
	}
	line_end();
}

/* ---- prompts -------------------------------------------------------------------------- */

/* Seconds from launch to done, the median of as many as there is time for; or why not. */
static const char *prompt(int32_t n, double *median_of)
{
	double t[RUNS], begun = now();
	int runs = 0;

	if (no_time())
		return no_time();
	if (!begin_slots(&n, 1, false))
		return "its KV does not fit this card";
	while (runs < sc->runs && (runs < 2 || now() - begun < CELL_S)) {
		struct sr_batch *a = batch(b, 0);

		begin(a);
		add_row(a, 0, 0, n, 5);
		t[runs] = now();
		launch_and_wait(0);
		t[runs] = now() - t[runs];
		runs++;
	}
	*median_of = median(t, runs);
	return NULL;
}

/* The four products of a layer by cuBLASLt, in bf16. */
static void library_products()
{
	const struct net_layer *y = &b->net.layer[0];
	const struct { const struct weight *w; enum place to, from; } each[] = {
		{ y->qkv, P_QKV, P_Y }, { y->o, P_Z, P_A }, { y->gu, P_GU, P_Y }, { y->down, P_Z, P_ACT },
	};

	for (int i = 1; i < 3 && !no_time(); i++) {
		int T = sc->prompt[i];
		double t = 0;

		for (const auto &e : each) {
			if (!lt_can(e.w, T))
				return;
			t += timed([&] { lt_matmul(&b->d, b->d.act.place[e.to], b->d.act.place[e.from], e.w, T); });
		}
		library_s[i] = t * b->m.n_layers;
	}
}

static double prompt_attention(double n)                /* operations */
{
	return 2.0 * b->m.n_layers * b->m.kind[0].n_heads * b->m.kind[0].head_dim * n * n;
}

/* Whole prompts beside their products at cuBLASLt's rate in bf16, attention at its best rate. */
static void prompts_of_library(const double *t)
{
	char at[32];

	line_begin(kind->name, "prefill", "prompts of 2k/8k by cuBLASLt", "its products in bf16");
	for (int i = 1; i < 3; i++) {
		double least = library_s[i] + prompt_attention(sc->prompt[i]) / mma_ceiling;

		snprintf(at, sizeof(at), "%d tokens", sc->prompt[i]);
		if (!t[i])
			cell_left_out(at, "the prompt was not measured");
		else if (!library_s[i])
			cell_left_out(at, "no cuBLASLt here");
		else
			cell(at, t[i], least / t[i], 0.8, 0.95);
	}
	line_end();
}

static void prompts()
{
	static const double floors[] = { 1 / 2.3, 1 / 1.5, 0 }, goals[] = { 1 / 1.3, 1 / 1.2, 0 };
	const struct weight *head = b->net.head ? b->net.head : b->net.embed;
	double t[3] = {};
	char at[32];

	line_begin(kind->name, "first token, in process", "prompts of 128/2k/8k", "its limit");
	for (int i = 0; i < 3; i++) {
		int32_t n = sc->prompt[i];
		double least = layers_limit(n) + product_limit(head, 1) + prompt_attention(n) / mma_ceiling;
		const char *why = prompt(n, &t[i]);

		snprintf(at, sizeof(at), "%d tokens", n);
		line.work = i < 2 ? "first token, in process" : "";
		if (why)
			cell_left_out(at, why);
		else
			cell(at, t[i], least / t[i], floors[i], goals[i]);
	}
	line_end();
	prompts_of_library(t);
}

#include "tests/cuda/probe.h"
#include "tests/cuda/verbs.h"

/* ---- all of it ------------------------------------------------------------------------ */

/* Small numbers, +-0.01: zeros would let a GPU clock higher than work does. */
static __global__ void fill_kernel(uint32_t *p, size_t n)
{
	let_next_start();
	wait_for_previous();
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
		p[i] = (((uint32_t)i * 2654435761u ^ (uint32_t)(i >> 7)) & 0x80ff80ff) | 0x3c003c00;
}

static void fill(void *p, size_t bytes)
{
	cuda_ok(&b->d, start(fill_kernel, (unsigned)b->d.gpu.processors * 4, sc->repeats < 2 ? 32 : 256, 0,
		b->d.stream, (uint32_t *)p, bytes / 4), "fill");
}

/* 1: measured, 0: it does not fit, -1: failed. */
static int measure()
{
	struct sr_source src = { NULL, 0, NULL, read_made_up, wait_made_up };
	struct sr_model m = model();
	struct sr_limits lim = {};
	struct sr_need need;
	char err[512] = "";
	int64_t left;
	int e;

	lim.block_tokens = BLOCK;
	lim.seq_blocks = sc->seq_blocks;
	lim.slots = lim.rows = lim.logit_rows = sc->slots;
	lim.tokens = sc->tokens;
	lim.cmds = 512;
	lim.words = sc->words;
	lim.world = lim.n_groups = 1;
	e = plan(&m, &lim, &need, err, sizeof(err));
	if (!e) {
		left = (need.avail - need.weights - need.scratch - need.slots - sc->spare) / need.per_block;
		lim.n_blocks = left < 0 ? 0 : left < sc->blocks ? (int32_t)left : sc->blocks;
		if (lim.n_blocks < sc->blocks / 64 + 1) {
			line_begin(kind->name, "", "8B model: all of it", "");
			cell_left_out("all", "it does not fit this card");
			line_end();
			free(m.layer);
			return 0;
		}
		e = open_backend(&b, &m, &src, &lim, err, sizeof(err));
	}
	free(m.layer);
	if (e) {
		fprintf(stderr, "%s\n", err);
		return -1;
	}
	fill(b->d.kv.base, (size_t)lim.n_blocks * b->kv_block);
	for (enum place p : { P_Y, P_QKV, P_A, P_GU, P_ACT })
		fill(b->d.act.place[p], (size_t)sc->tokens * (size_t)b->d.shape.width[p] * sizeof(bf16));
	if (!read_ceiling)
		ceilings();
	decodes();
	if (verbs_only) {
		verbs();
		close_backend(b);
		return 1;
	}
	graphs_off();
	few_rows(true);
	few_rows(false);
	if (kind->type == SR_BF16) {
		idles();
		attentions();
		samplings();
		library_products();
	}
	prompts();
	many_rows();
	close_backend(b);
	return 1;
}

int main(int argc, char **argv)
{
	int e = 0;

	if (argc > 1 && !strcmp(argv[1], "probe"))
		return probe();
	sc = argc > 1 && !strcmp(argv[1], "tiny") ? &tiny : &llama_8b;
	json = fopen(argc > 2 ? argv[2] : "/dev/null", "w");
	if (!json) {
		perror(argv[2]);
		return 1;
	}
	ends = now() + (argc > 3 ? atof(argv[3]) : 3600);
	verbs_only = argc > 4 && !strcmp(argv[4], "verbs");
	make_patterns();
	for (int i = 0; i <= sc->steps; i++)
		if (cudaEventCreateWithFlags(&before[i], cudaEventDefault) != cudaSuccess ||
		    cudaEventCreateWithFlags(&after[i], cudaEventDefault) != cudaSuccess) {
			fprintf(stderr, "no events to measure by: %s\n", cudaGetErrorString(cudaGetLastError()));
			return 1;
		}
	fprintf(json, "[");
	for (const struct kind &k : kinds) {
		kind = &k;
		e |= measure() < 0;
	}
	for (int i = 0; i <= sc->steps; i++) {
		cudaEventDestroy(before[i]);
		cudaEventDestroy(after[i]);
	}
	fprintf(json, "\n]\n");
	e |= fclose(json) != 0;
	return e;
}
