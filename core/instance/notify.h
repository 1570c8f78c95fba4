/* notify.h - the service manager: sd_notify datagrams, and sockets that it opened for the daemon.
 * Both do nothing without a service manager.  (Protocols: sd_notify(3), sd_listen_fds(3).)
 */
#ifndef NOTIFY_H
#define NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* "READY=1", "STATUS=..", "STOPPING=1", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=.."; newlines separate
 * several.  0 if sent or if there is no service manager, else -errno. */
int notify_send(const char *state);
int notify_reloading(void);          /* RELOADING=1 with its time stamp; READY=1 ends it */
int notify_sendf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Nanoseconds between the WATCHDOG=1 messages that this process must send (half of the service
 * manager's limit), or 0. */
uint64_t notify_watchdog_ns(void);

/* The descriptor passed under `name` (LISTEN_FDNAMES), or the only one if name is NULL;
 * -ENOENT if there is none.  Sets close-on-exec. */
int notify_socket(const char *name);

#define NOTIFY_SOCKETS 64            /* most of one name */
/* All of that name: how many are in out[most]. */
int notify_sockets(const char *name, int *out, int most);

/* Give n descriptors to whoever started us: `slipring serve` passes them under `name` to our successor (FDSTORE=1 of
 * sd_notify).  0, also without a service manager, or -errno. */
int notify_store(const char *name, const int *fd, int n);

#endif
