/* daemon.h - a daemon in a thread, for tests: the real server, clients and scheduler over the
 * null device, on a socket of its own.  Or without a thread: daemon_init, daemon_make, then
 * daemon_turn by hand, daemon_unmake, daemon_clear.
 *
 * The first line of a test that includes this: LINK: @daemon -luring -lhugetlbfs -lxxhash
 */
#ifndef TESTS_DAEMON_H
#define TESTS_DAEMON_H

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clients/clients.h"
#include "core/instance/io.h"
#include "core/kv/kv.h"
#include "core/instance/log.h"
#include "core/sched/sched.h"
#include "kernels/model.h"
#include "kernels/null/null.h"
#include "shmring/wire.h"

#define VOCAB   50000
#define CONTEXT 1024
#define EOS     7
#define WIDTH   40
#ifndef MS
#define MS      1000000ull
#endif

struct daemon {
	char dir[32], path[64];
	struct clients_config cfg;
	struct io *io;
	struct io_watch wake;         /* an eventfd: ends the loop's sleep */
	struct clients *cl;
	struct sched *s;
	struct kv *kv;
	struct sr_backend *b;
	struct stats_page *stats;
	struct counters counters;
	pthread_t thread;
	atomic_bool up, stop, woken;  /* woken: no daemon_wake is to come */
	_Atomic(void (*)(struct daemon *)) call; /* to be run by the loop's thread */
	uint64_t longest_ns;          /* turn of the loop, without sleep */
	atomic_bool paused;           /* no step: requests stay where they are */
	int fds;                      /* open when it started */

	/* what daemon_look() saw */
	struct clients_stats cs;
	struct sched_stats ss;
	struct counters n;
	struct kv_stats ks;
};

static inline int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static inline void on_wake(struct io_watch *w, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(w->fd, &n, sizeof(n)) < 0)
		return;               /* already read */
}

/* From any thread, to a daemon whose thread runs. */
static inline void daemon_wake(struct daemon *d)
{
	uint64_t one = 1;

	if (write(d->wake.fd, &one, sizeof(one)) < 0)
		abort();
}

static inline void daemon_call(struct daemon *d, void (*fn)(struct daemon *))
{
	atomic_store(&d->call, fn);
	daemon_wake(d);
	while (atomic_load(&d->call))
		usleep(50);
}

static inline void look_inside(struct daemon *d)
{
	sched_check(d->s);
	kv_check(d->kv);
	clients_stats(d->cl, &d->cs);
	sched_stats(d->s, &d->ss);
	kv_stats(d->kv, &d->ks);
	d->n = d->counters;
}

static inline void daemon_look(struct daemon *d) { daemon_call(d, look_inside); }

/* cmocka's asserts are for its own thread. */
#define MUST(x) do { if (!(x)) { fprintf(stderr, "daemon.h:%d: %s\n", __LINE__, #x); abort(); } } while (0)

static inline void daemon_make(struct daemon *d)
{
	static struct sr_model model = { .n_vocab = VOCAB, .n_layers = 1, .n_kinds = 1,
		.kind = { { .n_kv_heads = 1, .head_dim = 1 } } };
	struct sr_limits lim = { .n_groups = 1, .block_tokens = 16, .n_blocks = 512, .seq_blocks = CONTEXT / 16 + 1,
		.slots = 32, .rows = 32, .tokens = 512, .scores = 512, .cmds = 1024, .words = 1 << 16,
		.copies = 1, .logit_rows = 32, .masks = 2 * 32, .vectors = 4, .width = WIDTH };
	struct kv_config kc = { .n_blocks = lim.n_blocks, .block_tokens = lim.block_tokens, .copies = 1,
		.key = { 1, 2 }, .n_owners = 64 };
	struct sched_config sc = { .limits = lim, .vocab = VOCAB, .context = CONTEXT, .tenants = 64,
		.ids_max = 1 << 20,
		.knobs = { .max_seqs = 32, .batch_tokens = 512, .chunk_max = 512, .queue_requests = 256,
			   .queue_tokens = 1 << 18, .copies = 1, .quantum = 512 } };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct sched_port port;
	char err[256];

	d->counters = (struct counters){ 0 };
	d->cfg.counters = sc.counters = &d->counters;
	strcpy(a.sun_path, d->path);
	MUST(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 128) == 0);
	MUST(io_create(&d->io, 0) == 0);
	d->wake = (struct io_watch){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = IO_IN, .fn = on_wake };
	MUST(d->wake.fd >= 0 && io_watch_add(d->io, &d->wake) == 0);
	MUST(clients_create(&d->cl, &d->cfg, d->io, fd) == 0);
	MUST(kv_create(&d->kv, &kc) == 0);
	MUST(sr_null_ops()->open(&d->b, &model, NULL, &lim, err, sizeof(err)) == 0);
	clients_port(d->cl, &port);
	MUST(sched_create(&d->s, &sc, d->kv, sr_null_ops(), d->b, &port) == 0);
	clients_attach(d->cl, d->s);
}

/* Nothing may be left: no sequence, no block held (kv_destroy asserts it). */
static inline void daemon_unmake(struct daemon *d)
{
	clients_destroy(d->cl);
	sched_check(d->s);
	MUST(!sched_busy(d->s) || d->paused);
	sched_destroy(d->s);
	kv_destroy(d->kv);
	sr_null_ops()->close(d->b);
}

/* One turn without sleep: poll, take, step, publish.  Returns the work done. */
static inline int daemon_turn(struct daemon *d)
{
	uint64_t now = io_now();
	int work = io_poll(d->io);

	work += clients_take(d->cl, now);
	if (!d->paused)
		work += sched_step(d->s, now);
	clients_flush(d->cl);
	while (clients_chores(d->cl))
		work++;
	return work;
}

static inline void daemon_loop(struct daemon *d)
{
	uint64_t idle_since = 0;

	while (!d->stop) {
		uint64_t now = io_now(), took;
		void (*call)(struct daemon *) = atomic_load(&d->call);
		int work;

		if (call) {
			call(d);
			atomic_store(&d->call, NULL);
		}
		work = daemon_turn(d);
		took = io_now() - now;
		d->longest_ns = took > d->longest_ns ? took : d->longest_ns;
		if (work) {
			idle_since = 0;
			continue;
		}
		idle_since = idle_since ? idle_since : now;
		if (now - idle_since < 20000)
			continue;
		if (clients_arm(d->cl))
			io_sleep(d->io, sched_busy(d->s) ? now + MS : now + 1000 * MS);
		clients_awake(d->cl);
	}
}

static inline void *daemon_main(void *arg)
{
	struct daemon *d = arg;

	daemon_make(d);                       /* an io belongs to the thread that made it */
	d->up = true;
	daemon_loop(d);
	daemon_unmake(d);
	while (!d->woken)
		usleep(100);
	io_destroy(d->io);                    /* by the thread that made it, because it waits for closes */
	d->io = NULL;
	return NULL;
}

/* Fields of cfg that are zero get values that suit most tests. */
static inline void daemon_init(struct daemon *d, const struct clients_config *cfg)
{
	static const int32_t eos[] = { EOS };

	memset(d, 0, sizeof(*d));
	log_level_by_name("error");
	if (cfg)
		d->cfg = *cfg;
#define DEFAULT(field, value) if (!d->cfg.field) d->cfg.field = (value)
	DEFAULT(max, 64);
	DEFAULT(max_per_uid, d->cfg.max);
	DEFAULT(live, 1024);
	DEFAULT(tokens, 8192);
	DEFAULT(arena, 1u << 20);
	DEFAULT(guides, 32);
	DEFAULT(vectors, 32);
	DEFAULT(width, WIDTH);
	DEFAULT(take, 16);
	DEFAULT(gateway, (uid_t)-1);
	DEFAULT(stall_ns, 10000 * MS);
	DEFAULT(vocab, VOCAB);
	DEFAULT(context, CONTEXT);
	DEFAULT(eos, eos);
	DEFAULT(n_eos, 1);
	DEFAULT(stats, calloc(1, sizeof(*d->stats)));
#undef DEFAULT
	d->stats = d->cfg.stats;
	snprintf(d->cfg.model_name, sizeof(d->cfg.model_name), "null");
	strcpy(d->dir, "/tmp/slipring-test-XXXXXX");
	assert_non_null(mkdtemp(d->dir));
	snprintf(d->path, sizeof(d->path), "%s/sock", d->dir);
	d->fds = open_fds();
}

static inline void daemon_start(struct daemon *d, const struct clients_config *cfg)
{
	daemon_init(d, cfg);
	assert_int_equal(pthread_create(&d->thread, NULL, daemon_main, d), 0);
	while (!d->up)
		usleep(100);
}

static inline void daemon_clear(struct daemon *d)
{
	io_destroy(d->io);
	close(d->wake.fd);
	assert_int_equal(open_fds(), d->fds);
	free(d->stats);
	unlink(d->path);
	rmdir(d->dir);
}

static inline void daemon_stop(struct daemon *d)
{
	d->stop = true;
	daemon_wake(d);
	d->woken = true;
	pthread_join(d->thread, NULL);
	daemon_clear(d);
}

/* Wait until n clients are left, for two seconds at most. */
static inline bool daemon_settles(struct daemon *d, int n)
{
	for (int i = 0; i < 2000; i++) {
		daemon_look(d);
		if (d->cs.connected == n)
			return true;
		usleep(1000);
	}
	return false;
}

/* A teardown.  The daemon always ends here, so that one failed test does not fail the next. */
static inline int daemon_end(struct daemon *d)
{
	bool clean = daemon_settles(d, 0) && d->ks.n_held == 0;

	daemon_stop(d);
	return clean ? 0 : -1;
}

/* The token that must follow ids[0 .. n), of which the first n_prompt are the prompt, in a request with
 * only a prompt, max_tokens and min_tokens. */
static inline int32_t answer(const int32_t *ids, int32_t n, int32_t n_prompt, int32_t min_tokens)
{
	static const uint32_t eos[] = { EOS };
	struct sr_null_request q = { .sampling = { .top_p = 1, .repetition = 1,
		.min_position = n_prompt + min_tokens }, .list = { eos }, .n_list = { 1 },
		.n_prompt = n_prompt, .vocab = VOCAB };

	return sr_null_next(&q, ids, n);
}

/* An honest client: ask for n tokens over c and compare them.  Returns the time it took, in ns. */
static inline uint64_t ask(struct sr_conn *c, uint32_t salt, uint32_t n)
{
	static int32_t ids[CONTEXT];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 40, .max_tokens = n,
		.min_tokens = n, .user_data = salt };
	struct sr_token t = { 0 };
	uint64_t begin = io_now();
	uint32_t have = 40;
	int e;

	for (uint32_t i = 0; i < 40; i++)
		ids[i] = (int32_t)((salt * 7919 + i * i) % VOCAB);
	while ((e = sr_submit(c, &q, NULL)) == -EAGAIN)
		assert_true(sr_wait(c, SR_WAIT_ROOM, 2000) > 0);
	assert_int_equal(e, 0);
	while (t.kind != SR_END) {
		e = sr_next(c, &t);
		assert_true(e >= 0);
		if (e == 0)
			assert_true(sr_wait(c, SR_WAIT_TOKENS, 2000) > 0);
		else if (t.kind == SR_TOKEN) {
			assert_int_equal(t.id, answer(ids, (int32_t)have, 40, (int32_t)n));
			ids[have++] = t.id;
		}
	}
	assert_int_equal(t.end.finish, SR_LENGTH);
	assert_int_equal(t.end.n_tokens, n);
	return io_now() - begin;
}

/* A cmocka case with a daemon of its own, in *d. */
#define DAEMON_CASE(f, d) cmocka_unit_test_prestate_setup_teardown(f, daemon_setup, daemon_teardown, d)

static inline int daemon_setup(void **state)
{
	daemon_start(*state, NULL);
	return 0;
}

static inline int daemon_teardown(void **state) { return daemon_end(*state); }

#endif
