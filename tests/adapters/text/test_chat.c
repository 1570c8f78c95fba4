/* LINK: @text @ask adapters/http/json/number.c -ljansson -lpcre2-8 -lcrypto */
/* test_chat.c - messages to a prompt, as a table: what a template gets of them, and what is refused.  Each case
 * goes both ways: as a request to slipring-http, and through sr_text_chat() as from the chat tool, the benchmark
 * and Python.  The prompts, or the sentences that refuse them, are the same. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "adapters/http/json/openai.h"
#include "adapters/text/text.h"

#define PLAIN "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}{{ '>' if add_generation_prompt }}"
#define DUMP  "{{ messages | tojson }}"
#define PARTS "{% for m in messages %}[{% for c in m.content %}{{ c if c is string else c.type ~ ':' ~ c.text ~ ';' }}" \
              "{% endfor %}]{% endfor %}"
#define TRIM  "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
#define MORE  "{{ tools }}{{ documents }}{{ reasoning_effort | default('-') }}{{ enable_thinking | default('-') }}" \
              "{{ x | default('-') }}"

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define FINAL(content, more) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}," \
	"{\"role\":\"assistant\",\"content\":" content "}],\"continue_final_message\":true" more "}"
#define CALL(arguments) "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\"," \
	"\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]}]}"
#define CALLED(arguments) "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"1\", " \
	"\"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}]"

static const struct { const char *source, *chat, *want, *refused; } cases[] = {
	{ PLAIN, "{" USER "}", "[user|hi]>", NULL },
	{ PLAIN, "{" USER ",\"add_generation_prompt\":false}", "[user|hi]", NULL },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":null},{\"role\":\"user\"}]}", "[user|][user|]>", NULL },
	{ PLAIN, "{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}", "[system|x]>", NULL },
	{ PLAIN "{# developer #}", "{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}", "[developer|x]>", NULL },
	/* content */
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\","
	  "{\"type\":\"input_text\",\"text\":\"c\"},{\"type\":\"output_text\",\"text\":\"d\"},"
	  "{\"type\":\"refusal\",\"refusal\":\"e\"},{\"text\":\"f\"}]}]}", "[user|a\nb\nc\nd\ne\nf]>", NULL },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "[user|]>", NULL },
	{ PARTS, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[\"b\",\"c\"]},"
	  "{\"role\":\"user\",\"content\":null}]}", "[text:a;][text:b;text:c;][]", NULL },
	{ PARTS, "{\"messages\":[{\"role\":\"tool\",\"content\":[\"b\",\"c\"]}]}", "[b\nc]", NULL },
	{ "{% for m in messages %}{%- for c in m['content'] -%}{{ c.text }}{% endfor %}{% endfor %}", "{" USER "}", "hi", NULL },
	{ "{% for m in messages %}{{ m.content }}{{ 'hi' in m.content }}{% endfor %}", "{" USER "}", "hiTrue", NULL },
	/* the other members of a message */
	{ DUMP, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":\"n\",\"tool_call_id\":\"t\",\"other\":1}]}",
	  "[{\"role\": \"user\", \"content\": \"a\", \"name\": \"n\", \"tool_call_id\": \"t\"}]", NULL },
	{ DUMP, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":null,\"reasoning_content\":\"r\"}]}",
	  "[{\"role\": \"user\", \"content\": \"a\", \"reasoning\": \"r\", \"reasoning_content\": \"r\"}]", NULL },
	{ DUMP, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"reasoning\":\"r\",\"reasoning_content\":\"s\"}]}",
	  "[{\"role\": \"user\", \"content\": \"a\", \"reasoning\": \"r\", \"reasoning_content\": \"r\"}]", NULL },
	{ DUMP, CALL("\"{\\\"a\\\": [1, 18446744073709551615]}\""), CALLED("{\"a\": [1, 1.8446744073709552e+19]}"), NULL },
	{ DUMP, CALL("\"\""), CALLED("{}"), NULL },
	{ DUMP, CALL("{\"a\":1}"), CALLED("{\"a\": 1}"), NULL },
	{ DUMP, CALL("\"{\""), NULL, "messages[0].tool_calls[0].function.arguments is not valid JSON." },
	/* what else a template reads */
	{ MORE, "{" USER "}", "NoneNone---", NULL },
	{ MORE, "{" USER ",\"documents\":[{\"t\":1}],\"reasoning_effort\":\"low\"}", "None[{'t': 1}]lowTrue-", NULL },
	{ MORE, "{" USER ",\"reasoning_effort\":\"none\"}", "NoneNonenoneFalse-", NULL },
	{ MORE, "{" USER ",\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{\"enable_thinking\":true,\"x\":\"y\","
	  "\"tools\":[1],\"messages\":[]}}", "NoneNonenoneTruey", NULL },
	{ MORE, "{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
	  "[{'type': 'function', 'function': {'name': 'f'}}]None---", NULL },
	{ "{{ bos_token }}|{{ eos_token }}", "{" USER "}", "|", NULL },
	{ "{{ bos_token }}", "{" USER ",\"chat_template_kwargs\":{\"bos_token\":\"B\"}}", "B", NULL },
	/* the last message goes on */
	{ PLAIN, FINAL("\"Well, \"", ""), "[user|hi][assistant|Well, ", NULL },
	{ "{{ add_generation_prompt }}" PLAIN, FINAL("\"a\"", ""), "False[user|hi][assistant|a", NULL },
	{ TRIM, FINAL("\"Well, \"", ",\"add_generation_prompt\":false"), "[hi][Well,", NULL },
	{ PLAIN, FINAL("[\"a\",\"b\"]", ""), "[user|hi][assistant|a\nb", NULL },
	{ PARTS, FINAL("[\"a\",\"b\"]", ""), "[text:hi;][text:a;text:b", NULL },
	{ PLAIN, FINAL("null", ""), "[user|hi][assistant|", NULL },
	{ PARTS, FINAL("[]", ""), NULL, "the final message has no content to continue." },
	{ "x", FINAL("\"a\"", ""), NULL, "the chat template does not show the final message." },
	{ PLAIN, FINAL("\"a\"", ",\"add_generation_prompt\":true"), NULL, "Cannot set both" },
	/* shapes */
	{ PLAIN, "{\"messages\":[]}", NULL, "Cannot apply chat template to an empty conversation." },
	{ PLAIN, "{\"messages\":\"hi\"}", NULL, "messages must be a list, not a string." },
	{ PLAIN, "{\"messages\":7}", NULL, "messages must be a list, not a number." },
	{ PLAIN, "{\"messages\":[7]}", NULL, "messages[0] must be an object, not a number." },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\"},{}]}", NULL, "messages[1].role is required." },
	{ PLAIN, "{\"messages\":[{\"role\":1}]}", NULL, "messages[0].role must be a string." },
	{ PLAIN, "{\"messages\":[{\"role\":\"12345678901234567890123456789012345678901234567890123456789012345\"}]}", NULL,
	  "messages[0].role is longer than 64 bytes." },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":1}]}", NULL,
	  "messages[0].content must be a string or a list of parts, not a number." },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":[\"a\",1]}]}", NULL,
	  "messages[0].content[1] must be an object with a `type`." },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", NULL,
	  "messages[0].content[0] must have a string `text`." },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"refusal\"}]}]}", NULL,
	  "messages[0].content[0] must have a string `refusal`." },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", NULL,
	  "messages[0].content[0] is of type `image_url`" },
	{ PLAIN, "{\"messages\":[{\"role\":\"user\",\"tool_calls\":1}]}", NULL, "messages[0].tool_calls must be a list." },
	{ PLAIN, "{" USER ",\"documents\":1}", NULL, "documents must be a list of objects." },
	{ PLAIN, "{" USER ",\"documents\":[1]}", NULL, "documents[0] must be an object, not a number." },
	{ PLAIN, "{" USER ",\"chat_template_kwargs\":1}", NULL, "chat_template_kwargs must be an object." },
	{ PLAIN, "{" USER ",\"reasoning_effort\":\"much\"}", NULL, "reasoning_effort must be none, minimal, low, " },
	{ PLAIN, "{" USER ",\"reasoning_effort\":1}", NULL, "reasoning_effort must be a string" },
	{ PLAIN, "{" USER ",\"documents\":[{}]}", NULL, "does not use `documents`" },
	{ "{{ raise_exception('never so') }}", "{" USER "}", NULL, "never so" },
};

/* As slipring-http makes the prompt of a request to /v1/chat/completions. */
static char *by_request(const struct sr_text *t, const char *source, const char *chat, char *why, size_t n_why)
{
	static const char *const names[] = { "m" };
	static struct calls *calls;
	struct ask_limits l = { .text = t, .names = names, .n_names = 1, .stream_interval = 1,
	                        .defaults = { 1, 1, 0, 1, 0, -1, -1, "" } };
	struct chat_template *own = NULL;
	struct problem p;
	char *prompt = NULL;
	struct ask a;
	int r;

	if (!calls)
		assert_int_equal(calls_open(&calls, "hermes", "none", NULL, NULL, why, n_why), 0);
	l.calls = calls;
	assert_int_equal(chat_template_open(&own, source, why, n_why), 0);
	l.chat = own;
	r = ask_parse(&a, ASK_CHAT, chat, strlen(chat), &l, &p);
	if (!r)
		r = ask_render(&a, &l, &p);
	if (r)
		snprintf(why, n_why, "%s", p.message);
	else
		prompt = strdup(a.prompt[0].text);
	ask_free(&a);
	chat_template_close(own);
	return prompt;
}

static void both_ways(void **state)
{
	const struct sr_text t = { .info = { .bos = -1, .eos = -1 } };
	char why[2][800], *text;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *want = cases[i].want, *refused = cases[i].refused;
		char *prompt = by_request(&t, cases[i].source, cases[i].chat, why[0], sizeof(why[0]));
		int64_t n = sr_text_chat(&t, cases[i].source, cases[i].chat, &text, why[1], sizeof(why[1]));

		if (want && (!prompt || n < 0 || strcmp(prompt, want) || strcmp(text, want)))
			fail_msg("%s:\n  %s\n  by HTTP %s\n  from C  %s", cases[i].source, cases[i].chat,
			         prompt ? prompt : why[0], n < 0 ? why[1] : text);
		if (refused && (prompt || n != -EINVAL || !strstr(why[0], refused) || !strstr(why[1], refused)))
			fail_msg("%s:\n  by HTTP %s\n  from C  %s", cases[i].chat, prompt ? prompt : why[0],
			         n < 0 ? why[1] : text);
		free(prompt);
		if (n >= 0)
			free(text);
	}
}

/* Members of a context that are no field of a chat are variables; those of chat_template_kwargs win. */
static void variables(void **state)
{
	const struct sr_text t = { .info = { .bos = -1, .eos = -1 } };
	char why[200], *text;

	(void)state;
	assert_int_equal(sr_text_chat(&t, "{{ a }}{{ b }}", "{" USER ",\"a\":1,\"b\":2,\"chat_template_kwargs\":{\"b\":3}}",
	                              &text, why, sizeof(why)), 2);
	assert_string_equal(text, "13");
	free(text);
}

/* --chat-template-content-format decides for any template. */
static void content_format(void **state)
{
	const struct sr_text t = { .info = { .bos = -1, .eos = -1 } };
	static const struct { enum chat_content content; const char *source, *want; } formats[] = {
		{ CHAT_CONTENT_AUTO, TRIM, "[hi]" }, { CHAT_CONTENT_TEXT, PARTS, "[hi]" },
		{ CHAT_CONTENT_PARTS, "{{ messages[0].content }}", "[{'type': 'text', 'text': 'hi'}]" },
	};
	json_t *object = json_loads("{" USER "}", 0, NULL);
	struct chat_error e;
	char why[200], *text;

	(void)state;
	for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
		struct chat_input c = { .content = formats[i].content };
		struct chat_template *own;

		assert_int_equal(chat_template_open(&own, formats[i].source, why, sizeof(why)), 0);
		c.own = own;
		assert_int_equal(chat_read_messages(&c, json_object_get(object, "messages"), &e), 0);
		assert_true(chat_prompt(&t, &c, &text, &e) > 0);
		assert_string_equal(text, formats[i].want);
		free(text);
		chat_free(&c);
		chat_template_close(own);
	}
	json_decref(object);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_ways), cmocka_unit_test(variables), cmocka_unit_test(content_format),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
