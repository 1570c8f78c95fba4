/* clients/translate.c - turns a request of the wire, checked by host.c, into one of the scheduler.
 * Makes what no outsider may predict: seeds, salts, names of tenants. */
#include "impl.h"

#include <assert.h>
#include <string.h>

static uint64_t salt_of(const struct clients *cl, const struct client *c, uint64_t tenant, uint64_t salt)
{
	return prefix_salt(&cl->cfg.secret, cl->cfg.scope, c->uid, tenant, salt);
}

uint64_t key_tenant(const struct clients *cl, const struct client *c, uint64_t named)
{
	return prefix_tenant(&cl->cfg.secret, c->uid, c->gateway, named);
}

static uint64_t seed_of(struct clients *cl, const struct sr_wire_request *q)
{
	return q->flags & SR_SEEDED ? q->sampling.seed : prefix_hash(cl->key, &(uint64_t){ cl->n_seeds++ }, 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

#define POOLING_WORDS ((int32_t)(sizeof(struct sr_pooling) / sizeof(uint32_t)))

/* The number of words that commands_of() makes, without the BEGIN's. */
int32_t words_of(const struct clients *cl, const struct host_request *r)
{
	if (r->q.flags & SR_POOLED)
		return POOLING_WORDS + (int32_t)(r->words - r->n_prompt);
	return (r->q.flags & SR_IGNORE_EOS ? 0 : cl->cfg.n_eos) + (int32_t)(r->words - r->n_prompt);
}

static void put(struct clients *cl, struct sched_request *out, const void *words, uint32_t n)
{
	if (n)
		memcpy(cl->words + out->n_words, words, n * sizeof(cl->words[0]));
	out->n_words += (int32_t)n;
}

/* The words put since the last command are the arguments of this one; a list without words is none. */
static void put_cmd(struct clients *cl, struct sched_request *out, enum sr_op op, int32_t a)
{
	int32_t n = out->n_words;

	for (int32_t i = 0; i < out->n_cmds; i++)
		n -= cl->cmd[i].n;
	if (n)
		cl->cmd[out->n_cmds++] = (struct sched_cmd){ (int32_t)op, a, n };
}

/* What begins its slot: how to sample, then its lists.  The back end takes them as their spans are; but the
 * model's eos are stop ids, too. */
static void commands_of(struct clients *cl, const struct host_request *r, const struct sr_sampling *sampling,
                        struct sched_request *out)
{
	static const uint8_t span[] = { [SR_LIST_STOP] = SR_SPAN_STOP, [SR_LIST_BIAS] = SR_SPAN_BIAS,
		[SR_LIST_ALLOW] = SR_SPAN_ALLOW, [SR_LIST_BAD] = SR_SPAN_BAD };

	_Static_assert(sizeof(*sampling) <= SCHED_BEGIN_WORDS * sizeof(uint32_t), "the scheduler keeps it");
	out->cmd = cl->cmd;
	out->words = cl->words;
	put(cl, out, sampling, sizeof(*sampling) / sizeof(uint32_t));
	put_cmd(cl, out, SR_CMD_BEGIN, 0);

	if (r->q.flags & SR_POOLED) {
		put(cl, out, &(struct sr_pooling){ r->q.pool, r->q.width, r->q.unit }, POOLING_WORDS);
		put_cmd(cl, out, SR_CMD_POOL, (int32_t)r->q.second);
	}
	out->stop = out->n_words;
	if (!(r->q.flags & (SR_IGNORE_EOS | SR_POOLED)))
		put(cl, out, cl->cfg.eos, (uint32_t)cl->cfg.n_eos);
	out->n_stop = out->n_words - out->stop + (int32_t)r->list[SR_SPAN_STOP].n;
	for (int32_t i = 0; i < (int32_t)sizeof(span); i++) {
		put(cl, out, r->list[span[i]].word, r->list[span[i]].n);
		put_cmd(cl, out, SR_CMD_LIST, i);
	}
}

/* Does the device need earlier ids: for penalties, or for a bad word of several ids? */
static bool looks_back(const struct host_request *r)
{
	const struct sr_sampling *s = &r->q.sampling;
	const struct host_list *bad = &r->list[SR_SPAN_BAD];
	bool yes = s->presence != 0 || s->frequency != 0 || (s->repetition != 0 && s->repetition != 1);

	for (uint32_t i = 0; i < bad->n; i += 1 + (uint32_t)bad->word[i])
		yes |= bad->word[i] > 1;
	return yes;
}

/* What is off in a request has another value for the device. */
static struct sr_sampling sampling_of(struct clients *cl, const struct sr_wire_request *q)
{
	struct sr_sampling s = q->sampling;

	s.seed = seed_of(cl, q);
	s.top_p = s.top_p > 0 ? s.top_p : 1;
	s.top_k = s.top_k > 0 && s.top_k < INT32_MAX ? s.top_k : 0;
	s.repetition = s.repetition > 0 ? s.repetition : 1;
	return s;
}

/* Elements of the vector that a pooled request answers. */
static int32_t vector_of(const struct clients *cl, const struct host_request *r)
{
	if (r->q.pool == SR_POOL_LOGITS)
		return (int32_t)r->list[SR_SPAN_ALLOW].n;
	return r->q.width ? (int32_t)r->q.width : cl->cfg.width;
}

struct sched_request translate(struct clients *cl, const struct client *c,
                               const struct host_request *r, uint64_t tenant)
{
	const struct sr_wire_request *q = &r->q;
	const struct sr_sampling sampling = sampling_of(cl, q);
	struct sched_request out = {
		.prompt = r->list[SR_SPAN_PROMPT].word, .n_prompt = (int32_t)r->n_prompt,
		.n_answer = (int32_t)q->n_answer, .max_tokens = (int32_t)q->max_tokens, .min_position = sampling.min_position,
		.salt = salt_of(cl, c, tenant, q->cache_salt), .deadline = q->deadline, .name = q->user_data,
		.priority = c->trusted || q->priority > 0 ? q->priority : 0,
		.n_top = q->n_top, .n_prompt_top = q->n_prompt_top,
		.score = q->flags & SR_PROMPT_LOGPROBS, .no_cache = q->flags & SR_NO_CACHE, .progress = q->flags & SR_PROGRESS,
		.history = looks_back(r), .guided = q->flags & SR_GUIDED,
		.pool = q->pool, .n_vector = q->pool ? vector_of(cl, r) : 0,
	};

	/* The device needs all tokens of a mean, and the first one, which a cached prefix does not have. */
	out.no_cache |= q->pool == SR_POOL_MEAN || q->pool == SR_POOL_FIRST;
	commands_of(cl, r, &sampling, &out);
	assert(out.n_words - out.cmd[0].n == words_of(cl, r)); /* for which sched_full was asked */
	return out;
}
