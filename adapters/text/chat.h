/* chat.h - the one way from messages to the text of a prompt.  The HTTP adapter fills a struct chat_input
 * from a request; sr_text_chat() fills one for all who have the messages as JSON text.
 *
 * chat_read_inputs() and chat_read_messages() check what needs only the JSON, so that a wrong chat costs no
 * rendering; chat_prompt() renders.  No I/O and no globals; any thread may run them.
 */
#ifndef CHAT_H
#define CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sr_text;

/* ---- templates ---- */

struct chat_template;   /* compiled; read-only, any thread */

int  chat_template_open(struct chat_template **out, const char *source, char *err, size_t errlen);
void chat_template_close(struct chat_template *t);
/* The model's own template for chats with tools; NULL: it has none. */
const char *chat_source(const struct sr_text *t);

/* The form in which a template gets the content of a message: one text, or a list of parts. */
enum chat_content { CHAT_CONTENT_AUTO /* as its source reads it */, CHAT_CONTENT_TEXT, CHAT_CONTENT_PARTS };

/* ---- chats ---- */

/* A message whose shape is right. */
struct chat_message {
	json_t *given;
	json_t **text;                /* [n_text] the strings of its content, in order */
	size_t n_text;
};

struct chat_input {
	/* The caller's JSON, which outlives the chat; NULL = not given. */
	json_t *messages, *tools, *documents;
	json_t *variables;            /* of the template; they win over all but messages and tools */
	const char *reasoning_effort;
	bool add_generation_prompt;
	bool continue_final;          /* the answer continues the last message */
	bool tools_optional;          /* tools that the template does not read are omitted, not refused */
	const struct chat_template *own; /* instead of the model's */
	enum chat_content content;
	struct chat_message *message; /* [n_messages], from chat_read_messages() to chat_free() */
	size_t n_messages;
};

enum chat_fault {
	CHAT_MEMORY,
	CHAT_SHAPE,                   /* a value of the wrong type; field says where */
	CHAT_WRONG,                   /* a value or combination that cannot be */
	CHAT_NO_TEMPLATE,             /* the model has none */
	CHAT_UNREAD,                  /* field is given, but the template does not read it */
	CHAT_TEMPLATE                 /* the template failed */
};

struct chat_error {
	enum chat_fault fault;
	char field[64];               /* "messages.0.role" */
	char message[512];            /* one sentence */
};

/* Each returns 0 or a length, or -errno and *e. */

/* Take documents, chat_template_kwargs (as variables) from the object that the caller's fields are from, and
 * check them, reasoning_effort and continue_final. */
int chat_read_inputs(struct chat_input *c, json_t *object, struct chat_error *e);
int chat_read_messages(struct chat_input *c, json_t *messages, struct chat_error *e);
/* *out: malloc'ed, NUL-terminated. */
/* Does its template show tools? */
bool chat_shows_tools(const struct sr_text *t, const struct chat_input *c);
int64_t chat_prompt(const struct sr_text *t, const struct chat_input *c, char **out, struct chat_error *e);
void chat_free(struct chat_input *c);

#endif
