/* main.c - slipringd: start, loop, drain, stop.
 *
 * One thread does everything here: it reads the rings, schedules, and where the back end has no
 * thread of its own for it, it computes too (ops->work, which comes back at layer boundaries by
 * turn_inside).  Things are made in order and unmade in reverse; after READY nothing is
 * allocated but for new connections.
 *
 * Exit codes: 0 asked to stop; 1 could not start, with one sentence why; 70 the device is lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
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
#include <sys/un.h>
#include <unistd.h>

#include "clients.h"
#include "config.h"
#include "control.h"
#include "empty.h"
#include "idle.h"
#include "io.h"
#include "kernels/backend.h"
#include "kernels/null/null.h"
#include "knobs.h"
#include "kv.h"
#include "load.h"
#include "locate.h"
#include "log.h"
#include "model.h"
#include "notify.h"
#include "plan.h"
#include "reload.h"
#include "sched.h"
#include "stats.h"

#define MS      1000000ull
#define SECOND  (1000 * MS)
#define MINUTE  (60 * SECOND)
#define NAP_NS  (2 * MS)          /* how often to look when work cannot move (a ring is full) */
#define TENANTS 256               /* tenants with an entry of their own; of more, entries are handed on */
#define EXIT_DEVICE_LOST 70
#define SILENT_S     60           /* the device is lost after 60 s without progress, or after 20 */
#define SILENT_TIMES 20           /* times the batch's expected time if that is longer */

struct daemon {
	struct config cfg;
	struct located where;
	char run_dir[4096], socket[4096];
	int  lock_fd;
	struct { dev_t dev; ino_t ino; } bound; /* the file of our socket; ino 0: there is none of ours */
	struct io *io;
	struct stats_page *st;
	struct model *model;
	const struct sr_backend_ops *ops;
	struct sr_backend *b;
	struct plan plan;
	struct kv *kv;
	struct clients *cl;
	struct sched *s;
	struct control *control;
	struct recorder recorder;

	struct reload reload;
	bool reload_wanted;
	int  signals;                 /* SIGTERM or SIGINT so far: 1 drains, 2 stops now */
	bool draining;
	uint64_t drain_until;
	uint64_t steps_seen;          /* batches already in the stats page */
	struct idle idle;
	struct io_watch done;         /* an eventfd, by which a device says that a batch is */
	struct io_timer watchdog, report, minute, pulse;
	struct { uint64_t progress, device, seconds; bool told; } silent; /* since the device's last progress */
	bool hangs;                   /* the device is presumed hung: a call into it may never return */
	uint64_t minute_at;           /* when the next minute is marked in the stats page */
	struct empty empty;
	struct { uint64_t at, empty_ns; } counted; /* by the last turn, not all of it in the page yet */
	uint64_t watchdog_ns, alive_at_watchdog;
	struct { uint64_t at, prompt, generated, queries, hits, preempted; bool active; } last;

	struct { struct load *load; uint64_t total, next_ns; bool bar; int percent, shown; } loading;
	char err[1024];
};

/* ---- start ------------------------------------------------------------------------------- */

static int fail(struct daemon *d, const char *what)
{
	log_error("%s%s%s", what, *what ? ": " : "", d->err);
	notify_sendf("STATUS=%s", d->err);
	return -1;
}

/* A bar on a terminal, a line every two seconds elsewhere. */
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
	d->st->alive_ns = now;
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
		d->reload_wanted = true;
		return;
	}
	d->signals++;
	if (d->loading.load)
		load_stop(d->loading.load);
}

/* One daemon per run directory; the lock goes with the process. */
static int take_run_dir(struct daemon *d)
{
	char path[4200];

	if (config_run_dir(d->cfg.instance, d->run_dir, sizeof(d->run_dir)) < 0) {
		snprintf(d->err, sizeof(d->err), "--instance %s: not a usable name (letters, digits, - _ .)",
		         d->cfg.instance);
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
	if (config_socket(&d->cfg, d->socket, sizeof(d->socket)) < 0) {
		snprintf(d->err, sizeof(d->err), "the socket's path is too long");
		return fail(d, "cannot start");
	}
	return stats_create(&d->st, d->run_dir, d->err, sizeof(d->err)) < 0 ? fail(d, "cannot start") : 0;
}

static void on_done(struct io_watch *w, uint32_t events)
{
	uint64_t n;

	(void)events;
	if (read(w->fd, &n, sizeof(n)) < 0)
		return;                       /* the next turn asks the device anyway */
}

/* How this thread waits, and with that, who computes. */
static int choose_mode(struct daemon *d)
{
	cpu_set_t set;
	struct idle_place p = {
		.device = d->ops->name, .workable = d->ops->work != NULL,
		.threads = d->cfg.device == DEVICE_NULL ? 0 : d->plan.limits.threads,
		.cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1,
	};

	if (idle_choose(&d->idle, d->cfg.run_mode, &p, d->err, sizeof(d->err)) < 0)
		return -EINVAL;
	log_info("Run mode %s", d->err);
	d->plan.limits.worked = d->idle.mode == RUN_INLINE;
	if (d->plan.limits.worked || !d->ops->arm)
		return 0;
	d->done = (struct io_watch){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .events = IO_IN,
	                             .fn = on_done };
	if (d->done.fd >= 0 && io_watch_add(d->io, &d->done) == 0)
		return 0;
	snprintf(d->err, sizeof(d->err), "no eventfd for the device: %s", strerror(errno));
	return -errno;
}

/* SIGTERM before there is anything to drain. */
static bool asked_to_stop(struct daemon *d)
{
	io_poll(d->io);
	if (!d->signals)
		return false;
	notify_send("STOPPING=1\nSTATUS=Stopped while loading");
	log_info("Asked to stop while loading: %d %% of the weights were read", d->loading.percent);
	return true;
}

/* -ECANCELED: we were asked to stop. */
static int open_backend(struct daemon *d)
{
	static const char *const name[] = { [DEVICE_AUTO] = NULL, [DEVICE_CPU] = "cpu",
		[DEVICE_CUDA] = "cuda", [DEVICE_NULL] = "null" };
	bool dummy;
	int r;

	d->ops = sr_backend_find(name[d->cfg.device], d->err, sizeof(d->err));
	if (!d->ops)
		return fail(d, "--device");
	if (d->cfg.device == DEVICE_NULL)
		sr_null_pace(d->cfg.null_step_us, d->cfg.null_token_us);
	dummy = strcmp(d->cfg.load_format, "dummy") == 0;
	if ((dummy ? model_open_dummy : model_open)(&d->model, d->where.path, d->err, sizeof(d->err)) < 0)
		return fail(d, "cannot open the model");
	if (plan_make(&d->plan, &d->cfg, d->model, d->ops, d->err, sizeof(d->err)) < 0)
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
	if (load_create(&d->loading.load, d->io, d->model->file, d->model->n_files, on_loaded, d, d->err,
	                sizeof(d->err)) < 0)
		return fail(d, "cannot load the model");
	r = d->ops->open(&d->b, &d->model->m, load_source(d->loading.load), &d->plan.limits, d->err,
	                 sizeof(d->err));
	if (r < 0 && *load_error(d->loading.load)) /* it names file, offset and reason */
		snprintf(d->err, sizeof(d->err), "%s", load_error(d->loading.load));
	load_destroy(d->loading.load);
	d->loading.load = NULL;
	if (asked_to_stop(d))
		return -ECANCELED;
	return r < 0 ? fail(d, "cannot load the model") : 0;
}

/* A socket that nobody listens on any more is replaced; whatever else is there is not ours: the lock is
 * of the run directory, and --socket may be anywhere. */
static int clear_stale(struct daemon *d, const struct sockaddr_un *a)
{
	struct stat st;
	int fd, e;

	if (lstat(a->sun_path, &st) < 0)
		return 0;                     /* or bind says why not */
	if (!S_ISSOCK(st.st_mode)) {
		snprintf(d->err, sizeof(d->err), "%s: it exists and is no socket", a->sun_path);
		return -EEXIST;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	e = fd < 0 || connect(fd, (const struct sockaddr *)a, sizeof(*a)) < 0 ? errno : 0;
	if (fd >= 0)
		close(fd);
	if (e == ENOENT)
		return 0;                     /* its server has just taken it away */
	if (e == ECONNREFUSED) {
		unlink(a->sun_path);
		return 0;
	}
	if (e == 0 || e == EAGAIN || e == EPROTOTYPE) /* its line may be full, or it speaks otherwise */
		snprintf(d->err, sizeof(d->err), "%s: another server listens there; stop it, or give this one "
		         "another --socket", a->sun_path);
	else if (e == EACCES)                 /* so it cannot be seen whether anybody listens */
		snprintf(d->err, sizeof(d->err), "%s: a socket of uid %u that we may not connect to; if no server "
		         "uses it, remove it, else give another --socket", a->sun_path, (unsigned)st.st_uid);
	else
		snprintf(d->err, sizeof(d->err), "%s: %s", a->sun_path, strerror(e));
	return -EADDRINUSE;
}

static int listen_at(struct daemon *d)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct stat st;
	int fd = notify_socket("slipring");
	mode_t mask;

	if (fd >= 0)
		return fd;
	if (strlen(d->socket) >= sizeof(a.sun_path)) {
		snprintf(d->err, sizeof(d->err), "%.200s: longer than the %zu bytes a socket's path may have; "
		         "give a shorter --socket", d->socket, sizeof(a.sun_path) - 1);
		return fail(d, "cannot listen");
	}
	strcpy(a.sun_path, d->socket);
	if (clear_stale(d, &a) < 0)
		return fail(d, "cannot listen");
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mask = umask(0117);                   /* srw-rw---- from the first moment */
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 128) < 0) {
		snprintf(d->err, sizeof(d->err), "%s: %s", a.sun_path, strerror(errno));
		umask(mask);
		if (fd >= 0)
			close(fd);
		return fail(d, "cannot listen");
	}
	umask(mask);
	if (lstat(a.sun_path, &st) == 0) {
		d->bound.dev = st.st_dev;
		d->bound.ino = st.st_ino;
	}
	if (d->cfg.socket_group) {
		struct group *g = getgrnam(d->cfg.socket_group);

		if (!g || chown(d->socket, (uid_t)-1, g->gr_gid) < 0) {
			snprintf(d->err, sizeof(d->err), "--socket-group %s: %s", d->cfg.socket_group,
			         g ? strerror(errno) : "no such group");
			close(fd);
			return fail(d, "cannot listen");
		}
	}
	return fd;
}

static int make_clients(struct daemon *d, int listen_fd)
{
	struct clients_config c = {
		.max = d->cfg.max_clients, .max_per_uid = d->cfg.max_clients,
		.live = 1u << 13, .tokens = 1u << 16, .arena = 16u << 20, .take = 64,
		.gateway = (uid_t)-1,
		.scope_global = d->cfg.prefix_cache_scope == SCOPE_GLOBAL,
		.scope_tenant = d->cfg.prefix_cache_scope == SCOPE_TENANT,
		.vocab = d->model->m.V, .context = d->plan.context,
		.eos = d->model->eos, .n_eos = d->model->n_eos,
		.works = d->idle.mode == RUN_INLINE,
		.stranger_bytes = (size_t)sysconf(_SC_PHYS_PAGES) / 16 * (size_t)sysconf(_SC_PAGESIZE),
		.stall_ns = 10 * SECOND, .recorder = &d->recorder, .stats = d->st,
	};
	struct passwd *pw;

	if (d->cfg.gateway_user) {
		if (!(pw = getpwnam(d->cfg.gateway_user))) {
			snprintf(d->err, sizeof(d->err), "--gateway-user %s: no such user", d->cfg.gateway_user);
			close(listen_fd);
			return fail(d, "cannot start");
		}
		c.gateway = pw->pw_uid;
	}
	snprintf(c.model_name, sizeof(c.model_name), "%.63s",
	         d->cfg.n_served_names ? d->cfg.served_name[0] : d->where.name);
	if (locate_vocab_hash(&d->where, c.vocab_hash, d->err, sizeof(d->err)) < 0) {
		close(listen_fd);
		return fail(d, "cannot open the model");
	}
	if (clients_create(&d->cl, &c, d->io, listen_fd) < 0) {
		snprintf(d->err, sizeof(d->err), "no memory for %d clients", c.max);
		return fail(d, "cannot start");
	}
	return 0;
}

static int make_scheduler(struct daemon *d)
{
	const struct sr_limits *l = &d->plan.limits;
	struct kv_config k = { .n_blocks = l->n_blocks, .n_host = l->n_host_blocks,
		.block_tokens = l->block_tokens, .copies = l->copies, .n_owners = TENANTS };
	struct sched_config c = {
		.limits = *l, .vocab = d->model->m.V, .context = d->plan.context, .tenants = TENANTS,
		.tops_here = CLIENTS_TOPS_HERE, .tops_per_record = CLIENTS_TOPS_PER,
		.knobs = {
			.max_seqs = d->plan.max_seqs, .batch_tokens = d->plan.batch_tokens,
			.chunk_max = d->cfg.long_prefill_token_threshold > 0 ?
				(int32_t)d->cfg.long_prefill_token_threshold : l->tokens,
			.queue_requests = (int32_t)d->cfg.max_num_queued_reqs,
			.queue_tokens = d->cfg.max_num_queued_tokens,
			.first_chunk = !d->cfg.scheduler_reserve_full_isl,
			.copies = l->copies, .quantum = 512,
			.no_prefix_cache = !d->cfg.enable_prefix_caching,
			.fcfs = strcmp(d->cfg.scheduling_policy, "priority") != 0,
			.step_ns = (uint32_t)(d->cfg.step_target_ms < 4000 ? d->cfg.step_target_ms * 1e6 : 4e9),
		},
	};
	/* Slow devices: one that we work for. */
	uint32_t step_default_ns = d->ops->work ? 50 * MS : 5 * MS;
	struct control_config cc = { .run_dir = d->run_dir, .group = d->cfg.operator_group,
	                             .step_default_ns = step_default_ns, .recorder = &d->recorder,
	                             .stats = d->st };
	struct sched_port port;

	if (!c.knobs.step_ns)
		c.knobs.step_ns = step_default_ns;
	if (c.knobs.queue_tokens < d->plan.context)
		c.knobs.queue_tokens = d->plan.context;
	/* sched.h: (1 + ln slots) times the ids of all blocks; below 8 for 1,024 slots. */
	c.text_tokens = c.knobs.queue_tokens + 8 * (int64_t)l->n_blocks * l->block_tokens;
	if (getrandom(k.key, sizeof(k.key), 0) != sizeof(k.key)) {
		snprintf(d->err, sizeof(d->err), "no random bytes: %s", strerror(errno));
		return fail(d, "cannot start");
	}
	clients_port(d->cl, &port);
	if (kv_create(&d->kv, &k) < 0 || sched_create(&d->s, &c, d->kv, d->ops, d->b, &port) < 0) {
		snprintf(d->err, sizeof(d->err), "no memory for %d blocks and %lld queued tokens", l->n_blocks,
		         (long long)c.knobs.queue_tokens);
		return fail(d, "cannot start");
	}
	clients_attach(d->cl, d->s);
	cc.knobs = c.knobs;
	cc.seqs_most = l->slots;
	cc.tokens_most = l->tokens;
	if (control_create(&d->control, &cc, d->io, d->s, d->err, sizeof(d->err)) < 0)
		return fail(d, "cannot start");
	d->reload.control = d->control;
	d->reload.seqs = c.knobs.max_seqs;
	d->reload.tokens = c.knobs.batch_tokens;
	return 0;
}

static void describe(struct daemon *d)
{
	struct stats_page *st = d->st;
	const struct sr_limits *l = &d->plan.limits;
	char path[PATH_MAX];
	static const char *const kv_type[] = { "bfloat16", "float16", "fp8", "int8" };

	snprintf(st->model, sizeof(st->model), "%s",
	         d->cfg.n_served_names ? d->cfg.served_name[0] : d->where.name);
	snprintf(st->device, sizeof(st->device), "%s", d->ops->name);
	snprintf(st->kv_dtype, sizeof(st->kv_dtype), "%s", kv_type[l->kv_type & 3]);
	st->block_tokens = (uint64_t)l->block_tokens;
	st->n_blocks = (uint64_t)l->n_blocks;
	st->n_host_blocks = (uint64_t)l->n_host_blocks;
	st->max_model_len = (uint64_t)d->plan.context;
	st->weights_bytes = (uint64_t)d->plan.need.weights;
	st->kv_bytes = (uint64_t)d->plan.kv_bytes;
	st->gpu_memory_utilization = d->cfg.gpu_memory_utilization;
	st->prefix_caching = d->cfg.enable_prefix_caching;
	if (d->cfg.config_file && realpath(d->cfg.config_file, path))
		snprintf(st->config_file, sizeof(st->config_file), "%.1023s", path);
}

/* ---- timers ------------------------------------------------------------------------------ */

/* Each second while something flies: has the device computed anything?  Seconds in which we ourselves were
 * stopped are not counted, for then this is called once.  Where we compute, a device that hangs stops this
 * loop, and the service manager's watchdog ends it. */
static void on_pulse(struct io_timer *t)
{
	struct daemon *d = t->ctx;
	uint64_t device = d->ops->progress ? d->ops->progress(d->b) : 0;
	uint64_t usual = SILENT_TIMES * sched_takes(d->s) / SECOND, most = usual > SILENT_S ? usual : SILENT_S;

	if (d->idle.mode != RUN_INLINE)       /* there, turn_inside counts */
		d->st->progress += device - d->silent.device;
	if (sched_flying(d->s) < 0 || d->st->progress != d->silent.progress) {
		if (d->silent.told)
			log_info("The device goes on");
		d->silent.seconds = d->silent.told = 0;
	} else if (++d->silent.seconds >= most) {
		log_error("The device has computed nothing for %llu s", (unsigned long long)d->silent.seconds);
		d->hangs = true;
	} else if (!d->silent.told && d->silent.seconds >= most / 4) {
		log_warn("The device has computed nothing for %llu s, where %.3f s are usual for such a batch; after "
		         "%llu s it counts as lost", (unsigned long long)d->silent.seconds,
		         (double)sched_takes(d->s) / 1e9, (unsigned long long)most);
		d->silent.told = true;
	}
	d->silent.device = device;
	d->silent.progress = d->st->progress;
	if (sched_flying(d->s) >= 0)
		io_timer_set(d->io, t, io_now() + SECOND);
}

/* The watchdog is fed by turns of the loop, or layers where it computes; while the device may yet go on. */
static void on_watchdog(struct io_timer *t)
{
	struct daemon *d = t->ctx;

	if (d->st->alive_ns != d->alive_at_watchdog && !d->hangs)
		notify_send("WATCHDOG=1");
	d->alive_at_watchdog = d->st->alive_ns;
	io_timer_set(d->io, t, io_now() + d->watchdog_ns);
}

_Static_assert(N_WHY <= STATS_AXIS && N_BOUND <= STATS_AXIS && N_KNOBS <= STATS_KNOBS, "room in the page");

/* Publish both axes together, so that readers see them add up; time that is not attributed yet is held
 * back.  A new stretch of `empty` begins a window if the last one ended long ago. */
static void show_axes(struct daemon *d, const struct sched_stats *s, bool at_once)
{
	bool pending = empty_pending(&d->empty);
	struct stats_page *st = d->st;
	uint64_t now = d->counted.at;

	if (pending || s->why == WHY_EMPTY) {
		bool due = empty_due(&d->empty, now, (int32_t)st->clients);

		if (due || (pending && at_once)) {
			uint64_t then = io_now(); /* not before a clock that we see started */

			clients_doing(d->cl, &d->empty, then);
			empty_split(&d->empty, then, st->empty_ns);
		} else if (pending) {
			return;
		}
	}
	for (int i = 0; i < N_WHY; i++)
		st->why_ns[i] = s->why_ns[i];
	for (int i = 0; i < N_BOUND; i++)
		st->bound_ns[i] = s->bound_ns[i];
	st->accounted_ns = now;
}

static void counters(struct daemon *d, uint64_t now)
{
	struct sched_stats s;
	struct kv_stats k;
	struct clients_stats c;
	struct stats_page *st = d->st;

	if (d->counted.at) {                  /* as it was until this step */
		st->running_ns += st->running * (now - d->counted.at);
		st->waiting_ns += st->waiting * (now - d->counted.at);
	}
	sched_stats(d->s, &s);
	empty_add(&d->empty, st->running ? EMPTY_SERVED : st->clients ? EMPTY_SILENT : EMPTY_NOBODY,
	          s.why_ns[WHY_EMPTY] - d->counted.empty_ns);
	d->counted.at = now;
	d->counted.empty_ns = s.why_ns[WHY_EMPTY];
	show_axes(d, &s, now >= d->minute_at);
	kv_stats(d->kv, &k);
	clients_stats(d->cl, &c);
	st->running = (uint64_t)s.running;
	st->waiting = (uint64_t)s.waiting;
	st->blocks_used = (uint64_t)k.n_held;
	if ((uint32_t)k.n_held > st->blocks_peak)
		st->blocks_peak = (uint32_t)k.n_held;
	st->clients = (uint64_t)c.connected;
	st->preemptions = s.preemptions;
	st->prefix_queries = s.prefix_queries;
	st->held = s.held;
	st->prefix_hits = s.prefix_hits;
	st->prompt_computed = s.prompt_computed;
	st->refused = c.refused;
	st->invalid = c.invalid;
	st->died = c.died;
	st->accepted = c.accepted;
	st->rows = s.rows;
	st->step_tokens = s.tokens;
	st->int8_ops = s.int8_ops;
	st->float_ops = s.float_ops;
	st->bytes_moved = s.bytes;
	st->bytes_copied = s.copied;
	if (s.steps != d->steps_seen) {
		st->step[st->n_step++ % STATS_STEPS] = (struct stats_step){
			.begin_ns = s.last.begin_ns, .rows = (uint32_t)s.last.rows,
			.tokens = (uint32_t)s.last.tokens, .host_ns = s.last.host_ns,
			.device_ns = s.last.device_ns, .why = s.last.why, .bound = s.last.bound };
		stats_observe(st, HIST_STEP_TOKENS, s.last.tokens);
		st->steps = s.steps;
		st->progress += s.steps - d->steps_seen;
		d->steps_seen = s.steps;
	}
	if (!st->ready_ns)
		st->ready_ns = now;           /* the first step: both axes begin */
	if (now >= d->minute_at) {
		stats_minute(st);
		d->minute_at = now + MINUTE;
		io_timer_set(d->io, &d->minute, d->minute_at);
	}
}

/* Only so that an idle loop turns: counters() does it, when the sleep is accounted for. */
static void on_minute(struct io_timer *t) { (void)t; }

/* vLLM's line, every ten seconds in which anything happened, and once after. */
static void on_report(struct io_timer *t)
{
	struct daemon *d = t->ctx;
	const struct stats_page *st = d->st;
	uint64_t now = io_now(), queries = st->prefix_queries - d->last.queries;
	double seconds = (double)(now - d->last.at) / 1e9;
	bool active = st->prompt_tokens != d->last.prompt || st->generation_tokens != d->last.generated ||
	              st->running || st->waiting;
	char preempted[40] = "";

	if (st->preemptions != d->last.preempted)
		snprintf(preempted, sizeof(preempted), "Preemptions: %llu, ", (unsigned long long)st->preemptions);
	if (active || d->last.active)
		log_info("Engine 000: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f "
		         "tokens/s, Running: %llu reqs, Waiting: %llu reqs, %sGPU KV cache usage: %.1f%%, "
		         "Prefix cache hit rate: %.1f%%",
		         (double)(st->prompt_tokens - d->last.prompt) / seconds,
		         (double)(st->generation_tokens - d->last.generated) / seconds,
		         (unsigned long long)st->running, (unsigned long long)st->waiting, preempted,
		         st->n_blocks ? 100.0 * (double)st->blocks_used / (double)st->n_blocks : 0.0,
		         queries ? 100.0 * (double)(st->prefix_hits - d->last.hits) / (double)queries : 0.0);
	d->last.at = now;
	d->last.prompt = st->prompt_tokens;
	d->last.generated = st->generation_tokens;
	d->last.queries = st->prefix_queries;
	d->last.hits = st->prefix_hits;
	d->last.preempted = st->preemptions;
	d->last.active = active;
	io_timer_set(d->io, t, now + 10 * SECOND);
}

static void start_timers(struct daemon *d)
{
	uint64_t now = io_now();

	d->watchdog = (struct io_timer){ .fn = on_watchdog, .ctx = d };
	d->watchdog_ns = notify_watchdog_ns();
	if (d->watchdog_ns)
		io_timer_set(d->io, &d->watchdog, now + d->watchdog_ns);
	d->minute = (struct io_timer){ .fn = on_minute, .ctx = d };
	d->pulse = (struct io_timer){ .fn = on_pulse, .ctx = d };
	d->report = (struct io_timer){ .fn = on_report, .ctx = d };
	d->last.at = now;
	if (!d->cfg.disable_log_stats)
		io_timer_set(d->io, &d->report, now + 10 * SECOND);
}

/* ---- the loop ---------------------------------------------------------------------------- */

static void ready(const struct daemon *d)
{
	notify_sendf("READY=1\nSTATUS=Serving %s on %s", d->st->model, d->ops->name);
}

/* SIGTERM: nobody new; what runs may finish until the limit; the second one ends it now. */
static bool drained(struct daemon *d, uint64_t now)
{
	if (!d->signals)
		return false;
	if (!d->draining) {
		d->draining = true;
		d->drain_until = now + (uint64_t)(d->cfg.shutdown_timeout * 1e9);
		snprintf(d->st->state, sizeof(d->st->state), "draining");
		notify_send("STOPPING=1\nSTATUS=Draining");
		log_info("Draining: %llu running, %llu waiting, at most %.0f s",
		         (unsigned long long)d->st->running, (unsigned long long)d->st->waiting,
		         d->cfg.shutdown_timeout);
		clients_drain(d->cl);
	}
	if (sched_busy(d->s) && d->signals < 2 && now < d->drain_until)
		return false;
	if (d->idle.mode != RUN_INLINE && sched_flying(d->s) >= 0)
		d->hangs = true;              /* cut off; to close the device would be to wait for its batch */
	return true;
}

/* SIGHUP. */
static void reread(struct daemon *d)
{
	const struct config *c = &d->reload.seen;

	d->reload_wanted = false;
	if (d->draining)
		return;
	notify_reloading();
	if (reload_now(&d->reload, d->err, sizeof(d->err)) < 0)
		log_error("SIGHUP: the old settings stay: %s", d->err);
	d->cfg.shutdown_timeout = c->shutdown_timeout;
	log_level_by_name(c->log_level);
	io_timer_del(d->io, &d->report);
	if (!c->disable_log_stats)
		io_timer_set(d->io, &d->report, d->last.at + 10 * SECOND);
	ready(d);
}

/* What the back end calls between layers: deaths, cancels, admissions; and proof of life. */
static void turn_inside(void *ctx)
{
	struct daemon *d = ctx;
	uint64_t now = io_now();

	d->st->alive_ns = now;
	d->st->progress++;
	io_poll(d->io);
	if (clients_take(d->cl, now))
		clients_flush(d->cl);
	clients_chores(d->cl);
}

/* Until when may it sleep?  0: until a client, the device or a timer wakes it. */
static uint64_t sleep_until(struct daemon *d, int32_t flying, uint64_t now)
{
	if (flying >= 0 && (!d->ops->arm || d->ops->arm(d->b, flying, d->done.fd) < 0))
		return now + d->idle.nap_ns;
	if (d->draining || (flying < 0 && sched_busy(d->s)))
		return now + NAP_NS;
	return d->st->clients ? now + SECOND : 0; /* what they do meanwhile is to be seen in the page */
}

/* Nothing moved: look a little longer, then ask everybody for a signal, look once more, sleep. */
static void idle(struct daemon *d, uint64_t now)
{
	int32_t flying = sched_flying(d->s);
	struct sched_stats s;

	if (!idle_enough(&d->idle, now, flying >= 0)) {
		for (int i = 0; i < 16; i++)
			__builtin_ia32_pause();
		return;
	}
	if (clients_arm(d->cl)) {
		if (flying < 0) {             /* the page is right while we sleep, and a window begins */
			sched_stats(d->s, &s);
			show_axes(d, &s, true);
		}
		d->st->syscalls_sleep++;
		io_sleep(d->io, sleep_until(d, flying, now));
	}
	clients_awake(d->cl);
}

static int loop(struct daemon *d)
{
	for (;;) {
		uint64_t now = io_now();
		int work = io_poll(d->io), r;

		if (!d->hangs && drained(d, now))
			return 0;
		if (d->reload_wanted)
			reread(d);
		work += clients_take(d->cl, now);
		r = d->hangs ? sched_lose(d->s) : sched_step(d->s, now);
		counters(d, now);                 /* who has its end finds it counted */
		clients_flush(d->cl);             /* tokens leave before the next batch is computed */
		work += clients_chores(d->cl);
		d->st->alive_ns = now;
		if (!d->pulse.index && sched_flying(d->s) >= 0)
			io_timer_set(d->io, &d->pulse, now + SECOND);
		if (r < 0) {
			log_error("The device is lost (%s). Every request was ended; exiting with %d so that "
			          "the service manager starts anew.", strerror(-r), EXIT_DEVICE_LOST);
			return EXIT_DEVICE_LOST;
		}
		work += r;
		d->st->busy_since_ns = !sched_busy(d->s) ? 0 : d->st->busy_since_ns ? d->st->busy_since_ns : now;
		if (d->idle.mode == RUN_INLINE)
			d->ops->work(d->b, turn_inside, d);
		if (work) {
			d->idle.since = 0;
			now = io_now() - now;
			if (now > d->st->cycle_max_ns)
				d->st->cycle_max_ns = now;
		} else {
			idle(d, now);
		}
	}
}

static void stop(struct daemon *d)
{
	struct stat st;

	if (d->cl)
		clients_destroy(d->cl);           /* forgets everybody: the scheduler is empty after it */
	control_destroy(d->control);
	sched_destroy(d->s);
	kv_destroy(d->kv);
	if (!d->hangs) {                      /* else it may still be reading */
		if (d->b)
			d->ops->close(d->b);
		model_close(d->model);
	}
	stats_destroy(d->st, d->run_dir);
	io_destroy(d->io);
	reload_destroy(&d->reload);
	if (d->done.fd >= 0)
		close(d->done.fd);
	if (d->bound.ino && lstat(d->socket, &st) == 0 && st.st_dev == d->bound.dev && st.st_ino == d->bound.ino)
		unlink(d->socket);            /* another's would not be ours */
	config_free(&d->cfg);
}

static void raise_limits(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;          /* three descriptors a connection */
		setrlimit(RLIMIT_NOFILE, &r);
	}
}

/* -ECANCELED: we were asked to stop meanwhile; -1: it cannot be, and why not was said. */
static int start(struct daemon *d)
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
	snprintf(d->st->state, sizeof(d->st->state), "loading");
	d->st->alive_ns = io_now();
	if (io_create(&d->io, 0) < 0 || io_signals(d->io, &m, on_signal, d) < 0) {
		snprintf(d->err, sizeof(d->err), "neither io_uring nor epoll can be used: %s", strerror(errno));
		return fail(d, "cannot start");
	}
	if ((r = open_backend(d)) < 0)
		return r;
	if ((fd = listen_at(d)) < 0 || make_clients(d, fd) < 0 || make_scheduler(d) < 0)
		return -1;
	describe(d);
	start_timers(d);
	return 0;
}

int main(int argc, char **argv)
{
	static struct daemon d = { .lock_fd = -1, .done.fd = -1 };
	uint64_t began = io_now();
	int r;

	log_open("slipringd");
	r = config_parse(&d.cfg, argc, argv, FOR_DAEMON, d.err, sizeof(d.err));
	if (r)
		return r > 0 ? 0 : (fail(&d, ""), 1);
	log_level_by_name(d.cfg.log_level);
	d.reload = (struct reload){ .argc = argc, .argv = argv };
	reload_create(&d.reload, &d.cfg);
	r = start(&d);
	if (r < 0) {
		r = r != -ECANCELED;
	} else {
		snprintf(d.st->state, sizeof(d.st->state), "ready");
		log_info("Ready after %.2f s: %s on %s, %s, socket %s", (double)(io_now() - began) / 1e9,
		         d.st->model, d.ops->name, io_kind(d.io), d.socket);
		ready(&d);
		r = loop(&d);
	}
	stop(&d);
	if (d.hangs)
		_exit(r);                         /* what its libraries do at exit may wait for it, too */
	return r;
}
