/* origin.h - which web pages may ask, and be told: Host, Origin, CORS.
 *
 * A browser lets a page read the answers of its own origin, and of others as their CORS lines say.  A page
 * can have its name point at our address after it was loaded (DNS rebinding), and is then of our origin.
 * Its requests still carry that name as Host.
 */
#ifndef ORIGIN_H
#define ORIGIN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/config.h"
#include "http.h"

struct hosts;
struct cors;

/* What Host may be where no key is asked for: an IP address, localhost, names below it, this machine's name,
 * --host, --allowed-hosts.  *out NULL: anything.  0, or -errno and one sentence. */
int  hosts_create(struct hosts **out, const struct config *c, bool keyed, char *err, size_t errlen);
void hosts_free(struct hosts *h);
/* Host, and of an absolute URL its host.  None at all is right, too: browsers always send one. */
bool hosts_allow(const struct hosts *h, const struct http_request *r);

int  cors_create(struct cors **out, const struct config *c, char *err, size_t errlen);
void cors_free(struct cors *c);
/* Header lines for the answer to r; preflight: to an OPTIONS.  "" if the origin is not allowed; the log says
 * so, once for each of the first few origins. */
void cors_headers(struct cors *c, const struct http_request *r, bool preflight, char *lines, size_t cap);
bool cors_preflight(const struct cors *c, const struct http_request *r);

#endif
