/* experts.c - the verbs of many small matrices, of experts and of the heads of latent keys, over one slice, on every
 * thread of the team at once.  share.h and the
 * head of ops.c say how threads divide them.
 *
 * route() orders the rows of a slice by expert: row r of GU, ACT and OUT is one expert of one token.  So
 * the rows of an expert lie together, and it multiplies them like a small batch.  Each thread makes that
 * order for itself, because sorting costs less than a barrier.
 *
 * Products are divided by columns, like all others: each thread streams its columns of the experts that
 * some token chose, and no others.  combine() has the columns that its thread wrote to OUT.
 *
 * Sums  scores, weights and the sum over a token's experts depend on its row alone.
 */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "share.h"

/* ---- memory ----------------------------------------------------------------------------------------- */

/* An expert's last tile may be short. */
size_t experts_tiles(const struct sr_backend *b, size_t T)
{
	size_t rows = T * (size_t)b->m.experts.top, n = (size_t)b->m.experts.n;

	return rows / KERN_TILE + (n < rows ? n : rows);
}

void experts_lay(struct sr_backend *b, struct dev *d, struct cutter *c, size_t T)
{
	size_t n = (size_t)b->m.experts.n, top = (size_t)b->m.experts.top;
	struct routing *r = d ? &d->routing : NULL;

	if (!n)
		return;
	if (!d) {
		b->chosen = cut(c, T * top, sizeof(int32_t));
		b->chosen_weight = cut(c, T * top, sizeof(float));
		return;
	}
	r->own_id = cut(c, SOLO * top, sizeof(int32_t));
	r->own_weight = cut(c, SOLO * top, sizeof(float));
	r->token = cut(c, T * top, sizeof(int32_t));
	r->row = cut(c, T * top, sizeof(int32_t));
	r->begin = cut(c, n, sizeof(int32_t));
	r->run = cut(c, n, sizeof(*r->run));
	r->scores = cut(c, 2 * n, sizeof(float));
	r->gathered = cut(c, KERN_TILE * (size_t)b->m.d_model, sizeof(float));
}

/* ---- which experts ---------------------------------------------------------------------------------- */

static void score(const struct sr_experts *x, const float *logit, float *s)
{
	float most = logit[0], sum = 0;

	for (int32_t e = 0; e < x->n; e++)
		most = logit[e] > most ? logit[e] : most;
	for (int32_t e = 0; e < x->n; e++) {
		s[e] = x->score == SR_SCORE_SIGMOID ? 1 / (1 + expf(-logit[e]))
		     : x->score == SR_SCORE_SOFTMAX ? expf(logit[e] - most) : logit[e];
		sum += s[e];
	}
	for (int32_t e = 0; x->score == SR_SCORE_SOFTMAX && e < x->n; e++)
		s[e] /= sum;
}

/* The number of the largest that is not out; among equals the lowest, even if there are NaNs. */
static int32_t best_of(const float *v, const int32_t *out, int32_t n)
{
	int32_t best = -1;

	for (int32_t i = 0; i < n; i++)
		if (!out[i] && (best < 0 || v[i] > v[best]))
			best = i;
	return best;
}

/* Take out the experts of all but the best groups. */
static void choose_groups(const struct sr_experts *x, const float *v, int32_t *out)
{
	int32_t each = x->n / x->groups;
	float good[SR_EXPERT_GROUPS];
	int32_t chosen[SR_EXPERT_GROUPS] = { 0 };

	for (int32_t g = 0; g < x->groups; g++) {
		const float *of = v + g * each;
		int32_t *taken = out + g * each;

		good[g] = 0;
		for (int32_t i = 0; i < x->group_sum; i++) {
			int32_t best = best_of(of, taken, each);

			good[g] += of[best];
			taken[best] = 1;
		}
	}
	for (int32_t i = 0; i < x->groups_top; i++)
		chosen[best_of(good, chosen, x->groups)] = 1;
	for (int32_t e = 0; e < x->n; e++)
		out[e] = !chosen[e / each];
}

/* The experts of one token, the best first, and their weights. */
static void choose(const struct sr_experts *x, struct routing *r, const float *logit, const float *bias,
                   int32_t *id, float *weight)
{
	float *s = r->scores, most = 0, sum = 0;
	const float *v = x->before ? logit : s; /* a sigmoid near 1 makes equals of what is not */
	int32_t *out = r->begin;

	score(x, logit, s);
	if (bias && !x->before) {
		for (int32_t e = 0; e < x->n; e++)
			s[x->n + e] = s[e] + bias[e];
		v = s + x->n;
	}
	memset(out, 0, (size_t)x->n * sizeof(*out));
	if (x->groups > 1)
		choose_groups(x, v, out);
	for (int32_t j = 0; j < x->top; j++) {
		id[j] = best_of(v, out, x->n);
		out[id[j]] = 1;
		weight[j] = s[id[j]];
		most = j && weight[j] <= most ? most : weight[j];
	}
	for (int32_t j = 0; j < x->top; j++) {
		if (x->score == SR_SCORE_CHOSEN)
			weight[j] = expf(weight[j] - most);
		sum += weight[j];
	}
	if (!x->renorm && x->score != SR_SCORE_CHOSEN)
		sum = 1;
	for (int32_t j = 0; j < x->top; j++)
		weight[j] = weight[j] / (sum + 1e-20f) * x->scale;
}

/* Order the rows by expert, those of one expert by token. */
static void order_rows(struct routing *r, const struct sr_experts *x, int32_t T)
{
	int32_t n = T * x->top, from = 0;

	memset(r->begin, 0, (size_t)x->n * sizeof(*r->begin));
	for (int32_t i = 0; i < n; i++)
		r->begin[r->id[i]]++;
	r->n_runs = r->n_tiles = 0;
	for (int32_t e = 0; e < x->n; e++) {
		int32_t rows = r->begin[e];

		r->begin[e] = from;
		if (!rows)
			continue;
		r->run[r->n_runs++] = (struct row_run){ .expert = e, .from = from, .n = rows, .tile = r->n_tiles };
		r->n_tiles += (rows + KERN_TILE - 1) / KERN_TILE;
		from += rows;
	}
	for (int32_t i = 0; i < n; i++) {
		int32_t row = r->begin[r->id[i]]++;

		r->row[i] = row;
		r->token[row] = i / x->top;
	}
}

void experts_route(struct dev *d, const struct sr_experts *x, const struct weight *choice_bias, int T)
{
	struct routing *r = &d->routing;
	bool solo = T <= SOLO;
	struct range own = own_rows(d, T);

	r->id = solo ? r->own_id : d->b->chosen;
	r->weight = solo ? r->own_weight : d->b->chosen_weight;
	enter(d, bit(P_SCORES), solo ? 0 : bit(P_CHOICE));
	for (int32_t t = own.from; t < own.to; t++)
		choose(x, r, d->b->place[P_SCORES] + (size_t)t * (size_t)x->n, choice_bias ? choice_bias->vec : NULL,
		       r->id + t * x->top, r->weight + t * x->top);
	if (!solo)
		enter(d, bit(P_CHOICE), 0);
	order_rows(r, x, T);
}

/* Each thread its own weights, or those of its rows: it is the order of rows that others read, too. */
void experts_weigh(struct dev *d, const struct weight *w, int T)
{
	const struct sr_experts *x = &d->b->m.experts;
	struct routing *r = &d->routing;
	struct range own = own_rows(d, T);

	for (int32_t i = own.from * x->top; i < own.to * x->top; i++)
		r->weight[i] *= w->vec[r->id[i]];
	if (T > SOLO)
		meet(d);
}

/* ---- products --------------------------------------------------------------------------------------- */

/* The rows of Y that a tile is made of. */
static const float *gather(struct dev *d, const struct row_run *r, int T)
{
	const struct sr_experts *x = &d->b->m.experts;
	const struct routing *all = &d->routing;
	int32_t D = d->b->m.d_model;

	for (int32_t i = 0; i < r->n; i++) {
		int32_t t = all->token[r->from + i];
		float *to = all->gathered + (size_t)i * (size_t)D;

		memcpy(to, row_of(d, P_Y, t, T), (size_t)D * sizeof(float));
		for (int32_t j = 0; x->before && j < x->top; j++)
			if (all->id[t * x->top + j] == r->expert)
				for (int32_t k = 0; k < D; k++)
					to[k] *= all->weight[t * x->top + j];
	}
	return all->gathered;
}

static void make_tile(struct dev *d, enum place x, const struct weight *w, struct row_run r, int T)
{
	size_t ld = stride_of(d, x, w->k);
	const float *from = x == P_Y ? gather(d, &r, T) : d->b->place[x] + (size_t)r.from * ld;

	for (int f = 0; f < N_FORMS; f++) {
		struct kern_rows to = tiles_of(d, (enum kern_form)f, w->k, r, T <= SOLO);

		if (w->forms & 1u << f)
			d->b->k->make_rows(&to, from, ld, 0, 1);
	}
}

/* Tiles [from, to) of the slice. */
static void make_tiles(struct dev *d, enum place x, const struct weight *w, struct range r, int T)
{
	const struct routing *all = &d->routing;

	for (int32_t i = 0; i < all->n_runs; i++) {
		struct row_run run = all->run[i];
		int32_t end = run.from + run.n;

		for (; run.from < end; run.from += KERN_TILE, run.tile++) {
			run.n = end - run.from < KERN_TILE ? end - run.from : KERN_TILE;
			if (run.tile >= r.from && run.tile < r.to)
				make_tile(d, x, w, run, T);
		}
	}
}

void experts_matmul(struct dev *d, enum place y, enum place x, const struct weight *w, int T)
{
	const struct routing *all = &d->routing;
	bool solo = T <= SOLO, one = T == 1 && x == P_Y && !d->b->m.experts.before; /* all experts have that row */
	struct range r = solo ? (struct range){ 0, one ? 1 : all->n_tiles } : deal(all->n_tiles, d);

	/* Rows of Y are other threads', too.  The router's product has met them since they were written. */
	enter(d, x == P_Y ? 0 : bit(x), solo ? 0 : bit(P_TILES));
	make_tiles(d, x, w, r, T);
	if (!solo)
		enter(d, bit(P_TILES), 0);
	for (int32_t i = 0; i < all->n_runs; i++) { /* GU and OUT are read by the threads that write them */
		struct row_run run = all->run[i];

		if (one)
			run.tile = 0;
		ops_multiply(d, w, y, run, solo);
		ops_breathe(d);
	}
	for (int p = 0; !d->i && p < w->n_parts; p++) /* what the experts chosen cost; thread 0 has the batch's sum */
		d->b->cost.bytes += (double)all->n_runs * w->part[p].n_blocks * (double)w->part[p].block_bytes;
}

/* ---- their sum -------------------------------------------------------------------------------------- */

/* sigmoid(a . b) */
static float mix_of(const float *a, const float *b, int32_t n)
{
	return 1 / (1 + expf(-dot_of_sixteens(a, b, n)));
}

void experts_combine(struct dev *d, const struct sr_experts *x, int shared, const struct weight *mix, int T)
{
	const struct routing *all = &d->routing;
	size_t D = (size_t)d->b->m.d_model;
	struct rank_part own = shape_columns((int32_t)D, d->b->lim.rank, d->b->lim.world > 1 ? d->b->lim.world : 1);
	struct range r = deal((own.n + KERN_COLS - 1) / KERN_COLS, d);
	size_t from = (size_t)(own.from + r.from * KERN_COLS), to = (size_t)(own.from + r.to * KERN_COLS);
	size_t end = (size_t)(own.from + own.n);

	to = to < end ? to : end;
	write_far(d, P_Z);
	enter(d, 0, bit(P_Z));
	for (int32_t t = 0; t < T && from < to; t++) {
		float *z = d->b->place[P_Z] + (size_t)t * D, *sum = d->routing.gathered;
		float by = mix ? mix_of(row_of(d, P_Y, t, T), mix->vec, (int32_t)D) : 1;

		for (int32_t j = 0; j < x->top; j++) {
			const float *out = d->b->place[P_OUT] + (size_t)all->row[t * x->top + j] * D;
			float w = x->before ? 1 : all->weight[t * x->top + j];

			for (size_t i = from; i < to; i++)
				sum[i] = j ? sum[i] + w * out[i] : w * out[i];
		}
		for (size_t i = from; i < to; i++)
			z[i] = shared ? sum[i] + by * z[i] : sum[i];
	}
}

/* ---- a matrix for each head -------------------------------------------------------------------------- */

void latent_norm(struct dev *d, enum place p, const struct weight *w, float eps, int T)
{
	struct range r = deal(T, d);

	enter(d, bit(p), bit(p));
	for (int32_t t = r.from; t < r.to; t++)
		d->b->k->norm(row_of(d, p, t, SOLO + 1), w->vec, eps, w->k, row_of(d, p, t, SOLO + 1));
}

/* With few rows each thread has its columns of all heads, which it streams; with many it has rows, and multiplies
 * them with all columns.  Tiles are a thread's own, so nobody waits between heads. */
void latent_heads(struct dev *d, enum place y, int y_step, enum place x, int x_step, const struct weight *w, int T)
{
	bool solo = T <= SOLO;
	struct range r = solo ? (struct range){ 0, 1 } : deal((T + KERN_TILE - 1) / KERN_TILE, d);
	size_t from_ld = (size_t)d->b->shape.width[x], to_ld = (size_t)d->b->shape.width[y];

	enter(d, bit(x), bit(y));
	for (int32_t tile = r.from; tile < r.to; tile++) {
		int32_t t = tile * KERN_TILE, n = T - t < KERN_TILE ? T - t : KERN_TILE;

		for (int32_t h = 0; h < w->count; h++) {
			const float *from = row_of(d, x, t, SOLO + 1) + (size_t)h * (size_t)x_step;
			float *to = row_of(d, y, t, SOLO + 1) + (size_t)h * (size_t)y_step;
			const struct part *q = &w->part[0];
			struct kern_rows rows = tiles_of(d, q->form, w->k, (struct row_run){ .n = n }, true);

			d->b->k->make_rows(&rows, from, from_ld, 0, 1);
			ops_multiply_part(d, w, 0, h, solo ? deal(q->n_blocks, d) : (struct range){ 0, q->n_blocks }, to, to_ld,
			              &rows, NULL);
		}
		ops_breathe(d);
	}
}
