/* choose.c - see choose.h. */
#include "choose.h"

#define SAME 1e-6                    /* seconds: times that differ by less are equal */

/* Expected seconds until the first token. */
static double seconds(const struct choose_load *l, double n_prompt)
{
	double compute = n_prompt > l->cached ? n_prompt - l->cached : 0;
	double k = 1 + l->running / 8, line = l->running + l->waiting + 1 - l->max_seqs;
	double wait = line > 0 && l->running > 0 ? l->left_s / l->running * line : 0;

	return (l->fresh + k * compute) / l->rate + wait;
}

int choose_best(const struct choose_load *l, int n, double n_prompt, int turn)
{
	double least = 0;
	int best = -1;

	for (int j = 0; j < n; j++) {
		int i = (turn + j) % n;
		double t;

		if (!l[i].usable)
			continue;
		t = seconds(&l[i], n_prompt);
		if (best >= 0 && (t > least + SAME || (t > least - SAME && l[i].running >= l[best].running)))
			continue;
		best = i;
		least = t;
	}
	return best;
}
