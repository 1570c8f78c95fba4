/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* Every format of calls and thoughts: what a model writes, and the parts that come out, whole, split at every
 * byte, and byte by byte.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "adapters/text/calls/calls.h"
#include "adapters/text/slipring-text.h"

/* ---- parts as one text: content, then [reasoning], {id|name:arguments} ---- */

struct record { char s[16384]; size_t n; int last; };

static void add(struct record *r, const char *s, size_t n)
{
	assert_true(r->n + n < sizeof(r->s));
	memcpy(r->s + r->n, s, n);
	r->n += n;
	r->s[r->n] = 0;
}

static void turn(struct record *r, int part)
{
	if (r->last == part || (r->last == CALLS_ID && part == CALLS_NAME)) {
		if (part == CALLS_NAME)
			add(r, r->last == CALLS_ID ? "|" : "}{", r->last == CALLS_ID ? 1 : 2);
		r->last = part;
		return;
	}
	if (part == CALLS_ARGUMENTS) {
		add(r, ":", 1);
	} else {
		if (r->last == CALLS_ARGUMENTS || r->last == CALLS_NAME)
			add(r, "}", 1);
		if (r->last == CALLS_REASONING)
			add(r, "]", 1);
		if (part == CALLS_REASONING)
			add(r, "[", 1);
		else if (part == CALLS_ID || part == CALLS_NAME)
			add(r, "{", 1);
	}
	r->last = part;
}

static void put(void *ctx, enum calls_part part, const char *s, size_t n)
{
	turn(ctx, (int)part);
	add(ctx, s, n);
}

struct way { json_t *tools; bool forced, none; uint32_t most; enum calls_begin begin; };

/* The text in pieces: the first `cut` bytes and the rest; cut 0: each byte alone. */
static struct splitter_result feed(const struct calls *c, const struct way *w, const char *text, size_t n,
                                   size_t cut, struct record *r)
{
	struct splitter_options o = { .begin = w->begin, .tools = w->tools, .parse_calls = !w->none,
	                              .forced = w->forced, .most = w->most, .put = put, .ctx = r };
	struct splitter *s = splitter_create(c, &o);
	struct splitter_result result;

	assert_non_null(s);
	*r = (struct record){ .last = CALLS_CONTENT };
	if (cut) {
		splitter_text(s, text, cut);
		splitter_text(s, text + cut, n - cut);
	}
	for (size_t i = 0; !cut && i < n; i++)
		splitter_text(s, text + i, 1);
	splitter_end(s);
	turn(r, CALLS_CONTENT);
	result = splitter_result(s);
	splitter_free(s);
	return result;
}

static struct splitter_result check(const char *tools, const char *reasoning, const struct way *w,
                                    const char *text, const char *parts)
{
	struct record whole, split;
	struct splitter_result a, b;
	struct calls *c;
	char err[2048] = "";
	size_t n = strlen(text);

	if (calls_open(&c, tools, reasoning, NULL, NULL, err, sizeof(err)) < 0)
		fail_msg("%s", err);
	a = feed(c, w, text, n, n, &whole);
	if (parts && strcmp(whole.s, parts))
		fail_msg("%s: %s\ngives  %s\nand not %s", tools, text, whole.s, parts);
	for (size_t i = 0; i < n; i++) {
		b = feed(c, w, text, n, i, &split);
		if (strcmp(whole.s, split.s) || a.calls != b.calls || a.whole != b.whole)
			fail_msg("%s: %s\nsplit at %zu gives %s\nand whole %s", tools, text, i, split.s, whole.s);
	}
	calls_close(c);
	return a;
}

/* ---- formats ---- */

#define WEATHER "{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{" \
	"\"type\":\"object\"," \
	"\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}," \
	"\"hot\":{\"type\":\"boolean\"}," \
	"\"tags\":{\"type\":\"array\"},\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}," \
	"\"unit\":{\"$ref\":\"#/$defs/unit\"}},\"$defs\":{\"unit\":{\"enum\":[1,2]}}}}}"

static const struct { const char *tools, *text, *parts; } rows[] = {
	/* objects with a marker */
	{ "hermes", "I look. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"<\"}}\n</tool_call>"
	  "\n<tool_call>\n"
	  "{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "I look. {f:{\"a\": \"}\\\"<\"}}{g:{}}" },
	{ "hermes", "\n\n<tool_call>{\"arguments\": [1, 2], \"name\": \"f\"}</tool_call>", "{f:[1, 2]}" },
	{ "hermes", "<tool_call>{\"name\":\"f\"}</tool_call> Done.", "{f:{}} Done." },
	{ "hermes", "a < b <tool <tool_cal", "a < b <tool <tool_cal" },
	{ "hermes", "<tool_call>\nnot json\n</tool_call>", "<tool_call>\nnot json\n</tool_call>" },
	{ "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"Paris\"}</tool_call>", "{f:\"Paris\"}" },
	{ "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": 12}</tool_call>", "{f:12}" },
	{ "hermes", "<tool_call>{\"name\": \"f\\u0041\", \"x\": {\"name\": [1]}, \"arguments\": {}}"
	  "</tool_call>", "{fA:{}}" },
	{ "granite4", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "{f:{\"a\": "
	  "1}}" },
	{ "longcat", "<longcat_tool_call>{\"name\": \"f\", \"arguments\": {}}</longcat_tool_call>", "{f:{}}" },
	{ "granite", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \""
	  "arguments\": {}}]",
	  "{f:{\"a\": 1}}{g:{}}" },
	{ "granite-20b-fc", "<function_call> {\"name\": \"f\", \"arguments\": {\"a\": 1}} <function_call> {\""
	  "name\": \"g\"}",
	  "{f:{\"a\": 1}}{g:{}}" },
	{ "phi4_mini_json", "functools[{\"name\": \"f\", \"arguments\": {\"a\": [1, {}]}}]", "{f:{\"a\": [1, {"
	  "}]}}" },
	{ "jamba", "<tool_calls>[\n{\"name\": \"f\", \"arguments\": {}},{\"name\": \"g\", \"arguments\": {}}\n"
	  "]</tool_calls>",
	  "{f:{}}{g:{}}" },
	{ "apertus", "<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": {}}]<|tools_suffix|>", "{f:{\"a\": 1}}{g:{"
	  "}}" },
	{ "internlm", "Hm<|action_start|><|plugin|>{\"name\": \"f\", \"parameters\": {}}<|action_end|>", "Hm{"
	  "f:{}}" },
	{ "cohere_command3", "<|START_ACTION|>[{\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\""
	  ": {\"a\": 1}}]"
	  "<|END_ACTION|>", "{0|f:{\"a\": 1}}" },
	{ "gigachat3", "function call{\"name\": \"f\", \"arguments\": {}}", "{f:{}}" },
	/* objects without one */
	{ "llama3_json", "{\"name\": \"f\", \"parameters\": {\"a\": \"b\"}}; {\"name\": \"g\", \"arguments\": "
	  "{}}",
	  "{f:{\"a\": \"b\"}}{g:{}}" },
	{ "llama3_json", "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "{f:{}"
	  "}" },
	{ "llama3_json", "{\"city\": \"Paris\", \"name\": \"x\"}", "{\"city\": \"Paris\", \"name\": \"x\"}" },
	{ "llama3_json", "It is {\"name\": \"f\"}", "It is {\"name\": \"f\"}" },
	{ "xlam", "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "{f:{\"a\": 1}}" },
	{ "xlam", "[]", "[]" },
	{ "xlam", "[1, 2]", "[1, 2]" },
	{ "generic", "[{\"name\": \"f\", \"parameters\": {}}, {\"name\": \"g\", \"parameters\": {}}]", "{f:{}}"
	  "{g:{}}" },
	/* a name, then JSON */
	{ "mistral", "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}", "{f:{\"a\": 1}}{g:{}}" },
	{ "mistral", "[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g{}", "{f:{\"a\": 1}}{g:{}}" },
	{ "mistral", "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}", "{abcDEF123|f:{}}" },
	{ "mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {\""
	  "a\": 1}}]",
	  "{f:{}}{g:{\"a\": 1}}" },
	{ "deepseek_v3", "Ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}"
	  "\n```"
	  "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
	  "<｜tool▁calls▁end｜>", "Ok{f:{\"a\": 1}}{g:{}}" },
	{ "deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
	  "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "{f:{\"a\": 1}}{g:{}}" },
	{ "kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
	  "{\"a\": 1}"
	  "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
	  "<|tool_calls_section_end|>", "{functions.f:0|f:{\"a\": 1}}{functions.g:1|g:{}}" },
	/* tags */
	{ "qwen3_coder", "Now:\n<tool_call>\n<function=weather>\n<parameter=city>\nSan \"F\"\n\nx\n</parameter>\n"
	  "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
	  "Now:\n{weather:{\"city\": \"San \\\"F\\\"\\n\\nx\", \"days\": 3}}" },
	{ "qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=hot>\nTrue\n</parameter>\n"
	  "<parameter=tags>\n[1, {\"a\": "
	  "2}]\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=unit>\n2\n</parameter>\n"
	"<parameter=city>\n12\n"
	  "</parameter>\n<parameter=days>\nmany\n</parameter>\n<parameter=new>\n1\n</parameter>\n</function>\n"
	"</tool_call>",
	  "{weather:{\"hot\": true, \"tags\": [1, {\"a\": 2}]\n, \"note\": null, \"unit\": 2, \"city\": \"12\", "
	  "\"days\": \"many\", \"new\": \"1\"}}" },
	{ "qwen3_xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n"
	  "<parameter=note>\nno null\n</parameter>\n</function>\n</tool_call>", "{now:{}}{weather:{\"note\": "
	"\"no null\"}}" },
	{ "qwen3_coder", "<function=now>\n</function>", "{now:{}}" },
	{ "seed_oss", "<seed:tool_call>\n<function=weather>\n<parameter=city>a</parameter>\n</function>\n"
	  "</seed:tool_call>",
	  "{weather:{\"city\": \"a\"}}" },
	{ "glm45", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>"
	  "days</arg_key>\n"
	  "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
	  "{weather:{\"city\": \"Rome\", \"days\": 2}}{now:{}}" },
	{ "glm47", "<tool_call>weather<arg_key>city</arg_key><arg_value></arg_value></tool_call><tool_call>"
	  "now</tool_call>",
	  "{weather:{\"city\": \"\"}}{now:{}}" },
	{ "minimax_m2", "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">a\t"
	  "b</parameter>\n"
	  "<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n"
	"</minimax:tool_call>",
	  "{weather:{\"city\": \"a\\tb\", \"days\": 2}}{now:{}}" },
	{ "deepseek_v32", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
	  "string=\"true\">1"
	  "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"false\">[1]</｜DSML｜parameter>\n"
	"</｜DSML｜invoke>\n"
	  "</｜DSML｜function_calls>", "{f:{\"a\": \"1\", \"b\": [1]}}" },
	{ "deepseek_v4", "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
	  "{f:{}}" },
	{ "step3", "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\">"
	  "<steptml:parameter name=\"city\">x</steptml:parameter></steptml:invoke><｜tool_call_end｜>"
	"<｜tool_calls_end｜>",
	  "{weather:{\"city\": \"x\"}}" },
	/* notations of their own */
	{ "gemma4", "<|tool_call>call:f{a:<|\"|>it's \"x\"<|\"|>,n:42,l:[1,<|\"|>b<|\"|>],o:{k:true,z:null},"
	  "w:blue}<tool_call|>"
	  "<|tool_call>call:g{}<tool_call|>",
	  "{f:{\"a\": \"it's \\\"x\\\"\", \"n\": 42, \"l\": [1, \"b\"], \"o\": {\"k\": true, \"z\": null}, \""
	"w\": \"blue\"}}"
	  "{g:{}}" },
	{ "functiongemma", "<start_function_call>call:f{a:<escape>V<escape>}<end_function_call>", "{f:{\"a\": "
	  "\"V\"}}" },
	{ "pythonic", "[f(a='it\\'s', b=[1, 2.5, -3e4], c={'k': (True, None,)}, d=\"\\x41\\u00e9\\n\"), m.g()]",
	  "{f:{\"a\": \"it's\", \"b\": [1, 2.5, -3e4], \"c\": {\"k\": [true, null]}, \"d\": \"\\u0041\\u00e9\\"
	"n\"}}{m.g:{}}" },
	{ "pythonic", "[see (a)]", "[see (a)]" },
	{ "pythonic", "[1] According to", "[1] According to" },
	{ "llama4_pythonic", "<|python_start|>[f(a=1)]<|python_end|>", "{f:{\"a\": 1}}" },
	{ "olmo3", "<function_calls>f(a=\"x\")\ng(b=01)</function_calls>", "{f:{\"a\": \"x\"}}{g:{\"b\": \""
	  "01\"}}" },
	{ "lfm2", "<|tool_call_start|>[f(a=\"x\")]<|tool_call_end|>Checking", "{f:{\"a\": \"x\"}}Checking" },
	/* messages */
	{ "openai", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
	  "to=functions.f "
	  "<|constrain|>json<|message|>{\"a\": 1}<|call|>", "[Hm.]{f:{\"a\": 1}}" },
	{ "openai", "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant "
	  "to=functions.f<|channel|>commentary "
	  "json<|message|>{}", "I look.{f:{}}" },
	{ "openai", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>"
	  "Paris<|return|>",
	  "[a]Paris" },
	{ "openai", "Paris <b>", "Paris <b>" },
	{ "openai", "<|channel|>final<|message|>Paris<|end|><|start|>assistant", "Paris" },
};

static void formats_whole_and_split(void **state)
{
	json_t *tools = json_loads("[" WEATHER "]", 0, NULL);
	struct way w = { .tools = tools };

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check(rows[i].tools, "none", &w, rows[i].text, rows[i].parts);
	json_decref(tools);
}

/* Arguments of every row are JSON, and every beginning of every row gives the same split as whole. */
static void beginnings(void **state)
{
	json_t *tools = json_loads("[" WEATHER "]", 0, NULL);
	struct way w = { .tools = tools };
	char text[1024];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (size_t n = 1; n < strlen(rows[i].text); n += 7) {
			memcpy(text, rows[i].text, n);
			text[n] = 0;
			check(rows[i].tools, "none", &w, text, NULL);
		}
	json_decref(tools);
}

static void thoughts(void **state)
{
	static const struct { const char *reasoning, *text, *parts; enum calls_begin begin; } t[] = {
		{ "qwen3", "<think>\nHm <b>\n</think>\n\nParis", "[\nHm <b>\n]\n\nParis", CALLS_EITHER },
		{ "qwen3", "Hm\n</think>\n\n<tool_call>{\"name\": \"f\"}</tool_call>", "[Hm\n]{f:{}}",
		  CALLS_THINKING },
		{ "qwen3", "<think>Hm\n<tool_call>{\"name\": \"f\"}</tool_call>", "[Hm\n]{f:{}}", CALLS_THINKING },
		{ "qwen3", "Paris </think> x", "Paris </think> x", CALLS_EITHER },
		{ "qwen3", "<think>x</think>", "<think>x</think>", CALLS_ANSWERING },
		{ "deepseek_r1", "<think>a</think>b", "[a]b", CALLS_THINKING },
		{ "deepseek_r1", "a</think>b</think>", "[a]b</think>", CALLS_THINKING },
		{ "deepseek_r1", "only a thought <", "[only a thought <]", CALLS_THINKING },
		{ "ernie45", "a<response>b", "[a]b", CALLS_THINKING },
		{ "mistral", "[THINK]a[/THINK]b", "[a]b", CALLS_EITHER },
		{ "granite", "Here is my thought process: a Here is my response: b", "[ a ] b", CALLS_EITHER },
		{ "gemma4", "<|channel>thought\na<channel|>b", "[a]b", CALLS_EITHER },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		check("hermes", t[i].reasoning, &(struct way){ .begin = t[i].begin }, t[i].text, t[i].parts);
	check("none", "qwen3", &(struct way){ 0 }, "<think>a</think><tool_call>{\"name\": \"f\"}</tool_call>",
	      "[a]<tool_call>{\"name\": \"f\"}</tool_call>");
}

/* What a cut or malformed call is, what a forced one is, and a limit of calls. */
static void ends_of_calls(void **state)
{
	static const char two[] = "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}"
	  "</tool_call>";
	struct splitter_result r;

	(void)state;
	r = check("hermes", "none", &(struct way){ 0 }, two, "{f:{}}{g:{}}");
	assert_true(r.whole && r.calls == 2);
	r = check("hermes", "none", &(struct way){ .most = 1 }, two, "{f:{}}");
	assert_true(r.whole && r.calls == 1);
	r = check("hermes", "none", &(struct way){ .none = true }, two, two);
	assert_true(r.whole && !r.calls);
	r = check("hermes", "none", &(struct way){ .forced = true }, "<tool_c", "");
	assert_true(!r.whole && !r.calls);
	r = check("hermes", "none", &(struct way){ .forced = true }, "<tool_call>{\"na", "");
	assert_false(r.whole);
	r = check("hermes", "none", &(struct way){ 0 }, "<tool_call>{\"na", "<tool_call>{\"na");
	assert_false(r.whole);
	r = check("hermes", "none", &(struct way){ 0 }, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ",
	  "{f:{\"a\": }");
	assert_true(!r.whole && r.calls == 1);
	r = check("hermes", "none", &(struct way){ 0 }, "<tool_call>{\"name\": \"f\"]</tool_call>x", "{f}x");
	assert_false(r.whole);
	r = check("openai", "none", &(struct way){ 0 },
	          "<|channel|>commentary to=functions.f<|message|>{\"a\"", "{f:{\"a\"}");
	assert_false(r.whole);
}

/* The grammar of a format, as a structural tag. */
static void tags(void **state)
{
#define CONST(s) "{\"type\":\"const_string\",\"value\":\"" s "\"}"
#define ANY "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\"}}"
#define SEQUENCE(s) "{\"type\":\"sequence\",\"elements\":[" s "]}"
#define ONE(s) "{\"type\":\"or\",\"elements\":[" SEQUENCE(s) "]}"
#define TAG(s) "{\"type\":\"structural_tag\",\"format\":" s "}"
#define KEYS CONST("{\\\"") "," CONST("name") "," CONST("\\\": ") "," CONST("\\\"f\\\"") "," \
	CONST(", \\\"") "," CONST("arguments") "," CONST("\\\"") "," CONST(": ") "," ANY "," CONST("}")
#define STYLE(s) "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\"},\"style\":\"" s "\"}"
#define BLANKS(s) "{\"type\":\"regex\",\"pattern\":\"[ \\t\\r\\n]" s "\"}"
#define GENERIC CONST("{\\\"") "," CONST("name") "," CONST("\\\": ") "," CONST("\\\"f\\\"") "," \
	CONST(", \\\"") "," CONST("parameters") "," CONST("\\\"") "," CONST(": ") "," ANY "," CONST("}")
	static const struct { const char *tools; bool forced, many; const char *tag; } t[] = {
		{ "hermes", true, false, TAG(SEQUENCE(SEQUENCE(ONE(CONST("<tool_call>") "," CONST("\\n") ","
		  SEQUENCE(KEYS) "," CONST("\\n") "," CONST("</tool_call>"))))) },
		{ "hermes", false, true, TAG("{\"type\":\"dispatch\",\"rules\":[[\"<tool_call>\","
		  SEQUENCE(ONE(CONST("\\n") "," SEQUENCE(KEYS) "," CONST("\\n") "," CONST("</tool_call>")) ","
		  "{\"type\":\"star\",\"content\":" SEQUENCE(CONST("\\n") ","
		  ONE(CONST("<tool_call>") "," CONST("\\n") ","
		  SEQUENCE(KEYS) "," CONST("\\n") "," CONST("</tool_call>"))) "}") "]],\"loop\":true}") },
		{ "jamba", true, false, TAG(SEQUENCE(SEQUENCE(CONST("<tool_calls>") "," CONST("[") "," ONE(KEYS) ","
		  CONST("]") "," CONST("</tool_calls>")))) },
		{ "mistral", true, false, TAG(SEQUENCE(SEQUENCE(ONE(CONST("[TOOL_CALLS]") "," CONST("f") ","
		  CONST("[ARGS]") "," ANY)))) },
		{ "openai", true, false, NULL },
		{ "pythonic", true, true, TAG(SEQUENCE(SEQUENCE(CONST("[") "," ONE(CONST("f") "," CONST("(") ","
		  STYLE("python") "," CONST(")")) ",{\"type\":\"star\",\"content\":" SEQUENCE(CONST(", ") ","
		  ONE(CONST("f") "," CONST("(") "," STYLE("python") "," CONST(")"))) "}," CONST("]")))) },
		{ "olmo3", true, false, TAG(SEQUENCE(SEQUENCE(CONST("<function_calls>") "," ONE(CONST("f") "," CONST("(") ","
		  STYLE("python") "," CONST(")")) "," CONST("</function_calls>")))) },
		{ "gemma4", true, false, TAG(SEQUENCE(SEQUENCE(ONE(CONST("<|tool_call>call:") "," CONST("f") "," CONST("{") ","
		  STYLE("gemma4") "," CONST("}") "," CONST("<tool_call|>"))))) },
		{ "generic", false, false, TAG("{\"type\":\"or\",\"elements\":[" BLANKS("*") "," SEQUENCE(
		  BLANKS("*[^ \\t\\r\\n{[]") ",{\"type\":\"any_text\"}") "," SEQUENCE(BLANKS("{0,8}") ","
		  SEQUENCE(CONST("[") ",{\"type\":\"or\",\"elements\":[" SEQUENCE(GENERIC) "]}," CONST("]"))) "]}") },
		{ "openai", false, false, NULL },
	};
	json_t *tools = json_loads("[{\"function\":{\"name\":\"f\"}}]", 0, NULL), *tag;
	struct calls_wish w = { .tools = tools };
	const char *why;
	struct calls *c;
	char err[2048], *s;

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_int_equal(calls_open(&c, t[i].tools, "none", NULL, NULL, err, sizeof(err)), 0);
		w.forced = t[i].forced;
		w.many = t[i].many;
		tag = calls_tag(c, &w, &why);
		assert_non_null(tag);
		s = json_dumps(tag, JSON_COMPACT);
		if (t[i].tag)
			assert_string_equal(s, t[i].tag);
		else                          /* gpt-oss: no message begins before the first one */
			assert_null(strstr(s, "\"<|start|>\"},{\"type\":\"const_string\",\"value\":\"<|channel|>"));
		free(s);
		json_decref(tag);
		calls_close(c);
	}
	json_decref(tools);
	w.tools = tools = json_loads("[{\"function\":{\"name\":\"a b\"}}]", 0, NULL);
	assert_int_equal(calls_open(&c, "pythonic", "none", NULL, NULL, err, sizeof(err)), 0);
	assert_true(!calls_tag(c, &w, &why) && why);
	calls_close(c);
	json_decref(tools);
}

static void names(void **state)
{
	static const struct { const char *source, *tools, *reasoning; } t[] = {
		{ "{% if tools %}<tool_call>{\"name\":", "hermes", NULL },
		{ "{% if tools %}<tool_call><function=x><parameter=y></think>", "qwen3_coder", "qwen3" },
		{ "{% if tools %}<tool_call>x<arg_key>", "glm45", NULL },
		{ "[TOOL_CALLS][THINK]", "mistral", "mistral" },
		{ "<|start|><|channel|><|message|>", "openai", "openai_gptoss" },
		{ "<|im_start|>", "generic", NULL },
	};
	struct calls *c;
	char err[2048];

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_int_equal(calls_open(&c, NULL, NULL, NULL, t[i].source, err, sizeof(err)), 0);
		assert_string_equal(calls_tools(c), t[i].tools);
		if (t[i].reasoning)
			assert_string_equal(calls_reasoning(c), t[i].reasoning);
		else
			assert_null(calls_reasoning(c));
		calls_close(c);
	}
	assert_int_equal(calls_open(&c, "herme", NULL, NULL, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "--tool-call-parser herme: "));
	assert_non_null(strstr(err, "hermes"));
	assert_int_equal(calls_open(&c, NULL, "think", NULL, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "deepseek_r1"));
}

/* Markers that are special tokens are found by their ids: the same text from other tokens is no marker. */
static void special_tokens(void **state)
{
	static const char file[] = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
		"\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, "
		"\"merges\": []}, \"added_tokens\": [{\"id\": 1, \"content\": \"[TOOL_CALLS]\", \"special\": true}, "
		"{\"id\": 2, \"content\": \"[ARGS]\", \"special\": true}, {\"id\": 3, \"content\": \"<think>\", "
		"\"special\": false}, {\"id\": 4, \"content\": \"</think>\", \"special\": false}]}";
	static const struct { const char *text, *parts; } t[] = {
		{ "\xff<think>say </think>\xff</think>x\xff[TOOL_CALLS]f\xff[ARGS]{}", "[say </think>]x{f:{}}" },
		{ "[TOOL_CALLS]f[ARGS]{}", "[TOOL_CALLS]f[ARGS]{}" },
		{ "a\xff[ARGS]b", "a[ARGS]b" },
	};
	char dir[] = "/tmp/calls-XXXXXX", path[64], err[2048] = "";
	struct sr_text *text;
	struct calls *c;
	struct record r;
	struct sr_thought thought;
	FILE *f;

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/tokenizer.json", dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(file, f);
	fclose(f);
	if (sr_text_open(&text, dir, err, sizeof(err)) < 0)
		fail_msg("%s", err);
	assert_int_equal(calls_open(&c, "mistral", "qwen3", text, NULL, err, sizeof(err)), 0);
	for (int32_t i = 0; i < 5; i++)
		assert_int_equal(calls_token(c, i), i > 0);
	assert_true(calls_thought(c, CALLS_EITHER, &thought) && !thought.opened);
	assert_int_equal(thought.begin, 3);
	assert_true(calls_thought(c, CALLS_THINKING, &thought) && thought.opened);
	assert_int_equal(thought.n_end, 1);
	assert_int_equal(thought.end[0], 4);
	assert_true(calls_thought(c, CALLS_ANSWERING, &thought));
	assert_int_equal(thought.n_end, 0);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		feed(c, &(struct way){ 0 }, t[i].text, strlen(t[i].text), 0, &r);
		assert_string_equal(r.s, t[i].parts);
	}
	calls_close(c);
	assert_int_equal(calls_open(&c, NULL, "granite", text, NULL, err, sizeof(err)), 0);
	assert_false(calls_thought(c, CALLS_EITHER, &thought));
	assert_int_equal(thought.n_end, 0);
	calls_close(c);
	sr_text_close(text);
	unlink(path);
	rmdir(dir);
}

static void begins(void **state)
{
	static const struct { const char *reasoning, *prompt; enum calls_begin begin; } t[] = {
		{ "qwen3", "<|im_start|>assistant\n", CALLS_EITHER },
		{ "qwen3", "<|im_start|>assistant\n<think>\n", CALLS_THINKING },
		{ "qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", CALLS_ANSWERING },
		{ "deepseek_r1", "assistant", CALLS_THINKING },
		{ "deepseek_r1", "assistant</think>", CALLS_ANSWERING },
		{ "none", "<think>", CALLS_ANSWERING },
	};
	struct calls *c;
	char err[2048];

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_int_equal(calls_open(&c, "hermes", t[i].reasoning, NULL, NULL, err, sizeof(err)), 0);
		assert_int_equal(calls_begin(c, t[i].prompt, strlen(t[i].prompt)), t[i].begin);
		calls_close(c);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(formats_whole_and_split),
		cmocka_unit_test(beginnings),
		cmocka_unit_test(thoughts),
		cmocka_unit_test(ends_of_calls),
		cmocka_unit_test(tags),
		cmocka_unit_test(names),
		cmocka_unit_test(begins),
		cmocka_unit_test(special_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
