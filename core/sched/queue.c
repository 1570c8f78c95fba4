/* sched/queue.c - waiting: tenants and their clients, lines and turns, quotas, deadlines, names. */
#include <assert.h>

#include "core/sched/impl.h"

#define SHARE 8    /* a tenant may queue 8 times what it leaves free */

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
		const struct tenant *x = &s->tenant[j];

		if (!x->live && x->id == id && x->left) {
			t = j;
			break;
		}
		if (!x->live && (t == NONE || x->left < s->tenant[t].left))
			t = j;
	}
	assert(t != NONE);
	s->tenant[t] = (struct tenant){ .id = id };
	s->share[t] = (struct share){ .at = s->round.passed };
	return t;
}

/* The hash bucket of client `who` under this tenant. */
static int32_t *member_bucket(const struct sched *s, const void *who, int32_t tenant)
{
	uint64_t x = ((uint64_t)(uintptr_t)who * 31 + (uint64_t)(uint32_t)tenant) * 0x9e3779b97f4a7c15u;

	return &s->member_bucket[(uint32_t)(x >> 32) & s->bucket_mask];
}

int32_t queue_member(const struct sched *s, const void *who, int32_t tenant)
{
	int32_t m = *member_bucket(s, who, tenant);

	while (m != NONE && (s->member[m].who != who || s->member[m].tenant != tenant))
		m = s->member[m].chained;
	return m;
}

/* Count one more live request of this client and tenant. */
int32_t queue_member_join(struct sched *s, void *who, int32_t tenant)
{
	int32_t m = queue_member(s, who, tenant), *head = member_bucket(s, who, tenant);

	if (m == NONE) {
		m = s->free_member;     /* never NONE: there is one entry per sequence */
		s->free_member = s->member[m].chained;
		s->member[m] = (struct member){ .who = who, .tenant = tenant,
						.line = { NONE, NONE, 0 }, .by_age = { NONE, NONE, 0 },
						.chained = *head };
		s->share[s->cfg.tenants + m] = (struct share){ .at = s->tenant[tenant].round.passed };
		*head = m;
	}
	s->member[m].live++;
	s->tenant[tenant].live++;
	return m;
}

static void dry_off(struct sched *s, int32_t m)
{
	int32_t k = 0;

	while (s->dry[k] != m)
		k++;
	s->dry[k] = s->dry[--s->n_dry];
	s->member[m].dry = false;
}

/* Count one live request less. */
void queue_leave(struct sched *s, int32_t m)
{
	struct tenant *t = &s->tenant[s->member[m].tenant];
	int32_t *at = member_bucket(s, s->member[m].who, s->member[m].tenant);

	if (--t->live == 0)
		t->left = s->order;
	if (--s->member[m].live > 0)
		return;
	if (s->member[m].dry)
		dry_off(s, m);
	while (*at != m)
		at = &s->member[*at].chained;
	*at = s->member[m].chained;
	s->member[m].chained = s->free_member;
	s->free_member = m;
}

/* ---- rounds: deficit round robin --------------------------------------------------------------- */

static void round_join(struct sched *s, struct round *r, int32_t i)
{
	struct share *me = &s->share[i];

	if (r->n++ == 0) {
		r->turn = me->prev = me->next = i;
		return;
	}
	me->next = r->turn;     /* last of the round */
	me->prev = s->share[r->turn].prev;
	s->share[me->prev].next = i;
	s->share[me->next].prev = i;
}

static void round_leave(struct sched *s, struct round *r, int32_t i)
{
	struct share *me = &s->share[i];

	s->share[me->prev].next = me->next;
	s->share[me->next].prev = me->prev;
	if (r->turn == i)
		r->turn = me->next;
	r->n--;
}

/* Credit i with a quantum per round since the last call, capped at one quantum. */
static int64_t settle(struct sched *s, const struct round *r, int32_t i)
{
	struct share *me = &s->share[i];

	me->deficit += (int64_t)(r->passed - me->at) * s->knobs.quantum;
	me->at = r->passed;
	if (me->deficit > s->knobs.quantum)
		me->deficit = s->knobs.quantum;
	return me->deficit;
}

/* Charge n planned tokens: q's tenant pays while another tenant waits, its client likewise. */
void queue_charge(struct sched *s, const struct seq *q, int32_t n)
{
	struct round *mine = &s->tenant[q->tenant].round;
	int32_t m = s->cfg.tenants + q->member;

	if (s->round.n > (mine->n > 0)) {
		settle(s, &s->round, q->tenant);
		s->share[q->tenant].deficit -= n;
	}
	if (mine->n > (s->member[q->member].line.n > 0)) {
		settle(s, mine, m);
		s->share[m].deficit -= n;
	}
}

/* From the current turn on, the first with this priority that owes nothing; else NONE, and in
 * *rounds the number of rounds until one owes nothing. */
static int32_t spender(struct sched *s, const struct round *r, int32_t priority, int64_t *rounds)
{
	int32_t i = r->turn;

	*rounds = INT64_MAX;
	for (int32_t j = 0; j < r->n; j++, i = s->share[i].next) {
		int64_t deficit, wait;

		if (s->share[i].priority != priority)
			continue;
		deficit = settle(s, r, i);
		if (deficit >= 0)
			return i;
		wait = (-deficit + s->knobs.quantum - 1) / s->knobs.quantum;
		if (wait < *rounds)
			*rounds = wait;
	}
	return NONE;
}

/* Whose turn it is.  Rounds in which no share can spend are skipped at once. */
static int32_t next_in(struct sched *s, struct round *r, int32_t priority)
{
	int64_t rounds;
	int32_t i = spender(s, r, priority, &rounds);

	if (i == NONE) {
		r->turn = s->share[r->turn].next;
		r->passed += (uint64_t)rounds;
		i = spender(s, r, priority, &rounds);
		assert(i != NONE);
	}
	r->turn = i;
	return i;
}

/* By rank.  Most come in order and go last, or come back and go first; the others are searched for. */
static void line_put(struct sched *s, struct line *l, int32_t i)
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

static void line_take(struct sched *s, struct line *l, int32_t i)
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
static void age_put(struct sched *s, struct line *l, int32_t i)
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

static void age_take(struct sched *s, struct line *l, int32_t i)
{
	const struct seq *q = &s->seq[i];

	*(q->older != NONE ? &s->seq[q->older].newer : &l->first) = q->newer;
	*(q->newer != NONE ? &s->seq[q->newer].older : &l->last) = q->older;
	l->n--;
}

/* Recompute the best priority of a tenant's members. */
static void rank_tenant(struct sched *s, int32_t t)
{
	struct tenant *x = &s->tenant[t];
	int32_t i = x->round.turn, best = INT32_MAX;

	x->n_best = 0;
	for (int32_t j = 0; j < x->round.n; j++, i = s->share[i].next) {
		if (s->share[i].priority < best) {
			best = s->share[i].priority;
			x->n_best = 0;
		}
		x->n_best += s->share[i].priority == best;
	}
	s->share[t].priority = best;
}

static bool in_round(const struct sched *s, int32_t m)
{
	return s->member[m].line.n > 0 && !s->member[m].dry;
}

/* Update after member m's line changed; was_in, priority: its state in the round before. */
static void line_changed(struct sched *s, int32_t m, bool was_in, int32_t priority)
{
	int32_t t = s->member[m].tenant, i = s->cfg.tenants + m;
	struct tenant *x = &s->tenant[t];
	bool is_in = in_round(s, m);

	if (is_in)
		s->share[i].priority = s->seq[s->member[m].line.first].priority;
	if (is_in && !was_in)
		round_join(s, &x->round, i);
	else if (was_in && !is_in)
		round_leave(s, &x->round, i);
	if (was_in && priority == s->share[t].priority)
		x->n_best--;
	if (is_in && x->n_best > 0 && s->share[i].priority == s->share[t].priority)
		x->n_best++;
	else if (x->n_best == 0 || (is_in && s->share[i].priority < s->share[t].priority))
		rank_tenant(s, t);
	if (x->round.n == 1 && is_in && !was_in)
		round_join(s, &s->round, t);
	else if (x->round.n == 0 && was_in)
		round_leave(s, &s->round, t);
}

void queue_put(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];
	struct member *m = &s->member[q->member];
	struct tenant *t = &s->tenant[q->tenant];
	bool was_in = in_round(s, q->member);
	int32_t priority = was_in ? s->seq[m->line.first].priority : 0;

	q->state = SEQ_WAITING;
	s->stats.waiting++;
	s->stats.waiting_tokens += q->have;
	if (q->started) {
		line_put(s, &s->again, i);
		return;
	}
	line_put(s, &m->line, i);
	age_put(s, &m->by_age, i);
	m->tokens += q->have;
	t->n++;
	t->tokens += q->have;
	s->n_queued++;
	s->queued_tokens += q->have;
	line_changed(s, q->member, was_in, priority);
}

void queue_take(struct sched *s, int32_t i)
{
	struct seq *q = &s->seq[i];
	struct member *m = &s->member[q->member];
	struct tenant *t = &s->tenant[q->tenant];
	bool was_in = in_round(s, q->member);
	int32_t priority;

	s->stats.waiting--;
	s->stats.waiting_tokens -= q->have;
	if (q->started) {
		line_take(s, &s->again, i);
		return;
	}
	priority = s->seq[m->line.first].priority;
	line_take(s, &m->line, i);
	age_take(s, &m->by_age, i);
	m->tokens -= q->have;
	t->n--;
	t->tokens -= q->have;
	s->n_queued--;
	s->queued_tokens -= q->have;
	line_changed(s, q->member, was_in, priority);
}

/* Is there room for n_ids more ids?  A request longer than queue_tokens needs an empty queue. */
bool queue_room(const struct sched *s, int64_t n_ids)
{
	return s->n_queued < s->knobs.queue_requests &&
	       (s->queued_tokens + n_ids <= s->knobs.queue_tokens || s->n_queued == 0);
}

/* Take member m out of its round until its ring has room, so that it delays no other client. */
void queue_dry(struct sched *s, int32_t m)
{
	bool was_in = in_round(s, m);
	int32_t priority = was_in ? s->seq[s->member[m].line.first].priority : 0;

	if (s->member[m].dry)
		return;
	s->member[m].dry = true;
	s->dry[s->n_dry++] = m;
	line_changed(s, m, was_in, priority);
}

void queue_wet(struct sched *s, int32_t m)
{
	dry_off(s, m);
	line_changed(s, m, false, 0);
}

/* Of this tenant's requests that waited long behind better priorities: choose the member whose last
 * place by age is the oldest, and its first request. */
static int32_t aged_of(const struct sched *s, const struct tenant *x, int32_t priority, uint64_t now)
{
	int32_t i = x->round.turn, best = NONE;

	for (int32_t j = 0; j < x->round.n; j++, i = s->share[i].next) {
		const struct seq *q = &s->seq[s->member[i - s->cfg.tenants].by_age.first];

		if (q->priority > priority && now - q->since >= s->cfg.age_ns && now > q->since &&
		    (best == NONE || s->share[i].aged < s->share[best].aged))
			best = i;
	}
	return best == NONE ? NONE : s->member[best - s->cfg.tenants].by_age.first;
}

/* The same among all tenants. */
static int32_t aged(const struct sched *s, int32_t priority, uint64_t now)
{
	int32_t t = s->round.turn, head = NONE, i;

	for (int32_t j = 0; j < s->round.n; j++, t = s->share[t].next)
		if ((head == NONE || s->share[t].aged < s->share[s->seq[head].tenant].aged) &&
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
		s->share[q->tenant].aged = s->share[s->cfg.tenants + q->member].aged = ++s->n_aged;
	} else if (s->n_by_rank < AGED_EVERY) {
		s->n_by_rank++;
	}
	s->aged_head = NONE;
}

/* Which sequence is next?  A preempted one; else one of the best priority, with tenants in turn, and
 * within a tenant its clients.  One place of AGED_EVERY goes by age, so no priority can starve another. */
int32_t queue_head(struct sched *s, uint64_t now)
{
	int32_t priority = INT32_MAX, i = s->round.turn;

	s->aged_head = NONE;
	if (s->again.first != NONE)
		return s->again.first;
	if (s->round.n == 0)
		return NONE;
	for (int32_t j = 0; j < s->round.n; j++, i = s->share[i].next)
		if (s->share[i].priority < priority)
			priority = s->share[i].priority;
	if (s->n_by_rank >= AGED_EVERY - 1)
		s->aged_head = aged(s, priority, now);
	if (s->aged_head != NONE)
		return s->aged_head;
	i = next_in(s, &s->round, priority);
	i = next_in(s, &s->tenant[i].round, priority);
	return s->member[i - s->cfg.tenants].line.first;
}

/* ---- quotas ------------------------------------------------------------------------------------ */

/* Is `mine`, its part of the queue, more than its share, with `left` free?  The share is SHARE times
 * what stays free.  So a lone tenant can have nearly all, and many leave room for a newcomer. */
static bool over(int64_t mine, int64_t left)
{
	return mine > SHARE * left;
}

/* How much more it may take until it is over its share; rounded up. */
static int64_t to_share(int64_t mine, int64_t left)
{
	return (SHARE * left - mine + SHARE) / (SHARE + 1);
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
enum sched_room sched_full(const struct sched *s, const void *who, uint64_t tenant, int32_t n_prompt,
			   int32_t n_words)
{
	int32_t t = queue_tenant(s, tenant), m;
	enum sched_room words = words_full(s, t, word_chunks_for(n_words));
	int64_t places = s->knobs.queue_requests - s->n_queued - 1;
	int64_t tokens = s->knobs.queue_tokens - s->queued_tokens - n_prompt;
	const struct tenant *me;
	const struct member *part;

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
	m = queue_member(s, who, t);
	if (words || m == NONE)
		return words;
	part = &s->member[m];
	return part->line.n && (over(part->line.n, to_share(me->n, places)) ||
				over(part->tokens, to_share(me->tokens, tokens))) ? SCHED_OVER : SCHED_ROOM;
}

/* ---- names ------------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct sched *s, const void *who, uint64_t user_data)
{
	uint64_t x = ((uint64_t)(uintptr_t)who * 31 + user_data) * 0x9e3779b97f4a7c15u;

	return &s->bucket[(uint32_t)(x >> 32) & s->bucket_mask];
}

int32_t queue_find(const struct sched *s, const void *who, uint64_t user_data)
{
	int32_t i = *bucket_of(s, who, user_data);

	while (i != NONE && (s->seq[i].who != who || s->seq[i].user_data != user_data))
		i = s->seq[i].chained;
	return i;
}

void queue_name(struct sched *s, int32_t i)
{
	int32_t *head = bucket_of(s, s->seq[i].who, s->seq[i].user_data);

	s->seq[i].chained = *head;
	*head = i;
}

void queue_unname(struct sched *s, int32_t i)
{
	int32_t *at = bucket_of(s, s->seq[i].who, s->seq[i].user_data);

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
