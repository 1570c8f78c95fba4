/* number.c - see number.h.
 *
 * Schubfach, by Raffaello Giulietti ("The Schubfach way to render doubles", 2020).  All decimals that
 * round to v lie in an interval around it.  Choose k so that 10^k is at most the interval's width, and
 * 10^(k+1) is larger.  Then the interval has at least one multiple of 10^k and at most one of 10^(k+1).
 * A multiple of 10^(k+1) is shorter and wins.  Each end of the interval, in units of 10^k / 4, needs one
 * product of 64 by 128 bits.
 *
 * The powers of ten take 9.9 KB.  They are computed from exact integers before main(), so no table of
 * constants has to be trusted.
 */
#include "number.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define POWER_MIN (-292)               /* exponent of 10^-k for the largest double */
#define POWER_MAX 324                  /* the same for the smallest double */
#define WORDS     13                   /* of 64 bits: holds 5^324, and 2^831 / 5^292 to at least 128 bits */

__extension__ typedef unsigned __int128 u128;

struct power { uint64_t hi, lo; };     /* ceil(10^e / 2^x); x makes the highest bit set */

static struct power power[POWER_MAX - POWER_MIN + 1];

/* The 128 highest bits of w, whose lowest word is first.  Adds one if bits are lost, or if `always`. */
static struct power top_bits(const uint64_t w[WORDS], bool always)
{
	int n = WORDS - 1, shift;
	struct power p;
	uint64_t rest;
	bool more = always;

	while (!w[n])
		n--;
	shift = __builtin_clzll(w[n]);
	p.hi = w[n];
	p.lo = n > 0 ? w[n - 1] : 0;
	rest = n > 1 ? w[n - 2] : 0;
	if (shift) {
		p.hi = p.hi << shift | p.lo >> (64 - shift);
		p.lo = p.lo << shift | rest >> (64 - shift);
		rest <<= shift;
	}
	more |= rest != 0;
	for (int i = 0; i < n - 2; i++)
		more |= w[i] != 0;
	p.lo += more;
	p.hi += more && !p.lo;
	return p;
}

/* 10^e and 5^e differ only by a power of two, so their highest bits are the same. */
__attribute__((constructor)) static void make_powers(void)
{
	uint64_t up[WORDS] = { 1 }, down[WORDS] = { [WORDS - 1] = 1ull << 63 };

	for (int e = 0; e <= POWER_MAX; e++) {
		u128 carry = 0;

		power[e - POWER_MIN] = top_bits(up, false);
		for (int i = 0; i < WORDS; i++) {
			carry += (u128)up[i] * 5;
			up[i] = (uint64_t)carry;
			carry >>= 64;
		}
	}
	for (int e = -1; e >= POWER_MIN; e--) {  /* rounding down in steps equals rounding down once */
		u128 rest = 0;

		for (int i = WORDS - 1; i >= 0; i--) {
			rest = rest << 64 | down[i];
			down[i] = (uint64_t)(rest / 5);
			rest %= 5;
		}
		power[e - POWER_MIN] = top_bits(down, true);
	}
}

/* p * c / 2^128.  Its lowest bit is set if bits were cut off, so comparisons stay right. */
static uint64_t times(struct power p, uint64_t c)
{
	u128 low = (u128)p.lo * c;
	u128 high = (u128)p.hi * c + (uint64_t)(low >> 64);

	return (uint64_t)(high >> 64) | ((uint64_t)high > 1);
}

/* The shortest d * 10^*e10 that reads back as c * 2^q.  If several are as short, the nearest. */
static uint64_t shortest(uint64_t c, int q, bool at_power_of_two, int *e10)
{
	/* k = floor(log10(2^q)), or floor(log10(3/4 * 2^q)) where the gap below v is half as wide.  The
	 * exponent of the power of ten is floor(log2(10^-k)). */
	int k = (q * 1262611 - (at_power_of_two ? 524031 : 0)) >> 22;
	int h = q + ((-k * 1741647) >> 19) + 1;
	struct power p = power[-k - POWER_MIN];
	uint64_t low = times(p, (4 * c - 2 + at_power_of_two) << h) + (c & 1);  /* odd c: without the ends */
	uint64_t v = times(p, (4 * c) << h);
	uint64_t high = times(p, (4 * c + 2) << h) - (c & 1);
	uint64_t s = v / 4, tens = s / 10;
	bool below, above;

	*e10 = k + 1;
	if (s >= 10) {
		below = low <= 40 * tens;
		above = 40 * tens + 40 <= high;
		if (below != above)
			return tens + above;
	}
	*e10 = k;
	below = low <= 4 * s;
	above = 4 * s + 4 <= high;
	if (below != above)
		return s + above;
	return s + (v > 4 * s + 2 || (v == 4 * s + 2 && (s & 1)));
}

/* Write the decimal digits of d at the end of to[20].  Returns where they begin. */
static char *put_digits(char *to, uint64_t d)
{
	char *p = to + 20;

	do {
		*--p = (char)('0' + d % 10);
		d /= 10;
	} while (d);
	return p;
}

static size_t exponent(char *to, int e)
{
	size_t n = 0;

	to[n++] = 'e';
	to[n++] = e < 0 ? '-' : '+';
	e = e < 0 ? -e : e;
	if (e >= 100)
		to[n++] = (char)('0' + e / 100);
	to[n++] = (char)('0' + e / 10 % 10);
	to[n++] = (char)('0' + e % 10);
	return n;
}

/* Write n digits, the first of which counts 10^x.  As in Python, numbers below 1e-4 and from 1e16 on have an
 * exponent. */
static size_t lay_out(char *to, const char *digit, int n, int x)
{
	size_t at = 0;

	if (x < -4 || x >= 16) {
		to[at++] = digit[0];
		if (n > 1) {
			to[at++] = '.';
			memcpy(to + at, digit + 1, (size_t)n - 1);
			at += (size_t)n - 1;
		}
		return at + exponent(to + at, x);
	}
	if (x < 0) {
		memcpy(to, "0.000", 5);
		at = (size_t)(1 - x);
		memcpy(to + at, digit, (size_t)n);
		return at + (size_t)n;
	}
	for (int i = 0; i < n || i <= x + 1; i++) {
		if (i == x + 1)
			to[at++] = '.';
		to[at++] = i < n ? digit[i] : '0';
	}
	return at;
}

size_t number_write(char *to, double v)
{
	char digits[20], *d, *end = digits + sizeof(digits);
	uint64_t bits, fraction;
	size_t at = 0;
	int biased, e10;

	memcpy(&bits, &v, sizeof(bits));
	fraction = bits & ((1ull << 52) - 1);
	biased = (int)(bits >> 52 & 2047);
	if (bits >> 63)
		to[at++] = '-';
	if (!biased && !fraction) {
		memcpy(to + at, "0.0", 3);
		return at + 3;
	}
	d = put_digits(digits, shortest(biased ? fraction | 1ull << 52 : fraction, (biased ? biased : 1) - 1075,
	                                !fraction && biased > 1, &e10));
	e10 += (int)(end - d) - 1;
	while (end > d + 1 && end[-1] == '0')
		end--;
	return at + lay_out(to + at, d, (int)(end - d), e10);
}
