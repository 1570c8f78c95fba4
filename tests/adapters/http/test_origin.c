/* LINK: adapters/http/gate/origin.c adapters/http/net/http.c -ljansson */
/* test_origin.c - which Host is accepted where no key is set, which headers answer cross-origin requests,
 * and which refusals are logged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/http/gate/origin.h"
#include "core/instance/log.h"

/* ---- the log ---- */

static char logged[8192];
static int n_logged;

void log_line(enum log_level level, const char *fmt, ...)
{
	size_t n = strlen(logged);
	va_list ap;

	(void)level;
	va_start(ap, fmt);
	vsnprintf(logged + n, sizeof(logged) - n, fmt, ap);
	va_end(ap);
	n_logged++;
}

static struct http_request asking(const char *name, const char *value)
{
	struct http_request r = { .method = { "OPTIONS", 7 }, .n_headers = 1 };

	r.header[0] = (struct http_header){ { name, strlen(name) }, { value, strlen(value) } };
	return r;
}

/* ---- Host ---- */

static struct config local = { .host = "chat.lan", .allowed_hosts = { "api.example", "Other.Example" },
                               .n_allowed_hosts = 2 };

/* Is a request with these lines accepted?  host NULL: it has none. */
static bool let_in(const struct hosts *h, const char *target, const char *host)
{
	char buf[600];
	struct http_request r;
	struct http_error e;
	size_t seen = 0;
	int n = snprintf(buf, sizeof(buf), "GET %s HTTP/1.%d\r\n%s%s%s\r\n", target, host ? 1 : 0,
	                 host ? "Host: " : "", host ? host : "", host ? "\r\n" : "");

	if (http_parse_head(&r, buf, (size_t)n, &seen, &e) != n)
		fail_msg("%s %s: %s", target, host, e.why);
	return hosts_allow(h, &r);
}

static void hosts(void **state)
{
	static const struct { const char *host; bool in; } cases[] = {
		{ "localhost", true }, { "localhost:8000", true }, { "LocalHost:8000", true }, { "localhost.", true },
		{ "localhost.:80", true }, { "localhost:", true }, { "a.localhost", true }, { "a.b.LOCALHOST:1", true },
		{ "127.0.0.1", true }, { "127.0.0.1:8000", true }, { "10.1.2.3:1", true }, { "192.168.0.7.", true },
		{ "[::1]", true }, { "[::1]:8000", true }, { "[FE80::1]:80", true }, { "[fe80::1%25eth0]:80", true },
		{ "[::ffff:127.0.0.1]", true }, { "chat.lan", true }, { "CHAT.LAN:8000", true }, { "", true },
		{ "api.example", true }, { "api.example.:443", true }, { "other.example", true }, { NULL, true },
		{ "evil.example", false }, { "evil.example:8000", false }, { "localhost.evil.example", false },
		{ "evillocalhost", false }, { ".localhost", false }, { "localhost..", false }, { "localhos", false },
		{ "127.0.0.1.evil.example", false }, { "127.0.0.1:80.evil.example", false }, { "127.1", false },
		{ "0x7f.0.0.1", false }, { "2130706433", false }, { "1.2.3.256", false }, { "::1", false },
		{ "[::1", false }, { "[::1]x", false }, { "[::1]:80x", false }, { "[localhost]", false },
		{ "[127.0.0.1]", false }, { "[]", false }, { "localhost:80:80", false }, { "localhost:x", false },
		{ ":80", false }, { ".", false }, { "xapi.example", false }, { "x.api.example", false },
		{ "api.example.evil", false }, { "*", false }, { "999999999999999999999999999999999999999999999999999", false },
	};
	char err[400] = "", self[256] = "", url[300];
	struct hosts *h;

	(void)state;
	assert_int_equal(hosts_create(&h, &local, false, err, sizeof(err)), 0);
	assert_non_null(h);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (let_in(h, "/", cases[i].host) != cases[i].in)
			fail_msg("Host: %s", cases[i].host);
		if (!cases[i].host || !*cases[i].host)
			continue;
		/* a URL names a host, too: both must be ours */
		snprintf(url, sizeof(url), "http://%s/v1/models", cases[i].host);
		if (let_in(h, url, "localhost") != cases[i].in || let_in(h, url, NULL) != cases[i].in)
			fail_msg("%s", url);
	}
	assert_false(let_in(h, "http://localhost/", "evil.example"));
	assert_int_equal(gethostname(self, sizeof(self) - 1), 0);
	assert_true(let_in(h, "/", self));
	hosts_free(h);
}

static void anything(void **state)
{
	struct config star = { .allowed_hosts = { "a.example", "*" }, .n_allowed_hosts = 2 };
	static const char *const wrong[] = { "http://a.example", "a.example:80", "*.example", "a,b", "", "[::1]", "a b", "a." };
	char err[400] = "";
	struct hosts *h;

	(void)state;
	assert_int_equal(hosts_create(&h, &star, false, err, sizeof(err)), 0);
	assert_true(let_in(h, "http://evil.example/", "evil.example"));
	hosts_free(h);
	assert_int_equal(hosts_create(&h, &local, true, err, sizeof(err)), 0);  /* a key is set */
	assert_true(let_in(h, "/", "evil.example"));
	hosts_free(h);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct config c = { .allowed_hosts = { "good.example", wrong[i] }, .n_allowed_hosts = 2 };

		assert_true(hosts_create(&h, &c, true, err, sizeof(err)) < 0);
		assert_non_null(strstr(err, "--allowed-hosts"));
	}
}

/* ---- CORS ---- */

static void cross_origin(void **state)
{
	static const struct { const char *origins; bool credentials; const char *origin, *lines; } cases[] = {
		{ "[\"*\"]", false, "https://a", "access-control-allow-origin: *\r\n" },
		{ "*", false, "https://a", "access-control-allow-origin: *\r\n" },
		{ "[\"*\"]", true, "https://a", "access-control-allow-origin: https://a\r\nvary: Origin\r\n"
		  "access-control-allow-credentials: true\r\n" },
		{ "[\"https://a\",\"https://b\"]", false, "https://b",
		  "access-control-allow-origin: https://b\r\nvary: Origin\r\n" },
		{ "[\"https://a\"]", false, "https://a.evil", "" },
		{ "[\"https://a\"]", true, "https://", "" },
	};
	static const char *const wrong[] = { "[1]", "[\"a\\r\\nSet-Cookie: x\"]", "{}", "[" };
	struct http_request r;
	struct cors *c;
	char err[256], lines[1024];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *origins = strdup(cases[i].origins);
		struct config cfg = { .allowed_origins = origins, .allow_credentials = cases[i].credentials };

		assert_int_equal(cors_create(&c, &cfg, err, sizeof(err)), 0);
		r = asking("origin", cases[i].origin);
		cors_headers(c, &r, false, lines, sizeof(lines));
		assert_string_equal(lines, cases[i].lines);
		assert_false(cors_preflight(c, &r));
		r.header[r.n_headers++] = (struct http_header){ { "access-control-request-method", 29 },
		                                                { "POST", 4 } };
		assert_true(cors_preflight(c, &r));
		cors_headers(c, &r, true, lines, sizeof(lines));
		assert_true(!!strstr(lines, "access-control-allow-methods: GET, POST, OPTIONS") ==
		            !!cases[i].lines[0]);
		cors_headers(c, &r, true, lines, 60);  /* no room: no partial line */
		assert_true(!lines[0] || !strcmp(lines + strlen(lines) - 2, "\r\n"));
		cors_free(c);
		free(origins);
	}
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		char *origins = strdup(wrong[i]);
		struct config cfg = { .allowed_origins = origins };

		assert_true(cors_create(&c, &cfg, err, sizeof(err)) < 0);
		assert_non_null(strstr(err, "--allowed-origins"));
		free(origins);
	}
}

/* A refused origin is logged once, in printable characters; at most sixteen are. */
static void the_log_tells(void **state)
{
	static const struct { const char *origins, *origin, *host; int lines; const char *says; } cases[] = {
		{ NULL, "https://a.example", "x", 1, "--allowed-origins '[\"https://a.example\"]'" },
		{ "[\"https://b.example\"]", "https://a.example", "x", 1, "a web page of https://a.example " },
		{ "[\"https://b.example\"]", "https://b.example", "x", 0, NULL },
		{ "*", "https://a.example", "x", 0, NULL },
		{ NULL, "null", "x", 1, "a web page of null" },
		{ NULL, "http://localhost:8000", "localhost:8000", 0, NULL },
		{ NULL, "http://localhost:8000", "localhost:8001", 1, "localhost:8000" },
		{ NULL, "a\"b", "x", 1, "not printable" }, { NULL, "a'b", "x", 1, "not printable" },
		{ NULL, "a\033[2Jb", "x", 1, "not printable" }, { NULL, "", "x", 1, "not printable" },
	};
	char err[256], lines[1024], origin[400];
	struct config cfg = { .allowed_origins = NULL };
	struct http_request r;
	struct cors *c;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cfg.allowed_origins = cases[i].origins;
		assert_int_equal(cors_create(&c, &cfg, err, sizeof(err)), 0);
		n_logged = 0;
		logged[0] = 0;
		r = asking("origin", cases[i].origin);
		r.header[r.n_headers++] = asking("host", cases[i].host).header[0];
		for (int k = 0; k < 3; k++)
			cors_headers(c, &r, false, lines, sizeof(lines));
		if (n_logged != cases[i].lines || (cases[i].says && !strstr(logged, cases[i].says)))
			fail_msg("case %zu: %d %s", i, n_logged, logged);
		cors_free(c);
	}
	cfg.allowed_origins = NULL;
	assert_int_equal(cors_create(&c, &cfg, err, sizeof(err)), 0);
	n_logged = 0;
	for (int i = 0; i < 1000; i++) {
		snprintf(origin, sizeof(origin), "https://%d.example", i);
		r = asking("origin", origin);
		cors_headers(c, &r, false, lines, sizeof(lines));
		assert_int_equal(lines[0], 0);
		assert_false(cors_preflight(c, &r));
	}
	assert_int_equal(n_logged, 17);       /* and a line that says that no more follow */
	logged[0] = 0;
	memset(origin, 'a', sizeof(origin) - 1);
	origin[sizeof(origin) - 1] = 0;
	r = asking("origin", origin);
	cors_headers(c, &r, false, lines, sizeof(lines));
	assert_int_equal(n_logged, 17);
	cors_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hosts), cmocka_unit_test(anything), cmocka_unit_test(cross_origin),
		cmocka_unit_test(the_log_tells),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
