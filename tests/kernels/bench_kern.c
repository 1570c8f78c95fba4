/* LINK: @inner tools/machine/peak.c */
/* bench_kern.c - the inner loops of the CPU on one core, beside this core's own limits measured in
 * the same run: each round measures the limits and then each kernel once, and medians of the rounds
 * are printed.  Shapes are SmolLM2-135M's.
 *
 *	bench_kern [rounds] [table]
 *
 * Limits: int8, bf16 and f32 products per second from registers, and reading memory that no cache
 * holds, by AVX-512; on a machine without it no fractions are printed.
 */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/cpu/kern.h"
#include "kernels/cpu/types.h"
#include "tools/machine/peak.h"

#define ROUNDS_MAX 99
#define ARENA ((size_t)256 << 20)         /* data that is read from memory rotates through this much */

static const struct kern *kt;
static uint8_t *arena;
static volatile uint64_t sink;

/* This thread's CPU time: other programs disturb caches and memory, not the clock. */
static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t state = 88172645463325252u;

static float uniform(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (float)(int32_t)(state >> 16) * 0x1p-31f;
}

static void *take(size_t bytes)
{
	void *p;

	bytes = (bytes + 0x1fffff) & ~(size_t)0x1fffff;
	p = aligned_alloc(0x200000, bytes);
	if (!p || madvise(p, bytes, MADV_HUGEPAGE))
		perror("memory");
	if (!p)
		exit(1);
	memset(p, 0, bytes);
	return p;
}

static float *floats(size_t n)
{
	float *x = take(n * 4);

	for (size_t i = 0; i < n; i++)
		x[i] = uniform();
	return x;
}

/* ---- what is measured ----------------------------------------------------------------------- */

struct bench {
	char name[64];
	const char *unit;
	enum peak against;
	double (*run)(const struct bench *);     /* in the unit */
	int32_t type, n, k, rows;
	uint8_t *w;
	size_t copies;                           /* of the weights, one after another */
	float *x, *y;
	struct kern_rows packed;
	struct kern_attend attend;
	double seen[ROUNDS_MAX];
};

/* Gop/s; repeated, as in prefill, with weights that are new each time */
static double once(const struct bench *b, size_t *at, int times)
{
	size_t bytes = kt->block_bytes(b->type, b->k) * (size_t)(b->n / KERN_COLS);
	double t = now();

	for (int i = 0; i < times; i++, *at = (*at + 1) % b->copies)
		kt->matmul(b->type, b->k, b->w + *at * bytes, b->n / KERN_COLS, b->n, &b->packed, NULL, b->y,
		           (size_t)b->n, b->w + (*at + 1) % b->copies * bytes);
	return now() - t;
}

static double run_matmul(const struct bench *b)
{
	static size_t at;
	int times = (int)(2e9 / (2.0 * b->n * b->k * b->rows)) + 1;

	at %= b->copies;
	return 2.0 * b->n * b->k * b->rows * times / once(b, &at, times) * 1e-9;
}

static double run_read(const struct bench *b)
{
	size_t bytes = kt->block_bytes(b->type, b->k) * (size_t)(b->n / KERN_COLS), at = 0;

	return (double)(bytes * b->copies) / once(b, &at, (int)b->copies) * 1e-9;
}

/* Gop/s: two products of E for each pair of query and token it reads */
static double run_attend(const struct bench *b)
{
	const struct kern_attend *a = &b->attend;
	double pairs = 0, t = now();
	int times = a->n > 1 ? 1 : 200;

	for (int i = 0; i < times; i++)
		kt->attend(SR_KV_BF16, a);
	t = now() - t;
	for (int32_t i = 0; i < a->n; i++)
		pairs += a->first + i + 1;
	return 4.0 * a->head_dim * a->heads * pairs * times / t * 1e-9;
}

static double run_rows(const struct bench *b)
{
	struct kern_rows r = b->packed;
	double t = now();

	kt->make_rows(&r, b->x, (size_t)b->k, 0, (b->rows + 7) / 8);
	return (now() - t) / ((double)b->rows * b->k / 32) * 1e9;
}

static double run_norm(const struct bench *b)
{
	double t = now();

	for (int32_t i = 0; i < b->rows; i++)
		kt->norm(b->x + i * b->k, b->x, 1e-5f, b->k, b->y + i * b->k);
	return (now() - t) / ((double)b->rows * b->k) * 1e9;
}

/* A value head of 128 x 128 through b->rows tokens, from one state to another. */
static double run_delta(const struct bench *b)
{
	const int32_t ld = 3 * 128 + 2, heads = 64;
	float *at = b->y + b->rows * 128;
	double t = now();

	for (int32_t i = 0; i < heads; i++) {
		const struct kern_delta a = { .n = b->rows, .k_dim = 128, .v_dim = 128, .q = b->x, .k = b->x + 128,
			.v = b->x + 256, .decay = b->x + 384, .write = b->x + 385, .ld = (size_t)ld, .out = b->y, .ld_out = 128,
			.from = at + (size_t)i * 128 * 128, .to = at + (size_t)i * 128 * 128 };

		kt->delta(&a);
	}
	return (now() - t) / (heads * b->rows) * 1e9;
}

static double run_act(const struct bench *b)
{
	double t = now();

	for (int32_t i = 0; i < b->rows; i++)
		kt->act_mul(SR_SILU, b->x + i * b->k, b->x, b->k, b->y + i * b->k);
	return (now() - t) / ((double)b->rows * b->k) * 1e9;
}

static double run_logits(const struct bench *b)
{
	double t = now(), sum;
	float max;
	int32_t arg;

	for (int32_t i = 0; i < b->rows; i++)
		kt->logits(b->x, b->k, &max, &arg, &sum);
	sink = (uint64_t)arg;
	return (now() - t) / ((double)b->rows * b->k) * 1e9;
}

static double run_store(const struct bench *b)
{
	size_t area = kt->kv_bytes(SR_KV_BF16, b->k);
	double t = now();

	for (int32_t i = 0; i < b->rows; i++)
		kt->kv_store(SR_KV_BF16, b->k, i % 16, b->x + i * b->k, b->x + i * b->k,
		             arena + (size_t)(i / 16) * 2 * area, arena + (size_t)(i / 16) * 2 * area + area);
	return (now() - t) / b->rows * 1e9;
}

/* ---- the list ------------------------------------------------------------------------------- */

#define BENCH_MAX 128
static struct bench list[BENCH_MAX];
static int n_list;

static struct bench *new_bench(const char *unit, enum peak against, double (*run)(const struct bench *))
{
	struct bench *b = &list[n_list++];

	if (n_list > BENCH_MAX)
		exit(1);
	b->unit = unit;
	b->against = against;
	b->run = run;
	return b;
}

static void rows_of(struct bench *b, enum kern_form form)
{
	b->x = floats((size_t)b->rows * (size_t)b->k);
	b->packed = (struct kern_rows){ .form = form, .k = b->k, .rows = b->rows };
	b->packed.tile_bytes = kt->tile_bytes(form, b->k);
	b->packed.data = take((size_t)(b->rows + 7) / 8 * b->packed.tile_bytes);
	kt->make_rows(&b->packed, b->x, (size_t)b->k, 0, (b->rows + 7) / 8);
}

static void add_matmul(int32_t type, const char *name, int32_t k, int32_t n, int32_t rows)
{
	enum kern_form form = (enum kern_form)kt->form(type);
	enum peak most = form == FORM_I8 ? PEAK_INT8 : form == FORM_BF16 ? PEAK_BF16 : PEAK_F32;
	struct bench *b = rows > 1 ? new_bench("Gop/s", most, run_matmul) : new_bench("GB/s", PEAK_READ, run_read);

	snprintf(b->name, sizeof b->name, "%s %dx%d, %d row%s", name, k, n, rows, rows > 1 ? "s" : "");
	b->type = type;
	b->k = k;
	b->n = n;
	b->rows = rows;
	b->w = arena;
	b->copies = ARENA / (kt->block_bytes(type, k) * (size_t)(n / KERN_COLS));
	b->y = take((size_t)rows * (size_t)n * 4);
	rows_of(b, form);
}

static void add_attend(int32_t n, int32_t tokens)
{
	struct bench *b = new_bench("Gop/s", PEAK_F32, run_attend);
	size_t area = kt->kv_bytes(SR_KV_BF16, 64);
	int32_t blocks = (tokens + 15) / 16, *table = take((size_t)blocks * 4);
	uint8_t *kv = take((size_t)blocks * 2 * area);
	float *k = floats((size_t)tokens * 64);

	for (int32_t i = 0; i < blocks; i++)
		table[i] = blocks - 1 - i;
	for (int32_t p = 0; p < tokens; p++) {
		uint8_t *at = kv + (size_t)table[p / 16] * 2 * area;

		kt->kv_store(SR_KV_BF16, 64, p % 16, k + 64 * p, k + 64 * p, at, at + area);
	}
	snprintf(b->name, sizeof b->name, "attention, %d queries x 3 heads of 64, %d tokens", n, tokens);
	b->attend = (struct kern_attend){
		.q = floats((size_t)n * 192), .out = floats((size_t)n * 192), .ld_q = 192, .ld_out = 192,
		.n = n, .heads = 3, .head_dim = 64, .first = tokens - n, .scale = 0.125f,
		.table = table, .kv = kv, .block_stride = 2 * area, .v_off = area,
		.scratch = take(kt->attend_scratch(n, 3, 64) * 4),
	};
}

static void add_vector(const char *name, double (*run)(const struct bench *), const char *unit,
                       enum kern_form form, int32_t k, int32_t rows)
{
	struct bench *b = new_bench(unit, PEAK_NONE, run);

	snprintf(b->name, sizeof b->name, "%s, %d wide", name, k);
	b->k = k;
	b->rows = rows;
	b->y = take((size_t)rows * (size_t)k * 4);
	rows_of(b, form);
}

static void add_delta(int32_t rows)
{
	struct bench *b = new_bench("ns", PEAK_NONE, run_delta);

	snprintf(b->name, sizeof b->name, "delta rule, head of 128 x 128, %d tokens, ns per token", rows);
	b->rows = rows;
	b->x = floats((size_t)rows * (3 * 128 + 2));
	b->y = floats((size_t)rows * 128 + 64 * 128 * 128);
	for (int32_t i = 0; i < rows * (3 * 128 + 2); i++)
		b->x[i] *= 0.1f;                 /* a state that stays finite */
}

static void fill(void)
{
	static const int32_t shape[][2] = { { 576, 960 }, { 576, 576 }, { 576, 3072 }, { 1536, 576 } };
	static const int32_t rows[] = { 1, 8, 16, 512 };
	static const struct { int32_t type; const char *name; } other[] = {
		{ SR_Q4_0, "Q4_0" }, { SR_Q8_0, "Q8_0" }, { SR_Q5_1, "Q5_1" }, { SR_Q6_K, "Q6_K" },
		{ SR_BF16, "BF16" }, { SR_F16, "F16" }, { SR_F32, "F32" },
	};

	for (size_t r = 0; r < 4; r++)
		for (size_t s = 0; s < 4; s++)
			add_matmul(SR_Q4_1, "Q4_1", shape[s][0], shape[s][1], rows[r]);
	for (size_t r = 0; r < 3; r++)
		add_matmul(SR_Q8_0, "Q8_0 head", 576, 49152, rows[r]);
	for (size_t i = 0; i < sizeof other / sizeof *other; i++)
		for (size_t r = 0; r < 4; r += 3)
			add_matmul(other[i].type, other[i].name, 1536, 576, rows[r]);
	add_attend(512, 512);
	add_attend(64, 2048);
	add_attend(1, 256);
	add_attend(1, 4096);
	add_vector("activations to int8, ns per 32", run_rows, "ns", FORM_I8, 576, 512);
	add_vector("activations to bf16, ns per 32", run_rows, "ns", FORM_BF16, 576, 512);
	add_vector("activations to f32 tiles, ns per 32", run_rows, "ns", FORM_F32, 576, 512);
	add_vector("K and V of a token into its block, ns", run_store, "ns", FORM_F32, 64, 512);
	add_vector("norm, ns per element", run_norm, "ns", FORM_F32, 576, 512);
	add_vector("silu and multiply, ns per element", run_act, "ns", FORM_F32, 1536, 512);
	add_vector("logits scan, ns per element", run_logits, "ns", FORM_F32, 49152, 8);
	add_delta(1);
	add_delta(512);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	static double top[N_PEAKS][ROUNDS_MAX];
	static double ratio[ROUNDS_MAX];
	int rounds = argc > 1 ? atoi(argv[1]) : 7;

	kt = kern_pick(argc > 2 ? argv[2] : NULL);
	if (!kt || rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "bench_kern [rounds, 1 to %d] [plain|avx2|avx512]\n", ROUNDS_MAX);
		return 1;
	}
	arena = take(ARENA + (64 << 20));
	fill();
	for (int i = 0; i < rounds; i++) {
		for (int l = 1; l < N_PEAKS; l++)
			top[l][i] = peak_measure((enum peak)l, arena, ARENA);
		for (int j = 0; j < n_list; j++)
			list[j].seen[i] = list[j].run(&list[j]);
	}
	printf("table %s, one core, medians of %d rounds (lowest .. highest)\n", kt->name, rounds);
	for (int j = 0; j < n_list; j++) {
		struct bench *b = &list[j];

		for (int i = 0; i < rounds; i++)
			ratio[i] = b->against ? b->seen[i] / top[b->against][i] : 0;
		qsort(ratio, (size_t)rounds, sizeof *ratio, by_value);
		qsort(b->seen, (size_t)rounds, sizeof *b->seen, by_value);
		printf("%-52s %8.2f %-5s (%.2f .. %.2f)", b->name, b->seen[rounds / 2], b->unit, b->seen[0],
		       b->seen[rounds - 1]);
		if (ratio[rounds / 2] > 0 && isfinite(ratio[rounds / 2]))
			printf("  %.2f of %s", ratio[rounds / 2], peak_names[b->against]);
		printf("\n");
	}
	for (int l = 1; l < N_PEAKS; l++) {
		qsort(top[l], (size_t)rounds, sizeof **top, by_value);
		if (top[l][rounds / 2] > 0)
			printf("%-52s %8.2f\n", peak_names[l], top[l][rounds / 2]);
	}
	return 0;
}
