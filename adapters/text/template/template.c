/* template.c - compiles and renders templates: memory, budgets, and where errors return to. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "impl.h"
#include "adapters/text/unicode/utf8.h"

#define SOURCE_MAX  (1 << 20)
#define MEMORY_MAX  ((size_t)256 << 20)
#define STEPS_MAX   20000000u
#define DEPTH_MAX   400u
#define OUTPUT_MAX  ((size_t)64 << 20)
#define CHUNK       (64 << 10)

struct arena_chunk { struct arena_chunk *next; size_t used, size; _Alignas(16) char bytes[]; };

bool str_is(struct str a, const char *b)
{
	return strlen(b) == a.n && !memcmp(a.s, b, a.n);
}

bool str_eq(struct str a, struct str b)
{
	return a.n == b.n && !memcmp(a.s, b.s, a.n);
}

void template_fail(struct arena *j, int rc, uint32_t line, const char *fmt, ...)
{
	va_list ap;
	int n = 0;

	if (line)
		n = snprintf(j->err, j->errlen, "chat template, line %u: ", line);
	if (j->errlen && (size_t)n < j->errlen) {
		va_start(ap, fmt);
		vsnprintf(j->err + n, j->errlen - (size_t)n, fmt, ap);
		va_end(ap);
	}
	j->rc = rc;
	longjmp(j->failed, 1);
}

void *arena_alloc(struct arena *j, size_t n)
{
	struct arena_chunk *c = j->chunks;
	void *p;

	if (n > j->bytes_max || j->bytes + n > j->bytes_max)
		template_fail(j, -E2BIG, 0, "the chat template needs more than %zu MiB of memory",
		              j->bytes_max >> 20);
	n = (n + 15) & ~(size_t)15;
	if (!c || c->size - c->used < n) {
		size_t size = n > CHUNK ? n : CHUNK;

		c = calloc(1, sizeof(*c) + size);
		if (!c)
			template_fail(j, -ENOMEM, 0, "there is no memory for the chat template");
		c->size = size;
		c->next = j->chunks;
		j->chunks = c;
	}
	p = c->bytes + c->used;
	c->used += n;
	j->bytes += n;
	return p;
}

static void arena_free(struct arena *j)
{
	struct arena_chunk *next;

	for (; j->chunks; j->chunks = next) {
		next = j->chunks->next;
		free(j->chunks);
	}
}

/* ---- compile --------------------------------------------------------------------------------- */

static int compile(struct template *t, const char *source, size_t n)
{
	if (setjmp(t->mem.failed))
		return t->mem.rc;
	t->body = template_parse(&t->mem, template_lex(&t->mem, source, n));
	t->reads = template_check(&t->mem, t->body);
	return 0;
}

int template_compile(struct template **out, const char *source, size_t n, char *err, size_t errlen)
{
	struct template *t;
	int rc;

	if (n > SOURCE_MAX) {
		snprintf(err, errlen, "the chat template has %zu bytes; at most %d are allowed", n, SOURCE_MAX);
		return -E2BIG;
	}
	if (!utf8_valid(source, n)) {
		snprintf(err, errlen, "the chat template is not UTF-8");
		return -EINVAL;
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		snprintf(err, errlen, "there is no memory for the chat template");
		return -ENOMEM;
	}
	t->mem = (struct arena){ .bytes_max = MEMORY_MAX, .err = err, .errlen = errlen };
	rc = compile(t, source, n);
	if (rc) {
		template_free(t);
		return rc;
	}
	*out = t;
	return 0;
}

bool template_reads(const struct template *t, const char *input)
{
	for (unsigned i = 0; template_inputs[i]; i++)
		if (!strcmp(template_inputs[i], input))
			return t->reads >> i & 1;
	return true;
}

void template_free(struct template *t)
{
	if (t)
		arena_free(&t->mem);
	free(t);
}

/* ---- render ---------------------------------------------------------------------------------- */

void fail(struct render *r, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	template_fail(&r->mem, -EINVAL, r->line, "%s", text);
}

void spend(struct render *r, uint64_t steps)
{
	if (r->steps < steps)
		template_fail(&r->mem, -E2BIG, r->line, "too many steps");
	r->steps -= steps;
}

void enter(struct render *r)
{
	spend(r, 1);
	if (!r->depth)
		template_fail(&r->mem, -E2BIG, r->line, "nested too deeply");
	r->depth--;
}

void out_put(struct render *r, const char *s, size_t n)
{
	size_t cap = r->out_cap ? r->out_cap : 4096;
	char *p;

	if (n > r->out_max - r->n_out)
		template_fail(&r->mem, -E2BIG, r->line, "the output has more than %zu bytes", r->out_max);
	while (cap < r->n_out + n + 1)
		cap *= 2;
	if (cap != r->out_cap) {
		p = realloc(r->out, cap);
		if (!p)
			template_fail(&r->mem, -ENOMEM, r->line, "there is no memory for the output");
		r->out = p;
		r->out_cap = cap;
	}
	memcpy(r->out + r->n_out, s, n);
	r->n_out += n;
	r->out[r->n_out] = 0;
	spend(r, n / 64);
}

static int render(struct render *r, const struct template *t, json_t *vars)
{
	struct scope top = { NULL, NULL };

	if (setjmp(r->mem.failed))
		return r->mem.rc;
	out_put(r, "", 0);
	r->vars = v_from_json(r, vars).u.dict;
	r->scope = &top;
	template_exec(r, t->body);
	return 0;
}

int64_t template_render(const struct template *t, json_t *vars, const struct template_budget *b,
                        char **out, char *err, size_t errlen)
{
	struct render r = {
		.mem = { .bytes_max = MEMORY_MAX, .err = err, .errlen = errlen },
		.steps = b && b->steps ? b->steps : STEPS_MAX,
		.depth = b && b->depth ? b->depth : DEPTH_MAX,
		.out_max = b && b->output ? b->output : OUTPUT_MAX,
	};
	int rc;

	if (!json_is_object(vars)) {
		snprintf(err, errlen, "the variables of a chat template are not a JSON object");
		return -EINVAL;
	}
	rc = render(&r, t, vars);
	arena_free(&r.mem);
	if (rc) {
		free(r.out);
		return rc;
	}
	*out = r.out;
	return (int64_t)r.n_out;
}
