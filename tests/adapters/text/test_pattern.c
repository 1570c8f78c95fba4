/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_pattern.c - patterns against a table of what they match, what is refused and where; against PCRE2 on
 * random pairs of a pattern and a text; properties and case; and patterns that are made to be expensive.
 *
 * build/tests/test_pattern COUNT tries COUNT random pairs instead of 40000.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <cmocka.h>

#include "adapters/text/grammar/grammar.h"
#include "adapters/text/grammar/pattern.h"
#include "adapters/text/grammar/property.h"
#include "adapters/text/unicode/utf8.h"
#include "tests/rig/cpu_time.h"

#define JSON   PATTERN_JSON
#define SEARCH PATTERN_SEARCH

#ifdef __SANITIZE_ADDRESS__
#define MOST_MS 1000                 /* the sanitizers' own cost */
#else
#define MOST_MS 50
#endif

static unsigned long pairs = 40000;

static bool matches(struct regexes *r, uint32_t e, const char *s, size_t n)
{
	for (size_t i = 0; i < n && e != REGEX_FAILED; i++)
		e = regex_derive(r, e, (uint8_t)s[i]);
	return regex_nullable(r, e);
}

/* ---- tables ---- */

static void what_matches(void **state)
{
	static const struct { const char *pattern; unsigned flags; const char *yes[6], *no[6];
	} row[] = {
		{ "ab|c", 0, { "ab", "c" }, { "", "a", "abc", "xab" } },
		{ "ab|c", SEARCH, { "ab", "xcx", "aab" }, { "", "a" } },
		{ "^ab$", SEARCH, { "ab" }, { "xab", "abx", "" } },
		{ "^(a|b$)", SEARCH, { "ax", "b" }, { "bx", "xb" } },
		{ "(^|,)x(,|$)", SEARCH, { "x", "a,x", "x,b", "a,x,b" }, { "ax", "xb", "a,xb" } },
		{ "", SEARCH, { "", "x" }, { NULL } },
		{ "", 0, { "" }, { "x" } },
		{ "a{2,3}", 0, { "aa", "aaa" }, { "a", "aaaa" } },
		{ "a{2,}?b*?c+?", 0, { "aac", "aaabcc" }, { "ac", "aab" } },
		{ "a{,2}", 0, { "a{,2}" }, { "aa" } },
		{ "x{a}]", 0, { "x{a}]" }, { "x" } },
		{ "(a?){3}", 0, { "", "aaa" }, { "aaaa" } },
		{ ".", 0, { "a", "\xc3\xa9", "\xf0\x9f\x98\x80" }, { "\n", "", "ab", "\xc3", "\xe2\x80\xa8" } },
		{ "(?s).", 0, { "\n", "a" }, { "" } },
		{ "(?s:.).", 0, { "\nx" }, { "x\n" } },
		{ "\\d\\D\\w\\W\\s\\S", 0, { "1x_- y" }, { "11_- y" } },
		{ "[\\d-x]", 0, { "1", "-", "x" }, { "y" } },
		{ "[^a-c\\s]", 0, { "d", "\xc3\xa9" }, { "a", " ", "" } },
		{ "[]", 0, { NULL }, { "", "a" } },
		{ "[^]", 0, { "\n", "a" }, { "" } },
		{ "[\\b\\-\\]^]", 0, { "\b", "-", "]", "^" }, { "b" } },
		{ "\\x41\\u0042\\u{43}\\ud83d\\ude00\\cA\\t", 0, { "ABC\xf0\x9f\x98\x80\x01\t" }, { "ABC" } },
		{ "[\\ud83d\\ude00-\\ud83d\\ude02]", 0, { "\xf0\x9f\x98\x81" }, { "\xf0\x9f\x98\x83" } },
		{ "\\.\\/\\-\\_\\@\\\"", 0, { "./-_@\"" }, { "x/-_@\"" } },
		{ "(?i)stra\xc3\x9f\x65[k]",
		  0,
		  { "STRA\xe1\xba\x9e\x45K", "stra\xc3\x9f\x65\xe2\x84\xaa" },
		  { "strassek" } },
		{ "a(?i:b)c", 0, { "aBc", "abc" }, { "ABc", "abC" } },
		{ "(?i)[^a]", 0, { "b" }, { "a", "A" } },
		{ "(?<year>\\d{4})-(?P<m>\\d\\d)", 0, { "2024-01" }, { "2024-1" } },
		{ "^(?=.*\\d)(?=.*[a-z]).{4,6}$", SEARCH, { "abc1", "1aaaaa" }, { "abcd", "1a", "1aaaaaa" } },
		{ "^(?!foo$)(?!bar)[a-z]+$", SEARCH, { "fo", "food", "ba" }, { "foo", "bar", "barn" } },
		{ "a(?!b)", SEARCH, { "ac", "a", "abac" }, { "ab" } },
		{ "a(?=b).c", 0, { "abc" }, { "axc" } },
		{ "\\bcat\\b", SEARCH, { "cat", "a cat.", "-cat" }, { "cats", "acat", "concatenate" } },
		{ "\\Bcat", SEARCH, { "acat" }, { "cat", "a cat" } },
		{ "[a-]\\b[-a]", 0, { "a-", "-a" }, { "aa", "--" } },
		{ "a*\\b-?", 0, { "a", "a-" }, { "-", "" } },
		{ "(a\\b)?-", 0, { "-", "a-" }, { "a" } },
		{ "\\p{Lu}\\p{Script=Greek}\\P{L}\\p{Greek}\\p{gc=Nd}",
		  0,
		  { "A\xce\xb1-\xce\xb2\x37" },
		  { "a\xce\xb1-\xce\xb2\x37" } },
		{ "a\"b", JSON, { "a\\\"b", "\\u0061\\u0022b" }, { "a\"b", "ab" } },
		{ "^[^x]$",
		  JSON | SEARCH,
		  { "\\n", "a", "\\ud83d\\ude00", "\xc3\xa9", "\\u0079" },
		  { "x", "\\u0078", "\n", "ab" } },
		{ "n", JSON | SEARCH, { "n", "an", "\\\\n", "\\nn" }, { "\\n", "\\u006f" } },
		{ "^(?!a)", JSON | SEARCH, { "b", "" }, { "a", "\\u0061", "ab" } },
	};
	struct grammar_error e = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct regexes *r = regexes_create(200000);
		uint32_t x = pattern_parse(r, row[i].pattern, strlen(row[i].pattern), row[i].flags, &e);

		if (x == REGEX_FAILED)
			fail_msg("%s: %s", row[i].pattern, e.message);
		for (int k = 0; k < 6 && row[i].yes[k]; k++)
			if (!matches(r, x, row[i].yes[k], strlen(row[i].yes[k])))
				fail_msg("/%s/ does not match \"%s\"", row[i].pattern, row[i].yes[k]);
		for (int k = 0; k < 6 && row[i].no[k]; k++)
			if (matches(r, x, row[i].no[k], strlen(row[i].no[k])))
				fail_msg("/%s/ matches \"%s\"", row[i].pattern, row[i].no[k]);
		regexes_free(r);
	}
}

static void what_is_refused(void **state)
{
	static const struct { const char *pattern; int code; const char *place, *part;
	} row[] = {
		{ "a(b", -EINVAL, "1:2", "not closed" },
		{ "a)b", -EINVAL, "1:2", "not opened" },
		{ "x[a-", -EINVAL, "1:2", "not closed" },
		{ "[b-a]", -EINVAL, "1:2", "out of order" },
		{ "a**", -EINVAL, "1:3", "nothing to repeat" },
		{ "*a", -EINVAL, "1:1", "nothing to repeat" },
		{ "a|?", -EINVAL, "1:3", "nothing to repeat" },
		{ "a{3,2}", -EINVAL, "1:2", "out of order" },
		{ "{2}", -EINVAL, "1:1", "nothing to repeat" },
		{ "^*", -EINVAL, "1:2", "nothing to repeat" },
		{ "a\\", -EINVAL, "1:2", "Nothing follows" },
		{ "(a)\\1", -ENOTSUP, "1:4", "back reference" },
		{ "\\k<a>", -ENOTSUP, "1:1", "back reference" },
		{ "a(?<=b)", -ENOTSUP, "1:4", "look-behind" },
		{ "(?<!b)a", -ENOTSUP, "1:3", "look-behind" },
		{ "(^a)*", -ENOTSUP, "1:1", "inside a repetition" },
		{ "(a(?=b)){2}", -ENOTSUP, "1:1", "inside a repetition" },
		{ "\\A", -EINVAL, "1:1", "no meaning" },
		{ "\\p{Klingon}", -EINVAL, "1:4", "no Unicode property Klingon" },
		{ "\\p{Xan}", -EINVAL, "1:4", "no Unicode" },
		{ "\\u12", -EINVAL, "1:2", "four hex" },
		{ "\\u{110000}", -EINVAL, "1:2", "10FFFF" },
		{ "\\x4", -EINVAL, "1:2", "two hex" },
		{ "\\012", -EINVAL, "1:2", "octal" },
		{ "\\c1", -EINVAL, "1:2", "letter" },
		{ "[[:alpha:]]", -ENOTSUP, "1:2", "POSIX" },
		{ "(?x)a", -ENOTSUP, "1:3", "flag" },
		{ "(?", -EINVAL, "1:3", "group" },
		{ "(?<a", -EINVAL, "1:4", "name" },
		{ "\xc3", -EINVAL, "", "UTF-8" },
		{ "a{2000000000}", -E2BIG, "1:2", "1000000000" },
		{ "((a{1000}){1000}){1001}", -E2BIG, "1:18", "1000000000" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct regexes *r = regexes_create(100000);
		struct grammar_error e = { 0 };
		uint32_t x = pattern_parse(r, row[i].pattern, strlen(row[i].pattern), i % 2 ? SEARCH : 0, &e);

		if (x != REGEX_FAILED || e.code != row[i].code || strcmp(e.place, row[i].place) ||
		    !strstr(e.message, row[i].part))
			fail_msg("/%s/: %d at %s: %s", row[i].pattern, e.code, e.place, e.message);
		assert_int_equal(regexes_error(r), 0);       /* a wrong pattern does not spoil the rest */
		regexes_free(r);
	}
}

/* ---- against PCRE2 ---- */

static uint64_t rng = 88172645463325252u;

static unsigned pick(unsigned n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (unsigned)(rng >> 33) % n;
}

static char *append(char *s, const char *more)
{
	size_t n = strlen(more);

	memcpy(s, more, n + 1);
	return s + n;
}

static const char *const letters[] = {
	"a", "b", "c", " ", "_", "1", "-", "\xc3\xa9", "\xf0\x9f\x98\x80", "A"
};

/* A random pattern behind s, shorter than 60 << depth bytes. */
static char *any_pattern(char *s, int depth, bool looks)
{
	static const char *const atoms[] = { "a",    "b",      "c",      " ",   "\xc3\xa9", "\xf0\x9f\x98\x80",
		                                 ".",    "\\d",    "\\w",    "\\W", "\\s",      "[ab]",
		                                 "[^a]", "[a-c1]", "[^\\w]", "\\S", "[^ -~]",   "1",
		                                 "_",    "\\-" };
	static const char *const counts[] = { "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}?" };
	static const char *const asserts[] = { "^", "$", "\\b", "\\B" };

	switch (pick(depth > 0 ? (looks ? 10 : 8) : 2)) {
	case 0: case 1:
		return append(s, atoms[pick(sizeof(atoms) / sizeof(atoms[0]))]);
	case 2: case 3:
		return any_pattern(any_pattern(s, depth - 1, looks), depth - 1, looks);
	case 4:
		s = any_pattern(append(s, pick(8) ? "(?:" : "(?i:"), depth - 1, looks);
		s = any_pattern(append(s, "|"), depth - 1, looks);
		return append(s, ")");
	case 5: case 6: case 7:
		s = append(any_pattern(append(s, "("), depth - 1, false), ")");
		return append(s, counts[pick(sizeof(counts) / sizeof(counts[0]))]);
	case 8:
		return append(s, asserts[pick(4)]);
	default:
		return append(any_pattern(append(s, pick(2) ? "(?=" : "(?!"), depth - 1, looks), ")");
	}
}

/* A text in UTF-8 and, in JSON strings, in one of its spellings. */
static void any_text(char *text, char *body)
{
	for (unsigned n = pick(7); n > 0; n--) {
		const char *c = letters[pick(sizeof(letters) / sizeof(letters[0]))];
		char escaped[16];

		text = append(text, c);
		snprintf(escaped, sizeof(escaped), "\\u%04x", (uint8_t)*c);
		body = append(body, pick(3) || *c < 0 ? c : escaped);
	}
	*text = *body = '\0';
}

/* Is it a text on which PCRE2 and ECMA-262 agree what is white space, an end of line and, in any case, a
 * word? */
static bool agreed(const char *s, size_t n)
{
	static const uint32_t not[] = { 0x85, 0xa0, 0x17f, 0x1680, 0x202f, 0x205f, 0x212a, 0x3000, 0xfeff };
	uint32_t cp;

	if (strlen(s) != n || strpbrk(s, "\r\n\v\f"))
		return false;
	for (size_t i = 0; i < n;) {
		i += utf8_next(s + i, n - i, &cp);
		if (cp >= 0x2000 && cp <= 0x2029)
			return false;
		for (size_t k = 0; k < sizeof(not) / sizeof(not[0]); k++)
			if (cp == not[k])
				return false;
	}
	return true;
}

/* A text of e by a walk at random, or false. */
static bool text_of(struct regexes *r, uint32_t e, char *text, size_t cap)
{
	size_t n = 0;

	while (n + 1 < cap && !(regex_nullable(r, e) && !pick(3))) {
		uint64_t set[4];
		unsigned from = pick(256), b;

		if (regex_first(r, e, set))
			return false;
		if (pick(2))
			from = (uint8_t)letters[pick(10)][0];
		for (b = from; !(set[b % 256 / 64] >> b % 64 & 1); b++)
			if (b == from + 255)
				return false;
		text[n++] = (char)b;
		e = regex_derive(r, e, (uint8_t)b);
	}
	text[n] = '\0';
	return regex_nullable(r, e) && agreed(text, n);
}

struct oracle { pcre2_code *code; pcre2_match_data *data; pcre2_match_context *limits; };

static int compile_oracle(struct oracle *o, const char *pattern, bool search)
{
	pcre2_compile_context *c = pcre2_compile_context_create(NULL);
	PCRE2_SIZE at;
	int error;

	pcre2_set_newline(c, PCRE2_NEWLINE_ANYCRLF);
	o->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
	                        PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALLOW_EMPTY_CLASS |
	                            (search ? 0 : PCRE2_ANCHORED | PCRE2_ENDANCHORED),
	                        &error, &at, c);
	pcre2_compile_context_free(c);
	if (!o->code)
		return -1;
	o->data = pcre2_match_data_create(1, NULL);
	o->limits = pcre2_match_context_create(NULL);
	pcre2_set_match_limit(o->limits, 100000);
	return 0;
}

/* 1, 0, or -1: it gave up. */
static int oracle_matches(const struct oracle *o, const char *text)
{
	int rc = pcre2_match(o->code, (PCRE2_SPTR)text, strlen(text), 0, 0, o->data, o->limits);

	return rc >= 0 ? 1 : rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
}

static void close_oracle(struct oracle *o)
{
	pcre2_code_free(o->code);
	pcre2_match_data_free(o->data);
	pcre2_match_context_free(o->limits);
}

/* One pattern with some texts; how many pairs were compared. */
static unsigned compare(const char *pattern, bool search, unsigned long *matched)
{
	struct regexes *r = regexes_create(1000000);
	struct grammar_error e = { 0 };
	uint32_t raw = pattern_parse(r, pattern, strlen(pattern), search ? SEARCH : 0, &e), json;
	char text[128], body[256];
	unsigned done = 0;
	struct oracle o;

	if (raw == REGEX_FAILED && (e.code == -ENOTSUP || e.code == -EINVAL)) {
		regexes_free(r);
		return 0;
	}
	json = pattern_parse(r, pattern, strlen(pattern), (search ? SEARCH : 0) | JSON, &e);
	if (raw == REGEX_FAILED || json == REGEX_FAILED || compile_oracle(&o, pattern, search))
		fail_msg("/%s/: %s", pattern, e.message);
	for (int i = 0; i < 12; i++) {
		bool walked = i % 2 && text_of(r, raw, text, 40);
		int want;

		if (!walked)
			any_text(text, body);
		want = oracle_matches(&o, text);
		if (want < 0)
			continue;
		if (matches(r, raw, text, strlen(text)) != want)
			fail_msg("%s /%s/ and \"%s\": PCRE2 says %d", search ? "search" : "whole", pattern, text, want);
		if (!walked && matches(r, json, body, strlen(body)) != want)
			fail_msg("JSON: %s /%s/ and \"%s\": PCRE2 says %d", search ? "search" : "whole", pattern, body,
			         want);
		done++;
		*matched += (unsigned long)want;
	}
	close_oracle(&o);
	regexes_free(r);
	return done;
}

static void random_patterns(void **state)
{
	unsigned long done = 0, matched = 0, patterns = 0;
	char pattern[4096];

	(void)state;
	while (done < pairs) {
		any_pattern(pattern, 1 + (int)pick(4), pick(2));
		done += compare(pattern, pick(2), &matched);
		patterns++;
	}
	print_message("%lu patterns, %lu pairs, %lu of them match\n", patterns, done, matched);
	assert_true(matched > done / 5);
}

/* ---- properties and case ---- */

static bool one(struct regexes *r, uint32_t e, uint32_t cp)
{
	char s[4];

	return matches(r, e, s, utf8_put(cp, s));
}

static bool pcre2_one(const pcre2_code *code, pcre2_match_data *m, uint32_t cp)
{
	char s[4];

	return pcre2_match(code, (PCRE2_SPTR)s, utf8_put(cp, s), 0, 0, m, NULL) >= 0;
}

/* Every character that both libraries' versions of Unicode know: the property as PCRE2 has it. */
static void properties(void **state)
{
	static const struct { const char *ours, *theirs;
	} row[] = {
		{ "\\p{L}", "^\\p{L}$" },
		{ "\\p{Script=Han}", "^\\p{sc:Han}$" },
		{ "\\p{Greek}", "^\\p{sc:Greek}$" },
		{ "\\p{scx=Deva}", "^\\p{scx:Deva}$" },
		{ "\\P{Alphabetic}", "^\\P{Alphabetic}$" },
		{ "\\P{Cn}", "^\\P{Cn}$" },
		{ "\\p{Co}", "^\\p{Co}$" },
		{ "\\p{General_Category=Decimal_Number}", "^\\p{Nd}$" },
	};
	pcre2_match_data *m = pcre2_match_data_create(1, NULL);
	struct grammar_error e;
	PCRE2_SIZE at;
	int error;
	pcre2_code *unassigned =
		pcre2_compile((PCRE2_SPTR) "^\\p{Cn}$", PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct regexes *r = regexes_create(100000);
		uint32_t x = pattern_parse(r, row[i].ours, strlen(row[i].ours), 0, &e);
		pcre2_code *code =
			pcre2_compile((PCRE2_SPTR)row[i].theirs, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);

		assert_int_not_equal(x, REGEX_FAILED);
		for (uint32_t cp = 0; cp <= 0x10ffff; cp++)
			if (utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_CN &&
			    (cp < 0xd800 || cp > 0xdfff) && !pcre2_one(unassigned, m, cp) &&
			    one(r, x, cp) != pcre2_one(code, m, cp))
				fail_msg("%s and U+%04X", row[i].ours, cp);
		pcre2_code_free(code);
		regexes_free(r);
	}
	pcre2_code_free(unassigned);
	pcre2_match_data_free(m);
}

/* Every character that has cases: alone, in a class, and not in a class. */
static void cases(void **state)
{
	pcre2_match_data *m = pcre2_match_data_create(1, NULL);
	const uint32_t *cased;
	size_t n;

	(void)state;
	cased = property_cased(&n);
	assert_true(n > 2000);
	for (size_t i = 0; i < n; i++) {
		struct regexes *r = regexes_create(100000);
		char pattern[64] = "(?i)";
		struct grammar_error e;
		uint32_t x, others[4];
		PCRE2_SIZE at;
		int error;
		pcre2_code *code;

		pattern[4 + utf8_put(cased[i], pattern + 4)] = '\0';
		x = pattern_parse(r, pattern, strlen(pattern), 0, &e);
		code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &at, NULL);
		for (unsigned k = property_cases(cased[i], others); k > 0;)
			if (!one(r, x, others[--k]) || !pcre2_one(code, m, others[k]))
				fail_msg("U+%04X and U+%04X differ in case alone", cased[i], others[k]);
		for (uint32_t cp = cased[i] > 40 ? cased[i] - 40 : 0; cp < cased[i] + 40; cp++)
			if (one(r, x, cp) != pcre2_one(code, m, cp))
				fail_msg("(?i)U+%04X and U+%04X", cased[i], cp);
		pcre2_code_free(code);
		regexes_free(r);
	}
	pcre2_match_data_free(m);
}

/* ---- made to be expensive ---- */

static char *repeated(const char *head, const char *part, unsigned n, const char *tail)
{
	size_t len = strlen(part);
	char *s = malloc(strlen(head) + n * len + strlen(tail) + 1), *p = append(s, head);

	while (n-- > 0)
		p = append(p, part);
	append(p, tail);
	return s;
}

/* The CPU time in ms of parsing, and of taking up to 300 bytes within 20,000 steps.  Refused is as good, if
 * it is quick. */
static double cost(const char *pattern, unsigned flags, const char *unit)
{
	uint64_t from = own_cpu_ns(), work;
	struct regexes *r = regexes_create(1000000);
	struct grammar_error e = { 0 };
	uint32_t x = pattern_parse(r, pattern, strlen(pattern), flags, &e);

	work = regexes_work(r);
	for (size_t i = 0; i < 300 && x != REGEX_FAILED && regexes_work(r) - work < 20000; i++)
		x = regex_derive(r, x, (uint8_t)unit[i % strlen(unit)]);
	regexes_free(r);
	return (double)(own_cpu_ns() - from) / 1e6;
}

static void bombs(void **state)
{
	static const struct { const char *head, *part; unsigned n; const char *tail, *unit;
	} row[] = {
		{ "", "", 0, "(a*)*b", "a" },
		{ "", "", 0, "(x+x+)+y", "x" },
		{ "", "", 0, "(a|a)*", "a" },
		{ "", "", 0, "(a{1,1000}){1,1000}", "a" },
		{ "", "", 0, "a{1000000000}", "a" },
		{ "", "", 0, "((a{1000}){1000}){1000}", "a" },
		{ "", "", 0, "[ab]*a[ab]{18}", "aab" },
		{ "", "", 0, "(.*)*(.*)*(.*)*x", "ab" },
		{ "(", "a?", 10000, "){2}", "a" },
		{ "", "a?b?", 8000, "c", "ab" },
		{ "", "(", 200, "", "a" },
		{ "", "(", 30000, "", "a" },
		{ "", "[", 60000, "", "a" },
		{ "", "\\p{L}", 8000, "", "a" },
		{ "", "(?i)[a-z]", 6000, "", "a" },
		{ "", "a|", 30000, "b", "a" },
		{ "", "ab|", 20000, "c", "ab" },
		{ "^", "(?=.*a)", 40, ".*$", "ba" },
		{ "^", "(?!.*a.{9}b)", 20, ".*$", "ba" },
		{ "", "\\b", 20000, "a", "a" },
		{ "(", "(a|b)", 2000, "){0,5}", "ab" },
		{ "", "(^|a)", 12000, "b", "a" },
		{ "", ".*a", 3000, "", "a" },
		{ "", "(.*a){9}", 100, "", "a" },
		{ "", "((((a{1,9}){1,9}){1,9}){1,9}){1,9}", 50, "", "a" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
		for (unsigned flags = 0; flags < 4; flags++) {
			char *pattern = repeated(row[i].head, row[i].part, row[i].n, row[i].tail);
			double ms = cost(pattern, flags, row[i].unit);

			for (int again = 0; again < 2 && ms >= MOST_MS; again++)   /* others may use the machine's caches */
				ms = cost(pattern, flags, row[i].unit);
			if (ms >= MOST_MS)
				fail_msg("%s%s.. x %u %s, flags %u: %.1f ms", row[i].head, row[i].part, row[i].n, row[i].tail,
				            flags, ms);
			free(pattern);
		}
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_matches), cmocka_unit_test(what_is_refused), cmocka_unit_test(random_patterns),
		cmocka_unit_test(properties), cmocka_unit_test(cases), cmocka_unit_test(bombs),
	};

	if (argc > 1)
		pairs = strtoul(argv[1], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
