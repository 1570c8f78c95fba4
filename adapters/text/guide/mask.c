/* mask.c - see mask.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

#define FEW_IDS 2048u                /* a mask of more ids besides a lexeme's is kept as bits */

int masks_create(struct masks *m, struct earley *y, const struct tokens *t)
{
	*m = (struct masks){ .y = y, .t = t, .words = t->words };
	m->scratch = malloc((t->words + 1) * sizeof(*m->scratch));
	if (m->scratch && grow(&m->inside, &m->inside_cap, 0, sizeof(*m->inside)) &&
	    grow(&m->mask, &m->cap, 0, sizeof(*m->mask))) {
		m->inside[m->n_inside++] = (struct inside){ 0 };
		m->mask[m->n++] = (struct mask){ 0 };
		return 0;
	}
	masks_free(m);
	return -ENOMEM;
}

void masks_free(struct masks *m)
{
	for (uint32_t i = 0; i < m->n_inside; i++) {
		free(m->inside[i].bits);
		free(m->inside[i].cross);
	}
	for (uint32_t i = 0; i < m->n; i++)
		free(m->mask[i].bits);
	free(m->inside);
	free(m->mask);
	free(m->ids);
	free(m->scratch);
	*m = (struct masks){ 0 };
}

/* Of the nodes from `from` to `end`, which are below one node or none, those that state allows. */
static int walk(struct masks *m, uint32_t from, uint32_t end, uint32_t state)
{
	const struct trie *t = &m->t->all;
	const uint32_t *next[TRIE_DEPTH + 1];           /* transitions by depth: they stay where they are */
	uint32_t at[TRIE_DEPTH + 1], top = t->node[from].depth - 1u;

	if (from == end || state == STATE_DEAD)
		return 0;
	at[top] = state;
	next[top] = m->y->state[state].next;
	for (uint32_t i = from; i < end;) {
		const struct trie_node n = t->node[i];
		uint32_t d = n.depth - 1u, to = next[d] ? next[d][n.byte] : STATE_UNKNOWN;
		if (to == STATE_UNKNOWN) {
			to = earley_make_step(m->y, at[d], n.byte);
			next[d] = m->y->state[at[d]].next;
		}
		if (to == STATE_OVER)
			return -E2BIG;
		if (to == STATE_DEAD) {
			i += n.size;
			continue;
		}
		if (n.token != TRIE_NONE)
			mask_set(m, (int32_t)n.token, m->scratch);
		if (n.size > 1) {
			at[n.depth] = to;
			next[n.depth] = m->y->state[to].next;
		}
		i++;
	}
	return 0;
}

/* A wide lexeme: what stays inside, and what comes behind its crossings. */
static int add_inside(struct masks *m, const struct thread *t, uint32_t number)
{
	const struct trie *all = &m->t->all;
	uint32_t after = STATE_DEAD;
	int rc = 0;

	for (uint32_t w = 0; w < m->words; w++)
		m->scratch[w] |= m->inside[number].bits[w];
	if (m->inside[number].n_cross) {
		after = earley_after(m->y, t->row, t->symbol);
		rc = after == STATE_OVER ? -E2BIG : 0;
	}
	for (uint32_t i = 0; !rc && i < m->inside[number].n_cross; i++) {
		uint32_t node = m->inside[number].cross[i];
		rc = walk(m, node + 1, node + all->node[node].size, after);
	}
	return rc;
}

static void add_ids(struct masks *m, int32_t symbol, struct mask *k)
{
	const struct grammar *g = m->y->g;
	const struct symbol *s = &g->symbol[symbol];

	if (s->kind == SYMBOL_UNTIL) {
		k->until = k->any && k->until != symbol ? SYMBOL_NONE : symbol;
		k->any = true;
	}
	for (uint32_t i = 0; s->kind == SYMBOL_TOKEN && i < s->n; i++) {
		int32_t id = g->ids[s->at + i];
		if (id >= 0 && (uint32_t)id < m->words * 32)
			m->scratch[id / 32] |= 1u << id % 32;
	}
}

/* The threads of a state with its rows' lexemes as threads of their own, but for the wide ones: these are
 * added to the mask at once. */
struct spread { struct thread *t; uint32_t n, cap; uint32_t base; };

static int add_thread(struct masks *m, struct spread *s, struct thread t)
{
	uint32_t number;
	int rc;

	if (!m->y->lexer.lex[t.lex].next && !lexer_fill(&m->y->lexer, t.lex))
		return -E2BIG;
	if (m->y->lexer.lex[t.lex].wide) {
		number = m->y->lexer.lex[t.lex].inside;
		if (!number) {
			rc = inside_make(m, t.lex, &number);
			if (rc)
				return rc;
			m->y->lexer.lex[t.lex].inside = number;
		}
		if (!m->inside[number].many) {
			if (m->inside[number].total > m->inside[s->base].total)
				s->base = number;
			return add_inside(m, &t, number);
		}
	}
	if (!grow(&s->t, &s->cap, s->n, sizeof(*s->t)))
		return -ENOMEM;
	s->t[s->n++] = t;
	return 0;
}

static int add_row(struct masks *m, struct spread *s, uint32_t row, struct mask *k)
{
	const struct earley *y = m->y;
	const struct row r = y->row[row];
	int32_t before = SYMBOL_NONE;
	int rc = 0;

	for (uint32_t i = 0; !rc && i < r.n_lexemes; i++) {
		struct thread t = { row, y->awaited[r.lexeme + i], 0 };
		t.lex = lexer_state(&m->y->lexer, y->g->symbol[t.symbol].expr);
		rc = t.lex == LEX_FAILED ? -E2BIG : t.lex == LEX_DEAD ? 0 : add_thread(m, s, t);
	}
	for (uint32_t i = r.item; !rc && r.tokens && i < r.item + r.n_items; i++) {
		int32_t symbol = y->g->dot[y->items[i].dot].symbol;
		if (symbol != before)
			add_ids(m, symbol, k);
		before = symbol;
	}
	return rc;
}

static int collect(struct masks *m, uint32_t state, struct spread *s, struct mask *k)
{
	const struct state st = m->y->state[state];
	uint32_t narrow;
	int rc = 0;

	for (uint32_t i = st.thread; !rc && i < st.thread + st.n; i++) {
		struct thread t = m->y->threads[i];
		if (t.symbol == SYMBOL_NONE)
			rc = add_row(m, s, t.row, k);
		else if (m->y->g->symbol[t.symbol].kind == SYMBOL_LEXEME)
			rc = add_thread(m, s, t);
		else
			add_ids(m, t.symbol, k);
	}
	if (rc || !s->n)
		return rc;
	narrow = earley_state(m->y, s->t, s->n);
	return narrow == STATE_OVER ? -E2BIG : walk(m, 0, m->t->all.n, narrow);
}

/* 64 ids from word w on, of those besides `known`. */
static inline uint64_t besides(const uint32_t *bits, const uint32_t *known, uint32_t w)
{
	uint64_t x = bits[w] | (uint64_t)bits[w + 1] << 32;

	return known ? x & ~(known[w] | (uint64_t)known[w + 1] << 32) : x;
}

/* Keep what is in scratch in the least memory.  Most words are 0, so one look at them is most of the cost. */
static int keep(struct masks *m, uint32_t base, struct mask *k)
{
	const uint32_t *known = m->inside[base].bits, *bits = m->scratch;
	uint32_t more = 0;
	int32_t *ids;
	uint64_t x;

	if (!grow(&m->ids, &m->ids_cap, m->n_ids + FEW_IDS + 64, sizeof(*m->ids)))
		return -ENOMEM;
	ids = m->ids + m->n_ids;
	for (uint32_t w = 0; w < m->words; w += 2) {
		x = besides(bits, known, w);
		if (x && more > FEW_IDS)
			more += (uint32_t)__builtin_popcountll(x);
		else
			for (; x; x &= x - 1)
				ids[more++] = (int32_t)(w * 32 + (uint32_t)__builtin_ctzll(x));
	}
	k->total = m->inside[base].total + more;
	if (more > FEW_IDS) {
		k->bits = malloc(m->words * sizeof(*k->bits));
		if (!k->bits)
			return -ENOMEM;
		memcpy(k->bits, bits, m->words * sizeof(*k->bits));
		m->bytes += m->words * sizeof(*k->bits);
		return 0;
	}
	k->inside = base;
	k->at = m->n_ids;
	k->n = more;
	m->n_ids += more;
	return 0;
}

int mask_of(struct masks *m, uint32_t state, const struct mask **out)
{
	struct mask k = { .until = SYMBOL_NONE };
	struct spread s = { .t = NULL };
	uint32_t like;
	int rc;

	if (m->y->state[state].mask) {
		*out = &m->mask[m->y->state[state].mask];
		return 0;
	}
	like = earley_clamped(m->y, state);
	if (like == STATE_OVER)
		return -E2BIG;
	if (!m->y->state[like].mask) {
		memset(m->scratch, 0, (m->words + 1) * sizeof(*m->scratch));
		rc = collect(m, like, &s, &k);
		free(s.t);
		if (!rc && !grow(&m->mask, &m->cap, m->n, sizeof(*m->mask)))
			rc = -ENOMEM;
		if (!rc)
			rc = keep(m, s.base, &k);
		if (rc)
			return rc;
		if (k.total)                            /* something else may come as well */
			k.until = SYMBOL_NONE;
		m->y->state[like].mask = m->n;
		m->mask[m->n++] = k;
	}
	m->y->state[state].mask = m->y->state[like].mask;
	*out = &m->mask[m->y->state[like].mask];
	return 0;
}

void mask_bits(const struct masks *m, const struct mask *k, uint32_t *bits, uint32_t words)
{
	const uint32_t *from = k->bits ? k->bits : k->inside ? m->inside[k->inside].bits : NULL;

	if (from)
		memcpy(bits, from, words * sizeof(*bits));
	else
		memset(bits, 0, words * sizeof(*bits));
	for (uint32_t i = k->at; i < k->at + k->n; i++)
		bits[m->ids[i] / 32] |= 1u << m->ids[i] % 32;
}
