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

/* The number of words that lists_of() makes. */
int32_t words_of(const struct clients *cl, const struct sr_wire_request *q)
{
	return (q->flags & SR_IGNORE_EOS ? 0 : cl->cfg.n_eos) + (int32_t)(q->n_stop + q->n_more_stops +
	       2 * q->n_bias + q->n_allowed + 2 * q->n_banned + q->n_bad_words);
}

/* Lists in the back end's form: words, each kind by itself. */
static void lists_of(struct clients *cl, const struct host_request *r, struct sched_request *out)
{
	const struct sr_wire_request *q = &r->q;
	int32_t n = 0;

	if (!(q->flags & SR_IGNORE_EOS))
		for (; n < cl->cfg.n_eos; n++)
			cl->stop[n] = (uint32_t)cl->cfg.eos[n];
	for (uint32_t i = 0; i < q->n_stop; i++)
		cl->stop[n++] = (uint32_t)q->stop[i];
	for (uint32_t i = 0; i < q->n_more_stops; i++)
		cl->stop[n++] = (uint32_t)r->more_stops[i];
	out->list[SR_LIST_STOP] = cl->stop;
	out->n_list[SR_LIST_STOP] = n;

	memcpy(cl->bias, r->bias, q->n_bias * sizeof(r->bias[0])); /* both are id and f32: the same words */
	out->list[SR_LIST_BIAS] = cl->bias;
	out->n_list[SR_LIST_BIAS] = 2 * (int32_t)q->n_bias;

	memcpy(cl->allow, r->allowed, q->n_allowed * sizeof(r->allowed[0]));
	out->list[SR_LIST_ALLOW] = cl->allow;
	out->n_list[SR_LIST_ALLOW] = (int32_t)q->n_allowed;

	for (n = 0; n < 2 * (int32_t)q->n_banned; n += 2) { /* each is a sequence of length 1 */
		cl->bad[n] = 1;
		cl->bad[n + 1] = (uint32_t)r->banned[n / 2];
	}
	memcpy(cl->bad + n, r->bad_words, q->n_bad_words * sizeof(r->bad_words[0]));
	out->list[SR_LIST_BAD] = cl->bad;
	out->n_list[SR_LIST_BAD] = n + (int32_t)q->n_bad_words;
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
	struct sched_request out = {
		.prompt = r->prompt, .n_prompt = (int32_t)q->n_prompt, .max_tokens = (int32_t)q->max_tokens,
		.sampling = {
			.seed = seed_of(cl, q), .temperature = q->temperature,
			.top_p = q->top_p > 0 ? q->top_p : 1, .min_p = q->min_p,
			.top_k = q->top_k < INT32_MAX ? (int32_t)q->top_k : 0,
			.presence = q->presence, .frequency = q->frequency,
			.repetition = q->repetition > 0 ? q->repetition : 1,
			.min_position = (int32_t)(q->n_prompt + q->min_tokens),
		},
		.salt = salt_of(cl, c, tenant, q->cache_salt), .deadline = q->deadline,
		.priority = c->trusted || q->priority > 0 ? q->priority : 0,
		.n_top = q->n_top, .n_prompt_top = q->n_prompt_top,
		.score = q->flags & SR_PROMPT_LOGPROBS, .no_cache = q->flags & SR_NO_CACHE,
		.history = looks_back(r),
	};

	lists_of(cl, r, &out);
	return out;
}
