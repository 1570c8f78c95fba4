/* earley.h - where an answer stands in a grammar: rows of Earley items, and states that change with each
 * byte.
 *
 * A row is what may follow where a terminal has just ended: a set of items, each a dot in a production with
 * the row in which that began.  A thread is a terminal under way: its row, and the state of its lexer
 * (lexer.h).  A state is a set of threads: every way in which the bytes so far can be cut.  Equal rows are
 * one number, and so are equal states, so a state's transitions and its mask are made once.
 *
 * An item whose dot is before the last symbol of its production hands its own return on (a tail call): right
 * recursion needs no more rows or items than a loop.
 *
 * One thread at a time uses a struct earley: whoever holds the mutex of its grammar (guide.c).
 */
#ifndef EARLEY_H
#define EARLEY_H

#include "adapters/text/grammar/sealed.h"
#include "lexer.h"

#define ROW_ITEMS   10000            /* most items of a row: an object's 2,000 properties need 4,000 */

enum { STATE_DEAD, STATE_OVER, STATE_FIRST };        /* nothing fits; over a budget (-E2BIG) or no memory */
#define STATE_UNKNOWN UINT32_MAX
#define ROW_NONE UINT32_MAX

struct item {
	uint32_t dot;                /* in grammar.dot */
	uint32_t origin;             /* the row that awaits what this completes; ROW_SELF: this row */
	int32_t  as;                 /* the symbol that it completes there */
	uint32_t count;              /* REPEAT, MEMBERS: how many are complete */
	uint64_t set;                /* MEMBERS: which */
};

struct row {
	uint32_t item, n_items;      /* in earley.items, sorted by the awaited symbol */
	uint32_t lexeme, n_lexemes;  /* in earley.awaited: LEXEMEs that may begin here */
	uint32_t hash, clamped;
	bool accept;                 /* the answer may end here */
	bool tokens;                 /* a TOKEN or UNTIL may begin here */
};

struct thread {
	uint32_t row;
	int32_t symbol;              /* a LEXEME or UNTIL under way; SYMBOL_NONE: the row begins here */
	uint32_t lex;                /* LEXEME: state of the lexer */
};

struct state {
	uint32_t thread, n;          /* in earley.threads, sorted */
	uint32_t hash;
	uint32_t *next;              /* [256] states, or NULL */
	uint32_t clamped;            /* the state with the same mask; STATE_UNKNOWN */
	uint32_t mask;               /* mask.h; 0 = not made */
	bool accept, tokens;
	uint16_t forced;             /* forced.c's: 0 = not known, 1 = no, else the only next byte + 2 */
};

struct earley {
	struct grammar *g;
	struct lexer lexer;
	uint32_t clamp;              /* a count further than this from its bounds makes no difference to a mask */
	struct row *row;
	uint32_t n_rows, rows_cap;
	struct item *items;
	uint32_t n_items, items_cap;
	int32_t *awaited;
	uint32_t n_awaited, awaited_cap;
	struct state *state;
	uint32_t n_states, states_cap;
	struct thread *threads;
	uint32_t n_threads, threads_cap;
	uint32_t *row_slot, row_mask;        /* hash tables of rows and states; 0 = empty, else number + 1 */
	uint32_t *state_slot, state_mask;
	uint64_t steps, limit;       /* items and threads handled so far, and when it is too much */
	size_t bytes;                /* of transitions */
	struct earley_work *work;
	uint32_t begin;              /* the first state */
};

/* clamp: the bytes of the longest token.  0 or -ENOMEM; -E2BIG: the first row is over a budget. */
int  earley_create(struct earley *y, struct grammar *g, uint32_t clamp);
void earley_free(struct earley *y);
size_t earley_bytes(const struct earley *y);

/* The state after one more byte. */
uint32_t earley_make_step(struct earley *y, uint32_t state, uint8_t byte);
static inline uint32_t earley_step(struct earley *y, uint32_t state, uint8_t byte)
{
	const struct state *s = &y->state[state];

	if (s->next && s->next[byte] != STATE_UNKNOWN)
		return s->next[byte];
	return earley_make_step(y, state, byte);
}

/* The state after the terminal `symbol` of `row` has ended. */
uint32_t earley_after(struct earley *y, uint32_t row, int32_t symbol);
/* The state after token `id` by its number alone, and then, if it is text, by its bytes s too. */
uint32_t earley_token(struct earley *y, uint32_t state, int32_t id, const uint8_t *s, uint32_t n);
/* The state whose mask is the same, with counts that are far from their bounds clamped. */
uint32_t earley_clamped(struct earley *y, uint32_t state);
/* The state of `from`, which belongs to the same grammar, as one of `to`. */
uint32_t earley_copy(struct earley *to, const struct earley *from, uint32_t state);
/* The state of these threads, which are sorted here. */
uint32_t earley_state(struct earley *y, struct thread *t, uint32_t n);

#endif
