/* pooled.h - checks a JSON request for vectors, scores or labels: /v1/embeddings, /score, /rerank and their
 * other paths, /classify, /pooling.  As openai.h: no I/O, any thread.
 */
#ifndef POOLED_H
#define POOLED_H

#include <stdbool.h>

#include "openai.h"

enum pooled_kind { POOLED_EMBED, POOLED_SCORE, POOLED_RERANK, POOLED_CLASSIFY, POOLED_PLAIN };

/* How the served model makes vectors and scores. */
struct pooled_model {
	int32_t kind;                 /* enum sr_pool of its vectors */
	bool    unit;                 /* vectors have length 1 */
	int64_t width;                /* elements of a whole vector; 0 = not known yet */
	int64_t max_len;              /* longest input; 0 = the context */
	bool    reranks;              /* scores are the logits of yes and no behind rerank_template() */
	bool    instructs;            /* queries of scores get Qwen3-Embedding's instruction */
	int32_t yes, no;              /* with reranks */
	int32_t n_labels;             /* its vectors are logits of labels; 0: they are not */
	int32_t act;                  /* enum pooling_act, with n_labels */
	const json_t *labels;         /* their names, or nulls */
};

struct pooled_ask {
	struct ask ask;               /* its prompts: the inputs; or queries, then documents; or pairs */
	bool    base64, unit, activation;
	int64_t width;                /* elements wanted; 0 = all */
	int     n_queries, n_texts;   /* SCORE, RERANK: query i % n_queries belongs to document i of n_texts */
	int64_t top_n;                /* RERANK: results wanted; 0 = all */
	json_t *documents;            /* RERANK: they come back */
};

/* 0, or -1 and *p.  The caller calls ask_free(&a->ask) in either case. */
int pooled_parse(struct pooled_ask *a, enum pooled_kind kind, const char *body, size_t n,
                 const struct ask_limits *l, const struct pooled_model *m, struct problem *p);

#endif
