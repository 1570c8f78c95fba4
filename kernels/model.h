/* model.h - a model as read from its files and checked: shapes, and where bytes lie.
 *
 * core/models/open.c fills it; nothing is resident yet.  A matrix is [n][k]: n outputs, k
 * inputs.  A fused matrix of a checkpoint (qkv, gate_up) becomes several tensors with
 * extents into it.  Sources of formulas: the papers of YaRN (arXiv 2309.00071) and the
 * reference code of each architecture.
 */
#ifndef SR_MODEL_H
#define SR_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sr_type {             /* as stored; what a back end holds is its own affair */
	SR_NONE,               /* no such tensor in this model */
	SR_F32, SR_F16, SR_BF16,
	SR_F8,                 /* e4m3; scale f32/bf16 [n/group_n][k/group] */
	SR_Q8_0, SR_Q4_0, SR_Q4_1, SR_Q5_0, SR_Q5_1,     /* GGUF, 32 weights to a scale */
	SR_Q2_K, SR_Q3_K, SR_Q4_K, SR_Q5_K, SR_Q6_K,     /* GGUF, 256 to a super-block */
	SR_AWQ4,               /* data [k][n/8], zero [k/group][n/8], scale [k/group][n] */
	SR_GPTQ4,              /* data [k/8][n], zero - 1, index [k] with act-order */
	SR_GPTQ4_V2,           /* the same, zero as it is */
	SR_CT4,                /* compressed-tensors: data [n][k/8], scale [n][k/group] */
	SR_IQ4_NL, SR_IQ4_XS,  /* GGUF, 4 bits that name one of 16 uneven steps; 32, 256 to a block */
};

struct sr_extent { uint64_t offset, bytes; int32_t file; };

struct sr_tensor {
	const char *name;      /* in its file, for messages */
	int32_t type;          /* enum sr_type */
	int32_t n, k;          /* a vector has n == 1 */
	int32_t count;         /* matrices [n][k] one after another; 1 */
	int32_t group;         /* weights per scale along k; 0 = all, or fixed by the type */
	int32_t group_n;       /* rows per scale; 0 = all (F8 per tensor), 1, 128 */
	int32_t scale_type;    /* enum sr_type of scale */
	float   add;           /* to each element at load: 1 for Gemma's norms in safetensors */
	struct sr_extent data, scale, zero, index; /* bytes == 0: none */
};

/* Reads for open(): many at a time into buffers of the back end, in any order. */
struct sr_source {
	void    *ctx;
	uint32_t slack;        /* bytes a buffer must be longer than what it is to hold */
	/* All buffers will lie in here (so that they can be registered).  0 or -errno. */
	int (*arena)(void *ctx, void *base, size_t bytes);
	/* Begin reading; -EAGAIN: wait() first. */
	int (*read)(void *ctx, const struct sr_extent *e, uint64_t from, size_t n,
	            void *buf, uint64_t tag);
	/* Sleep until one is done: its tag, and where in buf its first byte lies.  -EIO. */
	int (*wait)(void *ctx, uint64_t *tag, void **at);
};

enum sr_rope_kind { SR_ROPE_PLAIN, SR_ROPE_LINEAR, SR_ROPE_LLAMA3, SR_ROPE_YARN };
struct sr_rope {
	int32_t kind;          /* enum sr_rope_kind */
	int32_t dims;          /* of a head that are rotated, even */
	int32_t pairs;         /* 1: i with i+1 (GGUF's llama), 0: i with i+dims/2 */
	int32_t context;       /* the model was trained for before scaling */
	float   theta, factor;
	float   low, high;     /* llama3: low/high_freq_factor; yarn: beta_slow/beta_fast */
	float   magnitude;     /* yarn: on cos and sin; else 1 */
	int32_t exact;         /* yarn: 1: where the ramp begins and ends is not rounded to whole pairs */
};

enum sr_act { SR_SILU, SR_GELU_TANH };

#define SR_KINDS 4

/* A kind of attention.  Layers of one kind have the same sizes and look back alike.  Most models have
 * one kind; models with windows in some layers have two. */
struct sr_attn {
	int32_t n_heads;       /* query heads, a multiple of n_kv_heads */
	int32_t n_kv_heads;
	int32_t head_dim;      /* width of a head: of queries, keys and values */
	int32_t window;        /* attends to the last `window` positions; 0 = all */
	float   scale;         /* on q.k, 1/sqrt(head_dim) mostly */
	float   cap;           /* of scores: cap * tanh(x / cap); 0 = none */
	struct sr_rope rope;
};

enum sr_mixer { SR_ATTEND };           /* attention over the KV cache */
enum sr_ffn { SR_GATED };              /* down(act(gate) * up) */

/* A layer is a norm, a mixer, a norm and a feed-forward part. */
struct sr_layer {
	int32_t mixer;         /* enum sr_mixer */
	int32_t kind;          /* of attention: which of sr_model.kind */
	int32_t ffn;           /* enum sr_ffn */
	int32_t d_ff;          /* width of the feed-forward part */
	struct sr_tensor norm1, q, k, v, o, norm2, gate, up, down;
	struct sr_tensor q_bias, k_bias, v_bias, o_bias; /* qwen2: q, k, v */
	struct sr_tensor q_norm, k_norm;                 /* [1][head_dim], qwen3, gemma3 */
	struct sr_tensor post1, post2;                   /* gemma: before the residual add */
	float   k_scale, v_scale; /* of keys, values in an FP8 cache: what is stored times it; 0 = 1 */
};

struct sr_model {
	char    name[64], arch[32];
	int32_t n_layers;
	int32_t d_model;       /* width of the residual stream */
	int32_t d_ff;          /* of the layer whose feed-forward part is widest */
	int32_t n_vocab;
	int32_t context;
	int32_t act;           /* enum sr_act */
	float   eps;
	float   embed_scale;   /* gemma: sqrt(d_model); else 1 */
	float   logit_cap;     /* cap * tanh(x / cap); 0 = none */
	int32_t n_kinds;       /* 1 to SR_KINDS */
	struct sr_attn kind[SR_KINDS];
	struct sr_tensor embed, norm, head;  /* head SR_NONE: tied to embed */
	struct sr_layer *layer;              /* [n_layers] */
};

static inline const struct sr_attn *kind_of(const struct sr_model *m, int32_t layer)
{
	return &m->kind[m->layer[layer].kind];
}

/* freq[dims/2]: radians per position.  Once for all back ends. */
void sr_rope_freq(const struct sr_rope *r, float *freq);

/* The first kind that rotates as kind i does, so that their angles are computed once. */
int32_t sr_rope_like(const struct sr_model *m, int32_t i);

#ifdef __cplusplus
}
#endif
#endif
