/* sched_world.h - a scheduler on the null device, with a manual clock.  It counts the records of each
 * client's ring and keeps all events.  Used by the tests of core/sched but test_sim.c.
 */
#ifndef SCHED_WORLD_H
#define SCHED_WORLD_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/sched/sched.h"
#include "kernels/model.h"
#include "kernels/null/null.h"
#include "tests/rig/begin.h"

#define VOCAB  97
#define EVENTS 4096
#define CLIENTS 10
#define B      16

struct client { int32_t room, reserved; };       /* records */
struct heard { struct client *client; struct sched_event e; };

static struct {
	struct sched_config cfg;
	struct sched *s;
	struct kv *kv;
	struct sr_backend *b;
	struct sr_backend_ops ops;
	const struct sr_backend_ops *device;     /* NULL: the null device; else with its model */
	const struct sr_model *model;
	const struct sr_source *src;
	struct sched_stats st;
	struct counters n;
	uint64_t now;
	int      lost_after;                     /* the device is lost after this many polls; 0 = never */
	struct client c[CLIENTS];
	int      n_reserved;                     /* times that records were set aside */
	struct heard heard[EVENTS];
	int      n_heard;
} w;

static uint64_t hand_clock(void *ctx)
{
	(void)ctx;
	return w.now;
}

static bool port_room(void *ctx, void *client, uint32_t n)
{
	struct client *c = client;

	(void)ctx;
	return (uint32_t)(c->room - c->reserved) >= n;
}

static uint32_t port_reserve(void *ctx, void *client, uint32_t least, uint32_t most)
{
	struct client *c = client;
	uint32_t room = (uint32_t)(c->room - c->reserved), n = room < most ? room : most;

	(void)ctx;
	if (n < least)
		return 0;
	w.n_reserved++;
	c->reserved += (int32_t)n;
	return n;
}

static void port_release(void *ctx, void *client, uint32_t n)
{
	struct client *c = client;

	(void)ctx;
	c->reserved -= (int32_t)n;
	assert_true(c->reserved >= 0);
}

static int32_t cost(int32_t n_top)
{
	return 1 + (n_top > 4 ? (n_top - 4 + 5) / 6 : 0);
}

static void port_emit(void *ctx, void *client, const struct sched_event *e)
{
	struct client *c = client;
	int32_t n = e->kind == SCHED_END ? 1 : cost(e->n_top);
	const struct heard *before = w.n_heard ? &w.heard[w.n_heard - 1] : NULL;

	(void)ctx;
	assert_true(w.n_heard < EVENTS);
	if (before && before->e.last)                   /* its end follows at once */
		assert_true(before->client == client && before->e.user_data == e->user_data && e->kind == SCHED_END &&
			    e->finish > 0);
	w.heard[w.n_heard++] = (struct heard){ c, *e };
	c->reserved -= n;
	c->room -= n;
	assert_true(c->reserved >= 0);
}

static int lossy_poll(struct sr_backend *b, int32_t i)
{
	if (w.lost_after && --w.lost_after == 0)
		return -EIO;
	return (w.device ? w.device : sr_null_ops())->poll(b, i);
}

static struct sched_port port(void)
{
	struct sched_port p = { .room = port_room, .reserve = port_reserve, .release = port_release,
				.emit = port_emit };

	for (int32_t n = 0; n <= SR_TOP_MAX; n++)
		p.cost[n] = (uint8_t)cost(n);
	return p;
}

static void set_up(void)
{
	memset(&w, 0, sizeof(w));
	w.now = 1000;
	for (int i = 0; i < CLIENTS; i++)
		w.c[i].room = 100000;
	w.cfg = (struct sched_config){
		.counters = &w.n,
		.limits = { .n_groups = 1, .block_tokens = B, .n_blocks = 64, .seq_blocks = 32, .slots = 8, .rows = 8,
			    .tokens = 128, .scores = 128, .cmds = 64, .words = 2000, },
		.knobs = { .max_seqs = 8, .batch_tokens = 128, .chunk_max = 128, .queue_requests = 64,
			   .queue_tokens = 4000, .quantum = 32 },
		.vocab = VOCAB, .context = 512, .tenants = 3, .ids_max = 20000,
	};
	sr_null_depth(1);
	sr_null_pace(0, 0);
	sr_null_clock(hand_clock, NULL);
}

static int try_open(void)
{
	struct sched_port p = port();
	const struct sr_model model = { .n_vocab = VOCAB, .n_layers = 1, .n_kinds = 1,
		.kind = { { .n_kv_heads = 1, .head_dim = 8 } } };
	const struct sr_limits *lim = &w.cfg.limits;
	struct kv_config kc = { .n_blocks = lim->n_blocks, .n_host = lim->n_host_blocks, .block_tokens = B,
				.copies = lim->copies, .key = { 3, 4 }, .n_owners = w.cfg.tenants,
				.n_groups = lim->n_groups, .n_states = lim->n_states };
	char err[200];
	int r;

	for (int32_t g = 0; g < lim->n_groups; g++)
		kc.group[g].window = lim->group[g].window;
	w.ops = w.device ? *w.device : *sr_null_ops();
	w.ops.poll = lossy_poll;
	assert_int_equal(kv_create(&w.kv, &kc), 0);
	assert_int_equal(w.ops.open(&w.b, w.model ? w.model : &model, w.src, &w.cfg.limits, err, sizeof(err)), 0);
	r = sched_create(&w.s, &w.cfg, w.kv, &w.ops, w.b, &p);
	if (r < 0)
		w.s = NULL;
	return r;
}

static void tear_down(void)
{
	sched_destroy(w.s);
	kv_destroy(w.kv);
	w.ops.close(w.b);
}

#define IDS 1000

static int32_t ids[IDS];

static struct sched_request request(uint64_t user_data, int32_t n_prompt, int32_t max_tokens)
{
	struct sched_request q = { .user_data = user_data, .prompt = ids, .n_prompt = n_prompt,
				   .max_tokens = max_tokens, .no_cache = true };

	for (int32_t i = 0; i < IDS; i++)
		ids[i] = (i * i + i / 7) % VOCAB;
	begin(&q, &(struct sr_null_request){ .sampling = { .top_p = 1, .repetition = 1 } }, 0);
	return q;
}

static int admit(int client, const struct sched_request *q)
{
	return sched_full(w.s, &w.c[client], (uint64_t)client, q->n_prompt, q->n_words - q->cmd[0].n) ? -EAGAIN :
	       sched_admit(w.s, &w.c[client], (uint64_t)client, q, w.now);
}

static __attribute__((unused)) void ask(int client, uint64_t user_data, int32_t n_prompt, int32_t max_tokens)
{
	struct sched_request q = request(user_data, n_prompt, max_tokens);

	assert_int_equal(admit(client, &q), 0);
}

static void no_yield(void *ctx)
{
	(void)ctx;
}

static void step(void)
{
	int heard = w.n_heard, work;

	w.now += 1000;
	work = sched_step(w.s, w.now);
	if (w.device)                                    /* it computes in its caller's time */
		w.ops.work(w.b, no_yield, NULL);
	assert_true(work > 0 || (work == 0 && w.n_heard == heard)); /* a step that emits events reports work */
	sched_check(w.s);
	sched_stats(w.s, &w.st);
}

static __attribute__((unused)) void until_idle(void)
{
	for (int i = 0; sched_busy(w.s); i++) {
		assert_true(i < 5000);
		step();
	}
}

static __attribute__((unused)) const struct sched_event *end_of(uint64_t user_data)
{
	const struct sched_event *e = NULL;

	for (int i = 0; i < w.n_heard; i++)
		if (w.heard[i].e.user_data == user_data && w.heard[i].e.kind == SCHED_END) {
			assert_null(e);
			e = &w.heard[i].e;
		}
	return e;
}

static __attribute__((unused)) int tokens_of(uint64_t user_data)
{
	int n = 0;

	for (int i = 0; i < w.n_heard; i++)
		n += w.heard[i].e.user_data == user_data && w.heard[i].e.kind != SCHED_END;
	return n;
}

#endif
