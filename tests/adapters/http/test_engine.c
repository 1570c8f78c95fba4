/* LINK: adapters/http/fleet/engine.c adapters/http/fleet/engine_hold.c adapters/http/fleet/dial.c adapters/http/fleet/kept.c adapters/http/tenants.c core/instance/io.c core/instance/log.c -luring -Wl,--wrap=realloc */
/* test_engine.c - the adapter's side of the ring, with a toy in the daemon's place: what waits when
 * there is no room and in which order it goes, what is cancelled and dropped, and that each request
 * ends exactly once when the daemon goes away, and the connection comes back.
 */
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
#include "adapters/http/worker.h"

#define MS 1000000ull

static bool no_memory;

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
	return no_memory ? NULL : __real_realloc(p, n);
}

/* ---- the toy daemon ---- */

static struct {
	int opens, open_result, closed;
	struct sr_model_info model;
	int room;                      /* submits that will be taken */
	uint64_t user[64];
	int32_t prompt[64];            /* the first id of each that was taken */
	int n_user;
	struct sr_record out[64];
	int n_out, n_cancel, cancel_full;
	bool lost, stopped;
	int fd;
	int doing[2];                  /* as told since the last sr_open */
	int guided_room;               /* guided submits that will be taken */
	uint64_t places;               /* given back by sr_vector() */
	int n_guides;
	uint32_t guide_ticket, waits_for; /* of the last sr_guide(), sr_arm() */
} toy;

static char connection;

int sr_open(struct sr_conn **out, const char *path, const struct sr_options *o)
{
	assert_string_equal(path, "/toy");
	assert_int_equal(o->size, sizeof(*o));
	toy.opens++;
	memset(toy.doing, 0, sizeof(toy.doing));
	*out = (struct sr_conn *)&connection;
	if (!toy.open_result)
		toy.fd = eventfd(0, EFD_NONBLOCK);
	return toy.open_result;
}

void sr_close(struct sr_conn *c)
{
	assert_ptr_equal(c, &connection);
	toy.closed++;
	close(toy.fd);
}

const struct sr_model_info *sr_model(const struct sr_conn *c) { (void)c; return &toy.model; }
int sr_fd(const struct sr_conn *c) { (void)c; return toy.fd; }

int sr_arm(struct sr_conn *c, int what)
{
	(void)c;
	toy.waits_for = (uint32_t)what;
	return toy.lost ? -ECONNRESET : toy.n_out > 0;
}

int sr_submit(struct sr_conn *c, const struct sr_request *q, uint32_t *ticket)
{
	(void)c;
	if (toy.lost)
		return -ECONNRESET;
	if (!q->n_prompt)
		return -EINVAL;
	if (q->flags & SR_GUIDED && !toy.guided_room)
		return -EBUSY;
	if (!toy.room)
		return -EAGAIN;
	toy.guided_room -= (q->flags & SR_GUIDED) != 0;
	toy.room--;
	*ticket = (uint32_t)toy.n_user;
	toy.prompt[toy.n_user] = q->prompt[0];
	toy.user[toy.n_user++] = q->user_data;
	return 0;
}

void sr_guide_took(struct sr_conn *c, uint32_t us) { (void)c, (void)us; }

int sr_guide(struct sr_conn *c, uint32_t ticket, uint32_t index, uint32_t kind, const int32_t *ids, uint32_t n,
             const uint32_t *bits)
{
	assert_true(c == (struct sr_conn *)&connection && index == 3 && kind == SR_GUIDE_ONLY && n == 1 && *ids == 9);
	assert_null(bits);
	toy.guide_ticket = ticket;
	toy.n_guides++;
	return 0;
}

void sr_doing(struct sr_conn *c, int what, int by)
{
	assert_ptr_equal(c, &connection);
	toy.doing[what] += by;
}

int sr_cancel(struct sr_conn *c, uint32_t ticket)
{
	(void)c;
	(void)ticket;
	if (toy.cancel_full)
		return -EAGAIN;
	toy.n_cancel++;
	return 0;
}

int sr_poll(struct sr_conn *c, struct sr_record *out, unsigned max)
{
	int n = toy.n_out;

	(void)c;
	if (toy.lost)
		return -ECONNRESET;
	assert_true((unsigned)n <= max);
	memcpy(out, toy.out, (size_t)n * sizeof(*out));
	toy.n_out = 0;
	return n;
}

int sr_stopped(const struct sr_conn *c)
{
	assert_ptr_equal(c, &connection);
	return toy.stopped;
}

int sr_vector(struct sr_conn *c, uint32_t place, float *out, uint32_t n)
{
	assert_true(c == (struct sr_conn *)&connection && place >= 1 && place <= 64);
	toy.places |= 1ull << (place - 1);
	for (uint32_t i = 0; i < n; i++)
		out[i] = (float)place + (float)i;
	return 0;
}

int sr_gather(struct sr_token *t, const struct sr_record *r)
{
	*t = (struct sr_token){ .user_data = r->user_data, .kind = r->kind, .id = r->u.token.id };
	if (r->kind == SR_END) {
		t->end = r->u.end;
		t->place = r->was & SR_POOLED ? r->place : 0;
	}
	return 1;
}

/* Work is done at once: the worker has a test of its own. */
int workers_give(struct workers *p, struct work *w)
{
	(void)p;
	w->run(w);
	w->done(w);
	return 0;
}

/* ---- owners ---- */

struct owner { int tokens, ends, finish; uint64_t handle; };

static unsigned preempted_sum;

static void on_token(void *o, const struct sr_token *t) { (void)t; ((struct owner *)o)->tokens++; }
static void on_preempted(void *ctx, unsigned times) { (void)ctx; preempted_sum += times; }

static struct io *io;
static struct engine *e;
static void *submitted;

/* The first guide is given from inside engine_submit(), or when the request leaves the queue. */
static void on_submitted(void *o)
{
	const int32_t id = 9;

	submitted = o;
	assert_int_equal(engine_guide(e, ((struct owner *)o)->handle, 3, SR_GUIDE_ONLY, &id, 1, NULL), 0);
}

static int n_drawn;

static void on_drawn(void *o, int32_t id, bool last)
{
	assert_int_equal(((struct owner *)o)->tokens, 0); /* before any of this poll */
	assert_true(id == 0 && !last);
	n_drawn++;
}

static void on_end(void *o, int finish, const struct sr_token *t)
{
	struct owner *w = o;

	assert_true((t == NULL) == (finish < 0 && finish != -ECANCELED));
	w->ends++;
	w->finish = finish;
}

static void on_vector(void *o, int finish, const struct sr_token *t, const float *vector, uint32_t n)
{
	struct owner *w = o;

	assert_int_equal(n, finish > 0 ? 2 : 0);
	assert_true(!n || (vector[0] == (float)t->place && vector[1] == (float)t->place + 1));
	w->ends++;
	w->finish = finish;
}

static uint32_t granted = 64;

static void begin(int open_result)
{
	const struct engine_config c = { .socket = "/toy", .name = "test", .token = on_token,
	                                 .end = on_end, .vector = on_vector, .preempted = on_preempted,
	                                 .submitted = on_submitted, .drawn = on_drawn,
	                                 .max_requests = 90, .max_tokens = 45 };

	memset(&toy, 0, sizeof(toy));
	toy.open_result = open_result;
	toy.model.context = 100;
	toy.model.live = granted;
	toy.model.width = 2;
	preempted_sum = 0;
	assert_int_equal(io_create(&io, 0), 0);
	assert_int_equal(engine_create(&e, io, NULL, &c), 0);
}

static void finish(void)
{
	engine_destroy(e);
	io_destroy(io);
}

static void wake(void)
{
	assert_int_equal(eventfd_write(toy.fd, 1), 0);
	io_sleep(io, io_now() + 20 * MS);
	if (!toy.lost) {
		eventfd_t v;

		eventfd_read(toy.fd, &v);
	}
}

static void put(uint64_t user, int kind, int n)
{
	struct sr_record r = { .kind = (uint8_t)kind, .user_data = user };

	if (kind == SR_END) {
		r.u.end.finish = SR_LENGTH;
		r.preempted = (uint16_t)n;
	}
	toy.out[toy.n_out++] = r;
}

static int submit_of(uint64_t tenant, int32_t *first, struct owner *o, uint64_t *handle)
{
	const struct sr_request q = { .size = sizeof(q), .prompt = first, .n_prompt = *first != 0, .tenant = tenant };

	return engine_submit(e, &q, o, handle);
}

static int submit(int32_t *first, struct owner *o, uint64_t *handle)
{
	return submit_of(0, first, o, handle);
}

static void turn_away(int i)
{
	struct sr_record r = { .kind = SR_END, .user_data = toy.user[i] };

	r.u.end.finish = -EAGAIN;
	toy.out[toy.n_out++] = r;
}

/* ---- the tests ---- */

/* What is under way before the ring is told to whichever daemon is connected. */
static void doing_is_told(void **state)
{
	static int32_t one = 1;
	struct owner o = { 0 };
	uint64_t h;

	(void)state;
	begin(-ECONNREFUSED);
	engine_doing(e, SR_ARRIVING, 2);      /* nobody is there to hear it */
	engine_doing(e, SR_PREPARING, 1);
	toy.open_result = 0;
	for (int i = 0; i < 200 && !engine_model(e); i++)
		io_sleep(io, io_now() + 20 * MS);
	assert_non_null(engine_model(e));
	assert_true(toy.doing[SR_ARRIVING] == 2 && toy.doing[SR_PREPARING] == 1);
	engine_doing(e, SR_ARRIVING, -1);
	assert_true(toy.doing[SR_ARRIVING] == 1 && toy.doing[SR_PREPARING] == 1);
	toy.room = 1;
	assert_int_equal(submit(&one, &o, &h), 0);
	toy.lost = true;
	wake();
	assert_int_equal(o.finish, -ECONNRESET);
	toy.lost = false;
	engine_doing(e, SR_PREPARING, -1);
	for (int i = 0; i < 200 && !engine_model(e); i++)
		io_sleep(io, io_now() + 20 * MS);
	assert_true(toy.doing[SR_ARRIVING] == 1 && toy.doing[SR_PREPARING] == 0); /* the next one's word */
	finish();
}

/* Each place is given back: of a vector, of a failure, of a request that its owner dropped. */
static void vectors(void **state)
{
	static int32_t one = 1;
	const struct sr_request q = { .size = sizeof(q), .prompt = &one, .n_prompt = 1, .flags = SR_POOLED };
	struct owner o[3] = { { 0 } };
	uint64_t h[3];

	(void)state;
	begin(0);
	toy.room = 3;
	for (int i = 0; i < 3; i++)
		assert_int_equal(engine_submit(e, &q, &o[i], &h[i]), 0);
	engine_drop(e, h[2]);
	for (uint16_t i = 0; i < 3; i++)
		toy.out[toy.n_out++] = (struct sr_record){ .kind = SR_END, .user_data = toy.user[i], .was = SR_POOLED,
			.place = (uint16_t)(i + 1), .u.end = { .finish = i == 1 ? -EIO : SR_STOP, .n_tokens = i == 1 ? 0 : 2 } };
	wake();
	assert_true(o[0].ends == 1 && o[0].finish == SR_STOP);
	assert_true(o[1].ends == 1 && o[1].finish == -EIO);
	assert_int_equal(o[2].ends, 0);
	assert_int_equal(toy.places, 7);
	assert_int_equal(submit(&one, &o[2], &h[2]), 0);
	finish();
}

static void room_and_order(void **state)
{
	static const int order[] = { 1, 2, 3, 5 };
	static int32_t id[] = { 1, 2, 3, 4, 5 };
	struct owner o[5] = { { 0 } };
	uint64_t h[5];
	int i;

	(void)state;
	begin(0);
	assert_non_null(engine_model(e));
	toy.room = 2;
	for (i = 0; i < 5; i++)
		assert_int_equal(submit(&id[i], &o[i], &h[i]), 0);
	assert_int_equal(engine_live(e), 2);
	assert_int_equal(engine_room(e, 0), ENGINE_LIVE + ENGINE_QUEUE - 5);

	engine_drop(e, h[3]);                  /* it waited: it is never submitted, and hears nothing */
	put(toy.user[0], SR_TOKEN, 0);
	put(toy.user[0], SR_END, 3);
	toy.room = 1;
	wake();
	assert_true(o[0].tokens == 1 && o[0].ends == 1 && o[0].finish == SR_LENGTH);
	assert_int_equal(preempted_sum, 3);
	assert_int_equal(toy.n_user, 3);
	toy.room = 5;
	put(toy.user[1], SR_END, 0);
	wake();
	assert_int_equal(toy.n_user, 4);
	for (i = 0; i < 4; i++)                /* in the order of arrival, without the dropped one */
		assert_int_equal(toy.prompt[i], order[i]);
	assert_int_equal(o[3].ends, 0);

	put(toy.user[0], SR_TOKEN, 0);         /* of a request that is over: dropped */
	put(~0ull, SR_END, 0);
	wake();
	assert_int_equal(o[0].tokens, 1);
	finish();
}

/* Those of one tenant that came first do not hold back the others'. */
static void tenants_in_turn(void **state)
{
	static const struct { uint64_t tenant; int32_t id; } asked[] = {
		{ 1, 11 }, { 1, 12 }, { 1, 13 }, { 1, 14 }, { 2, 21 }, { 2, 22 }, { 3, 31 },
	};
	static const int32_t want[] = { 11, 21, 31, 12, 22, 13, 14 };
	struct owner o = { 0 };
	uint64_t h;

	(void)state;
	begin(0);
	for (size_t i = 0; i < 7; i++)
		assert_int_equal(submit_of(asked[i].tenant, (int32_t *)&asked[i].id, &o, &h), 0);
	for (int i = 0; i < 7; i++) {                  /* room for one at a time, or for all: the same */
		toy.room = i < 3 ? 1 : 9;
		wake();
	}
	assert_int_equal(toy.n_user, 7);
	for (int i = 0; i < 7; i++)
		assert_int_equal(toy.prompt[i], want[i]);
	finish();
}

/* One with many has eight ninths of the places in the daemon, and of those here; then others' go by. */
static void shares_of_places(void **state)
{
	static int32_t one = 1, two = 2;
	struct owner o = { 0 };
	struct queue_load l;
	uint64_t h;

	(void)state;
	granted = 18;
	begin(0);
	granted = 64;
	toy.room = 60;
	for (int i = 0; i < 30; i++)
		assert_int_equal(submit_of(1, &one, &o, &h), 0);
	wake();
	assert_int_equal(engine_live(e), 16);
	assert_int_equal(submit_of(2, &two, &o, &h), 0);
	wake();
	assert_int_equal(engine_live(e), 17);
	assert_int_equal(toy.prompt[16], 2);

	put(toy.user[0], SR_END, 0);                   /* the place that came free is for others, */
	wake();
	assert_int_equal(engine_live(e), 16);          /* until two are */
	put(toy.user[16], SR_END, 0);
	wake();
	assert_int_equal(engine_live(e), 16);

	while (submit_of(1, &one, &o, &h) == 0)
		;
	l = engine_load(e, 1);
	assert_int_equal(l.mine, (ENGINE_LIVE + ENGINE_QUEUE) * 8 / 9);
	assert_int_equal(l.requests, 80);              /* as many as its share of 90, and */
	assert_int_equal(l.tokens, 40);                /* of 45: a request admitted while none waited did not use it */
	assert_int_equal(l.tenants, 1);
	assert_int_equal(engine_room(e, 1), 0);
	assert_in_range(engine_room(e, 2), 1000, 1020);
	assert_int_equal(submit_of(2, &two, &o, &h), 0);
	l = engine_load(e, 2);
	assert_true(l.mine == 1 && l.mine_tokens == 1 && l.requests == 81 && l.tenants == 2);
	finish();
}

/* A tenant has its share in the daemon.  Requests that it sends back go again, in order, when another of the
 * tenant begins, or 10 ms later.  No client notices, and other tenants' requests go meanwhile. */
static void turned_away(void **state)
{
	static int32_t id[] = { 1, 2, 3, 4, 9 };
	struct owner o[5] = { { 0 } };
	uint64_t h[5];

	(void)state;
	begin(0);
	toy.room = 40;
	for (int i = 0; i < 4; i++)
		assert_int_equal(submit_of(1, &id[i], &o[i], &h[i]), 0);
	turn_away(0);
	turn_away(2);
	turn_away(3);
	assert_int_equal(eventfd_write(toy.fd, 1), 0);
	io_sleep(io, io_now());
	assert_int_equal(engine_live(e), 1);
	assert_int_equal(submit_of(2, &id[4], &o[4], &h[4]), 0);
	put(toy.user[1], SR_TOKEN, 0);
	wake();
	assert_int_equal(toy.n_user, 7);
	assert_true((toy.prompt[4] == 9) + (toy.prompt[4] == 1) == 1);
	assert_int_equal(toy.prompt[4] == 9 ? toy.prompt[5] : toy.prompt[4], 1);
	assert_int_equal(toy.prompt[6] == 9 ? toy.prompt[5] : toy.prompt[6], 3);
	for (uint64_t end = io_now() + 1000 * MS; toy.n_user < 8 && io_now() < end;)
		io_sleep(io, io_now() + 5 * MS);         /* after one that began two, then one each 10 ms */
	assert_true(toy.n_user == 8 && toy.prompt[7] == 4);
	for (int i = 0; i < 4; i++)
		assert_int_equal(o[i].ends, 0);

	engine_cancel(e, h[3]);                          /* the cancel was too late; and a request */
	engine_drop(e, h[0]);                            /* without an owner */
	turn_away(7);
	turn_away(toy.prompt[4] == 1 ? 4 : 5);
	wake();
	assert_true(o[3].ends == 1 && o[3].finish == -ECANCELED && o[0].ends == 0);
	assert_int_equal(toy.n_user, 8);
	assert_int_equal(engine_live(e), 3);
	finish();
}

/* No memory for a place: the caller is told, nothing is counted, and the next request is served. */
static void no_place(void **state)
{
	static int32_t one = 1;
	struct owner o = { 0 };
	struct queue_load l;
	uint64_t h;

	(void)state;
	begin(0);
	toy.room = 1;
	no_memory = true;
	assert_int_equal(submit_of(5, &one, &o, &h), -ENOMEM);
	no_memory = false;
	l = engine_load(e, 5);
	assert_true(!l.requests && !l.tokens && !l.mine && !l.mine_tokens && !l.tenants);
	assert_int_equal(submit_of(5, &one, &o, &h), 0);
	assert_int_equal(engine_live(e), 1);
	l = engine_load(e, 6);                 /* tenant 6 is unknown */
	assert_true(!l.mine && !l.mine_tokens);
	finish();
}

/* An invalid request is refused at once, or, if it had to wait, in its end. */
static void refused(void **state)
{
	static int32_t one = 1, zero = 0;
	struct owner o[3] = { { 0 } };
	uint64_t h;

	(void)state;
	begin(0);
	assert_int_equal(submit(&zero, &o[0], &h), -EINVAL);
	assert_int_equal(submit(&one, &o[1], &h), 0);
	assert_int_equal(submit(&zero, &o[2], &h), 0);
	assert_int_equal(engine_live(e), 0);
	toy.room = 9;
	wake();
	assert_true(o[0].ends == 0 && o[1].ends == 0);
	assert_true(o[2].ends == 1 && o[2].finish == -EINVAL);
	assert_int_equal(engine_live(e), 1);
	finish();
}

static void cancelled(void **state)
{
	static int32_t id[] = { 1, 2 };
	struct owner o[2] = { { 0 } };
	uint64_t h[2];

	(void)state;
	begin(0);
	toy.room = 2;
	submit(&id[0], &o[0], &h[0]);
	submit(&id[1], &o[1], &h[1]);
	toy.cancel_full = 1;
	engine_cancel(e, h[0]);
	engine_drop(e, h[1]);
	assert_int_equal(toy.n_cancel, 0);
	toy.cancel_full = 0;
	put(toy.user[1], SR_TOKEN, 0);
	wake();                                /* both again, once there is room */
	assert_int_equal(toy.n_cancel, 2);
	put(toy.user[0], SR_END, 0);
	put(toy.user[1], SR_END, 0);
	wake();
	assert_true(o[0].ends == 1 && o[1].ends == 0 && o[1].tokens == 0);
	assert_int_equal(engine_live(e), 0);
	engine_cancel(e, h[0]);                /* its time is over: its place is free */
	assert_int_equal(toy.n_cancel, 2);
	finish();
}

/* Without a turn of the loop, as when it is busy with requests. */
static void taken_between_turns(void **state)
{
	static int32_t id = 1;
	struct owner o = { 0 };
	uint64_t h;

	(void)state;
	begin(0);
	toy.room = 1;
	submit(&id, &o, &h);
	put(toy.user[0], SR_TOKEN, 0);
	put(toy.user[0], SR_END, 0);
	engine_take(e);
	assert_true(o.tokens == 1 && o.ends == 1);
	finish();
}

/* The daemon dies: all requests end, waiting ones too, and new ones are refused until it is back. */
static void lost(void **state)
{
	static int32_t id[] = { 1, 2, 3 };
	struct owner o[3] = { { 0 } };
	uint64_t h, end;
	int i;

	(void)state;
	begin(0);
	toy.room = 1;
	for (i = 0; i < 3; i++)
		submit(&id[i], &o[i], &h);
	toy.lost = true;
	toy.open_result = -ENOENT;
	wake();
	assert_null(engine_model(e));
	assert_int_equal(toy.closed, 1);
	for (i = 0; i < 3; i++)
		assert_true(o[i].ends == 1 && o[i].finish == -ECONNRESET);
	assert_int_equal(submit(&id[0], &o[0], &h), -ECONNREFUSED);
	assert_int_equal(engine_room(e, 0), 0);
	for (end = io_now() + 400 * MS; io_now() < end;)
		io_sleep(io, end);
	assert_in_range(toy.opens, 3, 6);      /* after 50 ms, 100, 200: with back-off */
	toy.open_result = 0;
	toy.lost = false;
	toy.room = 1;
	for (end = io_now() + 1000 * MS; !engine_model(e) && io_now() < end;)
		io_sleep(io, end);
	assert_non_null(engine_model(e));
	assert_int_equal(submit(&id[0], &o[0], &h), 0);
	finish();
}

static void wrong_vocabulary(void **state)
{
	(void)state;
	begin(-ENOENT);
	assert_null(engine_model(e));
	assert_false(engine_wrong_model(e));
	finish();
	begin(0);
	finish();
	memset(&toy, 0, sizeof(toy));
	{
		const struct engine_config c = { .socket = "/toy", .vocab_hash = { 1 }, .token = on_token,
		                                 .end = on_end, .vector = on_vector, .preempted = on_preempted };

		assert_int_equal(io_create(&io, 0), 0);
		assert_int_equal(engine_create(&e, io, NULL, &c), 0);
	}
	assert_true(engine_wrong_model(e));
	assert_null(engine_model(e));
	assert_int_equal(toy.closed, 1);
	finish();
}

/* Guided requests: their owner is told when they go; those beyond what the daemon grants wait for an END, not for
 * room in the ring; a request that is not there has no guide. */
static void guided(void **state)
{
	const int32_t id = 9;
	struct owner o[3] = { { 0 } };
	const struct sr_request q = { .size = sizeof(q), .flags = SR_GUIDED, .prompt = &id, .n_prompt = 1, .max_tokens = 5 };

	(void)state;
	begin(0);
	toy.room = 9;
	toy.guided_room = 2;
	for (int i = 0; i < 3; i++)
		assert_int_equal(engine_submit(e, &q, &o[i], &o[i].handle), 0);
	assert_ptr_equal(submitted, &o[1]);
	assert_int_equal(toy.n_guides, 2);
	assert_int_equal(toy.guide_ticket, 1);
	assert_int_equal(engine_guide(e, o[2].handle, 0, SR_GUIDE_FREE, NULL, 0, NULL), -ESRCH);
	wake();
	assert_int_equal(toy.waits_for, SR_WAIT_TOKENS);
	put(toy.user[0], SR_TOKEN, 0);
	put(toy.user[1], SR_TOKEN, 0);
	wake();
	assert_true(n_drawn == 2 && o[0].tokens == 1 && o[1].tokens == 1);
	toy.guided_room = 1;
	put(toy.user[0], SR_END, 0);
	wake();
	assert_true(o[0].ends == 1 && submitted == &o[2] && toy.n_guides == 3);
	assert_int_equal(engine_guide(e, o[0].handle, 0, SR_GUIDE_FREE, NULL, 0, NULL), -ESRCH);
	finish();
}

static int ask(uint64_t tenant, int32_t *id, bool with_guides, struct owner *o)
{
	const struct sr_request q = { .size = sizeof(q), .flags = with_guides ? SR_GUIDED : 0, .prompt = id,
	                              .n_prompt = 1, .max_tokens = 5, .tenant = tenant };

	return engine_submit(e, &q, o, &o->handle);
}

/* Guided requests that must wait hold nothing else back, of their own tenant or of another.  Once one more may
 * go, they go in the order of their tenants' turns. */
static void guided_are_passed(void **state)
{
	static struct { uint64_t tenant; int32_t id; bool guided; } asked[] = {
		{ 1, 11, true }, { 1, 12, true }, { 1, 13, true }, { 1, 14, false }, { 2, 21, true }, { 2, 22, false },
	};
	static const int32_t want[] = { 11, 14, 22, 12, 21, 13 };
	struct owner o[6] = { { 0 } };

	(void)state;
	begin(0);
	toy.room = 9;
	toy.guided_room = 1;
	for (int i = 0; i < 6; i++)
		assert_int_equal(ask(asked[i].tenant, &asked[i].id, asked[i].guided, &o[i]), 0);
	wake();
	assert_int_equal(toy.n_user, 3);
	assert_int_equal(toy.waits_for, SR_WAIT_TOKENS);
	toy.guided_room = 9;                           /* an END of another kind tells nothing about it */
	put(toy.user[1], SR_END, 0);
	wake();
	assert_int_equal(toy.n_user, 3);
	put(toy.user[0], SR_END, 0);
	wake();
	assert_int_equal(toy.n_user, 6);
	for (int i = 0; i < 6; i++)
		assert_int_equal(toy.prompt[i], want[i]);
	engine_drop(e, o[2].handle);
	finish();
}

/* With all places taken, a guided request waits for a place as others do: none passes it. */
static void guided_wait_for_places(void **state)
{
	static int32_t id[] = { 1, 2, 3 };
	struct owner o[3] = { { 0 } };

	(void)state;
	granted = 1;
	begin(0);
	granted = 64;
	toy.room = 9;
	assert_int_equal(ask(0, &id[0], false, &o[0]), 0);
	assert_int_equal(ask(0, &id[1], true, &o[1]), 0);    /* the toy says -EBUSY */
	assert_int_equal(ask(0, &id[2], false, &o[2]), 0);
	wake();
	assert_int_equal(toy.n_user, 1);
	toy.guided_room = 1;
	put(toy.user[0], SR_END, 0);
	wake();
	assert_int_equal(toy.n_user, 3);
	assert_true(toy.prompt[1] == 2 && toy.prompt[2] == 3);
	finish();
}

/* The daemon refused a guided request of this tenant: its others go meanwhile. */
static void refused_guided_are_passed(void **state)
{
	static int32_t id[] = { 1, 2, 3 };
	struct owner o[3] = { { 0 } };
	uint64_t before;

	(void)state;
	begin(0);
	toy.room = toy.guided_room = 9;
	assert_int_equal(ask(1, &id[0], true, &o[0]), 0);
	assert_int_equal(ask(1, &id[1], true, &o[1]), 0);
	turn_away(0);
	turn_away(1);
	before = io_now();
	assert_int_equal(eventfd_write(toy.fd, 1), 0);
	io_sleep(io, io_now());
	assert_int_equal(engine_live(e), 0);
	assert_int_equal(ask(1, &id[2], false, &o[2]), 0);
	io_sleep(io, io_now());
	if (io_now() - before < 10 * MS)                     /* else those refused may have tried again */
		assert_true(toy.n_user == 3 && toy.prompt[2] == 3);
	for (uint64_t end = io_now() + 1000 * MS; toy.n_user < 5 && io_now() < end;)
		io_sleep(io, io_now() + 5 * MS);
	assert_int_equal(toy.n_user, 5);
	assert_true(toy.prompt[3] == 1 || toy.prompt[2] == 1);
	assert_int_equal(toy.prompt[4], 2);
	assert_true(!o[0].ends && !o[1].ends && !o[2].ends);
	finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vectors), cmocka_unit_test(room_and_order), cmocka_unit_test(guided),
		cmocka_unit_test(guided_are_passed), cmocka_unit_test(guided_wait_for_places),
		cmocka_unit_test(refused_guided_are_passed), cmocka_unit_test(tenants_in_turn),
		cmocka_unit_test(shares_of_places),
		cmocka_unit_test(turned_away), cmocka_unit_test(doing_is_told), cmocka_unit_test(no_place), cmocka_unit_test(refused),
		cmocka_unit_test(cancelled), cmocka_unit_test(taken_between_turns),
		cmocka_unit_test(lost), cmocka_unit_test(wrong_vocabulary),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
