/* tokenizer.c - text to ids: added tokens first, then the normal form, pieces, merges or unigrams. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/unicode/normalize.h"
#include "text.h"
#include "adapters/text/unicode/utf8.h"

#define OVER 1                   /* more ids than the limit: stop */

struct encoder {
	const struct sr_text *t;
	struct bpe_out out;
	bool special;
	const char *begin;       /* of the text */
	struct pre_work work;
};

static int over_limit(const struct encoder *e)
{
	return bpe_over(&e->out) ? OVER : 0;
}

static int one_piece(void *arg, const char *s, size_t n)
{
	struct encoder *e = arg;
	int rc = e->t->unigram.on ? unigram_encode(&e->t->unigram, &e->t->vocab, s, n, &e->out)
	                          : bpe_encode(&e->t->bpe, s, n, &e->out);

	return rc ? rc : over_limit(e);
}

static int encode_plain(struct encoder *e, const char *s, size_t n)
{
	return n ? pre_cut(&e->t->pre, &e->work, s, n, one_piece, e) : 0;
}

/* Find the added tokens of one set, and pass the text between them to next. */
static int around(struct encoder *e, const struct added *set, const char *s, size_t n,
                  int (*next)(struct encoder *e, const char *s, size_t n))
{
	const struct added_token *t;
	size_t at = 0, from, to;
	int rc;

	while ((t = added_find(set, s, n, at, e->special, &from, &to))) {
		rc = next(e, s + at, from - at);
		if (rc)
			return rc;
		bpe_put(&e->out, t->id);
		if (over_limit(e))
			return OVER;
		at = to;
	}
	return next(e, s + at, n - at);
}

/* SentencePiece: U+2581 is a space, and one may be put before the text.  *s becomes malloc'ed text. */
static int spaced(const struct encoder *e, bool first, const char **s, size_t *n)
{
	char *out = malloc(*n + 1);
	size_t len;

	if (!out)
		return -ENOMEM;
	len = vocab_spaces(*s, *n, out + 1);
	*out = ' ';
	*s = out;
	*n = len + 1;
	if (e->t->lead == LEAD_NONE || (e->t->lead_once && !first) ||
	    (e->t->lead == LEAD_UNLESS_SPACE && out[1] == ' ')) {
		memmove(out, out + 1, len);
		*n = len;
	}
	return 0;
}

/* WHITE_PARTS, WHITE_MERGED: words with a space before each.  *s becomes malloc'ed text. */
static int parted(const struct encoder *e, const char **s, size_t *n)
{
	const bool merged = e->t->white == WHITE_MERGED;
	char *out = malloc(*n * 2 + 1);      /* a space for each byte, if each is a word */
	bool inside = false;
	size_t len = 0;
	uint32_t cp;

	if (!out)
		return -ENOMEM;
	for (size_t i = 0, k; i < *n; i += k) {
		k = utf8_next(*s + i, *n - i, &cp);
		if (merged ? cp == ' ' : utf8_space(cp)) {
			inside = false;
			continue;
		}
		if (!inside && (merged || (e->t->lead != LEAD_NONE && cp != 0x2581)))
			out[len++] = ' ';
		inside = true;
		len += vocab_spaces(*s + i, k, out + len);
	}
	*s = out;
	*n = len;
	return 0;
}

/* Text between added tokens, in its normal form. */
static int unigrams(struct encoder *e, const char *s, size_t n)
{
	const char *text = s;
	int rc;

	if (!n)
		return 0;
	rc = e->t->white == WHITE_KEPT ? spaced(e, s == e->begin, &text, &n) : parted(e, &text, &n);
	if (rc)
		return rc;
	rc = encode_plain(e, text, n);
	free((char *)text);
	return rc;
}

/* Each run of two spaces and more becomes U+2581.  NULL: no memory. */
static char *mark_runs(const char *s, size_t *n)
{
	char *out = malloc(*n + *n / 2 + 1);
	size_t k = 0;

	for (size_t i = 0, run; out && i < *n; i += run) {
		for (run = 0; i + run < *n && s[i + run] == ' '; run++)
			;
		if (run >= 2) {
			memcpy(out + k, "\xe2\x96\x81", 3);
			k += 3;
		} else {
			run = 1;
			out[k++] = s[i];
		}
	}
	*n = k;
	return out;
}

/* One step of a normal form, in place. */
static size_t step_in_place(enum text_step step, const char **text, char *s, size_t n)
{
	size_t k = 0, last = 0;
	uint32_t cp;

	if (step == STEP_RUNS) {
		for (size_t i = 0; i < n; i++)
			if (s[i] != ' ' || !i || s[i - 1] != ' ')
				s[k++] = s[i];
		return k;
	}
	for (size_t i = 0; i < n; ) {
		size_t from = i;

		i += utf8_next(s + i, n - i, &cp);
		if (utf8_space(cp))
			continue;
		if (!last)
			k = from;                /* where the text begins without its spaces */
		last = i;
	}
	if (step == STEP_STRIP_RIGHT)
		return last;
	k = last ? k : n;
	*text += k;
	return n - k;
}

static int with_steps(struct encoder *e, const char *s, size_t n)
{
	const bool first = s == e->begin;
	char *held = NULL;
	const char *text;
	int rc = 0;

	if (e->t->step[0] == STEP_CHARSMAP) {
		rc = charsmap_apply(&e->t->charsmap, s, n, &held, &n);
	} else {
		held = malloc(n + 1);
		if (held)
			memcpy(held, s, n);
		rc = held ? 0 : -ENOMEM;
	}
	if (rc)
		return rc;
	text = held;
	for (int i = 0; i < STEPS_MAX && e->t->step[i]; i++) {
		if (e->t->step[i] == STEP_RUNS_MARKED) {
			char *marked = mark_runs(text, &n);

			free(held);
			text = held = marked;
			if (!held)
				return -ENOMEM;
		} else if (e->t->step[i] != STEP_CHARSMAP) {
			n = step_in_place(e->t->step[i], &text, held + (text - held), n);
		}
	}
	e->begin = first ? text : NULL;  /* of what is normalized now; later parts are not the first */
	rc = around(e, &e->t->after, text, n, unigrams);
	free(held);
	return rc;
}

static int normalized(struct encoder *e, const char *s, size_t n)
{
	bool first = s == e->begin;
	char *nfc = NULL;
	const char *text;
	int rc;

	if (!n)
		return 0;
	if (e->t->wordpiece.on) /* more ids than the limit: OVER */
		return wordpiece_encode(&e->t->wordpiece, &e->t->vocab, s, n, &e->out);
	if (e->t->unigram.on)
		return with_steps(e, s, n);
	if (e->t->nfc) {
		rc = normalize_nfc(s, n, &nfc, &n);
		if (rc)
			return rc;
	}
	text = nfc ? nfc : s;
	if (!e->t->vocab.characters) {
		rc = around(e, &e->t->after, text, n, encode_plain);
	} else {
		rc = spaced(e, first, &text, &n);
		if (!rc) {
			rc = around(e, &e->t->after, text, n, encode_plain);
			free((char *)text);
		}
	}
	free(nfc);
	return rc;
}

static int encode_text(struct encoder *e, const char *s, size_t n, bool edges)
{
	const struct sr_text *t = e->t;
	int rc;

	for (int i = 0; edges && i < t->n_prefix; i++)
		bpe_put(&e->out, t->prefix[i]);
	rc = over_limit(e);
	if (!rc)
		rc = around(e, &t->before, s, n, normalized);
	for (int i = 0; !rc && edges && i < t->n_suffix; i++)
		bpe_put(&e->out, t->suffix[i]);
	return rc ? rc : over_limit(e);
}

int64_t sr_text_encode(const struct sr_text *t, const char *s, size_t n, int flags,
                       int32_t *ids, size_t cap, size_t limit)
{
	struct encoder e = {
		.t = t, .special = flags & SR_TEXT_SPECIAL_PARSE,
		.out = { ids, ids ? cap : 0, 0, limit > INT64_MAX / 2 ? 0 : (int64_t)limit },
	};
	char *repaired = NULL;
	int rc;

	if (!utf8_valid(s, n)) {
		s = repaired = utf8_repair(s, n, &n);
		if (!repaired)
			return -ENOMEM;
	}
	e.begin = s;
	rc = pre_begin(&e.work, &t->pre, n);
	if (!rc) {
		rc = encode_text(&e, s, n, flags & SR_TEXT_SPECIAL_ADD);
		pre_end(&e.work, &t->pre);
	}
	free(repaired);
	return rc == OVER ? e.out.limit + 1 : rc ? rc : e.out.n;
}
