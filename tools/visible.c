/* visible.c - see visible.h.  It replaces the streams with fopencookie, a glibc function. */
#include "visible.h"

#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "adapters/text/unicode/utf8.h"

#define PIECE 1024

static size_t show_character(uint32_t cp, const char *s, size_t n, char *out)
{
	if (cp == UTF8_BAD || (cp >= 0x80 && cp < 0xa0))
		return utf8_put(0xfffd, out);
	if ((cp < 0x20 && cp != '\n' && cp != '\t') || cp == 0x7f) {
		out[0] = '^';
		out[1] = (char)(cp ^ 0x40);
		return 2;
	}
	memcpy(out, s, n);
	return n;
}

size_t visible(struct visible *v, const char *s, size_t n, char *out)
{
	size_t at = 0, old;
	uint32_t cp;
	unsigned k;

	while (v->n && n) {                   /* finish a character that an earlier piece began */
		old = v->n;
		v->part[v->n++] = *s;
		k = utf8_next(v->part, v->n, &cp);
		if (cp != UTF8_PARTIAL) {
			at += show_character(cp, v->part, k, out + at);
			v->n = 0;
		}
		if (cp == UTF8_PARTIAL || k > old) { /* else it ended before this byte */
			s++;
			n--;
		}
	}
	while (n) {
		k = utf8_next(s, n, &cp);
		if (cp == UTF8_PARTIAL) {
			memcpy(v->part, s, n);
			v->n = n;
			break;
		}
		at += show_character(cp, s, k, out + at);
		s += k;
		n -= k;
	}
	return at;
}

/* ---- the streams --------------------------------------------------------------------------------- */

static struct stream { FILE *raw, *shown; struct visible v; } streams[2];

static ssize_t pass(void *cookie, const char *s, size_t n)
{
	struct stream *t = cookie;
	char out[3 * (PIECE + 3)];

	for (size_t done = 0, k; done < n; done += k) {
		size_t m;

		k = n - done < PIECE ? n - done : PIECE;
		m = visible(&t->v, s + done, k, out);
		if (fwrite(out, 1, m, t->raw) != m || fflush(t->raw))
			return 0;                 /* stdio takes 0 as an error here */
	}
	return (ssize_t)n;
}

static void replace(FILE **of, int fd, struct stream *t, int mode)
{
	const cookie_io_functions_t to = { .write = pass };

	if (!isatty(fd) || !(t->shown = fopencookie(t, "w", to)))
		return;
	t->raw = *of;
	setvbuf(t->shown, NULL, mode, mode == _IONBF ? 0 : BUFSIZ);
	*of = t->shown;
}

void visible_start(void)
{
	replace(&stdout, STDOUT_FILENO, &streams[0], _IOLBF);
	replace(&stderr, STDERR_FILENO, &streams[1], _IONBF);
}

FILE *visible_raw(FILE *of)
{
	for (int i = 0; i < 2; i++)
		if (streams[i].shown && of == streams[i].shown) {
			fflush(of);
			return streams[i].raw;
		}
	return of;
}
