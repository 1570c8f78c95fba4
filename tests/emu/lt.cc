/* lt.cc - cuBLASLt as kernels/cuda/lt.cu calls it, on the CPU and strict: objects that are not there,
 * attributes of another length, shapes that do not fit together, types, alignments and modes that the library
 * has no kernel for, a kernel chosen for other shapes, a short work space.  What is wrong is refused with the
 * library's status, and remembered for emu_lt_misuse(), which names it.
 *
 * Rules are those of NVIDIA's documentation of cublasLtMatmul(), as far as they concern
 *	bf16 x bf16 -> bf16, f32     any m, n, k; a bias of D's type
 *	e4m3 x e4m3 -> bf16, f32     sm_89 and later; A transposed, B not; pointers, m, k, ld times their size
 *	                             multiples of 16 bytes; a bias in bf16; scales of outer vectors on sm_90 only
 * A product is queued in its stream, overwrites the work space that it asked for, and adds up in f32.
 */
#include "tests/emu/lt.h"
#include "tests/emu/nccl.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/cublaslt.h"
#include "tests/emu/dlfcn.h"

const char *emu_lt_library, *emu_lt_lacks;
bool emu_lt_refuses, emu_lt_in_step, emu_lt_spoiled;
uint64_t emu_lt_calls, emu_lt_products;

static uint64_t fail_at;
static int fail_with;
static std::string misuse;

struct lt_context { int unused; };
struct lt_layout { int type; uint64_t rows, cols; int64_t ld; };
struct lt_desc {
	int transposed, epilogue, bias_type, a_mode, b_mode;
	const void *bias, *a_scale, *b_scale;
};
struct lt_pref { uint64_t work; uint32_t align[4]; };

static std::set<const void *> alive;
static std::set<std::vector<uint64_t>> warm;          /* kernels executed before */

void emu_lt_fail(uint64_t nth, int status)
{
	fail_at = nth ? emu_lt_calls + nth : 0;
	fail_with = status;
	misuse.clear();
	emu_lt_in_step = false;
}

const char *emu_lt_misuse()
{
	return misuse.empty() ? nullptr : misuse.c_str();
}

static int wrong(int status, const std::string &what)
{
	if (misuse.empty())
		misuse = what;
	return status;
}

/* Every call begins here; objects that it is given must be alive. */
static int call(const char *name, std::initializer_list<const void *> objects, bool in_step = false)
{
	emu_lt_calls++;
	for (const void *o : objects)
		if (!alive.count(o))
			return wrong(LT_INVALID_VALUE, std::string(name) + ": an object that is not there");
	if (emu_lt_in_step && !in_step)
		wrong(LT_SUCCESS, std::string(name) + " in a step");
	if (fail_at && emu_lt_calls == fail_at) {
		fail_at = 0;
		return fail_with;
	}
	return LT_SUCCESS;
}

template <class T> static int create(const char *name, T **out, const T &value)
{
	int e = call(name, {});

	if (e != LT_SUCCESS)
		return e;
	*out = new T(value);
	alive.insert(*out);
	emu_allocations++;
	return e;
}

template <class T> static int destroy(const char *name, T *object)
{
	int e = call(name, { object });

	if (!alive.erase(object))
		return e;
	delete object;
	emu_allocations--;
	return e;
}

/* ---- objects -------------------------------------------------------------------------- */

static size_t GetVersion() { return 130100; }
static const char *GetStatusName(int status) { return status == LT_SUCCESS ? "success" : "CUBLAS_STATUS_OF_A_TEST"; }
static int Create(lt_handle *h) { return create("Create", h, lt_context{ 0 }); }
static int Destroy(lt_handle h) { return destroy("Destroy", h); }
static int MatmulDescDestroy(lt_matmul_desc d) { return destroy("MatmulDescDestroy", d); }
static int MatrixLayoutDestroy(lt_matrix_layout l) { return destroy("MatrixLayoutDestroy", l); }
static int MatmulPreferenceDestroy(lt_preference p) { return destroy("MatmulPreferenceDestroy", p); }

static int MatmulDescCreate(lt_matmul_desc *d, int compute, int scale_type)
{
	if (compute != LT_COMPUTE_32F || scale_type != LT_R_32F)
		return wrong(LT_NOT_SUPPORTED, "sums and scales in other types than f32");
	return create("MatmulDescCreate", d, lt_desc{ 0, LT_EPILOGUE_DEFAULT, -1, 0, 0, nullptr, nullptr, nullptr });
}

static int MatrixLayoutCreate(lt_matrix_layout *l, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
	return create("MatrixLayoutCreate", l, lt_layout{ type, rows, cols, ld });
}

static int MatmulPreferenceCreate(lt_preference *p)
{
	return create("MatmulPreferenceCreate", p, lt_pref{ 0, { 256, 256, 256, 256 } });
}

static int put(void *to, size_t size, const void *from, size_t given, const char *what)
{
	if (!from || size != given)
		return wrong(LT_INVALID_VALUE, std::string(what) + ": an attribute of another length");
	memcpy(to, from, size);
	return LT_SUCCESS;
}

static int MatmulDescSetAttribute(lt_matmul_desc d, int what, const void *v, size_t n)
{
	const char *name = "MatmulDescSetAttribute";
	int e = call(name, { d });

	if (e != LT_SUCCESS)
		return e;
	switch (what) {
	case LT_DESC_TRANSA: return put(&d->transposed, 4, v, n, name);
	case LT_DESC_EPILOGUE: return put(&d->epilogue, 4, v, n, name);
	case LT_DESC_BIAS_DATA_TYPE: return put(&d->bias_type, 4, v, n, name);
	case LT_DESC_A_SCALE_MODE: return put(&d->a_mode, 4, v, n, name);
	case LT_DESC_B_SCALE_MODE: return put(&d->b_mode, 4, v, n, name);
	case LT_DESC_BIAS_POINTER: return put(&d->bias, 8, v, n, name);
	case LT_DESC_A_SCALE_POINTER: return put(&d->a_scale, 8, v, n, name);
	case LT_DESC_B_SCALE_POINTER: return put(&d->b_scale, 8, v, n, name);
	}
	return wrong(LT_INVALID_VALUE, std::string(name) + ": an unknown attribute");
}

static int MatmulPreferenceSetAttribute(lt_preference p, int what, const void *v, size_t n)
{
	const char *name = "MatmulPreferenceSetAttribute";
	int e = call(name, { p });

	if (e != LT_SUCCESS)
		return e;
	if (what == LT_PREF_MAX_WORKSPACE_BYTES)
		return put(&p->work, 8, v, n, name);
	if (what < LT_PREF_ALIGN_A || what > LT_PREF_ALIGN_D)
		return wrong(LT_INVALID_VALUE, std::string(name) + ": an unknown attribute");
	return put(&p->align[what - LT_PREF_ALIGN_A], 4, v, n, name);
}

/* ---- what there are kernels for ------------------------------------------------------- */

static uint64_t size_of(int type)
{
	return type == LT_R_32F ? 4 : type == LT_R_16BF ? 2 : 1;
}

static bool inside(const lt_layout *l)
{
	return l->rows && l->cols && l->ld >= (int64_t)l->rows;
}

static const char *check_f8(const lt_desc *o, const lt_layout *a, const lt_layout *b, const lt_layout *d)
{
	if (emu_capability < 89)
		return "e4m3 before sm_89";
	if (!o->transposed)
		return "e4m3 needs A transposed";
	for (const lt_layout *l : { a, b, d })
		if ((uint64_t)l->ld * size_of(l->type) % 16)
			return "e4m3: ld is no multiple of 16 bytes";
	if (d->rows % 16 || a->rows % 16)
		return "e4m3: m or k is no multiple of 16";
	if (o->a_mode != o->b_mode || (o->a_mode != 0 && o->a_mode != LT_SCALE_OUTER_VEC_32F))
		return "modes of scales that do not go together";
	if (o->a_mode == LT_SCALE_OUTER_VEC_32F && emu_capability != 90)
		return "scales of outer vectors are sm_90's only";
	if (o->a_mode == LT_SCALE_OUTER_VEC_32F && (!o->a_scale || !o->b_scale))
		return "outer vectors without pointers";
	return nullptr;
}

/* NULL, or what is wrong: D = A B of m x n, sums of k. */
static const char *check(const lt_desc *o, const lt_layout *a, const lt_layout *b, const lt_layout *c,
	const lt_layout *d)
{
	bool f8 = a->type == LT_R_8F_E4M3;
	uint64_t m = o->transposed ? a->cols : a->rows, k = o->transposed ? a->rows : a->cols;

	if (!inside(a) || !inside(b) || !inside(c) || !inside(d))
		return "an empty matrix, or ld shorter than a column";
	if (m != d->rows || k != b->rows || b->cols != d->cols)
		return "shapes that do not fit together";
	if (c->type != d->type || c->rows != d->rows || c->cols != d->cols || c->ld != d->ld)
		return "C is not as D";
	if (a->type != b->type || (a->type != LT_R_16BF && !f8) || (d->type != LT_R_16BF && d->type != LT_R_32F))
		return "types that there is no kernel for";
	if (o->epilogue != LT_EPILOGUE_DEFAULT && o->epilogue != LT_EPILOGUE_BIAS)
		return "an epilogue that this emulation does not have";
	if (o->epilogue == LT_EPILOGUE_BIAS) {
		if (!o->bias || (uint64_t)o->bias % 16)
			return "no bias, or it is not aligned";
		if ((o->bias_type == -1 ? d->type : o->bias_type) != (f8 ? (int)LT_R_16BF : d->type))
			return "a bias of another type";
	}
	if (!f8)
		return o->a_mode || o->b_mode || o->a_scale || o->b_scale ? "scales of bf16" : nullptr;
	return check_f8(o, a, b, d);
}

/* What a kernel was chosen for. */
static lt_algo algo_of(const lt_desc *o, const lt_layout *a, const lt_layout *d)
{
	lt_algo g = { { 0x6c74, (uint64_t)a->type, (uint64_t)d->type, d->rows, d->cols, a->rows,
		(uint64_t)(o->epilogue * 8 + o->a_mode), (uint64_t)a->ld } };

	return g;
}

/* The workspace grows with the result, so a caller that asks for one number of rows and computes another fails. */
static size_t work_of(const lt_layout *d)
{
	return (d->rows * d->cols * 4 + 255) / 256 * 256;
}

static int MatmulAlgoGetHeuristic(lt_handle h, lt_matmul_desc o, lt_matrix_layout a, lt_matrix_layout b,
	lt_matrix_layout c, lt_matrix_layout d, lt_preference p, int wanted, struct lt_heuristic *out, int *n)
{
	int e = call("MatmulAlgoGetHeuristic", { h, o, a, b, c, d, p });
	const char *why;

	if (e != LT_SUCCESS)
		return e;
	if (wanted < 1 || !out || !n)
		return wrong(LT_INVALID_VALUE, "heuristics: nowhere to put them");
	*n = 0;
	if (emu_lt_refuses)
		return LT_NOT_SUPPORTED;
	if ((why = check(o, a, b, c, d)))
		return wrong(LT_NOT_SUPPORTED, why);
	for (uint32_t align : p->align)
		if (align < 16)
			return LT_NOT_SUPPORTED;
	if (work_of(d) > p->work)
		return LT_NOT_SUPPORTED;
	memset(out, 0, sizeof(*out));
	out->algo = algo_of(o, a, d);
	out->workspace = work_of(d);
	*n = 1;
	return LT_SUCCESS;
}

/* ---- products ------------------------------------------------------------------------- */

static float bf16_at(const void *p, uint64_t i)
{
	uint32_t u = (uint32_t)((const uint16_t *)p)[i] << 16;
	float f;

	memcpy(&f, &u, 4);
	return f;
}

static float e4m3_at(const void *p, uint64_t i)
{
	uint8_t v = ((const uint8_t *)p)[i];
	int e = v >> 3 & 15;
	float f = ldexpf((float)(v & 7) + (e ? 8 : 0), (e ? e : 1) - 10);

	return (v & 0x7f) == 0x7f ? NAN : v & 0x80 ? -f : f;
}

static uint16_t to_bf16(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return (u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void compute(const lt_desc &o, const lt_layout &la, const void *a, const lt_layout &lb, const void *b,
	const lt_layout &ld, void *d)
{
	bool f8 = la.type == LT_R_8F_E4M3;

	for (uint64_t t = 0; t < ld.cols; t++) {
		for (uint64_t i = 0; i < ld.rows; i++) {
			float sum = 0;

			for (uint64_t k = 0; k < lb.rows; k++) {
				uint64_t at = o.transposed ? i * (uint64_t)la.ld + k : k * (uint64_t)la.ld + i;
				uint64_t bt = t * (uint64_t)lb.ld + k;

				sum += f8 ? e4m3_at(a, at) * e4m3_at(b, bt) : bf16_at(a, at) * bf16_at(b, bt);
			}
			if (emu_lt_spoiled)
				sum *= 1.25f;
			if (o.a_mode)
				sum *= ((const float *)o.a_scale)[i] * ((const float *)o.b_scale)[t];
			if (o.epilogue == LT_EPILOGUE_BIAS)
				sum += o.bias_type == LT_R_32F ? ((const float *)o.bias)[i] : bf16_at(o.bias, i);
			if (ld.type == LT_R_32F)
				((float *)d)[t * (uint64_t)ld.ld + i] = sum;
			else
				((uint16_t *)d)[t * (uint64_t)ld.ld + i] = to_bf16(sum);
		}
	}
}

static int Matmul(lt_handle h, lt_matmul_desc o, const void *alpha, const void *a, lt_matrix_layout la, const void *b,
	lt_matrix_layout lb, const void *beta, const void *c, lt_matrix_layout lc, void *d, lt_matrix_layout ld,
	const struct lt_algo *algo, void *work, size_t work_bytes, cudaStream_t s)
{
	int e = call("Matmul", { h, o, la, lb, lc, ld }, true);
	const char *why;
	float one, zero;

	if (e != LT_SUCCESS)
		return e;
	if ((why = check(o, la, lb, lc, ld)))
		return wrong(LT_INVALID_VALUE, why);
	lt_algo right = algo_of(o, la, ld);

	if (!algo || memcmp(algo, &right, sizeof(right)))
		return wrong(LT_INVALID_VALUE, "a kernel that was chosen for something else");
	memcpy(&one, alpha, 4);
	memcpy(&zero, beta, 4);
	if (one != 1 || zero != 0)
		return wrong(LT_NOT_SUPPORTED, "alpha and beta other than 1 and 0");
	for (const void *p : { a, b, (const void *)d, c, (const void *)work })
		if (!p || (uint64_t)p % 16)
			return wrong(LT_INVALID_VALUE, "a pointer that is NULL or not aligned");
	if (work_bytes < work_of(ld))
		return wrong(LT_INVALID_VALUE, "too little work space");
	std::vector<uint64_t> name(algo->data, algo->data + 8);

	if (emu_lt_in_step && !warm.count(name))
		wrong(LT_SUCCESS, "a kernel's first execution in a step");
	warm.insert(name);
	emu_lt_products++;
	lt_desc od = *o;
	lt_layout ad = *la, bd = *lb, dd = *ld;

	return emu_queue(s, [=] {
		memset(work, 0xff, work_of(&dd));
		compute(od, ad, a, bd, b, dd, d);
		return cudaSuccess;
	}) == cudaSuccess ? LT_SUCCESS : LT_EXECUTION_FAILED;
}

/* ---- the library ---------------------------------------------------------------------- */

void *emu_dlopen(const char *name, int)
{
	if (emu_nccl_library && strcmp(name, emu_nccl_library) == 0)
		return &emu_nccl_library;
	return emu_lt_library && strcmp(name, emu_lt_library) == 0 ? &alive : nullptr;
}

const char *emu_dlerror()
{
	return "there is no such library in the emulation";
}

int emu_dlclose(void *)
{
	return 0;
}

void *emu_dlsym(void *library, const char *name)
{
	if (library == &emu_nccl_library)
		return emu_nccl_function(name);
	static const std::map<std::string, void *> functions = {
#define ENTRY(f, result, arguments) { "cublasLt" #f, (void *)f },
		LT_FUNCTIONS(ENTRY)
#undef ENTRY
	};
	auto f = functions.find(name);

	return f == functions.end() || (emu_lt_lacks && strcmp(name, emu_lt_lacks) == 0) ? nullptr : f->second;
}
