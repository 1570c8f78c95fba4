/* sealed.h - the contents of struct grammar: symbols, and the dots of its productions. */
#ifndef SEALED_H
#define SEALED_H

#include "grammar.h"
#include "regex.h"

enum symbol_kind { SYMBOL_LEXEME, SYMBOL_TOKEN, SYMBOL_UNTIL, SYMBOL_RULE, SYMBOL_REPEAT, SYMBOL_MEMBERS };

#define SYMBOL_NONE   (-1)
#define SYMBOL_START  (-2)           /* what the whole answer is completed as */

struct symbol {
	uint8_t kind;                /* enum symbol_kind */
	bool nullable;               /* derives "" */
	bool productive;             /* derives something */
	uint32_t expr;               /* LEXEME */
	uint32_t at, n;              /* TOKEN, UNTIL: ids[at .. at+n-1]; RULE: start[at .. at+n-1]; MEMBERS: at */
	int32_t item, separator;     /* REPEAT */
	uint32_t min, max;           /* REPEAT */
	uint32_t dot;                /* REPEAT, MEMBERS: its first dot */
};

/* A place in a production, before the symbol that is awaited.  A rule's dots stand in the order of its
 * production, with one after the last symbol.  A repetition has two: before its item, before its separator.
 * Members have one for each, then one for rest, then one for the separator. */
struct dot {
	int32_t symbol;              /* awaited; SYMBOL_NONE: the production is complete */
	int32_t owner;               /* the RULE, REPEAT or MEMBERS */
	bool last;                   /* of a production: nothing comes after this symbol */
};

struct production { int32_t rule; uint32_t at, n; };   /* body[at .. at+n-1] */

struct grammar {
	const struct sr_text *t;
	struct sr_grammar_options o;
	struct regexes *r;
	int failed;                  /* sticky: -ENOMEM, -E2BIG */
	struct symbol *symbol;
	uint32_t n_symbols, symbols_cap;
	struct production *production;
	uint32_t n_productions, productions_cap;
	int32_t *body;
	uint32_t n_body, body_cap;
	int32_t *ids;
	uint32_t n_ids, ids_cap;
	struct grammar_members *members;     /* group is a copy */
	uint32_t n_members, members_cap;
	int32_t *lexeme;             /* hash table of LEXEMEs by expr; [lexeme_mask + 1]; -1 = empty */
	uint32_t lexeme_mask, n_lexemes;
	/* sealed */
	int32_t begin;               /* the symbol of the whole answer */
	struct dot *dot;             /* the first two: the whole answer */
	uint32_t n_dots;
	uint64_t *usable;            /* [n_members] bit i: its symbol[i] is productive */
	uint32_t *start;             /* first dots of productions, by rule */
};

/* Make room for one more: doubles *at (of `size` bytes each).  False: no memory. */
bool grow(void *at, uint32_t *cap, uint32_t n, size_t size);

#endif
