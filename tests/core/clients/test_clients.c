/* LINK: @daemon @config shmring/client.c tools/ping.c tools/serve_at.c tools/instance.c -luring -lhugetlbfs -lxxhash -ljansson -lyaml */
/* test_clients.c - what clients/serve.c adds to the rings: the translation of each field, seeds, salts
 * and tenants, priorities, counting, draining, many idle clients; the example; slipring ping. */
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/rig/daemon.h"
#include "core/clients/translate.c" /* the keyed hash is tested from inside */
#include "tools/commands.h"
#include "tools/instance.h"

static struct daemon d;

static struct sr_conn *open_conn(void)
{
	struct sr_conn *c = NULL;

	assert_int_equal(sr_open(&c, d.path, NULL), 0);
	return c;
}

static void next(struct sr_conn *c, struct sr_token *t)
{
	int n;

	while ((n = sr_next(c, t)) == 0)
		assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
	assert_int_equal(n, 1);
}

/* Run a request: its ids go to out[0 .. n).  Returns its END. */
static struct sr_end run(struct sr_conn *c, struct sr_request q, int32_t *out)
{
	struct sr_token t = { 0 };
	uint32_t n = 0;

	q.size = sizeof(q);
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	for (next(c, &t); t.kind != SR_END; next(c, &t))
		out[n++] = t.id;
	assert_int_equal(n, t.end.n_tokens);
	return t.end;
}

/* ---- the hash -------------------------------------------------------------------------------- */

static void siphash_is_siphash(void **state)
{
	/* The authors' test vectors: key 00 .. 0f, input 00 01 02 .. of 8 n bytes. */
	static const uint64_t key[2] = { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u };
	static const uint64_t in[] = { 0x0706050403020100u, 0x0f0e0d0c0b0a0908u };
	static const uint64_t is[] = { 0x726fdb47dd0e0e31u, 0x93f5f5799a932462u, 0x3f2acc7f57c29bdbu };

	(void)state;
	for (int n = 0; n <= 2; n++)
		assert_true(prefix_hash(key, in, n) == is[n]);
}

/* ---- each field ------------------------------------------------------------------------------ */

static const int32_t few[] = { 1, 11, 1, 12, 1, 13 }, stops[] = { 41, 42 }, many_allowed[] = { 100, 200, 300, 400, 500 };
static const int32_t words[] = { 2, 21, 22, 1, 23 };
static const struct sr_pair biases[] = { { 31, 1.5f }, { 32, -2 } };

/* A request, and what the device must be told of it. */
struct field { const char *what; struct sr_request q; struct sr_null_request is; };

#define SAMPLING .top_p = 1, .repetition = 1, .min_position = 8
static const struct field fields[] = {
	{ "nothing", { .max_tokens = 12 }, { .sampling = { SAMPLING } } },
	{ "seed and temperature", { .sampling = { .temperature = 0.7f, .seed = 99 }, .flags = SR_SEEDED },
	  { .sampling = { SAMPLING, .seed = 99, .temperature = 0.7f } } },
	{ "cuts", { .flags = SR_SEEDED,
	  .sampling = { .temperature = 1, .seed = 1, .top_p = 0.9f, .min_p = 0.1f, .top_k = 40 } },
	  { .sampling = { .top_p = 0.9f, .min_p = 0.1f, .top_k = 40, .repetition = 1, .min_position = 8,
	                  .seed = 1, .temperature = 1 } } },
	{ "presence", { .sampling.presence = 0.5f }, { .sampling = { SAMPLING, .presence = 0.5f }, .history = true } },
	{ "frequency", { .sampling.frequency = -1 }, { .sampling = { SAMPLING, .frequency = -1 }, .history = true } },
	{ "repetition", { .sampling.repetition = 1.5f },
	  { .sampling = { .top_p = 1, .repetition = 1.5f, .min_position = 8 }, .history = true } },
	{ "repetition 1 is off", { .sampling.repetition = 1 }, { .sampling = { SAMPLING } } },
	{ "min_tokens", { .min_tokens = 6 },
	  { .sampling = { .top_p = 1, .repetition = 1, .min_position = 14 } } },
	{ "stop", { .n_stop = 2, .stop = stops },
	  { .sampling = { SAMPLING }, .list = { (const uint32_t[]){ EOS, 41, 42 } }, .n_list = { 3 } } },
	{ "top_k below 0 is off", { .sampling.top_k = -1 }, { .sampling = { SAMPLING } } },
	{ "top_k above all is off", { .sampling.top_k = INT32_MAX }, { .sampling = { SAMPLING } } },
	{ "ignored eos", { .flags = SR_IGNORE_EOS, .n_stop = 1, .stop = stops },
	  { .sampling = { SAMPLING }, .list = { (const uint32_t[]){ 41 } }, .n_list = { 1 } } },
	{ "bias", { .bias = biases, .n_bias = 2 },
	  { .sampling = { SAMPLING }, .list = { NULL, (const uint32_t[]){ 31, 0x3fc00000, 32, 0xc0000000 } },
	    .n_list = { 0, 4 } } },
	{ "allowed", { .allow = many_allowed, .n_allow = 5 },
	  { .sampling = { SAMPLING }, .list = { NULL, NULL, (const uint32_t *)many_allowed },
	    .n_list = { 0, 0, 5 } } },
	{ "banned", { .bad = few, .n_bad = 6 },
	  { .sampling = { SAMPLING }, .list = { NULL, NULL, NULL, (const uint32_t[]){ 1, 11, 1, 12, 1, 13 } },
	    .n_list = { 0, 0, 0, 6 } } },
	{ "bad words", { .bad = words, .n_bad = 5 },
	  { .sampling = { SAMPLING }, .list = { NULL, NULL, NULL, (const uint32_t *)words },
	    .n_list = { 0, 0, 0, 5 }, .history = true } },
	{ "all of them", { .stop = stops, .n_stop = 1, .allow = many_allowed, .n_allow = 5, .bias = biases, .n_bias = 1,
	                   .bad = few, .n_bad = 2 },
	  { .sampling = { SAMPLING }, .list = { (const uint32_t[]){ EOS, 41 }, (const uint32_t[]){ 31, 0x3fc00000 },
	    (const uint32_t *)many_allowed, (const uint32_t[]){ 1, 11 } }, .n_list = { 2, 2, 5, 2 } } },
};

static void each_field_reaches_the_device(void **state)
{
	static const uint32_t eos[] = { EOS };
	struct sr_conn *c = open_conn();

	(void)state;
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		struct sr_request q = fields[i].q;
		struct sr_null_request is = fields[i].is;
		int32_t ids[64] = { 5, 6, 7, 8, 9, 10, 11, 12 }, got[64];
		uint32_t n = 8, n_stops;
		struct sr_end end;

		if (!is.list[SR_LIST_STOP]) {
			is.list[SR_LIST_STOP] = eos;
			is.n_list[SR_LIST_STOP] = 1;
		}
		n_stops = (uint32_t)is.n_list[SR_LIST_STOP];
		is.n_prompt = 8;
		is.vocab = VOCAB;
		q.prompt = ids;
		q.n_prompt = 8;
		q.max_tokens = 12;
		end = run(c, q, got);
		for (uint32_t k = 0; k < end.n_tokens; k++, n++) {
			ids[n] = sr_null_next(&is, ids, (int32_t)n);
			if (got[k] != ids[n])
				fail_msg("%s: token %u is %d instead of %d", fields[i].what, k, got[k], ids[n]);
		}
		bool stop = false;

		for (uint32_t k = 0; k < n_stops; k++)
			stop |= (uint32_t)got[end.n_tokens - 1] == is.list[SR_LIST_STOP][k];
		assert_int_equal(end.finish, stop ? SR_STOP : SR_LENGTH);
	}
	sr_close(c);
}

static void a_stop_id_ends_the_answer(void **state)
{
	static const int32_t ids[] = { 1, 2, 3 };
	struct sr_conn *c = open_conn();
	int32_t free_run[64], got[64];
	struct sr_request q = { .prompt = ids, .n_prompt = 3, .max_tokens = 10, .allow = many_allowed,
		.n_allow = 5 };

	(void)state;
	run(c, q, free_run);
	q.stop = many_allowed;                /* every token is one of these */
	q.n_stop = 5;
	assert_int_equal(run(c, q, got).finish, SR_STOP);
	assert_int_equal(run(c, q, got).n_tokens, 1);
	sr_close(c);
}

static void without_a_seed_draws_differ(void **state)
{
	static const int32_t ids[] = { 1, 2, 3 };
	struct sr_conn *c = open_conn();
	int32_t a[16], b[16];
	struct sr_request q = { .prompt = ids, .n_prompt = 3, .max_tokens = 8, .sampling.temperature = 1,
		.flags = SR_IGNORE_EOS };

	(void)state;
	run(c, q, a);
	run(c, q, b);
	assert_memory_not_equal(a, b, 8 * sizeof(a[0]));
	q.flags |= SR_SEEDED;
	q.sampling.seed = 3;
	run(c, q, a);
	run(c, q, b);
	assert_memory_equal(a, b, 8 * sizeof(a[0]));
	sr_close(c);
}

/* ---- who shares what with whom --------------------------------------------------------------- */

static uint32_t cached(struct sr_conn *c, uint64_t salt, uint64_t tenant)
{
	static int32_t ids[100];
	struct sr_request q = { .prompt = ids, .n_prompt = 100, .max_tokens = 1, .cache_salt = salt,
		.tenant = tenant };
	int32_t got[1];

	for (int i = 0; i < 100; i++)
		ids[i] = i;
	return run(c, q, got).cached;
}

/* As user nobody: the child's exit code is cached(), or 254 if it was told other flags about tenants than
 * `flags`. */
static int cached_as_nobody(uint64_t salt, uint32_t flags)
{
	pid_t pid = fork();
	int rc;

	if (!pid) {
		struct sr_conn *c;

		if (setgid(65534) || setuid(65534) || sr_open(&c, d.path, NULL) < 0)
			_exit(255);
		if (sr_model(c)->flags != flags)
			_exit(254);
		_exit((int)cached(c, salt, 7));
	}
	waitpid(pid, &rc, 0);
	return WEXITSTATUS(rc);
}

static void prefixes_are_shared_within_a_scope(void **state)
{
	static const struct { bool global, tenant; int other_tenant, other_uid; } t[] = {
		{ false, false, 96, 0 },      /* by uid: tenants of one gateway share, other users do not */
		{ false, true, 0, 0 },
		{ true, false, 96, 96 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct clients_config cfg = { .scope = t[i].global ? PREFIX_GLOBAL :
			t[i].tenant ? PREFIX_BY_TENANT : PREFIX_BY_UID };
		uint32_t apart = t[i].tenant ? SR_TENANTS_APART : 0;
		struct sr_conn *c;

		daemon_start(&d, &cfg);
		chmod(d.dir, 0755);
		chmod(d.path, 0777);
		c = open_conn();
		assert_int_equal(sr_model(c)->flags, SR_TENANTS_HEARD | apart);
		assert_int_equal(cached(c, 0, 7), 0);
		assert_int_equal(cached(c, 0, 7), 96);
		assert_int_equal(cached(c, 5, 7), 0); /* another salt shares nothing */
		assert_int_equal(cached(c, 5, 7), 96);
		assert_int_equal(cached(c, 0, 8), t[i].other_tenant);
		if (geteuid() == 0)
			assert_int_equal(cached_as_nobody(0, apart), t[i].other_uid);
		else
			print_message("SKIP other uid: not root\n");
		sr_close(c);
		assert_int_equal(daemon_end(&d), 0);
	}
}

static void submit_of(struct sr_conn *c, uint64_t tenant, int n)
{
	static const int32_t ids[] = { 1, 2, 3 };
	const struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 3, .max_tokens = 1,
	                              .tenant = tenant, .user_data = tenant };

	while (n-- > 0)
		assert_int_equal(sr_submit(c, &q, NULL), 0);
}

/* How many requests come back, all of this tenant; nothing else may be there. */
static int turned_away(struct sr_conn *c, uint64_t tenant)
{
	struct sr_token t = { 0 };
	int n = 0;

	for (int quiet = 0; quiet < 20; quiet++) {
		for (; sr_next(c, &t) == 1; n++, quiet = 0)
			assert_true(t.kind == SR_END && t.end.finish == -EAGAIN && t.user_data == tenant);
		usleep(1000);
	}
	return n;
}

/* A gateway's request for a tenant that has its share of the queue comes back, and requests of other tenants
 * behind it in the ring are taken.  Requests of a client that is no gateway wait in its ring. */
static void a_full_tenant_is_turned_away(void **state)
{
	const struct sr_options o = { .size = sizeof(o), .live = 400 };
	struct sr_conn *c = NULL;
	int n;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, &o), 0);
	d.paused = true;
	submit_of(c, 7, 250);
	submit_of(c, 8, 2);
	n = turned_away(c, 7);
	daemon_look(&d);
	assert_int_equal(d.ss.waiting, 250 - n + 2);
	assert_in_range(250 - n, 256 * 78 / 100, 256 * 80 / 100); /* one client of one tenant */
	submit_of(c, 0, 60);
	submit_of(c, 8, 1);
	assert_int_equal(turned_away(c, 0), 0);
	daemon_look(&d);
	assert_in_range(d.ss.waiting, 250 - n + 2 + 10, 250 - n + 2 + 59);
	d.paused = false;
	for (int i = 250 - n + 2 + 60 + 1; i > 0; i--) {
		struct sr_token t = { 0 };

		do
			next(c, &t);
		while (t.kind != SR_END);
		assert_int_equal(t.end.finish, SR_LENGTH);
	}
	sr_close(c);
}

static void strangers_are_not_urgent_nor_tenants(void **state)
{
	struct clients cl = { .key = { 1, 2 }, .cfg = { .n_eos = 0 } };
	struct client us = { .uid = 1000, .trusted = true, .gateway = true }, them = { .uid = 1001 };
	struct host_request r = { .q = { .priority = -5, .max_tokens = 1 }, .n_prompt = 1, .words = 1 };

	(void)state;
	cl.words = (uint32_t[SCHED_BEGIN_WORDS]){ 0 };
	assert_int_equal(translate(&cl, &us, &r, 0).priority, -5);
	assert_int_equal(translate(&cl, &them, &r, 0).priority, 0);
	r.q.priority = 5;
	assert_int_equal(translate(&cl, &them, &r, 0).priority, 5);
	assert_true(key_tenant(&cl, &them, 1000) == 1001);
	assert_true(key_tenant(&cl, &us, 0) == 1000);
	assert_true(key_tenant(&cl, &us, 1001) >> 63);
	assert_true(key_tenant(&cl, &us, 1001) != key_tenant(&cl, &us, 1002));
}

/* ---- counting, draining, crowds -------------------------------------------------------------- */

/* Times of requests with a first token: the parts add up. */
static void times_add_up(const struct stats_page *p, double elapsed)
{
	const struct stats_histogram *h = p->hist;
	const struct { double a, b; } same[] = {
		{ h[HIST_PREFILL].sum + h[HIST_DECODE].sum, h[HIST_INFERENCE].sum },
		{ h[HIST_QUEUE].sum + h[HIST_PREFILL].sum, h[HIST_TTFT].sum },
		{ h[HIST_ITL].sum, h[HIST_DECODE].sum },
	};

	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
		if (same[i].a < same[i].b - 1e-6 || same[i].a > same[i].b + 1e-6)
			fail_msg("sum %zu: %g and %g s", i, same[i].a, same[i].b);
	assert_true(h[HIST_INFERENCE].sum + h[HIST_QUEUE].sum <= h[HIST_E2E].sum + 1e-6);
	assert_true(h[HIST_E2E].sum > 0 && h[HIST_E2E].sum < elapsed);
	assert_true(h[HIST_TPOT].sum > 0 && h[HIST_TPOT].sum < h[HIST_DECODE].sum);
}

static void requests_are_counted(void **state)
{
	static const int32_t ids[20] = { 1, 2, 3 };
	struct sr_options small = { .size = sizeof(small), .tokens = 64 }; /* a long answer must wait for its reader */
	struct sr_conn *c;
	int32_t got[64];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 20, .max_tokens = 10,
		.flags = SR_IGNORE_EOS };
	const struct stats_page *p = d.stats;
	uint64_t began = io_now();
	uint32_t ticket;
	struct sr_token t = { 0 };
	struct sr_record end;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, &small), 0);
	for (int i = 0; i < 3; i++)
		run(c, q, got);
	q.max_tokens = 1;
	run(c, q, got);
	q.max_tokens = 900;
	assert_int_equal(sr_submit(c, &q, &ticket), 0);
	for (int i = 0; i < 3; i++)           /* enough to have a time per token */
		next(c, &t);
	sr_cancel(c, ticket);
	while (t.kind != SR_END)
		next(c, &t);
	q.flags = 0x100;
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	while (sr_poll(c, &end, 1) == 0)
		assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
	assert_true(end.kind == SR_END && end.u.end.finish == -EINVAL && end.preempted == 0);
	daemon_look(&d);
	assert_int_equal(d.n.ended[ENDED_LENGTH], 4);
	assert_int_equal(d.n.ended[ENDED_ABORT], 1);
	assert_int_equal(d.n.ended[ENDED_ERROR], 1);
	assert_int_equal(d.n.prompt_tokens, 100);
	assert_int_equal(d.n.prompt_cached, 64); /* the first block of four */
	assert_int_equal(d.n.generation_tokens, 31 + t.end.n_tokens);
	for (enum stats_hist h = 0; h < N_HIST; h++) {
		uint64_t n = 0;

		for (int i = 0; i < STATS_BUCKETS; i++)
			n += p->hist[h].count[i];
		assert_int_equal(n, h == HIST_STEP_TOKENS ? 0 : h == HIST_ITL ? 27 + t.end.n_tokens - 1 :
		                 h == HIST_TPOT ? 4 : 5);
	}
	assert_true(p->hist[HIST_PROMPT_TOKENS].sum == 100);
	assert_true(p->hist[HIST_PREFILL_COMPUTED].sum == 100 - 64);
	assert_true(p->hist[HIST_MAX_TOKENS].sum == 931);
	assert_true(p->hist[HIST_GENERATION_TOKENS].sum == 31 + t.end.n_tokens);
	times_add_up(p, (double)(io_now() - began) / 1e9);
	assert_int_equal(d.cs.taken, 6);
	assert_int_equal(d.n.invalid, 1);
	assert_int_equal(d.n.accepted, 1);
	sr_close(c);
}

/* Tokens of one step arrive after different gaps if the step before had room for only some rows. */
static void gaps_are_each_ones_own(void **state)
{
	static const int32_t ids[20] = { 1, 2, 3 };
	struct sr_options small = { .size = sizeof(small), .tokens = 64 };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 20, .max_tokens = 100, .flags = SR_IGNORE_EOS };
	uint64_t began = io_now();
	struct sr_record r[7];
	struct sr_conn *c;
	int ends = 0;

	(void)state;
	assert_int_equal(sr_open(&c, d.path, &small), 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(sr_submit(c, &q, NULL), 0);
	for (int i = 0; ends < 8; i++) {
		int n = sr_poll(c, r, i % 2 ? 3 : 7);

		assert_true(n >= 0);
		for (int k = 0; k < n; k++)
			ends += r[k].kind == SR_END;
		if (ends < 8)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
	}
	daemon_look(&d);
	times_add_up(d.stats, 8 * (double)(io_now() - began) / 1e9);
	sr_close(c);
}

static void drain(struct daemon *x) { clients_drain(x->cl); }

static void draining_ends_what_is_new(void **state)
{
	static const int32_t ids[] = { 1, 2, 3 };
	struct sr_conn *c = open_conn(), *none;
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 3, .max_tokens = 100,
		.flags = SR_IGNORE_EOS };
	struct sr_token t = { 0 };
	int32_t got[64];

	(void)state;
	d.paused = true;
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	do
		daemon_look(&d);
	while (d.cs.taken < 1);
	daemon_call(&d, drain);
	assert_int_equal(sr_open(&none, d.path, NULL), -ECONNREFUSED);
	assert_int_equal(run(c, q, got).finish, -ECONNRESET);
	d.paused = false;
	do
		next(c, &t);
	while (t.kind != SR_END);
	assert_int_equal(t.end.finish, SR_LENGTH); /* what had begun is finished */
	assert_int_equal(t.end.n_tokens, 100);
	sr_close(c);
}

enum { N_CROWD = 300 };
static struct sr_conn *crowd[N_CROWD];

/* All are cold; a client that puts a request is found within the turns that it takes to look at all, 64 in
 * each.  A turn in which no client wants anything has no work. */
static void the_cold_are_reached(struct daemon *x)
{
	static const int32_t ids[] = { 1, 2, 3 };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 3, .max_tokens = 3 };

	for (int i = 0; i < N_CROWD; i += 23) {
		uint64_t taken;
		int turns = 0, work;

		for (int k = 0; k < 400; k++)
			clients_take(x->cl, io_now());
		MUST(clients_take(x->cl, io_now()) == 0 && x->cl->n_hot <= i / 23 + 1); /* clients with requests */
		look_inside(x);
		taken = x->cs.taken;
		MUST(sr_submit(crowd[i], &q, NULL) == 0);
		do {
			work = clients_take(x->cl, io_now());
			look_inside(x);
		} while (x->cs.taken == taken && ++turns < N_CROWD / 64 + 2);
		MUST(x->cs.taken == taken + 1 && work > 0);
	}
	for (int k = 0; !clients_arm(x->cl); k++) {     /* then it may sleep */
		MUST(k < 1000);
		clients_take(x->cl, io_now());
		clients_flush(x->cl);
	}
}

static void idle_clients_are_still_seen(void **state)
{
	enum { N = N_CROWD };
	struct sr_conn **c = crowd;
	struct clients_config cfg = { .max = N, .live = 32, .tokens = 64, .arena = 4096 };
	static const int32_t ids[] = { 1, 2, 3 };
	struct sr_request q = { .prompt = ids, .n_prompt = 3, .max_tokens = 3 };
	int32_t got[8];
	uint64_t rtt;

	(void)state;
	daemon_start(&d, &cfg);
	for (int i = 0; i < N; i++)
		c[i] = open_conn();
	for (int i = 0; i < 20; i++)          /* keep the loop turning, so that the others get cold */
		for (int k = 0; k < 100; k++)
			assert_int_equal(sr_ping(c[0], &rtt, 2000), 0);
	daemon_call(&d, the_cold_are_reached);
	for (int i = 0; i < N; i += 23) {
		struct sr_token t = { 0 };

		while (t.kind != SR_END)
			next(c[i], &t);
	}
	for (int i = N - 1; i >= 0; i -= 7)
		run(c[i], q, got);
	for (int i = 0; i < N; i++) {
		if (i % 3 == 0)
			run(c[i], q, got);
		sr_close(c[i]);
	}
	assert_int_equal(daemon_end(&d), 0);
}

/* ---- the example, the command ---------------------------------------------------------------- */

static void the_example_works(void **state)
{
	int32_t ids[32] = { 12, 504, 338 };
	char cmd[512], line[128];
	int n = 3, made = 0;
	FILE *f;

	(void)state;
	snprintf(cmd, sizeof(cmd), "cc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -Ishmring -o %s/client "
	         "docs/examples/client.c shmring/client.c", d.dir);
	if (access("docs/examples/client.c", R_OK) < 0 || system("cc --version >/dev/null 2>&1") != 0) {
		print_message("SKIP the_example_works: no compiler, or not in the source tree\n");
		skip();
	}
	assert_int_equal(system(cmd), 0);
	snprintf(cmd, sizeof(cmd), "%s/client %s 12 504 338", d.dir, d.path);
	f = popen(cmd, "r");
	assert_non_null(fgets(line, sizeof(line), f));
	assert_string_equal(line, "model null, 50000 ids, context 1024\n");
	while (fgets(line, sizeof(line), f) && line[0] >= '0' && line[0] <= '9') {
		ids[n] = answer(ids, n, 3, 0);
		assert_int_equal(atoi(line), ids[n]);
		n++;
		made++;
	}
	assert_int_equal(made, 16);
	assert_string_equal(line, "length after 16 tokens\n");
	assert_int_equal(pclose(f), 0);
	snprintf(cmd, sizeof(cmd), "%s/client", d.dir);
	unlink(cmd);
}

/* ---- what operators see of a client ---------------------------------------------------------- */

static struct stats_client row;       /* of the first client, as the loop has it */

static void copy_row(struct daemon *x) { row = x->stats->client[0]; }

static void its_row_tells_what_it_does(void **state)
{
	const struct clients_config cfg = { .live = 32, .tokens = 256 };
	const struct sr_request q = { .size = sizeof(q), .prompt = (int32_t[]){ 1, 2, 3 }, .n_prompt = 3,
	                              .max_tokens = 900, .flags = SR_IGNORE_EOS };
	struct sr_options o = { .size = sizeof(o), .name = "rower" };
	struct sr_conn *c;
	struct sr_token t;
	int ends = 0;

	(void)state;
	daemon_start(&d, &cfg);
	daemon_call(&d, copy_row);
	assert_int_equal(row.id, 0);
	assert_int_equal(sr_open(&c, d.path, &o), 0);
	daemon_call(&d, copy_row);
	assert_int_equal(row.id, 1);
	assert_string_equal(row.name, "rower");
	assert_true(row.pid == (uint32_t)getpid() && row.uid == geteuid() && row.live == 0);

	d.paused = true;                      /* two at once; the first found none under way */
	for (int i = 0; i < 2; i++)
		assert_int_equal(sr_submit(c, &q, NULL), 0);
	for (int i = 0; i < 2000 && row.live < 2; i++) {
		usleep(1000);
		daemon_call(&d, copy_row);
	}
	assert_true(row.live == 2 && row.unanswered == 2 && row.requests == 2 && row.alone == 1);
	assert_int_equal(row.prompt_tokens, 6);

	d.paused = false;                     /* 1,800 tokens do not fit, and the client does not read */
	for (int i = 0; i < 2000 && !row.held; i++) {
		usleep(1000);
		daemon_call(&d, copy_row);
	}
	assert_true(row.held >= 1 && row.full_since_ns > 0 && row.unanswered == 0);
	assert_true(row.tokens > 0 && row.tokens < 1800);

	while (ends < 2) {
		next(c, &t);
		ends += t.kind == SR_END;
	}
	daemon_call(&d, copy_row);
	assert_true(row.live == 0 && row.unanswered == 0 && row.tokens == 1800 && row.full_since_ns == 0);
	sr_close(c);
	assert_true(daemon_settles(&d, 0));
	daemon_call(&d, copy_row);
	assert_int_equal(row.id, 0);         /* free for another */
	assert_int_equal(daemon_end(&d), 0);
}

/* A daemon of another version. */
static void *refuse_one(void *arg)
{
	struct sr_welcome w = { .magic = SR_MAGIC, .version = SR_VERSION + 1, .status = -EPROTO };
	char hello[256];
	int fd = accept(*(int *)arg, NULL, NULL);

	if (recv(fd, hello, sizeof(hello), 0) > 0)
		send(fd, &w, sizeof(w), MSG_NOSIGNAL);
	close(fd);
	return NULL;
}

/* It refuses with -EPROTO, and a tool says what would be right. */
static void of_another_version(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct sr_options o = { .size = sizeof(o) };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct sr_conn *c;
	char err[200];
	pthread_t t;

	(void)state;
	snprintf(a.sun_path, sizeof(a.sun_path), "%s.old", d.path);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(pthread_create(&t, NULL, refuse_one, &fd), 0);
	assert_int_equal(instance_connect(&c, a.sun_path, &o, err, sizeof(err)), -EPROTO);
	pthread_join(t, NULL);
	close(fd);
	unlink(a.sun_path);
	assert_non_null(strstr(err, a.sun_path));
	assert_non_null(strstr(err, "is of another version: use the slipring of its version"));
}

static void ping_prints_round_trips(void **state)
{
	char *good[] = { "ping", "--socket", d.path, "-n", "50", "--json", NULL };
	char *none[] = { "ping", "--socket", "/tmp/slipring-none", NULL };
	char *wrong[][3] = { { "ping", "-n", "0" }, { "ping", "-n", "x" }, { "ping", "--what", NULL } };
	char out[512] = "";
	int fd[2], saved = dup(1), err = dup(2), null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	(void)state;
	assert_int_equal(pipe(fd), 0);
	fflush(stdout);
	dup2(fd[1], 1);
	dup2(null, 2);
	assert_int_equal(cmd_ping(6, good), 0);
	fflush(stdout);
	dup2(saved, 1);
	assert_int_equal(cmd_ping(3, none), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(cmd_ping(i < 2 ? 3 : 2, wrong[i]), 2);
	dup2(err, 2);
	assert_true(read(fd[0], out, sizeof(out) - 1) > 0);
	assert_non_null(strstr(out, "\"count\": 50"));
	assert_non_null(strstr(out, "\"median_us\": "));
	assert_non_null(strstr(out, "\"bare_line_median_us\": "));
	close(fd[0]);
	close(fd[1]);
	close(saved);
	close(err);
	close(null);
}

/* ---- what is told of an end ------------------------------------------------------------------ */

static struct recorder rec;

static void stop_recording(struct daemon *x)
{
	(void)x;
	record_stop(&rec);
}

/* Two requests that run, and one cancelled before it is scheduled: their lines in the debug log,
 * and how many entries a recording gets. */
static void ends_are_logged_and_recorded(void **state)
{
	static const int32_t ids[] = { 1, 2, 3 };
	static const char *const want[] = {
		": length; 3 prompt tokens, 5 of 5 tokens", ": stop; 3 prompt tokens, 1 of 9 tokens",
		": Operation canceled; 3 prompt tokens, 0 of 7 tokens; waited 0.0 ms, first token after 0.0 ms",
		"trace 0102",
	};
	struct clients_config cfg = { .recorder = &rec };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 3, .max_tokens = 5,
		.flags = SR_IGNORE_EOS, .trace_id = { 1, 2 } };
	static char text[20000];
	struct sr_token t = { 0 };
	struct sr_conn *c;
	uint32_t ticket;
	int kept, fd;
	int32_t got[64];
	FILE *to;

	(void)state;
	assert_int_equal(record_start(&rec, false, 1, &fd), 0);
	close(fd);
	daemon_start(&d, &cfg);
	c = open_conn();
	to = tmpfile();
	kept = dup(STDERR_FILENO);
	fflush(stderr);
	assert_true(to && dup2(fileno(to), STDERR_FILENO) >= 0);
	log_level_by_name("debug");
	assert_int_equal(run(c, q, got).finish, SR_LENGTH);
	q.max_tokens = 9, q.allow = many_allowed, q.n_allow = 5;
	q.stop = many_allowed;
	q.n_stop = 5;
	assert_int_equal(run(c, q, got).finish, SR_STOP);
	q.max_tokens = 7;
	d.paused = true;
	assert_int_equal(sr_submit(c, &q, &ticket), 0);
	do
		daemon_look(&d);
	while (d.cs.taken < 3);
	assert_int_equal(sr_cancel(c, ticket), 0);
	do
		next(c, &t);
	while (t.kind != SR_END);
	assert_int_equal(t.end.finish, -ECANCELED);
	daemon_look(&d);                      /* an END is put before it is logged: both are over now */
	log_level_by_name("error");
	dup2(kept, STDERR_FILENO);
	close(kept);
	rewind(to);
	text[fread(text, 1, sizeof(text) - 1, to)] = 0;
	fclose(to);
	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		if (!strstr(text, want[i]))
			fail_msg("no \"%s\" in: %s", want[i], text);
	assert_int_equal(rec.page->n, 6);     /* one at arrival, one at the end */
	daemon_call(&d, stop_recording);
	d.paused = false;
	q.n_stop = 0;
	assert_int_equal(run(c, q, got).finish, SR_LENGTH); /* without a recording all goes on */
	sr_close(c);
	assert_int_equal(daemon_end(&d), 0);
}

/* ---- what they do meanwhile ------------------------------------------------------------------ */

static struct empty window;
static uint64_t spent[N_EMPTY];       /* in the last window */

/* All of the time since the last look counts as empty. */
static void look_around(struct daemon *daemon)
{
	uint64_t now = io_now();

	memset(spent, 0, sizeof(spent));
	if (window.since)
		empty_add(&window, EMPTY_SILENT, now - window.since);
	clients_doing(daemon->cl, &window, now);
	empty_split(&window, now, spent);
}

static void assert_all_is(enum stats_empty what)
{
	uint64_t all = 0;

	daemon_call(&d, look_around);
	for (int i = 0; i < N_EMPTY; i++)
		all += spent[i];
	assert_true(all > 0);
	if (spent[what] < all - 2)            /* clocks count even ns */
		fail_msg("%s: %ju of %ju ns", stats_empty_name(what), (uintmax_t)spent[what], (uintmax_t)all);
}

#define HOUR (3600 * 1000000000ull)

/* Each step begins a window in which nothing changes: no time is waited for, and none measured. */
static void what_it_does_is_told(void **state)
{
	static const struct { int client, what, by; enum stats_empty now; } steps[] = {
		{ 0, SR_PREPARING, 0, EMPTY_SILENT },
		{ 0, SR_ARRIVING, 1, EMPTY_NETWORK },
		{ 1, SR_ARRIVING, 2, EMPTY_NETWORK },
		{ 0, SR_PREPARING, 1, EMPTY_TOKENIZING },
		{ 0, SR_PREPARING, 1, EMPTY_TOKENIZING },
		{ 0, SR_PREPARING, -1, EMPTY_TOKENIZING },
		{ 0, SR_ARRIVING, -1, EMPTY_TOKENIZING },
		{ 0, SR_PREPARING, -1, EMPTY_NETWORK },     /* the other's */
		{ 1, SR_ARRIVING, -1, EMPTY_NETWORK },
		{ 1, SR_ARRIVING, -1, EMPTY_SILENT },
		{ 1, SR_ARRIVING, -5, EMPTY_SILENT },       /* never below zero */
		{ 1, 2, 1, EMPTY_SILENT },                  /* not a clock */
		{ 1, -1, 1, EMPTY_SILENT },
		{ 1, SR_PREPARING, INT32_MAX, EMPTY_TOKENIZING },
		{ 1, SR_PREPARING, INT32_MAX, EMPTY_TOKENIZING },
		{ 1, SR_PREPARING, INT32_MAX, EMPTY_TOKENIZING },
		{ 1, SR_PREPARING, INT32_MIN, EMPTY_TOKENIZING },
		{ 1, SR_PREPARING, INT32_MIN, EMPTY_SILENT },
	};
	struct sr_conn *c[2] = { open_conn(), open_conn() };

	(void)state;
	memset(&window, 0, sizeof(window));
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		sr_doing(c[steps[i].client], steps[i].what, steps[i].by);
		daemon_call(&d, look_around);
		assert_all_is(steps[i].now);
	}
	for (int i = 0; i < 2; i++)           /* its row has it, too: each client did both */
		assert_true(d.stats->client[i].preparing_ns - 1 < HOUR && d.stats->client[i].arriving_ns - 1 < HOUR);
	sr_close(c[0]);
	sr_doing(c[1], SR_PREPARING, 1);
	sr_close(c[1]);                       /* in the middle of it */
	assert_true(daemon_settles(&d, 0));
	daemon_call(&d, look_around);
	assert_all_is(EMPTY_SILENT);
}

/* A prompt is told part by part, if the request asks for it; and its end is kept under its name. */
static void progress_is_told_and_ends_are_kept(void **state)
{
	static int32_t ids[40];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 40, .max_tokens = 3, .name = 77,
		.flags = SR_IGNORE_EOS | SR_NO_CACHE | SR_PROGRESS, .trace_id = { 9 } };
	const struct stats_ended *e;
	struct sr_token t = { 0 };
	struct sr_conn *c = open_conn();
	uint32_t done = 0, told = 0, tokens = 0;
	uint64_t at = 0;
	int32_t got[64];

	(void)state;
	assert_int_equal(sr_submit(c, &q, NULL), 0);
	for (next(c, &t); t.kind != SR_END; next(c, &t)) {
		if (t.kind == SR_TOKEN) {
			tokens++;
			continue;
		}
		assert_true(t.kind == SR_COMPUTED && !tokens && t.end.computed > done && t.end.computed <= 40);
		assert_true(t.end.queued && t.end.scheduled >= t.end.queued && t.end.last >= t.end.scheduled);
		done = t.end.computed;
		at = t.end.last;
		told++;
	}
	assert_true(told >= 1 && done == 40 && tokens == 3);
	assert_true(t.end.first == at);       /* the last part gives the first token */
	daemon_look(&d);                      /* the end is put before it is kept */
	e = &d.stats->ended[0];
	assert_true(e->number == 1 && e->name == 77 && e->trace[0] == 9 && e->finish == SR_LENGTH);
	assert_true(e->n_prompt == 40 && e->computed == 40 && e->cached == 0 && e->n_tokens == 3 && e->max_tokens == 3);
	assert_true(e->queued == t.end.queued && e->scheduled == t.end.scheduled && e->first == t.end.first &&
	            e->last == t.end.last && e->at >= e->last);
	assert_true(e->before.steps + e->after.steps >= 2 && e->after.rows >= 2);
	q.flags = SR_IGNORE_EOS;
	assert_int_equal(run(c, q, got).finish, SR_LENGTH); /* run() takes every record for a token */
	sr_close(c);
}

int main(void)
{
#define CASE(f) DAEMON_CASE(f, &d)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(siphash_is_siphash),
		CASE(each_field_reaches_the_device),
		CASE(a_stop_id_ends_the_answer),
		CASE(without_a_seed_draws_differ),
		cmocka_unit_test(prefixes_are_shared_within_a_scope),
		CASE(a_full_tenant_is_turned_away),
		cmocka_unit_test(strangers_are_not_urgent_nor_tenants),
		CASE(requests_are_counted),
		CASE(gaps_are_each_ones_own),
		CASE(progress_is_told_and_ends_are_kept),
		CASE(draining_ends_what_is_new),
		cmocka_unit_test(ends_are_logged_and_recorded),
		cmocka_unit_test(idle_clients_are_still_seen),
		cmocka_unit_test(its_row_tells_what_it_does),
		CASE(what_it_does_is_told),
		CASE(the_example_works),
		CASE(of_another_version),
		CASE(ping_prints_round_trips),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
