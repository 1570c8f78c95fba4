/* ops.c - the verbs of ops.h over one slice, on every thread of the team at once.
 *
 * How the work is divided:
 *	rows       embed, add_norm, pick_norm, making tiles: a run of whole tiles per thread, always
 *	           the same, so a thread's rows stay its own; with few rows each thread does all (solo)
 *	columns    matmul and act_mul: the blocks in a thread's arena; the gate and the up of one
 *	           column belong to the same thread
 *	items      attention: by (token, KV head) pairs, by items, by query heads or by spans of positions:
 *	           attend() in attend.c says when
 *
 * Barriers  A thread waits for the others only before it reads what their shares wrote, or writes what
 *           they may still read.  A verb names the places that it reads and writes for other threads, a
 *           bit each.  enter() compares them with the bits since the last barrier: if one of two was a
 *           write, it meets first, and the bits begin anew.  The bits are the same on every thread, so
 *           all meet at the same verbs.  X, Y, GU and one thread's own tiles are not named: a thread
 *           reads there only what it wrote.  One layer, in the order of forward():
 *
 *	                reads        writes   | solo and paired      | many rows
 *	add_norm        Z                     | waits for Z          | waits for Z
 *	matmul, tiles                TILES    | (own tiles)          | waits for TILES
 *	        sums                 QKV      |                      |
 *	rope_store      QKV ANGLES   QKV      | waits for QKV        | waits for QKV
 *	attend          QKV          A        | (the same pairs)     | waits for QKV
 *	matmul, tiles   A            TILES    | waits for A          | waits for A, then TILES
 *	        sums                 Z        |                      |
 *	add_norm        Z                     | waits for Z          | waits for Z
 *	matmul, tiles                TILES    | (own tiles)          | waits for TILES
 *	act_mul                      ACT      |                      |
 *	matmul, tiles   ACT          TILES    | waits for ACT        | waits for ACT, then TILES
 *	        sums                 Z        |                      |
 *	barriers of a layer                   | 5                    | 10
 *
 *	matmul, tiles                TILES    | (own tiles)          | waits for TILES    only with experts
 *	        sums                 SCORES   |                      |
 *	route           SCORES       CHOICE   | waits for SCORES     | waits for SCORES, then CHOICE
 *	combine         OUT Z                 | waits for OUT        | waits for OUT
 *
 *	recur, convolution  QKV      QKV      | waits for QKV        | waits for QKV       only with a state
 *	       rule         QKV      A        | waits for QKV        | waits for QKV
 *	gate                QKV A    A        | waits for A          | waits for A
 *
 *           Solo but not paired: one more, in attend.  Attention by spans: one more, between its parts.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "share.h"
#include "shmring/clock.h"

#define BREATH_NS 1000000u      /* thread 0 yields at least this often */
#define CHUNK_OPS 100000000.0   /* multiply-adds between yields: 0.5 to 5 ms */

void ops_breathe(struct dev *d)
{
	struct sr_backend *b = d->b;
	uint64_t now;

	if (d->i)
		return;
	atomic_store_explicit(&b->breaths, atomic_load_explicit(&b->breaths, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
	if (!b->yield)
		return;
	now = sr_now();
	if (now - d->breathed < BREATH_NS)
		return;
	b->yield(b->yield_ctx);
	d->breathed = now;
}

/* ---- rows -------------------------------------------------------------------------------------- */

static void add_row(struct dev *d, const struct weight *table, int32_t row, float *x)
{
	if (!table)
		return;
	if (!table->vec)
		weights_lookup(d->b, table, row, d->row);
	d->b->k->add(x, table->vec ? table->vec : d->row, d->b->m.d_model);
}

/* Of several ranks: the one that has a token's row of the table puts it into Z. */
static void embed_far(struct dev *d, const struct weight *table, int T)
{
	struct sr_backend *b = d->b;
	struct range r = deal(T, d);

	write_far(d, P_Z);
	for (int32_t t = r.from; t < r.to; t++) {
		int32_t row = b->slice->token[t].id - b->vocab.from;

		if (row >= 0 && row < b->vocab.n)
			weights_lookup(b, table, row, row_of(d, P_Z, t, T));
	}
	meet_ranks(d);
	d->far = bit(P_Z);
}

/* What is added to a token of the first text of a pair, or the second. */
static const struct weight *type_of(const struct sr_backend *b, const struct batch_token *t)
{
	int32_t second = b->net.second_type ? b->slot[t->slot].second : 0;

	return second && t->position >= second ? b->net.second_type : b->net.types;
}

static void embed(struct dev *d, const struct weight *table, float scale, int T)
{
	struct range r = own_rows(d, T);
	int32_t D = d->b->m.d_model;

	if (d->b->net.ranks)
		embed_far(d, table, T);
	for (int32_t t = r.from; t < r.to; t++) {
		float *x = row_of(d, P_X, t, T);

		if (d->b->net.ranks)
			memcpy(x, row_of(d, P_Z, t, T), (size_t)D * sizeof(float));
		else
			weights_lookup(d->b, table, d->b->slice->token[t].id, x);
		if (scale != 1)
			for (int32_t i = 0; i < D; i++)
				x[i] *= scale;
		add_row(d, type_of(d->b, &d->b->slice->token[t]), 0, x);
		add_row(d, d->b->net.positions, d->b->slice->token[t].position, x);
	}
}

static void norm_row(const struct dev *d, const float *x, const struct weight *w, enum sr_norm how, float eps,
                     float *y)
{
	if (how == SR_LAYER)
		kern_layer_norm(x, w->vec, w->bias, eps, d->b->m.d_model, y);
	else
		d->b->k->norm(x, w->vec, eps, d->b->m.d_model, y);
}

static void add_norm(struct dev *d, int first, const struct weight *post, const struct weight *pre,
                     enum sr_norm how, float eps, float by, int T)
{
	const struct kern *k = d->b->k;
	const int32_t after = d->b->m.norm_after;
	struct range r = own_rows(d, T);
	int32_t D = d->b->m.d_model;

	enter(d, first ? 0 : bit(P_Z), 0);
	for (int32_t t = r.from; t < r.to; t++) {
		float *x = row_of(d, P_X, t, T);
		const float *z = row_of(d, P_Z, t, T);

		if (!first && post) {
			norm_row(d, z, post, how, eps, d->row);
			z = d->row;
		}
		if (!first && by != 1) {
			for (int32_t i = 0; i < D; i++)
				d->row[i] = z[i] * by;
			z = d->row;
		}
		if (!first)
			k->add(x, z, D);
		if (pre)
			norm_row(d, x, pre, how, eps, row_of(d, P_Y, t, T));
		if (pre && (after == SR_AFTER_ALL || (after == SR_AFTER_FIRST && first)))
			memcpy(x, row_of(d, P_Y, t, T), (size_t)D * sizeof(float));
		else if (pre)
			continue;
		else if (how == SR_SAME)
			memcpy(row_of(d, P_Y, t, T), x, (size_t)D * sizeof(float));
	}
}

/* y += x, by the rows of latent_norm(). */
static void sum(struct dev *d, enum place y, enum place x, int T)
{
	struct range r = deal(T, d);

	enter(d, bit(x) | bit(y), bit(y));
	for (int32_t t = r.from; t < r.to; t++)
		d->b->k->add(row_of(d, y, t, SOLO + 1), row_of(d, x, t, SOLO + 1), d->b->m.d_model);
}

static void scale(struct dev *d, const struct weight *w, int T)
{
	struct range r = own_rows(d, T);

	for (int32_t t = r.from; t < r.to; t++) {
		float *x = row_of(d, P_X, t, T);

		for (int32_t i = 0; i < d->b->m.d_model; i++)
			x[i] *= w->vec[0];
	}
}

/* For each layer (norm(x / sqrt(D)) + sqrt(width) * table[id]) / sqrt(2). */
static void inputs(struct dev *d, const struct weight *table, const struct weight *w, int width, float eps, int T)
{
	const struct sr_backend *b = d->b;
	struct range r = deal(T, d);
	int32_t n = b->m.n_layers * width;
	float down = 1 / sqrtf((float)b->m.d_model), up = sqrtf((float)width), half = sqrtf(0.5f);

	enter(d, bit(P_INPUTS), bit(P_INPUTS));
	for (int32_t t = r.from; t < r.to; t++) {
		float *x = row_of(d, P_INPUTS, t, SOLO + 1);

		for (int32_t i = 0; i < n; i++)
			x[i] *= down;
		for (int32_t l = 0; l < b->m.n_layers; l++)
			b->k->norm(x + l * width, w->vec, eps, width, x + l * width);
		weights_lookup(b, table, b->slice->token[t].id, d->row);
		for (int32_t i = 0; i < n; i++)
			x[i] = (x[i] + up * d->row[i]) * half;
	}
}

/* By the columns that this thread's product wrote to GU. */
static void input_mul(struct dev *d, int l, enum sr_act act, int width, int T)
{
	struct range r = deal((width + KERN_COLS - 1) / KERN_COLS, d);
	int32_t from = r.from * KERN_COLS, to = r.to * KERN_COLS < width ? r.to * KERN_COLS : width;

	enter(d, bit(P_INPUTS), bit(P_ACT));
	for (int32_t t = 0; t < T && from < to; t++)
		kern_act(act, 0, d->b->place[P_GU] + (size_t)t * stride_of(d, P_GU, width) + from,
		         row_of(d, P_INPUTS, t, SOLO + 1) + l * width + from, to - from,
		         d->b->place[P_ACT] + (size_t)t * stride_of(d, P_ACT, width) + from);
}

static void pick_norm(struct dev *d, const struct weight *w, enum sr_norm how, float eps, int i0, int R)
{
	const struct slice *s = d->b->slice;
	struct range r = own_rows(d, R);

	if (s->n_tokens > SOLO) /* X is divided among the threads by other rows than these */
		meet(d);
	for (int32_t i = r.from; i < r.to; i++)
		norm_row(d, row_of(d, P_X, s->pick[i0 + i].t, s->n_tokens), w, how, eps, row_of(d, P_Y, i, R));
}

/* ---- columns -------------------------------------------------------------------------------------- */

static void make_tiles(struct dev *d, enum place x, const struct weight *w, int T)
{
	bool solo = T <= SOLO;
	struct range r = deal((T + KERN_TILE - 1) / KERN_TILE, d);

	if (solo)
		r = (struct range){ 0, 1 };
	/* each row of Y is written by the thread that reads it; other places by columns or items */
	enter(d, x == P_Y ? 0 : bit(x), solo ? 0 : bit(P_TILES));
	for (int f = 0; f < N_FORMS; f++) {
		struct kern_rows to = tiles_of(d, (enum kern_form)f, w->k, (struct row_run){ .n = T }, solo);

		if (w->forms & 1u << f && r.from < r.to)
			d->b->k->make_rows(&to, row_of(d, x, 0, T), stride_of(d, x, w->k), r.from, r.to);
	}
	if (!solo)
		enter(d, bit(P_TILES), 0);
}

/* Blocks [from, to) of one part, contiguous in memory, in chunks after which thread 0 may yield. */
static void multiply_run(struct dev *d, const struct weight *w, const struct part *q, struct range r,
                         const uint8_t *at, float *y, size_t ld, const struct kern_rows *x, const float *bias)
{
	double chunk = CHUNK_OPS / ((double)KERN_COLS * w->k * x->rows);
	int32_t step = chunk < 1 ? 1 : chunk > 1 << 20 ? 1 << 20 : (int32_t)chunk;

	for (int32_t b = r.from; b < r.to; b += step) {
		int32_t n = r.to - b < step ? r.to - b : step, col = b * KERN_COLS;
		int32_t cols = n * KERN_COLS < q->n - col ? n * KERN_COLS : q->n - col;

		col += q->col;
		d->b->k->matmul(q->type, w->k, at, n, cols, x, bias ? bias + col : NULL, y + col, ld,
			at + (size_t)n * q->block_bytes);
		at += (size_t)n * q->block_bytes;
		if (step < r.to - r.from)
			ops_breathe(d);
	}
}

void ops_multiply_part(struct dev *d, const struct weight *w, int p, int32_t expert, struct range all, float *to,
                       size_t ld, const struct kern_rows *x, const float *bias)
{
	const struct part *q = &w->part[p];
	int threads = d->b->n_threads, i = all.from < all.to ? block_owner(q->n_blocks, all.from, threads) : 0;

	for (int32_t b = all.from, end; b < all.to; b = end, i++) {
		end = block_from(q->n_blocks, i + 1, threads);
		end = end < all.to ? end : all.to;
		multiply_run(d, w, q, (struct range){ b, end }, weight_block(w, p, expert, b, i, threads), to, ld, x,
		             bias);
	}
}

/* This thread's blocks of each part: those in its own arena, and those of threads that rest. */
void ops_multiply(struct dev *d, const struct weight *w, enum place y, struct row_run run, bool solo)
{
	const float *bias = w->bias ? w->bias + (size_t)run.expert * (size_t)w->n : NULL;
	size_t ld = stride_of(d, y, w->n);
	float *to = d->b->place[y] + (size_t)run.from * ld + d->b->first[y];

	for (int p = 0; p < w->n_parts; p++) {
		const struct part *q = &w->part[p];
		struct kern_rows x = tiles_of(d, q->form, w->k, run, solo);

		x.index = q->index ? q->index + (size_t)run.expert * (size_t)w->k : NULL;
		ops_multiply_part(d, w, p, run.expert, deal(q->n_blocks, d), to, ld, &x, bias);
	}
}

static void matmul(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	assert(y != P_X && y != P_Y && w->n_parts);
	write_far(d, y);
	if (w->count > 1) {
		experts_matmul(d, y, x, w, T);
		return;
	}
	make_tiles(d, x, w, T);
	enter(d, 0, y == P_GU ? 0 : bit(y)); /* a thread reads only the GU that it wrote */
	ops_multiply(d, w, y, (struct row_run){ .n = T }, T <= SOLO);
}

static void act_mul(struct dev *d, enum sr_ffn ffn, enum sr_act act, float limit, int F, int T)
{
	const struct rank_part own = d->b->net.ranks ? shape_columns(F, d->b->lim.rank, d->b->lim.world)
	                                             : (struct rank_part){ 0, F };
	struct range r = deal((own.n + KERN_COLS - 1) / KERN_COLS, d);
	int32_t from = r.from * KERN_COLS, to = r.to * KERN_COLS < own.n ? r.to * KERN_COLS : own.n;
	int32_t wide = ffn == SR_GATED ? 2 * own.n : own.n;

	write_far(d, P_ACT);
	enter(d, 0, bit(P_ACT));
	for (int32_t t = 0; t < T && from < to; t++) {
		const float *gate = d->b->place[P_GU] + (size_t)t * stride_of(d, P_GU, wide) + from;
		float *out = d->b->place[P_ACT] + (size_t)t * stride_of(d, P_ACT, F) + own.from + from;

		if (ffn == SR_GATED && act <= SR_GELU_TANH)
			d->b->k->act_mul(act, gate, gate + own.n, to - from, out);
		else
			kern_act(act, limit, gate, ffn == SR_GATED ? gate + own.n : NULL, to - from, out);
	}
}

/* The place lies in memory that all ranks map, and each wrote its columns there: so it is enough to meet. */
static void gather(struct dev *d, enum place p, int T)
{
	(void)T;
	meet_ranks(d);
	d->far = bit(p);
}

/* ---- results ------------------------------------------------------------------------------------------ */

/* SR_POOL_LOGITS: the logits of the ids in the slot's SR_LIST_ALLOW, its only list. */
static void pick_logits(struct dev *d, const struct batch_pick *p, const float *logits)
{
	const struct slot *s = &d->b->slot[p->slot];
	float *out = d->b->batch.vector + (size_t)(p->vector - 1) * (size_t)d->b->lim.width;
	int32_t n = s->n_words > 2 ? (int32_t)s->word[1] : 0;

	for (int32_t i = 0; i < n && i < d->b->lim.width; i++)
		out[i] = logits[s->word[2 + i]];
}

/* The slot keeps the token that was drawn for it.  Of a row with guesses, only the end of the batch knows which. */
static void keep_drawn(struct sr_backend *b, const struct batch_pick *p)
{
	struct slot *slot = &b->slot[p->slot];
	int32_t id = p->vector ? -1 : b->batch.result[p->result].id;

	if (p->id >= 0 || id < 0 || p->guess)
		return;
	slot->last = id;
	if (slot->counted && slot->n_history < b->history_cap)
		slot->history[slot->n_history++] = id;
}

static void sample_pick(struct dev *d, const struct batch_pick *p, float cap, float *logits)
{
	struct sr_backend *b = d->b;
	struct slot *slot = &b->slot[p->slot];
	struct sr_result *out = &b->batch.result[p->result];
	struct sr_top *top = b->batch.top + (size_t)p->result * SR_TOP_MAX;
	const uint32_t *mask;
	uint32_t what = SR_MASK_ANY;
	struct sample_query q = {
		.k = b->k, .logits = logits, .vocab = b->m.n_vocab, .slot = slot, .position = p->position,
		.scored = p->id, .n_top = p->n_top, .rank = p->rank, .n_guess = p->guess ? p->guess - 1 : 0,
	};

	if (p->mask && !mask_find(&b->masks, p->mask, p->position, &what, &mask)) {
		*out = (struct sr_result){ .id = SR_MISS };
		return;
	}
	for (int32_t j = 0; cap > 0 && j < b->m.n_vocab; j++)
		logits[j] = cap * tanhf(logits[j] / cap);
	if (p->vector) {
		pick_logits(d, p, logits);
		return;
	}
	if (what == SR_MASK_ANY)
		sample(&q, &d->sample, out, top);
	else if (what == SR_MASK_BITS)
		sample_masked(&q, logits, mask, &d->sample, out, top);
	else
		*out = (struct sr_result){ .id = (int32_t)what - 1 };
	if (!b->net.ranks)
		keep_drawn(b, p);
}

/* Of several ranks, each has drawn the tokens of some rows into the batch that all share: each rank's slots keep all
 * of them.  The hash is over what is computed on every rank: the row that the first result comes from. */
static void keep_all(struct dev *d, int i0, int R)
{
	struct sr_backend *b = d->b;
	const float *y = row_of(d, P_Y, 0, R);
	uint64_t check = b->batch.check + (uint64_t)R + 1;

	for (int32_t i = i0; i < i0 + R; i++)
		keep_drawn(b, &b->slice->pick[i]);
	for (int32_t k = 0; k < b->m.d_model; k++) {
		uint32_t u;

		memcpy(&u, &y[k], sizeof(u));
		check = (check ^ u) * 0xd6e8feb86659fd93u;
	}
	b->batch.check = check;
}

/* Those of the picks that are guided, or those that are not. */
static void sample_some(struct dev *d, float cap, int i0, int R, bool guided)
{
	struct sr_backend *b = d->b;

	for (int32_t i = team_take(b->team); i < R; i = team_take(b->team)) {
		const struct batch_pick *p = &b->slice->pick[i0 + i];

		if ((p->mask > 0) != guided || (b->net.ranks && (i0 + i) % b->lim.world != b->lim.rank))
			continue;
		sample_pick(d, p, cap, row_of(d, P_LOGITS, i, R));
		ops_breathe(d);
	}
}

/* Guided picks are last, and core looks once more for guides before the first of them. */
static void sample_both(struct dev *d, float cap, int i0, int R)
{
	struct sr_backend *b = d->b;

	meet(d); /* the logits are complete, and team_take starts at 0 */
	d->reads |= bit(P_LOGITS);
	sample_some(d, cap, i0, R, false);
	if (!b->slice->guided)
		return;
	if (d->i == 0 && b->yield)
		b->yield(b->yield_ctx);
	meet(d);
	d->reads |= bit(P_LOGITS);
	sample_some(d, cap, i0, R, true);
}

/* Several ranks draw the tokens of a row each in turn: one alone decides whether a row's mask is there. */
static void sample_results(struct dev *d, float cap, int i0, int R)
{
	sample_both(d, cap, i0, R);
	if (!d->b->net.ranks)
		return;
	meet_ranks(d);
	if (d->i == 0)
		keep_all(d, i0, R);
}

/* ---- vectors ------------------------------------------------------------------------------------------- */

/* The vector of a prompt, from what its last run left: of as many elements as are wanted. */
static void pool_end(struct dev *d, const struct batch_pool *p, const float *from)
{
	struct sr_backend *b = d->b;
	const struct sr_pooling *want = &b->slot[p->slot].pooling;
	int32_t n = want->width ? (int32_t)want->width : b->m.d_model;
	float *out = b->batch.vector + (size_t)p->vector * (size_t)b->lim.width, by = 1;
	double sum = 0;

	if (p->pool == SR_POOL_MEAN)
		by = 1 / (float)(p->first + p->n);
	for (int32_t i = 0; i < n; i++) {
		out[i] = from[i] * by;
		sum += (double)out[i] * (double)out[i];
	}
	if (!want->unit)
		return;
	by = (float)(1 / fmax(sqrt(sum), 1e-12));
	for (int32_t i = 0; i < n; i++)
		out[i] *= by;
}

static bool counts(const struct batch_pool *p, int32_t j)
{
	switch ((enum sr_pool)p->pool) {
	case SR_POOL_MEAN:
		return true;
	case SR_POOL_FIRST:
		return p->first + j == 0;
	default:
		return p->vector >= 0 && j == p->n - 1;
	}
}

static void pool_run(struct dev *d, const struct batch_pool *p, const struct weight *w, enum sr_norm how,
                     float eps)
{
	struct sr_backend *b = d->b;
	int32_t D = b->m.d_model;
	float *sum = b->slot[p->slot].sum;

	for (int32_t j = 0; j < p->n; j++) {
		const float *x = row_of(d, P_X, p->t + j, b->slice->n_tokens);

		if (!counts(p, j))
			continue;
		if (w) {
			norm_row(d, x, w, how, eps, d->row);
			x = d->row;
		}
		if (p->pool == SR_POOL_MEAN && p->first + j > 0)
			b->k->add(sum, x, D);
		else
			memcpy(sum, x, (size_t)D * sizeof(float));
	}
	if (p->vector >= 0 && !b->net.labels)
		pool_end(d, p, sum);
}

/* Y, with a classifier: what runs left that end a prompt. */
static void pool_rows(struct dev *d, int P)
{
	struct range r = own_rows(d, P);
	int32_t D = d->b->m.d_model;

	meet(d); /* each run was another thread's */
	for (int32_t i = r.from; i < r.to; i++) {
		const struct batch_pool *p = &d->b->slice->pool[i];
		const float *sum = d->b->slot[p->slot].sum;
		float *y = row_of(d, P_Y, i, P);
		float by = p->pool == SR_POOL_MEAN ? 1 / (float)(p->first + p->n) : 1;

		for (int32_t k = 0; k < D; k++)
			y[k] = p->vector >= 0 ? sum[k] * by : 0;
	}
}

/* A run for each thread in turn; a slice has at most one of a sequence. */
static void pool(struct dev *d, const struct weight *w, enum sr_norm how, float eps, int P)
{
	struct range r = deal(P, d);

	if (d->b->slice->n_tokens > SOLO) /* X is divided among the threads by other rows than these */
		meet(d);
	for (int32_t i = r.from; i < r.to; i++)
		pool_run(d, &d->b->slice->pool[i], w, how, eps);
	if (d->b->net.labels)
		pool_rows(d, P);
}

static float head_act(enum sr_head_act act, float x)
{
	return act == SR_HEAD_TANH ? tanhf(x) : x / 2 * (1 + erff(x * 0.70710678f));
}

/* The logits of the prompt that run i ends, in the slot's vector of the batch. */
static void label_run(struct dev *d, const float *z, int32_t i, const struct weight *labels, const struct weight *bias)
{
	const struct sr_backend *b = d->b;
	const struct batch_pool *p = &b->slice->pool[i];
	const int32_t D = b->m.d_model, wanted = (int32_t)b->slot[p->slot].pooling.width;
	float *out = b->batch.vector + (size_t)p->vector * (size_t)b->lim.width, *row = d->row + D;

	for (int32_t l = 0; l < (wanted ? wanted : b->m.classifier.n_labels); l++) {
		if (!labels->vec)
			weights_lookup(b, labels, l, row);
		out[l] = dot_of_sixteens(z, labels->vec ? labels->vec : row, D) + (bias ? bias->vec[l] : 0);
	}
}

static void label(struct dev *d, enum place from, enum sr_head_act act, const struct weight *norm,
                  const struct weight *labels, const struct weight *bias, float eps, int P)
{
	struct range r = P <= SOLO || from == P_Z ? deal(P, d) : own_rows(d, P);
	int32_t D = d->b->m.d_model;

	enter(d, from == P_Z ? bit(P_Z) : 0, 0);
	for (int32_t i = r.from; i < r.to; i++) {
		const float *z = row_of(d, from, i, P);

		if (d->b->slice->pool[i].vector < 0)
			continue;
		for (int32_t k = 0; from == P_Z && k < D; k++)
			d->row[k] = head_act(act, z[k]);
		if (from == P_Z && norm)
			kern_layer_norm(d->row, norm->vec, norm->bias, eps, D, d->row);
		label_run(d, from == P_Z ? d->row : z, i, labels, bias);
	}
}

/* ---- tests: a team of one ------------------------------------------------------------------------------ */

static void put(struct dev *d, enum place p, const float *from, int T)
{
	memcpy(row_of(d, p, 0, T), from, (size_t)T * (size_t)d->b->shape.width[p] * sizeof(float));
}

static void get(struct dev *d, enum place p, float *to, int T)
{
	memcpy(to, row_of(d, p, 0, T), (size_t)T * (size_t)d->b->shape.width[p] * sizeof(float));
}

const struct ops cpu_ops = {
	.weight = weights_add,
	.embed = embed,
	.add_norm = add_norm,
	.matmul = matmul,
	.route = experts_route,
	.combine = experts_combine,
	.gather = gather,
	.rope_store = rope_store,
	.attend = attend,
	.gate = attend_gate,
	.recur = recur,
	.norm = latent_norm,
	.heads = latent_heads,
	.sum = sum,
	.scale = scale,
	.inputs = inputs,
	.input_mul = input_mul,
	.weigh = experts_weigh,
	.act_mul = act_mul,
	.pick_norm = pick_norm,
	.sample = sample_results,
	.pool = pool,
	.label = label,
	.put = put,
	.get = get,
};
