/* ngram.c - see ngram.h. */
#include "ngram.h"

#define WORK 8               /* comparisons for each id: more only a text needs that is made to be slow */

/* How many ids before a and b agree. */
static int32_t agreeing(const int32_t *a, const int32_t *b, int32_t most)
{
	int32_t n = 0;

	while (n < most && a[-1 - n] == b[-1 - n])
		n++;
	return n;
}

int32_t ngram_find(const int32_t *ids, int32_t n, int32_t least, int32_t most, int32_t *length)
{
	int32_t best = least - 1, at = -1;
	int64_t work = (int64_t)WORK * n;

	for (int32_t p = n - 1; p >= least && best < most && work > 0; p--) {
		int32_t same;

		if (ids[p - 1] != ids[n - 1])
			continue;
		same = agreeing(ids + p, ids + n, p < most ? p : most);
		work -= same;
		if (same > best) {
			best = same;
			at = p;
		}
	}
	*length = at < 0 ? 0 : best;
	return at;
}

void ngram_copy(const int32_t *ids, int32_t n, int32_t from, int32_t k, int32_t *out)
{
	for (int32_t j = 0; j < k; j++)
		out[j] = from + j < n ? ids[from + j] : out[from + j - n];
}
