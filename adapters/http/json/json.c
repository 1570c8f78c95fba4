/* json.c - a body as a JSON object, or why it is none, in the words and the shape of vLLM's errors. */
#include <errno.h>
#include <stdio.h>

#include "adapters/text/text_json.h"
#include "openai.h"

int ask_json(json_t **out, const char *body, size_t n, struct problem *p)
{
	size_t left = TEXT_JSON_VALUES;
	json_error_t e;
	char at[32];
	int rc;

	*out = NULL;
	if (!n)
		return problem_field(p, "", "The request has no body: a JSON object is required.");
	rc = text_json_read(out, body, n, &left, &e);
	if (rc == -ENOMEM)
		return problem_memory(p);
	if (rc == -E2BIG)
		return problem_field(p, "", "The JSON body %s.", e.text);
	if (rc) {
		snprintf(at, sizeof(at), "%d", e.position > 0 ? e.position : 0);
		return problem_field(p, at, "The body is not valid JSON: %s (line %d, column %d).", e.text, e.line,
		                     e.column);
	}
	if (!json_is_object(*out))
		return problem_field(p, "", "The body must be a JSON object, not %s.",
		                     json_is_array(*out) ? "a list" : "a single value");
	return 0;
}
