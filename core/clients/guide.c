/* clients/guide.c - hands clients' guides to the scheduler.
 *
 * host.c has copied a guide and checked all that needs nothing but the record.  Here it is checked against its
 * request: whose it is, whether it is guided, and whether the guide comes in order.  So the scheduler gets
 * guides of a request in order of index, each index once, and after one that is drawn nothing but
 * known ids until that token is put.
 *
 * A client that breaks the order is dropped.  It cannot do so by being late: it learns that a token was
 * put from the token itself.
 *
 * All of it belongs to the loop's thread.
 */
#include "impl.h"

#include <errno.h>
#include <string.h>

#define GUIDES       256              /* most guides of one client per call: one for each row of a large batch */
#define RECORD_WORDS ((uint32_t)(sizeof(struct sr_wire_guide) / 4))
#define MASK_SHARE   4                /* words of a mask that cost one: they are copied, but none is looked at */

/* What reading this many words of a guide costs, see clients/serve.c. */
static uint32_t cost(uint32_t words) { return RECORD_WORDS + (words - RECORD_WORDS) / MASK_SHARE; }

/* A token was put; it was the n_tokens'th. */
void guide_token(struct guided *u, int32_t id, uint32_t n_tokens)
{
	for (uint32_t i = 0; i < u->n_until; i++)
		if (u->until[i] == id) {
			u->n_until = 0;
			u->next = n_tokens;
		}
}

/* May this guide come now?  Then it counts: note how far the guides go. */
static bool in_order(struct guided *u, const struct sr_wire_guide *g, uint32_t n_tokens)
{
	bool drawing = u->drawn > n_tokens;   /* a token that is drawn has a guide and is not put yet */
	uint32_t ahead = u->next - n_tokens;

	if (u->n_until || g->index != u->next)
		return false;
	if (g->kind == SR_GUIDE_IS) {
		if (ahead - drawing + g->n > SR_GUIDE_RUN)
			return false;
		u->next += g->n;
		return true;
	}
	if (drawing)
		return false;
	u->drawn = ++u->next;
	if (g->kind == SR_GUIDE_FREE && g->n) {
		u->n_until = g->n;
		memcpy(u->until, g->id, sizeof(u->until));
	}
	return true;
}

/* Hand on one that host.c has checked.  It is ignored if its request is over, or not guided. */
static void give(struct client *c, const struct host_guide *h)
{
	const struct sr_wire_guide *g = &h->g;
	int32_t i = live_find(c, g->ticket);

	if (i == NONE || !c->live[i].guided)
		return;
	if (!in_order(&c->guide[i], g, c->live[i].n_tokens))
		conn_lie(c, -EPROTO);
}

int take_guides(struct clients *cl, struct client *c)
{
	uint32_t most = cost(RECORD_WORDS + sr_mask_words((uint32_t)cl->cfg.vocab));
	struct host_guide h;
	int n = 0, e = 0;

	for (; n < GUIDES && !c->gone && host_guide_ready(c->conn); n++) {
		if (!can_pay(cl, c, most)) {
			cl->owed = c->owes = true;
			break;
		}
		if ((e = host_guide(c->conn, &h)) <= 0)
			break;
		pay(cl, c, cost(h.words));
		if (e == 1)
			give(c, &h);
	}
	if (e < 0)
		conn_lie(c, e);
	return n;
}

/* Their records are paid for; now their masks are. */
void take_guides_kept(struct clients *cl, struct client *c)
{
	struct host_guide h;
	int e;

	while ((e = host_guide_kept(c->conn, &h)) == 1 && !c->gone) {
		pay(cl, c, cost(h.words) - RECORD_WORDS);
		give(c, &h);
	}
	if (e < 0)
		conn_lie(c, e);
}
