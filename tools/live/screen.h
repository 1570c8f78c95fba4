/* screen.h - a sheet of lines, made by the same code for two outputs: a terminal that is redrawn, or plain
 * printing.  Only this module uses ncurses. */
#ifndef SCREEN_H
#define SCREEN_H

#include <stdbool.h>
#include <stdio.h>

#define SHEET_LINES 128
#define SHEET_WIDTH 160

struct sheet {
	int n;
	int rows, width;              /* of the terminal; 0: no terminal, so no limit */
	bool bold[SHEET_LINES];
	char line[SHEET_LINES][SHEET_WIDTH];
};

/* Add a line.  On a narrower terminal it wraps where it has three spaces. */
void sheet_add(struct sheet *s, bool bold, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void sheet_print(const struct sheet *s, FILE *to);

bool screen_open(void);               /* false: there is no terminal that can be redrawn */
void screen_size(struct sheet *s);    /* set rows and width to the current size */
void screen_show(const struct sheet *s); /* also shows how many lines did not fit */
int  screen_key(int timeout_ms);      /* a key; 0: none came; -1: the input has ended */
void screen_close(void);

#endif
