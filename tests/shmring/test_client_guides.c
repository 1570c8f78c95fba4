/* test_client_guides.c - sr_guide(): what it refuses, the records and masks that it writes, when a mask place is
 * free again, and how many guided requests are live.  The daemon is this test, which moves the heads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "shmring/client.c"

#define VOCAB  1000
#define GUIDES 8
#define PLACES (2 * GUIDES)

static struct sr_conn *c;
static struct sr_up *up;
static struct sr_down *down;
static int pair[2];

/* Rings whose next index is `first`, in private memory. */
static void made(uint32_t guides, uint32_t first)
{
	struct sr_welcome w = { .shape = { 32, 64, 4096, guides } };
	size_t up_len = SR_UP_BYTES(&w.shape, VOCAB), down_len = SR_DOWN_BYTES(&w.shape, 0);

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	c = calloc(1, sizeof(*c) + 32 * sizeof(c->end[0]));
	assert_non_null(c);
	c->fd = pair[0];
	c->up = mmap(NULL, up_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	c->down = mmap(NULL, down_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(c->up != MAP_FAILED && c->down != MAP_FAILED);
	c->up_len = up_len;
	c->down_len = down_len;
	up = (void *)c->up;
	down = (void *)c->down;
	down->model = (struct sr_model_info){ .vocab = VOCAB, .context = 500 };
	c->model = down->model;
	c->model.live = 32;
	c->model.arena = 4096;
	c->model.epoch = 7;
	atomic_store(&down->epoch, 7);
	assert_int_equal(rings_make(c, &w), 0);
	c->requests.mine = c->requests.left = c->requests.told = c->seen = first;
	c->guides.mine = c->guides.left = c->guides.told = first;
	atomic_store(&down->requests.head, first);
	atomic_store(&down->guides.head, first);
	atomic_store(&down->requests.wake_at, first - 1); /* it does not sleep */
	atomic_store(&down->guides.wake_at, first - 1);
}

static void unmade(void)
{
	sr_close(c);
	close(pair[1]);
}

static int submit(uint32_t flags, uint32_t *ticket)
{
	static const int32_t prompt[1];
	struct sr_request q = { .size = sizeof(q), .flags = flags, .prompt = prompt, .n_prompt = 1, .max_tokens = 9 };

	return sr_submit(c, &q, ticket);
}

static uint32_t bits[32];

static int put_bits(uint32_t ticket, uint32_t index) { return sr_guide(c, ticket, index, SR_GUIDE_BITS, NULL, 0, bits); }

static const struct sr_wire_guide *record(uint32_t i) { return (void *)(c->up + SR_PAGE + 32 * 384 + 4096 + i % 32 * 64); }

static void what_it_refuses(void **state)
{
	static const int32_t ids[80] = { [1] = VOCAB - 1, [2] = VOCAB, [79] = 0 }, below[] = { -1 };
	static const struct { const char *what; int is; uint32_t kind; const int32_t *ids; uint32_t n; bool bits; } t[] = {
		{ "bits", 0, SR_GUIDE_BITS, NULL, 0, true }, { "no bits", -EINVAL, SR_GUIDE_BITS, NULL, 0, false },
		{ "bits and ids", -EINVAL, SR_GUIDE_BITS, ids, 1, true },
		{ "only", 0, SR_GUIDE_ONLY, ids, 2, false }, { "only 12", 0, SR_GUIDE_ONLY, ids + 3, 12, false },
		{ "only 13", -EINVAL, SR_GUIDE_ONLY, ids + 3, 13, false },
		{ "only none", -EINVAL, SR_GUIDE_ONLY, ids, 0, false },
		{ "no ids", -EINVAL, SR_GUIDE_ONLY, NULL, 1, false },
		{ "no id", -EINVAL, SR_GUIDE_ONLY, ids, 3, false }, { "below 0", -EINVAL, SR_GUIDE_ONLY, below, 1, false },
		{ "is none", -EINVAL, SR_GUIDE_IS, ids, 0, false }, { "is 64", 0, SR_GUIDE_IS, ids + 3, 64, false },
		{ "is 65", -EINVAL, SR_GUIDE_IS, ids + 3, 65, false },
		{ "free", 0, SR_GUIDE_FREE, NULL, 0, false }, { "free until", 0, SR_GUIDE_FREE, ids + 3, 12, false },
		{ "free until 13", -EINVAL, SR_GUIDE_FREE, ids + 3, 13, false },
		{ "no kind", -EINVAL, SR_GUIDE_FREE + 1, NULL, 0, false }, { "no kind at all", -EINVAL, ~0u, NULL, 0, false },
	};
	uint32_t ticket;

	(void)state;
	made(0, 0);
	assert_int_equal(submit(SR_GUIDED, NULL), -ENOTSUP);
	assert_int_equal(submit(0, &ticket), 0);
	assert_int_equal(put_bits(ticket, 0), -ENOTSUP);
	unmade();

	made(GUIDES, 0);
	assert_int_equal(put_bits(0, 0), -EINVAL); /* a ticket that nobody has */
	assert_int_equal(submit(SR_GUIDED, &ticket), 0);
	assert_int_equal(put_bits(ticket + 1, 0), -EINVAL);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		uint32_t before = c->guides.mine;
		int e = sr_guide(c, ticket, 5, t[i].kind, t[i].ids, t[i].n, t[i].bits ? bits : NULL);

		if (e != t[i].is)
			fail_msg("%s: %d", t[i].what, e);
		assert_true(!e == (c->guides.mine != before));
		assert_int_equal(c->guides.reserved, 0);
		atomic_store(&down->guides.head, c->guides.mine);
	}
	atomic_store(&down->epoch, 0);
	assert_int_equal(put_bits(ticket, 0), -ECONNRESET);
	unmade();
}

/* What lies in the ring is what the daemon checks; known ids are cut into records of 12. */
static void records_as_they_lie(void **state)
{
	int32_t ids[64];
	uint32_t ticket;

	(void)state;
	made(GUIDES, 0);
	for (int i = 0; i < 64; i++)
		ids[i] = 900 - i;
	for (int i = 0; i < 32; i++)
		bits[i] = 0x01010101u * (uint32_t)i;
	memset(c->up + c->masks, 0xee, PLACES * sr_mask_bytes(VOCAB));
	memset((void *)(uintptr_t)record(0), 0xee, 32 * 64);
	assert_int_equal(submit(0, NULL), 0);
	assert_int_equal(submit(SR_GUIDED, &ticket), 0);
	assert_int_equal(sr_guide(c, ticket, 3, SR_GUIDE_IS, ids, 64, NULL), 0);
	sr_guide_took(c, 77);                         /* goes with the next mask, and with no other */
	assert_int_equal(put_bits(ticket, 67), 0);
	assert_int_equal(put_bits(ticket, 68), 0);
	assert_int_equal(c->guides.mine, 8);
	for (uint32_t i = 0; i < 8; i++) {
		struct sr_wire_guide want = { .seq = sr_ring_seq(i), .ticket = ticket, .index = i < 6 ? 3 + 12 * i : 61 + i,
			.kind = i < 6 ? SR_GUIDE_IS : SR_GUIDE_BITS, .n = i < 5 ? 12 : i == 5 ? 4 : 0, .place = i == 7 };

		memcpy(want.id, ids + 12 * i, want.n * sizeof(ids[0]));
		want.id[0] = i == 6 ? 77 : want.id[0];
		assert_memory_equal(record(i), &want, sizeof(want));
	}
	for (int i = 0; i < 2; i++)
		assert_memory_equal(c->up + c->masks + (size_t)i * sr_mask_bytes(VOCAB), bits, sizeof(bits));
	assert_int_equal(c->up[c->masks + 2 * sr_mask_bytes(VOCAB)], 0xee);
	unmade();
}

/* A mask place is used again when the daemon has left both its record and its request. */
static void mask_places_come_back(void **state)
{
	static const uint32_t first[] = { 0, 0u - 8 };

	(void)state;
	for (int k = 0; k < 2; k++) {
		uint32_t ticket, other;

		made(GUIDES, first[k]);
		assert_int_equal(submit(SR_GUIDED, &ticket), 0);
		assert_int_equal(submit(SR_GUIDED, &other), 0);
		for (uint32_t i = 0; i < PLACES; i++)
			assert_int_equal(put_bits(i % 2 ? other : ticket, i), 0);
		assert_int_equal(put_bits(ticket, PLACES), -EAGAIN);
		atomic_store(&down->guides.head, c->guides.mine); /* taken, and kept: the requests wait */
		assert_int_equal(put_bits(ticket, PLACES), -EAGAIN);
		assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_FREE, NULL, 0, NULL), 0); /* needs none */
		atomic_store(&down->guides.head, c->guides.mine);
		atomic_store(&down->requests.head, ticket + 1);
		for (uint32_t i = 0; i < GUIDES; i++) { /* the places of `ticket` alone */
			assert_int_equal(put_bits(ticket, i), 0);
			assert_int_equal(record(c->guides.mine - 1)->place % 2, 0);
		}
		assert_int_equal(put_bits(ticket, 0), -EAGAIN);
		atomic_store(&down->requests.head, other + 1);
		assert_int_equal(put_bits(ticket, 0), 0);
		assert_int_equal(record(c->guides.mine - 1)->place % 2, 1);
		unmade();
	}
}

static void a_full_ring(void **state)
{
	static const int32_t ids[64];
	uint32_t ticket;

	(void)state;
	made(GUIDES, 0);
	assert_int_equal(submit(SR_GUIDED, &ticket), 0);
	for (int i = 0; i < 27; i++)
		assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_FREE, NULL, 0, NULL), 0);
	assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_IS, ids, 64, NULL), -EAGAIN); /* all six records or none */
	assert_int_equal(c->guides.mine, 27);
	assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_IS, ids, 60, NULL), 0);
	assert_int_equal(put_bits(ticket, 0), -EAGAIN);
	assert_int_equal(c->place[0].guide, 0); /* and no place is lost */
	atomic_store(&down->guides.head, 1);
	assert_int_equal(put_bits(ticket, 0), 0);
	atomic_store(&down->guides.head, 34);  /* past what was put */
	assert_int_equal(put_bits(ticket, 0), -EPROTO);
	atomic_store(&down->guides.head, 33);
	atomic_store(&down->requests.head, 2);
	assert_int_equal(put_bits(ticket, 0), -EPROTO);
	unmade();
}

/* At most as many guided requests are live as were granted; others do not count. */
static void guided_requests_are_counted(void **state)
{
	struct sr_record r = { .kind = SR_END };

	(void)state;
	made(GUIDES, 0);
	for (int i = 0; i < GUIDES; i++)
		assert_int_equal(submit(SR_GUIDED, NULL), 0);
	assert_int_equal(submit(SR_GUIDED, NULL), -EBUSY);
	assert_int_equal(submit(0, NULL), 0);
	for (int guided = 0; guided < 2; guided++) {
		struct sr_ring tokens;

		sr_ring_init(&tokens, true, &down->tokens, &up->tokens, c->down + SR_PAGE, 64, 64);
		tokens.mine = tokens.left = c->tokens.mine;
		tokens.reserved = 1;
		r.was = guided ? SR_GUIDED : 0;
		sr_ring_put(&tokens, &r);
		assert_int_equal(sr_poll(c, &r, 1), 1);
		assert_int_equal(submit(SR_GUIDED, NULL), guided ? 0 : -EBUSY);
	}
	unmade();
}

/* The daemon sleeps until the next guide: it is signalled, once. */
static void a_sleeping_daemon_is_woken(void **state)
{
	uint32_t ticket;
	char byte;

	(void)state;
	made(GUIDES, 0);
	assert_int_equal(submit(SR_GUIDED, &ticket), 0);
	assert_int_equal(put_bits(ticket, 0), 0);
	assert_true(recv(pair[1], &byte, 1, MSG_DONTWAIT) < 0);
	atomic_store(&down->guides.wake_at, 1);
	assert_int_equal(put_bits(ticket, 1), 0);
	assert_int_equal(put_bits(ticket, 2), 0);
	assert_int_equal(recv(pair[1], &byte, 1, MSG_DONTWAIT), 1);
	assert_true(recv(pair[1], &byte, 1, MSG_DONTWAIT) < 0);
	unmade();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_it_refuses), cmocka_unit_test(records_as_they_lie),
		cmocka_unit_test(mask_places_come_back), cmocka_unit_test(a_full_ring),
		cmocka_unit_test(guided_requests_are_counted), cmocka_unit_test(a_sleeping_daemon_is_woken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
