/* bench.cc - how near the CUDA kernels come to what the device can do: `make gpu-check`.
 *
 * Ceilings are measured first, in the same run: a read of all weights, and mma without memory.  The
 * models have the shape of Llama-3.1-8B and made-up weights in bf16, in 4 bits (AWQ, groups of 128) and
 * in FP8, which go through the loader as those of a file do.  What does not fit the card is named and
 * left out.  With "tiny" a small shape is run instead, to see that the program works: on the CPU, too
 * (tests/test_cuda_bench.cc).
 *
 * A line of the table has up to four cells, each the time in microseconds and its limit as a part of
 * it: the least time that the bytes and operations of each kernel take at the ceilings, added up.
 * The same cells go to a file, one JSON object each.
 */
#include <inttypes.h>

#include "kernels/cuda/backend.cu"
#include "kernels/cuda/ptx.cuh"

struct scale {                       /* what is measured */
	int32_t L, D, H, G, E, F, V, group;
	int32_t steps, repeats;
	int32_t decode_n[4], decode_context[2];
	int32_t few[4], many[3];     /* rows of products */
	int32_t attend_n, attend_context[3], long_context, short_context, mixed_n;
	int32_t prompt[3];
	int32_t slots, tokens, blocks, seq_blocks, words;
	int64_t spare;               /* bytes of the card that stay free */
};

static const struct scale llama_8b = {
	32, 4096, 32, 8, 128, 14336, 128256, 128,
	40, 32,
	{ 1, 32, 128, 256 }, { 512, 2048 },
	{ 1, 4, 16, 64 }, { 512, 2048, 8192 },
	64, { 512, 2048, 8192 }, 131072, 4096, 32,
	{ 128, 2048, 8192 },
	256, 8192, 36000, 8256, 16384, (int64_t)1 << 30,
};

static const struct scale tiny = {
	2, 64, 4, 2, 16, 96, 200, 32,
	3, 1,
	{ 1, 2, 3, 4 }, { 16, 48 },
	{ 1, 4, 16, 64 }, { 65, 80, 130 },
	4, { 16, 40, 70 }, 200, 20, 4,
	{ 16, 33, 130 },
	4, 256, 64, 64, 4096, 0,
};

static const struct kind { const char *name; int32_t type; } kinds[] = {
	{ "bf16", SR_BF16 }, { "W4A16", SR_AWQ4 }, { "FP8", SR_F8 },
};

static const struct scale *sc;
static const struct kind *kind;
static struct sr_backend *b;
static FILE *json;
static double read_ceiling, mma_ceiling, mma8_ceiling; /* bytes, operations a second */

/* ---- made-up weights ------------------------------------------------------------------ */

enum made_of { BITS, BF16_SMALL, F16_SCALES, F32_ONES, E4M3_SMALL, F32_SCALES, MADE };

static unsigned char pattern[MADE][(size_t)2 << 20]; /* the longest read */
static struct { uint64_t tag; void *at; } reads[64];
static unsigned n_reads;

static void make_patterns()
{
	static const float one = 1, scale = 0.01f;
	uint32_t seed = 1;

	for (size_t i = 0; i < sizeof(pattern[0]); i += 2) {
		unsigned char low, high;

		seed = seed * 1664525u + 1013904223u;
		low = (unsigned char)(seed >> 24);
		high = (unsigned char)(seed >> 16);
		pattern[BITS][i] = low, pattern[BITS][i + 1] = high;
		pattern[BF16_SMALL][i] = low, pattern[BF16_SMALL][i + 1] = 0x3c | (high & 0x80); /* +-0.01 */
		pattern[F16_SCALES][i] = low, pattern[F16_SCALES][i + 1] = 0x18;              /* 0.002 */
		pattern[E4M3_SMALL][i] = low & 0xbf, pattern[E4M3_SMALL][i + 1] = high & 0xbf; /* below 2 */
		memcpy(pattern[F32_ONES] + i, (const char *)&one + i % 4, 2);
		memcpy(pattern[F32_SCALES] + i, (const char *)&scale + i % 4, 2);
	}
}

/* An extent's file says what it is made of. */
static int read_made_up(void *, const struct sr_extent *e, uint64_t, size_t n, void *buf, uint64_t tag)
{
	assert(n <= sizeof(pattern[0]));
	if (n_reads == 64)
		return -EAGAIN;
	memcpy(buf, pattern[e->file], n);
	reads[n_reads].tag = tag;
	reads[n_reads++].at = buf;
	return 0;
}

static int wait_made_up(void *, uint64_t *tag, void **at)
{
	*tag = reads[--n_reads].tag;
	*at = reads[n_reads].at;
	return 0;
}

static struct sr_extent made(enum made_of of, int64_t bytes)
{
	struct sr_extent e = { 0, (uint64_t)bytes, of };

	return e;
}

static struct sr_tensor tensor(int32_t type, int64_t n, int64_t k)
{
	struct sr_tensor t = {};

	t.name = "made up";
	t.type = type;
	t.n = (int32_t)n;
	t.k = (int32_t)k;
	switch (type) {
	case SR_F32:
		t.data = made(F32_ONES, n * k * 4);
		break;
	case SR_BF16:
		t.data = made(BF16_SMALL, n * k * 2);
		break;
	case SR_AWQ4:
		t.group = sc->group;
		t.scale_type = SR_F16;
		t.data = made(BITS, n * k / 2);
		t.zero = made(BITS, k / t.group * n / 2);
		t.scale = made(F16_SCALES, k / t.group * n * 2);
		break;
	case SR_F8:
		t.group_n = 1;
		t.scale_type = SR_F32;
		t.data = made(E4M3_SMALL, n * k);
		t.scale = made(F32_SCALES, n * 4);
		break;
	}
	return t;
}

/* Llama's, with embeddings in bf16 as quantized checkpoints have them.  The caller frees layer. */
static struct sr_model model()
{
	int32_t D = sc->D, Q = sc->H * sc->E, KV = sc->G * sc->E, F = sc->F, type = kind->type;
	struct sr_model m = {};

	m.L = sc->L, m.D = D, m.H = sc->H, m.G = sc->G, m.E = sc->E, m.F = F, m.V = sc->V;
	m.eps = 1e-5f;
	m.embed_scale = 1;
	m.attn_scale = 1 / sqrtf((float)m.E);
	m.rope[0].dims = m.E;
	m.rope[0].theta = 500000;
	m.rope[0].magnitude = 1;
	m.layer = (struct sr_layer *)calloc((size_t)m.L, sizeof(*m.layer));
	m.embed = m.head = tensor(SR_BF16, m.V, D);
	m.norm = tensor(SR_F32, 1, D);
	for (int32_t l = 0; m.layer && l < m.L; l++) {
		struct sr_layer *y = &m.layer[l];

		y->norm1 = y->norm2 = m.norm;
		y->q = tensor(type, Q, D);
		y->k = y->v = tensor(type, KV, D);
		y->o = tensor(type, D, Q);
		y->gate = y->up = tensor(type, F, D);
		y->down = tensor(type, D, F);
	}
	return m;
}

/* ---- the table ------------------------------------------------------------------------ */

static struct { char name[64], of[32], floors[32], goals[32]; double floor, goal; } line;

static void line_begin(const char *name, const char *of)
{
	memset(&line, 0, sizeof(line));
	snprintf(line.name, sizeof(line.name), "%s %s", kind->name, name);
	snprintf(line.of, sizeof(line.of), "%s", of);
	printf("%-38s", line.name);
}

static void json_begin(const char *at)
{
	fprintf(json, "%s\n\t{\"row\": \"%s\", \"at\": \"%s\"", ftell(json) > 2 ? "," : "", line.name, at);
}

/* " .75" once, and again only where the next cell's differs. */
static void note_bound(char *to, size_t len, double bound, double *last)
{
	size_t n = strlen(to);

	if (bound && bound != *last)
		snprintf(to + n, len - n, " %.3g", bound);
	*last = bound;
}

/* Floor and goal of `part`, or 0. */
static void cell(const char *at, double seconds, double part, double floor, double goal)
{
	printf(" %8.0f %4.2f%c", seconds * 1e6, part, goal && part >= goal ? '+' : part < floor ? '-' : ' ');
	note_bound(line.floors, sizeof(line.floors), floor, &line.floor);
	note_bound(line.goals, sizeof(line.goals), goal, &line.goal);
	json_begin(at);
	fprintf(json, ", \"us\": %.9g, \"part\": %g, \"of\": \"%s\", \"floor\": %g, \"goal\": %g}", seconds * 1e6,
		part, line.of, floor, goal);
}

static void cell_left_out(const char *at, const char *why)
{
	printf(" %8s %4s ", "-", "-");
	json_begin(at);
	fprintf(json, ", \"skipped\": \"%s\"}", why);
}

static void line_end()
{
	printf("  floor%s; goal%s\n", *line.floors ? line.floors : " -", *line.goals ? line.goals : " -");
}

static double now(void)
{
	return (double)now_ns() * 1e-9;
}

static void stop_if_lost()
{
	if (!b->d.lost)
		return;
	fprintf(stderr, "the device is lost: %s\n", b->d.why);
	exit(1);
}

/* Seconds of one call, the best of some runs of many. */
template <class F> static double timed(F call)
{
	double best = 1e9;

	call();
	for (int run = 0; run < 3; run++) {
		double t;

		cudaStreamSynchronize(b->d.stream);
		t = now();
		for (int i = 0; i < sc->repeats; i++)
			call();
		cuda_ok(&b->d, cudaStreamSynchronize(b->d.stream), "measure");
		t = (now() - t) / sc->repeats;
		best = t < best ? t : best;
	}
	stop_if_lost();
	return best;
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
	unsigned blocks = (unsigned)b->d.processors * (sc->repeats < 2 ? 1 : 8);
	double t = timed([&] {
		cuda_ok(&b->d, start(mma_kernel<F8>, blocks, 128, 0, b->d.stream, b->d.work, rounds), "mma");
	});

	return (double)blocks * 4 * rounds * 8 * 2 * 16 * 8 * (F8 ? 32 : 16) / t;
}

static void ceilings()
{
	unsigned blocks = (unsigned)b->d.processors * 4, threads = sc->repeats < 2 ? 32 : 512;
	size_t bytes = (size_t)(b->d.arena_end - b->d.arena);
	double t;

	t = timed([&] {
		cuda_ok(&b->d, start(read_kernel, blocks, threads, 0, b->d.stream, (const uint4 *)b->d.arena,
			bytes / 16, (unsigned *)b->d.work), "read");
	});
	read_ceiling = (double)bytes / t;
	mma_ceiling = mma_rate<false>();
	mma8_ceiling = b->d.capability >= 89 ? mma_rate<true>() : mma_ceiling;
	printf("ceilings: reading %.2f GB %.0f GB/s; mma.sync bf16 %.1f, e4m3 %.1f Top/s; %d processors, sm_%d\n",
		(double)bytes * 1e-9, read_ceiling * 1e-9, mma_ceiling * 1e-12, mma8_ceiling * 1e-12,
		b->d.processors, b->d.capability);
	fprintf(json, "\n\t{\"row\": \"ceilings\", \"read_gb_s\": %.9g, \"mma_bf16_top_s\": %.9g, "
		"\"mma_e4m3_top_s\": %.9g, \"processors\": %d, \"capability\": %d}", read_ceiling * 1e-9,
		mma_ceiling * 1e-12, mma8_ceiling * 1e-12, b->d.processors, b->d.capability);
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
	double compute = ops / (w->held == HELD_W8 && T > 64 && b->d.x8 ? mma8_ceiling : mma_ceiling);
	double memory = weight_size(w) / read_ceiling;

	return memory > compute ? memory : compute;
}

/* Of all layers. */
static double layers_limit(int T)
{
	const struct net_layer *y = &b->net.layer[0];

	return b->m.L * (product_limit(y->qkv, T) + product_limit(y->o, T) + product_limit(y->gu, T) +
		product_limit(y->down, T));
}

static double product(bool down, int T)
{
	int l = 0;

	return timed([&] { /* another layer each time: weights come from memory */
		const struct net_layer *y = &b->net.layer[l++ % b->m.L];

		matmul(&b->d, down ? P_Z : P_GU, down ? P_ACT : P_Y, down ? y->down : y->gu, T);
	});
}

static void products()
{
	static double dense[4];      /* gate+up in bf16, of each of sc->few; 0: not measured */
	double t[4];
	char at[32];

	for (int down = 1; down >= 0; down--) { /* t stays gate+up's */
		line_begin(down ? "down, 1/4/16/64 rows" : "gate+up, 1/4/16/64 rows", "the read stream");
		for (int i = 0; i < 4; i++) {
			const struct net_layer *y = &b->net.layer[0];
			const struct weight *w = down ? y->down : y->gu;

			t[i] = product(down, sc->few[i]);
			snprintf(at, sizeof(at), "%d rows", sc->few[i]);
			cell(at, t[i], weight_size(w) / read_ceiling / t[i], kind->type == SR_F8 ? 0 : 0.75,
				kind->type == SR_F8 ? 0 : 0.9);
		}
		line_end();
	}
	if (kind->type == SR_BF16)
		memcpy(dense, t, sizeof(dense));
	else if (dense[0]) {
		bool w4 = kind->type == SR_AWQ4;

		line_begin("gate+up, times bf16's speed", "bf16's time");
		for (int i = 0; i < 4; i++) {
			snprintf(at, sizeof(at), "%d rows", sc->few[i]);
			cell(at, t[i], dense[i] / t[i], w4 && i < 3 ? 2.5 : 0, w4 ? i < 3 ? 3.4 : 2.5 : 0);
		}
		line_end();
	}
	line_begin("gate+up, 512/2k/8k rows; no peer", "mma.sync without memory");
	for (int T : sc->many) {
		double s = product(false, T);

		snprintf(at, sizeof(at), "%d rows", T);
		cell(at, s, product_limit(b->net.layer[0].gu, T) / s, 0, 0);
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
		a->cmd[0] = (struct sr_cmd){ SR_CMD_BEGIN, s, 0, 0, 0 };
		memcpy(a->word, &q, sizeof(q));
		a->n_words = sizeof(q) / 4;
		a->cmd[1] = (struct sr_cmd){ SR_CMD_BLOCKS, s, 0, blocks, (uint32_t)a->n_words };
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
		a->n_results++, -1, 1, 0, 0 };
	for (int32_t i = 0; i < n && token >= 0; i++)
		a->token[a->n_ids++] = token + i % 100;
	a->n_tokens += n;
}

/* Seconds of a decode step of n sequences at `context`, two batches in flight; 0: they do not fit. */
static double decode(int n, int32_t context, bool random, double *host)
{
	int32_t contexts[256], steps = sc->steps;
	double t = 0;

	for (int s = 0; s < n; s++)
		contexts[s] = context;
	if (!begin_slots(contexts, n, random))
		return 0;
	*host = 0;
	for (int i = 0; i <= steps; i++) {
		struct sr_batch *a = batch(b, i % 2);
		double begun;

		begin(a);
		for (int s = 0; s < n; s++)
			add_row(a, s, context - 1 + i, 1, i ? SR_LAST : 5);
		begun = now();
		if (launch(b, i % 2))
			stop_if_lost();
		*host += (now() - begun) / (steps + 1);
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
	return t / (steps - 1);
}

static double kv_bytes(int64_t positions)              /* of one layer */
{
	return (double)positions * (double)b->kv_block / BLOCK / b->m.L;
}

static void decodes()
{
	double floor = kind->type == SR_BF16 ? 0.75 : kind->type == SR_F8 ? 0.65 : 0.55;
	double goal = kind->type == SR_BF16 ? 0.88 : kind->type == SR_F8 ? 0.82 : 0.72;
	const struct weight *head = b->net.head ? b->net.head : b->net.embed;
	double host = 0, step32 = 0, host32 = 0, most = 0;
	char text[64];

	for (int32_t context : sc->decode_context) {
		snprintf(text, sizeof(text), "decode 1/32/128/256, at %d", context);
		line_begin(text, "its limit");
		for (int i = 0; i < 4; i++) {
			int32_t n = sc->decode_n[i];
			double t = decode(n, context, false, &host);
			double least = layers_limit(n) + product_limit(head, n) +
				b->m.L * kv_bytes((int64_t)n * context) / read_ceiling;

			snprintf(text, sizeof(text), "%d sequences at %d", n, context);
			if (t)
				cell(text, t, least / t, i ? 0.65 : floor, i ? 0.8 : goal);
			else
				cell_left_out(text, "its KV does not fit this card");
			if (context == sc->decode_context[0] && i == 1)
				step32 = t, host32 = host;
			if (context == sc->decode_context[0] && i == 3)
				most = t;
		}
		line_end();
	}
	if (kind->type != SR_BF16)
		return;
	line_begin("top-k 50 top-p .9, 256; host, 32", "a greedy step; a step");
	if (most) {
		double t = decode(sc->decode_n[3], sc->decode_context[0], true, &host);

		cell("a step that samples", t, most / t, 0.97, 0.99);
	} else {
		cell_left_out("a step that samples", "its KV does not fit this card");
	}
	if (step32)
		cell("the host's part of a step", host32, host32 / step32, 0, 0);
	line_end();
}

/* ---- attention ------------------------------------------------------------------------ */

/* Seconds of one layer's attention of single tokens at these contexts; 0: they do not fit. */
static double attention(const int32_t *context, int n)
{
	struct sr_batch *a = batch(b, 0);
	int l = 0;

	if (!begin_slots(context, n, false))
		return 0;
	begin(a);
	for (int s = 0; s < n; s++)
		add_row(a, s, context[s] - 1, 1, 5);
	launch_and_wait(0); /* its lists stay on the device */
	return timed([&] { attend(&b->d, l++ % b->m.L, b->m.attn_scale, 0, 0, n); });
}

static void attention_cell(const char *at, const int32_t *context, int n, double floor, double goal)
{
	double t = attention(context, n);
	int64_t positions = 0;

	for (int s = 0; s < n; s++)
		positions += context[s];
	if (t)
		cell(at, t, kv_bytes(positions) / read_ceiling / t, floor, goal);
	else
		cell_left_out(at, "its KV does not fit this card");
}

static void attentions()
{
	static const double floors[] = { 0.45, 0.7, 0.85 }, goals[] = { 0.65, 0.85, 0.9 };
	int32_t context[256], n = sc->mixed_n;
	double mixed, even;
	char at[64];

	line_begin("KV, attend 64 at 512/2k/8k", "the read stream");
	for (int i = 0; i < 3; i++) {
		for (int s = 0; s < sc->attend_n; s++)
			context[s] = sc->attend_context[i];
		snprintf(at, sizeof(at), "%d at %d", sc->attend_n, sc->attend_context[i]);
		attention_cell(at, context, sc->attend_n, floors[i], goals[i]);
	}
	line_end();
	line_begin("KV, 128k among 31 of 4k; even", "the even time of equal bytes");
	for (int s = 0; s < n; s++)
		context[s] = s == n / 2 ? sc->long_context : sc->short_context;
	mixed = attention(context, n);
	for (int s = 0; s < n; s++)
		context[s] = (sc->long_context + (n - 1) * sc->short_context) / n;
	even = attention(context, n);
	if (mixed && even) {
		cell("one long among short", mixed, even / mixed, 0, 1 / 1.2);
		cell("even", even, 1, 0, 0);
	} else {
		cell_left_out("one long among short", "its KV does not fit this card");
	}
	line_end();
}

/* ---- prompts -------------------------------------------------------------------------- */

static void prefills()
{
	static const double floors[] = { 1 / 2.3, 1 / 1.5, 0 }, goals[] = { 1 / 1.3, 1 / 1.2, 0 };
	char at[32];

	line_begin("prompts of 128/2k/8k", "its limit");
	for (int i = 0; i < 3; i++) {
		int32_t n = sc->prompt[i];
		double least = layers_limit(n) + 2.0 * b->m.L * b->m.H * b->m.E * n * n / mma_ceiling, best = 1e9;

		snprintf(at, sizeof(at), "%d tokens", n);
		if (!begin_slots(&n, 1, false)) {
			cell_left_out(at, "its KV does not fit this card");
			continue;
		}
		for (int j = 0; j < 3; j++) {
			struct sr_batch *a = batch(b, 0);
			double t;

			begin(a);
			add_row(a, 0, 0, n, 5);
			t = now();
			launch_and_wait(0);
			t = now() - t;
			best = t < best ? t : best;
		}
		cell(at, best, least / best, floors[i], goals[i]);
	}
	line_end();
}

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
	cuda_ok(&b->d, start(fill_kernel, (unsigned)b->d.processors * 4, sc->repeats < 2 ? 32 : 256, 0,
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
	lim.world = 1;
	e = plan(&m, &lim, &need, err, sizeof(err));
	if (!e) {
		left = (need.avail - need.weights - need.scratch - need.slots - sc->spare) / need.per_block;
		lim.n_blocks = left < 0 ? 0 : left < sc->blocks ? (int32_t)left : sc->blocks;
		if (lim.n_blocks < sc->blocks / 64 + 1) {
			printf("%s, 8B model: all rows SKIPPED, it does not fit this card\n", kind->name);
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
	fill(b->d.kv, (size_t)lim.n_blocks * b->kv_block);
	for (enum place p : { P_Y, P_QKV, P_A, P_GU, P_ACT })
		fill(b->d.place[p], (size_t)sc->tokens * (size_t)b->d.width[p] * sizeof(bf16));
	if (!read_ceiling)
		ceilings();
	products();
	decodes();
	if (kind->type == SR_BF16)
		attentions();
	prefills();
	close_backend(b);
	return 1;
}

int main(int argc, char **argv)
{
	int e = 0;

	sc = argc > 1 && !strcmp(argv[1], "tiny") ? &tiny : &llama_8b;
	json = fopen(argc > 2 ? argv[2] : "/dev/null", "w");
	if (!json) {
		perror(argv[2]);
		return 1;
	}
	make_patterns();
	fprintf(json, "[");
	for (const struct kind &k : kinds) {
		kind = &k;
		e |= measure() < 0;
	}
	fprintf(json, "\n]\n");
	e |= fclose(json) != 0;
	return e;
}
