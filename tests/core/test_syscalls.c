/* LINK: @slipringd shmring/client.c */
/* test_syscalls.c - while tokens flow to a client that polls, neither the daemon nor the client makes
 * a system call for them.  The kernel counts: tests/rig/syscalls.h.
 */
#include <pthread.h>

#include "tests/rig/slipringd.h"
#include "tests/rig/syscalls.h"

#define STREAMS 32
#define TOKENS  10000                 /* in a window */
#define WINDOWS 10

static _Atomic uint64_t (*calls)[512];     /* of the daemon, of the client */

/* The null device sleeps where another would compute. */
static void in_child(void)
{
	if (syscalls_count(calls[0], SYS_clock_nanosleep) < 0)
		_exit(98);
}

static void ask(struct sr_conn *c)
{
	static const int32_t ids[20] = { 1, 2, 3 };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 20, .max_tokens = 4000,
		.flags = SR_IGNORE_EOS };

	assert_int_equal(sr_submit(c, &q, NULL), 0);
}

/* Poll until n tokens have come. */
static bool read_tokens(struct sr_conn *c, uint64_t n)
{
	static struct sr_record r[64];
	uint64_t until = io_now() + 20 * SECOND;

	for (uint64_t have = 0; have < n;) {
		int e = sr_poll(c, r, 64);

		if (e < 0 || (e == 0 && io_now() > until))
			return false;
		for (int i = 0; i < e; i++) {
			have += r[i].kind == SR_TOKEN;
			if (r[i].kind == SR_END)
				ask(c);
		}
	}
	return true;
}

/* A window: the calls of both while TOKENS tokens came.  A thread that waits for a core does not poll, so
 * the other side goes to sleep: of several windows the quietest counts. */
struct window { uint64_t calls[2][512], sum[2]; };
struct measured { struct sr_conn *c; struct window w[WINDOWS], *best; bool ok; };

static void window(struct measured *m, struct window *w)
{
	for (int who = 0; who < 2; who++)
		for (int i = 0; i < 512; i++)
			w->calls[who][i] = atomic_load(&calls[who][i]);
	m->ok = read_tokens(m->c, TOKENS);
	for (int who = 0; who < 2; who++)
		for (int i = 0; i < 512; i++) {
			w->calls[who][i] = atomic_load(&calls[who][i]) - w->calls[who][i];
			w->sum[who] += w->calls[who][i];
		}
	if (!m->best || w->sum[0] + w->sum[1] < m->best->sum[0] + m->best->sum[1])
		m->best = w;
}

static void *client(void *arg)
{
	struct measured *m = arg;

	for (int i = 0; i < STREAMS; i++)
		ask(m->c);
	m->ok = syscalls_count(calls[1], -1) == 0 && read_tokens(m->c, 2000); /* under way */
	for (int i = 0; i < WINDOWS && m->ok && (!m->best || m->best->sum[0] + m->best->sum[1]); i++)
		window(m, &m->w[i]);
	return NULL;
}

static void show(const char *who, const uint64_t *n)
{
	for (int i = 0; i < 512; i++)
		if (n[i])
			print_message("  %s: system call %d, %ju times\n", who, i, (uintmax_t)n[i]);
}

/* A timer or a check of a silent peer may fall into the window: one call in a thousand tokens. */
static void no_call_per_token(const char *step_us)
{
	static struct measured m;
	pthread_t t;
	pid_t pid;

	if (!SYSCALLS_COUNTABLE) {
		print_message("SKIP: system calls can be counted only on x86-64, without sanitizers\n");
		skip();
	}
	memset(&m, 0, sizeof(m));
	calls = home_share(2 * sizeof(calls[0]));
	pid = home_start(&home, in_child, step_us);
	m.c = home_connect(&home, STREAMS, 1 << 16);
	assert_int_equal(pthread_create(&t, NULL, client, &m), 0);
	pthread_join(t, NULL);
	sr_close(m.c);
	assert_int_equal(home_stop(pid), 0);
	assert_non_null(m.best);
	print_message("step of %s us, the quietest of up to %d times %d tokens: %ju calls by the daemon, %ju by the client\n",
	              step_us, WINDOWS, TOKENS, (uintmax_t)m.best->sum[0], (uintmax_t)m.best->sum[1]);
	show("daemon", m.best->calls[0]);
	show("client", m.best->calls[1]);
	assert_true(m.ok);
	assert_true(syscalls_sum(calls[0]) > 50); /* it counts */
	assert_true(m.best->sum[0] <= TOKENS / 1000);
	assert_true(m.best->sum[1] <= TOKENS / 1000);
}

static void a_device_that_is_always_done(void **state)
{
	(void)state;
	no_call_per_token("0");
}

static void a_device_that_takes_its_time(void **state)
{
	(void)state;
	no_call_per_token("500");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_device_that_is_always_done),
		cmocka_unit_test(a_device_that_takes_its_time),
	};

	return cmocka_run_group_tests(tests, home_setup, home_teardown);
}
