/* peak.c - see peak.h. */
#include "peak.h"

#include <stdbool.h>
#include <time.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/cpu/kern.h"

const char *const peak_names[N_PEAKS] = {
	"", "int8 products, Gop/s", "bf16 products, Gop/s", "f32 products, Gop/s", "memory, GB/s",
};

#ifdef __x86_64__
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni,avx512bf16"), noinline))
#define AVX2   __attribute__((target("avx2,fma"), noinline))

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Twelve chains of one instruction: enough to hide its latency. */
#define PEAK(name, target, type, init, op, operations)                   \
	target static double name(void)                                  \
	{                                                                \
		type s[12];                                              \
		double t = now();                                        \
		UNROLL                                                   \
		for (int i = 0; i < 12; i++)                             \
			s[i] = init;                                     \
		for (int k = 0; k < 1000000; k++) {                      \
			UNROLL                                           \
			for (int i = 0; i < 12; i++) {                   \
				op;                                      \
				__asm__ volatile("" : "+v"(s[i]));       \
			}                                                \
		}                                                        \
		return 1e6 * 12 * operations / (now() - t) * 1e-9;       \
	}
PEAK(int8_avx512, AVX512, __m512i, _mm512_setzero_si512(),
     s[i] = _mm512_dpbusd_epi32(s[i], _mm512_set1_epi8(3), _mm512_set1_epi8(2)), 128)
PEAK(bf16_avx512, AVX512, __m512, _mm512_setzero_ps(),
     s[i] = _mm512_dpbf16_ps(s[i], (__m512bh)_mm512_set1_epi16(0x3f80),
                             (__m512bh)_mm512_set1_epi16(0x3f80)), 64)
PEAK(f32_avx512, AVX512, __m512, _mm512_setzero_ps(),
     s[i] = _mm512_fmadd_ps(_mm512_set1_ps(1), _mm512_set1_ps(0.5f), s[i]), 32)
PEAK(f32_avx2, AVX2, __m256, _mm256_setzero_ps(),
     s[i] = _mm256_fmadd_ps(_mm256_set1_ps(1), _mm256_set1_ps(0.5f), s[i]), 16)
/* No single instruction does it: pairs of bytes become words, and pairs of words become sums. */
PEAK(int8_avx2, AVX2, __m256i, _mm256_setzero_si256(),
     s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_set1_epi16(1),
                             _mm256_maddubs_epi16(s[i], _mm256_set1_epi8(2)))), 64)

/* Read all of the memory once with the widest loads. */
#define READ(name, target, type, wide, zero, load, or)                   \
	target static double name(const uint8_t *memory, size_t bytes)   \
	{                                                                \
		type any[8];                                             \
		double t = now();                                        \
		UNROLL                                                   \
		for (int i = 0; i < 8; i++)                              \
			any[i] = zero();                                 \
		for (size_t at = 0; at + 8 * wide <= bytes; at += 8 * wide) { \
			UNROLL                                           \
			for (int i = 0; i < 8; i++)                      \
				any[i] = or(any[i], load((const type *)(const void *)(memory + at + wide * i))); \
		}                                                        \
		for (int i = 1; i < 8; i++)                              \
			any[0] = or(any[0], any[i]);                     \
		__asm__ volatile("" : : "v"(any[0]));                    \
		return (double)bytes / (now() - t) * 1e-9;               \
	}
READ(read_avx512, AVX512, __m512i, 64, _mm512_setzero_si512, _mm512_load_si512, _mm512_or_si512)
READ(read_avx2, AVX2, __m256i, 32, _mm256_setzero_si256, _mm256_load_si256, _mm256_or_si256)

double peak_measure(enum peak what, const uint8_t *memory, size_t bytes)
{
	bool wide = kern_avx512() != NULL;

	if (!wide && !kern_avx2())
		return 0;
	switch (what) {
	case PEAK_INT8: return wide ? int8_avx512() : int8_avx2();
	case PEAK_BF16: return wide ? bf16_avx512() : 0;
	case PEAK_F32:  return wide ? f32_avx512() : f32_avx2();
	case PEAK_READ: return wide ? read_avx512(memory, bytes) : read_avx2(memory, bytes);
	default:        return 0;
	}
}
#else
double peak_measure(enum peak what, const uint8_t *memory, size_t bytes)
{
	(void)what, (void)memory, (void)bytes;
	return 0;
}
#endif
