/* nth_alloc.h - makes the n-th allocation of the code under test fail.  A test that includes this is linked with
 * -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc, and wraps others with FAILS().  nth_call.h fails opens and
 * reads, too.
 */
#ifndef TESTS_NTH_ALLOC_H
#define TESTS_NTH_ALLOC_H

#include <stddef.h>

static int fails, calls;           /* the allocation that fails, from 1; how many there were */

#define FAILS(type, name, args, pass) \
	type __real_##name args; type __wrap_##name args; \
	type __wrap_##name args { return ++calls == fails ? NULL : __real_##name pass; }

FAILS(void *, calloc, (size_t n, size_t size), (n, size))
FAILS(void *, malloc, (size_t n), (n))
FAILS(void *, realloc, (void *p, size_t n), (p, n))

#endif
