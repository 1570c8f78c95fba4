/* places.c - the places for connections, and which connection is ended when all of them are taken.
 *
 * A connection is trusted while the last head it sent had a valid key (exchange_trust).  A new connection
 * has sent no key yet.  If it finds no free place, one of these is ended, the first that exists:
 *
 *	1. the oldest connection without a key that has been in its state for GRACE_NS or longer, by state:
 *	   lingering, in its handshake, sending a head, sending a body, idle, not reading an answer
 *	2. if all of these are younger: the oldest of them
 *	3. the connection with a key that has been idle longest
 *	4. the connection with a key that has been sending a head or a body, or not reading its answer, longest:
 *	   if for SLOW_NS or longer
 *
 * A connection that the app works for is never ended.  Rule 3 comes first while connections without a key
 * hold less than a ninth of the places, because a new connection needs a moment to send its key.
 *
 * The connections of one address without a key hold at most 8/9 of all places: 8 times what they leave to
 * others.  The next one from there takes the place of one of them.  Addresses are counted by a keyed hash:
 * two that collide have one limit together.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "conn_impl.h"
#include "core/instance/log.h"

#define GRACE_NS (SECOND / 2)
#define SLOW_NS  (5 * SECOND)
#define SAY_NS   (10 * SECOND)     /* the least time between two lines of the log about it */

static uint64_t mix(uint64_t h)   /* the finalizer of SplitMix64 */
{
	h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
	h = (h ^ h >> 27) * 0x94d049bb133111ebu;
	return h ^ h >> 31;
}

/* Only the first 64 bits of an IPv6 address count, because one client can use all addresses behind them. */
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
		return -1;             /* a Unix socket has no client addresses */
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
		i = c->state == IDLE ? PLACE_KEPT : i < 0 ? -1 : PLACE_SLOW;
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

/* The connection without a key to end, of one address or (-1) of any; NULL: there is none. */
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
	struct conn *kept = oldest(s, PLACE_KEPT, -1), *slow = oldest(s, PLACE_SLOW, -1), *c = NULL;

	if (!kept || s->n_stranger > s->cfg.max_connections / 9)
		c = stranger(s, -1);
	if (!c && !kept && slow && slow->entered + SLOW_NS <= io_now())
		c = slow;
	return end(s, c ? c : kept);
}

/* A place for a client with this address.  NULL: no connection may be ended for it. */
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
