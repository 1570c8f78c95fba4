/* object.h - memory shared with one client: a memfd, its seals, and a guard against SIGBUS.
 *
 *	object_open, object_fill ..       made, sealed and mapped; then its pages, a few at a time
 *	object_guard                      from now on a fault in it marks its connection
 *	object_seal, object_fill ..       once the client has mapped what it writes
 *	object_unmap ..                   a few pages at a time
 *	object_detach or object_close
 *
 * Belongs to one thread; only the SIGBUS handler may interrupt it.
 */
#ifndef SR_OBJECT_H
#define SR_OBJECT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OBJECTS_MAX 8192                      /* guarded at once in one process: places in the table */

struct object {
	unsigned char *at;                    /* NULL: closed */
	size_t bytes;                         /* as asked for */
	size_t len, page;                     /* as mapped: whole pages of size `page` */
	size_t there;                         /* bytes whose pages are allocated */
	int prot;                             /* PROT_READ: the client writes it; and PROT_WRITE: the daemon */
	int fd;                               /* kept to the end: the last reference, see object_detach */
	int guard;                            /* place in the table, or -1 */
};

/* Install the SIGBUS handler, once: 0, -errno. */
int  object_guards_on(void);

/* Make a memfd, seal and map it; no page is allocated yet.  0, -errno.  Huge pages if `huge`, if they
 * exist and are at least half used, else pages of 4 KiB.  Memory that an untrusted client writes never
 * has huge pages: the client could empty our pool through it. */
int  object_open(struct object *o, size_t bytes, int prot, bool huge);

/* Allocate more of its pages until time `until`: 1 there are more, 0 all are there, -errno.  Without a guard
 * and with huge pages that cannot be had, it starts again with pages of 4 KiB. */
int  object_fill(struct object *o, uint64_t until);

/* A fault in it sets *poisoned from now on: 0, -EUSERS the table is full. */
int  object_guard(struct object *o, volatile sig_atomic_t *poisoned);

/* What the client writes, once both sides have mapped it: the last seals.  0, -errno.  Then fill it
 * again: holes may have been punched before. */
int  object_seal(struct object *o);

/* Take it out of our address space until time `until`: 1 there is more, 0 none.  Its guard ends. */
int  object_unmap(struct object *o, uint64_t until);

/* Unmap what is left and return its descriptor, or -1.  Closing that frees its pages at once, which takes
 * 0.15 ms a MiB if the client is gone: the caller may leave that to another thread. */
int  object_detach(struct object *o);

/* Both at once. */
void object_close(struct object *o);

#endif
