/* pooling.h - what a model's files say of how its prompts become vectors: sentence-transformers' modules.json and
 * the settings that it names in a Hugging Face directory, pooling_type in a GGUF; and of a classifier, what makes
 * scores of its logits.  Daemon and adapter both read it. */
#ifndef CORE_POOLING_H
#define CORE_POOLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shmring/slipring-sampling.h"

/* What makes scores of a classifier's logits, by vLLM's rules: what the files say; else of one label a sigmoid, of
 * several their softmax. */
enum pooling_act { POOLING_SOFTMAX, POOLING_SIGMOID, POOLING_TANH, POOLING_IDENTITY };

struct pooling {
	int32_t kind;           /* enum sr_pool; 0: the files say nothing, so it is a model that generates */
	bool    rank;           /* kind is LOGITS: a reranker that answers with "yes" or "no" */
	bool    unit;           /* vectors have length 1 */
	int32_t max_len;        /* longest prompt that it was trained for; 0: its context */
	int32_t n_labels;       /* of a classifier: then a vector is the logits of its labels; 0: it has none */
	enum pooling_act act;   /* with n_labels */
};

/* path: as in struct located.  0, -ENOTSUP (a module that is not supported) or -errno, and one sentence. */
int pooling_read(struct pooling *out, const char *path, bool gguf, char *err, size_t errlen);

/* The names of a classifier's labels, by number: a new list of strings and nulls.  0 or -errno and one sentence. */
struct json_t;
int pooling_labels(struct json_t **out, const char *path, bool gguf, char *err, size_t errlen);

/* --pooler-config, vLLM's JSON object: what it says replaces what *p has.  0, or -EINVAL, -ENOTSUP and one sentence
 * that names the member. */
int pooling_config(struct pooling *p, const char *text, char *err, size_t errlen);

#endif
