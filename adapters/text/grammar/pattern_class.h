/* pattern_class.h - one character of a pattern, of a set of them. */
#ifndef PATTERN_CLASS_H
#define PATTERN_CLASS_H

#include "pattern_tree.h"

/* SET_WORD and the others.  0 or -errno. */
int pattern_first_sets(struct pattern *p);

/* The set at p->at: a character, '.', an escape or a class.  Its number, or -errno. */
int pattern_class(struct pattern *p);

/* struct tree's `ends` of a set. */
uint8_t pattern_ends(const struct pattern *p, uint32_t set);

#endif
