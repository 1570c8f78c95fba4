/* auth.h - API keys.
 *
 * Only SHA-256 sums of keys are kept, and a given key's sum is compared with all of them,
 * whichever fits: the time taken tells nothing.  A key file has lines
 * "key [name] [min-priority=N]", # comments.
 */
#ifndef AUTH_H
#define AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/config.h"
#include "http.h"

struct auth;

/* Keys of the flags or of the environment, as struct config has them, and of the file. */
int  auth_create(struct auth **out, const struct config *c, char *err, size_t errlen);
int  auth_reload(struct auth *a, char *err, size_t errlen);  /* the file; old keys on failure */
void auth_free(struct auth *a);
bool auth_needed(const struct auth *a);
/* What stands for a name (of a tenant, a salt) in numbers: 0 only for nothing. */
uint64_t auth_hash(const char *s, size_t n);
/* A salt that no other tenant's request can have; of tenant 0 the salt itself. */
uint64_t auth_salt(uint64_t tenant, uint64_t salt);
/* What a request may by its key.  Zero: where no key is set. */
struct auth_right {
	uint64_t tenant;              /* a hash of the key's name, or of the key if it has none */
	int32_t min_priority;         /* the lowest that it may ask for, 0 or below */
};

/* Is the key good that the request gives as "Authorization: Bearer KEY" or as "x-api-key: KEY"?  If it gives
 * both they must be the same. */
bool auth_check(const struct auth *a, const struct http_request *r, struct auth_right *right);
/* Is it this very key that the request gives, in either way? */
bool auth_shows(const struct http_request *r, const char *key);

#endif
