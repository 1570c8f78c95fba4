/* family.h - a recorded tiny model (tests/models/tiny.py): its files made, opened and run on a back end, and its
 * log-probabilities held to the recorded ones.  For tests of back ends; C11 and C++17.
 */
#ifndef TESTS_MODELS_FAMILY_H
#define TESTS_MODELS_FAMILY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "tests/rig/drive.h"

/* Of the largest logit; transformers itself is within 1.2e-5 of float64. */
#define FAMILY_BOUND  2e-5
#define FAMILY_TOKENS 128          /* most of a prompt */
#define FAMILY_ROWS   8            /* recorded rows of logits of a prompt */
#define FAMILY_LAYERS 8

struct family {
	char name[64], gguf[64], class_name[64];   /* gguf "": no GGUF has such a model */
	char hf[128], file[128];                   /* its directory; its GGUF, "" if it is not made */
	char hf5[128];                             /* the directory with settings as transformers 5 writes them; or "" */
	int32_t vocab;
	double bound;                              /* on the CPU, of the largest logit */
	int32_t permuted;                          /* 1: its GGUF has the rows of q and k, or value heads, in another order */
	struct {
		int32_t n, ids[FAMILY_TOKENS + 1];     /* the last id is only scored */
		int32_t n_rows, at[FAMILY_ROWS];
		float  *row[FAMILY_ROWS];              /* [vocab] logits */
		int32_t n_chosen;                      /* layers with experts */
		uint8_t *chosen[FAMILY_LAYERS];        /* [n][top] experts of each token, in ascending order */
	} prompt[2];
	int32_t top;                               /* experts of a token; 0: there are none */
};

/* How a run differs from what is recorded. */
struct family_result {
	double  worst;             /* largest difference of a log-probability, over the largest recorded logit */
	int32_t choices, others;   /* how often experts were chosen for a token in a layer; how often not those recorded */
};

/* The names of all recorded models, in order; [n_out], each to be freed. */
char **family_names(int *n_out);

/* Read what is recorded and write the model's files below a new folder; the test fails if that does not
 * succeed. */
struct family *family_make(const char *name);
void family_free(struct family *f);       /* and its files */

/* Open the model of `path` on a back end.  0, or -errno and why in d->err. */
int family_open(struct drive *d, const struct sr_backend_ops *ops, const char *path, int32_t kv_type,
                int32_t threads);

/* The same with limits of one's own. */
int family_open_with(struct drive *d, const struct sr_backend_ops *ops, const char *path, struct sr_limits lim);

/* Run both prompts, `most` tokens of each. */
struct family_result family_run(struct drive *d, const struct family *f, int32_t most);

/* The results of n tokens of prompt 1, one after the other; the rest is 0. */
struct family_answer { struct sr_result result[FAMILY_TOKENS]; };
void family_answer(struct drive *d, const struct family *f, int n, struct family_answer *a);

/* Fails unless these n tokens (more than 16) give the same bits alone, in pieces, beside 31 other sequences, and
 * behind a shared prefix. */
void family_same_bits(struct drive *d, const struct family *f, int n);

/* For a test that wraps route() of its back end: the experts that a layer of family_run() chose for T tokens,
 * [T][top]. */
void family_saw(const int32_t *id, int32_t T, int32_t top);

/* The same layer: where `id` are not the recorded experts, move the router's logits [T][n] by `by` towards the recorded
 * ones: up for those not chosen, down for those chosen instead.  Returns how many tokens have others. */
int32_t family_nudge(const int32_t *id, float *logit, int32_t n, float by);

#ifdef __cplusplus
}
#endif
#endif
