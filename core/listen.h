/* listen.h - the socket on which clients arrive: from the service manager, or our own in the file system.
 * The loop's thread. */
#ifndef LISTEN_H
#define LISTEN_H

#include <stddef.h>
#include <sys/types.h>

struct ring_socket {
	char  path[4096];
	dev_t dev;                    /* of our socket's file */
	ino_t ino;                    /* 0: we created no file */
};

/* Returns a listening descriptor that the caller owns, or -1 and a sentence in err.  Members of `group` may
 * connect, too; NULL: no group may. */
int  listen_open(struct ring_socket *l, const char *group, char *err, size_t errlen);
void listen_forget(const struct ring_socket *l);   /* remove the file if it is still ours */

#endif
