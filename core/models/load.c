/* load.c - reads weights from files into the buffers of a back end.  See load.h.
 *
 *	read()   takes a job.  A file in the page cache is copied at once (11-14 GB/s here, against 5
 *	         through a ring).  Other files are read with O_DIRECT by io.h, many reads at a time,
 *	         from the disk into the buffer, past the page cache.  Reads are submitted at once,
 *	         because the caller packs other buffers before it waits.
 *	wait()   returns done jobs; while there are none, it sleeps in the loop.
 *
 * O_DIRECT needs offset, address and length in whole blocks.  So a read begins up to a block early
 * and ends up to a block late, in a buffer that is `slack` longer than asked.  A short read
 * continues where it stopped.  A read of 0 bytes means that the file has shrunk.  Nothing is
 * mapped, so a file that changes during the load costs an error, never a signal.
 */
#include "load.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK   4096u              /* of O_DIRECT: offset, address, length */
#define JOBS    32
#define PIECE   (1u << 29)         /* most bytes of one io_read */
#define PROBES  64                 /* places of a file probed for the page cache */

struct weight_file { const char *path; int fd, direct; }; /* direct -1: buffered reads */

struct read_job {
	struct load *load;
	struct io_read read;
	const struct weight_file *file;
	uint64_t tag, n;               /* bytes requested */
	uint64_t start, got, want;     /* in the file: first byte; bytes read; bytes needed */
	char    *base;                 /* address of byte `start` */
	bool     busy, failed;
};

struct load {
	struct sr_source source;
	struct io *io;
	struct weight_file *file;
	int32_t  n_files;
	struct read_job job[JOBS];
	uint8_t  done[JOBS];           /* queue of done jobs */
	unsigned first_done, n_done, n_busy;
	bool     registered, stopped;
	uint64_t bytes;
	void   (*progress)(void *ctx, uint64_t bytes);
	void    *ctx;
	char     error[4096 + 200];
};

static void job_done(struct read_job *j)
{
	struct load *l = j->load;

	l->done[(l->first_done + l->n_done++) % JOBS] = (uint8_t)(j - l->job);
}

static void job_failed(struct read_job *j, int64_t result)
{
	if (!j->load->error[0])
		snprintf(j->load->error, sizeof(j->load->error), "%s: offset %" PRIu64 ": %s", j->file->path,
		         j->start + j->got, result < 0 ? strerror((int)-result)
		                                       : "the file ends here; it was longer when it was "
		                                       "opened");
	j->failed = true;
	job_done(j);
}

/* ---- the three ways ------------------------------------------------------------------------- */

static uint64_t noise(uint64_t i)         /* splitmix64 */
{
	i = (i + 1) * 0x9e3779b97f4a7c15u;
	i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
	i = (i ^ i >> 27) * 0x94d049bb133111ebu;
	return i ^ i >> 31;
}

/* Fill in bytes from .. from+n of a made-up file.  Random: sign, 2^-7 to 2^-5, 7 more bits. */
static void make_up(int32_t file, uint64_t from, char *to, uint64_t n)
{
	for (uint64_t at = from; at < from + n; ) {
		uint64_t word = 0x3f803f803f803f80u, skip = at % 8, part = 8 - skip;

		if (file == LOAD_RANDOM)
			word = (noise(at / 8) & 0x80ff80ff80ff80ffu) | 0x3c003c003c003c00u;
		if (part > from + n - at)
			part = from + n - at;
		memcpy(to + (at - from), (char *)&word + skip, part);
		at += part;
	}
}

static void read_buffered(struct read_job *j)
{
	while (j->got < j->want) {
		ssize_t r = pread(j->file->fd, j->base + j->got, j->want - j->got,
		                  (off_t)(j->start + j->got));

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0) {
			job_failed(j, r < 0 ? -errno : 0);
			return;
		}
		j->got += (uint64_t)r;
	}
	job_done(j);
}

static void start_direct(struct read_job *j);

static void on_read(struct io_read *r, int64_t result)
{
	struct read_job *j = r->ctx;

	if (result > 0)
		j->got += (uint64_t)result;
	if (j->got >= j->want)
		job_done(j);
	else if (result == -EINVAL || (result > 0 && result % BLOCK))
		read_buffered(j);          /* the file system needs other blocks, or its end is near */
	else if (result <= 0 && result != -EINTR && result != -EAGAIN)
		job_failed(j, result);
	else
		start_direct(j);
}

static void start_direct(struct read_job *j)
{
	uint64_t n = (j->want - j->got + BLOCK - 1) / BLOCK * BLOCK;

	j->read = (struct io_read){ .fd = j->file->direct, .offset = j->start + j->got,
	                            .buf = j->base + j->got,
	                            .n = n < PIECE ? n : PIECE, .fn = on_read, .ctx = j };
	if (io_read_start(j->load->io, &j->read) != 0)
		read_buffered(j);          /* other reads fill the loop */
}

/* ---- the source ----------------------------------------------------------------------------- */

static int source_read(void *ctx, const struct sr_extent *e, uint64_t from, size_t n, void *buf, uint64_t tag)
{
	struct load *l = ctx;
	struct read_job *j = l->job;
	uint64_t offset = e->offset + from, lead;

	assert(from <= e->bytes && n <= e->bytes - from && n > 0);
	assert(e->file >= LOAD_ONES && e->file < l->n_files);
	if (l->n_busy == JOBS)
		return -EAGAIN;
	while (j->busy)
		j++;
	*j = (struct read_job){ .load = l, .tag = tag, .n = n, .start = offset, .want = n, .base = buf,
	                        .busy = true };
	l->n_busy++;
	if (e->file < 0) {
		make_up(e->file, offset, buf, n);
		j->got = n;
		job_done(j);
		return 0;
	}
	j->file = &l->file[e->file];
	if (j->file->direct < 0) {
		read_buffered(j);
		return 0;
	}
	lead = offset % BLOCK;
	j->start -= lead;
	j->want += lead;
	j->base += (BLOCK - (uintptr_t)buf % BLOCK) % BLOCK;
	start_direct(j);
	io_poll(l->io);
	return 0;
}

static int source_wait(void *ctx, uint64_t *tag, void **at)
{
	struct load *l = ctx;
	struct read_job *j;
	int rc;

	assert(l->n_busy > 0);
	io_poll(l->io);                        /* handle signals even if no job must be waited for */
	while (l->n_done == 0 || ((l->stopped || l->error[0]) && l->n_done < l->n_busy))
		io_sleep(l->io, 0);            /* after an error the caller frees the buffers: end all reads */
	j = &l->job[l->done[l->first_done]];
	l->first_done = (l->first_done + 1) % JOBS;
	l->n_done--;
	l->n_busy--;
	j->busy = false;
	*tag = j->tag;
	*at = j->base + (j->want - j->n);      /* behind the start of its first block */
	rc = j->failed || l->stopped ? -EIO : 0;
	if (rc == 0)
		l->bytes += j->n;
	if (l->progress)
		l->progress(l->ctx, l->bytes);
	return rc;
}

static int source_arena(void *ctx, void *base, size_t bytes)
{
	struct load *l = ctx;
	struct iovec iov[16];
	unsigned n = 0;
	bool direct = false;

	for (int32_t i = 0; i < l->n_files; i++)
		direct |= l->file[i].direct >= 0;
	for (size_t at = 0; direct && at < bytes && n < 16; at += iov[n++].iov_len) {
		iov[n].iov_base = (char *)base + at;
		iov[n].iov_len = bytes - at < 1u << 30 ? bytes - at : 1u << 30;
	}
	l->registered = n && io_buffers(l->io, iov, n) == 0;   /* on failure, plain reads */
	return 0;
}

/* ---- create --------------------------------------------------------------------------------- */

/* Are nearly all of PROBES places in the page cache?  Then no disk reads are needed. */
static bool is_cached(int fd, uint64_t bytes)
{
	int here = 0;
	char c;

	for (uint64_t i = 0; i < PROBES; i++) {
		struct iovec iov = { &c, 1 };

		here += preadv2(fd, &iov, 1, (off_t)(bytes / PROBES * i), RWF_NOWAIT) == 1;
	}
	return here >= PROBES - PROBES / 16;
}

static int open_file(struct weight_file *f, const char *path, char *err, size_t errlen)
{
	struct stat st;
	int rc = 0;

	f->path = path;
	f->direct = -1;
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (f->fd < 0 || fstat(f->fd, &st) < 0)
		rc = -errno;
	else if (!S_ISREG(st.st_mode))
		rc = -EINVAL;
	if (rc)
		snprintf(err, errlen, "%s: %s", path, rc == -EINVAL ? "is no regular file" : strerror(-rc));
	else if (!is_cached(f->fd, (uint64_t)st.st_size))
		f->direct = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT); /* -1: not supported */
	return rc;
}

int load_create(struct load **out, struct io *io, char *const *file, int32_t n_files,
                void (*progress)(void *ctx, uint64_t bytes), void *ctx, char *err, size_t errlen)
{
	struct load *l = calloc(1, sizeof(*l));
	int rc = 0;

	*out = NULL;
	if (!l || !(l->file = calloc((size_t)n_files + 1, sizeof(*l->file)))) {
		free(l);
		snprintf(err, errlen, "no memory to read %d files of weights", n_files);
		return -ENOMEM;
	}
	l->io = io;
	l->progress = progress;
	l->ctx = ctx;
	l->source = (struct sr_source){ .ctx = l, .arena = source_arena, .read = source_read,
	                                .wait = source_wait };
	while (l->n_files < n_files && rc == 0) {
		rc = open_file(&l->file[l->n_files], file[l->n_files], err, errlen);
		if (l->file[l->n_files++].direct >= 0)
			l->source.slack = 3 * BLOCK;
	}
	if (rc)
		load_destroy(l);
	else
		*out = l;
	return rc;
}

const struct sr_source *load_source(struct load *l) { return &l->source; }

void load_stop(struct load *l) { l->stopped = true; }

const char *load_error(const struct load *l) { return l->error; }

void load_destroy(struct load *l)
{
	if (!l)
		return;
	while (l->n_busy > l->n_done)          /* a read under way writes into our structs */
		io_sleep(l->io, 0);
	if (l->registered)
		io_buffers(l->io, &(struct iovec){ 0 }, 0);
	for (int32_t i = 0; i < l->n_files; i++) {
		if (l->file[i].fd >= 0)
			close(l->file[i].fd);
		if (l->file[i].direct >= 0)
			close(l->file[i].direct);
	}
	free(l->file);
	free(l);
}
