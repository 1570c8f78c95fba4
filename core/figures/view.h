/* view.h - what a daemon does now: rates, latencies, limits and clients, from two copies of its stats page.
 * slipring top and the page of slipring-http show the same view. */
#ifndef VIEW_H
#define VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "figures.h"

struct view_look {
	struct stats_page page;
	struct stats_mark mark;
};

struct view_row {                         /* one client */
	const struct stats_client *c;     /* in now->page */
	double prompt_per_s, generated_per_s, requests_per_s;
	char name[33];
	char remark[64];
};

struct view {
	const char *instance;
	bool alive;                       /* the daemon, at the last look */
	bool first;                       /* there is no older copy: figures are since READY */
	struct view_look *old, *now;
	struct figures f;
	double ttft[3], itl[3], queue[3];           /* p50, p90, p99; seconds */
	struct view_row row[STATS_CLIENTS]; /* the busiest first */
	int n_rows;
	uint64_t epoch;                   /* of the daemon that was looked at */
};

/* 5 MB.  NULL: no memory.  instance must outlive it. */
struct view *view_create(const char *instance);
void view_destroy(struct view *v);

/* Look at a page that was just read whole.  The figures are then those since the look before, or since READY
 * if that was at another daemon. */
void view_look(struct view *v, const struct stats_page *page, bool alive);

/* The view as one object; units are seconds, tokens and bytes.  clients: list at most so many; 0: none. */
json_t *view_json(const struct view *v, int clients);

#endif
