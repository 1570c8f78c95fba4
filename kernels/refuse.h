/* refuse.h - how a back end says why it failed.  core/instance/refuse.h does the same for the other programs;
 * kernels include nothing of core, because the CUDA back end is a library of its own. */
#ifndef KERNELS_REFUSE_H
#define KERNELS_REFUSE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* Write one sentence into err and return rc. */
__attribute__((format(printf, 4, 5), unused))
static int refuse(int rc, char *err, size_t errlen, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err, errlen, fmt, ap);
	va_end(ap);
	return rc;
}

#endif
