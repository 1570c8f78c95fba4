/* pattern.h - regular expressions as people write them (ECMA-262), to expressions over bytes. */
#ifndef PATTERN_H
#define PATTERN_H

#include "regex.h"

struct grammar_error;

#define PATTERN_MOST (64 << 10)      /* bytes of a pattern */

enum pattern_flags {
	PATTERN_SEARCH = 1, /* the text contains a match (JSON Schema's "pattern"); else it is one */
	PATTERN_JSON = 2,   /* the language: bodies of JSON strings, without quotes, whose value matches */
};

/* REGEX_FAILED and *e: -EINVAL it is no pattern, -ENOTSUP it cannot be enforced, -E2BIG, -ENOMEM.  e->place
 * is "1:COLUMN", counted in bytes from 1. */
uint32_t pattern_parse(struct regexes *r, const char *s, size_t n, unsigned flags, struct grammar_error *e);

/* One character of the body of a JSON string, in all its spellings: raw, \n, \u000a.  No lone surrogates. */
uint32_t json_points(struct regexes *r, const struct regex_range *range, size_t n);
uint32_t json_char(struct regexes *r);                                /* any one */
uint32_t json_text(struct regexes *r, const char *s, size_t n);       /* exactly this valid UTF-8 */

#endif
