/* process.c - one adapter process.  One thread here; the API has its own workers.
 *
 *	SIGTERM, SIGINT   new requests and /health get 503; running ones may finish within
 *	                  --shutdown-timeout, then they end with an error event; then it exits
 *	the same again    it ends them and exits at once
 *	SIGHUP            reads API keys and certificates again; keeps the old ones if the new are wrong
 *
 * With --enable-ssl-refresh it looks at each beat whether the certificate's files are others.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api.h"
#include "adapters/http/net/conn.h"
#include "core/instance/config.h"
#include "core/instance/io.h"
#include "core/instance/log.h"
#include "core/instance/notify.h"
#include "process.h"
#include "state.h"

#define SECOND    1000000000ull
#define LOOK_NS   (SECOND / 20)   /* period of checks: for the end of a drain; at the start, for the daemon */
#define TURN_NS   (SECOND / 1000) /* requests are read for so long; then tokens that have come go first */
#define READY_NS  (2 * SECOND)    /* the port opens after this even without the daemons, to answer 503 */
#define SLOW_NS   (10 * SECOND)   /* or after this, if a daemon listens but has not answered yet */
#define METRICS_CONNECTIONS 64    /* the most connections of --metrics-port */
#define SAME_NS   (SECOND / 2)    /* two signals within this time count as one: a terminal or a service
                                     manager may signal us and our parent, which passes it on */
#define LINGER_NS (6 * SECOND)    /* time to send the last bytes, including conn.c's lingering */

static const char aborted[] =
	"data: {\"error\":{\"message\":\"The server is shutting down.\","
	"\"type\":\"Service Unavailable\",\"param\":null,\"code\":503}}\n\ndata: [DONE]\n\n";

struct process {
	const struct process_config *p;
	struct io *io;
	struct api *api;
	struct server *server, *metrics;  /* metrics: of --metrics-port, or NULL */
	struct io_timer beat;
	bool ready, serves, stopping, closing;
	uint64_t started;
	uint64_t tls_files;               /* which files were read last */
	uint64_t stop_seen;               /* when the last such signal came */
	uint64_t abort_at, end_at;
};

static void on_stop(struct process *me)
{
	uint64_t now = io_now(), limit = (uint64_t)(me->p->cfg->shutdown_timeout * 1e9);

	if (me->stopping && now - me->stop_seen >= SAME_NS)
		me->abort_at = now;
	me->stop_seen = now;
	if (me->stopping)
		return;
	me->stopping = true;
	me->abort_at = now + limit;
	if (me->p->parent && getppid() != me->p->parent)
		server_drain(me->server);         /* it died: its successor has the sockets and takes what comes */
	else
		api_drain(me->api);
	notify_sendf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu\nSTATUS=draining",
	             (unsigned long long)((limit + LINGER_NS + SECOND) / 1000));
	log_info("draining: %d connections, at most %.0f s", server_connections(me->server),
	         me->p->cfg->shutdown_timeout);
}

/* Changes when a file is written or replaced, also by a symbolic link, as in a volume of Kubernetes. */
static uint64_t tls_files(const struct config *cfg)
{
	const char *const path[] = { cfg->ssl_certfile, cfg->ssl_keyfile, cfg->ssl_ca_certs };
	uint64_t sum = 0;
	struct stat st;

	for (int i = 0; i < 3; i++)
		if (path[i] && stat(path[i], &st) == 0)
			sum = sum * 31 + st.st_ino * SECOND + (uint64_t)st.st_mtim.tv_sec * SECOND +
			      (uint64_t)st.st_mtim.tv_nsec;
	return sum;
}

static int reload_tls(struct process *me)
{
	char err[512];

	me->tls_files = tls_files(me->p->cfg);
	if (server_reload_tls(me->server, err, sizeof(err)) == 0 &&
	    (!me->metrics || server_reload_tls(me->metrics, err, sizeof(err)) == 0))
		return 0;
	log_error("the old certificate stays in use: %s", err);
	return -EINVAL;
}

static void on_reload(struct process *me)
{
	char err[512];

	notify_reloading();
	if (api_reload(me->api, err, sizeof(err)) < 0)
		log_error("the old API keys stay in use: %s", err);
	else if (reload_tls(me) == 0)
		log_info("API keys and certificates were read again");
	notify_send("READY=1");
}

static void on_signal(void *ctx, int sig)
{
	if (sig == SIGHUP)
		on_reload(ctx);
	else
		on_stop(ctx);
}

/* READY means that requests are served, unless the daemon is absent.  A client that connects earlier
 * waits in the kernel's queue, so it gets no 503 only because this process has just started. */
static void look_ready(struct process *me)
{
	const uint64_t wait = api_slow(me->api) ? SLOW_NS : READY_NS;
	int r;

	me->serves = api_complete(me->api);
	if (!me->serves && io_now() < me->started + wait)
		return;
	me->serves = me->serves || api_healthy(me->api);
	r = server_open(me->server);
	if (r < 0)
		log_error("the listening socket cannot be watched: %s", strerror(-r));
	me->ready = true;
	atomic_store(&me->p->beat->ready, me->serves ? 2 : 1);
	if (me->p->on_ready)
		me->p->on_ready(me->p->ctx, me->serves);
}

/* The port was opened without daemons; now they answer. */
static void look_serves(struct process *me)
{
	me->serves = api_healthy(me->api);
	if (!me->serves)
		return;
	atomic_store(&me->p->beat->ready, 2);
	if (me->p->on_ready)
		me->p->on_ready(me->p->ctx, true);
}

static void on_beat(struct io_timer *t)
{
	struct process *me = t->ctx;

	if (!me->ready)
		look_ready(me);
	else if (!me->serves && !me->stopping)
		look_serves(me);
	if (me->p->cfg->enable_ssl_refresh && tls_files(me->p->cfg) != me->tls_files && reload_tls(me) == 0)
		log_info("the certificate was read again");
	if (me->p->on_beat)
		me->p->on_beat(me->p->ctx);
	io_timer_set(me->io, t, io_now() + (me->ready ? me->p->beat_ns : LOOK_NS / 5));
}

/* false = the drain is complete. */
static bool drain(struct process *me)
{
	uint64_t now = io_now();

	if (!me->closing && (api_idle(me->api) || now >= me->abort_at)) {
		if (!api_idle(me->api))
			log_warn("requests that still run are ended: --shutdown-timeout is over, or a "
			         "second signal came");
		server_abort(me->server, aborted, sizeof(aborted) - 1);
		server_drain(me->server);
		if (me->metrics)
			server_drain(me->metrics);
		me->closing = true;
		me->end_at = now + LINGER_NS;
	}
	return !me->closing || (!server_idle(me->server) && now < me->end_at);
}

static int start(struct process *me, char *err, size_t errlen)
{
	const struct process_config *p = me->p;
	const struct config *cfg = p->cfg;
	const struct api_config ac = { .model = p->model, .n_models = p->n_models, .shared = p->shared,
	                               .index = p->index };
	const struct server_config sc = {
		.closed = true, .max_connections = cfg->max_connections, .max_body = cfg->max_body_bytes,
		.certfile = cfg->ssl_certfile, .keyfile = cfg->ssl_keyfile,
		.cafile = cfg->ssl_ca_certs, .cert_reqs = cfg->ssl_cert_reqs,
	};
	struct server_config mc;
	sigset_t mask;
	int r = io_create(&me->io, 0);

	if (r < 0) {
		snprintf(err, errlen, "The event loop cannot be created: %s.", strerror(-r));
		close(p->listen_fd);
		return r;
	}
	io_turn(me->io, TURN_NS);
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	r = io_signals(me->io, &mask, on_signal, me);  /* before the API starts threads */
	if (r == 0)
		r = api_create(&me->api, &ac, me->io, err, errlen);
	else
		snprintf(err, errlen, "Signals cannot be watched: %s.", strerror(-r));
	if (r < 0) {
		close(p->listen_fd);
		return r;
	}
	r = server_create(&me->server, me->io, p->listen_fd, &sc, api_app(me->api), err, errlen);
	if (r < 0 || p->metrics_fd < 0)
		return r;
	mc = sc;
	mc.closed = false;                 /* metrics are served during the start, too */
	mc.max_connections = METRICS_CONNECTIONS;
	return server_create(&me->metrics, me->io, p->metrics_fd, &mc, api_metrics_app(me->api), err, errlen);
}

int process_run(const struct process_config *p)
{
	struct process me = { .p = p };
	char err[512] = "";
	uint64_t now;
	int r;

	signal(SIGPIPE, SIG_IGN);
	r = start(&me, err, sizeof(err));
	if (r == 0) {
		atomic_store(&p->beat->alive_ns, io_now());
		me.started = io_now();
		me.tls_files = tls_files(p->cfg);
		me.beat = (struct io_timer){ .fn = on_beat, .ctx = &me };
		on_beat(&me.beat);
	} else if (*err) {
		log_error("%s", err);
	} else {
		log_error("The adapter cannot be started: %s.", strerror(-r));
	}
	while (r == 0 && (!me.stopping || drain(&me))) {
		io_sleep(me.io, me.stopping ? io_now() + LOOK_NS : 0);
		if (io_cut(me.io))
			api_take(me.api);
		now = io_now();
		atomic_store_explicit(&p->beat->alive_ns, now, memory_order_relaxed);
		if (me.ready)
			shared_most(&p->shared->turn_max_ns, now - io_woke(me.io));
	}
	if (me.server)
		server_destroy(me.server);
	if (me.metrics)
		server_destroy(me.metrics);
	if (me.api)
		api_destroy(me.api);
	if (me.io)
		io_destroy(me.io);
	return r == 0 ? 0 : 1;
}
