/* null.c - the device without weights.  See null.h.
 *
 * A slot keeps the content of its commands; the KV cache is one 64-bit cell per token.  Batches are
 * executed in launch order on the calling thread: by poll(), once their time has passed, or by
 * work(), which waits for it.  The limits on core are asserted here, so that a test of the
 * scheduler needs no further checks.
 */
#include "kernels/null/null.h"
#include "answer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/batch.h"
#include "kernels/model.h"
#include "kernels/shape.h"
#include "shmring/clock.h"

#define DEPTH_MAX 8
#define LINE      64          /* bytes of a cache line: where each array of a batch begins */
#define SLICE_NS  1000000u    /* longest time before work() yields */
#define AHEAD     4           /* rows between the steps of a prefetch; it takes three, because each address
                                 is in the data of the one before */

/* GCC assumes that a function that only prefetches has no effect, and drops the call. */
#define ASKS static inline __attribute__((always_inline))

/* ---- the device ---------------------------------------------------------------------------- */

struct slot {                     /* two cache lines for a row of one token, a third with a history */
	bool     live, has_last, told;
	bool     gap;             /* a guided row drew nothing: core drops rows launched behind it */
	int32_t  last;
	int32_t *table;           /* [n_groups][seq_blocks] */
	struct { int32_t from, n; } known[SR_GROUPS_MAX]; /* entries of each group's table that were sent */
	int32_t  n_list[4];
	uint64_t asked;           /* null_asked() of sampling and lists */
	uint32_t *list[4];
	struct sr_sampling sampling;
	uint64_t seen;            /* sum over ids */
	int32_t *ids, n_ids;      /* [context], the history, if it was sent (told) */
	int32_t  n_words;
	uint32_t *words;          /* [limits.words]: the lists, contiguous */
	struct sr_pooling pooling;
	int32_t  n_pooled;        /* of a pooled prompt: positions that are in the sum */
	uint64_t pooled;          /* the sum of their cells */
	int32_t  from, to;        /* SR_CMD_STATE */
	int32_t  keep, keep_at;   /* SR_CMD_KEEP; keep -1: nothing */
};

/* A state: the cell of the last of n tokens; the rounds that wrote and read it last. */
struct state_cell { uint64_t cell, wrote, read; int32_t n; };

struct kv_cell { uint64_t cell, round; }; /* of one token; the round that wrote it */

enum state { IDLE, LAUNCHED, DONE };

struct sr_backend {
	struct sr_limits lim;
	int32_t  vocab, context, depth;
	uint64_t (*now)(void *ctx);
	void    *now_ctx;
	double   step_ns, token_ns;
	struct sr_batch batch[DEPTH_MAX];
	void    *batches;             /* their arrays */
	enum state state[DEPTH_MAX];
	uint64_t ready[DEPTH_MAX];    /* when it may end */
	uint64_t start[DEPTH_MAX];
	uint32_t launched, executed;
	struct slot *slot;            /* [slots] */
	int32_t  shift;               /* block_tokens is 1 << shift */
	struct kv_cell *kv;           /* [n_blocks][block_tokens] */
	uint64_t *before;             /* the same for windows: the cell of the token before; else NULL */
	uint64_t *host_before;        /* [n_host_blocks][block_tokens], likewise */
	uint64_t *host_kv;            /* [n_host_blocks][block_tokens] */
	struct state_cell *states;    /* [n_states] */
	struct sr_masks masks;
	void    *mask_memory;
	uint64_t round;
};

static uint64_t monotonic(void *ctx)
{
	(void)ctx;
	return sr_now();
}

static struct {
	double   step_us, token_us;
	int32_t  depth;
	uint64_t (*now)(void *ctx);
	void    *now_ctx;
} setting = { 0, 0, 2, monotonic, NULL };

static void copy_before(struct sr_backend *b, const struct sr_copy *c)
{
	const size_t B = (size_t)b->lim.block_tokens;
	uint64_t *device = b->before + (size_t)c->device * B, *host = b->host_before + (size_t)c->host * B;

	memcpy(c->out ? host : device, c->out ? device : host, B * sizeof(*host));
}

static void run_copies(struct sr_backend *b, const struct sr_batch *t)
{
	const size_t B = (size_t)b->lim.block_tokens;

	/* All copies out, then all in.  Each group runs backwards, because its order must not matter. */
	for (int out = 1; out >= 0; out--) {
		for (int32_t j = t->n_copies - 1; j >= 0; j--) {
			const struct sr_copy *c = &t->copy[j];

			assert(batch_copy_ok(&b->lim, c));
			if (c->out != out)
				continue;
			struct kv_cell *device = b->kv + (size_t)c->device * B;
			uint64_t *host = b->host_kv + (size_t)c->host * B;

			for (size_t k = 0; k < B; k++) {
				if (out)
					host[k] = device[k].cell;
				else
					device[k].cell = host[k];
			}
			if (b->before)
				copy_before(b, c);
		}
	}
}

static void slot_begin(struct slot *s, const uint32_t *w)
{
	memcpy(&s->sampling, w, sizeof(s->sampling));
	memset(s->n_list, 0, sizeof(s->n_list));
	memset(s->list, 0, sizeof(s->list));
	s->live = true;
	s->has_last = s->told = s->gap = false;
	s->last = 0;
	s->n_words = s->n_ids = 0;
	memset(s->known, 0, sizeof(s->known));
	s->pooling = (struct sr_pooling){ 0 };
	s->keep = -1;
	s->seen = 0;
	s->asked = null_asked(&s->sampling, (const uint32_t *const *)s->list, s->n_list);
}

/* Lists are contiguous, each kind in one piece.  Core sends one list of each kind; a second one must follow
 * the first of its kind directly. */
static void slot_list(const struct sr_backend *b, struct slot *s, const struct sr_cmd *c,
		      const uint32_t *w)
{
	assert(s->n_words + c->n <= b->lim.words);
	if (!s->n_list[c->a])
		s->list[c->a] = s->words + s->n_words;
	assert(s->list[c->a] + s->n_list[c->a] == s->words + s->n_words);
	memcpy(s->words + s->n_words, w, (size_t)c->n * sizeof(*w));
	s->n_words += c->n;
	s->n_list[c->a] += c->n;
	s->asked = null_asked(&s->sampling, (const uint32_t *const *)s->list, s->n_list);
}

static void slot_saw(const struct sr_backend *b, struct slot *s, int32_t id, bool answer)
{
	assert(s->n_ids < b->context && id >= 0 && id < b->vocab);
	s->ids[s->n_ids++] = id;
	s->seen += seen(id, answer);
}

/* A table grows without a hole, but a window's may begin anywhere. */
static void slot_blocks(const struct sr_backend *b, struct slot *s, const struct sr_cmd *c, const uint32_t *w)
{
	int32_t *from = &s->known[c->group].from, *n = &s->known[c->group].n;

	assert(c->a == *n || (c->a > *n && b->lim.group[c->group].window > 0));
	if (c->a > *n)
		*from = c->a;
	memcpy(s->table + (int64_t)c->group * b->lim.seq_blocks + c->a, w, (size_t)c->n * sizeof(*w));
	*n = c->a + c->n;
}

static void run_cmd(struct sr_backend *b, const struct sr_batch *t, const struct sr_cmd *c)
{
	struct slot *s = &b->slot[c->slot];
	const uint32_t *w = t->word + c->data;

	assert(batch_cmd_ok(t, &b->lim, c));
	assert(c->op == SR_CMD_BEGIN || s->live);
	switch (c->op) {
	case SR_CMD_BEGIN:
		slot_begin(s, w);
		break;
	case SR_CMD_LIST:
		slot_list(b, s, c, w);
		break;
	case SR_CMD_HISTORY:
		assert(!s->told);
		s->told = true;
		for (int32_t i = 0; i < c->n; i++)
			slot_saw(b, s, (int32_t)w[i], i >= c->a);
		break;
	case SR_CMD_BLOCKS:
		slot_blocks(b, s, c, w);
		break;
	case SR_CMD_END:
		s->live = false;
		break;
	case SR_CMD_POOL:
		memcpy(&s->pooling, w, sizeof(s->pooling));
		break;
	case SR_CMD_STATE:
		s->from = c->a;
		s->to = c->n;
		break;
	case SR_CMD_KEEP:
		s->keep = c->a;
		s->keep_at = c->n;
		break;
	default:
		assert(!"an operation of enum sr_op");
	}
}

static void put_result(const struct sr_backend *b, struct sr_batch *t, int32_t at, uint64_t c,
		       int32_t id, int32_t n_top)
{
	t->result[at] = (struct sr_result){ id, null_logprob(c, id), 1 };
	for (int32_t k = 0; k < n_top; k++)
		t->top[(size_t)at * SR_TOP_MAX + (size_t)k] = null_alternative(c, id, k, b->vocab);
}

static int32_t sample(const struct sr_backend *b, struct slot *s, uint64_t c, int32_t position, int32_t mask)
{
	struct draw_at p = { c, s->asked, position, &s->sampling, (const uint32_t *const *)s->list, s->n_list,
			   s->told ? s->ids : NULL, s->seen, b->vocab, NULL };
	uint32_t what = SR_MASK_ANY;
	int32_t id;

	if (mask && !mask_find(&b->masks, mask, position, &what, &p.mask)) {
		s->gap = true;
		return SR_MISS;
	}
	if (what != SR_MASK_BITS)
		p.mask = NULL;
	assert(!s->told || s->n_ids == position || s->gap);
	id = what == SR_MASK_BITS || what == SR_MASK_ANY ? null_draw(&p) : (int32_t)what - 1;
	s->gap = id < 0 || (s->gap && s->n_ids != position);
	if (id < 0)
		return id;
	if (s->told)
		slot_saw(b, s, id, true);
	s->last = id;
	s->has_last = true;
	return id;
}

/* The cell of position p of a slot's sequence. */
static struct kv_cell *cell_at(const struct sr_backend *b, const struct slot *s, int32_t p)
{
	return &b->kv[((size_t)s->table[p >> b->shift] << b->shift) + (size_t)(p & (b->lim.block_tokens - 1))];
}

/* The same of a group. */
static struct kv_cell *cell_of(const struct sr_backend *b, const struct slot *s, int32_t group, int32_t p)
{
	const int32_t *table = s->table + (int64_t)group * b->lim.seq_blocks;

	return &b->kv[((size_t)table[p >> b->shift] << b->shift) + (size_t)(p & (b->lim.block_tokens - 1))];
}

/* What groups hold of the tokens before position p is what was computed for them: all of it that the token at p
 * reads.  A cell says which one came before it; the last one, c, is right if the answer is. */
static void check_groups(const struct sr_backend *b, const struct slot *s, int32_t p, uint64_t c)
{
	for (int32_t g = 0; g < b->lim.n_groups; g++) {
		int32_t window = b->lim.group[g].window, from = window > 0 && p >= window ? p - window + 1 : 0;
		uint64_t now = c;

		for (int32_t q = p - 1; q >= from; q--) {
			const struct kv_cell *at = cell_of(b, s, g, q);

			assert(q >> b->shift >= s->known[g].from && q >> b->shift < s->known[g].n);
			assert(at->round != b->round && at->cell == now);
			now = b->before[at - b->kv];
		}
	}
}

/* Store the cell of position p, which comes after the cell `before`, in every group but the first. */
static void store_groups(struct sr_backend *b, const struct slot *s, int32_t p, uint64_t before, uint64_t c)
{
	for (int32_t g = 0; g < b->lim.n_groups; g++) {
		struct kv_cell *to = cell_of(b, s, g, p);

		assert(p >> b->shift >= s->known[g].from && p >> b->shift < s->known[g].n);
		assert(g == 0 || to->round != b->round);
		*to = (struct kv_cell){ c, b->round };
		b->before[to - b->kv] = before;
	}
}

/* Add the cell of position p to a pooled slot's sum. */
static void pool(struct slot *s, uint64_t c, int32_t p)
{
	if (p == 0)
		s->n_pooled = 0, s->pooled = 0;
	assert(s->n_pooled == p || s->pooling.kind == SR_POOL_LAST || s->pooling.kind == SR_POOL_LOGITS);
	s->n_pooled = p + 1;
	if (p == 0 || s->pooling.kind == SR_POOL_MEAN)
		s->pooled += c;
}

static void put_vector(const struct sr_backend *b, const struct slot *s, uint64_t c, float *out)
{
	bool logits = s->pooling.kind == SR_POOL_LOGITS;
	int32_t n = logits ? s->n_list[SR_LIST_ALLOW] : s->pooling.width ? (int32_t)s->pooling.width : b->lim.width;
	uint64_t h = logits || s->pooling.kind == SR_POOL_LAST ? c : s->pooled;

	for (int32_t i = 0; i < n; i++)
		out[i] = null_element(h, logits ? (int32_t)s->list[SR_LIST_ALLOW][i] : i);
}

/* No row of the batch reads or writes this state; it is written now. */
static void write_state(struct sr_backend *b, int32_t i, uint64_t c, int32_t n)
{
	struct state_cell *to = &b->states[i];

	assert(to->wrote != b->round && to->read != b->round);
	*to = (struct state_cell){ c, b->round, 0, n };
}

/* The state that a row continues is that of the tokens before it, whose last cell is c. */
static void read_state(struct sr_backend *b, struct slot *s, int32_t first, uint64_t c)
{
	struct state_cell *from = s->from < 0 ? NULL : &b->states[s->from];

	assert(from || first == 0);
	if (!from)
		return;
	assert(from->n == first && from->cell == c && from->wrote != b->round);
	if (s->from != s->to)
		from->read = b->round;
}

/* The draw after token k of a row with guesses, whose cell is c, if all guesses up to there were right.  Is the one
 * for its own position right, too? */
static bool draw_guessed(struct sr_backend *b, struct sr_batch *t, const struct sr_row *r, uint64_t c, int32_t k,
                         bool right)
{
	int32_t at = r->result + k - (r->n - 1 - r->n_draft), id;

	if (!right) {
		t->result[at] = (struct sr_result){ .id = SR_UNDRAWN };
		return false;
	}
	id = sample(b, &b->slot[r->slot], c, r->first + k + 1, 0);
	put_result(b, t, at, c, id, r->n_top);
	return k + 1 < r->n && t->token[r->token + k + 1] == id;
}

static void run_row(struct sr_backend *b, struct sr_batch *t, const struct sr_row *r)
{
	struct slot *s = &b->slot[r->slot];
	int32_t at = r->result;
	bool right = true;            /* all guesses so far */
	uint64_t c = 0;

	assert(batch_row_ok(t, &b->lim, r));
	assert(s->live && (r->token != SR_LAST || s->has_last || s->gap) && r->pool == s->pooling.kind);
	assert((int64_t)r->first + r->n <= (int64_t)s->known[0].n << b->shift);
	if (r->first > 0) {
		const struct kv_cell *before = cell_at(b, s, r->first - 1);

		assert(before->round != b->round); /* no row reads what another row of its batch writes */
		c = before->cell;
		if (b->before)
			check_groups(b, s, r->first, c);
	}
	if (b->states)
		read_state(b, s, r->first, c);
	for (int32_t k = 0; k < r->n; k++) {
		int32_t p = r->first + k, id = r->token == SR_LAST ? s->last : t->token[r->token + k];
		struct kv_cell *to = cell_at(b, s, p);

		uint64_t last = c;

		if (s->keep >= 0 && p == s->keep_at && b->states)
			write_state(b, s->keep, c, p);
		assert(to->round != b->round);
		c = cell(c, id, p);
		*to = (struct kv_cell){ c, b->round };
		if (b->before)
			store_groups(b, s, p, last, c);
		if (r->pool)
			pool(s, c, p);
		if (k < r->n_score)
			put_result(b, t, at++, c, t->token[r->token + k + 1], r->n_top);
		else if (k >= r->n - 1 - r->n_draft && r->n_draft)
			right = draw_guessed(b, t, r, c, k, right);
	}
	if (b->states) {
		assert(s->keep < 0 || (s->keep_at > r->first && s->keep_at < r->first + r->n));
		write_state(b, s->to, c, r->first + r->n);
		s->from = s->to;
		s->keep = -1;
	}
	if (r->sample && r->pool)
		put_vector(b, s, c, t->vector + (size_t)r->mask * (size_t)b->lim.width);
	else if (r->sample && !r->n_draft)
		put_result(b, t, at, c, sample(b, s, c, r->first + r->n, r->mask), r->n_top);
}

/* Prefetches for rows that come soon: the slot, then its table entry, then the cell. */
ASKS void look_ahead(const struct sr_backend *b, const struct sr_batch *t, int32_t j, int32_t step)
{
	int32_t late = j + step * 3 * AHEAD, soon = j + step * 2 * AHEAD, next = j + step * AHEAD;

	if (late >= 0 && late < t->n_rows) {
		const char *slot = (const char *)&b->slot[t->row[late].slot];

		__builtin_prefetch(slot, 1);
		__builtin_prefetch(slot + 64, 1);
	}
	if (soon >= 0 && soon < t->n_rows) {
		const struct sr_row *r = &t->row[soon];

		__builtin_prefetch(&b->slot[r->slot].table[r->first >> b->shift]);
	}
	if (next >= 0 && next < t->n_rows) {
		const struct sr_row *r = &t->row[next];

		__builtin_prefetch(cell_at(b, &b->slot[r->slot], r->first), 1);
	}
}

/* Of several ranks: a hash of the tokens, by which they are seen to agree. */
static void check_batch(struct sr_batch *t)
{
	t->check = (uint64_t)t->n_rows + 1;
	for (int32_t j = 0; j < t->n_results; j++)
		t->check = mix(t->check ^ (uint64_t)(uint32_t)t->result[j].id);
}

static void execute(struct sr_backend *b, int32_t i)
{
	struct sr_batch *t = &b->batch[i];
	bool backwards = b->round++ & 1; /* rows have no order */

	assert(b->state[i] == LAUNCHED && (uint32_t)i == b->executed % (uint32_t)b->depth);
	assert(batch_fits(t, &b->lim));
	run_copies(b, t);
	for (int32_t j = 0; j < t->n_cmds; j++)
		run_cmd(b, t, &t->cmd[j]);
	for (int32_t k = 0; k < t->n_rows; k++) {
		int32_t j = backwards ? t->n_rows - 1 - k : k;

		look_ahead(b, t, j, backwards ? -1 : 1);
		run_row(b, t, &t->row[j]);
	}
	if (b->lim.world > 1)
		check_batch(t);
	t->begin_ns = b->start[i];
	t->end_ns = b->ready[i];
	t->compute_ns = (uint32_t)t->n_tokens;
	t->memory_ns = (uint32_t)t->n_rows * 2;
	t->copy_ns = (uint32_t)t->n_copies * 4;
	b->state[i] = DONE;
	b->executed++;
}

/* ---- the table of operations ----------------------------------------------------------------- */

/* The arrays of all batches, in one region.  Returns its size. */
static size_t lay_batches(struct sr_batch *batch, int32_t depth, const struct sr_limits *lim, void *base)
{
	struct cutter c = { base, 0, LINE };

	for (int32_t i = 0; i < depth; i++)
		batch_cut(&batch[i], lim, &c);
	return c.at;
}

static size_t lay_masks(struct sr_masks *m, const struct sr_limits *lim, int32_t n_vocab, void *base)
{
	struct cutter c = { base, 0, LINE };

	masks_cut(m, lim, n_vocab, &c);
	return c.at;
}

static int null_plan(const struct sr_model *m, const struct sr_limits *lim, struct sr_need *out,
		     char *err, size_t errlen)
{
	struct sr_batch batch[DEPTH_MAX];
	struct sr_masks masks;
	const struct sr_attn *kind = &m->kind[0];
	int64_t token = 2 * (int64_t)m->n_layers * kind->n_kv_heads * shape_kv(kind);
	int64_t page = sysconf(_SC_PAGESIZE);

	if (m->n_vocab < 1) {
		snprintf(err, errlen, "null device: the model has a vocabulary of %d", m->n_vocab);
		return -ENOTSUP;
	}
	*out = (struct sr_need){ 0 };
	out->slots = lim->slots * ((int64_t)lim->words * 4 + (int64_t)lim->n_groups * lim->seq_blocks * 4 +
				   (int64_t)lim->seq_blocks * lim->block_tokens * 4);
	out->pinned = (int64_t)(lay_batches(batch, setting.depth, lim, NULL) + lay_masks(&masks, lim, m->n_vocab, NULL));
	/* The size of bf16 K and V of this model, so that a plan is like that of a real device.  Only 16 bytes
	 * per token are allocated. */
	if (!batch_one_group(lim)) {
		int32_t layers = shape_groups(NULL, m, lim);

		if (layers < 0) {
			snprintf(err, errlen, "null device: the groups of layers are not those of this model");
			return -ENOTSUP;
		}
		token = token / m->n_layers * layers;
	}
	if (m->n_kinds > 1 && !sr_same_heads(&m->kind[0], &m->kind[m->n_kinds - 1]))
		token = 2 * shape_kv_most(m, lim);
	out->per_block = lim->block_tokens * (token > 16 ? token : 16);
	out->kinds_in_groups = 1;
	for (int32_t l = 0; m->delta.v_heads && l < m->n_layers; l++)
		if (m->layer[l].mixer == SR_DELTA)
			out->per_state += 4 * (int64_t)m->delta.v_heads * m->delta.k_dim * m->delta.v_dim;
	out->total = page * sysconf(_SC_PHYS_PAGES);
	out->avail = page * sysconf(_SC_AVPHYS_PAGES);
	return 0;
}

static void null_close(struct sr_backend *b)
{
	if (!b)
		return;
	for (int32_t i = 0; b->slot && i < b->lim.slots; i++) {
		free(b->slot[i].words);
		free(b->slot[i].ids);
		free(b->slot[i].table);
	}
	free(b->batches);
	free(b->slot);
	free(b->kv);
	free(b->before);
	free(b->host_before);
	free(b->host_kv);
	free(b->states);
	free(b->mask_memory);
	free(b);
}

static void *take(int64_t n, size_t size, bool *ok)
{
	void *p = calloc((size_t)n + 1, size);

	*ok = *ok && p;
	return p;
}

static int null_open(struct sr_backend **out, const struct sr_model *m, const struct sr_source *src,
		     const struct sr_limits *lim, char *err, size_t errlen)
{
	int64_t cells_n = (int64_t)lim->n_blocks * lim->block_tokens;
	int64_t host_n = (int64_t)lim->n_host_blocks * lim->block_tokens;
	struct sr_backend *b = calloc(1, sizeof(*b));
	bool ok = b;

	(void)src;
	assert(batch_groups_ok(lim, lim->group[0].per_block)); /* what its blocks would take, it does not know */
	if (!b)
		goto full;
	b->lim = *lim;
	b->vocab = m->n_vocab;
	b->shift = __builtin_ctz((unsigned)lim->block_tokens);
	b->context = slot_history(lim);
	b->depth = setting.depth;
	b->now = setting.now;
	b->now_ctx = setting.now_ctx;
	b->step_ns = setting.step_us * 1000;
	b->token_ns = setting.token_us * 1000;
	b->batches = take((int64_t)lay_batches(b->batch, b->depth, lim, NULL), 1, &ok);
	if (b->batches)
		lay_batches(b->batch, b->depth, lim, b->batches);
	b->mask_memory = take((int64_t)lay_masks(&b->masks, lim, b->vocab, NULL), 1, &ok);
	if (b->mask_memory) {
		lay_masks(&b->masks, lim, b->vocab, b->mask_memory);
		masks_clear(&b->masks, lim);
	}
	if (lim->batches)
		batches_cut(b->batch, b->depth, &b->masks, lim, b->vocab, lim->batches);
	b->slot = take(lim->slots, sizeof(*b->slot), &ok);
	for (int32_t i = 0; b->slot && i < lim->slots; i++) {
		b->slot[i].words = take(lim->words, sizeof(uint32_t), &ok);
		b->slot[i].ids = take(b->context, sizeof(int32_t), &ok);
		b->slot[i].table = take((int64_t)lim->n_groups * lim->seq_blocks, sizeof(int32_t), &ok);
	}
	b->kv = take(cells_n, sizeof(*b->kv), &ok);
	if (!batch_one_group(lim)) {
		b->before = take(cells_n, sizeof(*b->before), &ok);
		b->host_before = take(host_n, sizeof(*b->host_before), &ok);
	}
	b->host_kv = take(host_n, sizeof(*b->host_kv), &ok);
	if (lim->n_states)
		b->states = take(lim->n_states, sizeof(*b->states), &ok);
	if (!ok)
		goto full;
	*out = b;
	return 0;
full:
	null_close(b);
	snprintf(err, errlen, "null device: no memory for %d slots and %d blocks", lim->slots, lim->n_blocks);
	return -ENOMEM;
}

static void null_masks(struct sr_backend *b, struct sr_masks *out)
{
	*out = b->masks;
}

static struct sr_batch *null_batch(struct sr_backend *b, int32_t i)
{
	assert(i >= 0 && i < b->depth);
	return &b->batch[i];
}

static int null_launch(struct sr_backend *b, int32_t i)
{
	const struct sr_batch *t = &b->batch[i];
	uint64_t now = b->now(b->now_ctx), before = b->ready[(i + b->depth - 1) % b->depth];
	double takes = t->n_rows ? b->step_ns + b->token_ns * t->n_tokens : 0;

	assert((uint32_t)i == b->launched % (uint32_t)b->depth && b->state[i] == IDLE);
	b->start[i] = before > now ? before : now;
	b->ready[i] = b->start[i] + (uint64_t)takes;
	b->state[i] = LAUNCHED;
	b->launched++;
	return 0;
}

static int null_poll(struct sr_backend *b, int32_t i)
{
	assert(b->state[i] != IDLE);
	if (!b->lim.worked) {
		bool free_running = b->step_ns <= 0 && b->token_ns <= 0;

		while (b->state[i] == LAUNCHED) {
			int32_t k = (int32_t)(b->executed % (uint32_t)b->depth);

			if (!free_running && b->now(b->now_ctx) < b->ready[k])
				return 0;
			execute(b, k);
		}
	}
	if (b->state[i] != DONE)
		return 0;
	b->state[i] = IDLE;
	return 1;
}

static void null_work(struct sr_backend *b, void (*yield)(void *ctx), void *ctx)
{
	while (b->lim.worked && b->executed != b->launched) {
		int32_t i = (int32_t)(b->executed % (uint32_t)b->depth);
		uint64_t now;

		yield(ctx);
		while ((now = b->now(b->now_ctx)) < b->ready[i]) {
			uint64_t left = b->ready[i] - now;
			struct timespec nap = { 0, (long)(left < SLICE_NS ? left : SLICE_NS) };

			if (b->now == monotonic)
				nanosleep(&nap, NULL);
			yield(ctx);
		}
		execute(b, i);
	}
}

static struct sr_backend_ops ops = {
	.version = SR_BACKEND_VERSION, .depth = 2, .name = "null",
	.plan = null_plan, .open = null_open, .close = null_close, .masks = null_masks, .batch = null_batch,
	.launch = null_launch, .poll = null_poll, .work = null_work,
};

const struct sr_backend_ops *sr_null_ops(void)
{
	return &ops;
}

void sr_null_pace(double step_us, double token_us)
{
	setting.step_us = step_us;
	setting.token_us = token_us;
}

void sr_null_depth(int32_t depth)
{
	assert(depth >= 1 && depth <= DEPTH_MAX);
	setting.depth = ops.depth = depth;
}

void sr_null_clock(uint64_t (*now)(void *ctx), void *ctx)
{
	setting.now = now ? now : monotonic;
	setting.now_ctx = now ? ctx : NULL;
}
