/* grammars.h - compiled grammars of one adapter process, shared by the requests that ask for the same one.
 *
 * A grammar in use is never dropped.  Of the others the least recently used ones are, while all together
 * take more than GRAMMARS_KEPT.  Grammars in use may take GRAMMARS_USED; a tenant may have 8 times what it
 * leaves of that to others.  Any thread may call; a compilation holds no lock.
 */
#ifndef GRAMMARS_H
#define GRAMMARS_H

#include <stddef.h>
#include <stdint.h>

#include "adapters/http/json/openai.h"

#define GRAMMARS_KEPT (64u << 20)
#define GRAMMARS_USED (512u << 20)
#define GRAMMARS_NOTE 256              /* the most bytes of a note */

struct api_shared;
struct grammar_use;
struct grammars;

int  grammars_create(struct grammars **out, const struct sr_text *t, struct api_shared *shared, size_t kept,
                     size_t used);       /* 0, -ENOMEM */
void grammars_destroy(struct grammars *gs); /* nothing is in use */

/* The grammar of a->guide if it is compiled already, else NULL. */
struct grammar_use *grammars_find(struct grammars *gs, const struct ask *a, uint64_t tenant);
/* The same, compiled now if need be.  NULL and *p: it is no grammar (400), or there is no room (503). */
struct grammar_use *grammars_get(struct grammars *gs, const struct ask *a, uint64_t tenant,
                                 struct problem *p);
void grammars_put(struct grammars *gs, struct grammar_use *u);
struct sr_grammar *grammars_grammar(const struct grammar_use *u);
/* What of it is not enforced, for a header line: one sentence, or "". */
const char *grammars_note(const struct grammar_use *u);

#endif
