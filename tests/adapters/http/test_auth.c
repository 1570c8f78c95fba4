/* LINK: adapters/http/gate/auth.c adapters/http/gate/quota.c adapters/http/net/http.c -lcrypto -Wl,--wrap=calloc,--wrap=malloc,--wrap=realloc */
/* test_auth.c - which keys are accepted, where they come from, and what a new key file changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "adapters/http/gate/auth.h"
#include "tests/rig/nth_alloc.h"

static char file[64];

static struct http_request asking(const char *name, const char *value)
{
	struct http_request r = { .method = { "OPTIONS", 7 }, .n_headers = 1 };

	r.header[0] = (struct http_header){ { name, strlen(name) }, { value, strlen(value) } };
	return r;
}

static void write_keys(const char *text)
{
	FILE *f = fopen(file, "w");

	assert_true(f && fputs(text, f) >= 0 && !fclose(f));
}

static bool let_in(const struct auth *a, const char *authorization, uint64_t *tenant)
{
	struct http_request r = asking("authorization", authorization);
	struct auth_right right;
	bool in = auth_check(a, &r, &right);

	*tenant = right.tenant;
	return in;
}

static void keys(void **state)
{
	static const struct { const char *given; bool in; } cases[] = {
		{ "Bearer one", true }, { "bearer one", true }, { "BEARER   two", true },
		{ "Bearer filed", true }, { "Bearer named", true }, { "Bearer one ", false }, { "Bearer ONE", false },
		{ "Bearer on", false }, { "Bearer onee", false }, { "Bearer one,two", false },
		{ "Bearer alice", false }, { "Bearer #", false }, { "Bearer", false }, { "Bearer ", false },
		{ "Basic one", false }, { "one", false }, { "", false },
	};
	struct config c = { .api_key = { "one", "two", "" }, .n_api_keys = 3, .api_key_file = file };
	struct http_request nothing = { .n_headers = 0 };
	uint64_t tenant, alice, filed, one;
	struct auth_right right;
	char err[256] = "";
	struct auth *a;
	size_t i;

	(void)state;
	write_keys("# keys\n\nfiled\r\nnamed alice\nalso\talice  \n");
	if (auth_create(&a, &c, NULL, err, sizeof(err)))
		fail_msg("%s", err);
	assert_true(auth_needed(a));
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (let_in(a, cases[i].given, &tenant) != cases[i].in)
			fail_msg("\"%s\": %d", cases[i].given, !cases[i].in);
	assert_false(auth_check(a, &nothing, &right));

	/* keys of one name are one tenant; a key without a name is a tenant of its own, which no name equals */
	assert_true(let_in(a, "Bearer named", &alice) && alice);
	assert_true(let_in(a, "Bearer also", &tenant) && tenant == alice);
	assert_true(let_in(a, "Bearer filed", &filed) && filed && filed != alice);
	assert_true(let_in(a, "Bearer one", &one) && one && one != alice && one != filed);
	assert_true(let_in(a, "Bearer two", &tenant) && tenant && tenant != one && tenant != filed);
	assert_true(one != auth_hash("one", 3) && filed != auth_hash("filed", 5));

	/* a new file: keys not in it are refused, keys from flags stay */
	write_keys("fresh bob\n");
	assert_int_equal(auth_reload(a, err, sizeof(err)), 0);
	assert_true(let_in(a, "Bearer fresh", &tenant) && tenant && tenant != alice);
	assert_false(let_in(a, "Bearer filed", &tenant));
	assert_true(let_in(a, "Bearer one", &tenant));
	auth_free(a);
}

/* Lookup is fast with as many keys as a file may hold.  Of a key given twice the last line counts, and a
 * line counts more than a flag. */
static void many_keys(void **state)
{
	enum { KEYS = 65000, ASKED = 20000 };
	struct config c = { .api_key = { "one", "key7" }, .n_api_keys = 2, .api_key_file = file };
	struct timespec from, to;
	uint64_t tenant;
	char err[256] = "", given[32];
	struct auth *a;
	FILE *f = fopen(file, "w");

	(void)state;
	assert_non_null(f);
	for (int i = 0; i < KEYS; i++)
		fprintf(f, "key%d %s\n", i, i == 9 ? "first" : "all");
	fprintf(f, "key9 second\n");
	assert_int_equal(fclose(f), 0);
	if (auth_create(&a, &c, NULL, err, sizeof(err)))
		fail_msg("%s", err);
	for (int i = 0; i < KEYS; i += 100) {
		snprintf(given, sizeof(given), "Bearer key%d", i);
		assert_true(let_in(a, given, &tenant));
	}
	assert_true(let_in(a, "Bearer one", &tenant));
	assert_true(let_in(a, "Bearer key9", &tenant) && tenant == auth_hash("second", 6));
	assert_true(let_in(a, "Bearer key7", &tenant) && tenant == auth_hash("all", 3));
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
	for (int i = 0; i < ASKED; i++)
		assert_false(let_in(a, "Bearer none", &tenant));
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
	assert_true(to.tv_sec - from.tv_sec < 5);   /* 250 us each; comparing with all keys took 1 to 5 ms */
	auth_free(a);
}

/* Either header is enough.  With both, the key must be the same, because a request has one tenant. */
static void two_headers(void **state)
{
	static const struct { const char *authorization, *x_api_key; bool in; } cases[] = {
		{ NULL, "one", true }, { NULL, "two", true }, { NULL, "three", false }, { NULL, "", false },
		{ NULL, "Bearer one", false }, { "Bearer one", "one", true }, { "Bearer one", "two", false },
		{ "Bearer two", "one", false }, { "Bearer one", "wrong", false }, { "Bearer wrong", "one", false },
		{ "Bearer one", "", true }, { "Bearer ", "one", true }, { "Basic YTpi", "one", true },
		{ "Basic one", "wrong", false }, { "", "", false },
	};
	struct config c = { .api_key = { "one", "two" }, .n_api_keys = 2 };
	struct auth_right right;
	struct http_request r;
	uint64_t one;
	char err[256] = "";
	struct auth *a;

	(void)state;
	assert_int_equal(auth_create(&a, &c, NULL, err, sizeof(err)), 0);
	assert_true(let_in(a, "Bearer one", &one));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		r = asking("x-api-key", cases[i].x_api_key);
		if (cases[i].authorization)
			r.header[r.n_headers++] = asking("authorization", cases[i].authorization).header[0];
		if (auth_check(a, &r, &right) != cases[i].in)
			fail_msg("case %zu", i);
		if (cases[i].in && strcmp(cases[i].x_api_key, "two"))
			assert_int_equal(right.tenant, one);
	}
	auth_free(a);
}

/* The third word, with and without the second. */
static void priorities(void **state)
{
	static const struct { const char *key; int32_t floor; bool as_alice, operator; } cases[] = {
		{ "Bearer boss", 0, true, true }, { "Bearer first", -1, true, true }, { "Bearer called", 0, false, false },
		{ "Bearer plain", 0, false, false }, { "Bearer named", 0, true, false },
		{ "Bearer urgent", -10, true, false }, { "Bearer alone", -3, false, false },
		{ "Bearer most", INT32_MIN, false, false }, { "Bearer zero", 0, true, false },
	};
	struct config c = { .api_key_file = file };
	struct auth_right right;
	char err[256] = "";
	struct auth *a;

	(void)state;
	write_keys("plain\nnamed alice\nurgent alice min-priority=-10\nalone min-priority=-3\n"
	           "most bob min-priority=-2147483648\nzero alice min-priority=0\n"
	           "boss alice operator\nfirst alice min-priority=-1 operator\ncalled operator\n");
	if (auth_create(&a, &c, NULL, err, sizeof(err)))
		fail_msg("%s", err);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct http_request r = asking("authorization", cases[i].key);

		assert_true(auth_check(a, &r, &right));
		assert_int_equal(right.min_priority, cases[i].floor);
		assert_int_equal(right.tenant == auth_hash("alice", 5), cases[i].as_alice);
		assert_int_equal(right.operator, cases[i].operator);
	}
	auth_free(a);
}

/* What a line allows; lines with one name share their limits. */
static void limits(void **state)
{
	static struct quota_table table;
	struct config c = { .api_key_file = file, .scheduling_policy = "priority" };
	struct auth_right a1, a2, b, n;
	struct http_request r;
	char err[256] = "";
	struct auth *a;

	(void)state;
	write_keys("a1 alice rpm=60 priority=-2\na2 alice tpm=1000\nb bob max-parallel=3 rpm=60\nnobody tpm=7\n");
	if (auth_create(&a, &c, &table, err, sizeof(err)))
		fail_msg("%s", err);
	r = asking("authorization", "Bearer a1");
	assert_true(auth_check(a, &r, &a1));
	r = asking("authorization", "Bearer a2");
	assert_true(auth_check(a, &r, &a2));
	r = asking("authorization", "Bearer b");
	assert_true(auth_check(a, &r, &b));
	r = asking("x-api-key", "nobody");
	assert_true(auth_check(a, &r, &n));
	assert_true(a1.limits.rpm == 60 && a1.limits.tpm == 1000 && !a1.limits.parallel);
	assert_memory_equal(&a1.limits, &a2.limits, sizeof(a1.limits));
	assert_true(a1.quota && a1.quota == a2.quota && !strcmp(a1.quota->name, "alice"));
	assert_true(a1.priority == -2 && a1.min_priority == -2 && a2.priority == 0);
	assert_true(b.limits.parallel == 3 && b.quota != a1.quota);
	assert_true(n.limits.tpm == 7 && !strncmp(n.quota->name, "key-", 4) && !strstr(n.quota->name, "nobody"));
	auth_free(a);
}

/* The salt that the adapter adds where the daemon ignores tenants. */
static void salts(void **state)
{
	uint64_t a = auth_hash("a", 1), b = auth_hash("b", 1), s = auth_hash("s", 1);

	(void)state;
	assert_true(auth_salt(0, 0) == 0 && auth_salt(0, s) == s);
	assert_true(auth_salt(a, 0) && auth_salt(a, 0) == auth_salt(a, 0));
	assert_true(auth_salt(a, 0) != auth_salt(b, 0) && auth_salt(a, s) != auth_salt(b, s));
	assert_true(auth_salt(a, s) != auth_salt(a, 0) && auth_salt(a, s) != s);
	assert_true(auth_salt(a, b) != auth_salt(b, a));
}

static void wrong_files(void **state)
{
	static char longest[5000];
	static const struct { const char *text, *says; } cases[] = {
		{ "", "has no key" }, { "# only words\n\n", "has no key" },
		{ "good\nkey name more\n", "line 2" }, { "key name min-priority\n", "line 1" },
		{ "key a=b\n", "line 1" }, { "key name operator operator\n", "line 1" }, { "key operator name\n", "line 1" },
		 { "key name max-priority=1\n", "line 1" },
		{ "key min-priority=-1 name\n", "line 1" }, { "key name min-priority=1\n", "from -2147483648 to 0" },
		{ "key min-priority=\n", "line 1" }, { "key min-priority=-1x\n", "line 1" },
		{ "good\nkey min-priority=-2147483649\n", "line 2" },
		{ "key min-priority=-1 min-priority=-2\n", "must stand once" },
		{ "key rpm=0\n", "from 1 to" }, { "key tpm=1000000001\n", "from 1 to" },
		{ "key max-parallel=x\n", "max-parallel must" }, { "key rpm=1 rpm=1\n", "must stand once" },
		{ "key priority=1\n", "--scheduling-policy" },
		{ "key a rpm=1\nother a rpm=2\n", "different limits" }, { longest, "line 1: it is longer" },
	};
	struct config c = { .api_key_file = file };
	uint64_t tenant;
	char err[256] = "";
	struct auth *a;
	size_t i;

	(void)state;
	memset(longest, 'k', sizeof(longest) - 1);
	write_keys("good\n");
	assert_int_equal(auth_create(&a, &c, NULL, err, sizeof(err)), 0);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_keys(cases[i].text);
		assert_true(auth_reload(a, err, sizeof(err)) < 0);
		if (!strstr(err, cases[i].says) || !strstr(err, file))
			fail_msg("%s", err);
		assert_true(let_in(a, "Bearer good", &tenant));  /* the old keys stay */
		assert_false(let_in(a, "Bearer key", &tenant));
	}
	unlink(file);
	assert_true(auth_reload(a, err, sizeof(err)) < 0 && let_in(a, "Bearer good", &tenant));
	auth_free(a);
	assert_true(auth_create(&a, &c, NULL, err, sizeof(err)) < 0);
	assert_null(a);

	c.api_key_file = NULL;                 /* no keys at all: none is needed */
	assert_int_equal(auth_create(&a, &c, NULL, err, sizeof(err)), 0);
	assert_false(auth_needed(a));
	assert_true(let_in(a, "Bearer anything", &tenant) && !tenant);
	assert_int_equal(auth_reload(a, err, sizeof(err)), 0);
	auth_free(a);
}

/* Each allocation fails once: an error sentence, no partial list of keys, and the old keys stay. */
static void no_memory(void **state)
{
	struct config c = { .api_key = { "one", "two" }, .n_api_keys = 2, .api_key_file = file };
	uint64_t tenant;
	char err[256];
	struct auth *a;
	int n;

	(void)state;
	write_keys("filed\nalso alice\n");
	for (n = 1;; n++) {
		err[0] = 0;
		calls = 0, fails = n;
		if (!auth_create(&a, &c, NULL, err, sizeof(err)))
			break;
		fails = 0;
		assert_null(a);
		assert_true(n == 1 || strstr(err, "memory"));
	}
	assert_int_equal(n, 6);                /* itself, two keys, the list, its growth for two keys of the file */
	write_keys("fresh\n");
	for (n = 1; n < 3; n++) {
		calls = 0, fails = n;
		assert_int_equal(auth_reload(a, err, sizeof(err)), -ENOMEM);
		fails = 0;
		assert_non_null(strstr(err, "no memory"));
		assert_true(let_in(a, "Bearer filed", &tenant) && !let_in(a, "Bearer fresh", &tenant));
	}
	auth_free(a);
}

/* 0 means no tenant and no salt, so no name hashes to it. */
static void never_none(void **state)
{
	char name[8];

	(void)state;
	assert_int_equal(auth_hash("", 0), 0);
	for (int i = 0; i < 64; i++)
		assert_true(auth_hash(name, (size_t)sprintf(name, "%d", i)) & 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys), cmocka_unit_test(many_keys), cmocka_unit_test(two_headers), cmocka_unit_test(priorities),
		cmocka_unit_test(limits), cmocka_unit_test(salts),
		cmocka_unit_test(wrong_files), cmocka_unit_test(no_memory), cmocka_unit_test(never_none),
	};
	int failed;

	sprintf(file, "/tmp/test_auth.%d", (int)getpid());
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(file);
	return failed;
}
