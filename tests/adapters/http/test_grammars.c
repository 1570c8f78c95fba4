/* LINK: adapters/http/guided/grammars.c adapters/http/tenants.c adapters/http/gate/auth.c adapters/http/gate/quota.c adapters/http/net/http.c core/instance/log.c adapters/http/json/problem.c adapters/http/json/out.c adapters/http/json/number.c -lcrypto -lpthread */
/* test_grammars.c - the cache of compiled grammars: what is found, dropped and refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/guided/grammars.h"
#include "adapters/http/shared.h"

/* ---- grammars that are nothing but a size ---- */

struct sr_grammar { size_t bytes; };

static _Atomic int n_open, n_compiled;
static struct sr_grammar_options last;

/* The source is the number of bytes, or words of an error. */
int sr_grammar_open(struct sr_grammar **out, const struct sr_text *t, enum sr_grammar_kind kind, const char *src,
                    size_t n, const struct sr_grammar_options *o, char *err, size_t errlen)
{
	(void)t;
	(void)kind;
	(void)n;
	n_compiled++;
	last = *o;
	if (src[0] == '!') {
		snprintf(err, errlen, "%s", src + 1);
		return -ENOTSUP;
	}
	if (src[0] == '~') {
		snprintf(err, errlen, "%s", src + 1);
		src = "10";
	}
	*out = malloc(sizeof(**out));
	(*out)->bytes = strtoul(src, NULL, 10);
	n_open++;
	return 0;
}

void sr_grammar_close(struct sr_grammar *g)
{
	n_open--;
	free(g);
}

size_t sr_grammar_bytes(struct sr_grammar *g) { return g->bytes; }

/* ---- */

static struct api_shared shared;
static struct grammars *gs;
static struct problem p;

static struct ask ask(const char *src)
{
	return (struct ask){ .guide = { .kind = SR_GRAMMAR_JSON, .src = (char *)src, .n = strlen(src) } };
}

static struct grammar_use *get(const char *src, uint64_t tenant)
{
	const struct ask a = ask(src);

	return grammars_get(gs, &a, tenant, &p);
}

static int setup(void **state)
{
	(void)state;
	n_compiled = 0;
	memset(&shared, 0, sizeof(shared));
	return grammars_create(&gs, NULL, &shared, 10000, 100000);
}

static int teardown(void **state)
{
	(void)state;
	grammars_destroy(gs);
	return n_open;
}

static void shares(void **state)
{
	struct grammar_use *a = get("1000", 0), *b = get("1000", 0), *c;
	struct ask q = ask("1000");
	int32_t stop = 5;

	(void)state;
	assert_true(a && a == b && n_compiled == 1);
	assert_int_equal(shared_get(shared.grammar_hits), 1);
	assert_int_equal(shared_get(shared.grammars), 1);
	assert_ptr_equal(grammars_find(gs, &q, 0), a);
	grammars_put(gs, a);
	grammars_put(gs, a);
	grammars_put(gs, a);
	assert_ptr_equal(grammars_find(gs, &q, 0), a);        /* kept without a user */
	grammars_put(gs, a);
	/* All that a grammar depends on tells it from others. */
	q.guide.kind = SR_GRAMMAR_REGEX;
	assert_null(grammars_find(gs, &q, 0));
	q = ask("1000");
	q.guide.rules.lenient = true;
	assert_null(grammars_find(gs, &q, 0));
	q = ask("1000");
	q.guide.rules.disable_any_whitespace = true;
	assert_null(grammars_find(gs, &q, 0));
	q = ask("1000");
	q.guide.rules.additional_properties = true;
	assert_null(grammars_find(gs, &q, 0));
	q = ask("1000");
	q.guide.whitespace = (char *)"";
	assert_null(grammars_find(gs, &q, 0));
	q = ask("1000");
	q.stop_ids = (struct ask_ids){ &stop, 1 };
	assert_null(grammars_find(gs, &q, 0));
	c = grammars_get(gs, &q, 0, &p);
	assert_true(c && c != a && last.n_stop == 1 && last.stop == &stop);
	grammars_put(gs, c);
}

/* The least recently used ones go; what is in use stays. */
static void evicts(void **state)
{
	struct grammar_use *used = get("4000", 0);
	struct ask q;

	(void)state;
	grammars_put(gs, get("2001", 0));
	grammars_put(gs, get("2002", 0));
	assert_int_equal(n_open, 3);
	grammars_put(gs, get("2001", 0));                     /* now 2002 is the oldest */
	grammars_put(gs, get("2003", 0));
	assert_int_equal(n_open, 3);
	q = ask("2002");
	assert_null(grammars_find(gs, &q, 0));
	q = ask("2001");
	grammars_put(gs, grammars_find(gs, &q, 0));
	q = ask("4000");
	assert_ptr_equal(grammars_find(gs, &q, 0), used);
	grammars_put(gs, used);
	/* One whose caches have grown is measured again when it is put back. */
	grammars_grammar(used)->bytes = 9000;
	grammars_put(gs, used);
	assert_int_equal(n_open, 1);
	grammars_put(gs, get("20000", 0));                    /* larger than all that is kept */
	assert_int_equal(n_open, 0);
}

/* Of what may be in use one tenant leaves a ninth to others; one grammar is always possible. */
static void shares_of_tenants(void **state)
{
	struct grammar_use *u[40];
	int n = 0, m = 0;

	(void)state;
	for (char src[16]; n < 40; n++) {
		snprintf(src, sizeof(src), "%d", 9000 + n);
		u[n] = get(src, 1);
		if (!u[n])
			break;
	}
	assert_in_range(n, 5, 11);
	assert_int_equal(p.status, 503);
	u[n] = get("5000", 2);
	assert_non_null(u[n]);
	while (m <= n)
		grammars_put(gs, u[m++]);
	u[0] = get("200000", 1);
	assert_non_null(u[0]);
	grammars_put(gs, u[0]);
}

static void refuses(void **state)
{
	struct ask q = ask("!The JSON schema uses \"not\" at #/a, which Slipring cannot enforce here.");

	(void)state;
	assert_null(grammars_get(gs, &q, 0, &p));
	assert_int_equal(p.status, 400);
	assert_string_equal(p.message, q.guide.src + 1);
	assert_string_equal(p.param, "");
	q.guide.param = "response_format";
	assert_null(grammars_get(gs, &q, 0, &p));
	assert_string_equal(p.param, "response_format");
	assert_ptr_equal(strstr(p.message, "Invalid response_format structural_tag specification. The JSON"), p.message);
	assert_int_equal(n_compiled, 2);                      /* a refusal is not kept */
}

/* What a lenient grammar leaves out is a header line: one line of ASCII, cut if it is long. */
static void notes(void **state)
{
	static char longer[400] = "~";
	struct grammar_use *u = get("~no \"not\"\r\nat \xc3\xa9", 0);

	(void)state;
	assert_string_equal(grammars_note(u), "no \"not\"??at ??");
	grammars_put(gs, u);
	u = get("7", 0);
	assert_string_equal(grammars_note(u), "");
	grammars_put(gs, u);
	memset(longer + 1, 'x', sizeof(longer) - 2);
	u = get(longer, 0);
	assert_int_equal(strlen(grammars_note(u)), GRAMMARS_NOTE - 1);
	grammars_put(gs, u);
}

static void *many(void *arg)
{
	struct problem q;

	for (int i = 0; i < 2000; i++) {
		char src[16];
		struct ask a;
		struct grammar_use *u;

		snprintf(src, sizeof(src), "%d", 100 + (i * 7 + (int)(intptr_t)arg) % 97 * 10);
		a = ask(src);
		u = grammars_get(gs, &a, (uint64_t)(intptr_t)arg, &q);
		assert_non_null(u);
		assert_int_equal(grammars_grammar(u)->bytes, strtoul(src, NULL, 10));
		grammars_put(gs, u);
	}
	return NULL;
}

static void threads(void **state)
{
	pthread_t t[3];

	(void)state;
	for (intptr_t i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&t[i], NULL, many, (void *)i), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(shares, setup, teardown),
		cmocka_unit_test_setup_teardown(evicts, setup, teardown),
		cmocka_unit_test_setup_teardown(shares_of_tenants, setup, teardown),
		cmocka_unit_test_setup_teardown(refuses, setup, teardown),
		cmocka_unit_test_setup_teardown(notes, setup, teardown),
		cmocka_unit_test_setup_teardown(threads, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
