/* sample.c - from one row of logits to a token, in the order of vLLM's sampler (V1):
 *
 *	log-probabilities, rank and alternatives    from the raw logits
 *	mask, allowed ids, bad words                what may be drawn at all
 *	stop ids before min_position                may not
 *	bias                                        added
 *	repetition, frequency, presence             of what is there already
 *	temperature 0: the largest, and done
 *	temperature, min_p, top_k, top_p            then one draw by inverse CDF
 *
 * A greedy request without extras costs one pass over the logits.  The cuts sort nothing:
 * a radix search finds the smallest probability that stays.  Among equals the lower id wins
 * everywhere.  NaN counts as minus infinity; if nothing may be drawn, the largest raw logit
 * is.  Log-probabilities are finite: at least LOWEST.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample.h"

#define EPS    1e-5f             /* a lower temperature is 0, as in vLLM */
#define LOWEST (-9999.0f)        /* what vLLM prints for the log of nothing */
#define SEEN_IN_PROMPT 0x80000000u

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

/* 1 + how many come before id: larger ones, and equal ones with a lower id. */
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

/* The n_top largest, by insertion: after the first few ids hardly any gets in. */
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
	for (int j = have; j < n_top; j++) { /* fewer numbers than asked for: all else is NaN */
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

/* Copies the logits that may be drawn; NaN and what may not become minus infinity. */
static void copy_allowed(const struct sample_query *q, float *w)
{
	const struct slot *s = q->slot;
	const uint32_t *list = next_list(s, NULL, SR_LIST_ALLOW);
	int32_t n = q->vocab;

	if (list) {
		for (int32_t i = 0; i < n; i++)
			w[i] = -INFINITY;
		for (; list; list = next_list(s, list, SR_LIST_ALLOW))
			for (uint32_t j = 0; j < list[1]; j++)
				if (in_vocab(list[2 + j], n) && q->logits[list[2 + j]] > -INFINITY)
					w[list[2 + j]] = q->logits[list[2 + j]];
	} else {
		for (int32_t i = 0; i < n; i++)
			w[i] = q->logits[i] > -INFINITY ? q->logits[i] : -INFINITY;
	}
	if (q->mask)
		for (int32_t i = 0; i < n; i++)
			if (!(q->mask[i / 32] >> i % 32 & 1))
				w[i] = -INFINITY;
	for (int32_t i = 0; i < n; i++) /* so that nothing below computes inf - inf */
		w[i] = w[i] < 1e30f ? w[i] : 1e30f;
}

/* A sequence is never completed: its last id is banned when the answer ends with the rest. */
static void ban_words(const struct sample_query *q, float *w)
{
	const struct slot *s = q->slot;
	int32_t n_answer = s->n_history - s->n_prompt;

	for (const uint32_t *l = next_list(s, NULL, SR_LIST_BAD); l; l = next_list(s, l, SR_LIST_BAD)) {
		for (uint32_t j = 0; j < l[1] && l[2 + j] && l[2 + j] < l[1] - j; j += 1 + l[2 + j]) {
			const uint32_t *ids = &l[3 + j];
			uint32_t before = l[2 + j] - 1;

			if (!in_vocab(ids[before], q->vocab) || before > (uint32_t)n_answer)
				continue;
			if (!before || !memcmp(ids, s->history + s->n_history - before, before * sizeof(*ids)))
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

static void add_bias(const struct sample_query *q, float *w)
{
	const struct slot *s = q->slot;

	for (const uint32_t *l = next_list(s, NULL, SR_LIST_BIAS); l; l = next_list(s, l, SR_LIST_BIAS))
		for (uint32_t j = 0; j + 1 < l[1]; j += 2) {
			float add;

			memcpy(&add, &l[3 + j], sizeof(add));
			if (in_vocab(l[2 + j], q->vocab))
				w[l[2 + j]] += add;
		}
}

static bool penalized(const struct slot *s)
{
	return s->counted && (s->s.repetition != 1 || s->s.frequency != 0 || s->s.presence != 0);
}

/* Counts the history into `count`, then takes each id in it once and leaves the count zero. */
static void penalize(const struct sample_query *q, uint32_t *count, float *w)
{
	const struct slot *s = q->slot;

	for (int32_t i = 0; i < s->n_history; i++) {
		if (i < s->n_prompt)
			count[s->history[i]] |= SEEN_IN_PROMPT;
		else
			count[s->history[i]]++;
	}
	for (int32_t i = 0; i < s->n_history; i++) {
		int32_t id = s->history[i];
		uint32_t n = count[id] & ~SEEN_IN_PROMPT;

		if (!count[id])
			continue;
		count[id] = 0;
		w[id] = w[id] > 0 ? w[id] / s->s.repetition : w[id] * s->s.repetition;
		if (n)
			w[id] -= (float)n * s->s.frequency + s->s.presence;
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

/* exp for x <= 0, four at a time, to about 2 ulp: 2^n * p(r) as in Cephes.  Written with plain
 * vectors, not with the instruction set's own, so that a draw does not depend on the machine. */
static void exp_down(float *x, int32_t n, float max, float scale)
{
	typedef float f4 __attribute__((vector_size(16)));
	typedef int32_t i4 __attribute__((vector_size(16)));
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	float pad[4];

	for (int32_t i = 0; i < n; i += 4) {
		int32_t m = n - i < 4 ? n - i : 4;
		f4 v, t, r, p;
		i4 e, keep;

		for (int j = m; j < 4; j++)
			pad[j] = max;
		memcpy(pad, x + i, (size_t)m * sizeof(float));
		memcpy(&v, pad, sizeof(v));
		v = (v - max) * scale;
		keep = v > -87.0f;            /* below: 0, and minus infinity too */
		v = (f4)((i4)v & keep);
		t = v * 1.44269504f + magic;
		r = t - magic;
		e = (i4)t << 23;              /* the integer, already where the exponent is */
		v = v - r * 0.693359375f + r * 2.12194440e-4f;
		p = v * 1.9875691500e-4f + 1.3981999507e-3f;
		p = p * v + 8.3334519073e-3f;
		p = p * v + 4.1665795894e-2f;
		p = p * v + 1.6666665459e-1f;
		p = p * v + 5.0000001201e-1f;
		p = p * v * v + v + 1.0f;
		p = (f4)(((i4)p + e) & keep);
		memcpy(x + i, &p, (size_t)m * sizeof(float));
	}
}

/* Where a cut falls: what is larger than `value` stays, and the first `ties` that equal it. */
struct cut { float value; int32_t ties; };

/* The largest p[] whose sum reaches `target`, or, if !mass, the `target` largest.  A radix
 * search over the bits of the floats, which order as integers: 11, 11 and 10 bits. */
static struct cut find_cut(const float *p, int32_t n, double target, bool mass)
{
	static const int shift[3] = { 21, 10, 0 }, bits[3] = { 11, 11, 10 };
	uint32_t prefix = 0;
	double above = 0;             /* sum or number of those larger than the prefix's range */
	struct cut c;

	for (int level = 0; level < 3; level++) {
		uint32_t n_bins = 1u << bits[level], mask = n_bins - 1;
		int up = shift[level] + bits[level];
		double sum[2048] = { 0 };
		int32_t bin;

		for (int32_t i = 0; i < n; i++) {
			uint32_t u;

			memcpy(&u, &p[i], sizeof(u));
			if (u && (level == 0 || u >> up == prefix))
				sum[u >> shift[level] & mask] += mass ? p[i] : 1;
		}
		for (bin = (int32_t)n_bins - 1; bin > 0; bin--) {
			if (above + sum[bin] >= target)
				break;
			above += sum[bin];
		}
		prefix = prefix << bits[level] | (uint32_t)bin;
		if (level == 2) {
			double each, ties;

			memcpy(&c.value, &prefix, sizeof(prefix));
			each = mass ? c.value : 1;
			ties = each > 0 ? ceil((target - above) / each) : 0;
			c.ties = ties < 1 ? 1 : ties > n ? n : (int32_t)ties;
		}
	}
	return c;
}

static void apply_cut(float *p, int32_t n, struct cut c)
{
	for (int32_t i = 0; i < n; i++)
		if (p[i] < c.value || (p[i] == c.value && c.ties-- <= 0))
			p[i] = 0;
}

/* Sums of chunks and of all, in one order whatever was cut. */
static double sum_chunks(const float *p, int32_t n, double *chunk)
{
	double total = 0;

	for (int32_t i = 0, c = 0; i < n; i += SAMPLE_CHUNK, c++) {
		int32_t end = n - i < SAMPLE_CHUNK ? n : i + SAMPLE_CHUNK;
		double s[4] = { 0, 0, 0, 0 };

		for (int32_t j = i; j < end; j++)
			s[j & 3] += p[j];
		chunk[c] = (s[0] + s[1]) + (s[2] + s[3]);
		total += chunk[c];
	}
	return total;
}

static int32_t invert(const float *p, int32_t n, const double *chunk, double total, double u)
{
	double left = u * total, at = 0;
	int32_t i = 0, end, last = -1;

	while (i + SAMPLE_CHUNK < n && left >= chunk[i / SAMPLE_CHUNK]) {
		left -= chunk[i / SAMPLE_CHUNK];
		i += SAMPLE_CHUNK;
	}
	for (end = n - i < SAMPLE_CHUNK ? n : i + SAMPLE_CHUNK; i < end; i++) {
		if (!(p[i] > 0))
			continue;
		last = i;
		at += p[i];
		if (at > left)
			return i;
	}
	for (i = last < 0 ? end - 1 : last; i > 0 && !(p[i] > 0); i--)
		; /* rounding took us past the end: the last that can be drawn */
	return i;
}

static int32_t draw_random(const struct sample_query *q, struct sample_scratch *t, float max)
{
	const struct sr_sampling *s = &q->slot->s;
	int32_t n = q->vocab;
	float *p = t->work;
	double total;

	exp_down(p, n, max, 1 / s->temperature); /* now the largest is 1 */
	if (s->min_p > 0)
		for (int32_t i = 0; i < n; i++)
			p[i] = p[i] < s->min_p ? 0 : p[i];
	if (s->top_k > 0 && s->top_k < n)
		apply_cut(p, n, find_cut(p, n, s->top_k, false));
	total = sum_chunks(p, n, t->chunk);
	if (s->top_p > 0 && s->top_p < 1) {
		apply_cut(p, n, find_cut(p, n, s->top_p * total, true));
		total = sum_chunks(p, n, t->chunk);
	}
	return invert(p, n, t->chunk, total, sample_uniform(s->seed, q->position));
}

static int32_t draw(const struct sample_query *q, struct sample_scratch *t, int32_t raw_arg)
{
	const struct sr_sampling *s = &q->slot->s;
	bool greedy = !(s->temperature >= EPS), plain = !q->mask && !has_lists(q) && !penalized(q->slot);
	int32_t arg = 0;
	float *w = t->work;

	if (greedy && plain)
		return raw_arg;
	copy_allowed(q, w);
	if (!plain) {
		ban_words(q, w);
		ban_stops(q, w);
		add_bias(q, w);
		if (penalized(q->slot))
			penalize(q, t->count, w);
	}
	for (int32_t i = 1; i < q->vocab; i++)
		if (w[i] > w[arg])
			arg = i;
	if (!(w[arg] > -INFINITY))
		return raw_arg;
	return greedy ? arg : draw_random(q, t, w[arg]);
}

/* ---- the door ------------------------------------------------------------------------------- */

/* kern.logits has no rule for NaN and infinities; models that make them are broken, but must
 * not break us.  So when its answer is not finite, do it slowly. */
static double careful_logsum(const float *x, int32_t n, int32_t *arg)
{
	double sum = 0;

	*arg = 0;
	for (int32_t i = 1; i < n; i++)
		if (x[i] > x[*arg] || isnan(x[*arg]))
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
	id = q->scored >= 0 ? q->scored : draw(q, scratch, arg);
	*result = (struct sr_result){ .id = id, .logprob = logprob(q->logits[id], logsum) };
	if (q->rank)
		result->rank = id == arg ? 1 : rank(q->logits, q->vocab, id);
}
