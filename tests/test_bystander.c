/* LINK: SLIPRINGD shmring/client.c */
/* test_bystander.c - an honest client while another attacks: each rule of docs/trust.md as an attack
 * that goes on and on, and the loads that are no attack.  The whole daemon on one core; on another the
 * honest client, which asks and sleeps, and in the time that it leaves, an attacker or, to compare with,
 * a process that only computes.
 *
 *	SLIPRING_BYSTANDER=1    rounds of 0.3 s, a table; the p50 may be a tenth above nobody's, the p99 a
 *	                        tenth above the worst of nobody's rounds
 *
 * Without it the rounds are short and the limit is generous: the machine may be busy.
 */
#include <pthread.h>
#include <sched.h>

#include "tests/slipringd.h"
#include "tests/evil.h"

#define STEP_US  "300"                /* of the device: the daemon's own time shows beside it */
#define N_PROMPT 40
#define N_TOKENS 6
#define ROUNDS   9                    /* of which the median counts */

static struct home home;
static int core[2];                   /* the daemon's; everybody else's */

/* ---- attackers: in a process of their own, until killed -------------------------------------- */

static uint32_t seed = 7;

static uint32_t dice(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	return seed ^= seed << 5;
}

/* Connected, however often it takes: it may just have been dropped. */
static void join(struct evil *e, struct sr_shape want)
{
	while (!evil_try(e, home.socket, want))
		sched_yield();
}

static void nobody(void)
{
	for (volatile uint32_t n = 0;; n++)
		;
}

static void R1_wild_indices(void)
{
	struct evil e;

	for (;; evil_close(&e)) {
		struct sr_wire_request q = { .n_prompt = 1, .max_tokens = 1 };

		join(&e, small);
		evil_put(&e, &q);
		((struct sr_up *)(void *)e.up)->tokens.head = dice();
		for (int i = 0; i < 32; i++)
			*(uint32_t *)(void *)(e.up + SR_PAGE + 256 * i) = dice();
		sr_signal(e.fd);
		sched_yield();
	}
}

static void *scribble(void *arg)
{
	struct evil *e = arg;

	for (uint32_t s = 5;; s = s * 1664525 + 1013904223) {
		volatile struct sr_wire_request *r = (void *)(e->up + SR_PAGE + 256 * (s >> 8 & 31));

		r->n_prompt = s & 1 << 20 ? 4 : s >> 12;
		r->span = s & 1 << 21 ? 0 : s;
		r->n_bias = s & 1 << 22 ? 0 : s;
		((volatile int32_t *)evil_arena(e))[s >> 14 & 1023] = (int32_t)s;
	}
	return NULL;
}

static void R2_R4_memory_that_changes(void)
{
	static const struct sr_wire_request q = { .n_prompt = 4, .max_tokens = 1 };
	static struct evil e;
	pthread_t t;

	join(&e, small);
	pthread_create(&t, NULL, scribble, &e);
	for (;;) {
		evil_put(&e, &q);
		evil_read(&e);
	}
}

static void R3_R5_wrong_requests(void)
{
	struct evil e;

	for (join(&e, small);; evil_read(&e)) {
		struct sr_wire_request q = { .n_prompt = dice(), .max_tokens = dice(), .span = dice() };

		((uint8_t *)&q)[4 + dice() % 252] ^= 1;
		evil_put(&e, &q);
	}
}

static void R6_cancels_of_others(void)
{
	struct evil e;

	for (join(&e, small);;) {
		struct sr_wire_cancel w = { .op = SR_OP_CANCEL, .ticket = dice() };

		while (sr_ring_reserve(&e.cancels, 1) == 0)
			sr_ring_put(&e.cancels, &w);
		evil_wake(&e);
	}
}

static void R7_signals_without_end(void)
{
	struct evil e;

	for (join(&e, small);;)
		send(e.fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void R7_connections_without_end(void)
{
	struct evil e;

	for (;; evil_close(&e))
		join(&e, small);
}

static void R9_reads_nothing(void)
{
	struct sr_wire_request q = { .n_prompt = 1, .max_tokens = 2000, .flags = SR_IGNORE_EOS };
	struct evil e;

	for (join(&e, small);; sched_yield())
		evil_put(&e, &q);
}

static void R10_dies(void)
{
	struct sr_wire_request q = { .n_prompt = 4, .max_tokens = 100 };

	for (;;) {
		pid_t pid = fork();

		if (!pid) {
			struct evil e;

			for (join(&e, small);; evil_read(&e))
				evil_put(&e, &q);
		}
		usleep(dice() % 2000);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

static void R11_descriptors(void)
{
	static _Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))];
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION };
	struct iovec iov = { &h, sizeof(h) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof(control) };
	struct cmsghdr *cm = CMSG_FIRSTHDR(&msg);

	for (;;) {
		int fd = dial(home.socket);

		if (fd < 0)
			continue;
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(253 * sizeof(int));
		for (int i = 0; i < 253; i++)
			memcpy(CMSG_DATA(cm) + (size_t)i * sizeof(int), &fd, sizeof(fd));
		sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
		close(fd);
	}
}

static void R12_half_a_handshake(void)
{
	for (int open[8] = { 0 }, i = 0;; i = (i + 1) % 8) {
		if (open[i] > 0)
			close(open[i]);
		open[i] = dial(home.socket);
		if (i % 2)
			send(open[i], "half", 4, MSG_DONTWAIT | MSG_NOSIGNAL);
		sched_yield();
	}
}

static void R14_zeros(void)
{
	struct sr_wire_request q = { .n_prompt = 4, .max_tokens = 1 };
	struct evil e;

	for (join(&e, small);; evil_read(&e)) {
		evil_put(&e, &q);
		fallocate(e.up_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)SR_UP_BYTES(&e.shape));
		memset(e.up, 0, SR_UP_BYTES(&e.shape));
	}
}

/* No attacks: somebody who asks for as much as he may. */
static void load(uint32_t n_prompt, uint32_t max_tokens)
{
	struct sr_wire_request q = { .n_prompt = n_prompt, .max_tokens = max_tokens,
		.flags = SR_IGNORE_EOS | SR_NO_CACHE };
	struct evil e;

	for (join(&e, (struct sr_shape){ 128, 4096, 65536 });; evil_read(&e))
		while (evil_put(&e, &q))
			;
}

static void load_of_short_requests(void) { load(4, 1); }
static void load_of_long_answers(void) { load(4, 1000); }
static void load_of_long_prompts(void) { load(3000, 1); }

static const struct attack {
	const char *name;
	void (*run)(void);
	bool load;                    /* shares the device with us: it only must not shut us out */
} attacks[] = {
	{ "nobody", nobody, false },
#define A(f) { #f, f, false }
	A(R1_wild_indices), A(R2_R4_memory_that_changes), A(R3_R5_wrong_requests), A(R6_cancels_of_others),
	A(R7_signals_without_end), A(R7_connections_without_end), A(R9_reads_nothing), A(R10_dies),
	A(R11_descriptors), A(R12_half_a_handshake), A(R14_zeros),
#define L(f) { #f, f, true }
	L(load_of_short_requests), L(load_of_long_answers), L(load_of_long_prompts),
};
#define N_ATTACKS ((int)(sizeof(attacks) / sizeof(attacks[0])))

/* ---- the bystander --------------------------------------------------------------------------- */

static int32_t right[N_TOKENS];       /* what it is always answered */

/* One request: how long it took. */
static uint64_t ask(struct sr_conn *c, int32_t out[N_TOKENS])
{
	static int32_t ids[N_PROMPT] = { 1, 2, 3, 5, 8, 13, 21 };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = N_PROMPT, .max_tokens = N_TOKENS,
		.flags = SR_IGNORE_EOS };
	struct sr_token t = { 0 };
	uint64_t begin = io_now();
	int e;

	assert_int_equal(sr_submit(c, &q, NULL), 0);
	while (t.kind != SR_END) {
		if ((e = sr_next(c, &t)) == 0)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 5000) > 0);
		else if (t.kind == SR_TOKEN)
			out[t.index] = t.id;
		assert_true(e >= 0);
	}
	assert_int_equal(t.end.finish, SR_LENGTH);
	return io_now() - begin;
}

static int order(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void pin(int c)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(c, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* For so long beside that attacker: the p50 and p99 of our requests, in us. */
static void beside(const struct attack *a, struct sr_conn *c, unsigned ms, double *p50, double *p99)
{
	static uint64_t took[20000];
	struct sched_param rest = { 0 };
	uint64_t until, rtt;
	int32_t said[N_TOKENS];
	size_t n = 0;
	pid_t pid = fork();

	if (!pid) {
		setpgid(0, 0);
		alarm(60);
		sched_setscheduler(0, SCHED_IDLE, &rest); /* what we leave: to be compared like with like */
		a->run();
		_exit(0);
	}
	setpgid(pid, pid);
	usleep(10000);
	for (until = io_now() + ms * 1000000ull; io_now() < until && n < 20000; n++) {
		took[n] = ask(c, said);
		assert_memory_equal(said, right, sizeof(right));
	}
	kill(-pid, SIGKILL);
	waitpid(pid, NULL, 0);
	qsort(took, n, sizeof(took[0]), order);
	*p50 = (double)took[n / 2] / 1000;
	*p99 = (double)took[n * 99 / 100] / 1000;
	usleep(20000);                        /* it is buried */
	assert_int_equal(sr_ping(c, &rtt, 5000), 0);
}

/* Sorts v. */
static double median_of(double *v, int n)
{
	for (int i = 1; i < n; i++)
		for (int k = i; k > 0 && v[k] < v[k - 1]; k--) {
			double t = v[k];

			v[k] = v[k - 1];
			v[k - 1] = t;
		}
	return v[n / 2];
}

static void daemon_core(void) { pin(core[0]); }

static void a_bystander_is_served_as_before(void **state)
{
	static double p50[N_ATTACKS][ROUNDS], p99[N_ATTACKS][ROUNDS];
	bool measure = getenv("SLIPRING_BYSTANDER");
	int rounds = measure ? ROUNDS : 1, bad = 0;
	double base, band;
	struct sr_conn *c;
	pid_t pid;

	(void)state;
	pid = home_start(&home, daemon_core, STEP_US);
	c = home_connect(&home, 0, 0);
	pin(core[1]);
	ask(c, right);
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < N_ATTACKS; i++)
			beside(&attacks[i], c, measure ? 300 : 100, &p50[i][r], &p99[i][r]);
	base = median_of(p99[0], rounds);
	band = p99[0][rounds - 1];            /* the worst of its rounds */
	for (int i = 0; i < N_ATTACKS; i++) {
		double m = median_of(p99[i], rounds), *v = p99[i]; /* sorted now */
		double mid = median_of(p50[i], rounds);
		bool over = measure && !attacks[i].load ? m > band * 1.1 || mid > p50[0][rounds / 2] * 1.1 :
		            m > base * 20 + 2000000;

		if (measure || over)
			print_message("%-28s p50 %7.0f us, p99 %7.0f us (%.0f to %.0f), %.2f of nobody's%s\n",
			              attacks[i].name, mid, m, v[0], v[rounds - 1], m / base,
			              over ? "  TOO SLOW" : "");
		bad += over;
	}
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
	assert_int_equal(bad, 0);
}

static int setup(void **state)
{
	cpu_set_t set;
	int n = 0;

	(void)state;
	sched_getaffinity(0, sizeof(set), &set);
	for (int c = 0; c < CPU_SETSIZE && n < 2; c++)
		if (CPU_ISSET(c, &set))
			core[n++] = c;
	if (n < 2)
		core[1] = core[0];
	home_make(&home);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	home_remove(&home);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_bystander_is_served_as_before) };

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, setup, teardown);
}
