/* tiny.h - small models of random weights in memory, for tests: a struct sr_model of any shape and
 * type, a struct sr_source that reads it, and its weights once more as plain floats. */
#ifndef TINY_H
#define TINY_H

#include "kernels/model.h"

enum {                             /* what a model has beyond the plain llama */
	TINY_UNTIED = 1,           /* a head of its own */
	TINY_BIAS = 2,             /* on q, k, v */
	TINY_QK_NORM = 4,
	TINY_POST_NORM = 8,        /* before each residual add */
	TINY_MIXED = 16,           /* matrices of a layer in turn of all types */
};

struct tiny {
	struct sr_model  m;
	struct sr_source src;
	uint8_t *bytes;            /* all tensors, as stored */
	uint64_t size;
	uint64_t reads;            /* asked of src so far */
	int      fail_after;       /* reads that succeed before one fails with -EIO; 0 = all */
	struct { uint64_t tag; void *at; } done[64];
	int      n_done;
};

/* The sizes of a model that is quick to run: 2 layers, 4 query heads, 2 KV heads. */
struct sr_model tiny_shape(void);

/* Layer 0 of the shape looks back `window` positions (0 = all), the others look back at all: a second
 * kind of attention, otherwise as the first.  layers: [2], to be kept while the shape is used. */
void tiny_window(struct sr_model *shape, struct sr_layer *layers, int32_t window);

/* Weights of a type (of norms and biases: F32; of the embedding, where the type is for matrices
 * alone, F16), from a seed.  Aborts if memory is short. */
struct tiny *tiny_create(const struct sr_model *shape, int32_t type, unsigned flags, uint64_t seed);
void tiny_destroy(struct tiny *t);

/* [n][k] as floats, to be freed; `add` included. */
float *tiny_dense(const struct tiny *t, const struct sr_tensor *w);

#endif
