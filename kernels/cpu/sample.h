/* sample.h - from one row of logits to a token and its log-probabilities.  Pure: the same
 * logits, settings, history and position give the same answer on every machine and thread. */
#ifndef CPU_SAMPLE_H
#define CPU_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kern.h"

/* What a slot keeps between batches.  Its lists are concatenated in order of arrival, each as
 * enum sr_list, n, n words. */
struct slot {
	struct sr_sampling s;
	int32_t   last;              /* the token drawn last */
	bool      counted;           /* a history was sent: keep it */
	int32_t   n_prompt, n_history;
	int32_t  *history;           /* [history_cap] ids, the prompt's first */
	int32_t  *table;             /* [n_groups][seq_blocks] */
	uint32_t *word;              /* [words] */
	int32_t   n_words;
	struct sr_pooling pooling;   /* of a pooled request */
	int32_t   second;            /* SR_CMD_POOL */
	float    *sum;               /* [d_model] of its tokens so far; with SR_POOL_FIRST, the first's */
	int32_t   from, to;          /* SR_CMD_STATE */
	int32_t   keep, keep_at;     /* SR_CMD_KEEP; keep -1: nothing */
};

#define SAMPLE_CHUNK 512
#define SAMPLE_GROUP 64

struct sample_scratch {          /* one per thread */
	float    *work;              /* [n_vocab rounded up to 4] */
	int32_t  *id;                /* [n_vocab] */
	uint32_t *count;             /* [n_vocab], all zero between calls */
	double   *chunk;             /* [n_vocab / SAMPLE_CHUNK + 1] */
	float    *group;             /* [n_vocab / SAMPLE_GROUP + 1] */
};

struct sample_query {
	const struct kern *k;
	const float *logits;         /* [vocab], raw but capped */
	int32_t vocab;
	const struct slot *slot;
	int32_t position;            /* of the token to be drawn */
	int32_t scored;              /* an id to be scored, or -1: draw one */
	int32_t n_top;
	bool    rank;                /* wanted */
	bool    guided;              /* if no id may be drawn, the result is SR_NO_ID */
	int32_t n_guess;             /* ids behind the slot's history that count as its end */
};

void sample(const struct sample_query *q, struct sample_scratch *scratch,
            struct sr_result *result, struct sr_top *top);

/* The same for a guided row: only ids whose bit in `mask` is set may be drawn.  All numbers are those after the
 * mask.  q->logits is `logits`, whose excluded elements may become minus infinity. */
void sample_masked(struct sample_query *q, float *logits, const uint32_t *mask, struct sample_scratch *scratch,
                   struct sr_result *result, struct sr_top *top);

/* Of a row with n guesses (sr_row.n_draft).  Before it is computed: they go behind the history, because penalties and
 * bad words of each draw look at those before it.  When all is drawn: the slot keeps the draws up to the first that
 * differs from its guess; those behind it become SR_UNDRAWN. */
void sample_guesses(struct slot *s, const int32_t *guess, int32_t n);
void sample_settle(struct slot *s, const int32_t *guess, int32_t n, struct sr_result *drawn);

/* [0, 1), 53 bits. */
double sample_uniform(uint64_t seed, int32_t position);

#endif
