/* LINK: @slipringd shmring/client.c */
/* test_bystander.c - an honest client while another attacks: each rule of docs/trust.md as an attack
 * without end, and heavy loads that are no attack.  The whole daemon runs on one core.  On another core an
 * honest client asks and sleeps; in the time that it leaves runs an attacker or, as a control, a process that
 * does similar work without the daemon: it writes memory or makes sockets of its own.
 *
 * Machines are not quiet for long, so the two are compared in short windows that alternate.  A pair of
 * windows is left out if in one of them a hypervisor took time from our cores (/proc/stat), or another
 * program from the daemon's (/proc/PID/schedstat).  The table has p50 and p99 over all requests of the pairs
 * that stay, and the 95 % interval of the ratio of the two p99 (bootstrap over pairs, because requests of
 * one window are not independent).
 *
 *	SLIPRING_BYSTANDER=all    at least PAIRS pairs each, more while undecided; prints a table.  An attack
 *	                          fails if its whole interval lies above MOST, or its p50 does
*	SLIPRING_BYSTANDER=R2     only attacks with this in their name
 *
 * Without it there are two pairs and the limit is generous: the machine may be busy.
 */
#include <pthread.h>
#include <sched.h>

#include "tests/rig/slipringd.h"
#include "tests/rig/evil.h"

#define STEP_US  "300"                /* of the device: short enough to show the daemon's own time */
#define N_PROMPT 40
#define N_TOKENS 3
#define MOST     1.1                  /* of the figure beside the control, which only computes */
#define PAIRS    30
#define PAIRS_MAX 120
#define WINDOW_MS 60
#define DELAY_NS 1000000              /* on a quiet machine the daemon waits a tenth of this in a window */
#define DRAWS    400                  /* of the bootstrap */

static int core[2];                   /* the daemon's; all others' */

/* ---- attackers: in a process of their own, until killed -------------------------------------- */

static uint32_t seed = 7;

static uint32_t dice(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	return seed ^= seed << 5;
}

/* Connect, trying again as often as needed: the last connection may just have been dropped. */
static void join(struct evil *e, struct sr_shape want)
{
	while (!evil_try(e, home.socket, want))
		sched_yield();
}

/* The controls keep that core, its caches or the kernel as busy as an attacker would, without the daemon. */
static void own_memory(void)
{
	static volatile uint32_t memory[4096];        /* 16 KiB: the first cache */

	for (uint32_t n = 5;; n = n * 1664525 + 1013904223)
		memory[n >> 20] += n;
}

/* Connect as often as a busy daemon accepts; sleep in between. */
static void own_sockets(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "slipring-%d", (int)getpid()); /* it has no file */
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 8) < 0)
		abort();
	for (;; usleep(4000)) {
		int one = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

		if (connect(one, (struct sockaddr *)&a, sizeof(a)) == 0) {
			send(one, "own", 3, MSG_DONTWAIT | MSG_NOSIGNAL);
			close(accept(fd, NULL, NULL));
		}
		close(one);
	}
}

static void own_signals(void)
{
	int pair[2];
	char byte;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) < 0)
		abort();
	for (;;)
		if (send(pair[0], "", 1, MSG_NOSIGNAL) < 0)
			while (recv(pair[1], &byte, 1, 0) == 1)
				;
}

static void R1_wild_indices(void)
{
	struct evil e;

	for (;; evil_close(&e)) {
		struct sr_wire_request q = { .flags = 0 }; /* a computed request would be a load */

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

		r->span[0].n = s & 1 << 20 ? 4 : s >> 12;
		r->at = s & 1 << 21 ? 0 : s;
		r->span[1].kind = s & 1 << 22 ? 0 : SR_SPAN_BIAS;
		r->span[1].n = s & 1 << 22 ? 0 : s;
		((volatile int32_t *)evil_arena(e))[s >> 14 & 1023] = (int32_t)s;
	}
	return NULL;
}

static void R2_R4_memory_that_changes(void)
{
	static const struct sr_wire_request q = { ASKS(4, 1) };
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
		struct sr_wire_request q = { ASKS(dice(), dice()), .at = dice() };

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

/* As much memory as a client can get: 23 MiB to make and to free. */
static void R7_large_connections(void)
{
	struct evil e;

	for (;; evil_close(&e))
		join(&e, (struct sr_shape){ 1u << 13, 1u << 16, 16u << 20, 0, 0 });
}

/* Long prompts, wrong in the last id: copied and checked in vain; all use one prompt. */
static void R8_wrong_at_the_end(void)
{
	struct sr_wire_request q = { ASKS(4000, 1) };
	struct evil e;

	join(&e, (struct sr_shape){ 128, 4096, 65536, 0, 0 });
	((int32_t *)evil_arena(&e))[q.span[0].n - 1] = -1;
	for (;; evil_read(&e))
		while (evil_put(&e, &q))
			;
}

/* Masks for requests that it does not have: each is copied, and then ignored. */
static void R6_guides_without_end(void)
{
	struct evil e;

	for (join(&e, small_guided);; evil_read(&e))
		for (uint32_t i = 0; i < 16; i++)
			evil_guide(&e, &(struct sr_wire_guide){ .ticket = 0x80000000u + i, .place = (uint16_t)i });
}

/* Guides that are out of order: each costs a connection. */
static void R5_wrong_guides(void)
{
	struct sr_wire_request q = { ASKS(4, 100), .flags = SR_GUIDED | SR_IGNORE_EOS };
	struct evil e;

	for (;; evil_close(&e)) {
		join(&e, small_guided);
		evil_put(&e, &q);
		evil_guide(&e, &(struct sr_wire_guide){ .index = dice() | 1, .kind = SR_GUIDE_FREE });
		sched_yield();
	}
}

/* Eight answers that nobody guides hold their slots until others want them. */
static void R9_guides_nothing(void)
{
	struct sr_wire_request q = { ASKS(4, 1000), .flags = SR_GUIDED | SR_IGNORE_EOS };
	struct evil e;

	for (join(&e, small_guided);; evil_read(&e)) {
		evil_put(&e, &q);
		sched_yield();
	}
}

static void R9_reads_nothing(void)
{
	struct sr_wire_request q = { ASKS(1, 2000), .flags = SR_IGNORE_EOS };
	struct evil e;

	for (join(&e, small);; sched_yield())
		evil_put(&e, &q);
}

static void R10_dies(void)
{
	struct sr_wire_request q = { ASKS(4, 100) };

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
	struct sr_wire_request q = { ASKS(4, 1) };
	struct evil e;

	for (join(&e, small);; evil_read(&e)) {
		evil_put(&e, &q);
		fallocate(e.up_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)SR_UP_BYTES(&e.shape, 0));
		memset(e.up, 0, SR_UP_BYTES(&e.shape, 0));
	}
}

/* No attacks: a client that asks for as much as it may. */
static void load(uint32_t n_prompt, uint32_t max_tokens)
{
	struct sr_wire_request q = { ASKS(n_prompt, max_tokens),
		.flags = SR_IGNORE_EOS | SR_NO_CACHE };
	struct evil e;

	for (join(&e, (struct sr_shape){ 128, 4096, 65536, 0, 0 });; evil_read(&e))
		while (evil_put(&e, &q))
			;
}

/* Eight answers, each token guided as soon as the one before is there; half of the guides are masks. */
static void load_of_guided_answers(void)
{
	struct sr_wire_request q = { ASKS(4, 200), .flags = SR_GUIDED | SR_IGNORE_EOS };
	struct sr_record r;
	struct evil e;

	join(&e, small_guided);
	for (uint32_t i = 0; i < 16; i++)
		memset(evil_mask(&e, i), 0xff, sr_mask_bytes(e.vocab));
	for (;;) {
		q.user_data = e.requests.mine;
		if (evil_put(&e, &q))
			evil_guide(&e, &(struct sr_wire_guide){ .ticket = (uint32_t)q.user_data, .kind = SR_GUIDE_FREE });
		while (sr_ring_take(&e.tokens, &r) == 1)
			if (r.kind == SR_TOKEN)
				evil_guide(&e, &(struct sr_wire_guide){ .ticket = (uint32_t)r.user_data,
					.index = r.u.token.index + 1, .kind = r.u.token.id % 2 ? SR_GUIDE_FREE : SR_GUIDE_BITS });
		sr_ring_done(&e.tokens);
		evil_wake(&e);
	}
}

static void load_of_short_requests(void) { load(4, 1); }
static void load_of_long_answers(void) { load(4, 1000); }
static void load_of_long_prompts(void) { load(3000, 1); }

/* The requests of R10's clients, from one that lives on: the difference is their deaths. */
static void one_who_lives(void)
{
	struct sr_wire_request q = { ASKS(4, 100) };
	struct evil e;

	for (join(&e, small);; evil_read(&e))
		evil_put(&e, &q);
}

static const struct attack {
	const char *name;
	void (*run)(void), (*control)(void);
	bool load;                    /* shares the device: it must only not shut others out */
} attacks[] = {
#define A(f, control) { #f, f, control, false }
	A(R1_wild_indices, own_sockets), A(R2_R4_memory_that_changes, own_memory),
	A(R3_R5_wrong_requests, own_memory), A(R6_cancels_of_others, own_memory),
	A(R7_signals_without_end, own_signals), A(R7_connections_without_end, own_sockets),
	A(R7_large_connections, own_sockets), A(R8_wrong_at_the_end, own_memory),
	A(R5_wrong_guides, own_sockets), A(R6_guides_without_end, own_memory), A(R9_guides_nothing, own_memory),
	A(R9_reads_nothing, own_memory), A(R10_dies, one_who_lives), A(R11_descriptors, own_sockets),
	A(R12_half_a_handshake, own_sockets), A(R14_zeros, own_memory),
#define L(f) { #f, f, own_memory, true }
	L(load_of_guided_answers), L(load_of_short_requests), L(load_of_long_answers), L(load_of_long_prompts),
};
#define N_ATTACKS ((int)(sizeof(attacks) / sizeof(attacks[0])))

/* ---- the bystander --------------------------------------------------------------------------- */

static int32_t right[N_TOKENS];       /* the answer it always gets */

/* One request.  Returns the time it took. */
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
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 20000) > 0);
		else if (t.kind == SR_TOKEN)
			out[t.index] = t.id;
		assert_true(e >= 0);
	}
	assert_int_equal(t.end.finish, SR_LENGTH);
	return io_now() - begin;
}

static int order(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void pin(int c)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(c, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

/* Time that a hypervisor took from our two cores, in ticks. */
static uint64_t stolen(void)
{
	unsigned long long n, sum = 0;
	char line[512];
	FILE *f = fopen("/proc/stat", "r");
	int c;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "cpu%d %*u %*u %*u %*u %*u %*u %*u %llu", &c, &n) == 2 &&
		    (c == core[0] || c == core[1]))
			sum += n;
	if (f)
		fclose(f);
	return sum;
}

/* How long the daemon waited for its core, in ns.  Attackers cannot run there: another program did. */
static uint64_t waited(pid_t daemon)
{
	unsigned long long run, wait = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)daemon);
	f = fopen(path, "r");
	if (f && fscanf(f, "%llu %llu", &run, &wait) != 2)
		wait = 0;
	if (f)
		fclose(f);
	return wait;
}

#define SAMPLES 400                   /* of one window, at most */
struct window { uint32_t n, ns[SAMPLES]; };
struct pair { struct window control, attack; };

/* Times of our requests beside this attacker.  false: another program took our time. */
static bool look(struct window *w, void (*run)(void), struct sr_conn *c, pid_t daemon)
{
	struct sched_param rest = { 0 };
	uint64_t until, rtt, before, delay;
	int32_t said[N_TOKENS];
	pid_t pid = fork();

	if (!pid) {
		setpgid(0, 0);
		alarm(60);
		sched_setscheduler(0, SCHED_IDLE, &rest); /* only the time that we leave, for both alike */
		run();
		_exit(0);
	}
	setpgid(pid, pid);
	usleep(8000);
	delay = waited(daemon);
	before = stolen();
	until = io_now() + WINDOW_MS * 1000000ull;
	for (w->n = 0; io_now() < until && w->n < SAMPLES; w->n++) {
		w->ns[w->n] = (uint32_t)ask(c, said);
		assert_memory_equal(said, right, sizeof(right));
	}
	before = stolen() - before;
	delay = waited(daemon) - delay;
	kill(-pid, SIGKILL);
	waitpid(pid, NULL, 0);
	usleep(8000);                         /* the daemon frees it */
	assert_int_equal(sr_ping(c, &rtt, 20000), 0);
	return before == 0 && delay < DELAY_NS;
}

/* The p50 and p99 of the windows of those pairs, pooled; in us. */
static void pool(const struct pair *p, const int *which, int n, bool attack, double *p50, double *p99)
{
	static uint32_t all[PAIRS_MAX * SAMPLES];
	size_t k = 0;

	for (int i = 0; i < n; i++) {
		const struct window *w = attack ? &p[which[i]].attack : &p[which[i]].control;

		memcpy(&all[k], w->ns, w->n * sizeof(w->ns[0]));
		k += w->n;
	}
	qsort(all, k, sizeof(all[0]), order);
	*p50 = all[k / 2] / 1000.0;
	*p99 = all[k * 99 / 100] / 1000.0;
}

struct result { double p50[2], p99[2], low, high; int pairs, left_out; };

static int rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The interval of the ratio of p99: bootstrap over the pairs, with the same seed each time. */
static void band(const struct pair *p, struct result *r)
{
	static double quotient[DRAWS];
	int which[PAIRS_MAX];
	uint32_t s = 2463534242;

	for (int i = 0; i < r->pairs; i++)
		which[i] = i;
	for (int a = 0; a < 2; a++)
		pool(p, which, r->pairs, a, &r->p50[a], &r->p99[a]);
	for (int d = 0; d < DRAWS; d++) {
		double mid, with, without;

		for (int i = 0; i < r->pairs; i++)
			which[i] = (int)(xorshift(&s) % (uint32_t)r->pairs);
		pool(p, which, r->pairs, true, &mid, &with);
		pool(p, which, r->pairs, false, &mid, &without);
		quotient[d] = with / without;
	}
	qsort(quotient, DRAWS, sizeof(quotient[0]), rising);
	r->low = quotient[DRAWS / 40];
	r->high = quotient[DRAWS - 1 - DRAWS / 40];
}

/* Pairs until the interval of p99 lies on one side of MOST: at least PAIRS, at most PAIRS_MAX. */
static void beside(const struct attack *a, struct sr_conn *c, pid_t daemon, bool measure, struct result *r)
{
	static struct pair p[PAIRS_MAX];
	int most = measure ? PAIRS_MAX : 2;

	*r = (struct result){ .low = 0 };
	for (int i = 0; r->pairs < most && i < 2 * most; i++) {
		struct pair *w = &p[r->pairs];
		bool well = true;

		for (int k = 0; k < 2; k++)
			well &= (i + k) % 2 ? look(&w->attack, a->run, c, daemon) :
			        look(&w->control, a->control, c, daemon);
		r->left_out += measure && !well;
		r->pairs += well || !measure;
		if (r->pairs >= PAIRS && r->pairs % 10 == 0 && (well || !measure)) {
			band(p, r);
			if (a->load || r->high <= MOST || r->low > MOST)
				return;
		}
	}
	if (r->pairs)
		band(p, r);
}

static void daemon_core(void) { pin(core[0]); }

/* A fresh daemon for each attack.  true: too slow. */
static bool compare(const struct attack *a, bool measure)
{
	pid_t pid = home_start(&home, daemon_core, STEP_US);
	struct sr_conn *c = home_connect(&home, 0, 0);
	struct result r;
	bool over;

	pin(core[1]);
	ask(c, right);
	beside(a, c, pid, measure, &r);
	over = !r.pairs ? false : !measure ? r.p99[1] > r.p99[0] * 20 + (a->load ? 10e6 : 2e6) :
	       r.pairs >= PAIRS && !a->load && (r.low > MOST || r.p50[1] > r.p50[0] * MOST);
	if (!r.pairs)
		print_message("SKIP %s: the machine was never quiet for a pair of windows\n", a->name);
	else if (measure || over)
		print_message("%-27s p50 %7.0f us, %6.2f of the control's; p99 %7.0f us, %6.2f (%.2f to %.2f); "
		              "%3d pairs, %2d left out%s\n", a->name, r.p50[1], r.p50[1] / r.p50[0], r.p99[1],
		              r.p99[1] / r.p99[0], r.low, r.high, r.pairs, r.left_out,
		              over ? "  TOO SLOW" : r.pairs < PAIRS ? "  TOO BUSY A MACHINE" :
		              measure && !a->load && r.high > MOST ? "  cannot be told" : "");
	sr_close(c);
	assert_int_equal(home_stop(pid), 0);
	return over;
}

static void a_bystander_is_served_as_before(void **state)
{
	const char *env = getenv("SLIPRING_BYSTANDER");
	bool measure = env && *env;
	int bad = 0;

	(void)state;
	for (const struct attack *a = attacks; a < attacks + N_ATTACKS; a++)
		if (!measure || !strcmp(env, "all") || strstr(a->name, env))
			bad += compare(a, measure);
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
	if (getenv("SLIPRING_BYSTANDER"))
		home.run_mode = "dedicated";  /* as beside a GPU: it polls, and its core never goes idle */
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(a_bystander_is_served_as_before) };

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, setup, home_teardown);
}
