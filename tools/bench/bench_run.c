/* bench_run.c - sends requests when they are due and takes the answers, over either wire.
 *
 * As in vLLM, the clock of a request starts when it is sent.  The time at which it was due is recorded, too.
 * An open loop whose client falls behind hides exactly the latency that it should measure.  So the delay is
 * recorded, and the part of it that this program caused.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "tools/visible.h"
#include "core/instance/refuse.h"
#include "shmring/clock.h"

#define BAR_S   0.2              /* s between two updates of the bar */
#define LINE_S  10.0             /* s between two plain lines */

double bench_now(void)
{
	return (double)sr_now() * 1e-9;
}

static bool full(const struct bench_run *r)
{
	return r->o->concurrency && r->n_live >= (size_t)r->o->concurrency;
}

/* ---- what a wire reports ----------------------------------------------------------------------- */

void bench_chunk(struct bench_run *r, struct bench_answer *a, double now)
{
	r->n_tokens++;
	if (!a->n_chunks++) {
		a->ttft = now - a->start;
	} else {
		if (a->n_itl == a->cap_itl) {
			size_t cap = a->cap_itl ? a->cap_itl * 2 : 64;
			double *grown = realloc(a->itl, cap * sizeof(*grown));

			if (!grown) {
				bench_done(r, a, "no memory for the times of the answer's tokens");
				return;
			}
			a->itl = grown;
			a->cap_itl = cap;
		}
		a->itl[a->n_itl++] = now - a->last;
	}
	a->last = now;
	a->latency = now - a->start;
}

int bench_text(struct bench_answer *a, const char *s, size_t n)
{
	if (a->n_text + n > a->cap_text) {
		size_t cap = (a->n_text + n) * 2;
		char *grown = realloc(a->text, cap);

		if (!grown)
			return -ENOMEM;
		a->text = grown;
		a->cap_text = cap;
	}
	a->n_text += sse_unescape(s, n, a->text + a->n_text);
	return 0;
}

void bench_done(struct bench_run *r, struct bench_answer *a, const char *error)
{
	if (a->state != BENCH_LIVE)
		return;
	a->state = error ? BENCH_FAILED : BENCH_OK;
	if (error) {
		snprintf(a->error, sizeof(a->error), "%s", error);
		r->n_failed++;
	}
	r->end = bench_now();
	if (full(r))
		r->freed = r->end;
	r->n_live--;
	r->n_done++;
}

/* ---- progress ---------------------------------------------------------------------------------- */

static void bar(const struct bench_run *r, double now, bool last)
{
	double s = now - r->begin;
	int full = (int)(r->n_done * 30 / r->load->n);
	FILE *to = visible_raw(stderr);

	if (isatty(STDERR_FILENO))
		fprintf(to, "\r[%.*s%*s] ", full, "##############################", 30 - full, "");
	fprintf(to, "%zu of %zu requests, %.1f req/s, %.0f tok/s, %zu under way, %zu failed", r->n_done,
	        r->load->n, (double)r->n_done / s, (double)r->n_tokens / s, r->n_live, r->n_failed);
	fputs(!isatty(STDERR_FILENO) ? "\n" : last ? "\033[K\n" : "\033[K", to);
	fflush(to);
}

/* ---- the loop ---------------------------------------------------------------------------------- */

/* Send the requests that are due and have a place.  Returns 0, or the error that broke the wire. */
static int send_due(struct bench_run *r, const struct bench_wire *w, void *wire, double *until)
{
	while (r->n_sent < r->load->n && !full(r)) {
		struct bench_answer *a = &r->answer[r->n_sent];
		double due = r->begin + r->at[r->n_sent], now = bench_now();
		int rc;

		if (due > now) {
			*until = fmin(*until, due);
			return 0;
		}
		*a = (struct bench_answer){ .state = BENCH_LIVE, .due = due, .start = now, .last = now,
		                            .n_input = r->load->prompt[r->n_sent].n_ids };
		/* Before `freed` there was no place for it; that delay is due to the load, not to us. */
		a->late = now - (r->o->concurrency && r->freed > due ? r->freed : due);
		r->n_live++;
		rc = w->send(wire, r->n_sent++);
		if (rc) {
			a->state = BENCH_UNSENT;
			r->n_live--;
			r->n_sent--;
			return rc == -EAGAIN ? 0 : rc;
		}
	}
	return 0;
}

static void run_cut(struct bench_run *r)
{
	for (size_t i = 0; i < r->n_sent; i++)
		if (r->answer[i].state == BENCH_LIVE)
			r->answer[i].state = BENCH_CUT;
	r->n_live = 0;
}

int bench_run(struct bench_run *r, char *err, size_t errlen)
{
	const struct bench_wire *w = bench_ring(r->o) ? &bench_wire_ring : &bench_wire_http;
	double shown, every = isatty(STDERR_FILENO) ? BAR_S : LINE_S;
	void *wire;
	int rc;

	r->answer = calloc(r->load->n, sizeof(*r->answer));
	if (!r->answer)
		return refuse(-ENOMEM, err, errlen, "no memory for %zu answers", r->load->n);
	rc = w->open(&wire, r, err, errlen);
	if (rc)
		return rc;
	shown = r->begin = r->end = r->freed = bench_now();
	if (r->server)
		bench_server_begin(r->server, r->begin);
	while (r->n_done < r->load->n && !*r->stop) {
		double now = bench_now(), until = now + (r->bar ? every : 1.0);

		if (r->server)
			until = fmin(until, bench_server_turn(r->server, now));
		rc = send_due(r, w, wire, &until);
		if (!rc)
			rc = w->turn(wire, until);
		if (rc && !r->n_live) {
			snprintf(err, errlen, "the server is gone: %s", strerror(-rc));
			break;
		}
		if (r->bar && bench_now() - shown >= every)
			bar(r, shown = bench_now(), false);
	}
	if (*r->stop)
		run_cut(r);
	if (r->server)
		bench_server_end(r->server);
	w->close(wire);
	if (r->bar && isatty(STDERR_FILENO))
		bar(r, bench_now(), true);
	return *r->stop || r->n_done == r->load->n ? 0 : rc;
}

void bench_run_free(struct bench_run *r)
{
	for (size_t i = 0; r->answer && i < r->load->n; i++) {
		free(r->answer[i].itl);
		free(r->answer[i].text);
		free(r->answer[i].ids);
	}
	free(r->answer);
	r->answer = NULL;
	json_decref(r->served);
	r->served = NULL;
}
