/* fresh.h - writes a file under a temporary name beside its place, and renames it when it is whole.
 *
 * The temporary name is random and the file is created new (O_EXCL, O_NOFOLLOW).  So another user who may
 * write in the same folder cannot put a link or a file there first.  A link at the place itself is replaced.
 */
#ifndef FRESH_H
#define FRESH_H

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/types.h>

struct fresh {
	FILE *f;                      /* write into it; NULL: not open */
	int dir;                      /* both names are relative to it, or AT_FDCWD; the caller owns it */
	char path[PATH_MAX], beside[PATH_MAX];
};

/* mode is as for open(2).  Returns 0, or -errno with f NULL. */
int  fresh_open(struct fresh *w, int dir, const char *path, mode_t mode);
/* Write the file to the disk and rename it into its place; on -errno the old file is unchanged. */
int  fresh_done(struct fresh *w);
void fresh_drop(struct fresh *w);     /* remove the temporary file; does nothing if none is open */

#endif
