/* sched.c - decides which sequences compute what, next: requests in, one step, results out.
 * sched.h has the rules; sched/impl.h lists the files that apply them.
 *
 * Belongs to the loop's thread.  Everything is allocated in sched_create.
 */
#include "core/sched/sched.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/sched/impl.h"

#define SMOOTH       0.2      /* weight of a new time measurement */
#define SMOOTH_FULL  64       /* slower measurements from fewer prompt tokens weigh less */
#define WORDS_DEFAULT 65536   /* words of commands, plus WORDS_PER_SEQ for each sequence */
#define WORDS_PER_SEQ 8
#define RING_NS      10000000u /* how long a row may be blocked by a full ring while others wait */
#define AGE_NS       5000000000u /* a request that has waited this long may get a place by age */

/* ---- create and destroy --------------------------------------------------------------------- */

static uint8_t cost_of(const struct sched_config *c, int32_t n_top)
{
	int32_t more = n_top > c->tops_here ? n_top - c->tops_here : 0;

	return (uint8_t)(1 + (more + c->tops_per_record - 1) / c->tops_per_record);
}

static bool knobs_work(const struct sched_knobs *k)
{
	return k->max_seqs >= 1 && k->batch_tokens >= k->max_seqs && k->chunk_max >= 1 &&
	       k->queue_requests >= 1 && k->queue_tokens >= 1 && k->copies >= 0 &&
	       k->headroom >= 0 && k->quantum >= 1;
}

static bool config_works(const struct sched_config *c, const struct sr_backend_ops *ops)
{
	const struct sr_limits *lim = &c->limits;

	return knobs_work(&c->knobs) && ops->depth >= 1 && ops->depth <= DEPTH_MAX && c->context >= 1 &&
	       c->tenants >= 1 && c->tops_here >= 0 && c->tops_per_record >= 1 && c->ids_max >= 0 &&
	       lim->block_tokens >= 1 && KV_CHUNK % lim->block_tokens == 0 &&
	       lim->slots >= c->knobs.max_seqs && lim->rows >= lim->slots &&
	       lim->tokens >= c->knobs.batch_tokens && lim->copies >= c->knobs.copies &&
	       lim->cmds >= lim->rows + lim->slots + 8 &&
	       lim->words >= lim->rows + lim->seq_blocks + 16 &&
	       (int64_t)lim->seq_blocks * lim->block_tokens >= c->context - 1 &&
	       (int64_t)lim->n_blocks * lim->block_tokens >= c->context - 1 && lim->seq_blocks >= 1;
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
	s->member = take(s->n_seq, sizeof(*s->member), &ok);
	s->member_bucket = take(s->bucket_mask, sizeof(*s->member_bucket), &ok);
	s->share = take((int64_t)s->cfg.tenants + s->n_seq, sizeof(*s->share), &ok);
	s->dry = take(s->n_seq, sizeof(*s->dry), &ok);
	s->table = take_lines(lim->slots, sizeof(*s->table), &ok);
	block = take((int64_t)lim->slots * lim->seq_blocks, sizeof(*block), &ok);
	s->free_slot = take(lim->slots, sizeof(*s->free_slot), &ok);
	s->taken = take(lim->slots, sizeof(*s->taken), &ok);
	s->filled = take(lim->slots, sizeof(*s->filled), &ok);
	s->ended = take(lim->slots, sizeof(*s->ended), &ok);
	s->ended_slot = take(lim->slots, sizeof(*s->ended_slot), &ok);
	s->run = take(lim->slots, sizeof(*s->run), &ok);
	s->due = take(lim->rows, sizeof(*s->due), &ok);
	s->due_at = take(lim->rows, sizeof(*s->due_at), &ok);
	for (int i = 0; i < s->ops->depth; i++)
		s->flight[i].row = take(lim->rows, sizeof(*s->flight[i].row), &ok);
	if (!ok || !s->table) {
		free(block);
		return false;
	}
	for (uint32_t i = 0; i < s->bucket_mask; i++)
		s->bucket[i] = s->member_bucket[i] = NONE;
	s->bucket_mask--;
	for (int32_t i = s->n_seq - 1; i >= 0; i--) {
		s->seq[i].next = s->free_seq;
		s->free_seq = i;
		s->member[i].chained = s->free_member;
		s->free_member = i;
	}
	for (int32_t i = 0; i < lim->slots; i++) {
		s->table[i].block = block + (size_t)i * (size_t)lim->seq_blocks;
		s->table[i].cap = lim->seq_blocks;
		s->free_slot[s->n_free_slot++] = lim->slots - 1 - i;
	}
	return true;
}

int sched_create(struct sched **out, const struct sched_config *cfg, struct kv *kv,
		 const struct sr_backend_ops *ops, struct sr_backend *b, const struct sched_port *port)
{
	struct sched *s;

	if (!config_works(cfg, ops))
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->cfg = *cfg;
	s->knobs = cfg->knobs;
	s->kv = kv;
	s->ops = ops;
	s->b = b;
	s->port = *port;
	if (!s->cfg.ring_ns)
		s->cfg.ring_ns = RING_NS;
	if (!s->cfg.age_ns)
		s->cfg.age_ns = AGE_NS;
	s->aged_head = NONE;
	s->n_seq = cfg->limits.slots + cfg->knobs.queue_requests;
	s->free_seq = s->free_member = s->again.first = s->again.last = NONE;
	s->bound = BOUND_MEMORY;
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
	free(s->member);
	free(s->member_bucket);
	free(s->share);
	free(s->dry);
	free(s->table);
	free(s->free_slot);
	free(s->taken);
	free(s->filled);
	free(s->ended);
	free(s->ended_slot);
	free(s->run);
	free(s->due);
	free(s->due_at);
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
	s->knobs = *k;
	return 0;
}

/* ---- requests come ----------------------------------------------------------------------------- */

static bool fits_batch(const struct sched *s, const struct sched_request *r)
{
	const struct sr_limits *lim = &s->cfg.limits;
	int64_t words = (int64_t)r->n_words + lim->seq_blocks +
			(r->history ? (int64_t)r->n_prompt + r->max_tokens : 0);

	return words + lim->rows <= lim->words && word_chunks_for(r->n_words - r->cmd[0].n) <= s->word_chunks &&
	       (!r->score || lim->scores >= 1);
}

static void check_cmds(const struct sched_request *r)
{
	int64_t n_words = 0;

	assert(r->n_cmds >= 1 && r->n_cmds <= SCHED_CMDS);
	assert(r->cmd[0].op == SR_CMD_BEGIN && r->cmd[0].n <= SCHED_BEGIN_WORDS);
	for (int32_t i = 0; i < r->n_cmds; i++) {
		assert(r->cmd[i].n >= 0);
		n_words += r->cmd[i].n;
	}
	assert(n_words == r->n_words);
	assert(r->n_stop == 0 || (r->n_stop > 0 && r->stop >= r->cmd[0].n && r->n_stop <= r->n_words - r->stop));
}

static void check_request(const struct sched *s, const struct sched_request *r)
{
	assert(r->n_prompt >= 1 && r->max_tokens >= (r->score ? 0 : 1));
	assert((int64_t)r->n_prompt + r->max_tokens <= s->cfg.context);
	assert(r->n_top <= SR_TOP_MAX && r->n_prompt_top <= SR_TOP_MAX);
	for (int32_t i = 0; i < r->n_prompt; i++)
		assert(r->prompt[i] >= 0 && r->prompt[i] < s->cfg.vocab);
	check_cmds(r);
}

/* A new sequence from *r; everything is copied. */
static int32_t seq_make(struct sched *s, int32_t member, const struct sched_request *r, uint64_t now)
{
	int32_t i = s->free_seq, n_begin = r->cmd[0].n;
	struct seq *q = &s->seq[i];
	uint32_t gen = q->gen;

	s->free_seq = q->next;
	*q = (struct seq){
		.gen = gen, .slot = NONE, .heap_at = NONE, .who = s->member[member].who,
		.tenant = s->member[member].tenant, .member = member, .user_data = r->user_data,
		.n_prompt = r->n_prompt, .end = r->n_prompt + r->max_tokens,
		.n_top = r->n_top, .n_prompt_top = r->n_prompt_top,
		.cost = cost_of(&s->cfg, r->n_top), .prompt_cost = cost_of(&s->cfg, r->n_prompt_top),
		.score = r->score, .history = r->history, .no_cache = r->no_cache,
		.n_cmds = r->n_cmds, .n_words = r->n_words - n_begin, .stop = r->stop - n_begin, .n_stop = r->n_stop,
		.stops = r->n_stop > 0, .min_position = r->min_position, .salt = r->salt, .deadline = r->deadline,
		.priority = s->knobs.fcfs ? 0 : r->priority, .order = ++s->order,
		.since = now,
	};
	memcpy(q->cmd, r->cmd, (size_t)r->n_cmds * sizeof(q->cmd[0]));
	memcpy(q->begin, r->words, (size_t)n_begin * sizeof(q->begin[0]));
	words_store(s, q, r->words + n_begin);
	for (int32_t j = 0; j < r->n_prompt; j++)
		ids_append(s, q, r->prompt[j]);
	q->known = q->have;
	return i;
}

int sched_admit(struct sched *s, void *who, uint64_t tenant, const struct sched_request *r, uint64_t now)
{
	int32_t t, i;

	check_request(s, r);
	if (s->lost)
		return -EIO;
	if (!fits_batch(s, r))
		return -E2BIG;
	if (queue_find(s, who, r->user_data) != NONE)
		return -EEXIST;
	if (!s->port.room(s->port.ctx, who, 1 + cost_of(&s->cfg, SR_TOP_MAX)) ||
	    !s->port.reserve(s->port.ctx, who, 1, 1))
		return -EAGAIN;
	assert(queue_room(s, r->n_prompt));
	t = queue_tenant_join(s, tenant);
	i = seq_make(s, queue_member_join(s, who, t), r, now);
	queue_name(s, i);
	queue_put(s, i);
	if (r->deadline)
		queue_deadline(s, i);
	if (r->max_tokens == 0 && r->n_prompt == 1) /* nothing to score or sample */
		seq_finish(s, i, SCHED_LENGTH);
	return 0;
}

/* ---- sequences end --------------------------------------------------------------------------------- */

/* Give up slot and blocks; results in flight for it will be dropped. */
static void seq_leave(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];
	int32_t slot = q->slot, j = 0;

	kv_release(s->kv, &s->table[slot]);
	s->free_slot[s->n_free_slot++] = slot;
	s->taken[slot] = false;
	if (!s->ended[slot]) {
		s->ended[slot] = true;
		s->ended_slot[s->n_ended++] = slot;
	}
	q->slot = NONE;
	q->gen++;
	while (s->run[j] != i)
		j++;
	s->n_run--;
	memmove(&s->run[j], &s->run[j + 1], (size_t)(s->n_run - j) * sizeof(s->run[0]));
}

static void release_records(struct sched *s, struct seq *q)
{
	if (q->reserved)
		s->port.release(s->port.ctx, q->who, (uint32_t)q->reserved);
	q->reserved = 0;
}

/* Free the sequence.  Calls no port. */
static void seq_close(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];

	if (q->state == SEQ_RUNNING)
		seq_leave(s, i);
	else
		queue_take(s, i);
	queue_deadline_off(s, i);
	queue_unname(s, i);
	ids_free(s, q);
	queue_leave(s, q->member);
	q->state = SEQ_FREE;
	q->gen++;
	q->next = s->free_seq;
	s->free_seq = i;
	s->stats.finished++;
}

static void summary_of(const struct seq *q, struct sched_event *e)
{
	e->cached = q->cached;
	e->scheduled = q->scheduled;
	e->computed = q->computed;
	e->preempted = q->preempted;
}

/* End it: nothing more is emitted for it. */
void seq_finish(struct sched *s, int32_t i, int32_t finish)
{
	struct seq *q = &s->seq[i];
	struct sched_event e = {
		.user_data = q->user_data, .kind = SCHED_END, .position = q->have, .finish = finish,
	};

	summary_of(q, &e);
	release_records(s, q);
	s->port.emit(s->port.ctx, q->who, &e);
	seq_close(s, i);
}

/* Back to waiting, with its ids.  They are computed again, or found in the cache. */
void seq_preempt(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];

	assert(q->state == SEQ_RUNNING && !in_fill(s, q));
	seq_leave(s, i);
	release_records(s, q);
	q->known = q->have;
	q->planned = 0;
	q->drawn = false;
	q->preempted++;
	ids_started(s, q, quota_for(q->have));
	s->stats.preemptions++;
	queue_put(s, i);
}

/* Does its ring have room for its next token or scored id now? */
bool seq_has_room(const struct sched *s, const struct seq *q)
{
	return s->port.room(s->port.ctx, q->who,
			    q->score && q->prompt_cost > q->cost ? q->prompt_cost : q->cost);
}

/* Its client's ring is full: put it back into its member's line, with its ids, as if it had never
 * started.  The member starts nothing before its ring has room.  False: the queue has no place. */
bool seq_park(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];

	if (!queue_room(s, q->have))
		return false;
	if (q->state == SEQ_RUNNING)
		seq_preempt(s, i);
	queue_take(s, i);
	s->start_used -= q->quota;
	q->started = false;
	queue_put(s, i);
	queue_dry(s, q->member);
	return true;
}

void sched_cancel(struct sched *s, void *who, uint64_t user_data)
{
	int32_t i = queue_find(s, who, user_data);

	if (i != NONE)
		seq_finish(s, i, -ECANCELED);
}

void sched_forget(struct sched *s, void *who)
{
	int32_t left = s->n_run + (int32_t)s->stats.waiting; /* sequences in use; low places are used first */

	for (int32_t i = 0; left > 0; i++) {
		if (s->seq[i].state == SEQ_FREE)
			continue;
		left--;
		if (s->seq[i].who == who)
			seq_close(s, i);
	}
}

/* ---- results ------------------------------------------------------------------------------------------ */

HOT void emit_result(struct sched *s, struct seq *q, const struct sr_batch *b, int32_t result,
			enum sched_kind kind, int32_t position, bool last)
{
	const struct sr_result *o = &b->result[result];
	struct sched_event e = {
		.user_data = q->user_data, .kind = (uint8_t)kind, .last = last, .position = position,
		.id = o->id, .rank = o->rank, .logprob = o->logprob,
		.n_top = kind == SCHED_TOKEN ? q->n_top : q->n_prompt_top,
		.top = b->top + (size_t)result * SR_TOP_MAX,
	};

	if (position == q->n_prompt)
		summary_of(q, &e);
	s->port.emit(s->port.ctx, q->who, &e);
}

/* A block of an answer is full.  After the last token it is published now, else together with
 * others at the end of the batch. */
static void publish_answer(struct sched *s, struct seq *q, int32_t tokens, bool now)
{
	struct kv_table *t = &s->table[q->slot];

	if (s->knobs.no_prefix_cache)
		return;
	if (now) {
		kv_publish(s->kv, t, tokens);
		return;
	}
	__builtin_prefetch(t, 1);
	s->due[s->n_due] = t;
	s->due_at[s->n_due++] = tokens;
}

/* Take the sampled token of q. */
HOT void reap_sample(struct sched *s, struct seq *q, const struct sr_batch *b, int32_t result)
{
	int32_t id = b->result[result].id, position = q->have, finish = 0;

	if (q->stops && words_stop(q, id) && position >= q->min_position)
		finish = SCHED_STOP;
	else if (position + 1 == q->end)
		finish = SCHED_LENGTH;
	ids_append(s, q, id);
	q->reserved -= q->cost;
	s->stats.samples++;
	emit_result(s, q, b, result, SCHED_TOKEN, position, finish != 0);
	if ((position & (s->cfg.limits.block_tokens - 1)) == 0)
		publish_answer(s, q, position, finish != 0);
	if (finish)
		seq_finish(s, (int32_t)(q - s->seq), finish);
}

/* Take the results of a row that is not just one sampled token. */
static void reap_row(struct sched *s, struct seq *q, const struct sr_row *r, const struct sr_batch *b)
{
	for (int32_t j = 0; j < r->n_score; j++) {
		q->scored = r->first + 1 + j;
		q->reserved -= q->prompt_cost;
		emit_result(s, q, b, r->result + j, SCHED_SCORED, q->scored, false);
	}
	if (r->sample) {
		assert(r->first + r->n == q->have);
		reap_sample(s, q, b, r->result + r->n_score);
	} else if (q->end == q->n_prompt && q->scored == q->n_prompt - 1) {
		seq_finish(s, (int32_t)(q - s->seq), SCHED_LENGTH);
	}
}

/* Measure the time of a batch without prompts, and of each prompt token. */
static void measure(struct sched *s, const struct flight *f, const struct sr_batch *b)
{
	int32_t n_prompt = f->n_tokens - f->n_decode;
	double ns = b->end_ns > b->begin_ns ? (double)(b->end_ns - b->begin_ns) : 0, *to, x, weight = SMOOTH;

	if (n_prompt > 0) {
		to = &s->prompt_ns;
		x = ns - (f->n_decode ? s->decode_ns : 0);
		x = (x > ns / 10 ? x : ns / 10) / n_prompt;
		if (n_prompt < SMOOTH_FULL && x > *to) /* a batch's fixed cost falls on few tokens */
			weight = SMOOTH * n_prompt / SMOOTH_FULL;
	} else {
		to = &s->decode_ns;
		x = ns;
	}
	*to = *to > 0 ? *to + weight * (x - *to) : x;
}

static enum sched_bound bound_of(const struct sr_batch *b)
{
	if (b->copy_ns > b->compute_ns && b->copy_ns > b->memory_ns)
		return BOUND_PCIE;
	return b->compute_ns > b->memory_ns ? BOUND_COMPUTE : BOUND_MEMORY;
}

static uint32_t ns32(uint64_t from, uint64_t to)
{
	return to <= from ? 0 : to - from > UINT32_MAX ? UINT32_MAX : (uint32_t)(to - from);
}

/* As in sched/fill.c: prefetch the next rows. */
ASKS void look_ahead(const struct sched *s, const struct flight *f, int32_t j)
{
	if (j + 2 * AHEAD < f->n)
		__builtin_prefetch(&s->seq[f->row[j + 2 * AHEAD].seq], 1);
	if (j + AHEAD < f->n) {
		const struct seq *q = &s->seq[f->row[j + AHEAD].seq];

		if (q->tail)
			__builtin_prefetch(&q->tail->id[(uint32_t)q->have % KV_CHUNK], 1);
		if (q->stops)
			__builtin_prefetch(&q->stop);
	}
}

/* Take the results of the oldest batch: 1, 0 it is not done, -EIO.  *host_ns: how long the device
 * had waited for the host before it. */
static int reap(struct sched *s, uint32_t *host_ns)
{
	int32_t slot = (int32_t)(s->reaped % (uint32_t)s->ops->depth);
	const struct flight *f = &s->flight[slot];
	const struct sr_batch *b;
	int r;

	*host_ns = 0;
	if (s->reaped == s->launched)
		return 0;
	r = s->ops->poll(s->b, slot);
	if (r <= 0)
		return r < 0 ? -EIO : 0;
	s->reaped++;
	b = s->ops->batch(s->b, slot);
	if (f->pressed && s->prev_end)
		*host_ns = ns32(s->prev_end, b->begin_ns);
	s->prev_end = b->end_ns;
	s->bound = bound_of(b);
	s->stats.int8_ops += b->int8_ops;
	s->stats.float_ops += b->float_ops;
	s->stats.bytes += b->bytes;
	s->stats.copied += b->copied;
	if (f->n) {
		measure(s, f, b);
		s->stats.steps++;
		s->stats.last.begin_ns = b->begin_ns;
		s->stats.last.rows = f->n;
		s->stats.last.tokens = f->n_tokens;
		s->stats.last.host_ns = *host_ns;
		s->stats.last.device_ns = ns32(b->begin_ns, b->end_ns);
		s->stats.last.why = (uint8_t)f->why;
		s->stats.last.bound = (uint8_t)s->bound;
	}
	for (int32_t j = 0; j < f->n; j++) {
		struct seq *q = &s->seq[f->row[j].seq];

		look_ahead(s, f, j);
		if (q->gen != f->row[j].gen)
			s->stats.late++;
		else if (j < f->n_decode)
			reap_sample(s, q, b, j);
		else
			reap_row(s, q, &b->row[j], b);
	}
	kv_publish_many(s->kv, s->due, s->due_at, s->n_due);
	s->n_due = 0;
	return 1;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

/* Add the time since the last step to both axes. */
static void account(struct sched *s, uint64_t now, bool flying, uint32_t host_ns)
{
	uint64_t dt = s->last_step && now > s->last_step ? now - s->last_step : 0;
	uint64_t host = host_ns < dt ? host_ns : dt;

	s->last_step = now;
	s->stats.why_ns[s->why] += dt;
	if (!flying) {
		s->stats.bound_ns[BOUND_IDLE] += dt;
		return;
	}
	s->stats.bound_ns[BOUND_HOST] += host;
	s->stats.bound_ns[s->bound] += dt - host;
}

static int expire(struct sched *s, uint64_t now)
{
	int n = 0;

	for (; s->n_heap && s->seq[s->heap[0]].deadline <= now; n++)
		seq_finish(s, s->heap[0], -ETIME);
	return n;
}

int sched_lose(struct sched *s)
{
	s->lost = true;
	for (int32_t i = 0; i < s->n_seq; i++)
		if (s->seq[i].state != SEQ_FREE)
			seq_finish(s, i, -EIO);
	s->reaped = s->launched;
	return -EIO;
}

int sched_step(struct sched *s, uint64_t now)
{
	bool flying = s->reaped != s->launched;
	uint32_t host_ns;
	int reaped, planned, work;

	if (s->lost)
		return -EIO;
	reaped = reap(s, &host_ns);
	if (reaped < 0)
		return sched_lose(s);
	account(s, now, flying, host_ns);
	work = reaped + expire(s, now);
	if (s->launched - s->reaped == (uint32_t)s->ops->depth)
		return work;
	if (!s->n_run && !s->stats.waiting && !s->n_ended) {
		s->why = WHY_EMPTY;
		return work;
	}
	planned = plan_batch(s, now, reaped > 0);
	return planned < 0 ? sched_lose(s) : work + planned;
}

int32_t sched_flying(const struct sched *s)
{
	return s->reaped == s->launched ? -1 : (int32_t)(s->reaped % (uint32_t)s->ops->depth);
}

uint64_t sched_takes(const struct sched *s)
{
	const struct flight *f = &s->flight[s->reaped % (uint32_t)s->ops->depth];

	if (s->reaped == s->launched)
		return 0;
	return (uint64_t)((f->n_decode ? s->decode_ns : 0) + (f->n_tokens - f->n_decode) * s->prompt_ns);
}

uint64_t sched_spare(const struct sched *s, uint64_t now)
{
	const struct flight *f = &s->flight[s->reaped % (uint32_t)s->ops->depth];
	uint64_t done;

	if (s->reaped == s->launched)
		return 0;
	done = (f->at > s->prev_end ? f->at : s->prev_end) + sched_takes(s); /* after the batch before it */
	return done > now ? done - now : 0;
}

bool sched_busy(const struct sched *s)
{
	return s->stats.waiting || s->n_run || s->reaped != s->launched;
}

void sched_stats(const struct sched *s, struct sched_stats *out)
{
	*out = s->stats;
	out->running = s->n_run;
	out->why = s->why;
	out->preempted = s->again.n;
}
