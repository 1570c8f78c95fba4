/* pretokenize.h - splits text into pieces, which are merged separately: words with their space,
 * numbers, punctuation, runs of white space.  The regular expression depends on the model.  A wrong one
 * gives plausible ids that the model was never trained on, so unknown ones are refused.
 */
#ifndef PRETOKENIZE_H
#define PRETOKENIZE_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stddef.h>

#define PRE_STEPS 8

struct pre {
	int n;                       /* steps; each splits the pieces of the one before */
	struct pre_step {
		pcre2_code *re;
		bool drop;           /* text between matches is dropped; else it becomes a piece too */
	} step[PRE_STEPS];
	const char *name;            /* for display; not owned */
	bool whole_first, add_bos, nfc; /* the family's defaults, if its file has no others */
};

/* Set up p by the name in tokenizer.ggml.pre.  0, -ENOTSUP. */
int  pre_named(struct pre *p, const char *name, size_t n, char *err, size_t errlen);
/* The source of that name's regular expressions, [PRE_STEPS], NULL after the last.  NULL: unknown. */
const char *const *pre_expressions(const char *name, size_t n);

/* Add a step: a regular expression, or with `literal` the string itself.  0, -EINVAL. */
int  pre_add(struct pre *p, const char *re, size_t n, bool literal, bool drop, char *err, size_t errlen);
void pre_free(struct pre *p);

/* GPT-2's expression, which ByteLevel with use_regex in tokenizer.json stands for. */
extern const char pre_gpt2[];

/* What one thread needs while it splits; created per call. */
struct pre_work { pcre2_match_data *data[PRE_STEPS]; pcre2_match_context *context; };
int  pre_begin(struct pre_work *w, const struct pre *p, size_t n); /* 0 or -ENOMEM; n: bytes of all text */
void pre_end(struct pre_work *w, const struct pre *p);

/* Split s (valid UTF-8) and call piece() for each piece.  Stops at its first result that is not 0, and
 * returns that.  -E2BIG: the expression needs too many steps on this text. */
int  pre_cut(const struct pre *p, struct pre_work *w, const char *s, size_t n,
             int (*piece)(void *arg, const char *s, size_t n), void *arg);

#endif
