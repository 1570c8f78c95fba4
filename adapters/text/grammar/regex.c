/* regex.c - see regex.h.  The simplifications with which expressions are made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "nodes.h"

#define MERGE_MOST 64                /* counted members of a union that are compared with each other */

static uint32_t deeper(uint32_t x, uint32_t y)
{
	return x > y ? x : y;
}

/* ---- concatenation and repetition ---- */

/* e as a repetition of *base. */
static void as_repeat(const struct regexes *r, uint32_t e, uint32_t *base, uint32_t *min, uint32_t *max)
{
	const struct node *n = &r->node[e];

	*base = n->kind == NODE_REPEAT ? n->a : e;
	*min = n->kind == NODE_REPEAT ? n->b : 1;
	*max = n->kind == NODE_REPEAT ? n->c : 1;
}

static uint32_t add_max(uint32_t x, uint32_t y)
{
	return x == REGEX_MANY || y == REGEX_MANY ? REGEX_MANY : x + y;
}

/* Two repetitions of the same, one after the other, as one; REGEX_NONE: they are not. */
static uint32_t joined(struct regexes *r, uint32_t a, uint32_t b)
{
	uint32_t base, min, max, base2, min2, max2;

	if (r->node[a].kind != NODE_REPEAT && r->node[b].kind != NODE_REPEAT)
		return REGEX_NONE;
	as_repeat(r, a, &base, &min, &max);
	as_repeat(r, b, &base2, &min2, &max2);
	if (base != base2 || (uint64_t)min + min2 >= REGEX_MANY ||
	    (max != REGEX_MANY && max2 != REGEX_MANY && (uint64_t)max + max2 >= REGEX_MANY))
		return REGEX_NONE;
	return regex_repeat(r, base, min + min2, add_max(max, max2));
}

/* a is no concatenation. */
static uint32_t prepend(struct regexes *r, uint32_t a, uint32_t b)
{
	const struct node *x, *y;
	struct node node = { .kind = NODE_CONCAT, .a = a, .b = b };
	uint32_t head, join;
	bool new;

	if (a == REGEX_FAILED || b == REGEX_FAILED)
		return REGEX_FAILED;
	if (a == REGEX_NONE || b == REGEX_NONE)
		return REGEX_NONE;
	if (a == REGEX_EMPTY || b == REGEX_EMPTY)
		return a == REGEX_EMPTY ? b : a;
	head = r->node[b].kind == NODE_CONCAT ? r->node[b].a : b;
	if (a == REGEX_ANY && head == REGEX_ANY)
		return b;
	join = joined(r, a, head);
	if (join != REGEX_NONE)
		return head == b ? join : prepend(r, join, r->node[b].b);
	x = &r->node[a];
	y = &r->node[b];
	node.flags = (uint8_t)((x->flags & y->flags & (NODE_NULLABLE | NODE_SIMPLE)) |
	                       LETTERS(x->flags & y->flags) | ((x->flags | y->flags) & NODE_COUNTED));
	node.depth = (uint16_t)deeper(x->depth + 1u, y->depth);
	return node_intern(r, node, &new);
}

uint32_t regex_concat(struct regexes *r, uint32_t a, uint32_t b)
{
	uint32_t base = r->n_list, e;

	if (a == REGEX_FAILED || b == REGEX_FAILED)
		return REGEX_FAILED;
	if (b == REGEX_NONE || b == REGEX_EMPTY)
		return b == REGEX_NONE ? b : a;
	for (; r->node[a].kind == NODE_CONCAT; a = r->node[a].b) {
		if (!ROOM(r, list, n_list, 1, list_cap))
			return REGEX_FAILED;
		r->list[r->n_list++] = r->node[a].a;
	}
	e = prepend(r, a, b);
	while (r->n_list > base)
		e = prepend(r, r->list[--r->n_list], e);
	return e;
}

/* (base{min2,max2}){min,max} as one repetition of base, if it is one. */
static bool flat(const struct node *in, uint32_t min, uint32_t max, uint32_t *out_min, uint32_t *out_max)
{
	uint64_t n = (uint64_t)in->b * min;

	if (in->b == in->c && min == max && n < REGEX_MANY) {
		*out_min = *out_max = (uint32_t)n;
		return true;
	}
	if (in->b <= 1 && in->c == REGEX_MANY) {
		*out_min = in->b ? min : 0;
		*out_max = REGEX_MANY;
		return true;
	}
	if (in->b == 0 && in->c == 1) {
		*out_min = 0;
		*out_max = max;
		return true;
	}
	return false;
}

static bool all_bytes(const struct regexes *r, uint32_t e)
{
	const struct node *n = &r->node[e];

	return n->kind == NODE_BRANCH && n->a == 0 && r->word[n->b] == REGEX_EMPTY;
}

uint32_t regex_repeat(struct regexes *r, uint32_t a, uint32_t min, uint32_t max)
{
	struct node node = { .kind = NODE_REPEAT };
	const struct node *x;
	bool new;

	if (a == REGEX_FAILED || min > max)
		return a == REGEX_FAILED ? a : REGEX_NONE;
	if (max == 0 || a == REGEX_EMPTY || (a == REGEX_NONE && !min))
		return REGEX_EMPTY;
	if (a <= REGEX_ANY)
		return a;
	x = &r->node[a];
	if (x->flags & NODE_NULLABLE)
		min = 0;
	if (x->kind == NODE_REPEAT && flat(x, min, max, &min, &max)) {
		a = x->a;
		x = &r->node[a];
	}
	if (min == 1 && max == 1)
		return a;
	if (x->flags & NODE_NULLABLE && max == 1)
		return a;
	if (min == 0 && max == REGEX_MANY && all_bytes(r, a))
		return REGEX_ANY;
	node.a = a;
	node.b = min;
	node.c = max;
	node.depth = (uint16_t)(x->depth + 1);
	node.flags = (uint8_t)((x->flags & NODE_SIMPLE) | LETTERS(x->flags) | (min ? 0 : NODE_NULLABLE) |
	                       (min > 1 || (max > 1 && max != REGEX_MANY) ? NODE_COUNTED : 0));
	return node_intern(r, node, &new);
}

/* ---- union, intersection, complement ---- */

static int by_number(const void *x, const void *y)
{
	uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

	return (a > b) - (a < b);
}

/* Put the members of list behind n_list, flat.  0, or -1: one has failed, or there is no room. */
static int put_flat(struct regexes *r, const uint32_t *list, size_t n, uint8_t kind)
{
	for (size_t i = 0; i < n; i++) {
		const struct node *x;
		uint32_t more;

		if (list[i] == REGEX_FAILED)
			return -1;
		x = &r->node[list[i]];
		more = x->kind == kind ? x->c : 1;
		if (!ROOM(r, list, n_list, more, list_cap))
			return -1;
		if (x->kind == kind)
			memcpy(r->list + r->n_list, r->word + x->b, more * sizeof(*r->list));
		else
			r->list[r->n_list] = list[i];
		r->n_list += more;
	}
	return 0;
}

/* Sorted, each once, without `drop`; how many remain. */
static uint32_t tidy(uint32_t *list, uint32_t n, uint32_t drop)
{
	uint32_t k = 1;

	while (k < n && list[k - 1] < list[k])
		k++;
	if (k < n)
		qsort(list, n, sizeof(*list), by_number);
	k = 0;
	for (uint32_t i = 0; i < n; i++)
		if (list[i] != drop && (!k || list[k - 1] != list[i]))
			list[k++] = list[i];
	return k;
}

static bool has(const uint32_t *list, uint32_t n, uint32_t e)
{
	return bsearch(&e, list, n, sizeof(e), by_number) != NULL;
}

/* Repetitions of the same whose counts touch, as one that has both.  EMPTY is any of them, no times. */
static uint32_t hull(struct regexes *r, uint32_t a, uint32_t b)
{
	uint32_t base, min, max, base2, min2, max2;

	as_repeat(r, a, &base, &min, &max);
	as_repeat(r, b, &base2, &min2, &max2);
	if (base != base2 || (uint64_t)min > (uint64_t)max2 + 1 || (uint64_t)min2 > (uint64_t)max + 1)
		return REGEX_NONE;
	return regex_repeat(r, base, min < min2 ? min : min2, max > max2 ? max : max2);
}

/* The union of two expressions that differ only in one repetition's counts, or REGEX_NONE. */
static uint32_t merged(struct regexes *r, uint32_t x, uint32_t y, int depth)
{
	const struct node *m = &r->node[x], *n = &r->node[y];
	uint32_t hx = m->kind == NODE_CONCAT ? m->a : x, tx = m->kind == NODE_CONCAT ? m->b : REGEX_EMPTY;
	uint32_t hy = n->kind == NODE_CONCAT ? n->a : y, ty = n->kind == NODE_CONCAT ? n->b : REGEX_EMPTY;
	uint32_t e = REGEX_NONE;

	if (tx == ty && (e = hull(r, hx, hy)) != REGEX_NONE)
		return regex_concat(r, e, tx);
	if (hx == hy && depth < 8 && (e = merged(r, tx, ty, depth + 1)) != REGEX_NONE)
		return regex_concat(r, hx, e);
	return REGEX_NONE;
}

/* Merge members that differ in counts alone.  Their places become REGEX_NONE but for one. */
static bool merge_counted(struct regexes *r, uint32_t *list, uint32_t n)
{
	uint32_t at[MERGE_MOST], k = 0, e;
	bool any = false;

	for (uint32_t i = 0; i < n && k < MERGE_MOST; i++)
		if (r->node[list[i]].flags & NODE_COUNTED)
			at[k++] = i;
	for (uint32_t i = 0; i < k; i++)
		for (uint32_t j = i + 1; j < k; j++) {
			if (list[at[i]] == REGEX_NONE || list[at[j]] == REGEX_NONE)
				continue;
			e = merged(r, list[at[i]], list[at[j]], 0);
			if (e == REGEX_NONE || e == REGEX_FAILED)
				continue;
			list[at[i]] = e;
			list[at[j]] = REGEX_NONE;
			any = true;
			j = i;
		}
	return any;
}

/* One branch that is the union of all branches in the list that agree where they overlap. */
static bool merge_branches(struct regexes *r, uint32_t *list, uint32_t n)
{
	uint32_t target[256], k = 0, into = 0, e;
	uint8_t of[256] = { 0 };
	bool any = false;

	for (uint32_t i = 0; i < n; i++) {
		const struct node *x = &r->node[list[i]];
		uint32_t b, t, c;

		if (x->kind != NODE_BRANCH)
			continue;
		if (!k) {
			memcpy(of, r->map[x->a].class, 256);
			k = x->c;
			memcpy(target, r->word + x->b, k * sizeof(*target));
			into = i;
			continue;
		}
		for (b = 0; b < 256; b++) {
			t = r->word[x->b + r->map[x->a].class[b]];
			if (t != REGEX_NONE && target[of[b]] != REGEX_NONE && target[of[b]] != t)
				break;
		}
		if (b < 256)
			continue;
		for (b = 0; b < 256; b++) {
			t = r->word[x->b + r->map[x->a].class[b]];
			if (t == REGEX_NONE)
				continue;
			for (c = 0; c < k && target[c] != t; c++)
				;
			if (c == 256)                /* 255 targets, and this byte alone had none */
				c = of[b];
			target[c] = t;
			k = c == k ? k + 1 : k;
			of[b] = (uint8_t)c;
		}
		list[i] = REGEX_NONE;
		any = true;
	}
	if (!any)
		return false;
	e = node_branch(r, of, target);
	list[into] = e == REGEX_FAILED ? REGEX_NONE : e;     /* a failure is sticky: nobody uses the list */
	return true;
}

/* Intern a list node, of list[base ..] of n members, at least 2. */
static uint32_t list_node(struct regexes *r, uint8_t kind, const uint32_t *list, uint32_t n)
{
	struct node node = { .kind = kind, .c = n };
	uint32_t all = UINT8_MAX, some = 0, e;
	bool new;

	if (!ROOM(r, word, n_words, n, words_cap))
		return REGEX_FAILED;
	node.b = r->n_words;
	memcpy(r->word + node.b, list, n * sizeof(*list));
	for (uint32_t i = 0; i < n; i++) {
		all &= r->node[list[i]].flags;
		some |= r->node[list[i]].flags;
		node.depth = (uint16_t)deeper(node.depth, r->node[list[i]].depth + 1u);
	}
	if (kind == NODE_OR)
		node.flags = (uint8_t)((some & (NODE_NULLABLE | NODE_COUNTED)) | (all & NODE_SIMPLE) | LETTERS(all));
	else
		node.flags = (uint8_t)((all & NODE_NULLABLE) | LETTERS(some));
	e = node_intern(r, node, &new);
	if (new)
		r->n_words += n;
	return e;
}

/* Drop what letter* absorbs (a union), or letter* itself (an intersection). */
static void absorb(const struct regexes *r, uint32_t *list, uint32_t n, bool is_or)
{
	for (int w = 0; w < REGEX_ALPHABETS; w++) {
		if (r->universe[w] == REGEX_FAILED || !has(list, n, r->universe[w]))
			continue;
		for (uint32_t i = 0, at = 0; i < n; i++) {
			if (list[i] == r->universe[w])
				at = i;
			else if (r->node[list[i]].flags & NODE_LETTER << w && is_or)
				list[i] = REGEX_NONE;
			else if (r->node[list[i]].flags & NODE_LETTER << w) {
				for (at = 0; list[at] != r->universe[w]; at++)
					;
				list[at] = REGEX_ANY;
				break;
			}
		}
		return;
	}
}

static bool simplify_or(struct regexes *r, uint32_t *list, uint32_t *n)
{
	uint32_t nullable = 0;
	bool merged_any;

	if (has(list, *n, REGEX_ANY))
		return true;
	for (uint32_t i = 0; i < *n; i++) {
		if (r->node[list[i]].kind == NODE_NOT && has(list, *n, r->node[list[i]].a))
			return true;
		nullable += node_nullable(r, list[i]);
	}
	if (nullable > 1 && list[0] == REGEX_EMPTY)
		list[0] = REGEX_NONE;
	*n = tidy(list, *n, REGEX_NONE);
	absorb(r, list, *n, true);
	*n = tidy(list, *n, REGEX_NONE);
	do {
		merged_any = merge_branches(r, list, *n);
		merged_any |= merge_counted(r, list, *n);
		*n = tidy(list, *n, REGEX_NONE);
	} while (merged_any);
	return false;
}

uint32_t regex_or_all(struct regexes *r, const uint32_t *members, size_t count)
{
	uint32_t base = r->n_list, n, e, *list;

	if (put_flat(r, members, count, NODE_OR)) {
		r->n_list = base;
		return REGEX_FAILED;
	}
	/* What follows concatenates, which uses r->list behind n_list and may move it: so a copy. */
	n = tidy(r->list + base, r->n_list - base, REGEX_NONE);
	r->n_list = base;
	r->work += n / 8;
	if (n < 2)
		return n ? r->list[base] : REGEX_NONE;
	list = malloc(n * sizeof(*list));
	if (!list) {
		regexes_fail(r, -ENOMEM);
		return REGEX_FAILED;
	}
	memcpy(list, r->list + base, n * sizeof(*list));
	if (simplify_or(r, list, &n))
		e = REGEX_ANY;
	else
		e = n > 1 ? list_node(r, NODE_OR, list, n) : n ? list[0] : REGEX_NONE;
	free(list);
	return r->error ? REGEX_FAILED : e;
}

uint32_t regex_or(struct regexes *r, uint32_t a, uint32_t b)
{
	if (a == b || a == REGEX_NONE)
		return b;
	return b == REGEX_NONE ? a : regex_or_all(r, (uint32_t[]){ a, b }, 2);
}

/* Repetitions of an alphabet's letter: a sequence of letters has one count, so counts intersect. */
static uint32_t and_counts(struct regexes *r, uint32_t a, uint32_t b)
{
	uint32_t base, min, max, base2, min2, max2;

	as_repeat(r, a, &base, &min, &max);
	as_repeat(r, b, &base2, &min2, &max2);
	if (base != base2 || (base != r->letter[REGEX_TEXT] && base != r->letter[REGEX_JSON]))
		return REGEX_FAILED;
	return regex_repeat(r, base, min > min2 ? min : min2, max < max2 ? max : max2);
}

static bool only_ends(const struct regexes *r, uint32_t e)
{
	const struct node *n = &r->node[e];

	if (n->kind != NODE_BRANCH)
		return false;
	for (uint32_t i = 0; i < n->c; i++)
		if (r->word[n->b + i] > REGEX_EMPTY)
			return false;
	return true;
}

static uint32_t and_sets(struct regexes *r, uint32_t a, uint32_t b)
{
	uint64_t x[4], y[4];

	if (!only_ends(r, a) || !only_ends(r, b) || regex_first(r, a, x) || regex_first(r, b, y))
		return REGEX_FAILED;
	for (int i = 0; i < 4; i++)
		x[i] &= y[i];
	return regex_set(r, x);
}

/* Merge what can be merged by two; true if the whole is empty. */
static bool simplify_and(struct regexes *r, uint32_t *list, uint32_t *n)
{
	uint32_t not = REGEX_FAILED, e;
	uint32_t k;

	absorb(r, list, *n, false);
	k = tidy(list, *n, REGEX_ANY);
	for (uint32_t i = 0; i < k; i++) {
		const struct node *x = &r->node[list[i]];

		if (list[i] == REGEX_NONE || (x->kind == NODE_NOT && has(list, k, x->a)))
			return true;
	}
	for (uint32_t i = 0; i < k; i++) {
		if (list[i] == REGEX_ANY)
			continue;
		if (r->node[list[i]].kind == NODE_NOT) {
			e = r->node[list[i]].a;
			not = not == REGEX_FAILED ? e : regex_or(r, not, e);
			list[i] = REGEX_ANY;
			continue;
		}
		for (uint32_t j = i + 1; j < k; j++) {
			if (list[j] == REGEX_ANY)
				continue;
			e = and_counts(r, list[i], list[j]);
			if (e == REGEX_FAILED)
				e = and_sets(r, list[i], list[j]);
			if (e == REGEX_FAILED)
				continue;
			list[i] = e;
			list[j] = REGEX_ANY;
		}
	}
	if (not != REGEX_FAILED)
		list[k++] = regex_not(r, not);           /* at least one place has become free */
	*n = tidy(list, k, REGEX_ANY);
	return r->error || (*n && list[0] == REGEX_NONE);
}

uint32_t regex_and_all(struct regexes *r, const uint32_t *members, size_t count)
{
	uint32_t base = r->n_list, n, e, *list;
	bool empty = false, nullable = true;

	if (put_flat(r, members, count, NODE_AND)) {
		r->n_list = base;
		return REGEX_FAILED;
	}
	n = tidy(r->list + base, r->n_list - base, REGEX_ANY);
	r->n_list = base;
	r->work += n / 8;
	if (n < 2)
		return n ? r->list[base] : REGEX_ANY;
	list = malloc((n + 1) * sizeof(*list));
	if (!list) {
		regexes_fail(r, -ENOMEM);
		return REGEX_FAILED;
	}
	memcpy(list, r->list + base, n * sizeof(*list));
	for (uint32_t i = 0; i < n; i++) {
		empty |= list[i] == REGEX_EMPTY;
		nullable &= node_nullable(r, list[i]);
	}
	if (empty || list[0] == REGEX_NONE)
		e = empty && nullable ? REGEX_EMPTY : REGEX_NONE;
	else if (simplify_and(r, list, &n))
		e = REGEX_NONE;
	else
		e = n > 1 ? list_node(r, NODE_AND, list, n) : n ? list[0] : REGEX_ANY;
	free(list);
	return r->error ? REGEX_FAILED : e;
}

uint32_t regex_and(struct regexes *r, uint32_t a, uint32_t b)
{
	if (a == b || a == REGEX_ANY)
		return b;
	return b == REGEX_ANY ? a : regex_and_all(r, (uint32_t[]){ a, b }, 2);
}

uint32_t regex_not(struct regexes *r, uint32_t a)
{
	struct node node = { .kind = NODE_NOT, .a = a };
	bool new;

	if (a == REGEX_FAILED)
		return a;
	if (a == REGEX_NONE || a == REGEX_ANY)
		return a == REGEX_NONE ? REGEX_ANY : REGEX_NONE;
	if (r->node[a].kind == NODE_NOT)
		return r->node[a].a;
	node.flags = node_nullable(r, a) ? 0 : NODE_NULLABLE;
	node.depth = (uint16_t)(r->node[a].depth + 1);
	return node_intern(r, node, &new);
}

/* ---- alphabets ---- */

void regex_alphabet(struct regexes *r, enum regex_alphabet which, uint32_t letter)
{
	if (letter == REGEX_FAILED || r->universe[which] != REGEX_FAILED)
		return;
	regex_written(r, letter, which);
	r->letter[which] = letter;
	r->universe[which] = regex_repeat(r, letter, 0, REGEX_MANY);
}

void regex_written(struct regexes *r, uint32_t e, enum regex_alphabet which)
{
	if (e != REGEX_FAILED)
		r->node[e].flags |= (uint8_t)(NODE_LETTER << which);
}
