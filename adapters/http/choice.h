/* choice.h - one answer under way: tokens in, text out.  It finds stop strings across token boundaries,
 * and keeps log-probabilities until they are written.
 *
 * It holds back text that may still become a stop string: exactly the longest end of the text that
 * is the beginning of one.  It reads each byte once.
 */
#ifndef CHOICE_H
#define CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/text/slipring-text.h"
#include "adapters/http/json/openai.h"
#include "adapters/http/json/out.h"
#include "said.h"
#include "shmring/slipring.h"

/* The stop strings of a request with their failure functions (Knuth, Morris, Pratt), prepared once. */
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

/* Tokens with their log-probabilities, packed: about 8 bytes each, and 5 for each alternative. */
struct scores { struct out bytes; };

struct score {                         /* one entry, unpacked */
	int32_t  id;
	float    logprob;
	uint32_t rank;                 /* 0 = no log-probability (the first prompt token) */
	uint32_t n_top;
	struct sr_pair top[SR_TOP_MAX];
};

void scores_add(struct scores *l, const struct sr_token *t);
void scores_add_plain(struct scores *l, int32_t id);
/* Unpack the entry at byte *at and advance *at to the next; false at `end`.  *at = 0: the first. */
bool scores_next(const struct scores *l, size_t end, size_t *at, struct score *p);
/* The most bytes that an entry with n_top alternatives takes, unless its values are unusual. */
size_t scores_bytes(uint32_t n_top);

enum choice_finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_TOOLS };

enum choice_state {
	CHOICE_IDLE,                   /* the engine does not have it: not yet, or no more */
	CHOICE_LIVE,                   /* the engine has it */
	CHOICE_STOPPING,               /* it has, but a stop string is complete: only END is awaited */
	CHOICE_ENDED,                  /* nothing more is added to it */
};

/* What of an answer one event has: bytes of one kind. */
struct part {
	struct said_part said;
	int index;                     /* of the choice in the answer */
};

struct engine;
struct request;

struct choice {
	struct request *request;       /* the request it answers */
	int index, prompt;             /* its index in the answer; its prompt's among the request's */
	enum choice_state state;
	struct engine *engine;         /* the daemon that has it, or had it last; NULL: none yet */
	uint64_t handle;               /* engine.h; valid while LIVE or STOPPING */
	bool echoed;                   /* its prompt was written */
	bool due;                      /* in the request's list of choices with something to write */
	struct choice *next_due;
	enum choice_finish finish;
	int32_t  stop_id;              /* the stop_token_id that ended it, or -1 */
	const char *stop_string;       /* the stop string that ended it, or NULL */
	size_t   stop_string_len;

	struct sr_guided *guided;      /* NULL: its tokens need no guides */
	uint64_t guide_from;           /* when the guide that is being made was begun */
	int guide_error;               /* -errno of a guide; then its end is awaited */
	uint32_t n_tokens, max_tokens;
	uint32_t cached;
	struct sr_end progress;        /* of its prompt; SR_COMPUTED's, all zero: none has come */
	const struct calls *calls;     /* NULL: no token is a marker */
	struct sr_detok detok;
	uint32_t matched[ASK_STOPS];   /* bytes of each stop string that the text ends with */
	struct said *said;             /* NULL: all of it is text */
	struct out text;               /* streaming: neither written nor split yet; else all of it */
	size_t   ready;                /* bytes of text that may be written */
	struct scores scores;          /* streaming: not written yet */
	size_t   held;                 /* bytes of scores that exchange_keep() was told of */
	struct out ids;                /* int32_t[] not written yet, for return_token_ids */
	uint32_t waiting;              /* tokens not written yet, for stream_interval */
	uint32_t offset;               /* text_offset of the next token, in characters */
};

void choice_init(struct choice *c, bool skip_special);
/* Its answer is split into parts.  False: no memory. */
bool choice_splits(struct choice *c, const struct ask *a, const struct calls *calls);
void choice_free(struct choice *c);

/* Add a token's text.  True: a stop string is complete, and c->finish is set. */
bool choice_text(struct choice *c, const struct stops *s, const struct sr_text *t, int32_t id,
                 uint32_t min_tokens);
void choice_split(struct choice *c);                     /* streaming: text becomes parts */
struct part choice_part(const struct choice *c);         /* the first that may be written now */
const char *choice_bytes(const struct choice *c);        /* of that part */
bool choice_waits(const struct choice *c);               /* there is no part */
bool choice_more(const struct choice *c);                /* a further event follows the first part's */
/* Remove the part that was written, and as many bytes of scores and ids. */
void choice_written(struct choice *c, const struct part *p, size_t n_scores, size_t n_ids);
/* An allocation failed: its answer would have a hole. */
bool choice_lost(const struct choice *c);
/* The text is complete: release what was held back. */
void choice_flush(struct choice *c);
/* The answer is: its last parts. */
void choice_said(struct choice *c, const struct ask *a);

#endif
