/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!b]*.cu */
/* test_cuda_experts.cc - experts in CUDA: which ones a token goes to, products by expert, their sum; against the
 * formulas in double over the weights that the formats' descriptions give, then whole batches against the CPU. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <algorithm>
#include <vector>

#include "tests/cuda/pair.h"

static void capability(int number)
{
#ifdef CUDA_EMULATED
	emu_capability = number;
#else
	(void)number;
#endif
}

static void open_gpu(struct drive *d, struct tiny *t, bool deterministic)
{
	struct sr_limits lim = limits();

	lim.worked = 0;
	lim.deterministic = deterministic;
	t->n_done = 0;
	if (drive_open(d, sr_backend_get(SR_BACKEND_VERSION), &t->m, &t->src, &lim))
		fail_msg("%s", d->err);
}

template <class T> static std::vector<T> read_device(struct dev *d, const T *from, size_t n)
{
	std::vector<T> v(n);

	cuda_ok(d, cudaMemcpyAsync(v.data(), from, n * sizeof(T), cudaMemcpyDeviceToHost, d->stream), "read");
	assert_int_equal(cudaStreamSynchronize(d->stream), cudaSuccess);
	return v;
}

/* T tokens of slot 0 from position 0 on become what the verbs work on. */
static void begin_tokens(struct drive *d, int T)
{
	std::vector<int32_t> ids((size_t)T + 1, 3);
	struct sr_backend *b = d->b;
	struct flight *f = &b->flight[0];

	drive_begin(d, 0, NULL);
	drive_range(d, 0, 0, 20);
	drive_row(d, 0, 0, ids.data(), T, T - 1, 1);
	step_fill(&b->d, &f->batch, &b->lim, f->first_cmd, f->next_cmd, f->signal);
	step_begin(&b->d);
	step_end(&b->d);
	assert_int_equal(cudaStreamSynchronize(b->d.stream), cudaSuccess);
	clear(d->batch);
}

/* ---- the choice ----------------------------------------------------------------------- */

struct choice { std::vector<int> id; std::vector<double> weight; };

static int best(const std::vector<double> &v, const std::vector<bool> &out)
{
	int at = -1;

	for (size_t i = 0; i < v.size(); i++)
		if (!out[i] && (at < 0 || v[i] > v[(size_t)at]))
			at = (int)i;
	return at;
}

static choice choose(const struct sr_experts &c, const float *logit, const float *bias)
{
	size_t n = (size_t)c.n;
	std::vector<double> s(n), v(n);
	std::vector<bool> out(n);
	double most = -INFINITY, sum = 0;
	choice k;

	for (size_t e = 0; e < n; e++)
		most = fmax(most, (double)logit[e]);
	for (size_t e = 0; e < n; e++) {
		s[e] = c.score == SR_SCORE_SIGMOID ? 1 / (1 + exp(-(double)logit[e]))
			: c.score == SR_SCORE_SOFTMAX ? exp((double)logit[e] - most) : (double)logit[e];
		sum += s[e];
	}
	for (size_t e = 0; e < n; e++) {
		s[e] /= c.score == SR_SCORE_SOFTMAX ? sum : 1;
		v[e] = s[e] + (bias ? (double)bias[e] : 0);
	}
	if (c.groups > 1) {
		size_t each = n / (size_t)c.groups;
		std::vector<double> good((size_t)c.groups);
		std::vector<bool> taken((size_t)c.groups);

		for (size_t g = 0; g < good.size(); g++) {
			std::vector<double> of(v.begin() + (long)(g * each), v.begin() + (long)((g + 1) * each));

			std::sort(of.rbegin(), of.rend());
			good[g] = of[0] + (c.group_sum == 2 ? of[1] : 0);
		}
		for (int i = 0; i < c.groups_top; i++)
			taken[(size_t)best(good, taken)] = true;
		for (size_t e = 0; e < n; e++)
			out[e] = !taken[e / each];
	}
	for (int j = 0; j < c.top; j++) {
		k.id.push_back(best(v, out));
		out[(size_t)k.id.back()] = true;
		k.weight.push_back(s[(size_t)k.id.back()]);
	}
	most = *std::max_element(k.weight.begin(), k.weight.end());
	sum = 0;
	for (double &w : k.weight) {
		w = c.score == SR_SCORE_CHOSEN ? exp(w - most) : w;
		sum += w;
	}
	for (double &w : k.weight)
		w = w / (c.renorm || c.score == SR_SCORE_CHOSEN ? sum : 1) * (double)c.scale;
	return k;
}

/* Pairs lie by expert, each once, and tiles have all of them. */
static void check_pairs(const struct sr_experts &c, const std::vector<int32_t> &id,
	const std::vector<int32_t> &pair, const std::vector<struct expert_tile> &tile, int rows)
{
	size_t at = 0;

	for (const struct expert_tile &k : tile) {
		if (!k.n)
			continue;
		assert_in_range(k.n, 1, rows);
		assert_int_equal(k.first, at);
		for (int i = 0; i < k.n; i++, at++) {
			assert_int_equal(id[(size_t)pair[at]], k.expert);
			assert_true(i == 0 || pair[at] > pair[at - 1]);
		}
	}
	assert_int_equal(at, id.size());
	assert_true(c.n > 0);
}

static void same_choices(const struct sr_experts &c, bool biased, int T)
{
	struct sr_model shape = tiny_shape();
	struct drive d;
	struct tiny *t;
	uint32_t seed = 77;

	shape.experts = c;
	shape.n_layers = 1;
	t = tiny_create(&shape, SR_BF16, biased ? TINY_CHOICE_BIAS : 0, 5);
	open_gpu(&d, t, false);
	begin_tokens(&d, T);
	struct dev *dev = &d.b->d;
	size_t n = (size_t)(T * c.n), pairs = (size_t)(T * c.top);
	std::vector<float> logits(n), bias;

	for (size_t i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		logits[i] = (float)(seed >> 28) / 4; /* few values: many are equal */
	}
	if (biased)
		bias = read_device(dev, d.b->net.layer[0].choice_bias->vec, (size_t)c.n);
	put(dev, P_SCORES, logits.data(), T);
	route(dev, &d.b->m.experts, biased ? d.b->net.layer[0].choice_bias : NULL, T);
	std::vector<int32_t> id = read_device(dev, dev->routing.id, pairs);
	std::vector<int32_t> pair = read_device(dev, dev->routing.pair, pairs);
	std::vector<float> weight = read_device(dev, dev->routing.weight, pairs);
	std::vector<struct expert_tile> tile = read_device(dev, dev->routing.tile,
		(size_t)expert_tiles(T, c.n, c.top));

	for (int i = 0; i < T; i++) {
		choice want = choose(c, &logits[(size_t)(i * c.n)], biased ? bias.data() : NULL);

		for (int j = 0; j < c.top; j++) {
			size_t at = (size_t)(i * c.top + j);

			if (id[at] != want.id[(size_t)j] || !(fabs((double)weight[at] - want.weight[(size_t)j]) <= 1e-5))
				fail_msg("%d of %d experts, score %d, token %d, rank %d: expert %d with %f, not %d with %f", c.top,
					c.n, c.score, i, j, id[at], (double)weight[at], want.id[(size_t)j], want.weight[(size_t)j]);
		}
	}
	check_pairs(c, id, pair, tile, expert_rows(T, c.n, c.top));
	drive_close(&d);
	tiny_destroy(t);
}

static struct sr_experts experts(int32_t n, int32_t top, int32_t d_ff, int32_t d_shared, int32_t score, int32_t renorm)
{
	struct sr_experts c = {};

	c.n = n;
	c.top = top;
	c.d_ff = d_ff;
	c.d_shared = d_shared;
	c.score = score;
	c.renorm = renorm;
	c.scale = 1;
	return c;
}

static void test_choice(void **)
{
	struct sr_experts c;

	same_choices(experts(8, 2, 32, 0, SR_SCORE_SOFTMAX, 1), false, 5);
	emu_reversed = true;
	same_choices(experts(33, 8, 32, 0, SR_SCORE_SOFTMAX, 0), false, 130);
	same_choices(experts(6, 4, 32, 0, SR_SCORE_CHOSEN, 0), true, 70);
	emu_reversed = false;
	c = experts(32, 3, 32, 0, SR_SCORE_SIGMOID, 1);
	c.groups = 8;
	c.groups_top = 3;
	c.group_sum = 2;
	c.scale = 2.5f;
	same_choices(c, true, 9);
	c.group_sum = 1;
	same_choices(c, false, 9);
	same_choices(experts(512, 32, 8, 0, SR_SCORE_SIGMOID, 1), false, 33);
}

/* NaN never leaves the experts that there are. */
static void test_broken_scores(void **)
{
	struct sr_model shape = tiny_shape();
	struct drive d;
	struct tiny *t;

	shape.experts = experts(6, 3, 32, 0, SR_SCORE_SOFTMAX, 1);
	t = tiny_create(&shape, SR_BF16, 0, 5);
	open_gpu(&d, t, false);
	begin_tokens(&d, 4);
	std::vector<float> logits = { NAN, NAN, NAN, NAN, NAN, NAN,  1, NAN, 2, NAN, NAN, NAN,
		INFINITY, 0, 0, 0, 0, 0,  -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY };

	put(&d.b->d, P_SCORES, logits.data(), 4);
	route(&d.b->d, &d.b->m.experts, NULL, 4);
	std::vector<int32_t> id = read_device(&d.b->d, d.b->d.routing.id, 12);

	for (int i = 0; i < 12; i++) {
		assert_in_range(id[(size_t)i], 0, 5);
		assert_true(i % 3 == 0 || id[(size_t)i] != id[(size_t)i - 1]);
	}
	assert_int_equal(id[3], 2);
	assert_int_equal(id[4], 0);
	drive_close(&d);
	tiny_destroy(t);
}

/* ---- products ------------------------------------------------------------------------- */

static double half(double x)
{
	return (double)f32_of(bf16_of((float)x));
}

/* out[n] = w x + bias, of expert e (of several) */
static std::vector<double> times(const struct tiny *t, const struct sr_tensor *w, const struct sr_tensor *bias, int e,
	const std::vector<double> &x)
{
	struct sr_tensor one = tiny_part(w, e), b = {};
	float *f = tiny_dense(t, &one), *g = NULL;
	std::vector<double> y((size_t)w->n);

	if (bias->type != SR_NONE) {
		b = tiny_part(bias, e);
		g = tiny_dense(t, &b);
	}
	for (size_t i = 0; i < y.size(); i++) {
		for (size_t k = 0; k < x.size(); k++)
			y[i] += (double)f[i * x.size() + k] * x[k];
		y[i] += g ? (double)g[i] : 0;
	}
	free(f);
	free(g);
	return y;
}

static std::vector<double> gated(const struct tiny *t, const std::vector<double> &g, const std::vector<double> &u)
{
	std::vector<double> y(g.size());
	double c = (double)t->m.act_limit;

	for (size_t i = 0; i < g.size(); i++) {
		double a = half(g[i]), b = half(u[i]);

		if (t->m.act == SR_OAI) {
			a = fmin(a, c);
			b = fmax(fmin(b, c), -c);
		}
		y[i] = half(t->m.act == SR_OAI ? (b + 1) * a / (1 + exp(-1.702 * a)) : b * a / (1 + exp(-a)));
	}
	return y;
}

/* What a layer's experts make of y, in double. */
static std::vector<double> sum_of(const struct tiny *t, const float *row)
{
	const struct sr_layer *w = &t->m.layer[0];
	const struct sr_experts &c = t->m.experts;
	const struct sr_tensor none = {};
	std::vector<double> y(row, row + t->m.d_model), z(y.size()), s = times(t, &w->router, &w->router_bias, 0, y);
	std::vector<float> logits(s.begin(), s.end());
	float *bias = w->choice_bias.type != SR_NONE ? tiny_dense(t, &w->choice_bias) : NULL;
	choice k = choose(c, logits.data(), bias);

	for (size_t j = 0; j < k.id.size(); j++) {
		std::vector<double> x = y;

		for (double &f : x)
			f = half(c.before ? f * k.weight[j] : f);
		x = gated(t, times(t, &w->expert_gate, &w->expert_gate_bias, k.id[j], x),
			times(t, &w->expert_up, &w->expert_up_bias, k.id[j], x));
		x = times(t, &w->expert_down, &w->expert_down_bias, k.id[j], x);
		for (size_t i = 0; i < z.size(); i++)
			z[i] += (c.before ? 1 : k.weight[j]) * x[i];
	}
	if (c.d_shared) {
		double by = 1;
		std::vector<double> x = gated(t, times(t, &w->shared_gate, &none, 0, y),
			times(t, &w->shared_up, &none, 0, y));

		if (w->shared_mix.type != SR_NONE)
			by = 1 / (1 + exp(-times(t, &w->shared_mix, &none, 0, y)[0]));
		x = times(t, &w->shared_down, &none, 0, x);
		for (size_t i = 0; i < z.size(); i++)
			z[i] += by * x[i];
	}
	free(bias);
	return z;
}

/* Z of T rows of Y, by the verbs as forward() calls them. */
static std::vector<float> run_experts(struct drive *d, const std::vector<float> &y, int T)
{
	struct dev *dev = &d->b->d;
	const struct net_layer *w = &d->b->net.layer[0];
	const struct sr_model *m = &d->b->m;
	const struct sr_experts *x = &m->experts;
	enum sr_act act = (enum sr_act)m->act;

	begin_tokens(d, T);
	put(dev, P_Y, y.data(), T);
	if (w->gu) {
		matmul(dev, P_GU, P_Y, w->gu, T);
		act_mul(dev, SR_GATED, act, m->act_limit, x->d_shared, T);
		matmul(dev, P_Z, P_ACT, w->down, T);
	}
	matmul(dev, P_SCORES, P_Y, w->router, T);
	route(dev, x, w->choice_bias, T);
	matmul(dev, P_GU, P_Y, w->expert_gu, T);
	act_mul(dev, SR_GATED, act, m->act_limit, x->d_ff, T * x->top);
	matmul(dev, P_OUT, P_ACT, w->expert_down, T);
	combine(dev, x, w->gu != NULL, w->shared_mix, T);
	std::vector<float> z((size_t)(T * m->d_model));

	get(dev, P_Z, z.data(), T);
	if (dev->fault.lost)
		fail_msg("%s; %s", dev->fault.why, emu_fault() ? emu_fault() : "");
	return z;
}

static std::vector<float> some_rows(int T, int D, uint32_t seed)
{
	std::vector<float> y((size_t)(T * D));

	fill(y.data(), T * D, seed);
	return y;
}

static void same_sums(struct tiny *t, const char *what, bool deterministic)
{
	struct drive d;
	int D = t->m.d_model;
	std::vector<float> y = some_rows(40, D, 9), alone, z;

	open_gpu(&d, t, deterministic);
	alone = run_experts(&d, std::vector<float>(y.begin() + 7 * D, y.begin() + 8 * D), 1);
	for (int T : { 1, 9, 40 }) {         /* 40: tiles of 64 pairs */
		emu_reversed = !emu_reversed;
		z = run_experts(&d, y, T);
		for (int i = 0; i < T; i += T > 20 ? 7 : 1) {
			std::vector<double> want = sum_of(t, &y[(size_t)(i * D)]);
			double off = 0, size = 0;

			for (int k = 0; k < D; k++) {
				double e = (double)z[(size_t)(i * D + k)] - want[(size_t)k];

				off += e * e;
				size += want[(size_t)k] * want[(size_t)k];
			}
			if (!(sqrt(off) <= 0.01 * sqrt(size)) || !(size > 0))
				fail_msg("%s, row %d of %d%s: off by %g", what, i, T, emu_reversed ? ", reversed" : "",
					sqrt(off / size));
		}
		/* in any company the same bits; the shared expert's product of many rows is another kernel */
		if (T > 1 && (T <= 16 || !t->m.experts.d_shared || deterministic))
			assert_memory_equal(alone.data(), &z[(size_t)(7 * D)], (size_t)D * sizeof(float));
	}
	emu_reversed = false;
	drive_close(&d);
	tiny_destroy(t);
}

static struct tiny *experts_of(const struct sr_experts &c, int32_t type, unsigned flags, int32_t d_model = 64)
{
	struct sr_model shape = tiny_shape();

	shape.d_model = d_model;
	shape.experts = c;
	shape.n_layers = 1;
	if (flags & TINY_EXPERT_BIAS) {
		shape.act = SR_OAI;
		shape.act_limit = 2;
	}
	return tiny_create(&shape, type, flags, 5);
}

static void test_products(void **)
{
	struct sr_experts plain = experts(6, 3, 96, 0, SR_SCORE_SOFTMAX, 1), other = plain;

	same_sums(experts_of(plain, SR_BF16, 0), "bf16", false);
	same_sums(experts_of(plain, SR_F32, TINY_EACH), "f32, apart", false);
	same_sums(experts_of(plain, SR_Q8_0, 0), "q8_0", false);
	same_sums(experts_of(plain, SR_Q4_0, 0), "q4_0", false);
	same_sums(experts_of(plain, SR_Q4_1, TINY_EACH), "q4_1, apart", false);
	same_sums(experts_of(plain, SR_AWQ4, 0), "awq", false);
	same_sums(experts_of(plain, SR_GPTQ4, 0), "gptq", false);
	same_sums(experts_of(plain, SR_CT4, 0), "compressed-tensors", false);
	same_sums(experts_of(plain, SR_MXFP4, TINY_EXPERT_BIAS), "mxfp4, biases", false);
	/* an expert's 96 outputs end in the middle of a strip of 64 */
	same_sums(experts_of(plain, SR_Q8_0, 0, 96), "q8_0, 96 outputs", false);
	same_sums(experts_of(plain, SR_AWQ4, 0, 96), "awq, 96 outputs", false);
	capability(89);
	same_sums(experts_of(plain, SR_F8, 0), "fp8", false);
	capability(90);
	other.d_shared = 32;
	same_sums(experts_of(other, SR_BF16, TINY_SHARED_MIX | TINY_CHOICE_BIAS), "shared, mixed, choice bias", false);
	same_sums(experts_of(other, SR_BF16, 0), "shared", true);
	capability(80);
	other.d_shared = 0;
	other.top = 1;
	other.before = 1;
	other.score = SR_SCORE_SIGMOID;
	other.renorm = 0;
	same_sums(experts_of(other, SR_BF16, 0), "weights before", false);
}

/* ---- how they are stored -------------------------------------------------------------- */

static struct sr_extent append(struct tiny *t, const std::vector<uint8_t> &more)
{
	struct sr_extent e = {};

	e.offset = t->size;
	e.bytes = more.size();
	t->bytes = (uint8_t *)realloc(t->bytes, t->size + more.size());
	assert_non_null(t->bytes);
	memcpy(t->bytes + t->size, more.data(), more.size());
	t->size += more.size();
	return e;
}

/* gate and up in one tensor whose outputs alternate; of expert e, gate's bytes of `each` per output, then up's. */
static std::vector<uint8_t> alternate(const struct tiny *t, const struct sr_tensor *gate, const struct sr_tensor *up,
	size_t each)
{
	std::vector<uint8_t> all;

	for (int e = 0; e < gate->count; e++) {
		struct sr_stored g = sr_stored_of(gate, e), u = sr_stored_of(up, e);

		for (size_t i = 0; i < g.data.bytes / each; i++)
			for (const struct sr_stored *s : { &g, &u })
				all.insert(all.end(), t->bytes + s->data.offset + i * each,
					t->bytes + s->data.offset + (i + 1) * each);
	}
	return all;
}

static void use(struct sr_tensor *w, struct sr_extent data, int first, int transposed)
{
	w->data = data;
	w->outputs = 2 * (w->n == 1 ? w->k : w->n);
	w->first = first;
	w->step = 2;
	w->transposed = transposed;
}

/* [rows][columns] of 2 bytes, for each expert, to [columns][rows] */
static std::vector<uint8_t> transpose(const std::vector<uint8_t> &from, size_t rows, size_t columns)
{
	std::vector<uint8_t> to(from.size());

	for (size_t i = 0; i < from.size() / 2; i++) {
		size_t e = i / (rows * columns), r = i / columns % rows, c = i % columns;

		memcpy(&to[2 * ((e * columns + c) * rows + r)], &from[2 * i], 2);
	}
	return to;
}

/* GGUF's blocks of 17 bytes to data [..][16], adjacent weights in a byte, and scales. */
static void part_mxfp4(struct tiny *t, struct sr_tensor *w, const std::vector<uint8_t> &from)
{
	std::vector<uint8_t> data, scale;

	for (size_t b = 0; b < from.size(); b += 17) {
		scale.push_back(from[b]);
		for (int i = 0; i < 16; i++) {
			auto at = [&](int k) { return k < 16 ? from[b + 1 + (size_t)k] & 15 : from[b + 1 + (size_t)k - 16] >> 4; };

			data.push_back((uint8_t)(at(2 * i) | at(2 * i + 1) << 4));
		}
	}
	w->data = append(t, data);
	w->scale = append(t, scale);
}

/* The same weights, stored otherwise: the same bits. */
static void test_stored(void **)
{
	struct sr_experts c = experts(6, 3, 96, 0, SR_SCORE_SOFTMAX, 1);

	for (int form = 0; form < 5; form++) {
		int32_t type = form >= 3 ? SR_MXFP4 : SR_BF16;
		std::vector<float> y = some_rows(9, 64, 9), z[2];

		for (int other = 0; other < 2; other++) {
			struct tiny *t = experts_of(c, type, TINY_EXPERT_BIAS);
			struct sr_layer *w = &t->m.layer[0];
			struct drive d;

			if (other) {
				std::vector<uint8_t> all = alternate(t, &w->expert_gate, &w->expert_up, type == SR_BF16 ? 128 : 34);
				struct sr_extent bias = append(t, alternate(t, &w->expert_gate_bias, &w->expert_up_bias, 4));

				if (form % 2)                /* bf16: transposed; MXFP4: scales apart */
					type == SR_BF16 ? (void)(all = transpose(all, 192, 64)) : part_mxfp4(t, &w->expert_gate, all);
				if (form != 3)
					w->expert_gate.data = append(t, all);
				w->expert_up.scale = w->expert_gate.scale;
				use(&w->expert_up, w->expert_gate.data, 1, form == 1);
				use(&w->expert_gate, w->expert_gate.data, 0, form == 1);
				use(&w->expert_up_bias, bias, 1, 0);
				use(&w->expert_gate_bias, bias, 0, 0);
			}
			open_gpu(&d, t, false);
			z[other] = run_experts(&d, y, 9);
			drive_close(&d);
			tiny_destroy(t);
		}
		assert_memory_equal(z[0].data(), z[1].data(), z[0].size() * sizeof(float));
	}
}

/* ---- whole batches -------------------------------------------------------------------- */

static void test_models(void **)
{
	/* Where scores are nearly equal, rounding to bf16 chooses another expert, and the answer is another one.  So
	 * two of them go to every expert, and the third has few such scores. */
	static const struct { const char *what; int32_t type; unsigned flags; int top, shared, groups; double bound; }
	cases[] = {
		{ "qwen3 moe", SR_BF16, TINY_QK_NORM, 8, 0, 0, 0.06 },
		{ "a shared expert, groups", SR_BF16, TINY_CHOICE_BIAS | TINY_SHARED_MIX | TINY_UNTIED, 2, 32, 4, 0.06 },
		{ "biases, 4 bits", SR_MXFP4, TINY_EXPERT_BIAS | TINY_BIAS | TINY_UNTIED, 8, 0, 0, 0.1 },
	};
	int same = 0;

	for (const auto &k : cases) {
		struct sr_model shape = tiny_shape();
		static struct answer a, b;
		double diff = 0;
		struct pair p;

		shape.experts = experts(8, k.top, 96, k.shared, k.groups ? SR_SCORE_SIGMOID : SR_SCORE_SOFTMAX, 1);
		shape.experts.groups = k.groups;
		shape.experts.groups_top = 2;
		shape.experts.group_sum = 2;
		if (k.flags & TINY_EXPERT_BIAS) {
			shape.act = SR_OAI;
			shape.act_limit = 7;
		}
		open_pair(&p, &shape, k.type, k.flags, 7);
		converse(&p.cpu, &a);
		converse(&p.gpu, &b);
		for (int i = 0; i < 70; i++)
			diff += fabs((double)a.result[i].logprob - b.result[i].logprob) / 70;
		if (!(diff <= k.bound))
			fail_msg("%s: mean difference %g of log-probabilities", k.what, diff);
		for (int row = 0; row < 2; row++)
			same += same_tokens(&a, &b, 71 + row, k.what);
		close_pair(&p);
	}
	assert_true(same > 3 * 26 / 2);
}

static void test_refused(void **)
{
	static const struct { int n, top, groups, d_ff, count; const char *say; } cases[] = {
		{ 6, 3, 0, 96, 6, NULL }, { 513, 3, 0, 96, 513, "up to 512 in up to 32 groups" }, { 6, 7, 0, 96, 6, "for a token" },
		{ 6, 3, 4, 96, 6, "of one size" }, { 6, 3, 0, 92, 6, "multiples of 8" },
		{ 6, 3, 0, 96, 5, "holds 5 matrices, but 6 are computed together" },
	};
	struct tiny *t = experts_of(experts(6, 3, 96, 0, SR_SCORE_SOFTMAX, 1), SR_BF16, 0);
	struct sr_limits lim = limits();
	struct sr_need need;
	char err[512];

	for (const auto &k : cases) {
		struct sr_model m = t->m;

		m.experts.n = k.n;
		m.experts.top = k.top;
		m.experts.groups = k.groups;
		m.experts.groups_top = 1;
		m.experts.d_ff = k.d_ff;
		m.layer[0].expert_up.count = k.count;
		if (k.n > 6)
			m.layer[0].expert_up.count = 6;
		err[0] = 0;
		assert_int_equal(!plan(&m, &lim, &need, err, sizeof(err)), !k.say);
		if (k.say && !strstr(err, k.say))
			fail_msg("\"%s\" does not say \"%s\"", err, k.say);
	}
	tiny_destroy(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_broken_scores),
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_stored),
		cmocka_unit_test(test_models),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
