/* screen.c - ncurses, as much of it as a page of lines needs. */
#include "screen.h"

#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static SCREEN *screen;

void sheet_add(struct sheet *s, bool bold, const char *fmt, ...)
{
	va_list ap;

	if (s->n == SHEET_LINES)
		return;
	va_start(ap, fmt);
	vsnprintf(s->line[s->n], SHEET_WIDTH, fmt, ap);
	va_end(ap);
	s->bold[s->n++] = bold;
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
	if (!(screen = newterm(NULL, stdout, stdin)))
		return false;
	cbreak();
	noecho();
	curs_set(0);
	keypad(stdscr, TRUE);
	return true;
}

void screen_show(const struct sheet *s)
{
	int rows = getmaxy(stdscr), columns = getmaxx(stdscr);

	erase();
	for (int i = 0; i < s->n && i < rows; i++) {
		if (s->bold[i])
			attron(A_BOLD);
		mvaddnstr(i, 0, s->line[i], columns);
		attroff(A_BOLD);
	}
	refresh();
}

int screen_key(int timeout_ms)
{
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	int key;

	timeout(0);
	key = getch();                        /* one that ncurses has read already, or a new size */
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
