/* record_trace.h - what the three files of `slipring record` share: entries from the daemon's memory, and
 * the trace made from them.  One thread. */
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
	uint64_t next;               /* number of the entry expected next */
	uint64_t lost;               /* entries that were overwritten before they were read */
	unsigned char *copy;         /* [RECORD_ROOM] the entry that tape_next returned */
};

/* Map the memory that the daemon sent.  0, or -EPROTO: another version, or -errno. */
int  tape_open(struct tape *t, int fd);
void tape_close(struct tape *t);

/* The next whole entry; NULL: there is none now. */
const struct record_entry *tape_next(struct tape *t);

/* ---- the trace (record_trace.c) ---- */

struct trace_limits { uint64_t requests, bytes; };

/* Requests in the order of arrival.  Each becomes a line once it and all earlier ones have ended. */
struct trace;

/* Writes to `to`, which the caller owns.  text: decodes the prompts and writes them too; NULL: does not. */
int  trace_create(struct trace **out, FILE *to, const struct sr_text *text, uint64_t start_ns,
                  const struct trace_limits *limits);
void trace_free(struct trace *t);

/* Returns 0; 1: a limit is reached and no more is taken; -ENOMEM, -EIO. */
int  trace_take(struct trace *t, const struct record_entry *e);

struct trace_count {
	uint64_t requests;           /* lines written */
	uint64_t open;               /* still under way */
	uint64_t empty;              /* ended without a token: left out */
	uint64_t no_prompt;          /* too long for recorded hashes: left out */
	uint64_t chunks, repeated;   /* chunks in those lines; chunks seen before */
	uint64_t prompt, generated;  /* tokens */
	double   seconds;            /* from the first to the last arrival */
};
/* Write ended requests that wait for earlier ones, and fill the counts.  0, -EIO. */
int  trace_finish(struct trace *t, struct trace_count *c);

#endif
