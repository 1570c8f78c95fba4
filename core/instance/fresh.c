/* fresh.c - see fresh.h. */
#include "fresh.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define TRIES 16                      /* a name exists already with a chance of 1 in 2^64 */

int fresh_open(struct fresh *w, int dir, const char *path, mode_t mode)
{
	int fd = -1, e;
	uint64_t r;

	*w = (struct fresh){ .dir = dir };
	if ((size_t)snprintf(w->path, sizeof(w->path), "%s", path) >= sizeof(w->path))
		return -ENAMETOOLONG;
	for (int i = 0; i < TRIES && fd < 0; i++) {
		if (getrandom(&r, sizeof(r), 0) != (ssize_t)sizeof(r))
			return -EIO;
		if ((size_t)snprintf(w->beside, sizeof(w->beside), "%s.new-%016llx", path, (unsigned long long)r) >=
		    sizeof(w->beside))
			return -ENAMETOOLONG;
		fd = openat(dir, w->beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
		if (fd < 0 && errno != EEXIST)
			return -errno;
	}
	if (fd < 0)
		return -EEXIST;
	if ((w->f = fdopen(fd, "w")))
		return 0;
	e = -errno;
	close(fd);
	unlinkat(dir, w->beside, 0);
	return e;
}

int fresh_done(struct fresh *w)
{
	int e = 0;

	errno = 0;
	if (fflush(w->f) || ferror(w->f) || fsync(fileno(w->f)) < 0)
		e = errno ? -errno : -EIO;
	if (fclose(w->f) && !e)
		e = errno ? -errno : -EIO;
	w->f = NULL;
	if (!e && renameat(w->dir, w->beside, w->dir, w->path) < 0)
		e = -errno;
	if (e)
		unlinkat(w->dir, w->beside, 0);
	return e;
}

void fresh_drop(struct fresh *w)
{
	if (!w->f)
		return;
	fclose(w->f);
	w->f = NULL;
	unlinkat(w->dir, w->beside, 0);
}
