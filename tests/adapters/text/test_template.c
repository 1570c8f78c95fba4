/* LINK: @template -ljansson -lutf8proc */
/* test_template.c - chat templates against what Jinja2 makes of them (tests/data/
 * text_templates.json, written by make_text_templates.py), and against the budgets.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "adapters/text/template/template.h"

static int64_t run(const char *source, json_t *vars, const struct template_budget *b, char **out, char *err, size_t n)
{
	struct template *t;
	int64_t rc = template_compile(&t, source, strlen(source), err, n);

	if (rc)
		return rc;
	rc = template_render(t, vars, b, out, err, n);
	template_free(t);
	return rc;
}

/* One case: the expected text, or that it fails (with that message, if there is one). */
static int differs(const char *source, json_t *vars, const json_t *want)
{
	const json_t *error = json_object_get(want, "error"), *text = json_object_get(want, "out");
	char *out = NULL, err[512] = "";
	int64_t n = run(source, vars, NULL, &out, err, sizeof(err));
	int bad = 0;

	if (error && n >= 0) {
		print_error("no error from: %s\n got: %s\n", source, out);
		bad = 1;
	} else if (error) {
		bad = !err[0] || (json_is_string(error) && strcmp(err, json_string_value(error)));
		if (bad)
			print_error("error of: %s\n got: %s\n", source, err);
	} else if (n < 0 || (size_t)n != json_string_length(text) || memcmp(out, json_string_value(text), (size_t)n)) {
		print_error("%s\n want: %s\n got:  %s\n", source, json_string_value(text), n < 0 ? err : out);
		bad = 1;
	}
	free(out);
	return bad;
}

static json_t *load(void)
{
	json_error_t e;
	json_t *root = json_load_file("tests/data/text_templates.json", 0, &e);

	if (!root)
		fail_msg("tests/data/text_templates.json: %s (run from the root of the repository)", e.text);
	return root;
}

static void expressions_and_statements(void **state)
{
	json_t *root = load(), *item;
	int bad = 0;
	size_t i;

	(void)state;
	assert_true(json_array_size(json_object_get(root, "small")) > 100);
	json_array_foreach(json_object_get(root, "small"), i, item)
		bad += differs(json_string_value(json_object_get(item, "template")), json_object_get(root, "vars"), item);
	assert_int_equal(bad, 0);
	json_decref(root);
}

static void whole_templates(void **state)
{
	json_t *root = load(), *source, *want;
	const char *name;
	int bad = 0, n = 0;
	size_t i;

	(void)state;
	json_object_foreach(json_object_get(root, "templates"), name, source) {
		json_array_foreach(json_object_get(json_object_get(root, "rendered"), name), i, want) {
			bad += differs(json_string_value(source), json_array_get(json_object_get(root, "chats"), i), want);
			n++;
		}
	}
	assert_true(n >= 50);
	assert_int_equal(bad, 0);
	json_decref(root);
}

/* Errors say where, and what was expected. */
static void messages(void **state)
{
	static const struct { const char *source, *want; } cases[] = {
		{ "a\n\n{{ 1 + }}", "chat template, line 3: expected an expression, got }}" },
		{ "{% if x %}", "chat template, line 1: the block that begins here has no 'endif'" },
		{ "\n{{ x | shout }}", "chat template, line 2: there is no filter named 'shout'" },
		{ "\n\n{{ messages[0].content }}", "chat template, line 3: 'messages' is undefined" },
		{ "{% include 'x' %}", "chat template, line 1: the tag 'include' does not exist, or does not belong here" },
		{ "{{ raise_exception('Roles must alternate') }}", "Roles must alternate" },
		{ "{{ 0e0e-6666666666666666666666666666666666666666666666666666666e02 }}",
		  "chat template, line 1: number '0e0e-66666666666666666666666666666666666' is too long" },
		{ "{{ (-9223372036854775807 - 1) // -1 }}",
		  "chat template, line 1: the result of an operation does not fit in 64 bits" },
		{ "{{ [1].append(2) }}", "chat template, line 1: list.append() is not allowed in a chat template" },
	};
	json_t *vars = json_object();

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *out = NULL, err[256] = "";

		assert_int_equal(run(cases[i].source, vars, NULL, &out, err, sizeof(err)), -EINVAL);
		assert_string_equal(err, cases[i].want);
	}
	json_decref(vars);
}

/* Tags without blanks, and escapes that are no characters. */
static void spellings(void **state)
{
	static const struct { const char *source, *want; } cases[] = {
		{ "{%raw%}{{ x }}{%endraw%}", "{{ x }}" }, { "{%-raw-%} {{ x }} {%-endraw-%}", "{{ x }}" },
		{ "{%+raw+%} {{ x }}{%+ endraw +%}", " {{ x }}" }, { "{%  raw  %}a{%\nendraw\n%}", "a" },
		{ "{{ '\\ud800' }}", "\ufffd" }, { "{{ '\\udfff' }}", "\ufffd" }, { "{{ '\\ud7ff' }}", "\xed\x9f\xbf" },
		{ "{{ '\\ue000' }}", "\ue000" }, { "{{ '\\U0010ffff' }}", "\U0010ffff" },
		{ "{{ '\\U00110000' }}", "\ufffd" }, { "{{ (-9223372036854775807 - 1) % -1 }}", "0" },
		{ "{{ -7 // -1 }}", "7" },
	};
	json_t *vars = json_object();

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *out = NULL, err[256] = "";

		if (run(cases[i].source, vars, NULL, &out, err, sizeof(err)) < 0)
			fail_msg("%s: %s", cases[i].source, err);
		assert_string_equal(out, cases[i].want);
		free(out);
	}
	json_decref(vars);
}

/* Templates that would run for ever or fill the memory soon end with -E2BIG. */
static void budgets(void **state)
{
	static const char *const cases[] = {
		"{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}",
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(1000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
		"{{ 'aaaaaaaaaaaaaaaa' * 9000000000 }}",
		"{{ [1, 2, 3] * 9000000000 }}",
		"{% for a in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
		"{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = ns.x | tojson | tojson %}{% endfor %}",
		"{{ 'a' | indent(999999999) }}",
		"{% for i in range(100000) %}{{ range(100000) | sort | length }}{% endfor %}",
		"{% for i in range(100000) %}{{ '%10000d' % 1 }}{{ '{:10000}'.format(1) }}{% endfor %}",
		"{% set ns = namespace(x='a') %}{% for i in range(100) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
		"{% set ns = namespace(x='a') %}{% for i in range(100) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
		"{% set ns = namespace(x='<' | e) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"{{ ('{0:10000}' * 100000).format(1) }}",
		"{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
		"{% macro m() %}{{ caller() }}{% endmacro %}{% for i in range(100000) %}{% call m() %}x{% endcall %}{% endfor %}",
	};
	struct template_budget b = { .steps = 400000, .output = 1 << 20 };
	json_t *vars = json_object();
	struct timespec from, to;

	(void)state;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *out = NULL, err[256] = "";

		if (run(cases[i], vars, &b, &out, err, sizeof(err)) != -E2BIG)
			fail_msg("%s: not -E2BIG: %s", cases[i], err);
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	assert_true(to.tv_sec - from.tv_sec < 60); /* 3, and 7 with sanitizers */
	json_decref(vars);
}

/* Each takes more than 1,000 steps but little memory and output, so only the step budget can end it.  With
 * a larger budget it succeeds, so the number of steps was the only reason. */
static void steps(void **state)
{
	static const char *const cases[] = {
		"{% for a in range(2000) %}{% endfor %}",
		"{% for a in range(400) %}{{ a and a and a and a }}{% endfor %}",
		"{{ 3000 in range(2500) | list }}",
		"{{ range(900) | sort | first }}",
		"{{ range(500) | map('string') | select('string') | list | length }}",
		"{{ ('a ' * 1500).split() | length }}",
		"{{ ('a' * 1500) | list | length }}",
		"{{ ('%%' * 1500) % () }}",
		"{{ ('x{0}' * 700).format(1) | length }}",
		"{{ (('%9000s' * 2) % (1, 2)) | length }}",
		"{{ 1 ** 2 ** 40 + 2 ** 0 }}{% for a in range(600) %}{{ a }}{% endfor %}",
		"{% set s = ' ' * 500 %}{{ s.strip() }}{{ s.lstrip() }}{{ s | trim }}",
		"{% set s = 'a' * 300 %}{{ s.strip('b' * 100 ~ 'a') | length }}",
		"{% set s = 'a' * 300 %}{{ s.rstrip('b' * 100 ~ 'a') | length }}",
		"{% set l = [0] * 700 %}{{ l == l }}{{ l == l }}",
		"{% set s = '1' * 9000 %}{{ s.isdigit() and s.isdigit() }}",
		"{% set s = 'a' * 9000 %}{{ 'b' in s }}{{ 'c' in s }}",
	};
	struct template_budget few = { .steps = 1000 }, many = { .steps = 1000000 };
	json_t *vars = json_object();

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *out = NULL, err[256] = "";

		if (run(cases[i], vars, &few, &out, err, sizeof(err)) != -E2BIG || !strstr(err, "too many steps"))
			fail_msg("%s: not stopped by its steps: %s", cases[i], err);
		if (run(cases[i], vars, &many, &out, err, sizeof(err)) < 0)
			fail_msg("%s: %s", cases[i], err);
		free(out);
	}
	json_decref(vars);
}

/* Does a template read the tools it is given?  Variables that it sets itself do not count. */
static void inputs(void **state)
{
	static const struct { const char *source; bool tools, documents; } cases[] = {
		{ "", false, false },
		{ "{{ messages[0].content }}", false, false },
		{ "{{ tools }}", true, false },
		{ "{% if tools %}x{% endif %}", true, false },
		{ "{{ 1 if tools is defined }}", true, false },
		{ "{% for d in documents %}{{ d.tools }}{% endfor %}", false, true },
		{ "{{ messages[0].tools }}{{ messages[0]['tools'] }}{{ 'tools' }}{{ f(tools=1) }}", false, false },
		{ "{# tools #}{% raw %}{{ tools }}{% endraw %}", false, false },
		{ "{% for m in messages if no %}{% if no %}{{ x | tojson(tools) }}{% endif %}{% endfor %}", true, false },
		{ "{{ messages[tools:] }}{{ {1: documents} }}", true, true },
		{ "{% set tools = none %}{{ tools }}", false, false },
		{ "{% set tools = tools or [] %}", true, false },
		{ "{{ tools }}{% set tools = none %}", true, false },
		{ "{% if x %}{% set tools = none %}{% endif %}{{ tools }}", true, false },
		{ "{% if x %}{% set tools = none %}{{ tools }}{% endif %}", false, false },
		{ "{% for tools in x %}{{ tools }}{% endfor %}", false, false },
		{ "{% for tools in x if tools %}{% else %}{{ tools }}{% endfor %}", true, false },
		{ "{% for x in tools %}{% endfor %}", true, false },
		{ "{% macro m(tools) %}{{ tools }}{% endmacro %}{{ m(1) }}", false, false },
		{ "{% macro m(tools) %}{{ tools }}{% endmacro %}{{ m(tools) }}", true, false },
		{ "{% macro m() %}{{ tools }}{% endmacro %}", true, false },
		{ "{% macro m(a=tools) %}{% endmacro %}", true, false },
		{ "{% macro tools() %}{% endmacro %}{{ tools() }}", false, false },
		{ "{% with tools = 1 %}{{ tools }}{% endwith %}", false, false },
		{ "{% with a = tools %}{% endwith %}", true, false },
		{ "{% set x %}{{ tools }}{% endset %}", true, false },
		{ "{% set x | default(tools) %}{% endset %}", true, false },
		{ "{% filter default(tools) %}{% endfilter %}", true, false },
		{ "{% call(tools) m() %}{{ tools }}{% endcall %}", false, false },
		{ "{% call m() %}{{ tools }}{% endcall %}", true, false },
		{ "{% set ns = namespace() %}{% set ns.tools = 1 %}{{ ns.tools }}", false, false },
		{ "{% set tools.x = 1 %}", true, false },
		{ "{% generation %}{{ documents }}{% endgeneration %}", false, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct template *t;
		char err[256] = "";

		if (template_compile(&t, cases[i].source, strlen(cases[i].source), err, sizeof(err)))
			fail_msg("%s: %s", cases[i].source, err);
		if (template_reads(t, "tools") != cases[i].tools || template_reads(t, "documents") != cases[i].documents)
			fail_msg("%s: reads tools %d, documents %d", cases[i].source, template_reads(t, "tools"),
			         template_reads(t, "documents"));
		assert_true(template_reads(t, "enable_thinking"));
		template_free(t);
	}
}

/* Sources that nest deeply or are long: an error or not, but no crash and no long wait. */
static void hostile_sources(void **state)
{
	static const struct { const char *open, *middle, *close; } cases[] = {
		{ "(", "1", ")" }, { "[", "", "]" }, { "{1:", "1", "}" }, { "not ", "1", "" }, { "-", "1", "" },
		{ "a.", "b", "" }, { "1+", "1", "" }, { "a|e|", "e", "" }, { "a if ", "b", "" }, { "f(", "", ")" },
		{ "1 if 1 else ", "1", "" }, { "a and ", "b", "" }, { "{", "", "}" }, { "a[", "1", "]" }, { "'a' ", "'b'", "" }, { "a is ", "none", "" },
	};
	json_t *vars = json_object();
	size_t n = 50000, k;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char *s = malloc(n * 32), *p = s, *out = NULL, err[256] = "";

		p = stpcpy(p, "{{ ");
		for (k = 0; k < n; k++)
			p = stpcpy(p, cases[i].open);
		p = stpcpy(p, cases[i].middle);
		for (k = 0; k < n; k++)
			p = stpcpy(p, cases[i].close);
		stpcpy(p, " }}");
		if (run(s, vars, NULL, &out, err, sizeof(err)) < 0)
			assert_true(err[0]);
		free(out);
		free(s);
	}
	json_decref(vars);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(expressions_and_statements),
		cmocka_unit_test(whole_templates),
		cmocka_unit_test(messages),
		cmocka_unit_test(spellings),
		cmocka_unit_test(budgets),
		cmocka_unit_test(steps),
		cmocka_unit_test(inputs),
		cmocka_unit_test(hostile_sources),
	};

	return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
