/* machine_finding.c - a line of doctor: what there is, what is needed, and what to do. */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>

void machine_say(struct finding *f, enum finding_level level, const char *need, const char *how,
                 const char *fmt, ...)
{
	va_list ap;

	f->level = level;
	snprintf(f->need, sizeof(f->need), "%s", need);
	snprintf(f->how, sizeof(f->how), "%s", level == FINDING_FINE ? "" : how);
	va_start(ap, fmt);
	vsnprintf(f->have, sizeof(f->have), fmt, ap);
	va_end(ap);
}
