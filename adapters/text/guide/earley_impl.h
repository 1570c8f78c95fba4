/* earley_impl.h - what earley.c and states.c share. */
#ifndef EARLEY_IMPL_H
#define EARLEY_IMPL_H

#include "earley.h"

#define ROW_SELF     (UINT32_MAX - 1)
#define DOT_COMPLETE UINT32_MAX      /* no dot: `as` is complete in origin */
#define REST_CAME    0x80000000u     /* in item.count of ordered members */
#define WORK_SLOTS   32768u          /* over twice ROW_ITEMS */

struct ended { uint32_t row; int32_t symbol; };      /* a terminal that has ended, and its row */

/* Scratch: the row and the state under construction. */
struct earley_work {
	struct item item[ROW_ITEMS], kept[ROW_ITEMS];
	uint32_t n;
	bool accept, failed;
	uint32_t stamp;
	struct { uint32_t stamp, item; } slot[WORK_SLOTS];   /* items by hash; another stamp = empty */
	struct thread *thread;
	uint32_t n_threads, threads_cap;
	struct ended *ended;
	uint32_t n_ended, ended_cap;
};

/* A row, or ROW_NONE. */
uint32_t earley_first_row(struct earley *y);
uint32_t earley_row(struct earley *y, const struct ended *ended, uint32_t n);
uint32_t earley_clamped_row(struct earley *y, uint32_t row);
/* Rows of `from`, and those that they come from: map[row] becomes the same row of `to`.  wanted[row] says
 * which, and has n_rows places. */
bool earley_copy_rows(struct earley *to, const struct earley *from, bool *wanted, uint32_t *map);

#endif
