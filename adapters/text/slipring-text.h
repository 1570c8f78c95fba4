/* slipring-text.h - a model's text side: vocabulary, tokenizer, chat template, detokenizer.
 * For clients that hold text (libslipring-text).
 *
 * A struct sr_text is read-only once open: any number of threads may use it at once.  A
 * struct sr_detok belongs to one answer.  Lengths are in bytes.  Text is UTF-8; in user text each
 * invalid byte sequence becomes U+FFFD (as in Rust's and Python's "replace").
 * Functions return a count or 0, or -errno.  Time is linear in length (n log n for merges).
 */
#ifndef SLIPRING_TEXT_H
#define SLIPRING_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shmring/slipring-guide.h"   /* installed beside this file */

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

struct sr_text;

struct sr_text_info {
	int32_t vocab;               /* ids are 0 .. vocab-1 */
	int32_t bos, eos;            /* -1 = none */
	int32_t stop[8], n_stop;     /* all ids that end an answer, including eos */
	bool    add_bos;             /* encoding with SPECIAL_ADD puts bos first */
	uint8_t vocab_hash[32];      /* as sr_model_info.vocab_hash */
	const char *chat_template;   /* Jinja source, or NULL */
	const char *pre;             /* name of the pre-tokenizer */
	int32_t pooling;             /* enum sr_pool: how prompts become vectors; 0: the files do not say */
	bool    unit;                /* then vectors have length 1 */
	int32_t n_labels;            /* of a classifier, whose vectors are logits of labels; 0: it is none */
	int32_t activation;          /* what makes scores of them: 0 softmax, 1 sigmoid, 2 tanh, 3 nothing */
};

/* path: a GGUF file or a Hugging Face directory (tokenizer.json, tokenizer_config.json,
 * chat_template.jinja, generation_config.json).  -ENOTSUP: unknown pre-tokenizer or tokenizer
 * model; err names it. */
int  sr_text_open(struct sr_text **out, const char *path, char *err, size_t errlen);
void sr_text_close(struct sr_text *t);
const struct sr_text_info *sr_text_info(const struct sr_text *t);

/* Text to ids.  SPECIAL_ADD: add the special tokens that the model expects, such as bos
 * (add_special_tokens).  SPECIAL_PARSE: the spelling of a special token in s becomes that token.  Without
 * it such text is ordinary characters, so users cannot forge one.  Returns the number of ids of the text;
 * only the first cap are written.  With more than `limit` ids (0 = no limit) it stops and returns
 * limit + 1.  -E2BIG: the model's own pattern needs too many steps on s. */
enum { SR_TEXT_SPECIAL_ADD = 1, SR_TEXT_SPECIAL_PARSE = 2 };
int64_t sr_text_encode(const struct sr_text *t, const char *s, size_t n, int flags,
                       int32_t *ids, size_t cap, size_t limit);

/* Two texts as one prompt, as the model's tokenizer pairs them with its special tokens (query and document
 * of a cross-encoder).  Flags as above, but SPECIAL_ADD counts as given.  most: 0, or as many ids as the
 * prompt may have: then ids are taken from the end of the longer text, and of both when they are equally
 * long, as transformers does ("longest_first").  *second: the position from which ids are of the second
 * type; 0 where the tokenizer tells none apart.  Returns the number of ids, of which only the first cap are
 * written.  -ENOTSUP: the tokenizer's pairs have another form.  -EINVAL: the special tokens alone are more
 * than `most`. */
int64_t sr_text_encode_pair(const struct sr_text *t, const char *a, size_t n_a, const char *b, size_t n_b,
                            int flags, size_t most, int32_t *ids, size_t cap, uint32_t *second);

/* The bytes of one token: returns their number, and *out points to them (not NUL-terminated; may be part
 * of a character).  -EINVAL: no such id.  special, if not NULL: is it a special token? */
int  sr_text_piece(const struct sr_text *t, int32_t id, const char **out, bool *special);
/* The same as the vocabulary spells it ("Ġworld"), for return_token_strs. */
int  sr_text_spelling(const struct sr_text *t, int32_t id, const char **out);
/* The id with exactly this spelling, or -ENOENT. */
int32_t sr_text_id(const struct sr_text *t, const char *spelling, size_t n);

/* Ids to text, all at once; incomplete or invalid UTF-8 becomes U+FFFD.  Returns the length.  If it is
 * above cap, only cap bytes were written. */
int64_t sr_text_decode(const struct sr_text *t, const int32_t *ids, size_t n, bool skip_special,
                       char *out, size_t cap);

/* Ids to text, one at a time, for streams: bytes of an unfinished character (at most 4) are held back
 * until it is complete or known to be invalid.  Concatenated output equals sr_text_decode.
 * Some models begin every text with a space, which is dropped.  Set `started` where the ids continue a
 * text, as an answer does: the space is kept. */
struct sr_detok { uint8_t held[8]; uint32_t n_held; bool skip_special, started; };
void sr_detok_init(struct sr_detok *d, bool skip_special);
/* Appends to out, which has room for what one piece may give: at least sr_text_longest(t) + 16 bytes. */
int  sr_detok_push(struct sr_detok *d, const struct sr_text *t, int32_t id, char *out, size_t cap);
int  sr_detok_flush(struct sr_detok *d, char *out, size_t cap); /* writes U+FFFD for what is held */
size_t sr_text_longest(const struct sr_text *t); /* bytes of text that one piece may give */

/* Make the prompt of a chat.  context: a JSON object with "messages" in OpenAI's form, and what of these is
 * wanted: "tools", "documents", "reasoning_effort", "add_generation_prompt" (true by default),
 * "continue_final_message", "chat_template_kwargs".  Any other member is a variable of the template.
 * slipring-http makes the same prompt of the same messages: developer becomes system where the template does
 * not know it, parts become one text or a list, arguments of calls become objects.
 *
 * tmpl NULL = the model's.  *out is malloc'ed and NUL-terminated; returns its length.  -EINVAL: an error in
 * the template or a message, or tools or documents that the template does not read, so that the model would
 * not see them.  -E2BIG: over the budget of steps, depth or output.  On errors err has one sentence. */
int64_t sr_text_chat(const struct sr_text *t, const char *tmpl, const char *context,
                     char **out, char *err, size_t errlen);

/* ---- answers that keep to a grammar ----
 *
 * A grammar is compiled once and shared by any number of answers and threads.  It is freed when its opener
 * and its last guide have closed it.  A guide is where one answer stands; one thread at a time uses it.
 * The guides of a grammar share its caches behind a mutex.
 *
 *     sr_grammar_open(&g, t, SR_GRAMMAR_JSON, schema, strlen(schema), NULL, err, sizeof(err));
 *     sr_guide_open(&u, g);
 *     for (;;) {
 *             sr_guide_next(u, &next, bits);   // tell the daemon: sr_guide()
 *             ...                              // the daemon draws id
 *             sr_guide_take(u, id);
 *     }
 */
enum sr_grammar_kind {
	SR_GRAMMAR_JSON,             /* a JSON Schema; true or {"type": "object"} for any object */
	SR_GRAMMAR_REGEX,            /* ECMA-262; the whole answer matches */
	SR_GRAMMAR_CHOICE,           /* a JSON array of strings: the answer is one of them */
	SR_GRAMMAR_EBNF,             /* GBNF, or Lark if there is no ::= */
	SR_GRAMMAR_TAGS,             /* a structural tag in JSON, either form */
};

struct sr_grammar_options {
	uint32_t size;               /* sizeof(struct sr_grammar_options) */
	bool disable_any_whitespace; /* JSON: none between values and marks */
	bool additional_properties;  /* JSON: absent additionalProperties beside properties means true */
	bool lenient;                /* JSON: what cannot be enforced is left out, and err says what */
	const char *whitespace_pattern; /* JSON: a regex for where whitespace may stand; NULL = up to 8 */
	const int32_t *begin;        /* [n_begin] it begins after the first of these: the end of thinking */
	uint32_t n_begin;
	const int32_t *stop;         /* [n_stop] ids that end an answer besides the model's */
	uint32_t n_stop;
};

struct sr_grammar;
struct sr_guide;

/* src has n bytes; options NULL = all zero.  t must stay open as long as the grammar.  -EINVAL: it is no
 * grammar of this kind; -ENOTSUP: it cannot be enforced; -E2BIG: over a budget; -ENOMEM.  err has one
 * sentence with the place. */
int  sr_grammar_open(struct sr_grammar **out, const struct sr_text *t, enum sr_grammar_kind kind,
                     const char *src, size_t n, const struct sr_grammar_options *o, char *err, size_t errlen);
void sr_grammar_close(struct sr_grammar *g);
/* Memory that it takes now, caches included: it grows with use up to a bound. */
size_t sr_grammar_bytes(struct sr_grammar *g);

struct sr_next {
	uint32_t kind;               /* enum sr_guide_kind; BITS: in bits[] */
	uint32_t n;                  /* ids: at most SR_GUIDE_IDS for ONLY and FREE, 64 for IS */
	int32_t  id[64];
	bool     done;               /* the answer is complete: only a stop id may come */
};

/* A guide at the beginning of an answer; or where another one stands.  0 or -ENOMEM. */
int  sr_guide_open(struct sr_guide **out, struct sr_grammar *g);
int  sr_guide_fork(struct sr_guide **out, const struct sr_guide *from);
void sr_guide_close(struct sr_guide *u);
/* The next token.  -EINVAL: it is not allowed, and the guide stays where it was.  -E2BIG: over a budget
 * of steps, and the guide is of no more use. */
int  sr_guide_take(struct sr_guide *u, int32_t id);
/* What may come next; stop ids are among it where the answer may end.  IS: tokens that must come, as the
 * tokenizer would make them; the last may be the stop id.  Take each of them, too.  bits has (vocab + 31) /
 * 32 words, which are written only for SR_GUIDE_BITS.  0; -E2BIG as above. */
int  sr_guide_next(struct sr_guide *u, struct sr_next *out, uint32_t *bits);

/* All guides of one answer, in the order and as early as the daemon takes them (sr_guide() in slipring.h):
 *
 *     sr_guided_open(&d, g, t, min_tokens, stop, n_stop, NULL);
 *     sr_submit(conn, &q, &ticket);                // with SR_GUIDED, without SR_IGNORE_EOS and min_tokens
 *     sr_guided_begin(d, bits, put, ctx);          // put() calls sr_guide() with conn and ticket
 *     sr_guided_take(d, id, bits, put, ctx);       // at each token that is not the last
 *
 * Forced tokens go ahead of the answer, at most 64, and behind them the guide of the token that follows.
 * Once the answer is complete, its stop id is forced. */
struct sr_guided;

/* A thought that comes before what the grammar describes: any tokens up to and with one of end[n_end]. */
struct sr_thought {
	bool     opened;             /* the prompt has opened it; else it comes if token 0 is `begin` */
	int32_t  begin;
	uint32_t n_end;              /* 0: there is no thought */
	int32_t  end[4];
	int64_t  most;               /* tokens between its marks; then end[0] is forced.  -1: any number */
};

typedef int sr_guided_put(void *ctx, uint32_t index, uint32_t kind, const int32_t *ids, uint32_t n,
                          const uint32_t *bits);

/* g NULL: after the thought all is free.  Before token min_tokens a stop id, of the model or of stop[n_stop],
 * is only allowed if nothing else is.  thought NULL: there is none. */
int  sr_guided_open(struct sr_guided **out, struct sr_grammar *g, const struct sr_text *t,
                    uint32_t min_tokens, const int32_t *stop, uint32_t n_stop,
                    const struct sr_thought *thought);
void sr_guided_close(struct sr_guided *d);
/* The guides up to the first token that is drawn.  If the request is submitted again, with the tokens that
 * were taken as its n_answer: those up to the next one that is drawn.  bits is scratch, (vocab + 31) / 32
 * words.  0, -ENOMEM, -E2BIG, or what put() returned. */
int  sr_guided_begin(struct sr_guided *d, uint32_t *bits, sr_guided_put *put, void *ctx);
/* The same behind a token; also -EINVAL: the grammar does not allow it. */
int  sr_guided_take(struct sr_guided *d, int32_t id, uint32_t *bits, sr_guided_put *put, void *ctx);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
