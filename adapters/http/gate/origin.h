/* origin.h - which web pages may send requests and read the answers: Host, Origin, CORS.
 *
 * A browser lets a page read the answers of its own origin, and of other origins as their CORS lines allow.
 * After a page is loaded, its name can be changed to resolve to our address (DNS rebinding): then we are its
 * own origin.  Its requests still carry that name as Host.
 */
#ifndef ORIGIN_H
#define ORIGIN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/instance/config.h"
#include "adapters/http/net/http.h"

struct hosts;
struct cors;

/* The Hosts that are allowed if no key is required: an IP address, localhost and names below it, this
 * machine's name, --host, --allowed-hosts.  *out NULL: any Host.  0, or -errno and one sentence. */
int  hosts_create(struct hosts **out, const struct config *c, bool keyed, char *err, size_t errlen);
void hosts_free(struct hosts *h);
/* Checks Host, and the host of an absolute URL.  A request without Host is allowed, because browsers
 * always send one. */
bool hosts_allow(const struct hosts *h, const struct http_request *r);

int  cors_create(struct cors **out, const struct config *c, char *err, size_t errlen);
void cors_free(struct cors *c);
/* CORS header lines for the answer to r; preflight: r is an OPTIONS.  "" if the origin is not allowed; the
 * log then names it, once for each of the first 16 origins. */
void cors_headers(struct cors *c, const struct http_request *r, bool preflight, char *lines, size_t cap);
bool cors_preflight(const struct cors *c, const struct http_request *r);

/* Does the request come from a page of this server, or from no page at all?  Browsers send Origin with
 * requests that change something, and Sec-Fetch-Site with all. */
bool origin_own(const struct http_request *r);

#endif
