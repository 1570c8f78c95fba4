/* pick.c - which table of inner loops to use: the best the machine has, or the one that is named.
 * CPU features are tested here, because the tables' files are compiled for their own machines only.
 */
#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#ifdef __x86_64__
const struct kern *kern_avx2(void)
{
	bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");

	/* every CPU with AVX2 has F16C, which clang 14 cannot test for */
	return can ? &avx2_table : NULL;
}

const struct kern *kern_avx512vnni(void)
{
	bool can = kern_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
	           __builtin_cpu_supports("avx512vnni");

	return can ? &avx512vnni_table : NULL;
}

const struct kern *kern_avx512(void)
{
	return kern_avx512vnni() && __builtin_cpu_supports("avx512bf16") ? &avx512_table : NULL;
}
#else
const struct kern *kern_avx2(void)
{
	return NULL;
}

const struct kern *kern_avx512vnni(void)
{
	return NULL;
}

const struct kern *kern_avx512(void)
{
	return NULL;
}
#endif

const struct kern *kern_pick(const char *name)
{
	const struct kern *have[] = { kern_avx512(), kern_avx512vnni(), kern_avx2(), &kern_plain };

	if (!name)
		name = getenv("SLIPRING_CPU");
	for (size_t i = 0; i < sizeof have / sizeof *have; i++)
		if (have[i] && (!name || !*name || !strcmp(have[i]->name, name)))
			return have[i];
	return NULL;
}
