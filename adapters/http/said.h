/* said.h - what an answer says, as parts: thoughts, text and tool calls, split off its text as it comes.
 *
 * A stream takes parts one by one.  A whole answer is split at its end.  Lives with its choice.
 */
#ifndef SAID_H
#define SAID_H

#include <stdbool.h>
#include <stddef.h>

#include "adapters/http/json/out.h"
#include "adapters/text/calls/calls.h"

struct ask;
struct said;

enum said_kind { SAID_NOTHING, SAID_TEXT, SAID_REASONING, SAID_CALL, SAID_ARGUMENTS };

struct said_part {
	enum said_kind kind;
	int call;                      /* CALL, ARGUMENTS: its index */
	size_t n_id, n;                /* CALL: bytes of its id, and of id and name together; else its bytes */
};

/* NULL: no memory.  It keeps the tools of `a`. */
struct said *said_open(const struct ask *a, const struct calls *c);
void said_close(struct said *s);

/* A stream: split text[0..n). */
void said_text(struct said *s, const char *text, size_t n);
void said_text_ends(struct said *s);
size_t said_parts(const struct said *s);                     /* that are not written yet */
struct said_part said_first(const struct said *s);           /* NOTHING: there is none */
const char *said_bytes(const struct said *s);                /* of the first part */
void said_written(struct said *s, const struct said_part *p);

/* A whole answer.  A call that is malformed makes all calls text, as does one that is cut, unless others came
 * before it: these are given. */
void said_whole(struct said *s, const char *text, size_t n);
const struct out *said_content(const struct said *s);
const struct out *said_reasoning(const struct said *s);
const struct out *said_calls(const struct said *s);          /* JSON objects with commas between them */

int  said_n_calls(const struct said *s);
bool said_lost(const struct said *s);                        /* an allocation failed */

#endif
