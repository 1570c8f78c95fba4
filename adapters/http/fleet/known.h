/* known.h - what a daemon has cached of a prompt, as far as an adapter can know.
 *
 * The daemon's prefix page (core/prefix.h) shows what it has published.  What this adapter has sent it lately
 * is being computed, so it counts as cached, too.
 */
#ifndef KNOWN_H
#define KNOWN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/prefix.h"
#include "shmring/slipring.h"

struct known;                        /* of one daemon */

/* The names of a prompt's blocks, for all daemons with the same secret and the same scope. */
#define KNOWN_DAEMONS 64             /* most daemons that are asked */
#define KNOWN_BLOCKS 4096            /* the first so many blocks of a prompt are looked up */
struct known_names {
	int32_t n;                   /* blocks */
	const int32_t *prompt;       /* whose they are; NULL: nothing was named yet */
	struct prefix_secret secret;
	uint32_t block_tokens, scope;
	bool gateway;                /* the request's tenant was heard */
	uint64_t low[KNOWN_BLOCKS];
};

/* Ask the daemon in run_dir for its page, in a second at most.  0, -ENOTSUP: it shows none; -errno. */
int  known_fetch(const struct prefix_page **out, const char *run_dir);

int  known_create(struct known **out);
void known_destroy(struct known *k);
/* The daemon is another one now, with this page, which is owned from now on; NULL: it shows none. */
void known_renew(struct known *k, const struct prefix_page *page);

/* How many tokens of q's prompt each of n daemons has, or will have when q is served.  Each is the one of
 * ask[i].known, or NULL; gateway: it hears tenants. */
struct known_ask { struct known *known; bool gateway; uint32_t tokens; };
void known_tokens(struct known_ask *ask, int n, const struct sr_request *q, struct known_names *names,
                  uint64_t now);
/* q goes to this daemon. */
void known_sent(const struct known_ask *to, const struct sr_request *q, struct known_names *names,
                  uint64_t now);

#endif
