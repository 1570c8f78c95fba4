/* visible.h - sends a terminal only text, and nothing that controls it.
 *
 * Models' answers, clients' names, servers' errors and texts in model files come from outside.  On a terminal
 * their control characters could set its title, read its clipboard or hide text.  So if standard output or
 * error is a terminal, everything that stdio prints there passes one filter.  DEL and C0, except tab and line
 * feed, become ^X.  C1 and bytes that are not UTF-8 become U+FFFD.  Elsewhere bytes stay unchanged. */
#ifndef VISIBLE_H
#define VISIBLE_H

#include <stddef.h>
#include <stdio.h>

struct visible { char part[4]; size_t n; }; /* the first bytes of an incomplete character */

/* Filter n more bytes into `out`, at most 3 * (n + 3) bytes.  Returns how many it wrote. */
size_t visible(struct visible *v, const char *s, size_t n, char *out);

/* Call this once at the start of a program. */
void visible_start(void);
/* The unfiltered terminal, for code that draws lines; the stream itself if there is no terminal. */
FILE *visible_raw(FILE *of);

#endif
