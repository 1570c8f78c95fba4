/* number.h - a double as the shortest decimal that reads back as the same double, the way Python's
 * repr() writes it: 1.0, 1e-05, -0.26282957196235657, 1e+16.
 *
 * No allocation and no locale; any thread may call it.  A number takes about 40 ns.
 */
#ifndef NUMBER_H
#define NUMBER_H

#include <stddef.h>

#define NUMBER_MAX 25                  /* bytes; the longest, -2.2250738585072014e-308, has 24 */

/* v is finite.  Writes at most NUMBER_MAX bytes without a NUL, and returns their number. */
size_t number_write(char *to, double v);

#endif
