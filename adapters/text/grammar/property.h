/* property.h - sets of characters by Unicode property, and their case. */
#ifndef PROPERTY_H
#define PROPERTY_H

#include "regex.h"

/* The characters of \p{NAME}: a general category ("Lu", "Letter", "gc=Nd"), a script ("Greek", "sc=Greek",
 * "scx=Greek") or a property ("Alphabetic").  The array lives as long as the process.  How many ranges, or
 * -EINVAL: there is no such property; -ENOMEM. */
int property_ranges(const char *name, size_t n, const struct regex_range **out);

/* Characters that differ from cp in case alone (Unicode's simple case folding), without cp: at most 4. */
unsigned property_cases(uint32_t cp, uint32_t out[4]);

/* All characters that have such others, ascending.  NULL: no memory. */
const uint32_t *property_cased(size_t *n);

#endif
