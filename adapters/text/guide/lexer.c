/* lexer.c - see lexer.h. */
#include <stdlib.h>
#include <string.h>

#include "adapters/text/grammar/sealed.h"
#include "lexer.h"

#define FIRST_SLOTS 256u

int lexer_create(struct lexer *x, struct regexes *r)
{
	*x = (struct lexer){ .r = r, .mask = FIRST_SLOTS - 1 };
	x->slot = calloc(FIRST_SLOTS, sizeof(*x->slot));
	if (x->slot && grow(&x->lex, &x->cap, 0, sizeof(*x->lex))) {
		x->lex[x->n++] = (struct lex){ .expr = REGEX_NONE };
		return 0;
	}
	lexer_free(x);
	return -1;
}

void lexer_free(struct lexer *x)
{
	for (uint32_t i = 0; i < x->n; i++)
		free(x->lex[i].next);
	free(x->lex);
	free(x->slot);
	*x = (struct lexer){ 0 };
}

static uint32_t place_of(const uint32_t *slot, uint32_t mask, const struct lex *lex, uint32_t expr)
{
	uint32_t i = expr * 2654435761u >> 7 & mask;

	while (slot[i] && lex[slot[i] - 1].expr != expr)
		i = (i + 1) & mask;
	return i;
}

static bool widen(struct lexer *x)
{
	uint32_t mask = x->mask * 2 + 1, *slot;

	if (x->n * 2 <= x->mask)
		return true;
	slot = calloc((size_t)mask + 1, sizeof(*slot));
	if (!slot)
		return false;
	for (uint32_t i = 1; i < x->n; i++)
		slot[place_of(slot, mask, x->lex, x->lex[i].expr)] = i + 1;
	free(x->slot);
	x->slot = slot;
	x->mask = mask;
	return true;
}

uint32_t lexer_state(struct lexer *x, uint32_t expr)
{
	struct lex l = { .expr = expr, .clamped = LEX_FAILED };
	uint32_t i;
	int live;

	if (expr == REGEX_NONE)
		return LEX_DEAD;
	if (expr == REGEX_FAILED || !widen(x))
		return LEX_FAILED;
	i = place_of(x->slot, x->mask, x->lex, expr);
	if (x->slot[i])
		return x->lex[x->slot[i] - 1].clamped == LEX_DEAD ? LEX_DEAD : x->slot[i] - 1;
	live = regex_live(x->r, expr);
	if (live < 0 || !grow(&x->lex, &x->cap, x->n, sizeof(*x->lex)))
		return LEX_FAILED;
	l.nullable = regex_nullable(x->r, expr);
	l.more = expr != REGEX_EMPTY;
	if (!live)
		l.clamped = LEX_DEAD;                   /* remembered, so that it is judged once */
	x->lex[x->n] = l;
	x->slot[i] = ++x->n;
	return live ? x->n - 1 : LEX_DEAD;
}

/* The row of derivatives is copied: judging a target can make expressions, which moves it. */
bool lexer_fill(struct lexer *x, uint32_t lex)
{
	uint32_t target[256], *next;
	uint8_t class[256];
	struct regex_row row;
	uint32_t n;

	if (regex_row(x->r, x->lex[lex].expr, &row))
		return false;
	n = row.n;
	memcpy(class, row.class, sizeof(class));
	memcpy(target, row.target, n * sizeof(*target));
	next = malloc(256 * sizeof(*next));
	if (!next)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		target[i] = lexer_state(x, target[i]);
		if (target[i] == LEX_FAILED) {
			free(next);
			return false;
		}
	}
	n = 0;
	for (int b = 0; b < 256; b++) {
		next[b] = target[class[b]];
		x->lex[lex].first[b / 64] |= (uint64_t)(next[b] != LEX_DEAD) << b % 64;
		n += next[b] != LEX_DEAD;
	}
	x->lex[lex].wide = n >= LEX_WIDE;
	x->lex[lex].next = next;
	x->bytes += 256 * sizeof(*next);
	return true;
}

uint32_t lexer_clamped(struct lexer *x, uint32_t lex, uint32_t most)
{
	uint32_t c;

	if (x->lex[lex].clamped != LEX_FAILED)
		return x->lex[lex].clamped;
	c = lexer_state(x, regex_clamp(x->r, x->lex[lex].expr, most));
	if (c != LEX_FAILED && c != LEX_DEAD) {
		x->lex[lex].clamped = c;
		x->lex[c].clamped = c;
	}
	return c;
}
