/* rank.c - see rank.h. */
#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/instance/io.h"
#include "core/instance/log.h"
#include "core/instance/refuse.h"
#include "core/models/load.h"
#include "core/models/model.h"
#include "kernels/null/null.h"
#include "kernels/ranks/ranks.h"

#define NAME "slipring-rank"

/* The words of a rank's command line, in this order. */
enum { WHO, RANK, MEMORY, BELL, DEVICE_NAME, MODEL, DUMMY, CONTEXT, STEP_US, TOKEN_US, N_WORDS };

/* ---- the daemon's side ---------------------------------------------------------------------------- */

static const struct rank_task *task;

/* Between fork and exec only system calls: other threads of the daemon may hold locks. */
static int spawn(void *ctx, int32_t rank, int memory, int bell)
{
	char word[N_WORDS][32];
	char *argv[N_WORDS + 1] = { [WHO] = (char *)NAME, [DEVICE_NAME] = (char *)task->device, [MODEL] = (char *)task->model };
	pid_t pid;

	(void)ctx;
	snprintf(word[RANK], sizeof(word[0]), "%d", rank);
	snprintf(word[MEMORY], sizeof(word[0]), "%d", memory);
	snprintf(word[BELL], sizeof(word[0]), "%d", bell);
	snprintf(word[DUMMY], sizeof(word[0]), "%d", task->dummy);
	snprintf(word[CONTEXT], sizeof(word[0]), "%d", task->context);
	snprintf(word[STEP_US], sizeof(word[0]), "%.9g", task->step_us);
	snprintf(word[TOKEN_US], sizeof(word[0]), "%.9g", task->token_us);
	for (int i = 0; i < N_WORDS; i++)
		argv[i] = argv[i] ? argv[i] : word[i];
	pid = fork();
	if (pid)
		return pid < 0 ? -errno : pid;
	if (fcntl(memory, F_SETFD, 0) == 0 && fcntl(bell, F_SETFD, 0) == 0)
		execv("/proc/self/exe", argv);
	_exit(127);
}

static void say(void *ctx, bool bad, const char *line)
{
	(void)ctx;
	log_line(bad ? LOG_ERROR : LOG_INFO, "%s", line);
}

const struct sr_backend_ops *rank_backend(const struct sr_backend_ops *ops, const struct rank_task *t)
{
	task = t;
	return ranks_over(&(struct ranks_setting){ .ops = ops, .spawn = spawn, .say = say, .loading = t->loading,
	                                           .ctx = t->ctx, .separate = strcmp(ops->name, "cuda") == 0 });
}

void rank_show(struct stats_page *st, const struct sr_backend *b)
{
	const struct ranks_view *v;
	int32_t n = ranks_look(b, &v);

	for (int32_t i = 0; i < n && i < STATS_RANKS; i++)
		st->rank[i] = (struct stats_rank){ .pid = (uint64_t)v[i].pid, .batches = v[i].done, .late_ns = v[i].late_ns };
	st->n_ranks = (uint64_t)n;
}

/* ---- a rank --------------------------------------------------------------------------------------- */

struct rank {
	const struct sr_backend_ops *ops;
	struct model *model;
	_Atomic uint64_t *loaded;
};

static void on_loaded(void *ctx, uint64_t bytes)
{
	*((struct rank *)ctx)->loaded = bytes;
}

static int open_device(void *ctx, const struct sr_limits *lim, _Atomic uint64_t *loaded, struct sr_backend **out,
                       char *err, size_t errlen)
{
	struct rank *r = ctx;
	struct load *l = NULL;
	struct io *io = NULL;
	int e;

	r->loaded = loaded;
	if (io_create(&io, 0) < 0)
		return refuse(-EIO, err, errlen, "neither io_uring nor epoll can be used");
	e = load_create(&l, io, r->model->file, r->model->n_files, on_loaded, r, err, errlen);
	if (e == 0) {
		e = r->ops->open(out, &r->model->m, load_source(l), lim, err, errlen);
		if (e < 0 && *load_error(l))
			snprintf(err, errlen, "%s", load_error(l));
		load_destroy(l);
	}
	io_destroy(io);
	return e;
}

bool rank_called(int argc, char **argv)
{
	return argc == N_WORDS && strcmp(argv[WHO], NAME) == 0;
}

int rank_main(char **argv)
{
	struct rank r = { .ops = NULL };
	struct ranks_door door = { .open = open_device, .ctx = &r };
	int memory = atoi(argv[MEMORY]), bell = atoi(argv[BELL]), e;
	char err[512];

	log_open(NAME);
	prctl(PR_SET_NAME, NAME);
	fcntl(memory, F_SETFD, FD_CLOEXEC);
	fcntl(bell, F_SETFD, FD_CLOEXEC);
	door.ops = r.ops = sr_backend_find(argv[DEVICE_NAME], err, sizeof(err));
	e = r.ops ? (atoi(argv[DUMMY]) ? model_open_dummy : model_open)(&r.model, argv[MODEL], err, sizeof(err)) : -ENOENT;
	if (e < 0) {
		log_error("rank %s: %s", argv[RANK], err);
		return EXIT_FAILURE;
	}
	model_serve(r.model, atoi(argv[CONTEXT]));
	if (strcmp(r.ops->name, "null") == 0)
		sr_null_pace(strtod(argv[STEP_US], NULL), strtod(argv[TOKEN_US], NULL));
	return ranks_serve(&door, atoi(argv[RANK]), memory, bell);
}
