/* forced.c - bytes that the grammar forces, as the tokens that the tokenizer would make of them.
 *
 * While one byte alone leads on, the text is forced.  It is tokenized behind the last tokens of the answer;
 * if these come out as they are, so will the forced ones.  From the end, tokens are dropped that what comes
 * next could change:
 * - those in which a token of the vocabulary begins that reaches past the end and is allowed.  BPE never
 *   takes a
 *   merge back: if no token crosses a place, what is left of it is tokenized alone;
 * - white space at the end, which pre-tokenizers cut by what follows.
 */
#include <string.h>

#include "adapters/text/text.h"
#include "adapters/text/unicode/utf8.h"
#include "forced.h"

#define RUN_BYTES 512u               /* most forced bytes that are looked at */

/* The byte by which alone the state goes on; -1: there is none, or the answer may end, or an id may come. */
static int only_byte(struct earley *y, uint32_t state)
{
	const struct state *s = &y->state[state];
	int byte = -1;

	if (s->accept || s->tokens)
		return -1;
	if (s->forced)
		return s->forced - 2;
	if (!s->next && earley_make_step(y, state, 0) == STATE_OVER)
		return -1;
	s = &y->state[state];
	for (int b = 0; b < 256; b++) {
		if (s->next[b] == STATE_DEAD)
			continue;
		if (byte >= 0) {
			byte = -1;
			break;
		}
		byte = b;
	}
	y->state[state].forced = (uint16_t)(byte + 2);
	return byte;
}

/* Nothing but a stop id may come. */
static bool complete(struct earley *y, uint32_t state)
{
	const struct state *s = &y->state[state];

	if (!s->accept || s->tokens || (!s->next && earley_make_step(y, state, 0) == STATE_OVER))
		return false;
	s = &y->state[state];
	for (int b = 0; b < 256; b++)
		if (s->next[b] != STATE_DEAD)
			return false;
	return true;
}

/* Does state allow any token below this node? */
static bool any_below(const struct trie *t, struct earley *y, uint32_t node, uint32_t state)
{
	uint32_t at[TRIE_DEPTH + 1], end = node + t->node[node].size;

	at[t->node[node].depth] = state;
	for (uint32_t i = node + 1; i < end;) {
		const struct trie_node n = t->node[i];
		uint32_t to = earley_step(y, at[n.depth - 1], n.byte);
		if (to == STATE_DEAD) {
			i += n.size;
			continue;
		}
		if (to == STATE_OVER || n.token != TRIE_NONE)
			return true;
		at[n.depth] = to;
		i++;
	}
	return false;
}

/* The node of these bytes, or TRIE_NONE. */
static uint32_t node_of(const struct trie *t, const uint8_t *s, uint32_t n)
{
	uint32_t from = 0, end = t->n, node = TRIE_NONE;

	for (uint32_t k = 0; k < n; k++) {
		for (node = from; node < end && t->node[node].byte != s[k];)
			node += t->node[node].size;
		if (node >= end)
			return TRIE_NONE;
		from = node + 1;
		end = node + t->node[node].size;
	}
	return node;
}

/* How many bytes of s no longer depend on what comes behind, in this state. */
static uint32_t settled(const struct trie *t, struct earley *y, const uint8_t *s, uint32_t n, uint32_t state)
{
	uint32_t first = n > t->longest ? n - t->longest : 0, cp;

	for (uint32_t p = first; p < n; p++) {
		uint32_t node = node_of(t, s + p, n - p);
		if (node != TRIE_NONE && any_below(t, y, node, state)) {
			n = p;
			break;
		}
	}
	for (uint32_t p = n; p; p--) {                  /* back over whole characters of white space */
		uint32_t from = p - 1;
		while (from && (s[from] & 0xc0) == 0x80)
			from--;
		utf8_next((const char *)s + from, p - from, &cp);
		if (!utf8_space(cp))
			break;
		n = from;
		p = from + 1;
	}
	return n;
}

/* Tokenize s behind the recent tokens: ids gets those of s.  0: it does not come out so. */
static uint32_t tokenize(const struct sr_grammar *g, const struct recent *r, const uint8_t *s, uint32_t n,
                         int32_t *ids, uint32_t most)
{
	uint8_t text[RUN_BYTES + RECENT * TRIE_DEPTH];
	int32_t all[RUN_BYTES + RECENT * TRIE_DEPTH];
	const uint8_t *piece = NULL;
	uint32_t before = 0, at = 0, k;
	int64_t got;

	for (uint32_t i = 0; i < r->n; i++) {
		uint32_t len = trie_bytes(&g->t->vocab, r->id[i], &piece);
		memcpy(text + before, piece, len);
		before += len;
	}
	memcpy(text + before, s, n);
	if (!utf8_valid((const char *)text, before + n))
		return 0;
	got = sr_text_encode(g->t, (const char *)text, before + n, 0, all, sizeof(all) / sizeof(*all), 0);
	if (got < r->n || (r->n && memcmp(all, r->id, r->n * sizeof(*all))))
		return 0;
	for (k = r->n; k < got && k - r->n < most; k++) {
		uint32_t len = trie_bytes(&g->t->vocab, all[k], &piece);
		if (!len || at + len > n || memcmp(piece, s + at, len))
			return 0;                       /* the normal form is another text */
		at += len;
		ids[k - r->n] = all[k];
	}
	return k - r->n;
}

/* The length of s without a last character that is not complete. */
static uint32_t whole_characters(const uint8_t *s, uint32_t n)
{
	uint32_t from = n, cp;

	while (from && n - from < 4 && (s[from - 1] & 0xc0) == 0x80)
		from--;
	if (!from)
		return n;
	utf8_next((const char *)s + from - 1, n - from + 1, &cp);
	return cp == UTF8_PARTIAL ? from - 1 : n;
}

uint32_t forced_run(struct sr_guide *u, int32_t *ids, uint32_t most)
{
	const struct sr_grammar *g = u->g;
	struct earley *y = &u->in->y;
	uint8_t s[RUN_BYTES];
	const uint8_t *piece = NULL;
	uint32_t state = u->state, n = 0, got, kept = 0, bytes = 0, keep;
	bool whole;
	int byte;

	while (n < RUN_BYTES && (byte = only_byte(y, state)) >= 0) {
		uint32_t next = earley_step(y, state, (uint8_t)byte);
		if (next < STATE_FIRST)
			return 0;
		state = next;
		s[n++] = (uint8_t)byte;
	}
	if (!n)
		return 0;
	whole = complete(y, state);
	keep = whole ? n : settled(&g->tokens->all, y, s, n, state);
	n = whole_characters(s, n);
	keep = keep < n ? keep : n;
	got = keep ? tokenize(g, &u->recent, s, n, ids, most) : 0;
	for (; kept < got; kept++) {
		bytes += trie_bytes(&g->t->vocab, ids[kept], &piece);
		if (bytes > keep)
			break;
	}
	if (whole && kept == got && bytes == keep && kept && kept < most && g->eos >= 0)
		ids[kept++] = g->eos;
	return kept;
}
