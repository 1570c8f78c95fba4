/* regex.h - expressions over bytes, with intersection, complement and counted repetition, and their
 * derivatives.
 *
 * An expression is a number.  Expressions that the simplifications make equal have equal numbers, so a number
 * is also a state of a deterministic automaton whose transitions are regex_derive() (Brzozowski,
 * 1964).  Counted repetitions are never unrolled: x{1000000} is one expression.
 *
 * A failure is sticky: functions that make an expression return REGEX_FAILED, and regexes_error() says why.
 * One thread at a time uses a struct regexes, also to derive: derivatives are made on first use and kept.
 */
#ifndef REGEX_H
#define REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REGEX_NONE   0u              /* no string */
#define REGEX_EMPTY  1u              /* the empty string */
#define REGEX_ANY    2u              /* any bytes, the empty string too */
#define REGEX_FAILED UINT32_MAX
#define REGEX_MANY   UINT32_MAX      /* as max of regex_repeat(): no bound */

struct regexes;
struct regex_range { uint32_t first, last; };        /* code points, both included */

/* most: the most expressions ever made; then -E2BIG.  NULL: no memory. */
struct regexes *regexes_create(uint32_t most);
void regexes_free(struct regexes *r);
int regexes_error(const struct regexes *r);          /* 0, -ENOMEM, -E2BIG */
void regexes_fail(struct regexes *r, int code);      /* the caller met an error: sticky as the others */
uint32_t regexes_count(const struct regexes *r);     /* how many there are, for budgets */
uint64_t regexes_work(const struct regexes *r);      /* steps of derivation so far, for budgets */

uint32_t regex_bytes(struct regexes *r, const void *s, size_t n);
uint32_t regex_set(struct regexes *r, const uint64_t set[4]);     /* one byte: bit b % 64 of word b / 64 */
/* One of these characters in UTF-8.  Sorted, not overlapping; surrogates are left out. */
uint32_t regex_points(struct regexes *r, const struct regex_range *range, size_t n);

uint32_t regex_concat(struct regexes *r, uint32_t a, uint32_t b);
uint32_t regex_or(struct regexes *r, uint32_t a, uint32_t b);
uint32_t regex_or_all(struct regexes *r, const uint32_t *list, size_t n);   /* faster for many */
uint32_t regex_and(struct regexes *r, uint32_t a, uint32_t b);
uint32_t regex_and_all(struct regexes *r, const uint32_t *list, size_t n);
uint32_t regex_not(struct regexes *r, uint32_t a);
uint32_t regex_repeat(struct regexes *r, uint32_t a, uint32_t min, uint32_t max);
/* Digits, and perhaps a point with digits behind it, that are a multiple of divisor / 10^scale (divisor > 0,
 * scale <= 400).  They may begin or end with zeros, and there may be none. */
uint32_t regex_multiple(struct regexes *r, uint32_t divisor, uint32_t scale);

/* Alphabets: e.g. the characters of a JSON string.  regex_alphabet() says that `letter` is the letter of
 * alphabet `which`, which is set once; regex_written() says that every string of e is a sequence of such
 * letters.  Then letter* absorbs e in a union and vanishes beside it in an intersection: a search that has
 * found its text is one state. */
enum regex_alphabet { REGEX_TEXT, REGEX_JSON, REGEX_ALPHABETS };
void regex_alphabet(struct regexes *r, enum regex_alphabet which, uint32_t letter);
void regex_written(struct regexes *r, uint32_t e, enum regex_alphabet which);

bool regex_nullable(const struct regexes *r, uint32_t e);
uint32_t regex_derive(struct regexes *r, uint32_t e, uint8_t byte);

/* All derivatives at once: by byte b it is target[class[b]].  Valid until the next call that can make an
 * expression.  0, or regexes_error(). */
struct regex_row {
	const uint8_t *class;        /* [256] */
	const uint32_t *target;      /* [n] different ones, REGEX_NONE among them */
	uint32_t n;
};
int regex_row(struct regexes *r, uint32_t e, struct regex_row *out);

/* The bytes whose derivative is not REGEX_NONE.  0, or regexes_error(). */
int regex_first(struct regexes *r, uint32_t e, uint64_t set[4]);

/* Is there any string in e?  1, 0, -E2BIG: not found out within the budget, or regexes_error().  Without
 * intersection and complement it is at once 1 for all but REGEX_NONE. */
int regex_live(struct regexes *r, uint32_t e);

/* Is e free of intersections and complements?  Then what is not REGEX_NONE is live. */
bool regex_simple(const struct regexes *r, uint32_t e);

/* e with each count that is still to come and above `most` clamped.  Of texts up to `most` bytes long it
 * holds the same ones, and the same ones can be continued to a string of it.  Counts below an intersection or
 * a complement stay as they are. */
uint32_t regex_clamp(struct regexes *r, uint32_t e, uint32_t most);

#endif
