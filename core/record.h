/* record.h - traffic as it comes, for `slipring record`: when each request came, how long it was and
 * how long its answer, and which of its chunks were the same as another's.  A leaf.
 *
 *	slipring record --CONTROL_RECORD--> control.c -> record_start
 *	                <--- a descriptor --'
 *	clients.c -> record_request, record_end -> memory <- read by the tool, which asks nobody
 *
 * The memory is made by the daemon when somebody who may records, sealed so that only the daemon
 * writes, and given to that one; the connection stays, and its end ends the recording.  The daemon
 * never waits: entries go round, and a reader that is a whole round late has lost some, and knows it.
 *
 * A hash is of a chunk of RECORD_CHUNK tokens, all before it, and whom the KV cache shares it with;
 * keyed anew for each recording, so that it tells who is like whom and nothing else.  Ids of
 * prompts are there only if they were asked for, which only the daemon's own user and root may.
 */
#ifndef RECORD_H
#define RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTROL_RECORD 0x100u        /* in control_ask.knob: begin; its value: */
enum { RECORD_IDS = 1 };

#define RECORD_MAGIC   0x43525253u   /* "SRRC" */
#define RECORD_VERSION 1u
#define RECORD_CHUNK   16            /* tokens that a hash stands for */
#define RECORD_ROOM    (8u << 20)    /* bytes of entries */

/* Entries lie one after the other in room[], round and round; begin and end are counted in bytes
 * since the start, never back.  What lies before `claimed` - RECORD_ROOM may be overwritten. */
struct record_page {
	uint32_t magic, version, room, chunk;
	uint64_t start_ns;           /* MONOTONIC */
	_Alignas(64) uint64_t claimed; /* all up to here may be half written */
	uint64_t n;                  /* entries so far: those before `put`, or one more */
	uint64_t put;                /* all up to here is whole */
	_Alignas(64) unsigned char entry[RECORD_ROOM];
};

enum { RECORD_REQUEST = 1, RECORD_ANSWER = 2 };

struct record_entry {
	uint32_t bytes;              /* with what follows; a multiple of 8 */
	uint32_t kind;
	uint64_t n;                  /* of entries, from 0: gaps are losses */
	uint64_t id;                 /* of the request, from 1: an answer names the same */
	uint64_t at_ns;              /* MONOTONIC: when it came, when it ended */
	uint32_t n_prompt, n_tokens; /* REQUEST: max_tokens; ANSWER: how many came */
	int32_t  finish;             /* ANSWER: enum sched_finish or -errno */
	uint32_t n_hashes, n_ids;    /* REQUEST: uint64_t [n_hashes], int32_t [n_ids] follow; 0 of a prompt */
	uint32_t zero;               /*  too long to be here */
};

_Static_assert(sizeof(struct record_entry) == 56, "no padding");

/* The daemon's side, of the loop's thread.  All zero: nobody records. */
struct recorder {
	struct record_page *page;
	bool ids;
	uint64_t key, n, last_id;
};

/* Begin: *fd is for who asked, and the caller's to close.  0, -EBUSY, -errno. */
int  record_start(struct recorder *r, bool ids, uint64_t now, int *fd);
void record_stop(struct recorder *r);

/* A request was taken; its number, to be given back with its end, or 0: nobody records. */
uint64_t record_request(struct recorder *r, uint64_t now, uint64_t salt, const int32_t *prompt,
                        uint32_t n_prompt, uint32_t max_tokens);
void record_end(struct recorder *r, uint64_t id, uint64_t now, uint32_t n_tokens, int finish);

#endif
