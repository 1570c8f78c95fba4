/* nodes.h - how nodes.c, regex.c, derive.c and points.c keep expressions.  No other file includes this.
 *
 * A node's parts are older nodes, so the graph has no cycle.  A concatenation leans to the right: its first
 * part is never a concatenation.  Lists of a union and an intersection are sorted and flat.
 */
#ifndef NODES_H
#define NODES_H

#include "regex.h"

enum node_kind {
	NODE_NONE, NODE_EMPTY, NODE_ANY,
	NODE_BRANCH,         /* a = map; words[b .. b + c): each class's target. Classes are numbered by their
	                      * first byte, and their targets differ */
	NODE_LITERAL,        /* bytes[a .. a + b), at least 2; c = its polynomial hash */
	NODE_CONCAT,         /* a, then b */
	NODE_OR, NODE_AND,   /* words[b .. b + c), sorted */
	NODE_NOT,            /* a */
	NODE_REPEAT,         /* a, b to c times */
	NODE_MULTIPLE,       /* the rest of a decimal: multiple.c */
};

enum {
	NODE_NULLABLE = 1,
	NODE_SIMPLE = 2,     /* no intersection or complement in it */
	NODE_COUNTED = 4,    /* a repetition with a count stands in it, outside other repetitions */
	NODE_LIVE = 8, NODE_DEAD = 16,
	NODE_LETTER = 32,    /* << enum regex_alphabet: every string is a sequence of its letters */
};

struct node {
	uint32_t hash;
	uint8_t kind, flags;
	uint16_t depth;      /* of nesting; the second part of a concatenation is not deeper */
	uint32_t a, b, c;
	uint32_t seen;       /* the last row that it was a part of, by number */
	uint32_t row;        /* all derivatives: a branch, or REGEX_NONE; REGEX_FAILED = not made yet */
};

#define NODE_DEPTH 500               /* the deepest nesting, which bounds recursion */

struct map { uint8_t class[256]; };

struct regexes {
	struct node *node;
	uint32_t n, cap, most;
	uint32_t *slot;              /* open addressing; 0 = free, for no node below 3 is looked for */
	uint32_t slots;              /* a power of two */
	uint32_t *word;
	uint32_t n_words, words_cap;
	uint8_t *byte;
	uint32_t n_bytes, bytes_cap;
	struct map *map;             /* 0: all bytes in class 0 */
	uint32_t n_maps, maps_cap;
	uint32_t *map_slot, map_slots;
	uint32_t byte_map[256];      /* that of one byte alone; 0 = not made yet */
	uint32_t letter[REGEX_ALPHABETS], universe[REGEX_ALPHABETS];   /* letter*; REGEX_FAILED = not set */
	uint32_t *list;              /* scratch of the list being simplified */
	uint32_t n_list, list_cap;
	struct cell *cell;           /* scratch of derive.c */
	uint32_t n_cells, cells_cap;
	uint32_t rows;               /* made so far */
	uint64_t work;
	int error;
};

#define LETTERS(flags) ((flags) & (NODE_LETTER * ((1 << REGEX_ALPHABETS) - 1)))

static inline bool node_nullable(const struct regexes *r, uint32_t e)
{
	return r->node[e].flags & NODE_NULLABLE;
}

/* Make room for one more of `size` bytes in an array of *cap.  NULL: no memory, *p stays as it is. */
void *node_grow(struct regexes *r, void *p, uint32_t n, uint32_t more, uint32_t *cap, size_t size);
/* That, for array p of r. */
#define ROOM(r, p, n, more, cap) \
	__extension__ ({ \
		void *q_ = node_grow((r), (r)->p, (r)->n, (more), &(r)->cap, sizeof(*(r)->p)); \
		if (q_) \
			(r)->p = q_; \
		q_ != NULL; \
	})

/* The number of this node, which is new or there already.  Its words or bytes, if any, stand behind n_words
 * or n_bytes of their pool; the caller counts them if *new. */
uint32_t node_intern(struct regexes *r, struct node n, bool *new);

/* A branch: by byte b to target[of[b]]; targets may be equal. */
uint32_t node_branch(struct regexes *r, const uint8_t of[256], const uint32_t *target);

/* A branch with this map, whose n targets are different and not REGEX_NONE alone. */
uint32_t node_same_map(struct regexes *r, uint32_t map, const uint32_t *target, uint32_t n);

/* The number of a map, whose classes are numbered by their first byte; REGEX_FAILED. */
uint32_t node_map(struct regexes *r, const struct map *m);

/* The branch of one byte. */
uint32_t node_byte(struct regexes *r, uint8_t byte, uint32_t target);

/* The derivatives of a multiple, as a branch. */
uint32_t node_multiple_row(struct regexes *r, uint32_t e);

/* The literal without its first byte. */
uint32_t node_literal_rest(struct regexes *r, uint32_t e);

#endif
