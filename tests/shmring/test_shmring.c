/* LINK: @daemon shmring/client.c -luring -lhugetlbfs -lxxhash */
/* test_shmring.c - the whole protocol: client.c against a daemon over the null device, whose
 * every token, log-probability and alternative is known from the ids alone. */
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/rig/daemon.h"

static struct daemon d;

static struct sr_conn *open_conn(const struct sr_options *o)
{
	struct sr_conn *c = NULL;

	assert_int_equal(sr_open(&c, d.path, o), 0);
	return c;
}

static void prompt_make(int32_t *ids, uint32_t n, uint32_t salt)
{
	for (uint32_t i = 0; i < n; i++)
		ids[i] = (int32_t)((i * 2654435761u + salt * 40503u) % VOCAB);
}

/* The next whole token, within two seconds. */
static void next(struct sr_conn *c, struct sr_token *t)
{
	int n;

	while ((n = sr_next(c, t)) == 0)
		assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
	assert_int_equal(n, 1);
}

/* Read a whole answer to the prompt in ids, and check every number of it. */
static void check_answer(struct sr_conn *c, const struct sr_request *q, int32_t *ids)
{
	uint32_t n = q->n_prompt, scored = 0, made = 0, last = 0;
	struct sr_token t = { 0 };
	bool stopped = false;

	for (next(c, &t); t.kind != SR_END; next(c, &t)) {
		bool prompt = t.kind == SR_PROMPT;
		uint32_t at = prompt ? ++scored : n, n_top = prompt ? q->n_prompt_top : q->n_top;
		struct sr_null_text before = { 0 };

		sr_null_read(&before, (int32_t)q->n_prompt, ids, (int32_t)at);
		assert_int_equal(t.user_data, q->user_data);
		assert_int_equal(t.index, prompt ? scored : made);
		assert_int_equal(t.id, prompt ? ids[at] : answer(ids, (int32_t)n, (int32_t)q->n_prompt,
		                                                  (int32_t)q->min_tokens));
		assert_true(fabsf(t.logprob - sr_null_logprob(&before, t.id)) < 1e-6f);
		assert_int_equal(t.n_top, n_top);
		for (uint32_t k = 0; k < n_top; k++) {
			struct sr_top e = sr_null_top(&before, t.id, (int32_t)k, VOCAB);

			assert_int_equal(t.top[k].id, e.id);
			assert_true(fabsf(t.top[k].value - e.logprob) < 1e-6f);
		}
		assert_int_equal(last, 0);            /* nothing follows the last but the end */
		if (prompt)
			assert_int_equal(t.last, 0);
		if (prompt)
			continue;
		stopped = t.id == EOS;
		last = t.last;
		ids[n++] = t.id;
		made++;
	}
	assert_int_equal(scored, q->flags & SR_PROMPT_LOGPROBS ? q->n_prompt - 1 : 0);
	assert_int_equal(t.end.n_tokens, made);
	assert_int_equal(t.end.finish, stopped ? SR_STOP : SR_LENGTH);
	assert_int_equal(last, made ? t.end.finish : 0);
	assert_true(stopped || made == q->max_tokens);
	/* A prompt that is only scored uses its last token only for comparison. */
	assert_int_equal(t.end.cached + t.end.computed, q->max_tokens ? q->n_prompt : q->n_prompt - 1);
	assert_true(t.end.queued && t.end.scheduled >= t.end.queued && t.end.last >= t.end.first);
	assert_true(!made || t.end.first >= t.end.scheduled);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void says_what_it_serves(void **state)
{
	static const struct { struct sr_options o; uint32_t live, tokens, arena; } t[] = {
		{ { .size = sizeof(struct sr_options) }, 64, 1024, 57344 },
		{ { .size = sizeof(struct sr_options), .live = 1 }, 32, 512, 57344 },
		{ { .size = sizeof(struct sr_options), .live = 100, .tokens = 300, .arena = 5000 }, 128, 512, 8192 },
		{ { .size = sizeof(struct sr_options), .live = ~0u, .tokens = ~0u, .arena = ~0u }, 1024, 8192, 1 << 20 },
		{ { .size = 8, .live = 500 }, 64, 1024, 57344 }, /* an old caller: the rest is not read */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_conn *c = open_conn(&t[i].o);
		const struct sr_model_info *m = sr_model(c);

		assert_string_equal(m->name, "null");
		assert_int_equal(m->vocab, VOCAB);
		assert_int_equal(m->context, CONTEXT);
		assert_true(m->epoch != 0);
		if (m->live != t[i].live || m->tokens != t[i].tokens || m->arena != t[i].arena)
			fail_msg("case %zu: %u %u %u", i, m->live, m->tokens, m->arena);
		sr_close(c);
	}
}

static void no_daemon_no_connection(void **state)
{
	struct sr_options later = { .size = sizeof(later) + 8 };
	unsigned char big[sizeof(later) + 8] = { 0 };
	char path[120] = "/";
	struct sr_conn *c;

	(void)state;
	assert_int_equal(sr_open(&c, "/tmp/slipring-no-such-socket", NULL), -ENOENT);
	memset(path, 'x', sizeof(path) - 1);
	assert_int_equal(sr_open(&c, path, NULL), -ENAMETOOLONG);
	memcpy(big, &later, sizeof(later));
	big[sizeof(later)] = 1;               /* an option that this library does not know */
	assert_int_equal(sr_open(&c, d.path, (void *)big), -E2BIG);
}

static void every_number_is_right(void **state)
{
	static const struct { uint32_t n, max, top, flags, prompt_top; } t[] = {
		{ 1, 1, 0, 0, 0 }, { 5, 20, 0, 0, 0 }, { 16, 40, 1, 0, 0 }, { 17, 3, 4, 0, 0 },
		{ 100, 30, 5, 0, 0 }, { 600, 12, 20, 0, 0 }, { CONTEXT - 1, 1, 10, 0, 0 },
		{ 2, 1, 0, SR_PROMPT_LOGPROBS, 0 }, { 40, 5, 3, SR_PROMPT_LOGPROBS, 20 },
		{ 200, 0, 0, SR_PROMPT_LOGPROBS, 2 }, { 200, 8, 20, SR_PROMPT_LOGPROBS, 0 },
		{ 600, 4, 0, SR_NO_CACHE, 0 },
	};
	struct sr_conn *c = open_conn(NULL);
	int32_t ids[CONTEXT + 64];

	(void)state;
	for (uint32_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_request q = { .size = sizeof(q), .user_data = ~(uint64_t)i, .prompt = ids,
			.n_prompt = t[i].n, .max_tokens = t[i].max, .n_top = t[i].top, .flags = t[i].flags,
			.n_prompt_top = t[i].prompt_top };

		prompt_make(ids, t[i].n, i);
		assert_int_equal(sr_submit(c, &q, NULL), 0);
		check_answer(c, &q, ids);
	}
	sr_close(c);
}

static void wrong_requests_are_refused_here(void **state)
{
	static const int32_t id[2000] = { 1, 2, 3 };
	static const struct { int is; struct sr_request q; } t[] = {
		{ 0, { .n_prompt = 3, .max_tokens = 1 } },
		{ -EINVAL, { .n_prompt = 0, .max_tokens = 1 } },
		{ -EMSGSIZE, { .n_prompt = CONTEXT, .max_tokens = 1 } },
		{ -EMSGSIZE, { .n_prompt = ~0u, .max_tokens = 1 } },
		{ -EMSGSIZE, { .n_prompt = 3, .max_tokens = ~0u } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .stop = id, .n_stop = 1025 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .n_top = 21 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .n_prompt_top = 300 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .n_allow = 1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .allow = id, .n_allow = 1025 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .bad = id, .n_bad = ~0u } },
	};
	struct sr_conn *c = open_conn(NULL);
	struct { struct sr_request q; uint64_t later; } big = { .later = 1 };

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_request q = t[i].q;
		int e;

		q.size = sizeof(q);
		q.prompt = id;
		e = sr_submit(c, &q, NULL);
		if (e != t[i].is)
			fail_msg("case %zu: %d instead of %d", i, e, t[i].is);
	}
	big.q = (struct sr_request){ .size = sizeof(big), .prompt = id, .n_prompt = 1, .max_tokens = 1 };
	assert_int_equal(sr_submit(c, &big.q, NULL), -E2BIG);
	sr_close(c);
}

/* Requests that the library passes and the daemon refuses: the request ends, the connection lives. */
static void wrong_requests_end(void **state)
{
	static const int32_t none[] = { -1 }, id[] = { 1, 2, 3, VOCAB }, bad[] = { 2, 5 }, good[] = { 2, 5, 6, 1, 9 };
	static const struct sr_pair nan_bias = { 1, NAN };
	static const struct { int is; struct sr_request q; } t[] = {
		{ -EINVAL, { .n_prompt = 4, .max_tokens = 1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 0 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 2, .min_tokens = 3 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .flags = 128 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .sampling.seed = 1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .sampling.temperature = NAN } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .sampling.temperature = -1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .sampling.top_p = 1.5f } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .sampling.min_p = -0.1f } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .sampling.presence = 2.5f } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .sampling.repetition = INFINITY } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .n_prompt_top = 1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .stop = none, .n_stop = 1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .allow = id + 3, .n_allow = 1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .bias = &nan_bias, .n_bias = 1 } },
		{ -EINVAL, { .n_prompt = 3, .max_tokens = 1, .bad = bad, .n_bad = 2 } },
		{ SR_LENGTH, { .n_prompt = 3, .max_tokens = 1, .bad = good, .n_bad = 5 } },
		{ -ETIME, { .n_prompt = 3, .max_tokens = 100, .deadline = 1 } },
	};
	struct sr_conn *c = open_conn(NULL);
	struct sr_token k = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct sr_request q = t[i].q;

		q.size = sizeof(q);
		q.prompt = id;
		q.user_data = i;
		assert_int_equal(sr_submit(c, &q, NULL), 0);
		do
			next(c, &k);
		while (k.kind != SR_END);
		assert_int_equal(k.user_data, i);
		if (k.end.finish != t[i].is)
			fail_msg("case %zu: ended with %d instead of %d", i, k.end.finish, t[i].is);
	}
	sr_close(c);
}

static void full_is_said_and_waited_for(void **state)
{
	struct sr_options o = { .size = sizeof(o), .live = 32, .arena = 4096 };
	struct sr_conn *c = open_conn(&o);
	int32_t ids[CONTEXT];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 400, .max_tokens = 1 };
	struct sr_token t = { 0 };
	int ends = 0;

	(void)state;
	prompt_make(ids, 400, 3);
	d.paused = true;
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	q.n_prompt = 1025;
	assert_int_equal(sr_submit(c, &q, NULL), -EMSGSIZE); /* longer than the context */
	q.n_prompt = 1;
	/* The daemon takes what it can while it is paused, so fill up what is left: live. */
	for (int i = 1; i < 32; i++)
		while (sr_submit(c, &q, NULL) == -EAGAIN)
			assert_int_equal(sr_wait(c, SR_WAIT_ROOM, 2000), SR_WAIT_ROOM);
	assert_int_equal(sr_submit(c, &q, NULL), -EBUSY);
	assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 20), 0);
	d.paused = false;
	while (ends < 32) {
		next(c, &t);
		ends += t.kind == SR_END;
	}
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	sr_close(c);
}

static void cancels_end_what_they_name(void **state)
{
	struct sr_conn *c = open_conn(NULL);
	int32_t ids[8];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 8, .max_tokens = 900,
		.flags = SR_IGNORE_EOS };
	struct sr_token t = { 0 };
	uint32_t ticket[3];

	(void)state;
	prompt_make(ids, 8, 1);
	d.paused = true;
	for (int i = 0; i < 3; i++) {
		q.user_data = (uint64_t)i;
		assert_int_equal(sr_submit(c, &q, &ticket[i]), 0);
	}
	assert_int_equal(sr_cancel(c, ticket[1]), 0); /* not planned yet: no token comes */
	next(c, &t);
	assert_int_equal(t.kind, SR_END);
	assert_int_equal(t.user_data, 1);
	assert_int_equal(t.end.finish, -ECANCELED);
	assert_int_equal(t.end.n_tokens, 0);
	d.paused = false;
	next(c, &t);
	assert_int_equal(t.kind, SR_TOKEN);
	assert_int_equal(sr_cancel(c, ticket[0]), 0);
	assert_int_equal(sr_cancel(c, ticket[0]), 0); /* twice, and an unknown one: harmless */
	assert_int_equal(sr_cancel(c, ticket[0] - 5), 0);
	do
		next(c, &t);
	while (t.kind != SR_END || t.user_data != 0);
	assert_true(t.end.finish == -ECANCELED || t.end.finish == SR_LENGTH);
	do
		next(c, &t);
	while (t.kind != SR_END);
	assert_int_equal(t.user_data, 2);
	assert_int_equal(t.end.finish, SR_LENGTH);
	assert_int_equal(t.end.n_tokens, 900);
	sr_close(c);
}

/* For an event loop: sr_arm reports what is ready, or sr_fd becomes readable later. */
static void sleeps_and_is_woken(void **state)
{
	struct sr_options o = { .size = sizeof(o), .spin_us = 1 };
	struct sr_conn *c = open_conn(&o);
	int32_t ids[4];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 4, .max_tokens = 1 };
	struct pollfd p = { .fd = sr_fd(c), .events = POLLIN };
	struct sr_record r[4];

	(void)state;
	prompt_make(ids, 4, 9);
	for (int i = 0; i < 200; i++) {
		uint64_t before = io_now();

		assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 0), 0);
		if (i % 50 == 0) {
			assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 5), 0);
			assert_true(io_now() - before >= 5 * MS);
		}
		assert_int_equal(sr_submit(c, &q, NULL), 0);
		if (i % 2) {
			if (!sr_arm(c, SR_WAIT_TOKENS))
				assert_int_equal(poll(&p, 1, 2000), 1);
		} else {
			assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 2000), SR_WAIT_TOKENS);
		}
		for (int n = 0; n < 2; n += sr_poll(c, r, 4))
			assert_true(io_now() - before < 2000 * MS);
	}
	sr_close(c);
}

/* A client that polls is never signalled: a token costs the daemon no system call. */
static void a_polling_reader_is_not_signalled(void **state)
{
	struct sr_conn *c = open_conn(NULL);
	int32_t ids[4];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 4, .max_tokens = 500,
		.flags = SR_IGNORE_EOS };
	struct sr_record r[64];
	char byte;

	(void)state;
	prompt_make(ids, 4, 2);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(sr_submit(c, &q, NULL), 0);
		for (int n, got = 0; got < 501; got += n) {
			n = sr_poll(c, r, 64);
			assert_true(n >= 0);
		}
		/* Zeroed memory asks to be woken for record 0 of each ring; the first round uses that up. */
		for (int n = 0; recv(sr_fd(c), &byte, 1, MSG_DONTWAIT) == 1; n++)
			assert_true(round == 0 && n < 2);
	}
	sr_close(c);
}

static void pings(void **state)
{
	struct sr_conn *c = open_conn(NULL);
	uint64_t rtt = 0;

	(void)state;
	for (int i = 0; i < 100; i++) {
		assert_int_equal(sr_ping(c, &rtt, 2000), 0);
		assert_true(rtt > 0 && rtt < 2000 * MS);
	}
	sr_close(c);
}

/* Nothing is dropped: a late reader gets the same tokens and slows no other client. */
static void a_slow_reader_gets_it_all(void **state)
{
	struct sr_options o = { .size = sizeof(o), .live = 32, .tokens = 64 };
	struct sr_conn *slow = open_conn(&o), *quick = open_conn(NULL);
	static int32_t ids[3][CONTEXT];
	struct sr_request q = { .size = sizeof(q), .n_prompt = 10, .max_tokens = 300 };

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		prompt_make(ids[i], 10, 40 + i);
		q.prompt = ids[i];
		q.user_data = i;
		assert_int_equal(sr_submit(i ? quick : slow, &q, NULL), 0);
	}
	check_answer(quick, &q, ids[1]);
	usleep(20000);
	q.user_data = 0;
	check_answer(slow, &q, ids[0]);
	sr_close(slow);
	sr_close(quick);
}

static void a_stopped_daemon_is_told(void **state)
{
	struct sr_conn *c, *none;
	int32_t ids[4];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 4, .max_tokens = 3,
		.flags = SR_IGNORE_EOS };
	struct sr_record r[8];
	uint64_t rtt, until;
	int got = 0;

	(void)state;
	daemon_start(&d, NULL);
	c = open_conn(NULL);
	prompt_make(ids, 4, 2);
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	for (until = io_now() + 2000 * MS; d.cs.taken < 1 || d.ss.finished < 1; daemon_look(&d))
		assert_true(io_now() < until);
	d.fds += 1;                           /* our end of the connection */
	daemon_stop(&d);
	while (got < 4) {                     /* what was put can still be read */
		int n = sr_poll(c, r, 1);

		assert_int_equal(n, 1);
		got += n;
	}
	assert_int_equal(sr_poll(c, r, 8), -ECONNRESET);
	assert_int_equal(sr_submit(c, &q, NULL), -ECONNRESET);
	assert_int_equal(sr_cancel(c, 0), -ECONNRESET);
	assert_int_equal(sr_wait(c, SR_WAIT_TOKENS, 1000), -ECONNRESET);
	assert_int_equal(sr_arm(c, SR_WAIT_TOKENS), -ECONNRESET);
	assert_int_equal(sr_ping(c, &rtt, 1000), -ECONNRESET);
	sr_close(c);
	assert_int_equal(sr_open(&none, d.path, NULL), -ENOENT);
}

/* ---- two processes, everything at once ------------------------------------------------------- */

static uint32_t xorshift(uint32_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 17;
	return *s ^= *s << 5;
}

struct job { int32_t ids[CONTEXT]; uint32_t n_prompt, n, max, ticket; bool live, cancelled; };

static void job_submit(struct sr_conn *c, struct job *job, uint64_t at, uint32_t *s, int *sent)
{
	struct job *j = &job[at];
	struct sr_request q = { .size = sizeof(q), .prompt = j->ids, .user_data = at, .n_top = xorshift(s) % 21 };
	int e;

	j->n_prompt = j->n = q.n_prompt = 1 + xorshift(s) % (xorshift(s) % 16 ? 60 : 900);
	j->max = q.max_tokens = 1 + xorshift(s) % 24;
	prompt_make(j->ids, j->n, xorshift(s) % 8);
	e = sr_submit(c, &q, &j->ticket);
	if (e == -EAGAIN || e == -EBUSY)
		return;
	if (e)
		_exit(10);
	j->live = true;
	j->cancelled = xorshift(s) % 8 == 0;
	if (j->cancelled && sr_cancel(c, j->ticket) < 0)
		_exit(11);
	++*sent;
}

/* A client process: n requests, up to 24 at once, some cancelled; each token checked. */
static void client_process(uint32_t seed, int total)
{
	static struct job job[24];
	struct sr_options o = { .size = sizeof(o), .live = 32, .tokens = 64 << seed % 3, .arena = 8192 };
	struct sr_token t = { 0 };
	uint32_t s = seed * 77 + 1;
	struct sr_conn *c;
	int sent = 0, ended = 0, n;

	if (sr_open(&c, d.path, &o) < 0)
		_exit(9);
	while (ended < total) {
		for (uint64_t i = 0; i < 24 && sent < total; i++)
			if (!job[i].live && xorshift(&s) % 3 == 0)
				job_submit(c, job, i, &s, &sent);
		n = sr_next(c, &t);
		if (n < 0)
			_exit(12);
		if (n == 0) {
			if (ended < sent && sr_wait(c, SR_WAIT_TOKENS, 3000) <= 0)
				_exit(13);    /* a wake-up was lost */
			continue;
		}
		struct job *j = &job[t.user_data];

		if (t.user_data >= 24 || !j->live)
			_exit(14);
		if (t.kind == SR_TOKEN) {
			if (t.id != answer(j->ids, (int32_t)j->n, (int32_t)j->n_prompt, 0) ||
			    t.index != j->n - j->n_prompt)
				_exit(15);
			j->ids[j->n++] = t.id;
			continue;
		}
		if (t.end.n_tokens != j->n - j->n_prompt || (t.end.finish < 0 && !j->cancelled) ||
		    (t.end.finish == SR_LENGTH && t.end.n_tokens != j->max))
			_exit(16);
		j->live = false;
		ended++;
	}
	sr_close(c);
	_exit(0);
}

static void several_processes_at_once(void **state)
{
	pid_t pid[4];
	int rc;

	(void)state;
	for (uint32_t i = 0; i < 4; i++)
		if (!(pid[i] = fork()))
			client_process(i + 1, 400);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(waitpid(pid[i], &rc, 0), pid[i]);
		assert_int_equal(rc, 0);
	}
	daemon_look(&d);
	assert_int_equal(d.cs.taken, 1600);
	assert_int_equal(d.n.invalid, 0);
	assert_int_equal(d.n.died, 0);
}

int main(void)
{
#define CASE(f) DAEMON_CASE(f, &d)
	const struct CMUnitTest tests[] = {
		CASE(says_what_it_serves),
		CASE(no_daemon_no_connection),
		CASE(every_number_is_right),
		CASE(wrong_requests_are_refused_here),
		CASE(wrong_requests_end),
		CASE(full_is_said_and_waited_for),
		CASE(cancels_end_what_they_name),
		CASE(sleeps_and_is_woken),
		CASE(a_polling_reader_is_not_signalled),
		CASE(pings),
		CASE(a_slow_reader_gets_it_all),
		cmocka_unit_test(a_stopped_daemon_is_told),
		CASE(several_processes_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
