/* refuse.h - how a function says why it failed. */
#ifndef REFUSE_H
#define REFUSE_H

#include <stddef.h>

/* Write one sentence into err and return rc.  Control characters become '?', because a file's names may
 * hold anything and messages go to terminals. */
int refuse(int rc, char *err, size_t errlen, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

#endif
