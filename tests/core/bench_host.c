/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* bench_host.c - what everything but the computation costs: the daemon's parts in this process, over
 * the null device.
 *
 *	bench_host [FILE.jsonl]      exit 1 if a figure is below its floor
 *
 * CPU of a step: clients_take, sched_step, clients_flush and clients_chores: plan, launch, reap and the
 * records in the clients' rings, without the time inside the null device.  All rows have the
 * same length, so each takes a block in the same step, one step in BLOCK.  Those steps have a median of
 * their own, weighted by how often they come.
 *
 * Tokens per second: the loop in one thread, polling clients in another, every token counted where it
 * arrives.  If both threads had less than two whole cores, other programs ran and the figure is about
 * those.  System calls are counted in both (tests/rig/syscalls.h).
 *
 * Guided answers: the same over a device that takes PACE_US a step, once with every answer guided by
 * masks, once with none.  The client gives the mask for the next token when it reads a token.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <x86intrin.h>

#include "core/clients/clients.h"
#include "core/instance/io.h"
#include "core/kv/kv.h"
#include "core/instance/log.h"
#include "core/sched/sched.h"
#include "kernels/model.h"
#include "kernels/null/null.h"
#include "shmring/slipring.h"
#include "tests/rig/bench_report.h"
#include "tests/rig/syscalls.h"

#define VOCAB   50000
#define CONTEXT 4096
#define BLOCK   16
#define PROMPT  100
#define SLOTS   256
#define CONNS   8
#define STEPS   1600
#define WINDOW  250000000ull          /* ns of a round of the second part */
#define PACE_US 10000                 /* about a step of 256 rows of 8B in bf16 on an H200 */

#define MUST(x) do { if (!(x)) { fprintf(stderr, "bench_host.c:%d: %s\n", __LINE__, #x); exit(1); } } while (0)

static char path[64];
static struct stats_page page;
static struct counters counters;
static struct io *io;
static struct clients *cl;
static struct sched *s;
static struct kv *kv;
static struct sr_backend *b;
static uint64_t device_ticks;         /* spent inside the device */
static struct sr_backend_ops ops;     /* the null device's, with a clock */

static int timed_launch(struct sr_backend *be, int32_t i)
{
	uint64_t t = __rdtsc();
	int r = sr_null_ops()->launch(be, i);

	device_ticks += __rdtsc() - t;
	return r;
}

static int timed_poll(struct sr_backend *be, int32_t i)
{
	uint64_t t = __rdtsc();
	int r = sr_null_ops()->poll(be, i);

	device_ticks += __rdtsc() - t;
	return r;
}

static bool guided;                   /* all answers are */

static void host_open(bool timed)
{
	static struct sr_model model = { .n_vocab = VOCAB, .n_layers = 1, .n_kinds = 1,
		.kind = { { .n_kv_heads = 1, .head_dim = 1 } } };
	static const int32_t eos[] = { 7 };
	struct sr_limits lim = { .n_groups = 1, .block_tokens = BLOCK, .n_blocks = SLOTS * (CONTEXT / BLOCK + 1),
		.seq_blocks = CONTEXT / BLOCK + 1, .slots = SLOTS, .rows = SLOTS, .tokens = 32768, .scores = 512,
		.cmds = 4 * SLOTS, .words = 1 << 20, .copies = 1, .logit_rows = SLOTS,
		.masks = guided ? 4 * SLOTS : 0 };
	struct kv_config kc = { .n_blocks = lim.n_blocks, .block_tokens = BLOCK, .copies = 1, .key = { 1, 2 },
		.n_owners = 64 };
	struct sched_config sc = { .limits = lim, .counters = &counters, .vocab = VOCAB, .context = CONTEXT,
		.tenants = 64, .ids_max = 16 << 20,
		.knobs = { .max_seqs = SLOTS, .batch_tokens = 32768, .chunk_max = 32768,
		           .queue_requests = 4096, .queue_tokens = 1 << 20, .copies = 1, .quantum = 512 } };
	struct clients_config cc = { .max = 64, .max_per_uid = 64, .live = 1024, .tokens = 1 << 16, .guides = guided ? 256 : 0,
		.arena = 1 << 20, .take = 64, .gateway = (uid_t)-1, .stall_ns = 10000000000ull, .vocab = VOCAB,
		.context = CONTEXT, .eos = eos, .n_eos = 1, .counters = &counters, .stats = &page, .model_name = "null" };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sched_port port;
	char err[256];

	ops = *sr_null_ops();
	if (timed) {
		ops.launch = timed_launch;
		ops.poll = timed_poll;
	}
	snprintf(path, sizeof(path), "/tmp/slipring-bench-%d", (int)getpid());
	strcpy(a.sun_path, path);
	unlink(path);
	MUST(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 128) == 0);
	MUST(io_create(&io, 0) == 0 && clients_create(&cl, &cc, io, fd) == 0 && kv_create(&kv, &kc) == 0);
	MUST(ops.open(&b, &model, NULL, &lim, err, sizeof(err)) == 0);
	clients_port(cl, &port);
	MUST(sched_create(&s, &sc, kv, &ops, b, &port) == 0);
	clients_attach(cl, s);
}

static void host_close(void)
{
	clients_destroy(cl);
	sched_destroy(s);
	kv_destroy(kv);
	ops.close(b);
	io_destroy(io);
	unlink(path);
}

static void turn(void)
{
	uint64_t now = io_now();

	io_poll(io);
	clients_take(cl, now);
	sched_step(s, now);
	clients_flush(cl);
	clients_chores(cl);
}

/* ---- clients ---------------------------------------------------------------------------------- */

static struct sr_conn *conn[CONNS];
static _Atomic int n_conns;

static void *open_conns(void *arg)
{
	struct sr_options o = { .size = sizeof(o), .live = 256, .tokens = 1 << 14,
		.guides = guided ? 2 * SLOTS / CONNS : 0 };

	for (int i = 0; i < *(const int *)arg; i++, n_conns++)
		MUST(sr_open(&conn[i], path, &o) == 0);
	return NULL;
}

static void conns_open(int n)
{
	pthread_t t;

	n_conns = 0;
	MUST(pthread_create(&t, NULL, open_conns, &n) == 0);
	while (n_conns < n)
		turn();
	pthread_join(t, NULL);
}

static struct { uint32_t ticket, index; } answer[4096]; /* by user_data */

/* Its next token may be one of half the ids. */
static void guide(struct sr_conn *c, uint64_t user_data)
{
	static uint32_t half[(VOCAB + 31) / 32];

	if (!half[0])
		memset(half, 0x5a, sizeof(half));
	MUST(sr_guide(c, answer[user_data].ticket, answer[user_data].index++, SR_GUIDE_BITS, NULL, 0, half) == 0);
}

static void ask(struct sr_conn *c, uint32_t max_tokens)
{
	static uint32_t n;
	int32_t ids[PROMPT];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = PROMPT, .max_tokens = max_tokens,
		.flags = SR_IGNORE_EOS | SR_NO_CACHE | (guided ? SR_GUIDED : 0), .user_data = n % 4096 };

	n++;
	for (uint32_t i = 0; i < PROMPT; i++)
		ids[i] = (int32_t)((n * 7919 + i * 31) % VOCAB);
	answer[q.user_data].index = 0;
	MUST(sr_submit(c, &q, &answer[q.user_data].ticket) == 0);
	if (guided)
		guide(c, q.user_data);
}

/* Read what has come: returns tokens, counts ENDs in *ends. */
static uint64_t read_all(struct sr_conn *c, uint64_t *ends)
{
	static _Thread_local struct sr_record r[256];
	uint64_t tokens = 0;
	int n;

	while ((n = sr_poll(c, r, 256)) > 0)
		for (int i = 0; i < n; i++) {
			tokens += r[i].kind == SR_TOKEN;
			if (guided && r[i].kind == SR_TOKEN && !r[i].last)
				guide(c, r[i].user_data);
			*ends += r[i].kind == SR_END;
		}
	MUST(n == 0);
	return tokens;
}

/* ---- CPU of a step ---------------------------------------------------------------------------- */

struct cost { double plain, block, mean; };  /* us */

static struct cost step_round(int rows, int conns)
{
	static double plain[STEPS], block[STEPS];
	int n_plain = 0, n_block = 0;
	uint64_t ends = 0, begin = now_ns(), tick = __rdtsc();
	struct kv_stats was, is;
	struct sched_stats st = { 0 };
	double us;

	for (int i = 0; i < rows; i++)
		ask(conn[i % conns], STEPS + 400);
	for (; st.waiting < rows; sched_stats(s, &st)) { /* all begin in one step: reading them takes several turns */
		io_poll(io);
		clients_take(cl, io_now());
	}
	for (int i = 0; i < 300; i++) {
		turn();
		for (int k = 0; k < conns; k++)
			read_all(conn[k], &ends);
	}
	kv_stats(kv, &was);
	for (int i = 0; i < STEPS; i++) {
		uint64_t now = io_now(), t;

		io_poll(io);
		device_ticks = 0;
		t = __rdtsc();
		clients_take(cl, now);
		sched_step(s, now);
		clients_flush(cl);
		clients_chores(cl);
		t = __rdtsc() - t - device_ticks;
		sched_stats(s, &st);
		MUST(st.running == rows && st.last.rows == rows);
		kv_stats(kv, &is);
		if (is.n_held - was.n_held >= rows)
			block[n_block++] = (double)t;
		else
			plain[n_plain++] = (double)t;
		was = is;
		for (int k = 0; k < conns; k++)
			read_all(conn[k], &ends);
	}
	us = (double)(now_ns() - begin) / 1000 / (double)(__rdtsc() - tick); /* of a tick */
	MUST(ends == 0 && n_block == STEPS / BLOCK);
	while (ends < (uint64_t)rows) {
		turn();
		for (int k = 0; k < conns; k++)
			read_all(conn[k], &ends);
	}
	struct cost c = { .plain = median(plain, n_plain) * us, .block = median(block, n_block) * us };

	c.mean = (c.plain * (BLOCK - 1) + c.block) / BLOCK;
	return c;
}

static void bench_steps(int rows, int conns, double floor, double goal)
{
	char id[3][40];
	struct figure all = { id[0], "us", floor, goal, { 0 } }, plain = { id[1], "us", 0, 0, { 0 } },
		block = { id[2], "us", 0, 0, { 0 } };

	snprintf(id[0], sizeof(id[0]), "step_cpu_%d_running", rows);
	snprintf(id[1], sizeof(id[1]), "  no row takes a block");
	snprintf(id[2], sizeof(id[2]), "  every row takes a block");
	host_open(true);
	conns_open(conns);
	step_round(rows, conns);
	for (int i = 0; i < ROUNDS; i++) {
		struct cost c = step_round(rows, conns);

		all.v[i] = c.mean;
		plain.v[i] = c.plain;
		block.v[i] = c.block;
	}
	for (int i = 0; i < conns; i++)
		sr_close(conn[i]);
	host_close();
	report(&all);
	report(&plain);
	report(&block);
}

/* ---- tokens per second ------------------------------------------------------------------------ */

static _Atomic bool up, stop;
static _Atomic uint64_t received;
static _Atomic uint64_t calls[2][512];   /* of the loop, of the clients */

static void *loop(void *arg)
{
	(void)arg;
	host_open(false);                     /* here: an io belongs to the thread that made it */
	conns_open(CONNS);
	up = true;
	MUST(syscalls_count(calls[0], -1) == 0);
	while (!stop)
		turn();
	return NULL;
}

/* One thread reads all connections in turn, and sends the next request as soon as an answer ends. */
static void *poller(void *arg)
{
	uint64_t ends[CONNS] = { 0 };

	(void)arg;
	MUST(syscalls_count(calls[1], -1) == 0);
	for (int i = 0; i < SLOTS; i++)
		ask(conn[i % CONNS], 1000);
	while (!stop)
		for (int k = 0; k < CONNS; k++) {
			uint64_t tokens = read_all(conn[k], &ends[k]);

			if (tokens)
				atomic_fetch_add_explicit(&received, tokens, memory_order_relaxed);
			for (; ends[k]; ends[k]--)
				ask(conn[k], 1000);
		}
	return NULL;
}

/* The part of a core that a thread had in a round.  Less than 1: other programs ran. */
static double thread_cpu(pthread_t t)
{
	struct timespec at;
	clockid_t clock;

	MUST(pthread_getcpuclockid(t, &clock) == 0 && clock_gettime(clock, &at) == 0);
	return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

static void bench_tokens(void)
{
	struct figure cores = { "  of two cores", "", 0, 0, { 0 } };
	struct figure rate = { "tokens_end_to_end", "M/s", 2, 5, { 0 } };
	struct figure sys = { "system_calls_per_token", "calls", 0.001, 0, { 0 } };
	struct timespec pause = { 0, (long)WINDOW };
	pthread_t t[2];

	MUST(pthread_create(&t[0], NULL, loop, NULL) == 0);
	while (!up)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	MUST(pthread_create(&t[1], NULL, poller, NULL) == 0);
	nanosleep(&pause, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t at = now_ns(), n = received, c = syscalls_sum(calls[0]) + syscalls_sum(calls[1]);
		double cpu = thread_cpu(t[0]) + thread_cpu(t[1]);

		nanosleep(&pause, NULL);
		cores.v[i] = (thread_cpu(t[0]) + thread_cpu(t[1]) - cpu) / (double)(now_ns() - at);
		n = received - n;
		rate.v[i] = (double)n * 1000 / (double)(now_ns() - at);
		sys.v[i] = (double)(syscalls_sum(calls[0]) + syscalls_sum(calls[1]) - c) / (double)n;
	}
	stop = true;
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < CONNS; i++)
		sr_close(conn[i]);
	host_close();
	report(&rate);
	report(&cores);
	report(&sys);
	for (int i = 0; i < 512; i++)
		if (calls[0][i] + calls[1][i])
			printf("    system call %d: %ju by the loop, %ju by the clients\n", i, (uintmax_t)calls[0][i],
			       (uintmax_t)calls[1][i]);
}

/* The time that this thread computed, so that other programs on the machine do not count. */
static uint64_t cpu_clock(void *ctx)
{
	struct timespec t;

	(void)ctx;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Tokens a second over the paced device; loop and clients take turns in one thread.  *misses: rows that missed,
 * per token. */
static double paced(double *misses)
{
	uint64_t began, at = 0, before = 0, tokens = 0, ends[CONNS] = { 0 };
	double per_s;

	counters = (struct counters){ 0 };
	host_open(false);
	conns_open(CONNS);
	for (int i = 0; i < SLOTS; i++)
		ask(conn[i % CONNS], 1000);
	for (began = cpu_clock(NULL); cpu_clock(NULL) - began < 5 * WINDOW; ) {
		if (!at && cpu_clock(NULL) - began > WINDOW) {
			at = cpu_clock(NULL);
			before = tokens;
		}
		turn();
		for (int k = 0; k < CONNS; k++)
			tokens += read_all(conn[k], &ends[k]);
	}
	per_s = (double)(tokens - before) * 1e9 / (double)(cpu_clock(NULL) - at);
	*misses = (double)counters.guide_misses / (double)tokens;
	for (int k = 0; k < CONNS; k++) {
		MUST(ends[k] == 0);
		sr_close(conn[k]);
	}
	host_close();
	return per_s;
}

static void bench_guided(void)
{
	struct figure share = { "guided_tokens_of_unguided", "", 0.97, 1, { 0 } };
	struct figure missed = { "  misses per token", "", 0, 0, { 0 } };
	double none;

	sr_null_pace(PACE_US, 0);
	sr_null_clock(cpu_clock, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		double plain;

		guided = false;
		plain = paced(&none);
		guided = true;
		share.v[i] = paced(&missed.v[i]) / plain;
	}
	report(&share);
	report(&missed);
}

int main(int argc, char **argv)
{
	log_level_by_name("error");
	report_open("host", argc > 1 ? argv[1] : NULL);
	bench_steps(1, 1, 2, 0.5);
	bench_steps(32, CONNS, 6, 2);
	bench_steps(256, CONNS, 25, 10);
	bench_tokens();
	bench_guided();
	return report_close();
}
