/* places.c - who holds the places for connections, and who gives one up when they are all taken.
 *
 * A connection is trusted while the last head it sent showed a valid key (exchange_trust).  A newcomer has
 * shown none yet.  When it finds no free place, one is made by ending
 *
 *	1. of those without a key that are in the same state for GRACE_NS or longer the oldest, by state:
 *	   lingering, shaking hands, sending a head, sending a body, idle, not reading an answer
 *	2. where all of these are younger: the oldest of them
 *	3. an idle one with a key: the one that is idle longest
 *
 * One that the app is working for is never ended.  Idle ones with a key come first instead of last while
 * those without hold less than a ninth of the places: newcomers need a moment to show a key.
 *
 * Without a key one address holds at most eight ninths of all places: as many as eight times what it leaves
 * to others.  Its next newcomer takes the place of one of its own.  Addresses are counted by a keyed hash:
 * two that collide share their share.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "conn_impl.h"
#include "core/log.h"

#define GRACE_NS (SECOND / 2)
#define SAY_NS   (10 * SECOND)     /* the log tells of it so often */

static uint64_t mix(uint64_t h)   /* the finish of SplitMix64 */
{
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	return h ^ h >> 31;
}

/* Of IPv6 the first 64 bits: one client has all the others. */
static int address_of(const struct server *s, const struct sockaddr_storage *a)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
	uint32_t word = 0;
	uint64_t n = 0;

	if (a->ss_family == AF_INET) {
		word = v4->sin_addr.s_addr;
	} else if (a->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
		memcpy(&word, v6->sin6_addr.s6_addr + 12, sizeof(word));
	} else if (a->ss_family == AF_INET6) {
		memcpy(&n, v6->sin6_addr.s6_addr, sizeof(n));
	} else {
		return -1;             /* a Unix socket: its clients have no address */
	}
	return (int)(mix(mix(n ^ s->secret) ^ word) & (s->n_addresses - 1));
}

static void count(struct conn *c, int by)
{
	c->s->n_stranger += by;
	if (c->address >= 0)
		c->s->held_by[c->address] += by;
}

/* ---- the lists ---------------------------------------------------------------------------- */

static struct conn_link *list_of(struct conn *c)
{
	static const int by_state[] = {
		[HANDSHAKE] = PLACE_HANDSHAKE, [IDLE] = PLACE_IDLE, [HEAD] = PLACE_HEAD,
		[BODY] = PLACE_BODY, [BUSY] = -1, [SENDING] = PLACE_SENDING, [LINGER] = PLACE_LINGER,
	};
	int i = by_state[c->state];

	if (c->trusted && c->state != LINGER)
		i = c->state == IDLE ? PLACE_KEPT : -1;
	else if (c->x.live)
		i = -1;
	return i < 0 ? NULL : &c->s->place[i];
}

void place_enter(struct conn *c)
{
	struct conn_link *list = list_of(c);

	link_remove(&c->place);
	c->entered = io_now();
	if (list)
		link_append(list, &c->place);
}

void place_trust(struct conn *c, bool trusted)
{
	if (c->trusted == trusted)
		return;
	count(c, trusted ? -1 : 1);
	c->trusted = trusted;
}

void exchange_trust(struct exchange *x) { place_trust(x->conn, true); }

void place_leave(struct conn *c)
{
	link_remove(&c->place);
	if (!c->trusted)
		count(c, -1);
}

/* ---- making room -------------------------------------------------------------------------- */

static struct conn *oldest(struct server *s, int list, int address)
{
	for (struct conn_link *l = s->place[list].next; l != &s->place[list]; l = l->next) {
		struct conn *c = conn_of(l, offsetof(struct conn, place));

		if (address < 0 || c->address == address)
			return c;
	}
	return NULL;
}

/* Of those without a key, of one address or (-1) of any. */
static struct conn *stranger(struct server *s, int address)
{
	uint64_t old = io_now() - GRACE_NS;
	struct conn *first = NULL;

	for (int i = 0; i < PLACE_KEPT; i++) {
		struct conn *c = oldest(s, i, address);

		if (c && c->entered <= old)
			return c;
		if (c && (!first || c->entered < first->entered))
			first = c;
	}
	return first;
}

static bool end(struct server *s, struct conn *c)
{
	if (!c)
		return false;
	s->n_ended++;
	if (io_now() >= s->tell_at) {
		s->tell_at = io_now() + SAY_NS;
		log_warn("connections without a valid key, or idle ones, are closed to make room for new ones: "
		         "%llu so far, %d are open (--max-connections %d)", (unsigned long long)s->n_ended,
		         s->n_open, s->cfg.max_connections);
	}
	if (!c->x.status)
		c->x.status = 503;     /* for the access log */
	conn_lose(c);
	return true;
}

bool place_make(struct server *s)
{
	struct conn *kept = oldest(s, PLACE_KEPT, -1), *c = NULL;

	if (!kept || s->n_stranger > s->cfg.max_connections / 9)
		c = stranger(s, -1);
	return end(s, c ? c : kept);
}

/* A place for a client with this address, or NULL: then nobody may be ended for it. */
struct conn *place_take(struct server *s, const struct sockaddr_storage *from)
{
	int address = address_of(s, from), most = s->cfg.max_connections - s->cfg.max_connections / 9;
	struct conn *c;

	if (address >= 0 && s->held_by[address] >= most) {
		if (!end(s, stranger(s, address)))
			return NULL;
	} else if (!s->spare && s->n_fresh == s->cfg.max_connections && !place_make(s)) {
		return NULL;
	}
	c = s->spare;
	if (c)
		s->spare = c->x.ctx;
	else
		c = &s->conn[s->n_fresh++];
	return c;
}

void place_open(struct conn *c, const struct sockaddr_storage *peer)
{
	link_init(&c->place);
	c->address = address_of(c->s, peer);
	count(c, 1);
}

/* 0, -ENOMEM. */
int places_create(struct server *s)
{
	for (int i = 0; i < N_PLACES; i++)
		link_init(&s->place[i]);
	for (s->n_addresses = 64; s->n_addresses < 4 * s->cfg.max_connections;)
		s->n_addresses *= 2;
	s->held_by = calloc((size_t)s->n_addresses, sizeof(*s->held_by));
	if (getrandom(&s->secret, sizeof(s->secret), GRND_NONBLOCK) < 0)
		s->secret = io_now();
	return s->held_by ? 0 : -ENOMEM;
}
