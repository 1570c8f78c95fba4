/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* test_continued.c - requests with n_answer: an answer that was cut at any token goes on with the same tokens,
 * indexes and end, over another connection and with every field that looks at the answer. */
#include "tests/rig/daemon.h"

static struct daemon d;

#define N_PROMPT 20
#define N_ANSWER 24

static const int32_t banned[] = { 2, 21, 22, 3, 4, 5, 6 }, stops[] = { 41, 42, 43, 44, 45, 46, 47, 48 };

static const struct { const char *what; struct sr_request q; } ways[] = {
	{ "greedy", { 0 } },
	{ "seeded", { .flags = SR_SEEDED, .sampling = { .temperature = 0.9f, .top_p = 0.95f, .seed = 7 } } },
	{ "penalties", { .sampling = { .presence = 0.5f, .frequency = 0.25f, .repetition = 1.1f } } },
	{ "bad words", { .bad = banned, .n_bad = 7 } },
	{ "stop ids and min_tokens", { .stop = stops, .n_stop = 8, .min_tokens = 9 } },
	{ "alternatives", { .n_top = 5 } },
};

struct answer { struct sr_token t[N_ANSWER]; uint32_t n; struct sr_end end; };

static void hear(struct sr_conn *c, struct answer *a)
{
	struct sr_token t = { 0 };
	int e;

	a->n = 0;
	for (;;) {
		while ((e = sr_next(c, &t)) == 0)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
		assert_int_equal(e, 1);
		if (t.kind == SR_END)
			break;
		assert_true(a->n < N_ANSWER);
		a->t[a->n++] = t;
	}
	a->end = t.end;
}

static struct sr_request make(struct sr_request q, const int32_t *ids, uint32_t n_answer)
{
	q.size = sizeof(q);
	q.prompt = ids;
	q.n_prompt = N_PROMPT + n_answer;
	q.n_answer = n_answer;
	q.max_tokens = N_ANSWER;
	return q;
}

static void the_rest_is_the_same(void **state)
{
	struct sr_conn *c[2];

	(void)state;
	for (int i = 0; i < 2; i++)
		assert_int_equal(sr_open(&c[i], d.path, NULL), 0);
	for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		struct answer whole, rest;
		int32_t ids[N_PROMPT + N_ANSWER];
		struct sr_request q;

		for (int i = 0; i < N_PROMPT; i++)
			ids[i] = (int32_t)((w * 37 + (size_t)i * 11) % VOCAB);
		q = make(ways[w].q, ids, 0);
		assert_int_equal(sr_submit(c[0], &q, NULL), 0);
		hear(c[0], &whole);
		assert_true(whole.n > 1);
		for (uint32_t k = 1; k < whole.n; k++) {
			ids[N_PROMPT + k - 1] = whole.t[k - 1].id;
			q = make(ways[w].q, ids, k);
			assert_int_equal(sr_submit(c[k % 2], &q, NULL), 0);
			hear(c[k % 2], &rest);
			assert_int_equal(rest.n, whole.n - k);
			for (uint32_t i = 0; i < rest.n; i++)
				if (memcmp(&rest.t[i], &whole.t[k + i], sizeof(rest.t[i])))
					fail_msg("%s, cut after %u: token %u", ways[w].what, k, k + i);
			assert_int_equal(rest.end.finish, whole.end.finish);
			assert_int_equal(rest.end.n_tokens, whole.end.n_tokens);
			assert_true(rest.end.cached <= N_PROMPT && rest.end.cached + rest.end.computed == N_PROMPT);
		}
	}
	sr_close(c[0]);
	sr_close(c[1]);
}

/* What cannot go on is refused, before the ring or by the daemon. */
static void what_cannot_go_on(void **state)
{
	static const int32_t ids[CONTEXT + 4];
	struct sr_conn *c;
	struct answer a;
	struct sr_request q;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	q = make((struct sr_request){ 0 }, ids, 4);
	q.n_prompt = 4;                        /* nothing but answer */
	assert_int_equal(sr_submit(c, &q, NULL), -EINVAL);
	q = make((struct sr_request){ 0 }, ids, 4);
	q.n_prompt = CONTEXT + 1;
	assert_int_equal(sr_submit(c, &q, NULL), -EMSGSIZE);
	q.n_prompt = CONTEXT;
	q.max_tokens = 5;
	assert_int_equal(sr_submit(c, &q, NULL), -EMSGSIZE);
	q = make((struct sr_request){ 0 }, ids, N_ANSWER); /* it has all its tokens */
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	hear(c, &a);
	assert_int_equal(a.end.finish, -EINVAL);
	q = make((struct sr_request){ .flags = SR_PROMPT_LOGPROBS }, ids, 1);
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	hear(c, &a);
	assert_int_equal(a.end.finish, -EINVAL);
	sr_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = { DAEMON_CASE(the_rest_is_the_same, &d), DAEMON_CASE(what_cannot_go_on, &d) };

	return cmocka_run_group_tests_name("continued", tests, NULL, NULL);
}
