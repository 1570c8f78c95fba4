/* batch.h - slipring batch: what its files share.
 *
 *	batch.c    options, requests under way, progress, the end
 *	lines.c    the lines that come in, the lines that go out, and which are done already
 *	private.c  a slipring-http of our own, on a Unix socket that nobody else finds
 */
#ifndef BATCH_H
#define BATCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* ---- lines.c ---- */

struct lines {
	FILE *in;
	int out;                     /* locked, and only appended to: one write for each line */
	const char *in_name, *out_name;
	char *text;                  /* the line read last */
	size_t cap;
	uint64_t line;               /* its number, from 1 */
	json_t *done;                /* custom_id: true, of the lines in `out` */
	json_t *failed;              /* number of a line: true, where `out` has no custom_id */
	json_t *taken;               /* custom_id: number of the line that has it */
	uint64_t n_done;             /* lines that were in `out` at the start */
	char run[17];                /* names this run in the ids of requests */
};

/* A request of the input, checked as far as needs no server. */
struct line {
	uint64_t number;
	char *custom_id, *path, *body;
	size_t n_body;
};

/* 0, or -errno and a sentence.  A line in `out` without its end is cut off: it was being written when its
 * run was killed. */
int  lines_open(struct lines *l, const char *in, const char *out, bool afresh, char *err, size_t errlen);
void lines_close(struct lines *l);
/* The next line that is not done.  1; 0: there is none; -EINVAL: it is wrong, and its error was written;
 * another -errno: reading or writing failed. */
int  lines_next(struct lines *l, struct line *to);
void line_free(struct line *l);
/* Its answer: body is JSON or, if it is not, text.  0 or -errno. */
int  lines_answer(struct lines *l, const struct line *q, long status, const char *body, size_t n, bool json);
/* There is no answer. */
int  lines_error(struct lines *l, const char *custom_id, uint64_t number, const char *code, const char *why);

/* ---- private.c ---- */

struct private_server { pid_t pid; char dir[64], socket[108]; };

/* Its command line, put together by the caller. */
#define PRIVATE_WORDS 112
struct private_words { const char *word[PRIVATE_WORDS]; int n; };
bool private_word(struct private_words *w, const char *word); /* false: there is no room */

/* Start it with these words after its own, and wait until it serves.  0, or -errno and a sentence. */
int  private_open(struct private_server *s, const struct private_words *words, char *err, size_t errlen);
void private_close(struct private_server *s);
bool private_alive(const struct private_server *s);

#endif
