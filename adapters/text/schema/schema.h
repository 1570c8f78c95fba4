/* schema.h - JSON Schema to productions.
 *
 * Drafts 4 to 2020-12.  A keyword that one of them knows is enforced exactly, or the schema is refused with
 * the keyword and its JSON pointer; with the option `lenient` such a keyword is ignored, and named in the
 * error's message.  An unknown keyword is an annotation.
 *
 * Each schema becomes a set of values by type: null, true and false; numbers and strings as expressions over
 * bytes (regex.h) or lists of values; lists of array shapes and object shapes.  Intersection, union and
 * complement of such sets are sets again, so allOf, oneOf, not and if/then/else need no rules of their own.
 * Sets are made on first use, which is what ends recursion.
 */
#ifndef SCHEMA_H
#define SCHEMA_H

#include <jansson.h>
#include <stdint.h>

#include "adapters/text/grammar/grammar.h"

#define SCHEMA_BYTES (4u << 20)        /* the longest schema text that a caller should read */

/* The symbol of one JSON value that the schema allows, without whitespace around it.  References are resolved
 * within `schema`. `at` is its place in the caller's document, for messages: a JSON pointer behind a number
 * sign. -1: refused, and e says why. e->code is -ENOTSUP for a keyword that cannot be enforced, -EINVAL for
 * a wrong schema, -E2BIG over a budget, -ENOMEM. A message with the code 0 names what was left out. */
int32_t schema_compile(struct grammar *g, json_t *schema, const char *at, struct grammar_error *e);

/* The patterns of a format (ECMA-262, the whole text): up to two, then NULL.  NULL: it is not known, which
 * makes it an annotation. */
const char *const *schema_format(const char *name);

#endif
