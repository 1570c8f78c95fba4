/* LINK: @ask adapters/http/json/number.c adapters/http/json/prompts.c -ljansson */
/* test_openai.c - requests: a table of refusals and their words; what is accepted; what is kept
 * of it. */
#include <errno.h>

#include "adapters/text/text_json.h"
#include "tests/rig/openai_rig.h"

#define F ",\"tools\":[{\"function\":{\"name\":\"f\"}}]"

/* ---- requests ---- */

#define BAD "BadRequestError"
#define FIELD "Bad Request"

static const struct refusal {
	enum ask_kind kind;
	const char *body;
	int status;
	const char *type, *param, *message;  /* message: a part of it */
} refusals[] = {
	/* not a JSON object */
	{ ASK_COMPLETION, "", 400, FIELD, "body", "no body" },
	{ ASK_COMPLETION, "{\"prompt\": ", 400, FIELD, "body.11", "not valid JSON" },
	{ ASK_COMPLETION, "[1]", 400, FIELD, "body", "not a list" },
	{ ASK_COMPLETION, "7", 400, FIELD, "body", "not a single value" },
	{ ASK_COMPLETION, "{" P "," P "}", 400, FIELD, NULL, "duplicate" },
	{ ASK_COMPLETION, "{\"prompt\":\"\\ud800\"}", 400, FIELD, NULL, "not valid JSON" },
	{ ASK_COMPLETION, "{\"prompt\":\"\xff\"}", 400, FIELD, NULL, "unable to decode byte 0xff" },
	{ ASK_COMPLETION, "{" P ",\"\\u0000\":1}", 400, FIELD, NULL, "NUL" },
	{ ASK_COMPLETION, "{" P ",\"model\":\"m\\u0000\"}", 400, FIELD, "body.model", "NUL" },
	{ ASK_COMPLETION, "{" P ",\"max_tokens\":99999999999999999999}", 400, FIELD, "body.max_tokens", "an integer" },
	{ ASK_COMPLETION, "{" P ",\"seed\":-9223372036854775809}", 400, FIELD, "body.seed", "an integer" },
	{ ASK_COMPLETION, "{" P ",\"temperature\":1e999}", 400, FIELD, NULL, "real number overflow" },
	{ ASK_COMPLETION, "{" P ",\"x\":99999999999999999999x}", 400, FIELD, NULL, "not valid JSON" },
	{ ASK_COMPLETION, "{" P ",\"temperature\":1e999}", 400, FIELD, NULL, "not valid JSON" },
	{ ASK_COMPLETION, "{" P ",\"temperature\":NaN}", 400, FIELD, NULL, "not valid JSON" },
	/* model */
	{ ASK_COMPLETION, "{" P ",\"model\":\"no\"}", 404, "NotFoundError", "model",
	  "The model `no` does not exist. Valid aliases: m, also." },
	{ ASK_COMPLETION, "{" P ",\"model\":\"../../etc/passwd\"}", 404, "NotFoundError", "model", "passwd" },
	{ ASK_COMPLETION, "{" P ",\"model\":1}", 400, FIELD, "body.model", "a string" },
	/* prompt */
	{ ASK_COMPLETION, "{}", 400, BAD, "prompt",
	  "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)" },
	{ ASK_COMPLETION, "{\"prompt\":\"\"}", 400, BAD, "prompt", "non-empty" },
	{ ASK_COMPLETION, "{\"prompt\":null}", 400, BAD, "prompt", "non-empty" },
	{ ASK_COMPLETION, "{\"prompt\":[]}", 400, BAD, NULL, "You must pass at least one prompt" },
	{ ASK_COMPLETION, "{\"prompt\":{\"a\":1}}", 400, FIELD, "body.prompt", "not an object" },
	{ ASK_COMPLETION, "{\"prompt\":[1,\"a\"]}", 400, FIELD, "body.prompt.1", "an integer" },
	{ ASK_COMPLETION, "{\"prompt\":[\"a\",1]}", 400, FIELD, "body.prompt.1", "entry 1" },
	{ ASK_COMPLETION, "{\"prompt\":[[1],[]]}", 400, BAD, NULL, "cannot be empty" },
	{ ASK_COMPLETION, "{\"prompt\":[1000]}", 400, BAD, NULL, "Token id 1000 is out of vocabulary" },
	{ ASK_COMPLETION, "{\"prompt\":[[1],[2,5000000000]]}", 400, BAD, NULL, "Token id 5000000000 is out" },
	{ ASK_COMPLETION, "{\"prompt\":[-1]}", 400, FIELD, "body.prompt.0", "negative" },
	{ ASK_COMPLETION, "{\"prompt\":\"0123456789012345678901234567890123456789012345678901234567890123456\"}",
	  400, BAD, "input_tokens", "maximum context length is 64 tokens. However, your prompt contains at least 65" },
	{ ASK_COMPLETION, "{\"prompt\":\"0123456789012345678901234567890123456789012345678901234567890123\"}",
	  400, BAD, NULL, "plus the number of requested output tokens (at least 1)" },
	{ ASK_COMPLETION, "{" P ",\"prompt_embeds\":\"AA\"}", 400, BAD, "prompt_embeds", "not supported" },
	{ ASK_COMPLETION, "{" P ",\"suffix\":\"x\"}", 400, BAD, "suffix", "suffix is only supported" },
	{ ASK_COMPLETION, "{" P ",\"truncate_prompt_tokens\":-2}", 400, FIELD, "body.truncate_prompt_tokens", "-1" },
	{ ASK_COMPLETION, "{" P ",\"truncate_prompt_tokens\":65}", 400, BAD, "truncate_prompt_tokens", "smaller" },
	{ ASK_COMPLETION, "{" P ",\"truncation_side\":\"up\"}", 400, FIELD, "body.truncation_side", "left" },
	/* numbers: the words are vLLM's */
	{ ASK_COMPLETION, "{" P ",\"temperature\":-1}", 400, BAD, "temperature",
	  "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)" },
	{ ASK_COMPLETION, "{" P ",\"temperature\":2.5}", 400, BAD, "temperature", "must be in [0, 2], got 2.5." },
	{ ASK_COMPLETION, "{" P ",\"temperature\":\"hot\"}", 400, FIELD, "body.temperature", "a number" },
	{ ASK_COMPLETION, "{" P ",\"temperature\":[1]}", 400, FIELD, "body.temperature", "not a list" },
	{ ASK_COMPLETION, "{" P ",\"top_p\":1.5}", 400, BAD, "top_p",
	  "top_p must be in (0, 1], got 1.5. (parameter=top_p, value=1.5)" },
	{ ASK_COMPLETION, "{" P ",\"top_p\":0}", 400, BAD, "top_p", "got 0.0." },
	{ ASK_COMPLETION, "{" P ",\"top_k\":-2}", 400, BAD, NULL, "top_k must be 0 (disable), or at least 1, got -2." },
	{ ASK_COMPLETION, "{" P ",\"top_k\":1.5}", 400, FIELD, "body.top_k", "an integer" },
	{ ASK_COMPLETION, "{" P ",\"min_p\":2}", 400, BAD, NULL, "min_p must be in [0, 1], got 2.0." },
	{ ASK_COMPLETION, "{" P ",\"presence_penalty\":3}", 400, BAD, NULL,
	  "presence_penalty must be in [-2, 2], got 3.0." },
	{ ASK_COMPLETION, "{" P ",\"frequency_penalty\":-3}", 400, BAD, NULL, "frequency_penalty must be" },
	{ ASK_COMPLETION, "{" P ",\"repetition_penalty\":0}", 400, BAD, NULL, "greater than zero, got 0.0." },
	{ ASK_COMPLETION, "{" P ",\"repetition_penalty\":1e-300}", 400, BAD, NULL, "single precision" },
	{ ASK_COMPLETION, "{" P ",\"repetition_penalty\":1e20}", 400, BAD, NULL, "at most 1000000" },
	{ ASK_CHAT, "{" M ",\"min_tokens\":60}", 400, BAD, NULL, "less than or equal to max_tokens=55, got 60" },
	{ ASK_CHAT, "{" M ",\"echo\":null}", 400, FIELD, "body.echo", "a bool" },
	{ ASK_CHAT, "{" M ",\"top_logprobs\":true}", 400, BAD, "top_logprobs", "must be set to true" },
	{ ASK_CHAT, "{" M ",\"reasoning_effort\":\"x\"}", 400, FIELD, "body.reasoning_effort", "medium" },
	{ ASK_CHAT, "{" M ",\"documents\":[1]}", 400, FIELD, "body.documents.0", "an object" },
	{ ASK_CHAT, "{\"messages\":null}", 400, BAD, NULL, "must be a list" },
	{ ASK_COMPLETION, "{" P ",\"suffix\":1}", 400, FIELD, "body.suffix", "a string" },
	{ ASK_COMPLETION, "{" P ",\"n\":0}", 400, BAD, NULL, "n must be at least 1, got 0." },
	{ ASK_COMPLETION, "{" P ",\"n\":null}", 400, FIELD, "body.n", "an integer" },
	{ ASK_COMPLETION, "{" P ",\"n\":1025}", 400, BAD, NULL, "n must be at most 1024" },
	{ ASK_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":600}", 400, BAD, NULL, "at most 512 for 2 prompts" },
	{ ASK_COMPLETION, "{" P ",\"n\":2,\"temperature\":0}", 400, BAD, NULL,
	  "n must be 1 when using greedy sampling, got 2." },
	{ ASK_COMPLETION, "{" P ",\"max_tokens\":0}", 400, BAD, "max_tokens", "at least 1, got 0." },
	{ ASK_COMPLETION, "{" P ",\"max_tokens\":-1}", 400, BAD, "max_tokens",
	  "max_tokens must be at least 1, got -1. (parameter=max_tokens, value=-1)" },
	{ ASK_COMPLETION, "{" P ",\"max_tokens\":65}", 400, BAD, "max_tokens",
	  "max_tokens=65 cannot be greater than max_model_len=64. Please request fewer output tokens." },
	{ ASK_CHAT, "{" M ",\"max_completion_tokens\":65}", 400, BAD, "max_completion_tokens", "=65 cannot" },
	{ ASK_COMPLETION, "{" P ",\"min_tokens\":17}", 400, BAD, NULL, "less than or equal to max_tokens=16, got 17" },
	{ ASK_COMPLETION, "{" P ",\"min_tokens\":-1}", 400, BAD, NULL, "min_tokens must be" },
	{ ASK_COMPLETION, "{" P ",\"seed\":1.5}", 400, FIELD, "body.seed", "an integer" },
	{ ASK_COMPLETION, "{" P ",\"stream\":\"maybe\"}", 400, FIELD, "body.stream", "a bool" },
	{ ASK_COMPLETION, "{" P ",\"stream_interval\":0}", 400, FIELD, "body.stream_interval", "at least 1" },
	{ ASK_COMPLETION, "{" P ",\"priority\":1}", 400, BAD, "priority", "priority scheduling is not enabled" },
	/* log-probabilities */
	{ ASK_COMPLETION, "{" P ",\"logprobs\":1000}", 400, BAD, "logprobs",
	  "Requested sample logprobs of 1000, which is greater than max allowed: 20 (parameter=logprobs, value=1000)" },
	{ ASK_COMPLETION, "{" P ",\"logprobs\":-1}", 400, BAD, "logprobs", "sample logprobs of 1000" },
	{ ASK_COMPLETION, "{" P ",\"logprobs\":-2}", 400, BAD, "logprobs", "`logprobs` must be a positive value or -1." },
	{ ASK_COMPLETION, "{" P ",\"logprobs\":\"2\"}", 400, BAD, "logprobs", "`logprobs` must be an integer." },
	{ ASK_COMPLETION, "{" P ",\"logprobs\":1000000000}", 400, BAD, "logprobs", "1000000000" },
	{ ASK_COMPLETION, "{" P ",\"prompt_logprobs\":21}", 400, BAD, "prompt_logprobs", "prompt logprobs of 21" },
	{ ASK_COMPLETION, "{" P ",\"prompt_logprobs\":1,\"stream\":true}", 400, BAD, "prompt_logprobs",
	  "not available when `stream=True`" },
	{ ASK_CHAT, "{" M ",\"top_logprobs\":2}", 400, BAD, "top_logprobs",
	  "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)" },
	{ ASK_CHAT, "{" M ",\"logprobs\":true,\"top_logprobs\":50}", 400, BAD, "logprobs", "logprobs of 50" },
	{ ASK_COMPLETION, "{" P ",\"stream_options\":{\"include_usage\":true}}", 400, BAD, "stream_options",
	  "Stream options can only be defined when `stream=True`. (parameter=stream_options)" },
	{ ASK_COMPLETION, "{" P ",\"stream\":true,\"stream_options\":[1]}", 400, FIELD, "body.stream_options", "object" },
	/* lists */
	{ ASK_COMPLETION, "{" P ",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}", 400, FIELD, "body.stop", "at most 4" },
	{ ASK_COMPLETION, "{" P ",\"stop\":[\"\"]}", 400, BAD, NULL, "stop cannot contain an empty string." },
	{ ASK_COMPLETION, "{" P ",\"stop\":[1]}", 400, FIELD, "body.stop", "a string" },
	{ ASK_COMPLETION, "{" P ",\"stop\":7}", 400, FIELD, "body.stop", "a string or a list" },
	{ ASK_COMPLETION, "{" P ",\"stop_token_ids\":[1000]}", 400, BAD, "stop_token_ids",
	  "token_id(s) [1000] in stop_token_ids contain out-of-vocab token ids. Vocabulary size: 1000" },
	{ ASK_COMPLETION, "{" P ",\"stop_token_ids\":[\"x\"]}", 400, FIELD, "body.stop_token_ids.0", "an integer" },
	{ ASK_COMPLETION, "{" P ",\"logit_bias\":{\"1000\":1}}", 400, BAD, "logit_bias",
	  "token_id(s) [1000] in logit_bias contain out-of-vocab token ids. Vocabulary size: 1000" },
	{ ASK_COMPLETION, "{" P ",\"logit_bias\":{\"x\":1}}", 400, BAD, "logit_bias", "cannot be converted" },
	{ ASK_COMPLETION, "{" P ",\"logit_bias\":{\"1\":\"x\"}}", 400, FIELD, "body.logit_bias.1", "a number" },
	{ ASK_COMPLETION, "{" P ",\"allowed_token_ids\":[]}", 400, BAD, "allowed_token_ids", "empty" },
	{ ASK_COMPLETION, "{" P ",\"allowed_token_ids\":[1000]}", 400, BAD, "allowed_token_ids", "out-of-vocab" },
	{ ASK_COMPLETION, "{" P ",\"bad_words\":[\"\"]}", 400, BAD, NULL, "empty string" },
	{ ASK_COMPLETION, "{" P ",\"bad_words\":[\" \"]}", 400, BAD, "bad_words", "tokenize to at least one token" },
	{ ASK_COMPLETION, "{" P ",\"bad_words\":\"x\"}", 400, FIELD, "body.bad_words", "a list" },
	{ ASK_COMPLETION, "{" P ",\"cache_salt\":\"\"}", 400, BAD, "cache_salt", "non-empty string" },
	{ ASK_COMPLETION, "{" P ",\"cache_salt\":\"a/b\"}", 400, BAD, "cache_salt", "must not contain" },
	{ ASK_COMPLETION, "{" P ",\"request_id\":\"a\\r\\nb\"}", 400, BAD, "request_id", "printable" },
	/* refused by name */
	{ ASK_COMPLETION, "{" P ",\"use_beam_search\":true}", 400, BAD, "use_beam_search", "Beam search" },
	{ ASK_COMPLETION, "{" P ",\"best_of\":2}", 400, BAD, "best_of", "not supported" },
	{ ASK_COMPLETION, "{" P ",\"thinking_token_budget\":2}", 400, BAD, "thinking_token_budget", "/v1/completions" },
	{ ASK_COMPLETION, "{" P ",\"thinking_token_budget\":-2}", 400, BAD, "thinking_token_budget", "or -1" },
	{ ASK_CHAT, "{" M ",\"thinking_token_budget\":2}", 400, BAD, "thinking_token_budget", "no --reasoning-parser" },
	/* structured output */
	{ ASK_CHAT, "{" M ",\"response_format\":\"text\"}", 400, FIELD, "body.response_format", "an object" },
	{ ASK_CHAT, "{" M ",\"response_format\":{}}", 400, FIELD, "body.response_format.type", "a `type`" },
	{ ASK_CHAT, "{" M ",\"response_format\":{\"type\":\"xml\"}}", 400, FIELD, "body.response_format.type", "not 'xml'" },
	{ ASK_CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\"}}", 400, BAD, "response_format",
	  "When response_format type is 'json_schema', the 'json_schema' field must be provided. "
	  "(parameter=response_format)" },
	{ ASK_CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", 400, FIELD,
	  "body.response_format.json_schema.name", "a `name`" },
	{ ASK_CHAT, "{" M ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":[]}}}",
	  400, FIELD, "body.response_format.json_schema.schema", "must be an object, not a list" },
	{ ASK_CHAT, "{" M ",\"response_format\":{\"type\":\"structural_tag\"}}", 400, BAD, "response_format",
	  "Invalid response_format structural_tag specification. (parameter=response_format)" },
	{ ASK_COMPLETION, "{" P ",\"structured_outputs\":\"json\"}", 400, FIELD, "body.structured_outputs", "an object" },
	{ ASK_COMPLETION, "{" P ",\"structured_outputs\":{\"json\":{},\"choice\":[\"a\"]}}", 400, BAD, "structured_outputs",
	  "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice'). "
	  "(parameter=structured_outputs)" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"json\":{},\"regex\":\"a\"}}", 400, BAD, NULL,
	  "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')." },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"grammar\":\"x\",\"choice\":[\"a\"]}}", 400, BAD, NULL,
	  "You can only use one kind of structured outputs constraint but multiple are specified: choice, grammar" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"regex\":\"x\"},\"response_format\":{\"type\":\"json_object\"}}", 400, BAD,
	  NULL, "multiple are specified: regex, json_object" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"misspelt\":1}}", 400, BAD, NULL,
	  "You must use one kind of structured outputs constraint but none are specified: " },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"regex\":\"a\"},\"tools\":[{\"function\":{\"name\":\"f\"}}],"
	  "\"tool_choice\":{\"function\":{\"name\":\"f\"}}}", 400, BAD, NULL,
	  "You can only either use constraints for structured outputs or tools, not both." },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"choice\":[]}}", 400, BAD, NULL, "Choice '[]' cannot be an empty list" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"choice\":[1]}}", 400, FIELD, "body.structured_outputs.choice.0",
	  "a string" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"regex\":1}}", 400, FIELD, "body.structured_outputs.regex", "a string" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"grammar\":\"\"}}", 400, BAD, NULL,
	  "structured_outputs.grammar cannot be an empty string" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"json\":\"\"}}", 400, BAD, NULL,
	  "structured_outputs.json cannot be an empty string" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"json\":\"{\"}}", 400, BAD, NULL, "Invalid JSON grammar specification." },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"json_object\":false}}", 400, BAD, NULL,
	  "structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"regex\":\"a\\u0000\"}}", 400, BAD, NULL,
	  "structured_outputs.regex must not contain a NUL character ('\\x00')" },
	{ ASK_CHAT, "{" M ",\"structured_outputs\":{\"structural_tag\":\"nothing\"}}", 400, BAD, "structured_outputs",
	  "Invalid structured_outputs structural_tag specification. (parameter=structured_outputs)" },
	{ ASK_CHAT, "{" M ",\"n\":2,\"temperature\":0,\"structured_outputs\":{\"regex\":\"a\"}}", 400, BAD, NULL,
	  "n must be 1 when using greedy sampling, got 2." },
	{ ASK_COMPLETION, "{" P ",\"guided_json\":{},\"guided_regex\":\"a\"}", 400, BAD, "structured_outputs", "one kind" },
	{ ASK_CHAT, "{" M ",\"tool_choice\":\"auto\"}", 400, BAD, "tool_choice", "`tools` must be set" },
	{ ASK_CHAT, "{" M ",\"tools\":[]}", 400, BAD, "tools", "must not be an empty array" },
	{ ASK_CHAT, "{" M ",\"tools\":[{\"function\":{\"name\":\"f\"}}]}", 400, BAD, "tools", "does not use `tools`" },
	{ ASK_TOKENIZE, "{" M ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"auto\"}", 400, BAD,
	  "tools", "does not use `tools`" },
	{ ASK_CHAT, "{" M ",\"tools\":[{\"type\":\"function\"}]}", 400, FIELD, "body.tools.0.function", "tools[0]" },
	{ ASK_CHAT, "{" M F ",\"tool_choice\":\"any\"}", 400, BAD, "tool_choice", "Invalid value for `tool_choice`: any! "
	  "Only named tools, \"none\", \"auto\" or \"required\" are supported. (parameter=tool_choice)" },
	{ ASK_CHAT, "{" M F ",\"tool_choice\":3}", 400, BAD, "tool_choice", "Invalid value for `tool_choice`: 3!" },
	{ ASK_CHAT, "{" M F ",\"tool_choice\":{}}", 400, BAD, "tool_choice.function", "Invalid value for `function`" },
	{ ASK_CHAT, "{" M F ",\"tool_choice\":{\"function\":{}}}", 400, BAD, "tool_choice.function.name",
	  "Expected field `name` in `function` in `tool_choice`! Correct usage: `{\"type\": \"function\", \"function\": "
	  "{\"name\": \"my_function\"}}` (parameter=tool_choice.function.name)" },
	{ ASK_CHAT, "{" M F ",\"tool_choice\":{\"function\":{\"name\":\"\"}}}", 400, BAD, "tool_choice.function.name",
	  "Invalid `name` in `function`: `` in `tool_choice`!" },
	{ ASK_CHAT, "{" M F ",\"tool_choice\":{\"function\":{\"name\":\"g\"}}}", 400, BAD, "tool_choice",
	  "does not match any of the specified `tools` (parameter=tool_choice)" },
	{ ASK_CHAT, "{" M F ",\"parallel_tool_calls\":[]}", 400, FIELD, "body.parallel_tool_calls", "must be a bool" },
	{ ASK_CHAT, "{" M ",\"chat_template\":\"x\"}", 400, BAD, NULL, "--trust-request-chat-template is not set" },
	/* messages */
	{ ASK_CHAT, "{}", 400, FIELD, "body.messages", "required" },
	{ ASK_CHAT, "{\"messages\":[]}", 400, BAD, NULL,
	  "Cannot apply chat template to an empty conversation. Provide at least one message." },
	{ ASK_CHAT, "{\"messages\":\"hi\"}", 400, FIELD, "body.messages", "a list" },
	{ ASK_CHAT, "{\"messages\":[7]}", 400, FIELD, "body.messages.0", "an object" },
	{ ASK_CHAT, "{\"messages\":[{\"content\":\"x\"}]}", 400, FIELD, "body.messages.0.role", "required" },
	{ ASK_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", 400, FIELD, "body.messages.0.content", "parts" },
	{ ASK_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400, BAD, NULL,
	  "`image_url`: only text is supported" },
	{ ASK_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", 400, FIELD,
	  "body.messages.0.content.0", "string `text`" },
	{ ASK_CHAT, "{\"messages\":[{\"role\":\"bad\",\"content\":\"x\"}]}", 400, BAD, NULL, "no such role" },
	{ ASK_CHAT, "{" M ",\"continue_final_message\":true,\"add_generation_prompt\":true}", 400, BAD, NULL,
	  "Cannot set both" },
	{ ASK_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
	  "\"arguments\":\"{\"}}]}]}", 400, BAD, NULL, "not valid JSON" },
	/* tokens */
	{ ASK_TOKENIZE, "{}", 400, FIELD, "body.prompt", "required" },
	{ ASK_TOKENIZE, "{\"prompt\":[1]}", 400, FIELD, "body.prompt", "a string" },
	{ ASK_DETOKENIZE, "{}", 400, FIELD, "body.tokens", "required" },
	{ ASK_DETOKENIZE, "{\"tokens\":[\"x\"]}", 400, FIELD, "body.tokens.0", "an integer" },
};

/* Which call a request wants, and what it needs of the server. */
static void tool_choices(void **state)
{
	static const struct { const char *more; enum ask_tool_choice choice; const char *without; } cases[] = {
		{ F ",\"tool_choice\":\"auto\"", ASK_TOOLS_AUTO,
		  "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set" },
		{ F, ASK_TOOLS_AUTO, "\"auto\" tool choice requires" },
		{ F ",\"tool_choice\":null", ASK_TOOLS_AUTO, "\"auto\" tool choice requires" },
		{ F ",\"tool_choice\":\"required\"", ASK_TOOLS_REQUIRED,
		  "tool_choice=\"required\" requires --tool-call-parser to be set" },
		{ F ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", ASK_TOOLS_NAMED,
		  "tool_choice=function \"f\" requires --tool-call-parser to be set" },
		{ F ",\"tool_choice\":\"none\"", ASK_TOOLS_NONE, NULL },
		{ "", ASK_TOOLS_NONE, NULL },
	};
	struct ask_limits l = limits();
	struct problem p;
	char body[512];
	struct ask a;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		l.calls = hermes();
		snprintf(body, sizeof(body), "{" M "%s}", cases[i].more);
		assert_int_equal(ask_parse(&a, ASK_CHAT, body, strlen(body), &l, &p), 0);
		assert_int_equal(a.tool_choice, cases[i].choice);
		if (a.tool_choice == ASK_TOOLS_NAMED)
			assert_string_equal(a.tool_name, "f");
		ask_free(&a);
		l.calls = NULL;
		assert_int_equal(ask_parse(&a, ASK_CHAT, body, strlen(body), &l, &p), cases[i].without ? -1 : 0);
		if (cases[i].without)
			assert_non_null(strstr(p.message, cases[i].without));
		ask_free(&a);
	}
	l.exclude_tools = true;
	assert_int_equal(ask_parse(&a, ASK_CHAT, "{" M F ",\"tool_choice\":\"none\"}",
	                           strlen("{" M F ",\"tool_choice\":\"none\"}"), &l, &p), 0);
	assert_null(a.chat.tools);
	ask_free(&a);
}

static void refused(void **state)
{
	const struct ask_limits l = limits();
	struct problem p;
	struct ask a;
	size_t i;
	int r, wrong = 0;

	(void)state;
	for (i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		const struct refusal *c = &refusals[i];

		r = ask_parse(&a, c->kind, c->body, strlen(c->body), &l, &p);
		if (!r)
			r = ask_prompts(&a, &l, &p);
		ask_free(&a);
		if (!r) {
			print_error("accepted: %s\n", c->body);
			wrong++;
		} else if (p.status != c->status || strcmp(p.type, c->type) || !strstr(p.message, c->message) ||
		    (c->param && strcmp(p.param, c->param)) || (!c->param && !strcmp(c->type, BAD) && p.param[0])) {
			print_error("%s: %d %s %s: %s\n", c->body, p.status, p.type, p.param, p.message);
			wrong++;
		}
	}
	assert_int_equal(wrong, 0);
}

/* The grammar that each kind of constraint becomes. */
static void guided(void **state)
{
	static const struct { const char *body; enum sr_grammar_kind kind; const char *src; } cases[] = {
		{ "\"response_format\":{\"type\":\"json_object\"}", SR_GRAMMAR_JSON, "{\"type\":\"object\"}" },
		{ "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"strict\":false,"
		  "\"schema\":{\"b\": 1, \"a\": 2}}}", SR_GRAMMAR_JSON, "{\"b\":1,\"a\":2}" },
		{ "\"response_format\":{\"type\":\"json_object\",\"schema\":{\"a\":2}}", SR_GRAMMAR_JSON, "{\"a\":2}" },
		{ "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}", SR_GRAMMAR_JSON,
		  "{\"type\":\"object\"}" },
		{ "\"response_format\":{\"type\":\"json_object\"},\"structured_outputs\":{\"json_object\":true}",
		  SR_GRAMMAR_JSON, "{\"type\":\"object\"}" },
		{ "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"a\":2}}},"
		  "\"structured_outputs\":{\"json\":{\"b\":1}}", SR_GRAMMAR_JSON, "{\"a\":2}" },
		{ "\"response_format\":{\"type\":\"structural_tag\",\"format\":{}}", SR_GRAMMAR_TAGS,
		  "{\"type\":\"structural_tag\",\"format\":{}}" },
		{ "\"structured_outputs\":{\"json\":\" {\\\"a\\\": 1}\"}", SR_GRAMMAR_JSON, "{\"a\":1}" },
		{ "\"structured_outputs\":{\"regex\":\"a+\"}", SR_GRAMMAR_REGEX, "a+" },
		{ "\"structured_outputs\":{\"choice\":[\"a\",\"b\"],\"regex\":null}", SR_GRAMMAR_CHOICE, "[\"a\",\"b\"]" },
		{ "\"structured_outputs\":{\"grammar\":\"root ::= \\\"a\\\"\"}", SR_GRAMMAR_EBNF, "root ::= \"a\"" },
		{ "\"structured_outputs\":{\"structural_tag\":\"{\\\"type\\\":1}\"}", SR_GRAMMAR_TAGS, "{\"type\":1}" },
		{ "\"guided_json\":{\"a\":1},\"guided_decoding_backend\":\"x\"", SR_GRAMMAR_JSON, "{\"a\":1}" },
		{ "\"guided_choice\":[\"a\"]", SR_GRAMMAR_CHOICE, "[\"a\"]" },
		{ "\"guided_regex\":\"a\",\"guided_json\":null", SR_GRAMMAR_REGEX, "a" },
		{ "\"guided_grammar\":\"g\"", SR_GRAMMAR_EBNF, "g" },
		{ "\"guided_json_object\":true", SR_GRAMMAR_JSON, "{\"type\":\"object\"}" },
	};
	char body[600];
	struct ask a;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(body, sizeof(body), "{" P ",%s}", cases[i].body);
		take(&a, ASK_COMPLETION, body);
		assert_non_null(a.guide.src);
		assert_string_equal(a.guide.src, cases[i].src);
		assert_int_equal(a.guide.kind, cases[i].kind);
		assert_int_equal(a.guide.n, strlen(cases[i].src));
		ask_free(&a);
	}
	take(&a, ASK_CHAT, "{" M ",\"response_format\":{\"type\":\"text\"},\"structured_outputs\":null,"
	     "\"guided_json_object\":false}");
	assert_null(a.guide.src);
	ask_free(&a);
}

/* A request's own rules win over the server's; the server's are read from JSON and from members. */
static void guide_rules(void **state)
{
	static const char *const part[] = { "{\"backend\":\"xgrammar\",\"lenient\":false}", "lenient=true",
		"additional_properties=1", "whitespace_pattern= ?" };
	static const char *const bad[] = { "backend=nobody", "lenient=7", "strange=1", "{", "nothing" };
	struct ask_limits l = limits();
	struct problem p;
	char err[300];
	json_t *o;
	struct ask a;

	(void)state;
	assert_int_equal(ask_parts(&o, "x", part, 4, err, sizeof(err)), 0);
	assert_int_equal(ask_guide_rules_read(&l.guide_rules, o, err, sizeof(err)), 0);
	assert_true(l.guide_rules.lenient && l.guide_rules.additional_properties && !l.guide_rules.disable_any_whitespace);
	ask_parse(&a, ASK_COMPLETION, "{" P ",\"guided_json\":{}}", strlen("{" P ",\"guided_json\":{}}"), &l, &p);
	assert_true(a.guide.rules.lenient && a.guide.rules.additional_properties);
	assert_string_equal(a.guide.rules.whitespace_pattern, " ?");
	ask_free(&a);
	ask_parse(&a, ASK_COMPLETION, "{" P ",\"structured_outputs\":{\"json\":{},\"disable_any_whitespace\":true,"
	          "\"disable_additional_properties\":true,\"lenient\":false}}",
	          strlen("{" P ",\"structured_outputs\":{\"json\":{},\"disable_any_whitespace\":true,"
	                 "\"disable_additional_properties\":true,\"lenient\":false}}"), &l, &p);
	assert_true(a.guide.rules.disable_any_whitespace && !a.guide.rules.lenient &&
	            !a.guide.rules.additional_properties && !a.guide.rules.whitespace_pattern);
	ask_free(&a);
	json_decref(o);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		if (!ask_parts(&o, "structured-outputs-config", &bad[i], 1, err, sizeof(err))) {
			assert_true(i < 3);
			assert_int_equal(ask_guide_rules_read(&l.guide_rules, o, err, sizeof(err)), -EINVAL);
			assert_non_null(strstr(err, "--structured-outputs-config: "));
			json_decref(o);
		}
}

/* A prompt that is much too long gets room for one id more than the context, not for all its ids. */
static void room_for_ids(void **state)
{
	const struct ask_limits l = limits();
	struct problem p;
	char body[400];
	struct ask a;

	(void)state;
	snprintf(body, sizeof(body), "{\"prompt\":\"%0300d\"}", 0);
	assert_int_equal(ask_parse(&a, ASK_COMPLETION, body, strlen(body), &l, &p), 0);
	assert_int_equal(ask_prompts(&a, &l, &p), -1);
	assert_non_null(strstr(p.message, "at least 65 input tokens"));
	assert_int_equal(toy_cap, 65);
	ask_free(&a);
}

static void accepted(void **state)
{
	struct ask a;

	(void)state;
	take(&a, ASK_COMPLETION, "{\"prompt\":\"cab\",\"no_such_field\":{\"x\":[1]},\"model\":\"also\"}");
	assert_int_equal(a.prompt[0].ids.n, 2);
	assert_int_equal(a.prompt[0].ids.id[1], AB);
	assert_int_equal(a.max_tokens, 16);
	assert_true(a.temperature == 1 && a.top_p == 1 && !a.top_k && !a.seeded && a.repetition == 1);
	ask_free(&a);
	/* lax, as vLLM's schema: numbers as strings, bools as numbers and words */
	take(&a, ASK_COMPLETION, "{" P ",\"temperature\":\"0.5\",\"max_tokens\":\"3\",\"top_k\":7.0,"
	     "\"stream\":\"yes\",\"ignore_eos\":1}");
	assert_true(a.temperature == 0.5 && a.max_tokens == 3 && a.top_k == 7 && a.stream && a.ignore_eos);
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{" P ",\"temperature\":1e-9,\"top_k\":-1,\"seed\":-1,\"n\":2}");
	assert_true(a.temperature == 0.01 && a.top_k == 0 && !a.seeded);
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{" P ",\"temperature\":0,\"top_k\":5,\"top_p\":0.5,\"min_p\":0.5}");
	assert_true(a.top_k == 0 && a.top_p == 1 && a.min_p == 0);
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{" P ",\"logit_bias\":{\"5\":1000,\"6\":-1000},\"max_tokens\":null}");
	assert_true(a.n_bias == 2 && a.bias[0].value == 100 && a.bias[1].value == -100);
	assert_int_equal(a.max_tokens, 16);
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{\"prompt\":\"0123\",\"truncate_prompt_tokens\":2,\"truncation_side\":\"left\"}");
	assert_true(a.prompt[0].ids.n == 2 && a.prompt[0].ids.id[0] == '2');
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{\"prompt\":\"0123\",\"truncate_prompt_tokens\":2}");
	assert_true(a.prompt[0].ids.n == 2 && a.prompt[0].ids.id[0] == '0');
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{" P ",\"echo\":true,\"max_tokens\":0,\"logprobs\":3}");
	assert_true(a.prompt_logprobs == 3 && a.max_tokens == 0);
	ask_free(&a);
	/* the tokenizer's end-of-turn ids end the answer; eos is not listed, the daemon knows it */
	take(&a, ASK_COMPLETION, "{" P ",\"stop_token_ids\":[7]}");
	assert_true(a.stop_ids.n == 2 && a.stop_ids.id[0] == 7 && a.stop_ids.id[1] == 258);
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{" P ",\"stop_token_ids\":[258]}");
	assert_int_equal(a.stop_ids.n, 1);
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{" P ",\"ignore_eos\":true}");
	assert_int_equal(a.stop_ids.n, 0);
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{\"prompt\":\"a\\u0000b\"}");
	assert_int_equal(a.prompt[0].ids.n, 3);
	ask_free(&a);
}

/* Each word, and with a space before it if that makes another first token and no longer a word. */
static void bad_words(void **state)
{
	static const int32_t want[] = { 1, 'c', 1, AB };
	struct ask a;

	(void)state;
	take(&a, ASK_COMPLETION, "{" P ",\"bad_words\":[\"c\",\" ab\",\"c\"]}");
	assert_int_equal(a.bad.n, 4);
	assert_memory_equal(a.bad.id, want, sizeof(want));
	ask_free(&a);
}

static void chats(void **state)
{
	static const struct { const char *body, *prompt; } cases[] = {
		{ "{" M "}", "user:hi;>" },
		{ "{" M ",\"add_generation_prompt\":false}", "user:hi;" },
		{ "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]}]}",
		  "user:a\nb;>" },
		{ "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "user:;>" },
		{ "{\"messages\":[{\"role\":\"assistant\",\"content\":\"One, \"}],\"continue_final_message\":true,"
		  "\"add_generation_prompt\":false}", "assistant:One, " },
		{ "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "king:x;>" },
		{ "{" M ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}", "user:hi;>" },
		{ "{" M ",\"chat_template_kwargs\":{\"nobody_reads\":1}}", "user:hi;>" },
	};
	struct ask a;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		take(&a, ASK_CHAT, cases[i].body);
		assert_string_equal(a.prompt[0].text, cases[i].prompt);
		ask_free(&a);
	}
}

/* Integers past 64 bits are accepted in fields that we do not use, and strings stay unchanged. */
static void wide_integers(void **state)
{
	struct out many = { 0 };
	struct ask a;
	json_t *v;
	int i;

	(void)state;
	take(&a, ASK_COMPLETION, "{\"prompt\":\"\\\"18446744073709551616\\\\\",\"a\":18446744073709551615,"
	     "\"b\":[-9223372036854775808,-9223372036854775809,1234567890123456789012.5,0.12345678901234567890123],"
	     "\"c\":\"99999999999999999999\",\"seed\":9223372036854775807}");
	assert_string_equal(a.prompt[0].text, "\"18446744073709551616\\");
	assert_true(json_real_value(json_object_get(a.root, "a")) == 18446744073709551615.0);
	v = json_object_get(a.root, "b");
	assert_true(json_integer_value(json_array_get(v, 0)) == INT64_MIN);
	assert_true(json_real_value(json_array_get(v, 1)) == -9223372036854775809.0);
	assert_true(json_real_value(json_array_get(v, 2)) == 1234567890123456789012.5);
	assert_string_equal(json_string_value(json_object_get(a.root, "c")), "99999999999999999999");
	assert_true(a.seed == INT64_MAX);
	ask_free(&a);
	out_str(&many, "{\"prompt\":\"x\",\"y\":[");
	for (i = 0; i < 10000; i++)
		out_str(&many, "9999999999999999999,");  /* the shortest that grow */
	out_str(&many, "1]}");
	out_bytes(&many, "", 1);
	take(&a, ASK_COMPLETION, many.p);
	assert_int_equal(json_array_size(json_object_get(a.root, "y")), 10001);
	ask_free(&a);
	out_free(&many);
}

/* The arguments of a tool call are JSON in a string: the body's bounds hold for them, too. */
static void arguments_bomb(void **state)
{
	static const char head[] = "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
	                           "[{\"function\":{\"name\":\"f\",\"arguments\":\"", tail[] = "\"}}]}]}";
	static const struct { const char *unit; size_t n; bool ok; } cases[] = {
		{ "[", 200, false }, { "1,", TEXT_JSON_VALUES + 1, false }, { "1,", 1000, true },
	};
	const struct ask_limits l = limits();
	struct problem p;
	struct ask a;
	size_t i, k;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct out o = { 0 };
		int r;

		out_str(&o, head);
		out_str(&o, "[");
		for (k = 0; k < cases[i].n; k++)
			out_str(&o, cases[i].unit);
		out_str(&o, "1]");
		out_str(&o, tail);
		r = ask_parse(&a, ASK_CHAT, o.p, o.n, &l, &p);
		assert_int_equal(r, 0);
		r = ask_prompts(&a, &l, &p);
		assert_true((r == 0) == cases[i].ok);
		if (r)
			assert_non_null(strstr(p.message, "not valid JSON"));
		ask_free(&a);
		out_free(&o);
	}
}

/* What an answer needs of its request is kept; the rest, which may be large, is freed. */
static void slim(void **state)
{
	struct ask a;

	(void)state;
	take(&a, ASK_COMPLETION, "{\"prompt\":\"cab\",\"stop\":[\"x\",\"yz\"],\"user\":\"someone\",\"other\":[1,2],"
	     "\"request_id\":\"me\",\"cache_salt\":\"s\"}");
	ask_slim(&a);
	assert_int_equal(json_object_size(a.root), 3);
	assert_null(a.user);
	assert_null(a.prompt[0].text);
	assert_int_equal(a.prompt[0].ids.n, 2);
	assert_string_equal(a.stop[1], "yz");
	assert_string_equal(a.request_id, "me");
	assert_string_equal(a.cache_salt, "s");
	ask_free(&a);
	take(&a, ASK_COMPLETION, "{\"prompt\":[\"cab\",\"d\"],\"echo\":true,\"other\":[1,2]}");
	ask_slim(&a);
	assert_int_equal(json_object_size(a.root), 1);
	assert_string_equal(a.prompt[1].text, "d");
	ask_free(&a);
	take(&a, ASK_CHAT, "{" M "}");
	ask_slim(&a);
	assert_null(a.chat.messages);
	assert_null(a.prompt[0].own);
	ask_free(&a);
	take(&a, ASK_CHAT, "{" M ",\"return_prompt_text\":true,\"echo\":true}");
	a.last_content = json_object_get(json_array_get(a.chat.messages, 0), "content");
	ask_slim(&a);
	assert_string_equal(a.prompt[0].text, "user:hi;>");
	assert_string_equal(json_string_value(a.last_content), "hi");
	ask_free(&a);
}

/* 128 levels are read, in the body and in a call's arguments. 129 are refused, by us and not by jansson. */
static void deepest(void **state)
{
	static const struct { enum ask_kind kind; const char *before, *after; int levels; const char *message; } cases[] = {
		{ ASK_COMPLETION, "{\"prompt\":\"x\",\"y\":", "}", 127, NULL },
		{ ASK_COMPLETION, "{\"prompt\":\"x\",\"y\":", "}", 128, "nested deeper than 128 levels (at byte 145)" },
		{ ASK_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
		  "\"arguments\":\"", "\"}}]}]}", 128, NULL },
		{ ASK_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
		  "\"arguments\":\"", "\"}}]}]}", 129, "arguments is not valid JSON" },
	};
	const struct ask_limits l = limits();
	struct problem p;
	struct ask a;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char s[600] = "";
		int r, k;

		strcpy(s, cases[i].before);
		for (k = 0; k < cases[i].levels; k++)
			strcat(s, "[");
		for (k = 0; k < cases[i].levels; k++)
			strcat(s, "]");
		strcat(s, cases[i].after);
		r = ask_parse(&a, cases[i].kind, s, strlen(s), &l, &p);
		if (!r)
			r = ask_prompts(&a, &l, &p);
		if (r != (cases[i].message ? -1 : 0) || (r && !strstr(p.message, cases[i].message)))
			fail_msg("case %zu: %s", i, r ? p.message : "taken");
		ask_free(&a);
	}
}

static void deep_and_many(void **state)
{
	const struct ask_limits l = limits();
	size_t n = 1000000;
	char *s = malloc(n + 1);
	struct problem p;
	struct ask a;

	(void)state;
	memset(s, '[', n);
	assert_int_equal(ask_parse(&a, ASK_COMPLETION, s, n, &l, &p), -1);
	assert_non_null(strstr(p.message, "nested deeper"));
	ask_free(&a);
	free(s);
	n = TEXT_JSON_VALUES * 2 + 64;
	s = malloc(n);
	memset(s, ',', n);
	memcpy(s, "{\"prompt\":[1", 12);
	assert_int_equal(ask_parse(&a, ASK_COMPLETION, s, n, &l, &p), -1);
	assert_non_null(strstr(p.message, "values"));
	ask_free(&a);
	free(s);
}

/* The key decides how low a priority may be; without --scheduling-policy priority there are none. */
static void priorities(void **state)
{
	static const struct { int64_t floor, asked; bool on; const char *says; } cases[] = {
		{ 0, 0, true, NULL }, { 0, 5, true, NULL }, { 0, -1, true, "priority must be at least 0, got -1" },
		{ -10, -10, true, NULL }, { -10, -11, true, "priority must be at least -10, got -11" },
		{ INT32_MIN, INT32_MIN, true, NULL }, { INT32_MIN, (int64_t)INT32_MIN - 1, true, "32 bits" },
		{ 0, INT32_MAX, true, NULL }, { -10, -5, false, "not enabled" }, { 0, 0, false, NULL },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ask_limits l = limits();
		struct problem p = { 0 };
		struct ask a;
		char body[100];
		int e;

		l.priorities = cases[i].on;
		l.min_priority = cases[i].floor;
		snprintf(body, sizeof(body), "{" P ",\"priority\":%lld}", (long long)cases[i].asked);
		e = ask_parse(&a, ASK_COMPLETION, body, strlen(body), &l, &p);
		if (!!e != !!cases[i].says || (e && (p.status != 400 || strcmp(p.param, "priority") ||
		                                     !strstr(p.message, cases[i].says))))
			fail_msg("case %zu: %d %s", i, e, p.message);
		if (!e)
			assert_int_equal(a.priority, cases[i].asked);
		ask_free(&a);
	}
}

/* Prompt tokens, times 1 + alternatives, times answers are bounded: a few KB could ask for gigabytes. */
static void scores_of_one_request(void **state)
{
	static const struct { int tokens; const char *fields; bool right; } cases[] = {
		{ 780, "\"n\":1024,\"prompt_logprobs\":20", true },         /* 16,773,120 of 16,777,216 */
		{ 781, "\"n\":1024,\"prompt_logprobs\":20", false },
		{ 781, "\"n\":1024,\"echo\":true,\"logprobs\":20", false },
		{ 781, "\"n\":1024,\"logprobs\":20,\"echo\":false", true },
		{ 8000, "\"n\":1024,\"echo\":true", true },
		{ 8000, "\"n\":1,\"prompt_logprobs\":20", true },
	};
	struct ask_limits l = limits();
	static char body[64 * 1024];

	(void)state;
	l.context = 10000;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int n = snprintf(body, sizeof(body), "{%s,\"prompt\":[1", cases[i].fields);
		struct problem p;
		struct ask a;
		int r;

		for (int k = 1; k < cases[i].tokens; k++)
			n += snprintf(body + n, sizeof(body) - (size_t)n, ",1");
		n += snprintf(body + n, sizeof(body) - (size_t)n, "]}");
		r = ask_parse(&a, ASK_COMPLETION, body, (size_t)n, &l, &p);
		r = r < 0 ? r : ask_prompts(&a, &l, &p);
		if (r == 0 && !cases[i].right)
			fail_msg("case %zu is let through", i);
		if (r < 0 && cases[i].right)
			fail_msg("case %zu: %s", i, p.message);
		if (r < 0) {
			assert_int_equal(p.status, 400);
			assert_non_null(strstr(p.message, "16794624 log-probabilities"));
			assert_non_null(strstr(p.message, "781 tokens, times 1 + 20"));
			assert_non_null(strstr(p.message, "1024 answers (n). At most 16777216"));
		}
		ask_free(&a);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused), cmocka_unit_test(tool_choices), cmocka_unit_test(guided), cmocka_unit_test(guide_rules),
		cmocka_unit_test(room_for_ids), cmocka_unit_test(accepted), cmocka_unit_test(priorities), cmocka_unit_test(bad_words),
		cmocka_unit_test(chats), cmocka_unit_test(deepest), cmocka_unit_test(deep_and_many), cmocka_unit_test(wide_integers),
		cmocka_unit_test(arguments_bomb), cmocka_unit_test(scores_of_one_request), cmocka_unit_test(slim),
	};

	toy_begin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
