/* clients/translate.c - turns a request of the wire, checked by host.c, into one of the scheduler.
 * Makes what no outsider may predict: seeds, salts, names of tenants. */
#include "impl.h"

#include <string.h>

/* ---- keyed hash ------------------------------------------------------------------------------ */

#define ROTL(x, n) ((x) << (n) | (x) >> (64 - (n)))

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of n words. */
uint64_t key_hash(const uint64_t key[2], const uint64_t *word, int n)
{
	uint64_t a = key[0] ^ 0x736f6d6570736575u, b = key[1] ^ 0x646f72616e646f6du;
	uint64_t c = key[0] ^ 0x6c7967656e657261u, d = key[1] ^ 0x7465646279746573u;

	for (int i = 0; i <= n; i++) {
		uint64_t m = i < n ? word[i] : (uint64_t)n * 8 << 56;

		d ^= m;
		for (int round = 0; round < (i < n ? 2 : 6); round++) {
			if (i == n && round == 2) {
				a ^= m;
				c ^= 0xff;
			}
			a += b; b = ROTL(b, 13) ^ a; a = ROTL(a, 32);
			c += d; d = ROTL(d, 16) ^ c;
			a += d; d = ROTL(d, 21) ^ a;
			c += b; b = ROTL(b, 17) ^ c; c = ROTL(c, 32);
		}
		if (i < n)
			a ^= m;
	}
	return a ^ b ^ c ^ d;
}

/* The salt decides who shares a cached prefix; without the key it cannot be forged. */
static uint64_t salt_of(const struct clients *cl, const struct client *c, uint64_t tenant, uint64_t salt)
{
	uint64_t by_uid[] = { 0, c->uid, salt }, by_tenant[] = { 1, tenant, salt }, global[] = { 2, 0, salt };

	return key_hash(cl->key, cl->cfg.scope_global ? global : cl->cfg.scope_tenant ? by_tenant : by_uid, 3);
}

/* A tenant named by a gateway never equals a uid of the machine. */
uint64_t key_tenant(const struct clients *cl, const struct client *c, uint64_t named)
{
	uint64_t word[2] = { c->uid, named };

	return c->gateway && named ? key_hash(cl->key, word, 2) | 1ull << 63 : c->uid;
}

static uint64_t seed_of(struct clients *cl, const struct sr_wire_request *q)
{
	return q->flags & SR_SEEDED ? q->seed : key_hash(cl->key, &(uint64_t){ cl->n_seeds++ }, 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The number of words that commands_of() makes, without the BEGIN's. */
int32_t words_of(const struct clients *cl, const struct sr_wire_request *q)
{
	return (q->flags & SR_IGNORE_EOS ? 0 : cl->cfg.n_eos) + (int32_t)(q->n_stop + q->n_more_stops +
	       2 * q->n_bias + q->n_allowed + 2 * q->n_banned + q->n_bad_words);
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

/* What begins its slot: how to sample, then its lists as the back end takes them. */
static void commands_of(struct clients *cl, const struct host_request *r, const struct sr_sampling *sampling,
                        struct sched_request *out)
{
	const struct sr_wire_request *q = &r->q;

	_Static_assert(sizeof(*sampling) <= SCHED_BEGIN_WORDS * sizeof(uint32_t), "the scheduler keeps it");
	out->cmd = cl->cmd;
	out->words = cl->words;
	put(cl, out, sampling, sizeof(*sampling) / sizeof(uint32_t));
	put_cmd(cl, out, SR_CMD_BEGIN, 0);

	out->stop = out->n_words;
	if (!(q->flags & SR_IGNORE_EOS))
		put(cl, out, cl->cfg.eos, (uint32_t)cl->cfg.n_eos);
	put(cl, out, q->stop, q->n_stop);
	put(cl, out, r->more_stops, q->n_more_stops);
	out->n_stop = out->n_words - out->stop;
	put_cmd(cl, out, SR_CMD_LIST, SR_LIST_STOP);

	put(cl, out, r->bias, 2 * q->n_bias); /* id and f32, both */
	put_cmd(cl, out, SR_CMD_LIST, SR_LIST_BIAS);
	put(cl, out, r->allowed, q->n_allowed);
	put_cmd(cl, out, SR_CMD_LIST, SR_LIST_ALLOW);
	for (uint32_t i = 0; i < q->n_banned; i++) /* each is a sequence of length 1 */
		put(cl, out, (const int32_t[]){ 1, r->banned[i] }, 2);
	put(cl, out, r->bad_words, q->n_bad_words);
	put_cmd(cl, out, SR_CMD_LIST, SR_LIST_BAD);
}

/* Does the device need earlier ids: for penalties, or for a bad word of several ids? */
static bool looks_back(const struct host_request *r)
{
	const struct sr_wire_request *q = &r->q;
	bool yes = q->presence != 0 || q->frequency != 0 || (q->repetition != 0 && q->repetition != 1);

	for (uint32_t i = 0; i < q->n_bad_words; i += 1 + (uint32_t)r->bad_words[i])
		yes |= r->bad_words[i] > 1;
	return yes;
}

struct sched_request translate(struct clients *cl, const struct client *c,
                               const struct host_request *r, uint64_t tenant)
{
	const struct sr_wire_request *q = &r->q;
	const struct sr_sampling sampling = {
		.seed = seed_of(cl, q), .temperature = q->temperature,
		.top_p = q->top_p > 0 ? q->top_p : 1, .min_p = q->min_p,
		.top_k = q->top_k < INT32_MAX ? (int32_t)q->top_k : 0,
		.presence = q->presence, .frequency = q->frequency,
		.repetition = q->repetition > 0 ? q->repetition : 1,
		.min_position = (int32_t)(q->n_prompt + q->min_tokens),
	};
	struct sched_request out = {
		.prompt = r->prompt, .n_prompt = (int32_t)q->n_prompt, .max_tokens = (int32_t)q->max_tokens,
		.min_position = sampling.min_position,
		.salt = salt_of(cl, c, tenant, q->cache_salt), .deadline = q->deadline,
		.priority = c->trusted || q->priority > 0 ? q->priority : 0,
		.n_top = q->n_top, .n_prompt_top = q->n_prompt_top,
		.score = q->flags & SR_PROMPT_LOGPROBS, .no_cache = q->flags & SR_NO_CACHE,
		.history = looks_back(r),
	};

	commands_of(cl, r, &sampling, &out);
	return out;
}
