/* store.c - the cache of downloaded files, as huggingface_hub lays it out.  See hub.h. */
#include "hub.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "core/instance/fresh.h"
#include "core/instance/refuse.h"
#include "core/models/locate.h"

#define TRIES 6 /* without a new byte: after 1, 2, 4, 8, 16 seconds */
#define PATH  4096

/* ---- paths ------------------------------------------------------------------------------------- */

/* Make the directories of a path, its last part too if `whole`. */
static int make_dirs(const char *path, bool whole, char *err, size_t errlen)
{
	char part[PATH];
	size_t n = strlen(path);

	for (size_t i = 1; i <= n; i++) {
		if (path[i] && path[i] != '/')
			continue;
		if (!path[i] && !whole)
			break;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, 0777) && errno != EEXIST)
			return refuse(-errno, err, errlen, "%s cannot be made: %s", part, strerror(errno));
	}
	return 0;
}

int store_open(struct store *s, const char *id, char *err, size_t errlen)
{
	char *name;

	if (!locate_repo(s->repo, sizeof(s->repo), id))
		return refuse(-ENOENT, err, errlen,
		              "neither HF_HUB_CACHE, HF_HOME nor HOME says where to keep models, or the "
		              "path is too long");
	name = strrchr(s->repo, '/');
	snprintf(s->locks, sizeof(s->locks), "%.*s/.locks%s", (int)(name - s->repo), s->repo, name);
	return 0;
}

static void blob_path(const struct store *s, const struct hub_file *f, const char *end, char out[PATH])
{
	snprintf(out, PATH, "%s/blobs/%s%s", s->repo, f->etag, end);
}

static int64_t size_of_file(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? st.st_size : -1;
}

bool store_has(const struct store *s, const struct hub_file *f)
{
	char path[PATH];

	blob_path(s, f, "", path);
	return size_of_file(path) == f->bytes;
}

int64_t store_partial(const struct store *s, const struct hub_file *f)
{
	char path[PATH];
	int64_t n;

	blob_path(s, f, ".incomplete", path);
	n = size_of_file(path);
	return n > 0 && n <= f->bytes ? n : 0;
}

int64_t store_room(const struct store *s)
{
	struct statvfs v;
	char path[2048];

	/* The nearest directory that exists. */
	snprintf(path, sizeof(path), "%s", s->repo);
	while (statvfs(path, &v)) {
		char *slash = strrchr(path, '/');

		if (errno != ENOENT || !slash || slash == path)
			return -1;
		*slash = 0;
	}
	return (int64_t)v.f_bavail * (int64_t)v.f_frsize;
}

/* ---- a file that comes --------------------------------------------------------------------------- */

struct coming {
	const struct store *s;
	const struct hub_file *f;
	EVP_MD_CTX *md;
	char path[PATH]; /* of the .incomplete */
	int fd;
	int64_t have; /* bytes there, all hashed */
	char *err;
	size_t errlen;
};

/* git names a blob by the hash of a line with its size, and of its bytes. */
static bool hash_begin(struct coming *c)
{
	char line[40];
	int n = snprintf(line, sizeof(line), "blob %" PRId64, c->f->bytes);

	return EVP_DigestInit_ex(c->md, c->f->large ? EVP_sha256() : EVP_sha1(), NULL) == 1 &&
	       (c->f->large || EVP_DigestUpdate(c->md, line, (size_t)n + 1) == 1);
}

static int restart(void *ctx)
{
	struct coming *c = ctx;

	if (ftruncate(c->fd, 0) || lseek(c->fd, 0, SEEK_SET) || !hash_begin(c))
		return refuse(-EIO, c->err, c->errlen, "%s cannot be begun again: %s", c->path, strerror(errno));
	if (c->s->more)
		c->s->more(c->s->ctx, -c->have);
	c->have = 0;
	return 0;
}

static int bytes_came(void *ctx, const void *data, size_t n)
{
	struct coming *c = ctx;
	const char *at = data;

	for (size_t left = n; left;) {
		ssize_t w = write(c->fd, at, left);

		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0 && (errno == ENOSPC || errno == EDQUOT))
			return refuse(-errno, c->err, c->errlen,
			              "%s: the disk is full; %" PRId64 " more bytes of this file are to "
			              "come, what is there is kept",
			              c->path, c->f->bytes - c->have - (int64_t)(n - left));
		if (w < 0)
			return refuse(-errno, c->err, c->errlen, "%s cannot be written: %s", c->path, strerror(errno));
		at += w;
		left -= (size_t)w;
	}
	if (EVP_DigestUpdate(c->md, data, n) != 1)
		return refuse(-EIO, c->err, c->errlen, "OpenSSL cannot hash %s", c->path);
	c->have += (int64_t)n;
	if (c->s->more)
		c->s->more(c->s->ctx, (int64_t)n);
	return 0;
}

/* Hash what an earlier download left. */
static int read_partial(struct coming *c)
{
	static char buf[1 << 16];
	ssize_t n;

	while (c->have < c->f->bytes && (n = read(c->fd, buf, sizeof(buf))) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return refuse(-errno, c->err, c->errlen, "%s cannot be read: %s", c->path, strerror(errno));
		if (n > c->f->bytes - c->have)
			break; /* longer than the file: begin again */
		EVP_DigestUpdate(c->md, buf, (size_t)n);
		c->have += n;
	}
	if (lseek(c->fd, 0, SEEK_END) == c->have)
		return 0;
	if (c->s->more)
		c->s->more(c->s->ctx, c->have); /* restart() takes them away */
	return restart(c);
}

static bool hash_is_right(struct coming *c)
{
	unsigned char sum[EVP_MAX_MD_SIZE];
	unsigned int n = 0;
	char hex[2 * EVP_MAX_MD_SIZE + 1];

	if (EVP_DigestFinal_ex(c->md, sum, &n) != 1)
		return false;
	for (unsigned int i = 0; i < n; i++)
		snprintf(hex + 2 * i, 3, "%02x", sum[i]);
	return !strcmp(hex, c->f->etag);
}

/* Ask again after a failure that may pass, while bytes come at all. */
static int get_all(struct coming *c, struct hub *h, const struct hub_repo *r)
{
	const struct hub_sink sink = { c, restart, bytes_came };
	int tries = 0, rc = 0;

	while (c->have < c->f->bytes) {
		int64_t before = c->have;

		rc = hub_get(h, r, c->f, c->have, &sink, c->err, c->errlen);
		if (rc != -EAGAIN)
			break;
		tries = c->have > before ? 1 : tries + 1;
		if (tries == TRIES)
			return -EIO;
		sleep(1u << (tries - 1));
	}
	return rc;
}

static int download(struct coming *c, struct hub *h, const struct hub_repo *r)
{
	char blob[PATH];
	int rc;

	if (!hash_begin(c))
		return refuse(-ENOTSUP, c->err, c->errlen, "OpenSSL has no %s", c->f->large ? "SHA-256" : "SHA-1");
	rc = read_partial(c);
	if (!rc)
		rc = get_all(c, h, r);
	if (rc)
		return rc;
	if (!hash_is_right(c)) {
		unlink(c->path);
		return refuse(-EBADMSG, c->err, c->errlen,
		              "the bytes of %s do not have the hash that the hub names (%s); they are "
		              "deleted, try again",
		              c->f->path, c->f->etag);
	}
	blob_path(c->s, c->f, "", blob);
	if (fdatasync(c->fd) || rename(c->path, blob))
		return refuse(-errno, c->err, c->errlen, "%s cannot be kept: %s", blob, strerror(errno));
	return 0;
}

/* ---- the snapshot -------------------------------------------------------------------------------- */

static int link_file(const struct store *s, const struct hub_repo *r, const struct hub_file *f, char *err,
                     size_t errlen)
{
	char path[PATH], fresh[PATH + 8], to[PATH] = "../../";
	int rc;

	snprintf(path, sizeof(path), "%s/snapshots/%s/%s", s->repo, r->commit, f->path);
	for (const char *p = strchr(f->path, '/'); p; p = strchr(p + 1, '/'))
		strcat(to, "../"); /* at most 16 parts */
	snprintf(to + strlen(to), sizeof(to) - strlen(to), "blobs/%s", f->etag);
	rc = make_dirs(path, false, err, errlen);
	if (rc)
		return rc;
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	unlink(fresh);
	if (symlink(to, fresh) || rename(fresh, path))
		return refuse(-errno, err, errlen, "%s cannot be made: %s", path, strerror(errno));
	return 0;
}

int store_finish(const struct store *s, const struct hub_repo *r, char *err, size_t errlen)
{
	char path[PATH];
	struct fresh w;
	int rc;

	if (!strcmp(r->revision, r->commit))
		return 0;
	snprintf(path, sizeof(path), "%s/refs/%s", s->repo, r->revision);
	rc = make_dirs(path, false, err, errlen);
	if (rc)
		return rc;
	rc = fresh_open(&w, AT_FDCWD, path, 0666);
	if (!rc) {
		fputs(r->commit, w.f);
		rc = fresh_done(&w);
	}
	return rc ? refuse(rc, err, errlen, "%s cannot be written: %s", path, strerror(-rc)) : 0;
}

int store_fetch(struct store *s, struct hub *h, const struct hub_repo *r, const struct hub_file *f, char *err,
                size_t errlen)
{
	struct coming c = { .s = s, .f = f, .fd = -1, .err = err, .errlen = errlen };
	char lock[PATH];
	int fd, rc;

	snprintf(lock, sizeof(lock), "%s/%s.lock", s->locks, f->etag);
	blob_path(s, f, ".incomplete", c.path);
	rc = make_dirs(s->locks, true, err, errlen);
	if (!rc)
		rc = make_dirs(c.path, false, err, errlen);
	if (rc)
		return rc;
	fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	while (fd >= 0 && flock(fd, LOCK_EX) && errno == EINTR)
		;
	if (fd < 0)
		return refuse(-errno, err, errlen, "%s cannot be opened: %s", lock, strerror(errno));
	if (!store_has(s, f)) {
		c.md = EVP_MD_CTX_new();
		c.fd = open(c.path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
		if (c.fd < 0 || !c.md)
			rc = refuse(c.fd < 0 ? -errno : -ENOMEM, err, errlen, "%s cannot be opened: %s", c.path,
			            c.fd < 0 ? strerror(errno) : "no memory");
		else
			rc = download(&c, h, r);
		if (c.fd >= 0)
			close(c.fd);
		EVP_MD_CTX_free(c.md);
	}
	if (!rc)
		rc = link_file(s, r, f, err, errlen);
	close(fd);
	return rc;
}
