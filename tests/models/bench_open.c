/* LINK: @cpu @models core/models/load.c core/instance/io.c core/instance/log.c tests/rig/drive.c -ljansson -luring */
/* bench_open.c - how long models take to open, in turn: build/tests/bench_open [-n ROUNDS] MODEL ..  Prints the median
 * time until the tables are read, and until the weights are held.  Files should be cached: run it twice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/models/load.h"
#include "core/models/model.h"
#include "kernels/cpu/cpu.h"
#include "shmring/clock.h"
#include "tests/rig/drive.h"

#define MODELS 8
#define ROUNDS 15

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* 0, or an error in err. */
static int hold(const struct model *m, char *err, size_t errlen)
{
	struct sr_limits lim = drive_limits();
	struct drive d = { 0 };
	struct load *l = NULL;
	struct io *io = NULL;
	int rc = io_create(&io, 0);

	lim.threads = 2;
	if (!rc)
		rc = load_create(&l, io, m->file, m->n_files, NULL, NULL, err, errlen);
	if (!rc)
		rc = drive_open(&d, sr_cpu_ops(), &m->m, load_source(l), &lim);
	snprintf(err, errlen, "%s", d.err);
	if (!rc)
		drive_close(&d);
	load_destroy(l);
	io_destroy(io);
	return rc;
}

static void once(const char *path, double *tables, double *all)
{
	uint64_t begin = sr_now();
	char err[512] = "";
	struct model *m;

	if (model_open(&m, path, err, sizeof(err)) == 0) {
		*tables = (double)(sr_now() - begin) / 1e6;
		if (hold(m, err, sizeof(err)) == 0) {
			*all = (double)(sr_now() - begin) / 1e6;
			model_close(m);
			return;
		}
	}
	fprintf(stderr, "%s\n", err);
	exit(1);
}

int main(int argc, char **argv)
{
	static double tables[MODELS][ROUNDS], all[MODELS][ROUNDS];
	int rounds = 7, first = 1;

	if (argc > 2 && strcmp(argv[1], "-n") == 0) {
		rounds = atoi(argv[2]);
		first = 3;
	}
	if (argc <= first || argc - first > MODELS || rounds < 1 || rounds > ROUNDS) {
		fprintf(stderr, "usage: bench_open [-n ROUNDS, up to %d] MODEL .., up to %d\n", ROUNDS, MODELS);
		return 2;
	}
	for (int r = 0; r < rounds; r++)
		for (int i = first; i < argc; i++)
			once(argv[i], &tables[i - first][r], &all[i - first][r]);
	for (int i = 0; i < argc - first; i++) {
		qsort(tables[i], (size_t)rounds, sizeof(double), by_value);
		qsort(all[i], (size_t)rounds, sizeof(double), by_value);
		printf("%s: tables %.1f ms, ready %.1f ms\n", argv[first + i], tables[i][rounds / 2], all[i][rounds / 2]);
	}
	return 0;
}
