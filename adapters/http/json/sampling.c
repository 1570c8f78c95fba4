/* sampling.c - ask_sampling: checks the sampling parameters, with vLLM's ranges and messages.  A parameter
 * that the request does not give is the server's (core/models/defaults.h).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "adapters/text/slipring-text.h"
#include "fields.h"
#include "adapters/text/text_json.h"
#include "openai.h"

/* A number as Python prints it. */
struct number { char s[40]; };

static struct number number_text(double v)
{
	struct out o = { 0 };
	struct number n;

	if (isfinite(v))
		out_double(&o, v);
	snprintf(n.s, sizeof(n.s), "%.*s", (int)o.n, o.p ? o.p : "");
	if (!isfinite(v))
		snprintf(n.s, sizeof(n.s), "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
	out_free(&o);
	return n;
}

static struct number integer_text(int64_t v)
{
	struct number n;

	snprintf(n.s, sizeof(n.s), "%lld", (long long)v);
	return n;
}

static double or(double given, double otherwise)
{
	return isnan(given) ? otherwise : given;
}

static int numbers(struct ask *a, struct problem *p)
{
	if (!(a->presence >= -2 && a->presence <= 2))
		return problem_bad(p, NULL, "presence_penalty must be in [-2, 2], got %s.",
		                   number_text(a->presence).s);
	if (!(a->frequency >= -2 && a->frequency <= 2))
		return problem_bad(p, NULL, "frequency_penalty must be in [-2, 2], got %s.",
		                   number_text(a->frequency).s);
	if (!isfinite(a->repetition))
		return problem_bad(p, NULL, "repetition_penalty must be a finite number, got %s.",
		                   number_text(a->repetition).s);
	if (a->repetition <= 0)
		return problem_bad(p, NULL, "repetition_penalty must be greater than zero, got %s.",
		                   number_text(a->repetition).s);
	if (!isfinite(a->temperature))
		return problem_value(p, "temperature", number_text(a->temperature).s,
		                     "temperature must be a finite number, got %s.", number_text(a->temperature).s);
	if (a->temperature < 0)
		return problem_value(p, "temperature", number_text(a->temperature).s,
		                     "temperature must be non-negative, got %s.", number_text(a->temperature).s);
	if (a->temperature > 2)
		return problem_value(p, "temperature", number_text(a->temperature).s,
		                     "temperature must be in [0, 2], got %s.", number_text(a->temperature).s);
	if (!(a->top_p > 0 && a->top_p <= 1))
		return problem_value(p, "top_p", number_text(a->top_p).s, "top_p must be in (0, 1], got %s.",
		                     number_text(a->top_p).s);
	if (a->top_k < -1)
		return problem_bad(p, NULL, "top_k must be 0 (disable), or at least 1, got %s.",
		                   integer_text(a->top_k).s);
	if (!(a->min_p >= 0 && a->min_p <= 1))
		return problem_bad(p, NULL, "min_p must be in [0, 1], got %s.", number_text(a->min_p).s);
	/* These become floats on the wire: underflow or overflow there must not turn them off. */
	if ((float)a->repetition == 0 || a->repetition > 1e6)
		return problem_bad(p, NULL, "repetition_penalty must be at most 1000000, and not vanish in "
		                   "single precision, got %s.", number_text(a->repetition).s);
	if ((float)a->top_p == 0)
		a->top_p = 1e-30;
	return 0;
}

static int lengths(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	const char *name = a->max_completion_tokens != ASK_NONE ? "max_completion_tokens" : "max_tokens";
	bool prompt_only = a->kind == ASK_COMPLETION && a->echo && a->max_tokens == 0;

	if (a->max_tokens != ASK_NONE) {
		if (!a->agent && l->context && a->max_tokens > l->context)
			return problem_value(p, name, integer_text(a->max_tokens).s, "%s=%s cannot be greater than "
			                     "max_model_len=%s. Please request fewer output tokens.", name,
			                     integer_text(a->max_tokens).s, integer_text(l->context).s);
		if (a->max_tokens < 1 && !prompt_only)
			return problem_value(p, "max_tokens", integer_text(a->max_tokens).s,
			                     "max_tokens must be at least 1, got %s.", integer_text(a->max_tokens).s);
	}
	if (a->min_tokens < 0)
		return problem_bad(p, NULL, "min_tokens must be greater than or equal to 0, got %s.",
		                   integer_text(a->min_tokens).s);
	if (a->max_tokens != ASK_NONE && a->min_tokens > (prompt_only ? 1 : a->max_tokens))
		return problem_bad(p, NULL, "min_tokens must be less than or equal to max_tokens=%s, got %s.",
		                   integer_text(a->max_tokens).s, integer_text(a->min_tokens).s);
	if (a->stream_interval < 1)
		return problem_field(p, "stream_interval", "stream_interval must be at least 1, got %s.",
		                     integer_text(a->stream_interval).s);
	if (a->stream_interval < l->stream_interval)
		a->stream_interval = l->stream_interval;
	if (a->truncate != ASK_NONE && a->truncate < -1)
		return problem_field(p, "truncate_prompt_tokens", "truncate_prompt_tokens must be -1 or "
		                     "more, got %s.", integer_text(a->truncate).s);
	if (a->truncate != ASK_NONE && l->context && a->truncate > l->context)
		return problem_value(p, "truncate_prompt_tokens", integer_text(a->truncate).s,
		                     "truncate_prompt_tokens=%s cannot be greater than max_model_len = %s. "
		                     "Please request a smaller truncation size.", integer_text(a->truncate).s,
		                     integer_text(l->context).s);
	if (a->truncation_side && strcmp(a->truncation_side, "left") && strcmp(a->truncation_side, "right"))
		return problem_field(p, "truncation_side", "truncation_side must be 'left' or 'right'.");
	return 0;
}

/* Check a number of alternatives; -1 asks for the whole vocabulary. */
static int alternatives(int64_t *v, const char *what, const char *param, const struct ask_limits *l,
                        struct problem *p)
{
	int max = l->max_logprobs < SR_TOP_MAX ? l->max_logprobs : SR_TOP_MAX;
	int64_t wanted = *v == -1 ? l->vocab : *v;

	if (*v == ASK_NONE || wanted <= max)
		return 0;
	return problem_value(p, param, integer_text(wanted).s, "Requested %s logprobs of %s, which is greater "
	                     "than max allowed: %d", what, integer_text(wanted).s, max);
}

/* Add the stop ids of the text side, because a GGUF file's end of sequence may not be its end of turn.
 * (vLLM adds the ids of generation_config.json to stop_token_ids in the same way.) */
static int ends_of_turn(struct ask *a, const struct sr_text_info *info, struct problem *p)
{
	int32_t *ids = realloc(a->stop_ids.id, (a->stop_ids.n + (size_t)info->n_stop + 1) * sizeof(*ids));
	uint32_t k;

	if (!ids)
		return problem_memory(p);
	a->stop_ids.id = ids;
	for (int i = 0; i < info->n_stop; i++) {
		for (k = 0; k < a->stop_ids.n && ids[k] != info->stop[i];)
			k++;
		if (k == a->stop_ids.n && k < SR_LIST_MAX && info->stop[i] != info->eos)
			ids[a->stop_ids.n++] = info->stop[i];
	}
	return 0;
}

static int stops(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *v = json_object_get(a->root, "stop"), *s;
	size_t n, bytes = 0;

	if (v && !json_is_null(v)) {
		if (!json_is_string(v) && !json_is_array(v))
			return problem_field(p, "stop", "stop must be a string or a list of strings, not %s.",
			                     text_json_type(v));
		n = json_is_array(v) ? json_array_size(v) : 1;
		if (n > ASK_STOPS)
			return problem_field(p, "stop", "stop should have at most %d strings, not %zu.",
			                     ASK_STOPS, n);
		for (size_t i = 0; i < n; i++) {
			s = json_is_array(v) ? json_array_get(v, i) : v;
			if (!json_is_string(s))
				return problem_field(p, "stop", "stop[%zu] must be a string, not %s.", i,
				                     text_json_type(s));
			if (!json_string_length(s))
				return problem_bad(p, NULL, "stop cannot contain an empty string.");
			a->stop[i] = json_string_value(s);
			a->stop_len[i] = json_string_length(s);
			bytes += a->stop_len[i];
		}
		if (bytes > ASK_STOP_BYTES)
			return problem_bad(p, "stop", "The stop strings are %zu bytes long together; at "
			                   "most %d are allowed.", bytes, ASK_STOP_BYTES);
		a->n_stop = (int)n;
	}
	v = json_object_get(a->root, "stop_token_ids");
	if (v && !json_is_null(v) && field_ids(v, "stop_token_ids", l->vocab, &a->stop_ids, p) < 0)
		return -1;
	if (a->stop_ids.n > SR_LIST_MAX)
		return problem_bad(p, "stop_token_ids", "stop_token_ids has %u entries; at most %d are "
		                   "allowed.",
		                   a->stop_ids.n, SR_LIST_MAX);
	return a->ignore_eos ? 0 : ends_of_turn(a, sr_text_info(l->text), p);
}

static int allowed(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *v = json_object_get(a->root, "allowed_token_ids");
	char value[32];

	if (!v || json_is_null(v))
		return 0;
	if (field_ids(v, "allowed_token_ids", 0, &a->allowed, p) < 0)
		return -1;
	if (!a->allowed.n)
		return problem_value(p, "allowed_token_ids", "[]", "allowed_token_ids is not None and "
		                     "empty!");
	for (uint32_t i = 0; i < a->allowed.n; i++)
		if (a->allowed.id[i] < 0 || a->allowed.id[i] >= l->vocab) {
			snprintf(value, sizeof(value), "[%lld]",
			         (long long)json_integer_value(json_array_get(v, i)));
			return problem_value(p, "allowed_token_ids", value,
			                     "allowed_token_ids contains out-of-vocab token id!");
		}
	if (a->allowed.n > SR_LIST_MAX)
		return problem_bad(p, "allowed_token_ids", "allowed_token_ids has %u entries; at most %d are "
		                   "allowed.", a->allowed.n, SR_LIST_MAX);
	return 0;
}

static int bias(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	json_t *o = json_object_get(a->root, "logit_bias"), *v;
	const char *key;
	double value;
	long long id;
	char *end, list[48], at[64];

	if (!o || json_is_null(o))
		return 0;
	if (!json_is_object(o))
		return problem_field(p, "logit_bias", "logit_bias must be an object of token ids and "
		                     "numbers, not %s.", text_json_type(o));
	if (json_object_size(o) > SR_LIST_MAX)
		return problem_bad(p, "logit_bias", "logit_bias has %zu entries; at most %d are allowed.",
		                   json_object_size(o), SR_LIST_MAX);
	a->bias = calloc(json_object_size(o) + 1, sizeof(*a->bias));
	if (!a->bias)
		return problem_memory(p);
	json_object_foreach(o, key, v) {
		if (field_double(v, &value) < 0) {
			snprintf(at, sizeof(at), "logit_bias.%.32s", key);
			return problem_field(p, at, "logit_bias of \"%.32s\" must be a number, not %s.", key,
			                     text_json_type(v));
		}
		id = strtoll(key, &end, 10);
		if (end == key || *end)
			return problem_bad(p, "logit_bias", "logit_bias contains key(s) that cannot be "
			                   "converted to integer token IDs: ['%.32s']", key);
		if (id < 0 || id >= l->vocab) {
			snprintf(list, sizeof(list), "[%lld]", id);
			return problem_value(p, "logit_bias", list, "token_id(s) %s in logit_bias contain "
			                     "out-of-vocab token ids. Vocabulary size: %d", list, l->vocab);
		}
		a->bias[a->n_bias++] = (struct sr_pair){ (int32_t)id,
			(float)(value > 100 ? 100 : value < -100 ? -100 : value) };
	}
	return 0;
}

static int check_bad_words(struct ask *a, struct problem *p)
{
	json_t *v = json_object_get(a->root, "bad_words"), *s;
	char at[40];
	size_t i;

	if (!v)
		return 0;
	if (!json_is_array(v))
		return problem_field(p, "bad_words", "bad_words must be a list of strings, not %s.",
		                     text_json_type(v));
	json_array_foreach(v, i, s) {
		snprintf(at, sizeof(at), "bad_words.%zu", i);
		if (!json_is_string(s))
			return problem_field(p, at, "bad_words[%zu] must be a string, not %s.", i,
			                     text_json_type(s));
		if (!json_string_length(s))
			return problem_bad(p, NULL, "bad_words cannot contain an empty string.");
	}
	if (json_array_size(v) > ASK_BAD_WORDS)
		return problem_bad(p, "bad_words", "Too many bad words: %zu. The max number is %d.",
		                   json_array_size(v), ASK_BAD_WORDS);
	a->bad_words = json_array_size(v) ? v : NULL;
	return 0;
}

static int request_id(const struct ask *a, struct problem *p)
{
	const unsigned char *s = (const unsigned char *)a->request_id;
	size_t n;

	if (!s)
		return 0;
	for (n = 0; s[n] > 0x20 && s[n] < 0x7f; n++)
		;
	if (s[n] || !n || n > ASK_ID_BYTES)
		return problem_bad(p, "request_id", "request_id must be 1 to %d printable ASCII characters "
		                   "without spaces.", ASK_ID_BYTES);
	return 0;
}

int ask_priority(const struct ask *a, const struct ask_limits *l, struct problem *p)
{
	if (a->priority && !l->priorities)
		return problem_bad(p, "priority", "Got priority %s but priority scheduling is not enabled "
		                   "(--scheduling-policy priority).", integer_text(a->priority).s);
	if (a->priority > INT32_MAX || a->priority < INT32_MIN)
		return problem_bad(p, "priority", "priority must fit in 32 bits, got %s.",
		                   integer_text(a->priority).s);
	if (a->priority < l->min_priority)
		return problem_bad(p, "priority", "priority must be at least %lld, got %s: a lower one needs an API "
		                   "key with a lower min-priority (--api-key-file).",
		                   (long long)l->min_priority, integer_text(a->priority).s);
	return 0;
}

int ask_sampling(struct ask *a, const struct ask_limits *l, struct problem *p)
{
	const struct defaults *d = &l->defaults;

	a->temperature = or(a->temperature, d->temperature);
	a->top_p = or(a->top_p, d->top_p);
	a->min_p = or(a->min_p, d->min_p);
	a->repetition = or(a->repetition, d->repetition);
	a->presence = or(a->presence, 0);
	a->frequency = or(a->frequency, 0);
	if (a->top_k == ASK_NONE)
		a->top_k = d->top_k;

	if (lengths(a, l, p) < 0)
		return -1;
	if (a->n < 1)
		return problem_bad(p, NULL, "n must be at least 1, got %s.", integer_text(a->n).s);
	if (a->n > ASK_CHOICES || a->n * a->n_prompts > ASK_CHOICES)
		return problem_bad(p, NULL, "n must be at most %d for %d prompt%s, got %s.",
		                   ASK_CHOICES / a->n_prompts, a->n_prompts, a->n_prompts > 1 ? "s" : "",
		                   integer_text(a->n).s);
	if (numbers(a, p) < 0)
		return -1;
	if (a->temperature > 0 && a->temperature < 0.01)
		a->temperature = 0.01;            /* as vLLM does: below it logits overflow */
	if (a->temperature == 0) {
		a->top_p = 1;
		a->top_k = 0;
		a->min_p = 0;
		if (a->n > 1)
			return problem_bad(p, NULL, "n must be 1 when using greedy sampling, got %s.",
			                   integer_text(a->n).s);
	}
	a->top_k = a->top_k < 0 ? 0 : a->top_k;
	a->seeded = a->seed != ASK_NONE && a->seed != -1;
	if (a->prompt_logprobs == ASK_NONE && a->echo && a->logprobs != ASK_NONE)
		a->prompt_logprobs = a->logprobs;
	if (alternatives(&a->logprobs, "sample", "logprobs", l, p) < 0 ||
	    alternatives(&a->prompt_logprobs, "prompt", "prompt_logprobs", l, p) < 0 ||
	    stops(a, l, p) < 0 || bias(a, l, p) < 0 || allowed(a, l, p) < 0 || check_bad_words(a, p) < 0 ||
	    request_id(a, p) < 0)
		return -1;
	if (ask_priority(a, l, p) < 0)
		return -1;
	return 0;
}
