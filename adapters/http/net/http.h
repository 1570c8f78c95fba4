/* http.h - HTTP/1.1, bytes only: a strict request parser and a response writer.
 *
 * The parser is incremental and allocates nothing.  It takes linear time however the bytes are split: it
 * reads each byte once on arrival, and once more when its line is complete.  It refuses what is malformed
 * or ambiguous: bare LF, folded lines, NUL and other control characters, spaces around names, a second
 * or malformed Content-Length, Content-Length with Transfer-Encoding, any coding except exactly "chunked",
 * HTTP/1.1 with no Host or with two, more than HTTP_HEADERS headers or HTTP_HEAD bytes of head.
 * Rules: RFC 9110 and 9112; where they leave a choice, the stricter one.
 */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_HEAD    16384      /* bytes of request line and headers */
#define HTTP_HEADERS 64

struct http_str { const char *s; size_t n; };          /* points into the buffer; not terminated */
struct http_header { struct http_str name, value; };   /* name in lower case, value trimmed */

struct http_request {
	struct http_str method, target;   /* target as sent */
	struct http_str authority;        /* host and port of a target that is a URL, else empty */
	struct http_str path, query;      /* path still percent-encoded */
	int minor;                        /* HTTP/1.minor: 0 or 1 */
	bool keep_alive, expect_continue, chunked;
	int64_t content_length;           /* -1 = none given */
	int n_headers;
	struct http_header header[HTTP_HEADERS];
	struct http_str body;             /* complete when the app gets the request */

	/* private to the parser, between two calls */
	size_t line;                      /* where the line being read begins */
	bool started, blank, asked_close, asked_keep_alive;
	int hosts;
};

/* A refusal: the status of the answer, and the reason for its JSON error. */
struct http_error { int status; const char *why; };

/* Parse a head at buf[0..n).  > 0: its length; 0: it needs more bytes; -1: refused, see *e.
 * Writes names in lower case, in place.  The caller keeps *seen, 0 at first: the bytes already read.
 * A caller that moves the buffer, between two calls or later, must call http_moved. */
int http_parse_head(struct http_request *r, char *buf, size_t n, size_t *seen, struct http_error *e);
void http_moved(struct http_request *r, const char *from, size_t n, const char *to);

/* Chunked bodies, decoded in place. */
struct http_chunks { int state; uint64_t left; uint32_t digits, line; };
/* Decode buf[0..n): consumes *used bytes and leaves *out bytes of body at buf.  1 = the body
 * ended, 0 = it needs more bytes, -1 = refused.  left: bytes that the current chunk still lacks. */
int http_chunks(struct http_chunks *c, char *buf, size_t n, size_t *out, size_t *used,
                struct http_error *e);

const struct http_str *http_header(const struct http_request *r, const char *lower_name);
bool http_is(struct http_str a, const char *b);          /* equal, case-sensitive */
bool http_is_ci(struct http_str a, const char *b);       /* equal, ignoring case */
const char *http_reason(int status);                     /* "Not Found" */

/* Writes a response head into buf.  Its length, -ENOSPC, or -EINVAL if extra or content_type is not made
 * of header lines: so no bytes from a client can split an answer.
 * extra: "name: value\r\n" 0 or more times, or NULL.  length -1 = chunked (1.1) or until close (1.0).
 * content_type NULL = no such header. */
int http_write_head(char *buf, size_t cap, const struct http_request *r, int status,
                    const char *content_type, int64_t length, const char *extra, bool keep_alive);

#endif
