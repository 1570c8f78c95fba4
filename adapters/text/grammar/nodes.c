/* nodes.c - see nodes.h.  The store of expressions, and those of plain bytes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nodes.h"

#define PRIME 0x01000193u            /* odd, so a literal's hash can be undone */

/* ---- store ---- */

void regexes_fail(struct regexes *r, int code)
{
	if (!r->error)
		r->error = code;
}

int regexes_error(const struct regexes *r)
{
	return r->error;
}

uint32_t regexes_count(const struct regexes *r)
{
	return r->n;
}

uint64_t regexes_work(const struct regexes *r)
{
	return r->work;
}

void *node_grow(struct regexes *r, void *p, uint32_t n, uint32_t more, uint32_t *cap, size_t size)
{
	uint64_t want = *cap ? *cap : 64;
	void *q;

	if ((uint64_t)n + more <= *cap)
		return p;
	while (want < (uint64_t)n + more)
		want *= 2;
	q = want > UINT32_MAX / 8 ? NULL : realloc(p, want * size);
	if (!q) {
		regexes_fail(r, -ENOMEM);
		return NULL;
	}
	*cap = (uint32_t)want;
	return q;
}

static uint32_t mix(uint32_t h, uint32_t v)
{
	h = (h ^ v) * 0x9e3779b1u;
	return h ^ h >> 15;
}

static uint32_t hash_of(const struct regexes *r, const struct node *n)
{
	uint32_t h = mix(n->kind, n->a);

	switch (n->kind) {
	case NODE_LITERAL:
		return mix(mix(n->kind, n->b), n->c);
	case NODE_OR: case NODE_AND:
		h = n->kind;
		/* fall through */
	case NODE_BRANCH:
		for (uint32_t i = 0; i < n->c; i++)
			h = mix(h, r->word[n->b + i]);
		return h;
	default:
		return mix(mix(h, n->b), n->c);
	}
}

static bool same(const struct regexes *r, const struct node *x, const struct node *y)
{
	if (x->hash != y->hash || x->kind != y->kind)
		return false;
	switch (x->kind) {
	case NODE_LITERAL:
		return x->b == y->b && (x->a == y->a || !memcmp(r->byte + x->a, r->byte + y->a, x->b));
	case NODE_BRANCH: case NODE_OR: case NODE_AND:
		return x->a == y->a && x->c == y->c &&
		       !memcmp(r->word + x->b, r->word + y->b, x->c * sizeof(*r->word));
	default:
		return x->a == y->a && x->b == y->b && x->c == y->c;
	}
}

static int rehash(struct regexes *r)
{
	uint32_t slots = r->slots ? r->slots * 2 : 256, *slot;

	if (r->slots && r->n < r->slots / 2)
		return 0;
	slot = calloc(slots, sizeof(*slot));
	if (!slot) {
		regexes_fail(r, -ENOMEM);
		return -ENOMEM;
	}
	for (uint32_t e = REGEX_ANY + 1; e < r->n; e++) {
		uint32_t i = r->node[e].hash & (slots - 1);

		while (slot[i])
			i = (i + 1) & (slots - 1);
		slot[i] = e;
	}
	free(r->slot);
	r->slot = slot;
	r->slots = slots;
	return 0;
}

uint32_t node_intern(struct regexes *r, struct node n, bool *new)
{
	uint32_t i;

	*new = false;
	if (r->error)
		return REGEX_FAILED;
	n.hash = hash_of(r, &n);
	n.row = REGEX_FAILED;
	for (i = n.hash & (r->slots - 1); r->slot[i]; i = (i + 1) & (r->slots - 1))
		if (same(r, &r->node[r->slot[i]], &n))
			return r->slot[i];
	if (r->n >= r->most || n.depth > NODE_DEPTH || r->n_words / 16 > r->most) {
		regexes_fail(r, -E2BIG);
		return REGEX_FAILED;
	}
	if (!ROOM(r, node, n, 1, cap))
		return REGEX_FAILED;
	r->node[r->n] = n;
	r->slot[i] = r->n++;
	*new = true;
	return rehash(r) ? REGEX_FAILED : r->n - 1;
}

struct regexes *regexes_create(uint32_t most)
{
	struct regexes *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->most = most < 8 ? 8 : most;
	for (int i = 0; i < REGEX_ALPHABETS; i++)
		r->letter[i] = r->universe[i] = REGEX_FAILED;
	if (!ROOM(r, node, n, 256, cap) || !ROOM(r, map, n_maps, 16, maps_cap) || rehash(r)) {
		regexes_free(r);
		return NULL;
	}
	r->node[REGEX_NONE] =
		(struct node){ .kind = NODE_NONE, .flags = NODE_SIMPLE | NODE_DEAD, .row = REGEX_NONE };
	r->node[REGEX_EMPTY] = (struct node){ .kind = NODE_EMPTY, .row = REGEX_NONE,
		.flags = NODE_SIMPLE | NODE_NULLABLE | LETTERS(UINT8_MAX) };
	r->node[REGEX_ANY] =
		(struct node){ .kind = NODE_ANY, .flags = NODE_SIMPLE | NODE_NULLABLE, .row = REGEX_FAILED };
	r->n = REGEX_ANY + 1;
	memset(&r->map[0], 0, sizeof(r->map[0]));
	r->n_maps = 1;
	return r;
}

void regexes_free(struct regexes *r)
{
	if (!r)
		return;
	free(r->node);
	free(r->slot);
	free(r->word);
	free(r->byte);
	free(r->map);
	free(r->map_slot);
	free(r->list);
	free(r->cell);
	free(r);
}

/* ---- bytes ---- */

static uint32_t map_hash(const struct map *m)
{
	uint64_t h = 0, v;

	for (int i = 0; i < 256; i += 8) {
		memcpy(&v, m->class + i, 8);
		h = (h ^ v) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	return (uint32_t)(h ^ h >> 32);
}

uint32_t node_map(struct regexes *r, const struct map *m)
{
	uint32_t i;

	if (r->n_maps * 2 >= r->map_slots) {
		uint32_t slots = r->map_slots ? r->map_slots * 2 : 64, *slot = calloc(slots, sizeof(*slot));

		if (!slot) {
			regexes_fail(r, -ENOMEM);
			return REGEX_FAILED;
		}
		for (uint32_t k = 1; k < r->n_maps; k++) {
			for (i = map_hash(&r->map[k]) & (slots - 1); slot[i]; i = (i + 1) & (slots - 1))
				;
			slot[i] = k;
		}
		free(r->map_slot);
		r->map_slot = slot;
		r->map_slots = slots;
	}
	if (!memcmp(m, &r->map[0], sizeof(*m)))
		return 0;
	for (i = map_hash(m) & (r->map_slots - 1); r->map_slot[i]; i = (i + 1) & (r->map_slots - 1))
		if (!memcmp(m, &r->map[r->map_slot[i]], sizeof(*m)))
			return r->map_slot[i];
	if (!ROOM(r, map, n_maps, 1, maps_cap))
		return REGEX_FAILED;
	r->map[r->n_maps] = *m;
	r->map_slot[i] = r->n_maps;
	return r->n_maps++;
}

uint32_t node_same_map(struct regexes *r, uint32_t map, const uint32_t *target, uint32_t n)
{
	struct node node = { .kind = NODE_BRANCH, .flags = NODE_SIMPLE, .a = map, .c = n };
	uint32_t e;
	bool new;

	if (map == REGEX_FAILED || !ROOM(r, word, n_words, n, words_cap))
		return REGEX_FAILED;
	node.b = r->n_words;
	for (uint32_t i = 0; i < n; i++) {
		if (target[i] == REGEX_FAILED)
			return REGEX_FAILED;
		r->word[node.b + i] = target[i];
		if (!(r->node[target[i]].flags & NODE_SIMPLE))
			node.flags &= (uint8_t)~NODE_SIMPLE;
	}
	e = node_intern(r, node, &new);
	if (new)
		r->n_words += n;
	return e;
}

uint32_t node_branch(struct regexes *r, const uint8_t of[256], const uint32_t *target)
{
	uint32_t distinct[256], k = 0;
	uint8_t class[256], known[256] = { 0 };
	struct map m;

	for (int b = 0; b < 256; b++) {
		uint8_t c = of[b];

		if (!known[c]) {
			uint32_t i;

			for (i = 0; i < k && distinct[i] != target[c]; i++)
				;
			if (i == k)
				distinct[k++] = target[c];
			class[c] = (uint8_t)i;
			known[c] = 1;
		}
		m.class[b] = class[c];
	}
	if (k == 1 && distinct[0] == REGEX_NONE)
		return REGEX_NONE;
	return node_same_map(r, node_map(r, &m), distinct, k);
}

uint32_t node_byte(struct regexes *r, uint8_t byte, uint32_t target)
{
	uint32_t t[2] = { byte ? REGEX_NONE : target, byte ? target : REGEX_NONE };
	struct map m;

	if (target == REGEX_NONE)
		return REGEX_NONE;
	if (!r->byte_map[byte]) {
		memset(m.class, !byte, sizeof(m.class));
		m.class[byte] = !!byte;
		r->byte_map[byte] = node_map(r, &m);
	}
	return node_same_map(r, r->byte_map[byte], t, 2);
}

uint32_t regex_set(struct regexes *r, const uint64_t set[4])
{
	static const uint32_t target[2] = { REGEX_NONE, REGEX_EMPTY };
	uint8_t of[256];

	for (int b = 0; b < 256; b++)
		of[b] = set[b / 64] >> b % 64 & 1;
	return node_branch(r, of, target);
}

uint32_t regex_bytes(struct regexes *r, const void *s, size_t n)
{
	struct node node = { .kind = NODE_LITERAL, .flags = NODE_SIMPLE };
	const uint8_t *p = s;
	uint32_t e;
	bool new;

	if (n < 2)
		return n ? node_byte(r, *p, REGEX_EMPTY) : REGEX_EMPTY;
	if (n > UINT32_MAX / 32) {
		regexes_fail(r, -E2BIG);
		return REGEX_FAILED;
	}
	if (!ROOM(r, byte, n_bytes, (uint32_t)n, bytes_cap))
		return REGEX_FAILED;
	memcpy(r->byte + r->n_bytes, s, n);
	node.a = r->n_bytes;
	node.b = (uint32_t)n;
	for (size_t i = n; i-- > 0;)
		node.c = node.c * PRIME + p[i] + 1;
	e = node_intern(r, node, &new);
	if (new)
		r->n_bytes += (uint32_t)n;
	return e;
}

static uint32_t inverse(uint32_t odd)
{
	uint32_t x = odd;

	for (int i = 0; i < 5; i++)          /* Newton: each turn doubles the right bits, from 3 on */
		x *= 2 - odd * x;
	return x;
}

uint32_t node_literal_rest(struct regexes *r, uint32_t e)
{
	struct node node = { .kind = NODE_LITERAL, .flags = NODE_SIMPLE };
	const struct node *n = &r->node[e];
	bool new;

	if (n->b == 2)
		return node_byte(r, r->byte[n->a + 1], REGEX_EMPTY);
	node.a = n->a + 1;
	node.b = n->b - 1;
	node.c = (n->c - r->byte[n->a] - 1) * inverse(PRIME);
	return node_intern(r, node, &new);
}

