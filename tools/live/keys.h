/* keys.h - slipring top --keys: what each API key uses, from a server's /metrics. */
#ifndef KEYS_H
#define KEYS_H

#include <signal.h>
#include <stdbool.h>

/* Print it for the server at url, as lines or JSON: once, or every `seconds` until *stop.  key: of
 * --metrics-key, or NULL.  Returns the exit status. */
int keys_show(const char *url, const char *key, bool once, bool json, double seconds,
              const volatile sig_atomic_t *stop);

#endif
