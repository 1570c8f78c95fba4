/* LINK: @sched -lxxhash */
/* bench_sched.c - what the scheduler costs for each ordinary decoding row: reap, emit a record of one
 * cache line into the client's ring, plan, launch.  The device is a stub that has always finished, with
 * two batches in flight.
 *
 * Beside it, in the same rounds, the bound: only the bytes that a row must move.  It reads the result,
 * writes the record, and writes the row into the batch, in the same order of clients.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/sched/sched.h"

#define DEPTH  2
#define RING   256
#define STEPS  2000
#define ROUNDS 5

struct record { uint64_t user_data; int32_t position, id, rank; float logprob; uint32_t kind, pad[7]; };
struct client { struct record ring[RING]; uint32_t at; int64_t reserved; };

/* ---- a device that is always done -------------------------------------------------------------- */

struct sr_backend { struct sr_batch batch[DEPTH]; };

static struct sr_batch *stub_batch(struct sr_backend *b, int32_t i)
{
	return &b->batch[i];
}

static int stub_launch(struct sr_backend *b, int32_t i)
{
	(void)b;
	(void)i;
	return 0;
}

static int stub_poll(struct sr_backend *b, int32_t i)
{
	b->batch[i].end_ns++;
	return 1;
}

static void *take(size_t n, size_t size)
{
	void *p = calloc(n + 1, size);

	if (!p)
		exit(1);
	memset(p, 0, (n + 1) * size);   /* touched here, so page faults are not measured */
	return p;
}

static void stub_open(struct sr_backend *b, const struct sr_limits *l)
{
	for (int i = 0; i < DEPTH; i++) {
		struct sr_batch *t = &b->batch[i];

		t->cmd = take((size_t)l->cmds, sizeof(*t->cmd));
		t->word = take((size_t)l->words, sizeof(*t->word));
		t->row = take((size_t)l->rows, sizeof(*t->row));
		t->token = take((size_t)(l->tokens + l->rows), sizeof(*t->token));
		t->result = take((size_t)l->rows, sizeof(*t->result));
		t->top = take((size_t)l->rows * SR_TOP_MAX, sizeof(*t->top));
		t->copy = take(0, sizeof(*t->copy));
	}
}

static void stub_close(struct sr_backend *b)
{
	for (int i = 0; i < DEPTH; i++) {
		struct sr_batch *t = &b->batch[i];

		free(t->cmd);
		free(t->word);
		free(t->row);
		free(t->token);
		free(t->result);
		free(t->top);
		free(t->copy);
	}
}

static const struct sr_backend_ops stub = {
	.version = SR_BACKEND_VERSION, .depth = DEPTH, .name = "stub",
	.batch = stub_batch, .launch = stub_launch, .poll = stub_poll,
};

/* ---- rings ------------------------------------------------------------------------------------------ */

static bool port_room(void *ctx, void *client, uint32_t n)
{
	(void)ctx;
	(void)client;
	(void)n;
	return true;
}

static uint32_t port_reserve(void *ctx, void *client, uint32_t least, uint32_t most)
{
	struct client *c = client;

	(void)ctx;
	(void)least;
	c->reserved += most;
	return most;
}

static void port_release(void *ctx, void *client, uint32_t n)
{
	struct client *c = client;

	(void)ctx;
	c->reserved -= n;
}

static void port_emit(void *ctx, void *client, const struct sched_event *e)
{
	struct client *c = client;

	(void)ctx;
	c->reserved--;
	c->ring[c->at++ % RING] = (struct record){ e->user_data, e->position, e->id, e->rank, e->logprob,
						   e->kind, { 0 } };
}

/* ---- measuring ---------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, int n)
{
	qsort(v, (size_t)n, sizeof(*v), by_value);
	return v[n / 2];
}

/* One step's worth of bytes and nothing else. */
static double bare_step(const struct sr_batch *t, struct sr_row *row, struct client *c, int32_t rows,
			int32_t clients)
{
	uint64_t from = now_ns();

	for (int32_t j = 0; j < rows; j++) {
		struct client *x = &c[j % clients];
		const struct sr_result *o = &t->result[j];

		x->ring[x->at++ % RING] = (struct record){ (uint64_t)j, j, o->id, o->rank, o->logprob, 0, { 0 } };
		row[j] = (struct sr_row){ .slot = j, .first = j, .n = 1, .token = SR_LAST, .result = j,
					  .sample = 1 };
	}
	return (double)(now_ns() - from);
}

static void bench(int32_t rows, int32_t clients)
{
	static double cost[STEPS], bare[STEPS];
	const struct sr_limits l = { .n_groups = 1, .block_tokens = 16, .n_blocks = rows * 900, .seq_blocks = 900,
				     .slots = rows, .rows = rows, .tokens = 8192, .cmds = 2 * rows + 8,
				     .words = rows * 4 + 20000 };
	struct counters counters = { 0 };
	const struct sched_config cfg = {
		.counters = &counters,
		.limits = l, .vocab = 97, .context = 14000, .tenants = 3,
		.ids_max = (int64_t)rows * 16000,
		.knobs = { .max_seqs = rows, .batch_tokens = 8192, .chunk_max = 8192, .quantum = 64,
			   .queue_requests = rows * 3, .queue_tokens = 1000000 },
	};
	struct sched_port port = { .room = port_room, .reserve = port_reserve, .release = port_release,
				   .emit = port_emit };
	const struct kv_config kc = { .n_blocks = l.n_blocks, .block_tokens = 16, .key = { 1, 2 }, .n_owners = 3 };
	static const struct sched_cmd begin = { .op = SR_CMD_BEGIN };
	struct sr_backend b = { 0 };
	struct client *c = take((size_t)clients, sizeof(*c));
	struct sr_row *row = take((size_t)rows, sizeof(*row));
	struct sched_stats st;
	int32_t prompt[100];
	struct sched *s;
	struct kv *kv;
	uint64_t t = 1;

	memset(port.cost, 1, sizeof(port.cost));
	stub_open(&b, &l);
	if (kv_create(&kv, &kc) || sched_create(&s, &cfg, kv, &stub, &b, &port))
		exit(1);
	for (int32_t i = 0; i < rows; i++) {
		struct sched_request q = { .user_data = (uint64_t)i, .prompt = prompt, .n_prompt = 100,
					   .max_tokens = 13900, .cmd = &begin, .n_cmds = 1 };

		for (int32_t j = 0; j < 100; j++)
			prompt[j] = (i * 7 + j * (i + 1)) % 97;
		if (sched_admit(s, &c[i % clients], (uint64_t)(i % clients) % 3, &q, t))
			exit(1);
	}
	for (int i = 0; i < 200; i++)
		sched_step(s, t++);
	sched_stats(s, &st);
	if (st.running != rows || st.last.rows != rows)
		exit(1);
	double best = 1e9, best_bare = 1e9;

	for (int round = 0; round < ROUNDS; round++) {
		double m;

		for (int i = 0; i < STEPS; i++) {
			uint64_t from = now_ns();

			sched_step(s, t++);
			cost[i] = (double)(now_ns() - from);
			bare[i] = bare_step(&b.batch[0], row, c, rows, clients);
		}
		m = median(cost, STEPS);
		best = m < best ? m : best;
		m = median(bare, STEPS);
		best_bare = m < best_bare ? m : best_bare;
	}
	printf("%5d rows  %4d clients   %8.2f us a step  %6.1f ns a row   (bound %5.1f ns a row)\n", rows,
	       clients, best / 1000, best / rows, best_bare / rows);
	for (int32_t i = 0; i < clients; i++)
		sched_forget(s, &c[i]);
	sched_destroy(s);
	kv_destroy(kv);
	stub_close(&b);
	free(row);
	free(c);
}

int main(void)
{
	printf("scheduler: one step of decoding rows; best of %d medians of %d steps\n", ROUNDS, STEPS);
	bench(1, 1);
	bench(256, 1);
	bench(256, 64);
	bench(256, 256);
	return 0;
}
