/* notify.h - the service manager: sd_notify datagrams and sockets it opened for us.
 * Both are no-ops where there is none.  (Protocols: sd_notify(3), sd_listen_fds(3).)
 */
#ifndef NOTIFY_H
#define NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* "READY=1", "STATUS=..", "STOPPING=1", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=..", many by
 * newlines.  0 sent or nobody listens, else -errno. */
int notify_send(const char *state);
int notify_reloading(void);          /* RELOADING=1, by the manager's clock; READY=1 ends it */
int notify_sendf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Nanoseconds between WATCHDOG=1 messages that the manager expects of this process (half its
 * limit), or 0. */
uint64_t notify_watchdog_ns(void);

/* The descriptor passed under `name` (LISTEN_FDNAMES), or the only one if name is NULL;
 * -ENOENT if there is none.  Made close-on-exec. */
int notify_socket(const char *name);

#endif
