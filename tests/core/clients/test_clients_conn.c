/* LINK: @daemon -luring -lhugetlbfs -lxxhash -Wl,--wrap=accept4,--wrap=getsockopt,--wrap=io_watch_add,--wrap=calloc,--wrap=malloc,--wrap=recvmsg,--wrap=getrandom,--wrap=geteuid,--wrap=host_read,--wrap=sched_admit,--wrap=fcntl */
/* test_clients_conn.c - clients come and go: wrong configurations, a full table, descriptors
 * and memory that run out, peers of every uid, deaths at awkward moments.  One thread: the daemon
 * turns when the test says so. */
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/wait.h>

#include "tests/rig/daemon.h"
#include "core/clients/impl.h"
#include "shmring/client.c" /* a client that miscounts is built from it */

/* ---- calls that fail ------------------------------------------------------------------------- */

static struct { const char *name; int nth, times, error; } fault;
static struct ucred *peer;            /* what SO_PEERCRED returns, if not NULL */
static uid_t self = (uid_t)-1;        /* what geteuid() returns, unless -1 */

static bool fails(const char *name)
{
	if (!fault.name || strcmp(fault.name, name) != 0 || --fault.nth > 0)
		return false;
	errno = fault.error;
	if (--fault.times == 0)
		fault.name = NULL;
	return true;
}

static void fail_next(const char *name, int nth, int times, int error)
{
	fault.name = name;
	fault.nth = nth;
	fault.times = times;
	fault.error = error;
}

#define WRAP(value, type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { return fails(#name) ? value : __real_##name pass; }

WRAP(-1, int, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
WRAP(-ENOMEM, int, io_watch_add, (struct io *io, struct io_watch *w), (io, w))
WRAP(NULL, void *, calloc, (size_t n, size_t size), (n, size))
WRAP(NULL, void *, malloc, (size_t n), (n))
WRAP(-1, ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
WRAP(-1, ssize_t, getrandom, (void *to, size_t n, unsigned flags), (to, n, flags))
WRAP(-1, int, fcntl, (int fd, int cmd, long arg), (fd, cmd, arg))

static int n_read;
int __real_host_read(struct host_conn *c);
int __wrap_host_read(struct host_conn *c);
int __wrap_host_read(struct host_conn *c)
{
	n_read++;
	return fails("host_read") ? -EFAULT : __real_host_read(c);
}

WRAP(-fault.error, int, sched_admit, (struct sched *s, void *client, uint64_t tenant,
     const struct sched_request *r, uint64_t now), (s, client, tenant, r, now))

uid_t __real_geteuid(void);
uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void) { return self == (uid_t)-1 ? __real_geteuid() : self; }

int __real_getsockopt(int fd, int level, int name, void *to, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *to, socklen_t *n);
int __wrap_getsockopt(int fd, int level, int name, void *to, socklen_t *n)
{
	if (fails(name == SO_PEERCRED ? "peercred" : "peerpidfd"))
		return -1;
	if (name == SO_PEERCRED && peer) {
		memcpy(to, peer, sizeof(*peer));
		return 0;
	}
	return __real_getsockopt(fd, level, name, to, n);
}

/* ---- the daemon by hand ---------------------------------------------------------------------- */

static struct daemon d;

static void begin(const struct clients_config *cfg)
{
	daemon_init(&d, cfg);
	daemon_make(&d);
}

static void end(void)
{
	daemon_unmake(&d);
	daemon_clear(&d);
	assert_null(fault.name);
}

static int setup(void **state)
{
	(void)state;
	begin(NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	end();
	return 0;
}

static void turns(int n)
{
	for (int i = 0; i < n; i++)
		daemon_turn(&d);
	look_inside(&d);
}

static int knock(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	strcpy(a.sun_path, d.path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static void hello(int fd)
{
	struct sr_hello h = { .magic = SR_MAGIC, .version = SR_VERSION, .want = { 32, 64, 4096 } };

	assert_int_equal(send(fd, &h, sizeof(h), MSG_NOSIGNAL), sizeof(h));
}

enum { NOT_YET = 1, GONE = 2 };

/* The answer: 0, -errno, NOT_YET, or GONE if it was closed. */
static int answered(int fd)
{
	struct sr_welcome w;
	ssize_t n = recv(fd, &w, sizeof(w), MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return NOT_YET;
	if (n <= 0)
		return GONE;
	assert_int_equal(n, sizeof(w));
	return w.status;
}

/* Connect and send a hello.  Returns the answer. */
static int comes(int *fd)
{
	int e;

	*fd = knock();
	turns(3);
	hello(*fd);
	turns(3);
	e = answered(*fd);
	if (e == 0) {
		assert_int_equal(sr_signal(*fd), 0);
		turns(3);
		assert_int_equal(recv(*fd, &(char){ 0 }, 1, MSG_DONTWAIT), 1);
	}
	return e;
}

static void leaves(int fd)
{
	close(fd);
	turns(3);
}

/* ---- coming ---------------------------------------------------------------------------------- */

static void wrong_configurations(void **state)
{
	static const struct {
		const char *what;
		int is;
		int32_t max, per_uid, take, n_eos, live, vocab;
	} t[] = {
		{ "right", 0, 1, 1, 1, 0, 32, 10 },
		{ "no clients", -EINVAL, 0, 1, 1, 0, 32, 10 },
		{ "more than there are ranges", -EINVAL, HOST_CONNS_MAX, 1, 1, 0, 32, 10 },
		{ "none of a uid", -EINVAL, 1, 0, 1, 0, 32, 10 },
		{ "nothing taken", -EINVAL, 1, 1, 0, 0, 32, 10 },
		{ "fewer than no ids", -EINVAL, 1, 1, 1, -1, 32, 10 },
		{ "no rings", -EINVAL, 1, 1, 1, 0, 0, 10 },
		{ "no vocabulary", -EINVAL, 1, 1, 1, 0, 32, 0 },
	};
	static const struct { const char *name; int times; int is; } faults[] = {
		{ "calloc", 6, -ENOMEM }, { "getrandom", 2, -EIO }, { "io_watch_add", 1, -ENOMEM },
		{ "malloc", 1, -ENOMEM },
	};
	struct counters counters = { 0 };
	struct clients_config cfg;
	struct io *io;

	(void)state;
	assert_int_equal(io_create(&io, 0), 0);
	for (size_t i = sizeof(t) / sizeof(t[0]); i-- > 0;) { /* the correct one last: faults need it */
		struct clients *cl = NULL;
		int e;

		cfg = (struct clients_config){ .max = t[i].max, .max_per_uid = t[i].per_uid,
			.take = (uint32_t)t[i].take, .n_eos = t[i].n_eos, .live = (uint32_t)t[i].live,
			.tokens = 64, .arena = 4096, .vocab = t[i].vocab, .context = 10, .counters = &counters };
		e = clients_create(&cl, &cfg, io, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));

		if (e != t[i].is)
			fail_msg("%s: %d instead of %d", t[i].what, e, t[i].is);
		clients_destroy(cl);
	}
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		for (int nth = 1; nth <= faults[i].times; nth++) {
			struct clients *cl = NULL;
			int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), before = open_fds();

			fail_next(faults[i].name, nth, 1, ENOMEM);
			assert_int_equal(clients_create(&cl, &cfg, io, fd), faults[i].is);
			assert_int_equal(open_fds(), before - 1); /* it takes over the listener, and closed it */
			assert_null(fault.name);
		}
	io_destroy(io);
}

static void a_full_table_says_so(void **state)
{
	struct clients_config cfg = { .max = 3, .max_per_uid = 3 };
	int fd[3 + REFUSALS + 2], late;

	(void)state;
	begin(&cfg);
	for (int i = 0; i < 3; i++)
		assert_int_equal(comes(&fd[i]), 0);
	/* This many more are told that it is full; connections beyond them are closed at once. */
	for (int i = 3; i < 3 + REFUSALS + 2; i++)
		fd[i] = knock();
	turns(REFUSALS + 4);
	for (int i = 3; i < 3 + REFUSALS + 2; i++)
		assert_int_equal(answered(fd[i]), i < 3 + REFUSALS ? NOT_YET : GONE);
	for (int i = 3; i < 3 + REFUSALS; i++) {
		hello(fd[i]);
		turns(2);
		assert_int_equal(answered(fd[i]), -EUSERS);
		assert_int_equal(answered(fd[i]), GONE);
	}
	assert_int_equal(d.cs.connected, 3);
	assert_int_equal(d.n.refused, REFUSALS + 2);
	leaves(fd[0]);
	assert_int_equal(comes(&late), 0);    /* the place is free again */
	fd[0] = late;
	for (int i = 0; i < 3 + REFUSALS + 2; i++)
		close(fd[i]);
	turns(3);
	assert_int_equal(d.cs.connected, 0);
	end();
}

static void each_uid_has_its_share(void **state)
{
	struct clients_config cfg = { .max = 8, .max_per_uid = 2 };
	struct ucred who = { .pid = getpid(), .uid = 0 };
	static const struct { uid_t uid; int is; } t[] = {
		{ 1000, 0 }, { 1000, 0 }, { 1000, -EUSERS }, { 1001, 0 }, { 1000, -EUSERS }, { 1001, 0 },
		{ 1001, -EUSERS }, { 1002, 0 },
	};
	int fd[8];

	(void)state;
	begin(&cfg);
	peer = &who;
	for (int i = 0; i < 8; i++) {
		who.uid = t[i].uid;
		assert_int_equal(comes(&fd[i]), t[i].is);
	}
	peer = NULL;
	for (int i = 0; i < 8; i++)
		close(fd[i]);
	turns(3);
	end();
}

/* Untrusted clients, however many, leave some places, and some of the memory that they share. */
static void strangers_leave_something(void **state)
{
	static const struct sr_shape small = { 32, 64, 4096, 0, 0 }; /* as in hello() */
	const size_t unit = SR_UP_BYTES(&small, 0) + SR_DOWN_BYTES(&small, 0) + 32 * sizeof(struct live);
	static const struct {
		const char *what;
		int32_t max;
		double bytes;         /* in units; 0: any */
		int first, second;    /* clients of one uid, then of another */
	} t[] = {
		{ "places", 16, 0, 14, 1 }, { "memory", 32, 10, 8, 1 }, { "both", 11, 10, 8, 1 },
		{ "no memory", 32, 0.99, 0, 0 }, { "enough", 4, 1000, 3, 0 },
	};
	struct ucred who = { .pid = getpid() };

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct clients_config cfg = { .max = t[i].max, .stranger_bytes = (size_t)(t[i].bytes * (double)unit) };
		int fd[40], n = 0, got[3] = { 0 }, e = 0;

		self = 500;
		begin(&cfg);
		peer = &who;
		for (int k = 0; k < 3; k++) {
			static const uid_t uid[] = { 1000, 1001, 500 };

			who.uid = uid[k];
			while ((e = comes(&fd[n++])) == 0 && got[k] < 20)
				got[k]++;
			assert_true(e == 0 || e == -EUSERS);
		}
		peer = NULL;
		self = (uid_t)-1;
		if (got[0] != t[i].first || got[1] != t[i].second)
			fail_msg("%s: %d, then %d", t[i].what, got[0], got[1]);
		/* Trusted clients always find a place, and may take all that are left. */
		assert_int_equal(got[2], t[i].max - got[0] - got[1] < 20 ? t[i].max - got[0] - got[1] : 20);
		while (n > 0)
			close(fd[--n]);
		turns(3);
		end();
	}
}

/* Which client may be urgent and hold huge pages (trusted), and which may name tenants (gateway). */
static void peers_are_known_by_uid(void **state)
{
	static const struct { uid_t self, gateway, uid; bool trusted, names; } t[] = {
		{ 500, 600, 500, true, true }, { 500, 600, 600, true, true }, { 500, 600, 0, true, false },
		{ 500, 600, 700, false, false }, { 0, (uid_t)-1, 0, true, true }, { 0, (uid_t)-1, 1, false, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct clients_config cfg = { .gateway = t[i].gateway };
		struct ucred who = { .pid = getpid(), .uid = t[i].uid };
		int fd;

		self = t[i].self;
		begin(&cfg);
		peer = &who;
		assert_int_equal(comes(&fd), 0);
		peer = NULL;
		self = (uid_t)-1;
		assert_int_equal(d.cl->all[0]->trusted, t[i].trusted);
		assert_int_equal(d.cl->all[0]->gateway, t[i].names);
		leaves(fd);
		end();
	}
}

/* Open descriptors, once their number stays: the kernel's threads close large memory a little later. */
static int settled_fds(void)
{
	int n = open_fds();

	for (int same = 0, rounds = 0; same < 5 && rounds < 1000; rounds++) {
		int before = n;

		usleep(2000);
		n = open_fds();
		same = n == before ? same + 1 : 0;
	}
	return n;
}

/* A resource that runs out ends that client; the next is accepted. */
static void whatever_runs_out_the_next_one_comes_in(void **state)
{
	static const struct { const char *name; int nth, is; } t[] = {
		{ "calloc", 1, GONE },        /* its place */
		{ "io_watch_add", 1, GONE }, { "io_watch_add", 2, -ENOMEM },
		{ "peercred", 1, -EACCES }, { "peerpidfd", 1, 0 }, /* before Linux 6.5 */
		{ "calloc", 2, -ENOMEM },     /* its rings */
		{ "calloc", 3, -ENOMEM }, { "malloc", 1, -ENOMEM }, /* its requests */
		{ "recvmsg", 1, 0 },          /* a hello that is not there after all */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		int fd, fds = settled_fds(), e;

		fail_next(t[i].name, t[i].nth, 1, EAGAIN);
		fd = knock();
		turns(3);
		if (t[i].is != GONE)
			hello(fd);
		turns(3);
		e = answered(fd);
		if (e != t[i].is || fault.name)
			fail_msg("%s %d: %d instead of %d", t[i].name, t[i].nth, e, t[i].is);
		leaves(fd);
		assert_int_equal(comes(&fd), 0);
		leaves(fd);
		assert_int_equal(settled_fds(), fds);
	}
}

static void without_a_pidfd_the_socket_tells(void **state)
{
	struct ucred who = { .pid = 0x7ffffff0, .uid = 5 }; /* nobody's */
	int fd;

	(void)state;
	peer = &who;
	fail_next("peerpidfd", 1, 1, ENOPROTOOPT);
	assert_int_equal(comes(&fd), 0);
	peer = NULL;
	assert_int_equal(d.cl->all[0]->pidfd, -1);
	leaves(fd);
	assert_int_equal(d.cs.connected, 0);
}

/* No descriptors: the listener pauses for 100 ms, then the waiting clients are accepted. */
static void descriptors_run_out_and_come_back(void **state)
{
	static const struct { int error; bool rests; } t[] = {
		{ EMFILE, true }, { ENFILE, true }, { ENOMEM, true }, { ENOBUFS, true }, { ECONNABORTED, false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		uint64_t begun = io_now();
		int fd;

		fail_next("accept4", 1, 1, t[i].error);
		fd = knock();
		turns(4);
		assert_null(fault.name);
		assert_int_equal(d.cl->n_all, !t[i].rests);
		while (d.cl->n_all == 0) {
			assert_true(io_now() - begun < 2000 * MS);
			turns(1);
		}
		assert_true(!t[i].rests || io_now() - begun >= 100 * MS);
		leaves(fd);
	}
}

static void a_crowd_at_the_door(void **state)
{
	int fd[40];

	(void)state;
	for (int i = 0; i < 40; i++)
		fd[i] = knock();
	turns(3);                             /* one in a turn, so that others are served */
	assert_in_range(d.cl->n_all, 1, 3);
	turns(40);
	assert_int_equal(d.cl->n_all, 40);
	for (int i = 0; i < 40; i++)
		close(fd[i]);
	turns(3);
	assert_int_equal(d.cl->n_all, 0);
}

/* A client that signals too often is ignored until the window is over, whatever way it ends. */
static void who_rings_too_often_is_not_heard(void **state)
{
	static const struct { const char *what; int first, later; bool pause, heard; } t[] = {
		{ "often", 200, 40, false, true }, { "too often", 200, 100, false, false },
		{ "in two windows", 200, 200, true, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct client *c;
		uint64_t begun, first;
		int fd;

		assert_int_equal(comes(&fd), 0);
		c = d.cl->all[0];
		begun = io_now();
		first = c->bells_at;
		for (int k = 0; k < t[i].first + t[i].later; k++) {
			if (k == t[i].first && t[i].pause)
				usleep(12000);
			assert_int_equal(sr_signal(fd), 0);
			if (k % 8 == 7)
				turns(1);
		}
		turns(4);
		/* On a slow machine they may take more than one window. */
		if ((t[i].pause || io_now() - begun < 9 * MS) && c->bells_at != first && c->socket.events != (t[i].heard ? IO_IN | IO_HUP : IO_HUP))
			fail_msg("%s: listened to for %x", t[i].what, c->socket.events);
		for (uint64_t until = io_now() + 5000 * MS; c->socket.events != (IO_IN | IO_HUP); turns(1))
			assert_true(io_now() < until);
		leaves(fd);
		assert_int_equal(d.cl->n_all, 0);
	}
}

/* It ends while it is ignored. */
static void one_not_heard_goes(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(comes(&fd), 0);
	for (int k = 0; k < 300; k++) {
		assert_int_equal(sr_signal(fd), 0);
		if (k % 8 == 7)
			turns(1);
	}
	leaves(fd);
	assert_int_equal(d.cs.connected, 0);
	usleep(11000);
	turns(2);                             /* the window is over */
	assert_int_equal(d.cl->n_all, 0);
}

static void a_hello_has_a_second(void **state)
{
	uint64_t begun = io_now();
	int fd = knock();

	(void)state;
	turns(2);
	while (d.cl->n_all > 0) {
		assert_true(io_now() - begun < 3000 * MS);
		usleep(2000);
		turns(1);
	}
	assert_true(io_now() - begun >= 1000 * MS);
	turns(2);
	assert_int_equal(d.n.refused, 1);
	assert_int_equal(answered(fd), GONE);
	close(fd);
}

/* Between welcome and mapped: the client is silent, leaves, or its memory cannot be sealed. */
static void who_never_maps_is_not_looked_at(void **state)
{
	uint64_t begun = io_now();
	int fd[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		fd[i] = knock();
		hello(fd[i]);
		turns(4);
		assert_int_equal(answered(fd[i]), 0);
	}
	assert_true(d.cl->n_all == 3 && d.cl->n_open == 0 && d.cs.connected == 0);
	leaves(fd[0]);
	assert_int_equal(d.cl->n_all, 2);
	fail_next("fcntl", 1, 1, EPERM);
	assert_int_equal(sr_signal(fd[1]), 0);
	turns(3);
	assert_int_equal(d.cl->n_all, 1);
	assert_int_equal(answered(fd[1]), GONE);
	while (d.cl->n_all > 0) {
		assert_true(io_now() - begun < 3000 * MS);
		usleep(2000);
		turns(1);
	}
	turns(2);
	assert_int_equal(answered(fd[2]), GONE);
	assert_int_equal(d.n.refused, 3);
	close(fd[1]);
	close(fd[2]);
}

static void draining_answers_who_is_at_the_door(void **state)
{
	int fd = knock(), e;

	(void)state;
	turns(2);
	clients_drain(d.cl);
	clients_drain(d.cl);
	hello(fd);
	turns(2);
	e = answered(fd);
	assert_int_equal(e, -ECONNREFUSED);
	close(fd);
	turns(2);
}

/* Without a stats page all goes on; so it does when the page has no row left. */
static void rows_are_not_needed(void **state)
{
	struct clients_config cfg = { .max = 4 };
	int fd[3];

	(void)state;
	begin(&cfg);
	for (int i = 0; i < STATS_CLIENTS - 1; i++)
		stats_client_take(d.stats, (char[32]){ "another" }, 1, 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(comes(&fd[i]), 0);
	assert_ptr_equal(d.cl->all[0]->row, &d.stats->client[STATS_CLIENTS - 1]);
	assert_ptr_equal(d.cl->all[1]->row, &d.cl->unseen);
	for (int i = 0; i < 3; i++)
		close(fd[i]);
	turns(3);
	end();
}

/* ---- asking ---------------------------------------------------------------------------------- */

static struct sr_conn *conn;
static atomic_bool opened;
static uint32_t wish_live = 32;

static void *open_there(void *arg)
{
	struct sr_options o = { .size = sizeof(o), .live = wish_live, .tokens = 64, .arena = 1 << 19 };

	(void)arg;
	if (sr_open(&conn, d.path, &o) < 0)
		conn = NULL;
	opened = true;
	return NULL;
}

/* A client of the library needs a daemon that turns while it connects. */
static void open_conn(void)
{
	pthread_t t;

	opened = false;
	assert_int_equal(pthread_create(&t, NULL, open_there, NULL), 0);
	while (!opened)
		turns(1);
	pthread_join(t, NULL);
	assert_non_null(conn);
}

static const int32_t ids[1024];

static uint32_t submit(uint32_t n_prompt, uint32_t max, uint32_t n_bias)
{
	static const struct sr_pair bias[SR_LIST_MAX];
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = n_prompt, .max_tokens = max,
		.bias = bias, .n_bias = n_bias, .flags = SR_IGNORE_EOS };
	uint32_t ticket;

	assert_int_equal(sr_submit(conn, &q, &ticket), 0);
	return ticket;
}

/* Turn until n ENDs were read.  Returns the last one's finish. */
static int32_t ends(int n)
{
	struct sr_record r[16];
	uint64_t until = io_now() + 5000 * MS;
	int32_t finish = 0;

	while (n > 0) {
		int k = sr_poll(conn, r, 16);

		assert_true(k >= 0 && io_now() < until);
		for (int i = 0; i < k; i++)
			if (r[i].kind == SR_END) {
				finish = r[i].u.end.finish;
				n--;
			}
		turns(1);
	}
	return finish;
}

/* While clients are served, new ones are accepted only beside a batch, or after a while. */
static void chores_wait_for_their_time(void **state)
{
	static const struct { const char *what; double step_us; bool works; } t[] = {
		{ "a batch that hides it", 3000, false }, { "none does", 20, false }, { "we compute", 3000, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct clients_config cfg = { .works = t[i].works };
		int fd, done = 0;

		sr_null_pace(t[i].step_us, 0);
		begin(&cfg);
		open_conn();
		submit(1, 900, 0);
		while (d.n.steps < 3)
			turns(1);             /* now the time of a batch is known */
		fd = knock();
		for (uint64_t begun = io_now(), took = 0, at = 0; done < 3;) {
			uint64_t now = io_now(), since, spare;

			assert_true(now - begun < 5000 * MS);
			io_poll(d.io);
			clients_take(d.cl, now);
			sched_step(d.s, now);
			clients_flush(d.cl);
			spare = sched_spare(d.s, io_now());
			since = d.cl->line[FOR_US].first ? d.cl->line[FOR_US].first->since : 0;
			now = io_now();
			assert_true(sched_busy(d.s));
			if (!clients_chores(d.cl)) {
				assert_int_equal(d.cl->n_all, 1 + (done > 0));
				continue;
			}
			if (t[i].works)
				assert_true(!at || now - at >= took); /* rests at least as long as it worked */
			else
				assert_true(spare >= 100000 || io_now() - since >= 2 * MS);
			took = io_now() - now;
			at = now;
			if (done++ == 0)
				hello(fd);
			assert_int_equal(d.cl->n_all, 2);
		}
		close(fd);
		sr_close(conn);
		d.paused = true;
		daemon_unmake(&d);
		daemon_clear(&d);
	}
	sr_null_pace(0, 0);
}

static void requests_without_a_page(void **state)
{
	uint32_t ticket;

	(void)state;
	daemon_init(&d, NULL);
	d.cfg.stats = NULL;
	daemon_make(&d);
	open_conn();
	submit(5, 3, 0);
	assert_int_equal(ends(1), SR_LENGTH);
	ticket = submit(5, 900, 0);
	turns(5);
	assert_int_equal(sr_cancel(conn, ticket), 0);
	assert_int_equal(ends(1), -ECANCELED);
	submit(5, 3, 0);
	clients_drain(d.cl);
	assert_int_equal(ends(1), -ECONNRESET);
	sr_close(conn);
	turns(3);
	end();
}

/* Lists of all requests under way share one pool.  A request that finds it full waits in the ring, and is not
 * read repeatedly meanwhile. */
static void a_full_store_of_lists_is_waited_for(void **state)
{
	(void)state;
	open_conn();
	d.paused = true;
	n_read = 0;
	for (int i = 0; i < 31; i++) {
		submit(1, 2, SR_LIST_MAX);
		turns(2);
	}
	assert_true(d.ss.waiting > 1 && d.ss.waiting < 31);
	assert_int_equal(n_read, d.ss.waiting);
	d.paused = false;
	assert_int_equal(ends(31), SR_LENGTH);
	sr_close(conn);
	turns(3);
}

/* Ends of wrong requests fill the ring of a client that miscounts and reads nothing: the next is
 * held until there is room for its end.  That is no stall, because nothing is under way. */
static void no_room_for_a_refusal(void **state)
{
	struct clients_config cfg = { .stall_ns = 1 };

	(void)state;
	begin(&cfg);
	open_conn();
	for (int i = 0; i < 70; i++) {
		submit(1, 1, 0);
		conn->live = 0;
		((struct sr_wire_request *)sr_ring_place(&conn->requests, conn->requests.mine - 1))->n_top = 99;
		turns(2);
	}
	assert_int_equal(d.n.invalid, 64);
	assert_true(d.cl->all[0]->need == 1 && d.cs.stalled == 0);
	assert_int_equal(ends(70), -EINVAL);
	sr_close(conn);
	turns(3);
	end();
}

static void more_than_was_granted_waits(void **state)
{
	(void)state;
	open_conn();
	d.paused = true;
	for (int i = 0; i < 33; i++) {
		conn->live = 0;
		submit(1, 1, 0);
		turns(1);
	}
	assert_int_equal(d.ss.waiting, 32);
	for (uint32_t i = 0; i < 60; i++)     /* tickets of none; all buckets are searched */
		assert_int_equal(sr_cancel(conn, i - 100), 0);
	turns(3);
	assert_int_equal(d.ss.waiting, 32);
	d.paused = false;
	assert_int_equal(ends(33), SR_LENGTH);
	sr_close(conn);
	turns(3);
}

/* In one turn a client hands in at most this many requests. */
static void a_turn_has_its_measure(void **state)
{
	struct clients_config cfg = { .take = 16 };

	(void)state;
	wish_live = 128;
	begin(&cfg);
	open_conn();
	d.paused = true;
	for (int k = 0; k < 40; k++)
		submit(1, 1, 0);
	for (int k = 1; k <= 3; k++) {
		turns(1);
		assert_int_equal(d.cs.taken, k < 3 ? 16 * k : 40);
	}
	d.paused = false;
	ends(40);
	sr_close(conn);
	turns(3);
	end();
	wish_live = 32;
}

static uint64_t taken_at(uint64_t now)
{
	clients_take(d.cl, now);
	look_inside(&d);
	return d.cs.taken;
}

/* And at most this many words, 8 ns for each, right or wrong.  A request of 1000 ids has 1064: 32,768 words
 * pay for 30, and one more is on credit. */
static void words_are_paid_for(void **state)
{
	struct clients_config cfg = { .take = 1000 };
	uint64_t now;

	(void)state;
	wish_live = 128;
	for (int wrong = 0; wrong < 2; wrong++) {
		begin(&cfg);
		open_conn();
		d.paused = true;
		for (int k = 0; k < 100; k++) {
			struct sr_wire_request *w;
			int32_t *span;

			submit(1000, 1, 0);
			w = sr_ring_place(&conn->requests, conn->requests.mine - 1);
			span = (void *)(conn->up + SR_OFF_ARENA(conn->model.live) + w->at);
			span[999] = wrong ? VOCAB : 0;
		}
		now = io_now() + 1000 * MS;
		for (int k = 0; k < 3; k++)
			assert_int_equal(taken_at(now), 31);
		assert_false(clients_arm(d.cl)); /* requests are left */
		clients_flush(d.cl);
		assert_true(clients_arm(d.cl));  /* it may sleep, but not for long */
		assert_int_not_equal(d.cl->nap.index, 0);
		clients_awake(d.cl);
		now += 8 * (31 * 1064 - 32768);
		assert_int_equal(taken_at(now - 8), 31);
		assert_int_equal(taken_at(now), 32);
		assert_int_equal(taken_at(now + 8 * 1063), 32);
		assert_int_equal(taken_at(now + 8 * 1064), 33);
		assert_int_equal(d.n.invalid, wrong ? 33 : 0);
		d.paused = false;
		ends(100);
		sr_close(conn);
		turns(3);
		end();
	}
	wish_live = 32;
}

/* Sixteen clients share what one has alone, and a client that asks for little does not wait for them. */
static void words_are_shared(void **state)
{
	struct clients_config cfg = { .take = 1000 };
	struct sr_conn *c[17];
	uint64_t now;

	(void)state;
	begin(&cfg);
	for (int i = 0; i < 17; i++) {
		open_conn();
		c[i] = conn;
	}
	d.paused = true;
	for (int i = 0; i < 16; i++) {
		conn = c[i];
		for (int k = 0; k < 10; k++)
			submit(1000, 1, 0);
	}
	for (int i = 0; i < d.cl->n_open; i++)
		conn_heat(d.cl, d.cl->open[i]);
	now = io_now() + 1000 * MS;
	assert_int_equal(taken_at(now), 32);  /* each pays for one, and gets one on credit */
	for (int i = 0; i < d.cl->n_open; i++)
		assert_true(d.cl->open[i]->n_live == 2 || d.cl->open[i]->n_live == 0);
	assert_int_equal(taken_at(now), 32);
	conn = c[16];
	submit(1, 1, 0);
	assert_int_equal(taken_at(now), 33);
	d.paused = false;
	for (int i = 0; i < 17; i++) {
		conn = c[i];
		ends(i < 16 ? 10 : 1);
	}
	for (int i = 0; i < 17; i++)
		sr_close(c[i]);
	turns(3);
	end();
}

/* A score of one id ends as soon as it is taken, in the recording, too. */
static void a_recording_has_each_end(void **state)
{
	struct recorder rec = { 0 };
	struct clients_config cfg = { .recorder = &rec };
	struct sr_request q = { .size = sizeof(q), .prompt = ids, .flags = SR_PROMPT_LOGPROBS };
	struct record_entry *e;
	int fd;

	(void)state;
	begin(&cfg);
	open_conn();
	assert_int_equal(record_start(&rec, false, io_now(), &fd), 0);
	close(fd);
	for (q.n_prompt = 1; q.n_prompt <= 2; q.n_prompt++) {
		assert_int_equal(sr_submit(conn, &q, NULL), 0);
		assert_int_equal(ends(1), SR_LENGTH);
	}
	assert_int_equal(rec.page->n, 4);
	e = (void *)rec.page->entry;
	for (uint32_t i = 0; i < 4; i++, e = (void *)((unsigned char *)e + e->bytes)) {
		assert_int_equal(e->kind, i % 2 ? RECORD_ANSWER : RECORD_REQUEST);
		assert_int_equal(e->id, i / 2 + 1);
	}
	record_stop(&rec);
	sr_close(conn);
	turns(3);
	end();
}

/* A client that does not read is cancelled after the stall time, or never. */
static void stalling_has_an_end_if_one_is_set(void **state)
{
	(void)state;
	for (int never = 0; never < 2; never++) {
		struct clients_config cfg = { .stall_ns = 1 };

		daemon_init(&d, &cfg);
		d.cfg.stall_ns = !never;
		daemon_make(&d);
		open_conn();
		for (int i = 0; i < 3; i++)
			submit(1, i == 0 ? 1 : 900, 0); /* the first leaves a hole in the table */
		for (int i = 0; i < 400; i++)
			turns(1);
		assert_int_equal(d.cs.stalled, !never);
		assert_int_equal(d.ss.running + d.ss.waiting, never ? 2 : 0);
		assert_int_equal(ends(3), never ? SR_LENGTH : -ECANCELED);
		sr_close(conn);
		turns(3);
		end();
	}
}

/* Reading a record now and then does not end a stall of three requests. */
static void a_drip_is_a_stall(void **state)
{
	struct clients_config cfg = { .stall_ns = 20 * MS };
	uint64_t until = io_now() + 5000 * MS;
	struct sr_record r;

	(void)state;
	begin(&cfg);
	open_conn();
	for (int i = 0; i < 3; i++)
		submit(1, 900, 0);
	for (uint64_t next = 0; d.cs.stalled == 0; turns(1)) {
		assert_true(io_now() < until);
		if (io_now() >= next && d.ss.running > 0 && d.cl->all[0]->need) {
			assert_int_equal(sr_poll(conn, &r, 1), 1);
			next = io_now() + 15 * MS;
		}
	}
	assert_int_equal(ends(3), -ECANCELED);
	sr_close(conn);
	turns(3);
	end();
}

/* Its memory is taken away while its prompt is read: it is dropped.  The scheduler refuses: the request
 * ends with that error, or is offered again. */
static void what_the_others_say_is_passed_on(void **state)
{
	uint64_t rtt;

	(void)state;
	open_conn();
	fail_next("sched_admit", 1, 1, EIO);
	submit(1, 1, 0);
	assert_int_equal(ends(1), -EIO);
	fail_next("sched_admit", 1, 1, EAGAIN);
	submit(1, 1, 0);
	assert_int_equal(ends(1), SR_LENGTH);
	fail_next("host_read", 1, 1, EFAULT);
	submit(1, 1, 0);
	turns(3);
	assert_int_equal(d.cs.poisoned, 1);
	assert_int_equal(d.cs.connected, 0);
	usleep(300);                          /* longer than QUIET_NS without a request */
	turns(2);                             /* the ring submits it in the second */
	assert_int_equal(sr_ping(conn, &rtt, 1000), -ECONNRESET);
	sr_close(conn);
}

/* A lie after a correct record: the client is dirty and gone in the same turn. */
static void a_lie_behind_a_truth(void **state)
{
	struct sr_wire_cancel right = { .op = SR_OP_CANCEL, .ticket = 1000 }, wrong = { .op = 9 };

	(void)state;
	for (int i = 0; i < 2; i++) {         /* the second gets no line in the log */
		open_conn();
		assert_int_equal(cancel_put(conn, &right), 0);
		assert_int_equal(cancel_put(conn, &wrong), 0);
		turns(3);
		assert_int_equal(d.cs.poisoned, i + 1);
		sr_close(conn);
	}
	turns(1);
	assert_int_equal(d.cs.connected, 0);
}

/* ---- going ----------------------------------------------------------------------------------- */

/* Socket and pidfd report the same death in the same turn: it is freed once. */
static void a_death_is_told_twice(void **state)
{
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		alarm(20);
		open_there(NULL);
		while (conn && sr_wait(conn, SR_WAIT_TOKENS, -1) >= 0)
			;
		pause();
		_exit(0);
	}
	for (uint64_t until = io_now() + 5000 * MS; d.n.accepted == 0; turns(1))
		assert_true(io_now() < until);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	usleep(1000);
	turns(4);
	assert_int_equal(d.cs.connected, 0);
	assert_int_equal(d.cl->n_gone, 0);
}

/* clients_take twice without a flush, as the back end's yield may do: the client is dirty and dead. */
static void it_dies_with_something_to_be_told(void **state)
{
	(void)state;
	for (int with = 0; with < 2; with++) { /* another dirty one before it in the list */
		struct sr_conn *other = NULL;

		if (with) {
			open_conn();
			other = conn;
		}
		open_conn();
		if (other) {
			struct sr_request q = { .size = sizeof(q), .prompt = ids, .n_prompt = 1, .max_tokens = 1 };

			assert_int_equal(sr_submit(other, &q, NULL), 0);
		}
		submit(1, 900, 0);
		clients_take(d.cl, io_now());
		assert_int_equal(d.cl->n_dirty, 1 + with);
		assert_false(clients_arm(d.cl)); /* it must not sleep */
		sr_close(conn);
		io_poll(d.io);
		clients_take(d.cl, io_now());
		assert_int_equal(d.cl->n_dirty, with);
		turns(2);
		assert_int_equal(d.n.died, 1 + with);
		sr_close(other);
		turns(3);
	}
}

/* It dies after its tokens were put and before its signal. */
static void nobody_is_there_to_be_woken(void **state)
{
	struct sr_record r;

	(void)state;
	open_conn();
	submit(1, 900, 0);
	turns(3);
	while (sr_poll(conn, &r, 1) > 0)
		;
	while (!sr_arm(conn, SR_WAIT_TOKENS)) {
		shutdown(sr_fd(conn), SHUT_RDWR);
		clients_take(d.cl, io_now()); /* not polled: the death is not seen yet */
		sched_step(d.s, io_now());
		sched_step(d.s, io_now());
		clients_flush(d.cl);
		break;
	}
	turns(3);
	assert_int_equal(d.cs.connected, 0);
	sr_close(conn);
}

static void stopping_ends_what_runs(void **state)
{
	struct sr_record r[8];
	int e;

	(void)state;
	begin(NULL);
	open_conn();
	submit(1, 900, 0);
	turns(5);
	d.fds += 1;                           /* our end */
	d.paused = true;                      /* its requests are gone, too */
	daemon_unmake(&d);
	while ((e = sr_poll(conn, r, 8)) > 0)
		;
	assert_int_equal(e, -ECONNRESET);
	daemon_clear(&d);
	sr_close(conn);
}

/* The listener is closed while a new client waits for its chore. */
static void draining_with_somebody_at_the_door(void **state)
{
	int fd;

	(void)state;
	sr_null_pace(20, 0);
	begin(NULL);
	open_conn();
	submit(1, 900, 0);
	while (d.n.steps < 3)
		turns(1);
	fd = knock();
	while (!d.cl->door.since) {           /* a turn without chores */
		io_poll(d.io);
		clients_take(d.cl, io_now());
		sched_step(d.s, io_now());
		clients_flush(d.cl);
	}
	clients_drain(d.cl);
	assert_int_equal(ends(1), SR_LENGTH);
	for (uint64_t until = io_now() + 10 * MS; io_now() < until;)
		turns(1);
	assert_int_equal(d.cl->n_all, 1);
	close(fd);
	sr_close(conn);
	turns(3);
	end();
	sr_null_pace(0, 0);
}

/* One cold client lies, and another works: none is served again in the same turn. */
static void a_cold_liar_beside_others(void **state)
{
	struct sr_wire_cancel wrong = { .op = 9 };
	struct sr_conn *c[3], *by_place[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		open_conn();
		c[i] = conn;
	}
	for (int i = 0; d.cl->n_hot > 0; i++) {
		assert_true(i < 2000);
		turns(1);
	}
	for (int i = 0; i < 3; i++)
		by_place[d.cl->all[i]->at_open] = c[i];
	d.cl->cold = 0;
	assert_int_equal(cancel_put(by_place[0], &wrong), 0);
	conn = by_place[1];
	submit(1, 5, 0);
	turns(1);
	assert_int_equal(ends(1), SR_LENGTH);
	assert_int_equal(d.cs.poisoned, 1);
	assert_int_equal(d.cs.connected, 2);
	for (int i = 0; i < 3; i++)
		sr_close(c[i]);
	turns(3);
}

/* A refused client that stays silent takes no place from others. */
static void silent_refused_ones(void **state)
{
	struct clients_config cfg = { .max = 16 };
	struct ucred who = { .pid = getpid(), .uid = 1000 };
	int fd[40], mine[2];

	(void)state;
	self = 500;
	begin(&cfg);
	peer = &who;
	for (int i = 0; i < 40; i++) {
		fd[i] = knock();
		turns(2);
	}
	assert_int_equal(d.cl->n_all, 14 + REFUSALS);
	for (int i = 0; i < 2; i++) {
		who.uid = i ? 0 : 500;
		assert_int_equal(comes(&mine[i]), 0);
		close(mine[i]);
		turns(2);
	}
	peer = NULL;
	self = (uid_t)-1;
	for (int i = 0; i < 40; i++)
		close(fd[i]);
	turns(3);
	end();
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_configurations),
		cmocka_unit_test(a_full_table_says_so),
		cmocka_unit_test(each_uid_has_its_share),
		cmocka_unit_test(strangers_leave_something),
		cmocka_unit_test(peers_are_known_by_uid),
		CASE(whatever_runs_out_the_next_one_comes_in),
		CASE(without_a_pidfd_the_socket_tells),
		CASE(descriptors_run_out_and_come_back),
		CASE(a_crowd_at_the_door),
		cmocka_unit_test(chores_wait_for_their_time),
		CASE(who_rings_too_often_is_not_heard),
		cmocka_unit_test(draining_with_somebody_at_the_door),
		CASE(a_cold_liar_beside_others),
		cmocka_unit_test(silent_refused_ones),
		CASE(one_not_heard_goes),
		CASE(a_hello_has_a_second),
		CASE(who_never_maps_is_not_looked_at),
		CASE(draining_answers_who_is_at_the_door),
		cmocka_unit_test(rows_are_not_needed),
		cmocka_unit_test(requests_without_a_page),
		CASE(a_full_store_of_lists_is_waited_for),
		cmocka_unit_test(no_room_for_a_refusal),
		CASE(more_than_was_granted_waits),
		cmocka_unit_test(a_turn_has_its_measure),
		cmocka_unit_test(words_are_paid_for),
		cmocka_unit_test(words_are_shared),
		cmocka_unit_test(a_recording_has_each_end),
		cmocka_unit_test(stalling_has_an_end_if_one_is_set),
		cmocka_unit_test(a_drip_is_a_stall),
		CASE(what_the_others_say_is_passed_on),
		CASE(a_lie_behind_a_truth),
		CASE(a_death_is_told_twice),
		CASE(it_dies_with_something_to_be_told),
		CASE(nobody_is_there_to_be_woken),
		cmocka_unit_test(stopping_ends_what_runs),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
