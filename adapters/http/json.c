/* json.c - bytes of a body to a JSON tree, within bounds of depth and count that are checked
 * before any memory is spent: a body of 64 MB may otherwise become a tree of gigabytes.
 * Refused besides what is not JSON: duplicate keys, lone surrogates, wrong UTF-8, NUL in a key.
 * A NUL in a text is a character like others; where a word is expected, fields.c refuses it.
 */
#include <string.h>

#include "openai.h"

/* One look at each byte: brackets and commas outside of strings. */
static int bounds(const char *s, size_t n, struct problem *p)
{
	size_t i, values = 1;
	int depth = 0;

	for (i = 0; i < n; i++) {
		switch (s[i]) {
		case '"':
			for (i++; i < n && s[i] != '"'; i++)
				i += s[i] == '\\';
			break;
		case '[': case '{':
			values++;
			if (++depth > ASK_JSON_DEPTH)
				return problem_field(p, "", "The JSON body is nested deeper than %d levels "
				                     "(at byte %zu).", ASK_JSON_DEPTH, i);
			break;
		case ']': case '}':
			depth--;
			break;
		case ',':
			if (++values > ASK_JSON_VALUES)
				return problem_field(p, "", "The JSON body has more than %u values.",
				                     ASK_JSON_VALUES);
			break;
		}
	}
	return 0;
}

int ask_json(json_t **out, const char *body, size_t n, struct problem *p)
{
	json_error_t e;
	char at[32];

	*out = NULL;
	if (!n)
		return problem_field(p, "", "The request has no body: a JSON object is required.");
	if (bounds(body, n, p) < 0)
		return -1;
	*out = json_loadb(body, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
	if (!*out) {
		snprintf(at, sizeof(at), "%d", e.position > 0 ? e.position : 0);
		return problem_field(p, at, "The body is not valid JSON: %s (line %d, column %d).",
		                     e.text, e.line, e.column);
	}
	if (!json_is_object(*out))
		return problem_field(p, "", "The body must be a JSON object, not %s.",
		                     json_is_array(*out) ? "a list" : "a single value");
	return 0;
}
