/* http.c - HTTP/1.1, bytes only.  Pure functions of their arguments: no I/O, no allocation, no
 * state but the date of the current second.
 *
 * Line by line: http_parse_head searches each new byte for the end of the line and refuses control
 * characters on the way.  A whole line goes to request_line() or header_line().  The empty line goes to
 * head_done(), which makes the checks that need the whole head.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "http.h"

/* Per byte, a bit set of what it may be part of.  Tokens: RFC 9110 5.6.2.  Targets: RFC 3986 pchar, "/",
 * "?" and "%".  Hosts: reg-name, IP literals and port. */
enum { TOKEN = 1, TARGET = 2, HOST = 4, HEX = 8 };

static const uint8_t class[256] = {
	[0x20] =  0,  7,  0,  1,  7,  7,  7,  7,  6,  6,  7,  7,  2,  7,  7,  2,  /*  !"#$%&'()*+,-./ */
	[0x30] = 15, 15, 15, 15, 15, 15, 15, 15, 15, 15,  6,  6,  0,  6,  0,  2,  /* 0123456789:;<=>? */
	[0x40] =  2, 15, 15, 15, 15, 15, 15,  7,  7,  7,  7,  7,  7,  7,  7,  7,  /* @ABCDEFGHIJKLMNO */
	[0x50] =  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  4,  0,  4,  1,  7,  /* PQRSTUVWXYZ[\ ]^_ */
	[0x60] =  1, 15, 15, 15, 15, 15, 15,  7,  7,  7,  7,  7,  7,  7,  7,  7,  /* `abcdefghijklmno */
	[0x70] =  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  0,  1,  0,  7,  0,  /* pqrstuvwxyz{|}~ */
};

static bool is(char c, int what)
{
	return class[(uint8_t)c] & what;
}

static bool control(char c)  /* a control character other than tab */
{
	return ((uint8_t)c < 0x20 && c != '\t') || c == 0x7f;
}

static int refuse(struct http_error *e, int status, const char *why)
{
	*e = (struct http_error){ status, why };
	return -1;
}

static size_t span(const char *s, size_t n, int what)
{
	size_t i = 0;

	while (i < n && is(s[i], what))
		i++;
	return i;
}

static unsigned hex(char c)
{
	return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

bool http_is(struct http_str a, const char *b)
{
	return a.n == strlen(b) && !memcmp(a.s, b, a.n);
}

bool http_is_ci(struct http_str a, const char *b)
{
	return a.n == strlen(b) && !strncasecmp(a.s, b, a.n);
}

const struct http_str *http_header(const struct http_request *r, const char *lower_name)
{
	for (int i = 0; i < r->n_headers; i++)
		if (http_is(r->header[i].name, lower_name))
			return &r->header[i].value;
	return NULL;
}

/* ---- the request line --------------------------------------------------------------------- */

/* Split "/path?query" into path and query, and check each byte. */
static int split_target(struct http_request *r, const char *s, size_t n, struct http_error *e)
{
	const char *q;

	for (size_t i = 0; i < n; i++) {
		if (!is(s[i], TARGET))
			return refuse(e, 400, "The request target holds a byte that must be percent-encoded.");
		if (s[i] != '%')
			continue;
		if (i + 2 >= n || !is(s[i + 1], HEX) || !is(s[i + 2], HEX))
			return refuse(e, 400, "The request target holds a % without two hexadecimal digits.");
		if (s[i + 1] == '0' && s[i + 2] == '0')
			return refuse(e, 400, "The request target holds %00.");
	}
	q = memchr(s, '?', n);
	r->path = (struct http_str){ s, q ? (size_t)(q - s) : n };
	r->query = q ? (struct http_str){ q + 1, n - r->path.n - 1 } : (struct http_str){ s + n, 0 };
	if (!r->path.n)  /* "http://host" and "http://host?query" mean the root path */
		r->path = (struct http_str){ "/", 1 };
	return 0;
}

static int parse_target(struct http_request *r, struct http_error *e)
{
	const char *s = r->target.s;
	size_t n = r->target.n, scheme = 0, host;

	if (!n)
		return refuse(e, 400, "The request target is empty.");
	if (http_is(r->method, "CONNECT"))
		return refuse(e, 501, "CONNECT is not supported.");
	if (s[0] == '/')
		return split_target(r, s, n, e);
	if (n == 1 && s[0] == '*' && http_is(r->method, "OPTIONS")) {
		r->path = r->target;
		r->query = (struct http_str){ s + 1, 0 };
		return 0;
	}
	if (n > 7 && !strncasecmp(s, "http://", 7))
		scheme = 7;
	else if (n > 8 && !strncasecmp(s, "https://", 8))
		scheme = 8;
	else
		return refuse(e, 400, "The request target is neither a path nor an http URL.");
	host = span(s + scheme, n - scheme, HOST);
	if (!host || (scheme + host < n && s[scheme + host] != '/' && s[scheme + host] != '?'))
		return refuse(e, 400, "The URL in the request line has no valid host.");
	r->authority = (struct http_str){ s + scheme, host };
	return split_target(r, s + scheme + host, n - scheme - host, e);
}

static int request_line(struct http_request *r, const char *s, size_t n, struct http_error *e)
{
	size_t m = span(s, n, TOKEN);
	const char *sp;

	r->method = (struct http_str){ s, m };
	if (!m || m == n || s[m] != ' ')
		return refuse(e, 400, "The request line does not begin with a method and one space.");
	s += m + 1;
	n -= m + 1;
	sp = memchr(s, ' ', n);
	if (!sp)
		return refuse(e, 400, "The request line names no HTTP version.");
	r->target = (struct http_str){ s, sp - s };
	n -= r->target.n + 1;
	s = sp + 1;
	if (n != 8 || memcmp(s, "HTTP/", 5) || s[5] < '0' || s[5] > '9' || s[6] != '.' ||
	    s[7] < '0' || s[7] > '9')
		return refuse(e, 400, "The request line must be METHOD TARGET HTTP/1.1.");
	if (s[5] != '1' || s[7] > '1')
		return refuse(e, 505, "Only HTTP/1.1 and HTTP/1.0 are supported.");
	r->minor = s[7] - '0';
	return parse_target(r, e);
}

/* ---- header lines ------------------------------------------------------------------------- */

static int content_length(struct http_request *r, struct http_str v, struct http_error *e)
{
	int64_t n = 0;

	if (r->content_length >= 0)
		return refuse(e, 400, "Content-Length is given twice.");
	if (!v.n || v.n > 18)  /* 18 digits: cannot overflow, and no real body is longer */
		return refuse(e, 400, "Content-Length is not a number of 1 to 18 digits.");
	for (size_t i = 0; i < v.n; i++) {
		if (v.s[i] < '0' || v.s[i] > '9')
			return refuse(e, 400, "Content-Length is not a number of 1 to 18 digits.");
		n = n * 10 + (v.s[i] - '0');
	}
	r->content_length = n;
	return 0;
}

static int transfer_encoding(struct http_request *r, struct http_str v, struct http_error *e)
{
	if (r->chunked)
		return refuse(e, 400, "Transfer-Encoding is given twice.");
	if (!http_is_ci(v, "chunked"))
		return refuse(e, 501, "The only supported Transfer-Encoding is \"chunked\".");
	r->chunked = true;
	return 0;
}

static int connection(struct http_request *r, struct http_str v, struct http_error *e)
{
	size_t i = 0;

	while (i < v.n) {
		struct http_str t = { v.s + i, span(v.s + i, v.n - i, TOKEN) };

		r->asked_close |= http_is_ci(t, "close");
		r->asked_keep_alive |= http_is_ci(t, "keep-alive");
		i += t.n;
		while (i < v.n && (v.s[i] == ' ' || v.s[i] == '\t'))
			i++;
		if (i < v.n && v.s[i] != ',')
			return refuse(e, 400, "Connection must be a list of names.");
		while (i < v.n && (v.s[i] == ' ' || v.s[i] == '\t' || v.s[i] == ','))
			i++;
	}
	return 0;
}

static int known_header(struct http_request *r, struct http_str name, struct http_str v,
                        struct http_error *e)
{
	switch (name.n) {
	case 4:
		if (!http_is(name, "host"))
			break;
		r->hosts++;
		if (span(v.s, v.n, HOST) != v.n)
			return refuse(e, 400, "Host must be a host name or address with an optional port.");
		break;
	case 6:
		if (!http_is(name, "expect"))
			break;
		if (!http_is_ci(v, "100-continue"))
			return refuse(e, 417, "The only supported expectation is \"100-continue\".");
		r->expect_continue = true;
		break;
	case 10:
		if (http_is(name, "connection"))
			return connection(r, v, e);
		break;
	case 14:
		if (http_is(name, "content-length"))
			return content_length(r, v, e);
		break;
	case 17:
		if (http_is(name, "transfer-encoding"))
			return transfer_encoding(r, v, e);
		break;
	}
	return 0;
}

static int header_line(struct http_request *r, char *s, size_t n, struct http_error *e)
{
	size_t name = span(s, n, TOKEN), at = name + 1;
	struct http_header *h = &r->header[r->n_headers];

	if (s[0] == ' ' || s[0] == '\t')
		return refuse(e, 400, "A header line begins with a space: folded headers are not supported.");
	if (!name || name == n || s[name] != ':')
		return refuse(e, 400, "A header line does not begin with a name and a colon.");
	if (r->n_headers == HTTP_HEADERS)
		return refuse(e, 431, "The request has more than 64 headers.");
	for (size_t i = 0; i < name; i++)
		if (s[i] >= 'A' && s[i] <= 'Z')
			s[i] |= 0x20;
	while (at < n && (s[at] == ' ' || s[at] == '\t'))
		at++;
	while (n > at && (s[n - 1] == ' ' || s[n - 1] == '\t'))
		n--;
	*h = (struct http_header){ { s, name }, { s + at, n - at } };
	r->n_headers++;
	return known_header(r, h->name, h->value, e);
}

static int head_done(struct http_request *r, struct http_error *e)
{
	if (r->hosts > 1)
		return refuse(e, 400, "Host is given twice.");
	if (!r->hosts && r->minor == 1)
		return refuse(e, 400, "Host is missing.");
	if (r->chunked && r->minor == 0)
		return refuse(e, 400, "A request of HTTP/1.0 cannot have a Transfer-Encoding.");
	if (r->chunked && r->content_length >= 0)
		return refuse(e, 400, "Content-Length and Transfer-Encoding are both given.");
	r->keep_alive = !r->asked_close && (r->minor == 1 || r->asked_keep_alive);
	r->expect_continue &= r->minor == 1 && (r->chunked || r->content_length > 0);
	return 0;
}

/* 1 = the head is complete. */
static int take_line(struct http_request *r, char *s, size_t n, struct http_error *e)
{
	if (!r->started) {
		if (!n && r->blank)
			return refuse(e, 400, "Empty lines arrived instead of a request.");
		if (!n) {  /* RFC 9112 2.2: old clients send one CRLF after a POST */
			r->blank = true;
			return 0;
		}
		r->started = true;
		return request_line(r, s, n, e);
	}
	if (n)
		return header_line(r, s, n, e);
	return head_done(r, e) < 0 ? -1 : 1;
}

int http_parse_head(struct http_request *r, char *buf, size_t n, size_t *seen, struct http_error *e)
{
	size_t at = *seen, end = n < HTTP_HEAD ? n : HTTP_HEAD;

	if (at == 0) {
		memset(r, 0, offsetof(struct http_request, header));
		memset(&r->body, 0, sizeof(*r) - offsetof(struct http_request, body));
		r->content_length = -1;
	}
	for (; at < end; at++) {
		size_t line = r->line;
		int whole;

		if (buf[at] != '\r') {
			if (buf[at] == '\n')
				return refuse(e, 400, "A line ends with LF alone.");
			if (control(buf[at]))
				return refuse(e, 400, "The head holds a control character.");
			continue;
		}
		if (at + 1 == end)
			break;
		if (buf[at + 1] != '\n')
			return refuse(e, 400, "The head holds a CR without LF.");
		r->line = at + 2;
		whole = take_line(r, buf + line, at - line, e);
		if (whole < 0)
			return -1;
		at++;
		if (whole) {
			*seen = at + 1;
			return (int)*seen;
		}
	}
	*seen = at;
	if (end == HTTP_HEAD)
		return r->started ? refuse(e, 431, "Request line and headers are longer than 16384 bytes.") :
		                    refuse(e, 414, "The request line is longer than 16384 bytes.");
	return 0;
}

static void moved(struct http_str *s, const char *from, size_t n, const char *to)
{
	if (s->s >= from && s->s <= from + n)  /* the root path is not in the buffer */
		s->s = to + (s->s - from);
}

void http_moved(struct http_request *r, const char *from, size_t n, const char *to)
{
	moved(&r->method, from, n, to);
	moved(&r->target, from, n, to);
	moved(&r->authority, from, n, to);
	moved(&r->path, from, n, to);
	moved(&r->query, from, n, to);
	moved(&r->body, from, n, to);
	for (int i = 0; i < r->n_headers; i++) {
		moved(&r->header[i].name, from, n, to);
		moved(&r->header[i].value, from, n, to);
	}
}

/* ---- chunked bodies ----------------------------------------------------------------------- */

#define LINE_BYTES 4096  /* the most bytes of extensions and trailers in one body, in total */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, NAME, VALUE, VALUE_LF, LAST_LF };

/* One byte of the chunk framing. */
static int chunk_byte(struct http_chunks *c, char b, struct http_error *e)
{
	switch (c->state) {
	case SIZE:
		if (is(b, HEX)) {
			if (c->digits++ == 15)  /* 60 bits */
				return refuse(e, 400, "A chunk's size has more than 15 digits.");
			c->left = c->left << 4 | hex(b);
			return 0;
		}
		if (!c->digits || (b != '\r' && b != ';'))
			return refuse(e, 400, "A chunk does not begin with its size in hexadecimal digits.");
		c->state = b == ';' ? EXTENSION : SIZE_LF;
		return 0;
	case EXTENSION:
	case VALUE:
		if (b == '\r')
			c->state = c->state == VALUE ? VALUE_LF : SIZE_LF;
		else if (control(b))
			return refuse(e, 400, "A chunk's extension or a trailer holds a control character.");
		break;
	case TRAILER:
		if (b == '\r') {
			c->state = LAST_LF;
			break;
		}
		c->state = NAME;
		if (b == ':')
			return refuse(e, 400, "A trailer has no name.");
		/* fall through */
	case NAME:
		if (b == ':')
			c->state = VALUE;
		else if (!is(b, TOKEN))
			return refuse(e, 400, "A trailer does not begin with a name and a colon.");
		break;
	case DATA_CR:
		if (b != '\r')
			return refuse(e, 400, "A chunk is longer than its size.");
		c->state = DATA_LF;
		return 0;
	default:
		if (b != '\n')
			return refuse(e, 400, "A line of a chunked body holds a CR without LF.");
		if (c->state == SIZE_LF)
			c->state = c->left ? DATA : TRAILER;
		else if (c->state == VALUE_LF)
			c->state = TRAILER;
		else if (c->state == DATA_LF)
			c->state = SIZE;
		c->digits = 0;
		return 0;
	}
	if (++c->line > LINE_BYTES)
		return refuse(e, 400, "Chunk extensions and trailers are longer than 4096 bytes.");
	return 0;
}

int http_chunks(struct http_chunks *c, char *buf, size_t n, size_t *out, size_t *used,
                struct http_error *e)
{
	size_t i = 0;

	*out = 0;
	while (i < n) {
		if (c->state == DATA) {
			size_t take = c->left < n - i ? (size_t)c->left : n - i;

			memmove(buf + *out, buf + i, take);
			*out += take;
			i += take;
			c->left -= take;
			if (!c->left)
				c->state = DATA_CR;
			continue;
		}
		if (c->state == LAST_LF && buf[i] == '\n') {
			*used = i + 1;
			return 1;
		}
		if (chunk_byte(c, buf[i++], e) < 0)
			return -1;
	}
	*used = i;
	return 0;
}

/* ---- answers ------------------------------------------------------------------------------ */

const char *http_reason(int status)
{
	static const struct { int status; const char *reason; } table[] = {
		{ 100, "Continue" }, { 200, "OK" }, { 204, "No Content" }, { 304, "Not Modified" },
		{ 400, "Bad Request" },
		{ 401, "Unauthorized" }, { 403, "Forbidden" }, { 404, "Not Found" },
		{ 405, "Method Not Allowed" }, { 408, "Request Timeout" }, { 411, "Length Required" },
		{ 413, "Request Entity Too Large" }, { 414, "Request-URI Too Long" },
		{ 415, "Unsupported Media Type" }, { 417, "Expectation Failed" },
		{ 421, "Misdirected Request" }, { 422, "Unprocessable Entity" }, { 429, "Too Many Requests" },
		{ 431, "Request Header Fields Too Large" }, { 499, "Client Closed Request" },
		{ 500, "Internal Server Error" }, { 501, "Not Implemented" }, { 502, "Bad Gateway" },
		{ 503, "Service Unavailable" }, { 504, "Gateway Timeout" },
		{ 505, "HTTP Version Not Supported" }, { 507, "Insufficient Storage" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		if (table[i].status == status)
			return table[i].reason;
	return "Unknown";
}

static const char *date(void)
{
	static _Thread_local time_t when;
	static _Thread_local char text[32];
	struct timespec now;
	struct tm tm;

	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	if (now.tv_sec != when || !*text) {
		gmtime_r(&now.tv_sec, &tm);
		strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm);
		when = now.tv_sec;
	}
	return text;
}

static bool plain(const char *s)
{
	while (*s)
		if (control(*s++))
			return false;
	return true;
}

/* Is s "name: value\r\n", 0 or more times, and nothing else? */
static bool header_lines(const char *s)
{
	while (*s) {
		size_t name = span(s, strlen(s), TOKEN);
		const char *cr = strchr(s, '\r');

		if (!name || s[name] != ':' || !cr || cr[1] != '\n')
			return false;
		for (const char *p = s + name; p < cr; p++)
			if (control(*p))
				return false;
		s = cr + 2;
	}
	return true;
}

int http_write_head(char *buf, size_t cap, const struct http_request *r, int status,
                    const char *content_type, int64_t length, const char *extra, bool keep_alive)
{
	char framing[64] = "";
	int n;

	if ((content_type && !plain(content_type)) || (extra && !header_lines(extra)))
		return -EINVAL;
	if (length >= 0 && status != 204 && status != 304)
		snprintf(framing, sizeof(framing), "Content-Length: %lld\r\n", (long long)length);
	else if (length < 0 && r->minor == 1)
		snprintf(framing, sizeof(framing), "Transfer-Encoding: chunked\r\n");
	else if (length < 0)
		keep_alive = false;  /* HTTP/1.0: closing the connection ends the body */
	n = snprintf(buf, cap, "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%s%s%s%s%s\r\n", status,
	             http_reason(status), date(), content_type ? "Content-Type: " : "",
	             content_type ? content_type : "", content_type ? "\r\n" : "", framing,
	             extra ? extra : "",
	             !keep_alive ? "Connection: close\r\n" :
	             r->minor == 0 ? "Connection: keep-alive\r\n" : "");
	return n < 0 || (size_t)n >= cap ? -ENOSPC : n;
}
