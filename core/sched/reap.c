/* sched/reap.c - takes the results of a batch: tokens to their clients, what it measured to estimates. */
#include <assert.h>
#include <errno.h>

#include "core/sched/impl.h"

#define SMOOTH       0.2      /* weight of a new time measurement */
#define EXCLUDED     (-9999.0f) /* log-probability of an id that may not be drawn, as back ends have it */
#define SMOOTH_FULL  64       /* slower measurements from fewer prompt tokens weigh less */

HOT void emit_result(struct sched *s, struct seq *q, const struct sr_result *o, const struct sr_top *top,
			enum sched_kind kind, int32_t position, int32_t last)
{
	struct sched_event e = {
		.user_data = q->user_data, .kind = (uint8_t)kind, .last = (uint8_t)last, .position = position,
		.id = o->id, .rank = o->rank, .logprob = o->logprob,
		.n_top = kind == SCHED_TOKEN ? q->n_top : q->n_prompt_top,
		.top = top,
	};

	if (position == q->first)
		seq_summary(q, &e);
	s->port.emit(s->port.ctx, q->client, &e);
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

/* Are the K,V of the tokens before a token in launched batches?  AT_ONCE: others of its row may fill another block. */
enum computed { NOT_COMPUTED, COMPUTED, AT_ONCE };

/* Take the next token of q. */
HOT void take_token(struct sched *s, struct seq *q, const struct sr_result *o, const struct sr_top *top,
		    enum computed computed)
{
	int32_t id = o->id, position = q->have, finish = 0;

	if (q->stops && words_stop(q, id) && (position >= q->min_position || q->guided))
		finish = SCHED_STOP;
	else if (position + 1 == q->end)
		finish = SCHED_LENGTH;
	ids_append(s, q, id);
	q->reserved -= q->cost;
	s->stats.samples++;
	emit_result(s, q, o, top, SCHED_TOKEN, position, finish);
	if (computed && (position & (s->cfg.limits.block_tokens - 1)) == 0)
		publish_answer(s, q, position, finish != 0 || computed == AT_ONCE);
	if (finish)
		seq_finish(s, (int32_t)(q - s->seq), finish);
}

HOT void reap_sample(struct sched *s, struct seq *q, const struct sr_batch *b, int32_t result)
{
	take_token(s, q, &b->result[result], b->top + (size_t)result * SR_TOP_MAX, COMPUTED);
}

/* One of several draws of a row. */
void reap_drawn(struct sched *s, struct seq *q, const struct sr_batch *b, int32_t result)
{
	take_token(s, q, &b->result[result], b->top + (size_t)result * SR_TOP_MAX, AT_ONCE);
}

/* Take a token that a guide forced.  Its numbers are the same whether a row drew it or not. */
void reap_known(struct sched *s, struct seq *q, int32_t id, bool computed)
{
	const struct sr_result o = { .id = id, .logprob = 0, .rank = q->n_top ? 1 : 0 };
	struct sr_top top[SR_TOP_MAX] = { { id, 0 } };

	for (int32_t k = 1; k < q->n_top; k++)
		top[k] = (struct sr_top){ k - (k <= id), EXCLUDED };
	take_token(s, q, &o, top, computed ? COMPUTED : NOT_COMPUTED);
}

/* Take the sampled token of a guided q, if there is one. */
static void reap_guided(struct sched *s, struct seq *q, const struct sr_batch *b, int32_t result)
{
	int32_t id = b->result[result].id, forced = guide_forced(s, q);
	uint32_t gen = q->gen;

	if (id == SR_MISS) {
		guide_missed(s, q);
		return;
	}
	if (id == SR_NO_ID) {
		seq_finish(s, (int32_t)(q - s->seq), -EDOM);
		return;
	}
	assert(forced < 0 || forced == id);
	if (forced < 0)
		reap_sample(s, q, b, result);
	else
		reap_known(s, q, id, true);
	if (q->gen == gen)
		guide_drawn(s, q, id);
}

static void reap_vector(struct sched *s, struct seq *q, const float *vector)
{
	struct sched_event e = { .user_data = q->user_data, .kind = SCHED_VECTOR, .position = q->have,
	                         .vector = vector, .n_vector = q->n_vector };

	s->port.emit(s->port.ctx, q->client, &e);
	seq_finish(s, (int32_t)(q - s->seq), SCHED_STOP);
}

static void emit_progress(struct sched *s, const struct seq *q, int32_t position)
{
	struct sched_event e = { .user_data = q->user_data, .kind = SCHED_PROGRESS, .position = position };

	seq_summary(q, &e);
	s->port.emit(s->port.ctx, q->client, &e);
}

/* Take the results of a row that is not just one sampled token.  Not inlined: it would take registers
 * from the loop over rows. */
static __attribute__((noinline)) void reap_row(struct sched *s, struct seq *q, const struct sr_row *r,
					       const struct sr_batch *b)
{
	for (int32_t j = 0; j < r->n_score; j++) {
		q->scored = r->first + 1 + j;
		q->reserved -= q->prompt_cost;
		emit_result(s, q, &b->result[r->result + j], b->top + (size_t)(r->result + j) * SR_TOP_MAX, SCHED_SCORED,
			    q->scored, 0);
	}
	if (q->progress && r->first + r->n <= q->n_prompt)
		emit_progress(s, q, r->first + r->n);
	if (q->pool) {
		if (r->sample)
			reap_vector(s, q, b->vector + (size_t)r->mask * (size_t)s->cfg.limits.width);
	} else if (r->n_draft) {
		draft_reap(s, q, r, b);
	} else if (r->sample) {
		assert(r->first + r->n == q->have);
		if (q->guided)
			reap_guided(s, q, b, r->result + r->n_score);
		else if (q->drafts && q->drawn)
			draft_heard(s, q, b->result[r->result].id), reap_sample(s, q, b, r->result + r->n_score);
		else
			reap_sample(s, q, b, r->result + r->n_score);
	} else if (q->end == q->n_prompt && q->scored == q->n_prompt - 1) {
		seq_finish(s, (int32_t)(q - s->seq), SCHED_LENGTH);
	}
}

/* Measure the time of a batch without prompts, and of each prompt token. */
static void measure(struct sched *s, const struct in_flight *f, const struct sr_batch *b)
{
	int32_t n_prompt = f->n_tokens - f->n_decode - f->n_guesses;
	double ns = b->end_ns > b->begin_ns ? (double)(b->end_ns - b->begin_ns) : 0, *to, x, weight = SMOOTH;

	if (s->cfg.drafts.most && n_prompt <= 0) {
		double work = (double)b->compute_ns + b->memory_ns;

		draft_measure(&s->draft.time, f->n_tokens, ns, work > 0 ? b->compute_ns / work : 0);
	}
	if (f->n_guesses)
		return;
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
	if (b->ranks_ns > b->compute_ns && b->ranks_ns > b->memory_ns && b->ranks_ns > b->copy_ns)
		return BOUND_RANKS;
	if (b->copy_ns > b->compute_ns && b->copy_ns > b->memory_ns)
		return BOUND_PCIE;
	return b->compute_ns > b->memory_ns ? BOUND_COMPUTE : BOUND_MEMORY;
}

static uint32_t ns32(uint64_t from, uint64_t to)
{
	return to <= from ? 0 : to - from > UINT32_MAX ? UINT32_MAX : (uint32_t)(to - from);
}

/* As in fill.c: prefetch the next rows. */
PREFETCH void prefetch_rows(const struct sched *s, const struct in_flight *f, int32_t j)
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
int reap_batch(struct sched *s, uint32_t *host_ns)
{
	int32_t slot = (int32_t)(s->reaped % (uint32_t)s->ops->depth);
	const struct in_flight *f = &s->flight[slot];
	const struct sr_batch *b;
	uint64_t right = s->cfg.counters->draft_accepted;
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
	s->cores.left_out_ns += b->cores_ns;
	s->cfg.counters->int8_ops += b->int8_ops;
	s->cfg.counters->float_ops += b->float_ops;
	s->cfg.counters->bytes_moved += b->bytes;
	s->cfg.counters->bytes_copied += b->copied;
	if (f->n) {
		measure(s, f, b);
		s->cfg.counters->steps++;
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

		prefetch_rows(s, f, j);
		if (q->gen != f->row[j].gen)
			s->stats.late++;
		else if (j < f->n_decode && !q->other)
			reap_sample(s, q, b, j);
		else
			reap_row(s, q, &b->row[j], b);
	}
	kv_publish_many(s->kv, s->due, s->due_at, s->n_due);
	s->n_due = 0;
	if (f->n_guesses)
		draft_gained(s, f, b, s->cfg.counters->draft_accepted - right);
	return 1;
}
