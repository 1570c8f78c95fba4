/* auth.h - API keys.
 *
 * It keeps only SHA-256 sums of keys, sorted, and bisects them for the sum of a request's key.  The time may
 * reveal something of the sums, and nothing of the keys.  Lines of a key file:
 * "key [name] [OPTION=N ..] [operator]", # comments.  Options: min-priority, priority, rpm, tpm,
 * max-parallel.  The last three are limits of the name (quota.h): lines with one name must not contradict
 * each other.
 */
#ifndef AUTH_H
#define AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/instance/config.h"
#include "adapters/http/net/http.h"
#include "quota.h"

struct auth;

/* Takes the keys of flags and environment from struct config, and reads those of the file. */
int  auth_create(struct auth **out, const struct config *c, struct quota_table *quotas, char *err,
                 size_t errlen);
int  auth_reload(struct auth *a, char *err, size_t errlen);  /* the key file; on failure the old keys stay */
void auth_free(struct auth *a);
bool auth_needed(const struct auth *a);
/* The number that stands for the name of a tenant or for a salt; 0 only for an empty one. */
uint64_t auth_hash(const char *s, size_t n);
/* A salt that no other tenant's request can have; for tenant 0 the salt itself. */
uint64_t auth_salt(uint64_t tenant, uint64_t salt);
/* What a request may do by its key.  All zero if no key is configured. */
struct auth_right {
	uint64_t tenant;              /* a hash of the key's name, or of the key if it has none */
	int32_t min_priority;         /* the lowest priority value it may ask for, 0 or below */
	bool operator;                /* it may see who the clients are, and turn knobs */
	int32_t priority;             /* of its requests that ask for none */
	struct quota_limits limits;
	struct quota_row *quota;      /* what its name has used; NULL: no key is configured, or too many are */
};

/* Is the key of the request valid?  It is "Authorization: Bearer KEY" or "x-api-key: KEY"; if it has both,
 * they must be equal. */
bool auth_check(const struct auth *a, const struct http_request *r, struct auth_right *right);
/* Does the request give exactly this key, in either header? */
bool auth_shows(const struct http_request *r, const char *key);

#endif
