/* sched/create.c - create and destroy; knobs.  After sched_create nothing is allocated. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/sched/impl.h"

#define WORDS_DEFAULT 65536   /* words of commands, plus WORDS_PER_SEQ for each sequence */
#define WORDS_PER_SEQ 8
#define BLOCKED_NS   10000000u /* how long a row may be held by a client without room while others wait */
#define SILENT_NS    10000000000u /* a guided sequence that waits this long for a guide ends */
#define AGE_NS       5000000000u /* a request that has waited this long may get a place by age */

static bool knobs_work(const struct sched_knobs *k)
{
	return k->max_seqs >= 1 && k->batch_tokens >= k->max_seqs && k->chunk_max >= 1 &&
	       k->queue_requests >= 1 && k->queue_tokens >= 1 && k->copies >= 0 &&
	       k->headroom >= 0 && k->quantum >= 1;
}

static bool drafts_work(const struct sched_config *c)
{
	const struct sched_drafts *d = &c->drafts;

	return !d->most || (d->most > 0 && d->most <= SCHED_DRAFT_MOST && d->least >= 1 && d->longest >= d->least &&
	                    d->longest <= SCHED_DRAFT_MATCH && c->limits.drafts >= 1 && !c->limits.n_states);
}

static bool port_works(const struct sched_port *p)
{
	for (int n = 0; n <= SR_TOP_MAX; n++)
		if (p->cost[n] < (n ? p->cost[n - 1] : 1))
			return false;
	return true;
}

/* The most blocks of one sequence. */
static int32_t most_blocks(const struct sched_config *c)
{
	struct kv_config kv = { .block_tokens = c->limits.block_tokens, .n_groups = c->limits.n_groups };

	for (int32_t g = 0; g < c->limits.n_groups; g++)
		kv.group[g].window = c->limits.group[g].window;
	return kv_most(&kv, c->context - !c->limits.vectors, c->limits.tokens);
}

static bool config_works(const struct sched_config *c, const struct kv *kv, const struct sr_backend_ops *ops)
{
	const struct sr_limits *lim = &c->limits;

	return knobs_work(&c->knobs) && drafts_work(c) && ops->depth >= 1 && ops->depth <= DEPTH_MAX && c->context >= 1 &&
	       c->tenants >= 1 && c->ids_max >= 0 &&
	       lim->block_tokens >= 1 && KV_CHUNK % lim->block_tokens == 0 &&
	       lim->masks >= 0 && (!lim->masks || ops->masks) && lim->slots >= c->knobs.max_seqs && lim->rows >= lim->slots &&
	       lim->tokens >= c->knobs.batch_tokens && lim->copies >= c->knobs.copies &&
	       lim->n_groups >= 1 && lim->n_groups <= SR_GROUPS_MAX &&
	       lim->cmds >= (int64_t)(lim->n_groups + (lim->n_states ? 2 : 0)) * (lim->rows + 1) + lim->slots + 7 &&
	       (lim->n_states > 0) == kv_states(kv) &&
	       lim->words >= (int64_t)lim->n_groups * (lim->rows + lim->seq_blocks) + 16 &&
	       (!kv_windows(kv) || ops->depth <= lim->block_tokens) && /* kv_slide: results in flight may be dropped */
	       (int64_t)lim->seq_blocks * lim->block_tokens >= c->context - !lim->vectors &&
	       lim->n_blocks >= most_blocks(c) && lim->seq_blocks >= 1 &&
	       (!lim->whole || (lim->vectors > 0 && c->knobs.batch_tokens >= c->context));
}

static void *take(int64_t n, size_t size, bool *ok)
{
	void *p = calloc((size_t)(n > 0 ? n : 1), size);

	*ok = *ok && p;
	return p;
}

/* The same, aligned to cache lines. */
static void *take_lines(int64_t n, size_t size, bool *ok)
{
	size_t bytes = ((size_t)n * size + 63) & ~(size_t)63;
	void *p = aligned_alloc(64, bytes);

	*ok = *ok && p;
	return p ? memset(p, 0, bytes) : NULL;
}

/* The three parts of the pool of chunks, see sched/queue.c. */
static bool create_chunks(struct sched *s)
{
	const struct sched_config *c = &s->cfg;
	int64_t words = c->cmd_words ? c->cmd_words : WORDS_DEFAULT + (int64_t)WORDS_PER_SEQ * s->n_seq;
	int64_t queue = c->knobs.queue_tokens > c->context ? c->knobs.queue_tokens : c->context;
	int64_t start = c->ids_max > c->knobs.queue_tokens ? c->ids_max - c->knobs.queue_tokens : 0;
	bool ok = true;

	start = start / KV_CHUNK + 2 * (int64_t)c->limits.slots;
	if (start < 2 * (int64_t)quota_for(c->context))
		start = 2 * (int64_t)quota_for(c->context);
	queue = queue / KV_CHUNK + c->knobs.queue_requests;
	words = words / KV_CHUNK + 1;
	if (queue + start + words > INT32_MAX / 2)
		return false;
	s->start_chunks = (int32_t)start;
	s->word_chunks = (int32_t)words;
	s->n_chunk = (int32_t)(queue + start + words);
	s->chunk = take(s->n_chunk, sizeof(*s->chunk), &ok);
	s->free_chunk = take(s->n_chunk, sizeof(*s->free_chunk), &ok);
	for (int32_t i = s->n_chunk - 1; ok && i >= 0; i--)
		s->free_chunk[s->n_free_chunk++] = &s->chunk[i];
	return ok;
}

static bool create_arrays(struct sched *s)
{
	const struct sr_limits *lim = &s->cfg.limits;
	int32_t *block;
	bool ok = true;

	for (s->bucket_mask = 16; s->bucket_mask < 2 * (uint32_t)s->n_seq; s->bucket_mask *= 2)
		;
	s->seq = take_lines(s->n_seq, sizeof(*s->seq), &ok);
	s->bucket = take(s->bucket_mask, sizeof(*s->bucket), &ok);
	s->heap = take(s->n_seq, sizeof(*s->heap), &ok);
	s->tenant = take(s->cfg.tenants, sizeof(*s->tenant), &ok);
	s->client_queue = take(s->n_seq, sizeof(*s->client_queue), &ok);
	s->client_bucket = take(s->bucket_mask, sizeof(*s->client_bucket), &ok);
	s->account = take((int64_t)s->cfg.tenants + s->n_seq, sizeof(*s->account), &ok);
	s->blocked = take(s->n_seq, sizeof(*s->blocked), &ok);
	s->table = take_lines(lim->slots, sizeof(*s->table), &ok);
	s->table_ints = (int64_t)KV_TABLE_INTS(lim->n_groups, lim->seq_blocks);
	block = take(lim->slots * s->table_ints, sizeof(*block), &ok);
	s->free_slot = take(lim->slots, sizeof(*s->free_slot), &ok);
	s->taken = take(lim->slots, sizeof(*s->taken), &ok);
	s->filled = take(lim->slots, sizeof(*s->filled), &ok);
	s->ended = take(lim->slots, sizeof(*s->ended), &ok);
	s->ended_slot = take(lim->slots, sizeof(*s->ended_slot), &ok);
	s->run = take(lim->slots, sizeof(*s->run), &ok);
	s->guide = take(s->n_guide, sizeof(*s->guide), &ok);
	s->free_guide = take(s->n_guide, sizeof(*s->free_guide), &ok);
	s->due = take(lim->rows, sizeof(*s->due), &ok);
	s->due_at = take(lim->rows, sizeof(*s->due_at), &ok);
	if (s->cfg.drafts.most) {
		s->draft.ids = take(s->cfg.context, sizeof(*s->draft.ids), &ok);
		s->draft.of = take(s->n_seq, sizeof(*s->draft.of), &ok);
		s->draft.times = take(lim->drafts + 1, sizeof(*s->draft.times), &ok);
	}
	for (int i = 0; i < s->ops->depth; i++)
		s->flight[i].row = take(lim->rows, sizeof(*s->flight[i].row), &ok);
	if (!ok || !s->table) {
		free(block);
		return false;
	}
	for (uint32_t i = 0; i < s->bucket_mask; i++)
		s->bucket[i] = s->client_bucket[i] = NONE;
	s->bucket_mask--;
	for (int32_t i = s->n_seq - 1; i >= 0; i--) {
		s->seq[i].next = s->free_seq;
		s->free_seq = i;
		s->client_queue[i].chained = s->free_client_queue;
		s->free_client_queue = i;
	}
	for (int32_t i = 0; i < s->n_guide; i++)
		s->free_guide[s->n_free_guide++] = i;
	for (int32_t i = 0; i < lim->slots; i++) {
		s->table[i].block = block + i * s->table_ints;
		s->table[i].cap = lim->seq_blocks;
		s->free_slot[s->n_free_slot++] = lim->slots - 1 - i;
	}
	return true;
}

int sched_create(struct sched **out, const struct sched_config *cfg, struct kv *kv,
		 const struct sr_backend_ops *ops, struct sr_backend *b, const struct sched_port *port)
{
	struct sched *s;

	if (!config_works(cfg, kv, ops) || !port_works(port) || !cfg->counters)
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->cfg = *cfg;
	s->knobs = cfg->knobs;
	s->knobs.no_prefix_cache |= cfg->limits.whole; /* what layers that look both ways leave is of one prompt alone */
	s->kv = kv;
	s->ops = ops;
	s->b = b;
	s->port = *port;
	s->windows = kv_windows(kv);
	s->states = kv_states(kv);
	if (!s->cfg.blocked_ns)
		s->cfg.blocked_ns = BLOCKED_NS;
	if (!s->cfg.silent_ns)
		s->cfg.silent_ns = SILENT_NS;
	if (!s->cfg.age_ns)
		s->cfg.age_ns = AGE_NS;
	s->aged_head = NONE;
	s->n_seq = cfg->limits.slots + cfg->knobs.queue_requests + cfg->limits.masks / 2; /* those aside */
	s->free_seq = s->free_client_queue = s->preempted.first = s->preempted.last = NONE;
	s->aside.first = s->aside.last = NONE;
	s->bound = BOUND_MEMORY;
	s->n_guide = cfg->limits.masks / 2;
	if (s->n_guide)
		ops->masks(b, &s->masks);
	draft_create(s);
	if (!create_arrays(s) || !create_chunks(s)) {
		sched_destroy(s);
		return -ENOMEM;
	}
	*out = s;
	return 0;
}

void sched_destroy(struct sched *s)
{
	if (!s)
		return;
	for (int32_t i = 0; s->table && i < s->cfg.limits.slots; i++)
		if (s->taken && s->taken[i])
			kv_release(s->kv, &s->table[i]);
	if (s->table)
		free(s->table[0].block);
	for (int i = 0; i < DEPTH_MAX; i++)
		free(s->flight[i].row);
	free(s->seq);
	free(s->bucket);
	free(s->heap);
	free(s->tenant);
	free(s->client_queue);
	free(s->client_bucket);
	free(s->account);
	free(s->blocked);
	free(s->table);
	free(s->free_slot);
	free(s->taken);
	free(s->filled);
	free(s->ended);
	free(s->ended_slot);
	free(s->run);
	free(s->guide);
	free(s->free_guide);
	free(s->due);
	free(s->due_at);
	free(s->draft.ids);
	free(s->draft.of);
	free(s->draft.times);
	free(s->chunk);
	free(s->free_chunk);
	free(s);
}

int sched_set(struct sched *s, const struct sched_knobs *k)
{
	const struct sr_limits *lim = &s->cfg.limits;

	if (!knobs_work(k) || k->max_seqs > lim->slots || k->batch_tokens > lim->tokens ||
	    k->queue_requests > s->cfg.knobs.queue_requests || k->queue_tokens > s->cfg.knobs.queue_tokens ||
	    k->copies > lim->copies)
		return -ERANGE;
	if (lim->whole && k->batch_tokens < s->cfg.context)
		return -ERANGE;
	s->knobs = *k;
	s->knobs.no_prefix_cache |= lim->whole;
	return 0;
}
