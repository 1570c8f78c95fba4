/* LINK: core/model.c core/model_gguf.c core/model_hf.c core/model_quant.c core/load.c core/gguf.c core/safetensors.c core/io.c core/log.c kernels/forward.c kernels/rope.c kernels/cpu/backend.c kernels/cpu/memory.c kernels/cpu/ops.c kernels/cpu/roof.c kernels/cpu/sample.c kernels/cpu/team.c kernels/cpu/weights.c kernels/cpu/repack.c kernels/cpu/plain.c kernels/cpu/pick.c kernels/cpu/types.c kernels/cpu/kvblock.c kernels/cpu/lanes.c kernels/cpu/avx2.c kernels/cpu/avx2_matmul.c kernels/cpu/avx2_attend.c kernels/cpu/avx512.c kernels/cpu/avx512_matmul.c kernels/cpu/avx512_attend.c tests/drive.c -ljansson -luring */
/* bench_cpu.c - the CPU back end alone, without scheduler or rings: tokens per second of prompts, of
 * one and of sixteen sequences, and what drawing costs.
 *
 *	bench_cpu MODEL [THREADS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/load.h"
#include "core/model.h"
#include "kernels/cpu/cpu.h"
#include "tests/drive.h"

static struct drive d;
static int32_t ids[1024];

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *err)
{
	fprintf(stderr, "bench_cpu: %s\n", err);
	exit(1);
}

static void open_model(const char *path, int threads)
{
	struct sr_limits lim = drive_limits();
	double begin = now();
	struct model *m;
	struct load *l;
	struct io *io;
	char err[512];

	lim.threads = threads;
	lim.n_blocks = 1400;
	lim.words = 4000;
	if (model_open(&m, path, err, sizeof(err)))
		die(err);
	if (io_create(&io, 0) || load_create(&l, io, m->file, m->n_files, NULL, NULL, err, sizeof(err)))
		die("no loop or loader");
	if (drive_open(&d, sr_cpu_ops(), &m->m, load_source(l), &lim))
		die(d.err);
	printf("open: %.0f ms\n", 1e3 * (now() - begin));
	load_destroy(l);
	io_destroy(io);
	model_close(m);
}

/* The best of some rounds, n tokens each: what the machine can do when it is left alone. */
static void prompt(int n)
{
	double best = 1e9;

	for (int round = 0; round < 5; round++) {
		double begin = now();

		drive_begin(&d, 0, NULL);
		drive_range(&d, 0, 0, (n + 15) / 16);
		drive_row(&d, 0, 0, ids, n, 0, 1);
		drive_step(&d);
		if (now() - begin < best)
			best = now() - begin;
	}
	printf("prompt of %4d: %6.0f tok/s, %.1f ms; %.2f of what its operations allow\n", n, n / best, 1e3 * best,
		d.batch->compute_ns * 1e-9 / best);
}

static void decode(int seqs, int context, const struct sr_sampling *s, const char *what)
{
	double best = 1e9, sum = 0;

	for (int i = 0; i < seqs; i++) {
		drive_begin(&d, i, s);
		drive_range(&d, i, i * 40, 40);
		drive_row(&d, i, 0, ids, context < 60 ? context : 60, 0, 1);
	}
	drive_step(&d);
	for (int step = 0; step < 40; step++) {
		double begin = now();

		for (int i = 0; i < seqs; i++)
			drive_row(&d, i, context + step, NULL, 1, 0, 1);
		drive_step(&d);
		sum += now() - begin;
		if (now() - begin < best)
			best = now() - begin;
	}
	printf("decode, %2d sequences at %4d%s: %6.0f tok/s best, %6.0f mean; %.2f of what its bytes allow, %.2f of "
		"operations\n", seqs, context, what, seqs / best, 40 * seqs / sum,
		d.batch->memory_ns * 1e-9 / best, d.batch->compute_ns * 1e-9 / best);
}

int main(int argc, char **argv)
{
	const struct sr_sampling cut = { .seed = 1, .temperature = 0.8f, .top_p = 0.95f, .top_k = 50, .repetition = 1 };
	const struct sr_sampling plain = { .seed = 1, .temperature = 1, .top_p = 1, .repetition = 1 };

	if (argc < 2)
		return printf("SKIP: bench_cpu MODEL [THREADS]\n"), 0;
	open_model(argv[1], argc > 2 ? atoi(argv[2]) : 2);
	for (int i = 0; i < 1024; i++)
		ids[i] = 1000 + i * 37 % 20000;
	prompt(512);
	prompt(128);
	decode(1, 60, NULL, "");
	decode(1, 512, NULL, "");
	decode(16, 60, NULL, "");
	decode(16, 60, &plain, ", t=1");
	decode(16, 60, &cut, ", top_k, top_p");
	drive_close(&d);
	return 0;
}
