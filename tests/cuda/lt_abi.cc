/* lt_abi.cc - kernels/cuda/cublaslt.h against NVIDIA's <cublasLt.h>: compiled by "make cuda" where that
 * header is found, never linked. */
#include <cublasLt.h>
#include <type_traits>

#include "kernels/cuda/cublaslt.h"

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)

SAME(LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(LT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(LT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
SAME(LT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(LT_ARCH_MISMATCH, CUBLAS_STATUS_ARCH_MISMATCH);
SAME(LT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED);
SAME(LT_INTERNAL_ERROR, CUBLAS_STATUS_INTERNAL_ERROR);
SAME(LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(LT_R_32F, CUDA_R_32F);
SAME(LT_R_16BF, CUDA_R_16BF);
SAME(LT_R_8F_E4M3, CUDA_R_8F_E4M3);
SAME(LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(LT_OP_N, CUBLAS_OP_N);
SAME(LT_OP_T, CUBLAS_OP_T);
SAME(LT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(LT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(LT_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(LT_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(LT_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME(LT_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(LT_PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(LT_PREF_ALIGN_B, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(LT_PREF_ALIGN_C, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(LT_PREF_ALIGN_D, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
#if CUBLAS_VERSION >= 120900
SAME(LT_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(LT_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(LT_SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
#endif

static_assert(sizeof(struct lt_algo) == sizeof(cublasLtMatmulAlgo_t), "algo");
static_assert(sizeof(struct lt_heuristic) == sizeof(cublasLtMatmulHeuristicResult_t), "heuristic");
#define SAME_PLACE(ours, theirs) \
	static_assert(offsetof(struct lt_heuristic, ours) == \
		offsetof(cublasLtMatmulHeuristicResult_t, theirs), #ours)
SAME_PLACE(workspace, workspaceSize);
SAME_PLACE(status, state);
SAME_PLACE(waves, wavesCount);

/* Handles are pointers and enums ints: functions take as many arguments, each as wide and as much a
 * pointer. */
template <class T> constexpr bool pointer = std::is_pointer<T>::value;
template <class R, class... A, class S, class... B> constexpr bool alike(R (*)(A...), S (*)(B...))
{
	if constexpr (sizeof...(A) != sizeof...(B))
		return false;
	else
		return sizeof(R) == sizeof(S) && ((sizeof(A) == sizeof(B) && pointer<A> == pointer<B>) && ...);
}
#define CHECK(name, result, arguments) \
	static_assert(alike(decltype(lt_api::name)(nullptr), decltype(&cublasLt##name)(nullptr)), #name);
LT_FUNCTIONS(CHECK)
