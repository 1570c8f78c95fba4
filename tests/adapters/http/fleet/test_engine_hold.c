/* LINK: adapters/http/fleet/engine.c adapters/http/fleet/engine_hold.c adapters/http/fleet/dial.c adapters/http/fleet/kept.c adapters/http/tenants.c core/instance/io.c core/instance/log.c -luring */
/* test_engine_hold.c - what becomes of requests whose daemon goes: two toys in the daemons' places are killed,
 * stopped, drained and lose their devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "adapters/http/fleet/engine.h"
#include "adapters/http/fleet/kept.h"
#include "adapters/http/worker.h"

#define MS   1000000ull
#define WAIT (150 * MS)

/* ---- the toy daemons ---- */

struct asked { struct sr_request q; int32_t ids[32]; };

static struct sr_conn {
	bool there, lost, stopped;     /* one can connect; the connection is lost, because it was told to stop */
	struct sr_model_info model;
	struct asked asked[32];
	int n_asked, n_cancel;
	struct sr_record out[32];
	int n_out, fd;
} toy[2];

int sr_open(struct sr_conn **out, const char *path, const struct sr_options *o)
{
	struct sr_conn *c = &toy[path[1] - '0'];

	(void)o;
	if (!c->there)
		return -ENOENT;
	*out = c;
	c->lost = c->stopped = false;
	c->n_asked = c->n_out = c->n_cancel = 0;
	c->fd = eventfd(0, EFD_NONBLOCK);
	return 0;
}

void sr_close(struct sr_conn *c) { close(c->fd); }
const struct sr_model_info *sr_model(const struct sr_conn *c) { return &c->model; }
int sr_fd(const struct sr_conn *c) { return c->fd; }
int sr_stopped(const struct sr_conn *c) { return c->stopped; }
int sr_arm(struct sr_conn *c, int what) { (void)what; return c->lost ? -ECONNRESET : c->n_out > 0; }
void sr_doing(struct sr_conn *c, int what, int by) { (void)c; (void)what; (void)by; }

int sr_submit(struct sr_conn *c, const struct sr_request *q, uint32_t *ticket)
{
	struct asked *a = &c->asked[c->n_asked];

	if (c->lost)
		return -ECONNRESET;
	a->q = *q;
	assert_true(q->n_prompt <= 32);
	memcpy(a->ids, q->prompt, q->n_prompt * sizeof(*a->ids));
	*ticket = (uint32_t)c->n_asked++;
	return 0;
}

int sr_cancel(struct sr_conn *c, uint32_t ticket)
{
	(void)ticket;
	c->n_cancel++;
	return c->lost ? -ECONNRESET : 0;
}

void sr_guide_took(struct sr_conn *c, uint32_t us) { (void)c, (void)us; }

int sr_guide(struct sr_conn *c, uint32_t t, uint32_t index, uint32_t kind, const int32_t *ids, uint32_t n,
             const uint32_t *bits)
{
	(void)t; (void)index; (void)kind; (void)ids; (void)n; (void)bits;
	return c->lost ? -ECONNRESET : 0;
}

int sr_poll(struct sr_conn *c, struct sr_record *out, unsigned max)
{
	int n = c->n_out;

	assert_true((unsigned)n <= max);
	memcpy(out, c->out, (size_t)n * sizeof(*out));
	c->n_out = 0;
	return n || !c->lost ? n : -ECONNRESET;
}

int sr_vector(struct sr_conn *c, uint32_t place, float *out, uint32_t n)
{
	(void)c; (void)place; (void)out; (void)n;
	return 0;
}

int sr_gather(struct sr_token *t, const struct sr_record *r)
{
	*t = (struct sr_token){ .user_data = r->user_data, .kind = r->kind, .id = r->u.token.id };
	if (r->kind == SR_END)
		t->end = r->u.end;
	return 1;
}

int workers_give(struct workers *p, struct work *w)
{
	(void)p;
	w->run(w);
	w->done(w);
	return 0;
}

/* ---- owners ---- */

struct owner { int tokens, scores, ends, finish, n_moved; uint64_t handle; struct engine *engine; struct sr_end end; };

static struct io *io;
static struct engine *e[2];
static int moved;
static uint32_t moved_tokens;
static int n_submitted;

static void on_token(void *o, const struct sr_token *t)
{
	struct owner *w = o;

	w->tokens += t->kind == SR_TOKEN;
	w->scores += t->kind == SR_PROMPT;
}

static void on_end(void *o, int finish, const struct sr_token *t)
{
	struct owner *w = o;

	w->ends++;
	w->finish = finish;
	if (t)
		w->end = t->end;
}

static void on_vector(void *o, int finish, const struct sr_token *t, const float *v, uint32_t n)
{
	(void)v; (void)n;
	on_end(o, finish, t);
}

static void on_preempted(void *ctx, unsigned times) { (void)ctx; (void)times; }
static void on_submitted(void *o) { (void)o; n_submitted++; }
static void on_drawn(void *o, int32_t id, bool last) { (void)o; (void)id; (void)last; }

static void on_moved(void *ctx, uint32_t n)
{
	(void)ctx;
	moved++;
	moved_tokens += n;
}

static void on_handed(void *o, bool pooled, struct engine *to, uint64_t handle)
{
	struct owner *w = o;

	(void)pooled;
	w->engine = to;
	w->handle = handle;
	w->n_moved++;
}

static uint64_t n_ran, ran_here[32];

static const uint64_t *ran(void *replica, int *n)
{
	(void)replica;
	*n = (int)n_ran;
	return n_ran ? ran_here : NULL;
}

static bool other(void *fleet, const struct engine *from, uint32_t answers)
{
	(void)fleet;
	return from == e[0] && engine_up(e[1]) && (!answers || answers == toy[1].model.answers);
}

static struct engine *elsewhere(void *fleet, const struct engine *from, const struct sr_request *q, uint32_t answers)
{
	(void)q;
	return other(fleet, from, answers) ? e[1] : NULL;
}

static void begin(uint64_t wait_ns, int n)
{
	static char path[2][3] = { "/0", "/1" };

	memset(toy, 0, sizeof(toy));
	memset(e, 0, sizeof(e));
	moved = n_submitted = 0;
	n_ran = 0;
	moved_tokens = 0;
	assert_int_equal(io_create(&io, 0), 0);
	for (int i = 0; i < n; i++) {
		const struct engine_config c = { .socket = path[i], .token = on_token, .end = on_end, .vector = on_vector,
			.preempted = on_preempted, .submitted = on_submitted, .drawn = on_drawn, .moved = on_moved,
			.handed = on_handed, .elsewhere = n > 1 ? elsewhere : NULL, .other = n > 1 ? other : NULL, .wait_ns = wait_ns, .ran = ran,
			.max_requests = 90, .max_tokens = 900 };

		toy[i].there = true;
		toy[i].model = (struct sr_model_info){ .context = 100, .live = 16, .width = 2 };
		assert_int_equal(engine_create(&e[i], io, NULL, &c), 0);
	}
}

static void finish(void)
{
	engine_destroy(e[0]);
	engine_destroy(e[1]);
	io_destroy(io);
}

static void wake(int i)
{
	assert_int_equal(eventfd_write(toy[i].fd, 1), 0);
	io_sleep(io, io_now() + 20 * MS);
	if (!toy[i].lost)
		eventfd_read(toy[i].fd, &(eventfd_t){ 0 });
}

/* Let time pass until it is connected again. */
static void back(int i)
{
	toy[i].there = true;
	for (uint64_t end = io_now() + 2000 * MS; !engine_up(e[i]) && io_now() < end;)
		io_sleep(io, end);
	assert_true(engine_up(e[i]));
}

static void dies(int i, bool told)
{
	toy[i].there = false;
	toy[i].lost = true;
	toy[i].stopped = told;
	wake(i);
	assert_false(engine_up(e[i]));
}

static struct sr_record record(int i, int nth, int kind, int32_t id)
{
	struct sr_record r = { .kind = (uint8_t)kind, .user_data = toy[i].asked[nth].q.user_data };

	if (kind == SR_END)
		r.u.end = (struct sr_end){ .finish = id, .n_tokens = 9, .queued = 50, .scheduled = 60, .first = UINT64_MAX / 2,
		                           .last = UINT64_MAX / 2 };
	else
		r.u.token.id = id;
	return r;
}

static void says(int i, int nth, int kind, int32_t id)
{
	toy[i].out[toy[i].n_out++] = record(i, nth, kind, id);
	wake(i);
}

static const int32_t prompt[] = { 1, 2, 3 };

static int submit_as(struct owner *o, uint32_t flags)
{
	const struct sr_request q = { .size = sizeof(q), .prompt = prompt, .n_prompt = 3, .max_tokens = 9, .tenant = 7,
	                              .flags = flags, .n_prompt_top = flags & SR_PROMPT_LOGPROBS ? 2 : 0 };

	*o = (struct owner){ .engine = e[0] };
	return engine_submit(e[0], &q, o, &o->handle);
}

/* ---- the tests ---- */

/* What has begun goes on with its ids; what has not is asked again as it was.  Scores come once. */
static void goes_on(void **state)
{
	struct owner o[3];
	const struct asked *a = toy[0].asked;

	(void)state;
	begin(WAIT, 1);
	assert_int_equal(submit_as(&o[0], SR_SEEDED | SR_PROMPT_LOGPROBS), 0);
	assert_int_equal(submit_as(&o[1], SR_PROMPT_LOGPROBS), 0);
	assert_int_equal(submit_as(&o[2], SR_GUIDED), 0);
	says(0, 0, SR_PROMPT, 2);
	says(0, 0, SR_PROMPT, 3);
	says(0, 0, SR_TOKEN, 11);
	says(0, 0, SR_TOKEN, 12);
	says(0, 1, SR_PROMPT, 2);
	dies(0, false);
	assert_true(engine_model(e[0]) && engine_room(e[0], 7) > 0);  /* new ones are held, too */
	back(0);
	assert_int_equal(toy[0].n_asked, 3);
	assert_true(a[0].q.n_prompt == 5 && a[0].q.n_answer == 2 && a[0].q.max_tokens == 9);
	assert_memory_equal(a[0].ids, ((int32_t[]){ 1, 2, 3, 11, 12 }), 20);
	assert_true(a[0].q.flags == SR_SEEDED && !a[0].q.n_prompt_top);
	assert_true(a[1].q.n_prompt == 3 && !a[1].q.n_answer && a[1].q.flags == SR_PROMPT_LOGPROBS);
	assert_true(moved == 3 && moved_tokens == 2 && n_submitted == 2);
	says(0, 1, SR_PROMPT, 2);                         /* it came before */
	assert_int_equal(o[1].scores, 1);
	says(0, 1, SR_PROMPT, 3);
	says(0, 1, SR_TOKEN, 5);
	assert_true(o[1].scores == 2 && o[1].tokens == 1);
	says(0, 0, SR_TOKEN, 13);
	says(0, 0, SR_END, SR_LENGTH);
	assert_true(o[0].tokens == 3 && o[0].scores == 2 && o[0].ends == 1 && o[0].finish == SR_LENGTH);
	assert_true(o[0].end.queued == 50 && o[0].end.first < UINT64_MAX / 2); /* times of the whole */
	assert_true(!o[1].ends && !o[2].ends);
	finish();
}

/* A request under which daemons die three times in a row without a token ends; one that gets tokens goes on, up to
 * eight times.  Daemons that were told to stop do not count. */
static void may_be_the_cause(void **state)
{
	struct owner o[2];

	(void)state;
	begin(2000 * MS, 1);
	assert_true(submit_as(&o[0], 0) == 0 && submit_as(&o[1], 0) == 0);
	for (int i = 0; i < 4; i++) {
		dies(0, true);
		back(0);
	}
	for (int i = 0; i < 8; i++) {
		says(0, o[0].ends ? 0 : 1, SR_TOKEN, 4);
		assert_int_equal(o[0].ends, i > 2);
		dies(0, false);
		if (i < 8)
			back(0);
	}
	assert_true(o[0].finish == -ECONNABORTED && o[1].ends == 0 && o[1].tokens == 8);
	says(0, 0, SR_TOKEN, 4);
	dies(0, false);
	assert_true(o[1].ends == 1 && o[1].finish == -ECONNABORTED);
	finish();
}

/* Of two that the daemon has, it computes only the second: the first just waits, and bears many deaths. */
static void only_waited(void **state)
{
	struct owner o[2];

	(void)state;
	begin(2000 * MS, 1);
	assert_true(submit_as(&o[0], 0) == 0 && submit_as(&o[1], 0) == 0);
	for (int i = 0; i < 12; i++) {
		n_ran = 1;
		ran_here[0] = toy[0].asked[o[1].ends ? 0 : 1].q.user_data;
		if (o[1].ends)
			ran_here[0]++;               /* nothing of ours */
		dies(0, false);
		assert_int_equal(o[1].ends, i > 1);
		back(0);
	}
	assert_true(o[1].finish == -ECONNABORTED && o[0].ends == 0);
	says(0, 0, SR_TOKEN, 4);
	assert_int_equal(o[0].tokens, 1);
	for (int i = 0; i < 17; i++) {               /* taking it may be what kills them */
		assert_int_equal(o[0].ends, 0);
		dies(0, false);
		if (i < 16)
			back(0);
	}
	assert_int_equal(o[0].finish, -ECONNABORTED);
	finish();
}

/* Nobody comes: what is held ends, also what came meanwhile; then requests are refused. */
static void patience(void **state)
{
	struct owner o[3];

	(void)state;
	begin(WAIT, 1);
	submit_as(&o[0], 0);
	dies(0, false);
	assert_int_equal(submit_as(&o[1], 0), 0);
	assert_int_equal(submit_as(&o[2], 0), 0);
	engine_drop(e[0], o[2].handle);
	for (uint64_t end = io_now() + WAIT + 100 * MS; io_now() < end && !o[0].ends;)
		io_sleep(io, end);
	for (int i = 0; i < 2; i++)
		assert_true(o[i].ends == 1 && o[i].finish == -ECONNRESET);
	assert_int_equal(o[2].ends, 0);
	assert_null(engine_model(e[0]));
	assert_int_equal(submit_as(&o[2], 0), -ECONNREFUSED);
	back(0);
	assert_int_equal(submit_as(&o[2], 0), 0);
	finish();
}

/* A daemon that drains gives back what it has; what ends by itself meanwhile has ended; what its owner has
 * cancelled does not go on.  It gets nothing new. */
static void drains(void **state)
{
	struct owner o[4];

	(void)state;
	begin(2000 * MS, 1);
	for (int i = 0; i < 3; i++)
		submit_as(&o[i], 0);
	engine_cancel(e[0], o[2].handle);
	says(0, 0, SR_TOKEN, 8);
	engine_leave(e[0]);
	assert_int_equal(toy[0].n_cancel, 3);
	assert_true(!engine_up(e[0]) && submit_as(&o[3], 0) == 0);
	says(0, 0, SR_TOKEN, 9);
	says(0, 0, SR_END, -ECANCELED);
	says(0, 1, SR_END, SR_STOP);
	says(0, 2, SR_END, -ECANCELED);
	assert_true(o[0].ends == 0 && o[0].tokens == 2 && o[1].finish == SR_STOP && o[2].finish == -ECANCELED);
	assert_int_equal(toy[0].n_asked, 3);
	dies(0, true);
	back(0);
	assert_int_equal(toy[0].n_asked, 2);
	assert_int_equal(toy[0].asked[0].q.n_answer, 2);          /* it came first */
	assert_int_equal(toy[0].asked[1].q.n_answer, 0);
	finish();
}

/* It drains, and the only other daemon computes something else: what has begun ends where it is, what has not goes
 * there.  When one that computes the same is up again, the rest goes on with it. */
static void drains_alone(void **state)
{
	struct owner o[3];

	(void)state;
	begin(2000 * MS, 2);
	toy[0].model.answers = 5;
	toy[1].model.answers = 6;
	for (int i = 0; i < 2; i++) {
		dies(i, true);
		back(i);
	}
	for (int i = 0; i < 3; i++)
		submit_as(&o[i], 0);
	says(0, 0, SR_TOKEN, 8);
	says(0, 1, SR_TOKEN, 8);
	engine_leave(e[0]);
	assert_true(toy[0].n_cancel == 1 && !engine_up(e[0]));
	says(0, 2, SR_END, -ECANCELED);
	assert_true(o[2].engine == e[1] && !o[2].ends);
	engine_leave(e[0]);
	assert_int_equal(toy[0].n_cancel, 1);
	says(0, 0, SR_TOKEN, 9);
	says(0, 0, SR_END, SR_STOP);
	assert_true(o[0].ends == 1 && o[0].finish == SR_STOP && o[0].tokens == 2 && o[0].n_moved == 0);
	dies(1, true);
	toy[1].model.answers = 5;
	back(1);
	engine_leave(e[0]);
	assert_int_equal(toy[0].n_cancel, 2);
	says(0, 1, SR_END, -ECANCELED);
	assert_true(o[1].engine == e[1] && !o[1].ends && toy[1].asked[toy[1].n_asked - 1].q.n_answer == 1);
	finish();
}

/* The device is lost: its daemon says so to each request, and ends.  Nothing is sent to it in between. */
static void device_lost(void **state)
{
	struct owner o[2];

	(void)state;
	begin(2000 * MS, 1);
	submit_as(&o[0], 0);
	says(0, 0, SR_END, -EIO);
	assert_true(!o[0].ends && !engine_up(e[0]));
	submit_as(&o[1], 0);
	wake(0);
	assert_int_equal(toy[0].n_asked, 1);
	dies(0, false);
	back(0);
	assert_int_equal(toy[0].n_asked, 2);
	assert_true(!o[0].ends && !o[1].ends);
	finish();
}

/* Another model comes back: what has begun ends, what has not is asked there.  Vectors are asked again whole. */
static void another_model(void **state)
{
	struct owner o[3];

	(void)state;
	begin(2000 * MS, 1);
	toy[0].model.answers = 5;
	dies(0, true);
	back(0);
	for (int i = 0; i < 2; i++)
		submit_as(&o[i], 0);
	submit_as(&o[2], SR_POOLED);
	says(0, 0, SR_TOKEN, 3);
	dies(0, true);
	toy[0].model.answers = 6;
	back(0);
	assert_true(o[0].ends == 1 && o[0].finish == -ESTALE && !o[1].ends && !o[2].ends);
	assert_true(toy[0].n_asked == 2 && toy[0].asked[1].q.flags == SR_POOLED && toy[0].asked[1].q.n_prompt == 3);
	says(0, 1, SR_END, SR_STOP);
	assert_true(o[2].ends == 1 && o[2].finish == SR_STOP);
	finish();
}

/* With another daemon nobody waits, whatever wait_ns is. */
static void elsewhere_at_once(void **state)
{
	struct owner o[2];

	(void)state;
	for (int held = 0; held < 2; held++) {
		begin(held ? 2000 * MS : 0, 2);
		submit_as(&o[0], 0);
		submit_as(&o[1], 0);
		says(0, 1, SR_TOKEN, 6);
		dies(0, false);
		io_sleep(io, io_now() + 5 * MS);
		assert_int_equal(toy[1].n_asked, 2);
		assert_true(toy[1].asked[1].q.n_answer == 1 && toy[1].asked[1].ids[3] == 6);
		assert_true(o[1].engine == e[1] && o[1].n_moved == 1 && moved == 2);
		engine_cancel(o[0].engine, o[0].handle);
		assert_int_equal(toy[1].n_cancel, 1);
		says(1, 1, SR_END, SR_STOP);
		assert_true(o[1].ends == 1 && o[1].tokens == 1);
		dies(1, false);                                   /* and from the last one nobody goes elsewhere */
		assert_true(o[0].ends == 1 && o[0].finish == -ECONNRESET);
		finish();
	}
}

/* The bound: ids beyond it are forgotten, and such an answer ends with its daemon. */
static void bound(void **state)
{
	struct tenant a = { .id = 3 }, b = { .id = 4 };
	struct kept_bytes all = { 0 };
	const struct sr_request q = { .size = sizeof(q), .prompt = prompt, .n_prompt = 3 };
	const struct sr_token t = { .kind = SR_TOKEN, .id = 5 };
	struct kept *k = kept_create(&q, 0, PLAIN, 1), *l = kept_create(&q, 1, PLAIN, 1);

	(void)state;
	for (int i = 0; i < 100; i++)
		assert_true(kept_token(k, &a, &all, &t));
	assert_true(k->n_ids == 100 && all.n == 512 && a.kept == 512);
	all.n = KEPT_BYTES;                        /* others hold the rest */
	assert_true(kept_token(l, &b, &all, &t));
	assert_true(l->forgot && kept_move(l, false, false) == -ECONNRESET);
	assert_int_equal(kept_move(k, true, true), 0);
	all.n = a.kept = KEPT_BYTES / 9 * 8 - 1024; /* a tenant may have 8 times what it leaves */
	for (int i = 0; i < 100; i++)
		kept_token(k, &a, &all, &t);
	assert_true(!k->forgot && k->n_ids == 200);
	all.n = a.kept = KEPT_BYTES / 9 * 8;
	for (int i = 0; i < 100; i++)
		kept_token(k, &a, &all, &t);
	assert_true(k->forgot && !k->id);
	kept_free(k, &a, &all);
	kept_free(l, &b, &all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(goes_on), cmocka_unit_test(may_be_the_cause), cmocka_unit_test(only_waited), cmocka_unit_test(patience),
		cmocka_unit_test(drains), cmocka_unit_test(drains_alone), cmocka_unit_test(device_lost), cmocka_unit_test(another_model), cmocka_unit_test(elsewhere_at_once),
		cmocka_unit_test(bound),
	};

	return cmocka_run_group_tests_name("engine_hold", tests, NULL, NULL);
}
