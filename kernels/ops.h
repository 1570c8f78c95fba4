/* ops.h - the verbs of a transformer.  forward.c is the only caller of those that compute, net.c
 * of weight; kernels/cpu and kernels/cuda each provide all of them.
 *
 * Places   activations live in named places of the back end, in its own type (bf16, f32,
 *          int8 beside its scales): a producer writes the form its consumer reads.
 *          Sizes of a row: X Y Z [D], QKV [H+2G][E], A [H][E], GU [2F], ACT [F],
 *          LOGITS [V] f32.  T rows, but Y and LOGITS after pick: R.
 *          QKV is [H+G][E] where v is k, [H][E] in layers without k and v, and with latent keys.
 *          QKV is [H+2G+H][E] where attention has a gate.  With SR_DELTA QKV is q, k, v, z, b, a
 *          (struct sr_delta) one after the other, and A is [v_heads][v_dim].
 *          Latent keys: LATENT [q_rank + E], HEADS [H] queries before k_b, values after v_b; A is [H][latent].
 *          With inputs for each layer: INPUTS [n_layers * inputs].  With experts beside: SIDE [D].
 *          With experts: SCORES [experts] f32; GU [2F] and ACT [F] of each expert that a token has, and
 *          OUT [D] likewise.  Those rows are in an order of the back end's, which route() decides.
 * Letters  in comments and inner loops: T new tokens of the batch, R its results, D d_model,
 *          H n_heads, G n_kv_heads, E head_dim, F d_ff, V n_vocab.
 * Weights  packed by the back end at open; types may differ between the parts of one.
 * Order    calls are queued and run in order; none blocks and none fails.  A lost device
 *          is reported by sr_backend_ops.poll.
 * Sums     on the CPU one fixed order per verb, whatever T and the chunking are.
 * Truth    kernels/cpu/ops.c.  tests/kernels/test_parity.c holds every other version to it.
 */
#ifndef SR_OPS_H
#define SR_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dev;     /* the back end's own: stream or team, places, slots, the batch's rows */
struct weight;  /* the back end's own: a packed matrix with its bias, or a vector */

/* The vectors of SR_DELTA. */
struct recur_weights { const struct weight *conv, *rate, *dt, *norm; };

enum place { P_X, P_Y, P_Z, P_QKV, P_A, P_GU, P_ACT, P_SCORES, P_OUT, P_LATENT, P_HEADS, P_INPUTS, P_SIDE,
             P_LOGITS };

struct ops {
	/* n tensors stacked along N, each with a bias or NULL: one weight, whose bytes the back end reads
	 * after all are known.  Returns the bytes held, or -ENOTSUP, -ENOMEM, -EINVAL and a line in err.
	 * With out == NULL it only counts. */
	int64_t (*weight)(struct dev *, struct weight **out, const struct sr_tensor *const *part,
	                  const struct sr_tensor *const *bias, int n, char *err, size_t errlen);

	/* X[T] = table[token[t]] * scale, whole on every rank although each has a part of the table; and the rows of
	 * net.positions and net.types, or net.second_type from the position on that SR_CMD_POOL names.  SR_LAST is looked
	 * up by slot */
	void (*embed)(struct dev *, const struct weight *table, float scale, int T);

	/* X += by * Z, or by * norm(Z) with post if given; nothing if first.  Then Y = norm(X) with pre; or
	 * X, if pre is NULL and how SR_SAME; otherwise, if pre is NULL, Y stays.  how: of both norms (post's
	 * is SR_RMS where how is SR_SAME).  A weight has the norm's bias, if any.  Where norm_after says so X = Y, too */
	void (*add_norm)(struct dev *, int first, const struct weight *post, const struct weight *pre,
	                 enum sr_norm how, float eps, float by, int T);

	/* y[T][N] = x[T][K] w[N][K]^T + bias.  If w has experts, each row is multiplied by the expert that route()
	 * chose: from Y to GU by token, from ACT to OUT by each token's experts, T * top rows */
	void (*matmul)(struct dev *, enum place y, enum place x, const struct weight *w, int T);

	/* Choose the experts of each token by SCORES (the router's logits) and weigh them: struct sr_experts.
	 * choice_bias may be NULL.  T is the number of tokens, here and below */
	void (*route)(struct dev *, const struct sr_experts *, const struct weight *choice_bias, int T);

	/* Z = the outputs OUT of each token's experts, times their weights, added in the order in which they were
	 * chosen.  With `shared`, what Z was is added last; times sigmoid(mix . Y) unless mix is NULL */
	void (*combine)(struct dev *, const struct sr_experts *, int shared, const struct weight *mix, int T);

	/* Of several ranks, each has computed its columns of a place: after this each has all of them.  T rows; of ACT with experts T * top.  Not called for a model of one rank */
	void (*gather)(struct dev *, enum place, int T);

	/* Norm (unless NULL, or as the kind says) and rotate q and k of QKV in place, by position; then store
	 * k and v in the blocks of layer l that the slots' tables name.  l < 0: there are only queries.  The
	 * kind is one of sr_model.kind.  Latent keys: LATENT has the key from q_rank on, kn is the norm of its
	 * latent part; the part of queries that rope turns is in HEADS behind q_dim, and comes behind the latent
	 * part in QKV */
	void (*rope_store)(struct dev *, int l, const struct sr_attn *, const struct weight *qn,
	                   const struct weight *kn, float eps, int T);

	/* The first elements of the rows of a place, as many as w has: their norm (SR_RMS), in place */
	void (*norm)(struct dev *, enum place, const struct weight *w, float eps, int T);

	/* y += x, both [D]; X *= w[0] */
	void (*sum)(struct dev *, enum place y, enum place x, int T);
	void (*scale)(struct dev *, const struct weight *w, int T);

	/* INPUTS of all layers, where each is what in_proj made of X: sr_model.inputs.  w: in_norm */
	void (*inputs)(struct dev *, const struct weight *table, const struct weight *w, int width, float eps, int T);
	/* ACT = act(GU[0..width)) * the part of INPUTS that is layer l's */
	void (*input_mul)(struct dev *, int l, enum sr_act, int width, int T);
	/* The weight of each expert that route() chose, times w[expert] */
	void (*weigh)(struct dev *, const struct weight *w, int T);

	/* A small matrix for each head, w of count H: row t of y has from h * y_step on w_h times what row t of x
	 * has from h * x_step on */
	void (*heads)(struct dev *, enum place y, int y_step, enum place x, int x_step, const struct weight *w, int T);

	/* A[T]: query t reads positions max(0, p-window+1) .. p of its sequence, p its own, as layer l stored
	 * them.  sinks: [H] logits that join each head's softmax and add nothing to its sum; or NULL */
	void (*attend)(struct dev *, int l, const struct sr_attn *, const struct weight *sinks, int T);

	/* A *= sigmoid of the last H heads of QKV: sr_attn.gate */
	void (*gate)(struct dev *, const struct sr_attn *, int T);

	/* A[T] = what the gated delta rule of layer l makes of QKV, without o: struct sr_delta.  It reads and writes
	 * the states that the slots name (SR_CMD_STATE).  Tokens of a sequence are taken one after the other */
	void (*recur)(struct dev *, int l, const struct sr_delta *, const struct recur_weights *, float eps, int T);

	/* SR_GATED: ACT = act(GU[0..F)) * GU[F..2F); SR_PLAIN: act(GU[0..F)).  F = d_ff of the layer, or of an
	 * expert; limit: SR_OAI's; T rows */
	void (*act_mul)(struct dev *, enum sr_ffn, enum sr_act, float limit, int d_ff, int T);

	/* Y[i] = norm(X) with w of the row that result i of the batch comes from, i in [i0, i0+R) */
	void (*pick_norm)(struct dev *, const struct weight *w, enum sr_norm how, float eps, int i0, int R);

	/* Results [i0, i0+R): cap, log-probabilities, ranks, alternatives.  Where a row samples,
	 * draw a token; the slot and its counts keep it.  SR_POOL_LOGITS: capped logits to a vector */
	void (*sample)(struct dev *, float cap, int i0, int R);

	/* The P runs of pooled rows (struct batch_pool): norm(X) with w of the tokens that count, or X if w is
	 * NULL, goes into the slot's sum; the last run of a prompt makes the vector of the batch.  In a model with a
	 * classifier Y[i] is the vector of the prompt that run i ends, as it was pooled; of other runs Y[i] is zero */
	void (*pool)(struct dev *, const struct weight *w, enum sr_norm how, float eps, int P);

	/* With z the rows of a place, as many as there are runs: the logits of the labels are the vectors of the batch.
	 * From Z: z is norm(act(Z)) first, norm NULL: act(Z).  From Y: z is Y.  bias may be NULL; eps: the norm's, which
	 * is a LayerNorm */
	void (*label)(struct dev *, enum place z, enum sr_head_act, const struct weight *norm, const struct weight *labels,
	              const struct weight *bias, float eps, int P);

	/* Tests only: rows of a place as f32, both ways */
	void (*put)(struct dev *, enum place, const float *, int T);
	void (*get)(struct dev *, enum place, float *, int T);
};

#ifdef __cplusplus
}
#endif
#endif
