/* report_plot.c - draws axes, lines, bands and dots as inline SVG.  Colours are classes, which the page's
 * style defines for light, dark and paper.  All pictures have one size, so all their text has one size. */
#include <math.h>
#include <string.h>

#include "report.h"

#define W      440
#define H      280
#define LEFT   56
#define RIGHT  16
#define TOP    16
#define BOTTOM 44
#define TICKS  6

/* ---- text -------------------------------------------------------------------------------------- */

/* Length of the character at s; 0: not UTF-8. */
static int character(const unsigned char *s, unsigned *code)
{
	static const unsigned least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	int n = s[0] < 0x80 ? 1 : s[0] >= 0xf0 && s[0] < 0xf8 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;

	*code = n == 1 ? s[0] : n ? s[0] & (0x7fu >> n) : 0;
	for (int i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		*code = *code << 6 | (s[i] & 0x3f);
	}
	return n && *code >= least[n] && *code < 0x110000 && (*code < 0xd800 || *code > 0xdfff) ? n : 0;
}

/* Invisible characters, or those that change the direction of text, could make one name look like another. */
static bool invisible(unsigned c)
{
	return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <=
	        0x202e) ||
	       (c >= 0x2060 && c <= 0x206f) || c == 0xfeff || (c & 0xfffe) == 0xfffe;
}

void report_text(FILE *f, const char *s)
{
	unsigned c;

	for (int n; *s; s += n ? n : 1) {
		n = character((const unsigned char *)s, &c);
		if (!n || invisible(c))
			fputs("\xef\xbf\xbd", f);
		else if (n == 1 && strchr("&<>\"'", *s))
			fprintf(f, "&#%d;", *s);
		else
			fwrite(s, 1, (size_t)n, f);
	}
}

void report_number(char *out, size_t n, double v)
{
	char digits[64], *from = digits;
	size_t len, at = 0;

	if (!isfinite(v)) {
		snprintf(out, n, "-");
		return;
	}
	if (fabs(v) < 999.5) {
		snprintf(out, n, v == floor(v) ? "%.0f" : fabs(v) < 0.9995 ? "%.3g" : fabs(v) < 9.995 ? "%.2f" :
		         fabs(v) < 99.95 ? "%.1f" :
		         "%.0f", v);
		return;
	}
	snprintf(digits, sizeof(digits), "%.0f", v);
	if (*from == '-' && at + 1 < n)
		out[at++] = *from++;
	len = strlen(from);
	for (size_t i = 0; i < len && at + 2 < n; i++) {
		out[at++] = from[i];
		if (i + 1 < len && (len - i - 1) % 3 == 0)
			out[at++] = ',';
	}
	out[at] = 0;
}

/* ---- places ------------------------------------------------------------------------------------ */

static double place_on_axis(const double range[2], bool logarithmic, double v)
{
	double a = range[0], b = range[1], x;

	if (logarithmic)
		x = (log(fmax(v, a * 1e-3)) - log(a)) / (log(b) - log(a));
	else
		x = (v - a) / (b - a);
	return fmin(fmax(isfinite(x) ? x : 0, 0), 1);
}

static double across(const struct plot *p, double v)
{
	return LEFT + place_on_axis(p->x, p->log_x, v) * (W - LEFT - RIGHT);
}

static double up(const struct plot *p, double v)
{
	return H - BOTTOM - place_on_axis(p->y, p->log_y, v) * (H - TOP - BOTTOM);
}

/* Choose round values inside a range.  Returns their number. */
static int ticks(const double range[2], bool logarithmic, double *at)
{
	static const double steps[] = { 1, 2, 5, 10 };
	double step = pow(10, floor(log10((range[1] - range[0]) / TICKS))), v;
	int n = 0, k = 0;

	if (logarithmic) {
		bool few = range[1] / range[0] < 60;

		for (double d = pow(10, floor(log10(range[0]))); d <= range[1] && n < 3 * TICKS; d *= 10)
			for (int i = 0; i < 3; i++)
				if ((few || !i) && d * steps[i] >= range[0] * 0.999 && d * steps[i] <= range[1] * 1.001)
					at[n++] = d * steps[i];
		return n;
	}
	while (k < 3 && (range[1] - range[0]) / (step * steps[k]) > TICKS)
		k++;
	step *= steps[k];
	for (v = ceil(range[0] / step - 1e-9) * step; v <= range[1] + step * 1e-9 && n < 3 * TICKS; v += step)
		at[n++] = fabs(v) < step * 1e-9 ? 0 : v;
	return n;
}

/* ---- a picture --------------------------------------------------------------------------------- */

static void x_axis(const struct plot *p)
{
	double at[3 * TICKS];
	char number[40];
	int n = ticks(p->x, p->log_x, at);

	for (int i = 0; i < n; i++) {
		report_number(number, sizeof(number), at[i]);
		fprintf(p->f, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
		        across(p, at[i]), H - BOTTOM + 16, number);
	}
	fprintf(p->f, "<text class=\"axis\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (W + LEFT - RIGHT) / 2,
	        H - 8);
	report_text(p->f, p->x_label);
	fprintf(p->f, "</text>\n");
}

static void y_axis(const struct plot *p)
{
	double at[3 * TICKS];
	char number[40];
	int n = ticks(p->y, p->log_y, at);

	for (int i = 0; i < n; i++) {
		report_number(number, sizeof(number), p->percent ? round(at[i] * 1e6) / 1e4 : at[i]);
		fprintf(p->f, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
		        "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s%s</text>", LEFT, W - RIGHT,
		        up(p, at[i]), up(p, at[i]), LEFT - 6, up(p, at[i]) + 4, number, p->percent ? " %" : "");
	}
	fprintf(p->f, "\n");
}

void plot_begin(const struct plot *p)
{
	fprintf(p->f, "<figure><figcaption>");
	report_text(p->f, p->title);
	if (p->y_label) {
		fprintf(p->f, " <small>");
		report_text(p->f, p->y_label);
		fprintf(p->f, "</small>");
	}
	fprintf(p->f, "</figcaption>\n%s<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", p->legend ?
	        p->legend : "", W, H);
	report_text(p->f, p->title);
	fprintf(p->f, ". ");
	report_text(p->f, p->say ? p->say : "");
	fprintf(p->f, "\">\n");
	y_axis(p);
	x_axis(p);
}

void plot_end(const struct plot *p)
{
	fprintf(p->f, "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/></svg></figure>\n", LEFT,
	        W - RIGHT, H - BOTTOM, H - BOTTOM);
}

const char *plot_class(int colour)
{
	static const char *const name[] = { "n", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7" };

	return name[colour < 0 ? 0 : 1 + colour % 8];
}

void plot_line(const struct plot *p, const double *x, const double *y, size_t n, int colour, bool area)
{
	const char *c = plot_class(colour);

	if (!n)
		return;
	if (area) {
		fprintf(p->f, "<path class=\"area %s\" d=\"M%.1f %d", c, across(p, x[0]), H - BOTTOM);
		for (size_t i = 0; i < n; i++)
			fprintf(p->f, "L%.1f %.1f", across(p, x[i]), up(p, y[i]));
		fprintf(p->f, "L%.1f %dZ\"/>", across(p, x[n - 1]), H - BOTTOM);
	}
	fprintf(p->f, "<polyline class=\"line %s\" points=\"", c);
	for (size_t i = 0; i < n; i++)
		fprintf(p->f, "%.1f,%.1f ", across(p, x[i]), up(p, y[i]));
	fprintf(p->f, "\"/>\n");
}

void plot_dot(const struct plot *p, double x, double y, int colour, const char *tip)
{
	fprintf(p->f, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", plot_class(colour),
	        across(p, x), up(p, y));
	report_text(p->f, tip);
	fprintf(p->f, "</title></circle>\n");
}

void plot_label(const struct plot *p, double x, double y, const char *s)
{
	double at = across(p, x);
	bool left = at > W - 60;

	fprintf(p->f, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", left ? at - 7 : at + 7,
	        up(p, y) + (up(p, y) < TOP + 14 ? 14 : -6), left ? "end" : "start");
	report_text(p->f, s);
	fprintf(p->f, "</text>");
}

void plot_whisker(const struct plot *p, double x, double low, double high, int colour)
{
	fprintf(p->f, "<line class=\"whisker %s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>",
	        plot_class(colour), across(p, x), across(p, x), up(p, low), up(p, high));
}

void plot_rule(const struct plot *p, bool vertical, double at, const char *label)
{
	double x = across(p, at), y = up(p, at);
	bool right = vertical && x > W - 110;

	if (vertical)
		fprintf(p->f, "<line class=\"rule\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", x, x, TOP,
		        H - BOTTOM);
	else
		fprintf(p->f, "<line class=\"rule\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, W - RIGHT,
		        y, y);
	fprintf(p->f, "<text class=\"note\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">",
	        vertical ? x + (right ? -5 : 5) : W - RIGHT - 4, vertical ? TOP + 10 : y > TOP + 16 ? y - 5 :
	        y + 14, right || !vertical ? "end" : "start");
	report_text(p->f, label);
	fprintf(p->f, "</text>\n");
}

void plot_layer(const struct plot *p, const double *x, const double *below, const double *above, size_t n,
                int colour, const char *tip)
{
	fprintf(p->f, "<path class=\"band %s\" d=\"M%.1f %.1f", plot_class(colour), across(p, x[0]),
	        up(p, below[0]));
	for (size_t i = 0; i < n; i++)
		fprintf(p->f, "L%.1f %.1fL%.1f %.1f", across(p, x[i]), up(p, above[i]), across(p, x[i + 1]),
		        up(p, above[i]));
	for (size_t i = n; i-- > 0;)
		fprintf(p->f, "L%.1f %.1fL%.1f %.1f", across(p, x[i + 1]), up(p, below[i]), across(p, x[i]),
		        up(p, below[i]));
	fprintf(p->f, "Z\"><title>");
	report_text(p->f, tip);
	fprintf(p->f, "</title></path>\n");
}
