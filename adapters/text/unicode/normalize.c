/* normalize.c - see normalize.h.  utf8proc has the character data.  The reordering of combining marks
 * is our own, because utf8proc's takes quadratic time in a run of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "normalize.h"
#include "utf8.h"

struct mark { int32_t cp, class, at; };

static int by_class(const void *x, const void *y)
{
	const struct mark *a = x, *b = y;

	return a->class != b->class ? a->class - b->class : a->at - b->at;
}

/* Canonical order: sort each run of marks by class; marks of one class keep their order. */
static int reorder(int32_t *cp, size_t n)
{
	struct mark *run = NULL;
	size_t cap = 0, i, k, from;
	int class;

	for (i = 0; i < n; i++) {
		if (!utf8proc_get_property(cp[i])->combining_class)
			continue;
		for (from = i, k = 0; i < n; i++, k++) {
			class = utf8proc_get_property(cp[i])->combining_class;
			if (!class)
				break;
			if (k == cap) {
				struct mark *p = realloc(run, (cap = cap ? cap * 2 : 64) * sizeof(*run));

				if (!p) {
					free(run);
					return -ENOMEM;
				}
				run = p;
			}
			run[k] = (struct mark){ cp[i], class, (int32_t)k };
		}
		if (k > 1)
			qsort(run, k, sizeof(*run), by_class);
		for (size_t j = 0; j < k; j++)
			cp[from + j] = run[j].cp;
	}
	free(run);
	return 0;
}

/* Below U+0300 no character combines, and every decomposition is composed again. */
static int already(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] >= 0xcc)
			return 0;
	return 1;
}

/* Compose; returns the new length.  utf8proc 2.8 takes U+11A7 behind a syllable of Hangul for a final
 * consonant, and drops it.  It is none, and composes with nothing, so each part may begin with it. */
static utf8proc_ssize_t compose(int32_t *cp, size_t n)
{
	size_t k = 0;

	for (size_t from = 0, end; from < n; from = end) {
		utf8proc_ssize_t len;

		for (end = from + 1; end < n && cp[end] != 0x11a7; end++)
			;
		len = utf8proc_normalize_utf32(cp + from, (utf8proc_ssize_t)(end - from),
		                               UTF8PROC_STABLE | UTF8PROC_COMPOSE);
		if (len < 0)
			return len;
		memmove(cp + k, cp + from, (size_t)len * sizeof(*cp));
		k += (size_t)len;
	}
	return (utf8proc_ssize_t)k;
}

int normalize_nfc(const char *s, size_t n, char **out, size_t *out_n)
{
	int32_t *cp = NULL, more[8];
	size_t k = 0, i = 0, cap = n + 16;
	utf8proc_ssize_t len;
	char *p;

	*out = NULL;
	if (already(s, n))
		return 0;
	cp = malloc(cap * sizeof(*cp));
	if (!cp)
		return -ENOMEM;
	while (i < n) {
		uint32_t c;
		int last = 0;

		i += utf8_next(s + i, n - i, &c);
		/* a character of m bytes decomposes into at most 4 */
		len = utf8proc_decompose_char((int32_t)c, more, 8, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &last);
		if (len < 0 || len > 8)
			goto invalid;
		if (k + (size_t)len > cap) {
			int32_t *bigger = realloc(cp, (cap *= 2) * sizeof(*cp));

			if (!bigger)
				goto no_memory;
			cp = bigger;
		}
		for (int j = 0; j < len; j++)
			cp[k++] = more[j];
	}
	if (reorder(cp, k))
		goto no_memory;
	len = compose(cp, k);
	if (len < 0)
		goto invalid;
	p = *out = malloc(4 * (size_t)len + 1);
	if (!p)
		goto no_memory;
	for (utf8proc_ssize_t j = 0; j < len; j++)
		p += utf8_put((uint32_t)cp[j], p);
	*out_n = (size_t)(p - *out);
	free(cp);
	return 0;
no_memory:
	free(cp);
	return -ENOMEM;
invalid:
	free(cp);
	return -EINVAL;
}
