/* LINK: */
/* test_ring.c - one ring: its arithmetic, where indices wrap; two processes that both sleep;
 * a peer that writes any bytes anywhere. */
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "shmring/wire.h"

struct record { uint32_t seq, x; uint64_t v[7]; };

static uint32_t xorshift(uint32_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	return *s ^= *s << 5;
}

/* ---- alone ----------------------------------------------------------------------------------- */

struct pair {                         /* both ends of a ring of 8 */
	struct sr_ring_prod prod;
	struct sr_ring_cons cons;
	_Alignas(64) unsigned char place[8 * 64];
	struct sr_ring p, c;
};

static void pair_init(struct pair *t, uint32_t start)
{
	memset(t, 0, sizeof(*t));
	sr_ring_init(&t->p, true, &t->prod, &t->cons, t->place, 8, 64);
	sr_ring_init(&t->c, false, &t->prod, &t->cons, t->place, 8, 64);
	t->p.mine = t->p.left = t->p.told = t->c.mine = t->c.left = t->c.told = start;
	atomic_store(&t->cons.head, start);
}

static const uint32_t starts[] = { 0, 0xfffffffc, 0x7ffffffc, 0x80000000 };

static void fills_and_empties(void **state)
{
	(void)state;
	for (size_t k = 0; k < 4; k++) {
		struct record r = { 0 };
		struct pair t;

		pair_init(&t, starts[k]);
		assert_int_equal(sr_ring_take(&t.c, &r), 0);
		assert_int_equal(sr_ring_reserve(&t.p, 9), -EAGAIN);
		assert_int_equal(sr_ring_reserve(&t.p, 8), 0);
		assert_int_equal(sr_ring_reserve(&t.p, 1), -EAGAIN);
		for (uint64_t i = 0; i < 8; i++) {
			r.v[0] = i;
			sr_ring_put(&t.p, &r);
		}
		assert_int_equal(sr_ring_reserve(&t.p, 1), -EAGAIN);
		for (uint64_t i = 0; i < 8; i++) {
			assert_int_equal(sr_ring_take(&t.c, &r), 1);
			assert_int_equal(r.v[0], i);
			assert_int_equal(sr_ring_reserve(&t.p, 1), -EAGAIN); /* taken, but not left */
		}
		assert_int_equal(sr_ring_take(&t.c, &r), 0);
		sr_ring_done(&t.c);
		assert_int_equal(sr_ring_reserve(&t.p, 8), 0);
		sr_ring_unreserve(&t.p, 3);
		assert_int_equal(sr_ring_room(&t.p), 3);
	}
}

static void wakes_who_asked(void **state)
{
	(void)state;
	for (size_t k = 0; k < 4; k++) {
		struct record r = { 0 };
		struct pair t;

		pair_init(&t, starts[k]);
		atomic_store(&t.cons.wake_at, starts[k] + 3);
		assert_int_equal(sr_ring_reserve(&t.p, 8), 0);
		for (uint32_t i = 0; i < 8; i++) {
			sr_ring_put(&t.p, &r);
			assert_int_equal(sr_ring_wanted(&t.p), i == 3);
		}
		assert_false(sr_ring_wanted(&t.p));
		/* Room for 3 needs records 0, 1 and 2 to be left: 2 is the last. */
		assert_int_equal(sr_ring_blocker(&t.p, 3), starts[k] + 2);
		t.p.reserved = 2;       /* reserved records take room, too */
		assert_int_equal(sr_ring_blocker(&t.p, 3), starts[k] + 4);
		t.p.reserved = 0;
		sr_ring_arm_room(&t.p, starts[k] + 2);
		for (uint32_t i = 0; i < 8; i++) {
			assert_int_equal(sr_ring_take(&t.c, &r), 1);
			sr_ring_done(&t.c);
			assert_int_equal(sr_ring_freed(&t.c), i == 2);
			assert_int_equal(sr_ring_reserve(&t.p, 3), i < 2 ? -EAGAIN : 0);
			if (i >= 2)
				sr_ring_unreserve(&t.p, 3);
		}
	}
}

static void sees_a_lie(void **state)
{
	(void)state;
	for (size_t k = 0; k < 4; k++) {
		struct record r = { 0 };
		struct pair t;

		pair_init(&t, starts[k]);
		assert_int_equal(sr_ring_reserve(&t.p, 8), 0);
		for (int i = 0; i < 8; i++)
			sr_ring_put(&t.p, &r);
		for (uint32_t d = 9; d; d *= 2) { /* ahead by 9, 18 .. and all of 2^31 */
			atomic_store(&t.cons.head, starts[k] + d);
			assert_int_equal(sr_ring_look(&t.p), -EPROTO);
			atomic_store(&t.cons.head, starts[k] - d);
			assert_int_equal(sr_ring_look(&t.p), -EPROTO);
		}
		for (uint32_t d = 0; d <= 8; d++) { /* correct heads, up to all that was put */
			atomic_store(&t.cons.head, starts[k] + d);
			assert_int_equal(sr_ring_look(&t.p), 0);
			assert_int_equal(sr_ring_room(&t.p), d);
		}
		for (int i = 0; i < 8; i++)
			assert_int_equal(sr_ring_take(&t.c, &r), 1);
		*(uint32_t *)sr_ring_place(&t.c, t.c.mine) = sr_ring_seq(t.c.mine);
		assert_int_equal(sr_ring_take(&t.c, &r), -EPROTO); /* one more than there are places */
	}
}

/* Offsets of a request's spans: every corner that could wrap. */
static void spans_lie_in_the_arena(void **state)
{
	static const struct { uint32_t at, n_prompt, n_bias, arena; int64_t is; } t[] = {
		{ 0, 1, 0, 4096, 4 }, { 4092, 1, 0, 4096, 4 }, { 4096, 1, 0, 4096, -1 },
		{ 4088, 2, 0, 4096, 8 }, { 4088, 2, 1, 4096, -1 }, { 0, 1024, 0, 4096, 4096 },
		{ 0, 1025, 0, 4096, -1 }, { 4, 1024, 0, 4096, -1 }, { 2, 1, 0, 4096, -1 },
		{ 0, ~0u, ~0u, 1u << 30, -1 }, { 0xfffffffc, 1, 0, 4096, -1 }, { 0xfffffffc, 1, 0, 1u << 30, -1 },
		{ 1u << 30, 0, 0, 1u << 30, 0 }, { 0, 0x40000001, 0, 1u << 30, -1 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_wire_request q = { .at = t[i].at,
			.span = { { SR_SPAN_PROMPT, 0, t[i].n_prompt }, { SR_SPAN_BIAS, 0, t[i].n_bias } } };

		if (sr_wire_bytes(&q, t[i].arena) != t[i].is)
			fail_msg("case %zu: %ld", i, (long)sr_wire_bytes(&q, t[i].arena));
	}
	/* The most that a lie can say: no sum wraps, and an unknown kind has no unit. */
	for (unsigned kind = 0; kind <= 0xffff; kind += kind < 16 ? 1 : 0xf1) {
		struct sr_wire_request q = { .at = 0 };

		for (uint32_t i = 0; i < SR_SPANS; i++)
			q.span[i] = (struct sr_span){ (uint16_t)kind, 0, ~0u };
		assert_int_equal(sr_wire_bytes(&q, 1u << 30), kind && kind < SR_SPAN_KINDS ? -1 : 0);
	}
	for (uint32_t n = 0; n <= SR_TOP_MAX; n++)
		assert_int_equal(sr_wire_records(n), n <= 4 ? 1 : n <= 10 ? 2 : n <= 16 ? 3 : 4);
}

/* ---- two processes --------------------------------------------------------------------------- */

#define CAP 64u

static struct { struct sr_ring_prod *prod; struct sr_ring_cons *cons; unsigned char *place; int sv[2]; } far;

static void doze(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	if (poll(&p, 1, 5000) != 1)
		_exit(3);                     /* a wake-up was lost */
}

static int producer(uint32_t start, uint32_t n)
{
	struct sr_ring r;
	struct record rec = { 0 };
	uint32_t i = 0, s = 1, sleeps = 0;

	sr_ring_init(&r, true, far.prod, far.cons, far.place, CAP, sizeof(rec));
	r.mine = r.left = r.told = start;
	while (i < n) {
		uint32_t want = 1 + xorshift(&s) % 20;

		want = want < n - i ? want : n - i;
		if (sr_ring_reserve(&r, want) < 0) {
			if (sr_drain(far.sv[0], 100) < 0)
				_exit(4);
			sr_ring_arm_room(&r, sr_ring_blocker(&r, want));
			sr_ring_fence();
			if (sr_ring_reserve(&r, want) < 0) {
				sleeps++;
				doze(far.sv[0]);
				continue;
			}
		}
		for (uint32_t k = 0; k < want; k++, i++) {
			for (uint32_t w = 0; w < 7; w++)
				rec.v[w] = i * 2654435761u + w;
			sr_ring_put(&r, &rec);
		}
		sr_ring_fence();
		if (sr_ring_wanted(&r) && sr_signal(far.sv[0]) < 0)
			_exit(6);
		if (xorshift(&s) % 2000 == 0)
			usleep(50);
	}
	return sleeps > 0;
}

static int consumer(uint32_t start, uint32_t n)
{
	struct sr_ring r;
	struct record rec;
	uint32_t i = 0, s = 7, sleeps = 0;

	sr_ring_init(&r, false, far.prod, far.cons, far.place, CAP, sizeof(rec));
	r.mine = r.left = r.told = start;
	while (i < n) {
		uint32_t most = 1 + xorshift(&s) % 40, got = 0;

		for (; got < most && sr_ring_take(&r, &rec) == 1; got++, i++)
			for (uint32_t w = 0; w < 7; w++)
				if (rec.v[w] != i * 2654435761u + w)
					_exit(7);
		sr_ring_done(&r);
		sr_ring_fence();
		if (sr_ring_freed(&r) && sr_signal(far.sv[1]) < 0)
			_exit(6);
		if (!got) {
			if (sr_drain(far.sv[1], 100) < 0)
				_exit(4);
			sr_ring_arm(&r);
			sr_ring_fence();
			if (!sr_ring_ready(&r)) {
				sleeps++;
				doze(far.sv[1]);
			}
		}
		if (xorshift(&s) % 2000 == 0)
			usleep(50);
	}
	return sleeps > 0;
}

static void no_wake_up_is_lost(void **state)
{
	uint32_t n = 200000;

	(void)state;
	for (size_t k = 1; k < 3; k++) {
		unsigned char *m = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		pid_t pid;
		int rc;

		assert_ptr_not_equal(m, MAP_FAILED);
		far.prod = (void *)m;
		far.cons = (void *)(m + 1024);
		far.place = m + 4096;
		atomic_store(&far.cons->head, starts[k]);
		assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, far.sv), 0);
		pid = fork();
		if (!pid)
			_exit(consumer(starts[k], n) ? 0 : 20);
		assert_true(producer(starts[k], n));  /* both slept, else nothing is proved */
		assert_int_equal(waitpid(pid, &rc, 0), pid);
		assert_int_equal(rc, 0);
		close(far.sv[0]);
		close(far.sv[1]);
		munmap(m, 1 << 16);
	}
}

/* ---- a hostile peer -------------------------------------------------------------------------- */

static struct { struct sr_ring_prod prod; struct sr_ring_cons cons; } evil;
static _Alignas(64) unsigned char evil_place[64 * 64], guard[64];
static atomic_bool stop;

static _Atomic uint32_t *seq_at(uint32_t i) { return (void *)(evil_place + 64 * (i % 64)); }

static void *wild_producer(void *arg)
{
	uint32_t s = 77, near = 0;

	while (!stop) {
		uint32_t k = xorshift(&s);

		switch (k >> 30) {
		case 0:                       /* nonsense */
			atomic_store(seq_at(k), xorshift(&s));
			break;
		case 1:                       /* a record of the future, or of the past */
			atomic_store(seq_at(near + k % 200), sr_ring_seq(near + k % 200));
			break;
		case 2:
			near = atomic_load(&evil.cons.head);
			break;
		default:                      /* a full ring, one of whose records changes */
			for (uint32_t i = 0; i < 64; i++)
				atomic_store(seq_at(near + i), sr_ring_seq(near + i));
			atomic_store((_Atomic uint64_t *)(void *)(evil_place + 64 * (k % 64) + 8 + 8 * (k % 7)), k);
		}
		atomic_store(&evil.prod.room_at, xorshift(&s));
	}
	return arg;
}

static void *wild_consumer(void *arg)
{
	uint32_t s = 78;

	while (!stop) {
		uint32_t k = xorshift(&s);

		atomic_store(&evil.cons.head, k % 16 ? atomic_load(&evil.cons.head) + k % 3 :
			xorshift(&s) % 4 ? atomic_load(&evil.cons.head) - 1 : xorshift(&s));
		atomic_store(&evil.cons.wake_at, xorshift(&s));
	}
	return arg;
}

static void a_wild_producer_fills_no_more_than_there_is(void **state)
{
	struct sr_ring r;
	struct record rec = { 0 };
	uint32_t s = 3, taken = 0, lies = 0;
	pthread_t t;

	(void)state;
	stop = false;
	sr_ring_init(&r, false, &evil.prod, &evil.cons, evil_place, 64, 64);
	assert_int_equal(pthread_create(&t, NULL, wild_producer, NULL), 0);
	for (uint32_t i = 0; i < 2000000 || (!(taken && lies) && i < 500000000); i++) {
		int e = sr_ring_take(&r, &rec);

		taken += e == 1;
		lies += e < 0;
		assert_true(r.mine - r.left <= 64);
		if (e < 0 || (e == 1 && xorshift(&s) % 100 == 0))
			sr_ring_done(&r);
		sr_ring_freed(&r);
	}
	stop = true;
	pthread_join(t, NULL);
	assert_true(taken > 0 && lies > 0);
}

static void a_wild_consumer_makes_no_room(void **state)
{
	struct sr_ring r;
	struct record rec = { 0 };
	uint32_t s = 3, lies = 0;
	pthread_t t;

	(void)state;
	stop = false;
	memset(&evil, 0, sizeof(evil));
	sr_ring_init(&r, true, &evil.prod, &evil.cons, evil_place, 64, 64);
	assert_int_equal(pthread_create(&t, NULL, wild_consumer, NULL), 0);
	for (uint32_t i = 0; i < 2000000 || (!lies && i < 500000000); i++) {
		uint32_t before = r.left;
		int e = sr_ring_reserve(&r, 1 + xorshift(&s) % 8);

		lies += e == -EPROTO;
		if (e == -EPROTO)
			atomic_store(&evil.cons.head, r.left);
		assert_true(r.left - before <= r.mine - before);
		assert_true(r.mine - r.left + r.reserved <= 64);
		while (r.reserved && xorshift(&s) % 8)
			sr_ring_put(&r, &rec);
		sr_ring_wanted(&r);
	}
	stop = true;
	pthread_join(t, NULL);
	assert_true(lies > 0);
	for (size_t i = 0; i < sizeof(guard); i++)
		assert_int_equal(guard[i], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fills_and_empties),
		cmocka_unit_test(wakes_who_asked),
		cmocka_unit_test(sees_a_lie),
		cmocka_unit_test(spans_lie_in_the_arena),
		cmocka_unit_test(no_wake_up_is_lost),
		cmocka_unit_test(a_wild_producer_fills_no_more_than_there_is),
		cmocka_unit_test(a_wild_consumer_makes_no_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
