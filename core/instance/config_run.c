/* config_run.c - the directory of an instance's socket and stats page: one rule for the daemon and for
 * all programs that look for it. */
#include "config.h"
#include "refuse.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directory of a user without a runtime directory.  It is in /tmp, so another user may make it first. */
static const char *in_tmp(char made[64])
{
	snprintf(made, 64, "/tmp/slipring-%u", (unsigned)geteuid());
	return made;
}

int config_run_dir(const char *instance, char *out, size_t n)
{
	const char *base = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
	bool plain = !instance || strcmp(instance, "default") == 0;
	char made[64];
	int len;

	if (!plain && (!*instance || *instance == '.' || strlen(instance) > 48 ||
	    instance[strspn(instance, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")]))
		return -EINVAL;
	if (plain)
		instance = "";
	if (base && *base)
		len = snprintf(out, n, "%.*s%s%s", (int)strcspn(base, ":"), base, plain ? "" : "/", instance);
	else if (geteuid() == 0 || !xdg || !*xdg)
		len = snprintf(out, n, "%s%s%s", geteuid() ? in_tmp(made) : "/run/slipring", plain ? "" : "/",
		               instance);
	else
		len = snprintf(out, n, "%s/slipring%s%s", xdg, plain ? "" : "/", instance);
	return len < 0 || (size_t)len >= n ? -ENAMETOOLONG : 0;
}

static bool is_ours(const struct stat *st)
{
	return S_ISDIR(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & 022);
}

/* A program that looks for a daemon must not find another user's, which would then get the prompts.
 * The directory is made if it is missing: in /tmp, no other user can then replace it. */
int config_find_run_dir(const char *instance, char *out, size_t n)
{
	char made[64];
	struct stat st;
	int rc = config_run_dir(instance, out, n);
	size_t len = strlen(in_tmp(made));

	if (rc == 0 && strncmp(out, made, len) == 0 && (!out[len] || out[len] == '/') &&
	    ((mkdir(made, 0700) < 0 && errno != EEXIST) || lstat(made, &st) < 0 || !is_ours(&st)))
		rc = -EPERM;
	return rc;
}

const char *config_run_dir_why(int rc)
{
	return rc == -EPERM ? "/tmp/slipring-UID, where its daemon would be, must belong to us, and nobody else "
	                      "may write there; name another directory in RUNTIME_DIRECTORY" :
	       rc == -ENAMETOOLONG ? "the path of its socket or its runtime directory is too long" :
	       "not a usable name (letters, digits, - _ .)";
}

/* Make one directory of the path, if missing.  The last must be ours and writable by us alone. */
static int make_one(const char *dir, bool last, char *err, size_t errlen)
{
	struct stat st;
	int rc = 0;

	if (mkdir(dir, geteuid() == 0 ? 0755 : 0700) < 0 && errno != EEXIST) {
		rc = -errno;
		snprintf(err, errlen, "%s cannot be made: %s", dir, strerror(-rc));
	} else if (last && (lstat(dir, &st) < 0 || !S_ISDIR(st.st_mode))) {
		rc = -ENOTDIR;
		snprintf(err, errlen, "%s is not a directory", dir);
	} else if (last && !is_ours(&st)) {
		rc = -EPERM;
		snprintf(err, errlen, "%s belongs to uid %u with mode %o: it must be ours, and nobody else "
		         "may write there", dir,
		         (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
	}
	return rc;
}

int config_make_run_dir(const char *dir, char *err, size_t errlen)
{
	char part[4096], made[64];
	int rc = 0;

	if (strlen(dir) >= sizeof(part))
		return refuse(-ENAMETOOLONG, err, errlen, "the path of the runtime directory is longer than %zu "
		              "bytes", sizeof(part));
	for (const char *s = dir; *s && rc == 0; ) {
		s += strspn(s, "/");
		s += strcspn(s, "/");
		snprintf(part, sizeof(part), "%.*s", (int)(s - dir), dir);
		rc = make_one(part, !s[strspn(s, "/")] || !strcmp(part, in_tmp(made)), err, errlen);
	}
	return rc;
}

int config_replicas(const struct config *c) { return c->data_parallel_rank < 0 ? c->data_parallel_size : 1; }

void config_replica(const struct config *c, int i, struct config *out, char name[CONFIG_INSTANCE])
{
	*out = *c;
	out->data_parallel_rank = c->data_parallel_rank < 0 ? i : c->data_parallel_rank;
	if (c->data_parallel_size == 1)
		return;
	snprintf(name, CONFIG_INSTANCE, "%.50s-%d", c->instance, out->data_parallel_rank);
	out->instance = name;
}

int config_socket(const struct config *c, char *out, size_t n)
{
	char dir[4096];
	int rc, len;

	if (c->socket) {
		len = snprintf(out, n, "%s", c->socket);
	} else {
		if ((rc = config_find_run_dir(c->instance, dir, sizeof(dir))) != 0)
			return rc;
		len = snprintf(out, n, "%s/slipring.sock", dir);
	}
	return len < 0 || (size_t)len >= n ? -ENAMETOOLONG : 0;
}
