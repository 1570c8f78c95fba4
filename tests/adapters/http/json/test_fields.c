/* LINK: adapters/text/text_json.c adapters/http/json/fields.c adapters/http/json/problem.c adapters/http/json/out.c adapters/http/json/number.c -ljansson */
/* test_fields.c - one JSON value to a C value, as a table; fields of an object; lists of ids; the form of an
 * error. */
#include "adapters/http/json/fields.c"          /* before cmocka, whose fail() is a macro */

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>


#define NO INT64_MIN /* no value */

static json_t *json(const char *text)
{
	json_t *v = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

	assert_non_null(v);
	return v;
}

static void test_int(void **state)
{
	static const struct { const char *text; int64_t want; } cases[] = {
		{ "7", 7 }, { "-7", -7 }, { "0", 0 }, { "9223372036854775807", INT64_MAX },
		{ "true", 1 }, { "false", 0 },
		{ "7.0", 7 }, { "-7.0", -7 }, { "7.5", NO }, { "9e18", 9000000000000000000 }, { "9.1e18", NO },
		{ "-9.1e18", NO },
		{ "\"7\"", 7 }, { "\"-7\"", -7 }, { "\"9223372036854775807\"", INT64_MAX },
		{ "\"9223372036854775808\"", NO }, { "\"\"", NO }, { "\"x\"", NO }, { "\"7x\"", NO }, { "\"7.0\"", NO },
		{ "null", NO }, { "[7]", NO }, { "{}", NO },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *v = json(cases[i].text);
		int64_t got = 99;

		assert_int_equal(field_int(v, &got), cases[i].want == NO ? -EINVAL : 0);
		assert_true(cases[i].want == NO || got == cases[i].want);
		json_decref(v);
	}
}

static void test_double(void **state)
{
	static const struct { const char *text; double want; } cases[] = { /* NAN: none */
		{ "7", 7 }, { "-0.5", -0.5 }, { "true", 1 }, { "false", 0 }, { "\"0.5\"", 0.5 }, { "\"-1e3\"", -1000 },
		{ "\"\"", NAN }, { "\"x\"", NAN }, { "\"1x\"", NAN }, { "\"nan\"", NAN }, { "\"inf\"", NAN },
		{ "\"1e999\"", NAN }, { "null", NAN }, { "[1]", NAN }, { "{}", NAN },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *v = json(cases[i].text);
		double got = 99;

		assert_int_equal(field_double(v, &got), isnan(cases[i].want) ? -EINVAL : 0);
		assert_true(isnan(cases[i].want) || got == cases[i].want);
		json_decref(v);
	}
}

static void test_bool(void **state)
{
	static const char *const yes[] = { "true", "1", "1.0", "\"1\"", "\"true\"", "\"T\"", "\"yes\"", "\"y\"", "\"ON\"" };
	static const char *const no[] = { "false", "0", "0.0", "\"0\"", "\"False\"", "\"f\"", "\"no\"", "\"n\"", "\"off\"" };
	static const char *const neither[] = { "null", "2", "-1", "0.5", "\"\"", "\"maybe\"", "\"2\"", "[]", "[true]", "{}" };
	bool got;

	(void)state;
	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		json_t *a = json(yes[i]), *b = json(no[i]);

		got = false;
		assert_int_equal(field_bool(a, &got), 0);
		assert_true(got);
		assert_int_equal(field_bool(b, &got), 0);
		assert_false(got);
		json_decref(a);
		json_decref(b);
	}
	for (size_t i = 0; i < sizeof(neither) / sizeof(neither[0]); i++) {
		json_t *v = json(neither[i]);

		assert_int_equal(field_bool(v, &got), -EINVAL);
		json_decref(v);
	}
}

/* ---- the fields of an object ---- */

struct to { bool b; int64_t i, late; double d; const char *s; };

static const struct field fields[] = {
	{ "b", FIELD_BOOL, true, 3, offsetof(struct to, b) }, { "i", FIELD_INT, true, 3, offsetof(struct to, i) },
	{ "d", FIELD_DOUBLE, false, 3, offsetof(struct to, d) }, { "s", FIELD_STRING, false, 3, offsetof(struct to, s) },
	{ "late", FIELD_INT, true, 2, offsetof(struct to, late) },
};

static int read_fields(const char *text, uint8_t in, struct to *to, struct problem *p)
{
	static json_t *v; /* owns the strings */

	json_decref(v);
	v = json(text);
	*to = (struct to){ .i = 99, .late = 99, .d = 99 };
	return fields_read(fields, sizeof(fields) / sizeof(fields[0]), in, v, to, p);
}

static void test_read(void **state)
{
	static const struct { const char *text, *param, *message; } refused[] = {
		{ "{\"b\":2}", "body.b", "b must be a bool, not a number." },
		{ "{\"b\":\"x\"}", "body.b", "b must be a bool, not a string that cannot be read as one." },
		{ "{\"i\":\"x\"}", "body.i", "i must be an integer, not a string that cannot be read as one." },
		{ "{\"i\":1.5}", "body.i", "i must be an integer, not a number that cannot be read as one." },
		{ "{\"i\":[]}", "body.i", "i must be an integer, not a list." },
		{ "{\"d\":null}", "body.d", "d must be a number, not null." },
		{ "{\"s\":1}", "body.s", "s must be a string, not a number." },
		{ "{\"s\":\"a\\u0000\"}", "body.s", "s must not contain NUL." },
	};
	struct problem p;
	struct to to;

	(void)state;
	assert_int_equal(read_fields("{\"b\":1,\"i\":5,\"d\":2.5,\"s\":\"x\",\"late\":6,\"other\":[]}", 2, &to, &p), 0);
	assert_true(to.b && to.i == 5 && to.d == 2.5 && to.late == 6);
	assert_string_equal(to.s, "x");
	assert_int_equal(read_fields("{\"b\":null,\"i\":null,\"late\":6}", 1, &to, &p), 0); /* `late` has another type */
	assert_true(!to.b && to.i == 99 && to.d == 99 && !to.s && to.late == 99);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		assert_int_equal(read_fields(refused[i].text, 1, &to, &p), -1);
		assert_int_equal(p.status, 400);
		assert_string_equal(p.param, refused[i].param);
		assert_string_equal(p.message, refused[i].message);
	}
}

/* ---- lists of ids ---- */

static int read_ids(const char *text, int64_t below, struct ask_ids *ids, struct problem *p)
{
	json_t *v = json(text);
	int r;

	*ids = (struct ask_ids){ 0 };
	r = field_ids(v, "x", below, ids, p);
	json_decref(v);
	return r;
}

static void test_ids(void **state)
{
	static const struct { const char *text, *param, *message; } refused[] = {
		{ "7", "body.x", "x must be a list of integers, not a number." },
		{ "[1,\"a\"]", "body.x.1", "x[1] must be an integer, not a string." },
		{ "[1,10]", "x", "token_id(s) [10] in x contain out-of-vocab token ids. Vocabulary size: 10 "
		                 "(parameter=x, value=[10])" },
		{ "[-1]", "x", "token_id(s) [-1] in x contain out-of-vocab token ids. Vocabulary size: 10 "
		               "(parameter=x, value=[-1])" },
	};
	struct ask_ids ids;
	struct problem p;

	(void)state;
	assert_int_equal(read_ids("[0,9]", 10, &ids, &p), 0);
	assert_true(ids.n == 2 && ids.id[0] == 0 && ids.id[1] == 9);
	free(ids.id);
	assert_int_equal(read_ids("[]", 10, &ids, &p), 0);
	assert_int_equal(ids.n, 0);
	free(ids.id);
	/* unbounded: an id that cannot be a token is -1 */
	assert_int_equal(read_ids("[2147483647,2147483648,-1,-5000000000,0]", 0, &ids, &p), 0);
	assert_true(ids.n == 5 && ids.id[0] == INT32_MAX && ids.id[1] == -1 && ids.id[2] == -1 && ids.id[3] == -1 &&
	            ids.id[4] == 0);
	free(ids.id);
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		assert_int_equal(read_ids(refused[i].text, 10, &ids, &p), -1);
		assert_string_equal(p.param, refused[i].param);
		assert_string_equal(p.message, refused[i].message);
		free(ids.id);
	}
}

/* ---- errors ---- */

static void is(const struct problem *p, const char *json, const char *event)
{
	struct out a = { 0 }, b = { 0 };

	problem_json(&a, p);
	problem_event(&b, p);
	assert_int_equal(a.n, strlen(json));
	assert_memory_equal(a.p, json, a.n);
	assert_int_equal(b.n, strlen(event));
	assert_memory_equal(b.p, event, b.n);
	out_free(&a);
	out_free(&b);
}

static void test_problem(void **state)
{
	char much[2000];
	struct problem p = { .retry_after = 9 };

	(void)state;
	assert_int_equal(problem_bad(&p, "n", "n is %d", 5), -1);
	assert_int_equal(p.retry_after, 0);
	is(&p, "{\"error\":{\"message\":\"n is 5\",\"type\":\"BadRequestError\",\"param\":\"n\",\"code\":400}}",
	   "{\"error\": {\"message\": \"n is 5\", \"type\": \"BadRequestError\", \"param\": \"n\", \"code\": 400}}");
	assert_int_equal(problem_bad(&p, NULL, "no"), -1);
	is(&p, "{\"error\":{\"message\":\"no\",\"type\":\"BadRequestError\",\"param\":null,\"code\":400}}",
	   "{\"error\": {\"message\": \"no\", \"type\": \"BadRequestError\", \"param\": null, \"code\": 400}}");
	assert_int_equal(problem_value(&p, "n", "5", "no."), -1);
	assert_string_equal(p.message, "no. (parameter=n, value=5)");
	assert_int_equal(problem_value(&p, "n", NULL, "no."), -1);
	assert_string_equal(p.message, "no. (parameter=n)");
	assert_int_equal(problem_field(&p, "n.1", "no"), -1);
	assert_true(p.status == 400 && !strcmp(p.type, "Bad Request") && !strcmp(p.param, "body.n.1"));
	assert_int_equal(problem_field(&p, "", "no"), -1);
	assert_string_equal(p.param, "body");
	assert_int_equal(problem_set(&p, 404, "NotFoundError", "model", "%s", "gone"), -1);
	assert_true(p.status == 404 && !strcmp(p.param, "model") && !strcmp(p.message, "gone"));
	assert_int_equal(problem_memory(&p), -1);
	assert_true(p.status == 500 && !strcmp(p.type, "InternalServerError"));
	/* too long: cut */
	memset(much, 'x', sizeof(much) - 1);
	much[sizeof(much) - 1] = 0;
	problem_value(&p, much, much, "%s", much);
	assert_int_equal(strlen(p.message), sizeof(p.message) - 1);
	assert_int_equal(strlen(p.param), sizeof(p.param) - 1);
	assert_string_equal(p.type, "BadRequestError");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_int), cmocka_unit_test(test_double), cmocka_unit_test(test_bool),
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_ids), cmocka_unit_test(test_problem),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
