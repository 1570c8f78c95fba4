/* pair.h - a model in two back ends, the CPU's in plain C and CUDA's (in tests/emu, or on a GPU): the same verbs
 * and batches for both, and their results compared.  For tests in C++ that include nothing of kernels/cuda. */
#ifndef CUDA_PAIR_H
#define CUDA_PAIR_H

#include <memory>

#include "kernels/cuda/backend.cu"
#include "tests/cuda/errors.h"
#include "tests/cuda/real.h"
#include "tests/cuda/truth.h"

#define HALF 0.004 /* one rounding to bf16 */
#define T_MAX 150

/* ---- two back ends with one model ----------------------------------------------------- */

struct pair {
	struct drive cpu, gpu;
	struct tiny *model;
};

/* drive.c polls a device that works by itself. */
static inline struct sr_limits limits()
{
	struct sr_limits l = drive_limits();

	l.worked = 1;
	return l;
}

static int32_t gpu_kv = SR_KV_BF16;      /* of pairs that are opened; the CPU's are bf16 */

/* The pair owns t. */
static inline void open_pair_of(struct pair *p, struct tiny *t)
{
	struct sr_limits lim = limits();

	p->model = t;
	lim.logit_rows = 40;
	truth_open(&p->cpu, p->model, &lim);
	lim.worked = 0;
	lim.kv_type = gpu_kv;
	p->model->n_done = 0;
	if (drive_open(&p->gpu, sr_backend_get(SR_BACKEND_VERSION), &p->model->m, &p->model->src, &lim))
		fail_msg("%s", p->gpu.err);
}

static inline void open_pair(struct pair *p, const struct sr_model *shape, int32_t type, unsigned flags,
	uint64_t seed)
{
	open_pair_of(p, tiny_create(shape, type, flags, seed));
}

static inline void close_pair(struct pair *p)
{
	drive_close(&p->cpu);
	drive_close(&p->gpu);
	tiny_destroy(p->model);
	assert_int_equal(emu_allocations, 0);
}

static inline struct dev *gpu_dev(struct pair *p)
{
	return &p->gpu.b->d;
}

/* Make the CUDA batch the one that its verbs work on. */
static inline void gpu_slice(struct pair *p)
{
	struct sr_backend *b = p->gpu.b;
	struct flight *f = &b->flight[0];
	struct dev *d = &b->d;

	step_fill(d, &f->batch, &b->lim, f->first_cmd, f->next_cmd, f->signal);
	step_begin(d);
	step_end(d);
	angles(d, d->batch.step.n_tokens);
	assert_int_equal(cudaStreamSynchronize(d->stream), cudaSuccess);
}

static inline void clear(struct sr_batch *b)
{
	b->n_copies = b->n_cmds = b->n_words = b->n_rows = b->n_results = b->n_ids = b->n_tokens = 0;
}

/* Tokens of slot 0 at positions first .., as one run or, with singles, T sequences of one token each. */
static inline void slice_of(struct pair *p, int first, int T, bool singles)
{
	int32_t ids[T_MAX + 1];

	for (struct drive *d : { &p->cpu, &p->gpu }) {
		for (int t = 0; t <= T; t++)
			ids[t] = (first + t) * 31 % 200;
		if (singles) {
			for (int t = 0; t < T; t++) {
				drive_begin(d, t, NULL);
				drive_range(d, t, 0,
					20);  /* all read what slot 0 stored; each stores its own place */
				drive_row(d, t, first + t, ids + t, 1, 1, 1);
			}
		} else {
			drive_begin(d, 0, NULL);
			drive_range(d, 0, 0, 20);
			drive_row(d, 0, first, ids, T, T - 1, 1);
		}
	}
	truth_slice(&p->cpu);
	gpu_slice(p);
	clear(p->cpu.batch);
	/* the CUDA batch's rows are looked at no more; results go to its arrays */
	clear(p->gpu.batch);
}

static inline void fill(float *x, int n, uint32_t seed)
{
	for (int i = 0; i < n; i++) {
		uint32_t u;

		seed = seed * 1664525u + 1013904223u;
		x[i] = ((float)(seed >> 8) / (1 << 23) - 1) * (i % 37 == 5 ? 8.0f : 1.5f);
		memcpy(&u, &x[i], 4); /* what bf16 can hold: both begin with the same */
		u &= 0xffff0000;
		memcpy(&x[i], &u, 4);
	}
}

static inline void put_both(struct pair *p, enum place at, int T, uint32_t seed)
{
	size_t n = (size_t)T * (size_t)truth_width(&p->cpu, at);
	std::unique_ptr<float[]> x(new float[n]);

	fill(x.get(), (int)n, seed);
	cpu_ops.put(truth_dev(&p->cpu), at, x.get(), T);
	put(gpu_dev(p), at, x.get(), T);
}

/* Root mean square of the difference over that of the truth, worst row; a NaN is worst of all. */
static inline void compare(struct pair *p, const char *verb, enum place at, int T, double bound)
{
	int n = truth_width(&p->cpu, at);
	std::unique_ptr<float[]> a(new float[T * n]), b(new float[T * n]);

	cpu_ops.get(truth_dev(&p->cpu), at, a.get(), T);
	get(gpu_dev(p), at, b.get(), T);
	if (gpu_dev(p)->fault.lost)
		fail_msg("%s: %s; %s", verb, gpu_dev(p)->fault.why, emu_fault() ? emu_fault() : "");
	for (int t = 0; t < T; t++) {
		double diff = 0, size = 0;

		for (int i = t * n; i < (t + 1) * n; i++) {
			diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
			size += (double)a[i] * a[i];
		}
		within(verb, sqrt(diff / size), bound, "row %d of %d%s", t, T, emu_reversed ? ", reversed" : "");
	}
}

/* ---- whole batches ---------------------------------------------------------------------- */

struct answer { struct sr_result result[200]; struct sr_top top[200][SR_TOP_MAX]; int n; };

static inline void keep(struct answer *a, const struct drive *d, int n)
{
	memcpy(a->result + a->n, d->batch->result, (size_t)n * sizeof(*a->result));
	memcpy(a->top + a->n, d->batch->top, (size_t)n * sizeof(*a->top));
	a->n += n;
}

/* A prompt in two chunks, scored, beside decoding ones; then steps of all together. */
static inline void converse(struct drive *d, struct answer *a)
{
	int32_t text[100], own[] = { 40, 41, 42, 43, 44, 45, 46, 47, 48, 49 };

	a->n = 0;
	for (int i = 0; i < 100; i++)
		text[i] = (i * i * 7 + i * 3) % 200;
	drive_begin(d, 0, NULL);
	drive_range(d, 0, 5, 9);
	drive_begin(d, 1, NULL);
	drive_blocks(d, 1, 0, own, 10);
	drive_row(d, 1, 0, text + 3, 1, 0, 1);
	drive_row(d, 0, 0, text, 70, 70, 0);
	drive_step(d);
	keep(a, d, 71);
	drive_row(d, 1, 1, NULL, 1, 0, 1);
	drive_row(d, 0, 70, text + 70, 30, 0, 1);
	d->batch->row[1].n_top = 5;
	drive_step(d);
	keep(a, d, 2);
	for (int i = 0; i < 12; i++) {
		drive_row(d, 0, 100 + i, NULL, 1, 0, 1);
		drive_row(d, 1, 2 + i, NULL, 1, 0, 1);
		drive_step(d);
		keep(a, d, 2);
	}
}

/* Greedy tokens of one sequence, every second result from `i`: how many are the same.  They may differ
 * only where the best two were nearly equal; later tokens then prove nothing. */
static inline int same_tokens(const struct answer *a, const struct answer *b, int i, const char *what)
{
	int same = 0;

	for (; i < a->n; i += 2, same++) {
		double off = fabs((double)a->result[i].logprob - b->result[i].logprob);

		if (!(off < 0.15))
			fail_msg("%s, result %d: token %d at %f, but %d at %f", what, i, a->result[i].id,
				(double)a->result[i].logprob,
				b->result[i].id, (double)b->result[i].logprob);
		if (a->result[i].id != b->result[i].id)
			break;
	}
	return same;
}

#endif
