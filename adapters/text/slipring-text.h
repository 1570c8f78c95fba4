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
 * until it is complete or known to be invalid.  Concatenated output equals sr_text_decode. */
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

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
