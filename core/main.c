/* main.c - slipringd: start and stop.  loop.c is what happens between.
 *
 * One thread does everything.  It creates things in order and destroys them in reverse.  After READY it
 * allocates memory for new connections only.
 *
 * Exit codes: 0 a signal stopped it; 1 it could not start, and one sentence says why; 70 the device is lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clients/clients.h"
#include "core/instance/config.h"
#include "control.h"
#include "events.h"
#include "identity.h"
#include "core/instance/io.h"
#include "kernels/backend.h"
#include "kernels/null/null.h"
#include "core/instance/knobs.h"
#include "core/instance/kv_events.h"
#include "core/kv/kv.h"
#include "listen.h"
#include "core/models/defaults.h"
#include "core/models/load.h"
#include "core/models/locate.h"
#include "core/instance/log.h"
#include "loop.h"
#include "core/models/model.h"
#include "core/instance/notify.h"
#include "keep.h"
#include "plan.h"
#include "rank.h"
#include "core/sched/sched.h"
#include "core/instance/stats.h"

#define MS      1000000ull
#define SECOND  (1000 * MS)
#define TENANTS 256               /* tenants with their own entry; more tenants reuse entries */

struct daemon {
	struct config cfg;
	struct located where;
	char run_dir[4096];
	int  lock_fd;
	struct ring_socket ring_socket;
	struct model *model;
	struct plan plan;
	struct kv *kv;
	struct control *control;
	struct recorder recorder;
	struct rank_task rank;
	struct prefix_secret secret;
	struct prefix_page *shown;        /* the prefixes that we have; NULL: nobody looks */
	struct events_page *events;       /* where the names of their blocks lie; NULL: nobody is told */
	int shown_fd, events_fd;
	uid_t reader;                     /* who may read the events besides us and root; -1: nobody */
	struct keep keep;                 /* dir NULL: cached prefixes end with us */
	char keep_name[CONFIG_INSTANCE + 8];
	bool drained;                     /* the loop has ended as it should */
	uid_t gateway;
	struct { struct load *load; uint64_t total, next_ns; bool bar; int percent, shown; } loading;
	struct loop loop;
	char err[1024];
};

/* ---- start ------------------------------------------------------------------------------- */

static int fail(struct daemon *d, const char *what)
{
	log_error("%s%s%s", what, *what ? ": " : "", d->err);
	notify_sendf("STATUS=%s", d->err);
	return -1;
}

/* Show a bar on a terminal, and write a line every two seconds elsewhere. */
static void on_loaded(void *ctx, uint64_t bytes)
{
	struct daemon *d = ctx;
	uint64_t now = io_now();
	int percent = d->loading.total ? (int)(bytes * 100 / d->loading.total) : 100;

	percent = percent > 100 ? 100 : percent;
	d->loading.percent = percent;
	if (d->loading.bar && percent != d->loading.shown) {
		char bar[41];

		memset(bar, '.', 40);
		memset(bar, '#', (size_t)percent * 40 / 100);
		bar[40] = 0;
		fprintf(stderr, "\rLoading weights [%s] %3d %%%s", bar, percent, percent == 100 ? "\n" : "");
		d->loading.shown = percent;
	}
	if (now < d->loading.next_ns)
		return;
	d->loading.next_ns = now + 2 * SECOND;
	d->loop.st->alive_ns = now;
	notify_sendf("STATUS=Loading %d %% (%.1f/%.1f GB)\nEXTEND_TIMEOUT_USEC=30000000", percent,
	             (double)bytes / 1e9, (double)d->loading.total / 1e9);
	if (!d->loading.bar)
		log_info("Loading weights: %d %% (%.2f of %.2f GB)", percent, (double)bytes / 1e9,
		         (double)d->loading.total / 1e9);
}

static void on_signal(void *ctx, int sig)
{
	struct daemon *d = ctx;

	if (sig == SIGHUP) {
		d->loop.reload_wanted = true;
		return;
	}
	d->loop.signals++;
	if (d->loading.load)
		load_stop(d->loading.load);
}

/* Lock the run directory: it has one daemon.  The kernel releases the lock when the process ends. */
static int take_run_dir(struct daemon *d)
{
	char path[4200], name[CONFIG_INSTANCE];
	struct config mine;               /* with the instance of our rank */

	config_replica(&d->cfg, 0, &mine, name);
	if (config_run_dir(mine.instance, d->run_dir, sizeof(d->run_dir)) < 0) {
		snprintf(d->err, sizeof(d->err), "--instance %s: not a usable name (letters, digits, - _ .)",
		         mine.instance);
		return fail(d, "cannot start");
	}
	if (config_make_run_dir(d->run_dir, d->err, sizeof(d->err)) < 0)
		return fail(d, "cannot start");
	snprintf(path, sizeof(path), "%s/lock", d->run_dir);
	d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (d->lock_fd < 0 || flock(d->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		snprintf(d->err, sizeof(d->err), errno == EWOULDBLOCK ?
		         "%s: another slipringd runs here; stop it, or give this one --instance NAME" :
		         "%s: %s", path, strerror(errno));
		return fail(d, "cannot start");
	}
	if (config_socket(&mine, d->ring_socket.path, sizeof(d->ring_socket.path)) < 0) {
		snprintf(d->err, sizeof(d->err), "the socket's path is too long");
		return fail(d, "cannot start");
	}
	return stats_create(&d->loop.st, d->run_dir, d->err, sizeof(d->err)) < 0 ? fail(d, "cannot start") : 0;
}

static void on_done(struct io_watch *w, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(w->fd, &n, sizeof(n)) < 0)
		return;                       /* the next turn polls the device anyway */
}

/* Choose how this thread waits, which also decides whether it computes. */
static int choose_mode(struct daemon *d)
{
	cpu_set_t set;
	struct idle_place p = {
		.device = d->loop.ops->name, .workable = d->loop.ops->work != NULL,
		.threads = d->cfg.device == DEVICE_NULL ? 0 : d->plan.limits.threads,
		.cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1,
	};

	if (idle_choose(&d->loop.idle, d->cfg.run_mode, &p, d->err, sizeof(d->err)) < 0)
		return -EINVAL;
	log_info("Run mode %s", d->err);
	d->plan.limits.worked = d->loop.idle.mode == RUN_INLINE;
	if (d->plan.limits.worked || !d->loop.ops->arm)
		return 0;
	d->loop.done = (struct io_watch){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = IO_IN,
	                             .fn = on_done };
	if (d->loop.done.fd >= 0 && io_watch_add(d->loop.io, &d->loop.done) == 0)
		return 0;
	snprintf(d->err, sizeof(d->err), "no eventfd for the device: %s", strerror(errno));
	return -errno;
}

/* Did SIGTERM or SIGINT come during start, when there is nothing to drain? */
static bool asked_to_stop(struct daemon *d)
{
	io_poll(d->loop.io);
	if (!d->loop.signals)
		return false;
	notify_send("STOPPING=1\nSTATUS=Stopped while loading");
	log_info("Asked to stop while loading: %d %% of the weights were read", d->loading.percent);
	return true;
}

/* Ranks read the weights, not this process. */
static bool on_ranks_loaded(void *ctx, uint64_t bytes)
{
	struct daemon *d = ctx;

	io_poll(d->loop.io);
	on_loaded(d, bytes);
	return !d->loop.signals;
}

/* Each rank opens the device in a process of its own. */
static void divide_backend(struct daemon *d)
{
	if (!rank_wanted(&d->cfg))
		return;
	d->rank = (struct rank_task){ .model = d->where.path, .device = d->loop.ops->name,
		.dummy = strcmp(d->cfg.load_format, "dummy") == 0, .step_us = d->cfg.null_step_us,
		.token_us = d->cfg.null_token_us, .loading = on_ranks_loaded, .ctx = d };
	d->loop.ops = rank_backend(d->loop.ops, &d->rank);
}

/* -ECANCELED: a signal asked the daemon to stop. */
static int open_backend(struct daemon *d)
{
	static const char *const name[] = { [DEVICE_AUTO] = NULL, [DEVICE_CPU] = "cpu",
		[DEVICE_CUDA] = "cuda", [DEVICE_NULL] = "null" };
	bool dummy;
	int r;

	d->loop.ops = sr_backend_find(name[d->cfg.device], d->err, sizeof(d->err));
	if (!d->loop.ops)
		return fail(d, "--device");
	if (d->cfg.device == DEVICE_NULL)
		sr_null_pace(d->cfg.null_step_us, d->cfg.null_token_us);
	divide_backend(d);
	dummy = strcmp(d->cfg.load_format, "dummy") == 0;
	if ((dummy ? model_open_dummy : model_open)(&d->model, d->where.path, d->err, sizeof(d->err)) < 0)
		return fail(d, "cannot open the model");
	if (plan_make(&d->plan, &d->cfg, d->model, d->loop.ops, d->err, sizeof(d->err)) < 0)
		return fail(d, "cannot plan the memory");
	if (choose_mode(d) < 0)
		return fail(d, "cannot start");
	for (char *line = d->plan.text, *end; *line; line = end) {
		end = line + strcspn(line, "\n");
		log_info("%.*s", (int)(end - line), line);
		end += *end == '\n';
	}
	d->loading.total = d->model->weight_bytes;
	d->loading.bar = isatty(STDERR_FILENO);
	d->loading.next_ns = io_now() + 2 * SECOND;
	if (load_create(&d->loading.load, d->loop.io, d->model->file, d->model->n_files, on_loaded, d, d->err,
	                sizeof(d->err)) < 0)
		return fail(d, "cannot load the model");
	model_serve(d->model, d->plan.context);
	d->rank.context = d->plan.context;
	r = d->loop.ops->open(&d->loop.b, &d->model->m, load_source(d->loading.load), &d->plan.limits, d->err,
	                 sizeof(d->err));
	if (r < 0 && *load_error(d->loading.load)) /* it names file, offset and reason */
		snprintf(d->err, sizeof(d->err), "%s", load_error(d->loading.load));
	load_destroy(d->loading.load);
	d->loading.load = NULL;
	if (asked_to_stop(d))
		return -ECANCELED;
	if (r == 0 && d->loop.ops->without)
		snprintf(d->loop.st->kernels_off, sizeof(d->loop.st->kernels_off), "%s",
		         d->loop.ops->without(d->loop.b));
	return r < 0 ? fail(d, "cannot load the model") : 0;
}

/* Places for vectors that one connection may have: 8 MiB of them, by the wire's rule for sizes. */
static uint32_t vectors_most(const struct sr_limits *l)
{
	uint32_t most = 8;

	while (most < 1u << 12 && l->width && most * 2 * 4 * (uint64_t)l->width <= 8u << 20)
		most *= 2;
	return l->vectors ? most : 0;
}

static enum prefix_scope scope_of(const struct config *c)
{
	return c->prefix_cache_scope == SCOPE_GLOBAL ? PREFIX_GLOBAL :
	       c->prefix_cache_scope == SCOPE_TENANT ? PREFIX_BY_TENANT : PREFIX_BY_UID;
}

/* The user whose requests may name tenants; -1: only our own uid's may. */
static int find_gateway(struct daemon *d, uid_t *uid)
{
	struct passwd *pw;

	*uid = (uid_t)-1;
	if (!d->cfg.gateway_user)
		return 0;
	if (!(pw = getpwnam(d->cfg.gateway_user))) {
		snprintf(d->err, sizeof(d->err), "--gateway-user %s: no such user", d->cfg.gateway_user);
		return fail(d, "cannot start");
	}
	*uid = pw->pw_uid;
	return 0;
}

static struct identity identity(const struct daemon *d)
{
	return (struct identity){ &d->cfg, d->where.path, d->model, &d->plan, d->loop.ops, d->loop.b };
}

/* --kv-save: what can be kept, and the secret of the salts of what was. */
static int begin_keep(struct daemon *d, bool shared)
{
	const struct sr_limits *l = &d->plan.limits;
	const struct identity what = identity(d);
	const char *kind, *why = !d->cfg.kv_save ? NULL : !d->loop.ops->kv ? "is for the CPU: this back end's KV cache ends with it" :
		!d->loop.ops->kv(d->loop.b, 0, &kind) ? "does not know a KV cache on several nodes; with "
			"VLLM_CPU_OMP_THREADS_BIND=nobind it is on one" :
		l->n_groups > 1 || l->group[0].window ? "does not know groups of layers with windows" :
		l->n_states ? "does not know layers with a state" :
		!d->cfg.enable_prefix_caching ? "needs --enable-prefix-caching" : NULL;
	struct prefix_secret kept;

	if (!d->cfg.kv_save)
		return 0;
	if (why) {
		snprintf(d->err, sizeof(d->err), "--kv-save %s", why);
		return fail(d, "cannot start");
	}
	snprintf(d->keep_name, sizeof(d->keep_name), "%s.kv", d->cfg.instance);
	d->keep = (struct keep){ .dir = d->cfg.kv_save, .name = d->keep_name, .most = d->cfg.kv_save_size,
		.ops = d->loop.ops, .b = d->loop.b, .block_tokens = l->block_tokens, .n_blocks = l->n_blocks,
		.block_bytes = d->plan.need.per_block };
	identity_make(d->keep.identity, &what);
	if (!shared && keep_secret(&d->keep, &kept, d->err, sizeof(d->err)) == 0)
		d->secret = kept;                /* among replicas the secret is that of all */
	return 0;
}

/* A file that does not fit is a cold start. */
static void read_keep(struct daemon *d)
{
	uint64_t began = io_now();
	int n = d->keep.dir ? keep_read(&d->keep, &d->secret, d->kv, d->err, sizeof(d->err)) : -ENOENT;

	if (n >= 0)
		log_info("%d blocks of cached prefixes were kept (%.1f MiB, read in %.2f s)", n,
		         (double)n * (double)d->keep.block_bytes / (1 << 20), (double)(io_now() - began) / 1e9);
	else if (n != -ENOENT)
		log_warn("no cached prefixes are taken over: %s", d->err);
}

static void write_keep(struct daemon *d)
{
	int n;

	if (!d->keep.dir || !d->drained)
		return;
	n = keep_write(&d->keep, &d->secret, d->kv, d->err, sizeof(d->err));
	if (n < 0)
		log_warn("cached prefixes are not kept: %s", d->err);
	else
		log_info("%d blocks of cached prefixes are kept in %s", n, d->keep.dir);
}

/* Keys of names, salts and tenants.  One of several daemons shows which prefixes it has. */
static int make_prefixes(struct daemon *d)
{
	const struct sr_limits *l = &d->plan.limits;
	int r = prefix_secret(&d->secret);

	if (r >= 0 && begin_keep(d, r > 0) < 0)
		return -1;
	if (r >= 0 && d->cfg.data_parallel_size > 1 && d->cfg.enable_prefix_caching)
		r = prefix_create(&d->shown, &d->shown_fd, (int64_t)l->n_blocks + l->n_host_blocks, &d->secret);
	if (r >= 0 && d->shown)
		d->shown->scope = scope_of(&d->cfg);
	if (r < 0) {
		snprintf(d->err, sizeof(d->err), "the names of cached prefixes have no key or no memory: %s",
		         strerror(-r));
		return fail(d, "cannot start");
	}
	return 0;
}

/* --kv-events-config: names of blocks lie where another process can read them. */
static int make_events(struct daemon *d)
{
	const struct sr_limits *l = &d->plan.limits;
	const uid_t uid = d->gateway != (uid_t)-1 ? d->gateway : geteuid();
	const struct passwd *pw = NULL;
	struct kv_events e;
	int r = kv_events_parse(&e, d->cfg.kv_events_config, d->err, sizeof(d->err));

	d->reader = (uid_t)-1;
	if (r == 0 && e.on && !d->cfg.enable_prefix_caching) {
		snprintf(d->err, sizeof(d->err), "--kv-events-config needs --enable-prefix-caching");
		r = -EINVAL;
	} else if (r == 0 && e.on && *e.user && !(pw = getpwnam(e.user))) {
		snprintf(d->err, sizeof(d->err), "--kv-events-config: \"user\": there is no user %s", e.user);
		r = -EINVAL;
	} else if (r == 0 && e.on &&
	           (r = events_create(&d->events, &d->events_fd, l->n_blocks, l->n_host_blocks, l->block_tokens)) < 0) {
		snprintf(d->err, sizeof(d->err), "no memory for the events of %d blocks: %s", l->n_blocks, strerror(-r));
	}
	if (r < 0)
		return fail(d, "cannot start");
	if (pw)
		d->reader = pw->pw_uid;
	if (d->events)
		d->events->salt = prefix_salt(&d->secret, scope_of(&d->cfg), uid, uid, 0);
	return 0;
}

/* What clients are told of a request that does not say how it is drawn. */
static int read_defaults(struct daemon *d, struct clients_config *c)
{
	struct defaults s;
	char words[160];

	if (defaults_read(&s, d->where.path, d->where.gguf, d->cfg.generation_config, d->cfg.override_generation_config,
	                  d->err, sizeof(d->err)) < 0)
		return fail(d, "cannot start");
	defaults_sampling(&s, &c->sampling);
	c->max_tokens = s.max_tokens > 0 ? (uint32_t)s.max_tokens : 0;
	defaults_say(&s, words, sizeof(words));
	if (!c->only_pooled)
		log_info("Requests that do not say otherwise: %s (%s)", words, s.from);
	return 0;
}

static int make_clients(struct daemon *d, int listen_fd)
{
	const struct identity what = identity(d);
	struct clients_config c = {
		.max = d->cfg.max_clients, .max_per_uid = d->cfg.max_clients,
		.live = 1u << 13, .tokens = 1u << 16, .arena = 16u << 20, .take = 64,
		.guides = sched_guides_alone((uint32_t)d->plan.limits.masks / 2),
		.gateway = d->gateway,
		.scope = scope_of(&d->cfg), .secret = d->secret,
		.vocab = d->model->m.n_vocab, .context = d->plan.context, .answers = identity_answers(&what),
		.vectors = vectors_most(&d->plan.limits), .width = d->plan.limits.vectors ? d->plan.limits.width : 0,
		.only_pooled = d->plan.limits.whole || d->model->m.classifier.n_labels, .labels = d->model->m.classifier.n_labels,
		.eos = d->model->eos, .n_eos = d->model->n_eos,
		.works = d->loop.idle.mode == RUN_INLINE,
		.stranger_bytes = (size_t)sysconf(_SC_PHYS_PAGES) / 16 * (size_t)sysconf(_SC_PAGESIZE),
		.stall_ns = 10 * SECOND, .recorder = &d->recorder,
		.counters = &d->loop.counters, .stats = d->loop.st,
	};

	snprintf(c.model_name, sizeof(c.model_name), "%.63s",
	         d->cfg.n_served_names ? d->cfg.served_name[0] : d->where.name);
	if (locate_vocab_hash(&d->where, c.vocab_hash, d->err, sizeof(d->err)) < 0) {
		close(listen_fd);
		return fail(d, "cannot open the model");
	}
	if (read_defaults(d, &c) < 0) {
		close(listen_fd);
		return -1;
	}
	if (clients_create(&d->loop.cl, &c, d->loop.io, listen_fd) < 0) {
		snprintf(d->err, sizeof(d->err), "no memory for %d clients", c.max);
		return fail(d, "cannot start");
	}
	return 0;
}

static int make_scheduler(struct daemon *d)
{
	const struct sr_limits *l = &d->plan.limits;
	struct kv_config k = { .n_blocks = l->n_blocks, .n_host = l->n_host_blocks,
		.block_tokens = l->block_tokens, .copies = l->copies, .n_owners = TENANTS,
		.n_groups = l->n_groups, .n_states = l->n_states,
		.key = { d->secret.name[0], d->secret.name[1] }, .shown = d->shown, .events = d->events };
	struct sched_config c = {
		.limits = *l, .vocab = d->model->m.n_vocab, .context = d->plan.context, .tenants = TENANTS,
		.counters = &d->loop.counters,
		.ran = { &d->loop.st->n_ran, d->loop.st->ran, STATS_RAN },
		.drafts = { d->cfg.draft_most, d->cfg.draft_least, d->cfg.draft_longest },
		.knobs = {
			.max_seqs = d->plan.max_seqs, .batch_tokens = d->plan.batch_tokens,
			.chunk_max = d->cfg.long_prefill_token_threshold > 0 ?
				(int32_t)d->cfg.long_prefill_token_threshold : l->tokens,
			.queue_requests = (int32_t)d->cfg.max_num_queued_reqs,
			.queue_tokens = d->cfg.max_num_queued_tokens,
			.first_chunk = !d->cfg.scheduler_reserve_full_isl,
			.copies = l->copies,
			.quantum = 32, /* tokens; less than a request, so a tenant's turn is one request */
			.no_prefix_cache = !d->cfg.enable_prefix_caching,
			.fcfs = strcmp(d->cfg.scheduling_policy, "priority") != 0,
			.step_ns = (uint32_t)(d->cfg.step_target_ms < 4000 ? d->cfg.step_target_ms * 1e6 : 4e9),
		},
	};
	/* A back end that this thread computes for is a slow device. */
	uint32_t step_default_ns = d->loop.ops->work ? 50 * MS : 5 * MS;
	struct control_config cc = { .run_dir = d->run_dir, .group = d->cfg.operator_group,
	                             .step_default_ns = step_default_ns, .recorder = &d->recorder,
	                             .stats = d->loop.st, .gateway = d->gateway,
	                             .prefix_fd = d->shown ? d->shown_fd : -1, .reader = d->reader,
	                             .events_fd = d->events ? d->events_fd : -1 };
	struct sched_port port;

	for (int32_t g = 0; g < l->n_groups; g++)
		k.group[g].window = l->group[g].window;
	if (!c.knobs.step_ns)
		c.knobs.step_ns = step_default_ns;
	if (c.knobs.queue_tokens < d->plan.context)
		c.knobs.queue_tokens = d->plan.context;
	/* sched.h needs (1 + ln slots) times the ids of all blocks; that factor is below 8 for 1,024 slots. */
	c.ids_max = c.knobs.queue_tokens + 8 * (int64_t)l->n_blocks * l->block_tokens;
	clients_port(d->loop.cl, &port);
	if (kv_create(&d->kv, &k) < 0 || sched_create(&d->loop.s, &c, d->kv, d->loop.ops, d->loop.b, &port) < 0) {
		snprintf(d->err, sizeof(d->err), "no memory for %d blocks and %lld queued tokens", l->n_blocks,
		         (long long)c.knobs.queue_tokens);
		return fail(d, "cannot start");
	}
	read_keep(d);
	clients_attach(d->loop.cl, d->loop.s);
	cc.knobs = c.knobs;
	cc.seqs_most = l->slots;
	cc.tokens_most = l->tokens;
	if (control_create(&d->control, &cc, d->loop.io, d->loop.s, d->err, sizeof(d->err)) < 0)
		return fail(d, "cannot start");
	d->loop.reload.control = d->control;
	d->loop.reload.seqs = c.knobs.max_seqs;
	d->loop.reload.tokens = c.knobs.batch_tokens;
	return 0;
}

/* The model's path and its names, by which other programs open it, too.  The path keeps its links: in a cache of
 * downloads they have the name of the file. */
static void name_in_page(struct daemon *d)
{
	struct stats_page *st = d->loop.st;
	const char *path = d->where.path;
	char cwd[PATH_MAX] = "";

	snprintf(st->model, sizeof(st->model), "%s",
	         d->cfg.n_served_names ? d->cfg.served_name[0] : d->where.name);
	if (*path == '/' || getcwd(cwd, sizeof(cwd)))
		if ((size_t)snprintf(st->model_path, sizeof(st->model_path), "%s%s%s", cwd, *cwd ? "/" : "", path) >=
		    sizeof(st->model_path))
			*st->model_path = 0;
	_Static_assert(STATS_NAMES == CONFIG_LIST, "a place for each");
	if (!d->cfg.n_served_names)
		snprintf(st->served[0], sizeof(st->served[0]), "%s", d->where.name);
	for (int i = 0; i < d->cfg.n_served_names; i++)
		if (strlen(d->cfg.served_name[i]) < sizeof(st->served[i]))
			snprintf(st->served[i], sizeof(st->served[i]), "%s", d->cfg.served_name[i]);
}

static void describe_in_page(struct daemon *d)
{
	struct stats_page *st = d->loop.st;
	const struct sr_limits *l = &d->plan.limits;
	char path[PATH_MAX];
	static const char *const kv_type[] = { "bfloat16", "float16", "fp8", "int8", "float32" };

	name_in_page(d);
	snprintf(st->device, sizeof(st->device), "%s", d->loop.ops->name);
	snprintf(st->kv_dtype, sizeof(st->kv_dtype), "%s", kv_type[l->kv_type]);
	st->block_tokens = (uint64_t)l->block_tokens;
	st->n_blocks = (uint64_t)l->n_blocks;
	st->n_host_blocks = (uint64_t)l->n_host_blocks;
	st->kv_tokens = (uint64_t)d->plan.kv_tokens;
	st->kv_groups = (uint64_t)l->n_groups;
	for (int32_t g = 0; g < l->n_groups; g++)
		st->group[g].window = l->group[g].window;
	st->n_states = (uint64_t)l->n_states;
	st->state_bytes = (uint64_t)d->plan.state_bytes;
	st->max_model_len = (uint64_t)d->plan.context;
	st->weights_bytes = (uint64_t)d->plan.need.weights;
	st->kv_bytes = (uint64_t)d->plan.kv_bytes;
	st->gpu_memory_utilization = d->cfg.gpu_memory_utilization;
	st->prefix_caching = d->cfg.enable_prefix_caching;
	if (d->cfg.config_file && realpath(d->cfg.config_file, path))
		snprintf(st->config_file, sizeof(st->config_file), "%.1023s", path);
}

/* Give health and meters the parts of the loop that they read. */
static void start_watching(struct daemon *d)
{
	struct loop *l = &d->loop;

	l->shutdown_timeout = d->cfg.shutdown_timeout;
	l->health = (struct health){ .io = l->io, .st = l->st, .ops = l->ops, .b = l->b, .s = l->s,
	                             .works = l->idle.mode == RUN_INLINE };
	health_start(&l->health);
	l->meters = (struct meters){ .io = l->io, .st = l->st, .s = l->s, .kv = d->kv, .cl = l->cl,
	                             .computes = strcmp(l->ops->name, "cpu") == 0,
	                             .counters = &l->counters, .ranks = rank_wanted(&d->cfg) ? l->b : NULL };
	meters_start(&l->meters, !d->cfg.disable_log_stats);
	l->stop_when_idle_s = d->cfg.stop_when_idle_s;
	loop_may_rest(l);
}

/* ---- stop ------------------------------------------------------------------------------------ */

static void stop_daemon(struct daemon *d)
{
	if (d->loop.cl)
		clients_destroy(d->loop.cl);           /* forgets all requests, so the scheduler is empty */
	write_keep(d);
	control_destroy(d->control);
	sched_destroy(d->loop.s);
	kv_destroy(d->kv);
	prefix_destroy(d->shown);
	events_destroy(d->events);
	if (!d->loop.health.hangs) {                      /* a hung device may still read the model */
		if (d->loop.b)
			d->loop.ops->close(d->loop.b);
		model_close(d->model);
	}
	stats_destroy(d->loop.st, d->run_dir);
	io_destroy(d->loop.io);
	reload_destroy(&d->loop.reload);
	if (d->loop.done.fd >= 0)
		close(d->loop.done.fd);
	listen_forget(&d->ring_socket);
	config_free(&d->cfg);
}

static void raise_limits(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;          /* each connection needs three descriptors */
		setrlimit(RLIMIT_NOFILE, &r);
	}
}

/* -ECANCELED: a signal asked the daemon to stop; -1: it cannot start, and a logged sentence says why. */
static int start_daemon(struct daemon *d)
{
	sigset_t m;
	int fd, r;

	sigemptyset(&m);
	sigaddset(&m, SIGTERM);
	sigaddset(&m, SIGINT);
	sigaddset(&m, SIGHUP);
	signal(SIGPIPE, SIG_IGN);
	raise_limits();
	if (locate_model(&d->where, d->cfg.model, d->err, sizeof(d->err)) < 0)
		return fail(d, "");
	if (take_run_dir(d) < 0)
		return -1;
	snprintf(d->loop.st->state, sizeof(d->loop.st->state), "loading");
	d->loop.st->alive_ns = io_now();
	if (io_create(&d->loop.io, 0) < 0 || io_signals(d->loop.io, &m, on_signal, d) < 0) {
		snprintf(d->err, sizeof(d->err), "neither io_uring nor epoll can be used: %s", strerror(errno));
		return fail(d, "cannot start");
	}
	if ((r = open_backend(d)) < 0)
		return r;
	if (find_gateway(d, &d->gateway) < 0 || make_prefixes(d) < 0 || make_events(d) < 0)
		return -1;
	fd = listen_open(&d->ring_socket, d->cfg.socket_group, d->err, sizeof(d->err));
	if (fd < 0)
		return fail(d, "cannot listen");
	if (make_clients(d, fd) < 0 || make_scheduler(d) < 0)
		return -1;
	describe_in_page(d);
	start_watching(d);
	return 0;
}

int main(int argc, char **argv)
{
	static struct daemon d = { .lock_fd = -1, .loop.done.fd = -1 };
	uint64_t began = io_now();
	int r;

	if (rank_called(argc, argv))
		return rank_main(argv);
	log_open("slipringd");
	r = config_parse(&d.cfg, argc, argv, FOR_DAEMON, d.err, sizeof(d.err));
	if (r)
		return r > 0 ? 0 : (fail(&d, ""), 1);
	log_level_by_name(d.cfg.log_level);
	d.loop.reload = (struct reload){ .argc = argc, .argv = argv };
	reload_create(&d.loop.reload, &d.cfg);
	r = start_daemon(&d);
	if (r < 0) {
		r = r != -ECANCELED;
	} else {
		snprintf(d.loop.st->state, sizeof(d.loop.st->state), "ready");
		log_info("Ready after %.2f s: %s on %s, %s, socket %s", (double)(io_now() - began) / 1e9,
		         d.loop.st->model, d.loop.ops->name, io_kind(d.loop.io), d.ring_socket.path);
		r = loop_run(&d.loop);
		d.drained = r == 0 && !d.loop.health.hangs && sched_flying(d.loop.s) < 0;
	}
	stop_daemon(&d);
	if (d.loop.health.hangs)
		_exit(r);                         /* its libraries' exit handlers may wait for the device, too */
	return r;
}
