/* LINK: adapters/http/net/http.c adapters/http/gate/origin.c core/instance/log.c -ljansson */
/* fuzz_http.c - the HTTP parser on any bytes: no crash, the same outcome whole and in pieces, and
 * what it calls legal is legal: fields inside the buffer, one Host, no controls, not two lengths.  A Host
 * served without a key is an address or localhost.
 * The first byte says where to cut, and whether to decode a chunked body.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "adapters/http/net/http.h"
#include "adapters/http/gate/origin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool ok)
{
	if (!ok)
		abort();
}

static void inside(struct http_str s, const char *buf, size_t n)
{
	check(s.n == 0 || (s.s >= buf && s.s + s.n <= buf + n) || (s.n == 1 && *s.s == '/'));
	for (size_t i = 0; i < s.n; i++)
		check((uint8_t)s.s[i] >= 0x20 || s.s[i] == '\t');
}

/* An address in brackets, digits and dots, or a name that ends with localhost; then perhaps a port. */
static void check_host(struct http_str s)
{
	size_t n = 0, digits = 0;
	char self[256] = "";

	if (!s.n || s.s[0] == '[')
		return;
	for (; n < s.n && s.s[n] != ':'; n++)
		digits += s.s[n] == '.' || (s.s[n] >= '0' && s.s[n] <= '9');
	for (size_t i = n + 1; i < s.n; i++)
		check(s.s[i] >= '0' && s.s[i] <= '9');
	if (digits == n)
		return;
	n -= s.s[n - 1] == '.';
	gethostname(self, sizeof(self) - 1);
	check(http_is_ci((struct http_str){ s.s, n }, self) ||
	      (n >= 9 && !strncasecmp(s.s + n - 9, "localhost", 9) && (n == 9 || s.s[n - 10] == '.')));
}

static void check_hosts(const struct http_request *r)
{
	static const struct config none = { .port = 8000 };
	static struct hosts *hosts;
	const struct http_str *host = http_header(r, "host");

	check(hosts || (!hosts_create(&hosts, &none, false, NULL, 0) && hosts));
	if (!hosts_allow(hosts, r))
		return;
	if (host)
		check_host(*host);
	check_host(r->authority);
}

static void check_head(const struct http_request *r, const char *buf, size_t n)
{
	int hosts = 0, lengths = 0, codings = 0;

	inside(r->method, buf, n);
	inside(r->target, buf, n);
	inside(r->authority, buf, n);
	inside(r->path, buf, n);
	inside(r->query, buf, n);
	check(r->path.n && r->n_headers <= HTTP_HEADERS && (r->minor == 0 || r->minor == 1));
	for (int i = 0; i < r->n_headers; i++) {
		inside(r->header[i].name, buf, n);
		inside(r->header[i].value, buf, n);
		hosts += http_is(r->header[i].name, "host");
		lengths += http_is(r->header[i].name, "content-length");
		codings += http_is(r->header[i].name, "transfer-encoding");
	}
	check_hosts(r);
	check(hosts <= 1 && (hosts == 1 || r->minor == 0));
	check(lengths + codings <= 1 && lengths == (r->content_length >= 0) && codings == r->chunked);
}

static void fuzz_head(const uint8_t *data, size_t n, size_t cut)
{
	char *whole = malloc(n + 1), *pieces = malloc(n + 1);
	struct http_request *r = malloc(2 * sizeof(*r));
	struct http_error e[2] = { { 0, NULL }, { 0, NULL } };
	size_t seen[2] = { 0, 0 };
	int rc[2] = { 0, 0 };

	memcpy(whole, data, n);
	memcpy(pieces, data, n);
	rc[0] = http_parse_head(&r[0], whole, n, &seen[0], &e[0]);
	for (size_t at = cut; !rc[1]; at += cut) {
		rc[1] = http_parse_head(&r[1], pieces, at < n ? at : n, &seen[1], &e[1]);
		if (at >= n)
			break;
	}
	check(rc[0] == rc[1] && e[0].status == e[1].status);
	if (rc[0] > 0) {
		check((size_t)rc[0] <= n && rc[0] <= HTTP_HEAD);
		check_head(&r[0], whole, (size_t)rc[0]);
		check(r[0].n_headers == r[1].n_headers && r[0].content_length == r[1].content_length);
	}
	free(r);
	free(whole);
	free(pieces);
}

/* Decodes in pieces of `cut`; the outcome, and the body behind *body. */
static int decode(const uint8_t *data, size_t n, size_t cut, char *body, size_t *len)
{
	struct http_chunks c = { 0 };
	struct http_error e;
	size_t at = 0, out, used;
	int rc = 0;

	*len = 0;
	while (rc == 0 && at < n) {
		size_t take = n - at < cut ? n - at : cut;
		char *piece = malloc(take);

		memcpy(piece, data + at, take);
		rc = http_chunks(&c, piece, take, &out, &used, &e);
		if (rc >= 0) {
			check(used <= take && out <= used && (rc == 1 || used == take));
			memcpy(body + *len, piece, out);
			*len += out;
			at += used;
		}
		free(piece);
	}
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	size_t cut, len[2];
	char *body;
	int rc;

	if (!n || n > 40000)
		return 0;
	cut = (size_t)(data[0] & 0x7f) + 1;
	if (!(data[0] & 0x80)) {
		fuzz_head(data + 1, n - 1, cut);
		return 0;
	}
	body = malloc(2 * n);
	rc = decode(data + 1, n - 1, n, body, &len[0]);
	check(decode(data + 1, n - 1, cut, body + n, &len[1]) == rc);
	if (rc >= 0)
		check(len[0] == len[1] && !memcmp(body, body + n, len[0]));
	free(body);
	return 0;
}
