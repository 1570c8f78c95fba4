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
	SR_I8,                 /* data [n][k], scale f32/bf16/f16: [n], or one (group_n 0) */
	SR_MXFP4,              /* e2m1, 32 to an e8m0 scale.  GGUF: 17 bytes a block; with scale.bytes, as the
	                        * safetensors of gpt-oss have it: data [n][k/32][16], scale u8 [n][k/32] */
	SR_IQ2_XXS, SR_IQ2_XS, SR_IQ2_S, SR_IQ3_XXS, SR_IQ3_S, /* GGUF, sets of weights by number; 256 to a block */
	SR_NVFP4,              /* e2m1, 16 to a scale in e4m3, and `zero` an f32 for all, by which they are multiplied.
	                        * GGUF: 36 bytes for 64; with scale.bytes: data [n][k/2], scale [n][k/16] */
	SR_NVFP4_CT,           /* the same of compressed-tensors, divided by `zero` */
};

struct sr_extent { uint64_t offset, bytes; int32_t file; };

struct sr_stored { struct sr_extent data, scale, zero, index; }; /* bytes == 0: none */

/* One matrix or vector; or one for each expert of a layer, all of one shape. */
struct sr_tensor {
	const char *name;      /* in its file, for messages */
	int32_t type;          /* enum sr_type */
	int32_t n, k;          /* a vector has n == 1 */
	int32_t count;         /* 1; or the number of experts, one after another unless `each` says otherwise */
	int32_t outputs;       /* 0: its n outputs are stored.  Else this many, more than its own: */
	int32_t first, step;   /* .. output i is number first + i * step (gate and up in one, in turn or not) */
	int32_t run;           /* above 1: outputs lie in runs of this many, and step is from run to run */
	int32_t transposed;    /* 1: stored as [k][outputs] */
	int32_t group;         /* weights per scale along k; 0 = all, or fixed by the type */
	int32_t group_n;       /* rows per scale; 0 = all (F8 per tensor), 1, 128 */
	int32_t scale_type;    /* enum sr_type of scale */
	float   add;           /* to each element at load: 1 for Gemma's norms in safetensors */
	float   mul;           /* then each element times it; 0 = 1.  Vectors only */
	int32_t neg_exp;       /* 1: then -exp of each element.  Vectors only */
	struct sr_extent data, scale, zero, index; /* bytes == 0: none */
	const struct sr_stored *each; /* [count], owned by the model: where each expert's lies; or NULL */
	int32_t whole;         /* of a rank's part (share.h): outputs on all ranks together; 0: n */
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

enum sr_rope_kind {
	SR_ROPE_PLAIN, SR_ROPE_LINEAR, SR_ROPE_LLAMA3, SR_ROPE_YARN,
	SR_ROPE_FACTORS,       /* each frequency divided by its own factor */
	SR_ROPE_NONE,          /* no rotation: dims is 0 */
};
struct sr_rope {               /* has no padding: sr_rope_like() compares bytes */
	const float *divisor;  /* FACTORS: [dims/2], owned by the model; else NULL */
	int32_t kind;          /* enum sr_rope_kind */
	int32_t dims;          /* of a head that are rotated, even; the first of them */
	int32_t pairs;         /* 1: i with i+1 (GGUF's llama), 0: i with i+dims/2 */
	int32_t context;       /* the model was trained for before scaling */
	float   theta, factor;
	float   low, high;     /* llama3: low/high_freq_factor; yarn: beta_slow/beta_fast */
	float   magnitude;     /* yarn, factors: on cos and sin; else 1 */
	int32_t exact;         /* yarn: 1: where the ramp begins and ends is not rounded to whole pairs */
};

/* With a gate g and an input u: act(g) * u; without a gate (SR_PLAIN): act(u).  OAI: with c the limit,
 * g = min(g, c), u = clamp(u, -c, c), (u + 1) * g * sigmoid(1.702 g). */
enum sr_act { SR_SILU, SR_GELU_TANH, SR_GELU_ERF, SR_RELU2, SR_OAI };

/* RMS: x / sqrt(mean(x^2) + eps) * w.  LAYER: the mean is taken off first, and a bias may be added.
 * SAME: x itself, a layer that has no norm there. */
enum sr_norm { SR_RMS, SR_LAYER, SR_SAME };

/* Which norms replace their input in the residual stream: none; all (BERT); norm1 of layer 0 (ModernBERT). */
enum sr_after { SR_AFTER_NONE, SR_AFTER_ALL, SR_AFTER_FIRST };

/* How q and k are normalized, if layers have q_norm and k_norm, or SR_QK_BARE: per head before rope, unless
 * one of these bits says otherwise. */
enum {
	SR_QK_ROW = 1,         /* one norm over all heads of q, one over all of k; weights [H][E], [G][E] */
	SR_QK_LATE = 2,        /* after rope; not with SR_QK_ROW */
	SR_QK_BARE = 4,        /* without weights */
};

#define SR_KINDS 4
#define SR_EXPERT_GROUPS 64    /* most groups of experts */

/* A kind of attention.  Layers of one kind have the same sizes and look back alike.  Most models have
 * one kind; models with windows in some layers have two. */
struct sr_attn {
	int32_t n_heads;       /* query heads, a multiple of n_kv_heads */
	int32_t n_kv_heads;
	int32_t head_dim;      /* width of a head: of queries, keys and values */
	int32_t window;        /* attends to the last `window` positions; 0 = all */
	int32_t chunk;         /* attends from the last multiple of `chunk` positions on; 0 = from the first */
	int32_t bidirectional; /* 1: attends to later positions of the sequence, too; as many as the window has */
	int32_t qk_norm;       /* bits SR_QK_.. */
	int32_t v_norm;        /* 1: v is divided by its rms per head, without a weight */
	int32_t k_is_v;        /* 1: no v of its own: v is k before its norm and rope */
	int32_t gate;          /* 1: what a head attended is multiplied by sigmoid(o_gate y) */
	/* SR_LATENT, else 0.  A token has one key for all heads (n_kv_heads is 1): `latent` elements, which are the
	 * value, too, and then those that rope turns; head_dim is the sum. */
	int32_t latent;
	int32_t q_rank;        /* queries come from so many elements; 0: from the input */
	int32_t q_dim, v_dim;  /* of a head: its query without what rope turns, before k_b; its value after v_b */
	float   scale;         /* on q.k, 1/sqrt(head_dim) mostly */
	float   cap;           /* of scores: cap * tanh(x / cap); 0 = none */
	float   heat;          /* q *= 1 + heat * ln(1 + floor((p + heat_add) / heat_from)); 0 = none */
	int32_t heat_from, heat_add;
	struct sr_rope rope;
};

enum sr_mixer {
	SR_ATTEND,             /* attention over the KV cache */
	SR_DELTA,              /* the gated delta rule: a state for each sequence, of one size for any length */
	SR_LATENT,             /* attention over keys and values in a shorter form (DeepSeek's latent attention) */
};

/* SR_DELTA.  For each token, with q, k, v, z (o_gate), b (beta), a (alpha) the products with y:
 *	q, k, v     silu(sum of conv[c][j] * x[c]) over the channel's last `conv` inputs x, its own the last
 *	q, k        per head x / sqrt(sum(x^2) + 1e-6), and q / sqrt(k_dim)
 *	decay       exp(rate * ln(1 + exp(a + dt)));  write = 1 / (1 + exp(-b)), one of each for a value head
 *	S           decay * S + k (write * (v - decay * S^T k))^T, [k_dim][v_dim] for each value head
 *	out         rms(S^T q; o_norm) * silu(z), then o
 * Yang et al., Gated Delta Networks (arXiv 2412.06464).  The state of a sequence is S and the last conv - 1
 * inputs of each channel, both in f32. */
struct sr_delta {              /* sr_model.delta */
	int32_t k_heads, v_heads; /* v_heads is a multiple of k_heads */
	int32_t k_dim, v_dim;  /* widths of a head */
	int32_t conv;          /* inputs of the convolution */
	int32_t tiled;         /* value head h reads key head h % k_heads; 0: h / (v_heads / k_heads) */
};
enum sr_ffn {
	SR_GATED,              /* down(act(gate) * up) */
	SR_PLAIN,              /* down(act(up)) */
	SR_EXPERTS,            /* SR_GATED by the experts that the router chose, and by a shared one */
	SR_BESIDE,             /* SR_GATED, and beside it experts with norms of their own (Gemma 4): below */
};

/* How a router's logits become the scores of experts. */
enum sr_score {
	SR_SCORE_SOFTMAX,      /* over all experts */
	SR_SCORE_SIGMOID,
	SR_SCORE_CHOSEN,       /* the experts with the largest logits; softmax over those */
};

/* s = score(router y).  Chosen are the `top` largest of s + choice_bias, among equals the lower number; if
 * `before`, of the logits.
 * Their weights are s, divided by their sum if renorm, times scale. */
struct sr_experts {
	int32_t n, top;        /* experts of a layer; those that compute a token */
	int32_t d_ff;          /* width of each */
	int32_t d_shared;      /* of the one that computes every token; 0 = none */
	int32_t score;         /* enum sr_score */
	int32_t renorm, before; /* before: the input of an expert is multiplied, not its output */
	int32_t groups;        /* experts are in so many groups of n / groups; 0 = in one */
	int32_t groups_top;    /* only those of the groups_top best groups are chosen from */
	int32_t group_sum;     /* a group is as good as its so many best together: 1, or 2 */
	float   scale;
};

enum sr_head_act { SR_HEAD_TANH, SR_HEAD_GELU }; /* gelu: the exact one, as SR_GELU_ERF */

/* A classifier of whole prompts.  With x the vector that pooling makes of a prompt, after the model's final norm:
 *	z = norm(act(dense x + dense_bias));  logits = labels z + labels_bias
 * dense SR_NONE: z = x.  norm SR_NONE: none; else it is of sr_model.norm_kind.  The vectors that such a model answers are
 * the logits, n_labels of them. */
struct sr_classifier {         /* sr_model.classifier */
	int32_t n_labels;      /* 0: the model has none */
	int32_t act;           /* enum sr_head_act, with dense */
	struct sr_tensor dense, dense_bias, norm, norm_bias; /* [D][D], [1][D] */
	struct sr_tensor labels, labels_bias; /* [n_labels][D], [1][n_labels] */
};

/* A layer is a norm, a mixer, a norm and a feed-forward part.  A norm that is missing is SR_SAME. */
struct sr_layer {
	int32_t mixer;         /* enum sr_mixer */
	int32_t kind;          /* of attention: which of sr_model.kind */
	int32_t kv_back;       /* reads the cache of the layer so many before, and has no k, v; 0 = its own */
	int32_t parallel;      /* 1: no norm2, the feed-forward part reads what norm1 made */
	int32_t ffn;           /* enum sr_ffn */
	int32_t d_ff;          /* width of the feed-forward part */
	struct sr_tensor norm1, q, k, v, o, norm2, gate, up, down;
	struct sr_tensor norm1_bias, norm2_bias;         /* SR_LAYER */
	struct sr_tensor q_bias, k_bias, v_bias, o_bias; /* qwen2: q, k, v */
	struct sr_tensor gate_bias, up_bias, down_bias;
	/* SR_LATENT: q is [n_heads (q_dim + rope)][q_rank or D], o [D][n_heads v_dim] */
	struct sr_tensor q_a, q_a_norm;                  /* [q_rank][D], [1][q_rank] */
	struct sr_tensor kv_a, kv_a_norm;                /* [head_dim][D], [1][latent] */
	struct sr_tensor k_b, v_b;                       /* of count n_heads: [latent][q_dim], [v_dim][latent] */
	struct sr_tensor sinks;                          /* [1][n_heads]: a logit that has no value */
	struct sr_tensor q_norm, k_norm;                 /* [1][head_dim], qwen3, gemma3; or SR_QK_ROW */
	struct sr_tensor post1, post2;                   /* gemma: before the residual add */
	struct sr_tensor o_gate;                         /* [H * E][D], sr_attn.gate; SR_DELTA: z, [v_heads * v_dim][D] */
	struct sr_tensor beta, alpha;                    /* SR_DELTA: [v_heads][D] */
	struct sr_tensor conv, rate, dt, o_norm;         /* vectors: [channels][conv], [v_heads], .., [v_dim] */
	struct sr_tensor router, router_bias, choice_bias; /* SR_EXPERTS: [n][D], [1][n], [1][n] */
	struct sr_tensor expert_gate, expert_up, expert_down; /* of count n: [d_ff][D], .., [D][d_ff] */
	struct sr_tensor expert_gate_bias, expert_up_bias, expert_down_bias; /* of count n: [1][d_ff], .. */
	struct sr_tensor shared_gate, shared_up, shared_down;
	/* SR_BESIDE: norm(mlp(norm2 x); mlp_post) + norm(experts(expert_norm x); expert_post); the router reads
	 * router_norm x, and weights of experts are multiplied by expert_scale [1][n] in the end */
	struct sr_tensor router_norm, expert_norm, expert_post, mlp_post, expert_scale;
	struct sr_tensor shared_mix;                     /* [1][D]: its output times sigmoid(shared_mix . y) */
	/* At the end of the layer, with `in` the part of the token's inputs that is the layer's (sr_model.inputs):
	 * x += norm(in_up (act(in_down x) * in); in_post), then x *= out_scale [1][1] */
	struct sr_tensor in_down, in_up, in_post, out_scale;
	float   k_scale, v_scale; /* of keys, values in an FP8 cache: what is stored times it; 0 = 1 */
};

struct sr_model {
	char    name[64], arch[48];
	int32_t n_layers;
	int32_t d_model;       /* width of the residual stream */
	int32_t d_ff;          /* of the layer whose feed-forward part is widest */
	int32_t n_vocab;
	int32_t context;
	int32_t act;           /* enum sr_act */
	float   act_limit;     /* SR_OAI's */
	int32_t norm_kind;     /* enum sr_norm of norm1, norm2 and norm: SR_RMS or SR_LAYER */
	int32_t norm_after;    /* enum sr_after */
	float   eps;
	float   residual;      /* granite: each sublayer's output times it; 0 = 1 */
	float   embed_scale;   /* gemma: sqrt(d_model); else 1 */
	float   logit_cap;     /* cap * tanh(x / cap); 0 = none */
	int32_t n_kinds;       /* 1 to SR_KINDS */
	struct sr_attn kind[SR_KINDS];
	struct sr_experts experts;           /* of layers with SR_EXPERTS */
	struct sr_delta delta;               /* of layers with SR_DELTA */
	/* A layer's own input of each token, `inputs` wide; 0: none.  With x the embedding, for layer l
	 * (norm(in_proj x / sqrt(D); in_norm) + sqrt(inputs) in_embed[id])[l] / sqrt(2) */
	int32_t inputs;
	struct sr_tensor in_embed, in_proj, in_norm; /* [V][n_layers * inputs], [n_layers * inputs][D], [1][inputs] */
	struct sr_tensor embed, norm, norm_bias, head; /* head SR_NONE: tied to embed */
	struct sr_tensor positions, types;   /* [context][D], [1][D]: added to embed (BERT) */
	struct sr_tensor second_type;        /* [1][D]: instead of types, from where the second text of a pair begins */
	struct sr_classifier classifier;
	struct sr_layer *layer;              /* [n_layers] */
};

static inline const struct sr_attn *kind_of(const struct sr_model *m, int32_t layer)
{
	return &m->kind[m->layer[layer].kind];
}

/* Has a layer keys and values of its own in the cache? */
static inline int has_kv(const struct sr_model *m, int32_t layer)
{
	return m->layer[layer].mixer == SR_ATTEND && !m->layer[layer].kv_back;
}

/* As many heads, of the same widths. */
static inline int sr_same_heads(const struct sr_attn *a, const struct sr_attn *b)
{
	return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim;
}

/* The layer whose cache a layer reads: itself, mostly. */
static inline int32_t kv_of(const struct sr_model *m, int32_t layer)
{
	return layer - m->layer[layer].kv_back;
}

/* What a model has beyond Llama, Qwen and Gemma 2, which every back end computes: a bit each. */
enum sr_beyond {
	SR_HAS_LAYER_NORM = 1 << 0, SR_HAS_NO_NORM = 1 << 1, SR_HAS_RESIDUAL = 1 << 2, SR_HAS_PARALLEL = 1 << 3,
	SR_HAS_ROW_NORM = 1 << 4, SR_HAS_LATE_NORM = 1 << 5, SR_HAS_BARE_NORM = 1 << 6, SR_HAS_V_NORM = 1 << 7,
	SR_HAS_K_IS_V = 1 << 8, SR_HAS_SINKS = 1 << 9, SR_HAS_CHUNKS = 1 << 10, SR_HAS_BIDIRECTIONAL = 1 << 11,
	SR_HAS_HEAT = 1 << 12, SR_HAS_SHARED_KV = 1 << 13, SR_HAS_PLAIN_FFN = 1 << 14, SR_HAS_OTHER_ACT = 1 << 15,
	SR_HAS_FFN_BIAS = 1 << 16, SR_HAS_FACTORS = 1 << 17, SR_HAS_NO_ROPE = 1 << 18, SR_HAS_EXPERTS = 1 << 19,
	SR_HAS_NORM_AFTER = 1 << 20, SR_HAS_POSITIONS = 1 << 21, SR_HAS_GATE = 1 << 22, SR_HAS_STATE = 1 << 23,
	SR_HAS_LATENT = 1 << 24, SR_HAS_WIDTHS = 1 << 25, SR_HAS_BESIDE = 1 << 26, SR_HAS_INPUTS = 1 << 27,
	SR_HAS_OUT_SCALE = 1 << 28, SR_HAS_LABELS = 1 << 29,
};
unsigned sr_beyond(const struct sr_model *m);

/* 0 if nothing of what m has is missing in known, else -ENOTSUP and a line in err that names it. */
int sr_beyond_refuse(const struct sr_model *m, unsigned known, const char *who, char *err, size_t errlen);

/* The number of output i among those that are stored. */
static inline int64_t sr_output_of(const struct sr_tensor *t, int64_t i)
{
	if (!t->outputs)
		return i;
	return t->run > 1 ? t->first + i / t->run * t->step + i % t->run : t->first + i * t->step;
}

/* Channels of the convolution of SR_DELTA: q and k of all key heads, v of all value heads. */
static inline int32_t sr_delta_channels(const struct sr_delta *a)
{
	return 2 * a->k_heads * a->k_dim + a->v_heads * a->v_dim;
}

/* Where part e of a tensor of several lies. */
static inline struct sr_stored sr_stored_of(const struct sr_tensor *t, int32_t e)
{
	struct sr_stored s = { t->data, t->scale, t->zero, t->index };
	struct sr_extent *const all[] = { &s.data, &s.scale, &s.zero, &s.index };

	if (t->each)
		return t->each[e];
	for (int i = 0; i < 4; i++) {
		all[i]->bytes /= (uint64_t)t->count;
		all[i]->offset += (uint64_t)e * all[i]->bytes;
	}
	return s;
}

/* freq[dims/2]: radians per position.  Once for all back ends. */
void sr_rope_freq(const struct sr_rope *r, float *freq);

/* On cos and sin of all pairs. */
static inline float sr_rope_magnitude(const struct sr_rope *r)
{
	return r->kind == SR_ROPE_YARN || r->kind == SR_ROPE_FACTORS ? r->magnitude : 1;
}

/* The first kind that rotates as kind i does, so that their angles are computed once. */
int32_t sr_rope_like(const struct sr_model *m, int32_t i);

#ifdef __cplusplus
}
#endif
#endif
