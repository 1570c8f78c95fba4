/* sample.c - from one row of logits to a token, in the order of vLLM's sampler (V1):
 *
 *	log-probabilities, rank and alternatives    from the raw logits
 *	allowed ids, bad words                      only the rest may be drawn
 *	stop ids before min_position                may not be drawn
 *	bias                                        added
 *	repetition, frequency, presence             penalties for ids in the history
 *	temperature 0: the largest, done
 *	temperature, min_p, top_k, top_p            then one draw by inverse CDF
 *
 * A greedy request without extras costs one pass over the logits.  The cuts do not sort:
 * a radix search finds the smallest probability that stays.  Among equals the lower id always
 * wins.  NaN counts as minus infinity.  If no id may be drawn, the largest raw logit is drawn; in a guided row
 * nothing is.
 * Log-probabilities are finite: at least LOWEST.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample.h"

#define EPS    1e-5f             /* a lower temperature counts as 0, as in vLLM */
#define LOWEST (-9999.0f)        /* what vLLM prints for the log of nothing */
#define LARGE  1e30f             /* stands for anything larger, infinity too: so inf - inf never happens */
#define SEEN_IN_PROMPT 0x80000000u
#define FEW    256              /* ids that a mask may leave for which no pass over the vocabulary is made */

/* ---- four floats at a time ------------------------------------------------------------------
 * The compiler's vectors, not an instruction set's: a draw is the same on every machine. */

typedef float   f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef double  d4 __attribute__((vector_size(32)));

static inline f4 f4_all(float x)
{
	return (f4){ x, x, x, x };
}

static inline f4 f4_at(const float *p)
{
	f4 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline void f4_put(float *p, f4 v)
{
	memcpy(p, &v, sizeof(v));
}

static inline f4 f4_pick(i4 where, f4 yes, f4 no)
{
	return (f4)(((i4)yes & where) | ((i4)no & ~where));
}

static inline bool f4_any(i4 where)
{
	uint64_t half[2];

	memcpy(half, &where, sizeof(half));
	return half[0] | half[1];
}

/* ---- draws ---------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) /* the finalizer of splitmix64 */
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

double sample_uniform(uint64_t seed, int32_t position)
{
	return (double)(mix(mix(seed) + (uint32_t)position) >> 11) * 0x1p-53;
}

/* ---- raw logits ------------------------------------------------------------------------- */

static float logprob(float x, double logsum)
{
	double lp = x - logsum;

	return lp > LOWEST ? (float)fmin(lp, 0) : LOWEST; /* NaN: LOWEST */
}

/* 1 + the number of ids before this one: larger logits, and equal ones with a lower id. */
static int32_t rank(const float *x, int32_t n, int32_t id)
{
	float v = x[id];
	int32_t before = 1;

	for (int32_t i = 0; i < id; i++)
		before += x[i] >= v;
	for (int32_t i = id + 1; i < n; i++)
		before += x[i] > v;
	return before;
}

/* The n_top largest, by insertion: after the first few ids few are inserted. */
static void alternatives(const float *x, int32_t n, int n_top, double logsum, struct sr_top *top)
{
	float value[SR_TOP_MAX];
	int have = 0;

	for (int32_t i = 0; i < n; i++) {
		int at = have;

		if (have == n_top && !(x[i] > value[have - 1]))
			continue;
		if (isnan(x[i]))
			continue;
		if (have < n_top)
			have++;
		else
			at--;
		for (; at > 0 && x[i] > value[at - 1]; at--) {
			value[at] = value[at - 1];
			top[at].id = top[at - 1].id;
		}
		value[at] = x[i];
		top[at].id = i;
	}
	for (int j = have; j < n_top; j++) { /* fewer numbers than n_top: the rest is NaN */
		value[j] = -INFINITY;
		top[j].id = j;
	}
	for (int j = 0; j < n_top; j++)
		top[j].logprob = logprob(value[j], logsum);
}

/* ---- what may be drawn -------------------------------------------------------------------- */

static const uint32_t *next_list(const struct slot *s, const uint32_t *at, uint32_t kind)
{
	const uint32_t *end = s->word + s->n_words;

	for (at = at ? at + 2 + at[1] : s->word; at < end; at += 2 + at[1])
		if (at[0] == kind)
			return at;
	return NULL;
}

static bool in_vocab(uint32_t id, int32_t vocab)
{
	return id < (uint32_t)vocab;
}

/* The whole vocabulary, four at a time.  NaN and ids that may not be drawn become minus infinity,
 * infinity becomes LARGE. */
static void copy_all(const float *x, int32_t n, float *w)
{
	const f4 none = f4_all(-INFINITY), large = f4_all(LARGE);
	int32_t i = 0;

	for (; i + 4 <= n; i += 4) {
		f4 v = f4_at(x + i);

		v = f4_pick(v > none, v, none);
		f4_put(w + i, f4_pick(v < large, v, large));
	}
	for (; i < n; i++)
		w[i] = x[i] > -INFINITY ? fminf(x[i], LARGE) : -INFINITY;
	for (; i % 4; i++)
		w[i] = -INFINITY;
}

static void copy_allowed(const struct sample_query *q, float *w)
{
	const struct slot *s = q->slot;
	const uint32_t *list = next_list(s, NULL, SR_LIST_ALLOW);
	int32_t n = q->vocab;

	copy_all(q->logits, n, w);
	if (list) { /* those again, over nothing */
		for (int32_t i = 0; i < n; i++)
			w[i] = -INFINITY;
		for (; list; list = next_list(s, list, SR_LIST_ALLOW))
			for (uint32_t j = 0; j < list[1]; j++)
				if (in_vocab(list[2 + j], n) && q->logits[list[2 + j]] > -INFINITY)
					w[list[2 + j]] = fminf(q->logits[list[2 + j]], LARGE);
	}
}

/* A bad sequence is never completed: its last id is banned while the answer ends with the others. */
static void ban_words(const struct sample_query *q, float *w)
{
	const struct slot *s = q->slot;
	int32_t n = s->n_history + q->n_guess, n_answer = n - s->n_prompt;

	for (const uint32_t *l = next_list(s, NULL, SR_LIST_BAD); l; l = next_list(s, l, SR_LIST_BAD)) {
		for (uint32_t j = 0; j < l[1] && l[2 + j] && l[2 + j] < l[1] - j; j += 1 + l[2 + j]) {
			const uint32_t *ids = &l[3 + j];
			uint32_t before = l[2 + j] - 1;

			if (!in_vocab(ids[before], q->vocab) || before > (uint32_t)n_answer)
				continue;
			if (!before || !memcmp(ids, s->history + n - before, before * sizeof(*ids)))
				w[ids[before]] = -INFINITY;
		}
	}
}

static void ban_stops(const struct sample_query *q, float *w)
{
	const struct slot *s = q->slot;

	if (q->position >= s->s.min_position)
		return;
	for (const uint32_t *l = next_list(s, NULL, SR_LIST_STOP); l; l = next_list(s, l, SR_LIST_STOP))
		for (uint32_t j = 0; j < l[1]; j++)
			if (in_vocab(l[2 + j], q->vocab))
				w[l[2 + j]] = -INFINITY;
}

static float bounded(float x)
{
	return x > LARGE ? LARGE : x;
}

static void add_bias(const struct sample_query *q, float *w)
{
	const struct slot *s = q->slot;

	for (const uint32_t *l = next_list(s, NULL, SR_LIST_BIAS); l; l = next_list(s, l, SR_LIST_BIAS))
		for (uint32_t j = 0; j + 1 < l[1]; j += 2) {
			float add;

			memcpy(&add, &l[3 + j], sizeof(add));
			if (in_vocab(l[2 + j], q->vocab))
				w[l[2 + j]] = bounded(w[l[2 + j]] + add);
		}
}

static bool penalized(const struct slot *s)
{
	return s->counted && (s->s.repetition != 1 || s->s.frequency != 0 || s->s.presence != 0);
}

/* Count the history into `count`, then visit each of its ids once and leave the counts zero. */
static void penalize(const struct sample_query *q, uint32_t *count, float *w)
{
	const struct slot *s = q->slot;
	const int32_t n_ids = s->n_history + q->n_guess;

	for (int32_t i = 0; i < n_ids; i++) {
		if (i < s->n_prompt)
			count[s->history[i]] |= SEEN_IN_PROMPT;
		else
			count[s->history[i]]++;
	}
	for (int32_t i = 0; i < n_ids; i++) {
		int32_t id = s->history[i];
		uint32_t n = count[id] & ~SEEN_IN_PROMPT;

		if (!count[id])
			continue;
		count[id] = 0;
		w[id] = w[id] > 0 ? w[id] / s->s.repetition : w[id] * s->s.repetition;
		if (n)
			w[id] -= (float)n * s->s.frequency + s->s.presence;
		w[id] = bounded(w[id]);
	}
}

static bool has_lists(const struct sample_query *q)
{
	const struct slot *s = q->slot;

	return next_list(s, NULL, SR_LIST_ALLOW) || next_list(s, NULL, SR_LIST_BAD) ||
	       next_list(s, NULL, SR_LIST_BIAS) ||
	       (q->position < s->s.min_position && next_list(s, NULL, SR_LIST_STOP));
}

/* ---- the cut and the draw ------------------------------------------------------------------ */

/* exp for x <= 0, to about 2 ulp: 2^n * p(r) with the polynomial of Moshier's Cephes library. */
static f4 exp_down(f4 x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	i4 keep = x > -87.0f;            /* below: 0, and minus infinity too */
	f4 v = (f4)((i4)x & keep), t = v * 1.44269504f + magic, r = t - magic, p;

	v = v - r * 0.693359375f + r * 2.12194440e-4f;
	p = v * 1.9875691500e-4f + 1.3981999507e-3f;
	p = p * v + 8.3334519073e-3f;
	p = p * v + 4.1665795894e-2f;
	p = p * v + 1.6666665459e-1f;
	p = p * v + 5.0000001201e-1f;
	p = p * v * v + v + 1.0f;
	return (f4)(((i4)p + ((i4)t << 23)) & keep); /* t's low bits are the integer */
}

/* The ids that can still be drawn: p[i] is of token id[i], ids ascend; id NULL: token i. */
struct left { float *p; int32_t *id; int32_t n; };

/* Keep what is larger than `value`, and the first `ties` that are equal to it. */
static void keep(struct left *c, int32_t *ids, float value, int32_t ties)
{
	const f4 least = f4_all(value);
	int32_t m = 0;

	for (int32_t i = 0; i < c->n; i += 4) {
		if (i + 4 <= c->n && !f4_any(f4_at(c->p + i) >= least))
			continue;
		for (int32_t j = i; j < i + 4 && j < c->n; j++) {
			if (!(c->p[j] > value) && (c->p[j] != value || ties-- <= 0))
				continue;
			ids[m] = c->id ? c->id[j] : j;
			c->p[m++] = c->p[j];
		}
	}
	c->id = ids;
	c->n = m;
}

/* A cut keeps what is larger than `value`, and the first `ties` that are equal to it. */
struct cut { float value; int32_t ties; };

/* The largest p[] whose sum reaches `target`, or, if !mass, the `target` largest.  A radix
 * search over the bits of the floats, which order as integers: 11, 11 and 10 bits. */
static struct cut find_cut(const float *p, int32_t n, double target, bool mass)
{
	static const int shift[3] = { 21, 10, 0 }, bits[3] = { 11, 11, 10 };
	struct cut c = { 0, 1 };
	uint32_t prefix = 0;
	double above = 0, each, ties; /* above: the sum of what is larger than the prefix's range */

	for (int level = 0; level < 3; level++) {
		uint32_t n_bins = 1u << bits[level], up = (uint32_t)(shift[level] + bits[level]);
		double sum[2048] = { 0 };
		int32_t bin;

		for (int32_t i = 0; i < n; i++) {
			uint32_t u;

			memcpy(&u, &p[i], sizeof(u));
			if (u && (level == 0 || u >> up == prefix))
				sum[u >> shift[level] & (n_bins - 1)] += mass ? p[i] : 1;
		}
		for (bin = (int32_t)n_bins - 1; bin > 0 && above + sum[bin] < target; bin--)
			above += sum[bin];
		prefix = prefix << bits[level] | (uint32_t)bin;
	}
	memcpy(&c.value, &prefix, sizeof(prefix));
	each = mass ? c.value : 1;
	ties = each > 0 ? ceil((target - above) / each) : 1;
	c.ties = ties < 1 ? 1 : ties > n ? n : (int32_t)ties;
	return c;
}

/* The cut is the k-th largest, and the k-th largest group maximum is not above it: so most values
 * need not be looked at. */
static void keep_top_k(struct left *c, struct sample_scratch *t, int32_t k)
{
	int32_t groups = 0;
	struct cut at;

	for (int32_t i = 0; i < c->n; i += SAMPLE_GROUP, groups++) {
		int32_t end = c->n - i < SAMPLE_GROUP ? c->n : i + SAMPLE_GROUP;
		float most = c->p[i];

		for (int32_t j = i + 1; j < end; j++)
			most = c->p[j] > most ? c->p[j] : most;
		t->group[groups] = most;
	}
	if (k <= groups) {
		at = find_cut(t->group, groups, k, false);
		keep(c, t->id, at.value, INT32_MAX);
	}
	if (k < c->n) {
		at = find_cut(c->p, c->n, k, false);
		keep(c, t->id, at.value, at.ties);
	}
}

/* The sums of the chunks and their total, in one order. */
static double sum_chunks(const struct left *c, double *chunk)
{
	double total = 0;

	for (int32_t i = 0, n = 0; i < c->n; i += SAMPLE_CHUNK, n++) {
		int32_t end = c->n - i < SAMPLE_CHUNK ? c->n : i + SAMPLE_CHUNK, j = i;
		d4 s = { 0, 0, 0, 0 };

		for (; j + 4 <= end; j += 4)
			s += __builtin_convertvector(f4_at(c->p + j), d4);
		for (; j < end; j++)
			s[0] += c->p[j];
		chunk[n] = (s[0] + s[1]) + (s[2] + s[3]);
		total += chunk[n];
	}
	return total;
}

/* Keep all but the least likely ones whose sum is at most 1 - top_p.  An element below the mean of that sum
 * is surely among them. */
static double keep_top_p(struct left *c, struct sample_scratch *t, double total, float top_p)
{
	struct cut at;

	keep(c, t->id, (float)(total * (1 - (double)top_p) / c->n * 0.999), INT32_MAX);
	at = find_cut(c->p, c->n, top_p * total, true);
	keep(c, t->id, at.value, at.ties);
	return sum_chunks(c, t->chunk);
}

static int32_t invert(const struct left *c, const double *chunk, double left)
{
	int32_t i = 0, last = 0;
	double at = 0;

	while (i + SAMPLE_CHUNK < c->n && left >= chunk[i / SAMPLE_CHUNK]) {
		left -= chunk[i / SAMPLE_CHUNK];
		i += SAMPLE_CHUNK;
	}
	for (; i < c->n && !(at > left); i++) { /* on into the next chunk if rounding left a rest */
		at += c->p[i];
		if (c->p[i] > 0)
			last = i;
	}
	while (last > 0 && !(c->p[last] > 0))
		last--;
	return c->id ? c->id[last] : last;
}

/* The logits are in c.p, up to 3 more of minus infinity follow them. */
static int32_t draw_random(const struct sample_query *q, struct sample_scratch *t, struct left c, float max)
{
	const struct sr_sampling *s = &q->slot->s;
	float scale = 1 / s->temperature;
	double total;

	for (int32_t i = 0; i < c.n; i += 4) /* now the largest is 1 */
		f4_put(c.p + i, exp_down((f4_at(c.p + i) - max) * scale));
	if (s->min_p > 0)
		keep(&c, t->id, s->min_p, INT32_MAX);
	if (s->top_k > 0 && s->top_k < c.n)
		keep_top_k(&c, t, s->top_k);
	total = sum_chunks(&c, t->chunk);
	if (s->top_p > 0 && s->top_p < 1)
		total = keep_top_p(&c, t, total, s->top_p);
	return invert(&c, t->chunk, total * sample_uniform(s->seed, q->position));
}

static float largest(const float *w, int32_t n)
{
	f4 most = f4_all(-INFINITY);

	for (int32_t i = 0; i < n; i += 4) {
		f4 v = f4_at(w + i);

		most = f4_pick(v > most, v, most);
	}
	return fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
}

static bool is_greedy(const struct slot *s)
{
	return !(s->s.temperature >= EPS);
}

static bool is_plain(const struct sample_query *q)
{
	return !has_lists(q) && !penalized(q->slot);
}

/* The candidates' logits, with all lists; stops: stop ids may be banned.  Returns the largest. */
static float candidates(const struct sample_query *q, struct sample_scratch *t, bool plain, bool stops)
{
	float *w = t->work;

	copy_allowed(q, w);
	if (!plain) {
		ban_words(q, w);
		if (stops)
			ban_stops(q, w);
		add_bias(q, w);
		if (penalized(q->slot))
			penalize(q, t->count, w);
	}
	return largest(w, q->vocab);
}

static int32_t draw(const struct sample_query *q, struct sample_scratch *t, int32_t raw_arg)
{
	bool greedy = is_greedy(q->slot), plain = is_plain(q);
	float *w = t->work, max;
	int32_t arg = 0;

	if (greedy && plain)
		return raw_arg;
	max = candidates(q, t, plain, true);
	if (!(max > -INFINITY) && q->guided && !plain) /* a grammar that can only end wins over min_position */
		max = candidates(q, t, plain, false);
	if (!(max > -INFINITY))
		return q->guided ? SR_NO_ID : raw_arg;
	if (!greedy)
		return draw_random(q, t, (struct left){ .p = w, .n = q->vocab }, max);
	while (w[arg] != max)
		arg++;
	return arg;
}

/* ---- the door ------------------------------------------------------------------------------- */

/* kern.logits has no rule for NaN and infinity.  A model that makes them is broken, but must not
 * break the server: if the result is not finite, compute it slowly. */
static double careful_logsum(const float *x, int32_t n, int32_t *arg)
{
	double sum = 0;

	*arg = 0;
	for (int32_t i = 1; i < n; i++)
		if (x[i] > x[*arg] || (isnan(x[*arg]) && !isnan(x[i])))
			*arg = i;
	if (!isfinite(x[*arg]))
		return x[*arg] > 0 ? x[*arg] : 0;
	for (int32_t i = 0; i < n; i++)
		if (!isnan(x[i]))
			sum += exp((double)x[i] - x[*arg]);
	return log(sum) + x[*arg];
}

void sample(const struct sample_query *q, struct sample_scratch *scratch,
            struct sr_result *result, struct sr_top *top)
{
	double logsum;
	int32_t arg, id;
	float max;

	q->k->logits(q->logits, q->vocab, &max, &arg, &logsum);
	if (!isfinite(max) || !isfinite(logsum) || arg < 0 || arg >= q->vocab)
		logsum = careful_logsum(q->logits, q->vocab, &arg);
	if (q->n_top)
		alternatives(q->logits, q->vocab, q->n_top, logsum, top);
	id = q->scored >= 0 ? q->scored : q->guided && !(q->logits[arg] > -INFINITY) ? SR_NO_ID :
	     draw(q, scratch, arg);
	if (id < 0) {
		*result = (struct sr_result){ .id = id };
		return;
	}
	*result = (struct sr_result){ .id = id, .logprob = logprob(q->logits[id], logsum) };
	if (q->rank)
		result->rank = id == arg ? 1 : rank(q->logits, q->vocab, id);
}

/* ---- guided rows ---------------------------------------------------------------------------- */

/* The ids that the mask leaves, with their logits, to t: up to FEW.  Returns their number, or FEW + 1. */
static int32_t gather(const struct sample_query *q, const uint32_t *mask, struct sample_scratch *t)
{
	int32_t n = 0;

	for (int32_t k = 0; k < (q->vocab + 31) / 32; k++)
		for (uint32_t w = mask[k]; w; w &= w - 1) {
			int32_t id = k * 32 + __builtin_ctz(w);

			if (n == FEW)
				return FEW + 1;
			t->id[n] = id;
			t->work[n++] = q->logits[id] > -INFINITY ? fminf(q->logits[id], LARGE) : -INFINITY;
		}
	for (int32_t i = n; i % 4; i++)
		t->work[i] = -INFINITY;
	return n;
}

/* One of a few ids.  False: none can be drawn. */
static bool sample_few(const struct sample_query *q, struct sample_scratch *t, int32_t n, struct sr_result *result)
{
	float max = largest(t->work, n);
	double sum = 0;
	int32_t arg = 0, id;

	if (!(max > -INFINITY))
		return false;
	while (t->work[arg] != max)
		arg++;
	for (int32_t i = 0; i < n; i++)
		sum += exp((double)t->work[i] - max);
	id = is_greedy(q->slot) ? t->id[arg] :
	     draw_random(q, t, (struct left){ .p = t->work, .id = t->id, .n = n }, max);
	*result = (struct sr_result){ .id = id, .logprob = logprob(fminf(q->logits[id], LARGE), log(sum) + max) };
	return true;
}

/* What the mask excludes becomes minus infinity, 32 ids at a time. */
static void mask_logits(float *x, int32_t n, const uint32_t *mask)
{
	for (int32_t i = 0; i < n; i += 32) {
		int32_t end = n - i < 32 ? n : i + 32;
		uint32_t w = mask[i / 32];

		if (w == UINT32_MAX)
			continue;
		for (int32_t j = i; j < end; j++, w >>= 1)
			x[j] = w & 1 ? x[j] : -INFINITY;
	}
}

void sample_masked(struct sample_query *q, float *logits, const uint32_t *mask, struct sample_scratch *scratch,
                   struct sr_result *result, struct sr_top *top)
{
	int32_t n = FEW + 1;

	q->guided = true;
	if (!q->n_top && is_plain(q) && q->vocab > FEW) /* n_top asks for excluded ids too */
		n = gather(q, mask, scratch);
	if (n <= FEW) {
		if (!sample_few(q, scratch, n, result))
			*result = (struct sr_result){ .id = SR_NO_ID };
		return;
	}
	mask_logits(logits, q->vocab, mask);
	sample(q, scratch, result, top);
}

/* ---- rows with guesses ------------------------------------------------------------------------ */

void sample_guesses(struct slot *s, const int32_t *guess, int32_t n)
{
	if (s->counted)
		memcpy(s->history + s->n_history, guess, (size_t)n * sizeof(*guess));
}

void sample_settle(struct slot *s, const int32_t *guess, int32_t n, struct sr_result *drawn)
{
	int32_t right = 0;

	while (right < n && drawn[right].id == guess[right])
		right++;
	for (int32_t k = right + 1; k <= n; k++)
		drawn[k] = (struct sr_result){ .id = SR_UNDRAWN };
	s->last = drawn[right].id;
	for (int32_t k = 0; s->counted && k <= right; k++)
		s->history[s->n_history++] = drawn[k].id;
}
