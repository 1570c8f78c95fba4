/* LINK: adapters/http/openai.c adapters/http/sampling.c adapters/http/fields.c adapters/http/json.c adapters/http/problem.c adapters/http/out.c adapters/http/chat.c adapters/http/prompts.c adapters/http/choice.c adapters/http/events.c -ljansson */
/* test_openai.c - requests as a table of what is refused with which words; the bytes of events
 * and answers, as vLLM sends them; stop strings across token boundaries.
 *
 * The tokenizer here is a toy, so that a case can be read: ids 0..255 are bytes, 256 is the end
 * of sequence "<eos>", 257 is "ab".
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/http/request.h"
#include "adapters/text/slipring-text.h"
#include "adapters/text/template.h"

#define VOCAB 1000
#define EOS   256
#define AB    257

/* ---- the toy ---- */

static char bytes[256];
static const struct sr_text_info info = { .vocab = VOCAB, .bos = -1, .eos = EOS, .stop = { EOS, 258 }, .n_stop = 2 };
static struct sr_text *const toy = (struct sr_text *)bytes;

const struct sr_text_info *sr_text_info(const struct sr_text *t) { (void)t; return &info; }
size_t sr_text_longest(const struct sr_text *t) { (void)t; return 16; }

int sr_text_piece(const struct sr_text *t, int32_t id, const char **out, bool *special)
{
	(void)t;
	if (special)
		*special = id == EOS;
	*out = id == EOS ? "<eos>" : id == AB ? "ab" : id < 256 ? &bytes[id] : "?";
	return id < 0 || id >= VOCAB ? -1 : id == EOS ? 5 : id == AB ? 2 : 1;
}

int64_t sr_text_encode(const struct sr_text *t, const char *s, size_t n, int flags, int32_t *ids,
                       size_t cap, size_t limit)
{
	size_t i, k = 0;

	(void)t;
	(void)flags;
	for (i = 0; i < n; i++, k++) {
		if (limit && k > limit)
			break;
		if (k < cap)
			ids[k] = n - i >= 2 && !memcmp(s + i, "ab", 2) ? AB : (unsigned char)s[i];
		i += n - i >= 2 && !memcmp(s + i, "ab", 2);
	}
	return (int64_t)k;
}

int64_t sr_text_decode(const struct sr_text *t, const int32_t *ids, size_t n, bool skip, char *out, size_t cap)
{
	size_t i, at = 0;
	const char *s;
	int len;

	(void)skip;
	for (i = 0; i < n; i++)
		for (len = sr_text_piece(t, ids[i], &s, NULL); len-- > 0; s++)
			if (at++ < cap)
				out[at - 1] = *s;
	return (int64_t)at;
}

void sr_detok_init(struct sr_detok *d, bool skip) { *d = (struct sr_detok){ .skip_special = skip }; }
int sr_detok_flush(struct sr_detok *d, char *out, size_t cap) { (void)d; (void)out; (void)cap; return 0; }
int sr_detok_push(struct sr_detok *d, const struct sr_text *t, int32_t id, char *out, size_t cap)
{
	return d->skip_special && id == EOS ? 0 : (int)sr_text_decode(t, &id, 1, false, out, cap);
}

/* The toy's template: "role:content;" for each message, then ">" if an answer is to follow. */
const struct template *text_template(const struct sr_text *t) { return (const void *)t; }
int64_t template_render(const struct template *t, json_t *vars, const struct template_budget *b,
                        char **out, char *err, size_t errlen)
{
	struct out o = { 0 };
	json_t *m;
	size_t i;

	(void)t;
	(void)b;
	json_array_foreach(json_object_get(vars, "messages"), i, m) {
		json_t *c = json_object_get(m, "content");

		if (!strcmp(json_string_value(json_object_get(m, "role")), "bad")) {
			snprintf(err, errlen, "line 1: no such role");
			out_free(&o);
			return -22;
		}
		out_fmt(&o, "%s:", json_string_value(json_object_get(m, "role")));
		out_bytes(&o, json_string_value(c), json_string_length(c));
		out_str(&o, ";");
	}
	if (json_is_true(json_object_get(vars, "add_generation_prompt")))
		out_str(&o, ">");
	out_bytes(&o, "", 1);
	*out = o.p;
	return (int64_t)o.n - 1;
}

static const char *const names[] = { "m", "also" };

static struct ask_limits limits(void)
{
	return (struct ask_limits){
		.text = toy, .response_role = "assistant", .vocab = VOCAB, .context = 64, .max_logprobs = 20,
		.stream_interval = 1, .names = names, .n_names = 2,
		.defaults = { NAN, NAN, NAN, NAN, -1, -1, -1 },
	};
}

/* ---- requests ---- */

#define P "\"prompt\":\"x\""
#define M "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define BAD "BadRequestError"
#define FIELD "Bad Request"

static const struct refusal {
	enum ask_kind kind;
	const char *body;
	int status;
	const char *type, *param, *message;  /* message: a part of it */
} refusals[] = {
	/* what is no JSON object */
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
	{ ASK_COMPLETION, "{" P ",\"bad_words\":\"x\"}", 400, FIELD, "body.bad_words", "a list" },
	{ ASK_COMPLETION, "{" P ",\"cache_salt\":\"\"}", 400, BAD, "cache_salt", "non-empty string" },
	{ ASK_COMPLETION, "{" P ",\"cache_salt\":\"a/b\"}", 400, BAD, "cache_salt", "must not contain" },
	{ ASK_COMPLETION, "{" P ",\"request_id\":\"a\\r\\nb\"}", 400, BAD, "request_id", "printable" },
	/* refused by name */
	{ ASK_COMPLETION, "{" P ",\"use_beam_search\":true}", 400, BAD, "use_beam_search", "Beam search" },
	{ ASK_COMPLETION, "{" P ",\"best_of\":2}", 400, BAD, "best_of", "not supported" },
	{ ASK_COMPLETION, "{" P ",\"guided_json\":{}}", 400, BAD, "guided_json", "not supported" },
	{ ASK_COMPLETION, "{" P ",\"structured_outputs\":{\"regex\":\"a\"}}", 400, BAD, "structured_outputs", "yet" },
	{ ASK_CHAT, "{" M ",\"response_format\":{\"type\":\"json_object\"}}", 400, BAD, "response_format", "json_object" },
	{ ASK_CHAT, "{" M ",\"response_format\":\"text\"}", 400, FIELD, "body.response_format", "an object" },
	{ ASK_CHAT, "{" M ",\"tool_choice\":\"auto\"}", 400, BAD, "tool_choice", "`tools` must be set" },
	{ ASK_CHAT, "{" M ",\"tools\":[]}", 400, BAD, "tools", "must not be an empty array" },
	{ ASK_CHAT, "{" M ",\"tools\":[{\"type\":\"function\"}]}", 400, FIELD, "body.tools.0.function", "tools[0]" },
	{ ASK_CHAT, "{" M ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\"}", 400, BAD,
	  "tool_choice", "cannot be enforced" },
	{ ASK_CHAT, "{" M ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"function\":{\"name\":\"f\"}}}",
	  400, BAD, "tool_choice", "named function" },
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
	  "`image_url`: this server takes text only" },
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

static void take(struct ask *a, enum ask_kind kind, const char *body)
{
	const struct ask_limits l = limits();
	struct problem p;

	if (ask_parse(a, kind, body, strlen(body), &l, &p) || ask_prompts(a, &l, &p))
		fail_msg("%s: %s", body, p.message);
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
	/* what ends a turn by the tokenizer ends the answer, but for eos, which the daemon knows */
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
	};
	struct ask a;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		take(&a, ASK_CHAT, cases[i].body);
		assert_string_equal(a.prompt[0].text, cases[i].prompt);
		ask_free(&a);
	}
	assert_true(chat_wants_parts("{% for c in message.content %}"));
	assert_true(chat_wants_parts("{%- for c in m['content'] -%}"));
	assert_false(chat_wants_parts("{% for m in messages %}{{ m.content }}{{ 'x' in m.content }}"));
}

/* Integers past 64 bits are read where nothing of ours is said by them, and strings are left alone. */
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

/* The arguments of a tool call are JSON in a string: they are held to the body's own bounds. */
static void arguments_bomb(void **state)
{
	static const char head[] = "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
	                           "[{\"function\":{\"name\":\"f\",\"arguments\":\"", tail[] = "\"}}]}]}";
	static const struct { const char *unit; size_t n; bool ok; } cases[] = {
		{ "[", 200, false }, { "1,", ASK_JSON_VALUES + 1, false }, { "1,", 1000, true },
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

/* What an answer needs of its request stays; the rest, which may be large, does not. */
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
	assert_null(a.messages);
	assert_null(a.prompt[0].own);
	ask_free(&a);
	take(&a, ASK_CHAT, "{" M ",\"return_prompt_text\":true,\"echo\":true}");
	a.last_content = json_object_get(json_array_get(a.messages, 0), "content");
	ask_slim(&a);
	assert_string_equal(a.prompt[0].text, "user:hi;>");
	assert_string_equal(json_string_value(a.last_content), "hi");
	ask_free(&a);
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
	n = ASK_JSON_VALUES * 2 + 64;
	s = malloc(n);
	memset(s, ',', n);
	memcpy(s, "{\"prompt\":[1", 12);
	assert_int_equal(ask_parse(&a, ASK_COMPLETION, s, n, &l, &p), -1);
	assert_non_null(strstr(p.message, "values"));
	ask_free(&a);
	free(s);
}

/* ---- events ---- */

static struct request *begin(enum ask_kind kind, const char *body)
{
	struct request *r = calloc(1, sizeof(*r));
	int i;

	r->kind = kind;
	r->limits = limits();
	take(&r->ask, kind, body);
	r->model = "m";
	r->fingerprint = "f";
	r->created = 7;
	snprintf(r->id, sizeof(r->id), "id");
	r->n_choices = (int)r->ask.n * r->ask.n_prompts;
	r->choice = calloc((size_t)r->n_choices, sizeof(*r->choice));
	for (i = 0; i < r->n_choices; i++) {
		choice_init(&r->choice[i], true);
		r->choice[i].index = i;
		r->choice[i].prompt = i / (int)r->ask.n;
	}
	assert_int_equal(stops_init(&r->stops, &r->ask), 0);
	event_head(r);
	return r;
}

static void finish(struct request *r)
{
	int i;

	for (i = 0; i < r->n_choices; i++)
		choice_free(&r->choice[i]);
	free(r->choice);
	stops_free(&r->stops);
	ask_free(&r->ask);
	out_free(&r->head);
	out_free(&r->event);
	free(r);
}

static bool push(struct request *r, struct choice *c, int32_t id, float logprob)
{
	struct sr_token t = { .kind = SR_TOKEN, .id = id, .rank = 1, .logprob = logprob, .n_top = 2,
	                      .n_here = 2, .top = { { id, logprob }, { 'z', -2.5f } } };

	c->n_tokens++;
	if (r->ask.logprobs != ASK_NONE)
		lps_add(&c->lps, &t);
	if (r->ask.return_token_ids)
		out_bytes(&c->ids, &id, sizeof(id));
	return choice_text(c, &r->stops, toy, id, (uint32_t)r->ask.min_tokens);
}

static void bytes_are(struct request *r, const char *want)
{
	out_bytes(&r->event, "", 1);
	assert_false(r->event.failed);
	assert_string_equal(r->event.p, want);
}

#define HEAD "{\"id\":\"id\",\"object\":\"text_completion\",\"created\":7,\"model\":\"m\",\"choices\":["
#define CHAT "{\"id\":\"id\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"choices\":["

static void completion_stream(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P ",\"stream\":true}");
	struct choice *c = r->choice;

	(void)state;
	push(r, c, '"', 0);
	event_chunk(r, c);
	bytes_are(r, "data: " HEAD "{\"index\":0,\"text\":\"\\\"\",\"logprobs\":null,\"finish_reason\":null,"
	          "\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n");
	push(r, c, AB, 0);
	c->ended = true;
	c->finish = LENGTH;
	event_chunk(r, c);
	bytes_are(r, "data: " HEAD "{\"index\":0,\"text\":\"ab\",\"logprobs\":null,\"finish_reason\":\"length\","
	          "\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}],"
	          "\"system_fingerprint\":\"f\"}\n\n");
	finish(r);
}

static void completion_stream_usage(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P ",\"stream\":true,\"stream_options\":"
	                          "{\"include_usage\":true,\"continuous_usage_stats\":true},\"return_token_ids\":true}");
	struct choice *c = r->choice;

	(void)state;
	push(r, c, 'q', 0);
	c->ended = true;
	c->finish = STOPPED;
	c->stop_id = 9;
	event_chunk(r, c);
	bytes_are(r, "data: " HEAD "{\"index\":0,\"text\":\"q\",\"logprobs\":null,\"finish_reason\":\"stop\","
	          "\"stop_reason\":9,\"prompt_token_ids\":[120],\"token_ids\":[113]}],"
	          "\"usage\":{\"prompt_tokens\":1,\"total_tokens\":2,\"completion_tokens\":1}}\n\n");
	event_usage(r);
	bytes_are(r, "data: " HEAD "],\"usage\":{\"prompt_tokens\":1,\"total_tokens\":2,\"completion_tokens\":1},"
	          "\"system_fingerprint\":\"f\"}\n\n");
	finish(r);
}

static void completion_echo_logprobs(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{\"prompt\":\"xy\",\"stream\":true,\"echo\":true,\"logprobs\":1}");
	struct choice *c = r->choice;
	struct sr_token t = { .kind = SR_PROMPT, .id = 'y', .rank = 3, .logprob = -11.586777687072754f,
	                      .n_top = 1, .n_here = 1, .top = { { 'w', -0.83677738904953f } } };

	(void)state;
	lps_add_plain(&c->prompt_lps, 'x');
	lps_add(&c->prompt_lps, &t);
	push(r, c, AB, -0.26282957196235657f);
	event_chunk(r, c);
	bytes_are(r, "data: " HEAD "{\"index\":0,\"text\":\"xyab\",\"logprobs\":{\"text_offset\":[0,1,2],"
	          "\"token_logprobs\":[null,-11.586777687072754,-0.26282957196235657],"
	          "\"tokens\":[\"x\",\"y\",\"ab\"],\"top_logprobs\":[null,"
	          "{\"y\":-11.586777687072754,\"w\":-0.83677738904953},{\"ab\":-0.26282957196235657,\"z\":-2.5}]},"
	          "\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":[120,121],\"token_ids\":null}]}\n\n");
	push(r, c, 'q', -INFINITY);
	event_chunk(r, c);
	bytes_are(r, "data: " HEAD "{\"index\":0,\"text\":\"q\",\"logprobs\":{\"text_offset\":[4],"
	          "\"token_logprobs\":[-9999.0],\"tokens\":[\"q\"],\"top_logprobs\":[{\"q\":-9999.0,\"z\":-2.5}]},"
	          "\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n");
	finish(r);
}

static void chat_stream(void **state)
{
	struct request *r = begin(ASK_CHAT, "{" M ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":1}");
	struct choice *c = r->choice;

	(void)state;
	event_role(r, 0);
	bytes_are(r, "data: " CHAT "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
	          "\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}\n\n");
	push(r, c, 'L', -1.906170129776001f);
	event_chunk(r, c);
	bytes_are(r, "data: " CHAT "{\"index\":0,\"delta\":{\"content\":\"L\"},\"logprobs\":{\"content\":[{\"token\":\"L\","
	          "\"logprob\":-1.906170129776001,\"bytes\":[76],\"top_logprobs\":[{\"token\":\"L\","
	          "\"logprob\":-1.906170129776001,\"bytes\":[76]}]}]},\"finish_reason\":null,\"token_ids\":null}]}\n\n");
	c->ended = true;
	c->finish = LENGTH;
	event_chunk(r, c);
	bytes_are(r, "data: " CHAT "{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":null,"
	          "\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}],"
	          "\"system_fingerprint\":\"f\"}\n\n");
	finish(r);
}

static void whole_chat(void **state)
{
	struct request *r = begin(ASK_CHAT, "{" M "}");
	struct choice *c = r->choice;

	(void)state;
	push(r, c, 'L', 0);
	c->ended = true;
	c->finish = STOPPED;
	choice_flush(c);
	answer(r);
	bytes_are(r, "{\"id\":\"id\",\"object\":\"chat.completion\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,"
	          "\"message\":{\"role\":\"assistant\",\"content\":\"L\",\"refusal\":null,\"annotations\":null,"
	          "\"audio\":null,\"function_call\":null,\"reasoning\":null},\"logprobs\":null,"
	          "\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null,\"routed_experts\":null}],"
	          "\"service_tier\":null,\"system_fingerprint\":\"f\",\"usage\":{\"prompt_tokens\":9,"
	          "\"total_tokens\":10,\"completion_tokens\":1,\"prompt_tokens_details\":null,"
	          "\"completion_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":null,"
	          "\"prompt_text\":null,\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}");
	finish(r);
}

static void errors(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P "}");
	struct problem p;

	(void)state;
	problem_set(&p, 500, "InternalServerError", NULL, "a \"b\"");
	event_problem(r, &p);
	bytes_are(r, "data: {\"error\": {\"message\": \"a \\\"b\\\"\", \"type\": \"InternalServerError\", "
	          "\"param\": null, \"code\": 500}}\n\n");
	out_reset(&r->event);
	problem_json(&r->event, &p);
	bytes_are(r, "{\"error\":{\"message\":\"a \\\"b\\\"\",\"type\":\"InternalServerError\",\"param\":null,"
	          "\"code\":500}}");
	finish(r);
}

/* ---- stop strings ---- */

static void stop_strings(void **state)
{
	static const struct { const char *stops, *pushed, *text, *found; int extra; } cases[] = {
		/* stops; text pushed byte by byte; all that is given out; which one was found */
		{ "[\"END\"]", "one EN", "one ", NULL, 0 },           /* held back: it might begin one */
		{ "[\"END\"]", "one ENx", "one ENx", NULL, 0 },
		{ "[\"END\"]", "one ENDED", "one ", "END", 0 },
		{ "[\"aab\"]", "aaab", "a", "aab", 0 },               /* overlapping beginnings */
		{ "[\"xyz\",\"y\"]", "wxyz", "wx", "y", 0 },          /* what ends first wins */
		{ "[\"bc\",\"abc\"]", "abc", "a", "bc", 0 },          /* both at once: the first given */
		{ "[\"\xc3\xa9\"]", "caf\xc3\xa9!", "caf", "\xc3\xa9", 0 },
		{ "\"one\"", "once one", "once ", "one", 0 },
		{ "[\"END\"]", "one END", "one END", "END", 1 },      /* include_stop_str_in_output */
	};
	size_t i, k;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char body[128], given[64] = "";
		struct request *r;
		bool found = false;

		snprintf(body, sizeof(body), "{" P ",\"stop\":%s,\"include_stop_str_in_output\":%s}", cases[i].stops,
		         cases[i].extra ? "true" : "false");
		r = begin(ASK_COMPLETION, body);
		for (k = 0; cases[i].pushed[k] && !found; k++) {
			struct choice *c = r->choice;

			found = push(r, c, (unsigned char)cases[i].pushed[k], 0);
			snprintf(given + strlen(given), sizeof(given) - strlen(given), "%.*s", (int)c->ready, c->text.p);
			event_chunk(r, c);
		}
		assert_string_equal(given, cases[i].text);
		assert_int_equal(found, cases[i].found != NULL);
		if (found)
			assert_string_equal(r->choice[0].stop_string, cases[i].found);
		finish(r);
	}
}

/* Before min_tokens a stop string is text; one that ends right after counts. */
static void stop_after_min_tokens(void **state)
{
	struct request *r = begin(ASK_COMPLETION, "{" P ",\"stop\":\"x\",\"min_tokens\":2}");

	(void)state;
	assert_false(push(r, r->choice, 'x', 0));
	assert_false(push(r, r->choice, 'x', 0));
	assert_true(push(r, r->choice, 'x', 0));
	assert_int_equal(r->choice[0].ready, 2);
	finish(r);
}

/* ---- bytes ---- */

static void json_bytes(void **state)
{
	static const struct { const char *in, *out; } text[] = {
		{ "a\"\\\b\f\n\r\t\x01\x7f", "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7f\"" },
		{ "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"" },
		{ "a\xff" "b\xc3", "\"a\xef\xbf\xbd" "b\xef\xbf\xbd\"" },
		{ "\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
	};
	static const struct { double v; const char *out; } number[] = {
		{ 0, "0.0" }, { 1, "1.0" }, { -0.5, "-0.5" }, { 0.1, "0.1" }, { (double)0.1f, "0.10000000149011612" },
		{ -INFINITY, "-9999.0" }, { NAN, "null" }, { 1e300, "1e+300" },
	};
	struct out o = { 0 };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(text) / sizeof(text[0]); i++, out_reset(&o)) {
		out_json_str(&o, text[i].in);
		out_bytes(&o, "", 1);
		assert_string_equal(o.p, text[i].out);
	}
	for (i = 0; i < sizeof(number) / sizeof(number[0]); i++, out_reset(&o)) {
		out_double(&o, number[i].v);
		out_bytes(&o, "", 1);
		assert_string_equal(o.p, number[i].out);
	}
	out_int(&o, INT64_MIN);
	out_bytes(&o, "", 1);
	assert_string_equal(o.p, "-9223372036854775808");
	out_free(&o);
	assert_int_equal(utf8_count("a\xc3\xa9\xff", 4), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(refused), cmocka_unit_test(accepted), cmocka_unit_test(bad_words),
		cmocka_unit_test(chats), cmocka_unit_test(deep_and_many), cmocka_unit_test(wide_integers),
		cmocka_unit_test(arguments_bomb), cmocka_unit_test(slim),
		cmocka_unit_test(completion_stream), cmocka_unit_test(completion_stream_usage),
		cmocka_unit_test(completion_echo_logprobs), cmocka_unit_test(chat_stream),
		cmocka_unit_test(whole_chat), cmocka_unit_test(errors),
		cmocka_unit_test(stop_strings), cmocka_unit_test(stop_after_min_tokens), cmocka_unit_test(json_bytes),
	};
	int i;

	for (i = 0; i < 256; i++)
		bytes[i] = (char)i;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
