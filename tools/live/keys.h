/* keys.h - slipring top --keys: what each API key uses, from a server's /metrics. */
#ifndef KEYS_H
#define KEYS_H

#include <signal.h>
#include <stdbool.h>

struct keys_server {
	const char *url;
	const char *key;        /* of --metrics-key, or NULL */
	const char *cacert;     /* a file of the certificates to trust, or NULL: the system's */
};

/* Print it for this server, as lines or JSON: once, or every `seconds` until *stop.  Returns the exit
 * status. */
int keys_show(const struct keys_server *s, bool once, bool json, double seconds,
              const volatile sig_atomic_t *stop);

#endif
