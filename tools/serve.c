/* serve.c - slipring serve: runs daemon and adapter in the foreground, as one service.
 *
 * Both children get all arguments; each reads those that concern it.  They report to this process by
 * sd_notify.  So the adapter starts when the daemon is ready, and the port opens when requests can be
 * answered.  A watchdog ping is passed on when every child has sent one since the last, so the service
 * manager sees when either hangs.  A signal goes to both, and they drain.  When one ends, the other is
 * stopped, and this process exits with the code of the one that ended first.
 */
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
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
#include "core/instance/log.h"
#include "core/instance/notify.h"

enum { DAEMON, ADAPTER, N_CHILDREN };
static const char *const program[N_CHILDREN] = { "slipringd", "slipring-http" };

struct serve {
	int argc;
	char **argv;
	char notify[64];              /* our socket's abstract name, with its @ */
	int notify_fd, signal_fd;
	pid_t pid[N_CHILDREN];        /* 0 = not running */
	bool watched;                 /* our service manager expects watchdog pings */
	bool fed[N_CHILDREN];         /* this child has pinged since our last ping */
	bool stopping;
	int code;                     /* exit code of the child that ended first */
};

/* Run the child program beside this one.  An installed slipringd may also be found by PATH. */
static void run_child(struct serve *s, int which, const sigset_t *mask)
{
	char path[PATH_MAX + 32], self[16];
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
	char *slash;

	setpgid(0, 0);                        /* Ctrl-C reaches this process, which passes it on once */
	prctl(PR_SET_PDEATHSIG, SIGTERM);     /* the children end even if this process is killed */
	sigprocmask(SIG_UNBLOCK, mask, NULL);
	setenv("NOTIFY_SOCKET", s->notify, 1);
	snprintf(self, sizeof(self), "%d", (int)getpid());
	if (s->watched)
		setenv("WATCHDOG_PID", self, 1);  /* it held our own pid */
	else
		unsetenv("WATCHDOG_USEC");
	s->argv[0] = (char *)(uintptr_t)program[which];
	if (n > 0) {
		path[n] = 0;
		if ((slash = strrchr(path, '/'))) {
			strcpy(slash + 1, program[which]);
			execv(path, s->argv);
		}
	}
	execvp(program[which], s->argv);
	log_error("%s cannot be started: %s; it must be beside slipring or in PATH", program[which],
	          strerror(errno));
	_exit(127);
}

static int start_child(struct serve *s, int which, const sigset_t *mask)
{
	pid_t pid = fork();

	if (pid == 0)
		run_child(s, which, mask);
	if (pid < 0) {
		log_error("%s cannot be started: %s", program[which], strerror(errno));
		return -errno;
	}
	s->pid[which] = pid;
	return 0;
}

static void pass_on(const struct serve *s, int sig)
{
	for (int i = 0; i < N_CHILDREN; i++)
		if (s->pid[i])
			kill(s->pid[i], sig);
}

static void stop_all(struct serve *s)
{
	s->stopping = true;
	pass_on(s, SIGTERM);
}

static void feed(struct serve *s, int which)
{
	s->fed[which] = true;
	for (int i = 0; i < N_CHILDREN; i++)
		if (s->pid[i] && !s->fed[i])
			return;
	memset(s->fed, 0, sizeof(s->fed));
	notify_send("WATCHDOG=1");
}

/* Take a child's datagram, if there is one.  The daemon's READY starts the adapter.  Other messages go on to
 * our service manager, but READY and RELOADING only if they are the adapter's. */
static bool on_notify(struct serve *s, const sigset_t *mask)
{
	char text[512], control[CMSG_SPACE(sizeof(struct ucred))];
	struct iovec iov = { text, sizeof(text) - 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
	                    .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(s->notify_fd, &m, MSG_DONTWAIT);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
	struct ucred who = { 0 };

	if (!c || c->cmsg_type != SCM_CREDENTIALS)
		return n >= 0;
	memcpy(&who, CMSG_DATA(c), sizeof(who));
	text[n] = 0;
	if (!who.pid || (who.pid != s->pid[DAEMON] && who.pid != s->pid[ADAPTER]))
		return true;
	if (!strcmp(text, "WATCHDOG=1")) {
		feed(s, who.pid == s->pid[ADAPTER] ? ADAPTER : DAEMON);
	} else if (who.pid == s->pid[DAEMON] && strstr(text, "READY=1") && !s->pid[ADAPTER] && !s->stopping) {
		if (start_child(s, ADAPTER, mask) < 0) {
			s->code = 1;
			stop_all(s);
		}
	} else if (who.pid == s->pid[ADAPTER]) {
		notify_send(text);                /* the adapter's READY is also ours */
	} else if (who.pid == s->pid[DAEMON] && !strstr(text, "READY=1") && !strstr(text, "RELOADING=1")) {
		notify_send(text);
	}
	return true;
}

static void hear(struct serve *s, const sigset_t *mask)
{
	for (int i = 0; i < 64 && on_notify(s, mask); i++) /* bounded, because any process can send */
		;
}

static void on_child(struct serve *s, const sigset_t *mask)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		hear(s, mask);                    /* read its last messages while its pid is known */
		for (int i = 0; i < N_CHILDREN; i++) {
			if (pid != s->pid[i])
				continue;
			s->pid[i] = 0;
			if (s->stopping)
				continue;
			s->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			if (WIFSIGNALED(status))
				log_error("%s was ended by signal %d (%s)", program[i], WTERMSIG(status),
				          strsignal(WTERMSIG(status)));
			stop_all(s);
		}
	}
}

static int supervise(struct serve *s, const sigset_t *mask)
{
	struct pollfd p[2] = { { s->notify_fd, POLLIN, 0 }, { s->signal_fd, POLLIN, 0 } };
	struct signalfd_siginfo si;

	while (s->pid[DAEMON] || s->pid[ADAPTER]) {
		if (poll(p, 2, -1) < 0 && errno != EINTR)
			return 1;
		hear(s, mask);
		while (read(s->signal_fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
			if (si.ssi_signo == SIGCHLD)
				on_child(s, mask);
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

int cmd_serve(int argc, char **argv)
{
	struct serve s = { .argc = argc, .argv = argv, .watched = notify_watchdog_ns() > 0 };
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
	config_free(&cfg);
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
	return start_child(&s, DAEMON, &mask) < 0 ? 1 : supervise(&s, &mask);
}
