/* sched/admit.c - a request becomes a sequence; a sequence goes back to waiting, or ends. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/sched/impl.h"

/* ---- requests come ----------------------------------------------------------------------------- */

static bool fits_batch(const struct sched *s, const struct sched_request *r)
{
	const struct sr_limits *lim = &s->cfg.limits;
	int64_t words = (int64_t)r->n_words + (int64_t)lim->n_groups * lim->seq_blocks +
			(r->history ? (int64_t)r->n_prompt - r->n_answer + r->max_tokens : 0);

	return words + (int64_t)lim->n_groups * lim->rows <= lim->words &&
	       word_chunks_for(r->n_words - r->cmd[0].n) <= s->word_chunks && (!r->score || lim->scores >= 1) &&
	       (!r->pool || lim->vectors >= 1);
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
	assert(r->n_prompt >= 1 && (r->pool ? r->max_tokens == 0 : r->max_tokens >= (r->score ? 0 : 1)));
	assert(!r->pool || (r->n_vector >= 1 && !r->guided && !r->score && !r->history && !r->n_top));
	assert(!r->n_answer || (r->n_answer > 0 && r->n_answer < r->n_prompt && r->n_answer < r->max_tokens && !r->score));
	assert((int64_t)r->n_prompt - r->n_answer + r->max_tokens <= s->cfg.context);
	assert(r->n_top <= SR_TOP_MAX && r->n_prompt_top <= SR_TOP_MAX);
	for (int32_t i = 0; i < r->n_prompt; i++)
		assert(r->prompt[i] >= 0 && r->prompt[i] < s->cfg.vocab);
	check_cmds(r);
}

/* A new sequence from *r; everything is copied. */
static int32_t seq_make(struct sched *s, int32_t cq, const struct sched_request *r, uint64_t now)
{
	int32_t i = s->free_seq, n_begin = r->cmd[0].n;
	struct seq *q = &s->seq[i];
	uint32_t gen = q->gen;

	s->free_seq = q->next;
	*q = (struct seq){
		.gen = gen, .slot = NONE, .heap_at = NONE, .client = s->client_queue[cq].client,
		.tenant = s->client_queue[cq].tenant, .client_queue = cq, .user_data = r->user_data,
		.n_prompt = r->n_prompt - r->n_answer, .first = r->n_prompt,
		.end = r->n_prompt - r->n_answer + r->max_tokens,
		.n_top = r->n_top, .n_prompt_top = r->n_prompt_top,
		.cost = s->port.cost[r->n_top], .prompt_cost = s->port.cost[r->n_prompt_top],
		.score = r->score, .history = r->history, .no_cache = r->no_cache, .progress = r->progress, .guided = r->guided,
		.pool = r->pool, .n_vector = r->n_vector,
		.n_cmds = r->n_cmds, .n_words = r->n_words - n_begin, .stop = r->stop - n_begin, .n_stop = r->n_stop,
		.stops = r->n_stop > 0, .min_position = r->min_position, .salt = r->salt, .name = r->name,
		.deadline = r->deadline, .priority = s->knobs.fcfs ? 0 : r->priority, .order = ++s->order,
		.since = now,
	};
	memcpy(q->cmd, r->cmd, (size_t)r->n_cmds * sizeof(q->cmd[0]));
	memcpy(q->begin, r->words, (size_t)n_begin * sizeof(q->begin[0]));
	words_store(s, q, r->words + n_begin);
	for (int32_t j = 0; j < r->n_prompt; j++)
		ids_append(s, q, r->prompt[j]);
	q->known = q->have;
	if (q->guided)
		guide_join(s, q);
	draft_join(s, q);
	return i;
}

int sched_admit(struct sched *s, void *client, uint64_t tenant, const struct sched_request *r, uint64_t now)
{
	int32_t t, i;

	check_request(s, r);
	if (s->lost)
		return -EIO;
	if (!fits_batch(s, r))
		return -E2BIG;
	if (queue_find(s, client, r->user_data) != NONE)
		return -EEXIST;
	if (!s->port.room(s->port.ctx, client, 1u + s->port.cost[SR_TOP_MAX]) ||
	    !s->port.reserve(s->port.ctx, client, 1, 1))
		return -EAGAIN;
	assert(queue_room(s, r->n_prompt) && (!r->guided || sched_guides_full(s, tenant) == SCHED_ROOM));
	t = queue_tenant_join(s, tenant);
	i = seq_make(s, queue_join(s, client, t), r, now);
	queue_name(s, i);
	queue_put(s, i);
	if (r->deadline)
		queue_deadline(s, i);
	if (r->max_tokens == 0 && r->n_prompt == 1 && !r->pool) /* nothing to score or sample */
		seq_finish(s, i, SCHED_LENGTH);
	return 0;
}

/* ---- sequences end --------------------------------------------------------------------------------- */

/* Give up slot and blocks; results in flight for it will be dropped. */
static void seq_leave(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];
	int32_t slot = q->slot, j = 0;

	if (s->states)
		kv_state_leave(s->kv, &s->table[slot], q->planned);
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
	s->run_changed = true;
	memmove(&s->run[j], &s->run[j + 1], (size_t)(s->n_run - j) * sizeof(s->run[0]));
}

static void release_records(struct sched *s, struct seq *q)
{
	if (q->reserved)
		s->port.release(s->port.ctx, q->client, (uint32_t)q->reserved);
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
	if (q->guided)
		guide_leave(s, q);
	queue_leave(s, q->client_queue);
	q->state = SEQ_FREE;
	q->gen++;
	q->next = s->free_seq;
	s->free_seq = i;
	s->stats.finished++;
}

/* End it: nothing more is emitted for it. */
void seq_finish(struct sched *s, int32_t i, int32_t finish)
{
	struct seq *q = &s->seq[i];
	struct sched_event e = {
		.user_data = q->user_data, .kind = SCHED_END, .position = q->have, .finish = finish,
	};

	seq_summary(q, &e);
	release_records(s, q);
	s->port.emit(s->port.ctx, q->client, &e);
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
	q->drawn = q->guessing = false;
	if (q->guided)
		s->guide[q->guide].again = false;
	q->preempted++;
	ids_started(s, q, quota_for(q->have));
	s->cfg.counters->preemptions++;
	queue_put(s, i);
}

/* Has its client room for its next token or scored id now? */
bool seq_has_room(const struct sched *s, const struct seq *q)
{
	return s->port.room(s->port.ctx, q->client,
			    q->score && q->prompt_cost > q->cost ? q->prompt_cost : q->cost);
}

/* Its client has no room: put it back into its client's queue, with its ids, as if it had never started.
 * The client starts nothing before it has room.  False: the queue has no place. */
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
	queue_block(s, q->client_queue);
	return true;
}

void sched_cancel(struct sched *s, void *client, uint64_t user_data)
{
	int32_t i = queue_find(s, client, user_data);

	if (i != NONE)
		seq_finish(s, i, -ECANCELED);
}

void sched_forget(struct sched *s, void *client)
{
	int32_t left = s->n_run + (int32_t)s->stats.waiting; /* sequences in use; low places are used first */

	for (int32_t i = 0; left > 0; i++) {
		if (s->seq[i].state == SEQ_FREE)
			continue;
		left--;
		if (s->seq[i].client == client)
			seq_close(s, i);
	}
}
