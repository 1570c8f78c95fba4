/* cublaslt.h - the part of cuBLASLt's interface that kernels/cuda/lt.cu uses, declared here.
 *
 * NVIDIA's header is not part of every toolkit, and the library is looked up only at run time.  With its
 * own prototypes a build can use the library wherever it is found.  The numbers are part of its binary
 * interface.  Where NVIDIA's header exists, tests/cuda/lt_abi.cc compares each ("make cuda" reports it).
 */
#ifndef CUDA_CUBLASLT_H
#define CUDA_CUBLASLT_H

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lt_context *lt_handle;
typedef struct lt_desc *lt_matmul_desc;
typedef struct lt_layout *lt_matrix_layout;
typedef struct lt_pref *lt_preference;

struct lt_algo { uint64_t data[8]; };          /* valid for one version of the library */
struct lt_heuristic {
	struct lt_algo algo;
	size_t workspace;                      /* bytes it needs */
	int status;                            /* LT_SUCCESS: the other fields are valid */
	float waves;
	int reserved[4];
};

enum { LT_SUCCESS = 0, LT_NOT_INITIALIZED = 1, LT_ALLOC_FAILED = 3, LT_INVALID_VALUE = 7,
	LT_ARCH_MISMATCH = 8, LT_EXECUTION_FAILED = 13, LT_INTERNAL_ERROR = 14, LT_NOT_SUPPORTED = 15 };
enum { LT_R_32F = 0, LT_R_16BF = 14, LT_R_8F_E4M3 = 28 };         /* cudaDataType */
enum { LT_COMPUTE_32F = 68 };
enum { LT_OP_N = 0, LT_OP_T = 1 };
enum { LT_EPILOGUE_DEFAULT = 1, LT_EPILOGUE_BIAS = 4 };
enum { LT_SCALE_OUTER_VEC_32F = 3 };           /* one scale per row of D for A, one per column for B */
enum { LT_DESC_TRANSA = 3, LT_DESC_EPILOGUE = 7, LT_DESC_BIAS_POINTER = 8, LT_DESC_A_SCALE_POINTER = 17,
	LT_DESC_B_SCALE_POINTER = 18, LT_DESC_BIAS_DATA_TYPE = 26, LT_DESC_A_SCALE_MODE = 31,
	LT_DESC_B_SCALE_MODE = 32 };
enum { LT_PREF_MAX_WORKSPACE_BYTES = 1, LT_PREF_ALIGN_A = 5, LT_PREF_ALIGN_B = 6, LT_PREF_ALIGN_C = 7,
	LT_PREF_ALIGN_D = 8 };

/* X(name, result, arguments): cublasLt<name>; all exist since 11.4. */
#define LT_FUNCTIONS(X) \
	X(GetVersion, size_t, (void)) \
	X(GetStatusName, const char *, (int)) \
	X(Create, int, (lt_handle *)) \
	X(Destroy, int, (lt_handle)) \
	X(MatmulDescCreate, int, (lt_matmul_desc *, int compute, int scale_type)) \
	X(MatmulDescDestroy, int, (lt_matmul_desc)) \
	X(MatmulDescSetAttribute, int, (lt_matmul_desc, int what, const void *, size_t)) \
	X(MatrixLayoutCreate, int, (lt_matrix_layout *, int type, uint64_t rows, uint64_t cols, int64_t ld)) \
	X(MatrixLayoutDestroy, int, (lt_matrix_layout)) \
	X(MatmulPreferenceCreate, int, (lt_preference *)) \
	X(MatmulPreferenceDestroy, int, (lt_preference)) \
	X(MatmulPreferenceSetAttribute, int, (lt_preference, int what, const void *, size_t)) \
	X(MatmulAlgoGetHeuristic, int, (lt_handle, lt_matmul_desc, lt_matrix_layout a, lt_matrix_layout b, \
		lt_matrix_layout c, lt_matrix_layout d, lt_preference, int wanted, struct lt_heuristic *, int *n)) \
	X(Matmul, int, (lt_handle, lt_matmul_desc, const void *alpha, const void *a, lt_matrix_layout, \
		const void *b, lt_matrix_layout, const void *beta, const void *c, lt_matrix_layout, void *d, \
		lt_matrix_layout, const struct lt_algo *, void *workspace, size_t, cudaStream_t))

#define LT_POINTER(name, result, arguments) result (*name) arguments;
struct lt_api { LT_FUNCTIONS(LT_POINTER) };
#undef LT_POINTER

#endif
