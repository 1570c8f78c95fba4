/* log.c - one line per event.  A line is built on the stack and written by one write(2), so
 * lines of several threads and processes do not mix.  Only a terminal may take part of a line; then
 * the next line starts with an end of line.
 *
 * No thread waits for the reader of the log.  A line that does not fit is lost and counted, and the
 * next line that fits follows a line with the count.  For that, a pipe or terminal is reopened as a
 * non-blocking description of our own.  The inherited description is shared, and with several writers
 * the room that poll(2) reports may be gone.  A socket has room for many lines. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

_Static_assert(LINE_MAX_BYTES <= PIPE_BUF, "a pipe takes a line whole, or not at all");

static const char *prog = "slipring";
static int out = STDERR_FILENO;
static _Atomic unsigned long lost;    /* lines lost since the last line that was written */
static _Atomic bool cut;              /* a terminal took only part of the last line */
static _Atomic enum log_level most = LOG_INFO; /* SIGHUP may change it while other threads log */
static int journal = -1;              /* -1: not known yet */

void log_open(const char *program)
{
	struct stat st;
	int own = -1;

	prog = program;
	journal = getenv("JOURNAL_STREAM") != NULL;
	if (out != STDERR_FILENO)
		close(out);
	if (fstat(STDERR_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)))
		own = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	out = own >= 0 ? own : STDERR_FILENO; /* another user's pipe cannot be reopened: rely on poll alone */
}

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

/* Write what stands before the text. */
static size_t line_begin(char line[LINE_MAX_BYTES], enum log_level level)
{
	static const char *const word[] = { "ERROR", "WARN", "INFO", "DEBUG" };
	static const int priority[] = { 3, 4, 6, 7 };
	struct timespec t;
	struct tm tm;
	size_t n;

	if (journal > 0)
		return (size_t)snprintf(line, LINE_MAX_BYTES, "<%d>", priority[level]);
	clock_gettime(CLOCK_REALTIME, &t);
	localtime_r(&t.tv_sec, &tm);
	n = strftime(line, LINE_MAX_BYTES, "%Y-%m-%d %H:%M:%S", &tm);
	return n + (size_t)snprintf(line + n, LINE_MAX_BYTES - n, ".%03ld %s[%d] %s ", t.tv_nsec / 1000000, prog,
	                            (int)getpid(), word[level]);
}

/* False: there is no room now. */
static bool line_put(const char *line, size_t n)
{
	struct pollfd p = { .fd = out, .events = POLLOUT };
	ssize_t r;

	if (poll(&p, 1, 0) == 0 || (cut && write(out, "\n", 1) != 1))
		return false;
	r = write(out, line, n);
	cut = r > 0 && (size_t)r < n;
	return r >= 0 || errno != EAGAIN;     /* other errors cannot be reported anywhere */
}

/* Report the lost lines.  True: none are left to report. */
static bool told(void)
{
	unsigned long n = lost ? atomic_exchange(&lost, 0) : 0;
	char line[LINE_MAX_BYTES];
	size_t at;

	if (!n)
		return true;
	at = line_begin(line, LOG_WARN);
	at += (size_t)snprintf(line + at, sizeof(line) - at, "%lu lines of this log are lost: "
	                       "nothing read it\n", n);
	if (line_put(line, at))
		return true;
	lost += n;
	return false;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	char line[LINE_MAX_BYTES];
	size_t n;
	int r;
	va_list ap;

	if (level > most)
		return;
	n = line_begin(line, level);
	va_start(ap, fmt);
	r = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
	va_end(ap);
	if (r > 0)
		n += (size_t)r < sizeof(line) - n - 1 ? (size_t)r : sizeof(line) - n - 2;
	for (size_t i = 0; i < n; i++)        /* control characters become spaces: one event, one line */
		if ((unsigned char)line[i] < ' ')
			line[i] = ' ';
	line[n++] = '\n';
	if (!told() || !line_put(line, n))
		lost++;
}
