/* adapt.h - chats for templates that do not take all of them: tools as text where a template knows none, and
 * system messages where it refuses them. */
#ifndef ADAPT_H
#define ADAPT_H

#include <jansson.h>

/* Each does what the ones before it do. */
enum adapt {
	ADAPT_NOTHING,
	ADAPT_LATER,                   /* a system message behind others becomes a user's */
	ADAPT_ALL                      /* the first system message begins the first user's */
};

/* A new list, or NULL: no memory.  tools: described in the first system message, and calls and results in the
 * history are text; NULL: not.  The messages have the right shape (chat_read_messages). */
json_t *adapt_messages(const json_t *messages, enum adapt how, const json_t *tools);

#endif
