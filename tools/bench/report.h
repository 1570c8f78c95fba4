/* report.h - benchmark results as one page of HTML.  It is shared by report.c (the command), report_page.c
 * (the page and its words), report_draw.c (its pictures), report_data.c (numbers from result files) and
 * report_plot.c (inline SVG).  One thread.
 *
 * The page loads nothing: it has no script and no external font or picture, and a policy in its head forbids
 * them.  Every text from a file goes through report_text().
 */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <jansson.h>

/* The runs of a result file, or of a point of a sweep.  They have one colour and one column. */
struct report_of {
	const char *name;
	json_t *runs;                /* array of result objects, at least one */
	const json_t *point;         /* the point in a sweep's file, or NULL */
};

/* Write the page to path and a CSV file beside it (.html becomes .csv).  comparison: from compare_results(),
 * or NULL.  Returns 0, or -errno and a sentence; then no file was created or replaced. */
int report_write(const char *path, const struct report_of *of, size_t n, const json_t *comparison,
                 char *err, size_t errlen);

/* The same from result files, or from the one file of a sweep (report.c). */
int report_files(const char *out, char **name, int n, char *err, size_t errlen);

/* ---- numbers (report_data.c) ------------------------------------------------------------------- */

enum report_latency { REPORT_TTFT, REPORT_TPOT, REPORT_ITL, REPORT_E2EL, N_REPORT };

struct report_data {
	double *v[N_REPORT];         /* ms of all runs, sorted; NULL: no details */
	size_t n[N_REPORT];
	/* the first run, in bins */
	size_t n_bins;
	double bin;                  /* s */
	double *tokens_s, *under_way;/* [n_bins] events a second; requests */
};

/* 0 or -ENOMEM.  Without details everything is empty. */
int    report_data(struct report_data *d, const struct report_of *of);
void   report_data_free(struct report_data *d);
double report_mean(const struct report_of *of, const char *key);      /* over the runs; NAN: missing */
void   report_range(const struct report_of *of, const char *key, double *low, double *high);
const json_t *report_server(const struct report_of *of);              /* the first run's, or NULL */

const char *report_field(const json_t *j, const char *key);            /* a text; "" if it is missing */
void   report_value(char *out, size_t n, const json_t *v);            /* as a user writes it */
double report_reached(const struct report_of *of, const char *key);   /* share of a ceiling; NAN: unknown */

/* Write a row for each request, or for each point of a sweep. */
void   report_csv(FILE *f, const struct report_of *of, size_t n);

/* ---- sections (report_draw.c) ------------------------------------------------------------------ */

struct report {
	FILE *f;
	const struct report_of *of;  /* [n] */
	struct report_data *data;    /* [n] */
	size_t n;
	const json_t *comparison;
	bool sweep;
};

void report_draw_latencies(const struct report *p);
void report_draw_time(const struct report *p);
void report_draw_limits(const struct report *p);
void report_draw_sweep(const struct report *p);

/* ---- pictures (report_plot.c) ------------------------------------------------------------------ */

struct plot {
	FILE *f;
	const char *title, *say;     /* say: a description for users who cannot see it */
	const char *x_label, *y_label;
	const char *legend;          /* trusted HTML, or NULL */
	double x[2], y[2];           /* ranges of the axes */
	bool log_x, log_y, percent;  /* percent: y is in percent */
};

void report_text(FILE *f, const char *s);                  /* write s as escaped HTML text */
void report_number(char *out, size_t n, double v);         /* at least 3 digits: 0.123, 12.3, 1,234 */

void plot_begin(const struct plot *p);
void plot_end(const struct plot *p);
const char *plot_class(int colour);                        /* 0 .. 7, or -1 for the neutral one */
void plot_line(const struct plot *p, const double *x, const double *y, size_t n, int colour, bool area);
void plot_dot(const struct plot *p, double x, double y, int colour, const char *tip);
void plot_label(const struct plot *p, double x, double y, const char *s);   /* beside a dot */
void plot_whisker(const struct plot *p, double x, double low, double high, int colour);
void plot_rule(const struct plot *p, bool vertical, double at, const char *label); /* mark a value */
/* Draw one layer of a stack, from below[] to above[], in steps from x[i] to x[i + 1]. */
void plot_layer(const struct plot *p, const double *x, const double *below, const double *above, size_t n,
                int colour, const char *tip);

#endif
