/* vocab.c - see vocab.h.  Read-only after vocab_seal. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/utf8.h"
#include "vocab.h"

#define ID_MAX (1 << 24)       /* the largest vocabularies have 2^18 tokens */

static uint64_t mix(uint64_t x)
{
	x *= 0x9e3779b97f4a7c15u;
	return x ^ x >> 32;
}

static uint32_t hash(const char *s, size_t n)
{
	uint64_t h = n, w;

	for (; n >= 8; s += 8, n -= 8) {
		memcpy(&w, s, 8);
		h = mix(h ^ w);
	}
	if (n) {
		w = 0;
		memcpy(&w, s, n);
		h = mix(h ^ w);
	}
	return (uint32_t)(mix(h) >> 16);
}

/* GPT-2's table: printable Latin-1 characters stand for themselves; the other 68 bytes are
 * U+0100 and up, in order.  Returns the byte, or -1. */
static int byte_of(uint32_t cp)
{
	if ((cp >= '!' && cp <= '~') || (cp >= 0xa1 && cp <= 0xac) || (cp >= 0xae && cp <= 0xff))
		return (int)cp;
	if (cp < 0x100 || cp > 0x143)
		return -1;
	cp -= 0x100;
	if (cp <= 0x20)
		return (int)cp;                 /* 00 .. 20 */
	if (cp == 0x21)
		return 0x7f;
	if (cp == 0x43)
		return 0xad;
	return (int)(0x80 + cp - 0x22);         /* 80 .. a0 */
}

void vocab_init(struct vocab *v)
{
	memset(v, 0, sizeof(*v));
	memset(v->byte, -1, sizeof(v->byte));
}

void vocab_free(struct vocab *v)
{
	free(v->kind);
	free(v->spelling);
	free(v->piece);
	free(v->chars);
	free(v->by_spelling.slot);
	free(v->by_piece.slot);
}

static int room_for_id(struct vocab *v, int64_t id)
{
	int32_t cap = v->cap ? v->cap : 1 << 15;
	uint8_t *kind;
	struct vocab_span *span;

	while (cap <= id)
		cap *= 2;
	if (cap == v->cap)
		return 0;
	kind = realloc(v->kind, (size_t)cap);
	if (!kind)
		return -ENOMEM;
	memset(kind + v->cap, 0, (size_t)(cap - v->cap));
	v->kind = kind;
	span = realloc(v->spelling, (size_t)cap * sizeof(*span));
	if (!span)
		return -ENOMEM;
	memset(span + v->cap, 0, (size_t)(cap - v->cap) * sizeof(*span));
	v->spelling = span;
	v->cap = cap;
	return 0;
}

static int add_chars(struct vocab *v, const char *s, size_t n, struct vocab_span *out)
{
	size_t cap = v->chars_cap ? v->chars_cap : 1 << 20;
	char *p;

	while (cap - v->n_chars < n + 1)
		cap *= 2;
	if (cap > UINT32_MAX)
		return -EINVAL;
	if (cap != v->chars_cap) {
		p = realloc(v->chars, cap);
		if (!p)
			return -ENOMEM;
		v->chars = p;
		v->chars_cap = cap;
	}
	memcpy(v->chars + v->n_chars, s, n);
	v->chars[v->n_chars + n] = 0;
	*out = (struct vocab_span){ (uint32_t)v->n_chars, (uint32_t)n };
	v->n_chars += n + 1;
	return 0;
}

int vocab_set(struct vocab *v, int64_t id, const char *spelling, size_t n, unsigned kind)
{
	struct vocab_span *old;
	int rc;

	if (id < 0 || id >= ID_MAX || n > 1 << 20)
		return -EINVAL;
	rc = room_for_id(v, id);
	if (rc)
		return rc;
	old = &v->spelling[id];
	if (v->kind[id] & VOCAB_THERE) {
		if (old->n != n || memcmp(v->chars + old->at, spelling, n))
			return -EINVAL;
	} else {
		rc = add_chars(v, spelling, n, old);
		if (rc)
			return rc;
		v->n_there++;
	}
	v->kind[id] = (uint8_t)(kind | VOCAB_THERE);
	if (id >= v->n)
		v->n = (int32_t)id + 1;
	return 0;
}

static int map_create(struct vocab_map *m, int32_t n)
{
	uint32_t size = 16;

	while (size < (uint32_t)n * 2)
		size *= 2;
	m->slot = malloc(size * sizeof(*m->slot));
	if (!m->slot)
		return -ENOMEM;
	memset(m->slot, -1, size * sizeof(*m->slot));
	m->mask = size - 1;
	return 0;
}

static int32_t map_find(const struct vocab *v, const struct vocab_map *m, const struct vocab_span *span,
                        const char *s, size_t n, uint32_t *free_slot)
{
	uint32_t h = hash(s, n), i = h & m->mask;
	const struct vocab_slot *slot;

	for (;; i = (i + 1) & m->mask) {
		slot = &m->slot[i];
		if (slot->id < 0)
			break;
		if (slot->hash == h && span[slot->id].n == n &&
		    !memcmp(v->chars + span[slot->id].at, s, n))
			return slot->id;
	}
	if (free_slot)
		*free_slot = i;
	return -1;
}

static void map_put(struct vocab *v, struct vocab_map *m, const struct vocab_span *span, int32_t id)
{
	const char *s = v->chars + span[id].at;
	uint32_t i;

	if (map_find(v, m, span, s, span[id].n, &i) < 0)    /* the first id stays if the text is repeated */
		m->slot[i] = (struct vocab_slot){ hash(s, span[id].n), id };
}

/* The bytes that a spelling stands for; false if it has a character outside the byte alphabet. */
static bool bytes_of_spelling(const char *s, size_t n, char *out, size_t *out_n)
{
	uint32_t cp;
	size_t i = 0, k = 0;
	int b;

	while (i < n) {
		i += utf8_next(s + i, n - i, &cp);
		b = byte_of(cp);
		if (b < 0)
			return false;
		out[k++] = (char)b;
	}
	*out_n = k;
	return true;
}

size_t vocab_spaces(const char *s, size_t n, char *out)
{
	size_t k = 0;

	for (size_t i = 0; i < n; k++)
		if (n - i >= 3 && !memcmp(s + i, "\xe2\x96\x81", 3)) {
			out[k] = ' ';
			i += 3;
		} else {
			out[k] = s[i++];
		}
	return k;
}

/* The byte that "<0x0A>" names; -1: the spelling is another. */
static int named_byte(const char *s, size_t n)
{
	static const char digits[] = "0123456789ABCDEF";
	const char *high, *low;

	if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>' || !s[3] || !s[4])
		return -1;
	high = strchr(digits, s[3]);
	low = strchr(digits, s[4]);
	return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* Does a WordPiece token come without a space before it?  As WordPiece's own decoder has it. */
static bool clings(const char *s, size_t n)
{
	static const char *const with[] = { ".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re" };

	for (size_t i = 0; i < sizeof(with) / sizeof(with[0]); i++)
		if (n >= strlen(with[i]) && !memcmp(s, with[i], strlen(with[i])))
			return true;
	return false;
}

/* "##ing" is ing, any other one a word of its own. */
static size_t piece_of_word(const char *s, size_t n, char *buf)
{
	size_t skip = n > 2 && !memcmp(s, "##", 2) ? 2 : 0, space = !skip && !clings(s, n);

	buf[0] = ' ';
	memcpy(buf + space, s + skip, n - skip);
	return n - skip + space;
}

/* The piece of a spelling in SentencePiece's way, or in the byte alphabet's; false: it is neither, but the
 * spelling itself. */
static bool piece_of_spelling(struct vocab *v, int32_t id, char *buf, size_t *n)
{
	const char *s = v->chars + v->spelling[id].at;
	int byte;

	if (v->words) {
		*n = piece_of_word(s, v->spelling[id].n, buf);
		return true;
	}
	if (!v->characters)
		return bytes_of_spelling(s, v->spelling[id].n, buf, n);
	byte = named_byte(s, v->spelling[id].n);
	if (byte >= 0) {
		v->kind[id] |= VOCAB_BYTE;
		buf[0] = (char)byte;
		*n = 1;
	} else {
		*n = vocab_spaces(s, v->spelling[id].n, buf);
	}
	return true;
}

static int set_piece(struct vocab *v, int32_t id, char *buf)
{
	struct vocab_span *sp = &v->spelling[id];
	size_t n, text;

	if (piece_of_spelling(v, id, buf, &n)) {
		int rc = add_chars(v, buf, n, &v->piece[id]);

		if (rc)
			return rc;
	} else {
		v->kind[id] |= VOCAB_RAW;
		v->piece[id] = *sp;
	}
	text = v->piece[id].n;
	if (!utf8_valid(v->chars + v->piece[id].at, text))
		text *= 3;
	if (text > v->longest)
		v->longest = text;
	return 0;
}

int vocab_seal(struct vocab *v)
{
	size_t most = 0;
	int32_t id;
	char *buf;
	int rc;

	for (id = 0; id < v->n; id++)
		if (v->spelling[id].n > most)
			most = v->spelling[id].n;
	buf = malloc(most + 1);
	v->piece = calloc((size_t)v->cap + 1, sizeof(*v->piece));
	if (!buf || !v->piece || map_create(&v->by_spelling, v->n_there) ||
	    map_create(&v->by_piece, v->n_there)) {
		free(buf);
		return -ENOMEM;
	}
	for (id = 0; id < v->n; id++) {
		if (!(v->kind[id] & VOCAB_THERE))
			continue;
		rc = set_piece(v, id, buf);
		if (rc) {
			free(buf);
			return rc;
		}
		map_put(v, &v->by_spelling, v->spelling, id);
		if (!(v->kind[id] & (VOCAB_RAW | VOCAB_SPECIAL | VOCAB_BYTE)) && v->piece[id].n)
			map_put(v, &v->by_piece, v->piece, id);
		if (v->kind[id] & VOCAB_BYTE)
			v->byte[(uint8_t)v->chars[v->piece[id].at]] = id;
	}
	free(buf);
	for (int b = 0; b < 256 && !v->characters; b++) {
		char c = (char)b;

		v->byte[b] = vocab_by_piece(v, &c, 1);
	}
	return 0;
}

int32_t vocab_by_spelling(const struct vocab *v, const char *s, size_t n)
{
	return map_find(v, &v->by_spelling, v->spelling, s, n, NULL);
}

int32_t vocab_by_piece(const struct vocab *v, const char *s, size_t n)
{
	return map_find(v, &v->by_piece, v->piece, s, n, NULL);
}
