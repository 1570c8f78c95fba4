/* queue.c - see queue.h.
 *
 * Requests wait in three places: in the scheduler (see its stats page), in our ring, and in our queue.
 * What the scheduler has room for starts at once, so a burst that finds it idle does not wait, although
 * the page's counters do not show that yet.
 */
#include "queue.h"

#include "tenants.h"

#define MINUTE_NS 60000000000ull
#define SOON_NS   10000000000ull /* just after its start no request may have ended yet */
#define LONGEST   60             /* seconds: some clients ignore a longer Retry-After */

static uint64_t beyond(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t waiting(const struct stats_page *page, const struct queue_load *l)
{
	uint64_t n;

	if (!page)
		return 0;
	n = most(beyond(page->waiting, l->above), beyond(l->requests, page->max_num_seqs));
	return page->waiting ? most(n, beyond(l->requests, page->running)) : n;
}

/* Tokens kept free for another tenant's longest prompt, as in core/sched/sched.c. */
static uint64_t kept_for_long(const struct config *c, const struct stats_page *page)
{
	uint64_t half = (uint64_t)c->max_num_queued_tokens / 2;

	return page->max_model_len < half ? page->max_model_len : half;
}

enum queue_limit queue_check(const struct config *c, const struct stats_page *page,
                             const struct queue_load *l, uint64_t n, uint64_t tokens)
{
	uint64_t waits = waiting(page, l), left = beyond((uint64_t)c->max_num_queued_reqs, waits);
	uint64_t left_tokens = beyond((uint64_t)c->max_num_queued_tokens, l->tokens);

	if (!waits)
		return QUEUE_ROOM;
	if (n > left || (l->mine && tenant_over(l->tenant, l->mine + n - 1, left - n)))
		return QUEUE_REQS;
	if (tokens > left_tokens || (l->mine && tenant_over(l->tenant, l->mine_tokens + tokens,
	                             beyond(left_tokens - tokens, kept_for_long(c, page)))))
		return QUEUE_TOKENS;
	return QUEUE_ROOM;
}

int queue_retry_after(const struct stats_page *page, const struct queue_load *l)
{
	struct stats_mark then, now;
	uint64_t ended, ended_then;
	double seconds;

	if (!page)
		return 1;
	stats_now(page, &now);
	if (!stats_since(page, beyond(now.at_ns, MINUTE_NS), &then) || now.at_ns <= then.at_ns)
		return 1;
	ended = counters_ended(&now.count), ended_then = counters_ended(&then.count);
	if (ended <= ended_then)
		return now.at_ns - then.at_ns > SOON_NS ? LONGEST : 1;
	seconds = (double)(now.at_ns - then.at_ns) / 1e9 / (double)(ended - ended_then);
	seconds *= l->tenant && l->mine ? (double)l->mine * l->tenants / 8 : (double)waiting(page, l) / 8;
	return seconds < 1 ? 1 : seconds > LONGEST ? LONGEST : (int)(seconds + 0.5);
}
