/* template/check.c - checks a template before it runs: it finds unknown filters and tests, and which of the
 * caller's inputs the template reads.
 *
 * Jinja2 accepts an unknown filter where it may never be reached: in the branches and the condition of an
 * if.  In a loop, macro or block inside an if, which is a frame of its own, it does not.  A filter that
 * Jinja2 has and we do not is an error only when it is reached, wherever it is.
 */
#include <errno.h>

#include "impl.h"

const char *const template_inputs[] = { "tools", "documents", NULL };

static const char *const only_jinja2[] = { "batch", "center", "filesizeformat", "groupby", "pprint", "random",
	"slice", "striptags", "truncate", "urlencode", "urlize", "wordwrap", "xmlattr", "escaped", NULL };

/* Sets of inputs are bits.  `hidden` are the inputs that the template itself has set so far. */
struct check { struct arena *j; unsigned reads; };

static unsigned bit(struct str name)
{
	for (unsigned i = 0; template_inputs[i]; i++)
		if (str_is(name, template_inputs[i]))
			return 1u << i;
	return 0;
}

static void walk(struct check *c, const struct node *n, unsigned *hidden, bool branch);

static void walk_list(struct check *c, const struct node *n, unsigned *hidden, bool branch)
{
	for (; n; n = n->next)
		walk(c, n, hidden, branch);
}

/* Check a body that sees what is set around it, but sets nothing there. */
static void inside(struct check *c, const struct node *body, unsigned hidden, bool branch)
{
	walk_list(c, body, &hidden, branch);
}

static void check_known(struct check *c, const struct node *n)
{
	if (n->filter || n->test)
		return;
	for (size_t i = 0; only_jinja2[i]; i++)
		if (str_is(n->s, only_jinja2[i]))
			return;
	template_fail(c->j, -EINVAL, n->line, "there is no %s named '%.*s'",
	              n->kind == N_FILTER ? "filter" : "test", n->s.n > 60 ? 60 : (int)n->s.n, n->s.s);
}

/* Long chains ("1 + 1 + ..", "x if a if b ..", elifs) are walked in a loop, because recursion would not be
 * bounded. */
static void expression(struct check *c, const struct node *n, unsigned *hidden, bool branch)
{
	const struct node *next;

	for (; n; n = next) {
		next = n->a;
		if (n->kind == N_NAME)
			c->reads |= bit(n->s) & ~*hidden;
		if ((n->kind == N_FILTER || n->kind == N_TEST) && !branch)
			check_known(c, n);
		if (n->kind == N_IF_ELSE) {
			branch = true;
			expression(c, n->a, hidden, branch);
			next = n->b;
		} else if (n->b) {
			expression(c, n->b, hidden, branch);
		}
		if (n->c)
			expression(c, n->c, hidden, branch);
		for (const struct node *item = n->list; item; item = item->next)
			expression(c, item, hidden, branch);
	}
}

static void macro(struct check *c, const struct node *n, unsigned hidden)
{
	for (const struct node *p = n->list; p; p = p->next) {
		expression(c, p->a, &hidden, false);
		hidden |= bit(p->s);
	}
	walk_list(c, n->b, &hidden, false);
}

/* The targets of set and for.  For ns.x, ns itself is read. */
static unsigned targets(struct check *c, const struct node *n, unsigned *hidden)
{
	unsigned set = 0;

	for (const struct node *t = n->list; t; t = t->next) {
		if (t->kind == N_NAME)
			set |= bit(t->s);
		else
			expression(c, t->a, hidden, false);
	}
	return set;
}

static void branches(struct check *c, const struct node *n, unsigned hidden)
{
	for (; n; n = n->d) {
		expression(c, n->a, &hidden, true);
		inside(c, n->b, hidden, true);
		inside(c, n->c, hidden, true);
	}
}

static void loop(struct check *c, const struct node *n, unsigned *hidden, bool branch)
{
	unsigned within = *hidden | targets(c, n, hidden);

	expression(c, n->a, hidden, branch);
	expression(c, n->d, &within, false);
	inside(c, n->b, within, false);
	inside(c, n->c, *hidden, false);
}

static void walk(struct check *c, const struct node *n, unsigned *hidden, bool branch)
{
	unsigned within = *hidden;

	switch (n->kind) {
	case N_IF:
		branches(c, n, *hidden);
		break;
	case N_FOR:
		loop(c, n, hidden, branch);
		break;
	case N_SET:
		expression(c, n->a, hidden, branch);
		*hidden |= targets(c, n, hidden);
		break;
	case N_SET_BLOCK:
	case N_FILTER_BLOCK:
		inside(c, n->b, *hidden, false);
		expression(c, n->a, hidden, false);
		*hidden |= targets(c, n, hidden);
		break;
	case N_MACRO:
		macro(c, n, *hidden);
		*hidden |= bit(n->s);
		break;
	case N_CALL_BLOCK:
		expression(c, n->a, hidden, branch);
		macro(c, n, *hidden);
		break;
	case N_WITH:
		for (const struct node *k = n->list; k; k = k->next) {
			expression(c, k->a, hidden, false);
			within |= bit(k->s);
		}
		inside(c, n->b, within, false);
		break;
	case N_SCOPE:
		inside(c, n->b, *hidden, false);
		break;
	case N_OUT:
		expression(c, n->a, hidden, branch);
		break;
	default:
		break;
	}
}

unsigned template_check(struct arena *j, const struct node *body)
{
	struct check c = { .j = j };

	inside(&c, body, 0, false);
	return c.reads;
}
