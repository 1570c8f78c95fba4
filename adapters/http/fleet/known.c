/* known.c - see known.h. */
#include "known.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/instance/ask.h"

#define SENT      16384              /* names that were sent lately; newer ones replace older */
#define SENT_NS   10000000000ull     /* a prompt is computed, or given up, within 10 s */

struct known {
	const struct prefix_page *page;
	struct { uint64_t low, at; } sent[SENT];
};

/* ---- the page ---- */

int known_fetch(const struct prefix_page **out, const char *run_dir)
{
	struct control_answer answer;
	int fd = ask_memory(run_dir, CONTROL_PREFIX, &answer, NULL), r;

	if (fd < 0)
		return fd;
	r = prefix_open(out, fd);
	close(fd);
	return r;
}

/* ---- names ---- */

static bool same(const struct known_names *n, const struct prefix_page *p, const struct sr_request *q,
                 bool gateway)
{
	return n->prompt == q->prompt && n->block_tokens == p->block_tokens && n->scope == p->scope &&
	       n->gateway == gateway && !memcmp(&n->secret, &p->secret, sizeof(n->secret));
}

/* As the daemon names blocks: a match leaves one token to compute (kv_match). */
static void name_blocks(struct known_names *n, const struct prefix_page *p, const struct sr_request *q,
                        bool gateway)
{
	const uint32_t uid = geteuid();
	const uint64_t tenant = prefix_tenant(&p->secret, uid, gateway, q->tenant);
	const uint64_t salt = prefix_salt(&p->secret, (enum prefix_scope)p->scope, uid, tenant, q->cache_salt);
	struct prefix_name parent = { { 0, 0 } };

	if (same(n, p, q, gateway))
		return;
	n->prompt = q->prompt;
	n->secret = p->secret;
	n->block_tokens = p->block_tokens;
	n->scope = p->scope;
	n->gateway = gateway;
	n->n = q->n_prompt ? (int32_t)((q->n_prompt - 1) / p->block_tokens) : 0;
	n->n = n->n < KNOWN_BLOCKS ? n->n : KNOWN_BLOCKS;
	for (int32_t i = 0; i < n->n; i++) {
		parent = prefix_name(p->secret.name, parent.w, salt, q->prompt + (uint32_t)i * p->block_tokens,
		                     (int32_t)p->block_tokens);
		n->low[i] = parent.w[0];
	}
}

/* What was sent lately and is not published yet continues what is cached. */
static int32_t with_sent(const struct known *k, const struct known_names *names, int32_t n, uint64_t now)
{
	while (n < names->n && k->sent[names->low[n] % SENT].low == names->low[n] &&
	       now - k->sent[names->low[n] % SENT].at < SENT_NS)
		n++;
	return n;
}

static bool looks(const struct known_ask *a)
{
	return a->known && a->known->page;
}

/* Bisect what each daemon without windows has, all in step: the memory that they read next is fetched at the
 * same time, which is most of the cost. */
static void bisect(struct known_ask *ask, const bool *in, int n, const struct known_names *names)
{
	int32_t is[KNOWN_DAEMONS] = { 0 }, not[KNOWN_DAEMONS];
	bool more = true;

	for (int i = 0; i < n; i++)
		not[i] = names->n + 1;
	while (more) {
		more = false;
		for (int i = 0; i < n; i++)
			if (in[i] && not[i] - is[i] > 1) {
				uint64_t low = names->low[is[i] + (not[i] - is[i]) / 2 - 1];
				struct prefix_page *p = (struct prefix_page *)(uintptr_t)ask[i].known->page;

				__builtin_prefetch(prefix_bucket(p, low, 0));
				__builtin_prefetch(prefix_bucket(p, low, 1));
			}
		for (int i = 0; i < n; i++)
			if (in[i] && not[i] - is[i] > 1) {
				int32_t at = is[i] + (not[i] - is[i]) / 2;

				if (prefix_has(ask[i].known->page, names->low[at - 1]))
					is[i] = at;
				else
					not[i] = at;
				more = true;
			}
	}
	for (int i = 0; i < n; i++)
		if (in[i]) {
			ask[i].tokens = (uint32_t)is[i];
			__builtin_prefetch(&ask[i].known->sent[names->low[is[i] < names->n ? is[i] : 0] % SENT]);
		}
}

/* Replicas of one `slipring serve` share their secret, so names are computed once, for the first of them. */
void known_tokens(struct known_ask *ask, int n, const struct sr_request *q, struct known_names *names,
                  uint64_t now)
{
	bool in[KNOWN_DAEMONS] = { false }, done[KNOWN_DAEMONS] = { false };

	names->prompt = NULL;
	for (int i = 0; i < n; i++) {
		ask[i].tokens = 0;
		if (looks(&ask[i]))
			__builtin_prefetch(ask[i].known->page), __builtin_prefetch(&ask[i].known->page->secret);
	}
	for (int i = 0; i < n && !(q->flags & (SR_NO_CACHE | SR_PROMPT_LOGPROBS)); i++) {
		if (done[i] || !looks(&ask[i]))
			continue;
		name_blocks(names, ask[i].known->page, q, ask[i].gateway);
		for (int j = i; j < n; j++) {
			in[j] = !done[j] && looks(&ask[j]) && same(names, ask[j].known->page, q, ask[j].gateway);
			done[j] |= in[j];
			if (in[j] && prefix_windows(ask[j].known->page)) {
				ask[j].tokens = (uint32_t)prefix_match(ask[j].known->page, names->low, names->n);
				in[j] = false;
			}
		}
		bisect(ask, in, n, names);
		for (int j = i; j < n; j++)
			if (done[j] && looks(&ask[j]) && same(names, ask[j].known->page, q, ask[j].gateway))
				ask[j].tokens = (uint32_t)with_sent(ask[j].known, names, (int32_t)ask[j].tokens, now) *
				                ask[j].known->page->block_tokens;
		memset(in, 0, sizeof(in));
	}
}

void known_sent(const struct known_ask *to, const struct sr_request *q, struct known_names *names,
                  uint64_t now)
{
	struct known *k = to->known;

	if (!looks(to) || !names->prompt)
		return;
	name_blocks(names, k->page, q, to->gateway);
	for (int32_t i = 0; i < names->n; i++) {
		k->sent[names->low[i] % SENT].low = names->low[i];
		k->sent[names->low[i] % SENT].at = now;
	}
}

/* ---- life ---- */

int known_create(struct known **out)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

void known_renew(struct known *k, const struct prefix_page *page)
{
	prefix_close(k->page);
	memset(k, 0, sizeof(*k));
	k->page = page;
}

void known_destroy(struct known *k)
{
	if (k)
		prefix_close(k->page);
	free(k);
}
