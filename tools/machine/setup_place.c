/* setup_place.c - opens files below the root folder of `slipring setup` without following other users' links.
 *
 * setup runs as root, and some folders on its way belong to the daemon's user.  So each folder is opened
 * relative to the previous one.  A link is followed only in a folder that only root or the caller may write.
 * A link at the last name is never followed. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/instance/fresh.h"
#include "setup.h"

bool place_ours(const struct stat *st)
{
	return (st->st_uid == 0 || st->st_uid == geteuid()) && !(st->st_mode & 022);
}

int place_dir(const char *root, const char *path, bool make, const char **leaf)
{
	int dir = open(*root ? root : "/", O_PATH | O_DIRECTORY | O_CLOEXEC), next, e;
	char name[NAME_MAX + 1];
	struct stat st;
	size_t n;

	for (path += strspn(path, "/"); dir >= 0; path += n + strspn(path + n, "/"), dir = next) {
		n = strcspn(path, "/");
		if (!path[n]) {
			*leaf = path;
			return dir;
		}
		if (n > NAME_MAX || fstat(dir, &st) < 0) {
			close(dir);
			return n > NAME_MAX ? -ENAMETOOLONG : -errno;
		}
		memcpy(name, path, n);
		name[n] = 0;
		if (make && mkdirat(dir, name, 0755) < 0 && errno != EEXIST)
			next = -1;
		else
			next = openat(dir, name, O_PATH | O_DIRECTORY | O_CLOEXEC | (place_ours(&st) ? 0 : O_NOFOLLOW));
		e = errno;
		close(dir);
		errno = e;
	}
	return -errno;
}

/* Read a small file as text; NULL: it cannot be read. */
char *place_read(const char *root, const char *path)
{
	const char *leaf;
	int dir = place_dir(root, path, false, &leaf);
	int fd = dir < 0 ? -1 : openat(dir, leaf, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	char *buf = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? calloc(1, PLACE_TEXT) : NULL;
	ssize_t n = buf ? read(fd, buf, PLACE_TEXT - 1) : -1;

	if (fd >= 0)
		close(fd);
	if (dir >= 0)
		close(dir);
	if (n >= 0)
		return buf;
	free(buf);
	return NULL;
}

static int write_fresh(int dir, const char *leaf, const char *text)
{
	struct fresh w;
	int e = fresh_open(&w, dir, leaf, 0644);

	if (!e && (fputs(text, w.f) == EOF || fchmod(fileno(w.f), 0644) < 0))
		e = -EIO;
	if (!e)
		e = fresh_done(&w);
	fresh_drop(&w);
	return e;
}

/* /proc and /sys take a value in one write. */
static int write_value(int dir, const char *leaf, const char *text)
{
	int fd = openat(dir, leaf, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC), e = 0;

	if (fd < 0)
		return -errno;
	errno = 0;
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		e = errno ? -errno : -EIO;
	if (close(fd) < 0 && !e)
		e = -errno;
	return e;
}

int place_write(const char *root, const char *path, const char *text, bool value)
{
	const char *leaf;
	int dir = place_dir(root, path, !value, &leaf), e;

	if (dir < 0)
		return dir;
	e = value ? write_value(dir, leaf, text) : write_fresh(dir, leaf, text);
	close(dir);
	return e;
}

int place_mkdir(const char *root, const char *path, mode_t mode)
{
	const char *leaf;
	int dir = place_dir(root, path, true, &leaf), e;

	if (dir < 0)
		return dir;
	e = mkdirat(dir, leaf, mode) < 0 && errno != EEXIST ? -errno : 0;
	close(dir);
	return e;
}

int place_remove(const char *root, const char *path, bool folder)
{
	const char *leaf;
	int dir = place_dir(root, path, false, &leaf), e;

	if (dir < 0)
		return dir;
	e = unlinkat(dir, leaf, folder ? AT_REMOVEDIR : 0) < 0 ? -errno : 0;
	close(dir);
	return e;
}
