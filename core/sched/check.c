/* sched/check.c - the scheduler's invariants: every slot, block, chunk and record has exactly
 * one owner.  Tests call sched_check() after every step; it is O(everything).
 */
#include <assert.h>

#include "core/sched/impl.h"

struct sums {
	int32_t run, waiting, chunks, quota, word_chunks, deadlines, guides, states;
	int64_t waiting_tokens, blocks;
};

static void check_seq(const struct sched *s, const struct seq *q, struct sums *sum)
{
	int32_t n_chunks = 0;

	for (const struct kv_chunk *c = q->head; c; c = c->next)
		n_chunks++;
	assert(n_chunks == q->n_chunks && n_chunks == q->have / KV_CHUNK + 1);
	assert(q->have >= q->n_prompt && q->have <= q->known && q->known <= q->end);
	assert(q->reserved >= 0 && q->stops == (q->n_stop > 0));
	assert((q->deadline != 0) == (q->heap_at != NONE));
	assert(queue_find(s, q->client, q->user_data) == (int32_t)(q - s->seq));
	assert(!q->guessing || (q->drafts && q->state == SEQ_RUNNING && q->known > q->have + 1));
	assert(!q->drafts || (s->cfg.drafts.most && !q->guided && !q->pool));
	if (q->guided)
		guide_check(s, q);
	sum->guides += q->guided;
	sum->chunks += n_chunks;
	sum->word_chunks += word_chunks_for(q->n_words);
	sum->deadlines += q->deadline != 0;
	if (q->started) {
		assert(n_chunks <= q->quota);
		sum->quota += q->quota;
	}
	if (q->state == SEQ_RUNNING) {
		const struct kv_table *t = &s->table[q->slot];

		assert(q->started && s->taken[q->slot] && s->filled[q->slot] <= s->n_filled);
		assert(q->planned <= q->known && q->planned <= t->n * s->cfg.limits.block_tokens);
		assert(t->published <= t->n && t->salt == q->salt);
		sum->run++;
		sum->states += s->states;
		for (int32_t g = 0; g < s->cfg.limits.n_groups; g++)
			sum->blocks += t->n - kv_first(s->kv, t, g);
	} else {
		assert(q->slot == NONE && q->planned == 0 && !q->drawn && q->reserved == 0);
		assert(q->known == q->have);
		sum->waiting++;
		sum->waiting_tokens += q->have;
	}
}

static int32_t check_list(const struct sched *s, const struct seq_list *l, int32_t cq, int64_t *tokens)
{
	int32_t n = 0, before = NONE;

	for (int32_t i = l->first; i != NONE; before = i, i = s->seq[i].next, n++) {
		const struct seq *q = &s->seq[i];

		assert(q->state == SEQ_WAITING && q->prev == before);
		assert(q->started == (cq == NONE) && (cq == NONE || q->client_queue == cq));
		assert(before == NONE || ranks_before(&s->seq[before], q));
		*tokens += q->have;
	}
	assert(n == l->n && l->last == before);
	return n;
}

/* The same sequences by arrival. */
static void check_age(const struct sched *s, const struct client_queue *cq)
{
	int32_t n = 0, before = NONE;

	for (int32_t i = cq->by_age.first; i != NONE; before = i, i = s->seq[i].newer, n++) {
		assert(s->seq[i].client_queue == cq - s->client_queue && s->seq[i].older == before);
		assert(s->seq[i].state == SEQ_WAITING && !s->seq[i].started);
		assert(before == NONE || s->seq[before].order < s->seq[i].order);
	}
	assert(n == cq->by_rank.n && n == cq->by_age.n && cq->by_age.last == before);
}

/* Client queues whose client has no room are in no ring. */
static int32_t check_blocked(const struct sched *s, int32_t t, int64_t *tokens)
{
	int32_t n = 0;

	for (int32_t k = 0; k < s->n_blocked; k++) {
		const struct client_queue *cq = &s->client_queue[s->blocked[k]];
		int64_t mine = 0;

		assert(cq->blocked && cq->live > 0);
		if (cq->tenant != t)
			continue;
		n += check_list(s, &cq->by_rank, s->blocked[k], &mine);
		check_age(s, cq);
		assert(mine == cq->tokens && cq->live >= cq->by_rank.n);
		*tokens += mine;
	}
	return n;
}

/* A tenant's ring has each client that waits once, with the priority of its first sequence. */
static int32_t check_clients(const struct sched *s, int32_t t, int64_t *tokens)
{
	const struct tenant_queue *x = &s->tenant[t];
	int32_t n = 0, i = x->drr.turn, best = INT32_MAX, n_best = 0;
	int64_t sum = 0;

	for (int32_t j = 0; j < x->drr.n; j++, i = s->account[i].next) {
		const struct client_queue *cq = &s->client_queue[i - s->cfg.tenants];
		int32_t priority = s->account[i].priority;
		int64_t mine = 0;

		assert(cq->tenant == t && cq->by_rank.n > 0 && !cq->blocked);
		assert(s->account[s->account[i].next].prev == i);
		assert(queue_of(s, cq->client, t) == i - s->cfg.tenants);
		assert(priority == s->seq[cq->by_rank.first].priority);
		n += check_list(s, &cq->by_rank, i - s->cfg.tenants, &mine);
		check_age(s, cq);
		assert(mine == cq->tokens && cq->live >= cq->by_rank.n);
		n_best = priority < best ? 1 : n_best + (priority == best);
		best = priority < best ? priority : best;
		sum += mine;
	}
	assert(n_best == x->n_best && (best == s->account[t].priority || !n));
	n += check_blocked(s, t, &sum);
	assert(n == x->n && sum == x->tokens);
	*tokens += sum;
	return n;
}

static void check_tenants(const struct sched *s, const struct sums *sum)
{
	int32_t n = 0, in_drr = 0, t = s->drr.turn, live = 0;
	int64_t tokens = 0;

	for (int32_t j = 0; j < s->cfg.tenants; j++) {
		const struct tenant_queue *x = &s->tenant[j];

		assert(x->live >= 0);
		if (!x->live)
			continue;
		n += check_clients(s, j, &tokens);
		in_drr += x->drr.n > 0;
		live += x->live;
	}
	assert(n == s->n_queued && tokens == s->queued_tokens && in_drr == s->drr.n);
	assert(live == sum->run + sum->waiting);
	for (int32_t j = 0; j < s->drr.n; j++, t = s->account[t].next)
		assert(s->tenant[t].drr.n > 0 && s->account[s->account[t].next].prev == t);
	n += check_list(s, &s->preempted, NONE, &tokens);
	n += check_list(s, &s->aside, NONE, &tokens);
	for (int32_t i = s->aside.first; i != NONE; i = s->seq[i].next)
		assert(s->seq[i].aside && s->seq[i].guided);
	assert(n == s->stats.waiting && tokens == s->stats.waiting_tokens);
}

/* Each pair of mask places is free or has one owner. */
static void check_guides(const struct sched *s)
{
	for (int32_t g = 0; g < s->n_guide; g++) {
		int32_t owners = 0;

		for (int32_t k = 0; k < s->n_free_guide; k++)
			owners += s->free_guide[(s->free_guide_at + k) % s->n_guide] == g;
		for (int32_t i = 0; i < s->n_seq; i++)
			owners += s->seq[i].state != SEQ_FREE && s->seq[i].guided && s->seq[i].guide == g;
		assert(owners == 1);
	}
}

void sched_check(const struct sched *s)
{
	struct sums sum = { 0 };
	struct kv_stats k;
	int32_t taken = 0;

	for (int32_t i = 0; i < s->n_seq; i++)
		if (s->seq[i].state != SEQ_FREE)
			check_seq(s, &s->seq[i], &sum);
	assert(sum.run == s->n_run && sum.waiting == s->stats.waiting);
	assert(sum.waiting_tokens == s->stats.waiting_tokens);
	assert(sum.chunks + sum.word_chunks + s->n_free_chunk == s->n_chunk);
	assert(sum.word_chunks == s->word_used && s->word_used <= s->word_chunks);
	assert(sum.quota == s->start_used && s->start_used <= s->start_chunks);
	assert(sum.deadlines == s->n_heap);
	assert(sum.guides + s->n_free_guide == s->n_guide);
	check_guides(s);
	for (int32_t j = 0; j < s->n_run; j++) {
		assert(s->seq[s->run[j]].state == SEQ_RUNNING);
		assert(j == 0 || ranks_before(&s->seq[s->run[j - 1]], &s->seq[s->run[j]]));
	}
	for (int32_t j = 0; j < s->n_heap; j++) {
		assert(s->seq[s->heap[j]].heap_at == j);
		assert(j == 0 || s->seq[s->heap[(j - 1) / 2]].deadline <= s->seq[s->heap[j]].deadline);
	}
	for (int32_t slot = 0; slot < s->cfg.limits.slots; slot++) {
		taken += s->taken[slot];
		assert(s->taken[slot] || s->table[slot].n == 0);
	}
	assert(taken == s->n_run && taken + s->n_free_slot == s->cfg.limits.slots);
	check_tenants(s, &sum);
	kv_stats(s->kv, &k);
	assert(!s->states || k.n_states_free + k.n_states_cached + sum.states <= s->cfg.limits.n_states);
	assert(sum.blocks >= k.n_held); /* greater if some blocks are shared */
	kv_check(s->kv);
}
