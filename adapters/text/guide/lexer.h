/* lexer.h - the states of lexemes as bytes come: the derivatives of their expressions, with dense
 * transitions.
 *
 * A state is made on first use.  LEX_DEAD: no string of the lexeme begins so; every other state is live. */
#ifndef LEXER_H
#define LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LEX_DEAD   0u
#define LEX_FAILED UINT32_MAX        /* over a budget, or no memory */

struct regexes;

struct lex {
	uint32_t expr;
	bool nullable;               /* the lexeme may end here */
	bool more;                   /* it may go on; true also if only its transitions tell that it may not */
	bool wide;                   /* by at least LEX_WIDE different bytes; with next */
	uint32_t *next;              /* [256], or NULL: not made yet */
	uint32_t clamped;            /* the state with far counts clamped; LEX_FAILED: not known yet */
	uint32_t inside;             /* mask.c's; 0 = not made */
	uint64_t first[4];           /* bytes by which it goes on; with next */
};

#define LEX_WIDE 32

struct lexer {
	struct regexes *r;
	struct lex *lex;
	uint32_t n, cap;
	uint32_t *slot, mask;        /* hash table by expression; 0 = empty, else number + 1 */
	size_t bytes;                /* of transitions */
};

int  lexer_create(struct lexer *x, struct regexes *r);
void lexer_free(struct lexer *x);
uint32_t lexer_state(struct lexer *x, uint32_t expr);
bool lexer_fill(struct lexer *x, uint32_t lex);      /* make lex[].next */
uint32_t lexer_clamped(struct lexer *x, uint32_t lex, uint32_t most);

static inline uint32_t lexer_step(struct lexer *x, uint32_t lex, uint8_t byte)
{
	if (!x->lex[lex].next && !lexer_fill(x, lex))
		return LEX_FAILED;
	return x->lex[lex].next[byte];
}

#endif
