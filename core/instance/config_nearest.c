/* config_nearest.c - the name that was meant by a misspelt one: "did you mean --max-num-seqs?" */
#include "config.h"

#include <stdlib.h>
#include <string.h>

/* Number of edits (insert, delete, replace, swap neighbours) from a to b, up to `most`. */
static int distance(const char *a, const char *b, int most)
{
	int n = (int)strlen(a), m = (int)strlen(b), row[3][81];

	if (n > 80 || m > 80 || abs(n - m) > most)
		return most + 1;
	for (int i = 0; i <= n; i++) {
		int *now = row[i % 3], *one = row[(i + 2) % 3], *two = row[(i + 1) % 3];

		for (int j = 0; j <= m; j++) {
			int best = i + j;

			if (i && j)
				best = one[j - 1] + (a[i - 1] != b[j - 1]);
			if (i && one[j] + 1 < best)
				best = one[j] + 1;
			if (j && now[j - 1] + 1 < best)
				best = now[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    two[j - 2] + 1 < best)
				best = two[j - 2] + 1;
			now[j] = best;
		}
	}
	return row[n % 3][m];
}

const char *config_nearest(const char *wrong, const char *const *name, int n)
{
	int most = (int)strlen(wrong) / 3, best = most + 1;
	const char *nearest = NULL, *begins = NULL;

	for (int i = 0; i < n; i++) {
		int d = distance(wrong, name[i], most);

		if (d < best) {
			best = d;
			nearest = name[i];
		}
		if (!begins && strlen(wrong) > 3 && strncmp(name[i], wrong, strlen(wrong)) == 0)
			begins = name[i];
	}
	return nearest ? nearest : begins;
}
