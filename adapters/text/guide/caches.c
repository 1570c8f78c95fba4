/* caches.c - what a grammar remembers for its guides, and how a guide moves to new caches. */
#include <errno.h>
#include <stdlib.h>

#include "adapters/text/grammar/sealed.h"
#include "guide.h"

int caches_create(struct caches **out, struct sr_grammar *g)
{
	struct caches *c = calloc(1, sizeof(*c));
	int rc = c ? earley_create(&c->y, g->g, g->tokens->all.longest) : -ENOMEM;

	if (!rc) {
		rc = masks_create(&c->m, &c->y, g->tokens);
		if (rc)
			earley_free(&c->y);
	}
	if (rc) {
		free(c);
		return rc;
	}
	*out = c;
	return 0;
}

void caches_free(struct caches *c)
{
	if (!c)
		return;
	masks_free(&c->m);
	earley_free(&c->y);
	free(c);
}

size_t caches_bytes(const struct caches *c)
{
	return earley_bytes(&c->y) + c->m.bytes + c->m.ids_cap * sizeof(*c->m.ids);
}
