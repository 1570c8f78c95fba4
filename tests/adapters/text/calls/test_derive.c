/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* Formats of calls that only the renderings of a chat template show: known ones are found again, marker by
 * marker, and a template that shows none has none.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "adapters/text/calls/impl.h"

/* A template with these calls of one answer; TURN is what stands before its text. */
#define TURNS(turn, calls) "{% if tools %}You have {{ tools | tojson }}{{ '\\n' }}{% endif %}" \
	"{% for m in messages %}<{{ m.role }}>" turn "{{ m.content }}{% if m.tool_calls %}" calls \
	"{% endif %}<stop>{{ '\\n' }}{% endfor %}"
#define TEMPLATE(calls) TURNS("", calls)
#define EACH(call) "{% for c in m.tool_calls %}" call "{% endfor %}"
#define LATER(text) "{% if not loop.first %}" text "{% endif %}"
#define NAME "{{ c.function.name }}"
#define JSON "{{ c.function.arguments | tojson }}"
#define PAIRS(pair) "{% for k, v in c.function.arguments.items() %}" pair "{% endfor %}"
#define RAW "{% if v is string %}{{ v }}{% else %}{{ v | tojson }}{% endif %}"
#define NINE "{% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"

#define HERMES EACH(LATER("{{ '\\n' }}") "<tool_call>{{ '\\n' }}{\"name\": \"" NAME "\", \"arguments\": " \
	JSON "}{{ '\\n' }}</tool_call>")
#define LLAMA "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}" \
	EACH("{\"name\": \"" NAME "\", \"parameters\": " JSON "}")
#define MISTRAL EACH(NINE "[TOOL_CALLS]" NAME "[CALL_ID]{{ c.id }}[ARGS]" JSON)
#define MISTRAL_LIST "[TOOL_CALLS] [" EACH(LATER(", ") NINE "{\"name\": \"" NAME "\", \"arguments\": " JSON \
	", \"id\": \"{{ c.id }}\"}") "]"
#define DEEPSEEK "<｜tool▁calls▁begin｜>" EACH(LATER("{{ '\\n' }}") "<｜tool▁call▁begin｜>{{ c.type }}" \
	"<｜tool▁sep｜>{{ c.function.name + '\\n```json\\n' + c.function.arguments + '\\n```' }}" \
	"<｜tool▁call▁end｜>") "<｜tool▁calls▁end｜>"
#define GLM EACH("{{ '\\n' }}<tool_call>" NAME PAIRS("{{ '\\n' }}<arg_key>{{ k }}</arg_key>{{ '\\n' }}" \
	"<arg_value>" RAW "</arg_value>") "{{ '\\n' }}</tool_call>")
#define KIMI "<|tool_calls_section_begin|>" EACH("<|tool_call_begin|>{{ c.id }}" \
	"<|tool_call_argument_begin|>" JSON "<|tool_call_end|>") "<|tool_calls_section_end|>"
#define MINIMAX "<minimax:tool_call>{{ '\\n' }}" EACH("<invoke name=\"" NAME "\">{{ '\\n' }}" \
	PAIRS("<parameter name=\"{{ k }}\">" RAW "</parameter>{{ '\\n' }}") "</invoke>{{ '\\n' }}") \
	"</minimax:tool_call>"
#define QWEN EACH(LATER("{{ '\\n' }}") "<tool_call>{{ '\\n' }}<function=" NAME ">{{ '\\n' }}" \
	PAIRS("<parameter={{ k }}>{{ '\\n' }}" RAW "{{ '\\n' }}</parameter>{{ '\\n' }}") \
	"</function>{{ '\\n' }}</tool_call>")

static void same(const char *row, const char *what, const char *a, const char *b)
{
	if (strcmp(a ? a : "", b ? b : ""))
		fail_msg("%s: %s is %s and not %s", row, what, a ? a : "nothing", b ? b : "nothing");
}

static void found_again(void **state)
{
	static const struct { const char *row, *source; int but[2]; } t[] = {
		{ "hermes", TEMPLATE(HERMES), { -1, -1 } },
		{ "llama3_json", TEMPLATE(LLAMA), { M_CALL, -1 } }, /* its marker is not in this template */
		{ "mistral", TEMPLATE(MISTRAL), { -1, -1 } },
		{ "deepseek_v3", TEMPLATE(DEEPSEEK), { -1, -1 } },
		{ "glm45", TEMPLATE(GLM), { -1, -1 } },
		{ "kimi_k2", TEMPLATE(KIMI), { -1, -1 } },
		{ "minimax_m2", TEMPLATE(MINIMAX), { -1, -1 } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		const struct call_format *row = format_named(t[i].row);
		struct call_format *d = format_derived(t[i].source, NULL);

		if (!d)
			fail_msg("%s is not found", t[i].row);
		for (int m = 0; m < M_LAST; m++)
			if (m != t[i].but[0] && m != t[i].but[1])
				same(t[i].row, "a marker", d->mark[m], row->mark[m]);
		assert_int_equal(d->style, row->style);
		assert_int_equal(d->bare, row->bare);
		assert_int_equal(d->lines, row->lines);
		assert_int_equal(d->ids, row->ids);
		same(t[i].row, "gap", d->gap, row->gap);
		same(t[i].row, "between", d->between, row->between);
		same(t[i].row, "prefix", d->prefix, row->prefix);
		same(t[i].row, "tail", d->tail, row->tail);
		if (d->style == CALL_OBJECT) {
			same(t[i].row, "the name's key", d->name_field, row->name_field);
			same(t[i].row, "the arguments' key", d->args_field, row->args_field);
		}
		free(d);
	}
}

static void lists_and_lines(void **state)
{
	struct call_format *d = format_derived(TEMPLATE(MISTRAL_LIST), NULL);

	(void)state;
	assert_non_null(d);
	assert_int_equal(d->style, CALL_OBJECT);
	assert_true(d->list && !d->bare);
	assert_int_equal(d->ids, CALLS_IDS_NINE);
	assert_string_equal(d->mark[M_CALL], "[TOOL_CALLS]");
	assert_string_equal(d->between, ", ");
	free(d);
	d = format_derived(TEMPLATE(QWEN), NULL);
	assert_non_null(d);
	assert_int_equal(d->style, CALL_TAGGED);
	assert_true(d->lines);
	assert_string_equal(d->mark[M_KEY], "<parameter=");
	assert_string_equal(d->mark[M_VALUE_END], "</parameter>");
	free(d);
	d = format_derived(TEMPLATE(EACH("<a>[{\"name\": \"" NAME "\", \"arguments\": " JSON "}]</a>")), NULL);
	assert_non_null(d);
	assert_true(d->list);
	assert_string_equal(d->mark[M_CALL], "<a>");
	assert_string_equal(d->mark[M_CALL_END], "</a>");
	assert_string_equal(d->between, ", ");
	free(d);
}

/* An empty thought before the text of an answer is no part of it; another head is. */
static void heads(void **state)
{
	static const char thought[] = TURNS("{% if not m.tool_calls %}<think>{{ '\\n' }}</think>{% endif %}",
	                                    HERMES);
	struct call_format *d = format_derived(thought, "</think>");

	(void)state;
	assert_non_null(d);
	assert_string_equal(d->mark[M_CALL], "<tool_call>");
	free(d);
	assert_null(format_derived(thought, NULL));
}

static void not_found(void **state)
{
	static const char *const t[] = {
		NULL, "", "{% if", "no tools are read",
		TEMPLATE(""), TEMPLATE("a call"),
		TEMPLATE("{{ raise_exception('no calls') }}"),
		TEMPLATE("[" EACH(LATER(", ") NAME "({% for k, v in c.function.arguments.items() %}{{ k }}='{{ v }}'"
		         "{% endfor %})") "]"),
		TEMPLATE(EACH(NAME JSON)),                       /* no marker */
		TEMPLATE(EACH("<a>" NAME "</a>")),               /* no arguments */
		TEMPLATE(EACH("<a>" NAME NAME JSON "</a>")),     /* whose name? */
		TEMPLATE(EACH("{\"" NAME "\": " JSON "}")),      /* any object would be a call */
		TEMPLATE(EACH("<a>" NAME PAIRS("<k>{{ k }}</k><v>{{ v | tojson }}</v>") "</a>")),
		TURNS("{% if not m.tool_calls %}final:{% endif %}", HERMES),
	};

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct call_format *d = format_derived(t[i], NULL);

		if (d)
			fail_msg("%s has a row, of the marker %s", t[i], d->mark[M_CALL]);
	}
}

/* ---- the last resort of calls_open() ---- */

static void put(void *ctx, enum calls_part part, const char *s, size_t n)
{
	char *out = ctx;
	size_t k = strlen(out);

	if (part == CALLS_NAME)
		k += (size_t)snprintf(out + k, 256 - k, "|");
	snprintf(out + k, 256 - k, "%.*s%s", (int)n, s, part == CALLS_NAME ? ":" : "");
}

static void opened(void **state)
{
	static const char source[] = TEMPLATE(EACH("<<call " NAME ">>" JSON "<<done>>"));
	char err[2048], got[256] = "";
	const struct splitter_options o = { .parse_calls = true, .put = put, .ctx = got };
	static const char text[] = "I look. <<call f>>{\"a\": 1}<<done>><<call g>>{}<<done>>";
	struct calls_wish w = { .forced = true };
	struct splitter *s;
	struct calls *c;
	const char *why;
	json_t *tag;

	(void)state;
	assert_int_equal(calls_open(&c, NULL, NULL, NULL, source, err, sizeof(err)), 0);
	assert_string_equal(calls_tools(c), "derived");
	s = splitter_create(c, &o);
	splitter_text(s, text, strlen(text));
	splitter_end(s);
	splitter_free(s);
	assert_string_equal(got, "I look. |f:{\"a\": 1}|g:{}");
	w.tools = json_loads("[{\"function\":{\"name\":\"f\"}}]", 0, NULL);
	tag = calls_tag(c, &w, &why);
	assert_non_null(tag);
	json_decref(tag);
	json_decref(w.tools);
	calls_close(c);

	assert_int_equal(calls_open(&c, "generic", NULL, NULL, source, err, sizeof(err)), 0);
	assert_string_equal(calls_tools(c), "generic");
	calls_close(c);
	assert_int_equal(calls_open(&c, NULL, NULL, NULL, TEMPLATE(""), err, sizeof(err)), 0);
	assert_string_equal(calls_tools(c), "generic");
	calls_close(c);
	assert_int_equal(calls_open(&c, NULL, NULL, NULL, TEMPLATE(HERMES), err, sizeof(err)), 0);
	assert_string_equal(calls_tools(c), "hermes");
	calls_close(c);
}

/* Arguments have the grammar of the row with the same markers.  Without such a row the format has none. */
static void styles(void **state)
{
#define CALLS(key) "<my_calls>" EACH("<invoke name=\"" NAME "\">{{ '\\n' }}" \
	PAIRS("<" key " name=\"{{ k }}\">" RAW "</" key ">{{ '\\n' }}") "</invoke>") "</my_calls>"
	static const struct { const char *tools, *source, *style; } t[] = {
		{ NULL, TEMPLATE(CALLS("parameter")), "\"minimax_xml\"" }, { NULL, TEMPLATE(CALLS("value")), NULL },
		{ "minimax_m2", NULL, "\"minimax_xml\"" }, { "qwen3_coder", NULL, "\"qwen_xml\"" },
		{ "seed_oss", NULL, "\"qwen_xml\"" }, { "glm45", NULL, "\"glm_xml\"" },
		{ "deepseek_v32", NULL, "\"deepseek_xml\"" }, { "deepseek_v4", NULL, "\"deepseek_xml\"" },
		{ "step3", NULL, "\"step_xml\"" }, { "lfm2", NULL, "\"python\"" },
		{ "functiongemma", NULL, "\"functiongemma\"" },
	};
	struct calls_wish w = { .forced = true };
	char err[2048], *s;
	const char *why;
	struct calls *c;
	json_t *tag;

	(void)state;
	w.tools = json_loads("[{\"function\":{\"name\":\"f\"}}]", 0, NULL);
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		assert_int_equal(calls_open(&c, t[i].tools, NULL, NULL, t[i].source, err, sizeof(err)), 0);
		assert_string_equal(calls_tools(c), t[i].tools ? t[i].tools : "derived");
		tag = calls_tag(c, &w, &why);
		if (t[i].style) {
			s = json_dumps(tag, 0);
			assert_non_null(s);
			assert_non_null(strstr(s, t[i].style));
			free(s);
		} else {
			assert_null(tag);
			assert_string_equal(why, "has no grammar yet");
		}
		json_decref(tag);
		calls_close(c);
	}
	json_decref(w.tools);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(found_again),
		cmocka_unit_test(lists_and_lines),
		cmocka_unit_test(heads),
		cmocka_unit_test(not_found),
		cmocka_unit_test(opened),
		cmocka_unit_test(styles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
