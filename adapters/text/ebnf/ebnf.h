/* ebnf.h - text grammars: GBNF as llama.cpp and xgrammar write it, and the common part of Lark.
 *
 * GBNF has rules `name ::= ..` and begins with `root`.  A text without ::= is Lark, and begins with `start`.
 * All rules are followed exactly: terminals are not greedy, left recursion and ambiguity are right.  What
 * would change the answer in a way that is not implemented is refused by name.
 */
#ifndef EBNF_H
#define EBNF_H

#include "adapters/text/grammar/grammar.h"
#include "rules.h"

/* The symbol of the grammar's first rule; -1: refused, and e has the line and column. */
int32_t ebnf_compile(struct grammar *g, const char *s, size_t n, struct grammar_error *e);

/* For ebnf_compile(): the rules of a Lark grammar.  0 or -1. */
int lark_parse(struct rules *r);

#endif
