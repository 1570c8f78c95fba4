/* guides.c - the guides of a request's answers: after each token the daemon is told what may come next. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/request.h"
#include "adapters/http/state.h"
#include "shmring/clock.h"

/* A complete grammar ends its answer, so ignore_eos does not count.  The source is needed no more. */
void guides_ready(struct request *r)
{
	r->ask.ignore_eos = false;
	free(r->ask.guide.src);
	r->ask.guide.src = NULL;
}

bool request_guided(const struct request *r) { return r->grammar || r->ask.guide.thought.n_end; }

bool guides_open(struct request *r)
{
	const struct ask *a = &r->ask;

	if (!request_guided(r))
		return true;
	for (struct choice *c = r->choice; c < r->choice + r->n_choices; c++)
		if (sr_guided_open(&c->guided, r->grammar ? grammars_grammar(r->grammar) : NULL, r->limits.text,
		                   (uint32_t)a->min_tokens, a->stop_ids.id, a->stop_ids.n, &a->guide.thought) < 0)
			return false;
	shared_add(r->api->shared->guided, r->grammar != NULL);
	return true;
}

static int put_guide(void *ctx, uint32_t index, uint32_t kind, const int32_t *ids, uint32_t n,
                     const uint32_t *bits)
{
	const struct choice *c = ctx;

	if (kind == SR_GUIDE_BITS)
		engine_guide_took(c->engine, (uint32_t)((sr_now() - c->guide_from) / 1000));
	return engine_guide(c->engine, c->handle, index, kind, ids, n, bits);
}

/* Called from inside engine_submit() and the engine's queue: an error waits for the END that follows. */
void guides_submitted(void *owner)
{
	struct choice *c = owner;

	c->guide_from = sr_now();
	c->guide_error = sr_guided_begin(c->guided, c->request->api->bits, put_guide, c);
	if (c->guide_error)
		engine_cancel(c->engine, c->handle);
}

/* Called while others' tokens wait: an error waits for the token itself. */
void guides_drawn(void *owner, int32_t id, bool last)
{
	struct choice *c = owner;

	if (last || c->state != CHOICE_LIVE || c->guide_error)
		return;
	c->guide_from = sr_now();
	c->guide_error = sr_guided_take(c->guided, id, c->request->api->bits, put_guide, c);
}

void guides_error(struct request *r, int e)
{
	struct problem p;

	shared_add(r->api->shared->guide_errors, 1);
	if (e == -E2BIG)
		problem_set(&p, 500, "InternalServerError", NULL, "The grammar needs too many steps to find what may "
		            "come next in this answer. A simpler grammar avoids this.");
	else
		problem_set(&p, 500, "InternalServerError", NULL, "The answer could not be held to its grammar: %s.",
		            strerror(-e));
	request_error(r, &p);
}
