/* rules.h - named rules as a text grammar writes them (ebnf.c, lark.c), turned into symbols of grammar.h.
 *
 * A parser puts the nodes of one rule after another, children before parents, and ends the rule with
 * rules_define().  rules_emit() then resolves names, makes one terminal of each part that needs no recursion,
 * and productions of the rest.  Which parts become one terminal changes the speed, never the language.
 *
 * Node numbers are indices.  A failure (memory, a limit) is sticky: later calls do nothing, and rules_emit()
 * returns -1.  One thread; all memory is the struct's own.
 */
#ifndef RULES_H
#define RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/text/grammar/grammar.h"

#define RULES_TEXT  (4u << 20) /* bytes of one grammar */
#define RULES_DEPTH 128        /* parentheses within parentheses */
#define RULES_NODES 500000u
#define RULES_BOUND 1000000000u /* the largest count in {m,n} */
#define RULES_MANY  UINT32_MAX  /* no largest count */

enum rules_kind {
	RULES_EXPR,
	RULES_SYMBOL,
	RULES_NAME,
	RULES_CONCAT,
	RULES_OR,
	RULES_AND,
	RULES_NOT,
	RULES_REPEAT
};

struct rules_node;
struct rules_rule;

struct rules {
	struct grammar *g;
	const char *text; /* the source: names and places point into it */
	size_t n_text;
	const char *before;              /* what each message begins with */
	struct grammar_error *error;
	int failed; /* 0 or the first -errno */
	struct rules_node *node;
	uint32_t n_nodes, cap_nodes;
	uint32_t *child; /* of CONCAT, OR and AND */
	uint32_t n_children, cap_children;
	uint32_t *waiting; /* parts of the lists under construction */
	uint32_t n_waiting, cap_waiting;
	struct rules_rule *rule;
	uint32_t n_rules, cap_rules;
	uint32_t begin; /* the first node of the rule under construction */
	uint32_t start; /* the rule that the grammar begins with */
	uint32_t steps; /* of the search for rules that never end */
};

/* Where a name or an error is: a byte range of the source.  n 0: a rule of the parser's own. */
struct rules_span {
	uint32_t at, n;
};

void rules_init(struct rules *r, struct grammar *g, const char *text, size_t n, struct grammar_error *e);
void rules_free(struct rules *r);

/* Record an error at a byte of the source; returns -1.  Only the first is kept. */
__attribute__((format(printf, 4, 5))) int rules_fail(struct rules *r, int code, size_t at, const char *format,
                                                     ...);

/* Nodes.  weight: 1 if the expression is long free text, else 0. */
uint32_t rules_expr(struct rules *r, uint32_t expr, uint32_t weight);
uint32_t rules_symbol(struct rules *r, int32_t symbol);
uint32_t rules_name(struct rules *r, struct rules_span name);
uint32_t rules_call(struct rules *r, uint32_t rule);
uint32_t rules_not(struct rules *r, uint32_t node, size_t at);
uint32_t rules_repeat(struct rules *r, uint32_t node, uint32_t min, uint32_t max);

/* A list: remember r->n_waiting, put its parts, collect all since.  No part: the empty string. */
void rules_put(struct rules *r, uint32_t node);
uint32_t rules_collect(struct rules *r, enum rules_kind kind, uint32_t since, size_t at);

/* Reserve a rule; returns its number.  Its nodes are those made between rules_begin() and rules_define(). */
uint32_t rules_reserve(struct rules *r, struct rules_span name, bool terminal);
void rules_begin(struct rules *r);
void rules_define(struct rules *r, uint32_t rule, uint32_t node);

/* Begin with the rule of this name; an error if there is none. */
void rules_begin_with(struct rules *r, const char *name);

/* The symbol of r->start, or -1. */
int32_t rules_emit(struct rules *r);

#endif
