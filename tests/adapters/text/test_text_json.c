/* LINK: adapters/text/text_json.c adapters/http/json/json.c adapters/http/json/problem.c adapters/http/json/out.c adapters/http/json/number.c -ljansson -Wl,--wrap=malloc,--wrap=free */
/* test_text_json.c - bodies to trees: the bounds to the last level and value, integers of any length, and every
 * allocation that may fail on the way. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "adapters/http/json/openai.h"
#include "adapters/text/text_json.h"

/* ---- memory: what is taken and not given back, and the call that fails ---- */

static int live, calls, failing; /* failing: the number of the call, 0 = none */
static size_t largest;

void *__real_malloc(size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void __wrap_free(void *p);

void *__wrap_malloc(size_t n)
{
	void *p = ++calls == failing ? NULL : __real_malloc(n);

	if (!p)
		errno = ENOMEM;
	live += p != NULL;
	if (n > largest)
		largest = n;
	return p;
}

void __wrap_free(void *p)
{
	live -= p != NULL;
	__real_free(p);
}

static int setup(void **state)
{
	(void)state;
	json_set_alloc_funcs(text_json_take, text_json_give);
	return 0;
}

static int ask(json_t **v, const char *body, struct problem *p)
{
	*p = (struct problem){ 0 };
	return ask_json(v, body, strlen(body), p);
}

/* `open` n times, then a value, then `shut` n times. */
static char *nested(int n, const char *open, const char *shut)
{
	size_t a = strlen(open), b = strlen(shut);
	char *s = malloc((size_t)n * (a + b) + 2), *to = s;

	for (int i = 0; i < n; i++, to += a)
		memcpy(to, open, a);
	*to++ = '1';
	for (int i = 0; i < n; i++, to += b)
		memcpy(to, shut, b);
	*to = 0;
	return s;
}

static void test_depth(void **state)
{
	struct problem p;
	json_t *v;
	char *s, says[96];

	(void)state;
	s = nested(TEXT_JSON_DEPTH, "{\"a\":", "}");
	assert_int_equal(ask(&v, s, &p), 0);
	json_decref(v);
	free(s);
	s = nested(TEXT_JSON_DEPTH + 1, "{\"a\":", "}");
	assert_int_equal(ask(&v, s, &p), -1);
	assert_null(v);
	snprintf(says, sizeof(says), "deeper than %d levels (at byte %d)", TEXT_JSON_DEPTH, 5 * TEXT_JSON_DEPTH);
	assert_non_null(strstr(p.message, says));
	free(s);
	/* closed levels do not count */
	s = malloc(8 * TEXT_JSON_DEPTH + 16);
	strcpy(s, "{\"a\":[0");
	for (int i = 0; i < 2 * TEXT_JSON_DEPTH; i++)
		strcat(s, i % 2 ? ",{}" : ",[]");
	strcat(s, "]}");
	assert_int_equal(ask(&v, s, &p), 0);
	assert_int_equal(json_array_size(json_object_get(v, "a")), 2 * TEXT_JSON_DEPTH + 1);
	json_decref(v);
	free(s);
	assert_int_equal(live, 0);
}

static void test_count(void **state)
{
	static const struct { const char *json; size_t values; } cases[] = {
		{ "1", 1 }, { "[]", 2 }, { "[1]", 2 }, { "[1,2]", 3 }, { "{\"a\":1,\"b\":[2,3]}", 5 },
		{ "\"a,b[{,\"", 1 }, { "\"a\\\",b\"", 1 }, { "\"\\\\\"", 1 }, { "[\"\\\\\",\",\"]", 3 },
	};
	json_error_t e;
	size_t i, left;
	json_t *v;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_t n = strlen(cases[i].json);

		left = cases[i].values;
		assert_int_equal(text_json_read(&v, cases[i].json, n, &left, &e), 0);
		assert_int_equal(left, 0);
		json_decref(v);
		left = cases[i].values - 1;
		assert_int_equal(text_json_read(&v, cases[i].json, n, &left, &e), -E2BIG);
		assert_null(v);
		assert_int_equal(left, cases[i].values - 1);
		left = cases[i].values + 7;
		assert_int_equal(text_json_read(&v, cases[i].json, n, &left, &e), 0);
		assert_int_equal(left, 7);
		json_decref(v);
	}
	assert_int_equal(live, 0);
}

/* Truncated text is not JSON, and bytes behind its end are not read. */
static void test_cut(void **state)
{
	static const char body[] = "{\"a\":[1,99999999999999999999,\"\\\\\\\"\",-1.5e3,true],\"b\":{\"c\":null}}";
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *end = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct problem p;
	json_t *v;

	(void)state;
	assert_ptr_not_equal(end, MAP_FAILED);
	end += page;
	assert_int_equal(mprotect(end, page, PROT_NONE), 0);
	for (size_t n = 1; n < sizeof(body) - 1; n++) {
		memcpy(end - n, body, n);
		assert_int_equal(ask_json(&v, end - n, n, &p), -1);
		assert_int_equal(p.status, 400);
		assert_null(v);
	}
	memcpy(end - 4, "\"\\\\\"", 4);
	assert_int_equal(ask_json(&v, end - 4, 4, &p), -1); /* a text: JSON, but no object */
	json_decref(v);
	memcpy(end - (sizeof(body) - 1), body, sizeof(body) - 1);
	assert_int_equal(ask_json(&v, end - (sizeof(body) - 1), sizeof(body) - 1, &p), 0);
	json_decref(v);
	munmap(end - page, 2 * page);
	assert_int_equal(live, 0);
}

/* Where jansson stopped is the name of the field, as with pydantic. */
static void test_where(void **state)
{
	static const struct { const char *body, *param; } cases[] = {
		{ "x", "body.1" }, { "{", "body.1" }, { "{\"a\":1,}", "body.8" }, { " ", "body.1" }, { "{}}", "body.3" },
	};
	struct problem p;
	json_t *v;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(ask(&v, cases[i].body, &p), -1);
		assert_string_equal(p.param, cases[i].param);
	}
}

static void test_wide(void **state)
{
	static const struct { const char *text; bool real; double value; } cases[] = {
		{ "9223372036854775807", false, 0 }, { "9223372036854775808", true, 9223372036854775808.0 },
		{ "-9223372036854775808", false, 0 }, { "-9223372036854775809", true, -9223372036854775809.0 },
		{ "18446744073709551615", true, 18446744073709551615.0 },
		{ "99999999999999999999e1", true, 1e21 }, { "99999999999999999999.5", true, 1e20 },
		{ "1000000000000000000", false, 0 }, { "0", false, 0 },
	};
	struct problem p;
	json_t *v, *x;
	char s[512];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		/* beside a number that is too wide in any case, in texts with digits and quotes */
		snprintf(s, sizeof(s), "{\"99999999999999999999\":\"7\\\"99999999999999999999\","
		         "\"x\":[%s,99999999999999999999]}", cases[i].text);
		assert_int_equal(ask(&v, s, &p), 0);
		assert_string_equal(json_string_value(json_object_get(v, "99999999999999999999")),
		                    "7\"99999999999999999999");
		x = json_array_get(json_object_get(v, "x"), 0);
		assert_int_equal(json_is_real(x), cases[i].real);
		if (cases[i].real)
			assert_true(json_real_value(x) == cases[i].value);
		else
			assert_int_equal(json_integer_value(x), strtoll(cases[i].text, NULL, 10));
		assert_true(json_real_value(json_array_get(json_object_get(v, "x"), 1)) == 1e20);
		json_decref(v);
	}
	/* nothing but such numbers: the copy grows by two bytes for each */
	strcpy(s, "{\"x\":[9999999999999999999");
	for (int i = 0; i < 20; i++)
		strcat(s, ",9999999999999999999");
	strcat(s, "]}");
	assert_int_equal(ask(&v, s, &p), 0);
	assert_int_equal(json_array_size(json_object_get(v, "x")), 21);
	json_decref(v);
	/* and takes no more memory than that */
	char *big = malloc(100100);

	memset(big, ' ', 100100);
	memcpy(big, "{\"x\":99999999999999999999", 25);
	big[100099] = '}';
	largest = 0;
	assert_int_equal(ask_json(&v, big, 100100, &p), 0);
	assert_in_range(largest, 100100, 100100 + 100100 / 8 + 4);
	json_decref(v);
	free(big);
	/* a NUL between values is no JSON, though a number before it is too wide */
	memcpy(s, "{\"x\":99999999999999999999,\0\"y\":1}", 33);
	assert_int_equal(ask_json(&v, s, 33, &p), -1);
	assert_int_equal(p.status, 400);
	assert_int_equal(live, 0);
}

/* ---- without memory ---- */

static void test_memory(void **state)
{
	static const char *const bodies[] = {
		"{\"a\":\"0123456789abcdef0123456789abcdef0123456789\",\"b\":[1,2.5,{\"c\":[]}],\"d\":null}",
		"{\"a\":99999999999999999999,\"b\":\"a word that is longer than a first buffer is, of thirty-two bytes\"}",
	};
	struct problem p;
	json_t *v;

	(void)state;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		bool whole = false;

		for (int nth = 1; !whole; nth++) {
			assert_in_range(nth, 1, 1000);
			calls = 0;
			failing = nth;
			whole = ask(&v, bodies[i], &p) == 0;
			assert_int_equal(whole, calls < nth);
			failing = 0;
			assert_int_equal(p.status, whole ? 0 : 500);
			assert_int_equal(v != NULL, whole);
			json_decref(v);
			assert_int_equal(live, 0);
			failing = calls + 1;  /* the reading is over: */
			assert_null(text_json_take(8));
			failing = 0;
		}
	}
}

static void *first_of_a_thread(void *unused)
{
	(void)unused;
	text_json_give(text_json_take(8));
	return NULL;
}

/* Outside of a reading a failure is a NULL, and blocks belong to no list. */
static void test_outside(void **state)
{
	struct problem p;
	json_t *v;
	pthread_t thread;
	void *one;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, first_of_a_thread, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	one = text_json_take(100);
	memset(one, 7, 100);
	assert_int_equal((uintptr_t)one % _Alignof(max_align_t), 0);
	assert_int_equal(ask(&v, "{\"a\":[1,2,3]}", &p), 0);
	json_decref(v);
	text_json_give(one);
	text_json_give(NULL);
	assert_null(text_json_take(SIZE_MAX));
	assert_null(text_json_take(SIZE_MAX - 15));
	calls = 0;
	failing = 1;
	assert_null(text_json_take(8));
	failing = 0;
	/* an earlier failure does not count for this body */
	errno = ENOMEM;
	assert_int_equal(ask(&v, "{\"a\":}", &p), -1);
	assert_int_equal(p.status, 400);
}

/* ---- values ---- */

static void test_type(void **state)
{
	static const char *const cases[][2] = {
		{ "{}", "an object" }, { "[]", "a list" }, { "\"\"", "a string" }, { "1", "a number" }, { "1.5", "a number" },
		{ "null", "null" }, { "true", "a bool" }, { "false", "a bool" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *v = json_loads(cases[i][0], JSON_DECODE_ANY, NULL);

		assert_string_equal(text_json_type(v), cases[i][1]);
		json_decref(v);
	}
}

static void test_given(void **state)
{
	json_t *v = json_loads("{\"a\":0,\"b\":null}", 0, NULL);

	(void)state;
	assert_true(text_json_given(v, "a"));
	assert_false(text_json_given(v, "b"));
	assert_false(text_json_given(v, "c"));
	json_decref(v);
}

static void test_true(void **state)
{
	static const struct { const char *json; bool is; } cases[] = {
		{ "null", false }, { "false", false }, { "true", true }, { "0", false }, { "-1", true }, { "0.0", false },
		{ "0.5", true }, { "\"\"", false }, { "\"0\"", true }, { "[]", false }, { "[0]", true }, { "{}", false },
		{ "{\"a\":0}", true },
	};

	(void)state;
	assert_false(text_json_true(NULL));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		json_t *v = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);

		assert_int_equal(text_json_true(v), cases[i].is);
		json_decref(v);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_depth), cmocka_unit_test(test_count), cmocka_unit_test(test_cut), cmocka_unit_test(test_where),
		cmocka_unit_test(test_wide), cmocka_unit_test(test_memory), cmocka_unit_test(test_outside),
		cmocka_unit_test(test_type), cmocka_unit_test(test_given), cmocka_unit_test(test_true),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}
