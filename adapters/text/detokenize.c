/* detokenize.c - ids to text, all at once or one at a time.
 *
 * Pieces are bytes; a character may span several.  Streaming holds back only the bytes that may still
 * become a character, at most 3.  So its output, concatenated, equals that of all ids at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"
#include "adapters/text/unicode/utf8.h"

int sr_text_piece(const struct sr_text *t, int32_t id, const char **out, bool *special)
{
	const struct vocab *v = &t->vocab;

	if (id < 0 || id >= t->info.vocab)
		return -EINVAL;
	if (special)
		*special = id < v->n && v->kind[id] & VOCAB_SPECIAL;
	if (id >= v->n || !(v->kind[id] & VOCAB_THERE)) {   /* a row of the embedding that no token uses */
		*out = "";
		return 0;
	}
	*out = v->chars + v->piece[id].at;
	return (int)v->piece[id].n;
}

int sr_text_spelling(const struct sr_text *t, int32_t id, const char **out)
{
	const struct vocab *v = &t->vocab;

	if (id < 0 || id >= t->info.vocab)
		return -EINVAL;
	*out = id < v->n ? v->chars + v->spelling[id].at : "";
	return id < v->n ? (int)v->spelling[id].n : 0;
}

int32_t sr_text_id(const struct sr_text *t, const char *spelling, size_t n)
{
	int32_t id = n <= UINT32_MAX ? vocab_by_spelling(&t->vocab, spelling, n) : -1;

	return id < 0 ? -ENOENT : id;
}

size_t sr_text_longest(const struct sr_text *t)
{
	return t->vocab.longest;
}

void sr_detok_init(struct sr_detok *d, bool skip_special)
{
	*d = (struct sr_detok){ .skip_special = skip_special };
}

struct sink { char *out; size_t cap, n; };

static void sink_put(struct sink *o, const char *s, size_t n)
{
	if (o->n < o->cap)
		memcpy(o->out + o->n, s, n < o->cap - o->n ? n : o->cap - o->n);
	o->n += n;
}

/* Drop the space with which a SentencePiece model begins each text. */
static void begin_text(struct sr_detok *d, const struct sr_text *t, const char **s, int *n)
{
	if (!d->started && t->strip && *n && **s == ' ') {
		++*s;
		--*n;
	}
	d->started = true;
}

/* Write the characters of the held bytes and then s; hold a last unfinished one. */
static void push(struct sr_detok *d, const char *s, size_t n, struct sink *o)
{
	size_t i = 0, run;
	uint32_t cp;
	unsigned k;

	while (d->n_held) {              /* byte by byte until the held one is complete or bad */
		if (i == n)
			return;
		d->held[d->n_held] = (uint8_t)s[i];
		k = utf8_next((char *)d->held, d->n_held + 1, &cp);
		if (cp == UTF8_PARTIAL) {
			d->n_held++;
			i++;
		} else if (cp == UTF8_BAD) {     /* the held bytes were bad; s[i] starts anew */
			sink_put(o, "\xef\xbf\xbd", 3);
			d->n_held = 0;
		} else {
			sink_put(o, (char *)d->held, k);
			d->n_held = 0;
			i++;
		}
	}
	for (run = i; i < n; i += k) {
		k = utf8_next(s + i, n - i, &cp);
		if (cp < UTF8_PARTIAL)
			continue;
		sink_put(o, s + run, i - run);
		run = i + k;
		if (cp == UTF8_BAD) {
			sink_put(o, "\xef\xbf\xbd", 3);
		} else {
			memcpy(d->held, s + i, k);
			d->n_held = k;
		}
	}
	sink_put(o, s + run, n - run);
}

int sr_detok_push(struct sr_detok *d, const struct sr_text *t, int32_t id, char *out, size_t cap)
{
	struct sink o = { out, cap, 0 };
	const char *s;
	bool special;
	int n = sr_text_piece(t, id, &s, &special);

	if (n < 0)
		return n;
	if (cap < t->vocab.longest + 16)
		return -ENOSPC;
	if (special && d->skip_special)
		return 0;
	begin_text(d, t, &s, &n);
	push(d, s, (size_t)n, &o);
	return (int)o.n;
}

int sr_detok_flush(struct sr_detok *d, char *out, size_t cap)
{
	if (!d->n_held)
		return 0;
	if (cap < 3)
		return -ENOSPC;
	d->n_held = 0;
	memcpy(out, "\xef\xbf\xbd", 3);
	return 3;
}

int64_t sr_text_decode(const struct sr_text *t, const int32_t *ids, size_t n, bool skip_special,
                       char *out, size_t cap)
{
	struct sr_detok d;
	struct sink o = { out, cap, 0 };
	const char *s;
	bool special;
	int len;

	sr_detok_init(&d, skip_special);
	for (size_t i = 0; i < n; i++) {
		len = sr_text_piece(t, ids[i], &s, &special);
		if (len < 0)
			return len;
		if (special && skip_special)
			continue;
		begin_text(&d, t, &s, &len);
		push(&d, s, (size_t)len, &o);
	}
	if (d.n_held)
		sink_put(&o, "\xef\xbf\xbd", 3);
	return (int64_t)o.n;
}
