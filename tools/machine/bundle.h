/* bundle.h - writes a tar file (POSIX ustar) from memory, for a bug report. */
#ifndef BUNDLE_H
#define BUNDLE_H

#include <stddef.h>
#include <stdio.h>

struct bundle { FILE *to; const char *path, *dir; int error; };

/* dir: the folder of all members in the file.  The file is created with mode 0600 and must not exist. */
int  bundle_open(struct bundle *b, const char *path, const char *dir);
void bundle_add(struct bundle *b, const char *name, const void *data, size_t n);
int  bundle_close(struct bundle *b);  /* 0; or the first -errno, and the file is removed */

#endif
