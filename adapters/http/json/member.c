/* member.c - see member.h.  Text from outside: every step is bounded by its end. */
#include "member.h"

#include <string.h>

static const char *space(const char *s, const char *end)
{
	while (s < end && (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r'))
		s++;
	return s;
}

/* The quote that closes the string which begins behind s; NULL: none does. */
static const char *closing(const char *s, const char *end)
{
	for (; s < end; s++) {
		if (*s == '"')
			return s;
		if (*s == '\\')
			s++;
	}
	return NULL;
}

/* Behind the value at s, up to the comma or brace that follows it; NULL: the text ends before. */
static const char *skip_value(const char *s, const char *end)
{
	size_t depth = 0;

	for (; s < end; s++) {
		if (*s == '"') {
			s = closing(s + 1, end);
			if (!s)
				return NULL;
		} else if (*s == '{' || *s == '[') {
			depth++;
		} else if (!depth && (*s == ',' || *s == '}')) {
			return s;
		} else if (*s == '}' || *s == ']') {
			if (!depth)
				return NULL;
			depth--;
		}
	}
	return NULL;
}

static bool take(const char *s, const char *end, char *out, size_t cap)
{
	const char *close = s < end && *s == '"' ? closing(s + 1, end) : NULL;
	size_t n = close ? (size_t)(close - s - 1) : 0;

	if (!close || n >= cap || memchr(s + 1, '\\', n) || memchr(s + 1, 0, n))
		return false;
	memcpy(out, s + 1, n);
	out[n] = 0;
	return true;
}

bool member_text(const char *s, size_t n, const char *name, char *out, size_t cap)
{
	const char *end = s + n, *key, *close;

	s = space(s, end);
	if (s == end || *s++ != '{')
		return false;
	for (;;) {
		key = space(s, end);
		close = key < end && *key == '"' ? closing(key + 1, end) : NULL;
		if (!close)
			return false;
		s = space(close + 1, end);
		if (s == end || *s++ != ':')
			return false;
		s = space(s, end);
		if ((size_t)(close - key - 1) == strlen(name) && !memcmp(key + 1, name, strlen(name)))
			return take(s, end, out, cap);
		s = skip_value(s, end);
		if (!s || *s++ != ',')
			return false;
	}
}
