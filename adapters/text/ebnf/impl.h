/* impl.h - what rules.c builds and emit.c reads. */
#ifndef RULES_IMPL_H
#define RULES_IMPL_H

#include "adapters/text/grammar/regex.h"
#include "rules.h"

#define RULES_NONE UINT32_MAX /* no rule, no node */

struct rules_node {
	uint8_t kind;          /* enum rules_kind */
	bool regular;          /* expr says all of it */
	bool ends;             /* it derives some string */
	uint32_t at;           /* its place in the source */
	uint32_t a, b;         /* EXPR: expression, weight.  SYMBOL: symbol.  NAME: rule, bytes of the name.
	                                    Lists: first child, their number.  NOT, REPEAT: child */
	uint32_t min, max;     /* REPEAT */
	uint32_t expr, weight; /* if regular */
};

struct rules_rule {
	struct rules_span name;
	bool terminal, defined, recursive, regular, ends, queued;
	uint32_t first, end, node; /* its nodes, and the one that is its body */
	uint32_t expr, weight;     /* if regular */
	int32_t symbol;            /* -1 until it is wanted */
};

/* Resolve names, find recursion, fold what is regular.  0 or -1. */
int rules_resolve(struct rules *r);

#endif
