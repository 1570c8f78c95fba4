/* aside.h - calls of the kernel that another user can prolong, in a thread of their own.
 *
 * A message on a Unix socket may carry descriptors.  Who drops the last reference to one ends the file, even
 * if it never took the descriptor.  That may sleep for as long as the sender likes: a TCP socket with
 * SO_LINGER and unsent data does.  Since Linux 6.16 a socket can refuse such messages.  Where it cannot, or
 * where one may already be in the queue, receiving and closing are done here.
 *
 * A signal in this thread ends such a sleep, so each job gets about 1 ms.  Jobs of different uids take turns,
 * so a uid delays only its own.  All functions are for the loop's thread.
 */
#ifndef ASIDE_H
#define ASIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/instance/io.h"

struct aside;

struct aside_job {
	void (*run)(struct aside_job *j);     /* in the other thread */
	void (*done)(struct aside_job *j);    /* then in the loop's; NULL: run() frees it */
	uint32_t uid;
	/* private */
	struct aside_job *next;
	int state;
};

/* The thread starts with the first job.  0, -errno. */
int  aside_create(struct aside **out, struct io *io);
void aside_destroy(struct aside *a);          /* runs the jobs that nobody dropped, but no done(); NULL is allowed */

/* Where no thread can be had, the job is run here. */
void aside_do(struct aside *a, struct aside_job *j);
void aside_drop(struct aside *a, struct aside_job *j); /* it will not be used any more; may wait for its end */
void aside_close(struct aside *a, int fd, uint32_t uid);
void aside_end(struct aside *a, struct io_watch *w, uint32_t uid); /* io_watch_end(), and then close its fd */
bool aside_full(struct aside *a);             /* hand in no more than has to be */

/* Have a listening socket refuse descriptors, and with it those that it accepts from now on. */
void aside_refuse(int listener);
bool aside_may_carry(int fd);                 /* may a message on it carry descriptors? */

#endif
