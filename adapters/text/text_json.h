/* text_json.h - JSON from outside as a tree, within bounds: what a request's body, the arguments of a tool
 * call and the context of sr_text_chat() are read with.
 *
 * It refuses duplicate keys, lone surrogates, invalid UTF-8, and NUL in a key.  NUL is allowed in a text.
 */
#ifndef TEXT_JSON_H
#define TEXT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define TEXT_JSON_DEPTH  128
#define TEXT_JSON_VALUES (2u << 20) /* numbers, strings, ..: bounds the memory of a tree */

/* Parse s and subtract its values from *left.  -E2BIG: deeper than TEXT_JSON_DEPTH, or more values than
 * *left; -EINVAL: not JSON; -ENOMEM.  e->text says why: after -E2BIG "is nested ..", to follow a subject. */
int text_json_read(json_t **out, const char *s, size_t n, size_t *left, json_error_t *e);

/* Set these with json_set_alloc_funcs before any other call to jansson.  Without them jansson may write past
 * its blocks when memory is short. */
void *text_json_take(size_t n);
void text_json_give(void *p);

bool text_json_given(const json_t *object, const char *name); /* present and not null */
bool text_json_true(const json_t *v);                         /* as Python's bool(); false for NULL */
const char *text_json_type(const json_t *v);                  /* "a string", for messages */

#endif
