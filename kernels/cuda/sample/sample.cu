/* sample.cu - from logits to a token, in the order of docs/model.md ("Choosing a token").
 *
 * One block per result, or a cluster of some while there are processors for more (sm_90 and later): each reads a share
 * of the vocabulary, and they exchange sums through device memory (struct sampler).  Nothing is sorted.  A radix search over the bits of the probabilities finds a
 * cut.  A draw, or the last of equal ones that stays, is found by dividing the vocabulary among the warps
 * repeatedly until one id is left.
 *
 * Probabilities are added as integers (1.0 is MASS), so sums are the same in any order.  Thus a draw
 * depends only on logits, settings and position, and is the same on every GPU.  The only sum of floats, that of
 * all exponentials, has the same SHARES and the same order of adding for any number of blocks.
 */
#include "kernels/cuda/device.cuh"
#include "sample.cuh"

#define LEAST   1024                 /* ids of a block's share, or a row has fewer blocks */
#define EPS     1e-5f                /* a lower temperature counts as 0 */
#define LOWEST  (-9999.0f)
#define LARGE   1e30f                /* replaces infinity and anything larger, so that nothing computes inf
                                        - inf */
#define MASS    1099511627776.0f     /* 2^40: sums over a vocabulary of 2^23 fit u64 */
#define SEEN_IN_PROMPT 0x80000000u

struct sample_args {
	float *logits, *candidates;  /* [rows][V] */
	uint32_t *count;             /* [rows][V], all zero between kernels */
	const struct batch_token *token;
	int32_t *drawn;              /* [rows], or NULL: no row has guesses */
	const struct batch_pick *pick;
	const struct current_batch *current;
	struct slots slots;
	struct sr_masks masks;
	const uint64_t *tag;         /* of several ranks: as rank 0 found it, for each block; else NULL */
	int32_t n_vocab;
	int32_t width;               /* elements of a vector */
	float cap;
	int32_t blocks;              /* of a row: 1, 2, 4 or SHARES */
	struct sampler *sampler;     /* [grid] */
};

/* The query of one block. */
struct query {
	const float *x;              /* raw logits */
	float *w;                    /* candidates: logits, then probabilities */
	uint32_t *count;
	const struct slot *slot;
	const uint32_t *word;
	const int32_t *history;
	int32_t n_history;           /* the slot's, and the guesses before this draw */
	int32_t n_vocab, position;
	bool masked;                 /* if no id may be drawn, the result is SR_NO_ID */
	struct scratch *s;
};

/* ---- reductions ----------------------------------------------------------------------- */

/* A key in the order of floats: NaN is lowest, and of equal floats the lower id has the higher key. */
static __device__ u64 key_of(float x, int32_t id)
{
	uint32_t u = __float_as_uint(x == 0 ? 0 : x);

	u = u & 0x80000000u ? ~u : u | 0x80000000u;
	if (x != x)
		u = 0;
	return (u64)u << 32 | (uint32_t)~id;
}

static __device__ int32_t id_of(u64 key)
{
	return (int32_t)~(uint32_t)key;
}

/* ---- raw logits ----------------------------------------------------------------------- */

static __device__ float logprob(float x, double logsum)
{
	double lp = (double)x - logsum;

	return lp > (double)LOWEST ? (lp < 0 ? (float)lp : 0) : LOWEST; /* NaN: LOWEST */
}

static __device__ u64 largest(const float *x, int32_t n, struct scratch *s)
{
	u64 most = 0;

	EACH_SHARED(i, n, s) {
		u64 k = key_of(x[i], i);

		most = k > most ? k : most;
	}
	return row_max(most, s);
}

static __device__ double log_sum(const float *x, int32_t n, float max, struct scratch *s)
{
	int32_t own = SHARES / s->blocks, lane = (int32_t)threadIdx.x % 32, warp = (int32_t)threadIdx.x / 32;
	u64 all[SHARES], bits;
	double sum;

	if (!(fabsf(max) < INFINITY))
		return max > 0 ? (double)max : 0;
	__syncthreads(); /* the previous user has read s->sum */
	for (int32_t j = 0; j < own; j++) {
		float part = 0;

		for (int32_t i = (s->rank * own + j) * THREADS + (int32_t)threadIdx.x; i < n; i += SHARES * THREADS)
			part += x[i] == x[i] ? expf(x[i] - max) : 0;
		part = warp_sum(part);
		if (lane == 0)
			s->sum[j][warp] = (double)part;
	}
	__syncthreads();
	if (threadIdx.x == 0) {              /* 8.9 and 12.0 have two lanes of double for a whole multiprocessor */
		for (int32_t j = 0; j < own; j++)
			for (int i = 1; i < WARPS; i++)
				s->sum[j][0] += s->sum[j][i];
		for (int32_t by = 1; by < own; by *= 2) /* pairs of pairs, whoever has them */
			for (int32_t j = 0; j < own; j += 2 * by)
				s->sum[j][0] += s->sum[j + by][0];
	}
	__syncthreads();
	sum = s->sum[0][0];
	memcpy(&bits, &sum, sizeof(bits));
	exchange(s, bits, all);
	__syncthreads(); /* all threads have read s->sum */
	if (threadIdx.x == 0) {
		double part[SHARES];

		memcpy(part, all, sizeof(part));
		for (int32_t by = 1; by < s->blocks; by *= 2)
			for (int32_t j = 0; j < s->blocks; j += 2 * by)
				part[j] += part[j + by];
		s->sum[0][0] = log(part[0]) + (double)max;
	}
	__syncthreads();
	return s->sum[0][0];
}

static __device__ int32_t rank_of(const float *x, int32_t n, int32_t id, struct scratch *s)
{
	float v = x[id];
	u64 before = 0;

	EACH_SHARED(i, n, s)
		before += i < id ? x[i] >= v : x[i] > v;
	return 1 + (int32_t)row_sum(before, s);
}

static __device__ void alternatives(const float *x, int32_t n, int32_t n_top, u64 first, double logsum,
                                    struct sr_top *top, struct scratch *s)
{
	u64 last = first;

	for (int32_t j = 0; j < n_top; j++) {
		bool number = last >> 32;  /* false: only NaN is left */

		if (threadIdx.x == 0 && s->rank == 0) {
			top[j].id = number ? id_of(last) : j;
			top[j].logprob = number ? logprob(x[id_of(last)], logsum) : LOWEST;
		}
		if (number && j + 1 < n_top) {
			u64 most = 0;

			EACH_SHARED(i, n, s) {
				u64 k = key_of(x[i], i);

				most = k < last && k > most ? k : most;
			}
			last = row_max(most, s);
		}
	}
}

/* ---- candidates ----------------------------------------------------------------------- */

static __device__ const uint32_t *next_list(const struct query *q, const uint32_t *at, uint32_t kind)
{
	const uint32_t *end = q->word + q->slot->n_words;

	for (at = at ? at + 2 + at[1] : q->word; at < end; at += 2 + at[1])
		if (at[0] == kind)
			return at;
	return NULL;
}

#define EACH_LIST(l, q, kind) \
	for (const uint32_t *l = next_list(q, NULL, kind); l; l = next_list(q, l, kind))

static __device__ bool in_vocab(uint32_t id, int32_t V)
{
	return id < (uint32_t)V;
}

/* Maps NaN to minus infinity, infinity to LARGE. */
static __device__ float tame(float x)
{
	return x > -INFINITY ? fminf(x, LARGE) : -INFINITY;
}

static __device__ void copy_allowed(const struct query *q)
{
	bool listed = next_list(q, NULL, SR_LIST_ALLOW);

	EACH_SHARED(i, q->n_vocab, q->s)
		q->w[i] = listed ? -INFINITY : tame(q->x[i]);
	row_barrier(q->s);
	EACH_LIST(l, q, SR_LIST_ALLOW)
		EACH_SHARED(j, (int32_t)l[1], q->s)
			if (in_vocab(l[2 + j], q->n_vocab))
				q->w[l[2 + j]] = tame(q->x[l[2 + j]]);
	row_barrier(q->s);
}

/* Prevents the end of a bad sequence: bans its last id if the answer ends with the ids before it.  One
 * thread reads the list, because each sequence starts where the previous one ends. */
static __device__ void ban_words(const struct query *q)
{
	uint32_t n_answer = (uint32_t)(q->n_history - q->slot->n_prompt);

	if (threadIdx.x || q->s->rank)
		return;
	EACH_LIST(l, q, SR_LIST_BAD) {
		for (uint32_t j = 0; j < l[1] && l[2 + j] && l[2 + j] < l[1] - j; j += 1 + l[2 + j]) {
			const uint32_t *ids = &l[3 + j];
			uint32_t before = l[2 + j] - 1, same = 0;
			const int32_t *end = q->history + q->n_history;

			if (!in_vocab(ids[before], q->n_vocab) || before > n_answer)
				continue;
			while (same < before && (uint32_t)end[(int32_t)same - (int32_t)before] == ids[same])
				same++;
			if (same == before)
				q->w[ids[before]] = -INFINITY;
		}
	}
}

static __device__ void ban_stops(const struct query *q)
{
	if (q->position < q->slot->s.min_position)
		EACH_LIST(l, q, SR_LIST_STOP)
			EACH_SHARED(j, (int32_t)l[1], q->s)
				if (in_vocab(l[2 + j], q->n_vocab))
					q->w[l[2 + j]] = -INFINITY;
}

static __device__ float bounded(float x)
{
	return x > LARGE ? LARGE : x;
}

/* Every thread reads the whole list and adds to its own ids, so the biases of an id are added in list
 * order. */
static __device__ void add_bias(const struct query *q)
{
	uint32_t threads = (uint32_t)q->s->blocks * THREADS, own = (uint32_t)q->s->rank * THREADS + threadIdx.x;

	EACH_LIST(l, q, SR_LIST_BIAS)
		for (uint32_t j = 0; j + 1 < l[1]; j += 2) {
			uint32_t id = l[2 + j];

			if (id % threads == own && in_vocab(id, q->n_vocab))
				q->w[id] = bounded(q->w[id] + __uint_as_float(l[3 + j]));
		}
}

static __device__ bool penalized(const struct slot *s)
{
	return s->counted && (s->s.repetition != 1 || s->s.frequency != 0 || s->s.presence != 0);
}

/* Counts the history.  Then handles each of its ids once, and resets the counts to zero. */
static __device__ void penalize(const struct query *q)
{
	const struct slot *s = q->slot;

	EACH_SHARED(i, q->n_history, q->s) {
		if (i < s->n_prompt)
			atomicOr(&q->count[q->history[i]], SEEN_IN_PROMPT);
		else
			atomicAdd(&q->count[q->history[i]], 1u);
	}
	row_barrier(q->s);
	EACH_SHARED(i, q->n_history, q->s) {
		int32_t id = q->history[i];
		uint32_t seen = atomicExch(&q->count[id], 0u), n = seen & ~SEEN_IN_PROMPT;
		float w = q->w[id];

		if (!seen)
			continue; /* another thread handled it */
		w = w > 0 ? w / s->s.repetition : w * s->s.repetition;
		q->w[id] = bounded(n ? w - ((float)n * s->s.frequency + s->s.presence) : w);
	}
	row_barrier(q->s);
}

static __device__ bool has_lists(const struct query *q)
{
	return next_list(q, NULL, SR_LIST_ALLOW) || next_list(q, NULL, SR_LIST_BAD) ||
	       next_list(q, NULL, SR_LIST_BIAS) ||
	       (q->position < q->slot->s.min_position && next_list(q, NULL, SR_LIST_STOP));
}

/* ---- the cut and the draw ------------------------------------------------------------- */

static __device__ u64 mass(float p)
{
	return (u64)(p * MASS);
}

/* Searches from the top for the bin in which the sum reaches `target`; *above: the sum of the bins over
 * it. */
static __device__ uint32_t find_bin(struct scratch *s, uint32_t n_bins, u64 target, u64 *above)
{
	__syncthreads(); /* all threads have added to the bins */
	if (threadIdx.x < 32) {
		uint32_t lane = threadIdx.x, each = n_bins / 32;
		uint32_t top = n_bins - lane * each; /* lane 0 has the top bins */
		u64 sum = 0, over = *above, upto;

		for (uint32_t i = 0; i < each; i++) /* rotated by lane to avoid bank conflicts */
			sum += s->bin[top - 1 - (i + lane) % each];
		upto = sum;
		for (int by = 1; by < 32; by *= 2) {
			u64 more = __shfl_up_sync(FULL, upto, (unsigned)by);

			upto += lane >= (uint32_t)by ? more : 0;
		}
		over += upto - sum;
		if (over < target && (over + sum >= target || lane == 31)) {
			uint32_t bin = top - 1;

			while (bin > top - each && over + s->bin[bin] < target)
				over += s->bin[bin--];
			s->found[0] = bin;
			s->found[1] = over;
		}
	}
	__syncthreads();
	*above = s->found[1];
	return (uint32_t)s->found[0];
}

/* Adds up the bins of all blocks of the row. */
static __device__ void add_bins(struct scratch *s, int32_t n_bins, int turn)
{
	if (s->blocks == 1)
		return;
	__syncthreads(); /* all threads have added to the bins */
	EACH(i, n_bins)
		s->row[s->rank].bin[turn][i] = s->bin[i];
	row_barrier(s);
	EACH(i, n_bins)
		for (int32_t r = 0; r < s->blocks; r++)
			s->bin[i] += r == s->rank ? 0 : *(const volatile u64 *)&s->row[r].bin[turn][i];
}

/* Keeps the largest p[] whose sum reaches `target`, or if !by_mass the `target` largest.  The others become
 * 0.  Of equals, lower ids stay.  0 < target <= the sum of all. */
static __device__ void cut(const struct query *q, u64 target, bool by_mass)
{
	struct scratch *s = q->s;
	uint32_t prefix = 0;
	u64 above = 0, equal = 0, each, ties;
	int32_t last = q->n_vocab - 1;
	float value;

	for (int level = 0; level < 3; level++) {
		uint32_t shift = level == 0 ? 21 : level == 1 ? 10 : 0, n_bins = level == 2 ? 1024 : 2048;
		uint32_t up = level == 0 ? 31 : level == 1 ? 21 : 10; /* the sign bit of a probability is 0 */

		__syncthreads();
		EACH(i, (int32_t)n_bins)
			s->bin[i] = 0;
		__syncthreads();
		EACH_SHARED(i, q->n_vocab, s) {
			uint32_t u = __float_as_uint(q->w[i]);

			if (u && u >> up == prefix)
				atomicAdd(&s->bin[u >> shift & (n_bins - 1)], by_mass ? mass(q->w[i]) : 1);
		}
		add_bins(s, (int32_t)n_bins, level & 1);
		prefix = prefix << (up - shift) | find_bin(s, n_bins, target, &above);
	}
	value = __uint_as_float(prefix);
	each = by_mass ? mass(value) : 1;
	ties = each ? (target - above + each - 1) / each : 1;
	EACH_SHARED(i, q->n_vocab, s)
		equal += q->w[i] == value;
	equal = row_sum(equal, s);
	if (ties < equal)
		last = locate(q->n_vocab, ties ? ties - 1 : 0, s,
			[=](int32_t i) { return (u64)(q->w[i] == value); });
	row_barrier(s); /* all blocks have read what locate() reads */
	EACH_SHARED(i, q->n_vocab, s)
		if (q->w[i] < value || (q->w[i] == value && i > last))
			q->w[i] = 0;
	row_barrier(s);
}

static __device__ u64 mix(u64 x) /* the finalizer of splitmix64 */
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static __device__ u64 total_mass(const struct query *q)
{
	u64 sum = 0;

	EACH_SHARED(i, q->n_vocab, q->s)
		sum += mass(q->w[i]);
	return row_sum(sum, q->s);
}

static __device__ int32_t draw_random(const struct query *q, float max)
{
	const struct sr_sampling *s = &q->slot->s;
	float scale = 1 / s->temperature, *w = q->w;
	u64 left = 0, total;

	EACH_SHARED(i, q->n_vocab, q->s) { /* the largest is now 1 */
		float p = expf((w[i] - max) * scale);

		w[i] = p >= s->min_p ? p : 0;
		left += w[i] > 0;
	}
	left = row_sum(left, q->s);
	if (s->top_k > 0 && (u64)s->top_k < left)
		cut(q, (u64)s->top_k, false);
	total = total_mass(q);
	if (s->top_p > 0 && s->top_p < 1) {
		u64 target = (u64)((double)s->top_p * (double)total);

		cut(q, target ? target : 1, true);
		total = total_mass(q);
	}
	/* 53 bits as a fraction of the total */
	total = __umul64hi(total, mix(mix(s->seed) + (uint32_t)q->position) >> 11 << 11);
	return locate(q->n_vocab, total, q->s, [=](int32_t i) { return mass(w[i]); });
}

/* Makes the candidates' logits, with all lists; stops: stop ids may be banned.  Returns the key of the
 * largest. */
static __device__ u64 candidates(const struct query *q, bool plain, bool stops)
{
	copy_allowed(q);
	if (!plain) {
		ban_words(q);
		if (stops)
			ban_stops(q);
		row_barrier(q->s);
		add_bias(q);
		row_barrier(q->s);
		if (penalized(q->slot))
			penalize(q);
	}
	return largest(q->w, q->n_vocab, q->s);
}

static __device__ int32_t draw(const struct query *q, int32_t raw_arg)
{
	bool greedy = !(q->slot->s.temperature >= EPS);
	bool plain = !has_lists(q) && !penalized(q->slot);
	float max;
	u64 most;

	if (q->masked && !(q->x[raw_arg] > -INFINITY))
		return SR_NO_ID;
	if (greedy && plain)
		return raw_arg;
	most = candidates(q, plain, true);
	max = q->w[id_of(most)];
	if (!(max > -INFINITY) && q->masked && !plain) { /* a grammar that can only end wins over min_position */
		row_barrier(q->s); /* all threads have read the maximum */
		most = candidates(q, plain, false);
		max = q->w[id_of(most)];
	}
	if (!(max > -INFINITY))
		return q->masked ? SR_NO_ID : raw_arg;
	if (greedy)
		return id_of(most);
	row_barrier(q->s); /* all threads have read the maximum, which is overwritten next */
	return draw_random(q, max);
}

/* ---- masks of guided rows ------------------------------------------------------------- */

/* What the tag of the mask for this position says: SR_MASK_BITS ..; or -1: it is not there. */
static __device__ int64_t find_mask(const struct sample_args &a, const struct batch_pick *p, struct scratch *s)
{
	u64 all[SHARES];

	if (threadIdx.x == 0 && s->rank == 0) {
		s->found[0] = a.tag ? a.tag[blockIdx.x / (unsigned)s->blocks] :
			*(const volatile u64 *)&a.masks.tag[2 * (p->mask - 1) + (p->position & 1)];
		__threadfence_system();      /* words are read after the tag */
	}
	__syncthreads();
	exchange(s, s->found[0], all);       /* a tag may change meanwhile: the first block's reading counts */
	return all[0] >> 32 == (u64)p->position ? (int64_t)(uint32_t)all[0] : -1;
}

/* What the mask excludes becomes minus infinity.  The words lie in the host's memory, so each is read once. */
static __device__ void mask_logits(const struct sr_masks *m, const struct batch_pick *p, float *x, int32_t n,
                                   struct scratch *s)
{
	const volatile uint32_t *from = m->word + (size_t)(2 * (p->mask - 1) + (p->position & 1)) * (size_t)m->words;
	uint32_t *word = (uint32_t *)s->bin;
	const int32_t most = 2 * BINS;     /* words that fit */
	int32_t each = (m->words + s->blocks - 1) / s->blocks, first = s->rank * each;
	int32_t end = first + each < m->words ? first + each : m->words;

	for (int32_t base = first; base < end; base += most) {
		int32_t here = end - base < most ? end - base : most;

		__syncthreads();             /* the words before are used */
		EACH(k, here)
			word[k] = from[base + k];
		__syncthreads();
		EACH(i, here * 32)
			if (base * 32 + i < n && !(word[i / 32] >> i % 32 & 1))
				x[base * 32 + i] = -INFINITY;
	}
	row_barrier(s);
}

/* One thread hands out a result, and the slot keeps what was drawn. */
static __device__ void put_result(const struct sample_args *a, const struct batch_pick *p, int32_t row, struct sr_result r)
{
	struct slot *slot = &a->slots.slot[p->slot];

	a->current->result[p->result] = r;
	if (p->guess)
		a->drawn[row] = r.id;
	if (p->id >= 0 || r.id < 0 || p->guess) /* the slot of a row with guesses is settled behind all of them */
		return;
	slot->last = r.id;
	if (slot->counted && slot->n_history < a->slots.history_cap)
		history_of(&a->slots, p->slot)[slot->n_history++] = r.id;
}

/* ---- rows with guesses ----------------------------------------------------------------- */

/* Puts the guesses before a draw behind the slot's history, for this step.  All draws of a row write the same there.
 * Returns the ids that the draw may look at. */
static __device__ int32_t suppose(const struct sample_args &a, const struct batch_pick &p)
{
	const struct slot *slot = &a.slots.slot[p.slot];
	int32_t n = slot->counted && p.guess ? p.guess - 1 : 0, *to = history_of(&a.slots, p.slot) + slot->n_history;

	EACH(i, n)
		if (slot->n_history + i < a.slots.history_cap)
			to[i] = a.token[p.t - n + 1 + i].id;
	__syncthreads();
	return slot->n_history + n;
}

struct settle_args {
	const struct sr_row *row;
	const int32_t *token_of, *pick_of, *drawn;
	const struct batch_token *token;
	const struct current_batch *current;
	struct slots slots;
	int32_t n_rows;
};

/* A thread for each row.  A draw counts while all guesses before it were right. */
static __global__ void settle_kernel(struct settle_args a)
{
	let_next_start();
	wait_for_previous();
	int32_t i = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x), right = 0;

	if (i >= a.n_rows || !a.row[i].n_draft)
		return;
	struct sr_row r = a.row[i];
	const struct batch_token *guess = a.token + a.token_of[i] + r.n - r.n_draft;
	const int32_t *drawn = a.drawn + a.pick_of[i];
	struct slot *slot = &a.slots.slot[r.slot];

	while (right < r.n_draft && drawn[right] == guess[right].id)
		right++;
	for (int32_t k = right + 1; k <= r.n_draft; k++)
		a.current->result[r.result + k] = (struct sr_result){ SR_UNDRAWN, 0, 0 };
	for (int32_t k = 0; k <= right && drawn[k] >= 0; k++) {
		slot->last = drawn[k];
		if (slot->counted && slot->n_history < a.slots.history_cap)
			history_of(&a.slots, r.slot)[slot->n_history++] = drawn[k];
	}
}

/* ---- vectors of logits ----------------------------------------------------------------- */

/* SR_POOL_LOGITS: of the ids in the slot's only list. */
static __device__ void put_logits(const struct sample_args &a, const struct batch_pick &p, const float *x, float *vector)
{
	const uint32_t *word = word_of(&a.slots, p.slot);
	int32_t n = a.slots.slot[p.slot].n_words > 2 ? (int32_t)word[1] : 0;

	EACH(i, n < a.width ? n : a.width)
		vector[(size_t)(p.vector - 1) * (size_t)a.width + (size_t)i] =
			word[2 + i] < (uint32_t)a.n_vocab ? x[word[2 + i]] : 0;
}

/* ---- the kernel ----------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) sample_kernel(struct sample_args a)
{
	let_next_start();
	wait_for_previous();
	SHARED(shared);
	struct scratch *s = (struct scratch *)shared;
	int32_t row = (int32_t)blockIdx.x / a.blocks;
	struct batch_pick p = a.pick[row];
	const struct current_batch batch = *a.current;
	struct slot *slot = &a.slots.slot[p.slot];
	float *x = a.logits + (size_t)row * (size_t)a.n_vocab;
	struct sr_result r;
	int64_t what = SR_MASK_ANY;
	double logsum;
	u64 most;

	if (p.result < 0)
		return;
	if (threadIdx.x == 0) {
		s->blocks = a.blocks;
		s->rank = (int32_t)blockIdx.x % a.blocks;
		s->row = a.sampler + (size_t)row * (size_t)a.blocks;
		s->turn = 0;
	}
	__syncthreads();
	if (p.mask)
		what = find_mask(a, &p, s);
	if (what != SR_MASK_BITS && what != SR_MASK_ANY) { /* it is not there, or says the id */
		if (threadIdx.x == 0 && s->rank == 0)
			put_result(&a, &p, row, (struct sr_result){ what < 0 ? SR_MISS : (int32_t)what - 1, 0, 0 });
		return;
	}
	if (a.cap > 0)
		EACH_SHARED(i, a.n_vocab, s)
			x[i] = a.cap * tanhf(x[i] / a.cap);
	row_barrier(s);
	if (p.vector) {
		if (s->rank == 0)
			put_logits(a, p, x, batch.vector);
		return;
	}
	if (what == SR_MASK_BITS)
		mask_logits(&a.masks, &p, x, a.n_vocab, s);
	most = largest(x, a.n_vocab, s);
	logsum = log_sum(x, a.n_vocab, x[id_of(most)], s);
	if (p.n_top)
		alternatives(x, a.n_vocab, p.n_top, most, logsum, batch.top + (size_t)p.result * SR_TOP_MAX, s);
	r.id = p.id;
	if (p.id < 0) {
		struct query q = { x, a.candidates + (size_t)row * (size_t)a.n_vocab,
			a.count + (size_t)row * (size_t)a.n_vocab,
			slot, word_of(&a.slots, p.slot),
			history_of(&a.slots, p.slot), suppose(a, p), a.n_vocab, p.position,
			what == SR_MASK_BITS, s };

		r.id = draw(&q, id_of(most));
	}
	r.logprob = r.id < 0 ? 0 : logprob(x[r.id], logsum);
	r.rank = !p.rank || r.id < 0 ? 0 : r.id == id_of(most) ? 1 : rank_of(x, a.n_vocab, r.id, s);
	row_barrier(s); /* all threads have read the slot */
	if (threadIdx.x == 0 && s->rank == 0)
		put_result(&a, &p, row, r);
}

/* Blocks for each of R rows. */
int32_t sample_blocks(const struct dev *d, int R)
{
	int32_t most = d->draw.sampler && has(d, SPECIAL_SAMPLE_BLOCKS) ? SHARES : 1;

	while (most > 1 && (R * most > d->gpu.processors || d->m->n_vocab < most * LEAST))
		most /= 2;
	return most;
}

size_t sampler_bytes(const struct dev *d)
{
	return d->gpu.capability < 90 || d->m->n_vocab < 2 * LEAST ? 0 :
		(size_t)d->gpu.processors * sizeof(struct sampler);
}

void sample(struct dev *d, float cap, int i0, int R)
{
	struct sample_args a = {};

	a.logits = (float *)d->act.place[P_LOGITS];
	a.candidates = d->draw.candidates;
	a.count = d->draw.count;
	a.token = d->batch.list.token;
	a.drawn = d->draw.drawn ? d->draw.drawn + i0 : NULL;
	a.pick = d->batch.list.pick + i0;
	a.current = d->batch.current;
	a.slots = d->slots;
	a.n_vocab = d->m->n_vocab;
	a.masks = d->draw.masks;
	a.cap = cap;
	a.width = d->draw.width;
	if (d->ranks.world > 1 && d->draw.guided) {
		ranks_tags(d, i0, R);
		a.tag = d->ranks.tag;
	}
	a.blocks = sample_blocks(d, R);
	a.sampler = d->draw.sampler;
	if (!d->fault.lost)
		cuda_ok(d, start_clusters((unsigned)a.blocks, sample_kernel, (unsigned)(R * a.blocks), THREADS,
			sizeof(struct scratch), d->stream, a), "sample");
}

void sample_settle(struct dev *d)
{
	const struct lists *l = &d->batch.list;
	struct settle_args a = { l->row, l->token_of, l->pick_of, d->draw.drawn, l->token, d->batch.current, d->slots,
		d->batch.step.n_rows };

	if (d->batch.step.n_guessed && !d->fault.lost)
		cuda_ok(d, start(settle_kernel, (unsigned)(a.n_rows + 63) / 64, 64, 0, d->stream, a), "settle guesses");
}
