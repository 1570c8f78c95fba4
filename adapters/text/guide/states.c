/* states.c - states: the threads of every way to cut the bytes so far, and how a byte or a token changes
 * them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "earley.h"
#include "earley_impl.h"

/* ---- states are found or made from the threads in work ---- */

static int by_row(const void *pa, const void *pb)
{
	const struct thread *a = pa, *b = pb;

	if (a->row != b->row)
		return a->row < b->row ? -1 : 1;
	if (a->symbol != b->symbol)
		return a->symbol < b->symbol ? -1 : 1;
	return a->lex < b->lex ? -1 : a->lex > b->lex;
}

static uint32_t hash_threads(const struct thread *t, uint32_t n)
{
	uint64_t h = n;

	for (uint32_t i = 0; i < n; i++) {
		h = (h ^ t[i].row) * 0x9e3779b97f4a7c15ull;
		h = (h ^ h >> 29 ^ ((uint64_t)t[i].lex << 24) ^ (uint32_t)t[i].symbol) * 0xbf58476d1ce4e5b9ull;
	}
	return (uint32_t)(h ^ h >> 32);
}

static bool widen_states(struct earley *y)
{
	uint32_t mask = y->state_slot ? y->state_mask * 2 + 1 : 255, *slot;

	if (y->state_slot && y->n_states * 2 <= y->state_mask)
		return true;
	slot = calloc((size_t)mask + 1, sizeof(*slot));
	if (!slot)
		return false;
	for (uint32_t s = STATE_FIRST; s < y->n_states; s++) {
		uint32_t i = y->state[s].hash & mask;
		while (slot[i])
			i = (i + 1) & mask;
		slot[i] = s + 1;
	}
	free(y->state_slot);
	y->state_slot = slot;
	y->state_mask = mask;
	return true;
}

/* Threads without a number: sort them, drop equal ones. */
static uint32_t distinct(struct thread *t, uint32_t n)
{
	uint32_t kept = 0;

	if (n > 1)
		qsort(t, n, sizeof(*t), by_row);
	for (uint32_t i = 0; i < n; i++)
		if (!i || by_row(&t[i], &t[kept - 1]))
			t[kept++] = t[i];
	return kept;
}

static void note_rows(const struct earley *y, struct state *s)
{
	for (uint32_t i = s->thread; i < s->thread + s->n; i++) {
		const struct thread *t = &y->threads[i];
		if (t->symbol == SYMBOL_NONE) {
			s->accept |= y->row[t->row].accept;
			s->tokens |= y->row[t->row].tokens;
		} else if (y->g->symbol[t->symbol].kind == SYMBOL_UNTIL) {
			s->tokens = true;
		}
	}
}

uint32_t earley_state(struct earley *y, struct thread *t, uint32_t n)
{
	struct state s = { .thread = y->n_threads, .clamped = STATE_UNKNOWN };
	uint32_t i;

	s.n = n = distinct(t, n);
	if (!n)
		return STATE_DEAD;
	s.hash = hash_threads(t, n);
	if (!widen_states(y))
		return STATE_OVER;
	for (i = s.hash & y->state_mask; y->state_slot[i]; i = (i + 1) & y->state_mask) {
		const struct state *o = &y->state[y->state_slot[i] - 1];
		if (o->hash == s.hash && o->n == n && !memcmp(y->threads + o->thread, t, n * sizeof(*t)))
			return y->state_slot[i] - 1;
	}
	if (!grow(&y->state, &y->states_cap, y->n_states, sizeof(*y->state)) ||
	    !grow(&y->threads, &y->threads_cap, y->n_threads + n, sizeof(*y->threads)))
		return STATE_OVER;
	memcpy(y->threads + y->n_threads, t, n * sizeof(*t));
	y->n_threads += n;
	note_rows(y, &s);
	y->state[y->n_states] = s;
	y->state_slot[i] = ++y->n_states;
	return y->n_states - 1;
}

static bool put_thread(struct earley *y, uint32_t row, int32_t symbol, uint32_t lex)
{
	struct earley_work *w = y->work;

	if (y->steps >= y->limit || !grow(&w->thread, &w->threads_cap, w->n_threads, sizeof(*w->thread)))
		return false;
	y->steps++;
	w->thread[w->n_threads++] = (struct thread){ row, symbol, lex };
	return true;
}

static bool put_ended(struct earley *y, uint32_t row, int32_t symbol)
{
	struct earley_work *w = y->work;

	if (!grow(&w->ended, &w->ended_cap, w->n_ended, sizeof(*w->ended)))
		return false;
	w->ended[w->n_ended++] = (struct ended){ row, symbol };
	return true;
}

/* The state of the threads in work, and of the row that begins behind the terminals that have ended. */
static uint32_t settle(struct earley *y)
{
	struct earley_work *w = y->work;

	if (w->n_ended) {
		uint32_t row = earley_row(y, w->ended, w->n_ended);
		if (row == ROW_NONE || !put_thread(y, row, SYMBOL_NONE, 0))
			return STATE_OVER;
	}
	return earley_state(y, w->thread, w->n_threads);
}

/* ---- bytes ---- */

/* A lexeme of row has come to lex. */
static bool arrive(struct earley *y, uint32_t row, int32_t symbol, uint32_t lex)
{
	const struct lex *l;

	if (lex == LEX_DEAD)
		return true;
	if (lex == LEX_FAILED)
		return false;
	l = &y->lexer.lex[lex];
	return (!l->nullable || put_ended(y, row, symbol)) && (!l->more || put_thread(y, row, symbol, lex));
}

static bool begin_lexemes(struct earley *y, uint32_t row, uint8_t byte)
{
	const struct row *r = &y->row[row];

	for (uint32_t i = 0; i < r->n_lexemes; i++) {
		int32_t symbol = y->awaited[r->lexeme + i];
		uint32_t lex = lexer_state(&y->lexer, y->g->symbol[symbol].expr);
		if (lex == LEX_FAILED || !arrive(y, row, symbol, lexer_step(&y->lexer, lex, byte)))
			return false;
	}
	return true;
}

static uint32_t after_byte(struct earley *y, uint32_t state, uint8_t byte)
{
	const struct state s = y->state[state];

	y->work->n_threads = y->work->n_ended = 0;
	for (uint32_t i = s.thread; i < s.thread + s.n; i++) {
		const struct thread t = y->threads[i];
		if (t.symbol == SYMBOL_NONE) {
			if (!begin_lexemes(y, t.row, byte))
				return STATE_OVER;
		} else if (y->g->symbol[t.symbol].kind == SYMBOL_LEXEME &&
		           !arrive(y, t.row, t.symbol, lexer_step(&y->lexer, t.lex, byte))) {
			return STATE_OVER;
		}
	}
	return settle(y);
}

/* Transitions that are not known yet, but for the bytes by which no lexeme goes on. */
static bool make_room(struct earley *y, uint32_t state)
{
	const struct state s = y->state[state];
	uint32_t *next = malloc(256 * sizeof(*next)), lex;
	uint64_t first[4] = { 0 };

	for (uint32_t i = s.thread; next && i < s.thread + s.n; i++) {
		const struct thread t = y->threads[i];
		const struct row *r = &y->row[t.row];
		bool begins = t.symbol == SYMBOL_NONE;
		uint32_t n = begins ? r->n_lexemes : y->g->symbol[t.symbol].kind == SYMBOL_LEXEME;
		for (uint32_t k = 0; k < n; k++) {
			lex = begins ? lexer_state(&y->lexer, y->g->symbol[y->awaited[r->lexeme + k]].expr) : t.lex;
			if (lex == LEX_FAILED || (!y->lexer.lex[lex].next && !lexer_fill(&y->lexer, lex))) {
				free(next);
				return false;
			}
			for (int w = 0; w < 4; w++)
				first[w] |= y->lexer.lex[lex].first[w];
		}
	}
	if (!next)
		return false;
	for (int b = 0; b < 256; b++)
		next[b] = first[b / 64] >> b % 64 & 1 ? STATE_UNKNOWN : STATE_DEAD;
	y->state[state].next = next;
	y->bytes += 256 * sizeof(*next);
	return true;
}

uint32_t earley_make_step(struct earley *y, uint32_t state, uint8_t byte)
{
	uint32_t after;

	if (state < STATE_FIRST)
		return state;
	if (!y->state[state].next) {
		if (!make_room(y, state))
			return STATE_OVER;
		if (y->state[state].next[byte] == STATE_DEAD)
			return STATE_DEAD;
	}
	after = after_byte(y, state, byte);
	if (after != STATE_OVER)                        /* a budget is of one call: the next one has its own */
		y->state[state].next[byte] = after;
	return after;
}

uint32_t earley_after(struct earley *y, uint32_t row, int32_t symbol)
{
	uint32_t next = earley_row(y, &(struct ended){ row, symbol }, 1);

	return next == ROW_NONE ? STATE_OVER : earley_state(y, &(struct thread){ next, SYMBOL_NONE, 0 }, 1);
}

/* ---- tokens by their number ---- */

static bool has_id(const struct grammar *g, int32_t symbol, int32_t id)
{
	const struct symbol *s = &g->symbol[symbol];

	for (uint32_t i = 0; i < s->n; i++)
		if (g->ids[s->at + i] == id)
			return true;
	return false;
}

/* The TOKEN or UNTIL `symbol` of row meets id. */
static bool meet(struct earley *y, uint32_t row, int32_t symbol, int32_t id)
{
	if (has_id(y->g, symbol, id))
		return put_ended(y, row, symbol);
	return y->g->symbol[symbol].kind == SYMBOL_TOKEN || put_thread(y, row, symbol, 0);
}

static bool meet_row(struct earley *y, uint32_t row, int32_t id)
{
	const struct row r = y->row[row];
	int32_t before = SYMBOL_NONE;

	for (uint32_t i = r.item; r.tokens && i < r.item + r.n_items; i++) {
		int32_t s = y->g->dot[y->items[i].dot].symbol;
		uint8_t kind = y->g->symbol[s].kind;
		if (s != before && (kind == SYMBOL_TOKEN || kind == SYMBOL_UNTIL) && !meet(y, row, s, id))
			return false;
		before = s;
	}
	return true;
}

uint32_t earley_token(struct earley *y, uint32_t state, int32_t id, const uint8_t *s, uint32_t n)
{
	const struct state old = y->state[state];
	uint32_t text = n ? state : STATE_DEAD;

	for (uint32_t i = 0; i < n && text >= STATE_FIRST; i++)
		text = earley_step(y, text, s[i]);
	if (!old.tokens || text == STATE_OVER)
		return text;
	y->work->n_threads = y->work->n_ended = 0;
	for (uint32_t i = old.thread; i < old.thread + old.n; i++) {
		const struct thread t = y->threads[i];
		if (t.symbol == SYMBOL_NONE ? !meet_row(y, t.row, id) :
		    y->g->symbol[t.symbol].kind == SYMBOL_UNTIL && !meet(y, t.row, t.symbol, id))
			return STATE_OVER;
	}
	if (text != STATE_DEAD) {
		const struct state with = y->state[text];
		for (uint32_t i = with.thread; i < with.thread + with.n; i++)
			if (!put_thread(y, y->threads[i].row, y->threads[i].symbol, y->threads[i].lex))
				return STATE_OVER;
	}
	return settle(y);
}

/* ---- masks of equal states ---- */

uint32_t earley_clamped(struct earley *y, uint32_t state)
{
	const struct state s = y->state[state];
	uint32_t c;

	if (state < STATE_FIRST || s.clamped != STATE_UNKNOWN)
		return state < STATE_FIRST ? state : s.clamped;
	y->work->n_threads = 0;
	for (uint32_t i = s.thread; i < s.thread + s.n; i++) {
		struct thread t = y->threads[i];
		t.row = earley_clamped_row(y, t.row);
		if (t.row == ROW_NONE)
			return STATE_OVER;
		if (t.symbol != SYMBOL_NONE && y->g->symbol[t.symbol].kind == SYMBOL_LEXEME)
			t.lex = lexer_clamped(&y->lexer, t.lex, y->clamp);
		if (t.lex == LEX_FAILED || !put_thread(y, t.row, t.symbol, t.lex))
			return STATE_OVER;
	}
	c = earley_state(y, y->work->thread, y->work->n_threads);
	if (c == STATE_OVER)
		return c;
	y->state[state].clamped = c;
	y->state[c].clamped = c;
	return c;
}

/* ---- new caches ---- */

static uint32_t copy_threads(struct earley *to, const struct earley *from, uint32_t state,
                             const uint32_t *map)
{
	const struct state s = from->state[state];

	to->work->n_threads = 0;
	for (uint32_t i = s.thread; i < s.thread + s.n; i++) {
		struct thread t = from->threads[i];
		t.row = map[t.row];
		if (t.symbol != SYMBOL_NONE && to->g->symbol[t.symbol].kind == SYMBOL_LEXEME)
			t.lex = lexer_state(&to->lexer, from->lexer.lex[t.lex].expr);
		if (t.lex == LEX_FAILED || !put_thread(to, t.row, t.symbol, t.lex))
			return STATE_OVER;
	}
	return earley_state(to, to->work->thread, to->work->n_threads);
}

uint32_t earley_copy(struct earley *to, const struct earley *from, uint32_t state)
{
	bool *wanted = calloc(from->n_rows + 1, sizeof(*wanted));
	uint32_t *map = malloc((from->n_rows + 1) * sizeof(*map)), copy = STATE_OVER;
	const struct state *s = &from->state[state];

	for (uint32_t i = s->thread; wanted && i < s->thread + s->n; i++)
		wanted[from->threads[i].row] = true;
	if (wanted && map && earley_copy_rows(to, from, wanted, map))
		copy = copy_threads(to, from, state, map);
	free(wanted);
	free(map);
	return copy;
}

/* ---- life ---- */

int earley_create(struct earley *y, struct grammar *g, uint32_t clamp)
{
	uint32_t row;

	*y = (struct earley){ .g = g, .clamp = clamp, .limit = UINT64_MAX };
	y->work = calloc(1, sizeof(*y->work));
	if (!y->work || lexer_create(&y->lexer, g->r) ||
	    !grow(&y->state, &y->states_cap, STATE_FIRST, sizeof(*y->state))) {
		earley_free(y);
		return -ENOMEM;
	}
	memset(y->state, 0, STATE_FIRST * sizeof(*y->state));
	y->n_states = STATE_FIRST;
	row = earley_first_row(y);
	y->begin = row == ROW_NONE ? STATE_OVER : earley_state(y, &(struct thread){ row, SYMBOL_NONE, 0 }, 1);
	if (y->begin == STATE_OVER) {
		earley_free(y);
		return -E2BIG;
	}
	return 0;
}

void earley_free(struct earley *y)
{
	for (uint32_t i = 0; i < y->n_states; i++)
		free(y->state[i].next);
	lexer_free(&y->lexer);
	free(y->row);
	free(y->items);
	free(y->awaited);
	free(y->state);
	free(y->threads);
	free(y->row_slot);
	free(y->state_slot);
	if (y->work) {
		free(y->work->thread);
		free(y->work->ended);
	}
	free(y->work);
	*y = (struct earley){ 0 };
}

size_t earley_bytes(const struct earley *y)
{
	return y->bytes + y->lexer.bytes + y->rows_cap * sizeof(*y->row) + y->items_cap * sizeof(*y->items) +
	       y->states_cap * sizeof(*y->state) + y->threads_cap * sizeof(*y->threads) +
	       y->lexer.cap * sizeof(*y->lexer.lex) + sizeof(*y->work);
}
