/* auth.h - API keys and CORS.
 *
 * Only SHA-256 sums of keys are kept, and a given key's sum is compared with all of them,
 * whichever fits: the time taken tells nothing.  A key file has lines "key [name]", # comments.
 */
#ifndef AUTH_H
#define AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/config.h"
#include "http.h"

struct auth;
struct cors;

/* Keys of the flags, of VLLM_API_KEY and SLIPRING_API_KEY, of the file. */
int  auth_create(struct auth **out, const struct config *c, char *err, size_t errlen);
int  auth_reload(struct auth *a, char *err, size_t errlen);  /* the file; old keys on failure */
void auth_free(struct auth *a);
bool auth_needed(const struct auth *a);
/* What stands for a name (of a tenant, a salt) in numbers: 0 only for nothing. */
uint64_t auth_hash(const char *s, size_t n);
/* The request's "Authorization: Bearer KEY"; *tenant = hash of the key's name. */
bool auth_check(const struct auth *a, const struct http_request *r, uint64_t *tenant);

int  cors_create(struct cors **out, const struct config *c, char *err, size_t errlen); /* NULL = off */
void cors_free(struct cors *c);
/* Header lines for the answer to r; preflight: to an OPTIONS.  "" if the origin is not allowed. */
void cors_headers(const struct cors *c, const struct http_request *r, bool preflight,
                  char *lines, size_t cap);
bool cors_preflight(const struct cors *c, const struct http_request *r);

#endif
