/* model.h - opens a model on disk, checks every tensor against its shape, and describes it to
 * the back ends (struct sr_model).  Weights are not read here: load.h does that.
 */
#ifndef CORE_MODEL_H
#define CORE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/models/pooling.h"
#include "kernels/model.h"

#define MODEL_EOS_MAX 8

struct model {
	struct sr_model m;            /* shapes, tensors, extents by file number */
	char  **file;                 /* [n_files] paths of the files that extents name */
	int32_t n_files;
	char   *names;                /* of all tensors, if they are in one piece; else NULL, and each is its own */
	int32_t eos[MODEL_EOS_MAX];   /* ids that end an answer: tokenizer.ggml.eos_token_id and
	                                 eot, or generation_config.json, else config.json */
	int32_t n_eos;
	uint64_t weight_bytes;        /* as stored */
	char    stored[64];           /* "Q4_1 (210), Q8_0 (1), F32 (61)": types and counts */
	char    format[16];           /* "GGUF", "safetensors", "dummy" */
	struct pooling pooling;       /* how its prompts become vectors */
	char    left_out[100];        /* tensors that are not computed: "437 tensors of towers", or "" */
	float  *divisor[2];           /* of rope, [dims/2]: [0] up to its context, [1] beyond; NULL: none */
	bool    kv_f8;                /* its files ask for an FP8 KV cache */
	char    quantization[24];     /* as --quantization names it: "gguf", "awq", "gptq",
	                                 "compressed-tensors"; "" = none */
};

/* path: a GGUF file or a Hugging Face directory.  0, or -errno and one sentence that names
 * file, field and offset.  -ENOTSUP: an architecture or type that is not supported; the sentence names
 * it and lists those that are. */
int  model_open(struct model **out, const char *path, char *err, size_t errlen);
void model_close(struct model *m);

/* Call it before a back end opens the model, with the longest sequence that will be served: some models (longrope)
 * turn positions otherwise if it is longer than what they were trained for first.  It never changes after. */
void model_serve(struct model *m, int32_t context);

/* --load-format dummy: the shape of the model at path with random bf16 weights (of a directory only
 * the settings are read).  Extents lie in the files MODEL_RANDOM and MODEL_ONES, which load.h makes
 * up. */
enum { MODEL_RANDOM = -1, MODEL_ONES = -2 };
int  model_open_dummy(struct model **out, const char *path, char *err, size_t errlen);

/* The class that config.json names for a GGUF's architecture: "LlamaForCausalLM" for "llama".  NULL: unknown. */
const char *model_class_of(const char *arch);

/* The name of an enum sr_type: "Q4_1", "BF16", .. */
const char *model_type_name(int32_t type);

#endif
