/* avx512.c - the table of inner loops for AVX512: not there yet, so the next best is taken. */
#include "kern.h"

const struct kern *kern_avx512(void)
{
	return NULL;
}
