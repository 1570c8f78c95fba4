/* rope.c - the angles of rotary position embeddings, once for all back ends.
 *
 * Pair i of a head turns by position * freq[i].  Plain: RoFormer (arXiv 2104.09864); linear:
 * positions divided by the factor (arXiv 2306.15595); llama3: long waves divided, short ones
 * kept, those between blended (the Llama 3.1 reference code); yarn: the same by rotations
 * over the trained context, blended by pair (arXiv 2309.00071, section 3.2), between ends rounded to whole
 * pairs, or (transformers' truncate false) not; factors: each frequency divided by its own.
 */
#include <math.h>
#include <string.h>

#include "model.h"

#define TAU 6.283185307179586476925

static double llama3(const struct sr_rope *r, double f)
{
	double turns = r->context * f / TAU; /* full turns within the trained context */
	double keep;

	if (turns < r->low)
		return f / r->factor;
	if (turns >= r->high)
		return f;
	keep = (turns - r->low) / ((double)r->high - r->low);
	return (1 - keep) * f / r->factor + keep * f;
}

/* The pair, not rounded, that makes so many turns within the trained context. */
static double pair_of(const struct sr_rope *r, double turns)
{
	return r->dims * log(r->context / (turns * TAU)) / (2 * log(r->theta));
}

static double yarn(const struct sr_rope *r, int i, double f)
{
	double from = pair_of(r, r->high), to = pair_of(r, r->low);
	double ramp;

	if (!r->exact) {
		from = floor(from);
		to = ceil(to);
	}
	if (from < 0)
		from = 0;
	if (to > r->dims - 1)
		to = r->dims - 1;
	ramp = (i - from) / (to > from ? to - from : 0.001);
	ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
	return ramp * f / r->factor + (1 - ramp) * f;
}

void sr_rope_freq(const struct sr_rope *r, float *freq)
{
	for (int i = 0; i < r->dims / 2; i++) {
		double f = pow(r->theta, -2.0 * i / r->dims);

		if (r->kind == SR_ROPE_LINEAR)
			f /= r->factor;
		else if (r->kind == SR_ROPE_LLAMA3)
			f = llama3(r, f);
		else if (r->kind == SR_ROPE_YARN)
			f = yarn(r, i, f);
		else if (r->kind == SR_ROPE_FACTORS)
			f /= (double)r->divisor[i];
		freq[i] = (float)f;
	}
}

int32_t sr_rope_like(const struct sr_model *m, int32_t i)
{
	int32_t k = 0;

	while (memcmp(&m->kind[k].rope, &m->kind[i].rope, sizeof(m->kind[i].rope)) != 0)
		k++;
	return k;
}
