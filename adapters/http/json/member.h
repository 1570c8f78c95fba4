/* member.h - one member of a JSON object, found without reading the rest of the text. */
#ifndef HTTP_MEMBER_H
#define HTTP_MEMBER_H

#include <stdbool.h>
#include <stddef.h>

/* The text of the first member `name` of the object in s[n], if it is a string without escapes, shorter than
 * `cap`.  False: there is none, or the text is no object.  The rest is not checked. */
bool member_text(const char *s, size_t n, const char *name, char *out, size_t cap);

#endif
