/* number.c - numbers as expressions over their decimals.
 *
 * The universe is -?(0|[1-9]\d*)(\.\d+)?: no exponents.  Every set holds a number with each count of
 * trailing zeros or with none, so that complements are right.  A schema's own numbers are words: the
 * shortest decimal.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "impl.h"

#define DIGITS 400                      /* of a number in a schema, e.g. 1e308 has 309 */

/* ---- words ---- */

/* Shortest digits that read back as v, as "d.ddde-xx". */
static void shortest(char *to, size_t n, double v)
{
	for (int precision = 0; precision < 17; precision++) {
		snprintf(to, n, "%.*e", precision, v);
		if (strtod(to, NULL) == v)
			return;
	}
}

static struct word word_of_real(struct schema *s, double v)
{
	char text[40], digits[40], *to = schema_take(s, DIGITS + 40, 1), *at = to;
	int n = 0, point, exponent;

	shortest(text, sizeof(text), v);
	exponent = atoi(strchr(text, 'e') + 1);
	for (const char *p = text; *p != 'e'; p++)
		if (*p >= '0' && *p <= '9')
			digits[n++] = *p;
	while (n > 1 && digits[n - 1] == '0')
		n--;
	if (v < 0)
		*at++ = '-';
	point = exponent + 1;               /* digits before the point */
	if (point <= 0)
		*at++ = '0';
	for (int i = 0; i < point; i++)
		*at++ = i < n ? digits[i] : '0';
	if (n > point && !(n == 1 && digits[0] == '0')) {
		*at++ = '.';
		for (int i = point; i < 0; i++)
			*at++ = '0';
		for (int i = point > 0 ? point : 0; i < n; i++)
			*at++ = digits[i];
	}
	return (struct word){ to, (size_t)(at - to), !memchr(to, '.', (size_t)(at - to)) };
}

struct word word_of(struct schema *s, const json_t *v)
{
	char *to;
	int n;

	if (json_is_string(v))
		return (struct word){ json_string_value(v), json_string_length(v), false };
	if (json_is_real(v))
		return word_of_real(s, json_real_value(v));
	to = schema_take(s, 24, 1);
	n = snprintf(to, 24, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	return (struct word){ to, (size_t)n, false };
}

/* ---- small expressions ---- */

static uint32_t range(struct schema *s, int first, int last)
{
	uint64_t set[4] = { 0 };
	uint32_t *e;

	if (first > last)
		return REGEX_NONE;
	e = &s->digit[first - '0'][last - '0'];
	for (int c = first; c <= last && !*e; c++)
		set[c >> 6] |= 1ull << (c & 63);
	if (!*e)
		*e = schema_expr(s, regex_set(s->r, set));
	return *e;
}

static uint32_t digits(struct schema *s, uint32_t min, uint32_t max)
{
	return schema_expr(s, regex_repeat(s->r, range(s, '0', '9'), min, max));
}

static uint32_t zeros(struct schema *s, uint32_t min)
{
	return schema_expr(s, regex_repeat(s->r, range(s, '0', '0'), min, REGEX_MANY));
}

static uint32_t join(struct schema *s, uint32_t a, uint32_t b)
{
	return schema_expr(s, regex_concat(s->r, a, b));
}

static uint32_t either(struct schema *s, uint32_t a, uint32_t b)
{
	return schema_expr(s, regex_or(s->r, a, b));
}

static uint32_t text(struct schema *s, const char *p, size_t n)
{
	return schema_expr(s, regex_bytes(s->r, p, n));
}

static uint32_t maybe(struct schema *s, uint32_t a)
{
	return either(s, a, REGEX_EMPTY);
}

static uint32_t minus(struct schema *s, uint32_t a)
{
	return join(s, text(s, "-", 1), a);
}

/* ".000", or nothing */
static uint32_t no_fraction(struct schema *s)
{
	return maybe(s, join(s, text(s, ".", 1), zeros(s, 1)));
}

static uint32_t whole(struct schema *s)
{
	return either(s, text(s, "0", 1), join(s, range(s, '1', '9'), digits(s, 0, REGEX_MANY)));
}

void numbers_begin(struct schema *s)
{
	s->fraction = maybe(s, join(s, text(s, ".", 1), digits(s, 1, REGEX_MANY)));
	s->plain = join(s, maybe(s, text(s, "-", 1)), whole(s));
	s->integers = join(s, s->plain, no_fraction(s));
	s->all_numbers = join(s, s->plain, s->fraction);
	s->all_strings = schema_expr(s, regex_repeat(s->r, json_char(s->r), 0, REGEX_MANY));
}

uint32_t word_number(struct schema *s, const struct word *w)
{
	uint32_t e = text(s, w->s, w->n);

	if (w->n == 1 && w->s[0] == '0')
		e = either(s, e, minus(s, e));
	return join(s, e, memchr(w->s, '.', w->n) ? zeros(s, 0) : no_fraction(s));
}

/* ---- comparison with a decimal ---- */

struct decimal { const char *whole, *fraction; uint32_t n_whole, n_fraction; bool negative, zero; };

static struct decimal decimal_of(const struct word *w)
{
	struct decimal d = { .whole = w->s, .negative = w->s[0] == '-' };
	const char *end = w->s + w->n, *point;

	d.whole += d.negative;
	point = memchr(d.whole, '.', (size_t)(end - d.whole));
	d.n_whole = (uint32_t)((point ? point : end) - d.whole);
	d.fraction = point ? point + 1 : end;
	d.n_fraction = (uint32_t)(end - d.fraction);
	d.zero = d.n_whole == 1 && d.whole[0] == '0' && !d.n_fraction;
	return d;
}

/* What may follow the whole digits of d, for numbers that differ from it in the fraction at most. */
static uint32_t fraction_beyond(struct schema *s, const struct decimal *d, bool greater, bool strict)
{
	uint32_t e = REGEX_NONE, any = digits(s, 0, REGEX_MANY), dot = text(s, ".", 1), same = dot;

	for (uint32_t i = 0; i < d->n_fraction; i++) {
		int c = d->fraction[i];
		uint32_t other = greater ? range(s, c + 1, '9') : range(s, '0', c - 1);

		if (!greater)
			e = either(s, e, i ? same : REGEX_EMPTY);   /* it ends here: zeros follow */
		e = either(s, e, join(s, same, join(s, other, any)));
		same = join(s, same, text(s, &d->fraction[i], 1));
	}
	if (greater && strict)
		return either(s, e, join(s, same, join(s, zeros(s, 0), join(s, range(s, '1', '9'), any))));
	if (strict)
		return e;
	if (greater)
		return either(s, e, d->n_fraction ? join(s, same, any) : s->fraction);
	return either(s, e, d->n_fraction ? join(s, same, zeros(s, 0)) : no_fraction(s));
}

/* Numbers without a sign that are greater, or less, than d without its sign. */
static uint32_t beyond(struct schema *s, const struct decimal *d, bool greater, bool strict)
{
	uint32_t e = REGEX_NONE, n = d->n_whole;

	if (greater)
		e = join(s, join(s, range(s, '1', '9'), digits(s, n, REGEX_MANY)), s->fraction);
	else if (n > 1)
		e = join(s, either(s, text(s, "0", 1), join(s, range(s, '1', '9'), digits(s, 0, n - 2))),
		         s->fraction);
	for (uint32_t i = 0; i < n; i++) {
		int c = d->whole[i];
		uint32_t other = greater ? range(s, c + 1, '9') : range(s, i == 0 && n > 1 ? '1' : '0', c - 1);

		if (other != REGEX_NONE)
			e = either(s, e, join(s, text(s, d->whole, i),
			                      join(s, other, join(s, digits(s, n - 1 - i, n - 1 - i), s->fraction))));
	}
	return either(s, e, join(s, text(s, d->whole, n), fraction_beyond(s, d, greater, strict)));
}

static uint32_t nothing(struct schema *s)
{
	return join(s, text(s, "0", 1), no_fraction(s));
}

uint32_t number_at_least(struct schema *s, const struct word *bound, bool strict)
{
	struct decimal d = decimal_of(bound);
	uint32_t any = join(s, whole(s), s->fraction), e;

	if (d.negative)
		return either(s, any, minus(s, beyond(s, &d, false, strict)));
	e = beyond(s, &d, true, strict);
	return d.zero && !strict ? either(s, e, minus(s, nothing(s))) : e;
}

uint32_t number_at_most(struct schema *s, const struct word *bound, bool strict)
{
	struct decimal d = decimal_of(bound);
	uint32_t any = join(s, whole(s), s->fraction);

	if (d.negative)
		return minus(s, beyond(s, &d, true, strict));
	if (d.zero && strict)
		return minus(s, beyond(s, &d, true, true));
	return either(s, minus(s, any), beyond(s, &d, false, strict));
}

uint32_t number_multiple(struct schema *s, const json_t *schema, const struct word *of)
{
	struct decimal d = decimal_of(of);
	uint64_t divisor = 0;

	for (uint32_t i = 0; i < d.n_whole + d.n_fraction; i++) {
		divisor = divisor * 10 + (uint64_t)((i < d.n_whole ? d.whole[i] : d.fraction[i - d.n_whole]) - '0');
		if (divisor > UINT32_MAX || d.n_fraction > DIGITS)
			break;
	}
	if (divisor > UINT32_MAX || d.n_fraction > DIGITS) {
		schema_ignore(s, schema, "multipleOf");
		return s->all_numbers;
	}
	return join(s, maybe(s, text(s, "-", 1)),
	            schema_expr(s, regex_multiple(s->r, (uint32_t)divisor, d.n_fraction)));
}
