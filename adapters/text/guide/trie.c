/* trie.c - see trie.h: sort the tokens by their bytes; the tree is what neighbours share. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trie.h"
#include "adapters/text/unicode/utf8.h"
#include "adapters/text/vocab.h"

uint32_t trie_bytes(const struct vocab *v, int32_t id, const uint8_t **s)
{
	if (id < 0 || id >= v->n || !(v->kind[id] & VOCAB_THERE) || v->kind[id] & VOCAB_SPECIAL ||
	    v->piece[id].n > TRIE_DEPTH)
		return 0;
	*s = (const uint8_t *)v->chars + v->piece[id].at;
	return v->piece[id].n;
}

struct word { const uint8_t *s; uint32_t n; int32_t id; };

static int by_bytes(const void *pa, const void *pb)
{
	const struct word *a = pa, *b = pb;
	int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);

	if (c || a->n != b->n)
		return c ? c : a->n < b->n ? -1 : 1;
	return a->id < b->id ? -1 : a->id > b->id;
}

static uint32_t shared(const struct word *a, const struct word *b)
{
	uint32_t n = 0;

	while (n < a->n && n < b->n && a->s[n] == b->s[n])
		n++;
	return n;
}

static uint32_t count_nodes(const struct word *w, uint32_t n)
{
	uint64_t nodes = 0;

	for (uint32_t i = 0; i < n; i++)
		nodes += w[i].n - (i ? shared(&w[i - 1], &w[i]) : 0);
	return nodes < TRIE_NONE ? (uint32_t)nodes : TRIE_NONE;
}

/* open[d] is the node of depth d that is still open: its size is known when it closes. */
static void place(struct trie *t, const struct word *w, uint32_t n)
{
	uint32_t open[TRIE_DEPTH + 1], depth = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t common = i ? shared(&w[i - 1], &w[i]) : 0;
		if (i && common == w[i].n && common == w[i - 1].n) {
			t->twin[w[i - 1].id] = w[i].id;
			t->twins = true;
			continue;
		}
		for (; depth > common; depth--)
			t->node[open[depth]].size = t->n - open[depth];
		for (; depth < w[i].n; t->n++) {
			open[++depth] = t->n;
			t->node[t->n] = (struct trie_node){ .byte = w[i].s[depth - 1], .token = TRIE_NONE,
				.depth = depth };
		}
		t->node[open[depth]].token = (uint32_t)w[i].id;
		if (w[i].n > t->longest)
			t->longest = w[i].n;
	}
	for (; depth; depth--)
		t->node[open[depth]].size = t->n - open[depth];
}

static void trie_free(struct trie *t)
{
	free(t->node);
	free(t->twin);
	*t = (struct trie){ 0 };
}

/* Of all tokens but those of the bit set `without` (NULL = none). */
static int trie_create(struct trie *t, const struct vocab *v, const uint32_t *without)
{
	struct word *w = malloc((size_t)(v->n + 1) * sizeof(*w));
	uint32_t n = 0, nodes;

	*t = (struct trie){ .twin = malloc((size_t)(v->n + 1) * sizeof(*t->twin)) };
	if (w && t->twin) {
		for (int32_t id = 0; id < v->n; id++) {
			t->twin[id] = -1;
			if (without && without[id / 32] >> id % 32 & 1)
				continue;
			w[n].id = id;
			w[n].n = trie_bytes(v, id, &w[n].s);
			n += w[n].n > 0;
		}
		qsort(w, n, sizeof(*w), by_bytes);
		nodes = count_nodes(w, n);
		if (nodes < TRIE_NONE)
			t->node = malloc((nodes + 1) * sizeof(*t->node));
	}
	if (t->node)
		place(t, w, n);
	free(w);
	if (t->node)
		return 0;
	trie_free(t);
	return -ENOMEM;
}

/* The characters of a plain token; 0: it is not plain. */
static uint32_t plain_length(const uint8_t *s, uint32_t n)
{
	uint32_t k = 0, cp;

	for (uint32_t i = 0; i < n; k++) {
		i += utf8_next((const char *)s + i, n - i, &cp);
		if (cp == UTF8_BAD || cp == UTF8_PARTIAL || cp < 0x20 || cp == '"' || cp == '\\' || k == PLAIN_MOST)
			return 0;
	}
	return k;
}

/* Walk both trees at once: each path of `rest` is one of `all`. */
static void match_nodes(struct tokens *t)
{
	uint32_t at[TRIE_DEPTH + 2] = { 0 };            /* by depth: where the search in `all` goes on */

	for (uint32_t i = 0; i < t->rest.n; i++) {
		const struct trie_node *n = &t->rest.node[i];
		uint32_t a = at[n->depth];
		while (t->all.node[a].byte != n->byte)
			a += t->all.node[a].size;
		t->in_all[i] = a;
		at[n->depth] = a + t->all.node[a].size;
		at[n->depth + 1] = a + 1;
	}
}

int tokens_create(struct tokens *t, const struct vocab *v, uint32_t vocab)
{
	const uint8_t *s = NULL;
	uint32_t *plain;
	int rc;

	*t = (struct tokens){ .words = (vocab + 31) / 32 };
	if (t->words < ((uint32_t)v->n + 31) / 32)
		t->words = ((uint32_t)v->n + 31) / 32;
	t->plain = calloc((PLAIN_MOST + 1) * (size_t)t->words + 1, sizeof(*t->plain));
	if (!t->plain)
		return -ENOMEM;
	for (int32_t id = 0; id < v->n; id++) {
		uint32_t n = trie_bytes(v, id, &s), k = n ? plain_length(s, n) : 0;
		for (; k && k <= PLAIN_MOST; k++)
			t->plain[k * t->words + (uint32_t)id / 32] |= 1u << id % 32;
	}
	plain = t->plain + PLAIN_MOST * (size_t)t->words;
	rc = trie_create(&t->all, v, NULL);
	if (!rc)
		rc = trie_create(&t->rest, v, plain);
	if (!rc) {
		t->in_all = malloc((t->rest.n + 1) * sizeof(*t->in_all));
		rc = t->in_all ? 0 : -ENOMEM;
	}
	if (!rc)
		match_nodes(t);
	else
		tokens_free(t);
	return rc;
}

void tokens_free(struct tokens *t)
{
	trie_free(&t->all);
	trie_free(&t->rest);
	free(t->in_all);
	free(t->plain);
	*t = (struct tokens){ 0 };
}
