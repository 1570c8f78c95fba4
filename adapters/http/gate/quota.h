/* quota.h - what each key has used, and how much of its limits is left.
 *
 * One table for all adapter processes of an instance, in memory allocated before the fork.  So limits hold
 * for all processes together (--api-server-count).  A row belongs to a name of the key file, or to a key
 * without one, for the life of the adapter.
 *
 * A limit per minute is a token bucket that holds a minute's worth and is refilled evenly (the virtual
 * scheduling form of GCRA: one word says until when the bucket is used up).  When a request is admitted it
 * takes the tokens of its prompts and those that its answers may have.  At its end it gives back what it did
 * not use; what it used beyond may overdraw the bucket.
 */
#ifndef QUOTA_H
#define QUOTA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUOTA_ROWS      1024
#define QUOTA_PROCESSES 64       /* the most that --api-server-count allows */
#define QUOTA_NAME      48
#define QUOTA_LINES     320      /* bytes of the header lines */

struct quota_limits {            /* of a name; 0 = none */
	uint32_t rpm, tpm;       /* requests and tokens a minute */
	uint32_t parallel;       /* answers under way */
};

enum quota_refusal { QUOTA_OK, QUOTA_REQUESTS, QUOTA_TOKENS, QUOTA_PARALLEL, N_QUOTA };

struct quota_row {
	_Atomic uint64_t tenant;                 /* 0: the row is free */
	_Atomic uint32_t order;                  /* from 1, in order of arrival */
	char name[QUOTA_NAME];
	_Atomic uint64_t until[2];               /* requests, tokens: when the bucket is full again; 1/64 ns */
	_Atomic uint32_t under_way[QUOTA_PROCESSES];
	_Atomic uint64_t requests, refused[N_QUOTA];
	_Atomic uint64_t prompt, cached, answer; /* tokens */
};

struct quota_table { struct quota_row row[QUOTA_ROWS]; _Atomic uint32_t n; };

/* The row of a tenant, made if there is none; NULL: the table is full. */
struct quota_row *quota_row(struct quota_table *t, uint64_t tenant, const char *name);
/* A process begins: what one of the same number left under way is over. */
void quota_begin(struct quota_table *t, int process);

struct quota_wait { uint64_t ns; bool never; }; /* until it may be tried again; never: it is too large */

/* A request comes.  QUOTA_OK: it is counted, and quota_leave() must follow. */
enum quota_refusal quota_enter(struct quota_row *r, const struct quota_limits *l, int process, uint64_t now,
                               struct quota_wait *wait);
/* It has n answers beside the one that quota_enter() counted.  Only if QUOTA_OK they are counted, too. */
enum quota_refusal quota_answers(struct quota_row *r, const struct quota_limits *l, int process, uint32_t n);
void quota_leave(struct quota_row *r, int process, uint32_t answers);
/* Take n tokens: its prompts', and those that its answers may have. */
enum quota_refusal quota_tokens(struct quota_row *r, const struct quota_limits *l, uint64_t n, uint64_t now,
                                struct quota_wait *wait);
/* Its end: what it used, and what quota_tokens() took for its answers. */
void quota_used(struct quota_row *r, const struct quota_limits *l, uint64_t prompt, uint64_t cached,
                uint64_t answer, uint64_t taken, uint64_t now);
uint32_t quota_under_way(const struct quota_row *r);

/* Header lines in OpenAI's names: limits, what is left, and when the bucket is full again.  "" without
 * limits. */
const char *quota_lines(char out[QUOTA_LINES], const struct quota_row *r, const struct quota_limits *l,
                        uint64_t now);

#endif
