/* main.c - slipring-events: tells routers which prefixes a daemon has cached (--kv-events-config).
 *
 *	slipringd --memory--> mirror.c --> batch.c --> publish.c --> vllm-router, llm-d, Dynamo, ..
 *	                      what changed  msgpack     ZeroMQ
 *
 * A process of its own, because the daemon has no network.  With --data-parallel-size it serves all daemons,
 * each at a port of its own.  It looks at a daemon's memory every 5 ms, every 20 ms if nothing changed for a
 * second.  When a daemon goes, its subscribers hear that all blocks are gone; when it is back, what it has.
 *
 * Exit codes: 0 stopped by a signal; 1 could not start; 2 wrong arguments.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <zmq.h>

#include "batch.h"
#include "core/events.h"
#include "core/instance/ask.h"
#include "core/instance/config.h"
#include "core/instance/kv_events.h"
#include "core/instance/log.h"
#include "core/instance/notify.h"
#include "core/models/locate.h"
#include "mirror.h"
#include "publish.h"
#include "shmring/clock.h"

#define MS        1000000ull
#define SECOND    (1000 * MS)
#define FEEDS     64               /* most daemons of a model */
#define BUSY_MS   5
#define QUIET_MS  20
#define AGAIN_NS  (200 * MS)       /* between two attempts to reach a daemon */
#define RETELL_NS SECOND           /* a replay of what is no longer kept makes us tell all at most so often */
#define TURN      65536            /* changes that are followed before replays are looked at */

/* One daemon and its subscribers. */
struct feed {
	char instance[CONFIG_INSTANCE], dir[4096];
	int connection;               /* to the daemon; -1: it is away */
	const struct events_page *page;
	struct mirror *mirror;
	struct mirror_sink sink;
	struct batch batch;
	struct publisher *pub;
	uint64_t next_try, retold, overruns;
	bool lost, owed;              /* a replay waits until all was told; one is under way */
	bool said;                    /* the reason why the daemon is away was logged */
};

static struct feed feed[FEEDS];
static int n_feeds;
static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
	(void)sig;
	stopped = 1;
}

/* ---- one daemon ---- */

static void publish(struct feed *f)
{
	struct timespec t;
	const unsigned char *bytes;
	bool failed;
	size_t n;

	clock_gettime(CLOCK_REALTIME, &t);
	bytes = batch_take(&f->batch, (double)t.tv_sec + (double)t.tv_nsec / 1e9, &n, &failed);
	if (failed || (bytes && publish_send(f->pub, bytes, n) < 0))
		log_error("no memory for a batch of events: subscribers miss batch %llu",
		          (unsigned long long)publish_number(f->pub) - 1);
}

static void publish_if_full(struct feed *f)
{
	if (batch_full(&f->batch))
		publish(f);
}

static void on_stored(void *ctx, const struct mirror_block *b)
{
	struct feed *f = ctx;

	batch_stored(&f->batch, b);
	publish_if_full(f);
}

static void on_removed(void *ctx, uint64_t name, int32_t group, bool host)
{
	struct feed *f = ctx;

	batch_removed(&f->batch, name, group, host);
	publish_if_full(f);
}

static void on_cleared(void *ctx)
{
	batch_cleared(&((struct feed *)ctx)->batch);
}

static void lose(struct feed *f)
{
	if (f->connection < 0)
		return;
	close(f->connection);
	f->connection = -1;
	mirror_destroy(f->mirror);
	events_close(f->page);
	f->mirror = NULL;
	f->page = NULL;
	batch_cleared(&f->batch);
	publish(f);
	log_info("The daemon %s is gone; subscribers hear that it has no blocks", f->instance);
}

static int attach(struct feed *f, int fd)
{
	int r = events_open(&f->page, fd);

	if (r < 0)
		return r;
	r = mirror_create(&f->mirror, f->page);
	if (r < 0) {
		events_close(f->page);
		return r;
	}
	f->batch.block_tokens = f->page->block_tokens;
	memcpy(f->batch.window, f->page->window, sizeof(f->batch.window));
	f->overruns = 0;
	return 0;
}

static void reach(struct feed *f)
{
	struct control_answer a;
	int connection = -1, fd, r;

	if (f->connection >= 0 || sr_now() < f->next_try)
		return;
	f->next_try = sr_now() + AGAIN_NS;
	fd = ask_memory(f->dir, CONTROL_EVENTS, &a, &connection);
	r = fd < 0 ? fd : attach(f, fd);
	if (fd >= 0)
		close(fd);
	if (r < 0) {
		if (connection >= 0)
			close(connection);
		if (!f->said)
			log_info("The daemon %s gives no events: %s", f->instance, *a.say ? a.say : strerror(-r));
		f->said = true;
		return;
	}
	f->connection = connection;
	f->said = false;
	log_info("The daemon %s has %u blocks of %u tokens", f->instance, f->page->n_blocks + f->page->n_host,
	         f->page->block_tokens);
	batch_cleared(&f->batch);     /* who heard of another daemon at this address forgets it */
}

/* Returns whether something changed. */
static bool follow(struct feed *f)
{
	uint64_t n;

	if (f->connection < 0)
		return false;
	n = mirror_turn(f->mirror, &f->sink, TURN);
	publish(f);
	if (mirror_overruns(f->mirror) != f->overruns)
		log_warn("More than %u changes came at once: all blocks were compared", EVENTS_RING);
	f->overruns = mirror_overruns(f->mirror);
	return n > 0;
}

static void answer(struct feed *f)
{
	uint64_t now = sr_now();

	f->lost |= publish_asked(f->pub);
	if (f->lost && f->mirror && now - f->retold >= RETELL_NS) {
		f->retold = now;
		mirror_tell_all(f->mirror, &f->sink);
		publish(f);
		f->lost = false;
	}
	f->owed = !(f->lost && f->mirror) && publish_answer(f->pub);
}

/* ---- all of them ---- */

static void wait_for_work(int ms)
{
	zmq_pollitem_t p[2 * FEEDS];
	int n = 0;

	for (int i = 0; i < n_feeds; i++) {
		if (feed[i].connection >= 0)
			p[n++] = (zmq_pollitem_t){ .fd = feed[i].connection, .events = ZMQ_POLLIN };
		if (publish_socket(feed[i].pub))
			p[n++] = (zmq_pollitem_t){ .socket = publish_socket(feed[i].pub), .events = ZMQ_POLLIN };
	}
	zmq_poll(p, n, ms);
}

/* The daemon says nothing more on the connection: what can be read is its end. */
static bool ended(const struct feed *f)
{
	char byte;
	ssize_t n = f->connection >= 0 ? recv(f->connection, &byte, 1, MSG_DONTWAIT) : -1;

	return f->connection >= 0 && (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR));
}

static void run(void)
{
	uint64_t active = sr_now();

	while (!stopped) {
		bool owed = false;

		for (int i = 0; i < n_feeds; i++) {
			struct feed *f = &feed[i];

			if (ended(f))
				lose(f);
			reach(f);
			if (follow(f))
				active = sr_now();
			answer(f);
			owed |= f->owed;
		}
		wait_for_work(owed ? 1 : sr_now() - active < SECOND ? BUSY_MS : QUIET_MS);
	}
}

/* ---- start ---- */

/* llm-d's form: kv@POD@MODEL. */
static void topic_of(const struct config *cfg, const struct kv_events *e, char *out, size_t n)
{
	char host[256] = "localhost", err[256];
	const char *pod = getenv("POD_IP");
	struct located where;

	gethostname(host, sizeof(host) - 1);
	if (e->topic_given)
		snprintf(out, n, "%s", e->topic);
	else if (cfg->n_served_names || locate_model(&where, cfg->model, err, sizeof(err)) < 0)
		snprintf(out, n, "kv@%.64s@%.160s", pod && *pod ? pod : host,
		         cfg->n_served_names ? cfg->served_name[0] : "unknown");
	else
		snprintf(out, n, "kv@%.64s@%.160s", pod && *pod ? pod : host, where.name);
}

static int add_feed(struct feed *f, void *zmq, const struct config *cfg, const struct kv_events *e, int i,
                    char *err, size_t errlen)
{
	char name[CONFIG_INSTANCE], topic[KV_EVENTS_TEXT];
	struct config one;
	int r, rank;

	config_replica(cfg, i, &one, name);
	rank = config_replicas(cfg) > 1 ? i : one.data_parallel_rank > 0 ? one.data_parallel_rank : 0;
	*f = (struct feed){ .connection = -1, .sink = { f, on_stored, on_removed, on_cleared },
	                    .batch = { .arrays = e->arrays, .rank = (uint32_t)rank, .block_tokens = 1 } };
	snprintf(f->instance, sizeof(f->instance), "%s", one.instance);
	r = config_run_dir(one.instance, f->dir, sizeof(f->dir));
	if (r < 0) {
		snprintf(err, errlen, "--instance %s: %s", one.instance, config_run_dir_why(r));
		return r;
	}
	topic_of(cfg, e, topic, sizeof(topic));
	r = publish_create(&f->pub, zmq, e, topic, rank, err, errlen);
	if (r == 0)
		log_info("Events of the daemon %s are published with topic \"%s\"", f->instance, topic);
	return r;
}

static int start(void *zmq, const struct config *cfg, char *err, size_t errlen)
{
	struct kv_events e;
	int r = kv_events_parse(&e, cfg->kv_events_config, err, errlen);

	if (r < 0)
		return r;
	if (!e.on) {
		snprintf(err, errlen, "--kv-events-config '{\"enable_kv_cache_events\":true}' must be given, "
		         "to the daemon, too");
		return -EINVAL;
	}
	if (config_replicas(cfg) > FEEDS) {
		snprintf(err, errlen, "--data-parallel-size above %d is too many", FEEDS);
		return -EINVAL;
	}
	for (int i = 0; i < config_replicas(cfg) && r == 0; i++) {
		r = add_feed(&feed[i], zmq, cfg, &e, i, err, errlen);
		n_feeds += r == 0;
	}
	return r;
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = on_signal };
	struct config cfg;
	char err[1024];
	void *zmq;
	int r;

	log_open("slipring-events");
	r = config_parse(&cfg, argc, argv, FOR_SERVE, err, sizeof(err));
	if (r) {
		if (r < 0)
			log_error("%s", err);
		return r > 0 ? 0 : 2;
	}
	log_level_by_name(cfg.log_level);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGINT, &act, NULL);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	zmq = zmq_ctx_new();
	r = zmq ? start(zmq, &cfg, err, sizeof(err)) : -ENOMEM;
	if (r < 0) {
		log_error("%s", zmq ? err : "no memory");
	} else {
		notify_send("READY=1");
		run();
		notify_send("STOPPING=1");
	}
	for (int i = 0; i < n_feeds; i++) {
		lose(&feed[i]);
		publish_destroy(feed[i].pub);
		batch_free(&feed[i].batch);
	}
	if (zmq)
		zmq_ctx_term(zmq);
	config_free(&cfg);
	return r < 0 ? r == -EINVAL ? 2 : 1 : 0;
}
