/* terminal.h - a conversation in a terminal: lines typed with editing and a history (libedit), and text that
 * comes in pieces, whose words are not broken at the right edge. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct terminal;

/* Lines from stdin, which is a terminal as stderr is; the prompt goes to stderr.  A signal that sets
 * *interrupted ends a line.  0 or -ENOMEM. */
int  terminal_open(struct terminal **out, const volatile sig_atomic_t *interrupted);
void terminal_close(struct terminal *t);
/* The next line without its end, valid until the next call.  Its length; -ENODATA: there is none any more;
 * -EINTR: *interrupted ended it. */
ssize_t terminal_line(struct terminal *t, const char **line);

#define WORD_BYTES 256

/* Text on its way to `to`.  columns 0: it passes unchanged.  A word is held until it is complete. */
struct words {
	FILE  *to;
	int    columns;         /* of the terminal */
	int    column;          /* where the next character goes */
	int    width;           /* columns of `word` */
	size_t n;
	char   word[WORD_BYTES];
};

/* The columns of the terminal that `to` is; 0: it is none. */
int  words_columns(FILE *to);
void words_put(struct words *w, const char *s, size_t n);
void words_end(struct words *w);    /* the rest of the last word */

#endif
