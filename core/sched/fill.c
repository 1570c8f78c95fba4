/* sched/fill.c - fills the next batch: one token for each decoding sequence, then chunks of
 * prompts, then admissions; sched.h has the order.
 *
 * Functions that may hold a sequence back return FILLED or the enum sched_why that did it; those of guided
 * ones may also return FORCED.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "core/sched/impl.h"

#define FILLED         (-1)
#define ADMIT_CMDS     (SCHED_CMDS + 2) /* the request's own, HISTORY; one spare; BLOCKS come on top */
#define DEMOTE_LOOK    64    /* cached blocks that kv_demote looks at */
#define PROBE_BLOCKS   8     /* of a prompt in one batch while its speed is unknown */
#define GIVE_UP        100   /* times blocked_ns: then a blocked sequence that the queue cannot take ends */
#define ALONE          5     /* step times that the batch of a lone prompt may take */

static int32_t blocks_for(const struct sched *s, int32_t n_tokens)
{
	return (n_tokens + s->cfg.limits.block_tokens - 1) / s->cfg.limits.block_tokens;
}

/* The most tokens of a prompt that one batch computes. */
static int32_t step_of(const struct sched *s)
{
	return s->knobs.chunk_max < s->knobs.batch_tokens ? s->knobs.chunk_max : s->knobs.batch_tokens;
}

/* How far K,V must be computed before q samples.  If q samples nothing, before it ends: the last
 * id of a prompt is then only scored, not computed. */
static int32_t goal_of(const struct sched *s, const struct seq *q)
{
	if (q->guided && !guide_ready(s, q)) /* what is known of its last token waits for the guide of the next */
		return q->known - 1;
	return q->end == q->n_prompt && !q->pool ? q->n_prompt - 1 : q->known;
}

static void hold_back(struct fill *x, int why)
{
	x->why = why == WHY_TOKENS && x->timed ? WHY_STEP_TIME : (enum sched_why)why;
}

/* ---- writing the batch ------------------------------------------------------------------------- */

static void put_cmd(struct fill *x, enum sr_op op, int32_t slot, int32_t a, int32_t n)
{
	struct sr_batch *b = x->b;

	b->cmd[b->n_cmds++] = (struct sr_cmd){ .op = (int32_t)op, .slot = slot, .a = a, .n = n,
	                                         .data = (uint32_t)b->n_words };
	b->n_words += n;
}

/* Tell the device the blocks that it does not know.  What a window has left, or never had, is not sent. */
void fill_blocks(struct sched *s, struct fill *x, struct seq *q)
{
	const struct kv_table *t = &s->table[q->slot];

	for (int32_t g = 0; g < s->cfg.limits.n_groups && q->sent < t->n; g++) {
		int32_t first = s->windows ? kv_first(s->kv, t, g) : 0, from = q->sent > first ? q->sent : first, n = t->n - from;
		const int32_t *block = t->block + (int64_t)g * t->cap + from;

		for (int32_t j = 0; j < n; j++)       /* n is mostly 1 */
			x->b->word[x->b->n_words + j] = (uint32_t)block[j];
		put_cmd(x, SR_CMD_BLOCKS, q->slot, from, n);
		x->b->cmd[x->b->n_cmds - 1].group = g;
	}
	q->sent = t->n;
}

static void put_begin(struct fill *x, struct seq *q)
{
	struct sr_batch *b = x->b;

	memcpy(b->word + b->n_words, q->begin, (size_t)q->cmd[0].n * sizeof(q->begin[0]));
	words_read(q, b->word + b->n_words + q->cmd[0].n);
	for (int32_t i = 0; i < q->n_cmds; i++)
		put_cmd(x, (enum sr_op)q->cmd[i].op, q->slot, q->cmd[i].a, q->cmd[i].n);
	if (q->history) {
		ids_read(q, 0, q->have, (int32_t *)(b->word + b->n_words));
		put_cmd(x, SR_CMD_HISTORY, q->slot, q->n_prompt, q->have);
	}
}

/* Rows of a batch cannot read what its other rows compute, but rows of the next batch can.  So a
 * prompt waits one step if a row of this batch computes its next block; then it takes that block from
 * the cache.  It waits at most as many times as its prompt has blocks.  With states it waits if a row of this batch
 * is on the way to its goal, or past it: a block is of no use without its state.  q has a row of n tokens. */
static void note_leader(struct sched *s, const struct seq *q, int32_t n)
{
	const struct kv_table *t = &s->table[q->slot];
	uint64_t name;

	if (s->knobs.no_prefix_cache)
		return;
	if (s->states ? !q->goal || q->planned - n > t->end * s->cfg.limits.block_tokens
	              : (t->published + 1) * s->cfg.limits.block_tokens > q->planned)
		return;
	name = s->states ? q->goal : kv_next(s->kv, t);
	s->leader[name % LEADERS].name = name;
	s->leader[name % LEADERS].batch = s->n_filled;
}

static bool follows_leader(struct sched *s, struct seq *q)
{
	const struct kv_table *t = &s->table[q->slot];
	uint64_t name;

	if ((t->n + 1) * s->cfg.limits.block_tokens >= q->known ||
	    (s->states && (!q->goal || t->n >= t->end)) ||
	    q->held >= q->known / s->cfg.limits.block_tokens)
		return false;
	name = s->states ? q->goal : kv_next(s->kv, t);
	if (s->leader[name % LEADERS].batch != s->n_filled || s->leader[name % LEADERS].name != name)
		return false;
	q->held++;
	s->cfg.counters->prefix_waits++;
	return true;
}

/* q computes n tokens from `planned` on, scores n_score of them, and samples or does not. */
static void put_row(struct sched *s, struct fill *x, struct seq *q, int32_t n, int32_t n_score,
		    bool sample)
{
	struct sr_batch *b = x->b;
	struct sr_row *r = &b->row[b->n_rows];
	struct in_flight_row *f = &x->f->row[b->n_rows];

	*r = (struct sr_row){ .slot = q->slot, .first = q->planned, .n = n, .token = SR_LAST,
			      .n_score = n_score, .result = b->n_results, .sample = sample,
			      .n_top = q->n_top, .pool = q->pool };
	if (!q->drawn) {
		int32_t n_ids = n + (n_score == n);

		ids_read(q, q->planned, n_ids, b->token + b->n_ids);
		r->token = b->n_ids;
		b->n_ids += n_ids;
		if (n_score && (!sample || q->n_prompt_top > q->n_top))
			r->n_top = q->n_prompt_top;
	}
	f->seq = (int32_t)(q - s->seq);
	f->gen = q->gen;
	b->n_rows++;
	b->n_tokens += n;
	s->filled[q->slot] = s->n_filled;
	if (sample && q->guided)
		r->mask = guide_mask(s, q);
	if (sample && q->pool) {
		r->mask = x->n_vectors++;
		sample = false;
	}
	b->n_results += n_score + sample;
	q->planned += n;
	q->known += sample;
	q->drawn |= sample;
	if (s->n_queued) /* tokens are charged only while others wait */
		queue_charge(s, q, n);
}

/* Say which state the row of n tokens that q gets next continues, and which it leaves.  A snapshot is kept at the last
 * full block of what is known, where prompts part, and with `passing` at every block of an answer. */
static void put_state(struct sched *s, struct fill *x, const struct seq *q, int32_t n, bool passing)
{
	const int32_t B = s->cfg.limits.block_tokens;
	struct kv_table *t = &s->table[q->slot];
	int32_t end = t->end * B, keep_at = -1;
	struct kv_state_row r;
	struct sr_batch *b = x->b;

	if (passing || (t->fork && q->planned == t->fork * B))
		keep_at = q->planned;
	else if (q->planned <= end && end < q->planned + n)
		keep_at = end;
	if (s->knobs.no_prefix_cache || keep_at == 0)
		keep_at = -1;
	r = kv_state_row(s->kv, t, q->planned, keep_at, passing);
	if (r.to >= 0)
		b->cmd[b->n_cmds++] = (struct sr_cmd){ .op = SR_CMD_STATE, .slot = q->slot, .a = r.from, .n = r.to,
		                                       .data = (uint32_t)b->n_words };
	if (r.keep >= 0)
		b->cmd[b->n_cmds++] = (struct sr_cmd){ .op = SR_CMD_KEEP, .slot = q->slot, .a = r.keep, .n = keep_at,
		                                       .data = (uint32_t)b->n_words };
}

/* ---- room ------------------------------------------------------------------------------------------ */

/* Blocks that q, which is running, may take.  Floors of other tenants are respected if the youngest
 * running sequence, which gives way, is of q's tenant.  The first running one may take everything. */
static int32_t room_for(const struct sched *s, const struct seq *q)
{
	const struct seq *youngest = &s->seq[s->run[s->n_run - 1]];
	int32_t n = kv_available(s->kv);

	if (q != &s->seq[s->run[0]] && youngest->tenant == q->tenant)
		n -= kv_kept(s->kv, q->tenant);
	return n;
}

/* ---- clients without room ---------------------------------------------------------------------- */

/* No record could be set aside for q: note since when. */
static int note_blocked(struct sched *s, const struct fill *x, struct seq *q)
{
	if (!q->blocked_since || q->blocked_filled != s->filled[q->slot]) {
		q->blocked_since = x->now;
		q->blocked_filled = s->filled[q->slot];
	}
	q->blocked_last = s->n_filled;
	s->rows_blocked = true;
	return WHY_RING_OUT;
}

/* A client that does not read stops only itself.  Rows that had no room for blocked_ns give up slot and
 * blocks if others want them, and wait until their client has room.  If the queue is full too,
 * they end after GIVE_UP * blocked_ns. */
static void give_way(struct sched *s, struct fill *x)
{
	bool wanted = s->why == WHY_SEQS || s->why == WHY_KV || s->why == WHY_ORDER;

	if (!s->rows_blocked || !wanted)
		return;
	s->rows_blocked = false;
	for (int32_t j = s->n_run - 1; j >= 0; j--) {
		int32_t i = s->run[j];
		const struct seq *q = &s->seq[i];
		uint64_t since = q->blocked_filled == s->filled[q->slot] ? q->blocked_since : 0;

		if (!since)
			continue;
		s->rows_blocked = true;
		if (x->now - since < s->cfg.blocked_ns || (q->blocked_last + 1 != s->n_filled && seq_has_room(s, q)))
			continue;       /* an older sequence of its client may use the room there is now */
		if (seq_park(s, i))
			x->moved++;
		else if (x->now - since >= GIVE_UP * (uint64_t)s->cfg.blocked_ns)
			seq_finish(s, i, -ECANCELED);
	}
}

/* Clients that have room again return to their tenants' rings. */
static void unblock_clients(struct sched *s)
{
	for (int32_t k = s->n_blocked - 1; k >= 0; k--) {
		const struct client_queue *cq = &s->client_queue[s->blocked[k]];

		if (!cq->by_rank.n || seq_has_room(s, &s->seq[cq->by_rank.first]))
			queue_unblock(s, s->blocked[k]);
	}
}

/* The next sequence whose client has room. */
static int32_t next_served(struct sched *s, uint64_t now)
{
	int32_t i;

	while ((i = queue_head(s, now)) != NONE && !seq_has_room(s, &s->seq[i])) {
		if (!s->seq[i].started)
			queue_block(s, s->seq[i].client_queue);
		else if (!seq_park(s, i))
			break;
	}
	return i;
}

/* ---- those that decode ----------------------------------------------------------------------- */

/* Make room by preemption: the youngest goes back to waiting, unless it has a row already.
 * False: no room was made, or q itself was the youngest. */
static bool preempt_youngest(struct sched *s, struct fill *x, const struct seq *q)
{
	int32_t v = s->run[s->n_run - 1];
	bool other = &s->seq[v] != q;

	if (in_fill(s, &s->seq[v]))
		return false;
	seq_preempt(s, v);
	x->moved++;
	return other;
}

/* Take a block of each group for the next token of q. */
static bool block_for_token(struct sched *s, struct fill *x, struct seq *q)
{
	struct kv_table *t = &s->table[q->slot];
	int r;

	if (!ids_may_grow(s, q, q->planned))
		return false;
	if (s->windows)
		kv_slide(s->kv, t, q->planned);
	while (room_for(s, q) < s->cfg.limits.n_groups)
		if (!preempt_youngest(s, x, q))
			return false;
	r = kv_grow(s->kv, t, q->planned + 1);
	assert(r == 0);
	fill_blocks(s, x, q);
	if (s->states)
		put_state(s, x, q, 1, true);
	return true;
}

/* Put the next row of the batch, of one token: the row and its result have the same number. */
HOT void put_token(struct sched *s, struct fill *x, int32_t i, int32_t row)
{
	struct seq *q = &s->seq[i];

	x->b->row[row] = (struct sr_row){ .slot = q->slot, .first = q->planned, .n = 1, .token = SR_LAST,
					  .result = row, .sample = 1, .n_top = q->n_top };
	x->f->row[row] = (struct in_flight_row){ i, q->gen };
	s->filled[q->slot] = s->n_filled;
	q->planned++;
	q->known++;
	if (s->n_queued) /* tokens are charged only while others wait */
		queue_charge(s, q, 1);
}

HOT int fill_token(struct sched *s, struct fill *x, int32_t i, int32_t row)
{
	struct seq *q = &s->seq[i];

	if (!s->port.reserve(s->port.ctx, q->client, q->cost, q->cost))
		return note_blocked(s, x, q);
	if (q->planned == q->sent * s->cfg.limits.block_tokens && !block_for_token(s, x, q)) {
		s->port.release(s->port.ctx, q->client, q->cost);
		return WHY_KV;
	}
	q->reserved += q->cost;
	put_token(s, x, i, row);
	return FILLED;
}

/* The same for a guided one, or one that may have guesses.  Not inlined: it would take registers from the loop over
 * rows. */
static __attribute__((noinline)) int fill_other(struct sched *s, struct fill *x, int32_t i, int32_t row)
{
	struct seq *q = &s->seq[i];
	int32_t mask;
	int why;

	if (!q->guided)
		return draft_waits(s, q) ? FORCED : fill_token(s, x, i, row);
	if (!guide_ready(s, q))
		return guide_hold(s, q, x->now);
	mask = guide_mask(s, q);
	why = fill_token(s, x, i, row);
	if (why == FILLED)
		x->b->row[row].mask = mask;
	return why;
}

/* Prefetch the next rows: little of them stays in the nearest cache between steps. */
PREFETCH void prefetch_rows(const struct sched *s, int32_t j)
{
	if (j + 2 * AHEAD < s->n_run)
		__builtin_prefetch(&s->seq[s->run[j + 2 * AHEAD]], 1);
	if (j + AHEAD < s->n_run) {
		const struct seq *q = &s->seq[s->run[j + AHEAD]];

		if (q->planned == q->sent * s->cfg.limits.block_tokens) {
			__builtin_prefetch(&s->table[q->slot], 1);
			__builtin_prefetch(s->table[0].block + (int64_t)q->slot * s->table_ints + q->sent, 1);
		}
	}
}

static void fill_tokens(struct sched *s, struct fill *x)
{
	int32_t n = 0;

	for (int32_t j = 0; j < s->n_run; j++) { /* victims are last in run[] */
		const struct seq *q = &s->seq[s->run[j]];
		int why;

		prefetch_rows(s, j);
		x->prompts |= !q->drawn;
		if (!q->drawn || q->known >= q->end)
			continue;
		if (n >= x->budget) {
			hold_back(x, WHY_TOKENS);
			x->prompts = true;      /* possibly: the others were not looked at */
			break;
		}
		why = q->other ? fill_other(s, x, s->run[j], n) : fill_token(s, x, s->run[j], n);
		if (why == FILLED)
			n++;
		else if (why != FORCED)
			hold_back(x, why);
	}
	x->n_decode = x->b->n_rows = x->b->n_tokens = x->b->n_results = n;
}

/* ---- prompts -------------------------------------------------------------------------------------- */

/* On a slow device a long prompt delays everything else in its batch.  So it gets what is left of
 * step_ns, and at least a block.  A lone prompt gets ALONE times as much, because a request that
 * arrives meanwhile has to wait only for that batch. */
static void budget_time(struct sched *s, struct fill *x)
{
	const int32_t B = s->cfg.limits.block_tokens;
	double left = s->knobs.step_ns, n = (double)PROBE_BLOCKS * B;

	bool alone = s->n_run + s->stats.waiting < 2;

	if (!s->knobs.step_ns || s->cfg.limits.whole || (alone && s->prompt_ns <= 0))
		return;
	if (alone)
		left *= ALONE;
	if (x->n_decode)
		left -= s->decode_ns;
	if (s->prompt_ns > 0)
		n = left / s->prompt_ns;
	if (n < B)
		n = B;
	if (x->b->n_tokens + n < x->budget) {
		x->budget = x->b->n_tokens + (int32_t)n;
		x->timed = true;
	}
}

/* May q take blocks that others computed?  Only while all its own blocks are published, too. */
static bool may_match(const struct sched *s, const struct seq *q)
{
	const struct kv_table *t = &s->table[q->slot];

	return !s->knobs.no_prefix_cache && !q->score && !q->no_cache && !q->drawn &&
	       t->n == t->published && q->planned == t->n * s->cfg.limits.block_tokens &&
	       q->planned + 1 < q->known;
}

/* False: the rest of the prefix must be copied in with a later batch. */
static bool match(struct sched *s, struct seq *q)
{
	struct kv_table *t = &s->table[q->slot];
	int32_t found = kv_match(s->kv, t, q->known) - q->planned;

	q->planned += found;
	s->stats.cached_tokens += (uint64_t)found;
	if (q->planned > q->n_prompt) /* forced ids of its answer are not the prompt's */
		found = found > q->planned - q->n_prompt ? found - (q->planned - q->n_prompt) : 0;
	if (!q->preempted)
		q->cached += found;
	if (!q->preempted && q->looked_up)
		s->cfg.counters->prefix_hits += (uint64_t)found;
	return !t->more;
}

struct chunk {
	int32_t n, n_score;
	bool    sample;
	bool    cut;             /* the budget cut it short */
};

/* The part of q's prompt that fits the budget: whole blocks but for the last chunk.  n == 0: nothing. */
static struct chunk chunk_of(const struct sched *s, const struct fill *x, const struct seq *q)
{
	const int32_t B = s->cfg.limits.block_tokens;
	const struct kv_table *t = &s->table[q->slot];
	int32_t missing = goal_of(s, q) - q->planned, n = x->budget - x->b->n_tokens, n_score = 0;
	bool cut = n < missing && n <= s->knobs.chunk_max;

	if (s->cfg.limits.whole && missing > 0) /* it waits for a batch with room; an empty one has it */
		return n < missing || x->n_vectors == s->cfg.limits.vectors ? (struct chunk){ 0 } :
		       (struct chunk){ missing, 0, true, false };
	if (n > s->knobs.chunk_max)
		n = s->knobs.chunk_max;
	if (s->states && t->fork * B > q->planned && t->fork * B - q->planned < n)
		n = t->fork * B - q->planned;  /* the next row begins there, and keeps a snapshot */
	if (n < missing) {
		int32_t whole = (q->planned + n) / B * B - q->planned;

		n = whole > 0 ? whole : n;
	} else {
		n = missing;
	}
	if (n <= 0)
		return (struct chunk){ 0 };
	if (q->score && q->planned < q->scored) { /* after a preemption: these scores are already sent */
		if (n > q->scored - q->planned)
			n = q->scored - q->planned;
	} else if (q->score && q->planned < q->n_prompt - 1) {
		int32_t room = s->cfg.limits.scores - x->n_scores;

		n_score = q->n_prompt - 1 - q->planned;
		if (n_score > n)
			n_score = n;
		if (n_score > room)
			n = n_score = room;
	}
	if (q->pool && n == missing && x->n_vectors == s->cfg.limits.vectors)
		return (struct chunk){ 0 };     /* the batch has all the vectors that it can have */
	return (struct chunk){ n, n_score, (q->end > q->n_prompt || q->pool) && q->planned + n == q->known, cut };
}

/* Set records aside for what c yields; a scored chunk is cut to the records there are. */
static bool reserve_chunk(struct sched *s, struct seq *q, struct chunk *c)
{
	uint32_t want = (uint32_t)(c->n_score * q->prompt_cost + (c->sample && !q->pool) * q->cost), got;

	if (!want)
		return true;
	got = s->port.reserve(s->port.ctx, q->client, c->n_score ? q->prompt_cost : want, want);
	if (!got)
		return false;
	if (got < want) {
		int32_t n = (int32_t)got / q->prompt_cost;

		if (n < c->n_score)
			c->n_score = n;
		c->n = c->n_score;
		c->sample = false;
		want = (uint32_t)(c->n_score * q->prompt_cost);
		if (got > want)
			s->port.release(s->port.ctx, q->client, got - want);
	}
	q->reserved += (int32_t)want;
	return true;
}

static int fill_chunk(struct sched *s, struct fill *x, struct seq *q)
{
	struct kv_table *t = &s->table[q->slot];
	struct chunk c = chunk_of(s, x, q);
	int r;

	if (q->planned >= goal_of(s, q)) /* it waits for its guide */
		return WHY_GUIDE;
	if (c.n <= 0 || x->b->n_words + (t->cap - q->sent) * s->cfg.limits.n_groups > s->cfg.limits.words)
		return WHY_TOKENS;
	if (s->windows)
		kv_slide(s->kv, t, q->planned);
	if ((blocks_for(s, q->planned + c.n) - t->n) * s->cfg.limits.n_groups > room_for(s, q))
		return WHY_KV;
	if (!reserve_chunk(s, q, &c))
		return note_blocked(s, x, q);
	r = kv_grow(s->kv, t, q->planned + c.n);
	assert(r == 0);
	fill_blocks(s, x, q);
	if (!q->scheduled)
		q->scheduled = x->now;
	if (q->planned < q->n_prompt) {
		int32_t end = q->planned + c.n < q->n_prompt ? q->planned + c.n : q->n_prompt;

		q->computed += end - q->planned;
		s->cfg.counters->prompt_computed += (uint64_t)(end - q->planned);
	}
	x->n_scores += c.n_score;
	if (s->states)
		put_state(s, x, q, c.n, false);
	put_row(s, x, q, c.n, c.n_score, c.sample);
	note_leader(s, q, c.n);
	if (c.cut)
		hold_back(x, WHY_TOKENS);
	return FILLED;
}

/* Give the slot of q its state again.  False: there is no room for it in this batch. */
static bool begin_again(struct sched *s, struct fill *x, struct seq *q)
{
	const struct sr_limits *lim = &s->cfg.limits;
	int64_t words = (int64_t)q->cmd[0].n + q->n_words + q->have + (int64_t)lim->n_groups * lim->seq_blocks;

	if (x->b->n_words + words > lim->words ||
	    x->b->n_cmds + ADMIT_CMDS + lim->n_groups + lim->slots > lim->cmds)
		return false;
	s->guide[q->guide].again = false;
	put_begin(x, q);
	q->sent = 0;
	return true;
}

static int fill_prompt(struct sched *s, struct fill *x, struct seq *q)
{
	if (q->guided && s->guide[q->guide].again && !begin_again(s, x, q))
		return WHY_TOKENS;
	if (may_match(s, q)) {
		if (!match(s, q))
			return WHY_PCIE;
		if (follows_leader(s, q))
			return FILLED; /* another row computes it: no limit holds it back */
	}
	return fill_chunk(s, x, q);
}

static void fill_prompts(struct sched *s, struct fill *x)
{
	for (int32_t j = 0; x->prompts && j < s->n_run; ) {
		struct seq *q = &s->seq[s->run[j]];
		int why;

		if (q->guided && !q->drawn && !guide_ready(s, q) && guide_hold(s, q, x->now) != FORCED)
			hold_back(x, WHY_GUIDE);
		if (q->drawn || q->planned >= goal_of(s, q)) {
			j++;
			continue;
		}
		while ((why = fill_prompt(s, x, q)) == WHY_KV && preempt_youngest(s, x, q))
			;
		if (why != FILLED)
			hold_back(x, why);
		if (q->state != SEQ_RUNNING)
			continue;
		if (!q->drawn)
			x->owed += kv_lacks(s->kv, &s->table[q->slot], q->known, step_of(s));
		j++;
	}
}

/* ---- admission --------------------------------------------------------------------------------- */

/* Available blocks for q, less those that running prompts need and that other tenants' floors keep. */
static int64_t unowed(const struct sched *s, const struct fill *x, const struct seq *q)
{
	int64_t owed = s->knobs.first_chunk ? 0 : x->owed;

	return (int64_t)kv_available(s->kv) - kv_kept(s->kv, q->tenant) - owed - s->knobs.headroom;
}

/* Check all but the blocks; q is the next in the queue. */
static int may_admit(const struct sched *s, const struct fill *x, const struct seq *q)
{
	const struct sr_limits *lim = &s->cfg.limits;
	const struct sr_batch *b = x->b;
	int64_t words = (int64_t)q->cmd[0].n + q->n_words + (q->history ? q->have : 0) +
			(int64_t)lim->n_groups * lim->seq_blocks;

	if (s->n_run >= s->knobs.max_seqs || !s->n_free_slot || b->n_rows >= lim->rows)
		return WHY_SEQS;
	if (b->n_tokens >= x->budget || b->n_words + words > lim->words ||
	    b->n_cmds + ADMIT_CMDS + lim->n_groups + lim->slots > lim->cmds)
		return WHY_TOKENS;
	if (!ids_may_start(s, q))
		return WHY_KV;
	if (s->n_run == 0)
		return FILLED;
	if (unowed(s, x, q) < 1 || (s->states && !kv_states_left(s->kv)))
		return WHY_KV;
	return unowed(s, x, q) < q->wait_for && q->wait_since == s->n_published ? WHY_ORDER : FILLED;
}

/* Give q the slot and the blocks of its prefix.  If there are no blocks for the rest of its ids (or
 * the knob's first chunk of them), it gets nothing.  Then it notes when looking up its prefix again
 * is worth while. */
static int take_blocks(struct sched *s, struct fill *x, struct seq *q)
{
	struct kv_table *t;
	int why = FILLED;
	int64_t lacking, need = q->have;

	q->slot = s->free_slot[s->n_free_slot - 1];
	t = &s->table[q->slot];
	t->salt = q->salt;
	t->owner = (int16_t)q->tenant;
	t->at = q->head;
	t->end = (s->states ? q->have - 1 : q->n_prompt) / s->cfg.limits.block_tokens;
	q->planned = 0;
	if (s->states)
		kv_state_begin(s->kv, t);
	if (may_match(s, q)) {
		t->more = false;
		q->planned = kv_match(s->kv, t, q->known);
		if (t->more)
			why = WHY_PCIE;
		if (s->states)
			q->goal = t->end > t->published ? kv_name(s->kv, t, t->end) : 0;
	}
	if (s->knobs.first_chunk && need > (int64_t)q->planned + s->knobs.chunk_max)
		need = q->planned + s->knobs.chunk_max;
	if (s->knobs.first_chunk && need > (int64_t)q->planned + x->budget - x->b->n_tokens)
		need = q->planned + x->budget - x->b->n_tokens;
	lacking = kv_lacks(s->kv, t, (int32_t)need, step_of(s)) - unowed(s, x, q);
	if ((s->n_run == 0 || lacking <= 0) && (!s->states || kv_state_take(s->kv, t)))
		return why;
	lacking = lacking > 0 ? lacking : 0;
	kv_release(s->kv, t);
	q->wait_for = (int32_t)(unowed(s, x, q) + lacking);
	q->wait_since = s->n_published;
	q->slot = NONE;
	q->planned = 0;
	return WHY_ORDER;
}

static void count_prefix(struct sched *s, struct seq *q)
{
	s->stats.cached_tokens += (uint64_t)q->planned;
	if (q->preempted || s->knobs.no_prefix_cache || q->score || q->no_cache)
		return;
	q->looked_up = true;
	s->cfg.counters->prefix_queries += (uint64_t)q->n_prompt;
	q->cached = q->planned < q->n_prompt ? q->planned : q->n_prompt; /* an answer that goes on is no prompt */
	s->cfg.counters->prefix_hits += (uint64_t)q->cached;
}

static int fill_admission(struct sched *s, struct fill *x)
{
	int32_t i = next_served(s, x->now), j;
	struct seq *q;
	int why, late;

	if (i == NONE)
		return WHY_EMPTY;
	q = &s->seq[i];
	why = may_admit(s, x, q);
	if (why != FILLED)
		return why;
	late = take_blocks(s, x, q);
	if (late == WHY_ORDER)
		return late;
	queue_admitted(s, i);
	queue_take(s, i);
	ids_started(s, q, quota_for(q->have));
	q->state = SEQ_RUNNING;
	q->sent = 0;
	q->wait_for = 0;
	q->blocked_since = 0;
	s->taken[q->slot] = true;
	s->n_free_slot--;
	for (j = s->n_run++; j > 0 && ranks_before(q, &s->seq[s->run[j - 1]]); j--)
		s->run[j] = s->run[j - 1];
	s->run[j] = i;
	s->run_changed = true;
	x->moved++;
	count_prefix(s, q);
	put_begin(x, q);
	if (late == FILLED && !(may_match(s, q) && follows_leader(s, q)))
		late = fill_chunk(s, x, q);
	if (!q->drawn)
		x->owed += kv_lacks(s->kv, &s->table[q->slot], q->known, step_of(s));
	if (late != FILLED)
		hold_back(x, late);
	return FILLED;
}

static void fill_admissions(struct sched *s, struct fill *x)
{
	int why;

	do {
		why = fill_admission(s, x);
	} while (why == FILLED);
	if (why != WHY_EMPTY)
		hold_back(x, why);
	else if (x->why == WHY_EMPTY && s->n_blocked)
		x->why = WHY_RING_OUT;
	else if (x->why == WHY_EMPTY && s->aside.n)
		x->why = WHY_GUIDE;
}

/* ---- the batch ----------------------------------------------------------------------------------- */

/* END for slots that lost their owner and got no other in this batch. */
static void fill_ends(struct sched *s, struct fill *x)
{
	for (int32_t k = 0; k < s->n_ended; k++) {
		int32_t slot = s->ended_slot[k];

		s->ended[slot] = false;
		if (!s->taken[slot])
			put_cmd(x, SR_CMD_END, slot, 0, 0);
	}
	s->n_ended = 0;
}

static void fill_copies(struct sched *s, struct fill *x)
{
	const struct kv_copy *c;

	kv_demote(s->kv, DEMOTE_LOOK);
	x->b->n_copies = kv_copies(s->kv, &c);
	for (int32_t j = 0; j < x->b->n_copies; j++)
		x->b->copy[j] = (struct sr_copy){ c[j].device, c[j].host, c[j].out };
}

/* The batch is launched: full prompt blocks in it may be matched from now on.  (Blocks of answers
 * are published when their ids are known.) */
static void publish(struct sched *s, const struct fill *x)
{
	const int32_t B = s->cfg.limits.block_tokens;

	if (s->knobs.no_prefix_cache)
		return;
	for (int32_t j = x->n_decode; j < x->b->n_rows; j++) {
		struct seq *q = &s->seq[x->f->row[j].seq];
		struct kv_table *t = &s->table[q->slot];

		if ((t->published + 1) * B <= q->planned) {
			kv_publish(s->kv, t, q->planned);
			s->n_published++;
		}
	}
}

static void check_limits(const struct sched *s, const struct sr_batch *b)
{
	const struct sr_limits *lim = &s->cfg.limits;

	assert(b->n_rows <= lim->rows && b->n_tokens <= lim->tokens && b->n_copies <= lim->copies);
	assert(b->n_cmds <= lim->cmds && b->n_words <= lim->words);
	assert(b->n_ids <= lim->tokens + lim->rows && b->n_results <= lim->rows + lim->scores + 2 * lim->drafts);
}

/* Whoever reads this after our end sees who may have been the cause. */
static void note_ran(struct sched *s)
{
	const struct sched_ran *to = &s->cfg.ran;

	if (!to->n || !s->run_changed)
		return;
	s->run_changed = false;
	*to->n = (uint64_t)s->n_run;
	for (int32_t i = 0; i < s->n_run && s->n_run <= to->most; i++)
		to->of[i] = s->seq[s->run[i]].name;
}

/* Fill the next batch and launch it.  Returns the work done, or -EIO. */
int fill_batch(struct sched *s, uint64_t now, bool after_batch)
{
	int32_t i = (int32_t)(s->launched % (uint32_t)s->ops->depth);
	struct fill x = { .b = s->ops->batch(s->b, i), .f = &s->flight[i], .now = now,
			  .budget = s->knobs.batch_tokens, .why = WHY_EMPTY };
	int32_t preempted;
	struct sr_batch *b = x.b;
	int r = 0;

	b->n_copies = b->n_cmds = b->n_words = b->n_rows = b->n_results = b->n_ids = b->n_tokens = 0;
	x.f->n_guesses = 0;
	s->n_filled++;
	kv_begin(s->kv, s->knobs.copies);
	unblock_clients(s);
	give_way(s, &x);
	if (s->n_free_guide < s->n_guide)
		guides_fill(s, &x);
	preempted = s->preempted.n;
	fill_tokens(s, &x);
	budget_time(s, &x);
	fill_prompts(s, &x);
	if (s->preempted.n == preempted)     /* nobody was preempted in this step */
		fill_admissions(s, &x);
	else
		x.why = WHY_KV;
	if (s->cfg.drafts.most && x.n_decode == b->n_rows)
		draft_fill(s, &x);
	fill_ends(s, &x);
	fill_copies(s, &x);
	check_limits(s, b);
	s->why = x.why;
	if (b->n_rows || b->n_cmds || b->n_copies) {
		x.f->n = b->n_rows;
		x.f->n_tokens = b->n_tokens;
		x.f->n_decode = x.n_decode;
		x.f->at = now;
		x.f->why = x.why;
		x.f->pressed = after_batch || s->launched != s->reaped;
		note_ran(s);
		r = s->ops->launch(s->b, i);
		s->launched += r == 0;
		x.moved++;
	}
	kv_launched(s->kv);
	publish(s, &x);
	s->cfg.counters->rows += (uint64_t)b->n_rows;
	s->cfg.counters->step_tokens += (uint64_t)b->n_tokens;
	return r < 0 ? -EIO : x.moved;
}
