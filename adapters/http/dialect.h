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
struct out;
struct problem;
struct request;

struct dialect {
	const char *path;              /* its route; the method is POST */
	const char *id_prefix;         /* of an answer's id; behind one that ends with _ all is random */
	const char *object, *chunk;    /* the "object" of a whole answer, of an event */
	/* Everything up to the ids of the prompts, on any thread.  0, or -1 and *p. */
	int  (*parse)(struct ask *a, const char *body, size_t n, const struct ask_limits *l, struct problem *p);
	/* NULL, or begins event i of those before the first part.  False: there is none. */
	bool (*begin)(struct request *r, int i);
	void (*part)(struct request *r, struct choice *c); /* what the choice has to write */
	void (*usage)(struct request *r);        /* after the last part */
	void (*progress)(struct request *r);     /* of r->computed's prompt, if it was asked for */
	const char *end;                         /* the last bytes of a stream, or NULL */
	void (*whole)(struct request *r);        /* the answer without a stream */
	void (*problem)(struct request *r, const struct problem *p); /* an event, whole in r->event */

	const char *count_object;                /* what stands before the number of tokens that are counted */

	/* Of agents' APIs; the others have none of these. */
	bool at_once; /* a stream begins when the request is accepted, not with a token */
	void (*beat)(struct request *r);         /* an event after DIALECT_BEAT of silence */
	void (*refusal)(struct out *o, const struct problem *p); /* the body of an error; NULL: problem_json() */
};

#define DIALECT_BEAT 10000000000u                /* ns */

extern const struct dialect dialect_chat, dialect_completions, dialect_messages, dialect_responses,
                            dialect_generate;

#endif
