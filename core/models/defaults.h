/* defaults.h - how tokens are drawn for a request that does not say.  A model's files, --generation-config and
 * --override-generation-config decide it, here and nowhere else: the daemon tells it to clients of the rings
 * (struct sr_model_info), slipring-http uses it for what a request leaves out, and slipring show prints it. */
#ifndef CORE_DEFAULTS_H
#define CORE_DEFAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shmring/slipring-sampling.h"

struct defaults {
	double  temperature;    /* 1 leaves the model's probabilities, 0 = greedy */
	double  top_p, min_p, repetition; /* 1, 0, 1 = off */
	int64_t top_k;          /* 0 = off */
	int64_t max_tokens;     /* of an answer; -1 = as many as fit */
	int64_t max_tokens_cap; /* the most that a request may ask for; -1 = no such limit */
	const char *from;       /* where they come from, in a few words */
};

/* path: as in struct located.  config: auto or NULL, vllm, or a folder with generation_config.json.  over: a JSON
 * object whose members count more than the files', or NULL.
 *
 * auto: of a directory its generation_config.json, by vLLM's rules; of a GGUF file its general.sampling keys, and
 * llama.cpp's defaults for what they leave out.  0, or -errno and one sentence. */
int defaults_read(struct defaults *out, const char *path, bool gguf, const char *config, const char *over, char *err,
                  size_t errlen);

/* The same as a request has it. */
void defaults_sampling(const struct defaults *d, struct sr_sampling *out);

/* In words: "temperature 0.8, top_k 40, top_p 0.95, min_p 0.05". */
void defaults_say(const struct defaults *d, char *out, size_t n);

#endif
