/* dialect.h - an API over the same completions: what its requests say and how its answers are written.
 *
 * request.c runs a completion and respond.c sends it.  Neither knows which API the client speaks.
 *
 * begin, part, usage and whole begin to write an event: event_write() makes its slices (events.h).
 */
#ifndef DIALECT_H
#define DIALECT_H

#include <stdbool.h>
#include <stddef.h>

struct ask;
struct ask_limits;
struct choice;
struct problem;
struct request;

struct dialect {
	const char *path;              /* its route; the method is POST */
	const char *id_prefix;         /* of an answer's id */
	const char *object, *chunk;    /* the "object" of a whole answer, of an event */
	/* Everything up to the ids of the prompts, on any thread.  0, or -1 and *p. */
	int  (*parse)(struct ask *a, const char *body, size_t n, const struct ask_limits *l, struct problem *p);
	/* NULL, or begins event i of those before the first part.  False: there is none. */
	bool (*begin)(struct request *r, int i);
	void (*part)(struct request *r, struct choice *c); /* what the choice has to write */
	void (*usage)(struct request *r);        /* after the last part */
	const char *end;                         /* the last bytes of a stream */
	void (*whole)(struct request *r);        /* the answer without a stream */
	void (*problem)(struct request *r, const struct problem *p); /* an event, whole in r->event */
};

extern const struct dialect dialect_chat, dialect_completions;

#endif
