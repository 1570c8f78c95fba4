/* encoder.h - a tiny encoder (tests/models/encoder.py): its files made, and the vectors of its recorded texts on a back
 * end held to those of transformers.  For tests of back ends; C11 and C++17. */
#ifndef TESTS_MODELS_ENCODER_H
#define TESTS_MODELS_ENCODER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "tests/rig/drive.h"

#define ENCODER_WIDTH 64
#define ENCODER_TEXTS 8
#define ENCODER_SEEN  16           /* recorded elements of a vector, the first ones */

struct encoder {
	char name[64], class_name[64], gguf[64];
	char hf[128], file[128];                     /* its directory, its GGUF */
	int32_t n;
	struct {
		int32_t n, ids[48];
		float want[2][ENCODER_SEEN];             /* of length 1: of the mean, of the first token */
	} text[ENCODER_TEXTS];
};

/* A vector of each text and each way, of length 1. */
struct encoder_vectors { float of[ENCODER_TEXTS][2][ENCODER_WIDTH]; };

/* names[*n], each to be freed, and behind them those of all recorded encoders, in order. */
char **encoder_append(char **names, int *n);
bool encoder_is(const char *name);

/* Read what is recorded and write the model's files below a new folder; the test fails if that does not succeed. */
struct encoder *encoder_make(const char *name);
void encoder_free(struct encoder *e);            /* and its files */

/* Limits for these models, of a back end that computes in `kv_type`. */
struct sr_limits encoder_limits(int32_t kv_type);

/* The vectors of all texts, each alone. */
void encoder_run(struct drive *d, const struct encoder *e, struct encoder_vectors *v);

/* The largest difference from a recorded element, over the largest recorded one. */
double encoder_differs(const struct encoder *e, const struct encoder_vectors *v);

/* Fails unless texts have these bits beside `others` others, too: at most 31. */
void encoder_same_bits(struct drive *d, const struct encoder *e, const struct encoder_vectors *v, int others);

#ifdef __cplusplus
}
#endif
#endif
