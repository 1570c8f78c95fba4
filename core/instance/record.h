/* record.h - traffic as it arrives, for `slipring record`: when each request came, its length and its
 * answer's length, and which of its chunks equal another's.  A leaf.
 *
 *	slipring record --CONTROL_RECORD--> control.c -> record_start
 *	                <--- a descriptor --'
 *	clients/serve.c -> record_request, record_end -> memory <- read by the tool, without messages
 *
 * The daemon makes the memory when an authorized client starts to record.  The memory is sealed so that
 * only the daemon writes it, and its descriptor is sent to that client.  The connection stays open, and
 * its end ends the recording.  The daemon never waits: entries go round in a ring.  A reader that is a
 * whole round late has lost entries, and can tell that it has.
 *
 * A hash covers a chunk of RECORD_CHUNK tokens, all before it, and the scope of its prefix cache.  Each
 * recording has a new key, so hashes show only which chunks are equal.  Token ids of prompts are
 * recorded only if asked for, and only the daemon's own user and root may ask.
 */
#ifndef RECORD_H
#define RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTROL_RECORD 0x100u        /* as control_ask.knob: begin; value: RECORD_IDS or 0 */
enum { RECORD_IDS = 1 };

#define RECORD_MAGIC   0x43525253u   /* "SRRC" */
#define RECORD_VERSION 1u
#define RECORD_CHUNK   16            /* tokens per hash */
#define RECORD_ROOM    (8u << 20)    /* bytes of entries */

/* Entries follow each other in entry[], which wraps.  Positions count bytes since the start and never
 * go back.  Bytes before `claimed` - RECORD_ROOM may be overwritten. */
struct record_page {
	uint32_t magic, version, room, chunk;
	uint64_t start_ns;           /* MONOTONIC */
	_Alignas(64) uint64_t claimed; /* bytes before this may be half written */
	uint64_t n;                  /* entries so far: those before `put`, or one more */
	uint64_t put;                /* all bytes before this are complete */
	_Alignas(64) unsigned char entry[RECORD_ROOM];
};

enum { RECORD_REQUEST = 1, RECORD_ANSWER = 2 };

struct record_entry {
	uint32_t bytes;              /* with the arrays that follow; a multiple of 8 */
	uint32_t kind;
	uint64_t n;                  /* number of the entry, from 0: gaps are losses */
	uint64_t id;                 /* of the request, from 1; its answer has the same */
	uint64_t at_ns;              /* MONOTONIC: when the request came or the answer ended */
	uint32_t n_prompt, n_tokens; /* REQUEST: max_tokens; ANSWER: tokens of the answer */
	int32_t  finish;             /* ANSWER: enum sched_finish or -errno */
	uint32_t n_hashes, n_ids;    /* REQUEST: uint64_t [n_hashes], int32_t [n_ids] follow; 0 if too long */
	uint32_t zero;               /* must be 0 */
};

_Static_assert(sizeof(struct record_entry) == 56, "no padding");

/* The daemon's side, for the loop's thread.  All zero: no recording. */
struct recorder {
	struct record_page *page;
	bool ids;
	uint64_t key, n, last_id;
};

/* Begin: *fd goes to the client; the caller closes it.  0, -EBUSY, -errno. */
int  record_start(struct recorder *r, bool ids, uint64_t now, int *fd);
void record_stop(struct recorder *r);

/* Record a request that was taken.  Returns its number, to pass to record_end; 0: no recording. */
uint64_t record_request(struct recorder *r, uint64_t now, uint64_t salt, const int32_t *prompt,
                        uint32_t n_prompt, uint32_t max_tokens);
void record_end(struct recorder *r, uint64_t id, uint64_t now, uint32_t n_tokens, int finish);

#endif
