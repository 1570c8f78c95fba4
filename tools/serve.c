/* serve.c - slipring serve: runs daemons and adapter in the foreground, as one service.
 *
 * All children get all arguments; each reads those that concern it.  They report to this process by
 * sd_notify.  So the adapter starts when every daemon is ready, or GRACE_NS after one of each model is, and
 * the port opens when requests can be answered.  A child that has not pinged for --hang-timeout is killed and
 * started again, as if it had died.  A watchdog ping is passed on when every child has sent one since the
 * last, so the service manager sees when one hangs.  A signal goes to all, and they drain.
 *
 * There is one daemon, or --data-parallel-size of them, for each model of --models.  A daemon that ends is
 * started again, at first at once and then a second after its last start; the adapter holds its requests
 * meanwhile.  From the fourth death in a row on it is started after 2, 4 .. 60 s.  DEATHS_MAX deaths in a row
 * of each daemon of a model end everything: those of children that were not ready for STEADY_NS.  So does one
 * death of each before anybody served, or an adapter that somebody stopped.  This process exits with that
 * child's code.
 *
 * The adapter gives us its listening sockets (FDSTORE=1).  When it dies it is started again with them, so no
 * client is refused meanwhile; what ends are its connections.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "core/instance/config.h"
#include "core/instance/kv_events.h"
#include "core/instance/log.h"
#include "core/listen.h"
#include "core/instance/notify.h"
#include "core/instance/refuse.h"
#include "core/prefix.h"
#include "serve.h"
#include "serve_at.h"
#include "shmring/clock.h"

#define SECOND     1000000000ull
#define STEADY_NS  (10 * SECOND)
#define DEATHS_MAX 5
#define BACK_OFF_MAX (60 * SECOND)
#define GRACE_NS   (5 * SECOND)   /* for replicas that are ready later than others */
#define WATCH_MS   500            /* between two looks for children that hang */
#define PORT_DEFAULT 8000
#define KEPT       2              /* names of sockets: of requests, of metrics */
#define KEPT_FROM  256            /* descriptors of kept sockets; below them is room for those of a child */

struct child {
	const char *program;
	char name[80];                /* in log lines: "slipringd 3" */
	int argc;
	char **argv;                  /* [argc], and room for SERVE_WORDS more */
	int rank;                     /* of a daemon among several of its model; -1: not among several */
	int of;                       /* among so many */
	int gpus;                     /* that each of them needs */
	bool rests;                   /* --stop-when-idle: it was idle, and starts when a client connects */
	struct ring_socket at;        /* then; */
	int listen_fd;                /* -1: the daemon opens its socket itself */
	pid_t pid;                    /* 0 = not running */
	bool fed;                     /* it has pinged since our last ping */
	bool leaves;                  /* it drains, and pings no more */
	uint64_t pinged;              /* when it has, or became ready */
	uint64_t start, ready;        /* times; ready 0: not since its last start */
	int deaths;                   /* in a row */
};

struct serve {
	char notify[64];              /* our socket's abstract name, with its @ */
	int notify_fd, signal_fd;
	int secret_fd;                /* of the names of cached prefixes, for daemons alone (core/prefix.h) */
	bool watched;                 /* our service manager expects watchdog pings */
	uint64_t manager_ns;          /* between two of these pings */
	bool served;                  /* the adapter has been ready */
	uint64_t servable;            /* since when each model has a daemon that is ready; 0: one has none */
	uint64_t hang_ns;             /* --hang-timeout; 0: nobody is killed */
	uint64_t turned;              /* when we last looked for children that hang */
	struct { char name[24]; int fd[NOTIFY_SOCKETS], n; } kept[KEPT]; /* sockets of the adapter */
	bool stopping;
	int port;                     /* 0: none, or not known yet */
	int code;                     /* exit code of the child that ended everything */
	int n_daemons;
	struct child adapter, daemon[SERVE_DAEMONS];
	struct child events;          /* program NULL: no --kv-events-config */
};

/* In the child: the words and the place of one of several daemons, its rank, its CPUs and its GPUs. */
static char **words_of(struct serve *s, const struct child *c)
{
	static char flag[] = "--data-parallel-rank", rank[16], secret[16];

	if (c->rank < 0)
		return c->argv;
	snprintf(rank, sizeof(rank), "%d", c->rank);
	serve_place(c->rank, c->of, c->gpus);
	snprintf(secret, sizeof(secret), "%d", s->secret_fd);
	setenv(PREFIX_SECRET_FD, secret, 1);
	fcntl(s->secret_fd, F_SETFD, 0);
	memmove(c->argv + 3, c->argv + 1, (size_t)c->argc * sizeof(*c->argv)); /* before a "--" */
	c->argv[1] = flag;
	c->argv[2] = rank;
	return c->argv;
}

/* In the child: the ring socket that we hold for it, as a service manager does. */
static void give_socket(const struct child *c)
{
	char self[16];

	if (c->listen_fd < 0)
		return;
	if (c->listen_fd == 3)
		fcntl(3, F_SETFD, 0);
	else
		dup2(c->listen_fd, 3);
	snprintf(self, sizeof(self), "%d", (int)getpid());
	setenv("LISTEN_PID", self, 1);
	setenv("LISTEN_FDS", "1", 1);
	setenv("LISTEN_FDNAMES", "slipring", 1);
}

/* In the child: the adapter's sockets, which an earlier one has opened. */
static void give_kept(const struct serve *s)
{
	char names[2 * NOTIFY_SOCKETS * 24] = "", text[16];
	int n = 0;

	for (int k = 0; k < KEPT; k++)
		for (int i = 0; i < s->kept[k].n; i++) {
			dup2(s->kept[k].fd[i], 3 + n);
			snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", n++ ? ":" : "",
			         s->kept[k].name);
		}
	if (!n)
		return;
	snprintf(text, sizeof(text), "%d", (int)getpid());
	setenv("LISTEN_PID", text, 1);
	snprintf(text, sizeof(text), "%d", n);
	setenv("LISTEN_FDS", text, 1);
	setenv("LISTEN_FDNAMES", names, 1);
}

/* Run the child program beside this one.  An installed slipringd may also be found by PATH. */
static void run_child(struct serve *s, const struct child *c, const sigset_t *mask)
{
	char path[PATH_MAX + 32], self[24];
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
	char **argv = words_of(s, c), *slash;

	setpgid(0, 0);                        /* Ctrl-C reaches this process, which passes it on once */
	prctl(PR_SET_PDEATHSIG, SIGTERM);     /* the children end even if this process is killed */
	sigprocmask(SIG_UNBLOCK, mask, NULL);
	setenv("NOTIFY_SOCKET", s->notify, 1);
	snprintf(self, sizeof(self), "%d", (int)getpid());
	setenv("WATCHDOG_PID", self, 1);          /* it held our own pid */
	if (s->hang_ns && (!s->watched || s->hang_ns / 2 < s->manager_ns)) {
		snprintf(self, sizeof(self), "%llu", (unsigned long long)s->hang_ns / 1000);
		setenv("WATCHDOG_USEC", self, 1);
	} else if (!s->watched) {
		unsetenv("WATCHDOG_USEC");
	}
	give_socket(c);
	if (c == &s->adapter)
		give_kept(s);
	argv[0] = (char *)(uintptr_t)c->program;
	if (n > 0) {
		path[n] = 0;
		if ((slash = strrchr(path, '/'))) {
			strcpy(slash + 1, c->program);
			execv(path, argv);
		}
	}
	execvp(c->program, argv);
	log_error("%s cannot be started: %s; it must be beside slipring or in PATH", c->program,
	          strerror(errno));
	_exit(127);
}

static int start_child(struct serve *s, struct child *c, const sigset_t *mask)
{
	pid_t pid = fork();

	if (pid == 0)
		run_child(s, c, mask);
	c->start = sr_now();
	c->ready = 0;
	c->rests = false;
	c->fed = c->leaves = false;
	if (pid < 0) {
		log_error("%s cannot be started: %s", c->name, strerror(errno));
		return -errno;
	}
	c->pid = pid;
	return 0;
}

/* The i-th child; NULL past the last. */
static struct child *child(struct serve *s, int i)
{
	return i < s->n_daemons ? &s->daemon[i] : i == s->n_daemons ? &s->adapter :
	       i == s->n_daemons + 1 && s->events.program ? &s->events : NULL;
}

static struct child *child_of(struct serve *s, pid_t pid)
{
	struct child *c;

	for (int i = 0; (c = child(s, i)); i++)
		if (pid && c->pid == pid)
			return c;
	return NULL;
}

static void pass_on(struct serve *s, int sig)
{
	struct child *c;

	for (int i = 0; (c = child(s, i)); i++)
		if (c->pid)
			kill(c->pid, sig);
}

static void stop_all(struct serve *s)
{
	s->stopping = true;
	pass_on(s, SIGTERM);
}

/* Kill children that hang; they are started again, as if they had died.  Time in which we were stopped
 * ourselves, with them perhaps, does not count. */
static void watch(struct serve *s)
{
	const uint64_t now = sr_now();
	const bool away = now - s->turned > 2 * SECOND;
	struct child *c;

	s->turned = now;
	for (int i = 0; s->hang_ns && (c = child(s, i)); i++) {
		if (away)
			c->pinged = now;
		if (!c->pid || !c->ready || c->leaves || now - c->pinged <= s->hang_ns)
			continue;
		log_error("%s (pid %d) has made no turn for %.1f s: it is killed (--hang-timeout)", c->name,
		          (int)c->pid, (double)(now - c->pinged) / 1e9);
		c->pinged = now;
		kill(c->pid, SIGKILL);
	}
}

static void feed(struct serve *s, struct child *fed)
{
	struct child *c;

	fed->fed = true;
	fed->pinged = sr_now();
	for (int i = 0; (c = child(s, i)); i++)
		if (c->pid && !c->fed && (c == &s->adapter || c->ready)) /* one that loads has no pings */
			return;
	for (int i = 0; (c = child(s, i)); i++)
		c->fed = false;
	notify_send("WATCHDOG=1");
}

static bool is_ready(const struct child *c) { return c->ready && (c->pid || c->rests); }

/* Is another daemon of its model ready?  Daemons of a model have the same words. */
static bool replica_ready(const struct serve *s, const struct child *c)
{
	for (int i = 0; i < s->n_daemons; i++)
		if (&s->daemon[i] != c && s->daemon[i].argv == c->argv && is_ready(&s->daemon[i]))
			return true;
	return false;
}

/* Start the adapter, and what goes with it, once there is a daemon for each request.  The ms until that
 * may be, or -1. */
static int start_serving(struct serve *s, const sigset_t *mask)
{
	const uint64_t now = sr_now();
	int n = 0;

	if (s->adapter.pid || s->served || s->stopping)
		return -1;
	for (int i = 0; i < s->n_daemons; i++) {
		n += is_ready(&s->daemon[i]);
		if (!is_ready(&s->daemon[i]) && !replica_ready(s, &s->daemon[i])) {
			s->servable = 0;
			return -1;
		}
	}
	s->servable = s->servable ? s->servable : now;
	if (n < s->n_daemons && now < s->servable + GRACE_NS)
		return (int)((s->servable + GRACE_NS - now) / 1000000) + 1;
	for (int i = 0; i < s->n_daemons; i++)
		if (!is_ready(&s->daemon[i]))
			log_warn("%s is not ready: the other daemons of its model serve without it", s->daemon[i].name);
	if (start_child(s, &s->adapter, mask) < 0 ||
	    (s->events.program && start_child(s, &s->events, mask) < 0)) {
		s->code = 1;
		stop_all(s);
	}
	return -1;
}

/* Sockets of the adapter, for its successor. */
static void keep(struct serve *s, const char *text, int *fd, int n)
{
	static const char head[] = "FDSTORE=1\nFDNAME=";
	int k = 0;

	if (strncmp(text, head, sizeof(head) - 1))
		return;
	text += sizeof(head) - 1;
	while (k < KEPT && s->kept[k].n && strcmp(s->kept[k].name, text))
		k++;
	if (k == KEPT || strlen(text) >= sizeof(s->kept[k].name))
		return;
	while (s->kept[k].n)                  /* the adapter has opened others */
		close(s->kept[k].fd[--s->kept[k].n]);
	strcpy(s->kept[k].name, text);
	for (int i = 0; i < n && i < NOTIFY_SOCKETS; i++) {
		s->kept[k].fd[i] = fcntl(fd[i], F_DUPFD_CLOEXEC, KEPT_FROM);
		s->kept[k].n += s->kept[k].fd[i] >= 0;
	}
}

static struct child *sender(struct serve *s, struct msghdr *m, int **fd, int *n)
{
	struct child *c = NULL;
	struct ucred who;

	*n = 0;
	for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
		if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_CREDENTIALS) {
			memcpy(&who, CMSG_DATA(h), sizeof(who));
			c = child_of(s, who.pid);
		} else if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
			*fd = (int *)(void *)CMSG_DATA(h);
			*n = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		}
	}
	return c;
}

/* Take a child's datagram, if there is one.  Messages other than READY go on to our service manager,
 * RELOADING only if it is the adapter's; the state of one of several daemons is none of ours. */
static bool on_notify(struct serve *s)
{
	union { char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(NOTIFY_SOCKETS * sizeof(int))];
	        struct cmsghdr align; } control;
	char text[512];
	struct iovec iov = { text, sizeof(text) - 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
	                    .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(s->notify_fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int *fd = NULL, n_fd = 0;
	struct child *c = n >= 0 ? sender(s, &m, &fd, &n_fd) : NULL;

	if (n < 0)
		return false;
	text[n] = 0;
	if (c == &s->adapter && n_fd)
		keep(s, text, fd, n_fd);
	for (int i = 0; i < n_fd; i++)
		close(fd[i]);
	if (!c || c == &s->events || n_fd)
		return true;
	if (strstr(text, "STOPPING=1"))
		c->leaves = true;
	if (c == &s->adapter && strstr(text, "READY=1") && !c->ready) {
		c->ready = c->pinged = sr_now();
		s->served = true;
		if (!s->port && strrchr(text, ':') && (s->port = atoi(strrchr(text, ':') + 1)) > 0)
			serve_say_port(s->port);  /* --port 0: the URL that it has told */
	}
	if (!strcmp(text, "WATCHDOG=1"))
		feed(s, c);
	else if (c == &s->adapter)
		notify_send(text);                /* the adapter's READY is also ours */
	else if (strstr(text, "READY=1") && !c->ready)
		c->ready = c->pinged = sr_now();
	else if (s->n_daemons == 1 && (!s->adapter.pid || s->stopping) && !strstr(text, "READY=1") &&
	         !strstr(text, "RELOADING=1"))
		notify_send(text);
	return true;
}

static void hear(struct serve *s)
{
	for (int i = 0; i < 64 && on_notify(s); i++) /* bounded, because any process can send */
		;
}

/* May it or another daemon of its model be ready yet, or again? */
static bool hopeful(const struct serve *s, const struct child *c)
{
	const int most = s->served ? DEATHS_MAX : 1; /* at first the cause is likely the configuration */

	if (replica_ready(s, c))
		return true;
	for (int i = 0; i < s->n_daemons; i++)
		if (s->daemon[i].argv == c->argv && s->daemon[i].deaths < most)
			return true;
	return false;
}

/* From one start of a child to the next: longer each time when it keeps dying. */
static uint64_t back_off(const struct child *c)
{
	const int n = c->deaths > 3 ? c->deaths - 3 : 0; /* a few deaths may be chance */
	const uint64_t ns = SECOND << (n > 6 ? 6 : n);

	return ns < BACK_OFF_MAX ? ns : BACK_OFF_MAX;
}

/* A child ended by itself.  True: it is to be started again. */
static bool again(struct serve *s, struct child *c, int status)
{
	bool steady = c->ready && sr_now() - c->ready >= STEADY_NS;

	if (WIFSIGNALED(status))
		log_error("%s was ended by signal %d (%s)", c->name, WTERMSIG(status),
		          strsignal(WTERMSIG(status)));
	if (c == &s->adapter && (!s->served || (WIFEXITED(status) && !WEXITSTATUS(status))))
		return false;
	if (c == &s->adapter) {
		c->deaths = steady ? 1 : c->deaths + 1;
		if (c->deaths < DEATHS_MAX)
			log_warn("%s is started again; its connections are lost, the daemons keep what they have",
			         c->name);
		else
			log_error("%s ended %d times in a row, so everything stops", c->name, DEATHS_MAX);
		return c->deaths < DEATHS_MAX;
	}
	if (c == &s->events && !s->served)
		return false;
	if (c == &s->events) {
		c->deaths = sr_now() - c->start >= STEADY_NS ? 1 : c->deaths + 1;
		if (c->deaths < DEATHS_MAX)
			return true;
		log_error("%s ended %d times in a row, so everything stops", c->name, DEATHS_MAX);
		return false;
	}
	c->rests = c->listen_fd >= 0 && WIFEXITED(status) && !WEXITSTATUS(status) && c->ready;
	if (c->rests) {
		log_info("%s rests until a client connects", c->name);
		return true;
	}
	if (WIFEXITED(status) && !WEXITSTATUS(status) && c->ready)
		c->deaths = 0;                    /* somebody stopped it: a restart is wanted */
	else
		c->deaths = steady ? 1 : c->deaths + 1;
	if (hopeful(s, c)) {
		log_warn("%s is started again in %.0f s; %s", c->name, (double)back_off(c) / 1e9,
		         !s->served ? "it was not ready" : s->n_daemons > 1 ? "the other daemons serve meanwhile" :
		         "requests are held for --daemon-wait seconds");
		return true;
	}
	if (s->served)
		log_error("%s ended %d times in a row, so everything stops", c->name, c->deaths);
	return false;
}

static void on_child(struct serve *s)
{
	struct child *c;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		hear(s);                          /* read its last messages while its pid is known */
		c = child_of(s, pid);
		if (!c)
			continue;
		c->pid = 0;
		if (s->stopping || again(s, c, status))
			continue;
		s->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		stop_all(s);
	}
}

/* Start children that died, each at most once a second.  Returns the ms until the next start, or -1. */
static int restart(struct serve *s, const sigset_t *mask)
{
	uint64_t now = sr_now(), wait, next = UINT64_MAX;
	struct child *c;

	for (int i = 0; !s->stopping && (c = child(s, i)); i++) {
		if (c->pid || c->rests || ((c == &s->adapter || c == &s->events) && !s->served))
			continue;
		wait = c->start + back_off(c) > now ? c->start + back_off(c) - now : 0;
		if (!wait && start_child(s, c, mask) < 0)
			wait = SECOND;
		if (wait && wait < next)
			next = wait;
	}
	return next == UINT64_MAX ? -1 : (int)(next / 1000000) + 1;
}

static bool running(struct serve *s)
{
	struct child *c;

	for (int i = 0; (c = child(s, i)); i++)
		if (c->pid)
			return true;
	return false;
}

static int supervise(struct serve *s, const sigset_t *mask)
{
	struct pollfd p[2 + SERVE_DAEMONS] = { { s->notify_fd, POLLIN, 0 }, { s->signal_fd, POLLIN, 0 } };
	struct signalfd_siginfo si;

	while (running(s)) {
		int ms = restart(s, mask), serving = start_serving(s, mask);

		if (serving >= 0 && (ms < 0 || serving < ms))
			ms = serving;

		if (s->hang_ns && (ms < 0 || ms > WATCH_MS))
			ms = WATCH_MS;
		for (int i = 0; i < s->n_daemons; i++) {
			const struct child *c = &s->daemon[i];

			p[2 + i] = (struct pollfd){ c->rests && !s->stopping ? c->listen_fd : -1, POLLIN, 0 };
		}
		if (poll(p, 2 + (nfds_t)s->n_daemons, ms) < 0 && errno != EINTR)
			return 1;
		for (int i = 0; i < s->n_daemons; i++)
			if (p[2 + i].revents && !s->daemon[i].pid)
				s->daemon[i].rests = false;   /* somebody connects: restart() starts it */
		hear(s);
		watch(s);
		while (read(s->signal_fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
			if (si.ssi_signo == SIGCHLD)
				on_child(s);
			else if (si.ssi_signo == SIGHUP)
				pass_on(s, SIGHUP);       /* a reload: each child reports its own */
			else
				stop_all(s);
		}
	}
	return s->code;
}

static int notify_listen(struct serve *s)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int n = snprintf(s->notify, sizeof(s->notify), "@slipring-serve-%d", (int)getpid()), one = 1;

	memcpy(a.sun_path, s->notify, (size_t)n);
	a.sun_path[0] = 0;
	s->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s->notify_fd < 0 || setsockopt(s->notify_fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) < 0 ||
	    bind(s->notify_fd, (struct sockaddr *)&a,
	         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)) < 0)
		return -errno;
	return 0;
}

/* The adapter opens its port when the daemon is ready, which takes minutes with a large model.  So report a
 * port in use now.  The adapter reports anything else that is wrong with the port. */
static bool port_taken(const struct config *cfg, char *err, size_t errlen)
{
	const char *host = cfg->host && *cfg->host ? cfg->host : "127.0.0.1";
	struct addrinfo hint = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM }, *ai;
	char port[16];
	int fd, one = 1;
	bool taken;

	snprintf(port, sizeof(port), "%d", cfg->port);
	if (cfg->uds || !cfg->port || getenv("LISTEN_FDS") || getaddrinfo(host, port, &hint, &ai))
		return false;
	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	taken = fd >= 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
	        bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 && errno == EADDRINUSE;
	if (fd >= 0)
		close(fd);
	freeaddrinfo(ai);
	if (taken)
		snprintf(err, errlen, "another server uses %s port %d; choose another --port, or 0 for any "
		         "free one", host, cfg->port);
	return taken;
}

/* Listen for a daemon that may stop when it is idle: who connects then starts it. */
static int hold_socket(struct child *c, const struct config *model)
{
	char dir[4096], err[512], name[CONFIG_INSTANCE];
	struct config one;
	const struct config *cfg = &one;
	int r;

	config_replica(model, c->rank < 0 ? 0 : c->rank, &one, name);
	r = config_run_dir(cfg->instance, dir, sizeof(dir));
	if (r == 0)
		r = config_make_run_dir(dir, err, sizeof(err));
	if (r == 0)
		r = config_socket(cfg, c->at.path, sizeof(c->at.path));
	if (r < 0)
		return r;
	c->listen_fd = listen_open(&c->at, cfg->socket_group, err, sizeof(err));
	if (c->listen_fd < 0)
		log_error("%s", err);
	return c->listen_fd < 0 ? -EADDRINUSE : 0;
}

/* The daemons of one model: `name` is its instance among several, or NULL. */
static int add_daemons(struct serve *s, const struct config *cfg, const char *name, int argc, char **argv)
{
	const int n = config_replicas(cfg);
	char **words = calloc((size_t)argc + SERVE_WORDS + 1, sizeof(*words));

	int r;

	if (!words)
		return -ENOMEM;
	memcpy(words, argv, (size_t)argc * sizeof(*argv));
	for (int i = 0; i < n; i++) {
		struct child *c = &s->daemon[s->n_daemons];

		if (s->n_daemons == SERVE_DAEMONS)
			return -E2BIG;
		*c = (struct child){ .program = "slipringd", .argc = argc, .argv = words, .of = n,
		                     .rank = n > 1 ? i : -1, .gpus = cfg->tensor_parallel_size, .listen_fd = -1 };
		snprintf(c->name, sizeof(c->name), "slipringd%s%s%s", name || n > 1 ? " " : "", name ? name : "",
		         name && n > 1 ? "-" : "");
		if (n > 1)
			snprintf(c->name + strlen(c->name), sizeof(c->name) - strlen(c->name), "%d", i);
		s->n_daemons++;
		if (cfg->stop_when_idle_s > 0 && (r = hold_socket(c, cfg)) < 0)
			return r;
	}
	return 0;
}

/* One model of --models: its line is checked now, so that a mistake is reported before anything starts. */
static int add_model(struct serve *s, const struct config_words *w, struct serve_budget *b, char *err,
                     size_t errlen)
{
	struct config cfg;
	char why[900];
	int r = config_parse(&cfg, w->argc, w->argv, FOR_SERVE, why, sizeof(why));

	if (r > 0)
		r = -EINVAL;
	if (r == 0)
		r = serve_plan(&cfg, b, why, sizeof(why));
	if (r == 0)
		serve_hold(&cfg);
	if (r == 0 && (r = add_daemons(s, &cfg, w->name, w->argc, w->argv)) < 0)
		snprintf(why, sizeof(why), "%s", r == -E2BIG ? "there are too many daemons" : strerror(-r));
	if (r < 0)
		snprintf(err, errlen, "--models: %s: %s", w->name, why);
	config_free(&cfg);
	return r;
}

/* Who is to run.  The words of models last as long as this process. */
static int children(struct serve *s, const struct config *cfg, int argc, char **argv, char *err,
                    size_t errlen)
{
	static struct config_models models;
	struct serve_budget budget = { 0 };
	struct kv_events e;
	int r;

	s->manager_ns = notify_watchdog_ns();
	s->watched = s->manager_ns > 0;
	s->hang_ns = (uint64_t)(cfg->hang_timeout * 1e9);
	s->secret_fd = prefix_secret_fd();
	if (s->secret_fd >= 0)                /* out of the way of 3, which daemons get as their socket */
		s->secret_fd = fcntl(s->secret_fd, F_DUPFD_CLOEXEC, 10);
	s->adapter = (struct child){ .program = "slipring-http", .name = "slipring-http", .rank = -1,
	                             .listen_fd = -1, .argc = argc, .argv = argv };
	r = kv_events_parse(&e, cfg->kv_events_config, err, errlen);
	if (r == 0 && e.on && cfg->models) {
		snprintf(err, errlen, "--kv-events-config is not known with --models: each model's events need an "
		         "endpoint of their own; start slipring-events --instance NAME for each");
		r = -EINVAL;
	}
	if (r < 0)
		return r;
	if (e.on)
		s->events = (struct child){ .program = "slipring-events", .name = "slipring-events", .rank = -1,
		                            .listen_fd = -1, .argc = argc, .argv = argv };
	if (s->secret_fd < 0)
		r = s->secret_fd;
	else if (!cfg->models)
		r = add_daemons(s, cfg, NULL, argc, argv);
	if (r < 0)
		snprintf(err, errlen, "%s", strerror(-r));
	if (r < 0 || !cfg->models)
		return r;
	r = config_models_read(&models, cfg->models, argc, argv, err, errlen);
	for (int i = 0; i < models.n && r == 0; i++)
		r = add_model(s, &models.model[i], &budget, err, errlen);
	return r < 0 ? r : serve_fits(&budget, err, errlen);
}

/* Take our instances.  If another server has the default one, and nothing but a port of our own is named, the
 * instance is named after it: "port-8001".  These words go to all children.  They stand first, so --instance
 * of the user wins.  0, or -errno. */
static int name_instance(struct config *cfg, int *argc, char ***argv, char *err, size_t errlen)
{
	static char flag[] = "--instance", name[24];
	char **words;
	int r;

	if (cfg->models || serve_hold(cfg) || strcmp(cfg->instance, "default") || cfg->uds ||
	    cfg->port == PORT_DEFAULT || !cfg->port)
		return 0;
	words = calloc((size_t)*argc + 3, sizeof(*words));
	if (!words)
		return refuse(-ENOMEM, err, errlen, "no memory");
	snprintf(name, sizeof(name), "port-%d", cfg->port);
	words[0] = (*argv)[0];
	words[1] = flag;
	words[2] = name;
	memcpy(words + 3, *argv + 1, (size_t)(*argc - 1) * sizeof(*words));
	*argv = words;
	*argc += 2;
	config_free(cfg);
	r = config_parse(cfg, *argc, *argv, FOR_SERVE, err, errlen);
	if (!r && !strcmp(cfg->instance, name)) {
		serve_hold(cfg);
		log_info("another daemon is the default instance, so this one is --instance %s", name);
	}
	return r;
}

int cmd_serve(int argc, char **argv)
{
	static struct serve s;
	struct config cfg;
	char err[1024];
	sigset_t mask;
	int r = config_parse(&cfg, argc, argv, FOR_SERVE, err, sizeof(err));

	if (!r && port_taken(&cfg, err, sizeof(err))) {
		config_free(&cfg);
		r = -EADDRINUSE;
	}
	if (r) {                              /* else both children would report it later */
		if (r < 0)
			fprintf(stderr, "slipring serve: %s\n", err);
		return r > 0 ? 0 : r == -EINVAL ? 2 : 1;
	}
	r = name_instance(&cfg, &argc, &argv, err, sizeof(err));
	s.port = cfg.port;
	if (!r)
		r = children(&s, &cfg, argc, argv, err, sizeof(err));
	config_free(&cfg);
	if (r < 0) {
		fprintf(stderr, "slipring serve: %s\n", err);
		serve_let_go();
		return r == -EINVAL ? 2 : 1;
	}
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	s.signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s.signal_fd < 0 || notify_listen(&s) < 0) {
		fprintf(stderr, "slipring serve: %s\n", strerror(errno));
		return 1;
	}
	for (int i = 0; i < s.n_daemons; i++)
		if (start_child(&s, &s.daemon[i], &mask) < 0) {
			s.code = 1;
			stop_all(&s);
			break;
		}
	r = supervise(&s, &mask);
	for (int i = 0; i < s.n_daemons; i++)
		if (s.daemon[i].listen_fd >= 0)
			listen_forget(&s.daemon[i].at);
	serve_let_go();
	return r;
}
