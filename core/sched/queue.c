/* sched/queue.c - waiting: tenants and their clients, lines and turns, quotas, deadlines, names. */
#include <assert.h>

#include "core/sched/impl.h"

#define QUOTA 8    /* a tenant may queue 8 times what it leaves free */

/* ---- tenants, and the lines they wait in ------------------------------------------------------ */

int32_t queue_tenant(const struct sched *s, uint64_t id)
{
	for (int32_t t = 0; t < s->cfg.tenants; t++)
		if (s->tenant[t].live && s->tenant[t].id == id)
			return t;
	return NONE;
}

/* The tenant's entry: its old one if still free (cached blocks are counted by this number), else the
 * free one unused longest. */
int32_t queue_tenant_join(struct sched *s, uint64_t id)
{
	int32_t t = queue_tenant(s, id);

	if (t != NONE)
		return t;
	for (int32_t j = 0; j < s->cfg.tenants; j++) {
		const struct tenant_queue *x = &s->tenant[j];

		if (!x->live && x->id == id && x->left) {
			t = j;
			break;
		}
		if (!x->live && (t == NONE || x->left < s->tenant[t].left))
			t = j;
	}
	assert(t != NONE);
	s->tenant[t] = (struct tenant_queue){ .id = id };
	s->account[t] = (struct account){ .at = s->drr.rounds };
	return t;
}

/* The hash bucket of a client under this tenant. */
static int32_t *client_bucket_of(const struct sched *s, const void *client, int32_t tenant)
{
	uint64_t x = ((uint64_t)(uintptr_t)client * 31 + (uint64_t)(uint32_t)tenant) * 0x9e3779b97f4a7c15u;

	return &s->client_bucket[(uint32_t)(x >> 32) & s->bucket_mask];
}

int32_t queue_of(const struct sched *s, const void *client, int32_t tenant)
{
	int32_t cq = *client_bucket_of(s, client, tenant);

	while (cq != NONE && (s->client_queue[cq].client != client || s->client_queue[cq].tenant != tenant))
		cq = s->client_queue[cq].chained;
	return cq;
}

/* Count one more live request of this client and tenant. */
int32_t queue_join(struct sched *s, void *client, int32_t tenant)
{
	int32_t cq = queue_of(s, client, tenant), *head = client_bucket_of(s, client, tenant);

	if (cq == NONE) {
		cq = s->free_client_queue; /* never NONE: there is one entry per sequence */
		s->free_client_queue = s->client_queue[cq].chained;
		s->client_queue[cq] = (struct client_queue){
			.client = client, .tenant = tenant, .by_rank = { NONE, NONE, 0 }, .by_age = { NONE, NONE, 0 },
			.chained = *head,
		};
		s->account[s->cfg.tenants + cq] = (struct account){ .at = s->tenant[tenant].drr.rounds };
		*head = cq;
	}
	s->client_queue[cq].live++;
	s->tenant[tenant].live++;
	return cq;
}

static void blocked_drop(struct sched *s, int32_t cq)
{
	int32_t k = 0;

	while (s->blocked[k] != cq)
		k++;
	s->blocked[k] = s->blocked[--s->n_blocked];
	s->client_queue[cq].blocked = false;
}

/* Count one live request less. */
void queue_leave(struct sched *s, int32_t cq)
{
	struct tenant_queue *t = &s->tenant[s->client_queue[cq].tenant];
	int32_t *at = client_bucket_of(s, s->client_queue[cq].client, s->client_queue[cq].tenant);

	if (--t->live == 0)
		t->left = s->order;
	if (--s->client_queue[cq].live > 0)
		return;
	if (s->client_queue[cq].blocked)
		blocked_drop(s, cq);
	while (*at != cq)
		at = &s->client_queue[*at].chained;
	*at = s->client_queue[cq].chained;
	s->client_queue[cq].chained = s->free_client_queue;
	s->free_client_queue = cq;
}

/* ---- deficit round robin ----------------------------------------------------------------------- */

static void drr_join(struct sched *s, struct drr *r, int32_t i)
{
	struct account *me = &s->account[i];

	if (r->n++ == 0) {
		r->turn = me->prev = me->next = i;
		return;
	}
	me->next = r->turn;     /* last in the ring */
	me->prev = s->account[r->turn].prev;
	s->account[me->prev].next = i;
	s->account[me->next].prev = i;
}

static void drr_leave(struct sched *s, struct drr *r, int32_t i)
{
	struct account *me = &s->account[i];

	s->account[me->prev].next = me->next;
	s->account[me->next].prev = me->prev;
	if (r->turn == i)
		r->turn = me->next;
	r->n--;
}

/* Credit i with a quantum per round since the last call, capped at one quantum. */
static int64_t credit(struct sched *s, const struct drr *r, int32_t i)
{
	struct account *me = &s->account[i];

	me->deficit += (int64_t)(r->rounds - me->at) * s->knobs.quantum;
	me->at = r->rounds;
	if (me->deficit > s->knobs.quantum)
		me->deficit = s->knobs.quantum;
	return me->deficit;
}

/* Charge n planned tokens: q's tenant pays while another tenant waits, its client likewise. */
void queue_charge(struct sched *s, const struct seq *q, int32_t n)
{
	struct drr *mine = &s->tenant[q->tenant].drr;
	int32_t i = s->cfg.tenants + q->client_queue;

	if (s->drr.n > (mine->n > 0)) {
		credit(s, &s->drr, q->tenant);
		s->account[q->tenant].deficit -= n;
	}
	if (mine->n > (s->client_queue[q->client_queue].by_rank.n > 0)) {
		credit(s, mine, i);
		s->account[i].deficit -= n;
	}
}

/* From the current turn on, the first with this priority that owes nothing; else NONE, and in
 * *rounds the number of rounds until one owes nothing. */
static int32_t first_in_credit(struct sched *s, const struct drr *r, int32_t priority, int64_t *rounds)
{
	int32_t i = r->turn;

	*rounds = INT64_MAX;
	for (int32_t j = 0; j < r->n; j++, i = s->account[i].next) {
		int64_t deficit, wait;

		if (s->account[i].priority != priority)
			continue;
		deficit = credit(s, r, i);
		if (deficit >= 0)
			return i;
		wait = (-deficit + s->knobs.quantum - 1) / s->knobs.quantum;
		if (wait < *rounds)
			*rounds = wait;
	}
	return NONE;
}

/* Whose turn it is.  Rounds in which nobody is in credit are skipped at once. */
static int32_t drr_next(struct sched *s, struct drr *r, int32_t priority)
{
	int64_t rounds;
	int32_t i = first_in_credit(s, r, priority, &rounds);

	if (i == NONE) {
		r->turn = s->account[r->turn].next;
		r->rounds += (uint64_t)rounds;
		i = first_in_credit(s, r, priority, &rounds);
		assert(i != NONE);
	}
	r->turn = i;
	return i;
}

/* By rank.  Most come in order and go last, or come back and go first; the others are searched for. */
static void rank_put(struct sched *s, struct seq_list *l, int32_t i)
{
	struct seq *q = &s->seq[i];
	int32_t after = l->n && ranks_before(q, &s->seq[l->first]) ? NONE : l->last;

	while (after != NONE && ranks_before(q, &s->seq[after]))
		after = s->seq[after].prev;
	q->prev = after;
	q->next = after != NONE ? s->seq[after].next : l->first;
	if (q->prev != NONE)
		s->seq[q->prev].next = i;
	else
		l->first = i;
	if (q->next != NONE)
		s->seq[q->next].prev = i;
	else
		l->last = i;
	l->n++;
}

static void rank_take(struct sched *s, struct seq_list *l, int32_t i)
{
	const struct seq *q = &s->seq[i];

	if (q->prev != NONE)
		s->seq[q->prev].next = q->next;
	else
		l->first = q->next;
	if (q->next != NONE)
		s->seq[q->next].prev = q->prev;
	else
		l->last = q->prev;
	l->n--;
}

/* By arrival.  Most come in order and go last; parked sequences come back among the first. */
static void age_put(struct sched *s, struct seq_list *l, int32_t i)
{
	struct seq *q = &s->seq[i];
	int32_t after = l->n && q->order < s->seq[l->first].order ? NONE : l->last;

	while (after != NONE && q->order < s->seq[after].order)
		after = s->seq[after].older;
	q->older = after;
	q->newer = after != NONE ? s->seq[after].newer : l->first;
	*(q->older != NONE ? &s->seq[q->older].newer : &l->first) = i;
	*(q->newer != NONE ? &s->seq[q->newer].older : &l->last) = i;
	l->n++;
}

static void age_take(struct sched *s, struct seq_list *l, int32_t i)
{
	const struct seq *q = &s->seq[i];

	*(q->older != NONE ? &s->seq[q->older].newer : &l->first) = q->newer;
	*(q->newer != NONE ? &s->seq[q->newer].older : &l->last) = q->older;
	l->n--;
}

/* Recompute the best priority of a tenant's clients that wait. */
static void rank_tenant(struct sched *s, int32_t t)
{
	struct tenant_queue *x = &s->tenant[t];
	int32_t i = x->drr.turn, best = INT32_MAX;

	x->n_best = 0;
	for (int32_t j = 0; j < x->drr.n; j++, i = s->account[i].next) {
		if (s->account[i].priority < best) {
			best = s->account[i].priority;
			x->n_best = 0;
		}
		x->n_best += s->account[i].priority == best;
	}
	s->account[t].priority = best;
}

static bool in_drr(const struct sched *s, int32_t cq)
{
	return s->client_queue[cq].by_rank.n > 0 && !s->client_queue[cq].blocked;
}

/* Update after client queue cq changed; was_in, priority: its state in its tenant's ring before. */
static void queue_changed(struct sched *s, int32_t cq, bool was_in, int32_t priority)
{
	int32_t t = s->client_queue[cq].tenant, i = s->cfg.tenants + cq;
	struct tenant_queue *x = &s->tenant[t];
	bool is_in = in_drr(s, cq);

	if (is_in)
		s->account[i].priority = s->seq[s->client_queue[cq].by_rank.first].priority;
	if (is_in && !was_in)
		drr_join(s, &x->drr, i);
	else if (was_in && !is_in)
		drr_leave(s, &x->drr, i);
	if (was_in && priority == s->account[t].priority)
		x->n_best--;
	if (is_in && x->n_best > 0 && s->account[i].priority == s->account[t].priority)
		x->n_best++;
	else if (x->n_best == 0 || (is_in && s->account[i].priority < s->account[t].priority))
		rank_tenant(s, t);
	if (x->drr.n == 1 && is_in && !was_in)
		drr_join(s, &s->drr, t);
	else if (x->drr.n == 0 && was_in)
		drr_leave(s, &s->drr, t);
}

void queue_put(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];
	struct client_queue *cq = &s->client_queue[q->client_queue];
	struct tenant_queue *t = &s->tenant[q->tenant];
	bool was_in = in_drr(s, q->client_queue);
	int32_t priority = was_in ? s->seq[cq->by_rank.first].priority : 0;

	q->state = SEQ_WAITING;
	s->stats.waiting++;
	s->stats.waiting_tokens += q->have;
	if (q->started) {
		rank_put(s, q->aside ? &s->aside : &s->preempted, i);
		return;
	}
	rank_put(s, &cq->by_rank, i);
	age_put(s, &cq->by_age, i);
	cq->tokens += q->have;
	t->n++;
	t->tokens += q->have;
	s->n_queued++;
	s->queued_tokens += q->have;
	queue_changed(s, q->client_queue, was_in, priority);
}

void queue_take(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];
	struct client_queue *cq = &s->client_queue[q->client_queue];
	struct tenant_queue *t = &s->tenant[q->tenant];
	bool was_in = in_drr(s, q->client_queue);
	int32_t priority;

	s->stats.waiting--;
	s->stats.waiting_tokens -= q->have;
	if (q->started) {
		rank_take(s, q->aside ? &s->aside : &s->preempted, i);
		return;
	}
	priority = s->seq[cq->by_rank.first].priority;
	rank_take(s, &cq->by_rank, i);
	age_take(s, &cq->by_age, i);
	cq->tokens -= q->have;
	t->n--;
	t->tokens -= q->have;
	s->n_queued--;
	s->queued_tokens -= q->have;
	queue_changed(s, q->client_queue, was_in, priority);
}

/* Is there room for n_ids more ids?  A request longer than queue_tokens needs an empty queue. */
bool queue_room(const struct sched *s, int64_t n_ids)
{
	return s->n_queued < s->knobs.queue_requests &&
	       (s->queued_tokens + n_ids <= s->knobs.queue_tokens || s->n_queued == 0);
}

/* Take client queue cq out of its tenant's ring until its client has room, so that it delays no other. */
void queue_block(struct sched *s, int32_t cq)
{
	bool was_in = in_drr(s, cq);
	int32_t priority = was_in ? s->seq[s->client_queue[cq].by_rank.first].priority : 0;

	if (s->client_queue[cq].blocked)
		return;
	s->client_queue[cq].blocked = true;
	s->blocked[s->n_blocked++] = cq;
	queue_changed(s, cq, was_in, priority);
}

void queue_unblock(struct sched *s, int32_t cq)
{
	blocked_drop(s, cq);
	queue_changed(s, cq, false, 0);
}

/* Of this tenant's requests that waited long behind better priorities: choose the client whose last
 * place by age is the oldest, and its first request. */
static int32_t aged_of(const struct sched *s, const struct tenant_queue *x, int32_t priority, uint64_t now)
{
	int32_t i = x->drr.turn, best = NONE;

	for (int32_t j = 0; j < x->drr.n; j++, i = s->account[i].next) {
		const struct seq *q = &s->seq[s->client_queue[i - s->cfg.tenants].by_age.first];

		if (q->priority > priority && now - q->since >= s->cfg.age_ns && now > q->since &&
		    (best == NONE || s->account[i].aged < s->account[best].aged))
			best = i;
	}
	return best == NONE ? NONE : s->client_queue[best - s->cfg.tenants].by_age.first;
}

/* The same among all tenants. */
static int32_t aged(const struct sched *s, int32_t priority, uint64_t now)
{
	int32_t t = s->drr.turn, head = NONE, i;

	for (int32_t j = 0; j < s->drr.n; j++, t = s->account[t].next)
		if ((head == NONE || s->account[t].aged < s->account[s->seq[head].tenant].aged) &&
		    (i = aged_of(s, &s->tenant[t], priority, now)) != NONE)
			head = i;
	return head;
}

/* The sequence got its place: count it, because one of AGED_EVERY goes by age. */
void queue_admitted(struct sched *s, int32_t i)
{
	const struct seq *q = &s->seq[i];

	if (q->started)
		return;
	if (i == s->aged_head) {
		s->n_by_rank = 0;
		s->account[q->tenant].aged = s->account[s->cfg.tenants + q->client_queue].aged = ++s->n_aged;
	} else if (s->n_by_rank < AGED_EVERY) {
		s->n_by_rank++;
	}
	s->aged_head = NONE;
}

/* Which sequence is next?  A preempted one; else one of the best priority, with tenants in turn, and
 * within a tenant its clients.  One place of AGED_EVERY goes by age, so no priority can starve another. */
int32_t queue_head(struct sched *s, uint64_t now)
{
	int32_t priority = INT32_MAX, i = s->drr.turn;

	s->aged_head = NONE;
	if (s->preempted.first != NONE)
		return s->preempted.first;
	if (s->drr.n == 0)
		return NONE;
	for (int32_t j = 0; j < s->drr.n; j++, i = s->account[i].next)
		if (s->account[i].priority < priority)
			priority = s->account[i].priority;
	if (s->n_by_rank >= AGED_EVERY - 1)
		s->aged_head = aged(s, priority, now);
	if (s->aged_head != NONE)
		return s->aged_head;
	i = drr_next(s, &s->drr, priority);
	i = drr_next(s, &s->tenant[i].drr, priority);
	return s->client_queue[i - s->cfg.tenants].by_rank.first;
}

/* ---- quotas ------------------------------------------------------------------------------------ */

/* Is `mine`, its part of the queue, more than its quota, with `left` free?  The quota is QUOTA times
 * what stays free.  So a lone tenant can have nearly all, and many leave room for a newcomer. */
static bool over(int64_t mine, int64_t left)
{
	return mine > QUOTA * left;
}

/* How much more it may take until it is over its quota; rounded up. */
static int64_t to_quota(int64_t mine, int64_t left)
{
	return (QUOTA * left - mine + QUOTA) / (QUOTA + 1);
}

/* Words of commands have a bounded pool of their own, shared like the queue.  A request larger than the
 * whole pool does not wait: sched_admit refuses it. */
static enum sched_room words_full(const struct sched *s, int32_t t, int32_t chunks)
{
	int32_t left = s->word_chunks - s->word_used;
	int32_t mine = t == NONE ? 0 : s->tenant[t].word_chunks;

	if (chunks <= 0 || chunks > s->word_chunks)
		return SCHED_ROOM;
	return mine > 0 && mine + chunks > left ? SCHED_OVER : chunks > left ? SCHED_FULL : SCHED_ROOM;
}

/* Tokens that no tenant with queued requests may take.  Many floods together leave little of the
 * queue, yet room for one prompt of any length from another tenant. */
static int64_t kept_for_long(const struct sched *s)
{
	int64_t half = s->knobs.queue_tokens / 2;

	return s->cfg.context < half ? s->cfg.context : half;
}

/* A prompt longer than queue_tokens is taken if the queue is empty. */
enum sched_room sched_full(const struct sched *s, const void *client, uint64_t tenant, int32_t n_prompt,
			   int32_t n_words)
{
	int32_t t = queue_tenant(s, tenant), cq;
	enum sched_room words = words_full(s, t, word_chunks_for(n_words));
	int64_t places = s->knobs.queue_requests - s->n_queued - 1;
	int64_t tokens = s->knobs.queue_tokens - s->queued_tokens - n_prompt;
	const struct tenant_queue *me;
	const struct client_queue *part;

	if (t == NONE) {
		for (t = 0; t < s->cfg.tenants && s->tenant[t].live; t++)
			;
		return places < 0 || (tokens < 0 && s->n_queued > 0) || t == s->cfg.tenants ? SCHED_FULL : words;
	}
	me = &s->tenant[t];
	if (me->n && (over(me->n, places) || over(me->tokens, tokens - kept_for_long(s))))
		return SCHED_OVER;
	if (places < 0 || (tokens < 0 && s->n_queued > 0))
		return SCHED_FULL;
	if (me->n)
		tokens -= kept_for_long(s);
	cq = queue_of(s, client, t);
	if (words || cq == NONE)
		return words;
	part = &s->client_queue[cq];
	return part->by_rank.n && (over(part->by_rank.n, to_quota(me->n, places)) ||
				over(part->tokens, to_quota(me->tokens, tokens))) ? SCHED_OVER : SCHED_ROOM;
}

/* ---- names ------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct sched *s, const void *client, uint64_t user_data)
{
	uint64_t x = ((uint64_t)(uintptr_t)client * 31 + user_data) * 0x9e3779b97f4a7c15u;

	return &s->bucket[(uint32_t)(x >> 32) & s->bucket_mask];
}

int32_t queue_find(const struct sched *s, const void *client, uint64_t user_data)
{
	int32_t i = *bucket_of(s, client, user_data);

	while (i != NONE && (s->seq[i].client != client || s->seq[i].user_data != user_data))
		i = s->seq[i].chained;
	return i;
}

void queue_name(struct sched *s, int32_t i)
{
	int32_t *head = bucket_of(s, s->seq[i].client, s->seq[i].user_data);

	s->seq[i].chained = *head;
	*head = i;
}

void queue_unname(struct sched *s, int32_t i)
{
	int32_t *at = bucket_of(s, s->seq[i].client, s->seq[i].user_data);

	while (*at != i)
		at = &s->seq[*at].chained;
	*at = s->seq[i].chained;
}

/* ---- deadlines: a binary heap --------------------------------------------------------------------- */

static void heap_set(struct sched *s, int32_t at, int32_t i)
{
	s->heap[at] = i;
	s->seq[i].heap_at = at;
}

static void heap_up(struct sched *s, int32_t at)
{
	int32_t i = s->heap[at];

	while (at > 0 && s->seq[i].deadline < s->seq[s->heap[(at - 1) / 2]].deadline) {
		heap_set(s, at, s->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_set(s, at, i);
}

static void heap_down(struct sched *s, int32_t at)
{
	int32_t i = s->heap[at];

	for (;;) {
		int32_t child = 2 * at + 1;

		if (child + 1 < s->n_heap &&
		    s->seq[s->heap[child + 1]].deadline < s->seq[s->heap[child]].deadline)
			child++;
		if (child >= s->n_heap || s->seq[s->heap[child]].deadline >= s->seq[i].deadline)
			break;
		heap_set(s, at, s->heap[child]);
		at = child;
	}
	heap_set(s, at, i);
}

void queue_deadline(struct sched *s, int32_t i)
{
	s->heap[s->n_heap] = i;
	heap_up(s, s->n_heap++);
}

void queue_deadline_off(struct sched *s, int32_t i)
{
	int32_t at = s->seq[i].heap_at, last;

	if (at == NONE)
		return;
	s->seq[i].heap_at = NONE;
	last = s->heap[--s->n_heap];
	if (last == i)
		return;
	heap_set(s, at, last);
	heap_up(s, at);
	heap_down(s, s->seq[last].heap_at);
}
