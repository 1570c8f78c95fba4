/* timings.c - see timings.h. */
#include "timings.h"

#include <stdio.h>

#include "adapters/http/json/out.h"
#include "shmring/slipring.h"

static uint64_t between(uint64_t from, uint64_t to) { return to > from ? to - from : 0; }

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The earlier of two times, of which 0 is none. */
static uint64_t earlier(uint64_t a, uint64_t b) { return !a || (b && b < a) ? b : a; }

void timings_add(struct timings *t, const struct sr_end *e, uint64_t tokens, uint64_t now)
{
	uint64_t scheduled = e->scheduled ? later(e->scheduled, e->queued) : later(now, e->queued);
	uint64_t first = later(e->first ? e->first : now, scheduled);

	t->queued = earlier(t->queued, e->queued);
	t->scheduled = earlier(t->scheduled, scheduled);
	t->first = earlier(t->first, first);
	t->last = later(t->last, later(e->last, first));
	t->cached += e->cached;
	t->computed += e->computed;
	t->tokens += tokens;
	t->known = true;
}

/* ,"name":milliseconds: all digits, so that the parts add up to the last one. */
static void ms(struct out *o, const char *name, uint64_t ns)
{
	out_fmt(o, ",\"%s\":%llu.%06llu", name, (unsigned long long)(ns / 1000000),
	        (unsigned long long)(ns % 1000000));
}

/* ,"x_n":..,"x_ms":..,"x_per_token_ms":..,"x_per_second":..: a rate is null where it would divide by 0. */
static void rates(struct out *o, const char *name, uint64_t n, uint64_t ns)
{
	char key[40];

	out_fmt(o, ",\"%s_n\":%llu", name, (unsigned long long)n);
	snprintf(key, sizeof(key), "%s_ms", name);
	ms(o, key, ns);
	if (n)
		out_fmt(o, ",\"%s_per_token_ms\":%.6f", name, (double)ns / 1e6 / (double)n);
	else
		out_fmt(o, ",\"%s_per_token_ms\":null", name);
	if (ns)
		out_fmt(o, ",\"%s_per_second\":%.3f", name, (double)n * 1e9 / (double)ns);
	else
		out_fmt(o, ",\"%s_per_second\":null", name);
}

void timings_json(struct out *o, const struct timings *t)
{
	out_fmt(o, "{\"cache_n\":%llu", (unsigned long long)t->cached);
	rates(o, "prompt", t->computed, between(t->scheduled, t->first));
	rates(o, "predicted", t->tokens, between(t->first, t->last));
	ms(o, "queue_ms", between(t->queued, t->scheduled));
	ms(o, "total_ms", between(t->queued, t->last));
	out_str(o, "}");
}

const char *timings_line(char out[TIMINGS_LINE], const struct timings *t)
{
	*out = 0;
	if (t->known)
		snprintf(out, TIMINGS_LINE, "server-timing: queue;dur=%.3f, prompt;dur=%.3f, "
		         "cached;desc=\"%llu/%llu\", decode;dur=%.3f, total;dur=%.3f\r\n",
		         (double)between(t->queued, t->scheduled) / 1e6,
		         (double)between(t->scheduled, t->first) / 1e6,
		         (unsigned long long)t->cached, (unsigned long long)(t->cached + t->computed),
		         (double)between(t->first, t->last) / 1e6, (double)between(t->queued, t->last) / 1e6);
	return out;
}
