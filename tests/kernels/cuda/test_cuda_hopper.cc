/* LINK: kernels/cuda/hopper_many_rows.cu kernels/cuda/hopper_attend.cu kernels/cuda/packed_many_rows.cu */
/* test_cuda_hopper.cc - products of many rows and attention of runs by Hopper's kernels, against sums in double.
 * Weights are packed here, in the order that packed.cuh describes. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <cstdio>
#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/packed.cuh"
#include "tests/cuda/errors.h"
#include "tests/cuda/real.h"

bool cuda_ok(struct dev *d, cudaError_t e, const char *what)
{
	if (e != cudaSuccess && !d->fault.lost) {
		d->fault.lost = true;
		snprintf(d->fault.why, sizeof(d->fault.why), "%s: %s", what, cudaGetErrorString(e));
	}
	return !d->fault.lost;
}

static uint32_t dice(uint32_t *s)
{
	*s = *s * 1664525u + 1013904223u;
	return *s >> 8;
}

static float unit(uint32_t *s)                 /* [-1, 1) */
{
	return (float)dice(s) / (1 << 23) - 1;
}

/* Is this a GPU that they run on?  The emulation plays one. */
static bool on_hopper(void)
{
#ifdef CUDA_EMULATED
	return true;
#else
	int major = 0;

	cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
	return can_hopper(10 * major);
#endif
}

/* ---- memory --------------------------------------------------------------------------- */

template <class T> struct memory {             /* of the device, NaN at first */
	T *at;
	size_t n;

	memory(struct dev *d, size_t count) : n(count)
	{
		assert_int_equal(cudaMalloc((void **)&at, n * sizeof(T)), cudaSuccess);
		assert_int_equal(cudaMemsetAsync(at, 0xff, n * sizeof(T), d->stream), cudaSuccess);
	}
	memory(struct dev *d, const std::vector<T> &from) : memory(d, from.size())
	{
		if (n)
			assert_int_equal(cudaMemcpyAsync(at, from.data(), n * sizeof(T), cudaMemcpyHostToDevice,
				d->stream), cudaSuccess);
		assert_int_equal(cudaStreamSynchronize(d->stream), cudaSuccess);
	}
	~memory() { cudaFree(at); }
	std::vector<T> read(struct dev *d) const
	{
		std::vector<T> to(n);

		cudaMemcpyAsync(to.data(), at, n * sizeof(T), cudaMemcpyDeviceToHost, d->stream);
		if (cudaStreamSynchronize(d->stream) != cudaSuccess || d->fault.lost)
			fail_msg("%s; %s", d->fault.why, emu_fault() ? emu_fault() : "");
		return to;
	}
};

/* ---- cases ---------------------------------------------------------------------------- */

struct product {
	const char *what;
	enum held held;
	int N, K, group;                       /* inputs of a group */
	int T, processors;
	bool f32, bias;
};

struct made {                                  /* a matrix: its bytes and its values */
	std::vector<bf16> half;
	std::vector<uint32_t> words, scale;
	std::vector<float> value;              /* [N][K] */
	struct weight w;
};

static uint32_t f16_bits(float f)              /* of normal numbers with 10 bits of fraction */
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return f == 0 ? 0 : (u >> 16 & 0x8000) | ((u & 0x7fffffff) - (112u << 23)) >> 13;
}

static float short_unit(uint32_t *s)           /* 0.5 .. 1 in 1/1024 */
{
	return 0.5f + (float)(dice(s) % 512) / 1024;
}

static float e4m3_value(uint32_t v)
{
	int e = (int)(v >> 3 & 15);
	float f = ldexpf((float)(v & 7) + (e ? 8 : 0), (e ? e : 1) - 10);

	return v & 0x80 ? -f : f;
}

static void make(made *m, const product &p, uint32_t *seed)
{
	int width = (p.N + STRIP - 1) / STRIP * STRIP, each = p.held == HELD_W4 ? 1 : 2;
	size_t N = (size_t)p.N, K = (size_t)p.K;

	m->value.resize(N * K);
	m->w.held = p.held;
	m->w.n = p.N;
	m->w.k = p.K;
	if (p.held == HELD_BF16) {
		m->half.resize(N * K);
		for (size_t i = 0; i < N * K; i++) {
			m->half[i] = bf16_of(unit(seed));
			m->value[i] = f32_of(m->half[i]);
		}
		return;
	}
	m->words.resize((size_t)(width / STRIP) * (K / SLAB) * TILE_WORDS * (size_t)each);
	m->scale.resize((K / (size_t)p.group) * (size_t)width);
	m->w.packed = { NULL, NULL, p.N, p.K, width, p.group / SLAB, NULL };
	for (int g = 0; g < p.K / p.group; g++) {
		for (int n = 0; n < p.N; n++) {
			float s = short_unit(seed), b = short_unit(seed) - 0.75f, v;
			uint32_t word;

			memcpy(&word, &s, sizeof(word));
			m->scale[(size_t)(g * width + n)] = p.held == HELD_W4 ? f16_bits(s) | f16_bits(b) << 16 : word;
			for (int k = g * p.group; k < (g + 1) * p.group; k++) {
				uint32_t q = dice(seed) & (p.held == HELD_W4 ? 15 : 0xff);

				if (p.held == HELD_W8) {
					q = (q & 0x7f) == 0x7f ? 0x81 : q; /* a NaN */
					m->words[packed_at<2>(n, k, p.K)] |= q << 8 * byte_of(k);
					v = e4m3_value(q) * s;
				} else {
					m->words[packed_at<1>(n, k, p.K)] |= q << 4 * nibble_of(k);
					v = f32_of(bf16_of(s * (float)((int)q - 8) + b)); /* as the kernel rounds it */
				}
				m->value[(size_t)n * K + (size_t)k] = v;
			}
		}
	}
}

/* As the device does it to bf16 rows. */
static void quantize(std::vector<float> &x, int T, int K)
{
	for (int t = 0; t < T; t++) {
		float *row = &x[(size_t)t * (size_t)K], most = 0;

		for (int k = 0; k < K; k++)
			most = fmaxf(most, fabsf(row[k]));
		for (int k = 0; k < K; k++)
			row[k] = e4m3_value(e4m3_of(row[k] * (448 / most))) * (most / 448);
	}
}

/* Every element of y within `bound` of its row's size; nothing is written beyond them. */
static void compare(const product &p, const std::vector<float> &y, const std::vector<float> &x, const made &m,
	const std::vector<float> &bias)
{
	size_t N = (size_t)p.N, K = (size_t)p.K;
	double bound = p.held == HELD_W8 ? e4m3_bound(90) + (p.f32 ? 0 : 0.004) : p.f32 ? 1e-5 : 0.004;

	for (size_t t = 0; t < (size_t)p.T; t++) {
		std::vector<double> sum(N);
		double size = 0;

		for (size_t n = 0; n < N; n++) {
			const float *w = &m.value[n * K], *r = &x[t * K];

			sum[n] = p.bias ? bias[n] : 0;
			for (size_t k = 0; k < K; k++)
				sum[n] += (double)r[k] * (double)w[k];
			size += sum[n] * sum[n];
		}
		size = sqrt(size / (double)N);
		for (size_t n = 0; n < N; n++)
			within(p.what, fabs(y[t * N + n] - sum[n]) / (fabs(sum[n]) + size), bound,
				"%dx%d, %d rows, %d processors%s: row %zu output %zu is %g, not %g", p.N, p.K, p.T,
				p.processors, emu_reversed ? ", reversed" : "", t, n, (double)y[t * N + n], sum[n]);
	}
	for (size_t i = (size_t)p.T * N; i < y.size(); i++)
		if (y[i] == y[i])
			fail_msg("%s %dx%d, %d rows: written %zu past the end", p.what, p.N, p.K, p.T, i - (size_t)p.T * N);
}

/* The device, as far as products know it. */
static void set_up(struct dev *d, int processors)
{
	memset((void *)d, 0, sizeof(*d));
	d->gpu.capability = 90;
	d->gpu.processors = processors;
	assert_int_equal(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), cudaSuccess);
	assert_int_equal(cudaMalloc((void **)&d->product.hopper_work, hopper_work_bytes(d)), cudaSuccess);
	assert_true(hopper_many_rows_prepare(d) && packed_many_rows_prepare(d));
}

static void tear_down(struct dev *d)
{
	assert_int_equal(cudaStreamSynchronize(d->stream), cudaSuccess);
	assert_int_equal(cudaFree(d->product.hopper_work), cudaSuccess);
	assert_int_equal(cudaStreamDestroy(d->stream), cudaSuccess);
	assert_int_equal(emu_allocations, 0);
}

static std::vector<float> multiply(struct dev *d, const product &p, made *m, const std::vector<bf16> &half,
	const std::vector<float> &bias)
{
	size_t T = (size_t)p.T, N = (size_t)p.N, K = (size_t)p.K, beyond = 300;
	memory<bf16> x(d, half), mat(d, m->half);
	memory<uint32_t> words(d, m->words), scale(d, m->scale), x8(d, T * K / 4 + 1);
	memory<float> b(d, bias), x_scale(d, T), y(d, T * N + beyond);

	m->w.mat = mat.at;
	m->w.packed.words = words.at;
	m->w.packed.scale = scale.at;
	m->w.bias = p.bias ? b.at : NULL;
	d->product.x8 = x8.at;
	d->product.x8_scale = x_scale.at;
	if (p.held == HELD_BF16)
		assert_true(hopper_many_rows(d, y.at, p.f32, x.at, &m->w, p.T));
	else
		packed_many_rows(d, y.at, p.f32, x.at, &m->w, p.T, false);
	if (p.f32)
		return y.read(d);

	std::vector<float> raw = y.read(d), wide(T * N + beyond);
	const bf16 *at = (const bf16 *)raw.data();

	for (size_t i = 0; i < wide.size(); i++)
		wide[i] = f32_of(at[i]);
	return wide;
}

static void run(const product &p, uint32_t *seed)
{
	struct dev d;
	made m = {};
	std::vector<bf16> half((size_t)(p.T * p.K));
	std::vector<float> x(half.size()), bias((size_t)p.N);

	set_up(&d, p.processors);
	make(&m, p, seed);
	for (size_t i = 0; i < x.size(); i++) {
		half[i] = bf16_of(unit(seed) * (i % 37 == 5 ? 8.0f : 1.5f));
		x[i] = f32_of(half[i]);
	}
	for (float &f : bias)
		f = 3 * unit(seed);
	std::vector<float> y = multiply(&d, p, &m, half, bias), again = multiply(&d, p, &m, half, bias);

	assert_memory_equal(y.data(), again.data(), y.size() * sizeof(float)); /* counts begin at zero again */
	if (p.held == HELD_W8)
		quantize(x, p.T, p.K);
	compare(p, y, x, m, bias);
	tear_down(&d);
}

static void test_products(void **)
{
	static const product cases[] = {
		{ "hopper_many_rows bf16", HELD_BF16, 128, 64, 0, 65, 4, true, false },
		{ "hopper_many_rows bf16", HELD_BF16, 200, 576, 0, 129, 4, false, true },
		{ "hopper_many_rows bf16", HELD_BF16, 264, 1064, 0, 300, 4, true, true },
		{ "hopper_many_rows bf16", HELD_BF16, 70, 328, 0, 200, 7, false, false },
		{ "hopper_many_rows bf16", HELD_BF16, 600, 72, 0, 256, 3, true, false },
		{ "hopper_many_rows bf16", HELD_BF16, 136, 2048, 0, 1, 8, true, false },
		{ "hopper_many_rows W4", HELD_W4, 128, 64, 32, 65, 4, true, false },
		{ "hopper_many_rows W4", HELD_W4, 200, 1056, 32, 129, 4, false, true },
		{ "hopper_many_rows W4", HELD_W4, 264, 1056, 96, 300, 5, true, true },
		{ "hopper_many_rows W4", HELD_W4, 72, 256, 128, 200, 7, false, false },
		{ "hopper_many_rows W4", HELD_W4, 600, 96, 96, 256, 3, true, false },
		{ "hopper_many_rows W8A8", HELD_W8, 128, 128, 128, 65, 4, true, false },
		{ "hopper_many_rows W8A8", HELD_W8, 200, 1024, 128, 129, 4, false, true },
		{ "hopper_many_rows W8A8", HELD_W8, 264, 1056, 1056, 300, 5, true, true },
		{ "hopper_many_rows W8A8", HELD_W8, 72, 288, 288, 200, 7, false, false },
		{ "packed_many_rows W8A8", HELD_W8, 72, 288, 96, 70, 7, true, false },
	};
	uint32_t seed = 7;

	if (!on_hopper())
		skip();
	for (const product &p : cases) {
		for (int r = 0; r < 2; r++) {
			emu_reversed = r;
			run(p, &seed);
		}
	}
	emu_reversed = false;
}

/* ---- attention -------------------------------------------------------------------------- */

struct prompt { int first, n; };               /* tokens at positions first .., those before are in the cache */
struct attention {
	int H, G, E, window;
	float cap;
	prompt prompts[3];
	int chunk = 0;
	bool sinks = false;
};

/* A cache whose blocks are dealt out in no order; what no prompt has stored is NaN. */
struct cache {
	const attention &c;
	int L = 2, l = 1, blocks = 1, table_cap = 50;
	std::vector<int32_t> table;
	std::vector<bf16> kv;

	size_t at(int slot, int position, int g, int value) const
	{
		size_t block = (size_t)table[(size_t)(slot * table_cap + position / BLOCK)];

		return (((block * (size_t)L + (size_t)l) * (size_t)c.G + (size_t)g) * 2 + (size_t)value) *
			(size_t)(BLOCK * c.E) + (size_t)(position % BLOCK * c.E);
	}
	cache(const attention &a, uint32_t *seed) : c(a), table((size_t)(3 * table_cap), 0)
	{
		for (int j = 0; j < table_cap; j++)
			for (int slot = 0; slot < 3; slot++)
				if (j * BLOCK < c.prompts[slot].first + c.prompts[slot].n)
					table[(size_t)(slot * table_cap + j)] = blocks++;
		kv.assign((size_t)(blocks * L * c.G * 2 * BLOCK * c.E), 0xffff);
		for (int slot = 0; slot < 3; slot++)
			for (int j = 0; j < c.prompts[slot].first + c.prompts[slot].n; j++)
				for (int g = 0; g < 2 * c.G; g++)
					for (int e = 0; e < c.E; e++)
						kv[at(slot, j, g / 2, g % 2) + (size_t)e] = bf16_of(2 * unit(seed));
	}
};

/* One head of one token, in double. */
static std::vector<double> attended(const cache &k, const bf16 *q, int slot, int position, int g, float scale,
	const float *sink)
{
	const attention &c = k.c;
	int window = c.window && position >= c.window ? position - c.window + 1 : 0;
	int low = c.chunk && position / c.chunk * c.chunk > window ? position / c.chunk * c.chunk : window;
	std::vector<double> out((size_t)c.E), x((size_t)(position + 1));
	double most = -INFINITY, sum = 0;

	for (int j = low; j <= position; j++) {
		for (int e = 0; e < c.E; e++)
			x[(size_t)j] += (double)f32_of(q[e]) * (double)f32_of(k.kv[k.at(slot, j, g, 0) + (size_t)e]);
		x[(size_t)j] *= scale;
		if (c.cap > 0)
			x[(size_t)j] = c.cap * tanh(x[(size_t)j] / c.cap);
		most = fmax(most, x[(size_t)j]);
	}
	for (int j = low; j <= position; j++) {
		double p = exp(x[(size_t)j] - most);

		sum += p;
		for (int e = 0; e < c.E; e++)
			out[(size_t)e] += p * (double)f32_of(k.kv[k.at(slot, j, g, 1) + (size_t)e]);
	}
	for (double &o : out)
		o /= sum + (sink ? exp(*sink - most) : 0);
	return out;
}

static void attend_case(struct dev *d, const attention &c, uint32_t *seed)
{
	int heads = c.H / c.G, each = 1, width = (c.H + 2 * c.G) * c.E, T = 0;
	struct sr_model m = {};
	cache k(c, seed);
	std::vector<struct kv_place> place;
	std::vector<struct batch_token> tokens;
	std::vector<struct run_piece> runs;
	const float scale = 0.3f / sqrtf((float)c.E / 16);

	m.kind[0].n_heads = c.H;
	m.kind[0].n_kv_heads = c.G;
	m.kind[0].head_dim = c.E;
	m.kind[0].scale = scale;
	m.kind[0].cap = c.cap;
	m.kind[0].window = c.window;
	m.kind[0].chunk = c.chunk;
	m.n_layers = k.L;
	d->m = &m;
	assert_true(hopper_attends(d) && hopper_attend_prepare(d));
	each = hopper_attend_rows() / heads;
	for (int slot = 0; slot < 3; slot++) {
		const prompt &p = c.prompts[slot];

		for (int i = 0; i < p.n; i += each)
			runs.push_back({ (int32_t)tokens.size() + i, p.n - i < each ? p.n - i : each, 0,
				p.first + (p.n - i < each ? p.n : i + each), (int32_t)runs.size(), 1 });
		for (int i = 0; i < p.n; i++)
			tokens.push_back({ 0, p.first + i, slot });
	}
	runs.push_back({ -1, 0, 0, 0, 0, 0 }); /* padding */
	T = (int)tokens.size();
	std::vector<bf16> qkv((size_t)(T * width));

	for (bf16 &b : qkv)
		b = bf16_of(2 * unit(seed));
	std::vector<float> sinks((size_t)c.H);

	for (float &f : sinks)
		f = 4 * unit(seed);
	memory<bf16> x(d, qkv), kv(d, k.kv), out(d, (size_t)(T * c.H * c.E) + 300);
	memory<float> sink(d, sinks);
	memory<struct batch_token> token(d, tokens);
	memory<struct run_piece> run(d, runs);
	memory<int32_t> table(d, k.table);

	d->act.place[P_QKV] = x.at;
	d->act.place[P_A] = out.at;
	d->batch.list.token = token.at;
	d->batch.list.run = run.at;
	d->batch.step.n_runs = (int32_t)runs.size();
	d->slots.table = table.at;
	d->slots.table_cap = k.table_cap;
	d->kv.base = (unsigned char *)kv.at;
	for (int l = 0; l < k.L; l++)
		place.push_back({ 0, l });
	d->kv.place = place.data();
	d->kv.places = k.L;
	d->kv.rows = (int64_t)k.blocks * k.L * c.G * 2 * BLOCK;
	d->attend.q_width = width;
	hopper_attend(d, k.l, &m.kind[0], c.sinks ? sink.at : NULL);
	std::vector<bf16> y = out.read(d);

	for (int t = 0; t < T; t++) {
		for (int h = 0; h < c.H; h++) {
			std::vector<double> want = attended(k, &qkv[(size_t)(t * width + h * c.E)], tokens[(size_t)t].slot,
				tokens[(size_t)t].position, h / heads, scale, c.sinks ? &sinks[(size_t)h] : NULL);

			for (int e = 0; e < c.E; e++) {
				double got = f32_of(y[(size_t)((t * c.H + h) * c.E + e)]);

				within("hopper_attend", fabs(got - want[(size_t)e]) / (1 + fabs(want[(size_t)e])), 0.004,
					"%d heads, %d of KV, width %d, window %d%s: token %d at %d, head %d, element %d is %g, "
					"not %g", c.H, c.G, c.E, c.window, emu_reversed ? ", reversed" : "", t,
					tokens[(size_t)t].position, h, e, got, want[(size_t)e]);
			}
		}
	}
	for (size_t i = (size_t)(T * c.H * c.E); i < y.size(); i++)
		assert_int_equal(y[i], 0xffff);
}

static void test_attention(void **)
{
	static const attention cases[] = {
		{ 4, 1, 64, 0, 0, { { 0, 1 }, { 0, 70 }, { 700, 30 } } },
		{ 6, 2, 64, 50, 0, { { 300, 3 }, { 126, 5 }, { 0, 48 } } },
		{ 2, 2, 128, 0, 0, { { 70, 140 }, { 17, 2 }, { 639, 1 } } },
		{ 1, 1, 64, 100, 0, { { 203, 130 }, { 0, 1 }, { 5, 1 } } }, /* rows that see nothing of the first tile */
		{ 16, 1, 128, 200, 5, { { 400, 9 }, { 0, 16 }, { 127, 2 } } },
		{ 4, 1, 64, 128, 0, { { 0, 1 }, { 100, 70 }, { 300, 30 } }, 0, true },
		{ 2, 1, 128, 0, 0, { { 0, 3 }, { 90, 70 }, { 300, 130 } }, 96, true },
	};
	uint32_t seed = 3;

	if (!on_hopper())
		skip();
	for (const attention &c : cases) {
		for (int r = 0; r < 2; r++) {
			struct dev d;

			emu_reversed = r;
			set_up(&d, 4);
			attend_case(&d, c, &seed);
			tear_down(&d);
		}
	}
	emu_reversed = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_products), cmocka_unit_test(test_attention) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
