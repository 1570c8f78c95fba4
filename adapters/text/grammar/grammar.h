/* grammar.h - a grammar under construction: terminals, rules and counted repetitions.
 *
 * A front end (schema.h, ebnf.h, tags.h) makes symbols and productions; grammar_seal() ends this.
 * Terminals are expressions over bytes (regex.h), or token ids.  The language is exact: a lexeme is not
 * greedy, and the engine follows every way to cut the bytes.  Left recursion, right recursion, ambiguity
 * and nullable rules are right.
 *
 * Symbols are numbers from 0; -1 is a failure, which is sticky: a function that is given -1 returns -1, and
 * grammar_seal() says why.  One thread builds a grammar.
 *
 * What costs little while text is generated:
 * - One lexeme for what is one word: a string with its quotes, a number, `"key":` as a whole.  Then a mask
 *   inside
 *   it is made once for all places where it stands.
 * - An alternative of many words as one lexeme (regex_or), not as many productions.
 * - grammar_repeat() and grammar_members() for counts; they are never unrolled.
 */
#ifndef GRAMMAR_H
#define GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/text/slipring-text.h"

struct grammar;
struct regexes;

struct grammar_error {
	int code;                    /* -errno, or 0 */
	char place[256];             /* a JSON pointer, or line:column; "" = the whole */
	char message[512];           /* one sentence */
};

/* Write an error; returns code.  place may be NULL. */
__attribute__((format(printf, 4, 5)))
int grammar_refuse(struct grammar_error *e, int code, const char *place, const char *fmt, ...);

#define GRAMMAR_MANY UINT32_MAX              /* no upper bound */
#define GRAMMAR_MEMBERS 64

/* options NULL = all zero; what they point to must live as long as the grammar is built.  NULL: no memory. */
struct grammar *grammar_create(const struct sr_text *t, const struct sr_grammar_options *o);
void grammar_free(struct grammar *g);
struct regexes *grammar_regexes(struct grammar *g);
const struct sr_text *grammar_text(const struct grammar *g);
const struct sr_grammar_options *grammar_options(const struct grammar *g);

/* A terminal: the byte strings of expr (regex.h), which may include the empty one. */
int32_t grammar_lexeme(struct grammar *g, uint32_t expr);
/* A terminal: one token, which is one of these ids.  For special tokens, which text never matches. */
int32_t grammar_token(struct grammar *g, const int32_t *ids, uint32_t n);
/* A terminal: any tokens, special ones too, up to and with the first of these ids. */
int32_t grammar_until(struct grammar *g, const int32_t *ids, uint32_t n);

/* A new nonterminal without productions, and one production of it; n 0 = nothing. */
int32_t grammar_rule(struct grammar *g);
void grammar_produce(struct grammar *g, int32_t rule, const int32_t *symbol, uint32_t n);

/* symbol, min to max times (GRAMMAR_MANY), with separator between two of them (-1 = none). */
int32_t grammar_repeat(struct grammar *g, int32_t symbol, uint32_t min, uint32_t max, int32_t separator);

/* Distinct members: each at most once, `separator` between two of them (-1 = none).  For properties in any
 * order, uniqueItems over few values, and counts of members. */
struct grammar_members {
	int32_t symbol[GRAMMAR_MEMBERS];     /* none of them may be nullable */
	uint32_t n;
	uint64_t required;           /* bit i: symbol[i] must come */
	const uint64_t *group;       /* [n_groups] of each set at least one must come */
	uint32_t n_groups;           /* at most 16; only with max >= n, with rest only with GRAMMAR_MANY */
	bool ordered;                /* they come in the order of their numbers */
	int32_t rest;                /* any number of these besides: last if ordered, anywhere if not; or -1 */
	uint32_t min, max;           /* of all together, rest included */
	int32_t separator;
};
int32_t grammar_members(struct grammar *g, const struct grammar_members *m);

/* Can this symbol derive any text at all?  For messages that name a rule; after its productions are made.
 * 1, 0, or why it is not known: -ENOMEM, -E2BIG. */
int grammar_productive(struct grammar *g, int32_t symbol);

/* 0; -EINVAL: nothing can be derived from start; -E2BIG, -ENOMEM: a budget was passed on the way here.  After
 * this nothing is added. */
int grammar_seal(struct grammar *g, int32_t start, struct grammar_error *e);

#endif
