/* clients/left.c - what connections leave behind: unread welcomes and memory, in the loop's thread.
 *
 * The kernel charges descriptors in a message that is unread to the user who sent them: to us.  Above
 * RLIMIT_NOFILE of them no welcome can be sent any more.  So a connection whose client did not read its
 * welcome keeps its place until the message is read or the client's end is closed.  Only our end of the
 * socket shows which (SIOCOUTQ), so we keep it.
 *
 * Whoever has a descriptor of a connection's memory keeps its pages.  Nothing tells us who still has one.
 * So the bytes stay charged to the uid for CHARGED_S after the connection, which limits how fast it gets more.
 */
#include "impl.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define LOOK_NS (20 * MS)             /* between looks at the unread welcomes */
#define LOOKS   64                    /* of them at a time: 20 us */
#define SECOND  (1000 * MS)

/* Is a message of ours unread?  0 once the client's end is closed. */
bool left_unread(int fd)
{
	int bytes = 0;

	return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

/* The connection's fd goes over to us: it has no watch any more. */
void left_keep(struct clients *cl, struct left one)
{
	shutdown(one.fd, SHUT_RDWR);  /* for its client it is over, once it has read the message */
	cl->left[cl->n_left++] = one;
	io_timer_set(cl->io, &cl->look, io_now() + LOOK_NS);
}

void left_look(struct io_timer *t)
{
	struct clients *cl = t->ctx;

	for (int i = 0; i < LOOKS && cl->n_left > 0; i++) {
		int32_t at = (int32_t)(cl->left_next++ % (uint32_t)cl->n_left);
		struct left one = cl->left[at];

		if (left_unread(one.fd))
			continue;
		cl->left[at] = cl->left[--cl->n_left];
		left_charge(cl, one.uid, one.bytes);
		conn_close(cl, one.fd, one.carries, one.uid);
	}
	if (cl->n_left > 0)
		io_timer_set(cl->io, t, io_now() + LOOK_NS);
}

/* One entry for each uid and second.  If there are too many, entries of different uids become one, which
 * counts only among all. */
void left_charge(struct clients *cl, uid_t uid, size_t bytes)
{
	uint64_t second = io_now() / SECOND;
	int32_t at = 0;

	if (!bytes)
		return;
	while (at < cl->n_charges && (cl->charge[at].uid != uid || cl->charge[at].second != second))
		at++;
	if (at == CHARGES)
		cl->charge[--at].uid = (uid_t)-1;
	else if (at == cl->n_charges)
		cl->charge[cl->n_charges++] = (struct charge){ .uid = uid };
	cl->charge[at].second = second;
	cl->charge[at].bytes += bytes;
}

/* Bytes that are still charged to the uid, or to all untrusted ones together. */
size_t left_bytes(struct clients *cl, const uid_t *uid)
{
	uint64_t second = io_now() / SECOND;
	size_t n = 0;

	for (int32_t i = cl->n_charges - 1; i >= 0; i--)
		if (second - cl->charge[i].second > CHARGED_S)
			cl->charge[i] = cl->charge[--cl->n_charges];
		else if (!uid || cl->charge[i].uid == *uid)
			n += cl->charge[i].bytes;
	for (int32_t i = 0; i < cl->n_left; i++)
		n += !uid || cl->left[i].uid == *uid ? cl->left[i].bytes : 0;
	return n;
}

void left_end(struct clients *cl)
{
	io_timer_del(cl->io, &cl->look);
	while (cl->n_left > 0) {
		struct left *one = &cl->left[--cl->n_left];

		conn_close(cl, one->fd, one->carries, one->uid);
	}
}
