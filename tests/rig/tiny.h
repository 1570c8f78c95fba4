/* tiny.h - small models of random weights in memory, for tests: a struct sr_model of any shape and
 * type, a struct sr_source that reads it, and the same weights as plain floats. */
#ifndef TINY_H
#define TINY_H

#include "kernels/model.h"

enum {                             /* what a model has beyond a plain Llama */
	TINY_UNTIED = 1,           /* a head of its own */
	TINY_BIAS = 2,             /* on q, k, v */
	TINY_QK_NORM = 4,
	TINY_POST_NORM = 8,        /* before each residual add */
	TINY_MIXED = 16,           /* a layer's matrices have different types, in turn */
	TINY_CHOICE_BIAS = 32,     /* with experts: on the scores that they are chosen by */
	TINY_EXPERT_BIAS = 64,     /* with experts: on all products of the router and of experts */
	TINY_SHARED_MIX = 128,     /* the shared expert has a weight of its own */
	TINY_EACH = 256,           /* experts lie apart, the last one first */
};

struct tiny {
	struct sr_model  m;
	struct sr_source src;
	uint8_t *bytes;            /* all tensors, as stored */
	uint64_t size;
	uint64_t reads;            /* number of reads of src so far */
	int      fail_after;       /* reads that succeed before one fails with -EIO; 0 = all */
	struct { uint64_t tag; void *at; } done[64];
	int      n_done;
	struct sr_stored *each[64];/* of tensors of experts */
	int      n_each;
};

/* The sizes of a model that is quick to run: 2 layers, 4 query heads, 2 KV heads. */
struct sr_model tiny_shape(void);

/* Layer 0 attends to the last `window` positions (0 = all), the others to all: a second kind of
 * attention, otherwise like the first.  layers: [2]; the caller keeps it while the shape is used. */
void tiny_window(struct sr_model *shape, struct sr_layer *layers, int32_t window);

/* Random weights of a type, from a seed.  With shape->experts all layers have experts.  Norms and biases are F32; the embedding is F16 where the type is
 * for matrices alone.  A layer whose d_ff is 0 has the shape's.  Aborts if memory is short. */
struct tiny *tiny_create(const struct sr_model *shape, int32_t type, unsigned flags, uint64_t seed);
void tiny_destroy(struct tiny *t);

/* One more tensor of random weights of about `size`; of vectors (F32) plus `around`. */
void tiny_add(struct tiny *t, struct sr_tensor *w, const char *name, int32_t type, int32_t n, int32_t k,
              float around, float size, uint64_t *s);

/* Part e of a tensor of several. */
struct sr_tensor tiny_part(const struct sr_tensor *w, int32_t e);

/* A tensor of one matrix as floats [n][k], with `add` added; the caller frees it. */
float *tiny_dense(const struct tiny *t, const struct sr_tensor *w);

#endif
