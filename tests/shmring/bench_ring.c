/* LINK: */
/* bench_ring.c - the rings beside what bounds them, in the same rounds, between two threads on two
 * cores:
 *
 *	a round trip over two rings      over a bare cache line each way
 *	records a second                 lines a second: the same 64 bytes, with nothing around them
 *	a wake-up by ring and socket     by the socket alone
 *
 * A waiter looks again at once, as sr_poll() does.  The round trips are measured once more with a
 * `pause` between looks, as sr_wait() waits.
 *
 *	bench_ring [FILE.jsonl]          exit 1 if a figure is below its floor
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <x86intrin.h>

#include "shmring/wire.h"
#include "tests/rig/bench_report.h"

#define TRIPS  40000
#define STREAM 1000000
#define WAKES  1500
#define CAP    1024
#define BLOCK  100                    /* trips timed together, because the clock may tick in tens of ns */
#define BATCH  32
#define MUST(x) do { if (!(x)) { fprintf(stderr, "bench_ring.c:%d: %s\n", __LINE__, #x); exit(1); } } while (0)

struct record { uint32_t seq, n; uint64_t v[7]; };

static struct shared {
	_Alignas(128) _Atomic uint32_t there;
	_Alignas(128) _Atomic uint32_t back;
	_Alignas(128) struct sr_ring_prod prod[2];
	struct sr_ring_cons cons[2];
	_Alignas(128) struct record records[2][CAP];
} *shared;

static int cpu[2], fd[2];
static void (*echo)(void);            /* what the other thread does in this round */
static _Atomic uint32_t round_begin, round_end;

static bool pausing;                  /* in this round */

/* The two threads may have to share a core: yield now and then. */
static void relax(unsigned *n)
{
	if (pausing)
		_mm_pause();
	if (++*n % 100000 == 0)
		sched_yield();
}

static void rings(struct sr_ring *mine, struct sr_ring *theirs, int side)
{
	sr_ring_init(mine, true, &shared->prod[side], &shared->cons[side], shared->records[side], CAP, 64);
	sr_ring_init(theirs, false, &shared->prod[!side], &shared->cons[!side], shared->records[!side], CAP, 64);
}

static bool put(struct sr_ring *r, uint32_t n)
{
	struct record e = { .n = n };

	MUST(sr_ring_reserve(r, 1) == 0);
	sr_ring_put(r, &e);
	sr_ring_fence();
	return sr_ring_wanted(r);
}

static uint32_t take(struct sr_ring *r)
{
	struct record e;
	unsigned n = 0;
	int got;

	while ((got = sr_ring_take(r, &e)) == 0)
		relax(&n);
	MUST(got == 1);
	sr_ring_done(r);
	return e.n;
}

/* ---- round trips -------------------------------------------------------------------------------- */

static void line_echo(void)
{
	unsigned n = 0;

	for (uint32_t i = 1; i <= TRIPS; i++) {
		while (atomic_load_explicit(&shared->there, memory_order_acquire) != i)
			relax(&n);
		atomic_store_explicit(&shared->back, i, memory_order_release);
	}
}

static void ring_echo(void)
{
	struct sr_ring mine, theirs;

	rings(&mine, &theirs, 1);
	for (uint32_t i = 0; i < TRIPS; i++)
		put(&mine, take(&theirs));
}

static double ticks[TRIPS];

static double line_trip(void)
{
	unsigned n = 0;

	for (uint32_t i = 1, k = 0; k < TRIPS / BLOCK; k++) {
		uint64_t t = __rdtsc();

		for (uint32_t end = i + BLOCK; i < end; i++) {
			atomic_store_explicit(&shared->there, i, memory_order_release);
			while (atomic_load_explicit(&shared->back, memory_order_acquire) != i)
				relax(&n);
		}
		ticks[k] = (double)(__rdtsc() - t) / BLOCK;
	}
	return median(ticks, TRIPS / BLOCK);
}

static double ring_trip(void)
{
	struct sr_ring mine, theirs;

	rings(&mine, &theirs, 0);
	for (uint32_t i = 0, k = 0; k < TRIPS / BLOCK; k++) {
		uint64_t t = __rdtsc();

		for (uint32_t end = i + BLOCK; i < end; i++) {
			put(&mine, i);
			MUST(take(&theirs) == i);
		}
		ticks[k] = (double)(__rdtsc() - t) / BLOCK;
	}
	return median(ticks, TRIPS / BLOCK);
}

/* ---- a stream ------------------------------------------------------------------------------------ */

static void stream_echo(void)
{
	struct sr_ring mine, theirs;
	struct record e;
	unsigned n = 0;

	rings(&mine, &theirs, 1);
	for (uint32_t i = 0; i < STREAM;) {
		while (sr_ring_take(&theirs, &e) == 1)
			MUST(e.n == i++);
		if (theirs.left == theirs.mine)
			relax(&n);
		sr_ring_done(&theirs);
	}
}

static double stream(void)
{
	struct sr_ring mine, theirs;
	uint64_t t = now_ns();
	unsigned n = 0;

	rings(&mine, &theirs, 0);
	for (uint32_t i = 0; i < STREAM;) {
		struct record e = { 0 };

		if (sr_ring_reserve(&mine, BATCH) < 0) {
			relax(&n);
			continue;
		}
		for (int k = 0; k < BATCH; k++) {
			e.n = i++;
			sr_ring_put(&mine, &e);
		}
		sr_ring_fence();
		sr_ring_wanted(&mine);
	}
	while (atomic_load(&shared->cons[0].head) != STREAM)
		relax(&n);
	return (double)STREAM * 1000 / (double)(now_ns() - t);
}

/* The same lines in the same batches, without ring records. */
static void bare_stream_echo(void)
{
	unsigned n = 0;

	for (uint32_t i = 0; i < STREAM; i++) {
		struct record *r = &shared->records[0][i % CAP], e;

		while (atomic_load_explicit((_Atomic uint32_t *)(void *)r, memory_order_acquire) != i + 1)
			relax(&n);
		memcpy(&e, r, sizeof(e));
		MUST(e.n == i);
		if (i % BATCH == BATCH - 1)
			atomic_store_explicit(&shared->back, i + 1, memory_order_release);
	}
}

static double bare_stream(void)
{
	uint64_t t = now_ns();
	unsigned n = 0;

	for (uint32_t i = 0; i < STREAM; i++) {
		struct record *r = &shared->records[0][i % CAP], e = { .n = i };

		while (i % BATCH == 0 &&
		       i + BATCH - atomic_load_explicit(&shared->back, memory_order_acquire) > CAP)
			relax(&n);
		memcpy((char *)r + 4, (char *)&e + 4, 4); /* in the lengths of sr_ring_put() */
		memcpy((char *)r + 8, (char *)&e + 8, 8);
		memcpy((char *)r + 16, (char *)&e + 16, sizeof(e) - 16);
		atomic_store_explicit((_Atomic uint32_t *)(void *)r, i + 1, memory_order_release);
	}
	while (atomic_load(&shared->back) != STREAM)
		relax(&n);
	return (double)STREAM * 1000 / (double)(now_ns() - t);
}

/* ---- wake-ups -------------------------------------------------------------------------------------- */

static void await(int f)
{
	struct pollfd p = { .fd = f, .events = POLLIN };

	MUST(poll(&p, 1, 5000) == 1);
}

static void bare_send(int f) { MUST(send(f, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1); }

static void bare_receive(int f)
{
	char byte[64];

	await(f);
	MUST(recv(f, byte, sizeof(byte), MSG_DONTWAIT) == 1);
}

static void bare_echo(void)
{
	for (int i = 0; i < WAKES; i++) {
		bare_receive(fd[1]);
		bare_send(fd[1]);
	}
}

static double bare_wake(void)
{
	for (int i = 0; i < WAKES; i++) {
		uint64_t t = __rdtsc();

		bare_send(fd[0]);
		bare_receive(fd[0]);
		ticks[i] = (double)(__rdtsc() - t);
	}
	return median(ticks, WAKES);
}

static void wake_put(struct sr_ring *r, int f, uint32_t n)
{
	if (put(r, n))
		MUST(sr_signal(f) == 0);
}

/* As client.c does: empty the socket, arm, fence, look, sleep. */
static uint32_t wake_take(struct sr_ring *r, int f)
{
	while (!sr_ring_ready(r)) {
		MUST(sr_drain(f, 64) >= 0);
		sr_ring_arm(r);
		sr_ring_fence();
		if (sr_ring_ready(r))
			break;
		await(f);
	}
	return take(r);
}

static void wake_echo(void)
{
	struct sr_ring mine, theirs;

	rings(&mine, &theirs, 1);
	for (int i = 0; i < WAKES; i++)
		wake_put(&mine, fd[1], wake_take(&theirs, fd[1]));
}

static double ring_wake(void)
{
	struct sr_ring mine, theirs;

	rings(&mine, &theirs, 0);
	for (uint32_t i = 0; i < WAKES; i++) {
		uint64_t t = __rdtsc();

		wake_put(&mine, fd[0], i);
		MUST(wake_take(&theirs, fd[0]) == i);
		ticks[i] = (double)(__rdtsc() - t);
	}
	sr_drain(fd[0], 64);
	return median(ticks, WAKES);
}

/* ---- rounds ---------------------------------------------------------------------------------------- */

static void pin(int c)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(c, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void *other(void *arg)
{
	unsigned n = 0;

	(void)arg;
	pin(cpu[1]);
	for (uint32_t i = 1;; i++) {
		while (atomic_load(&round_begin) != i)
			relax(&n);
		if (!echo)
			return NULL;
		echo();
		atomic_store(&round_end, i);
	}
}

static double run(double (*mine)(void), void (*theirs)(void))
{
	static uint32_t n;
	unsigned k = 0;
	double r;

	memset(shared, 0, sizeof(*shared));
	for (int i = 0; i < 2; i++) {         /* no signal was asked for */
		shared->cons[i].wake_at = 0x80000000u;
		shared->prod[i].room_at = 0x80000000u;
		sr_drain(fd[i], 64);
	}
	echo = theirs;
	atomic_store(&round_begin, ++n);
	if (!mine)
		return 0;
	r = mine();
	while (atomic_load(&round_end) != n)
		relax(&k);
	return r;
}

static double ns_per_tick(void)
{
	uint64_t at = now_ns(), t = __rdtsc();

	while (now_ns() - at < 20000000)
		;
	return (double)(now_ns() - at) / (double)(__rdtsc() - t);
}

int main(int argc, char **argv)
{
	struct figure line = { "cache_line_round_trip", "ns", 0, 0, { 0 } };
	struct figure ring = { "ring_round_trip", "ns", 0, 0, { 0 } };
	struct figure trip = { "ring_over_cache_line", "times", 1.6, 1.4, { 0 } };
	struct figure pline = { "cache_line_round_trip_pause", "ns", 0, 0, { 0 } };
	struct figure pring = { "ring_round_trip_pause", "ns", 0, 0, { 0 } };
	struct figure ptrip = { "ring_over_cache_line_pause", "times", 0, 0, { 0 } };
	struct figure lines = { "lines", "M/s", 0, 0, { 0 } };
	struct figure rate = { "records", "M/s", 0, 0, { 0 } };
	struct figure share = { "records_of_lines", "share", 0, 0, { 0 } };
	struct figure bare = { "socket_wake_round_trip", "us", 0, 0, { 0 } };
	struct figure woken = { "ring_wake_round_trip", "us", 0, 0, { 0 } };
	struct figure wake = { "ring_wake_over_socket", "times", 1.3, 1.1, { 0 } };
	int found = 0;
	cpu_set_t set;
	pthread_t t;
	double ns;

	sched_getaffinity(0, sizeof(set), &set);
	for (int c = 0; c < CPU_SETSIZE && found < 2; c++)
		if (CPU_ISSET(c, &set))
			cpu[found++] = c;
	if (found < 2) {
		printf("SKIP bench_ring: one core alone can measure no round trip\n");
		return 0;
	}
	report_open("ring", argc > 1 ? argv[1] : NULL);
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED && pthread_create(&t, NULL, other, NULL) == 0);
	pin(cpu[0]);
	ns = ns_per_tick();
	run(line_trip, line_echo);
	for (int i = 0; i < ROUNDS; i++) {
		line.v[i] = run(line_trip, line_echo) * ns;
		ring.v[i] = run(ring_trip, ring_echo) * ns;
		trip.v[i] = ring.v[i] / line.v[i];
		pausing = true;
		pline.v[i] = run(line_trip, line_echo) * ns;
		pring.v[i] = run(ring_trip, ring_echo) * ns;
		ptrip.v[i] = pring.v[i] / pline.v[i];
		pausing = false;
		lines.v[i] = run(bare_stream, bare_stream_echo);
		rate.v[i] = run(stream, stream_echo);
		share.v[i] = rate.v[i] / lines.v[i];
		bare.v[i] = run(bare_wake, bare_echo) * ns / 1000;
		woken.v[i] = run(ring_wake, wake_echo) * ns / 1000;
		wake.v[i] = woken.v[i] / bare.v[i];
	}
	run(NULL, NULL);
	pthread_join(t, NULL);
	report(&line);
	report(&ring);
	report(&trip);
	report(&pline);
	report(&pring);
	report(&ptrip);
	report(&lines);
	report(&rate);
	report(&share);
	report(&bare);
	report(&woken);
	report(&wake);
	return report_close();
}
