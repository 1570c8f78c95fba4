/* tokens.c - what comes from the ring for a request: tokens into choices, ends into answers or errors. */
#include <errno.h>

#include "request.h"
#include "shmring/clock.h"
#include "state.h"

/* The stop id that ended an answer, if it is not just the end of sequence; else -1. */
static int32_t stop_id_of(const struct request *r, int32_t id)
{
	const struct sr_text_info *info = sr_text_info(r->limits.text);

	if (!r->ask.ignore_eos && id == info->eos)
		return -1;
	for (uint32_t i = 0; i < r->ask.stop_ids.n; i++)
		if (id == r->ask.stop_ids.id[i])
			return id;
	return -1;
}

/* Add the text, id and log-probability of a token to the choice.  True: a stop string is complete. */
static bool take(struct request *r, struct choice *c, const struct sr_token *t, bool as_text)
{
	if (r->ask.logprobs != ASK_NONE) {
		scores_add(&c->scores, t);
		request_account(r, c);
	}
	if (r->ask.return_token_ids)
		out_bytes(&c->ids, &t->id, sizeof(t->id));
	c->waiting++;
	if (!as_text)
		return false;
	if (choice_text(c, &r->stops, r->limits.text, t->id, (uint32_t)r->ask.min_tokens))
		return true;
	if (r->ask.stream)
		choice_split(c);
	return false;
}

/* May the choice send an event?  With echo its first event needs all scores of the prompt. */
static bool may_tell(const struct request *r, const struct choice *c)
{
	return c->echoed || !r->ask.echo || !r->scored || r->scored[c->prompt].whole;
}

static void chunk(struct request *r, struct choice *c)
{
	if (choice_waits(c) && c->state != CHOICE_ENDED && !r->ask.return_token_ids)
		return;
	if (r->ask.stream && r->state != REQUEST_OVER && may_tell(r, c))
		request_tell(r, c);
}

/* All log-probabilities of a prompt have come: write the other answers to it, which may have waited. */
static void scored(struct request *r, const struct choice *first)
{
	struct choice *c;

	if (!request_scores_prompt(r, first) || r->scored[first->prompt].whole)
		return;
	r->scored[first->prompt].whole = true;
	for (int i = 1; i < r->ask.n && r->state != REQUEST_OVER; i++) {
		c = &r->choice[first->index + i];
		if (c->state == CHOICE_ENDED || c->waiting)
			chunk(r, c);
	}
}

static void choice_ends(struct request *r, struct choice *c)
{
	c->state = CHOICE_ENDED;
	choice_said(c, &r->ask);
	if (r->ask.tool_choice != ASK_TOOLS_NONE && c->said)
		shared_add(r->api->shared->parsed[r->ask.stream][said_n_calls(c->said) > 0], 1);
	r->n_running--;
	chunk(r, c);
	if (!r->ask.stream && r->state != REQUEST_OVER && !r->n_running)
		request_answer(r);
}

static void token(struct request *r, struct choice *c, const struct sr_token *t)
{
	bool stops = t->last == SR_STOP, matched;
	int64_t left;

	if (t->kind == SR_PROMPT) {
		if (request_scores_prompt(r, c))
			scores_add(&r->scored[c->prompt].scores, t);
		return;
	}
	if (t->kind == SR_COMPUTED) {
		c->progress = t->end;
		if (r->ask.return_progress)
			request_computed(r, c);
		return;
	}
	scored(r, c);
	if (r->state == REQUEST_OVER)
		return;
	if (c->state != CHOICE_LIVE)                  /* a stop string was complete: drop the rest */
		return;
	c->n_tokens++;
	if (c->guide_error) {
		guides_error(r, c->guide_error);
		return;
	}
	if (stops)
		c->stop_id = stop_id_of(r, t->id);
	/* A token that stopped the answer adds no text; one that reached max_tokens does. */
	matched = take(r, c, t, !stops || r->stops.include);
	if (c->held && !exchange_room(r->x, 0, &left))
		request_reject(r, request_too_many_scores);
	if (r->state == REQUEST_OVER)
		return;
	if (matched) {
		if (r->details || r->ask.timings || !r->ask.stream) { /* its END has cached tokens and times */
			c->state = CHOICE_STOPPING;
			engine_cancel(c->engine, c->handle);
			return;
		}
		engine_drop(c->engine, c->handle);
		choice_ends(r, c);
		return;
	}
	if (t->last)                                  /* its END comes at once: its chunk has the finish_reason */
		return;
	if (c->n_tokens == 1 || c->waiting >= r->ask.stream_interval)
		chunk(r, c);
}

void request_token(void *owner, const struct sr_token *t)
{
	struct choice *c = owner;
	struct request *r = c->request;

	request_hold(r);
	if (r->state != REQUEST_OVER)
		token(r, c, t);
	request_release(r);
}

/* The daemon ended a choice without finishing it. */
static void error_of_end(struct request *r, int finish)
{
	struct problem p;

	switch (finish) {
	case -ECONNRESET:
		request_reject(r, "The model server stopped while it worked on this request. Try again later.");
		return;
	case -ECONNABORTED:
		problem_set(&p, 500, "InternalServerError", NULL, "The model server stopped again and again while it "
		            "worked on this request, so it is not sent once more.");
		break;
	case -ESTALE:
		request_reject(r, "The model server was started anew with another model or other settings, so this "
		               "answer cannot go on. Ask again.");
		return;
	case -ENOSPC:
		problem_set(&p, 503, "ServiceUnavailableError", NULL, "The request needs more KV cache than "
		            "the server has.");
		break;
	case -EINVAL:
		problem_bad(&p, NULL, "The daemon refused the request as invalid.");
		break;
	case -EMSGSIZE:
		problem_bad(&p, NULL, "The request does not fit the daemon's rings.");
		break;
	case -ENOTSUP:
		problem_bad(&p, NULL, "The daemon takes no requests for structured output.");
		break;
	case -E2BIG:
		problem_bad(&p, NULL, "The request's lists (logit_bias, allowed_token_ids, bad_words) are "
		            "larger than a batch holds.");
		break;
	case -EDOM:
		problem_bad(&p, NULL, "No token satisfies the grammar together with logit_bias, "
		            "allowed_token_ids and bad_words.");
		break;
	case -ETIMEDOUT:
		problem_set(&p, 500, "InternalServerError", NULL, "The answer's guide came too late: this "
		            "server has more guided answers than its adapter keeps up with.");
		break;
	case -ETIME:
		problem_set(&p, 504, "GatewayTimeoutError", NULL, "The request's deadline has passed.");
		break;
	default:
		problem_set(&p, 500, "InternalServerError", NULL, "The model server failed on this request.");
	}
	request_error(r, &p);
}

static void end(struct request *r, struct choice *c, bool stopping, int finish, const struct sr_token *t)
{
	if (t) {
		c->cached = t->end.cached;
		timings_add(&r->timings, &t->end, c->n_tokens, sr_now());
	}
	if (stopping) {
		choice_ends(r, c);
		return;
	}
	if (c->guide_error) {
		guides_error(r, c->guide_error);
		return;
	}
	if (finish < 0) {
		error_of_end(r, finish);
		return;
	}
	scored(r, c);
	if (r->state == REQUEST_OVER)
		return;
	c->finish = finish == SR_STOP ? FINISH_STOP : FINISH_LENGTH;
	choice_flush(c);
	choice_ends(r, c);
}

void request_handed(void *owner, struct engine *to, uint64_t handle)
{
	struct choice *c = owner;

	c->engine = to;
	c->handle = handle;
}

void request_end(void *owner, int finish, const struct sr_token *t)
{
	struct choice *c = owner;
	struct request *r = c->request;
	bool stopping = c->state == CHOICE_STOPPING;

	request_hold(r);
	c->state = CHOICE_IDLE;
	if (r->state != REQUEST_OVER)
		end(r, c, stopping, finish, t);
	request_release(r);
}
