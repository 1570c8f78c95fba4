/* pooling.h - what a model's files say of how its prompts become vectors: sentence-transformers' modules.json and
 * the settings that it names in a Hugging Face directory, pooling_type in a GGUF.  Daemon and adapter both read
 * it. */
#ifndef CORE_POOLING_H
#define CORE_POOLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shmring/slipring-sampling.h"

struct pooling {
	int32_t kind;           /* enum sr_pool; 0: the files say nothing, so it is a model that generates */
	bool    rank;           /* kind is LOGITS: a reranker that answers with "yes" or "no" */
	bool    unit;           /* vectors have length 1 */
	int32_t max_len;        /* longest prompt that it was trained for; 0: its context */
};

/* path: as in struct located.  0, -ENOTSUP (a module that is not supported) or -errno, and one sentence. */
int pooling_read(struct pooling *out, const char *path, bool gguf, char *err, size_t errlen);

/* --pooler-config, vLLM's JSON object: what it says replaces what *p has.  0, or -EINVAL, -ENOTSUP and one sentence
 * that names the member. */
int pooling_config(struct pooling *p, const char *text, char *err, size_t errlen);

#endif
