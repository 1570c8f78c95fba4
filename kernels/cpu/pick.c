/* pick.c - which table of inner loops to use: the best the machine has, or the one that is named. */
#include <stdlib.h>
#include <string.h>

#include "kern.h"

const struct kern *kern_pick(const char *name)
{
	const struct kern *have[] = { kern_avx512(), kern_avx2(), &kern_plain };

	if (!name)
		name = getenv("SLIPRING_CPU");
	for (size_t i = 0; i < sizeof have / sizeof *have; i++)
		if (have[i] && (!name || !*name || !strcmp(have[i]->name, name)))
			return have[i];
	return NULL;
}
