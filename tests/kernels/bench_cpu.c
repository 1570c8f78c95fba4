/* LINK: @cpu @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c tools/machine/peak.c -ljansson -luring */
/* bench_cpu.c - the CPU back end alone, without scheduler or rings.  Reads what to measure, a line each, and
 * answers with a line each, so that bench.py can let it and a peer take turns:
 *
 *	bench_cpu MODEL [THREADS]
 *
 *	prefill N               a prompt of N tokens       ->  tok/s, the limit's tok/s
 *	decode N CONTEXT STEPS  N sequences, STEPS each    ->  tok/s, the limit's tok/s, MB and GB/s read
 *	answer STEPS ID ID ..   a prompt and what follows  ->  STEPS pairs: the likeliest id, its log-probability
 *	peaks                   -> Gop/s of int8, bf16, f32 and GB/s read, all threads at once
 *
 * A limit is what the peaks, measured just before, allow: all products at the rate of the type in which
 * matrices are multiplied (for attention bf16), and each weight and all K and V read once per step.
 * Read are, in each step, all weights and all K and V.
 * Prompts are random and new each time, and there is no prefix cache here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core/models/load.h"
#include "core/models/model.h"
#include "kernels/cpu/cpu.h"
#include "tests/rig/drive.h"
#include "tools/machine/peak.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define LONGEST 8192
#define SEQS    64
#define BLOCKS  1024
#define PIECE   ((size_t)256 << 20) /* of weights that a thread reads to measure the memory's rate */

static struct drive d;
static double peak[N_PEAKS];       /* of all threads together */
static uint64_t state = 88172645463325252u;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

_Noreturn static void die(const char *err)
{
	fprintf(stderr, "bench_cpu: %s\n", err);
	exit(1);
}

static void open_model(const char *path, int threads)
{
	struct sr_limits lim = drive_limits();
	struct model *m;
	struct load *l;
	struct io *io;
	char err[512];

	lim.threads = threads;
	lim.n_blocks = BLOCKS;
	lim.seq_blocks = LONGEST / KERN_BLOCK;
	lim.slots = lim.rows = SEQS;
	lim.cmds = 4 * SEQS;
	lim.tokens = LONGEST;
	lim.words = BLOCKS + 4000;
	if (model_open(&m, path, err, sizeof(err)))
		die(err);
	if (io_create(&io, 0) || load_create(&l, io, m->file, m->n_files, NULL, NULL, err, sizeof(err)))
		die("no loop or loader");
	if (drive_open(&d, sr_cpu_ops(), &m->m, load_source(l), &lim))
		die(d.err);
	load_destroy(l);
	io_destroy(io);
	model_close(m);
	if (madvise(d.b->kv, d.b->kv_size, MADV_POPULATE_WRITE)) /* else the pool is faulted in beside a peer */
		perror("bench_cpu: the KV pool is not in memory");
}

/* ---- limits ------------------------------------------------------------------------------------- */

struct peaks { enum peak what; double seen[64]; };

static void measure(void *ctx, int i)
{
	struct peaks *p = ctx;
	const struct dev *dev = &d.b->dev[i];
	size_t bytes = (dev->arena_size < PIECE ? dev->arena_size : PIECE) / 512 * 512;

	p->seen[i % 64] = peak_measure(p->what, dev->arena_end - dev->arena_size, bytes);
}

static void peaks(void)
{
	for (int what = 1; what < N_PEAKS; what++) {
		double best = 0;

		for (int round = 0; round < 5; round++) {
			struct peaks p = { .what = (enum peak)what };
			double sum = 0;

			team_run(d.b->team, measure, &p);
			for (int i = 0; i < d.b->n_threads && i < 64; i++)
				sum += p.seen[i];
			best = sum > best ? sum : best;
		}
		peak[what] = best;
	}
}

/* Bytes of the experts that some of `tokens` tokens choose, if each chooses at random. */
static double expert_bytes(double tokens)
{
	const struct sr_backend *b = d.b;
	const struct sr_experts *x = &b->m.experts;
	double bytes = 0;

	for (int32_t l = 0; x->n && l < b->m.n_layers; l++)
		for (int which = 0; which < 2; which++) {
			const struct weight *w = which ? b->net.layer[l].expert_down : b->net.layer[l].expert_gu;

			for (int p = 0; w && p < w->n_parts; p++)
				bytes += x->n * (1 - pow(1 - (double)x->top / x->n, tokens)) * w->part[p].n_blocks *
				         (double)w->part[p].block_bytes;
		}
	return bytes;
}

/* Bytes that a step of seqs sequences at `context` reads. */
static double bytes_read(double seqs, double context)
{
	const struct sr_backend *b = d.b;

	return b->roof.layer_bytes + b->roof.head_bytes + seqs * context / KERN_BLOCK * (double)b->kv_block +
	       expert_bytes(seqs);
}

/* Least seconds for `tokens` tokens of seqs sequences, the last at `context`; one result each. */
static double least(double tokens, double seqs, double context)
{
	const struct sr_backend *b = d.b;
	const struct sr_model *m = &b->m;
	const struct net_layer *first = &b->net.layer[0];
	enum kern_form f = (first->gu ? first->gu : first->expert_gu)->part[0].form;
	double at = peak[f == FORM_I8 ? PEAK_INT8 : f == FORM_BF16 ? PEAK_BF16 : PEAK_F32];
	double read = tokens > seqs ? tokens * context / 2 : seqs * context; /* positions by all tokens */
	double products = 2 * (tokens * b->roof.token_macs + seqs * (double)m->n_vocab * m->d_model);
	double attention = 2.0 * 2 * read * m->kind[0].n_heads * m->kind[0].head_dim * m->n_layers;
	double bytes = (bytes_read(seqs, context) + expert_bytes(tokens) - expert_bytes(seqs)) / peak[PEAK_READ];
	double ops = products / at + attention / peak[PEAK_F32];

	return (ops > bytes ? ops : bytes) * 1e-9;
}

/* ---- work ---------------------------------------------------------------------------------------- */

static void fresh(int32_t *ids, int n)
{
	for (int i = 0; i < n; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		ids[i] = (int32_t)((state >> 20) % (uint64_t)d.b->m.n_vocab);
	}
}

static void blocks(int slot, int from, int first, int n)
{
	int32_t block[64];

	for (int i = 0; i < n; i++)
		block[i] = first + i;
	drive_blocks(&d, slot, from, block, n);
}

/* Prompts of n tokens for sequences 0 .. seqs-1, one after the other; seconds. */
static double prompts(int seqs, int n, int room)
{
	static int32_t ids[LONGEST];
	double begin = now();

	for (int i = 0; i < seqs; i++) {
		fresh(ids, n);
		drive_begin(&d, i, NULL);
		for (int b = 0; b < room; b += 64)
			blocks(i, b, 1 + i * room + b, room - b < 64 ? room - b : 64);
		drive_row(&d, i, 0, ids, n, 0, 1);
		drive_step(&d);
	}
	return now() - begin;
}

static void prefill(int n)
{
	if (n < 1 || n > LONGEST || n > KERN_BLOCK * (BLOCKS - 1))
		die("prefill: 1 to 8192 tokens");
	printf("%.2f %.2f\n", n / prompts(1, n, n / KERN_BLOCK + 1), peak[PEAK_READ] > 0 ? n / least(n, 1, n) : 0);
}

static void decode(int seqs, int context, int steps)
{
	int room = (context + steps) / KERN_BLOCK + 1;
	double begin, took, bytes, limit = 0;

	if (seqs < 1 || seqs > SEQS || context < 1 || steps < 1 || context + steps > LONGEST ||
	    room * seqs >= BLOCKS)
		die("decode: up to 64 sequences, 8192 tokens each, 16368 in all");
	prompts(seqs, context, room);
	begin = now();
	for (int step = 0; step < steps; step++) {
		for (int i = 0; i < seqs; i++)
			drive_row(&d, i, context + step, NULL, 1, 0, 1);
		drive_step(&d);
	}
	took = now() - begin;
	if (peak[PEAK_READ] > 0)
		limit = seqs / least(seqs, seqs, context + steps / 2.0);
	bytes = bytes_read(seqs, context + steps / 2.0);
	printf("%.2f %.2f %.1f %.2f\n", seqs * steps / took, limit, bytes * 1e-6, bytes * steps / took * 1e-9);
}

/* Greedy, so that bench.py can compare it with a peer's answer before it compares speeds. */
static void answer(char *words)
{
	static int32_t ids[LONGEST];
	int n = 0, steps = (int)strtol(words, &words, 10);

	for (char *end; n < LONGEST; words = end) {
		ids[n] = (int32_t)strtol(words, &end, 10);
		if (end == words)
			break;
		if (ids[n] < 0 || ids[n++] >= d.b->m.n_vocab)
			die("answer: ids are those of the model");
	}
	if (n < 1 || steps < 1 || n + steps > LONGEST)
		die("answer STEPS ID ID ..: 8192 tokens in all");
	drive_begin(&d, 0, NULL);
	for (int b = 0; b < (n + steps) / KERN_BLOCK + 1; b += 64)
		blocks(0, b, 1 + b, 64);
	for (int step = 0; step < steps; step++) {
		int at = drive_row(&d, 0, step ? n + step - 1 : 0, step ? NULL : ids, step ? 1 : n, 0, 1);
		const struct sr_result *r = &d.batch->result[at];

		drive_step(&d);
		printf("%d %.5f%c", r->id, (double)r->logprob, step + 1 < steps ? ' ' : '\n');
	}
}

int main(int argc, char **argv)
{
	static char line[8 * LONGEST];

	if (argc < 2)
		return printf("SKIP: bench_cpu MODEL [THREADS], and what to measure on standard input\n"), 0;
	open_model(argv[1], argc > 2 ? atoi(argv[2]) : 2);
	peaks();
	prompts(1, 64, 5);
	while (fgets(line, sizeof(line), stdin)) {
		int n, context, steps;

		if (sscanf(line, "prefill %d", &n) == 1)
			prefill(n);
		else if (sscanf(line, "decode %d %d %d", &n, &context, &steps) == 3)
			decode(n, context, steps);
		else if (!strncmp(line, "answer ", 7))
			answer(line + 7);
		else if (!strncmp(line, "peaks", 5))
			printf("%.1f %.1f %.1f %.2f\n", peak[PEAK_INT8], peak[PEAK_BF16], peak[PEAK_F32], peak[PEAK_READ]);
		else
			die("what to measure: prefill N, decode N CONTEXT STEPS, answer STEPS ID .., peaks");
		fflush(stdout);
	}
	drive_close(&d);
	return 0;
}
