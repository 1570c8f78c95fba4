/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_kinds.cc - what families other than Llama have, in CUDA, against the CPU back end in plain C: kinds of
 * norms, of attention, of rope, of feed-forward parts.  Verb by verb, then whole batches. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <vector>

#include "tests/cuda/pair.h"


/* ---- norms ---------------------------------------------------------------------------- */

static void same_add_norm(struct pair *p, const char *what, int first, bool post, bool pre, enum sr_norm how,
	float by, int T)
{
	const struct net_layer *a = &truth_net(&p->cpu)->layer[1], *b = &p->gpu.b->net.layer[1];

	put_both(p, P_X, T, 1);
	put_both(p, P_Y, T, 3);
	put_both(p, P_Z, T, 2);
	cpu_ops.add_norm(truth_dev(&p->cpu), first, post ? a->post2 : NULL, pre ? a->norm1 : NULL, how, 1e-5f, by, T);
	add_norm(gpu_dev(p), first, post ? b->post2 : NULL, pre ? b->norm1 : NULL, how, 1e-5f, by, T);
	compare(p, what, P_X, T, 1e-6);
	compare(p, what, P_Y, T, HALF);
}

static struct tiny *with_norm_bias(void)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_POST_NORM | TINY_UNTIED, 5);
	uint64_t s = 9;

	t->m.norm_kind = SR_LAYER;
	for (int l = 0; l < 2; l++) {
		tiny_add(t, &t->m.layer[l].norm1_bias, "norm1_bias", SR_F32, 1, 64, 0, 0.5f, &s);
		tiny_add(t, &t->m.layer[l].norm2_bias, "norm2_bias", SR_F32, 1, 64, 0, 0.5f, &s);
		t->m.layer[l].norm2.mul = 0.25f;
	}
	tiny_add(t, &t->m.norm_bias, "norm_bias", SR_F32, 1, 64, 0, 0.5f, &s);
	return t;
}

static void test_norms(void **)
{
	struct pair p;

	open_pair_of(&p, with_norm_bias());
	for (int T : { 1, 33 }) {
		emu_reversed = !emu_reversed;
		slice_of(&p, 0, T, false);
		same_add_norm(&p, "layer norm", 1, false, true, SR_LAYER, 1, T);
		same_add_norm(&p, "layer norms, before and after", 0, true, true, SR_LAYER, 1, T);
		same_add_norm(&p, "a residual multiplier", 0, false, true, SR_RMS, 0.22f, T);
		same_add_norm(&p, "a residual multiplier after a norm", 0, true, true, SR_RMS, 0.22f, T);
		same_add_norm(&p, "no norm before", 0, true, false, SR_SAME, 1, T);
		same_add_norm(&p, "no norm before, the first", 1, false, false, SR_SAME, 1, T);
		same_add_norm(&p, "Y stays", 0, false, false, SR_LAYER, 1, T);
		put_both(&p, P_X, T, 1);
		cpu_ops.pick_norm(truth_dev(&p.cpu), truth_net(&p.cpu)->norm, SR_LAYER, 1e-5f, 0, T);
		pick_norm(gpu_dev(&p), p.gpu.b->net.norm, SR_LAYER, 1e-5f, 0, T);
		compare(&p, "pick_norm, layer norm", P_Y, T, HALF);
	}
	emu_reversed = false;
	close_pair(&p);
}

/* ---- activations ---------------------------------------------------------------------- */

static void test_activations(void **)
{
	static const struct { const char *what; enum sr_ffn ffn; enum sr_act act; float limit; } cases[] = {
		{ "gelu_erf", SR_GATED, SR_GELU_ERF, 0 }, { "relu2, no gate", SR_PLAIN, SR_RELU2, 0 },
		{ "gelu_erf, no gate", SR_PLAIN, SR_GELU_ERF, 0 }, { "silu, no gate", SR_PLAIN, SR_SILU, 0 },
		{ "oai", SR_GATED, SR_OAI, 7 }, { "oai, narrow", SR_GATED, SR_OAI, 1 },
		{ "oai, without a limit", SR_GATED, SR_OAI, 0 },
	};
	struct sr_model shape = tiny_shape();
	struct pair p;

	open_pair(&p, &shape, SR_BF16, 0, 5);
	slice_of(&p, 0, 5, false);
	for (const auto &c : cases) {            /* without a gate rows of GU are half as wide, and twice as many */
		int gu = truth_width(&p.cpu, P_GU);

		put_both(&p, P_GU, 5, 6);
		cpu_ops.act_mul(truth_dev(&p.cpu), c.ffn, c.act, c.limit, gu / 2, 5);
		act_mul(gpu_dev(&p), c.ffn, c.act, c.limit, gu / 2, 5);
		compare(&p, c.what, P_ACT, 5, HALF);
	}
	close_pair(&p);
}

/* ---- attention ------------------------------------------------------------------------ */

struct attention_case {
	const char *what;
	int qk_norm, v_norm, k_is_v;
	float heat;
	int window, chunk;
	bool sinks, shared;          /* shared: only queries, of layer 1; layer 0 has stored keys and values */
	int rope, dims;
	int width;                   /* of a head */
	bool halves = false;         /* rope turns an element with one of the other half, not with its neighbour */
};

static const struct attention_case attention_cases[] = {
	{ "norms of rows", SR_QK_ROW, 0, 0, 0, 0, 0, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "norms after rope", SR_QK_LATE, 0, 0, 0, 0, 0, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "bare norms after rope", SR_QK_LATE | SR_QK_BARE, 0, 0, 0, 0, 0, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "bare norms", SR_QK_BARE, 0, 0, 0, 0, 0, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "norms of v", 0, 1, 0, 0, 0, 0, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "keys that are values", 0, 1, 1, 0, 0, 0, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "a temperature", 0, 0, 0, 0.5f, 0, 0, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "sinks", 0, 0, 0, 0, 0, 0, true, false, SR_ROPE_PLAIN, 32, 32 },
	{ "sinks and a window", 0, 0, 0, 0, 20, 0, true, false, SR_ROPE_PLAIN, 64, 64 },
	{ "chunks", 0, 0, 0, 0, 0, 24, false, false, SR_ROPE_PLAIN, 32, 32 },
	{ "no rope", 0, 0, 0, 0, 0, 0, false, false, SR_ROPE_NONE, 0, 32 },
	{ "half of each head turns", 0, 0, 0, 0, 0, 0, false, false, SR_ROPE_PLAIN, 16, 32 },
	{ "half of each head turns, in halves", 0, 0, 0, 0, 0, 0, false, false, SR_ROPE_PLAIN, 16, 32, true },
	{ "a factor for each frequency", 0, 0, 0, 0, 0, 0, false, false, SR_ROPE_FACTORS, 32, 32 },
	{ "heads of another width, sinks", 0, 0, 0, 0, 0, 0, true, false, SR_ROPE_PLAIN, 48, 48 },
	{ "wide heads, keys that are values", 0, 1, 1, 0, 20, 0, false, false, SR_ROPE_PLAIN, 320, 320 },
	{ "another layer's cache", 0, 0, 0, 0, 0, 0, false, true, SR_ROPE_PLAIN, 32, 32 },
};

static struct tiny *model_of(const struct attention_case *c)
{
	static const float divisor[32] = { 1, 1, 1.5f, 2, 3, 4, 4, 8, 8, 8, 8, 8, 16, 16, 32, 1e30f };
	struct sr_model shape = tiny_shape();
	struct sr_attn *k = &shape.kind[0];
	struct tiny *t;
	uint64_t s = 9;

	k->head_dim = c->width;
	k->scale = 1 / sqrtf((float)c->width);
	k->qk_norm = c->qk_norm;
	k->v_norm = c->v_norm;
	k->k_is_v = c->k_is_v;
	k->heat = c->heat;
	k->heat_from = 16;
	k->heat_add = 1;
	k->window = c->window;
	k->chunk = c->chunk;
	k->rope.kind = c->rope;
	k->rope.dims = c->dims;
	k->rope.pairs = !c->halves;
	k->rope.divisor = c->rope == SR_ROPE_FACTORS ? divisor : NULL;
	k->rope.magnitude = c->rope == SR_ROPE_FACTORS ? 1.25f : 1;
	t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 5);
	for (int l = 0; l < 2; l++) {
		struct sr_layer *y = &t->m.layer[l];
		int heads = c->qk_norm & SR_QK_ROW ? 4 : 1;

		if (c->qk_norm && !(c->qk_norm & SR_QK_BARE)) {
			tiny_add(t, &y->q_norm, "q_norm", SR_F32, 1, heads * c->width, 1, 0.2f, &s);
			tiny_add(t, &y->k_norm, "k_norm", SR_F32, 1, heads / 2 * c->width + (heads == 1) * c->width, 1, 0.2f,
				&s);
		}
		if (c->sinks)
			tiny_add(t, &y->sinks, "sinks", SR_F32, 1, 4, 0, 3, &s);
		if (c->k_is_v)
			y->v.type = SR_NONE;
		if (c->shared && l) {
			y->kv_back = 1;
			y->k.type = y->v.type = SR_NONE;
		}
	}
	return t;
}

/* The same numbers in both; each back end has rows of its own width.  heads: those of a row in use. */
static void put_heads(struct pair *p, int T, int heads, uint32_t seed)
{
	int E = p->gpu.b->m.kind[0].head_dim, wide = truth_width(&p->cpu, P_QKV), n = heads * E;
	std::unique_ptr<float[]> x(new float[T * wide]()), y(new float[T * wide]());

	fill(x.get(), T * wide, seed);
	for (int i = 0; i < T * n; i++)
		y[i] = x[i / n * wide + i % n];
	cpu_ops.put(truth_dev(&p->cpu), P_QKV, x.get(), T);
	put(gpu_dev(p), P_QKV, y.get(), T);
}

static void positions(struct pair *p, const struct attention_case *c, int first, int T)
{
	const struct net_layer *a = &truth_net(&p->cpu)->layer[0], *b = &p->gpu.b->net.layer[0];
	const struct sr_attn *ka = &truth_net(&p->cpu)->m->kind[0], *kb = &p->gpu.b->m.kind[0];
	struct dev *da = truth_dev(&p->cpu), *db = gpu_dev(p);

	put_heads(p, T, c->k_is_v ? 6 : 8, 7 + (uint32_t)first);
	cpu_ops.rope_store(da, 0, ka, a->qn, a->kn, 1e-5f, T);
	rope_store(db, 0, kb, b->qn, b->kn, 1e-5f, T);
	if (c->shared) {
		put_heads(p, T, 4, 77 + (uint32_t)first);
		cpu_ops.rope_store(da, -1, ka, a->qn, a->kn, 1e-5f, T);
		rope_store(db, -1, kb, b->qn, b->kn, 1e-5f, T);
	}
	cpu_ops.attend(da, 0, ka, a->sinks, T);
	attend(db, 0, kb, b->sinks, T);
	compare(p, c->what, P_A, T, 0.012);
}

static void test_attention(void **)
{
	for (const attention_case &c : attention_cases) {
		for (int hopper = 0; hopper < 2; hopper++) {
			struct pair p;

			if (hopper && c.width != 64)
				continue;
#ifdef CUDA_EMULATED
			emu_capability = hopper ? 90 : 80;
#endif
			emu_reversed = !emu_reversed;
			open_pair_of(&p, model_of(&c));
			slice_of(&p, 0, 70, false);
			positions(&p, &c, 0, 70);
			slice_of(&p, 70, 3, false);
			positions(&p, &c, 70, 3);
			slice_of(&p, 73, 7, true);   /* single tokens; long enough to be divided */
			positions(&p, &c, 73, 7);
			close_pair(&p);
		}
	}
#ifdef CUDA_EMULATED
	emu_capability = 80;
#endif
	emu_reversed = false;
}

/* What is written to the cache is what the case says, not only what attention makes of it. */
static void test_rotated(void **)
{
	for (const attention_case &c : attention_cases) {
		struct pair p;
		int E = c.width, wide;

		if (c.k_is_v || c.shared)            /* rows of other widths */
			continue;
		if (c.sinks || c.chunk || c.v_norm)  /* q and k are as ever */
			continue;
		open_pair_of(&p, model_of(&c));
		wide = truth_width(&p.cpu, P_QKV);
		slice_of(&p, 5, 30, false);
		put_heads(&p, 30, 8, 7);
		cpu_ops.rope_store(truth_dev(&p.cpu), 0, &truth_net(&p.cpu)->m->kind[0], truth_net(&p.cpu)->layer[0].qn,
			truth_net(&p.cpu)->layer[0].kn, 1e-5f, 30);
		rope_store(gpu_dev(&p), 0, &p.gpu.b->m.kind[0], p.gpu.b->net.layer[0].qn, p.gpu.b->net.layer[0].kn, 1e-5f,
			30);
		std::unique_ptr<float[]> a(new float[30 * wide]), b(new float[30 * wide]);

		cpu_ops.get(truth_dev(&p.cpu), P_QKV, a.get(), 30);
		get(gpu_dev(&p), P_QKV, b.get(), 30);
		for (int i = 0; i < 30 * wide; i++)
			if (i % wide < 6 * E && !(fabsf(a[i] - b[i]) <= HALF * (0.01f + fabsf(a[i]))))
				fail_msg("%s: element %d of token %d is %g, not %g", c.what, i % wide, i / wide, (double)b[i],
					(double)a[i]);
		close_pair(&p);
	}
}

/* Angles are right to a float at positions where a product of floats has lost its digits. */
static void test_long_positions(void **)
{
	static const struct batch_token token[] = { { 0, 100000, 0 }, { 0, 131071, 0 }, { 0, 999999, 0 } };
	struct sr_model shape = tiny_shape();
	struct pair p;
	const int pairs = shape.kind[0].rope.dims / 2;
	std::vector<float2> angle((size_t)(3 * pairs));

	open_pair(&p, &shape, SR_BF16, 0, 5);
	slice_of(&p, 0, 3, false);
	struct dev *d = gpu_dev(&p);

	cudaMemcpyAsync(d->batch.list.token, token, sizeof(token), cudaMemcpyHostToDevice, d->stream);
	angles(d, 3);
	cudaMemcpyAsync(angle.data(), d->act.angle[0], angle.size() * sizeof(float2), cudaMemcpyDeviceToHost, d->stream);
	assert_int_equal(cudaStreamSynchronize(d->stream), cudaSuccess);
	for (int i = 0; i < 3 * pairs; i++) {
		double turn = (double)token[i / pairs].position * (double)p.gpu.b->freq[0][i % pairs];

		within("angles", hypot((double)angle[(size_t)i].x - cos(turn), (double)angle[(size_t)i].y - sin(turn)), 1e-6,
			"pair %d at position %d", i % pairs, token[i / pairs].position);
	}
	close_pair(&p);
}

/* ---- whole batches -------------------------------------------------------------------- */

static struct tiny *layer_norm_model(void)
{
	struct tiny *t = with_norm_bias();

	t->m.residual = 0.5f;
	return t;
}

static struct tiny *parallel_model(int32_t type)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, type, TINY_UNTIED, 6);

	t->m.norm_kind = SR_LAYER;
	for (int l = 0; l < 2; l++) {
		t->m.layer[l].parallel = 1;
		t->m.layer[l].norm2.type = SR_NONE;
	}
	return t;
}

/* No norm before; gate's tensor is missing; biases everywhere. */
static struct tiny *plain_model(void)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t;
	uint64_t s = 9;

	shape.act = SR_RELU2;
	shape.kind[0].qk_norm = SR_QK_ROW;
	t = tiny_create(&shape, SR_BF16, TINY_UNTIED | TINY_BIAS | TINY_POST_NORM, 4);
	for (int l = 0; l < 2; l++) {
		struct sr_layer *y = &t->m.layer[l];

		y->norm1.type = y->norm2.type = SR_NONE;
		tiny_add(t, &y->q_norm, "q_norm", SR_F32, 1, 64, 1, 0.2f, &s);
		tiny_add(t, &y->k_norm, "k_norm", SR_F32, 1, 32, 1, 0.2f, &s);
		y->ffn = SR_PLAIN;
		y->gate.type = SR_NONE;
		tiny_add(t, &y->up_bias, "up_bias", SR_F32, 1, 96, 0, 0.5f, &s);
		tiny_add(t, &y->down_bias, "down_bias", SR_F32, 1, 64, 0, 0.5f, &s);
		tiny_add(t, &y->o_bias, "o_bias", SR_F32, 1, 64, 0, 0.5f, &s);
	}
	return t;
}

/* Keys of 32 elements that are the values, too, and 16 that rope turns; queries by way of 32 elements. */
static struct tiny *latent_model(void)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 7);
	struct sr_attn *k = &t->m.kind[0];
	const int H = 20, latent = 32, turned = 16, q_dim = 32, v_dim = 32, D = 64;
	uint64_t s = 9;

	k->n_heads = H;
	k->n_kv_heads = 1;
	k->latent = latent;
	k->head_dim = latent + turned;
	k->q_rank = 32;
	k->q_dim = q_dim;
	k->v_dim = v_dim;
	k->scale = 0.2f;
	k->heat = 0.3f;
	k->heat_from = 16;
	k->rope.dims = turned;
	for (int l = 0; l < 2; l++) {
		struct sr_layer *y = &t->m.layer[l];

		y->mixer = SR_LATENT;
		y->k.type = y->v.type = SR_NONE;
		tiny_add(t, &y->q_a, "q_a", SR_BF16, 32, D, 0, 0.3f, &s);
		tiny_add(t, &y->q_a_norm, "q_a_norm", SR_F32, 1, 32, 1, 0.2f, &s);
		tiny_add(t, &y->q, "q", SR_BF16, H * (q_dim + turned), 32, 0, 0.3f, &s);
		tiny_add(t, &y->kv_a, "kv_a", SR_BF16, latent + turned, D, 0, 0.3f, &s);
		tiny_add(t, &y->kv_a_norm, "kv_a_norm", SR_F32, 1, latent, 1, 0.2f, &s);
		tiny_add(t, &y->k_b, "k_b", SR_BF16, H * latent, q_dim, 0, 0.3f, &s);
		tiny_add(t, &y->v_b, "v_b", SR_BF16, H * v_dim, latent, 0, 0.3f, &s);
		y->k_b.n = latent;
		y->v_b.n = v_dim;
		y->k_b.count = y->v_b.count = H;
		tiny_add(t, &y->o, "o", SR_BF16, D, H * v_dim, 0, 0.1f, &s);
	}
	return t;
}

/* As Gemma 4: layers of other heads, inputs for each layer, a scale of what a layer makes. */
static struct tiny *uneven_model(void)
{
	struct sr_model shape = tiny_shape();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_UNTIED | TINY_POST_NORM, 8);
	struct sr_layer *y = t->m.layer;
	const int D = 64, inputs = 32, V = shape.n_vocab;
	uint64_t s = 9;

	t->m.n_kinds = 2;
	t->m.kind[1] = t->m.kind[0];
	t->m.kind[1].n_kv_heads = 1;
	t->m.kind[1].head_dim = t->m.kind[1].rope.dims = 96;
	t->m.kind[1].scale = 0.1f;
	t->m.kind[0].window = 20;
	y[1].kind = 1;
	tiny_add(t, &y[1].q, "q", SR_BF16, 4 * 96, D, 0, 0.3f, &s);
	tiny_add(t, &y[1].k, "k", SR_BF16, 96, D, 0, 0.3f, &s);
	tiny_add(t, &y[1].v, "v", SR_BF16, 96, D, 0, 0.3f, &s);
	tiny_add(t, &y[1].o, "o", SR_BF16, D, 4 * 96, 0, 0.1f, &s);
	t->m.inputs = inputs;
	tiny_add(t, &t->m.in_embed, "in_embed", SR_BF16, V, 2 * inputs, 0, 1, &s);
	tiny_add(t, &t->m.in_proj, "in_proj", SR_BF16, 2 * inputs, D, 0, 0.3f, &s);
	tiny_add(t, &t->m.in_norm, "in_norm", SR_F32, 1, inputs, 1, 0.2f, &s);
	for (int l = 0; l < 2; l++) {
		tiny_add(t, &y[l].in_down, "in_down", SR_BF16, inputs, D, 0, 0.3f, &s);
		tiny_add(t, &y[l].in_up, "in_up", SR_BF16, D, inputs, 0, 0.3f, &s);
		tiny_add(t, &y[l].in_post, "in_post", SR_F32, 1, D, 1, 0.2f, &s);
		tiny_add(t, &y[l].out_scale, "out_scale", SR_F32, 1, 1, 0.8f, 0.1f, &s);
	}
	return t;
}

static void same_batches(struct tiny *t, const char *what, double bound, int *same)
{
	static struct answer a, b;
	double diff = 0;
	struct pair p;

	open_pair_of(&p, t);
	converse(&p.cpu, &a);
	converse(&p.gpu, &b);
	for (int i = 0; i < 70; i++)
		diff += fabs((double)a.result[i].logprob - b.result[i].logprob) / 70;
	if (!(diff <= bound))
		fail_msg("%s: mean difference %g of log-probabilities", what, diff);
	for (int row = 0; row < 2; row++)
		*same += same_tokens(&a, &b, 71 + row, what);
	close_pair(&p);
}

static void test_models(void **)
{
	int same = 0, n = 0;

	same_batches(layer_norm_model(), "layer norms", 0.06, &same), n++;
	same_batches(plain_model(), "no norms before, no gate", 0.06, &same), n++;
	same_batches(parallel_model(SR_BF16), "parallel", 0.06, &same), n++;
	same_batches(latent_model(), "latent keys", 0.06, &same), n++;
	same_batches(uneven_model(), "uneven layers", 0.06, &same), n++;
	for (const attention_case &c : attention_cases) {
		if (!c.k_is_v && !c.shared && !(c.sinks && c.window))
			continue;                    /* forward() does nothing else for the others */
		emu_reversed = n % 2;
		same_batches(model_of(&c), c.what, 0.06, &same), n++;
	}
	emu_reversed = false;
	assert_true(same > n * 26 * 2 / 3);
}

/* ---- windows -------------------------------------------------------------------------- */

/* Log-probabilities of a prompt in two rows, and of single tokens.  left: blocks that the window has left are
 * others' by then: here they have never been written. */
static std::vector<float> read_out(struct tiny *t, int window, bool left)
{
	static const int32_t blocks[] = { 9, 3, 12, 5, 7, 20 }, stale[] = { 50, 51 };
	struct sr_limits lim = limits();
	std::vector<float> out;
	int32_t ids[80];
	struct drive d;

	lim.worked = 0;
	for (int i = 0; i < 80; i++)
		ids[i] = i * 31 % 200;
	t->n_done = 0;
	if (drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
		fail_msg("%s", d.err);
	drive_begin(&d, 0, NULL);
	drive_blocks(&d, 0, 0, blocks, 6);
	for (int i = 0; i < 64;) {
		int n = i == 0 ? 50 : i == 50 ? 10 : 1, gone = i >= window ? (i - window + 1) / BLOCK : 0;

		if (left && gone)
			drive_blocks(&d, 0, 0, stale, gone < 2 ? gone : 2);
		drive_row(&d, 0, i, ids + i, n, n > 1 ? n : 0, n == 1);
		drive_step(&d);
		for (int j = 0; j < n; j++)
			out.push_back(d.batch->result[j].logprob);
		i += n;
	}
	drive_close(&d);
	return out;
}

static void test_left_by_window(void **)
{
	for (int width : { 16, 64 }) {
		struct sr_model shape = tiny_shape();
		struct tiny *t;

#ifdef CUDA_EMULATED
		emu_capability = width == 64 ? 90 : 80;
#endif
		shape.kind[0].head_dim = shape.kind[0].rope.dims = width;
		shape.kind[0].scale = 0.125f;
		shape.kind[0].window = 20;
		t = tiny_create(&shape, SR_BF16, TINY_UNTIED, 5);
		std::vector<float> all = read_out(t, 20, false), some = read_out(t, 20, true);

		assert_int_equal(all.size(), 64);
		for (size_t i = 0; i < all.size(); i++)
			assert_true(std::isfinite(all[i]) && all[i] == some[i]);
		tiny_destroy(t);
	}
#ifdef CUDA_EMULATED
	emu_capability = 80;
#endif
}

#ifdef CUDA_EMULATED

/* On a GPU with FP8 instructions, norms of many rows write 8 bits for the product that reads them.  In parallel
 * layers two read them. */
static void test_parallel_f8(void **)
{
	static struct answer a, b;
	double diff = 0;

	for (int capability : { 80, 90 }) {
		struct tiny *t = parallel_model(SR_F8);
		struct sr_limits lim = limits();
		struct drive d;

		emu_capability = capability;
		lim.worked = 0;
		assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), 0);
		assert_true(!d.b->d.product.x8 == (capability == 80));
		converse(&d, capability == 80 ? &a : &b);
		drive_close(&d);
		tiny_destroy(t);
	}
	emu_capability = 80;
	for (int i = 0; i < 70; i++)
		diff += fabs((double)a.result[i].logprob - b.result[i].logprob) / 70;
	assert_true(diff < 0.25 && diff > 0);
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_norms),
		cmocka_unit_test(test_activations),
		cmocka_unit_test(test_attention),
		cmocka_unit_test(test_rotated),
		cmocka_unit_test(test_long_positions),
		cmocka_unit_test(test_models),
		cmocka_unit_test(test_left_by_window),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_parallel_f8),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
