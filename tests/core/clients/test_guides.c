/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* test_guides.c - guided answers through the rings: each token is one that its guide allows, and the one that
 * the device draws among those; guides may come before their request is taken. */
#include "tests/rig/daemon.h"

static struct daemon d;

#define WORDS ((VOCAB + 31) / 32)
#define N_PROMPT 20
#define MOST 120

static uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
	return (x ^ x >> 29) * 0xbf58476d1ce4e5b9u >> 16;
}

/* One guided answer and what it must be. */
struct guided {
	uint64_t salt;
	uint32_t ticket, next;        /* next: the first token without a guide */
	int32_t  ids[N_PROMPT + MOST + SR_GUIDE_RUN], n;
	int32_t  until;               /* the id that ends a FREE; 0: none runs */
	int32_t  forced;              /* of ids[n ..]: those known by guides */
	uint32_t bits[WORDS];         /* what the drawn token may be */
	bool     masked, ended;
};

/* The next token of a, among those that `bits` allow if it is not NULL. */
static int32_t drawn(const struct guided *a, const int32_t *ids, int32_t n, const uint32_t *bits)
{
	struct sr_null_request q = { .sampling = { .top_p = 1, .repetition = 1, .min_position = N_PROMPT },
		.n_prompt = N_PROMPT, .vocab = VOCAB, .mask = bits };

	(void)a;
	return sr_null_next(&q, ids, n);
}

static void put(struct sr_conn *c, struct guided *a, uint32_t kind, const int32_t *ids, uint32_t n)
{
	int e;

	while ((e = sr_guide(c, a->ticket, a->next, kind, ids, n, kind == SR_GUIDE_BITS ? a->bits : NULL)) == -EAGAIN)
		usleep(20);
	assert_int_equal(e, 0);
	a->next += kind == SR_GUIDE_IS ? n : 1;
}

/* Known ids, perhaps; then a guide of a random kind. */
static void guide(struct sr_conn *c, struct guided *a)
{
	uint64_t r = mixed(a->salt * 1000 + a->next);
	int32_t list[SR_GUIDE_IDS];

	if (r % 3 == 0) {
		uint32_t n = r % 2 ? SR_GUIDE_RUN : 1 + (uint32_t)(r >> 8) % 20;

		for (uint32_t i = 0; i < n; i++)
			a->ids[a->n + (int32_t)i] = (int32_t)(mixed(r + i) % VOCAB);
		a->forced = (int32_t)n;
		put(c, a, SR_GUIDE_IS, a->ids + a->n, n);
		if (a->next >= MOST)
			return;
	}
	memset(a->bits, 0, sizeof(a->bits));
	a->masked = true;
	for (uint32_t i = 0; i < SR_GUIDE_IDS; i++) {
		list[i] = (int32_t)(mixed(r + 77 + i) % VOCAB);
		a->bits[list[i] / 32] |= 1u << list[i] % 32;
	}
	switch (r >> 4 & 3) {
	case 0:
		put(c, a, SR_GUIDE_BITS, NULL, 0);
		break;
	case 1:
		put(c, a, SR_GUIDE_ONLY, list, SR_GUIDE_IDS);
		break;
	case 2:
		a->masked = false;
		put(c, a, SR_GUIDE_FREE, NULL, 0);
		break;
	default: {
		int32_t ids[N_PROMPT + MOST + SR_GUIDE_RUN + 3], n = a->n + a->forced;

		a->masked = false;
		memcpy(ids, a->ids, (size_t)n * sizeof(ids[0]));
		for (int32_t k = 0; k < 3; k++, n++) /* it ends with the third token from here */
			ids[n] = drawn(a, ids, n, NULL);
		a->until = list[3] = ids[n - 1];
		put(c, a, SR_GUIDE_FREE, list, 4);
		a->next = UINT32_MAX;
	}
	}
}

static void token(struct sr_conn *c, struct guided *a, const struct sr_token *t)
{
	assert_int_equal(t->index, a->n - N_PROMPT);
	if (a->forced) {
		assert_int_equal(t->id, a->ids[a->n]);
		assert_true(t->logprob == 0);
		a->forced--;
	} else {
		assert_int_equal(t->id, drawn(a, a->ids, a->n, a->masked ? a->bits : NULL));
	}
	a->ids[a->n++] = t->id;
	if (a->until && !a->forced && t->id == a->until) {
		a->until = 0;
		a->next = t->index + 1;
	}
	if (t->index + 1 == a->next && !t->last)
		guide(c, a);
}

static struct sr_conn *open_guided(uint32_t n)
{
	struct sr_options o = { .size = sizeof(o), .guides = n };
	struct sr_conn *c = NULL;

	assert_int_equal(sr_open(&c, d.path, &o), 0);
	return c;
}

static void begin(struct sr_conn *c, struct guided *a, uint64_t salt, uint32_t max_tokens)
{
	struct sr_request q = { .size = sizeof(q), .prompt = a->ids, .n_prompt = N_PROMPT, .max_tokens = max_tokens,
		.flags = SR_GUIDED | SR_IGNORE_EOS, .user_data = (uintptr_t)a };

	memset(a, 0, sizeof(*a));
	a->salt = salt;
	for (a->n = 0; a->n < N_PROMPT; a->n++)
		a->ids[a->n] = (int32_t)(mixed(salt * 50 + (uint64_t)a->n) % VOCAB);
	assert_int_equal(sr_submit(c, &q, &a->ticket), 0);
	guide(c, a);
}

/* Read until n more have ended. */
static void read_ends(struct sr_conn *c, int n)
{
	struct sr_token t = { 0 };
	int e;

	while (n > 0) {
		while ((e = sr_next(c, &t)) == 0)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 5000) > 0);
		assert_int_equal(e, 1);
		if (t.kind == SR_TOKEN) {
			token(c, (void *)(uintptr_t)t.user_data, &t);
			continue;
		}
		assert_int_equal(t.end.finish, SR_LENGTH);
		((struct guided *)(uintptr_t)t.user_data)->ended = true;
		n--;
	}
}

static void each_token_is_as_guided(void **state)
{
	static struct guided a[24];
	struct sr_conn *c = open_guided(32);

	(void)state;
	assert_int_equal(sr_model(c)->guides, 32);
	for (int round = 0; round < 8; round++) {
		for (int i = 0; i < 24; i++)
			begin(c, &a[i], (uint64_t)(round * 24 + i), MOST);
		read_ends(c, 24);
		for (int i = 0; i < 24; i++)
			assert_true(a[i].ended && a[i].n == N_PROMPT + MOST);
	}
	daemon_look(&d);
	assert_true(d.n.forced_tokens > 0);
	assert_int_equal(d.n.guided, 8 * 24);
	assert_true(d.n.guides > d.n.guided && d.n.guides <= 8 * 24 * MOST);
	sr_close(c);
}

/* The rings have room for 64, but the daemon guides 37: the client is told so, and asks for no more. */
static void no_more_than_there_are(void **state)
{
	static const int32_t prompt[1];
	struct sr_request q = { .size = sizeof(q), .flags = SR_GUIDED, .prompt = prompt, .n_prompt = 1, .max_tokens = 9 };
	struct sr_conn *c;

	(void)state;
	daemon_stop(&d);
	daemon_start(&d, &(struct clients_config){ .guides = 37 });
	c = open_guided(64);
	assert_int_equal(sr_model(c)->guides, 37);
	d.paused = true;
	for (int i = 0; i < 37; i++)
		assert_int_equal(sr_submit(c, &q, NULL), 0);
	assert_int_equal(sr_submit(c, &q, NULL), -EBUSY);
	d.paused = false;
	sr_close(c);
	c = open_guided(9);
	assert_int_equal(sr_model(c)->guides, 16);
	sr_close(c);
}

/* The device computes nothing, so requests fill the queue and wait in the ring; their guides are kept. */
static void guides_wait_for_their_requests(void **state)
{
	static struct guided a[64];
	struct sr_conn *c = open_guided(64);

	(void)state;
	assert_int_equal(sr_model(c)->guides, 32);
	sr_close(c);
	daemon_stop(&d);
	daemon_start(&d, &(struct clients_config){ .guides = 64 });
	c = open_guided(64);
	assert_int_equal(sr_model(c)->guides, 64);
	d.paused = true;
	for (int i = 0; i < 64; i++)          /* of 32 with masks a tenant gets 8 times what it leaves */
		begin(c, &a[i], 9000 + (uint64_t)i, 50);
	usleep(2000);
	daemon_look(&d);
	assert_int_equal(d.cs.taken, 29);
	d.paused = false;
	read_ends(c, 64);
	sr_close(c);
}

static struct sr_end ended(struct sr_conn *c)
{
	struct sr_token t = { 0 };
	int e;

	while (t.kind != SR_END) {
		while ((e = sr_next(c, &t)) == 0)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
		assert_int_equal(e, 1);
	}
	return t.end;
}

/* A mask of no id ends the answer, not the connection; so does a stop id that a guide leaves alone. */
static void how_they_end(void **state)
{
	static const uint32_t nothing[WORDS];
	static const int32_t prompt[] = { 1, 2, 3 }, allow[] = { 100 }, other[] = { 101 }, eos[] = { EOS };
	struct sr_request q = { .size = sizeof(q), .prompt = prompt, .n_prompt = 3, .max_tokens = 9, .flags = SR_GUIDED,
		.allow = allow };
	struct sr_conn *c = open_guided(8);
	struct sr_end end;
	uint32_t ticket;

	(void)state;
	assert_int_equal(sr_submit(c, &q, &ticket), 0);
	assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_BITS, NULL, 0, nothing), 0);
	end = ended(c);
	assert_int_equal(end.finish, -EDOM);
	assert_int_equal(end.n_tokens, 0);
	q.n_allow = 1;                        /* its lists and its guide together leave nothing */
	assert_int_equal(sr_submit(c, &q, &ticket), 0);
	assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_ONLY, other, 1, NULL), 0);
	assert_int_equal(ended(c).finish, -EDOM);
	q.n_allow = 0;
	assert_int_equal(sr_submit(c, &q, &ticket), 0);
	assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_IS, eos, 1, NULL), 0);
	end = ended(c);
	assert_int_equal(end.finish, SR_STOP);
	assert_int_equal(end.n_tokens, 1);
	for (int i = 0; i < 3; i++) {         /* for a request that is over: ignored, whatever its index */
		assert_int_equal(sr_guide(c, ticket, (uint32_t)i, SR_GUIDE_BITS, NULL, 0, nothing), 0);
		assert_int_equal(sr_guide(c, ticket, (uint32_t)i, SR_GUIDE_IS, eos, 1, NULL), 0);
	}
	q.flags = 0;                          /* and for one that is not guided */
	assert_int_equal(sr_submit(c, &q, &ticket), 0);
	assert_int_equal(sr_guide(c, ticket, 0, SR_GUIDE_BITS, NULL, 0, nothing), 0);
	end = ended(c);
	assert_true(end.finish == SR_LENGTH || end.finish == SR_STOP);
	q.flags = SR_GUIDED;
	assert_int_equal(sr_submit(c, &q, &ticket), 0);
	assert_int_equal(sr_cancel(c, ticket), 0);
	assert_int_equal(ended(c).finish, -ECANCELED);
	sr_close(c);
}

/* It closes in the middle: nothing of it is left. */
static void a_client_that_leaves(void **state)
{
	static struct guided a[8];

	(void)state;
	for (int round = 0; round < 30; round++) {
		struct sr_conn *c = open_guided(8);

		for (int i = 0; i < 8; i++)
			begin(c, &a[i], (uint64_t)i, 100);
		usleep((useconds_t)round * 20);
		sr_close(c);
	}
}

/* Who asks for none has none. */
static void none_are_granted(void **state)
{
	static const int32_t prompt[] = { 1 };
	struct sr_request q = { .size = sizeof(q), .prompt = prompt, .n_prompt = 1, .max_tokens = 1, .flags = SR_GUIDED };
	struct sr_conn *c = open_guided(0);

	(void)state;
	assert_int_equal(sr_model(c)->guides, 0); /* who does not ask */
	assert_int_equal(sr_submit(c, &q, NULL), -ENOTSUP);
	sr_close(c);
}

int main(void)
{
#define CASE(f) DAEMON_CASE(f, &d)
	const struct CMUnitTest tests[] = {
		CASE(each_token_is_as_guided), CASE(no_more_than_there_are),
		CASE(guides_wait_for_their_requests), CASE(how_they_end),
		CASE(a_client_that_leaves), CASE(none_are_granted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
