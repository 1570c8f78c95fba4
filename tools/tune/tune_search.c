/* tune_search.c - see tune_search.h. */
#include "tune_search.h"

#include <string.h>

#define ROUNDS 4                 /* passes over all axes: a move on one may change the best of others */

int search_ladder(struct search_axis *a, int64_t least, int64_t most, int64_t now)
{
	int at = 0;

	a->n = 0;
	a->above = -1;
	for (int64_t v = least > 0 ? least : 1; a->n < SEARCH_RUNGS - 2; v *= 2) {
		if (v > now && (!a->n || a->value[a->n - 1] < now))
			a->value[a->n++] = now;
		if (v >= most)
			break;
		if (!a->n || a->value[a->n - 1] < v)
			a->value[a->n++] = v;
	}
	if (!a->n || a->value[a->n - 1] < most)
		a->value[a->n++] = most;
	while (at + 1 < a->n && a->value[at] < now)
		at++;
	return at;
}

/* Raise each value that another value bounds from below. */
static void lift(const struct search *s, int *at)
{
	for (int k = 0; k < s->n; k++) {
		const struct search_axis *a = &s->axis[k];

		while (a->above >= 0 && at[k] + 1 < a->n && a->value[at[k]] < s->axis[a->above].value[at[a->above]])
			at[k]++;
	}
}

static bool seen(struct search *s, const int *at)
{
	size_t size = (size_t)s->n * sizeof(*at);

	for (int i = 0; i < s->n_seen; i++)
		if (!memcmp(s->seen[i], at, size))
			return true;
	if (s->n_seen < SEARCH_SEEN)
		memcpy(s->seen[s->n_seen++], at, size);
	return false;
}

/* Try the best so far with axis k on rung i.  1: it is better; 0: it is not, or was tried; < 0: stop. */
static int try_value(struct search *s, int k, int i, int (*better)(void *, const int *), void *ctx)
{
	int at[SEARCH_AXES], r;

	memcpy(at, s->at, sizeof(at));
	at[k] = i;
	lift(s, at);
	if (seen(s, at))
		return 0;
	r = better(ctx, at);
	if (r > 0)
		memcpy(s->at, at, sizeof(at));
	return r;
}

/* Go from the best so far in one direction.  Strides double while it gets better, then halve. */
static int stride(struct search *s, int k, int way, int (*better)(void *, const int *), void *ctx,
                  bool *moved)
{
	int step = 1, end = way > 0 ? s->axis[k].n - 1 : 0, r = 0;
	bool wider = true;

	while (step && s->at[k] != end) {
		int i = s->at[k] + way * step;

		if (way > 0 ? i > end : i < end)
			i = end;
		r = try_value(s, k, i, better, ctx);
		if (r < 0)
			return r;
		wider &= r > 0;
		step = wider ? step * 2 : step / 2;
		*moved |= r > 0;
	}
	return 0;
}

static int climb_axis(struct search *s, int k, int (*better)(void *, const int *), void *ctx, bool *moved)
{
	bool up = false, down = false;
	int r = stride(s, k, 1, better, ctx, &up);

	if (r >= 0 && !up)
		r = stride(s, k, -1, better, ctx, &down);
	else if (r >= 0 && s->at[k] > 0)  /* a long stride may have passed the top */
		r = try_value(s, k, s->at[k] - 1, better, ctx);
	*moved |= up || down;
	return r < 0 ? r : 0;
}

/* Move all axes by one rung, because on a ridge no single axis leads up. */
static int diagonal(struct search *s, int (*better)(void *, const int *), void *ctx, bool *moved)
{
	int r = 0;

	for (int way = 1; way >= -1 && !*moved && r >= 0; way -= 2) {
		do {
			int at[SEARCH_AXES];

			memcpy(at, s->at, sizeof(at));
			for (int k = 0; k < s->n; k++)
				at[k] += (at[k] + way >= 0 && at[k] + way < s->axis[k].n) * way;
			lift(s, at);
			r = seen(s, at) ? 0 : better(ctx, at);
			if (r > 0)
				memcpy(s->at, at, sizeof(at));
			*moved |= r > 0;
		} while (r > 0);
	}
	return r < 0 ? r : 0;
}

int search_climb(struct search *s, int (*better)(void *ctx, const int *at), void *ctx)
{
	bool moved = true;
	int r = 0;

	lift(s, s->at);
	seen(s, s->at);
	for (int round = 0; round < ROUNDS && moved && r >= 0; round++) {
		moved = false;
		for (int k = 0; k < s->n && r >= 0; k++)
			r = climb_axis(s, k, better, ctx, &moved);
		if (s->n > 1 && !moved && r >= 0)
			r = diagonal(s, better, ctx, &moved);
	}
	return r < 0 ? r : 0;
}

int tune_shapes(struct tune_shape out[TUNE_SHAPES], int devices, int replicas, int ranks)
{
	int n = 0;

	for (int r = 1; r <= devices && r <= TUNE_MOST; r++) {
		bool doubling = (r & (r - 1)) == 0;

		if ((doubling || r == ranks || r == devices) && (r != ranks || devices / r != replicas))
			out[n++] = (struct tune_shape){ devices / r < TUNE_MOST ? devices / r : TUNE_MOST, r };
	}
	return n;
}
