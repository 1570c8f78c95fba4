/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_tags.c - structural tags: what each lets through, what is refused and with which sentence.  In texts \1
 * stands before a special token. */
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

#define TEXT   "{'type': 'any_text'}"
#define WORD   "{'type': 'regex', 'pattern': '[a-z]+'}"
#define C(s)   "{'type': 'const_string', 'value': '" s "'}"
#define TAG(b, c, e) "{'type': 'tag', 'begin': " b ", 'content': " c ", 'end': " e "}"
#define SCHEMA(s) "{'type': 'json_schema', 'json_schema': " s "}"
#define TRIGGERED(more) "{'type': 'triggered_tags', 'triggers': ['<f='], 'tags': [" TAG("'<f=x>'", WORD, "'</f>'") \
	", " TAG("'<f=y>'", TEXT, "'</f>'") "]" more "}"
#define SEPARATED(more) "{'type': 'tags_with_separator', 'separator': ', ', 'tags': [" TAG("'<'", WORD, "'>'") "]" more "}"
#define XML(style, more) "{'type': 'json_schema', 'style': '" style "', 'json_schema': {'type': 'object', 'properties': " \
	"{'s': {'type': 'string'}, 'n': {'type': 'integer'}}, 'required': ['n']}" more "}"
#define XML_OF(value) "{'type': 'json_schema', 'style': 'qwen_xml', 'json_schema': {'type': 'object', 'properties': " \
	"{'v': " value "}, 'required': ['v'], '$defs': {'D': {'enum': ['a', 'b']}}}}"
#define V(s) "<parameter=v>" s "</parameter>"
#define LITERAL(style, value) "{'type': 'json_schema', 'style': '" style "', 'json_schema': {'type': 'object', " \
	"'properties': {'v': " value "}, 'required': ['v'], '$defs': {'T': {'type': 'object', 'properties': {'t': " \
	"{'$ref': '#/$defs/T'}}}}}}"

/* Formats; ' stands for a double quote. */
static const struct {
	const char *format;
	const char *yes[8], *no[10];
} tables[] = {
	{ C("a b"), { "a b" }, { "", "a", "a b " } },
	{ C("a<think>b"), { "a\1<think>b" }, { "a<think>b" } },
	{ TEXT, { "", "anything <at> all\n" }, { "\1<think>", "\xff" } },
	{ "{'type': 'any_text', 'excludes': ['bad', 'x'], 'max_chars': 5}", { "", "good" },
	  { "abad", "x", "sixsix", "123456" } },
	{ "{'type': 'regex', 'pattern': 'a|b+'}", { "a", "bb" }, { "", "ab" } },
	{ "{'type': 'grammar', 'grammar': 'root ::= \\u0022(\\u0022 root \\u0022)\\u0022 | \\u0022x\\u0022'}",
	  { "x", "((x))" }, { "(x" } },
	{ "{'type': 'grammar', 'grammar': 'start: \\u0022x\\u0022'}", { "x" }, { "y" } },
	{ "{'type': 'sequence', 'elements': [" C("a") ", " WORD ", " C("!") "]}", { "ab!" }, { "a!", "ab" } },
	{ "{'type': 'or', 'elements': [" C("a") ", " C("b") "]}", { "a", "b" }, { "ab", "" } },
	{ "{'type': 'optional', 'content': " C("a") "}", { "", "a" }, { "aa" } },
	{ "{'type': 'plus', 'content': " C("a") "}", { "a", "aa" }, { "" } },
	{ "{'type': 'star', 'content': " C("a") "}", { "", "aaa" }, { "b" } },
	{ "{'type': 'repeat', 'content': " C("a") ", 'min': 2, 'max': 3}", { "aa", "aaa" }, { "a", "aaaa" } },
	{ "{'type': 'repeat', 'content': " C("a") ", 'min': 2, 'max': -1}", { "aa", "aaaaa" }, { "a" } },
	/* free text ends at the first end */
	{ TAG("'<a>'", TEXT, "'</a>'"), { "<a></a>", "<a>x</y></a>", "<a></</a>" }, { "<a>x", "<a></a>x</a>", "<a></a></a>" } },
	{ TAG("'b'", TEXT, "['aab', 'z']"), { "baab", "baaab", "bxz" }, { "baabz", "bza", "baa" } },
	{ TAG("'<think>'", TEXT, "'</think>'"), { "\1<think>a < b\1</think>", "\1<think>\1<tool>\1</think>" },
	  { "<think>", "a", "\1<think>\1</think>a" } },
	{ TAG("'<think>'", "{'type': 'any_text', 'max_chars': 2}", "'</think>\\n'"), { "\1<think>ab\1</think>\n" },
	  { "\1<think>abc", "\1<think>ab\1</think>", "\1<think>\1<tool>" } },
	{ TAG("{'type': 'token', 'token': '<tool>'}", WORD, "{'type': 'token', 'token': 256}"),
	  { "\1<tool>ab\1</think>" }, { "\1<tool>\1</think>", "<tool>" } },
	{ "{'type': 'sequence', 'elements': [" TAG("'<think>'", TEXT, "'</think>'") ", " C("\\n") ", " WORD "]}",
	  { "\1<think>..\1</think>\nok" }, { "ok", "\1<think>\1</think>ok" } },
	/* the end of a tag ends what stands last in it */
	{ TAG("'['", "{'type': 'sequence', 'elements': [" C("a") ", " TEXT "]}", "']'"), { "[a]", "[ab]" }, { "[]", "[a]]" } },
	{ TAG("'['", "{'type': 'or', 'elements': [" C("a") ", " TEXT "]}", "']'"), { "[a]", "[bc]", "[]" }, { "[a]]" } },
	{ TAG("'['", TRIGGERED(""), "']'"), { "[hm]", "[u<f=x>a</f>v]", "[<f=y>]</f>]" }, { "[", "[]a]", "[<f=z>]" } },
	/* triggers */
	{ TRIGGERED(""), { "", "hm", "<f=x>ab</f>", "u <f=x>a</f> v <f=y>?</f>w", "<f", "<f=y>1<f=x></f>" },
	  { "<f=", "<f=z", "a<f=x>1", "<f=x>a" } },
	{ TRIGGERED(", 'at_least_one': true"), { "<f=x>a</f>", "<f=y></f> and <f=x>b</f>" }, { "", "a", "<f=x>a" } },
	{ TRIGGERED(", 'stop_after_first': true"), { "a<f=x>a</f>", "a", "" }, { "<f=x>a</f>b" } },
	{ TRIGGERED(", 'stop_after_first': true, 'at_least_one': true"), { "<f=x>a</f>" }, { "", "b", "<f=x>a</f>b" } },
	{ TRIGGERED(", 'excludes': ['no']"), { "yes<f=x>no</f>", "n" }, { "no", "<f=x>a</f>no" } },
	{ "{'type': 'triggered_tags', 'triggers': ['<tool>'], 'tags': [" TAG("'<tool>x'", WORD, "'.'") "]}",
	  { "", "hm", "hm\1<tool>xab.", "\1<tool>xa.b\1<tool>xc." }, { "\1<tool>y", "\1<tool>x", "a\1<tool>xab" } },
	{ "{'type': 'triggered_tags', 'triggers': ['<tool>'], 'at_least_one': true, 'stop_after_first': true, 'tags': ["
	  TAG("'<tool>x'", WORD, "'.'") "]}", { "\1<tool>xab." }, { "", "hm", "\1<tool>xa.b" } },
	{ "{'type': 'dispatch', 'rules': [['a:', " WORD "], ['b:', " C("1") "]]}", { "", "xa:zb:1", "b:1b:1", "a" }, { "b:2", "a:1" } },
	{ "{'type': 'dispatch', 'loop': false, 'rules': [['b:', " C("1") "]]}", { "", "xb:1" }, { "b:1b" } },
	/* separators */
	{ SEPARATED(""), { "", "<a>", "<a>, <b>" }, { "<a>, ", "<a><b>", ", " } },
	{ SEPARATED(", 'at_least_one': true"), { "<a>" }, { "" } },
	{ SEPARATED(", 'stop_after_first': true"), { "<a>", "" }, { "<a>, <b>" } },
	{ TAG("'['", SEPARATED(""), "']'"), { "[]", "[<a>, <b>]" }, { "[, ]" } },
	/* tokens */
	{ "{'type': 'token', 'token': '<tool>'}", { "\1<tool>" }, { "<tool>" } },
	{ "{'type': 'exclude_token', 'exclude_tokens': ['<tool>', 97]}", { "a", "\1<think>" }, { "b", "\1<tool>", "" } },
	{ "{'type': 'any_tokens', 'exclude_tokens': ['<tool>']}", { "", "ab\1<think>" }, { "\1<tool>" } },
	{ TAG("'<think>'", "{'type': 'any_tokens'}", "{'type': 'token', 'token': '</think>'}"),
	  { "\1<think>a\1<tool>\1</think>" }, { "a", "\1<think>\1</think>a" } },
	{ "{'type': 'token_triggered_tags', 'trigger_tokens': ['<tool>'], 'exclude_tokens': ['</think>'], 'tags': ["
	  TAG("{'type': 'token', 'token': '<tool>'}", WORD, "'.'") "]}",
	  { "", "a\1<think>", "a\1<tool>b.c" }, { "\1</think>", "\1<tool>.", "\1<tool>a" } },
	/* schemas */
	{ TAG("'<c>'", SCHEMA("{'type': 'integer'}"), "'</c>'"), { "<c>12</c>" }, { "<c>a", "<c>1" } },
	{ XML("qwen_xml", ""), { "<parameter=n>1</parameter>",
	  "\n<parameter=s>\nany <b>\n</parameter>\n<parameter=n>\n-5\n</parameter>\n", "<parameter=s></parameter><parameter=n>0</parameter>" },
	  { "", "<parameter=s>a</parameter>", "<parameter=n>x", "<parameter=n>1</parameter><parameter=s>a</parameter>",
	    "<parameter=z>" } },
	{ XML("qwen_xml", ", 'any_order': true"), { "<parameter=n>1</parameter><parameter=s>a</parameter>", "<parameter=n>1</parameter>" },
	  { "<parameter=s>a</parameter>", "<parameter=n>1</parameter><parameter=n>" } },
	{ XML("minimax_xml", ""), { "<parameter name=\"n\">1</parameter>", "<parameter name=\"s\">a</parameter>\n<parameter name=\"n\"> 1</parameter>" },
	  { "<parameter=n>" } },
	{ XML("deepseek_xml", ""), { "<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>",
	  "<｜DSML｜parameter name=\"s\" string=\"true\">a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n" },
	  { "<｜DSML｜parameter name=\"n\" string=\"true\">" } },
	{ XML("glm_xml", ""), { "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n", "<arg_key>s</arg_key><arg_value>x</arg_value><arg_key>n</arg_key><arg_value>1</arg_value>" },
	  { "<arg_key>n</arg_key>1" } },
	{ XML_OF("{'$ref': '#/$defs/D'}"), { V("a"), V("\nb\n") }, { "<parameter=v>c", V("a\n"), V("") } },
	{ XML_OF("{'anyOf': [{'type': 'string', 'maxLength': 2}, {'type': 'null'}]}"), { V("ab"), V("null"), V("\na\n") }, { V("abc") } },
	{ XML_OF("{'type': 'string', 'pattern': '^x', 'minLength': 3}"), { V("xab") }, { V("xa"), V("abx") } },
	{ XML_OF("{'type': ['integer', 'null']}"), { V("1"), V(" null ") }, { V("x") } },
	{ XML_OF("{'type': 'array', 'items': {'$ref': '#/$defs/D'}}"), { V("[\"a\"]"), V("[]") }, { V("[\"c\"]"), V("a") } },
	{ XML_OF("{'type': 'string', 'format': 'date'}"), { V("2026-02-28"), V("\n2026-02-28\n") }, { V("2026-02-30"), V("x") } },
	{ XML_OF("{'type': 'string', 'format': 'unheard'}"), { V("x") }, { "x" } },
	{ XML_OF("{'allOf': [{'$ref': '#/$defs/D'}], 'title': 'T'}"), { V("a") }, { V("c") } },
	{ XML_OF("{'oneOf': [{'type': 'string'}, {'type': 'integer'}]}"), { V("a"), V("1") }, { "" } },
	{ XML_OF("{'oneOf': [{'const': 'x'}, {'type': 'integer'}, {'type': 'number'}]}"), { V("x"), V("1.5") },
	  { V("1"), V("y") } },
	{ XML_OF("{'enum': ['a', 1], 'type': 'string'}"), { V("a") }, { V("1"), V("\"a\"") } },
	{ XML_OF("{'enum': ['a', 1]}"), { V("a"), V("1") }, { V("2"), V("b") } },
	{ XML_OF("{'type': ['string', 'null'], 'maxLength': 1}"), { V("a"), V("null") }, { V("ab") } },
	{ XML_OF("{'const': 'k'}"), { V("k") }, { V("j") } },
	{ XML("step_xml", ""), { "<steptml:parameter name=\"n\">1</steptml:parameter>" }, { "<parameter=n>" } },
	/* literals */
	{ XML("python", ""), { "n=1", "s=\"a\\\"b\\u0041\", n=-5", "s=\"\",n=0" },
	  { "", "n=1, s=\"a\"", "n=x", "s='a', n=1", "s=\"\\/\", n=1", "z=1", "n=1, n=1" } },
	{ XML("gemma4", ""), { "n:1", "s:<|\"|>any \"{ text,<|\"|>,n:-5", "s:<|\"|><|\"|>,n:0" },
	  { "", "n:1,s:<|\"|>a<|\"|>", "s:a,n:1", "n:1, ", "n=1" } },
	{ XML("functiongemma", ""), { "s:<escape>a<escape>,n:1" }, { "s:<|\"|>" } },
	{ LITERAL("python", "{'type': ['boolean', 'null']}"), { "v=True", "v=False", "v=None" }, { "v=true", "v=1", "v=" } },
	{ LITERAL("python", "{}"), { "v=[1, \"a\", {\"k\": None}]", "v={}", "v=-1.5e3", "v=True" }, { "v=null", "v={k: 1}", "v=[1" } },
	{ LITERAL("python", "{'enum': ['a b', 1, 0.5, null, [true, {'k': 2}]]}"),
	  { "v=\"a b\"", "v=1", "v=0.5", "v=None", "v=[True, {\"k\": 2}]" }, { "v=2", "v=[true" } },
	{ LITERAL("python", "{'type': 'array', 'items': {'type': 'integer', 'minimum': 3}, 'minItems': 1, 'maxItems': 2}"),
	  { "v=[3]", "v=[3, 4]", "v=[3,4]" }, { "v=[]", "v=[2]", "v=[3, 4, 5]", "v=[3 ,4]" } },
	{ LITERAL("python", "{'type': 'string', 'pattern': '^x/', 'maxLength': 4}"), { "v=\"x/a\"" },
	  { "v=\"x\\/a\"", "v=\"x/abc\"", "v=\"y/\"" } },
	{ LITERAL("python", "{'$ref': '#/$defs/T'}"), { "v={\"t\": {\"t\": {}}}", "v={}" }, { "v={\"t\": 1}", "v={\"u\": {}}" } },
	{ LITERAL("gemma4", "{'$ref': '#/$defs/T'}"), { "v:{t:{t:{}}}", "v:{}" }, { "v:{t:1}", "v:{\"t\":{}}" } },
	{ LITERAL("gemma4", "{}"), { "v:[1,<|\"|>b<|\"|>,{k:true,z:null}]", "v:false" }, { "v:True", "v:\"a\"" } },
	{ LITERAL("gemma4", "{'enum': ['a b', false]}"), { "v:<|\"|>a b<|\"|>", "v:false" }, { "v:<|\"|>a<|\"|>" } },
	{ LITERAL("gemma4", "{'anyOf': [{'type': 'string', 'maxLength': 2}, {'type': 'null'}]}"), { "v:<|\"|>ab<|\"|>", "v:null" },
	  { "v:<|\"|>abc<|\"|>", "v:1" } },
	{ LITERAL("gemma4", "{'oneOf': [{'type': 'boolean'}, {'type': 'number', 'maximum': 1}]}"), { "v:true", "v:0.5" }, { "v:2" } },
	{ "{'type': 'json_schema', 'style': 'python', 'json_schema': {'type': 'object'}}",
	  { "", "a=1", "a=1, b_2=\"x\"" }, { "1=1", "a" } },
};

static int unquoted(char *out, const char *s)
{
	int n = 0;

	for (; *s; s++)
		out[n++] = *s == '\'' ? '"' : *s;
	out[n] = 0;
	return n;
}

static int open_tag(struct sr_grammar **g, const char *before, const char *s, const char *after, char *err, size_t errlen)
{
	char with[20000], src[20000];

	snprintf(with, sizeof(with), "%s%s%s", before, s, after);
	return sr_grammar_open(g, text, SR_GRAMMAR_TAGS, src, (size_t)unquoted(src, with), NULL, err, errlen);
}

static void check_text(struct sr_grammar *g, const char *what, const char *const *yes, const char *const *no, int *bad)
{
	for (int k = 0; k < 8 && yes[k]; k++)
		if (rig_keeps(g, yes[k]) >= 0)
			*bad += printf("%s\n  refuses '%s' at %d\n", what, yes[k], rig_keeps(g, yes[k]));
	for (int k = 0; k < 10 && no[k]; k++)
		if (rig_keeps(g, no[k]) < 0)
			*bad += printf("%s\n  lets '%s' through\n", what, no[k]);
}

static void formats(void **state)
{
	struct sr_grammar *g;
	char err[900];
	int bad = 0;

	(void)state;
	for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
		g = NULL;
		if (open_tag(&g, "{'type': 'structural_tag', 'format': ", tables[i].format, "}", err, sizeof(err)))
			bad += printf("%s\n  refused: %s\n", tables[i].format, err);
		else
			check_text(g, tables[i].format, tables[i].yes, tables[i].no, &bad);
		sr_grammar_close(g);
	}
	assert_int_equal(bad, 0);
}

static void older_form(void **state)
{
	static const char *const yes[8] = { "", "a<x>{\"k\": 1}</x>b", "<y>null</y>" };
	static const char *const no[10] = { "<x>1", "<y>1" };
	struct sr_grammar *g = NULL;
	char err[900];
	int bad = 0;

	(void)state;
	assert_int_equal(0, open_tag(&g, "", "{'type': 'structural_tag', 'triggers': ['<x', '<y'], 'structures': ["
		"{'begin': '<x>', 'end': '</x>', 'schema': {'type': 'object', 'properties': {'k': {'const': 1}}}}, "
		"{'begin': '<y>', 'end': '</y>', 'schema': '{\\u0022type\\u0022: \\u0022null\\u0022}'}]}", "", err, sizeof(err)));
	check_text(g, "older form", yes, no, &bad);
	assert_int_equal(bad, 0);
	sr_grammar_close(g);
}

static const struct { const char *format; int code; const char *message; } refused[] = {
	{ "{'type': 'strange'}", -ENOTSUP, "The format 'strange' is not known. At #/format" },
	{ "{}", -ENOTSUP, "The format '' is not known. At #/format" },
	{ "{'type': 'const_string'}", -EINVAL, "'value' must be a string. At #/format" },
	{ "{'type': 'const_string', 'value': 'a', 'name': 'b'}", -ENOTSUP,
	  "The field 'name' is not known; known are: type value. At #/format" },
	{ "{'type': 'any_text', 'max_tokens': 5}", -ENOTSUP, "'max_tokens' is not supported; 'max_chars' is. At #/format" },
	{ "{'type': 'any_text', 'max_chars': -1}", -EINVAL, "'max_chars' must be an integer from 0 to 2147483647. At #/format" },
	{ "{'type': 'any_text', 'excludes': ['']}", -EINVAL, "'excludes' must be strings of 1 to 65536 bytes. At #/format" },
	{ "{'type': 'sequence', 'elements': [" C("a") ", {'type': 'x'}]}", -ENOTSUP,
	  "The format 'x' is not known. At #/format/elements/1" },
	{ "{'type': 'or', 'elements': []}", -EINVAL, "'elements' must have 1 to 1024 formats. At #/format" },
	{ "{'type': 'repeat', 'content': " C("a") ", 'min': 3, 'max': 2}", -EINVAL,
	  "'max' must be at least 'min', or -1 for no limit. At #/format" },
	{ "{'type': 'grammar', 'grammar': 'root ::= x'}", -EINVAL,
	  "Invalid grammar specification: Rule 'x' not found. (1:10 there) At #/format" },
	{ "{'type': 'token', 'token': '<nothing>'}", -EINVAL, "The model has no token '<nothing>'. At #/format" },
	{ "{'type': 'token', 'token': 259}", -EINVAL, "The model's token ids are 0 to 258. At #/format" },
	{ TAG("1", TEXT, "'a'"), -EINVAL, "'begin' must be a string or a token. At #/format" },
	{ TAG("'a'", TEXT, "[]"), -EINVAL, "'end' must be a string, strings or a token. At #/format" },
	{ TAG("'a'", "1", "'b'"), -EINVAL, "'content' must be an object. At #/format" },
	{ "{'type': 'triggered_tags', 'triggers': ['<g'], 'tags': [" TAG("'<f>'", TEXT, "'x'") "]}", -EINVAL,
	  "The trigger at index 0 begins no tag. At #/format" },
	{ "{'type': 'triggered_tags', 'triggers': ['<', '<f'], 'tags': [" TAG("'<f>'", TEXT, "'x'") "]}", -EINVAL,
	  "Each tag must begin with exactly one trigger. At #/format" },
	{ XML("cohere_xml", ""), -ENOTSUP, "The style 'cohere_xml' is not supported. At #/format/json_schema" },
	{ XML_OF("{'type': 'string', 'not': {}}"), -ENOTSUP,
	  "'not' is not supported here in style qwen_xml. At #/format/json_schema" },
	{ XML_OF("{'$ref': 'http://a/b'}"), -ENOTSUP,
	  "A '$ref' here must name a place in the same schema, as in '#/$defs/X'. At #/format/json_schema" },
	{ XML_OF("{'oneOf': [{'type': 'string'}, {'const': 'x'}]}"), -ENOTSUP,
	  "'oneOf' may have one schema of strings here, besides others with a type. At #/format/json_schema" },
	{ XML_OF("{'type': 'string', 'maxLength': 1.5}"), -EINVAL,
	  "'maxLength' must be an integer from 0 to 2147483647. At #/format/json_schema" },
	{ "{'type': 'regex', 'pattern': '(?=[a-z0-9]{60000,})([a-z][0-9])+'}", -E2BIG,
	  "It takes too long to find out if any text matches the pattern. At #/format" },
	{ XML_OF("{'type': 'string', 'pattern': '^([a-z][0-9])+$', 'minLength': 60000}"), -E2BIG,
	  "It takes too long to find out if any text satisfies the schema of a string. At #/format/json_schema" },
	{ XML_OF("{'type': 'string', 'const': 1}"), -EINVAL, "No value satisfies a schema here. At #/format/json_schema" },
	{ "{'type': 'json_schema', 'style': 'glm_xml', 'json_schema': {'type': 'array'}}", -EINVAL,
	  "The schema must be of an object in style glm_xml. At #/format/json_schema" },
	{ LITERAL("python", "{'type': 'array', 'uniqueItems': true}"), -ENOTSUP,
	  "'uniqueItems' is not supported here in style python. At #/format/json_schema" },
	{ LITERAL("gemma4", "{'const': 'a<|\\u0022|>b'}"), -ENOTSUP,
	  "A string with <|\"|> in it cannot be written in style gemma4. At #/format/json_schema" },
	{ LITERAL("python", "{'oneOf': [{'type': 'integer'}, {'type': 'number'}]}"), -ENOTSUP,
	  "The schemas of 'oneOf' must have different types in style python. At #/format/json_schema" },
	{ LITERAL("python", "{'minLength': 1}"), -ENOTSUP,
	  "'minLength' is not supported here in style python. At #/format/json_schema" },
	{ XML("python", ", 'any_order': true"), -ENOTSUP,
	  "'any_order' is not supported in style python. At #/format/json_schema" },
	{ "{'type': 'json_schema', 'json_schema': 1}", -EINVAL, "'json_schema' must be a JSON schema. At #/format" },
};

static void sentences(void **state)
{
	struct sr_grammar *g = NULL;
	char err[900];
	int bad = 0, rc;

	(void)state;
	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		rc = open_tag(&g, "{'type': 'structural_tag', 'format': ", refused[i].format, "}", err, sizeof(err));
		if (rc != refused[i].code || strcmp(err, refused[i].message))
			bad += printf("%s\n  is %d: %s\nnot %d: %s\n", refused[i].format, rc, err, refused[i].code, refused[i].message);
		if (!rc)
			sr_grammar_close(g);
	}
	assert_int_equal(bad, 0);
	assert_int_equal(-EINVAL, open_tag(&g, "", "nothing", "", err, sizeof(err)));
	assert_int_equal(-EINVAL, open_tag(&g, "", "[]", "", err, sizeof(err)));
	assert_string_equal(err, "A structural tag is an object. At #");
	assert_int_equal(-ENOTSUP, open_tag(&g, "", "{'type': 'structural_tag', 'forma': {}}", "", err, sizeof(err)));
	assert_string_equal(err, "The field 'forma' is not known; known are: type format. At #");
}

/* What the guide says of the first token behind this text. */
static struct sr_next next_of(const char *format, const char *before)
{
	uint32_t bits[(RIG_END + 32) / 32];
	struct sr_grammar *g = NULL;
	struct sr_guide *u;
	struct sr_next next;
	char err[900];

	assert_int_equal(0, open_tag(&g, "{'format': ", format, "}", err, sizeof(err)));
	assert_int_equal(0, sr_guide_open(&u, g));
	while (*before)
		assert_int_equal(0, sr_guide_take(u, rig_next_id(&before)));
	assert_int_equal(0, sr_guide_next(u, &next, bits));
	sr_guide_close(u);
	sr_grammar_close(g);
	return next;
}

/* While the only thing that can end the text is one token, no guide is needed until it comes. */
static void free_until_token(void **state)
{
	static const char thought[] = TAG("'<think>'", TEXT, "'</think>'");
	static const char call[] = "{'type': 'triggered_tags', 'triggers': ['<tool>'], 'tags': ["
		TAG("'<tool>x'", WORD, "'.'") "]}";
	struct sr_next next = next_of(thought, "\1<think>");

	(void)state;
	assert_int_equal(next.kind, SR_GUIDE_FREE);
	assert_int_equal(next.n, 1);
	assert_int_equal(next.id[0], RIG_BYTES + 1);
	for (int i = 0; i < 3; i++) {
		static const char *const before[] = { "", "so ", "so \1<tool>xab. and" };

		next = next_of(call, before[i]);
		assert_int_equal(next.kind, SR_GUIDE_FREE);
		assert_int_equal(next.n, 1);
		assert_int_equal(next.id[0], RIG_BYTES + 2);
	}
	next = next_of(call, "\1<tool>");
	assert_int_equal(next.kind, SR_GUIDE_IS);
	assert_int_equal(next.id[0], 'x' - 1);
}

/* Each is compiled or refused quickly. */
static void bombs(void **state)
{
	static const struct { const char *before, *part, *after; int n; bool refused; } bomb[] = {
		{ "", "{'type': 'star', 'content': ", C("a"), 40, false },
		{ "", "{'type': 'tag', 'begin': '[', 'end': ']', 'content': ", TEXT, 40, false },
		{ "", "{'type': 'star', 'content': ", C("a"), 200, true },
		{ "{'type': 'dispatch', 'rules': [", "['a', {'type': 'token', 'token': 1}], ", "", 33, true },
		{ "{'type': 'any_text', 'excludes': [", "'ab', ", "", 257, true },
		{ "{'type': 'repeat', 'min': 0, 'max': 2147483647, 'content': ", "", "{'type': 'regex', 'pattern': 'a{9999}'}", 1, false },
	};
	struct sr_grammar *g;
	char s[16384], err[900];

	(void)state;
	for (size_t i = 0; i < sizeof(bomb) / sizeof(*bomb); i++) {
		uint64_t begin = sr_now();
		char *p = stpcpy(s, bomb[i].before);
		int rc;

		for (int k = 0; k < bomb[i].n; k++)
			p = stpcpy(p, bomb[i].part);
		p = stpcpy(strchr(bomb[i].before, '[') ? p - 2 : p, bomb[i].after);
		if (strchr(bomb[i].before, '['))
			p = stpcpy(p, "]}");
		else
			for (int k = 0; k < bomb[i].n; k++)
				p = stpcpy(p, "}");
		g = NULL;
		rc = open_tag(&g, "{'format': ", s, "}", err, sizeof(err));
		if ((rc != 0) != bomb[i].refused)
			printf("%.80s: %d %s\n", s, rc, err);
		assert_int_equal(rc != 0, bomb[i].refused);
		assert_int_equal(rc == -E2BIG, bomb[i].refused);
		assert_true(sr_now() - begin < 1000000000);
		sr_grammar_close(g);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(formats),
		cmocka_unit_test(older_form),
		cmocka_unit_test(sentences),
		cmocka_unit_test(free_until_token),
		cmocka_unit_test(bombs),
	};
	int failed;

	text = rig_bytes_text();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rig_bytes_close(text);
	return failed;
}
