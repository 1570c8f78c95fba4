/* screen.c - the part of ncurses that a page of lines needs. */
#include "screen.h"

#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/visible.h"

static SCREEN *screen;

/* Where to break a text longer than width: at the last run of three spaces; 0: nowhere. */
static int break_of(const char *text, int width)
{
	int at = 0;

	for (int i = 1; i < width && text[i]; i++)
		if (!strncmp(text + i, "   ", 3) && text[i - 1] != ' ')
			at = i;
	return at;
}

void sheet_add(struct sheet *s, bool bold, const char *fmt, ...)
{
	char text[SHEET_WIDTH], *rest = text;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (const char *indent = ""; s->n < SHEET_LINES; indent = "  ") {
		int room = s->width - (int)strlen(indent);
		int at = s->width && (int)strlen(rest) > room ? break_of(rest, room) : 0;

		snprintf(s->line[s->n], SHEET_WIDTH, "%s%.*s", indent, at ? at : SHEET_WIDTH - 3, rest);
		s->bold[s->n++] = bold;
		if (!at)
			return;
		rest += at + strspn(rest + at, " ");
	}
}

void sheet_print(const struct sheet *s, FILE *to)
{
	for (int i = 0; i < s->n; i++)
		fprintf(to, "%s\n", s->line[i]);
}

bool screen_open(void)
{
	const char *term = getenv("TERM");

	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !term || !strcmp(term, "dumb"))
		return false;
	setlocale(LC_CTYPE, "");
	if (!(screen = newterm(NULL, visible_raw(stdout), stdin)))
		return false;
	cbreak();
	noecho();
	curs_set(0);
	keypad(stdscr, TRUE);
	return true;
}

void screen_size(struct sheet *s)
{
	s->rows = getmaxy(stdscr);
	s->width = getmaxx(stdscr);
}

void screen_show(const struct sheet *s)
{
	int fit = s->n <= s->rows ? s->n : s->rows - 1;

	erase();
	for (int i = 0; i < fit; i++) {
		if (s->bold[i])
			attron(A_BOLD);
		mvaddnstr(i, 0, s->line[i], s->width);
		attroff(A_BOLD);
	}
	if (fit < s->n)
		mvprintw(fit, 0, "%.*s", s->width, "more below: use a taller terminal or --once");
	refresh();
}

int screen_key(int timeout_ms)
{
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	int key;

	timeout(0);
	key = getch();                        /* a key that ncurses has read already, or a resize */
	if (key == ERR) {
		if (poll(&in, 1, timeout_ms) < 0 && errno != EINTR)
			return -1;
		if (in.revents && !(in.revents & POLLIN))
			return -1;
		key = getch();
		if (key == ERR && in.revents & POLLIN)
			return -1;
	}
	return key == ERR ? 0 : key;
}

void screen_close(void)
{
	if (!screen)
		return;
	endwin();
	delscreen(screen);
	screen = NULL;
}
