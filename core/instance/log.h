/* log.h - one line per event, to stderr.
 *
 * Under systemd (JOURNAL_STREAM) lines carry <N> priorities and no time; otherwise
 * "2026-01-31 12:00:00.123 slipringd[pid] INFO text".  No prompt, no token, no path that a
 * client chose is ever logged.  Any thread may call.  A line is one write(2) that never waits.  Lines
 * that nobody reads are lost, and their number is logged as soon as there is room again.
 */
#ifndef LOG_H
#define LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Look at what stderr is now.  The pointer to the name is kept; before the call: "slipring". */
void log_open(const char *program);
bool log_shows(enum log_level level);        /* for callers whose text is costly to make */
void log_level_by_name(const char *name);    /* a value of --log-level; NULL or unknown: no change */
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
