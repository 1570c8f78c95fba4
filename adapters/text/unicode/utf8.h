/* utf8.h - decodes UTF-8 one character at a time and reports invalid bytes.
 *
 * Source: the Unicode Standard, table 3-7 (well-formed byte sequences) and section 3.9 (one
 * U+FFFD for each maximal subpart of an ill-formed one), as in Rust's from_utf8_lossy and
 * Python's errors="replace".
 */
#ifndef UTF8_H
#define UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_BAD     0xffffffffu   /* the bytes are no character: one U+FFFD */
#define UTF8_PARTIAL 0xfffffffeu   /* all n bytes are the beginning of a character */

/* Decode one character at s (n >= 1 bytes): returns the bytes used; *cp is its code point or one of the two
 * values above. */
unsigned utf8_next(const char *s, size_t n, uint32_t *cp);

unsigned utf8_put(uint32_t cp, char out[4]);

bool utf8_valid(const char *s, size_t n);

/* s with U+FFFD for invalid bytes, malloc'ed; *out_n is its length.  NULL: no memory. */
char *utf8_repair(const char *s, size_t n, size_t *out_n);

/* Unicode's property White_Space, which is \s of the pre-tokenizers. */
bool utf8_space(uint32_t cp);

#endif
