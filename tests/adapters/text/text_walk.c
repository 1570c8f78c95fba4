/* LINK: @text @ask adapters/http/json/number.c adapters/http/json/prompts.c adapters/http/choice.c adapters/http/said.c -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* text_walk.c - texts through a tokenizer, and ids through the detokenizer in every way, for tests/vocabularies.py.
 *
 *	text_walk MODEL <in >out     after the model's number of ids (u32) an answer for each record; numbers are little endian
 *	in     u8 kind, u32 n, then   't' text: n bytes; 's' the same, special tokens are parsed in it; 'i' n ids (i32);
 *	                              'r' nothing: n random ids, of which half are tokens with parts of characters
 *	out    u8 faults, u32 n and n ids, u32 n and the n bytes of their pieces, u32 n and the text of n bytes
 *
 * The text is that of all ids at once.  faults, one bit each: what was not equal to it.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/choice.h"
#include "adapters/text/unicode/utf8.h"

enum {
	ONE_BY_ONE = 1,                /* pushed one by one, with special tokens or without */
	HALF = 2,                      /* one push gave half a character */
	GOES_ON = 4,                   /* the text of the first ids, then those of the others as an answer */
	STOPS = 8,                     /* an answer in pieces, cut at a stop string */
};

static struct sr_text *t;
static int32_t *broken, n_broken;      /* tokens that are parts of characters */
static uint64_t seed = 88172645463325252u;

static uint32_t below(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return n ? (uint32_t)(seed >> 20) % n : 0;
}

/* Memory that grows and stays. */
struct block { char *p; size_t cap; };

static char *room(struct block *b, size_t n)
{
	if (n > b->cap) {
		b->cap = 2 * n;
		b->p = realloc(b->p, b->cap);
	}
	if (!b->p)
		abort();
	return b->p;
}

static size_t decode(const int32_t *ids, size_t n, bool skip, struct block *out)
{
	int64_t len = sr_text_decode(t, ids, n, skip, NULL, 0);

	if (len < 0 || sr_text_decode(t, ids, n, skip, room(out, (size_t)len + 1), (size_t)len) != len)
		abort();
	return (size_t)len;
}

/* Push ids one by one behind out[at]; *faults: HALF.  What is held at the end stays in d. */
static size_t push(struct sr_detok *d, const int32_t *ids, size_t n, struct block *out, size_t at, int *faults)
{
	for (size_t i = 0; i < n; i++) {
		size_t cap = sr_text_longest(t) + 16;
		int len = sr_detok_push(d, t, ids[i], room(out, at + cap) + at, cap);

		if (len < 0)
			abort();
		*faults |= utf8_valid(out->p + at, (size_t)len) ? 0 : HALF;
		at += (size_t)len;
	}
	return at;
}

static size_t flush(struct sr_detok *d, struct block *out, size_t at)
{
	int n = sr_detok_flush(d, room(out, at + 16) + at, 16);

	return n < 0 ? at : at + (size_t)n;
}

static bool same(const struct block *a, size_t n_a, const struct block *b, size_t n_b)
{
	return n_a == n_b && !memcmp(a->p, b->p, n_a);
}

static int streamed(const int32_t *ids, size_t n, bool skip)
{
	static struct block whole, part;
	size_t n_whole = decode(ids, n, skip, &whole), k = n ? below((uint32_t)n + 1) : 0, at;
	struct sr_detok d;
	int faults = 0;

	room(&part, 16);
	sr_detok_init(&d, skip);
	at = flush(&d, &part, push(&d, ids, n, &part, 0, &faults));
	faults |= same(&whole, n_whole, &part, at) ? 0 : ONE_BY_ONE;
	faults |= utf8_valid(whole.p, n_whole) ? 0 : HALF;
	sr_detok_init(&d, skip);
	at = push(&d, ids, k, &part, 0, &faults);
	if (d.n_held || !d.started)        /* an answer begins at a character, behind some text */
		return faults;
	sr_detok_init(&d, skip);
	d.started = true;
	at = flush(&d, &part, push(&d, ids + k, n - k, &part, at, &faults));
	return faults | (same(&whole, n_whole, &part, at) ? 0 : GOES_ON);
}

/* ---- stop strings -------------------------------------------------------------------------------- */

/* Some strings: parts of the text, of which every second one ends otherwise.  They begin at a character. */
static void choose_stops(struct ask *a, const char *text, size_t n, char buf[][64])
{
	a->n_stop = (int)below(4);
	a->include_stop = below(4) == 0;
	for (int i = 0; i < a->n_stop; i++) {
		size_t from = below((uint32_t)n), len = 1 + below(12);

		while (from && ((uint8_t)text[from] & 0xc0) == 0x80)
			from--;
		len = len < n - from ? len : n - from;
		while (from + len < n && ((uint8_t)text[from + len] & 0xc0) == 0x80)
			len++;
		memcpy(buf[i], text + from, len);
		if (below(2))
			buf[i][len - 1] ^= ((uint8_t)buf[i][len - 1] & 0x80) ? 1 : 2;
		a->stop[i] = buf[i];
		a->stop_len[i] = len;
	}
}

/* Is a stop string in the text?  *cut: where the text then ends. */
static bool stops_at(const struct ask *a, const char *text, size_t n, size_t *cut)
{
	for (size_t end = 1; end <= n; end++)
		for (int i = 0; i < a->n_stop; i++)
			if (a->stop_len[i] <= end && !memcmp(text + end - a->stop_len[i], a->stop[i], a->stop_len[i])) {
				*cut = a->include_stop ? end : end - a->stop_len[i];
				return true;
			}
	return false;
}

/* The answer of ids, taken in pieces of random length as a stream takes it. */
static size_t answer(const struct ask *a, const int32_t *ids, size_t n, struct block *out, int *faults)
{
	struct choice c;
	struct stops s;
	size_t at = 0;
	bool stopped = false;

	if (stops_init(&s, a))
		abort();
	choice_init(&c, true);
	for (size_t i = 0; i <= n && !stopped; i++) {
		if (i < n) {
			c.n_tokens++;
			stopped = choice_text(&c, &s, t, ids[i], 0);
		}
		if (i == n)
			choice_flush(&c);
		if (i == n || stopped || below(3) == 0) {
			struct part p = choice_part(&c);

			memcpy(room(out, at + p.said.n + 1) + at, p.said.n ? choice_bytes(&c) : "", p.said.n);
			*faults |= utf8_valid(out->p + at, p.said.n) ? 0 : HALF;
			at += p.said.n;
			choice_written(&c, &p, 0, 0);
		}
	}
	choice_free(&c);
	stops_free(&s);
	return at;
}

static int stopped(const int32_t *ids, size_t n)
{
	static struct block whole, part;
	char buf[4][64];
	struct ask a = { .n_stop = 0 };
	struct sr_detok d;
	int faults = 0;
	size_t len, cut;

	room(&whole, 16);
	room(&part, 16);
	sr_detok_init(&d, true);
	d.started = true;
	len = push(&d, ids, n, &whole, 0, &faults);
	if (len)
		choose_stops(&a, whole.p, len, buf);
	if (!stops_at(&a, whole.p, len, &cut))
		cut = flush(&d, &whole, len);
	len = answer(&a, ids, n, &part, &faults);
	return faults | (same(&whole, cut, &part, len) ? 0 : STOPS);
}

/* ---- records ---------------------------------------------------------------------------------------- */

static void put(const void *p, size_t n)
{
	if (fwrite(p, 1, n, stdout) != n)
		exit(1);
}

static void put_list(const void *p, size_t n, size_t each)
{
	uint32_t n32 = (uint32_t)n;

	put(&n32, 4);
	put(p, n * each);
}

static void report(const int32_t *ids, size_t n)
{
	static struct block raw, text;
	uint8_t faults = (uint8_t)(streamed(ids, n, false) | streamed(ids, n, true) | stopped(ids, n));
	size_t at = 0, len = decode(ids, n, false, &text);

	room(&raw, 16);
	for (size_t i = 0; i < n; i++) {
		const char *s;
		int k = sr_text_piece(t, ids[i], &s, NULL);

		memcpy(room(&raw, at + (size_t)k + 1) + at, s, (size_t)k);
		at += (size_t)k;
	}
	put(&faults, 1);
	put_list(ids, n, 4);
	put_list(raw.p, at, 1);
	put_list(text.p, len, 1);
	fflush(stdout);
}

static void take(uint8_t kind, uint32_t n)
{
	static struct block in, out;
	size_t bytes = kind == 'i' ? 4 * (size_t)n : kind == 'r' ? 0 : n;
	int32_t *ids;
	int64_t found = n;

	if (fread(room(&in, bytes + 1), 1, bytes, stdin) != bytes)
		exit(1);
	ids = (int32_t *)(void *)room(&out, (kind == 'r' ? n : 3 * bytes) * 4 + 64);
	if (kind == 'i')
		memcpy(ids, in.p, bytes);
	for (uint32_t i = 0; kind == 'r' && i < n; i++)
		ids[i] = n_broken && below(2) ? broken[below((uint32_t)n_broken)] : (int32_t)below((uint32_t)sr_text_info(t)->vocab);
	if (kind == 't' || kind == 's')
		found = sr_text_encode(t, in.p, n, kind == 's' ? SR_TEXT_SPECIAL_PARSE : 0, ids, 3 * bytes + 16, 0);
	if (found < 0 || (kind != 'r' && kind != 'i' && found > (int64_t)(3 * bytes + 16)))
		abort();
	report(ids, (size_t)found);
}

int main(int argc, char **argv)
{
	char err[600];
	uint32_t n;
	int kind;

	if (argc != 2 || sr_text_open(&t, argv[1], err, sizeof(err))) {
		fprintf(stderr, "%s\n", argc == 2 ? err : "text_walk MODEL");
		return 2;
	}
	n = (uint32_t)sr_text_info(t)->vocab;
	put(&n, 4);
	fflush(stdout);
	broken = calloc(n + 1, sizeof(*broken));
	if (!broken)
		abort();
	for (int32_t id = 0; id < (int32_t)n; id++) {
		const char *s;
		int k = sr_text_piece(t, id, &s, NULL);

		if (k > 0 && !utf8_valid(s, (size_t)k))
			broken[n_broken++] = id;
	}
	while ((kind = getchar()) != EOF) {
		if (fread(&n, 4, 1, stdin) != 1)
			return 1;
		take((uint8_t)kind, n);
	}
	free(broken);
	sr_text_close(t);
	return 0;
}
