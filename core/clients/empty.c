/* empty.c - see empty.h.  The loop's thread. */
#include "empty.h"

#define WINDOW_NS     10000000u   /* length of a window without clients */
#define PER_CLIENT_NS 100000u     /* added for each client, because reading one costs about 100 ns */
#define SLACK_NS      1000000u    /* a client may read the clock after we did */

void empty_add(struct empty *e, enum stats_empty seen, uint64_t ns) { e->seen[seen] += ns; }

bool empty_pending(const struct empty *e)
{
	uint64_t any = 0;

	for (int i = EMPTY_SEEN; i < N_EMPTY; i++)
		any |= e->seen[i];
	return any;
}

bool empty_due(const struct empty *e, uint64_t now, int32_t n_clients)
{
	return now > e->since && now - e->since >= WINDOW_NS + (uint64_t)n_clients * PER_CLIENT_NS;
}

void empty_listen(struct empty *e) { e->silent = e->unprepared = 1; }

/* ns of the window for which a clock claims to have run; 0 if the claim is impossible. */
static uint64_t ran(uint64_t before, uint64_t said, uint64_t window)
{
	uint64_t ns = said - before;          /* a clock that ran backwards gives more than any window */

	return ns < window ? ns : ns - window <= SLACK_NS ? window : 0;
}

void empty_hear(struct empty *e, struct empty_client *c, uint64_t now, const uint64_t said[2],
                uint64_t believed[2])
{
	uint64_t window = now - e->since;
	uint64_t preparing = ran(c->ns[EMPTY_PREPARING], said[EMPTY_PREPARING], window);
	uint64_t arriving = ran(c->ns[EMPTY_ARRIVING], said[EMPTY_ARRIVING], window);

	arriving = arriving < window - preparing ? arriving : window - preparing;
	c->ns[EMPTY_PREPARING] = said[EMPTY_PREPARING];
	c->ns[EMPTY_ARRIVING] = said[EMPTY_ARRIVING];
	believed[EMPTY_PREPARING] = preparing;
	believed[EMPTY_ARRIVING] = arriving;
	if (!(preparing + arriving))
		return;                       /* most clients; always so in a window of length 0 */
	e->unprepared *= (double)(window - preparing) / (double)window;
	e->silent *= (double)(window - preparing - arriving) / (double)window;
}

void empty_split(struct empty *e, uint64_t now, uint64_t out[N_EMPTY])
{
	for (int i = EMPTY_SEEN; i < N_EMPTY; i++) {
		uint64_t ns = e->seen[i], rest;
		uint64_t unprepared = (uint64_t)((double)ns * e->unprepared);

		unprepared = unprepared < ns ? unprepared : ns;
		rest = (uint64_t)((double)ns * e->silent);
		rest = rest < unprepared ? rest : unprepared;
		out[EMPTY_TOKENIZING] += ns - unprepared;
		out[EMPTY_NETWORK] += unprepared - rest;
		out[i] += rest;
		e->seen[i] = 0;
	}
	e->since = now;
}
