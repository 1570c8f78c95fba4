/* LINK: @text -ljansson -lpcre2-8 -lutf8proc -lcrypto */
/* test_schema.c - JSON Schemas: what the guide takes and refuses, byte by byte, and what is refused by name. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/rig/cpu_time.h"
#include "tests/rig/guide_rig.h"

#define END 255                  /* id; byte b is id b - 1 */

static struct sr_text *bytes(void)
{
	static char byte[255][2];
	static const char *words[256];
	static struct sr_text *t;

	for (int b = 1; b < 256 && !t; b++) {
		byte[b - 1][0] = (char)b;
		words[b - 1] = byte[b - 1];
	}
	words[END] = "<end>";
	if (!t)
		t = rig_text(words, 256);
	return t;
}

static bool takes(struct sr_grammar *g, const char *s)
{
	uint32_t bits[8];
	struct sr_guide *u;
	bool ok = true;

	assert_int_equal(sr_guide_open(&u, g), 0);
	for (; *s && ok; s++)
		ok = !sr_guide_take(u, (uint8_t)*s - 1);
	if (ok) {
		rig_bits(u, bytes(), bits);
		ok = rig_allows(bits, END);
	}
	sr_guide_close(u);
	return ok;
}

/* Text with ' for ". */
static const char *quotes(const char *s, char *to, size_t n)
{
	size_t length = strnlen(s, n - 1);

	memmove(to, s, length);
	to[length] = 0;
	for (char *p = to; *p; p++)
		*p = *p == '\'' ? '"' : *p;
	return to;
}

static struct sr_grammar *compile(const char *schema, const struct sr_grammar_options *o)
{
	struct sr_grammar *g = NULL;
	char err[1024], text[4096];
	int rc;

	schema = quotes(schema, text, sizeof(text));
	rc = sr_grammar_open(&g, bytes(), SR_GRAMMAR_JSON, schema, strlen(schema), o, err, sizeof(err));

	if (rc)
		fail_msg("%s: %s", schema, err);
	return g;
}

/* yes and no: texts, each ending with a newline.  Here and below ' stands for ". */
static void check(const char *schema, const struct sr_grammar_options *o, const char *yes, const char *no)
{
	struct sr_grammar *g = compile(schema, o);

	for (int wanted = 1; wanted >= 0; wanted--) {
		for (const char *p = wanted ? yes : no, *end; *p; p = end + 1) {
			char text[4096];

			end = strchr(p, '\n');
			assert_non_null(end);
			quotes(p, text, (size_t)(end - p) + 1);
			if (takes(g, text) != wanted)
				fail_msg("%s: %s is %s", schema, text, wanted ? "refused" : "taken");
		}
	}
	sr_grammar_close(g);
}

struct sample { const char *schema, *yes, *no; };

static void check_rows(const struct sample *row, size_t n, bool open)
{
	struct sr_grammar_options o = { .size = sizeof(o), .additional_properties = open };

	for (size_t i = 0; i < n; i++)
		check(row[i].schema, &o, row[i].yes, row[i].no);
}
#define ROWS(list) (list), sizeof(list) / sizeof(*(list))

static void types(void **state)
{
	static const struct sample rows[] = {
		{ "true", "1\n{'a': [null, 1.5e3]}\n'\\u00e4\\n'\n[]\n", "\n01\n'\t'\n{,}\n'\\ud800'\n" },
		{ "{'type': 'object'}", "{}\n{'a': 1}\n", "1\n[]\n" },
		{ "{'type': ['null', 'boolean']}", "null\ntrue\nfalse\n", "0\n''\n" },
		{ "{'type': 'integer'}", "0\n-12\n", "1.0\n1e3\n-\n'1'\n" },
		{ "{'type': 'number', 'multipleOf': 1}", "1.0\n2\n", "1.5\n" },
		{ "{'type': 'number'}", "0\n1.50\n-1e-7\n", "1.\n.5\n+1\nnull\n" },
		{ "{'enum': [1, 2.5, 'a\\'\\u00e4', null, {'a': [1]}]}",
		  "1\n2.5\n'a\\'\u00e4'\n'a\\'\\u00E4'\nnull\n{'a':[ 1]}\n", "1.0\n2\n'a'\n{}\n{'a':[1,1]}\n{'a':[]}\n" },
		{ "{'const': 3, 'type': 'integer'}", "3\n", "4\n'3'\n" },
		{ "{'enum': [1, 'a', true], 'type': 'string'}", "'a'\n", "1\ntrue\n" },
	};

	(void)state;
	check_rows(ROWS(rows), true);
}

static void numbers(void **state)
{
	static const struct sample rows[] = {
		{ "{'type': 'integer', 'minimum': 5, 'maximum': 130}", "5\n9\n10\n99\n100\n130\n",
		  "4\n131\n-5\n05\n1000\n" },
		{ "{'type': 'integer', 'minimum': -30, 'exclusiveMaximum': 2}", "-30\n-1\n0\n1\n-9\n",
		  "-31\n2\n-100\n" },
		{ "{'type': 'number', 'exclusiveMinimum': 0.25}", "0.26\n0.2501\n1\n10.0\n",
		  "0.25\n0.250\n0\n-1\n0.1\n" },
		{ "{'type': 'number', 'minimum': 0.25, 'maximum': 12.5}", "0.25\n0.2500\n12.5\n12.49\n3\n",
		  "12.501\n0.249\n13\n" },
		{ "{'type': 'number', 'maximum': -1.5}", "-1.5\n-2\n-10\n-1.51\n", "-1.4\n0\n1\n-1\n" },
		{ "{'exclusiveMaximum': 0}", "-0.001\n'a'\n", "0\n-0\n0.5\n" },
		{ "{'minimum': 3, 'exclusiveMinimum': true}", "3.1\n", "3\n3.0\n" },
		{ "{'type': 'integer', 'multipleOf': 7}", "0\n7\n-14\n700\n", "1\n8\n13\n" },
		{ "{'type': 'number', 'multipleOf': 0.01}", "0.01\n1.10\n2\n3.140\n", "0.001\n3.141\n" },
		{ "{'type': 'number', 'multipleOf': 1.5, 'minimum': 2}", "3\n4.5\n6.0\n", "1.5\n4\n0\n" },
		{ "{'not': {'multipleOf': 3}, 'type': 'integer'}", "1\n100\n", "3\n0\n99\n" },
		{ "{'type': 'number', 'not': {'minimum': 1, 'maximum': 2}}", "0.9\n2.01\n-1\n",
		  "1\n1.5\n2.0\n" },
		{ "{'const': 1e3}", "1000\n", "1001\n100\n" },
		{ "{'maximum': 18446744073709551615, 'type': 'integer'}", "18446744073709540000\n9\n",
		  "18446744073709551617\n" },
	};

	(void)state;
	check_rows(ROWS(rows), true);
}

static void strings(void **state)
{
	static const struct sample rows[] = {
		{ "{'type': 'string', 'minLength': 2, 'maxLength': 3}",
		  "'ab'\n'\u00e4\u00f6\u00fc'\n'\\u00e4\\n'\n'\\ud83d\\ude00a'\n",
		  "'a'\n'abcd'\n''\n" },
		{ "{'type': 'string', 'pattern': 'b+'}", "'abc'\n'a\\u0062'\n", "'ac'\n" },
		{ "{'type': 'string', 'pattern': '^a.c$', 'maxLength': 3, 'not': {'const': 'abc'}}",
		  "'axc'\n", "'abc'\n" },
		{ "{'type': 'string', 'format': 'date'}", "'2024-02-29'\n",
		  "'2023-02-29'\n'2024-13-01'\n" },
		{ "{'format': 'ipv6'}", "'::1'\n'1:2:3:4:5:6:7:8'\n7\n", "'1:2'\n'::1::'\n" },
		{ "{'format': 'email'}", "'a.b@example.com'\n", "'a..b@c'\n'@c'\n" },
		{ "{'format': 'uuid'}", "'123e4567-e89b-12d3-a456-426614174000'\n", "'123'\n" },
		{ "{'format': 'time'}", "'23:59:60Z'\n'01:02:03+01:00'\n", "'24:00:00Z'\n'01:02:03'\n" },
		{ "{'format': 'hostname'}", "'a-b.c'\n", "'-a'\n'a_b'\n'a..b'\n" },
		{ "{'format': 'uri'}", "'http://a/b?c#d'\n", "'/a'\n'http://[1]/'\n" },
		{ "{'type': 'string', 'format': 'ours'}", "'a'\n", "1\n" },
	};

	(void)state;
	check_rows(ROWS(rows), true);
}

static void objects(void **state)
{
	static const struct sample rows[] = {
		{ "{'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': true}, 'required': ['b']}",
		  "{'a': 1, 'b': 2}\n{'b':2, 'c': 3}\n", "{}\n{'b': 1, 'a': 1}\n{'a': 1}\n{'b': 1, 'b': 1}\n" },
		{ "{'properties': {'a': {'type': 'integer'}}, 'additionalProperties': {'type': 'null'}}",
		  "{'a': 1, 'ab': null}\n{'b': null}\n", "{'\\u0061': null}\n{'b': 1}\n" },
		{ "{'required': ['c', 'a'], 'properties': {'a': {}}}", "{'a': 1, 'c': 1}\n", "{'c': 1, 'a': 1}\n" },
		{ "{'patternProperties': {'^x': {'type': 'integer'}, 'y$': {'minimum': 5}}, 'type': 'object'}",
		  "{'x': 1, 'xy': 5, 'y': 9, 'z': null}\n", "{'x': 'a'}\n{'xy': 4}\n{'y': 4}\n" },
		{ "{'propertyNames': {'maxLength': 2}, 'type': 'object'}", "{'ab': 1}\n{}\n", "{'abc': 1}\n" },
		{ "{'type': 'object', 'minProperties': 2, 'maxProperties': 3, 'properties': {'a': {}}}",
		  "{'a': 1, 'b': 1}\n{'b': 1, 'c': 1}\n", "{'a': 1}\n{'a': 1, 'b': 1, 'c': 1, 'd': 1}\n" },
		{ "{'dependentRequired': {'a': ['b']}, 'type': 'object'}", "{'b': 1}\n{'a': 1, 'b': 1}\n{}\n",
		  "{'a': 1}\n" },
		{ "{'type': 'object', 'properties': {'a': {}, 'b': {}, 'c': {}}, 'unevaluatedProperties': false}",
		  "{'a': 1}\n", "{'d': 1}\n" },
		{ "{'allOf': [{'properties': {'a': true}}], 'properties': {'b': true}, 'unevaluatedProperties': false}",
		  "{'a': 1, 'b': 2}\n", "{'c': 1}\n{'b': 1, 'a': 1}\n" },
	};
	static const struct sample closed[] = {
		{ "{'type': 'object', 'properties': {'a': true}}", "{}\n{'a': 1}\n", "{'b': 1}\n" },
		{ "{'type': 'object', 'properties': {'a': true}, 'additionalProperties': true}",
		  "{'b': 1}\n", "1\n" },
		{ "{'allOf': [{'properties': {'a': true}}, {'properties': {'b': true}}], 'type': 'object'}",
		  "{'a': 1, 'b': 1}\n", "{'c': 1}\n" },
		{ "{'type': 'object', 'properties': {}}", "{}\n{ }\n", "{'a': 1}\n" },
		{ "{'type': 'object', 'properties': {'a': true}, 'patternProperties': {'^x': true}}",
		  "{'x1': 1}\n", "{'y': 1}\n" },
	};

	(void)state;
	check_rows(ROWS(rows), true);
	check_rows(ROWS(closed), false);
}

static void arrays(void **state)
{
	static const struct sample rows[] = {
		{ "{'type': 'array', 'items': {'type': 'integer'}, 'minItems': 1, 'maxItems': 3}", "[1]\n[1, 2,3 ]\n",
		  "[]\n[1,2,3,4]\n['a']\n" },
		{ "{'type': 'array', 'prefixItems': [{'type': 'integer'}, {'type': 'string'}], 'items': false}",
		  "[]\n[1]\n[1, 'a']\n", "['a']\n[1, 'a', 1]\n" },
		{ "{'items': [{'type': 'integer'}], 'additionalItems': {'type': 'null'}, 'minItems': 2}",
		  "[1, null]\n[1, null, null]\n", "[1]\n[1, 1]\n" },
		{ "{'type': 'array', 'items': {'enum': [1, 2, 'a']}, 'uniqueItems': true, 'minItems': 2}",
		  "[1, 2]\n['a', 1, 2]\n", "[1]\n[1, 1]\n[1, 2, 1]\n[]\n" },
		{ "{'items': {'enum': [1, 1.0, true, 'a', 'a']}, 'uniqueItems': true}", "[1, true, 'a']\n",
		  "[1, 1.0]\n[1, 1]\n['a', 'a']\n" },
		{ "{'type': 'array', 'contains': {'type': 'integer'}}", "[1]\n['a', 1, 'b']\n", "[]\n['a']\n" },
		{ "{'type': 'array', 'contains': {'const': 1}, 'minContains': 2, 'maxContains': 3, 'maxItems': 4}",
		  "[1, 1]\n[2, 1, 1, 1]\n", "[1]\n[1, 1, 1, 1]\n[1, 2, 2, 2]\n[1, 1, 2, 2, 2]\n" },
		{ "{'items': {'enum': [1, 2]}, 'contains': {'const': 1}, 'minContains': 0, 'maxContains': 1}",
		  "[]\n[1]\n[2, 1, 2]\n", "[1, 1]\n[1, 2, 1]\n" },
		{ "{'type': 'array', 'not': {'items': {'type': 'integer'}}}", "[1, 'a']\n", "[]\n[1, 2]\n" },
		{ "{'type': 'array', 'minItems': 1000000000}", "", "[]\n[1]\n" },
	};

	(void)state;
	check_rows(ROWS(rows), true);
}

static void combinations(void **state)
{
	static const struct sample rows[] = {
		{ "{'anyOf': [{'type': 'string'}, {'minimum': 5}], 'type': ['string', 'integer']}", "'a'\n5\n",
		  "4\nnull\n" },
		{ "{'allOf': [{'minLength': 2}, {'maxLength': 2}], 'type': 'string'}", "'ab'\n", "'a'\n'abc'\n1\n" },
		{ "{'oneOf': [{'type': 'integer'}, {'minimum': 2}], 'type': 'number'}", "1\n2.5\n", "2\n1.5\n" },
		{ "{'type': 'object', 'oneOf': [{'required': ['a']}, {'required': ['b']}]}",
		  "{'a': 1}\n{'b': 1}\n{'a': 1, 'c': 1}\n", "{}\n{'a': 1, 'b': 1}\n{'b': 1, 'a': 1}\n" },
		{ "{'not': {'enum': ['a', 1]}}", "'b'\n2\nnull\n", "'a'\n'\\u0061'\n1\n1.0\n" },
		{ "{'not': {'type': 'object', 'required': ['a']}}", "1\n{'b': 1}\n", "{'a': 1}\n" },
		{ "{'not': {'type': 'object', 'properties': {'a': {'type': 'string'}}, 'additionalProperties': false}}",
		  "1\n{'a': 1}\n{'b': 1}\n", "{}\n{'a': ''}\n" },
		{ "{'if': {'properties': {'k': {'const': 1}}, 'required': ['k']}, 'then': {'required': ['v']},"
		  "'else': {'required': ['w']}, 'properties': {'k': {'type': 'integer'}}, 'type': 'object'}",
		  "{'k': 1, 'v': 1}\n{'k': 2, 'w': 1}\n{'w': 1}\n", "{'k': 1}\n{'k': 2}\n{'k': 1, 'w': 1}\n" },
		{ "{'$ref': '#/$defs/a', 'maxLength': 3, '$defs': {'a': {'type': 'string'}}}", "'abc'\n",
		  "'abcd'\n1\n" },
		{ "{'$schema': 'http://json-schema.org/draft-07/schema#', '$ref': '#/definitions/a', 'maxLength': 3,"
		  "'definitions': {'a': {'type': 'string'}}}",
		  "'abcd'\n", "1\n" },
		{ "{'type': 'object', 'properties': {'v': {'type': 'integer'}, 'kids': {'type': 'array',"
		  "'items': {'$ref': '#'}}}, 'required': ['v']}",
		  "{'v': 1}\n{'v': 1, 'kids': [{'v': 2, 'kids': []}]}\n",
		  "{'v': 1, 'kids': [1]}\n{'v': 1, 'kids': [{}]}\n" },
		{ "{'$id': 'http://a/b', '$ref': 'c#x', '$defs': {'c': {'$id': 'c', '$defs': {'y': {'$anchor': 'x',"
		  "'type': 'null'}}}}}",
		  "null\n", "1\n" },
	};

	(void)state;
	check_rows(ROWS(rows), true);
}

static void whitespace(void **state)
{
	struct sr_grammar_options none = { .size = sizeof(none), .disable_any_whitespace = true };
	struct sr_grammar_options one = { .size = sizeof(one), .whitespace_pattern = " ?" };

	(void)state;
	check("{'type': 'array', 'items': {'type': 'integer'}}", NULL, "[1,        2]\n[ ]\n",
	      "[1,         2]\n 1\n[1] \n");
	check("{'type': 'array', 'items': {'type': 'integer'}}", &none, "[1,2]\n[]\n", "[1, 2]\n[ ]\n");
	check("{'type': 'array', 'items': {'type': 'integer'}}", &one, "[1, 2]\n[ ]\n",
	      "[1,  2]\n[\t]\n");
	/* as the guidance library asks for it */
	check("{'properties': {'a': {'items': {'type': 'integer'}}}, 'required': ['a'], 'type': 'object',"
	      "'additionalProperties': false, 'x-guidance': {'whitespace_flexible': false, 'item_separator': ', ',"
	      "'key_separator': ': '}}", NULL, "{'a': [1, 2]}\n", "{'a':[1, 2]}\n{'a': [1,2]}\n{ 'a': []}\n");
	check("{'items': {}, 'type': 'array', 'x-guidance': {'whitespace_flexible': false}}", NULL, "[1,{'a':2}]\n",
	      "[1, 2]\n[{'a': 2}]\n");
	check("{'items': {}, 'type': 'array', 'x-guidance': {'whitespace_pattern': ' ?', 'item_separator': ',,'}}", NULL,
	      "[1, 2]\n[1,2]\n", "[1,  2]\n[\t]\n");
}

/* ---- refusals ---- */

static void refuse(const char *schema, int code, const char *message)
{
	struct sr_grammar *g;
	char err[1024], text[4096];
	uint64_t before = own_cpu_ns();
	int rc;

	schema = quotes(schema, text, sizeof(text));
	rc = sr_grammar_open(&g, bytes(), SR_GRAMMAR_JSON, schema, strlen(schema), NULL, err, sizeof(err));

	if (!rc)
		fail_msg("%s compiles", schema);
	if (!strstr(err, message))
		fail_msg("%.200s: %s", schema, err);
	assert_int_equal(rc, code);
	assert_true(own_cpu_ns() - before < 1000000000);
}

static void refusals(void **state)
{
	(void)state;
	refuse("{'properties': {'a': {'type': 'array', 'uniqueItems': true}}}", -ENOTSUP,
	       "The JSON schema uses \"uniqueItems\" at #/properties/a, which Slipring cannot enforce here.");
	refuse("{'properties': {'a/b': {'not': {'uniqueItems': true}}}}", -ENOTSUP,
	       "uses \"not\" at #/properties/a~1b,");
	refuse("{'unevaluatedProperties': false, 'anyOf': [{}]}", -ENOTSUP,
	       "uses \"unevaluatedProperties\" at #,");
	refuse("{'$ref': 'http://x/y'}", -ENOTSUP, "refers to \"http://x/y\", which is not in it");
	refuse("{'$ref': '#/a'}", -EINVAL, "refers to \"#/a\", which is not in it");
	refuse("{'$ref': '#'}", -EINVAL, "refers to itself without consuming anything");
	refuse("{'type': 'text'}", -EINVAL, "\"type\" of a JSON schema must be null, boolean");
	refuse("{'minLength': -1}", -EINVAL, "\"minLength\" of a JSON schema must be a whole number");
	refuse("{'multipleOf': 0}", -EINVAL, "must be greater than 0");
	refuse("{'pattern': '('}", -EINVAL, "\"pattern\" of the JSON schema at 1:");
	refuse("{'x-guidance': {'whitespace_flexible': false, 'item_separator': '; '}}", -EINVAL,
	       "x-guidance: item_separator must be ',' with nothing but whitespace around it.");
	refuse("{'allOf': []}", -EINVAL, "\"allOf\" of a JSON schema must not be empty");
	refuse("{'type': 'string', 'const': 1}", -EINVAL, "No value satisfies");
	refuse("{'properties': {'a': {'type': 'string', 'pattern': '^([a-z][0-9])+$', 'minLength': 10000}}}", -E2BIG,
	       "It takes too long to find out if any string, number or name of a property satisfies the JSON schema. "
	       "At #/properties/a");
	refuse("{'items': {'patternProperties': {'^([a-z][0-9])+$': {}}, 'additionalProperties': false,"
	       "'propertyNames': {'minLength': 10000}, 'type': 'object'}}",
	       -E2BIG, "It takes too long to find out if any string, number or name of a property satisfies the JSON "
	               "schema. At #/items");
	refuse("{'items': {'required': 3}}", -EINVAL,
	       "\"required\" of a JSON schema must be an array of names. At #/items");
	refuse("{'a': 1,}", -EINVAL, "");
	refuse("[]", -EINVAL, "must be an object or a boolean");
}

static void lenient(void **state)
{
	struct sr_grammar_options o = { .size = sizeof(o), .lenient = true };
	struct sr_grammar *g;
	char err[1024], schema[200];

	(void)state;
	quotes("{'type': 'array', 'items': {'type': 'integer'}, 'uniqueItems': true}", schema, sizeof(schema));
	assert_int_equal(
		sr_grammar_open(&g, bytes(), SR_GRAMMAR_JSON, schema, strlen(schema), &o, err, sizeof(err)), 0);
	assert_string_equal(err, "Ignored \"uniqueItems\" at #.");
	assert_true(takes(g, "[1, 1]"));
	sr_grammar_close(g);
}

/* ---- bombs: compiled or refused, within a second even under a sanitizer ---- */

static char *bomb(const char *head, const char *each, const char *between, int n, const char *tail)
{
	char *s = malloc(strlen(head) + (size_t)n * (strlen(each) + strlen(between) + 12) + strlen(tail) + 1),
		 *at = s;

	assert_non_null(s);
	at += sprintf(at, "%s", head);
	for (int i = 0; i < n; i++) {
		if (i)
			at += sprintf(at, "%s", between);
		for (const char *p = each; *p; p++)
			at += *p == '%' ? sprintf(at, "%d", i) : sprintf(at, "%c", *p);
	}
	sprintf(at, "%s", tail);
	return s;
}

static void defuse(char *schema)
{
	uint64_t before = own_cpu_ns();
	struct sr_grammar *g = NULL;
	char err[1024];

	quotes(schema, schema, strlen(schema) + 1);
	if (!sr_grammar_open(&g, bytes(), SR_GRAMMAR_JSON, schema, strlen(schema), NULL, err, sizeof(err)))
		sr_grammar_close(g);
	else
		assert_true(strlen(err) > 20);
	before = own_cpu_ns() - before;
	if (before > 1000000000)
		fail_msg("%.60s takes %.0f ms", schema, (double)before / 1e6);
	free(schema);
}

static void bombs(void **state)
{
	char *wide = bomb("{'type': 'object', 'dependentRequired': {", "'a%': ['b%']", ", ", 30, "}}");

	(void)state;
	refuse(wide, -E2BIG, "combinations of alternatives");
	free(wide);
	defuse(strdup("{'type': 'array', 'minItems': 1000000000, 'maxItems': 2000000000}"));
	defuse(strdup("{'type': 'string', 'maxLength': 1000000000}"));
	defuse(
		bomb("{'type': 'object', 'properties': {", "'p%': {'type': 'string'}", ", ", 2000, "}}"));
	defuse(bomb("{'enum': [", "'word %'", ", ", 5000, "]}"));
	defuse(bomb("{'anyOf': [", "{'properties': {'k%': {'const': %}}, 'required': ['k%']}", ", ",
	            1000, "]}"));
	defuse(bomb("{'oneOf': [",
	            "{'properties': {'k%': {'type': 'integer'}}, 'required': ['k%']}", ", ", 40,
	            "]}"));
	defuse(bomb("{'allOf': [",
	            "{'anyOf': [{'required': ['a%']}, {'required': ['b%']}, {'required': ['c%']}]}",
	            ", ", 12, "]}"));
	defuse(bomb("", "{'not': ", "", 100,
	            "{}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"
	            "}}}}}}}}}}"));
	defuse(bomb("{'$ref': '#/$defs/d0', '$defs': {'d300': {}, ",
	            "'d%': {'$ref': '#/$defs/d300'}", ", ", 300, "}}"));
	defuse(bomb("{'type': 'object', 'dependentRequired': {", "'a%': ['b%']", ", ", 30, "}}"));
	defuse(bomb("{'type': 'array', 'contains': {}, 'allOf': [",
	            "{'contains': {'const': %}, 'maxContains': 9}", ", ", 8, "]}"));
	defuse(bomb("{'type': 'object', 'patternProperties': {", "'(a|b)*%': {'minimum': %}", ", ", 16,
	            "}}"));
	defuse(bomb("{'allOf': [", "{'multipleOf': 9%}", ", ", 10, "]}"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(types),      cmocka_unit_test(numbers),  cmocka_unit_test(strings),
		cmocka_unit_test(objects),    cmocka_unit_test(arrays),   cmocka_unit_test(combinations),
		cmocka_unit_test(whitespace), cmocka_unit_test(refusals), cmocka_unit_test(lenient),
		cmocka_unit_test(bombs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
