/* clients/guide.c - hands clients' guides to the scheduler.
 *
 * host.c has copied a guide and checked all that needs nothing but the record.  Here it gets the name that
 * the scheduler knows its request by.  The scheduler has what is left to check: whether the guide is the next
 * of its request.
 *
 * A client whose guide is not the next is dropped.  It cannot come to that by being late: it learns from a
 * token that the guide before was used.
 *
 * All of it belongs to the loop's thread.
 */
#include "impl.h"

#include <errno.h>

#define GUIDES       256              /* most guides of one client per call: one for each row of a large batch */
#define RECORD_WORDS ((uint32_t)(sizeof(struct sr_wire_guide) / 4))
#define MASK_SHARE   4                /* words of a mask that cost one: they are copied, but none is looked at */

/* What reading this many words of a guide costs, see clients/serve.c. */
static uint32_t cost(uint32_t words) { return RECORD_WORDS + (words - RECORD_WORDS) / MASK_SHARE; }

/* It is ignored if its request is over, or not guided. */
static void give(struct clients *cl, struct client *c, const struct host_guide *h)
{
	const struct sr_wire_guide *g = &h->g;
	int32_t i = live_find(c, g->ticket);
	int e;

	if (i == NONE)
		return;
	e = sched_guide(cl->s, c, (uint64_t)i, &(struct sched_guide){
		.index = (int32_t)g->index, .kind = g->kind, .n = g->n, .id = g->id, .bits = h->bits });
	if (e < 0 && e != -ENOENT) {
		conn_lie(c, e);
	} else if (e == 0 && g->kind == SR_GUIDE_BITS) {
		struct live *q = &c->live[i];

		q->masks++;
		q->mask_us += (uint32_t)g->id[0];
		if (q->mask_most_us < (uint32_t)g->id[0])
			q->mask_most_us = (uint32_t)g->id[0];
	}
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
			give(cl, c, &h);
	}
	if (e < 0)
		conn_lie(c, e);
	cl->cfg.counters->guides += (uint64_t)n;
	return n;
}

/* Their records are paid for; now their masks are. */
void take_guides_kept(struct clients *cl, struct client *c)
{
	struct host_guide h;
	int e;

	while (!c->gone && (e = host_guide_kept(c->conn, &h)) != 0) {
		if (e < 0) {
			conn_lie(c, e);
			return;
		}
		pay(cl, c, cost(h.words) - RECORD_WORDS);
		give(cl, c, &h);
	}
}
