/* openai.c - ask_parse: the fields of a request, and which of them exclude each other.  The order of checks
 * follows vLLM, so that a request with one mistake gets the same status, type and param.  Sampling numbers
 * are checked in sampling.c, messages in chat.c.
 */
#include "openai.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text_json.h"
#include "fields.h"

/* Which requests have a field */
#define COMPLETION (1 << ASK_COMPLETION)
#define CHAT       (1 << ASK_CHAT)
#define TOKENIZE   (1 << ASK_TOKENIZE)
#define DETOKENIZE (1 << ASK_DETOKENIZE)
#define AT(member) offsetof(struct ask, member)

static const struct field fields[] = {
	{ "model", FIELD_STRING, true, COMPLETION | CHAT | TOKENIZE | DETOKENIZE, AT(model) },
	{ "echo", FIELD_BOOL, true, COMPLETION, AT(echo) },
	{ "echo", FIELD_BOOL, false, CHAT, AT(echo) },
	{ "frequency_penalty", FIELD_DOUBLE, true, COMPLETION | CHAT, AT(frequency) },
	{ "logprobs", FIELD_INT, true, COMPLETION, AT(logprobs) },
	{ "logprobs", FIELD_BOOL, true, CHAT, AT(logprobs_given) },
	{ "top_logprobs", FIELD_INT, true, CHAT, AT(logprobs) },
	{ "max_tokens", FIELD_INT, true, COMPLETION | CHAT, AT(max_tokens) },
	{ "max_completion_tokens", FIELD_INT, true, CHAT, AT(max_completion_tokens) },
	{ "n", FIELD_INT, false, COMPLETION, AT(n) },
	{ "n", FIELD_INT, true, CHAT, AT(n) },
	{ "presence_penalty", FIELD_DOUBLE, true, COMPLETION | CHAT, AT(presence) },
	{ "seed", FIELD_INT, true, COMPLETION | CHAT, AT(seed) },
	{ "stream", FIELD_BOOL, true, COMPLETION | CHAT, AT(stream) },
	{ "temperature", FIELD_DOUBLE, true, COMPLETION | CHAT, AT(temperature) },
	{ "top_p", FIELD_DOUBLE, true, COMPLETION | CHAT, AT(top_p) },
	{ "reasoning_effort", FIELD_STRING, true, CHAT, AT(chat.reasoning_effort) },
	{ "include_reasoning", FIELD_BOOL, false, CHAT, AT(include_reasoning) },
	{ "suffix", FIELD_STRING, true, COMPLETION, AT(suffix) },
	{ "user", FIELD_STRING, true, COMPLETION | CHAT, AT(user) },
	{ "use_beam_search", FIELD_BOOL, false, COMPLETION | CHAT, AT(use_beam_search) },
	{ "top_k", FIELD_INT, true, COMPLETION | CHAT, AT(top_k) },
	{ "min_p", FIELD_DOUBLE, true, COMPLETION | CHAT, AT(min_p) },
	{ "repetition_penalty", FIELD_DOUBLE, true, COMPLETION | CHAT, AT(repetition) },
	{ "include_stop_str_in_output", FIELD_BOOL, false, COMPLETION | CHAT, AT(include_stop) },
	{ "ignore_eos", FIELD_BOOL, false, COMPLETION | CHAT, AT(ignore_eos) },
	{ "min_tokens", FIELD_INT, false, COMPLETION | CHAT, AT(min_tokens) },
	{ "skip_special_tokens", FIELD_BOOL, false, COMPLETION | CHAT, AT(skip_special) },
	{ "spaces_between_special_tokens", FIELD_BOOL, false, COMPLETION | CHAT, AT(spaces_between) },
	{ "truncate_prompt_tokens", FIELD_INT, true, COMPLETION | CHAT, AT(truncate) },
	{ "truncation_side", FIELD_STRING, true, COMPLETION | CHAT, AT(truncation_side) },
	{ "prompt_logprobs", FIELD_INT, true, COMPLETION | CHAT, AT(prompt_logprobs) },
	{ "add_special_tokens", FIELD_BOOL, false, COMPLETION | CHAT | TOKENIZE, AT(add_special) },
	{ "priority", FIELD_INT, false, COMPLETION | CHAT, AT(priority) },
	{ "request_id", FIELD_STRING, false, COMPLETION | CHAT, AT(request_id) },
	{ "return_tokens_as_token_ids", FIELD_BOOL, true, COMPLETION | CHAT, AT(tokens_as_ids) },
	{ "return_token_ids", FIELD_BOOL, true, COMPLETION | CHAT, AT(return_token_ids) },
	{ "timings", FIELD_BOOL, true, COMPLETION | CHAT, AT(timings) },
	{ "timings_per_token", FIELD_BOOL, true, COMPLETION | CHAT, AT(timings_per_token) },
	{ "return_progress", FIELD_BOOL, true, COMPLETION | CHAT, AT(return_progress) },
	{ "return_prompt_text", FIELD_BOOL, true, CHAT, AT(return_prompt_text) },
	{ "cache_salt", FIELD_STRING, true, COMPLETION | CHAT, AT(cache_salt) },
	{ "stream_interval", FIELD_INT, true, COMPLETION | CHAT, AT(stream_interval) },
	{ "thinking_token_budget", FIELD_INT, true, COMPLETION | CHAT, AT(thinking_budget) },
	{ "add_generation_prompt", FIELD_BOOL, false, CHAT | TOKENIZE, AT(chat.add_generation_prompt) },
	{ "continue_final_message", FIELD_BOOL, false, CHAT | TOKENIZE, AT(chat.continue_final) },
	{ "chat_template", FIELD_STRING, true, CHAT | TOKENIZE, AT(chat_template) },
	{ "return_token_strs", FIELD_BOOL, true, TOKENIZE, AT(return_token_strs) },
};

static void defaults(struct ask *a, enum ask_kind kind, const struct ask_limits *l)
{
	*a = (struct ask){
		.kind = kind,
		.frequency = NAN, .presence = NAN, .temperature = NAN, .top_p = NAN, .min_p = NAN,
		.repetition = NAN, .top_k = ASK_NONE, .seed = ASK_NONE, .n = 1,
		.max_tokens = kind == ASK_COMPLETION ? 16 : ASK_NONE,
		.max_completion_tokens = ASK_NONE, .logprobs = ASK_NONE, .prompt_logprobs = ASK_NONE,
		.truncate = ASK_NONE, .stream_interval = l->stream_interval,
		.thinking_budget = -1, .skip_special = true, .spaces_between = true,
		.priority = kind == ASK_CHAT || kind == ASK_COMPLETION ? l->priority : 0,
		.include_reasoning = true, .chat.add_generation_prompt = true,
		.add_special = kind == ASK_COMPLETION, .tokens_as_ids = l->tokens_as_ids,
	};
}

static int count_of_logprobs(json_t *root, const char *name, struct problem *p)
{
	json_t *v = json_object_get(root, name);
	char value[32];
	double d;

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_number(v) && !json_is_boolean(v))
		return problem_value(p, name, NULL, "`%s` must be an integer.", name);
	d = json_is_boolean(v) ? json_is_true(v) : json_number_value(v);
	if (!strcmp(name, "prompt_logprobs") && text_json_true(json_object_get(root, "stream")) &&
	    (d > 0 || d == -1))
		return problem_value(p, name, NULL, "`prompt_logprobs` are not available when "
		                     "`stream=True`.");
	if (d < 0 && d != -1) {
		snprintf(value, sizeof(value), "%g", d);
		return problem_value(p, name, value, "`%s` must be a positive value or -1.", name);
	}
	return 0;
}

/* Combinations that vLLM checks before the types of the fields. */
static int combinations(const struct ask *a, json_t *root, struct problem *p)
{
	json_t *prompt = json_object_get(root, "prompt"), *v;
	const char *s;
	size_t n;

	if (a->kind == ASK_COMPLETION) {
		if (json_is_array(prompt) && json_array_size(prompt) > ASK_PROMPTS &&
		    !json_is_integer(json_array_get(prompt, 0)))
			return problem_value(p, "prompt", NULL, "prompt list length %zu exceeds the maximum "
			                     "allowed count of %d.", json_array_size(prompt), ASK_PROMPTS);
		if (text_json_given(root, "prompt_embeds"))
			return problem_bad(p, "prompt_embeds", "prompt_embeds is not supported by Slipring.");
		if (!prompt || json_is_null(prompt) || (json_is_string(prompt) &&
		                                        !json_string_length(prompt)))
			return problem_value(p, "prompt", NULL, "Either prompt or prompt_embeds must be "
			                     "provided and non-empty.");
	}
	if (text_json_true(json_object_get(root, "stream_options")) &&
	    !text_json_true(json_object_get(root, "stream")))
		return problem_value(p, "stream_options", NULL,
		                     "Stream options can only be defined when `stream=True`.");
	if (ask_structured_shape(a, root, p) < 0)
		return -1;
	if (count_of_logprobs(root, "prompt_logprobs", p) < 0 ||
	    count_of_logprobs(root, a->kind == ASK_CHAT ? "top_logprobs" : "logprobs", p) < 0)
		return -1;
	v = json_object_get(root, "top_logprobs");
	if (a->kind == ASK_CHAT && text_json_true(v) && !text_json_true(json_object_get(root, "logprobs")))
		return problem_value(p, "top_logprobs", NULL,
		                     "when using `top_logprobs`, `logprobs` must be set to true.");
	v = json_object_get(root, "cache_salt");
	if (v && !json_is_null(v)) {
		if (!json_is_string(v) || !json_string_length(v))
			return problem_value(p, "cache_salt", NULL, "Parameter 'cache_salt' must be a "
			                     "non-empty string if provided.");
		s = json_string_value(v);
		n = utf8_count(s, json_string_length(v));
		if (n > 128 || strpbrk(s, "@/\\") || strlen(s) != json_string_length(v))
			return problem_value(p, "cache_salt", NULL, "Parameter 'cache_salt' must be at most "
			                     "128 characters and must not contain '@', '/', '\\\\', or NUL.");
	}
	return 0;
}

/* Refuse by name, and never ignore, what vLLM supports and Slipring does not. */
static int refusals(const struct ask *a, json_t *root, struct problem *p)
{
	static const char *const unsupported[] = { "logprob_token_ids", "kv_transfer_params",
		 "ec_transfer_params", "repetition_detection", "vllm_xargs" };
	json_t *v;

	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++)
		if (text_json_true(json_object_get(root, unsupported[i])))
			return problem_bad(p, unsupported[i], "%s is not supported by Slipring.",
			                   unsupported[i]);
	if (a->use_beam_search)
		return problem_bad(p, "use_beam_search", "Beam search is not supported by Slipring.");
	if (a->return_progress && !a->stream)
		return problem_bad(p, "return_progress", "return_progress needs `stream=True`: a whole answer comes "
		                   "after its prompt.");
	v = json_object_get(root, "best_of");
	if (v && !json_is_null(v) && !(json_is_integer(v) && json_integer_value(v) == a->n))
		return problem_bad(p, "best_of", "best_of is not supported: ask for n answers and choose.");
	if (a->suffix)
		return problem_bad(p, "suffix", "suffix is only supported for models with FIM completion "
		                   "rendering");
	if (a->thinking_budget < -1 || a->thinking_budget > INT32_MAX)
		return problem_bad(p, "thinking_token_budget", "thinking_token_budget must be a number of tokens, or "
		                   "-1 for any number.");
	if (a->thinking_budget >= 0 && a->kind == ASK_COMPLETION)
		return problem_bad(p, "thinking_token_budget", "thinking_token_budget is not supported by "
		                   "/v1/completions.");
	if (text_json_true(json_object_get(root, "watermarking")))
		return problem_bad(p, "watermarking", "watermarking is not supported by Slipring.");
	return 0;
}

static int stream_options(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *o = json_object_get(a->root, "stream_options"), *v;

	if (o && !json_is_null(o)) {
		if (!json_is_object(o))
			return problem_field(p, "stream_options", "stream_options must be an object, not %s.",
			                     text_json_type(o));
		v = json_object_get(o, "include_usage");
		if (v && !json_is_null(v) && field_bool(v, &a->include_usage) < 0)
			return problem_field(p, "stream_options.include_usage", "include_usage must be a "
			                     "bool.");
		v = json_object_get(o, "continuous_usage_stats");
		if (v && !json_is_null(v) && field_bool(v, &a->continuous_usage) < 0)
			return problem_field(p, "stream_options.continuous_usage_stats",
			                     "continuous_usage_stats must be a bool.");
	}
	a->timings |= a->timings_per_token;
	if (l->force_usage)
		a->include_usage = a->continuous_usage = true;
	a->continuous_usage = a->continuous_usage && a->include_usage;
	return 0;
}

static int model(const struct ask *a, const struct ask_limits *l, struct problem *p)
{
	return a->model && a->model[0] ? ask_model_known(a->model, l, p) : 0;
}

int ask_model_known(const char *name, const struct ask_limits *l, struct problem *p)
{
	struct out list = { 0 };

	for (int i = 0; i < l->n_names; i++)
		if (!strcmp(name, l->names[i]))
			return 0;
	for (const struct ask_limits *m = l->first ? l->first : l; m; m = m->next)
		for (int i = 0; i < m->n_names; i++)
			out_fmt(&list, "%s%s", list.n ? ", " : "", m->names[i]);
	problem_set(p, 404, "NotFoundError", "model", "The model `%.200s` does not exist. Valid aliases: "
	            "%.*s.", name, (int)(list.n < 400 ? list.n : 400), list.p ? list.p : "");
	out_free(&list);
	return -1;
}

/* "prompt": a text, a list of ids, or a list of either. */
static int prompts(struct ask *a, struct problem *p)
{
	json_t *v = json_object_get(a->root, "prompt"), *item;
	bool ids = false;
	char at[48];

	if (!json_is_string(v) && !json_is_array(v))
		return problem_field(p, "prompt", "prompt must be a string, a list of token ids, or a "
		                     "list of either; not %s.", text_json_type(v));
	if (json_is_array(v) && !json_array_size(v))
		return problem_bad(p, NULL, "You must pass at least one prompt");
	ids = json_is_array(v) && json_is_number(json_array_get(v, 0));
	a->n_prompts = json_is_array(v) && !ids ? (int)json_array_size(v) : 1;
	a->prompt = calloc((size_t)a->n_prompts, sizeof(*a->prompt));
	if (!a->prompt) {
		a->n_prompts = 0;
		return problem_memory(p);
	}
	for (size_t i = 0; i < (size_t)a->n_prompts; i++) {
		struct prompt *q = &a->prompt[i];

		item = json_is_array(v) && !ids ? json_array_get(v, i) : v;
		snprintf(at, sizeof(at), a->n_prompts > 1 || (json_is_array(v) && !ids) ? "prompt.%zu" :
		         "prompt", i);
		if (json_is_string(item) && json_is_string(json_is_array(v) ? json_array_get(v, 0) : v)) {
			q->text = json_string_value(item);
			q->n_text = json_string_length(item);
		} else if (json_is_array(item) && (ids || json_is_array(json_array_get(v, 0)))) {
			if (field_ids(item, at, 0, &q->ids, p) < 0)
				return -1;
		} else {
			return problem_field(p, at, "prompt must be a string, a list of token ids, or a "
			                     "list of either; entry %zu is %s.", i, text_json_type(item));
		}
		if (a->kind == ASK_COMPLETION && !q->n_text && !q->ids.n)
			return problem_bad(p, NULL, "The decoder prompt cannot be empty");
	}
	return 0;
}

static int of_kind(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *root = a->root, *v;

	switch (a->kind) {
	case ASK_DETOKENIZE:
		v = json_object_get(root, "tokens");
		if (!v)
			return problem_field(p, "tokens", "tokens is required: a list of token ids.");
		return field_ids(v, "tokens", 0, &a->tokens, p);
	case ASK_TOKENIZE:
		if (!json_object_get(root, "messages")) {
			v = json_object_get(root, "prompt");
			if (!json_is_string(v))
				return problem_field(p, "prompt", "%s", v ? "prompt must be a string." :
				                     "prompt or messages is required.");
			if (!json_object_get(root, "add_special_tokens"))
				a->add_special = true;
			return prompts(a, p);
		}
		if (ask_tools(a, l, p) < 0)
			return -1;
		break;
	case ASK_COMPLETION:
		return prompts(a, p);
	case ASK_CHAT:
		if (ask_tools(a, l, p) < 0)
			return -1;
	}
	a->prompt = calloc(1, sizeof(*a->prompt));
	if (!a->prompt)
		return problem_memory(p);
	a->n_prompts = 1;
	if (!a->logprobs_given)
		a->logprobs = ASK_NONE;
	else if (a->logprobs == ASK_NONE)
		a->logprobs = 0;
	if (a->max_completion_tokens != ASK_NONE)
		a->max_tokens = a->max_completion_tokens;
	if (ask_chat_inputs(a, l, p) < 0)
		return -1;
	if (a->chat_template || text_json_given(a->chat.variables, "chat_template"))
		return problem_bad(p, NULL, "Chat template is passed with request, but "
		                   "--trust-request-chat-template is not set. Refused request with untrusted "
		                   "chat template.");
	return ask_messages(a, p);
}

/* All after the JSON. */
static int read_root(struct ask *a, enum ask_kind kind, const struct ask_limits *l, struct problem *p)
{
	bool generates = kind == ASK_COMPLETION || kind == ASK_CHAT;

	if (generates && combinations(a, a->root, p) < 0)
		return -1;
	if (fields_read(fields, sizeof(fields) / sizeof(fields[0]), (uint8_t)(1 << kind), a->root, a, p) < 0)
		return -1;
	if (of_kind(a, l, p) < 0 || model(a, l, p) < 0)
		return -1;
	if (!generates)
		return 0;
	if (stream_options(a, l, p) < 0 || refusals(a, a->root, p) < 0 || ask_structured(a, l, p) < 0)
		return -1;
	return ask_sampling(a, l, p);
}

int ask_parse(struct ask *a, enum ask_kind kind, const char *body, size_t n,
              const struct ask_limits *l, struct problem *p)
{
	*p = (struct problem){ 0 };
	defaults(a, kind, l);
	return ask_json(&a->root, body, n, p) < 0 ? -1 : read_root(a, kind, l, p);
}

static int translated(struct ask *a, enum ask_kind kind, ask_translate *translate, const char *body,
                      size_t n, const struct ask_limits *l, struct problem *p)
{
	json_t *given = NULL;
	int r;

	*p = (struct problem){ 0 };
	defaults(a, kind, l);
	a->agent = kind == ASK_CHAT;
	a->root = json_object();
	r = a->root ? ask_json(&given, body, n, p) : problem_memory(p);
	if (!r)
		r = translate(a, given, l, p);
	if (!r)
		r = read_root(a, kind, l, p);
	json_decref(given);
	return r;
}

int ask_agent(struct ask *a, ask_translate *translate, const char *body, size_t n, const struct ask_limits *l,
              struct problem *p)
{
	return translated(a, ASK_CHAT, translate, body, n, l, p);
}

int ask_tokens(struct ask *a, ask_translate *translate, const char *body, size_t n,
               const struct ask_limits *l, struct problem *p)
{
	return translated(a, ASK_COMPLETION, translate, body, n, l, p);
}

void ask_slim(struct ask *a)
{
	static const char *const kept[] = { "stop", "request_id", "cache_salt" };
	json_t *small = json_object();
	bool ok = small != NULL;

	for (size_t i = 0; ok && i < sizeof(kept) / sizeof(kept[0]); i++)
		if (json_object_get(a->root, kept[i]))
			ok = !json_object_set(small, kept[i], json_object_get(a->root, kept[i]));
	if (ok && a->echo && json_object_get(a->root, "prompt"))
		ok = !json_object_set(small, "prompt", json_object_get(a->root, "prompt"));
	if (ok && a->last_content)
		ok = !json_object_set(small, "content", a->last_content);
	if (!ok) {                            /* no memory to make it smaller: it is freed after the answer */
		json_decref(small);
		return;
	}
	json_decref(a->root);
	a->root = small;
	chat_free(&a->chat);
	a->bad_words = NULL;
	a->chat_template = a->model = a->tool_name = a->user = a->suffix = a->truncation_side = NULL;
	for (int k = 0; k < a->n_prompts; k++) {
		struct prompt *q = &a->prompt[k];

		if (q->own ? a->return_prompt_text : a->echo)
			continue;
		free(q->own);
		q->own = NULL;
		q->text = NULL;
		q->n_text = 0;
	}
}

void ask_free(struct ask *a)
{
	for (int i = 0; i < a->n_prompts; i++) {
		free(a->prompt[i].own);
		free(a->prompt[i].ids.id);
	}
	free(a->prompt);
	free(a->stop_ids.id);
	free(a->allowed.id);
	free(a->tokens.id);
	free(a->bad.id);
	free(a->bias);
	json_decref(a->tools);
	json_decref(a->names);
	free(a->reply);
	free(a->guide.src);
	free(a->guide.whitespace);
	chat_free(&a->chat);
	json_decref(a->root);
	*a = (struct ask){ 0 };
}
