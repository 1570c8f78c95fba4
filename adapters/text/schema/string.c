/* string.c - strings: a schema's own ones, patterns, formats.
 *
 * Every expression is over the body of a JSON string, in all its spellings.  Formats are patterns of their
 * RFCs; one that no expression can describe whole (host names with their Punycode, regular expressions) is
 * a subset of them, so that what is generated is always right.
 */
#include <stdlib.h>

#include "impl.h"

uint32_t word_string(struct schema *s, const struct word *w)
{
	uint32_t e = REGEX_EMPTY, *point, one;

	for (size_t i = w->n, n; i > 0; i -= n) {
		for (n = 1; n < i && ((unsigned char)w->s[i - n] & 0xc0) == 0x80;)
			n++;
		point = n == 1 ? &s->point[w->s[i - 1] & 127] : &one;
		if (n > 1 || !*point)
			*point = schema_expr(s, json_text(s->r, w->s + i - n, n));
		e = schema_expr(s, regex_concat(s->r, *point, e));
	}
	return e;
}

/* The shortest escape of an ASCII character within a JSON string; 0: none is needed. */
static char escape_of(unsigned char c)
{
	switch (c) {
	case '"': case '\\': return (char)c;
	case '\b': return 'b';
	case '\f': return 'f';
	case '\n': return 'n';
	case '\r': return 'r';
	case '\t': return 't';
	}
	return c < 0x20 ? 'u' : 0;
}

static size_t length_of(unsigned char c)
{
	return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* How many bytes from i on are written as they are. */
static size_t plain(const struct word *w, size_t i)
{
	size_t n = 0;

	while (i + n < w->n && (unsigned char)w->s[i + n] < 0x80 && !escape_of((unsigned char)w->s[i + n]))
		n++;
	return n;
}

uint32_t word_written(struct schema *s, const struct word *w)
{
	uint32_t e = REGEX_EMPTY, part;

	for (size_t i = 0, n; i < w->n; i += n) {
		unsigned char c = (unsigned char)w->s[i];

		n = plain(w, i);
		if (n)
			part = regex_bytes(s->r, w->s + i, n);
		else if (n = length_of(c), c == '"' || c == '\\')
			part = regex_bytes(s->r, (char[]){ '\\', (char)c }, 2);
		else
			part = json_text(s->r, w->s + i, n);
		e = schema_expr(s, regex_concat(s->r, e, schema_expr(s, part)));
	}
	return e;
}

static uint32_t step(struct schema *s, uint32_t e, const char *p, size_t n)
{
	for (size_t i = 0; i < n && e != REGEX_NONE; i++)
		e = schema_expr(s, regex_derive(s->r, e, (uint8_t)p[i]));
	return e;
}

bool word_in(struct schema *s, const struct word *w, uint32_t e, bool number)
{
	static const char hex[] = "0123456789abcdef";

	if (e == REGEX_NONE || (!number && e == s->all_strings))
		return e != REGEX_NONE;
	if (number)
		return regex_nullable(s->r, step(s, e, w->s, w->n));
	for (size_t i = 0, n; i < w->n && e != REGEX_NONE; i += n) {
		unsigned char c = (unsigned char)w->s[i];
		char escape = escape_of(c);

		n = length_of(c);
		if (escape == 'u')
			e = step(s, e, (char[]){ '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] }, 6);
		else if (escape)
			e = step(s, e, (char[]){ '\\', escape }, 2);
		else
			e = step(s, e, w->s + i, n);
	}
	return regex_nullable(s->r, e);
}

uint32_t string_pattern(struct schema *s, const json_t *schema, const char *keyword, const char *p, size_t n)
{
	struct grammar_error e = { 0 };
	uint32_t expr = pattern_parse(s->r, p, n, PATTERN_SEARCH | PATTERN_JSON, &e);

	if (expr != REGEX_FAILED)
		return expr;
	if (e.code == -ENOTSUP && s->o->lenient) {
		schema_ignore(s, schema, keyword);
		return s->all_strings;
	}
	if (e.code && e.code != -ENOMEM)
		schema_fail(s, e.code, schema, "\"%s\" of the JSON schema at %s: %.300s", keyword, e.place,
		            e.message);

	return schema_expr(s, expr);
}

/* ---- formats ---- */

#define DAY "(?:(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][048]00|[13579][26]00)-02-29" \
	"|\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)" \
	"|02-(?:0[1-9]|1\\d|2[0-8])))"
#define CLOCK \
	"(?:(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d))" \
	"|23:59:60(?:\\.\\d+)?(?:[Zz]|[+-]00:00))"
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define WIDE "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef"     /* iri: ucschar of the first plane */
/* At most 63 letters, no hyphen at the ends, and not two as third and fourth, which marks Punycode. */
#define ALNUM "[A-Za-z0-9]"
#define ALNUM_ "[A-Za-z0-9-]"
#define HOST \
	"(?:" ALNUM "(?:" ALNUM_ "{0,2}|" ALNUM_ "(?:" ALNUM ALNUM_ "|-" ALNUM ")" ALNUM_ "{0,58})" ALNUM \
	"|" ALNUM ")"
#define HANGUL "[\\uac00-\\ud7a3]{1,20}"
#define DEC "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4 DEC "(?:\\." DEC "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6 "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 \
	"|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 \
	"|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 \
	"|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 \
	"|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define PCT "%[0-9A-Fa-f]{2}"
/* X: what an IRI has more than a URI, P: private characters of its query */
#define URI_CHAR(X) "(?:[A-Za-z0-9._~!$&'()*+,;=:@" X "-]|" PCT ")"
#define URI_USER(X) "(?:[A-Za-z0-9._~!$&'()*+,;=:" X "-]|" PCT ")"
#define URI_NAME(X) "(?:[A-Za-z0-9._~!$&'()*+,;=" X "-]|" PCT ")"
#define URI_NO_COLON(X) "(?:[A-Za-z0-9._~!$&'()*+,;=@" X "-]|" PCT ")"
#define URI_HOST(X) "(?:\\[(?:" IPV6 "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|" URI_NAME(X) "*)"
#define URI_AUTHORITY(X) "//(?:" URI_USER(X) "*@)?" URI_HOST(X) "(?::\\d*)?(?:/" URI_CHAR(X) "*)*"
#define URI_ABSOLUTE(X) "/(?:" URI_CHAR(X) "+(?:/" URI_CHAR(X) "*)*)?"
#define URI_TAIL(X) "(?:\\?(?:" URI_CHAR(X) "|[/?])*)?(?:#(?:" URI_CHAR(X) "|[/?])*)?"
#define URI_WHOLE(X) \
	"[A-Za-z][A-Za-z0-9+.-]*:(?:" URI_AUTHORITY(X) "|" URI_ABSOLUTE(X) "|" URI_CHAR(X) "+(?:/" URI_CHAR(X) \
	"*)*|)" URI_TAIL(X)
#define URI_PART(X) \
	"(?:" URI_AUTHORITY(X) "|" URI_ABSOLUTE(X) "|" URI_NO_COLON(X) "+(?:/" URI_CHAR(X) "*)*|)" URI_TAIL(X)
#define VARIABLE "(?:[A-Za-z0-9_]|" PCT ")(?:\\.?(?:[A-Za-z0-9_]|" PCT "))*(?::[1-9]\\d{0,3}|\\*)?"
/* Expressions: characters, escapes, classes with common ranges, counts, groups up to two deep. */
#define RX_ATOM \
	"(?:[A-Za-z0-9 _,:;<>=!@#%&~`'\"/.-]|\\\\[dDwWsSnrtfv.*+?^$|(){}\\[\\]/\\\\]|" \
	"\\[\\^?(?:\\\\[dDwWsS.$/-]|a-z|A-Z|0-9|a-f|A-F|[A-Za-z0-9_ .,:;+*/?!=@#%&()])+-?\\])"
#define RX_COUNT "(?:(?:[*+?]|\\{(?:\\d|[0-4],(?:[5-9]|[1-9]\\d)?|[1-9]\\d|[1-4]\\d,[5-9]\\d)\\})\\?" "?)?"
#define RX_0 "(?:(?:" RX_ATOM RX_COUNT ")*)"
#define RX_1 "(?:(?:" RX_ATOM RX_COUNT "|\\((?:\\?:)?" RX_0 "(?:\\|" RX_0 ")*\\)" RX_COUNT ")*)"
#define RX_2 "(?:(?:" RX_ATOM RX_COUNT "|\\((?:\\?:)?" RX_1 "(?:\\|" RX_1 ")*\\)" RX_COUNT ")*)"

static const struct { const char *name, *pattern[3];
} formats[] = {
	{ "date-time", { DAY "[Tt]" CLOCK } },
	{ "date", { DAY } },
	{ "time", { CLOCK } },
	{ "duration",
	  { "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:T(?:\\d+H(?:\\d+M(?:\\d+S)?)?"
	    "|\\d+M(?:\\d+S)?|\\d+S))?|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))" } },
	{ "email",
	  { "(?=[^@]{1,64}@)" ATEXT "+(?:\\." ATEXT "+)*@(?:" HOST "(?:\\." HOST "){0,3}|\\[" IPV4 "\\])" } },
	{ "idn-email",
	  { "(?:" ATEXT "|[" WIDE "])+(?:\\.(?:" ATEXT "|[" WIDE "])+)*@(?:" HOST "|" HANGUL ")(?:\\.(?:" HOST
	    "|" HANGUL "))*" } },
	{ "hostname", { HOST "(?:\\." HOST "){0,3}" } },
	{ "idn-hostname", { "(?:" HOST "|" HANGUL ")(?:\\.(?:" HOST "|" HANGUL ")){0,2}" } },
	{ "ipv4", { IPV4 } },
	{ "ipv6", { IPV6 } },
	{ "uri", { URI_WHOLE("") } },
	{ "uri-reference", { URI_WHOLE(""), URI_PART("") } },
	{ "iri", { URI_WHOLE(WIDE) } },
	{ "iri-reference", { URI_WHOLE(WIDE), URI_PART(WIDE) } },
	{ "uuid", { "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}" } },
	{ "uri-template",
	  { "(?:[!#$&(-;=?-\\[\\]_a-z~" WIDE "]|" PCT "|\\{[+#./;?&]?" VARIABLE "(?:," VARIABLE ")*\\})*" } },
	{ "json-pointer", { "(?:/(?:[^~/]|~[01])*)*" } },
	{ "relative-json-pointer", { "(?:0|[1-9]\\d*)(?:#|(?:/(?:[^~/]|~[01])*)*)" } },
	{ "regex", { "\\^?" RX_2 "(?:\\|" RX_2 ")*\\$?" } },
};

const char *const *schema_format(const char *name)
{
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
		if (!strcmp(formats[i].name, name))
			return formats[i].pattern;
	return NULL;
}

static uint32_t format_part(struct schema *s, const char *pattern)
{
	struct grammar_error e = { 0 };

	return pattern ? schema_expr(s, pattern_parse(s->r, pattern, strlen(pattern), PATTERN_JSON, &e))
	               : REGEX_NONE;
}

uint32_t string_format(struct schema *s, const char *name)
{
	if (!s->format)
		s->format = schema_take(s, sizeof(formats) / sizeof(*formats), sizeof(*s->format));
	for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
		if (strcmp(formats[i].name, name))
			continue;
		if (!s->format[i])
			s->format[i] = schema_expr(s, regex_or(s->r, format_part(s, formats[i].pattern[0]),
			                                       format_part(s, formats[i].pattern[1])));
		return s->format[i];
	}
	return REGEX_FAILED;
}
