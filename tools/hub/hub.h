/* hub.h - a Hugging Face hub as `slipring pull` sees it, and the cache that its other clients share.
 *
 *	hub.c      asks: which files a repository has, and their bytes
 *	store.c    the cache: blobs by hash, snapshots that name them, one writer at a time
 *	pull.c     the command: chooses files, shows progress
 *
 * The cache's layout is huggingface_hub's, so what one of both has downloaded the other finds:
 *
 *	HUB/models--ORG--NAME/blobs/ETAG               a file; ETAG.incomplete while it comes
 *	HUB/models--ORG--NAME/snapshots/COMMIT/PATH    a link to its blob
 *	HUB/models--ORG--NAME/refs/main                the commit
 *	HUB/.locks/models--ORG--NAME/ETAG.lock         held (flock) by who writes the blob
 *
 * Everything that a hub says is checked before it becomes a path or a size.  One thread. */
#ifndef HUB_H
#define HUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HUB_FILES_MAX 100000             /* of a repository */
#define HUB_FILE_MAX  (INT64_C(1) << 42) /* bytes of a file */

struct hub_file {
	char *path; /* in the repository: relative, no empty, "." or ".." part */
	int64_t bytes;
	char etag[65]; /* lower-case hex: the SHA-256 if large, else git's SHA-1 of the blob */
	bool large;    /* stored by LFS or Xet: the etag is the SHA-256 of its bytes */
};

struct hub_repo {
	char id[256], revision[128];
	char commit[41];
	struct hub_file *file; /* [n], by path */
	int32_t n;
};

struct hub;

/* May this become a path below a directory of ours? */
bool hub_path_is_safe(const char *path);

/* Where the hub is: HF_ENDPOINT, else https://huggingface.co.  The token: HF_TOKEN, else in the file
 * HF_TOKEN_PATH, else HF_HOME/token; it goes to that host alone.  NULL: a sentence in err. */
struct hub *hub_open(char *err, size_t errlen);
void hub_close(struct hub *h);

/* List a repository at a branch, tag or commit.  0 or -errno: -ENOENT no such repository or revision, -EACCES
 * it wants a token or its terms accepted, -EPROTO the answer makes no sense. */
int hub_list(struct hub *h, const char *id, const char *revision, struct hub_repo *out, char *err,
             size_t errlen);
void hub_free(struct hub_repo *r);

/* What comes of a file.  Returns 0, or -errno to stop. */
struct hub_sink {
	void *ctx;
	int (*restart)(void *ctx); /* the hub begins at byte 0 after all */
	int (*bytes)(void *ctx, const void *data, size_t n);
};

/* The bytes of a file from `from` on, once.  0; -EAGAIN: worth another try; or another -errno. */
int hub_get(struct hub *h, const struct hub_repo *r, const struct hub_file *f, int64_t from,
            const struct hub_sink *sink, char *err, size_t errlen);

/* ---- the cache ---- */

struct store {
	char repo[2048], locks[2048];
	void (*more)(void *ctx, int64_t n); /* n more bytes are there; below 0: they were dropped */
	void *ctx;                          /* for more() */
};

/* 0 or -errno. */
int store_open(struct store *s, const char *id, char *err, size_t errlen);

bool store_has(const struct store *s, const struct hub_file *f);
int64_t store_partial(const struct store *s, const struct hub_file *f); /* bytes that are there already */

/* Download a file if it is not there, check its hash, and link it into the snapshot.  Waits while another
 * process downloads it.  What came is kept for the next time, unless it does not have the hash (-EBADMSG). */
int store_fetch(struct store *s, struct hub *h, const struct hub_repo *r, const struct hub_file *f, char *err,
                size_t errlen);

/* All files are there: refs/REVISION names the commit. */
int store_finish(const struct store *s, const struct hub_repo *r, char *err, size_t errlen);
/* Bytes that the cache's file system has left for us; -1: not known. */
int64_t store_room(const struct store *s);

#endif
