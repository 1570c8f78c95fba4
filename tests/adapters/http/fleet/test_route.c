/* LINK: adapters/http/fleet/choose.c adapters/http/fleet/known.c core/instance/ask.c @kv */
/* test_route.c - the adapter's choice of a daemon, judged by five loads beside simpler policies.
 *
 * Simulated daemons: 20,000 prompt tokens/s, steps of 8 ms and 30 us a row, 64 sequences, chunks of 2,048, first
 * come first served, LRU of blocks of 16 tokens.  Sessions begin with one of some system prompts of 320 to 4,000
 * tokens, the first ones more often; 5 turns on average of 40 to 300 tokens in and 20 to 280 out, 8 s to think.
 * The choice, its names and its pages are the adapter's own.  A policy sees only what it would see.
 *
 * ROUTE_SECONDS=400 takes the whole time (make sim-route); less is for make test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/http/fleet/choose.h"
#include "adapters/http/fleet/known.h"

#define B        16
#define SEQS     64
#define CHUNK    2048
#define RATE     20000.0
#define LONGEST  24576               /* tokens of a session */
#define DAEMONS  8
#define SESSIONS 8192

enum policy { IN_TURN, LEAST, HASH, EXPECTED, N_POLICIES };
static const char *const policy_name[] = { "in turn", "least connections", "session hash", "expected time" };

static const struct load { const char *name; int daemons, blocks, prompts; double rate; } loads[] = {
	{ "A", 4, 6000, 30, 3 }, { "B", 4, 3000, 30, 3 }, { "C", 4, 6000, 30, 5 }, { "D", 4, 6000, 1, 4 },
	{ "E", 8, 6000, 60, 10 },
};

static uint64_t state;

static uint64_t rnd(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static double uniform(void) { return (double)(rnd() >> 11) / 9007199254740992.0; }
static int between(int a, int b) { return a + (int)(uniform() * (b - a + 1)); }

/* ---- a daemon ---- */

struct block { uint64_t low; int refs, prev, next; };   /* in the LRU list while refs is 0 */

struct request {
	struct session *session;
	uint64_t low[LONGEST / B + 1];                  /* names of its blocks, and of its answer's */
	int held[LONGEST / B + 1], n_held;              /* blocks of the daemon */
	int n_prompt, n_out, done, out;                 /* done: prompt tokens computed or cached */
	int expected;                                   /* that the policy thought must be computed */
	double at;
	struct request *next;
};

struct daemon {
	struct block *block;
	int n_blocks, n_free, oldest, newest;
	int map[1 << 15];                               /* open addressing by name */
	struct request *run[SEQS], *first, **last;
	int n_run, n_wait;
	double fresh, busy_until;
	bool busy;
	struct prefix_page *page;
	struct known *known;
	double time_sum;
	int time_n;
};

#define MAP (1 << 15)

static int *place(struct daemon *d, uint64_t low)
{
	int i = (int)(low & (MAP - 1));

	while (d->map[i] >= 0 && d->block[d->map[i]].low != low)
		i = (i + 1) & (MAP - 1);
	return &d->map[i];
}

static void unmap(struct daemon *d, uint64_t low)
{
	int i = (int)(place(d, low) - d->map);

	prefix_take(d->page, low);
	d->map[i] = -1;
	for (i = (i + 1) & (MAP - 1); d->map[i] >= 0; i = (i + 1) & (MAP - 1)) {
		int b = d->map[i];

		d->map[i] = -1;
		*place(d, d->block[b].low) = b;
	}
}

static void list_take(struct daemon *d, int b)
{
	struct block *k = &d->block[b];

	*(k->prev < 0 ? &d->oldest : &d->block[k->prev].next) = k->next;
	*(k->next < 0 ? &d->newest : &d->block[k->next].prev) = k->prev;
	d->n_free--;
}

static void list_put(struct daemon *d, int b)
{
	struct block *k = &d->block[b];

	k->prev = d->newest;
	k->next = -1;
	*(d->newest < 0 ? &d->oldest : &d->block[d->newest].next) = b;
	d->newest = b;
	d->n_free++;
}

/* A block for this name: the cached one, or the least recently used one, without its name until it is full. */
static int hold(struct daemon *d, uint64_t low, bool cached)
{
	int b = cached ? *place(d, low) : d->oldest;

	if (d->block[b].refs++ == 0)
		list_take(d, b);
	if (!cached && d->block[b].low) {
		unmap(d, d->block[b].low);
		d->block[b].low = 0;
	}
	return b;
}

static void publish(struct daemon *d, struct request *r, int from, int to)
{
	for (int i = from; i < to && i < r->n_held; i++) {
		int b = r->held[i];

		if (d->block[b].low || *place(d, r->low[i]) >= 0)
			continue;
		d->block[b].low = r->low[i];
		*place(d, r->low[i]) = b;
		prefix_put(d->page, r->low[i]);
	}
}

/* Another computes what this one begins with: it waits for that (as the daemon does). */
static bool has_leader(const struct daemon *d, const struct request *r, int at)
{
	for (int i = 0; i < d->n_run; i++)
		if (d->run[i]->done < d->run[i]->n_prompt && at < d->run[i]->n_prompt / B && d->run[i]->low[at] == r->low[at])
			return true;
	return false;
}

static uint64_t computed, prompted;
static bool counts;

static bool admit(struct daemon *d, struct request *r)
{
	int need = (r->n_prompt + r->n_out + B - 1) / B, have = 0, unheld = 0;

	while (have < (r->n_prompt - 1) / B && *place(d, r->low[have]) >= 0)
		unheld += d->block[*place(d, r->low[have++])].refs == 0;
	if (need - have > d->n_free - unheld || (have < (r->n_prompt - 1) / B && has_leader(d, r, have)))
		return false;
	for (r->n_held = 0; r->n_held < need; r->n_held++)
		r->held[r->n_held] = hold(d, r->low[r->n_held], r->n_held < have);
	r->done = have * B;
	computed += counts ? (uint64_t)(r->n_prompt - r->done) : 0;
	prompted += counts ? (uint64_t)r->n_prompt : 0;
	d->run[d->n_run++] = r;
	return true;
}

/* ---- the load ---- */

struct session { int32_t id[LONGEST]; int n, turns, number; };

static struct { double at[1 << 17]; int n; } ttft;
static struct session *sessions[SESSIONS];
static int n_sessions;
static int32_t system_prompt[64][4096];
static int system_n[64];
static struct daemon daemon_of[DAEMONS];
static const struct load *load;
static enum policy policy;
static int turn;
static const struct prefix_secret secret = { { 1, 2 }, { 3, 4 } };

static struct choose_load look(const struct daemon *d)
{
	return (struct choose_load){ .usable = true, .rate = RATE, .fresh = d->fresh, .running = d->n_run,
		.waiting = d->n_wait, .max_seqs = SEQS, .left_s = d->time_n ? d->time_sum / d->time_n : 1 };
}

static int choose(struct request *r, double now)
{
	static struct known_names names;
	struct choose_load l[DAEMONS];
	struct known_ask ask[DAEMONS];
	const struct sr_request q = { .prompt = r->session->id, .n_prompt = (uint32_t)r->n_prompt };
	int best = 0, n = load->daemons;

	r->expected = r->n_prompt;
	for (int i = 0; i < n; i++) {
		l[i] = look(&daemon_of[i]);
		ask[i] = (struct known_ask){ .known = daemon_of[i].known, .gateway = true };
		if (l[i].running + l[i].waiting < l[best].running + l[best].waiting)
			best = i;
	}
	if (policy == IN_TURN)
		return turn++ % n;
	if (policy == LEAST)
		return best;
	if (policy == HASH)
		return (int)((uint64_t)r->session->number * 0x9e3779b97f4a7c15u >> 33) % n;
	known_tokens(ask, n, &q, &names, (uint64_t)(now * 1e9) + 1);
	for (int i = 0; i < n; i++)
		l[i].cached = ask[i].tokens;
	best = choose_best(l, n, r->n_prompt, turn++ % n);
	known_sent(&ask[best], &q, &names, (uint64_t)(now * 1e9) + 1);
	r->expected -= (int)l[best].cached;
	return best;
}

/* ---- time ---- */

struct event { double at; int kind; void *of; };          /* kind 0: a session's turn; 1: a step ends */
static struct event heap[1 << 16];
static int n_heap;

static void push(double at, int kind, void *of)
{
	int i = n_heap++;

	for (; i && heap[(i - 1) / 2].at > at; i = (i - 1) / 2)
		heap[i] = heap[(i - 1) / 2];
	heap[i] = (struct event){ at, kind, of };
}

static struct event pop(void)
{
	struct event e = heap[0], last = heap[--n_heap];
	int i = 0, c;

	while ((c = 2 * i + 1) < n_heap) {
		c += c + 1 < n_heap && heap[c + 1].at < heap[c].at;
		if (heap[c].at >= last.at)
			break;
		heap[i] = heap[c];
		i = c;
	}
	heap[i] = last;
	return e;
}

static void step(struct daemon *d, double now)
{
	struct request **at = &d->first;
	int left = CHUNK, tokens = 0;

	while (*at && d->n_run < SEQS) {
		struct request *r = *at;

		if (admit(d, r)) {
			*at = r->next;
			d->n_wait--;
			if (!*at)
				d->last = at;
		} else if (has_leader(d, r, 0)) {
			at = &r->next;
		} else {
			break;
		}
	}
	if (!d->n_run) {
		d->busy = false;
		return;
	}
	for (int i = 0; i < d->n_run; i++)
		if (d->run[i]->done < d->run[i]->n_prompt && left > 0) {
			struct request *r = d->run[i];
			int n = r->n_prompt - r->done < left ? r->n_prompt - r->done : left;

			r->done += n;
			left -= n;
			tokens += n;
			publish(d, r, 0, r->done / B);
			if (r->done == r->n_prompt) {             /* its first token comes with this step's end */
				r->out--;
				d->fresh -= r->expected;
			}
		}
	d->busy = true;
	push(now + 0.008 + 30e-6 * d->n_run + tokens / RATE, 1, d);
}

static void end(struct daemon *d, struct request *r, double now)
{
	struct session *s = r->session;

	publish(d, r, 0, (r->n_prompt + r->n_out - 1) / B);
	for (int i = r->n_held - 1; i >= 0; i--)
		if (--d->block[r->held[i]].refs == 0)
			list_put(d, r->held[i]);
	d->time_sum += now - r->at;
	d->time_n++;
	s->n += r->n_out;
	if (--s->turns > 0 && s->n < LONGEST - 1024)
		push(now - 8 * log(1 - uniform()), 0, s);
	free(r);
}

static void step_ends(struct daemon *d, double now)
{
	for (int i = 0; i < d->n_run; i++) {
		struct request *r = d->run[i];

		if (r->done < r->n_prompt)
			continue;
		if (++r->out == 0 && counts)
			ttft.at[ttft.n++] = now - r->at;
		r->out += r->out == 0;
		if (r->out > r->n_out) {
			d->run[i--] = d->run[--d->n_run];
			end(d, r, now);
		}
	}
	step(d, now);
}

static void ask(struct session *s, double now)
{
	struct request *r = calloc(1, sizeof(*r));
	struct prefix_name at = { { 0, 0 } };
	uint64_t salt = prefix_salt(&secret, PREFIX_GLOBAL, 0, 0, 0);
	struct daemon *d;

	for (int n = between(40, 300); n > 0; n--)
		s->id[s->n++] = (int32_t)(rnd() & 0xffff);
	*r = (struct request){ .session = s, .n_prompt = s->n, .n_out = between(20, 280), .at = now };
	for (int i = 0; i < r->n_out; i++)
		s->id[s->n + i] = (int32_t)(rnd() & 0xffff);
	for (int i = 0; i < (s->n + r->n_out + B - 1) / B; i++) {
		at = prefix_name(secret.name, at.w, salt, s->id + i * B, B);
		r->low[i] = at.w[0];
	}
	d = &daemon_of[choose(r, now)];
	d->fresh += r->expected;
	r->next = NULL;
	*d->last = r;
	d->last = &r->next;
	d->n_wait++;
	if (!d->busy)
		step(d, now);
}

static struct session *new_session(int number)
{
	struct session *s = sessions[number] = calloc(1, sizeof(*s));
	double u = uniform(), sum = 0, all = 0;
	int p = 0;

	for (int i = 1; i <= load->prompts; i++)
		all += 1.0 / i;
	for (; p < load->prompts - 1 && (sum += 1.0 / (p + 1) / all) < u; p++)
		;
	memcpy(s->id, system_prompt[p], (size_t)system_n[p] * sizeof(s->id[0]));
	s->n = system_n[p];
	s->number = number;
	for (s->turns = 1; uniform() < 0.8; s->turns++)
		;
	return s;
}

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void open_daemon(struct daemon *d)
{
	const struct prefix_page *seen;
	int fd;

	*d = (struct daemon){ .n_blocks = load->blocks, .oldest = -1, .newest = -1, .last = &d->first };
	d->block = calloc((size_t)load->blocks, sizeof(d->block[0]));
	for (int i = 0; i < MAP; i++)
		d->map[i] = -1;
	for (int i = 0; i < load->blocks; i++)
		list_put(d, i);
	assert_int_equal(prefix_create(&d->page, &fd, load->blocks, &secret), 0);
	d->page->block_tokens = B;
	d->page->scope = PREFIX_GLOBAL;
	assert_int_equal(prefix_open(&seen, fd), 0);
	close(fd);
	assert_int_equal(known_create(&d->known), 0);
	known_renew(d->known, seen);
}

static void close_daemon(struct daemon *d)
{
	for (int i = 0; i < d->n_run; i++)
		free(d->run[i]);
	for (struct request *r = d->first, *next; r; r = next) {
		next = r->next;
		free(r);
	}
	known_destroy(d->known);
	prefix_destroy(d->page);
	free(d->block);
}

/* Cached share of prompt tokens, and p99 of the time to the first token in ms. */
static void simulate(double seconds, double *cached, double *p99)
{
	double next = 0;

	state = 88172645463325252u;
	n_heap = n_sessions = turn = ttft.n = 0;
	computed = prompted = 0;
	for (int i = 0; i < load->prompts; i++) {
		system_n[i] = between(320, 4000);
		for (int k = 0; k < system_n[i]; k++)
			system_prompt[i][k] = (int32_t)(rnd() & 0xffff);
	}
	for (int i = 0; i < load->daemons; i++)
		open_daemon(&daemon_of[i]);
	for (;;) {
		bool arrives = next < seconds && n_sessions < SESSIONS && (!n_heap || next < heap[0].at);
		struct event e = arrives ? (struct event){ next, 2, NULL } : n_heap ? pop() : (struct event){ 1e9, 0, NULL };

		if (e.at >= seconds)
			break;
		counts = e.at > seconds * 0.15;
		if (e.kind == 1) {
			step_ends(e.of, e.at);
		} else if (e.kind == 0) {
			ask(e.of, e.at);
		} else {
			next -= log(1 - uniform()) / load->rate;
			n_sessions++;
			ask(new_session(n_sessions - 1), e.at);
		}
	}
	for (int i = 0; i < load->daemons; i++)
		close_daemon(&daemon_of[i]);
	for (int i = 0; i < n_sessions; i++)
		free(sessions[i]);
	qsort(ttft.at, (size_t)ttft.n, sizeof(double), by_time);
	*cached = prompted ? 1 - (double)computed / (double)prompted : 0;
	*p99 = ttft.n ? ttft.at[ttft.n * 99 / 100] * 1e3 : 0;
}

/* In each load: nearly as much cached as the best of the others, and a p99 that is near the best or short. */
static void five_loads(void **unused)
{
	const char *given = getenv("ROUTE_SECONDS");
	double seconds = given ? atof(given) : 100, cached[N_POLICIES], p99[N_POLICIES], sum[N_POLICIES] = { 0 };

	(void)unused;
	for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
		double most = 0, least = 1e9;

		load = &loads[i];
		for (policy = IN_TURN; policy < N_POLICIES; policy++) {
			simulate(seconds, &cached[policy], &p99[policy]);
			printf("%s %-18s %3.0f %% cached, p99 %6.0f ms\n", load->name, policy_name[policy],
			       cached[policy] * 100, p99[policy]);
			sum[policy] += p99[policy];
			if (policy == EXPECTED)
				continue;
			most = cached[policy] > most ? cached[policy] : most;
			least = p99[policy] < least ? p99[policy] : least;
		}
		assert_true(cached[EXPECTED] >= 0.95 * most);
		assert_true(p99[EXPECTED] <= 1.1 * least || p99[EXPECTED] < 100);
	}
	for (policy = IN_TURN; policy < EXPECTED; policy++)
		assert_true(sum[EXPECTED] <= 0.8 * sum[policy]);
}

/* ---- single choices ---- */

static const struct choose_load idle = { .usable = true, .rate = 10000, .max_seqs = 64, .left_s = 2 };

static void choices(void **unused)
{
	struct choose_load l[3] = { idle, idle, idle };

	(void)unused;
	assert_int_equal(choose_best(l, 3, 1000, 0), 0);       /* equals: in turn */
	assert_int_equal(choose_best(l, 3, 1000, 2), 2);
	l[1].cached = 800;
	assert_int_equal(choose_best(l, 3, 1000, 0), 1);       /* what has the prompt */
	l[1].fresh = 900;
	assert_int_equal(choose_best(l, 3, 1000, 0), 0);       /* but not behind a longer one */
	l[1].fresh = 0;
	l[1].running = l[1].max_seqs;
	assert_int_equal(choose_best(l, 3, 100, 0), 0);        /* nor where no place is free */
	l[0].running = 3;
	assert_int_equal(choose_best(l, 3, 0, 0), 2);          /* of equals the one with fewer running */
	l[0].usable = l[2].usable = false;
	assert_int_equal(choose_best(l, 3, 1000, 0), 1);
	l[1].usable = false;
	assert_int_equal(choose_best(l, 3, 1000, 0), -1);
	l[0] = l[1] = idle;
	l[1].rate = 20000;
	assert_int_equal(choose_best(l, 2, 1000, 0), 1);       /* the faster one */
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(choices), cmocka_unit_test(five_loads) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
