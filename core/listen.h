/* listen.h - the socket on which clients arrive: the service manager's, or one of our own in the file system.
 * The loop's thread. */
#ifndef LISTEN_H
#define LISTEN_H

#include <stddef.h>
#include <sys/types.h>

struct listening {
	char  path[4096];
	dev_t dev;                    /* of our socket's file */
	ino_t ino;                    /* 0: no file is ours */
};

/* A listening descriptor, which is the caller's from then on.  group: may connect, too, or NULL.  -1 and a
 * sentence in err. */
int  listen_open(struct listening *l, const char *group, char *err, size_t errlen);
void listen_forget(const struct listening *l);   /* remove the file, if it is still ours */

#endif
