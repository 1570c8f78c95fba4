/* inside.c - by state of a lexer: the tokens that stay inside the lexeme, and where in the tree it may end.
 * */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "inside.h"

/* ---- do plain tokens stay inside? ---- */

#define FEW 8

struct few { uint32_t lex[FEW], n; };

static bool few_has(const struct few *f, uint32_t lex)
{
	for (uint32_t i = 0; i < f->n; i++)
		if (f->lex[i] == lex)
			return true;
	return false;
}

/* A walk of every plain character from a few states. */
struct plain_walk {
	struct lexer *x;
	struct few after;            /* states after one character */
	bool dead;                   /* by some character there is none */
	bool odd;                    /* too many states, or the lexeme may end within: do not judge */
};

static void put_few(struct plain_walk *p, uint32_t lex, struct few *to)
{
	if (lex == LEX_DEAD) {
		p->dead = true;
		return;
	}
	if (few_has(to, lex))
		return;
	p->odd |= to->n == FEW || p->x->lex[lex].nullable;
	if (!p->odd)
		to->lex[to->n++] = lex;
}

/* One byte of a range: most often all of them lead to the same state. */
static void by_bytes(struct plain_walk *p, const struct few *from, uint8_t first, uint8_t last,
                     struct few *to)
{
	for (uint32_t i = 0; i < from->n && !p->odd; i++) {
		const uint32_t *next = p->x->lex[from->lex[i]].next;
		uint32_t differ = 0;
		if (!next && !lexer_fill(p->x, from->lex[i])) {
			p->odd = true;
			return;
		}
		next = p->x->lex[from->lex[i]].next;
		for (unsigned b = first; b <= last; b++)
			differ |= next[b] ^ next[first];
		put_few(p, next[first], to);
		for (unsigned b = first; differ && b <= last && !p->odd; b++)
			put_few(p, next[b], to);
	}
}

/* One character, in every form of UTF-8 (the Unicode Standard, table 3-7). */
static void by_character(struct plain_walk *p, const struct few *from)
{
	static const uint8_t form[][5] = {              /* lead bytes, second bytes, how many more of 80..bf */
		{ 0xc2, 0xdf, 0x80, 0xbf, 0 }, { 0xe0, 0xe0, 0xa0, 0xbf, 1 }, { 0xe1, 0xec, 0x80, 0xbf, 1 },
		{ 0xed, 0xed, 0x80, 0x9f, 1 }, { 0xee, 0xef, 0x80, 0xbf, 1 }, { 0xf0, 0xf0, 0x90, 0xbf, 2 },
		{ 0xf1, 0xf3, 0x80, 0xbf, 2 }, { 0xf4, 0xf4, 0x80, 0x8f, 2 },
	};

	p->after.n = 0;
	by_bytes(p, from, ' ', '"' - 1, &p->after);
	by_bytes(p, from, '"' + 1, '\\' - 1, &p->after);
	by_bytes(p, from, '\\' + 1, 0x7f, &p->after);
	for (size_t i = 0; i < sizeof(form) / sizeof(*form); i++) {
		struct few lead = { .n = 0 }, second = { .n = 0 }, third = { .n = 0 };
		by_bytes(p, from, form[i][0], form[i][1], &lead);
		by_bytes(p, &lead, form[i][2], form[i][3], form[i][4] ? &second : &p->after);
		if (form[i][4])
			by_bytes(p, &second, 0x80, 0xbf, form[i][4] > 1 ? &third : &p->after);
		if (form[i][4] > 1)
			by_bytes(p, &third, 0x80, 0xbf, &p->after);
	}
}

static bool same_few(const struct few *a, const struct few *b)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (!few_has(b, a->lex[i]))
			return false;
	return a->n == b->n;
}

/* The k for which plain tokens of at most k characters all stay inside, and longer ones all do not, and the
 * lexeme ends nowhere in them.  0: it is not so simple. */
static uint32_t plain_most(struct lexer *x, uint32_t lex)
{
	struct plain_walk p = { .x = x };
	struct few from = { .lex = { lex }, .n = 1 };

	for (uint32_t k = 0; k < PLAIN_MOST; k++) {
		p.dead = false;
		by_character(&p, &from);
		if (p.odd || (p.dead && p.after.n))
			return 0;
		if (p.dead)
			return k;
		if (same_few(&p.after, &from))
			return PLAIN_MOST;
		from = p.after;
	}
	return PLAIN_MOST;
}

/* ---- the walk ---- */

struct inside_walk { struct masks *m; struct inside *in; uint32_t cap; };

static bool put_cross(struct inside_walk *w, uint32_t node)
{
	if (w->in->n_cross == w->m->t->all.n / 32 + 64) {
		w->in->many = true;
		return false;
	}
	if (!grow(&w->in->cross, &w->cap, w->in->n_cross, sizeof(*w->in->cross)))
		return false;
	w->in->cross[w->in->n_cross++] = node;
	return true;
}

/* False: stop; `many`, or a failure. */
static bool walk(struct inside_walk *w, const struct trie *t, const uint32_t *in_all, uint32_t lex)
{
	struct lexer *x = &w->m->y->lexer;
	const uint32_t *next[TRIE_DEPTH + 1];                /* transitions at each depth; they do not move */
	const struct lex *l;

	if (!x->lex[lex].next && !lexer_fill(x, lex))
		return false;
	next[0] = x->lex[lex].next;
	for (uint32_t i = 0; i < t->n;) {
		const struct trie_node n = t->node[i];
		uint32_t to = next[n.depth - 1][n.byte], node = in_all ? in_all[i] : i;
		if (to == LEX_DEAD) {
			i += n.size;
			continue;
		}
		if (n.size > 1 && x->lex[to].more && !x->lex[to].next && !lexer_fill(x, to))
			return false;
		l = &x->lex[to];
		next[n.depth] = l->next;
		if (n.token != TRIE_NONE)
			mask_set(w->m, (int32_t)n.token, w->in->bits);
		if (l->nullable && w->m->t->all.node[node].size > 1 && !put_cross(w, node))
			return false;
		i += l->more ? 1 : n.size;
	}
	return true;
}

int inside_make(struct masks *m, uint32_t lex, uint32_t *out)
{
	struct inside in = { .bits = calloc(m->words + 1, sizeof(*in.bits)) };
	struct inside_walk w = { .m = m, .in = &in };
	const struct tokens *t = m->t;
	uint32_t k = plain_most(&m->y->lexer, lex);
	bool ok = in.bits && grow(&m->inside, &m->inside_cap, m->n_inside, sizeof(*m->inside));

	if (ok && k) {
		memcpy(in.bits, t->plain + (size_t)k * t->words, m->words * sizeof(*in.bits));
		ok = walk(&w, &t->rest, t->in_all, lex);
	} else if (ok) {
		ok = walk(&w, &t->all, NULL, lex);
	}
	if (!ok && !in.many) {
		free(in.bits);
		free(in.cross);
		return regexes_error(m->y->g->r) ? regexes_error(m->y->g->r) : -E2BIG;
	}
	if (in.many) {
		free(in.bits);
		free(in.cross);
		in = (struct inside){ .many = true };
	} else {
		in.total = mask_count(in.bits, m->words);
		m->bytes += m->words * sizeof(*in.bits) + w.cap * sizeof(*in.cross);
	}
	*out = m->n_inside;
	m->inside[m->n_inside++] = in;
	return 0;
}
