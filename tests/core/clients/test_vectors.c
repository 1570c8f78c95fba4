/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* test_vectors.c - pooled requests through the rings: each vector is that of its prompt, whatever else is computed,
 * and a client can neither ask for an odd one nor write where others' vectors lie. */
#include "tests/rig/daemon.h"
#include "tests/rig/evil.h"

static struct daemon d;

#define LONGEST 900

static const struct sr_shape small_pooled = { 32, 64, SR_PAGE, 0, 8 };

struct pooled {
	struct sr_pooling how;
	int32_t ids[LONGEST];
	uint32_t n, n_allow;
	int32_t allow[3];
};

static void make(struct pooled *p, uint32_t salt)
{
	*p = (struct pooled){ .how = { 1 + salt % 4, salt % 3 ? 0 : 1 + salt % WIDTH, 0 },
		.n = salt % 5 == 0 ? LONGEST - salt : 1 + salt * 7 % 200, .n_allow = 1 + salt % 3, .allow = { 5, 9, 5 } };
	if (p->how.kind == SR_POOL_LOGITS)
		p->how.width = 0;
	else
		p->n_allow = 0;
	for (uint32_t i = 0; i < p->n; i++)
		p->ids[i] = (int32_t)((salt % 8 * 7919 + i * i) % VOCAB); /* some prompts begin alike */
}

static int submit(struct sr_conn *c, const struct pooled *p)
{
	struct sr_request q = { .size = sizeof(q), .prompt = p->ids, .n_prompt = p->n, .flags = SR_POOLED,
		.pooling = p->how, .allow = p->n_allow ? p->allow : NULL, .n_allow = p->n_allow,
		.user_data = (uintptr_t)p };

	return sr_submit(c, &q, NULL);
}

static void check_vector(struct sr_conn *c, const struct sr_token *t)
{
	const struct pooled *p = (void *)(uintptr_t)t->user_data;
	uint32_t n = p->n_allow ? p->n_allow : p->how.width ? p->how.width : WIDTH;
	float got[WIDTH], want[WIDTH];

	assert_int_equal(t->kind, SR_END);
	assert_int_equal(t->end.finish, SR_STOP);
	assert_int_equal(t->end.n_tokens, n);
	assert_int_equal(sr_vector(c, t->place, got, n), 0);
	assert_int_equal(sr_vector(c, t->place, got, n), -EINVAL);
	sr_null_vector((enum sr_pool)p->how.kind, p->ids, (int32_t)p->n, (const uint32_t *)p->allow, (int32_t)p->n_allow,
	               (int32_t)n, want);
	assert_memory_equal(got, want, n * sizeof(got[0]));
}

static void next(struct sr_conn *c, struct sr_token *t)
{
	int e;

	while ((e = sr_next(c, t)) == 0)
		assert_true(sr_wait(c, SR_WAIT_TOKENS, 5000) > 0);
	assert_int_equal(e, 1);
}

static struct sr_conn *open_pooled(uint32_t n)
{
	struct sr_options o = { .size = sizeof(o), .vectors = n };
	struct sr_conn *c = NULL;

	assert_int_equal(sr_open(&c, d.path, &o), 0);
	assert_int_equal(sr_model(c)->vectors, n);
	assert_int_equal(sr_model(c)->width, WIDTH);
	return c;
}

/* More at once than a batch has vectors, prompts in several chunks, others' answers between them. */
static void each_vector_is_its_prompts(void **state)
{
	static struct pooled p[16];
	struct sr_conn *c = open_pooled(16), *other;

	(void)state;
	assert_int_equal(sr_open(&other, d.path, NULL), 0);
	for (uint32_t round = 0; round < 12; round++) {
		for (uint32_t i = 0; i < 16; i++) {
			make(&p[i], round * 16 + i);
			assert_int_equal(submit(c, &p[i]), 0);
		}
		assert_int_equal(submit(c, &p[0]), -EBUSY); /* all places are in use */
		ask(other, round, 20);
		for (uint32_t i = 0; i < 16; i++) {
			struct sr_token t = { 0 };

			next(c, &t);
			check_vector(c, &t);
		}
	}
	sr_close(other);
	sr_close(c);
	daemon_look(&d);
	assert_int_equal(d.n.pooled, 12 * 16);
	assert_true(d.n.prefix_hits > 0);
}

static void places_come_back(void **state)
{
	static struct pooled p;
	struct sr_token t = { 0 };
	struct sr_conn *c = open_pooled(8);
	uint32_t ticket;

	(void)state;
	make(&p, 5);
	for (int i = 0; i < 20; i++) {            /* a cancelled one's place, too */
		struct sr_request q = { .size = sizeof(q), .prompt = p.ids, .n_prompt = p.n, .flags = SR_POOLED,
			.pooling = { .kind = SR_POOL_MEAN } };

		assert_int_equal(sr_submit(c, &q, &ticket), 0);
		assert_int_equal(sr_cancel(c, ticket), 0);
		next(c, &t);
		assert_true(t.end.finish == -ECANCELED || t.end.finish == SR_STOP);
		assert_int_equal(t.end.n_tokens, t.end.finish == SR_STOP ? WIDTH : 0);
		assert_int_equal(sr_vector(c, t.place, NULL, 0), 0);
	}
	sr_close(c);
	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	assert_int_equal(submit(c, &p), -ENOTSUP); /* it asked for no vectors */
	sr_close(c);
}

#pragma GCC diagnostic ignored "-Woverride-init" /* cases are a good request with one field changed */

/* Each field at its edges, by hand.  The daemon judges; a wrong one costs its own answer alone. */
static void edges(void **state)
{
#define GOOD .flags = SR_POOLED, .pool = SR_POOL_LAST, .place = 1, .sampling = { .min_position = 4 }, \
	.span = { { .kind = SR_SPAN_PROMPT, .n = 4 } }
#define LOGITS(k) .flags = SR_POOLED, .pool = SR_POOL_LOGITS, .place = 1, .sampling = { .min_position = 4 }, \
	.span = { { .kind = SR_SPAN_PROMPT, .n = 4 }, { .kind = SR_SPAN_ALLOW, .n = k } }
	static const struct { const char *name; bool good; struct sr_wire_request q; } t[] = {
		{ "good", true, { GOOD } },
		{ "the last place", true, { GOOD, .place = 8 } },
		{ "a place beyond", false, { GOOD, .place = 9 } },
		{ "the highest place", false, { GOOD, .place = UINT16_MAX } },
		{ "no place", false, { GOOD, .place = 0 } },
		{ "no kind", false, { GOOD, .pool = 0 } },
		{ "a kind beyond", false, { GOOD, .pool = SR_POOL_LOGITS + 1 } },
		{ "all elements", true, { GOOD, .width = WIDTH } },
		{ "an element too many", false, { GOOD, .width = WIDTH + 1 } },
		{ "as wide as can be", false, { GOOD, .width = UINT32_MAX } },
		{ "unit", true, { GOOD, .unit = 1 } },
		{ "unit of 2", false, { GOOD, .unit = 2 } },
		{ "tokens, too", false, { GOOD, .max_tokens = 1 } },
		{ "alternatives", false, { GOOD, .n_top = 1 } },
		{ "guided", false, { GOOD, .flags = SR_POOLED | SR_GUIDED } },
		{ "scored", false, { GOOD, .flags = SR_POOLED | SR_PROMPT_LOGPROBS } },
		{ "a temperature", false, { GOOD, .sampling = { .temperature = 1, .min_position = 4 } } },
		{ "a list", false, { GOOD, .span = { { .kind = SR_SPAN_PROMPT, .n = 4 },
			{ .kind = SR_SPAN_STOP, .n = 1 } } } },
		{ "logits", true, { LOGITS(2) } },
		{ "as many as a place holds", true, { LOGITS(WIDTH) } },
		{ "more than a place holds", false, { LOGITS(WIDTH + 1) } },
		{ "logits of nothing", false, { GOOD, .pool = SR_POOL_LOGITS } },
		{ "logits cut", false, { LOGITS(2), .width = 1 } },
		{ "logits of length 1", false, { LOGITS(2), .unit = 1 } },
		{ "a second text", true, { GOOD, .second = 3 } },
		{ "a second text behind the prompt", false, { GOOD, .second = 4 } },
		{ "a second text far behind", false, { GOOD, .second = UINT32_MAX } },
		{ "a place without a pool", false, { GOOD, .flags = 0, .pool = 0, .max_tokens = 1 } },
		{ "a pool without its flag", false, { GOOD, .flags = 0, .place = 0, .max_tokens = 1 } },
	};
	struct evil e;
	uint32_t n = 0;

	(void)state;
	evil_open(&e, d.path, small_pooled);
	assert_int_equal(e.shape.vectors, 8);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_true(evil_put(&e, &t[i].q));
		evil_ends(&e, ++n);
		if ((e.finish > 0) != t[i].good)
			fail_msg("%s: ended with %d", t[i].name, e.finish);
	}
	evil_close(&e);
}

/* Two requests in one place: the daemon writes both, and neither a token nor a neighbour's vector is touched. */
static void one_place_twice(void **state)
{
	static struct pooled p;
	struct sr_conn *c = open_pooled(8);
	struct sr_token t = { 0 };
	struct evil e;

	(void)state;
	evil_open(&e, d.path, small_pooled);
	for (uint32_t n = 1; n <= 30; n++) {
		struct sr_wire_request q = { GOOD, .place = 8 };

		make(&p, n);
		assert_int_equal(submit(c, &p), 0);
		assert_true(evil_put(&e, &q) && evil_put(&e, &q));
		next(c, &t);
		check_vector(c, &t);
		evil_ends(&e, 2 * n);
	}
	evil_close(&e);
	sr_close(c);
}

/* A grant is cut to what there is, and counted as the client's memory. */
static void grants(void **state)
{
	struct sr_options o = { .size = sizeof(o), .vectors = 5000 };
	struct sr_conn *c;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, &o), 0);
	assert_int_equal(sr_model(c)->vectors, 32);
	sr_close(c);
}

static int start(void **state) { (void)state; daemon_start(&d, NULL); return 0; }
static int stop_it(void **state) { (void)state; return daemon_end(&d); }

/* An encoder answers pooled requests alone. */
static int start_encoder(void **state)
{
	(void)state;
	daemon_start(&d, &(struct clients_config){ .only_pooled = true });
	return 0;
}

static void an_encoder_makes_no_tokens(void **state)
{
	static const struct sr_wire_request token = { .max_tokens = 1, .sampling = { .min_position = 4 },
		.span = { { .kind = SR_SPAN_PROMPT, .n = 4 } } }, pooled = { GOOD }, logits = { LOGITS(2) };
	struct evil e;

	(void)state;
	evil_open(&e, d.path, small_pooled);
	assert_true(evil_put(&e, &pooled));
	evil_ends(&e, 1);
	assert_int_equal(e.finish, SR_STOP);
	assert_true(evil_put(&e, &token));
	evil_ends(&e, 2);
	assert_int_equal(e.finish, -EINVAL);
	assert_true(evil_put(&e, &logits));
	evil_ends(&e, 3);
	assert_int_equal(e.finish, -EINVAL);
	evil_close(&e);
}

/* A classifier answers logits: none of length 1. */
static int start_classifier(void **state)
{
	(void)state;
	daemon_start(&d, &(struct clients_config){ .only_pooled = true, .labels = true });
	return 0;
}

static void logits_have_no_length(void **state)
{
	static const struct sr_wire_request pooled = { GOOD }, unit = { GOOD, .unit = 1 };
	struct sr_conn *c = open_pooled(8);
	struct evil e;

	(void)state;
	assert_true(sr_model(c)->flags & SR_LABELS);
	sr_close(c);
	evil_open(&e, d.path, small_pooled);
	assert_true(evil_put(&e, &pooled));
	evil_ends(&e, 1);
	assert_int_equal(e.finish, SR_STOP);
	assert_true(evil_put(&e, &unit));
	evil_ends(&e, 2);
	assert_int_equal(e.finish, -EINVAL);
	evil_close(&e);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, start, stop_it)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(each_vector_is_its_prompts), TEST(places_come_back), TEST(edges), TEST(one_place_twice),
		TEST(grants), cmocka_unit_test_setup_teardown(an_encoder_makes_no_tokens, start_encoder, stop_it),
		cmocka_unit_test_setup_teardown(logits_have_no_length, start_classifier, stop_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
