/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_ebnf.c - text grammars: what each lets through, what is refused and with which sentence, and bombs. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "shmring/clock.h"
#include "tests/rig/grammar_rig.h"

static struct sr_text *text;

static const struct {
	const char *grammar;
	const char *yes[8];          /* whole answers */
	const char *no[10];
} tables[] = {
	/* GBNF */
	{ "root ::= \"a\" | \"b\"", { "a", "b" }, { "", "c", "ab" } },
	{ "root ::= \"yes\" # a comment\n  | \"no\"\n", { "yes", "no" }, { "y", "yesno" } },
	{ "root ::= \"a\" | ", { "a", "" }, { "b" } },
	{ "root ::= | \"a\"", { "a", "" }, { "aa" } },
	{ "root ::= ()", { "" }, { "a" } },
	{ "root ::= x \" \" y\nx ::= \"1\"\ny ::= \"2\" \"3\"", { "1 23" }, { "1 2", "123" } },
	{ "root ::= [a-c]+ [^a-z\\n]", { "a1", "abcZ", "a\xc3\xa9" }, { "a", "1", "ad", "a\n", "a\xc3" } },
	{ "root ::= [\\u00e9\\U0001F600-\\U0001F602\\-\\]x-]", { "\xc3\xa9", "\xf0\x9f\x98\x81", "-", "]", "x" },
	  { "\xf0\x9f\x98\x83", "\\" } },
	{ "root ::= \"\\x41\\n\\t\\\\\\\"\\u20ac\"", { "A\n\t\\\"\xe2\x82\xac" }, { "A" } },
	{ "root ::= .", { "x", "\n", "\xe2\x82\xac" }, { "", "xx", "\xe2\x82" } },
	{ "root ::= \"a\"{2} \"b\"{1,} \"c\"{0,2} \"d\"?", { "aab", "aabbbccd", "aabd" },
	  { "ab", "aa", "aabccc", "aabdd", "aaab" } },
	{ "root ::= (\"a\" | \"b\" \"c\")* \"d\"", { "d", "abcad" }, { "abd", "" } },
	/* recursion: at the left, at the right, in the middle, hidden, and both */
	{ "root ::= root \"a\" | \"b\"", { "b", "ba", "baaa" }, { "", "a", "bb" } },
	{ "root ::= \"a\" root | \"b\"", { "b", "ab", "aaab" }, { "", "a", "ba" } },
	{ "root ::= ([ab] root)?", { "", "abab" }, { "abc" } },
	{ "root ::= \"(\" root \")\" | \"\"", { "", "()", "((()))" }, { "(", "())", "()()" } },
	{ "root ::= root root | \"a\"", { "a", "aaaaa" }, { "", "ab" } },
	{ "root ::= e\ne ::= n root \"+\" | \"1\"\nn ::= \"\"", { "1", "1++" }, { "+", "1+1" } },
	{ "root ::= a\na ::= b \"x\" | \"0\"\nb ::= a \"y\"", { "0", "0yx", "0yxyx" }, { "0x", "0y" } },
	{ "root ::= root | \"a\"", { "a" }, { "aa", "" } },
	{ "root ::= expr\nexpr ::= expr \"+\" term | term\nterm ::= [0-9]+ | \"(\" expr \")\"",
	  { "1", "1+(2+33)" }, { "1+", "(1", "1++2" } },
	/* a string as people write it, used twice; numbers next to each other are cut in every way */
	{ "root ::= \"[\" s (\",\" s)* \"]\"\ns ::= \"\\\"\" [^\"]* \"\\\"\"", { "[\"\"]", "[\"a,b\",\"c\"]" },
	  { "[]", "[\"a\"", "[\"a\",]" } },
	{ "root ::= [0-9]+ [0-9]+", { "12", "123" }, { "1" } },
	/* a token by id or spelling, and any but one */
	{ "root ::= <think> [a-z]* </think> \"x\"", { "\1<think>ab\1</think>x" }, { "<think>", "\1<think>x" } },
	{ "root ::= <[255]> !<[97]>", { "\1<think>a", "\1<think>\1<tool>" }, { "\1<think>b", "\1<think>\1<end>" } },
	{ "root ::= Token(256) ExcludeToken(255, 257)", { "\1</think>a", "\1</think>\1</think>" },
	  { "\1</think>\1<think>" } },
	/* as xgrammar prints it: groups of groups, "" first, control characters, hints */
	{ "root ::= ((\"{\" root_1 [ \\n\\t]{0, 8} \"}\"))\n"
	  "root_1 ::= ((\"\") | ([^\\\"\\\\\\r\\n\\0-\\x1f}] root_1)) (=([ \\n\\t]* \"}\"))\n", { "{}", "{ab \n}" },
	  { "{", "{\"}", "{a\rb}" } },
	/* a look-ahead is a hint */
	{ "root ::= a \"b\"\na ::= \"a\" (= \"b\")\n", { "ab" }, { "a" } },
	/* Lark */
	{ "start: \"a\" B\nB: \"b\"+", { "ab", "abb" }, { "a", "a b" } },
	{ "%import common.INT\n%import common.WS\n%ignore WS\nstart: item (\",\" item)*\nitem: \"id=\" INT\n",
	  { "id=1", "id=1, id=42", "id=1 ,\n id= 2 " }, { " id=1", "id=1,", "i d=1" } },
	{ "%grammar_options {\"allow_initial_skip\": true}\n%ignore \" \"\nstart: \"a\" \"b\"", { "  a b", "ab " },
	  { "a\nb" } },
	{ "start: CITY \" is \" size\nCITY: \"Paris\" | \"Rome\"\nsize: \"big\"\n    | \"small\"\n",
	  { "Rome is big", "Paris is small" }, { "Paris is", "big" } },
	{ "start: [\"-\"] D~2..3 (\"x\"i | /y+/) // text\nD: \"0\"..\"9\"\n", { "-12X", "123yy", "00x" },
	  { "1x", "1234x", "12" } },
	{ "start: A\nA: /[a-z]+/ & ~(/.*bad.*/)\n", { "ba", "abab" }, { "bad", "xbady", "B" } },
	{ "?start: x -> first\n | \"z\" -> second\n!x.2: \"y\"{1,2}", { "y", "yy", "z" }, { "yyy" } },
	{ "start: start \"a\" | \"b\"", { "b", "baa" }, { "a" } },
	{ "start: <think> /[^<]*/ <[256]>", { "\1<think>hm\1</think>" }, { "\1<think>" } },
	{ "%import common (SIGNED_NUMBER, ESCAPED_STRING, C_COMMENT, CNAME -> NAME)\n"
	  "start: SIGNED_NUMBER \" \" ESCAPED_STRING C_COMMENT", { "-1.5e+3 \"a\\\"b\"/* * **/" }, { "1 \"a", "1 \"\"/**" } },
	{ "%llguidance {}\n\nstart: a b\na[capture]: A\nA: /x{2}/\nb [ capture = \"n\" , capture]: /(?s:.*)/", { "xx", "xxy\n" }, { "x" } },
	{ "start: %json {\"type\": \"boolean\"} \"!\"", { "true!", "false!" }, { "1!", "true" } },
};

static struct sr_grammar *opened(const char *s, char *err, size_t errlen)
{
	struct sr_grammar *g = NULL;

	sr_grammar_open(&g, text, SR_GRAMMAR_EBNF, s, strlen(s), NULL, err, errlen);
	return g;
}

static void texts(void **state)
{
	char err[900];
	int bad = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
		struct sr_grammar *g = opened(tables[i].grammar, err, sizeof(err));

		if (!g) {
			printf("%s\n  refused: %s\n", tables[i].grammar, err);
			bad++;
			continue;
		}
		for (int k = 0; k < 8 && tables[i].yes[k]; k++)
			if (rig_keeps(g, tables[i].yes[k]) >= 0)
				bad += printf("%s\n  refuses '%s' at %d\n", tables[i].grammar, tables[i].yes[k],
				              rig_keeps(g, tables[i].yes[k]));
		for (int k = 0; k < 10 && tables[i].no[k]; k++)
			if (rig_keeps(g, tables[i].no[k]) < 0)
				bad += printf("%s\n  lets '%s' through\n", tables[i].grammar, tables[i].no[k]);
		sr_grammar_close(g);
	}
	assert_int_equal(bad, 0);
}

#define GBNF "Invalid grammar specification: "
#define LARK "Grammar error: "

static const struct { const char *grammar; int code; const char *message; } refused[] = {
	{ "root ::= nothing\n", -EINVAL, GBNF "Rule 'nothing' not found. At 1:10" },
	{ "main ::= \"a\"", -EINVAL, GBNF "Rule 'root' not found: the grammar begins with it. At 1:1" },
	{ "root ::= \"a\"\nroot ::= \"b\"", -EINVAL, GBNF "Rule 'root' is defined twice. At 2:1" },
	{ "root ::= \"a", -EINVAL, GBNF "The string that begins here has no end on its line. At 1:10" },
	{ "root ::= [a-", -EINVAL, GBNF "The class that begins here has no ']' on its line. At 1:10" },
	{ "root ::= []", -EINVAL, GBNF "No character is in this class. At 1:10" },
	{ "root ::= [z-a]", -EINVAL, GBNF "A range in this class ends before it begins. At 1:10" },
	{ "root ::= [\\d]", -EINVAL, GBNF "Unknown escape '\\d'. At 1:11" },
	{ "root ::= \"\\ud800\"", -EINVAL, GBNF "U+D800 is not a character. At 1:13" },
	{ "root ::= (\"a\"", -EINVAL, GBNF "Expected ')'. At 1:14" },
	{ "root ::= \"a\")", -EINVAL, GBNF "This ')' closes nothing. At 1:13" },
	{ "root ::= \"a\"{3,2}", -EINVAL, GBNF "The count {3,2} ends before it begins. At 1:14" },
	{ "root ::= \"a\"{4000000000}", -E2BIG, GBNF "A number is at most 1000000000 here. At 1:14" },
	{ "root ::= *", -EINVAL, GBNF "Expected a string, a class, a rule's name or '('. At 1:10" },
	{ "root ::= a\na ::= \"x\" a", -EINVAL, GBNF "Rule 'root' never ends: each of its alternatives needs itself. At 1:1" },
	{ "root ::= \"y\" | a\na ::= a", -EINVAL, GBNF "Rule 'a' never ends: each of its alternatives needs itself. At 2:1" },
	{ "root ::= <nothing>", -EINVAL, GBNF "The model has no token '<nothing>'. At 1:10" },
	{ "root ::= <[259]>", -EINVAL, GBNF "The model's token ids are 0 to 258. At 1:12" },
	{ "root ::= Regex(\"a\")", -ENOTSUP, GBNF "The macro 'Regex' is not supported. At 1:10" },
	{ "root[lazy] ::= \"a\"", -ENOTSUP, GBNF "Options of a rule, as in 'root[..]', are not supported. At 1:5" },
	{ "root ::= (=\"a\") \"b\"", -ENOTSUP, GBNF "A look-ahead '(=' may stand only at the end of a rule. At 1:17" },
	{ "root ::= \"\xff\"", -EINVAL, GBNF "A grammar is UTF-8 without NUL. At 1:1" },
	{ "xyz ::= \"\xc3\xa9\" !", -EINVAL, GBNF "Expected a string, a class, a rule's name or '('. At 1:13" },
	{ "start: \"a\" (", -EINVAL, LARK "Expected ')'. At 1:13" },
	{ "start: \"a\" ~", -EINVAL, LARK "Unexpected end. At 1:13" },
	{ "start: nothing", -EINVAL, LARK "Rule 'nothing' not found. At 1:8" },
	{ "", -EINVAL, LARK "Rule 'start' not found: the grammar begins with it. At 1:1" },
	{ "hello", -EINVAL, LARK "Expected ':' after the name. At 1:6" },
	{ "start: A\nA: A \"x\" | \"y\"", -EINVAL, LARK "Terminal 'A' refers to itself. At 2:1" },
	{ "start: A\nA: b\nb: \"x\"", -EINVAL, LARK "Terminal 'A' refers to the rule 'b'. At 2:4" },
	{ "start: A\nA: \"a\" & \"b\"", -EINVAL, LARK "No text satisfies this '&'. At 2:4" },
	{ "start: \"a\" & \"b\"", -ENOTSUP, LARK "'~' and '&' combine terminals: use them in a terminal's definition. At 1:12" },
	{ "start: sep{\"a\"}", -ENOTSUP, LARK "Templates are not supported. At 1:8" },
	{ "start[capture, max_tokens=3]: \"a\"", -ENOTSUP, LARK "Of the options of a rule only 'capture' is supported. At 1:16" },
	{ "start[]: \"a\"", -ENOTSUP, LARK "Of the options of a rule only 'capture' is supported. At 1:7" },
	{ "start[capture=x]: \"a\"", -EINVAL, LARK "Expected the name of the capture in quotes. At 1:15" },
	{ "start[capture: \"a\"", -EINVAL, LARK "Expected ',' or ']' after an option of the rule. At 1:14" },
	{ "%declare A\nstart: A", -ENOTSUP,
	  LARK "Of the directives %import, %ignore and %grammar_options are supported. At 1:1" },
	{ "%import common.NOPE\nstart: NOPE", -EINVAL, LARK "The library 'common' has no 'NOPE'. At 1:16" },
	{ "%import python.NAME\nstart: NAME", -ENOTSUP, LARK "Only the library 'common' can be imported. At 1:9" },
	{ "start: /a/m", -ENOTSUP, LARK "Of a regex's flags i, s and u are supported. At 1:11" },
	{ "start: \"\xc3\xa9\"i", -ENOTSUP, LARK "Only ASCII is matched in either case. At 1:8" },
	{ "start: \"a\" ]", -EINVAL, LARK "Expected the end of the line, found ']'. At 1:12" },
};

static void sentences(void **state)
{
	struct sr_grammar *g;
	char err[900];
	int bad = 0, rc;

	(void)state;
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		const char *s = refused[i].grammar;

		g = NULL;
		rc = sr_grammar_open(&g, text, SR_GRAMMAR_EBNF, s, strlen(s), NULL, err, sizeof(err));
		if (rc != refused[i].code || strcmp(err, refused[i].message))
			bad += printf("%s\n  is %d: %s\nnot %d: %s\n", s, rc, err, refused[i].code, refused[i].message);
		sr_grammar_close(g);
	}
	assert_int_equal(bad, 0);
}

/* Text of n times `part`. */
static char *many(const char *before, const char *part, int n, const char *after)
{
	size_t len = strlen(part);
	char *s = malloc(strlen(before) + (size_t)n * len + strlen(after) + 1), *p;

	assert_non_null(s);
	p = stpcpy(s, before);
	for (int i = 0; i < n; i++, p += len)
		memcpy(p, part, len);
	strcpy(p, after);
	return s;
}

/* Each is compiled or refused quickly, and never by a deep stack. */
static void bombs(void **state)
{
	static const struct { const char *before, *part; int n; const char *after; bool refused; } bomb[] = {
		{ "root ::= ", "(", 100000, "", true },
		{ "root ::= ", "(", 100, "\"a\"" "))))))))))))))))))))", true },
		{ "root ::= \"a\"", "{1000}", 3, "", false },
		{ "root ::= (\"a\"*)*", "*", 100, " \"b\"", false },
		{ "root ::= ([a-z]{1,1000}){1,1000}", " [a-z]", 3, "", false },
		{ "root ::= ", "\"a\" | ", 20000, "\"b\"", false },
		{ "root ::= ", "[a[", 100000, "", true },
		{ "root ::= \"", "a", 200000, "\"", true },
		{ "root ::= \"a\"{1000000000}", "", 0, "", false },
		{ "start: ", "[", 100000, "", true },
		{ "start: A\nA: /a/", " & ~/.*b.{9}/", 40, "", false },
	};
	char err[900];

	(void)state;
	for (size_t i = 0; i < sizeof(bomb) / sizeof(*bomb); i++) {
		char *s = many(bomb[i].before, bomb[i].part, bomb[i].n, bomb[i].after);
		uint64_t begin = sr_now();
		struct sr_grammar *g = opened(s, err, sizeof(err));
		double ms = (double)(sr_now() - begin) / 1e6;

		if (ms > 50 || !g != bomb[i].refused)
			printf("%.60s: %.1f ms, %s\n", s, ms, g ? "compiled" : err);
		assert_int_equal(!g, bomb[i].refused);
		assert_true(ms < 1000);
		sr_grammar_close(g);
		free(s);
	}
}

/* A long chain of rules, each of the next: no recursion of C. */
static void chain(void **state)
{
	enum { N = 50000 };
	char *s = malloc(N * 32), *p = s, err[900];
	struct sr_grammar *g;

	(void)state;
	p += sprintf(p, "root ::= r0\n");
	for (int i = 0; i < N; i++)
		p += sprintf(p, "r%d ::= r%d\n", i, i + 1);
	sprintf(p, "r%d ::= \"z\"\n", N);
	g = opened(s, err, sizeof(err));
	if (!g)
		printf("%s\n", err);
	assert_non_null(g);
	assert_int_equal(rig_keeps(g, "z"), -1);
	assert_int_equal(rig_keeps(g, "y"), 0);
	sr_grammar_close(g);
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts),
		cmocka_unit_test(sentences),
		cmocka_unit_test(bombs),
		cmocka_unit_test(chain),
	};
	int failed;

	text = rig_bytes_text();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rig_bytes_close(text);
	return failed;
}
