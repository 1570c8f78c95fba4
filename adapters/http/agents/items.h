/* items.h - an answer as a list of what it has: thoughts, texts, calls.  The dialects of agents write it so.
 *
 * Lives with its request.  An allocation that fails leaves `failed` set.
 */
#ifndef ITEMS_H
#define ITEMS_H

#include <stdbool.h>

#include "adapters/http/said.h"

struct choice;

struct item {
	enum said_kind kind;           /* TEXT, REASONING or CALL */
	bool open;                     /* more of it may come */
	char id[48];                   /* of the item */
	struct out call_id, name, text; /* text: or the arguments, as JSON */
	struct out scores;             /* of a text: log-probabilities as JSON, with commas between them */
};

struct items {
	struct item *item;             /* [n] */
	int n, cap;
	bool failed;
	/* /v1/responses */
	int n_events;                  /* sent so far */
	bool closing;                  /* the last item's end is being written */
	size_t scored;                 /* bytes of its scores that earlier events had */
};

/* The item that this part belongs to; a new one if `*fresh`.  NULL: no memory.  s: the part's bytes. */
struct item *items_add(struct items *l, const struct said_part *p, const char *s, bool *fresh);
/* A whole answer, after its end. */
void items_whole(struct items *l, const struct choice *c);
struct item *items_last(struct items *l);  /* NULL: there is none */
bool items_call(const struct items *l);    /* is there a call? */
void items_free(struct items *l);

#endif
