/* ceilings.h - the most that this machine's hardware can do.  `slipring doctor --measure` measures it
 * once and keeps it in a file, so that a benchmark can report how far from it a run was. */
#ifndef CEILINGS_H
#define CEILINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "machine.h"

struct ceilings {
	char   cpu[100];              /* the processor's name, as measured */
	int    cores;                 /* those that this process may use; measured all at once */
	double bytes_s;               /* reading memory past the caches */
	double int8_s, float_s;       /* operations of products of bytes, of floats; 0: unknown */
	double pcie_s;                /* bytes between host and device; 0: no device measured */
	char   date[32];
};

/* Read $XDG_CACHE_HOME/slipring/ceilings.json.  0, -ENOENT, or -EINVAL and a sentence that names file
 * and field; -ESTALE: measured on another processor, or with other cores. */
int  ceilings_load(struct ceilings *c, char *err, size_t errlen);

/* Measure, save the result, and make a row of the table from it. */
void ceilings_look(struct finding *out);

#endif
