/* main.c - slipring-http: the OpenAI API in front of a Slipring daemon.
 *
 * One process serves.  With --api-server-count N, N children do, each with its own socket on the same
 * port.  This process starts them, restarts those that died or hang, and passes signals on.
 * It opens the sockets once, so that a port never closes while a child is restarted.
 *
 * Exit codes: 0 stopped by a signal; 1 could not start or the children keep dying; 2 wrong arguments.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api.h"
#include "core/instance/config.h"
#include "core/instance/fresh.h"
#include "core/instance/io.h"
#include "core/models/locate.h"
#include "core/instance/log.h"
#include "core/instance/notify.h"
#include "adapters/text/text_json.h"
#include "adapters/http/net/listen.h"
#include "process.h"

#define SECOND    1000000000ull
#define HUNG_NS   (30 * SECOND)   /* a child whose loop makes no turn for this long is killed */
#define YOUNG_NS  (5 * SECOND)    /* a child that dies younger than this adds to `young` */
#define YOUNG_MAX 5

_Static_assert(API_MODELS >= CONFIG_LIST, "--models has no more");

struct parent {
	struct config cfg;
	struct config_models models;     /* of --models */
	struct config of[API_MODELS];    /* their settings; without --models only cfg is used */
	struct located at_path[API_MODELS];
	struct api_model model[API_MODELS];
	int n_models;
	struct listener at, metrics;     /* metrics: none, or as many as at */
	struct api_shared *shared;
	struct process_beat *beat;        /* [at.n] */
	pid_t pid[LISTEN_MAX];            /* 0 = not running */
	uint64_t born[LISTEN_MAX];
	int young;                        /* consecutive deaths of children younger than YOUNG_NS */
	bool announced, serves, stopping, failed; /* serves: daemons have answered, and it was said */
};

/* ---- telling the world -------------------------------------------------------------------- */

/* Write a temporary file and rename it, so that a reader sees all of it or no file. */
static void write_ready_file(const char *path, const char *url)
{
	struct fresh w;
	int e = fresh_open(&w, AT_FDCWD, path, 0666);

	if (!e) {
		fprintf(w.f, "%s\n", url);
		e = fresh_done(&w);
	}
	if (e)
		log_error("--ready-file %s: %s", path, strerror(-e));
}

/* Whoever reaches the port may use the model: say so unless keys stand before it. */
static void warn_if_open(const struct parent *p)
{
	if (!listen_reachable(&p->at) || p->cfg.n_api_keys || p->cfg.api_key_file)
		return;
	log_warn("%s takes requests of other machines, and no API key is set: who reaches it may use the model. "
	         "Give keys with --api-key-file FILE or VLLM_API_KEY, listen on 127.0.0.1 (no --host), or let a "
	         "firewall choose who reaches it", p->at.url);
}

/* The port is open.  serves: daemons answer; if that is later, this is called again. */
static void announce(void *ctx, bool serves)
{
	struct parent *p = ctx;
	char names[200] = "";

	for (int i = 0; i < p->n_models; i++)
		snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ", " : "",
		         p->n_models > 1 ? p->model[i].cfg->served_name[0] : p->at_path[i].name);
	if (serves)
		log_info("serving %s on %s", names, p->at.url);
	else
		log_warn("listening on %s, but no daemon serves %s yet; requests get 503 until one does", p->at.url,
		         names);
	if (p->cfg.metrics_port && !p->announced)
		log_info("metrics on %s", p->metrics.url);
	notify_sendf("READY=1\nSTATUS=%s %.200s on %.200s", serves ? "serving" : "waiting for a daemon with",
	             names, p->at.url);
	if (p->cfg.ready_file && !p->announced)
		write_ready_file(p->cfg.ready_file, p->at.url);
	p->announced = true;
	p->serves = serves;
}

static void feed_watchdog(void *ctx)
{
	(void)ctx;
	if (notify_watchdog_ns())
		notify_send("WATCHDOG=1");
}

/* ---- several processes -------------------------------------------------------------------- */

static void run_child(struct parent *p, int i, pid_t parent, const sigset_t *mask)
{
	const struct process_config pc = {
		.cfg = &p->cfg, .model = p->model, .n_models = p->n_models, .shared = p->shared,
		.beat = &p->beat[i],
		.index = i, .parent = parent, .listen_fd = dup(p->at.fd[i]), .beat_ns = SECOND,
		.metrics_fd = p->metrics.n ? dup(p->metrics.fd[i]) : -1,
	};

	setpgid(0, 0);                    /* Ctrl-C goes only to the parent, which passes it on */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(0);
	unsetenv("NOTIFY_SOCKET");        /* the parent notifies for all */
	p->at.unlink = NULL;              /* and it removes the socket */
	listen_close(&p->at);
	listen_close(&p->metrics);
	sigprocmask(SIG_UNBLOCK, mask, NULL);
	exit(process_run(&pc));
}

static void start_child(struct parent *p, int i, const sigset_t *mask)
{
	pid_t parent = getpid(), pid;

	atomic_store(&p->beat[i].ready, 0);
	atomic_store(&p->beat[i].alive_ns, io_now());
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		run_child(p, i, parent, mask);
	if (pid < 0)
		log_error("adapter process %d cannot be started: %s", i, strerror(errno));
	p->pid[i] = pid > 0 ? pid : 0;
	p->born[i] = io_now();
}

static void signal_children(struct parent *p, int sig)
{
	for (int i = 0; i < p->at.n; i++)
		if (p->pid[i])
			kill(p->pid[i], sig);
}

static void reap(struct parent *p)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (int i = 0; i < p->at.n; i++) {
			if (p->pid[i] != pid)
				continue;
			p->pid[i] = 0;
			if (p->stopping)
				break;
			log_error("adapter process %d (pid %d) ended by %s %d; it is started again", i, (int)pid,
			          WIFSIGNALED(status) ? "signal" : "code",
			          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			p->young = io_now() - p->born[i] < YOUNG_NS ? p->young + 1 : 0;
			/* Before the first READY the cause is likely the configuration; later it may be chance. */
			if (!p->announced || p->young >= YOUNG_MAX) {
				p->failed = p->stopping = true;
				signal_children(p, SIGTERM);
			}
		}
	}
}

static void look_after(struct parent *p, const sigset_t *mask)
{
	int open = 0, serve = 0, alive = 0;

	for (int i = 0; i < p->at.n; i++) {
		uint64_t quiet;

		if (!p->pid[i] && !p->stopping && io_now() - p->born[i] > (p->young > 1 ? SECOND : 0))
			start_child(p, i, mask);
		quiet = io_now() - atomic_load(&p->beat[i].alive_ns);  /* of a child that was just started: 0 */
		if (p->pid[i] && (int64_t)quiet > (int64_t)HUNG_NS) {
			log_error("adapter process %d (pid %d) does not respond; it is killed", i, (int)p->pid[i]);
			kill(p->pid[i], SIGKILL);
		}
		open += atomic_load(&p->beat[i].ready) > 0;
		serve += atomic_load(&p->beat[i].ready) > 1;
		alive += (int64_t)quiet < (int64_t)HUNG_NS;
	}
	if (!p->stopping && (p->announced ? !p->serves && serve == p->at.n : open == p->at.n))
		announce(p, serve == p->at.n);
	if (alive == p->at.n)
		feed_watchdog(NULL);
}

static int supervise(struct parent *p)
{
	const uint64_t beat = notify_watchdog_ns() ? notify_watchdog_ns() : SECOND;
	sigset_t mask;
	int left;

	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	for (int i = 0; i < p->at.n; i++)
		start_child(p, i, &mask);
	do {
		uint64_t ns = !p->announced ? SECOND / 50 : beat < SECOND ? beat : SECOND;
		struct timespec wait = { (time_t)(ns / SECOND), (long)(ns % SECOND) };
		int sig = sigtimedwait(&mask, NULL, &wait);

		if (sig == SIGTERM || sig == SIGINT) {
			if (!p->stopping)
				notify_sendf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%lld\nSTATUS=draining",
				             (long long)(p->cfg.shutdown_timeout * 1e6) + 8000000);
			p->stopping = true;
			signal_children(p, SIGTERM);
		} else if (sig == SIGHUP) {
			notify_reloading();
			signal_children(p, SIGHUP);
			notify_send("READY=1");
		}
		reap(p);
		look_after(p, &mask);
		left = 0;
		for (int i = 0; i < p->at.n; i++)
			left += p->pid[i] != 0;
	} while (left || !p->stopping);
	return p->failed;
}

/* ---- start -------------------------------------------------------------------------------- */

static int add_model(struct parent *p, const struct config *cfg, char *err, size_t errlen)
{
	struct located *at = &p->at_path[p->n_models];
	int r = locate_model(at, cfg->model, err, errlen);

	if (r == 0)
		p->model[p->n_models++] = (struct api_model){ cfg, at };
	return r;
}

/* Each line of --models, with this program's words before it. */
static int find_models(struct parent *p, int argc, char **argv, char *err, size_t errlen)
{
	char why[900];
	int r = config_models_read(&p->models, p->cfg.models, argc, argv, err, errlen);

	for (int i = 0; i < p->models.n && r == 0; i++) {
		const struct config_words *w = &p->models.model[i];

		r = config_parse(&p->of[i], w->argc, w->argv, FOR_SERVE, why, sizeof(why));
		if (r == 0)
			r = add_model(p, &p->of[i], why, sizeof(why));
		if (r)
			snprintf(err, errlen, "--models: %s: %s", w->name, why);
	}
	return r > 0 ? -EINVAL : r;
}

static int start(struct parent *p, int argc, char **argv, char *err, size_t errlen)
{
	int r = config_parse(&p->cfg, argc, argv, FOR_HTTP, err, errlen);

	if (r)
		return r;
	log_level_by_name(p->cfg.log_level);
	if (p->cfg.ssl_keyfile && !p->cfg.ssl_certfile) {
		snprintf(err, errlen, "--ssl-keyfile needs --ssl-certfile.");
		return -EINVAL;
	}
	r = p->cfg.models ? find_models(p, argc, argv, err, errlen) : add_model(p, &p->cfg, err, errlen);
	if (r == 0)
		r = listen_open(&p->at, &p->cfg, p->cfg.api_server_count, err, errlen);
	if (r == 0)
		r = listen_metrics(&p->metrics, &p->cfg, p->at.n, err, errlen);
	if (r < 0)
		return r;
	warn_if_open(p);
	p->shared = api_shared_create();
	p->beat = mmap(NULL, sizeof(*p->beat) * LISTEN_MAX, PROT_READ | PROT_WRITE,
	               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p->shared && p->beat != MAP_FAILED)
		return 0;
	snprintf(err, errlen, "There is no shared memory for the counters of the adapter processes.");
	return -ENOMEM;
}

static int run_alone(struct parent *p)
{
	const struct process_config pc = {
		.cfg = &p->cfg, .model = p->model, .n_models = p->n_models, .shared = p->shared,
		.beat = p->beat,
		.listen_fd = p->at.fd[0], .metrics_fd = p->metrics.n ? p->metrics.fd[0] : -1,
		.on_ready = announce, .on_beat = feed_watchdog,
		.beat_ns = notify_watchdog_ns() ? notify_watchdog_ns() : SECOND, .ctx = p,
	};

	p->at.n = p->metrics.n = 0;       /* process_run owns them now */
	return process_run(&pc);
}

int main(int argc, char **argv)
{
	static struct parent p;
	char err[1024] = "";
	int r;

	log_open("slipring-http");
	json_set_alloc_funcs(text_json_take, text_json_give);
	r = start(&p, argc, argv, err, sizeof(err));
	if (r < 0)
		log_error("%s", err);
	if (r)
		return r == 1 ? 0 : r == -EINVAL ? 2 : 1;
	r = p.at.n > 1 ? supervise(&p) : run_alone(&p);
	if (p.cfg.ready_file && unlink(p.cfg.ready_file) < 0 && errno != ENOENT)
		log_warn("--ready-file %s: %s", p.cfg.ready_file, strerror(errno));
	listen_close(&p.at);
	listen_close(&p.metrics);
	api_shared_destroy(p.shared);
	for (int i = 0; i < p.models.n; i++)
		config_free(&p.of[i]);
	config_models_free(&p.models);
	config_free(&p.cfg);
	return r;
}
