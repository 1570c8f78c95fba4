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

/* Marks, punctuation and format characters in these ranges came after Unicode 8.  Hugging Face's tokenizers
 * (unicode_categories 0.1.1) treat them as unassigned.  Each range begins and ends next to a character that
 * they know, so it holds what later versions of Unicode add, too. */
static bool is_later(uint32_t cp)
{
	static const struct { uint32_t from, to; } range[] = {
		{ 0x61d, 0x61d }, { 0x7fa, 0x815 }, { 0x85f, 0x8e2 }, { 0x9e4, 0xa00 }, { 0xa76, 0xa80 },
		{ 0xaf1, 0xb00 }, { 0xb4e, 0xb55 }, { 0xc01, 0xc3d }, { 0xc64, 0xc80 }, { 0xc82, 0xcbb },
		{ 0xce4, 0xd00 }, { 0xd02, 0xd40 }, { 0xd64, 0xdc9 }, { 0xeba, 0xeba }, { 0xece, 0xf03 },
		{ 0x180f, 0x18a8 }, { 0x1abe, 0x1aff }, { 0x1b74, 0x1b7f }, { 0x1df6, 0x1dfb },
		{ 0x2e43, 0x3000 }, { 0xa827, 0xa873 }, { 0xa8c5, 0xa8cd }, { 0xa8fd, 0xa925 },
		{ 0xa9bd, 0xa9c0 }, { 0x10b9d, 0x11000 }, { 0x1104e, 0x1107e }, { 0x110c2, 0x110ff },
		{ 0x111ce, 0x111da }, { 0x1123e, 0x112a8 }, { 0x11302, 0x1133b }, { 0x11375, 0x114b2 },
		{ 0x11644, 0x116aa }, { 0x116b8, 0x1171c }, { 0x1173f, 0x1246f }, { 0x12475, 0x16a6d },
		{ 0x16b45, 0x16f8e }, { 0x16f93, 0x1bc9c }, { 0x1bca4, 0x1d166 }, { 0x1dab0, 0x1e8cf },
		{ 0x1e8d7, 0xe0000 },
	};
	size_t lo = 0, hi = sizeof(range) / sizeof(range[0]);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (range[mid].to < cp)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < sizeof(range) / sizeof(range[0]) && cp >= range[lo].from;
}

/* As Unicode 8 has it, where that decides how a text is cut. */
static utf8proc_category_t category(uint32_t cp)
{
	utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);

	switch (c) {
	case UTF8PROC_CATEGORY_SO:
		return cp == 0x166d ? UTF8PROC_CATEGORY_PO : c;
	case UTF8PROC_CATEGORY_MC:
		return cp == 0x1734 ? UTF8PROC_CATEGORY_MN : c;
	case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_PC: case UTF8PROC_CATEGORY_PD: case UTF8PROC_CATEGORY_PS:
	case UTF8PROC_CATEGORY_PE: case UTF8PROC_CATEGORY_PI: case UTF8PROC_CATEGORY_PF:
	case UTF8PROC_CATEGORY_PO:
		return cp == 0x111c9 ? UTF8PROC_CATEGORY_PO : is_later(cp) ? UTF8PROC_CATEGORY_CN : c;
	default:
		return c;
	}
}

static bool is_punctuation(uint32_t cp)
{
	if (cp < 128)
		return (cp > ' ' && cp < '0') || (cp > '9' && cp < 'A') || (cp > 'Z' && cp < 'a') ||
		       (cp > 'z' && cp < 127);
	switch (category(cp)) {
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
	utf8proc_category_t c = category(cp);

	return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

/* Lower case and without its accents, as far as wanted. */
static int feed_normal(struct word *x, uint32_t cp)
{
	utf8proc_int32_t part[DECOMPOSED];
	int n = 1, boundary = 0, rc = 0;

	part[0] = (utf8proc_int32_t)cp;
	if (x->w->strip && cp >= 128 && cp != 0x11938)   /* Unicode 13 made it of two; it is one here */
		n = (int)utf8proc_decompose_char((utf8proc_int32_t)cp, part, DECOMPOSED, UTF8PROC_DECOMPOSE,
		                                 &boundary);
	for (int i = 0; i < n && i < DECOMPOSED && !rc; i++) {
		if (x->w->strip && category((uint32_t)part[i]) == UTF8PROC_CATEGORY_MN)
			continue;
		rc = feed(x, (uint32_t)(x->w->lower ? utf8proc_tolower(part[i]) : part[i]));
		if (!rc && x->w->lower && part[i] == 0x130)      /* the only one that becomes two: i, and a dot */
			rc = feed(x, 0x307);
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
