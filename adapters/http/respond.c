/* respond.c - what a request sends, and when.  A stream sends events as tokens come; a whole answer is sent
 * at its end.  An error replaces either.
 *
 * An event or answer longer than CONN_SLICE is sent in slices: one now, the next when the loop asks for it
 * (exchange_pull).  Tokens that come meanwhile stay in their choice; its next event has them.
 */
#include <stdio.h>
#include <string.h>

#include "dialect.h"
#include "request.h"
#include "state.h"

#define SSE_TYPE "text/event-stream; charset=utf-8"
#define HEAD_MAX (LINES_MAX + GRAMMARS_NOTE + TIMINGS_LINE + 64)
#define SCRATCH_KEPT (16u * 1024)      /* bytes of r->event kept between events */

static const char no_memory[] = "data: {\"error\":{\"message\":\"The server is out of memory.\","
	"\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\n";

/* ---- ends ---- */

/* The header lines of an answer. */
static const char *head_lines(const struct request *r, const char *first, char out[static HEAD_MAX])
{
	const char *note = r->grammar ? grammars_note(r->grammar) : "";

	snprintf(out, HEAD_MAX, "%s%s%s%s%s", first, asked_lines(r->x), *note ? "slipring-not-enforced: " : "",
	         note, *note ? "\r\n" : "");
	return out;
}

/* Send the event, or `instead`, a text that needs no memory. */
static void put_event(struct request *r, const char *instead)
{
	struct exchange *x = r->x;

	if (!x)
		return;
	if (r->state == REQUEST_RUNNING) {
		char lines[HEAD_MAX];

		r->state = REQUEST_ANSWERING;
		exchange_begin(x, 200, SSE_TYPE, head_lines(r, "x-accel-buffering: no\r\n", lines));
	}
	if (instead)
		exchange_event(x, instead, strlen(instead));
	else if (r->event.n)
		exchange_event(x, r->event.p, r->event.n);
}

static void stream_ends(struct request *r)
{
	struct exchange *x = r->x;

	request_close(r);                /* first: its client may ask again when it has read the end */
	if (x && r->dialect->end)
		exchange_event(x, r->dialect->end, strlen(r->dialect->end));
	if (x)
		exchange_end(x);
}

/* Before the start of a stream an error is the answer.  Later it is an event after the one under way. */
void request_error(struct request *r, const struct problem *p)
{
	struct exchange *x = r->x;

	if (r->state == REQUEST_OVER || r->state == REQUEST_FAILING)
		return;
	if (r->pen.sent) {
		r->problem = *p;
		r->state = REQUEST_FAILING;
		request_drop_choices(r);
	} else if (r->state == REQUEST_ANSWERING) {
		r->dialect->problem(r, p);
		put_event(r, r->event.failed ? no_memory : NULL);
		stream_ends(r);
	} else {
		request_close(r);
		if (x)
			api_problem(x, p);
	}
}

void request_reject(struct request *r, const char *why)
{
	struct problem p;

	shared_add(r->api->shared->rejected_requests, 1);
	problem_set(&p, 503, "ServiceUnavailableError", NULL, "%s", why);
	request_error(r, &p);
}

/* Drop the rest of an answer that has begun. */
static void request_cut(struct request *r)
{
	struct exchange *x = r->x;

	request_close(r);
	if (x)
		exchange_cut(x);
}

/* There was no memory for a slice: send an error, and never an answer with a hole. */
static void slice_lost(struct request *r)
{
	if (r->state > REQUEST_RUNNING && (r->pen.sent || !r->ask.stream)) {  /* no error fits into the middle */
		request_cut(r);
		return;
	}
	problem_memory(&r->problem);
	request_error(r, &r->problem);
}

/* ---- streams ---- */

/* Begin the next event; false: there is none now. */
static bool next_event(struct request *r)
{
	const struct dialect *d = r->dialect;
	struct choice *c = r->due;

	if (d->begin && (c || r->computed || r->n_begun || d->at_once) && d->begin(r, r->n_begun)) {
		r->n_begun++;
	} else if (r->computed) {
		d->progress(r);
		r->computed = NULL;
	} else if (c) {
		if (!choice_more(c)) {
			c->due = false;
			r->due = c->next_due;
			if (!r->due)
				r->due_end = &r->due;
		}
		d->part(r, c);
	} else if (!r->n_running && r->ask.include_usage && !r->usage_begun) {
		r->usage_begun = true;
		d->usage(r);
	} else {
		return false;
	}
	return true;
}

static void more(void *owner);

/* Send the events that are due, up to one slice. */
static void stream(struct request *r)
{
	size_t sent = 0;
	bool last;

	while (sent < CONN_SLICE && (r->pen.field || next_event(r))) {
		last = event_write(r);
		if (r->event.failed) {
			slice_lost(r);
			return;
		}
		sent += r->event.n;
		r->sent_at = io_now();
		put_event(r, NULL);
		r->pen.sent = !last;
		if (!last)
			continue;
		r->pen.field = NULL;
		if (r->pen.c)
			request_account(r, r->pen.c);
		if (r->state == REQUEST_FAILING) {
			r->state = REQUEST_ANSWERING;
			request_error(r, &r->problem);
			return;
		}
	}
	if (r->event.cap > SCRATCH_KEPT)
		out_free(&r->event);
	last = !r->pen.field && !next_event(r);
	if (last && !r->n_running) {
		stream_ends(r);
	} else if (r->x && (!last || r->pulled)) {
		r->pulled = !last;
		exchange_pull(r->x, last ? NULL : more, r, !r->n_running);
	}
}

/* The stream has been silent: an event that says it is alive. */
static void on_beat(struct io_timer *t)
{
	struct request *r = t->ctx;
	const uint64_t due = r->sent_at + DIALECT_BEAT, now = io_now();

	if (r->state != REQUEST_RUNNING && r->state != REQUEST_ANSWERING)
		return;
	request_hold(r);
	if (now >= due && !r->pulled && !r->pen.field) {
		r->dialect->beat(r);
		stream(r);
	}
	if (r->state != REQUEST_OVER)
		io_timer_set(r->api->io, t, (now >= due ? now : r->sent_at) + DIALECT_BEAT);
	request_release(r);
}

void request_begins(struct request *r)
{
	if (!r->ask.stream || !r->dialect->at_once || r->state == REQUEST_OVER)
		return;
	stream(r);
	r->beat.fn = on_beat;
	r->beat.ctx = r;
	if (r->state != REQUEST_OVER)
		io_timer_set(r->api->io, &r->beat, io_now() + DIALECT_BEAT);
}

void request_tell(struct request *r, struct choice *c)
{
	if (!c->due) {
		c->due = true;
		c->next_due = NULL;
		*r->due_end = c;
		r->due_end = &c->next_due;
	}
	if (!r->pulled)
		stream(r);
}

void request_computed(struct request *r, struct choice *c)
{
	r->computed = c;
	if (!r->pulled)
		stream(r);
}

/* ---- whole answers ---- */

/* Send a whole answer.  One that fits into a slice has a Content-Length. */
static void whole(struct request *r)
{
	struct exchange *x = r->x;
	bool last = event_write(r);
	char lines[HEAD_MAX], timed[TIMINGS_LINE];

	if (r->event.failed) {
		slice_lost(r);
		return;
	}
	if (last && r->state == REQUEST_RUNNING) {
		head_lines(r, timings_line(timed, &r->timings), lines);
		request_close(r);
		exchange_reply(x, 200, JSON_TYPE, lines, r->event.p, r->event.n);
		return;
	}
	if (r->state == REQUEST_RUNNING) {
		r->state = REQUEST_ANSWERING;
		exchange_begin(x, 200, JSON_TYPE, head_lines(r, timings_line(timed, &r->timings), lines));
	}
	exchange_event(x, r->event.p, r->event.n);
	out_free(&r->event);
	if (last) {
		request_close(r);
		exchange_end(x);
	} else {
		exchange_pull(x, more, r, true);
	}
}

void request_answer(struct request *r)
{
	r->dialect->whole(r);
	whole(r);
}

/* Send the next slice.  While the ring holds tokens, possibly of other requests, they go first, but every
 * eighth turn sends a slice. */
static void more(void *owner)
{
	struct request *r = owner;

	if (fleet_behind(r->api->fleet) && ++r->yielded < 8)
		return;
	r->yielded = 0;
	request_hold(r);
	if (r->state != REQUEST_OVER && r->ask.stream)
		stream(r);
	else if (r->state != REQUEST_OVER)
		whole(r);
	request_release(r);
}
