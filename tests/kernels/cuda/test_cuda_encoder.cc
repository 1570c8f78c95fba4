/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_encoder.cc - encoders on the CUDA back end, beside the CPU's in plain C: attention to both sides, with and
 * without a window; vectors of whole prompts, with the same bits alone and beside others. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <vector>

#include "tests/cuda/pair.h"

#define D 64                           /* tiny_shape's width */
#define LONGEST 150

/* As BERT (positions, types and biases, norms behind the sums), nomic (rope, a gate) and ModernBERT (a norm that
 * replaces the embeddings, windows) are. */
struct encoder_case {
	const char *what;
	int width, window;               /* of a head; of layer 1: positions to either side, with its own */
	enum sr_after after;
	bool bert, divided;              /* divided: its runs, on many processors */
};

static const struct encoder_case cases[] = {
	{ "bert", 16, 0, SR_AFTER_ALL, true, false }, { "nomic", 32, 0, SR_AFTER_ALL, false, false },
	{ "modernbert", 16, 20, SR_AFTER_FIRST, false, true }, { "wide heads", 48, 20, SR_AFTER_ALL, true, false },
	{ "heads of 64", 64, 70, SR_AFTER_FIRST, false, true },
};

static struct tiny *encoder(const struct encoder_case *c)
{
	static struct sr_layer layers[2];
	struct sr_model shape = tiny_shape();
	struct sr_attn *k = &shape.kind[0];
	struct tiny *t;
	uint64_t s = 9;

	k->n_kv_heads = k->n_heads;
	k->head_dim = c->width;
	k->scale = 1 / sqrtf((float)c->width);
	k->bidirectional = 1;
	k->rope.kind = c->bert ? SR_ROPE_NONE : SR_ROPE_PLAIN;
	k->rope.dims = c->bert ? 0 : c->width;
	k->rope.pairs = 0;
	tiny_window(&shape, layers, 0);
	shape.kind[1].window = c->window;
	shape.norm_kind = SR_LAYER;
	shape.norm_after = c->after;
	shape.act = c->bert || c->after == SR_AFTER_FIRST ? SR_GELU_ERF : SR_SILU;
	shape.eps = 1e-12f;
	t = tiny_create(&shape, SR_BF16, c->bert ? TINY_BIAS : 0, 5);
	if (c->bert)
		tiny_add(t, &t->m.positions, "positions", SR_BF16, 512, D, 0, 1, &s);
	if (c->after == SR_AFTER_ALL)
		tiny_add(t, &t->m.types, "types", SR_F32, 1, D, 0, 1, &s);
	for (int l = 0; l < 2 && c->after == SR_AFTER_ALL; l++) {
		tiny_add(t, &t->m.layer[l].norm1_bias, "norm1_bias", SR_F32, 1, D, 0, 0.5f, &s);
		tiny_add(t, &t->m.layer[l].norm2_bias, "norm2_bias", SR_F32, 1, D, 0, 0.5f, &s);
	}
	if (c->after == SR_AFTER_ALL)
		tiny_add(t, &t->m.norm_bias, "norm_bias", SR_F32, 1, D, 0, 0.5f, &s);
	for (int l = 0; l < 2 && c->bert; l++) {
		struct sr_layer *y = &t->m.layer[l];

		y->ffn = SR_PLAIN;
		y->gate.type = SR_NONE;
		tiny_add(t, &y->up_bias, "up_bias", SR_F32, 1, 96, 0, 0.5f, &s);
		tiny_add(t, &y->down_bias, "down_bias", SR_F32, 1, D, 0, 0.5f, &s);
		tiny_add(t, &y->o_bias, "o_bias", SR_F32, 1, D, 0, 0.5f, &s);
	}
	return t;
}

static struct sr_limits whole_prompts(void)
{
	struct sr_limits lim = limits();

	lim.whole = 1;
	lim.vectors = 8;
	lim.width = D;
	lim.logit_rows = 40;
	return lim;
}

static void open_gpu(struct drive *d, struct tiny *t, bool deterministic, bool checked)
{
	struct sr_limits lim = whole_prompts();

	lim.worked = 0;
	lim.deterministic = deterministic;
	lim.self_check = checked;
	lim.eager = 0;                         /* no graph is captured of what pools alone */
	t->n_done = 0;
	if (drive_open(d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
		fail_msg("%s", d->err);
}

static void open_both(struct pair *p, const struct encoder_case *c, bool deterministic, bool checked)
{
	struct sr_limits lim = whole_prompts();

	p->model = encoder(c);
	truth_open(&p->cpu, p->model, &lim);
	open_gpu(&p->gpu, p->model, deterministic, checked);
}

/* ---- attention ------------------------------------------------------------------------ */

static void same_attention(struct pair *p, const struct encoder_case *c, int l, int T)
{
	int32_t ids[LONGEST + 1] = { 0 };

	for (struct drive *d : { &p->cpu, &p->gpu }) {
		drive_begin(d, 0, NULL);
		drive_range(d, 0, 0, 20);
		drive_row(d, 0, 0, ids, T, T - 1, 1);
	}
	truth_slice(&p->cpu);
	gpu_slice(p);
	clear(p->cpu.batch);
	clear(p->gpu.batch);
	const struct sr_attn *ka = &truth_net(&p->cpu)->m->kind[l], *kb = &p->gpu.b->m.kind[l];

	put_both(p, P_QKV, T, 7);
	cpu_ops.rope_store(truth_dev(&p->cpu), l, ka, NULL, NULL, 1e-5f, T);
	rope_store(gpu_dev(p), l, kb, NULL, NULL, 1e-5f, T);
	cpu_ops.attend(truth_dev(&p->cpu), l, ka, NULL, T);
	attend(gpu_dev(p), l, kb, NULL, T);
	compare(p, c->what, P_A, T, 0.012);
}

/* Prompts that end inside a tile, at its end and behind it; on many processors their runs are divided. */
static void test_attention(void **)
{
	for (const encoder_case &c : cases)
		for (int many = 0; many < 1 + c.divided; many++)
			for (int hopper = 0; hopper < (c.width == 64 ? 2 : 1); hopper++) {
				struct pair p;

#ifdef CUDA_EMULATED
				setenv("EMU_PROCESSORS", many ? "64" : "4", 1);
				emu_capability = hopper ? 90 : 80;
#endif
				emu_reversed = !emu_reversed;
				open_both(&p, &c, false, false);
				for (int T : { 1, 23, 128, LONGEST })
					for (int l = 0; l < 2 && (T == LONGEST || (!many && l == (c.window > 0))); l++)
						same_attention(&p, &c, l, T);
#ifdef CUDA_EMULATED
				assert_int_equal(gpu_dev(&p)->batch.step.full_runs > 0, many);
#endif
				close_pair(&p);
			}
#ifdef CUDA_EMULATED
	unsetenv("EMU_PROCESSORS");
	emu_capability = 80;
#endif
	emu_reversed = false;
}

/* ---- vectors -------------------------------------------------------------------------- */

struct asked { int n; enum sr_pool kind; bool unit; };
static const struct asked asked[] = {
	{ 1, SR_POOL_MEAN, true }, { 9, SR_POOL_FIRST, false }, { 66, SR_POOL_MEAN, false }, { 5, SR_POOL_LAST, true },
	{ 33, SR_POOL_MEAN, true },
};
static const int n_asked = 5;

/* The vectors of prompts from .. to - 1, in one batch. */
static std::vector<float> vectors(struct drive *d, int from, int to)
{
	int32_t ids[LONGEST];
	int block = 3;

	std::fill_n(d->batch->vector, 8 * D, NAN);
	for (int i = from; i < to; i++) {
		struct sr_pooling how = { (uint32_t)asked[i].kind, 0, asked[i].unit };

		for (int t = 0; t < asked[i].n; t++)
			ids[t] = (t * t * 7 + t * 3 + i) % 200;
		drive_begin(d, i, NULL);
		drive_pool(d, i, &how);
		drive_range(d, i, block, (asked[i].n + 15) / 16);
		drive_pool_row(d, i, asked[i].kind, 0, ids, asked[i].n, i);
		block += (asked[i].n + 15) / 16;
	}
	drive_step(d);
	return std::vector<float>(d->batch->vector + from * D, d->batch->vector + to * D);
}

static void check_vectors(const struct encoder_case *c, const std::vector<float> &want, const std::vector<float> &got)
{
	for (size_t v = 0; v < want.size() / D; v++) {
		double off = 0, size = 0;

		for (size_t i = v * D; i < v * D + D; i++) {
			off += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
			size += (double)want[i] * want[i];
		}
		within("a vector", sqrt(off / size), 0.03, "%s, prompt %zu", c->what, v);
	}
}

static void test_vectors(void **)
{
	for (const encoder_case &c : cases)
		for (bool deterministic : { true, false }) {
			struct pair p;

			if (!deterministic && c.width < 64) /* one is checked at open */
				continue;

			emu_reversed = !emu_reversed;
			open_both(&p, &c, deterministic, !deterministic);
			assert_null(gpu_dev(&p)->batch.graphs);
			std::vector<float> got = vectors(&p.gpu, 0, n_asked);

			check_vectors(&c, vectors(&p.cpu, 0, n_asked), got);
			for (int i = 0; i < n_asked && deterministic && c.width == 16; i++) {
				std::vector<float> alone = vectors(&p.gpu, i, i + 1);

				assert_memory_equal(alone.data(), &got[(size_t)(i * D)], D * sizeof(float));
			}
			close_pair(&p);
		}
	emu_reversed = false;
}

/* ---- classifiers ---------------------------------------------------------------------- */

/* As BERT's (a dense layer and tanh), ModernBERT's (gelu and a norm) and those of labels alone. */
static struct tiny *classifier(const struct encoder_case *c, int n_labels, bool dense, enum sr_head_act act, bool norm)
{
	struct tiny *t = encoder(c);
	struct sr_classifier *k = &t->m.classifier;
	uint64_t s = 21;

	k->n_labels = n_labels;
	k->act = act;
	if (dense) {
		tiny_add(t, &k->dense, "dense", SR_BF16, D, D, 0, 0.3f, &s);
		tiny_add(t, &k->dense_bias, "dense_bias", SR_F32, 1, D, 0, 0.5f, &s);
	}
	if (norm)
		tiny_add(t, &k->norm, "norm", SR_F32, 1, D, 1, 0.2f, &s);
	tiny_add(t, &k->labels, "labels", n_labels > 1 ? SR_BF16 : SR_F32, n_labels, D, 0, 0.3f, &s);
	if (c->bert) {
		tiny_add(t, &k->labels_bias, "labels_bias", SR_F32, 1, n_labels, 0, 0.5f, &s);
		tiny_add(t, &t->m.second_type, "second_type", SR_F32, 1, D, 0, 1, &s);
	}
	return t;
}

/* The labels of the prompts of asked[], which are pairs: their second text begins at a third. */
static std::vector<float> labels(struct drive *d, int from, int to, int n_labels)
{
	int32_t ids[LONGEST];
	int block = 3;

	std::fill_n(d->batch->vector, 8 * n_labels, NAN);
	for (int i = from; i < to; i++) {
		struct sr_pooling how = { (uint32_t)asked[i].kind, 0, 0 };

		for (int t = 0; t < asked[i].n; t++)
			ids[t] = (t * t * 7 + t * 3 + i) % 200;
		drive_begin(d, i, NULL);
		drive_pool(d, i, &how);
		d->batch->cmd[d->batch->n_cmds - 1].a = asked[i].n / 3;
		drive_range(d, i, block, (asked[i].n + 15) / 16);
		drive_pool_row(d, i, asked[i].kind, 0, ids, asked[i].n, i);
		block += (asked[i].n + 15) / 16;
	}
	drive_step(d);
	return std::vector<float>(d->batch->vector + from * n_labels, d->batch->vector + to * n_labels);
}

static void test_classifiers(void **)
{
	static const struct { int of, n_labels; bool dense; enum sr_head_act act; bool norm; } all[] = {
		{ 0, 1, true, SR_HEAD_TANH, false }, { 2, 3, true, SR_HEAD_GELU, true }, { 0, 5, false, SR_HEAD_TANH, false },
	};

	for (const auto &c : all) {
		struct sr_limits lim = whole_prompts();
		struct pair p;

		emu_reversed = !emu_reversed;
		p.model = classifier(&cases[c.of], c.n_labels, c.dense, c.act, c.norm);
		lim.width = c.n_labels;
		truth_open(&p.cpu, p.model, &lim);
		lim.worked = 0;
		lim.deterministic = 1;
		p.model->n_done = 0;
		if (drive_open(&p.gpu, sr_backend_get(SR_BACKEND_VERSION), &p.model->m, &p.model->src, &lim))
			fail_msg("%s", p.gpu.err);
		std::vector<float> want = labels(&p.cpu, 0, n_asked, c.n_labels), got = labels(&p.gpu, 0, n_asked, c.n_labels);
		double most = 0;

		for (float x : want)
			most = fmax(most, fabs((double)x));
		for (size_t i = 0; i < want.size(); i++)
			within("a label", fabs((double)got[i] - want[i]) / most, 0.03, "%d labels, number %zu", c.n_labels, i);
		for (int i = 0; i < n_asked; i++) {
			std::vector<float> alone = labels(&p.gpu, i, i + 1, c.n_labels);

			assert_memory_equal(alone.data(), &got[(size_t)(i * c.n_labels)], (size_t)c.n_labels * sizeof(float));
		}
		close_pair(&p);
	}
	emu_reversed = false;
}

/* ---- what is refused ------------------------------------------------------------------- */

static void refused(struct sr_limits lim, const char *why)
{
	struct tiny *t = encoder(&cases[0]);
	struct drive d;

	assert_int_equal(drive_open(&d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim), -ENOTSUP);
	if (!strstr(d.err, why))
		fail_msg("%s, not: %s", d.err, why);
	tiny_destroy(t);
}

static void test_refused(void **)
{
	struct sr_limits lim = whole_prompts();

	lim.w4a8 = 1;
	refused(lim, "the activations of an encoder stay bf16");
	lim.w4a8 = 0;
	lim.seq_blocks = SR_WHOLE_MAX / 16 + 1;
	refused(lim, "an encoder's prompts have up to 8192 tokens");
	lim = whole_prompts();
	lim.whole = 0;
	refused(lim, "attention to later positions");
	lim.whole = 1;
	lim.world = 2;
	refused(lim, "--runner pooling");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attention),
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_classifiers),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests_name("cuda_encoder", tests, NULL, NULL);
}
