/* past.h - what a daemon did: the last ten minutes by the second, and the last day by the minute.
 *
 * The stats page keeps only minutes, and these without latencies.  So the seconds are kept here, the
 * latencies of minutes, and the turns of knobs with the time at which they were seen: none is known from
 * before this process began. */
#ifndef PAST_H
#define PAST_H

#include <stdbool.h>
#include <stdint.h>

#include "adapters/http/json/out.h"
#include "core/figures/figures.h"
#include "core/instance/knobs.h"

#define PAST_SECONDS 600
#define PAST_TURNS   64
#define PAST_BUSY    10                       /* seconds with work that are judged */
#define PAST_BUSY_S  300                      /* and how old they may be */

/* Columns of one row: of the axes in ms, of rates in 1/s, of latencies in us. */
enum past_column {
	PAST_WHY, PAST_BOUND = PAST_WHY + N_WHY, PAST_EMPTY = PAST_BOUND + N_BOUND,
	PAST_AXES = PAST_EMPTY + N_EMPTY,
	PAST_PROMPT = PAST_AXES, PAST_GENERATED, PAST_REQUESTS, PAST_RUNNING, PAST_WAITING, PAST_HITS, PAST_KV,
	PAST_TTFT_50, PAST_TTFT_99, PAST_ITL_50, PAST_ITL_99, PAST_QUEUE_50, PAST_QUEUE_99, PAST_COLUMNS
};
#define PAST_NONE UINT32_MAX                  /* nothing was observed */
#define PAST_LATENCIES (PAST_COLUMNS - PAST_TTFT_50)

struct past_row {
	uint32_t at;                          /* its end, seconds since 1970 */
	uint32_t v[PAST_COLUMNS];
};

struct past {
	uint64_t epoch;                       /* of the daemon that was looked at; 0: none yet */
	struct stats_mark mark;               /* at the last look */
	struct past_hists { struct stats_histogram ttft, itl, queue; } second, minute; /* at its begin */
	struct past_minute { uint32_t number, v[PAST_LATENCIES]; } day[STATS_MINUTES]; /* number i: at [i % ..] */
	uint32_t minute_now;                  /* its number: seconds since 1970 / 60 */
	struct past_row row[PAST_SECONDS];    /* row i lies at [i % PAST_SECONDS] */
	uint64_t n_rows;
	struct past_busy {
		uint64_t from_ns, to_ns;
		uint32_t at;                  /* its end, seconds since 1970 */
		struct counters n;
	} busy[PAST_BUSY];                    /* something was under way; second i lies at [i % PAST_BUSY] */
	uint64_t n_busy;
	int64_t knob[N_KNOBS];
	struct past_turn { uint32_t at; int knob; int64_t was, now; } turn[PAST_TURNS];
	uint64_t n_turns;                     /* turn i lies at [i % PAST_TURNS] */
};

/* Look at a page that was just read; once a second. */
void past_look(struct past *p, const struct stats_page *page, bool alive);

/* What was counted in the last busy seconds, as a mark: at_ns is how long they took together.  Returns when
 * the first of them began, MONOTONIC; 0: there was none in the last five minutes.  *until: when the last one
 * ended, in s since 1970. */
uint64_t past_lately(const struct past *p, struct stats_mark *sum, uint32_t *until);

/* {"seconds": {"at": [..], "why": {"seqs": [..], ..}, ..}, "minutes": {..}, "turns": [..]}.  A column of
 * zeros is left out.  page NULL: no minutes. */
void past_json(struct out *o, const struct past *p, const struct stats_page *page);

#endif
