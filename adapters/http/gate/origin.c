/* origin.c - see origin.h. */
#include "origin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "core/instance/log.h"

/* ---- Host ---- */

struct hosts {
	const struct config *cfg;
	char self[256];               /* this machine's host name, "" if it has none */
};

int hosts_create(struct hosts **out, const struct config *c, bool keyed, char *err, size_t errlen)
{
	struct hosts *h;
	bool any = keyed;

	*out = NULL;
	for (int i = 0; i < c->n_allowed_hosts; i++) {
		const char *name = c->allowed_hosts[i];

		if (!strcmp(name, "*")) {
			any = true;
		} else if (!*name || strpbrk(name, "*:/,[] ") || name[strlen(name) - 1] == '.') {
			snprintf(err, errlen, "--allowed-hosts %.200s: it must be a name such as chat.example.org, "
			         "without scheme and port, or *; spaces separate several names", name);
			return -EINVAL;
		}
	}
	if (any)
		return 0;
	*out = h = calloc(1, sizeof(*h));
	if (!h) {
		snprintf(err, errlen, "--allowed-hosts: there is no memory for the names");
		return -ENOMEM;
	}
	h->cfg = c;
	if (gethostname(h->self, sizeof(h->self) - 1) < 0)
		h->self[0] = 0;
	return 0;
}

void hosts_free(struct hosts *h) { free(h); }

/* The host in "name", "name:80" or "[::1]:80", without one dot at its end.  Length 0: this is no host. */
static struct http_str name_of(struct http_str s, bool *bracketed)
{
	const char *end = memchr(s.s, ':', s.n);
	struct http_str port = { s.s + s.n, 0 };

	*bracketed = s.n && s.s[0] == '[';
	if (*bracketed) {
		end = memchr(s.s, ']', s.n);
		if (!end)
			return (struct http_str){ s.s, 0 };
		port = (struct http_str){ end + 1, (size_t)(s.s + s.n - end - 1) };
		s = (struct http_str){ s.s + 1, (size_t)(end - s.s - 1) };
	} else if (end) {
		port = (struct http_str){ end, (size_t)(s.s + s.n - end) };
		s.n = (size_t)(end - s.s);
	}
	for (size_t i = 0; i < port.n; i++)
		if (i ? port.s[i] < '0' || port.s[i] > '9' : port.s[i] != ':')
			s.n = 0;
	if (s.n > 1 && s.s[s.n - 1] == '.' && !*bracketed)
		s.n--;
	return s;
}

static bool is_address(struct http_str s, bool bracketed)
{
	const char *zone = bracketed ? memchr(s.s, '%', s.n) : NULL;
	char text[INET6_ADDRSTRLEN];
	struct in6_addr a;

	if (zone)
		s.n = (size_t)(zone - s.s);
	if (s.n >= sizeof(text))
		return false;
	memcpy(text, s.s, s.n);
	text[s.n] = 0;
	return inet_pton(bracketed ? AF_INET6 : AF_INET, text, &a) == 1;
}

static bool known(const struct hosts *h, struct http_str s)
{
	static const char below[] = ".localhost";
	const size_t n = sizeof(below) - 1;
	bool bracketed;

	if (!s.n)                             /* HTTP/1.0 requests may have no Host */
		return true;
	s = name_of(s, &bracketed);
	if (!s.n)
		return false;
	if (is_address(s, bracketed))
		return true;
	if (bracketed)
		return false;
	if (http_is_ci(s, "localhost") || (s.n > n && !strncasecmp(s.s + s.n - n, below, n)))
		return true;
	if (http_is_ci(s, h->self) || (h->cfg->host && http_is_ci(s, h->cfg->host)))
		return true;
	for (int i = 0; i < h->cfg->n_allowed_hosts; i++)
		if (http_is_ci(s, h->cfg->allowed_hosts[i]))
			return true;
	return false;
}

bool hosts_allow(const struct hosts *h, const struct http_request *r)
{
	const struct http_str *host = h ? http_header(r, "host") : NULL;

	return !h || ((!host || known(h, *host)) && known(h, r->authority));
}

/* ---- CORS ---- */

#define TOLD         16           /* the log names at most this many origins */
#define ORIGIN_BYTES 128

struct cors {
	bool on, any, credentials;
	json_t *origins;
	char methods[256], headers[512];
	uint64_t told[TOLD];          /* hashes of the origins logged so far */
	int n_told;
};

/* Read a JSON list of strings, or one string, and join them by ", ". */
static int words(const char *flag, const char *text, const char *otherwise, json_t **list,
                 char *joined, size_t cap, char *err, size_t errlen)
{
	json_t *v = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL, *s;
	size_t i, at = 0;

	if (!text)
		v = json_pack("[s]", otherwise);
	if (!v && text[0] != '[')             /* a bare word: a shell strips the quotes of ["*"] */
		v = json_pack("[s]", text);
	if (json_is_string(v))
		v = json_pack("[o]", v);
	if (joined)
		joined[0] = 0;
	json_array_foreach(v, i, s) {
		const char *w = json_string_value(s);

		if (!w || strpbrk(w, "\r\n"))
			goto bad;
		if (!joined)
			continue;
		at += (size_t)snprintf(joined + at, cap - at, "%s%s", i ? ", " : "", w);
		if (at >= cap)
			goto bad;
	}
	if (!json_is_array(v))
		goto bad;
	if (list)
		*list = v;
	else
		json_decref(v);
	return 0;
bad:
	json_decref(v);
	snprintf(err, errlen, "%s %s: it must be a JSON list of strings such as [\"*\"]", flag, text);
	return -EINVAL;
}

int cors_create(struct cors **out, const struct config *cfg, char *err, size_t errlen)
{
	struct cors *c;
	json_t *s;
	size_t i;
	int r;

	*out = c = calloc(1, sizeof(*c));
	if (!c)
		snprintf(err, errlen, "--allowed-origins: there is no memory for the origins");
	if (!c || !cfg->allowed_origins)
		return c ? 0 : -ENOMEM;
	r = words("--allowed-origins", cfg->allowed_origins, "*", &c->origins, NULL, 0, err, errlen);
	if (!r)
		r = words("--allowed-methods", cfg->allowed_methods, "*", NULL, c->methods,
		          sizeof(c->methods), err, errlen);
	if (!r)
		r = words("--allowed-headers", cfg->allowed_headers, "*", NULL, c->headers,
		          sizeof(c->headers), err, errlen);
	if (r < 0) {
		cors_free(c);
		*out = NULL;
		return r;
	}
	c->on = true;
	c->credentials = cfg->allow_credentials;
	json_array_foreach(c->origins, i, s)
		c->any |= !strcmp(json_string_value(s), "*");
	return 0;
}

void cors_free(struct cors *c)
{
	if (c)
		json_decref(c->origins);
	free(c);
}

bool cors_preflight(const struct cors *c, const struct http_request *r)
{
	return c->on && http_is(r->method, "OPTIONS") && http_header(r, "origin") &&
	       http_header(r, "access-control-request-method");
}

/* Does the page come from this server?  "http://localhost:8000" if Host is "localhost:8000". */
static bool own(const struct http_request *r, struct http_str origin)
{
	const struct http_str *host = http_header(r, "host");
	const char *at = memmem(origin.s, origin.n, "://", 3);

	return host && at && (size_t)(origin.s + origin.n - at) == host->n + 3 &&
	       !strncasecmp(at + 3, host->s, host->n);
}

bool origin_own(const struct http_request *r)
{
	const struct http_str *origin = http_header(r, "origin"), *site = http_header(r, "sec-fetch-site");

	return (!origin || own(r, *origin)) &&
	       (!site || http_is(*site, "same-origin") || http_is(*site, "none"));
}

static uint64_t fnv1a(struct http_str s)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < s.n; i++)
		h = (h ^ (uint8_t)s.s[i]) * 0x100000001b3u;
	return h;
}

static bool plain(struct http_str s)
{
	for (size_t i = 0; i < s.n; i++)
		if (s.s[i] <= ' ' || s.s[i] > '~' || strchr("\"'\\", s.s[i]))
			return false;
	return s.n && s.n <= ORIGIN_BYTES;
}

/* The page cannot read the answer, so it cannot show the operator why: the log does. */
static void tell(struct cors *c, const struct http_request *r, struct http_str origin)
{
	uint64_t h = fnv1a(origin);

	if (own(r, origin))
		return;
	for (int i = 0; i < c->n_told; i++)
		if (c->told[i] == h)
			return;
	if (c->n_told == TOLD)
		return;
	c->told[c->n_told++] = h;
	if (plain(origin))
		log_warn("a web page of %.*s sent a request, but its browser will not let it read the answer; "
		         "--allowed-origins '[\"%.*s\"]' allows it", (int)origin.n, origin.s,
		         (int)origin.n, origin.s);
	else
		log_warn("a request has an Origin that is not printable or longer than %d bytes; it is not in "
		         "--allowed-origins", ORIGIN_BYTES);
	if (c->n_told == TOLD)
		log_warn("no more than %d origins outside --allowed-origins are logged; this was the last", TOLD);
}

void cors_headers(struct cors *c, const struct http_request *r, bool preflight, char *lines, size_t cap)
{
	const struct http_str *origin = http_header(r, "origin"), *asked;
	bool allowed = origin && c->any;
	json_t *s;
	size_t i, n;

	lines[0] = 0;
	if (!origin)
		return;
	if (!allowed)
		json_array_foreach(c->origins, i, s)
			allowed |= http_is(*origin, json_string_value(s));
	if (!allowed)
		tell(c, r, *origin);
	if (!allowed || origin->n > 512)
		return;
	/* "*" is not valid with credentials (Fetch standard, 3.2.5): then name the origin. */
	if (c->any && !c->credentials)
		n = (size_t)snprintf(lines, cap, "access-control-allow-origin: *\r\n");
	else
		n = (size_t)snprintf(lines, cap, "access-control-allow-origin: %.*s\r\nvary: Origin\r\n",
		                     (int)origin->n, origin->s);
	if (c->credentials && n < cap)
		n += (size_t)snprintf(lines + n, cap - n, "access-control-allow-credentials: true\r\n");
	if (!preflight || n >= cap)
		goto out;
	asked = http_header(r, "access-control-request-headers");
	n += (size_t)snprintf(lines + n, cap - n, "access-control-allow-methods: %s\r\n"
	                      "access-control-max-age: 600\r\naccess-control-allow-headers: ",
	                      strcmp(c->methods, "*") ? c->methods : "GET, POST, OPTIONS");
	if (n >= cap)
		goto out;
	if (strcmp(c->headers, "*") || !asked || asked->n > 512)
		n += (size_t)snprintf(lines + n, cap - n, "%s\r\n", c->headers);
	else
		n += (size_t)snprintf(lines + n, cap - n, "%.*s\r\n", (int)asked->n, asked->s);
out:
	if (n >= cap)                         /* implausibly long: send none of the lines */
		lines[0] = 0;
}
