/* generate.c - /inference/v1/generate: token ids in, token ids out.  A request becomes one of
 * /v1/completions; what has no place there is refused by name.
 */
#include <stdlib.h>
#include <string.h>

#include "adapters/text/text_json.h"
#include "fields.h"
#include "openai.h"

/* Members of sampling_params that change nothing here. */
static const char *const idle[] = { "detokenize", "output_kind", "skip_clone", "skip_reading_prefix_cache",
	"flat_logprobs", "extra_args" };
/* Those that a completion has, too. */
static const char *const taken[] = { "n", "presence_penalty", "frequency_penalty", "repetition_penalty",
	"temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens",
	"min_tokens", "logprobs", "prompt_logprobs", "skip_special_tokens", "spaces_between_special_tokens",
	"include_stop_str_in_output", "structured_outputs", "logit_bias", "allowed_token_ids", "bad_words",
	"truncate_prompt_tokens", "thinking_token_budget", "repetition_detection", "logprob_token_ids" };
/* Members of the request. */
static const char *const beside[] = { "model", "stream", "stream_options", "cache_salt", "priority",
	"request_id",
	"kv_transfer_params", "ec_transfer_params" };

static bool among(const char *const *names, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}
#define AMONG(names, name) among(names, sizeof(names) / sizeof(names[0]), name)

static bool says_nothing(const json_t *v)
{
	return json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v)) ||
	       (json_is_array(v) && !json_array_size(v));
}

static int sampling(struct ask *a, json_t *params, struct problem *p)
{
	const char *key;
	char at[96];
	json_t *v;

	if (!json_is_object(params))
		return problem_field(p, "sampling_params", "sampling_params must be an object%s%s.",
		                     params ? ", not " : "", params ? text_json_type(params) : "");
	json_object_foreach(params, key, v) {
		snprintf(at, sizeof(at), "sampling_params.%.64s", key);
		if (AMONG(taken, key)) {
			if (!json_is_null(v) && json_object_set(a->root, key, v) < 0)
				return problem_memory(p);
		} else if (!strcmp(key, "skip_reading_prefix_cache") && json_is_true(v)) {
			return problem_bad(p, at, "%s is not supported by Slipring; a cache_salt of its own keeps "
			                   "a request apart.", at);
		} else if (!AMONG(idle, key) && !says_nothing(v)) {
			return problem_bad(p, at, "%s is not supported by Slipring.", at);
		}
	}
	return 0;
}

/* What a client may say of images, sound or another server. */
static int refused(json_t *given, struct problem *p)
{
	static const char *const no[] = { "features", "content_parts" };
	const char *mode = json_string_value(json_object_get(given, "output_mode"));

	for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
		if (!says_nothing(json_object_get(given, no[i])) && json_object_get(given, no[i]))
			return problem_bad(p, no[i], "%s is not supported by Slipring: prompts are token ids.", no[i]);
	if (mode && strcmp(mode, "tokens"))
		return problem_bad(p, "output_mode", "output_mode '%.16s' is not supported by Slipring: answers are "
		                   "token ids; /v1/completions gives text.", mode);
	return 0;
}

int ask_generate_api(struct ask *a, json_t *given, const struct ask_limits *l, struct problem *p)
{
	json_t *ids, *v;
	bool wanted = false;

	(void)l;
	if (!json_is_object(given))
		return problem_field(p, NULL, "The request must be an object, not %s.", text_json_type(given));
	ids = json_object_get(given, "token_ids");
	if (!json_is_array(ids) || !json_array_size(ids))
		return problem_field(p, "token_ids", "token_ids must be a list of at least one token id.");
	for (size_t i = 0; i < json_array_size(ids); i++)
		if (!json_is_integer(v = json_array_get(ids, i)) || json_integer_value(v) < 0)
			return problem_field(p, "token_ids", "token_ids must not contain negative values, nor anything "
			                     "but integers: entry %zu does.", i);
	if (refused(given, p) < 0 || sampling(a, json_object_get(given, "sampling_params"), p) < 0)
		return -1;
	v = json_object_get(given, "return_token_ids");
	if (v && !json_is_null(v) && field_bool(v, &wanted) < 0)
		return problem_field(p, "return_token_ids", "return_token_ids must be a bool.");
	a->prompt_ids = wanted;
	a->return_token_ids = true;
	a->max_tokens = ASK_NONE;            /* as long as the context, as vLLM has it here */
	if (json_object_set(a->root, "prompt", ids) < 0)
		return problem_memory(p);
	for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++)
		if ((v = json_object_get(given, beside[i])) && !json_is_null(v) &&
		    json_object_set(a->root, beside[i], v) < 0)
			return problem_memory(p);
	return 0;
}
