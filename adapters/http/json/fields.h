/* fields.h - fields of a JSON object, converted as vLLM's schema does: a number may be a string of
 * digits, a bool may be 0, 1, "true" ..; any other type is a problem_field.
 */
#ifndef FIELDS_H
#define FIELDS_H

#include <jansson.h>
#include <stdint.h>

#include "openai.h"
#include "problem.h"

enum field_kind { FIELD_BOOL, FIELD_INT, FIELD_DOUBLE, FIELD_STRING };

struct field {
	const char *name;
	enum field_kind kind;
	bool nullable;           /* null counts as absent */
	uint8_t in;              /* bit set of enum ask_kind: the requests that have it */
	size_t at;               /* offsetof(struct ask, ..) */
};

int fields_read(const struct field *f, size_t n, uint8_t in, json_t *object, void *to,
                struct problem *p);

int  field_double(json_t *v, double *out);  /* 0 or -EINVAL */
int  field_bool(json_t *v, bool *out);

/* A list of integers: each in [0, below), or any int32 if below is 0. */
int  field_ids(json_t *v, const char *name, int64_t below, struct ask_ids *out, struct problem *p);

#endif
