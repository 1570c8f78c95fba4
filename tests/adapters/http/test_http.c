/* LINK: adapters/http/net/http.c */
/* test_http.c - the HTTP parser and writer as a table.  Legal input is read correctly, all else is refused
 * with the status given, and neither depends on how the bytes are cut.
 */
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

#include "adapters/http/net/http.h"

#define G "GET /x HTTP/1.1\r\n"
#define H "Host: a\r\n"
#define P "POST /x HTTP/1.1\r\nHost: a\r\n"
#define E "\r\n"

/* status 0: legal.  Otherwise refused with it. */
struct head_case {
	const char *name;
	int status;
	const char *bytes;
	size_t n;                  /* 0 = strlen */
};
#define CASE(name, status, s) { name, status, s, sizeof(s) - 1 }

static const struct head_case heads[] = {
	/* legal */
	CASE("least", 0, G H E),
	CASE("1.0 without Host", 0, "GET / HTTP/1.0\r\n\r\n"),
	CASE("HEAD", 0, "HEAD / HTTP/1.1\r\n" H E),
	CASE("unknown method is the app's affair", 0, "FOO / HTTP/1.1\r\n" H E),
	CASE("empty Host", 0, G "Host:\r\n\r\n"),
	CASE("Host with port", 0, G "Host: a.b-c_d:8000\r\n\r\n"),
	CASE("Host, IPv6", 0, G "Host: [::1]:8000\r\n\r\n"),
	CASE("query", 0, "GET /x?a=b&c=%20 HTTP/1.1\r\n" H E),
	CASE("absolute URI", 0, "GET http://a/json HTTP/1.1\r\n" H E),
	CASE("absolute URI without path", 0, "GET http://a HTTP/1.1\r\n" H E),
	CASE("OPTIONS *", 0, "OPTIONS * HTTP/1.1\r\n" H E),
	CASE("one empty line before", 0, "\r\n" G H E),
	CASE("empty header value", 0, G H "X:\r\n\r\n"),
	CASE("value in spaces and tabs", 0, G H "X: \t v \t\r\n\r\n"),
	CASE("tab within a value", 0, G H "X: a\tb\r\n\r\n"),
	CASE("bytes above 127 in a value", 0, G H "X: \xc3\xa9\xff\r\n\r\n"),
	CASE("every token byte in a name", 0, G H "!#$%&'*+-.^_`|~09AZaz: v\r\n\r\n"),
	CASE("Content-Length", 0, P "Content-Length: 5\r\n\r\n"),
	CASE("Content-Length with spaces after", 0, P "Content-Length: 5 \r\n\r\n"),
	CASE("Content-Length, leading zeros", 0, P "Content-Length: 005\r\n\r\n"),
	CASE("Content-Length, 18 digits", 0, P "Content-Length: 999999999999999999\r\n\r\n"),
	CASE("chunked", 0, P "Transfer-Encoding: chunked\r\n\r\n"),
	CASE("Chunked", 0, P "transfer-encoding: Chunked\r\n\r\n"),
	CASE("expect", 0, P "Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n"),
	CASE("connection list", 0, G H "Connection: keep-alive, Upgrade ,x\r\n\r\n"),
	CASE("header called like a list we know", 0, G H "Hosts: a\r\nContent-Lengthx: a\r\n\r\n"),

	/* the request line */
	CASE("HTTP/0.9", 400, "GET /\r\n"),
	CASE("HTTP/1.2", 505, "GET / HTTP/1.2\r\n"),
	CASE("HTTP/2.0", 505, "GET / HTTP/2.0\r\n"),
	CASE("HTTP/0.9 by name", 505, "GET / HTTP/0.9\r\n"),
	CASE("h2 preface", 505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
	CASE("lower-case http", 400, "GET / http/1.1\r\n"),
	CASE("HTTP/1.10", 400, "GET / HTTP/1.10\r\n"),
	CASE("HTTP/11", 400, "GET / HTTP/11\r\n"),
	CASE("HTTP/1,1", 400, "GET / HTTP/1,1\r\n"),
	CASE("HTTP/ 1.1", 400, "GET / HTTP/ 1.1\r\n"),
	CASE("ICY", 400, "GET / ICY/1.1\r\n"),
	CASE("two spaces after the method", 400, "GET  / HTTP/1.1\r\n"),
	CASE("two spaces before the version", 400, "GET /  HTTP/1.1\r\n"),
	CASE("space after the version", 400, "GET / HTTP/1.1 \r\n"),
	CASE("leading space", 400, " GET / HTTP/1.1\r\n"),
	CASE("tab instead of space", 400, "GET\t/ HTTP/1.1\r\n"),
	CASE("no method", 400, " / HTTP/1.1\r\n"),
	CASE("method with a colon", 400, "G:T / HTTP/1.1\r\n"),
	CASE("header in place of a request line", 400, H E),
	CASE("two empty lines before", 400, "\r\n\r\n" G H E),
	CASE("space in the target", 400, "GET /a b HTTP/1.1\r\n"),
	CASE("target without slash", 400, "GET x HTTP/1.1\r\n"),
	CASE("fragment", 400, "GET /a#b HTTP/1.1\r\n"),
	CASE("quote in the target", 400, "GET /\" HTTP/1.1\r\n"),
	CASE("backslash in the target", 400, "GET /a\\b HTTP/1.1\r\n"),
	CASE("byte above 127 in the target", 400, "GET /\xc3\xa9 HTTP/1.1\r\n"),
	CASE("%00", 400, "GET /a%00b HTTP/1.1\r\n"),
	CASE("% at the end", 400, "GET /a% HTTP/1.1\r\n"),
	CASE("%g1", 400, "GET /a%g1 HTTP/1.1\r\n"),
	CASE("GET *", 400, "GET * HTTP/1.1\r\n"),
	CASE("CONNECT", 501, "CONNECT a:1 HTTP/1.1\r\n"),
	CASE("ftp URL", 400, "GET ftp://a/ HTTP/1.1\r\n"),
	CASE("URL without host", 400, "GET http:///a HTTP/1.1\r\n"),
	CASE("URL with a user", 400, "GET http://u@a/ HTTP/1.1\r\n"),
	CASE("NUL in the target", 400, "GET /a\0b HTTP/1.1\r\n"),
	CASE("TLS", 400, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),

	/* lines */
	CASE("bare LF after the request line", 400, "GET / HTTP/1.1\nHost: a\r\n\r\n"),
	CASE("bare LF after a header", 400, G "Host: a\n\r\n"),
	CASE("bare LF as the last line", 400, G H "\n"),
	CASE("bare CR in a value", 400, G H "X: a\rb\r\n\r\n"),
	CASE("CR CR LF", 400, G "Host: a\r\r\n\r\n"),
	CASE("NUL in a value", 400, P "Content-Length: 5\0 6\r\n\r\n"),
	CASE("escape in a value", 400, G H "X: \x1b[2J\r\n\r\n"),
	CASE("DEL in a value", 400, G H "X: \x7f\r\n\r\n"),
	CASE("fold", 400, G H "X: a\r\n b\r\n\r\n"),
	CASE("fold with a tab", 400, G H "X: a\r\n\tb\r\n\r\n"),
	CASE("fold of a name", 400, G H "Transfer-: chunked\r\n Encoding\r\n\r\n"),
	CASE("fold of Content-Length", 400, P "Content-Length: 5\r\n x\r\n\r\n"),
	CASE("space before the first header", 400, G " Host: a\r\n\r\n"),
	CASE("space before colon", 400, G H "X : a\r\n\r\n"),
	CASE("space in a name", 400, G H "X Y: a\r\n\r\n"),
	CASE("header without colon", 400, G H "X\r\n\r\n"),
	CASE("header without name", 400, G H ": a\r\n\r\n"),
	CASE("byte above 127 in a name", 400, G H "X\xe9: a\r\n\r\n"),
	CASE("parenthesis in a name", 400, G H "X(: a\r\n\r\n"),

	/* who and how long */
	CASE("no Host", 400, G E),
	CASE("two Hosts", 400, G H H E),
	CASE("two Hosts, 1.0", 400, "GET / HTTP/1.0\r\n" H H E),
	CASE("Host with a space", 400, G "Host: a b\r\n\r\n"),
	CASE("Host with a list", 400, G "Host: a,b\r\n\r\n"),
	CASE("Host with a path", 400, G "Host: a/b\r\n\r\n"),
	CASE("Host with a user", 400, G "Host: u@a\r\n\r\n"),
	CASE("two Content-Length, same", 400, P "Content-Length: 5\r\nContent-Length: 5\r\n\r\n"),
	CASE("two Content-Length, different", 400, P "Content-Length: 5\r\ncontent-length: 6\r\n\r\n"),
	CASE("Content-Length list", 400, P "Content-Length: 5, 5\r\n\r\n"),
	CASE("Content-Length 5 6", 400, P "Content-Length: 5 6\r\n\r\n"),
	CASE("Content-Length +5", 400, P "Content-Length: +5\r\n\r\n"),
	CASE("Content-Length -5", 400, P "Content-Length: -5\r\n\r\n"),
	CASE("Content-Length 0x5", 400, P "Content-Length: 0x5\r\n\r\n"),
	CASE("Content-Length 5.", 400, P "Content-Length: 5.\r\n\r\n"),
	CASE("Content-Length empty", 400, P "Content-Length:\r\n\r\n"),
	CASE("Content-Length 2^64+5", 400, P "Content-Length: 18446744073709551621\r\n\r\n"),
	CASE("Content-Length 2^64-1", 400, P "Content-Length: 18446744073709551615\r\n\r\n"),
	CASE("Content-Length, 19 digits", 400, P "Content-Length: 0000000000000000005\r\n\r\n"),
	CASE("both", 400, P "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
	CASE("both, zero", 400, P "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"),
	CASE("both, other order", 400, P "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"),
	CASE("xchunked", 501, P "Transfer-Encoding: xchunked\r\n\r\n"),
	CASE("gzip, chunked", 501, P "Transfer-Encoding: gzip, chunked\r\n\r\n"),
	CASE("chunked, chunked", 501, P "Transfer-Encoding: chunked, chunked\r\n\r\n"),
	CASE("chunked;q=1", 501, P "Transfer-Encoding: chunked;q=1\r\n\r\n"),
	CASE("\"chunked\"", 501, P "Transfer-Encoding: \"chunked\"\r\n\r\n"),
	CASE("identity", 501, P "Transfer-Encoding: identity\r\n\r\n"),
	CASE("empty Transfer-Encoding", 501, P "Transfer-Encoding:\r\n\r\n"),
	CASE("vertical tab before chunked", 400, P "Transfer-Encoding: \x0b" "chunked\r\n\r\n"),
	CASE("two Transfer-Encoding", 400,
	     P "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
	CASE("Transfer-Encoding in 1.0", 400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
	CASE("Expect: foo", 417, P "Expect: foo\r\nContent-Length: 5\r\n\r\n"),
	CASE("Connection: \"close\"", 400, G H "Connection: \"close\"\r\n\r\n"),
};

/* Fed in pieces that end at `cut` and then one byte at a time from there if `bytewise`. */
static int parse(const char *bytes, size_t n, size_t cut, bool bytewise, struct http_request *r,
                 struct http_error *e, char *buf)
{
	size_t seen = 0, at = cut;
	int rc;

	memcpy(buf, bytes, n);
	rc = cut ? http_parse_head(r, buf, cut, &seen, e) : 0;
	while (rc == 0 && at < n) {
		at = bytewise ? at + 1 : n;
		rc = http_parse_head(r, buf, at, &seen, e);
	}
	return rc;
}

static void test_heads(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(heads) / sizeof(*heads); i++) {
		const struct head_case *h = &heads[i];

		for (size_t cut = 0; cut < h->n; cut++) {
			for (int bytewise = 0; bytewise < 2; bytewise++) {
				char *buf = malloc(h->n);       /* exact, so that a sanitizer finds overruns */
				struct http_request r;
				struct http_error e = { 0, "" };
				int rc = parse(h->bytes, h->n, cut, bytewise, &r, &e, buf);

				if (rc != (h->status ? -1 : (int)h->n) || e.status != h->status)
					fail_msg("%s, cut at %zu: %d, status %d (%s)", h->name, cut, rc,
					         e.status, e.why);
				free(buf);
			}
		}
	}
	print_message("ok: %zu heads, cut at every byte\n", sizeof(heads) / sizeof(*heads));
}

static void read_right(const char *s, struct http_request *r)
{
	static char buf[HTTP_HEAD];
	struct http_error e;
	size_t seen = 0;

	memcpy(buf, s, strlen(s));
	assert_int_equal(http_parse_head(r, buf, strlen(s), &seen, &e), (int)strlen(s));
}

static void test_fields(void **state)
{
	static const struct { const char *bytes, *method, *path, *query; int minor; bool keep, expect;
	                      bool chunked; int64_t length; } cases[] = {
		{ G H E, "GET", "/x", "", 1, true, false, false, -1 },
		{ "GET /a%20b?x=1?y HTTP/1.0\r\n\r\n", "GET", "/a%20b", "x=1?y", 0, false, false, false, -1 },
		{ "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET", "/", "", 0, true, false, false, -1 },
		{ G H "Connection: x, CLOSE\r\n\r\n", "GET", "/x", "", 1, false, false, false, -1 },
		{ G H "Connection: keep-alive\r\nConnection: close\r\n\r\n", "GET", "/x", "", 1, false,
		  false, false, -1 },
		{ "HEAD HTTPS://A:1/p?q HTTP/1.1\r\n" H E, "HEAD", "/p", "q", 1, true, false, false, -1 },
		{ "GET http://a?q HTTP/1.1\r\n" H E, "GET", "/", "q", 1, true, false, false, -1 },
		{ "OPTIONS * HTTP/1.1\r\n" H E, "OPTIONS", "*", "", 1, true, false, false, -1 },
		{ P "Expect: 100-continue\r\nContent-Length: 12\r\n\r\n", "POST", "/x", "", 1, true, true,
		  false, 12 },
		{ P "Expect: 100-continue\r\n\r\n", "POST", "/x", "", 1, true, false, false, -1 },
		{ P "TRANSFER-ENCODING: CHUNKED\r\n\r\n", "POST", "/x", "", 1, true, false, true, -1 },
		{ P "Content-Length: 999999999999999999\r\n\r\n", "POST", "/x", "", 1, true, false, false,
		  999999999999999999 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct http_request r;

		read_right(cases[i].bytes, &r);
		assert_true(http_is(r.method, cases[i].method));
		assert_true(http_is(r.path, cases[i].path));
		assert_true(http_is(r.query, cases[i].query));
		assert_int_equal(r.minor, cases[i].minor);
		assert_int_equal(r.keep_alive, cases[i].keep);
		assert_int_equal(r.expect_continue, cases[i].expect);
		assert_int_equal(r.chunked, cases[i].chunked);
		assert_int_equal(r.content_length, cases[i].length);
	}
}

static void test_headers(void **state)
{
	struct http_request r;

	(void)state;
	read_right(G H "X-One: \t a b \r\nAUTHORIZATION: Bearer k\r\nx-one: second\r\nEmpty:\r\n\r\n", &r);
	assert_int_equal(r.n_headers, 5);
	assert_true(http_is(*http_header(&r, "x-one"), "a b"));
	assert_true(http_is(*http_header(&r, "authorization"), "Bearer k"));
	assert_true(http_is(*http_header(&r, "empty"), ""));
	assert_true(http_is(r.header[3].value, "second"));
	assert_null(http_header(&r, "absent"));
	assert_true(http_is_ci(r.header[2].value, "BEARER K"));
	assert_false(http_is(r.header[2].value, "BEARER K"));
}

static int sized(size_t line, int headers, size_t header, int *status)
{
	size_t n = 0, cap = line + (size_t)headers * (header + 8) + 64, seen = 0;
	char *buf = malloc(cap);
	struct http_request r;
	struct http_error e = { 0, "" };
	int rc;

	n += (size_t)sprintf(buf, "GET /");
	memset(buf + n, 'a', line);
	n += line;
	n += (size_t)sprintf(buf + n, " HTTP/1.1\r\nHost: a\r\n");
	for (int i = 0; i < headers; i++) {
		n += (size_t)sprintf(buf + n, "X: ");
		memset(buf + n, 'b', header);
		n += header;
		n += (size_t)sprintf(buf + n, "\r\n");
	}
	n += (size_t)sprintf(buf + n, "\r\n");
	rc = http_parse_head(&r, buf, n, &seen, &e);
	*status = e.status;
	free(buf);
	return rc;
}

static void test_sizes(void **state)
{
	int status;

	(void)state;
	assert_true(sized(8000, 1, 8000, &status) > 16000);
	assert_true(sized(10, 63, 1, &status) > 0);
	assert_int_equal(sized(10, 64, 1, &status), -1);
	assert_int_equal(status, 431);
	assert_int_equal(sized(10, 1000, 1, &status), -1);
	assert_int_equal(status, 431);
	assert_int_equal(sized(70000, 0, 0, &status), -1);
	assert_int_equal(status, 414);
	assert_int_equal(sized(10, 1, 70000, &status), -1);
	assert_int_equal(status, 431);
	/* to the byte: request line + Host + "X: " + value + CRLF CRLF */
	assert_int_equal(sized(0, 1, HTTP_HEAD - 32, &status), HTTP_HEAD);
	assert_int_equal(sized(0, 1, HTTP_HEAD - 31, &status), -1);
	assert_int_equal(status, 431);
}

/* A parser that backtracks would take minutes for this. */
static void test_linear(void **state)
{
	char *buf = malloc(HTTP_HEAD);
	struct http_request r;
	struct http_error e;
	size_t seen = 0;
	int rc = 0;

	(void)state;
	memset(buf, 'a', HTTP_HEAD);
	for (size_t n = 1; rc == 0; n++)
		rc = http_parse_head(&r, buf, n, &seen, &e);
	assert_int_equal(e.status, 414);
	assert_true(seen >= HTTP_HEAD - 1);
	free(buf);
}

static void test_moved(void **state)
{
	const char *s = "POST /v1/x?q HTTP/1.1\r\nHost: abc\r\nX: y\r\n\r\n";
	size_t n = strlen(s), seen = 0;
	struct http_request r;
	struct http_error e;
	char *a = malloc(n), *b;
	int rc = 0;

	(void)state;
	memcpy(a, s, n);
	for (size_t at = 1; at <= n; at++) {  /* another place after every byte */
		rc = http_parse_head(&r, a, at, &seen, &e);
		b = malloc(n);
		memcpy(b, a, n);
		http_moved(&r, a, n, b);
		memset(a, '!', n);
		free(a);
		a = b;
	}
	assert_int_equal(rc, (int)n);
	assert_true(http_is(r.method, "POST") && http_is(r.path, "/v1/x") && http_is(r.query, "q"));
	assert_true(http_is(*http_header(&r, "host"), "abc") && http_is(*http_header(&r, "x"), "y"));
	free(a);
}

/* ---- chunked bodies ----------------------------------------------------------------------- */

static const struct { const char *name; int status; const char *in, *body, *rest; } chunked[] = {
	{ "one", 0, "5\r\nhello\r\n0\r\n\r\n", "hello", "" },
	{ "two, and a request behind", 0, "5\r\nhello\r\n1\r\n!\r\n0\r\n\r\nGET /", "hello!", "GET /" },
	{ "none", 0, "0\r\n\r\n", "", "" },
	{ "hexadecimal", 0, "A\r\n0123456789\r\n0b\r\n0123456789a\r\n00\r\n\r\n", "01234567890123456789a", "" },
	{ "extension", 0, "1;a=\"b\";c\r\nx\r\n0;z\r\n\r\n", "x", "" },
	{ "trailer", 0, "1\r\nx\r\n0\r\nA: b\r\nC:\r\n\r\n", "x", "" },
	{ "CRLF as data", 0, "4\r\n\r\n\r\n\r\n0\r\n\r\n", "\r\n\r\n", "" },
	{ "0x5", 400, "0x5\r\nhello\r\n", NULL, NULL },
	{ "-5", 400, "-5\r\nhello\r\n", NULL, NULL },
	{ "+5", 400, "+5\r\nhello\r\n", NULL, NULL },
	{ "space after the size", 400, "5 \r\nhello\r\n", NULL, NULL },
	{ "space before the size", 400, " 5\r\nhello\r\n", NULL, NULL },
	{ "no size", 400, "\r\nhello\r\n", NULL, NULL },
	{ "extension without size", 400, ";a\r\n", NULL, NULL },
	{ "not hexadecimal", 400, "g\r\n", NULL, NULL },
	{ "2^64+5", 400, "10000000000000005\r\nhello\r\n", NULL, NULL },
	{ "2^64-1", 400, "ffffffffffffffff\r\nhello\r\n", NULL, NULL },
	{ "many zeros", 400, "0000000000000005\r\nhello\r\n", NULL, NULL },
	{ "no CRLF after the data", 400, "5\r\nhelloX", NULL, NULL },
	{ "shorter than the data", 400, "4\r\nhello\r\n", NULL, NULL },
	{ "LF after the size", 400, "5\nhello\r\n", NULL, NULL },
	{ "LF after the data", 400, "5\r\nhello\n0\r\n\r\n", NULL, NULL },
	{ "CR alone after the size", 400, "5\rhello", NULL, NULL },
	{ "CR alone after the data", 400, "5\r\nhello\r0", NULL, NULL },
	{ "LF as the end", 400, "0\r\n\n", NULL, NULL },
	{ "LF in an extension", 400, "1;a\nx\r\n", NULL, NULL },
	{ "control in an extension", 400, "1;\x01\r\nx\r\n", NULL, NULL },
	{ "fold as a trailer", 400, "0\r\n A: b\r\n\r\n", NULL, NULL },
	{ "trailer without colon", 400, "0\r\nGET / HTTP/1.1\r\n\r\n", NULL, NULL },
	{ "trailer without name", 400, "0\r\n: b\r\n\r\n", NULL, NULL },
};

static void decode(size_t which, size_t piece)
{
	const char *in = chunked[which].in;
	size_t n = strlen(in), body = 0, at = 0, out, used;
	struct http_chunks c = { 0 };
	struct http_error e = { 0, "" };
	char *buf = malloc(n + 1), got[64] = "";
	int rc = 0;

	while (rc == 0 && at < n) {
		size_t take = n - at < piece ? n - at : piece;

		memcpy(buf, in + at, take);
		rc = http_chunks(&c, buf, take, &out, &used, &e);
		if (rc < 0)
			break;
		memcpy(got + body, buf, out);
		body += out;
		at += used;
		if (rc == 0)
			assert_int_equal(used, take);
	}
	if (chunked[which].status) {
		if (rc != -1 || e.status != chunked[which].status)
			fail_msg("%s by %zu: %d", chunked[which].name, piece, rc);
	} else if (rc != 1 || strcmp(got, chunked[which].body) || strcmp(in + at, chunked[which].rest)) {
		fail_msg("%s by %zu: %d \"%s\", rest \"%s\"", chunked[which].name, piece, rc, got, in + at);
	}
	free(buf);
}

static void test_chunks(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(chunked) / sizeof(*chunked); i++)
		for (size_t piece = 1; piece <= strlen(chunked[i].in); piece++)
			decode(i, piece);
}

static void test_chunk_bulk(void **state)
{
	size_t n = 0, out, used;
	char *buf = malloc(6000000);
	struct http_chunks c = { 0 };
	struct http_error e;

	(void)state;
	for (int i = 0; i < 1000000; i++)  /* a million chunks of one byte */
		n += (size_t)(memcpy(buf + n, "1\r\nx\r\n", 6), 6);
	assert_int_equal(http_chunks(&c, buf, n, &out, &used, &e), 0);
	assert_int_equal(out, 1000000);
	assert_int_equal(used, n);

	c = (struct http_chunks){ 0 };
	memset(buf, 'a', 40000);           /* an extension of 40 KB */
	memcpy(buf, "1;", 2);
	assert_int_equal(http_chunks(&c, buf, 40000, &out, &used, &e), -1);

	c = (struct http_chunks){ 0 };     /* the largest size: `left` holds it, for the limit */
	assert_int_equal(http_chunks(&c, memcpy(buf, "fffffffffffffff\r\n", 17), 17, &out, &used, &e), 0);
	assert_true(c.left == 0xfffffffffffffff);
	free(buf);
}

/* ---- answers ------------------------------------------------------------------------------ */

static void test_write(void **state)
{
	static const struct http_request one = { .minor = 1 }, zero = { .minor = 0 };
	char buf[512];
	int n;

	(void)state;
	n = http_write_head(buf, sizeof(buf), &one, 200, "text/plain", 5, "A: b\r\n", true);
	assert_int_equal(n, strlen(buf));
	assert_ptr_equal(strstr(buf, "HTTP/1.1 200 OK\r\nDate: "), buf);
	assert_non_null(strstr(buf, " GMT\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nA: b\r\n\r\n"));
	http_write_head(buf, sizeof(buf), &one, 404, NULL, -1, NULL, false);
	assert_non_null(strstr(buf, "404 Not Found\r\n"));
	assert_non_null(strstr(buf, "\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"));
	http_write_head(buf, sizeof(buf), &zero, 200, NULL, -1, NULL, true);
	assert_null(strstr(buf, "chunked"));
	assert_non_null(strstr(buf, "Connection: close\r\n\r\n"));
	http_write_head(buf, sizeof(buf), &zero, 200, NULL, 0, NULL, true);
	assert_non_null(strstr(buf, "Connection: keep-alive\r\n\r\n"));
	http_write_head(buf, sizeof(buf), &one, 204, NULL, 0, NULL, true);
	assert_null(strstr(buf, "Content-Length"));
	assert_int_equal(http_write_head(buf, 20, &one, 200, NULL, 0, NULL, true), -ENOSPC);
}

/* The date is the current second, and changes with it. */
static void test_date(void **state)
{
	static const struct http_request one = { .minor = 1 };
	char buf[512];
	struct tm tm;

	(void)state;
	for (int i = 0; i < 2; i++) {
		time_t from = time(NULL), said;

		http_write_head(buf, sizeof(buf), &one, 204, NULL, 0, NULL, true);
		memset(&tm, 0, sizeof(tm));
		assert_non_null(strptime(strstr(buf, "Date: "), "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &tm));
		said = timegm(&tm);
		assert_in_range(said, from - 1, time(NULL));
		usleep(i ? 0 : 1100000);
	}
}

static void test_no_splitting(void **state)
{
	static const struct http_request one = { .minor = 1 };
	static const char *const bad[] = {
		"X-Request-Id: a\r\nSet-Cookie: b\r\n\r\n<html>", "X: a\nY: b\r\n", "X: a\rb\r\n", "X: a",
		"X: a\r", " X: a\r\n", "X : a\r\n", "X\r\n", "\r\n", ": a\r\n", "X: \x01\r\n",
	};
	char buf[512];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(http_write_head(buf, sizeof(buf), &one, 200, NULL, 0, bad[i], true), -EINVAL);
	assert_int_equal(http_write_head(buf, sizeof(buf), &one, 200, "a\r\nb: c", 0, NULL, true), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_heads), cmocka_unit_test(test_fields), cmocka_unit_test(test_headers),
		cmocka_unit_test(test_sizes), cmocka_unit_test(test_linear), cmocka_unit_test(test_moved),
		cmocka_unit_test(test_chunks), cmocka_unit_test(test_chunk_bulk), cmocka_unit_test(test_write),
		cmocka_unit_test(test_date), cmocka_unit_test(test_no_splitting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
