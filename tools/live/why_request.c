/* why_request.c - see why_request.h.  It reads the ends in the stats page; the daemon does nothing for it. */
#include "tools/live/why_request.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shmring/clock.h"
#include "shmring/slipring.h"
#include "core/instance/stats.h"
#include "core/figures/figures.h"
#include "tools/instance.h"

#define SHOWN 0.01                        /* a part of a time that is worth a word */

static double ms(uint64_t from, uint64_t to) { return from && to > from ? (double)(to - from) / 1e6 : 0; }

/* Units of a span are 1,024 ns. */
static double span_ms(uint32_t units) { return units * 1024e-6; }

static double beside(const struct stats_span *s) { return s->steps ? (double)s->rows / s->steps : 0; }

static const char *finish_of(const struct stats_ended *e)
{
	switch (e->finish) {
	case SR_STOP: return "stop";
	case SR_LENGTH: return "length";
	case -ECANCELED: return e->n_tokens ? "cancelled: its client had what it needed, or was gone" :
		"cancelled before its first token";
	case -ETIME: return "its deadline passed";
	case -EDOM: return "its grammar and its lists left no token";
	case -ETIMEDOUT: return "no guide came for 10 s";
	case -ENOSPC: return "it needs more KV cache than there is";
	case -ECONNRESET: return "the daemon was stopping";
	default: return strerror(e->finish < 0 ? -e->finish : EINVAL);
	}
}

/* ---- in words ---------------------------------------------------------------------------- */

/* The parts of a span that matter, longest first: "seqs 38.1 ms, kv 2.0 ms". */
static void print_parts(const char *title, const uint32_t *units, int n, int skipped, double all,
                        const char *(*name)(int))
{
	bool done[16] = { false }, some = false;

	for (int k = 0; k < n; k++) {
		int most = -1;

		for (int i = 0; i < n; i++)
			if (!done[i] && i != skipped && (most < 0 || units[i] > units[most]))
				most = i;
		if (most < 0 || span_ms(units[most]) < SHOWN * all || !units[most])
			break;
		done[most] = true;
		printf("%s%s %.1f ms", some ? ", " : title, name(most), span_ms(units[most]));
		some = true;
	}
	if (some)
		printf("\n");
}

static void print_guides(const struct stats_ended *e)
{
	if (!e->guided)
		return;
	if (!e->masks)
		printf("  grammar       its tokens were guided, without a mask\n");
	else if (!e->mask_us)
		printf("  grammar       %u masks; the client did not say how long they took\n", e->masks);
	else
		printf("  grammar       %u masks in %.1f ms, the slowest %.2f ms%s\n", e->masks, e->mask_us / 1e3,
		       e->mask_most_us / 1e3, e->mask_most_us > 1000 ?
		       ": this schema costs more than 1 ms a mask" : "");
}

static void print_end(const struct stats_ended *e)
{
	uint64_t planned = e->scheduled ? e->scheduled : e->at, first = e->first ? e->first : e->at;
	char age[32];

	figures_age(age, sizeof(age), ms(e->at, sr_now()) / 1e3);
	printf("of %s (uid %u), ended %s ago: %s\n", e->client, e->uid, age, finish_of(e));
	printf("  waited        %8.1f ms\n", ms(e->queued, planned));
	print_parts("                no row for it, or for others: ", e->before.why, N_WHY, WHY_EMPTY,
	            ms(e->queued, first), sched_why_name);
	if (e->scheduled)
		printf("  prompt        %8.1f ms   %u tokens, %u of them cached, %u computed\n",
		       ms(e->scheduled, first), e->n_prompt, e->cached, e->computed);
	if (e->first)
		printf("  first token   %8.1f ms   after it was sent\n", ms(e->queued, e->first));
	if (e->n_tokens > 1)
		printf("  answer        %8.1f ms   %u tokens of at most %u, one every %.2f ms\n",
		       ms(e->first, e->last), e->n_tokens, e->max_tokens, ms(e->first, e->last) / (e->n_tokens - 1));
	if (e->after.steps)
		printf("  beside        %8.1f      rows in a step on average, its own included, over %u steps\n",
		       beside(&e->after), e->after.steps);
	print_parts("  no more rows  because of ", e->after.why, N_WHY, WHY_EMPTY, ms(first, e->at),
	            sched_why_name);
	print_parts("  bound by      ", e->n_tokens > 1 ? e->after.bound : e->before.bound, N_BOUND, BOUND_IDLE,
	            ms(e->n_tokens > 1 ? first : e->queued, e->at), sched_bound_name);
	if (e->preempted)
		printf("  preempted     %8u times: others needed its KV blocks, and it was computed again\n",
		       e->preempted);
	print_guides(e);
}

/* ---- for programs ------------------------------------------------------------------------ */

static json_t *parts_json(const uint32_t *units, int n, const char *(*name)(int))
{
	json_t *j = json_object();

	for (int i = 0; i < n; i++)
		if (units[i])
			json_object_set_new(j, name(i), json_real(span_ms(units[i])));
	return j;
}

static json_t *span_json(const struct stats_span *s)
{
	return json_pack("{s:I, s:f, s:o, s:o}", "steps", (json_int_t)s->steps, "rows", beside(s), "why_ms",
	                 parts_json(s->why, N_WHY, sched_why_name), "bound_ms",
	                 parts_json(s->bound, N_BOUND, sched_bound_name));
}

static json_t *end_json(const struct stats_ended *e)
{
	uint64_t planned = e->scheduled ? e->scheduled : e->at, first = e->first ? e->first : e->at;
	char trace[33];
	json_t *j;

	for (int i = 0; i < 16; i++)
		snprintf(trace + 2 * i, 3, "%02x", e->trace[i]);
	j = json_pack("{s:s, s:I, s:s, s:s, s:f, s:f, s:f, s:f, s:f}", "client", e->client, "uid",
	              (json_int_t)e->uid, "trace", trace, "finish",
	              finish_of(e), "ended_s_ago", ms(e->at, sr_now()) / 1e3, "queue_ms", ms(e->queued, planned),
	              "prompt_ms", ms(planned, first), "predicted_ms", ms(first, e->last), "total_ms",
	              ms(e->queued, e->last ? e->last : e->at));
	json_object_update_new(j, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:f, s:f, s:o, s:o}",
	              "prompt_tokens", (json_int_t)e->n_prompt, "cache_n", (json_int_t)e->cached, "prompt_n",
	              (json_int_t)e->computed, "predicted_n", (json_int_t)e->n_tokens, "max_tokens",
	              (json_int_t)e->max_tokens, "preempted", (json_int_t)e->preempted, "guided", e->guided != 0,
	              "masks", (json_int_t)e->masks, "mask_ms", e->mask_us / 1e3, "mask_ms_most",
	              e->mask_most_us / 1e3, "until_first_token", span_json(&e->before), "after_it",
	              span_json(&e->after)));
	return j;
}

/* ---- which ------------------------------------------------------------------------------- */

/* A trace id: 32 hexadecimal digits. */
static bool trace_of(const char *id, uint8_t out[16])
{
	unsigned byte;

	if (strlen(id) != 32 || strspn(id, "0123456789abcdefABCDEF") != 32)
		return false;
	for (int i = 0; i < 16; i++)
		if (sscanf(id + 2 * i, "%2x", &byte) == 1)
			out[i] = (uint8_t)byte;
	return true;
}

struct wanted { uint64_t name[4]; uint8_t trace[16]; bool traced; };

/* An id is that of an answer, or of its X-Request-Id header, which the answer's id has a prefix before. */
static void wanted_of(struct wanted *w, const char *id)
{
	static const char *const prefix[] = { "", "chatcmpl-", "cmpl-", "embd-" };
	char full[512];

	w->traced = trace_of(id, w->trace);
	for (int i = 0; i < 4; i++)
		w->name[i] = stats_request_name(full, (size_t)snprintf(full, sizeof(full), "%s%.400s", prefix[i],
		                                                       id));
}

static bool is_wanted(const struct wanted *w, const struct stats_ended *e)
{
	for (int i = 0; i < 4; i++)
		if (e->name && e->name == w->name[i])
			return true;
	return w->traced && !memcmp(w->trace, e->trace, sizeof(e->trace));
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = (*(const struct stats_ended *const *)a)->number;
	uint64_t y = (*(const struct stats_ended *const *)b)->number;

	return (x > y) - (x < y);
}

int why_request(const struct instance *in, const char *id, bool json)
{
	static const struct stats_ended *found[STATS_ENDED];
	const struct stats_page *p = in->page;
	json_t *all = json_array();
	struct wanted w = { .traced = false };
	int n = 0, e = stats_read_ended(p);

	if (id)
		wanted_of(&w, id);
	for (int i = 0; e == 0 && i < STATS_ENDED; i++)
		if (p->ended[i].number && (!id || is_wanted(&w, &p->ended[i])))
			found[n++] = &p->ended[i];
	qsort(found, (size_t)n, sizeof(*found), by_number);
	for (int i = id || !n ? 0 : n - 1; i < n; i++) /* without an id: the last one */
		if (json)
			json_array_append_new(all, end_json(found[i]));
		else
			print_end(found[i]);
	if (json && n && !(e = json_dumpf(all, stdout, JSON_REAL_PRECISION(9))))
		putchar('\n');
	json_decref(all);
	if (!n)
		fprintf(stderr, "slipring why: no request %s%sis among the %d ends that %s keeps\n", id ? id : "",
		        id ? " " : "", STATS_ENDED, in->name);
	return e < 0 || !n;
}
