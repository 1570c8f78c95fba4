/* agents.h - what the translations of agents' APIs to chats share (messages.c, responses.c). */
#ifndef AGENTS_H
#define AGENTS_H

#include "openai.h"

/* Copy the fields that mean in both APIs what they mean in a chat, and `names` up to a NULL, if given. */
int agents_copy(json_t *to, const json_t *from, const char *const *names, struct problem *p);
/* A member that is not NULL; *p and -1: there was no memory for it. */
int agents_set(json_t *o, const char *key, json_t *v, struct problem *p);
int agents_append(json_t *list, json_t *v, struct problem *p);

/* A text, or the texts of the parts of a list as parts of a message; other parts are refused or dropped. */
int agents_parts(struct ask *a, json_t *content, json_t *parts, const char *at, struct problem *p);
/* Add a part. */
int agents_text(json_t *parts, json_t *text, struct problem *p);

/* A function of a chat; NULL members are left out. */
json_t *agents_tool(const char *name, json_t *description, json_t *parameters, json_t *strict);
/* Add a call to the message; its arguments are made JSON if they are none. */
int agents_call(json_t *message, json_t *id, const char *name, json_t *arguments, struct problem *p);

/* A message of this role, at the end of the list; NULL and *p: no memory. */
json_t *agents_message(json_t *list, const char *role, struct problem *p);

int agents_schema(struct ask *a, json_t *schema, struct problem *p); /* the answer is JSON of this schema */
int agents_effort(struct ask *a, const json_t *effort, struct problem *p);
int agents_stream(struct ask *a, struct problem *p);                 /* with its usage, whatever is asked */

#endif
