/* bench.cc - how near the CUDA kernels come to what the device can do: `make gpu-check`.
 *
 * Ceilings are measured first, in the same run: a read of all weights, and mma without memory.  The
 * model has the shape of Llama-3.1-8B and made-up weights; rows that do not fit the card are named
 * and left out.  With "tiny" a small shape is run instead, to see that the program works (on the
 * CPU, too: tests/emu).  Prints a table, and one JSON object to the file named.
 */
#include <inttypes.h>

#include "kernels/cuda/backend.cu"
#include "kernels/cuda/ptx.cuh"

struct scale {                       /* what is measured */
	struct sr_model m;
	int32_t steps, repeats, context_max, batch_max, prompt;
};

static struct sr_backend *b;
static FILE *json;
static double read_ceiling, mma_ceiling; /* bytes, operations a second */

/* ---- made-up weights ------------------------------------------------------------------ */

static unsigned char *source_arena;
static uint64_t source_tag[64];
static unsigned source_n;
static void *source_at[64];

/* Small bf16 values, once: every read gives the same ones again. */
static int arena(void *, void *base, size_t bytes)
{
	uint32_t seed = 1;

	source_arena = (unsigned char *)base;
	for (size_t i = 0; i + 2 <= bytes; i += 2) {
		seed = seed * 1664525u + 1013904223u;
		source_arena[i] = (unsigned char)(seed >> 24);
		source_arena[i + 1] = (unsigned char)(0x3c | (seed >> 20 & 0x80)); /* +-0.01 */
	}
	return 0;
}

static int read_nothing(void *, const struct sr_extent *, uint64_t, size_t, void *buf, uint64_t tag)
{
	if (source_n == 64)
		return -EAGAIN;
	source_tag[source_n] = tag;
	source_at[source_n++] = buf;
	return 0;
}

static int wait_nothing(void *, uint64_t *tag, void **at)
{
	*tag = source_tag[--source_n];
	*at = source_at[source_n];
	return 0;
}

static void tensor(struct sr_tensor *t, int32_t type, int32_t n, int32_t k)
{
	memset((void *)t, 0, sizeof(*t));
	t->name = "made up";
	t->type = type;
	t->n = n;
	t->k = k;
	t->data.bytes = (uint64_t)n * (uint64_t)k * (type == SR_F32 ? 4 : 2);
}

static struct sr_model model(int32_t L, int32_t D, int32_t H, int32_t G, int32_t E, int32_t F, int32_t V)
{
	struct sr_model m = {};

	m.L = L, m.D = D, m.H = H, m.G = G, m.E = E, m.F = F, m.V = V;
	m.eps = 1e-5f;
	m.embed_scale = 1;
	m.attn_scale = 1 / sqrtf((float)E);
	m.rope[0].dims = E;
	m.rope[0].theta = 500000;
	m.rope[0].magnitude = 1;
	m.layer = (struct sr_layer *)calloc((size_t)L, sizeof(*m.layer));
	tensor(&m.embed, SR_BF16, V, D);
	tensor(&m.head, SR_BF16, V, D);
	tensor(&m.norm, SR_F32, 1, D);
	for (int32_t l = 0; l < L; l++) {
		struct sr_layer *y = &m.layer[l];

		tensor(&y->norm1, SR_F32, 1, D);
		tensor(&y->norm2, SR_F32, 1, D);
		tensor(&y->q, SR_BF16, H * E, D);
		tensor(&y->k, SR_BF16, G * E, D);
		tensor(&y->v, SR_BF16, G * E, D);
		tensor(&y->o, SR_BF16, D, H * E);
		tensor(&y->gate, SR_BF16, F, D);
		tensor(&y->up, SR_BF16, F, D);
		tensor(&y->down, SR_BF16, D, F);
	}
	return m;
}

/* ---- rows of the table ---------------------------------------------------------------- */

static double now(void)
{
	return (double)now_ns() * 1e-9;
}

static void row(const char *what, double value, const char *unit, double of, const char *limit)
{
	printf("%-44s %10.2f %-8s %5.2f of %s\n", what, value, unit, of, limit);
	fprintf(json,
		"%s\n\t{\"row\": \"%s\", \"value\": %g, \"unit\": \"%s\", \"fraction\": %g, \"of\": \"%s\"}",
		ftell(json) > 2 ? "," : "", what, value, unit, of, limit);
}

static void left_out(const char *what, const char *why)
{
	printf("%-44s SKIP: %s\n", what, why);
}

/* Seconds of one call, the best of some runs of many. */
template <class F> static double timed(int repeats, F call)
{
	double best = 1e9;

	call();
	for (int run = 0; run < 3; run++) {
		double t = now();

		cudaStreamSynchronize(b->d.stream);
		t = now();
		for (int i = 0; i < repeats; i++)
			call();
		cudaStreamSynchronize(b->d.stream);
		t = (now() - t) / repeats;
		best = t < best ? t : best;
	}
	if (b->d.lost) {
		fprintf(stderr, "the device is lost: %s\n", b->d.why);
		exit(1);
	}
	return best;
}

/* ---- ceilings ------------------------------------------------------------------------- */

static __global__ void read_kernel(const uint4 *from, size_t n, unsigned *sum)
{
	unsigned s = 0;

	size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

	for (; i < n; i += (size_t)gridDim.x * blockDim.x) {
		uint4 v = from[i];

		s ^= v.x ^ v.y ^ v.z ^ v.w;
	}
	if (s == 0x12345678) /* never, but the compiler cannot know */
		*sum = s;
}

static __global__ void mma_kernel(float *out, int rounds)
{
	uint32_t a[4] = { threadIdx.x, threadIdx.x * 3, 5, 7 };
	float c[8][4] = {}, s = 0;

	for (int i = 0; i < rounds; i++)
#pragma unroll
		for (int j = 0; j < 8; j++)
			mma_bf16(c[j], a, (uint32_t)i, (uint32_t)j);
	for (int j = 0; j < 8; j++)
		s += c[j][0] + c[j][1] + c[j][2] + c[j][3];
	if (s == 1.2345f)
		*out = s;
}

static void ceilings(const struct scale *sc)
{
	size_t bytes = (size_t)(b->d.arena_end - b->d.arena);
	int rounds = sc->steps < 10 ? 2 : 4096;
	unsigned blocks = (unsigned)b->d.processors * 8;
	double t;

	t = timed(sc->repeats, [&] {
		cuda_ok(&b->d, start(read_kernel, blocks, 512, 0, b->d.stream, (const uint4 *)b->d.arena,
			bytes / 16,
			(unsigned *)b->d.work), "read");
	});
	read_ceiling = (double)bytes / t;
	row("read all weights", read_ceiling * 1e-9, "GB/s", 1, "itself");
	t = timed(sc->repeats, [&] {
		cuda_ok(&b->d, start(mma_kernel, blocks, 128, 0, b->d.stream, b->d.work, rounds), "mma");
	});
	mma_ceiling = (double)blocks * 4 * rounds * 8 * 2 * 16 * 8 * 16 / t;
	row("mma.m16n8k16 without memory", mma_ceiling * 1e-12, "Top/s", 1, "itself");
}

/* ---- products ------------------------------------------------------------------------- */

static void products(const struct scale *sc)
{
	static const int sizes[] = { 1, 16, 32, 64, 512, 2048 };
	static const struct { const char *name; enum place y, x; } what[] = { { "gate+up", P_GU, P_Y },
		{ "down", P_Z, P_ACT } };
	char name[80];

	for (const auto &w : what) {
		for (int T : sizes) {
			int l = 0;
			double t, bytes, ops;

			if (T > b->lim.tokens)
				continue;
			t = timed(sc->repeats, [&] { /* another layer each time: weights come from memory */
				const struct net_layer *y = &b->net.layer[l++ % b->m.L];

				matmul(&b->d, w.y, w.x, w.y == P_GU ? y->gu : y->down, T);
			});
			bytes = 2.0 * b->m.D * b->m.F * (w.y == P_GU ? 2 : 1);
			ops = bytes * T;
			snprintf(name, sizeof(name), "%s, %d rows", w.name, T);
			if (T <= 64)
				row(name, bytes / t * 1e-9, "GB/s", bytes / t / read_ceiling, "the read");
			else
				row(name, ops / t * 1e-12, "Top/s", ops / t / mma_ceiling, "mma");
		}
	}
}

/* ---- steps ---------------------------------------------------------------------------- */

static void begin(struct sr_batch *a)
{
	a->n_copies = a->n_cmds = a->n_words = a->n_rows = a->n_results = a->n_ids = a->n_tokens = 0;
}

/* n slots with tables of their own as far as blocks reach, and settings. */
static void begin_slots(int n, int32_t context, bool random)
{
	int32_t blocks = context / BLOCK + 1;

	for (int s = 0; s < n; s++) {
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
		for (int32_t i = 0; i < blocks; i++)
			a->word[a->n_words++] = (uint32_t)((s * blocks + i) % b->lim.n_blocks);
		a->n_cmds = 2;
		launch(b, 0);
		while (!poll_batch(b, 0))
			;
	}
}

static void add_row(struct sr_batch *a, int slot, int32_t first, int32_t n, int32_t token)
{
	a->row[a->n_rows++] = (struct sr_row){ slot, first, n, token < 0 ? SR_LAST : a->n_ids, 0,
		a->n_results++, -1, 1, 0, 0 };
	for (int32_t i = 0; i < n && token >= 0; i++)
		a->token[a->n_ids++] = token + i % 100;
	a->n_tokens += n;
}

/* Seconds of a decode step of n sequences at `context`, two batches in flight. */
static double decode(const struct scale *sc, int n, int32_t context, bool random, double *host)
{
	int steps = sc->steps;
	double t = 0;

	begin_slots(n, context + steps, random);
	*host = 0;
	for (int i = 0; i <= steps; i++) {
		struct sr_batch *a = batch(b, i % 2);
		double begun;

		begin(a);
		for (int s = 0; s < n; s++)
			add_row(a, s, context - 1 + i, 1, i ? SR_LAST : 5);
		begun = now();
		if (launch(b, i % 2) || b->d.lost)
			exit(1);
		*host += (now() - begun) / steps;
		if (i)
			while (!poll_batch(b, (i - 1) % 2))
				;
		if (i == 1)
			t = now(); /* the first has filled the pipe */
	}
	t = now() - t;
	while (!poll_batch(b, steps % 2))
		;
	return t / (steps - 1);
}

/* Of all layers. */
static double layer_weights(void)
{
	return (double)b->m.L * b->m.D * (2.0 * (b->m.H + b->m.G) * b->m.E + 3.0 * b->m.F);
}

static void decodes(const struct scale *sc)
{
	static const int32_t sizes[] = { 1, 32, 128, 256 }, contexts[] = { 512, 2048 };
	double weights = 2.0 * ((double)b->m.V * b->m.D + layer_weights()), host, greedy = 0, t;
	char name[80];

	for (int32_t context : contexts) {
		for (int32_t n : sizes) {
			double bytes = weights + (double)n * context * (double)b->kv_block / BLOCK,
				ops = weights * n, least;

			snprintf(name, sizeof(name), "decode %d at context %d", n, context);
			if (n > sc->batch_max || context > sc->context_max ||
				(int64_t)n * (context / BLOCK + 8) > b->lim.n_blocks) {
				left_out(name, "it does not fit this card");
				continue;
			}
			t = decode(sc, n, context, false, &host);
			least = bytes / read_ceiling > ops / mma_ceiling
				? bytes / read_ceiling : ops / mma_ceiling;
			row(name, n / t, "tok/s", least / t, "its limit");
			printf("%-44s %10.2f %-8s of a step of %.0f us\n", "    the host's part",
				host * 1e6, "us", t * 1e6);
			if (n == sizes[3] && context == contexts[0])
				greedy = t;
		}
	}
	if (!greedy)
		return;
	t = decode(sc, 256, 512, true, &host) - greedy;
	row("top-k 50, top-p 0.9 of 256 rows", t * 1e6, "us", t / greedy, "the step (more than greedy)");
}

static void prefills(const struct scale *sc)
{
	static const int32_t sizes[] = { 128, 2048, 8192 };
	double per_token = 2 * layer_weights();
	char name[80];

	for (int32_t n : sizes) {
		struct sr_batch *a = batch(b, 0);
		double t, ops = n * per_token + 4.0 * b->m.L * b->m.H * b->m.E * n * (n / 2.0), best = 1e9;

		if (n > b->lim.tokens || n > sc->prompt)
			continue;
		begin_slots(1, n, false);
		for (int i = 0; i < 3; i++) {
			begin(a);
			add_row(a, 0, 0, n, 5);
			t = now();
			launch(b, 0);
			while (!poll_batch(b, 0))
				;
			t = now() - t;
			best = t < best ? t : best;
		}
		snprintf(name, sizeof(name), "prompt of %d", n);
		row(name, best * 1e3, "ms", ops / best / mma_ceiling, "mma");
	}
}

int main(int argc, char **argv)
{
	bool tiny = argc > 1 && !strcmp(argv[1], "tiny");
	struct scale sc = { tiny ? model(2, 64, 4, 2, 16, 96, 200) : model(32, 4096, 32, 8, 128, 14336,
		128256),
		tiny ? 3 : 40, tiny ? 1 : 32, tiny ? 512 : 1 << 20, tiny ? 1 : 256, tiny ? 128 : 8192 };
	struct sr_source src = { NULL, 0, arena, read_nothing, wait_nothing };
	struct sr_limits lim = {};
	struct sr_need need;
	char err[512] = "";
	int64_t left;

	json = fopen(argc > 2 ? argv[2] : "/dev/null", "w");
	if (!json) {
		perror(argv[2]);
		return 1;
	}
	fprintf(json, "[");
	lim.block_tokens = BLOCK;
	lim.seq_blocks = 1024;
	lim.slots = lim.rows = tiny ? 4 : 256;
	lim.tokens = tiny ? 256 : 8192;
	lim.cmds = 512;
	lim.words = 4096;
	lim.logit_rows = tiny ? 4 : 256;
	lim.world = 1;
	if (plan(&sc.m, &lim, &need, err, sizeof(err))) {
		fprintf(stderr, "%s\n", err);
		return 1;
	}
	left = need.avail - need.weights - need.scratch - need.slots - (tiny ? 0 : (int64_t)1 << 30);
	lim.n_blocks = left < 0
		? 0 : tiny ? 64 : left / need.per_block < 36000 ? (int32_t)(left / need.per_block) : 36000;
	if (lim.n_blocks < 64) {
		left_out("all of an 8B model", "it does not fit this card");
		fprintf(json, "]\n");
		return fclose(json);
	}
	if (open_backend(&b, &sc.m, &src, &lim, err, sizeof(err))) {
		fprintf(stderr, "%s\n", err);
		return 1;
	}
	ceilings(&sc);
	products(&sc);
	decodes(&sc);
	prefills(&sc);
	fprintf(json, "\n]\n");
	fclose(json);
	close_backend(b);
	return 0;
}
