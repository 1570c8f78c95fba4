/* LINK: @sched @null -lxxhash */
/* test_sim.c - schedules made from a number.
 *
 * Each seed picks limits, knobs, a device and clients: quick, slow, greedy, cancelling, dying, one that
 * hardly reads, and one that speaks for several tenants.  Then it plays requests of all kinds, deadlines and
 * changing knobs.  After every step the invariants hold (sched_check, kv_check), every token follows from
 * the ids before it, every record was reserved, no waiting request is forgotten, and none waits for slots
 * held by full rings.
 *
 *	SLIPRING_SEEDS=N    number of seeds
 *	SLIPRING_FIRST=K    beginning with this one
 *	SLIPRING_SEED=K     this one alone
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/sched/impl.h"
#include "kernels/model.h"
#include "kernels/null/null.h"
#include "tests/rig/begin.h"

#define SEEDS     200
#define STEPS     2000
#define VOCAB     97
#define PROMPT    200
#define TEXTS     4
#define TEXT      120
#define CLIENTS   6
#define LIVE      16
#define SEQS      96             /* the most that any seed has */
#define OVERTAKEN 300            /* times a waiting request may see a later one start; seen: 103 */
#define BLOCKED_NS 20000
#define HELD_NS   100000         /* time for which a full ring may hold a slot that others want; seen: 42,000 */
#define TOPS_HERE 2
#define TOPS_PER  4

struct request {
	bool     live, score, history;
	uint64_t user_data, deadline;
	int32_t  n_prompt, n, max_tokens, scored, n_top, n_prompt_top, preempted;
	int32_t  finish;               /* by its last token; 0: its last token has not come */
	uint32_t stop[40], bias[4], allow[30], bad[6];
	struct sr_null_request as;
	struct sr_null_text text;      /* state over ids[] read so far */
	struct guides *guides;         /* of its place */
	int32_t  ids[2 * PROMPT];      /* last: not cleared for a new one */
};

struct guides;

enum habit { QUICK, SLOW, GREEDY, CANCELLING, DYING, DRIPPING, GATEWAY, N_HABITS };

struct client {
	enum habit habit;
	int32_t  cap, used, reserved, n_live;
	uint64_t tenant;
	struct request r[LIVE];
	struct guides *guides;         /* [LIVE]; NULL: nothing is guided */
};

static struct sim {
	uint64_t rng, now, next_user_data;
	struct client *client[CLIENTS];
	struct sched_config cfg;
	struct counters n;
	struct sched *s;
	struct kv *kv;
	struct sr_backend *b;
	const struct sr_backend_ops *ops;
	bool     open;                  /* new requests may come */
	bool     guided;                /* some of them are guided */
	bool     goes_on;               /* some that are cancelled are asked again, from where they were */
	bool     windows;               /* layers come in groups, most with windows */
	bool     states;                /* layers have a state */
	bool     drafts;                /* rows have guesses */
	int      load, slowness;
	struct { uint64_t order; bool started; int32_t overtaken; uint64_t held_since, guide_since; } watch[SEQS];
	uint64_t n_tokens, n_scored;
} sim;

static int32_t sim_text[TEXTS][TEXT];
static uint64_t total_ends[6];          /* stop, length, cancelled, late, others, without a guide or an id */
static struct { uint64_t late, preempted, cached, in, out, evicted, held, steps, ring; int32_t overtaken;
                uint64_t went_on, went_on_ids; } total;
static volatile uint64_t seed_now;
static bool go_on_from_here, states_here, drafts_here; /* of the next play() */

static uint32_t below(uint32_t n)
{
	sim.rng += 0x9e3779b97f4a7c15u;
	uint64_t x = sim.rng;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)(((x ^ x >> 31) >> 32) * n >> 32);
}

static int32_t between(int32_t least, int32_t most)
{
	return least + (int32_t)below((uint32_t)(most - least + 1));
}

static uint64_t sim_clock(void *ctx)
{
	(void)ctx;
	return sim.now;
}

#include "sim_guides.h"
#include "sim_port.h"
#include "sim_states.h"
#include "sim_windows.h"

static void make_list(struct request *r, enum sr_list kind, uint32_t *word, int32_t n);

#include "sim_drafts.h"

/* ---- what happens --------------------------------------------------------------------------------- */

/* Prompts begin like one of four texts, so that prefixes are shared. */
static void make_texts(void)
{
	for (int32_t text = 0; text < TEXTS; text++)
		for (int32_t i = 0; i < TEXT; i++)
			sim_text[text][i] = (text * 31 + i * i * 7 + i) % VOCAB;
}

static void make_prompt(struct request *r, int32_t text, int32_t shared)
{
	if (shared > r->n_prompt)
		shared = r->n_prompt;
	memcpy(r->ids, sim_text[text], (size_t)shared * sizeof(r->ids[0]));
	for (int32_t i = shared; i < r->n_prompt; i++)
		r->ids[i] = (int32_t)below(VOCAB);
	r->n = r->n_prompt;
}

static void make_length(struct request *r, int32_t shared)
{
	int32_t context = sim.cfg.context;

	r->max_tokens = between(1, 40);
	r->n_prompt = shared + between(1, 6);
	if (r->n_prompt > context - r->max_tokens)
		r->n_prompt = context - r->max_tokens;
	if (r->n_prompt < 1) {
		r->n_prompt = 1;
		r->max_tokens = context - 1;
	}
	if (r->score && below(3) == 0)
		r->max_tokens = 0;
}

static void make_list(struct request *r, enum sr_list kind, uint32_t *word, int32_t n)
{
	r->as.list[kind] = word;
	r->as.n_list[kind] = n;
	for (int32_t i = 0; i < n; i++)
		word[i] = below(VOCAB);
}

static void make_lists(struct request *r)
{
	make_list(r, SR_LIST_STOP, r->stop, below(9) ? between(0, 3) : 40);
	make_list(r, SR_LIST_BIAS, r->bias, below(4) ? 0 : 4);
	make_list(r, SR_LIST_ALLOW, r->allow, below(8) ? 0 : 30);
	make_list(r, SR_LIST_BAD, r->bad, below(8) ? 0 : 5);
	if (r->as.n_list[SR_LIST_BAD]) { /* two sequences: one id, and two in a row */
		r->bad[0] = 1;
		r->bad[2] = 2;
		r->history = true;
	}
}

static void make_rest(struct request *r)
{
	make_lists(r);
	if (sim.drafts)
		make_guessable(r);
	r->as.vocab = VOCAB;
	r->as.n_prompt = r->n_prompt;
	r->as.history = r->history;
	r->as.sampling = (struct sr_sampling){ .seed = below(1000), .temperature = below(2) ? 0.5f : 0,
					       .top_p = 1, .repetition = 1,
					       .min_position = below(2) ? r->n_prompt + between(0, 9) : 0 };
	r->n_top = below(5) ? 0 : between(0, 8);
	r->n_prompt_top = below(5) ? 0 : between(0, 8);
	r->deadline = below(20) ? 0 : sim.now + below(40000);
}

static int admit(struct client *c, uint64_t tenant, const struct request *r)
{
	struct sched_request q = {
		.user_data = r->user_data, .prompt = r->ids, .n_prompt = r->n, .n_answer = r->n - r->n_prompt,
		.max_tokens = r->max_tokens,
		.salt = below(8) == 0, .deadline = r->deadline,
		.priority = below(5) ? 0 : between(-1, 1), .n_top = (uint8_t)r->n_top,
		.n_prompt_top = (uint8_t)r->n_prompt_top, .score = r->score,
		.no_cache = below(16) == 0, .history = r->history, .guided = r->guides->on,
	};
	int e;

	begin(&q, &r->as, (int)(r->user_data % 4));
	if (sched_full(sim.s, c, tenant, q.n_prompt, q.n_words - q.cmd[0].n))
		return -EAGAIN;
	if (q.guided && sched_guides_full(sim.s, tenant))
		return -EAGAIN;
	e = sched_admit(sim.s, c, tenant, &q, sim.now);
	if (e == 0 && r->live)
		assert(sched_admit(sim.s, c, tenant, &q, sim.now) == -EEXIST);
	return e;
}

/* Most check for room before they make a request, as the daemon does before it reads one. */
static int submit(struct client *c)
{
	uint64_t tenant = c->habit == GATEWAY ? below(4) : c->tenant;
	int32_t text = between(0, TEXTS - 1), shared = between(0, TEXT);
	struct request *r = NULL;
	bool full;
	int e;

	for (int i = 0; i < LIVE && !r; i++)
		if (!c->r[i].live)
			r = &c->r[i];
	if (!r)
		return -EAGAIN;
	memset(r, 0, offsetof(struct request, ids));
	r->user_data = sim.next_user_data++;
	r->score = below(6) == 0;
	r->history = below(4) == 0;
	make_length(r, shared);
	full = sched_full(sim.s, c, tenant, r->n_prompt, 0);
	if (full && below(8))
		return -EAGAIN;
	make_prompt(r, text, shared);
	make_rest(r);
	r->guides = c->guides + (r - c->r);
	r->guides->on = false;
	if (sim.guided && below(2))
		start_guiding(r->guides);
	r->live = true;
	c->n_live++;
	e = admit(c, tenant, r);
	assert(full ? e == -EAGAIN : e == 0 || e == -EAGAIN);
	if (!e && r->guides->on && r->live && below(4))
		give_guides(r->guides, c, r->user_data, 0);
	if (e) {
		r->live = false;
		c->n_live--;
	}
	return e;
}

static struct client *new_client(uint64_t tenant)
{
	struct client *c = calloc(1, sizeof(*c));

	c->guides = calloc(LIVE, sizeof(*c->guides));

	c->habit = (enum habit)below(N_HABITS);
	c->cap = between(10, 50);
	c->tenant = tenant;
	return c;
}

/* A request is cut and goes on from its ids, as when its daemon died: what comes must be what would have come. */
static void cut(struct client *c)
{
	uint64_t tenant = c->habit == GATEWAY ? below(4) : c->tenant;
	struct request *r = NULL;

	for (uint32_t i = 0, from = below(LIVE); i < LIVE && !r; i++) {
		r = &c->r[(from + i) % LIVE];
		if (!r->live || r->score || r->n == r->n_prompt)
			r = NULL;
	}
	if (!r || sched_full(sim.s, c, tenant, r->n, 0))
		return;
	sched_cancel(sim.s, c, r->user_data);
	if (r->guides->on)
		guided_again(r->guides, r->n - r->n_prompt);
	r->user_data = sim.next_user_data++;
	r->live = true;
	c->n_live++;
	if (admit(c, tenant, r)) {
		r->live = false;
		c->n_live--;
		return;
	}
	total.went_on++;
	total.went_on_ids += (uint64_t)(r->n - r->n_prompt);
}

static void act(void *ctx)
{
	(void)ctx;
	struct client *c;
	uint32_t i = below(CLIENTS);

	for (int k = 0; sim.open && k < sim.load; k++) {
		c = sim.client[below(CLIENTS)];
		while (submit(c) == 0 && c->habit == GREEDY)
			;
	}
	c = sim.client[i];
	if (below(c->habit == CANCELLING ? 2 : 12) == 0) {
		struct request *r = &c->r[below(LIVE)];

		sched_cancel(sim.s, c, r->live ? r->user_data : UINT64_MAX);
		assert(!r->live);
	}
	if (sim.goes_on && sim.open && below(4) == 0)
		cut(c);
	if (below(c->habit == DYING ? 30 : 400) == 0) {
		struct client *gone = c;

		sched_forget(sim.s, gone);
		sim.client[i] = new_client(gone->tenant);
		free(gone->guides);
		memset(gone, 0xee, sizeof(*gone));
		free(gone);
	}
}

/* Each client gives guides for what it has heard. */
static void guide_all(void)
{
	for (int i = 0; i < CLIENTS && sim.guided; i++)
		for (int j = 0; j < LIVE; j++) {
			struct request *r = &sim.client[i]->r[j];

			if (r->live && r->guides->on)
				give_guides(r->guides, sim.client[i], r->user_data, r->n - r->n_prompt);
		}
}

static void yield(void *ctx)
{
	(void)ctx;
	guide_all();
	sim.now += 50 + below(500);
	if (below(3) == 0)
		act(NULL);
}

static void move_knobs(void)
{
	struct sched_knobs k = sim.cfg.knobs;

	k.max_seqs = between(1, k.max_seqs);
	k.copies = between(0, k.copies);
	k.chunk_max = between(1, 64);
	k.step_ns = below(3) ? k.step_ns : 0;
	k.no_prefix_cache = below(3) == 0;
	k.first_chunk = below(2);
	assert(sched_set(sim.s, &k) == 0);
	k.batch_tokens = sim.cfg.limits.tokens + 1;
	assert(sched_set(sim.s, &k) == -ERANGE);
}

/* ---- a run ------------------------------------------------------------------------------------------ */

static void make_config(void)
{
	static const int32_t sizes[] = { 4, 8, 16 };
	struct sr_limits *l = &sim.cfg.limits;
	struct sched_knobs *k = &sim.cfg.knobs;
	int32_t B = sizes[below(3)];

	memset(&sim.cfg, 0, sizeof(sim.cfg));
	l->n_groups = 1;
	l->block_tokens = B;
	l->n_blocks = between(10, below(2) ? 60 : 16);
	l->n_host_blocks = below(3) ? between(0, 60) : 0;
	l->slots = l->rows = between(2, 12);
	l->tokens = l->rows + between(0, 80);
	l->scores = between(1, 40);
	l->copies = between(1, 8);
	l->seq_blocks = l->n_blocks < PROMPT / B ? l->n_blocks : PROMPT / B;
	l->cmds = l->rows + l->slots + 8 + between(0, 40);
	l->words = l->rows + l->seq_blocks * (B + 1) + 200 + between(0, 2000);
	k->max_seqs = l->slots;
	k->batch_tokens = l->tokens;
	k->chunk_max = between(1, 64);
	k->queue_requests = between(4, 44);
	k->queue_tokens = between(200, 4200);
	k->copies = l->copies;
	k->headroom = below(2) ? 0 : between(1, 3);
	k->step_ns = below(3) ? 0 : 200 + below(2000);
	k->quantum = 64;
	sim.cfg.counters = &sim.n;
	sim.cfg.vocab = VOCAB;
	sim.cfg.context = l->seq_blocks * B;
	sim.cfg.tenants = 3;
	sim.cfg.ids_max = below(4) ? 20000 : 0;
	sim.cfg.cmd_words = between(128, 1000);
	sim.cfg.blocked_ns = BLOCKED_NS;
	k->first_chunk = below(3) == 0;
	k->fcfs = below(2);
	if (sim.guided) {
		l->masks = 2 * between(1, 2 * l->slots);
		sim.cfg.silent_ns = SILENT_NS;
	}
}

static void sim_open(uint64_t seed, bool with_guides, bool with_windows)
{
	static const double paces[] = { 0, 0.5, 3 };
	struct sched_port port = { .room = port_room, .reserve = port_reserve, .release = port_release,
				   .emit = port_emit };
	const struct sr_model model = { .n_vocab = VOCAB, .n_layers = 1, .n_kinds = 1,
		.kind = { { .n_kv_heads = 1, .head_dim = 8 } } };
	char err[200];

	memset(&sim, 0, sizeof(sim));
	sim.guided = with_guides;
	sim.windows = with_windows;
	sim.goes_on = go_on_from_here;
	sim.states = states_here;
	sim.drafts = drafts_here;
	sim.rng = seed * 0x2545f4914f6cdd1du;
	sim.now = 1000;
	sim.next_user_data = 1;
	sim.open = true;
	sim.load = between(1, 6);
	sim.slowness = between(1, 5);
	make_config();
	if (with_windows)
		make_windows();
	if (sim.states)
		make_states();
	if (sim.drafts)
		make_drafts();
	for (int32_t n = 0; n <= SR_TOP_MAX; n++)
		port.cost[n] = (uint8_t)cost(n);
	sim.cfg.limits.worked = below(3) == 0;
	sr_null_depth(sim.cfg.limits.worked ? 1 : between(1, 3));
	sr_null_clock(sim_clock, NULL);
	sr_null_pace(paces[below(3)], paces[below(3)] / 50);
	sim.ops = sr_null_ops();
	struct kv_config kc = { .n_blocks = sim.cfg.limits.n_blocks, .n_host = sim.cfg.limits.n_host_blocks,
				.block_tokens = sim.cfg.limits.block_tokens, .copies = sim.cfg.limits.copies,
				.key = { seed, ~seed }, .n_owners = sim.cfg.tenants,
				.n_groups = sim.cfg.limits.n_groups, .n_states = sim.cfg.limits.n_states };
	for (int32_t g = 0; g < kc.n_groups; g++)
		kc.group[g].window = sim.cfg.limits.group[g].window;
	assert(kv_create(&sim.kv, &kc) == 0);
	assert(sim.ops->open(&sim.b, &model, NULL, &sim.cfg.limits, err, sizeof(err)) == 0);
	assert(sched_create(&sim.s, &sim.cfg, sim.kv, sim.ops, sim.b, &port) == 0);
	sim.s->launched = sim.s->reaped = (UINT32_MAX - below(500)) / 6 * 6; /* as after days */
	for (int i = 0; i < CLIENTS; i++)
		sim.client[i] = new_client((uint64_t)i % 5);
}

static void sim_close(void)
{
	struct sched_stats st;
	struct kv_stats k;
	uint64_t why = 0, bound = 0;

	sched_stats(sim.s, &st);
	kv_stats(sim.kv, &k);
	for (int i = 0; i < N_WHY; i++)
		why += sim.n.why_ns[i];
	for (int i = 0; i < N_BOUND; i++)
		bound += sim.n.bound_ns[i];
	assert(why == bound && why > 0);
	assert(k.n_held == 0 && st.running == 0 && st.waiting == 0 && st.waiting_tokens == 0);
	assert(st.samples == sim.n_tokens);
	assert(sim.n.prefix_hits <= sim.n.prefix_queries);
	total.late += st.late;
	total.preempted += sim.n.preemptions;
	total.cached += st.cached_tokens;
	total.in += k.copies_in;
	total.out += k.copies_out;
	total.evicted += k.evictions;
	total.held += sim.n.prefix_waits;
	if (sim.windows)
		count_windows(&k, st.cached_tokens);
	if (sim.states)
		count_states(&k, st.cached_tokens);
	if (sim.drafts)
		count_drafts();
	guided.misses += sim.n.guide_misses;
	for (int i = 0; i < CLIENTS; i++) {
		assert(sim.client[i]->reserved == 0 && sim.client[i]->n_live == 0);
		free(sim.client[i]->guides);
		free(sim.client[i]);
	}
	sched_destroy(sim.s);
	kv_destroy(sim.kv);
	sim.ops->close(sim.b);
}

static void check_deadlines(void)
{
	for (int i = 0; i < CLIENTS; i++)
		for (int j = 0; j < LIVE; j++) {
			const struct request *r = &sim.client[i]->r[j];

			assert(!r->live || !r->deadline || r->deadline > sim.now);
		}
}

static void read_rings(void)
{
	for (int i = 0; i < CLIENTS; i++) {
		struct client *c = sim.client[i];

		if (!sim.open)
			c->used = 0;
		else if (c->habit == SLOW)
			c->used -= c->used > 0 && below(6) == 0;
		else if (c->habit == DRIPPING)
			c->used -= c->used > 0 && below(100) == 0;
		else if (below((uint32_t)sim.slowness) == 0)
			c->used -= between(0, c->used);
	}
}

/* Among requests of the same or a worse priority, one that came later and starts first overtakes.  Fair
 * turns need that, but not without end. */
static void check_overtaking(void)
{
	const struct sched *s = sim.s;

	for (int32_t i = 0; i < s->n_seq; i++) {
		const struct seq *q = &s->seq[i];

		if (q->state == SEQ_FREE)
			continue;
		if (sim.watch[i].order != q->order) {
			sim.watch[i].order = q->order;
			sim.watch[i].started = false;
			sim.watch[i].overtaken = 0;
		}
		if (!q->started || sim.watch[i].started)
			continue;
		sim.watch[i].started = true;
		for (int32_t j = 0; j < s->n_seq; j++) {
			const struct seq *p = &s->seq[j];

			if (s->client_queue[p->client_queue].blocked)
				sim.watch[j].overtaken = 0; /* its own reader has no room: not the others' fault */
			else if (p->state == SEQ_WAITING && !p->started && p->order < q->order &&
			    p->priority <= q->priority && ++sim.watch[j].overtaken > total.overtaken) {
				total.overtaken = sim.watch[j].overtaken;
				assert(total.overtaken <= OVERTAKEN);
			}
		}
	}
}

/* A sequence blocked by a full ring may hold slots or blocks that others want only briefly, if it has a
 * place to wait in. */
static void check_rings(void)
{
	const struct sched *s = sim.s;
	bool wanted = s->why == WHY_SEQS || s->why == WHY_KV || s->why == WHY_ORDER;

	for (int32_t i = 0; i < s->n_seq; i++) {
		const struct seq *q = &s->seq[i];
		const struct client *c = q->client;
		uint64_t *since = &sim.watch[i].held_since;

		if (q->state != SEQ_RUNNING || !wanted || !q->blocked_since || q->blocked_filled != s->filled[q->slot] ||
		    c->cap - c->used - c->reserved >= q->cost || !queue_room(s, q->have)) {
			*since = 0;
			continue;
		}
		*since = *since ? *since : sim.now;
		if (sim.now - *since > total.ring)
			total.ring = sim.now - *since;
		assert(total.ring <= HELD_NS);
	}
}

static void play(uint64_t seed, int steps, bool with_guides, bool with_windows)
{
	int idle = 0;

	seed_now = seed;
	sim_open(seed, with_guides, with_windows);
	for (int n = 0; n < steps || sched_busy(sim.s); n++) {
		int work;

		assert(n < steps * 50);
		sim.open = n < steps;
		sim.now += 100 + below(3000);
		act(NULL);
		guide_all();
		if (below(100) == 0)
			move_knobs();
		work = sched_step(sim.s, sim.now);
		assert(work >= 0);
		check_deadlines();
		if (sim.cfg.limits.worked) {
			sim.ops->work(sim.b, yield, NULL);
			kv_check(sim.kv);
		}
		sched_check(sim.s);
		check_overtaking();
		check_rings();
		check_waits();
		total.steps++;
		idle = work ? 0 : idle + 1;
		assert(idle < 4000);    /* stuck; slow readers take a while */
		read_rings();
	}
	sim_close();
}

/* Anything that ends it in the middle of a seed, also a time limit, prints the seed. */
static void say_seed(int sig)
{
	char text[64];
	int n = snprintf(text, sizeof(text), "\nreplay with SLIPRING_SEED=%ju\n", (uintmax_t)seed_now);

	(void)!write(STDERR_FILENO, text, (size_t)n);
	signal(sig, SIG_DFL);
	raise(sig);
}

static void test_seeds(void **state)
{
	static const int signals[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM };
	const char *one = getenv("SLIPRING_SEED"), *many = getenv("SLIPRING_SEEDS");
	const char *from = one ? one : getenv("SLIPRING_FIRST");
	uint64_t first = from && *from ? strtoull(from, NULL, 10) : 1;
	uint64_t n = one ? 1 : many && *many ? strtoull(many, NULL, 10) : SEEDS, last = first + n - 1;
	uint64_t tokens = 0, scored = 0;
	clock_t began = clock();
	double seconds;

	(void)state;
	make_texts();
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		signal(signals[i], say_seed); /* here, because cmocka sets its own between tests */
	for (uint64_t seed = first; seed <= last; seed++) {
		play(seed, STEPS, false, false);
		tokens += sim.n_tokens;
		scored += sim.n_scored;
	}
	seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
	printf("%ju seeds: %ju tokens and %ju scores as computed; ends: %ju stop, %ju length, %ju cancelled, "
	       "%ju late; rows too late %ju, preemptions %ju, tokens cached %ju, prompts held %ju, copies in "
	       "%ju, out %ju, evictions %ju, overtaken at most %d, held by a full ring at most %ju ns; %ju steps, %.0f checked a second\n", n,
	       tokens, scored, total_ends[0], total_ends[1], total_ends[2], total_ends[3], total.late,
	       total.preempted, total.cached, total.held, total.in, total.out, total.evicted,
	       total.overtaken, total.ring, total.steps, (double)total.steps / seconds);
	if (n >= 100) { /* enough to prove something */
		for (int i = 0; i < 4; i++)
			assert_true(total_ends[i] > 100);
		assert_true(tokens > 1000 && scored > 1000 && total.late > 100 && total.preempted > 100);
		assert_true(total.cached > 1000 && total.in > 100 && total.out > 100 && total.evicted > 100);
		assert_true(total.held > 100 && total.overtaken > 3 && total.ring > BLOCKED_NS / 2);
	}
	assert_int_equal(total_ends[4], 0);
}

/* The same with guided answers: at once, late, never, and wrongly guided. */
static void test_guided_seeds(void **state)
{
	const char *one = getenv("SLIPRING_SEED"), *many = getenv("SLIPRING_SEEDS");
	uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one ? 1 : many && *many ? strtoull(many, NULL, 10) : SEEDS;

	(void)state;
	memset(total_ends, 0, sizeof(total_ends));
	for (uint64_t seed = first; seed < first + n; seed++)
		play(seed, STEPS, true, false);
	printf("%ju seeds with guides: ends: %ju stop, %ju length, %ju cancelled, %ju late, %ju without an id, %ju "
	       "without a guide; misses %ju, forced ids %ju, lies %ju, steps times sequences aside %ju, held without "
	       "a guide at most %ju ns\n", n, total_ends[0], total_ends[1], total_ends[2], total_ends[3], guided.edom,
	       guided.silent, guided.misses, guided.forced, guided.lies, guided.aside, guided.held);
	if (n >= 100)
		assert_true(guided.edom > 100 && guided.silent > 100 && guided.misses > 200 && guided.forced > 1000 &&
			    guided.lies > 1000 && guided.aside > 100 && total_ends[0] > 100 && total_ends[1] > 100);
	assert_int_equal(total_ends[4], 0);
}

/* The same with layers in groups that look back differently. */
static void test_window_seeds(void **state)
{
	const char *one = getenv("SLIPRING_SEED"), *many = getenv("SLIPRING_SEEDS");
	uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one ? 1 : many && *many ? strtoull(many, NULL, 10) : SEEDS;

	(void)state;
	memset(total_ends, 0, sizeof(total_ends));
	for (uint64_t seed = first; seed < first + n; seed++)
		play(seed, STEPS, seed % 4 == 0, true);
	say_windows(n);
	assert_int_equal(total_ends[4], 0);
}

/* The same with answers that are cut and go on, guided ones and windows among them. */
static void test_seeds_that_go_on(void **state)
{
	const char *one = getenv("SLIPRING_SEED"), *many = getenv("SLIPRING_SEEDS");
	uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one ? 1 : ((many && *many ? strtoull(many, NULL, 10) : SEEDS) + 3) / 4;

	(void)state;
	memset(total_ends, 0, sizeof(total_ends));
	for (uint64_t seed = first; seed < first + n; seed++) {
		go_on_from_here = true;
		play(seed, STEPS, seed % 2 == 0, seed % 4 == 1);
	}
	go_on_from_here = false;
	printf("%ju seeds with answers that go on: %ju of them, after %ju ids\n", n, total.went_on, total.went_on_ids);
	if (n >= 20)
		assert_true(total.went_on > 300 && total.went_on_ids > 2000);
	assert_int_equal(total_ends[4], 0);
}

/* The same with layers that have a state: guided answers and answers that go on among them. */
static void test_state_seeds(void **state)
{
	const char *one = getenv("SLIPRING_SEED"), *many = getenv("SLIPRING_SEEDS");
	uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one ? 1 : ((many && *many ? strtoull(many, NULL, 10) : SEEDS) + 1) / 2;

	(void)state;
	memset(total_ends, 0, sizeof(total_ends));
	states_here = true;
	for (uint64_t seed = first; seed < first + n; seed++) {
		go_on_from_here = seed % 3 == 0;
		play(seed, STEPS, seed % 4 == 0, false);
	}
	states_here = go_on_from_here = false;
	say_states(n);
	assert_int_equal(total_ends[4], 0);
}

/* The same with guesses: windows, guided answers and answers that go on among them. */
static void test_draft_seeds(void **state)
{
	const char *one = getenv("SLIPRING_SEED"), *many = getenv("SLIPRING_SEEDS");
	uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one ? 1 : ((many && *many ? strtoull(many, NULL, 10) : SEEDS) + 3) / 4;

	(void)state;
	memset(total_ends, 0, sizeof(total_ends));
	drafts_here = true;
	for (uint64_t seed = first; seed < first + n; seed++) {
		go_on_from_here = seed % 3 == 0;
		play(seed, STEPS, seed % 4 == 0, seed % 5 == 1);
	}
	drafts_here = go_on_from_here = false;
	say_drafts(n);
	assert_int_equal(total_ends[4], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_seeds), cmocka_unit_test(test_guided_seeds),
					    cmocka_unit_test(test_window_seeds), cmocka_unit_test(test_seeds_that_go_on),
					    cmocka_unit_test(test_state_seeds), cmocka_unit_test(test_draft_seeds) };

	return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
