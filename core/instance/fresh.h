/* fresh.h - a file that is written beside its place and takes it when it is whole.
 *
 * The name beside is drawn at random and made new (O_EXCL, O_NOFOLLOW), so nobody who may write in the
 * same folder can put a link or a file of theirs there first.  A link at the place itself is replaced.
 */
#ifndef FRESH_H
#define FRESH_H

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/types.h>

struct fresh {
	FILE *f;                      /* write into it; NULL: not open */
	int dir;                      /* descriptor that both names are relative to, or AT_FDCWD; the caller's */
	char path[PATH_MAX], beside[PATH_MAX];
};

/* mode as for open(2).  0, or -errno and f is NULL. */
int  fresh_open(struct fresh *w, int dir, const char *path, mode_t mode);
/* On the disk and in its place; or -errno, and all is as before. */
int  fresh_done(struct fresh *w);
void fresh_drop(struct fresh *w);     /* gives it up; nothing if it is not open */

#endif
