/* lt.cu - products of many rows by cuBLASLt, if the library is found.
 *
 * The library is 500 MB and optional, so it is opened at run time.  open() asks it for a kernel for each
 * shape, and executes each kernel once, so that its code is on the device.  A step only calls
 * cublasLtMatmul(), which allocates nothing, does not wait, and may be captured in a graph.
 *
 * The library's matrices are in column order.  So y[T][n] = x[T][k] w[n][k]^T, in row order, becomes
 *
 *	D (n x T, ld n)  =  A^T (A: k x n, ld k)  B (k x T, ld k)
 *
 * Rows     Heuristics choose for one T, and the chosen kernel may need more work space for another.  So T is
 *          rounded up to one of the numbers in lt_rows(), and unused rows are computed too.  Their content
 *          does not matter, because a row's sums depend on that row alone.
 * Bias     In the epilogue, in D's type.  For a D of bf16 that is bf16, so such weights keep a second copy.
 * Failure  Without the library, or without a kernel for a shape, the back end reports that and uses its own
 *          kernels.  A library that exists and fails is an error, which names the call and
 *          SLIPRING_CUBLASLT=off.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cublaslt.h"
#include "device.cuh"

/* One shape: the state shared by all weights that have it. */
struct lt_shape {
	struct lt_shape *next;
	int32_t n, k, rows_max;
	enum held held;
	bool f32, bias;
	int32_t count;                       /* entries in rows */
	lt_matrix_layout a;
	struct lt_rows {
		int32_t T;
		bool there;                  /* the library has a kernel */
		lt_matrix_layout b, d;
		struct lt_algo algo;
	} *rows;
};

struct lt_use {                              /* one weight */
	struct lt_use *next;
	lt_matmul_desc desc;
	struct lt_shape *shape;
};

struct lt {
	lt_handle handle;
	lt_preference preference;
	struct lt_shape *shapes;
	struct lt_use *uses;
};

/* ---- the library ---------------------------------------------------------------------- */

static struct lt_api api;
static bool asked, there;                    /* tried to load; it is loaded */

static void *open_library(const char *named)
{
	static const char *const usual[] = { "libcublasLt.so.13", "libcublasLt.so.12" };
	void *lib = named ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : NULL;

	for (size_t i = 0; !named && !lib && i < sizeof(usual) / sizeof(*usual); i++)
		lib = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
	return lib;
}

/* Runs once per process; the library stays open.  SLIPRING_CUBLASLT: off, or the library's path. */
static bool load(char *why, size_t size)
{
	const char *named = getenv("SLIPRING_CUBLASLT"), *missing = NULL;
	void *lib;

	if (named && strcmp(named, "off") == 0)
		return snprintf(why, size, "SLIPRING_CUBLASLT is off"), false;
	lib = open_library(named && *named ? named : NULL);
	if (!lib)
		return snprintf(why, size, "%s", dlerror()), false;
#define TAKE(name, result, arguments) \
	*(void **)&api.name = dlsym(lib, "cublasLt" #name); \
	if (!api.name) \
		missing = "cublasLt" #name;
	LT_FUNCTIONS(TAKE)
#undef TAKE
	if (missing) {
		dlclose(lib);
		return snprintf(why, size, "the library has no %s", missing), false;
	}
	return true;
}

bool lt_there(void)
{
	char why[256];

	if (asked)
		return there;
	asked = true;
	there = load(why, sizeof(why));
	if (there)
		fprintf(stderr, "slipring-cuda: products of more than %d rows by cuBLASLt %zu\n", FEW_ROWS,
			api.GetVersion());
	else
		fprintf(stderr, "slipring-cuda: no cuBLASLt (%s): products of more than %d rows by kernels of "
			"slipring's own\n", why, FEW_ROWS);
	return there;
}

static bool lt_ok(struct dev *d, int status, const char *call)
{
	if (status != LT_SUCCESS && !d->fault.lost) {
		d->fault.lost = true;
		snprintf(d->fault.why, sizeof(d->fault.why),
			"%s: %s; SLIPRING_CUBLASLT=off goes on without the library", call, api.GetStatusName(status));
	}
	return !d->fault.lost;
}

/* ---- shapes --------------------------------------------------------------------------- */

/* Steps of 64 rows up to 1,024, of 128 up to 2,048, then of 256.  From 512 rows on, at most 1/8 is
 * padding. */
int32_t lt_rows(int32_t T, int32_t most)
{
	int32_t step = T <= 1024 ? 64 : T <= 2048 ? 128 : 256, up = (T + step - 1) / step * step;

	return up < most ? up : most;
}

static bool create_rows(struct dev *d, struct lt_shape *s)
{
	int type = s->held == HELD_BF16 ? LT_R_16BF : LT_R_8F_E4M3, out = s->f32 ? LT_R_32F : LT_R_16BF;

	for (int32_t T = FEW_ROWS; T < s->rows_max; s->count++)
		T = lt_rows(T + 1, s->rows_max);
	s->rows = (struct lt_shape::lt_rows *)calloc((size_t)s->count, sizeof(*s->rows));
	if (!s->rows)
		return lt_ok(d, LT_ALLOC_FAILED, "a table of shapes");
	if (!lt_ok(d, api.MatrixLayoutCreate(&s->a, type, (uint64_t)s->k, (uint64_t)s->n, s->k),
		"cublasLtMatrixLayoutCreate"))
		return false;
	for (int32_t i = 0, T = FEW_ROWS; i < s->count; i++) {
		struct lt_shape::lt_rows *r = &s->rows[i];

		r->T = T = lt_rows(T + 1, s->rows_max);
		if (!lt_ok(d, api.MatrixLayoutCreate(&r->b, type, (uint64_t)s->k, (uint64_t)T, s->k),
			"cublasLtMatrixLayoutCreate") ||
		    !lt_ok(d, api.MatrixLayoutCreate(&r->d, out, (uint64_t)s->n, (uint64_t)T, s->n),
			"cublasLtMatrixLayoutCreate"))
			return false;
	}
	return true;
}

/* Asks the library for its choice for each number of rows. */
static bool ask(struct dev *d, struct lt_shape *s, lt_matmul_desc desc)
{
	for (int32_t i = 0; i < s->count; i++) {
		struct lt_shape::lt_rows *r = &s->rows[i];
		struct lt_heuristic h;
		int found = 0, status = api.MatmulAlgoGetHeuristic(d->product.lt->handle, desc, s->a, r->b, r->d,
			r->d, d->product.lt->preference, 1, &h, &found);

		if (status != LT_NOT_SUPPORTED && !lt_ok(d, status, "cublasLtMatmulAlgoGetHeuristic"))
			return false;
		r->there = status == LT_SUCCESS && found > 0 && h.status == LT_SUCCESS && h.workspace <= LT_WORK;
		r->algo = h.algo;
		if (!r->there)
			fprintf(stderr, "slipring-cuda: cuBLASLt has no kernel for %d rows times %d x %d%s; "
				"slipring's own is used\n", r->T, s->n, s->k,
				s->held == HELD_BF16 ? "" : " in e4m3");
	}
	return true;
}

static struct lt_shape *shape_of(struct dev *d, const struct weight *w, bool f32, int32_t rows_max,
	bool *fresh)
{
	struct lt_shape *s;

	*fresh = false;
	for (s = d->product.lt->shapes; s; s = s->next)
		if (s->n == w->n && s->k == w->k && s->held == w->held && s->f32 == f32 && s->bias == !!w->bias &&
		    s->rows_max == rows_max)
			return s;
	s = (struct lt_shape *)calloc(1, sizeof(*s));
	if (!s)
		return lt_ok(d, LT_ALLOC_FAILED, "a shape"), (struct lt_shape *)NULL;
	*fresh = true;
	s->n = w->n;
	s->k = w->k;
	s->held = w->held;
	s->f32 = f32;
	s->bias = w->bias;
	s->rows_max = rows_max;
	s->next = d->product.lt->shapes;
	d->product.lt->shapes = s;
	return create_rows(d, s) ? s : NULL;
}

static bool set(struct dev *d, lt_matmul_desc desc, int what, const void *value, size_t size)
{
	return lt_ok(d, api.MatmulDescSetAttribute(desc, what, value, size), "cublasLtMatmulDescSetAttribute");
}

/* Describes the product with a weight, without addresses. */
static bool describe(struct dev *d, lt_matmul_desc *desc, const struct weight *w, bool f32)
{
	int transposed = LT_OP_T, epilogue = LT_EPILOGUE_BIAS;
	int type = f32 && w->held == HELD_BF16 ? LT_R_32F : LT_R_16BF;
	const void *bias = type == LT_R_32F ? (const void *)w->bias : w->bias16;

	return lt_ok(d, api.MatmulDescCreate(desc, LT_COMPUTE_32F, LT_R_32F), "cublasLtMatmulDescCreate") &&
	       set(d, *desc, LT_DESC_TRANSA, &transposed, sizeof(transposed)) &&
	       (!w->bias || (set(d, *desc, LT_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) &&
			     set(d, *desc, LT_DESC_BIAS_DATA_TYPE, &type, sizeof(type)) &&
			     set(d, *desc, LT_DESC_BIAS_POINTER, &bias, sizeof(bias))));
}

/* ---- products ------------------------------------------------------------------------- */

static bool call(struct dev *d, const struct lt_use *use, const struct lt_shape::lt_rows *r, void *y,
	const void *x, const struct weight *w)
{
	static const float one = 1, zero = 0;

	return lt_ok(d, api.Matmul(d->product.lt->handle, use->desc, &one, w->mat, use->shape->a, x, r->b,
		&zero, y, r->d, y, r->d, &r->algo, d->product.lt_work, LT_WORK, d->stream), "cublasLtMatmul");
}

static const struct lt_shape::lt_rows *rows_of(const struct weight *w, int32_t T)
{
	const struct lt_shape *s = w->lt ? w->lt->shape : NULL;

	for (int32_t i = 0; s && T > FEW_ROWS && i < s->count; i++)
		if (T <= s->rows[i].T)
			return s->rows[i].there ? &s->rows[i] : NULL;
	return NULL;
}

bool lt_can(const struct weight *w, int32_t T)
{
	return rows_of(w, T);
}

void lt_matmul(struct dev *d, void *y, const void *x, const struct weight *w, int32_t T)
{
	if (!d->fault.lost)
		call(d, w->lt, rows_of(w, T), y, x, w);
}

/* ---- open and close ------------------------------------------------------------------- */

/* Runs each kernel once, so that its code is loaded now and not in a step. */
static bool warm(struct dev *d, const struct weight *w, void *y, const void *x)
{
	const struct lt_shape *s = w->lt->shape;

	for (int32_t i = 0; i < s->count; i++) {
		bool seen = !s->rows[i].there;

		for (int32_t j = 0; j < i && !seen; j++)
			seen = s->rows[j].there && !memcmp(&s->rows[j].algo, &s->rows[i].algo, sizeof(struct lt_algo));
		if (!seen && !call(d, w->lt, &s->rows[i], y, x, w))
			return false;
	}
	return true;
}

static bool add(struct dev *d, struct weight *w, enum place y, enum place x, int32_t rows_max)
{
	struct lt_use *use;
	bool fresh;

	if (!w || w->lt || w->held != HELD_BF16 || rows_max <= FEW_ROWS)
		return true;
	use = (struct lt_use *)calloc(1, sizeof(*use));
	if (!use)
		return lt_ok(d, LT_ALLOC_FAILED, "a product");
	use->next = d->product.lt->uses;
	d->product.lt->uses = w->lt = use;
	use->shape = shape_of(d, w, is_f32(y), rows_max, &fresh);
	if (!use->shape || !describe(d, &use->desc, w, is_f32(y)))
		return false;
	return !fresh || (ask(d, use->shape, use->desc) && warm(d, w, d->act.place[y], d->act.place[x]));
}

static bool prefer(struct dev *d)
{
	uint64_t work = LT_WORK;
	uint32_t align = 16;                 /* rows of x, w and y are at least as aligned as their lengths */
	bool ok = lt_ok(d, api.MatmulPreferenceCreate(&d->product.lt->preference),
			"cublasLtMatmulPreferenceCreate") &&
		lt_ok(d, api.MatmulPreferenceSetAttribute(d->product.lt->preference, LT_PREF_MAX_WORKSPACE_BYTES,
			&work, sizeof(work)), "cublasLtMatmulPreferenceSetAttribute");

	for (int what = LT_PREF_ALIGN_A; what <= LT_PREF_ALIGN_D && ok; what++)
		ok = lt_ok(d, api.MatmulPreferenceSetAttribute(d->product.lt->preference, what, &align,
			sizeof(align)), "cublasLtMatmulPreferenceSetAttribute");
	return ok;
}

bool lt_open(struct dev *d, const struct net *n, int32_t tokens, int32_t logit_rows)
{
	if (!d->product.lt_work)
		return true;
	d->product.lt = (struct lt *)calloc(1, sizeof(*d->product.lt));
	if (!d->product.lt)
		return lt_ok(d, LT_ALLOC_FAILED, "a table of products");
	if (!lt_ok(d, api.Create(&d->product.lt->handle), "cublasLtCreate") || !prefer(d))
		return false;
	for (int32_t l = 0; l < n->m->n_layers; l++) {
		const struct net_layer *y = &n->layer[l];

		if (!add(d, y->qkv, P_QKV, P_Y, tokens) || !add(d, y->o, P_Z, P_A, tokens) ||
		    (y->gu && (!add(d, y->gu, P_GU, P_Y, tokens) || !add(d, y->down, P_Z, P_ACT, tokens))))
			return false;
	}
	return add(d, n->head, P_LOGITS, P_Y, logit_rows) &&
	       cuda_ok(d, cudaStreamSynchronize(d->stream), "the first products by cuBLASLt");
}

void lt_close(struct dev *d)
{
	struct lt *lt = d->product.lt;

	if (!lt)
		return;
	while (lt->uses) {
		struct lt_use *u = lt->uses;

		lt->uses = u->next;
		if (u->desc)
			api.MatmulDescDestroy(u->desc);
		free(u);
	}
	while (lt->shapes) {
		struct lt_shape *s = lt->shapes;

		lt->shapes = s->next;
		if (s->a)
			api.MatrixLayoutDestroy(s->a);
		for (int32_t i = 0; s->rows && i < s->count; i++)
			for (lt_matrix_layout layout : { s->rows[i].b, s->rows[i].d })
				if (layout)
					api.MatrixLayoutDestroy(layout);
		free(s->rows);
		free(s);
	}
	if (lt->preference)
		api.MatmulPreferenceDestroy(lt->preference);
	if (lt->handle)
		api.Destroy(lt->handle);
	free(lt);
	d->product.lt = NULL;
}
