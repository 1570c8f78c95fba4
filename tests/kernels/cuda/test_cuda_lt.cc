/* LINK: @cuda kernels/cpu/[!b]*.c kernels/cpu/isa/[a-z]*.c tests/rig/drive.c tests/rig/tiny.c tests/cuda/truth.c kernels/cuda/[!bl]*.cu kernels/cuda/layout.cu */
/* test_cuda_lt.cc - products of many rows by cuBLASLt, as the emulation has it (tests/emu/lt.cc): which code
 * multiplies how many rows, against sums in double; no query during a step; the library absent, old, or
 * without a kernel; each of its calls failing in turn. */
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
}
#include <vector>

#include "kernels/cuda/backend.cu"
#include "kernels/cuda/lt.cu"
#include "tests/cuda/errors.h"
#include "tests/cuda/real.h"
#include "tests/cuda/truth.h"

#ifdef CUDA_EMULATED
#include "tests/emu/lt.h"
#else                                  /* on a GPU the real library, if it is there */
static const char *emu_lt_library;
static bool emu_lt_in_step __attribute__((unused));
static uint64_t emu_lt_products;
static const char *emu_lt_misuse() { return NULL; }
#endif

/* ---- a back end with a library or without --------------------------------------------- */

struct fixture {
	struct tiny *t;
	struct drive gpu;
	struct dev *d;
};

static bool graphs, checked;           /* of fixtures that are opened */

static int try_open(struct fixture *f, int32_t type, int32_t tokens, bool deterministic)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();
	int e;

	asked = false;                         /* as in a fresh process */
#ifndef CUDA_EMULATED
	if (emu_lt_library)
		unsetenv("SLIPRING_CUBLASLT");
	else
		setenv("SLIPRING_CUBLASLT", "off", 1);
#endif
	lim.worked = 0;
	lim.tokens = tokens;
	lim.logit_rows = 100;
	lim.eager = !graphs;
	lim.self_check = checked;
	if (graphs)
		lim.rows = lim.slots = lim.n_blocks = 80;
	lim.deterministic = deterministic;
	f->t = tiny_create(&shape, type, TINY_BIAS | TINY_UNTIED, 7);
	e = drive_open(&f->gpu, sr_backend_get(SR_BACKEND_VERSION), &f->t->m, &f->t->src, &lim);
	f->d = e ? NULL : &f->gpu.b->d;
	if (e)
		tiny_destroy(f->t);
	return e;
}

static void set_up(struct fixture *f, int32_t type, int capability)
{
#ifdef CUDA_EMULATED
	emu_capability = capability;
	emu_lt_fail(0, 0);
#else
	(void)capability;
#endif
	emu_lt_library = "libcublasLt.so.12";
	if (try_open(f, type, 200, false))
		fail_msg("%s", f->gpu.err);
}

static void tear_down(struct fixture *f)
{
	emu_lt_in_step = false;
	drive_close(&f->gpu);
	tiny_destroy(f->t);
	emu_lt_library = NULL;
#ifdef CUDA_EMULATED
	emu_capability = 80;
	emu_lt_lacks = NULL;
	emu_lt_refuses = false;
#endif
	assert_int_equal(emu_allocations, 0);
	if (emu_lt_misuse())
		fail_msg("cuBLASLt: %s", emu_lt_misuse());
}

/* A GPU's machine may lack the library. */
static void need_library(void)
{
#ifndef CUDA_EMULATED
	asked = false;
	if (!lt_there())
		skip();
#endif
}

/* So many products were the library's; only that of the emulation counts them. */
static void expect_products(uint64_t before, uint64_t n)
{
#ifdef CUDA_EMULATED
	assert_int_equal(emu_lt_products - before, n);
#else
	(void)before, (void)n;
#endif
}

/* ---- products ------------------------------------------------------------------------- */

static void append(struct fixture *f, const struct sr_tensor *w, const struct sr_tensor *bias, std::vector<float> &all,
	std::vector<float> &add)
{
	float *w_dense = tiny_dense(f->t, w), *b = bias && bias->type ? tiny_dense(f->t, bias) : NULL;

	all.insert(all.end(), w_dense, w_dense + (size_t)w->n * (size_t)w->k);
	for (int32_t i = 0; i < w->n; i++)
		add.push_back(b ? b[i] : 0);
	free(w_dense);
	free(b);
}

static const struct weight *which(struct fixture *f, enum place y, enum place *x, std::vector<float> &all,
	std::vector<float> &add)
{
	const struct sr_layer *m = &f->t->m.layer[0];
	const struct net_layer *l = &f->gpu.b->net.layer[0];

	*x = P_Y;
	switch (y) {
	case P_QKV:
		append(f, &m->q, &m->q_bias, all, add);
		append(f, &m->k, &m->k_bias, all, add);
		append(f, &m->v, &m->v_bias, all, add);
		return l->qkv;
	case P_GU:
		append(f, &m->gate, NULL, all, add);
		append(f, &m->up, NULL, all, add);
		return l->gu;
	case P_Z:
		append(f, &m->down, NULL, all, add);
		*x = P_ACT;
		return l->down;
	default:
		append(f, &f->t->m.head, NULL, all, add);
		return f->gpu.b->net.head;
	}
}

/* One product against sums in double.  What lies beyond the rows, in x and y, is no number. */
static void compare(struct fixture *f, enum place y, int T)
{
	std::vector<float> all, add;
	enum place x;
	const struct weight *w = which(f, y, &x, all, add);
	size_t K = (size_t)w->k, N = (size_t)w->n, rows = y == P_LOGITS ? 100 : 200;
	std::vector<float> from(K * rows, NAN), to(N * (size_t)T);

	for (size_t i = 0; i < K * (size_t)T; i++)
		from[i] = f32_of(bf16_of(sinf((float)i * 1.7f) * (i % 37 == 5 ? 8 : 1)));
	put(f->d, x, from.data(), (int)rows);
	matmul(f->d, y, x, w, T);
	get(f->d, y, to.data(), T);
	if (f->d->fault.lost)
		fail_msg("%d x %zu x %zu: %s %s", T, N, K, f->d->fault.why, emu_lt_misuse() ? emu_lt_misuse() : "");
	for (size_t t = 0; t < (size_t)T; t++) {
		double diff = 0, size = 0;

		for (size_t n = 0; n < N; n++) {
			double sum = (double)add[n];

			for (size_t k = 0; k < K; k++)
				sum += (double)from[t * K + k] * (double)all[n * K + k];
			diff += (sum - (double)to[t * N + n]) * (sum - (double)to[t * N + n]);
			size += sum * sum;
		}
		within("cuBLASLt", sqrt(diff / size), is_f32(y) ? 2e-6 : 2.5e-3, "%d x %zu x %zu, row %zu", T, N, K, t);
	}
}

static void test_products(void **)
{
	static const struct { enum place y; int T; bool lt; } cases[] = {
		{ P_QKV, 1, false }, { P_QKV, 64, false }, { P_QKV, 65, true }, { P_QKV, 128, true },
		{ P_QKV, 129, true }, { P_QKV, 200, true }, { P_GU, 66, true }, { P_GU, 192, true },
		{ P_Z, 100, true }, { P_Z, 7, false }, { P_LOGITS, 65, true }, { P_LOGITS, 100, true },
	};
	struct fixture f;

	need_library();
	set_up(&f, SR_BF16, 80);
	for (const auto &c : cases) {
		uint64_t before = emu_lt_products;

		emu_lt_in_step = true;
		compare(&f, c.y, c.T);
		emu_lt_in_step = false;
		expect_products(before, c.lt);
	}
	tear_down(&f);
}

/* The number of rows as which T rows are computed. */
static void test_rows(void **)
{
	for (int32_t most : { 65, 100, 512, 1000, 8192, 10000 }) {
		for (int32_t T = 65, last = 0; T <= most; T++) {
			int32_t up = lt_rows(T, most);

			assert_true(up >= T && up <= most && up >= last);
			assert_true(up == most || up % 64 == 0);
			assert_true(lt_rows(up, most) == up);
			assert_true(T < 512 || 8 * (up - T) <= T);
			last = up;
		}
	}
}

/* Whole batches, alone and with what is padded: log-probabilities as by our own kernels. */
static void score(struct fixture *f, int n, float *to)
{
	int32_t ids[201];
	int at;

	for (int i = 0; i <= n; i++)
		ids[i] = i * 31 % 200;
	drive_begin(&f->gpu, 0, NULL);
	drive_range(&f->gpu, 0, 0, 20);
	at = drive_row(&f->gpu, 0, 0, ids, n, n, 1);
	drive_step(&f->gpu);
	for (int i = 0; i < n; i++)
		to[i] = f->gpu.batch->result[at + i].logprob;
}

static void test_batches(void **)
{
	float ours[200], theirs[200];
	uint64_t before = emu_lt_products;
	struct fixture f;

	need_library();
	emu_lt_library = NULL;
	assert_int_equal(try_open(&f, SR_BF16, 200, false), 0);
	score(&f, 190, ours);
	tear_down(&f);
	expect_products(before, 0);
	set_up(&f, SR_BF16, 80);
	before = emu_lt_products;
	emu_lt_in_step = true;
	score(&f, 190, theirs);
	/* the head has 100 rows at a time: 100, then 91 */
	expect_products(before, 4 * (uint64_t)f.t->m.n_layers + 2);
	for (int i = 0; i < 190; i++)
		if (!(fabsf(ours[i] - theirs[i]) <= 0.06f))
			fail_msg("token %d: %g, by cuBLASLt %g", i, (double)ours[i], (double)theirs[i]);
	tear_down(&f);
}

/* A step of 70 sequences is a captured graph of 72: of the library's products, too. */
static void test_graphs(void **)
{
	float logprob[2][70];
	struct fixture f;

	need_library();
	graphs = true;
	for (int i = 0; i < 2; i++) {
		uint64_t before;

		if (i)
			set_up(&f, SR_BF16, 80);
		else
			assert_int_equal(try_open(&f, SR_BF16, 200, false), 0);
		before = emu_lt_products;
		emu_lt_in_step = i;
		for (int s = 0; s < 70; s++) {
			int32_t id = 31 * s % 200;

			drive_begin(&f.gpu, s, NULL);
			drive_range(&f.gpu, s, s, 1);
			drive_row(&f.gpu, s, 0, &id, 1, 0, 1);
		}
		drive_step(&f.gpu);
		expect_products(before, 0); /* they were captured at open */
		for (int s = 0; s < 70; s++)
			logprob[i][s] = f.gpu.batch->result[s].logprob;
		tear_down(&f);
	}
	graphs = false;
	for (int s = 0; s < 70; s++)
		if (!(fabsf(logprob[0][s] - logprob[1][s]) <= 0.06f))
			fail_msg("sequence %d: %g, by cuBLASLt %g", s, (double)logprob[0][s], (double)logprob[1][s]);
}

#ifdef CUDA_EMULATED

/* ---- when it is not used -------------------------------------------------------------- */

static void test_not_used(void **)
{
	static const struct { const char *library, *lacks, *variable; bool deterministic; int tokens; } cases[] = {
		{ NULL, NULL, NULL, false, 200 }, { "libcublasLt.so.13", "cublasLtMatmul", NULL, false, 200 },
		{ "libcublasLt.so.13", NULL, "off", false, 200 }, { "libcublasLt.so.13", NULL, "/elsewhere.so", false, 200 },
		{ "libcublasLt.so.13", NULL, NULL, true, 200 }, { "libcublasLt.so.13", NULL, NULL, false, 64 },
	};
	struct fixture f;

	for (const auto &c : cases) {
		uint64_t calls = emu_lt_calls;

		emu_lt_library = c.library;
		emu_lt_lacks = c.lacks;
		if (c.variable)
			setenv("SLIPRING_CUBLASLT", c.variable, 1);
		assert_int_equal(try_open(&f, SR_BF16, c.tokens, c.deterministic), 0);
		unsetenv("SLIPRING_CUBLASLT");
		assert_null(f.d->product.lt_work);
		compare(&f, P_GU, c.tokens > 64 ? 70 : 10);
		assert_int_equal(emu_lt_calls, calls);
		tear_down(&f);
	}
	emu_lt_library = "/elsewhere.so";      /* where the variable says */
	setenv("SLIPRING_CUBLASLT", "/elsewhere.so", 1);
	assert_int_equal(try_open(&f, SR_BF16, 200, false), 0);
	unsetenv("SLIPRING_CUBLASLT");
	assert_non_null(f.d->product.lt);
	tear_down(&f);
	emu_lt_library = "libcublasLt.so.13";  /* it has no kernel: ours */
	emu_lt_refuses = true;
	assert_int_equal(try_open(&f, SR_BF16, 200, false), 0);
	uint64_t products = emu_lt_products;

	compare(&f, P_GU, 70);
	assert_int_equal(emu_lt_products, products);
	tear_down(&f);
}

/* A library whose products are wrong is found at open, and not used; one that is right stays. */
static void test_self_check(void **)
{
	for (bool wrong : { false, true }) {
		struct fixture f;
		uint64_t products;

		checked = true;
		emu_lt_spoiled = wrong;
		set_up(&f, SR_BF16, 80);
		assert_int_equal(f.d->without, wrong ? 1 << SPECIAL_LT : 0);
		products = emu_lt_products;
		matmul(f.d, P_GU, P_Y, f.gpu.b->net.layer[0].gu, 100);
		assert_int_equal(cudaStreamSynchronize(f.d->stream), cudaSuccess);
		assert_int_equal(emu_lt_products - products, !wrong);
		checked = emu_lt_spoiled = false;
		tear_down(&f);
	}
}

static void test_plan(void **)
{
	struct sr_model shape = tiny_shape();
	struct sr_limits lim = drive_limits();
	struct tiny *t = tiny_create(&shape, SR_BF16, TINY_BIAS, 7);
	struct sr_need with, without;
	char err[256];

	for (struct sr_need *n : { &with, &without }) {
		emu_lt_library = n == &with ? "libcublasLt.so.13" : NULL;
		asked = false;
		assert_int_equal(sr_backend_get(SR_BACKEND_VERSION)->plan(&t->m, &lim, n, err, sizeof(err)), 0);
	}
	assert_int_equal(with.scratch - without.scratch, LT_WORK);
	assert_int_equal(with.graphs - without.graphs, LT_OWN);
	assert_true(with.weights > without.weights); /* biases in bf16 */
	tiny_destroy(t);
}

/* ---- failures ------------------------------------------------------------------------- */

static void test_failures(void **)
{
	static const int how[] = { LT_NOT_INITIALIZED, LT_ALLOC_FAILED, LT_INVALID_VALUE, LT_EXECUTION_FAILED };
	uint64_t before = emu_lt_calls, calls;
	int32_t ids[100] = {};
	struct fixture f;

	set_up(&f, SR_BF16, 80);
	calls = emu_lt_calls - before;
	assert_true(calls > 50);
	emu_lt_fail(2, LT_EXECUTION_FAILED);   /* in a step */
	drive_begin(&f.gpu, 0, NULL);
	drive_range(&f.gpu, 0, 0, 20);
	drive_row(&f.gpu, 0, 0, ids, 90, 0, 1);
	assert_int_equal(launch(f.gpu.b, 0), -EIO);
	assert_int_equal(poll_batch(f.gpu.b, 0), -EIO);
	assert_non_null(strstr(f.d->fault.why, "cublasLtMatmul"));
	tear_down(&f);
	for (uint64_t n = 1; n <= calls; n++) {
		emu_lt_library = "libcublasLt.so.13";
		emu_lt_fail(n, how[n % 4]);
		if (try_open(&f, SR_BF16, 200, false) != -EIO)
			fail_msg("call %d of %d of cuBLASLt fails, and nobody notices", (int)n, (int)calls);
		if (!strstr(f.gpu.err, "cublasLt") || !strstr(f.gpu.err, "CUBLAS_STATUS") ||
		    !strstr(f.gpu.err, "SLIPRING_CUBLASLT=off"))
			fail_msg("\"%s\" does not say what failed", f.gpu.err);
		assert_int_equal(emu_allocations, 0);
		assert_null(emu_lt_misuse());
	}
	emu_lt_fail(0, 0);
	emu_lt_library = NULL;
}

/* ---- the emulated library itself ------------------------------------------------------ */

/* The emulation refuses what the real library has no kernel for. */
static void test_strict(void **)
{
	lt_matmul_desc o;
	lt_matrix_layout a, b, c;
	lt_preference p;
	lt_handle h;
	struct lt_heuristic result;
	uint64_t work = 1 << 20;
	int transposed = LT_OP_T, n;
	const struct { int type, out; uint64_t m, n, k; int64_t lda, ldd; int capability; bool good; } cases[] = {
		{ LT_R_16BF, LT_R_16BF, 24, 65, 40, 40, 24, 80, true }, { LT_R_16BF, LT_R_32F, 24, 65, 40, 40, 24, 80, true },
		{ LT_R_16BF, LT_R_16BF, 24, 65, 40, 39, 24, 80, false }, { LT_R_16BF, LT_R_16BF, 24, 65, 40, 40, 16, 80, false },
		{ LT_R_16BF, LT_R_8F_E4M3, 24, 65, 40, 40, 24, 80, false }, { LT_R_32F, LT_R_32F, 24, 65, 40, 40, 24, 80, false },
		{ LT_R_8F_E4M3, LT_R_16BF, 32, 65, 48, 48, 32, 80, false }, { LT_R_8F_E4M3, LT_R_16BF, 32, 65, 48, 48, 32, 89, true },
		{ LT_R_8F_E4M3, LT_R_16BF, 24, 65, 48, 48, 24, 89, false }, { LT_R_8F_E4M3, LT_R_32F, 32, 65, 40, 40, 32, 90, false },
	};

	emu_lt_library = "libcublasLt.so.13";
	emu_lt_fail(0, 0);
	asked = false;
	assert_true(lt_there());
	assert_int_equal(api.Create(&h), LT_SUCCESS);
	assert_int_equal(api.MatmulPreferenceCreate(&p), LT_SUCCESS);
	assert_int_equal(api.MatmulPreferenceSetAttribute(p, LT_PREF_MAX_WORKSPACE_BYTES, &work, 8), LT_SUCCESS);
	assert_int_equal(api.MatmulPreferenceSetAttribute(p, LT_PREF_MAX_WORKSPACE_BYTES, &work, 4), LT_INVALID_VALUE);
	assert_int_equal(api.MatmulDescCreate(&o, LT_COMPUTE_32F, LT_R_32F), LT_SUCCESS);
	for (const auto &s : cases) {
		emu_capability = s.capability;
		api.MatmulDescSetAttribute(o, LT_DESC_TRANSA, &transposed, sizeof(transposed));
		api.MatrixLayoutCreate(&a, s.type, s.k, s.m, s.lda);
		api.MatrixLayoutCreate(&b, s.type, s.k, s.n, s.lda);
		api.MatrixLayoutCreate(&c, s.out, s.m, s.n, s.ldd);
		int status = api.MatmulAlgoGetHeuristic(h, o, a, b, c, c, p, 1, &result, &n);

		if ((status == LT_SUCCESS && n == 1) != s.good)
			fail_msg("%d -> %d, %d x %d x %d: %d", s.type, s.out, (int)s.m, (int)s.n, (int)s.k, status);
		for (lt_matrix_layout l : { a, b, c })
			assert_int_equal(api.MatrixLayoutDestroy(l), LT_SUCCESS);
		assert_int_equal(api.MatrixLayoutDestroy(a), LT_INVALID_VALUE);
	}
	api.MatmulDescDestroy(o);
	api.MatmulPreferenceDestroy(p);
	api.Destroy(h);
	assert_int_equal(emu_allocations, 0);
	assert_non_null(emu_lt_misuse());
	emu_lt_fail(0, 0);
	emu_capability = 80;
	emu_lt_library = NULL;
}

#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_batches),
		cmocka_unit_test(test_graphs),
#ifdef CUDA_EMULATED
		cmocka_unit_test(test_not_used),
		cmocka_unit_test(test_self_check),
		cmocka_unit_test(test_plan),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_strict),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
