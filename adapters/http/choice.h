/* choice.h - one answer on its way: tokens in, text out, with stop strings found across token
 * boundaries and log-probabilities kept until they are written.
 *
 * No text is given out that might still be the beginning of a stop string: what is held back
 * is exactly the longest end of the text that begins one.  Each byte is looked at once.
 */
#ifndef CHOICE_H
#define CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/text/slipring-text.h"
#include "openai.h"
#include "out.h"
#include "shmring/slipring.h"

/* The stop strings of a request, made ready once: failure functions of Knuth, Morris, Pratt. */
struct stops {
	int n;
	const char *s[ASK_STOPS];
	uint32_t len[ASK_STOPS];
	uint32_t *fail[ASK_STOPS];     /* [len + 1] */
	uint32_t *memory;
	bool include;                  /* include_stop_str_in_output */
};

int  stops_init(struct stops *s, const struct ask *a);   /* 0, -ENOMEM */
void stops_free(struct stops *s);

/* Tokens with what is known of each, packed: some 8 bytes, and 5 for each alternative. */
struct lps { struct out bytes; };

struct lp {                            /* one of them */
	int32_t  id;
	float    logprob;
	uint32_t rank;                 /* 0 = no log-probability (the first prompt token) */
	uint32_t n_top;
	struct sr_pair top[SR_TOP_MAX];
};

void lps_add(struct lps *l, const struct sr_token *t);
void lps_add_plain(struct lps *l, int32_t id);
/* The one at byte *at, which goes to the next; false at `end`.  *at = 0 is the first. */
bool lps_next(const struct lps *l, size_t end, size_t *at, struct lp *p);
/* The most bytes that one with so many alternatives takes, but for odd values. */
size_t lps_bytes(uint32_t n_top);

enum choice_finish { RUNNING, STOPPED, LENGTH, FAILED };

struct request;

struct choice {
	struct request *request;       /* whose it is */
	int index, prompt;             /* in the answer; of the request's prompts */
	uint64_t handle;               /* engine.h; valid while `live` */
	bool live, echoed;             /* in the engine; prompt given out */
	bool due;                      /* in the request's list of those with something to tell */
	struct choice *next_due;
	enum choice_finish finish;
	bool ended;                    /* nothing more comes: finish is in the answer */
	int32_t  stop_id;              /* of a stop_token_id that ended it, or -1 */
	const char *stop_string;       /* that ended it, or NULL */
	size_t   stop_string_len;

	uint32_t n_tokens, max_tokens;
	uint32_t cached;
	struct sr_detok detok;
	uint32_t state[ASK_STOPS];     /* how much of each stop string the text ends with */
	struct out text;               /* streaming: not given out yet; else all */
	size_t   ready;                /* bytes of text that may be given out */
	struct lps lps;                /* streaming: not given out yet */
	size_t   held;                 /* bytes of lps that the api knows of */
	struct out ids;                /* int32_t[] not given out yet, for return_token_ids */
	uint32_t waiting;              /* tokens in them: for stream_interval */
	uint32_t offset;               /* text_offset of the next token, in characters */
	struct sr_token last;          /* a token that ends the answer, kept for the END after it */
	bool has_last;
};

void choice_init(struct choice *c, bool skip_special);
void choice_free(struct choice *c);

/* A token's text, added.  True: a stop string is complete, c->finish says so. */
bool choice_text(struct choice *c, const struct stops *s, const struct sr_text *t, int32_t id,
                 uint32_t min_tokens);
/* A part of it found no memory: an answer from it would have a hole. */
bool choice_lost(const struct choice *c);
/* No more text: what was held back is given out. */
void choice_flush(struct choice *c);

#endif
