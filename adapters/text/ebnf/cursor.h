/* cursor.h - what the parsers of text grammars share: where they are, and literals. */
#ifndef CURSOR_H
#define CURSOR_H

#include "adapters/text/grammar/regex.h"
#include "rules.h"

struct cursor {
	struct rules *r;
	const char *s;
	size_t n, at;
	unsigned depth; /* of parentheses */
};

/* The byte k ahead, or 0 at the end (a grammar has no NUL). */
static inline char cursor_peek(const struct cursor *c, size_t k)
{
	return c->at < c->n && c->n - c->at > k ? c->s[c->at + k] : 0;
}

bool cursor_take(struct cursor *c, const char *word); /* if it comes next */
void cursor_blanks(struct cursor *c);                 /* spaces and tabs */
bool cursor_number(struct cursor *c, uint32_t *out);  /* up to RULES_BOUND; else an error */

/* "..." with the cursor at its quote: the expression; *one: the code point if it has exactly one, else
 * UINT32_MAX. */
uint32_t cursor_string(struct cursor *c, bool either_case, uint32_t *one);
uint32_t cursor_class(struct cursor *c); /* [...]: a node */
uint32_t cursor_range(struct cursor *c, uint32_t first, uint32_t last);

/* {m}, {m,}, {m,n} or {,n}, with the cursor behind the brace. */
bool cursor_bounds(struct cursor *c, uint32_t *min, uint32_t *max);

/* <[1000]>, <[1-5,9]>, <[^1]>, <[*]> or <name>, with the cursor at the first character: a node. */
uint32_t cursor_token(struct cursor *c, bool except);
uint32_t cursor_ids(struct cursor *c, bool except); /* (1, 2) */

#endif
