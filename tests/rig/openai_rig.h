/* openai_rig.h - requests as the adapter reads them, without a model.  Tests of requests and of answers
 * share it.
 *
 * The tokenizer here is a toy, so that cases are readable: ids 0..255 are bytes, 256 is the end of sequence
 * "<eos>", 257 is "ab", 259 begins a character that the next token completes.
 */
#ifndef OPENAI_RIG_H
#define OPENAI_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/request.h"
#include "adapters/text/slipring-text.h"

#define VOCAB 1000
#define EOS   256
#define AB    257
#define HALF  259

/* ---- the toy ---- */

static char bytes[256];           /* filled by toy_begin */
static size_t toy_cap;            /* number of ids for which the last call had room */
static const struct sr_text_info info = { .vocab = VOCAB, .bos = -1, .eos = EOS, .stop = { EOS, 258 }, .n_stop = 2,
                                         .chat_template = "" };
static struct sr_text *const toy = (struct sr_text *)bytes;

const struct sr_text_info *sr_text_info(const struct sr_text *t) { (void)t; return &info; }
size_t sr_text_longest(const struct sr_text *t) { (void)t; return 16; }

int sr_text_piece(const struct sr_text *t, int32_t id, const char **out, bool *special)
{
	(void)t;
	if (special)
		*special = id == EOS;
	*out = id == EOS ? "<eos>" : id == AB ? "ab" : id < 256 ? &bytes[id] : "?";
	return id < 0 || id >= VOCAB ? -1 : id == EOS ? 5 : id == AB ? 2 : 1;
}

int64_t sr_text_encode(const struct sr_text *t, const char *s, size_t n, int flags, int32_t *ids,
                       size_t cap, size_t limit)
{
	size_t i, k = 0;

	(void)t;
	(void)flags;
	toy_cap = cap;
	for (i = 0; i < n; i++, k++) {
		if (limit && k > limit)
			break;
		if (k < cap)
			ids[k] = n - i >= 2 && !memcmp(s + i, "ab", 2) ? AB : (unsigned char)s[i];
		i += n - i >= 2 && !memcmp(s + i, "ab", 2);
	}
	return (int64_t)k;
}

int64_t sr_text_encode_pair(const struct sr_text *t, const char *a, size_t n_a, const char *b, size_t n_b, int flags,
                            size_t most, int32_t *ids, size_t cap, uint32_t *second)
{
	(void)t, (void)a, (void)n_a, (void)b, (void)n_b, (void)flags, (void)most, (void)ids, (void)cap;
	*second = 0;
	return -ENOTSUP;
}

int64_t sr_text_decode(const struct sr_text *t, const int32_t *ids, size_t n, bool skip, char *out, size_t cap)
{
	size_t i, at = 0;
	const char *s;
	int len;

	(void)skip;
	for (i = 0; i < n; i++)
		for (len = sr_text_piece(t, ids[i], &s, NULL); len-- > 0; s++)
			if (at++ < cap)
				out[at - 1] = *s;
	return (int64_t)at;
}

void sr_detok_init(struct sr_detok *d, bool skip) { *d = (struct sr_detok){ .skip_special = skip }; }
int sr_detok_flush(struct sr_detok *d, char *out, size_t cap)
{
	int n = d->n_held ? snprintf(out, cap, "\xef\xbf\xbd") : 0;

	d->n_held = 0;
	return n;
}

int sr_detok_push(struct sr_detok *d, const struct sr_text *t, int32_t id, char *out, size_t cap)
{
	d->n_held = id == HALF;
	return (d->skip_special && id == EOS) || id == HALF ? 0 : (int)sr_text_decode(t, &id, 1, false, out, cap);
}

/* The toy's template: "role:content;" for each message, then ">" to prompt an answer.  It reads documents
 * but no tools. */
static struct chat_template *toy_template;
static const char toy_source[] = "{% for m in messages %}{% if m.role == 'bad' %}"
	"{{ raise_exception('no such role') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}"
	"{{ '>' if add_generation_prompt }}{{ '' if documents }}";

static const char *const names[] = { "m", "also" };

/* Calls as hermes writes them. */
static const struct calls *hermes(void)
{
	static struct calls *c;
	char err[256];

	if (!c && calls_open(&c, "hermes", "none", NULL, NULL, err, sizeof(err)))
		abort();
	return c;
}

static struct ask_limits limits(void)
{
	return (struct ask_limits){
		.calls = hermes(),
		.text = toy, .chat = toy_template, .response_role = "assistant", .vocab = VOCAB, .context = 64, .max_logprobs = 20,
		.stream_interval = 1, .names = names, .n_names = 2,
		.defaults = { 1, 1, 0, 1, 0, -1, -1, "" },
	};
}

#define P "\"prompt\":\"x\""
#define M "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static inline void take(struct ask *a, enum ask_kind kind, const char *body)
{
	const struct ask_limits l = limits();
	struct problem p;

	if (ask_parse(a, kind, body, strlen(body), &l, &p) || ask_prompts(a, &l, &p))
		fail_msg("%s: %s", body, p.message);
}

static inline void toy_begin(void)
{
	char err[200];

	for (int i = 0; i < 256; i++)
		bytes[i] = (char)i;
	if (chat_template_open(&toy_template, toy_source, err, sizeof(err)))
		fail_msg("%s", err);
}

#endif
