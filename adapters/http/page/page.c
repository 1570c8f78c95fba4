/* page.c - serves the bytes of the page.  They never change while the program runs, so a browser that has
 * them gets 304. */
#include "page.h"

#include <stdio.h>
#include <string.h>

#include "adapters/http/state.h"
#include "bytes.h"

/* Is this what a local client is called?  See exchange_peer(). */
static bool is_local(const char *peer)
{
	return !strcmp(peer, "unix") || !strncmp(peer, "127.", 4) || !strncmp(peer, "[::1]:", 6) ||
	       !strncmp(peer, "[::ffff:127.", 12);
}

bool page_names_keys(const struct api *a, struct exchange *x)
{
	const struct asked *q = exchange_ctx(x);

	return q->right.operator || is_local(exchange_peer(x)) ||
	       (a->cfg->metrics_key && auth_shows(exchange_request(x), a->cfg->metrics_key));
}

bool page_shown(const struct api *a, const struct exchange *x)
{
	return a->cfg->ui == UI_ON || (a->cfg->ui == UI_LOCAL && is_local(exchange_peer(x)));
}

unsigned page_rights(const struct api *a, struct exchange *x)
{
	const struct asked *q = exchange_ctx(x);

	if (auth_needed(a->auth))
		return q->right.operator ? PAGE_SEES_CLIENTS | PAGE_TURNS_KNOBS : 0;
	if (!is_local(exchange_peer(x)))
		return 0;
	return PAGE_SEES_CLIENTS | (a->cfg->ui_knobs ? PAGE_TURNS_KNOBS : 0);
}

/* Does a list such as "br;q=1, gzip" name gzip?  Browsers send no q of 0. */
static bool takes_gzip(const struct http_request *r)
{
	const struct http_str *h = http_header(r, "accept-encoding");
	const char *at = h ? memmem(h->s, h->n, "gzip", 4) : NULL;

	return at && !memmem(at, (size_t)(h->s + h->n - at), "gzip;q=0", 8);
}

/* Does If-None-Match name the tag? */
static bool has_tag(const struct http_request *r, const char *tag)
{
	const struct http_str *h = http_header(r, "if-none-match");

	return h && memmem(h->s, h->n, tag, strlen(tag));
}

void page_get(struct api *a, struct exchange *x)
{
	const struct http_request *r = exchange_request(x);
	const bool gzip = takes_gzip(r);
	char tag[64], lines[LINES_MAX + 1024];

	(void)a;
	snprintf(tag, sizeof(tag), "\"%s%s\"", page_tag, gzip ? "-gzip" : "");
	snprintf(lines, sizeof(lines), "%sContent-Security-Policy: %s\r\nETag: %s\r\nCache-Control: no-cache\r\n"
	         "Vary: Accept-Encoding\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
	         "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n%s",
	         asked_lines(x), page_policy, tag, gzip ? "Content-Encoding: gzip\r\n" : "");
	if (has_tag(r, tag))
		exchange_reply(x, 304, NULL, lines, "", 0);
	else
		exchange_reply(x, 200, "text/html; charset=utf-8", lines, gzip ? page_gzip : page_html,
		               gzip ? page_gzip_n : page_html_n);
}
