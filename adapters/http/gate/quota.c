/* quota.c - see quota.h. */
#include "quota.h"

#include <stdio.h>
#include <string.h>

#define MINUTE  60000000000ull   /* ns */
#define FINE    64               /* parts of a ns: a token at 10^9 a minute takes 60 ns, or 3,840 parts */

static const struct { const char *what; size_t limit; } bucket[2] = {
	{ "requests", offsetof(struct quota_limits, rpm) }, { "tokens", offsetof(struct quota_limits, tpm) },
};

static uint32_t limit_of(const struct quota_limits *l, int i)
{
	return *(const uint32_t *)(const void *)((const char *)l + bucket[i].limit);
}

static uint64_t add(_Atomic uint64_t *to, uint64_t n)
{
	return atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

struct quota_row *quota_row(struct quota_table *t, uint64_t tenant, const char *name)
{
	for (uint64_t i = 0; i < QUOTA_ROWS; i++) {
		struct quota_row *r = &t->row[(tenant + i) % QUOTA_ROWS];
		uint64_t is = atomic_load_explicit(&r->tenant, memory_order_acquire);

		if (!is && atomic_compare_exchange_strong(&r->tenant, &is, tenant)) {
			snprintf(r->name, sizeof(r->name), "%.47s", name);
			atomic_store(&r->order, atomic_fetch_add(&t->n, 1) + 1);
		} else if (is != tenant) {
			continue;
		}
		return r;
	}
	return NULL;
}

void quota_begin(struct quota_table *t, int process)
{
	for (int i = 0; i < QUOTA_ROWS; i++)
		if (atomic_load_explicit(&t->row[i].tenant, memory_order_relaxed))
			atomic_store_explicit(&t->row[i].under_way[process], 0, memory_order_relaxed);
}

uint32_t quota_under_way(const struct quota_row *r)
{
	uint32_t n = 0;

	for (int i = 0; i < QUOTA_PROCESSES; i++)
		n += atomic_load_explicit(&r->under_way[i], memory_order_relaxed);
	return n;
}

/* What n of bucket i cost, in its units of time; n is cut at 1,000 minutes' worth. */
static uint64_t cost_of(const struct quota_limits *l, int i, uint64_t n)
{
	const uint64_t limit = limit_of(l, i), room = MINUTE * FINE;

	return n > limit * 1000 ? room * 1000 : n * room / limit;
}

/* Take n from bucket i.  False: it does not have them, and *wait says when; `owe`: take them all the same. */
static bool take(struct quota_row *r, const struct quota_limits *l, int i, uint64_t n, uint64_t now, bool owe,
                 struct quota_wait *wait)
{
	const uint64_t room = MINUTE * FINE, at = now * FINE;
	uint64_t was = atomic_load_explicit(&r->until[i], memory_order_relaxed), from, cost;

	if (!limit_of(l, i))
		return true;
	cost = cost_of(l, i, n);
	do {
		from = was > at ? was : at;
		if (!owe && from + cost > at + room) {
			wait->ns = (from + cost - at - room) / FINE + 1;
			wait->never = cost > room;
			return false;
		}
	} while (!atomic_compare_exchange_weak_explicit(&r->until[i], &was, from + cost, memory_order_relaxed,
	                                                memory_order_relaxed));
	return true;
}

enum quota_refusal quota_enter(struct quota_row *r, const struct quota_limits *l, int process, uint64_t now,
                               struct quota_wait *wait)
{
	enum quota_refusal why = QUOTA_OK;

	*wait = (struct quota_wait){ .ns = 1 };
	atomic_fetch_add(&r->under_way[process], 1); /* first: two processes must not both see one place */
	if (l->parallel && quota_under_way(r) > l->parallel)
		why = QUOTA_PARALLEL;
	else if (!take(r, l, 0, 1, now, false, wait))
		why = QUOTA_REQUESTS;
	if (why)
		quota_leave(r, process, 1);
	add(why ? &r->refused[why] : &r->requests, 1);
	return why;
}

enum quota_refusal quota_answers(struct quota_row *r, const struct quota_limits *l, int process, uint32_t n)
{
	if (!n)                               /* another process may count one for a moment, to refuse it */
		return QUOTA_OK;
	atomic_fetch_add(&r->under_way[process], n);
	if (!l->parallel || quota_under_way(r) <= l->parallel)
		return QUOTA_OK;
	quota_leave(r, process, n);
	add(&r->refused[QUOTA_PARALLEL], 1);
	return QUOTA_PARALLEL;
}

void quota_leave(struct quota_row *r, int process, uint32_t answers)
{
	atomic_fetch_sub(&r->under_way[process], answers);
}

enum quota_refusal quota_tokens(struct quota_row *r, const struct quota_limits *l, uint64_t n, uint64_t now,
                                struct quota_wait *wait)
{
	if (take(r, l, 1, n, now, false, wait))
		return QUOTA_OK;
	add(&r->refused[QUOTA_TOKENS], 1);
	return QUOTA_TOKENS;
}

void quota_used(struct quota_row *r, const struct quota_limits *l, uint64_t prompt, uint64_t cached,
                uint64_t answer, uint64_t taken, uint64_t now)
{
	struct quota_wait none;

	add(&r->prompt, prompt);
	add(&r->cached, cached);
	add(&r->answer, answer);
	if (answer > taken)
		take(r, l, 1, answer - taken, now, true, &none);
	else if (l->tpm) /* in a bucket that has been refilled meanwhile it changes nothing */
		atomic_fetch_sub_explicit(&r->until[1], cost_of(l, 1, taken) - cost_of(l, 1, answer),
		                          memory_order_relaxed);
}

const char *quota_lines(char out[QUOTA_LINES], const struct quota_row *r, const struct quota_limits *l,
                        uint64_t now)
{
	const uint64_t at = now * FINE;
	size_t n = 0;

	*out = 0;
	for (int i = 0; r && i < 2; i++) {
		const uint64_t limit = limit_of(l, i);
		const uint64_t until = atomic_load_explicit(&r->until[i], memory_order_relaxed);
		const uint64_t used = until > at ? until - at : 0, room = MINUTE * FINE, ms = used / FINE / 1000000;

		if (!limit)
			continue;
		n += (size_t)snprintf(out + n, QUOTA_LINES - n, "x-ratelimit-limit-%s: %llu\r\n"
		                      "x-ratelimit-remaining-%s: %llu\r\nx-ratelimit-reset-%s: %llu.%03llus\r\n",
		                      bucket[i].what, (unsigned long long)limit, bucket[i].what,
		                      (unsigned long long)(used < room ? (room - used) / (room / limit) : 0),
		                      bucket[i].what, (unsigned long long)(ms / 1000),
		                      (unsigned long long)(ms % 1000));
	}
	return out;
}
