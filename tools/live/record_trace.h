/* record_trace.h - what the three files of `slipring record` share: entries as they come from the daemon's
 * memory, and the trace that they make.  One thread. */
#ifndef RECORD_TRACE_H
#define RECORD_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "adapters/text/slipring-text.h"
#include "core/instance/record.h"

/* ---- the daemon's memory (record_tape.c) ---- */

struct tape {
	const struct record_page *page;
	uint64_t at;                 /* bytes read so far */
	uint64_t next;               /* number of the entry that should come now */
	uint64_t lost;               /* entries that were overwritten before they were read */
	unsigned char *copy;         /* [RECORD_ROOM] the entry that tape_next gave */
};

/* Map what the daemon gave.  0, -EPROTO another version, -errno. */
int  tape_open(struct tape *t, int fd);
void tape_close(struct tape *t);

/* The next whole entry, or NULL: none now. */
const struct record_entry *tape_next(struct tape *t);

/* ---- the trace (record_trace.c) ---- */

struct trace_limits { uint64_t requests, bytes; };

/* Requests in the order of their coming, each a line as soon as it and all before it have ended. */
struct trace;

/* Writes to `to`, which stays the caller's; text: also the prompts, decoded; NULL: not. */
int  trace_create(struct trace **out, FILE *to, const struct sr_text *text, uint64_t start_ns,
                  const struct trace_limits *limits);
void trace_free(struct trace *t);

/* 0; 1: a limit is reached, and no more is taken; -ENOMEM, -EIO. */
int  trace_take(struct trace *t, const struct record_entry *e);

struct trace_count {
	uint64_t requests;           /* lines written */
	uint64_t open;               /* still under way */
	uint64_t empty;              /* ended without a token: left out */
	uint64_t no_prompt;          /* too long to have their hashes recorded: left out */
	uint64_t chunks, repeated;   /* of those lines; of them seen before */
	uint64_t prompt, generated;  /* tokens */
	double   seconds;            /* from the first to the last arrival */
};
/* Write what has ended though something before it has not, and count.  0, -EIO. */
int  trace_finish(struct trace *t, struct trace_count *c);

#endif
