/* pattern_tree.h - a pattern as read: between pattern_read.c and pattern.c. */
#ifndef PATTERN_TREE_H
#define PATTERN_TREE_H

#include "grammar.h"
#include "pattern.h"

#define PATTERN_DEPTH 200            /* groups within groups */

enum tree_kind {
	TREE_EMPTY,
	TREE_SET,                    /* a = set */
	TREE_CONCAT, TREE_OR,        /* a = first member, their chain is `next` */
	TREE_REPEAT,                 /* a, min to max times */
	TREE_START, TREE_END,        /* ^ $ */
	TREE_EDGE, TREE_NO_EDGE,     /* \b \B */
	TREE_AHEAD, TREE_NOT_AHEAD,  /* a */
};

struct tree {
	uint8_t kind;
	bool looks;                  /* an assertion is in it */
	bool looks_back;             /* ^, \b or \B is in it */
	bool nullable;               /* not told of what looks */
	uint8_t ends;                /* bit 0: may end in a word's character, bit 1: in another one */
	uint32_t a, min, max, next;
	uint32_t counts;             /* largest product of the counts of nested quantifiers in it; at least 1 */
	uint32_t column;
};

struct char_set {
	struct regex_range *range;   /* sorted, apart */
	uint32_t n;
	uint32_t expr;               /* REGEX_FAILED = not made yet */
	int any_case;                /* the set with the other cases too; -1 = not made yet */
};

struct pattern {
	const char *s;
	size_t n, at;
	struct tree *tree;           /* 0 = the empty one, and the end of a chain */
	uint32_t n_trees, trees_cap;
	struct char_set *set;
	uint32_t n_sets, sets_cap;
	uint32_t *set_slot, set_slots;
	uint32_t ranges;             /* work for sets so far */
	int depth;
	bool any_case, dot_all;
	struct grammar_error *error;
};

enum { SET_WORD, SET_OTHER, SET_ALL, SET_FIRST };    /* sets that always are there */

/* The root, or -errno and p->error. */
int64_t pattern_read(struct pattern *p);
void pattern_free(struct pattern *p);
int pattern_refuse(struct pattern *p, int code, size_t at, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#endif
