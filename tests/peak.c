/* peak.c - see peak.h. */
#include <immintrin.h>
#include <time.h>

#include "kernels/cpu/kern.h"
#include "tests/peak.h"

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define WIDE __attribute__((target("avx512f,avx512bw,avx512vnni,avx512bf16"), noinline))

const char *const peak_names[N_PEAKS] = {
	"", "int8 products, Gop/s", "bf16 products, Gop/s", "f32 products, Gop/s", "memory, GB/s",
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Twelve chains of one instruction: enough to hide its latency. */
#define PEAK(name, type, init, op, operations)                           \
	WIDE static double name(void)                                    \
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
PEAK(peak_int8, __m512i, _mm512_setzero_si512(),
     s[i] = _mm512_dpbusd_epi32(s[i], _mm512_set1_epi8(3), _mm512_set1_epi8(2)), 128)
PEAK(peak_bf16, __m512, _mm512_setzero_ps(),
     s[i] = _mm512_dpbf16_ps(s[i], (__m512bh)_mm512_set1_epi16(0x3f80),
                             (__m512bh)_mm512_set1_epi16(0x3f80)), 64)
PEAK(peak_f32, __m512, _mm512_setzero_ps(),
     s[i] = _mm512_fmadd_ps(_mm512_set1_ps(1), _mm512_set1_ps(0.5f), s[i]), 32)

/* All of it once by the widest loads. */
WIDE static double read_all(const uint8_t *memory, size_t bytes)
{
	__m512i any[8];
	double t = now();
	static volatile uint64_t sink;

	UNROLL
	for (int i = 0; i < 8; i++)
		any[i] = _mm512_setzero_si512();
	for (size_t at = 0; at + 512 <= bytes; at += 512) {
		UNROLL
		for (int i = 0; i < 8; i++)
			any[i] = _mm512_or_si512(any[i], _mm512_load_si512(memory + at + 64 * i));
	}
	for (int i = 1; i < 8; i++)
		any[0] = _mm512_or_si512(any[0], any[i]);
	sink = (uint64_t)_mm512_reduce_or_epi64(any[0]);
	(void)sink;
	return (double)bytes / (now() - t) * 1e-9;
}

double peak_measure(enum peak what, const uint8_t *memory, size_t bytes)
{
	if (!kern_avx512())
		return 0;
	switch (what) {
	case PEAK_INT8: return peak_int8();
	case PEAK_BF16: return peak_bf16();
	case PEAK_F32:  return peak_f32();
	case PEAK_READ: return read_all(memory, bytes);
	default:        return 0;
	}
}
