/* multiple.c - see regex_multiple().  An automaton whose state is a remainder, one expression a state.
 *
 * A node has a = divisor, b = what the digits so far leave when divided by it, c = the digits that may
 * still come before only zeros may; POINT is set behind the point.  A decimal x is a multiple of d / 10^s
 * if x * 10^s, whose digits are those of x without the point, leaves 0.
 */
#include <string.h>

#include "nodes.h"

#define POINT 0x80000000u

/* What n more zeros leave. */
static uint32_t with_zeros(uint32_t divisor, uint32_t left, uint32_t n)
{
	uint64_t v = left;

	while (n--)
		v = v * 10 % divisor;
	return (uint32_t)v;
}

/* Can `places` more digits make it leave 0?  They add any number below 10^places. */
static bool can_end(uint32_t divisor, uint32_t left, uint32_t places)
{
	uint64_t missing = (divisor - (uint64_t)with_zeros(divisor, left, places)) % divisor, most = 1;

	for (; places && most <= missing; places--)
		most *= 10;
	return missing < most;
}

static uint32_t state(struct regexes *r, uint32_t divisor, uint32_t left, uint32_t c)
{
	struct node n = { .kind = NODE_MULTIPLE, .flags = NODE_SIMPLE, .a = divisor, .b = left, .c = c };
	bool new;

	/* Before the point any remainder can still become 0. */
	if (c & POINT && !can_end(divisor, left, c & ~POINT))
		return REGEX_NONE;
	if (!with_zeros(divisor, left, c & ~POINT))
		n.flags |= NODE_NULLABLE;
	return node_intern(r, n, &new);
}

uint32_t node_multiple_row(struct regexes *r, uint32_t e)
{
	const struct node n = r->node[e];
	uint32_t places = n.c & ~POINT, target[12] = { REGEX_NONE };
	uint8_t of[256] = { 0 };

	for (uint32_t d = 0; d < 10; d++) {
		of['0' + d] = (uint8_t)(d + 1);
		if (!(n.c & POINT))
			target[d + 1] = state(r, n.a, (uint32_t)((n.b * 10ull + d) % n.a), n.c);
		else if (places)
			target[d + 1] = state(r, n.a, (uint32_t)((n.b * 10ull + d) % n.a), n.c - 1);
		else
			target[d + 1] = d ? REGEX_NONE : e;
	}
	of['.'] = 11;
	target[11] = n.c & POINT ? REGEX_NONE : state(r, n.a, n.b, n.c | POINT);
	return r->error ? REGEX_FAILED : node_branch(r, of, target);
}

uint32_t regex_multiple(struct regexes *r, uint32_t divisor, uint32_t scale)
{
	return state(r, divisor, 0, scale);
}
