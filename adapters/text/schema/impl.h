/* impl.h - the parts of the schema compiler, which includes this alone.
 *
 * refs.c    where each subschema stands; $id, $anchor, $ref
 * term.c    terms: boolean combinations of schemas, each written once
 * form.c    forms: what a term allows, by type; intersection, union, complement
 * array.c, object.c    the same for one array or object
 * number.c  numbers as expressions over their decimals
 * string.c  strings, formats
 * read.c, types.c    keywords to forms
 * emit.c, members.c    forms to productions (emit.h)
 *
 * A failure leaves through schema_fail(), by longjmp to schema_compile().  All memory is one arena's.
 */
#ifndef SCHEMA_IMPL_H
#define SCHEMA_IMPL_H

#include <errno.h>
#include <setjmp.h>
#include <string.h>

#include "adapters/text/grammar/pattern.h"
#include "adapters/text/grammar/regex.h"
#include "schema.h"

#define SCHEMA_DEPTH   256            /* of $ref, and of schemas in schemas without a value between them */
#define SCHEMA_ARENA   (256u << 20)   /* bytes */
#define SCHEMA_TERMS   500000u
#define SCHEMA_SHAPES  4096u          /* arrays or objects of one form */
#define SCHEMA_STEPS   25000u         /* shapes combined, 8 properties each; 20 more for each object */
#define SCHEMA_STATES  20000u         /* rules of one array or object */
#define MANY           UINT64_MAX     /* no upper bound */

enum { TERM_NONE, TERM_ANY };          /* ids of the terms that allow nothing and everything */

/* ---- forms: what a term allows, by type ---- */

struct word { const char *s; size_t n; bool real; };  /* a string's value, or a number's shortest decimal */
struct words {                          /* the union of: */
	uint32_t expr; /* bodies of JSON strings in every spelling; numbers with trailing zeros */
	uint32_t n;
	const struct word *word;
};

struct contains {
	uint32_t term, from;
	uint64_t min, max;
}; /* items at `from` and after it that the term allows */
struct array_form {
	uint32_t n, rest;               /* items after the prefix */
	const uint32_t *prefix;
	uint64_t min, max;
	const struct contains *contains;
	uint32_t n_contains;
	bool unique;
	const json_t *unique_of;        /* the schema that says so */
};

struct property {
	struct word name;
	uint32_t term;
	bool required, bare;
}; /* bare: not named by `properties` */
/* Keys that are no property's; the sets of one object are disjoint and cover every key. */
struct keys { uint32_t expr, term; bool loose; };   /* loose: no keyword speaks of them */
struct some { uint32_t expr, term; };               /* a member with such a key and value must be there */
struct object_form {
	uint32_t n, n_keys, n_some;
	const struct property *property;
	const struct keys *keys;
	const struct some *some;
	uint64_t min, max;
	const uint32_t *by_name;        /* indices of properties, sorted by name; made on first use */
	uint64_t bits;                  /* of required names, for object_covers(); made on first use */
	bool soft;                      /* loose keys are not generated unless additional_properties is set */
};

struct form {
	bool null, yes, no;
	bool exponent;                  /* any number, in any spelling */
	bool whole;                     /* a type says so: written without a fraction */
	struct words number, string;
	uint32_t n_arrays, n_objects;
	const struct array_form *const *array;
	struct object_form *const *object;
	uint32_t arrays_cap, objects_cap;
};

/* ---- terms ---- */

enum term_kind { KIND_NONE, KIND_ANY, KIND_SCHEMA, KIND_VALUE, KIND_NOT, KIND_AND, KIND_OR };
struct blame { const json_t *schema; const char *keyword; };   /* whose complement it is */
struct term {
	uint8_t kind, emptiness;        /* of enum emptiness */
	bool busy;
	uint32_t n;
	json_t *json;                   /* SCHEMA, VALUE */
	const uint32_t *of;             /* NOT, AND, OR */
	struct blame blame;
	const struct form *form;
	int32_t symbol;
};

/* ---- one compilation ---- */

struct where { const json_t *json; uint32_t up; const char *key; size_t index; uint32_t base; };
struct resource { const char *uri; json_t *root; int draft; };
struct anchor { uint32_t resource; const char *name; json_t *json; };

struct schema {
	struct grammar *g;
	struct regexes *r;
	const struct sr_grammar_options *o;
	struct grammar_error *e;
	const char *at;
	const json_t *emitted;          /* the schema whose productions are made */
	jmp_buf out, *trial;
	struct chunk *chunk;
	size_t arena;

	struct where *where; uint32_t n_where, *where_of, where_cap;   /* [0] is the root; an index by address */
	struct resource *resource; uint32_t n_resources;
	struct anchor *anchor; uint32_t n_anchors;

	struct term **term; uint32_t n_terms, terms_cap, *table, table_cap;
	uint32_t *busy, n_busy, n_trials;
	struct blame blame;
	uint32_t steps;

	uint32_t all_strings, all_numbers, integers, plain, fraction;  /* expressions */
	uint32_t *format, point[128], digit[10][10], quote, key_end;   /* expressions met before; 0 = not yet */
	int32_t open_object, open_array, close, close_array, comma, empty_object, empty_array;  /* lexemes */
	uint32_t any_string, any_number, space, *queue, n_queue, queue_cap;
	char note[300];                 /* what `lenient` ignored */
};

_Noreturn __attribute__((format(printf, 4, 5)))
void schema_fail(struct schema *s, int code, const json_t *schema, const char *fmt, ...);
_Noreturn void schema_cannot(struct schema *s, const json_t *schema, const char *keyword);
/* With `lenient` notes it and returns; else refuses. */
void schema_ignore(struct schema *s, const json_t *schema, const char *keyword);
_Noreturn void schema_too_complex(struct schema *s);
void *schema_take(struct schema *s, size_t n, size_t size);    /* zeroed; never NULL */
void *schema_grow(struct schema *s, void *old, uint32_t *cap, size_t size); /* doubles, from 16 */
uint32_t schema_expr(struct schema *s, uint32_t expr);         /* expr, or fails if it is REGEX_FAILED */
void schema_step(struct schema *s);

/* refs */
void schema_index(struct schema *s, json_t *root);
json_t *schema_resolve(struct schema *s, const json_t *schema, const char *ref);
int schema_draft(struct schema *s, const json_t *schema);      /* 4, 6, 7, 2019, 2020 */
void schema_pointer(struct schema *s, const json_t *schema, char *to, size_t n);

/* terms */
uint32_t term_schema(struct schema *s, json_t *json);
uint32_t term_value(struct schema *s, json_t *json);
uint32_t term_not(struct schema *s, uint32_t t);
uint32_t term_and(struct schema *s, uint32_t a, uint32_t b);
const struct form *term_form(struct schema *s, uint32_t t);
bool term_covers(struct schema *s, uint32_t a, uint32_t b);            /* plain to see: b implies a */
/* Is it proven to allow nothing, looking `depth` values deep? */
bool term_empty(struct schema *s, uint32_t t, unsigned depth);
bool expr_empty(struct schema *s, uint32_t expr);

/* forms */
struct form *form_none(struct schema *s);
const struct form *form_any(struct schema *s);
struct form *form_copy(struct schema *s, const struct form *f);
const struct form *form_and(struct schema *s, const struct form *a, const struct form *b);
/* to becomes the union of both; it was made by form_none() and given to nobody. */
void form_add(struct schema *s, struct form *to, const struct form *b);
const struct form *form_minus(struct schema *s, const struct form *a,
                              const struct form *b); /* blames s->blame */
bool form_empty(struct schema *s, const struct form *f, unsigned depth);
const struct form *form_value(struct schema *s, json_t *json);
const struct form *form_objects(struct schema *s, struct object_form **o, uint32_t n, bool others);
const struct form *form_arrays(struct schema *s, struct array_form **a, uint32_t n, bool others);

/* arrays and objects; NULL: nothing.  *_not writes alternatives to *out and returns how many. */
struct array_form *array_any(struct schema *s);
struct array_form *array_tidy(struct schema *s, struct array_form *a);
struct array_form *array_and(struct schema *s, const struct array_form *a, const struct array_form *b);
uint32_t array_not(struct schema *s, const struct array_form *a, struct array_form ***out);
struct object_form *object_any(struct schema *s);
struct object_form *object_and(struct schema *s, struct object_form *a, struct object_form *b);
/* Is it plain to see that every object of b is one of a? */
bool object_covers(struct schema *s, struct object_form *a, struct object_form *b);
uint32_t object_not(struct schema *s, struct object_form *a, struct object_form ***out);
const struct property *object_find(struct schema *s, struct object_form *o, const struct word *name);
uint32_t object_value(struct schema *s, struct object_form *o, const struct word *name); /* its term */
uint32_t object_names(struct schema *s, const struct object_form *o);   /* expression of all declared names */
struct object_form *object_demand(struct schema *s, const struct object_form *o, uint32_t i, uint32_t term,
                                  uint32_t without_some);

/* words: strings and numbers */
uint32_t word_string(struct schema *s, const struct word *w);          /* its body in every spelling */
uint32_t word_number(struct schema *s, const struct word *w);
bool word_in(struct schema *s, const struct word *w, uint32_t expr, bool number);
struct word word_of(struct schema *s, const json_t *v);                /* of a string or number */
uint32_t word_written(struct schema *s, const struct word *w); /* a string's body as it is generated */
void numbers_begin(struct schema *s);
uint32_t number_at_least(struct schema *s, const struct word *bound, bool strict);
uint32_t number_at_most(struct schema *s, const struct word *bound, bool strict);
uint32_t number_multiple(struct schema *s, const json_t *schema, const struct word *of);
uint32_t string_pattern(struct schema *s, const json_t *schema, const char *keyword, const char *p, size_t n);
uint32_t string_format(struct schema *s, const char *name);            /* REGEX_FAILED: unknown */

/* keywords */
const struct form *read_schema(struct schema *s, json_t *schema);
void read_types(struct schema *s, json_t *schema,
                struct form *f); /* number, string, array, object keywords */
uint32_t read_term(struct schema *s, const json_t *schema, const char *keyword, json_t *v);
json_t *read_object(struct schema *s, const json_t *schema, const char *keyword);
json_t *read_array(struct schema *s, const json_t *schema, const char *keyword);

/* productions */
void emit_begin(struct schema *s, const json_t *root);
int32_t emit_term(struct schema *s, uint32_t t); /* a rule; its productions come later */
void emit_all(struct schema *s);
void emit_array(struct schema *s, int32_t rule, const struct array_form *a);
void emit_object(struct schema *s, int32_t rule, struct object_form *o);

#endif
