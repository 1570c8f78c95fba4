/* bench_sse.c - reads the events of a streamed answer without building a tree.
 *
 * A benchmark that parses every event into objects measures itself.  Here one pass finds the few fields that
 * count: whether "choices" is empty, its text, and "usage".  The network may cut lines anywhere, so an
 * incomplete line is held until the rest comes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define LINE_MAX_BYTES (16u << 20)

static const char *blank(const char *p, const char *end)
{
	while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
		p++;
	return p;
}

/* p is at the opening quote.  Returns the place after the closing quote, or NULL. */
static const char *skip_string(const char *p, const char *end)
{
	for (p++; p < end && *p != '"'; p++)
		if (*p == '\\')
			p++;
	return p < end ? p + 1 : NULL;
}

/* The place after the value at p, of any type, or NULL. */
static const char *skip_value(const char *p, const char *end)
{
	int depth = 0;

	do {
		p = blank(p, end);
		if (p == end)
			return NULL;
		if (*p == '"') {
			p = skip_string(p, end);
			if (!p)
				return NULL;
		} else if (*p == '{' || *p == '[') {
			depth++;
			p++;
		} else if (*p == '}' || *p == ']') {
			if (--depth < 0)
				return NULL;
			p++;
		} else if (*p == ',' || *p == ':') {
			if (!depth)
				return NULL;
			p++;
		} else {
			const char *begin = p;

			while (p < end && !strchr(",:]}[{\" \t\r\n", *p))
				p++;
			if (p == begin)
				return NULL;
		}
	} while (depth > 0);
	return p;
}

struct json_member { const char *key, *value, *end; size_t n_key; };

/* Read the next member of an object; p is after its brace or after the last member.  Returns the place after
 * the member, with m->key NULL at the closing brace, or NULL if there is no member. */
static const char *next_member(const char *p, const char *end, struct json_member *m)
{
	p = blank(p, end);
	if (p < end && *p == ',')
		p = blank(p + 1, end);
	m->key = NULL;
	if (p < end && *p == '}')
		return p + 1;
	if (p == end || *p != '"')
		return NULL;
	m->key = p + 1;
	p = skip_string(p, end);
	if (!p)
		return NULL;
	m->n_key = (size_t)(p - 1 - m->key);
	p = blank(p, end);
	if (p == end || *p != ':')
		return NULL;
	m->value = blank(p + 1, end);
	m->end = skip_value(m->value, end);
	return m->end;
}

static bool member_named(const struct json_member *m, const char *name)
{
	return m->n_key == strlen(name) && !memcmp(m->key, name, m->n_key);
}

static int64_t member_whole(const struct json_member *m)
{
	int64_t v = 0;

	for (const char *p = m->value; p < m->end; p++) {
		if (*p < '0' || *p > '9' || v > INT64_MAX / 100)
			return -1;
		v = v * 10 + (*p - '0');
	}
	return m->end > m->value ? v : -1;
}

static void member_string(const struct json_member *m, const char **out, size_t *n)
{
	if (m->end - m->value >= 2 && *m->value == '"') {
		*out = m->value + 1;
		*n = (size_t)(m->end - m->value) - 2;
	}
}

/* Find the text of one member of the object o. */
static void member_text(const struct json_member *o, const char *name, const char **out, size_t *n)
{
	struct json_member m;

	for (const char *p = next_member(o->value + 1, o->end, &m); p && m.key; p = next_member(p, o->end, &m))
		if (member_named(&m, name))
			member_string(&m, out, n);
}

static void read_usage(const struct json_member *o, struct sse_event *e)
{
	struct json_member m;

	for (const char *p = next_member(o->value + 1, o->end, &m); p && m.key; p = next_member(p, o->end, &m)) {
		if (member_named(&m, "prompt_tokens"))
			e->n_prompt = member_whole(&m);
		else if (member_named(&m, "completion_tokens"))
			e->n_output = member_whole(&m);
	}
}

/* Find the text of the first choice: "text", or "content" of its "delta". */
static void first_choice(const char *p, const char *end, struct sse_event *e)
{
	struct json_member m;

	p = blank(p + 1, end);                   /* after the bracket */
	e->choices = p < end && *p != ']';
	if (p == end || *p != '{')
		return;
	for (p = next_member(p + 1, end, &m); p && m.key; p = next_member(p, end, &m)) {
		if (member_named(&m, "text"))
			member_string(&m, &e->text, &e->n_text);
		else if (member_named(&m, "delta") && *m.value == '{')
			member_text(&m, "content", &e->text, &e->n_text);
	}
}

int sse_scan(const char *p, size_t n, struct sse_event *e)
{
	const char *end = p + n;
	struct json_member m;

	*e = (struct sse_event){ .n_prompt = -1, .n_output = -1 };
	p = blank(p, end);
	if (p == end || *p != '{')
		return -EBADMSG;
	for (p = next_member(p + 1, end, &m); p && m.key; p = next_member(p, end, &m)) {
		if (member_named(&m, "choices") && *m.value == '[')
			first_choice(m.value, m.end, e);
		else if (member_named(&m, "usage") && *m.value == '{')
			read_usage(&m, e);
		else if (member_named(&m, "error") && *m.value == '{')
			member_text(&m, "message", &e->error, &e->n_error);
	}
	return p && blank(p, end) == end ? 0 : -EBADMSG;
}

/* Take one line without its end.  It is an event or nothing (empty, a comment, another field). */
static int line(const char *p, size_t n, int (*take)(void *, const struct sse_event *), void *arg)
{
	struct sse_event e;

	if (n && p[n - 1] == '\r')
		n--;
	if (n < 5 || memcmp(p, "data:", 5))
		return 0;
	p += 5;
	n -= 5;
	while (n && *p == ' ')
		p++, n--;
	if (n == 6 && !memcmp(p, "[DONE]", 6)) {
		e = (struct sse_event){ .done = true, .n_prompt = -1, .n_output = -1 };
		return take(arg, &e);
	}
	if (!n)
		return 0;
	return sse_scan(p, n, &e) ? -EBADMSG : take(arg, &e);
}

static int hold(struct sse *s, const char *p, size_t n)
{
	if (n > LINE_MAX_BYTES - s->n)
		return -E2BIG;
	if (s->n + n > s->cap) {
		size_t cap = (s->n + n) * 2;
		char *grown = realloc(s->held, cap);

		if (!grown)
			return -ENOMEM;
		s->held = grown;
		s->cap = cap;
	}
	memcpy(s->held + s->n, p, n);
	s->n += n;
	return 0;
}

int sse_feed(struct sse *s, const char *p, size_t n, int (*take)(void *arg, const struct sse_event *e),
             void *arg)
{
	const char *end = p + n, *nl;
	int rc = 0;

	while (!rc && p < end && (nl = memchr(p, '\n', (size_t)(end - p)))) {
		if (s->n) {
			rc = hold(s, p, (size_t)(nl - p));
			if (!rc)
				rc = line(s->held, s->n, take, arg);
			s->n = 0;
		} else {
			rc = line(p, (size_t)(nl - p), take, arg);
		}
		p = nl + 1;
	}
	return rc || p == end ? rc : hold(s, p, (size_t)(end - p));
}

int sse_end(struct sse *s, int (*take)(void *arg, const struct sse_event *e), void *arg)
{
	int rc = s->n ? line(s->held, s->n, take, arg) : 0;

	s->n = 0;
	return rc;
}

void sse_free(struct sse *s)
{
	free(s->held);
	*s = (struct sse){ 0 };
}

/* ---- text of a JSON string --------------------------------------------------------------------- */

static int hex4(const char *p, const char *end)
{
	static const char digits[] = "0123456789abcdef";
	int v = 0;

	if (end - p < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		const char *d = memchr(digits, p[i] >= 'A' && p[i] <= 'F' ? p[i] | 32 : p[i], 16);

		if (!d)
			return -1;
		v = v << 4 | (int)(d - digits);
	}
	return v;
}

static char *put_utf8(char *out, unsigned c)
{
	if (c < 0x80) {
		*out++ = (char)c;
	} else if (c < 0x800) {
		*out++ = (char)(0xc0 | c >> 6);
		*out++ = (char)(0x80 | (c & 63));
	} else if (c < 0x10000) {
		*out++ = (char)(0xe0 | c >> 12);
		*out++ = (char)(0x80 | (c >> 6 & 63));
		*out++ = (char)(0x80 | (c & 63));
	} else {
		*out++ = (char)(0xf0 | c >> 18);
		*out++ = (char)(0x80 | (c >> 12 & 63));
		*out++ = (char)(0x80 | (c >> 6 & 63));
		*out++ = (char)(0x80 | (c & 63));
	}
	return out;
}

/* Decode \uXXXX, or two of them for one character.  Half a pair becomes U+FFFD.  p is after the u. */
static const char *unicode(const char *p, const char *end, char **out)
{
	int c = hex4(p, end), low;

	if (c < 0) {
		*(*out)++ = '?';
		return p;
	}
	p += 4;
	if (c >= 0xd800 && c < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u' &&
	    (low = hex4(p + 2, end)) >= 0xdc00 && low < 0xe000) {
		*out = put_utf8(*out, 0x10000u + ((unsigned)(c - 0xd800) << 10) + (unsigned)(low - 0xdc00));
		return p + 6;
	}
	*out = put_utf8(*out, c >= 0xd800 && c < 0xe000 ? 0xfffdu : (unsigned)c);
	return p;
}

size_t sse_unescape(const char *s, size_t n, char *out)
{
	static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
	const char *p = s, *end = s + n, *k;
	char *begin = out;

	while (p < end) {
		if (*p != '\\' || p + 1 == end) {
			*out++ = *p++;
			continue;
		}
		p++;
		if (*p == 'u')
			p = unicode(p + 1, end, &out);
		else if ((k = memchr(from, *p, 5))) {
			*out++ = to[k - from];
			p++;
		} else {
			*out++ = *p++;
		}
	}
	return (size_t)(out - begin);
}
