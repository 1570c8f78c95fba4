/* template/eval.c - runs the nodes of a template. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "impl.h"

static struct value eval(struct render *r, const struct node *n);

/* ---- names ----------------------------------------------------------------------------------- */

static struct value *lookup(struct render *r, struct str name)
{
	for (struct scope *s = r->scope; s; s = s->outer)
		for (struct binding *b = s->vars; b; b = b->next) {
			spend(r, 1);
			if (str_eq(b->name, name))
				return &b->v;
		}
	return dict_get(r, r->vars, v_str(name));
}

static struct value name_value(struct render *r, struct str name)
{
	struct value *v = lookup(r, name);
	const struct global *g;

	if (v)
		return *v;
	g = global_find(name);
	if (g)
		return (struct value){ .t = V_GLOBAL, .u.global = g };
	return v_undefined(r, "'%.*s' is undefined", name.n > 100 ? 100 : (int)name.n, name.s);
}

static void bind(struct render *r, struct str name, struct value v)
{
	struct binding *b;

	for (b = r->scope->vars; b; b = b->next) {
		spend(r, 1);
		if (str_eq(b->name, name)) {
			b->v = v;
			return;
		}
	}
	b = arena_alloc(&r->mem, sizeof(*b));
	*b = (struct binding){ r->scope->vars, name, v };
	r->scope->vars = b;
}

/* ---- operators ------------------------------------------------------------------------------- */

static struct value v_float(double f)
{
	return (struct value){ .t = V_FLOAT, .u.f = f };
}

_Noreturn static void no_operator(struct render *r, int op, struct value a, struct value b)
{
	char name[3] = { (char)(op > 255 ? op >> 8 : op), (char)(op > 255 ? op & 255 : 0), 0 };

	if (a.t == V_UNDEFINED || b.t == V_UNDEFINED)
		fail(r, "%s", a.t == V_UNDEFINED ? a.u.s.s : b.u.s.s);
	fail(r, "unsupported operand types for %s: '%s' and '%s'", name, type_name(a), type_name(b));
}

static int64_t int_power(struct render *r, int64_t a, int64_t b)
{
	int64_t x = 1;

	for (; b > 0; b--) {
		spend(r, 1);
		if (__builtin_mul_overflow(x, a, &x))
			fail(r, "the result of ** does not fit in 64 bits");
		if (x == 0 || (x == 1 && a == 1))
			break;
	}
	return x;
}

static struct value ints(struct render *r, int op, int64_t a, int64_t b)
{
	int64_t x = 0;
	bool over = false;

	switch (op) {
	case '+': over = __builtin_add_overflow(a, b, &x); break;
	case '-': over = __builtin_sub_overflow(a, b, &x); break;
	case '*': over = __builtin_mul_overflow(a, b, &x); break;
	case OP2('*', '*'):
		return b < 0 ? v_float(pow((double)a, (double)b)) : v_int(int_power(r, a, b));
	default:
		if (!b)
			fail(r, "division by zero");
		if (op == '/')
			return v_float((double)a / (double)b);
		if (b == -1) {                   /* the only divisor whose quotient can overflow */
			over = op != '%' && __builtin_sub_overflow(0, a, &x);
		} else if (op == '%') {
			x = a % b;
			x += x && (x < 0) != (b < 0) ? b : 0;
		} else {
			x = a / b - (a % b && (a < 0) != (b < 0));
		}
	}
	if (over)
		fail(r, "the result of an operation does not fit in 64 bits");
	return v_int(x);
}

static struct value floats(struct render *r, int op, double a, double b)
{
	switch (op) {
	case '+': return v_float(a + b);
	case '-': return v_float(a - b);
	case '*': return v_float(a * b);
	case OP2('*', '*'): return v_float(pow(a, b));
	}
	if (b == 0)
		fail(r, "division by zero");
	if (op == '/')
		return v_float(a / b);
	return v_float(op == '%' ? a - b * floor(a / b) : floor(a / b));
}

static struct value repeat(struct render *r, struct value v, int64_t times)
{
	struct string_builder t = { .r = r };
	struct value out;
	size_t n;

	if (times < 0)
		times = 0;
	spend(r, (uint64_t)times);
	if (v.t == V_STR) {
		builder_put(&t, STR(""));
		while (times--)
			builder_put(&t, v.u.s);
		return v_like(v, (struct str){ t.s, t.n });
	}
	if (__builtin_mul_overflow(v.u.list->n, (size_t)times, &n))
		fail(r, "the list would be too long");
	out = v_list(r, n);
	out.t = v.t;
	for (size_t i = 0; i < n; i++)
		out.u.list->v[i] = v.u.list->v[i % v.u.list->n];
	return out;
}

static struct value join_two(struct render *r, struct value a, struct value b)
{
	struct string_builder t = { .r = r };
	struct value out;

	if (a.t == V_STR) {
		builder_put(&t, a.markup || b.markup ? str_escape(r, a) : a.u.s);
		builder_put(&t, a.markup || b.markup ? str_escape(r, b) : b.u.s);
		return v_like(a.markup ? a : b, (struct str){ t.s, t.n });
	}
	out = v_list(r, a.u.list->n + b.u.list->n);
	out.t = a.t;
	for (size_t i = 0; i < a.u.list->n; i++)
		out.u.list->v[i] = a.u.list->v[i];
	for (size_t i = 0; i < b.u.list->n; i++)
		out.u.list->v[a.u.list->n + i] = b.u.list->v[i];
	return out;
}

static bool sequence(struct value v)
{
	return v.t == V_STR || v.t == V_LIST || v.t == V_TUPLE;
}

static struct value binary(struct render *r, int op, struct value a, struct value b)
{
	double x, y;

	if (as_number(a, &x) && as_number(b, &y)) {
		if (a.t == V_FLOAT || b.t == V_FLOAT)
			return floats(r, op, x, y);
		return ints(r, op, a.t == V_INT ? a.u.i : a.u.b, b.t == V_INT ? b.u.i : b.u.b);
	}
	if (op == '+' && a.t == b.t && sequence(a))
		return join_two(r, a, b);
	if (op == '%' && a.t == V_STR)
		return str_percent(r, a, b);
	if (op == '*' && sequence(a) && b.t == V_INT)
		return repeat(r, a, b.u.i);
	if (op == '*' && sequence(b) && a.t == V_INT)
		return repeat(r, b, a.u.i);
	no_operator(r, op, a, b);
}

static bool compare(struct render *r, int op, struct value a, struct value b)
{
	switch (op) {
	case OP2('=', '='): return equal(r, a, b);
	case OP2('!', '='): return !equal(r, a, b);
	case 'i': return contains(r, b, a);
	case 'n': return !contains(r, b, a);
	case '<': return order(r, a, b) < 0;
	case '>': return order(r, a, b) > 0;
	case OP2('<', '='): return order(r, a, b) <= 0;
	default: return order(r, a, b) >= 0;
	}
}

static struct value comparison(struct render *r, const struct node *n)
{
	struct value a = eval(r, n->a), b;

	for (const struct node *next = n->list; next; next = next->next, a = b) {
		b = eval(r, next->a);
		if (!compare(r, next->op, a, b))
			return v_bool(false);
	}
	return v_bool(true);
}

/* ---- attributes and calls -------------------------------------------------------------------- */

static struct value loop_attr(struct render *r, struct for_loop *l, struct str name)
{
	int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;

	if (str_is(name, "index"))
		return v_int(i + 1);
	if (str_is(name, "index0"))
		return v_int(i);
	if (str_is(name, "revindex"))
		return v_int(n - i);
	if (str_is(name, "revindex0"))
		return v_int(n - i - 1);
	if (str_is(name, "first"))
		return v_bool(i == 0);
	if (str_is(name, "last"))
		return v_bool(i == n - 1);
	if (str_is(name, "length"))
		return v_int(n);
	if (str_is(name, "depth") || str_is(name, "depth0"))
		return v_int(str_is(name, "depth"));   /* depth0 is 0: only recursive loops are deeper */
	if (str_is(name, "previtem"))
		return i ? l->items->v[i - 1] : v_undefined(r, "there is no previous item");
	if (str_is(name, "nextitem"))
		return i + 1 < n ? l->items->v[i + 1] : v_undefined(r, "there is no next item");
	return v_undefined(r, "'loop' has no attribute '%.*s'", name.n > 60 ? 60 : (int)name.n, name.s);
}

struct value get_attr(struct render *r, struct value v, struct str name)
{
	const struct method *m;
	struct value *found;
	struct bound *b;

	switch (v.t) {
	case V_UNDEFINED:
		fail(r, "%s", v.u.s.s);
	case V_NAMESPACE:
		found = dict_get(r, v.u.dict, v_str(name));
		if (found)
			return *found;
		break;
	case V_LOOP:
		if (method_find(v, name))
			break;
		return loop_attr(r, v.u.loop, name);
	default:
		break;
	}
	m = method_find(v, name);
	if (m) {
		b = arena_alloc(&r->mem, sizeof(*b));
		*b = (struct bound){ v, m };
		return (struct value){ .t = V_METHOD, .u.bound = b };
	}
	if (v.t == V_DICT) {
		found = dict_get(r, v.u.dict, v_str(name));
		if (found)
			return *found;
	}
	return v_undefined(r, "'%s object' has no attribute '%.*s'", type_name(v),
	                   name.n > 60 ? 60 : (int)name.n, name.s);
}

struct value *arg(struct args *a, size_t i, const char *name)
{
	if (i < a->n)
		return &a->v[i];
	for (size_t k = 0; k < a->n_named; k++)
		if (str_is(a->named[k].name, name))
			return &a->named[k].v;
	return NULL;
}

static struct args arguments(struct render *r, const struct node *call)
{
	struct args a = { 0 };
	const struct node *n;

	if (!call->n_list)
		return a;
	a.v = arena_alloc(&r->mem, call->n_list * sizeof(*a.v));
	a.named = arena_alloc(&r->mem, call->n_list * sizeof(*a.named));
	for (n = call->list; n; n = n->next) {
		if (n->kind == N_KEYWORD) {
			a.named[a.n_named].name = n->s;
			a.named[a.n_named++].v = eval(r, n->a);
		} else if (a.n_named) {
			fail(r, "a positional argument follows a named one");
		} else {
			a.v[a.n++] = eval(r, n);
		}
	}
	return a;
}

/* The output of a body, as a string. */
static struct value captured(struct render *r, const struct node *body)
{
	size_t from = r->n_out, n;
	char *s;

	template_exec(r, body);
	n = r->n_out - from;
	s = arena_alloc(&r->mem, n + 1);
	memcpy(s, r->out + from, n);
	r->n_out = from;
	return v_str((struct str){ s, n });
}

static struct value call_macro(struct render *r, const struct macro *m, struct args *a)
{
	const struct node *p = m->node->list;
	struct scope *outer = r->scope, *scope = arena_alloc(&r->mem, sizeof(*scope));
	struct str name = m->node->s;
	struct value v, *given = arg(a, a->n, "caller");
	size_t i = 0, used = given != NULL;
	char key[128];

	if (a->n > m->node->n_list)
		fail(r, "macro '%.*s' takes at most %zu argument(s)", name.n > 60 ? 60 : (int)name.n, name.s,
		     m->node->n_list);
	scope->outer = m->scope;
	r->scope = scope;
	if (given)                               /* by a call block */
		bind(r, STR("caller"), *given);
	for (; p; p = p->next, i++) {
		if (p->s.n >= sizeof(key))
			fail(r, "the name of a parameter is longer than %zu bytes", sizeof(key) - 1);
		memcpy(key, p->s.s, p->s.n);
		key[p->s.n] = 0;
		given = arg(a, i, key);
		used += given && i >= a->n;
		v = given ? *given : p->a ? eval(r, p->a) :
		    v_undefined(r, "parameter '%s' was not provided", key);
		bind(r, p->s, v);
	}
	if (used < a->n_named)
		fail(r, "macro '%.*s' takes no such keyword argument", name.n > 60 ? 60 : (int)name.n, name.s);
	v = captured(r, m->node->b);
	r->scope = outer;
	return v;
}

static struct value call_value(struct render *r, struct value f, struct args *a)
{
	struct value v;

	enter(r);
	switch (f.t) {
	case V_MACRO:
		v = call_macro(r, f.u.macro, a);
		break;
	case V_METHOD:
		v = method_call(r, f.u.bound->method, f.u.bound->self, a);
		break;
	case V_GLOBAL:
		v = global_call(r, f.u.global, a);
		break;
	case V_UNDEFINED:
		fail(r, "%s", f.u.s.s);
	default:
		fail(r, "'%s' object is not callable", type_name(f));
	}
	leave(r);
	return v;
}

/* ---- expressions ----------------------------------------------------------------------------- */

static struct value items(struct render *r, const struct node *n)
{
	struct value v = v_list(r, n->n_list);
	size_t i = 0;

	v.t = n->kind == N_TUPLE ? V_TUPLE : V_LIST;
	for (const struct node *item = n->list; item; item = item->next)
		v.u.list->v[i++] = eval(r, item);
	return v;
}

static struct value pairs(struct render *r, const struct node *n)
{
	struct value v = v_dict(r), key;

	for (const struct node *item = n->list; item; item = item->next->next) {
		key = eval(r, item);
		dict_set(r, v.u.dict, key, eval(r, item->next));
	}
	return v;
}

static struct value negative(struct render *r, struct value v)
{
	double d;

	if (!as_number(v, &d))
		fail(r, v.t == V_UNDEFINED ? "%s" : "bad operand type for unary -: '%s'",
		     v.t == V_UNDEFINED ? v.u.s.s : type_name(v));
	return v.t == V_FLOAT ? v_float(-d) : ints(r, '-', 0, v.t == V_INT ? v.u.i : v.u.b);
}

static struct value item(struct render *r, const struct node *n)
{
	struct value v = eval(r, n->a), part[3];
	const struct node *k[] = { n->b->a, n->b->b, n->b->c };

	if (n->b->kind != N_SLICE)
		return get_item(r, v, eval(r, n->b));
	for (int i = 0; i < 3; i++)
		part[i] = k[i] ? eval(r, k[i]) : v_none();
	return get_slice(r, v, part[0], part[1], part[2]);
}

static struct value concat(struct render *r, const struct node *n)
{
	struct value a = eval(r, n->a), b = eval(r, n->b);

	return join_two(r, v_str(to_str(r, a)), v_str(to_str(r, b)));
}

static struct value with_args(struct render *r, const struct node *n)
{
	struct value v = eval(r, n->a);
	struct args a = arguments(r, n);

	r->line = n->line;
	if (n->kind != N_CALL && !n->filter && !n->test)
		fail(r, "there is no %s named '%.*s'", n->kind == N_FILTER ? "filter" : "test",
		     n->s.n > 60 ? 60 : (int)n->s.n, n->s.s);
	if (n->kind == N_CALL)
		return call_value(r, v, &a);
	if (n->kind == N_FILTER)
		return filter_call(r, n->filter, v, &a);
	return v_bool(test_call(r, n->test, v, &a) != (bool)n->op);
}

static struct value eval_kind(struct render *r, const struct node *n)
{
	struct value a;

	switch (n->kind) {
	case N_CONST:   return n->v;
	case N_NAME:    return name_value(r, n->s);
	case N_LIST:
	case N_TUPLE:   return items(r, n);
	case N_DICT:    return pairs(r, n);
	case N_ATTR:    return get_attr(r, eval(r, n->a), n->s);
	case N_ITEM:    return item(r, n);
	case N_CALL:
	case N_FILTER:
	case N_TEST:    return with_args(r, n);
	case N_NOT:     return v_bool(!truth(eval(r, n->a)));
	case N_NEG:     return negative(r, eval(r, n->a));
	case N_POS:     return negative(r, negative(r, eval(r, n->a)));
	case N_AND:
		a = eval(r, n->a);
		return truth(a) ? eval(r, n->b) : a;
	case N_OR:
		a = eval(r, n->a);
		return truth(a) ? a : eval(r, n->b);
	case N_BINARY:
		if (n->op == '~')
			return concat(r, n);
		a = eval(r, n->a);
		return binary(r, n->op, a, eval(r, n->b));
	case N_COMPARE: return comparison(r, n);
	case N_IF_ELSE:
		if (truth(eval(r, n->a)))
			return eval(r, n->b);
		return n->c ? eval(r, n->c) : v_undefined(r, "the inline if-expression has no else");
	default:
		fail(r, "not an expression");
	}
}

static struct value eval(struct render *r, const struct node *n)
{
	struct value v;

	enter(r);
	v = eval_kind(r, n);
	leave(r);
	return v;
}

/* ---- statements ------------------------------------------------------------------------------ */

static void assign(struct render *r, const struct node *target, struct value v)
{
	struct value *ns;

	if (target->kind == N_NAME) {
		bind(r, target->s, v);
		return;
	}
	ns = lookup(r, target->a->s);
	if (!ns || ns->t != V_NAMESPACE)
		fail(r, "cannot assign attribute on non-namespace object");
	dict_set(r, ns->u.dict, v_str(target->s), v);
}

static void unpack(struct render *r, const struct node *n, struct value v)
{
	struct value_list *l;
	size_t i = 0;

	if (!n->op) {
		assign(r, n->list, v);
		return;
	}
	l = to_list(r, v);
	if (l->n != n->n_list)
		fail(r, "%zu values to unpack, expected %zu", l->n, n->n_list);
	for (const struct node *t = n->list; t; t = t->next)
		assign(r, t, l->v[i++]);
}

/* The items that pass the loop's own condition. */
static struct value_list *filtered(struct render *r, const struct node *n, struct value_list *all)
{
	struct value out;
	struct scope scope = { r->scope, NULL };
	size_t k = 0;

	if (!n->d)
		return all;
	out = v_list(r, all->n);
	r->scope = &scope;
	for (size_t i = 0; i < all->n; i++) {
		unpack(r, n, all->v[i]);
		if (truth(eval(r, n->d)))
			out.u.list->v[k++] = all->v[i];
	}
	r->scope = scope.outer;
	out.u.list->n = k;
	return out.u.list;
}

static void exec_for(struct render *r, const struct node *n)
{
	struct value_list *l = filtered(r, n, to_list(r, eval(r, n->a)));
	struct for_loop *loop = arena_alloc(&r->mem, sizeof(*loop));
	struct scope *outer = r->scope;

	loop->items = l;
	for (size_t i = 0; i < l->n; i++) {
		/* allocated, because a macro defined in it may outlive it */
		struct scope *scope = arena_alloc(&r->mem, sizeof(*scope));

		spend(r, 1);
		scope->outer = outer;
		r->scope = scope;
		loop->i = i;
		bind(r, STR("loop"), (struct value){ .t = V_LOOP, .u.loop = loop });
		unpack(r, n, l->v[i]);
		template_exec(r, n->b);
		r->scope = outer;
		if (r->flow == N_BREAK) {
			r->flow = 0;
			break;
		}
		r->flow = 0;
	}
	if (!l->n && n->c) {
		struct scope *scope = arena_alloc(&r->mem, sizeof(*scope));

		scope->outer = outer;
		r->scope = scope;
		template_exec(r, n->c);
		r->scope = outer;
	}
}

static void exec_if(struct render *r, const struct node *n)
{
	for (;; n = n->d) {                      /* d is the next elif, c of the last one the else */
		if (truth(eval(r, n->a))) {
			template_exec(r, n->b);
			return;
		}
		if (!n->d)
			break;
	}
	template_exec(r, n->c);
}

/* "{% set x | trim | upper %}": apply the innermost filter first. */
static struct value filters(struct render *r, const struct node *f, struct value v)
{
	struct args a;

	if (!f)
		return v;
	enter(r);
	v = filters(r, f->a, v);
	a = arguments(r, f);
	if (!f->filter)
		fail(r, "there is no filter named '%.*s'", f->s.n > 60 ? 60 : (int)f->s.n, f->s.s);
	v = filter_call(r, f->filter, v, &a);
	leave(r);
	return v;
}

/* The value of the body of a set or filter block. */
static struct value block_value(struct render *r, const struct node *n)
{
	struct scope *outer = r->scope, *scope = arena_alloc(&r->mem, sizeof(*scope));
	struct value v;

	scope->outer = outer;
	r->scope = scope;
	v = captured(r, n->b);
	r->scope = outer;
	return filters(r, n->a, v);
}

/* Make the call that the block names, with the block's body as the macro `caller`. */
static struct value call_block(struct render *r, const struct node *n)
{
	struct macro *m = arena_alloc(&r->mem, sizeof(*m));
	struct value f = eval(r, n->a->a);
	struct args a = arguments(r, n->a), more = { .n = a.n, .v = a.v, .n_named = a.n_named + 1 };

	*m = (struct macro){ n, r->scope };
	more.named = arena_alloc(&r->mem, more.n_named * sizeof(*more.named));
	if (a.n_named)
		memcpy(more.named, a.named, a.n_named * sizeof(*more.named));
	more.named[a.n_named].name = STR("caller");
	more.named[a.n_named].v = (struct value){ .t = V_MACRO, .u.macro = m };
	return call_value(r, f, &more);
}

static void exec_with(struct render *r, const struct node *n)
{
	struct scope *outer = r->scope, *scope = arena_alloc(&r->mem, sizeof(*scope));
	struct value v;

	scope->outer = outer;
	for (const struct node *k = n->list; k; k = k->next) {
		v = eval(r, k->a);               /* evaluated where none of the names is set yet */
		r->scope = scope;
		bind(r, k->s, v);
		r->scope = outer;
	}
	r->scope = scope;
	template_exec(r, n->b);
	r->scope = outer;
}

static void put_value(struct render *r, struct value v)
{
	struct str s = to_str(r, v);

	out_put(r, s.s, s.n);
}

static void exec_scope(struct render *r, const struct node *n)
{
	struct scope *outer = r->scope, *scope = arena_alloc(&r->mem, sizeof(*scope));

	scope->outer = outer;
	r->scope = scope;
	template_exec(r, n->b);
	r->scope = outer;
}

static void exec_macro(struct render *r, const struct node *n)
{
	struct macro *m = arena_alloc(&r->mem, sizeof(*m));

	*m = (struct macro){ n, r->scope };
	bind(r, n->s, (struct value){ .t = V_MACRO, .u.macro = m });
}

static void exec_one(struct render *r, const struct node *n)
{
	r->line = n->line;
	switch (n->kind) {
	case N_DATA:
		out_put(r, n->s.s, n->s.n);
		break;
	case N_OUT:
		put_value(r, eval(r, n->a));
		break;
	case N_IF:
		exec_if(r, n);
		break;
	case N_FOR:
		exec_for(r, n);
		break;
	case N_SET:
		unpack(r, n, eval(r, n->a));
		break;
	case N_SET_BLOCK:
		assign(r, n->list, block_value(r, n));
		break;
	case N_FILTER_BLOCK:
		put_value(r, block_value(r, n));
		break;
	case N_CALL_BLOCK:
		put_value(r, call_block(r, n));
		break;
	case N_WITH:
		exec_with(r, n);
		break;
	case N_MACRO:
		exec_macro(r, n);
		break;
	case N_SCOPE:
		exec_scope(r, n);
		break;
	case N_BREAK:
	case N_CONTINUE:
		r->flow = n->kind;
		break;
	default:
		fail(r, "not a statement");
	}
}

void template_exec(struct render *r, const struct node *body)
{
	enter(r);
	for (; body && !r->flow; body = body->next)
		exec_one(r, body);
	leave(r);
}
