/* problem.h - why a request is refused, with the wording and the shape of vLLM's errors:
 *	{"error":{"message":..,"type":..,"param":..,"code":<status>}}
 */
#ifndef PROBLEM_H
#define PROBLEM_H

#include <stdbool.h>

#include "out.h"

struct problem {
	int status;             /* 0 = none */
	int retry_after;        /* seconds, with 503; 0 = 1 */
	const char *type;       /* a literal */
	char param[96];         /* "" = null */
	char message[768];
};

/* Each sets *p and returns -1, so that a check can be `return bad(..)`.
 * problem_bad: a wrong value or combination (vLLM's own checks).
 * problem_value: the same with " (parameter=NAME, value=V)" appended, as vLLM does; value may be NULL.
 * problem_field: the JSON does not match the schema; param is "body.field". */
int problem_bad(struct problem *p, const char *param, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int problem_value(struct problem *p, const char *param, const char *value, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int problem_field(struct problem *p, const char *field, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int problem_set(struct problem *p, int status, const char *type, const char *param,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));
int problem_memory(struct problem *p);

void problem_json(struct out *o, const struct problem *p);
/* The same inside a stream, where vLLM writes it with the spaces of json.dumps. */
void problem_event(struct out *o, const struct problem *p);

#endif
