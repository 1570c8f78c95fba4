/* derive.c - see regex.h.  Derivatives, by all 256 bytes at once, and what is found out with them.
 *
 * The derivatives of an expression are its row: a branch, an expression of its own kind, so equal rows are
 * kept once.  A row is put together from the rows of the parts: bytes that lead to the same list of targets
 * are a class, and each class's target is the union (or intersection) of its list.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nodes.h"

#define LIVE_STATES 50000            /* regex_live(): the most expressions looked at */
#define MEMO 1024

/* A list of targets: this one, and those of cell prev.  Cell 0 is the empty list. */
struct cell { uint32_t prev, target, n; };

/* What the bytes lead to so far. */
struct partition {
	uint32_t at[256];            /* cell of each byte; 0, or counted from base */
	uint32_t base;               /* of its cells */
	uint32_t row;                /* its number, from 1 */
};

static uint32_t row_of(struct regexes *r, uint32_t e);

static void begin(struct regexes *r, struct partition *p)
{
	memset(p->at, 0, sizeof(p->at));
	p->base = r->n_cells;
	p->row = ++r->rows;
}

/* The cell of a byte that leads to target besides. */
static uint32_t new_cell(struct regexes *r, const struct partition *p, uint32_t prev, uint32_t target)
{
	if (!ROOM(r, cell, n_cells, 1, cells_cap))
		return 0;
	r->cell[r->n_cells] = (struct cell){ prev, target, prev ? r->cell[p->base + prev - 1].n + 1 : 1 };
	r->n_cells++;
	return r->n_cells - p->base;
}

/* The class of bytes that lead to REGEX_NONE, or 256. */
static uint32_t dead_class(const struct regexes *r, const struct node *branch)
{
	uint32_t k;

	for (k = 0; k < branch->c; k++)
		if (r->word[branch->b + k] == REGEX_NONE)
			return k;
	return 256;
}

/* Each byte leads to its target in row besides, followed by tail. */
static void add_row(struct regexes *r, struct partition *p, uint32_t row, uint32_t tail)
{
	uint32_t key[MEMO], value[MEMO], target[256], n, dead, last = UINT32_MAX, cell = 0;
	uint64_t used[MEMO / 64] = { 0 }, eight, skip;
	const uint8_t *class;

	if (row == REGEX_NONE || row == REGEX_FAILED)
		return;
	n = r->node[row].c;
	for (uint32_t i = 0; i < n; i++)
		target[i] = regex_concat(r, r->word[r->node[row].b + i], tail);
	dead = dead_class(r, &r->node[row]);
	class = r->map[r->node[row].a].class;
	skip = dead * 0x0101010101010101u;
	for (int b = 0; b < 256 && !r->error; b++) {
		uint32_t k, i;

		if (!(b & 7) && dead < 256) {                /* most rows are of few bytes */
			memcpy(&eight, class + b, 8);
			if (eight == skip) {
				b += 7;
				continue;
			}
		}
		k = p->at[b] << 8 | class[b];
		if (class[b] == dead)
			continue;
		if (k == last) {
			p->at[b] = cell;
			continue;
		}
		for (i = (k * 0x9e3779b1u) >> 22; used[i / 64] >> i % 64 & 1 && key[i] != k; i = (i + 1) % MEMO)
			;
		if (!(used[i / 64] >> i % 64 & 1)) {
			used[i / 64] |= 1ull << i % 64;
			key[i] = k;
			value[i] = new_cell(r, p, p->at[b], target[class[b]]);
		}
		last = k;
		p->at[b] = cell = value[i];
	}
}

static void add_byte(struct regexes *r, struct partition *p, uint8_t byte, uint32_t target)
{
	if (target != REGEX_NONE && target != REGEX_FAILED)
		p->at[byte] = new_cell(r, p, p->at[byte], target);
}

/* The targets of a byte, as one expression. */
static uint32_t combine(struct regexes *r, const struct partition *p, uint32_t cell, uint32_t need,
                        bool is_or)
{
	uint32_t small[32], *list = small, e, n;

	if (!cell)
		return REGEX_NONE;
	n = r->cell[p->base + cell - 1].n;
	if (n < need)
		return REGEX_NONE;
	if (n > 32 && !(list = malloc(n * sizeof(*list)))) {
		regexes_fail(r, -ENOMEM);
		return REGEX_FAILED;
	}
	for (uint32_t i = n; cell;) {        /* newest first: so the list is nearly sorted */
		list[--i] = r->cell[p->base + cell - 1].target;
		cell = r->cell[p->base + cell - 1].prev;
	}
	e = n == 1 ? list[0] : is_or ? regex_or_all(r, list, n) : regex_and_all(r, list, n);
	if (list != small)
		free(list);
	return e;
}

/* The row of a partition; a byte that leads to fewer than `need` targets leads to none.  Ends the partition.
 * */
static uint32_t finish(struct regexes *r, struct partition *p, uint32_t need, bool is_or)
{
	uint32_t seen[256], target[256], n = 0;
	bool distinct = true;
	struct map of;

	for (int b = 0; b < 256; b++) {
		uint32_t k;

		if (b && p->at[b] == p->at[b - 1]) {
			of.class[b] = of.class[b - 1];
			continue;
		}
		for (k = 0; k < n && seen[k] != p->at[b]; k++)
			;
		if (k == n) {
			seen[n] = p->at[b];
			target[n] = combine(r, p, p->at[b], need, is_or);
			for (uint32_t i = 0; i < n; i++)
				distinct &= target[i] != target[n];
			n++;
		}
		of.class[b] = (uint8_t)k;
	}
	r->n_cells = p->base;
	if (r->error)
		return REGEX_FAILED;
	if (distinct && (n > 1 || target[0] != REGEX_NONE))
		return node_same_map(r, node_map(r, &of), target, n);
	return node_branch(r, of.class, target);
}

/* A repetition, once less. */
static uint32_t one_less(struct regexes *r, const struct node *n)
{
	return regex_repeat(r, n->a, n->b ? n->b - 1 : 0, n->c == REGEX_MANY ? n->c : n->c - 1);
}

/* The bytes with which e begins, each once.  Goes on behind what may be empty. */
static void add_chain(struct regexes *r, struct partition *p, uint32_t e)
{
	for (bool more = true; more && !r->error;) {
		const struct node *n = &r->node[e];
		uint32_t head = n->kind == NODE_CONCAT ? n->a : e, then = n->kind == NODE_CONCAT ? n->b : REGEX_EMPTY;
		struct node h = r->node[head];

		if (n->seen == p->row)
			return;
		r->node[e].seen = p->row;
		r->work++;
		if (h.kind == NODE_LITERAL)
			add_byte(r, p, r->byte[h.a], regex_concat(r, node_literal_rest(r, head), then));
		else if (h.kind == NODE_REPEAT)
			add_row(r, p, row_of(r, h.a), regex_concat(r, one_less(r, &h), then));
		else
			add_row(r, p, row_of(r, head), then);
		more = h.flags & NODE_NULLABLE && then != REGEX_EMPTY;
		e = then;
	}
}

/* A row with each target followed by tail. */
static uint32_t row_followed(struct regexes *r, uint32_t row, uint32_t tail)
{
	uint32_t target[256], n, map;

	if (row == REGEX_NONE || row == REGEX_FAILED || tail == REGEX_EMPTY)
		return row;
	n = r->node[row].c;
	map = r->node[row].a;
	for (uint32_t i = 0; i < n; i++) {
		target[i] = regex_concat(r, r->word[r->node[row].b + i], tail);
		for (uint32_t k = 0; k < i; k++)
			if (target[k] == target[i]) {
				struct partition p;

				begin(r, &p);
				add_row(r, &p, row, tail);
				return finish(r, &p, 1, true);
			}
	}
	return node_same_map(r, map, target, n);
}

/* The row of what is no union or intersection. */
static uint32_t row_of_chain(struct regexes *r, uint32_t e)
{
	const struct node *n = &r->node[e];
	uint32_t head = n->kind == NODE_CONCAT ? n->a : e, tail = n->kind == NODE_CONCAT ? n->b : REGEX_EMPTY;
	const struct node h = r->node[head];
	struct partition p;

	if (h.flags & NODE_NULLABLE && tail != REGEX_EMPTY) {
		begin(r, &p);
		add_chain(r, &p, e);
		return finish(r, &p, 1, true);
	}
	r->work++;
	switch (h.kind) {
	case NODE_LITERAL:
		return node_byte(r, r->byte[h.a], regex_concat(r, node_literal_rest(r, head), tail));
	case NODE_REPEAT:
		return row_followed(r, row_of(r, h.a), regex_concat(r, one_less(r, &h), tail));
	default:
		return row_followed(r, row_of(r, head), tail);
	}
}

static uint32_t row_of_not(struct regexes *r, uint32_t a)
{
	static const uint8_t one_class[256];
	uint32_t row = row_of(r, a), target[256], n;
	uint8_t of[256];

	if (row == REGEX_FAILED)
		return row;
	if (row == REGEX_NONE)
		return node_branch(r, one_class, (uint32_t[]){ REGEX_ANY });
	n = r->node[row].c;
	for (uint32_t i = 0; i < n; i++)
		target[i] = regex_not(r, r->word[r->node[row].b + i]);
	memcpy(of, r->map[r->node[row].a].class, 256);
	return node_branch(r, of, target);
}

static uint32_t make_row(struct regexes *r, uint32_t e)
{
	static const uint8_t one_class[256];
	const struct node n = r->node[e];
	struct partition p;

	switch (n.kind) {
	case NODE_NONE: case NODE_EMPTY:
		return REGEX_NONE;
	case NODE_ANY:
		return node_branch(r, one_class, (uint32_t[]){ REGEX_ANY });
	case NODE_BRANCH:
		return e;
	case NODE_MULTIPLE:
		return node_multiple_row(r, e);
	case NODE_NOT:
		return row_of_not(r, n.a);
	case NODE_OR:
		begin(r, &p);
		for (uint32_t i = 0; i < n.c && !r->error; i++)
			add_chain(r, &p, r->word[n.b + i]);
		return finish(r, &p, 1, true);
	case NODE_AND:
		begin(r, &p);
		for (uint32_t i = 0; i < n.c && !r->error; i++)
			add_row(r, &p, row_of(r, r->word[n.b + i]), REGEX_EMPTY);
		return finish(r, &p, n.c, false);
	default:
		return row_of_chain(r, e);
	}
}

static uint32_t row_of(struct regexes *r, uint32_t e)
{
	uint32_t row;

	if (e == REGEX_FAILED || r->error)
		return REGEX_FAILED;
	if (r->node[e].row == REGEX_FAILED) {
		row = make_row(r, e);
		r->node[e].row = row;
	}
	return r->node[e].row;
}

int regex_row(struct regexes *r, uint32_t e, struct regex_row *out)
{
	static const uint32_t none = REGEX_NONE;
	uint32_t row = row_of(r, e);
	const struct node *n;

	if (row == REGEX_FAILED)
		return r->error ? r->error : -EINVAL;
	if (row == REGEX_NONE) {
		*out = (struct regex_row){ r->map[0].class, &none, 1 };
		return 0;
	}
	n = &r->node[row];
	*out = (struct regex_row){ r->map[n->a].class, r->word + n->b, n->c };
	return 0;
}

bool regex_nullable(const struct regexes *r, uint32_t e)
{
	return e != REGEX_FAILED && node_nullable(r, e);
}

bool regex_simple(const struct regexes *r, uint32_t e)
{
	return e != REGEX_FAILED && r->node[e].flags & NODE_SIMPLE;
}

uint32_t regex_derive(struct regexes *r, uint32_t e, uint8_t byte)
{
	struct regex_row row;

	return regex_row(r, e, &row) ? REGEX_FAILED : row.target[row.class[byte]];
}

int regex_first(struct regexes *r, uint32_t e, uint64_t set[4])
{
	struct regex_row row;
	int rc = regex_row(r, e, &row);

	memset(set, 0, 4 * sizeof(*set));
	for (int b = 0; b < 256 && !rc; b++)
		if (row.target[row.class[b]] != REGEX_NONE)
			set[b / 64] |= 1ull << b % 64;
	return rc;
}

/* ---- liveness ---- */

/* 1 or 0 if that is known of e without looking further, else -1. */
static int known_live(const struct regexes *r, uint32_t e)
{
	uint8_t f = r->node[e].flags;

	if (e == REGEX_NONE || f & NODE_DEAD)
		return 0;
	return f & (NODE_NULLABLE | NODE_SIMPLE | NODE_LIVE) ? 1 : -1;
}

/* Places of the queue: pairs of an expression and the place it was reached from.  Expressions in the queue
 * are found again by a hash table behind it. */
struct search { uint32_t *at, *from, *table, mask, n, most; };

static bool enter(struct search *s, uint32_t e, uint32_t from)
{
	uint32_t i = (e * 0x9e3779b1u) >> 7 & s->mask;

	for (; s->table[i]; i = (i + 1) & s->mask)
		if (s->at[s->table[i] - 1] == e)
			return true;
	if (s->n == s->most)
		return false;
	s->at[s->n] = e;
	s->from[s->n++] = from;
	s->table[i] = s->n;
	return true;
}

/* Breadth first: the shortest string is found first.  Live: so is all on the way.  Dead: so is all that was
 * seen. */
static int search(struct regexes *r, struct search *s, uint32_t e)
{
	enter(s, e, UINT32_MAX);
	for (uint32_t i = 0; i < s->n; i++) {
		struct regex_row row;
		int rc = regex_row(r, s->at[i], &row);

		for (uint32_t k = 0; k < row.n && !rc; k++) {
			int live = known_live(r, row.target[k]);

			if (live == 1) {
				for (; i != UINT32_MAX; i = s->from[i])
					r->node[s->at[i]].flags |= NODE_LIVE;
				return 1;
			}
			if (live == -1 && !enter(s, row.target[k], i))
				return -E2BIG;
		}
		if (rc)
			return rc;
	}
	for (uint32_t i = 0; i < s->n; i++)
		r->node[s->at[i]].flags |= NODE_DEAD;
	return 0;
}

static int search_within(struct regexes *r, uint32_t e, uint32_t most)
{
	uint32_t slots = 64;
	struct search s = { .most = most };
	int rc = -ENOMEM;

	while (slots < 2 * most)
		slots *= 2;
	s.mask = slots - 1;
	s.at = malloc(2 * sizeof(*s.at) * most);
	s.table = calloc(slots, sizeof(*s.table));
	s.from = s.at + most;
	if (s.at && s.table)
		rc = search(r, &s, e);
	free(s.at);
	free(s.table);
	return rc;
}

int regex_live(struct regexes *r, uint32_t e)
{
	int rc;

	if (e == REGEX_FAILED || r->error)
		return r->error ? r->error : -EINVAL;
	rc = known_live(r, e);
	for (uint32_t most = LIVE_STATES / 625; rc < 0; most *= 25) {
		rc = search_within(r, e, most);
		if (rc != -E2BIG || r->error || most == LIVE_STATES)
			return rc;
	}
	return rc;
}

/* ---- clamping ---- */

static uint32_t clamp_list(struct regexes *r, uint32_t e, uint32_t most)
{
	uint32_t n = r->node[e].c, *list = malloc(n * sizeof(*list)), out;

	if (!list) {
		regexes_fail(r, -ENOMEM);
		return REGEX_FAILED;
	}
	for (uint32_t i = 0; i < n; i++)
		list[i] = regex_clamp(r, r->word[r->node[e].b + i], most);
	out = regex_or_all(r, list, n);
	free(list);
	return out;
}

/* A text of `most` bytes ends or goes on within x{m,n} as within x{min(m, most + 1), n}, and, if n > most, as
 * within x{..,}: each x takes a byte. */
uint32_t regex_clamp(struct regexes *r, uint32_t e, uint32_t most)
{
	uint32_t head, rest, base;
	struct node n;

	if (e == REGEX_FAILED || !(r->node[e].flags & NODE_COUNTED))
		return e;
	n = r->node[e];
	switch (n.kind) {
	case NODE_REPEAT:
		return regex_repeat(r, n.a, n.b > most ? most + 1 : n.b, n.c > most ? REGEX_MANY : n.c);
	case NODE_OR:
		return clamp_list(r, e, most);
	default:
		break;
	}
	/* A concatenation may be long: no recursion on its length. */
	base = r->n_list;
	for (rest = e; r->node[rest].kind == NODE_CONCAT; rest = r->node[rest].b) {
		if (!ROOM(r, list, n_list, 1, list_cap))
			return REGEX_FAILED;
		r->list[r->n_list++] = r->node[rest].a;
	}
	rest = regex_clamp(r, rest, most);
	while (r->n_list > base) {
		head = r->list[--r->n_list];
		rest = regex_concat(r, regex_clamp(r, head, most), rest);
	}
	return rest;
}
