/* screen.h - a sheet of lines that are made once and shown twice: on a terminal that is redrawn
 * (ncurses, the only file with it), or printed plainly. */
#ifndef SCREEN_H
#define SCREEN_H

#include <stdbool.h>
#include <stdio.h>

#define SHEET_LINES 128
#define SHEET_WIDTH 160

struct sheet {
	int n;
	int rows, width;              /* of the terminal; 0: none, as much as there is */
	bool bold[SHEET_LINES];
	char line[SHEET_LINES][SHEET_WIDTH];
};

/* A line; on a terminal that is narrower it goes on below, from where three spaces stand. */
void sheet_add(struct sheet *s, bool bold, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void sheet_print(const struct sheet *s, FILE *to);

bool screen_open(void);               /* false: this is no terminal that can be redrawn */
void screen_size(struct sheet *s);    /* as it is now */
void screen_show(const struct sheet *s); /* and how many lines did not fit */
int  screen_key(int timeout_ms);      /* a key, 0: none came, -1: there is no input any more */
void screen_close(void);

#endif
