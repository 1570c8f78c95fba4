/* log.c - one line per event.  A line is built on the stack and written by one write(2), so
 * lines of several threads and processes do not mix. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *prog = "slipring";
static _Atomic enum log_level most = LOG_INFO; /* SIGHUP may change it beside threads that log */
static int journal = -1;              /* -1: not looked yet */

void log_open(const char *program)
{
	prog = program;
	journal = getenv("JOURNAL_STREAM") != NULL;
}

void log_level(enum log_level level) { most = level; }
bool log_shows(enum log_level level) { return level <= most; }

void log_level_by_name(const char *name)
{
	static const struct { const char *name; enum log_level level; } known[] = {
		{ "critical", LOG_ERROR }, { "error", LOG_ERROR }, { "warning", LOG_WARN },
		{ "info", LOG_INFO }, { "debug", LOG_DEBUG }, { "trace", LOG_DEBUG },
	};

	for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(name, known[i].name))
			most = known[i].level;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	static const char *const word[] = { "ERROR", "WARN", "INFO", "DEBUG" };
	static const int priority[] = { 3, 4, 6, 7 };
	char line[2048];
	size_t n;
	int r;
	va_list ap;

	if (level > most)
		return;
	if (journal > 0) {
		n = (size_t)snprintf(line, sizeof(line), "<%d>", priority[level]);
	} else {
		struct timespec t;
		struct tm tm;

		clock_gettime(CLOCK_REALTIME, &t);
		localtime_r(&t.tv_sec, &tm);
		n = strftime(line, sizeof(line), "%Y-%m-%d %H:%M:%S", &tm);
		n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ld %s[%d] %s ",
		                      t.tv_nsec / 1000000, prog, (int)getpid(), word[level]);
	}
	va_start(ap, fmt);
	r = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	va_end(ap);
	if (r > 0)
		n += (size_t)r < sizeof(line) - n - 1 ? (size_t)r : sizeof(line) - n - 2;
	for (size_t i = 0; i < n; i++)        /* one event, one line, whatever is in it */
		if ((unsigned char)line[i] < ' ')
			line[i] = ' ';
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0)
		return;                       /* nowhere to say so */
}
