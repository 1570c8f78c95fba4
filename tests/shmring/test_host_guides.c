/* LINK: -lhugetlbfs */
/* test_host_guides.c - guides as the daemon reads them: each field at its edges, copies of masks, guides that come
 * before their requests are taken. */
#include "shmring/host.c"
#include "shmring/object.c"
#include "tests/rig/host_conn.h"

/* With 8 guided answers. */
static int connected_guided(void **state)
{
	struct sr_hello h = hello;

	h.want.guides = 8;
	return connect_with(state, &h);
}

/* Requests 0 .. n-1 are taken and left. */
static void taken(uint32_t n)
{
	struct sr_wire_request q = Q(.flags = SR_GUIDED);
	struct host_request *r;

	while (n-- > 0) {
		put(&requests, &q);
		assert_int_equal(host_peek(c, &r), 1);
		assert_int_equal(r->error, 0);
		host_leave(c);
	}
}

static uint32_t *mask_place(uint32_t i) { return (void *)(up + SR_OFF_MASKS(&c->shape) + i * sr_mask_bytes(VOCAB)); }

static void guides_need_a_grant(void **state)
{
	struct sr_wire_request q = Q(.flags = SR_GUIDED);
	struct host_request *r;
	struct host_guide g;

	(void)state;
	assert_null(c->guides);
	assert_int_equal(host_bytes(c), SR_UP_BYTES(&c->shape, VOCAB) + SR_DOWN_BYTES(&c->shape, 0));
	assert_int_equal(SR_UP_BYTES(&c->shape, VOCAB), SR_OFF_ARENA(32) + 4096); /* no byte for guides */
	put(&requests, &q);
	assert_int_equal(host_peek(c, &r), 1);
	assert_int_equal(r->error, -EINVAL);
	assert_int_equal(host_guide_kept(c, &g), 0);
	assert_false(host_guide_ready(c));
	assert_int_equal(host_guide(c, &g), 0);
	host_leave(c);
}

static void each_guide_at_its_edges(void **state)
{
#define G(...) { .ticket = 0, .index = 9, __VA_ARGS__ }
#define LAST(i) .id[11] = (i)
	static const struct { const char *what; bool good; struct sr_wire_guide g; } t[] = {
		{ "bits", true, G(.place = 0) }, { "the last place", true, G(.place = 15) },
		{ "a place beyond", false, G(.place = 16) }, { "the last of all places", false, G(.place = UINT16_MAX) },
		{ "bits with an id", false, G(.n = 1) }, { "bits and a word behind", false, G(.id[1] = 1) },
		{ "bits and their time", true, G(.id[0] = INT32_MAX) }, { "a time before 0", false, G(.id[0] = -1) },
		{ "only", true, G(.kind = SR_GUIDE_ONLY, .n = 1, .id = { 999 }) },
		{ "only 12", true, G(.kind = SR_GUIDE_ONLY, .n = 12, LAST(999)) },
		{ "only 13", false, G(.kind = SR_GUIDE_ONLY, .n = 13) },
		{ "only none", false, G(.kind = SR_GUIDE_ONLY) },
		{ "only what is no id", false, G(.kind = SR_GUIDE_ONLY, .n = 1, .id = { 1000 }) },
		{ "only what is below all", false, G(.kind = SR_GUIDE_ONLY, .n = 12, LAST(-1)) },
		{ "only, and a word behind", false, G(.kind = SR_GUIDE_ONLY, .n = 11, LAST(1)) },
		{ "only, with a place", false, G(.kind = SR_GUIDE_ONLY, .n = 1, .place = 1) },
		{ "is", true, G(.kind = SR_GUIDE_IS, .n = 12) }, { "is none", false, G(.kind = SR_GUIDE_IS) },
		{ "is 13", false, G(.kind = SR_GUIDE_IS, .n = 13) },
		{ "free", true, G(.kind = SR_GUIDE_FREE) }, { "free until", true, G(.kind = SR_GUIDE_FREE, .n = 12) },
		{ "free until 13", false, G(.kind = SR_GUIDE_FREE, .n = 13) },
		{ "no kind", false, G(.kind = SR_GUIDE_FREE + 1) }, { "the last kind", false, G(.kind = UINT8_MAX) },
		{ "any index", true, { .index = ~0u } },
	};
	struct host_guide h;

	(void)state;
	taken(1);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_wire_guide g = t[i].g;
		int e;

		for (uint32_t k = 0; k < sr_mask_words(VOCAB); k++)
			mask_place(g.place % 16)[k] = (uint32_t)i * 1000 + k;
		put(&guides, &g);
		assert_true(host_guide_ready(c) && host_ready(c, 0));
		e = host_guide(c, &h);
		if (e != (t[i].good ? 1 : -EPROTO))
			fail_msg("%s: %d", t[i].what, e);
		if (e < 0)
			continue;     /* the caller drops it; this test goes on */
		assert_memory_equal(&h.g.ticket, &g.ticket, sizeof(g) - 4);
		assert_int_equal(h.words, 16 + (g.kind ? 0 : 32));
		assert_true(!h.bits == !!g.kind);
		for (uint32_t k = 0; h.bits && k < sr_mask_words(VOCAB); k++)
			assert_int_equal(h.bits[k], i * 1000 + k);
		assert_true(!h.bits || (unsigned char *)(uintptr_t)h.bits < c->up.at ||
		            (unsigned char *)(uintptr_t)h.bits >= c->up.at + c->up.len); /* a copy */
		assert_int_equal(atomic_load(guides.head), guides.mine);
	}
	assert_false(host_guide_ready(c));
}

/* A prompt that is only scored draws nothing, so nothing of it can be guided. */
static void nothing_to_guide(void **state)
{
	struct sr_wire_request q = { ASKS(4, 0), .flags = SR_GUIDED | SR_PROMPT_LOGPROBS };
	struct host_request *r;

	(void)state;
	put(&requests, &q);
	assert_int_equal(host_peek(c, &r), 1);
	assert_int_equal(r->error, -EINVAL);
	host_leave(c);
}

/* Guides for requests that are not taken yet wait for them, in their order, and hold up no others. */
static void early_guides_are_kept(void **state)
{
	struct sr_wire_request q = Q(.flags = SR_GUIDED);
	struct host_request *r;
	struct host_guide h;

	(void)state;
	taken(3);
	for (uint32_t i = 0; i < 4; i++)      /* in turns for requests 3 and 34, which have neighbouring places */
		put(&guides, &(struct sr_wire_guide){ .ticket = i % 2 ? 34 : 3, .index = i, .place = (uint16_t)i });
	put(&guides, &(struct sr_wire_guide){ .ticket = 2, .index = 7, .kind = SR_GUIDE_FREE });
	for (int i = 0; i < 4; i++)
		assert_int_equal(host_guide(c, &h), 2);
	assert_int_equal(h.words, 16);
	assert_int_equal(host_guide(c, &h), 1);
	assert_int_equal(h.g.index, 7);
	assert_int_equal(host_guide(c, &h), 0);
	put(&requests, &q);
	assert_int_equal(host_peek(c, &r), 1);
	put(&guides, &(struct sr_wire_guide){ .ticket = 3, .index = 4, .kind = SR_GUIDE_FREE });
	assert_int_equal(host_guide(c, &h), 2); /* held, and not left yet */
	mask_place(0)[5] = 55;                /* what counts is there when its request is taken */
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(host_guide_kept(c, &h), 1);
		assert_int_equal(h.g.ticket, 3);
		assert_int_equal(h.g.index, 2 * i);
		if (!i)
			assert_int_equal(h.bits[5], 55);
	}
	assert_int_equal(host_guide_kept(c, &h), 0);
	host_leave(c);
	put(&guides, &(struct sr_wire_guide){ .ticket = 3, .index = 5, .kind = SR_GUIDE_FREE });
	assert_int_equal(host_guide(c, &h), 1); /* taken: it waits for nothing */
	for (uint32_t i = 4; i <= 34; i++) {  /* request 34 comes in its turn; nobody asks for its guides: dropped */
		put(&requests, &q);
		assert_int_equal(host_peek(c, &r), 1);
		host_leave(c);
	}
	put(&requests, &q);
	put(&guides, &(struct sr_wire_guide){ .ticket = 34, .index = 9, .kind = SR_GUIDE_FREE });
	assert_int_equal(host_guide(c, &h), 1);
}

/* Where no more can be kept, the next guide is held, and those behind it wait until one is free again. */
static void kept_guides_have_a_most(void **state)
{
	struct sr_wire_request q = Q(.flags = SR_GUIDED);
	struct host_request *r;
	struct host_guide h;

	(void)state;
	for (int round = 0; round < 3; round++) {
		uint32_t next = requests.mine, n = 0;

		for (; n < 8 * 8; n++) {
			put(&guides, &(struct sr_wire_guide){ .ticket = next + n % 2, .index = n, .kind = SR_GUIDE_FREE });
			assert_int_equal(host_guide(c, &h), 2);
		}
		put(&guides, &(struct sr_wire_guide){ .ticket = next, .index = n, .kind = SR_GUIDE_FREE });
		put(&guides, &(struct sr_wire_guide){ .ticket = next - 1, .index = 77, .kind = SR_GUIDE_FREE });
		assert_int_equal(host_guide(c, &h), 0);
		assert_false(host_guide_ready(c));
		host_arm(c, 0);
		assert_false(host_ready(c, 0));
		put(&requests, &q);
		put(&requests, &q);
		assert_int_equal(host_peek(c, &r), 1);
		host_leave(c);                /* half of them are free again, and the held one's request is taken */
		assert_true(host_guide_ready(c));
		assert_int_equal(host_guide(c, &h), 1);
		assert_int_equal(h.g.index, n);
		assert_int_equal(host_guide(c, &h), 1);
		assert_int_equal(h.g.index, 77);
		assert_int_equal(host_guide(c, &h), 0);
		assert_int_equal(host_peek(c, &r), 1);
		for (uint32_t i = 1; i < n; i += 2) {
			assert_int_equal(host_guide_kept(c, &h), 1);
			assert_int_equal(h.g.index, i);
		}
		assert_int_equal(host_guide_kept(c, &h), 0);
		host_leave(c);
	}
}

/* ---- memory that goes away ------------------------------------------------------------------- */

static unsigned char *vanishing;      /* this page is taken away at the first touch, see test_host.c */

static void vanish(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)context;
	if ((uintptr_t)info->si_addr - (uintptr_t)vanishing >= SR_PAGE)
		abort();
	mprotect(vanishing, SR_PAGE, PROT_READ);
	c->poisoned = 1;
}

static void take_away(void)
{
	vanishing = c->up.at + SR_OFF_GUIDES(&c->shape) / SR_PAGE * SR_PAGE; /* records and masks */
	assert_int_equal(mprotect(vanishing, SR_PAGE, PROT_NONE), 0);
}

static void a_fault_under_a_copy_is_noticed(void **state)
{
	struct sigaction sa = { .sa_sigaction = vanish, .sa_flags = SA_SIGINFO }, before;
	struct sr_wire_request q = Q(.flags = SR_GUIDED);
	struct host_request *r;
	struct host_guide h;

	(void)state;
	sigaction(SIGSEGV, &sa, &before);
	put(&guides, &(struct sr_wire_guide){ .ticket = 0 });
	put(&guides, &(struct sr_wire_guide){ .ticket = 0, .index = 1, .kind = SR_GUIDE_FREE });
	assert_int_equal(host_guide(c, &h), 2);
	put(&requests, &q);
	assert_int_equal(host_peek(c, &r), 1);
	take_away();
	assert_int_equal(host_guide_kept(c, &h), -EFAULT); /* its mask */
	assert_int_equal(host_guide(c, &h), -EFAULT);      /* and from then on */
	c->poisoned = 0;
	take_away();
	assert_int_equal(host_guide(c, &h), -EFAULT);      /* a record */
	c->poisoned = 0;
	sigaction(SIGSEGV, &before, NULL);
	host_leave(c);
}

int main(void)
{
#define GUIDED(f) cmocka_unit_test_setup_teardown(f, connected_guided, parted)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(guides_need_a_grant, connected, parted),
		GUIDED(each_guide_at_its_edges),
		GUIDED(nothing_to_guide),
		GUIDED(early_guides_are_kept),
		GUIDED(kept_guides_have_a_most),
		GUIDED(a_fault_under_a_copy_is_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
