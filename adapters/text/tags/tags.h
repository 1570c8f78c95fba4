/* tags.h - structural tags: a tree of formats in JSON, some of them free text, to productions.
 *
 * Both forms are read: {"type": "structural_tag", "format": {..}}, and the older one with "structures" and
 * "triggers".  A string of a tag that has the spelling of a special token in it means that token, by its id:
 * text never matches a special token.  A field or a type that is not known is refused by name.
 */
#ifndef TAGS_H
#define TAGS_H

#include <jansson.h>

#include "adapters/text/grammar/grammar.h"

/* The symbol of the whole; -1: refused, and e has a JSON pointer. */
int32_t tags_compile(struct grammar *g, json_t *tag, struct grammar_error *e);

#endif
