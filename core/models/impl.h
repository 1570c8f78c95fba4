/* models/impl.h - a model while it is being opened, for core/models alone:
 *
 *	open.c        from a path to a model; settings of either kind of file
 *	tensors.c     the table of tensors, their names and shapes; made-up models
 *	families.c    the families of models that run, and what only one of them has
 *	kinds.c       which layers have a window, or another rope: kinds of attention
 *	experts.c     experts: their settings, where each one's matrices lie
 *	delta.c       layers with a state: their settings and tensors
 *	gemma4.c      what only Gemma 4 has: heads of two sizes, inputs for each layer, experts beside
 *	latent.c      latent keys and values (DeepSeek): their sizes, where the matrices of each head lie
 *	from_gguf.c   settings and tensors of a GGUF file
 *	from_hf.c     settings and tensors of a Hugging Face directory
 *	hf_rope.c     its rope
 *	encoders.c    encoders: BERT, XLM-R, nomic, ModernBERT
 *	classifier.c  classifiers of whole prompts, of encoders and decoders
 *	quant.c       quantized tensors with separate scales: AWQ, GPTQ, FP8, ..
 *	kv_scales.c   the scales of an FP8 KV cache
 *	keys.c        which settings are read, and which are refused
 *	unknown.c     what is said of a family that is not known
 */
#ifndef MODEL_IMPL_H
#define MODEL_IMPL_H

#include <jansson.h>

#include "gguf_parts.h"
#include "model.h"
#include "safetensors.h"

#define LAYERS_MAX 4096

/* What a model of a known architecture may have in addition, or in another way; `needs` and `lacks` in the table
 * of tensors. */
enum {
	UNTIED = 1 << 0,
	QKV_BIAS = 1 << 1, O_BIAS = 1 << 2,
	FFN_BIAS = 1 << 3,             /* of gate, up and down */
	QK_NORM = 1 << 4,              /* of q and k, per head */
	ROW_NORM = 1 << 5,             /* with QK_NORM: over whole rows of q and k */
	POST_NORM = 1 << 6,            /* norms after each sublayer, and then .. */
	NO_PRE_NORM = 1 << 7,          /* .. none before */
	ONE_NORM = 1 << 8,             /* one norm for attention and feed-forward, which are parallel */
	LAYER_NORM = 1 << 9,           /* norms take the mean off */
	NORM_BIAS = 1 << 10,
	LESS_ONE = 1 << 11,            /* in safetensors weights of norms are stored less one */
	NO_GATE = 1 << 12,
	FUSED_QKV = 1 << 13, FUSED_UP = 1 << 14, /* q, k and v are one matrix; gate and up are */
	NO_O_BIAS = 1 << 15,           /* attention_bias is of q, k and v alone */
	GLM_NAMES = 1 << 16, HUNYUAN_NAMES = 1 << 17, /* Hugging Face names of norms differ */
	POST_IS_NORM2 = 1 << 18,       /* in a GGUF post_attention_norm is norm2 */
	MAY_FFN_BIAS = 1 << 19,        /* mlp_bias is read */
	MAY_DRAFT = 1 << 20,           /* layers behind the last may be there, which only draft */
	SINKS = 1 << 21,               /* a logit for each head that has no value */
	LLAMA4_NAMES = 1 << 22,        /* Hugging Face names of the feed-forward part differ */
	GEMMA4 = 1 << 26,              /* models/gemma4.c */
	O_GATE = 1 << 28,              /* a gate on what is attended: each head's behind its query, in q_proj */
	DELTA = 1 << 29,               /* some layers have a state instead of keys and values */
	LATENT = 1 << 23,              /* keys and values are latent: models/latent.c */
	Q_RANK = 1 << 24,              /* .. and queries come from fewer elements, too */
	NO_CHOICE = 1 << 25,           /* experts are chosen by their scores alone, other than the family's usually are */
};

/* Which layers look back at a window only, as transformers' classes have it: none; all, unless
 * sliding_window is null; if use_sliding_window is true, those that layer_types names, else those from
 * max_window_layers up; all but every n-th, unless sliding_window is null; those that rope turns, in chunks. */
enum windows { WINDOW_NEVER, WINDOW_ALL, WINDOW_ASKED, WINDOW_SOME, WINDOW_CHUNKS };

/* How a Hugging Face directory stores gate and up if all experts are in one tensor. */
enum layout {
	LAYOUT_HALVES,                 /* [experts][gate, up][inputs] */
	LAYOUT_TURNED,                 /* [experts][inputs][gate, up]; down likewise */
	LAYOUT_IN_TURN,                /* the same, but gate and up alternate; or in MXFP4 */
};

/* Names in a Hugging Face directory, after a layer's; NULL: there is no such tensor. */
struct expert_names {
	const char *router, *router_bias, *choice_bias;
	const char *gate, *up, *down;  /* of each expert: %d */
	enum layout layout;
	const char *gate_up, *all_down; /* of all experts */
	const char *shared;            /* what gate_proj.weight and so on come after */
	const char *mix;
};

/* What a family's experts are like. */
enum {
	X_OPTIONAL = 1 << 0,           /* a GGUF of its name may have experts; a directory has none */
	X_RENORM = 1 << 1,             /* weights are divided by their sum, unless a setting says otherwise */
	X_GGUF_RENORM = 1 << 8,        /* a GGUF does not have that setting */
	X_ALL = 1 << 9,                /* all layers have experts, so files may name no other width */
	X_METHOD = 1 << 10,            /* scoring_func and topk_method say how experts are chosen */
	X_SCALED = 1 << 2, X_GROUPS = 1 << 3, X_CHOICE = 1 << 4, X_BIASES = 1 << 5, X_SHARED = 1 << 6, X_BEFORE = 1 << 7,
};
struct model_experts { enum sr_score score; unsigned has; const struct expert_names *names; };
extern const struct model_experts experts_llama, experts_mixtral, experts_qwen2, experts_qwen3, experts_olmoe,
	experts_gpt_oss, experts_glm4, experts_minimax, experts_granite, experts_ernie, experts_llama4,
	experts_qwen3_next, experts_qwen3_5, experts_deepseek, experts_deepseek2, experts_mistral4,
	experts_gemma4;

struct opening;
struct model_family {
	const char *class;             /* config.json: architectures[0] */
	const char *type;              /* config.json: model_type */
	const char *also;              /* another one, or NULL */
	const char *gguf;              /* general.architecture; NULL: its GGUF files bear another family's name */
	unsigned has;                  /* UNTIED | .. */
	enum windows windows;          /* where an architecture's GGUF has windows: WINDOW_ALL, WINDOW_SOME */
	int32_t full_each;             /* WINDOW_SOME: every n-th layer attends to all, if no setting says otherwise */
	bool pairs;                    /* in a GGUF, rope turns i with i+1: struct sr_rope */
	bool hf_pairs;                 /* in a Hugging Face directory, too */
	enum sr_act act;               /* the only one, or the usual one */
	const char *act_key;           /* config.json: where it is named; NULL: hidden_act */
	float partial;                 /* part of a head that rope turns, unless a setting says; 0: always all */
	const char *defaults;          /* JSON: what transformers' class takes for keys that are missing */
	const struct model_experts *experts; /* NULL: none */
	int (*read)(struct opening *o); /* NULL: nothing else to read.  0 or -errno */
};
extern const struct model_family model_families[];
extern const int model_n_families;

/* By its class, or by its name in a GGUF.  NULL: it is not known. */
const struct model_family *model_family_find(const char *name, bool gguf);
/* The family whose model_type in config.json is this; NULL: it is not known. */
const struct model_family *model_family_of_type(const char *type);
/* The sentence that refuses one that is not known: `where` says how it is named there.  -ENOTSUP. */
int  model_unknown_family(struct opening *o, const char *where, const char *name);

struct opening {
	struct model *md;
	struct sr_model *m;            /* = &md->m */
	const char *path;              /* the file that messages name */
	const struct model_family *family;
	unsigned has;                  /* UNTIED | ..; what this file has of it */
	bool scores;                   /* its class has a classifier instead of a head: .. ForSequenceClassification */
	bool dummy;                    /* no weight files: MODEL_RANDOM, MODEL_ONES */
	uint64_t made;                 /* dummy: bytes of weights made up so far */
	struct gguf_parts parts;       /* GGUF */
	const struct gguf *g;          /* = parts.g */
	json_t *config;                /* Hugging Face; of a model with a tower, its text_config */
	json_t *outer;                 /* then config.json itself; else NULL */
	struct safetensors_set *st;
	const char *prefix, *head_prefix; /* of names in it: "model.", "" mostly */
	struct { const char *of; const json_t *obj; } rope[2]; /* config.json's, by kind of attention; NULL: none */
	struct { int32_t head_dim, n_kv_heads; } near; /* GEMMA4: in layers with a window; kind[0] has the others' */
	const char *asked[2][64];      /* keys that were read: of settings; of objects of rope */
	int n_asked[2];
	int32_t n_drafts;              /* layers behind the last, which only draft */
	int32_t n_left[2];             /* tensors left out: of towers, of layers that only draft */
	struct {
		int32_t type;          /* SR_AWQ4 .. of its matrices; SR_NONE: not quantized */
		int32_t group;         /* inputs per scale, 0 = all */
		int32_t group_n;       /* FP8 in blocks: outputs per scale */
		bool    zeros;         /* the files have zero points; else all are 8 */
	} quant;
	int32_t first_position;        /* of an encoder's table of positions: rows before it are left out */
	bool *taken;                   /* per entry of g->tensor or st->all: the model's table took it */
	char *err;
	size_t errlen;
};

#define MODEL_TYPES 29
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
	int32_t outputs, first;        /* as in struct sr_tensor, with step 1 */
	struct sr_extent data, scale, zero, index;
	int32_t group, group_n, scale_type; /* as in struct sr_tensor */
};

/* A setting's two names: after "llama." in a GGUF, and in config.json. */
struct setting { const char *gguf, *hf; };

/* Found settings of config.json, or of an object of rope in it; the key counts as read.  NULL: missing or null. */
const json_t *model_ask(struct opening *o, const json_t *obj, const char *key);
/* A key of config.json must be missing or have one of these values (separated by |), else -ENOTSUP. */
int  model_must(struct opening *o, const char *key, const char *list);
void model_note_asked(struct opening *o, bool of_rope, const char *key);
/* True or false; 1: it is missing and *out is unchanged. */
int  model_bool(struct opening *o, struct setting k, bool *out);

/* Returns rc. */
__attribute__((format(printf, 3, 4)))
int  model_fail(struct opening *o, int rc, const char *fmt, ...);
int  model_no_memory(struct opening *o);
/* The same, after the name of a setting that has a name in this kind of file. */
__attribute__((format(printf, 4, 5)))
int  model_wrong(struct opening *o, struct setting k, int rc, const char *fmt, ...);

/* 0; 1 it is missing and *out is unchanged; -EINVAL. */
int  model_int(struct opening *o, struct setting k, int64_t min, int64_t max, int32_t *out);
int  model_float(struct opening *o, struct setting k, double min, double max, float *out);
int  model_need(struct opening *o, struct setting k, int rc);      /* makes missing (1) an error */
int  model_sizes(struct opening *o);                           /* all but n_vocab; makes the layers */
void model_set_name(char *out, size_t n, const char *s, size_t len);
int  model_add_eos(struct opening *o, const char *where, int64_t id);
int  model_scale_context(struct opening *o, const struct sr_rope *r);
int  model_take_tensors(struct opening *o);
void model_free_tensors(struct model *md);                     /* their names, and where each of several lies */

/* Reads the settings of experts, if the family has any, and says which layers have them.  0 or -errno. */
int  model_experts(struct opening *o);
int  model_take_experts(struct opening *o, int32_t l);         /* finds those of layer l.  0 or -errno */
/* Tensor i of those that only a layer with experts has; NULL: there are no more. */
struct sr_tensor *model_expert_tensor(struct sr_layer *y, int i);

/* Reads the settings of layers with a state, and says which layers those are.  0 or -errno. */
int  model_delta(struct opening *o);
/* Finds the mixer's tensors of layer l, if it has a state, and the gate of its attention, if it has one. */
int  model_take_delta(struct opening *o, int32_t l);
/* Tensor i of those that only such layers have; NULL: there are no more. */
struct sr_tensor *model_delta_tensor(struct sr_layer *y, int i);
/* Cut rows `from` .. `from` + n - 1 out of a fused matrix of `whole`. */
int  model_cut_rows(struct opening *o, const char *name, struct found_tensor *f, uint64_t whole, uint64_t from,
                    uint64_t n);
/* gemma4.c: sizes of heads; all other settings; tensors.  0 or -errno */
int  model_gemma4_sizes(struct opening *o, struct sr_attn *kind);
int  model_gemma4_settings(struct opening *o);
int  model_take_gemma4(struct opening *o);
/* Tensor i of those that only Gemma 4 has, of layer l or the whole (-1); NULL: there are no more. */
struct sr_tensor *model_gemma4_tensor(struct sr_model *m, int32_t l, int i);
/* A tensor of layer l, or of the whole (-1), by its names after the layer's.  0 or -errno */
int  model_take_one(struct opening *o, struct sr_tensor *t, int32_t l, int32_t n, int32_t k, const char *gguf,
                    const char *hf);

/* latent.c: sizes of a kind with latent keys; the scale of yarn; the matrices of each head.  0 or -errno */
int  model_latent_sizes(struct opening *o, struct sr_attn *kind);
int  model_latent_settings(struct opening *o);
int  model_take_latent(struct opening *o, int32_t l);
struct sr_tensor *model_latent_tensor(struct sr_layer *y, int i); /* as model_expert_tensor() */

int  model_open_gguf(struct opening *o);
int  model_find_gguf(struct opening *o, const char *name, struct found_tensor *f); /* 0, 1 missing */
int  model_open_hf(struct opening *o, const char *dir);
int  model_hf_ropes(struct opening *o);        /* of kind 0, and of kind 1 if it has its own */
/* The magnitude of yarn: it grows with the logarithm of the factor. */
float model_mscale(float factor, float by);

/* What is left when kinds are known: family->read, checks of settings that nobody read. */
int  model_family_settings(struct opening *o);
int  model_find_hf(struct opening *o, const char *name, struct found_tensor *f);   /* 0, 1 missing, -errno */
/* NULL: missing.  A tensor that is found counts as taken. */
const struct safetensor *model_hf_tensor(struct opening *o, const char *name, int32_t *file);

/* encoders.c: its family; NULL: the model is no encoder. */
const struct encoder *model_encoder(const struct opening *o);
int  model_encoder_settings(struct opening *o);
int  model_encoder_tensors(struct opening *o);

/* Where a model has its classifier; struct sr_classifier. */
enum model_head { HEAD_NONE, HEAD_BERT, HEAD_ROBERTA, HEAD_MODERN, HEAD_SCORE };

/* classifier.c: how many labels; then their tensors.  0 or -errno */
int  model_classifier_settings(struct opening *o, enum model_head head);
int  model_take_classifier(struct opening *o, enum model_head head);
struct sr_tensor *model_classifier_tensor(struct sr_model *m, int i); /* as model_expert_tensor() */

/* Refuse settings with which something else would be computed and that nobody has asked for: 0, or -ENOTSUP and
 * the setting's name. */
int  model_check_config(struct opening *o);                    /* config.json, with its objects of rope */
int  model_check_quant(struct opening *o, const json_t *obj);
int  model_check_gguf(struct opening *o);

/* Reads quantization_config.  0 or -errno. */
int  model_quant_settings(struct opening *o);
/* Finds the tensors that make up the matrix `name`.  0, 1 missing, -errno. */
int  model_find_quantized(struct opening *o, const char *name, struct found_tensor *f);
/* Finds the scales of an FP8 matrix; f has its data and shape.  0, -errno. */
int  model_find_f8(struct opening *o, const char *name, struct found_tensor *f);
/* The rest of a matrix of NVFP4, whose data is tensor t of `file`, in a directory or a GGUF. */
int  model_find_nvfp4(struct opening *o, const char *name, const struct safetensor *t, int32_t file, struct found_tensor *f);
int  model_find_nvfp4_gguf(struct opening *o, const char *name, struct found_tensor *f);

/* Reads layer l's scales of an FP8 KV cache, if there are any.  0 or -errno. */
int  model_kv_scales(struct opening *o, int32_t l);
int  model_kv_scheme(struct opening *o, const json_t *scheme);

#endif
