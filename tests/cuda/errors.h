/* errors.h - how far results are from the truth, for each kernel.  In the emulation a result that is too far off
 * ends its test.  On a GPU the test goes on, so that one run tells of every kernel and shape: each that is off,
 * and of each kernel the largest error and where it was, even if all are right. */
#ifndef CUDA_ERRORS_H
#define CUDA_ERRORS_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct error_line { char kernel[40], at[120]; double off, bound; int n, over; };

static struct error_line error_lines[64];
static int n_error_lines;

static inline struct error_line *error_line_of(const char *kernel)
{
	int i = 0;

	while (i < n_error_lines && strcmp(error_lines[i].kernel, kernel))
		i++;
	if (i == n_error_lines) {
		n_error_lines = i < 63 ? i + 1 : 64;
		i = n_error_lines - 1;
		snprintf(error_lines[i].kernel, sizeof(error_lines[i].kernel), "%s", kernel);
	}
	return &error_lines[i];
}

/* One line per kernel; the table is empty after it.  Returns the number of results that were too far off. */
static inline int print_errors(void)
{
	int over = 0;

	for (int i = 0; i < n_error_lines; i++) {
		const struct error_line *e = &error_lines[i];

		printf("error %-28s %8.2g of %8.2g  %6d compared, %d over; largest: %s\n", e->kernel, e->off, e->bound,
			e->n, e->over, e->at);
		over += e->over;
	}
	memset(error_lines, 0, sizeof(error_lines));
	n_error_lines = 0;
	return over;
}

/* off: of a result of `kernel`, in the unit of `bound`; NaN is over every bound. */
static inline __attribute__((format(printf, 4, 5))) void within(const char *kernel, double off, double bound,
	const char *fmt, ...)
{
	struct error_line *e = error_line_of(kernel);
	bool over = !(off <= bound);
	char at[sizeof(e->at)];
	va_list ap;

	e->n++;
	if (e->n > 1 && !over && off / bound <= e->off / e->bound)
		return;
	va_start(ap, fmt);
	vsnprintf(at, sizeof(at), fmt, ap);
	va_end(ap);
	if (!(e->n > 1 && e->off != e->off)) { /* the first NaN stays */
		e->off = off;
		e->bound = bound;
		memcpy(e->at, at, sizeof(at));
	}
	if (!over)
		return;
#ifdef CUDA_CMOCKA_H
	if (++e->over <= 3)
		printf("OFF %s, %s: by %g, may be %g\n", kernel, at, off, bound);
#else
	fail_msg("%s, %s: off by %g, may be %g", kernel, at, off, bound);
#endif
}

#endif
