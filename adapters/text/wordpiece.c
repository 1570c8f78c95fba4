/* wordpiece.c - see wordpiece.h.  No memory but the stack: a word is bounded. */
#include "wordpiece.h"

#include <string.h>

#include <utf8proc.h>

#include "adapters/text/unicode/utf8.h"

#define DECOMPOSED 32                /* most characters that one decomposes into */

struct word {
	const struct wordpiece *w;
	const struct vocab *v;
	struct bpe_out *out;
	char text[2 + 4 * WORDPIECE_MOST];   /* "##", then the word */
	uint32_t end[WORDPIECE_MOST + 1];    /* bytes of its first 0, 1 .. characters */
	uint32_t n;                  /* characters; most + 1: too many */
};

/* The longest token that begins at character `from`; its end, or from if there is none. */
static uint32_t longest(const struct word *x, uint32_t from, int32_t *id)
{
	char held[2], *at = (char *)x->text + x->end[from];   /* two bytes before the piece: for "##" */
	uint32_t to = x->n;

	memcpy(held, at, 2);
	if (from)
		memcpy(at, "##", 2);
	for (; to > from; to--) {
		size_t n = x->end[to] - x->end[from];

		*id = from ? vocab_by_spelling(x->v, at, n + 2) : vocab_by_spelling(x->v, at + 2, n);
		if (*id >= 0)
			break;
	}
	memcpy(at, held, 2);
	return to;
}

/* The tokens of the word, which begins anew.  1: there are more ids than the limit. */
static int word_end(struct word *x)
{
	int32_t ids[WORDPIECE_MOST];
	uint32_t n = 0;

	if (!x->n)
		return 0;
	for (uint32_t at = 0, to; at < x->n; at = to) {
		to = x->n <= x->w->most ? longest(x, at, &ids[n]) : at;
		n++;
		if (to > at)
			continue;
		ids[0] = x->w->unknown;
		n = 1;
		break;
	}
	for (uint32_t i = 0; i < n; i++)
		bpe_put(x->out, ids[i]);
	x->n = 0;
	return bpe_over(x->out);
}

static void word_add(struct word *x, uint32_t cp)
{
	if (x->n > x->w->most)
		return;
	if (x->n == x->w->most) {
		x->n++;
		return;
	}
	x->end[x->n + 1] = x->end[x->n] + utf8_put(cp, x->text + 2 + x->end[x->n]);
	x->n++;
}

static bool is_punctuation(uint32_t cp)
{
	if (cp < 128)
		return (cp > ' ' && cp < '0') || (cp > '9' && cp < 'A') || (cp > 'Z' && cp < 'a') ||
		       (cp > 'z' && cp < 127);
	switch (utf8proc_category((utf8proc_int32_t)cp)) {
	case UTF8PROC_CATEGORY_PC: case UTF8PROC_CATEGORY_PD: case UTF8PROC_CATEGORY_PS:
	case UTF8PROC_CATEGORY_PE: case UTF8PROC_CATEGORY_PI: case UTF8PROC_CATEGORY_PF:
	case UTF8PROC_CATEGORY_PO:
		return true;
	default:
		return false;
	}
}

/* A character of the normal form: part of a word, a word, or between words. */
static int feed(struct word *x, uint32_t cp)
{
	int rc = 0;

	if (utf8_space(cp))
		return word_end(x);
	if (!is_punctuation(cp)) {
		word_add(x, cp);
		return 0;
	}
	rc = word_end(x);
	word_add(x, cp);
	return rc ? rc : word_end(x);
}

static bool is_ideograph(uint32_t cp)
{
	static const struct { uint32_t from, to; } range[] = {
		{ 0x4e00, 0x9fff }, { 0x3400, 0x4dbf }, { 0x20000, 0x2a6df }, { 0x2a700, 0x2b73f },
		{ 0x2b740, 0x2b81f }, { 0x2b920, 0x2ceaf }, { 0xf900, 0xfaff }, { 0x2f800, 0x2fa1f },
	};

	for (size_t i = 0; cp >= 0x3400 && i < sizeof(range) / sizeof(range[0]); i++)
		if (cp >= range[i].from && cp <= range[i].to)
			return true;
	return false;
}

static bool is_control(uint32_t cp)
{
	utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

	return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

/* Lower case and without its accents, as far as wanted. */
static int feed_normal(struct word *x, uint32_t cp)
{
	utf8proc_int32_t part[DECOMPOSED];
	int n = 1, boundary = 0, rc = 0;

	part[0] = (utf8proc_int32_t)cp;
	if (x->w->strip && cp >= 128)
		n = (int)utf8proc_decompose_char((utf8proc_int32_t)cp, part, DECOMPOSED, UTF8PROC_DECOMPOSE,
		                                 &boundary);
	for (int i = 0; i < n && i < DECOMPOSED && !rc; i++) {
		if (x->w->strip && utf8proc_category(part[i]) == UTF8PROC_CATEGORY_MN)
			continue;
		rc = feed(x, (uint32_t)(x->w->lower ? utf8proc_tolower(part[i]) : part[i]));
	}
	return rc;
}

static int take(struct word *x, uint32_t cp)
{
	bool alone = x->w->chinese && is_ideograph(cp), space = cp == '\t' || cp == '\n' || cp == '\r';
	int rc;

	if (x->w->clean && !space && (cp == 0 || cp == 0xfffd || is_control(cp)))
		return 0;
	rc = alone ? word_end(x) : 0;
	if (!rc)
		rc = feed_normal(x, cp);
	return rc || !alone ? rc : word_end(x);
}

int wordpiece_encode(const struct wordpiece *w, const struct vocab *v, const char *s, size_t n,
                     struct bpe_out *out)
{
	struct word x = { .w = w, .v = v, .out = out };
	uint32_t cp;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; ) {
		i += utf8_next(s + i, n - i, &cp);
		rc = take(&x, cp);
	}
	return rc ? rc : word_end(&x);
}
