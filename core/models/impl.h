/* models/impl.h - a model while it is being opened, for core/models alone:
 *
 *	open.c        the table of tensors, their names and shapes; made-up models
 *	families.c    the families of models that run
 *	from_gguf.c   settings and tensors of a GGUF file
 *	from_hf.c     settings and tensors of a Hugging Face directory
 *	quant.c       quantized tensors with separate scales: AWQ, GPTQ, FP8, ..
 *	kv_scales.c   the scales of an FP8 KV cache
 *	keys.c        which settings are read, and which are refused
 */
#ifndef MODEL_IMPL_H
#define MODEL_IMPL_H

#include <jansson.h>

#include "gguf_parts.h"
#include "model.h"
#include "safetensors.h"

#define LAYERS_MAX 4096

/* What a model of a known architecture may have in addition; `needs` in the table. */
enum { UNTIED = 1, QKV_BIAS = 2, O_BIAS = 4, QK_NORM = 8 };

/* Which layers look back at a window only, as transformers' classes have it: none; all, unless
 * sliding_window is null; if use_sliding_window is true, those that layer_types names, else those from
 * max_window_layers up. */
enum windows { WINDOW_NEVER, WINDOW_ALL, WINDOW_ASKED };

#define MODEL_FAMILIES 4
struct model_family {
	const char *class;             /* config.json: architectures[0] */
	const char *type;              /* config.json: model_type */
	const char *gguf;              /* general.architecture; NULL: its GGUF files bear another family's name */
	unsigned has;                  /* UNTIED | .. */
	enum windows windows;          /* in a Hugging Face directory */
	bool pairs;                    /* in a GGUF, rope turns i with i+1: struct sr_rope */
};
extern const struct model_family model_families[MODEL_FAMILIES];

/* By its class, or by its name in a GGUF.  NULL: it is not known. */
const struct model_family *model_family_find(const char *name, bool gguf);
/* The names of all that are known, for a sentence; returns buf. */
const char *model_family_names(char *buf, size_t size, bool gguf);

struct opening {
	struct model *md;
	struct sr_model *m;            /* = &md->m */
	const char *path;              /* the file that messages name */
	const struct model_family *family;
	unsigned has;                  /* UNTIED | ..; what this file has of it */
	bool dummy;                    /* no weight files: MODEL_RANDOM, MODEL_ONES */
	uint64_t made;                 /* dummy: bytes of weights made up so far */
	struct gguf_parts parts;       /* GGUF */
	const struct gguf *g;          /* = parts.g */
	json_t *config;                /* Hugging Face */
	struct safetensors_set *st;
	int32_t window, window_from;   /* positions a layer looks back, 0 = all; first layer with a window */
	const json_t *layer_types;     /* if not NULL: the list of layers that have the window */
	struct {
		int32_t type;          /* SR_AWQ4 .. of its matrices; SR_NONE: not quantized */
		int32_t group;         /* inputs per scale, 0 = all */
		int32_t group_n;       /* FP8 in blocks: outputs per scale */
		bool    zeros;         /* the files have zero points; else all are 8 */
	} quant;
	bool *taken;                   /* per entry of g->tensor or st->all: the model's table took it */
	char *err;
	size_t errlen;
};

#define MODEL_TYPES 20
struct tensor_type {
	int32_t type;                  /* enum sr_type */
	const char *name;
	int32_t gguf;                  /* ggml's number; -1 = none */
	const char *hf;                /* dtype in safetensors; NULL = none */
};
extern const struct tensor_type model_types[MODEL_TYPES];

/* A tensor as it is in its file. */
struct found_tensor {
	int32_t type;                  /* enum sr_type; SR_NONE: unknown */
	const char *type_name;
	uint32_t n_dims;
	uint64_t dim[4];               /* outermost first */
	struct sr_extent data, scale, zero, index;
	int32_t group, group_n, scale_type; /* as in struct sr_tensor */
};

/* A setting's two names: after "llama." in a GGUF, and in config.json. */
struct setting { const char *gguf, *hf; };

/* Returns rc. */
__attribute__((format(printf, 3, 4)))
int  model_fail(struct opening *o, int rc, const char *fmt, ...);
int  model_no_memory(struct opening *o);

/* 0; 1 it is missing and *out is unchanged; -EINVAL. */
int  model_int(struct opening *o, struct setting k, int64_t min, int64_t max, int32_t *out);
int  model_float(struct opening *o, struct setting k, double min, double max, float *out);
int  model_need(struct opening *o, struct setting k, int rc);      /* makes missing (1) an error */
int  model_sizes(struct opening *o);                           /* all but n_vocab */
void model_set_name(char *out, size_t n, const char *s, size_t len);
int  model_add_eos(struct opening *o, const char *where, int64_t id);
int  model_scale_context(struct opening *o, const struct sr_rope *r);
int  model_take_tensors(struct opening *o);

int  model_open_gguf(struct opening *o);
int  model_find_gguf(struct opening *o, const char *name, struct found_tensor *f); /* 0, 1 missing */
int  model_open_hf(struct opening *o, const char *dir);
/* Some or all layers have the window: as the one kind of attention, or as a second one. */
void model_window_kinds(struct opening *o);
int  model_find_hf(struct opening *o, const char *name, struct found_tensor *f);   /* 0, 1 missing, -errno */
/* NULL: missing.  A tensor that is found counts as taken. */
const struct safetensor *model_hf_tensor(struct opening *o, const char *name, int32_t *file);

/* Refuse settings with which something else would be computed: 0, or -ENOTSUP and the setting's name. */
int  model_check_config(struct opening *o);                    /* config.json, without its objects */
int  model_check_rope(struct opening *o, const char *of, const json_t *obj);
int  model_check_quant(struct opening *o, const json_t *obj);
int  model_check_gguf(struct opening *o);

/* Reads quantization_config.  0 or -errno. */
int  model_quant_settings(struct opening *o);
/* Finds the tensors that make up the matrix `name`.  0, 1 missing, -errno. */
int  model_find_quantized(struct opening *o, const char *name, struct found_tensor *f);
/* Finds the scales of an FP8 matrix; f has its data and shape.  0, -errno. */
int  model_find_f8(struct opening *o, const char *name, struct found_tensor *f);

/* Reads layer l's scales of an FP8 KV cache, if there are any.  0 or -errno. */
int  model_kv_scales(struct opening *o, int32_t l);
int  model_kv_scheme(struct opening *o, const json_t *scheme);

#endif
