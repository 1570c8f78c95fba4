/* problem.c - see problem.h. */
#include "problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int set_problem(struct problem *p, int status, const char *type, const char *param,
                       const char *fmt, va_list ap)
{
	p->status = status;
	p->retry_after = 0;
	p->type = type;
	snprintf(p->param, sizeof(p->param), "%s", param ? param : "");
	vsnprintf(p->message, sizeof(p->message), fmt, ap);
	return -1;
}

int problem_bad(struct problem *p, const char *param, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	set_problem(p, 400, "BadRequestError", param, fmt, ap);
	va_end(ap);
	return -1;
}

int problem_value(struct problem *p, const char *param, const char *value, const char *fmt, ...)
{
	va_list ap;
	size_t n;

	va_start(ap, fmt);
	set_problem(p, 400, "BadRequestError", param, fmt, ap);
	va_end(ap);
	n = strlen(p->message);
	if (value)
		snprintf(p->message + n, sizeof(p->message) - n, " (parameter=%s, value=%s)", param, value);
	else
		snprintf(p->message + n, sizeof(p->message) - n, " (parameter=%s)", param);
	return -1;
}

int problem_field(struct problem *p, const char *field, const char *fmt, ...)
{
	char param[sizeof(p->param)];
	va_list ap;

	snprintf(param, sizeof(param), *field ? "body.%s" : "body%s", field);
	va_start(ap, fmt);
	set_problem(p, 400, "Bad Request", param, fmt, ap);
	va_end(ap);
	return -1;
}

int problem_set(struct problem *p, int status, const char *type, const char *param,
                const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	set_problem(p, status, type, param, fmt, ap);
	va_end(ap);
	return -1;
}

int problem_memory(struct problem *p)
{
	return problem_set(p, 500, "InternalServerError", NULL, "The server is out of memory.");
}

static void object(struct out *o, const struct problem *p, const char *colon, const char *comma)
{
	out_fmt(o, "{\"error\"%s{\"message\"%s", colon, colon);
	out_json_str(o, p->message);
	out_fmt(o, "%s\"type\"%s", comma, colon);
	out_json_str(o, p->type);
	out_fmt(o, "%s\"param\"%s", comma, colon);
	out_json_str(o, p->param[0] ? p->param : NULL);
	out_fmt(o, "%s\"code\"%s%d}}", comma, colon, p->status);
}

void problem_json(struct out *o, const struct problem *p) { object(o, p, ":", ","); }
void problem_event(struct out *o, const struct problem *p) { object(o, p, ": ", ", "); }
