/* terminal.c - see terminal.h. */
#include "terminal.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "adapters/text/unicode/utf8.h"
#include "visible.h"

#define HISTORY 500              /* lines that the up key reaches */

struct terminal {
	EditLine *edit;
	History *history;
	const volatile sig_atomic_t *interrupted;
	char *line;
	size_t cap;
};

static void use_utf8(void)
{
	setlocale(LC_CTYPE, "");
	if (MB_CUR_MAX == 1)
		setlocale(LC_CTYPE, "C.UTF-8");
}

/* ---- lines ---------------------------------------------------------------------------------- */

static char *prompt(EditLine *e)
{
	static char text[] = "> ";

	(void)e;
	return text;
}

/* Read a character as libedit does, but let a signal end it.  1; 0 end of file; -1 and errno. */
static int read_character(EditLine *e, wchar_t *c)
{
	struct terminal *t;
	mbstate_t state = { 0 };
	size_t n;
	ssize_t r;
	char byte;

	el_get(e, EL_CLIENTDATA, &t);
	for (;;) {
		r = read(STDIN_FILENO, &byte, 1);
		if (r < 0 && errno == EINTR && !*t->interrupted)
			continue;
		if (r <= 0)
			return (int)r;
		n = mbrtowc(c, &byte, 1, &state);
		if (n == (size_t)-1) {        /* no character: it begins anew */
			memset(&state, 0, sizeof(state));
			*c = 0xfffd;
			return 1;
		}
		if (n != (size_t)-2)
			return 1;
	}
}

int terminal_open(struct terminal **out, const volatile sig_atomic_t *interrupted)
{
	struct terminal *t = calloc(1, sizeof(*t));
	FILE *screen = visible_raw(stderr);   /* libedit draws with control characters */
	HistEvent ev;

	if (!t)
		return -ENOMEM;
	use_utf8();
	t->interrupted = interrupted;
	t->edit = el_init("slipring", stdin, screen, screen);
	t->history = history_init();
	if (!t->edit || !t->history) {
		terminal_close(t);
		return -ENOMEM;
	}
	history(t->history, &ev, H_SETSIZE, HISTORY);
	history(t->history, &ev, H_SETUNIQUE, 1);
	el_set(t->edit, EL_CLIENTDATA, t);
	el_set(t->edit, EL_GETCFN, read_character);
	el_set(t->edit, EL_PROMPT, prompt);
	el_set(t->edit, EL_EDITOR, "emacs");
	el_set(t->edit, EL_HIST, history, t->history);
	el_set(t->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
	*out = t;
	return 0;
}

void terminal_close(struct terminal *t)
{
	if (!t)
		return;
	if (t->edit)
		el_end(t->edit);
	if (t->history)
		history_end(t->history);
	free(t->line);
	free(t);
}

ssize_t terminal_line(struct terminal *t, const char **line)
{
	const char *typed;
	HistEvent ev;
	int n;

	el_resize(t->edit);
	el_set(t->edit, EL_PREP_TERM, 1);     /* else the prompt comes first, and keys typed at once are lost */
	typed = el_gets(t->edit, &n);
	if (!typed || n <= 0)
		return *t->interrupted ? -EINTR : -ENODATA;
	if ((size_t)n >= t->cap) {
		char *p = realloc(t->line, (size_t)n + 1);

		if (!p)
			return -ENODATA;
		t->line = p;
		t->cap = (size_t)n + 1;
	}
	memcpy(t->line, typed, (size_t)n);
	if (t->line[n - 1] == '\n')
		n--;
	t->line[n] = 0;
	if (n)
		history(t->history, &ev, H_ENTER, t->line);
	*line = t->line;
	return n;
}

/* ---- words ---------------------------------------------------------------------------------- */

int words_columns(FILE *to)
{
	struct winsize size;

	if (!isatty(fileno(visible_raw(to))) || ioctl(fileno(visible_raw(to)), TIOCGWINSZ, &size) < 0)
		return 0;
	use_utf8();
	return size.ws_col > 1 ? size.ws_col : 0;
}

static void put_word(struct words *w)
{
	if (w->n && w->column && w->column + w->width > w->columns) {
		fputc('\n', w->to);
		w->column = 0;
	}
	fwrite(w->word, 1, w->n, w->to);
	w->column = (w->column + w->width) % w->columns;
	w->n = 0;
	w->width = 0;
}

static void put_character(struct words *w, const char *s, size_t n, uint32_t cp)
{
	const int width = cp < 0x110000 ? wcwidth((wchar_t)cp) : 1;

	if (cp == '\n' || cp == ' ' || cp == '\t') {
		put_word(w);
		if (cp == '\n') {
			fputc('\n', w->to);
			w->column = 0;
		} else if (w->column + 1 < w->columns) { /* none at the edge, nor behind it */
			fputc(' ', w->to);
			w->column++;
		}
		return;
	}
	if (w->n + n > sizeof(w->word) || w->width + width > w->columns) /* wider than the terminal: it breaks */
		put_word(w);
	memcpy(w->word + w->n, s, n);
	w->n += n;
	w->width += width > 0 ? width : 0;
}

void words_put(struct words *w, const char *s, size_t n)
{
	unsigned used;
	uint32_t cp;

	if (!w->columns) {
		fwrite(s, 1, n, w->to);
		return;
	}
	for (size_t i = 0; i < n; i += used) {
		used = utf8_next(s + i, n - i, &cp);
		put_character(w, s + i, used, cp);
	}
}

void words_end(struct words *w)
{
	if (w->columns)
		put_word(w);
}
