/* visible.h - what a terminal is sent: text, and nothing that acts on it.
 *
 * Answers of models, names of clients, errors of servers, texts in model files come from outside.  On a
 * terminal their control characters could set its title, read its clipboard or hide text.  So if standard
 * output or error is a terminal, all that is printed there by stdio passes one filter: C0 but tab and line
 * feed, and DEL, become ^X; C1, and what is no UTF-8, become U+FFFD.  Elsewhere bytes stay as they are. */
#ifndef VISIBLE_H
#define VISIBLE_H

#include <stddef.h>
#include <stdio.h>

struct visible { char part[4]; size_t n; }; /* a character of which only the beginning has come */

/* n bytes more, as they may be shown: at most 3 * (n + 3) bytes.  Returns how many. */
size_t visible(struct visible *v, const char *s, size_t n, char *out);

/* Once, at the start of a program. */
void visible_start(void);
/* The terminal itself, for lines that draw; else the stream. */
FILE *visible_raw(FILE *of);

#endif
