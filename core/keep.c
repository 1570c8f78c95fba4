/* keep.c - see keep.h.  The loop's thread, before the first turn and after the last. */
#include "keep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/instance/fresh.h"

static int say(int e, const struct keep *k, const char *why, char *err, size_t errlen)
{
	snprintf(err, errlen, "%s/%s: %s", k->dir, k->name, why);
	return e;
}

static int say_errno(int e, const struct keep *k, char *err, size_t errlen)
{
	return say(e, k, strerror(-e), err, errlen);
}

void keep_identity(uint64_t identity[2], const void *from, size_t n)
{
	XXH128_hash_t h = XXH3_128bits_withSeed(from, n, identity[0] ^ identity[1] * 31);

	identity[0] = h.low64;
	identity[1] = h.high64;
}

static void hash_of(const void *from, size_t n, uint64_t out[2])
{
	XXH128_hash_t h = XXH3_128bits(from, n);

	out[0] = h.low64;
	out[1] = h.high64;
}

/* The identity with what the back end adds. */
static void whole_identity(const struct keep *k, uint64_t out[2])
{
	const char *kind = "";

	k->ops->kv(k->b, 0, &kind);
	memcpy(out, k->identity, 2 * sizeof(*out));
	keep_identity(out, k->ops->name, strlen(k->ops->name));
	keep_identity(out, kind, strlen(kind));
}

/* Bytes of an entry: its head and ids, its K,V, its hash. */
static size_t front_bytes(const struct keep *k)
{
	return sizeof(struct keep_entry) + (size_t)k->block_tokens * sizeof(int32_t);
}

static size_t entry_bytes(const struct keep *k)
{
	return front_bytes(k) + (size_t)k->block_bytes + 2 * sizeof(uint64_t);
}

/* ---- the folder and the file ------------------------------------------------------------------- */

/* A folder that is ours and that no other user may write. */
static int open_dir(const struct keep *k, char *err, size_t errlen)
{
	struct stat st;
	int fd = open(k->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return say_errno(-errno, k, err, errlen);
	if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && !(st.st_mode & 022))
		return fd;
	close(fd);
	return say(-EPERM, k, "the folder must belong to the daemon's user, and no other user may write there", err, errlen);
}

static int open_file(const struct keep *k, struct keep_head *h, char *err, size_t errlen)
{
	int dir = open_dir(k, err, errlen), fd, e;
	uint64_t hash[2];
	struct stat st;

	if (dir < 0)
		return dir;
	fd = openat(dir, k->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	e = -errno;
	close(dir);
	if (fd < 0)
		return e == -ENOENT ? e : say_errno(e, k, err, errlen);
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 077) {
		close(fd);
		return say(-EPERM, k, "not a file of the daemon's user alone", err, errlen);
	}
	if (read(fd, h, sizeof(*h)) == sizeof(*h)) {
		hash_of(h, offsetof(struct keep_head, hash), hash);
		if (h->magic == KEEP_MAGIC && h->version == KEEP_VERSION && !h->zero && !memcmp(hash, h->hash, sizeof(hash)))
			return fd;
	}
	close(fd);
	return say(-EPROTO, k, "torn, or of another version of Slipring", err, errlen);
}

int keep_secret(const struct keep *k, struct prefix_secret *secret, char *err, size_t errlen)
{
	struct keep_head h = { 0 };
	int fd = open_file(k, &h, err, errlen);

	if (fd < 0)
		return fd;
	close(fd);
	*secret = h.secret;
	return 0;
}

/* ---- reading ----------------------------------------------------------------------------------- */

struct entries {
	struct kv_saved *saved;      /* [n] */
	int32_t *ids;                /* [n][block_tokens] */
	unsigned char *buf;          /* one entry */
	int32_t n;
};

static void entries_free(struct entries *e)
{
	free(e->saved);
	free(e->ids);
	free(e->buf);
}

static int entries_make(struct entries *e, const struct keep *k, int32_t n)
{
	*e = (struct entries){ .n = n };
	e->saved = calloc((size_t)n + 1, sizeof(*e->saved));
	e->ids = calloc((size_t)n + 1, (size_t)k->block_tokens * sizeof(*e->ids));
	e->buf = malloc(entry_bytes(k));
	if (e->saved && e->ids && e->buf)
		return 0;
	entries_free(e);
	return -ENOMEM;
}

/* The next entry into e->buf: checked by its hash, its number and its parent. */
static bool next(const struct keep *k, struct entries *e, int fd, int32_t i, struct keep_entry *out)
{
	const size_t n = front_bytes(k) + (size_t)k->block_bytes;
	uint64_t hash[2];

	for (size_t at = 0; at < entry_bytes(k);) {
		ssize_t r = read(fd, e->buf + at, entry_bytes(k) - at);

		if (r <= 0)
			return false;
		at += (size_t)r;
	}
	hash_of(e->buf, n, hash);
	memcpy(out, e->buf, sizeof(*out));
	return !memcmp(hash, e->buf + n, sizeof(hash)) && out->number == (uint32_t)i && out->parent >= -1 && out->parent < i;
}

/* All entries once, before anything is believed: what they say, without their K,V. */
static bool read_names(const struct keep *k, struct entries *e, int fd)
{
	struct keep_entry x;

	for (int32_t i = 0; i < e->n; i++) {
		int32_t *id = e->ids + (size_t)i * (size_t)k->block_tokens;

		if (!next(k, e, fd, i, &x))
			return false;
		memcpy(id, e->buf + sizeof(x), (size_t)k->block_tokens * sizeof(*id));
		e->saved[i] = (struct kv_saved){ .parent = x.parent, .salt = x.salt, .id = id };
	}
	return read(fd, e->buf, 1) == 0;
}

/* And once more: the K,V of n of them. */
static bool read_blocks(const struct keep *k, struct entries *e, int fd, int32_t n)
{
	const char *kind;
	struct keep_entry x;

	if (lseek(fd, sizeof(struct keep_head), SEEK_SET) < 0)
		return false;
	for (int32_t i = 0; i < n; i++) {
		if (!next(k, e, fd, i, &x))
			return false;
		memcpy(k->ops->kv(k->b, e->saved[i].block, &kind), e->buf + front_bytes(k), (size_t)k->block_bytes);
	}
	return true;
}

static int fill(const struct keep *k, struct entries *e, int fd, struct kv *kv, char *err, size_t errlen)
{
	const char *kind;
	int32_t n;

	if (!read_names(k, e, fd))
		return say(-EPROTO, k, "torn, or changed", err, errlen);
	n = kv_restore(kv, e->saved, e->n);
	if (read_blocks(k, e, fd, n))
		return n;
	for (int32_t i = 0; i < n; i++)
		memset(k->ops->kv(k->b, e->saved[i].block, &kind), 0, (size_t)k->block_bytes);
	kv_forget(kv);
	return say(-EPROTO, k, "changed while it was read", err, errlen);
}

int keep_read(const struct keep *k, const struct prefix_secret *secret, struct kv *kv, char *err, size_t errlen)
{
	struct keep_head h = { 0 };
	struct entries e;
	uint64_t identity[2];
	int fd = open_file(k, &h, err, errlen), r;

	if (fd < 0)
		return fd;
	whole_identity(k, identity);
	if (memcmp(identity, h.identity, sizeof(identity)) || h.block_tokens != (uint32_t)k->block_tokens ||
	    h.block_bytes != (uint64_t)k->block_bytes || h.n > INT32_MAX / 2)
		r = say(-ESTALE, k, "of another model, back end or settings", err, errlen);
	else if (memcmp(secret, &h.secret, sizeof(*secret)))
		r = say(-ESTALE, k, "salts have another secret now", err, errlen);
	else if (lseek(fd, 0, SEEK_END) != (off_t)(sizeof(h) + h.n * entry_bytes(k)) ||
	         lseek(fd, sizeof(h), SEEK_SET) < 0)
		r = say(-EPROTO, k, "torn", err, errlen);
	else if (entries_make(&e, k, (int32_t)h.n) < 0)
		r = say_errno(-ENOMEM, k, err, errlen);
	else {
		r = fill(k, &e, fd, kv, err, errlen);
		entries_free(&e);
	}
	close(fd);
	return r;
}

/* ---- writing ----------------------------------------------------------------------------------- */

static void write_entry(const struct keep *k, FILE *f, const struct kv_saved *s, int32_t i, unsigned char *buf)
{
	const struct keep_entry x = { s->salt, s->parent, (uint32_t)i };
	const size_t n = front_bytes(k) + (size_t)k->block_bytes;
	const char *kind;
	uint64_t hash[2];

	memcpy(buf, &x, sizeof(x));
	memcpy(buf + sizeof(x), s->id, (size_t)k->block_tokens * sizeof(*s->id));
	memcpy(buf + front_bytes(k), k->ops->kv(k->b, s->block, &kind), (size_t)k->block_bytes);
	hash_of(buf, n, hash);
	memcpy(buf + n, hash, sizeof(hash));
	fwrite(buf, 1, entry_bytes(k), f);
}

static int write_all(const struct keep *k, int dir, struct keep_head *h, const struct entries *e)
{
	struct fresh w;
	int r = fresh_open(&w, dir, k->name, 0600);

	if (r < 0)
		return r;
	h->n = (uint32_t)e->n;
	hash_of(h, offsetof(struct keep_head, hash), h->hash);
	fwrite(h, sizeof(*h), 1, w.f);
	for (int32_t i = 0; i < e->n && !ferror(w.f); i++)
		write_entry(k, w.f, &e->saved[i], i, e->buf);
	return fresh_done(&w);
}

int keep_write(const struct keep *k, const struct prefix_secret *secret, const struct kv *kv, char *err, size_t errlen)
{
	struct keep_head h = { .magic = KEEP_MAGIC, .version = KEEP_VERSION, .block_tokens = (uint32_t)k->block_tokens,
		.block_bytes = (uint64_t)k->block_bytes, .secret = *secret };
	int64_t most = (k->most - (int64_t)sizeof(h)) / (int64_t)entry_bytes(k);
	struct entries e;
	int dir = open_dir(k, err, errlen), r;

	if (dir < 0)
		return dir;
	r = entries_make(&e, k, k->n_blocks);
	if (!r) {
		whole_identity(k, h.identity);
		e.n = kv_saved(kv, e.saved, most < k->n_blocks ? (int32_t)(most > 0 ? most : 0) : k->n_blocks);
		r = write_all(k, dir, &h, &e);
		r = r < 0 ? r : e.n;
		entries_free(&e);
	}
	close(dir);
	return r < 0 ? say_errno(r, k, err, errlen) : r;
}
