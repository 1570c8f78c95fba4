/* earley.c - rows: what may follow where a terminal has ended.  states.c makes states of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "earley.h"
#include "earley_impl.h"

/* ---- the items of a row under construction ---- */

static uint64_t hash_item(const struct item *i)
{
	uint64_t h = (uint64_t)i->dot * 0x9e3779b97f4a7c15ull ^ i->set;

	h = (h ^ h >> 29 ^ i->origin) * 0xbf58476d1ce4e5b9ull;
	h = (h ^ h >> 31 ^ (uint64_t)i->count << 20 ^ (uint32_t)i->as) * 0x94d049bb133111ebull;
	return h ^ h >> 32;
}

static bool same_item(const struct item *a, const struct item *b)
{
	return a->dot == b->dot && a->origin == b->origin && a->as == b->as && a->count == b->count &&
	       a->set == b->set;
}

/* Add an item, once.  Over ROW_ITEMS, or over the budget of steps, the row fails. */
static void push(struct earley *y, const struct item *item)
{
	struct earley_work *w = y->work;
	uint32_t i = (uint32_t)hash_item(item) & (WORK_SLOTS - 1);

	for (; w->slot[i].stamp == w->stamp; i = (i + 1) & (WORK_SLOTS - 1))
		if (same_item(&w->item[w->slot[i].item], item))
			return;
	if (w->n == ROW_ITEMS || y->steps >= y->limit) {
		w->failed = true;
		return;
	}
	y->steps++;
	w->slot[i].stamp = w->stamp;
	w->slot[i].item = w->n;
	w->item[w->n++] = *item;
}

static void complete(struct earley *y, uint32_t origin, int32_t as)
{
	push(y, &(struct item){ .dot = DOT_COMPLETE, .origin = origin, .as = as });
}

/* ---- members ---- */

/* May symbol[i] (i == n: rest) come next, so that what is still required can come after it? */
static bool may_come(const struct grammar_members *m, uint64_t usable, const struct item *at, uint32_t i)
{
	uint32_t count = at->count & ~REST_CAME, left = m->max == GRAMMAR_MANY ? UINT32_MAX : m->max - count;
	uint64_t set = at->set, later, missing;
	bool rest = m->rest >= 0;

	if (!left)
		return false;
	if (i < m->n) {
		if (!(usable >> i & 1) || at->count & REST_CAME || (m->ordered ? set >> i : set >> i & 1))
			return false;
		set |= 1ull << i;
	} else if (!rest) {
		return false;
	}
	left -= left != UINT32_MAX;
	later = usable & ~set;
	if (m->ordered)
		later = i >= m->n || i == 63 ? 0 : later & ~((2ull << i) - 1);
	missing = m->required & ~set;
	if (missing & ~later || (uint32_t)__builtin_popcountll(missing) > left)
		return false;
	for (uint32_t k = 0; k < m->n_groups; k++)
		if (!(m->group[k] & (set | later)))
			return false;
	return rest || count + 1 + (uint32_t)__builtin_popcountll(later) >= m->min;
}

static void open_members(struct earley *y, const struct symbol *s, const struct item *at)
{
	const struct grammar_members *m = &y->g->members[s->at];
	struct item next = *at;

	for (uint32_t i = 0; i <= m->n; i++) {
		if (!may_come(m, y->g->usable[s->at], at, i))
			continue;
		next.dot = s->dot + i;
		push(y, &next);
	}
}

static bool members_enough(const struct grammar_members *m, const struct item *at)
{
	if (m->required & ~at->set || (at->count & ~REST_CAME) < m->min)
		return false;
	for (uint32_t k = 0; k < m->n_groups; k++)
		if (!(m->group[k] & at->set))
			return false;
	return true;
}

static void advance_members(struct earley *y, const struct symbol *s, const struct item *item)
{
	const struct grammar_members *m = &y->g->members[s->at];
	uint32_t i = item->dot - s->dot;
	struct item next = *item;
	bool more = false;

	if (i == m->n + 1) {
		open_members(y, s, &next);
		return;
	}
	if (i < m->n)
		next.set |= 1ull << i;
	else if (m->ordered)
		next.count |= REST_CAME;
	if (m->max != GRAMMAR_MANY || (next.count & ~REST_CAME) < m->min)
		next.count++;
	if (members_enough(m, &next))
		complete(y, next.origin, next.as);
	for (i = 0; i <= m->n && !more; i++)
		more = may_come(m, y->g->usable[s->at], &next, i);
	if (!more)
		return;
	if (m->separator < 0) {
		open_members(y, s, &next);
		return;
	}
	next.dot = s->dot + m->n + 1;
	push(y, &next);
}

/* ---- items ---- */

static void advance_repeat(struct earley *y, const struct symbol *s, const struct item *item)
{
	struct item next = *item;

	if (item->dot != s->dot) {                      /* the separator has come */
		next.dot = s->dot;
		push(y, &next);
		return;
	}
	if (s->max != GRAMMAR_MANY || next.count < s->min)
		next.count++;
	if (next.count >= s->min)
		complete(y, next.origin, next.as);
	if (s->max != GRAMMAR_MANY && next.count >= s->max)
		return;
	if (s->separator >= 0)
		next.dot = s->dot + 1;
	push(y, &next);
}

/* What it awaits has come: the item with its dot moved on. */
static void advance(struct earley *y, const struct item *item)
{
	const struct dot *d = &y->g->dot[item->dot];
	struct item next = *item;

	if (d->owner >= 0 && y->g->symbol[d->owner].kind == SYMBOL_REPEAT) {
		advance_repeat(y, &y->g->symbol[d->owner], item);
	} else if (d->owner >= 0 && y->g->symbol[d->owner].kind == SYMBOL_MEMBERS) {
		advance_members(y, &y->g->symbol[d->owner], item);
	} else if (d->last) {
		complete(y, item->origin, item->as);
	} else {
		next.dot++;
		push(y, &next);
	}
}

/* The beginnings of symbol, which completes `as` in origin. */
static void predict(struct earley *y, int32_t symbol, uint32_t origin, int32_t as)
{
	const struct symbol *s = &y->g->symbol[symbol];
	struct item item = { .dot = s->dot, .origin = origin, .as = as };

	if (s->kind == SYMBOL_REPEAT) {
		if (s->max)
			push(y, &item);
	} else if (s->kind == SYMBOL_MEMBERS) {
		open_members(y, s, &item);
	} else {
		for (uint32_t i = 0; i < s->n; i++) {
			item.dot = y->g->start[s->at + i];
			if (y->g->dot[item.dot].symbol != SYMBOL_NONE)
				push(y, &item);
		}
	}
}

/* Advance every item of row `origin` that awaits `symbol`. */
static void bring(struct earley *y, uint32_t origin, int32_t symbol)
{
	uint32_t low = y->row[origin].item, high = low + y->row[origin].n_items, end = high;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (y->g->dot[y->items[mid].dot].symbol < symbol)
			low = mid + 1;
		else
			high = mid;
	}
	for (; low < end && y->g->dot[y->items[low].dot].symbol == symbol; low++) {
		struct item item = y->items[low];
		if (item.origin == ROW_SELF)
			item.origin = origin;
		advance(y, &item);
	}
}

/* One item's consequences.  True: the row keeps it. */
static bool close_item(struct earley *y, uint32_t at)
{
	struct item item = y->work->item[at];
	const struct dot *d;
	const struct symbol *s;

	if (item.dot == DOT_COMPLETE) {
		if (item.as == SYMBOL_START)
			y->work->accept = true;
		else if (item.origin != ROW_SELF)       /* of nothing: its awaiter was advanced at once */
			bring(y, item.origin, item.as);
		return false;
	}
	d = &y->g->dot[item.dot];
	s = &y->g->symbol[d->symbol];
	if (s->nullable)
		advance(y, &item);
	if (s->kind == SYMBOL_LEXEME || s->kind == SYMBOL_TOKEN || s->kind == SYMBOL_UNTIL)
		return true;
	if (d->last) {
		predict(y, d->symbol, item.origin, item.as);
		return false;
	}
	predict(y, d->symbol, ROW_SELF, d->symbol);
	return true;
}

/* ---- rows ---- */

static int by_awaited(const void *pa, const void *pb, void *arg)
{
	const struct item *a = pa, *b = pb;
	const struct grammar *g = arg;
	int32_t sa = g->dot[a->dot].symbol, sb = g->dot[b->dot].symbol;

	if (sa != sb)
		return sa < sb ? -1 : 1;
	if (a->dot != b->dot)
		return a->dot < b->dot ? -1 : 1;
	if (a->origin != b->origin)
		return a->origin < b->origin ? -1 : 1;
	if (a->as != b->as)
		return a->as < b->as ? -1 : 1;
	if (a->count != b->count)
		return a->count < b->count ? -1 : 1;
	return a->set < b->set ? -1 : a->set > b->set;
}

static bool widen_rows(struct earley *y)
{
	uint32_t mask = y->row_mask * 2 + 1, *slot;

	if (y->row_slot && y->n_rows * 2 <= y->row_mask)
		return true;
	if (!y->row_slot)
		mask = 255;
	slot = calloc((size_t)mask + 1, sizeof(*slot));
	if (!slot)
		return false;
	for (uint32_t r = 0; r < y->n_rows; r++) {
		uint32_t i = y->row[r].hash & mask;
		while (slot[i])
			i = (i + 1) & mask;
		slot[i] = r + 1;
	}
	free(y->row_slot);
	y->row_slot = slot;
	y->row_mask = mask;
	return true;
}

static bool same_row(const struct earley *y, const struct row *r, const struct item *item, uint32_t n,
                     bool accept)
{
	if (r->n_items != n || r->accept != accept)
		return false;
	for (uint32_t i = 0; i < n; i++)
		if (!same_item(&y->items[r->item + i], &item[i]))
			return false;
	return true;
}

/* The terminals that are awaited, from sorted items. */
static void note_terminals(struct earley *y, struct row *r)
{
	int32_t before = SYMBOL_NONE;

	r->lexeme = y->n_awaited;
	for (uint32_t i = r->item; i < r->item + r->n_items; i++) {
		int32_t s = y->g->dot[y->items[i].dot].symbol;
		if (s == before)
			continue;
		before = s;
		if (y->g->symbol[s].kind == SYMBOL_LEXEME && y->g->symbol[s].productive)
			y->awaited[y->n_awaited++] = s;
		else if (y->g->symbol[s].kind == SYMBOL_TOKEN || y->g->symbol[s].kind == SYMBOL_UNTIL)
			r->tokens = true;
	}
	r->n_lexemes = y->n_awaited - r->lexeme;
}

static uint32_t intern_row(struct earley *y, struct item *item, uint32_t n, bool accept)
{
	struct row r = { .item = y->n_items, .n_items = n, .accept = accept, .clamped = ROW_NONE };
	uint64_t h = accept + 1;
	uint32_t i, distinct = 0;

	qsort_r(item, n, sizeof(*item), by_awaited, y->g);
	for (i = 0; i < n; i++)                         /* clamped counts can make items equal */
		if (!i || !same_item(&item[i], &item[distinct - 1]))
			item[distinct++] = item[i];
	r.n_items = n = distinct;
	for (i = 0; i < n; i++)
		h = (h ^ hash_item(&item[i])) * 0x9e3779b97f4a7c15ull + (h >> 32);
	r.hash = (uint32_t)(h ^ h >> 32);
	if (!widen_rows(y))
		return ROW_NONE;
	for (i = r.hash & y->row_mask; y->row_slot[i]; i = (i + 1) & y->row_mask)
		if (y->row[y->row_slot[i] - 1].hash == r.hash &&
		    same_row(y, &y->row[y->row_slot[i] - 1], item, n, accept))
			return y->row_slot[i] - 1;
	if (!grow(&y->row, &y->rows_cap, y->n_rows, sizeof(*y->row)) ||
	    !grow(&y->items, &y->items_cap, y->n_items + n, sizeof(*y->items)) ||
	    !grow(&y->awaited, &y->awaited_cap, y->n_awaited + n, sizeof(*y->awaited)))
		return ROW_NONE;
	memcpy(y->items + y->n_items, item, n * sizeof(*item));
	y->n_items += n;
	note_terminals(y, &r);
	y->row[y->n_rows] = r;
	y->row_slot[i] = ++y->n_rows;
	return y->n_rows - 1;
}

/* Close what was pushed, keep what awaits something, and find the row. */
static uint32_t finish(struct earley *y)
{
	struct earley_work *w = y->work;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < w->n && !w->failed; i++)
		if (close_item(y, i))
			w->kept[kept++] = w->item[i];
	return w->failed ? ROW_NONE : intern_row(y, w->kept, kept, w->accept);
}

static void start(struct earley *y)
{
	struct earley_work *w = y->work;

	w->n = 0;
	w->accept = w->failed = false;
	if (!++w->stamp) {
		memset(w->slot, 0, sizeof(w->slot));
		w->stamp = 1;
	}
}

uint32_t earley_first_row(struct earley *y)
{
	start(y);
	push(y, &(struct item){ .dot = 0, .origin = ROW_SELF, .as = SYMBOL_START });
	return finish(y);
}

uint32_t earley_row(struct earley *y, const struct ended *ended, uint32_t n)
{
	start(y);
	for (uint32_t i = 0; i < n; i++)
		bring(y, ended[i].row, ended[i].symbol);
	return finish(y);
}

/* ---- clamping ---- */

/* A count from which neither bound can be reached within `clamp` more becomes the least one like it. */
static uint32_t clamp_count(uint32_t count, uint32_t min, uint32_t max, uint32_t clamp)
{
	if (count < min)
		return min - count > clamp ? 0 : count;
	if (max == GRAMMAR_MANY || max - count > clamp)
		return min;
	return count;
}

/* Origins come before their row, so the recursion is a loop over a list of rows that are still to do. */
uint32_t earley_clamped_row(struct earley *y, uint32_t row)
{
	uint32_t *todo = NULL, cap = 0, n = 0;

	if (!grow(&todo, &cap, n, sizeof(*todo)))
		return ROW_NONE;
	todo[n++] = row;
	while (n) {
		uint32_t r = todo[n - 1], before = n, kept = y->row[r].n_items;
		for (uint32_t i = 0; i < kept && y->row[r].clamped == ROW_NONE; i++) {
			struct item item = y->items[y->row[r].item + i];
			const struct symbol *s = NULL;
			int32_t owner = y->g->dot[item.dot].owner;
			if (owner >= 0 && y->g->symbol[owner].kind == SYMBOL_REPEAT)
				s = &y->g->symbol[owner];
			if (s)
				item.count = clamp_count(item.count, s->min, s->max, y->clamp);
			if (item.origin != ROW_SELF && y->row[item.origin].clamped == ROW_NONE) {
				if (!grow(&todo, &cap, n, sizeof(*todo)))
					goto failed;
				todo[n++] = item.origin;
				continue;
			}
			if (item.origin != ROW_SELF)
				item.origin = y->row[item.origin].clamped;
			y->work->kept[i] = item;
		}
		if (n > before)
			continue;
		n--;
		if (y->row[r].clamped == ROW_NONE) {
			uint32_t c = intern_row(y, y->work->kept, kept, y->row[r].accept);
			if (c == ROW_NONE)
				goto failed;
			y->row[r].clamped = c;
			y->row[c].clamped = c;
		}
	}
	free(todo);
	return y->row[row].clamped;
failed:
	free(todo);
	return ROW_NONE;
}

/* A row's number is above those of its origins. */
bool earley_copy_rows(struct earley *to, const struct earley *from, bool *wanted, uint32_t *map)
{
	for (uint32_t r = from->n_rows; r--;)
		for (uint32_t i = 0; wanted[r] && i < from->row[r].n_items; i++) {
			uint32_t origin = from->items[from->row[r].item + i].origin;
			if (origin != ROW_SELF)
				wanted[origin] = true;
		}
	for (uint32_t r = 0; r < from->n_rows; r++) {
		if (!wanted[r])
			continue;
		for (uint32_t i = 0; i < from->row[r].n_items; i++) {
			struct item item = from->items[from->row[r].item + i];
			if (item.origin != ROW_SELF)
				item.origin = map[item.origin];
			to->work->kept[i] = item;
		}
		map[r] = intern_row(to, to->work->kept, from->row[r].n_items, from->row[r].accept);
		if (map[r] == ROW_NONE)
			return false;
	}
	return true;
}
