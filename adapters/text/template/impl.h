/* template/impl.h - the internals of the template engine: nodes, values, memory, errors.
 *
 * A template is compiled once (lex, parse: linear) into nodes that are never written again.
 * A rendering has its own memory, freed as a whole at its end, and its own budget.  Errors
 * do not return: template_fail() jumps to the one setjmp in template.c, so the code between reads like
 * the grammar.  That code owns nothing but arena memory.
 */
#ifndef TEMPLATE_IMPL_H
#define TEMPLATE_IMPL_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "template.h"

struct str { const char *s; size_t n; };

#define STR(literal) ((struct str){ "" literal, sizeof(literal) - 1 })

bool str_is(struct str a, const char *b);
bool str_eq(struct str a, struct str b);

/* ---- memory and errors, of a compilation or a rendering -------------------------------------- */

struct arena_chunk;

struct arena {
	struct arena_chunk *chunks;
	size_t bytes, bytes_max;
	jmp_buf failed;
	int rc;
	char *err;
	size_t errlen;
};

void *arena_alloc(struct arena *j, size_t n);            /* zeroed; fails with -ENOMEM or -E2BIG */

/* Fail with one sentence, "line 7: ..."; line 0: without a line. */
_Noreturn void template_fail(struct arena *j, int rc, uint32_t line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* ---- lexemes --------------------------------------------------------------------------------- */

enum lexeme_kind { T_DATA, T_OPEN_OUT, T_CLOSE_OUT, T_OPEN_BLOCK, T_CLOSE_BLOCK, T_NAME, T_STRING,
                  T_INT, T_FLOAT, T_OP, T_END };

#define OP2(a, b) ((a) << 8 | (b))                   /* "==" is OP2('=', '='), "+" is '+' */

struct lexeme {
	enum lexeme_kind kind;
	int op;
	uint32_t line;
	struct str s;                                /* DATA, NAME, STRING (escapes resolved) */
	int64_t i;
	double f;
};

/* The lexemes of the whole source; the last one is T_END. */
struct lexeme *template_lex(struct arena *j, const char *source, size_t n);

/* ---- values ---------------------------------------------------------------------------------- */

enum type { V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_STR, V_LIST, V_TUPLE, V_DICT, V_NAMESPACE,
            V_MACRO, V_METHOD, V_GLOBAL, V_LOOP, V_ITER };

struct value {
	enum type t;
	bool markup;                         /* a STR that is HTML already: what is appended to it is escaped */
	union {
		bool b;
		int64_t i;
		double f;
		struct str s;                /* STR; for UNDEFINED a sentence that says what is undefined */
		struct value_list *list;           /* LIST, TUPLE; for ITER the items not consumed yet */
		struct dict *dict;           /* DICT, NAMESPACE */
		struct macro *macro;
		struct bound *bound;
		const struct global *global;
		struct for_loop *loop;
	} u;
};

struct value_list { size_t n; struct value *v; };
struct pair { struct value k, v; };
struct dict { size_t n, cap; struct pair *p; uint32_t *index, mask; }; /* in order of insertion */

/* ---- nodes ----------------------------------------------------------------------------------- */

enum node_kind {
	/* expressions */
	N_CONST, N_NAME, N_LIST, N_TUPLE, N_DICT, N_ATTR, N_ITEM, N_SLICE, N_CALL, N_KEYWORD, N_FILTER,
	N_TEST, N_NOT, N_NEG, N_POS, N_AND, N_OR, N_BINARY, N_COMPARE, N_IF_ELSE,
	/* statements */
	N_DATA, N_OUT, N_IF, N_FOR, N_SET, N_SET_BLOCK, N_FILTER_BLOCK, N_MACRO, N_CALL_BLOCK, N_WITH,
	N_SCOPE, N_BREAK, N_CONTINUE
};

struct node {
	enum node_kind kind;
	int op;                      /* BINARY, and each operand of COMPARE ("in" is 'i', "not in" 'n') */
	uint32_t line;
	struct str s;                /* NAME, ATTR, KEYWORD, DATA, SET.., MACRO, FILTER, TEST */
	struct value v;              /* CONST */
	const struct filter *filter; /* NULL: no filter has that name, and running it is an error */
	const struct test *test;
	struct node *a, *b, *c, *d;  /* operands: see parse.h */
	struct node *list;           /* items, arguments, bodies: linked by next */
	struct node *next;
	size_t n_list;
};

struct template {
	struct arena mem;
	struct node *body;
	unsigned reads;              /* bits of template_check() */
};

struct node *template_parse(struct arena *j, const struct lexeme *t); /* up to T_END */

/* template/check.c: fails for an unknown filter or test where Jinja2 fails when it compiles.  Returns
 * a bit for each of template_inputs that the template reads from the caller. */
unsigned template_check(struct arena *j, const struct node *body);

/* ---- a rendering ----------------------------------------------------------------------------- */

struct scope { struct scope *outer; struct binding *vars; };
struct binding { struct binding *next; struct str name; struct value v; };

struct macro { const struct node *node; struct scope *scope; };
struct bound { struct value self; const struct method *method; };

struct for_loop {
	const struct value_list *items;
	size_t i;
	bool seen;                   /* changed() was called before; `last` was its argument */
	struct value last;
};

struct render {
	struct arena mem;
	uint64_t steps;
	uint32_t depth, line;        /* line: of the current statement or call, for messages */
	char *out;                   /* malloc'ed */
	size_t n_out, out_cap, out_max;
	struct scope *scope;
	struct dict *vars;
	int flow;                    /* 0, or N_BREAK, N_CONTINUE on its way to the loop */
};

struct args {
	size_t n, n_named;
	struct value *v;
	struct { struct str name; struct value v; } *named;
};

_Noreturn void fail(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void spend(struct render *r, uint64_t steps);
void enter(struct render *r);                        /* one level deeper; leave() goes back */
static inline void leave(struct render *r) { r->depth++; }
void out_put(struct render *r, const char *s, size_t n);

void template_exec(struct render *r, const struct node *body);
/* The argument at position i or by name; NULL if it was not given. */
struct value *arg(struct args *a, size_t i, const char *name);

/* template/value.c */
struct value v_str(struct str s);
struct value v_like(struct value v, struct str s);   /* markup if v is */
struct value v_iter(struct value_list *l);
struct value v_int(int64_t i);
struct value v_bool(bool b);
struct value v_none(void);
struct value v_undefined(struct render *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct value v_list(struct render *r, size_t n);     /* n items, to be filled in */
struct value v_from_json(struct render *r, const json_t *j);
const char *type_name(struct value v);
bool truth(struct value v);
bool equal(struct render *r, struct value a, struct value b);
int  order(struct render *r, struct value a, struct value b);  /* < 0, 0, > 0, or fails */
bool contains(struct render *r, struct value in, struct value item);
bool as_number(struct value v, double *out);
struct value_list *to_list(struct render *r, struct value v);
struct value get_attr(struct render *r, struct value v, struct str name);
struct value get_item(struct render *r, struct value v, struct value key);
struct value get_slice(struct render *r, struct value v, struct value from, struct value to,
                       struct value step);
struct value *dict_get(struct render *r, const struct dict *d, struct value key);
void dict_set(struct render *r, struct dict *d, struct value key, struct value v);
struct value v_dict(struct render *r);
size_t str_length(struct str s);                     /* in characters */

/* template/format.c */
struct value str_percent(struct render *r, struct value format, struct value args);  /* format % args */
struct value str_format(struct render *r, struct value format, struct args *a);      /* format.format(..) */

/* template/print.c */
struct str to_repr(struct render *r, struct value v);
struct str float_repr(struct render *r, double f);
struct str to_str(struct render *r, struct value v); /* as Python's str() */
struct str to_json(struct render *r, struct value v, struct args *a);
/* A string that grows in arena memory. */
struct string_builder { struct render *r; char *s; size_t n, cap; };
void builder_put(struct string_builder *t, struct str s);
void builder_char(struct string_builder *t, uint32_t cp);
void builder_pad(struct string_builder *t, uint32_t cp, int64_t times);

/* template/strings.c */
bool py_space(uint32_t cp);
/* sides: 1 left, 2 right, 3 both */
struct str str_strip(struct render *r, struct str s, struct str chars, bool any_space, int sides);
struct str str_case(struct render *r, struct str s, char how); /* u l t(itle) c(apitalize) w(ord title) */
struct str str_escape(struct render *r, struct value v);  /* for HTML, unless v is markup */
struct str str_replace(struct render *r, struct str s, struct str from, struct str to, int64_t most);
struct value_list *str_split(struct render *r, struct str s, const struct str *sep, int64_t most, bool right);
struct value_list *str_lines(struct render *r, struct str s);
struct value_list *str_chars(struct render *r, struct str s);

/* NULL: there is none. */
const struct filter *filter_find(struct str name);
const struct test *test_find(struct str name);
const struct global *global_find(struct str name);
const struct method *method_find(struct value self, struct str name);
struct value filter_call(struct render *r, const struct filter *f, struct value v, struct args *a);
bool test_call(struct render *r, const struct test *t, struct value v, struct args *a);
struct value global_call(struct render *r, const struct global *g, struct args *a);
struct value method_call(struct render *r, const struct method *m, struct value self, struct args *a);

#endif
